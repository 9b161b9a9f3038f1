/* SPDX-License-Identifier: MIT
 * Elementwise calls whose operands are not all laid out as loops want them, cut into tiles: loops only know contiguous runs, and
 * one value for stride 0. */
#ifndef PL_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_TILES_H
#define PL_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_TILES_H

#include "kernels/cpu/isa/table.h"
#include "kernels/elementwise_codes.h"

enum {
  PLK_EW_DIRECT = 16384 /* elements of a tile that reads and writes in place, and of a parallel block */
};

typedef struct PlkEwCall {
  const PlkCall *call;
  const PlkIsa *isa;
  PlkLoop loop;
  const PlAttrs *attrs;
  bool one_value; /* the loop takes stride 0 */
  bool stored;    /* and halves as they are */
  int64_t serial; /* one thread below so many elements */
} PlkEwCall;
PlStatus plk_ew_tiles(const PlkEwCall *e);

/* One value of x, at `at`, as loops that take halves as they are stored want it: a float, which a half becomes in `room`. */
const char *plk_ew_one(const PlArray *x, const char *at, float *room);

/* nextafter of f16 and of bf16 as they are stored, at every processor level: what a loop over f32 cannot know. */
extern const PlkLoop plk_ew_half_after[2];

/* What a loop that returns 1 has met. */
PlStatus plk_ew_failed(const char *name);

#endif
