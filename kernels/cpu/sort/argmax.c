/* SPDX-License-Identifier: MIT
 * Where the largest or smallest value of a row is: argmax, argmin, max and min with indices. The first of
 * equals wins; NaN beats everything. Also the moves along a dim that gradients of index results are made of. */
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"
#include "kernels/sort.h"

typedef struct Job {
  int64_t n, m, base;
  bool min;
  int dtype;
  PlkComp comp;
  const char *name;
  const PlkReduceLoops *loops;
} Job;

/* Of n elements: the value first, with vector loops, then its place. */
#define PLACE(T, sfx)                                                          \
  static int64_t place_##sfx(const Job *j, const T *x, int64_t n) {            \
    const T best = (j->min ? j->loops->min_##sfx : j->loops->max_##sfx)(x, n); \
    if (PL_LIKELY(best == best)) return j->loops->place_##sfx(x, best, n);     \
    int64_t i = 0;                                                             \
    while (i < n - 1 && x[i] == x[i]) i++;                                     \
    return i;                                                                  \
  }
PLACE(float, f32)
PLACE(double, f64)

#define PLACE_INT(T, name)                                              \
  static int64_t name(const Job *j, const T *x, int64_t n) {            \
    T best = x[0];                                                      \
    int64_t at = 0;                                                     \
    if (j->min)                                                         \
      for (int64_t i = 1; i < n; i++) best = x[i] < best ? x[i] : best; \
    else                                                                \
      for (int64_t i = 1; i < n; i++) best = x[i] > best ? x[i] : best; \
    while (x[at] != best) at++;                                         \
    return at;                                                          \
  }
PLACE_INT(int8_t, place_i8)
PLACE_INT(uint8_t, place_u8)
PLACE_INT(int16_t, place_i16)
PLACE_INT(int32_t, place_i32)
PLACE_INT(int64_t, place_i64)

/* x: floats as they are computed, whole numbers as they are stored. */
static int64_t place(const Job *j, const void *x, int64_t n) {
  if (j->comp == PLK_CF32) return place_f32(j, x, n);
  if (j->comp == PLK_CF64) return place_f64(j, x, n);
  switch (j->dtype) {
  case PL_I8: return place_i8(j, x, n);
  case PL_I16: return place_i16(j, x, n);
  case PL_I32: return place_i32(j, x, n);
  case PL_I64: return place_i64(j, x, n);
  default: return place_u8(j, x, n);
  }
}

/* A row in pieces; the first NaN ends the search. */
static PlStatus place_in(const Job *j, const void *row, int64_t *at) {
  _Alignas(64) char buf[PLK_PIECE_BYTES];
  const bool floats = j->comp != PLK_CI64;
  double best = 0;
  int64_t whole = 0;
  *at = 0;
  for (int64_t from = 0; from < j->n; from += PLK_PIECE) {
    const int64_t n = plk_piece_size(from, j->n);
    const void *x =
        floats ? plk_piece(j->comp, row, j->dtype, from, n, buf) : (const char *)row + (size_t)from * pl_dtype_size((PlDtype)j->dtype);
    const int64_t i = place(j, x, n);
    if (floats) {
      const double v = j->comp == PLK_CF32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
      if (from == 0 || v != v || (j->min ? v < best : v > best)) best = v, *at = from + i;
      if (v != v) return PL_OK;
    } else {
      int64_t v;
      plk_load(PLK_CI64, &v, 1, x, j->dtype, i, 1, 1, 1);
      if (from == 0 || (j->min ? v < whole : v > whole)) whole = v, *at = from + i;
    }
    if ((from & 0xfffff) == 0xfffff + 1 - PLK_PIECE) PL_TRY(plk_poll());
  }
  return PL_OK;
}

static PlStatus extreme_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Job *j = ctx;
  const size_t size = pl_dtype_size((PlDtype)j->dtype);
  int64_t at;
  if (j->n <= PLK_PIECE && (j->comp == PLK_CI64 || plk_comp_direct(j->dtype, j->comp))) at = place(j, p[0], j->n);
  else PL_TRY(place_in(j, p[0], &at));
  if (p[1]) memcpy(p[1], (const char *)p[0] + (size_t)at * size, size);
  if (p[2]) *(int64_t *)p[2] = at + j->base;
  return PL_OK;
}

