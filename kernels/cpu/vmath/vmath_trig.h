/* SPDX-License-Identifier: MIT
 * The second half of vmath.h (which includes it): tanh, sigmoid, erf, sin, cos, tan, pow. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_TRIG_H
#define PL_KERNELS_CPU_VMATH_VMATH_TRIG_H

/* tanh: a + a^3 P(a^2) below 5/8, else 1 - 2 / (e^2a + 1). */
VM float vm_tanh_f32(float x) {
  const float a = vm_abs_f32(x), z = a * a, c = a > 10.0f ? 10.0f : a;
  float p = vm_fma_f32(-0.00609671418f, z, 0.0209971797f);
  p = vm_fma_f32(p, z, -0.0538509078f);
  p = vm_fma_f32(p, z, 0.133327693f);
  p = vm_fma_f32(p, z, -0.333333284f);
  const float t = vm_fma_f32(c, 2.0f * (float)VM_LOG2E, VM_RINT_F32), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, 2.0f * c));
  const float e = vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f;
  const float s = vm_pow2_f32(vm_bits_f32(t) - 0x4b400000u); /* n <= 29: one factor will do */
  const float big = 1.0f - 2.0f / vm_fma_f32(e, s, 1.0f);
  return vm_copysign_f32(a < 0.625f ? vm_fma_f32(a * z, p, a) : big, x);
}
VM double vm_tanh_f64(double x) {
  const double a = vm_abs_f64(x), z = a * a, c = a > 20.0 ? 20.0 : a;
  double p = vm_fma_f64(-1.7244874494844329e-05, z, 7.9599557352648078e-05);
  p = vm_fma_f64(p, z, -0.00023077616269519857);
  p = vm_fma_f64(p, z, 0.00058743728600943815);
  p = vm_fma_f64(p, z, -0.001455309297534642);
  p = vm_fma_f64(p, z, 0.0035920589774734554);
  p = vm_fma_f64(p, z, -0.0088632298309257087);
  p = vm_fma_f64(p, z, 0.021869488260559115);
  p = vm_fma_f64(p, z, -0.053968253961395568);
  p = vm_fma_f64(p, z, 0.13333333333326658);
  p = vm_fma_f64(p, z, -0.3333333333333332);
  const double big = 1.0 - 2.0 / (vm_exp_f64(2.0 * c) + 1.0);
  return vm_copysign_f64(a < 0.625 ? vm_fma_f64(a * z, p, a) : big, x);
}

/* 1 / (1 + e^-x), from z = e^-|x| so that nothing overflows and small results keep their digits: z / (1 + z)
 * below 0. The f32 quotient is corrected for what rounding took from 1 + z, times 1 / (1 + z), for which 1 - z / 2 will do.
 * As z is at most 1, 2^n = 2^(n + 64) 2^-64 will do. */
VM float vm_sigmoid_f32(float x) {
  const float a = vm_abs_f32(x);
  const int none = a > 104.0f; /* not computed, as in vm_exp_f32 */
  const float c = none ? 0.0f : -a;
  const float t = vm_fma_f32(c, (float)VM_LOG2E, VM_RINT_F32), n = t - VM_RINT_F32;
  const float r = vm_fma_f32(n, -VM_LN2_LO_F32, vm_fma_f32(n, -VM_LN2_HI_F32, c));
  const float w = vm_fma_f32(r * r, vm_expq_f32(r), r) + 1.0f;
  const float e = w * vm_from_f32((vm_bits_f32(t) + (127u + 64u)) << 23) * 0x1p-64f;
  const float z = none ? 0.0f : e, d = 1.0f + z;
  const float q = (x < 0.0f ? z : 1.0f) / d;
  return vm_fma_f32(q * (d - 1.0f - z), vm_fma_f32(-0.5f, z, 1.0f), q);
}
VM double vm_sigmoid_f64(double x) {
  const double a = vm_abs_f64(x);
  const int none = a > 746.0;
  const double c = none ? 0.0 : -a;
  const double t = vm_fma_f64(c, VM_LOG2E, VM_RINT_F64), n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, c));
  const double w = vm_fma_f64(r * r, vm_expq_f64(r), r) + 1.0;
  const double e = w * vm_from_f64((vm_bits_f64(t) + (1023u + 512u)) << 52) * 0x1p-512;
  const double z = none ? 0.0 : e;
  return (x < 0.0 ? z : 1.0) / (1.0 + z);
}

/* The plain quotient, for use inside other formulas; below -88 it is 0. */
VM float vm_logistic_f32(float x) { return 1.0f / (1.0f + vm_exp_f32(-x)); }
VM double vm_logistic_f64(double x) { return 1.0 / (1.0 + vm_exp_f64(-x)); }

