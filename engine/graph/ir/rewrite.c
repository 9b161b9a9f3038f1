/* SPDX-License-Identifier: MIT
 * What passes do to a graph: clone it, repeat a node, drop and reorder nodes. Immutable parts (names, sizes, attributes)
 * are shared with the graph that a clone was made from. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a graph"); }

static void *copy_of(const void *p, int32_t n, size_t size) {
  void *c = malloc((size_t)(n > 0 ? n : 1) * size);
  if (c && n > 0) memcpy(c, p, (size_t)n * size);
  return c;
}

static PlStatus copy_regions(PlGraph *to, const PlGraph *f) {
  to->regions = calloc((size_t)f->nregions + 1, sizeof *to->regions);
  if (!to->regions) return no_memory();
  for (int32_t r = 0; r < f->nregions; r++) {
    PlGRegion *d = &to->regions[r];
    *d = f->regions[r];
    d->ys = copy_of(d->ys, d->ny, sizeof *d->ys);
    if (d->recompute.choice) d->recompute.choice = copy_of(d->recompute.choice, d->recompute.nchoice, 1);
    to->nregions++;
    if (!d->ys || (f->regions[r].recompute.choice && !d->recompute.choice)) return no_memory();
  }
  return PL_OK;
}

static PlStatus copy_inputs(PlGraph *to, bool original) {
  for (int32_t i = 0; i < to->nnodes; i++) {
    PlGNode *n = &to->nodes[i];
    PlGVal *in = pl_graph_alloc(to, (size_t)n->nin * sizeof *in + 1);
    int32_t *after = n->nafter ? pl_graph_alloc(to, (size_t)n->nafter * sizeof *after) : NULL;
    if (!in || (n->nafter && !after)) return no_memory();
    if (n->nin) memcpy(in, n->in, (size_t)n->nin * sizeof *in);
    if (n->nafter) memcpy(after, n->after, (size_t)n->nafter * sizeof *after);
    n->in = in;
    n->after = after;
    if (original) n->source = i;
  }
  return PL_OK;
}

PlStatus pl_graph_clone(PlGraph **out, PlGraph *f) {
  PlGraph *c;
  PL_TRY(pl_graph_new(&c));
  memcpy(c->counts, f->counts, PL_NOP * sizeof *c->counts);
  c->vals = copy_of(f->vals, f->nvals, sizeof *c->vals);
  c->nodes = copy_of(f->nodes, f->nnodes, sizeof *c->nodes);
  c->stores = copy_of(f->stores, f->nstores, sizeof *c->stores);
  c->outputs = copy_of(f->outputs, f->noutputs, sizeof *c->outputs);
  PlStatus s = c->vals && c->nodes && c->stores && c->outputs ? PL_OK : no_memory();
  if (s == PL_OK) {
    c->base = pl_graph_retain(f);
    c->nvals = f->nvals;
    c->cap_vals = f->nvals > 0 ? f->nvals : 1;
    for (PlGVal v = 0; v < c->nvals; v++)
      if (c->vals[v].real) pl_retain(c->vals[v].real);
    c->nnodes = f->nnodes;
    c->cap_nodes = f->nnodes > 0 ? f->nnodes : 1;
    c->nstores = f->nstores;
    c->cap_stores = f->nstores > 0 ? f->nstores : 1;
    for (int32_t k = 0; k < c->nstores; k++) c->stores[k].live = NULL;
    c->ninputs = f->ninputs;
    c->unsafe_math = f->unsafe_math;
    c->alone = f->alone;
    c->ndraws = f->ndraws;
    c->noutputs = f->noutputs;
    s = copy_regions(c, f);
  }
  if (s == PL_OK) s = copy_inputs(c, !f->base);
  if (s != PL_OK) {
    pl_graph_release(c);
    return s;
  }
  *out = c;
  return PL_OK;
}

PlStatus pl_graph_repeat(PlGraph *f, int32_t i, const PlGVal *in, const char *name, int32_t *node) {
  PlDesc few[PL_MAX_OUT], *desc = few;
  const PlGNode *n = &f->nodes[i];
  memset(few, 0, sizeof few);
  for (int32_t o = 0; o < n->nout && o < PL_MAX_OUT; o++) {
    const PlGValue *v = &f->vals[n->first + o];
    desc[o].dtype = v->dtype;
    if (v->dtype == PL_NDTYPE) continue;
    pl_desc_set(&desc[o], (PlDtype)v->dtype, v->ndim, v->dims);
    if (o > 0 || !(n->flags & PL_FN_VIEW)) continue;
    desc[o].is_view = true;
    memcpy(desc[o].strides, v->dims + v->ndim, v->ndim * sizeof(int64_t));
    desc[o].offset = v->offset - f->vals[n->in[0]].offset;
  }
  f->emit_name = name;
  f->emit_count = 0;
  int32_t draws = f->ndraws;
  PlStatus s = pl_graph_node(f, n->op, n->nin, in, n->attrs, desc, 0, node);
  f->emit_name = NULL;
  f->ndraws = draws;
  PL_TRY(s);
  n = &f->nodes[i];
  PlGNode *c = &f->nodes[*node];
  c->source = n->source;
  c->draw = n->draw;
  c->flops = n->flops;
  c->where = n->where;
  c->after = n->nafter ? pl_graph_alloc(f, (size_t)n->nafter * sizeof *c->after) : NULL;
  if (n->nafter && !c->after) return no_memory();
  if (n->nafter) memcpy(c->after, n->after, (size_t)n->nafter * sizeof *c->after);
  c->nafter = n->nafter;
  return PL_OK;
}

void pl_graph_written(const PlGraph *f, uint8_t *written) {
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t o = 0; o < pl_gnode_written(&f->nodes[i]); o++) written[f->vals[f->nodes[i].first + o].store] = 1;
}

/* A view is in the store of its input: passes may have given it another one. */
static void rebase_views(PlGraph *f) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (!(n->flags & PL_FN_VIEW) || (n->flags & PL_FN_DEAD) || n->in[0] < 0) continue;
    const PlGValue *x = &f->vals[n->in[0]];
    PlGValue *v = &f->vals[n->first];
    v->store = x->store;
    v->offset = x->offset + n->window;
  }
}

