/* SPDX-License-Identifier: MIT
 * What the matrix product ops share: kernels that see operands of any rank as matrices. */
#ifndef PL_ENGINE_OPS_LINALG_MATMUL_OPERANDS_H
#define PL_ENGINE_OPS_LINALG_MATMUL_OPERANDS_H

#include "engine/ops/op.h"

/* An array with sizes and strides of its own over somebody else's data. */
typedef struct PlWindow {
  PlArray a;
  int64_t shape[PL_MAX_DIM + 2], strides[PL_MAX_DIM + 2];
} PlWindow;

/* w = src with the same sizes; then edit shape, strides, ndim and call pl_window_done. */
void pl_window_of(PlWindow *w, const PlArray *src);
void pl_window_done(PlWindow *w);
/* Inserts a dimension of size 1 before dimension d. */
void pl_window_insert(PlWindow *w, int d);
/* All dimensions but the last `keep` become one; false if strides do not allow it. */
bool pl_window_flatten(PlWindow *w, const PlArray *src, int keep);
/* w = a dense copy of src in *scratch. */
PlStatus pl_window_copy(PlWindow *w, const PlArray *src, void **scratch);
/* pl_window_flatten, through a dense copy where strides do not allow it (*scratch: plk_scratch_free it, may be NULL). */
PlStatus pl_window_dense(PlWindow *w, const PlArray *src, int keep, void **scratch);

/* Runs a kernel of the form of plk_cpu_matmul on call's inputs 0 and 1 of any ranks ≥ 1, transposed in their
 * last two dims where ta, tb say so. */
PlStatus pl_run_matmul(const PlkCall *call, PlKernel kernel, bool ta, bool tb);
/* Output shape of that product; errors name the op and a likely fix. */
PlStatus pl_infer_matmul(PlInfer *c, int ia, int ib, bool ta, bool tb);
double pl_flops_matmul(const PlInfer *c);

/* op(a) op(b) through matmul_t, ranks ≥ 2; and the sum over leading dims of xᵀ y. */
PlVal pl_g_matmul(PlMaker *g, PlVal a, PlVal b, bool ta, bool tb);

#endif
