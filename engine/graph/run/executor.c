/* SPDX-License-Identifier: MIT
 * The executor: see executor.h. Every value has a handle whose address is set when the memory below it is known: once for
 * constants, at each run for inputs, outputs and, if it moved, the arena. Groups that fuse.c chose run tile by tile. */
#include "engine/graph/run/executor.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/graph/fuse/tile.h"
#include "engine/graph/run/device_run.h"
#include "engine/graph/run/weights.h"
#include "engine/graph/run/whole.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/layout.h"
#include "engine/tensor/presence.h"
#include "kernels/program.h"

/* What one node needs at a run. */
typedef struct Step {
  const PlGNode *node;
  PlTensor **in, **out;
  const PlArray **arr;
  PlkKept *kept;  /* what its kernel keeps of weights; NULL: nothing */
  double seconds; /* the least of the runs that were timed */
} Step;

struct PlExec {
  PlPlan *plan;
  PlTensor **vals;  /* per value; leaves: of this run, borrowed or (inputs that are not contiguous) owned copies */
  PlArray **arrays; /* … their arrays */
  PlStorage memory; /* what handles on planned memory call their storage; never released */
  Step *steps;
  PlTensor **args; /* the arrays of all steps */
  const PlArray **arrs;
  PlFusion *fusion;   /* groups of pointwise nodes, or NULL */
  PlWeights *weights; /* those of which kernels may keep a form, or NULL */
  uint64_t *drawn;
  int32_t *whole;          /* pieces that Ctrl-C does not part (whole.h), or NULL */
  char *arena, *placed;    /* of the running call; what handles point into */
  PlDeviceRun *device_run; /* runs it where tensors are on a device; made when they first do */
  bool busy, wrote, crosses;
  int32_t done;       /* how many nodes of the newest run ran: behind a run that came to its end something may fail, too */
  int timed;          /* runs that were timed */
  int64_t leaf_bytes; /* of this run's leaves, each store once */
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to run a graph"); }

static bool is_leaf(const PlGraph *f, PlGVal v) { return f->vals[v].kind != PL_FV_NODE; }

static const PlBuffer *buffer_of(const PlExec *e, PlGVal v) { return &e->plan->buffers[e->plan->buffer[e->plan->graph->vals[v].store]]; }

/* ---- making ------------------------------------------------------------------------------------------------ */

static PlStatus make_handles(PlExec *e) {
  const PlGraph *f = e->plan->graph;
  for (PlGVal v = 0; v < f->nvals; v++) {
    if (is_leaf(f, v) || f->vals[v].dtype == PL_NDTYPE) continue;
    PlArray a = pl_gvalue_array(&f->vals[v]);
    a.symbolic = a.device = 0;
    a.data = NULL;
    e->memory.refs++;
    PL_TRY(pl_tensor_handle(&e->vals[v], &a, &e->memory));
    e->arrays[v] = &e->vals[v]->a;
  }
  return PL_OK;
}

static PlStatus make_steps(PlExec *e) {
  const PlGraph *f = e->plan->graph;
  size_t n = 0;
  for (int32_t i = 0; i < f->nnodes; i++) n += (size_t)f->nodes[i].nin + (size_t)f->nodes[i].nout;
  e->steps = calloc((size_t)f->nnodes + 1, sizeof *e->steps);
  e->args = calloc(n + 1, sizeof *e->args);
  e->arrs = calloc(n + 1, sizeof *e->arrs);
  if (!e->steps || !e->args || !e->arrs) return no_memory();
  PlTensor **t = e->args;
  const PlArray **a = e->arrs;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *p = &f->nodes[i];
    e->steps[i] = (Step){.node = p, .in = t, .out = t + p->nin, .arr = a};
    t += p->nin + p->nout;
    a += p->nin;
  }
  return PL_OK;
}

/* Inputs and outputs of steps by the current handles. */
static void wire(PlExec *e) {
  const PlGraph *f = e->plan->graph;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *p = &f->nodes[i];
    Step *s = &e->steps[i];
    for (int32_t k = 0; k < p->nin; k++) {
      s->in[k] = p->in[k] < 0 ? NULL : e->vals[p->in[k]];
      s->arr[k] = s->in[k] ? &s->in[k]->a : NULL;
    }
    for (int32_t o = 0; o < p->nout; o++) s->out[o] = e->vals[p->first + o];
  }
}

