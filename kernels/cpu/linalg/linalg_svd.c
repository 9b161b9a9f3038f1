/* SPDX-License-Identifier: MIT
 * Singular values and what is made of them: the pseudo-inverse, and the cofactors of matrices that have no
 * inverse. LAPACK sees aᵀ = V S Uᵀ: its left vectors in columns are the rows of Vᵀ, its right ones in rows the
 * columns of U, so both come out row-major. */
#include "kernels/cpu/linalg/linalg.h"

#include <math.h>
#include <string.h>

#include "kernels/linalg.h"

/* Buffers of one decomposition; mem[at …]: work, integer work. job->m, n are set. */
typedef struct Svd {
  char mode; /* 'A' all vectors, 'S' the first k, 'N' none */
  LaInt lwork;
} Svd;

/* Asks how much work space gesdd wants; f32 answers are rounded, hence the margin. */
static PlStatus svd_plan(const LaJob *job, char mode, Svd *s) {
  const LaInt M = la_max(1, job->n), N = la_max(1, job->m), k = la_max(1, job->k), ask = -1;
  const LaInt ldvt = mode == 'A' ? N : k;
  LaInt info = 0, iwork = 0;
  double answer = 0; /* either precision fits */
  job->lp->gesdd(&mode, &M, &N, &answer, &M, &answer, &answer, &M, &answer, &ldvt, &answer, &ask, &iwork, &info, 1);
  const double want = la_get(&answer, job->dtype, 0) * (1 + 1e-6) + 1;
  if (info != 0 || !(want < 2e9)) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: the matrix is too large", job->call->name);
  *s = (Svd){.mode = mode, .lwork = (LaInt)want};
  return PL_OK;
}

/* a (destroyed) is m × n in rows; u gets rows of ku, vh rows of n. False if it does not converge. */
static bool svd_run(const LaJob *job, const Svd *p, void *a, void *s, void *u, void *vh, void *work, void *iwork) {
  const LaInt M = job->n, N = job->m, ldvt = p->mode == 'A' ? N : la_max(1, job->k);
  LaInt info = 0;
  job->lp->gesdd(&p->mode, &M, &N, a, &M, s, vh, &M, u, &ldvt, work, &p->lwork, iwork, &info, 1);
  return info == 0;
}

static PlStatus no_svd(const LaJob *job, int64_t b, const char *why) {
  if (job->batch > 1) PL_FAIL(PL_ERR_ARG, "%s: matrix %lld of the batch %s", job->call->name, (long long)b + 1, why);
  PL_FAIL(PL_ERR_ARG, "%s: the matrix %s", job->call->name, why);
}
#define NONFINITE      "holds NaN or infinity and has no singular values"
#define NO_CONVERGENCE "did not converge"

/* The plan is the same for all matrices of a call and is in mem, behind the buffers of the caller. */
enum { B_A = 0, B_S, B_U, B_VH, B_WORK, B_IWORK, B_EXTRA, B_MORE };

static PlStatus svd_buffers(LaJob *job, char mode, Svd *plan) {
  PL_TRY(svd_plan(job, mode, plan));
  const int64_t ku = mode == 'A' ? job->m : job->k, kv = mode == 'A' ? job->n : job->k;
  job->buffer[B_A] = la_bytes(job, job->m, job->n);
  job->buffer[B_S] = la_bytes(job, job->k, 1);
  job->buffer[B_U] = mode == 'N' ? job->es : la_bytes(job, job->m, ku);
  job->buffer[B_VH] = mode == 'N' ? job->es : la_bytes(job, kv, job->n);
  job->buffer[B_WORK] = la_bytes(job, plan->lwork, 1);
  job->buffer[B_IWORK] = (size_t)la_max(1, job->k) * 8 * sizeof(LaInt);
  return PL_OK;
}

