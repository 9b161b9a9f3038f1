/* SPDX-License-Identifier: MIT
 * Streams and events of each GPU. It has one non-blocking compute stream that is never the legacy one; scripts may add streams.
 * What scripts hold are a PlcStream and a PlcEvent: both know their GPU. */
#include "kernels/cuda/runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>

static _Thread_local PlcStream *current[PL_GPUS]; /* NULL: the GPU's compute stream */

cudaStream_t plc_stream(void) {
  const PlcGpu *g = plc_here();
  const PlcStream *s = current[g->index];
  return s ? s->s : g->compute;
}
void plc_stream_set(int gpu, void *stream) { current[gpu] = stream; }
void *plc_stream_get(int gpu) { return current[gpu]; }
int plc_stream_gpu(const void *stream) { return ((const PlcStream *)stream)->gpu; }

static cudaStream_t or_compute(void *stream) { return stream ? ((PlcStream *)stream)->s : plc_here()->compute; }

PlStatus plc_stream_new(int gpu, void **out, int priority) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  PlcGpu *g = plc_here();
  PlcStream *node = malloc(sizeof *node);
  if (!node) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  node->gpu = gpu;
  cudaError_t e = cudaStreamCreateWithPriority(&node->s, cudaStreamNonBlocking, priority);
  if (e != cudaSuccess) {
    free(node);
    return plc_failed(e, "cudaStreamCreateWithPriority", __FILE__, __LINE__);
  }
  *out = node;
  pthread_mutex_lock(&g->stream_lock);
  node->next = g->streams;
  g->streams = node;
  atomic_fetch_add(&g->nstreams, 1);
  pthread_mutex_unlock(&g->stream_lock);
  return PL_OK;
}

/* Its memory goes on to the compute stream once its work is done. */
void plc_stream_free(void *stream) {
  PlcStream *gone = stream;
  if (!gone) return;
  PlcGpu *g = plc_gpu(gone->gpu);
  if (current[gone->gpu] == gone) current[gone->gpu] = NULL;
  (void)cudaStreamSynchronize(gone->s);
  pthread_mutex_lock(&g->stream_lock);
  for (PlcStream **at = &g->streams; *at; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      atomic_fetch_sub(&g->nstreams, 1);
      break;
    }
  pthread_mutex_unlock(&g->stream_lock);
  plc_memory_moves(g, gone->s, g->compute);
  (void)cudaStreamDestroy(gone->s);
  free(gone);
}

bool plc_streams_exist(const PlcGpu *g) { return atomic_load_explicit(&g->nstreams, memory_order_relaxed) > 0; }
void plc_each_stream(PlcGpu *g, void (*f)(cudaStream_t s, void *context), void *context) {
  f(g->compute, context);
  pthread_mutex_lock(&g->stream_lock);
  for (const PlcStream *s = g->streams; s; s = s->next) f(s->s, context);
  pthread_mutex_unlock(&g->stream_lock);
}
void plc_captures(int gpu, int step) { atomic_fetch_add(&plc_gpu(gpu)->captures, step); }

/* An event that was never recorded has happened. */
PlStatus plc_stream_wait(int gpu, void *stream, void *event) {
  const PlcEvent *e = event;
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  if (e->gpu >= 0) PLC_TRY(cudaStreamWaitEvent(or_compute(stream), e->e, 0));
  return PL_OK;
}
PlStatus plc_stream_synchronize(int gpu, void *stream) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  PLC_TRY(cudaStreamSynchronize(or_compute(stream)));
  return plc_flag_check();
}

/* done, from what a query says. */
static PlStatus queried(cudaError_t e, bool *done, const char *what, int line) {
  if (e != cudaSuccess && e != cudaErrorNotReady) return plc_failed(e, what, __FILE__, line);
  if (e == cudaErrorNotReady) (void)cudaGetLastError(); /* no launch that follows is to blame */
  *done = e == cudaSuccess;
  return PL_OK;
}
PlStatus plc_stream_query(int gpu, void *stream, bool *done) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  return queried(cudaStreamQuery(or_compute(stream)), done, "cudaStreamQuery", __LINE__);
}

/* CUDA's event is made when it is first recorded: it belongs to one GPU. */
PlStatus plc_event_new(void **out, bool timing) {
  PlcEvent *e = malloc(sizeof *e);
  if (!e) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  *e = (PlcEvent){.gpu = -1, .timing = timing};
  *out = e;
  return PL_OK;
}
void plc_event_free(void *event) {
  PlcEvent *e = event;
  if (e && e->gpu >= 0) (void)cudaEventDestroy(e->e);
  free(e);
}
PlStatus plc_event_record(void *event, int gpu, void *stream) {
  PlcEvent *e = event;
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  if (e->gpu >= 0 && e->gpu != gpu)
    PL_FAIL(PL_ERR_ARG, "record: the event was recorded on cuda:%d before, the stream is one of cuda:%d; an event belongs to one device",
            e->gpu, gpu);
  if (e->gpu < 0) PLC_TRY(cudaEventCreateWithFlags(&e->e, e->timing ? cudaEventDefault : cudaEventDisableTiming));
  e->gpu = gpu;
  PLC_TRY(cudaEventRecord(e->e, or_compute(stream)));
  return PL_OK;
}
PlStatus plc_event_synchronize(void *event) {
  const PlcEvent *e = event;
  if (e->gpu < 0) return PL_OK;
  PL_TRY(plc_use(e->gpu));
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventSynchronize(e->e));
  return plc_flag_check();
}
PlStatus plc_event_query(void *event, bool *done) {
  const PlcEvent *e = event;
  *done = true;
  if (e->gpu < 0) return PL_OK;
  PL_TRY(plc_use(e->gpu));
  PL_TRY(plc_alive());
  return queried(cudaEventQuery(e->e), done, "cudaEventQuery", __LINE__);
}
PlStatus plc_event_elapsed(void *start, void *end, double *milliseconds) {
  const PlcEvent *a = start, *b = end;
  float ms = 0;
  if (a->gpu < 0 || b->gpu < 0) PL_FAIL(PL_ERR_STATE, "elapsed_time: an event was never recorded");
  if (a->gpu != b->gpu) PL_FAIL(PL_ERR_ARG, "elapsed_time: one event is of cuda:%d, the other of cuda:%d", a->gpu, b->gpu);
  PL_TRY(plc_use(a->gpu));
  PL_TRY(plc_alive());
  PLC_TRY(cudaEventElapsedTime(&ms, a->e, b->e));
  *milliseconds = (double)ms;
  return PL_OK;
}

static void wait_for(cudaStream_t s, void *worst) {
  cudaError_t e = cudaStreamSynchronize(s);
  if (e != cudaSuccess) *(cudaError_t *)worst = e;
}
/* The device as a whole cannot be waited for while some thread captures: that would end the capture. */
PlStatus plc_synchronize(int gpu) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  cudaError_t e = cudaSuccess;
  if (atomic_load(&plc_here()->captures) > 0) {
    plc_each_stream(plc_here(), wait_for, &e);
    if (plc_here()->copy) wait_for(plc_here()->copy, &e);
  } else e = cudaDeviceSynchronize();
  if (e != cudaSuccess) return plc_failed(e, "waiting for the device", __FILE__, __LINE__);
  return plc_flag_check();
}
