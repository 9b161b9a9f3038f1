/* SPDX-License-Identifier: MIT
 * Scans along one dim: y_i depends on x_1 … x_i. Shapes stay. */
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/ops/shape/view.h"
#include "kernels/reduce.h"

#define SCAN(CODE) .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_REDUCTION, .kcode = CODE, PL_KERNEL(scan)

static int64_t dim_of(const PlMaker *g) { return pl_attr_i(g->attrs, 0); }

static PlStatus sum_infer(PlInfer *c) {
  const PlDtype d = dims_sum_dtype(c, 1);
  PL_TRY(dims_sum_check(c, d));
  pl_desc_set(&c->out[0], d, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

/* ---- cumsum ------------------------------------------------------------------------------------------ */

static PlStatus cumsum_grad(PlMaker *g) {
  PlVal v = g_with_int(g, &pl_op_cumsum_rev, 1, &g->dy[0], dim_of(g));
  g->dx[0] = g_to_input(g, v, (PlDtype)g->outd[0].dtype, 0);
  return g->status;
}
static PlStatus cumsum_rev_infer(PlInfer *c) {
  PL_TRY(pl_check_axis(c, 0, c->in[0]->ndim));
  return pl_infer_same(c);
}
static PlStatus cumsum_rev_grad(PlMaker *g) {
  g->dx[0] = g_with_int(g, &pl_op_cumsum, 1, &g->dy[0], dim_of(g));
  return g->status;
}

PL_OP(cumsum, SCAN(PLK_S_CUMSUM), .doc = "Running sums along dim. Integers and bools add up in i64; dtype= converts first.",
      .example = "print(T.tensor { 1, 2, 3 }:cumsum(1))  --> {1., 3., 6.}  -- f32[3] cpu", .formula = "dx_j = sum of dy_i over i >= j",
      .nattr = 2, .attrs = {A_DIM_REQ("dim"), A_DTYPE_OPT("dtype")}, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_POLY,
      .batch = pl_batch_dims, .infer = sum_infer, .grad = cumsum_grad);

PL_OP(cumsum_rev, SCAN(PLK_S_CUMSUM_REV), .doc = "Running sums along dim from its end: the gradient of cumsum.", .nattr = 1,
      .attrs = {A_INT_REQ("dim")}, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .batch = pl_batch_dims,
      .infer = cumsum_rev_infer, .grad = cumsum_rev_grad);

/* ---- cumprod ------------------------------------------------------------------------------------------- */

static PlStatus cumprod_grad(PlMaker *g) {
  PlVal in[2] = {g->dy[0], g->x[0]};
  g->dx[0] = g_with_int(g, &pl_op_cumprod_bwd, 2, in, dim_of(g));
  return g->status;
}

/* Products over 1, 2, 4, … neighbours: right with zeros, and all derivatives are. */
static PlStatus cumprod_composed(PlMaker *g) {
  const int64_t dim = dim_of(g), n = g->in[0]->ndim ? g->in[0]->shape[dim] : 1;
  PlVal y = g->x[0];
  for (int64_t far = 1; far < n; far *= 2) {
    PlVal parts[2] = {pl_g_slice(g, y, dim, 0, far, 1),
                      g_mul(g, pl_g_slice(g, y, dim, far, n - far, 1), pl_g_slice(g, y, dim, 0, n - far, 1))};
    y = g_with_int(g, &pl_op_cat, 2, parts, dim);
  }
  g->dx[0] = y;
  return g->status;
}

PL_OP(cumprod, SCAN(PLK_S_CUMPROD), .doc = "Running products along dim. Integers and bools multiply in i64.",
      .example = "print(T.tensor { 1, 2, 3 }:cumprod(1))  --> {1., 2., 6.}  -- f32[3] cpu",
      .formula = "dx_j = sum over i >= j of dy_i * product of x_k, k <= i, k != j", .nattr = 2,
      .attrs = {A_DIM_REQ("dim"), A_DTYPE_OPT("dtype")}, .flags = PL_F_CONTIGUOUS | PL_F_POLY, .batch = pl_batch_dims, .infer = sum_infer,
      .grad = cumprod_grad, .composed = cumprod_composed);

/* All inputs have one shape, and that dim. */
static PlStatus check_rows(const PlInfer *c) {
  for (int i = 0; i < c->nin; i++) {
    PL_TRY(pl_check_like(c, i, 1));
    PL_TRY(pl_check_float(c, i)); /* kernels write gradients, which are nothing else */
  }
  return pl_check_axis(c, 0, c->in[1]->ndim);
}
static PlStatus like_second(PlInfer *c) {
  PL_TRY(check_rows(c));
  pl_desc_set(&c->out[0], (PlDtype)c->in[1]->dtype, c->in[1]->ndim, c->in[1]->shape);
  return PL_OK;
}
static PlStatus cumprod_bwd_grad(PlMaker *g) {
  PlVal in[3] = {g->x[0], g->x[1], g->dy[0]}, out[2];
  PlAttrs a;
  pl_attrs_init(&pl_op_cumprod_bwd2, &a);
  pl_attrs_int(&a, 0, dim_of(g));
  out[0] = out[1] = PL_NONE;
  pl_g_op(g, &pl_op_cumprod_bwd2, 3, in, &a, out);
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

PL_OP(cumprod_bwd, .doc = "The gradient of cumprod; zeros in x need no care.", .gradient_of = &pl_op_cumprod, .nin = 2, .nout = 1,
      .nattr = 1, .args = {"dy", "x"}, .attrs = {A_INT_REQ("dim")}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = like_second, .grad = cumprod_bwd_grad, .hessian = "dx",
      PL_KERNEL(cumprod_bwd));

static PlStatus cumprod_bwd2_infer(PlInfer *c) {
  PL_TRY(check_rows(c));
  for (int i = 0; i < 2; i++) pl_desc_set(&c->out[i], (PlDtype)c->in[i]->dtype, c->in[i]->ndim, c->in[i]->shape);
  return PL_OK;
}
PL_OP(cumprod_bwd2, .doc = "The gradients of cumprod_bwd for dy and x; v is the gradient of its result.", .gradient_of = &pl_op_cumprod_bwd,
      .nin = 3, .nout = 2, .nattr = 1, .args = {"dy", "x", "v"}, .attrs = {A_INT_REQ("dim")}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = cumprod_bwd2_infer, .grad = pl_grad_by_composition, PL_KERNEL(cumprod_bwd2));

/* ---- logcumsumexp ----------------------------------------------------------------------------------------- */

static PlStatus lcse_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], pl_is_float(c->compute) ? c->compute : pl_default_float(), c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
static PlStatus lcse_grad(PlMaker *g) {
  PlVal in[3] = {g->dy[0], g->x[0], g->y[0]};
  g->dx[0] = g_with_int(g, &pl_op_logcumsumexp_bwd, 3, in, dim_of(g));
  return g->status;
}

PL_OP(logcumsumexp, SCAN(PLK_S_LOGCUMSUMEXP), .doc = "Running log(sum(exp(x))) along dim, without overflow.",
      .example = "print(T.tensor { 0, 0, 0 }:logcumsumexp(1))  --> {0.0000, 0.6931, 1.0986}  -- f32[3] cpu",
      .formula = "dx_j = sum over i >= j of dy_i exp(x_j - y_i)", .nattr = 1, .attrs = {A_DIM_REQ("dim")},
      .flags = PL_F_CONTIGUOUS | PL_F_POLY, .batch = pl_batch_dims, .infer = lcse_infer, .grad = lcse_grad);

/* L is the lower triangle of e^(x_j - y_i): Lᵀ dy is the gradient, L v the tangent. With w the gradient of the one and the
 * other of w beside it: for Lᵀ dy: ddy = L w, dx = w (Lᵀ dy), dy = -dy (L w); for L v: dv = Lᵀ w, dx = v (Lᵀ w), dy = -w (L v). */
static PlStatus lcse_bwd_grad(PlMaker *g) {
  const bool forward = pl_attr_i(g->attrs, 1) != 0;
  PlVal in[3] = {g->dy[0], g->x[1], g->x[2]};
  PlAttrs a;
  pl_attrs_init(g->op, &a);
  pl_attrs_int(&a, 0, dim_of(g));
  pl_attrs_int(&a, 1, !forward);
  const bool needed = g->want[0] || g->want[forward ? 1 : 2];
  PlVal other = needed ? pl_g_op(g, g->op, 3, in, &a, NULL) : PL_NONE;
  if (g->want[0]) g->dx[0] = other;
  if (g->want[1]) g->dx[1] = forward ? g_mul(g, g->x[0], other) : g_mul(g, g->dy[0], g->y[0]);
  if (g->want[2]) g->dx[2] = g_neg(g, forward ? g_mul(g, g->dy[0], g->y[0]) : g_mul(g, g->x[0], other));
  return g->status;
}

PL_OP(logcumsumexp_bwd, .doc = "The gradient of logcumsumexp for dy; forward: its tangent for dy.",
      .formula = "forward: sum over j <= i of dy_j exp(x_j - y_i)", .nin = 3, .nout = 1, .nattr = 2, .args = {"dy", "x", "y"},
      .attrs = {A_INT_REQ("dim"), A_BOOL("forward", 0)}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = like_second, .grad = lcse_bwd_grad, PL_KERNEL(logcumsumexp_bwd));

/* ---- cummax, cummin ----------------------------------------------------------------------------------------- */

static PlStatus cumextreme_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], c->compute, c->in[0]->ndim, c->in[0]->shape);
  pl_desc_set(&c->out[1], PL_I64, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

static PlStatus cumextreme_grad(PlMaker *g) {
  PlVal in[2] = {g->dy[0], g->y[1]};
  PlAttrs a;
  pl_attrs_init(&pl_op_dim_put, &a);
  pl_attrs_int(&a, 0, dim_of(g));
  pl_g_fail(g, pl_attrs_list(&a, 1, g->in[0]->ndim, g->in[0]->shape));
  pl_attrs_int(&a, 2, pl_attr_i(g->attrs, 1));
  g->dx[0] = pl_g_op(g, &pl_op_dim_put, 2, in, &a, NULL);
  return g->status;
}

#define CUMEXTREME(NAME, CODE, WORD, EXAMPLE)                                                                           \
  PL_OP(NAME, .nin = 1, .nout = 2, .args = {"x"}, .cls = PL_REDUCTION, .kcode = CODE,                                   \
        .doc = "The " WORD " so far along dim, and where it is (the last place among equals); "                         \
               "returns values, indices.",                                                                              \
        .example = EXAMPLE, .formula = "dx = dy added at the indices", .nattr = 2, .attrs = {A_DIM_REQ("dim"), A_BASE}, \
        .flags = PL_F_CONTIGUOUS, .batch = pl_batch_dims, .infer = cumextreme_infer, .grad = cumextreme_grad, PL_KERNEL(cumextreme));
CUMEXTREME(cummax, PLK_S_CUMMAX, "largest value",
           "print(T.tensor { 1, 3, 2 }:cummax(1))  --> {1., 3., 3.}  -- f32[3] cpu\t{1, 2, 2}  -- i64[3] cpu")
CUMEXTREME(cummin, PLK_S_CUMMIN, "smallest value",
           "print(T.tensor { 3, 1, 2 }:cummin(1))  --> {3., 1., 1.}  -- f32[3] cpu\t{1, 2, 2}  -- i64[3] cpu")
