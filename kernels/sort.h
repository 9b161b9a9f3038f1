/* SPDX-License-Identifier: MIT
 * Kernels that find positions along a dim: extremes, order statistics, sorting; and the two that move
 * values there and back. Attribute positions are those of engine/ops/sort/sort.c. */
#ifndef PL_KERNELS_SORT_H
#define PL_KERNELS_SORT_H

#include "kernels/kernel.h"

PlStatus plk_cpu_argmax(const PlkCall *call);  /* attrs dim, keepdim, index_base; kcode 1: min */
PlStatus plk_cpu_max_dim(const PlkCall *call); /* outputs values, indices; kcode 1: min */

typedef enum PlkSort {
  PLK_O_SORT,    /* dim, descending, stable, index_base */
  PLK_O_ARGSORT, /* the same, indices only */
  PLK_O_TOPK,    /* k, dim, largest, sorted, index_base */
  PLK_O_KTH,     /* k, dim, keepdim, index_base */
  PLK_O_MEDIAN,  /* dim (none: all), keepdim, index_base */
  PLK_O_MODE     /* dim, keepdim, index_base */
} PlkSort;
PlStatus plk_cpu_sort(const PlkCall *call);

/* attrs dim (none: flat), shape of the result, base. put: y is 0 but for y[index] += x along dim.
 * pick: y = x[index]. */
PlStatus plk_cpu_dim_put(const PlkCall *call);
PlStatus plk_cpu_dim_pick(const PlkCall *call);

#endif
