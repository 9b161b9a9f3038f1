/* SPDX-License-Identifier: MIT
 * Matrix products. Outputs contiguous; all tensors of a call share one dtype (not bool).
 * Bits do not depend on the number of threads. f16 and bf16 are multiplied and summed in
 * f32 and rounded once; integers wrap. */
#ifndef PL_KERNELS_GEMM_H
#define PL_KERNELS_GEMM_H

#include "kernels/kernel.h"

/* in a[…,M,K], b[…,K,N] of equal rank ≥ 2 and equal (expanded) batch shape, any strides;
 * out c[…,M,N]. */
PlStatus plk_cpu_matmul(const PlkCall *call);
/* in x[M,K], w[N,K], optional bias[N], contiguous; out y[M,N] = x wᵀ + bias.
 * attrs: 0 activation code (0 none, 1 relu). */
PlStatus plk_cpu_linear(const PlkCall *call);
/* in c broadcastable to […,M,N], a[…,M,K], b[…,K,N] as for matmul, any strides; out beta c + alpha a b.
 * attrs: 0 beta, 1 alpha. beta = 0 does not read c. */
PlStatus plk_cpu_addmm(const PlkCall *call);

/* in x[M,K], y[K,N] of i8, any strides; out z[M,N] of i32. Sums wrap. */
PlStatus plk_cpu_int_mm(const PlkCall *call);

/* How exact products of f32 are, of this thread: "highest" and "high" are f32 throughout; "medium" rounds the factors
 * of large ones to bf16 where the processor multiplies these faster. Sums are f32. */
typedef enum PlkPrecision { PLK_PRECISION_HIGHEST, PLK_PRECISION_HIGH, PLK_PRECISION_MEDIUM } PlkPrecision;
PlkPrecision plk_matmul_precision(void);
void plk_set_matmul_precision(PlkPrecision p);

/* "oneDNN 2.6.3" and "OpenBLAS" as compiled in, or NULL; neither call opens the library.
 */
const char *plk_onednn_version(void);
const char *plk_openblas_version(void);

#endif
