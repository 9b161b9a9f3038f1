/* SPDX-License-Identifier: MIT
 * The counted allocator. Blocks (tensor data, kernel scratch) are 64-byte aligned, cached by size class and
 * shared by all threads; the pool serves handles and nodes up to PL_POOL_MAX bytes from thread-local free
 * lists. Everything is counted: live, peak, budget, and a fault injector for tests. */
#ifndef PL_ENGINE_TENSOR_ALLOC_H
#define PL_ENGINE_TENSOR_ALLOC_H

#include "engine/perilune.h"

enum { PL_POOL_MAX = 512, PL_POOL_STEP = 16 };

/* A block of at least n bytes; n = 0 is one. Errors: OOM. */
PlStatus pl_block_alloc(size_t n, void **out);
/* Asked once where memory for a tensor is out, on the CPU or on a device, wherever in a call that is: does the program let go of some
 * that nobody needs any more? It decides whether that is possible there. NULL: no. Written before the first tensor. */
extern bool (*pl_reclaim)(void);
extern bool pl_reclaim_tested; /* it is asked before every such memory is made, with whatever it says */
/* The same for what goes back before the caller returns, such as the arena of a run: none of it becomes garbage, so that no collection is
 * due for it. So is the temporary memory of kernels. */
PlStatus pl_block_alloc_brief(size_t n, void **out);
void pl_block_free(void *p);
/* The same for the temporary memory of kernels, counted apart. */
PlStatus pl_scratch_alloc(size_t n, void **out);
void pl_scratch_free(void *p);
/* Gives mapped pages back to the system. A process that has as many maps as it may have (65,530) cannot unmap the middle of one:
 * then the memory goes back, and the addresses stay. */
void pl_pages_end(void *p, size_t n);
/* Bytes as they were asked for, not as they were rounded: all blocks live now, and the most that all blocks, and that
 * scratch alone, came to since the last mark. Of the whole process: threads that load data count, too. */
typedef struct PlAsked {
  int64_t live, high, scratch_high;
} PlAsked;
void pl_asked_mark(void);
/* This thread gets a limit of memory, or has none any more: its large blocks lie in an arena (arena.h). */
void pl_alloc_limited(bool on);
/* How much more scratch threads without a limit of memory (remat/remat.h) had at a time since the mark than they have now:
 * the team of one that has a limit, above all, which cannot make room itself. */
void pl_scratch_of_others_mark(void);
int64_t pl_scratch_of_others(void);
PlAsked pl_asked(void);
/* Handles and nodes are made and dropped by one thread at a rate of millions a second: no lock, no header, and the usual
 * way inline. */
typedef struct PlPiece {
  struct PlPiece *next;
} PlPiece;
typedef struct PlPool {
  PlPiece *free[PL_POOL_MAX / PL_POOL_STEP + 1];
  char *slab;
  size_t left;
  int64_t live, blocks, count, allocated;
  bool watched;     /* thread_end will run when this thread ends */
  int64_t spare_ms; /* processor time of the thread when it was last counted for blocks that may go */
} PlPool;
extern _Thread_local PlPool pl_pool;
/* What the calling thread keeps (free pieces, its last message) goes when it ends. */
void pl_thread_watch(void);
extern int64_t pl_block_bytes[2];    /* of blocks: live, handed out since start; written under the allocator's lock */
extern int64_t pl_device_handed_out; /* bytes of a device's memory, since start (device.c); atomic */
extern int64_t pl_fail_at;           /* >= 0: that many allocations until one fails (tests) */

void *pl_pool_get_slow(size_t n);
/* A pooled piece of n bytes (malloc above PL_POOL_MAX), 16-byte aligned; give it back with the same n.
 * NULL when out of memory. */
static inline void *pl_pool_get(size_t n) {
#ifndef PL_ASAN
  size_t k = (n + PL_POOL_STEP - 1) / PL_POOL_STEP;
  if (PL_LIKELY(k <= PL_POOL_MAX / PL_POOL_STEP && pl_pool.free[k] && pl_fail_at < 0)) {
    PlPiece *p = pl_pool.free[k];
    pl_pool.free[k] = p->next;
    pl_pool.live += (int64_t)(k * PL_POOL_STEP);
    pl_pool.allocated += (int64_t)(k * PL_POOL_STEP);
    pl_pool.blocks++;
    pl_pool.count++;
    return p;
  }
#endif
  return pl_pool_get_slow(n);
}
void pl_pool_put_slow(void *p);
static inline void pl_pool_put(void *p, size_t n) {
  if (!p) return;
  size_t k = (n + PL_POOL_STEP - 1) / PL_POOL_STEP;
  pl_pool.live -= (int64_t)(k * PL_POOL_STEP);
  pl_pool.blocks--;
#ifndef PL_ASAN
  if (PL_LIKELY(k <= PL_POOL_MAX / PL_POOL_STEP)) {
    PlPiece *q = p;
    q->next = pl_pool.free[k];
    pl_pool.free[k] = q;
    return;
  }
#endif
  pl_pool_put_slow(p);
}
/* Bytes live in blocks and in this thread's pool. */
static inline int64_t pl_live_bytes(void) { return __atomic_load_n(&pl_block_bytes[0], __ATOMIC_RELAXED) + pl_pool.live; }
/* Bytes handed out since start, blocks and this thread's pool: how far the collector has fallen behind. */
static inline int64_t pl_allocated_bytes(void) { return __atomic_load_n(&pl_block_bytes[1], __ATOMIC_RELAXED) + pl_pool.allocated; }

#endif
