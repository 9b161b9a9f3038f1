/* SPDX-License-Identifier: MIT
 * Reading at positions: gather, take_along_dim, index_select, take, embedding, lists of index tensors, one_hot. Index values are
 * checked where they are read. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/index/index.h"

template <typename T> __global__ void get_rows(PlcRows r, plc_places places, const T *table, plc_layout<1> yl, T *y) {
  for (PLC_EACH(e, r.na * r.np * r.nb)) {
    int64_t a, p, b, to[1];
    plc_place_at(places, e, &a, &p, &b);
    plc_offsets<1>(yl, e, to);
    y[to[0]] = table[plc_row_offset(r, a, p, b)];
  }
}

/* Rows that are dense, to a dense array: in units of E, which is an element or 16 bytes. offs: in elements of `size` bytes. */
template <typename E> __global__ void get_whole(int64_t n, plc_places places, const int64_t *offs, int64_t size, const char *table, E *y) {
  for (PLC_EACH(e, n)) {
    int64_t a, p, b;
    plc_place_at(places, e, &a, &p, &b);
    y[e] = ((const E *)(table + offs[p] * size))[b];
  }
}
template <typename E> static PlStatus whole(const PlcRows *r, const PlArray *table, PlArray *y, int64_t size) {
  PlcRows units = *r;
  units.nb = r->nb * size / (int64_t)sizeof(E);
  const int64_t n = units.np * units.nb;
  PLC_LAUNCH(get_whole<E>, plc_grid(n, 1), PLC_BLOCK, 0, n, plc_places_of(&units), (const int64_t *)r->offs, size,
             (const char *)table->data, (E *)y->data);
  return PL_OK;
}

PlStatus plc_rows_get(const PlcRows *r, const PlArray *table, PlArray *y) {
  int64_t n = r->na * r->np * r->nb;
  const int64_t size = (int64_t)pl_dtype_size((PlDtype)y->dtype);
  if (n == 0 || table->numel == 0) return PL_OK;
  if (r->na == 1 && y->contiguous && (r->b.ndim == 0 || (r->b.ndim == 1 && r->b.stride[0][0] == 1))) {
    const uint64_t all =
        (uint64_t)(uintptr_t)table->data | (uint64_t)(uintptr_t)y->data | (uint64_t)(r->nb * size) | (uint64_t)(r->unit * size);
    if (all % 16 == 0) return whole<Sixteen>(r, table, y, size);
    PLC_BITS(y->dtype, T, return whole<T>(r, table, y, size));
  }
  const PlArray *arr[1] = {y};
  plc_layout<1> yl;
  plc_layout_of<1>(&yl, arr);
  PLC_BITS(y->dtype, T,
           PLC_LAUNCH(get_rows<T>, plc_grid(n, 1), PLC_BLOCK, 0, *r, plc_places_of(r), (const T *)table->data, yl, (T *)y->data));
  return PL_OK;
}

static PlStatus read_rows(PlStatus s, PlcRows *r, const PlkCall *c) {
  if (s == PL_OK) s = plc_rows_get(r, c->in[0], c->out[0]);
  plc_scratch_free(r->offs);
  return s;
}

static PlStatus index_select(const PlkCall *c) {
  PlcRows r;
  r.offs = NULL;
  PlStatus s = plc_rows_along(c, c->in[0], c->in[1], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false, &r);
  return read_rows(s, &r, c);
}
static PlStatus embedding(const PlkCall *c) {
  PlcRows r;
  r.offs = NULL;
  PlStatus s = plc_rows_along(c, c->in[0], c->in[1], 0, pl_attr_i(c->attrs, 2), false, &r);
  return read_rows(s, &r, c);
}
static PlStatus take(const PlkCall *c) {
  PlcRows r;
  r.offs = NULL;
  PlStatus s = plc_rows_at(c, c->in[0], c->in[1], pl_attr_i(c->attrs, 0), true, &r);
  return read_rows(s, &r, c);
}
static PlStatus index_list(const PlkCall *c) {
  PlcRows r;
  bool given = pl_attr_has(c->attrs, 0);
  r.offs = NULL;
  PlStatus s = plc_rows_listed(c, c->in[0], c->nin - 1, c->in + 1, given ? pl_attr_n(c->attrs, 0) : 0,
                               given ? pl_attr_list(c->attrs, 0) : NULL, pl_attr_i(c->attrs, 1), &r);
  return read_rows(s, &r, c);
}
PLC_KERNEL(index_select, index_select)
PLC_KERNEL(embedding, embedding)
PLC_KERNEL(take, take)
PLC_KERNEL(index, index_list)

