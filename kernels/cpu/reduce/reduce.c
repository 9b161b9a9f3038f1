/* SPDX-License-Identifier: MIT
 * Reductions over any set of dims, by plk_reduce_run (reduce_run.c): what each op of the family maps,
 * combines and does at the end. Also sum_to, vector norms, variance and standard deviation. */
#include "kernels/reduce.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/shape/strided_copy.h"

uint32_t plk_reduce_mask(const PlkCall *c, int k) {
  if (!pl_attr_has(c->attrs, k)) return ~0u;
  int n = pl_attr_n(c->attrs, k);
  const int64_t *d = pl_attr_list(c->attrs, k);
  uint32_t mask = n == 0 ? ~0u : 0;
  for (int i = 0; i < n; i++) mask |= 1u << d[i];
  return mask;
}

PlStatus plk_reduce_greatest(const PlkCall *c, uint32_t mask, double *m) {
  const PlkReduceJob job = {.x = c->in[0], .mask = mask, .core = PLK_CORE_MAX, .comp = plk_comp(c->in[0]->dtype), .to = m};
  PL_TRY(plk_reduce_run(&job));
  for (int64_t i = 0; i < c->out[0]->numel; i++)
    if (isinf(m[i])) m[i] = 0;
  return PL_OK;
}

PlkReduceJob plk_reduce_exps(const PlkCall *c, uint32_t mask, const double *max) {
  return (PlkReduceJob){.x = c->in[0],
                        .mask = mask,
                        .core = PLK_CORE_SUM,
                        .pre = PLK_PRE_EXPDIFF,
                        .aux = max,
                        .comp = plk_comp(c->in[0]->dtype) == PLK_CF32 ? PLK_CF32 : PLK_CF64,
                        .post = PLK_POST_LOG,
                        .out = c->out[0]};
}

static PlStatus logsumexp(const PlkCall *c, uint32_t mask) {
  void *max;
  PL_TRY(plk_scratch((size_t)(c->out[0]->numel ? c->out[0]->numel : 1) * sizeof(double), &max));
  PlStatus s = plk_reduce_greatest(c, mask, max);
  const PlkReduceJob job = plk_reduce_exps(c, mask, max);
  if (s == PL_OK) s = plk_reduce_run(&job);
  plk_scratch_free(max);
  return s;
}

PlStatus plk_cpu_reduce(const PlkCall *c) {
  const PlArray *x = c->in[0];
  PlkReduceJob job = {.x = x, .mask = plk_reduce_mask(c, 0), .out = c->out[0], .comp = plk_comp(c->out[0]->dtype)};
  switch (c->code) {
  case PLK_R_MEAN: job.post = PLK_POST_MEAN; break;
  case PLK_R_PROD:
    job.core = PLK_CORE_PROD;
    if (job.comp == PLK_CF32) job.comp = PLK_CF64;
    break;
  case PLK_R_AMAX: job.core = PLK_CORE_MAX; break;
  case PLK_R_AMIN: job.core = PLK_CORE_MIN; break;
  case PLK_R_ANY:
  case PLK_R_ALL:
  case PLK_R_COUNT:
    job.comp = PLK_CI64;
    job.pre = PLK_PRE_NONZERO;
    job.core = c->code == PLK_R_ANY ? PLK_CORE_MAX : c->code == PLK_R_ALL ? PLK_CORE_MIN : PLK_CORE_SUM;
    job.boolean = c->code != PLK_R_COUNT;
    break;
  case PLK_R_NANSUM:
    if (job.comp != PLK_CI64) job.comp = PLK_CF64, job.pre = PLK_PRE_NAN0;
    break;
  case PLK_R_LOGSUMEXP: return logsumexp(c, job.mask);
  default: break;
  }
  return plk_reduce_run(&job);
}

