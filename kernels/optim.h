/* SPDX-License-Identifier: MIT
 * Optimizer steps and list helpers: one call works on all parameters of a group.
 *
 * The inputs are a list grouped by parameter, k tensors each. Blocks are cut from the concatenation of all
 * parameters, so many small tensors cost one parallel region and the cut depends on sizes alone. */
#ifndef PL_KERNELS_OPTIM_H
#define PL_KERNELS_OPTIM_H

#include <math.h>
#include <string.h>

#include "kernels/kernel.h"
#include "kernels/optim_states.h"

/* Attributes by position; columns of a group in the order given. */
enum { /* sgd_step: param, grad [, momentum buffer] */
       PLK_SGD_K,
       PLK_SGD_LR,
       PLK_SGD_MOMENTUM,
       PLK_SGD_DAMPENING,
       PLK_SGD_DECAY,
       PLK_SGD_NESTEROV,
       PLK_SGD_MAXIMIZE,
       PLK_SGD_STEP /* 1: the buffer takes the gradient as it is */
};
enum { /* adam_step: param, grad, first moment, second moment [, its maximum: AMSGrad] */
       PLK_ADAM_K,
       PLK_ADAM_LR,
       PLK_ADAM_BETA1,
       PLK_ADAM_BETA2,
       PLK_ADAM_EPS,
       PLK_ADAM_DECAY,
       PLK_ADAM_STEP, /* counts from 1 */
       PLK_ADAM_FLAGS
};
enum { /* rmsprop_step: param, grad, mean of squares [, momentum buffer] [, mean of gradients: centered] */
       PLK_RMS_K,
       PLK_RMS_LR,
       PLK_RMS_ALPHA,
       PLK_RMS_EPS,
       PLK_RMS_DECAY,
       PLK_RMS_MOMENTUM,
       PLK_RMS_FLAGS,
       PLK_RMS_STEP
};
enum { /* optimizer_step: param, grad, one to four tensors of state; behind the last, for a rule that says so, its estimate */
       PLK_OPTIM_K,
       PLK_OPTIM_RULE,
       PLK_OPTIM_NUMBERS, /* settings, or the formula's numbers: kernels/optim_formulas.h */
       PLK_OPTIM_LR,
       PLK_OPTIM_DECAY, /* with flag COUPLED: g += decay p; with DECOUPLED: p *= 1 - lr decay */
       PLK_OPTIM_FLAGS,
       PLK_OPTIM_STEP /* its number, from 1: of settings; what bf16 is rounded by */
};
enum { PLK_OPTIM_MAXIMIZE = 1, PLK_OPTIM_COUPLED = 2, PLK_OPTIM_DECOUPLED = 4 };
enum { PLK_OPTIM_AVERAGED = 8 }; /* of a saved graph: its parameters are the averages of a schedule-free optimizer, which no step takes */
/* Columns of a rule: what it reads and writes. */
enum { PLK_OPTIM_X = 1, PLK_OPTIM_G = 2, PLK_OPTIM_A = 4, PLK_OPTIM_B = 8, PLK_OPTIM_C = 16, PLK_OPTIM_D = 32 };
enum { PLK_OPTIM_COLUMNS = 6 };
typedef enum PlkOptimRule {
#define R(NAME, WIDTH, ...) PLK_OPTIM_##NAME,
#include "kernels/optim_formulas.h"
#undef R
  PLK_OPTIM_RULES
} PlkOptimRule;
enum { PLK_OPTIM_MOST = 11 /* numbers of a formula */ };
typedef struct PlkOptimRuleFacts {
  int8_t width, numbers; /* tensors a parameter; numbers of a call */
  bool settings;         /* these are what does not change from step to step */
  uint8_t reads, writes; /* columns */
  bool sums;             /* adds up two numbers over a parameter's elements */
} PlkOptimRuleFacts;
static inline PlkOptimRuleFacts plk_optim_facts(int64_t rule) {
  static const PlkOptimRuleFacts of[] = {
#define X                                                           PLK_OPTIM_X
#define G                                                           PLK_OPTIM_G
#define A                                                           PLK_OPTIM_A
#define B                                                           PLK_OPTIM_B
#define C                                                           PLK_OPTIM_C
#define D                                                           PLK_OPTIM_D
#define R(NAME, WIDTH, NUMBERS, SETTINGS, READS, WRITES, SUMS, ...) {WIDTH, NUMBERS, SETTINGS, READS, WRITES, SUMS},
#include "kernels/optim_formulas.h"
#undef R
#undef X
#undef G
#undef A
#undef B
#undef C
#undef D
  };
  return of[rule];
}
/* Rules of two passes, as a parameter's rate is known when all of it has been seen: the one that follows, with a factor of the two
 * sums and of how many elements there are; -1: one pass. */
