// SPDX-License-Identifier: MIT
// Kernels on the CPU, for tests: blocks run one after the other, the threads of a block as fibers. Memory and the runtime's
// functions: runtime.cpp. Kernels that are watched: guard.cpp.
#include "inside.h"

#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace {

const size_t STACK = 64 << 10;
const unsigned MAX_THREADS = 1024;
const size_t ROOM = 228 << 10;                            // whole pages, of which a block has
const size_t SHARED = 227 << 10, PLAIN_SHARED = 48 << 10; // at most, and without asking
std::atomic<size_t> asked{0};                             // the most that some kernel was allowed

// ---- fibers: one stack a thread of the block, reused from block to block

struct alignas(64) Fiber {
  void *sp;
  char *stack;
#if !defined(__x86_64__)
  ucontext_t context;
#endif
  dim3 index;
  unsigned swaps; // of a whole warp, in this block
};
Fiber fibers[MAX_THREADS];
Fiber *self;
void *scheduler_sp;
void (*kernel_body)(void *);
void *kernel_context;
unsigned threads, live, arrived;
// A warp runs until all of its threads wait for other warps, or ended; then the next one does.
struct Warp {
  unsigned live, arrived, ready; // threads that have not ended, that wait for some of their warp, that can go on
  alignas(16) unsigned char slot[32][3][16];
} warps[MAX_THREADS / 32];
bool backwards; // the last block and the last thread first

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack, then takes them from the new one.
extern "C" void plce_switch(void **save, void *load);
asm(R"(
.text
.globl plce_switch
.hidden plce_switch
.type plce_switch,@function
plce_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size plce_switch,.-plce_switch
)");
void go(Fiber *from, Fiber *to) { plce_switch(from ? &from->sp : &scheduler_sp, to ? to->sp : scheduler_sp); }
#else
ucontext_t scheduler_context;
void go(Fiber *from, Fiber *to) { swapcontext(from ? &from->context : &scheduler_context, to ? &to->context : &scheduler_context); }
#endif

unsigned linear() { return (unsigned)(self - fibers); }

// The thread waits, or has ended: the next of its warp that is ready goes on, or the scheduler, which is NULL.
void next_of(unsigned w, unsigned after) {
  Fiber *from = self, *to = NULL;
  if (const unsigned ready = warps[w].ready) {
    const unsigned rest = backwards ? ready & ((1u << after) - 1) : ready & ~((2u << after) - 1), some = rest ? rest : ready;
    to = &fibers[w * 32 + (unsigned)(backwards ? 31 - __builtin_clz(some) : __builtin_ctz(some))];
    plce_thread = to->index;
  }
  if (to == from) return;
  self = to;
  go(from, to);
}
void wait() { next_of(linear() / 32, linear() & 31); }

void thread_ends();

void entry() {
  for (;;) {
    kernel_body(kernel_context);
    thread_ends();
    wait(); // resumed by the next block
  }
}

// Where stacks begin differs in the lower bits of the address: else all of them would share a few lines of the caches.
size_t colour(const Fiber *f) { return (size_t)(f - fibers) * 5 % 256 * 64; }

void prepare(Fiber *f) {
  if (!f->stack) {
    void *p = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    f->stack = (char *)p;
#if defined(__x86_64__)
    void **sp = (void **)(void *)(f->stack + STACK - 64 - colour(f));
    *--sp = NULL; // entry's return address, never used; keeps the stack aligned as after a call
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++) *--sp = NULL;
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK - colour(f);
    makecontext(&f->context, entry, 0);
#endif
  }
}

// Those who ended count as arrived.
void release_barrier() {
  if (!live || arrived != live) return;
  arrived = 0;
  for (unsigned w = 0; w * 32 < threads; w++) warps[w].ready = warps[w].live;
}
void release_warp(Warp *w, unsigned these) {
  w->arrived &= ~these;
  w->ready |= these;
}

void thread_ends() {
  Warp *w = &warps[linear() / 32];
  const unsigned me = 1u << (linear() & 31);
  live--;
  w->live &= ~me;
  w->ready &= ~me;
  release_barrier();
  if (w->arrived && w->arrived == w->live) release_warp(w, w->arrived);
}

// 227 KiB of shared memory; what a launch gets of it ends where memory ends.
unsigned char *shared_memory(size_t bytes) {
  if (!plce_shared_end) {
    void *p = mmap(NULL, ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    plce_shared_end = (unsigned char *)p + ROOM;
    if (mprotect(plce_shared_end, 4096, PROT_NONE) != 0) abort();
  }
  return plce_shared_end - (bytes + 15) / 16 * 16;
}

void run_block(unsigned char *shared, size_t bytes) {
  memset(shared, PLCE_POISON, bytes);
  arrived = 0;
  live = threads;
  const unsigned count = (threads + 31) / 32;
  for (unsigned w = 0; w < count; w++) {
    const unsigned n = threads - w * 32;
    warps[w].live = warps[w].ready = n >= 32 ? 0xffffffffu : (1u << n) - 1;
    warps[w].arrived = 0;
  }
  for (unsigned t = 0; t < threads; t++) fibers[t].swaps = 0;
  while (live) {
    bool moved = false;
    for (unsigned i = 0; i < count; i++) {
      const unsigned w = backwards ? count - 1 - i : i;
      if (!warps[w].ready) continue;
      self = NULL;
      next_of(w, backwards ? 0 : 31);
      moved = true;
    }
    if (!moved) {
      fprintf(stderr, "cuda emulation: a barrier that not all threads reach\n");
      abort();
    }
  }
}

void run_grid(dim3 grid, size_t shared) {
  for (unsigned k = 0; k < grid.z; k++)
    for (unsigned j = 0; j < grid.y; j++)
      for (unsigned i = 0; i < grid.x; i++) {
        plce_block = backwards ? dim3(grid.x - 1 - i, grid.y - 1 - j, grid.z - 1 - k) : dim3(i, j, k);
        run_block(plce_shared, shared);
      }
}

} // namespace

