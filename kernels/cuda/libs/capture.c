/* SPDX-License-Identifier: MIT
 * Capture by CUDA graphs: see kernels/capture.h. A stream in capture mode becomes the thread's current one, so libraries and
 * own kernels are noted alike. Bytes from the host are kept in pinned memory that lives as long as the graph. What changes between
 * launches (where random numbers begin, settings) is in one block of device memory that is written before each. */
#include "kernels/capture.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/libs/libs.h"
#include "kernels/cuda/runtime/runtime.h"

enum { LIVE_BYTES = 64 << 10, RNG_BYTES = 3 * sizeof(uint64_t) };

typedef struct Pinned {
  struct Pinned *next;
  void *at;
} Pinned;

/* Settings of one call. */
typedef struct Live {
  struct Live *next;
  const PlcSettings *set;
  const PlAttrs *attrs;
  size_t at; /* in the block */
} Live;

struct PlkCaptured {
  PlcOwner *owner; /* of the memory */
  int gpu;
  PlcStream stream; /* that captures: one of its own, so that nothing else of the process gets into the graph */
  void *home;       /* the thread's stream otherwise */
  cudaGraphExec_t exec;
  cudaEvent_t ran;    /* behind the last launch */
  PlkCaptured *later; /* what is to be released once the capture has ended */
  Pinned *pinned;
  Live *live;
  const PlAttrs *attrs; /* of the calls noted now */
  void *block;          /* device: seed, stream, offset, then settings */
  char *room;           /* host: the next contents, and behind them what the block holds */
  size_t used;
  uint64_t base; /* the offset at begin */
  bool drawn, written;
  bool dry; /* noted for its pieces of memory alone */
};

static _Thread_local PlkCaptured *now; /* what is being captured */

static void drop(PlkCaptured *c) {
  if (!c) return;
  if (now) { /* waiting, or freeing pinned memory, may end the capture that runs */
    c->later = now->later;
    now->later = c;
    return;
  }
  (void)plc_use(c->gpu);
  if (c->ran) {
    (void)cudaEventSynchronize(c->ran);
    (void)cudaEventDestroy(c->ran);
  }
  if (c->exec) (void)cudaGraphExecDestroy(c->exec);
  for (Pinned *p = c->pinned, *next; p; p = next) {
    next = p->next;
    (void)cudaFreeHost(p->at);
    free(p);
  }
  for (Live *l = c->live, *next; l; l = next) {
    next = l->next;
    free(l);
  }
  plc_scratch_free(c->block);
  plc_owner_end(c->owner);
  free(c->room);
  free(c);
}

static PlStatus open_stream(PlkCaptured *c, const PlkCaptureRoom *room) {
  PL_TRY(plc_owner_begin(room, &c->owner));
  PL_TRY(plc_scratch(LIVE_BYTES, &c->block));
  PLC_TRY(cudaEventCreateWithFlags(&c->ran, cudaEventDisableTiming));
  PLC_TRY(cudaEventRecord(c->ran, plc_stream()));
  PLC_TRY(cudaStreamCreateWithFlags(&c->stream.s, cudaStreamNonBlocking));
  PLC_TRY(cudaStreamBeginCapture(c->stream.s, cudaStreamCaptureModeRelaxed));
  return PL_OK;
}

static void close_stream(PlkCaptured *c) {
  plc_owner_pause();
  plc_stream_set(c->gpu, c->home);
  if (c->stream.s) (void)cudaStreamDestroy(c->stream.s);
  c->stream.s = NULL;
  plc_captures(c->gpu, -1);
}

static PlStatus begin(int gpu, const PlkRng *rng, const PlkCaptureRoom *room) {
  if (now) PL_FAIL(PL_ERR_STATE, "cuda: a capture runs already");
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  PlkCaptured *c = calloc(1, sizeof *c);
  if (c) c->room = calloc(2, LIVE_BYTES);
  if (!c || !c->room) {
    free(c);
    PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  }
  c->gpu = c->stream.gpu = gpu;
  c->home = plc_stream_get(gpu);
  c->base = rng->offset;
  c->dry = room == NULL;
  c->used = RNG_BYTES;
  plc_captures(gpu, 1);
  PlStatus s = open_stream(c, room);
  if (s != PL_OK) {
    close_stream(c);
    drop(c);
    return s;
  }
  plc_stream_set(gpu, &c->stream);
  now = c;
  return PL_OK;
}