static inline int plk_optim_second(int64_t rule) {
  return rule == PLK_OPTIM_LAMB ? (int)PLK_OPTIM_LAMB_APPLY : rule == PLK_OPTIM_ADAFACTOR ? (int)PLK_OPTIM_ADAFACTOR_APPLY : -1;
}
PLK_STATES_FN double plk_optim_factor(int64_t rule, const double *number, double square, double step_square, int64_t numel) {
  const double x = sqrt(square), u = sqrt(step_square);
  if (rule == PLK_OPTIM_ADAFACTOR) {
    const double size = sqrt((double)numel), rms = x / size, clip = u / (size * number[4]);
    return (rms < number[3] ? number[3] : rms) * number[2] / (clip < 1 ? 1 : clip);
  }
  if (number[10] == 0 || x == 0 || u == 0) return 1;
  return x / u < number[9] || x != x || u != u ? x / u : number[9];
}
/* What a call of the rule writes, in all of its passes. */
static inline unsigned plk_optim_writes(int64_t rule) {
  const int second = plk_optim_second(rule);
  return plk_optim_facts(rule).writes | (second < 0 ? 0u : plk_optim_facts(second).writes);
}
/* What a formula gets, N, of the numbers of a call: most rules' are the optimizer's settings, of which the numbers of the step are made
 * here, for every device and for who steps without Lua. Behind the settings of a rule with a number that it carries from step to step
 * (`carry` in lua/perilune/optim/fused.lua) are that number as this step reads it, and what plk_optim_count keeps. Other rules' numbers
 * are given as they are. */
