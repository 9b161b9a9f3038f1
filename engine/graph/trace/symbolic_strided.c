/* SPDX-License-Identifier: MIT
 * Values of nodes are row-major in a graph. A pointwise result that lies otherwise (engine/tensor/layout.h) is a view of such a
 * value: of the op on its operands with their dims in the order of memory. So the planner and fusion see dense arrays, and the
 * script the strides that it would see without a trace. */
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"

/* An operand of the result's shape: its gradient is summed before it is turned, in the order of eager ones. */
static PlStatus full_shape(PlTensor *t, const PlDesc *d, PlTensor **out) {
  PlAttrs a;
  if (t->a.ndim == d->ndim && memcmp(t->a.shape, d->shape, d->ndim * sizeof *d->shape) == 0) {
    *out = pl_retain(t);
    return PL_OK;
  }
  pl_attrs_init(&pl_op_expand, &a);
  PL_TRY(pl_attrs_list(&a, 0, d->ndim, d->shape));
  return pl_sym_apply(&pl_op_expand, &t, 1, &a, out);
}

static PlStatus permuted(PlTensor *t, int ndim, const int *order, PlTensor **out) {
  int64_t dims[PL_MAX_DIM];
  PlAttrs a;
  for (int d = 0; d < ndim; d++) dims[d] = order[d];
  pl_attrs_init(&pl_op_permute, &a);
  PL_TRY(pl_attrs_list(&a, 0, ndim, dims));
  return pl_sym_apply(&pl_op_permute, &t, 1, &a, out);
}

/* t with its dims in that order. Not what t itself is a permutation of, where it is one: gradients arrive at t, where they are
 * summed in the order of eager ones. A pass sees that it is the same value. */
static PlStatus turned(PlTensor *t, const PlDesc *d, const int *order, PlTensor **out) {
  PlTensor *full;
  if (t->a.weak ||
      (t->a.ndim == 0 && pl_is_half(d->dtype) && t->a.dtype != d->dtype)) { /* f32 beside halves: as an array it would decide */
    *out = pl_retain(t);
    return PL_OK;
  }
  PL_TRY(full_shape(t, d, &full));
  PlStatus s = permuted(full, d->ndim, order, out);
  pl_tensor_release(full);
  return s;
}

PlStatus pl_sym_apply_strided(const PlCall *c, PlTensor **out) {
  const PlDesc *d = &c->desc[0];
  int order[PL_MAX_DIM], back[PL_MAX_DIM];
  PlTensor *in[PL_MAX_IN] = {NULL}, *y = NULL;
  PlStatus s = PL_OK;
  pl_layout_order(d->ndim, d->shape, d->strides, order);
  for (int k = 0; k < d->ndim; k++) back[order[k]] = k;
  for (int i = 0; i < c->nin && s == PL_OK; i++) {
    if (!c->in[i]) continue;
    if (i == c->nin - 1 && (c->op->flags & PL_F_STORES)) in[i] = pl_retain(c->in[i]); /* one element, no array of them */
    else s = turned(c->in[i], d, order, &in[i]);
  }
  pl_state.row_major++;
  if (s == PL_OK) s = pl_sym_apply(c->op, in, c->nin, c->op->nattr ? c->attrs : NULL, &y);
  pl_state.row_major--;
  if (s == PL_OK) s = permuted(y, d->ndim, back, out);
  if (s == PL_OK && memcmp((*out)->a.strides, d->strides, d->ndim * sizeof *d->strides) != 0) { /* of sizes of 1 */
    PlAttrs a;
    pl_tensor_release(*out);
    pl_attrs_init(&pl_op_as_strided, &a);
    s = pl_attrs_list(&a, 0, d->ndim, d->shape);
    if (s == PL_OK) s = pl_attrs_list(&a, 1, d->ndim, d->strides);
    if (s == PL_OK) pl_attrs_int(&a, 2, 0);
    if (s == PL_OK) s = pl_sym_apply(&pl_op_as_strided, &y, 1, &a, out);
  }
  if (s == PL_OK) pl_tensor_leave(*out); /* nobody has y: what is written to views of the result is a part of this one's history */
  pl_tensor_release(y);
  pl_release_all(in, c->nin);
  return s;
}
