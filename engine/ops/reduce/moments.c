/* SPDX-License-Identifier: MIT
 * Vector norms, variance and standard deviation. Sums run in double. */
#include <math.h>

#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "kernels/fused.h"
#include "kernels/reduce.h"

static PlVal wide(PlMaker *g, PlVal v, uint32_t mask, int keep_at) {
  return g_undo_reduce(g, v, g->in[0]->ndim, mask, pl_attr_i(g->attrs, keep_at) != 0);
}

/* ---- norm ------------------------------------------------------------------------------------------- */

static PlStatus norm_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  uint32_t mask = dims_listed(c->attrs, 1, x->ndim);
  double p = pl_attr_f(c->attrs, 0);
  PL_TRY(pl_check_float(c, 0));
  PlDtype d = pl_attr_has(c->attrs, 3) ? (PlDtype)pl_attr_i(c->attrs, 3) : c->compute;
  if (!pl_is_float(d)) PL_FAIL(PL_ERR_DTYPE, "norm: dtype %s is not floating", pl_dtype_name(d));
  if (isinf(p) || p < 0) PL_TRY(dims_nonempty(c, mask));
  dims_desc(&c->out[0], d, x, mask, pl_attr_i(c->attrs, 2) != 0);
  return PL_OK;
}

static PlVal pow_n(PlMaker *g, PlVal v, double e) { return pl_g2(g, &pl_op_pow, v, pl_g_num(g, e)); }
/* v where y is not 0, else `other`. */
static PlVal at_zero(PlMaker *g, PlVal y, double other, PlVal v) {
  return g_where(g, pl_g2(g, &pl_op_eq, y, pl_g_num(g, 0)), pl_g_num(g, other), v);
}
/* dy / v, 0 where y is 0: by an infinite divisor, so that the transposed (forward mode) is 0 there, too. */
static PlVal over(PlMaker *g, PlVal dy, PlVal y, PlVal v) { return g_div(g, dy, at_zero(g, y, (double)INFINITY, v)); }

/* y = (sum |x|^p)^(1/p):  dx = dy sign(x) (|x| / y)^(p-1), 0 where y = 0; p = 2: dy x / y. */
static PlStatus norm_grad(PlMaker *g) {
  const PlArray *a = g->in[0];
  double p = pl_attr_f(g->attrs, 0);
  uint32_t mask = dims_listed(g->attrs, 1, a->ndim);
  PlVal x = g->x[0], y = wide(g, g->y[0], mask, 2), dy = wide(g, g->dy[0], mask, 2), v;
  if (p == 0) {
    v = g_muln(g, pl_g_expand_like(g, dy, 0), 0);
  } else if (p == 1) {
    v = g_mul(g, pl_g1(g, &pl_op_sign, x), dy);
  } else if (p == 2 && pl_is_half((PlDtype)a->dtype) && g->outd[0].dtype == a->dtype) { /* dy / y is seldom a half where y is small */
    PlVal s = over(g, pl_g_cast(g, dy, PL_F32), y, pl_g_cast(g, y, PL_F32));
    v = pl_g_cast(g, g_mul(g, pl_g_cast(g, x, PL_F32), s), (PlDtype)a->dtype);
  } else if (p == 2) {
    v = g_mul(g, x, over(g, dy, y, y));
  } else if (isinf(p)) {
    PlVal hit = pl_g2(g, &pl_op_eq, pl_g1(g, &pl_op_abs, x), y), n = g_reduce(g, &pl_op_sum, hit, a->ndim, mask);
    v = g_mul(g, g_mul(g, pl_g1(g, &pl_op_sign, x), hit), g_div(g, dy, n));
  } else {
    PlVal size = pl_g1(g, &pl_op_abs, x);
    /* The quotient first: its powers stay in range. Below 2 the next derivative of a power is infinite at 0, and NaN in all of the sum
     * through y: where x is 0 its power is one of its own, and for p < 1 there is none. */
    PlVal m = pow_n(g, over(g, p < 2 ? at_zero(g, x, 1, size) : size, y, y), p - 1);
    if (p < 2) m = g_where(g, pl_g2(g, &pl_op_eq, x, pl_g_num(g, 0)), p < 1 ? pl_g_num(g, 0) : pow_n(g, size, p - 1), m);
    if (p < 1) m = at_zero(g, y, 0, m);
    v = g_mul(g, g_mul(g, pl_g1(g, &pl_op_sign, x), m), dy);
  }
  g->dx[0] = g_to_input(g, v, (PlDtype)g->outd[0].dtype, 0);
  return g->status;
}