PlStatus pl_exec_new(PlExec **out, PlPlan *plan) {
  PlExec *e = calloc(1, sizeof *e);
  if (!e) return no_memory();
  const PlGraph *f = plan->graph;
  e->plan = plan;
  e->crosses = pl_graph_crosses(f);
  plan->refs++;
  e->memory = (PlStorage){.refs = 1};
  e->vals = calloc((size_t)f->nvals + 1, sizeof *e->vals);
  e->arrays = calloc((size_t)f->nvals + 1, sizeof *e->arrays);
  e->drawn = calloc((size_t)f->ndraws + 1, sizeof *e->drawn);
  PlStatus s = e->vals && e->arrays && e->drawn ? PL_OK : no_memory();
  if (s == PL_OK) s = make_handles(e);
  if (s == PL_OK) s = make_steps(e);
  if (s == PL_OK) s = pl_whole_find(&e->whole, f);
  if (s == PL_OK) wire(e);
  if (s == PL_OK) s = pl_fusion_new(&e->fusion, plan);
  if (s == PL_OK) s = pl_weights_new(&e->weights, f);
  for (int32_t i = 0; s == PL_OK && e->weights && i < f->nnodes; i++) e->steps[i].kept = pl_weights_kept(e->weights, i);
  if (s != PL_OK) {
    pl_exec_release(e);
    return s;
  }
  *out = e;
  return PL_OK;
}

void pl_exec_release(PlExec *e) {
  if (!e) return;
  for (PlGVal v = 0; e->vals && v < e->plan->graph->nvals; v++)
    if (!is_leaf(e->plan->graph, v)) pl_tensor_release(e->vals[v]);
  pl_fusion_free(e->fusion);
  pl_weights_free(e->weights);
  pl_device_run_free(e->device_run);
  free(e->vals);
  free(e->arrays);
  free(e->steps);
  free(e->args);
  free(e->arrs);
  free(e->drawn);
  free(e->whole);
  pl_plan_release(e->plan);
  free(e);
}

PlPlan *pl_exec_plan(const PlExec *e) { return e->plan; }
bool pl_exec_wrote(const PlExec *e) { return e->wrote; }

bool pl_exec_ran(const PlExec *e, const PlAttrs *attrs) {
  const PlGraph *f = e->plan->graph;
  for (int32_t i = 0; attrs && i < e->done; i++)
    if (f->nodes[i].attrs == attrs) return true; /* which graphs share with what they were made from */
  return false;
}

void pl_exec_forget(PlExec *e) { e->done = 0; }
double pl_exec_seconds(const PlExec *e, int32_t i) { return e->steps[i].seconds; }

/* ---- memory of one run ------------------------------------------------------------------------------------- */

static PlStatus take_leaves(PlExec *e, PlTensor *const *in, bool *moved) {
  const PlGraph *f = e->plan->graph;
  e->leaf_bytes = 0;
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE) continue;
    PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->real, *copy = NULL;
    if (val->kind == PL_FV_INPUT && !pl_graph_layout_fits(val, &t->a)) {
      PL_TRY(pl_graph_laid(val, t, &copy));
      t = copy;
    } else pl_retain(t);
    *moved |= t != e->vals[v];
    e->vals[v] = t;
    e->arrays[v] = &t->a;
    if (val->kind != PL_FV_CONST && v == f->stores[val->store].first && !copy)
      e->leaf_bytes += t->a.numel * (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
  }
  return PL_OK;
}

static void give_leaves(PlExec *e) {
  const PlGraph *f = e->plan->graph;
  for (PlGVal v = 0; v < f->nvals; v++) {
    if (!is_leaf(f, v)) continue;
    pl_tensor_release(e->vals[v]);
    e->vals[v] = NULL;
  }
}

/* Address of value v of a node: in the arena, in output `at`, or a window of a leaf. */
static void point(PlExec *e, PlGVal v, PlTensor *const *out) {
  const PlGraph *f = e->plan->graph;
  const PlGValue *val = &f->vals[v];
  const PlBuffer *b = buffer_of(e, v);
  int64_t item = (int64_t)pl_dtype_size((PlDtype)val->dtype);
  char *at = NULL;
  if (b->place == PL_AT_ARENA) at = e->arena + b->at + val->offset * item;
  else if (b->place == PL_AT_OUTPUT) at = (char *)out[b->at]->a.data + val->offset * item;
  else if (b->place == PL_AT_LEAF) {
    PlGVal root = f->stores[val->store].first;
    at = (char *)e->vals[root]->a.data + (val->offset - f->vals[root].offset) * item;
  }
  e->vals[v]->a.data = at;
}

static void point_all(PlExec *e, PlTensor *const *out, bool arena_too) {
  const PlGraph *f = e->plan->graph;
  for (PlGVal v = 0; v < f->nvals; v++)
    if (!is_leaf(f, v) && e->vals[v] && (arena_too || buffer_of(e, v)->place != PL_AT_ARENA)) point(e, v, out);
}

