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
static PlVal scale(PlMaker *g) {
  int ndim;
  int64_t shape[PL_MAX_DIM], n = common_shape(g, &ndim, shape), reduction = pl_attr_i(g->attrs, 0);
  if (reduction == 1) return g_divn(g, g->dy[0], (double)(n ? n : 1));
  if (reduction == 3) return g_divn(g, g->dy[0], (double)(ndim && shape[0] ? shape[0] : 1));
  return g->dy[0];
}

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

static PlStatus mse_loss_grad(PlMaker *g) { return hand_difference(g, g_mul(g, difference(g), g_muln(g, scale(g), 2))); }
LOSS(mse_loss, PLK_L_MSE, 2, 0, 1, loss_infer, "l = (x - t)^2;  dx = 2 (x - t) dy, dt = -dx",
     "The squared difference of x and target, averaged (reduction: none, mean, sum).",
     "print(T.mse_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 2.  -- f32[] cpu", REDUCTION)

static PlStatus l1_loss_grad(PlMaker *g) { return hand_difference(g, g_mul(g, pl_g1(g, &pl_op_sign, difference(g)), scale(g))); }
LOSS(l1_loss, PLK_L_L1, 2, 0, 1, loss_infer, "l = |x - t|;  dx = sign(x - t) dy, dt = -dx",
     "The absolute difference of x and target, averaged (reduction: none, mean, sum).",
     "print(T.l1_loss(T.tensor { 1, 2 }, T.tensor { 1, 4 }))  --> 1.  -- f32[] cpu", REDUCTION)

static PlStatus smooth_infer(PlInfer *c) {
  double v = pl_attr_f(c->attrs, 1);
  bool huber = c->op == &pl_op_huber_loss;
  if (huber ? !(v > 0) : !(v >= 0))
    PL_FAIL(PL_ERR_ARG, "%s: %s must be %s, got %g", c->op->name, huber ? "delta" : "beta", huber ? "above 0" : "0 or more", v);
  return loss_infer(c);
}
static PlStatus smooth_l1_loss_grad(PlMaker *g) {
  double beta = pl_attr_f(g->attrs, 1);
  PlVal d = difference(g), c = beta > 0 ? clamp(g, g_divn(g, d, beta), -1, 1) : pl_g1(g, &pl_op_sign, d);
  return hand_difference(g, g_mul(g, c, scale(g)));
}
LOSS(smooth_l1_loss, PLK_L_SMOOTH_L1, 2, 0, 2, smooth_infer,
     "d = x - t;  l = d^2/(2 beta) if |d| < beta, else |d| - beta/2;  dx = clamp(d/beta, -1, 1) dy",
     "Squared difference near 0, absolute difference beyond beta, averaged. beta = 0 is l1_loss.",
     "print(T.smooth_l1_loss(T.tensor { 0, 0 }, T.tensor { 0.5, 3 }, { reduction = \"none\" }))\n"
     "--> {0.1250, 2.5000}  -- f32[2] cpu",
     REDUCTION, A_FLOAT("beta", 1))

static PlStatus huber_loss_grad(PlMaker *g) {
  double delta = pl_attr_f(g->attrs, 1);
  return hand_difference(g, g_mul(g, clamp(g, difference(g), -delta, delta), scale(g)));
}
LOSS(huber_loss, PLK_L_HUBER, 2, 0, 2, smooth_infer,
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
     "Cross entropy of probabilities x in [0, 1] with targets of the same shape, averaged; weight broadcasts.",
     "print(T.binary_cross_entropy(T.tensor { 0.5, 0.9 }, T.tensor { 1, 1 }))  --> 0.3993  -- f32[] cpu", REDUCTION)

static PlStatus binary_cross_entropy_with_logits_grad(PlMaker *g) {
  PlVal x = g->x[0], t = g->x[1], p = g->in[3] ? g->x[3] : PL_NONE, s = scale_weighted(g);
  if (g->want[0]) {
    PlVal sig = pl_g1(g, &pl_op_sigmoid, x), d;
    if (p == PL_NONE) d = g_sub(g, sig, t);
    else { /* q sigmoid(x) - p t, q = 1 + (p - 1) t */ PlVal pt = g_mul(g, p, t), q = g_addn(g, g_sub(g, pt, t), 1);
      d = g_sub(g, g_mul(g, q, sig), pt);
    }
    hand(g, 0, g_mul(g, d, s));
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
     "Cross entropy of sigmoid(x) with targets of the same shape, averaged; weight and pos_weight broadcast.",
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
