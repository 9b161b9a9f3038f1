/* SPDX-License-Identifier: MIT
 * Rows too short for lanes of their own: several are transposed in registers, so that each is a lane of vectors whose k-th holds
 * the rows' elements k. Loops then do to a lane what they do to a row alone, in the same order: the same bits.
 *   plk_turn_<type>(x, ld, n, m, to): to[k] = elements k of PLK_N rows that are ld apart, for k < n <= PLK_SHORT, of f32, f64, bf16, f16.
 * Of m < PLK_N rows the last is repeated.
 *   plk_turn_back_<type>(v, y, ld, n): the reverse, of f32 and f64.
 *   plk_join_<type>(lane, live, sum): plk_lanes_sum_<type> of each row, lane[k] being its lane k; those from `live` on are 0.
 * With AVX-512 and AVX2 (PLK_SHORT_ROWS); other levels go row by row. */
#ifndef PL_KERNELS_CPU_ISA_SHORT_ROWS_H
#define PL_KERNELS_CPU_ISA_SHORT_ROWS_H

#include "kernels/cpu/isa/halves.h"

enum { PLK_SHORT = 64 /* `to` has room for as many vectors */ };

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PLK_SHORT_ROWS 1

/* The first and the last eight lanes, in double. */
PLK_LANE PlkV_f64 plk_low(PlkV_f32 v) { return (PlkV_f64)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
PLK_LANE PlkV_f64 plk_high(PlkV_f32 v) { return (PlkV_f64)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }

/* Sixteen rows of sixteen. */
PLK_LANE void plk_sixteen(const PlkV_f32 *v, PlkV_f32 *to) {
  __m512d b[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512 x0 = (__m512)v[i], x1 = (__m512)v[i + 1], x2 = (__m512)v[i + 2], x3 = (__m512)v[i + 3];
    const __m512d a0 = (__m512d)_mm512_unpacklo_ps(x0, x1), a1 = (__m512d)_mm512_unpackhi_ps(x0, x1);
    const __m512d a2 = (__m512d)_mm512_unpacklo_ps(x2, x3), a3 = (__m512d)_mm512_unpackhi_ps(x2, x3);
    b[i] = _mm512_unpacklo_pd(a0, a2), b[i + 1] = _mm512_unpackhi_pd(a0, a2);
    b[i + 2] = _mm512_unpacklo_pd(a1, a3), b[i + 3] = _mm512_unpackhi_pd(a1, a3);
  }
  for (int j = 0; j < 4; j++) { /* b[i + j]: elements j, 4 + j, 8 + j, 12 + j of rows i … i + 3, 16 bytes each */
    const __m512 p = (__m512)b[j], q = (__m512)b[4 + j], r = (__m512)b[8 + j], s = (__m512)b[12 + j];
    const __m512 low = _mm512_shuffle_f32x4(p, q, 0x88), high = _mm512_shuffle_f32x4(p, q, 0xdd);
    const __m512 low2 = _mm512_shuffle_f32x4(r, s, 0x88), high2 = _mm512_shuffle_f32x4(r, s, 0xdd);
    to[j] = (PlkV_f32)_mm512_shuffle_f32x4(low, low2, 0x88);
    to[8 + j] = (PlkV_f32)_mm512_shuffle_f32x4(low, low2, 0xdd);
    to[4 + j] = (PlkV_f32)_mm512_shuffle_f32x4(high, high2, 0x88);
    to[12 + j] = (PlkV_f32)_mm512_shuffle_f32x4(high, high2, 0xdd);
  }
}
/* The first four elements of each of sixteen rows. */
PLK_LANE void plk_four(const PlkV_f32 *v, PlkV_f32 *to) {
  __m512 z[4];
  for (int i = 0; i < 4; i++) {
    z[i] = _mm512_insertf32x4((__m512)v[i], _mm512_castps512_ps128((__m512)v[i + 4]), 1);
    z[i] = _mm512_insertf32x4(z[i], _mm512_castps512_ps128((__m512)v[i + 8]), 2);
    z[i] = _mm512_insertf32x4(z[i], _mm512_castps512_ps128((__m512)v[i + 12]), 3);
  }
  const __m512d a0 = (__m512d)_mm512_unpacklo_ps(z[0], z[1]), a1 = (__m512d)_mm512_unpackhi_ps(z[0], z[1]);
  const __m512d a2 = (__m512d)_mm512_unpacklo_ps(z[2], z[3]), a3 = (__m512d)_mm512_unpackhi_ps(z[2], z[3]);
  to[0] = (PlkV_f32)_mm512_unpacklo_pd(a0, a2), to[1] = (PlkV_f32)_mm512_unpackhi_pd(a0, a2);
  to[2] = (PlkV_f32)_mm512_unpacklo_pd(a1, a3), to[3] = (PlkV_f32)_mm512_unpackhi_pd(a1, a3);
}
/* Eight rows of eight. */
PLK_LANE void plk_eight(const PlkV_f64 *v, PlkV_f64 *to) {
  __m512d b[8];
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm512_unpacklo_pd((__m512d)v[i], (__m512d)v[i + 1]);
    b[i + 1] = _mm512_unpackhi_pd((__m512d)v[i], (__m512d)v[i + 1]);
  }
  for (int j = 0; j < 2; j++) {
    const __m512d low = _mm512_shuffle_f64x2(b[j], b[2 + j], 0x88), high = _mm512_shuffle_f64x2(b[j], b[2 + j], 0xdd);
    const __m512d low2 = _mm512_shuffle_f64x2(b[4 + j], b[6 + j], 0x88), high2 = _mm512_shuffle_f64x2(b[4 + j], b[6 + j], 0xdd);
    to[j] = (PlkV_f64)_mm512_shuffle_f64x2(low, low2, 0x88);
    to[4 + j] = (PlkV_f64)_mm512_shuffle_f64x2(low, low2, 0xdd);
    to[2 + j] = (PlkV_f64)_mm512_shuffle_f64x2(high, high2, 0x88);
    to[6 + j] = (PlkV_f64)_mm512_shuffle_f64x2(high, high2, 0xdd);
  }
}

