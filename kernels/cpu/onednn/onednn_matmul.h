/* SPDX-License-Identifier: MIT
 * Products of bf16 matrices by oneDNN, which uses AVX512-BF16 or AMX where the processor has them. One call runs on
 * the calling thread alone; gemm.c cuts the work. Without the library, or where it has no fast form of a product,
 * plk_onednn_bf16_get gives no plan. */
#ifndef PL_KERNELS_CPU_ONEDNN_ONEDNN_MATMUL_H
#define PL_KERNELS_CPU_ONEDNN_ONEDNN_MATMUL_H

#include "kernels/kernel.h"

enum { PLK_BIAS_NONE, PLK_BIAS_BF16, PLK_BIAS_F32 };

/* C[m,n] = A[m,k] B[k,n] + bias[n]. A, B bf16, row-major with rows ld apart, or their transposes; C bf16 or f32. batch > 1: so
 * many products, whose operands are sa, sb and sc elements apart. Compared as bytes: zero it before filling it in. */
typedef struct PlkBf16Key {
  int64_t m, n, k, lda, ldb, ldc;
  int64_t ta, tb, c_f32, bias;
  int64_t batch, sa, sb, sc;
} PlkBf16Key;

typedef struct PlkBf16Plan PlkBf16Plan;

/* Whether products of bf16 have a fast form here at all. Opens the library at its first call. */
bool plk_onednn_bf16(void);
/* Borrows a compiled plan from the cache; *out is NULL where there is no fast form. Several threads may run a plan at
 * once. Give it back with plk_onednn_bf16_put. */
PlStatus plk_onednn_bf16_get(const PlkBf16Key *key, PlkBf16Plan **out);
void plk_onednn_bf16_put(PlkBf16Plan *plan);
PlStatus plk_onednn_bf16_run(const PlkBf16Plan *plan, const void *a, const void *b, const void *bias, void *c);

#endif
