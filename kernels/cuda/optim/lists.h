/* SPDX-License-Identifier: MIT
 * What lists of tensors have in common where one launch takes many of them: optimizer steps (optim.cu), zeros, factors and norms
 * (foreach.cu). */
#ifndef PL_KERNELS_CUDA_OPTIM_LISTS_H
#define PL_KERNELS_CUDA_OPTIM_LISTS_H

#include "kernels/cuda/any_dtype.h"
#define PLK_STATES_FN PLC_DEV
extern "C" {
#include "kernels/optim.h"
}

enum { PLC_CHUNK = 4096 }; /* elements of one tensor that a block takes at a time */

/* The last of n lists that begins at chunk b or before: first[] ascends from 0. */
PLC_DEV int plc_list_of(const int64_t *first, int n, int64_t b) {
  int lo = 0;
  for (int hi = n; hi - lo > 1;) {
    const int mid = (lo + hi) / 2;
    if (first[mid] <= b) lo = mid;
    else hi = mid;
  }
  return lo;
}

/* Dense, and element by element beside each other: row-major or channels last. */
static inline bool plc_in_one_order(const PlArray *a, const PlArray *b) {
  int64_t step = a->ndim > 1 ? a->shape[1] : 1;
  if (a->contiguous && b->contiguous) return true;
  if ((a->ndim != 4 && a->ndim != 5) || b->ndim != a->ndim) return false;
  for (int k = 0; k < a->ndim; k++) {
    const int d = k == 0 ? 1 : k == a->ndim - 1 ? 0 : a->ndim - k;
    if (b->shape[d] != a->shape[d]) return false;
    if (a->shape[d] == 1) continue;
    if (b->strides[d] != a->strides[d] || a->strides[d] != (d == 1 ? 1 : step)) return false;
    if (d != 1) step *= a->shape[d];
  }
  return true;
}

#endif
