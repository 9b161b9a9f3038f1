/* SPDX-License-Identifier: MIT
 * Elementwise loops of integers and bool, one ISA level. Arithmetic wraps: it is done in the unsigned type W.
 * Division and remainder report a zero divisor; the lowest value divided by -1 wraps to itself. */
#include "kernels/cpu/isa/table.h"
#include "kernels/elementwise_codes.h"

#include <float.h>
#include <math.h>

#define ARGS char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define EACH PLK_IVDEP for (int64_t i = 0; i < n; i++)

/* A parameter as an integer in [lo, hi]; fractions are cut off. */
static int64_t int_param(const PlAttrs *a, int k, int64_t otherwise, int64_t lo, int64_t hi) {
  int64_t v = otherwise;
  if (pl_attr_has(a, k)) {
    if ((a->isint >> k) & 1) v = a->v[k].i;
    else if (a->v[k].f >= 0x1p63) v = INT64_MAX;
    else if (a->v[k].f > -0x1p63) v = (int64_t)a->v[k].f; /* NaN fails both tests */
    else v = INT64_MIN;
  }
  return v < lo ? lo : v > hi ? hi : v;
}

/* The least integer that is greater than parameter k, of NaN the least there is; *none: there is no such integer. */
static int64_t int_above(const PlAttrs *a, int k, bool *none) {
  if (!pl_attr_has(a, k) || (a->isint >> k) & 1) {
    const int64_t v = int_param(a, k, 0, INT64_MIN, INT64_MAX);
    *none = v == INT64_MAX;
    return *none ? v : v + 1;
  }
  const double v = floor(a->v[k].f);
  *none = v >= 0x1p63;
  return v >= -0x1p63 && !*none ? (int64_t)v + 1 : INT64_MIN;
}

#define LOOP1(NAME, T, R, E)                            \
  static int NAME(ARGS) {                               \
    R *const o = (R *)(void *)ptr[0];                   \
    const T *const a = (const T *)(const void *)ptr[1]; \
    (void)stride, (void)p;                              \
    EACH {                                              \
      const T x = a[i];                                 \
      (void)x;                                          \
      o[i] = (R)(E);                                    \
    }                                                   \
    return 0;                                           \
  }
/* Two operands, of which one may be a single value. */
#define PAIRS(T, U, ...)                              \
  const T *const a = (const T *)(const void *)ptr[1]; \
  const T *const b = (const T *)(const void *)ptr[2]; \
  if (stride[2] == 0) {                               \
    const U y = (U)*b;                                \
    EACH {                                            \
      const U x = (U)a[i];                            \
      __VA_ARGS__                                     \
    }                                                 \
  } else if (stride[1] == 0) {                        \
    const U x = (U)*a;                                \
    EACH {                                            \
      const U y = (U)b[i];                            \
      __VA_ARGS__                                     \
    }                                                 \
  } else EACH {                                       \
      const U x = (U)a[i], y = (U)b[i];               \
      __VA_ARGS__                                     \
    }
#define LOOP2(NAME, T, R, E)          \
  static int NAME(ARGS) {             \
    R *const o = (R *)(void *)ptr[0]; \
    (void)p;                          \
    PAIRS(T, T, o[i] = (R)(E);)       \
    return 0;                         \
  }
/* Division: a zero divisor is noted and replaced, so the processor never traps. */
#define LOOPD(NAME, T, W, E)                                \
  static int NAME(ARGS) {                                   \
    T *const o = (T *)(void *)ptr[0];                       \
    const T *const a = (const T *)(const void *)ptr[1];     \
    const T *const b = (const T *)(const void *)ptr[2];     \
    const int64_t sa = stride[1] != 0, sb = stride[2] != 0; \
    int bad = 0;                                            \
    (void)p;                                                \
    for (int64_t i = 0; i < n; i++) {                       \
      const T x = a[i * sa], d = b[i * sb];                 \
      bad |= d == 0;                                        \
      const int minus = ISSIGNED(T) && d == (T)-1;          \
      const T y = d == 0 || minus ? (T)1 : d;               \
      o[i] = (T)(E);                                        \
    }                                                       \
    return bad;                                             \
  }
#define ISSIGNED(T) ((T)-1 < (T)1)

