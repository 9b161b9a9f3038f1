/* SPDX-License-Identifier: MIT
 * Ops that return positions: argmax, max and min with indices, sort, topk, order statistics. Index results
 * are i64 and count from index_base. The gradient goes to the places the values came from. */
#include "kernels/sort.h"
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/ops/shape/view.h"

/* ---- moves along a dim: the gradients of everything below ---------------------------------------------- */

static void move_attrs(PlMaker *g, const PlOp *op, PlAttrs *a, const PlArray *to, int dim_at, int base_at) {
  pl_attrs_init(op, a);
  if (pl_attr_has(g->attrs, dim_at)) pl_attrs_int(a, 0, pl_attr_i(g->attrs, dim_at));
  pl_g_fail(g, pl_attrs_list(a, 1, to->ndim, to->shape));
  pl_attrs_int(a, 2, pl_attr_i(g->attrs, base_at));
}

/* wide: the tensor with all positions along dim; few has as many as index. Without dim both are flat, and index says
 * how many. With dims reduced away few lacks the dim, or has it as 1. */
static PlStatus check_move(const PlInfer *c, int ndim, const int64_t *wide, const PlArray *few) {
  const PlArray *at = c->in[1];
  if (!pl_attr_has(c->attrs, 0)) return PL_OK;
  const int64_t dim = pl_attr_i(c->attrs, 0);
  PL_TRY(pl_check_axis(c, 0, ndim));
  bool kept = few->ndim == ndim, fits = kept || few->ndim + 1 == ndim || ndim == 0;
  for (int d = 0; fits && d < ndim; d++)
    if (d != dim) fits = few->shape[kept || d < dim ? d : d - 1] == wide[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: index %s does not fit along dim %lld of the %d dims", c->op->name, pl_desc_text(at), (long long)dim + 1,
            ndim);
  return PL_OK;
}

static PlStatus move_infer(PlInfer *c, bool put) {
  const PlArray *x = c->in[0], *at = c->in[1];
  const int n = pl_attr_n(c->attrs, 1);
  const int64_t *shape = pl_attr_list(c->attrs, 1);
  PL_TRY(pl_sizes_check(c, n, shape));
  PL_TRY(pl_check_dtype(c, 1, PL_I64));
  if (pl_attr_i(c->attrs, 2) != 0 && pl_attr_i(c->attrs, 2) != 1)
    PL_FAIL(PL_ERR_ARG, "%s: positions count from 0 or 1, not %lld", c->op->name, (long long)pl_attr_i(c->attrs, 2));
  if (put) PL_TRY(pl_check_like(c, 0, 1));
  else PL_TRY(pl_check_shape(c, 1, n, shape));
  PL_TRY(check_move(c, put ? n : x->ndim, put ? shape : x->shape, at));
  pl_desc_set(&c->out[0], c->compute, n, shape);
  return PL_OK;
}
static PlStatus dim_put_infer(PlInfer *c) { return move_infer(c, true); }
static PlStatus dim_pick_infer(PlInfer *c) { return move_infer(c, false); }

static PlStatus put_grad(PlMaker *g) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  if (!g->want[0]) return g->status;
  move_attrs(g, &pl_op_dim_pick, &a, g->in[0], 0, 2);
  g->dx[0] = pl_g_op(g, &pl_op_dim_pick, 2, in, &a, NULL);
  return g->status;
}
static PlStatus pick_grad(PlMaker *g) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  if (!g->want[0]) return g->status;
  move_attrs(g, &pl_op_dim_put, &a, g->in[0], 0, 2);
  g->dx[0] = pl_g_op(g, &pl_op_dim_put, 2, in, &a, NULL);
  return g->status;
}

#define MOVE(NAME, ROLES, DOC, GRAD)                                                                                                    \
  PL_OP(NAME, .doc = DOC, .nin = 2, .nout = 1, .nattr = 3, .args = {"x", "index"},                                                      \
        .attrs = {A_INT_OPT("dim"), A_SHAPE_REQ("shape"), A_INT_REQ("base")}, .cls = PL_INDEXING,                                       \
        .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .rows = {PL_ROWS_DIM, 0, ROLES, NULL}, .batch = pl_batch_dims, .infer = NAME##_infer, \
        .grad = GRAD, PL_KERNEL(NAME));