static PlStatus svd_one(const LaJob *job, int64_t b, void *const *mem) {
  const PlkCall *call = job->call;
  const bool vectors = call->nout == 3;
  PlArray *s = vectors ? call->out[1] : call->out[0];
  Svd plan = {.mode = !vectors ? 'N' : pl_attr_i(call->attrs, 0) != 0 ? 'A' : 'S'};
  if (!plk_la_load(job, mem[B_A], call->in[0], b, false)) return no_svd(job, b, NONFINITE);
  plan.lwork = (LaInt)(job->buffer[B_WORK] / job->es);
  if (!svd_run(job, &plan, mem[B_A], mem[B_S], mem[B_U], mem[B_VH], mem[B_WORK], mem[B_IWORK])) return no_svd(job, b, NO_CONVERGENCE);
  if (s) plk_la_store_vector(job, s, b, mem[B_S]);
  if (vectors && call->out[0]) plk_la_store(job, call->out[0], b, mem[B_U], plk_la_cols(call->out[0]), false);
  if (vectors && call->out[2]) plk_la_store(job, call->out[2], b, mem[B_VH], job->n, false);
  return PL_OK;
}

PlStatus plk_cpu_svd(const PlkCall *call) {
  LaJob job;
  Svd plan;
  PL_TRY(plk_la_begin(&job, call));
  const bool vectors = call->nout == 3;
  if (job.k == 0) { /* nothing to decompose; all vectors: unit ones */
    for (int o = 0; vectors && o < 3; o += 2)
      for (int64_t b = 0; call->out[o] && call->out[o]->numel && b < job.batch; b++) plk_la_fill(call->out[o], b, 0, 1);
    return PL_OK;
  }
  PL_TRY(svd_buffers(&job, !vectors ? 'N' : pl_attr_i(call->attrs, 0) != 0 ? 'A' : 'S', &plan));
  job.flops *= 4;
  job.one = svd_one;
  return plk_la_run(&job);
}

PlStatus plk_cpu_svdvals(const PlkCall *call) { return plk_cpu_svd(call); }

/* ---- pseudo-inverse ------------------------------------------------------------------------------------------- */

/* y[n × m] = Σ_l v_l u_lᵀ w_l over the l with weights, in rows; sums run in double. */
static void compose(const LaJob *job, const void *u, const void *vh, const double *w, bool swap, void *y) {
  const int64_t m = job->m, n = job->n, k = job->k;
  const PlDtype d = job->dtype;
  for (int64_t i = 0; i < (swap ? m : n); i++)
    for (int64_t j = 0; j < (swap ? n : m); j++) {
      const int64_t row = swap ? i : j, col = swap ? j : i; /* of a */
      double sum = 0;
      for (int64_t l = 0; l < k; l++) sum += la_get(u, d, row * k + l) * w[l] * la_get(vh, d, l * n + col);
      la_set(y, d, i * (swap ? n : m) + j, sum);
    }
}

static double tolerance(const PlkCall *call, int i, int64_t b, double none) {
  if (i >= call->nin || !call->in[i]) return none;
  return *(const double *)plk_la_at(call->in[i], b, 0);
}

static PlStatus pinv_one(const LaJob *job, int64_t b, void *const *mem) {
  const PlkCall *call = job->call;
  const Svd plan = {.mode = 'S', .lwork = (LaInt)(job->buffer[B_WORK] / job->es)};
  const double eps = call->in[0]->dtype == PL_F64 ? 0x1p-52 : 0x1p-23;
  if (!plk_la_load(job, mem[B_A], call->in[0], b, false)) return no_svd(job, b, NONFINITE);
  if (!svd_run(job, &plan, mem[B_A], mem[B_S], mem[B_U], mem[B_VH], mem[B_WORK], mem[B_IWORK])) return no_svd(job, b, NO_CONVERGENCE);
  const double atol = tolerance(call, 2, b, 0);
  const double rtol = tolerance(call, 1, b, atol > 0 ? 0 : eps * (double)la_max(job->m, job->n));
  const double cut = fmax(atol, rtol * la_get(mem[B_S], job->dtype, 0));
  double *w = mem[B_EXTRA];
  for (int64_t l = 0; l < job->k; l++) {
    const double s = la_get(mem[B_S], job->dtype, l);
    w[l] = s > cut ? 1 / s : 0;
  }
  compose(job, mem[B_U], mem[B_VH], w, false, mem[B_A]);
  plk_la_store(job, call->out[0], b, mem[B_A], job->m, false);
  return PL_OK;
}

