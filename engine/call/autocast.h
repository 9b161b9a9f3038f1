/* SPDX-License-Identifier: MIT
 * Mixed precision: inside a region of this thread, ops whose descriptor names a cast get their floating inputs
 * (never f64) in the region's dtype, in f32, or in the widest among them. See docs/design/mixed-precision.md. */
#ifndef PL_ENGINE_CALL_AUTOCAST_H
#define PL_ENGINE_CALL_AUTOCAST_H

#include "engine/tensor/hooks.h"

/* The region that is open. */
typedef struct PlAutocast {
  uint8_t dtype; /* 1 + a PlDtype; 0: no casts */
  bool cache;    /* casts of leaves that require a gradient are kept until the outermost region ends */
  int16_t depth; /* regions around this one, itself included; 0: none is open */
} PlAutocast;

PlAutocast pl_autocast_now(void);
/* Opens, leaves or changes the region of this thread: what pl_autocast_now gave before ends the region again. At depth 0 kept
 * casts are freed. dtype: of f16 and bf16. */
void pl_autocast_set(PlAutocast region);
/* The dtype that the region casts to; PL_NDTYPE outside. */
PlDtype pl_autocast_dtype(void);
/* op with its inputs cast as its descriptor says; called by pl_apply inside regions. */
PlStatus pl_autocast_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* t itself (retained), or its cast to `to`, from the cache where that applies. */
PlStatus pl_autocast_one(PlTensor **out, PlTensor *t, PlDtype to);

#endif