static inline double plk_optim_power(double x, double y) { return y == 2 ? x * x : pow(x, y); } /* as Lua takes it */
/* Schedule-free, s from warmup_steps on: this step's rate; the weight of its z in the mean. */
static inline double plk_schedule_free_lr(const double *s, double lr) { return s[3] <= s[0] ? lr * (s[3] / s[0]) : lr; }
static inline double plk_schedule_free_weight(const double *s) { return plk_optim_power(s[3], s[1]) * plk_optim_power(s[5], s[2]); }
static inline bool plk_optim_schedule_free(int64_t rule) {
  return rule == PLK_OPTIM_SCHEDULE_FREE_ADAMW || rule == PLK_OPTIM_SCHEDULE_FREE_SGD;
}
static inline double plk_nadam_mu(const double *s, double t) { return s[0] * (1 - 0.5 * pow(0.96, t * s[3])); }
static inline void plk_optim_numbers(int64_t rule, double lr, double decay, int64_t step, const double *given, double *N) {
  const double *s = given, t = (double)step;
  memcpy(N, given, (size_t)plk_optim_facts(rule).numbers * sizeof *given);
  if (rule == PLK_OPTIM_ADAMAX) {
    const double b1 = s[0];
    const double of[] = {b1, 1 - b1, s[1], s[2], lr / (1 - pow(b1, t))};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_RADAM) {
    const double b1 = s[0], b2 = s[1], bias2 = 1 - pow(b2, t), far = 2 / (1 - b2) - 1, rho = far - 2 * t * pow(b2, t) / bias2;
    const double rect = rho > 5 ? sqrt((rho - 4) * (rho - 2) * far / ((far - 4) * (far - 2) * rho)) * sqrt(bias2) : 0;
    const double of[] = {b1, 1 - b1, b2, 1 - b2, lr / (1 - pow(b1, t)), rect, s[2]};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_NADAM) {
    const double b1 = s[0], b2 = s[1], mu = plk_nadam_mu(s, t), next = plk_nadam_mu(s, t + 1), product = s[4] * mu;
    const double of[] = {b1, 1 - b1, b2, 1 - b2, 1 - pow(b2, t), s[2], lr * (1 - mu) / (1 - product), lr * next / (1 - product * next)};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_ASGD) {
    const double eta = s[3], of[] = {1 - s[0] * eta, eta, 1 / (t - 1 - s[2] > 1 ? t - 1 - s[2] : 1)};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_ADAGRAD) {
    N[1] = lr / (1 + (t - 1) * s[1]);
  } else if (rule == PLK_OPTIM_ADADELTA) {
    const double of[] = {s[0], 1 - s[0], s[1], lr};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_LION) {
    const double of[] = {s[0], 1 - s[0], s[1], 1 - s[1], lr};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_ADAFACTOR) {
    const double of[] = {1 / s[0], 1 - lr * decay, lr < 1 / sqrt(t) ? lr : 1 / sqrt(t), s[1], s[2]};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_ADAFACTOR_MEAN) {
    const double w = pow(t, s[0]), of[] = {1 - w, w};
    memcpy(N, of, sizeof of);
  } else if (rule == PLK_OPTIM_MUON) {
    N[0] = lr * s[0];
  } else if (plk_optim_schedule_free(rule)) {
    const double *own = s + (rule == PLK_OPTIM_SCHEDULE_FREE_ADAMW ? 3 : 1);
    const double rate = plk_schedule_free_lr(own, lr), c = own[4] != 0 ? plk_schedule_free_weight(own) / own[4] : 0;
    const double of[] = {s[1], 1 - s[1], 1 - pow(s[1], own[3]), s[2], decay, c, rate * (s[0] * (1 - c) - 1), rate};
    if (rule == PLK_OPTIM_SCHEDULE_FREE_ADAMW) memcpy(N, of, sizeof of);
    else memcpy(N, of + 5, 3 * sizeof *of);
  } else if (rule == PLK_OPTIM_LAMB) {
    const double b1 = s[0], b2 = s[1], first = s[3] != 0 ? 1 / (1 - pow(b1, t)) : 1, second = s[3] != 0 ? 1 / sqrt(1 - pow(b2, t)) : 1;
    const double of[] = {b1, 1 - b1, b2, 1 - b2, first, second, s[2], decay, lr, s[5], s[4] != 0 || decay != 0 ? 1. : 0.};
    memcpy(N, of, sizeof of);
  }
}

/* Does it carry anything, or keep an estimate? A step's number is not all of where it is then. */
static inline bool plk_optim_carries(int64_t rule) {
  return rule == PLK_OPTIM_NADAM || rule == PLK_OPTIM_ASGD || rule == PLK_OPTIM_PRODIGY || plk_optim_schedule_free(rule);
}

/* What a step carries, s, behind the settings that it has: from those of the step before it, `from`, which was step `step` of one rate; this
 * one's is lr. What s had stays behind it. */
static inline void plk_optim_count(int64_t rule, double lr, int64_t step, const double *from, double *s) {
  if (rule == PLK_OPTIM_NADAM) { /* product before the step, and the one that was there */
    s[5] = s[4];
    s[4] = from[4] * plk_nadam_mu(s, (double)step);
  } else if (rule == PLK_OPTIM_ASGD) { /* eta and lr of the step, and those that were there */
    s[5] = s[3], s[6] = s[4];
    s[3] = from[4] / pow(1 + s[0] * from[4] * (double)step, s[1]), s[4] = lr;
  } else if (plk_optim_schedule_free(rule)) {
    const int at = rule == PLK_OPTIM_SCHEDULE_FREE_ADAMW ? 3 : 1;
    double *own = s + at;
    own[6] = own[4], own[7] = own[5];
    own[3] = from[at + 3] + 1;
    const double rate = plk_schedule_free_lr(own, lr);
    own[5] = rate > from[at + 5] ? rate : from[at + 5];
    own[4] = from[at + 4] + plk_schedule_free_weight(own);
  }
}

