/* SPDX-License-Identifier: MIT
 * Batches of matrices, and what an LU factorization gives: inverse, solution, determinant, cofactors. */
#include "kernels/cpu/linalg/linalg.h"

#include <math.h>
#include <string.h>

#include "kernels/linalg.h"

/* ---- matrices in arrays ------------------------------------------------------------------------------- */

int64_t plk_la_rows(const PlArray *a) { return a->ndim > 1 ? a->shape[a->ndim - 2] : 1; }
int64_t plk_la_cols(const PlArray *a) { return a->ndim > 0 ? a->shape[a->ndim - 1] : 1; }

void *plk_la_at(const PlArray *a, int64_t b, int inner) {
  int64_t off = 0;
  for (int d = a->ndim - inner - 1; d >= 0; d--) {
    off += b % a->shape[d] * a->strides[d];
    b /= a->shape[d];
  }
  return (char *)a->data + off * (int64_t)pl_dtype_size((PlDtype)a->dtype);
}

/* One body for both precisions: rows × cols elements; x - x is 0 for finite x only. Rows whose elements are adjacent are a loop of their
 * own, which becomes vectors. */
#define MOVES(NAME, T, W)                                                                                                      \
  static bool load_##NAME(W *PL_RESTRICT dst, const T *src, int64_t rows, int64_t cols, int64_t rs, int64_t cs) {              \
    int odd = 0;                                                                                                               \
    for (int64_t i = 0; i < rows; i++, dst += cols, src += rs)                                                                 \
      if (cs == 1)                                                                                                             \
        for (int64_t j = 0; j < cols; j++) {                                                                                   \
          const W v = dst[j] = (W)src[j];                                                                                      \
          odd |= v - v != 0;                                                                                                   \
        }                                                                                                                      \
      else                                                                                                                     \
        for (int64_t j = 0; j < cols; j++) {                                                                                   \
          const W v = dst[j] = (W)src[j * cs];                                                                                 \
          odd |= v - v != 0;                                                                                                   \
        }                                                                                                                      \
    return !odd;                                                                                                               \
  }                                                                                                                            \
  static void store_##NAME(T *dst, const W *PL_RESTRICT src, int64_t rows, int64_t cols, int64_t rs, int64_t cs, int64_t ld) { \
    for (int64_t i = 0; i < rows; i++, dst += rs, src += ld)                                                                   \
      if (cs == 1)                                                                                                             \
        for (int64_t j = 0; j < cols; j++) dst[j] = (T)src[j];                                                                 \
      else                                                                                                                     \
        for (int64_t j = 0; j < cols; j++) dst[j * cs] = (T)src[j];                                                            \
  }
MOVES(f32, float, float)
MOVES(f64, double, double)
MOVES(f32_64, float, double)

bool plk_la_load(const LaJob *job, void *dst, const PlArray *a, int64_t b, bool swap) {
  const void *src = plk_la_at(a, b, 2);
  int64_t r = plk_la_rows(a), c = plk_la_cols(a), rs = a->strides[a->ndim - 2], cs = a->strides[a->ndim - 1];
  if (swap) {
    int64_t t = r;
    r = c, c = t, t = rs, rs = cs, cs = t;
  }
  if (a->dtype == PL_F64) return load_f64(dst, src, r, c, rs, cs);
  return job->dtype == PL_F64 ? load_f32_64(dst, src, r, c, rs, cs) : load_f32(dst, src, r, c, rs, cs);
}

void plk_la_store(const LaJob *job, PlArray *a, int64_t b, const void *src, int64_t ld, bool swap) {
  void *dst = plk_la_at(a, b, 2);
  int64_t r = plk_la_rows(a), c = plk_la_cols(a), rs = a->strides[a->ndim - 2], cs = a->strides[a->ndim - 1];
  if (swap) {
    int64_t t = r;
    r = c, c = t, t = rs, rs = cs, cs = t;
  }
  if (a->dtype == PL_F64) store_f64(dst, src, r, c, rs, cs, ld);
  else if (job->dtype == PL_F64) store_f32_64(dst, src, r, c, rs, cs, ld);
  else store_f32(dst, src, r, c, rs, cs, ld);
}

void plk_la_store_vector(const LaJob *job, PlArray *a, int64_t b, const void *src) {
  void *dst = plk_la_at(a, b, 1);
  const int64_t n = a->shape[a->ndim - 1], step = a->strides[a->ndim - 1];
  for (int64_t i = 0; i < n; i++) la_set(dst, (PlDtype)a->dtype, i * step, la_get(src, job->dtype, i));
}

