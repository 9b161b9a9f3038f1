/* SPDX-License-Identifier: MIT
 * oneDNN behind typed pointers from dlsym. v2 describes memory by value and convolution
 * by a descriptor struct; v3 by handles. The differences end in the first third of this
 * file. Plans are kept in a small LRU table behind one mutex; a plan in use is never
 * evicted. */
#include "kernels/cpu/onednn.h"

#ifdef PLK_HAVE_OPENBLAS
#define OTHER "OpenBLAS"
#else
#define OTHER "own matrix product"
#endif

#ifndef PLK_HAVE_ONEDNN

const char *plk_libraries(void) {
  return OTHER;
}
const char *plk_onednn_version(void) {
  return NULL;
}
bool plk_onednn_ready(void) {
  return false;
}

#else

#include <dlfcn.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define V3      (DNNL_VERSION_MAJOR >= 3)
#define STR2(x) #x
#define STR(x)  STR2(x)

#define FUNCS_BOTH(X)                                                                    \
  X(sgemm)                                                                               \
  X(set_max_cpu_isa)                                                                     \
  X(engine_create)                                                                       \
  X(stream_create) X(stream_destroy) X(memory_create) X(memory_destroy)                  \
      X(memory_desc_get_size) X(memory_desc_equal) X(primitive_create)                   \
          X(primitive_destroy) X(primitive_execute) X(primitive_desc_query)              \
              X(primitive_desc_query_md) X(primitive_desc_destroy)                       \
                  X(primitive_attr_create) X(primitive_attr_destroy)                     \
                      X(primitive_attr_set_scratchpad_mode)                              \
                          X(reorder_primitive_desc_create)
#if V3
#define FUNCS(X)                                                                         \
  FUNCS_BOTH(X)                                                                          \
  X(memory_desc_create_with_strides)                                                     \
  X(memory_desc_create_with_tag)                                                         \
  X(memory_desc_destroy)                                                                 \
  X(convolution_forward_primitive_desc_create)                                           \
      X(convolution_backward_data_primitive_desc_create)                                 \
          X(convolution_backward_weights_primitive_desc_create)
typedef dnnl_memory_desc_t Md;
typedef const_dnnl_memory_desc_t MdRef;
#define REF(md) (md)
#else
#define FUNCS(X)                                                                         \
  FUNCS_BOTH(X)                                                                          \
  X(memory_desc_init_by_strides)                                                         \
  X(memory_desc_init_by_tag)                                                             \
  X(primitive_desc_create)                                                               \
  X(dilated_convolution_forward_desc_init)                                               \
      X(dilated_convolution_backward_data_desc_init)                                     \
          X(dilated_convolution_backward_weights_desc_init)
typedef dnnl_memory_desc_t Md;
typedef const dnnl_memory_desc_t *MdRef;
#define REF(md) (&(md))
#endif

/* The library's entry points and its CPU engine: written once under `once`, read-only
 * afterwards. */
static struct {
#define X(f) __typeof__(&dnnl_##f) f;
  FUNCS(X)
#undef X
  dnnl_engine_t engine;
  bool ready;
} lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t plans_lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards the table at the end */

static void fork_prepare(void) {
  pthread_mutex_lock(&plans_lock);
}
static void fork_done(void) {
  pthread_mutex_unlock(&plans_lock);
}

static void open_library(void) {
  void *h = dlopen("libdnnl.so." STR(DNNL_VERSION_MAJOR), RTLD_LAZY | RTLD_LOCAL);
  if (!h) return;
  bool all = true;
#define X(f) all = (*(void **)&lib.f = dlsym(h, "dnnl_" #f)) != NULL && all;
  FUNCS(X)
#undef X
  if (!all) return;
  /* PERILUNE_ISA pins the library's code too; refused (and then harmless) if code was
   * already made. */
  const char level = plk_isa()[1];
  if (level == '2' || level == '3')
    lib.set_max_cpu_isa(level == '2' ? dnnl_cpu_isa_sse41 : dnnl_cpu_isa_avx2);
  if (lib.engine_create(&lib.engine, dnnl_cpu, 0) != dnnl_success) return;
  lib.ready = pthread_atfork(fork_prepare, fork_done, fork_done) == 0;
}

