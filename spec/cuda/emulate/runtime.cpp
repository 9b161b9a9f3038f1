// SPDX-License-Identifier: MIT
// A device on the CPU, for tests: its memory and the CUDA runtime's functions. Memory is one reserved range that nobody but a
// running kernel or a copy may touch (PROT_NONE in between): host code that reads through a device pointer dies at that line.
// New memory and freed memory hold poison. PERILUNE_EMULATE, words separated by commas, plays a bad day:
//   no-driver, old-driver, no-device, memory=BYTES (of the device), fault=N (the N-th launch is an illegal access),
//   slow (work is done when somebody has asked three times whether something is),
//   open (memory stays accessible to everybody: what takes long takes less),
//   guard, twice (kernels are watched: guard.cpp), reverse (blocks and threads run in the opposite order)
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

pthread_mutex_t plce_lock = PTHREAD_MUTEX_INITIALIZER;
bool plce_dead;

bool plce_word(const char *word, long long *value) {
  const char *s = getenv("PERILUNE_EMULATE");
  size_t n = strlen(word);
  while (s && *s) {
    if (strncmp(s, word, n) == 0 && (s[n] == 0 || s[n] == ',' || s[n] == '=')) {
      if (value && s[n] == '=') *value = atoll(s + n + 1);
      return true;
    }
    s = strchr(s, ',');
    if (s) s++;
  }
  return false;
}

namespace {

const size_t RANGE = (size_t)64 << 30; // address space, not memory
const int FREED = 0xDD;
thread_local cudaError_t last = cudaSuccess;

// ---- memory: pieces side by side; free ones in lists by size, used ones found by their address

struct Piece {
  Piece *next, *prev; // neighbours in memory
  Piece *more;        // in its list
  char *at;
  size_t bytes;
  bool used;
};
char *base;
size_t high, in_use, capacity = (size_t)8 << 30;
Piece *top; // the highest piece
Piece *spare[64];        // free, by the logarithm of their size
Piece *taken[1 << 16];   // used, by address
int open_count;
bool stays_open;

int class_of(size_t n) {
  int c = 0;
  while (n >>= 1) c++;
  return c;
}
Piece **taken_list(const void *p) { return &taken[((uintptr_t)p >> 9) & 0xffff]; }
void unlink(Piece **list, Piece *p) {
  while (*list != p) list = &(*list)->more;
  *list = p->more;
}
void link(Piece **list, Piece *p) {
  p->more = *list;
  *list = p;
}

size_t page_round(size_t n) { return (n + 4095) & ~(size_t)4095; }

void start() {
  if (base) return;
  void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  base = (char *)p;
  long long bytes;
  if (plce_word("memory", &bytes)) capacity = (size_t)bytes;
  stays_open = plce_word("open", NULL) || plce_guards();
}

bool inside(const void *p, size_t n) {
  return plce_guarded(p) || ((const char *)p >= base && (const char *)p + n <= base + high);
}

// What is beyond n in a used piece becomes a free one.
void split(Piece *p, size_t n) {
  if (p->bytes < n + 4096) return;
  Piece *rest = (Piece *)calloc(1, sizeof *rest);
  rest->at = p->at + n;
  rest->bytes = p->bytes - n;
  rest->next = p->next;
  rest->prev = p;
  if (p->next) p->next->prev = rest;
  else top = rest;
  p->next = rest;
  p->bytes = n;
  link(&spare[class_of(rest->bytes)], rest);
}

Piece *find(size_t n) {
  for (int c = class_of(n); c < 64; c++)
    for (Piece *p = spare[c]; p; p = p->more)
      if (p->bytes >= n) {
        unlink(&spare[c], p);
        return p;
      }
  return NULL;
}

Piece *grow(size_t n) {
  if (high + n > RANGE) abort();
  Piece *p = (Piece *)calloc(1, sizeof *p);
  p->at = base + high;
  p->bytes = n;
  p->prev = top;
  if (top) top->next = p;
  top = p;
  high += n;
  mprotect(base, page_round(high), PROT_READ | PROT_WRITE);
  return p;
}

cudaError_t take(void **out, size_t n) {
  if (n > capacity - in_use || in_use > capacity) return cudaErrorMemoryAllocation;
  plce_enter();
  Piece *p = find(n);
  if (p) split(p, n);
  else p = grow(n);
  p->used = true;
  link(taken_list(p->at), p);
  in_use += p->bytes;
  memset(p->at, PLCE_POISON, p->bytes);
  plce_leave();
  *out = p->at;
  return cudaSuccess;
}

// p and the piece behind it, both free and in no list, are one.
void join(Piece *p, Piece *next) {
  p->bytes += next->bytes;
  p->next = next->next;
  if (next->next) next->next->prev = p;
  else top = p;
  free(next);
}

void give(Piece *p) {
  p->used = false;
  in_use -= p->bytes;
  if (p->next && !p->next->used) {
    unlink(&spare[class_of(p->next->bytes)], p->next);
    join(p, p->next);
  }
  if (p->prev && !p->prev->used) {
    Piece *before = p->prev;
    unlink(&spare[class_of(before->bytes)], before);
    join(before, p);
    p = before;
  }
  link(&spare[class_of(p->bytes)], p);
}

struct Pinned {
  Pinned *next;
  char *at;
  size_t bytes;
} *pinned;

double now_ms() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

} // namespace

