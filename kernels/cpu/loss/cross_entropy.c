/* SPDX-License-Identifier: MIT
 * Negative log-likelihood and cross entropy over rows of classes. With w the class weights, t the target,
 * e the label smoothing, W = sum w:
 *   nll:            l = -w_t x_t
 *   cross entropy:  l = (1-e) w_t (lse - x_t) + e/C sum_c w_c (lse - x_c),   lse = log sum exp x
 *   mean divides by the sum of w_t over the targets that are not ignored. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/loss/cross_entropy.h"
#include "kernels/loss.h"

PlStatus plk_class_target(const PlkClass *k, int64_t row, int64_t v, int64_t *t) {
  *t = -1;
  if (v == k->ignore) return PL_OK;
  if (v < k->base || (uint64_t)v - (uint64_t)k->base >= (uint64_t)k->n)
    PL_FAIL(PL_ERR_INDEX, "%s: target %lld at position %lld is not in %lld … %lld (the %lld classes of x)%s", k->c->name, (long long)v,
            (long long)(row + k->base), (long long)k->base, (long long)(k->base + k->n - 1), (long long)k->n,
            v == 0 && k->base == 1 ? "; classes count from 1, or pass index_base=0" : "");
  *t = v - k->base;
  return PL_OK;
}

static double first(const PlArray *a) {
  double v;
  plk_load(PLK_CF64, &v, 1, a->data, a->dtype, 0, 1, 1, 1);
  return v;
}

/* x: the array with the class dim; fills geometry, attributes, weights and per-row memory. */
static PlStatus start(PlkClass *k, const PlkCall *c, const PlArray *x, const PlArray *w, PlkRows *r) {
  int64_t dim = x->ndim > 1 ? 1 : 0;
  k->c = c, k->loops = plk_softmax_loops(), k->n = plk_dim_size(x, dim), k->heap = NULL, k->w = NULL;
  k->reduction = pl_attr_i(c->attrs, 0), k->ignore = pl_attr_i(c->attrs, 1), k->base = pl_attr_i(c->attrs, 2);
  k->smooth = 0, k->scale = 1, k->wsum = (double)k->n, k->f64 = x->dtype == PL_F64;
  *r = (PlkRows){.outer = plk_outer(x, dim), .inner = plk_inner(x, dim), .ctx = k, .cost = 2};
  k->rows = r->outer * r->inner;
  double *mem = k->few;
  if (k->rows > PLK_CLASS_FEW || w) {
    PL_TRY(plk_scratch((size_t)(2 * k->rows + k->n) * sizeof(double), &k->heap));
    mem = k->heap;
  }
  k->loss = mem, k->wt = mem + k->rows;
  if (w) {
    double *v = mem + 2 * k->rows;
    plk_load(PLK_CF64, v, k->n, w->data, w->dtype, 0, 1, k->n, 1);
    k->w = v, k->wsum = 0;
    for (int64_t i = 0; i < k->n; i++) k->wsum += v[i];
  }
  return PL_OK;
}

static double total(const double *v, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; i++) s += v[i];
  return s;
}

/* Writes the reduced loss; `none` was written by the rows. */
static void finish_in(const PlkClass *k, const double *each, double divisor, PlArray *out) {
  double v = total(each, k->rows);
  if (k->reduction == 0) return;
  if (k->reduction == 1) v /= divisor;
  plk_store(PLK_CF64, &v, 1, out->data, out->dtype, 0, 1, 1, 1);
}
static void finish(const PlkClass *k, double divisor) { finish_in(k, k->loss, divisor, k->c->out[0]); }

/* For backward: dy over the weights of all targets that count. */
static PlStatus find_scale(PlkClass *k, const PlArray *dy, const PlArray *target) {
  double sum = 0;
  if (k->reduction == 0) return PL_OK;
  for (int64_t i = 0; k->reduction == 1 && i < k->rows; i++) {
    int64_t v, t;
    plk_load(PLK_CI64, &v, 1, target->data, target->dtype, i, 1, 1, 1);
    PL_TRY(plk_class_target(k, i, v, &t));
    if (t >= 0) sum += plk_class_weight(k, t);
  }
  k->scale = k->reduction == 1 ? 1 / sum : 1;
  if (dy) k->scale *= first(dy);
  return PL_OK;
}

/* ---- nll ---------------------------------------------------------------------------------------- */