const char *plk_libraries(void) {
  return "oneDNN " STR(DNNL_VERSION_MAJOR) "." STR(DNNL_VERSION_MINOR) "." STR(
      DNNL_VERSION_PATCH) ", " OTHER;
}

const char *plk_onednn_version(void) {
  return "oneDNN " STR(DNNL_VERSION_MAJOR) "." STR(DNNL_VERSION_MINOR) "." STR(
      DNNL_VERSION_PATCH);
}

bool plk_onednn_ready(void) {
  pthread_once(&once, open_library);
  return lib.ready;
}

/* The library sizes its teams by this thread's OpenMP setting; inside a parallel region
 * it is alone anyway. */
static int alone_begin(void) {
#ifdef _OPENMP
  if (omp_in_parallel()) return 0;
  int n = omp_get_max_threads();
  if (n > 1) omp_set_num_threads(1);
  return n;
#else
  return 0;
#endif
}

static void alone_end(int n) {
#ifdef _OPENMP
  if (n > 1) omp_set_num_threads(n);
#else
  (void)n;
#endif
}

/* oneDNN 2.6's AVX-512 matrix product runs with its stack pointer inside a heap block: a signal handler that
 * then uses a few hundred bytes of stack overwrites the heap. So signals wait while the library computes. */
static void signals_off(sigset_t *was) {
  sigset_t most;
  sigfillset(&most);
  sigdelset(&most, SIGSEGV);
  sigdelset(&most, SIGBUS);
  sigdelset(&most, SIGFPE);
  sigdelset(&most, SIGILL);
  pthread_sigmask(SIG_BLOCK, &most, was);
}

static void signals_back(const sigset_t *was) {
  pthread_sigmask(SIG_SETMASK, was, NULL);
}

static PlStatus check(dnnl_status_t s, const char *what) {
  if (s == dnnl_success) return PL_OK;
  if (s == dnnl_out_of_memory) PL_FAIL(PL_ERR_OOM, "out of memory in oneDNN (%s)", what);
  PL_FAIL(PL_ERR_UNSUPPORTED, "oneDNN refused a %s (status %d)", what, (int)s);
}

PlStatus plk_onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb,
                          float beta, float *c, int64_t ldc) {
  int saved = alone_begin();
  sigset_t was;
  signals_off(&was);
  dnnl_status_t s = lib.sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b,
                              ldb, beta, c, ldc);
  signals_back(&was);
  alone_end(saved);
  return check(s, "matrix product");
}

/* ---- memory descriptors
 * ------------------------------------------------------------------- */

/* dims and element strides of tensor `which`; returns the number of dims. */
static int layout(const PlkConvKey *q, int which, dnnl_dims_t dims, dnnl_dims_t strides) {
  const int64_t *sp = which == PLK_CONV_X ? q->in : which == PLK_CONV_W ? q->k : q->out;
  int64_t plane = 1;
  for (int i = 0; i < q->nd; i++) plane *= sp[i];
  int at = 0;
  if (which == PLK_CONV_W) {
    if (q->g > 1) dims[at] = q->g, strides[at++] = q->o * q->wo;
    dims[at] = q->o, strides[at++] = q->wo;
    dims[at] = q->c, strides[at++] = plane;
  } else {
    dims[at] = q->n, strides[at++] = which == PLK_CONV_X ? q->xn : q->yn;
    dims[at] = q->g * (which == PLK_CONV_X ? q->c : q->o), strides[at++] = plane;
  }
  for (int i = 0; i < q->nd; i++) {
    plane /= sp[i];
    dims[at] = sp[i], strides[at++] = plane;
  }
  return at;
}

static dnnl_status_t md_strided(Md *md, int nd, const dnnl_dims_t dims,
                                const dnnl_dims_t st) {
#if V3
  return lib.memory_desc_create_with_strides(md, nd, dims, dnnl_f32, st);
#else
  return lib.memory_desc_init_by_strides(md, nd, dims, dnnl_f32, st);
#endif
}

static dnnl_status_t md_any(Md *md, int nd, const dnnl_dims_t dims) {
#if V3
  return lib.memory_desc_create_with_tag(md, nd, dims, dnnl_f32, dnnl_format_tag_any);
#else
  return lib.memory_desc_init_by_tag(md, nd, dims, dnnl_f32, dnnl_format_tag_any);
#endif
}

