/* SPDX-License-Identifier: MIT
 * Device memory. Sizes are rounded to 512 bytes (above 1 MiB to 2 MiB / 16 steps); a freed block waits in a list of its size
 * and stream and is handed out again in that stream's order without a word to the driver. Below lies one CUDA memory
 * pool that keeps what it has; it splits and joins blocks itself. Out of memory: every cached block goes back, once, and
 * the request is tried again. A block freed on another stream than the one it was made on makes its own stream wait. */
#include "kernels/cuda/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct Block {
  struct Block *next; /* in its list or in the table of live ones */
  void *p;
  size_t bytes;
  cudaStream_t stream;
  PlcOwner *owner; /* NULL: everybody */
} Block;

struct PlcOwner {
  Block *free; /* of any size */
};
static _Thread_local PlcOwner *owner; /* of what this thread allocates now */

enum { LIVE = 4096, CACHED = 512 }; /* slots; powers of two */

static struct {
  pthread_mutex_t lock;
  cudaMemPool_t pool;
  Block *live[LIVE];     /* by address */
  Block *cached[CACHED]; /* by size and stream */
  Block *spare;          /* headers without memory */
  int64_t cached_bytes;
  cudaStream_t side; /* where memory is made while the usual stream is captured */
  PlDeviceMemory m;
} al = {.lock = PTHREAD_MUTEX_INITIALIZER, .m = {.limit = -1}};

PlStatus plc_pool_open(void) {
  struct cudaMemPoolProps props;
  memset(&props, 0, sizeof props);
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = 0;
  PLC_TRY(cudaMemPoolCreate(&al.pool, &props));
  uint64_t keep = UINT64_MAX; /* memory stays in the pool until trim */
  PLC_TRY(cudaMemPoolSetAttribute(al.pool, cudaMemPoolAttrReleaseThreshold, &keep));
  return PL_OK;
}

static size_t rounded(size_t n) {
  size_t step = 512;
  if (n > (1u << 20)) step = (size_t)2 << 20;
  if (n == 0) n = 1;
  return n > SIZE_MAX - step ? 0 : (n + step - 1) / step * step;
}

static unsigned live_slot(const void *p) {
  return (unsigned)(((uint64_t)(uintptr_t)p >> 8) * UINT64_C(0x9E3779B97F4A7C15) >> 52) & (LIVE - 1);
}
static unsigned cached_slot(size_t bytes, cudaStream_t s) {
  return (unsigned)((bytes / 512 + ((uint64_t)(uintptr_t)s >> 4) * 31) * UINT64_C(0x9E3779B97F4A7C15) >> 55) & (CACHED - 1);
}

static Block *take_cached(size_t bytes, cudaStream_t s) {
  for (Block **at = &al.cached[cached_slot(bytes, s)]; *at; at = &(*at)->next) {
    Block *b = *at;
    if (b->bytes != bytes || b->stream != s) continue;
    *at = b->next;
    al.cached_bytes -= (int64_t)bytes;
    return b;
  }
  return NULL;
}

/* Every cached block back to the pool, every unused page of the pool back to the driver. */
static void flush(void) {
  for (int i = 0; i < CACHED; i++)
    while (al.cached[i]) {
      Block *b = al.cached[i];
      al.cached[i] = b->next;
      (void)cudaFreeAsync(b->p, b->stream);
      b->next = al.spare;
      al.spare = b;
    }
  al.cached_bytes = 0;
  (void)cudaDeviceSynchronize();
  (void)cudaMemPoolTrimTo(al.pool, 0);
  (void)cudaGetLastError();
}

static cudaError_t take_new(Block *b, size_t bytes, cudaStream_t s) {
  if (al.m.limit >= 0 && al.m.live + (int64_t)bytes > al.m.limit) return cudaErrorMemoryAllocation;
  cudaError_t e = cudaMallocFromPoolAsync(&b->p, bytes, al.pool, s);
  if (e == cudaErrorMemoryAllocation) (void)cudaGetLastError();
  return e;
}

static PlStatus out_of_memory(size_t bytes) {
  size_t left = 0, all = 0;
  (void)cudaMemGetInfo(&left, &all);
  (void)cudaGetLastError();
  double gib = 1.0 / (1 << 30);
  if (al.m.limit >= 0)
    PL_FAIL(PL_ERR_OOM, "cuda: out of device memory: %.3f GiB wanted, %.3f GiB in use, the limit is %.3f GiB", (double)bytes * gib,
            (double)al.m.live * gib, (double)al.m.limit * gib);
  PL_FAIL(PL_ERR_OOM, "cuda: out of device memory: %.3f GiB wanted, %.3f GiB in use by tensors, %.3f of %.3f GiB free on the device "
                      "after giving back all cached blocks; use smaller batches, or free tensors", (double)bytes * gib,
          (double)al.m.live * gib, (double)left * gib, (double)all * gib);
}

