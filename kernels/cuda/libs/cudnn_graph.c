/* SPDX-License-Identifier: MIT
 * Describing graphs to cuDNN: see cudnn_graph.h. Names of attributes and what they must hold: cuDNN's backend API
 * reference. Plans are made and kept in cudnn_plan.c. */
#include "kernels/cuda/libs/cudnn_graph.h"

#include <string.h>

void plc_graph_begin(PlcGraph *g, PlcDnnTarget target) {
  *g = (PlcGraph){.target = target, .next = 1000};
  g->status = plc_dnn_api(&g->api);
}

void plc_graph_end(PlcGraph *g) {
  while (g->ndesc > 0) (void)g->api->cudnnBackendDestroyDescriptor(g->desc[--g->ndesc]);
}

/* ---- one descriptor ------------------------------------------------------------------------------------------- */

static void fail(PlcGraph *g, cudnnStatus_t code, const char *doing) {
  if (g->status == PL_OK) g->status = plc_dnn_fail(code, doing);
}

static PlcDesc make(PlcGraph *g, cudnnBackendDescriptorType_t type, const char *what) {
  if (g->status != PL_OK) return NULL;
  if (g->ndesc == PLC_G_DESC) {
    g->status = pl_fail(PL_ERR_STATE, "cudnn: a graph of more than %d descriptors", PLC_G_DESC);
    return NULL;
  }
  PlcDesc d = NULL;
  cudnnStatus_t s = g->api->cudnnBackendCreateDescriptor(type, &d);
  if (s != CUDNN_STATUS_SUCCESS) {
    fail(g, s, what);
    return NULL;
  }
  return g->desc[g->ndesc++] = d;
}

static void set(PlcGraph *g, PlcDesc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n, const void *v,
                const char *what) {
  if (g->status != PL_OK) return;
  cudnnStatus_t s = g->api->cudnnBackendSetAttribute(d, name, type, n, v);
  if (s != CUDNN_STATUS_SUCCESS) fail(g, s, what);
}

static void set_desc(PlcGraph *g, PlcDesc d, cudnnBackendAttributeName_t name, PlcDesc v, const char *what) {
  if (v) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v, what);
}

static void set_int(PlcGraph *g, PlcDesc d, cudnnBackendAttributeName_t name, int64_t v, const char *what) {
  set(g, d, name, CUDNN_TYPE_INT64, 1, &v, what);
}

/* A number that the library reads in the type it computes in: whatever type is named here, eight bytes for doubles. */
static void set_factor(PlcGraph *g, PlcDesc d, cudnnBackendAttributeName_t name, cudnnDataType_t math, double v, const char *what) {
  const float narrow = (float)v;
  if (math == CUDNN_DATA_DOUBLE) set(g, d, name, CUDNN_TYPE_DOUBLE, 1, &v, what);
  else set(g, d, name, CUDNN_TYPE_FLOAT, 1, &narrow, what);
}

static PlcDesc finish(PlcGraph *g, PlcDesc d, const char *what) {
  if (g->status != PL_OK) return NULL;
  cudnnStatus_t s = g->api->cudnnBackendFinalize(d);
  if (s != CUDNN_STATUS_SUCCESS) fail(g, s, what);
  return g->status == PL_OK ? d : NULL;
}

/* The descriptor of an operation that is complete. */
static void add(PlcGraph *g, PlcDesc d, const char *what) {
  d = finish(g, d, what);
  if (!d) return;
  if (g->nops == PLC_G_OPS) g->status = pl_fail(PL_ERR_STATE, "cudnn: a graph of more than %d operations", PLC_G_OPS);
  else g->ops[g->nops++] = d;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

cudnnDataType_t plc_dnn_dtype(PlDtype d) {
  switch (d) {
  case PL_F64: return CUDNN_DATA_DOUBLE;
  case PL_F16: return CUDNN_DATA_HALF;
  case PL_BF16: return CUDNN_DATA_BFLOAT16;
  case PL_I32: return CUDNN_DATA_INT32;
  case PL_I64: return CUDNN_DATA_INT64;
  case PL_BOOL: return CUDNN_DATA_BOOLEAN;
  default: return CUDNN_DATA_FLOAT;
  }
}

/* A dim of size 1 takes the stride that the dims inside of it span, dims in the order of their strides: then a tensor of
 * one channel looks dense in either order of dims, and stride 0 of an expanded 1 is no broadcast. */
void plc_shape_normalize(PlcShape *s) {
  for (int d = s->ndim - 1; d >= 0; d--) {
    if (s->dim[d] != 1) continue;
    int64_t span = 1;
    for (int k = 0; k < s->ndim; k++)
      if (s->dim[k] > 1 && (k > d || (d == 1 && k > 1)) && s->stride[k] * s->dim[k] > span) span = s->stride[k] * s->dim[k];
    s->stride[d] = span;
  }
}

static PlcDesc tensor(PlcGraph *g, int64_t uid, cudnnDataType_t type, const PlcShape *s, int64_t align, bool inner, bool number) {
  static const char what[] = "describing a tensor";
  PlcDesc d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
  int64_t dense[PLC_G_DIM], step = 1;
  const int64_t *stride = s->stride;
  for (int k = s->ndim - 1; k >= 0; k--) {
    dense[k] = step;
    step *= s->dim[k];
  }
  if (s->stride[s->ndim - 1] == 0 && s->stride[0] == 0) stride = dense;
  set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
  set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, s->ndim, s->dim, what);
  set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, s->ndim, stride, what);
  set_int(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid, what);
  set_int(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, align, what);
  set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner, what);
  if (number) set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &number, what);
  return finish(g, d, what);
}