static void md_drop(Md *md) {
#if V3
  if (*md) lib.memory_desc_destroy(*md);
  *md = NULL;
#else
  (void)md;
#endif
}

/* ---- plans
 * -------------------------------------------------------------------------------- */

struct PlkConvPlan {
  PlkConvKey key;
  int users;     /* borrowers, under plans_lock */
  uint64_t tick; /* last borrow */
  bool none;     /* the library has no fast form: remembered, so it is asked once */
  dnnl_primitive_t conv, reorder[3]; /* reorder NULL: that tensor is used as it lies */
  dnnl_primitive_desc_t pd;          /* owns what `blocked` and `pad` point to */
  Md plain[3], bias;
  MdRef blocked[3], pad;
  size_t bytes[3], scratch;
};

typedef struct Geometry {
  dnnl_dims_t stride, dil, lo, hi;
} Geometry;

static dnnl_status_t describe(dnnl_primitive_desc_t *pd, int64_t kind, const Md m[3],
                              const Md *bias, const Geometry *g, dnnl_primitive_attr_t at,
                              dnnl_primitive_desc_t hint) {
  const dnnl_alg_kind_t alg = dnnl_convolution_direct;
#if V3
  MdRef b = bias ? *bias : NULL;
  if (kind == PLK_CONV_FWD)
    return lib.convolution_forward_primitive_desc_create(
        pd, lib.engine, dnnl_forward_training, alg, m[0], m[1], b, m[2], g->stride,
        g->dil, g->lo, g->hi, at);
  if (kind == PLK_CONV_BWD_INPUT)
    return lib.convolution_backward_data_primitive_desc_create(
        pd, lib.engine, alg, m[0], m[1], m[2], g->stride, g->dil, g->lo, g->hi, hint, at);
  return lib.convolution_backward_weights_primitive_desc_create(
      pd, lib.engine, alg, m[0], m[1], NULL, m[2], g->stride, g->dil, g->lo, g->hi, hint,
      at);
#else
  dnnl_convolution_desc_t d;
  dnnl_status_t s;
  if (kind == PLK_CONV_FWD)
    s = lib.dilated_convolution_forward_desc_init(&d, dnnl_forward_training, alg, &m[0],
                                                  &m[1], bias, &m[2], g->stride, g->dil,
                                                  g->lo, g->hi);
  else if (kind == PLK_CONV_BWD_INPUT)
    s = lib.dilated_convolution_backward_data_desc_init(&d, alg, &m[0], &m[1], &m[2],
                                                        g->stride, g->dil, g->lo, g->hi);
  else
    s = lib.dilated_convolution_backward_weights_desc_init(
        &d, alg, &m[0], &m[1], NULL, &m[2], g->stride, g->dil, g->lo, g->hi);
  return s != dnnl_success ? s : lib.primitive_desc_create(pd, &d, at, lib.engine, hint);
#endif
}

/* Asks for the convolution in the library's favourite layouts. */
static dnnl_status_t plan_describe(PlkConvPlan *p, dnnl_primitive_attr_t at) {
  const PlkConvKey *q = &p->key;
  Geometry g;
  memset(&g, 0, sizeof g);
  for (int i = 0; i < q->nd; i++) {
    g.stride[i] = q->stride[i], g.dil[i] = q->dil[i] - 1; /* the library counts gaps */
    g.lo[i] = g.hi[i] = q->pad[i];
  }
  Md asked[3];
  memset(asked, 0, sizeof asked);
  dnnl_status_t s = dnnl_success;
  for (int i = 0; i < 3 && s == dnnl_success; i++) {
    dnnl_dims_t dims, st;
    int nd = layout(q, i, dims, st);
    s = md_strided(&p->plain[i], nd, dims, st);
    if (s == dnnl_success) s = md_any(&asked[i], nd, dims);
  }
  if (s == dnnl_success && q->has_bias) {
    dnnl_dims_t dims = {q->g * q->o}, st = {1};
    s = md_strided(&p->bias, 1, dims, st);
  }
  dnnl_primitive_desc_t fwd = NULL;
  const Md *bias = q->has_bias ? &p->bias : NULL;
  if (s == dnnl_success) s = describe(&fwd, PLK_CONV_FWD, asked, bias, &g, at, NULL);
  if (s == dnnl_success && q->kind == PLK_CONV_FWD) {
    p->pd = fwd;
    fwd = NULL;
  } else if (s == dnnl_success) {
    s = describe(&p->pd, q->kind, asked, NULL, &g, at, fwd);
  }
  if (fwd) lib.primitive_desc_destroy(fwd);
  for (int i = 0; i < 3; i++) md_drop(&asked[i]);
  return s;
}

