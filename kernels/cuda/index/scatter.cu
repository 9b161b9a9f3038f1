/* SPDX-License-Identifier: MIT
 * Writing at positions. Where several values meet one place they are taken in index order, without atomics: rows are sorted by
 * where they go (sort.h) and one thread takes all that meet; scatter along a dim walks each line of the index in one thread. */
#include "kernels/cuda/index/index.h"
#include "kernels/cuda/sort/sort.h"
extern "C" {
#include "kernels/elementwise.h"
}

enum Mode { SET, ADD, MUL, MAX, MIN };

template <typename T> PLC_DEV T met(Mode mode, T a, T b) {
  typedef typename plc_type<T>::math M;
  M x = plc_type<T>::load(a), y = plc_type<T>::load(b);
  switch (mode) {
  case SET: return b;
  case ADD: return plc_type<T>::store((M)(x + y));
  case MUL: return plc_type<T>::store((M)(x * y));
  case MAX: return y > x || y != y ? b : a;
  default: return y < x || y != y ? b : a;
  }
}
template <> __device__ __forceinline__ int64_t met<int64_t>(Mode mode, int64_t a, int64_t b) {
  switch (mode) {
  case SET: return b;
  case ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
  case MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
  case MAX: return b > a ? b : a;
  default: return b < a ? b : a;
  }
}
template <> __device__ __forceinline__ plc_bool met<plc_bool>(Mode mode, plc_bool a, plc_bool b) {
  if (mode == SET) return b;
  return plc_bool{(uint8_t)(mode == MUL || mode == MIN ? (a.v & b.v) : (a.v | b.v))};
}

