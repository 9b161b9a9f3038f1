/* SPDX-License-Identifier: MIT
 * Elements of a dtype known only at run time, for kernels that are rare or touch few numbers: one compiled kernel serves
 * every dtype, at the price of a branch that all threads take alike. Also keys that order like the values. */
#ifndef PL_KERNELS_CUDA_ANY_DTYPE_H
#define PL_KERNELS_CUDA_ANY_DTYPE_H

#include "kernels/cuda/device.h"

PLC_DEV double plc_get_f(const void *p, int dtype, int64_t i) {
  switch (dtype) {
  case PL_F32: return (double)((const float *)p)[i];
  case PL_F64: return ((const double *)p)[i];
  case PL_F16: return (double)plc_widen(((const plc_f16 *)p)[i]);
  case PL_BF16: return (double)plc_widen(((const plc_bf16 *)p)[i]);
  case PL_I8: return (double)((const int8_t *)p)[i];
  case PL_I16: return (double)((const int16_t *)p)[i];
  case PL_I32: return (double)((const int32_t *)p)[i];
  case PL_I64: return (double)((const int64_t *)p)[i];
  default: return (double)((const uint8_t *)p)[i];
  }
}
PLC_DEV int64_t plc_get_i(const void *p, int dtype, int64_t i) { /* of integers and bool */
  switch (dtype) {
  case PL_I8: return ((const int8_t *)p)[i];
  case PL_I16: return ((const int16_t *)p)[i];
  case PL_I32: return ((const int32_t *)p)[i];
  case PL_I64: return ((const int64_t *)p)[i];
  default: return ((const uint8_t *)p)[i];
  }
}
PLC_DEV void plc_put_f(void *p, int dtype, int64_t i, double v) { /* floats */
  switch (dtype) {
  case PL_F32: ((float *)p)[i] = (float)v; break;
  case PL_F64: ((double *)p)[i] = v; break;
  case PL_F16: ((plc_f16 *)p)[i] = plc_f16_of((float)v); break;
  default: ((plc_bf16 *)p)[i] = plc_bf16_of((float)v); break;
  }
}
PLC_DEV void plc_put_i(void *p, int dtype, int64_t i, int64_t v) { /* integers and bool */
  switch (dtype) {
  case PL_I8: ((int8_t *)p)[i] = (int8_t)v; break;
  case PL_I16: ((int16_t *)p)[i] = (int16_t)v; break;
  case PL_I32: ((int32_t *)p)[i] = (int32_t)v; break;
  case PL_I64: ((int64_t *)p)[i] = v; break;
  case PL_U8: ((uint8_t *)p)[i] = (uint8_t)v; break;
  default: ((uint8_t *)p)[i] = v != 0; break;
  }
}

/* A float as an integer between lo and hi. */
PLC_DEV int64_t plc_saturated(double x, int64_t lo, int64_t hi) {
  if (x != x) return 0;
  if (x >= 9223372036854775808.0) return hi;
  if (x < -9223372036854775808.0) return lo;
  int64_t v = (int64_t)x;
  return v < lo ? lo : v > hi ? hi : v;
}
PLC_DEV int64_t plc_as_integer(double x, int dtype) {
  switch (dtype) {
  case PL_I8: return plc_saturated(x, -128, 127);
  case PL_I16: return plc_saturated(x, -32768, 32767);
  case PL_I32: return plc_saturated(x, INT32_MIN, INT32_MAX);
  case PL_I64: return plc_saturated(x, INT64_MIN, INT64_MAX);
  case PL_U8: return plc_saturated(x, 0, 255);
  default: return x != 0;
  }
}
/* To any dtype; exactly one of f and i is meant: whole says which. */
PLC_DEV void plc_put_any(void *p, int dtype, int64_t at, bool whole, double f, int64_t i) {
  if (dtype >= PL_I8) plc_put_i(p, dtype, at, whole ? i : plc_as_integer(f, dtype));
  else if (dtype == PL_F64) ((double *)p)[at] = whole ? (double)i : f;
  else plc_put_f(p, dtype, at, whole ? (double)(float)i : f); /* rounded once */
}
/* Of any dtype: a double or, where *whole comes out true, an integer. */
PLC_DEV void plc_get_any(const void *p, int dtype, int64_t at, double *f, int64_t *i, bool *whole) {
  *whole = dtype >= PL_I8;
  if (*whole) *i = plc_get_i(p, dtype, at);
  else *f = plc_get_f(p, dtype, at);
}

