/* SPDX-License-Identifier: MIT
 * Products of a matrix and a vector, which read the matrix once and are bound by that (matvec.c, isa/matvec.c). */
#ifndef PL_KERNELS_CPU_GEMM_MATVEC_H
#define PL_KERNELS_CPU_GEMM_MATVEC_H

#include "kernels/cpu/gemm/gemm.h"

enum { PLK_MATVEC_COLS = 256 };

typedef struct PlkMatvecLoops {
  /* y[r] = sum over i < n of a[r * lda + i] x[i] */
  void (*dots_f32)(const float *a, int64_t lda, const float *x, int64_t rows, int64_t n, double *y);
  /* y[c] = sum over r < rows of x[r] a[r * lda + c]; at most PLK_MATVEC_COLS columns */
  void (*weigh_f32)(const float *a, int64_t lda, const float *x, int64_t rows, int64_t cols, double *y);
  void (*dots_f64)(const double *a, int64_t lda, const double *x, int64_t rows, int64_t n, double *y);
  void (*weigh_f64)(const double *a, int64_t lda, const double *x, int64_t rows, int64_t cols, double *y);
} PlkMatvecLoops;

/* Whether g is such a product, of f32 or f64; by shape alone. */
bool plk_matvec_fits(const PlkGemm *g);
PlStatus plk_matvec_run(const PlkGemm *g);

#endif
