/* SPDX-License-Identifier: MIT
 * A graph on the device as one captured piece of work: see device_run.h. What is noted are kernels with addresses, so inputs
 * have tensors of their own that every call's are copied into, results are copied out, and captured tensors (parameters)
 * must be where they were, and captured numbers be what they were: else the work is captured again. Random numbers go on from
 * where the generator is, and updates read their settings (an optimizer's rate and step count) anew each time, where the
 * device's kernels can. What would be frozen though it changes is no part of such a graph, and then nodes run one by one: host
 * tensors that the script may change, ops that look at values or run on the CPU. Updates whose settings change from run to run
 * and that cannot follow them, and all nodes behind them, run after the captured part. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/graph/plan/plan.h"
#include "engine/graph/run/device_run_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/capture.h"

enum { WARM = 3, MOST_AGAIN = 16 }; /* runs one by one first: libraries choose their algorithms, kernels are loaded */

struct PlDeviceCapture {
  const PlkCaptureTable *table; /* NULL: no further try */
  char why[160];                /* "captured", or why not */
  int runs;
  uint8_t device; /* of all of it */
  PlkCaptured *work;
  PlTensor **in, **kept; /* the tensors that stay: copies of arguments; per value: what the captured nodes made */
  uint64_t *settings;    /* per node that writes in place: hash of its attributes */
  int32_t tail;          /* the first node that is not captured; nnodes: all are */
  const void **at;       /* per value: the address of a captured leaf */
  uint64_t *number;      /* per value: the bits of a captured number on the host */
  int again;             /* captures since the first because something moved */
  uint32_t modes;        /* what libraries were allowed */
  uint64_t draws;        /* how far the captured part moves the generator */
  uint64_t *drawn;       /* per draw: where it began, counted from the run's begin */
};

const char *pl_device_run_how(const PlDeviceRun *a) {
  if (!a->capture) return "not captured: it has not run";
  return a->capture->why;
}

static void forget_work(PlDeviceRun *a) {
  struct PlDeviceCapture *c = a->capture;
  if (c->table) c->table->release(c->work);
  c->work = NULL;
  for (PlGVal v = 0; c->kept && v < a->f->nvals; v++) {
    pl_tensor_release(c->kept[v]);
    c->kept[v] = NULL;
  }
}

static void forget(PlDeviceRun *a) {
  struct PlDeviceCapture *c = a->capture;
  forget_work(a);
  for (int32_t i = 0; c->in && i < a->f->ninputs; i++) pl_tensor_release(c->in[i]);
  free(c->in);
  free(c->kept);
  c->in = c->kept = NULL;
}

void pl_device_capture_free(PlDeviceRun *a) {
  if (!a->capture) return;
  forget(a);
  free(a->capture->at);
  free(a->capture->number);
  free(a->capture->settings);
  free(a->capture->drawn);
  free(a->capture);
}

static void never(PlDeviceRun *a, const char *what, const char *why) {
  forget(a);
  a->capture->table = NULL;
  snprintf(a->capture->why, sizeof a->capture->why, "not captured: %s%s", what, why);
}

/* ---- what can be captured ------------------------------------------------------------------------------------- */

static bool has_kernel(const PlGNode *n) {
  return n->op->cls == PL_VIEW || n->op->expand || (n->op->flags & (PL_F_SIZES | PL_F_CROSSES)) || pl_op_on_device(n->op);
}

/* Sizes are the same at every run; other values that an op looks at may change. */
static bool looks_at_values(const PlGraph *f, const PlGNode *n) {
  if (n->op->flags & PL_F_IMPURE) return true;
  for (int32_t k = 0; k < n->nin && k < 8; k++) {
    if (!((n->op->reads_values >> k) & 1) || n->in[k] < 0) continue;
    const PlGValue *v = &f->vals[n->in[k]];
    if (v->kind == PL_FV_CONST || (v->kind == PL_FV_NODE && (f->nodes[v->node].op->flags & PL_F_SIZES))) continue;
    return true;
  }
  return false;
}