void plk_la_fill(PlArray *a, int64_t b, double v, double d) {
  void *dst = plk_la_at(a, b, 2);
  int64_t rs = a->strides[a->ndim - 2], cs = a->strides[a->ndim - 1];
  for (int64_t i = 0; i < plk_la_rows(a); i++)
    for (int64_t j = 0; j < plk_la_cols(a); j++) la_set(dst, (PlDtype)a->dtype, i * rs + j * cs, i == j ? d : v);
}

/* ---- batches ---------------------------------------------------------------------------------------------- */

/* Small f32 matrices are worked on in f64: there LAPACK's time goes into its calls, not its arithmetic, and
 * results, rounded once, are what gradients of factorizations want. Thin ones, too: LAPACK adds up their long sides one by
 * one, and of equal numbers (an expanded tensor) all roundings go the same way. */
enum { SMALL = 128, THIN = 16 };

PlStatus plk_la_begin(LaJob *job, const PlkCall *call) {
  const PlArray *a = call->in[0];
  const int64_t r = plk_la_rows(a), c = plk_la_cols(a);
  const bool exact = (r <= SMALL && c <= SMALL) || r <= THIN || c <= THIN;
  const PlDtype work = exact ? PL_F64 : (PlDtype)a->dtype;
  *job = (LaJob){.call = call, .dtype = work, .es = pl_dtype_size(work), .batch = 1};
  /* Work areas grow with 4 n² and are counted in 32 bits. */
  if (r > 20000 || c > 20000)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: matrices may have at most 20000 rows and columns, got %lld and %lld", call->name, (long long)r,
            (long long)c);
  for (int d = 0; d < a->ndim - 2; d++) job->batch *= a->shape[d];
  job->m = (LaInt)r, job->n = (LaInt)c, job->k = (LaInt)(r < c ? r : c);
  job->flops = 4.0 * (double)r * (double)c * (double)job->k;
  return plk_lapack_get(call->name, job->dtype, &job->lp);
}

enum { NBUF = 8 };

static PlStatus run_range(void *ctx, int64_t begin, int64_t end) {
  const LaJob *job = ctx;
  void *mem[NBUF] = {NULL}, *all;
  size_t total = 0;
  for (int i = 0; i < NBUF; i++) total += (job->buffer[i] + 63) & ~(size_t)63;
  PL_TRY(plk_scratch(total ? total : 64, &all));
  char *p = all;
  for (int i = 0; i < NBUF; i++) {
    mem[i] = p;
    p += (job->buffer[i] + 63) & ~(size_t)63;
  }
  PlStatus s = PL_OK;
  const int state = plk_lapack_enter();
  for (int64_t b = begin; b < end && s == PL_OK; b++) {
    s = plk_poll();
    if (s == PL_OK) s = job->one(job, b, mem);
  }
  plk_lapack_leave(state);
  plk_scratch_free(all);
  return s;
}

PlStatus plk_la_run(LaJob *job) {
  const double each = job->flops < 1 ? 1 : job->flops;
  const double block = 4.0 * PLK_GRAIN / each; /* a block is worth a thread's while */
  return plk_parallel(job->batch, block < 1 ? 1 : block > 4096 ? 4096 : (int64_t)block, run_range, job);
}

/* ---- LU ----------------------------------------------------------------------------------------------------- */

static PlStatus singular(const LaJob *job, int64_t b, LaInt at) {
  if (job->batch > 1)
    PL_FAIL(PL_ERR_ARG, "%s: matrix %lld of the batch is singular (pivot %d is zero)", job->call->name, (long long)b + 1, at);
  PL_FAIL(PL_ERR_ARG, "%s: the matrix is singular (pivot %d is zero)", job->call->name, at);
}