/* ---- gather ----------------------------------------------------------------------------------------------------------- */

struct Gather {
  plc_layout<3> l; /* y, index, x without its dim */
  int dtype;
  int64_t base, n, stride;
  bool wrap;
  PlcFlag *flag;
  uint64_t name;
};
template <typename T> __global__ void gather_any(Gather g, const T *x, const void *v, T *y) {
  for (PLC_EACH(i, g.l.numel)) {
    int64_t at[3];
    plc_offsets<3>(g.l, i, at);
    int64_t k = plc_resolved(g.flag, g.name, plc_get_i(v, g.dtype, at[1]), g.base, g.n, g.wrap);
    if (k >= 0) y[at[0]] = x[at[2] + k * g.stride];
  }
}
/* x's dim `dim` is walked by the index; `flat`: x as one row. */
static PlStatus run_gather(const PlkCall *c, int dim, bool flat, int64_t base, bool wrap) {
  const PlArray *x = c->in[0], *index = c->in[1];
  PlArray *y = c->out[0], other = *x;
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  if (y->numel == 0) return PL_OK;
  other.ndim = y->ndim, other.shape = shape, other.strides = strides;
  for (int d = 0; d < y->ndim; d++) {
    shape[d] = y->shape[d];
    strides[d] = flat || d == dim || x->ndim == 0 || x->shape[d] == 1 ? 0 : x->strides[d];
  }
  const PlArray *arr[3] = {y, index, &other};
  Gather g;
  memset(&g, 0, sizeof g);
  PlArray line = *index; /* flat: as many values as y has, in its shape */
  int64_t ls[PL_MAX_DIM], step = 1;
  if (flat && index->numel == y->numel) {
    for (int d = y->ndim - 1; d >= 0; d--) ls[d] = step, step *= y->shape[d];
    line.ndim = y->ndim, line.shape = y->shape, line.strides = ls;
    arr[1] = &line;
  }
  plc_layout_of<3>(&g.l, arr);
  g.dtype = index->dtype, g.base = base, g.wrap = wrap;
  g.n = flat ? x->numel : x->ndim ? x->shape[dim] : 1;
  g.stride = flat ? 1 : x->ndim ? x->strides[dim] : 1;
  g.flag = plc_flag();
  g.name = (uint64_t)(uintptr_t)c->name;
  PLC_BITS(y->dtype, T,
           PLC_LAUNCH(gather_any<T>, plc_grid(y->numel, 1), PLC_BLOCK, 0, g, (const T *)x->data, (const void *)index->data, (T *)y->data));
  return PL_OK;
}
static PlStatus gather(const PlkCall *c) { return run_gather(c, (int)pl_attr_i(c->attrs, 0), false, pl_attr_i(c->attrs, 1), c->code == 1); }
static PlStatus take_along_dim(const PlkCall *c) {
  bool flat = !pl_attr_has(c->attrs, 0) || c->in[0]->ndim == 0;
  return run_gather(c, flat ? 0 : (int)pl_attr_i(c->attrs, 0), flat, pl_attr_i(c->attrs, 1), true);
}
PLC_KERNEL(gather, gather)
PLC_KERNEL(take_along_dim, take_along_dim)

__global__ void hot(int64_t n, int64_t classes, const void *x, int dtype, int64_t base, PlcFlag *flag, uint64_t name, int64_t *y) {
  for (PLC_EACH(e, n * classes)) {
    int64_t i = e / classes, k = e % classes, v = plc_get_i(x, dtype, i) - base;
    if (k == 0) (void)plc_resolved(flag, name, v + base, base, classes, false);
    y[e] = v == k;
  }
}
static PlStatus one_hot(const PlkCall *c) {
  PlArray *y = c->out[0];
  const PlArray *x = c->in[0];
  if (y->numel)
    PLC_LAUNCH(hot, plc_grid(y->numel, 1), PLC_BLOCK, 0, x->numel, y->shape[y->ndim - 1], (const void *)x->data, (int)x->dtype,
               pl_attr_i(c->attrs, 1), plc_flag(), (uint64_t)(uintptr_t)c->name, (int64_t *)y->data);
  return PL_OK;
}
PLC_KERNEL(one_hot, one_hot)
