/* SPDX-License-Identifier: MIT
 * Elementwise ops of three tensors (where, lerp, addcmul …) and clamping. Formula above each op. */
#include <math.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

#define FLAGS             (PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY)
#define ELEMENTWISE(CODE) PL_ELEMENTWISE(PLK_EW_##CODE)

static PlVal strong(PlMaker *g, int i) { /* see binary.c */
  return g->in[i]->weak ? pl_g_cast(g, g->x[i], (PlDtype)g->in[i]->dtype) : g->x[i];
}
static double number(const PlAttrs *a, int k, double otherwise) {
  if (!pl_attr_has(a, k)) return otherwise;
  return (a->isint >> k) & 1 ? (double)pl_attr_i(a, k) : pl_attr_f(a, k);
}

/* z = c ? x : y;  dx = c ? dz : 0;  dy = c ? 0 : dz */
static PlStatus where_infer(PlInfer *c) {
  PL_TRY(pl_check_dtype(c, 0, PL_BOOL));
  return pl_infer_broadcast(c);
}
static PlStatus where_grad(PlMaker *g) {
  if (g->want[1]) g_give(g, 1, g_where(g, g->x[0], g->dy[0], g_zero(g)));
  if (g->want[2]) g_give(g, 2, g_where(g, g->x[0], g_zero(g), g->dy[0]));
  return g->status;
}
PL_OP(where,
      .doc = "x where condition (bool) holds, else y; all three broadcast, x and y promote. For the "
             "positions of true elements see nonzero.",
      .example = "local x = T.tensor { -1, 2 }\n"
                 "print(T.where(x:gt(0), x, 0))  --> {0., 2.}  -- f32[2] cpu",
      .formula = "dx = dz where condition, else 0; dy the other way round", .nin = 3, .nout = 1, .args = {"condition", "x", "y"},
      .cls = PL_POINTWISE, .flags = PL_F_LINEAR | PL_F_SCALAR | PL_F_POLY | PL_F_NOMETHOD, .promote = PL_PROMOTE_ALL, .promote_mask = 6,
      .conditions = 1, .infer = where_infer, .grad = where_grad, ELEMENTWISE(WHERE));

/* z = x + w (y - x);  dx = dz (1 - w);  dy = dz w;  dw = dz (y - x) */
static PlStatus lerp_grad(PlMaker *g) {
  PlVal w = strong(g, 2), dz = g->dy[0];
  if (g->want[0]) g_give(g, 0, g_mul(g, dz, g_rsubn(g, 1, w)));
  if (g->want[1]) g_give(g, 1, g_mul(g, dz, w));
  if (g->want[2]) g_give(g, 2, g_mul(g, dz, g_sub(g, strong(g, 1), strong(g, 0))));
  return g->status;
}
PL_OP(lerp,
      .doc = "x + weight (y - x): from x at weight 0 to y at weight 1. weight is a tensor or a number; "
             "floating inputs.",
      .example = "print(T.lerp(T.tensor { 0, 10 }, T.tensor { 1, 20 }, 0.5))  --> { 0.5000, 15.0000}  -- f32[2] cpu",
      .formula = "dx = dz (1 - w); dy = dz w; dw = dz (y - x)", .nin = 3, .nout = 1, .args = {"x", "y", "weight"}, .cls = PL_POINTWISE,
      .flags = FLAGS | PL_F_WIDE, .promote = PL_PROMOTE_ALL, .infer = pl_infer_broadcast, .grad = lerp_grad, ELEMENTWISE(LERP));

/* z = x + v a b;  dx = dz;  da = v dz b;  db = v dz a */
static PlStatus addcmul_infer(PlInfer *c) {
  if (!pl_is_float(c->compute) && pl_attr_has(c->attrs, 0) && !(c->attrs->isint & 1))
    PL_FAIL(PL_ERR_ARG, "addcmul: value %g is not an integer, but the tensors are", pl_attr_f(c->attrs, 0));
  return pl_infer_broadcast(c);
}
static PlStatus addcmul_grad(PlMaker *g) {
  double v = number(g->attrs, 0, 1);
  g_give(g, 0, g->dy[0]);
  PlVal scaled = v == 1 ? g->dy[0] : g_muln(g, g->dy[0], v);
  if (g->want[1]) g_give(g, 1, g_mul(g, scaled, g->x[2]));
  if (g->want[2]) g_give(g, 2, g_mul(g, scaled, g->x[1]));
  return g->status;
}
PL_OP(addcmul, .doc = "x + value a b, broadcast and promoted; value is 1 unless given.",
      .example = "print(T.addcmul(T.tensor { 1 }, T.tensor { 2 }, T.tensor { 3 }, { value = 10 }))  --> {61.}  -- f32[1] cpu",
      .formula = "dx = dz; da = value dz b; db = value dz a", .nin = 3, .nout = 1, .nattr = 1, .args = {"x", "a", "b"},
      .attrs = {A_SCALAR_OPT("value")}, .cls = PL_POINTWISE, .flags = FLAGS | PL_F_WIDE, .wraps = 7, .promote = PL_PROMOTE_ALL,
      .infer = addcmul_infer, .grad = addcmul_grad, ELEMENTWISE(ADDCMUL));

