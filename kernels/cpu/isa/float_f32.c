/* SPDX-License-Identifier: MIT
 * f32 loops of one ISA level, with the functions that only floats have in vector form; where() by element
 * size and the f16/bf16 converters live here too. */
#include "kernels/convert.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"

#define T              float
#define F(f)           f##_f32
#define K(c)           ((float)(c))
#define vm_largest_f32 3.40282347e38f
#define TABLE          PLK_SUFFIX(plk_ew_f32)
#include "kernels/activation_formulas.h"

#include "kernels/cpu/isa/chunks.h"

#define EXTRA_LOOPS                                                                    \
  TRIG(SIN, VM_TRIG_NEAR_f32, vm_sin_near_f32(x), VM_TRIG_MAX, vm_sin_f32(x), sinf(x)) \
  TRIG(COS, VM_TRIG_NEAR_f32, vm_cos_near_f32(x), VM_TRIG_MAX, vm_cos_f32(x), cosf(x)) \
  TRIG(TAN, VM_TRIG_NEAR_f32, vm_tan_near_f32(x), VM_TRIG_MAX, vm_tan_f32(x), tanf(x)) \
  TRIG(SINC, -1, x, VM_TRIG_MAX / 4.0f, vm_sinc_f32(x), slow_sinc(x))                  \
  U(EXP2, , vm_exp2_f32(x))                                                            \
  U(LOG2, , vm_log2_f32(x))                                                            \
  U(LOG10, , vm_log10_f32(x))                                                          \
  U(LOG1P, , vm_log1p_f32(x))                                                          \
  PAIRS(POW_ANY, 1, vm_pow_f32(x, y), 0.0f)                                            \
  PAIRS(ATAN2, 1, vm_atan2_f32(x, y), 0.0f)                                            \
  PAIRS(HYPOT, 1, vm_hypot_f32(x, y), 0.0f)                                            \
  PAIRS(FMOD, DIVIDES(VM_FMOD_MAX), vm_fmod_f32(x, y), fmodf(x, y))                    \
  PAIRS(REMAINDER, DIVIDES(VM_FMOD_MAX), vm_remainder_f32(x, y), slow_remainder(x, y)) \
  U(ASIN, , vm_asin_f32(x))                                                            \
  U(ACOS, , vm_acos_f32(x))                                                            \
  U(ATAN, , vm_atan_f32(x))                                                            \
  U(SINH, , vm_sinh_f32(x))                                                            \
  U(COSH, , vm_cosh_f32(x))                                                            \
  U(ASINH, , vm_asinh_f32(x))                                                          \
  U(ACOSH, , vm_acosh_f32(x))                                                          \
  U(ATANH, , vm_atanh_f32(x))                                                          \
  U(ERFC, , vm_erfc_f32(x))                                                            \
  U(ERFINV, , vm_erfinv_f32(x))                                                        \
  U(LGAMMA, , vm_lgamma_f32(x))                                                        \
  P1(SIGNBIT, vm_bits_f32(x) >> 31)                                                    \
  WHOLE_POWERS
#define EXTRA_TABLE                                                                                                                \
  [PLK_EW_SIN] = loop_SIN, [PLK_EW_COS] = loop_COS, [PLK_EW_TAN] = loop_TAN, [PLK_EW_SINC] = loop_SINC, [PLK_EW_EXP2] = loop_EXP2, \
  [PLK_EW_LOG2] = loop_LOG2, [PLK_EW_LOG10] = loop_LOG10, [PLK_EW_LOG1P] = loop_LOG1P, [PLK_EW_SIGNBIT] = loop_SIGNBIT,            \
  [PLK_EW_POW] = loop_POW, [PLK_EW_ATAN2] = loop_ATAN2, [PLK_EW_HYPOT] = loop_HYPOT, [PLK_EW_FMOD] = loop_FMOD,                    \
  [PLK_EW_REMAINDER] = loop_REMAINDER, [PLK_EW_ASIN] = loop_ASIN, [PLK_EW_ACOS] = loop_ACOS, [PLK_EW_ATAN] = loop_ATAN,            \
  [PLK_EW_SINH] = loop_SINH, [PLK_EW_COSH] = loop_COSH, [PLK_EW_ASINH] = loop_ASINH, [PLK_EW_ACOSH] = loop_ACOSH,                  \
  [PLK_EW_ATANH] = loop_ATANH, [PLK_EW_ERFC] = loop_ERFC, [PLK_EW_ERFINV] = loop_ERFINV, [PLK_EW_LGAMMA] = loop_LGAMMA,

/* fmod makes the period exact: sin(pi x) has period 2. */
static float slow_sinc(float x) {
  const double a = VM_PI * fmod((double)x, 2.0);
  return (float)(sin(a) / (VM_PI * (double)x));
}

static float slow_remainder(float x, float y) {
  const double m = fmod((double)x, (double)y);
  return (float)(m != 0.0 && (y < 0.0f) != (m < 0.0) ? m + (double)y : m);
}

#include "kernels/cpu/isa/float.h"

#define WHERE(BITS)                                                                               \
  static int where_##BITS(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) { \
    uint##BITS##_t *const o = (uint##BITS##_t *)(void *)ptr[0];                                   \
    const uint8_t *const m = (const uint8_t *)ptr[1];                                             \
    const uint##BITS##_t *const a = (const uint##BITS##_t *)(const void *)ptr[2];                 \
    const uint##BITS##_t *const b = (const uint##BITS##_t *)(const void *)ptr[3];                 \
    (void)stride, (void)p;                                                                        \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                                                   \
      const uint##BITS##_t x = a[i], y = b[i];                                                    \
      o[i] = m[i] ? x : y;                                                                        \
    }                                                                                             \
    return 0;                                                                                     \
  }
WHERE(8) WHERE(16) WHERE(32) WHERE(64) const PlkLoop PLK_SUFFIX(plk_ew_where)[4] = {where_8, where_16, where_32, where_64};

static void f16_load(const uint16_t *in, float *out, int64_t n) { plk_f16_load(in, out, n); }
static void f16_store(const float *in, uint16_t *out, int64_t n) { plk_f16_store(in, out, n); }
static void bf16_load(const uint16_t *in, float *out, int64_t n) { plk_bf16_load(in, out, n); }
static void bf16_store(const float *in, uint16_t *out, int64_t n) { plk_bf16_store(in, out, n); }
const PlkConvert PLK_SUFFIX(plk_convert) = {f16_load, f16_store, bf16_load, bf16_store};
