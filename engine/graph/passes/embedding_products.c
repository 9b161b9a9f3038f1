/* SPDX-License-Identifier: MIT
 * Products with rows of a table. Where many ids pick from few rows, the table takes part in the product in place of what
 * was picked, and gradients are added up by row before they meet a weight (n ids, r rows, n many times r):
 *   linear(table[ids], w, b)   = linear(table, w, b)[ids]               r rows are multiplied, not n
 *   dyᵀ table[ids]             = rows(dy)ᵀ table                        rows(dy)[k] = Σ dy[t] over ids[t] = k
 *   rows(dy w)                 = rows(dy) w
 * What was picked may have its dims swapped (batch_first does that); then the ids are. Sums are taken in another order
 * and rows that nobody picked are multiplied, by zero, so all this is for unsafe_math. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

enum { MANY = 4, SWAPS = 4 }; /* ids a row, at least; swaps between picking and product, at most */

typedef struct Tables {
  PlGraph *f;
  int32_t *order, n; /* the new order of nodes */
  int32_t *version;  /* per store: at the node at hand */
  int32_t *uses;     /* per value: readers, outputs too */
  int32_t *changed;
} Tables;

/* A value, and the swaps of dims that lead to it, the last one first. */
typedef struct Path {
  PlGVal from;
  int n, swap[SWAPS][2];
} Path;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

static const PlGNode *maker(const PlGraph *f, PlGVal v) { return v >= 0 && f->vals[v].node >= 0 ? &f->nodes[f->vals[v].node] : NULL; }

static bool current(const Tables *t, PlGVal v) { return t->f->vals[v].version == t->version[t->f->vals[v].store]; }

/* Back over transposes that leave the last dim alone. `alone`: nobody else may read what is between. */
static bool back(const Tables *t, PlGVal v, bool alone, Path *p) {
  const PlGraph *f = t->f;
  for (p->n = 0;; v = maker(f, v)->in[0]) {
    if (alone && t->uses[v] != 1) return false;
    const PlGNode *n = maker(f, v);
    p->from = v;
    if (!n) return false;
    if (n->op != &pl_op_transpose || !(n->flags & PL_FN_VIEW)) return true;
    const int a = (int)pl_attr_i(n->attrs, 0), b = (int)pl_attr_i(n->attrs, 1), last = f->vals[v].ndim - 1;
    if (p->n == SWAPS || a < 0 || b < 0 || a >= last || b >= last) return false;
    p->swap[p->n][0] = a, p->swap[p->n++][1] = b;
  }
}

static bool wide_float(const PlGValue *v) { return v->dtype == PL_F32 || v->dtype == PL_F64; }

/* Is v table[ids], both still what they were, and worth it? *pick: the node. */
static bool picked(const Tables *t, PlGVal v, Path *p, int32_t *pick) {
  const PlGraph *f = t->f;
  if (v < 0 || !back(t, v, false, p)) return false;
  const PlGNode *n = maker(f, p->from);
  if (n->op != &pl_op_embedding || n->in[0] < 0 || n->in[1] < 0) return false;
  const PlGValue *table = &f->vals[n->in[0]], *ids = &f->vals[n->in[1]];
  *pick = f->vals[p->from].node;
  return wide_float(table) && table->ndim == 2 && ids->numel / MANY >= table->dims[0] && current(t, n->in[0]) && current(t, n->in[1]);
}

/* A new node in front of node i. */
static PlStatus emit(Tables *t, int32_t i, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, PlDesc *d, double flops,
                     PlGVal *out) {
  PlGraph *f = t->f;
  int32_t node;
  f->stage = f->nodes[i].stage;
  f->origin = f->nodes[i].origin;
  PlStatus s = pl_graph_node(f, op, nin, in, attrs, d, 0, &node);
  f->stage = 0;
  f->origin = -1;
  PL_TRY(s);
  f->nodes[node].flops = flops;
  f->nodes[node].where = f->nodes[i].where;
  *out = f->nodes[node].first;
  t->order[t->n++] = node;
  return PL_OK;
}

