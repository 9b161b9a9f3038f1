// SPDX-License-Identifier: MIT
// Streams, events and graphs of the emulated devices. Everything is done at once, but for streams that capture, and where
// PERILUNE_EMULATE says "late": then a stream keeps what is queued on it until somebody waits for it, so a copy or kernel
// that should have waited for another stream works on what is not there yet. Work is noted in both cases alike.
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct Noted {
  Noted *next;
  cudaError_t (*run)(void *);
  void *work;
  cudaStream_t wait; // instead of work: for that stream's marks up to `mark`
  long long mark;    // without wait: the stream has come so far
};
struct plce_graph {
  Noted *first, **last;
  bool bad; // something happened that ends a capture on a GPU
};
struct plce_stream {
  plce_graph *graph;
  int device;
  bool gone; // destroyed: kept, so that its use shows
  int asked;
  Noted *first, **last; // what it is late with
  long long marks, done;
  plce_stream *next; // of those that capture
  plce_stream *also; // of all
};
struct plce_event {
  double at;
  int asked, device;
  bool captured;
  plce_stream *on; // recorded there, as that mark
  long long mark;
};
static plce_stream *capturing, *all;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER; // of what streams are late with; before plce_lock
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_late;
static void look(void) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&queue, &a);
  is_late = plce_word("late", NULL);
}
static bool late(void) {
  pthread_once(&once, look);
  return is_late;
}

static double now_ms() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// What a capture does not survive; on == NULL: of any stream.
cudaError_t plce_ends(cudaStream_t on) {
  cudaError_t e = cudaSuccess;
  pthread_mutex_lock(&plce_lock);
  for (plce_stream *s = capturing; s; s = s->next)
    if (!on || s == on) s->graph->bad = true, e = cudaErrorStreamCaptureUnsupported;
  pthread_mutex_unlock(&plce_lock);
  return e;
}
static void there(cudaStream_t s) {
  if (!s || !s->gone) return;
  fprintf(stderr, "cuda emulation: a stream is used that was destroyed\n");
  abort();
}
static int asks; // of anything, until now
static bool not_yet(int since) {
  if (!plce_word("slow", NULL) || ++asks - since >= 3) return false;
  plce_said(cudaErrorNotReady);
  return true;
}

bool plce_captures(void) { return capturing != NULL; }
bool plce_is_captured(cudaStream_t s) {
  there(s);
  return s && s->graph;
}
int plce_stream_device(cudaStream_t s) { return s->device; }

// ---- late streams

// Does the first thing that the stream holds; reach: all up to that mark.
static void reach(plce_stream *s, long long mark);
static void one(plce_stream *s) {
  Noted *n = s->first;
  s->first = n->next;
  if (!s->first) s->last = &s->first;
  if (n->wait) reach(n->wait, n->mark);
  else if (n->run) {
    const int was = plce_work_of(s->device);
    (void)n->run(n->work);
    (void)plce_work_of(was);
  } else s->done = n->mark;
  free(n->work);
  free(n);
}
static void reach(plce_stream *s, long long mark) {
  while (s->first && s->done < mark) one(s);
}
// Somebody asks whether the stream has come to that mark: it does one thing more.
static bool has_come(plce_stream *s, long long mark) {
  pthread_mutex_lock(&queue);
  if (s->first && s->done < mark) one(s);
  while (s->first && !s->first->wait && !s->first->run) one(s);
  const bool come = s->done >= mark || !s->first;
  pthread_mutex_unlock(&queue);
  if (!come) plce_said(cudaErrorNotReady);
  return come;
}
static void add(plce_stream *s, Noted n) {
  Noted *kept = (Noted *)malloc(sizeof n);
  *kept = n;
  kept->next = NULL;
  if (!s->last) s->last = &s->first;
  *s->last = kept;
  s->last = &kept->next;
}
static long long mark(plce_stream *s) {
  add(s, Noted{NULL, NULL, NULL, NULL, ++s->marks});
  return s->marks;
}
void plce_drain(cudaStream_t s) {
  there(s);
  if (!late()) return;
  pthread_mutex_lock(&queue);
  reach(s, mark(s));
  pthread_mutex_unlock(&queue);
}

