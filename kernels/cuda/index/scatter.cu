/* SPDX-License-Identifier: MIT
 * Writing single elements at positions along a dim: scatter, scatter_reduce and the gradient of gather. One thread walks each line
 * of the index, so values that meet one place are taken in index order, without atomics. */
#include "kernels/cuda/index/write.h"

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

/* From the last position on: what is there goes to taken, and leaves 0. */
template <typename T> __global__ void take_lines(Lines s, const void *v, T *taken, T *out) {
  for (PLC_EACH(i, s.l.numel)) {
    int64_t at[3];
    plc_offsets<3>(s.l, i, at);
    for (int64_t k = s.len - 1; k >= 0; k--) {
      int64_t to = plc_resolved(s.flag, s.name, plc_get_i(v, s.dtype, at[0] + k * s.is), s.base, s.n, s.wrap);
      if (to < 0) continue;
      T *p = out + at[2] + to * s.os;
      taken[at[1] + k * s.ss] = *p;
      memset(p, 0, sizeof *p);
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

static PlStatus scatter_here(const PlkCall *c) {
  static const Mode modes[] = {SET, ADD, MUL};
  PL_TRY(start_from(c, c->in[0], c->out[0]));
  return run_lines(c, c->in[1], c->in[2], c->out[0], (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false,
                   c->code == 1 ? ADD : modes[pl_attr_i(c->attrs, 2)], NULL);
}
static PlStatus gather_bwd_here(const PlkCall *c) {
  PL_TRY(clear(c->out[0]));
  return run_lines(c, c->in[1], c->in[0], c->out[0], (int)pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), true, ADD, NULL);
}
static PlStatus scatter_bwd(const PlkCall *c) {
  Lines s;
  const PlArray *index = c->in[1];
  PlArray *dx = c->out[0], *dsrc = c->out[1];
  PL_TRY(start_from(c, c->in[0], dx));
  if (index->numel == 0) return PL_OK;
  PL_TRY(lines_of(c, index, dsrc, dx, (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), false, &s));
  PLC_TYPES(dx->dtype, T, c->name, {
    PLC_LAUNCH(take_lines<T>, plc_grid(s.l.numel, 1), PLC_BLOCK, 0, s, (const void *)index->data, (T *)dsrc->data, (T *)dx->data);
  });
  return PL_OK;
}
PLC_KERNEL(scatter_bwd, scatter_bwd)
static PlStatus scatter(const PlkCall *c) {
  return (c->code == 1 || pl_attr_i(c->attrs, 2)) ? wide_sums(c, scatter_here) : scatter_here(c);
}
PLC_KERNEL(scatter, scatter)
static PlStatus gather_bwd(const PlkCall *c) { return wide_sums(c, gather_bwd_here); }
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
static PlStatus scatter_reduce_here(const PlkCall *c) {
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
static PlStatus scatter_reduce(const PlkCall *c) {
  return pl_attr_i(c->attrs, 1) <= RED_MEAN ? wide_sums(c, scatter_reduce_here) : scatter_reduce_here(c);
}
PLC_KERNEL(scatter_reduce, scatter_reduce)
