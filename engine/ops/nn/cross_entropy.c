/* SPDX-License-Identifier: MIT
 * Losses over classes: x[N,C,…] or x[C], classes along dim 2 (dim 1 of x[C]); targets are class numbers of
 * x's shape without that dim, counted from index_base. A target equal to ignore_index adds nothing. */
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/ops/shape/view.h"
#include "kernels/loss.h"

#define ATTRS  A_ENUM("reduction", "none|mean|sum", 1), A_INT("ignore_index", -100), A_BASE
#define SMOOTH A_FLOAT("label_smoothing", 0)

static int class_dim(const PlArray *x) { return x->ndim > 1 ? 1 : 0; }

/* Output 0: x without the class dim, or a number. */
static void loss_desc(PlInfer *c, PlDesc *d, PlDtype dtype, bool reduced) {
  dims_desc(d, dtype, c->in[0], 1u << class_dim(c->in[0]), false);
  if (reduced) d->ndim = 0;
}

static PlStatus check_weight(const PlInfer *c, int i, const PlArray *x) {
  const PlArray *w = c->in[i];
  int64_t C = x->shape[class_dim(x)];
  if (!w) return PL_OK;
  PL_TRY(pl_check_float(c, i));
  if (w->ndim != 1 || w->shape[0] != C)
    PL_FAIL(PL_ERR_SHAPE, "%s: weight is %s, but x has %lld classes: f32[%lld] is needed", c->op->name, pl_desc_text(w), (long long)C,
            (long long)C);
  return PL_OK;
}

static PlStatus check_smooth(const PlInfer *c, int k) {
  double e = pl_attr_f(c->attrs, k);
  if (!(e >= 0 && e <= 1)) PL_FAIL(PL_ERR_ARG, "%s: label_smoothing must be between 0 and 1, got %g", c->op->name, e);
  return PL_OK;
}

/* Target t: class numbers, of x's shape without the classes. */
static PlStatus check_target(const PlInfer *c, const PlArray *x, const PlArray *t) {
  PlDesc want;
  if (!pl_is_int((PlDtype)t->dtype))
    PL_FAIL(PL_ERR_DTYPE, "%s: target is %s, but class numbers are integers (i64): target:long(); probabilities of classes have x's shape",
            c->op->name, pl_desc_text(t));
  dims_desc(&want, PL_I64, x, 1u << class_dim(x), false);
  bool fits = t->ndim == want.ndim;
  for (int d = 0; fits && d < t->ndim; d++) fits = t->shape[d] == want.shape[d];
  bool last = x->ndim > 2 && t->ndim == x->ndim - 1; /* as networks of sequences give them: [N, L, classes] */
  for (int d = 0; last && d < t->ndim; d++) last = t->shape[d] == x->shape[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: x is %s, so target must have its shape without dim %d (the classes), got %s%s", c->op->name, pl_desc_text(x),
            class_dim(x) + 1, pl_desc_text(t), last ? "; where the classes are last: x:flatten(1,-2), target:flatten()" : "");
  return PL_OK;
}

/* Of a backward op: dy is the loss's gradient, one number unless nothing was reduced. */
static PlStatus check_bwd(const PlInfer *c, const PlArray *x, int target, int weight) {
  PL_TRY(check_target(c, x, c->in[target]));
  PL_TRY(pl_check_float(c, 0));
  if (pl_attr_i(c->attrs, 0) == 0) PL_TRY(pl_check_like(c, 0, target));
  else if (c->in[0]->numel != 1)
    PL_FAIL(PL_ERR_SHAPE, "%s: dy is %s, but a reduced loss is one number", c->op->name, pl_desc_text(c->in[0]));
  return weight < c->nin ? check_weight(c, weight, x) : PL_OK;
}

