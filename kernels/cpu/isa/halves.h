/* SPDX-License-Identifier: MIT
 * Sixteen stored numbers as one vector of floats (or eight as doubles), whatever they are stored as, for loops that are
 * written once for every type: plk_in_<type>(p), plk_part_<type>(p, k, fill) for the k < lanes elements at p, plk_one_<type>(x)
 * of one; plk_eight_<type>(p) are eight floats. Halves are
 * widened in registers, exactly. */
#ifndef PL_KERNELS_CPU_ISA_HALVES_H
#define PL_KERNELS_CPU_ISA_HALVES_H

#include "kernels/convert.h"
#include "kernels/cpu/isa/lanes.h"

PLK_LANE PlkV_f32 plk_in_f32(const float *p) { return *(const PlkV_f32 *)p; }
PLK_LANE PlkV_f64 plk_in_f64(const double *p) { return *(const PlkV_f64 *)p; }
PLK_LANE PlkV_f32 plk_part_f32(const float *p, int64_t k, float fill) { return plk_tail_f32(p, k, fill); }
PLK_LANE PlkV_f64 plk_part_f64(const double *p, int64_t k, double fill) { return plk_tail_f64(p, k, fill); }

/* The first k lanes go to p, where masks can say so. */
#if defined(__AVX512F__)
#define PLK_PUT
PLK_LANE void plk_put_f32(float *p, PlkV_f32 v, int64_t k) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << k) - 1), (__m512)v); }
PLK_LANE void plk_put_f64(double *p, PlkV_f64 v, int64_t k) { _mm512_mask_storeu_pd(p, (__mmask8)((1u << k) - 1), (__m512d)v); }
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
PLK_LANE PlkV_f32 plk_in_bf16(const uint16_t *p) {
  return (PlkV_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16);
}
PLK_LANE PlkV_f32 plk_in_f16(const uint16_t *p) { return (PlkV_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
PLK_LANE PlkH_f32 plk_eight_bf16(const uint16_t *p) {
  return (PlkH_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
}
PLK_LANE PlkH_f32 plk_eight_f16(const uint16_t *p) { return (PlkH_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
#define PLK_PART_HALVES(sfx, WIDEN)                                            \
  PLK_LANE PlkV_f32 plk_part_##sfx(const uint16_t *p, int64_t k, float fill) { \
    const __mmask16 m = (__mmask16)((1u << k) - 1);                            \
    const __m256i h = _mm256_maskz_loadu_epi16(m, p);                          \
    return (PlkV_f32)_mm512_mask_mov_ps(_mm512_set1_ps(fill), m, WIDEN);       \
  }
PLK_PART_HALVES(bf16, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)))
PLK_PART_HALVES(f16, _mm512_cvtph_ps(h))
#elif defined(__AVX2__) && defined(__F16C__)
PLK_LANE PlkH_f32 plk_eight_bf16(const uint16_t *p) {
  return (PlkH_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
}
PLK_LANE PlkH_f32 plk_eight_f16(const uint16_t *p) { return (PlkH_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
PLK_LANE PlkV_f32 plk_in_bf16(const uint16_t *p) { return plk_both_f32(plk_eight_bf16(p), plk_eight_bf16(p + 8)); }
PLK_LANE PlkV_f32 plk_in_f16(const uint16_t *p) { return plk_both_f32(plk_eight_f16(p), plk_eight_f16(p + 8)); }
/* The k < 8 words at p, then zeros, without a store that a load would wait for. */
PLK_LANE __m128i plk_few_words(const uint16_t *p, int64_t k) {
  uint64_t low = 0, high = 0;
  if (k >= 4) {
    memcpy(&low, p, 8);
    if (k > 4) memcpy(&high, p + k - 4, 8), high >>= 16 * (8 - k);
  } else if (k > 0) {
    low = (uint64_t)p[k - 1] << 16 * (k - 1);
    if (k > 1) low |= (uint64_t)p[0] | (uint64_t)p[k - 2] << 16 * (k - 2);
  }
  return _mm_set_epi64x((long long)high, (long long)low);
}
#define PLK_PART_HALVES(sfx, WIDEN)                                                                        \
  PLK_LANE PlkH_f32 plk_part_half_##sfx(__m128i h, int64_t k, float fill) {                                \
    return (PlkH_f32)_mm256_blendv_ps(_mm256_set1_ps(fill), WIDEN, _mm256_castsi256_ps(plk_first_f32(k))); \
  }                                                                                                        \
  PLK_LANE PlkV_f32 plk_part_##sfx(const uint16_t *p, int64_t k, float fill) {                             \
    const __m128i first = k < 8 ? plk_few_words(p, k) : _mm_loadu_si128((const __m128i *)(const void *)p); \
    const __m128i second = k < 8 ? _mm_setzero_si128() : plk_few_words(p + 8, k - 8);                      \
    return plk_both_f32(plk_part_half_##sfx(first, k, fill), plk_part_half_##sfx(second, k - 8, fill));    \
  }
PLK_PART_HALVES(bf16, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)))
PLK_PART_HALVES(f16, _mm256_cvtph_ps(h))
#else
PLK_LANE PlkV_f32 plk_in_bf16(const uint16_t *p) {
  PlkV_f32 v;
  for (int i = 0; i < PLK_N_f32; i++) v[i] = plk_bf16_to_f32(p[i]);
  return v;
}
PLK_LANE PlkV_f32 plk_in_f16(const uint16_t *p) {
  float t[PLK_N_f32];
  plk_f16_load(p, t, PLK_N_f32);
  return *(PlkV_f32 *)t;
}
PLK_LANE PlkH_f32 plk_eight_bf16(const uint16_t *p) {
  PlkH_f32 v;
  for (int i = 0; i < 8; i++) v[i] = plk_bf16_to_f32(p[i]);
  return v;
}
PLK_LANE PlkH_f32 plk_eight_f16(const uint16_t *p) {
  float t[8];
  plk_f16_load(p, t, 8);
  return *(PlkH_f32 *)t;
}
#define PLK_PART_HALVES(sfx)                                                            \
  PLK_LANE PlkV_f32 plk_part_##sfx(const uint16_t *p, int64_t k, float fill) {          \
    float t[PLK_N_f32];                                                                 \
    for (int i = 0; i < PLK_N_f32; i++) t[i] = i < k ? plk_##sfx##_to_f32(p[i]) : fill; \
    return *(PlkV_f32 *)t;                                                              \
  }
PLK_PART_HALVES(bf16)
PLK_PART_HALVES(f16)
#endif

PLK_LANE float plk_one_f32(float x) { return x; }
PLK_LANE double plk_one_f64(double x) { return x; }
PLK_LANE float plk_one_bf16(uint16_t x) { return plk_bf16_to_f32(x); }
PLK_LANE float plk_one_f16(uint16_t x) { return plk_f16_to_f32(x); }

#endif
