/* SPDX-License-Identifier: MIT
 * Codes of 8 bits (kernels/optim_states.h) from and to floats, m <= 256 of them with one largest magnitude. Where the machine has tables in
 * registers the decade comes from one, by the bits of the exponent, with the bits of the formulas. */
#ifndef PL_KERNELS_CPU_ISA_OPTIM_CODED_H
#define PL_KERNELS_CPU_ISA_OPTIM_CODED_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/optim_states.h"

#define CODED static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

/* Decades of what is read, by the lower four bits of the exponent of q + 0.5, which are 14 for q = 0. The one q whose value is 1 is alone
 * with its exponent: what its fraction is multiplied with makes 1, or -1 where its code has a minus. */
#define FRACTION(Q, LOW) (0.9f * (((Q) + 0.5f) / (LOW)) - 0.8f)
#define D(K)             (1e##K##f * 1e-6f)
static const float coded_decades_i8[16] = {D(1), D(2), D(3), D(4), D(5), D(6), -1 / FRACTION(128, 128), 0, 0, 0, 0, 0, 0, 0, 0, D(0)};
static const float coded_decades_u8[16] = {D(0), D(1), D(2), D(3), D(4), D(5), D(6), 0, 0, 0, 0, 0, 0, 0, 0, 1 / FRACTION(1, 1)};
_Static_assert((float)(FRACTION(128, 128) * (1 / FRACTION(128, 128))) == 1.0f, "the largest is its own value");
_Static_assert((float)(FRACTION(1, 1) * (1 / FRACTION(1, 1))) == 1.0f, "the largest is its own value");
#undef D
#undef FRACTION

CODED __m512 coded_part16(__m512i q, __m512 decades) {
  const __m512 x = _mm512_add_ps(_mm512_cvtepi32_ps(q), _mm512_set1_ps(0.5f));
  const __m512i b = _mm512_castps_si512(x);
  const __m512 decade = _mm512_permutexvar_ps(_mm512_srli_epi32(b, 23), decades);
  const __m512i within = _mm512_ternarylogic_epi32(b, _mm512_set1_epi32(0x7FFFFF), _mm512_set1_epi32(0x3F800000), 0xEA); /* a & b | c */
  return _mm512_mul_ps(_mm512_sub_ps(_mm512_mul_ps(_mm512_castsi512_ps(within), _mm512_set1_ps(0.9f)), _mm512_set1_ps(0.8f)), decade);
}
CODED __m512 coded_decoded16(__m128i code, bool has_sign, __m512 decades, __m512 most) {
  if (!has_sign) return _mm512_mul_ps(coded_part16(_mm512_cvtepu8_epi32(code), decades), most);
  const __m512i c = _mm512_cvtepi8_epi32(code);
  const __m512i part = _mm512_castps_si512(coded_part16(_mm512_abs_epi32(c), decades));
  const __m512i with = _mm512_ternarylogic_epi32(part, c, _mm512_set1_epi32(INT32_MIN), 0x78); /* a ^ (b & c) */
  return _mm512_mul_ps(_mm512_castsi512_ps(with), most);
}
CODED void coded_decode(const uint8_t *code, bool has_sign, float *to, int m, float most) {
  const __m512 decades = _mm512_loadu_ps(has_sign ? coded_decades_i8 : coded_decades_u8), by = _mm512_set1_ps(most);
  int j = 0;
  for (; j + 16 <= m; j += 16)
    _mm512_storeu_ps(to + j, coded_decoded16(_mm_loadu_si128((const __m128i *)(const void *)(code + j)), has_sign, decades, by));
  if (j == m) return;
  const __mmask16 some = (__mmask16)((1u << (m - j)) - 1);
  _mm512_mask_storeu_ps(to + j, some, coded_decoded16(_mm_maskz_loadu_epi8(some, code + j), has_sign, decades, by));
}

/* What is written, in nine stages: 0 below the smallest, the decades, 1. Magnitudes from 4^i / 2^23 to four times that have the same four
 * bits of their exponent, i + 4, and one border at most lies among them. */
