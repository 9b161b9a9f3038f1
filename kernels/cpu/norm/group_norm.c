/* SPDX-License-Identifier: MIT
 * Group norm over x[N,C,S]: the channels of one group of one sample share mean and deviation. Batch norm:
 * batch_norm.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"
#include "kernels/norm.h"

typedef struct Chan {
  const PlkCall *c;
  const PlkNormLoops *loops;
  const PlArray *x, *w, *b;
  int64_t N, C, S, G;
  double eps;
  bool f64;
  PlkComp comp;
  double *part; /* [N][C][2] sums of dw and db */
} Chan;

static double get(const PlArray *a, int64_t i) {
  double v = 0;
  if (a) plk_load(PLK_CF64, &v, 1, a->data, a->dtype, i, 1, 1, 1);
  return v;
}
static void put(PlArray *a, int64_t i, double v) {
  if (a) plk_store(PLK_CF64, &v, 1, a->data, a->dtype, i, 1, 1, 1);
}
static inline double weight(const Chan *k, int64_t ch) { return k->w ? get(k->w, ch) : 1; }
static inline void *at(const Chan *k, void *p, int64_t i) { return p ? (char *)p + (size_t)i * plk_comp_size(k->comp) : NULL; }

static void moments(const Chan *k, const void *x, int64_t n, double *mean, double *m2) {
  if (k->f64) k->loops->moments_f64(x, n, true, mean, m2);
  else k->loops->moments_f32(x, n, true, mean, m2);
}
static void dots(const Chan *k, const void *dy, const void *x, double mean, int64_t n, double *s1, double *s2) {
  if (k->f64) k->loops->dots_f64(dy, x, mean, n, s1, s2);
  else k->loops->dots_f32(dy, x, (float)mean, n, s1, s2);
}
static void affine(const Chan *k, const void *x, double mean, double a, double c, void *y, int64_t n) {
  if (k->f64) k->loops->affine_f64(x, mean, a, c, y, n);
  else k->loops->affine_f32(x, (float)mean, (float)a, (float)c, y, n);
}
static void affine2(const Chan *k, const void *dy, const void *x, double mean, double a, double b, double c, void *dx, int64_t n) {
  if (k->f64) k->loops->affine2_f64(dy, x, mean, a, b, c, dx, n);
  else if (b != 0 && fabs(b) < 0x1p-126) /* of x far beyond 1, whose third power is no float */
    for (int64_t i = 0; i < n; i++)
      ((float *)dx)[i] = (float)(a * (double)((const float *)dy)[i] + b * ((double)((const float *)x)[i] - mean) + c);
  else k->loops->affine2_f32(dy, x, (float)mean, (float)a, (float)b, (float)c, dx, n);
}

static Chan chan_of(const PlkCall *c, const PlArray *x) {
  Chan k = {
      .c = c, .loops = plk_norm_loops(), .x = x, .comp = plk_comp(x->dtype), .N = x->shape[0], .C = x->ndim > 1 ? x->shape[1] : 0, .S = 1};
  for (int d = 2; d < x->ndim; d++) k.S *= x->shape[d];
  k.f64 = k.comp == PLK_CF64;
  return k;
}

/* Rows are groups of one sample, [C/G][S]. */

static PlStatus group_row(void *ctx, int64_t row, void *const *p) {
  const Chan *k = ctx;
  int64_t cg = k->C / k->G, n = cg * k->S, c0 = row % k->G * cg;
  double mean, m2;
  moments(k, p[0], n, &mean, &m2);
  double rstd = 1 / sqrt(m2 / (double)n + k->eps);
  for (int64_t j = 0; j < cg; j++)
    affine(k, at(k, p[0], j * k->S), mean, rstd * weight(k, c0 + j), k->b ? get(k->b, c0 + j) : 0, at(k, p[1], j * k->S), k->S);
  if (p[2]) *(double *)p[2] = mean;
  if (p[3]) *(double *)p[3] = rstd;
  return PL_OK;
}

PlStatus plk_cpu_group_norm(const PlkCall *c) {
  Chan k = chan_of(c, c->in[0]);
  k.w = c->in[1], k.b = c->in[2];
  k.G = pl_attr_i(c->attrs, 0), k.eps = pl_attr_f(c->attrs, 1);
  int64_t n = k.C / k.G * k.S;
  PlkRows r = {.outer = k.N * k.G, .inner = 1, .body = group_row, .ctx = &k};
  r.arg[r.narg++] = plk_row_arg(c->in[0], n, k.comp, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], n, k.comp, true);
  r.arg[r.narg++] = plk_row_arg(c->out[1], 1, PLK_CF64, true);
  r.arg[r.narg++] = plk_row_arg(c->out[2], 1, PLK_CF64, true);
  return plk_rows(&r);
}

/* With h = (x - mean) rstd, g = w dy:  dx = rstd (g - mean g - h mean(g h)); per channel the sums of dy and
 * of dy h give both the means and dw, db. */
static PlStatus group_bwd_row(void *ctx, int64_t row, void *const *p) {
  const Chan *k = ctx;
  int64_t cg = k->C / k->G, c0 = row % k->G * cg, n = cg * k->S;
  double mean = *(const double *)p[2], rstd = *(const double *)p[3], g = 0, gh = 0;
  for (int64_t j = 0; j < cg; j++) {
    double s1, s2, w = weight(k, c0 + j);
    dots(k, at(k, p[0], j * k->S), at(k, p[1], j * k->S), mean, k->S, &s1, &s2);
    g += w * s1, gh += w * s2;
    double *part = k->part + ((row / k->G) * k->C + c0 + j) * 2;
    part[0] = s2 * rstd, part[1] = s1;
  }
  if (!p[4]) return PL_OK;
  double b = -rstd * rstd * rstd * gh / (double)n, c = -rstd * g / (double)n;
  for (int64_t j = 0; j < cg; j++)
    affine2(k, at(k, p[0], j * k->S), at(k, p[1], j * k->S), mean, rstd * weight(k, c0 + j), b, c, at(k, p[4], j * k->S), k->S);
  return PL_OK;
}

PlStatus plk_cpu_group_norm_bwd(const PlkCall *c) {
  Chan k = chan_of(c, c->in[1]);
  k.w = c->in[4];
  k.G = pl_attr_i(c->attrs, 0);
  void *part;
  PL_TRY(plk_scratch((size_t)(k.N * k.C + 1) * 2 * sizeof(double), &part));
  k.part = part;
  int64_t n = k.C / k.G * k.S;
  PlkRows r = {.outer = k.N * k.G, .inner = 1, .body = group_bwd_row, .ctx = &k};
  for (int i = 0; i < 2; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], n, k.comp, false);
  for (int i = 2; i < 4; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], 1, PLK_CF64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], n, k.comp, true);
  PlStatus s = plk_rows(&r);
  for (int64_t ch = 0; s == PL_OK && ch < k.C; ch++) {
    double dw = 0, db = 0;
    for (int64_t i = 0; i < k.N; i++) dw += k.part[(i * k.C + ch) * 2], db += k.part[(i * k.C + ch) * 2 + 1];
    put(c->out[1], ch, dw);
    put(c->out[2], ch, db);
  }
  plk_scratch_free(part);
  return s;
}