/* What weight decay does in this call. factor: of the gradient's addend, or of the parameter. */
typedef struct PlkOptimDecay {
  double factor;
  bool coupled, decoupled;
} PlkOptimDecay;
static inline PlkOptimDecay plk_optim_decay(double lr, double decay, int64_t flags) {
  const bool apart = (flags & PLK_OPTIM_DECOUPLED) != 0;
  return (PlkOptimDecay){apart ? 1 - lr * decay : decay, decay != 0 && (flags & PLK_OPTIM_COUPLED) != 0, decay != 0 && apart};
}

/* ---- Prodigy's estimate ---------------------------------------------------------------------------------------------------
 * Mishchenko & Defazio 2024. An f64[6] behind the lists of its two rules: calls of prodigy, one for each group, add to its sums; calls of
 * prodigy_apply step by the estimate that these sums allow, and the last of them keeps it. Who makes the calls knows nothing of it, so a
 * graph can have them. */

/* The rate, 0: not estimated yet; the largest that it could have been; the numerator's mean; steps; sums of the step. */
enum { PLK_EST_D, PLK_EST_MOST, PLK_EST_NUMERATOR, PLK_EST_STEPS, PLK_EST_WAY, PLK_EST_LENGTH, PLK_ESTIMATE };
/* Settings of both rules; those of prodigy, then those of prodigy_apply. */
enum { PLK_EST_BETA1, PLK_EST_BETA2, PLK_EST_BETA3, PLK_EST_D0, PLK_EST_CORRECTED /* bias */, PLK_EST_OWN };
enum { PLK_EST_GROUP_D0 = PLK_EST_OWN, PLK_EST_SAFE /* warmup */ };
enum { PLK_EST_EPS = PLK_EST_OWN, PLK_EST_COEF, PLK_EST_GROWTH, PLK_EST_LAST };

PLK_STATES_FN double plk_prodigy_d(const double *s, const double *est) { return est[PLK_EST_D] != 0 ? est[PLK_EST_D] : s[PLK_EST_D0]; }
/* What a step is multiplied by. */
PLK_STATES_FN double plk_prodigy_rate(const double *s, const double *est, double lr) {
  const double t = est[PLK_EST_STEPS] + 1;
  const double corrected = s[PLK_EST_CORRECTED] != 0 ? sqrt(1 - pow(s[PLK_EST_BETA2], t)) / (1 - pow(s[PLK_EST_BETA1], t)) : 1;
  return plk_prodigy_d(s, est) * lr * corrected;
}
/* What rule prodigy's first sum counts by. */
PLK_STATES_FN double plk_prodigy_gain(const double *s, const double *est, double lr) {
  return plk_prodigy_d(s, est) / s[PLK_EST_GROUP_D0] * plk_prodigy_rate(s, est, lr);
}
/* The numbers of rule prodigy. */
PLK_STATES_FN void plk_prodigy_moments(const double *s, const double *est, double lr, double *N) {
  const double d = plk_prodigy_d(s, est), b1 = s[PLK_EST_BETA1], b2 = s[PLK_EST_BETA2], b3 = s[PLK_EST_BETA3];
  const double weight = d / s[PLK_EST_GROUP_D0] * (s[PLK_EST_SAFE] != 0 ? d : plk_prodigy_rate(s, est, lr));
  N[0] = b1, N[1] = d * (1 - b1), N[2] = b2, N[3] = d * d * (1 - b2), N[4] = b3, N[5] = weight;
}
/* The estimate with this step's sums: the first four of to. */
PLK_STATES_FN void plk_prodigy_estimate(const double *s, const double *est, double lr, double *to) {
  const double numerator = est[PLK_EST_NUMERATOR] * s[PLK_EST_BETA3] + est[PLK_EST_WAY];
  double d = plk_prodigy_d(s, est), most = est[PLK_EST_MOST] != 0 ? est[PLK_EST_MOST] : s[PLK_EST_D0];
  if (lr > 0) {
    const double hat = s[PLK_EST_COEF] * numerator / est[PLK_EST_LENGTH];
    if (d == s[PLK_EST_D0] && hat > d) d = hat;
    most = hat > most ? hat : most;
    d = most < d * s[PLK_EST_GROWTH] ? most : d * s[PLK_EST_GROWTH];
  }
  to[PLK_EST_D] = d, to[PLK_EST_MOST] = most, to[PLK_EST_NUMERATOR] = numerator, to[PLK_EST_STEPS] = est[PLK_EST_STEPS] + 1;
}
/* The numbers of rule prodigy_apply, and what decay multiplies parameters by. false: there is no step, as no gradient was seen. */
PLK_STATES_FN bool plk_prodigy_apply(const double *s, const double *est, double lr, double weight_decay, double *N, double *decay) {
  double now[PLK_ESTIMATE];
  if (est[PLK_EST_LENGTH] == 0) return false;
  plk_prodigy_estimate(s, est, lr, now);
  const double rate = plk_prodigy_rate(s, est, lr);
  N[0] = now[PLK_EST_D] * s[PLK_EST_EPS], N[1] = rate;
  *decay = 1 - rate * weight_decay;
  return true;
}
/* The last call of a step. */
PLK_STATES_FN void plk_prodigy_keep(const double *s, double *est, double lr) {
  double now[PLK_ESTIMATE];
  if (est[PLK_EST_LENGTH] != 0) {
    plk_prodigy_estimate(s, est, lr, now);
    for (int i = 0; i < PLK_EST_WAY; i++) est[i] = now[i];
  }
  est[PLK_EST_WAY] = est[PLK_EST_LENGTH] = 0;
}

