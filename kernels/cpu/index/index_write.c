/* SPDX-License-Identifier: MIT
 * Writing rows at positions: index_add, index_copy, index_fill, index_put, and the adjoints of index_select,
 * take, embedding and index. */
#include <string.h>

#include "kernels/cpu/index/rowmove.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

/* ---- along one dim -------------------------------------------------------------------------------------- */

typedef enum How { PUT_SET, PUT_ADD, PUT_FILL } How;

/* out[.., index[p], ..] = or += src[.., p, ..]; src contiguous. */
static PlStatus put_along(const char *op, PlArray *out, const PlArray *src, const PlArray *index, int dim, int64_t base, How how,
                          double alpha, int64_t ialpha, const PlArray *start_from) {
  PlkRows r = {.table = out->data, .rows = src->data, .dtype = (PlDtype)out->dtype, .alpha = alpha, .ialpha = ialpha};
  PlkIndex iv;
  int64_t *offs;
  PL_TRY(plk_index_load(op, index, out->ndim ? out->shape[dim] : 1, base, false, &iv));
  plk_rows_around(&r, out, dim, iv.n);
  PlStatus st = plk_rows_offsets(&iv, out->ndim ? out->strides[dim] : 1, &offs);
  plk_index_free(&iv);
  PL_TRY(st);
  r.offs = offs;
  if (how == PUT_FILL) {
    r.prow = 0;
    memset(r.arow, 0, sizeof r.arow);
    memset(r.brow, 0, sizeof r.brow);
  }
  st = start_from ? plk_start_from(start_from, out) : plk_nd_zero(out->data, (size_t)out->numel * esize_of(out));
  if (st == PL_OK) st = how == PUT_ADD ? plk_rows_add(&r) : plk_rows_set(&r);
  plk_scratch_free(offs);
  return st;
}

static PlStatus index_add(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  bool whole = (a->isint >> 1) & 1;
  double alpha = whole ? (double)a->v[1].i : a->v[1].f;
  return put_along(call->name, call->out[0], call->in[2], call->in[1], (int)pl_attr_i(a, 0), pl_attr_i(a, 2), PUT_ADD, alpha,
                   whole ? a->v[1].i : (int64_t)alpha, call->in[0]);
}
PlStatus plk_cpu_index_add(const PlkCall *call) { return plk_wide_sums(call, index_add); }

PlStatus plk_cpu_index_copy(const PlkCall *call) {
  return put_along(call->name, call->out[0], call->in[2], call->in[1], (int)pl_attr_i(call->attrs, 0), pl_attr_i(call->attrs, 1), PUT_SET,
                   1.0, 1, call->in[0]);
}

PlStatus plk_cpu_index_fill(const PlkCall *call) {
  uint64_t value = 0;
  PlkNd one = {0};
  PlArray src = {.data = &value};
  plk_nd_dim(&one, 1, 1, 1);
  PL_TRY(plk_nd_cast(&value, (PlDtype)call->out[0]->dtype, call->in[2]->data, (PlDtype)call->in[2]->dtype, &one));
  return put_along(call->name, call->out[0], &src, call->in[1], (int)pl_attr_i(call->attrs, 0), pl_attr_i(call->attrs, 1), PUT_FILL, 1.0, 1,
                   call->in[0]);
}

static PlStatus index_select_bwd(const PlkCall *call) {
  return put_along(call->name, call->out[0], call->in[0], call->in[1], (int)pl_attr_i(call->attrs, 1), pl_attr_i(call->attrs, 2), PUT_ADD,
                   1.0, 1, NULL);
}
PlStatus plk_cpu_index_select_bwd(const PlkCall *call) { return plk_wide_sums(call, index_select_bwd); }

