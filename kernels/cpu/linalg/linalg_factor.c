/* SPDX-License-Identifier: MIT
 * Factorizations: triangular solves, Cholesky, QR, symmetric eigenvalues. LAPACK reads row-major matrices as
 * their transposes, so upper is lower to it, and A = QR is found as Aᵀ = Rᵀ Qᵀ by its LQ. */
#include "kernels/cpu/linalg/linalg.h"

#include <math.h>
#include <string.h>

#include "kernels/linalg.h"

static PlStatus nonfinite(const LaJob *job, int64_t b, const char *what) {
  if (job->batch > 1)
    PL_FAIL(PL_ERR_ARG, "%s: matrix %lld of the batch holds NaN or infinity and has no %s", job->call->name, (long long)b + 1, what);
  PL_FAIL(PL_ERR_ARG, "%s: the matrix holds NaN or infinity and has no %s", job->call->name, what);
}

/* ---- triangles ------------------------------------------------------------------------------------------ */

/* a x = b as xᵀ aᵀ = bᵀ and x a = b as aᵀ xᵀ = bᵀ, in LAPACK's view of rows; aᵀ has the other triangle. */
static PlStatus trisolve_one(const LaJob *job, int64_t b, void *const *mem) {
  const PlAttrs *at = job->call->attrs;
  const bool upper = pl_attr_i(at, 0) != 0, left = pl_attr_i(at, 1) != 0, unit = pl_attr_i(at, 2) != 0;
  const PlArray *rhs = job->call->in[1];
  const LaInt n = job->n, r = (LaInt)plk_la_rows(rhs), c = (LaInt)plk_la_cols(rhs);
  const double one64 = 1;
  const float one32 = 1;
  plk_la_load(job, mem[0], job->call->in[0], b, false);
  plk_la_load(job, mem[1], rhs, b, false);
  job->lp->trsm(left ? "R" : "L", upper ? "L" : "U", "N", unit ? "U" : "N", &c, &r,
                job->dtype == PL_F64 ? (const void *)&one64 : (const void *)&one32, mem[0], &n, mem[1], &c, 1, 1, 1, 1);
  plk_la_store(job, job->call->out[0], b, mem[1], c, false);
  return PL_OK;
}

PlStatus plk_cpu_solve_triangular(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  const int64_t r = plk_la_rows(call->in[1]), c = plk_la_cols(call->in[1]);
  if (r > INT32_MAX || c > INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: too many right-hand sides", call->name);
  job.buffer[0] = la_bytes(&job, job.n, job.n);
  job.buffer[1] = la_bytes(&job, r, c);
  job.one = trisolve_one;
  return plk_la_run(&job);
}

/* Zeros in rows × cols at a: below the diagonal (upper), else above it. */
static void clear_triangle(void *a, PlDtype d, int64_t rows, int64_t cols, bool upper) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = upper ? 0 : i + 1; j < (upper && i < cols ? i : cols); j++) la_set(a, d, i * cols + j, 0);
}

static PlStatus cholesky_one(const LaJob *job, int64_t b, void *const *mem) {
  const bool upper = pl_attr_i(job->call->attrs, 0) != 0;
  const LaInt n = job->n;
  LaInt info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) return nonfinite(job, b, "Cholesky factor");
  plk_la_cholesky(job, upper, n, mem[0], &info);
  if (info > 0 && job->batch > 1)
    PL_FAIL(PL_ERR_ARG, "%s: matrix %lld of the batch is not positive definite (its leading minor of order %d)", job->call->name,
            (long long)b + 1, info);
  if (info > 0) PL_FAIL(PL_ERR_ARG, "%s: the matrix is not positive definite (its leading minor of order %d)", job->call->name, info);
  clear_triangle(mem[0], job->dtype, n, n, upper);
  plk_la_store(job, job->call->out[0], b, mem[0], n, false);
  return PL_OK;
}

PlStatus plk_cpu_cholesky(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  job.buffer[0] = la_bytes(&job, job.n, job.n);
  job.one = cholesky_one;
  return plk_la_run(&job);
}

/* PT A P = L LT. LAPACK counts what is below tol as zero and leaves there what it met: those columns become zeros. mem: 0 matrix,
 * 1 pivots, 2 work. */
