/* SPDX-License-Identifier: MIT
 * f32 loops of one ISA level, with the functions that only floats have in vector form; where() by element
 * size and the f16/bf16 converters live here too. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath.h"

#define T float
#define F(f) f##_f32
#define K(c) ((float)(c))
#define vm_largest_f32 3.40282347e38f
#define TABLE PLK_SUFFIX(plk_ew_f32)
#include "kernels/cpu/isa/activation.h"

/* Sine and its kin: runs of 512 whose magnitudes all stay below `limit` take the vector code; in other
 * runs each element takes the way its own magnitude says, so the result never depends on neighbours. */
#define TRIG(NAME, limit, FAST, SLOW)                                                   \
  static int loop_##NAME(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) { \
    (void)stride, (void)p;                                                              \
    for (int64_t at = 0; at < n; at += 512) {                                           \
      float *const o = (float *)(void *)ptr[0] + at;                                    \
      const float *const a = (const float *)(const void *)ptr[1] + at;                  \
      const int64_t m = n - at < 512 ? n - at : 512;                                    \
      uint32_t big = 0;                                                                 \
      for (int64_t i = 0; i < m; i++) big |= (uint32_t) !(vm_abs_f32(a[i]) <= (limit)); \
      if (!big) {                                                                       \
        PLK_IVDEP for (int64_t i = 0; i < m; i++) {                                     \
          const float x = a[i];                                                         \
          o[i] = (FAST);                                                                \
        }                                                                               \
      } else {                                                                          \
        for (int64_t i = 0; i < m; i++) {                                               \
          const float x = a[i];                                                         \
          o[i] = vm_abs_f32(x) <= (limit) ? (FAST) : (SLOW);                            \
        }                                                                               \
      }                                                                                 \
    }                                                                                   \
    return 0;                                                                           \
  }
/* The same for two operands, where FITS says which elements the vector code is for. A single value is spread out:
 * as a constant of the loop it would make compilers split the loop rather than vectorize it. */
#define PAIRS(NAME, FITS, FAST, SLOW)                                                   \
  static int loop_##NAME(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) { \
    float xs[256], ys[256];                                                             \
    const float *const px = (const float *)(const void *)ptr[1], *const py = (const float *)(const void *)ptr[2]; \
    (void)p;                                                                            \
    for (int i = 0; i < 256 && stride[1] == 0; i++) xs[i] = *px;                        \
    for (int i = 0; i < 256 && stride[2] == 0; i++) ys[i] = *py;                        \
    for (int64_t at = 0; at < n; at += 256) {                                           \
      float *const o = (float *)(void *)ptr[0] + at;                                    \
      const float *const a = stride[1] ? px + at : xs, *const b = stride[2] ? py + at : ys; \
      const int64_t m = n - at < 256 ? n - at : 256;                                    \
      uint32_t other = 0;                                                               \
      for (int64_t i = 0; i < m; i++) {                                                 \
        const float x = a[i], y = b[i];                                                 \
        (void)x, (void)y;                                                               \
        other |= (uint32_t) !(FITS);                                                    \
      }                                                                                 \
      if (!other) {                                                                     \
        PLK_IVDEP for (int64_t i = 0; i < m; i++) {                                     \
          const float x = a[i], y = b[i];                                               \
          o[i] = (FAST);                                                                \
        }                                                                               \
      } else {                                                                          \
        for (int64_t i = 0; i < m; i++) {                                               \
          const float x = a[i], y = b[i];                                               \
          o[i] = (FITS) ? (FAST) : (SLOW);                                              \
        }                                                                               \
      }                                                                                 \
    }                                                                                   \
    return 0;                                                                           \
  }
#define DIVIDES                                                                         \
  ((vm_abs_f32(y) > 0.0f) & (vm_abs_f32(y) <= 3.40282347e38f) &                         \
   ((double)vm_abs_f32(x) <= VM_FMOD_MAX * (double)vm_abs_f32(y)))
