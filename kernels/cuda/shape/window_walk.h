/* SPDX-License-Identifier: MIT
 * Windows that are moved whole: two arrays walked in the same order, dims given outermost first. For join.cu and shape.cu. */
#ifndef PL_KERNELS_CUDA_SHAPE_WINDOW_WALK_H
#define PL_KERNELS_CUDA_SHAPE_WINDOW_WALK_H

#include "kernels/cuda/any_dtype.h"

/* Strides in elements; a stride of 0 in src repeats, one of 0 in dst adds up. */
struct plc_walk {
  int n;
  int64_t size[2 * PL_MAX_DIM], dst[2 * PL_MAX_DIM], src[2 * PL_MAX_DIM];
};
static inline void plc_walk_dim(plc_walk *w, int64_t size, int64_t dst, int64_t src) {
  w->size[w->n] = size, w->dst[w->n] = dst, w->src[w->n] = src;
  w->n++;
}
static inline int64_t plc_walk_numel(const plc_walk *w) {
  int64_t n = 1;
  for (int d = 0; d < w->n; d++) n *= w->size[d];
  return n;
}
static inline void *plc_at(void *p, int64_t i, int dtype) { return (char *)p + i * (int64_t)pl_dtype_size((PlDtype)dtype); }
static inline const void *plc_at(const void *p, int64_t i, int dtype) {
  return (const char *)p + i * (int64_t)pl_dtype_size((PlDtype)dtype);
}

/* dst = src over the walk, of one dtype; 16 bytes at once where sizes, strides and addresses allow it. */
PlStatus plc_walk_copy(const plc_walk *w, int dtype, void *dst, const void *src);
/* dst = Σ src over the dims whose dst stride is 0; every element of dst is met. Floats and integers. */
PlStatus plc_walk_sum(const plc_walk *w, int dtype, void *dst, const void *src);
PlStatus plc_zero(const PlArray *a); /* contiguous */

#endif