/* Everything for one integer type: T, its name N, unsigned W at least as wide as int, bounds LO and HI. */
#define INTEGER(T, N, W, BITS, LO, HI)                                                                       \
  static T power_##N(T base, T e) {                                                                          \
    if (e < 0) return (T)(base == 1 ? 1 : base == (T)-1 ? ((e & 1) ? -1 : 1) : 0);                           \
    W r = 1, b = (W)base;                                                                                    \
    for (W k = (W)e; k != 0; k >>= 1, b *= b)                                                                \
      if (k & 1) r *= b;                                                                                     \
    return (T)r;                                                                                             \
  }                                                                                                          \
  LOOP2(ADD_##N, T, T, (W)x + (W)y)                                                                          \
  LOOP2(SUB_##N, T, T, (W)x - (W)y)                                                                          \
  LOOP2(MUL_##N, T, T, (W)x *(W)y)                                                                           \
  LOOP1(NEG_##N, T, T, (W)0 - (W)x)                                                                          \
  LOOP1(ABS_##N, T, T, x < 0 ? (W)0 - (W)x : (W)x)                                                           \
  LOOP1(SIGN_##N, T, T, (x > 0) - (x < 0))                                                                   \
  LOOP1(SQUARE_##N, T, T, (W)x *(W)x)                                                                        \
  LOOP1(COPY_##N, T, T, x)                                                                                   \
  LOOP1(RELU_##N, T, T, x < 0 ? 0 : x)                                                                       \
  LOOP1(RELU6_##N, T, T, x<0 ? 0 : x> 6 ? 6 : x)                                                             \
  LOOP2(POW_##N, T, T, power_##N(x, y))                                                                      \
  LOOP2(MAXIMUM_##N, T, T, x > y ? x : y)                                                                    \
  LOOP2(MINIMUM_##N, T, T, x < y ? x : y)                                                                    \
  LOOP2(BITWISE_AND_##N, T, T, x &y)                                                                         \
  LOOP2(BITWISE_OR_##N, T, T, x | y)                                                                         \
  LOOP2(BITWISE_XOR_##N, T, T, x ^ y)                                                                        \
  LOOP1(BITWISE_NOT_##N, T, T, ~x)                                                                           \
  static T gcd_##N(T x, T y) {                                                                               \
    W a = x < 0 ? (W)0 - (W)x : (W)x, b = y < 0 ? (W)0 - (W)y : (W)y;                                        \
    while (b != 0) {                                                                                         \
      const W r = a % b;                                                                                     \
      a = b, b = r;                                                                                          \
    }                                                                                                        \
    return (T)a;                                                                                             \
  }                                                                                                          \
  static T lcm_##N(T x, T y) {                                                                               \
    const W a = x < 0 ? (W)0 - (W)x : (W)x, b = y < 0 ? (W)0 - (W)y : (W)y;                                  \
    const W g = (W)gcd_##N(x, y) & (W)(((W)1 << (BITS - 1)) | (((W)1 << (BITS - 1)) - 1));                   \
    if (g == 0) return 0;                                                                                    \
    const T v = (T)(W)(a / g * b);                                                                           \
    return (T)(v < 0 ? (W)0 - (W)v : (W)v);                                                                  \
  }                                                                                                          \
  LOOP2(GCD_##N, T, T, gcd_##N(x, y))                                                                        \
  LOOP2(LCM_##N, T, T, lcm_##N(x, y))                                                                        \
  LOOP2(LSHIFT_##N, T, T, ((y < 0) | (y >= BITS)) ? 0 : (W)x << ((W)y & (BITS - 1)))                         \
  LOOP2(RSHIFT_##N, T, T, ((y < 0) | (y >= BITS)) ? (x < 0 ? -1 : 0) : x >> ((W)y & (BITS - 1)))             \
  LOOPD(TRUNC_DIVIDE_##N, T, W, minus ? (W)0 - (W)x : (W)(x / y))                                            \
  LOOPD(FMOD_##N, T, W, minus ? 0 : x % y)                                                                   \
  LOOPD(FLOOR_DIVIDE_##N, T, W, minus ? (W)0 - (W)x : (W)(x / y) - (W)((x % y != 0) & ((x < 0) != (y < 0)))) \
  LOOPD(REMAINDER_##N, T, W, minus ? 0 : (W)(x % y) + (((x % y != 0) & ((x < 0) != (y < 0))) ? (W)y : 0))    \
  LOOP1(SIGNBIT_##N, T, uint8_t, x < 0)                                                                      \
  COMPARE(T, N)                                                                                              \
  static int CLAMP_##N(ARGS) {                                                                               \
    const T lo = (T)int_param(p, 0, LO, LO, HI), hi = (T)int_param(p, 1, HI, LO, HI);                        \
    T *const o = (T *)(void *)ptr[0];                                                                        \
    const T *const a = (const T *)(const void *)ptr[1];                                                      \
    (void)stride;                                                                                            \
    EACH {                                                                                                   \
      const T x = a[i] < lo ? lo : a[i];                                                                     \
      o[i] = x > hi ? hi : x;                                                                                \
    }                                                                                                        \
    return 0;                                                                                                \
  }                                                                                                          \
  static int HARDTANH_##N(ARGS) {                                                                            \
    PlAttrs q = *p;                                                                                          \
    if (!pl_attr_has(p, 0)) q.set |= 1u, q.isint &= (uint16_t)~1u, q.v[0].f = -1.0;                          \
    if (!pl_attr_has(p, 1)) q.set |= 2u, q.isint &= (uint16_t)~2u, q.v[1].f = 1.0;                           \
    return CLAMP_##N(ptr, stride, n, &q);                                                                    \
  }                                                                                                          \
  static int THRESHOLD_##N(ARGS) {                                                                           \
    bool none;                                                                                               \
    const int64_t above = int_above(p, 0, &none);                                                            \
    const T v = (T)int_param(p, 1, 0, LO, HI);                                                               \
    T *const o = (T *)(void *)ptr[0];                                                                        \
    const T *const a = (const T *)(const void *)ptr[1];                                                      \
    (void)stride;                                                                                            \
    EACH o[i] = (T)((int)none | ((int64_t)a[i] < above) ? v : a[i]);                                         \
    return 0;                                                                                                \
  }                                                                                                          \
  static int ADD_ALPHA_##N(ARGS) {                                                                           \
    const W k = (W)int_param(p, 0, 1, INT64_MIN, INT64_MAX);                                                 \
    T *const o = (T *)(void *)ptr[0];                                                                        \
    PAIRS(T, W, o[i] = (T)(x + k * y);)                                                                      \
    return 0;                                                                                                \
  }                                                                                                          \
  static int ADDCMUL_##N(ARGS) {                                                                             \
    const W k = (W)int_param(p, 0, 1, INT64_MIN, INT64_MAX);                                                 \
    T *const o = (T *)(void *)ptr[0];                                                                        \
    const T *const a = (const T *)(const void *)ptr[1];                                                      \
    const T *const b = (const T *)(const void *)ptr[2];                                                      \
    const T *const c = (const T *)(const void *)ptr[3];                                                      \
    (void)stride;                                                                                            \
    EACH {                                                                                                   \
      const W x = (W)a[i], y = (W)b[i], z = (W)c[i];                                                         \
      o[i] = (T)(x + k * y * z);                                                                             \
    }                                                                                                        \
    return 0;                                                                                                \
  }                                                                                                          \
  static int CLAMP_T_##N(ARGS) {                                                                             \
    T *const o = (T *)(void *)ptr[0];                                                                        \
    const T *const a = (const T *)(const void *)ptr[1];                                                      \
    const T *const b = (const T *)(const void *)ptr[2];                                                      \
    const T *const c = (const T *)(const void *)ptr[3];                                                      \
    (void)stride, (void)p;                                                                                   \
    EACH {                                                                                                   \
      const T x = a[i] < b[i] ? b[i] : a[i];                                                                 \
      o[i] = x > c[i] ? c[i] : x;                                                                            \
    }                                                                                                        \
    return 0;                                                                                                \
  }

/* Predicates; also bool's, whose stored byte may be any value but 0. */
#define COMPARE(T, N)                                     \
  LOOP2(EQ_##N, T, uint8_t, x == y)                       \
  LOOP2(NE_##N, T, uint8_t, x != y)                       \
  LOOP2(LT_##N, T, uint8_t, x < y)                        \
  LOOP2(LE_##N, T, uint8_t, x <= y)                       \
  LOOP2(GT_##N, T, uint8_t, x > y)                        \
  LOOP2(GE_##N, T, uint8_t, x >= y)                       \
  LOOP2(LOGICAL_AND_##N, T, uint8_t, (x != 0) & (y != 0)) \
  LOOP2(LOGICAL_OR_##N, T, uint8_t, (x != 0) | (y != 0))  \
  LOOP2(LOGICAL_XOR_##N, T, uint8_t, (x != 0) ^ (y != 0)) \
  LOOP1(LOGICAL_NOT_##N, T, uint8_t, x == 0)              \
  LOOP1(FALSE_##N, T, uint8_t, 0)                         \
  LOOP1(TRUE_##N, T, uint8_t, 1)

INTEGER(int8_t, i8, uint32_t, 8, INT8_MIN, INT8_MAX)
INTEGER(int16_t, i16, uint32_t, 16, INT16_MIN, INT16_MAX)
INTEGER(int32_t, i32, uint32_t, 32, INT32_MIN, INT32_MAX)
INTEGER(int64_t, i64, uint64_t, 64, INT64_MIN, INT64_MAX)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtype-limits" /* x < 0 of an unsigned x */
INTEGER(uint8_t, u8, uint32_t, 8, 0, UINT8_MAX)
#pragma GCC diagnostic pop

COMPARE(uint8_t, b)
LOOP1(COPY_b, uint8_t, uint8_t, x)
LOOP2(OR_b, uint8_t, uint8_t, (x | y) != 0)
LOOP2(AND_b, uint8_t, uint8_t, (x != 0) & (y != 0))
LOOP2(XOR_b, uint8_t, uint8_t, (x != 0) ^ (y != 0))
LOOP1(NOT_b, uint8_t, uint8_t, x == 0)
LOOP2(POW_b, uint8_t, uint8_t, (y == 0) | (x != 0))
static int CLAMP_T_b(ARGS) { /* x, min, max */
  const uint8_t *const a = (const uint8_t *)ptr[1], *const b = (const uint8_t *)ptr[2];
  const uint8_t *const c = (const uint8_t *)ptr[3];
  (void)stride, (void)p;
  EACH((uint8_t *)ptr[0])[i] = (uint8_t)(((a[i] | b[i]) != 0) & (c[i] != 0));
  return 0;
}

#define INTS(op, f)    [PLK_EW_##op] = {f##_i8, f##_i16, f##_i32, f##_i64, f##_u8, NULL},
#define ALL(op, f, fb) [PLK_EW_##op] = {f##_i8, f##_i16, f##_i32, f##_i64, f##_u8, fb},
/* clang-format off */
const PlkLoop PLK_SUFFIX(plk_ew_int)[PLK_NEW][PLK_NINT] = {
    ALL(ADD, ADD, OR_b) INTS(SUB, SUB) ALL(MUL, MUL, AND_b) INTS(ADD_ALPHA, ADD_ALPHA)
    INTS(NEG, NEG) ALL(ABS, ABS, COPY_b) ALL(SIGN, SIGN, COPY_b) ALL(SQUARE, SQUARE, COPY_b)
    ALL(POW, POW, POW_b) INTS(FMOD, FMOD) INTS(REMAINDER, REMAINDER)
    INTS(FLOOR_DIVIDE, FLOOR_DIVIDE) INTS(TRUNC_DIVIDE, TRUNC_DIVIDE)
    ALL(MAXIMUM, MAXIMUM, OR_b) ALL(MINIMUM, MINIMUM, AND_b)
    ALL(FMAX, MAXIMUM, OR_b) ALL(FMIN, MINIMUM, AND_b)
    INTS(CLAMP, CLAMP) ALL(CLAMP_T, CLAMP_T, CLAMP_T_b) INTS(ADDCMUL, ADDCMUL)
    INTS(FLOOR, COPY) INTS(CEIL, COPY) INTS(TRUNC, COPY) INTS(ROUND, COPY)
    ALL(NAN_TO_NUM, COPY, COPY_b)
    INTS(GCD, GCD) INTS(LCM, LCM)
    ALL(BITWISE_AND, BITWISE_AND, AND_b) ALL(BITWISE_OR, BITWISE_OR, OR_b)
    ALL(BITWISE_XOR, BITWISE_XOR, XOR_b) ALL(BITWISE_NOT, BITWISE_NOT, NOT_b)
    INTS(BITWISE_LEFT_SHIFT, LSHIFT) INTS(BITWISE_RIGHT_SHIFT, RSHIFT)
    ALL(EQ, EQ, EQ_b) ALL(NE, NE, NE_b) ALL(LT, LT, LT_b) ALL(LE, LE, LE_b)
    ALL(GT, GT, GT_b) ALL(GE, GE, GE_b)
    ALL(LOGICAL_AND, LOGICAL_AND, LOGICAL_AND_b) ALL(LOGICAL_OR, LOGICAL_OR, LOGICAL_OR_b)
    ALL(LOGICAL_XOR, LOGICAL_XOR, LOGICAL_XOR_b) ALL(LOGICAL_NOT, LOGICAL_NOT, LOGICAL_NOT_b)
    ALL(ISNAN, FALSE, FALSE_b) ALL(ISINF, FALSE, FALSE_b) ALL(ISFINITE, TRUE, TRUE_b)
    ALL(SIGNBIT, SIGNBIT, FALSE_b)
    INTS(RELU, RELU) INTS(RELU6, RELU6) INTS(HARDTANH, HARDTANH) INTS(THRESHOLD, THRESHOLD)
};
/* clang-format on */
