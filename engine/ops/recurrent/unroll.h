/* SPDX-License-Identifier: MIT
 * What the makers of recurrent second gradients share: steps picked out of sequences and put together again, and sums
 * and products in which PL_NONE is zero. */
#ifndef PL_ENGINE_OPS_RECURRENT_UNROLL_H
#define PL_ENGINE_OPS_RECURRENT_UNROLL_H

#include "engine/ops/op.h"

/* Input i, where it is given, must have this shape and input 0's dtype. */
PlStatus pl_unroll_shape(const PlInfer *c, int i, int ndim, const int64_t *shape);
PlVal pl_unroll_zeros(PlMaker *g, PlVal like);                   /* in input 0's dtype */
PlVal pl_unroll_pick(PlMaker *g, PlVal v, int64_t k);            /* v[k], a view */
PlVal pl_unroll_part(PlMaker *g, PlVal v, int64_t j, int64_t H); /* columns j H … of a matrix, a view */
PlVal pl_unroll_plus(PlMaker *g, PlVal a, PlVal b);
PlVal pl_unroll_times(PlMaker *g, PlVal a, PlVal b);
PlVal pl_unroll_product(PlMaker *g, PlVal a, PlVal b, bool ta, bool tb);
/* n values stacked, backwards if `reverse`; PL_NONE means zeros like `like`. */
PlVal pl_unroll_stack(PlMaker *g, const PlVal *v, int64_t n, bool reverse, PlVal like);

#endif
