/* SPDX-License-Identifier: MIT
 * Polygamma functions in f64, one element a thread (formulas: kernels/cpu/elementwise/polygamma.c). */
#include "kernels/cuda/any_dtype.h"
#include "kernels/polygamma.h"

namespace {

#define PI 3.14159265358979323846

/* Hurwitz zeta ζ(s, x) = Σ_{k≥0} (x+k)^-s for s ≥ 2: direct terms up to a ≥ 12, then Euler-Maclaurin (DLMF 25.11.28). */
static __device__ double hurwitz_up(double s, double x) {
  const double b[] = {1.0 / 12,
                      -1.0 / 720,
                      1.0 / 30240,
                      -1.0 / 1209600,
                      1.0 / 47900160,
                      -691.0 / 1307674368000.0,
                      1.0 / 74724249600.0,
                      -3617.0 / 10670622842880000.0}; /* B_2j / (2j)! */
  if (isinf(x)) return x > 0 ? 0 : (double)NAN;
  double sum = 0, a = x;
  for (int k = 0; a < 12 && k < 100000; k++, a += 1) {
    if (a == 0) return (double)INFINITY;
    sum += pow(a, -s);
  }
  if (a < 12) return (double)NAN;
  const double p = pow(a, -s);
  sum += p * a / (s - 1) + 0.5 * p;
  double rise = s, power = p / a;
  for (int j = 0; j < 8; j++) {
    sum += b[j] * rise * power;
    rise *= (s + 2 * j + 1) * (s + 2 * j + 2);
    power /= a * a;
  }
  return sum;
}
/* Far below 0 the terms are those of all integers without the ones behind x: with f = x - floor(x),
 * ζ(s, f) + (-1)^s (ζ(s, 1-f) - ζ(s, 1-x)). */
static __device__ double hurwitz(double s, double x) {
  if (!(x < -30) || isinf(x)) return hurwitz_up(s, x);
  const double f = x - floor(x);
  if (f == 0) return (double)INFINITY;
  const double other = hurwitz_up(s, 1 - f) - hurwitz_up(s, 1 - x);
  return hurwitz_up(s, f) + (fmod(s, 2.0) == 0 ? other : -other);
}
/* ψ(x): reflection below 0, recurrence up to 12, asymptotic series (DLMF 5.5.4, 5.11.2). */
static __device__ double digamma(double x) {
  double r = 0;
  if (x == 0) return copysign((double)INFINITY, -x);
  if (x < 0) {
    if (x == floor(x)) return (double)NAN;
    r = -PI / tan(PI * (x - rint(x)));
    x = 1 - x;
  }
  for (; x < 12; x += 1) r -= 1 / x;
  const double z = 1 / (x * x);
  return r + log(x) - 0.5 / x - z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132)))));
}
/* factorial: n! */
__global__ void polygammas(int64_t count, int n, double factorial, plc_numbers x, plc_numbers y) {
  for (PLC_EACH(i, count)) {
    const double v = plc_number(x, i, 0);
    double r;
    if (n == 0) r = digamma(v);
    else if (n == 1 && v < 0) { /* ψ1(x) = π²/sin²(πx) - ψ1(1-x) */ const double s = sin(PI * (v - rint(v)));
      r = (PI / s) * (PI / s) - hurwitz(2, 1 - v);
    } else {
      r = hurwitz(n + 1, v) * factorial;
      if (n % 2 == 0) r = -r;
    }
    plc_number_put(y, i, r);
  }
}

PlStatus polygamma(const PlkCall *call) {
  const int n = (int)pl_attr_i(call->attrs, 0);
  const int64_t count = call->out[0]->numel;
  double factorial = 1;
  for (int k = 2; k <= n; k++) factorial *= k;
  if (count == 0) return PL_OK;
  PLC_LAUNCH(polygammas, plc_grid(count, 1), PLC_BLOCK, 0, count, n, factorial, plc_numbers_of(call->in[0]), plc_numbers_of(call->out[0]));
  return PL_OK;
}

} // namespace

PLC_KERNEL(polygamma, polygamma)
