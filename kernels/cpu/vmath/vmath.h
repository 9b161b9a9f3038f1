/* SPDX-License-Identifier: MIT
 * Elementary functions as straight-line code that compilers vectorize: no table, no branch, no errno.
 * f32 functions are within 2 ULP (spec/link/ulp.c measures it), f64 ones within a few. vm_<f>_<dtype>.
 * Polynomials: interpolation at Chebyshev nodes of the function named beside them, in 60-digit arithmetic.
 * Contraction is off, so one source expression gives the same bits in vector and scalar code; where there
 * is no fused multiply-add, vm_fma is a product and a sum. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_H
#define PL_KERNELS_CPU_VMATH_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VM            static inline __attribute__((always_inline, unused))
#define VM_LN2_HI_F32 0x1.62e4p-1f /* 15 bits, so n * hi is exact for |n| < 2^9 */
#define VM_LN2_LO_F32 1.42860682e-06f
#define VM_LN2_HI_F64 0x1.62e42fefp-1 /* 33 bits */
#define VM_LN2_LO_F64 7.4406171100123968e-11
#define VM_LOG2E      1.4426950408889634
#define VM_RINT_F32   0x1.8p23f /* x + this - this rounds to an integer; the low bits hold it */
#define VM_RINT_F64   0x1.8p52
#define VM_PI         3.14159265358979323846

