// SPDX-License-Identifier: MIT
// For tests: the table of captured work (kernels/capture.h). What a capture notes are the calls of kernel families and copies
// with deep copies of what describes them; a launch makes them again, on the same addresses.
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"
extern "C" {
#include "kernels/capture.h"
#include "kernels/cuda/runtime.h"
#include "spec/cuda/emulate/record.h"
}

struct Entry {
  Entry *next;
  void (*free_it)(Entry *e);
  PlStatus (*again)(Entry *e);
};

struct PlkCaptured {
  PlcOwner *owner;
  Entry *first, **last;
};
static PlkCaptured *now;
static bool replaying;

bool plce_recording(void) { return now && !replaying; }
extern "C" bool plc_capturing(void) { return now != NULL; }

static void note(Entry *e) {
  e->next = NULL;
  *now->last = e;
  now->last = &e->next;
}

// ---- calls of families -------------------------------------------------------------------------------------------

struct CallEntry {
  Entry e;
  int family;
  PlkCall call;
  PlAttrs attrs;
  PlArray *arrays;
  int64_t *dims;
  const PlArray **in;
  PlArray **out;
  void **numbers;
};

static void free_call(Entry *e) {
  CallEntry *c = (CallEntry *)e;
  for (int i = 0; i < c->call.nin; i++) free(c->numbers[i]);
  free(c->numbers);
  free(c->arrays);
  free(c->dims);
  free((void *)c->in);
  free(c->out);
  free(c);
}
static PlStatus call_again(Entry *e) { return plc_run_id(((CallEntry *)e)->family, &((CallEntry *)e)->call); }

static PlArray *kept(CallEntry *c, int at, const PlArray *a) {
  if (!a) return NULL;
  PlArray *k = &c->arrays[at];
  int64_t *d = c->dims + (size_t)at * 2 * PL_MAX_DIM;
  *k = *a;
  memcpy(d, a->shape, a->ndim * sizeof(int64_t));
  memcpy(d + PL_MAX_DIM, a->strides, a->ndim * sizeof(int64_t));
  k->shape = d;
  k->strides = d + PL_MAX_DIM;
  return k;
}

extern "C" bool plc_record_call(int family, const PlkCall *call) {
  if (!plce_recording()) return false;
  CallEntry *c = (CallEntry *)calloc(1, sizeof *c);
  const size_t n = (size_t)(call->nin + call->nout) + 1;
  c->e.free_it = free_call;
  c->e.again = call_again;
  c->family = family;
  c->call = *call;
  c->arrays = (PlArray *)calloc(n, sizeof(PlArray));
  c->dims = (int64_t *)calloc(n * 2 * PL_MAX_DIM, sizeof(int64_t));
  c->in = (const PlArray **)calloc(n, sizeof(PlArray *));
  c->out = (PlArray **)calloc(n, sizeof(PlArray *));
  c->numbers = (void **)calloc(n, sizeof(void *));
  for (int i = 0; i < call->nin; i++) {
    PlArray *k = kept(c, i, call->in[i]);
    c->in[i] = k;
    if (!k || k->device != PL_CPU || k->numel == 0) continue; // a number: its value counts now
    const size_t size = (size_t)k->numel * pl_dtype_size((PlDtype)k->dtype);
    c->numbers[i] = malloc(size);
    memcpy(c->numbers[i], k->data, size);
    k->data = c->numbers[i];
  }
  for (int o = 0; o < call->nout; o++) c->out[o] = kept(c, call->nin + o, call->out[o]);
  c->call.in = c->in;
  c->call.out = c->out;
  if (call->attrs) {
    c->attrs = *call->attrs;
    c->call.attrs = &c->attrs;
  }
  note(&c->e);
  return true;
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

struct BytesEntry {
  Entry e;
  void *dst;
  const void *src; // NULL: kept bytes, or a fill
  int byte;
  size_t n;
  char *bytes;
};
static void free_bytes(Entry *e) {
  free(((BytesEntry *)e)->bytes);
  free(e);
}
static PlStatus bytes_again(Entry *e) {
  BytesEntry *b = (BytesEntry *)e;
  if (b->bytes) return plc_upload(b->dst, b->bytes, b->n);
  cudaError_t r = b->src ? cudaMemcpyAsync(b->dst, b->src, b->n, cudaMemcpyDeviceToDevice, plc_stream())
                         : cudaMemsetAsync(b->dst, b->byte, b->n, plc_stream());
  return r == cudaSuccess ? PL_OK : plc_failed(r, "repeating", __FILE__, __LINE__);
}
static BytesEntry *bytes_entry(void *dst, size_t n) {
  BytesEntry *b = (BytesEntry *)calloc(1, sizeof *b);
  b->e.free_it = free_bytes;
  b->e.again = bytes_again;
  b->dst = dst;
  b->n = n;
  note(&b->e);
  return b;
}
extern "C" PlStatus plc_capture_upload(void *dst, const void *src, size_t n) {
  if (!plce_recording()) PL_FAIL(PL_ERR_STATE, "no capture runs");
  BytesEntry *b = bytes_entry(dst, n);
  b->bytes = (char *)malloc(n);
  memcpy(b->bytes, src, n);
  return PL_OK;
}
extern "C" bool plc_record_bytes(void *dst, const void *src, int byte, size_t n) {
  if (!plce_recording()) return false;
  BytesEntry *b = bytes_entry(dst, n);
  b->src = src;
  b->byte = byte;
  return true;
}

// ---- fused groups -----------------------------------------------------------------------------------------------------

struct FusedEntry {
  Entry e;
  void (*run)(const void *kernel, int64_t packs, const void *args);
  const void *kernel;
  int64_t packs;
  void *args;
};
static void free_fused(Entry *e) {
  free(((FusedEntry *)e)->args);
  free(e);
}
static PlStatus fused_again(Entry *e) {
  FusedEntry *f = (FusedEntry *)e;
  f->run(f->kernel, f->packs, f->args);
  return PL_OK;
}
bool plce_record_fused(void (*run)(const void *, int64_t, const void *), const void *kernel, int64_t packs, const void *args,
                       size_t size) {
  if (!plce_recording()) return false;
  FusedEntry *f = (FusedEntry *)calloc(1, sizeof *f);
  f->e.free_it = free_fused;
  f->e.again = fused_again;
  f->run = run;
  f->kernel = kernel;
  f->packs = packs;
  f->args = malloc(size);
  memcpy(f->args, args, size);
  note(&f->e);
  return true;
}

// ---- the table -----------------------------------------------------------------------------------------------------------

static void release(PlkCaptured *c) {
  if (!c) return;
  for (Entry *e = c->first, *next; e; e = next) {
    next = e->next;
    e->free_it(e);
  }
  plc_owner_end(c->owner);
  free(c);
}
static PlStatus begin(void) {
  PlkCaptured *c = (PlkCaptured *)calloc(1, sizeof *c);
  PlStatus s = plc_owner_begin(&c->owner);
  c->last = &c->first;
  if (s != PL_OK) {
    free(c);
    return s;
  }
  now = c;
  return PL_OK;
}
static PlStatus end(PlkCaptured **out) {
  plc_owner_pause();
  *out = now;
  now = NULL;
  return PL_OK;
}
static PlStatus launch(PlkCaptured *c) {
  PlStatus s = PL_OK;
  for (Entry *e = c->first; e && s == PL_OK; e = e->next) s = e->again(e);
  return s;
}
const void *plce_capture_table(void) {
  static const PlkCaptureTable table = {begin, end, launch, release};
  return &table;
}
