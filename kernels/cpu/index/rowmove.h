/* SPDX-License-Identifier: MIT
 * Index values and the moving of rows they address. A RowMove pairs a table (x) with a list of rows: table
 * position (a, offs[p], b) meets row position (a, p, b), for free dims a before and b after the indexed ones. */
#ifndef PL_KERNELS_CPU_INDEX_ROWMOVE_H
#define PL_KERNELS_CPU_INDEX_ROWMOVE_H

#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/index.h"

/* Checked index values in row-major order: 0-based position i is v[i] - base. */
typedef struct PlkIndex {
  const int64_t *v;
  int64_t n, base;
  void *scratch;
} PlkIndex;

/* Loads and checks a tensor of index values against 0 … limit-1, counted from base. wrap: negative values
 * count from the end. PL_ERR_INDEX names value, range and position. */
PlStatus plk_index_load(const char *op, const PlArray *index, int64_t limit, int64_t base, bool wrap, PlkIndex *out);
/* The same for an index that may be expanded: its values without repetitions, and their positions: strides[d] is 0 along
 * dims in which it repeats. */
PlStatus plk_index_spread(const char *op, const PlArray *index, int64_t limit, int64_t base, bool wrap, PlkIndex *out, int64_t *strides);
/* The same unchecked, where what is written is no more than a result: who reads values asks plk_index_within of them first, and
 * where some are not, calls plk_index_spread, which says so or resolves them, and begins anew. One pass over memory less. */
PlStatus plk_index_unchecked(const char *op, const PlArray *index, int64_t base, PlkIndex *out, int64_t *strides);
#if defined(__clang__)
#define PLK_FOUR _Pragma("clang loop unroll_count(4)")
#else
#define PLK_FOUR _Pragma("GCC unroll 4")
#endif

/* Whether n values, `step` apart, are positions in 0 … limit-1. */
static inline bool plk_index_within(const int64_t *v, int64_t step, int64_t n, int64_t limit, int64_t base) {
  const uint64_t from = (uint64_t)base, last = (uint64_t)limit - 1;
  uint64_t bad = 0; /* the top bit is set by t < 0 and by t > last; adds and ors vectorize everywhere */
  if (step == 1)
    for (int64_t i = 0; i < n; i++) bad |= ((uint64_t)v[i] - from) | (last - ((uint64_t)v[i] - from));
  else
    for (int64_t i = 0; i < (step ? n : n > 0); i++) {
      const uint64_t t = (uint64_t)v[i * step] - from;
      bad |= t | (last - t);
    }
  return !(bad >> 63);
}
static inline void plk_index_free(PlkIndex *i) { plk_scratch_free(i->scratch); }

typedef struct PlkRows {
  char *table, *rows;
  const int64_t *offs; /* element offsets in the table */
  int64_t np, span;    /* span: offsets are below it */
  int na, nb;
  int64_t ashape[PL_MAX_DIM], atable[PL_MAX_DIM], arow[PL_MAX_DIM];
  int64_t bshape[PL_MAX_DIM], btable[PL_MAX_DIM], brow[PL_MAX_DIM];
  int64_t prow; /* stride of p in the rows */
  PlDtype dtype;
  double alpha; /* adds: rows times this (floats), or ialpha (integers) */
  int64_t ialpha;
} PlkRows;

/* Free dims of x around `dim`, for contiguous rows [before…, np, after…]. */
void plk_rows_around(PlkRows *r, const PlArray *table, int dim, int64_t np);
/* offs[i] = position · stride for every index value; scratch memory. */
PlStatus plk_rows_offsets(const PlkIndex *index, int64_t stride, int64_t **offs);
PlStatus plk_rows_get(PlkRows *r); /* rows = table */
PlStatus plk_rows_set(PlkRows *r); /* table = rows, the last one wins */
PlStatus plk_rows_add(PlkRows *r); /* table += alpha · rows */

/* Offsets in x (of the given strides) of every position of a plan; checks all values. */
PlStatus plk_plan_offsets(const char *op, const PlkIndexPlan *plan, const PlArray *const *index, const int64_t *shape,
                          const int64_t *strides, int64_t base, int64_t **offs);
/* Free dims of a plan, for contiguous rows of the plan's shape. */
void plk_plan_rows(PlkRows *r, const PlkIndexPlan *plan, int ndim, const int64_t *shape, const int64_t *strides);

/* Runs fn with a contiguous output, copying afterwards where the real one is not. */
PlStatus plk_dense_out(const PlkCall *call, PlStatus (*fn)(const PlkCall *call));
/* Runs fn, which sums or multiplies elements of the output one by one, in f32 where that is of halves: each step would be
 * rounded, and a sum of many small numbers would stand still. Other calls run as they are. */
PlStatus plk_wide_sums(const PlkCall *call, PlStatus (*fn)(const PlkCall *call));
/* out = in0, unless they are the same array. */
PlStatus plk_start_from(const PlArray *x, PlArray *out);

#endif
