/* SPDX-License-Identifier: MIT
 * Between kernels/cpu/optim/optim.c and its inner loops, which are compiled once per ISA level (isa/optim.c). */
#ifndef PL_KERNELS_CPU_OPTIM_OPTIM_H
#define PL_KERNELS_CPU_OPTIM_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/optim.h"

/* Numbers of one step, ready for use: everything that depends on the step count is worked out once. */
typedef struct PlkSgd {
  double lr, momentum, dampening, decay;
  bool nesterov, maximize, first;
} PlkSgd;

typedef struct PlkAdam {
  double lr, beta1, beta2, eps, decay;
  double step_size; /* lr / (1 - beta1^t) */
  double root;      /* sqrt(1 - beta2^t) */
  bool decoupled, maximize, amsgrad;
} PlkAdam;

typedef struct PlkRms {
  double lr, alpha, eps, decay, momentum;
  bool buffer, centered, maximize;
} PlkRms;

typedef struct PlkFormula {
  double number[PLK_OPTIM_MOST], decay;
  double factor; /* of this parameter */
  bool maximize, coupled, decoupled;
} PlkFormula;

enum { PLK_OPTIM_WHOLE = 32 /* elements whose chances are made together, kernels/optim_states.h */ };

/* col[j][0..n): column j of a stretch of one parameter, NULL where there is none; sums[0..1]: what a rule with sums adds to. */
typedef struct PlkOptimLoops {
  void (*sgd_f32)(float *const *col, int64_t n, const PlkSgd *o);
  void (*sgd_f64)(double *const *col, int64_t n, const PlkSgd *o);
  void (*adam_f32)(float *const *col, int64_t n, const PlkAdam *o);
  void (*adam_f64)(double *const *col, int64_t n, const PlkAdam *o);
  void (*rms_f32)(float *const *col, int64_t n, const PlkRms *o);
  void (*rms_f64)(double *const *col, int64_t n, const PlkRms *o);
  void (*formula_f32[PLK_OPTIM_RULES])(float *const *col, int64_t n, const PlkFormula *o, double *sums);
  void (*formula_f64[PLK_OPTIM_RULES])(double *const *col, int64_t n, const PlkFormula *o, double *sums);
  /* States in fewer bits, kernels/optim_states.h. first: number of the first element; row: of codes, that of from[0] or to[0]. */
  void (*store_bf16)(const float *from, uint16_t *to, int64_t n, int64_t first, uint32_t seed);
  /* Whole steps with states in bf16, of n elements, n and the number of the first multiples of PLK_OPTIM_WHOLE; seeds: a state's each. */
  void (*adam_bf16)(float *p, const float *g, uint16_t *const *state, int64_t n, int64_t first, const uint32_t *seed, const PlkAdam *o);
  void (*lion_bf16)(float *p, const float *g, uint16_t *const *state, int64_t n, int64_t first, const uint32_t *seed, const PlkFormula *o);
  void (*load_coded)(const uint8_t *rows, int64_t at, bool has_sign, float *to, int64_t n);
  void (*store_coded)(const float *from, bool has_sign, uint8_t *row, int64_t n);
  double (*sumsq_f32)(const float *x, int64_t n);
  double (*sumsq_f64)(const double *x, int64_t n);
  void (*scale_f32)(float *x, int64_t n, double factor);
  void (*scale_f64)(double *x, int64_t n, double factor);
} PlkOptimLoops;

#endif
