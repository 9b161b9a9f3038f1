/* SPDX-License-Identifier: MIT
 * The elementwise kernel family: one entry point a device, call->code says which member.
 * Inputs share one dtype (exceptions: elementwise.def, and floats beside halves: f32 inputs of an op whose output is f16 or bf16
 * are computed with as they are) and broadcast against the output from the right;
 * the output's dtype is the result's. In-place (output is the very same array as an input) is fine. */
#ifndef PL_KERNELS_ELEMENTWISE_H
#define PL_KERNELS_ELEMENTWISE_H

#include "kernels/kernel.h"

/* Errors: PL_ERR_DTYPE "<name>: not defined for <dtype>"; PL_ERR_ARG "<name>: integer division by zero";
 * PL_ERR_INTERRUPT. */
PlStatus plk_cpu_elementwise(const PlkCall *call);

/* A loop over n elements. ptr[0] is the output, then the inputs; all contiguous, except that an operand whose stride is 0
 * is one value (only loops of two inputs take that, gradients do not), which is a float where the others are halves. Output and inputs may be the same array.
 * Returns 0, or 1 for an integer division by zero (the output is then unspecified). */
typedef int (*PlkLoop)(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p);

/* The loop of a member for f32 or f64, for arrays so small that nothing else is worth its time; one_value: one that takes
 * stride 0. NULL: there is none. */
PlkLoop plk_cpu_elementwise_loop(int code, int dtype, bool one_value);
/* Rough time of an element in units of an addition's. */
int plk_cpu_elementwise_cost(int code);

/* A member of one or two inputs together with its tangent: ptr[0] is the value, ptr[1] its tangent, then come the inputs, then the
 * tangents of those that have one, all whole arrays, but for the second input of PLK_DUAL_BY, one value; results are no inputs.
 * The bits are those of the member and of its gradient with the tangents in place of dy. NULL: there is none. */
typedef enum PlkDual { PLK_DUAL_FIRST, PLK_DUAL_SECOND, PLK_DUAL_BOTH, PLK_DUAL_BY, PLK_DUAL_KINDS } PlkDual; /* which has a tangent */
enum { PLK_DUAL_ARRAYS = 6 };
PlkLoop plk_cpu_elementwise_dual(int code, int dtype, PlkDual kind);
/* Runs one; steps[k]: bytes from an element of array k to the next; cost: of an element, as above. */
PlStatus plk_cpu_elementwise_dual_run(PlkLoop loop, char *const *ptr, const uint8_t *steps, int narray, int cost, int64_t n);

/* Several members that run over the same n elements of one dtype, f32 or f64, in one pass over memory: tile by tile, and what
 * passes between them stays in the first-level cache. The bits are those of the members one by one. */
enum { PLK_EW_MAX_OP = 4 /* the output and three inputs */, PLK_STEPS_TEMPS = 8, PLK_STEPS_ARRAYS = 16 };
typedef struct PlkStep {
  PlkLoop loop;
  const PlAttrs *attrs;
  int64_t stride[PLK_EW_MAX_OP]; /* 1, or 0: one value */
  uint8_t at[PLK_EW_MAX_OP];     /* the output, then the inputs: which array of the caller's, or behind those which temporary */
} PlkStep;
typedef struct PlkSteps {
  const PlkStep *step;
  int n, arrays;
  size_t size;  /* bytes of an element */
  int64_t cost; /* of an element, all steps together */
} PlkSteps;
PlStatus plk_cpu_elementwise_steps(const PlkSteps *s, char *const *array, int64_t n);

#endif
