/* SPDX-License-Identifier: MIT
 * Reading at positions: gather, take_along_dim, index_select, take, embedding, lists of index tensors, one_hot; masks and
 * nonzero. Index values are checked where they are read. */
#include "kernels/cuda/index.h"
#include "kernels/cuda/radix.h"
extern "C" {
#include "kernels/elementwise.h"
}

/* ---- offsets of rows ----------------------------------------------------------------------------------------------- */

struct Values { /* one index tensor against the positions */
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
    int64_t i = plc_resolved(s.flag, s.name, plc_i64_at(s.v, s.dtype, at[1]), s.base, s.n, s.wrap);
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

/* NumPy's rule, as kernels/cpu/index_plan.c has it; shapes were checked by the infer rule. */
PlStatus plc_rows_listed(const PlkCall *c, const PlArray *table, int n, const PlArray *const *index, int ndims, const int64_t *dims,
                         int64_t base, PlcRows *r) {
  struct { int dim, ndim; int64_t count, *found; } at[PL_MAX_DIM];
  bool taken[PL_MAX_DIM] = {false};
  int nb = 0, first = -1, last = -1, count = 0;
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
    for (int d = 0; d < at[k].ndim; d++) taken[next + d] = true;
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
    for (int d = 0; d < an; d++)
      if (as[d] != 1) shape[nb - an + d] = as[d];
    next += at[k].ndim;
  }
  r->np = 1;
  for (int d = 0; d < nb; d++) r->np *= shape[d];
  for (int d = 0; d < table->ndim; d++)
    if (taken[d]) first = first < 0 ? d : first, last = d, count++;
  int where = count > 0 && last - first + 1 == count ? first : 0, before = 0, na = 0, ny = 0;
  int64_t sa[PL_MAX_DIM], ta[PL_MAX_DIM], sb[PL_MAX_DIM], tb[PL_MAX_DIM];
  r->span = 1;
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
    } else
      v.stride = table->strides[at[k].dim];
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

template <typename T> __global__ void get_rows(PlcRows r, const T *table, plc_layout<1> yl, T *y) {
  for (PLC_EACH(e, r.na * r.np * r.nb)) {
    int64_t b = e % r.nb, p = e / r.nb % r.np, a = e / (r.nb * r.np), to[1];
    plc_offsets<1>(yl, e, to);
    y[to[0]] = table[plc_row_offset(r, a, p, b)];
  }
}
PlStatus plc_rows_get(const PlcRows *r, const PlArray *table, PlArray *y) {
  int64_t n = r->na * r->np * r->nb;
  const PlArray *arr[1] = {y};
  plc_layout<1> yl;
  plc_layout_of<1>(&yl, arr);
  if (n && table->numel) PLC_BITS(y->dtype, T, PLC_LAUNCH(get_rows<T>, plc_grid(n, 1), PLC_BLOCK, 0, *r, (const T *)table->data, yl, (T *)y->data));
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
    int64_t k = plc_resolved(g.flag, g.name, plc_i64_at(v, g.dtype, at[1]), g.base, g.n, g.wrap);
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
  PLC_BITS(y->dtype, T, PLC_LAUNCH(gather_any<T>, plc_grid(y->numel, 1), PLC_BLOCK, 0, g, (const T *)x->data, (const void *)index->data, (T *)y->data));
  return PL_OK;
}
static PlStatus gather(const PlkCall *c) {
  return run_gather(c, (int)pl_attr_i(c->attrs, 0), false, pl_attr_i(c->attrs, 1), c->code == 1);
}
static PlStatus take_along_dim(const PlkCall *c) {
  bool flat = !pl_attr_has(c->attrs, 0) || c->in[0]->ndim == 0;
  return run_gather(c, flat ? 0 : (int)pl_attr_i(c->attrs, 0), flat, pl_attr_i(c->attrs, 1), true);
}
PLC_KERNEL(gather, gather)
PLC_KERNEL(take_along_dim, take_along_dim)