/* erf: a + a P(a^2) below 1, else 1 - e^-Q(a) with Q = -log erfc; from 4 on it is 1. */
VM float vm_erf_f32(float x) {
  const float a = vm_abs_f32(x), z = a * a, c = a > 4.0f ? 4.0f : a;
  float p = vm_fma_f32(7.87587487e-05f, z, -0.00080168643f);
  p = vm_fma_f32(p, z, 0.00518908724f);
  p = vm_fma_f32(p, z, -0.0268542115f);
  p = vm_fma_f32(p, z, 0.112835944f);
  p = vm_fma_f32(p, z, -0.37612626f);
  p = vm_fma_f32(p, z, 0.128379166f);
  float q = vm_fma_f32(7.58268186e-08f, c, -3.32168452e-06f);
  q = vm_fma_f32(q, c, 6.22983498e-05f);
  q = vm_fma_f32(q, c, -0.000685836654f);
  q = vm_fma_f32(q, c, 0.00506494706f);
  q = vm_fma_f32(q, c, -0.0270995237f);
  q = vm_fma_f32(q, c, 0.111055017f);
  q = vm_fma_f32(q, c, 0.630953014f);
  q = vm_fma_f32(q, c, 1.1306752f);
  q = vm_fma_f32(q, c, -0.000416329218f);
  const float big = 1.0f - vm_exp_below_f32(-q);
  return vm_copysign_f32(a < 1.0f ? vm_fma_f32(a, p, a) : big, x);
}
VM double vm_erf_f64(double x) { return erf(x); }
/* erf to 3e-7 absolute in a third of the time, a quotient of polynomials in x^2 (relative minimax, fitted on
 * [0, 4]): for gelu, where 1 + erf cancels and digits of small results are lost anyway. */
VM float vm_erf_fast_f32(float x) {
  const float a = vm_abs_f32(x), c = a > 4.0f ? 4.0f : a, z = c * c;
  float p = vm_fma_f32(1.98896282e-06f, z, 0.00028409221f);
  float q = vm_fma_f32(3.74182418e-05f, z, 0.00118107104f);
  p = vm_fma_f32(p, z, 0.00386522338f);
  q = vm_fma_f32(q, z, 0.0151707185f);
  p = vm_fma_f32(p, z, 0.0530448034f);
  q = vm_fma_f32(q, z, 0.115177289f);
  p = vm_fma_f32(p, z, 0.193132192f);
  q = vm_fma_f32(q, z, 0.504491568f);
  p = vm_fma_f32(p, z, 1.12837911f);
  q = vm_fma_f32(q, z, 1.0f);
  const float y = c * p / q; /* from 4 on it must be 1 exactly: gelu multiplies 1 + erf by x */
  return vm_copysign_f32(a >= 4.0f ? 1.0f : y, x);
}
/* The same in double, for gelu as well: x P(x^2) below 1, else 1 - e^(-x^2) erfcx(x) with (x + 2) erfcx(x) as a polynomial in
 * (x - 2) / (x + 2), to 1e-16 absolute; from 6 on it is 1. (Interpolation at Chebyshev nodes on [0, 1] and [1, 6].) */
VM double vm_erf_fast_f64(double x) {
  const double a = vm_abs_f64(x), z = a * a, c = a > 6.0 ? 6.0 : a, i = 1.0 / (c + 2.0), s = (c - 2.0) * i;
  double p = vm_fma_f64(-7.795898827002142e-10, z, 1.3720064546777686e-08);
  p = vm_fma_f64(p, z, -1.6208483801871705e-07);
  p = vm_fma_f64(p, z, 1.6447424703317362e-06);
  p = vm_fma_f64(p, z, -1.492473690741966e-05);
  p = vm_fma_f64(p, z, 0.00012055294904839707);
  p = vm_fma_f64(p, z, -0.0008548325975389692);
  p = vm_fma_f64(p, z, 0.0052239776071164225);
  p = vm_fma_f64(p, z, -0.02686617064323777);
  p = vm_fma_f64(p, z, 0.11283791670945006);
  p = vm_fma_f64(p, z, -0.37612638903183543);
  p = vm_fma_f64(p, z, 1.1283791670955126);
  double q = vm_fma_f64(5.127540347756448e-06, s, -8.179282853698761e-07);
  q = vm_fma_f64(q, s, -1.6690978636810987e-05);
  q = vm_fma_f64(q, s, -2.1636133850813653e-05);
  q = vm_fma_f64(q, s, 3.423360798367434e-05);
  q = vm_fma_f64(q, s, 0.00014445202089678473);
  q = vm_fma_f64(q, s, 3.4365322122850224e-05);
  q = vm_fma_f64(q, s, -0.0006630716756367664);
  q = vm_fma_f64(q, s, -0.0008372958440063437);
  q = vm_fma_f64(q, s, 0.003090611975945019);
  q = vm_fma_f64(q, s, 0.006479185064304484);
  q = vm_fma_f64(q, s, -0.02151066188773439);
  q = vm_fma_f64(q, s, -0.03644223150686364);
  q = vm_fma_f64(q, s, 0.27947209255604094);
  q = vm_fma_f64(q, s, -0.6871606844138106);
  q = vm_fma_f64(q, s, 1.021582705242023);
  const double y = -c * c, t = vm_fma_f64(y, VM_LOG2E, VM_RINT_F64), n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, y));
  const double e = (vm_fma_f64(r * r, vm_expq_f64(r), r) + 1.0) * vm_from_f64((vm_bits_f64(t) + 1023u) << 52);
  return vm_copysign_f64(a < 1.0 ? a * p : 1.0 - q * i * e, x);
}

