/* SPDX-License-Identifier: MIT
 * More functions of floats, computed in double (vmath.h includes this): atan2, hyperbolic functions, erfc, remainders. Polynomials as there; errors of 1e-9 and less vanish in the rounding to float. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_VIA_F64_H
#define PL_KERNELS_CPU_VMATH_VMATH_VIA_F64_H

/* ---- angles ---- */

/* atan t for 0 <= t <= 1: t + t^3 P(t^2). */
VM double vm_atan_low(double t) {
  const double z = t * t;
  double p = vm_fma_f64(0.0005930437556365282, z, -0.0042216579909296476);
  p = vm_fma_f64(p, z, 0.014072923344697239);
  p = vm_fma_f64(p, z, -0.029913111945516959);
  p = vm_fma_f64(p, z, 0.047294798621813336);
  p = vm_fma_f64(p, z, -0.062463151941283171);
  p = vm_fma_f64(p, z, 0.075866528336466704);
  p = vm_fma_f64(p, z, -0.090735531189764088);
  p = vm_fma_f64(p, z, 0.11109392308322223);
  p = vm_fma_f64(p, z, -0.14285624891483525);
  p = vm_fma_f64(p, z, 0.19999998154086215);
  p = vm_fma_f64(p, z, -0.33333333326944142);
  return vm_fma_f64(t * z, p, t);
}
/* From the octant's angle; zeros and infinities keep their signs' quadrants as in IEEE 754. */
VM float vm_atan2_f32(float y, float x) {
  const float ay = vm_abs_f32(y), ax = vm_abs_f32(x);
  const int steep = ay > ax;
  const float hi = steep ? ay : ax, lo = steep ? ax : ay;
  const double q = (double)lo / (double)hi;
  double t = hi == 0.0f ? 0.0 : q;
  t = lo > 3.40282347e38f ? 1.0 : t;
  double p = vm_atan_low(t);
  p = steep ? VM_PIO2 - p : p;
  p = (vm_bits_f32(x) >> 31) ? VM_PI - p : p;
  const float r = vm_copysign_f32((float)p, y);
  return ((x != x) | (y != y)) ? x + y : r;
}

/* ---- hyperbolic ---- */

/* log(1 + u), u >= 0: what rounding takes from 1 + u comes back as a quotient. */
VM double vm_log1p_low(double u) {
  const double w = 1.0 + u;
  return vm_log_low(w) + (u - (w - 1.0)) / w;
}
VM float vm_asinh_f32(float x) {
  const double a = (double)vm_abs_f32(x), z = a * a;
  const double y = vm_log1p_low(a + z / (1.0 + vm_sqrt_f64(z + 1.0)));
  return vm_abs_f32(x) <= 3.40282347e38f ? vm_copysign_f32((float)y, x) : x;
}
VM float vm_acosh_f32(float x) {
  const double u = (double)x - 1.0;
  const float y = (float)vm_log1p_low(u + vm_sqrt_f64(u * (u + 2.0)));
  const float r = x <= 3.40282347e38f ? y : x;
  return x >= 1.0f ? r : NAN;
}
VM float vm_atanh_f32(float x) {
  const double a = (double)vm_abs_f32(x);
  const double y = 0.5 * vm_log1p_low(2.0 * a / (1.0 - a));
  const float r = vm_copysign_f32(a == 1.0 ? INFINITY : (float)y, x);
  return a <= 1.0 ? r : NAN;
}
VM float vm_sinh_f32(float x) {
  const double a = (double)vm_abs_f32(x), z = a * a;
  double p = vm_fma_f64(2.5456706571523821e-08, z, 2.755377026364149e-06);
  p = vm_fma_f64(p, z, 0.0001984128253011599);
  p = vm_fma_f64(p, z, 0.0083333333174643621);
  p = vm_fma_f64(p, z, 0.16666666666698407);
  const double e = vm_exp_low(a);
  return vm_copysign_f32((float)(a < 1.0 ? vm_fma_f64(a * z, p, a) : 0.5 * (e - 1.0 / e)), x);
}
VM float vm_cosh_f32(float x) {
  const double e = vm_exp_low((double)vm_abs_f32(x));
  return (float)(0.5 * (e + 1.0 / e));
}

/* ---- error function ---- */

/* erfc a = t e^(P(t) - a^2), t = 2 / (2 + a). */
VM float vm_erfc_f32(float x) {
  const double a = (double)vm_abs_f32(x), t = 2.0 / (2.0 + a);
  double p = vm_fma_f64(0.14172884943690428, t, -1.4083668648844514);
  p = vm_fma_f64(p, t, 6.3104877530652788);
  p = vm_fma_f64(p, t, -16.755591402854087);
  p = vm_fma_f64(p, t, 29.127527825348945);
  p = vm_fma_f64(p, t, -34.620711228484204);
  p = vm_fma_f64(p, t, 28.749737313025456);
  p = vm_fma_f64(p, t, -17.149104654138323);
  p = vm_fma_f64(p, t, 7.8041606374395203);
  p = vm_fma_f64(p, t, -2.718136880091957);
  p = vm_fma_f64(p, t, 0.51980330789835394);
  p = vm_fma_f64(p, t, -0.20933719995978117);
  p = vm_fma_f64(p, t, 0.099699917343239824);
  p = vm_fma_f64(p, t, 0.37353802271837899);
  p = vm_fma_f64(p, t, 1.0000786482904249);
  p = vm_fma_f64(p, t, -1.2655140441543087);
  const double y = t * vm_exp_low(vm_fma_f64(-a, a, p));
  return (float)(x < 0.0f ? 2.0 - y : y);
}
/* ---- remainders ---- */

/* Exact where |x| <= VM_FMOD_MAX |y| and y is finite and not 0: the quotient has 29 bits, so its product with y and
 * the difference are exact; the quotient may be off by one. */
#define VM_FMOD_MAX 0x1p28
VM double vm_fmod_low(float x, float y) {
  const double a = (double)vm_abs_f32(x), b = (double)vm_abs_f32(y), q = vm_trunc_f64(a / b);
  double r = a - q * b;
  r = r < 0.0 ? r + b : r;
  r = r >= b ? r - b : r;
  return vm_copysign_f64(r, (double)x);
}
VM float vm_fmod_f32(float x, float y) { return (float)vm_fmod_low(x, y); }
/* Python's %: the sign of the divisor. */
VM float vm_remainder_f32(float x, float y) {
  const double m = vm_fmod_low(x, y);
  return (float)(((m != 0.0) & ((y < 0.0f) != (m < 0.0))) ? m + (double)y : m);
}
VM float vm_hypot_f32(float x, float y) {
  const float ax = vm_abs_f32(x), ay = vm_abs_f32(y);
  const double a = (double)ax, b = (double)ay;
  return ((ax > 3.40282347e38f) | (ay > 3.40282347e38f)) ? INFINITY : (float)vm_sqrt_f64(vm_fma_f64(a, a, b * b));
}

#endif
