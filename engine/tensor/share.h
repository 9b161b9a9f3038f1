/* SPDX-License-Identifier: MIT
 * Tensors for other threads. A handle and its storage belong to one thread; what threads can share is the block of
 * memory below, counted by a PlShared with an atomic counter. A PlTensorShare is that with shape and dtype: one thread
 * makes it from its tensor, another opens it as a tensor of its own on the same memory, without a copy (up to PL_SMALL
 * bytes are copied); memory of a device is shared likewise. Nobody may write to memory that was shared while others read it. */
#ifndef PL_ENGINE_TENSOR_SHARE_H
#define PL_ENGINE_TENSOR_SHARE_H

#include "engine/perilune.h"

typedef struct PlShared PlShared;
typedef struct PlTensorShare PlTensorShare;

/* Shares t's elements; the gradient history stays behind. Errors: OOM. */
PlStatus pl_tensor_share(PlTensorShare **out, PlTensor *t);
/* A new tensor of the calling thread. May be called by several threads, any number of times. Errors: OOM. */
PlStatus pl_tensor_share_open(const PlTensorShare *p, PlTensor **out);
void pl_tensor_share_release(PlTensorShare *p); /* NULL is fine; any thread */
void pl_shared_release(PlShared *s);

#endif