MOVE(dim_put, "cc:f", "Zeros of the given shape with x added at index along dim (none: flat).", put_grad)
MOVE(dim_pick, "fc:c", "x at index along dim (none: flat), in the given shape.", pick_grad)

static PlStatus give(PlMaker *g, int dim_at, int base_at) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->y[1]};
  move_attrs(g, &pl_op_dim_put, &a, g->in[0], dim_at, base_at);
  g->dx[0] = pl_g_op(g, &pl_op_dim_put, 2, in, &a, NULL);
  return g->status;
}

/* ---- argmax, max_dim ------------------------------------------------------------------------------------- */

static PlStatus arg_infer(PlInfer *c) {
  uint32_t mask = dims_single(c->attrs, 0, c->in[0]->ndim);
  PL_TRY(dims_nonempty(c, mask));
  dims_desc(&c->out[0], PL_I64, c->in[0], mask, pl_attr_i(c->attrs, 1) != 0);
  return PL_OK;
}

#define ARG(NAME, CODE, WORD, EXAMPLE)                                                                                                 \
  PL_OP(NAME,                                                                                                                          \
        .doc = "The index of the " WORD " along dim, or in the flattened tensor; the first among "                                     \
               "equals, NaN before all. i64, counted from index_base.",                                                                \
        .example = EXAMPLE, .nin = 1, .nout = 1, .nattr = 3, .args = {"x"}, .attrs = {A_DIM_OPT("dim"), A_BOOL("keepdim", 0), A_BASE}, \
        .cls = PL_REDUCTION, .flags = PL_F_CONTIGUOUS | PL_F_NOGRAD_OK | PL_F_NO_BOOL, .kcode = CODE, .infer = arg_infer,              \
        .rows = {PL_ROWS_DIM, 0, "f:c", NULL}, .batch = pl_batch_dims, PL_KERNEL(argmax));
ARG(argmax, 0, "largest value",
    "print(T.tensor { 1, 5, 2 }:argmax())  --> 2  -- i64[] cpu\n"
    "print(T.tensor { { 1, 5 }, { 7, 2 } }:argmax(2))  --> {2, 1}  -- i64[2] cpu")
ARG(argmin, 1, "smallest value", "print(T.tensor { 4, 1, 2 }:argmin())  --> 2  -- i64[] cpu")

/* Values and indices of the reduced shape; attributes dim_at = dim, next = keepdim. */
static PlStatus pair_infer(PlInfer *c, int dim_at) {
  uint32_t mask = dims_single(c->attrs, dim_at, c->in[0]->ndim);
  bool keep = pl_attr_i(c->attrs, dim_at + 1) != 0;
  PL_TRY(dims_nonempty(c, mask));
  dims_desc(&c->out[0], c->compute, c->in[0], mask, keep);
  dims_desc(&c->out[1], PL_I64, c->in[0], mask, keep);
  return PL_OK;
}
static PlStatus pair0_infer(PlInfer *c) { return pair_infer(c, 0); }
static PlStatus pair0_grad(PlMaker *g) { return give(g, 0, 2); }

#define PAIR(NAME, KERNEL, CODE, DIM, DOC, EXAMPLE)                                                                                        \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = "dx = dy at the indices, else 0", .nin = 1, .nout = 2, .nattr = 3, .args = {"x"}, \
        .attrs = {DIM, A_BOOL("keepdim", 0), A_BASE}, .cls = PL_REDUCTION, .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS,               \
        .kcode = CODE, .infer = pair0_infer, .grad = pair0_grad, .rows = {PL_ROWS_DIM, 0, "f:cc", NULL}, PL_KERNEL_OWN(KERNEL));
