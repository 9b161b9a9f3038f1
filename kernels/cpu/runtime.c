/* SPDX-License-Identifier: MIT
 * Services of kernels/kernel.h: scratch memory, interrupt flag, threads, choice of the ISA level.
 * Writable globals: the host's allocator, the interrupt flag, the level in use, the fork mark, and of each
 * thread its count and its pool. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

/* ---- scratch ---- */

/* Set once before any kernel runs; without a host (tests of kernels alone) plain aligned memory. */
static PlkHost host;

void plk_set_host(const PlkHost *h) { host = *h; }

static PlStatus plain_memory(size_t bytes, void **out) {
  if (bytes > SIZE_MAX - 63) PL_FAIL(PL_ERR_OOM, "scratch of %zu bytes", bytes);
  void *p = aligned_alloc(64, bytes == 0 ? 64 : (bytes + 63) & ~(size_t)63);
  if (p == NULL) PL_FAIL(PL_ERR_OOM, "scratch of %zu bytes", bytes);
  *out = p;
  return PL_OK;
}

static _Thread_local PlkScratchPool *own_pool; /* of the session that this thread runs, or NULL */

PlkScratchPool *plk_scratch_pool(PlkScratchPool *pool) {
  PlkScratchPool *was = own_pool;
  own_pool = pool;
  return was;
}

void plk_scratch_pool_free(PlkScratchPool *pool) {
  for (int i = 0; i < pool->n; i++) free(pool->block[i].p);
  pool->n = 0;
}

size_t plk_scratch_pool_bytes(const PlkScratchPool *pool) {
  size_t n = 0;
  for (int i = 0; i < pool->n; i++) n += pool->block[i].bytes;
  return n;
}

/* The smallest free block that is large enough; else a free one grows, or a new one is made. */
static PlStatus from_pool(PlkScratchPool *pool, size_t bytes, void **out, bool *done) {
  struct PlkScratchBlock *best = NULL, *small = NULL;
  for (int i = 0; i < pool->n; i++) {
    struct PlkScratchBlock *b = &pool->block[i];
    if (b->used) continue;
    if (b->bytes >= bytes && (best == NULL || b->bytes < best->bytes)) best = b;
    if (b->bytes < bytes && (small == NULL || b->bytes > small->bytes)) small = b;
  }
  if (best == NULL) {
    best = pool->n < PLK_POOL_BLOCKS ? &pool->block[pool->n] : small;
    if (best == NULL) return PL_OK; /* all are in use: the host */
    void *p;
    PL_TRY(plain_memory(bytes, &p));
    if (best == &pool->block[pool->n]) pool->n++;
    else free(best->p);
    *best = (struct PlkScratchBlock){.p = p, .bytes = bytes};
  }
  best->used = true;
  *out = best->p;
  *done = true;
  return PL_OK;
}

static bool to_pool(PlkScratchPool *pool, void *p) {
  for (int i = 0; i < pool->n; i++)
    if (pool->block[i].p == p) {
      pool->block[i].used = false;
      return true;
    }
  return false;
}

PlStatus plk_scratch(size_t bytes, void **out) {
  if (PL_UNLIKELY(own_pool != NULL)) {
    bool done = false;
    PL_TRY(from_pool(own_pool, bytes, out, &done));
    if (done) return PL_OK;
  }
  if (host.alloc != NULL) return host.alloc(bytes, out);
  return plain_memory(bytes, out);
}

void plk_scratch_free(void *p) {
  if (p == NULL || (PL_UNLIKELY(own_pool != NULL) && to_pool(own_pool, p))) return;
  if (host.release != NULL) host.release(p);
  else free(p);
}

/* ---- interrupt ---- */

static atomic_bool interrupted; /* lock-free, so a signal handler may set it */

static atomic_int held; /* how many say that nothing may stop now */

void plk_interrupt(bool on) { atomic_store_explicit(&interrupted, on, memory_order_relaxed); }
void plk_interrupt_hold(int more) { atomic_fetch_add_explicit(&held, more, memory_order_relaxed); }
bool plk_interrupt_held(void) { return atomic_load_explicit(&held, memory_order_relaxed) > 0; }

/* A loader's worker is stopped when nobody waits for its batch any more. */
static _Thread_local const _Atomic bool *own_stop;

void plk_stop_by(const _Atomic bool *flag) { own_stop = flag; }

PlStatus plk_poll(void) {
  bool stop =
      atomic_load_explicit(&interrupted, memory_order_relaxed) || (own_stop && atomic_load_explicit(own_stop, memory_order_relaxed));
  if (PL_LIKELY(!stop) || plk_interrupt_held()) return PL_OK;
  PL_FAIL(PL_ERR_INTERRUPT, "interrupted");
}

/* ---- threads ---- */

/* A thread's own count, 0: not set. A forked child keeps one thread whatever is asked for, because
 * libgomp's team did not survive the fork. */
static _Thread_local int thread_count;
static atomic_bool forked;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void mark_forked(void) { atomic_store(&forked, true); }
static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, mark_forked); }

