/* SPDX-License-Identifier: MIT
 * What alloc.c (memory of a GPU) and owner.c (memory of captured work) share. Functions here are called under the pool's lock. */
#ifndef PLC_POOL_H
#define PLC_POOL_H

#include <pthread.h>

#include "kernels/cuda/runtime/runtime.h"

typedef struct Block {
  struct Block *next;          /* in its list or in the table of live ones */
  struct Block *longer, *less; /* while it idles: neighbours by how long */
  void *p;
  size_t bytes;
  cudaStream_t stream;
  PlcOwner *owner; /* NULL: everybody */
  int64_t piece;   /* of the owner's; < 0: none */
  PlcAfter *after; /* while it is freed, but others may use it */
  bool kept;       /* a library's: no tensor's, nor part of a call */
} Block;

enum { LIVE = 4096, CACHED = 512 }; /* slots; powers of two */

typedef struct PlcPool {
  pthread_mutex_t lock;
  cudaMemPool_t pool;         /* NULL: this GPU has none */
  Block *live[LIVE];          /* by address */
  Block *cached[CACHED];      /* by size and stream */
  Block *spare;               /* headers without memory */
  Block *busy, **last;        /* freed, but other streams may use them: the first freed first; where the next one goes */
  Block *longest, *shortest;  /* of those in `cached` */
  int64_t cached_bytes, most; /* most: that tensors ever held at once */
  int64_t kept_bytes;         /* of libraries: taken, but not alive */
  cudaStream_t side;          /* where memory is made while the usual stream is captured */
  PlDeviceMemory m;
} PlcPool;

PlStatus plc_pool_header(PlcPool *al, Block **out);              /* of no memory yet */
void plc_pool_spare(PlcPool *al, Block *b);                      /* back again */
PlStatus plc_pool_make(PlcPool *al, Block *b, cudaStream_t s);   /* new memory of b->bytes, if need be after giving back what waits */
PlStatus plc_pool_make_aside(PlcPool *al, Block *b);             /* the same, there for all streams when it returns */
Block *plc_pool_take(PlcPool *al, size_t bytes, cudaStream_t s); /* one that idles; NULL: none */
void plc_pool_idles(PlcPool *al, Block *b);
void plc_pool_flush(PlcPool *al); /* what idles goes back to the driver */

bool plc_owner_is_set(void); /* does this thread's memory come from an owner? */
cudaStream_t plc_owner_home(void);
PlStatus plc_owner_get(PlcPool *al, size_t bytes, size_t n, Block **out); /* n: before it was rounded */
void plc_owner_freed(PlcPool *al, Block *b);                              /* of an owner */

#endif
