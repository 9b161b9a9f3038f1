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
#include "kernels/cuda/runtime/runtime.h"

struct PlkFusedKernel {
  PlkFusedKernel *next;
  char *source;
  int capability; /* of the GPUs that it was compiled for; CUDA loads it on each that runs it */
  cudaLibrary_t library;
  cudaKernel_t kernel;
  PlkFused group;
};

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
  k->capability = plc_capability();
  PL_TRY(plc_nvrtc_compile(k->source, k->capability, &image, &size, NULL));
  cudaError_t e = cudaLibraryLoadData(&k->library, image, NULL, NULL, 0, NULL, NULL, 0);
  free(image); /* the library has a copy */
  if (e != cudaSuccess) return plc_failed(e, "loading a fused kernel", __FILE__, __LINE__);
  PLC_TRY(cudaLibraryGetKernel(&k->kernel, k->library, "plc_fused"));
  return PL_OK;
}

static PlStatus make_new(const PlkFused *g, char *source, PlkFusedKernel **out) {
  PlkFusedKernel *k = calloc(1, sizeof *k);
  if (!k) {
    free(source);
    PL_FAIL(PL_ERR_OOM, "out of memory to make a fused kernel");
  }
  k->source = source;
  k->group = *g;
  PlStatus s = load(k);
  if (s != PL_OK) {
    drop(k);
    return s;
  }
  *out = k;
  return PL_OK;
}

static PlStatus make(int gpu, const PlkFused *g, const PlkFusedKernel **out) {
  char *source = NULL;
  int params = 0;
  for (int i = 0; i < g->nmember; i++) params += g->member[i].set != 0;
  if (g->nmember > PLK_FUSED_MEMBERS || g->narg > PLK_FUSED_ARGS || params > PLK_FUSED_PARAMS)
    PL_FAIL(PL_ERR_UNSUPPORTED, "a fused group of %d operations, %d arrays, %d of them with parameters", g->nmember, g->narg, params);
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  PL_TRY(plc_fused_source(g, &source));
  PlStatus s = PL_OK;
  pthread_mutex_lock(&fused.lock);
  PlkFusedKernel *k = fused.all;
  while (k && (k->capability != plc_capability() || strcmp(k->source, source) != 0)) k = k->next;
  if (k) free(source);
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

static PlStatus run(int gpu, const PlkFusedKernel *k, const PlkFusedRun *r) {
  PlcFusedArgs a;
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  if (r->numel == 0) return PL_OK;
  int64_t blocks;
  unsigned threads;
  plc_fused_args(&k->group, r, &a, &blocks, &threads);
  const int64_t most = k->group.rows ? 1 << 20 : plc_most_blocks();
  void *args[] = {&a};
  const dim3 grid = {(unsigned)(blocks < most ? blocks : most), 1, 1}, block = {threads, 1, 1};
  PLC_TRY(cudaLaunchKernel((const void *)k->kernel, grid, block, args, 0, plc_stream()));
  return PL_OK;
}

const PlkFusedTable *plc_fused_table(void) {
  static const PlkFusedTable table = {plc_fused_takes, plc_fused_takes_rows, make, run, plc_fused_source};
  return &table;
}
