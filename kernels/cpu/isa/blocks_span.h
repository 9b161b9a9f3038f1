/* SPDX-License-Identifier: MIT
 * Rows of blocks as spans, for isa/blocks.c: w[i] = scale[i / 16] (q[i] - zero) - min[i / 16], where zero is a number of the format's, q
 * is unsigned or, of formats whose zero is SIGNED, has a sign; the last term is only there of formats whose zero is MIN. The formats are
 * described in kernels/cpu/blocks/small.c and super.c. */
#ifndef PL_KERNELS_CPU_ISA_BLOCKS_SPAN_H
#define PL_KERNELS_CPU_ISA_BLOCKS_SPAN_H

#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/blocks/loops.h"
#if defined(__SSSE3__)
#include <immintrin.h>
#endif

enum { MIN = 0, SIGNED = -1 };

#define INLINE static inline __attribute__((always_inline))

typedef struct Span {
  _Alignas(64) uint8_t q[PLK_SPAN];
  _Alignas(64) float scale[PLK_SPAN_PARTS];
  _Alignas(64) float min[PLK_SPAN_PARTS];
} Span;

INLINE float half(const uint8_t *p) {
  uint16_t h = (uint16_t)(p[0] | p[1] << 8);
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return plk_f16_to_f32(h);
#endif
}

/* ---- blocks of 32: n of them, 8 unless the row ends ------------------------------------------------------------------------ */

#define SMALL(name) INLINE void span_##name(const uint8_t *b, int n, Span *s)

/* What is read as one vector must be written as one: two halves of it would have to reach the cache first. */
#if defined(__AVX512BW__)
/* 32 bytes twice, the pairs of the first half shifted right by low, of the second by high. */
INLINE __m512i twice(const uint8_t *p, int low, int high) {
  const __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
  return _mm512_srlv_epi16(v, _mm512_inserti64x4(_mm512_set1_epi16((int16_t)low), _mm256_set1_epi16((int16_t)high), 1));
}
INLINE __m512i both(const uint8_t *low, const uint8_t *high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)low)), _mm256_loadu_si256((const void *)high), 1);
}
/* v, and `more` added where the bit of that number is set in one of 32 bytes, in the first half bit k, in the second k + 1. */
INLINE __m512i plus_bits(__m512i v, const uint8_t *bits, int k, int more) {
  const __m512i at = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << k)), _mm256_set1_epi8((char)(2 << k)), 1);
  return _mm512_mask_add_epi8(v, _mm512_test_epi8_mask(_mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)bits)), at), v,
                              _mm512_set1_epi8((char)more));
}
INLINE __m512i low_bits(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8((char)mask)); }
INLINE void put(Span *s, int at, __m512i v) { _mm512_store_si512(s->q + at, v); }
/* d times whole numbers of 8 bits with a sign. */
INLINE void put_scales(Span *s, float d, __m128i v) {
  _mm512_store_ps(s->scale, _mm512_mul_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v))));
}
#endif

/* The halves at b, b + bytes …, each for two parts. */
INLINE void halves(const uint8_t *b, int bytes, int n, float *out) {
#if defined(__F16C__)
  if (n == 8) {
    uint64_t h[2] = {0, 0};
    for (int i = 0; i < 8; i++) h[i / 4] |= (uint64_t)(b[i * bytes] | b[i * bytes + 1] << 8) << (i % 4 * 16);
    const __m256 d = _mm256_cvtph_ps(_mm_set_epi64x((int64_t)h[1], (int64_t)h[0]));
#if defined(__AVX512BW__)
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    _mm512_store_ps(out, _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d)));
    return;
#endif
    const __m256 low = _mm256_unpacklo_ps(d, d), high = _mm256_unpackhi_ps(d, d);
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, high, 0x31));
    return;
  }
#endif
  for (int i = 0; i < n; i++) out[2 * i] = out[2 * i + 1] = half(b + i * bytes);
}
INLINE void negated(float *x) {
  for (int p = 0; p < PLK_SPAN_PARTS; p++) x[p] = -x[p];
}

/* The 4 bits of 32 elements, as they are or by a table of what they stand for. */
INLINE void nibbles(const uint8_t *p, const int8_t *table, uint8_t *q) {
#if defined(__AVX2__)
  const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
  __m256i u = _mm256_and_si256(_mm256_blend_epi32(v, _mm256_srli_epi16(v, 4), 0xf0), _mm256_set1_epi8(15));
  if (table) u = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table)), u);
  _mm256_storeu_si256((void *)q, u);