/* z = x + v a / b;  dx = dz;  da = v dz / b;  db = -v dz a / b² */
static PlStatus addcdiv_grad(PlMaker *g) {
  double v = number(g->attrs, 0, 1);
  g_give(g, 0, g->dy[0]);
  PlVal scaled = v == 1 ? g->dy[0] : g_muln(g, g->dy[0], v), b = strong(g, 2);
  if (g->want[1]) g_give(g, 1, g_div(g, scaled, b));
  if (g->want[2]) g_give(g, 2, g_neg(g, g_mul(g, scaled, g_div(g, g_div(g, strong(g, 1), b), b))));
  return g->status;
}
PL_OP(addcdiv, .doc = "x + value a / b, broadcast and promoted; floating inputs, value is 1 unless given.",
      .example = "print(T.addcdiv(T.tensor { 1 }, T.tensor { 6 }, T.tensor { 3 }, { value = 10 }))  --> {21.}  -- f32[1] cpu",
      .formula = "dx = dz; da = value dz / b; db = -value dz a / b^2", .nin = 3, .nout = 1, .nattr = 1, .args = {"x", "a", "b"},
      .attrs = {A_SCALAR_OPT("value")}, .cls = PL_POINTWISE, .flags = FLAGS | PL_F_WIDE, .promote = PL_PROMOTE_ALL,
      .infer = pl_infer_broadcast, .grad = addcdiv_grad, ELEMENTWISE(ADDCDIV));

/* ---- clamp ------------------------------------------------------------------------------------------- */

/* z = min(max(x, lo), hi) with numbers: dx = dz strictly between them, else 0. An integer x with a
 * fractional bound gives the default float. */
static PlStatus clamp_infer(PlInfer *c) {
  if (!pl_attr_has(c->attrs, 0) && !pl_attr_has(c->attrs, 1)) PL_FAIL(PL_ERR_ARG, "clamp: give min, max or both");
  PlDtype d = c->compute;
  bool fraction = false;
  for (int k = 0; k < 2; k++) fraction |= pl_attr_has(c->attrs, k) && !((c->attrs->isint >> k) & 1);
  if (!pl_is_float(d) && fraction) d = pl_default_float();
  if (d == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "clamp: %s is bool; convert it: x:to(\"i64\")", pl_desc_text(c->in[0]));
  pl_desc_set(&c->out[0], d, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
PL_HOST_KERNEL(pl_host_clamp) {
  if (call->in[0]->dtype == call->out[0]->dtype) return plk_cpu_elementwise(call);
  PlkCall k = *call;
  k.code = PLK_EW_CAST;
  PL_TRY(plk_cpu_elementwise(&k));
  const PlArray *in[1] = {call->out[0]};
  k.code = PLK_EW_CLAMP;
  k.in = in;
  return plk_cpu_elementwise(&k);
}
static PlStatus clamp_grad(PlMaker *g) {
  const PlVal in[2] = {g->dy[0], g->x[0]};
  g->dx[0] = pl_g_op(g, &pl_op_clamp_bwd, 2, in, g->attrs, NULL);
  return g->status;
}
PL_OP(clamp,
      .doc = "x limited to [min, max]; either bound may be left out. NaN stays. For bounds that are "
             "tensors see clamp_tensor.",
      .example = "print(T.tensor { -2, 0.5, 9 }:clamp(0, 1))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu\n"
                 "print(T.tensor { -2, 9 }:clamp { min = 0 })  --> {0., 9.}  -- f32[2] cpu",
      .formula = "dx = dz where min < x < max, else 0", .nin = 1, .nout = 1, .nattr = 2, .args = {"x"},
      .attrs = {A_SCALAR_OPT("min"), A_SCALAR_OPT("max")}, .cls = PL_POINTWISE, .flags = FLAGS, .promote = PL_PROMOTE_ALL,
      .kcode = PLK_EW_CLAMP, .infer = clamp_infer, .grad = clamp_grad, PL_KERNEL_OWN(pl_host_clamp), .fused = {1 + PLK_EW_CLAMP});

static PlStatus clamp_bwd_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, g_again2(g, g->dy[0], g->x[1]));
  return g->status;
}
PL_OP(clamp_bwd, .doc = "The gradient of clamp.", .nin = 2, .nout = 1, .nattr = 2, .args = {"dy", "x"},
      .attrs = {A_SCALAR_OPT("min"), A_SCALAR_OPT("max")}, .cls = PL_POINTWISE, .flags = PL_F_POLY | PL_F_INTERNAL,
      .promote = PL_PROMOTE_ALL, .infer = pl_infer_broadcast, .grad = clamp_bwd_grad, ELEMENTWISE(CLAMP_BWD));

