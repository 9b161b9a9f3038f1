/* SPDX-License-Identifier: MIT
 * Batch norm over x[N,C,S]: all numbers of a channel share mean and deviation. f32 and f64 are read in
 * place, N runs of S numbers; halves, and runs too short for vectors, are gathered into one run first. */
#include <math.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/norm/batch_norm.h"
#include "kernels/cpu/rows.h"
#include "kernels/norm.h"

PLK_ISA_DECLARE(const PlkChannelLoops, plk_channel_table);

enum { CHANNELS = 16, SHORT = 8 }; /* channels gathered together, so that lines of [N,C] are used whole */

typedef struct Batch {
  const PlkCall *c;
  const PlkChannelLoops *loops;
  const PlArray *x, *dy, *w, *b, *mean, *var;
  int64_t N, C, S;
  double eps;
  bool training, f64, direct;
  PlkComp comp;
} Batch;

/* A channel as the loops take it. */
typedef struct Runs {
  int64_t runs, step, n;
} Runs;

static double get(const PlArray *a, int64_t i) {
  double v = 0;
  if (a) plk_load(PLK_CF64, &v, 1, a->data, a->dtype, i, 1, 1, 1);
  return v;
}
static void put(PlArray *a, int64_t i, double v) {
  if (a) plk_store(PLK_CF64, &v, 1, a->data, a->dtype, i, 1, 1, 1);
}
static inline double weight(const Batch *k, int64_t ch) { return k->w ? get(k->w, ch) : 1; }
static inline char *at(const Batch *k, const void *p, int64_t i) { return (char *)(uintptr_t)p + (size_t)i * plk_comp_size(k->comp); }

static void moments(const Batch *k, const void *x, Runs r, double *mean, double *m2) {
  const double m = (double)(r.runs * r.n);
  double mu, d, s;
  if (k->f64) {
    mu = k->loops->sum_f64(x, r.runs, r.step, r.n) / m, d = 0;
    s = k->loops->sqdiff_f64(x, mu, r.runs, r.step, r.n);
  } else {
    mu = k->loops->sum_f32(x, r.runs, r.step, r.n) / m, d = mu - (double)(float)mu;
    s = k->loops->sqdiff_f32(x, (float)mu, r.runs, r.step, r.n) - d * d * m; /* the mean was rounded */
  }
  *mean = mu;
  *m2 = s < 0 ? 0 : s;
}
static void dots(const Batch *k, const void *dy, const void *x, double mean, Runs r, double *s1, double *s2) {
  if (k->f64) k->loops->dots_f64(dy, x, mean, r.runs, r.step, r.n, s1, s2);
  else k->loops->dots_f32(dy, x, (float)mean, r.runs, r.step, r.n, s1, s2);
}
static void affine(const Batch *k, const void *x, double mean, double a, double c, void *y, Runs r) {
  if (k->f64) k->loops->affine_f64(x, mean, a, c, y, r.runs, r.step, r.n);
  else k->loops->affine_f32(x, (float)mean, (float)a, (float)c, y, r.runs, r.step, r.n);
}
static void affine2(const Batch *k, const void *dy, const void *x, double mean, const double abc[3], void *dx, Runs r) {
  if (k->f64) k->loops->affine2_f64(dy, x, mean, abc[0], abc[1], abc[2], dx, r.runs, r.step, r.n);
  else k->loops->affine2_f32(dy, x, (float)mean, (float)abc[0], (float)abc[1], (float)abc[2], dx, r.runs, r.step, r.n);
}

static Batch batch_of(const PlkCall *c, const PlArray *x, double eps) {
  Batch k = {.c = c,
             .loops = &PLK_ISA_PICK(plk_channel_table),
             .x = x,
             .comp = plk_comp(x->dtype),
             .N = x->shape[0],
             .C = x->ndim > 1 ? x->shape[1] : 0,
             .S = 1,
             .eps = eps};
  for (int d = 2; d < x->ndim; d++) k.S *= x->shape[d];
  k.f64 = k.comp == PLK_CF64;
  k.direct = k.S >= SHORT && plk_comp_direct(x->dtype, k.comp);
  k.training = pl_attr_i(c->attrs, 0) != 0;
  return k;
}

/* Channels that one block takes: some work, and whole lines where channels are adjacent. */
static int64_t channels(const Batch *k) {
  const int64_t some = PLK_GRAIN / (k->N * k->S + 1) + 1;
  return k->S == 1 && some < CHANNELS ? CHANNELS : some;
}

/* Channels [c0, c0 + m) of x, in buf one after the other. */
static void gather(const Batch *k, const PlArray *x, int64_t c0, int64_t m, char *buf) {
  const int64_t M = k->N * k->S;
  if (k->S == 1) {
    plk_load(k->comp, buf, M, x->data, x->dtype, c0, k->C, k->N, m);
    return;
  }
  for (int64_t j = 0; j < m; j++)
    for (int64_t n = 0; n < k->N; n++)
      plk_load(k->comp, at(k, buf, j * M + n * k->S), k->S, x->data, x->dtype, (n * k->C + c0 + j) * k->S, 1, k->S, 1);
}
static void scatter(const Batch *k, PlArray *x, int64_t c0, int64_t m, const char *buf) {
  const int64_t M = k->N * k->S;
  if (k->S == 1) {
    plk_store(k->comp, buf, M, x->data, x->dtype, c0, k->C, k->N, m);
    return;
  }
  for (int64_t j = 0; j < m; j++)
    for (int64_t n = 0; n < k->N; n++)
      plk_store(k->comp, at(k, buf, j * M + n * k->S), k->S, x->data, x->dtype, (n * k->C + c0 + j) * k->S, 1, k->S, 1);
}

