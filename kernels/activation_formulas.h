/* SPDX-License-Identifier: MIT
 * The parts of elementwise_formulas.h that take more than an expression, for T, F() and K() of the including file. */
#define LARGEST    F(vm_largest)
#define SELU_ALPHA K(1.6732632423543772848170429916717)
#define SELU_SCALE K(1.0507009873554804934193349852946)
#define SIXTH      K(1.0f / 6.0f) /* a float also for f64, as the reference corpus has it */

/* Any NaN among value and bounds is the result. */
VM T F(clamp_nan)(T x, T lo, T hi) { return lo != lo ? lo : hi != hi ? hi : x; }
VM T F(clamp)(T x, T lo, T hi) {
  const T a = x < lo ? lo : x;
  return a > hi ? hi : a;
}
VM T F(relu6)(T x) { return x < 0 ? K(0) : x > 6 ? K(6) : x; }
/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|) */
VM T F(softplus)(T x) { return (x < 0 ? K(0) : x) + F(vm_log1p01)(F(vm_exp)(-F(vm_abs)(x))); }
VM T F(logit)(T x, T eps) {
  const T hi = K(1) - eps, c = x > hi ? hi : x, d = x < eps ? eps : c;
  const T v = eps < 0 ? x : d;
  return F(vm_log)(v / (K(1) - v));
}
VM T F(logaddexp)(T x, T y) {
  const T m = ((x > y) | (x != x)) ? x : y, d = F(vm_abs)(x - y);
  const T r = m + F(vm_log1p01)(F(vm_exp)(-d));
  return ((F(vm_abs)(m) > LARGEST) & (x == y)) ? m : r; /* inf - inf */
}
/* sqrt(2/pi) (x + 0.044715 x^3) */
VM T F(gelu_inner)(T x) { return K(0.79788456080286536) * F(vm_fma)(K(0.044715) * x * x, x, x); }
VM T F(gelu_slope)(T x) {
  const T cdf = K(0.5) * (K(1) + F(vm_erf_fast)(x * K(0.70710678118654752)));
  return F(vm_fma)(x, K(0.39894228040143268) * F(vm_exp)(K(-0.5) * x * x), cdf);
}
/* From 10 on tanh is one: what is squared and cubed there must not become infinite beside a factor of 0. */
VM T F(gelu_tanh_slope)(T v) {
  const T x = F(clamp)(v, K(-10), K(10));
  const T t = F(vm_tanh)(F(gelu_inner)(x));
  const T du = K(0.79788456080286536) * F(vm_fma)(K(3 * 0.044715) * x, x, K(1));
  return F(vm_fma)(K(0.5) * x * (K(1) - t * t), du, K(0.5) * (K(1) + t));
}
VM T F(silu_slope)(T x) {
  const T s = F(vm_logistic)(x);
  return s * F(vm_fma)(x, K(1) - s, K(1));
}
/* tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2); one from x = 20 on. */
VM T F(mish_tanh)(T x) {
  const T e = F(vm_exp)(x > 20 ? K(20) : x), n = e * (e + K(2));
  return n / (n + K(2));
}
VM T F(mish_slope)(T x) {
  const T t = F(mish_tanh)(x);
  return F(vm_fma)(x * F(vm_logistic)(x), K(1) - t * t, t);
}
