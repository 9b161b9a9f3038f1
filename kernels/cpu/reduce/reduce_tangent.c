/* SPDX-License-Identifier: MIT
 * Reductions with the tangents of their results: inputs x and v, which is the tangent of x, outputs y and t. y is computed as ever, by
 * plk_reduce_run; each of its pieces gives a piece of t while x is at hand, most in the very loop (isa/reduce/reduce_tangent.c). What this
 * does not do, some layouts and norms, is PL_ERR_UNSUPPORTED: there are other ways. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/reduce.h"

PLK_ISA_DECLARE(const PlkReduceTangents, plk_reduce_tangents);

typedef struct Tangent {
  const PlkCall *c;
  PlkReduceShape s;
  PlkPaired kind;
  bool extreme, nan; /* of extremes: NaN is found where x is NaN */
  bool f64, rows;
  int64_t kept, nblock;
  double *value, *part; /* [nblock][kept]: of each piece the value and its tangent */
} Tangent;

#define V_AT(t, T, i) ((const T *)(t)->c->in[1]->data + (i))
#define X_AT(t, T, i) ((const T *)(t)->c->in[0]->data + (i))

/* Exponentials in tiles, added up as the reduction alone adds them. */
static double exp_row(const PlkReduceJob *job, const Tangent *t, const PlkReducePiece *p, double *tangent) {
  const PlkReduceTangents *l = &PLK_ISA_PICK(plk_reduce_tangents);
  const PlkReduceLoops *sums = plk_reduce_loops();
  _Alignas(64) double buf[PLK_REDUCE_TILE];
  double sum = 0, dot = 0;
  for (int64_t at = 0; at < p->rows; at += PLK_REDUCE_TILE) {
    const int64_t n = p->rows - at < PLK_REDUCE_TILE ? p->rows - at : PLK_REDUCE_TILE;
    const void *e = plk_reduce_tile(job, job->x->data, job->x->dtype, false, buf, p->at + at, n, job->aux + p->out, 0);
    const double more = t->f64 ? sums->sum_f64(e, n) : sums->sum_f32(e, n);
    sum = at == 0 ? more : sum + more;
    dot += t->f64 ? l->f64.dot(e, V_AT(t, double, p->at + at), n) : l->f32.dot(e, V_AT(t, float, p->at + at), n);
  }
  *tangent = dot;
  return sum;
}

static void paired_piece(const PlkReduceJob *job, const PlkReducePiece *p, double *acc) {
  const Tangent *t = job->ctx;
  const PlkReduceTangents *l = &PLK_ISA_PICK(plk_reduce_tangents);
  double *value = t->value + p->block * t->kept + p->out, *d = t->part + p->block * t->kept + p->out;
  const double *c = job->aux ? job->aux + p->out : NULL;
  if (t->rows) {
    if (t->kind == PLK_PAIRED_EXP) *acc = exp_row(job, t, p, d);
    else if (t->f64) *acc = l->f64.row[t->kind](X_AT(t, double, p->at), V_AT(t, double, p->at), p->rows, c ? *c : 0, d);
    else *acc = l->f32.row[t->kind](X_AT(t, float, p->at), V_AT(t, float, p->at), p->rows, c ? *c : 0, d);
  } else {
    memset(d, 0, (size_t)p->cols * sizeof *d);
    if (t->f64) l->f64.col[t->kind](X_AT(t, double, p->at), V_AT(t, double, p->at), p->ld, p->rows, p->cols, c, acc, d);
    else l->f32.col[t->kind](X_AT(t, float, p->at), V_AT(t, float, p->at), p->ld, p->rows, p->cols, c, acc, d);
  }
  memcpy(value, acc, (size_t)p->cols * sizeof *acc);
}

/* ---- extremes: the mean of v over the places where x is the extreme ---- */

/* sum of v where row x is y, and at how many places that is */
static double hits_in_row(const Tangent *t, int64_t at, int64_t n, double y, double *count) {
  const PlkReduceLoops *l = plk_reduce_loops();
  return t->f64 ? l->hits_f64(X_AT(t, double, at), V_AT(t, double, at), y, t->nan, n, count)
                : l->hits_f32(X_AT(t, float, at), V_AT(t, float, at), (float)y, t->nan, n, count);
}

