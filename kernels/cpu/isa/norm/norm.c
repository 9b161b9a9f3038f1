/* SPDX-License-Identifier: MIT
 * Inner loops of normalization over one contiguous row, compiled once per ISA level. A row is read from memory once and
 * stays in the first cache for the further passes. norm_body.h has the loops; here they are made for float and double. */
#include <math.h>

#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/norm/row_sums.h"
#include "kernels/cpu/loops.h"

#define T   float
#define SFX f32
#include "kernels/cpu/isa/norm/norm_body.h"
#undef T
#undef SFX

#define T   double
#define SFX f64
#include "kernels/cpu/isa/norm/norm_body.h"

#define TABLE(s) moments_##s, norm_##s, norm_bwd_##s, dots_##s, affine_##s, affine2_##s
extern const PlkNormLoops PLK_ISA_NAME(plk_norm_table);
const PlkNormLoops PLK_ISA_NAME(plk_norm_table) = {TABLE(f32), TABLE(f64)};