#define EXTRA_LOOPS                                                              \
  TRIG(SIN, VM_TRIG_MAX, vm_sin_f32(x), sinf(x))                                 \
  TRIG(COS, VM_TRIG_MAX, vm_cos_f32(x), cosf(x))                                 \
  TRIG(TAN, VM_TRIG_MAX, vm_tan_f32(x), tanf(x))                                 \
  TRIG(SINC, VM_TRIG_MAX / 4.0f, vm_sinc_f32(x), slow_sinc(x))                   \
  U(EXP2, , vm_exp2_f32(x))                                                      \
  U(LOG2, , vm_log2_f32(x))                                                      \
  U(LOG10, , vm_log10_f32(x))                                                    \
  U(LOG1P, , vm_log1p_f32(x))                                                    \
  PAIRS(POW, 1, vm_pow_f32(x, y), 0.0f)                                          \
  PAIRS(ATAN2, 1, vm_atan2_f32(x, y), 0.0f)                                      \
  PAIRS(HYPOT, 1, vm_hypot_f32(x, y), 0.0f)                                      \
  PAIRS(FMOD, DIVIDES, vm_fmod_f32(x, y), fmodf(x, y))                           \
  PAIRS(REMAINDER, DIVIDES, vm_remainder_f32(x, y), slow_remainder(x, y))        \
  U(ASIN, , vm_asin_f32(x))                                                      \
  U(ACOS, , vm_acos_f32(x))                                                      \
  U(ATAN, , vm_atan_f32(x))                                                      \
  U(SINH, , vm_sinh_f32(x))                                                      \
  U(COSH, , vm_cosh_f32(x))                                                      \
  U(ASINH, , vm_asinh_f32(x))                                                    \
  U(ACOSH, , vm_acosh_f32(x))                                                    \
  U(ATANH, , vm_atanh_f32(x))                                                    \
  U(ERFC, , vm_erfc_f32(x))                                                      \
  U(ERFINV, , vm_erfinv_f32(x))                                                  \
  P1(SIGNBIT, vm_bits_f32(x) >> 31)
#define EXTRA_TABLE                                                              \
  [PLK_EW_SIN] = loop_SIN, [PLK_EW_COS] = loop_COS, [PLK_EW_TAN] = loop_TAN,     \
  [PLK_EW_SINC] = loop_SINC, [PLK_EW_EXP2] = loop_EXP2, [PLK_EW_LOG2] = loop_LOG2, \
  [PLK_EW_LOG10] = loop_LOG10, [PLK_EW_LOG1P] = loop_LOG1P, [PLK_EW_SIGNBIT] = loop_SIGNBIT, \
  [PLK_EW_POW] = loop_POW, [PLK_EW_ATAN2] = loop_ATAN2, [PLK_EW_HYPOT] = loop_HYPOT, \
  [PLK_EW_FMOD] = loop_FMOD, [PLK_EW_REMAINDER] = loop_REMAINDER, [PLK_EW_ASIN] = loop_ASIN, \
  [PLK_EW_ACOS] = loop_ACOS, [PLK_EW_ATAN] = loop_ATAN, [PLK_EW_SINH] = loop_SINH, \
  [PLK_EW_COSH] = loop_COSH, [PLK_EW_ASINH] = loop_ASINH, [PLK_EW_ACOSH] = loop_ACOSH, \
  [PLK_EW_ATANH] = loop_ATANH, [PLK_EW_ERFC] = loop_ERFC, [PLK_EW_ERFINV] = loop_ERFINV,

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

#define WHERE(BITS)                                                                      \
  static int where_##BITS(char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p) { \
    uint##BITS##_t *const o = (uint##BITS##_t *)(void *)ptr[0];                          \
    const uint8_t *const m = (const uint8_t *)ptr[1];                                    \
    const uint##BITS##_t *const a = (const uint##BITS##_t *)(const void *)ptr[2];        \
    const uint##BITS##_t *const b = (const uint##BITS##_t *)(const void *)ptr[3];        \
    (void)stride, (void)p;                                                               \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) {                                          \
      const uint##BITS##_t x = a[i], y = b[i];                                           \
      o[i] = m[i] ? x : y;                                                               \
    }                                                                                    \
    return 0;                                                                            \
  }
WHERE(8) WHERE(16) WHERE(32) WHERE(64)
const PlkLoop PLK_SUFFIX(plk_ew_where)[4] = {where_8, where_16, where_32, where_64};

static void f16_load(const uint16_t *in, float *out, int64_t n) { plk_f16_load(in, out, n); }
static void f16_store(const float *in, uint16_t *out, int64_t n) { plk_f16_store(in, out, n); }
static void bf16_load(const uint16_t *in, float *out, int64_t n) { plk_bf16_load(in, out, n); }
static void bf16_store(const float *in, uint16_t *out, int64_t n) { plk_bf16_store(in, out, n); }
const PlkConvert PLK_SUFFIX(plk_convert) = {f16_load, f16_store, bf16_load, bf16_store};
