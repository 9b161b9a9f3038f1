/* SPDX-License-Identifier: MIT
 * The kernels of attention without cuDNN (attention_rows.cu): what they do with the rows of a slice of scores. */
#ifndef PL_KERNELS_CUDA_ATTENTION_ATTENTION_H
#define PL_KERNELS_CUDA_ATTENTION_ATTENTION_H

#include "kernels/cuda/create/random.h"

/* Where row i of batch b of a mask begins, and how its columns follow; dims outermost first. */
struct PlcMask {
  const void *data; /* NULL: none */
  int dtype, nbatch;
  int64_t size[PL_MAX_DIM], step[PL_MAX_DIM], rows, cols;
};

struct PlcScores {
  int64_t L, S, first; /* first: batch number of the slice's first matrix */
  bool causal;
  PlcMask mask;
  uint64_t cut;          /* words below it drop; 0: no dropout */
  double keep;           /* what the others are multiplied with */
  const uint64_t *state; /* seed, stream, offset: in device memory, so that a captured graph reads them anew */
  int64_t state_step;    /* from one to the next */
  const void *sums;      /* backward: [B, L, 2], with strides */
  int64_t sums_row, sums_col;
};

/* n rows; z, t: scores and dy vᵀ in f32 (f64 of f64); p, g: in dtype, which may be the memory of z and t. */
PlStatus plc_attention_shares(const PlcScores *r, int64_t n, int dtype, const void *z, void *p, void *sums);
PlStatus plc_attention_slopes(const PlcScores *r, int64_t n, int dtype, const void *z, const void *t, void *p, void *g);
/* What dropout keeps, as numbers, for all n scores. */
PlStatus plc_attention_kept(const PlcScores *r, int64_t n, int dtype, void *out);
PlStatus plc_attention_state(void *state, const PlkRng *rng); /* seed, stream, offset */

#endif
