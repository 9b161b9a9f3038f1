/* SPDX-License-Identifier: MIT
 * Services of kernels/kernel.h: scratch memory, interrupt flag, threads, choice of the ISA level.
 * Writable globals: the host's allocator, the interrupt flag, the level in use, the fork mark, and one
 * thread count per thread. */
#include "kernels/cpu/isa/table.h"

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

PlStatus plk_scratch(size_t bytes, void **out) {
  if (host.alloc != NULL) return host.alloc(bytes, out);
  if (bytes > SIZE_MAX - 63) PL_FAIL(PL_ERR_OOM, "scratch of %zu bytes", bytes);
  void *p = aligned_alloc(64, bytes == 0 ? 64 : (bytes + 63) & ~(size_t)63);
  if (p == NULL) PL_FAIL(PL_ERR_OOM, "scratch of %zu bytes", bytes);
  *out = p;
  return PL_OK;
}

void plk_scratch_free(void *p) {
  if (p == NULL) return;
  if (host.release != NULL) host.release(p);
  else free(p);
}

/* ---- interrupt ---- */

static atomic_bool interrupted; /* lock-free, so a signal handler may set it */

void plk_interrupt(bool on) { atomic_store_explicit(&interrupted, on, memory_order_relaxed); }

PlStatus plk_poll(void) {
  if (PL_LIKELY(!atomic_load_explicit(&interrupted, memory_order_relaxed))) return PL_OK;
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

/* The first failure by block number, with its message: that one belongs to a worker's thread. */
typedef struct Failure {
  int64_t block;
  PlStatus status;
  char text[256];
} Failure;

#if defined(_OPENMP)
static void note_failure(Failure *f, int64_t block, PlStatus status) {
  if (f->status != PL_OK && f->block <= block) return;
  f->block = block, f->status = status;
  snprintf(f->text, sizeof f->text, "%s", pl_message());
}
#endif

static PlStatus run_blocks(int64_t n, int64_t block, int64_t first, int64_t last, PlkBody body,
                           void *ctx, int64_t *at) {
  for (int64_t b = first; b < last; b++) {
    const int64_t begin = b * block, end = n - begin < block ? n : begin + block;
    *at = b;
    PL_TRY(plk_poll());
    PL_TRY(body(ctx, begin, end));
  }
  return PL_OK;
}

PlStatus plk_parallel(int64_t n, int64_t block, PlkBody body, void *ctx) {
  if (n <= 0) return PL_OK;
  if (block < 1) block = 1;
  const int64_t nblock = n / block + (n % block != 0);
  int64_t at = 0;
#if defined(_OPENMP)
  const int threads = nblock > 1 && !omp_in_parallel() ? plk_threads() : 1;
  if (threads > 1) {
    Failure fail = {.status = PL_OK};
    atomic_bool stop = false;
#pragma omp parallel num_threads(threads) private(at)
    {
      const int64_t t = omp_get_thread_num(), nt = omp_get_num_threads();
      const int64_t first = nblock / nt * t + (t < nblock % nt ? t : nblock % nt);
      const int64_t last = first + nblock / nt + (t < nblock % nt);
      /* Blocks one by one, so that a failure elsewhere stops this thread too; but only an earlier
       * thread's failure makes later blocks moot, which keeps "lowest block wins" exact. */
      PlStatus status = PL_OK;
      for (int64_t b = first; b < last && status == PL_OK; b++) {
        if (atomic_load_explicit(&stop, memory_order_relaxed) && t != 0) {
          bool earlier;
#pragma omp critical(plk_failure)
          earlier = fail.status != PL_OK && fail.block < b;
          if (earlier) break;
        }
        status = run_blocks(n, block, b, b + 1, body, ctx, &at);
      }
      if (status != PL_OK) {
#pragma omp critical(plk_failure)
        note_failure(&fail, at, status);
        atomic_store_explicit(&stop, true, memory_order_relaxed);
      }
    }
    if (fail.status != PL_OK) PL_FAIL(fail.status, "%s", fail.text);
    return PL_OK;
  }
#endif
  return run_blocks(n, block, 0, nblock, body, ctx, &at);
}

/* ---- ISA level ---- */

/* The build says which levels it compiled; without word, all of this architecture. */
#if !defined(PLK_HAVE_V2) && !defined(PLK_HAVE_V3) && !defined(PLK_HAVE_V4) && !defined(PLK_HAVE_GENERIC)
#if defined(__x86_64__)
#define PLK_HAVE_V2
#define PLK_HAVE_V3
#define PLK_HAVE_V4
#else
#define PLK_HAVE_GENERIC
#endif
#endif

#define LEVEL(v)                                                                          \
  static const PlkIsa isa_##v = {                                                         \
      #v, plk_ew_f32_##v, plk_ew_f64_##v, plk_ew_where_##v, plk_ew_copy_##v, plk_ew_cast_##v, \
      &plk_convert_##v, &plk_random_##v};
#if defined(PLK_HAVE_V2)
LEVEL(v2)
#endif
#if defined(PLK_HAVE_V3)
LEVEL(v3)
#endif
#if defined(PLK_HAVE_V4)
LEVEL(v4)
#endif
#if defined(PLK_HAVE_GENERIC)
LEVEL(generic)
#endif

/* The highest level that was compiled, that this processor runs and that PERILUNE_ISA allows; if there is
 * none, the lowest compiled. */
static const PlkIsa *best_level(void) {
  const PlkIsa *best = NULL;
#if defined(PLK_HAVE_GENERIC)
  best = &isa_generic;
#endif
#if defined(__x86_64__)
  const char *want = getenv("PERILUNE_ISA");
  const int cap = want == NULL ? 4 : strcmp(want, "v2") == 0 ? 2 : strcmp(want, "v3") == 0 ? 3 : 4;
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
#if defined(PLK_HAVE_V2)
  best = &isa_v2;
#endif
#if defined(PLK_HAVE_V3)
  if (best == NULL || (v3 && cap >= 3)) best = &isa_v3;
#endif
#if defined(PLK_HAVE_V4)
  if (best == NULL || (v4 && cap >= 4)) best = &isa_v4;
#endif
  (void)v3, (void)v4, (void)cap;
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
