/* SPDX-License-Identifier: MIT
 * See alloc.h. Freed blocks are kept in bins (eight per power of two) and reused newest first; blocks of
 * MAP_MIN bytes and more come from mmap, so trimming really returns them. What is cached never exceeds what
 * the program once needed: a miss first gives back cached blocks of other sizes once live + cached would
 * pass the most that was ever live by a tenth, and from there on those that have lain idle for long, and others as far as
 * that costs nearly nothing. */
#include "engine/tensor/alloc.h"
#include "engine/tensor/alloc_internal.h"

#include "engine/call/thread_state.h"
#include "engine/tensor/arena.h"
#include "engine/tensor/hooks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef PL_ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { LEAST = 7, FINE = 20, MOST = 48 }; /* binary logarithms: the least class, where classes get finer, beyond the largest */
enum { HEAD = 64, NBIN = 8 * (FINE - LEAST) + 32 * (MOST - FINE), MAP_MIN = 1 << 18, ARENA_MIN = 1 << 20 };
enum { SLACK = 32 << 20 };
enum { IDLE_MS = 1000 }; /* so old a block is sooner mapped again than kept beyond what was needed */
/* Of younger ones so much goes in a second of the thread's: to map it again takes less than a hundredth of it. No more than of SPARE seconds at once. */
enum { SPARE_RATE = 32 << 20, SPARE = 4 };
/* Address ranges that blocks are cut from, and the pages that they are to be made of. */
enum { CHUNK = 64 << 20, HUGE_PAGE = 2 << 20, SMALL = 8 << 20 /* a program with less has small pages */ };

typedef struct Block {
  struct Block *next;
  size_t total; /* with this header */
  size_t asked;
  int32_t bin;
  uint32_t magic;
  int64_t freed_ms; /* when, of blocks that are mapped */
} Block;
_Static_assert(sizeof(Block) <= HEAD, "header fits");

typedef struct Bins {
  pthread_mutex_t lock;
  Block *free[NBIN];
  int64_t most, cached, blocks, count; /* most: of what was ever live */
  int64_t peak;                        /* the same since somebody wished to know it */
  int64_t spare;                       /* bytes of blocks in use lately that may go */
  int64_t budget;                      /* < 0: none */
  int64_t fail_count;
  int64_t asked, asked_high, scratch, scratch_high;
  int64_t others, others_high; /* scratch of threads without a limit of memory: what kernels use in the team of one that has one */
  PlArena arena;               /* large blocks of threads with a limit of memory */
  int limits;                  /* such threads */
  char *chunk, *chunk_end;     /* addresses from which the next blocks are cut */
  int poison;                  /* byte that fills what is handed out, or -1 */
} Bins;

/* One per process: blocks may be freed by another thread than the one that made them. */
static Bins bins = {.lock = PTHREAD_MUTEX_INITIALIZER, .budget = -1, .poison = -1};

int64_t pl_block_bytes[2];
int64_t pl_device_handed_out;
int64_t pl_fail_at = -1;
bool (*pl_reclaim)(void);
bool pl_reclaim_tested;
static _Thread_local bool played; /* the last lack of memory was a test's, which is to see it */

static pthread_once_t poison_once = PTHREAD_ONCE_INIT;

/* Eight classes per power of two, 32 from 1 MiB on: at most an eighth is lost, of large blocks a 32nd. */
static int bin_of(size_t n, size_t *total) {
  if (n <= (size_t)1 << LEAST) {
    *total = (size_t)1 << LEAST;
    return 0;
  }
  const int log = 63 - __builtin_clzl(n - 1), bits = log < FINE ? 3 : 5;
  const size_t step = (size_t)1 << (log - bits), classes = (n + step - 1) >> (log - bits);
  *total = classes * step;
  const int first = log < FINE ? (log - LEAST) * 8 : (FINE - LEAST) * 8 + (log - FINE) * 32;
  return first + (int)classes - (1 << bits);
}