PlStatus plk_cpu_pinv(const PlkCall *call) {
  LaJob job;
  Svd plan;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  PL_TRY(svd_buffers(&job, 'S', &plan));
  job.buffer[B_EXTRA] = (size_t)job.k * sizeof(double);
  job.flops *= 5;
  job.one = pinv_one;
  return plk_la_run(&job);
}

/* ---- cofactors -------------------------------------------------------------------------------------------------- */

/* det(a) a^-T by LU where no pivot is small. lu: a factored; false if one is. y gets rows of aᵀ's. */
static bool cofactor_lu(const LaJob *job, void *lu, LaInt *pivots, void *work) {
  const LaInt n = job->n, lwork = n * 64;
  LaInt info = 0;
  double least = (double)INFINITY, most = 0, det = 1;
  job->lp->getrf(&n, &n, lu, &n, pivots, &info);
  for (LaInt i = 0; i < n; i++) {
    const double u = la_get(lu, job->dtype, (int64_t)i * n + i);
    least = fmin(least, fabs(u)), most = fmax(most, fabs(u));
    det *= pivots[i] != i + 1 ? -u : u;
  }
  if (info != 0 || least < most * (job->dtype == PL_F64 ? 1e-8 : 1e-4)) return false;
  job->lp->getri(&n, lu, &n, pivots, work, &lwork, &info);
  for (int64_t i = 0; i < (int64_t)n * n; i++) la_set(lu, job->dtype, i, det * la_get(lu, job->dtype, i));
  return info == 0;
}

/* ±1, the determinant of an orthogonal matrix, which is destroyed. */
static double orientation(const LaJob *job, void *q, LaInt *pivots) {
  const LaInt n = job->n;
  LaInt info = 0;
  double sign = 1;
  job->lp->getrf(&n, &n, q, &n, pivots, &info);
  for (LaInt i = 0; i < n; i++)
    if ((la_get(q, job->dtype, (int64_t)i * n + i) < 0) != (pivots[i] != i + 1)) sign = -sign;
  return sign;
}

/* a = U S Vᵀ has the cofactors det(U) det(V) U diag(Π_{j≠i} s_j) Vᵀ, whatever its rank. */
static PlStatus cofactor_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *y = job->call->out[0];
  const LaInt n = job->n;
  const Svd plan = {.mode = 'S', .lwork = (LaInt)(job->buffer[B_WORK] / job->es)};
  if (!plk_la_load(job, mem[B_A], job->call->in[0], b, false)) {
    plk_la_fill(y, b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  if (cofactor_lu(job, mem[B_A], mem[B_IWORK], mem[B_WORK])) {
    plk_la_store(job, y, b, mem[B_A], n, true);
    return PL_OK;
  }
  plk_la_load(job, mem[B_A], job->call->in[0], b, false);
  if (!svd_run(job, &plan, mem[B_A], mem[B_S], mem[B_U], mem[B_VH], mem[B_WORK], mem[B_IWORK])) return no_svd(job, b, NO_CONVERGENCE);
  double *w = mem[B_EXTRA];
  for (int64_t i = 0; i < n; i++) {
    w[i] = 1;
    for (int64_t j = 0; j < n; j++) w[i] *= j == i ? 1 : la_get(mem[B_S], job->dtype, j);
  }
  compose(job, mem[B_U], mem[B_VH], w, true, mem[B_A]);
  const double sign = orientation(job, mem[B_U], mem[B_IWORK]) * orientation(job, mem[B_VH], mem[B_IWORK]);
  for (int64_t i = 0; i < (int64_t)n * n; i++) la_set(mem[B_A], job->dtype, i, sign * la_get(mem[B_A], job->dtype, i));
  plk_la_store(job, y, b, mem[B_A], n, false);
  return PL_OK;
}

PlStatus plk_cpu_cofactor(const PlkCall *call) {
  LaJob job;
  Svd plan;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  PL_TRY(svd_buffers(&job, 'S', &plan));
  const size_t lu_work = la_bytes(&job, job.n, 64);
  if (job.buffer[B_WORK] < lu_work) job.buffer[B_WORK] = lu_work;
  job.buffer[B_EXTRA] = (size_t)job.n * sizeof(double);
  job.one = cofactor_one;
  return plk_la_run(&job);
}

/* With a = U S Vᵀ, cofactor(a + e) = det(U) det(V) U cofactor(S + Uᵀ e V) Vᵀ, and with p_ij = Π_{k≠i,j} s_k the change of
 * cofactor(S) by e is Σ_{k≠i} p_ik e_kk on the diagonal, -p_ij e_ji beside it. out: the same of g' = Uᵀ g V, for the map is
 * symmetric. */
static void cofactor_change(const LaJob *job, const void *s, const double *g, double *out) {
  const int64_t n = job->n;
  for (int64_t i = 0; i < n; i++) out[i * n + i] = 0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < i; j++) {
      double p = 1;
      for (int64_t k = 0; k < n; k++) p *= k == i || k == j ? 1 : la_get(s, job->dtype, k);
      out[i * n + i] += p * g[j * n + j], out[j * n + j] += p * g[i * n + i];
      out[i * n + j] = -p * g[j * n + i], out[j * n + i] = -p * g[i * n + j];
    }
}