/* Has its list an estimate at its end? Its numbers are settings until that is read, where the step is made (above). */
static inline bool plk_optim_estimates(int64_t rule) { return rule == PLK_OPTIM_PRODIGY || rule == PLK_OPTIM_PRODIGY_APPLY; }

enum { PLK_RMS_BUFFER = 1, PLK_RMS_CENTERED = 2, PLK_RMS_MAXIMIZE = 4 };
enum { PLK_ADAM_DECOUPLED = 1, PLK_ADAM_MAXIMIZE = 2 };

PlStatus plk_cpu_sgd_step(const PlkCall *call);
PlStatus plk_cpu_adam_step(const PlkCall *call);
PlStatus plk_cpu_rmsprop_step(const PlkCall *call);
PlStatus plk_cpu_optimizer_step(const PlkCall *call);
/* out[0], 0-d: the p-norm (attribute 0; infinity: largest magnitude) of all elements of the list. */
PlStatus plk_cpu_foreach_norm(const PlkCall *call);
/* Is it a column of states in 8 bits (kernels/optim_states.h)? */
static inline bool plk_coded(const PlArray *a) { return a->dtype == PL_I8 || a->dtype == PL_U8; }
/* Multiplies every tensor of the list by the last one, which holds one number. */
PlStatus plk_cpu_foreach_scale_(const PlkCall *call);
PlStatus plk_cpu_foreach_zero_(const PlkCall *call);

/* The bytes from the first element of an array to behind its last: [lo, hi), empty where there are none. Two arrays whose
 * extents do not meet share no memory; those whose do only may. */
typedef struct PlkExtent {
  const char *lo, *hi;
} PlkExtent;
static inline PlkExtent plk_extent(const PlArray *a) {
  const int64_t size = (int64_t)pl_dtype_size((PlDtype)a->dtype);
  PlkExtent e = {(const char *)a->data, (const char *)a->data + (a->numel ? size : 0)};
  for (int d = 0; d < a->ndim && a->numel; d++) {
    const int64_t reach = (a->shape[d] - 1) * a->strides[d] * size;
    if (reach < 0) e.lo += reach;
    else e.hi += reach;
  }
  return e;
}
static inline bool plk_extents_meet(PlkExtent a, PlkExtent b) { return a.lo < b.hi && b.lo < a.hi; }

#endif
