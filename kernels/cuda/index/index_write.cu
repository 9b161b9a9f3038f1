/* SPDX-License-Identifier: MIT
 * Writing rows at positions: index_add, index_copy, index_fill, index_put, and the gradients of index_select, take, embedding and
 * index. Where several values meet one place they are taken in index order, without atomics: rows are sorted by where they go
 * (sort.h) and one thread takes all that meet. */
#include "kernels/cuda/index/write.h"
#include "kernels/cuda/sort/sort.h"
extern "C" {
#include "kernels/elementwise_codes.h"
}

__global__ void offset_keys(int64_t n, const int64_t *offs, uint64_t *keys, uint32_t *ids) {
  for (PLC_EACH(i, n)) keys[i] = (uint64_t)offs[i], ids[i] = (uint32_t)i;
}

/* src: dense rows, or one element for all (`single`). alpha scales what is added. Of values that meet eight are read at a time: a frequent
 * token's are many, and one thread adds them in their order. */
enum { EIGHT = 8 };
template <typename T>
__global__ void put_rows(PlcRows r, plc_places places, const uint64_t *keys, const uint32_t *ids, Mode mode, bool single, bool scaled,
                         double alpha, int64_t ialpha, const T *src, T *table) {
  typedef typename plc_type<T>::math M;
  const bool whole = (M)0.5 == (M)0;
  for (PLC_EACH(e, r.na * r.np * r.nb)) {
    int64_t a, s, b;
    plc_place_at(places, e, &a, &s, &b);
    if (mode == SET ? s + 1 < r.np && keys[s + 1] == keys[s] : s > 0 && keys[s - 1] == keys[s]) continue; /* another thread's */
    T *to = table + plc_row_offset(r, a, ids[s], b);
    T v = *to;
    const uint64_t key = keys[s];
    const int64_t end = mode == SET ? s + 1 : r.np;
    for (unsigned more = 1; more; s += EIGHT) {
      T w[EIGHT];
      unsigned here = 0;
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) here |= (unsigned)(s + u < end && keys[s + u] == key) << u;
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) if (here >> u & 1) w[u] = src[single ? 0 : (a * r.np + ids[s + u]) * r.nb + b];
      PLC_UNROLL for (int u = 0; u < EIGHT; u++) {
        if (!(here >> u & 1)) continue;
        if (scaled) w[u] = plc_type<T>::store((M)(plc_type<T>::load(w[u]) * (whole ? (M)ialpha : (M)alpha)));
        v = met<T>(mode, v, w[u]);
      }
      more = here >> (EIGHT - 1);
    }
    *to = v;
  }
}

static PlStatus write_rows(PlcRows *r, Mode mode, const void *src, bool single, double alpha, int64_t ialpha, PlArray *table) {
  int64_t n = r->na * r->np * r->nb;
  plc_pairs<uint64_t> p;
  void *room;
  int bits = 1;
  if (n == 0 || table->numel == 0) return PL_OK;
  while (bits < 64 && ((uint64_t)r->span >> bits)) bits++;
  PL_TRY(plc_pairs_room(&p, r->np, &room));
  PLC_LAUNCH(offset_keys, plc_grid(r->np, 1), PLC_BLOCK, 0, r->np, (const int64_t *)r->offs, p.key, p.at);
  PlStatus s = plc_sort_pairs(&p, 1, r->np, bits);
  bool scaled = alpha != 1.0 || ialpha != 1;
  if (s == PL_OK)
    PLC_TYPES(table->dtype, T, "index",
              PLC_LAUNCH(put_rows<T>, plc_grid(n, 1), PLC_BLOCK, 0, *r, plc_places_of(r), (const uint64_t *)p.key, (const uint32_t *)p.at,
                         mode, single, scaled, alpha, ialpha, (const T *)src, (T *)table->data));
  plc_scratch_free(room);
  return s;
}

static PlStatus along(const PlkCall *c, const PlArray *start, const PlArray *src, const PlArray *index, int dim, int64_t base, bool wrap,
                      Mode mode, double alpha, int64_t ialpha) {
  PlArray *y = c->out[0];
  PlcRows r;
  r.offs = NULL;
  PlStatus s = start ? start_from(c, start, y) : clear(y);
  if (s == PL_OK) s = plc_rows_along(c, y, index, dim, base, wrap, &r);
  if (s == PL_OK) s = write_rows(&r, mode, src->data, src->numel == 1 && r.na * r.np * r.nb != 1, alpha, ialpha, y);
  plc_scratch_free(r.offs);
  return s;
}

