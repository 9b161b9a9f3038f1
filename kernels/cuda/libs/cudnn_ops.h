/* SPDX-License-Identifier: MIT
 * The graphs that perilune asks of cuDNN, each described by a key: convolutions and attention. The functions here know
 * shapes only, no memory and no stream, so they also run without a GPU (spec/cuda/cudnn.c). */
#ifndef PL_KERNELS_CUDA_LIBS_CUDNN_OPS_H
#define PL_KERNELS_CUDA_LIBS_CUDNN_OPS_H

#include "kernels/cuda/libs/cudnn_graph.h"

/* Keys are compared byte by byte: zero them first, fields in an order without holes. */
typedef struct PlcConvKey {
  uint32_t what; /* 'C': keys of all kinds share one cache */
  int32_t kind;  /* a PlcConvKind */
  int32_t dtype, spatial, align;
  int32_t bias, relu;                 /* PLC_CONV only: y = relu(conv + bias[O]) */
  int32_t deterministic, exact, wide; /* wide: the result is f32, whatever dtype */
  int64_t x[PLC_G_DIM], xs[PLC_G_DIM], w[PLC_G_DIM], ws[PLC_G_DIM], y[PLC_G_DIM], ys[PLC_G_DIM];
  int64_t stride[3], padding[3], dilation[3];
  int64_t workspace; /* bytes at most */
} PlcConvKey;

enum { PLC_UID_X = 1, PLC_UID_W, PLC_UID_Y, PLC_UID_BIAS };

/* Shapes and strides of the key from arrays x[N,C,…], w[O,C/g,…], y[N,O,…]; 1 spatial dim becomes 2. */
void plc_conv_key(PlcConvKey *k, PlcConvKind kind, int spatial, const PlArray *x, const PlArray *w, const PlArray *y, const int64_t *stride,
                  const int64_t *padding, const int64_t *dilation);
PlStatus plc_conv_plan(const void *key, PlcDnnTarget target, PlcPlan **out); /* a PlcPlanMake */

/* Scaled dot-product attention of f16 or bf16: q[B,H,L,E], k[B,H,S,E], v[B,H,S,D], o[B,H,L,D], any strides whose last is
 * 1; stats[B,H,L,1] are f32 logarithms of the rows' sums of exponentials. */
typedef struct PlcSdpaKey {
  uint32_t what; /* 'A' */
  int32_t backward, dtype, causal, align, deterministic;
  int32_t rows_align, none; /* of what has one number a row; there is no hole behind it */
  int64_t B, H, L, S, E, D;
  int64_t q[4], k[4], v[4], o[4];     /* strides */
  int64_t dy[4], dq[4], dk[4], dv[4]; /* backward: too */
  int64_t workspace;
} PlcSdpaKey;

/* Memory that belongs to the caller: SUM_DO [B,H,L,1] f32 and, unless deterministic, ACC [B,H,L,E] f32 are scratch. */
enum {
  PLC_UID_Q = 1,
  PLC_UID_K,
  PLC_UID_V,
  PLC_UID_O,
  PLC_UID_STATS,
  PLC_UID_DY,
  PLC_UID_DQ,
  PLC_UID_DK,
  PLC_UID_DV,
  PLC_UID_SUM,
  PLC_UID_ACC,
  PLC_UID_SCALE,
  PLC_UID_MASKED,
  PLC_UID_ONE
};
PlStatus plc_sdpa_plan(const void *key, PlcDnnTarget target, PlcPlan **out);

/* How much of the batch one plan takes, the step-th try: *B batches with all heads, or *H heads of one batch. Step 0 is all
 * of it. On Hopper the deterministic backward plan keeps 2 L S bytes a head, so step 1 is what fits into k->workspace then;
 * each further step is half of that. False: there is nothing smaller to try. */
bool plc_sdpa_slice(const PlcSdpaKey *k, int step, int64_t *B, int64_t *H);

#endif
