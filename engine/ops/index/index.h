/* SPDX-License-Identifier: MIT
 * What the index and scatter families share: checks of index tensors and emitters of index ops. */
#ifndef PL_ENGINE_OPS_INDEX_INDEX_H
#define PL_ENGINE_OPS_INDEX_INDEX_H

#include "engine/ops/shape/view.h"
#include "kernels/index.h"

enum { PL_MAX_INDICES = PL_MAX_DIM };

/* Input i holds index values: integers of any width. */
PlStatus pl_index_check(const PlInfer *c, int i);
/* Input i is a 0-d or 1-d tensor of index values. */
PlStatus pl_index_check_list(const PlInfer *c, int i);
/* index (input i) beside x for gather and scatter: as many dims, no size above x's but along dim. */
/* The same for positions of x, which is no input. */
PlStatus pl_index_check_along(const PlInfer *c, const PlArray *x, int i, int dim);
PlStatus pl_index_check_beside(const PlInfer *c, int i, int dim);
/* Output 0: the shape in list attribute k, the dtype of input 0. */
PlStatus pl_index_infer_shape(PlInfer *c, int k);

/* gather, index_select and index_fill share attributes 0 = dim and base at `kbase` of the maker's op. */
PlVal pl_g_gather(PlMaker *g, PlVal v, PlVal index, int64_t dim, int64_t base);
PlVal pl_g_index_select(PlMaker *g, PlVal v, PlVal index, int64_t dim, int64_t base);
/* v summed to the shape of input i, wherever v comes from (pl_g_sum_to looks at the output's shape). */
PlVal pl_g_sum_sizes(PlMaker *g, PlVal v, int i);
/* Of scatter_reduce's product: the gradients for x and for src, which is cut to index's shape. (scatter_product.c) */
void pl_g_scatter_product(PlMaker *g, PlVal src, PlVal *dself, PlVal *dsrc);

#endif