VM uint32_t vm_bits_f32(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
VM float vm_from_f32(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
VM uint64_t vm_bits_f64(double x) {
  uint64_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
VM double vm_from_f64(uint64_t u) {
  double x;
  memcpy(&x, &u, sizeof x);
  return x;
}

#if defined(__FMA__) || defined(__aarch64__)
VM float vm_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
VM double vm_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
VM float vm_fma_f32(float a, float b, float c) { return a * b + c; }
VM double vm_fma_f64(double a, double b, double c) { return a * b + c; }
#endif

VM float vm_abs_f32(float x) { return __builtin_fabsf(x); }
VM double vm_abs_f64(double x) { return __builtin_fabs(x); }
VM float vm_sqrt_f32(float x) { return __builtin_sqrtf(x); }
VM double vm_sqrt_f64(double x) { return __builtin_sqrt(x); }
VM float vm_floor_f32(float x) { return __builtin_floorf(x); }
VM double vm_floor_f64(double x) { return __builtin_floor(x); }
VM float vm_ceil_f32(float x) { return __builtin_ceilf(x); }
VM double vm_ceil_f64(double x) { return __builtin_ceil(x); }
VM float vm_trunc_f32(float x) { return __builtin_truncf(x); }
VM double vm_trunc_f64(double x) { return __builtin_trunc(x); }
VM float vm_rint_f32(float x) { return __builtin_rintf(x); }
VM double vm_rint_f64(double x) { return __builtin_rint(x); }
VM float vm_copysign_f32(float x, float y) { return vm_from_f32((vm_bits_f32(x) & 0x7fffffffu) | (vm_bits_f32(y) & 0x80000000u)); }
VM double vm_copysign_f64(double x, double y) {
  return vm_from_f64((vm_bits_f64(x) & 0x7fffffffffffffffu) | (vm_bits_f64(y) & 0x8000000000000000u));
}

/* 2^k for a normal result. */
VM float vm_pow2_f32(uint32_t k) { return vm_from_f32((k + 127u) << 23); }
VM double vm_pow2_f64(uint64_t k) { return vm_from_f64((k + 1023u) << 52); }

/* ---- exp ---- */

/* (e^r - 1 - r) / r^2 on |r| <= ln2/2. */
VM float vm_expq_f32(float r) {
  float q = vm_fma_f32(0.00139262504f, r, 0.00836323295f);
  q = vm_fma_f32(q, r, 0.0416665524f);
  q = vm_fma_f32(q, r, 0.166665763f);
  return vm_fma_f32(q, r, 0.5f);
}
VM double vm_expq_f64(double r) {
  double q = vm_fma_f64(2.0914755325893202e-09, r, 2.5105312729622103e-08);
  q = vm_fma_f64(q, r, 2.7557273478718582e-07);
  q = vm_fma_f64(q, r, 2.7557255170000888e-06);
  q = vm_fma_f64(q, r, 2.4801587325677461e-05);
  q = vm_fma_f64(q, r, 0.00019841269875002279);
  q = vm_fma_f64(q, r, 0.0013888888888883711);
  q = vm_fma_f64(q, r, 0.0083333333333260838);
  q = vm_fma_f64(q, r, 0.041666666666666671);
  q = vm_fma_f64(q, r, 0.16666666666666671);
  return vm_fma_f64(q, r, 0.5);
}
VM double vm_expq_low(double r) { /* to 1e-9, for f32 results */
  double q = vm_fma_f64(0.00019891080463998843, r, 0.0013933730715792083);
  q = vm_fma_f64(q, r, 0.0083333108446478621);
  q = vm_fma_f64(q, r, 0.041666464197405689);
  q = vm_fma_f64(q, r, 0.16666666681704215);
  return vm_fma_f64(q, r, 0.50000000135387301);
}

/* p * 2^n where t = VM_RINT + n. Two factors, so that subnormal and infinite results come out right. */
VM float vm_scale_f32(float p, float t) {
  const uint32_t n = vm_bits_f32(t) - 0x4b400000u;
  const uint32_t h = (uint32_t)((int32_t)n >> 1);
  return p * vm_pow2_f32(h) * vm_pow2_f32(n - h);
}
VM double vm_scale_f64(double p, double t) {
  const uint64_t n = vm_bits_f64(t) - 0x4338000000000000u;
  const uint64_t h = vm_bits_f64(vm_fma_f64(t - VM_RINT_F64, 0.5, VM_RINT_F64)) - 0x4338000000000000u;
  return p * vm_pow2_f64(h) * vm_pow2_f64(n - h);
}

/* The lesser of t = VM_RINT + n and VM_RINT + most, for n > -2^22 and anything greater, as integers: one instruction. NaN becomes
 * some number. Clamping x from both sides instead would cost eight: compilers merge such comparisons. */
VM float vm_most_f32(float t, int32_t most) {
  const int32_t u = (int32_t)vm_bits_f32(t), m = 0x4b400000 + most;
  return vm_from_f32((uint32_t)(u < m ? u : m));
}

/* e^x = 2^n e^r, r = x - n ln2. Below -104 the result is 0, and is not computed: a product that underflows takes a hundred cycles
 * and more where processors leave it to microcode, and hidden scores are -inf. Of greater x n stops at 129, where 2^n e^r is inf
 * whatever r > 0 is; a NaN is in r. */
VM float vm_exp_f32(float x) {
  const int none = x < -104.0f;
  const float c = none ? 0.0f : x;
  const float t = vm_most_f32(vm_fma_f32(c, (float)VM_LOG2E, VM_RINT_F32), 129), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, c));
  const float y = vm_scale_f32(vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f, t);
  return none ? 0.0f : y;
}
/* The same for -80 < x <= 0, where nothing is clamped and 2^n is one factor. */
VM float vm_exp_below_f32(float x) {
  const float t = vm_fma_f32(x, (float)VM_LOG2E, VM_RINT_F32), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, x));
  return (vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f) * vm_pow2_f32(vm_bits_f32(t) - 0x4b400000u);
}
VM double vm_exp_f64(double x) {
  const int none = x < -746.0;
  const double c = none ? 0.0 : x, u = vm_fma_f64(c, VM_LOG2E, VM_RINT_F64);
  const double t = u > VM_RINT_F64 + 1025.0 ? VM_RINT_F64 + 1025.0 : u, n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, c));
  const double y = vm_scale_f64(vm_fma_f64(r * r, vm_expq_f64(r), r) + 1.0, t);
  return none ? 0.0 : y;
}
VM double vm_exp_low(double x) { /* to 1e-9 relative */
  const int none = x < -746.0;
  const double c = none ? 0.0 : x, u = vm_fma_f64(c, VM_LOG2E, VM_RINT_F64);
  const double t = u > VM_RINT_F64 + 1025.0 ? VM_RINT_F64 + 1025.0 : u, n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, c));
  const double y = vm_scale_f64(vm_fma_f64(r * r, vm_expq_low(r), r) + 1.0, t);
  return none ? 0.0 : y;
}
VM float vm_exp2_f32(float x) {
  const int none = x < -151.0f;
  const float c = none ? 0.0f : x, t = vm_most_f32(c + VM_RINT_F32, 129);
  const float r = (c - (t - VM_RINT_F32)) * 0.693147182f;
  const float y = vm_scale_f32(vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f, t);
  return none ? 0.0f : y;
}