#else
  for (int j = 0; j < 16; j++) q[j] = (uint8_t)(table ? table[p[j] & 15] : p[j] & 15);
  for (int j = 0; j < 16; j++) q[16 + j] = (uint8_t)(table ? table[p[j] >> 4] : p[j] >> 4);
#endif
}
/* Those of n blocks, of which they are `at` bytes from the beginning. */
INLINE void all_nibbles(const uint8_t *b, int at, int bytes, int n, const int8_t *table, Span *s) {
  int i = 0;
#if defined(__AVX512BW__)
  for (; i + 2 <= n; i += 2) { /* bytes of the first block twice, then of the second */
    const uint8_t *p = b + at + i * bytes;
    const __m256i two =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)p)), _mm_loadu_si128((const void *)(p + bytes)), 1);
    const __m512i v = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(two));
    const __m512i by = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0);
    __m512i u = _mm512_and_si512(_mm512_srlv_epi16(v, by), _mm512_set1_epi8(15));
    if (table) u = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table)), u);
    put(s, 32 * i, u);
  }
#endif
  for (; i < n; i++) nibbles(b + at + i * bytes, table, s->q + 32 * i);
}
/* The fifth bit of n blocks, of which they are `at` bytes from the beginning. */
INLINE void all_fifths(const uint8_t *b, int at, int bytes, int n, Span *s) {
  int i = 0;
#if defined(__AVX512BW__)
  for (; i + 2 <= n; i += 2) {
    uint32_t low, high;
    memcpy(&low, b + at + i * bytes, 4);
    memcpy(&high, b + at + (i + 1) * bytes, 4);
    const __m512i v = _mm512_loadu_si512(s->q + 32 * i);
    put(s, 32 * i, _mm512_mask_add_epi8(v, (uint64_t)high << 32 | low, v, _mm512_set1_epi8(16)));
  }
#elif defined(__AVX2__)
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
  for (; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, b + at + i * bytes, 4);
    const __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)bits), spread), bit);
    const __m256i set = _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
    _mm256_storeu_si256((void *)(s->q + 32 * i), _mm256_or_si256(_mm256_loadu_si256((const void *)(s->q + 32 * i)), set));
  }
#endif
  for (; i < n; i++)
    for (int j = 0; j < 32; j++) s->q[32 * i + j] = (uint8_t)(s->q[32 * i + j] | (b[at + i * bytes + j / 8] >> (j % 8) & 1) << 4);
}

static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

SMALL(q4_0) {
  all_nibbles(b, 2, 18, n, NULL, s);
  halves(b, 18, n, s->scale);
}
SMALL(q4_1) {
  all_nibbles(b, 4, 20, n, NULL, s);
  halves(b, 20, n, s->scale);
  halves(b + 2, 20, n, s->min);
  negated(s->min);
}
SMALL(q5_0) {
  all_nibbles(b, 6, 22, n, NULL, s);
  all_fifths(b, 2, 22, n, s);
  halves(b, 22, n, s->scale);
}
SMALL(q5_1) {
  all_nibbles(b, 8, 24, n, NULL, s);
  all_fifths(b, 4, 24, n, s);
  halves(b, 24, n, s->scale);
  halves(b + 2, 24, n, s->min);
  negated(s->min);
}
SMALL(q8_0) {
  int i = 0;
#if defined(__AVX512BW__)
  for (; i + 2 <= n; i += 2) put(s, 32 * i, both(b + 34 * i + 2, b + 34 * i + 36));
#endif
  for (; i < n; i++) memcpy(s->q + 32 * i, b + 34 * i + 2, 32);
  halves(b, 34, n, s->scale);
}
SMALL(iq4_nl) {
  all_nibbles(b, 2, 18, n, iq4, s);
  halves(b, 18, n, s->scale);
}
/* A scale of 2^(e - 128) has the bits of e - 1 in place of an exponent; those of e < 2 are subnormal. */
SMALL(mxfp4) {
  all_nibbles(b, 1, 17, n, e2m1, s);
#if defined(__AVX512BW__)
  uint64_t all = 0;
  for (int i = 0; i < n; i++) all |= (uint64_t)b[17 * i] << (8 * i);
  const __m128i u = _mm_cvtsi64_si128((int64_t)all);
  const __m512i e = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(u, u)), one = _mm512_set1_epi32(1);
  const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  const __m512i bits = _mm512_mask_sllv_epi32(usual, _mm512_cmple_epu32_mask(e, one), _mm512_set1_epi32(0x200000), e);
  if (n == 8) _mm512_store_ps(s->scale, _mm512_castsi512_ps(bits));
  else _mm512_mask_store_ps(s->scale, (__mmask16)((1 << 2 * n) - 1), _mm512_castsi512_ps(bits));
