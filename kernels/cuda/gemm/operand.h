/* SPDX-License-Identifier: MIT
 * Stacks of matrices as plc_gemm wants them: one stride of each is 1, batches have one stride. */
#ifndef PL_KERNELS_CUDA_GEMM_OPERAND_H
#define PL_KERNELS_CUDA_GEMM_OPERAND_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PlcOperand {
  const void *data;
  bool trans; /* the matrix is transposed */
  int64_t ld;
  int64_t step[PL_MAX_DIM]; /* of the batch dims, outermost first; 0 repeats */
  void *scratch;            /* of a dense copy; give it back */
} PlcOperand;

/* The matrices of the last two dims of a, in place or, where no stride is 1, as a dense copy (repeated batches once). */
PlStatus plc_operand(const PlArray *a, PlcOperand *o);

/* y[…,M,N] (dense) = alpha op(a) op(b) + beta y over all batches, with g's epilogue and bias; g->m, n, k, dtype, result, ta,
 * tb, alpha, beta, epilogue, bias and c are set, the rest is filled here. size[nbatch]: the batch dims. */
PlStatus plc_gemm_batched(PlcGemm *g, const PlcOperand *a, const PlcOperand *b, int nbatch, const int64_t *size);

/* Integers wrap (gemm_int.cu); c has the dtype of a and b. */
PlStatus plc_gemm_integer(const PlcGemm *g);

/* sums[…,L,2] (dense f32) from stats[n] = log Σ exp of each row, and back (attention.cu). */
PlStatus plc_attention_split(int64_t n, const float *stats, PlArray *sums);
PlStatus plc_attention_join(const PlArray *sums, float *stats);

#ifdef __cplusplus
}
#endif
#endif
