/* SPDX-License-Identifier: MIT
 * Sorting of keys with their positions, for sort.cu and search.cu: stable radix passes of 8 bits over rows of n pairs. */
#ifndef PL_KERNELS_CUDA_SORT_SORT_H
#define PL_KERNELS_CUDA_SORT_SORT_H

#include "kernels/cuda/any_dtype.h"

/* Rows of pairs and as many to sort through; n < 2^31. */
template <typename K> struct plc_pairs {
  K *key, *key2;
  uint32_t *at, *at2;
};
/* Sorts each row by the lowest `bits` of its keys; p's members may change places, so read p->key and p->at. */
PlStatus plc_sort_pairs(plc_pairs<uint32_t> *p, int64_t rows, int64_t n, int bits);
PlStatus plc_sort_pairs(plc_pairs<uint64_t> *p, int64_t rows, int64_t n, int bits);
/* y[d] = Σ x[at] over the sorted pairs with key d, for d < m; 0 where there are none. Floats, summed in double. */
PlStatus plc_sum_sorted(const plc_pairs<uint32_t> *p, int64_t n, int xtype, const void *x, int64_t m, int ytype, void *y);
/* Scratch for `count` pairs; *mem is to be freed. */
template <typename K> static inline PlStatus plc_pairs_room(plc_pairs<K> *p, int64_t count, void **mem) {
  const size_t n = (size_t)(count + 31) / 32 * 32;
  PL_TRY(plc_scratch(n * (2 * sizeof(K) + 2 * sizeof(uint32_t)), mem));
  p->key = (K *)*mem;
  p->key2 = p->key + n;
  p->at = (uint32_t *)(p->key2 + n);
  p->at2 = p->at + n;
  return PL_OK;
}

#endif