unsigned char *plce_shared_end;

extern "C" {

dim3 plce_thread, plce_block, plce_block_size, plce_grid_size;
unsigned char *plce_shared;

int plce_lane(void) { return (int)(linear() & 31); }

void plce_barrier(void) {
  warps[linear() / 32].ready &= ~(1u << plce_lane());
  arrived++;
  if (arrived == live) release_barrier();
  else wait();
}

void plce_warp_barrier(unsigned mask) {
  Warp *w = &warps[linear() / 32];
  const unsigned me = 1u << plce_lane(), want = (mask | me) & w->live;
  w->arrived |= me;
  w->ready &= ~me;
  if ((w->arrived & want) == want) release_warp(w, want);
  else wait();
}

// What lane `lane` gave at this swap. Those of whole warps take turns at two slots: nobody is at the next but one while
// somebody still reads. Parts of warps use a third, and wait again.
static unsigned char *given(Warp *w, int lane, unsigned slot) { return w->slot[lane][slot]; }
static void put(void *to, const void *from, size_t n) {
  if (n == 4) memcpy(to, from, 4);
  else if (n == 8) memcpy(to, from, 8);
  else memcpy(to, from, n);
}
static unsigned give(Warp *w, unsigned mask, const void *v, size_t n) {
  const unsigned slot = mask == 0xffffffffu ? self->swaps++ & 1 : 2;
  put(given(w, plce_lane(), slot), v, n);
  plce_warp_barrier(mask);
  return slot;
}
static void taken(unsigned mask, unsigned slot) {
  if (slot == 2) plce_warp_barrier(mask);
}

void plce_swap(unsigned mask, const void *v, size_t n, int from, void *out) {
  Warp *w = &warps[linear() / 32];
  const unsigned slot = give(w, mask, v, n);
  put(out, given(w, from, slot), n);
  taken(mask, slot);
}

unsigned plce_ballot(unsigned mask, int v) {
  Warp *w = &warps[linear() / 32];
  int one = v != 0;
  const unsigned slot = give(w, mask, &one, sizeof one);
  unsigned all = 0;
  for (int i = 0; i < 32; i++)
    if ((mask >> i) & 1) {
      memcpy(&one, given(w, i, slot), sizeof one);
      all |= (unsigned)(one != 0) << i;
    }
  taken(mask, slot);
  return all;
}

void plce_bad_argument(const char *name, const void *p) {
  fprintf(stderr, "cuda emulation: %s got the host address %p\n", name, p);
  abort();
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int value) {
  long long most = SHARED;
  (void)plce_word("shared", &most);
  if (value < 0 || value > most) return plce_said(cudaErrorInvalidValue);
  if ((size_t)value > asked) asked = (size_t)value;
  return cudaSuccess;
}
// Kernels by name and how often each ran since that was last told; under plce_lock.
static struct {
  const char *name;
  long long times;
} launched[1024];
static void note_launch(const char *name) {
  for (auto &k : launched) {
    if (!k.name) k.name = name;
    if (strcmp(k.name, name) != 0) continue;
    k.times++;
    return;
  }
}
void plce_tell_launches(void) {
  long long all = 0;
  pthread_mutex_lock(&plce_lock);
  for (auto &k : launched) {
    if (k.times) printf("launches %lld %s\n", k.times, k.name);
    all += k.times;
    k.times = 0;
  }
  pthread_mutex_unlock(&plce_lock);
  printf("launches in all: %lld\n", all);
}
cudaError_t plce_run(dim3 grid, dim3 block, size_t shared, void (*body)(void *), void *context, const char *name) {
  static long long launches;
  unsigned n = block.x * block.y * block.z;
  if (n == 0 || n > MAX_THREADS || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535 || (shared > PLAIN_SHARED && shared > asked)) {
    fprintf(stderr, "cuda emulation: launch of %s with %u threads, grid %u %u %u, %zu bytes shared\n", name, n, grid.x, grid.y, grid.z,
            shared);
    return cudaErrorInvalidValue;
  }
  const int device = plce_current();
  if (plce_dead[device]) return plce_fault();
  long long fault = -1;
  const bool twice = plce_twice();
  pthread_mutex_lock(&plce_lock);
  note_launch(name);
  if (plce_word("fault", &fault) && ++launches == fault) plce_dead[device] = true; // noticed at the next wait
  if (plce_idle()) {
    pthread_mutex_unlock(&plce_lock);
    return cudaSuccess;
  }
  plce_shared = shared_memory(shared);
  kernel_body = body;
  kernel_context = context;
  plce_block_size = block;
  plce_grid_size = grid;
  threads = n;
  for (unsigned t = 0; t < n; t++) {
    prepare(&fibers[t]);
    fibers[t].index = dim3(t % block.x, t / block.x % block.y, t / block.x / block.y);
  }
  backwards = plce_word("reverse", NULL);
  plce_enter(device);
  plce_launch_begins(name);
  if (!plce_dead[device]) {
    if (twice) plce_keep();
    run_grid(grid, shared);
    if (twice) {
      plce_restore();
      backwards = !backwards;
      run_grid(grid, shared);
      plce_compare(name);
    }
  }
  plce_launch_ends();
  plce_leave(device);
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
} // extern "C"
