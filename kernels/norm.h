/* SPDX-License-Identifier: MIT
 * Kernels of normalization. Attribute positions are those of engine/ops/nn/norm.c. */
#ifndef PL_KERNELS_NORM_H
#define PL_KERNELS_NORM_H

#include "kernels/kernel.h"

/* RMS norm's eps where none is given, as PyTorch states it: the spacing at 1 of the type that is computed in, f32 for f16 and
 * bf16. Their own spacing (0.0078 of bf16) would swamp mean squares that such models have. */
static inline double plk_norm_default_eps(int dtype) { return dtype == PL_F64 ? 0x1p-52 : 0x1p-23; }

/* kcode 0: layer norm (mean and variance), 1: RMS norm. Attributes normalized_shape, eps.
 * layer_norm: x, weight?, bias? -> y, mean, rstd; rms_norm: x, weight? -> y, rstd. */
PlStatus plk_cpu_layer_norm(const PlkCall *call);
PlStatus plk_cpu_layer_norm_with_tangent(const PlkCall *call); /* PlOp.with_tangent: v behind the inputs, t behind the outputs */
/* layer: dy, x, mean, rstd, weight? -> dx, dw, db; RMS: dy, x, rstd, weight? -> dx, dw. */
PlStatus plk_cpu_layer_norm_bwd(const PlkCall *call);

/* x[N,C,…], weight[C]?, bias[C]? -> y, mean[N,G], rstd[N,G]; attrs num_groups, eps. */
PlStatus plk_cpu_group_norm(const PlkCall *call);
/* dy, x, mean, rstd, weight? -> dx, dw, db; attrs num_groups, wanted. */
PlStatus plk_cpu_group_norm_bwd(const PlkCall *call);

/* Code of a batch norm whose y is relu(y), or relu(y + r) with r as its sixth input: on GPUs, channels last. */
enum { PLK_NORM_RELU = 1 };
/* x[N,C,…], running_mean?, running_var?, weight?, bias? -> y, mean[C], var[C] (biased; in evaluation the
 * running ones); attrs training, eps. */
PlStatus plk_cpu_batch_norm(const PlkCall *call);
/* dy, x, mean, var, weight? -> dx, dw, db; attrs training, wanted, eps. */
PlStatus plk_cpu_batch_norm_bwd(const PlkCall *call);
/* running = (1 - momentum) running + momentum factor stat, in place; attrs momentum, factor, count. */
PlStatus plk_cpu_running_update(const PlkCall *call);
/* What running_update multiplies the statistic by: a factor that is given, and of so many values what makes their variance unbiased. */
static inline double plk_running_factor(const PlAttrs *a) {
  const double n = (double)pl_attr_i(a, 2);
  return n > 0 ? pl_attr_f(a, 1) * (n / (n - 1)) : pl_attr_f(a, 1);
}

#endif
