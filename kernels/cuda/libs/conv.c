/* SPDX-License-Identifier: MIT
 * Convolutions that cuDNN takes: floats of 1 to 3 spatial dims, any strides. What it refuses goes on to conv.cu. */
#include <string.h>

#include "kernels/cuda/libs/cudnn.h"
#include "kernels/elementwise.h"

static PlStatus by_cudnn(const PlkCall *call, PlcConvKind kind, const PlArray *x, const PlArray *w, const PlArray *y,
                         const PlArray *bias, bool *done) {
  const int spatial = x->ndim - 2;
  *done = false;
  if (!pl_is_float((PlDtype)x->dtype) || spatial < 1 || spatial > 3) return PL_OK;
  if (x->numel == 0 || w->numel == 0 || y->numel == 0) return PL_OK;
  PlcConvKey key;
  plc_conv_key(&key, kind, spatial, x, w, y, pl_attr_list(call->attrs, 0), pl_attr_list(call->attrs, 1),
               pl_attr_list(call->attrs, 2));
  const int64_t uid[4] = {PLC_UID_X, PLC_UID_W, PLC_UID_Y, PLC_UID_BIAS};
  void *const at[4] = {x->data, w->data, y->data, bias ? bias->data : NULL};
  const int n = bias ? 4 : 3;
  key.align = plc_dnn_align(n, at);
  key.bias = bias != NULL;
  key.deterministic = plc_deterministic();
  key.exact = x->dtype == PL_F32 && !plc_tf32();
  key.workspace = PLC_DNN_WORKSPACE;
  return plc_dnn_run(&key, sizeof key, plc_conv_plan, n, uid, at, done);
}

/* y += bias of each channel */
static PlStatus add_bias(const PlArray *bias, PlArray *y) {
  static const PlAttrs none;
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
  const PlArray *in[2] = {y, &b};
  PlArray *out[1] = {y};
  const PlkCall k = {.name = "add", .code = PLK_EW_ADD, .nin = 2, .nout = 1, .in = in, .out = out, .attrs = &none};
  return plc_run("elementwise", &k);
}

/* Where products run on tensor cores a bias costs nothing in the same kernel; elsewhere its engines are slow ones. */
static PlStatus conv(const PlkCall *call, bool *done) {
  const PlArray *x = call->in[0], *w = call->in[1], *bias = call->nin > 2 ? call->in[2] : NULL;
  const bool narrow = x->dtype == PL_F16 || x->dtype == PL_BF16;
  *done = false;
  if (bias && narrow && bias->strides[0] == 1) PL_TRY(by_cudnn(call, PLC_CONV, x, w, call->out[0], bias, done));
  if (*done) return PL_OK;
  PL_TRY(by_cudnn(call, PLC_CONV, x, w, call->out[0], NULL, done));
  return *done && bias ? add_bias(bias, call->out[0]) : PL_OK;
}

static PlStatus conv_bwd_input(const PlkCall *call, bool *done) {
  return by_cudnn(call, PLC_CONV_DATA, call->out[0], call->in[1], call->in[0], NULL, done);
}

static PlStatus conv_bwd_weight(const PlkCall *call, bool *done) {
  return by_cudnn(call, PLC_CONV_FILTER, call->in[1], call->out[0], call->in[0], NULL, done);
}

PLC_LIBRARY(conv, conv)
PLC_LIBRARY(conv_bwd_input, conv_bwd_input)
PLC_LIBRARY(conv_bwd_weight, conv_bwd_weight)