static PlStatus pivoted_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *const *out = job->call->out;
  const bool upper = pl_attr_i(job->call->attrs, 0) != 0;
  const LaInt n = job->n;
  LaInt *pivots = mem[1], rank = 0, info = 0;
  double largest = 0, tol = pl_attr_f(job->call->attrs, 1);
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) return nonfinite(job, b, "Cholesky factor");
  for (LaInt i = 0; i < n; i++) {
    const double a = la_get(mem[0], job->dtype, (int64_t)i * (n + 1));
    if (a > largest) largest = a;
    pivots[i] = i + 1;
  }
  if (tol < 0) tol = (double)n * (job->call->in[0]->dtype == PL_F64 ? 0x1p-53 : 0x1p-24) * largest;
  const float tol32 = (float)tol;
  if (largest > 0)
    job->lp->pstrf(upper ? "L" : "U", &n, mem[0], &n, pivots, &rank, job->dtype == PL_F64 ? (const void *)&tol : (const void *)&tol32,
                   mem[2], &info, 1);
  clear_triangle(mem[0], job->dtype, n, n, upper);
  for (LaInt i = 0; i < n; i++)
    for (LaInt j = 0; j < n; j++)
      if ((upper ? i : j) >= rank) la_set(mem[0], job->dtype, (int64_t)i * n + j, 0);
  if (out[0]) plk_la_store(job, out[0], b, mem[0], n, false);
  if (out[1])
    for (LaInt i = 0; i < n; i++) ((int64_t *)plk_la_at(out[1], b, 1))[i * out[1]->strides[out[1]->ndim - 1]] = pivots[i];
  if (out[2]) *(int64_t *)plk_la_at(out[2], b, 0) = rank;
  if (out[3]) {
    plk_la_fill(out[3], b, 0, 0);
    const int64_t rs = out[3]->strides[out[3]->ndim - 2], cs = out[3]->strides[out[3]->ndim - 1];
    for (LaInt i = 0; i < n; i++) la_set(plk_la_at(out[3], b, 2), (PlDtype)out[3]->dtype, (pivots[i] - 1) * rs + i * cs, 1);
  }
  return PL_OK;
}

PlStatus plk_cpu_pivoted_cholesky(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  job.buffer[0] = la_bytes(&job, job.n, job.n);
  job.buffer[1] = (size_t)la_max(1, job.n) * sizeof(LaInt);
  job.buffer[2] = la_bytes(&job, la_max(1, job.n), 2);
  job.one = pivoted_one;
  return plk_la_run(&job);
}

/* ---- QR ---------------------------------------------------------------------------------------------------- */

