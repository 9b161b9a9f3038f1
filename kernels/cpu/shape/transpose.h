/* SPDX-License-Identifier: MIT
 * Transposed copies of windows (isa/transpose.c). */
#ifndef PL_KERNELS_CPU_SHAPE_TRANSPOSE_H
#define PL_KERNELS_CPU_SHAPE_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>

/* dst[j * ld + r] = src[r * stride + j] for r < n, j < k; windows that do not overlap. Best where n and k are multiples
 * of 8. */
typedef void (*PlkTranspose)(void *dst, int64_t ld, const void *src, int64_t stride, int64_t n, int64_t k);
typedef struct PlkTransposeLoops {
  PlkTranspose two, four, eight; /* by bytes */
} PlkTransposeLoops;
/* For elements of 1, 2, 4 or 8 bytes. */
PlkTranspose plk_transpose(size_t size);

#endif
