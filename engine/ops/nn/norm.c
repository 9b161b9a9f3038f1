/* SPDX-License-Identifier: MIT
 * Layer, RMS, group and batch norm: y = (x - mean) rstd w + b over some dims, rstd = 1/sqrt(var + eps).
 * Statistics are f32 (f64 for f64 input) and are further outputs, which the gradient reads. One fused
 * backward op each; its own gradient is composed of primitives (norm_double_backward.c). */
#include "engine/ops/nn/norm.h"
#include "engine/ops/names.h"

#include "kernels/fused.h"
#include "kernels/norm.h"

static PlDtype stat_dtype(PlDtype d) { return d == PL_F64 ? PL_F64 : PL_F32; }

/* Weight and bias: floating, of the given shape. */
static PlStatus check_param(const PlInfer *c, int i, int ndim, const int64_t *shape, const char *what) {
  const PlArray *p = i < c->nin ? c->in[i] : NULL;
  if (!p) return PL_OK;
  PL_TRY(pl_check_float(c, i));
  bool fits = p->ndim == ndim;
  for (int d = 0; fits && d < ndim; d++) fits = p->shape[d] == shape[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s is %s, but must have the shape of %s; x is %s", c->op->name, c->op->args[i], pl_desc_text(p), what,
            pl_desc_text(c->in[0]));
  return PL_OK;
}

/* ---- layer norm, RMS norm ---------------------------------------------------------------------------- */

static PlStatus check_normalized(const PlInfer *c, const PlArray *x) {
  int k = pl_attr_n(c->attrs, 0);
  const int64_t *s = pl_attr_list(c->attrs, 0);
  bool fits = k >= 1 && k <= x->ndim;
  for (int i = 0; fits && i < k; i++) fits = s[i] == x->shape[x->ndim - k + i];
  if (fits) return PL_OK;
  char text[PL_MAX_DIM * 21 + 4];
  PL_FAIL(PL_ERR_SHAPE, "%s: normalized_shape is {%s}, but must be the last sizes of x, which is %s", c->op->name,
          norm_list_text(text, sizeof text, k, s), pl_desc_text(x));
}

static PlStatus layer_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int k = pl_attr_n(c->attrs, 0), nout = c->op->nout;
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(check_normalized(c, x));
  for (int i = 1; i < c->op->nin; i++) PL_TRY(check_param(c, i, k, pl_attr_list(c->attrs, 0), "normalized_shape"));
  pl_desc_set(&c->out[0], c->compute, x->ndim, x->shape);
  for (int o = 1; o < nout; o++) {
    pl_desc_set(&c->out[o], stat_dtype(c->compute), x->ndim, x->shape);
    for (int d = x->ndim - k; d < x->ndim; d++) c->out[o].shape[d] = 1;
  }
  return PL_OK;
}

/* Emits op(in…) whose attribute 0 is copied from ours and attribute 1 says which of dx, dw, db are wanted;
 * gives them to inputs 0, w and b. */
static void give_bwd(PlMaker *g, const PlOp *op, int nin, const PlVal *in, PlAttrs *a, int w, int b) {
  PlVal out[3] = {PL_NONE, PL_NONE, PL_NONE};
  int at[3] = {0, w, b};
  int64_t wanted = 0;
  PlDtype have = stat_dtype((PlDtype)g->in[0]->dtype);
  for (int o = 0; o < op->nout; o++)
    if (at[o] < g->nin && g->in[at[o]] && g->want[at[o]]) wanted |= 1 << o;
  pl_attrs_int(a, 1, wanted);
  pl_g_op(g, op, nin, in, a, out);
  for (int o = 0; o < op->nout; o++)
    if (wanted >> o & 1) g->dx[at[o]] = o ? g_to_input(g, out[o], have, at[o]) : out[o];
}

static void copy_shape_attr(PlMaker *g, const PlOp *op, PlAttrs *a) {
  pl_attrs_init(op, a);
  pl_g_fail(g, pl_attrs_list(a, 0, pl_attr_n(g->attrs, 0), pl_attr_list(g->attrs, 0)));
}