int plk_threads(void) {
  pthread_once(&fork_once, watch_forks);
  if (atomic_load_explicit(&forked, memory_order_relaxed)) return 1;
  if (thread_count != 0) return thread_count;
#if defined(_OPENMP)
  thread_count = omp_get_max_threads();
  if (thread_count < 1) thread_count = 1;
#else
  thread_count = 1;
#endif
  return thread_count;
}

void plk_set_threads(int n) { thread_count = n < 1 ? 1 : n; }

/* A loop over blocks. Each thread owns a run of them, so that what one loop left in a core's cache the next one
 * finds there; who is done takes blocks from the others, so that a core that somebody else uses too does not
 * hold up the team. Blocks are independent: who runs one does not change its bits. */
enum { RANGES = 64 };

typedef struct Range {
  _Alignas(64) atomic_llong next;
  int64_t last;
} Range;

typedef struct Loop {
  int64_t n, block;
  PlkBody body;
  void *ctx;
  Range range[RANGES];
  int nrange;
  /* The lowest block that failed, with its message, which belongs to a worker's thread. */
  pthread_mutex_t lock;
  atomic_llong failed;
  PlStatus status;
  char text[256];
} Loop;

static PlStatus run_block(const Loop *l, int64_t b) {
  const int64_t begin = b * l->block, end = l->n - begin < l->block ? l->n : begin + l->block;
  PL_TRY(plk_poll());
  return l->body(l->ctx, begin, end);
}

static void note_failure(Loop *l, int64_t block, PlStatus status) {
  pthread_mutex_lock(&l->lock);
  if (block < atomic_load(&l->failed)) {
    atomic_store(&l->failed, block);
    l->status = status;
    snprintf(l->text, sizeof l->text, "%s", pl_message());
  }
  pthread_mutex_unlock(&l->lock);
}

/* Blocks of one range until it is empty. Those behind a failure are moot; those before it must run, so that the
 * lowest failure wins. */
static void run_range(Loop *l, Range *r) {
  while (atomic_load_explicit(&r->next, memory_order_relaxed) < r->last) {
    const int64_t b = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
    if (b >= r->last) return;
    if (b > atomic_load_explicit(&l->failed, memory_order_relaxed)) continue;
    const PlStatus s = run_block(l, b);
    if (s != PL_OK) note_failure(l, b, s);
  }
}

static void run_ranges(void *ctx, int who) {
  Loop *l = ctx;
  for (int i = 0; i < l->nrange; i++) run_range(l, &l->range[(who + i) % l->nrange]);
}

static PlStatus run_team(Loop *l, int64_t nblock, int threads) {
  pthread_mutex_init(&l->lock, NULL);
  l->nrange = threads < RANGES ? threads : RANGES;
  for (int64_t t = 0, first = 0; t < l->nrange; t++) {
    const int64_t many = nblock / l->nrange + (t < nblock % l->nrange);
    atomic_init(&l->range[t].next, first);
    l->range[t].last = first += many;
  }
  plk_team_run(threads, run_ranges, l);
  pthread_mutex_destroy(&l->lock);
  if (l->status != PL_OK) PL_FAIL(l->status, "%s", l->text);
  return PL_OK;
}

PlStatus plk_parallel(int64_t n, int64_t block, PlkBody body, void *ctx) {
  if (n <= 0) return PL_OK;
  if (block < 1) block = 1;
  Loop l;
  l.n = n, l.block = block, l.body = body, l.ctx = ctx, l.status = PL_OK;
  atomic_init(&l.failed, INT64_MAX);
  const int64_t nblock = n / block + (n % block != 0);
  const int threads = nblock > 1 ? plk_threads() : 1;
  if (threads > 1) return run_team(&l, nblock, threads);
  for (int64_t b = 0; b < nblock; b++) PL_TRY(run_block(&l, b));
  return PL_OK;
}

/* ---- ISA level ---- */

/* The highest level that was compiled, that this processor runs and that PERILUNE_ISA allows; if there is
 * none, the lowest compiled. */
static const PlkIsa *best_level(void) {
  const PlkIsaLevels *l = plk_isa_chosen;
  const PlkIsa *best = l->generic;
#if defined(__x86_64__)
  const char *want = getenv("PERILUNE_ISA");
  const int cap = want == NULL ? 4 : strcmp(want, "v2") == 0 ? 2 : strcmp(want, "v3") == 0 ? 3 : 4;
  __builtin_cpu_init();
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (l->v2) best = l->v2;
  if (l->v3 && (best == NULL || (v3 && cap >= 3))) best = l->v3;
  if (l->v4 && (best == NULL || (v4 && cap >= 4))) best = l->v4;
#endif
  return best;
}

/* The level in use; every thread that races to set it stores the same pointer. */
static _Atomic(const PlkIsa *) level;

const PlkIsa *plk_isa_tables(void) {
  const PlkIsa *l = atomic_load_explicit(&level, memory_order_acquire);
  if (PL_UNLIKELY(l == NULL)) {
    l = best_level();
    atomic_store_explicit(&level, l, memory_order_release);
  }
  return l;
}

const char *plk_isa(void) { return plk_isa_tables()->name; }