#define PLK_TURN(S, sfx)                                                                            \
  PLK_LANE void plk_turn_##sfx(const S *x, int64_t ld, int64_t n, int64_t m, PlkV_f32 *to) {        \
    PlkV_f32 v[16];                                                                                 \
    int64_t k = 0;                                                                                  \
    for (; k + 16 <= n; k += 16) {                                                                  \
      for (int r = 0; r < 16; r++) v[r] = plk_in_##sfx(x + (r < m ? r : m - 1) * ld + k);           \
      plk_sixteen(v, to + k);                                                                       \
    }                                                                                               \
    if (k == n) return;                                                                             \
    for (int r = 0; r < 16; r++) v[r] = plk_part_##sfx(x + (r < m ? r : m - 1) * ld + k, n - k, 0); \
    if (n - k <= 4) plk_four(v, to + k);                                                            \
    else plk_sixteen(v, to + k);                                                                    \
  }
PLK_TURN(float, f32)
PLK_TURN(uint16_t, bf16)
PLK_TURN(uint16_t, f16)
PLK_LANE void plk_turn_f64(const double *x, int64_t ld, int64_t n, int64_t m, PlkV_f64 *to) {
  PlkV_f64 v[8];
  for (int64_t k = 0; k < n; k += 8) {
    for (int r = 0; r < 8; r++) {
      const double *const p = x + (r < m ? r : m - 1) * ld + k;
      v[r] = k + 8 <= n ? plk_in_f64(p) : plk_tail_f64(p, n - k, 0);
    }
    plk_eight(v, to + k);
  }
}

PLK_LANE void plk_turn_back_f32(const PlkV_f32 *v, float *y, int64_t ld, int64_t n) {
  PlkV_f32 row[16], last[16];
  for (int64_t k = 0; k < n; k += 16) {
    const __mmask16 kept = (__mmask16)(n - k < 16 ? (1u << (n - k)) - 1 : 0xffff);
    if (n - k >= 16) plk_sixteen(v + k, row);
    else {
      for (int i = 0; i < 16; i++) last[i] = i < n - k ? v[k + i] : (PlkV_f32){0};
      plk_sixteen(last, row);
    }
    for (int r = 0; r < 16; r++) _mm512_mask_storeu_ps(y + r * ld + k, kept, (__m512)row[r]);
  }
}
PLK_LANE void plk_turn_back_f64(const PlkV_f64 *v, double *y, int64_t ld, int64_t n) {
  PlkV_f64 row[8], last[8];
  for (int64_t k = 0; k < n; k += 8) {
    const __mmask8 kept = (__mmask8)(n - k < 8 ? (1u << (n - k)) - 1 : 0xff);
    if (n - k >= 8) plk_eight(v + k, row);
    else {
      for (int i = 0; i < 8; i++) last[i] = i < n - k ? v[k + i] : (PlkV_f64){0};
      plk_eight(last, row);
    }
    for (int r = 0; r < 8; r++) _mm512_mask_storeu_pd(y + r * ld + k, kept, (__m512d)row[r]);
  }
}

#elif defined(__AVX2__) && defined(__F16C__)
#define PLK_SHORT_ROWS 1

PLK_LANE PlkV_f64 plk_low(PlkV_f32 v) { return __builtin_convertvector(((const PlkH_f32 *)&v)[0], PlkV_f64); }
PLK_LANE PlkV_f64 plk_high(PlkV_f32 v) { return __builtin_convertvector(((const PlkH_f32 *)&v)[1], PlkV_f64); }

