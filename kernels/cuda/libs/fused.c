/* SPDX-License-Identifier: MIT
 * The table "fused" (kernels/fused.h): groups become source, source becomes machine code, and that a kernel of this
 * process, found again by its text. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/fused_source.h"
#include "kernels/cuda/libs/libs.h"
#include "kernels/cuda/libs/nvrtc.h"
#include "kernels/elementwise.h"

struct PlkFusedKernel {
  PlkFusedKernel *next;
  char *source;
  cudaLibrary_t library;
  cudaKernel_t kernel;
  PlkFused group;
  int64_t pack;        /* elements that a thread takes at once */
};

/* What kernels get; kernels/cuda/fused.h has the same struct for the device. */
typedef struct Params {
  double f[3];
  int64_t i[3];
  unsigned set;
} Params;
enum { PARAMS = 16 };
typedef struct Args {
  int64_t numel, cols;
  struct {
    uint32_t d, m, s;
  } by_cols;
  bool wide, packed;
  void *at[PLK_FUSED_ARGS];
  double number[PLK_FUSED_ARGS];
  Params p[PARAMS];
} Args;
_Static_assert(sizeof(Args) <= 4096, "what a launch can carry");

static struct {
  pthread_mutex_t lock;
  PlkFusedKernel *all;
} fused = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- making --------------------------------------------------------------------------------------------------- */

static void drop(PlkFusedKernel *k) {
  if (!k) return;
  if (k->library) (void)cudaLibraryUnload(k->library);
  free(k->source);
  free(k);
}

static PlStatus load(PlkFusedKernel *k) {
  void *image = NULL;
  size_t size = 0;
  PL_TRY(plc_nvrtc_compile(k->source, plc_capability(), &image, &size, NULL));
  cudaError_t e = cudaLibraryLoadData(&k->library, image, NULL, NULL, 0, NULL, NULL, 0);
  free(image); /* the library has a copy */
  if (e != cudaSuccess) return plc_failed(e, "loading a fused kernel", __FILE__, __LINE__);
  PLC_TRY(cudaLibraryGetKernel(&k->kernel, k->library, "plc_fused"));
  return PL_OK;
}

static PlStatus make_new(const PlkFused *g, char *source, PlkFusedKernel **out) {
  size_t widest = 2;
  PlkFusedKernel *k = calloc(1, sizeof *k);
  if (!k) {
    free(source);
    PL_FAIL(PL_ERR_OOM, "out of memory to make a fused kernel");
  }
  k->source = source;
  k->group = *g;
  for (int i = 0; i < g->narg; i++)
    if (pl_dtype_size((PlDtype)g->arg[i].dtype) > widest) widest = pl_dtype_size((PlDtype)g->arg[i].dtype);
  k->pack = (int64_t)(16 / widest);
  PlStatus s = load(k);
  if (s != PL_OK) {
    drop(k);
    return s;
  }
  *out = k;
  return PL_OK;
}

static PlStatus make(const PlkFused *g, const PlkFusedKernel **out) {
  char *source = NULL;
  int params = 0;
  for (int i = 0; i < g->nmember; i++) params += g->member[i].set != 0;
  if (g->nmember > PLK_FUSED_MEMBERS || g->narg > PLK_FUSED_ARGS || params > PARAMS)
    PL_FAIL(PL_ERR_UNSUPPORTED, "a fused group of %d operations, %d arrays, %d of them with parameters", g->nmember, g->narg, params);
  PL_TRY(plc_alive());
  PL_TRY(plc_fused_source(g, &source));
  PlStatus s = PL_OK;
  pthread_mutex_lock(&fused.lock);
  PlkFusedKernel *k = fused.all;
  while (k && strcmp(k->source, source) != 0) k = k->next;
  if (k)
    free(source);
  else {
    s = make_new(g, source, &k);
    if (s == PL_OK) {
      k->next = fused.all;
      fused.all = k;
    }
  }
  pthread_mutex_unlock(&fused.lock);
  if (s == PL_OK) *out = k;
  return s;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Division by cols for numbers below 2^31: as plc_div_by of kernels/cuda/device.h (Granlund, Montgomery, PLDI 1994). */
static void divide_by(Args *a, int64_t cols) {
  uint32_t d = (uint32_t)cols, s = 0;
  while (((uint64_t)1 << s) < d) s++;
  a->by_cols.d = d;
  a->by_cols.s = s;
  a->by_cols.m = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << s) - d) / d + 1);
}

static void parameters(Args *a, const PlkFused *g, const PlAttrs *const *attrs) {
  int n = 0;
  for (int i = 0; i < g->nmember; i++) {
    if (!g->member[i].set) continue;
    Params *p = &a->p[n++];
    const PlAttrs *from = attrs ? attrs[i] : NULL;
    for (int k = 0; k < 3 && from; k++) {
      if (!pl_attr_has(from, k)) continue;
      const bool whole = (from->isint >> k) & 1;
      p->set |= 1u << k;
      p->f[k] = whole ? (double)pl_attr_i(from, k) : pl_attr_f(from, k);
      p->i[k] = whole ? pl_attr_i(from, k) : (int64_t)p->f[k];
    }
    /* the bounds of halves are the type's own */
    const PlDtype d = (PlDtype)g->member[i].result;
    if (g->member[i].code == PLK_EW_NAN_TO_NUM && (d == PL_F16 || d == PL_BF16))
      for (int k = 1; k <= 2; k++)
        if (!((p->set >> k) & 1)) {
          const double top = d == PL_F16 ? 65504.0 : 0x1.fep127;
          p->set |= 1u << k;
          p->f[k] = k == 1 ? top : -top;
        }
  }
}

static PlStatus run(const PlkFusedKernel *k, const PlkFusedRun *r) {
  const PlkFused *g = &k->group;
  Args a = {.numel = r->numel, .cols = r->cols > 0 ? r->cols : r->numel, .packed = true};
  PL_TRY(plc_alive());
  if (r->numel == 0) return PL_OK;
  a.wide = r->numel > INT32_MAX;
  if (!a.wide) divide_by(&a, a.cols);
  for (int i = 0; i < g->narg; i++) {
    const PlArray *x = r->arg[i];
    if (g->arg[i].kind == PLK_FUSED_NUMBER) {
      a.number[i] = plc_number_f(x);
      continue;
    }
    a.at[i] = x->data;
    const bool in_packs = g->arg[i].kind <= PLK_FUSED_ROW;
    if (in_packs && (uintptr_t)x->data % (pl_dtype_size((PlDtype)x->dtype) * (size_t)k->pack)) a.packed = false;
    if (g->arg[i].kind != PLK_FUSED_FULL && g->arg[i].kind != PLK_FUSED_ONE && a.cols % k->pack) a.packed = false;
  }
  parameters(&a, g, r->attrs);
  int64_t packs = (r->numel + k->pack - 1) / k->pack, blocks = (packs + PLC_BLOCK - 1) / PLC_BLOCK;
  const int64_t most = (int64_t)plc_processors() * 16;
  void *args[] = {&a};
  const dim3 grid = {(unsigned)(blocks < most ? blocks : most), 1, 1}, block = {PLC_BLOCK, 1, 1};
  PLC_TRY(cudaLaunchKernel((const void *)k->kernel, grid, block, args, 0, plc_stream()));
  return PL_OK;
}

const PlkFusedTable *plc_fused_table(void) {
  static const PlkFusedTable table = {plc_fused_takes, make, run, plc_fused_source};
  return &table;
}
