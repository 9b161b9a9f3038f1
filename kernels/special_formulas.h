/* SPDX-License-Identifier: MIT
 * Bessel, error, gamma and incomplete gamma functions in f64, and floor division. Each has a region of a convergent series and
 * one of an asymptotic one or a continued fraction; the borders are where both are good to a few units in the last place.
 * Formula numbers are those of the NIST Digital Library of Mathematical Functions. Header only, so that every device computes
 * the same: PLK_SF says what functions are (static inline, or the device's word for it), PLK_LGAMMA is log |gamma|. */
#ifndef PL_KERNELS_SPECIAL_FORMULAS_H
#define PL_KERNELS_SPECIAL_FORMULAS_H

#include <math.h>
#include <stdint.h>

#ifndef PLK_SF
#define PLK_SF        static inline __attribute__((unused))
#define PLK_LGAMMA(x) plk_log_gamma(x)
PLK_SF double plk_log_gamma(double x) {
  int sign; /* lgamma would write the global signgam */
  return lgamma_r(x, &sign);
}
#endif

#define PI      3.14159265358979323846
#define SQRT2   1.41421356237309504880
#define SQRT_PI 1.77245385090551602730
#define EPS     2.220446049250313e-16

enum { BESSEL_MAX = 200, GAMMA_MAX = 20000 };
#define BESSEL_BORDER 30.0

/* ---- neighbours ----------------------------------------------------------------------------------------------- */

/* The half next to x towards y. infinite: the bits of infinity. Without their sign the bits of halves are in order. */
PLK_SF uint16_t sf_half_after(uint16_t x, uint16_t y, uint16_t infinite) {
  const uint16_t ax = x & 0x7fff, ay = y & 0x7fff;
  if (ax > infinite) return x;
  if (ay > infinite) return y;
  if (x == y || (ax | ay) == 0) return y;
  if (ax == 0) return (uint16_t)((y & 0x8000) | 1);
  const int32_t sx = x & 0x8000 ? -(int32_t)ax : ax, sy = y & 0x8000 ? -(int32_t)ay : ay;
  return (uint16_t)((sy > sx) == (x < 0x8000) ? x + 1 : x - 1);
}

/* ---- modified Bessel functions of order v = 0 or 1 ------------------------------------------------------- */

/* (x/2)^v sum (x^2/4)^k / (k! (k+v)!), all terms positive (10.25.2); |x| <= 30. */
PLK_SF double bessel_series(double x, int v) {
  const double q = 0.25 * x * x;
  double term = v ? 0.5 * x : 1.0, sum = term;
  for (int k = 1; k < BESSEL_MAX; k++) {
    term *= q / ((double)k * (k + v));
    sum += term;
    if (fabs(term) < EPS * 0.1 * fabs(sum)) break;
  }
  return sum;
}
/* e^-x I_v(x) = (2 pi x)^(-1/2) sum (-1)^k a_k / x^k, a_k = prod (4v^2 - (2j-1)^2) / (8^k k!) (10.40.1). */
PLK_SF double bessel_tail(double x, int v) {
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < BESSEL_MAX; k++) {
    const double odd = 2.0 * k - 1.0, next = -term * (4.0 * v - odd * odd) / (8.0 * k * x);
    if (fabs(next) > fabs(term)) break;
    term = next;
    sum += term;
    if (fabs(term) < EPS * 0.1) break;
  }
  return sum / (sqrt(2.0 * PI) * sqrt(x)); /* 2 pi x may overflow */
}
PLK_SF double sf_i0e(double x) {
  x = fabs(x);
  if (isinf(x)) return 0.0;
  return x <= BESSEL_BORDER ? exp(-x) * bessel_series(x, 0) : bessel_tail(x, 0);
}
PLK_SF double sf_i0(double x) {
  x = fabs(x);
  if (x <= BESSEL_BORDER) return bessel_series(x, 0);
  const double h = exp(0.5 * x); /* e^x may overflow where the result does not */
  return isinf(h) ? h : h * bessel_tail(x, 0) * h;
}
PLK_SF double sf_i1e(double x) {
  const double a = fabs(x);
  if (isinf(a)) return copysign(0.0, x);
  return a <= BESSEL_BORDER ? exp(-a) * bessel_series(x, 1) : copysign(bessel_tail(a, 1), x);
}
PLK_SF double sf_i1(double x) {
  const double a = fabs(x);
  if (a <= BESSEL_BORDER) return bessel_series(x, 1);
  if (isinf(a)) return x;
  const double h = exp(0.5 * a);
  return copysign(isinf(h) ? h : h * bessel_tail(a, 1) * h, x);
}

/* ---- error functions --------------------------------------------------------------------------------------- */

/* e^(x^2) erfc(x); the rounding of x^2 is put back. From 25 on the asymptotic series (7.12.1). */
PLK_SF double sf_erfcx(double x) {
  if (x < 25.0) {
    const double square = x * x, lost = fma(x, x, -square);
    if (square > 720.0) return x > 0 ? 0.0 : (double)INFINITY;
    return exp(square) * erfc(x) * (1.0 + lost);
  }
  if (!(x < 1e100)) return isnan(x) ? x : 1.0 / (x * SQRT_PI);
  const double z = -0.5 / (x * x);
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < 20; k++) {
    term *= z * (2.0 * k - 1.0);
    sum += term;
  }
  return sum / (x * SQRT_PI);
}

