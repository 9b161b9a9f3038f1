/* SPDX-License-Identifier: MIT
 * Memory of each GPU, a pool for each. Sizes are rounded to 512 bytes (above 1 MiB to 128 KiB, above 16 MiB to 2 MiB); a freed block
 * waits in a list of its size and stream
 * and is handed out again in that stream's order without a word to the driver. Below is one CUDA memory pool that keeps
 * what it has; it splits and joins blocks itself. Where a GPU has no pools (some virtual ones), blocks come from the driver
 * one by one. What idles is bounded: where a size has no block and too much waits in other sizes, the longest idle ones
 * go back to the pool, which makes others of them. Out of memory: every cached block is freed, and the request is tried again; then
 * once more when the program has let go of what it does not need. Any stream may have used a block: where scripts have made streams, a freed one first waits, in a list of its own,
 * until what was queued on the others by then is done. Memory of uploads belongs to
 * the copy stream (copies.c) and waits like that in any case. */
#include "kernels/cuda/runtime/locked.h"
#include "kernels/cuda/runtime/pool.h"

#include <stdlib.h>
#include <string.h>

PlStatus plc_pool_open(PlcGpu *g) {
  struct cudaMemPoolProps props;
  PlcPool *al = g->pool ? g->pool : calloc(1, sizeof *al);
  if (!al) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  g->pool = al; /* a second try finds it */
  pthread_mutex_init(&al->lock, NULL);
  al->m.limit = -1;
  int has = 0;
  PLC_TRY(cudaDeviceGetAttribute(&has, cudaDevAttrMemoryPoolsSupported, g->index));
  if (!has) return PL_OK;
  memset(&props, 0, sizeof props);
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = g->index;
  PLC_TRY(cudaMemPoolCreate(&al->pool, &props));
  uint64_t keep = UINT64_MAX; /* memory stays in the pool until trim */
  PLC_TRY(cudaMemPoolSetAttribute(al->pool, cudaMemPoolAttrReleaseThreshold, &keep));
  return PL_OK;
}

