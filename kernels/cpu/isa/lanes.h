/* SPDX-License-Identifier: MIT
 * 64-byte vectors of floats and doubles for the reduction loops, whatever the machine's width: the compiler
 * splits them. A fixed number of lanes fixes the order of additions, hence the bits. */
#ifndef PL_KERNELS_CPU_ISA_LANES_H
#define PL_KERNELS_CPU_ISA_LANES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors never cross a real call here */
#endif

typedef float PlkV_f32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef double PlkV_f64 __attribute__((vector_size(64), aligned(8), may_alias));
typedef int32_t PlkM_f32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int64_t PlkM_f64 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float PlkH_f32 __attribute__((vector_size(32), aligned(4), may_alias)); /* halves */
typedef double PlkH_f64 __attribute__((vector_size(32), aligned(8), may_alias));
enum { PLK_N_f32 = 16, PLK_N_f64 = 8 };

#define PLK_LANE static inline __attribute__((always_inline, unused))

#if defined(__AVX2__)
/* Half a vector of the k elements at p, none if k < 0, the other lanes `fill`. */
PLK_LANE __m256i plk_first_f32(int64_t k) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PLK_LANE __m256i plk_first_f64(int64_t k) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(k), _mm256_setr_epi64x(0, 1, 2, 3)); }
PLK_LANE PlkH_f32 plk_tail_half_f32(const float *p, int64_t k, float fill) {
  const __m256i m = plk_first_f32(k);
  return (PlkH_f32)_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
}
/* Both halves: a shuffle of two would move number by number through memory. */
#define PLK_BOTH(sfx)                                                   \
  PLK_LANE PlkV_##sfx plk_both_##sfx(PlkH_##sfx low, PlkH_##sfx high) { \
    PlkV_##sfx v;                                                       \
    ((PlkH_##sfx *)&v)[0] = low, ((PlkH_##sfx *)&v)[1] = high;          \
    return v;                                                           \
  }
PLK_BOTH(f32)
PLK_BOTH(f64)
PLK_LANE PlkH_f64 plk_tail_half_f64(const double *p, int64_t k, double fill) {
  const __m256i m = plk_first_f64(k);
  return (PlkH_f64)_mm256_blendv_pd(_mm256_set1_pd(fill), _mm256_maskload_pd(p, m), _mm256_castsi256_pd(m));
}
#endif

/* The k < lanes elements at p, the other lanes `fill`. Masked where the machine can: a vector read back from
 * partial stores waits for them. */
PLK_LANE PlkV_f32 plk_tail_f32(const float *p, int64_t k, float fill) {
#if defined(__AVX512F__)
  return (PlkV_f32)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)((1u << k) - 1), p);
#elif defined(__AVX2__)
  return plk_both_f32(plk_tail_half_f32(p, k, fill), plk_tail_half_f32(p + 8, k - 8, fill));
#else
  float t[PLK_N_f32];
  for (int i = 0; i < PLK_N_f32; i++) t[i] = i < k ? p[i] : fill;
  return *(PlkV_f32 *)t;
#endif
}
PLK_LANE PlkV_f64 plk_tail_f64(const double *p, int64_t k, double fill) {
#if defined(__AVX512F__)
  return (PlkV_f64)_mm512_mask_loadu_pd(_mm512_set1_pd(fill), (__mmask8)((1u << k) - 1), p);
#elif defined(__AVX2__)
  return plk_both_f64(plk_tail_half_f64(p, k, fill), plk_tail_half_f64(p + 4, k - 4, fill));
#else
  double t[PLK_N_f64];
  for (int i = 0; i < PLK_N_f64; i++) t[i] = i < k ? p[i] : fill;
  return *(PlkV_f64 *)t;
#endif
}

