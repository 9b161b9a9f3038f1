/* SPDX-License-Identifier: MIT
 * Pointwise losses: inputs broadcast and promote, reduction is none, mean (default) or sum. The kernels
 * fuse the formula with the reduction; gradients are composed of primitives, so higher orders work. */
#include "kernels/loss.h"
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"

#define REDUCTION A_ENUM("reduction", "none|mean|sum", 1)

static PlStatus loss_infer(PlInfer *c) {
  if (!pl_is_float(c->compute))
    PL_FAIL(PL_ERR_DTYPE, "%s: x is %s and target %s, but losses are floating; convert: x:to(\"f32\")", c->op->name, pl_desc_text(c->in[0]),
            pl_desc_text(c->in[1]));
  PL_TRY(pl_infer_broadcast(c));
  if (pl_attr_i(c->attrs, 0) != 0) c->out[0].ndim = 0;
  return PL_OK;
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* The shape that the inputs broadcast to; returns its number of elements. */
static int64_t common_shape(const PlMaker *g, int *ndim, int64_t *shape) {
  int64_t n = 1;
  *ndim = 0;
  for (int i = 0; i < g->nin; i++)
    if (g->in[i] && g->in[i]->ndim > *ndim) *ndim = g->in[i]->ndim;
  for (int d = 0; d < *ndim; d++) {
    shape[d] = 1;
    for (int i = 0; i < g->nin; i++) {
      int k = g->in[i] ? d - (*ndim - g->in[i]->ndim) : -1;
      if (k >= 0 && g->in[i]->shape[k] != 1) shape[d] = g->in[i]->shape[k];
    }
    n *= shape[d];
  }
  return n;
}

static bool has_shape(const PlArray *a, int ndim, const int64_t *shape) {
  bool same = a->ndim == ndim;
  for (int d = 0; same && d < ndim; d++) same = a->shape[d] == shape[d];
  return same;
}

/* dy of one element of the unreduced loss: dy, dy / n or dy / batch. */
static PlVal scale_of(PlMaker *g, PlVal dy) {
  int ndim;
  int64_t shape[PL_MAX_DIM], n = common_shape(g, &ndim, shape), reduction = pl_attr_i(g->attrs, 0);
  if (reduction == 1) return g_divn(g, dy, (double)(n ? n : 1));
  if (reduction == 3) return g_divn(g, dy, (double)(ndim && shape[0] ? shape[0] : 1));
  return dy;
}
static PlVal scale(PlMaker *g) { return scale_of(g, g->dy[0]); }

/* Input i's gradient: v broadcasts to the common shape and is summed to the input's. */
static void hand(PlMaker *g, int i, PlVal v) {
  int ndim;
  int64_t shape[PL_MAX_DIM];
  bool equal = true;
  common_shape(g, &ndim, shape);
  for (int k = 0; k < g->nin; k++) equal = equal && (!g->in[k] || has_shape(g->in[k], ndim, shape));
  if (!equal) {
    PlAttrs a;
    pl_attrs_init(&pl_op_expand, &a);
    pl_g_fail(g, pl_attrs_list(&a, 0, ndim, shape));
    v = pl_g_op(g, &pl_op_expand, 1, &v, &a, NULL);
    if (!has_shape(g->in[i], ndim, shape)) {
      PlVal in[2] = {v, PL_NONE};
      pl_attrs_init(&pl_op_sum_to, &a);
      pl_g_fail(g, pl_attrs_list(&a, 0, g->in[i]->ndim, g->in[i]->shape));
      v = pl_g_op(g, &pl_op_sum_to, 2, in, &a, NULL);
    }
  }
  g->dx[i] = g_to_input(g, v, (PlDtype)g->outd[0].dtype, i);
}

/* For losses of x - t: v is dx, -v is dt. */
static PlStatus hand_difference(PlMaker *g, PlVal v) {
  if (g->want[0]) hand(g, 0, v);
  if (g->want[1]) hand(g, 1, g_neg(g, v));
  return g->status;
}
static PlVal difference(PlMaker *g) { return g_sub(g, g->x[0], g->x[1]); }

static PlVal clamp(PlMaker *g, PlVal v, double lo, double hi) {
  PlAttrs a;
  pl_attrs_init(&pl_op_clamp, &a);
  pl_attrs_float(&a, 0, lo);
  if (hi > lo) pl_attrs_float(&a, 1, hi);
  return pl_g_op(g, &pl_op_clamp, 1, &v, &a, NULL);
}

#define LOSS(NAME, CODE, NIN, NOPT, NATTR, INFER, FORMULA, DOC, EXAMPLE, ...)                                                     \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = NIN, .nopt = NOPT, .nout = 1, .autocast = PL_CAST_F32,   \
        .nattr = NATTR, .args = {"x", "target", "weight", "pos_weight"}, .attrs = {__VA_ARGS__}, .cls = PL_REDUCTION,             \
        .flags = PL_F_CONTIGUOUS | PL_F_SCALAR | PL_F_NOMETHOD, .promote = PL_PROMOTE_ALL, .batch = pl_batch_loss, .kcode = CODE, \
        .infer = INFER, .grad = NAME##_grad, PL_KERNEL(loss));

/* ---- losses of x - t, alone and with the tangent ------------------------------------------------------------------- */

static PlVal sign_of(PlMaker *g, PlVal d) { return pl_g1(g, &pl_op_sign, d); }

/* What the unreduced loss changes by where x does by q: its slope times q. */
static PlVal slope(PlMaker *g, int code) {
  const PlVal d = difference(g);
  const double p = code == PLK_L_SMOOTH_L1 || code == PLK_L_HUBER ? pl_attr_f(g->attrs, 1) : 0;
  switch (code) {
  case PLK_L_MSE: return g_muln(g, d, 2);
  case PLK_L_SMOOTH_L1: return p > 0 ? clamp(g, g_divn(g, d, p), -1, 1) : sign_of(g, d);
  case PLK_L_HUBER: return clamp(g, d, -p, p);
  default: return sign_of(g, d);
  }
}

/* The same of the slope; PL_NONE: nothing. */
static PlVal curvature(PlMaker *g, int code, PlVal q) {
  const double p = code == PLK_L_SMOOTH_L1 || code == PLK_L_HUBER ? pl_attr_f(g->attrs, 1) : 0;
  if (code == PLK_L_MSE) return g_muln(g, q, 2);
  if (code == PLK_L_L1 || !(p > 0)) return PL_NONE;
  const bool smooth = code == PLK_L_SMOOTH_L1;
  const double most = smooth ? 1 : p;
  PlVal in[2] = {smooth ? g_divn(g, q, p) : q, smooth ? g_divn(g, difference(g), p) : difference(g)};
  PlAttrs a;
  pl_attrs_init(&pl_op_clamp_bwd, &a);
  pl_attrs_float(&a, 0, -most);
  pl_attrs_float(&a, 1, most);
  return pl_g_op(g, &pl_op_clamp_bwd, 2, in, &a, NULL);
}

/* The gradient of both results. */
static PlStatus dual_grad(PlMaker *g) {
  const int code = g->op->kcode;
  const PlVal ul = g->dy[0], ut = g->dy[1];
  PlVal dx = ul == PL_NONE ? PL_NONE : g_mul(g, slope(g, code), scale_of(g, ul));
  if (ut != PL_NONE && g->want[2]) g->dx[2] = g_mul(g, slope(g, code), scale_of(g, ut));
  if (!g->want[0] && !g->want[1]) return g->status;
  if (ut != PL_NONE) {
    const PlVal more = curvature(g, code, g_mul(g, g->x[2], scale_of(g, ut)));
    dx = dx == PL_NONE ? more : more == PL_NONE ? dx : g_add(g, dx, more);
  }
  if (dx == PL_NONE) return g->status;
  if (g->want[0]) g->dx[0] = dx;
  if (g->want[1]) g->dx[1] = g_neg(g, dx);
  return g->status;
}

static PlStatus dual_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  if (x->dtype != PL_F32 && x->dtype != PL_F64) PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(x));
  for (int i = 1; i < 3; i++) {
    PL_TRY(pl_check_like(c, i, 0));
    PL_TRY(pl_check_dtype(c, i, (PlDtype)x->dtype));
  }
  for (int o = 0; o < 2; o++) pl_desc_set(&c->out[o], (PlDtype)x->dtype, pl_attr_i(c->attrs, 0) == 0 ? x->ndim : 0, x->shape);
  return PL_OK;
}

