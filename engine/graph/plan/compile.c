/* SPDX-License-Identifier: MIT
 * From a graph to a plan: clone, passes, recomputation, memory. See plan.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/graph/plan/plan.h"
#include "engine/graph/recompute/policy.h"
#include "engine/graph/recompute/recompute.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"

typedef PlStatus (*Pass)(PlGraph *f, int32_t *removed);
static const struct {
  const char *name;
  Pass run;
} passes[] = {
#define PASS(name) {#name, pl_pass_##name},
#include "engine/graph/passes/passes.def"
#undef PASS
};
enum { NPASSES = (int)(sizeof passes / sizeof passes[0]) };

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

void pl_plan_release(PlPlan *p) {
  if (!p || --p->refs) return;
  pl_graph_release(p->graph);
  free(p->buffer);
  free(p->buffers);
  free(p->recomputed);
  free(p->group);
  free(p->inner);
  free(p->space);
  free(p->passes);
  free(p);
}

/* PERILUNE_PASSES=-fuse,-cse: is this one turned off? */
bool pl_pass_is_off(const char *name) {
  const char *list = getenv("PERILUNE_PASSES");
  size_t n = strlen(name);
  for (const char *p = list; p && *p; p++) {
    size_t m = strcspn(p, ", ");
    if (m == n + 1 && p[0] == '-' && strncmp(p + 1, name, n) == 0) return true;
    p += m;
    if (!*p) break;
  }
  return false;
}

static PlStatus verify(const PlGraph *f) {
#ifndef NDEBUG
  return pl_graph_verify(f);
#else
  (void)f;
  return PL_OK;
#endif
}

static PlStatus run_passes(PlPlan *p) {
  p->passes = calloc(NPASSES, sizeof *p->passes);
  if (!p->passes) return no_memory();
  p->npasses = NPASSES;
  for (int k = 0; k < NPASSES; k++) {
    p->passes[k].name = passes[k].name;
    if (pl_pass_is_off(passes[k].name)) continue;
    p->passes[k].ran = true;
    PL_TRY(plk_poll());
    PL_TRY(passes[k].run(p->graph, &p->passes[k].removed));
    PL_TRY(verify(p->graph));
  }
  return PL_OK;
}

/* v with its dims in that order, a view. */
static PlStatus permuted(PlGraph *f, PlGVal v, const int *order, PlGVal *out) {
  const PlGValue *x = &f->vals[v];
  int64_t dims[PL_MAX_DIM];
  int32_t node;
  PlAttrs a;
  PlDesc d = {.dtype = x->dtype, .ndim = x->ndim, .is_view = true};
  for (int k = 0; k < x->ndim; k++) {
    dims[k] = order[k];
    d.shape[k] = x->dims[order[k]];
    d.strides[k] = x->dims[x->ndim + order[k]];
  }
  pl_attrs_init(&pl_op_permute, &a);
  PL_TRY(pl_attrs_list(&a, 0, x->ndim, dims));
  PL_TRY(pl_graph_node(f, &pl_op_permute, 1, &v, &a, &d, 0, &node));
  *out = f->nodes[node].first;
  return PL_OK;
}

/* A copy that lies as clone's result would. */
static PlStatus copy_of(PlGraph *f, PlGVal v, PlGVal *out) {
  const PlArray a = pl_gvalue_array(&f->vals[v]);
  const int n = a.ndim;
  int64_t strides[PL_MAX_DIM];
  int order[PL_MAX_DIM], back[PL_MAX_DIM];
  const bool turned = pl_layout_permuted(&a, strides);
  if (turned) {
    pl_layout_order(n, a.shape, strides, order);
    for (int k = 0; k < n; k++) back[order[k]] = k;
    PL_TRY(permuted(f, v, order, &v));
  }
  PlDesc d = {.dtype = a.dtype};
  int32_t node;
  pl_desc_set(&d, (PlDtype)a.dtype, n, f->vals[v].dims);
  PL_TRY(pl_graph_node(f, &pl_op_clone, 1, &v, NULL, &d, 0, &node));
  *out = f->nodes[node].first;
  return turned ? permuted(f, *out, back, out) : PL_OK;
}

/* Every requested output gets memory that is its own: a copy of leaves, of pieces, and of what was given before. */
static PlStatus own_outputs(PlGraph *f) {
  for (int32_t o = 0; o < f->noutputs; o++) {
    const PlGValue *v = &f->vals[f->outputs[o]];
    const PlArray a = pl_gvalue_array(v);
    bool own = f->vals[f->stores[v->store].first].kind == PL_FV_NODE && (v->contiguous || (v->device == PL_CPU && pl_layout_dense(&a))) &&
               v->offset == 0 && pl_gvalue_bytes(v) == f->stores[v->store].bytes;
    for (int32_t p = 0; p < o && own; p++) own = f->vals[f->outputs[p]].store != v->store;
    if (own) continue;
    f->stage = v->node >= 0 ? f->nodes[v->node].stage : 0;
    f->emit_name = "output";
    f->emit_count = o;
    PlStatus s = copy_of(f, f->outputs[o], &f->outputs[o]);
    f->emit_name = NULL;
    f->stage = 0;
    PL_TRY(s);
  }
  return PL_OK;
}

