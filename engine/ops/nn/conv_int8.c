/* SPDX-License-Identifier: MIT
 * Convolution of numbers that are rounded to 8 bits by scales that are known: what a network quantized after training runs. */
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/nn/conv_pool_attrs.h"
#include "kernels/conv.h"

enum { STRIDE, PADDING, DILATION, GROUPS, RELU };

static PlStatus read_attrs(const char *op, const PlAttrs *a, PlGeometry *geo) {
  geo->nd = 2;
  PL_TRY(pl_spatial_list(op, "stride", a, STRIDE, 2, 1, geo->stride));
  PL_TRY(pl_spatial_list(op, "padding", a, PADDING, 2, 0, geo->pad));
  PL_TRY(pl_spatial_list(op, "dilation", a, DILATION, 2, 1, geo->dil));
  if (pl_attr_i(a, GROUPS) < 1) PL_FAIL(PL_ERR_ARG, "%s: groups is %lld, must be at least 1", op, (long long)pl_attr_i(a, GROUPS));
  return PL_OK;
}

/* One number. */
static PlStatus check_one(const PlInfer *c, int i, PlDtype d) {
  PL_TRY(pl_check_dtype(c, i, d));
  if (c->in[i]->numel != 1) PL_FAIL(PL_ERR_SHAPE, "%s: %s must be one number, got %s", c->op->name, c->op->args[i], pl_desc_text(c->in[i]));
  return PL_OK;
}

static PlStatus infer(PlInfer *c) {
  const char *op = c->op->name;
  const PlArray *x = c->in[0], *w = c->in[1];
  PlGeometry geo;
  PL_TRY(read_attrs(op, c->attrs, &geo));
  const int64_t groups = pl_attr_i(c->attrs, GROUPS);
  PL_TRY(pl_check_ndim(c, 0, 4, 4));
  PL_TRY(pl_check_dtype(c, 0, PL_F32));
  PL_TRY(pl_check_ndim(c, 1, 4, 4));
  PL_TRY(pl_check_dtype(c, 1, PL_I8));
  if (w->shape[0] < groups || w->shape[0] % groups != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: weight %s: its first size must be a multiple of groups = %lld", op, pl_desc_text(w), (long long)groups);
  if (x->shape[1] % groups != 0 || x->shape[1] / groups != w->shape[1])
    PL_FAIL(PL_ERR_SHAPE, "%s: x %s has %lld channels, weight %s with groups = %lld takes %lld", op, pl_desc_text(x),
            (long long)x->shape[1], pl_desc_text(w), (long long)groups, (long long)(w->shape[1] * groups));
  int64_t terms = 0;
  if (w->shape[2] < 1 || w->shape[3] < 1) PL_FAIL(PL_ERR_SHAPE, "%s: weight %s has an empty kernel", op, pl_desc_text(w));
  if (__builtin_mul_overflow(w->shape[1] * w->shape[2], w->shape[3], &terms) || terms > 65536)
    PL_FAIL(PL_ERR_SHAPE, "%s: weight %s: sums of more than 65536 terms do not fit 32 bits", op, pl_desc_text(w));
  PL_TRY(pl_check_shape(c, 2, 1, w->shape));
  PL_TRY(pl_check_dtype(c, 2, PL_F32));
  PL_TRY(check_one(c, 3, PL_F32));
  PL_TRY(check_one(c, 4, PL_I32));
  if (c->in[5]) {
    PL_TRY(pl_check_dtype(c, 5, PL_F32));
    PL_TRY(pl_check_shape(c, 5, 1, w->shape));
  }
  int64_t y[4] = {x->shape[0], w->shape[0]};
  for (int d = 0; d < 2; d++) {
    y[2 + d] = pl_window_count(x->shape[2 + d], w->shape[2 + d], geo.stride[d], geo.pad[d], geo.pad[d], geo.dil[d], false);
    if (y[2 + d] < 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: x %s is smaller than the window of weight %s in spatial dim %d; use padding", op, pl_desc_text(x),
              pl_desc_text(w), d + 1);
  }
  pl_desc_set(&c->out[0], PL_F32, 4, y);
  return PL_OK;
}

static double flops(const PlInfer *c) {
  const PlArray *w = c->in[1];
  double n = w->shape[0] ? 2 * (double)w->numel / (double)w->shape[0] : 0;
  for (int d = 0; d < 4; d++) n *= (double)c->out[0].shape[d];
  return n;
}

PL_HOST_KERNEL(pl_host_int8_conv2d) {
  PlGeometry geo;
  PL_TRY(read_attrs(call->name, call->attrs, &geo));
  PlAttrs a = {.nval = 5};
  pl_kernel_list(&a, STRIDE, 2, geo.stride);
  pl_kernel_list(&a, PADDING, 2, geo.pad);
  pl_kernel_list(&a, DILATION, 2, geo.dil);
  pl_kernel_int(&a, GROUPS, pl_attr_i(call->attrs, GROUPS));
  pl_kernel_int(&a, RELU, pl_attr_i(call->attrs, RELU));
  PlkCall k = *call;
  k.attrs = &a;
  return plk_cpu_int8_conv2d(&k);
}

PL_OP(int8_conv2d,
      .doc = "conv2d of x[N,C,H,W], f32, rounded to whole numbers of 8 bits, q = round(x / x_scale) + x_zero within [-128, 127], and a "
             "weight i8[O,C/groups,kh,kw] that stands for weight scale[o]: x_scale scale[o] times the exact sums of (q - x_zero) weight, "
             "plus bias[O]; not below 0 with relu. x_scale f32 and x_zero i32 are one number each. No gradient.",
      .example = "local w = T.ones({ 1, 1, 1, 1 }, { dtype = \"i8\" })\n"
                 "local one, zero = T.ones(1), T.zeros({ 1 }, { dtype = \"i32\" })\n"
                 "print(T.int8_conv2d(T.tensor { { { { 1.4, 2.6 } } } }, w, one, one, zero):flatten())  --> {1., 3.}  -- f32[2] cpu",
      .formula = "y = relu?(x_scale scale[o] sum of (q - x_zero) w + bias[o])", .autocast = PL_CAST_F32, .nin = 6, .nopt = 1, .nout = 1,
      .args = {"x", "weight", "scale", "x_scale", "x_zero", "bias"}, .nattr = 5,
      .attrs = {A_INTS("stride", 1), A_INTS("padding", 0), A_INTS("dilation", 1), A_INT("groups", 1), A_BOOL("relu", 0)}, .cls = PL_HEAVY,
      .flags = PL_F_NOGRAD_OK | PL_F_NOMETHOD | PL_F_CONTIGUOUS, .infer = infer, .flops = flops, PL_KERNEL_OWN(pl_host_int8_conv2d));