/* The tensor that a direction writes: y, x or w. */
static int written(int64_t kind) {
  return kind == PLK_CONV_FWD         ? PLK_CONV_Y
         : kind == PLK_CONV_BWD_INPUT ? PLK_CONV_X
                                      : PLK_CONV_W;
}

static dnnl_status_t plan_reorders(PlkConvPlan *p, dnnl_primitive_attr_t at) {
  static const dnnl_query_t md_of[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  for (int i = 0; i < 3; i++) {
    p->blocked[i] = lib.primitive_desc_query_md(p->pd, md_of[p->key.kind][i], 0);
    if (lib.memory_desc_equal(p->blocked[i], REF(p->plain[i]))) continue;
    p->bytes[i] = lib.memory_desc_get_size(p->blocked[i]);
    bool out = written(p->key.kind) == i;
    MdRef from = out ? p->blocked[i] : REF(p->plain[i]);
    MdRef to = out ? REF(p->plain[i]) : p->blocked[i];
    dnnl_primitive_desc_t rd = NULL;
    dnnl_status_t s =
        lib.reorder_primitive_desc_create(&rd, from, lib.engine, to, lib.engine, at);
    if (s == dnnl_success) s = lib.primitive_create(&p->reorder[i], rd);
    if (rd) lib.primitive_desc_destroy(rd);
    if (s != dnnl_success) return s;
  }
  p->pad = lib.primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0);
  p->scratch = lib.memory_desc_get_size(p->pad);
  return dnnl_success;
}

static void plan_clear(PlkConvPlan *p) {
  for (int i = 0; i < 3; i++) {
    if (p->reorder[i]) lib.primitive_destroy(p->reorder[i]);
    md_drop(&p->plain[i]);
  }
  md_drop(&p->bias);
  if (p->conv) lib.primitive_destroy(p->conv);
  if (p->pd) lib.primitive_desc_destroy(p->pd);
}

static PlStatus plan_build(PlkConvPlan *p) {
  int saved = alone_begin(); /* a primitive fixes its thread count when it is made */
  dnnl_primitive_attr_t at = NULL, plain_at = NULL;
  dnnl_status_t s = lib.primitive_attr_create(&at);
  if (s == dnnl_success) s = lib.primitive_attr_create(&plain_at);
  if (s == dnnl_success)
    s = lib.primitive_attr_set_scratchpad_mode(at, dnnl_scratchpad_mode_user);
  if (s == dnnl_success) s = plan_describe(p, at);
  const char *impl = "";
  if (s == dnnl_success)
    lib.primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, (void *)&impl);
  if (s == dnnl_success && strncmp(impl, "ref", 3) == 0) s = dnnl_unimplemented;
  if (s == dnnl_success) s = lib.primitive_create(&p->conv, p->pd);
  if (s == dnnl_success) s = plan_reorders(p, plain_at);
  if (at) lib.primitive_attr_destroy(at);
  if (plain_at) lib.primitive_attr_destroy(plain_at);
  alone_end(saved);
  if (s == dnnl_out_of_memory) return check(s, "convolution");
  p->none = s != dnnl_success; /* our own kernel takes it */
  return PL_OK;
}

/* The cache: at most this many plans, the least recently used goes first. Guarded by
 * plans_lock. */
enum { NPLANS = 96 };
static PlkConvPlan *plans[NPLANS];
static uint64_t plans_tick;

static void plan_free(PlkConvPlan *p) {
  plan_clear(p);
  free(p);
}

/* A slot for a new plan, or -1 when all are in use. */
static int slot_find(void) {
  int best = -1;
  for (int i = 0; i < NPLANS; i++) {
    if (!plans[i]) return i;
    if (plans[i]->users == 0 && (best < 0 || plans[i]->tick < plans[best]->tick))
      best = i;
  }
  if (best >= 0) {
    plan_free(plans[best]);
    plans[best] = NULL;
  }
  return best;
}

