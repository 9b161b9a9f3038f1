/* SPDX-License-Identifier: MIT
 * Products of a matrix and one or a few vectors, which read the matrix once and are bound by that (matvec.c, isa/matvec.c). */
#ifndef PL_KERNELS_CPU_GEMM_MATVEC_H
#define PL_KERNELS_CPU_GEMM_MATVEC_H

#include "kernels/cpu/gemm/gemm.h"

enum {
  PLK_MATVEC_COLS = 512, /* columns at most of weigh */
  PLK_MATVEC_FEW = 32,   /* vectors at most */
  PLK_MATVEC_ROOM = 4096 /* results at most of a call of the others */
};

/* By dtype of the matrix a; vectors are f64 for f64, else f32. */
typedef struct PlkMatvecLoops {
  /* y[r] = sum over i < n of a[r * lda + i] x[i] */
  void (*dots)(const void *a, int64_t lda, const void *x, int64_t rows, int64_t n, double *y);
  /* y[c] = sum over r < rows of x[r] a[r * lda + c] */
  void (*weigh)(const void *a, int64_t lda, const void *x, int64_t rows, int64_t cols, double *y);
  /* The same for `few` vectors, ldx apart, results ldy apart. */
  void (*dots_few)(const void *a, int64_t lda, const void *x, int64_t ldx, int few, int64_t rows, int64_t n, double *y, int64_t ldy);
  void (*weigh_few)(const void *a, int64_t lda, const void *x, int64_t ldx, int few, int64_t rows, int64_t cols, double *y, int64_t ldy);
} PlkMatvecLoops;
typedef struct PlkMatvecTable {
  PlkMatvecLoops of[PL_BF16 + 1];
} PlkMatvecTable;

/* Whether g is such a product; by shape alone. Here halves need not be widened: g's dtype may be PL_F16 or PL_BF16, of C and bias
 * too (c_f32 and bias_f32 are not for it). */
bool plk_matvec_fits(const PlkGemm *g);
PlStatus plk_matvec_run(const PlkGemm *g);

#endif
