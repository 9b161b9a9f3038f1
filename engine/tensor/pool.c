/* SPDX-License-Identifier: MIT
 * See alloc.h: the pool of handles and nodes, where its inline part finds nothing; and what becomes of a thread's pieces when the
 * thread ends. */
#include "engine/tensor/alloc.h"

#include "engine/tensor/alloc_internal.h"
#include "engine/tensor/hooks.h"

#include <pthread.h>
#include <stdlib.h>

enum { SLAB = 64 * 1024, NPOOL = PL_POOL_MAX / PL_POOL_STEP };

_Thread_local PlPool pl_pool;

/* The key whose destructor is thread_end; made once, only read afterwards. */
static pthread_key_t end_key;
static bool have_end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

#ifndef PL_ASAN
typedef struct Rest {
  struct Rest *next;
  size_t left; /* bytes from here on */
} Rest;

static struct {
  pthread_mutex_t lock;
  PlPiece *orphans[NPOOL + 1]; /* free pieces of threads that have ended */
  Rest *rests;                 /* what was left of their slabs */
} left = {.lock = PTHREAD_MUTEX_INITIALIZER};
#endif

/* A thread that ends frees its caches and leaves its free pieces to others. Its slabs stay: some pieces may
 * belong to tensors that were handed to another thread. */
static void thread_end(void *unused) {
  (void)unused;
  pl_autocast_end();
  pl_backward_cache_end();
  pl_forward_cache_end();
  pl_desc_text_end();
  pl_message_end();
#ifndef PL_ASAN
  pthread_mutex_lock(&left.lock);
  if (pl_pool.left >= PL_POOL_MAX) { /* whole, for pieces of any size: else each thread that comes and goes took a slab */
    Rest *r = (Rest *)(void *)pl_pool.slab;
    *r = (Rest){.next = left.rests, .left = pl_pool.left};
    left.rests = r;
  }
  for (int k = 0; k <= NPOOL; k++) {
    PlPiece **end = &pl_pool.free[k];
    while (*end) end = &(*end)->next;
    *end = left.orphans[k];
    left.orphans[k] = pl_pool.free[k];
  }
  pthread_mutex_unlock(&left.lock);
#endif
  pl_alloc_leave(&pl_pool);
  pl_pool = (PlPool){.watched = false};
}

static void make_end_key(void) { have_end_key = pthread_key_create(&end_key, thread_end) == 0; }

void pl_thread_watch(void) {
  if (pl_pool.watched) return;
  pl_pool.watched = true;
  pthread_once(&end_once, make_end_key);
  if (have_end_key) pthread_setspecific(end_key, &pl_pool);
}

#ifndef PL_ASAN
static void *adopt(size_t k) {
  pthread_mutex_lock(&left.lock);
  PlPiece *p = left.orphans[k];
  left.orphans[k] = NULL;
  pthread_mutex_unlock(&left.lock);
  if (p) pl_pool.free[k] = p->next;
  return p;
}
#endif

/* Makes room for a piece: what another thread left of its slab, or a new one. The end of the old one is lost: less than a
 * piece. */
#ifndef PL_ASAN
static bool next_slab(void) {
  pthread_mutex_lock(&left.lock);
  Rest *r = left.rests;
  if (r) left.rests = r->next;
  pthread_mutex_unlock(&left.lock);
  char *slab = r ? (char *)r : malloc(SLAB);
  if (!slab) return false;
  pl_pool.left = r ? r->left : SLAB;
  pl_pool.slab = slab;
  return true;
}
#endif

static void *pool_slow(size_t n, size_t k) {
  pl_thread_watch();
#ifndef PL_ASAN
  if (n <= PL_POOL_MAX) {
    size_t size = k * PL_POOL_STEP;
    void *orphan = adopt(k);
    if (orphan) return orphan;
    if (pl_pool.left < size && !next_slab()) return NULL;
    void *p = pl_pool.slab;
    pl_pool.slab += size;
    pl_pool.left -= size;
    return p;
  }
#else
  (void)k;
#endif
  return malloc(n ? n : 1);
}

void *pl_pool_get_slow(size_t n) {
  size_t k = (n + PL_POOL_STEP - 1) / PL_POOL_STEP;
  pl_alloc_begin();
  if (PL_UNLIKELY(pl_fail_at >= 0) && pl_alloc_played()) return NULL;
  void *p;
#ifndef PL_ASAN
  if (k <= NPOOL && pl_pool.free[k]) {
    p = pl_pool.free[k];
    pl_pool.free[k] = pl_pool.free[k]->next;
  } else
#endif
  {
    p = pool_slow(n, k);
    if (!p) return NULL;
  }
  pl_pool.live += (int64_t)(k * PL_POOL_STEP);
  pl_pool.allocated += (int64_t)(k * PL_POOL_STEP);
  pl_pool.blocks++;
  pl_pool.count++;
  pl_alloc_poison(p, n);
  return p;
}

void pl_pool_put_slow(void *p) { free(p); }