// Kernels and copies run between these two.
void plce_enter() {
  if (open_count++ == 0 && high && !stays_open) mprotect(base, page_round(high), PROT_READ | PROT_WRITE);
}
void plce_leave() {
  if (--open_count == 0 && high && !stays_open) mprotect(base, page_round(high), PROT_NONE);
}


struct Noted {
  Noted *next;
  cudaError_t (*run)(void *);
  void *work;
};
struct plce_graph {
  Noted *first, **last;
  bool bad; // something happened that ends a capture on a GPU
};
struct plce_stream {
  plce_graph *graph;
  bool gone; // destroyed: kept, so that its use shows
  int asked;
  plce_stream *next; // of those that capture
};
struct plce_event {
  double at;
  int asked;
  bool captured;
};
static plce_stream *capturing;
bool plce_captures(void) { return capturing != NULL; }

// What a capture does not survive; on == NULL: of any stream.
static cudaError_t ends(plce_stream *on) {
  cudaError_t e = cudaSuccess;
  pthread_mutex_lock(&plce_lock);
  for (plce_stream *s = capturing; s; s = s->next)
    if (!on || s == on) s->graph->bad = true, e = cudaErrorStreamCaptureUnsupported;
  pthread_mutex_unlock(&plce_lock);
  return e;
}
static void there(plce_stream *s) {
  if (!s || !s->gone) return;
  fprintf(stderr, "cuda emulation: a stream is used that was destroyed\n");
  abort();
}
static int asks; // of anything, until now
static bool not_yet(int since) {
  if (!plce_word("slow", NULL) || ++asks - since >= 3) return false;
  last = cudaErrorNotReady;
  return true;
}
struct plce_pool { int unused; };

