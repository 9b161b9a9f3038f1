/* SPDX-License-Identifier: MIT
 * Float ops that are not hot: one build, libm's functions in plain loops, f32 through double where libm's
 * float version is weak. f64 versions of functions that only f32 has in vector form (isa/float_f32.c) too. */
#include "kernels/convert.h"
#include "kernels/cpu/elementwise/elementwise_tiles.h"
#include "kernels/cpu/elementwise/special_functions.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/vmath/vmath.h"
#include "kernels/elementwise_codes.h"
#include "kernels/special_formulas.h"

#define IN(T, k) ((const T *)(const void *)ptr[k])
#define ARGS     char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define U1(NAME, T, E)                          \
  static int NAME(ARGS) {                       \
    (void)stride, (void)p;                      \
    PLK_IVDEP for (int64_t i = 0; i < n; i++) { \
      const T x = IN(T, 1)[i];                  \
      ((T *)(void *)ptr[0])[i] = (T)(E);        \
    }                                           \
    return 0;                                   \
  }
#define B1(NAME, T, E)                                      \
  static int NAME(ARGS) {                                   \
    (void)p;                                                \
    const int64_t sx = stride[1] != 0, sy = stride[2] != 0; \
    for (int64_t i = 0; i < n; i++) {                       \
      const T x = IN(T, 1)[i * sx], y = IN(T, 2)[i * sy];   \
      ((T *)(void *)ptr[0])[i] = (T)(E);                    \
    }                                                       \
    return 0;                                               \
  }

/* X(op, expression in float, expression in double) */
#define UNARY(X)                                        \
  X(LGAMMA, plk_log_gamma((double)x), plk_log_gamma(x)) \
  X(DIGAMMA, sf_digamma((double)x), sf_digamma(x))      \
  X(I0, plk_i0((double)x), plk_i0(x))                   \
  X(I0E, plk_i0e((double)x), plk_i0e(x))                \
  X(I1, plk_i1((double)x), plk_i1(x))                   \
  X(I1E, plk_i1e((double)x), plk_i1e(x))                \
  X(ERFCX, plk_erfcx((double)x), plk_erfcx(x))          \
  X(NDTRI, plk_ndtri((double)x), plk_ndtri(x))
#define BINARY(X)                                                        \
  X(NEXTAFTER, nextafterf(x, y), nextafter(x, y))                        \
  X(GAMMAINC, plk_gammainc((double)x, (double)y), plk_gammainc(x, y))    \
  X(GAMMAINCC, plk_gammaincc((double)x, (double)y), plk_gammaincc(x, y)) \
  X(FLOOR_DIVIDE, sf_floor_divide_f32(x, y), sf_floor_divide(x, y))
#define ONLY64(X)         \
  X(ASINH, asinh(x))      \
  X(ACOSH, acosh(x))      \
  X(ERFC, erfc(x))        \
  X(ERFINV, sf_erfinv(x)) \
  X(LOG2, log2(x))        \
  X(LOG10, log10(x))      \
  X(SINC, sf_sinc(x))
#define BINARY64(X) X(POW, pow(x, y))

#define X(NAME, E32, E64) U1(NAME##_f32, float, E32) U1(NAME##_f64, double, E64)
UNARY(X)
#undef X
#define X(NAME, E32, E64) B1(NAME##_f32, float, E32) B1(NAME##_f64, double, E64)
BINARY(X)
#undef X
#define X(NAME, E64) U1(NAME##_f64, double, E64)
ONLY64(X)
#undef X
#define X(NAME, E64) B1(NAME##_f64, double, E64)
BINARY64(X)
#undef X

#define AFTER(NAME, FROM, INFINITE)                                                                   \
  static int NAME(ARGS) {                                                                             \
    (void)p;                                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                 \
      const uint16_t x = stride[1] ? IN(uint16_t, 1)[i] : FROM(*(const float *)(const void *)ptr[1]); \
      const uint16_t y = stride[2] ? IN(uint16_t, 2)[i] : FROM(*(const float *)(const void *)ptr[2]); \
      ((uint16_t *)(void *)ptr[0])[i] = sf_half_after(x, y, INFINITE);                                \
    }                                                                                                 \
    return 0;                                                                                         \
  }
AFTER(after_f16, plk_f32_to_f16, 0x7c00)
AFTER(after_bf16, plk_f32_to_bf16, 0x7f80)
const PlkLoop plk_ew_half_after[2] = {after_f16, after_bf16};

const PlkLoop plk_ew_rare[PLK_NEW][2] = {
#define X(NAME, E32, E64) [PLK_EW_##NAME] = {NAME##_f32, NAME##_f64},
    UNARY(X) BINARY(X)
#undef X
#define X(NAME, E64) [PLK_EW_##NAME] = {NULL, NAME##_f64},
        ONLY64(X) BINARY64(X)
#undef X
};
