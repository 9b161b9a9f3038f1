/* SPDX-License-Identifier: MIT
 * Where rows of a table begin (index.h): index values, lists of index tensors and masks become offsets. Values are checked here. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/index/index.h"

struct Values {    /* one index tensor against the positions */
  plc_layout<2> l; /* positions, index */
  const void *v;
  int dtype;
  int64_t base, n, stride;
  bool wrap, first;
  PlcFlag *flag;
  uint64_t name;
};

__global__ void add_offsets(Values s, int64_t *offs) {
  for (PLC_EACH(p, s.l.numel)) {
    int64_t at[2];
    plc_offsets<2>(s.l, p, at);
    int64_t i = plc_resolved(s.flag, s.name, plc_get_i(s.v, s.dtype, at[1]), s.base, s.n, s.wrap);
    offs[p] = (s.first ? 0 : offs[p]) + (i < 0 ? 0 : i) * s.stride;
  }
}

static Values values(const PlkCall *c, const PlArray *index, int64_t n, int64_t stride, int64_t base, bool wrap) {
  Values s;
  memset(&s, 0, sizeof s);
  s.v = index->data, s.dtype = index->dtype, s.base = base, s.n = n, s.stride = stride, s.wrap = wrap, s.first = true;
  s.flag = plc_flag();
  s.name = (uint64_t)(uintptr_t)c->name;
  return s;
}

static PlStatus make_offsets(PlcRows *r, Values *s, int ndim, const int64_t *shape, const PlArray *index) {
  PlArray dense = *index;
  int64_t strides[PL_MAX_DIM], step = 1;
  for (int d = ndim - 1; d >= 0; d--) strides[d] = step, step *= shape[d];
  dense.ndim = (uint8_t)ndim, dense.shape = shape, dense.strides = strides, dense.numel = r->np;
  const PlArray *arr[2] = {&dense, index};
  plc_layout_of<2>(&s->l, arr);
  if (r->np) PLC_LAUNCH(add_offsets, plc_grid(r->np, 1), PLC_BLOCK, 0, *s, r->offs);
  return PL_OK;
}

static void free_dims(plc_layout<1> *l, int64_t *count, int n, const int64_t *shape, const int64_t *strides) {
  PlArray a;
  memset(&a, 0, sizeof a);
  a.ndim = (uint8_t)n, a.shape = shape, a.strides = strides, a.numel = 1;
  for (int d = 0; d < n; d++) a.numel *= shape[d];
  const PlArray *arr[1] = {&a};
  plc_layout_of<1>(l, arr);
  *count = a.numel;
}

PlStatus plc_rows_along(const PlkCall *c, const PlArray *table, const PlArray *index, int dim, int64_t base, bool wrap, PlcRows *r) {
  void *offs;
  if (base < 0) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", c->name, (long long)base);
  r->np = index->numel;
  int nd = table->ndim;
  free_dims(&r->a, &r->na, nd ? dim : 0, table->shape, table->strides);
  free_dims(&r->b, &r->nb, nd ? nd - dim - 1 : 0, table->shape + (nd ? dim + 1 : 0), table->strides + (nd ? dim + 1 : 0));
  int64_t n = nd ? table->shape[dim] : 1, stride = nd ? table->strides[dim] : 1;
  r->span = (n > 0 ? n - 1 : 0) * stride + 1;
  r->unit = stride;
  PL_TRY(plc_scratch((size_t)(r->np + 1) * sizeof(int64_t), &offs));
  r->offs = (int64_t *)offs;
  Values s = values(c, index, n, stride, base, wrap);
  return make_offsets(r, &s, index->ndim, index->shape, index);
}

PlStatus plc_rows_at(const PlkCall *c, const PlArray *table, const PlArray *index, int64_t base, bool wrap, PlcRows *r) {
  PlArray flat = *table;
  int64_t one = 1;
  flat.ndim = 1, flat.shape = &table->numel, flat.strides = &one;
  return plc_rows_along(c, &flat, index, 0, base, wrap, r);
}

__global__ void mask_positions(int64_t n, int ndim, plc_layout<1> l, const int64_t *positions, int64_t *out) {
  for (PLC_EACH(i, n)) {
    int64_t at[1];
    plc_offsets<1>(l, positions[i], at);
    out[i] = ndim ? at[0] : 0;
  }
}

/* A mask's trues as offsets into the table: an i64 array of its own. */
static PlStatus mask_offsets(const PlArray *mask, const int64_t *strides, int64_t **out, int64_t *count) {
  int64_t *found;
  PL_TRY(plc_nonzero(mask, &found, count));
  PlArray where = *mask;
  where.strides = strides;
  const PlArray *arr[1] = {&where};
  plc_layout<1> l;
  plc_layout_of<1>(&l, arr);
  if (*count) PLC_LAUNCH(mask_positions, plc_grid(*count, 1), PLC_BLOCK, 0, *count, (int)mask->ndim, l, (const int64_t *)found, found);
  *out = found;
  return PL_OK;
}

