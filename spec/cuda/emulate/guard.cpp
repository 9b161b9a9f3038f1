// SPDX-License-Identifier: MIT
// What compute-sanitizer shows on a GPU, as far as the CPU can show it. PERILUNE_EMULATE=guard: every block of device memory,
// scratch too, is a piece of pages of its own that ends where memory ends, and holds poison (NaN for floats) when it is handed
// out. A kernel that reads or writes behind a block, or in one that was freed, stops with its name, thread and address; one that
// writes into the up to 15 bytes of slack, or close before a block, is named when it is done. The plug-in's allocator keeps
// counting as ever. PERILUNE_EMULATE=twice: besides, every launch runs again from the same memory with blocks and threads in
// the opposite order, and must leave the same bits: what differs is a race (a missing barrier, two writers of one element).
// Accesses that are not aligned stop in every mode. Host code may touch memory in both; the emulation without these words is what forbids that.
#include "inside.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
#include "kernels/cuda/cuda.h"
PlStatus __real_plc_alloc(int gpu, size_t n, void **out);
void __real_plc_release(int gpu, void *p);
PlStatus __wrap_plc_alloc(int gpu, size_t n, void **out);
void __wrap_plc_release(int gpu, void *p);
PlStatus __wrap_plc_scratch(size_t n, void **out);
void __wrap_plc_scratch_free(void *p);
}

namespace {

const size_t RANGE = (size_t)1 << 40, SPAN = RANGE / PLCE_DEVICES, PAGE = 4096, ALIGN = 16, NEAR = 64; // addresses are never used again
const int POISON = 0xFF;

struct Guarded {
  Guarded *more, *next, *before; // in its slot; among all
  char *at, *user;
  size_t room, bytes; // pages from `at`; what was asked for from `user`
  void *real;         // the allocator's block
  bool captured;      // a captured graph may write here after it was freed
  size_t was;         // where its bytes are in `kept` and `results`
};
Guarded *slots[1 << 14], *all;
char *base;
size_t high[PLCE_DEVICES], kept_room;
char *kept, *results;
int on = -1; // not asked yet
bool twice_on;
const char *running;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
Guarded **slot_of(const void *p) { return &slots[((uintptr_t)p >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 50]; }

void say_where(const char *p) {
  for (const Guarded *g = all; g; g = g->next)
    if (p >= g->at && p < g->at + g->room + PAGE) {
      if (p < g->user) fprintf(stderr, "%zu bytes before", (size_t)(g->user - p));
      else if (p >= g->user + g->bytes) fprintf(stderr, "%zu bytes behind the end of", (size_t)(p - g->user - g->bytes));
      else fprintf(stderr, "at %zu in", (size_t)(p - g->user));
      fprintf(stderr, " a block of %zu bytes\n", g->bytes);
      return;
    }
  fprintf(stderr, "where no block is (any more)\n");
}

void say_thread(const char *name) {
  fprintf(stderr, "cuda emulation: %s, block %u %u %u, thread %u %u %u: ", name, plce_block.x, plce_block.y, plce_block.z, plce_thread.x,
          plce_thread.y, plce_thread.z);
}

void fault(int, siginfo_t *info, void *) {
  const char *p = (const char *)info->si_addr;
  signal(SIGSEGV, SIG_DFL);
  if (running && plce_shared_end && p >= (char *)plce_shared_end && p < (char *)plce_shared_end + PAGE) {
    say_thread(running);
    fprintf(stderr, "access %zu bytes behind the end of shared memory\n", (size_t)(p - (char *)plce_shared_end));
    abort();
  }
  if (p < base || p >= base + RANGE) return; // not ours: it happens again
  if (running) say_thread(running);
  else fprintf(stderr, "cuda emulation: outside of a kernel: ");
  fprintf(stderr, "memory access at %p, ", (const void *)p);
  say_where(p);
  abort();
}

// The compiler puts a trap before accesses that are not aligned.
void trap(int, siginfo_t *, void *) {
  signal(SIGILL, SIG_DFL);
  if (!running) return;
  say_thread(running);
  fprintf(stderr, "an access to memory that is not aligned\n");
  abort();
}

void on_signal(int number, void (*handler)(int, siginfo_t *, void *)) {
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_sigaction = handler;
  act.sa_flags = SA_SIGINFO;
  sigaction(number, &act, NULL);
}

bool is_on() {
  if (on < 0) {
    pthread_mutex_lock(&plce_lock);
    twice_on = plce_word("twice", NULL);
    bool wanted = twice_on || plce_word("guard", NULL);
    if (wanted) {
      void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) abort();
      base = (char *)p;
      on_signal(SIGSEGV, fault);
    }
    on_signal(SIGILL, trap);
    on = wanted;
    pthread_mutex_unlock(&plce_lock);
  }
  return on == 1;
}

// The first byte of [from, to) that is not poison; NULL: there is none.
const char *touched(const char *from, const char *to) {
  for (; from < to; from++)
    if ((unsigned char)*from != POISON) return from;
  return NULL;
}
void check(const Guarded *g, const char *name, size_t before) {
  const char *low = g->user - before > g->at ? g->user - before : g->at;
  const char *p = touched(low, g->user);
  if (!p) p = touched(g->user + g->bytes, g->at + g->room);
  if (!p) return;
  fprintf(stderr, "cuda emulation: %s wrote ", name);
  say_where(p);
  abort();
}

Guarded *new_block(int gpu, size_t n, void *real) {
  const size_t room = round_up(n ? n : 1, PAGE);
  if (room + PAGE > SPAN - high[gpu]) return NULL;
  Guarded *g = (Guarded *)calloc(1, sizeof *g);
  if (!g) return NULL;
  g->at = base + (size_t)gpu * SPAN + high[gpu];
  g->room = room;
  g->bytes = n;
  g->user = g->at + room - round_up(n ? n : 1, ALIGN);
  g->real = real;
  g->captured = plce_captures();
  if (mprotect(g->at, room, PROT_READ | PROT_WRITE) != 0) {
    free(g);
    return NULL;
  }
  high[gpu] += room + PAGE;
  memset(g->at, POISON, room);
  Guarded **slot = slot_of(g->user);
  g->more = *slot;
  *slot = g;
  g->next = all;
  if (all) all->before = g;
  all = g;
  return g;
}

void drop(Guarded *g) {
  (g->before ? g->before->next : all) = g->next;
  if (g->next) g->next->before = g->before;
  mprotect(g->at, g->room, PROT_NONE);
  madvise(g->at, g->room, MADV_DONTNEED);
  free(g);
}

// All blocks one behind the other in `to`.
void copy_out(char *to) {
  for (const Guarded *g = all; g; g = g->next) memcpy(to + g->was, g->user, g->bytes);
}

} // namespace