/* y[j] = x[i], elements of `size` bytes. */
PLC_DEV void plc_move(void *y, int64_t j, const void *x, int64_t i, int size) {
  switch (size) {
  case 1: ((uint8_t *)y)[j] = ((const uint8_t *)x)[i]; break;
  case 2: ((uint16_t *)y)[j] = ((const uint16_t *)x)[i]; break;
  case 4: ((uint32_t *)y)[j] = ((const uint32_t *)x)[i]; break;
  default: ((uint64_t *)y)[j] = ((const uint64_t *)x)[i]; break;
  }
}

/* Unsigned keys in the order of the values: NaN above everything, -0 equal to 0. Bits above `plc_key_bits` are 0, so radix
 * passes skip them. */
PLC_DEV uint64_t plc_key_f32(float v) {
  if (v != v) return 0xffffffffu;
  uint32_t u = __float_as_uint(v == 0 ? 0.0f : v);
  return u >> 31 ? (uint32_t)~u : u | 0x80000000u;
}
PLC_DEV uint64_t plc_key_f64(double v) {
  if (v != v) return ~(uint64_t)0;
  uint64_t u = (uint64_t)__double_as_longlong(v == 0 ? 0.0 : v);
  return u >> 63 ? ~u : u | (uint64_t)1 << 63;
}
PLC_DEV uint64_t plc_key(const void *p, int dtype, int64_t i) {
  switch (dtype) {
  case PL_F32: return plc_key_f32(((const float *)p)[i]);
  case PL_F64: return plc_key_f64(((const double *)p)[i]);
  case PL_F16: return plc_key_f32(plc_widen(((const plc_f16 *)p)[i]));
  case PL_BF16: return plc_key_f32(plc_widen(((const plc_bf16 *)p)[i]));
  case PL_I8: return (uint8_t)(((const uint8_t *)p)[i] ^ 0x80u);
  case PL_I16: return (uint16_t)(((const uint16_t *)p)[i] ^ 0x8000u);
  case PL_I32: return ((const uint32_t *)p)[i] ^ 0x80000000u;
  case PL_I64: return ((const uint64_t *)p)[i] ^ (uint64_t)1 << 63;
  default: return ((const uint8_t *)p)[i];
  }
}
static __device__ __host__ inline int plc_key_bits(int dtype) {
  return dtype == PL_F16 || dtype == PL_BF16  ? 32
         : dtype == PL_F32 || dtype == PL_I32 ? 32
         : dtype == PL_F64 || dtype == PL_I64 ? 64
         : dtype == PL_I16                    ? 16
                                              : 8;
}
/* The key of NaN; of an integer dtype: none. */
static __device__ __host__ inline uint64_t plc_key_nan(int dtype) { return dtype == PL_F64 ? ~(uint64_t)0 : (uint64_t)0xffffffffu; }

/* Keys in the opposite order, but NaN above everything all the same. */
PLC_DEV uint64_t plc_key_down(const void *p, int dtype, int64_t i) {
  const uint64_t k = plc_key(p, dtype, i);
  if (dtype > PL_BF16) return ~k;
  return k == plc_key_nan(dtype) ? ~(uint64_t)0 : ~(uint64_t)0 - 1 - k;
}
static __device__ __host__ inline int plc_size(int dtype) { /* bytes of an element */
  return dtype == PL_F64 || dtype == PL_I64                       ? 8
         : dtype == PL_F32 || dtype == PL_I32                     ? 4
         : dtype == PL_F16 || dtype == PL_BF16 || dtype == PL_I16 ? 2
                                                                  : 1;
}

/* A few numbers in any floating dtype, such as parameters and statistics; p NULL: not there. */
struct plc_numbers {
  void *p;
  int dtype;
};
static inline plc_numbers plc_numbers_of(const PlArray *a) {
  plc_numbers r = {a ? a->data : NULL, a ? (int)a->dtype : (int)PL_F32};
  return r;
}
PLC_DEV double plc_number(const plc_numbers &a, int64_t i, double none) { return a.p ? plc_get_f(a.p, a.dtype, i) : none; }
PLC_DEV void plc_number_put(const plc_numbers &a, int64_t i, double v) {
  if (a.p) plc_put_f(a.p, a.dtype, i, v);
}

/* Sizes before, along and after a dim; a 0-d array is one row of one element. Flat: dim < 0. */
struct plc_rows {
  int64_t outer, n, inner;
};
static inline plc_rows plc_rows_of(const PlArray *a, int64_t dim) {
  plc_rows r = {1, 1, 1};
  if (dim < 0) {
    r.n = a->numel;
    return r;
  }
  for (int64_t d = 0; d < a->ndim; d++) (d < dim ? r.outer : d == dim ? r.n : r.inner) *= a->shape[d];
  return r;
}

#endif
