/* SPDX-License-Identifier: MIT
 * Memory formats: images [N,C,H,W] and volumes [N,C,D,H,W] whose channels are innermost in memory ("channels last"). Sizes
 * and values never depend on it, only strides do.
 *
 * On a device results follow their inputs: after every infer rule pl_layout_follow says which outputs get channels last.
 * Pointwise ops then run on their arrays turned to [N,H,W,C], where they are dense, so their kernels know nothing of it;
 * those whose rule says PL_MAY_FOLLOW have kernels that look at the strides. All other ops take such arrays as they take
 * any strided one.
 * On the CPU results are row-major, but for what is asked for by name. */
#ifndef PL_ENGINE_TENSOR_LAYOUT_H
#define PL_ENGINE_TENSOR_LAYOUT_H

#include "engine/tensor/tensor.h"

typedef struct PlCall PlCall; /* engine/call/call.h */

/* Is a dense with its channels innermost? Where sizes of 1 leave that open, so it may be row-major as well. */
bool pl_is_channels_last(const PlArray *a);
/* The same, but what could be both is so only by the strides of its dims of size 1, as those of pl_layout_strides are. */
bool pl_channels_last(const PlArray *a);
/* Row-major strides, or channels last. */
void pl_layout_strides(int layout, int ndim, const int64_t *shape, int64_t *strides);
/* Of a fresh tensor that nobody has seen yet. */
void pl_layout_apply(PlTensor *t, int layout);
PlStatus pl_tensor_empty_as(PlTensor **out, int layout, int device, PlDtype dtype, int ndim, const int64_t *shape);
/* A copy of t in that layout, without history. */
PlStatus pl_tensor_copy_as(PlTensor **out, int layout, PlTensor *t);

/* After infer: which outputs follow; c->layout says whether any does. */
void pl_layout_follow(PlCall *c);
/* Runs kernel on the call's arrays turned to [N,…,C] where output 0 is channels last. */
PlStatus pl_layout_turned(const PlOp *op, const PlkCall *call, PlStatus (*run)(const PlOp *op, const PlkCall *call));

#endif
