/* SPDX-License-Identifier: MIT
 * Bessel, error and incomplete gamma functions in f64. Each has a region of a convergent series and one of an
 * asymptotic one or a continued fraction; the borders are where both are good to a few units in the last place.
 * Formula numbers are those of the NIST Digital Library of Mathematical Functions. */
#include "kernels/cpu/special_functions.h"

#include <math.h>

#define PI 3.14159265358979323846
#define SQRT2 1.41421356237309504880
#define SQRT_PI 1.77245385090551602730
#define EPS 2.220446049250313e-16

enum { BESSEL_MAX = 200, GAMMA_MAX = 20000 };
#define BESSEL_BORDER 30.0

/* ---- modified Bessel functions of order v = 0 or 1 ------------------------------------------------------- */

/* (x/2)^v sum (x^2/4)^k / (k! (k+v)!), all terms positive (10.25.2); |x| <= 30. */
static double bessel_series(double x, int v) {
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
static double bessel_tail(double x, int v) {
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < BESSEL_MAX; k++) {
    const double odd = 2.0 * k - 1.0, next = -term * (4.0 * v - odd * odd) / (8.0 * k * x);
    if (fabs(next) > fabs(term)) break;
    term = next;
    sum += term;
    if (fabs(term) < EPS * 0.1) break;
  }
  return sum / sqrt(2.0 * PI * x);
}
double plk_i0e(double x) {
  x = fabs(x);
  if (isinf(x)) return 0.0;
  return x <= BESSEL_BORDER ? exp(-x) * bessel_series(x, 0) : bessel_tail(x, 0);
}
double plk_i0(double x) {
  x = fabs(x);
  if (x <= BESSEL_BORDER) return bessel_series(x, 0);
  const double h = exp(0.5 * x); /* e^x may overflow where the result does not */
  return h * bessel_tail(x, 0) * h;
}
double plk_i1e(double x) {
  const double a = fabs(x);
  if (isinf(a)) return copysign(0.0, x);
  return a <= BESSEL_BORDER ? exp(-a) * bessel_series(x, 1) : copysign(bessel_tail(a, 1), x);
}
double plk_i1(double x) {
  const double a = fabs(x);
  if (a <= BESSEL_BORDER) return bessel_series(x, 1);
  if (isinf(a)) return x;
  const double h = exp(0.5 * a);
  return copysign(h * bessel_tail(a, 1) * h, x);
}

/* ---- error functions --------------------------------------------------------------------------------------- */

/* e^(x^2) erfc(x); the rounding of x^2 is put back. From 25 on the asymptotic series (7.12.1). */
double plk_erfcx(double x) {
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
static double lower_quantile(double q) {
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
double plk_ndtri(double p) {
  if (!(p >= 0.0 && p <= 1.0)) return (double)NAN;
  if (p == 0.0 || p == 1.0) return p == 0.0 ? -(double)INFINITY : (double)INFINITY;
  if (p == 0.5) return 0.0;
  return p < 0.5 ? lower_quantile(p) : -lower_quantile(1.0 - p);
}

/* ---- incomplete gamma functions ------------------------------------------------------------------------------ */

/* x^a e^-x / gamma(a + 1) */
static double front(double a, double x) {
  int sign;
  return exp(a * log(x) - x - lgamma_r(a + 1.0, &sign));
}
/* P(a, x) = front sum x^k / ((a+1) … (a+k)) (8.7.1), for x < a + 1. */
static double gamma_series(double a, double x) {
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < GAMMA_MAX; k++) {
    term *= x / (a + k);
    sum += term;
    if (term < EPS * 0.1 * sum) break;
  }
  return front(a, x) * sum;
}
/* Q(a, x) = a front / (x+1-a- 1(1-a)/(x+3-a- 2(2-a)/(x+5-a- …))) (8.9.2), by Lentz's method, for x >= a + 1. */
static double gamma_fraction(double a, double x) {
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
static double incomplete(double a, double x, int upper) {
  if (!(a >= 0.0 && x >= 0.0) || (isinf(a) && isinf(x)) || (a == 0.0 && x == 0.0)) return (double)NAN;
  if (a == 0.0 || isinf(x)) return upper ? 0.0 : 1.0;
  if (x == 0.0 || isinf(a)) return upper ? 1.0 : 0.0;
  if (x < a + 1.0) {
    const double p = gamma_series(a, x);
    return upper ? 1.0 - p : p;
  }
  const double q = gamma_fraction(a, x);
  return upper ? q : 1.0 - q;
}
double plk_gammainc(double a, double x) { return incomplete(a, x, 0); }
double plk_gammaincc(double a, double x) { return incomplete(a, x, 1); }
