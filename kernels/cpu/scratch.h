/* SPDX-License-Identifier: MIT
 * Scratch memory that one thread keeps for itself: while a session runs, what its kernels give back is kept for the next
 * ones, so that a run that is like the one before asks nobody. (runtime.c) */
#ifndef PL_KERNELS_CPU_SCRATCH_H
#define PL_KERNELS_CPU_SCRATCH_H

#include "kernels/kernel.h"

enum { PLK_POOL_BLOCKS = 24 }; /* more at once than any kernel and what it calls have */

typedef struct PlkScratchPool {
  struct PlkScratchBlock {
    void *p;
    size_t bytes;
    bool used;
  } block[PLK_POOL_BLOCKS];
  int n;
} PlkScratchPool;

/* The calling thread's kernels take their memory from it; NULL: from the host. What was in use before. */
PlkScratchPool *plk_scratch_pool(PlkScratchPool *pool);
void plk_scratch_pool_free(PlkScratchPool *pool); /* nothing of it is in use */
size_t plk_scratch_pool_bytes(const PlkScratchPool *pool);

#endif