static PlStatus index_add_here(const PlkCall *c) {
  const PlAttrs *a = c->attrs;
  bool whole = (a->isint >> 1) & 1;
  double alpha = whole ? (double)a->v[1].i : a->v[1].f;
  return along(c, c->in[0], c->in[2], c->in[1], (int)pl_attr_i(a, 0), pl_attr_i(a, 2), false, ADD, alpha,
               whole ? a->v[1].i : (int64_t)alpha);
}
static PlStatus index_copy(const PlkCall *c) {
  return along(c, c->in[0], c->in[2], c->in[1], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false, SET, 1, 1);
}
static PlStatus index_select_bwd_here(const PlkCall *c) {
  return along(c, NULL, c->in[0], c->in[1], (int)pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), false, ADD, 1, 1);
}
static PlStatus index_add(const PlkCall *c) { return wide_sums(c, index_add_here); }
PLC_KERNEL(index_add, index_add)
PLC_KERNEL(index_copy, index_copy)
static PlStatus index_select_bwd(const PlkCall *c) { return wide_sums(c, index_select_bwd_here); }
PLC_KERNEL(index_select_bwd, index_select_bwd)

/* One number in y's dtype, in 16 bytes of scratch. */
static PlStatus one_number(const PlkCall *c, const PlArray *v, int dtype, void **scratch) {
  PL_TRY(plc_scratch(16, scratch));
  PlArray cast = *v, *out[1] = {&cast};
  const PlArray *in[1] = {v};
  PlkCall k = *c;
  cast.data = *scratch, cast.dtype = (uint8_t)dtype, cast.device = PL_CUDA, cast.ndim = 0, cast.numel = 1, cast.contiguous = 1;
  k.code = v->dtype == dtype ? PLK_EW_COPY : PLK_EW_CAST, k.nin = 1, k.in = in, k.out = out;
  return plc_run(&plc_kernel_elementwise, &k);
}
static PlStatus index_fill(const PlkCall *c) {
  PlArray *y = c->out[0];
  PlcRows r;
  void *value = NULL;
  r.offs = NULL;
  PlStatus s = start_from(c, c->in[0], y);
  if (s == PL_OK) s = one_number(c, c->in[2], y->dtype, &value);
  if (s == PL_OK) s = plc_rows_along(c, y, c->in[1], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false, &r);
  if (s == PL_OK) s = write_rows(&r, SET, value, true, 1, 1, y);
  plc_scratch_free(value);
  plc_scratch_free(r.offs);
  return s;
}
PLC_KERNEL(index_fill, index_fill)

static PlStatus take_bwd_here(const PlkCall *c) {
  PlcRows r;
  r.offs = NULL;
  PlStatus s = clear(c->out[0]);
  if (s == PL_OK) s = plc_rows_at(c, c->out[0], c->in[1], pl_attr_i(c->attrs, 1), true, &r);
  if (s == PL_OK) s = write_rows(&r, ADD, c->in[0]->data, false, 1, 1, c->out[0]);
  plc_scratch_free(r.offs);
  return s;
}
static PlStatus take_bwd(const PlkCall *c) { return wide_sums(c, take_bwd_here); }
PLC_KERNEL(take_bwd, take_bwd)

__global__ void count_ids(int64_t n, const int64_t *offs, int64_t columns, int64_t *count) {
  for (PLC_EACH(i, n)) atomicAdd((unsigned long long *)count + offs[i] / columns, 1ull); /* whole numbers: any order gives the same */
}
__global__ void by_count(int64_t n, int64_t columns, const int64_t *count, void *w, int dtype) {
  for (PLC_EACH(i, n))
    if (count[i / columns] > 1) plc_put_any(w, dtype, i, false, plc_get_f(w, dtype, i) / (double)count[i / columns], 0);
}
static PlStatus embedding_bwd_here(const PlkCall *c) {
  PlArray *dw = c->out[0];
  const PlAttrs *a = c->attrs;
  const int64_t base = pl_attr_i(a, 3), rows = dw->shape[0], n = dw->shape[1];
  PlcRows r;
  void *count = NULL;
  r.offs = NULL;
  PlStatus s = clear(dw);
  if (s == PL_OK) s = plc_rows_along(c, dw, c->in[1], 0, base, false, &r);
  if (s == PL_OK) s = write_rows(&r, ADD, c->in[0]->data, false, 1, 1, dw);
  if (s == PL_OK && pl_attr_i(a, 2) && dw->numel) {
    s = plc_scratch((size_t)rows * sizeof(int64_t), &count);
    if (s == PL_OK) {
      PLC_TRY(cudaMemsetAsync(count, 0, (size_t)rows * sizeof(int64_t), plc_stream()));
      if (r.np) PLC_LAUNCH(count_ids, plc_grid(r.np, 1), PLC_BLOCK, 0, r.np, (const int64_t *)r.offs, n, (int64_t *)count);
      PLC_LAUNCH(by_count, plc_grid(dw->numel, 1), PLC_BLOCK, 0, dw->numel, n, (const int64_t *)count, dw->data, (int)dw->dtype);
    }
  }
  if (s == PL_OK && pl_attr_has(a, 1) && n) {
    int64_t row = pl_attr_i(a, 1);
    row = row < 0 ? row + rows : row - base;
    size_t size = (size_t)n * pl_dtype_size((PlDtype)dw->dtype);
    PLC_TRY(cudaMemsetAsync((char *)dw->data + (size_t)row * size, 0, size, plc_stream()));
  }
  plc_scratch_free(count);
  plc_scratch_free(r.offs);
  return s;
}
static PlStatus embedding_bwd(const PlkCall *c) { return wide_sums(c, embedding_bwd_here); }
PLC_KERNEL(embedding_bwd, embedding_bwd)