static PlStatus class_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *t = c->in[1];
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  PL_TRY(check_target(c, x, t));
  PL_TRY(check_weight(c, 2, x));
  PlDtype to = c->compute;
  if (c->op->nout == 2 && pl_attr_has(c->attrs, 4)) {
    to = (PlDtype)pl_attr_i(c->attrs, 4);
    if (to != c->compute && !(to == PL_F32 && c->compute != PL_F64))
      PL_FAIL(PL_ERR_DTYPE, "%s: x is %s; dtype is that of x or, where x is f16 or bf16, f32, got %s", c->op->name, pl_desc_text(x),
              pl_dtype_name(to));
  }
  loss_desc(c, &c->out[0], to, pl_attr_i(c->attrs, 0) != 0);
  if (c->op->nout == 1) return PL_OK;
  loss_desc(c, &c->out[1], c->compute == PL_F64 ? PL_F64 : PL_F32, false);
  return check_smooth(c, 3);
}

/* The attributes of g's op that class losses share, for `op`. */
static void pass_attrs(PlMaker *g, const PlOp *op, PlAttrs *a, bool smooth) {
  pl_attrs_init(op, a);
  for (int k = 0; k < 3; k++) pl_attrs_int(a, k, pl_attr_i(g->attrs, k));
  if (smooth) pl_attrs_float(a, 3, pl_attr_f(g->attrs, 3));
}

/* ---- nll -------------------------------------------------------------------------------------------------- */

static PlStatus nll_loss_grad(PlMaker *g) {
  PlVal in[3] = {g->dy[0], g->x[1], g->x[2]};
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pass_attrs(g, &pl_op_nll_loss_bwd, &a, false);
  pl_g_fail(g, pl_attrs_list(&a, 3, g->in[0]->ndim, g->in[0]->shape));
  g->dx[0] = pl_g_op(g, &pl_op_nll_loss_bwd, 3, in, &a, NULL);
  return g->status;
}

PL_OP(nll_loss, .autocast = PL_CAST_F32,
      .doc = "Minus the entry of x (log-probabilities) at each target class, times the class's weight; mean divides by the sum "
             "of those weights. x[N,C,...], target[N,...] or x[C], target[].",
      .example = "local target = T.tensor({ 2 }, { dtype = \"i64\" })\n"
                 "print(T.nll_loss(T.tensor { { 1, 2 } }:log_softmax(), target))  --> 0.3133  -- f32[] cpu",
      .formula = "l = -w_t x_t;  dx_t = -w_t dy, else 0", .nin = 3, .nopt = 1, .nout = 1, .nattr = 3, .args = {"x", "target", "weight"},
      .attrs = {ATTRS}, .cls = PL_REDUCTION, .batch = pl_batch_class_loss, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = class_infer,
      .grad = nll_loss_grad, .with_tangent = plk_cpu_nll_loss_with_tangent, PL_KERNEL(nll_loss));

static PlStatus nll_bwd_infer(PlInfer *c) {
  const int n = pl_attr_n(c->attrs, 3);
  const PlArray x = {.shape = pl_attr_list(c->attrs, 3), .ndim = (uint8_t)n, .dtype = (uint8_t)c->compute};
  PL_TRY(pl_sizes_check(c, n, x.shape));
  if (n == 0) PL_FAIL(PL_ERR_SHAPE, "%s: a shape with classes is wanted", c->op->name);
  PL_TRY(check_bwd(c, &x, 1, 2));
  pl_desc_set(&c->out[0], c->compute, n, x.shape);
  return PL_OK;
}
/* The loss is linear in x, so the gradient of its adjoint is the loss itself. */
static PlStatus nll_bwd_grad(PlMaker *g) {
  PlVal in[3] = {g->dy[0], g->x[1], g->x[2]};
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pass_attrs(g, &pl_op_nll_loss, &a, false);
  g->dx[0] = pl_g_op(g, &pl_op_nll_loss, 3, in, &a, NULL);
  return g->status;
}
PL_OP(nll_loss_bwd, .doc = "The gradient of nll_loss, in the shape of its x.", .nin = 3, .nopt = 1, .nout = 1, .nattr = 4,
      .args = {"dy", "target", "weight"}, .attrs = {ATTRS, A_SHAPE_REQ("shape")}, .cls = PL_REDUCTION, .batch = pl_batch_loss_bwd,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = nll_bwd_infer, .grad = nll_bwd_grad, PL_KERNEL(nll_loss_bwd));