/* As kernels/cpu/index/index_plan.c; shapes were checked by the infer rule, but for how many trues a mask has. */
PlStatus plc_rows_listed(const PlkCall *c, const PlArray *table, int n, const PlArray *const *index, int ndims, const int64_t *dims,
                         int64_t base, PlcRows *r) {
  struct {
    int dim, ndim;
    int64_t count, *found;
  } at[PL_MAX_DIM];
  uint8_t taken[PL_MAX_DIM] = {PLK_FREE};
  int nb = 0;
  int64_t shape[PL_MAX_DIM], next = 0;
  PlStatus s = PL_OK;
  void *offs = NULL;
  r->offs = NULL;
  if (base < 0) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", c->name, (long long)base);
  for (int k = 0; k < n; k++) at[k].found = NULL;
  for (int k = 0; k < n && s == PL_OK; k++) {
    const PlArray *a = index[k];
    if (ndims) next = dims[k];
    at[k].dim = (int)next;
    at[k].ndim = a->dtype == PL_BOOL ? a->ndim : 1;
    for (int d = 0; d < at[k].ndim; d++) taken[next + d] = a->dtype != PL_BOOL && a->ndim == 0 ? PLK_ONE : PLK_POSITIONS;
    int64_t one = 0;
    const int64_t *as = a->shape;
    int an = a->ndim;
    if (a->dtype == PL_BOOL) {
      s = mask_offsets(a, table->strides + next, &at[k].found, &at[k].count);
      one = at[k].count, as = &one, an = 1;
    }
    for (int lead = an - nb; lead > 0; lead = an - nb) {
      for (int d = nb - 1; d >= 0; d--) shape[d + 1] = shape[d];
      shape[0] = 1;
      nb++;
    }
    for (int d = 0; d < an; d++) {
      int64_t *have = &shape[nb - an + d];
      if (as[d] != 1 && *have != 1 && *have != as[d])
        s = pl_fail(PL_ERR_SHAPE, "%s: index tensor %d does not broadcast with those before it: sizes %lld and %lld differ", c->name, k + 1,
                    (long long)as[d], (long long)*have);
      if (as[d] != 1) *have = as[d];
    }
    next += at[k].ndim;
  }
  r->np = 1;
  for (int d = 0; d < nb; d++) r->np *= shape[d];
  int where = plk_index_where(table->ndim, taken), before = 0, na = 0, ny = 0;
  int64_t sa[PL_MAX_DIM], ta[PL_MAX_DIM], sb[PL_MAX_DIM], tb[PL_MAX_DIM];
  r->span = r->unit = 1;
  for (int d = 0; d < table->ndim; d++) {
    if (taken[d]) r->span += (table->shape[d] > 0 ? table->shape[d] - 1 : 0) * table->strides[d];
    else if (before++ < where) sa[na] = table->shape[d], ta[na++] = table->strides[d];
    else sb[ny] = table->shape[d], tb[ny++] = table->strides[d];
  }
  free_dims(&r->a, &r->na, na, sa, ta);
  free_dims(&r->b, &r->nb, ny, sb, tb);
  r->result_ndim = 0;
  for (int d = 0; d < na; d++) r->result[r->result_ndim++] = sa[d];
  for (int d = 0; d < nb; d++) r->result[r->result_ndim++] = shape[d];
  for (int d = 0; d < ny; d++) r->result[r->result_ndim++] = sb[d];
  if (s == PL_OK) s = plc_scratch((size_t)(r->np + 1) * sizeof(int64_t), &offs);
  r->offs = (int64_t *)offs;
  for (int k = 0; k < n && s == PL_OK; k++) {
    int64_t one = 1;
    PlArray list = *index[k];
    Values v = values(c, index[k], table->shape[at[k].dim < table->ndim ? at[k].dim : 0], 1, base, true);
    if (at[k].found) { /* offsets already: every value below the span is fine */
      list.data = at[k].found, list.dtype = PL_I64, list.ndim = 1, list.shape = &at[k].count, list.strides = &one, list.numel = at[k].count;
      v = values(c, &list, INT64_MAX, 1, 0, false);
    } else v.stride = table->strides[at[k].dim];
    v.first = k == 0;
    s = make_offsets(r, &v, nb, shape, &list);
  }
  for (int k = 0; k < n; k++) plc_scratch_free(at[k].found);
  if (s != PL_OK) {
    plc_scratch_free(r->offs);
    r->offs = NULL;
  }
  return s;
}