/* Who waits for a node that another one has replaced waits for that one. */
static void rewire_after(PlGraph *f, PlGNode *n, const PlGVal *map) {
  int32_t kept = 0;
  for (int32_t k = 0; k < n->nafter; k++) {
    const PlGNode *b = &f->nodes[n->after[k]];
    int32_t to = n->after[k];
    if (b->flags & PL_FN_DEAD && b->nout > 0 && map[b->first] != b->first) to = f->vals[map[b->first]].node;
    if (to >= 0) n->after[kept++] = to;
  }
  n->nafter = kept;
}

void pl_graph_rewire(PlGraph *f, const PlGVal *map) {
  for (int32_t i = 0; i < f->nnodes; i++) rewire_after(f, &f->nodes[i], map);
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) f->nodes[i].in[k] = map[f->nodes[i].in[k]];
  for (int32_t o = 0; o < f->noutputs; o++) f->outputs[o] = map[f->outputs[o]];
  for (int32_t r = 0; r < f->nregions; r++)
    for (int32_t k = 0; k < f->regions[r].ny; k++)
      if (f->regions[r].ys[k] >= 0) f->regions[r].ys[k] = map[f->regions[r].ys[k]];
  rebase_views(f);
}

/* ---- compacting ------------------------------------------------------------------------------------------ */

typedef struct Maps {
  int32_t *node, *val, *store;
} Maps;

static bool keeps_leaf(const PlGraph *f, PlGVal v, const uint8_t *read) {
  return f->vals[v].kind == PL_FV_INPUT || (f->vals[v].kind != PL_FV_NODE && read[v]);
}

static void mark_read(const PlGraph *f, uint8_t *read) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < n->nin && !(n->flags & PL_FN_DEAD); k++)
      if (n->in[k] >= 0) read[n->in[k]] = 1;
  }
  for (int32_t o = 0; o < f->noutputs; o++) read[f->outputs[o]] = 1;
}

