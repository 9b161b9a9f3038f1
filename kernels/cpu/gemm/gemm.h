/* SPDX-License-Identifier: MIT
 * Matrix products inside the CPU kernels: row-major, C = alpha * op(A) op(B) + beta * C,
 * where op(A) is M×K and op(B) K×N. beta == 0 never reads C. The cut into tiles depends
 * on the shape alone and each tile runs on one thread, so the bits do not depend on the
 * number of threads. */
#ifndef PL_KERNELS_CPU_GEMM_GEMM_H
#define PL_KERNELS_CPU_GEMM_GEMM_H

#include "kernels/kernel.h"

PlStatus plk_gemm_f64(bool ta, bool tb, int64_t M, int64_t N, int64_t K, double alpha, const double *A, int64_t lda, const double *B,
                      int64_t ldb, double beta, double *C, int64_t ldc);

/* The general form: a batch of products and what follows each one. */
typedef struct PlkGemm {
  PlDtype dtype; /* PL_F32 or PL_F64, of all arrays; or PL_BF16, PL_F16: then alpha = 1, beta = 0, and */
  bool widen;    /* … it is computed in f32, K > 0; else by oneDNN, bf16 alone, where plk_gemm_bf16 allows it */
  bool c_f32;    /* … C is f32 in place of halves */
  bool bias_f32; /* … and so is bias */
  bool ta, tb;
  int64_t M, N, K, lda, ldb, ldc;
  double alpha, beta;
  const void *A, *B;
  void *C;
  const void *bias; /* NULL, or N values added to every row */
  bool relu;        /* then max(·, 0) */
  /* batch dims, outermost first: sizes, element strides of A and B; C's matrices are
   * cstep apart */
  int nbatch;
  int64_t batch[PL_MAX_DIM], astep[PL_MAX_DIM], bstep[PL_MAX_DIM], cstep;
} PlkGemm;

PlStatus plk_gemm_run(const PlkGemm *g);
/* Whether `batch` products of bf16 of this shape, `row` of them at equal steps, have a fast form; without it they are to be
 * converted to f32. By shape alone (and the machine). */
bool plk_gemm_bf16(int64_t M, int64_t N, int64_t K, int64_t batch, int64_t row);
PlStatus plk_gemm_widened(const PlkGemm *g); /* plk_gemm_alone of what is to be widened (gemm_halves.c) */
/* One product (nbatch = 0) on the calling thread: for kernels that run in parallel
 * themselves. */
PlStatus plk_gemm_alone(const PlkGemm *g);

/* C = relu(C + bias) in place, as far as g asks for it. */
void plk_gemm_finish(const PlkGemm *g);

/* Our own blocked kernel (gemm_packed.c), one thread: builds without a library, and small
 * shapes. */
PlStatus plk_gemm_plain(const PlkGemm *g);

/* OpenBLAS on one thread (openblas.c); "OpenBLAS" or NULL without it; opened on first
 * use. */
const char *plk_openblas_version(void);
bool plk_openblas_ready(void);
PlStatus plk_openblas_gemm(const PlkGemm *g);

#endif