PlStatus plc_pool_share(PlcGpu *g, int with) {
  struct cudaMemAccessDesc access;
  if (!g->pool->pool) {
    const int now = plc_here()->index;
    PLC_TRY(cudaSetDevice(with));
    const cudaError_t e = cudaDeviceEnablePeerAccess(g->index, 0);
    PLC_TRY(cudaSetDevice(now));
    if (e == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
    else PLC_TRY(e);
    return PL_OK;
  }
  memset(&access, 0, sizeof access);
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = with;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  PLC_TRY(cudaMemPoolSetAccess(g->pool->pool, &access, 1));
  return PL_OK;
}

static size_t rounded(size_t n) {
  const size_t step = n <= (1u << 20) ? 512 : n <= (16u << 20) ? (size_t)128 << 10 : (size_t)2 << 20;
  if (n == 0) n = 1;
  return n > SIZE_MAX - step ? 0 : (n + step - 1) / step * step;
}

static unsigned live_slot(const void *p) {
  return (unsigned)(((uint64_t)(uintptr_t)p >> 8) * UINT64_C(0x9E3779B97F4A7C15) >> 52) & (LIVE - 1);
}
static unsigned cached_slot(size_t bytes, cudaStream_t s) {
  return (unsigned)((bytes / 512 + ((uint64_t)(uintptr_t)s >> 4) * 31) * UINT64_C(0x9E3779B97F4A7C15) >> 55) & (CACHED - 1);
}

/* b, which *at points to, idles no more. */
static Block *unlist(PlcPool *al, Block **at) {
  Block *b = *at;
  *at = b->next;
  *(b->longer ? &b->longer->less : &al->longest) = b->less;
  *(b->less ? &b->less->longer : &al->shortest) = b->longer;
  al->cached_bytes -= (int64_t)b->bytes;
  return b;
}

Block *plc_pool_take(PlcPool *al, size_t bytes, cudaStream_t s) {
  for (Block **at = &al->cached[cached_slot(bytes, s)]; *at; at = &(*at)->next)
    if ((*at)->bytes == bytes && (*at)->stream == s) return unlist(al, at);
  return NULL;
}

void plc_pool_idles(PlcPool *al, Block *b) {
  Block **list = &al->cached[cached_slot(b->bytes, b->stream)];
  b->next = *list;
  *list = b;
  b->longer = al->shortest;
  b->less = NULL;
  *(al->shortest ? &al->shortest->less : &al->longest) = b;
  al->shortest = b;
  al->cached_bytes += (int64_t)b->bytes;
}

/* ---- blocks that other streams may still use ------------------------------------------------------------------- */

bool plc_after_done(PlcAfter **list, bool wait) {
  while (*list) {
    PlcAfter *a = *list;
    if (wait) (void)cudaEventSynchronize(a->event);
    else if (cudaEventQuery(a->event) == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    *list = a->next;
    (void)cudaEventDestroy(a->event);
    free(a);
  }
  return true;
}

void plc_after_note(PlcAfter **list, cudaStream_t s) {
  PlcAfter *a = *list;
  while (a && a->stream != s) a = a->next;
  if (a) { /* moved on: what was noted before comes first on its stream */
    if (cudaEventRecord(a->event, s) == cudaSuccess) return;
    (void)cudaGetLastError();
    (void)cudaStreamSynchronize(s);
    return;
  }
  a = malloc(sizeof *a);
  if (!a) {
    (void)cudaStreamSynchronize(s);
    return;
  }
  if (cudaEventCreateWithFlags(&a->event, cudaEventDisableTiming) != cudaSuccess || cudaEventRecord(a->event, s) != cudaSuccess) {
    (void)cudaGetLastError();
    (void)cudaStreamSynchronize(s);
    free(a);
    return;
  }
  a->stream = s;
  a->next = *list;
  *list = a;
}

static void note_stream(cudaStream_t s, void *block) {
  Block *b = block;
  if (s != b->stream) plc_after_note(&b->after, s);
}

/* Those that were freed later are done later, mostly: the first that waits ends the search. */
static void look_after(PlcPool *al, bool wait) {
  while (al->busy && plc_after_done(&al->busy->after, wait)) {
    Block *b = al->busy;
    al->busy = b->next;
    if (!al->busy) al->last = NULL;
    plc_pool_idles(al, b);
  }
}

/* A stream is about to go: what waits for it, or was made on it, belongs to another one. */
void plc_memory_moves(PlcGpu *g, cudaStream_t from, cudaStream_t to) {
  PlcPool *al = g->pool;
  Block *moved = NULL;
  pthread_mutex_lock(&al->lock);
  for (int i = 0; i < CACHED; i++)
    for (Block **at = &al->cached[i]; *at;) {
      Block *b = *at;
      if (b->stream != from) {
        at = &b->next;
        continue;
      }
      (void)unlist(al, at);
      b->next = moved;
      moved = b;
    }
  for (int i = 0; i < LIVE; i++)
    for (Block *b = al->live[i]; b; b = b->next)
      if (b->stream == from) b->stream = to;
  for (Block *b = al->busy; b; b = b->next)
    if (b->stream == from) b->stream = to;
  while (moved) {
    Block *b = moved;
    moved = b->next;
    b->stream = to;
    plc_pool_idles(al, b);
  }
  pthread_mutex_unlock(&al->lock);
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

/* Back to the pool, in the order of its stream. Without a pool the driver waits for whoever may use it. */
static void give_back(const PlcPool *al, const Block *b) {
  if (al->pool) (void)cudaFreeAsync(b->p, b->stream);
  else {
    (void)cudaStreamSynchronize(b->stream);
    (void)cudaFree(b->p);
  }
}

/* Held: what tensors have and what idles. More than a quarter above the most that tensors ever had at once is kept for
 * sizes that come back seldom. */
static void bound_idle(PlcPool *al, size_t wanted) {
  if (!al->pool && atomic_load(&plc_here()->captures) > 0) return; /* cudaFree waits for the device */
  const int64_t most = al->most + al->most / 4 + ((int64_t)256 << 20);
  while (al->longest && al->m.live + al->cached_bytes + (int64_t)wanted > most) {
    Block **at = &al->cached[cached_slot(al->longest->bytes, al->longest->stream)];
    while (*at != al->longest) at = &(*at)->next;
    Block *b = unlist(al, at);
    give_back(al, b);
    plc_pool_spare(al, b);
  }
}

/* Every cached block back to the pool, every unused page of the pool back to the driver. The device as a whole is not
 * waited for: some thread may be capturing. */
void plc_pool_flush(PlcPool *al) {
  Block *gone = NULL, *last = NULL;
  look_after(al, true);
  for (int i = 0; i < CACHED; i++)
    while (al->cached[i]) {
      Block *b = al->cached[i];
      al->cached[i] = b->next;
      give_back(al, b);
      if (!gone) last = b;
      b->next = gone;
      gone = b;
    }
  for (const Block *b = gone, *before = NULL; b; before = b, b = b->next)
    if (!before || before->stream != b->stream) (void)cudaStreamSynchronize(b->stream);
  if (last) {
    last->next = al->spare;
    al->spare = gone;
  }
  al->cached_bytes = 0;
  al->longest = al->shortest = NULL;
  if (al->pool) (void)cudaMemPoolTrimTo(al->pool, 0);
  (void)cudaGetLastError();
}

static cudaError_t take_new(PlcPool *al, Block *b, size_t bytes, cudaStream_t s) {
  if (al->m.limit >= 0 && al->m.live + al->kept_bytes + (int64_t)bytes > al->m.limit) return cudaErrorMemoryAllocation;
  cudaError_t e = al->pool ? cudaMallocFromPoolAsync(&b->p, bytes, al->pool, s) : cudaMalloc(&b->p, bytes);
  if (e == cudaErrorMemoryAllocation) (void)cudaGetLastError();
  return e;
}

static PlStatus out_of_memory(const PlcPool *al, size_t bytes) {
  size_t left = 0, all = 0;
  (void)cudaMemGetInfo(&left, &all);
  (void)cudaGetLastError();
  double gib = 1.0 / (1 << 30);
  if (al->m.limit >= 0)
    PL_FAIL(PL_ERR_OOM, "%s: out of device memory: %.3f GiB wanted, %.3f GiB in use, the limit is %.3f GiB", plc_name(),
            (double)bytes * gib, (double)(al->m.live + al->kept_bytes) * gib, (double)al->m.limit * gib);
  PL_FAIL(PL_ERR_OOM,
          "%s: out of device memory: %.3f GiB wanted, %.3f GiB in use by tensors, %.3f of %.3f GiB free on the device "
          "after giving back all cached blocks; use smaller batches, or free tensors",
          plc_name(), (double)bytes * gib, (double)al->m.live * gib, (double)left * gib, (double)all * gib);
}

/* New memory in *b, if need be after giving back what waits. */
PlStatus plc_pool_make(PlcPool *al, Block *b, cudaStream_t s) {
  bound_idle(al, b->bytes);
  cudaError_t e = take_new(al, b, b->bytes, s);
  if (e == cudaErrorMemoryAllocation) {
    al->m.retries++;
    plc_pool_flush(al);
    e = take_new(al, b, b->bytes, s);
  }
  if (e == cudaErrorMemoryAllocation) return out_of_memory(al, b->bytes);
  return e == cudaSuccess ? PL_OK : plc_failed(e, "getting device memory", __FILE__, __LINE__);
}

/* Made on a stream of its own: the current one is being captured. */
PlStatus plc_pool_make_aside(PlcPool *al, Block *b) {
  cudaError_t e = al->side ? cudaSuccess : cudaStreamCreateWithFlags(&al->side, cudaStreamNonBlocking);
  if (e != cudaSuccess) return plc_failed(e, "memory for a captured graph", __FILE__, __LINE__);
  PL_TRY(plc_pool_make(al, b, al->side));
  e = cudaStreamSynchronize(al->side);
  if (e == cudaSuccess) return PL_OK;
  if (al->pool) (void)cudaFreeAsync(b->p, al->side);
  else (void)cudaFree(b->p);
  return plc_failed(e, "memory for a captured graph", __FILE__, __LINE__);
}

PlStatus plc_pool_header(PlcPool *al, Block **out) {
  Block *b = al->spare;
  if (b) al->spare = b->next;
  else if (!(b = malloc(sizeof *b))) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  *b = (Block){.piece = -1};
  *out = b;
  return PL_OK;
}
void plc_pool_spare(PlcPool *al, Block *b) {
  b->next = al->spare;
  al->spare = b;
}

/* n bytes, rounded to `bytes`. s: in whose order they are handed out. */
static PlStatus get(PlcPool *al, size_t bytes, size_t n, cudaStream_t s, Block **out) {
  if (PL_UNLIKELY(al->busy != NULL) && plc_streams_exist(plc_here())) look_after(al, false);
  if (plc_owner_is_set()) return plc_owner_get(al, bytes, n, out);
  *out = plc_pool_take(al, bytes, s);
  if (!*out && al->busy) { /* of uploads */
    look_after(al, false);
    *out = plc_pool_take(al, bytes, s);
  }
  if (*out) return PL_OK;
  PL_TRY(plc_pool_header(al, out));
  (*out)->bytes = bytes;
  (*out)->stream = s;
  PlStatus st = plc_pool_make(al, *out, s);
  if (st != PL_OK) plc_pool_spare(al, *out);
  return st;
}

static PlStatus hand_out(cudaStream_t s, size_t n, bool kept, void **out) {
  PL_TRY(plc_alive());
  PlcPool *al = plc_here()->pool;
  size_t bytes = rounded(n);
  if (bytes == 0) PL_FAIL(PL_ERR_OOM, "%s: out of device memory: a size beyond the address space", plc_name());
  Block *b = NULL;
  pthread_mutex_lock(&al->lock);
  PlStatus st = get(al, bytes, n, s, &b);
  if (st == PL_OK) {
    Block **slot = &al->live[live_slot(b->p)];
    b->next = *slot;
    *slot = b;
    b->kept = kept;
    bytes = b->bytes;
    if (kept) {
      al->kept_bytes += (int64_t)bytes;
    } else {
      al->m.live += (int64_t)bytes;
      al->m.blocks++;
      al->m.allocations++;
    }
    if (al->m.live > al->m.peak) al->m.peak = al->m.live;
    if (al->m.live > al->most) al->most = al->m.live;
    *out = b->p;
  }
  pthread_mutex_unlock(&al->lock);
  return st;
}

/* What the program lets go comes back through plc_release, so not under the lock. In the middle of a capture, and
 * of a library's work, nothing is let go. */
PlStatus plc_alloc_on(cudaStream_t s, size_t n, void **out) {
  const int gpu = plc_here()->index;
  PlStatus st = hand_out(s, n, false, out);
  if (PL_LIKELY(st != PL_ERR_OOM) || plc_owner_is_set() || plc_locked || !plc_host->reclaim()) return st;
  PL_TRY(plc_use(gpu)); /* another one may be the current one now */
  return hand_out(s, n, false, out);
}
PlStatus plc_keep(size_t n, void **out) { return hand_out(plc_stream(), n, true, out); }

PlStatus plc_alloc(int gpu, size_t n, void **out) {
  PL_TRY(plc_use(gpu));
  return plc_alloc_on(plc_owner_is_set() ? plc_owner_home() : plc_stream(), n, out);
}

/* The current GPU stays what it is, unless events must be made on this one. */
void plc_release(int gpu, void *p) {
  PlcGpu *g = plc_gpu(gpu);
  if (!p || !g) return;
  PlcPool *al = g->pool;
  const int now = plc_here() ? plc_here()->index : gpu;
  const bool several = plc_streams_exist(g);
  bool beside = false;
  pthread_mutex_lock(&al->lock);
  for (Block **at = &al->live[live_slot(p)]; *at; at = &(*at)->next) {
    Block *b = *at;
    if (b->p != p) continue;
    *at = b->next;
    const int64_t bytes = (int64_t)b->bytes;
    const bool kept = b->kept;
    if (b->owner) plc_owner_freed(al, b);
    else {
      beside = several || b->stream == g->copy; /* else only its own stream has used it */
      if (PL_UNLIKELY(beside)) {
        if (now != gpu) (void)cudaSetDevice(gpu);
        plc_each_stream(g, note_stream, b);
      }
      if (b->after) {
        b->next = NULL;
        *(al->last ? al->last : &al->busy) = b;
        al->last = &b->next;
      } else plc_pool_idles(al, b);
    }
    if (kept) {
      al->kept_bytes -= bytes;
    } else {
      al->m.live -= bytes;
      al->m.blocks--;
    }
    break;
  }
  pthread_mutex_unlock(&al->lock);
  if (beside && now != gpu) (void)cudaSetDevice(now);
}

PlStatus plc_scratch(size_t bytes, void **out) { return plc_alloc(plc_here()->index, bytes, out); }
void plc_scratch_free(void *p) {
  if (p) plc_release(plc_here()->index, p);
}

/* Of a GPU that is not open: nothing. */
void plc_memory(int gpu, PlDeviceMemory *out) {
  const PlcGpu *g = plc_gpu(gpu);
  *out = (PlDeviceMemory){.limit = -1};
  if (!g) return;
  PlcPool *al = g->pool;
  pthread_mutex_lock(&al->lock);
  *out = al->m;
  uint64_t reserved = 0;
  if (!al->pool || cudaMemPoolGetAttribute(al->pool, cudaMemPoolAttrReservedMemCurrent, &reserved) != cudaSuccess)
    reserved = (uint64_t)(al->m.live + al->kept_bytes + al->cached_bytes);
  out->reserved = (int64_t)reserved;
  pthread_mutex_unlock(&al->lock);
}
void plc_reset_peak(int gpu) {
  const PlcGpu *g = plc_gpu(gpu);
  if (!g) return;
  pthread_mutex_lock(&g->pool->lock);
  g->pool->m.peak = g->pool->m.live;
  pthread_mutex_unlock(&g->pool->lock);
}
PlStatus plc_limit(int gpu, int64_t bytes) {
  PL_TRY(plc_use(gpu));
  PlcPool *al = plc_here()->pool;
  pthread_mutex_lock(&al->lock);
  al->m.limit = bytes < 0 ? -1 : bytes;
  pthread_mutex_unlock(&al->lock);
  return PL_OK;
}
void plc_trim(int gpu) {
  if (!plc_gpu(gpu) || plc_use(gpu) != PL_OK) return;
  PlcPool *al = plc_here()->pool;
  pthread_mutex_lock(&al->lock);
  plc_pool_flush(al);
  pthread_mutex_unlock(&al->lock);
}
