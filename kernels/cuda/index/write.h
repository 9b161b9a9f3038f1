/* SPDX-License-Identifier: MIT
 * Writing at positions, what index_write.cu (whole rows) and scatter.cu (single elements along a dim) share: what becomes of
 * values that meet in one place, and the array that is written to. */
#ifndef PL_KERNELS_CUDA_INDEX_WRITE_H
#define PL_KERNELS_CUDA_INDEX_WRITE_H

#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/index/index.h"

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
static inline PlStatus clear(PlArray *y) {
  if (y->numel) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  return PL_OK;
}

#endif
