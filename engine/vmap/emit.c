/* SPDX-License-Identifier: MIT
 * What batching rules are written with: ops whose results live as long as the call, and whose errors stick. */
#include <stdlib.h>
#include <string.h>

#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

static void stick(PlBatchCall *c, PlStatus s) {
  if (c->status == PL_OK) c->status = s;
}

static PlTensor *keep(PlBatchCall *c, PlTensor *t) {
  if (c->nmade == c->cap) {
    int cap = c->cap ? 2 * c->cap : 16;
    PlTensor **m = realloc(c->made, (size_t)cap * sizeof *m);
    if (!m) {
      pl_tensor_release(t);
      stick(c, pl_fail(PL_ERR_OOM, "%s: out of memory for a batch", c->op->name));
      return NULL;
    }
    c->made = m;
    c->cap = cap;
  }
  return c->made[c->nmade++] = t;
}

PlTensor *pl_b_take(PlBatchCall *c, PlTensor *t) { return keep(c, t); }

void pl_b_ops(PlBatchCall *c, const PlOp *op, int nin, PlTensor *const *in, const PlAttrs *attrs, PlTensor **outs) {
  PlTensor *res[PL_MAX_OUT] = {NULL};
  if (c->status == PL_OK) stick(c, pl_apply(op, in, nin, attrs, res));
  bool ok = c->status == PL_OK;
  for (int o = 0; o < op->nout; o++) outs[o] = ok && res[o] ? keep(c, res[o]) : NULL;
}

PlTensor *pl_b_op(PlBatchCall *c, const PlOp *op, int nin, PlTensor *const *in, const PlAttrs *attrs) {
  PlTensor *outs[PL_MAX_OUT];
  pl_b_ops(c, op, nin, in, attrs, outs);
  return outs[0];
}

PlTensor *pl_b_two(PlBatchCall *c, const PlOp *op, PlTensor *a, PlTensor *b) {
  PlTensor *in[2] = {a, b};
  return pl_b_op(c, op, 2, in, NULL);
}

PlTensor *pl_b_number(PlBatchCall *c, double v) {
  PlTensor *t;
  if (c->status != PL_OK) return NULL;
  stick(c, pl_tensor_number(&t, v == (double)(int64_t)v, (int64_t)v, v));
  return c->status == PL_OK ? keep(c, t) : NULL;
}

static PlTensor *with_sizes(PlBatchCall *c, const PlOp *op, PlTensor *t, int ndim, const int64_t *shape) {
  PlAttrs a;
  if (c->status != PL_OK) return NULL;
  pl_attrs_init(op, &a);
  stick(c, pl_attrs_list(&a, 0, ndim, shape));
  return pl_b_op(c, op, 1, &t, &a);
}

PlTensor *pl_b_reshape(PlBatchCall *c, PlTensor *t, int ndim, const int64_t *shape) {
  if (c->status != PL_OK) return NULL;
  if (t->a.ndim == ndim && memcmp(t->a.shape, shape, (size_t)ndim * sizeof *shape) == 0) return t;
  return with_sizes(c, &pl_op_reshape, t, ndim, shape);
}

PlTensor *pl_b_ranked(PlBatchCall *c, int i, int rank) {
  PlTensor *t = c->full[i];
  if (!t) return c->in[i];
  if (t->a.ndim == rank + 1) return t;
  int64_t sizes[PL_MAX_DIM];
  int lead = rank + 1 - t->a.ndim;
  if (rank >= PL_MAX_DIM) {
    stick(c, pl_fail(PL_ERR_SHAPE, "%s: inside vmap a tensor has at most %d dimensions", c->op->name, PL_MAX_DIM - 1));
    return NULL;
  }
  sizes[0] = c->n;
  for (int d = 1; d <= lead; d++) sizes[d] = 1;
  memcpy(sizes + 1 + lead, t->a.shape + 1, (size_t)(t->a.ndim - 1) * sizeof *sizes);
  return pl_b_reshape(c, t, rank + 1, sizes);
}

PlTensor *pl_b_each(PlBatchCall *c, int i) {
  int64_t sizes[PL_MAX_DIM];
  PlTensor *t = c->in[i];
  if (c->full[i] || !t) return c->full[i];
  if (t->a.ndim == PL_MAX_DIM) {
    stick(c, pl_fail(PL_ERR_SHAPE, "%s: inside vmap a tensor has at most %d dimensions", c->op->name, PL_MAX_DIM - 1));
    return NULL;
  }
  sizes[0] = c->n;
  memcpy(sizes + 1, t->a.shape, t->a.ndim * sizeof *sizes);
  return with_sizes(c, &pl_op_expand, t, t->a.ndim + 1, sizes);
}

PlTensor *pl_b_move(PlBatchCall *c, PlTensor *t, int from, int to) {
  int64_t order[PL_MAX_DIM];
  int n = 0;
  if (c->status != PL_OK) return NULL;
  if (from == to) return t;
  for (int d = 0; d < t->a.ndim; d++)
    if (d != from) order[n++] = d;
  memmove(order + to + 1, order + to, (size_t)(n - to) * sizeof *order);
  order[to] = from;
  return with_sizes(c, &pl_op_permute, t, t->a.ndim, order);
}

PlTensor *pl_b_merge(PlBatchCall *c, PlTensor *t, int from) {
  int64_t sizes[PL_MAX_DIM];
  int n = 0;
  if (c->status != PL_OK) return NULL;
  for (int d = 0; d < t->a.ndim; d++)
    if (d == from + 1) sizes[n - 1] *= t->a.shape[d];
    else sizes[n++] = t->a.shape[d];
  return pl_b_reshape(c, t, n, sizes);
}

PlTensor *pl_b_sum(PlBatchCall *c, PlTensor *t, int from, int to) {
  int64_t dims[PL_MAX_DIM];
  if (c->status != PL_OK || from == to) return t;
  for (int d = from; d < to; d++) dims[d - from] = d;
  return with_sizes(c, &pl_op_sum, t, to - from, dims);
}