PAIR(max_dim, plk_cpu_max_dim, 0, A_DIM_REQ("dim"),
     "The largest value along dim and its index (the first among equals; NaN before all): values, indices. x:max(dim).",
     "print(T.max_dim(T.tensor { { 1, 5 }, { 7, 2 } }, 2))  --> {5., 7.}  -- f32[2] cpu\t{2, 1}  -- i64[2] cpu")
PAIR(min_dim, plk_cpu_max_dim, 1, A_DIM_REQ("dim"),
     "The smallest value along dim and its index (the first among equals; NaN before all): values, indices. x:min(dim).",
     "print(T.min_dim(T.tensor { { 1, 5 }, { 7, 2 } }, 2))  --> {1., 2.}  -- f32[2] cpu\t{1, 2}  -- i64[2] cpu")
PAIR(mode, plk_cpu_sort, PLK_O_MODE, A_DIM("dim", -1),
     "The value met most often along dim (the least among equals) and its last place: values, indices.",
     "print(T.tensor { 1, 2, 2, 3 }:mode())  --> 2.  -- f32[] cpu\t3  -- i64[] cpu")

/* ---- sorting ------------------------------------------------------------------------------------------------- */

static PlStatus sort_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  bool both = c->op->nout == 2;
  if (both) pl_desc_set(&c->out[0], c->compute, x->ndim, x->shape);
  pl_desc_set(&c->out[both ? 1 : 0], PL_I64, x->ndim, x->shape);
  return PL_OK;
}
static PlStatus sort_grad(PlMaker *g) { return give(g, 0, 3); }

#define ORDER A_DIM("dim", -1), A_BOOL("descending", 0), A_BOOL("stable", 1), A_BASE
PL_OP(sort,
      .doc = "x sorted along dim, and the places the values came from: values, indices. Always stable; NaN "
             "counts as largest.",
      .example = "print(T.tensor { 3, 1, 2 }:sort())  --> {1., 2., 3.}  -- f32[3] cpu\t{2, 3, 1}  -- i64[3] cpu\n"
                 "print((T.tensor { 3, 1, 2 }:sort { descending = true }))  --> {3., 2., 1.}  -- f32[3] cpu",
      .formula = "dx = dy put back at the indices", .nin = 1, .nout = 2, .nattr = 4, .args = {"x"}, .attrs = {ORDER}, .cls = PL_REDUCTION,
      .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS, .kcode = PLK_O_SORT, .infer = sort_infer, .grad = sort_grad, PL_KERNEL(sort));
PL_OP(argsort, .doc = "The places of x's values in sorted order along dim; stable, NaN counts as largest. i64.",
      .example = "print(T.tensor { 3, 1, 2 }:argsort())  --> {2, 3, 1}  -- i64[3] cpu", .nin = 1, .nout = 1, .nattr = 4, .args = {"x"},
      .attrs = {ORDER}, .cls = PL_REDUCTION, .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS | PL_F_NOGRAD_OK, .kcode = PLK_O_ARGSORT,
      .infer = sort_infer, PL_KERNEL(sort));

static PlStatus topk_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t k = pl_attr_i(c->attrs, 0), dim = pl_attr_i(c->attrs, 1), n = x->ndim ? x->shape[dim] : 1;
  if (k < 0 || k > n)
    PL_FAIL(PL_ERR_ARG, "topk: k = %lld, but dim %lld of %s has %lld elements", (long long)k, (long long)dim + 1, pl_desc_text(x),
            (long long)n);
  if (x->ndim == 0 && k == 0) PL_FAIL(PL_ERR_ARG, "topk: k = 0 of %s, whose result has one element; k = 1", pl_desc_text(x));
  for (int i = 0; i < 2; i++) {
    pl_desc_set(&c->out[i], i ? PL_I64 : c->compute, x->ndim, x->shape);
    if (x->ndim) c->out[i].shape[dim] = k;
  }
  return PL_OK;
}
static PlStatus topk_grad(PlMaker *g) { return give(g, 1, 4); }