#define BORDER(S, N)         ((S) == 1 ? PLK_CODED_ZERO(N) : (S) == 8 ? PLK_CODED_ONE(N) : PLK_CODED_BORDER((S) == 8 || (S) == 1 ? 1 : (S)-1, N))
#define OF(S, N, WHAT, LAST) ((S) == 0 ? 0.0f : (S) == 8 ? LAST : WHAT((S) == 0 || (S) == 8 ? 0 : (S)-1, N))
#define IS(X, S, N)          ((X) >= BORDER(S, N))
#define STAGE(X, N)          (IS(X, 1, N) + IS(X, 2, N) + IS(X, 3, N) + IS(X, 4, N) + IS(X, 5, N) + IS(X, 6, N) + IS(X, 7, N) + IS(X, 8, N))
#define FROM(I)              ((float)(1 << 2 * (I)) / 8388608.0f)
#define TABLE(M, ...)                                                                                                             \
  {                                                                                                                               \
    0, 0, 0, 0, M(0, __VA_ARGS__), M(1, __VA_ARGS__), M(2, __VA_ARGS__), M(3, __VA_ARGS__), M(4, __VA_ARGS__), M(5, __VA_ARGS__), \
        M(6, __VA_ARGS__), M(7, __VA_ARGS__), M(8, __VA_ARGS__), M(9, __VA_ARGS__), M(10, __VA_ARGS__), M(11, __VA_ARGS__)        \
  }
#define NEXT(I, N)              BORDER(STAGE(FROM(I), N) + 1, N)
#define BELOW(I, N, WHAT, LAST) OF(STAGE(FROM(I), N), N, WHAT, LAST)
#define ABOVE(I, N, WHAT, LAST) OF(STAGE(FROM(I), N) + 1, N, WHAT, LAST)
#define TABLES(N, LAST)                                                                               \
  {                                                                                                   \
    TABLE(NEXT, N), {TABLE(ABOVE, N, PLK_CODED_SLOPE, 0.0f), TABLE(BELOW, N, PLK_CODED_SLOPE, 0.0f)}, \
        {TABLE(ABOVE, N, PLK_CODED_START, LAST), TABLE(BELOW, N, PLK_CODED_START, LAST)}, {           \
      TABLE(ABOVE, N, PLK_CODED_TOP, LAST), TABLE(BELOW, N, PLK_CODED_TOP, LAST)                      \
    }                                                                                                 \
  }
typedef struct CodedStages {
  float border[16], slope[2][16], start[2][16], top[2][16]; /* from the border on, below it */
} CodedStages;
static const CodedStages coded_stages_i8 = TABLES(1.0f, 128.0f), coded_stages_u8 = TABLES(2.0f, 1.0f);
#undef BORDER
#undef OF
#undef IS
#undef STAGE
#undef FROM
#undef TABLE
#undef NEXT
#undef BELOW
#undef ABOVE
#undef TABLES

CODED __m128i coded_coded16(__m512 x, bool has_sign, const CodedStages *s) {
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
#define TWO(NAME) _mm512_permutex2var_ps(_mm512_loadu_ps(s->NAME[0]), at, _mm512_loadu_ps(s->NAME[1]))
  /* NaN is not above what is zero */
  const __m512 a = _mm512_max_ps(has_sign ? _mm512_abs_ps(x) : x, _mm512_set1_ps(1 / 8388608.0f));
  __m512i at = _mm512_srli_epi32(_mm512_castps_si512(a), 24);
  const __mmask16 above = _mm512_cmp_ps_mask(a, _mm512_permutexvar_ps(at, _mm512_loadu_ps(s->border)), _CMP_GE_OQ);
  at = _mm512_mask_xor_epi32(at, above, at, _mm512_set1_epi32(16)); /* which is set in all that are at least 1 / 2^23 */
  __m512 q = _mm512_min_ps(_mm512_add_ps(_mm512_mul_ps(a, TWO(slope)), TWO(start)), TWO(top));
#undef TWO
  if (has_sign) /* there is no code for -1: the nearest is below it */
    q = _mm512_max_ps(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(q), _mm512_castps_si512(x), sign, 0xF8)),
                      _mm512_set1_ps(-127));
  return _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(q));
}
CODED void coded_encode(const float *x, bool has_sign, uint8_t *to, int m, float part) {
  const CodedStages *s = has_sign ? &coded_stages_i8 : &coded_stages_u8;
  const __m512 by = _mm512_set1_ps(part);
  int j = 0;
  for (; j + 16 <= m; j += 16)
    _mm_storeu_si128((__m128i *)(void *)(to + j), coded_coded16(_mm512_mul_ps(_mm512_loadu_ps(x + j), by), has_sign, s));
  if (j == m) return;
  const __mmask16 some = (__mmask16)((1u << (m - j)) - 1);
  _mm_mask_storeu_epi8(to + j, some, coded_coded16(_mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + j), by), has_sign, s));
}
#elif defined(__AVX2__)
#include <immintrin.h>

