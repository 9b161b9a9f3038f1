/* SPDX-License-Identifier: MIT
 * Vectors as wide as the machine's, of which `64 / PLK_PART` make one of the 64 bytes that fix the order of additions (lanes.h). Below
 * AVX-512 gcc keeps vectors of 64 bytes in memory and compares them number by number: loops over arrays of these parts stay in registers.
 * plk_load_<type>(p): W = PLK_PART / 4 elements as floats (f64: PLK_PART / 8 doubles); plk_wide_<type>(p): PLK_PART / 8 elements as doubles. */
#ifndef PL_KERNELS_CPU_ISA_REDUCE_PARTS_H
#define PL_KERNELS_CPU_ISA_REDUCE_PARTS_H

#include "kernels/cpu/isa/halves.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { PLK_PART = 64 };
#elif defined(__AVX__)
enum { PLK_PART = 32 };
#else
enum { PLK_PART = 16 };
#endif
enum { PLK_PARTS = 64 / PLK_PART, PLK_W_f32 = PLK_PART / 4, PLK_W_f64 = PLK_PART / 8 };

typedef float PlkP_f32 __attribute__((vector_size(PLK_PART), aligned(4), may_alias));
typedef double PlkP_f64 __attribute__((vector_size(PLK_PART), aligned(8), may_alias));
typedef int32_t PlkPM_f32 __attribute__((vector_size(PLK_PART), aligned(4), may_alias));
typedef int64_t PlkPM_f64 __attribute__((vector_size(PLK_PART), aligned(8), may_alias));

PLK_LANE PlkP_f32 plk_load_f32(const float *p) { return *(const PlkP_f32 *)p; }
PLK_LANE PlkP_f64 plk_load_f64(const double *p) { return *(const PlkP_f64 *)p; }
PLK_LANE PlkP_f64 plk_wide_f64(const double *p) { return *(const PlkP_f64 *)p; }

#if defined(__AVX512F__)
PLK_LANE PlkP_f32 plk_load_bf16(const uint16_t *p) { return plk_in_bf16(p); }
PLK_LANE PlkP_f32 plk_load_f16(const uint16_t *p) { return plk_in_f16(p); }
/* gcc 12 makes five instructions of __builtin_convertvector to 64 bytes */
PLK_LANE PlkP_f64 plk_wide_f32(const float *p) { return (PlkP_f64)_mm512_cvtps_pd(_mm256_loadu_ps(p)); }
PLK_LANE PlkP_f64 plk_wide_bf16(const uint16_t *p) { return (PlkP_f64)_mm512_cvtps_pd((__m256)plk_eight_bf16(p)); }
PLK_LANE PlkP_f64 plk_wide_f16(const uint16_t *p) { return (PlkP_f64)_mm512_cvtps_pd((__m256)plk_eight_f16(p)); }
#elif defined(__AVX2__) && defined(__F16C__)
PLK_LANE __m128i plk_words(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
PLK_LANE __m128i plk_four_words(const uint16_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
PLK_LANE PlkP_f32 plk_load_bf16(const uint16_t *p) { return (PlkP_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(plk_words(p)), 16); }
PLK_LANE PlkP_f32 plk_load_f16(const uint16_t *p) { return (PlkP_f32)_mm256_cvtph_ps(plk_words(p)); }
PLK_LANE PlkP_f64 plk_wide_f32(const float *p) { return (PlkP_f64)_mm256_cvtps_pd(_mm_loadu_ps(p)); }
PLK_LANE PlkP_f64 plk_wide_bf16(const uint16_t *p) {
  return (PlkP_f64)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(plk_four_words(p)), 16)));
}
PLK_LANE PlkP_f64 plk_wide_f16(const uint16_t *p) { return (PlkP_f64)_mm256_cvtps_pd(_mm_cvtph_ps(plk_four_words(p))); }
#else
#define PLK_LOAD(T, sfx, to)                                   \
  PLK_LANE PlkP_##to plk_##sfx(const T *p) {                   \
    PlkP_##to v;                                               \
    for (int k = 0; k < PLK_W_##to; k++) v[k] = PLK_ONE(p[k]); \
    return v;                                                  \
  }
#define PLK_ONE plk_bf16_to_f32
PLK_LOAD(uint16_t, load_bf16, f32)
PLK_LOAD(uint16_t, wide_bf16, f64)
#undef PLK_ONE
#define PLK_ONE plk_f16_to_f32
PLK_LOAD(uint16_t, load_f16, f32)
PLK_LOAD(uint16_t, wide_f16, f64)
#undef PLK_ONE
#define PLK_ONE
PLK_LOAD(float, wide_f32, f64)
#undef PLK_ONE
#endif