static PlStatus make_outputs(const PlGraph *f, PlTensor **out) {
  for (int32_t o = 0; o < f->noutputs; o++) out[o] = NULL;
  for (int32_t o = 0; o < f->noutputs; o++) {
    const PlGValue *v = &f->vals[f->outputs[o]];
    PL_TRY(pl_tensor_empty(&out[o], (PlDtype)v->dtype, v->ndim, v->dims));
    if (v->ndim > 1) pl_layout_stride(out[o], v->dims + v->ndim); /* also of sizes of 1 */
  }
  return PL_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

/* What value v of a node shows of a leaf, as a handle on the leaf's storage; NULL: it shows none. */
static PlStatus window_of_leaf(const PlExec *e, PlGVal v, PlTensor **out) {
  const PlGraph *f = e->plan->graph;
  *out = NULL;
  if (v < 0 || is_leaf(f, v) || buffer_of(e, v)->place != PL_AT_LEAF) return PL_OK;
  const PlArray *a = &e->vals[v]->a;
  return pl_tensor_window(out, e->vals[f->stores[f->vals[v].store].first], a->ndim, a->shape, a->strides, a->data);
}

/* Ops that write into leaves go through the common door: it moves versions, and tells who watches a storage. So what it gets is a
 * handle on that storage, not the plan's on an address. */
static PlStatus run_mutating(const PlExec *e, const Step *s) {
  PlTensor *res[PL_MAX_OUT] = {NULL};
  const PlGNode *n = s->node;
  PlStatus st = PL_OK;
  for (int32_t k = 0; k < n->nin && st == PL_OK; k++) {
    PlTensor *window;
    st = window_of_leaf(e, n->in[k], &window);
    if (window) s->in[k] = window;
  }
  if (st == PL_OK) st = pl_apply(n->op, s->in, n->nin, n->attrs, res);
  for (int32_t k = 0; k < n->nin; k++) {
    if (n->in[k] < 0 || s->in[k] == e->vals[n->in[k]]) continue;
    pl_tensor_release(s->in[k]);
    s->in[k] = e->vals[n->in[k]];
  }
  PL_TRY(st);
  for (int o = 0; o < n->op->nout; o++) pl_tensor_release(res[o]);
  return PL_OK;
}

/* A repeated draw starts where its original did. */
static PlStatus run_seeded(PlExec *e, const Step *s) {
  const PlGNode *n = s->node;
  (void)pl_rng_take(0); /* seeds the generator */
  uint64_t now = pl_state.offset;
  bool again = (n->flags & PL_FN_RECOMPUTED) != 0;
  if (again) pl_state.offset = e->drawn[n->draw];
  else e->drawn[n->draw] = now;
  PlStatus st = n->flags & PL_FN_MUTATES ? run_mutating(e, s) : pl_call_kernel(n->op, n->attrs, s->in, s->arr, n->nin, s->out, NULL);
  if (again) pl_state.offset = now;
  return st;
}

/* Node i, or the group of nodes from i to before `end`. */
static PlStatus run_step(PlExec *e, int32_t i, int32_t end) {
  const Step *s = &e->steps[i];
  const PlGNode *n = s->node;
  if (end > i) return plk_tiles_run(pl_fusion_group(e->fusion, i), e->arrays);
  if (n->draw >= 0) return run_seeded(e, s);
  if (n->flags & PL_FN_MUTATES) return run_mutating(e, s);
  return pl_call_kernel(n->op, n->attrs, s->in, s->arr, n->nin, s->out, s->kept);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static PlStatus run_all(PlExec *e, PlWhole *whole) {
  const PlGraph *f = e->plan->graph;
  bool timed = e->timed < PL_EXEC_TIMED;
  double begin = timed ? now() : 0;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = e->steps[i].node;
    e->done = i;
    if (n->flags & PL_FN_VIEW) continue;
    PL_TRY(pl_whole_at(whole, i));
    e->wrote |= (n->flags & PL_FN_MUTATES) != 0;
    int32_t end = pl_fusion_end(e->fusion, i);
    const PlProfile *p = n->flags & PL_FN_MUTATES ? NULL : pl_state.profile; /* those are measured by pl_apply */
    if (PL_UNLIKELY(p != NULL)) p->begin(n->op, end > i ? end - i : 1);
    PlStatus s = run_step(e, i, end);
    if (PL_UNLIKELY(p != NULL)) {
      for (int32_t k = i; end > i && k < end; k++) p->work(f->nodes[k].flops);
      p->end();
    }
    PL_TRY(s);
    if (timed) {
      double t = now(), took = t - begin;
      begin = t;
      if (e->timed == 0 || took < e->steps[i].seconds) e->steps[i].seconds = took;
    }
    if (end > i) i = end - 1;
  }
  if (timed) e->timed++;
  return PL_OK;
}

static PlStatus run_steps(PlExec *e) {
  PlWhole whole = {.ends = e->whole, .until = -1};
  const PlStatus s = run_all(e, &whole);
  pl_whole_over(&whole);
  if (s == PL_OK) e->done = e->plan->graph->nnodes;
  return s;
}

/* What the run held at its peak, counted by the allocator: outputs, the arena, kernels' own memory, and whatever else there
 * might be; and the leaves. Small outputs are inside their handles. */
static void measure(PlExec *e, int64_t before, PlTensor *const *out) {
  PlPlan *p = e->plan;
  PlAsked a = pl_asked();
  int64_t small = 0;
  for (int32_t o = 0; o < p->graph->noutputs; o++)
    if (out[o]->storage->owns != PL_OWNS_BLOCK) small += (int64_t)out[o]->storage->nbytes;
  p->workspace_bytes = a.scratch_high;
  p->measured_bytes = a.high - before + small + e->leaf_bytes;
}

static PlStatus run(PlExec *e, PlTensor *const *in, PlTensor **out) {
  PlPlan *p = e->plan;
  bool moved = false;
  void *arena = NULL;
  pl_asked_mark();
  int64_t before = pl_asked().live;
  PlStatus s = make_outputs(p->graph, out);
  if (s == PL_OK) s = take_leaves(e, in, &moved);
  if (s == PL_OK && p->arena_bytes > 0) s = pl_block_alloc_brief((size_t)p->arena_bytes, &arena);
  if (s == PL_OK) {
    e->arena = arena;
    point_all(e, out, e->arena != e->placed);
    e->placed = e->arena;
    if (moved) wire(e);
    if (e->weights) pl_weights_look(e->weights, e->vals);
    s = run_steps(e);
    if (s == PL_OK) measure(e, before, out);
  }
  give_leaves(e);
  if (arena) pl_block_free(arena);
  e->arena = NULL;
  if (s != PL_OK)
    for (int32_t o = 0; o < p->graph->noutputs; o++) {
      pl_tensor_release(out[o]);
      out[o] = NULL;
    }
  return s;
}

/* Planned memory is the CPU's. */
static bool any_on_device(const PlGraph *f, PlTensor *const *in) {
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE) continue;
    const PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->real;
    if (t && t->a.device != PL_CPU) return true;
  }
  return false;
}