#else
  for (int i = 0; i < n; i++) {
    const uint32_t e = b[17 * i];
    s->scale[2 * i] = s->scale[2 * i + 1] = plk_f32_from(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
#endif
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------------------------------ */

#define SUPER(name) INLINE void span_##name(const uint8_t *b, int n, Span *s)

SUPER(q2_k) {
  (void)n;
  const float d = half(b + 80), dmin = half(b + 82);
#if defined(__AVX512BW__)
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r += 2) put(s, g * 128 + r * 32, low_bits(twice(b + 16 + g * 32, 2 * r, 2 * r + 2), 3));
#else
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r++)
      for (int j = 0; j < 32; j++) s->q[g * 128 + r * 32 + j] = b[16 + g * 32 + j] >> (2 * r) & 3;
#endif
  for (int p = 0; p < 16; p++) s->scale[p] = d * (float)(b[p] & 15);
  for (int p = 0; p < 16; p++) s->min[p] = dmin * (float)(b[p] >> 4);
}
/* Scales have their low 4 bits in bytes 0 to 7, their high 2 bits in bytes 8 to 11. */
SUPER(q3_k) {
  (void)n;
  const float d = half(b + 108);
  uint32_t w[3], v[4];
#if defined(__AVX512BW__)
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r += 2)
      put(s, g * 128 + r * 32, plus_bits(low_bits(twice(b + 32 + g * 32, 2 * r, 2 * r + 2), 3), b, g * 4 + r, 4));
#else
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r++)
      for (int j = 0; j < 32; j++)
        s->q[g * 128 + r * 32 + j] = (uint8_t)((b[32 + g * 32 + j] >> (2 * r) & 3) | (b[j] >> (g * 4 + r) & 1) << 2);
#endif
  memcpy(w, b + 96, sizeof w);
  for (int k = 0; k < 4; k++) v[k] = (w[k % 2] >> (k / 2 * 4) & 0x0f0f0f0fu) | (w[2] >> (2 * k) & 0x03030303u) << 4;
#if defined(__AVX512BW__)
  put_scales(s, d, _mm_sub_epi8(_mm_setr_epi32((int)v[0], (int)v[1], (int)v[2], (int)v[3]), _mm_set1_epi8(32)));
#else
  uint8_t u[16];
  memcpy(u, v, sizeof u);
  for (int p = 0; p < 16; p++) s->scale[p] = d * (float)(u[p] - 32);
#endif
}

/* Scales and offsets of 6 bits of eight parts of 32, four of a kind in each word. */
INLINE void six_bits(const uint8_t *p, float d, float dmin, Span *s) {
  uint32_t w[3];
  memcpy(w, p, sizeof w);
  const uint32_t v[4] = {w[0] & 0x3f3f3f3fu, (w[2] & 0x0f0f0f0fu) | (w[0] >> 2 & 0x30303030u), w[1] & 0x3f3f3f3fu,
                         (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u)};
#if defined(__AVX512BW__)
  const __m128i u = _mm_setr_epi32((int)v[0], (int)v[1], (int)v[2], (int)v[3]);
  const __m512i twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(u, u)), more = _mm512_cvtepu8_epi32(_mm_unpackhi_epi8(u, u));
  _mm512_store_ps(s->scale, _mm512_mul_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(twice)));
  _mm512_store_ps(s->min, _mm512_mul_ps(_mm512_set1_ps(dmin), _mm512_cvtepi32_ps(more)));
#else
  uint8_t u[16];
  memcpy(u, v, sizeof u);
  for (int k = 0; k < 8; k++) s->scale[2 * k] = s->scale[2 * k + 1] = d * (float)u[k];
  for (int k = 0; k < 8; k++) s->min[2 * k] = s->min[2 * k + 1] = dmin * (float)u[8 + k];