PL_OP(topk,
      .doc = "The k largest (largest=false: smallest) values along dim in order, and their places: values, "
             "indices. NaN counts as largest.",
      .example = "print(T.tensor { 4, 1, 3 }:topk(2))  --> {4., 3.}  -- f32[2] cpu\t{1, 3}  -- i64[2] cpu",
      .formula = "dx = dy put back at the indices", .nin = 1, .nout = 2, .nattr = 5, .args = {"x"},
      .attrs = {A_INT_REQ("k"), A_DIM("dim", -1), A_BOOL("largest", 1), A_BOOL("sorted", 1), A_BASE}, .cls = PL_REDUCTION,
      .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS, .kcode = PLK_O_TOPK, .infer = topk_infer, .grad = topk_grad, PL_KERNEL(sort));

static PlStatus kth_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t k = pl_attr_i(c->attrs, 0), dim = pl_attr_i(c->attrs, 1), n = x->ndim ? x->shape[dim] : 1;
  PL_TRY(pair_infer(c, 1));
  if (k < 1 || k > n)
    PL_FAIL(PL_ERR_ARG, "kthvalue: k = %lld, but dim %lld of %s has %lld elements; k counts from 1", (long long)k, (long long)dim + 1,
            pl_desc_text(x), (long long)n);
  return PL_OK;
}
static PlStatus kth_grad(PlMaker *g) { return give(g, 1, 3); }

PL_OP(kthvalue, .doc = "The k-th smallest value along dim (k counts from 1) and its place: values, indices.",
      .example = "print(T.tensor { 4, 1, 3 }:kthvalue(2))  --> 3.  -- f32[] cpu\t3  -- i64[] cpu",
      .formula = "dx = dy at the indices, else 0", .nin = 1, .nout = 2, .nattr = 4, .args = {"x"},
      .attrs = {A_INT_REQ("k"), A_DIM("dim", -1), A_BOOL("keepdim", 0), A_BASE}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS, .kcode = PLK_O_KTH, .infer = kth_infer, .grad = kth_grad, PL_KERNEL(sort));

/* The median of no element at all is NaN; along an empty dim it is refused. */
static PlStatus median_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  if (pl_attr_has(c->attrs, 0) || x->numel > 0 || !pl_is_float(c->compute)) return pair_infer(c, 0);
  dims_desc(&c->out[0], c->compute, x, ~0u, pl_attr_i(c->attrs, 1) != 0);
  dims_desc(&c->out[1], PL_I64, x, ~0u, pl_attr_i(c->attrs, 1) != 0);
  return PL_OK;
}
/* Along a dim the element at the index takes it; of all elements those that are equal share, NaNs where y is NaN. */
static PlStatus median_grad(PlMaker *g) {
  if (pl_attr_has(g->attrs, 0)) return give(g, 0, 2);
  if (g->in[0]->numel == 0) {
    g->dx[0] = pl_g_expand_like(g, g->dy[0], 0);
    return g->status;
  }
  PlVal hit = pl_g2(g, &pl_op_logical_or, pl_g2(g, &pl_op_eq, g->x[0], g->y[0]), pl_g1(g, &pl_op_isnan, g->x[0]));
  g->dx[0] = g_mul(g, hit, g_div(g, g->dy[0], pl_g1(g, &pl_op_sum, hit)));
  return g->status;
}

PL_OP(median,
      .doc = "The median along dim, or of all elements, and its place: values, indices. The lower one of two; "
             "NaN if there is one. Without dim equal elements share the gradient.",
      .example = "print(T.tensor { 3, 1, 2 }:median())  --> 2.  -- f32[] cpu\n"
                 "print(T.tensor { { 3, 1, 2 } }:median(2))  --> {2.}  -- f32[1] cpu\t{3}  -- i64[1] cpu",
      .formula = "dx = dy at the indices, else 0; without dim dy [x = y] / count(x = y)", .nin = 1, .nout = 2, .nattr = 3, .args = {"x"},
      .attrs = {A_DIM_OPT("dim"), A_BOOL("keepdim", 0), A_BASE}, .cls = PL_REDUCTION, .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS,
      .kcode = PLK_O_MEDIAN, .infer = median_infer, .grad = median_grad, PL_KERNEL(sort));