/* Writes why not. */
static bool allowed(PlDeviceRun *a, PlTensor *const *in) {
  const PlGraph *f = a->f;
  uint8_t *device = &a->capture->device;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    const char *why = looks_at_values(f, n)         ? " looks at values"
                      : (n->op->flags & PL_F_MOVES) ? " moves between devices"
                      : !has_kernel(n)              ? " runs on the CPU"
                                                    : NULL;
    if (why) return never(a, n->op->name, why), false;
    for (int32_t k = 0; k < pl_gnode_written(n); k++) {
      const PlGValue *root = &f->vals[f->stores[f->vals[n->in[k]].store].first];
      if (root->kind == PL_FV_INPUT) return never(a, n->op->name, " writes into an argument"), false;
      if (root->kind == PL_FV_CAPTURE && root->real->a.device == PL_CPU)
        return never(a, n->op->name, " writes into a tensor on the CPU"), false;
    }
  }
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    const PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->kind == PL_FV_CAPTURE ? val->real : NULL;
    if (t && *device && t->a.device && t->a.device != *device) return never(a, "its tensors are on several devices", ""), false;
    if (t) *device = pl_device_first(*device, t->a.device);
    if (!t || t->a.device != PL_CPU) continue;
    if (val->kind == PL_FV_CAPTURE && t->a.numel == 1) continue; /* a number: looked at before every run */
    if (val->kind == PL_FV_CAPTURE) return never(a, "it reads a tensor on the CPU", ""), false;
    if (t->a.ndim > 0) return never(a, "an argument is on the CPU", ""), false;
  }
  return true;
}

/* ---- capturing ------------------------------------------------------------------------------------------------- */

static uint64_t bits_of(const PlTensor *t) {
  uint64_t bits = 0;
  if (t->a.device == PL_CPU && t->a.numel == 1) memcpy(&bits, t->a.data, pl_dtype_size((PlDtype)t->a.dtype));
  return bits;
}

static PlStatus copy_in(PlDeviceRun *a, PlTensor *const *in) {
  for (int32_t i = 0; i < a->f->ninputs; i++) PL_TRY(pl_copy_arrays(&a->capture->in[i]->a, &in[i]->a));
  return PL_OK;
}

static PlStatus make_inputs(PlDeviceRun *a, PlTensor *const *in) {
  struct PlDeviceCapture *c = a->capture;
  c->in = calloc((size_t)a->f->ninputs + 1, sizeof(PlTensor *));
  c->kept = calloc((size_t)a->f->nvals + 1, sizeof(PlTensor *));
  if (!c->in || !c->kept) PL_FAIL(PL_ERR_OOM, "out of memory to capture a graph");
  for (int32_t i = 0; i < a->f->ninputs; i++)
    PL_TRY(pl_tensor_empty_as(&c->in[i], pl_channels_last(&in[i]->a), pl_on_gpu(in[i]->a.device) ? in[i]->a.device : c->device,
                              (PlDtype)in[i]->a.dtype, in[i]->a.ndim, in[i]->a.shape));
  return PL_OK;
}

/* Numbers drawn on the CPU would be the same at every repetition. Known once it has run. */
static bool draws_elsewhere(PlDeviceRun *a) {
  for (int32_t i = 0; i < a->f->nnodes; i++) {
    const PlGNode *n = &a->f->nodes[i];
    if (n->draw < 0 || pl_on_gpu(a->device[n->first])) continue;
    never(a, n->op->name, " draws random numbers on the CPU");
    return true;
  }
  return false;
}

/* Notes the nodes before the tail. Versions of what they write move as they run, which was for nothing if the work is not
 * captured; the generator ends where it began. */
static PlStatus note(PlDeviceRun *a, const PlkCaptureRoom *room) {
  struct PlDeviceCapture *c = a->capture;
  const PlkRng begin = pl_rng_take(0);
  PlkCaptured *work = NULL;
  PL_TRY(c->table->begin(pl_gpu_index(c->device), &begin, room));
  a->noting = c->table;
  PlStatus s = pl_device_run_until(a, c->tail, c->in, c->kept);
  a->noting = NULL;
  PlStatus e = c->table->end(&work);
  if (s == PL_OK) s = e;
  if (s != PL_OK) c->table->release(work);
  else c->work = work;
  c->draws = pl_state.offset - begin.offset;
  pl_state.offset = begin.offset;
  for (int32_t d = 0; d < a->f->ndraws; d++) c->drawn[d] = a->drawn[d] - begin.offset;
  return s;
}