#endif
}
SUPER(q4_k) {
  (void)n;
  six_bits(b + 4, half(b), half(b + 2), s);
#if defined(__AVX512BW__)
  for (int g = 0; g < 4; g++) put(s, g * 64, low_bits(twice(b + 16 + g * 32, 0, 4), 15));
#else
  for (int g = 0; g < 4; g++) {
    for (int j = 0; j < 32; j++) s->q[g * 64 + j] = b[16 + g * 32 + j] & 15;
    for (int j = 0; j < 32; j++) s->q[g * 64 + 32 + j] = b[16 + g * 32 + j] >> 4;
  }
#endif
}
SUPER(q5_k) {
  (void)n;
  six_bits(b + 4, half(b), half(b + 2), s);
#if defined(__AVX512BW__)
  for (int g = 0; g < 4; g++) put(s, g * 64, plus_bits(low_bits(twice(b + 48 + g * 32, 0, 4), 15), b + 16, 2 * g, 16));
#else
  for (int g = 0; g < 4; g++) {
    for (int j = 0; j < 32; j++) s->q[g * 64 + j] = (uint8_t)((b[48 + g * 32 + j] & 15) | (b[16 + j] >> (2 * g) & 1) << 4);
    for (int j = 0; j < 32; j++) s->q[g * 64 + 32 + j] = (uint8_t)(b[48 + g * 32 + j] >> 4 | (b[16 + j] >> (2 * g + 1) & 1) << 4);
  }
#endif
}
SUPER(q6_k) {
  (void)n;
  const float d = half(b + 208);
#if defined(__AVX512BW__)
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r += 2) {
      const __m512i v = _mm512_loadu_si512(b + g * 64), low = low_bits(r ? _mm512_srli_epi16(v, 4) : v, 15);
      const __m512i high = low_bits(twice(b + 128 + g * 32, 2 * r, 2 * r + 2), 3);
      put(s, g * 128 + r * 32, _mm512_or_si512(low, _mm512_slli_epi16(high, 4)));
    }
#else
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r++)
      for (int j = 0; j < 32; j++)
        s->q[g * 128 + r * 32 + j] =
            (uint8_t)((b[g * 64 + r % 2 * 32 + j] >> (r / 2 * 4) & 15) | (b[128 + g * 32 + j] >> (2 * r) & 3) << 4);
#endif
#if defined(__AVX512BW__)
  put_scales(s, d, _mm_loadu_si128((const void *)(b + 192)));
#else
  for (int p = 0; p < 16; p++) s->scale[p] = d * (float)(int8_t)b[192 + p];
#endif
}
SUPER(iq4_xs) {
  (void)n;
  const float d = half(b);
  const int high = b[2] | b[3] << 8;
#if defined(__AVX512BW__) && defined(__BMI2__)
  uint32_t low;
  memcpy(&low, b + 4, sizeof low);
  const __m128i v = _mm_cvtsi64_si128((int64_t)(_pdep_u64(low, 0x0f0f0f0f0f0f0f0fULL) | _pdep_u64((unsigned)high, 0x3030303030303030ULL)));
  put_scales(s, d, _mm_sub_epi8(_mm_unpacklo_epi8(v, v), _mm_set1_epi8(32)));
#else
  for (int p = 0; p < 8; p++) {
    const int v = (b[4 + p / 2] >> (p % 2 * 4) & 15) | (high >> (2 * p) & 3) << 4;
    s->scale[2 * p] = s->scale[2 * p + 1] = d * (float)(v - 32);
  }
#endif
  all_nibbles(b, 8, 16, 8, iq4, s);
}
INLINE uint8_t ternary(uint8_t q, int power) { return (uint8_t)((int)(uint8_t)(q * power) * 3 >> 8); }
SUPER(tq1_0) {
  (void)n;
  static const int powers[5] = {1, 3, 9, 27, 81};
  for (int g = 0; g < 5; g++)
    for (int j = 0; j < 32; j++) s->q[32 * g + j] = ternary(b[j], powers[g]);
  for (int g = 0; g < 5; g++)
    for (int j = 0; j < 16; j++) s->q[160 + 16 * g + j] = ternary(b[32 + j], powers[g]);
  for (int j = 0; j < 16; j++) s->q[240 + j] = ternary(b[48 + j % 4], powers[j / 4]);
  for (int p = 0; p < 16; p++) s->scale[p] = half(b + 52);
}
SUPER(tq2_0) {
  (void)n;
#if defined(__AVX512BW__)
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r += 2) put(s, g * 128 + r * 32, low_bits(twice(b + g * 32, 2 * r, 2 * r + 2), 3));
#else
  for (int g = 0; g < 2; g++)
    for (int r = 0; r < 4; r++)
      for (int j = 0; j < 32; j++) s->q[g * 128 + r * 32 + j] = b[g * 32 + j] >> (2 * r) & 3;
#endif
  for (int p = 0; p < 16; p++) s->scale[p] = half(b + 64);
}

#endif
