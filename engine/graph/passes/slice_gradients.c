/* SPDX-License-Identifier: MIT
 * Gradients of slices that together cover a dim: slice_bwd(a) + slice_bwd(b) + …, as the parts of one product leave them (the
 * queries, keys and values of an attention), are full-size tensors of mostly zeros; they become one slices_bwd(a, b, …). What
 * only merged the last dims of such a part, by a copy, does so behind the join, as a view of it. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

enum { PARTS = 16 };

typedef struct Parts {
  PlGraph *f;
  const int32_t *uses;
  const uint8_t *written;
  const PlGNode *part[PARTS]; /* slice_bwd nodes, by where they begin once sorted */
  int n, sums;
} Parts;

static const PlGNode *maker(const PlGraph *f, PlGVal v) {
  return v >= 0 && f->vals[v].kind == PL_FV_NODE ? &f->nodes[f->vals[v].node] : NULL;
}

static bool same_sizes(const PlGValue *a, const PlGValue *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof(int64_t)) == 0;
}

static bool plain(const PlGNode *n) { return n->nout == 1 && !(n->flags & (PL_FN_MUTATES | PL_FN_RECOMPUTED | PL_FN_DEAD)) && !n->nafter; }

/* The parts that value v, of the sum's sizes, is made of. A tree with so many leaves has one sum less: that bounds its depth. */
static bool gather(Parts *p, PlGVal v, bool root) {
  const PlGraph *f = p->f;
  const PlGNode *n = maker(f, v);
  if (!n || !plain(n) || (!root && p->uses[v] != 1) || p->written[f->vals[v].store]) return false;
  if (n->op == &pl_op_add) {
    if (++p->sums == PARTS) return false;
    for (int k = 0; k < 2; k++)
      if (n->nin != 2 || n->in[k] < 0 || !same_sizes(&f->vals[n->in[k]], &f->vals[v]) || !gather(p, n->in[k], false)) return false;
    return true;
  }
  if (n->op != &pl_op_slice_bwd || pl_attr_i(n->attrs, 3) != 1 || p->n == PARTS || p->written[f->vals[n->in[0]].store]) return false;
  p->part[p->n++] = n;
  return true;
}

static int64_t start_of(const PlGNode *n) { return pl_attr_i(n->attrs, 2); }

/* One dim, one after the other, from end to end. */
static bool covers(Parts *p, const PlGValue *whole, int *dim) {
  const PlGraph *f = p->f;
  int64_t at = 0;
  *dim = (int)pl_attr_i(p->part[0]->attrs, 1);
  for (int i = 1; i < p->n; i++)
    for (int k = i; k > 0 && start_of(p->part[k]) < start_of(p->part[k - 1]); k--) {
      const PlGNode *t = p->part[k];
      p->part[k] = p->part[k - 1];
      p->part[k - 1] = t;
    }
  for (int i = 0; i < p->n; i++) {
    if (pl_attr_i(p->part[i]->attrs, 1) != *dim || start_of(p->part[i]) != at) return false;
    at += f->vals[p->part[i]->in[0]].dims[*dim];
  }
  return p->n > 1 && at == whole->dims[*dim];
}

/* What value v, whose last dim is `dim`, was before dims were merged into that one; v itself where none were. */
static PlGVal unmerged(const Parts *p, PlGVal v, int dim) {
  const PlGraph *f = p->f;
  const PlGValue *y = &f->vals[v];
  const PlGNode *n = maker(f, v);
  if (!n || n->op != &pl_op_reshape || !plain(n) || dim != y->ndim - 1) return v;
  if (!(n->flags & PL_FN_VIEW) && p->uses[v] != 1) return v; /* the copy is made anyway */
  const PlGValue *x = &f->vals[n->in[0]];
  if (x->ndim <= y->ndim || x->numel == 0 || p->written[x->store] || memcmp(x->dims, y->dims, (size_t)dim * sizeof(int64_t)) != 0) return v;
  return n->in[0];
}

static PlStatus emit(PlGraph *f, int32_t i, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *a, const PlDesc *d, int32_t *node) {
  f->stage = f->nodes[i].stage;
  f->origin = f->nodes[i].origin;
  PlStatus s = pl_graph_node(f, op, nin, in, a, d, 0, node);
  f->stage = 0;
  f->origin = -1;
  PL_TRY(s);
  f->nodes[*node].where = f->nodes[i].where;
  return PL_OK;
}