/* The lower half, by Abramowitz & Stegun 26.2.22 and Halley's steps on the distribution function. */
PLK_SF double lower_quantile(double q) {
  const double t = sqrt(-2.0 * log(q));
  double z = -(t - (2.30753 + 0.27061 * t) / (1.0 + 0.99229 * t + 0.04481 * t * t));
  for (int k = 0; k < 4; k++) {
    const double below = 0.5 * erfc(-z / SQRT2), density = exp(-0.5 * z * z) / (SQRT2 * SQRT_PI);
    const double e = (below - q) / density, step = e / (1.0 + 0.5 * z * e);
    z -= step;
    if (!(fabs(step) > 1e-15 * fabs(z))) break;
  }
  return z;
}
PLK_SF double sf_ndtri(double p) {
  if (!(p >= 0.0 && p <= 1.0)) return (double)NAN;
  if (p == 0.0 || p == 1.0) return p == 0.0 ? -(double)INFINITY : (double)INFINITY;
  if (p == 0.5) return 0.0;
  return p < 0.5 ? lower_quantile(p) : -lower_quantile(1.0 - p);
}

/* ---- incomplete gamma functions ------------------------------------------------------------------------------ */

/* m - log(1 + m), exact near 0: with t = m / (2 + m), log(1 + m) = 2 (t + t^3/3 + t^5/5 + …) and m - 2 t = m t. */
PLK_SF double less_log1p(double m) {
  if (!(fabs(m) <= 0.5)) return m - log1p(m);
  const double t = m / (2.0 + m), q = t * t;
  double power = t * q, sum = 0.0;
  for (int k = 3; k < 40; k += 2) {
    sum += power / k;
    power *= q;
  }
  return m * t - 2.0 * sum;
}
/* x^a e^-x / gamma(a + 1). The three logarithms cancel where a is large: there gamma by Stirling's series (5.11.1), and what
 * depends on x / a as one. */
PLK_SF double front(double a, double x) {
  if (a < 20.0) return exp(a * log(x) - x - PLK_LGAMMA(a + 1.0));
  const double r = 1.0 / a, q = r * r;
  const double rest = r * (1.0 / 12.0 - q * (1.0 / 360.0 - q * (1.0 / 1260.0 - q * (1.0 / 1680.0 - q / 1188.0))));
  return exp(-a * less_log1p((x - a) * r) - rest) / sqrt(2.0 * PI * a);
}
/* c[0] + c[1] x + … + c[n-1] x^(n-1) */
PLK_SF double power_series(const double *c, int n, double x) {
  double sum = 0.0;
  while (n > 0) sum = sum * x + c[--n];
  return sum;
}
/* Q or P of large a and x near it: erfc of the distance and a correction (8.12.3 to 8.12.7), whose coefficients c_k(e), e^2/2 =
 * m - log(1 + m), m = x/a - 1, are power series of e; they follow from c_0 = 1/m - 1/e by 8.12.11. */
