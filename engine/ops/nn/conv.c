/* SPDX-License-Identifier: MIT
 * Convolution and transposed convolution, 1 to 3 spatial dims, batched or not. Three cores carry all of it:
 *   conv (x, w → y), conv_bwd_input (dy, w → dx), conv_bwd_weight (dy, x → dw);
 * each one's gradients are the other two, and a transposed convolution is conv_bwd_input. */
#include "kernels/conv.h"

#include <string.h>

#include "engine/device/dispatch.h"
#include "engine/graph/passes/blocks.h"
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/nn/conv_pool_attrs.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

PL_EITHER(conv)
PL_EITHER(conv_bwd_input)
PL_EITHER(conv_bwd_weight)
PL_EITHER(elementwise)

/* Attributes of conv and of the cores; the cores add the sizes of their output. */
enum { STRIDE, PADDING, DILATION, GROUPS, SIZES, RELU = SIZES, BLOCK };
/* Those of the transposed ops, in PyTorch's order. */
enum { T_STRIDE, T_PADDING, T_OUTPUT, T_GROUPS, T_DILATION };

typedef struct Conv {
  PlGeometry geo;
  int64_t groups, extra[3]; /* extra: output padding */
} Conv;

static PlStatus read_conv(const char *op, const PlAttrs *a, int nd, Conv *v) {
  v->geo.nd = nd;
  PL_TRY(pl_spatial_list(op, "stride", a, STRIDE, nd, 1, v->geo.stride));
  PL_TRY(pl_spatial_list(op, "padding", a, PADDING, nd, 0, v->geo.pad));
  PL_TRY(pl_spatial_list(op, "dilation", a, DILATION, nd, 1, v->geo.dil));
  v->groups = pl_attr_i(a, GROUPS);
  if (v->groups < 1) PL_FAIL(PL_ERR_ARG, "%s: groups is %lld, must be at least 1", op, (long long)v->groups);
  return PL_OK;
}

static PlStatus read_transposed(const char *op, const PlAttrs *a, int nd, Conv *v) {
  v->geo.nd = nd;
  PL_TRY(pl_spatial_list(op, "stride", a, T_STRIDE, nd, 1, v->geo.stride));
  PL_TRY(pl_spatial_list(op, "padding", a, T_PADDING, nd, 0, v->geo.pad));
  PL_TRY(pl_spatial_list(op, "output_padding", a, T_OUTPUT, nd, 0, v->extra));
  PL_TRY(pl_spatial_list(op, "dilation", a, T_DILATION, nd, 1, v->geo.dil));
  v->groups = pl_attr_i(a, T_GROUPS);
  if (v->groups < 1) PL_FAIL(PL_ERR_ARG, "%s: groups is %lld, must be at least 1", op, (long long)v->groups);
  for (int d = 0; d < nd; d++)
    if (v->extra[d] >= v->geo.stride[d] && v->extra[d] >= v->geo.dil[d])
      PL_FAIL(PL_ERR_ARG, "%s: output_padding %lld must be below stride %lld or dilation %lld", op, (long long)v->extra[d],
              (long long)v->geo.stride[d], (long long)v->geo.dil[d]);
  return PL_OK;
}