/* ---- cross entropy ------------------------------------------------------------------------------------------ */

static PlStatus cross_entropy_grad(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->x[1], g->y[1], g->x[2]};
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pass_attrs(g, &pl_op_cross_entropy_bwd, &a, true);
  g->dx[0] = pl_g_op(g, &pl_op_cross_entropy_bwd, 5, in, &a, NULL);
  return g->status;
}

/* In one pass where there is a kernel: the same as where the loss and its tangent are computed together, so the bits are. Else the
 * gradients of the losses times the tangent, summed over the classes, and over all where the losses are one number. */
static PlStatus cross_entropy_tangent(PlMaker *g) {
  const PlArray *x = g->in[0];
  if (g->dy[0] != PL_NONE && x->ndim <= 2 && x->device == PL_CPU && (x->dtype == PL_F32 || x->dtype == PL_F64)) {
    PlVal all[3] = {PL_NONE, PL_NONE, PL_NONE}, with[4] = {g->x[0], g->x[1], g->dy[0], g->x[2]};
    PlAttrs same;
    pass_attrs(g, &pl_op_cross_entropy_dual, &same, true);
    pl_g_op(g, &pl_op_cross_entropy_dual, 4, with, &same, all);
    g->dx[0] = all[2];
    return g->status;
  }
  const PlDtype to = (PlDtype)g->outd[0].dtype; /* of the loss, so also of what its tangent is added up in */
  const bool wider = to != (PlDtype)x->dtype;
  PlAttrs a, zero;
  if (g->dy[0] == PL_NONE) return g->status;
  pass_attrs(g, &pl_op_cross_entropy_bwd, &a, true);
  pl_attrs_init(&pl_op_zeros_of, &zero);
  pl_attrs_int(&zero, 0, to);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->y[0]), logits = wider ? pl_g_cast(g, g->x[0], to) : g->x[0];
  PlVal in[5] = {g_addn(g, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &zero, NULL), 1), logits, g->x[1], g->y[1], g->x[2]};
  PlVal each = g_mul(g, wider ? pl_g_cast(g, g->dy[0], to) : g->dy[0], pl_g_op(g, &pl_op_cross_entropy_bwd, 5, in, &a, NULL));
  bool one = pl_attr_i(g->attrs, 0) != 0;
  g->dx[0] = g_reduce(g, &pl_op_sum, each, x->ndim, one ? (1u << x->ndim) - 1 : 1u << class_dim(x));
  g->dx[0] = pl_g2(g, &pl_op_reshape_to, g->dx[0], shape);
  return g->status;
}

PL_OP(cross_entropy, .autocast = PL_CAST_RESULT,
      .doc = "nll_loss of log_softmax(x) along the classes, in one pass: x[N,C,...], target[N,...] or x[C], target[]. Targets are "
             "class numbers; for probabilities see cross_entropy_prob. dtype: that of the loss, f32 if x is f16 or bf16 (so it is "
             "under autocast). Further output: logsumexp.",
      .example = "local target = T.tensor({ 1 }, { dtype = \"i64\" })\n"
                 "print(T.cross_entropy(T.tensor { { 2, 0 } }, target))  --> 0.1269  -- f32[] cpu",
      .formula = "l = (1-e) w_t (lse - x_t) + e/C sum_c w_c (lse - x_c);  dx = (softmax x - onehot t) dy for w = 1, e = 0", .nin = 3,
      .nopt = 1, .nout = 2, .nvisible = 1, .spare = 2, .nattr = 5, .args = {"x", "target", "weight"},
      .attrs = {ATTRS, SMOOTH, A_DTYPE_OPT("dtype")}, .cls = PL_REDUCTION, .batch = pl_batch_class_loss,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_NOMETHOD, .infer = class_infer, .grad = cross_entropy_grad,
      .tangent = cross_entropy_tangent, .dual = &pl_op_cross_entropy_dual, PL_KERNEL(cross_entropy));