/* Where x alone has a tangent, all is of one shape, and there is a kernel: value and tangent in one pass, as where they are computed
 * together, so the bits are the same. */
static PlStatus tangent_of(PlMaker *g, const PlOp *dual) {
  const PlArray *x = g->in[0], *t = g->in[1];
  PlVal in[3] = {g->x[0], g->x[1], g->dy[0]}, out[2] = {PL_NONE, PL_NONE};
  PlAttrs a;
  if (in[2] == PL_NONE || g->dy[1] != PL_NONE || x->device != PL_CPU || t->device != PL_CPU || x->weak || t->weak ||
      (x->dtype != PL_F32 && x->dtype != PL_F64) || t->dtype != x->dtype || g->outd[0].dtype != x->dtype ||
      !has_shape(t, x->ndim, x->shape))
    return g->status;
  pl_attrs_init(dual, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  if (dual->nattr > 1) pl_attrs_float(&a, 1, pl_attr_f(g->attrs, 1));
  pl_g_op(g, dual, 3, in, &a, out);
  g->dx[0] = out[1];
  return g->status;
}

/* As LOSS, for losses of x - t; the last argument is attribute 1, if there is one. */
#define LOSS_OF_DIFFERENCE(NAME, CODE, NATTR, INFER, FORMULA, DOC, EXAMPLE, ...)                                                          \
  static PlStatus NAME##_grad(PlMaker *g) { return hand_difference(g, g_mul(g, slope(g, CODE), scale(g))); }                              \
  static PlStatus NAME##_tangent(PlMaker *g) { return tangent_of(g, &pl_op_##NAME##_dual); }                                              \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 2, .nout = 1, .autocast = PL_CAST_F32, .nattr = NATTR,           \
        .args = {"x", "target"}, .attrs = {__VA_ARGS__}, .cls = PL_REDUCTION, .flags = PL_F_CONTIGUOUS | PL_F_SCALAR | PL_F_NOMETHOD,     \
        .promote = PL_PROMOTE_ALL, .batch = pl_batch_loss, .kcode = CODE, .infer = INFER, .grad = NAME##_grad, .tangent = NAME##_tangent, \
        .dual = &pl_op_##NAME##_dual, PL_KERNEL(loss));                                                                                   \
  PL_OP(NAME##_dual, .doc = #NAME " and the tangent of its result, where v is that of x.", .nin = 3, .nout = 2, .nattr = NATTR,           \
        .args = {"x", "target", "v"}, .attrs = {__VA_ARGS__}, .cls = PL_REDUCTION, .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL,              \
        .batch = pl_batch_loss, .kcode = CODE, .infer = dual_infer, .grad = dual_grad, PL_KERNEL(loss_dual));

LOSS_OF_DIFFERENCE(mse_loss, PLK_L_MSE, 1, loss_infer, "l = (x - t)^2;  dx = 2 (x - t) dy, dt = -dx",
                   "The squared difference of x and target, averaged (reduction: none, mean, sum).",
                   "print(T.mse_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.  -- f32[] cpu", REDUCTION)

LOSS_OF_DIFFERENCE(l1_loss, PLK_L_L1, 1, loss_infer, "l = |x - t|;  dx = sign(x - t) dy, dt = -dx",
                   "The absolute difference of x and target, averaged (reduction: none, mean, sum).",
                   "print(T.l1_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.  -- f32[] cpu", REDUCTION)

static PlStatus smooth_infer(PlInfer *c) {
  double v = pl_attr_f(c->attrs, 1);
  bool huber = c->op == &pl_op_huber_loss;
  if (huber ? !(v > 0) : !(v >= 0))
    PL_FAIL(PL_ERR_ARG, "%s: %s must be %s, got %g", c->op->name, huber ? "delta" : "beta", huber ? "above 0" : "0 or more", v);
  return loss_infer(c);
}
LOSS_OF_DIFFERENCE(smooth_l1_loss, PLK_L_SMOOTH_L1, 2, smooth_infer,
                   "d = x - t;  l = d^2/(2 beta) if |d| < beta, else |d| - beta/2;  dx = clamp(d/beta, -1, 1) dy",
                   "Squared difference near 0, absolute difference beyond beta, averaged. beta = 0 is l1_loss.",
                   "print(T.smooth_l1_loss(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }, { reduction = \"none\" }))\n"
                   "--> {0.1250, 2.5000}  -- f32[2] cpu",
                   REDUCTION, A_FLOAT("beta", 1))

LOSS_OF_DIFFERENCE(huber_loss, PLK_L_HUBER, 2, smooth_infer,
                   "d = x - t;  l = d^2/2 if |d| < delta, else delta (|d| - delta/2);  dx = clamp(d, -delta, delta) dy",
                   "Squared difference near 0, linear beyond delta, averaged.",
                   "print(T.huber_loss(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }, { reduction = \"none\" }))\n"
                   "--> {0.1250, 2.5000}  -- f32[2] cpu",
                   REDUCTION, A_FLOAT("delta", 1))

/* ---- binary cross entropy ---------------------------------------------------------------------------------- */

static PlStatus bce_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *t = c->in[1];
  if (!has_shape(t, x->ndim, x->shape))
    PL_FAIL(PL_ERR_SHAPE, "%s: x is %s, target %s; the shapes must be equal", c->op->name, pl_desc_text(x), pl_desc_text(t));
  return loss_infer(c);
}