/* mem: 0 aᵀ with its reflectors in rows, 1 tau, 2 work, 3 q. */
static PlStatus qr_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *q = job->call->out[0], *r = job->call->out[1];
  const bool want_q = pl_attr_i(job->call->attrs, 0) != 2;
  const LaInt m = job->m, n = job->n, k = job->k, lwork = la_max(1, la_max(m, n)) * 64, ld = la_max(1, n);
  LaInt info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) {
    if (want_q && q) plk_la_fill(q, b, (double)NAN, (double)NAN);
    if (r) plk_la_fill(r, b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  if (k > 0) job->lp->gelqf(&n, &m, mem[0], &ld, mem[1], mem[2], &lwork, &info);
  if (want_q && q) {
    const LaInt cols = (LaInt)plk_la_cols(q), own = cols < n ? cols : n, ldq = la_max(1, cols);
    for (int64_t j = 0; j < m; j++) {
      char *to = (char *)mem[3] + (size_t)(j * cols) * job->es;
      memcpy(to, (const char *)mem[0] + (size_t)(j * n) * job->es, (size_t)own * job->es);
      memset(to + (size_t)own * job->es, 0, (size_t)(cols - own) * job->es);
    }
    if (k > 0) {
      job->lp->orglq(&cols, &m, &k, mem[3], &ldq, mem[1], mem[2], &lwork, &info);
      plk_la_store(job, q, b, mem[3], cols, false);
    } else {
      plk_la_fill(q, b, 0, 1);
    }
  }
  if (r && r->numel > 0) {
    clear_triangle(mem[0], job->dtype, m, n, true);
    plk_la_store(job, r, b, mem[0], n, false);
  }
  return PL_OK;
}

PlStatus plk_cpu_qr(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  job.buffer[0] = la_bytes(&job, job.m, job.n);
  job.buffer[1] = la_bytes(&job, job.k, 1);
  job.buffer[2] = la_bytes(&job, la_max(job.m, job.n), 64);
  job.buffer[3] = call->out[0] ? la_bytes(&job, job.m, plk_la_cols(call->out[0])) : 0;
  job.one = qr_one;
  return plk_la_run(&job);
}

/* A as it is after geqrf: gelqf of the transpose writes the same numbers, rows for columns. mem: 0 matrix, 1 tau, 2 work. */
static PlStatus geqrf_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *a = job->call->out[0], *tau = job->call->out[1];
  const LaInt m = job->m, n = job->n, lwork = la_max(1, la_max(m, n)) * 64, ld = la_max(1, n);
  LaInt info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) {
    if (a) plk_la_fill(a, b, (double)NAN, (double)NAN);
    for (LaInt i = 0; i < job->k; i++) la_set(mem[1], job->dtype, i, (double)NAN);
  } else if (job->k > 0) {
    job->lp->gelqf(&n, &m, mem[0], &ld, mem[1], mem[2], &lwork, &info);
    if (a) plk_la_store(job, a, b, mem[0], n, false);
  }
  if (tau && job->k > 0) plk_la_store_vector(job, tau, b, mem[1]);
  return PL_OK;
}

PlStatus plk_cpu_geqrf(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->in[0]->numel == 0) return PL_OK;
  job.buffer[0] = la_bytes(&job, job.m, job.n);
  job.buffer[1] = la_bytes(&job, job.k, 1);
  job.buffer[2] = la_bytes(&job, la_max(job.m, job.n), 64);
  job.one = geqrf_one;
  return plk_la_run(&job);
}

/* ---- symmetric eigenvalues ----------------------------------------------------------------------------------- */

/* Work areas of syevd as its documentation gives them. */
static void eigh_work(const LaJob *job, bool vectors, LaInt *lwork, LaInt *liwork) {
  const LaInt n = la_max(1, job->n);
  *lwork = vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 64 * n + 1;
  *liwork = vectors ? 3 + 5 * n : 1;
}

/* mem: 0 matrix, then vectors in columns; 1 values, 2 work, 3 integer work. */
static PlStatus eigh_one(const LaJob *job, int64_t b, void *const *mem) {
  const bool vectors = job->call->nout > 1, upper = pl_attr_i(job->call->attrs, 0) != 0;
  const LaInt n = job->n;
  LaInt lwork, liwork, info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) return nonfinite(job, b, "eigenvalues");
  eigh_work(job, vectors, &lwork, &liwork);
  job->lp->syevd(vectors ? "V" : "N", upper ? "L" : "U", &n, mem[0], &n, mem[1], mem[2], &lwork, mem[3], &liwork, &info, 1, 1);
  if (info > 0) PL_FAIL(PL_ERR_ARG, "%s: matrix %lld did not converge", job->call->name, (long long)b + 1);
  if (job->call->out[0]) plk_la_store_vector(job, job->call->out[0], b, mem[1]);
  if (vectors && job->call->out[1]) plk_la_store(job, job->call->out[1], b, mem[0], n, true);
  return PL_OK;
}

PlStatus plk_cpu_eigh(const PlkCall *call) {
  LaJob job;
  LaInt lwork, liwork;
  PL_TRY(plk_la_begin(&job, call));
  if (call->in[0]->numel == 0) return PL_OK;
  eigh_work(&job, call->nout > 1, &lwork, &liwork);
  job.buffer[0] = la_bytes(&job, job.n, job.n);
  job.buffer[1] = la_bytes(&job, job.n, 1);
  job.buffer[2] = la_bytes(&job, lwork, 1);
  job.buffer[3] = (size_t)liwork * sizeof(LaInt);
  job.one = eigh_one;
  return plk_la_run(&job);
}

PlStatus plk_cpu_eigvalsh(const PlkCall *call) { return plk_cpu_eigh(call); }
