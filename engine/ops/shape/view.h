/* SPDX-License-Identifier: MIT
 * What the shape, join and index families share: rules for view outputs, and emitters for the shape ops that
 * gradient makers use most. */
#ifndef PL_ENGINE_OPS_SHAPE_VIEW_H
#define PL_ENGINE_OPS_SHAPE_VIEW_H

#include "engine/ops/op.h"

/* Makes d a view of input 0 that so far looks like it. */
void pl_view_same(const PlInfer *c, PlDesc *d);
/* Resolves sizes with at most one -1 against numel; errors name the op and the input. */
PlStatus pl_sizes_resolve(const PlInfer *c, int n, const int64_t *sizes, int64_t *out);
PlStatus pl_sizes_resolve_to(const PlInfer *c, int64_t numel, int n, const int64_t *sizes, int64_t *out);
/* Strides under which a window can be seen with another shape of equal numel; false where a copy is needed. */
bool pl_strides_reshaped(int n, const int64_t *shape, const int64_t *strides, int m, const int64_t *to, int64_t *out);
/* Checks that the product of sizes (each ≥ 0) and its bytes stay in range. */
PlStatus pl_sizes_check(const PlInfer *c, int n, const int64_t *sizes);
/* d = position within n items, negative from the end; PL_ERR_INDEX names it as Lua users count. */
PlStatus pl_index_resolve(const PlInfer *c, const char *what, int64_t index, int64_t n, int64_t *out);
/* Negative dims from the end, over ndim dims (at least 1); -1 and a sticky error where out of range. */
static inline int pl_dim_wrap(int64_t dim, int ndim) {
  int n = ndim ? ndim : 1;
  return dim >= -n && dim < n ? (int)(dim < 0 ? dim + n : dim) : -1;
}

/* Emits op(v; attr k = list), other attributes at their defaults. */
PlVal pl_g_list(PlMaker *g, const PlOp *op, PlVal v, int k, int n, const int64_t *list);
PlVal pl_g_reshape(PlMaker *g, PlVal v, int n, const int64_t *sizes);
PlVal pl_g_permute(PlMaker *g, PlVal v, int n, const int64_t *dims);
PlVal pl_g_slice(PlMaker *g, PlVal v, int64_t dim, int64_t start, int64_t length, int64_t step);
/* Zeros of the given shape with v put at start, start+step, … of dim. */
PlVal pl_g_slice_bwd(PlMaker *g, PlVal v, int n, const int64_t *shape, int64_t dim, int64_t start, int64_t step);
static inline void pl_g_attrs_list(PlMaker *g, PlAttrs *a, int k, int n, const int64_t *list) {
  PlStatus st = pl_attrs_list(a, k, n, list);
  if (st != PL_OK) pl_g_fail(g, st);
}

#endif
