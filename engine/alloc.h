/* SPDX-License-Identifier: MIT
 * The counted allocator. Blocks (tensor data, kernel scratch) are 64-byte aligned, cached by size class and
 * shared by all threads; the pool serves handles and nodes up to PL_POOL_MAX bytes from thread-local free
 * lists. Everything is counted: live, peak, budget, and a fault injector for tests. */
#ifndef PL_ENGINE_ALLOC_H
#define PL_ENGINE_ALLOC_H

#include "engine/perilune.h"

enum { PL_POOL_MAX = 512, PL_POOL_STEP = 16 };

/* A block of at least n bytes; n = 0 is one. Errors: OOM. */
PlStatus pl_block_alloc(size_t n, void **out);
void pl_block_free(void *p);
/* A pooled piece of n bytes (malloc above PL_POOL_MAX), 16-byte aligned; give it back with the same n.
 * NULL when out of memory. */
void *pl_pool_get(size_t n);
void pl_pool_put(void *p, size_t n);
/* Bytes live in blocks and in this thread's pool. */
int64_t pl_live_bytes(void);
/* Bytes handed out since start, blocks and this thread's pool: how far the collector has fallen behind. */
int64_t pl_allocated_bytes(void);

#endif