/* Dimensions of x that the output lacks, or has as 1, are reduced. */
PlStatus plk_cpu_sum_to(const PlkCall *c) {
  const PlArray *x = c->in[0], *y = c->out[0];
  uint32_t mask = 0;
  int lead = x->ndim - y->ndim;
  for (int d = 0; d < x->ndim; d++)
    if (d < lead || (y->shape[d - lead] == 1 && x->shape[d] != 1)) mask |= 1u << d;
  if (x->numel == y->numel) { /* gradient makers ask also where nothing was broadcast */
    PlkNd w = {.n = 0};
    int64_t to[PL_MAX_DIM];
    plk_nd_strides(x->ndim, x->shape, to);
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(&w, x->shape[d], to[d], x->strides[d]);
    return plk_nd_cast(y->data, (PlDtype)y->dtype, x->data, (PlDtype)x->dtype, &w);
  }
  PlkReduceJob job = {.x = x, .mask = mask, .out = c->out[0], .comp = plk_comp(y->dtype)};
  return plk_reduce_run(&job);
}

/* Norms from least to most: elsewhere sums of |x|^p left the range of doubles, or lost digits at its end, or were 0. */
typedef struct Reach {
  double least, most;
} Reach;
static Reach reach_of(double p) {
  const double most = exp2(960 / fabs(p)); /* infinite for small p */
  return (Reach){fmax(1 / most, DBL_TRUE_MIN), fmin(most, DBL_MAX)};
}
static bool left(double v, Reach r) { return (v < r.least) | (v > r.most); } /* false of NaN */
static double result(const PlkCall *c, int64_t i) {
  double v;
  plk_load(PLK_CF64, &v, 1, c->out[0]->data, c->out[0]->dtype, i, 1, 1, 1);
  return v;
}
bool plk_norm_left(const PlkCall *c, double p) {
  const int dtype = c->in[0]->dtype, bits = dtype == PL_F64 ? 1074 : dtype == PL_F16 ? 24 : 149; /* 2^±bits is what an x may be */
  if (p == 0 || p == 1 || isinf(p) || fabs(p) * bits <= 960 || c->in[0]->numel == 0) return false;
  const Reach r = reach_of(p);
  const PlArray *y = c->out[0];
  bool any = false;
  for (int64_t at = 0; at < y->numel; at += PLK_PIECE) {
    double v[PLK_PIECE];
    const int64_t n = plk_piece_size(at, y->numel);
    plk_load(PLK_CF64, v, n, y->data, y->dtype, at, 1, n, 1);
    for (int64_t i = 0; i < n; i++) any |= left(v[i], r);
  }
  return any;
}

/* Such norms again: of x / m, times m, the largest magnitude (the smallest for p < 0). m of 0 or infinite: as they are. */
static PlStatus norm_scaled(const PlkCall *c, double p) {
  const int64_t n = c->out[0]->numel;
  void *room;
  PL_TRY(plk_scratch(2 * (size_t)n * sizeof(double), &room));
  double *m = room, *to = m + n;
  const uint32_t mask = plk_reduce_mask(c, 1);
  const Reach r = reach_of(p);
  const PlkReduceJob greatest = {
      .x = c->in[0], .mask = mask, .core = p > 0 ? PLK_CORE_MAX : PLK_CORE_MIN, .pre = PLK_PRE_ABS, .comp = PLK_CF64, .to = m};
  const PlkReduceJob job = {
      .x = c->in[0], .mask = mask, .comp = PLK_CF64, .pre = PLK_PRE_POW, .post = PLK_POST_ROOT, .p = p, .aux = m, .to = to};
  PlStatus s = plk_reduce_run(&greatest);
  bool any = false;
  for (int64_t i = 0; s == PL_OK && i < n; i++) {
    const bool again = m[i] != 0 && isfinite(m[i]) && left(result(c, i), r);
    if (!again) m[i] = (double)NAN; /* stays */
    any = any || again;
  }
  if (s == PL_OK && any) s = plk_reduce_run(&job);
  for (int64_t i = 0; s == PL_OK && i < n; i++)
    if (m[i] == m[i]) to[i] *= m[i], plk_store(PLK_CF64, to + i, 1, c->out[0]->data, c->out[0]->dtype, i, 1, 1, 1);
  plk_scratch_free(room);
  return s;
}

