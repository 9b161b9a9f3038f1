/* SPDX-License-Identifier: MIT
 * f64 loops of one ISA level, with the functions of doubles that have vector form. */
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"

#define T              double
#define F(f)           f##_f64
#define K(c)           ((double)(c))
#define vm_largest_f64 1.7976931348623157e308
#define TABLE          PLK_SUFFIX(plk_ew_f64)
#include "kernels/activation_formulas.h"
#include "kernels/cpu/isa/chunks.h"

#define EXTRA_LOOPS                                                                        \
  TRIG(SIN, -1, x, VM_TRIG_MAX, vm_sin_f64(x), sin(x))                                     \
  TRIG(COS, -1, x, VM_TRIG_MAX, vm_cos_f64(x), cos(x))                                     \
  TRIG(TAN, -1, x, VM_TRIG_MAX, vm_tan_f64(x), tan(x))                                     \
  PAIRS(ATAN2, 1, vm_atan2_f64(x, y), 0.0)                                                 \
  PAIRS(HYPOT, 1, vm_hypot_f64(x, y), 0.0)                                                 \
  PAIRS(FMOD, DIVIDES(VM_FMOD_MAX_F64), vm_fmod_f64(x, y), fmod(x, y))                     \
  PAIRS(REMAINDER, DIVIDES(VM_FMOD_MAX_F64), vm_remainder_f64(x, y), slow_remainder(x, y)) \
  U(EXP2, , vm_exp2_f64(x))                                                                \
  U(LOG1P, , vm_log1p_f64(x))                                                              \
  U(ASIN, , vm_asin_f64(x))                                                                \
  U(ACOS, , vm_acos_f64(x))                                                                \
  U(ATAN, , vm_atan_f64(x))                                                                \
  U(SINH, , vm_sinh_f64(x))                                                                \
  U(COSH, , vm_cosh_f64(x))                                                                \
  U(ATANH, , vm_atanh_f64(x))                                                              \
  P1(SIGNBIT, vm_bits_f64(x) >> 63)
#define EXTRA_TABLE                                                                                                                      \
  [PLK_EW_SIN] = loop_SIN, [PLK_EW_COS] = loop_COS, [PLK_EW_TAN] = loop_TAN, [PLK_EW_ATAN2] = loop_ATAN2, [PLK_EW_HYPOT] = loop_HYPOT,   \
  [PLK_EW_FMOD] = loop_FMOD, [PLK_EW_REMAINDER] = loop_REMAINDER, [PLK_EW_EXP2] = loop_EXP2, [PLK_EW_LOG1P] = loop_LOG1P,                \
  [PLK_EW_ASIN] = loop_ASIN, [PLK_EW_ACOS] = loop_ACOS, [PLK_EW_ATAN] = loop_ATAN, [PLK_EW_SINH] = loop_SINH, [PLK_EW_COSH] = loop_COSH, \
  [PLK_EW_ATANH] = loop_ATANH, [PLK_EW_SIGNBIT] = loop_SIGNBIT,

static double slow_remainder(double x, double y) {
  const double m = fmod(x, y);
  return m != 0.0 && (y < 0.0) != (m < 0.0) ? m + y : m;
}

#include "kernels/cpu/isa/float.h"
