/* SPDX-License-Identifier: MIT
 * f16 and bf16 bit patterns to and from f32, round to nearest even, NaN stays NaN (quiet).
 * The one-value functions are branch-free so that loops over them vectorize; with F16C the array functions
 * use the instruction, which gives the same bits. */
#ifndef PL_KERNELS_CONVERT_H
#define PL_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
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

PLK_CVT void plk_bf16_load(const uint16_t *in, float *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = plk_bf16_to_f32(in[i]);
}
PLK_CVT void plk_bf16_store(const float *in, uint16_t *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = plk_f32_to_bf16(in[i]);
}
PLK_CVT void plk_f16_load(const uint16_t *in, float *out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + i))));
#endif
  for (; i < n; i++) out[i] = plk_f16_to_f32(in[i]);
}
PLK_CVT void plk_f16_store(const float *in, uint16_t *out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) out[i] = plk_f32_to_f16(in[i]);
}

#endif
