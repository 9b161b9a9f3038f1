/* SPDX-License-Identifier: MIT
 * Capture by CUDA graphs: see kernels/capture.h. The current stream is put into capture mode, so libraries and own kernels
 * are noted alike. Bytes from the host are kept in pinned memory that lives as long as the graph. */
#include "kernels/capture.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/libs/libs.h"
#include "kernels/cuda/runtime.h"

typedef struct Pinned {
  struct Pinned *next;
  void *at;
} Pinned;

struct PlkCaptured {
  PlcOwner *owner; /* of the memory */
  cudaStream_t stream;
  cudaGraphExec_t exec;
  Pinned *pinned;
};

static _Thread_local PlkCaptured *now; /* what is being captured */

static void drop(PlkCaptured *c) {
  if (!c) return;
  if (c->exec) {
    (void)cudaStreamSynchronize(c->stream);
    (void)cudaGraphExecDestroy(c->exec);
  }
  for (Pinned *p = c->pinned, *next; p; p = next) {
    next = p->next;
    (void)cudaFreeHost(p->at);
    free(p);
  }
  plc_owner_end(c->owner);
  free(c);
}

static PlStatus begin(void) {
  PL_TRY(plc_alive());
  if (now) PL_FAIL(PL_ERR_STATE, "cuda: a capture runs already");
  PlkCaptured *c = calloc(1, sizeof *c);
  if (!c) PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  PlStatus s = plc_owner_begin(&c->owner);
  c->stream = plc_stream();
  if (s == PL_OK) {
    cudaError_t e = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess) s = plc_failed(e, "cudaStreamBeginCapture", __FILE__, __LINE__);
  }
  plc_owner_pause();
  if (s != PL_OK) {
    drop(c);
    return s;
  }
  plc_owner_resume(c->owner);
  now = c;
  return PL_OK;
}

static PlStatus end(PlkCaptured **out) {
  PlkCaptured *c = now;
  cudaGraph_t graph = NULL;
  *out = NULL;
  if (!c) PL_FAIL(PL_ERR_STATE, "cuda: no capture runs");
  now = NULL;
  plc_owner_pause();
  cudaError_t e = cudaStreamEndCapture(c->stream, &graph);
  if (e == cudaSuccess && graph) e = cudaGraphInstantiate(&c->exec, graph, 0);
  if (graph) (void)cudaGraphDestroy(graph);
  if (e != cudaSuccess || !c->exec) {
    PlStatus s = e != cudaSuccess ? plc_failed(e, "capturing a graph", __FILE__, __LINE__)
                                  : pl_fail(PL_ERR_STATE, "cuda: nothing was captured");
    c->exec = NULL;
    drop(c);
    return s;
  }
  *out = c;
  return PL_OK;
}

static PlStatus launch(PlkCaptured *c) {
  PL_TRY(plc_alive());
  PLC_TRY(cudaGraphLaunch(c->exec, plc_stream()));
  return PL_OK;
}

/* ---- while it runs ---------------------------------------------------------------------------------------------- */

bool plc_capturing(void) { return now != NULL; }

PlStatus plc_capture_upload(void *dst, const void *src, size_t n) {
  Pinned *p = malloc(sizeof *p);
  if (!p) PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  cudaError_t e = cudaHostAlloc(&p->at, n, cudaHostAllocDefault);
  if (e != cudaSuccess) {
    free(p);
    return plc_failed(e, "cudaHostAlloc", __FILE__, __LINE__);
  }
  memcpy(p->at, src, n);
  p->next = now->pinned;
  now->pinned = p;
  PLC_TRY(cudaMemcpyAsync(dst, p->at, n, cudaMemcpyHostToDevice, now->stream));
  return PL_OK;
}

const PlkCaptureTable *plc_capture_table(void) {
  static const PlkCaptureTable table = {begin, end, launch, drop};
  return &table;
}