/* (sum |x|^p)^(1/p); p = inf, -inf: max and min of |x|; p = 0: how many are not 0. */
PlStatus plk_cpu_norm(const PlkCall *c) {
  double p = pl_attr_f(c->attrs, 0);
  PlkReduceJob job = {.x = c->in[0], .mask = plk_reduce_mask(c, 1), .out = c->out[0], .comp = PLK_CF64, .pre = PLK_PRE_POW, .p = p};
  if (p == 2) job.pre = PLK_PRE_SQUARE, job.post = PLK_POST_SQRT;
  else if (p == 1) job.pre = PLK_PRE_ABS;
  else if (p == 0) job.pre = PLK_PRE_NONZERO;
  else if (isinf(p)) job.pre = PLK_PRE_ABS, job.core = p > 0 ? PLK_CORE_MAX : PLK_CORE_MIN, job.zero_empty = p > 0;
  else job.post = PLK_POST_ROOT;
  PL_TRY(plk_reduce_run(&job));
  return plk_norm_left(c, p) ? norm_scaled(c, p) : PL_OK;
}

/* The mean is that of x - c, plus c: c = 0 where doubles hold sums of x exactly, else the mean as it comes. So elements that are all equal
 * have a variance of 0, and not rounding errors whose root a standardized column would be divided by. */
PlStatus plk_reduce_means(const PlkCall *c, uint32_t mask, double *mean, double *about) {
  const size_t outs = (size_t)(c->out[0]->numel ? c->out[0]->numel : 1);
  PlkReduceJob job = {.x = c->in[0], .mask = mask, .comp = PLK_CF64, .post = PLK_POST_MEAN, .to = about};
  if (c->in[0]->dtype == PL_F64) PL_TRY(plk_reduce_run(&job));
  else memset(about, 0, outs * sizeof(double));
  job.pre = PLK_PRE_DIFF, job.aux = about, job.to = mean;
  PL_TRY(plk_reduce_run(&job));
  for (int64_t i = 0; i < c->out[0]->numel; i++) mean[i] = isfinite(about[i]) ? about[i] + mean[i] : about[i];
  return PL_OK;
}

PlkReduceJob plk_reduce_variances(const PlkCall *c, uint32_t mask, const double *mean) {
  return (PlkReduceJob){.x = c->in[0],
                        .mask = mask,
                        .comp = PLK_CF64,
                        .pre = PLK_PRE_SQDIFF,
                        .aux = mean,
                        .post = c->code ? PLK_POST_STD : PLK_POST_VAR,
                        .p = pl_attr_f(c->attrs, 1),
                        .out = c->out[0]};
}

/* sum (x - mean)^2 / max(0, n - correction) in double. */
PlStatus plk_cpu_var(const PlkCall *c) {
  const int64_t outs = c->out[0]->numel ? c->out[0]->numel : 1;
  const uint32_t mask = plk_reduce_mask(c, 0);
  void *room;
  PL_TRY(plk_scratch(2 * (size_t)outs * sizeof(double), &room));
  double *mean = room;
  PlStatus s = plk_reduce_means(c, mask, mean, mean + outs);
  const PlkReduceJob job = plk_reduce_variances(c, mask, mean);
  if (s == PL_OK) s = plk_reduce_run(&job);
  plk_scratch_free(room);
  return s;
}

/* ---- gradients of prod ----------------------------------------------------------------------------
 * Rows of the reduced dim: L_j = prod of x before j, R_j = prod of x after j; zeros need no care.
 *   bwd:  dx_j = dy L_j R_j; of NaN and without a zero NaN, as PyTorch has it
 *   bwd2: with v the gradient of dx: dL_j and dR_j are the derivatives of L and R in direction v;
 *         result_j = dy (dL_j R_j + L_j dR_j). */
static PlStatus prod_bwd_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = *(const int64_t *)ctx;
  const double *x = p[0];
  double *dx = p[2], left = p[1] ? *(const double *)p[1] : 1, right = 1;
  bool zero = false;
  for (int64_t j = 0; j < n; j++) {
    dx[j] = left, left *= x[j];
    zero |= x[j] == 0;
  }
  if (zero || left == left || n == 1)
    for (int64_t j = n; j-- > 0;) dx[j] *= right, right *= x[j];
  else
    for (int64_t j = 0; j < n; j++) dx[j] = left / x[j];
  return PL_OK;
}

