/* SPDX-License-Identifier: MIT
 * One op call on its way through pl_apply: inputs promoted, attributes normalized, outputs inferred. Shared by the
 * engine's own execution (apply.c) and by graphs under construction (graph/symbolic.c). */
#ifndef PL_ENGINE_CALL_H
#define PL_ENGINE_CALL_H

#include "engine/tensor.h"

/* Arrays live here unless the op is variadic and long. */
typedef struct PlCall {
  const PlOp *op;
  const PlAttrs *attrs;
  PlAttrs normal; /* with dimensions resolved */
  int nin;
  PlTensor **in;        /* after promotion; entries of `made` are owned */
  bool *made;
  const PlArray **arr;
  PlTensor *few_in[PL_MAX_IN];
  bool few_made[PL_MAX_IN];
  const PlArray *few_arr[PL_MAX_IN];
  PlDtype compute;
  uint8_t device; /* where it computes (engine/device.h) */
  PlDesc desc[PL_MAX_OUT];
} PlCall;

/* Checks counts, normalizes, promotes; end it when begin succeeded. */
PlStatus pl_call_begin(PlCall *c, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs);
PlStatus pl_call_infer(PlCall *c);
void pl_call_end(PlCall *c);
/* The kernel alone, on inputs that need no promotion and outputs of the inferred types: graphs know both. arr[nin] are
 * the inputs' arrays. Copies inputs where the op wants them contiguous; takes random numbers. */
PlStatus pl_call_kernel(const PlOp *op, const PlAttrs *attrs, PlTensor *const *in, const PlArray **arr, int nin,
                        PlTensor *const *out);
/* out must have the shape of d, and a dtype that d's values fit into. */
PlStatus pl_call_check_target(const PlOp *op, const PlTensor *out, const PlDesc *d);
/* Floating-point operations of a call: the op's own count, else one for each element of its largest tensor. */
double pl_flops(const PlInfer *c);
/* The same of a call that has its results; out[i] is NULL for one that it does not have. */
double pl_flops_made(const PlOp *op, const PlAttrs *attrs, const PlArray *const *in, int nin, PlArray *const *out);

#endif