/* ---- lists of index tensors -------------------------------------------------------------------------------------------- */

static PlStatus index_bwd_here(const PlkCall *c) {
  const PlArray *dy = c->in[0];
  const PlAttrs *a = c->attrs;
  const bool given = pl_attr_has(a, 1);
  PlcRows r;
  r.offs = NULL;
  PlStatus s = clear(c->out[0]);
  if (s == PL_OK)
    s = plc_rows_listed(c, c->out[0], c->nin - 1, c->in + 1, given ? pl_attr_n(a, 1) : 0, given ? pl_attr_list(a, 1) : NULL,
                        pl_attr_i(a, 2), &r);
  bool fits = s == PL_OK && dy->ndim == r.result_ndim; /* with masks only their values tell */
  for (int d = 0; fits && d < r.result_ndim; d++) fits = dy->shape[d] == r.result[d];
  if (s == PL_OK && !fits) s = pl_fail(PL_ERR_SHAPE, "%s: dy does not have the shape of what the indices select", c->name);
  if (s == PL_OK) s = write_rows(&r, ADD, dy->data, false, 1, 1, c->out[0]);
  plc_scratch_free(r.offs);
  return s;
}
static PlStatus index_bwd(const PlkCall *c) { return wide_sums(c, index_bwd_here); }
PLC_KERNEL(index_bwd, index_bwd)

/* value as dense rows of y's dtype, in the shape that reading the same positions gives. The shape is rebuilt from the rows: A, p, B
 * in one line each would lose how `value` broadcasts, so it comes from the caller. */
static PlStatus dense_value(const PlkCall *c, const PlArray *v, int ndim, const int64_t *shape, int64_t numel, int dtype, void **scratch) {
  PlArray src = *v, dst = *v;
  int64_t strides[PL_MAX_DIM], step = 1;
  PL_TRY(plc_scratch((size_t)(numel ? numel : 1) * pl_dtype_size((PlDtype)dtype), scratch));
  while (src.ndim > ndim && src.shape[0] == 1) src.ndim--, src.shape++, src.strides++;
  for (int d = ndim - 1; d >= 0; d--) strides[d] = step, step *= shape[d];
  dst.data = *scratch, dst.dtype = (uint8_t)dtype, dst.ndim = (uint8_t)ndim, dst.shape = shape, dst.strides = strides, dst.numel = numel;
  dst.contiguous = 1, dst.device = PL_CUDA;
  src.contiguous = src.contiguous && src.numel == numel;
  const PlArray *in[1] = {&src};
  PlArray *out[1] = {&dst};
  PlkCall k = *c;
  k.code = v->dtype == dtype ? PLK_EW_COPY : PLK_EW_CAST, k.nin = 1, k.in = in, k.out = out;
  return numel ? plc_run(&plc_kernel_elementwise, &k) : PL_OK;
}

static PlStatus index_put_here(const PlkCall *c) {
  const PlArray *x = c->in[0], *v = c->in[1], *const *index = c->in + 2;
  PlArray *y = c->out[0];
  const PlAttrs *a = c->attrs;
  const bool given = pl_attr_has(a, 0);
  int n = c->nin - 2;
  PlcRows r;
  void *value = NULL;
  r.offs = NULL;
  PlStatus s = plc_rows_listed(c, y, n, index, given ? pl_attr_n(a, 0) : 0, given ? pl_attr_list(a, 0) : NULL, pl_attr_i(a, 2), &r);
  if (s == PL_OK && v->numel == 1) s = one_number(c, v, y->dtype, &value);
  else if (s == PL_OK) s = dense_value(c, v, r.result_ndim, r.result, r.na * r.np * r.nb, y->dtype, &value);
  if (s == PL_OK) s = start_from(c, x, y);
  if (s == PL_OK) s = write_rows(&r, pl_attr_i(a, 1) ? ADD : SET, value, v->numel == 1, 1, 1, y);
  plc_scratch_free(value);
  plc_scratch_free(r.offs);
  return s;
}
static PlStatus index_put(const PlkCall *c) { return pl_attr_i(c->attrs, 1) ? wide_sums(c, index_put_here) : index_put_here(c); }
PLC_KERNEL(index_put, index_put)
