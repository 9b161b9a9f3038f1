/* SPDX-License-Identifier: MIT
 * Batch norm of x[N, C] in f32 or f64 (batch_norm.c has the formulas): a tile of channels at a time, read in place. */
#include <math.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/norm/batch_norm.h"
#include "kernels/cpu/rows.h"

PLK_ISA_DECLARE(const PlkNormColumns, plk_norm_columns);

enum { COLS = 128 };
_Static_assert((int)COLS <= (int)PLK_SOFT_COLS, "the loops keep a sum a column");

typedef struct Columns {
  const PlkCall *c;
  const PlArray *x, *dy, *mean, *var, *w, *b;
  double eps;
  bool training, f64;
  int64_t N, C;
} Columns;

/* Values c0 … c0 + n of a channel array, or the same everywhere. */
static void get(const PlArray *a, int64_t c0, int64_t n, double otherwise, double *to) {
  if (a) plk_load(PLK_CF64, to, n, a->data, a->dtype, c0, 1, n, 1);
  else
    for (int64_t i = 0; i < n; i++) to[i] = otherwise;
}
static void put(PlArray *a, int64_t c0, int64_t n, const double *v) {
  if (a) plk_store(PLK_CF64, v, n, a->data, a->dtype, c0, 1, n, 1);
}
static void narrow(const double *v, int64_t n, float *to) {
  for (int64_t i = 0; i < n; i++) to[i] = (float)v[i];
}

static void moments(const Columns *k, int64_t c0, int64_t n, double *mean, double *var) {
  const PlkNormColumns *l = &PLK_ISA_PICK(plk_norm_columns);
  const double N = (double)k->N;
  float m[COLS];
  if (k->f64) {
    const double *x = (const double *)k->x->data + c0;
    l->sum_f64(x, k->C, k->N, n, mean);
    for (int64_t i = 0; i < n; i++) mean[i] /= N;
    l->sqdiff_f64(x, k->C, k->N, n, mean, var);
    for (int64_t i = 0; i < n; i++) var[i] /= N;
    return;
  }
  const float *x = (const float *)k->x->data + c0;
  l->sum_f32(x, k->C, k->N, n, mean);
  for (int64_t i = 0; i < n; i++) mean[i] /= N;
  narrow(mean, n, m);
  l->sqdiff_f32(x, k->C, k->N, n, m, var);
  for (int64_t i = 0; i < n; i++) { /* the mean was rounded */
    const double d = mean[i] - (double)m[i], v = var[i] / N - d * d;
    var[i] = v < 0 ? 0 : v;
  }
}

static PlStatus forward(void *ctx, int64_t begin, int64_t end) {
  const Columns *k = ctx;
  const PlkNormColumns *l = &PLK_ISA_PICK(plk_norm_columns);
  PlArray *y = k->c->out[0];
  for (int64_t t = begin; t < end; t++) {
    const int64_t c0 = t * COLS, n = k->C - c0 < COLS ? k->C - c0 : COLS;
    double mean[COLS], var[COLS], a[COLS], b[COLS];
    float m[COLS], af[COLS], bf[COLS];
    if (k->training) moments(k, c0, n, mean, var);
    else get(k->mean, c0, n, 0, mean), get(k->var, c0, n, 0, var);
    put(k->c->out[1], c0, n, mean);
    put(k->c->out[2], c0, n, var);
    if (!y) continue;
    get(k->w, c0, n, 1, a);
    get(k->b, c0, n, 0, b);
    for (int64_t i = 0; i < n; i++) a[i] /= sqrt(var[i] + k->eps);
    if (k->f64) {
      l->affine_f64((const double *)k->x->data + c0, k->C, k->N, n, mean, a, b, (double *)y->data + c0);
      continue;
    }
    narrow(mean, n, m), narrow(a, n, af), narrow(b, n, bf);
    l->affine_f32((const float *)k->x->data + c0, k->C, k->N, n, m, af, bf, (float *)y->data + c0);
  }
  return PL_OK;
}