/* v > acc ? v : acc, so NaN in v is passed over. */
PLK_LANE PlkV_f32 plk_max_f32(PlkV_f32 acc, PlkV_f32 v) {
#if defined(__AVX512F__)
  return (PlkV_f32)_mm512_max_ps((__m512)v, (__m512)acc);
#elif defined(__AVX2__) /* as one vector gcc would compare number by number */
  PlkH_f32 a[2], b[2];
  memcpy(a, &acc, sizeof a), memcpy(b, &v, sizeof b);
  for (int i = 0; i < 2; i++) a[i] = (PlkH_f32)_mm256_max_ps((__m256)b[i], (__m256)a[i]);
  memcpy(&acc, a, sizeof a);
  return acc;
#else
  PlkM_f32 m = (PlkM_f32)(v > acc);
  return (PlkV_f32)(((PlkM_f32)v & m) | ((PlkM_f32)acc & ~m));
#endif
}
PLK_LANE PlkV_f64 plk_max_f64(PlkV_f64 acc, PlkV_f64 v) {
#if defined(__AVX512F__)
  return (PlkV_f64)_mm512_max_pd((__m512d)v, (__m512d)acc);
#elif defined(__AVX2__) /* as one vector gcc would compare number by number */
  PlkH_f64 a[2], b[2];
  memcpy(a, &acc, sizeof a), memcpy(b, &v, sizeof b);
  for (int i = 0; i < 2; i++) a[i] = (PlkH_f64)_mm256_max_pd((__m256d)b[i], (__m256d)a[i]);
  memcpy(&acc, a, sizeof a);
  return acc;
#else
  PlkM_f64 m = (PlkM_f64)(v > acc);
  return (PlkV_f64)(((PlkM_f64)v & m) | ((PlkM_f64)acc & ~m));
#endif
}

/* v < acc ? v : acc; and lanes in which a NaN was seen in either. */
#if defined(__AVX512F__)
typedef __mmask16 PlkSeen_f32;
typedef __mmask8 PlkSeen_f64;
PLK_LANE PlkV_f32 plk_min_f32(PlkV_f32 acc, PlkV_f32 v) { return (PlkV_f32)_mm512_min_ps((__m512)v, (__m512)acc); }
PLK_LANE PlkV_f64 plk_min_f64(PlkV_f64 acc, PlkV_f64 v) { return (PlkV_f64)_mm512_min_pd((__m512d)v, (__m512d)acc); }
PLK_LANE PlkSeen_f32 plk_nans_f32(PlkV_f32 v, PlkV_f32 w) { return _mm512_cmp_ps_mask((__m512)v, (__m512)w, _CMP_UNORD_Q); }
PLK_LANE PlkSeen_f64 plk_nans_f64(PlkV_f64 v, PlkV_f64 w) { return _mm512_cmp_pd_mask((__m512d)v, (__m512d)w, _CMP_UNORD_Q); }
#define PLK_NONE_SEEN           0
#define PLK_OR_SEEN(type, a, b) ((type)((a) | (b)))
PLK_LANE bool plk_seen_f32(PlkSeen_f32 m) { return m != 0; }
PLK_LANE bool plk_seen_f64(PlkSeen_f64 m) { return m != 0; }
#else
typedef PlkM_f32 PlkSeen_f32;
typedef PlkM_f64 PlkSeen_f64;
PLK_LANE PlkV_f32 plk_min_f32(PlkV_f32 acc, PlkV_f32 v) {
  const PlkM_f32 m = (PlkM_f32)(v < acc);
  return (PlkV_f32)(((PlkM_f32)v & m) | ((PlkM_f32)acc & ~m));
}
PLK_LANE PlkV_f64 plk_min_f64(PlkV_f64 acc, PlkV_f64 v) {
  const PlkM_f64 m = (PlkM_f64)(v < acc);
  return (PlkV_f64)(((PlkM_f64)v & m) | ((PlkM_f64)acc & ~m));
}
PLK_LANE PlkSeen_f32 plk_nans_f32(PlkV_f32 v, PlkV_f32 w) { return (PlkM_f32)(v != v) | (PlkM_f32)(w != w); }
PLK_LANE PlkSeen_f64 plk_nans_f64(PlkV_f64 v, PlkV_f64 w) { return (PlkM_f64)(v != v) | (PlkM_f64)(w != w); }
#define PLK_NONE_SEEN \
  { 0 }
#define PLK_OR_SEEN(type, a, b) ((a) | (b))
PLK_LANE bool plk_seen_f32(PlkSeen_f32 m) {
  int32_t any = 0;
  for (int i = 0; i < PLK_N_f32; i++) any |= m[i];
  return any != 0;
}
PLK_LANE bool plk_seen_f64(PlkSeen_f64 m) {
  int64_t any = 0;
  for (int i = 0; i < PLK_N_f64; i++) any |= m[i];
  return any != 0;
}
#endif

/* The sum of all lanes in double, as a tree: halves are added to halves, in registers. */
PLK_LANE double plk_lanes_sum_f64(PlkV_f64 v) {
  const PlkH_f64 h = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return (h[0] + h[2]) + (h[1] + h[3]);
}
PLK_LANE double plk_lanes_sum_f32(PlkV_f32 v) {
  const PlkH_f32 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const PlkH_f32 high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return plk_lanes_sum_f64(__builtin_convertvector(low, PlkV_f64) + __builtin_convertvector(high, PlkV_f64));
}

#endif
