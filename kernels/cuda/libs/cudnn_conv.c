/* SPDX-License-Identifier: MIT
 * Convolution graphs: see cudnn_ops.h.  y[n, o, t] = relu(bias[o] + Σ_{c, k} x[n, c, t stride - padding + k dilation] w[o, c, k])
 * and its two gradients. cuDNN sees the groups from C and C / g. */
#include <string.h>

#include "kernels/cuda/libs/cudnn_ops.h"

/* Sizes and strides of an array; one spatial dim becomes two, the first of size 1. */
static void sizes_of(const PlArray *a, int spatial, int64_t *dim, int64_t *stride) {
  PlcShape s = {.ndim = 2};
  for (int d = 0; d < 2; d++) {
    s.dim[d] = a->shape[d];
    s.stride[d] = a->strides[d];
  }
  if (spatial == 1) {
    s.dim[2] = 1;
    s.stride[2] = 1;
    s.ndim = 3;
  }
  for (int d = 0; d < spatial; d++, s.ndim++) {
    s.dim[s.ndim] = a->shape[2 + d];
    s.stride[s.ndim] = a->strides[2 + d];
  }
  plc_shape_normalize(&s);
  memcpy(dim, s.dim, sizeof s.dim);
  memcpy(stride, s.stride, sizeof s.stride);
}

/* Channels last, where dims of size 1 are nobody's: the strides that cuDNN's kernels know it by (of 1 x 1 weights, too). */
static bool channels_last(int ndim, const int64_t *dim, const int64_t *stride, int64_t *out) {
  int64_t step = dim[1];
  out[1] = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (d == 1) continue;
    out[d] = step;
    step *= dim[d];
  }
  for (int d = 0; d < ndim; d++)
    if (dim[d] != 1 && stride[d] != out[d]) return false;
  return true;
}
static void same_layout(PlcConvKey *k, int ndim) {
  int64_t xs[PLC_G_DIM] = {0}, ws[PLC_G_DIM] = {0}, ys[PLC_G_DIM] = {0};
  if (!channels_last(ndim, k->x, k->xs, xs) || !channels_last(ndim, k->w, k->ws, ws) || !channels_last(ndim, k->y, k->ys, ys)) return;
  if (k->xs[1] != 1 && k->ys[1] != 1) return; /* row-major as well */
  memcpy(k->xs, xs, sizeof xs);
  memcpy(k->ws, ws, sizeof ws);
  memcpy(k->ys, ys, sizeof ys);
}

void plc_conv_key(PlcConvKey *k, PlcConvKind kind, int spatial, const PlArray *x, const PlArray *w, const PlArray *y, const int64_t *stride,
                  const int64_t *padding, const int64_t *dilation) {
  memset(k, 0, sizeof *k);
  k->what = 'C';
  k->kind = (int32_t)kind;
  k->dtype = kind == PLC_CONV ? x->dtype : y->dtype; /* the factors' */
  k->spatial = spatial == 1 ? 2 : spatial;
  sizes_of(x, spatial, k->x, k->xs);
  sizes_of(w, spatial, k->w, k->ws);
  sizes_of(y, spatial, k->y, k->ys);
  same_layout(k, k->spatial + 2);
  int lead = k->spatial - spatial;
  for (int d = 0; d < k->spatial; d++) {
    k->stride[d] = d < lead ? 1 : stride[d - lead];
    k->padding[d] = d < lead ? 0 : padding[d - lead];
    k->dilation[d] = d < lead ? 1 : dilation[d - lead];
  }
}

static PlcShape shape_of(const int64_t *dim, const int64_t *stride, int ndim) {
  PlcShape s = {.ndim = ndim};
  for (int d = 0; d < ndim; d++) {
    s.dim[d] = dim[d];
    s.stride[d] = stride[d];
  }
  return s;
}

PlStatus plc_conv_plan(const void *key, PlcDnnTarget target, PlcPlan **out) {
  const PlcConvKey *k = key;
  const int ndim = k->spatial + 2;
  const cudnnDataType_t type = plc_dnn_dtype((PlDtype)k->dtype);
  const cudnnDataType_t math = k->dtype == PL_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  PlcShape sx = shape_of(k->x, k->xs, ndim), sw = shape_of(k->w, k->ws, ndim), sy = shape_of(k->y, k->ys, ndim);
  PlcConv c = {.spatial = k->spatial};
  memcpy(c.stride, k->stride, sizeof c.stride);
  memcpy(c.padding, k->padding, sizeof c.padding);
  memcpy(c.dilation, k->dilation, sizeof c.dilation);
  PlcGraph g;
  plc_graph_begin(&g, target);
  const cudnnDataType_t result = k->wide ? math : type;
  PlcDesc x = plc_graph_tensor(&g, PLC_UID_X, k->kind == PLC_CONV_DATA ? result : type, &sx, k->align);
  PlcDesc w = plc_graph_tensor(&g, PLC_UID_W, k->kind == PLC_CONV_FILTER ? result : type, &sw, k->align);
  PlcDesc y = plc_graph_tensor(&g, PLC_UID_Y, k->kind == PLC_CONV ? result : type, &sy, k->align);
  PlcDesc sum = k->bias ? plc_graph_inner(&g, math, &sy) : y;
  plc_graph_conv(&g, (PlcConvKind)k->kind, &c, math, x, w, sum);
  if (k->bias) {
    PlcShape sb = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
      sb.dim[d] = d == 1 ? k->y[1] : 1;
      sb.stride[d] = d == 0 ? k->y[1] : 1;
    }
    PlcDesc b = plc_graph_tensor(&g, PLC_UID_BIAS, type, &sb, k->align);
    PlcDesc biased = k->relu ? plc_graph_inner(&g, math, &sy) : y;
    plc_graph_pointwise(&g, CUDNN_POINTWISE_ADD, math, sum, b, NULL, biased, 0);
    if (k->relu) plc_graph_pointwise(&g, CUDNN_POINTWISE_RELU_FWD, math, biased, NULL, NULL, y, 0);
  }
  const PlcRules rules = {.deterministic = k->deterministic != 0, .exact = k->exact != 0, .once = true, .workspace = (size_t)k->workspace};
  PlStatus s = plc_graph_plan(&g, &rules, out);
  plc_graph_end(&g);
  return s;
}
