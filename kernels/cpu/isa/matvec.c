/* SPDX-License-Identifier: MIT
 * A matrix times a vector, compiled once per ISA level: rows times the vector, or rows that the vector weighs. Both
 * add in one order, so that a matrix and its transpose give the same bits: in lanes of T over 4096 terms, then in double.
 * matvec_body.h has the loops. */
#include "kernels/cpu/gemm/matvec.h"
#include "kernels/base.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"

#define T   float
#define SFX f32
#include "kernels/cpu/isa/matvec_body.h"
#undef T
#undef SFX

#define T   double
#define SFX f64
#include "kernels/cpu/isa/matvec_body.h"

extern const PlkMatvecLoops PLK_ISA_NAME(plk_matvec_table);
const PlkMatvecLoops PLK_ISA_NAME(plk_matvec_table) = {dots_f32, weigh_f32, dots_f64, weigh_f64};
