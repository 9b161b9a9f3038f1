/* SPDX-License-Identifier: MIT
 * Reading at positions: gather, index_select, take, embedding, lists of index tensors, one_hot. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/index/rowmove.h"
#include "kernels/cpu/shape/copy.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

/* ---- gather -------------------------------------------------------------------------------------------- */

/* y[.., i, ..] = x[.., index[.., i, ..], ..]: strides of x per dim of y, 0 along `dim` and where x repeats. */
typedef struct Gather {
  char *y;
  const char *x;
  const int64_t *v;
  int64_t base, xdim, limit; /* limit: values are checked as they are read; 0: they were before */
  atomic_bool *bad;
  int n;
  int64_t shape[PL_MAX_DIM], xs[PL_MAX_DIM], vs[PL_MAX_DIM]; /* vs: of v, 0 where the index repeats */
  size_t esize;
} Gather;

/* The position that i has, as `to`; a branch that is never taken costs less than a pass of its own. */
#define POSITION(i)                                    \
  const uint64_t to = (uint64_t)v[i] - (uint64_t)base; \
  if (PL_UNLIKELY(to >= limit)) goto not_there;
#define GATHER(T)                                                                           \
  {                                                                                         \
    const T *x = (const T *)(const void *)g->x + at;                                        \
    T *y = (T *)(void *)g->y + r * len;                                                     \
    if (vs == 0) {                                                                          \
      POSITION(0)                                                                           \
      x += (int64_t)to * xd;                                                                \
      plk_copy_loops()->window((char *)y, 0, 1, (const char *)x, 0, xs, 1, len, sizeof(T)); \
    } else if (xs == 0 && xd == 1) {                                                        \
      PLK_FOUR for (int64_t i = 0; i < len; i++) {                                          \
        POSITION(i)                                                                         \
        y[i] = x[to];                                                                       \
      }                                                                                     \
    } else {                                                                                \
      for (int64_t i = 0; i < len; i++) {                                                   \
        POSITION(i)                                                                         \
        y[i] = x[i * xs + (int64_t)to * xd];                                                \
      }                                                                                     \
    }                                                                                       \
  }                                                                                         \
  break;

static PlStatus gather_body(void *ctx, int64_t begin, int64_t end) {
  const Gather *g = ctx;
  int last = g->n - 1;
  int64_t coord[PL_MAX_DIM], at = 0, from = 0;
  const int64_t len = g->shape[last], xs = g->xs[last], xd = g->xdim, base = g->base;
  const int64_t vs = len == 1 ? 1 : g->vs[last]; /* one element is no row that is worth a call */
  const uint64_t limit = g->limit ? (uint64_t)g->limit : INT64_MAX;
  plk_nd_unravel(begin, last, g->shape, coord);
  for (int d = 0; d < last; d++) at += coord[d] * g->xs[d], from += coord[d] * g->vs[d];
  for (int64_t r = begin; r < end; r++) {
    const int64_t *v = g->v + from;
    switch (g->esize) {
    case 1: GATHER(uint8_t)
    case 2: GATHER(uint16_t)
    case 4: GATHER(uint32_t)
    default: GATHER(uint64_t)
    }
    for (int d = last - 1; d >= 0; d--) {
      at += g->xs[d], from += g->vs[d];
      if (++coord[d] < g->shape[d]) break;
      at -= coord[d] * g->xs[d], from -= coord[d] * g->vs[d];
      coord[d] = 0;
    }
  }
  return PL_OK;
not_there:
  atomic_store(g->bad, true);
  return PL_OK;
}

static PlStatus gather_run(Gather *g) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < g->n; d++) rows *= g->shape[d];
  if (g->shape[g->n - 1] == 0) return PL_OK;
  return plk_parallel(rows, plk_max64(1, PLK_GRAIN / g->shape[g->n - 1]), gather_body, g);
}