/* p: x, target, loss (none) */
static PlStatus nll_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  int64_t t;
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[1], &t));
  double x = t < 0 ? 0 : k->f64 ? ((const double *)p[0])[t] : (double)((const float *)p[0])[t];
  k->wt[row] = t < 0 ? 0 : plk_class_weight(k, t);
  k->loss[row] = t < 0 ? 0 : -x * k->wt[row];
  if (p[2]) *(double *)p[2] = k->loss[row];
  return PL_OK;
}

PlStatus plk_cpu_nll_loss(const PlkCall *c) {
  const PlArray *x = c->in[0];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[2], &r));
  r.body = nll_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, k.f64 ? PLK_CF64 : PLK_CF32, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  PlStatus s = plk_rows(&r);
  if (s == PL_OK) finish(&k, total(k.wt, k.rows));
  plk_scratch_free(k.heap);
  return s;
}

/* p: x, target, loss (none), v, tangent (none) */
static PlStatus nll_dual_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  int64_t t;
  PL_TRY(nll_row(ctx, row, p));
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[1], &t));
  k->tangent[row] = t < 0 ? 0 : -k->wt[row] * (k->f64 ? ((const double *)p[3])[t] : (double)((const float *)p[3])[t]);
  if (p[4]) *(double *)p[4] = k->tangent[row];
  return PL_OK;
}

PlStatus plk_cpu_nll_loss_with_tangent(const PlkCall *c) {
  const PlArray *x = c->in[0];
  double few[PLK_CLASS_FEW];
  void *heap = NULL;
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[2], &r));
  const PlkComp comp = k.f64 ? PLK_CF64 : PLK_CF32;
  PlStatus s = k.rows > PLK_CLASS_FEW ? plk_scratch((size_t)k.rows * sizeof(double), &heap) : PL_OK;
  k.tangent = heap ? heap : few;
  r.body = nll_dual_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(c->in[3], k.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[1] : NULL, 1, PLK_CF64, true);
  if (s == PL_OK) s = plk_rows(&r);
  if (s == PL_OK) {
    const double divisor = total(k.wt, k.rows);
    finish(&k, divisor);
    finish_in(&k, k.tangent, divisor, c->out[1]);
  }
  plk_scratch_free(heap);
  plk_scratch_free(k.heap);
  return s;
}

/* p: target, dx, dy (none) */
static PlStatus nll_bwd_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  int64_t t;
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[0], &t));
  memset(p[1], 0, (size_t)k->n * (k->f64 ? 8 : 4));
  if (t < 0) return PL_OK;
  double v = -plk_class_weight(k, t) * (p[2] ? *(const double *)p[2] : k->scale);
  if (k->f64) ((double *)p[1])[t] = v;
  else ((float *)p[1])[t] = (float)v;
  return PL_OK;
}

PlStatus plk_cpu_nll_loss_bwd(const PlkCall *c) {
  PlArray *dx = c->out[0];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, dx, c->in[2], &r));
  PlStatus s = find_scale(&k, c->in[0], c->in[1]);
  r.body = nll_bwd_row;
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(dx, k.n, k.f64 ? PLK_CF64 : PLK_CF32, true);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->in[0] : NULL, 1, PLK_CF64, false);
  if (s == PL_OK) s = plk_rows(&r);
  plk_scratch_free(k.heap);
  return s;
}

/* ---- cross entropy -------------------------------------------------------------------------------- */

enum { CE_ROWS = 64 /* whose sums are taken together */ };