/* Node i does this instead; its results keep their types. */
static PlStatus become(Tables *t, int32_t i, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, double flops) {
  PlGraph *f = t->f;
  PlGNode *n = &f->nodes[i];
  PlGVal *kept = pl_graph_alloc(f, (size_t)nin * sizeof *kept);
  PlAttrs *a = attrs ? pl_graph_alloc(f, pl_attrs_size(attrs)) : NULL;
  if (!kept || (attrs && !a)) return no_memory();
  memcpy(kept, in, (size_t)nin * sizeof *kept);
  if (a) memcpy(a, attrs, pl_attrs_size(attrs));
  n->op = op, n->in = kept, n->nin = nin, n->attrs = a, n->flops = flops;
  ++*t->changed;
  return PL_OK;
}

/* ids with p's swaps: forwards, as they were made, or backwards. */
static PlStatus swapped(Tables *t, int32_t i, PlGVal ids, const Path *p, bool forwards, PlGVal *out) {
  *out = ids;
  for (int k = 0; k < p->n; k++) {
    const int *swap = p->swap[forwards ? p->n - 1 - k : k];
    const PlGValue *v = &t->f->vals[*out];
    PlDesc d = {.dtype = v->dtype};
    PlAttrs a;
    pl_desc_set(&d, (PlDtype)v->dtype, v->ndim, v->dims);
    d.is_view = true;
    memcpy(d.strides, v->dims + v->ndim, v->ndim * sizeof(int64_t));
    d.shape[swap[0]] = v->dims[swap[1]], d.shape[swap[1]] = v->dims[swap[0]];
    d.strides[swap[0]] = v->dims[v->ndim + swap[1]], d.strides[swap[1]] = v->dims[v->ndim + swap[0]];
    pl_attrs_init(&pl_op_transpose, &a);
    pl_attrs_int(&a, 0, swap[0]);
    pl_attrs_int(&a, 1, swap[1]);
    PL_TRY(emit(t, i, &pl_op_transpose, 1, out, &a, &d, 0, out));
  }
  return PL_OK;
}

/* Σ of dy's rows by id. */
static PlStatus rows(Tables *t, int32_t i, PlGVal dy, PlGVal ids, int64_t count, int64_t base, PlGVal *out) {
  const PlGValue *v = &t->f->vals[dy];
  const int64_t shape[2] = {count, v->dims[v->ndim - 1]};
  const PlGVal in[2] = {dy, ids};
  PlDesc d = {.dtype = v->dtype};
  PlAttrs a;
  pl_desc_set(&d, (PlDtype)v->dtype, 2, shape);
  pl_attrs_init(&pl_op_embedding_bwd, &a);
  pl_attrs_int(&a, 0, count);
  pl_attrs_int(&a, 2, 0);
  pl_attrs_int(&a, 3, base);
  return emit(t, i, &pl_op_embedding_bwd, 2, in, &a, &d, (double)v->numel, out);
}

static PlStatus linear(Tables *t, int32_t i) {
  PlGraph *f = t->f;
  const PlGNode *n = &f->nodes[i];
  Path p;
  PlAttrs a;
  int32_t pick;
  if (!picked(t, n->in[0], &p, &pick) || f->vals[n->first].dtype != f->vals[n->in[0]].dtype) return PL_OK;
  const PlGVal from[3] = {f->nodes[pick].in[0], n->in[1], n->nin > 2 ? n->in[2] : -1}, ids = f->nodes[pick].in[1];
  const PlGValue *x = &f->vals[from[0]], *w = &f->vals[from[1]];
  const int64_t shape[2] = {x->dims[0], w->dims[0]};
  const double flops = 2.0 * (double)x->numel * (double)shape[1];
  PlDesc d = {.dtype = x->dtype};
  PlGVal in[2];
  pl_desc_set(&d, (PlDtype)x->dtype, 2, shape);
  pl_attrs_init(&pl_op_embedding, &a);
  pl_attrs_int(&a, 1, 0);
  pl_attrs_int(&a, 2, pl_attr_i(f->nodes[pick].attrs, 2));
  PL_TRY(emit(t, i, &pl_op_linear, 3, from, NULL, &d, flops, &in[0]));
  PL_TRY(swapped(t, i, ids, &p, true, &in[1]));
  return become(t, i, &pl_op_embedding, 2, in, &a, (double)f->vals[f->nodes[i].first].numel);
}