PlStatus plk_cpu_gather(const PlkCall *call) {
  const PlArray *x = call->in[0], *index = call->in[1];
  const int dim = (int)pl_attr_i(call->attrs, 0);
  Gather g = {.y = call->out[0]->data, .x = x->data, .n = index->ndim ? index->ndim : 1, .shape = {1}, .esize = esize_of(x)};
  const int64_t limit = x->ndim ? x->shape[dim] : 1, base = pl_attr_i(call->attrs, 1);
  atomic_bool bad = false;
  PlkIndex iv;
  if (index->numel == 0) return PL_OK;
  for (int d = 0; d < index->ndim; d++) {
    g.shape[d] = index->shape[d];
    g.xs[d] = d == dim || x->ndim == 0 ? 0 : x->strides[d];
  }
  g.xdim = x->ndim ? x->strides[dim] : 1;
  g.base = base, g.limit = limit, g.bad = &bad;
  PL_TRY(plk_index_unchecked(call->name, index, base, &iv, g.vs));
  g.v = iv.v;
  while (g.n > 1 && g.shape[g.n - 1] == 1 && index->numel < PLK_GRAIN) g.n--; /* one of each row: a row of these */
  PlStatus st = limit ? gather_run(&g) : PL_OK;
  plk_index_free(&iv);
  if (st != PL_OK || (limit && !atomic_load(&bad))) return st;
  PL_TRY(plk_index_spread(call->name, index, limit, base, call->code == 1, &iv, g.vs));
  g.v = iv.v, g.base = iv.base, g.limit = 0;
  st = gather_run(&g);
  plk_index_free(&iv);
  return st;
}

PlStatus plk_cpu_take_along_dim(const PlkCall *call) {
  const PlArray *x = call->in[0], *index = call->in[1], *y = call->out[0];
  bool flat = !pl_attr_has(call->attrs, 0) || x->ndim == 0;
  int dim = flat ? 0 : (int)pl_attr_i(call->attrs, 0);
  Gather g = {.y = call->out[0]->data, .x = x->data, .n = y->ndim ? y->ndim : 1, .shape = {1}, .esize = esize_of(x)};
  PlkIndex iv;
  int64_t steps[PL_MAX_DIM];
  PL_TRY(plk_index_spread(call->name, index, flat ? x->numel : x->shape[dim], pl_attr_i(call->attrs, 1), true, &iv, steps));
  void *wide = NULL;
  for (int d = 0; d < y->ndim; d++) {
    g.shape[d] = y->shape[d];
    g.xs[d] = flat || d == dim || x->shape[d] == 1 ? 0 : x->strides[d];
    g.vs[d] = flat ? 1 : steps[d];
  }
  PlStatus st = PL_OK;
  g.xdim = flat ? 1 : x->strides[dim];
  g.v = iv.v;
  g.base = iv.base;
  if (flat && iv.n != index->numel) { /* flat order asks for the repetitions */
    PlArray a = *index;
    const void *v = NULL;
    a.data = (void *)(uintptr_t)iv.v, a.strides = steps, a.contiguous = 0;
    st = plk_nd_dense(&a, PL_I64, index->ndim, index->shape, &wide, &v);
    g.v = v;
  }
  if (st == PL_OK) st = gather_run(&g);
  plk_scratch_free(wide);
  plk_index_free(&iv);
  return st;
}

/* ---- whole rows ------------------------------------------------------------------------------------------ */

static PlStatus select_rows(const PlkCall *call, const PlArray *index, int dim, int64_t base) {
  const PlArray *x = call->in[0];
  PlkRows r = {.table = x->data, .rows = call->out[0]->data, .dtype = (PlDtype)x->dtype};
  PlkIndex iv;
  int64_t *offs;
  PL_TRY(plk_index_load(call->name, index, x->ndim ? x->shape[dim] : 1, base, false, &iv));
  plk_rows_around(&r, x, dim, iv.n);
  PlStatus st = plk_rows_offsets(&iv, x->ndim ? x->strides[dim] : 1, &offs);
  plk_index_free(&iv);
  PL_TRY(st);
  r.offs = offs;
  st = plk_rows_get(&r);
  plk_scratch_free(offs);
  return st;
}

