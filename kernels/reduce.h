/* SPDX-License-Identifier: MIT
 * Kernels of reductions and scans. Attribute positions are those of engine/ops/reduce/reduce.c and scan.c. */
#ifndef PL_KERNELS_REDUCE_H
#define PL_KERNELS_REDUCE_H

#include "kernels/kernel.h"

/* Members of the plk_cpu_reduce family (PlOp.kcode). */
typedef enum PlkReduce {
  PLK_R_SUM,
  PLK_R_MEAN,
  PLK_R_PROD,
  PLK_R_AMAX,
  PLK_R_AMIN,
  PLK_R_ANY,
  PLK_R_ALL,
  PLK_R_COUNT,
  PLK_R_NANSUM,
  PLK_R_LOGSUMEXP
} PlkReduce;

/* Attributes 0 = dims (none or empty: all), further ones are not read. */
PlStatus plk_cpu_reduce(const PlkCall *call);
PlStatus plk_cpu_float_sums(const PlkCall *call); /* sum and mean of f32 or f64, y likewise, with the bits of plk_cpu_reduce */
PlStatus plk_cpu_sum_to(const PlkCall *call);     /* the output's shape says what is reduced */
PlStatus plk_cpu_norm(const PlkCall *call);       /* attributes p, dims */
PlStatus plk_cpu_var(const PlkCall *call);        /* attributes dims, correction; kcode 1: square root */
/* The same with tangents (PlOp.with_tangent): x, v -> y, t; extreme_with_tangent: of all elements, where NaN is at the NaNs. */
PlStatus plk_cpu_reduce_with_tangent(const PlkCall *call);
PlStatus plk_cpu_extreme_with_tangent(const PlkCall *call);
PlStatus plk_cpu_norm_with_tangent(const PlkCall *call);
PlStatus plk_cpu_var_with_tangent(const PlkCall *call);
PlStatus plk_cpu_prod_bwd(const PlkCall *call);
PlStatus plk_cpu_prod_bwd2(const PlkCall *call);
/* Tangents, of x's direction v: x, y, v -> t like y. Attribute 0: the dim, none for all. */
PlStatus plk_cpu_prod_tangent(const PlkCall *call);
PlStatus plk_cpu_extreme_tangent(const PlkCall *call); /* attribute 1: NaN finds NaN */

/* Scans: attribute 0 = dim. */
typedef enum PlkScan { PLK_S_CUMSUM, PLK_S_CUMSUM_REV, PLK_S_CUMPROD, PLK_S_CUMMAX, PLK_S_CUMMIN, PLK_S_LOGCUMSUMEXP } PlkScan;
PlStatus plk_cpu_scan(const PlkCall *call);
PlStatus plk_cpu_cumextreme(const PlkCall *call); /* outputs values, indices */
PlStatus plk_cpu_cumprod_bwd(const PlkCall *call);
PlStatus plk_cpu_cumprod_bwd2(const PlkCall *call);
PlStatus plk_cpu_logcumsumexp_bwd(const PlkCall *call);

#endif
