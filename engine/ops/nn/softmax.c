/* SPDX-License-Identifier: MIT
 * softmax and log_softmax along a dim, each with its own one-pass gradient. */
#include "kernels/softmax.h"
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "kernels/fused.h"

static PlStatus soft_infer(PlInfer *c) {
  PlDtype d = pl_attr_has(c->attrs, 1) ? (PlDtype)pl_attr_i(c->attrs, 1) : c->compute;
  if (!pl_is_float(d))
    PL_FAIL(PL_ERR_DTYPE, "%s: %s is not floating; convert it first: x:to(\"f32\")", c->op->name,
            pl_attr_has(c->attrs, 1) ? pl_dtype_name(d) : pl_desc_text(c->in[0]));
  pl_desc_set(&c->out[0], d, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
static PlStatus soft_bwd_infer(PlInfer *c) {
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_float(c, 1));
  PL_TRY(pl_check_like(c, 0, 1));
  PL_TRY(pl_check_axis(c, 0, c->in[1]->ndim));
  pl_desc_set(&c->out[0], (PlDtype)c->in[1]->dtype, c->in[1]->ndim, c->in[1]->shape);
  return PL_OK;
}

static PlVal soft_bwd(PlMaker *g, const PlOp *op, PlVal dy, PlVal y) {
  const PlVal in[2] = {dy, y};
  return g_with_int(g, op, 2, in, pl_attr_i(g->attrs, 0));
}
static PlVal row_sum(PlMaker *g, PlVal v, int ndim) { return g_reduce(g, &pl_op_sum, v, ndim, ndim ? 1u << pl_attr_i(g->attrs, 0) : 0); }

static PlStatus softmax_grad(PlMaker *g) {
  g->dx[0] = g_to_input(g, soft_bwd(g, &pl_op_softmax_bwd, g->dy[0], g->y[0]), (PlDtype)g->outd[0].dtype, 0);
  return g->status;
}
static PlStatus log_softmax_grad(PlMaker *g) {
  g->dx[0] = g_to_input(g, soft_bwd(g, &pl_op_log_softmax_bwd, g->dy[0], g->y[0]), (PlDtype)g->outd[0].dtype, 0);
  return g->status;
}

/* r = y (dy - s), s = sum(dy y); v the gradient of r:  ddy = y (v - sum(v y)),  dy' = v (dy - s) - dy sum(v y). */
static PlStatus softmax_bwd_grad(PlMaker *g) {
  PlVal dy = g->x[0], y = g->x[1], v = g->dy[0];
  int nd = g->in[1]->ndim;
  if (g->want[0]) g->dx[0] = soft_bwd(g, &pl_op_softmax_bwd, v, y);
  if (g->want[1]) {
    PlVal s = row_sum(g, g_mul(g, dy, y), nd), t = row_sum(g, g_mul(g, v, y), nd);
    g->dx[1] = g_sub(g, g_mul(g, v, g_sub(g, dy, s)), g_mul(g, dy, t));
  }
  return g->status;
}

/* r = dy - e^y s, s = sum dy:  ddy = v - sum(v e^y),  dy' = -v e^y s. */
static PlStatus log_softmax_bwd_grad(PlMaker *g) {
  PlVal v = g->dy[0], ve = g_mul(g, v, pl_g1(g, &pl_op_exp, g->x[1]));
  int nd = g->in[1]->ndim;
  if (g->want[0]) g->dx[0] = g_sub(g, v, row_sum(g, ve, nd));
  if (g->want[1]) g->dx[1] = g_neg(g, g_mul(g, ve, row_sum(g, g->x[0], nd)));
  return g->status;
}

#define SOFT(NAME, CODE, FUSED, FORMULA, DOC, EXAMPLE)                                                                                  \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 1, .nout = 1, .nattr = 2, .args = {"x"},                       \
        .attrs = {A_DIM("dim", -1), A_DTYPE_OPT("dtype")}, .cls = PL_REDUCTION, .flags = PL_F_CONTIGUOUS | PL_F_POLY, .kcode = CODE,    \
        .rows = {PL_ROWS_DIM, 0, "f:f", NULL}, .batch = pl_batch_dims, .infer = soft_infer, .grad = NAME##_grad,                        \
        .with_tangent = plk_cpu_softmax_with_tangent, .fused = {1 + PLK_FUSED_##FUSED}, PL_KERNEL(softmax));                            \
  PL_OP(NAME##_bwd, .doc = "The gradient of " #NAME ".", .nin = 2, .nout = 1, .nattr = 1, .args = {"dy", "y"},                          \
        .attrs = {A_INT_REQ("dim")}, .cls = PL_REDUCTION, .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .batch = pl_batch_dims, \
        .rows = {PL_ROWS_DIM, 0, "ff:f", NULL}, .kcode = CODE, .infer = soft_bwd_infer, .grad = NAME##_bwd_grad,                        \
        .fused = {1 + PLK_FUSED_##FUSED##_BWD}, PL_KERNEL(softmax_bwd));
SOFT(softmax, 0, SOFTMAX, "y = exp(x - max x) / sum;  dx = y (dy - sum(dy y))",
     "exp(x) over its sum along dim: positive numbers that add up to 1. Floating tensors, or dtype= to convert first.",
     "print(T.tensor { 1, 2, 3 }:softmax())  --> {0.0900, 0.2447, 0.6652}  -- f32[3] cpu")
SOFT(log_softmax, 1, LOG_SOFTMAX, "y = x - logsumexp(x);  dx = dy - exp(y) sum(dy)",
     "The logarithm of softmax along dim, computed without overflow. Floating tensors, or dtype= to convert first.",
     "print(T.tensor { 1, 2, 3 }:log_softmax())  --> {-2.4076, -1.4076, -0.4076}  -- f32[3] cpu")
