/* SPDX-License-Identifier: MIT
 * Polygamma functions in f64, one element at a time: gradients of lgamma and digamma need them, little else. */
#include "kernels/polygamma.h"

#include <math.h>

#include "kernels/convert.h"

#define PI 3.14159265358979323846

enum { BLOCK = 1024, MAX_STEPS = 100000 };

/* Hurwitz zeta ζ(s, x) = Σ_{k≥0} (x+k)^-s for s ≥ 2: direct terms up to a ≥ 12, then Euler-Maclaurin
 *   a^(1-s)/(s-1) + a^-s/2 + Σ_j B_2j/(2j)! s(s+1)…(s+2j-2) a^(-s-2j+1)   (DLMF 25.11.28). */
static double hurwitz_up(double s, double x) {
  static const double b[] = {/* B_2j / (2j)! */
                             1.0 / 12,
                             -1.0 / 720,
                             1.0 / 30240,
                             -1.0 / 1209600,
                             1.0 / 47900160,
                             -691.0 / 1307674368000.0,
                             1.0 / 74724249600.0,
                             -3617.0 / 10670622842880000.0};
  if (isinf(x)) return x > 0 ? 0 : (double)NAN;
  double sum = 0, a = x;
  for (int k = 0; a < 12 && k < MAX_STEPS; k++, a += 1) {
    if (a == 0) return INFINITY;
    sum += pow(a, -s);
  }
  if (a < 12) return (double)NAN;
  double p = pow(a, -s);
  sum += p * a / (s - 1) + 0.5 * p;
  double rise = s, power = p / a;
  for (int j = 0; j < (int)(sizeof b / sizeof b[0]); j++) {
    sum += b[j] * rise * power;
    rise *= (s + 2 * j + 1) * (s + 2 * j + 2);
    power /= a * a;
  }
  return sum;
}

/* Far below 0 the terms are those of all integers without the ones behind x: with f = x - floor(x),
 * ζ(s, f) + (-1)^s (ζ(s, 1-f) - ζ(s, 1-x)). */
static double hurwitz(double s, double x) {
  if (!(x < -30) || isinf(x)) return hurwitz_up(s, x);
  const double f = x - floor(x);
  if (f == 0) return (double)INFINITY;
  const double other = hurwitz_up(s, 1 - f) - hurwitz_up(s, 1 - x);
  return hurwitz_up(s, f) + (fmod(s, 2.0) == 0 ? other : -other);
}

/* ψ(x): reflection below 0, recurrence up to 12, asymptotic series (DLMF 5.5.4, 5.11.2). */
static double digamma(double x) {
  if (x == 0) return copysign(INFINITY, -x);
  double r = 0;
  if (x < 0) {
    if (x == floor(x)) return (double)NAN;
    r = -PI / tan(PI * (x - rint(x)));
    x = 1 - x;
  }
  for (; x < 12; x += 1) r -= 1 / x;
  double z = 1 / (x * x);
  double tail = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132)))));
  return r + log(x) - 0.5 / x - tail;
}

static double polygamma(int n, double x) {
  if (n == 0) return digamma(x);
  if (n == 1 && x < 0) { /* ψ1(x) = π²/sin²(πx) - ψ1(1-x) */
    double s = sin(PI * (x - rint(x)));
    return (PI / s) * (PI / s) - hurwitz(2, 1 - x);
  }
  double v = hurwitz(n + 1, x) * tgamma(n + 1);
  return n & 1 ? v : -v;
}

static PlStatus body(void *ctx, int64_t begin, int64_t end) {
  const PlkCall *c = ctx;
  int n = (int)pl_attr_i(c->attrs, 0);
  const void *x = c->in[0]->data;
  void *y = c->out[0]->data;
  for (int64_t i = begin; i < end; i++) {
    switch (c->out[0]->dtype) {
    case PL_F64: ((double *)y)[i] = polygamma(n, ((const double *)x)[i]); break;
    case PL_F32: ((float *)y)[i] = (float)polygamma(n, (double)((const float *)x)[i]); break;
    case PL_F16: ((uint16_t *)y)[i] = plk_f32_to_f16((float)polygamma(n, (double)plk_f16_to_f32(((const uint16_t *)x)[i]))); break;
    default: ((uint16_t *)y)[i] = plk_f32_to_bf16((float)polygamma(n, (double)plk_bf16_to_f32(((const uint16_t *)x)[i])));
    }
  }
  return plk_poll();
}

PlStatus plk_cpu_polygamma(const PlkCall *call) { return plk_parallel(call->out[0]->numel, BLOCK, body, (void *)(uintptr_t)call); }
