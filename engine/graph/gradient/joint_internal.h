/* SPDX-License-Identifier: MIT
 * Between joint.c, joint_double_backward.c and joint_recompute.c: traced functions whose results are differentiated. */
#ifndef PL_ENGINE_GRAPH_GRADIENT_JOINT_INTERNAL_H
#define PL_ENGINE_GRAPH_GRADIENT_JOINT_INTERNAL_H

#include "engine/graph/plan/plan.h"

/* The state of the generator before forward ran. */
typedef struct PlJointDraws {
  uint64_t seed, stream, offset;
} PlJointDraws;

/* A clone of f with inputs for the gradients of its first j->ny outputs, dys[ny], and the nodes that compute the gradients
 * dx[nx] of j->xs, -1: none. *out is the caller's even after a failure. */
PlStatus pl_joint_differentiate(PlGraph **out, PlGraph *f, const PlJoint *j, PlGVal *dys, PlGVal *dx);
/* Is x number i a captured tensor that was computed outside? */
static inline bool pl_joint_outside(const PlJoint *j, int32_t i) {
  const PlGValue *v = &j->forward->vals[j->xs[i]];
  return v->kind == PL_FV_CAPTURE && !v->real->node;
}
/* What run_backward computes, as tensors whose tape leads to inputs, captured tensors and dys. in: inputs, then dys; outside:
 * captured tensors that were computed outside; out: as run_backward's outputs. */
PlStatus pl_joint_again(PlJoint *j, const PlJointDraws *draws, PlTensor *const *in, PlTensor *const *outside, PlTensor **out);
PlJointDraws pl_joint_draws(const PlJoint *j);
/* Decides what backward computes again, if the trace f asks for that: *out is a plan without memory whose graph is g with these
 * copies; its outputs are f's, then dx, which are renumbered. NULL: nothing was asked. (joint_recompute.c) */
PlStatus pl_joint_recompute(PlPlan **out, PlGraph *g, const PlGraph *f, int32_t nx, PlGVal *dx);
/* Figures of that, and the bytes that forward keeps for backward, in the plans of both. */
void pl_joint_report(const PlPlan *decided, int64_t kept, PlPlan *forward, PlPlan *backward);

#endif