static void hits_in_columns(const Tangent *t, int64_t at, int64_t ld, int64_t rows, int64_t cols, const double *y, double *mean) {
  const PlkReduceTangents *l = &PLK_ISA_PICK(plk_reduce_tangents);
  double sum[PLK_COLS] = {0}, count[PLK_COLS] = {0};
  float narrow[PLK_COLS];
  for (int64_t k = 0; k < cols; k++) narrow[k] = (float)y[k];
  if (t->f64) l->f64.hits(X_AT(t, double, at), V_AT(t, double, at), ld, rows, cols, y, sum, count);
  else l->f32.hits(X_AT(t, float, at), V_AT(t, float, at), ld, rows, cols, narrow, sum, count);
  for (int64_t k = 0; k < cols; k++) mean[k] = sum[k] / count[k];
}

/* A miss of the cache for each row of v: all of them are asked for before the first is waited for. */
static void hits_in_rows(const Tangent *t, const PlkReducePiece *p, const double *y, double *mean) {
  enum { AT_ONCE = 64, LINE = 64, LINES = 4 };
  const PlkReduceLoops *l = plk_reduce_loops();
  const size_t item = t->f64 ? sizeof(double) : sizeof(float);
  for (int64_t r0 = 0; r0 < p->cols; r0 += AT_ONCE) {
    int64_t at[AT_ONCE], n = p->cols - r0 < AT_ONCE ? p->cols - r0 : AT_ONCE;
    for (int64_t r = 0; r < n; r++) {
      const int64_t row = p->at + (r0 + r) * p->ld;
      at[r] = t->f64 ? l->first_f64(X_AT(t, double, row), y[r0 + r], t->nan, p->rows)
                     : l->first_f32(X_AT(t, float, row), (float)y[r0 + r], t->nan, p->rows);
      const char *v = (const char *)t->c->in[1]->data + (size_t)(row + at[r]) * item;
      for (int k = 0; k < LINES; k++) __builtin_prefetch(v + k * LINE);
    }
    for (int64_t r = 0; r < n; r++) {
      double count;
      mean[r0 + r] = hits_in_row(t, p->at + (r0 + r) * p->ld + at[r], p->rows - at[r], y[r0 + r], &count);
      mean[r0 + r] /= count;
    }
  }
}

static void extreme_piece(const PlkReduceJob *job, const PlkReducePiece *p, double *acc) {
  const Tangent *t = job->ctx;
  double *value = t->value + p->block * t->kept + p->out, *d = t->part + p->block * t->kept + p->out;
  memcpy(value, acc, (size_t)p->cols * sizeof *acc);
  if (t->nblock > 1) return; /* which pieces have the extreme is known at the end */
  if (t->rows) hits_in_rows(t, p, acc, d);
  else hits_in_columns(t, p->at, p->ld, p->rows, p->cols, acc, d);
}

/* Items: (outer, tile of columns). The extremes go where the tangents of the first block are. */
static PlStatus extreme_columns(void *ctx, int64_t begin, int64_t end) {
  const Tangent *t = ctx;
  const int64_t tiles = (t->s.I + PLK_COLS - 1) / PLK_COLS;
  for (int64_t it = begin; it < end; it++) {
    const int64_t o = it / tiles, c0 = it % tiles * PLK_COLS, n = t->s.I - c0 < PLK_COLS ? t->s.I - c0 : PLK_COLS, at = o * t->s.I + c0;
    double y[PLK_COLS];
    for (int64_t k = 0; k < n; k++)
      y[k] = t->f64 ? ((const double *)t->c->out[0]->data)[at + k] : (double)((const float *)t->c->out[0]->data)[at + k];
    hits_in_columns(t, o * t->s.so + c0, t->s.sr, t->s.R, n, y, t->part + at);
  }
  return PL_OK;
}

