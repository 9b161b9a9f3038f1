/* SPDX-License-Identifier: MIT
 * Mixed precision: inside a region of this thread, ops whose descriptor names a cast get their floating inputs
 * (never f64) in the region's dtype, in f32, or in the widest among them. See docs/design/mixed-precision.md. */
#ifndef PL_ENGINE_CALL_AUTOCAST_H
#define PL_ENGINE_CALL_AUTOCAST_H

#include "engine/tensor/tensor.h"

/* What a region replaced; give it back to pl_autocast_leave. */
typedef struct PlAutocast {
  uint8_t dtype; /* 1 + a PlDtype; 0: off */
  bool cache;
} PlAutocast;

/* Opens a region that casts to `dtype` (f16 or bf16), or with PL_NDTYPE one without casts. With `cache` the casts of
 * leaves that require a gradient are kept until the outermost region ends. */
PlAutocast pl_autocast_enter(PlDtype dtype, bool cache);
void pl_autocast_leave(PlAutocast was);
/* The dtype that the region casts to; PL_NDTYPE outside. */
PlDtype pl_autocast_dtype(void);
/* op with its inputs cast as its descriptor says; called by pl_apply inside regions. */
PlStatus pl_autocast_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* t itself (retained), or its cast to `to`, from the cache where that applies. */
PlStatus pl_autocast_one(PlTensor **out, PlTensor *t, PlDtype to);
void pl_autocast_end(void); /* frees the cache: this thread ends */

#endif
