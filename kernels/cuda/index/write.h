/* SPDX-License-Identifier: MIT
 * Writing at positions, what index_write.cu (whole rows) and scatter.cu (single elements along a dim) share: what becomes of
 * values that meet in one place, and the array that is written to. */
#ifndef PL_KERNELS_CUDA_INDEX_WRITE_H
#define PL_KERNELS_CUDA_INDEX_WRITE_H

#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/index/index.h"
#include "kernels/cuda/norm/channels.h"
#include "kernels/elementwise_codes.h"

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

static inline PlStatus start_from(const PlkCall *c, const PlArray *x, PlArray *y) {
  if (x->data == y->data) return PL_OK;
  const PlArray *in[1] = {x};
  PlArray *out[1] = {y};
  PlkCall k = *c;
  k.nin = 1, k.in = in, k.out = out;
  return plc_run(&plc_kernel_copy, &k);
}

/* Runs fn, which sums or multiplies elements of the output one by one, in f32 where that is of halves: each step would be
 * rounded, and a sum of many small numbers would stand still. As plk_wide_sums on the CPU. */
static inline PlStatus wide_sums(const PlkCall *c, PlStatus (*fn)(const PlkCall *)) {
  enum { MOST = PL_MAX_DIM + 2 };
  PlArray *y = c->out[0], wide[MOST + 1];
  const int half = y->dtype;
  if ((half != PL_F16 && half != PL_BF16) || c->nin > MOST) return fn(c);
  void *scratch[MOST + 1] = {NULL};
  int64_t strides[MOST + 1][PL_MAX_DIM];
  const PlArray *in[MOST];
  PlStatus s = PL_OK;
  for (int k = 0; k <= c->nin && s == PL_OK; k++) {
    const PlArray *a = k < c->nin ? c->in[k] : y;
    const void *data = NULL;
    if (k < c->nin) in[k] = a;
    if (!a || a->dtype != half || (k < c->nin && plc_on_host(a))) continue;
    if (k < c->nin) s = plc_as(a, PL_F32, &scratch[k], &data);
    else s = plc_scratch((size_t)(y->numel + 1) * sizeof(float), &scratch[k]);
    int64_t step = 1;
    for (int d = a->ndim - 1; d >= 0; d--) strides[k][d] = step, step *= a->shape[d] ? a->shape[d] : 1;
    wide[k] = *a;
    wide[k].data = scratch[k], wide[k].dtype = PL_F32, wide[k].strides = strides[k], wide[k].contiguous = 1;
    if (k < c->nin) in[k] = &wide[k];
  }
  const PlArray *from[1] = {&wide[c->nin]};
  PlArray *out[1] = {&wide[c->nin]}, *back[1] = {y};
  PlkCall k = *c;
  k.in = in, k.out = out;
  if (s == PL_OK) s = fn(&k);
  static const PlAttrs none = {};
  k.name = "cast", k.code = PLK_EW_CAST, k.nin = 1, k.in = from, k.out = back, k.attrs = &none;
  if (s == PL_OK && y->numel) s = plc_run(&plc_kernel_elementwise, &k);
  for (int i = 0; i <= c->nin; i++) plc_scratch_free(scratch[i]);
  return s;
}

#endif