static PlStatus layer_norm_grad(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], g->x[1]};
  PlAttrs a;
  copy_shape_attr(g, &pl_op_layer_norm_bwd, &a);
  give_bwd(g, &pl_op_layer_norm_bwd, 5, in, &a, 1, 2);
  return g->status;
}
static PlStatus rms_norm_grad(PlMaker *g) {
  PlVal in[4] = {g->dy[0], g->x[0], g->y[1], g->x[1]};
  PlAttrs a;
  copy_shape_attr(g, &pl_op_rms_norm_bwd, &a);
  give_bwd(g, &pl_op_rms_norm_bwd, 4, in, &a, 1, 1);
  return g->status;
}

/* The derivative of h, what is normalized, is symmetric: that of y = h w + b for x is w times what backward does without w. */
static PlVal symmetric_part(PlMaker *g, const PlOp *bwd, int nin, const PlVal *in, PlAttrs *a) {
  PlVal out[3] = {PL_NONE, PL_NONE, PL_NONE};
  for (int i = 0; i < g->nin; i++)
    if ((g->dy[i] == PL_NONE) != (i != 0)) return PL_NONE;
  pl_attrs_int(a, 1, 1);
  pl_g_op(g, bwd, nin, in, a, out);
  return out[0];
}
static PlVal times(PlMaker *g, PlVal v, PlVal weight) {
  if (v == PL_NONE || weight == PL_NONE) return v;
  const PlDtype to = (PlDtype)g->outd[0].dtype;
  const bool same = (PlDtype)g->in[0]->dtype == to && (PlDtype)g->in[1]->dtype == to;
  return same ? g_mul(g, v, weight) : pl_g_cast(g, g_mul(g, v, weight), to);
}
static PlStatus layer_norm_tangent(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], PL_NONE};
  PlAttrs a;
  copy_shape_attr(g, &pl_op_layer_norm_bwd, &a);
  g->dx[0] = times(g, symmetric_part(g, &pl_op_layer_norm_bwd, 5, in, &a), g->x[1]);
  return g->status;
}
static PlStatus rms_norm_tangent(PlMaker *g) {
  PlVal in[4] = {g->dy[0], g->x[0], g->y[1], PL_NONE};
  PlAttrs a;
  copy_shape_attr(g, &pl_op_rms_norm_bwd, &a);
  g->dx[0] = times(g, symmetric_part(g, &pl_op_rms_norm_bwd, 4, in, &a), g->x[1]);
  return g->status;
}

PL_OP(layer_norm,
      .doc = "x normalized over its last dims (normalized_shape), times weight plus bias, both of that shape and optional. "
             "Further outputs: mean and 1/deviation.",
      .example = "print((T.layer_norm(T.tensor { { 1, 2, 3 } }, { normalized_shape = { 3 } })))\n"
                 "--> {{-1.2247,  0.0000,  1.2247}}  -- f32[1,3] cpu",
      .formula = "h = (x - mean)/sqrt(var + eps);  y = h w + b;  dx = (g - mean g - h mean(g h))/sqrt(var + eps), g = w dy", .nin = 3,
      .nopt = 2, .nout = 3, .nvisible = 1, .spare = 6, .nattr = 2, .args = {"x", "weight", "bias"},
      .attrs = {A_INTS_REQ("normalized_shape"), A_FLOAT("eps", 1e-5)}, .cls = PL_REDUCTION, .batch = pl_batch_row_norm,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_NOMETHOD, .kcode = 0, .rows = {PL_ROWS_SHAPE, 0, "frr:f?c?c?", NULL},
      .infer = layer_infer, .grad = layer_norm_grad, .tangent = layer_norm_tangent, .with_tangent = plk_cpu_layer_norm_with_tangent,
      .fused = {1 + PLK_FUSED_LAYER_NORM}, PL_KERNEL(layer_norm));