static PlStatus backward(void *ctx, int64_t begin, int64_t end) {
  const Columns *k = ctx;
  const PlkNormColumns *l = &PLK_ISA_PICK(plk_norm_columns);
  PlArray *dx = k->c->out[0];
  const double N = (double)k->N;
  for (int64_t t = begin; t < end; t++) {
    const int64_t c0 = t * COLS, n = k->C - c0 < COLS ? k->C - c0 : COLS;
    double mean[COLS], rstd[COLS], s1[COLS], s2[COLS], a[COLS], b[COLS], add[COLS];
    float m[COLS], af[COLS], bf[COLS], addf[COLS];
    get(k->mean, c0, n, 0, mean);
    get(k->var, c0, n, 0, rstd);
    get(k->w, c0, n, 1, a);
    for (int64_t i = 0; i < n; i++) rstd[i] = 1 / sqrt(rstd[i] + k->eps), a[i] *= rstd[i];
    narrow(mean, n, m);
    if (k->f64) l->dots_f64((const double *)k->dy->data + c0, (const double *)k->x->data + c0, k->C, k->N, n, mean, s1, s2);
    else l->dots_f32((const float *)k->dy->data + c0, (const float *)k->x->data + c0, k->C, k->N, n, m, s1, s2);
    for (int64_t i = 0; i < n; i++) {
      b[i] = -a[i] * rstd[i] * rstd[i] * s2[i] / N;
      add[i] = k->training ? -a[i] * s1[i] / N : 0;
      s2[i] *= rstd[i];
    }
    put(k->c->out[1], c0, n, s2);
    put(k->c->out[2], c0, n, s1);
    if (!dx) continue;
    if (!k->training) { /* dx = a dy, whatever x is */
      for (int64_t i = 0; i < n; i++) mean[i] = 0, m[i] = 0;
      narrow(a, n, af), narrow(add, n, addf);
      if (k->f64) l->affine_f64((const double *)k->dy->data + c0, k->C, k->N, n, mean, a, add, (double *)dx->data + c0);
      else l->affine_f32((const float *)k->dy->data + c0, k->C, k->N, n, m, af, addf, (float *)dx->data + c0);
      continue;
    }
    if (k->f64) {
      l->affine2_f64((const double *)k->dy->data + c0, (const double *)k->x->data + c0, k->C, k->N, n, mean, a, b, add,
                     (double *)dx->data + c0);
      continue;
    }
    narrow(a, n, af), narrow(b, n, bf), narrow(add, n, addf);
    l->affine2_f32((const float *)k->dy->data + c0, (const float *)k->x->data + c0, k->C, k->N, n, m, af, bf, addf, (float *)dx->data + c0);
  }
  return PL_OK;
}

static bool plain(const PlArray *a, int dtype) { return !a || a->dtype == dtype; }

bool plk_batch_by_columns(const PlkCall *c, const PlArray *x, const PlArray *dy) {
  const PlArray *y = c->out[0];
  int64_t s = 1;
  for (int d = 2; d < x->ndim; d++) s *= x->shape[d];
  return s == 1 && x->ndim > 1 && x->numel > 0 && (x->dtype == PL_F32 || x->dtype == PL_F64) && plain(y, x->dtype) && plain(dy, x->dtype);
}

static PlStatus run(Columns *k, PlkBody body) {
  k->N = k->x->shape[0], k->C = k->x->shape[1], k->f64 = k->x->dtype == PL_F64;
  k->training = pl_attr_i(k->c->attrs, 0) != 0;
  return plk_parallel((k->C + COLS - 1) / COLS, PLK_GRAIN / (k->N * COLS) + 1, body, k);
}

PlStatus plk_batch_columns(const PlkCall *c) {
  Columns k = {.c = c, .x = c->in[0], .mean = c->in[1], .var = c->in[2], .w = c->in[3], .b = c->in[4], .eps = pl_attr_f(c->attrs, 1)};
  return run(&k, forward);
}

PlStatus plk_batch_columns_bwd(const PlkCall *c) {
  Columns k = {.c = c, .dy = c->in[0], .x = c->in[1], .mean = c->in[2], .var = c->in[3], .w = c->in[4], .eps = pl_attr_f(c->attrs, 2)};
  return run(&k, backward);
}