PlcDesc plc_graph_tensor(PlcGraph *g, int64_t uid, cudnnDataType_t d, const PlcShape *s, int64_t align) {
  return tensor(g, uid, d, s, align, false, false);
}

PlcDesc plc_graph_inner(PlcGraph *g, cudnnDataType_t d, const PlcShape *s) { return tensor(g, g->next++, d, s, 16, true, false); }

PlcDesc plc_graph_number(PlcGraph *g, int64_t uid, int ndim) {
  PlcShape one = {.ndim = ndim};
  for (int k = 0; k < ndim; k++) one.dim[k] = one.stride[k] = 1;
  return tensor(g, uid, CUDNN_DATA_FLOAT, &one, 16, false, true);
}

/* ---- operations --------------------------------------------------------------------------------------------------- */

void plc_graph_pointwise(PlcGraph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, PlcDesc x, PlcDesc b, PlcDesc t, PlcDesc y,
                         int64_t axis) {
  static const char what[] = "describing a pointwise operation";
  PlcDesc p = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
  set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
  set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) set_int(g, p, CUDNN_ATTR_POINTWISE_AXIS, axis, what);
  finish(g, p, what);
  PlcDesc d = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
  add(g, d, what);
}

void plc_graph_reduce(PlcGraph *g, cudnnReduceTensorOp_t op, PlcDesc x, PlcDesc y) {
  static const char what[] = "describing a reduction";
  const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
  PlcDesc r = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
  set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op, what);
  set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32, what);
  finish(g, r, what);
  PlcDesc d = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
  add(g, d, what);
}

void plc_graph_matmul(PlcGraph *g, PlcDesc a, PlcDesc b, PlcDesc c) {
  static const char what[] = "describing a matrix product";
  const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
  PlcDesc m = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
  set(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32, what);
  finish(g, m, what);
  PlcDesc d = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, m, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
  add(g, d, what);
}

void plc_graph_reshape(PlcGraph *g, PlcDesc x, PlcDesc y) {
  static const char what[] = "describing a transposition";
  PlcDesc d = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
  set_desc(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
  add(g, d, what);
}

/* The three directions differ in the names of what they read and write only. */
static const struct {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, conv, w, x, y;
} directions[] = {
    [PLC_CONV] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [PLC_CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    [PLC_CONV_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

void plc_graph_conv(PlcGraph *g, PlcConvKind kind, const PlcConv *c, cudnnDataType_t math, PlcDesc x, PlcDesc w, PlcDesc y) {
  static const char what[] = "describing a convolution";
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  PlcDesc p = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode, what);
  set_int(g, p, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, c->spatial, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, c->spatial, c->stride, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, c->spatial, c->padding, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, c->spatial, c->padding, what);
  set(g, p, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, c->spatial, c->dilation, what);
  finish(g, p, what);
  PlcDesc d = make(g, directions[kind].type, what);
  set_desc(g, d, directions[kind].conv, p, what);
  set_desc(g, d, directions[kind].x, x, what);
  set_desc(g, d, directions[kind].w, w, what);
  set_desc(g, d, directions[kind].y, y, what);
  set_factor(g, d, directions[kind].alpha, math, 1, what);
  set_factor(g, d, directions[kind].beta, math, 0, what);
  add(g, d, what);
}
