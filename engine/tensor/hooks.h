/* SPDX-License-Identifier: MIT
 * What higher rooms do for handles and storages of their kinds, at the moments that only tensor/ sees. It is declared here, where
 * it is called, and defined by the room that it concerns, which includes this header; so tensor/ includes nobody above it, and a
 * call stays a direct one. */
#ifndef PL_ENGINE_TENSOR_HOOKS_H
#define PL_ENGINE_TENSOR_HOOKS_H

#include "engine/tensor/tensor.h"

/* ---- grad: handles with a gradient history ---- */
void pl_entries_drop(PlTensor *t); /* it is given up */

/* ---- vmap: PL_T_BATCHED ---- */
/* The same tensors under a fresh handle, without the history that keys made inside the batch know; detach: without any. */
PlStatus pl_batch_alias(PlTensor **out, PlTensor *t);
PlStatus pl_batch_detach(PlTensor **out, PlTensor *t);
void pl_batch_drop(PlTensor *t); /* the end of a handle */
/* A handle on t's memory with these sizes and strides of one element. */
PlStatus pl_batch_window(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides);

/* ---- graph/trace: symbolic tensors ---- */
PlStatus pl_sym_view(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset);
PlStatus pl_sym_detach(PlTensor **out, PlTensor *t);
PlStatus pl_sym_copy(PlTensor **out, PlTensor *t); /* without history */
PlStatus pl_sym_assign(PlTensor *t, PlTensor *v);  /* t's contents := those of v (same shape and dtype) */
void pl_sym_storage_end(PlStorage *s);             /* its last handle is released */

/* ---- remat: PL_OWNS_REMAT ---- */
int64_t pl_remat_limit_get(void);
PlStatus pl_remat_room(size_t n); /* n bytes more are about to be allocated. Errors: OOM */
void pl_remat_end(PlStorage *s);  /* its last handle is released */
void pl_remat_list(PlTensor *t);  /* a handle made on it; has room for PlListed behind its sizes */
void pl_remat_unlist(PlTensor *t);

/* ---- what this thread keeps: it ends ---- */
void pl_autocast_end(void);
void pl_backward_cache_end(void);
void pl_forward_cache_end(void);

#endif