static PlStatus prod_bwd2_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  int64_t n = *(const int64_t *)ctx;
  const double *x = p[0], dy = *(const double *)p[1], *v = p[2];
  double *out = p[3], *l = p[4], *dl = l + n, a = 1, da = 0;
  for (int64_t j = 0; j < n; j++) {
    l[j] = a, dl[j] = da;
    da = da * x[j] + a * v[j], a *= x[j];
  }
  a = 1, da = 0;
  for (int64_t j = n; j-- > 0;) {
    out[j] = dy * (dl[j] * a + l[j] * da);
    da = da * x[j] + a * v[j], a *= x[j];
  }
  return PL_OK;
}

/* Attribute 0: the dim, none for all. Inputs x, dy? (and v); dy has the reduced shape, with or without 1s. */
static PlStatus prod_rows(const PlkCall *c, PlStatus (*body)(void *, int64_t, void *const *), bool second) {
  const PlArray *x = c->in[0];
  bool all = !pl_attr_has(c->attrs, 0);
  int64_t dim = all ? 0 : pl_attr_i(c->attrs, 0), n = all ? x->numel : plk_dim_size(x, dim);
  PlkRows r = {.outer = all ? 1 : plk_outer(x, dim), .inner = all ? 1 : plk_inner(x, dim), .body = body, .ctx = &n};
  r.arg[r.narg++] = plk_row_arg(x, n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CF64, false);
  if (second) {
    r.arg[r.narg++] = plk_row_arg(c->in[2], n, PLK_CF64, false);
    r.temp = 2 * (size_t)n * sizeof(double);
  }
  r.arg[r.narg++] = plk_row_arg(c->out[0], n, PLK_CF64, true);
  return plk_rows(&r);
}

PlStatus plk_cpu_prod_bwd(const PlkCall *c) { return prod_rows(c, prod_bwd_row, false); }
PlStatus plk_cpu_prod_bwd2(const PlkCall *c) { return prod_rows(c, prod_bwd2_row, true); }

/* ---- tangents ---------------------------------------------------------------------------------------- */

typedef struct Tangent {
  int64_t n;
  bool prod, nan;
} Tangent;

#define TANGENT_ROW(T, sfx)                                                              \
  static PlStatus tangent_row_##sfx(void *ctx, int64_t row, void *const *p) {            \
    const Tangent *g = ctx;                                                              \
    const T *x = p[0], *y = p[1], *v = p[2];                                             \
    double count;                                                                        \
    (void)row;                                                                           \
    if (g->prod) *(T *)p[3] = (T)plk_reduce_loops()->prod_tangent_##sfx(x, v, g->n);     \
    else {                                                                               \
      const double sum = plk_reduce_loops()->hits_##sfx(x, v, *y, g->nan, g->n, &count); \
      *(T *)p[3] = (T)(sum / count);                                                     \
    }                                                                                    \
    return PL_OK;                                                                        \
  }
TANGENT_ROW(float, f32)
TANGENT_ROW(double, f64)

/* Rows of x, y, v and t along attribute 0. */
static PlStatus tangent_rows(const PlkCall *c, Tangent g) {
  const PlArray *x = c->in[0];
  const bool all = !pl_attr_has(c->attrs, 0);
  const int64_t dim = all ? 0 : pl_attr_i(c->attrs, 0);
  const PlkComp comp = plk_comp(x->dtype);
  g.n = all ? x->numel : plk_dim_size(x, dim);
  PlkRows r = {.outer = all ? 1 : plk_outer(x, dim),
               .inner = all ? 1 : plk_inner(x, dim),
               .body = comp == PLK_CF32 ? tangent_row_f32 : tangent_row_f64,
               .ctx = &g};
  r.arg[r.narg++] = plk_row_arg(x, g.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->in[2], g.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], 1, comp, true);
  return plk_rows(&r);
}

PlStatus plk_cpu_prod_tangent(const PlkCall *c) { return tangent_rows(c, (Tangent){.prod = true}); }
PlStatus plk_cpu_extreme_tangent(const PlkCall *c) { return tangent_rows(c, (Tangent){.nan = pl_attr_i(c->attrs, 1) != 0}); }