static PlStatus extreme_end(Tangent *t, const double *y) {
  if (t->nblock == 1) return PL_OK;
  if (!t->rows) return plk_parallel(t->s.O * ((t->s.I + PLK_COLS - 1) / PLK_COLS), 1, extreme_columns, t);
  const int64_t block = plk_reduce_block(1);
  for (int64_t o = 0; o < t->kept; o++) {
    double sum = 0, count = 0, more;
    for (int64_t b = 0; b < t->nblock; b++) {
      const double best = t->value[b * t->kept + o];
      const int64_t r0 = b * block, n = t->s.R - r0 < block ? t->s.R - r0 : block;
      if (best != y[o] && !(t->nan && y[o] != y[o] && best != best)) continue;
      sum += hits_in_row(t, o * t->s.so + r0, n, y[o], &more);
      count += more;
    }
    t->part[o] = sum / count;
  }
  return PL_OK;
}

/* ---- together ---- */

static double element(const PlArray *a, int64_t i) { return a->dtype == PL_F64 ? ((double *)a->data)[i] : (double)((float *)a->data)[i]; }

/* The tangent and, where it counts, the sum of exponentials or the product, over the blocks. */
static double joined(const Tangent *t, int64_t o, double *value) {
  double d = t->part[o], r = t->value[o];
  for (int64_t b = 1; b < t->nblock && !t->extreme; b++) {
    const double s = t->value[b * t->kept + o], e = t->part[b * t->kept + o];
    d = t->kind == PLK_PAIRED_PROD ? d * s + r * e : d + e;
    r = t->kind == PLK_PAIRED_PROD ? r * s : r + s;
  }
  *value = r;
  return d;
}

/* t = by (the tangents of the sums) / y, where y is not 0: of roots; else without y. */
static PlStatus finish(Tangent *t, double by, bool root) {
  const PlkCall *c = t->c;
  PlArray *out = c->out[1];
  for (int64_t o = 0; o < t->kept; o++) {
    double sum, d = joined(t, o, &sum) * by;
    if (t->kind == PLK_PAIRED_EXP && !t->extreme) d /= sum;
    const double y = root ? element(c->out[0], o) : 1;
    d = y == 0 ? 0 : d / y;
    if (t->f64) ((double *)out->data)[o] = d;
    else ((float *)out->data)[o] = (float)d;
  }
  return PL_OK;
}

static PlStatus refuse(const PlkCall *c) { PL_FAIL(PL_ERR_UNSUPPORTED, "%s: not with its tangent in one pass", c->name); }

static PlStatus begin(Tangent *t, const PlkCall *c, uint32_t mask) {
  const PlArray *x = c->in[0];
  *t = (Tangent){.c = c, .f64 = x->dtype == PL_F64, .kept = c->out[0]->numel};
  if ((x->dtype != PL_F32 && x->dtype != PL_F64) || c->in[1]->dtype != x->dtype || c->out[0]->dtype != x->dtype || x->numel == 0 ||
      !x->contiguous || !c->in[1]->contiguous || !plk_reduce_shape(x, mask, &t->s) || t->s.across)
    return refuse(c);
  t->rows = t->s.rows;
  const int64_t block = plk_reduce_block(t->rows ? 1 : t->s.I);
  t->nblock = t->s.R <= block ? 1 : (t->s.R + block - 1) / block;
  void *room;
  PL_TRY(plk_scratch(2 * (size_t)(t->nblock * t->kept) * sizeof(double), &room));
  t->value = room;
  t->part = t->value + t->nblock * t->kept;
  return PL_OK;
}

static PlStatus run_paired(Tangent *t, PlkReduceJob job, PlkPaired kind) {
  t->kind = kind;
  job.piece = paired_piece, job.instead = true, job.ctx = t;
  return plk_reduce_run(&job);
}

static PlStatus run_extreme(Tangent *t, PlkReduceJob job, bool nan) {
  t->extreme = true, t->nan = nan;
  job.piece = extreme_piece, job.ctx = t;
  PL_TRY(plk_reduce_run(&job));
  double *y = NULL;
  void *room;
  PL_TRY(plk_scratch((size_t)t->kept * sizeof(double), &room));
  y = room;
  for (int64_t o = 0; o < t->kept; o++) y[o] = element(t->c->out[0], o);
  PlStatus s = extreme_end(t, y);
  plk_scratch_free(room);
  return s;
}

static PlStatus end(Tangent *t, PlStatus s, double by, bool root) {
  if (s == PL_OK) s = finish(t, by, root);
  plk_scratch_free(t->value);
  return s;
}