static PlStatus take_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  PlkRows r = {.table = dx->data,
               .rows = dy->data,
               .dtype = (PlDtype)dx->dtype,
               .alpha = 1.0,
               .ialpha = 1,
               .prow = 1,
               .span = plk_max64(1, dx->numel)};
  PlkIndex iv;
  int64_t *offs;
  PL_TRY(plk_index_load(call->name, call->in[1], dx->numel, pl_attr_i(call->attrs, 1), true, &iv));
  r.np = iv.n;
  PlStatus st = plk_rows_offsets(&iv, 1, &offs);
  plk_index_free(&iv);
  PL_TRY(st);
  r.offs = offs;
  st = plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx));
  if (st == PL_OK) st = plk_rows_add(&r);
  plk_scratch_free(offs);
  return st;
}
PlStatus plk_cpu_take_bwd(const PlkCall *call) { return plk_wide_sums(call, take_bwd); }

/* ---- embedding -------------------------------------------------------------------------------------------- */

/* Divides every row by how often its id occurs. */
static PlStatus by_frequency(PlArray *dw, const PlkIndex *iv) {
  void *mem;
  const int64_t rows = dw->shape[0], cols = dw->shape[1];
  PL_TRY(plk_scratch((size_t)(rows + cols + 1) * sizeof(int64_t), &mem));
  int64_t *count = mem;
  double *tmp = (double *)(void *)(count + rows);
  memset(count, 0, (size_t)rows * sizeof *count);
  for (int64_t i = 0; i < iv->n; i++) count[iv->v[i] - iv->base]++;
  for (int64_t r = 0; r < rows; r++) {
    if (count[r] < 2) continue;
    void *row = plk_at(dw->data, r * cols, esize_of(dw));
    plk_nd_load_f64(tmp, row, (PlDtype)dw->dtype, cols, 1);
    for (int64_t k = 0; k < cols; k++) tmp[k] /= (double)count[r];
    plk_nd_store_f64(row, (PlDtype)dw->dtype, tmp, cols, 1);
  }
  plk_scratch_free(mem);
  return PL_OK;
}

static PlStatus embedding_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dw = call->out[0];
  const PlAttrs *a = call->attrs;
  const int64_t base = pl_attr_i(a, 3);
  PL_TRY(put_along(call->name, dw, dy, call->in[1], 0, base, PUT_ADD, 1.0, 1, NULL));
  PlStatus st = PL_OK;
  if (pl_attr_i(a, 2)) {
    PlkIndex iv;
    PL_TRY(plk_index_load(call->name, call->in[1], dw->shape[0], base, false, &iv));
    st = by_frequency(dw, &iv);
    plk_index_free(&iv);
  }
  if (st == PL_OK && pl_attr_has(a, 1)) {
    int64_t row = pl_attr_i(a, 1), n = dw->shape[1];
    row = row < 0 ? row + dw->shape[0] : row - base;
    st = plk_nd_zero(plk_at(dw->data, row * n, esize_of(dw)), (size_t)n * esize_of(dw));
  }
  return st;
}
PlStatus plk_cpu_embedding_bwd(const PlkCall *call) { return plk_wide_sums(call, embedding_bwd); }

/* ---- lists of index tensors ------------------------------------------------------------------------------- */

/* The values as contiguous rows of the plan's shape: x's dtype, broadcast; one number stays one number. */
static PlStatus value_rows(const PlArray *value, const PlArray *out, const PlkIndexPlan *plan, PlkRows *r, uint64_t *one, void **scratch) {
  PlkNd w = {0};
  PlDtype t = (PlDtype)out->dtype;
  const void *data;
  *scratch = NULL;
  if (value->numel == 1) {
    plk_nd_dim(&w, 1, 1, 1);
    r->rows = (char *)one;
    r->prow = 0;
    memset(r->arow, 0, sizeof r->arow);
    memset(r->brow, 0, sizeof r->brow);
    return plk_nd_cast(one, t, value->data, (PlDtype)value->dtype, &w);
  }
  PlArray src = *value;
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  while (src.ndim > plan->ndim && src.shape[0] == 1) { /* extra leading ones do no harm */
    src.ndim--;
    src.shape++;
    src.strides++;
  }
  memcpy(shape, src.shape, src.ndim * sizeof *shape);
  memcpy(strides, src.strides, src.ndim * sizeof *strides);
  src.shape = shape;
  src.strides = strides;
  if (value->data == out->data) src.contiguous = 0; /* values that are about to be overwritten */
  PL_TRY(plk_nd_dense(&src, t, plan->ndim, plan->shape, scratch, &data));
  r->rows = (char *)(uintptr_t)data;
  return PL_OK;
}

