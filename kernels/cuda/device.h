/* SPDX-License-Identifier: MIT
 * What kernels share on the device: element types and their arithmetic type, 16-byte packs, warp and block sums in a fixed
 * order, strided indexing with magic division. Compiled by nvcc and, for tests, by a plain C++ compiler. */
#ifndef PL_KERNELS_CUDA_DEVICE_H
#define PL_KERNELS_CUDA_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

#define PLC_DEV static __device__ __forceinline__

/* ---- element types -------------------------------------------------------------------------------------------- */

/* f16 and bf16 are bit patterns of their own types, so that templates can tell them from u16. */
struct plc_f16 {
  uint16_t bits;
};
struct plc_bf16 {
  uint16_t bits;
};
/* bool is a byte of 0 or 1, apart from u8. */
struct plc_bool {
  uint8_t v;
};

#ifdef PLC_EMULATED
extern "C++" {
#include "kernels/convert.h"
}
PLC_DEV float plc_widen(plc_f16 h) { return plk_f16_to_f32(h.bits); }
PLC_DEV float plc_widen(plc_bf16 h) { return plk_bf16_to_f32(h.bits); }
PLC_DEV plc_f16 plc_f16_of(float x) { return plc_f16{plk_f32_to_f16(x)}; }
PLC_DEV plc_bf16 plc_bf16_of(float x) { return plc_bf16{plk_f32_to_bf16(x)}; }
#else
PLC_DEV float plc_widen(plc_f16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
}
PLC_DEV float plc_widen(plc_bf16 h) { return __uint_as_float((unsigned)h.bits << 16); }
PLC_DEV plc_f16 plc_f16_of(float x) {
  plc_f16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
PLC_DEV plc_bf16 plc_bf16_of(float x) {
  plc_bf16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
#endif

/* math: what arithmetic runs in. f16 and bf16 in f32, everything else in itself (bool: as 0 or 1 in an int). */
template <typename T> struct plc_type {
  typedef T math;
  static __device__ __forceinline__ math load(T v) { return v; }
  static __device__ __forceinline__ T store(math v) { return v; }
};
template <> struct plc_type<plc_f16> {
  typedef float math;
  static __device__ __forceinline__ float load(plc_f16 v) { return plc_widen(v); }
  static __device__ __forceinline__ plc_f16 store(float v) { return plc_f16_of(v); }
};
template <> struct plc_type<plc_bf16> {
  typedef float math;
  static __device__ __forceinline__ float load(plc_bf16 v) { return plc_widen(v); }
  static __device__ __forceinline__ plc_bf16 store(float v) { return plc_bf16_of(v); }
};
template <> struct plc_type<plc_bool> {
  typedef int math;
  static __device__ __forceinline__ int load(plc_bool v) { return v.v != 0; }
  static __device__ __forceinline__ plc_bool store(int v) { return plc_bool{(uint8_t)(v != 0)}; }
};

/* PLC_FLOATS(dtype, T, body): body with T the C++ type of a floating dtype; PLC_TYPES of any. Else DTYPE error by `name`. */
#define PLC_CASE(D, TYPE, T, ...) \
  case D: {                       \
    typedef TYPE T;               \
    __VA_ARGS__;                  \
  } break;
#define PLC_FLOATS(dtype, T, name, ...)                                                            \
  switch ((PlDtype)(dtype)) {                                                                      \
    PLC_CASE(PL_F32, float, T, __VA_ARGS__)                                                        \
    PLC_CASE(PL_F64, double, T, __VA_ARGS__)                                                       \
    PLC_CASE(PL_F16, plc_f16, T, __VA_ARGS__)                                                      \
    PLC_CASE(PL_BF16, plc_bf16, T, __VA_ARGS__)                                                    \
  default: PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", name, pl_dtype_name((PlDtype)(dtype))); \
  }
#define PLC_TYPES(dtype, T, name, ...)                                   \
  switch ((PlDtype)(dtype)) {                                            \
    PLC_CASE(PL_F32, float, T, __VA_ARGS__)                              \
    PLC_CASE(PL_F64, double, T, __VA_ARGS__)                             \
    PLC_CASE(PL_F16, plc_f16, T, __VA_ARGS__)                            \
    PLC_CASE(PL_BF16, plc_bf16, T, __VA_ARGS__)                          \
    PLC_CASE(PL_I8, int8_t, T, __VA_ARGS__)                              \
    PLC_CASE(PL_I16, int16_t, T, __VA_ARGS__)                            \
    PLC_CASE(PL_I32, int32_t, T, __VA_ARGS__)                            \
    PLC_CASE(PL_I64, int64_t, T, __VA_ARGS__)                            \
    PLC_CASE(PL_U8, uint8_t, T, __VA_ARGS__)                             \
    PLC_CASE(PL_BOOL, plc_bool, T, __VA_ARGS__)                          \
  default: PL_FAIL(PL_ERR_DTYPE, "%s: no dtype %d", name, (int)(dtype)); \
  }
/* By size alone, for kernels that only move bits: T is uint8_t, uint16_t, uint32_t or uint64_t. */
#define PLC_BITS(dtype, T, ...)                                \
  switch (pl_dtype_size((PlDtype)(dtype))) {                   \
    PLC_CASE(1, uint8_t, T, __VA_ARGS__)                       \
    PLC_CASE(2, uint16_t, T, __VA_ARGS__)                      \
    PLC_CASE(4, uint32_t, T, __VA_ARGS__)                      \
    PLC_CASE(8, uint64_t, T, __VA_ARGS__)                      \
  default: PL_FAIL(PL_ERR_DTYPE, "no dtype %d", (int)(dtype)); \
  }

/* ---- packs: 16 bytes at once ------------------------------------------------------------------------------------- */

template <typename T, int N> struct alignas(sizeof(T) * N) plc_pack { T v[N]; };

/* ---- grid ------------------------------------------------------------------------------------------------------------ */

/* for (PLC_EACH(i, n)): this thread's items of 0 … n-1, the grid striding over them. */
#define PLC_EACH(i, n)                                        \
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; \
  i < (n);                                                    \
  i += (int64_t)gridDim.x * blockDim.x

/* ---- warp and block sums, in one order whatever the timing ----------------------------------------------------------- */

struct plc_sum {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct plc_max {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};
struct plc_min {
  template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a < b || a != a ? a : b; }
};

template <typename T, typename Op> PLC_DEV T plc_warp_all(T v, Op op) {
  for (int d = 16; d > 0; d >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
/* Every thread of the block gets the result; blockDim.x is a multiple of 32, at most 1024. room: 32 values in shared memory. */
template <typename T, typename Op> PLC_DEV T plc_block_all(T v, Op op, T zero, T *room) {
  v = plc_warp_all(v, op);
  int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, warps = (int)blockDim.x >> 5;
  if (warps == 1) return v;
  __syncthreads(); /* room may still be read from the last time */
  if (lane == 0) room[warp] = v;
  __syncthreads();
  v = lane < warps ? room[lane] : zero;
  return plc_warp_all(v, op);
}

/* Threads for a row of n elements that one block works on: thread t takes elements t, t + threads, …, so this is also the
 * order of its sums. Kernels along rows and generated ones (fused.h) have the same. */
static inline unsigned plc_row_threads(int64_t n) { return n <= 128 ? 32 : n <= 1024 ? 128 : 256; }

/* ---- strided arrays ---------------------------------------------------------------------------------------------------- */

/* Division by a number known at launch: n / d = (n · m) >> (32 + s) for 0 ≤ n < 2^31. Granlund, Montgomery, PLDI 1994. */
struct plc_div {
  uint32_t d, m, s;
};
static inline plc_div plc_div_by(uint32_t d) {
  plc_div r;
  r.d = d;
  r.s = 0;
  while ((UINT64_C(1) << r.s) < d) r.s++;
  r.m = (uint32_t)(((UINT64_C(1) << 32) * ((UINT64_C(1) << r.s) - d)) / d + 1);
  return r;
}
PLC_DEV uint32_t plc_quotient(uint32_t n, plc_div f) {
#ifdef PLC_EMULATED
  uint32_t t = (uint32_t)(((uint64_t)n * f.m) >> 32);
#else
  uint32_t t = __umulhi(n, f.m);
#endif
  return (t + n) >> f.s;
}

enum { PLC_DIMS = 8, PLC_OPERANDS = 4 };

/* K arrays of one shape, collapsed: dims innermost first, strides in elements. */
template <int K> struct plc_layout {
  int ndim;
  bool wide; /* indices need 64 bits */
  int64_t numel;
  int64_t size[PL_MAX_DIM];
  plc_div by[PL_MAX_DIM];
  int64_t stride[K][PL_MAX_DIM];
};

/* Offsets, in elements, of item i in each of the K arrays. */
template <int K> PLC_DEV void plc_offsets(const plc_layout<K> &l, int64_t i, int64_t at[K]) {
  for (int k = 0; k < K; k++) at[k] = 0;
  if (!l.wide) {
    uint32_t n = (uint32_t)i;
    for (int d = 0; d < l.ndim; d++) {
      uint32_t q = plc_quotient(n, l.by[d]), r = n - q * l.by[d].d;
      for (int k = 0; k < K; k++) at[k] += (int64_t)r * l.stride[k][d];
      n = q;
    }
  } else {
    for (int d = 0; d < l.ndim; d++) {
      int64_t q = i / l.size[d], r = i - q * l.size[d];
      for (int k = 0; k < K; k++) at[k] += r * l.stride[k][d];
      i = q;
    }
  }
}

/* The layout of arrays a[0 … K-1] against the shape of a[0], to which the others broadcast from the right. Dims of size 1
 * go away, neighbours join where every array allows it. NULL entries have strides 0. */
template <int K> static inline void plc_layout_of(plc_layout<K> *l, const PlArray *const a[K]) {
  const PlArray *y = a[0];
  l->ndim = 0;
  l->numel = y->numel;
  l->wide = y->numel > INT32_MAX;
  for (int d = y->ndim - 1; d >= 0; d--) {
    if (y->shape[d] == 1) continue;
    int64_t s[K];
    for (int k = 0; k < K; k++) {
      int at = a[k] ? d - (y->ndim - a[k]->ndim) : -1;
      s[k] = at < 0 || a[k]->shape[at] == 1 ? 0 : a[k]->strides[at];
    }
    bool join = l->ndim > 0;
    for (int k = 0; k < K && join; k++) join = s[k] == l->stride[k][l->ndim - 1] * l->size[l->ndim - 1];
    if (join) {
      l->size[l->ndim - 1] *= y->shape[d];
      continue;
    }
    l->size[l->ndim] = y->shape[d];
    for (int k = 0; k < K; k++) l->stride[k][l->ndim] = s[k];
    l->ndim++;
  }
  for (int d = 0; d < l->ndim; d++) l->by[d] = plc_div_by(l->wide || l->size[d] > INT32_MAX || l->size[d] < 1 ? 1u : (uint32_t)l->size[d]);
}

/* ---- elementwise ops --------------------------------------------------------------------------------------------------- */

enum { EW_IN = 3 };

/* Numbers that an op is given as attributes; bit k of set: number k is there. */
struct EwParams {
  double f[EW_IN];
  int64_t i[EW_IN];
  unsigned set;
};

/* ---- indices ------------------------------------------------------------------------------------------------------------- */

/* Notes the first fault of a kernel for the host; name is a host pointer, only passed through. */
PLC_DEV void plc_fault(PlcFlag *flag, PlcFault what, const char *name, int64_t value, int64_t size, int base) {
  if (atomicCAS(&flag->set, 0, (int)what) != 0) return;
  flag->name = name;
  flag->value = value;
  flag->size = size;
  flag->base = base;
}

#endif