PL_OP(norm,
      .doc = "The p-norm of the elements, over the dims given or all; p may be inf, -inf or 0 (how many are not 0). "
             "Floating tensors only.",
      .example = "print(T.tensor { 3, 4 }:norm(), T.tensor { 3, -4 }:norm(1))  --> 5.  -- f32[] cpu\t7.  -- f32[] cpu",
      .formula = "y = (sum |x|^p)^(1/p);  dx = dy sign(x) (|x|/y)^(p-1), 0 where y = 0", .nin = 1, .nout = 1, .nattr = 4, .args = {"x"},
      .attrs = {A_FLOAT("p", 2), A_DIMS_OPT("dim"), A_BOOL("keepdim", 0), A_DTYPE_OPT("dtype")}, .cls = PL_REDUCTION,
      .rows = {PL_ROWS_DIMS, 1, "f:c", NULL}, .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY,
      .infer = norm_infer, .grad = norm_grad, .with_tangent = plk_cpu_norm_with_tangent, PL_KERNEL(norm));

/* ---- var, std ----------------------------------------------------------------------------------------- */

static PlStatus var_infer(PlInfer *c) {
  PL_TRY(pl_check_float(c, 0));
  dims_desc(&c->out[0], c->compute, c->in[0], dims_listed(c->attrs, 0, c->in[0]->ndim), pl_attr_i(c->attrs, 2) != 0);
  return PL_OK;
}

/* var: dx = dy 2 (x - mean) / (n - correction); std: dy / (2 y) in place of dy, 0 where y = 0. The mean is rounded to x's dtype,
 * which shows where it is large beside the differences: their own mean, e, is taken off again. */
static PlStatus var_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  uint32_t mask = dims_listed(g->attrs, 0, x->ndim);
  const double n = (double)dims_count(x, mask) - pl_attr_f(g->attrs, 1);
  const bool half = pl_is_half((PlDtype)x->dtype); /* a mean in f32 is good enough for these */
  PlVal wider = half ? pl_g_cast(g, g->x[0], PL_F32) : g->x[0], dy = g->dy[0];
  PlVal d = g_sub(g, wider, g_reduce(g, &pl_op_mean, wider, x->ndim, mask));
  bool std = g->op == &pl_op_std;
  if (std) dy = over(g, dy, g->y[0], g->y[0]);
  dy = g_muln(g, dy, (std ? 1 : 2) / n); /* infinite for 0; below 0 as it is, unlike y: as PyTorch */
  dy = wide(g, dy, mask, 2);
  if (half || n == 0) {
    const PlVal v = g_mul(g, dy, d);
    g->dx[0] = half ? pl_g_cast(g, v, (PlDtype)x->dtype) : v;
    return g->status;
  }
  const PlVal e = g_reduce(g, &pl_op_mean, d, x->ndim, mask);
  const PlVal some = pl_g2(g, &pl_op_logical_and, pl_g1(g, &pl_op_isfinite, e), pl_g2(g, &pl_op_ne, e, pl_g_num(g, 0)));
  const PlVal off = g_where(g, some, g_neg(g, g_mul(g, dy, e)), pl_g_num(g, 0));
  g->dx[0] = pl_g3(g, &pl_op_addcmul, off, dy, d);
  return g->status;
}

#define MOMENT(NAME, CODE, FUSED, FORMULA, DOC, EXAMPLE)                                                                        \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},               \
        .attrs = {A_DIMS_OPT("dim"), A_FLOAT("correction", 1), A_BOOL("keepdim", 0)}, .cls = PL_REDUCTION,                      \
        .flags = PL_F_CONTIGUOUS | PL_F_STRIDED, .kcode = CODE, .rows = {PL_ROWS_DIMS, 0, "f:c", NULL}, .batch = pl_batch_dims, \
        .infer = var_infer, .grad = var_grad, .with_tangent = plk_cpu_var_with_tangent, .fused = {1 + PLK_FUSED_##FUSED}, PL_KERNEL(var));
MOMENT(var, 0, VAR, "y = sum (x - mean)^2 / max(0, n - correction);  dx = 2 dy (x - mean) / (n - correction)",
       "The variance over the dims given or all; correction=1 is the unbiased estimate. Floating tensors only.",
       "print(T.tensor { 1, 2, 3, 4 }:var())  --> 1.6667  -- f32[] cpu")
MOMENT(std, 1, STD, "y = sqrt(var);  dx = dy (x - mean) / (y (n - correction)), 0 where y = 0",
       "The standard deviation over the dims given or all; correction=1 as in var. Floating tensors only.",
       "print(T.tensor { 1, 2, 3 }:std())  --> 1.  -- f32[] cpu")