/* out = op(a) op(b), all n × n; op transposes where ta or tb is set. */
static void product(int64_t n, const void *a, PlDtype da, bool ta, const void *b, PlDtype db, bool tb, double *out) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t k = 0; k < n; k++) sum += la_get(a, da, ta ? k * n + i : i * n + k) * la_get(b, db, tb ? j * n + k : k * n + j);
      out[i * n + j] = sum;
    }
}

static PlStatus cofactor_bwd_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *y = job->call->out[0];
  const int64_t n = job->n;
  const PlDtype d = job->dtype;
  const Svd plan = {.mode = 'S', .lwork = (LaInt)(job->buffer[B_WORK] / job->es)};
  double *t = mem[B_EXTRA], *g = t + n * n;
  bool finite = plk_la_load(job, mem[B_A], job->call->in[0], b, false);
  for (int64_t i = 0; i < n * n; i++) g[i] = la_get(mem[B_A], d, i);
  if (!plk_la_load(job, mem[B_A], job->call->in[1], b, false) || !finite) {
    plk_la_fill(y, b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  if (!svd_run(job, &plan, mem[B_A], mem[B_S], mem[B_U], mem[B_VH], mem[B_WORK], mem[B_IWORK])) return no_svd(job, b, NO_CONVERGENCE);
  product(n, g, PL_F64, false, mem[B_VH], d, true, t); /* g V */
  product(n, mem[B_U], d, true, t, PL_F64, false, g);  /* g' = Uᵀ g V */
  cofactor_change(job, mem[B_S], g, t);
  product(n, t, PL_F64, false, mem[B_VH], d, false, g); /* t Vᵀ */
  product(n, mem[B_U], d, false, g, PL_F64, false, t);  /* U t Vᵀ */
  const double sign = orientation(job, mem[B_U], mem[B_IWORK]) * orientation(job, mem[B_VH], mem[B_IWORK]);
  for (int64_t i = 0; i < n * n; i++) la_set(mem[B_A], d, i, sign * t[i]);
  plk_la_store(job, y, b, mem[B_A], n, false);
  return PL_OK;
}

PlStatus plk_cpu_cofactor_bwd(const PlkCall *call) {
  LaJob job;
  Svd plan;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  PL_TRY(svd_buffers(&job, 'S', &plan));
  job.buffer[B_EXTRA] = 2 * (size_t)job.n * (size_t)job.n * sizeof(double);
  job.flops *= 8;
  job.one = cofactor_bwd_one;
  return plk_la_run(&job);
}