/* The last class whose blocks serve a request of class `bin`: an eighth larger. */
static int last_bin(int bin) { return bin + (bin < (FINE - LEAST) * 8 ? 1 : 4); }

/* Under the lock; others read these two without it. */
static void count_live(int64_t bytes) { __atomic_store_n(&pl_block_bytes[0], pl_block_bytes[0] + bytes, __ATOMIC_RELAXED); }
static void count_allocated(int64_t bytes) { __atomic_store_n(&pl_block_bytes[1], pl_block_bytes[1] + bytes, __ATOMIC_RELAXED); }

bool pl_alloc_played(void) {
  if (pl_fail_at < 0) return false;
  if (pl_fail_at > 0) {
    pl_fail_at--;
    return false;
  }
  if (bins.fail_count > 0 && --bins.fail_count == 0) pl_fail_at = -1;
  return true;
}

/* What a class is larger than what was asked for is nobody's: the sanitizer reports reads and writes there. */
static void guard(Block *b, bool on) {
#ifdef PL_ASAN
  char *end = (char *)b + HEAD + b->asked;
  const size_t rest = b->total - HEAD - b->asked;
  if (on) ASAN_POISON_MEMORY_REGION(end, rest);
  else ASAN_UNPOISON_MEMORY_REGION(end, rest);
#else
  (void)b, (void)on;
#endif
}

void pl_pages_end(void *p, size_t n) {
  if (munmap(p, n) != 0) madvise(p, n, MADV_DONTNEED);
}

static void give_back(Block *b) {
  bins.cached -= (int64_t)b->total;
  if (b->total >= MAP_MIN) pl_pages_end(b, b->total);
  else free(b);
}

/* Frees cached blocks, largest first, until at most `keep` bytes are cached. */
static void trim_to(int64_t keep) {
  for (int i = NBIN - 1; i >= 0 && bins.cached > keep; i--)
    while (bins.free[i] && bins.cached > keep) {
      Block *b = bins.free[i];
      bins.free[i] = b->next;
      give_back(b);
    }
}