/* Decades by the lower three bits of the exponent, which q = 0 shares with the highest: it is made 0. */
#define FRACTION(Q, LOW) (0.9f * (((Q) + 0.5f) / (LOW)) - 0.8f)
#define D(K)             (1e##K##f * 1e-6f)
static const float coded_decades_i8[8] = {D(1), D(2), D(3), D(4), D(5), D(6), -1 / FRACTION(128, 128), D(0)};
static const float coded_decades_u8[8] = {D(0), D(1), D(2), D(3), D(4), D(5), D(6), 1 / FRACTION(1, 1)};
_Static_assert((float)(FRACTION(128, 128) * (1 / FRACTION(128, 128))) == 1.0f, "the largest is its own value");
_Static_assert((float)(FRACTION(1, 1) * (1 / FRACTION(1, 1))) == 1.0f, "the largest is its own value");
#undef D
#undef FRACTION

CODED __m256 coded_decoded8(__m128i code, bool has_sign, __m256 decades, __m256 most) {
  const __m256i c = has_sign ? _mm256_cvtepi8_epi32(code) : _mm256_cvtepu8_epi32(code), q = has_sign ? _mm256_abs_epi32(c) : c;
  const __m256i b = _mm256_castps_si256(_mm256_add_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(0.5f)));
  const __m256 decade = _mm256_permutevar8x32_ps(decades, _mm256_srli_epi32(b, 23));
  const __m256i within = _mm256_or_si256(_mm256_and_si256(b, _mm256_set1_epi32(0x7FFFFF)), _mm256_set1_epi32(0x3F800000));
  __m256 part =
      _mm256_mul_ps(_mm256_sub_ps(_mm256_mul_ps(_mm256_castsi256_ps(within), _mm256_set1_ps(0.9f)), _mm256_set1_ps(0.8f)), decade);
  if (has_sign) part = _mm256_xor_ps(part, _mm256_castsi256_ps(_mm256_and_si256(c, _mm256_set1_epi32(INT32_MIN))));
  part = _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(q, _mm256_setzero_si256())), part);
  return _mm256_mul_ps(part, most);
}
CODED void coded_decode(const uint8_t *code, bool has_sign, float *to, int m, float most) {
  const __m256 decades = _mm256_loadu_ps(has_sign ? coded_decades_i8 : coded_decades_u8), by = _mm256_set1_ps(most);
  int j = 0;
  for (; j + 8 <= m; j += 8)
    _mm256_storeu_ps(to + j, coded_decoded8(_mm_loadl_epi64((const __m128i *)(const void *)(code + j)), has_sign, decades, by));
  if (j == m) return;
  uint8_t last[8] = {0};
  float x[8];
  memcpy(last, code + j, (size_t)(m - j));
  _mm256_storeu_ps(x, coded_decoded8(_mm_loadl_epi64((const __m128i *)(const void *)last), has_sign, decades, by));
  memcpy(to + j, x, (size_t)(m - j) * sizeof *x);
}