/* made[2]: the join, and the view of it with the sum's sizes if need be, else -1. */
static PlStatus join(Parts *p, int32_t i, int dim, int32_t *made) {
  PlGraph *f = p->f;
  PlGVal in[PARTS];
  PlAttrs a;
  PlDesc d = {.dtype = f->vals[f->nodes[i].first].dtype};
  bool merged = true;
  for (int k = 0; k < p->n; k++) {
    in[k] = unmerged(p, p->part[k]->in[0], dim);
    const PlGValue *x = &f->vals[in[k]], *first = &f->vals[in[0]];
    merged = merged && in[k] != p->part[k]->in[0] && x->ndim == first->ndim &&
             memcmp(x->dims + dim + 1, first->dims + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof(int64_t)) == 0;
  }
  for (int k = 0; k < p->n && !merged; k++) in[k] = p->part[k]->in[0];
  const PlGValue *first = &f->vals[in[0]];
  pl_desc_set(&d, (PlDtype)d.dtype, first->ndim, first->dims);
  d.shape[dim] = 0;
  for (int k = 0; k < p->n; k++) d.shape[dim] += f->vals[in[k]].dims[dim];
  pl_attrs_init(&pl_op_slices_bwd, &a);
  pl_attrs_int(&a, 0, dim);
  PL_TRY(emit(f, i, &pl_op_slices_bwd, p->n, in, &a, &d, &made[0]));
  f->nodes[made[0]].flops = (double)f->vals[f->nodes[made[0]].first].numel;
  if (!merged) return PL_OK;
  const PlGVal joined = f->nodes[made[0]].first;
  const PlGValue *whole = &f->vals[f->nodes[i].first];
  PlDesc w = {.dtype = whole->dtype};
  pl_desc_set(&w, (PlDtype)w.dtype, whole->ndim, whole->dims);
  w.is_view = true;
  memcpy(w.strides, whole->dims + whole->ndim, whole->ndim * sizeof(int64_t));
  pl_attrs_init(&pl_op_reshape, &a);
  PL_TRY(pl_attrs_list(&a, 0, whole->ndim, whole->dims));
  return emit(f, i, &pl_op_reshape, 1, &joined, &a, &w, &made[1]);
}

typedef struct Work {
  int32_t *uses, *made, *order;
  PlGVal *map;
  uint8_t *written;
} Work;

static PlStatus rewrite(PlGraph *f, Work *w, int32_t i, int32_t *removed) {
  const PlGNode *n = &f->nodes[i];
  const PlGVal v = n->first;
  Parts p = {.f = f, .uses = w->uses, .written = w->written};
  int dim;
  if (n->op != &pl_op_add || !pl_is_float((PlDtype)f->vals[v].dtype) || !f->vals[v].contiguous) return PL_OK;
  if (!gather(&p, v, true) || !covers(&p, &f->vals[v], &dim)) return PL_OK;
  int32_t *made = w->made + 2 * i;
  const int32_t gone = p.n + p.sums;
  PL_TRY(join(&p, i, dim, made)); /* nodes may move: p is no more */
  w->map[v] = f->nodes[made[made[1] >= 0]].first;
  f->nodes[i].flags |= PL_FN_DEAD;
  *removed += gone - 1 - (made[1] >= 0);
  return PL_OK;
}

static void count_uses(const PlGraph *f, int32_t *uses) {
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) uses[f->nodes[i].in[k]]++;
  for (int32_t o = 0; o < f->noutputs; o++) uses[f->outputs[o]]++;
  for (int32_t r = 0; r < f->nregions; r++)
    for (int32_t k = 0; k < f->regions[r].ny; k++)
      if (f->regions[r].ys[k] >= 0) uses[f->regions[r].ys[k]]++;
}

/* The outermost sums come first, so that none is taken for the parts of a larger one. */
static PlStatus run(PlGraph *f, Work *w, int32_t *removed) {
  const int32_t nnodes = f->nnodes;
  const PlGVal nvals = f->nvals;
  int32_t n = 0;
  pl_graph_written(f, w->written);
  count_uses(f, w->uses);
  for (PlGVal v = 0; v < nvals + 2 * nnodes; v++) w->map[v] = v;
  for (int32_t i = 0; i < 2 * nnodes; i++) w->made[i] = -1;
  for (int32_t i = nnodes - 1; i >= 0; i--) PL_TRY(rewrite(f, w, i, removed));
  if (!*removed) return PL_OK;
  pl_graph_rewire(f, w->map);
  for (int32_t i = 0; i < nnodes; i++) {
    for (int k = 0; k < 2; k++)
      if (w->made[2 * i + k] >= 0) w->order[n++] = w->made[2 * i + k];
    w->order[n++] = i;
  }
  return pl_graph_compact(f, w->order);
}

PlStatus pl_pass_slices(PlGraph *f, int32_t *removed) {
  const size_t nodes = 3 * (size_t)f->nnodes + 1, vals = (size_t)f->nvals + nodes;
  bool any = false;
  *removed = 0;
  for (int32_t i = 0; i < f->nnodes && !any; i++) any = f->nodes[i].op == &pl_op_slice_bwd;
  if (!any) return PL_OK;
  Work w = {.uses = calloc(vals, sizeof *w.uses),
            .made = malloc(nodes * sizeof *w.made),
            .order = malloc(nodes * sizeof *w.order),
            .map = malloc(vals * sizeof *w.map),
            .written = calloc((size_t)f->nstores + nodes, 1)};
  PlStatus s =
      w.uses && w.made && w.order && w.map && w.written ? run(f, &w, removed) : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  free(w.uses);
  free(w.made);
  free(w.order);
  free(w.map);
  free(w.written);
  return s;
}
