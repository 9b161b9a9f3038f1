/* SPDX-License-Identifier: MIT
 * Helpers over a list of tensors (see kernels/optim.h and list.h): their joint norm, scaling and clearing them. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/optim/list.h"
#include "kernels/cpu/rows.h"

/* The norm of order p of elements divided by `by`. */
typedef struct NormOf {
  double p, by;
} NormOf;

/* p = 2 in double for both dtypes: the square of any float is in range there. Other p: |x|^p one by one. */
static double stretch_power(const PlArray *x, int64_t at, int64_t n, const NormOf *o, double start) {
  const double p = o->p;
  PlkWalk w;
  plk_walk_start(&w, x, at);
  double s = start;
  for (int64_t i = 0; i < n; i++, plk_walk_next(&w, x)) {
    double v = fabs(plk_get_one(x, w.off)) / o->by;
    if (isinf(p)) s = isnan(v) || isnan(s) ? (double)NAN : p > 0 ? fmax(s, v) : fmin(s, v);
    else if (p == 0) s += v != 0;
    else s += p == 1 ? v : p == 2 ? v * v : pow(v, p);
  }
  return s;
}

static void norm_stretch(const PlkList *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  const PlArray *x = plk_list_column(l, g, 0);
  const NormOf *o = l->opt;
  const bool square = o->p == 2 && o->by == 1 && x->contiguous;
  if (square && x->dtype == PL_F32) l->partial[part] += l->loops->sumsq_f32((const float *)x->data + at, n);
  else if (square && x->dtype == PL_F64) l->partial[part] += l->loops->sumsq_f64((const double *)x->data + at, n);
  else l->partial[part] = stretch_power(x, at, n, o, l->partial[part]);
}

static PlStatus norm_run(PlkList *l, const NormOf *o, int64_t nblock, double *norm) {
  const double p = o->p;
  double sum = isinf(p) && p < 0 ? (double)INFINITY : 0;
  for (int64_t b = 0; b < nblock; b++) l->partial[b] = sum;
  PL_TRY(plk_list_run(l));
  for (int64_t b = 0; b < nblock; b++) {
    double v = l->partial[b];
    if (!isinf(p)) sum += v;
    else if (isnan(v) || isnan(sum)) sum = (double)NAN;
    else sum = p > 0 ? fmax(sum, v) : fmin(sum, v);
  }
  *norm = isinf(p) || p == 0 || p == 1 ? sum : p == 2 ? sqrt(sum) : pow(sum, 1 / p);
  return PL_OK;
}

/* Whether the sum of |x|^p left the range of doubles, or lost digits at its end, where elements can make it. */
static bool norm_left(const PlkCall *call, double p, double norm) {
  int bits = 149; /* 2^±bits is what an element may be */
  for (int i = 0; i < call->nin; i++)
    if (call->in[i]->dtype == PL_F64) bits = 1074;
  if (p == 0 || p == 1 || isinf(p) || fabs(p) * bits <= 960) return false;
  return norm == 0 || isinf(norm) || fabs(p * log2(norm)) > 960; /* false of NaN */
}

PlStatus plk_cpu_foreach_norm(const PlkCall *call) {
  const double p = pl_attr_f(call->attrs, 0);
  NormOf o = {p, 1};
  double norm = 0;
  PlkList l;
  PL_TRY(plk_list_init(&l, call, call->nin, 1, norm_stretch, &o));
  int64_t nblock = (l.total + PLK_LIST_BLOCK - 1) / PLK_LIST_BLOCK;
  void *room = NULL;
  PlStatus s = plk_scratch((size_t)(nblock + 1) * sizeof(double), &room);
  l.partial = room;
  if (s == PL_OK) s = norm_run(&l, &o, nblock, &norm);
  if (s == PL_OK && l.total > 0 && norm_left(call, p, norm)) { /* again, of quotients by the largest magnitude, or the smallest */
    double m = 0;
    o.p = p > 0 ? (double)INFINITY : -(double)INFINITY;
    s = norm_run(&l, &o, nblock, &m);
    o = (NormOf){p, m};
    if (s == PL_OK && m != 0 && isfinite(m)) s = norm_run(&l, &o, nblock, &norm), norm *= m;
  }
  if (s == PL_OK) plk_put_one(call->out[0], 0, l.total == 0 ? 0 : norm);
  plk_scratch_free(room);
  plk_list_free(&l);
  return s;
}

/* Whether the walk is at a repeated element of an expanded array: in-place work must touch each once. */
static bool repeats(const PlkWalk *w, const PlArray *x) {
  for (int d = 0; d < x->ndim; d++)
    if (x->strides[d] == 0 && w->idx[d] > 0) return true;
  return false;
}

static void scale_stretch(const PlkList *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  (void)part;
  const PlArray *x = plk_list_column(l, g, 0);
  double f = *(const double *)l->opt;
  if (x->contiguous && x->dtype == PL_F32) l->loops->scale_f32((float *)x->data + at, n, f);
  else if (x->contiguous && x->dtype == PL_F64) l->loops->scale_f64((double *)x->data + at, n, f);
  else {
    PlkWalk w;
    plk_walk_start(&w, x, at);
    for (int64_t i = 0; i < n; i++, plk_walk_next(&w, x))
      if (!repeats(&w, x)) plk_put_one(x, w.off, plk_get_one(x, w.off) * f);
  }
}

PlStatus plk_cpu_foreach_scale_(const PlkCall *call) {
  double f = plk_get_one(call->in[call->nin - 1], 0);
  if (call->nin < 2) return PL_OK;
  PlkList l;
  PL_TRY(plk_list_init(&l, call, call->nin - 1, 1, scale_stretch, &f));
  PlStatus s = plk_list_write(&l);
  plk_list_free(&l);
  return s;
}

static void zero_stretch(const PlkList *l, int64_t g, int64_t at, int64_t n, int64_t part) {
  (void)part;
  const PlArray *x = plk_list_column(l, g, 0);
  size_t size = pl_dtype_size((PlDtype)x->dtype);
  if (x->contiguous) {
    memset((char *)x->data + (size_t)at * size, 0, (size_t)n * size);
    return;
  }
  PlkWalk w;
  plk_walk_start(&w, x, at);
  for (int64_t i = 0; i < n; i++, plk_walk_next(&w, x)) memset((char *)x->data + (size_t)w.off * size, 0, size);
}

PlStatus plk_cpu_foreach_zero_(const PlkCall *call) {
  PlkList l;
  PL_TRY(plk_list_init(&l, call, call->nin, 1, zero_stretch, NULL));
  PlStatus s = plk_list_write(&l);
  plk_list_free(&l);
  return s;
}
