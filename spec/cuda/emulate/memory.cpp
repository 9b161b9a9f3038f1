// SPDX-License-Identifier: MIT
// Memory of the emulated devices. Each has one reserved range that nobody but its running kernel or a copy may touch (PROT_NONE
// in between): host code that reads through a device pointer dies at that line, and so does a kernel that reads another
// device's memory. New memory and freed memory hold poison.
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {

const size_t RANGE = (size_t)64 << 30; // address space of each, not memory
const int FREED = 0xDD;

// Pieces side by side; free ones in lists by size, used ones found by their address.
struct Piece {
  Piece *next, *prev; // neighbours in memory
  Piece *more;        // in its list
  char *at;
  size_t bytes;
  bool used;
};
struct Memory {
  char *base;
  size_t high, in_use;
  Piece *top;            // the highest piece
  Piece *spare[64];      // free, by the logarithm of their size
  Piece *taken[1 << 16]; // used, by address
  int open_count;
} memory[PLCE_DEVICES];
size_t capacity = (size_t)8 << 30;
bool stays_open, idle;

int class_of(size_t n) {
  int c = 0;
  while (n >>= 1) c++;
  return c;
}
Piece **taken_list(Memory *m, const void *p) { return &m->taken[((uintptr_t)p >> 9) & 0xffff]; }
void unlink(Piece **list, Piece *p) {
  while (*list != p) list = &(*list)->more;
  *list = p->more;
}
void link(Piece **list, Piece *p) {
  p->more = *list;
  *list = p;
}

// Large pages, where the system has them: device memory is opened and closed around every launch, and the kernel of the system
// then walks over one entry where it had 512.
const size_t LARGE = (size_t)2 << 20;
size_t page_round(size_t n) { return (n + LARGE - 1) & ~(LARGE - 1); }

// What is beyond n in a used piece becomes a free one.
void split(Memory *m, Piece *p, size_t n) {
  if (p->bytes < n + 4096) return;
  Piece *rest = (Piece *)calloc(1, sizeof *rest);
  rest->at = p->at + n;
  rest->bytes = p->bytes - n;
  rest->next = p->next;
  rest->prev = p;
  if (p->next) p->next->prev = rest;
  else m->top = rest;
  p->next = rest;
  p->bytes = n;
  link(&m->spare[class_of(rest->bytes)], rest);
}

Piece *find(Memory *m, size_t n) {
  for (int c = class_of(n); c < 64; c++)
    for (Piece *p = m->spare[c]; p; p = p->more)
      if (p->bytes >= n) {
        unlink(&m->spare[c], p);
        return p;
      }
  return NULL;
}

Piece *grow(Memory *m, size_t n) {
  if (m->high + n > RANGE) abort();
  Piece *p = (Piece *)calloc(1, sizeof *p);
  p->at = m->base + m->high;
  p->bytes = n;
  p->prev = m->top;
  if (m->top) m->top->next = p;
  m->top = p;
  m->high += n;
  mprotect(m->base, page_round(m->high), PROT_READ | PROT_WRITE);
  return p;
}

// p and the piece behind it, both free and in no list, are one.
void join(Memory *m, Piece *p, Piece *next) {
  p->bytes += next->bytes;
  p->next = next->next;
  if (next->next) next->next->prev = p;
  else m->top = p;
  free(next);
}

void give(Memory *m, Piece *p) {
  p->used = false;
  m->in_use -= p->bytes;
  if (p->next && !p->next->used) {
    unlink(&m->spare[class_of(p->next->bytes)], p->next);
    join(m, p, p->next);
  }
  if (p->prev && !p->prev->used) {
    Piece *before = p->prev;
    unlink(&m->spare[class_of(before->bytes)], before);
    join(m, before, p);
    p = before;
  }
  link(&m->spare[class_of(p->bytes)], p);
}

struct Pinned {
  Pinned *next;
  char *at;
  size_t bytes;
} *pinned;

} // namespace

