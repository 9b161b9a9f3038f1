/* SPDX-License-Identifier: MIT
 * Pinned memory of the host. Getting it from the driver takes long, so freed blocks wait in lists by size; one that a copy may
 * still read or write waits for that copy first. Blocks serve all GPUs of the process. */
#include "kernels/cuda/runtime/runtime.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct Pinned {
  struct Pinned *next;
  char *p;
  size_t bytes;
  PlcAfter *after; /* copies */
} Pinned;

enum { SLOTS = 64 };
static struct {
  pthread_mutex_t lock;
  Pinned *live;          /* few: batches */
  Pinned *cached[SLOTS]; /* by size */
  Pinned *busy;          /* freed, but copies run */
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Powers of two up to 1 MiB, then whole MiB; 0: too much. */
static size_t rounded(size_t n) {
  const size_t mib = (size_t)1 << 20;
  size_t up = 4096;
  if (n > SIZE_MAX / 2) return 0;
  if (n > mib) return (n + mib - 1) / mib * mib;
  while (up < n) up *= 2;
  return up;
}
static Pinned **slot_of(size_t bytes) { return &host.cached[(uint64_t)(bytes >> 12) * UINT64_C(0x9E3779B97F4A7C15) >> 58]; }

static void look_after(void) {
  for (Pinned **at = &host.busy; *at;) {
    Pinned *b = *at;
    if (!plc_after_done(&b->after, false)) {
      at = &b->next;
      continue;
    }
    *at = b->next;
    b->next = *slot_of(b->bytes);
    *slot_of(b->bytes) = b;
  }
}

static Pinned *take(size_t bytes) {
  for (Pinned **at = slot_of(bytes); *at; at = &(*at)->next)
    if ((*at)->bytes == bytes) {
      Pinned *b = *at;
      *at = b->next;
      return b;
    }
  return NULL;
}

/* Every block that waits for nobody is returned to the driver. */
static void flush(void) {
  for (int i = 0; i < SLOTS; i++)
    while (host.cached[i]) {
      Pinned *b = host.cached[i];
      host.cached[i] = b->next;
      (void)cudaFreeHost(b->p);
      free(b);
    }
}

static PlStatus make(size_t bytes, Pinned **out) {
  Pinned *b = calloc(1, sizeof *b);
  void *p = NULL;
  if (!b) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
  if (e != cudaSuccess) {
    (void)cudaGetLastError();
    flush();
    e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
  }
  if (e != cudaSuccess) {
    free(b);
    if (e != cudaErrorMemoryAllocation) return plc_failed(e, "cudaHostAlloc", __FILE__, __LINE__);
    (void)cudaGetLastError();
    PL_FAIL(PL_ERR_OOM, "cuda: the system has no %.3f GiB more of pinned memory; pin less at a time", (double)bytes / (1 << 30));
  }
  b->p = p;
  b->bytes = bytes;
  *out = b;
  return PL_OK;
}

PlStatus plc_host_alloc(int gpu, size_t n, void **out) {
  const size_t bytes = rounded(n);
  if (bytes == 0) PL_FAIL(PL_ERR_OOM, "cuda: no pinned memory of a size beyond the address space");
  PL_TRY(plc_use(gpu));
  PL_TRY(plc_alive());
  PlStatus s = PL_OK;
  pthread_mutex_lock(&host.lock);
  look_after();
  Pinned *b = take(bytes);
  if (!b) s = make(bytes, &b);
  if (s == PL_OK) {
    b->next = host.live;
    host.live = b;
    *out = b->p;
  }
  pthread_mutex_unlock(&host.lock);
  return s;
}

void plc_host_free(void *p) {
  pthread_mutex_lock(&host.lock);
  for (Pinned **at = &host.live; *at; at = &(*at)->next) {
    Pinned *b = *at;
    if (b->p != p) continue;
    *at = b->next;
    b->next = host.busy; /* the next request looks whether its copies are done */
    host.busy = b;
    break;
  }
  pthread_mutex_unlock(&host.lock);
}

void plc_host_used(const void *p, cudaStream_t s) {
  pthread_mutex_lock(&host.lock);
  for (Pinned *b = host.live; b; b = b->next)
    if ((const char *)p >= b->p && (const char *)p < b->p + b->bytes) {
      plc_after_note(&b->after, s);
      break;
    }
  pthread_mutex_unlock(&host.lock);
}
