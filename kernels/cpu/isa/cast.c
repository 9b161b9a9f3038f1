/* SPDX-License-Identifier: MIT
 * Copies by element size and casts between dtypes, one ISA level. Integer to integer wraps, float to integer saturates
 * (NaN becomes 0), anything to bool asks whether it differs from 0. f16 and bf16 come as f32 tiles. */
#include "kernels/cpu/isa/table.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define ARGS char *const *ptr, const int64_t *stride, int64_t n, const PlAttrs *p
#define EACH PLK_IVDEP for (int64_t i = 0; i < n; i++)

#define COPY(BITS)                                                        \
  static int copy_##BITS(ARGS) {                                          \
    (void)stride, (void)p;                                                \
    if (ptr[0] != ptr[1]) memcpy(ptr[0], ptr[1], (BITS / 8) * (size_t)n); \
    return 0;                                                             \
  }
COPY(8) COPY(16) COPY(32) COPY(64) const PlkLoop PLK_SUFFIX(plk_ew_copy)[4] = {copy_8, copy_16, copy_32, copy_64};

/* Saturation: TOP is 2^(bits - sign), the first value above the type; BELOW the largest float under it
 * when the type is too wide for the float, else the type's largest value. */
#define SATURATE(name, F, T, BOTTOM, BELOW, TOP, HIGHEST)           \
  static inline T name(F x) {                                       \
    const F a = x == x ? x : (F)0, b = a < (BOTTOM) ? (BOTTOM) : a; \
    const T y = (T)(b > (BELOW) ? (BELOW) : b);                     \
    return b >= (TOP) ? (HIGHEST) : y;                              \
  }
SATURATE(f32_to_i8, float, int8_t, -128.0f, 127.0f, 128.0f, INT8_MAX)
SATURATE(f32_to_i16, float, int16_t, -32768.0f, 32767.0f, 32768.0f, INT16_MAX)
SATURATE(f32_to_i32, float, int32_t, -0x1p31f, 0x1.fffffep30f, 0x1p31f, INT32_MAX)
SATURATE(f32_to_i64, float, int64_t, -0x1p63f, 0x1.fffffep62f, 0x1p63f, INT64_MAX)
SATURATE(f32_to_u8, float, uint8_t, 0.0f, 255.0f, 256.0f, UINT8_MAX)
SATURATE(f64_to_i8, double, int8_t, -128.0, 127.0, 128.0, INT8_MAX)
SATURATE(f64_to_i16, double, int16_t, -32768.0, 32767.0, 32768.0, INT16_MAX)
SATURATE(f64_to_i32, double, int32_t, -0x1p31, 2147483647.0, 0x1p31, INT32_MAX)
SATURATE(f64_to_i64, double, int64_t, -0x1p63, 0x1.fffffffffffffp62, 0x1p63, INT64_MAX)
SATURATE(f64_to_u8, double, uint8_t, 0.0, 255.0, 256.0, UINT8_MAX)

#define CAST(name, S, D, E)                             \
  static int name(ARGS) {                               \
    D *const o = (D *)(void *)ptr[0];                   \
    const S *const a = (const S *)(const void *)ptr[1]; \
    (void)stride, (void)p;                              \
    EACH {                                              \
      const S x = a[i];                                 \
      o[i] = (D)(E);                                    \
    }                                                   \
    return 0;                                           \
  }