void plce_memory_start(int device) {
  Memory *m = &memory[device];
  pthread_mutex_lock(&plce_lock);
  if (!m->base) {
    void *p = mmap(NULL, RANGE + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    m->base = (char *)page_round((size_t)p);
    madvise(m->base, RANGE, MADV_HUGEPAGE);
    long long bytes;
    if (plce_word("memory", &bytes)) capacity = (size_t)bytes;
    idle = plce_word("idle", NULL);
    stays_open = idle || plce_word("open", NULL) || plce_word("guard", NULL) || plce_word("twice", NULL);
  }
  pthread_mutex_unlock(&plce_lock);
}

int plce_owner(const void *p, size_t n) {
  if (plce_guarded(p) >= 0) return plce_guarded(p);
  for (int d = 0; d < PLCE_DEVICES; d++) {
    const Memory *m = &memory[d];
    if (m->base && (const char *)p >= m->base && (const char *)p + n <= m->base + m->high) return d;
  }
  return -1;
}

bool plce_is_pinned(const void *p) {
  bool is = false;
  pthread_mutex_lock(&plce_lock);
  for (const Pinned *q = pinned; q && !is; q = q->next) is = (const char *)p >= q->at && (const char *)p < q->at + q->bytes;
  pthread_mutex_unlock(&plce_lock);
  return is;
}

void plce_enter(int device) {
  Memory *m = &memory[device];
  if (m->open_count++ == 0 && m->high && !stays_open) mprotect(m->base, page_round(m->high), PROT_READ | PROT_WRITE);
}
void plce_leave(int device) {
  Memory *m = &memory[device];
  if (--m->open_count == 0 && m->high && !stays_open) mprotect(m->base, page_round(m->high), PROT_NONE);
}

cudaError_t plce_take(int device, void **out, size_t n) {
  Memory *m = &memory[device];
  if (n > capacity - m->in_use || m->in_use > capacity) return cudaErrorMemoryAllocation;
  plce_enter(device);
  Piece *p = find(m, n);
  if (p) split(m, p, n);
  else p = grow(m, n);
  p->used = true;
  link(taken_list(m, p->at), p);
  m->in_use += p->bytes;
  if (!idle) memset(p->at, PLCE_POISON, p->bytes);
  plce_leave(device);
  *out = p->at;
  return cudaSuccess;
}

void plce_give(void *p) {
  const int device = plce_owner(p, 1);
  if (device < 0) return;
  Memory *m = &memory[device];
  Piece *q = *taken_list(m, p);
  while (q && q->at != p) q = q->more;
  if (!q) return;
  unlink(taken_list(m, p), q);
  plce_enter(device);
  if (!idle) memset(q->at, FREED, q->bytes);
  plce_leave(device);
  give(m, q);
}

bool plce_idle(void) { return idle; }
size_t plce_in_use(int device) { return memory[device].in_use; }
size_t plce_capacity(void) {
  long long bytes;
  return plce_word("memory", &bytes) ? (size_t)bytes : capacity;
}

extern "C" {

bool plce_is_device(const void *p) {
  if (!p || plce_is_pinned(p)) return true;
  const int d = plce_owner(p, 0);
  if (d < 0 || d == plce_current()) return d >= 0;
  fprintf(stderr, "cuda emulation: memory of device %d is used by work of device %d\n", d, plce_current());
  abort();
}
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned) {
  long long most;
  plce_touch();
  if (plce_word("pinned", &most) && n > (size_t)most) return plce_said(cudaErrorMemoryAllocation);
  Pinned *p = (Pinned *)calloc(1, sizeof *p);
  p->at = (char *)calloc(1, n);
  p->bytes = n;
  pthread_mutex_lock(&plce_lock);
  p->next = pinned;
  pinned = p;
  pthread_mutex_unlock(&plce_lock);
  *out = p->at;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
  pthread_mutex_lock(&plce_lock);
  for (Pinned **at = &pinned; *at; at = &(*at)->next) {
    Pinned *q = *at;
    if (q->at != p) continue;
    *at = q->next;
    memset(q->at, FREED, q->bytes);
    free(q->at);
    free(q);
    break;
  }
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned) {
  *out = host;
  return cudaSuccess;
}
} // extern "C"
