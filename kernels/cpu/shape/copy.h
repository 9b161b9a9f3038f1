/* SPDX-License-Identifier: MIT
 * Copies of windows of rows, and rows added (isa/copy.c): what joins, slices, pads, fills and the reading of rows of a table come to.
 * Source and destination share no byte. */
#ifndef PL_KERNELS_CPU_SHAPE_COPY_H
#define PL_KERNELS_CPU_SHAPE_COPY_H

#include <stddef.h>
#include <stdint.h>

typedef struct PlkCopyLoops {
  void (*run)(void *to, const void *from, size_t bytes);
  /* to[r * dr + i * ds] = from[r * sr + i * ss] for r < rows, i < n: elements of `size` bytes, 1, 2, 4 or 8; steps of
   * rows in bytes, of elements in elements. */
  void (*window)(char *to, int64_t dr, int64_t ds, const char *from, int64_t sr, int64_t ss, int64_t rows, int64_t n, size_t size);
  /* Rows of `bytes`: to[r * step] = from[at[r] * size]. */
  void (*rows_at)(char *to, int64_t step, const char *from, const int64_t *at, int64_t size, int64_t rows, size_t bytes);
  /* to[i] += f * from[i] */
  void (*add_f32)(float *to, const float *from, float f, int64_t n);
} PlkCopyLoops;
const PlkCopyLoops *plk_copy_loops(void);

#endif
