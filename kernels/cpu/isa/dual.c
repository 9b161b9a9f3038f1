/* SPDX-License-Identifier: MIT
 * Members of the elementwise family with their tangents, one loop each: an input is read once, what value and derivative have in
 * common is computed once. dual_body.h has the formulas. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"
#include "kernels/elementwise_codes.h"

#define vm_largest_f32 3.40282347e38f
#define vm_largest_f64 1.7976931348623157e308

#define T       float
#define F(f)    f##_f32
#define K(c)    ((float)(c))
#define LIBM(g) g##f
#include "kernels/activation_formulas.h"

#include "kernels/cpu/isa/dual_body.h"
#undef T
#undef F
#undef K
#undef LIBM

#define T       double
#define F(f)    f##_f64
#define K(c)    ((double)(c))
#define LIBM(g) g
#include "kernels/activation_formulas.h"

#include "kernels/cpu/isa/dual_body.h"

#define ONE(NAME) [PLK_EW_##NAME] = {{dual_##NAME##_f32}, {dual_##NAME##_f64}},
#define KINDS(NAME, T) \
  { dual_##NAME##_first_##T, dual_##NAME##_second_##T, dual_##NAME##_both_##T, dual_##NAME##_by_##T }
#define BY(NAME)  [PLK_EW_##NAME] = {{[PLK_DUAL_BY] = dual_##NAME##_by_f32}, {[PLK_DUAL_BY] = dual_##NAME##_by_f64}},
#define TWO(NAME) [PLK_EW_##NAME] = {KINDS(NAME, f32), KINDS(NAME, f64)},
const PlkLoop PLK_SUFFIX(plk_ew_dual)[PLK_NEW][2][PLK_DUAL_KINDS] = {
    TWO(ADD) TWO(SUB) TWO(MUL) TWO(DIV) BY(POW) ONE(ABS) ONE(SQUARE) ONE(SQRT) ONE(RSQRT) ONE(RECIPROCAL) ONE(EXP) ONE(LOG) ONE(SIN)
        ONE(COS) ONE(TANH) ONE(SIGMOID) ONE(RELU) ONE(SILU) ONE(GELU) ONE(GELU_TANH)};
