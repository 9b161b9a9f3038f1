/* SPDX-License-Identifier: MIT
 * Optimizer steps and list helpers: one call works on all parameters of a group.
 *
 * The inputs are a list grouped by parameter, k tensors each. Blocks are cut from the concatenation of all
 * parameters, so many small tensors cost one parallel region and the cut depends on sizes alone. */
#ifndef PL_KERNELS_OPTIM_H
#define PL_KERNELS_OPTIM_H

#include "kernels/kernel.h"

/* Attributes by position; columns of a group in the order given. */
enum { /* sgd_step: param, grad [, momentum buffer] */
       PLK_SGD_K,
       PLK_SGD_LR,
       PLK_SGD_MOMENTUM,
       PLK_SGD_DAMPENING,
       PLK_SGD_DECAY,
       PLK_SGD_NESTEROV,
       PLK_SGD_MAXIMIZE,
       PLK_SGD_FIRST
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
       PLK_RMS_FLAGS
};
enum { /* optimizer_step: param, grad, one or two tensors of state */
       PLK_OPTIM_K,
       PLK_OPTIM_RULE,
       PLK_OPTIM_NUMBERS, /* see kernels/optim_formulas.h */
       PLK_OPTIM_DECAY,   /* with flag COUPLED: g += decay p; with DECOUPLED: p *= decay */
       PLK_OPTIM_FLAGS
};
enum { PLK_OPTIM_MAXIMIZE = 1, PLK_OPTIM_COUPLED = 2, PLK_OPTIM_DECOUPLED = 4 };
typedef enum PlkOptimRule {
#define R(NAME, WIDTH, NUMBERS, ...) PLK_OPTIM_##NAME,
#include "kernels/optim_formulas.h"
#undef R
  PLK_OPTIM_RULES
} PlkOptimRule;
enum { PLK_OPTIM_MOST = 8 /* numbers */ };
/* Tensors a parameter and numbers of a rule. */
static inline int plk_optim_width(int64_t rule) {
  static const int8_t of[] = {
#define R(NAME, WIDTH, NUMBERS, ...) WIDTH,
#include "kernels/optim_formulas.h"
#undef R
  };
  return of[rule];
}
static inline int plk_optim_numbers(int64_t rule) {
  static const int8_t of[] = {
#define R(NAME, WIDTH, NUMBERS, ...) NUMBERS,
#include "kernels/optim_formulas.h"
#undef R
  };
  return of[rule];
}

enum { PLK_RMS_BUFFER = 1, PLK_RMS_CENTERED = 2, PLK_RMS_MAXIMIZE = 4 };
enum { PLK_ADAM_DECOUPLED = 1, PLK_ADAM_MAXIMIZE = 2 };

PlStatus plk_cpu_sgd_step(const PlkCall *call);
PlStatus plk_cpu_adam_step(const PlkCall *call);
PlStatus plk_cpu_rmsprop_step(const PlkCall *call);
PlStatus plk_cpu_optimizer_step(const PlkCall *call);
/* out[0], 0-d: the p-norm (attribute 0; infinity: largest magnitude) of all elements of the list. */
PlStatus plk_cpu_foreach_norm(const PlkCall *call);
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