PL_OP(rms_norm,
      .doc = "x over the root of its mean square in the last dims (normalized_shape), times weight (optional). eps: "
             "unless given, the epsilon of f64 for f64, else that of f32. Further output: 1/root.",
      .example = "print((T.rms_norm(T.tensor { { 3, 4 } }, { normalized_shape = { 2 } })))  --> {{0.8485, 1.1314}}  -- f32[1,2] cpu",
      .formula = "h = x/sqrt(mean(x^2) + eps);  y = h w;  dx = (g - h mean(g h))/sqrt(mean(x^2) + eps), g = w dy", .nin = 2, .nopt = 1,
      .nout = 2, .nvisible = 1, .spare = 2, .nattr = 2, .args = {"x", "weight"},
      .attrs = {A_INTS_REQ("normalized_shape"), A_FLOAT_OPT("eps")}, .cls = PL_REDUCTION, .batch = pl_batch_row_norm,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_NOMETHOD, .kcode = 1, .rows = {PL_ROWS_SHAPE, 0, "fr:f?c?", NULL}, .infer = layer_infer,
      .grad = rms_norm_grad, .tangent = rms_norm_tangent, .with_tangent = plk_cpu_layer_norm_with_tangent,
      .fused = {1 + PLK_FUSED_RMS_NORM}, PL_KERNEL(layer_norm));

/* Of a backward op: dy and x of one shape and dtype, statistics of `ndim` sizes, a weight of `wdim` sizes, all floating.
 * Inputs: dy, x, 1 or 2 statistics, weight. */
static PlStatus check_bwd(const PlInfer *c, int ndim, const int64_t *stat, int wdim, const int64_t *weight) {
  PL_TRY(pl_check_float(c, 1));
  PL_TRY(pl_check_like(c, 0, 1));
  PL_TRY(pl_check_same_dtype(c, 0, 1));
  for (int i = 2; i < c->op->nin - 1; i++) {
    PL_TRY(pl_check_dtype(c, i, stat_dtype((PlDtype)c->in[1]->dtype)));
    PL_TRY(pl_check_shape(c, i, ndim, stat));
  }
  if (c->nin == c->op->nin && c->in[c->nin - 1]) PL_TRY(pl_check_float(c, c->nin - 1));
  return pl_check_shape(c, c->op->nin - 1, wdim, weight);
}

/* dx like x; dw and db of the parameters' shape in the dtype of statistics; none where not wanted. */
static void bwd_descs(PlInfer *c, int ndim, const int64_t *shape) {
  const PlArray *x = c->in[1];
  int64_t wanted = pl_attr_i(c->attrs, 1);
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  for (int o = 1; o < c->op->nout; o++) pl_desc_set(&c->out[o], stat_dtype((PlDtype)x->dtype), ndim, shape);
  for (int o = 0; o < c->op->nout; o++)
    if (!(wanted >> o & 1)) c->out[o].dtype = PL_NDTYPE;
}
static PlStatus layer_bwd_infer(PlInfer *c) {
  const PlArray *x = c->in[1];
  const int k = pl_attr_n(c->attrs, 0);
  int64_t stat[PL_MAX_DIM];
  PL_TRY(check_normalized(c, x));
  for (int d = 0; d < x->ndim; d++) stat[d] = d < x->ndim - k ? x->shape[d] : 1;
  PL_TRY(check_bwd(c, x->ndim, stat, k, pl_attr_list(c->attrs, 0)));
  bwd_descs(c, pl_attr_n(c->attrs, 0), pl_attr_list(c->attrs, 0));
  return PL_OK;
}