static PlVal scale_weighted(PlMaker *g) {
  PlVal s = scale(g);
  return g->in[2] ? g_mul(g, g->x[2], s) : s;
}

static PlStatus binary_cross_entropy_grad(PlMaker *g) {
  PlVal x = g->x[0], t = g->x[1], s = scale_weighted(g), rest = g_rsubn(g, 1, x);
  if (g->want[0]) hand(g, 0, g_mul(g, g_div(g, g_sub(g, x, t), clamp(g, g_mul(g, x, rest), (double)1e-12f, 0)), s));
  if (g->want[1]) hand(g, 1, g_mul(g, g_sub(g, pl_g1(g, &pl_op_log, rest), pl_g1(g, &pl_op_log, x)), s));
  return g->status;
}
LOSS(binary_cross_entropy, PLK_L_BCE, 3, 1, 1, bce_infer,
     "l = -w (t log x + (1 - t) log(1 - x)), logs at least -100;  dx = w (x - t)/(x (1 - x)) dy",
     "Cross entropy of probabilities x in [0, 1] with targets in [0, 1] of the same shape, averaged; weight broadcasts.",
     "print(T.binary_cross_entropy(T.tensor { 0.5, 0.9 }, T.tensor { 1, 1 }))  --> 0.3993  -- f32[] cpu", REDUCTION)