static void drop_later(PlkCaptured *c) {
  while (c->later) {
    PlkCaptured *next = c->later;
    c->later = next->later;
    drop(next);
  }
}

static PlStatus end(PlkCaptured **out) {
  PlkCaptured *c = now;
  cudaGraph_t graph = NULL;
  *out = NULL;
  if (!c) PL_FAIL(PL_ERR_STATE, "cuda: no capture runs");
  now = NULL;
  (void)plc_use(c->gpu);
  cudaError_t e = cudaStreamEndCapture(c->stream.s, &graph);
  close_stream(c);
  const bool noted = e == cudaSuccess && graph;
  if (noted && !c->dry) e = cudaGraphInstantiate(&c->exec, graph, 0);
  if (graph) (void)cudaGraphDestroy(graph);
  PlStatus s = PL_OK;
  if (e != cudaSuccess || !(c->dry ? noted : c->exec != NULL)) {
    s = e != cudaSuccess ? plc_failed(e, "capturing a graph", __FILE__, __LINE__) : pl_fail(PL_ERR_STATE, "cuda: nothing was captured");
    c->exec = NULL;
  }
  drop_later(c);
  if (s != PL_OK) {
    drop(c);
    return s;
  }
  *out = c;
  return PL_OK;
}

/* The block as it must be now; nothing is written that it holds already. */
static PlStatus refresh(PlkCaptured *c, const PlkRng *rng) {
  if (!c->drawn && !c->live) return PL_OK;
  uint64_t word[3] = {rng->seed, rng->stream, rng->offset};
  if (c->drawn) memcpy(c->room, word, sizeof word);
  for (const Live *l = c->live; l; l = l->next) l->set->make(l->attrs, c->room + l->at);
  if (c->written && memcmp(c->room, c->room + LIVE_BYTES, c->used) == 0) return PL_OK;
  PL_TRY(plc_upload(c->block, c->room, c->used));
  memcpy(c->room + LIVE_BYTES, c->room, c->used);
  c->written = true;
  return PL_OK;
}

static PlStatus launch(PlkCaptured *c, const PlkRng *rng) {
  PL_TRY(plc_use(c->gpu));
  PL_TRY(plc_alive());
  PL_TRY(refresh(c, rng));
  PLC_TRY(cudaGraphLaunch(c->exec, plc_stream()));
  PLC_TRY(cudaEventRecord(c->ran, plc_stream()));
  return PL_OK;
}

/* ---- while it runs ---------------------------------------------------------------------------------------------- */

bool plc_capturing(void) { return now != NULL; }
int plc_capture_gpu(void) { return now ? now->gpu : -1; }

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
  PLC_TRY(cudaMemcpyAsync(dst, p->at, n, cudaMemcpyHostToDevice, now->stream.s));
  return PL_OK;
}

PlcRng plc_capture_rng(const PlkRng *rng) {
  now->drawn = true;
  return (PlcRng){rng->seed, rng->stream, rng->offset - now->base, now->block};
}

static void settings(const PlAttrs *attrs) {
  if (now) now->attrs = attrs;
}

PlStatus plc_capture_settings(const PlcSettings *set, const void **live) {
  PlkCaptured *c = now;
  if (!c->attrs) return PL_OK; /* nobody promised that they stay */
  const size_t size = (set->size + 7) / 8 * 8;
  if (c->used + size > LIVE_BYTES) PL_FAIL(PL_ERR_UNSUPPORTED, "more settings than a captured graph has room for");
  Live *l = malloc(sizeof *l);
  if (!l) PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  *l = (Live){.next = c->live, .set = set, .attrs = c->attrs, .at = c->used};
  c->live = l;
  c->used += size;
  *live = (const char *)c->block + l->at;
  return PL_OK;
}

static const PlkCapturePiece *pieces(const PlkCaptured *c, int64_t *n) { return plc_owner_pieces(c->owner, n); }

static bool follows(const char *family, const PlAttrs *attrs, int64_t *frozen) {
  const PlcSettings *set = plc_settings_of(family);
  if (set) *frozen = set->frozen(attrs);
  return set != NULL;
}

const PlkCaptureTable *plc_capture_table(void) {
  static const PlkCaptureTable table = {begin, settings, end, launch, drop, pieces, follows};
  return &table;
}
