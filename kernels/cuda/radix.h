/* SPDX-License-Identifier: MIT
 * Stable sorting and compaction on the device: what turns writes that meet into an order that never changes. */
#ifndef PL_KERNELS_CUDA_RADIX_H
#define PL_KERNELS_CUDA_RADIX_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts n keys below 2^bits with their ids (id[i] = i at first), ascending and stable. keys and ids are 2 n long each: the second
 * half is room; *keys_out, *ids_out say which half holds the result. */
PlStatus plc_radix_sort(uint64_t *keys, int64_t *ids, int64_t n, int bits, uint64_t **keys_out, int64_t **ids_out);
/* *positions (scratch, the caller frees it): the row-major numbers of a's elements that are not 0, ascending; *count of them,
 * read back from the device where want_count, else as given. */
PlStatus plc_nonzero(const PlArray *a, int64_t **positions, int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