static PlStatus ce_dual_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  const bool reduced = pl_attr_i(c->attrs, 0) != 0;
  PL_TRY(pl_check_ndim(c, 0, 1, 2));
  if (x->dtype != PL_F32 && x->dtype != PL_F64) PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(x));
  PL_TRY(check_target(c, x, c->in[1]));
  PL_TRY(pl_check_like(c, 2, 0));
  PL_TRY(pl_check_dtype(c, 2, (PlDtype)x->dtype));
  if (c->nin > 3) PL_TRY(check_weight(c, 3, x));
  for (int o = 0; o < 3; o++) loss_desc(c, &c->out[o], (PlDtype)x->dtype, reduced && o != 1);
  return check_smooth(c, 3);
}

/* Its gradient is that of the two. */
static PlStatus ce_dual_grad(PlMaker *g) {
  const PlVal up = g->dy[0], ut = g->dy[2];
  PlVal bwd[5] = {up, g->x[0], g->x[1], g->y[1], g->x[3]};
  PlAttrs a, b;
  pass_attrs(g, &pl_op_cross_entropy_bwd, &a, true);
  pass_attrs(g, &pl_op_cross_entropy_bwd2, &b, true);
  if (up != PL_NONE && g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_cross_entropy_bwd, 5, bwd, &a, NULL);
  if (ut == PL_NONE) return g->status;
  bwd[0] = ut;
  if (g->want[2]) g->dx[2] = pl_g_op(g, &pl_op_cross_entropy_bwd, 5, bwd, &a, NULL);
  if (g->want[0]) {
    PlVal in[6] = {ut, g->x[0], g->x[1], g->y[1], g->x[2], g->x[3]}, out[2] = {PL_NONE, PL_NONE};
    pl_g_op(g, &pl_op_cross_entropy_bwd2, 6, in, &b, out);
    g->dx[0] = g->dx[0] == PL_NONE ? out[1] : g_add(g, g->dx[0], out[1]);
  }
  return g->status;
}

PL_OP(cross_entropy_dual, .doc = "cross_entropy and the tangent of its result, where v is that of x.", .nin = 4, .nopt = 1, .nout = 3,
      .nattr = 4, .args = {"x", "target", "v", "weight"}, .attrs = {ATTRS, SMOOTH}, .cls = PL_REDUCTION, .batch = pl_batch_class_loss,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = ce_dual_infer, .grad = ce_dual_grad, PL_KERNEL(cross_entropy_dual));

static PlStatus check_ce_bwd(const PlInfer *c, int weight) {
  const PlArray *x = c->in[1];
  PL_TRY(pl_check_ndim(c, 1, 1, PL_MAX_DIM));
  PL_TRY(pl_check_float(c, 1));
  PL_TRY(check_bwd(c, x, 2, weight));
  PL_TRY(pl_check_like(c, 3, 2));
  PL_TRY(pl_check_float(c, 3));
  return check_smooth(c, 3);
}
static PlStatus ce_bwd_infer(PlInfer *c) {
  const PlArray *x = c->in[1];
  PL_TRY(check_ce_bwd(c, 4));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  return PL_OK;
}
static PlStatus ce_bwd_grad(PlMaker *g) {
  PlVal in[6] = {g->x[0], g->x[1], g->x[2], g->x[3], g->dy[0], g->x[4]}, out[2] = {PL_NONE, PL_NONE};
  PlAttrs a;
  pass_attrs(g, &pl_op_cross_entropy_bwd2, &a, true);
  pl_g_op(g, &pl_op_cross_entropy_bwd2, 6, in, &a, out);
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}
PL_OP(cross_entropy_bwd, .doc = "The gradient of cross_entropy.", .gradient_of = &pl_op_cross_entropy, .nin = 5, .nopt = 1, .nout = 1,
      .nattr = 4, .args = {"dy", "x", "target", "lse", "weight"}, .attrs = {ATTRS, SMOOTH}, .cls = PL_REDUCTION, .batch = pl_batch_loss_bwd,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .over = 2, .infer = ce_bwd_infer, .grad = ce_bwd_grad, .hessian = "dx...",
      PL_KERNEL(cross_entropy_bwd));

