/* SPDX-License-Identifier: MIT
 * oneDNN's matmul primitive: compiled plans are in a table of small sets by hash. */
#include "kernels/cpu/onednn/onednn_matmul.h"

#include "kernels/cpu/onednn/onednn_plan_table.h"

#ifndef PLK_HAVE_ONEDNN

bool plk_onednn_bf16(void) { return false; }
PlStatus plk_onednn_bf16_get(const PlkBf16Key *key, PlkBf16Plan **out) {
  (void)key;
  *out = NULL;
  return PL_OK;
}
void plk_onednn_bf16_put(PlkBf16Plan *plan) { (void)plan; }
PlStatus plk_onednn_bf16_run(const PlkBf16Plan *plan, const void *a, const void *b, const void *bias, void *c) {
  (void)plan, (void)a, (void)b, (void)bias, (void)c;
  PL_FAIL(PL_ERR_UNSUPPORTED, "this build has no oneDNN");
}

#else

#include <stddef.h>
#include <string.h>

#define lib plk_dnnl()

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool fast_bf16; /* written once under `once` */

struct PlkBf16Plan {
  PlkPlanHead head;
  PlkBf16Key key;
  dnnl_primitive_t prim;
  dnnl_primitive_desc_t pd; /* owns what `pad` points to */
  Md a, b, c, bias;
  MdRef pad;
  size_t scratch;
};

/* ---- making a plan ------------------------------------------------------------------------------------------ */

typedef struct Matrix {
  int64_t rows, cols, row, col; /* sizes, then steps */
} Matrix;

/* n of them, `apart` elements from one to the next; 0: one alone. */
static dnnl_status_t matrices(Md *md, int64_t n, int64_t apart, Matrix m, dnnl_data_type_t dt) {
  const dnnl_dims_t dims = {n, m.rows, m.cols}, st = {apart, m.row, m.col};
  const int first = n == 0; /* two dims where there is one */
#if PLK_DNNL_V3
  return lib->memory_desc_create_with_strides(md, 3 - first, dims + first, dt, st + first);
#else
  return lib->memory_desc_init_by_strides(md, 3 - first, dims + first, dt, st + first);
#endif
}

static dnnl_status_t describe(PlkBf16Plan *p, dnnl_primitive_attr_t at) {
  const PlkBf16Key *q = &p->key;
  const dnnl_data_type_t out = q->c_f32 ? dnnl_f32 : dnnl_bf16;
  const int64_t n = q->batch > 1 ? q->batch : 0;
  const Matrix a = {q->m, q->k, q->ta ? 1 : q->lda, q->ta ? q->lda : 1}, b = {q->k, q->n, q->tb ? 1 : q->ldb, q->tb ? q->ldb : 1};
  const Matrix c = {q->m, q->n, q->ldc, 1}, bias = {1, q->n, q->n, 1};
  dnnl_status_t s = matrices(&p->a, n, q->sa, a, dnnl_bf16);
  if (s == dnnl_success) s = matrices(&p->b, n, q->sb, b, dnnl_bf16);
  if (s == dnnl_success) s = matrices(&p->c, n, q->sc, c, out);
  if (s == dnnl_success && q->bias) s = matrices(&p->bias, n ? 1 : 0, q->n, bias, q->bias == PLK_BIAS_F32 ? dnnl_f32 : dnnl_bf16);
  if (s != dnnl_success) return s;
#if PLK_DNNL_V3
  return lib->matmul_primitive_desc_create(&p->pd, lib->engine, p->a, p->b, q->bias ? p->bias : NULL, p->c, at);
#else
  dnnl_matmul_desc_t d;
  s = lib->matmul_desc_init(&d, &p->a, &p->b, q->bias ? &p->bias : NULL, &p->c);
  return s != dnnl_success ? s : lib->primitive_desc_create(&p->pd, &d, at, lib->engine, NULL);
#endif
}

static void clear(PlkPlanHead *head) {
  PlkBf16Plan *p = (PlkBf16Plan *)(void *)head;
  if (p->prim) lib->primitive_destroy(p->prim);
  if (p->pd) lib->primitive_desc_destroy(p->pd);
#if PLK_DNNL_V3
  if (p->a) lib->memory_desc_destroy(p->a);
  if (p->b) lib->memory_desc_destroy(p->b);
  if (p->c) lib->memory_desc_destroy(p->c);
  if (p->bias) lib->memory_desc_destroy(p->bias);
#endif
}

