/* SPDX-License-Identifier: MIT
 * Moving elements between strided windows: copy, add, cast. What views, joins, pads and indexing share.
 * Strides are in elements and may be zero or negative; pointers address element (0, …, 0). Copies write a
 * destination that overlaps nothing; adds may hit one destination many times and do so in row-major order
 * of the source, at any thread count. */
#ifndef PL_KERNELS_CPU_SHAPE_STRIDED_COPY_H
#define PL_KERNELS_CPU_SHAPE_STRIDED_COPY_H

#include "kernels/cpu/sizes.h"
#include "kernels/kernel.h"

enum {
  PLK_ND = 2 * PL_MAX_DIM + 2,
  PLK_MOVE_GRAIN = 4 * PLK_GRAIN /* elements a job: bare moves are done before a second thread wakes */
};

/* One walk over two windows of equal shape. */
typedef struct PlkNd {
  int n;
  int64_t shape[PLK_ND], dst[PLK_ND], src[PLK_ND];
} PlkNd;

static inline void plk_nd_dim(PlkNd *w, int64_t size, int64_t dst, int64_t src) {
  w->shape[w->n] = size;
  w->dst[w->n] = dst;
  w->src[w->n++] = src;
}

PlStatus plk_nd_copy(void *dst, const void *src, const PlkNd *walk, size_t esize);
PlStatus plk_nd_add(void *dst, const void *src, const PlkNd *walk, PlDtype dtype);
/* Converts between dtypes; floats to integers truncate and saturate, NaN becomes 0. */
PlStatus plk_nd_cast(void *dst, PlDtype to, const void *src, PlDtype from, const PlkNd *walk);
/* dst (contiguous, zeroed here) += src over the walk; f16 and bf16 accumulate in f32 and round once. */
PlStatus plk_nd_zero_add(void *dst, int64_t numel, const void *src, const PlkNd *walk, PlDtype dtype);
PlStatus plk_nd_zero(void *dst, size_t bytes);
/* Every element of a (any strides) becomes the `esize` bytes at `value`. */
PlStatus plk_nd_fill(const PlArray *a, const void *value);

void plk_nd_strides(int ndim, const int64_t *shape, int64_t *strides);
/* The walk from src to dst, both of dst's shape after src is broadcast against it. */
void plk_nd_walk(PlkNd *w, const PlArray *dst, const PlArray *src);
/* A contiguous copy of `a`, broadcast to shape and converted, in scratch memory; or, where a already is
 * that, its own data and *scratch NULL. */
PlStatus plk_nd_dense(const PlArray *a, PlDtype to, int ndim, const int64_t *shape, void **scratch, const void **data);

/* n elements with a stride, as doubles or integers, and back. */
void plk_nd_load_f64(double *d, const void *src, PlDtype from, int64_t n, int64_t stride);
void plk_nd_load_i64(int64_t *d, const void *src, PlDtype from, int64_t n, int64_t stride);
void plk_nd_store_f64(void *dst, PlDtype to, const double *s, int64_t n, int64_t stride);
void plk_nd_store_i64(void *dst, PlDtype to, const int64_t *s, int64_t n, int64_t stride);
/* One SCALAR attribute as an element of dtype `to`. */
void plk_nd_attr(void *dst, PlDtype to, const PlAttrs *a, int k);

static inline char *plk_at(void *p, int64_t elements, size_t esize) { return (char *)p + elements * (int64_t)esize; }
static inline const char *plk_cat(const void *p, int64_t elements, size_t esize) { return (const char *)p + elements * (int64_t)esize; }

/* The coordinates of item `at` of a row-major shape, and stepping them. */
static inline void plk_nd_unravel(int64_t at, int n, const int64_t *shape, int64_t *coord) {
  for (int d = n - 1; d >= 0; d--) {
    coord[d] = at % shape[d];
    at /= shape[d];
  }
}

#endif