static void forward_channel(const Batch *k, int64_t ch, const void *x, void *y, Runs r) {
  double mean = get(k->mean, ch), var = get(k->var, ch), m2;
  if (k->training) {
    moments(k, x, r, &mean, &m2);
    var = m2 / (double)(r.runs * r.n);
  }
  if (y) affine(k, x, mean, weight(k, ch) / sqrt(var + k->eps), k->b ? get(k->b, ch) : 0, y, r);
  put(k->c->out[1], ch, mean);
  put(k->c->out[2], ch, var);
}

static PlStatus forward_body(void *ctx, int64_t begin, int64_t end) {
  const Batch *k = ctx;
  PlArray *y = k->c->out[0];
  const int64_t M = k->N * k->S;
  if (k->direct) {
    const Runs r = {k->N, k->C * k->S, k->S};
    for (int64_t ch = begin; ch < end; ch++) forward_channel(k, ch, at(k, k->x->data, ch * k->S), y ? at(k, y->data, ch * k->S) : NULL, r);
    return PL_OK;
  }
  void *buf;
  PL_TRY(plk_scratch((size_t)((end - begin) * M + 8) * plk_comp_size(k->comp), &buf));
  gather(k, k->x, begin, end - begin, buf);
  for (int64_t ch = begin; ch < end; ch++) {
    void *x = at(k, buf, (ch - begin) * M);
    forward_channel(k, ch, x, x, (Runs){1, M, M});
  }
  if (y) scatter(k, y, begin, end - begin, buf);
  plk_scratch_free(buf);
  return PL_OK;
}

PlStatus plk_cpu_batch_norm(const PlkCall *c) {
  if (plk_batch_by_columns(c, c->in[0], NULL)) return plk_batch_columns(c);
  Batch k = batch_of(c, c->in[0], pl_attr_f(c->attrs, 1));
  k.mean = c->in[1], k.var = c->in[2], k.w = c->in[3], k.b = c->in[4];
  return plk_parallel(k.C, channels(&k), forward_body, &k);
}

/* With h = (x - mean) rstd, g = w dy:  dx = rstd (g - mean g - h mean(g h)), dw = sum(dy h), db = sum dy; with fixed
 * statistics dx = w rstd dy. */
static void backward_channel(const Batch *k, int64_t ch, const void *dy, const void *x, void *dx, Runs r) {
  const double m = (double)(r.runs * r.n), mean = get(k->mean, ch), rstd = 1 / sqrt(get(k->var, ch) + k->eps);
  const double a = weight(k, ch) * rstd;
  double s1, s2;
  dots(k, dy, x, mean, r, &s1, &s2);
  put(k->c->out[1], ch, s2 * rstd);
  put(k->c->out[2], ch, s1);
  if (!dx) return;
  if (k->training) affine2(k, dy, x, mean, (double[3]){a, -a * rstd * rstd * s2 / m, -a * s1 / m}, dx, r);
  else affine(k, dy, 0, a, 0, dx, r);
}

static PlStatus backward_body(void *ctx, int64_t begin, int64_t end) {
  const Batch *k = ctx;
  PlArray *dx = k->c->out[0];
  const int64_t M = k->N * k->S, m = end - begin;
  if (k->direct) {
    const Runs r = {k->N, k->C * k->S, k->S};
    for (int64_t ch = begin; ch < end; ch++)
      backward_channel(k, ch, at(k, k->dy->data, ch * k->S), at(k, k->x->data, ch * k->S), dx ? at(k, dx->data, ch * k->S) : NULL, r);
    return PL_OK;
  }
  void *buf;
  PL_TRY(plk_scratch((size_t)(m * M * 2 + 8) * plk_comp_size(k->comp), &buf));
  char *dyb = buf, *xb = at(k, buf, m * M);
  gather(k, k->dy, begin, m, dyb);
  gather(k, k->x, begin, m, xb);
  for (int64_t ch = begin; ch < end; ch++) {
    char *dy = at(k, dyb, (ch - begin) * M);
    backward_channel(k, ch, dy, at(k, xb, (ch - begin) * M), dx ? dy : NULL, (Runs){1, M, M});
  }
  if (dx) scatter(k, dx, begin, m, dyb);
  plk_scratch_free(buf);
  return PL_OK;
}

PlStatus plk_cpu_batch_norm_bwd(const PlkCall *c) {
  if (plk_batch_by_columns(c, c->in[1], c->in[0])) return plk_batch_columns_bwd(c);
  Batch k = batch_of(c, c->in[1], pl_attr_f(c->attrs, 2));
  k.dy = c->in[0], k.mean = c->in[2], k.var = c->in[3], k.w = c->in[4];
  k.direct = k.direct && k.dy->dtype == k.x->dtype;
  return plk_parallel(k.C, channels(&k), backward_body, &k);
}

PlStatus plk_cpu_running_update(const PlkCall *c) {
  const double m = pl_attr_f(c->attrs, 0), f = plk_running_factor(c->attrs);
  PlArray *run = c->out[0];
  for (int64_t i = 0; i < run->numel; i++) put(run, i, (1 - m) * get(run, i) + m * f * get(c->in[1], i));
  return PL_OK;
}