/* Places for the pieces of memory that the noted work takes, with the planner of arenas. *own: to be freed. */
static PlStatus plan_room(const struct PlDeviceCapture *c, PlkCaptureRoom *room, PlkCapturePiece **own) {
  const PlkCapturePiece *piece = c->table->pieces(c->work, &room->n);
  const size_t n = (size_t)room->n;
  PlBuffer *b = calloc(n + 1, sizeof *b), **list = malloc((n + 1) * sizeof *list);
  int64_t most;
  *own = malloc((n + 1) * sizeof **own);
  PlStatus s = b && list && *own ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to capture a graph");
  for (size_t k = 0; k < n && s == PL_OK; k++) {
    b[k] = (PlBuffer){.bytes = piece[k].bytes, .birth = (int32_t)piece[k].birth};
    b[k].death = piece[k].death < INT32_MAX ? (int32_t)piece[k].death : INT32_MAX;
    list[k] = &b[k];
  }
  if (s == PL_OK) s = pl_arena_place((int32_t)n, list, &room->bytes, &most);
  for (size_t k = 0; k < n && s == PL_OK; k++) (*own)[k] = piece[k], (*own)[k].at = b[k].at;
  room->piece = *own;
  free(b);
  free(list);
  return s;
}

/* Noted once for the memory that it takes, then in one block where that has its places. */
static PlStatus note_in_room(PlDeviceRun *a) {
  struct PlDeviceCapture *c = a->capture;
  PlkCaptureRoom room = {0};
  PlkCapturePiece *own = NULL;
  PL_TRY(note(a, NULL));
  PlStatus s = plan_room(c, &room, &own);
  forget_work(a);
  if (s == PL_OK) s = note(a, &room);
  free(own);
  return s;
}

static PlStatus capture(PlDeviceRun *a, PlTensor *const *in) {
  struct PlDeviceCapture *c = a->capture;
  PL_TRY(make_inputs(a, in));
  PL_TRY(pl_device_run_until(a, 0, c->in, c->kept)); /* groups are compiled before anything is noted */
  PL_TRY(note_in_room(a));
  for (PlGVal v = 0; v < a->f->nvals; v++) {
    const PlGValue *val = &a->f->vals[v];
    c->at[v] = val->kind == PL_FV_CAPTURE ? val->real->a.data : NULL;
    c->number[v] = val->kind == PL_FV_CAPTURE ? bits_of(val->real) : 0;
  }
  if (c->tail < a->f->nnodes)
    snprintf(c->why, sizeof c->why, "captured, but for %s and what is behind it: its settings change", a->f->nodes[c->tail].op->name);
  else snprintf(c->why, sizeof c->why, "captured");
  return PL_OK;
}

/* FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash_of(const PlAttrs *attrs) {
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t k = 0; k < pl_attrs_size(attrs); k++) h = (h ^ ((const unsigned char *)attrs)[k]) * 0x100000001B3u;
  return h;
}

/* A number for the settings of an update that must not change under captured work. */
static uint64_t frozen(const struct PlDeviceCapture *c, const PlGNode *n) {
  int64_t few;
  if (c->table->follows(n->op->family ? n->op->family : n->op->name, n->attrs, &few)) return (uint64_t)few + 1;
  return hash_of(n->attrs);
}

/* Notes the settings of updates; one that changed since the last run, and what is behind it, is captured no more. */
static bool settings_moved(PlDeviceRun *a) {
  struct PlDeviceCapture *c = a->capture;
  const int32_t tail = c->tail;
  for (int32_t i = 0; i < a->f->nnodes; i++) {
    const PlGNode *n = &a->f->nodes[i];
    if (!(n->flags & PL_FN_MUTATES) || !n->attrs) continue;
    const uint64_t h = frozen(c, n);
    if (c->settings[i] && c->settings[i] != h && i < c->tail) c->tail = i;
    c->settings[i] = h;
  }
  return c->tail < tail;
}