PLK_SF double gamma_uniform(double a, double m, int upper) {
  const double c0[] = {-0.33333333333333331,   0.083333333333333329,    -0.014814814814814815,   0.0011574074074074073,
                       0.00035273368606701942, -0.0001787551440329218,  3.9192631785224377e-05,  -2.185448510679992e-06,
                       -1.85406221071516e-06,  8.2967113409530865e-07,  -1.7665952736826078e-07, 6.7078535434014984e-09,
                       1.0261809784240309e-08, -4.3820360184533529e-09, 9.1476995822367902e-10,  -2.5514193994946248e-11};
  const double c1[] = {-0.0018518518518518519,  -0.003472222222222222,  0.0026455026455026454,   -0.00099022633744855963,
                       0.00020576131687242798,  -4.018775720164609e-07, -1.8098550334489977e-05, 7.6491609160811098e-06,
                       -1.6120900894563446e-06, 4.647127802807434e-09,  1.3786334469157209e-07,  -5.7525456035177047e-08,
                       1.1951628599778148e-08,  -1.7543241719747647e-11};
  const double c2[] = {0.0041335978835978834,  -0.0026813271604938273,  0.0007716049382716049,   2.0093878600823047e-06,
                       -0.0001073665322636516, 5.2923448829120125e-05,  -1.2760635188618728e-05, 3.4235787340961378e-08,
                       1.3721957309062934e-06, -6.2989921383800548e-07, 1.4280614206064242e-07,  -2.0477098421990866e-10};
  const double c3[] = {0.00064943415637860077,  0.00022947209362139917,  -0.0004691894943952557, 0.00026772063206283885,
                       -7.5618016718839766e-05, -2.3965051138672968e-07, 1.1082654115347302e-05, -5.6749528269915965e-06,
                       1.4230900732435883e-06,  -2.7861080291528143e-11};
  const double c4[] = {-0.00086188829091671173, 0.00078403922172006662,  -0.00029907248030319018, -1.4638452578843418e-06,
                       6.6414982154651219e-05,  -3.9683650471794347e-05, 1.1375726970678419e-05,  2.5074972262375329e-10};
  const double half = less_log1p(m), e = copysign(sqrt(2.0 * half), m), r = 1.0 / a;
  double sum = power_series(c4, 8, e);
  sum = power_series(c3, 10, e) + r * sum;
  sum = power_series(c2, 12, e) + r * sum;
  sum = power_series(c1, 14, e) + r * sum;
  sum = power_series(c0, 16, e) + r * sum;
  const double correction = exp(-a * half) / sqrt(2.0 * PI * a) * sum, z = e * sqrt(0.5 * a);
  return upper ? 0.5 * erfc(z) + correction : 0.5 * erfc(-z) - correction;
}
/* P(a, x) = front sum x^k / ((a+1) … (a+k)) (8.7.1), for x < a + 1. */
PLK_SF double gamma_series(double a, double x) {
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < GAMMA_MAX; k++) {
    term *= x / (a + k);
    sum += term;
    if (term < EPS * 0.1 * sum) break;
  }
  return front(a, x) * sum;
}
/* Q(a, x) = a front / (x+1-a- 1(1-a)/(x+3-a- 2(2-a)/(x+5-a- …))) (8.9.2), by Lentz's method, for x >= a + 1. */
PLK_SF double gamma_fraction(double a, double x) {
  double b = x + 1.0 - a, c = 1e300, d = 1.0 / b, h = d;
  for (int k = 1; k < GAMMA_MAX; k++) {
    const double an = -(double)k * (k - a);
    b += 2.0;
    d = an * d + b;
    if (fabs(d) < 1e-300) d = 1e-300;
    c = b + an / c;
    if (fabs(c) < 1e-300) c = 1e-300;
    d = 1.0 / d;
    h *= d * c;
    if (fabs(d * c - 1.0) < EPS) break;
  }
  return a * front(a, x) * h;
}
PLK_SF double incomplete(double a, double x, int upper) {
  if (!(a >= 0.0 && x >= 0.0) || (isinf(a) && isinf(x)) || (a == 0.0 && x == 0.0)) return (double)NAN;
  if (a == 0.0 || isinf(x)) return upper ? 0.0 : 1.0;
  if (x == 0.0 || isinf(a)) return upper ? 1.0 : 0.0;
  if (a > 1000.0 && fabs(x - a) < 0.3 * a) return gamma_uniform(a, (x - a) / a, upper);
  if (x < a + 1.0) {
    const double p = gamma_series(a, x);
    return upper ? 1.0 - p : p;
  }
  const double q = gamma_fraction(a, x);
  return upper ? q : 1.0 - q;
}
PLK_SF double sf_gammainc(double a, double x) { return incomplete(a, x, 0); }
PLK_SF double sf_gammaincc(double a, double x) { return incomplete(a, x, 1); }

/* ---- for the elementwise family ---------------------------------------------------------------------- */

PLK_SF double sf_sinc(double x) {
  const double a = PI * x;
  return x == 0.0 ? 1.0 : a == INFINITY || a == -INFINITY ? x * 0.0 : sin(a) / a; /* finite, but for NaN at infinity */
}
/* Python's //: (x - x % y) / y is a whole number but for rounding; snap it. */
PLK_SF double sf_floor_divide(double x, double y) {
  if (y == 0.0) return x / y;
  const double m = fmod(x, y);
  double d = (x - m) / y;
  if (m != 0.0 && (y < 0.0) != (m < 0.0)) d -= 1.0;
  if (d == 0.0) return copysign(0.0, x / y);
  const double f = floor(d);
  return d - f > 0.5 ? f + 1.0 : f;
}
PLK_SF float sf_floor_divide_f32(float x, float y) {
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
PLK_SF double sf_digamma(double x) {
  const double term[7] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};
  if (x == 0.0) return copysign((double)INFINITY, -x);
  double y = 0.0;
  if (x < 0.0) {
    if (x == trunc(x)) return (double)NAN;
    y = -PI / tan(PI * (x - trunc(x)));
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
PLK_SF double sf_erfinv(double x) {
  const double a = fabs(x);
  if (!(a < 1.0)) return a == 1.0 ? copysign((double)INFINITY, x) : (double)NAN;
  if (a < 1.0e-9) return x * 0.88622692545275801; /* sqrt(pi)/2 */
  const double l = log1p(-a * a), u = 2.0 / (PI * 0.147) + 0.5 * l;
  double y = sqrt(sqrt(u * u - l / 0.147) - u);
  for (int k = 0; k < 3; k++) {
    const double f = a < 0.5 ? erf(y) - a : (1.0 - a) - erfc(y);
    const double e = f / (1.1283791670955126 * exp(-y * y));
    y -= e / (1.0 + y * e);
  }
  return copysign(y, x);
}

#undef PI
#undef SQRT2
#undef SQRT_PI
#undef EPS
#undef BESSEL_BORDER
#endif