bool plce_guards(void) { return is_on(); }
static bool ours(const void *p) { return base && (const char *)p >= base && (const char *)p < base + RANGE; }
int plce_guarded(const void *p) { return ours(p) ? (int)((size_t)((const char *)p - base) / SPAN) : -1; }
bool plce_twice(void) { return is_on() && twice_on; }

void plce_launch_begins(const char *name) { running = name; }
void plce_launch_ends(void) {
  if (on == 1 && !plce_dead[plce_current()])
    for (const Guarded *g = all; g; g = g->next) check(g, running, NEAR);
  running = NULL;
}

void plce_keep(void) {
  size_t n = 0;
  for (Guarded *g = all; g; g = g->next) g->was = n, n += g->bytes;
  if (n > kept_room) {
    kept_room = n + n / 2;
    kept = (char *)realloc(kept, kept_room), results = (char *)realloc(results, kept_room);
    if (!kept || !results) abort();
  }
  copy_out(kept);
}
void plce_restore(void) {
  copy_out(results);
  for (Guarded *g = all; g; g = g->next) memcpy(g->user, kept + g->was, g->bytes);
}
void plce_compare(const char *name) {
  for (const Guarded *g = all; g; g = g->next) {
    if (memcmp(results + g->was, g->user, g->bytes) == 0) continue;
    size_t i = 0;
    while (results[g->was + i] == g->user[i]) i++;
    fprintf(stderr, "cuda emulation: %s leaves other bits when its threads run in the opposite order: ", name);
    say_where(g->user + i);
    abort();
  }
}

// ---- in place of the allocator's functions (the linker's --wrap), which go on counting

PlStatus __wrap_plc_alloc(int gpu, size_t n, void **out) {
  PL_TRY(__real_plc_alloc(gpu, n, out));
  if (!is_on()) return PL_OK;
  pthread_mutex_lock(&plce_lock);
  Guarded *g = new_block(gpu, n, *out);
  if (g) *out = g->user;
  pthread_mutex_unlock(&plce_lock);
  return PL_OK;
}
void __wrap_plc_release(int gpu, void *p) {
  if (!ours(p)) {
    __real_plc_release(gpu, p);
    return;
  }
  pthread_mutex_lock(&plce_lock);
  Guarded **at = slot_of(p);
  while (*at && (*at)->user != p) at = &(*at)->more;
  Guarded *g = *at;
  if (!g) {
    fprintf(stderr, "cuda emulation: memory is freed twice: %p\n", p);
    abort();
  }
  *at = g->more;
  void *real = g->real;
  check(g, "some kernel", g->room);
  if (!g->captured) drop(g);
  pthread_mutex_unlock(&plce_lock);
  __real_plc_release(gpu, real);
}
PlStatus __wrap_plc_scratch(size_t n, void **out) { return __wrap_plc_alloc(plc_gpu_number(), n, out); }
void __wrap_plc_scratch_free(void *p) {
  if (p) __wrap_plc_release(plc_gpu_number(), p);
}