#ifdef CLOCK_MONOTONIC_COARSE
enum { COARSE = CLOCK_MONOTONIC_COARSE };
#else
enum { COARSE = CLOCK_MONOTONIC };
#endif
static int64_t now_ms(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Gives back mapped blocks that have been idle for IDLE_MS, largest first, until at most `keep` bytes are cached. A program that goes from
 * one phase to another, of blocks of other sizes, would else hold those of both. */
static void trim_idle(int64_t keep) {
  const int64_t before = now_ms(COARSE) - IDLE_MS;
  for (int i = NBIN - 1; i >= 0 && bins.cached > keep; i--)
    for (Block **at = &bins.free[i]; *at && bins.cached > keep;) {
      Block *b = *at;
      if (b->total < MAP_MIN) return;
      if (b->freed_ms > before) {
        at = &b->next;
        continue;
      }
      *at = b->next;
      give_back(b);
    }
}

/* Gives back mapped blocks in the order in which they were freed, until at most `keep` bytes are cached, as far as the time since
 * the last such block was worth it. Where a step goes from one phase to another all misses come at once, when nothing is idle yet. */
static void trim_oldest(int64_t keep) {
  const int64_t now = now_ms(CLOCK_THREAD_CPUTIME_ID), most = (int64_t)SPARE * SPARE_RATE;
  bins.spare += (now - pl_pool.spare_ms) * (SPARE_RATE / 1000);
  if (bins.spare > most) bins.spare = most;
  pl_pool.spare_ms = now;
  while (bins.cached > keep && bins.spare > 0) {
    Block **oldest = NULL;
    for (int i = NBIN - 1; i >= 0 && !(bins.free[i] && bins.free[i]->total < MAP_MIN); i--)
      for (Block **at = &bins.free[i]; *at; at = &(*at)->next)
        if (!oldest || (*at)->freed_ms < (*oldest)->freed_ms) oldest = at;
    if (!oldest) return;
    Block *b = *oldest;
    *oldest = b->next;
    bins.spare -= (int64_t)b->total;
    give_back(b);
  }
}

/* trim_to for what is idle in the arena, too. */
static void trim_all(int64_t keep) {
  trim_to(keep > bins.arena.idle ? keep - bins.arena.idle : 0);
  pl_arena_trim(&bins.arena, keep - bins.cached);
}

static void leave_arena(void) {
  pl_arena_trim(&bins.arena, 0);
  pl_arena_end(&bins.arena);
}

/* A place in the arena, of an address range that leaves room for gaps; NULL: there is none. */
static Block *arena_block(size_t total) {
#ifdef PL_ASAN /* it sees uses after free in blocks of their own */
  (void)total;
  return NULL;
#else
  const uint64_t limit = (uint64_t)pl_remat_limit_get();
  if (total < ARENA_MIN || limit > (uint64_t)1 << 44) return NULL;
  return pl_arena_take(&bins.arena, total, (size_t)(4 * limit + ((uint64_t)1 << 30)));
#endif
}

#ifdef PL_ASAN /* it sees the ends of a block where nothing is mapped beside it */
static void *cut(size_t total) {
  (void)total;
  return NULL;
}
#else
/* `total` bytes of addresses from a border of huge pages on, or NULL. Nothing is touched yet, so no memory is taken. */
static char *huge_range(size_t total) {
#ifdef MADV_HUGEPAGE
  char *p = mmap(NULL, total + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  const size_t before = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1));
  if (before) pl_pages_end(p, before);
  if (before < HUGE_PAGE) pl_pages_end(p + before + total, HUGE_PAGE - before);
  madvise(p + before, total, MADV_HUGEPAGE);
  return p + before;
#else
  (void)total;
  return NULL;
#endif
}

/* A block is cut from a range that is larger than itself: the first touch of a page is a fault, and a fault brings a huge page only
 * where all of that page's addresses are there already. Blocks mapped one by one were half made of small pages. Cut ranges end
 * with their blocks, which munmap takes back one by one. */
static void *cut(size_t total) {
  if (pl_block_bytes[0] + (int64_t)total < SMALL) return NULL;
  if (total > CHUNK / 2) return huge_range(total);
  if (total > (size_t)(bins.chunk_end - bins.chunk)) {
    if (bins.chunk_end > bins.chunk) pl_pages_end(bins.chunk, (size_t)(bins.chunk_end - bins.chunk));
    bins.chunk = huge_range(CHUNK);
    bins.chunk_end = bins.chunk ? bins.chunk + CHUNK : NULL;
    if (!bins.chunk) return NULL;
  }
  void *p = bins.chunk;
  bins.chunk += total;
  return p;
}
#endif