static PlStatus recompute_region(PlPlan *p, int32_t r) {
  PlRecomputeOptions *o = &p->graph->regions[r].recompute;
  if (o->policy == PL_RECOMPUTE_NONE) { /* only what the script marked (checkpointed modules) or forced */
    if (!pl_recompute_forced(p->graph, o)) return PL_OK;
    o->policy = PL_RECOMPUTE_MINCUT;
    o->listed = true;
  }
  if (o->policy == PL_RECOMPUTE_AUTO || o->fraction >= 0 || o->bytes >= 0) return pl_recompute_choose(p, r);
  PlRecompute *m;
  PL_TRY(pl_recompute_new(&m, p->graph, r));
  if (!m) return PL_OK;
  PlStatus s = o->policy == PL_RECOMPUTE_GREEDY ? pl_recompute_greedy(m) : pl_recompute_mincut(m);
  if (s == PL_OK) s = pl_recompute_apply(p->graph, m, &p->copies, &p->extra_flops);
  p->policy = o->policy == PL_RECOMPUTE_GREEDY ? "mirror" : "mincut";
  pl_recompute_free(m);
  return s;
}

static PlStatus figures(PlPlan *p) {
  const PlGraph *f = p->graph;
  p->recomputed = calloc((size_t)p->nsource + 1, 1);
  if (!p->recomputed) return no_memory();
  p->flops = 0;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    p->flops += n->flops;
    if (n->flags & PL_FN_RECOMPUTED && n->source >= 0 && n->source < p->nsource) p->recomputed[n->source] = 1;
  }
  return pl_recompute_stash(f, &p->stash_bytes);
}

static PlStatus build(PlPlan *p, PlGraph *f) {
  PL_TRY(pl_graph_clone(&p->graph, f));
  PL_TRY(run_passes(p));
  PL_TRY(own_outputs(p->graph));
  PL_TRY(verify(p->graph));
  for (int32_t r = 0; r < p->graph->nregions; r++) {
    PL_TRY(recompute_region(p, r));
    PL_TRY(verify(p->graph));
  }
  if (p->copies > 0) PL_TRY(pl_recompute_meet(p->graph));
  PL_TRY(pl_graph_verify(p->graph)); /* in every build: better refused than wrong */
  PL_TRY(figures(p));
  return pl_plan_memory(p);
}

static PlPlan *new_plan(const PlGraph *f) {
  PlPlan *p = calloc(1, sizeof *p);
  if (p) *p = (PlPlan){.refs = 1, .policy = "none", .nsource = f->nnodes};
  return p;
}

PlStatus pl_plan_recompute(PlPlan **out, PlGraph *f, int32_t region) {
  PlPlan *p = new_plan(f);
  if (!p) return no_memory();
  PlStatus s = pl_graph_clone(&p->graph, f);
  if (s == PL_OK) s = recompute_region(p, region);
  if (s == PL_OK) s = pl_graph_verify(p->graph);
  if (s != PL_OK) {
    pl_plan_release(p);
    return s;
  }
  *out = p;
  return PL_OK;
}

/* A budget where no gradient pass is, so that nothing can be computed again. */
static PlStatus check_budget(const PlPlan *p, const PlGraph *f) {
  if (f->recompute.policy == PL_RECOMPUTE_NONE || f->recompute.bytes < 0 || f->nregions > 0 || p->peak_bytes <= f->recompute.bytes)
    return PL_OK;
  PL_FAIL(PL_ERR_ARG,
          "a budget of %lld bytes cannot be met: the planned peak is %lld bytes (of which %lld are inputs and parameters, "
          "%lld requested outputs), and without a gradient nothing is kept that could be computed again",
          (long long)f->recompute.bytes, (long long)p->peak_bytes, (long long)p->leaf_bytes, (long long)p->output_bytes);
}

PlStatus pl_graph_compile(PlPlan **out, PlGraph *f) {
  if (!pl_graph_acts(f)) PL_FAIL(PL_ERR_STATE, "the graph has no outputs; call g:outputs{…} first");
  PlPlan *p = new_plan(f);
  if (!p) return no_memory();
  PlStatus s = build(p, f);
  if (s == PL_OK) s = check_budget(p, f);
  if (s != PL_OK) {
    pl_plan_release(p);
    return s;
  }
  *out = p;
  return PL_OK;
}
