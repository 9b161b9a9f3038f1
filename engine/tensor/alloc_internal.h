/* SPDX-License-Identifier: MIT
 * What the pool needs of the allocator of blocks: its counts, its fault injector, its poison. */
#ifndef PL_ENGINE_TENSOR_ALLOC_INTERNAL_H
#define PL_ENGINE_TENSOR_ALLOC_INTERNAL_H

#include "engine/tensor/alloc.h"

/* Reads PERILUNE_POISON, once a process. */
void pl_alloc_begin(void);
/* Is this one of the allocations that a test wants to fail? */
bool pl_alloc_played(void);
/* Fills what is handed out where PERILUNE_POISON says so. */
void pl_alloc_poison(void *p, size_t n);
/* Adds the counts of a thread that ends to those of the process. */
void pl_alloc_leave(const PlPool *p);

#endif
