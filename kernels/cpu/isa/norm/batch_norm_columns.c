/* SPDX-License-Identifier: MIT
 * Batch norm of x[N, C]: all columns of a tile at once, n rows that are ld apart; compiled once per ISA level. Sums run in
 * T over 32 rows, then in double; batch_norm_columns_body.h has the loops. */
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

#define T   float
#define SFX f32
#include "kernels/cpu/isa/norm/batch_norm_columns_body.h"
#undef T
#undef SFX

#define T   double
#define SFX f64
#include "kernels/cpu/isa/norm/batch_norm_columns_body.h"

extern const PlkNormColumns PLK_ISA_NAME(plk_norm_columns);
const PlkNormColumns PLK_ISA_NAME(plk_norm_columns) = {sum_f32, sqdiff_f32, dots_f32, affine_f32, affine2_f32,
                                                       sum_f64, sqdiff_f64, dots_f64, affine_f64, affine2_f64};