static PlStatus build(PlkPlanHead *head) {
  PlkBf16Plan *p = (PlkBf16Plan *)(void *)head;
  const int saved = plk_dnnl_alone(); /* a primitive fixes its thread count when it is made */
  dnnl_primitive_attr_t at = NULL;
  dnnl_status_t s = lib->primitive_attr_create(&at);
  if (s == dnnl_success) s = lib->primitive_attr_set_scratchpad_mode(at, dnnl_scratchpad_mode_user);
  if (s == dnnl_success) s = describe(p, at);
  const char *impl = "";
  if (s == dnnl_success) lib->primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  if (s == dnnl_success && strncmp(impl, "ref", 3) == 0) s = dnnl_unimplemented;
  if (s == dnnl_success) s = lib->primitive_create(&p->prim, p->pd);
  if (at) lib->primitive_attr_destroy(at);
  plk_dnnl_alone_end(saved);
  if (s == dnnl_out_of_memory) return plk_dnnl_check(s, "product of bf16 matrices");
  head->none = s != dnnl_success;
  if (!head->none) {
    p->pad = lib->primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0);
    p->scratch = lib->memory_desc_get_size(p->pad);
  }
  return PL_OK;
}

/* ---- the table of plans -------------------------------------------------------------------------------------- */

enum { SETS = 32, WAYS = 8 };
static PlkPlanSlot slots[SETS * WAYS];

_Static_assert(offsetof(struct PlkBf16Plan, key) == sizeof(PlkPlanHead), "the key follows the head");
_Static_assert(sizeof(PlkBf16Key) % sizeof(int64_t) == 0, "a key is a list of integers");
static PlkPlanTable table = {.what = "a matrix product",
                             .plan_bytes = sizeof(PlkBf16Plan),
                             .key_bytes = sizeof(PlkBf16Key),
                             .build = build,
                             .clear = clear,
                             .sets = SETS,
                             .ways = WAYS,
                             .slots = slots,
                             .lock = PTHREAD_MUTEX_INITIALIZER};

PlStatus plk_onednn_bf16_get(const PlkBf16Key *key, PlkBf16Plan **out) {
  PlkPlanHead *p = NULL;
  PlStatus s = fast_bf16 ? plk_plan_get(&table, key, &p) : PL_OK;
  *out = (PlkBf16Plan *)(void *)p;
  return s;
}

void plk_onednn_bf16_put(PlkBf16Plan *plan) { plk_plan_put(&table, (PlkPlanHead *)(void *)plan); }

/* ---- opening --------------------------------------------------------------------------------------------------- */

static void fork_prepare(void) { pthread_mutex_lock(&table.lock); }
static void fork_done(void) { pthread_mutex_unlock(&table.lock); }

/* Without the processor's own products of bf16 the library imitates them, slower than f32. */
static void probe(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (plk_isa()[1] != '4' || !__builtin_cpu_supports("avx512bf16")) return;
#else
  return;
#endif
  if (!plk_onednn_ready()) return;
  const PlkBf16Key small = {.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
  PlkPlanHead *p = NULL;
  if (plk_plan_make(&table, &small, &p) != PL_OK) return;
  const bool fast = !p->none;
  plk_plan_free(&table, p);
  fast_bf16 = fast && pthread_atfork(fork_prepare, fork_done, fork_done) == 0;
}

bool plk_onednn_bf16(void) {
  pthread_once(&once, probe);
  return fast_bf16;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

PlStatus plk_onednn_bf16_run(const PlkBf16Plan *p, const void *a, const void *b, const void *bias, void *c) {
  void *pad = NULL;
  if (p->scratch) PL_TRY(plk_scratch(p->scratch, &pad));
  PlkDnnlArg args[5] = {
      {DNNL_ARG_SRC, REF(p->a), (void *)(uintptr_t)a}, {DNNL_ARG_WEIGHTS, REF(p->b), (void *)(uintptr_t)b}, {DNNL_ARG_DST, REF(p->c), c}};
  int n = 3;
  if (p->key.bias) args[n++] = (PlkDnnlArg){DNNL_ARG_BIAS, REF(p->bias), (void *)(uintptr_t)bias};
  if (pad) args[n++] = (PlkDnnlArg){DNNL_ARG_SCRATCHPAD, p->pad, pad};
  PlStatus s = plk_dnnl_execute(p->prim, args, n, "product of bf16 matrices");
  plk_scratch_free(pad);
  return s;
}

#endif