#define FROM_FLOAT(S, s)                   \
  CAST(s##_f32, S, float, x)               \
  CAST(s##_f64, S, double, x)              \
  CAST(s##_i8, S, int8_t, s##_to_i8(x))    \
  CAST(s##_i16, S, int16_t, s##_to_i16(x)) \
  CAST(s##_i32, S, int32_t, s##_to_i32(x)) \
  CAST(s##_i64, S, int64_t, s##_to_i64(x)) \
  CAST(s##_u8, S, uint8_t, s##_to_u8(x))   \
  CAST(s##_b, S, uint8_t, x != 0)
#define FROM_INT(S, s)         \
  CAST(s##_f32, S, float, x)   \
  CAST(s##_f64, S, double, x)  \
  CAST(s##_i8, S, int8_t, x)   \
  CAST(s##_i16, S, int16_t, x) \
  CAST(s##_i32, S, int32_t, x) \
  CAST(s##_i64, S, int64_t, x) \
  CAST(s##_u8, S, uint8_t, x)  \
  CAST(s##_b, S, uint8_t, x != 0)
#define FROM_BOOL(S, s)             \
  CAST(s##_f32, S, float, x != 0)   \
  CAST(s##_f64, S, double, x != 0)  \
  CAST(s##_i8, S, int8_t, x != 0)   \
  CAST(s##_i16, S, int16_t, x != 0) \
  CAST(s##_i32, S, int32_t, x != 0) \
  CAST(s##_i64, S, int64_t, x != 0) \
  CAST(s##_u8, S, uint8_t, x != 0)  \
  CAST(s##_b, S, uint8_t, x != 0)

FROM_FLOAT(float, f32)
#if defined(__AVX512F__)
/* The instruction gives INT32_MIN for what does not fit, and for NaN: those from 2^31 on, and NaN, are looked for. */
static int f32_i32_wide(ARGS) {
  int32_t *const o = (int32_t *)(void *)ptr[0];
  const float *const a = (const float *)(const void *)ptr[1];
  int64_t i = 0;
  (void)stride, (void)p;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(a + i);
    __m512i y = _mm512_cvttps_epi32(x);
    const __mmask16 over = _mm512_cmp_ps_mask(x, _mm512_set1_ps(0x1p31f), _CMP_NLT_UQ);
    if (PL_UNLIKELY(over)) {
      y = _mm512_mask_mov_epi32(y, over, _mm512_set1_epi32(INT32_MAX));
      y = _mm512_mask_mov_epi32(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_setzero_si512());
    }
    _mm512_storeu_si512(o + i, y);
  }
  char *const rest[2] = {(char *)(o + i), ptr[1] + i * 4};
  return f32_i32(rest, stride, n - i, p);
}
#define f32_i32 f32_i32_wide
FROM_FLOAT(double, f64)
#else
FROM_FLOAT(double, f64)
/* Runs within 2^31 take the instruction for 32 bits, others the way that looks at each number. */
#define RUNS(name, S, D)                                                                    \
  static int name##_runs(ARGS) {                                                            \
    for (int64_t at = 0; at < n; at += 64) {                                                \
      D *const o = (D *)(void *)ptr[0] + at;                                                \
      const S *const a = (const S *)(const void *)ptr[1] + at;                              \
      char *const run[2] = {(char *)(void *)o, ptr[1] + at * (int64_t)sizeof(S)};           \
      const int64_t m = n - at < 64 ? n - at : 64;                                          \
      int far = 0;                                                                          \
      for (int64_t i = 0; i < m; i++) far |= !((a[i] > (S)-0x1p31f) & (a[i] < (S)0x1p31f)); \
      if (PL_UNLIKELY(far)) name(run, stride, m, p);                                        \
      else PLK_IVDEP for (int64_t i = 0; i < m; i++) o[i] = (D)(int32_t)a[i];               \
    }                                                                                       \
    return 0;                                                                               \
  }
RUNS(f32_i32, float, int32_t)
RUNS(f32_i64, float, int64_t)
RUNS(f64_i32, double, int32_t)
RUNS(f64_i64, double, int64_t)
#define f32_i32 f32_i32_runs
#define f32_i64 f32_i64_runs
#define f64_i32 f64_i32_runs
#define f64_i64 f64_i64_runs
#endif
FROM_INT(int8_t, i8)
FROM_INT(int16_t, i16)
FROM_INT(int32_t, i32)
FROM_INT(int64_t, i64)
FROM_INT(uint8_t, u8)
FROM_BOOL(uint8_t, b)

#define ROW(s) \
  { s##_f32, s##_f64, s##_i8, s##_i16, s##_i32, s##_i64, s##_u8, s##_b }
const PlkLoop PLK_SUFFIX(plk_ew_cast)[PLK_NCAST][PLK_NCAST] = {
    ROW(f32), ROW(f64), ROW(i8), ROW(i16), ROW(i32), ROW(i64), ROW(u8), ROW(b),
};