/* mem: 0 matrix, 1 pivots, 2 work. The transpose's inverse is the inverse's transpose. */
static PlStatus inv_one(const LaJob *job, int64_t b, void *const *mem) {
  PlArray *y = job->call->out[0];
  const LaInt n = job->n, lwork = la_max(1, n) * 64;
  LaInt info = 0;
  if (!plk_la_load(job, mem[0], job->call->in[0], b, false)) {
    plk_la_fill(y, b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  plk_la_lu(job, n, mem[0], mem[1], &info);
  if (info > 0) return singular(job, b, info);
  plk_la_lu_inverse(job, n, mem[0], mem[1], mem[2], lwork, &info);
  if (info > 0) return singular(job, b, info);
  plk_la_store(job, y, b, mem[0], n, false);
  return PL_OK;
}

static void lu_buffers(LaJob *job) {
  job->buffer[0] = la_bytes(job, job->n, job->n);
  job->buffer[1] = (size_t)la_max(1, job->n) * sizeof(LaInt);
}

PlStatus plk_cpu_inv(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  lu_buffers(&job);
  job.buffer[2] = la_bytes(&job, job.n, 64);
  job.one = inv_one;
  return plk_la_run(&job);
}

/* LAPACK sees aᵀ. a x = b: (aᵀ)ᵀ x = b with b in columns; x a = b: aᵀ xᵀ = bᵀ, and rows of b are columns of bᵀ. */
static PlStatus solve_one(const LaJob *job, int64_t b, void *const *mem) {
  const bool left = pl_attr_i(job->call->attrs, 0) != 0;
  const PlArray *rhs = job->call->in[1];
  const LaInt n = job->n, k = (LaInt)(left ? plk_la_cols(rhs) : plk_la_rows(rhs));
  LaInt info = 0;
  bool finite = plk_la_load(job, mem[0], job->call->in[0], b, false);
  finite &= plk_la_load(job, mem[2], rhs, b, left);
  if (!finite) {
    plk_la_fill(job->call->out[0], b, (double)NAN, (double)NAN);
    return PL_OK;
  }
  plk_la_lu(job, n, mem[0], mem[1], &info);
  if (info > 0) return singular(job, b, info);
  plk_la_lu_solve(job, left, n, k, mem[0], mem[1], mem[2]);
  plk_la_store(job, job->call->out[0], b, mem[2], n, left);
  return PL_OK;
}

PlStatus plk_cpu_solve(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  if (call->out[0]->numel == 0) return PL_OK;
  lu_buffers(&job);
  job.buffer[2] = la_bytes(&job, plk_la_rows(call->in[1]), plk_la_cols(call->in[1]));
  if (plk_la_rows(call->in[1]) > INT32_MAX || plk_la_cols(call->in[1]) > INT32_MAX)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: too many right-hand sides", call->name);
  job.one = solve_one;
  return plk_la_run(&job);
}

/* sign and log |det| of the factors at lu; zero pivots give 0 and -inf. */
static void lu_det(PlDtype d, const void *lu, const LaInt *pivots, LaInt n, double *sign, double *log_abs, double *det) {
  double s = 1, l = 0, p = 1;
  for (LaInt i = 0; i < n; i++) {
    const double u = la_get(lu, d, (int64_t)i * n + i);
    if (pivots[i] != i + 1) s = -s;
    if (u < 0) s = -s;
    else if (u == 0) s = 0;
    l += log(fabs(u));
    p *= pivots[i] != i + 1 ? -u : u;
  }
  *sign = s, *log_abs = l, *det = p;
}

/* det: 1 output; slogdet: sign and log. */
static PlStatus det_one(const LaJob *job, int64_t b, void *const *mem) {
  const LaInt n = job->n;
  LaInt info = 0;
  double sign = (double)NAN, log_abs = (double)NAN, det = (double)NAN;
  if (plk_la_load(job, mem[0], job->call->in[0], b, false)) {
    if (n > 0) plk_la_lu(job, n, mem[0], mem[1], &info); /* info > 0: a zero pivot, which is an answer */
    lu_det(job->dtype, mem[0], mem[1], n, &sign, &log_abs, &det);
  }
  PlArray *const *out = job->call->out;
  const double first = job->call->nout == 1 ? det : sign;
  if (out[0]) la_set(plk_la_at(out[0], b, 0), (PlDtype)out[0]->dtype, 0, first);
  if (job->call->nout > 1 && out[1]) la_set(plk_la_at(out[1], b, 0), (PlDtype)out[1]->dtype, 0, log_abs);
  return PL_OK;
}

PlStatus plk_cpu_det(const PlkCall *call) {
  LaJob job;
  PL_TRY(plk_la_begin(&job, call));
  lu_buffers(&job);
  job.one = det_one;
  return plk_la_run(&job);
}

PlStatus plk_cpu_slogdet(const PlkCall *call) { return plk_cpu_det(call); }