#define BWD_FLAGS (PL_F_CONTIGUOUS | PL_F_INTERNAL)
PL_OP(layer_norm_bwd, .doc = "The gradients of layer_norm: dx, dw, db.", .nin = 5, .nopt = 1, .nout = 3, .nattr = 2,
      .args = {"dy", "x", "mean", "rstd", "weight"}, .attrs = {A_INTS_REQ("normalized_shape"), A_INT_REQ("wanted")}, .cls = PL_REDUCTION,
      .batch = pl_batch_row_norm_bwd, .flags = BWD_FLAGS, .kcode = 0,
      .rows = {PL_ROWS_SHAPE, 0, "ffccr:fss", &plk_cpu_layer_norm_bwd_pieces}, .infer = layer_bwd_infer, .grad = norm_second_layer,
      .fused = {1 + PLK_FUSED_LAYER_NORM_BWD}, PL_KERNEL(layer_norm_bwd));
PL_OP(rms_norm_bwd, .doc = "The gradients of rms_norm: dx, dw.", .nin = 4, .nopt = 1, .nout = 2, .nattr = 2,
      .args = {"dy", "x", "rstd", "weight"}, .attrs = {A_INTS_REQ("normalized_shape"), A_INT_REQ("wanted")}, .cls = PL_REDUCTION,
      .batch = pl_batch_row_norm_bwd, .flags = BWD_FLAGS, .kcode = 1, .rows = {PL_ROWS_SHAPE, 0, "ffcr:fs", &plk_cpu_layer_norm_bwd_pieces},
      .infer = layer_bwd_infer, .grad = norm_second_rms, .fused = {1 + PLK_FUSED_RMS_NORM_BWD}, PL_KERNEL(layer_norm_bwd));

/* ---- group norm ------------------------------------------------------------------------------------------ */

