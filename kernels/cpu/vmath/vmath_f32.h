/* SPDX-License-Identifier: MIT
 * Functions of floats in float arithmetic (vmath.h includes this): trigonometric and inverse trigonometric functions, log1p,
 * erfinv. Polynomials here are minimax for the relative error of the result (Remez exchange in 50 digits), 2^-26 and less; what
 * rounding takes from a leading term h comes back in a second one, h + (small + what h lost), so that about 1 ULP is left. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_F32_H
#define PL_KERNELS_CPU_VMATH_VMATH_F32_H

/* ---- trigonometric, |x| <= VM_TRIG_NEAR_f32 ---- */

/* Reduction after Cody and Waite needs products without rounding; without them callers go by doubles (vmath_trig.h). */
#if defined(__FMA__) || defined(__aarch64__)
#define VM_TRIG_NEAR_f32 1.0e4f
#else
#define VM_TRIG_NEAR_f32 -1.0f
#endif

/* x - n pi/2 = r - *low, n in the low bits of the result. pi/2 is a float less than it, 11 bits, a float: n has 13 bits, so n times
 * the 11 is exact, and so is what the second subtraction loses. Every term has the sign that keeps -0. */
VM uint32_t vm_reduce_f32(float x, float *r, float *low) {
  const float t = vm_fma_f32(x, 0.636619747f, VM_RINT_F32), n = t - VM_RINT_F32;
  const float a = vm_fma_f32(n, -0x1.921fb4p+0f, x), b = vm_fma_f32(n, -0x1.444p-24f, a);
  const float l = vm_fma_f32(n, 0x1.68c234p-39f, vm_fma_f32(n, 0x1.444p-24f, b - a));
  *r = b - l;
  *low = l - (b - *r);
  return vm_bits_f32(t);
}
VM uint32_t vm_sincos_near_f32(float x, float *s, float *c) {
  float r, low;
  const uint32_t n = vm_reduce_f32(x, &r, &low);
  const float z = r * r;
  float p = vm_fma_f32(0.000195149376f, z, -0.00833215844f);
  p = vm_fma_f32(p, z, 0.166666552f);
  *s = r - vm_fma_f32(r * z, p, low);
  float q = vm_fma_f32(2.44328749e-05f, z, -0.00138873141f);
  q = vm_fma_f32(q, z, 0.0416666456f);
  const float h = vm_fma_f32(-0.5f, z, 1.0f);
  *c = h + vm_fma_f32(z * z, q, vm_fma_f32(low, r, vm_fma_f32(-0.5f, z, 1.0f - h)));
  return n;
}
VM float vm_sin_near_f32(float x) {
  float s, c;
  const uint32_t n = vm_sincos_near_f32(x, &s, &c);
  return vm_from_f32(vm_bits_f32((n & 1) ? c : s) ^ ((n & 2) << 30));
}
VM float vm_cos_near_f32(float x) {
  float s, c;
  const uint32_t n = vm_sincos_near_f32(x, &s, &c);
  return vm_from_f32(vm_bits_f32((n & 1) ? s : c) ^ (((n + 1) & 2) << 30));
}
/* Odd quadrants: -1 / tan r, the quotient corrected by its own residual. */
VM float vm_tan_near_f32(float x) {
  float r, low;
  const uint32_t n = vm_reduce_f32(x, &r, &low);
  const float z = r * r;
  float p = vm_fma_f32(-0.0043817223f, z, -7.87740137e-05f);
  p = vm_fma_f32(p, z, -0.0108440742f);
  p = vm_fma_f32(p, z, -0.021279091f);
  p = vm_fma_f32(p, z, -0.0540605001f);
  p = vm_fma_f32(p, z, -0.13332659f);
  p = vm_fma_f32(p, z, -0.333333492f);
  const float c = vm_fma_f32(r * z, p, vm_fma_f32(low, z, low)), y = r - c;
  const float v = -1.0f / y, e = vm_fma_f32(v, y, 1.0f);
  return (n & 1) ? vm_fma_f32(v, vm_fma_f32(v, (r - y) - c, e), v) : y;
}

/* ---- inverse trigonometric ---- */

#define VM_PIO2_F32     1.57079637f
#define VM_PIO2_LOW_F32 -4.37113883e-08f

/* t + t^3 P(t^2), t = a up to 1, beyond pi/2 + atan t, t = -1 / a; half of what the quotient lost is added back, as much as
 * matters at 1, where alone it does. */
