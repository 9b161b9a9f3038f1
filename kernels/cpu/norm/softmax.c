/* SPDX-License-Identifier: MIT
 * softmax and log_softmax, forward and backward: rows with the loops of isa/softmax.c, or, where a row's elements are
 * not adjacent, down columns with those of isa/softmax_columns.c. Halves are computed in float. */
#include "kernels/softmax.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/rows.h"

PLK_ISA_DECLARE(const PlkSoftmaxLoops, plk_softmax_table);
const PlkSoftmaxLoops *plk_softmax_loops(void) { return &PLK_ISA_PICK(plk_softmax_table); }
PLK_ISA_DECLARE(const PlkSoftmaxColumns, plk_softmax_columns);
const PlkSoftmaxColumns *plk_softmax_columns_loops(void) { return &PLK_ISA_PICK(plk_softmax_columns); }

typedef struct Soft {
  const PlkSoftmaxLoops *loops;
  int64_t n;
  bool log, f64;
} Soft;

static PlStatus softmax_rows(void *ctx, int64_t row, int64_t rows, void *const *p) {
  (void)row;
  const Soft *s = ctx;
  if (s->f64) (s->log ? s->loops->log_softmax_f64 : s->loops->softmax_f64)(p[0], p[1], s->n, rows);
  else (s->log ? s->loops->log_softmax_f32 : s->loops->softmax_f32)(p[0], p[1], s->n, rows);
  return PL_OK;
}

static PlStatus softmax_bwd_rows(void *ctx, int64_t row, int64_t rows, void *const *p) {
  (void)row;
  const Soft *s = ctx;
  if (s->f64) (s->log ? s->loops->log_softmax_bwd_f64 : s->loops->softmax_bwd_f64)(p[0], p[1], p[2], s->n, rows);
  else (s->log ? s->loops->log_softmax_bwd_f32 : s->loops->softmax_bwd_f32)(p[0], p[1], p[2], s->n, rows);
  return PL_OK;
}

/* ---- down columns */

typedef struct Columns {
  const PlkCall *c;
  int nin;
  bool log, f64;
  int64_t n, inner, tiles;
} Columns;

/* Items: (outer, tile of columns). */
static PlStatus columns_body(void *ctx, int64_t begin, int64_t end) {
  const Columns *k = ctx;
  const PlkSoftmaxColumns *l = plk_softmax_columns_loops();
  const size_t size = k->f64 ? sizeof(double) : sizeof(float);
  for (int64_t i = begin; i < end; i++) {
    const int64_t c0 = i % k->tiles * PLK_SOFT_COLS, cols = k->inner - c0 < PLK_SOFT_COLS ? k->inner - c0 : PLK_SOFT_COLS;
    const size_t at = (size_t)(i / k->tiles * k->n * k->inner + c0) * size;
    const void *a = (const char *)k->c->in[0]->data + at, *b = (const char *)k->c->in[k->nin - 1]->data + at;
    void *to = (char *)k->c->out[0]->data + at;
    if (k->nin == 1 && k->f64) l->forward_f64(a, to, k->inner, k->n, cols, k->log);
    else if (k->nin == 1) l->forward_f32(a, to, k->inner, k->n, cols, k->log);
    else if (k->f64) l->backward_f64(a, b, to, k->inner, k->n, cols, k->log);
    else l->backward_f32(a, b, to, k->inner, k->n, cols, k->log);
  }
  return PL_OK;
}

/* Where a row would have to be gathered and all arrays are of the type that is computed in. */
static bool by_columns(const PlkCall *c, int nin, int64_t inner, PlkComp comp) {
  bool yes = inner >= 8 && plk_comp_direct(c->out[0]->dtype, comp);
  for (int i = 0; i < nin; i++) yes = yes && plk_comp_direct(c->in[i]->dtype, comp);
  return yes;
}

static PlStatus softmax_columns(const PlkCall *c, int nin, const PlkRows *r, int64_t n, bool f64) {
  Columns k = {.c = c, .nin = nin, .log = c->code == 1, .f64 = f64, .n = n, .inner = r->inner};
  k.tiles = (k.inner + PLK_SOFT_COLS - 1) / PLK_SOFT_COLS;
  const int64_t work = 2 * n * (k.inner < PLK_SOFT_COLS ? k.inner : PLK_SOFT_COLS);
  return plk_parallel(r->outer * k.tiles, PLK_GRAIN / work + 1, columns_body, &k);
}

