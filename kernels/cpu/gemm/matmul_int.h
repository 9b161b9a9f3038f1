/* SPDX-License-Identifier: MIT
 * Products of integer matrices by rows (isa/matmul_int.c). */
#ifndef PL_KERNELS_CPU_GEMM_MATMUL_INT_H
#define PL_KERNELS_CPU_GEMM_MATMUL_INT_H

#include <stdint.h>

/* y[m * N + n] = sum over k < K of a[m * am + k * as] b[k * bk + n * bn] for m < M, n < N */
typedef struct PlkIntRows {
  const void *a, *b;
  void *y;
  int64_t am, as, bk, bn, M, N, K;
} PlkIntRows;
typedef void (*PlkIntProduct)(const PlkIntRows *rows);
typedef struct PlkMatmulInt {
  PlkIntProduct i8, i16, i32, i64, u8;
  PlkIntProduct i8_i32; /* y of i32 */
} PlkMatmulInt;

#endif