/* What the kernels read. */
static void conv_attrs(const Conv *v, PlAttrs *a) {
  *a = (PlAttrs){.nval = 4};
  pl_kernel_list(a, STRIDE, v->geo.nd, v->geo.stride);
  pl_kernel_list(a, PADDING, v->geo.nd, v->geo.pad);
  pl_kernel_list(a, DILATION, v->geo.nd, v->geo.dil);
  pl_kernel_int(a, GROUPS, v->groups);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

/* The way out where x has its channels last, as other programs keep images: "; channels are in front of the sizes". */
static const char *channels_last(const PlArray *x, const PlArray *w, int nd, bool transposed, int64_t groups) {
  static const char *const how[2][3] = {{": x:permute(2, 1)", ": x:permute(3, 1, 2)", ": x:permute(4, 1, 2, 3)"},
                                        {": x:permute(1, 3, 2)", ": x:permute(1, 4, 2, 3)", ": x:permute(1, 5, 2, 3, 4)"}};
  int64_t takes = transposed ? w->shape[0] : w->shape[1] * groups;
  if (nd > 3 || x->shape[x->ndim - 1] != takes) return "";
  return how[x->ndim == nd + 2][nd - 1];
}

/* Ranks, dtypes, channels, bias. `in` and `out`: which dim of w belongs to input and output channels. */
static PlStatus check_operands(const PlInfer *c, int nd, const PlArray *x, const PlArray *w, const PlArray *b, int64_t groups,
                               bool transposed) {
  const char *op = c->op->name;
  if (x->dtype != w->dtype || (b && b->dtype != x->dtype))
    PL_FAIL(PL_ERR_DTYPE, "%s: x %s, weight %s, bias %s: one dtype is needed", op, pl_desc_text(x), pl_desc_text(w), pl_desc_text(b));
  if (x->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for bool", op);
  if (w->ndim != nd + 2) PL_FAIL(PL_ERR_SHAPE, "%s: weight %s must have %d dims", op, pl_desc_text(w), nd + 2);
  if (x->ndim != nd + 2 && x->ndim != nd + 1)
    PL_FAIL(PL_ERR_SHAPE, "%s: x %s must have %d dims, or %d without a batch", op, pl_desc_text(x), nd + 2, nd + 1);
  int64_t have = x->shape[x->ndim - nd - 1], takes = transposed ? w->shape[0] : w->shape[1];
  if (w->shape[0] < groups || w->shape[0] % groups != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: weight %s: its first size must be a multiple of groups = %lld", op, pl_desc_text(w), (long long)groups);
  if (transposed ? have != takes : have / groups != takes || have % groups != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: x %s has %lld channels, weight %s with groups = %lld takes %lld%s%s", op, pl_desc_text(x), (long long)have,
            pl_desc_text(w), (long long)groups, (long long)(transposed ? takes : takes * groups),
            *channels_last(x, w, nd, transposed, groups)                      ? "; channels come before the sizes"
            : x->ndim == nd + 1 && (transposed ? takes : takes * groups) == 1 ? "; of a batch without channels x:unsqueeze(2)"
                                                                              : "",
            channels_last(x, w, nd, transposed, groups));
  int64_t made = transposed ? w->shape[1] * groups : w->shape[0];
  if (b && (b->ndim != 1 || b->shape[0] != made))
    PL_FAIL(PL_ERR_SHAPE, "%s: bias %s must have one value for each of the %lld output channels", op, pl_desc_text(b), (long long)made);
  for (int d = 0; d < nd; d++)
    if (w->shape[2 + d] < 1) PL_FAIL(PL_ERR_SHAPE, "%s: weight %s has an empty kernel", op, pl_desc_text(w));
  return PL_OK;
}

/* y's sizes from x's, batch and channels included. */
static PlStatus forward_sizes(const char *op, const Conv *v, const PlArray *x, const PlArray *w, int64_t *y) {
  int nd = v->geo.nd, lead = x->ndim - nd;
  for (int d = 0; d < lead; d++) y[d] = x->shape[d];
  y[lead - 1] = w->shape[0];
  for (int d = 0; d < nd; d++) {
    int64_t n = pl_window_count(x->shape[lead + d], w->shape[2 + d], v->geo.stride[d], v->geo.pad[d], v->geo.pad[d], v->geo.dil[d], false);
    if (n < 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: x %s is smaller than the window of weight %s in spatial dim %d; use padding", op, pl_desc_text(x),
              pl_desc_text(w), d + 1);
    y[lead + d] = n;
  }
  return PL_OK;
}

/* With a batch. Integers take other ways through kernels. */
static void may_follow(PlInfer *c, int ndim) {
  if (c->in[0]->ndim == ndim && pl_is_float((PlDtype)c->in[0]->dtype)) c->out[0].layout = PL_MAY_FOLLOW;
}

static PlStatus conv_infer(PlInfer *c, int nd) {
  const PlArray *x = c->in[0], *w = c->in[1];
  Conv v;
  int64_t y[5];
  PL_TRY(read_conv(c->op->name, c->attrs, nd, &v));
  PL_TRY(check_operands(c, nd, x, w, c->in[2], v.groups, false));
  PL_TRY(forward_sizes(c->op->name, &v, x, w, y));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, y);
  may_follow(c, w->ndim);
  return PL_OK;
}

/* (in - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1 */
static PlStatus transposed_infer(PlInfer *c, int nd) {
  const PlArray *x = c->in[0], *w = c->in[1];
  Conv v;
  PL_TRY(read_transposed(c->op->name, c->attrs, nd, &v));
  PL_TRY(check_operands(c, nd, x, w, c->in[2], v.groups, true));
  PlDesc *d = &c->out[0];
  pl_desc_set(d, (PlDtype)x->dtype, x->ndim, x->shape);
  int lead = x->ndim - nd;
  d->shape[lead - 1] = w->shape[1] * v.groups;
  for (int i = 0; i < nd; i++) {
    __int128 n = ((__int128)x->shape[lead + i] - 1) * v.geo.stride[i] - 2 * (__int128)v.geo.pad[i] +
                 (__int128)v.geo.dil[i] * (w->shape[2 + i] - 1) + v.extra[i] + 1;
    if (n < 1 || n > INT64_MAX / 2)
      PL_FAIL(PL_ERR_SHAPE, "%s: x %s with weight %s gives size %s in spatial dim %d", c->op->name, pl_desc_text(x), pl_desc_text(w),
              n < 1 ? "below 1" : "beyond all memory", i + 1);
    d->shape[lead + i] = (int64_t)n;
  }
  may_follow(c, w->ndim);
  return PL_OK;
}

static double conv_flops(const PlInfer *c) { /* 2 for each weight and output position */
  const PlArray *w = c->in[1];
  double n = 2 * (double)w->numel / (double)(w->shape[0] ? w->shape[0] : 1);
  for (int d = 0; d < c->out[0].ndim; d++) n *= (double)c->out[0].shape[d];
  return n;
}
static double transposed_flops(const PlInfer *c) {
  const PlArray *x = c->in[0], *w = c->in[1];
  return 2 * (double)x->numel * (double)w->numel / (double)(w->shape[0] ? w->shape[0] : 1);
}

/* ---- running --------------------------------------------------------------------------------------------- */

/* Calls a kernel with unbatched arrays as batches of one. Mask bit i: array i (outputs from bit 4) has a batch. */
static PlStatus run(const PlkCall *call, PlKernel kernel, const Conv *v, unsigned images) {
  PlWindow win[4], wout;
  const PlArray *in[4] = {NULL, NULL, NULL, NULL};
  for (int i = 0; i < call->nin && i < 4; i++) {
    if (!call->in[i]) continue;
    pl_window_of(&win[i], call->in[i]);
    if ((images >> i & 1) && win[i].a.ndim == v->geo.nd + 1) pl_window_insert(&win[i], 0);
    in[i] = &win[i].a;
  }
  pl_window_of(&wout, call->out[0]);
  if ((images >> 4 & 1) && wout.a.ndim == v->geo.nd + 1) pl_window_insert(&wout, 0);
  PlArray *out[1] = {&wout.a};
  PlAttrs a;
  conv_attrs(v, &a);
  if (kernel == plk_cpu_conv && call->nin == 4) {
    a.nval = 5;
    pl_kernel_int(&a, RELU, pl_attr_i(call->attrs, RELU));
  }
  PlkCall k = *call;
  k.in = in;
  k.out = out;
  k.attrs = &a;
  return kernel(&k);
}

PL_HOST_KERNEL(pl_host_conv) {
  Conv v;
  PL_TRY(read_conv(call->name, call->attrs, call->in[1]->ndim - 2, &v));
  return run(call, either_conv, &v, 1 | 1 << 4);
}
/* With what comes behind it: attribute 4 is relu, input 3 what is added before; and in blocks of channels. (engine/graph/passes/tails.c,
 * blocks.c) */
PL_HOST_KERNEL(pl_host_conv_tail) {
  Conv v;
  PL_TRY(read_conv(call->name, call->attrs, call->in[1]->ndim - 2, &v));
  if (call->out[0]->device != PL_CPU) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: only on the CPU", call->name);
  return run(call, plk_cpu_conv, &v, 1 | 1 << 3 | 1 << 4);
}
bool pl_conv_takes_blocks(const PlAttrs *attrs, const PlArray *x, const PlArray *w, const PlArray *y) {
  Conv v;
  PlAttrs a;
  const PlArray *in[4] = {x, w, NULL, NULL};
  PlArray out = *y, *to[1] = {&out};
  if (read_conv("conv2d", attrs, 2, &v) != PL_OK) return false;
  conv_attrs(&v, &a);
  return plk_cpu_conv_takes_blocks(&(PlkCall){.name = "conv2d", .nin = 4, .nout = 1, .in = in, .out = to, .attrs = &a});
}
PL_HOST_KERNEL(pl_host_conv_bwd_input) {
  Conv v;
  PL_TRY(read_conv(call->name, call->attrs, call->in[1]->ndim - 2, &v));
  return run(call, either_conv_bwd_input, &v, 1 | 1 << 4);
}
PL_HOST_KERNEL(pl_host_conv_bwd_weight) {
  Conv v;
  PL_TRY(read_conv(call->name, call->attrs, call->out[0]->ndim - 2, &v));
  return run(call, either_conv_bwd_weight, &v, 3);
}

/* y += bias, one value a channel. */
static PlStatus add_bias(const PlArray *bias, PlArray *y, int nd) {
  PlWindow b;
  pl_window_of(&b, bias);
  for (int d = 0; d < nd; d++) pl_window_insert(&b, b.a.ndim);
  static const PlAttrs none;
  const PlArray *in[2] = {y, &b.a};
  PlArray *out[1] = {y};
  PlkCall k = {.name = "add", .code = PLK_EW_ADD, .nin = 2, .nout = 1, .in = in, .out = out, .attrs = &none};
  return either_elementwise(&k);
}
PL_HOST_KERNEL(pl_host_conv_transpose) {
  Conv v;
  int nd = call->in[1]->ndim - 2;
  PL_TRY(read_transposed(call->name, call->attrs, nd, &v));
  PlkCall k = *call;
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL, *y = call->out[0];
  /* halves take it before they are rounded */
  const bool inside = bias && bias->contiguous && (y->dtype == PL_F16 || y->dtype == PL_BF16);
  k.nin = inside ? 3 : 2;
  PL_TRY(run(&k, either_conv_bwd_input, &v, 1 | 1 << 4));
  return bias && !inside ? add_bias(bias, call->out[0], nd) : PL_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------- */

/* Emits one of the cores (sizes: of its output), or the forward op of that rank (sizes NULL). */
static PlVal emit(PlMaker *g, const PlOp *op, const Conv *v, PlVal a, PlVal b, int ndim, const int64_t *sizes) {
  PlAttrs at;
  pl_attrs_init(op, &at);
  at.npool = 0; /* the defaults' lists are replaced */
  pl_kernel_list(&at, STRIDE, v->geo.nd, v->geo.stride);
  pl_kernel_list(&at, PADDING, v->geo.nd, v->geo.pad);
  pl_kernel_list(&at, DILATION, v->geo.nd, v->geo.dil);
  pl_kernel_int(&at, GROUPS, v->groups);
  if (sizes) pl_kernel_list(&at, SIZES, ndim, sizes);
  const PlVal in[2] = {a, b};
  return pl_g_op(g, op, 2, in, &at, NULL);
}
static PlVal emit_conv(PlMaker *g, const Conv *v, PlVal x, PlVal w) {
  static const PlOp *const op[3] = {&pl_op_conv1d, &pl_op_conv2d, &pl_op_conv3d};
  return emit(g, op[v->geo.nd - 1], v, x, w, 0, NULL);
}
static PlVal emit_input(PlMaker *g, const Conv *v, PlVal dy, PlVal w, const PlArray *like) {
  return emit(g, &pl_op_conv_bwd_input, v, dy, w, like->ndim, like->shape);
}
static PlVal emit_weight(PlMaker *g, const Conv *v, PlVal dy, PlVal x, const PlArray *like) {
  return emit(g, &pl_op_conv_bwd_weight, v, dy, x, like->ndim, like->shape);
}
/* Σ of dy over all dims but the channels. */
static PlVal emit_bias(PlMaker *g, PlVal dy, int ndim, int nd) {
  int64_t dims[4];
  int n = 0;
  for (int d = 0; d < ndim; d++)
    if (d != ndim - nd - 1) dims[n++] = d;
  PlAttrs a;
  pl_attrs_init(&pl_op_sum, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, n, dims));
  return pl_g_op(g, &pl_op_sum, 1, &dy, &a, NULL);
}

/* dx = bwd_input(dy, w);  dw = bwd_weight(dy, x);  db = Σ dy */
static PlStatus conv_grad(PlMaker *g) {
  Conv v;
  int nd = g->in[1]->ndim - 2;
  PL_TRY(read_conv(g->op->name, g->attrs, nd, &v));
  if (g->want[0]) g->dx[0] = emit_input(g, &v, g->dy[0], g->x[1], g->in[0]);
  if (g->want[1]) g->dx[1] = emit_weight(g, &v, g->dy[0], g->x[0], g->in[1]);
  if (g->nin > 2 && g->want[2]) g->dx[2] = emit_bias(g, g->dy[0], g->in[0]->ndim, nd);
  return g->status;
}
/* conv(dy, w) cut to x's sizes: an output padding of a stride or more would make further positions. */
static PlVal emit_conv_like(PlMaker *g, const Conv *v, PlVal dy, PlVal w, const PlDesc *big, const PlArray *weight, const PlArray *like) {
  PlVal r = emit_conv(g, v, dy, w);
  int nd = v->geo.nd, lead = like->ndim - nd;
  for (int d = 0; d < nd; d++) {
    int64_t n =
        pl_window_count(big->shape[lead + d], weight->shape[2 + d], v->geo.stride[d], v->geo.pad[d], v->geo.pad[d], v->geo.dil[d], false);
    if (n == like->shape[lead + d]) continue;
    PlAttrs a;
    pl_attrs_init(&pl_op_narrow, &a);
    pl_attrs_int(&a, 0, lead + d);
    pl_attrs_int(&a, 1, 0);
    pl_attrs_int(&a, 2, like->shape[lead + d]);
    r = pl_g_op(g, &pl_op_narrow, 1, &r, &a, NULL);
  }
  return r;
}
/* z = bwd_input(x, w): dx = conv(dz, w);  dw = bwd_weight(x, dz);  db = Σ dz */
static PlStatus transposed_grad(PlMaker *g) {
  Conv v;
  int nd = g->in[1]->ndim - 2;
  PL_TRY(read_transposed(g->op->name, g->attrs, nd, &v));
  if (g->want[0]) g->dx[0] = emit_conv_like(g, &v, g->dy[0], g->x[1], &g->outd[0], g->in[1], g->in[0]);
  if (g->want[1]) g->dx[1] = emit_weight(g, &v, g->x[0], g->dy[0], g->in[1]);
  if (g->nin > 2 && g->want[2]) g->dx[2] = emit_bias(g, g->dy[0], g->in[0]->ndim, nd);
  return g->status;
}
static PlStatus bwd_input_grad(PlMaker *g) {
  Conv v;
  PL_TRY(read_conv(g->op->name, g->attrs, g->in[1]->ndim - 2, &v));
  if (g->want[0]) g->dx[0] = emit_conv_like(g, &v, g->dy[0], g->x[1], &g->outd[0], g->in[1], g->in[0]);
  if (g->want[1]) g->dx[1] = emit_weight(g, &v, g->x[0], g->dy[0], g->in[1]);
  return g->status;
}
/* dw = bwd_weight(dy, x): d(dy) = conv(x, ddw);  dx = bwd_input(dy, ddw) */
static PlStatus bwd_weight_grad(PlMaker *g) {
  Conv v;
  int nd = g->outd[0].ndim - 2;
  PL_TRY(read_conv(g->op->name, g->attrs, nd, &v));
  PlArray w = {.shape = g->outd[0].shape, .ndim = g->outd[0].ndim};
  PlDesc big;
  pl_desc_set(&big, PL_F32, g->in[1]->ndim, g->in[1]->shape);
  if (g->want[0]) g->dx[0] = emit_conv_like(g, &v, g->x[1], g->dy[0], &big, &w, g->in[0]);
  if (g->want[1]) g->dx[1] = emit_input(g, &v, g->x[0], g->dy[0], g->in[1]);
  return g->status;
}

/* The cores are emitted by the makers above, yet anybody may call them: everything is checked again. */
static PlStatus bwd_infer(PlInfer *c, bool weight) {
  const PlArray *dy = c->in[0], *other = c->in[1];
  int n = pl_attr_n(c->attrs, SIZES);
  const int64_t *sizes = pl_attr_list(c->attrs, SIZES);
  PlArray made = {.shape = sizes, .ndim = (uint8_t)(n < PL_MAX_DIM ? n : PL_MAX_DIM), .dtype = dy->dtype};
  const PlArray *x = weight ? other : &made, *w = weight ? &made : other;
  int nd = w->ndim - 2;
  Conv v;
  if (nd < 1 || nd > 3 || n > 5 || dy->ndim != x->ndim)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s and %s do not belong together", c->op->name, pl_desc_text(dy), pl_desc_text(other));
  for (int d = 0; d < n; d++)
    if (sizes[d] < 0) PL_FAIL(PL_ERR_SHAPE, "%s: negative size %lld", c->op->name, (long long)sizes[d]);
  PL_TRY(read_conv(c->op->name, c->attrs, nd, &v));
  PL_TRY(check_operands(c, nd, x, w, NULL, v.groups, false));
  int lead = x->ndim - nd;
  bool ok = dy->shape[lead - 1] == w->shape[0] && (lead == 1 || dy->shape[0] == x->shape[0]);
  for (int d = 0; ok && d < nd; d++) {
    int64_t most = pl_window_count(x->shape[lead + d], w->shape[2 + d], v.geo.stride[d], v.geo.pad[d], v.geo.pad[d], v.geo.dil[d], false);
    ok = dy->shape[lead + d] <= (most < 0 ? 0 : most);
  }
  if (!ok)
    PL_FAIL(PL_ERR_SHAPE, "%s: dy %s is not an output for x %s and weight %s", c->op->name, pl_desc_text(dy), pl_desc_text(x),
            pl_desc_text(w));
  pl_desc_set(&c->out[0], (PlDtype)dy->dtype, n, sizes);
  may_follow(c, w->ndim);
  return PL_OK;
}
static PlStatus bwd_input_infer(PlInfer *c) { return bwd_infer(c, false); }
static PlStatus bwd_weight_infer(PlInfer *c) { return bwd_infer(c, true); }

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

/* As in forward: 2 for each weight and position of dy. */
static double bwd_flops(const PlInfer *c, bool weight) {
  const int64_t *w = weight ? pl_attr_list(c->attrs, SIZES) : c->in[1]->shape;
  int n = weight ? pl_attr_n(c->attrs, SIZES) : c->in[1]->ndim;
  double f = 2 * (double)c->in[0]->numel;
  for (int d = 1; d < n; d++) f *= (double)w[d];
  return f;
}
static double bwd_input_flops(const PlInfer *c) { return bwd_flops(c, false); }
static double bwd_weight_flops(const PlInfer *c) { return bwd_flops(c, true); }

#define CONV_ATTRS A_INTS("stride", 1), A_INTS("padding", 0), A_INTS("dilation", 1), A_INT("groups", 1)
#define CORE(NAME, SHORT, B, DOC)                                                                                                 \
  PL_OP(conv_##NAME, .doc = DOC, .nin = 2, .nout = 1, .nattr = 5, .args = {"dy", B}, .attrs = {CONV_ATTRS, A_SHAPE_REQ("sizes")}, \
        .cls = PL_HEAVY, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .batch = pl_batch_conv_##SHORT, .infer = NAME##_infer,         \
        .grad = NAME##_grad, .flops = NAME##_flops, PL_KERNEL_EITHER(pl_host_conv_##NAME));
CORE(bwd_input, input, "w", "The gradient of a convolution with respect to its input.")
CORE(bwd_weight, weight, "x", "The gradient of a convolution with respect to its weight.")

#define CONV(ND, X, W, Y, EXAMPLE)                                                                                                         \
  static PlStatus conv##ND##d_infer(PlInfer *c) { return conv_infer(c, ND); }                                                              \
  PL_OP(conv##ND##d, .autocast = PL_CAST_LOW,                                                                                              \
        .doc = "Cross-correlation of x[N,C," X "] (or without N) with weight[O,C/groups," W "], plus bias[O]: [N,O," Y                     \
               "]. stride, padding and dilation are numbers or "                                                                           \
               "one for each spatial dim.",                                                                                                \
        .example = EXAMPLE, .formula = "y[n,o,t] = b[o] + sum_{c,k} x[n, c, t stride - padding + k dilation] w[o,c,k]", .nin = 3,          \
        .batch = pl_batch_conv, .nopt = 1, .nout = 1, .nattr = 4, .args = {"x", "weight", "bias"}, .attrs = {CONV_ATTRS}, .cls = PL_HEAVY, \
        .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .prepares = true, .infer = conv##ND##d_infer, .grad = conv_grad, .flops = conv_flops,    \
        PL_KERNEL_EITHER(pl_host_conv));
CONV(1, "L", "k", "L'",
     "print(T.conv1d(T.tensor { { { 1, 2, 3, 4 } } }, T.tensor { { { 1, 1 } } }))  --> {{{3., 5., 7.}}}  -- f32[1,1,3] cpu")
CONV(2, "H,W", "kh,kw", "H',W'",
     "local image = T.ones(1, 1, 3, 3)\n"
     "print(T.conv2d(image, T.ones(1, 1, 2, 2)))\n"
     "--> {{{{4., 4.},\n"
     "-->    {4., 4.}}}}  -- f32[1,1,2,2] cpu\n"
     "print(T.conv2d(image, T.ones(1, 1, 3, 3), { padding = 1 }):shape()[4])  --> 3")
CONV(3, "D,H,W", "kd,kh,kw", "D',H',W'",
     "print(T.conv3d(T.ones(1, 1, 2, 2, 2), T.ones(1, 1, 2, 2, 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu")

/* [N, C / b, H, W, b] → [N, C, H, W] */
static PlArray unblocked(const PlArray *x, int64_t *shape) {
  PlArray p = *x;
  memcpy(shape, x->shape, 4 * sizeof *shape);
  shape[1] *= x->shape[4];
  p.shape = shape, p.ndim = 4;
  return p;
}

static PlStatus conv_tail_infer(PlInfer *c) {
  const int nd = c->in[1]->ndim - 2;
  const PlArray *x = c->in[0];
  const int64_t block = pl_attr_i(c->attrs, BLOCK);
  int64_t shape[4];
  PlArray plain;
  if (nd < 1 || nd > 3 || x->dtype != PL_F32) PL_FAIL(PL_ERR_SHAPE, "conv_tail: x %s, weight %s", pl_desc_text(x), pl_desc_text(c->in[1]));
  PlInfer of = *c;
  const PlArray *in[4] = {x, c->in[1], c->in[2], c->in[3]};
  of.in = in;
  if (nd == 2 && x->ndim == 5) {
    plain = unblocked(x, shape);
    in[0] = &plain;
  }
  PL_TRY(conv_infer(&of, nd));
  c->out[0].layout = PL_ROW_MAJOR;
  if (block) {
    PlDesc *y = &c->out[0];
    if (nd != 2 || y->ndim != 4 || block < 1 || y->shape[1] % block != 0)
      PL_FAIL(PL_ERR_ARG, "conv_tail: no blocks of %lld channels of the convolution of %s with %s", (long long)block, pl_desc_text(x),
              pl_desc_text(c->in[1]));
    const int64_t dims[5] = {y->shape[0], y->shape[1] / block, y->shape[2], y->shape[3], block};
    pl_desc_set(y, PL_F32, 5, dims);
  }
  const PlArray *r = c->in[3];
  const PlDesc *y = &c->out[0];
  if (r && (r->dtype != PL_F32 || r->ndim != y->ndim || memcmp(r->shape, y->shape, y->ndim * sizeof *y->shape) != 0))
    PL_FAIL(PL_ERR_SHAPE, "conv_tail: %s cannot be added to the convolution of %s", pl_desc_text(r), pl_desc_text(c->in[0]));
  return PL_OK;
}
PL_OP(conv_tail,
      .doc = "conv1d, conv2d or conv3d of f32, plus addend, then relu if asked for. Of two dims x may be in blocks of b channels, "
             "[N,C/b,H,W,b], and with block = b the result and the addend are. Internal: what graphs make of these ops.",
      .formula = "y = conv(x, weight) + bias + addend; y = max(y, 0)", .nin = 4, .nopt = 2, .nout = 1, .nattr = 6,
      .args = {"x", "weight", "bias", "addend"}, .attrs = {CONV_ATTRS, A_BOOL("relu", false), A_INT("block", 0)}, .cls = PL_HEAVY,
      .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .prepares = true, .infer = conv_tail_infer, .flops = conv_flops,
      PL_KERNEL_OWN(pl_host_conv_tail), );

#define TRANSPOSED(ND, X, W, Y, EXAMPLE)                                                                                              \
  static PlStatus conv_transpose##ND##d_infer(PlInfer *c) { return transposed_infer(c, ND); }                                         \
  PL_OP(conv_transpose##ND##d, .autocast = PL_CAST_LOW,                                                                               \
        .doc = "The adjoint of conv" #ND "d: x[N,C," X "] (or without N), weight[C,O/groups," W "], bias[O]: [N,O," Y                 \
               "]. output_padding adds to the far end of the output.",                                                                \
        .example = EXAMPLE, .formula = "size' = (size - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1", .nin = 3,     \
        .batch = pl_batch_conv, .nopt = 1, .nout = 1, .nattr = 5, .args = {"x", "weight", "bias"},                                    \
        .attrs = {A_INTS("stride", 1), A_INTS("padding", 0), A_INTS("output_padding", 0), A_INT("groups", 1), A_INTS("dilation", 1)}, \
        .cls = PL_HEAVY, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = conv_transpose##ND##d_infer, .grad = transposed_grad,     \
        .flops = transposed_flops, PL_KERNEL_EITHER(pl_host_conv_transpose));
TRANSPOSED(1, "L", "k", "L'",
           "print(T.conv_transpose1d(T.tensor { { { 1, 2 } } }, T.tensor { { { 1, 10 } } }, { stride = 2 }))\n"
           "--> {{{ 1., 10.,  2., 20.}}}  -- f32[1,1,4] cpu")
TRANSPOSED(2, "H,W", "kh,kw", "H',W'",
           "print(T.conv_transpose2d(T.ones(1, 1, 2, 2), T.ones(1, 1, 2, 2)))\n"
           "--> {{{{1., 2., 1.},\n"
           "-->    {2., 4., 2.},\n"
           "-->    {1., 2., 1.}}}}  -- f32[1,1,3,3] cpu")
TRANSPOSED(3, "D,H,W", "kd,kh,kw", "D',H',W'",
           "print(T.conv_transpose3d(T.ones(1, 1, 1, 1, 1), T.ones(1, 1, 1, 2, 2)))\n"
           "--> {{{{{1., 1.},\n"
           "-->     {1., 1.}}}}}  -- f32[1,1,1,2,2] cpu")
