/* SPDX-License-Identifier: MIT
 * Convolutions that cuDNN takes: floats of 1 to 3 spatial dims, any strides. What it refuses goes on to conv.cu. */
#include <string.h>

#include "kernels/cuda/libs/cudnn.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

static PlStatus by_cudnn(const PlkCall *call, PlcConvKind kind, const PlArray *x, const PlArray *w, const PlArray *y, const PlArray *bias,
                         bool *done) {
  const int spatial = x->ndim - 2;
  const PlArray *factor = kind == PLC_CONV ? x : y, *result = kind == PLC_CONV ? y : kind == PLC_CONV_DATA ? x : w;
  *done = false;
  if (!pl_is_float((PlDtype)x->dtype) || spatial < 1 || spatial > 3) return PL_OK;
  if (x->numel == 0 || w->numel == 0 || y->numel == 0) return PL_OK;
  PlcConvKey key;
  plc_conv_key(&key, kind, spatial, x, w, y, pl_attr_list(call->attrs, 0), pl_attr_list(call->attrs, 1), pl_attr_list(call->attrs, 2));
  const int64_t uid[4] = {PLC_UID_X, PLC_UID_W, PLC_UID_Y, PLC_UID_BIAS};
  void *const at[4] = {x->data, w->data, y->data, bias ? bias->data : NULL};
  const int n = bias ? 4 : 3;
  key.align = plc_dnn_align(n, at);
  key.bias = bias != NULL;
  key.deterministic = plc_deterministic();
  key.exact = factor->dtype == PL_F32 && !plc_tf32() && call->in[0]->dtype == PL_F32; /* copies of halves are TF32's numbers */
  key.wide = result->dtype != factor->dtype;
  key.workspace = PLC_DNN_WORKSPACE;
  return plc_dnn_run(&key, sizeof key, plc_conv_plan, n, uid, at, done);
}

