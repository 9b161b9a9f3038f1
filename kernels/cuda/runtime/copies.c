/* SPDX-License-Identifier: MIT
 * Bytes between host and GPU, also beside the GPU's work, and between two GPUs, and what kernels flag about their work on the way. */
#include "kernels/cuda/runtime/runtime.h"

#include <pthread.h>
#include <string.h>

/* ---- host and GPU ---------------------------------------------------------------------------------------------------- */

static bool in_use(const PlcGpu *g, size_t from, size_t to) {
  for (int i = 0; i < g->npieces; i++) {
    const PlcPiece *p = &g->piece[(g->oldest + i) % PLC_PIECES];
    if (p->from < to && from < p->to) return true;
  }
  return false;
}

/* Room for n <= PLC_PIECE bytes of the ring: what copies still read there has been read when this returns. */
static PlStatus take_piece(PlcGpu *g, size_t n, PlcPiece **out) {
  const size_t from = g->ring_at + n > PLC_RING ? 0 : g->ring_at, to = from + (n + 255) / 256 * 256;
  while (g->npieces == PLC_PIECES || in_use(g, from, to)) {
    PLC_TRY(cudaEventSynchronize(g->piece[g->oldest].read));
    g->oldest = (g->oldest + 1) % PLC_PIECES;
    g->npieces--;
  }
  PlcPiece *p = &g->piece[(g->oldest + g->npieces) % PLC_PIECES];
  if (!p->read) PLC_TRY(cudaEventCreateWithFlags(&p->read, cudaEventDisableTiming));
  p->from = from, p->to = to;
  g->ring_at = to;
  *out = p;
  return PL_OK;
}

/* Through the pinned ring: the caller's memory is free again when this returns, the copy itself is queued. */
static PlStatus upload_staged(PlcGpu *g, void *dst, const char *src, size_t n) {
  for (size_t at = 0; at < n; at += PLC_PIECE) {
    const size_t k = n - at < PLC_PIECE ? n - at : PLC_PIECE;
    PlcPiece *p = NULL;
    PL_TRY(take_piece(g, k, &p));
    memcpy(g->ring + p->from, src + at, k);
    PLC_TRY(cudaMemcpyAsync((char *)dst + at, g->ring + p->from, k, cudaMemcpyHostToDevice, plc_stream()));
    PLC_TRY(cudaEventRecord(p->read, plc_stream()));
    g->npieces++;
  }
  return PL_OK;
}

/* A few bytes travel in the arguments of a launch: numbers take no part of the ring and wait for no copy engine, and captured
 * work needs no memory of the host for them. */
PlStatus plc_upload(void *dst, const void *src, size_t n) {
  PlcGpu *g = plc_here();
  PL_TRY(plc_alive());
  if (n == 0) return PL_OK;
  if (n <= PLC_FEW_BYTES) return plc_upload_few(dst, src, n);
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) return plc_capture_upload(dst, src, n);
  pthread_mutex_lock(&g->lock);
  PlStatus s = upload_staged(g, dst, src, n);
  pthread_mutex_unlock(&g->lock);
  return s;
}

PlStatus plc_download(void *dst, const void *src, size_t n) {
  PL_TRY(plc_alive());
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) PL_FAIL(PL_ERR_STATE, "cuda: a value is read while work is captured");
  if (n) PLC_TRY(cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToHost, plc_stream()));
  PLC_TRY(cudaStreamSynchronize(plc_stream()));
  return plc_flag_check();
}

/* ---- beside the work -------------------------------------------------------------------------------------------------- */

/* The copy stream's memory is its own: what waits in its lists is used by nobody, so a copy need not wait for the work that is
 * queued. That work ends the other way round: the thread's stream waits for the copy, and when the memory is freed it
 * waits for that stream (alloc.c). */
static PlStatus beside(PlcGpu *g, void *dst, const void *src, size_t n) {
  PLC_TRY(cudaMemcpyAsync(dst, src, n, cudaMemcpyHostToDevice, g->copy));
  plc_host_used(src, g->copy);
  PLC_TRY(cudaEventRecord(g->arrived, g->copy));
  PLC_TRY(cudaStreamWaitEvent(plc_stream(), g->arrived, 0));
  return PL_OK;
}

PlStatus plc_upload_beside(int gpu, void **out, const void *src, size_t n) {
  void *dst = NULL;
  PL_TRY(plc_use(gpu));
  PlcGpu *g = plc_here();
  PL_TRY(plc_alive());
  const bool plain = plc_capturing && plc_capturing();
  if (!plain) {
    pthread_mutex_lock(&g->lock);
    cudaError_t e = g->copy ? cudaSuccess : cudaStreamCreateWithFlags(&g->copy, cudaStreamNonBlocking);
    pthread_mutex_unlock(&g->lock);
    if (e != cudaSuccess) return plc_failed(e, "making a stream for copies", __FILE__, __LINE__);
  }
  PL_TRY(plain ? plc_alloc(gpu, n, &dst) : plc_alloc_on(g->copy, n, &dst));
  pthread_mutex_lock(&g->lock);
  PlStatus s = plain ? PL_OK : beside(g, dst, src, n);
  pthread_mutex_unlock(&g->lock);
  if (plain) s = plc_upload(dst, src, n);
  if (s != PL_OK) {
    plc_release(gpu, dst);
    return s;
  }
  *out = dst;
  return PL_OK;
}