static PlStatus extreme(const PlkCall *c, PlArray *values, PlArray *at) {
  const PlArray *x = c->in[0];
  bool flat = !pl_attr_has(c->attrs, 0);
  int64_t dim = flat ? 0 : pl_attr_i(c->attrs, 0);
  Job j = {.n = flat ? x->numel : plk_dim_size(x, dim),
           .min = c->code != 0,
           .dtype = x->dtype,
           .comp = plk_comp(x->dtype),
           .base = pl_attr_i(c->attrs, 2),
           .loops = plk_reduce_loops()};
  PlkRows r = {.outer = flat ? 1 : plk_outer(x, dim), .inner = flat ? 1 : plk_inner(x, dim), .body = extreme_row, .ctx = &j};
  r.arg[r.narg++] = plk_row_arg(x, j.n, PLK_CRAW, false);
  r.arg[r.narg++] = plk_row_arg(values, 1, PLK_CRAW, true);
  r.arg[r.narg++] = plk_row_arg(at, 1, PLK_CI64, true);
  return plk_rows(&r);
}

PlStatus plk_cpu_argmax(const PlkCall *c) { return extreme(c, NULL, c->out[0]); }
PlStatus plk_cpu_max_dim(const PlkCall *c) { return extreme(c, c->out[0], c->out[1]); }

/* ---- moves along a dim -------------------------------------------------------------------------------- */

static PlStatus check_index(const Job *j, int64_t v) {
  if (v >= j->base && (uint64_t)v - (uint64_t)j->base < (uint64_t)j->n) return PL_OK;
  PL_FAIL(PL_ERR_INDEX, "%s: index %lld is not in %lld … %lld", j->name, (long long)v, (long long)j->base, (long long)(j->n + j->base - 1));
}

static PlStatus put_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Job *j = ctx;
  const int64_t *at = p[1];
  for (int64_t i = 0; i < j->m; i++) PL_TRY(check_index(j, at[i]));
  if (j->comp == PLK_CF32) {
    const float *x = p[0];
    float *y = p[2];
    for (int64_t i = 0; i < j->n; i++) y[i] = 0;
    for (int64_t i = 0; i < j->m; i++) y[at[i] - j->base] += x[i];
  } else {
    const double *x = p[0];
    double *y = p[2];
    for (int64_t i = 0; i < j->n; i++) y[i] = 0;
    for (int64_t i = 0; i < j->m; i++) y[at[i] - j->base] += x[i];
  }
  return PL_OK;
}

static PlStatus pick_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Job *j = ctx;
  const int64_t *at = p[1];
  for (int64_t i = 0; i < j->m; i++) {
    PL_TRY(check_index(j, at[i]));
    if (j->comp == PLK_CF32) ((float *)p[2])[i] = ((const float *)p[0])[at[i] - j->base];
    else ((double *)p[2])[i] = ((const double *)p[0])[at[i] - j->base];
  }
  return PL_OK;
}

/* wide: the array with `size` elements along the dim; the index array says how many the other has. */
static PlStatus move(const PlkCall *c, const PlArray *wide, bool put) {
  const PlArray *at = c->in[1];
  bool flat = !pl_attr_has(c->attrs, 0);
  int64_t dim = flat ? 0 : pl_attr_i(c->attrs, 0);
  int64_t outer = flat ? 1 : plk_outer(wide, dim), inner = flat ? 1 : plk_inner(wide, dim);
  Job j = {
      .n = flat ? wide->numel : plk_dim_size(wide, dim), .base = pl_attr_i(c->attrs, 2), .comp = plk_comp(wide->dtype), .name = c->name};
  j.m = outer * inner > 0 ? at->numel / (outer * inner) : 0;
  PlkRows r = {.outer = outer, .inner = inner, .body = put ? put_row : pick_row, .ctx = &j};
  r.arg[r.narg++] = plk_row_arg(c->in[0], put ? j.m : j.n, j.comp, false);
  r.arg[r.narg++] = plk_row_arg(at, j.m, PLK_CI64, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], put ? j.n : j.m, j.comp, true);
  return plk_rows(&r);
}

PlStatus plk_cpu_dim_put(const PlkCall *c) { return move(c, c->out[0], true); }
PlStatus plk_cpu_dim_pick(const PlkCall *c) { return move(c, c->in[0], false); }