extern "C" {

bool plce_is_device(const void *p) {
  if (!p || inside(p, 0)) return true;
  for (Pinned *q = pinned; q; q = q->next)
    if ((const char *)p >= q->at && (const char *)p < q->at + q->bytes) return true;
  return false;
}

// ---- the runtime's functions

const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  default: return "cudaError";
  }
}
const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : cudaGetErrorName(e);
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last;
  last = cudaSuccess;
  return e;
}
static cudaError_t state(void) { return plce_dead ? cudaErrorIllegalAddress : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) {
  *v = plce_word("no-driver", NULL) ? 0 : plce_word("old-driver", NULL) ? 12020 : 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n) {
  *n = 0;
  if (plce_word("no-driver", NULL) || plce_word("old-driver", NULL)) return cudaErrorInsufficientDriver;
  if (plce_word("no-device", NULL)) return cudaErrorNoDevice;
  *n = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  start();
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr attr, int) {
  *v = attr == cudaDevAttrMultiProcessorCount ? 2 : attr == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int) {
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "emulation on the CPU");
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  const cudaError_t e = ends(NULL);
  return e == cudaSuccess ? state() : e;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
  *all = capacity;
  *left = capacity - in_use;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned) {
  Pinned *p = (Pinned *)calloc(1, sizeof *p);
  p->at = (char *)calloc(1, n);
  p->bytes = n;
  p->next = pinned;
  pinned = p;
  *out = p->at;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
  for (Pinned **at = &pinned; *at; at = &(*at)->next) {
    Pinned *q = *at;
    if (q->at != p) continue;
    *at = q->next;
    free(q->at);
    free(q);
    break;
  }
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned) {
  *out = host;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *) {
  *out = (cudaMemPool_t)calloc(1, sizeof **out);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attr, void *v) {
  if (attr != cudaMemPoolAttrReservedMemCurrent) return cudaErrorInvalidValue;
  *(uint64_t *)v = in_use;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMallocFromPoolAsync(void **out, size_t n, cudaMemPool_t, cudaStream_t s) {
  there(s);
  if (plce_notes(s)) return ends(s), cudaErrorStreamCaptureUnsupported;
  if (plce_dead) return cudaErrorIllegalAddress;
  pthread_mutex_lock(&plce_lock);
  cudaError_t e = take(out, (n + 511) & ~(size_t)511);
  pthread_mutex_unlock(&plce_lock);
  return last = e;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
  there(s);
  if (plce_notes(s)) return ends(s);
  pthread_mutex_lock(&plce_lock);
  Piece *q = *taken_list(p);
  while (q && q->at != p) q = q->more;
  if (q) {
    unlink(taken_list(p), q);
    plce_enter();
    memset(q->at, FREED, q->bytes);
    plce_leave();
    give(q);
  }
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
struct Copy { // or, from NULL, a fill
  void *to;
  const void *from;
  size_t n;
  int byte;
};
static cudaError_t copy_now(void *p) {
  const Copy *c = (const Copy *)p;
  if (plce_dead) return cudaErrorIllegalAddress;
  pthread_mutex_lock(&plce_lock);
  plce_enter();
  if (c->from) memmove(c->to, c->from, c->n);
  else memset(c->to, c->byte, c->n);
  plce_leave();
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
static cudaError_t copy_or_note(Copy c, cudaStream_t s) {
  if (!plce_notes(s)) return copy_now(&c);
  Copy *kept = (Copy *)malloc(sizeof c);
  *kept = c;
  return plce_note(s, copy_now, kept);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
  bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  if (inside(to, n) != to_device || inside(from, n) != from_device) return cudaErrorInvalidValue;
  return copy_or_note(Copy{to, from, n, 0}, s);
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s) {
  if (!inside(to, n)) return cudaErrorInvalidValue;
  return copy_or_note(Copy{to, NULL, n, byte}, s);
}

// ---- graphs

bool plce_notes(cudaStream_t s) {
  there(s);
  return s && s->graph;
}
cudaError_t plce_note(cudaStream_t s, cudaError_t (*run)(void *), void *work) {
  Noted *n = (Noted *)malloc(sizeof *n);
  *n = Noted{NULL, run, work};
  *s->graph->last = n;
  s->graph->last = &n->next;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  there(s);
  if (s->graph) return cudaErrorInvalidValue;
  s->graph = (plce_graph *)calloc(1, sizeof *s->graph);
  s->graph->last = &s->graph->first;
  pthread_mutex_lock(&plce_lock);
  s->next = capturing;
  capturing = s;
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
  there(s);
  plce_graph *g = s->graph;
  *out = NULL;
  if (!g) return cudaErrorInvalidValue;
  pthread_mutex_lock(&plce_lock);
  for (plce_stream **at = &capturing; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  s->graph = NULL;
  pthread_mutex_unlock(&plce_lock);
  if (g->bad) {
    (void)cudaGraphDestroy(g);
    return cudaErrorStreamCaptureInvalidated;
  }
  *out = g;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) { // takes what it holds
  *out = (cudaGraphExec_t)malloc(sizeof **out);
  **out = *graph;
  graph->first = NULL;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (plce_notes(s)) return ends(s);
  cudaError_t e = plce_dead ? cudaErrorIllegalAddress : cudaSuccess;
  for (Noted *n = exec->first; n && e == cudaSuccess; n = n->next) e = n->run(n->work);
  return e;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  for (Noted *n = graph->first, *next; n; n = next) {
    next = n->next;
    free(n->work);
    free(n);
  }
  free(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
  *out = (cudaStream_t)calloc(1, sizeof **out);
  (*out)->asked = asks;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) { return cudaStreamCreateWithFlags(out, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  there(s);
  s->gone = true;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return plce_notes(s) ? ends(s) : state(); }
cudaError_t cudaStreamQuery(cudaStream_t s) {
  if (plce_notes(s)) return ends(s);
  return not_yet(s->asked) ? cudaErrorNotReady : state();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (e->captured && !plce_notes(s)) (void)ends(NULL); // s would join the capture
  if (plce_notes(s) && !e->captured) (void)ends(s);
  return state();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  *out = (cudaEvent_t)calloc(1, sizeof **out);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  free(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  e->captured = plce_notes(s);
  e->at = now_ms();
  e->asked = asks;
  return state();
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return e->captured ? ends(NULL) : state(); }
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (e->captured) return ends(NULL);
  return e->at != 0 && not_yet(e->asked) ? cudaErrorNotReady : state();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = (float)(b->at - a->at);
  return state();
}
} // extern "C"