/* Both bounds: max where it is below min or x, min where x is below it, x between them; at a bound x and it take half each, unless
 * min = max = x, which is x alone. A NaN is nobody's but x's. */
static void clamp_between_grad(PlMaker *g) {
  PlVal x = g->x[0], lo = g->x[1], hi = g->x[2], dy = g->dy[0], none = g_zero(g), half = g_muln(g, dy, 0.5);
  PlVal over = pl_g2(g, &pl_op_logical_or, pl_g2(g, &pl_op_gt, x, hi), pl_g2(g, &pl_op_gt, lo, hi));
  PlVal under = pl_g2(g, &pl_op_lt, x, lo), open = pl_g2(g, &pl_op_lt, lo, hi);
  PlVal at_lo = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, x, lo), open);
  PlVal at_hi = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, x, hi), open);
  PlVal beside = pl_g2(g, &pl_op_logical_or, over, under), shared = pl_g2(g, &pl_op_logical_or, at_lo, at_hi);
  if (g->want[0]) g_give(g, 0, g_where(g, beside, none, g_where(g, shared, half, dy)));
  if (g->want[1]) g_give(g, 1, g_where(g, over, none, g_where(g, under, dy, g_where(g, at_lo, half, none))));
  if (g->want[2]) g_give(g, 2, g_where(g, over, dy, g_where(g, at_hi, half, none)));
}
static PlStatus clamp_tensor_grad(PlMaker *g) {
  const bool low = g->nin > 1 && g->in[1], high = g->nin > 2 && g->in[2];
  const int at = low ? 1 : 2;
  const PlOp *loses = low ? &pl_op_lt : &pl_op_gt, *wins = low ? &pl_op_gt : &pl_op_lt;
  if (low && high) clamp_between_grad(g);
  else {
    if (g->want[0]) g_give(g, 0, g_won(g, loses, g->x[0], g->x[at], g->dy[0]));
    if (g->want[at]) g_give(g, at, g_won(g, wins, g->x[0], g->x[at], g->dy[0]));
  }
  return g->status;
}
static PlStatus clamp_tensor_infer(PlInfer *c) {
  if (!c->in[1] && !c->in[2]) PL_FAIL(PL_ERR_ARG, "clamp_tensor: give min, max or both");
  return pl_infer_broadcast(c);
}
PL_HOST_KERNEL(pl_host_clamp_tensor) {
  const PlArray *const *in = call->in, *two[2] = {in[0], in[1] ? in[1] : in[2]};
  if (in[1] && in[2]) return plk_cpu_elementwise(call);
  PlkCall k = *call;
  k.code = in[1] ? PLK_EW_MAXIMUM : PLK_EW_MINIMUM;
  k.nin = 2;
  k.in = two;
  return plk_cpu_elementwise(&k);
}
PL_OP(clamp_tensor,
      .doc = "x limited to [min, max], all three broadcast and promoted: min(max(x, min), max). "
             "Either bound may be left out.",
      .example = "print(T.clamp_tensor(T.tensor { -2, 0.5, 9 }, T.zeros(3), T.tensor { 1, 2, 3 }))\n"
                 "--> {0.0000, 0.5000, 3.0000}  -- f32[3] cpu",
      .formula = "the one taken gets the gradient, of two equal ones each half", .nin = 3, .nopt = 2, .nout = 1,
      .args = {"x", "min", "max"}, .cls = PL_POINTWISE, .flags = FLAGS, .promote = PL_PROMOTE_ALL, .kcode = PLK_EW_CLAMP_T,
      .infer = clamp_tensor_infer, .grad = clamp_tensor_grad, PL_KERNEL_OWN(pl_host_clamp_tensor));