__global__ void hot(int64_t n, int64_t classes, const void *x, int dtype, int64_t base, PlcFlag *flag, uint64_t name, int64_t *y) {
  for (PLC_EACH(e, n * classes)) {
    int64_t i = e / classes, k = e % classes, v = plc_i64_at(x, dtype, i) - base;
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

/* ---- masks ------------------------------------------------------------------------------------------------------------- */

/* y = mask ? value : x */
static PlStatus masked_fill(const PlkCall *c) {
  PlArray *y = c->out[0];
  const PlArray *v = c->in[2];
  void *scratch = NULL;
  PlArray cast = *v, *to[1] = {&cast};
  PlStatus s = PL_OK;
  if (v->dtype != y->dtype) { /* one number */
    s = plc_scratch(16, &scratch);
    cast.data = scratch, cast.dtype = y->dtype, cast.device = PL_CUDA;
    const PlArray *from[1] = {v};
    PlkCall k = *c;
    k.code = PLK_EW_CAST, k.nin = 1, k.in = from, k.out = to;
    if (s == PL_OK) s = plc_run("elementwise", &k);
  }
  const PlArray *in[3] = {c->in[1], &cast, c->in[0]};
  PlkCall k = *c;
  k.code = PLK_EW_WHERE, k.nin = 3, k.in = in;
  if (s == PL_OK) s = plc_run("elementwise", &k);
  plc_scratch_free(scratch);
  return s;
}
PLC_KERNEL(masked_fill, masked_fill)

/* Element number positions[i] of a broadcast array, by its layout; forward: to[i] = from[that], else to[that] = from[i]. */
template <typename T>
__global__ void by_positions(int64_t n, const int64_t *positions, plc_layout<1> l, bool forward, const T *from, int64_t count, T *to) {
  for (PLC_EACH(i, n)) {
    int64_t at[1];
    plc_offsets<1>(l, positions[i], at);
    if (forward) to[i] = from[at[0]];
    else if (i < count) to[at[0]] = from[i];
  }
}
static void expanded(const PlArray *x, int ndim, const int64_t *shape, int64_t numel, plc_layout<1> *l, PlArray *room, int64_t *strides) {
  *room = *x;
  for (int d = 0; d < ndim; d++) {
    int at = d - (ndim - x->ndim);
    strides[d] = at < 0 || x->shape[at] == 1 ? 0 : x->strides[at];
  }
  room->ndim = (uint8_t)ndim, room->shape = shape, room->strides = strides, room->numel = numel;
  const PlArray *arr[1] = {room};
  plc_layout_of<1>(l, arr);
}
static void common_shape(const PlArray *a, const PlArray *b, int *ndim, int64_t *shape, int64_t *numel) {
  *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  *numel = 1;
  for (int d = 0; d < *ndim; d++) {
    int i = d - (*ndim - a->ndim), j = d - (*ndim - b->ndim);
    int64_t x = i >= 0 ? a->shape[i] : 1, y = j >= 0 ? b->shape[j] : 1;
    shape[d] = x == 1 ? y : x;
    *numel *= shape[d];
  }
}

static PlStatus masked_select(const PlkCall *c) {
  const PlArray *x = c->in[0], *m = c->in[1];
  PlArray *y = c->out[0], room;
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM], numel, *found, count;
  int nd;
  plc_layout<1> l;
  common_shape(x, m, &nd, shape, &numel);
  expanded(m, nd, shape, numel, &l, &room, strides);
  PL_TRY(plc_nonzero(&room, &found, &count));
  expanded(x, nd, shape, numel, &l, &room, strides);
  if (count > y->numel) count = y->numel;
  if (count)
    PLC_BITS(y->dtype, T, PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, true,
                                     (const T *)x->data, count, (T *)y->data));
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(masked_select, masked_select)

static PlStatus clear(PlArray *y) {
  if (y->numel) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  return PL_OK;
}
static PlStatus from_mask(const PlArray *m, int nd, const int64_t *shape, int64_t numel, int64_t **found, int64_t *count) {
  int64_t strides[PL_MAX_DIM];
  PlArray room;
  plc_layout<1> l;
  expanded(m, nd, shape, numel, &l, &room, strides);
  return plc_nonzero(&room, found, count);
}
static PlStatus masked_select_bwd(const PlkCall *c) { /* dy, mask: dx of the mask's broadcast shape */
  PlArray *dx = c->out[0], room;
  const PlArray *dy = c->in[0];
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(clear(dx));
  PL_TRY(from_mask(c->in[1], dx->ndim, dx->shape, dx->numel, &found, &count));
  expanded(dx, dx->ndim, dx->shape, dx->numel, &l, &room, strides);
  if (count)
    PLC_BITS(dx->dtype, T, PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, false,
                                      (const T *)dy->data, dy->numel, (T *)dx->data));
  plc_scratch_free(found);
  return PL_OK;
}
static PlStatus masked_scatter(const PlkCall *c) {
  const PlArray *x = c->in[0], *src = c->in[2];
  PlArray *y = c->out[0], room;
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(from_mask(c->in[1], y->ndim, y->shape, y->numel, &found, &count));
  PlStatus s = PL_OK;
  if (count > src->numel)
    s = pl_fail(PL_ERR_SHAPE, "%s: the mask has %lld trues, but src only %lld elements", c->name, (long long)count, (long long)src->numel);
  if (s == PL_OK && y->data != x->data) s = plc_run("copy", c);
  expanded(y, y->ndim, y->shape, y->numel, &l, &room, strides);
  if (s == PL_OK && count)
    PLC_BITS(y->dtype, T, PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, false,
                                     (const T *)src->data, src->numel, (T *)y->data));
  plc_scratch_free(found);
  return s;
}
static PlStatus masked_scatter_bwd(const PlkCall *c) { /* dy, mask: dsrc[i] = dy[position i] */
  const PlArray *dy = c->in[0];
  PlArray *ds = c->out[0], room;
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(clear(ds));
  PL_TRY(from_mask(c->in[1], dy->ndim, dy->shape, dy->numel, &found, &count));
  expanded(dy, dy->ndim, dy->shape, dy->numel, &l, &room, strides);
  if (count > ds->numel) count = ds->numel;
  if (count)
    PLC_BITS(ds->dtype, T, PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, true,
                                      (const T *)dy->data, count, (T *)ds->data));
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(masked_select_bwd, masked_select_bwd)
PLC_KERNEL(masked_scatter, masked_scatter)
PLC_KERNEL(masked_scatter_bwd, masked_scatter_bwd)

struct Shape {
  int n;
  int64_t size[PL_MAX_DIM];
};
__global__ void coordinates(int64_t count, const int64_t *positions, Shape s, int64_t base, int64_t *y) {
  for (PLC_EACH(i, count)) {
    int64_t at = positions[i];
    for (int d = s.n - 1; d >= 0; d--) {
      y[i * s.n + d] = at % s.size[d] + base;
      at /= s.size[d];
    }
  }
}
static PlStatus nonzero(const PlkCall *c) {
  const PlArray *x = c->in[0];
  int64_t *found, count;
  Shape s;
  PL_TRY(plc_nonzero(x, &found, &count));
  s.n = x->ndim;
  for (int d = 0; d < x->ndim; d++) s.size[d] = x->shape[d];
  if (count > c->out[0]->shape[0]) count = c->out[0]->shape[0];
  if (count && s.n)
    PLC_LAUNCH(coordinates, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, s, pl_attr_i(c->attrs, 0), (int64_t *)c->out[0]->data);
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(nonzero, nonzero)