/* ---- trigonometric functions of floats, in double ---- */

/* Beyond this magnitude callers use libm: n below must stay under 2^20 for n * PIO2_HI to be exact. */
#define VM_TRIG_MAX 1.0e6f

/* Quadrant in the low bits of the result; sine and cosine of the rest, |r| <= pi/4. */
VM uint64_t vm_sincos_low(double x, double *s, double *c) {
  const double t = vm_fma_f64(x, 0.63661977236758138, VM_RINT_F64), n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -6.0771005065061922e-11, vm_fma_f64(n, -0x1.921fb544p+0, x));
  const double z = r * r;
  double p = vm_fma_f64(2.7249620080075331e-06, z, -0.00019840084376422702);
  p = vm_fma_f64(p, z, 0.0083333318703413487);
  p = vm_fma_f64(p, z, -0.16666666663844049);
  *s = vm_fma_f64(r * z, p, r);
  double q = vm_fma_f64(-2.730070403808665e-07, z, 2.4800598408350121e-05);
  q = vm_fma_f64(q, z, -0.0013888887668370663);
  q = vm_fma_f64(q, z, 0.041666666664311826);
  *c = vm_fma_f64(z * z, q, vm_fma_f64(z, -0.5, 1.0));
  return vm_bits_f64(t);
}
VM float vm_sin_wide_f32(float x) {
  double s, c;
  const uint64_t q = vm_sincos_low((double)x, &s, &c);
  const double y = (q & 1) ? c : s;
  return (float)vm_from_f64(vm_bits_f64(y) ^ ((q & 2) << 62));
}
VM float vm_cos_wide_f32(float x) {
  double s, c;
  const uint64_t q = vm_sincos_low((double)x, &s, &c);
  const double y = (q & 1) ? s : c;
  return (float)vm_from_f64(vm_bits_f64(y) ^ (((q + 1) & 2) << 62));
}
VM float vm_tan_wide_f32(float x) {
  double s, c;
  const uint64_t q = vm_sincos_low((double)x, &s, &c);
  return (float)((q & 1) ? -c / s : s / c);
}
VM float vm_sin_f32(float x) { return vm_abs_f32(x) <= VM_TRIG_NEAR_f32 ? vm_sin_near_f32(x) : vm_sin_wide_f32(x); }
VM float vm_cos_f32(float x) { return vm_abs_f32(x) <= VM_TRIG_NEAR_f32 ? vm_cos_near_f32(x) : vm_cos_wide_f32(x); }
VM float vm_tan_f32(float x) { return vm_abs_f32(x) <= VM_TRIG_NEAR_f32 ? vm_tan_near_f32(x) : vm_tan_wide_f32(x); }
VM float vm_sinc_f32(float x) { /* sin(pi x) / (pi x) */
  const double a = VM_PI * (double)x;
  double s, c;
  const uint64_t q = vm_sincos_low(a, &s, &c);
  const double y = vm_from_f64(vm_bits_f64((q & 1) ? c : s) ^ ((q & 2) << 62));
  return x == 0.0f ? 1.0f : (float)(y / a);
}