/* New arrays in new order; the graph still has the old ones. */
static void renumber(const PlGraph *f, const int32_t *order, const uint8_t *read, Maps m, PlGValue *vals, PlGNode *nodes, int32_t *nvals,
                     int32_t *nnodes) {
  int32_t nv = 0, nn = 0;
  for (PlGVal v = 0; v < f->nvals; v++) {
    m.val[v] = -1;
    if (!keeps_leaf(f, v, read)) continue;
    m.val[v] = nv;
    vals[nv++] = f->vals[v];
  }
  for (int32_t j = 0; j < f->nnodes; j++) {
    int32_t i = order ? order[j] : j;
    m.node[i] = -1;
    if (f->nodes[i].flags & PL_FN_DEAD) continue;
    m.node[i] = nn;
    nodes[nn] = f->nodes[i];
    nodes[nn].first = nv;
    for (int32_t o = 0; o < f->nodes[i].nout; o++) {
      m.val[f->nodes[i].first + o] = nv;
      vals[nv] = f->vals[f->nodes[i].first + o];
      vals[nv++].node = nn;
    }
    nn++;
  }
  *nvals = nv;
  *nnodes = nn;
}

static void rewire(PlGraph *f, Maps m) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < n->nin; k++)
      if (n->in[k] >= 0) n->in[k] = m.val[n->in[k]];
    int32_t kept = 0;
    for (int32_t k = 0; k < n->nafter; k++)
      if (m.node[n->after[k]] >= 0) n->after[kept++] = m.node[n->after[k]];
    n->nafter = kept;
    if (n->origin >= 0) n->origin = m.node[n->origin];
  }
  for (int32_t o = 0; o < f->noutputs; o++) f->outputs[o] = m.val[f->outputs[o]];
  for (int32_t r = 0; r < f->nregions; r++)
    for (int32_t k = 0; k < f->regions[r].ny; k++)
      if (f->regions[r].ys[k] >= 0) f->regions[r].ys[k] = m.val[f->regions[r].ys[k]];
}

/* Stores in the order of their first values; what covered them may be gone. */
static void renumber_stores(PlGraph *f, Maps m, PlGStore *stores) {
  int32_t n = 0;
  for (int32_t s = 0; s < f->nstores; s++) m.store[s] = -1;
  for (PlGVal v = 0; v < f->nvals; v++) {
    int32_t s = f->vals[v].store;
    if (m.store[s] < 0) {
      m.store[s] = n;
      stores[n] = f->stores[s];
      stores[n].first = stores[n].root = v;
      n++;
    }
    f->vals[v].store = m.store[s];
  }
  memcpy(f->stores, stores, (size_t)n * sizeof *stores);
  f->nstores = n;
}

PlStatus pl_graph_compact(PlGraph *f, const int32_t *order) {
  size_t nv = (size_t)f->nvals + 1, nn = (size_t)f->nnodes + 1, ns = (size_t)f->nstores + 1;
  Maps m = {malloc(nn * sizeof(int32_t)), malloc(nv * sizeof(int32_t)), malloc(ns * sizeof(int32_t))};
  PlGValue *vals = malloc(nv * sizeof *vals);
  PlGNode *nodes = malloc(nn * sizeof *nodes);
  PlGStore *stores = malloc(ns * sizeof *stores);
  uint8_t *read = calloc(nv, 1);
  PlStatus s = m.node && m.val && m.store && vals && nodes && stores && read ? PL_OK : no_memory();
  if (s == PL_OK) {
    int32_t nvals, nnodes;
    mark_read(f, read);
    renumber(f, order, read, m, vals, nodes, &nvals, &nnodes);
    for (PlGVal v = 0; v < f->nvals; v++)
      if (m.val[v] < 0) pl_tensor_release(f->vals[v].real);
    free(f->vals);
    free(f->nodes);
    f->vals = vals;
    f->nodes = nodes;
    f->cap_vals = (int32_t)nv;
    f->cap_nodes = (int32_t)nn;
    f->nvals = nvals;
    f->nnodes = nnodes;
    vals = NULL;
    nodes = NULL;
    rewire(f, m);
    rebase_views(f);
    renumber_stores(f, m, stores);
  }
  free(m.node);
  free(m.val);
  free(m.store);
  free(vals);
  free(nodes);
  free(stores);
  free(read);
  return s;
}