#if defined(__AVX__) && !defined(__AVX512F__)
/* (0 + 1) + (2 + 3) of four rows of four, one a lane. */
PLK_LANE PlkP_f64 plk_fours(const PlkP_f64 *v) {
  const __m256d a = _mm256_hadd_pd((__m256d)v[0], (__m256d)v[1]), b = _mm256_hadd_pd((__m256d)v[2], (__m256d)v[3]);
  return (PlkP_f64)_mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
}
#endif

/* The sum of all lanes of the parts of one vector, as plk_lanes_sum adds them. */
#if defined(__AVX512F__)
PLK_LANE double plk_parts_sum_f32(const PlkP_f32 *a) { return plk_lanes_sum_f32(a[0]); }
PLK_LANE double plk_parts_sum_f64(const PlkP_f64 *a) { return plk_lanes_sum_f64(a[0]); }
#elif defined(__AVX__)
PLK_LANE double plk_parts_sum_f64(const PlkP_f64 *a) {
  const __m256d v = (__m256d)(a[0] + a[1]);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
PLK_LANE double plk_parts_sum_f32(const PlkP_f32 *a) {
#define FOUR(k, half) (PlkP_f64) _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)a[k], half))
  const PlkP_f64 d[2] = {FOUR(0, 0) + FOUR(1, 0), FOUR(0, 1) + FOUR(1, 1)};
#undef FOUR
  return plk_parts_sum_f64(d);
}
#else
#define PLK_PARTS_SUM(T, sfx)                                                        \
  PLK_LANE double plk_parts_sum_##sfx(const PlkP_##sfx *a) {                         \
    T t[PLK_N_##sfx];                                                                \
    double d[PLK_N_##sfx];                                                           \
    for (int k = 0; k < PLK_PARTS; k++) *(PlkP_##sfx *)(t + PLK_W_##sfx * k) = a[k]; \
    for (int k = 0; k < PLK_N_##sfx; k++) d[k] = (double)t[k];                       \
    for (int h = PLK_N_##sfx / 2; h >= 4; h /= 2)                                    \
      for (int k = 0; k < h; k++) d[k] += d[k + h];                                  \
    return (d[0] + d[2]) + (d[1] + d[3]);                                            \
  }
PLK_PARTS_SUM(float, f32)
PLK_PARTS_SUM(double, f64)
#endif

/* v beyond acc ? v : acc, so that NaN in v is passed over; whether there is a NaN in v or w, of any number of pairs; and one bit a
 * lane: elements at p that equal those at q, that are NaN. */
#if defined(__AVX512F__)
typedef __mmask16 PlkMissing_f32;
typedef __mmask8 PlkMissing_f64;
#define PLK_NATIVE(f, ps) _mm512_##f##_##ps
#define PLK_NANS(sfx, ps, M)                                                                                                             \
  PLK_LANE PlkMissing_##sfx plk_part_nans_##sfx(PlkP_##sfx v, PlkP_##sfx w) { return _mm512_cmp_##ps##_mask((M)v, (M)w, _CMP_UNORD_Q); } \
  PLK_LANE bool plk_part_any_##sfx(PlkMissing_##sfx m) { return m != 0; }
#define PLK_BITS(sfx, ps, M, T)                                                              \
  PLK_LANE unsigned plk_equal_##sfx(const T *p, const T *q) {                                \
    return _mm512_cmp_##ps##_mask(_mm512_loadu_##ps(p), _mm512_loadu_##ps(q), _CMP_EQ_OQ);   \
  }                                                                                          \
  PLK_LANE unsigned plk_missing_##sfx(const T *p) {                                          \
    return _mm512_cmp_##ps##_mask(_mm512_loadu_##ps(p), _mm512_loadu_##ps(p), _CMP_UNORD_Q); \
  }
#else
typedef PlkPM_f32 PlkMissing_f32;
typedef PlkPM_f64 PlkMissing_f64;
#if defined(__AVX__)
#define PLK_NATIVE(f, ps)       _mm256_##f##_##ps
#define PLK_UNORDERED(ps, v, w) _mm256_cmp_##ps(v, w, _CMP_UNORD_Q)
#elif defined(__SSE2__)
#define PLK_NATIVE(f, ps)       _mm_##f##_##ps
#define PLK_UNORDERED(ps, v, w) _mm_cmpunord_##ps(v, w)
#endif
#if defined(__SSE2__)
#define PLK_NANS(sfx, ps, M)                                                                                                            \
  PLK_LANE PlkMissing_##sfx plk_part_nans_##sfx(PlkP_##sfx v, PlkP_##sfx w) { return (PlkMissing_##sfx)PLK_UNORDERED(ps, (M)v, (M)w); } \
  PLK_LANE bool plk_part_any_##sfx(PlkMissing_##sfx m) { return PLK_NATIVE(movemask, ps)((M)m) != 0; }
#define PLK_SIGNS(ps, M, m) (unsigned)PLK_NATIVE(movemask, ps)((M)(m))
#else
#define PLK_NANS(sfx, ps, M)                                                  \
  PLK_LANE PlkMissing_##sfx plk_part_nans_##sfx(PlkP_##sfx v, PlkP_##sfx w) { \
    return (PlkMissing_##sfx)(v != v) | (PlkMissing_##sfx)(w != w);           \
  }                                                                           \
  PLK_LANE bool plk_part_any_##sfx(PlkMissing_##sfx m) { return plk_signs_##sfx(m) != 0; }
#define PLK_SIGNS(ps, M, m) plk_signs_##ps(m)
PLK_LANE unsigned plk_signs_f32(PlkPM_f32 m) {
  unsigned bits = 0;
  for (int k = 0; k < PLK_W_f32; k++) bits |= (unsigned)(m[k] < 0) << k;
  return bits;
}
PLK_LANE unsigned plk_signs_f64(PlkPM_f64 m) {
  unsigned bits = 0;
  for (int k = 0; k < PLK_W_f64; k++) bits |= (unsigned)(m[k] < 0) << k;
  return bits;
}
#define plk_signs_ps        plk_signs_f32
#define plk_signs_pd        plk_signs_f64
#endif
#define PLK_BITS(sfx, ps, M, T)                                                                     \
  PLK_LANE unsigned plk_equal_##sfx(const T *p, const T *q) {                                       \
    unsigned bits = 0;                                                                              \
    for (int k = 0; k < PLK_N_##sfx; k += PLK_W_##sfx)                                              \
      bits |= PLK_SIGNS(ps, M, (PlkPM_##sfx)(plk_load_##sfx(p + k) == plk_load_##sfx(q + k))) << k; \
    return bits;                                                                                    \
  }                                                                                                 \
  PLK_LANE unsigned plk_missing_##sfx(const T *p) {                                                 \
    unsigned bits = 0;                                                                              \
    for (int k = 0; k < PLK_N_##sfx; k += PLK_W_##sfx)                                              \
      bits |= PLK_SIGNS(ps, M, (PlkPM_##sfx)(plk_load_##sfx(p + k) != plk_load_##sfx(p + k))) << k; \
    return bits;                                                                                    \
  }
#endif
#if defined(__SSE2__)
#define PLK_EXTREMES(sfx, ps, M)                                                                                                 \
  PLK_LANE PlkP_##sfx plk_part_max_##sfx(PlkP_##sfx acc, PlkP_##sfx v) { return (PlkP_##sfx)PLK_NATIVE(max, ps)((M)v, (M)acc); } \
  PLK_LANE PlkP_##sfx plk_part_min_##sfx(PlkP_##sfx acc, PlkP_##sfx v) { return (PlkP_##sfx)PLK_NATIVE(min, ps)((M)v, (M)acc); }
#else
#define PLK_EXTREMES(sfx, ps, M)                                                                     \
  PLK_LANE PlkP_##sfx plk_part_max_##sfx(PlkP_##sfx acc, PlkP_##sfx v) { return v > acc ? v : acc; } \
  PLK_LANE PlkP_##sfx plk_part_min_##sfx(PlkP_##sfx acc, PlkP_##sfx v) { return v < acc ? v : acc; }
#endif
#if defined(__AVX512F__)
#define PLK_REGISTERS(X) X(f32, ps, __m512, float) X(f64, pd, __m512d, double)
#elif defined(__AVX__)
#define PLK_REGISTERS(X) X(f32, ps, __m256, float) X(f64, pd, __m256d, double)
#else
#define PLK_REGISTERS(X) X(f32, ps, __m128, float) X(f64, pd, __m128d, double)
#endif
#define PLK_ALL(sfx, ps, M, T) PLK_EXTREMES(sfx, ps, M) PLK_NANS(sfx, ps, M) PLK_BITS(sfx, ps, M, T)
PLK_REGISTERS(PLK_ALL)

#endif
