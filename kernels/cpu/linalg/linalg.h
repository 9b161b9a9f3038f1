/* SPDX-License-Identifier: MIT
 * What the kernels of linear algebra share: running over a batch, and moving matrices between strided arrays
 * and dense scratch. A row-major matrix is its transpose to LAPACK; each kernel says what it makes of that. */
#ifndef PL_KERNELS_CPU_LINALG_LINALG_H
#define PL_KERNELS_CPU_LINALG_LINALG_H

#include "kernels/cpu/linalg/lapack.h"

/* The sizes and buffers of one call. buffer[i] bytes of scratch are given to `one` for every matrix. */
typedef struct LaJob {
  const PlkCall *call;
  const PlkLapack *lp;
  PlDtype dtype; /* of the scratch: f64 also for small f32 matrices */
  size_t es;     /* bytes of an element of scratch */
  int64_t batch;
  LaInt m, n, k; /* of input 0: rows, columns, the smaller one */
  double flops;  /* of one matrix, to cut the batch into blocks */
  size_t buffer[8];
  PlStatus (*one)(const struct LaJob *job, int64_t b, void *const *mem);
} LaJob;

/* Fills in what input 0 says and opens LAPACK; job->one and the buffers are the caller's. */
PlStatus plk_la_begin(LaJob *job, const PlkCall *call);
PlStatus plk_la_run(LaJob *job);

/* The rows and columns of an array's matrices, 1 for dims that are not there. */
int64_t plk_la_rows(const PlArray *a);
int64_t plk_la_cols(const PlArray *a);

/* Matrix b of a as dense rows (swap: dense columns) at dst. False if it holds NaN or infinity. */
bool plk_la_load(const LaJob *job, void *dst, const PlArray *a, int64_t b, bool swap);
/* Writes dense rows with step ld (swap: columns) to matrix b of a. */
void plk_la_store(const LaJob *job, PlArray *a, int64_t b, const void *src, int64_t ld, bool swap);
/* Writes a dense vector to vector b of a. */
void plk_la_store_vector(const LaJob *job, PlArray *a, int64_t b, const void *src);
/* Writes matrix or vector b of a; v is stored everywhere, on the diagonal d. */
void plk_la_fill(PlArray *a, int64_t b, double v, double d);
/* The address of matrix b when its last `inner` dims are not counted. */
void *plk_la_at(const PlArray *a, int64_t b, int inner);

/* Factors, of small matrices without LAPACK (linalg_small.c): lu by getrf, getrs, getri; potrf. */
void plk_la_lu(const LaJob *job, LaInt n, void *lu, LaInt *pivots, LaInt *info);
void plk_la_lu_solve(const LaJob *job, bool transposed, LaInt n, LaInt k, const void *lu, const LaInt *pivots, void *b);
void plk_la_lu_inverse(const LaJob *job, LaInt n, void *lu, const LaInt *pivots, void *work, LaInt lwork, LaInt *info);
void plk_la_cholesky(const LaJob *job, bool lower, LaInt n, void *matrix, LaInt *info);

static inline double la_get(const void *p, PlDtype d, int64_t i) {
  return d == PL_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void la_set(void *p, PlDtype d, int64_t i, double v) {
  if (d == PL_F64) ((double *)p)[i] = v;
  else ((float *)p)[i] = (float)v;
}
static inline size_t la_bytes(const LaJob *j, int64_t rows, int64_t cols) {
  return (size_t)(rows > 0 ? rows : 1) * (size_t)(cols > 0 ? cols : 1) * j->es;
}
static inline LaInt la_max(LaInt a, LaInt b) { return a > b ? a : b; }

#endif