static PlStatus softmax_any(const PlkCall *c, int nin, PlStatus (*many)(void *, int64_t, int64_t, void *const *)) {
  const PlArray *x = c->in[0];
  int64_t dim = pl_attr_i(c->attrs, 0);
  PlkComp comp = plk_comp(c->out[0]->dtype);
  Soft s = {plk_softmax_loops(), plk_dim_size(x, dim), c->code == 1, comp == PLK_CF64};
  PlkRows r = {.outer = plk_outer(x, dim), .inner = plk_inner(x, dim), .many = many, .ctx = &s, .cost = 2};
  if (s.n == 0 || c->out[0]->numel == 0) return PL_OK;
  if (by_columns(c, nin, r.inner, comp)) return softmax_columns(c, nin, &r, s.n, s.f64);
  for (int i = 0; i < nin; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], s.n, comp, false);
  r.arg[r.narg++] = plk_row_arg(c->out[0], s.n, comp, true);
  return plk_rows(&r);
}

PlStatus plk_cpu_softmax(const PlkCall *c) { return softmax_any(c, 1, softmax_rows); }
PlStatus plk_cpu_softmax_bwd(const PlkCall *c) { return softmax_any(c, 2, softmax_bwd_rows); }

/* ---- with tangents */

static PlStatus dual_row(void *ctx, int64_t row, void *const *p) {
  (void)row;
  const Soft *s = ctx;
  if (s->f64) (s->log ? s->loops->log_softmax_dual_f64 : s->loops->softmax_dual_f64)(p[0], p[1], p[2], p[3], s->n);
  else (s->log ? s->loops->log_softmax_dual_f32 : s->loops->softmax_dual_f32)(p[0], p[1], p[2], p[3], s->n);
  return PL_OK;
}

static PlStatus dual_columns(void *ctx, int64_t begin, int64_t end) {
  const Columns *k = ctx;
  const PlkSoftmaxColumns *l = plk_softmax_columns_loops();
  for (int64_t i = begin; i < end; i++) {
    const int64_t c0 = i % k->tiles * PLK_SOFT_COLS, cols = k->inner - c0 < PLK_SOFT_COLS ? k->inner - c0 : PLK_SOFT_COLS;
    const size_t at = (size_t)(i / k->tiles * k->n * k->inner + c0) * (k->f64 ? sizeof(double) : sizeof(float));
    const void *x = (const char *)k->c->in[0]->data + at, *v = (const char *)k->c->in[1]->data + at;
    void *y = (char *)k->c->out[0]->data + at, *t = (char *)k->c->out[1]->data + at;
    if (k->f64) l->dual_f64(x, v, y, t, k->inner, k->n, cols, k->log);
    else l->dual_f32(x, v, y, t, k->inner, k->n, cols, k->log);
  }
  return PL_OK;
}

PlStatus plk_cpu_softmax_with_tangent(const PlkCall *c) {
  const PlArray *x = c->in[0], *y = c->out[0];
  const int64_t dim = pl_attr_i(c->attrs, 0);
  const PlkComp comp = plk_comp(x->dtype);
  Soft s = {plk_softmax_loops(), plk_dim_size(x, dim), c->code == 1, comp == PLK_CF64};
  PlkRows r = {.outer = plk_outer(x, dim), .inner = plk_inner(x, dim), .body = dual_row, .ctx = &s, .cost = 3};
  if (y->dtype != x->dtype || !plk_comp_direct(x->dtype, comp))
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: not with its tangent in one pass", c->name);
  if (s.n == 0 || x->numel == 0) return PL_OK;
  if (by_columns(c, 2, r.inner, comp)) {
    Columns k = {.c = c, .nin = 2, .log = s.log, .f64 = s.f64, .n = s.n, .inner = r.inner};
    k.tiles = (k.inner + PLK_SOFT_COLS - 1) / PLK_SOFT_COLS;
    const int64_t work = 3 * s.n * (k.inner < PLK_SOFT_COLS ? k.inner : PLK_SOFT_COLS);
    return plk_parallel(r.outer * k.tiles, PLK_GRAIN / work + 1, dual_columns, &k);
  }
  for (int i = 0; i < 2; i++) r.arg[r.narg++] = plk_row_arg(c->in[i], s.n, comp, false);
  for (int o = 0; o < 2; o++) r.arg[r.narg++] = plk_row_arg(c->out[o], s.n, comp, true);
  return plk_rows(&r);
}