/* From the owner, else new, made on a stream of its own: the current one is being captured. */
static PlStatus get_owned(size_t bytes, cudaStream_t s, Block **out) {
  for (Block **at = &owner->free; *at; at = &(*at)->next) {
    if ((*at)->bytes != bytes) continue;
    *out = *at;
    *at = (*at)->next;
    return PL_OK;
  }
  Block *b = malloc(sizeof *b);
  if (!b) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  *b = (Block){.bytes = bytes, .stream = s, .owner = owner};
  cudaError_t e = al.side ? cudaSuccess : cudaStreamCreateWithFlags(&al.side, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = take_new(b, bytes, al.side);
  if (e == cudaSuccess) e = cudaStreamSynchronize(al.side);
  if (e != cudaSuccess) {
    free(b);
    return plc_failed(e, "memory for a captured graph", __FILE__, __LINE__);
  }
  *out = b;
  return PL_OK;
}

static PlStatus get(size_t bytes, cudaStream_t s, Block **out) {
  if (PL_UNLIKELY(owner != NULL)) return get_owned(bytes, s, out);
  Block *b = take_cached(bytes, s);
  if (!b) {
    b = al.spare;
    if (b)
      al.spare = b->next;
    else if (!(b = malloc(sizeof *b)))
      PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
    *b = (Block){.bytes = bytes, .stream = s};
    cudaError_t e = take_new(b, bytes, s);
    if (e == cudaErrorMemoryAllocation) {
      al.m.retries++;
      if (plc_libraries_trim) plc_libraries_trim();
      flush();
      e = take_new(b, bytes, s);
    }
    if (e != cudaSuccess) {
      b->next = al.spare;
      al.spare = b;
      return e == cudaErrorMemoryAllocation ? out_of_memory(bytes) : plc_failed(e, "cudaMallocFromPoolAsync", __FILE__, __LINE__);
    }
  }
  *out = b;
  return PL_OK;
}

PlStatus plc_alloc(size_t n, void **out) {
  PL_TRY(plc_alive());
  size_t bytes = rounded(n);
  if (bytes == 0) PL_FAIL(PL_ERR_OOM, "cuda: out of device memory: a size beyond the address space");
  Block *b = NULL;
  pthread_mutex_lock(&al.lock);
  PlStatus st = get(bytes, plc_stream(), &b);
  if (st == PL_OK) {
    Block **slot = &al.live[live_slot(b->p)];
    b->next = *slot;
    *slot = b;
    al.m.live += (int64_t)bytes;
    al.m.blocks++;
    al.m.allocations++;
    if (al.m.live > al.m.peak) al.m.peak = al.m.live;
    *out = b->p;
  }
  pthread_mutex_unlock(&al.lock);
  return st;
}

/* Work queued on the freeing stream may still use the block: its own stream waits for that. */
static void order(Block *b, cudaStream_t now) {
  cudaEvent_t e;
  if (b->stream == now || cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess) return;
  if (cudaEventRecord(e, now) == cudaSuccess) (void)cudaStreamWaitEvent(b->stream, e, 0);
  (void)cudaEventDestroy(e);
}

void plc_release(void *p) {
  if (!p) return;
  pthread_mutex_lock(&al.lock);
  for (Block **at = &al.live[live_slot(p)]; *at; at = &(*at)->next) {
    Block *b = *at;
    if (b->p != p) continue;
    *at = b->next;
    if (!b->owner) order(b, plc_stream());
    Block **list = b->owner ? &b->owner->free : &al.cached[cached_slot(b->bytes, b->stream)];
    b->next = *list;
    *list = b;
    if (!b->owner) al.cached_bytes += (int64_t)b->bytes;
    al.m.live -= (int64_t)b->bytes;
    al.m.blocks--;
    break;
  }
  pthread_mutex_unlock(&al.lock);
}

PlStatus plc_owner_begin(PlcOwner **out) {
  *out = calloc(1, sizeof **out);
  if (!*out) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  owner = *out;
  return PL_OK;
}
void plc_owner_pause(void) { owner = NULL; }
void plc_owner_resume(PlcOwner *o) { owner = o; }

void plc_owner_end(PlcOwner *o) {
  if (!o) return;
  pthread_mutex_lock(&al.lock);
  if (owner == o) owner = NULL;
  for (int i = 0; i < LIVE; i++)
    for (Block *b = al.live[i]; b; b = b->next)
      if (b->owner == o) b->owner = NULL;
  while (o->free) {
    Block *b = o->free, **list = &al.cached[cached_slot(b->bytes, b->stream)];
    o->free = b->next;
    b->owner = NULL;
    b->next = *list;
    *list = b;
    al.cached_bytes += (int64_t)b->bytes;
  }
  pthread_mutex_unlock(&al.lock);
  free(o);
}

PlStatus plc_scratch(size_t bytes, void **out) { return plc_alloc(bytes, out); }
void plc_scratch_free(void *p) { plc_release(p); }

void plc_memory(PlDeviceMemory *out) {
  pthread_mutex_lock(&al.lock);
  *out = al.m;
  uint64_t reserved = 0;
  if (!al.pool || cudaMemPoolGetAttribute(al.pool, cudaMemPoolAttrReservedMemCurrent, &reserved) != cudaSuccess)
    reserved = (uint64_t)(al.m.live + al.cached_bytes);
  out->reserved = (int64_t)reserved;
  pthread_mutex_unlock(&al.lock);
}
void plc_reset_peak(void) {
  pthread_mutex_lock(&al.lock);
  al.m.peak = al.m.live;
  pthread_mutex_unlock(&al.lock);
}
void plc_limit(int64_t bytes) {
  pthread_mutex_lock(&al.lock);
  al.m.limit = bytes < 0 ? -1 : bytes;
  pthread_mutex_unlock(&al.lock);
}
void plc_trim(void) {
  pthread_mutex_lock(&al.lock);
  flush();
  pthread_mutex_unlock(&al.lock);
}