static inline double value(const PlkClass *k, const void *x, int64_t i) {
  return k->f64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* lse, the log-sum-exp of a row, is max + log. lse - x is taken as (max - x) + log: beside a large max log would be rounded away. */
typedef struct Lse {
  double max, log;
} Lse;
/* Of rows that follow each other. */
static void lse_of(const PlkClass *k, const void *x, int64_t rows, Lse *lse) {
  double sum[CE_ROWS], max[CE_ROWS];
  if (k->f64) {
    k->loops->lse_f64(x, k->n, rows, max, sum);
    for (int64_t r = 0; r < rows; r++) lse[r] = (Lse){max[r], log(sum[r])};
    return;
  }
  float m[CE_ROWS];
  k->loops->lse_f32(x, k->n, rows, m, sum);
  k->loops->log(sum, rows);
  for (int64_t r = 0; r < rows; r++) lse[r] = (Lse){(double)m[r], sum[r]};
}
static double above(Lse l, double x) { return (l.max - x) + l.log; }

/* Softmax of a row is e^(x - shift) / the result. A small lse that forward kept is good enough as the shift (1 is returned). Beyond
 * PLK_LSE_FAR the place where it was rounded, in the loss' dtype, is seen in every quotient: an lse of 1e5 in f32 is 0.004 off, and at 1e8 log C
 * is gone. There the row's greatest entry is the shift, which is exact. */
static double soften(const PlkClass *k, const void *x, double lse, double *shift) {
  double sum = 1;
  *shift = lse;
  if (!plk_class_far(lse)) return 1;
  if (k->f64) k->loops->lse_f64(x, k->n, 1, shift, &sum);
  else {
    float m;
    k->loops->lse_f32(x, k->n, 1, &m, &sum);
    *shift = (double)m;
  }
  return sum;
}

static double ce_loss(const PlkClass *k, const void *x, int64_t row, int64_t t, Lse lse) {
  k->wt[row] = t < 0 ? 0 : plk_class_weight(k, t);
  if (t < 0) return 0;
  double loss = (1 - k->smooth) * k->wt[row] * above(lse, value(k, x, t));
  if (k->smooth > 0) {
    double s = 0;
    for (int64_t i = 0; i < k->n; i++) s += plk_class_weight(k, i) * above(lse, value(k, x, i));
    loss += k->smooth / (double)k->n * s;
  }
  return loss;
}

/* p: x, target, loss (none), lse */
static PlStatus ce_rows(void *ctx, int64_t row, int64_t rows, void *const *p) {
  const PlkClass *k = ctx;
  const int64_t *target = p[1];
  for (int64_t r = 0; r < rows; r += CE_ROWS) {
    Lse lse[CE_ROWS];
    const int64_t m = rows - r < CE_ROWS ? rows - r : CE_ROWS;
    const size_t size = (size_t)k->n * (k->f64 ? sizeof(double) : sizeof(float));
    const char *x = (const char *)p[0] + (size_t)r * size;
    lse_of(k, x, m, lse);
    for (int64_t i = r; i < r + m; i++, x += size) {
      int64_t t;
      PL_TRY(plk_class_target(k, row + i, target[i], &t));
      k->loss[row + i] = ce_loss(k, x, row + i, t, lse[i - r]);
      if (p[2]) ((double *)p[2])[i] = k->loss[row + i];
      if (p[3]) ((double *)p[3])[i] = lse[i - r].max + lse[i - r].log;
    }
  }
  return PL_OK;
}

PlStatus plk_cpu_cross_entropy(const PlkCall *c) {
  const PlArray *x = c->in[0];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[2], &r));
  k.smooth = pl_attr_f(c->attrs, 3);
  if (plk_class_by_columns(&k, &r, c->in[1])) {
    PlStatus status = plk_class_columns(&k, &r, c->in[1]);
    if (status == PL_OK) finish(&k, total(k.wt, k.rows));
    plk_scratch_free(k.heap);
    return status;
  }
  r.many = ce_rows;
  r.arg[r.narg++] = plk_row_arg(x, k.n, k.f64 ? PLK_CF64 : PLK_CF32, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(c->out[1], 1, PLK_CF64, true);
  PlStatus s = plk_rows(&r);
  if (s == PL_OK) finish(&k, total(k.wt, k.rows));
  plk_scratch_free(k.heap);
  return s;
}

/* With q = softmax x and K = (1-e) w_t + e/C W:  t = K <q, v> - (1-e) w_t v_t - e/C <w, v>. Where q_t is next to 1 the first two are
 * nearly the same: v - v_t is taken for v, which changes nothing else.
 * p: x, target, v, loss (none), lse, t (none) */
static PlStatus ce_dual_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  int64_t t;
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[1], &t));
  double sum, dot, m, loss = 0, tangent = 0;
  const double own = t < 0 ? 0 : value(k, p[2], t);
  if (k->f64) k->loops->lse_dual_f64(p[0], p[2], own, k->n, &m, &sum, &dot);
  else {
    float f;
    k->loops->lse_dual_f32(p[0], p[2], (float)own, k->n, &f, &sum, &dot);
    m = (double)f;
  }
  double logarithm = sum;
  if (k->f64) logarithm = log(sum);
  else k->loops->log(&logarithm, 1);
  const Lse lse = {m, logarithm};
  k->wt[row] = t < 0 ? 0 : plk_class_weight(k, t);
  if (t >= 0) {
    const double hit = (1 - k->smooth) * k->wt[row], e = k->smooth / (double)k->n;
    loss = hit * above(lse, value(k, p[0], t));
    tangent = (hit + e * k->wsum) * (dot / sum);
    if (k->smooth > 0) {
      double s = 0, wv = 0;
      for (int64_t i = 0; i < k->n; i++) {
        s += plk_class_weight(k, i) * above(lse, value(k, p[0], i));
        wv += plk_class_weight(k, i) * (value(k, p[2], i) - own);
      }
      loss += k->smooth / (double)k->n * s;
      tangent -= e * wv;
    }
  }
  k->loss[row] = loss;
  k->tangent[row] = tangent;
  if (p[3]) *(double *)p[3] = loss;
  if (p[4]) *(double *)p[4] = lse.max + lse.log;
  if (p[5]) *(double *)p[5] = tangent;
  return PL_OK;
}