static PlStatus extreme(const PlkCall *c, uint32_t mask, bool nan) {
  Tangent t;
  PL_TRY(begin(&t, c, mask));
  const PlkReduceJob job = {.x = c->in[0],
                            .mask = mask,
                            .core = c->code == PLK_R_AMAX ? PLK_CORE_MAX : PLK_CORE_MIN,
                            .comp = plk_comp(c->in[0]->dtype),
                            .out = c->out[0]};
  return end(&t, run_extreme(&t, job, nan), 1, false);
}

static PlStatus exps(const PlkCall *c, uint32_t mask) {
  Tangent t;
  void *max;
  PL_TRY(begin(&t, c, mask));
  PlStatus s = plk_scratch((size_t)t.kept * sizeof(double), &max);
  if (s != PL_OK) return end(&t, s, 1, false);
  s = plk_reduce_greatest(c, mask, max);
  if (s == PL_OK) s = run_paired(&t, plk_reduce_exps(c, mask, max), PLK_PAIRED_EXP);
  plk_scratch_free(max);
  return end(&t, s, 1, false);
}

PlStatus plk_cpu_reduce_with_tangent(const PlkCall *c) {
  const uint32_t mask = plk_reduce_mask(c, 0);
  Tangent t;
  switch (c->code) {
  case PLK_R_AMAX:
  case PLK_R_AMIN: return extreme(c, mask, false);
  case PLK_R_LOGSUMEXP: return exps(c, mask);
  case PLK_R_PROD: break;
  default: return refuse(c);
  }
  PL_TRY(begin(&t, c, mask));
  const PlkReduceJob job = {.x = c->in[0], .mask = mask, .core = PLK_CORE_PROD, .comp = PLK_CF64, .out = c->out[0]};
  return end(&t, run_paired(&t, job, PLK_PAIRED_PROD), 1, false);
}

PlStatus plk_cpu_extreme_with_tangent(const PlkCall *c) { return extreme(c, ~0u, true); }

PlStatus plk_cpu_norm_with_tangent(const PlkCall *c) {
  const double p = pl_attr_f(c->attrs, 0);
  const uint32_t mask = plk_reduce_mask(c, 1);
  Tangent t;
  if (p != 1 && p != 2) return refuse(c);
  PL_TRY(begin(&t, c, mask));
  const PlkReduceJob job = {.x = c->in[0],
                            .mask = mask,
                            .comp = PLK_CF64,
                            .pre = p == 2 ? PLK_PRE_SQUARE : PLK_PRE_ABS,
                            .post = p == 2 ? PLK_POST_SQRT : PLK_POST_NONE,
                            .out = c->out[0]};
  PL_TRY(end(&t, run_paired(&t, job, p == 2 ? PLK_PAIRED_SQUARE : PLK_PAIRED_ABS), 1, p == 2));
  return plk_norm_left(c, p) ? refuse(c) : PL_OK;
}

PlStatus plk_cpu_var_with_tangent(const PlkCall *c) {
  const uint32_t mask = plk_reduce_mask(c, 0);
  Tangent t;
  void *room;
  PL_TRY(begin(&t, c, mask));
  PlStatus s = plk_scratch(2 * (size_t)t.kept * sizeof(double), &room);
  if (s != PL_OK) return end(&t, s, 1, false);
  double *mean = room;
  s = plk_reduce_means(c, mask, mean, mean + t.kept);
  if (s == PL_OK) s = run_paired(&t, plk_reduce_variances(c, mask, mean), PLK_PAIRED_SQDIFF);
  bool far = false; /* the mean of doubles was rounded as doubles are: where it is large beside the deviation that shows */
  for (int64_t o = 0; s == PL_OK && t.f64 && o < t.kept; o++) {
    const double y = element(c->out[0], o);
    far = far || fabs(mean[o]) > 64 * (c->code ? y : sqrt(y));
  }
  plk_scratch_free(room);
  const double n = (double)t.s.R - pl_attr_f(c->attrs, 1); /* infinite for 0; below 0 as it is: as the gradient */
  PL_TRY(end(&t, s, (c->code ? 1 : 2) / n, c->code != 0));
  return far ? refuse(c) : PL_OK;
}
