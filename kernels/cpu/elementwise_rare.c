/* SPDX-License-Identifier: MIT
 * Float ops that are not hot: one build, libm's functions in plain loops, f32 through double where libm's
 * float version is weak. f64 versions of functions that only f32 has in vector form (isa/float_f32.c) too. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/special_functions.h"
#include "kernels/cpu/vmath.h"

static double digamma(double x);
static double erfinv(double x);

static double log_gamma(double x) {
  int sign; /* lgamma would write the global signgam */
  return lgamma_r(x, &sign);
}
static double sinc(double x) {
  const double a = VM_PI * x;
  return x == 0.0 ? 1.0 : sin(a) / a;
}
/* Python's //: (x - x % y) / y is a whole number but for rounding; snap it. */
static double floor_divide(double x, double y) {
  if (y == 0.0) return x / y;
  const double m = fmod(x, y);
  double d = (x - m) / y;
  if (m != 0.0 && (y < 0.0) != (m < 0.0)) d -= 1.0;
  if (d == 0.0) return copysign(0.0, x / y);
  const double f = floor(d);
  return d - f > 0.5 ? f + 1.0 : f;
}
static float floor_divide_f32(float x, float y) {
  if (y == 0.0f) return x / y;
  const float m = fmodf(x, y);
  float d = (x - m) / y;
  if (m != 0.0f && (y < 0.0f) != (m < 0.0f)) d -= 1.0f;
  if (d == 0.0f) return copysignf(0.0f, x / y);
  const float f = floorf(d);
  return d - f > 0.5f ? f + 1.0f : f;
}

/* psi(x): reflection for x < 0, upward recurrence to 10, then the asymptotic series
 * ln x - 1/2x - sum B_2k / (2k x^2k) (Abramowitz & Stegun 6.3.7, 6.3.5, 6.3.18). */
static double digamma(double x) {
  static const double term[7] = {1.0 / 12,  -1.0 / 120, 1.0 / 252,          -1.0 / 240,
                                 1.0 / 132, -691.0 / 32760, 1.0 / 12};
  if (x == 0.0) return copysign((double)INFINITY, -x);
  double y = 0.0;
  if (x < 0.0) {
    if (x == trunc(x)) return (double)NAN;
    y = -VM_PI / tan(VM_PI * (x - trunc(x)));
    x = 1.0 - x;
  }
  for (; x < 10.0; x += 1.0) y -= 1.0 / x;
  if (!(x < 1.0e17)) return y + log(x);
  const double z = 1.0 / (x * x);
  double s = 0.0;
  for (int k = 6; k >= 0; k--) s = s * z + term[k];
  return y + log(x) - 0.5 / x - s * z;
}

/* Winitzki's closed approximation (2008, a = 0.147, error 2e-3), then Halley's iteration on erfc in the
 * tail and erf inside; each step triples the digits. */
static double erfinv(double x) {
  const double a = fabs(x);
  if (!(a < 1.0)) return a == 1.0 ? copysign((double)INFINITY, x) : (double)NAN;
  if (a < 1.0e-9) return x * 0.88622692545275801; /* sqrt(pi)/2 */
  const double l = log1p(-a * a), u = 2.0 / (VM_PI * 0.147) + 0.5 * l;
  double y = sqrt(sqrt(u * u - l / 0.147) - u);
  for (int k = 0; k < 3; k++) {
    const double f = a < 0.5 ? erf(y) - a : (1.0 - a) - erfc(y);
    const double e = f / (1.1283791670955126 * exp(-y * y));
    y -= e / (1.0 + y * e);
  }
  return copysign(y, x);
}

#define IN(T, k) ((const T *)(const void *)ptr[k])
#define ARGS char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define U1(NAME, T, E)                                        \
  static int NAME(ARGS) {                                     \
    (void)stride, (void)p;                                    \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {               \
      const T x = IN(T, 1)[i];                                \
      ((T *)(void *)ptr[0])[i] = (T)(E);                      \
    }                                                         \
    return 0;                                                 \
  }
#define B1(NAME, T, E)                                        \
  static int NAME(ARGS) {                                     \
    (void)p;                                                  \
    const int64_t sx = stride[1] != 0, sy = stride[2] != 0;   \
    for (int64_t i = 0; i < n; i++) {                         \
      const T x = IN(T, 1)[i * sx], y = IN(T, 2)[i * sy];     \
      ((T *)(void *)ptr[0])[i] = (T)(E);                      \
    }                                                         \
    return 0;                                                 \
  }

/* X(op, expression in float, expression in double) */
#define UNARY(X)                                          \
  X(LGAMMA, log_gamma((double)x), log_gamma(x))           \
  X(DIGAMMA, digamma((double)x), digamma(x))              \
  X(I0, plk_i0((double)x), plk_i0(x))                     \
  X(I0E, plk_i0e((double)x), plk_i0e(x))                  \
  X(I1, plk_i1((double)x), plk_i1(x))                     \
  X(I1E, plk_i1e((double)x), plk_i1e(x))                  \
  X(ERFCX, plk_erfcx((double)x), plk_erfcx(x))            \
  X(NDTRI, plk_ndtri((double)x), plk_ndtri(x))
#define BINARY(X)                                         \
  X(NEXTAFTER, nextafterf(x, y), nextafter(x, y))         \
  X(GAMMAINC, plk_gammainc((double)x, (double)y), plk_gammainc(x, y))    \
  X(GAMMAINCC, plk_gammaincc((double)x, (double)y), plk_gammaincc(x, y)) \
  X(FLOOR_DIVIDE, floor_divide_f32(x, y), floor_divide(x, y))
#define ONLY64(X)                                         \
  X(ASINH, asinh(x))                                      \
  X(ACOSH, acosh(x))                                      \
  X(ERFC, erfc(x))                                        \
  X(ERFINV, erfinv(x))                                    \
  X(LOG2, log2(x))                                        \
  X(LOG10, log10(x))                                      \
  X(SINC, sinc(x))
#define BINARY64(X) X(POW, pow(x, y))

#define X(NAME, E32, E64) U1(NAME##_f32, float, E32) U1(NAME##_f64, double, E64)
UNARY(X)
#undef X
#define X(NAME, E32, E64) B1(NAME##_f32, float, E32) B1(NAME##_f64, double, E64)
BINARY(X)
#undef X
#define X(NAME, E64) U1(NAME##_f64, double, E64)
ONLY64(X)
#undef X
#define X(NAME, E64) B1(NAME##_f64, double, E64)
BINARY64(X)
#undef X

const PlkLoop plk_ew_rare[PLK_NEW][2] = {
#define X(NAME, E32, E64) [PLK_EW_##NAME] = {NAME##_f32, NAME##_f64},
    UNARY(X) BINARY(X)
#undef X
#define X(NAME, E64) [PLK_EW_##NAME] = {NULL, NAME##_f64},
        ONLY64(X) BINARY64(X)
#undef X
};
