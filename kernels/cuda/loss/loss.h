/* SPDX-License-Identifier: MIT
 * Sums over rows for losses: parts by fixed chunks, then one block, all in double. */
#ifndef PL_KERNELS_CUDA_LOSS_LOSS_H
#define PL_KERNELS_CUDA_LOSS_LOSS_H

#include "kernels/cuda/any_dtype.h"

enum { PLC_LOSS_PARTS = 256 };

/* What becomes of the sums of a and b (b NULL: 0): */
typedef enum PlcLossEnd {
  PLC_LOSS_SUM,   /* y = Σa / divisor */
  PLC_LOSS_RATIO, /* y = Σa / Σb */
  PLC_LOSS_SCALE  /* y = factor[0] / Σb (factor NULL: 1) */
} PlcLossEnd;
/* a, b: n doubles on the device; y: one number of any floating dtype. part: 2 PLC_LOSS_PARTS doubles. */
PlStatus plc_loss_end(PlcLossEnd end, int64_t n, const double *a, const double *b, double divisor, plc_numbers factor, double *part,
                      plc_numbers y);

#endif