/* As plk_coded_i8 and plk_coded_u8: the decade is the number of borders that are not above. */
CODED uint64_t coded_coded8(__m256 x, bool has_sign) {
#define N     (has_sign ? 1.0f : 2.0f)
#define IN(K) _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_set1_ps(PLK_CODED_BORDER(K, N)), _CMP_GE_OQ))
#define OF(WHAT) \
  _mm256_permutevar8x32_ps(_mm256_setr_ps(WHAT(0, N), WHAT(1, N), WHAT(2, N), WHAT(3, N), WHAT(4, N), WHAT(5, N), WHAT(6, N), 0), at)
#define SUM(A, B) _mm256_add_epi32(A, B)
  const __m256 a = has_sign ? _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x) : x;
  const __m256i under = SUM(SUM(SUM(IN(1), IN(2)), SUM(IN(3), IN(4))), SUM(IN(5), IN(6)));
  const __m256i at = _mm256_sub_epi32(_mm256_setzero_si256(), under);
  __m256 q = _mm256_min_ps(_mm256_add_ps(_mm256_mul_ps(a, OF(PLK_CODED_SLOPE)), OF(PLK_CODED_START)), OF(PLK_CODED_TOP));
  q = _mm256_and_ps(q, _mm256_cmp_ps(a, _mm256_set1_ps(PLK_CODED_ZERO(N)), _CMP_GE_OQ));
  const __m256 one = _mm256_cmp_ps(a, _mm256_set1_ps(PLK_CODED_ONE(N)), _CMP_GE_OQ);
  __m256i c;
  if (has_sign) {
    const __m256 minus = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    q = _mm256_blendv_ps(q, _mm256_blendv_ps(_mm256_set1_ps(128), _mm256_set1_ps(127), minus), one);
    c = _mm256_sub_epi32(_mm256_xor_si256(_mm256_cvttps_epi32(q), _mm256_castps_si256(minus)), _mm256_castps_si256(minus));
  } else {
    c = _mm256_cvttps_epi32(_mm256_blendv_ps(q, _mm256_set1_ps(1), one));
  }
#undef N
#undef IN
#undef OF
#undef SUM
  c = _mm256_and_si256(c, _mm256_set1_epi32(0xFF));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
  return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
}
CODED void coded_encode(const float *x, bool has_sign, uint8_t *to, int m, float part) {
  const __m256 by = _mm256_set1_ps(part);
  for (int j = 0; j < m; j += 8) {
    const int k = m - j < 8 ? m - j : 8;
    float last[8] = {0};
    if (k < 8) memcpy(last, x + j, (size_t)k * sizeof *x);
    const uint64_t codes = coded_coded8(_mm256_mul_ps(_mm256_loadu_ps(k < 8 ? last : x + j), by), has_sign);
    if (k < 8) memcpy(to + j, &codes, (size_t)k);
    else memcpy(to + j, &codes, 8);
  }
}
#else
CODED void coded_decode(const uint8_t *code, bool has_sign, float *PL_RESTRICT to, int m, float most) {
  if (has_sign)
    for (int j = 0; j < m; j++) to[j] = plk_decoded_i8((int8_t)code[j]) * most;
  else
    for (int j = 0; j < m; j++) to[j] = plk_decoded_u8(code[j]) * most;
}
CODED void coded_encode(const float *PL_RESTRICT x, bool has_sign, uint8_t *PL_RESTRICT to, int m, float part) {
  int32_t code[PLK_CODED_BLOCK]; /* wide first: sixteen lanes at a time, not a spilled sixty-four */
  if (has_sign)
    for (int j = 0; j < m; j++) code[j] = plk_coded_i8(x[j] * part);
  else
    for (int j = 0; j < m; j++) code[j] = plk_coded_u8(x[j] * part);
  for (int j = 0; j < m; j++) to[j] = (uint8_t)code[j];
}
#endif

static void plk_decode_i8(const uint8_t *code, float *to, int m, float most) { coded_decode(code, true, to, m, most); }
static void plk_decode_u8(const uint8_t *code, float *to, int m, float most) { coded_decode(code, false, to, m, most); }
static void plk_encode_i8(const float *x, uint8_t *to, int m, float part) { coded_encode(x, true, to, m, part); }
static void plk_encode_u8(const float *x, uint8_t *to, int m, float part) { coded_encode(x, false, to, m, part); }
#undef CODED

#endif