/* sine and cosine of 2 pi v, v in [0, 1): a quarter turn is exact, so no reduction error. */
VM void vm_sincos2pi_f32(float v, float *s, float *c) {
  const float a = 4.0f * v, t = a + VM_RINT_F32, f = a - (t - VM_RINT_F32), z = f * f;
  const uint32_t q = vm_bits_f32(t);
  float p = vm_fma_f32(0.000158204522f, z, -0.00468126545f);
  p = vm_fma_f32(p, z, 0.0796925798f);
  p = vm_fma_f32(p, z, -0.645964086f);
  p = vm_fma_f32(p, z, 1.57079637f) * f;
  float w = vm_fma_f32(0.00090361567f, z, -0.0208600648f);
  w = vm_fma_f32(w, z, 0.253669202f);
  w = vm_fma_f32(w, z, -1.23370051f);
  w = vm_fma_f32(w, z, 1.0f);
  const float sn = (q & 1) ? w : p, cs = (q & 1) ? p : w;
  *s = vm_from_f32(vm_bits_f32(sn) ^ ((q & 2) << 30));
  *c = vm_from_f32(vm_bits_f32(cs) ^ (((q + 1) & 2) << 30));
}

/* x^y = e^(y log|x|) with the sign of an odd y; IEEE 754's special values. */
VM float vm_pow_f32(float x, float y) {
  const float a = vm_abs_f32(x), ay = vm_abs_f32(y);
  const double l0 = vm_log_low((double)a);
  const double l1 = a == 0.0f ? -(double)INFINITY : l0;
  const double l = a > 3.40282347e38f ? (double)INFINITY : l1;
  float r = (float)vm_exp_low((double)y * l);
  const float half = y * 0.5f;
  const int whole = vm_trunc_f32(y) == y;
  const int odd = whole & (vm_trunc_f32(half) != half) & (ay < 0x1p24f);
  r = odd ? vm_copysign_f32(r, x) : r;
  r = ((x < 0.0f) & !whole & (a <= 3.40282347e38f)) ? NAN : r;
  r = ((x != x) | (y != y)) ? x + y : r;
  return ((y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (ay > 3.40282347e38f))) ? 1.0f : r;
}
VM double vm_pow_f64(double x, double y) { return pow(x, y); }

/* |sin(pi r)| for |r| <= 1/2: Taylor's series. */
VM double vm_sinpi_abs(double r) {
  const double u = VM_PI * r, z = u * u;
  double p = vm_fma_f64(1.9572941063391261e-20, z, -8.2206352466243297e-18);
  p = vm_fma_f64(p, z, 2.8114572543455206e-15);
  p = vm_fma_f64(p, z, -7.6471637318198164e-13);
  p = vm_fma_f64(p, z, 1.6059043836821613e-10);
  p = vm_fma_f64(p, z, -2.5052108385441720e-08);
  p = vm_fma_f64(p, z, 2.7557319223985893e-06);
  p = vm_fma_f64(p, z, -1.9841269841269841e-04);
  p = vm_fma_f64(p, z, 8.3333333333333332e-03);
  p = vm_fma_f64(p, z, -1.6666666666666666e-01);
  return vm_abs_f64(vm_fma_f64(p * z, u, u));
}

/* log |gamma(x)| in double, with two logarithms whatever x is. Below 1/2 by reflection, pi / (|sin pi x| gamma(1 - x))
 * (DLMF 5.5.3); y < 8 goes up by 8 at the cost of a product; then Stirling's series (5.11.1),
 * (z - 1/2)(log z - 1) + (log 2 pi - 1)/2 + 1/(12 z) - …. Poles and both infinities give infinity. */
VM float vm_lgamma_f32(float x) {
  const double v = (double)x;
  const int back = x < 0.5f;
  const double y = back ? 1.0 - v : v, up = y < 8.0 ? 1.0 : 0.0, a = up != 0.0 ? y : 1.0;
  const double z = y + 8.0 * up, s = vm_sinpi_abs(v - vm_rint_f64(v));
  const double q = a * (a + 7.0); /* a (a + 1) … (a + 7) in pairs around the middle */
  const double product = up != 0.0 ? q * (q + 6.0) * ((q + 10.0) * (q + 12.0)) : 1.0;
  const double w = 1.0 / z, w2 = w * w;
  double t = vm_fma_f64(6.4102564102564103e-03, w2, -1.9175269175269175e-03);
  t = vm_fma_f64(t, w2, 8.4175084175084175e-04);
  t = vm_fma_f64(t, w2, -5.9523809523809524e-04);
  t = vm_fma_f64(t, w2, 7.9365079365079365e-04);
  t = vm_fma_f64(t, w2, -2.7777777777777778e-03);
  t = vm_fma_f64(t, w2, 8.3333333333333333e-02);
  const double stirling = vm_fma_f64(z - 0.5, vm_log_f64(z) - 1.0, vm_fma_f64(t, w, 0.41893853320467274));
  const double other = vm_log_f64(back ? VM_PI * product / s : product);
  const double r = back ? other - stirling : stirling - other;
  return ((x <= -8388608.0f) | (y > 1e300)) ? INFINITY : ((x == 1.0f) | (x == 2.0f)) ? 0.0f : (float)r;
}

#endif
