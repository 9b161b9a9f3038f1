/* SPDX-License-Identifier: MIT
 * f16 and bf16 bit patterns to and from f32, round to nearest even, NaN stays NaN (quiet).
 * The one-value functions are branch-free so that loops over them vectorize; with F16C the array functions
 * use the instruction, with AVX-512 both take sixteen at once, with AVX2 stores of bf16 do, which gives the same bits. */
#ifndef PL_KERNELS_CONVERT_H
#define PL_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PLK_CVT_WIDE 1 /* sixteen at once */
#endif

#define PLK_CVT static inline __attribute__((always_inline, unused))

PLK_CVT uint32_t plk_f32_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
PLK_CVT float plk_f32_from(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

PLK_CVT float plk_bf16_to_f32(uint16_t h) { return plk_f32_from((uint32_t)h << 16); }
PLK_CVT uint16_t plk_f32_to_bf16(float x) {
  const uint32_t u = plk_f32_bits(x);
  const uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r);
}

/* A product with 2^112 moves the exponent's bias, and normalizes subnormals on the way. */
PLK_CVT float plk_f16_to_f32(uint16_t h) {
  const uint32_t a = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t v = plk_f32_bits(plk_f32_from(a) * 0x1p112f);
  const uint32_t special = 0x7f800000u | a | (a > 0x0f800000u ? 0x400000u : 0u);
  return plk_f32_from(sign | (a >= 0x0f800000u ? special : v));
}
/* Subnormal results: adding 1/2 rounds to multiples of 2^-24 in the sum's low bits. */
PLK_CVT uint16_t plk_f32_to_f16(float x) {
  const uint32_t u = plk_f32_bits(x), a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  const uint32_t small = plk_f32_bits(plk_f32_from(a) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t finite = a < 0x38800000u ? small : normal;
  const uint32_t big = a > 0x7f800000u ? 0x7e00u | ((a >> 13) & 0x3ffu) : 0x7c00u;
  return (uint16_t)(sign | (a >= 0x477ff000u ? big : finite));
}

#if defined(PLK_CVT_WIDE)
/* The upper halves are the results, but of NaN: half an ulp and the last bit that stays are added. */
PLK_CVT __m512i plk_bf16_rounded(__m512i u) {
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), last);
}
PLK_CVT __m512i plk_bf16_quiet(__m512i rounded, __m512 x) {
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_castps_si512(x), _mm512_set1_epi32(0x400000));
}
PLK_CVT __m512 plk_bf16_widen(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
#elif defined(__AVX2__)
PLK_CVT __m256i plk_bf16_rounded(__m256i u) {
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), last);
}
PLK_CVT __m256i plk_bf16_quiet(__m256i rounded, __m256 x) {
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
/* x, then y: packing takes four of each in turn. */
PLK_CVT __m256i plk_bf16_sixteen(__m256 x, __m256 y) {
  __m256i a = plk_bf16_rounded(_mm256_castps_si256(x)), b = plk_bf16_rounded(_mm256_castps_si256(y));
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_UNORD_Q)) != 0, 0)) a = plk_bf16_quiet(a, x), b = plk_bf16_quiet(b, y);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)), 0xd8);
}
#endif

PLK_CVT void plk_bf16_load(const uint16_t *in, float *out, int64_t n) {
  int64_t i = 0;
#if defined(PLK_CVT_WIDE)
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, plk_bf16_widen(_mm256_loadu_si256((const __m256i *)(const void *)(in + i))));
#endif
  for (; i < n; i++) out[i] = plk_bf16_to_f32(in[i]);
}
PLK_CVT void plk_bf16_store(const float *in, uint16_t *out, int64_t n) {
  int64_t i = 0;
#if defined(PLK_CVT_WIDE)
  for (; i + 32 <= n; i += 32) { /* the high words of both, in their order */
    const __m512 x = _mm512_loadu_ps(in + i), y = _mm512_loadu_ps(in + i + 16);
    __m512i a = plk_bf16_rounded(_mm512_castps_si512(x)), b = plk_bf16_rounded(_mm512_castps_si512(y));
    if (__builtin_expect(_mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q) != 0, 0)) a = plk_bf16_quiet(a, x), b = plk_bf16_quiet(b, y);
    const __m512i odd = _mm512_set_epi32(0x3f003d, 0x3b0039, 0x370035, 0x330031, 0x2f002d, 0x2b0029, 0x270025, 0x230021, 0x1f001d, 0x1b0019,
                                         0x170015, 0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
    _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(a, odd, b));
  }
#elif defined(__AVX2__)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(void *)(out + i), plk_bf16_sixteen(_mm256_loadu_ps(in + i), _mm256_loadu_ps(in + i + 8)));
#endif
  for (; i < n; i++) out[i] = plk_f32_to_bf16(in[i]);
}
PLK_CVT void plk_f16_load(const uint16_t *in, float *out, int64_t n) {
  int64_t i = 0;
#if defined(PLK_CVT_WIDE)
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(in + i))));
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + i))));
#endif
  for (; i < n; i++) out[i] = plk_f16_to_f32(in[i]);
}
PLK_CVT void plk_f16_store(const float *in, uint16_t *out, int64_t n) {
  int64_t i = 0;
#if defined(PLK_CVT_WIDE)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(void *)(out + i),
                        _mm512_maskz_cvtps_ph((__mmask16)0xffff, _mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) out[i] = plk_f32_to_f16(in[i]);
}

#endif
