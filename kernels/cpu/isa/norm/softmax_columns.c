/* SPDX-License-Identifier: MIT
 * Softmax down columns: n rows of `cols` numbers that are ld apart, all columns at once, so that memory is read in
 * order. Compiled once per ISA level; softmax_columns_body.h has the loops. */
#include <math.h>

#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

#define T    float
#define SFX  f32
#define EXPF vm_exp_f32
#include "kernels/cpu/isa/norm/softmax_columns_body.h"
#undef T
#undef SFX
#undef EXPF

#define T    double
#define SFX  f64
#define EXPF vm_exp_f64
#include "kernels/cpu/isa/norm/softmax_columns_body.h"

extern const PlkSoftmaxColumns PLK_ISA_NAME(plk_softmax_columns);
const PlkSoftmaxColumns PLK_ISA_NAME(plk_softmax_columns) = {lse_f32,     forward_f32,  backward_f32, exp_f32,  dual_f32, lse_f64,
                                                             forward_f64, backward_f64, exp_f64,      dual_f64, join_f32, join_f64};
