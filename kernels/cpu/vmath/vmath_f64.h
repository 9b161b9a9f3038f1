/* SPDX-License-Identifier: MIT
 * Functions of doubles, within a few units of the last place (vmath.h includes this). Polynomials as there. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_F64_H
#define PL_KERNELS_CPU_VMATH_VMATH_F64_H

#define VM_PIO2_LOW 6.123233995736766e-17

/* ---- trigonometric, |x| <= VM_TRIG_MAX ---- */

/* r = x - n pi/2 with pi/2 in three parts: n has 20 bits, the first two parts 33, so their products are exact. */
VM uint64_t vm_sincos_f64(double x, double *s, double *c) {
  const double t = vm_fma_f64(x, 0.63661977236758138, VM_RINT_F64), n = t - VM_RINT_F64;
  const double r = ((x - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a600000p-34) - n * 0x1.3198a2e037073p-69;
  const double z = r * r;
  double p = vm_fma_f64(-7.5860947896726206e-13, z, 1.6058521349954986e-10);
  p = vm_fma_f64(p, z, -2.5052106167335705e-08);
  p = vm_fma_f64(p, z, 2.7557319219150783e-06);
  p = vm_fma_f64(p, z, -0.00019841269841264821);
  p = vm_fma_f64(p, z, 0.0083333333333333315);
  p = vm_fma_f64(p, z, -0.16666666666666666);
  *s = vm_fma_f64(r * z, p, r);
  double q = vm_fma_f64(4.7455370173192583e-14, z, -1.1470455178216906e-11);
  q = vm_fma_f64(q, z, 2.0876755754879594e-09);
  q = vm_fma_f64(q, z, -2.7557319221298089e-07);
  q = vm_fma_f64(q, z, 2.480158730158451e-05);
  q = vm_fma_f64(q, z, -0.0013888888888888887);
  q = vm_fma_f64(q, z, 0.041666666666666664);
  const double h = 0.5 * z, w = 1.0 - h; /* 1 - w is exact, so what rounding took from w is (1 - w) - h */
  *c = w + (((1.0 - w) - h) + z * z * q);
  return vm_bits_f64(t);
}
VM double vm_sin_f64(double x) {
  double s, c;
  const uint64_t q = vm_sincos_f64(x, &s, &c);
  const double y = vm_from_f64(vm_bits_f64((q & 1) ? c : s) ^ ((q & 2) << 62));
  return x == 0.0 ? x : y;
}
VM double vm_cos_f64(double x) {
  double s, c;
  const uint64_t q = vm_sincos_f64(x, &s, &c);
  return vm_from_f64(vm_bits_f64((q & 1) ? s : c) ^ (((q + 1) & 2) << 62));
}
VM double vm_tan_f64(double x) {
  double s, c;
  const uint64_t q = vm_sincos_f64(x, &s, &c);
  const double y = (q & 1) ? -c / s : s / c;
  return x == 0.0 ? x : y;
}

/* No shorter formula near 0, as floats have. */
#define VM_TRIG_NEAR_f64 -1.0
VM double vm_sin_near_f64(double x) { return vm_sin_f64(x); }
VM double vm_cos_near_f64(double x) { return vm_cos_f64(x); }

/* ---- inverse trigonometric: as in vmath_f32.h ---- */

VM double vm_atan_unit_f64(double t) {
  const double z = t * t;
  double p = vm_fma_f64(-1.1832505417555692e-05, z, 0.0001368724853148122);
  p = vm_fma_f64(p, z, -0.00075184725269738216);
  p = vm_fma_f64(p, z, 0.0026229778919060892);
  p = vm_fma_f64(p, z, -0.006575683344151699);
  p = vm_fma_f64(p, z, 0.012756172907694298);
  p = vm_fma_f64(p, z, -0.020238706986393514);
  p = vm_fma_f64(p, z, 0.027567942297344678);
  p = vm_fma_f64(p, z, -0.033750132001619734);
  p = vm_fma_f64(p, z, 0.038726402140426323);
  p = vm_fma_f64(p, z, -0.04308119655330471);
  p = vm_fma_f64(p, z, 0.04752086773576656);
  p = vm_fma_f64(p, z, -0.052612657357094542);
  p = vm_fma_f64(p, z, 0.058820749563712943);
  p = vm_fma_f64(p, z, -0.066666364357776925);
  p = vm_fma_f64(p, z, 0.076923053546786552);
  p = vm_fma_f64(p, z, -0.090909089695574027);
  p = vm_fma_f64(p, z, 0.11111111107234799);
  p = vm_fma_f64(p, z, -0.14285714285648404);
  p = vm_fma_f64(p, z, 0.19999999999999554);
  p = vm_fma_f64(p, z, -0.33333333333333331);
  return vm_fma_f64(t * z, p, t);
}
VM double vm_atan_f64(double x) {
  const double a = vm_abs_f64(x);
  const double p = vm_atan_unit_f64(a > 1.0 ? 1.0 / a : a);
  return vm_copysign_f64(a > 1.0 ? (VM_PIO2 - p) + VM_PIO2_LOW : p, x);
}
VM double vm_atan2_f64(double y, double x) {
  const double ay = vm_abs_f64(y), ax = vm_abs_f64(x);
  const double hi = ay > ax ? ay : ax, lo = ay > ax ? ax : ay;
  double t = hi == 0.0 ? 0.0 : lo / hi;
  t = lo > 1.7976931348623157e308 ? 1.0 : t;
  double p = vm_atan_unit_f64(t);
  p = ay > ax ? (VM_PIO2 - p) + VM_PIO2_LOW : p;
  p = (vm_bits_f64(x) >> 63) ? (VM_PI - p) + 2.0 * VM_PIO2_LOW : p;
  return ((x != x) | (y != y)) ? x + y : vm_copysign_f64(p, y);
}
VM double vm_asin_unit_f64(double a) { /* asin a for a <= 1/2, else asin sqrt((1 - a) / 2) */
  const double z = a > 0.5 ? (1.0 - a) * 0.5 : a * a;
  const double r = vm_sqrt_f64(z), s = a > 0.5 ? r : a;
  double p = vm_fma_f64(0.029612011264955121, z, -0.019241671746743041);
  p = vm_fma_f64(p, z, 0.019554513336123378);
  p = vm_fma_f64(p, z, 0.0030448799094556773);
  p = vm_fma_f64(p, z, 0.0093195607947674456);
  p = vm_fma_f64(p, z, 0.0096218429701002816);
  p = vm_fma_f64(p, z, 0.011566459612121669);
  p = vm_fma_f64(p, z, 0.01396378001220357);
  p = vm_fma_f64(p, z, 0.017352816540325496);
  p = vm_fma_f64(p, z, 0.022372157443507221);
  p = vm_fma_f64(p, z, 0.03038194447553234);
  p = vm_fma_f64(p, z, 0.044642857142551895);
  p = vm_fma_f64(p, z, 0.075000000000001177);
  p = vm_fma_f64(p, z, 0.16666666666666666);
  return vm_fma_f64(s * z, p, s);
}
VM double vm_asin_f64(double x) {
  const double a = vm_abs_f64(x), p = vm_asin_unit_f64(a);
  return vm_copysign_f64(a > 0.5 ? (VM_PIO2 - 2.0 * p) + VM_PIO2_LOW : p, x);
}
VM double vm_acos_f64(double x) {
  const double a = vm_abs_f64(x), p = vm_asin_unit_f64(a);
  const double far = x > 0.0 ? 2.0 * p : (VM_PI - 2.0 * p) + 2.0 * VM_PIO2_LOW;
  const double near = (VM_PIO2 - (x > 0.0 ? p : -p)) + VM_PIO2_LOW;
  return a > 0.5 ? far : near;
}

/* ---- exponentials, logarithms, hyperbolic ---- */

VM double vm_exp2_f64(double x) {
  const int none = x < -1076.0;
  const double lo = none ? 0.0 : x, c = lo > 1025.0 ? 1025.0 : lo;
  const double t = c + VM_RINT_F64, r = (c - (t - VM_RINT_F64)) * 0.69314718055994531;
  const double y = vm_scale_f64(vm_fma_f64(r * r, vm_expq_f64(r), r) + 1.0, t);
  return none ? 0.0 : y;
}
VM double vm_log1p_f64(double x) {
  const double w = 1.0 + x, y = vm_log_f64(w) + (x - (w - 1.0)) / w;
  const double r = vm_abs_f64(x) < 1e-17 ? x : y; /* and -0 */
  return ((w == 0.0) | (w > 1.7976931348623157e308)) ? vm_log_f64(w) : r;
}
VM double vm_atanh_f64(double x) {
  const double a = vm_abs_f64(x), y = 0.5 * vm_log1p_f64(2.0 * a / (1.0 - a));
  return a <= 1.0 ? vm_copysign_f64(a == 1.0 ? (double)INFINITY : y, x) : (double)NAN;
}
/* e^a / 2, which overflows later than e^a. */
VM double vm_halfexp_f64(double a) {
  const double c = a > 712.0 ? 712.0 : a;
  const double t = vm_fma_f64(c, VM_LOG2E, VM_RINT_F64), n = t - VM_RINT_F64;
  const double r = vm_fma_f64(n, -VM_LN2_LO_F64, vm_fma_f64(n, -VM_LN2_HI_F64, c));
  return vm_scale_f64(vm_fma_f64(r * r, vm_expq_f64(r), r) + 1.0, t - 1.0);
}
VM double vm_sinh_f64(double x) {
  const double a = vm_abs_f64(x), y = vm_expm1_f64(a), h = vm_halfexp_f64(a);
  const double r = a < 1e-9 ? a : 0.5 * (y + y / (y + 1.0));
  return vm_copysign_f64(a < 20.0 ? r : h, x);
}
VM double vm_cosh_f64(double x) {
  const double h = vm_halfexp_f64(vm_abs_f64(x));
  return h + 0.25 / h;
}

/* ---- two operands ---- */

VM double vm_hypot_f64(double x, double y) {
  const double ax = vm_abs_f64(x), ay = vm_abs_f64(y), hi = ax > ay ? ax : ay, lo = ax > ay ? ay : ax;
  const double q = lo / hi, y0 = hi == 0.0 ? 0.0 : hi * vm_sqrt_f64(vm_fma_f64(q, q, 1.0));
  const double r = ((x != x) | (y != y)) ? x + y : y0;
  return ((ax > 1.7976931348623157e308) | (ay > 1.7976931348623157e308)) ? (double)INFINITY : r;
}
/* Exact with a fused multiply-add where the quotient, which may be off by one, has at most 52 bits; see
 * vmath_via_f64.h. */
#if defined(__FMA__) || defined(__aarch64__)
#define VM_FMOD_MAX_F64 0x1p52
#else
#define VM_FMOD_MAX_F64 0.0 /* then only x = 0 */
#endif
VM double vm_fmod_f64(double x, double y) {
  const double a = vm_abs_f64(x), b = vm_abs_f64(y), q = vm_trunc_f64(a / b);
  double r = vm_fma_f64(-q, b, a);
  r = r < 0.0 ? r + b : r;
  r = r >= b ? r - b : r;
  return vm_copysign_f64(r, x);
}
VM double vm_remainder_f64(double x, double y) {
  const double m = vm_fmod_f64(x, y);
  return ((m != 0.0) & ((y < 0.0) != (m < 0.0))) ? m + y : m;
}

#endif