static Block *system_block(size_t total) {
  if (total < MAP_MIN) {
    size_t up = (total + 63) & ~(size_t)63;
    return aligned_alloc(64, up);
  }
  void *p = cut(total);
  if (p) return p;
  p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static PlStatus out_of_memory(size_t n) {
  PL_FAIL(PL_ERR_OOM, "out of memory: %zu bytes wanted, %lld live%s", n, (long long)pl_live_bytes(),
          bins.budget >= 0 ? " (a memory budget is set)" : "");
}

void pl_alloc_poison(void *p, size_t n) {
  if (PL_UNLIKELY(bins.poison >= 0)) memset(p, bins.poison, n);
}

/* PERILUNE_POISON=BYTE fills all memory that is handed out: 255 makes NaN, in all floating dtypes, of what is read before it is written.
 * The fast path of the pool does not know that: it is told that an allocation is to fail one day. */
static void poison_begin(void) {
  const char *text = getenv("PERILUNE_POISON");
  if (!text || !*text) return;
  bins.poison = (int)(strtol(text, NULL, 0) & 255);
  if (pl_fail_at < 0) pl_fail_at = INT64_MAX;
}

void pl_alloc_begin(void) { pthread_once(&poison_once, poison_begin); }

void pl_alloc_leave(const PlPool *p) {
  pthread_mutex_lock(&bins.lock);
  count_live(p->live);
  bins.blocks += p->blocks;
  bins.count += p->count;
  count_allocated(p->allocated);
  pthread_mutex_unlock(&bins.lock);
}

/* Under the lock: the bytes that are live. */
static int64_t see_live(void) {
  const int64_t live = pl_block_bytes[0] + pl_pool.live;
  if (live > bins.peak) bins.peak = live;
  if (live > bins.most) bins.most = live;
  return live;
}

static PlStatus block_alloc(size_t n, bool scratch, bool brief, void **out) {
  if (n > (size_t)1 << 46) return out_of_memory(n);
  size_t total;
  int bin = bin_of(n, &total); /* of what was asked for: the header beside it would push powers of two into the next class */
  total += HEAD;
  if (total >= MAP_MIN) total = (total + 4095) & ~(size_t)4095;
  if (PL_UNLIKELY(pl_state.remat != NULL)) PL_TRY(pl_remat_room(total));
  pthread_mutex_lock(&bins.lock);
  played = pl_alloc_played();
  bool refuse = played || (bins.budget >= 0 && pl_block_bytes[0] + pl_pool.live + (int64_t)total > bins.budget);
  Block *b = NULL;
  for (int i = bin; !refuse && i <= last_bin(bin) && i < NBIN && !b; i++)
    if ((b = bins.free[i])) {
      bins.free[i] = b->next;
      bins.cached -= (int64_t)b->total;
    }
  if (!b && !refuse) {
    int64_t need = pl_block_bytes[0] + (int64_t)total, room = bins.most + bins.most / 10 + SLACK;
    if (PL_UNLIKELY(pl_state.remat != NULL) && room - SLACK > pl_remat_limit_get()) room = pl_remat_limit_get() + SLACK;
    if (bins.budget >= 0 && room > bins.budget) room = bins.budget; /* what is kept idle is in use to everybody else */
    if (PL_UNLIKELY(pl_state.remat != NULL)) b = arena_block(total);
    const int64_t beside = need < bins.most ? bins.most - need : 0;
    if (need + bins.cached > bins.most) trim_idle(beside);
    if (need + bins.cached > bins.most + bins.most / 16 && need > SMALL) trim_oldest(beside + bins.most / 16);
    if (need + bins.cached + bins.arena.idle > room) trim_all(need < room ? room - need : 0);
    if (!b) b = system_block(total);
    if (!b) {
      trim_all(0);
      b = system_block(total);
    }
    if (b) *b = (Block){.total = total, .bin = bin, .magic = 0x6d6f6f6e};
  }
  if (b) {
    b->asked = n;
    bins.asked += (int64_t)n;
    if (bins.asked > bins.asked_high) bins.asked_high = bins.asked;
    if (scratch && (bins.scratch += (int64_t)n) > bins.scratch_high) bins.scratch_high = bins.scratch;
    if (scratch && !pl_state.remat && (bins.others += (int64_t)b->total) > bins.others_high) bins.others_high = bins.others;
    count_live((int64_t)b->total);
    if (!brief) count_allocated((int64_t)b->total);
    bins.blocks++;
    bins.count++;
    see_live();
  }
  pthread_mutex_unlock(&bins.lock);
  if (!b) return out_of_memory(n);
  guard(b, true);
  *out = (char *)b + HEAD;
  pl_alloc_poison(*out, n);
  return PL_OK;
}

PlStatus pl_block_alloc(size_t n, void **out) {
  played = false;
  PlStatus s = block_alloc(n, false, false, out);
  if (PL_UNLIKELY(s == PL_ERR_OOM) && !played && pl_reclaim && pl_reclaim()) s = block_alloc(n, false, false, out);
  return s;
}
PlStatus pl_block_alloc_brief(size_t n, void **out) { return block_alloc(n, false, true, out); }
PlStatus pl_scratch_alloc(size_t n, void **out) { return block_alloc(n, true, true, out); }

static void block_free(void *p, bool scratch) {
  if (!p) return;
  Block *b = (Block *)(void *)((char *)p - HEAD);
  guard(b, false);
  pthread_mutex_lock(&bins.lock);
  bins.asked -= (int64_t)b->asked;
  if (scratch) bins.scratch -= (int64_t)b->asked;
  if (scratch && !pl_state.remat) bins.others -= (int64_t)b->total;
  count_live(-(int64_t)b->total);
  bins.blocks--;
  if (PL_UNLIKELY(pl_arena_has(&bins.arena, b))) {
    pl_arena_give(&bins.arena, b);
    if (!bins.limits) leave_arena();
  } else {
    if (b->total >= MAP_MIN) b->freed_ms = now_ms(COARSE);
    b->next = bins.free[b->bin];
    bins.free[b->bin] = b;
    bins.cached += (int64_t)b->total;
  }
#ifdef PL_ASAN
  trim_to(0); /* so that the sanitizer sees uses after free */
#endif
  pthread_mutex_unlock(&bins.lock);
}

void pl_block_free(void *p) { block_free(p, false); }
void pl_scratch_free(void *p) { block_free(p, true); }

void pl_alloc_limited(bool on) {
  pthread_mutex_lock(&bins.lock);
  bins.limits += on ? 1 : -1;
  if (!bins.limits) leave_arena();
  pthread_mutex_unlock(&bins.lock);
}

void pl_scratch_of_others_mark(void) {
  pthread_mutex_lock(&bins.lock);
  bins.others_high = bins.others;
  pthread_mutex_unlock(&bins.lock);
}

int64_t pl_scratch_of_others(void) {
  pthread_mutex_lock(&bins.lock);
  const int64_t n = bins.others_high - bins.others;
  pthread_mutex_unlock(&bins.lock);
  return n;
}

void pl_asked_mark(void) {
  pthread_mutex_lock(&bins.lock);
  bins.asked_high = bins.asked;
  bins.scratch_high = bins.scratch;
  pthread_mutex_unlock(&bins.lock);
}

PlAsked pl_asked(void) {
  pthread_mutex_lock(&bins.lock);
  PlAsked a = {.live = bins.asked, .high = bins.asked_high, .scratch_high = bins.scratch_high};
  pthread_mutex_unlock(&bins.lock);
  return a;
}

/* ---- what others see ---- */

void pl_memory(PlMemory *out) {
  pthread_mutex_lock(&bins.lock);
  const int64_t live = see_live();
  *out = (PlMemory){.live = live,
                    .peak = bins.peak,
                    .reserved = live + bins.cached + bins.arena.idle,
                    .budget = bins.budget,
                    .blocks = bins.blocks + pl_pool.blocks,
                    .allocations = bins.count + pl_pool.count};
  pthread_mutex_unlock(&bins.lock);
}

void pl_memory_reset_peak(void) {
  pthread_mutex_lock(&bins.lock);
  bins.peak = pl_block_bytes[0] + pl_pool.live;
  pthread_mutex_unlock(&bins.lock);
}

void pl_memory_budget(int64_t bytes) {
  pthread_mutex_lock(&bins.lock);
  bins.budget = bytes;
  pthread_mutex_unlock(&bins.lock);
}

void pl_memory_trim(void) {
  pthread_mutex_lock(&bins.lock);
  trim_all(0);
  pthread_mutex_unlock(&bins.lock);
}

void pl_memory_fail_at(int64_t n, int64_t count) {
  pthread_mutex_lock(&bins.lock);
  pl_fail_at = n;
  bins.fail_count = count;
  pthread_mutex_unlock(&bins.lock);
}