/* One number under one mask of all dims is a masked_fill, which needs no list of positions. */
static bool is_masked_fill(const PlkCall *call) {
  const PlArray *x = call->in[0], *m = call->in[2];
  return call->nin == 3 && m->dtype == PL_BOOL && m->ndim == x->ndim && call->in[1]->numel == 1 && !pl_attr_i(call->attrs, 1);
}

static PlStatus fill_masked(const PlkCall *call) {
  const PlArray *in[3] = {call->in[0], call->in[2], call->in[1]};
  PlkCall fill = *call;
  fill.in = in;
  return plk_cpu_masked_fill(&fill);
}

static PlStatus index_put(const PlkCall *call) {
  const PlArray *x = call->in[0], *value = call->in[1], *const *index = call->in + 2;
  PlArray *y = call->out[0];
  const PlAttrs *a = call->attrs;
  const bool given = pl_attr_has(a, 0);
  PlkIndexPlan plan;
  int64_t *offs;
  uint64_t one = 0;
  void *scratch;
  if (is_masked_fill(call)) return fill_masked(call);
  PL_TRY(plk_cpu_index_plan(call->name, x->ndim, x->shape, call->nin - 2, index, given ? pl_attr_n(a, 0) : 0,
                            given ? pl_attr_list(a, 0) : NULL, &plan));
  PL_TRY(plk_plan_offsets(call->name, &plan, index, y->shape, y->strides, pl_attr_i(a, 2), &offs));
  PlkRows r = {.table = y->data, .offs = offs, .dtype = (PlDtype)y->dtype, .alpha = 1.0, .ialpha = 1};
  plk_plan_rows(&r, &plan, y->ndim, y->shape, y->strides);
  PlStatus st = value_rows(value, y, &plan, &r, &one, &scratch);
  if (st == PL_OK) st = plk_start_from(x, y);
  if (st == PL_OK) st = pl_attr_i(a, 1) ? plk_rows_add(&r) : plk_rows_set(&r);
  plk_scratch_free(scratch);
  plk_scratch_free(offs);
  return st;
}
PlStatus plk_cpu_index_put(const PlkCall *call) { return pl_attr_i(call->attrs, 1) ? plk_wide_sums(call, index_put) : index_put(call); }

static PlStatus index_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0], *const *index = call->in + 1;
  PlArray *dx = call->out[0];
  const PlAttrs *a = call->attrs;
  const bool given = pl_attr_has(a, 1);
  PlkIndexPlan plan;
  int64_t *offs;
  PL_TRY(plk_cpu_index_plan(call->name, dx->ndim, dx->shape, call->nin - 1, index, given ? pl_attr_n(a, 1) : 0,
                            given ? pl_attr_list(a, 1) : NULL, &plan));
  bool fits = dy->ndim == plan.ndim; /* with masks the plan depends on values, which no infer rule has looked at */
  for (int d = 0; fits && d < plan.ndim; d++) fits = dy->shape[d] == plan.shape[d];
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "%s: dy does not have the shape of what the indices select", call->name);
  PL_TRY(plk_plan_offsets(call->name, &plan, index, dx->shape, dx->strides, pl_attr_i(a, 2), &offs));
  PlkRows r = {.table = dx->data, .rows = dy->data, .offs = offs, .dtype = (PlDtype)dx->dtype, .alpha = 1.0, .ialpha = 1};
  plk_plan_rows(&r, &plan, dx->ndim, dx->shape, dx->strides);
  PlStatus st = plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx));
  if (st == PL_OK) st = plk_rows_add(&r);
  plk_scratch_free(offs);
  return st;
}
PlStatus plk_cpu_index_bwd(const PlkCall *call) { return plk_wide_sums(call, index_bwd); }
