/* SPDX-License-Identifier: MIT
 * Memory formats: in which order the dims of a dense array lie in memory. Sizes and values never depend on it, only strides do.
 *
 * On the CPU a pointwise result lies as its operands do, by PyTorch's rule (pl_layout_keep): row-major where they are, transposed
 * where they are transposed, so that kernels walk all of them in one order. All other results are row-major, but for what is
 * asked for by name: images [N,C,H,W] and volumes [N,C,D,H,W] whose channels are innermost in memory ("channels last").
 *
 * On a device results follow their inputs: after every infer rule pl_layout_follow says which outputs get channels last.
 * Pointwise ops then run on their arrays turned to [N,H,W,C], where they are dense, so their kernels know nothing of it;
 * those whose rule says PL_MAY_FOLLOW have kernels that look at the strides. All other ops take such arrays as they take
 * any strided one. */
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
/* A copy of t in that layout, without history; PL_STRIDED: as t lies. */
PlStatus pl_tensor_copy_as(PlTensor **out, int layout, PlTensor *t);

/* The strides, dense, of a result of that shape which lies in memory as these operands do (NULL entries and those that repeat
 * elements say nothing); false: row-major. */
bool pl_layout_like(const PlArray *const *in, int nin, int ndim, const int64_t *shape, int64_t *strides);
/* The same for one tensor of the CPU: the strides of its clone, if that is not row-major. */
bool pl_layout_permuted(const PlArray *a, int64_t *strides);
/* Is a contiguous, with the strides of a fresh array also where sizes of 0 and 1 leave them open? */
bool pl_layout_row_major(const PlArray *a);
/* Are a's elements one behind the other, each once, in any order of its dims? */
bool pl_layout_dense(const PlArray *a);
/* order[0] is the outermost dim of dense strides. */
void pl_layout_order(int ndim, const int64_t *shape, const int64_t *strides, int *order);
/* Gives a fresh dense tensor, that nobody has seen yet, those strides. */
void pl_layout_stride(PlTensor *t, const int64_t *strides);
/* After infer on the CPU: the result of a pointwise op keeps the order of its operands. */
void pl_layout_keep(PlCall *c);
/* After infer on a device: which outputs follow; c->layout says whether any does. */
void pl_layout_follow(PlCall *c);
/* Runs kernel on the call's arrays turned to [N,…,C] where output 0 is channels last. */
PlStatus pl_layout_turned(const PlOp *op, const PlkCall *call, PlStatus (*run)(const PlOp *op, const PlkCall *call));

#endif