static PlStatus group_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t G = pl_attr_i(c->attrs, 0);
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_ndim(c, 0, 2, PL_MAX_DIM));
  if (G < 1 || x->shape[1] % G != 0 || x->shape[1] == 0)
    PL_FAIL(PL_ERR_SHAPE, "group_norm: num_groups = %lld does not divide the %lld channels (dim 2) of %s", (long long)G,
            (long long)x->shape[1], pl_desc_text(x));
  for (int d = 2; d < x->ndim; d++)
    if (x->shape[d] == 0) PL_FAIL(PL_ERR_SHAPE, "group_norm: %s has no elements in dim %d", pl_desc_text(x), d + 1);
  for (int i = 1; i < 3; i++) PL_TRY(check_param(c, i, 1, &x->shape[1], "the channels"));
  int64_t stats[2] = {x->shape[0], G};
  pl_desc_set(&c->out[0], c->compute, x->ndim, x->shape);
  for (int o = 1; o < 3; o++) pl_desc_set(&c->out[o], stat_dtype(c->compute), 2, stats);
  return PL_OK;
}
static PlStatus group_norm_grad(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], g->x[1]};
  PlAttrs a;
  pl_attrs_init(&pl_op_group_norm_bwd, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  give_bwd(g, &pl_op_group_norm_bwd, 5, in, &a, 1, 2);
  return g->status;
}
static PlStatus group_norm_tangent(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], PL_NONE}, w = g->x[1];
  PlAttrs a, shape;
  int64_t sizes[PL_MAX_DIM];
  pl_attrs_init(&pl_op_group_norm_bwd, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  if (w != PL_NONE) { /* [C] → [C,1,…] */
    for (int d = 1; d < g->in[0]->ndim; d++) sizes[d - 1] = d == 1 ? -1 : 1;
    pl_attrs_init(&pl_op_reshape, &shape);
    pl_g_fail(g, pl_attrs_list(&shape, 0, g->in[0]->ndim - 1, sizes));
    w = pl_g_op(g, &pl_op_reshape, 1, &w, &shape, NULL);
  }
  g->dx[0] = times(g, symmetric_part(g, &pl_op_group_norm_bwd, 5, in, &a), w);
  return g->status;
}
static PlStatus group_bwd_infer(PlInfer *c) {
  const PlArray *x = c->in[1];
  const int64_t G = pl_attr_i(c->attrs, 0);
  PL_TRY(pl_check_ndim(c, 1, 2, PL_MAX_DIM));
  if (G < 1 || x->shape[1] % G != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: num_groups = %lld does not divide the channels of %s", c->op->name, (long long)G, pl_desc_text(x));
  PL_TRY(check_bwd(c, 2, (const int64_t[]){x->shape[0], G}, 1, &x->shape[1]));
  bwd_descs(c, 1, &x->shape[1]);
  return PL_OK;
}

PL_OP(group_norm,
      .doc = "x[N,C,...] normalized over groups of channels of each sample, times weight[C] plus bias[C] (optional). "
             "num_groups = C is instance norm. Further outputs: mean and 1/deviation.",
      .example = "print((T.group_norm(T.arange(4):float():view(1, 4), nil, nil, { num_groups = 2 })))\n"
                 "--> {{-1.0000,  1.0000, -1.0000,  1.0000}}  -- f32[1,4] cpu",
      .formula = "as layer_norm over C/num_groups channels and all positions", .nin = 3, .nopt = 2, .nout = 3, .nvisible = 1, .spare = 6,
      .nattr = 2, .args = {"x", "weight", "bias"}, .attrs = {A_INT_REQ("num_groups"), A_FLOAT("eps", 1e-5)}, .cls = PL_REDUCTION,
      .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_NOMETHOD, .infer = group_infer, .grad = group_norm_grad,
      .tangent = group_norm_tangent, PL_KERNEL(group_norm));
PL_OP(group_norm_bwd, .doc = "The gradients of group_norm: dx, dw, db.", .nin = 5, .nopt = 1, .nout = 3, .nattr = 2,
      .args = {"dy", "x", "mean", "rstd", "weight"}, .attrs = {A_INT_REQ("num_groups"), A_INT_REQ("wanted")}, .cls = PL_REDUCTION,
      .flags = BWD_FLAGS, .infer = group_bwd_infer, .grad = norm_second_group, PL_KERNEL(group_norm_bwd));

/* ---- batch norm -------------------------------------------------------------------------------------------- */

static PlStatus batch_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  bool training = pl_attr_i(c->attrs, 0) != 0;
  PL_TRY(pl_check_float(c, 0));
  if (x->ndim == 1 && x->numel == 0) { /* nothing at all passes, as in PyTorch: no samples, no channels */
    for (int o = 0; o < 3; o++) pl_desc_set(&c->out[o], o ? stat_dtype(c->compute) : c->compute, 1, x->shape);
    return PL_OK;
  }
  PL_TRY(pl_check_ndim(c, 0, 2, PL_MAX_DIM));
  for (int i = 1; i < 5; i++) PL_TRY(check_param(c, i, 1, &x->shape[1], "the channels (dim 2)"));
  if (!training && (!c->in[1] || !c->in[2]))
    PL_FAIL(PL_ERR_ARG, "batch_norm: running_mean and running_var are needed unless training=true");
  if (training && x->shape[1] > 0 && x->numel / x->shape[1] == 1)
    PL_FAIL(PL_ERR_SHAPE, "batch_norm: %s has one value per channel; training needs more", pl_desc_text(x));
  pl_desc_set(&c->out[0], c->compute, x->ndim, x->shape);
  for (int o = 1; o < 3; o++) pl_desc_set(&c->out[o], stat_dtype(c->compute), 1, &x->shape[1]);
  c->out[0].layout = PL_MAY_FOLLOW;
  return PL_OK;
}
static PlStatus batch_norm_grad(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], g->x[3]};
  PlAttrs a;
  pl_attrs_init(&pl_op_batch_norm_bwd, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  pl_attrs_float(&a, 2, pl_attr_f(g->attrs, 1));
  give_bwd(g, &pl_op_batch_norm_bwd, 5, in, &a, 3, 4);
  return g->status;
}