PlStatus plk_cpu_cross_entropy_dual(const PlkCall *c) {
  const PlArray *x = c->in[0];
  double few[PLK_CLASS_FEW];
  void *heap = NULL;
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[3], &r));
  k.smooth = pl_attr_f(c->attrs, 3);
  k.tangent = few;
  const PlkComp comp = k.f64 ? PLK_CF64 : PLK_CF32;
  PlStatus s = k.rows > PLK_CLASS_FEW ? plk_scratch((size_t)k.rows * sizeof(double), &heap) : PL_OK;
  if (heap) k.tangent = heap;
  r.body = ce_dual_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[2], k.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(c->out[1], 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[2] : NULL, 1, PLK_CF64, true);
  if (s == PL_OK) s = plk_rows(&r);
  if (s == PL_OK) {
    const double divisor = total(k.wt, k.rows);
    finish(&k, divisor);
    finish_in(&k, k.tangent, divisor, c->out[2]);
  }
  plk_scratch_free(heap);
  plk_scratch_free(k.heap);
  return s;
}

/* dx_c = s (K q_c - (1-e) w_t [c = t] - e/C w_c),  K = (1-e) w_t + e/C W,  q_c = e^(x_c - lse). Where q_t is next to 1 what is left of
 * K q_t - (1-e) w_t would be rounding alone: there q_t - 1 is minus the sum of the others, and dx_t = s e/C (W - w_t) - s K sum q.
 * p: x, target, lse, dx, dy */
static PlStatus ce_bwd_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  int64_t t;
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[1], &t));
  if (t < 0) {
    memset(p[3], 0, (size_t)k->n * (k->f64 ? 8 : 4));
    return PL_OK;
  }
  double s = p[4] ? *(const double *)p[4] : k->scale, lse = *(const double *)p[2], e = k->smooth / (double)k->n;
  double hit = (1 - k->smooth) * plk_class_weight(k, t), K = hit + e * k->wsum, shift;
  const double sum = soften(k, p[0], lse, &shift);
  if (k->f64) {
    double *dx = p[3];
    k->loops->exp_f64(p[0], shift, s * K / sum, dx, k->n);
    const bool likely = fabs(dx[t]) > 0.5 * fabs(s * K);
    const double rest = likely ? k->loops->sum_f64(dx, t) + k->loops->sum_f64(dx + t + 1, k->n - t - 1) : 0;
    for (int64_t i = 0; e > 0 && i < k->n; i++) dx[i] -= s * e * plk_class_weight(k, i);
    if (likely) dx[t] = s * e * (k->wsum - plk_class_weight(k, t)) - rest;
    else dx[t] -= s * hit;
  } else {
    float *dx = p[3];
    k->loops->exp_f32(p[0], (float)shift, (float)(s * K / sum), dx, k->n);
    const bool likely = fabs((double)dx[t]) > 0.5 * fabs(s * K);
    const double rest = likely ? k->loops->sum_f32(dx, t) + k->loops->sum_f32(dx + t + 1, k->n - t - 1) : 0;
    for (int64_t i = 0; e > 0 && i < k->n; i++) dx[i] -= (float)(s * e * plk_class_weight(k, i));
    if (likely) dx[t] = (float)(s * e * (k->wsum - plk_class_weight(k, t)) - rest);
    else dx[t] -= (float)(s * hit);
  }
  return PL_OK;
}