/* Work of the thread's stream: what computed the bytes is before it. */
PlStatus plc_download_later(int gpu, void *dst, const void *src, size_t n) {
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  if (PL_UNLIKELY(plc_capturing && plc_capturing())) PL_FAIL(PL_ERR_STATE, "cuda: a value is read while work is captured");
  if (n == 0) return PL_OK;
  PLC_TRY(cudaMemcpyAsync(dst, src, n, cudaMemcpyDeviceToHost, plc_stream()));
  plc_host_used(dst, plc_stream());
  return PL_OK;
}

/* ---- two GPUs --------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t peers = PTHREAD_MUTEX_INITIALIZER; /* of `met` events, and of who may reach whom */

/* Where the hardware can, copies go over the direct way; else the driver takes them through the host. Once for each pair. */
static PlStatus reach(PlcGpu *from, int to) {
  int can = 0;
  if (from->reached[to]) return PL_OK;
  PLC_TRY(cudaDeviceCanAccessPeer(&can, to, from->index));
  if (can) PL_TRY(plc_pool_share(from, to));
  from->reached[to] = true;
  return PL_OK;
}

/* The copy is work of the source's stream: it begins when both streams have done what they hold now, and what is queued on
 * either from now on comes behind it. */
static PlStatus between(PlcGpu *d, void *dst, PlcGpu *s, const void *src, size_t n) {
  PL_TRY(reach(s, d->index));
  PL_TRY(reach(d, s->index));
  PL_TRY(plc_use(d->index));
  PL_TRY(plc_alive());
  const cudaStream_t into = plc_stream();
  PLC_TRY(cudaEventRecord(d->met, into));
  PL_TRY(plc_use(s->index));
  PL_TRY(plc_alive());
  PLC_TRY(cudaStreamWaitEvent(plc_stream(), d->met, 0));
  PLC_TRY(cudaMemcpyPeerAsync(dst, d->index, src, s->index, n, plc_stream()));
  PLC_TRY(cudaEventRecord(s->met, plc_stream()));
  PL_TRY(plc_use(d->index));
  PLC_TRY(cudaStreamWaitEvent(into, s->met, 0));
  return PL_OK;
}

PlStatus plc_copy_peer(int to, void *dst, int from, const void *src, size_t n) {
  PL_TRY(plc_use(from));
  PL_TRY(plc_use(to));
  if (n == 0) return PL_OK;
  pthread_mutex_lock(&peers);
  PlStatus s = between(plc_gpu(to), dst, plc_gpu(from), src, n);
  pthread_mutex_unlock(&peers);
  return s;
}

/* ---- what kernels flag --------------------------------------------------------------------------------------------- */

PlcFlag *plc_flag(void) { return plc_here()->flag_device; }

/* The first of what kernels flagged since the last look, once: whoever waits next finds nothing. */
#define LATE "(noticed on the device; results since then are undefined)"
PlStatus plc_flag_check(void) {
  PlcFlag *at = plc_here()->flag, f = *(volatile PlcFlag *)at;
  if (PL_LIKELY(!f.set)) return PL_OK;
  memset(at, 0, sizeof *at);
  if (f.set == PLC_FAULT_ZERO_DIVISION) PL_FAIL(PL_ERR_DEVICE, "%s: integer division by zero " LATE, f.name);
  if (f.set == PLC_FAULT_PROBABILITY) PL_FAIL(PL_ERR_DEVICE, "%s: a probability outside [0, 1] " LATE, f.name);
  if (f.set == PLC_FAULT_WEIGHT) PL_FAIL(PL_ERR_DEVICE, "%s: a weight is not a finite number >= 0 " LATE, f.name);
  if (f.set == PLC_FAULT_NO_WEIGHT) PL_FAIL(PL_ERR_DEVICE, "%s: all weights are zero " LATE, f.name);
  if (f.set == PLC_FAULT_FEW_WEIGHTS)
    PL_FAIL(PL_ERR_DEVICE, "%s: %lld samples without replacement from %lld positive weights " LATE, f.name, (long long)f.size,
            (long long)f.value);
  if (f.set == PLC_FAULT_COUNTS)
    PL_FAIL(PL_ERR_DEVICE, "%s: the counts do not add up to the %lld positions " LATE, f.name, (long long)f.size);
  PL_FAIL(PL_ERR_DEVICE, "%s: index %lld is out of range: %lld to %lld " LATE, f.name, (long long)f.value, (long long)f.base,
          (long long)(f.base + f.size - 1));
}