static PlStatus batch_norm_tangent(PlMaker *g) { /* the weight is one number where sums are taken: as it is */
  PlVal in[5] = {g->dy[0], g->x[0], g->y[1], g->y[2], g->x[3]};
  PlAttrs a;
  pl_attrs_init(&pl_op_batch_norm_bwd, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  pl_attrs_float(&a, 2, pl_attr_f(g->attrs, 1));
  g->dx[0] = symmetric_part(g, &pl_op_batch_norm_bwd, 5, in, &a);
  return g->status;
}

static PlStatus batch_bwd_infer(PlInfer *c) {
  const PlArray *x = c->in[1];
  PL_TRY(pl_check_ndim(c, 1, 1, PL_MAX_DIM));
  if (x->ndim == 1 && x->numel > 0) PL_TRY(pl_check_ndim(c, 1, 2, PL_MAX_DIM));
  const int64_t *channels = &x->shape[x->ndim > 1];
  PL_TRY(check_bwd(c, 1, channels, 1, channels));
  bwd_descs(c, 1, channels);
  c->out[0].layout = PL_MAY_FOLLOW;
  return PL_OK;
}

PL_OP(batch_norm,
      .doc = "x[N,C,...] normalized per channel with the batch's statistics (training) or the running ones, times weight[C] "
             "plus bias[C] (optional). Does not touch the running statistics: see running_update. Further outputs: mean and "
             "variance used (biased).",
      .example = "print((T.batch_norm(T.tensor { { 1 }, { 3 } }, nil, nil, nil, nil, { training = true })))\n"
                 "--> {{-1.0000},\n"
                 "-->  { 1.0000}}  -- f32[2,1] cpu",
      .formula = "as layer_norm, per channel over samples and positions; not training: dx = w dy / sqrt(running_var + eps)", .nin = 5,
      .nopt = 4, .nout = 3, .nattr = 2, .args = {"x", "running_mean", "running_var", "weight", "bias"},
      .attrs = {A_BOOL("training", 0), A_FLOAT("eps", 1e-5)}, .cls = PL_REDUCTION, .batch = pl_batch_channels,
      .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_NOMETHOD, .infer = batch_infer, .grad = batch_norm_grad, .tangent = batch_norm_tangent,
      PL_KERNEL(batch_norm));
PL_OP(batch_norm_bwd, .doc = "The gradients of batch_norm: dx, dw, db.", .nin = 5, .nopt = 1, .nout = 3, .nattr = 3,
      .args = {"dy", "x", "mean", "var", "weight"}, .attrs = {A_BOOL("training", 0), A_INT_REQ("wanted"), A_FLOAT_REQ("eps")},
      .cls = PL_REDUCTION, .batch = pl_batch_channels, .flags = BWD_FLAGS, .infer = batch_bwd_infer, .grad = norm_second_batch,
      PL_KERNEL(batch_norm_bwd));

static PlStatus running_infer(PlInfer *c) {
  const PlArray *r = c->in[0], *s = c->in[1];
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_float(c, 1));
  bool fits = r->ndim == s->ndim;
  for (int d = 0; fits && d < r->ndim; d++) fits = r->shape[d] == s->shape[d];
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "running_update: running is %s, stat is %s; the shapes must be equal", pl_desc_text(r), pl_desc_text(s));
  return pl_infer_same(c);
}
PL_OP(running_update,
      .doc = "running = (1 - momentum) running + momentum factor stat, in place: how batch norm keeps its running mean and "
             "variance. count = n, the values that stat is the variance of: times n / (n - 1), the unbiased one.",
      .example = "local mean = T.zeros(1)\n"
                 "T.running_update_(mean, T.ones(1), { momentum = 0.1 })\n"
                 "print(mean)  --> {0.1000}  -- f32[1] cpu",
      .nin = 2, .nout = 1, .nattr = 3, .args = {"running", "stat"},
      .attrs = {A_FLOAT("momentum", 0.1), A_FLOAT("factor", 1), A_INT("count", 0)}, .cls = PL_OPAQUE,
      .flags = PL_F_CONTIGUOUS | PL_F_MUTATES | PL_F_NOGRAD_OK | PL_F_NOMETHOD, .infer = running_infer, PL_KERNEL(running_update));