static PlStatus start_from(const PlkCall *c, const PlArray *x, PlArray *y) {
  if (x->data == y->data) return PL_OK;
  const PlArray *in[1] = {x};
  PlArray *out[1] = {y};
  PlkCall k = *c;
  k.nin = 1, k.in = in, k.out = out;
  return plc_run("copy", &k);
}
static PlStatus clear(PlArray *y) {
  if (y->numel) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  return PL_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

__global__ void offset_keys(int64_t n, const int64_t *offs, uint64_t *keys, uint32_t *ids) {
  for (PLC_EACH(i, n)) keys[i] = (uint64_t)offs[i], ids[i] = (uint32_t)i;
}

/* src: dense rows, or one element for all (`single`). alpha scales what is added. */
template <typename T>
__global__ void put_rows(PlcRows r, const uint64_t *keys, const uint32_t *ids, Mode mode, bool single, bool scaled, double alpha,
                         int64_t ialpha, const T *src, T *table) {
  typedef typename plc_type<T>::math M;
  const bool whole = (M)0.5 == (M)0;
  for (PLC_EACH(e, r.na * r.np * r.nb)) {
    int64_t b = e % r.nb, s = e / r.nb % r.np, a = e / (r.nb * r.np);
    if (mode == SET ? s + 1 < r.np && keys[s + 1] == keys[s] : s > 0 && keys[s - 1] == keys[s]) continue; /* another thread's */
    T *to = table + plc_row_offset(r, a, ids[s], b);
    T v = *to;
    do {
      T w = src[single ? 0 : (a * r.np + ids[s]) * r.nb + b];
      if (scaled) w = plc_type<T>::store((M)(plc_type<T>::load(w) * (whole ? (M)ialpha : (M)alpha)));
      v = met<T>(mode, v, w);
      s++;
    } while (mode != SET && s < r.np && keys[s] == keys[s - 1]);
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
              PLC_LAUNCH(put_rows<T>, plc_grid(n, 1), PLC_BLOCK, 0, *r, (const uint64_t *)p.key, (const uint32_t *)p.at, mode, single,
                         scaled, alpha, ialpha, (const T *)src, (T *)table->data));
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

static PlStatus index_add(const PlkCall *c) {
  const PlAttrs *a = c->attrs;
  bool whole = (a->isint >> 1) & 1;
  double alpha = whole ? (double)a->v[1].i : a->v[1].f;
  return along(c, c->in[0], c->in[2], c->in[1], (int)pl_attr_i(a, 0), pl_attr_i(a, 2), false, ADD, alpha,
               whole ? a->v[1].i : (int64_t)alpha);
}
static PlStatus index_copy(const PlkCall *c) {
  return along(c, c->in[0], c->in[2], c->in[1], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false, SET, 1, 1);
}
static PlStatus index_select_bwd(const PlkCall *c) {
  return along(c, NULL, c->in[0], c->in[1], (int)pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), false, ADD, 1, 1);
}
PLC_KERNEL(index_add, index_add)
PLC_KERNEL(index_copy, index_copy)
PLC_KERNEL(index_select_bwd, index_select_bwd)

/* One number in y's dtype, in 16 bytes of scratch. */
static PlStatus one_number(const PlkCall *c, const PlArray *v, int dtype, void **scratch) {
  PL_TRY(plc_scratch(16, scratch));
  PlArray cast = *v, *out[1] = {&cast};
  const PlArray *in[1] = {v};
  PlkCall k = *c;
  cast.data = *scratch, cast.dtype = (uint8_t)dtype, cast.device = PL_CUDA, cast.ndim = 0, cast.numel = 1, cast.contiguous = 1;
  k.code = v->dtype == dtype ? PLK_EW_COPY : PLK_EW_CAST, k.nin = 1, k.in = in, k.out = out;
  return plc_run("elementwise", &k);
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

static PlStatus take_bwd(const PlkCall *c) {
  PlcRows r;
  r.offs = NULL;
  PlStatus s = clear(c->out[0]);
  if (s == PL_OK) s = plc_rows_at(c, c->out[0], c->in[1], pl_attr_i(c->attrs, 1), true, &r);
  if (s == PL_OK) s = write_rows(&r, ADD, c->in[0]->data, false, 1, 1, c->out[0]);
  plc_scratch_free(r.offs);
  return s;
}
PLC_KERNEL(take_bwd, take_bwd)

__global__ void count_ids(int64_t n, const int64_t *offs, int64_t columns, int64_t *count) {
  for (PLC_EACH(i, n)) atomicAdd((unsigned long long *)count + offs[i] / columns, 1ull); /* whole numbers: any order gives the same */
}
__global__ void by_count(int64_t n, int64_t columns, const int64_t *count, void *w, int dtype) {
  for (PLC_EACH(i, n))
    if (count[i / columns] > 1) plc_put_any(w, dtype, i, false, plc_get_f(w, dtype, i) / (double)count[i / columns], 0);
}
static PlStatus embedding_bwd(const PlkCall *c) {
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
PLC_KERNEL(embedding_bwd, embedding_bwd)

/* ---- lists of index tensors -------------------------------------------------------------------------------------------- */

static PlStatus index_bwd(const PlkCall *c) {
  const PlAttrs *a = c->attrs;
  const bool given = pl_attr_has(a, 1);
  PlcRows r;
  r.offs = NULL;
  PlStatus s = clear(c->out[0]);
  if (s == PL_OK)
    s = plc_rows_listed(c, c->out[0], c->nin - 1, c->in + 1, given ? pl_attr_n(a, 1) : 0, given ? pl_attr_list(a, 1) : NULL,
                        pl_attr_i(a, 2), &r);
  if (s == PL_OK) s = write_rows(&r, ADD, c->in[0]->data, false, 1, 1, c->out[0]);
  plc_scratch_free(r.offs);
  return s;
}
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
  return numel ? plc_run("elementwise", &k) : PL_OK;
}

static PlStatus index_put(const PlkCall *c) {
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
PLC_KERNEL(index_put, index_put)

/* ---- scatter: one thread walks each line of the index ---------------------------------------------------------------------- */

struct Lines {
  plc_layout<3> l; /* index, src, out: without the dim */
  int64_t len, is, ss, os, base, n;
  int dtype;
  PlcFlag *flag;
  uint64_t name;
  bool wrap;
};
template <typename T> __global__ void scatter_lines(Lines s, Mode mode, bool single, const void *v, const T *src, T one, T *out) {
  for (PLC_EACH(i, s.l.numel)) {
    int64_t at[3];
    plc_offsets<3>(s.l, i, at);
    for (int64_t k = 0; k < s.len; k++) {
      int64_t to = plc_resolved(s.flag, s.name, plc_get_i(v, s.dtype, at[0] + k * s.is), s.base, s.n, s.wrap);
      if (to < 0) continue;
      T *p = out + at[2] + to * s.os;
      *p = met<T>(mode, *p, single ? one : src[at[1] + k * s.ss]);
    }
  }
}

static PlStatus lines_of(const PlkCall *c, const PlArray *index, const PlArray *src, const PlArray *out, int dim, int64_t base, bool wrap,
                         Lines *s) {
  PlArray a = *index, b = src ? *src : *index, o = *out;
  int64_t shape[3][PL_MAX_DIM], strides[3][PL_MAX_DIM];
  PlArray *arr[3] = {&a, &b, &o};
  memset(s, 0, sizeof *s);
  bool flat = index->ndim == 0, lone = !src || src->ndim == 0;
  int n = 0;
  for (int d = 0; d < index->ndim; d++) {
    if (d == dim) continue;
    for (int k = 0; k < 3; k++) shape[k][n] = index->shape[d];
    strides[0][n] = index->strides[d];
    strides[1][n] = lone ? 0 : src->strides[d];
    strides[2][n++] = out->ndim ? out->strides[d] : 0;
  }
  int64_t count = 1;
  for (int d = 0; d < n; d++) count *= shape[0][d];
  const PlArray *in[3];
  for (int k = 0; k < 3; k++)
    arr[k]->ndim = (uint8_t)n, arr[k]->shape = shape[k], arr[k]->strides = strides[k], arr[k]->numel = count, in[k] = arr[k];
  plc_layout_of<3>(&s->l, in);
  s->len = flat ? 1 : index->shape[dim], s->is = flat ? 0 : index->strides[dim], s->ss = flat || lone ? 0 : src->strides[dim];
  s->os = out->ndim ? out->strides[dim] : 1, s->n = out->ndim ? out->shape[dim] : 1;
  s->base = base, s->dtype = index->dtype, s->wrap = wrap;
  s->flag = plc_flag();
  s->name = (uint64_t)(uintptr_t)c->name;
  if (base < 0) PL_FAIL(PL_ERR_ARG, "%s: index_base %lld; it must be 0 or 1", c->name, (long long)base);
  return PL_OK;
}

template <typename T> static T number_as(const PlArray *a) {
  typedef typename plc_type<T>::math M;
  T out;
  M v = (M)0.5 != (M)0 ? (M)plc_number_f(a) : (M)plc_number_i(a);
  if (sizeof(T) == 2 && (M)0.5 != (M)0) memcpy(&out, a->data, sizeof out); /* halves arrive in y's dtype */
  else if (sizeof(T) == sizeof(M)) memcpy(&out, &v, sizeof out);
  else out = *(const T *)a->data;
  return out;
}

static PlStatus run_lines(const PlkCall *c, const PlArray *index, const PlArray *src, PlArray *y, int dim, int64_t base, bool wrap,
                          Mode mode, const void *one) {
  Lines s;
  if (index->numel == 0) return PL_OK;
  bool single = !src || plc_on_host(src);
  PL_TRY(lines_of(c, index, single ? NULL : src, y, dim, base, wrap, &s));
  PLC_TYPES(y->dtype, T, c->name, {
    T number;
    memset(&number, 0, sizeof number);
    if (one) memcpy(&number, one, sizeof number);
    else if (single) number = number_as<T>(src);
    PLC_LAUNCH(scatter_lines<T>, plc_grid(s.l.numel, 1), PLC_BLOCK, 0, s, mode, single, (const void *)index->data,
               (const T *)(single ? NULL : src->data), number, (T *)y->data);
  });
  return PL_OK;
}

static PlStatus scatter(const PlkCall *c) {
  static const Mode modes[] = {SET, ADD, MUL};
  PL_TRY(start_from(c, c->in[0], c->out[0]));
  return run_lines(c, c->in[1], c->in[2], c->out[0], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false,
                   c->code == 1 ? ADD : modes[pl_attr_i(c->attrs, 2)], NULL);
}
static PlStatus gather_bwd(const PlkCall *c) {
  PL_TRY(clear(c->out[0]));
  return run_lines(c, c->in[1], c->in[0], c->out[0], (int)pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), true, ADD, NULL);
}
PLC_KERNEL(scatter, scatter)
PLC_KERNEL(gather_bwd, gather_bwd)

enum { RED_SUM, RED_PROD, RED_MEAN, RED_AMAX, RED_AMIN };

/* What leaves the other operand alone, as the bits of an element. */
static void identity(int64_t reduce, int dtype, uint64_t *out) {
  double f = reduce == RED_PROD ? 1.0 : reduce == RED_AMAX ? -(double)INFINITY : reduce == RED_AMIN ? (double)INFINITY : 0.0;
  int size = (int)pl_dtype_size((PlDtype)dtype) * 8;
  bool sign = dtype >= PL_I8 && dtype <= PL_I64;
  int64_t top = sign ? (int64_t)(((uint64_t)1 << (size - 1)) - 1) : dtype == PL_U8 ? 255 : 1;
  int64_t i = reduce == RED_PROD ? 1 : reduce == RED_AMAX ? (sign ? -top - 1 : 0) : reduce == RED_AMIN ? top : 0;
  float narrow = (float)f;
  uint16_t half = f == 0 ? 0 : dtype == PL_F16 ? (f == 1 ? 0x3c00 : f > 0 ? 0x7c00 : 0xfc00) : (f == 1 ? 0x3f80 : f > 0 ? 0x7f80 : 0xff80);
  *out = 0;
  if (dtype == PL_F64) memcpy(out, &f, 8);
  else if (dtype == PL_F32) memcpy(out, &narrow, 4);
  else if (dtype == PL_F16 || dtype == PL_BF16) memcpy(out, &half, 2);
  else memcpy(out, &i, (size_t)size / 8);
}
__global__ void fill_counts(int64_t *count, int64_t n, int64_t v) {
  for (PLC_EACH(i, n)) count[i] = v;
}
__global__ void divide_counts(int64_t n, const int64_t *count, void *y, int dtype) {
  for (PLC_EACH(i, n)) {
    if (count[i] <= 1) continue;
    double f = 0;
    int64_t v = 0;
    bool whole;
    plc_get_any(y, dtype, i, &f, &v, &whole);
    int64_t q = v / count[i];
    plc_put_any(y, dtype, i, whole, f / (double)count[i], v % count[i] < 0 ? q - 1 : q);
  }
}
static PlStatus scatter_reduce(const PlkCall *c) {
  static const Mode mode[] = {ADD, MUL, ADD, MAX, MIN};
  const PlArray *index = c->in[1];
  PlArray *y = c->out[0];
  const int dim = (int)pl_attr_i(c->attrs, 0);
  const int64_t reduce = pl_attr_i(c->attrs, 1), base = pl_attr_i(c->attrs, 3);
  const bool self = pl_attr_i(c->attrs, 2) != 0;
  uint64_t start;
  PlStatus s = start_from(c, c->in[0], y);
  if (index->numel == 0 || s != PL_OK) return s;
  identity(reduce, y->dtype, &start);
  if (!self) s = run_lines(c, index, NULL, y, dim, base, false, SET, &start);
  if (s == PL_OK) s = run_lines(c, index, c->in[2], y, dim, base, false, mode[reduce], NULL);
  if (s != PL_OK || reduce != RED_MEAN || y->numel == 0) return s;
  void *mem;
  const int64_t one = 1;
  PL_TRY(plc_scratch((size_t)y->numel * sizeof(int64_t), &mem));
  PlArray count = *y;
  count.data = mem, count.dtype = PL_I64;
  PLC_LAUNCH(fill_counts, plc_grid(y->numel, 1), PLC_BLOCK, 0, (int64_t *)mem, y->numel, (int64_t)self);
  s = run_lines(c, index, NULL, &count, dim, base, false, ADD, &one);
  if (s == PL_OK) PLC_LAUNCH(divide_counts, plc_grid(y->numel, 1), PLC_BLOCK, 0, y->numel, (const int64_t *)mem, y->data, (int)y->dtype);
  plc_scratch_free(mem);
  return s;
}
PLC_KERNEL(scatter_reduce, scatter_reduce)
