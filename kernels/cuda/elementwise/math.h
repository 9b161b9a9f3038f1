/* SPDX-License-Identifier: MIT
 * The functions that kernels/elementwise_formulas.h is written in, for the device: vm_<name>_f32 and _f64. The formulas are the
 * CPU's own text, so both devices compute the same expressions; elementary functions are the device library's. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_MATH_H
#define PL_KERNELS_CUDA_ELEMENTWISE_MATH_H

#include "kernels/cuda/device.h"

#define VM PLC_DEV
#define VM_BOTH(name, arg, f32, f64)                     \
  PLC_DEV float vm_##name##_f32(float x) { return f32; } \
  PLC_DEV double vm_##name##_f64(double x) { return f64; }
VM_BOTH(abs, x, fabsf(x), fabs(x))
VM_BOTH(sqrt, x, sqrtf(x), sqrt(x))
VM_BOTH(floor, x, floorf(x), floor(x))
VM_BOTH(ceil, x, ceilf(x), ceil(x))
VM_BOTH(trunc, x, truncf(x), trunc(x))
VM_BOTH(rint, x, rintf(x), rint(x))
VM_BOTH(exp, x, expf(x), exp(x))
VM_BOTH(expm1, x, expm1f(x), expm1(x))
VM_BOTH(log, x, logf(x), log(x))
VM_BOTH(log1p01, x, log1pf(x), log1p(x))
VM_BOTH(tanh, x, tanhf(x), tanh(x))
VM_BOTH(erf, x, erff(x), erf(x))
VM_BOTH(erf_fast, x, erff(x), erf(x))
VM_BOTH(logistic, x, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
VM_BOTH(sigmoid, x, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
PLC_DEV float vm_fma_f32(float a, float b, float c) { return fmaf(a, b, c); }
PLC_DEV double vm_fma_f64(double a, double b, double c) { return fma(a, b, c); }
PLC_DEV float vm_copysign_f32(float a, float b) { return copysignf(a, b); }
PLC_DEV double vm_copysign_f64(double a, double b) { return copysign(a, b); }
#define vm_largest_f32 3.40282347e38f
#define vm_largest_f64 1.7976931348623157e308

/* What is too rare or too long for the formulas, out of line so that hot kernels stay small. */
#define PLK_SF        static __device__ __noinline__
#define PLK_LGAMMA(x) lgamma(x)
#include "kernels/special_formulas.h"

#define T    float
#define F(f) f##_f32
#define K(c) ((float)(c))
#include "kernels/activation_formulas.h"
#undef T
#undef F
#undef K
#undef LARGEST
#undef SELU_ALPHA
#undef SELU_SCALE
#undef SIXTH
#define T    double
#define F(f) f##_f64
#define K(c) ((double)(c))
#include "kernels/activation_formulas.h"
#undef T
#undef F
#undef K

PLC_DEV float plc_remainder(float x, float y) {
  float m = fmodf(x, y);
  return m != 0.0f && (y < 0.0f) != (m < 0.0f) ? m + y : m;
}
PLC_DEV double plc_remainder(double x, double y) {
  double m = fmod(x, y);
  return m != 0.0 && (y < 0.0) != (m < 0.0) ? m + y : m;
}
PLC_DEV float plc_floor_divide(float x, float y) { return sf_floor_divide_f32(x, y); }
PLC_DEV double plc_floor_divide(double x, double y) { return sf_floor_divide(x, y); }
PLC_DEV float plc_nextafter(float x, float y) { return nextafterf(x, y); }
PLC_DEV double plc_nextafter(double x, double y) { return nextafter(x, y); }
PLC_DEV bool plc_signbit(float x) { return (__float_as_uint(x) >> 31) != 0; }
PLC_DEV bool plc_signbit(double x) { return __double_as_longlong(x) < 0; }

#endif
