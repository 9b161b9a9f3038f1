/* SPDX-License-Identifier: MIT
 * The plain executor: nodes one after the other through pl_apply, values freed after their last reader. It stays as
 * the judge of faster ones. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/graph/ir/graph.h"

typedef struct Run {
  const PlGraph *f;
  PlTensor **vals; /* owned */
  int32_t *last;   /* per value: its last reader, -1: dies at birth, nnodes: an output */
  uint64_t *drawn; /* per draw: the generator's offset before it */
  bool crosses;
  uint8_t device; /* the first of the leaves' */
} Run;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to run a graph"); }

static void find_last(Run *r) {
  const PlGraph *f = r->f;
  for (int32_t v = 0; v < f->nvals; v++) r->last[v] = -1;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) r->last[f->nodes[i].in[k]] = i;
  for (int32_t o = 0; o < f->noutputs; o++) r->last[f->outputs[o]] = f->nnodes;
}

/* A repeated draw starts where its original did. */
static PlStatus apply(Run *r, const PlGNode *n, PlTensor *const *in, PlTensor **out) {
  if (n->draw < 0) return pl_apply(n->op, in, n->nin, n->attrs, out);
  (void)pl_rng_take(0); /* seeds the generator */
  uint64_t now = pl_state.offset;
  bool again = (n->flags & PL_FN_RECOMPUTED) != 0;
  if (again) pl_state.offset = r->drawn[n->draw];
  else r->drawn[n->draw] = now;
  PlStatus s = pl_apply(n->op, in, n->nin, n->attrs, out);
  if (again) pl_state.offset = now;
  return s;
}

static void drop(Run *r, PlGVal v) {
  pl_tensor_release(r->vals[v]);
  r->vals[v] = NULL;
}

static PlStatus run_node(Run *r, int32_t i) {
  const PlGraph *f = r->f;
  const PlGNode *n = &f->nodes[i];
  PlTensor *few[PL_MAX_IN], **in = few, *out[PL_MAX_OUT] = {NULL};
  if (n->nin > PL_MAX_IN && !(in = malloc((size_t)n->nin * sizeof *in))) return no_memory();
  for (int32_t k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? NULL : r->vals[n->in[k]];
  pl_state.device = pl_graph_makes_on(f, n, r->device, r->crosses);
  PlStatus s = apply(r, n, in, out);
  if (s == PL_OK && (n->flags & PL_FN_MUTATES)) {
    for (int o = 0; o < n->op->nout; o++) pl_tensor_release(out[o]);
    for (int32_t o = 0; o < n->nout; o++) r->vals[n->first + o] = pl_retain(in[o]);
  } else if (s == PL_OK)
    for (int32_t o = 0; o < n->nout; o++) r->vals[n->first + o] = out[o];
  if (in != few) free(in);
  PL_TRY(s);
  for (int32_t k = 0; k < n->nin; k++)
    if (n->in[k] >= 0 && r->last[n->in[k]] == i) drop(r, n->in[k]);
  for (int32_t o = 0; o < n->nout; o++)
    if (r->last[n->first + o] < 0) drop(r, n->first + o);
  return PL_OK;
}

/* Memory that belongs to the caller alone: leaves and values given before are copied. */
static PlStatus give(Run *r, PlTensor **out) {
  const PlGraph *f = r->f;
  for (int32_t o = 0; o < f->noutputs; o++) {
    const PlGValue *v = &f->vals[f->outputs[o]];
    bool shared = f->vals[f->stores[v->store].first].kind != PL_FV_NODE || pl_gvalue_bytes(v) != f->stores[v->store].bytes;
    for (int32_t p = 0; p < o && !shared; p++) shared = f->vals[f->outputs[p]].store == v->store;
    PlTensor *t = r->vals[f->outputs[o]];
    PlStatus s = PL_OK;
    if (shared) s = pl_tensor_copy(&out[o], t);
    else out[o] = pl_retain(t);
    if (s != PL_OK) {
      while (o > 0) pl_tensor_release(out[--o]);
      return s;
    }
  }
  return PL_OK;
}

bool pl_graph_acts(const PlGraph *f) {
  bool acts = f->noutputs > 0;
  for (int32_t i = 0; i < f->nnodes && !acts; i++) acts = (f->nodes[i].flags & PL_FN_MUTATES) != 0;
  return acts;
}

bool pl_graph_crosses(const PlGraph *f) {
  bool leaf = false, made = false;
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].op->flags & PL_F_MOVES) return true;
  for (int32_t v = 0; v < f->nvals; v++)
    if (f->vals[v].device != PL_CPU) *(f->vals[v].kind == PL_FV_NODE ? &made : &leaf) = true;
  return made && !leaf;
}

uint8_t pl_graph_makes_on(const PlGraph *f, const PlGNode *n, uint8_t leaves, bool as_traced) {
  if (n->flags & PL_FN_PLACED) return PL_CPU;
  const uint8_t traced = n->nout > 0 ? f->vals[n->first].device : PL_CPU;
  return as_traced && traced ? traced : leaves;
}

static PlStatus flow_run(const PlGraph *f, PlTensor *const *in, PlTensor **out) {
  Run r = {.f = f, .crosses = pl_graph_crosses(f)};
  r.vals = calloc((size_t)f->nvals + 1, sizeof *r.vals);
  r.last = malloc((size_t)(f->nvals + 1) * sizeof *r.last);
  r.drawn = calloc((size_t)f->ndraws + 1, sizeof *r.drawn);
  PlStatus s = r.vals && r.last && r.drawn ? PL_OK : no_memory();
  bool was = pl_grad_enable(false);
  const uint8_t device_was = pl_state.device;
  PlGraph *trace = pl_set_trace(NULL);
  const uint8_t autocast = pl_set_autocast(0); /* the graph's casts are nodes */
  pl_state.row_major++;                        /* as the values of the graph are */
  if (s == PL_OK) {
    find_last(&r);
    for (int32_t v = 0; v < f->nvals && s == PL_OK; v++) {
      const PlGValue *val = &f->vals[v];
      if (val->kind == PL_FV_NODE) continue;
      PlTensor *t = val->kind == PL_FV_INPUT ? in[val->slot] : val->real;
      r.crosses = r.crosses || (r.device && t->a.device && t->a.device != r.device);
      r.device = pl_device_first(r.device, t->a.device);
      if (val->kind != PL_FV_INPUT || pl_graph_layout_fits(val, &t->a)) r.vals[v] = pl_retain(t);
      else s = pl_graph_laid(val, t, &r.vals[v]);
    }
  }
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++) s = run_node(&r, i);
  pl_state.device = device_was;
  if (s == PL_OK) s = give(&r, out);
  pl_set_autocast(autocast);
  pl_set_trace(trace);
  pl_state.row_major--;
  pl_grad_enable(was);
  for (int32_t v = 0; r.vals && v < f->nvals; v++) pl_tensor_release(r.vals[v]);
  free(r.vals);
  free(r.last);
  free(r.drawn);
  return s;
}

PlStatus pl_graph_run(const PlGraph *f, PlTensor *const *in, PlTensor **out) {
  if (PL_LIKELY(!pl_watched())) return flow_run(f, in, out);
  PL_TRY(pl_checkpoint_enter_graph(f, in));
  PlStatus s = flow_run(f, in, out);
  pl_checkpoint_leave_graph(f, s == PL_OK ? out : NULL);
  return s;
}
