/* SPDX-License-Identifier: MIT
 * Inner loops of batch norm over one channel of x[N,C,S], compiled once per ISA level: `runs` runs of n numbers,
 * `step` apart. batch_norm_body.h has the loops; here they are made for float and double. */
#include "kernels/base.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

#define T   float
#define SFX f32
#include "kernels/cpu/isa/norm/batch_norm_body.h"
#undef T
#undef SFX

#define T   double
#define SFX f64
#include "kernels/cpu/isa/norm/batch_norm_body.h"

#define TABLE(s) sum_##s, sqdiff_##s, dots_##s, affine_##s, affine2_##s
extern const PlkChannelLoops PLK_ISA_NAME(plk_channel_table);
const PlkChannelLoops PLK_ISA_NAME(plk_channel_table) = {TABLE(f32), TABLE(f64)};