static bool moved(const PlDeviceRun *a) {
  for (PlGVal v = 0; v < a->f->nvals; v++) {
    const PlGValue *val = &a->f->vals[v];
    if (val->kind != PL_FV_CAPTURE) continue;
    if (val->real->a.data != a->capture->at[v] || bits_of(val->real) != a->capture->number[v]) return true;
  }
  return false;
}

/* ---- repeating --------------------------------------------------------------------------------------------------- */

/* Tensors that the work writes into have new contents. */
static void touch(const PlGraph *f, int32_t tail) {
  for (int32_t i = 0; i < tail; i++) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < pl_gnode_written(n); k++) {
      const PlGValue *root = &f->vals[f->stores[f->vals[n->in[k]].store].first];
      if (root->kind == PL_FV_CAPTURE) root->real->storage->version++;
    }
  }
}

static PlStatus repeat(PlDeviceRun *a, PlTensor *const *in, PlTensor **out) {
  struct PlDeviceCapture *c = a->capture;
  const PlkRng rng = pl_rng_take(0);
  PL_TRY(copy_in(a, in));
  PL_TRY(c->table->launch(c->work, &rng));
  a->done = c->tail;
  (void)pl_rng_take(c->draws);
  for (int32_t d = 0; d < a->f->ndraws; d++) a->drawn[d] = rng.offset + c->drawn[d]; /* for draws behind it that repeat one */
  touch(a->f, c->tail);
  return pl_device_run_from(a, c->tail, c->kept, c->in, out);
}

static PlStatus begin(PlDeviceRun *a, PlTensor *const *in) {
  const char *off = getenv("PERILUNE_CUDA_GRAPHS");
  struct PlDeviceCapture *c = calloc(1, sizeof *c);
  if (!c) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  a->capture = c;
  c->at = calloc((size_t)a->f->nvals + 1, sizeof *c->at);
  c->number = calloc((size_t)a->f->nvals + 1, sizeof *c->number);
  c->settings = calloc((size_t)a->f->nnodes + 1, sizeof *c->settings);
  c->drawn = calloc((size_t)a->f->ndraws + 1, sizeof *c->drawn);
  c->tail = a->f->nnodes;
  c->modes = pl_device_modes();
  if (!c->at || !c->number || !c->settings || !c->drawn) PL_FAIL(PL_ERR_OOM, "out of memory to run a graph on the device");
  c->table = pl_device_open()->extension("capture");
  if (!c->table) never(a, "this plug-in cannot", "");
  else if (off && strcmp(off, "0") == 0) never(a, "PERILUNE_CUDA_GRAPHS=0", "");
  else if (allowed(a, in)) snprintf(c->why, sizeof c->why, "not captured: the first %d runs go one by one", WARM);
  return PL_OK;
}

PlStatus pl_device_run_captured(PlDeviceRun *a, PlTensor *const *in, PlTensor **out, bool *done) {
  *done = false;
  if (!a->capture) PL_TRY(begin(a, in));
  struct PlDeviceCapture *c = a->capture;
  if (!c->table || pl_state.profile || pl_device_open()->get(PL_DEVICE_SYNC)) return PL_OK;
  if (settings_moved(a)) forget(a);
  if (c->modes != pl_device_modes()) {
    forget(a);
    c->runs = 0;
    c->modes = pl_device_modes();
  }
  if (c->runs < WARM) {
    c->runs++;
    return PL_OK;
  }
  for (int32_t i = 0; i < a->f->ninputs; i++)
    if (in[i]->a.device == PL_CPU && in[i]->a.ndim > 0) return PL_OK; /* this once */
  if (c->work && moved(a)) {
    forget(a);
    if (++c->again > MOST_AGAIN) return never(a, "captured tensors or numbers change at every run", ""), PL_OK;
  }
  if (!c->work && draws_elsewhere(a)) return PL_OK;
  if (!c->work) {
    PlStatus s = capture(a, in);
    if (s == PL_ERR_INTERRUPT || s == PL_ERR_DEVICE) return s;
    if (s != PL_OK) {
      never(a, pl_message(), "");
      return PL_OK;
    }
  }
  PL_TRY(repeat(a, in, out));
  *done = true;
  return PL_OK;
}
