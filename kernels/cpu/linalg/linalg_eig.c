/* SPDX-License-Identifier: MIT
 * LU factors as such, and eigenvalues of matrices that need not be symmetric. Both load columns, as LAPACK wants. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/linalg/linalg.h"
#include "kernels/linalg.h"

/* ---- LU --------------------------------------------------------------------------------------------------- */

static void store_pivots(PlArray *out, int64_t b, const LaInt *pivots, LaInt k) {
  if (!out) return;
  int64_t *to = plk_la_at(out, b, 1);
  const int64_t step = out->strides[out->ndim - 1];
  for (LaInt i = 0; i < k; i++) to[i * step] = pivots[i];
}

/* P with A = P (L U): its column i has the one in the row of A that came to place i. rows: m numbers of scratch. */
static void store_permutation(PlArray *out, int64_t b, const LaInt *pivots, LaInt k, LaInt m, LaInt *rows) {
  if (!out) return;
  for (LaInt i = 0; i < m; i++) rows[i] = i;
  for (LaInt i = 0; i < k; i++) {
    const LaInt j = pivots[i] - 1, t = rows[i];
    rows[i] = rows[j], rows[j] = t;
  }
  plk_la_fill(out, b, 0, 0);
  char *to = plk_la_at(out, b, 2);
  const int64_t rs = out->strides[out->ndim - 2], cs = out->strides[out->ndim - 1];
  for (LaInt i = 0; i < m; i++) la_set(to, (PlDtype)out->dtype, rows[i] * rs + i * cs, 1);
}

/* mem: 0 matrix, 1 pivots, 2 rows. */
static PlStatus lu_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *const *out = job->call->out;
  const LaInt m = job->m, n = job->n, ld = la_max(1, m);
  LaInt *pivots = mem[1], info = 0;
  for (LaInt i = 0; i < job->k; i++) pivots[i] = i + 1;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, true)) {
    if (out[0]) plk_la_fill(out[0], b, (double)NAN, (double)NAN);
  } else {
    if (job->k > 0) job->lp->getrf(&m, &n, mem[0], &ld, pivots, &info); /* a zero pivot is an answer here */
    if (out[0]) plk_la_store(job, out[0], b, mem[0], m, true);
  }
  store_pivots(out[1], b, pivots, job->k);
  store_permutation(out[2], b, pivots, job->k, m, mem[2]);
  return PL_OK;
}

PlStatus plk_cpu_lu(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  job.buffer[0] = la_bytes(&job, job.m, job.n);
  job.buffer[1] = (size_t)la_max(1, job.k) * sizeof(LaInt);
  job.buffer[2] = (size_t)la_max(1, job.m) * sizeof(LaInt);
  job.one = lu_one;
  return plk_la_run(&job);
}

/* ---- eigenvalues -------------------------------------------------------------------------------------------- */

/* LAPACK gives a pair of conjugate vectors as two columns, real and imaginary part. v: columns; to re and im. */
static void split_vectors(const LaJob *job, const void *v, const void *wi, void *re, void *im) {
  const LaInt n = job->n;
  const PlDtype d = job->dtype;
  for (int64_t j = 0; j < n; j++) {
    const double turn = la_get(wi, d, j);
    const bool pair = turn != 0 && j + 1 < n;
    for (int64_t i = 0; i < n; i++) {
      const double a = la_get(v, d, j * n + i), c = pair ? la_get(v, d, (j + 1) * n + i) : 0;
      la_set(re, d, j * n + i, a);
      la_set(im, d, j * n + i, c);
      if (!pair) continue;
      la_set(re, d, (j + 1) * n + i, a);
      la_set(im, d, (j + 1) * n + i, -c);
    }
    if (pair) j++;
  }
}

/* mem: 0 matrix, 1 values re, 2 im, 3 vectors, 4 work, 5 vectors re, 6 im. */
static PlStatus eig_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *const *out = job->call->out;
  const bool vectors = out[2] != NULL || out[3] != NULL;
  const LaInt n = job->n, lwork = 64 * n, one = 1;
  LaInt info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, true))
    PL_FAIL(PL_ERR_ARG, "%s: matrix %lld holds NaN or infinity and has no eigenvalues", job->call->name, (long long)b + 1);
  job->lp->geev("N", vectors ? "V" : "N", &n, mem[0], &n, mem[1], mem[2], NULL, &one, mem[3], &n, mem[4], &lwork, &info, 1, 1);
  if (info > 0) PL_FAIL(PL_ERR_ARG, "%s: matrix %lld did not converge", job->call->name, (long long)b + 1);
  for (int o = 0; o < 2; o++)
    if (out[o]) plk_la_store_vector(job, out[o], b, mem[1 + o]);
  if (!vectors) return PL_OK;
  split_vectors(job, mem[3], mem[2], mem[5], mem[6]);
  for (int o = 2; o < 4; o++)
    if (out[o]) plk_la_store(job, out[o], b, mem[3 + o], n, true);
  return PL_OK;
}

PlStatus plk_cpu_eig(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->in[0]->numel == 0) return PL_OK;
  for (int k = 0; k < 7; k++) job.buffer[k] = la_bytes(&job, job.n, k == 1 || k == 2 ? 1 : k == 4 ? 64 : job.n);
  job.flops *= 8;
  job.one = eig_one;
  return plk_la_run(&job);
}