extern "C" {

cudaError_t cudaDeviceSynchronize(void) {
  const cudaError_t e = plce_ends(NULL);
  for (plce_stream *s = all; s; s = s->also)
    if (s->device == plce_current() && !s->gone) plce_drain(s);
  return e == cudaSuccess ? plce_state(plce_current()) : e;
}

// ---- work that is noted, and graphs

bool plce_notes(cudaStream_t s) {
  there(s);
  if (s->device != plce_current()) {
    fprintf(stderr, "cuda emulation: work of device %d goes to a stream of device %d\n", plce_current(), s->device);
    abort();
  }
  return s->graph || late();
}
cudaError_t plce_note(cudaStream_t s, cudaError_t (*run)(void *), void *work) {
  if (!s->graph) {
    pthread_mutex_lock(&queue);
    add(s, Noted{NULL, run, work, NULL, 0});
    pthread_mutex_unlock(&queue);
    return plce_state(s->device);
  }
  Noted *n = (Noted *)malloc(sizeof *n);
  *n = Noted{NULL, run, work, NULL, 0};
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
static cudaError_t launch(void *p) {
  cudaError_t e = cudaSuccess;
  for (Noted *n = (*(cudaGraphExec_t *)p)->first; n && e == cudaSuccess; n = n->next) e = n->run(n->work);
  return e;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  if (plce_is_captured(s)) return plce_ends(s);
  if (plce_dead[s->device]) return plce_fault();
  if (!plce_notes(s)) return launch(&exec);
  cudaGraphExec_t *kept = (cudaGraphExec_t *)malloc(sizeof exec);
  *kept = exec;
  return plce_note(s, launch, kept);
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
  plce_touch();
  *out = (cudaStream_t)calloc(1, sizeof **out);
  (*out)->asked = asks;
  (*out)->device = plce_current();
  pthread_mutex_lock(&plce_lock);
  (*out)->also = all;
  all = *out;
  pthread_mutex_unlock(&plce_lock);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) { return cudaStreamCreateWithFlags(out, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  plce_drain(s);
  s->gone = true;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (plce_is_captured(s)) return plce_ends(s);
  plce_drain(s);
  return plce_state(s->device);
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  if (plce_is_captured(s)) return plce_ends(s);
  if (not_yet(s->asked) || (late() && !has_come(s, s->marks + 1))) return cudaErrorNotReady;
  return plce_state(s->device);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (e->captured && !plce_is_captured(s)) (void)plce_ends(NULL); // s would join the capture
  if (plce_is_captured(s) && !e->captured) (void)plce_ends(s);
  if (late() && !plce_is_captured(s) && e->on) {
    pthread_mutex_lock(&queue);
    add(s, Noted{NULL, NULL, NULL, e->on, e->mark});
    pthread_mutex_unlock(&queue);
  }
  return plce_state(s->device);
}
int plce_events, plce_event_waits; // that exist; by the host, since the start: plant.cpp tells them
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
  __atomic_add_fetch(&plce_events, 1, __ATOMIC_RELAXED);
  *out = (cudaEvent_t)calloc(1, sizeof **out);
  (*out)->device = plce_current();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  __atomic_sub_fetch(&plce_events, 1, __ATOMIC_RELAXED);
  free(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  e->captured = plce_is_captured(s);
  if (e->device != s->device) return cudaErrorInvalidResourceHandle;
  e->at = now_ms();
  e->asked = asks;
  if (late() && !e->captured) {
    pthread_mutex_lock(&queue);
    e->on = s;
    e->mark = mark(s);
    pthread_mutex_unlock(&queue);
  }
  return plce_state(s->device);
}
static void wait_for(cudaEvent_t e) {
  if (!late() || !e->on) return;
  pthread_mutex_lock(&queue);
  reach(e->on, e->mark);
  pthread_mutex_unlock(&queue);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  __atomic_add_fetch(&plce_event_waits, 1, __ATOMIC_RELAXED);
  if (e->captured) return plce_ends(NULL);
  wait_for(e);
  return plce_state(e->device);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (e->captured) return plce_ends(NULL);
  if (e->at != 0 && not_yet(e->asked)) return cudaErrorNotReady;
  if (late() && e->on && !has_come(e->on, e->mark)) return cudaErrorNotReady;
  return plce_state(e->device);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = (float)(b->at - a->at);
  return plce_state(a->device);
}
} // extern "C"