/* e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): the half keeps n = 128 in range, where n stops. */
VM float vm_expm1_f32(float x) {
  const float c = x < -20.0f ? -20.0f : x;
  const float t = vm_most_f32(vm_fma_f32(c, (float)VM_LOG2E, VM_RINT_F32), 128), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, c));
  const float s = vm_pow2_f32(vm_bits_f32(t) - 0x4b400001u);
  const float y = 2.0f * vm_fma_f32(s, vm_fma_f32(r * r, vm_expq_f32(r), r), s - 0.5f);
  return x == 0.0f ? x : y;
}
VM double vm_expm1_f64(double x) {
  const double c = x < -40.0 ? -40.0 : x, u = vm_fma_f64(c, VM_LOG2E, VM_RINT_F64);
  const double t = u > VM_RINT_F64 + 1024.0 ? VM_RINT_F64 + 1024.0 : u, n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, c));
  const double s = vm_pow2_f64(vm_bits_f64(t) - 0x4338000000000001u);
  const double y = 2.0 * vm_fma_f64(s, vm_fma_f64(r * r, vm_expq_f64(r), r), s - 0.5);
  return x == 0.0 ? x : y;
}

/* ---- log ---- */

/* k ln2 + log(1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]: log(1+f) = f - f^2/2 + f^3 P(f). */
VM float vm_logp_f32(float f) {
  float p = vm_fma_f32(-0.0790274367f, f, 0.126223192f);
  p = vm_fma_f32(p, f, -0.129981831f);
  p = vm_fma_f32(p, f, 0.142144963f);
  p = vm_fma_f32(p, f, -0.166412815f);
  p = vm_fma_f32(p, f, 0.200010449f);
  p = vm_fma_f32(p, f, -0.25000307f);
  return vm_fma_f32(p, f, 0.333333313f);
}
VM float vm_logk_f32(float f, float k) {
  const float z = f * f, lo = vm_fma_f32(z * f, vm_logp_f32(f), k * VM_LN2_LO_F32);
  return vm_fma_f32(k, VM_LN2_HI_F32, f - (0.5f * z - lo));
}
/* The same through s = f / (2 + f): log(1+f) = f - s (f - R), R = z (2/3 + 2/5 z + …), z = s^2. */
VM double vm_logk_f64(double f, double k) {
  const double s = f / (2.0 + f), z = s * s;
  double p = vm_fma_f64(0.13087236196659621, z, 0.13268714792348096);
  p = vm_fma_f64(p, z, 0.15386241881938595);
  p = vm_fma_f64(p, z, 0.18181795600060793);
  p = vm_fma_f64(p, z, 0.22222222392089008);
  p = vm_fma_f64(p, z, 0.28571428570801954);
  p = vm_fma_f64(p, z, 0.40000000000000879);
  p = vm_fma_f64(p, z, 0.66666666666666663);
  return vm_fma_f64(k, VM_LN2_HI_F64, f - (s * (f - z * p) - k * VM_LN2_LO_F64));
}
VM double vm_logk_low(double f, double k) { /* to 1e-10 relative */
  const double s = f / (2.0 + f), z = s * s;
  double p = vm_fma_f64(0.23330964051772041, z, 0.28550802553276711);
  p = vm_fma_f64(p, z, 0.40000122000816879);
  p = vm_fma_f64(p, z, 0.6666666655430018);
  return vm_fma_f64(k, VM_LN2_HI_F64, f - (s * (f - z * p) - k * VM_LN2_LO_F64));
}