static PlStatus index_select(const PlkCall *call) {
  return select_rows(call, call->in[1], (int)pl_attr_i(call->attrs, 0), pl_attr_i(call->attrs, 1));
}
PlStatus plk_cpu_index_select(const PlkCall *call) { return plk_dense_out(call, index_select); }

static PlStatus embedding(const PlkCall *call) { return select_rows(call, call->in[1], 0, pl_attr_i(call->attrs, 2)); }
PlStatus plk_cpu_embedding(const PlkCall *call) { return plk_dense_out(call, embedding); }

PlStatus plk_cpu_take(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlkRows r = {.table = x->data, .rows = call->out[0]->data, .dtype = (PlDtype)x->dtype, .prow = 1};
  PlkIndex iv;
  int64_t *offs;
  PL_TRY(plk_index_load(call->name, call->in[1], x->numel, pl_attr_i(call->attrs, 0), true, &iv));
  r.np = iv.n;
  PlStatus st = plk_rows_offsets(&iv, 1, &offs);
  plk_index_free(&iv);
  PL_TRY(st);
  r.offs = offs;
  st = plk_rows_get(&r);
  plk_scratch_free(offs);
  return st;
}

static PlStatus index_get(const PlkCall *call) {
  const PlArray *x = call->in[0], *const *index = call->in + 1;
  PlkIndexPlan plan;
  int64_t *offs;
  bool given = pl_attr_has(call->attrs, 0);
  PL_TRY(plk_cpu_index_plan(call->name, x->ndim, x->shape, call->nin - 1, index, given ? pl_attr_n(call->attrs, 0) : 0,
                            given ? pl_attr_list(call->attrs, 0) : NULL, &plan));
  PL_TRY(plk_plan_offsets(call->name, &plan, index, x->shape, x->strides, pl_attr_i(call->attrs, 1), &offs));
  PlkRows r = {.table = x->data, .rows = call->out[0]->data, .offs = offs, .dtype = (PlDtype)x->dtype};
  plk_plan_rows(&r, &plan, x->ndim, x->shape, x->strides);
  PlStatus st = plk_rows_get(&r);
  plk_scratch_free(offs);
  return st;
}
PlStatus plk_cpu_index(const PlkCall *call) { return plk_dense_out(call, index_get); }

PlStatus plk_cpu_one_hot(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  int64_t classes = y->shape[y->ndim - 1], *out = y->data;
  PlkIndex iv;
  PL_TRY(plk_index_load(call->name, x, classes, pl_attr_i(call->attrs, 1), false, &iv));
  PlStatus st = plk_nd_zero(out, (size_t)y->numel * sizeof *out);
  for (int64_t i = 0; i < iv.n && st == PL_OK; i++) out[i * classes + iv.v[i] - iv.base] = 1;
  plk_index_free(&iv);
  return st;
}

PlStatus plk_cpu_index_max(const PlArray *x, int64_t *max) {
  void *scratch;
  const void *data;
  PL_TRY(plk_nd_dense(x, PL_I64, x->ndim, x->shape, &scratch, &data));
  const int64_t *v = data;
  int64_t top[4] = {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}, i = 0; /* four chains of comparisons */
  for (; i + 4 <= x->numel; i += 4)
    for (int j = 0; j < 4; j++) top[j] = plk_max64(top[j], v[i + j]);
  for (; i < x->numel; i++) top[0] = plk_max64(top[0], v[i]);
  *max = plk_max64(plk_max64(top[0], top[1]), plk_max64(top[2], top[3]));
  plk_scratch_free(scratch);
  return PL_OK;
}
