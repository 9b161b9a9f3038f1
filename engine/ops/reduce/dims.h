/* SPDX-License-Identifier: MIT
 * For ops that reduce dims: attribute lists as bit masks, output shapes, and the emitters that bring a
 * reduced gradient back to the rank of the input. */
#ifndef PL_ENGINE_OPS_REDUCE_DIMS_H
#define PL_ENGINE_OPS_REDUCE_DIMS_H

#include "engine/ops/make.h"
#include "engine/ops/names.h"

/* Bit d: dimension d is named by attribute k (a list of dims, none or empty: all). */
static inline uint32_t dims_listed(const PlAttrs *a, int k, int ndim) {
  uint32_t every = ndim >= 32 ? ~0u : (1u << ndim) - 1, mask = 0;
  if (!pl_attr_has(a, k) || pl_attr_n(a, k) == 0) return every;
  for (int i = 0; i < pl_attr_n(a, k); i++) mask |= 1u << pl_attr_list(a, k)[i];
  return mask & every;
}
/* The same for an optional single dim. */
static inline uint32_t dims_single(const PlAttrs *a, int k, int ndim) {
  uint32_t every = (1u << ndim) - 1;
  return pl_attr_has(a, k) ? (1u << pl_attr_i(a, k)) & every : every;
}
static inline int64_t dims_count(const PlArray *x, uint32_t mask) {
  int64_t n = 1;
  for (int d = 0; d < x->ndim; d++)
    if (mask >> d & 1) n *= x->shape[d];
  return n;
}
static inline void dims_desc(PlDesc *o, PlDtype dtype, const PlArray *x, uint32_t mask, bool keep) {
  int nd = 0;
  for (int d = 0; d < x->ndim; d++)
    if (!(mask >> d & 1)) o->shape[nd++] = x->shape[d];
    else if (keep) o->shape[nd++] = 1;
  o->dtype = (uint8_t)dtype;
  o->ndim = (uint8_t)nd;
}
static inline PlStatus dims_nonempty(const PlInfer *c, uint32_t mask) {
  for (int d = 0; d < c->in[0]->ndim; d++)
    if ((mask >> d & 1) && c->in[0]->shape[d] == 0)
      PL_FAIL(PL_ERR_SHAPE, "%s: dim %d of %s is empty and nothing has no %s; reduce another dim", c->op->name, d + 1,
              pl_desc_text(c->in[0]), c->op->name);
  return PL_OK;
}
/* Sums of integers and bools are i64 unless attribute k says otherwise. */
static inline PlDtype dims_sum_dtype(const PlInfer *c, int k) {
  if (pl_attr_has(c->attrs, k)) return (PlDtype)pl_attr_i(c->attrs, k);
  return pl_is_float(c->compute) ? c->compute : PL_I64;
}
/* Sums of floats are made in i64, wide, where dtype is of integers, and sums of integers are: what converting each element to a
 * narrower dtype first would saturate, or to bool make true, is another number then. */
static inline PlStatus dims_sum_check(const PlInfer *c, PlDtype d) {
  const PlDtype x = (PlDtype)c->in[0]->dtype;
  if (x == d || x == PL_BOOL || pl_is_float(d) || d == PL_I64 || (!pl_is_float(x) && d != PL_BOOL)) return PL_OK;
  PL_FAIL(PL_ERR_DTYPE, "%s: elements of %s do not fit into dtype = %s one by one; convert them: x:to(\"%s\"):%s{dtype=\"%s\"}",
          c->op->name, pl_desc_text(c->in[0]), pl_dtype_name(d), pl_dtype_name(d), c->op->name, pl_dtype_name(d));
}
/* Puts the dims of mask back as ones, if the reduction dropped them. */
static inline PlVal g_undo_reduce(PlMaker *g, PlVal v, int ndim, uint32_t mask, bool keep) {
  if (keep || v == PL_NONE) return v;
  bool all = mask == (1u << ndim) - 1;
  for (int d = 0; d < ndim && !all; d++)
    if (mask >> d & 1) {
      PlAttrs a;
      pl_attrs_init(&pl_op_unsqueeze, &a);
      pl_attrs_int(&a, 0, d);
      v = pl_g_op(g, &pl_op_unsqueeze, 1, &v, &a, NULL);
    }
  return v;
}
/* op(v) over the dims of mask with keepdim, for ops whose attributes begin with dims, keepdim. */
static inline PlVal g_reduce(PlMaker *g, const PlOp *op, PlVal v, int ndim, uint32_t mask) {
  PlAttrs a;
  int64_t dims[PL_MAX_DIM];
  int n = 0;
  for (int d = 0; d < ndim; d++)
    if (mask >> d & 1) dims[n++] = d;
  if (n == 0) return v;
  pl_attrs_init(op, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, n, dims));
  pl_attrs_int(&a, 1, 1);
  return pl_g_op(g, op, 1, &v, &a, NULL);
}
/* op(v…; one integer attribute) */
static inline PlVal g_with_int(PlMaker *g, const PlOp *op, int nin, const PlVal *in, int64_t v) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_attrs_int(&a, 0, v);
  return pl_g_op(g, op, nin, in, &a, NULL);
}
static inline PlVal g_to_input(PlMaker *g, PlVal v, PlDtype have, int i) {
  PlDtype d = (PlDtype)g->in[i]->dtype;
  return v != PL_NONE && d != have ? pl_g_cast(g, v, d) : v;
}

#endif