VM float vm_atan_f32(float x) {
  const float a = vm_abs_f32(x);
  const int big = a > 1.0f;
  const float t = big ? -1.0f / a : a, z = t * t;
  float p = vm_fma_f32(-0.00179358153f, z, 0.0109144188f);
  p = vm_fma_f32(p, z, -0.0311774779f);
  p = vm_fma_f32(p, z, 0.0579571985f);
  p = vm_fma_f32(p, z, -0.0840342492f);
  p = vm_fma_f32(p, z, 0.109521762f);
  p = vm_fma_f32(p, z, -0.142642394f);
  p = vm_fma_f32(p, z, 0.199985474f);
  p = vm_fma_f32(p, z, -0.333332986f);
  const float hi = big ? VM_PIO2_F32 : 0.0f, h = hi + t;
  const float low = (big & (a < 1e18f)) ? vm_fma_f32(vm_fma_f32(t, a, 1.0f) * t, 0.5f, VM_PIO2_LOW_F32) : big ? VM_PIO2_LOW_F32 : 0.0f;
  return vm_copysign_f32(h + vm_fma_f32(t * z, p, ((hi - h) + t) + low), x);
}
/* asin s = s + s z P(z), z = s^2 <= 1/4. */
VM float vm_asinp_f32(float z) {
  float p = vm_fma_f32(0.0421668775f, z, 0.0241793692f);
  p = vm_fma_f32(p, z, 0.0454703532f);
  p = vm_fma_f32(p, z, 0.0749529824f);
  return vm_fma_f32(p, z, 0.166667521f);
}
/* What rounding took from s = sqrt z: (z - s^2) / 2s, where a reciprocal to 2 % will do. */
VM float vm_sqrt_low_f32(float s, float z) {
  const float y = vm_from_f32(0x7ef311c7u - vm_bits_f32(s));
  return vm_fma_f32(-s, s, z) * (0.5f * (y * vm_fma_f32(-s, y, 2.0f)));
}
/* Above 1/2 by s = sqrt((1 - a) / 2): pi/2 - 2 asin s. */
VM float vm_asin_f32(float x) {
  const float a = vm_abs_f32(x);
  const int big = a > 0.5f;
  const float z = big ? (1.0f - a) * 0.5f : a * a, root = vm_sqrt_f32(z);
  const float s = big ? root : a, low = big ? vm_sqrt_low_f32(root, z) : 0.0f;
  const float c = vm_fma_f32(s * z, vm_asinp_f32(z), low);
  const float h = vm_fma_f32(-2.0f, s, VM_PIO2_F32), rest = (VM_PIO2_F32 - h) - 2.0f * s;
  return vm_copysign_f32(big ? h + (vm_fma_f32(-2.0f, c, VM_PIO2_LOW_F32) + rest) : s + c, x);
}
/* pi/2 - asin x; above 1/2 2 asin s, below -1/2 pi - 2 asin s. */
VM float vm_acos_f32(float x) {
  const float a = vm_abs_f32(x);
  const int big = a > 0.5f;
  const float z = big ? (1.0f - a) * 0.5f : a * a, root = vm_sqrt_f32(z);
  const float s = big ? root : -x, low = big ? vm_sqrt_low_f32(root, z) : 0.0f;
  const float c = vm_fma_f32(s * z, vm_asinp_f32(z), low);
  const float twice = x > 0.0f ? 2.0f : -2.0f, m = big ? twice : 1.0f;
  const float half_turns = x > 0.0f ? 0.0f : 2.0f, k = big ? half_turns : 1.0f;
  const float hi = k * VM_PIO2_F32, h = vm_fma_f32(m, s, hi), rest = (hi - h) + m * s;
  return h + (vm_fma_f32(m, c, k * VM_PIO2_LOW_F32) + rest);
}

/* ---- logarithm of 1 + x, inverse of erf ---- */

/* u = 1 + x loses c, which log(m) gets back as c / m, by 1 - f for 1 / (1 + f); with exponent 0 f is x itself. */
VM float vm_log1p_f32(float x) {
  const float u = 1.0f + x, c = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const uint32_t b = vm_bits_f32(u), e = (uint32_t)((int32_t)(b - 0x3f3504f3u) >> 23);
  const float k = (float)(int32_t)e, m = vm_from_f32(b - (e << 23)) - 1.0f;
  const float d = c * 0x1p-64f * vm_from_f32((191u - e) << 23);
  const float f = e == 0 ? x : m, g = e == 0 ? 0.0f : d, z = f * f;
  const float low = vm_fma_f32(z * f, vm_logp_f32(f), vm_fma_f32(k, VM_LN2_LO_F32, vm_fma_f32(-f, g, g)));
  const float y = vm_log_edge_f32(u, vm_fma_f32(k, VM_LN2_HI_F32, f - (0.5f * z - low)));
  return x == 0.0f ? x : y;
}

/* x P(w), w = -log(1 - x^2), in parts, x c + x (P(w) - c); beyond w = 5 in the same way x Q(sqrt w - 3). */
VM float vm_erfinv_f32(float x) {
  const float a = vm_abs_f32(x), d = 1.0f - a, u = vm_fma_f32(d, a, d); /* (1 - a) (1 + a) */
  const uint32_t b = vm_bits_f32(u), e = (uint32_t)((int32_t)(b - 0x3f3504f3u) >> 23);
  const float w = -vm_logk_f32(vm_from_f32(b - (e << 23)) - 1.0f, (float)(int32_t)e);
  const int big = w > 5.0f;
  const float s = vm_sqrt_f32(w) - 3.0f;
  float p = vm_fma_f32(-8.82026097e-09f, w, 2.21730318e-07f);
  p = vm_fma_f32(p, w, -1.98352154e-06f);
  p = vm_fma_f32(p, w, 4.02225714e-06f);
  p = vm_fma_f32(p, w, 4.44367615e-05f);
  p = vm_fma_f32(p, w, -0.000127225227f);
  p = vm_fma_f32(p, w, -0.00233459822f);
  p = vm_fma_f32(p, w, 0.0115488479f);
  p = vm_fma_f32(p, w, 0.232013762f);
  p = vm_fma_f32(p, w, -2.66232e-08f);
  float q = vm_fma_f32(0.000128982836f, s, -0.000318751641f);
  q = vm_fma_f32(q, s, -7.66304947e-05f);
  q = vm_fma_f32(q, s, 0.00149588543f);
  q = vm_fma_f32(q, s, -0.00358698843f);
  q = vm_fma_f32(q, s, 0.00568316365f);
  q = vm_fma_f32(q, s, -0.00763940904f);
  q = vm_fma_f32(q, s, 0.00944568496f);
  q = vm_fma_f32(q, s, 1.00167513f);
  q = vm_fma_f32(q, s, -1.78832e-08f);
  const float y = vm_fma_f32(x, big ? 2.83297682f : 0.88622695f, x * (big ? q : p));
  const float r = vm_copysign_f32(a == 1.0f ? INFINITY : y, x);
  return a <= 1.0f ? r : NAN;
}

#endif
