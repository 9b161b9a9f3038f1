/* SPDX-License-Identifier: MIT
 * Products of integer matrices by rows (isa/matmul_int.c). */
#ifndef PL_KERNELS_CPU_GEMM_MATMUL_INT_H
#define PL_KERNELS_CPU_GEMM_MATMUL_INT_H

#include <stdint.h>

/* y[j] = sum over k < K of a[k * as] b[k * bk + j * bn] for j < N */
typedef void (*PlkIntRow)(const void *a, int64_t as, const void *b, int64_t bk, int64_t bn, void *y, int64_t N, int64_t K);
typedef struct PlkMatmulInt {
  PlkIntRow i8, i16, i32, i64, u8;
  PlkIntRow i8_i32; /* y of i32 */
} PlkMatmulInt;

#endif