VM float vm_log_edge_f32(float x, float y) { /* y = log x for finite x > 0 */
  y = x > 3.40282347e38f ? x : y;
  y = x == 0.0f ? -INFINITY : y;
  return x >= 0.0f ? y : NAN;
}
VM double vm_log_edge_f64(double x, double y) {
  y = x > 1.7976931348623157e308 ? x : y;
  y = x == 0.0 ? -(double)INFINITY : y;
  return x >= 0.0 ? y : (double)NAN;
}
VM float vm_log_f32(float x) {
  const float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
  const uint32_t u = vm_bits_f32(tiny != 0.0f ? x * 0x1p23f : x);
  const uint32_t e = (uint32_t)((int32_t)(u - 0x3f3504f3u) >> 23); /* 0x3f3504f3: sqrt(1/2) */
  const float k = vm_fma_f32(-23.0f, tiny, (float)(int32_t)e);
  return vm_log_edge_f32(x, vm_logk_f32(vm_from_f32(u - (e << 23)) - 1.0f, k));
}
/* Mantissa minus one in *f, exponent returned; x > 0 normal. Only logical 64-bit shifts: SSE and AVX2 have
 * no arithmetic one and no conversion from int64. */
VM double vm_split_f64(uint64_t u, double *f) {
  const uint64_t e = (u - 0x3fe6a09e667f3bcdu + 0x3ff0000000000000u) >> 52;
  *f = vm_from_f64(u - (e << 52) + 0x3ff0000000000000u) - 1.0;
  return vm_from_f64(e | 0x4330000000000000u) - (0x1p52 + 1023.0);
}
VM double vm_log_f64(double x) {
  const double tiny = x < 2.2250738585072014e-308 ? 1.0 : 0.0;
  double f;
  const double k = vm_split_f64(vm_bits_f64(tiny != 0.0 ? x * 0x1p52 : x), &f);
  return vm_log_edge_f64(x, vm_logk_f64(f, vm_fma_f64(-52.0, tiny, k)));
}
/* log of a float's magnitude in double, 1e-10 relative; 0 gives about -709, inf about 709. */
VM double vm_log_low(double x) {
  double f;
  const double k = vm_split_f64(vm_bits_f64(x), &f);
  return vm_logk_low(f, k);
}
VM float vm_log2_f32(float x) { return vm_log_edge_f32(x, (float)(vm_log_low((double)x) * VM_LOG2E)); }
VM float vm_log10_f32(float x) { return vm_log_edge_f32(x, (float)(vm_log_low((double)x) * 0.43429448190325183)); }
/* log(1 + z) for z in [0, 1]. */
VM float vm_log1p01_f32(float z) {
  const float u = 1.0f + z, k = u > 1.41421354f ? 1.0f : 0.0f;
  return vm_logk_f32(k != 0.0f ? 0.5f * u - 1.0f : z, k);
}
VM double vm_log1p01_f64(double z) {
  const double u = 1.0 + z, k = u > 1.4142135623730951 ? 1.0 : 0.0;
  return vm_logk_f64(k != 0.0 ? 0.5 * u - 1.0 : z, k);
}

#define VM_PIO2 1.57079632679489662
#include "kernels/cpu/vmath/vmath_avx512.h"
#include "kernels/cpu/vmath/vmath_f32.h"
#include "kernels/cpu/vmath/vmath_f64.h"
#include "kernels/cpu/vmath/vmath_trig.h"
#include "kernels/cpu/vmath/vmath_via_f64.h"
#endif