/* Eight rows of eight in place: pairs, pairs of pairs, halves. */
PLK_LANE void plk_eight(PlkH_f32 *v) {
  PlkH_f32 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      b[i + 2 * j + 1] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; i++) {
    v[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
/* Four rows of four. */
PLK_LANE void plk_four(PlkH_f64 *v) {
  const PlkH_f64 a = __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6), b = __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7);
  const PlkH_f64 c = __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6), d = __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7);
  v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5), v[1] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  v[2] = __builtin_shufflevector(a, c, 2, 3, 6, 7), v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

PLK_LANE PlkH_f32 plk_half_f32(const float *p, int64_t k) { return k >= 8 ? *(const PlkH_f32 *)p : plk_tail_half_f32(p, k, 0); }
PLK_LANE PlkH_f64 plk_half_f64(const double *p, int64_t k) { return k >= 4 ? *(const PlkH_f64 *)p : plk_tail_half_f64(p, k, 0); }
#define PLK_HALF(sfx)                                              \
  PLK_LANE PlkH_f32 plk_half_##sfx(const uint16_t *p, int64_t k) { \
    if (k >= 8) return plk_eight_##sfx(p);                         \
    return plk_part_half_##sfx(plk_few_words(p, k), k, 0);         \
  }
PLK_HALF(bf16)
PLK_HALF(f16)

/* H elements of each of H rows at a time go to half a vector. */
#define PLK_TURN(S, sfx, V, PART, H, BLOCK)                                                                     \
  PLK_LANE void plk_turn_##sfx(const S *x, int64_t ld, int64_t n, int64_t m, V *to) {                           \
    for (int64_t k = 0; k < n; k += H)                                                                          \
      for (int64_t g = 0; g < 2 * H; g += H) {                                                                  \
        PART v[H];                                                                                              \
        for (int64_t r = 0; r < H; r++) v[r] = plk_half_##sfx(x + (g + r < m ? g + r : m - 1) * ld + k, n - k); \
        BLOCK(v);                                                                                               \
        for (int j = 0; j < H; j++) ((PART *)(to + k + j))[g / H] = v[j];                                       \
      }                                                                                                         \
  }
PLK_TURN(float, f32, PlkV_f32, PlkH_f32, 8, plk_eight)
PLK_TURN(uint16_t, bf16, PlkV_f32, PlkH_f32, 8, plk_eight)
PLK_TURN(uint16_t, f16, PlkV_f32, PlkH_f32, 8, plk_eight)
PLK_TURN(double, f64, PlkV_f64, PlkH_f64, 4, plk_four)

#define PLK_TURN_BACK(S, sfx, V, PART, H, BLOCK, STORE, M)                                                    \
  PLK_LANE void plk_turn_back_##sfx(const V *v, S *y, int64_t ld, int64_t n) {                                \
    for (int64_t k = 0; k < n; k += H)                                                                        \
      for (int64_t g = 0; g < 2 * H; g += H) {                                                                \
        PART part[H];                                                                                         \
        for (int64_t j = 0; j < H; j++) part[j] = k + j < n ? ((const PART *)(v + k + j))[g / H] : (PART){0}; \
        BLOCK(part);                                                                                          \
        S *const p = y + g * ld + k;                                                                          \
        if (n - k >= H)                                                                                       \
          for (int64_t r = 0; r < H; r++) *(PART *)(p + r * ld) = part[r];                                    \
        else                                                                                                  \
          for (int64_t r = 0; r < H; r++) STORE(p + r * ld, plk_first_##sfx(n - k), (M)part[r]);              \
      }                                                                                                       \
  }
PLK_TURN_BACK(float, f32, PlkV_f32, PlkH_f32, 8, plk_eight, _mm256_maskstore_ps, __m256)
PLK_TURN_BACK(double, f64, PlkV_f64, PlkH_f64, 4, plk_four, _mm256_maskstore_pd, __m256d)
#else
#define PLK_SHORT_ROWS 0
#endif

#if PLK_SHORT_ROWS
PLK_LANE void plk_join_f64(const PlkV_f64 *lane, int64_t live, double *sum) {
  PlkV_f64 d[8];
  for (int k = 0; k < 8; k++) d[k] = k < live ? lane[k] : (PlkV_f64){0};
  for (int k = 0; k < 4; k++) d[k] += d[k + 4];
  *(PlkV_f64 *)sum = (d[0] + d[2]) + (d[1] + d[3]);
}
PLK_LANE void plk_join_f32(const PlkV_f32 *lane, int64_t live, double *sum) {
  PlkV_f64 low[8] = {{0}}, high[8] = {{0}};
  for (int k = 0; k < 8 && k < live; k++) {
    low[k] = plk_low(lane[k]), high[k] = plk_high(lane[k]);
    if (k + 8 < live) low[k] += plk_low(lane[k + 8]), high[k] += plk_high(lane[k + 8]);
  }
  plk_join_f64(low, live, sum);
  plk_join_f64(high, live, sum + 8);
}
#endif

#endif