static PlStatus ce_bwd2_infer(PlInfer *c) {
  PL_TRY(check_ce_bwd(c, 5));
  PL_TRY(pl_check_like(c, 4, 1));
  PL_TRY(pl_check_float(c, 4));
  for (int i = 0; i < 2; i++) pl_desc_set(&c->out[i], (PlDtype)c->in[i]->dtype, c->in[i]->ndim, c->in[i]->shape);
  return PL_OK;
}
/* bwd2's gradient for x in terms of v: S(v) = dy k p (v - <p,v>), with p = softmax x and a constant k of the row. */
static PlVal curvature(PlMaker *g, PlVal dy, PlVal v) {
  PlVal in[6] = {dy, g->x[1], g->x[2], g->x[3], v, g->x[5]}, out[2] = {PL_NONE, PL_NONE};
  pl_g_op(g, &pl_op_cross_entropy_bwd2, 6, in, g->attrs, out);
  return out[1];
}

/* S is symmetric, linear in dy and v, and its derivative in x is made of it: for <u, S(v)> that is
 * S(uv) - <p,v> S(u) - <p,u> S(v). So this op has gradients of any order. */
static PlStatus ce_bwd2_grad(PlMaker *g) {
  const PlArray *x = g->in[1];
  const int dim = class_dim(x);
  const PlVal ud = g->dy[0], u = g->dy[1], v = g->x[4];
  if (ud != PL_NONE) { /* <ud, <v, bwd(dy = 1)>> */
    PlVal in[5] = {ud, g->x[1], g->x[2], g->x[3], g->x[5]};
    if (g->want[1]) g->dx[1] = curvature(g, ud, v);
    if (g->want[4]) g->dx[4] = pl_g_op(g, &pl_op_cross_entropy_bwd, 5, in, g->attrs, NULL);
  }
  if (u == PL_NONE) return g->status;
  if (g->want[4]) {
    PlVal s = curvature(g, g->x[0], u);
    g->dx[4] = g->dx[4] == PL_NONE ? s : g_add(g, g->dx[4], s);
  }
  if (g->want[0]) {
    const uint32_t mask = g->in[0]->ndim ? 1u << dim : (1u << x->ndim) - 1;
    PlVal one = g_addn(g, pl_g_zeros_like(g, 0), 1), s = g_reduce(g, &pl_op_sum, g_mul(g, u, curvature(g, one, v)), x->ndim, mask);
    g->dx[0] = pl_g_reshape_like(g, g_to_input(g, s, (PlDtype)x->dtype, 0), 0);
  }
  if (g->want[1]) {
    PlVal p = g_with_int(g, &pl_op_softmax, 1, &g->x[1], dim), pu = g_reduce(g, &pl_op_sum, g_mul(g, p, u), x->ndim, 1u << dim),
          pv = g_reduce(g, &pl_op_sum, g_mul(g, p, v), x->ndim, 1u << dim);
    PlVal s = g_sub(g, curvature(g, g->x[0], g_mul(g, u, v)),
                    g_add(g, g_mul(g, pv, curvature(g, g->x[0], u)), g_mul(g, pu, curvature(g, g->x[0], v))));
    g->dx[1] = g->dx[1] == PL_NONE ? s : g_add(g, g->dx[1], s);
  }
  return g->status;
}

PL_OP(cross_entropy_bwd2, .doc = "The gradients of cross_entropy_bwd for dy and x; v is the gradient of its result.",
      .gradient_of = &pl_op_cross_entropy_bwd, .nin = 6, .nopt = 1, .nout = 2, .nattr = 4,
      .args = {"dy", "x", "target", "lse", "v", "weight"}, .attrs = {ATTRS, SMOOTH}, .cls = PL_REDUCTION,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = ce_bwd2_infer, .grad = ce_bwd2_grad, PL_KERNEL(cross_entropy_bwd2));

/* ---- cross entropy with probabilities --------------------------------------------------------------------------- */

