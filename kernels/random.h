/* SPDX-License-Identifier: MIT
 * Random kernels. Values depend on call->rng and the element's index only: never on threads or the order
 * of work. Outputs and inputs must be contiguous.
 *
 * A kernel consumes plk_rng_advance(kind, dtype, n) blocks of its stream; whoever owns the stream adds that
 * to the offset after the call. */
#ifndef PL_KERNELS_RANDOM_H
#define PL_KERNELS_RANDOM_H

#include <math.h>

#include "kernels/kernel.h"

typedef enum PlkRngKind {
  PLK_RNG_UNIFORM,
  PLK_RNG_NORMAL,
  PLK_RNG_EXPONENTIAL,
  PLK_RNG_RANDINT,
  PLK_RNG_BERNOULLI,
  PLK_RNG_DROPOUT,
  PLK_RNG_RANDPERM,
  PLK_RNG_MULTINOMIAL
} PlkRngKind;

/* Blocks for n elements of the output's `dtype`. multinomial: n is the larger of the number of samples and
 * the number of probabilities. An element takes one word, or two where 64 bits matter. */
static inline uint64_t plk_rng_advance(PlkRngKind kind, PlDtype dtype, uint64_t n) {
  const int two = kind == PLK_RNG_RANDINT || kind == PLK_RNG_RANDPERM || kind == PLK_RNG_MULTINOMIAL ||
                  (kind <= PLK_RNG_EXPONENTIAL && dtype == PL_F64);
  return two ? n / 2 + (n & 1) : n / 4 + ((n & 3) != 0);
}

/* The largest number of f16 or bf16 below hi, or lo where that is larger: what is drawn in f32 and lies above it would be
 * rounded to hi, which is excluded. */
static inline double plk_uniform_top(double lo, double hi, PlDtype dtype) {
  const int digits = dtype == PL_F16 ? 11 : 8, least = dtype == PL_F16 ? -24 : -133;
  int e;
  const double m = frexp(hi, &e);
  const int place = m == 0.5 ? e - 1 - digits : e - digits; /* below a power of two the steps are half as wide */
  const double step = ldexp(1.0, hi == 0.0 || place < least ? least : place);
  double top = floor(hi / step) * step;
  if (top >= hi) top = hi - step;
  return top > lo ? top : lo;
}

/* out[0] float; attrs lo, hi (f): uniform in [lo, hi). */
PlStatus plk_cpu_uniform(const PlkCall *call);
/* out[0] float; attrs mean, std (f). Box-Muller. */
PlStatus plk_cpu_normal(const PlkCall *call);
/* out[0] float; attr rate (f): density rate e^(-rate x). */
PlStatus plk_cpu_exponential(const PlkCall *call);
/* out[0] any dtype but bool; attrs lo, hi (i), both included. */
PlStatus plk_cpu_randint(const PlkCall *call);
/* out[0] any dtype: 1 with probability p, else 0. p is in[0] (float; the output's element count, or one
 * element) or, without input, attr p (f). PL_ERR_ARG if some p is outside [0, 1]. */
PlStatus plk_cpu_bernoulli(const PlkCall *call);
/* in[0] x, float; attr p (f) in [0, 1]. out[0] = x / (1 - p) where kept, else 0; out[1] (may be NULL) the
 * bool or u8 mask of what was kept. */
PlStatus plk_cpu_dropout(const PlkCall *call);
/* out[0] i64, 1-D: a permutation of 0 … n-1. */
PlStatus plk_cpu_randperm(const PlkCall *call);
/* in[0] float weights [K] or [rows, K], not negative, not all zero; attrs number of samples (i),
 * replacement (i). out[0] i64 [samples] or [rows, samples]: indices. */
PlStatus plk_cpu_multinomial(const PlkCall *call);
/* in weights[k]; out the other category of each place (i64, 0-based), and the probability of the place's own. */
PlStatus plk_cpu_multinomial_alias_setup(const PlkCall *call);

#endif