/* Under a limit of memory: leaves stay while kernels that know only addresses run. */
static PlStatus run_pinned(PlExec *e, PlTensor *const *in, PlTensor **out) {
  const PlGraph *f = e->plan->graph;
  PlTensor **leaves = malloc(((size_t)f->nvals + 1) * sizeof *leaves);
  int n = 0;
  if (!leaves) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind != PL_FV_NODE) leaves[n++] = f->vals[v].kind == PL_FV_INPUT ? in[f->vals[v].slot] : f->vals[v].real;
  PlPins pins;
  PlStatus s = pl_remat_pin(&pins, "jit", leaves, n);
  free(leaves);
  PL_TRY(s);
  s = run(e, in, out);
  pl_remat_unpin(&pins);
  return s;
}

static PlStatus run_on(PlExec *e, PlTensor *const *in, PlTensor **out) {
  if (e->crosses || any_on_device(e->plan->graph, in)) {
    const PlDeviceTable *t;
    PL_TRY(pl_device(&t));
    if (!e->device_run) PL_TRY(pl_device_run_new(&e->device_run, e->plan->graph));
    const PlStatus s = pl_device_run(e->device_run, in, out);
    e->done = s == PL_OK ? e->plan->graph->nnodes : pl_device_run_done(e->device_run);
    e->wrote = s != PL_OK; /* who knows */
    return s;
  }
  bool was = pl_grad_enable(false);
  struct PlGraph *trace = pl_set_trace(NULL);
  e->busy = true;
  PlStatus s = PL_UNLIKELY(pl_state.remat != NULL) ? run_pinned(e, in, out) : run(e, in, out);
  e->busy = false;
  pl_set_trace(trace);
  pl_grad_enable(was);
  return s;
}

static PlStatus exec_run(PlExec *e, PlTensor *const *in, PlTensor **out) {
  if (e->busy) {
    e->wrote = true; /* who knows */
    return pl_graph_run(e->plan->graph, in, out);
  }
  e->wrote = false;
  e->done = 0;
  const uint8_t autocast = pl_set_autocast(0); /* the graph's casts are nodes */
  const PlStatus s = run_on(e, in, out);
  pl_set_autocast(autocast);
  return s;
}

PlStatus pl_exec_run(PlExec *e, PlTensor *const *in, PlTensor **out) {
  if (PL_LIKELY(!pl_watched())) return exec_run(e, in, out);
  const PlGraph *f = e->plan->graph;
  PL_TRY(pl_checkpoint_enter_graph(f, in));
  PlStatus s = exec_run(e, in, out);
  pl_checkpoint_leave_graph(f, s == PL_OK ? out : NULL);
  return s;
}

const PlDeviceRun *pl_exec_device_run(const PlExec *e) { return e->device_run; }
