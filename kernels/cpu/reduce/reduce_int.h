/* SPDX-License-Identifier: MIT
 * Reductions of whole numbers and masks as they are stored (isa/reduce/reduce_int.c): sums, which wrap, extremes, and how many elements are
 * not 0. */
#ifndef PL_KERNELS_CPU_REDUCE_REDUCE_INT_H
#define PL_KERNELS_CPU_REDUCE_REDUCE_INT_H

#include <stdint.h>

#include "kernels/base.h"

typedef enum PlkIntCore { PLK_INT_SUM, PLK_INT_MAX, PLK_INT_MIN, PLK_INT_COUNT, PLK_INT_CORES } PlkIntCore;
typedef struct PlkIntLoop {
  int64_t (*row)(const void *x, int64_t n); /* n >= 1 elements */
  /* rows >= 1 rows, ld apart, of at most PLK_COLS columns, joined with what is in acc */
  void (*col)(const void *x, int64_t ld, int64_t rows, int64_t cols, int64_t *acc);
} PlkIntLoop;
typedef struct PlkIntLoops {
  PlkIntLoop of[PL_NDTYPE][PLK_INT_CORES]; /* row NULL: of floats */
} PlkIntLoops;

#endif