static PlStatus elementwise(const char *name, int code, const PlArray *a, const PlArray *b, PlArray *y) {
  static const PlAttrs none;
  const PlArray *in[2] = {a, b};
  PlArray *out[1] = {y};
  const PlkCall k = {.name = name, .code = code, .nin = b ? 2 : 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  return plc_run(&plc_kernel_elementwise, &k);
}

/* to = y + bias of each channel; all of one dtype */
static PlStatus add_bias(const PlArray *bias, const PlArray *y, PlArray *to) {
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  PlArray b = *bias;
  b.ndim = (uint8_t)(y->ndim - 1);
  for (int d = 0; d < b.ndim; d++) {
    shape[d] = d == 0 ? bias->shape[0] : 1;
    strides[d] = d == 0 ? bias->strides[0] : 1;
  }
  b.shape = shape;
  b.strides = strides;
  b.contiguous = 0;
  if (y->contiguous || y->strides[1] != 1) return elementwise("add", PLK_EW_ADD, y, &b, to);
  /* channels last: rows of them */
  const int64_t sizes[2] = {y->numel / y->shape[1], y->shape[1]}, steps[2] = {y->shape[1], 1};
  PlArray from = *y, rows = *to;
  from.ndim = rows.ndim = 2;
  from.shape = rows.shape = sizes;
  from.strides = rows.strides = steps;
  from.contiguous = rows.contiguous = 1;
  return elementwise("add", PLK_EW_ADD, &from, bias, &rows);
}

/* An f32 copy of a, which is dense in some order, in `at`. */
static PlStatus widened(const PlArray *a, void *at, PlArray *out) {
  *out = *a;
  out->dtype = PL_F32;
  out->data = at;
  return elementwise("cast", PLK_EW_CAST, a, NULL, out);
}

/* sum = conv(a, w) of f16 or bf16, or its gradient for x where a is dy, in f32: as such, or of f32 copies, whose products TF32 has
 * exactly, too. */
static PlStatus run_f32(const PlkCall *call, PlcConvKind kind, const PlArray *a, const PlArray *w, PlArray *sum, bool *done) {
  return by_cudnn(call, kind, kind == PLC_CONV ? a : sum, w, kind == PLC_CONV ? sum : a, NULL, done);
}
static PlStatus product_f32(const PlkCall *call, PlcConvKind kind, const PlArray *a, const PlArray *w, PlArray *sum, bool *done) {
  PlArray wa, ww;
  void *room;
  PL_TRY(run_f32(call, kind, a, w, sum, done));
  if (*done) return PL_OK;
  PL_TRY(plc_scratch((size_t)(a->numel + w->numel + 64) * sizeof(float), &room));
  PlStatus s = widened(a, room, &wa);
  if (s == PL_OK) s = widened(w, (float *)room + (a->numel + 63) / 64 * 64, &ww);
  if (s == PL_OK) s = run_f32(call, kind, &wa, &ww, sum, done);
  plc_scratch_free(room);
  return s;
}

/* The product in f32, to which the bias is added before the one rounding. */
static PlStatus in_f32(const PlkCall *call, PlcConvKind kind, const PlArray *a, const PlArray *w, const PlArray *bias, PlArray *y,
                       bool *done) {
  PlArray sum = *y, b = *bias;
  const int64_t dense = 1;
  sum.dtype = b.dtype = PL_F32;
  b.strides = &dense;
  PL_TRY(plc_scratch((size_t)(sum.numel + b.numel) * sizeof(float), &sum.data));
  b.data = (float *)sum.data + sum.numel;
  PlStatus s = product_f32(call, kind, a, w, &sum, done);
  if (s == PL_OK && *done) s = elementwise("cast", PLK_EW_CAST, bias, NULL, &b);
  if (s == PL_OK && *done) s = add_bias(&b, &sum, &sum);
  if (s == PL_OK && *done) s = elementwise("cast", PLK_EW_CAST, &sum, NULL, y);
  plc_scratch_free(sum.data);
  return s;
}

/* Where products run on tensor cores a bias costs nothing in the same kernel; elsewhere its engines are slow ones. Halves
 * are rounded once in any case: what cuDNN has no plan for then is conv.cu's. */
static PlStatus conv(const PlkCall *call, bool *done) {
  const PlArray *x = call->in[0], *w = call->in[1], *bias = call->nin > 2 ? call->in[2] : NULL;
  PlArray *y = call->out[0];
  *done = false;
  if (!plc_dnn_plans()) return PL_OK;
  if (bias && (x->dtype == PL_F16 || x->dtype == PL_BF16)) {
    if (bias->strides[0] == 1) PL_TRY(by_cudnn(call, PLC_CONV, x, w, y, bias, done));
    return *done ? PL_OK : in_f32(call, PLC_CONV, x, w, bias, y, done);
  }
  PL_TRY(by_cudnn(call, PLC_CONV, x, w, y, NULL, done));
  return *done && bias ? add_bias(bias, y, y) : PL_OK;
}

/* With a bias, of a transposed convolution of halves: it is added before the one rounding. */
static PlStatus conv_bwd_input(const PlkCall *call, bool *done) {
  *done = false;
  if (call->nin > 2 && call->in[2])
    return plc_dnn_plans() ? in_f32(call, PLC_CONV_DATA, call->in[0], call->in[1], call->in[2], call->out[0], done) : PL_OK;
  return by_cudnn(call, PLC_CONV_DATA, call->out[0], call->in[1], call->in[0], NULL, done);
}

static PlStatus conv_bwd_weight(const PlkCall *call, bool *done) {
  return by_cudnn(call, PLC_CONV_FILTER, call->in[1], call->out[0], call->in[0], NULL, done);
}

PLC_LIBRARY(conv, conv)
PLC_LIBRARY(conv_bwd_input, conv_bwd_input)
PLC_LIBRARY(conv_bwd_weight, conv_bwd_weight)