static PlStatus prob_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *t = c->in[1];
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_float(c, 1));
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  bool fits = x->ndim == t->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = x->shape[d] == t->shape[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: x is %s, target %s; target probabilities have x's shape", c->op->name, pl_desc_text(x), pl_desc_text(t));
  PL_TRY(check_weight(c, 2, x));
  PL_TRY(check_smooth(c, 1));
  loss_desc(c, &c->out[0], c->compute, pl_attr_i(c->attrs, 0) != 0);
  return PL_OK;
}

/* Input i in the result's dtype, by an op that takes gradients back: products of two dtypes would give the gradient of the
 * gradient the wider one. */
static PlVal in_dtype(PlMaker *g, int i) {
  const PlDtype d = (PlDtype)g->outd[0].dtype;
  return g->in[i]->dtype == d ? g->x[i] : pl_g_cast(g, g->x[i], d);
}

/* With p = log_softmax x and u = (1-e) t + e/C:  dp = -w u dy, dt = -(1-e) w p dy, dw = -sum u p dy. */
static PlStatus cross_entropy_prob_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  int dim = class_dim(x);
  int64_t C = x->shape[dim], rows = 1, reduction = pl_attr_i(g->attrs, 0), shape[PL_MAX_DIM];
  for (int d = 0; d < x->ndim; d++) {
    shape[d] = d == dim ? C : 1;
    if (d != dim) rows *= x->shape[d];
  }
  double e = pl_attr_f(g->attrs, 1);
  PlVal s = reduction == 0   ? g_undo_reduce(g, g->dy[0], x->ndim, 1u << dim, false)
            : reduction == 1 ? g_divn(g, g->dy[0], (double)(rows ? rows : 1))
                             : g->dy[0];
  s = g_neg(g, s);
  PlVal p = g_with_int(g, &pl_op_log_softmax, 1, &g->x[0], dim), t = in_dtype(g, 1), plain = s;
  PlVal u = e > 0 ? g_addn(g, g_muln(g, t, 1 - e), e / (double)(C ? C : 1)) : t;
  if (g->in[2]) {
    const PlVal w = in_dtype(g, 2);
    PlAttrs a;
    pl_attrs_init(&pl_op_reshape, &a);
    pl_g_fail(g, pl_attrs_list(&a, 0, x->ndim, shape));
    s = g_mul(g, s, pl_g_op(g, &pl_op_reshape, 1, &w, &a, NULL));
    if (g->want[2]) {
      uint32_t others = ((1u << x->ndim) - 1) & ~(1u << dim);
      PlVal v = g_reduce(g, &pl_op_sum, g_mul(g, g_mul(g, u, p), plain), x->ndim, others);
      g->dx[2] = g_to_input(g, pl_g_reshape_like(g, v, 2), (PlDtype)g->outd[0].dtype, 2);
    }
  }
  if (g->want[0]) {
    PlVal in[2] = {g_mul(g, u, s), p};
    g->dx[0] = g_with_int(g, &pl_op_log_softmax_bwd, 2, in, dim);
  }
  if (g->want[1]) {
    PlVal v = g_mul(g, p, s);
    g->dx[1] = g_to_input(g, e > 0 ? g_muln(g, v, 1 - e) : v, (PlDtype)g->outd[0].dtype, 1);
  }
  return g->status;
}

PL_OP(cross_entropy_prob, .autocast = PL_CAST_F32,
      .doc = "Cross entropy of softmax(x) with target probabilities of x's shape, classes along dim 2 (dim 1 of x[C]); mean divides "
             "by the number of samples.",
      .example = "print(T.cross_entropy_prob(T.tensor { { 1, 2 } }, T.tensor { { 0.5, 0.5 } }))  --> 0.8133  -- f32[] cpu",
      .formula = "l = sum_c w_c ((1-e) t_c + e/C) (lse - x_c)", .nin = 3, .nopt = 1, .nout = 1, .nattr = 2,
      .args = {"x", "target", "weight"}, .attrs = {A_ENUM("reduction", "none|mean|sum", 1), SMOOTH}, .cls = PL_REDUCTION,
      .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = prob_infer, .grad = cross_entropy_prob_grad, PL_KERNEL(cross_entropy_prob));
