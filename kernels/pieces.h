/* SPDX-License-Identifier: MIT
 * Kernels whose results are sums over all rows, run on some rows at a time. The bits are those of one call on everything:
 * such kernels cut their rows into grains, add each grain up in order and then the grains. */
#ifndef PL_KERNELS_PIECES_H
#define PL_KERNELS_PIECES_H

#include "kernels/kernel.h"

typedef struct PlkPieces {
  int64_t rows, cols; /* of everything */
  int64_t grain;      /* elements that one thread must take in order */
  int64_t unit;       /* rows of a piece are a multiple of this, at the end of a grain apart */
  size_t shared;      /* bytes for what grains come to, kept until the end */
  size_t local;       /* bytes of a thread, kept from piece to piece */
  int note;           /* the plan's, for pieces, which do not see the sums */
} PlkPieces;

typedef struct PlkPiecewise {
  /* From rows and cols and the arrays of the whole call, whose data is not there yet; false: not in pieces. */
  bool (*plan)(const PlkCall *whole, PlkPieces *p);
  /* Elements at … of a grain; the arrays are windows on them, outputs that are sums NULL. */
  PlStatus (*piece)(const PlkCall *call, const PlkPieces *p, int64_t at, void *shared, void *local);
  /* The sums, in the whole call's outputs; others are not looked at. */
  PlStatus (*end)(const PlkCall *whole, const PlkPieces *p, void *shared);
} PlkPiecewise;

/* sum, mean, sum_to: of columns if the output has p->cols elements, else of everything. f32 and f64. */
extern const PlkPiecewise plk_cpu_sum_pieces;
/* layer_norm_bwd, rms_norm_bwd: dw and db. */
extern const PlkPiecewise plk_cpu_layer_norm_bwd_pieces;

#endif