static PlStatus weight(Tables *t, int32_t i) {
  PlGraph *f = t->f;
  const PlGNode *n = &f->nodes[i];
  const PlGVal dy = n->in[0];
  Path p;
  PlGVal in[2], ids;
  int32_t pick;
  if (!picked(t, n->in[1], &p, &pick) || !wide_float(&f->vals[dy]) || f->vals[dy].ndim != f->vals[n->in[1]].ndim) return PL_OK;
  in[1] = f->nodes[pick].in[0];
  const double flops = 2.0 * (double)f->vals[in[1]].numel * (double)f->vals[n->first].dims[0];
  const int64_t base = pl_attr_i(f->nodes[pick].attrs, 2);
  PL_TRY(swapped(t, i, f->nodes[pick].in[1], &p, true, &ids));
  PL_TRY(rows(t, i, dy, ids, f->vals[in[1]].dims[0], base, &in[0]));
  return become(t, i, &pl_op_matmul_flat_t, 2, in, NULL, flops);
}

static PlStatus by_row(Tables *t, int32_t i) {
  PlGraph *f = t->f;
  const PlGNode *n = &f->nodes[i];
  const PlGVal ids = n->in[1];
  Path p;
  if (pl_attr_has(n->attrs, 1) || pl_attr_i(n->attrs, 2) || !back(t, n->in[0], true, &p)) return PL_OK;
  const PlGNode *m = maker(f, p.from);
  if (m->op != &pl_op_matmul || !current(t, m->in[0]) || !current(t, m->in[1])) return PL_OK;
  const PlGValue *dy = &f->vals[m->in[0]], *w = &f->vals[m->in[1]], *out = &f->vals[n->first];
  if (!wide_float(dy) || w->ndim != 2 || dy->ndim != f->vals[p.from].ndim || f->vals[ids].numel / MANY < out->dims[0]) return PL_OK;
  const double flops = 2.0 * (double)w->numel * (double)out->dims[0];
  const PlGVal from = m->in[0];
  const int64_t base = pl_attr_i(n->attrs, 3), count = out->dims[0];
  PlGVal in[2] = {-1, m->in[1]}, there;
  PL_TRY(swapped(t, i, ids, &p, false, &there));
  PL_TRY(rows(t, i, from, there, count, base, &in[0]));
  return become(t, i, &pl_op_matmul, 2, in, NULL, flops);
}

static PlStatus rewrite(Tables *t, int32_t i) {
  const PlGNode *n = &t->f->nodes[i];
  if (n->flags & (PL_FN_RECOMPUTED | PL_FN_MUTATES | PL_FN_VIEW)) return PL_OK;
  if (n->op == &pl_op_linear) return linear(t, i);
  if (n->op == &pl_op_matmul_flat_t) return weight(t, i);
  if (n->op == &pl_op_embedding_bwd) return by_row(t, i);
  return PL_OK;
}

static void count_uses(const PlGraph *f, int32_t *uses) {
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) uses[f->nodes[i].in[k]]++;
  for (int32_t o = 0; o < f->noutputs; o++) uses[f->outputs[o]]++;
}

PlStatus pl_pass_table(PlGraph *f, int32_t *removed) {
  enum { NEW = SWAPS + 3 }; /* nodes in front of one, at most */
  const int32_t nnodes = f->nnodes, nvals = f->nvals;
  int32_t changed = 0;
  *removed = 0;
  if (!f->unsafe_math) return PL_OK;
  const size_t most = (size_t)nnodes * NEW + 1; /* each with one result */
  Tables t = {.f = f,
              .order = malloc((most + (size_t)nnodes) * sizeof *t.order),
              .version = calloc(most + (size_t)f->nstores, sizeof *t.version),
              .uses = calloc(most + (size_t)nvals, sizeof *t.uses),
              .changed = &changed};
  PlStatus s = t.order && t.version && t.uses ? PL_OK : no_memory();
  if (s == PL_OK) count_uses(f, t.uses);
  for (PlGVal v = 0; v < nvals && s == PL_OK; v++)
    if (f->vals[v].kind != PL_FV_NODE) t.version[f->vals[v].store] = f->vals[v].version;
  for (int32_t i = 0; i < nnodes && s == PL_OK; i++) {
    s = rewrite(&t, i);
    t.order[t.n++] = i;
    for (int32_t o = 0; o < f->nodes[i].nout; o++) {
      const PlGValue *v = &f->vals[f->nodes[i].first + o];
      if (v->dtype != PL_NDTYPE && v->version > t.version[v->store]) t.version[v->store] = v->version;
    }
  }
  if (s == PL_OK && changed) s = pl_graph_compact(f, t.order);
  free(t.order);
  free(t.version);
  free(t.uses);
  return s;
}