static PlStatus plan_make(const PlkConvKey *key, PlkConvPlan **out) {
  int slot = slot_find();
  if (slot < 0) PL_FAIL(PL_ERR_STATE, "too many convolutions at once");
  PlkConvPlan *p = calloc(1, sizeof *p);
  if (!p) PL_FAIL(PL_ERR_OOM, "out of memory for a convolution plan");
  p->key = *key;
  PlStatus s = plan_build(p);
  if (s != PL_OK) {
    plan_free(p);
    return s;
  }
  plans[slot] = *out = p;
  return PL_OK;
}

PlStatus plk_onednn_conv_get(const PlkConvKey *key, PlkConvPlan **out) {
  PlkConvPlan *p = NULL;
  PlStatus s = PL_OK;
  pthread_mutex_lock(&plans_lock);
  for (int i = 0; i < NPLANS && !p; i++)
    if (plans[i] && memcmp(&plans[i]->key, key, sizeof *key) == 0) p = plans[i];
  if (!p) s = plan_make(key, &p);
  if (s == PL_OK) {
    p->tick = ++plans_tick;
    if (!p->none) p->users++;
    *out = p->none ? NULL : p;
  }
  pthread_mutex_unlock(&plans_lock);
  return s;
}

void plk_onednn_conv_put(PlkConvPlan *plan) {
  if (!plan) return;
  pthread_mutex_lock(&plans_lock);
  plan->users--;
  pthread_mutex_unlock(&plans_lock);
}

size_t plk_onednn_conv_bytes(const PlkConvPlan *plan, int which) {
  return plan->bytes[which];
}
size_t plk_onednn_conv_scratch(const PlkConvPlan *plan) {
  return plan->scratch;
}

/* ---- execution
 * ---------------------------------------------------------------------------- */

typedef struct Arg {
  int name;
  MdRef md;
  void *data;
} Arg;

/* Wraps the arrays, runs the primitive, drops the wrappers (they own no data). */
static PlStatus execute(dnnl_primitive_t prim, const Arg *args, int n, const char *what) {
  dnnl_exec_arg_t ex[5];
  int made = 0;
  dnnl_stream_t stream = NULL;
  int saved = alone_begin();
  dnnl_status_t s = lib.stream_create(&stream, lib.engine, dnnl_stream_default_flags);
  for (; made < n && s == dnnl_success; made++) {
    ex[made].arg = args[made].name;
    s = lib.memory_create(&ex[made].memory, args[made].md, lib.engine, args[made].data);
    if (s != dnnl_success) break;
  }
  if (s == dnnl_success) {
    sigset_t was;
    signals_off(&was);
    s = lib.primitive_execute(prim, stream, n, ex);
    signals_back(&was);
  }
  for (int i = 0; i < made; i++) lib.memory_destroy(ex[i].memory);
  if (stream) lib.stream_destroy(stream);
  alone_end(saved);
  return check(s, what);
}

PlStatus plk_onednn_conv_reorder(const PlkConvPlan *p, int which, void *plain,
                                 void *blocked) {
  bool out = written(p->key.kind) == which;
  Arg ours = {out ? DNNL_ARG_TO : DNNL_ARG_FROM, REF(p->plain[which]), plain};
  Arg theirs = {out ? DNNL_ARG_FROM : DNNL_ARG_TO, p->blocked[which], blocked};
  return execute(p->reorder[which], (Arg[]){ours, theirs}, 2, "reorder");
}

PlStatus plk_onednn_conv_run(const PlkConvPlan *p, void *x, void *w, void *y, void *bias,
                             void *scratch) {
  static const int name[3][3] = {
      {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
      {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
      {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  void *data[3] = {x, w, y};
  Arg args[5];
  int n = 0;
  for (int i = 0; i < 3; i++)
    args[n++] = (Arg){name[p->key.kind][i], p->blocked[i], data[i]};
  if (p->scratch) args[n++] = (Arg){DNNL_ARG_SCRATCHPAD, p->pad, scratch};
  if (p->key.has_bias && p->key.kind == PLK_CONV_FWD)
    args[n++] = (Arg){DNNL_ARG_BIAS, REF(p->bias), bias};
  return execute(p->conv, args, n, "convolution");
}

#endif