/* (1 - t) sigmoid(x) - p t sigmoid(-x): the same as sigmoid(x) - t, of which nothing but rounding is left where both are nearly 1. */
static PlStatus binary_cross_entropy_with_logits_grad(PlMaker *g) {
  PlVal x = g->x[0], t = g->x[1], p = g->in[3] ? g->x[3] : PL_NONE, s = scale_weighted(g);
  if (g->want[0]) {
    PlVal rest = g_logistic(g, g_rsubn(g, 1, t), x), own = g_logistic(g, p == PL_NONE ? t : g_mul(g, p, t), g_neg(g, x));
    hand(g, 0, g_mul(g, g_sub(g, rest, own), s));
  }
  if (g->want[1]) {
    PlVal d = g_neg(g, x);
    if (p != PL_NONE) d = g_sub(g, d, g_mul(g, g_addn(g, p, -1), pl_g1(g, &pl_op_logsigmoid, x)));
    hand(g, 1, g_mul(g, d, s));
  }
  return g->status;
}
LOSS(binary_cross_entropy_with_logits, PLK_L_BCE_LOGITS, 4, 2, 1, bce_infer,
     "l = w ((1 - t) x + q log(1 + exp(-x))), q = 1 + (pos_weight - 1) t;  dx = w (q sigmoid(x) - pos_weight t) dy",
     "Cross entropy of sigmoid(x) with targets of the same shape, in [0, 1] where weight is not 0, averaged; weight and pos_weight "
     "broadcast. "
     "reduction = \"none\" takes any targets.",
     "print(T.binary_cross_entropy_with_logits(T.tensor { 0, 2 }, T.tensor { 1, 1 }))  --> 0.4100  -- f32[] cpu", REDUCTION)

/* ---- kl_div -------------------------------------------------------------------------------------------------- */

/* With log_target: l = e^t (t - x), dx = -e^t dy, dt = e^t (t - x + 1) dy; else dx = -t dy,
 * dt = (log t + t/t - x) dy: NaN at t = 0, where the derivative does not exist. */
static PlStatus kl_div_grad(PlMaker *g) {
  PlVal x = g->x[0], t = g->x[1], s = scale(g);
  bool logs = pl_attr_i(g->attrs, 1) != 0;
  PlVal e = logs ? pl_g1(g, &pl_op_exp, t) : t;
  if (g->want[0]) hand(g, 0, g_neg(g, g_mul(g, e, s)));
  if (g->want[1]) {
    PlVal one = logs ? pl_g_num(g, 1) : g_div(g, t, t);
    PlVal d = g_add(g, g_sub(g, logs ? t : pl_g1(g, &pl_op_log, t), x), one);
    hand(g, 1, g_mul(g, logs ? g_mul(g, e, d) : d, s));
  }
  return g->status;
}
LOSS(kl_div, PLK_L_KL_DIV, 2, 0, 2, loss_infer, "l = t (log t - x), 0 log 0 = 0;  dx = -t dy",
     "Kullback-Leibler divergence of target from x, x being logarithms of probabilities (log_target: target too). "
     "reduction batchmean divides the sum by the first size.",
     "local p = T.tensor { 0.5, 0.5 }\n"
     "print(T.kl_div(p:log(), T.tensor { 0.9, 0.1 }, { reduction = \"sum\" }))  --> 0.3681  -- f32[] cpu",
     A_ENUM("reduction", "none|mean|sum|batchmean", 1), A_BOOL("log_target", 0))