PlStatus plk_cpu_cross_entropy_bwd(const PlkCall *c) {
  const PlArray *x = c->in[1];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[4], &r));
  k.smooth = pl_attr_f(c->attrs, 3);
  PlkComp comp = k.f64 ? PLK_CF64 : PLK_CF32;
  PlStatus s = find_scale(&k, c->in[0], c->in[2]);
  if (s == PL_OK && plk_class_by_columns(&k, &r, c->in[2])) {
    s = plk_class_columns_bwd(&k, &r);
    plk_scratch_free(k.heap);
    return s;
  }
  r.body = ce_bwd_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->in[2], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[3], 1, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], k.n, comp, true);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->in[0] : NULL, 1, PLK_CF64, false);
  if (s == PL_OK) s = plk_rows(&r);
  plk_scratch_free(k.heap);
  return s;
}

/* With q = softmax x:  ddy = sum_c v_c dx_c / dy,  dx_c = s K q_c (v_c - sum q v). v is taken from that of the likeliest class on,
 * beside whose q the others are small. The log-sum-exp that was kept, a rounded number, is not read.
 * p: x, target, v, dx, ddy (none), dy (none); all double. */
static PlStatus ce_bwd2_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  const double *x = p[0], *v = p[2];
  double *dx = p[3], sum = 0, qv = 0, wv = 0, e = k->smooth / (double)k->n;
  int64_t t;
  PL_TRY(plk_class_target(k, row, *(const int64_t *)p[1], &t));
  double hit = t < 0 ? 0 : (1 - k->smooth) * plk_class_weight(k, t), K = t < 0 ? 0 : hit + e * k->wsum;
  double s = p[5] ? *(const double *)p[5] : k->scale;
  int64_t top = 0;
  for (int64_t i = 1; i < k->n; i++) top = x[i] > x[top] || x[top] != x[top] ? i : top;
  const double own = v[top];
  for (int64_t i = 0; i < k->n; i++) {
    const double q = exp(x[i] - x[top]);
    sum += q, qv += q * (v[i] - own), wv += plk_class_weight(k, i) * (v[i] - own);
  }
  qv /= sum;
  double d = t < 0 ? 0 : K * qv + hit * (own - v[t]) - e * wv;
  k->loss[row] = d;
  if (p[4]) *(double *)p[4] = d;
  for (int64_t i = 0; dx && i < k->n; i++) dx[i] = t < 0 ? 0 : s * K * (exp(x[i] - x[top]) / sum) * (v[i] - own - qv);
  return PL_OK;
}

PlStatus plk_cpu_cross_entropy_bwd2(const PlkCall *c) {
  const PlArray *x = c->in[1];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[5], &r));
  k.smooth = pl_attr_f(c->attrs, 3);
  PlStatus s = find_scale(&k, NULL, c->in[2]);
  double per_dy = k.scale;
  if (k.reduction != 0) k.scale *= first(c->in[0]);
  r.body = ce_bwd2_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[2], 1, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[4], k.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[1], k.n, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->in[0] : NULL, 1, PLK_CF64, false);
  if (s == PL_OK) s = plk_rows(&r);
  if (s == PL_OK && c->out[0] && k.reduction != 0) {
    double v = total(k.loss, k.rows) * per_dy;
    plk_store(PLK_CF64, &v, 1, c->out[0]->data, c->out[0]->dtype, 0, 1, 1, 1);
  }
  plk_scratch_free(k.heap);
  return s;
}

/* ---- target probabilities: l = sum_c w_c ((1-e) t_c + e/C) (lse - x_c) --------------------------------- */

static PlStatus prob_row(void *ctx, int64_t row, void *const *p) {
  const PlkClass *k = ctx;
  const double *x = p[0], *t = p[1], e = k->smooth / (double)k->n;
  double m, sum, loss = 0;
  k->loops->lse_f64(x, k->n, 1, &m, &sum);
  const Lse lse = {m, log(sum)};
  for (int64_t i = 0; i < k->n; i++) loss += plk_class_weight(k, i) * ((1 - k->smooth) * t[i] + e) * above(lse, x[i]);
  k->loss[row] = loss;
  if (p[2]) *(double *)p[2] = loss;
  return PL_OK;
}

PlStatus plk_cpu_cross_entropy_prob(const PlkCall *c) {
  const PlArray *x = c->in[0];
  PlkClass k;
  PlkRows r;
  PL_TRY(start(&k, c, x, c->in[2], &r));
  k.smooth = pl_attr_f(c->attrs, 1);
  r.body = prob_row;
  r.arg[r.narg++] = plk_row_arg(x, k.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->in[1], k.n, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(k.reduction == 0 ? c->out[0] : NULL, 1, PLK_CF64, true);
  PlStatus s = plk_rows(&r);
  if (s == PL_OK) finish(&k, (double)k.rows);
  plk_scratch_free(k.heap);
  return s;
}
