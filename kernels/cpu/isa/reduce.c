/* SPDX-License-Identifier: MIT
 * Inner loops of reductions, compiled once per ISA level. f32 sums (and those of halves, which are widened in registers) run
 * in four times sixteen lanes over chunks of 4096 elements, chunks add up in double: at most 64 rounded additions are behind
 * a partial sum. reduce_body.h has the loops. */
#include "kernels/base.h"
#include "kernels/cpu/isa/halves.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = PLK_SUM_CHUNK };

/* A later value v takes the place of b if it is better, or NaN. */
#define LATER_ONE(name, CMP)                                                                     \
  PLK_LANE float later_##name##_f32(float b, float v) { return ((v CMP b) | (v != v)) ? v : b; } \
  PLK_LANE double later_##name##_f64(double b, double v) { return ((v CMP b) | (v != v)) ? v : b; }
LATER_ONE(max, >)
LATER_ONE(min, <)

/* Sums of eight neighbours, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), of one row a lane. Other levels transpose tiles. */
#if defined(__AVX512F__)
#define PAIRS_PS(a, b) _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd))
#define LANES_PS(a, b) _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))
/* Sixteen rows of sixteen: g[0] from their first eight elements, g[1] from the others. */
PLK_LANE void trees_f32_of(const PlkV_f32 *v, PlkV_f32 *g) {
  __m512 q[4];
  for (int k = 0; k < 4; k++) {
    const __m512 ab = PAIRS_PS((__m512)v[4 * k], (__m512)v[4 * k + 1]), cd = PAIRS_PS((__m512)v[4 * k + 2], (__m512)v[4 * k + 3]);
    q[k] = PAIRS_PS(ab, cd); /* per 16 bytes: four neighbours of four rows */
  }
  const __m512 low = LANES_PS(q[0], q[1]), high = LANES_PS(q[2], q[3]);
  g[0] = (PlkV_f32)_mm512_shuffle_f32x4(low, high, 0x88);
  g[1] = (PlkV_f32)_mm512_shuffle_f32x4(low, high, 0xdd);
}
#define LANES_PD(a, b) _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd))
/* Eight rows of eight. */
PLK_LANE void trees_f64_of(const PlkV_f64 *v, PlkV_f64 *g) {
  __m512d q[4];
  for (int k = 0; k < 4; k++) {
    const __m512d a = (__m512d)v[2 * k], b = (__m512d)v[2 * k + 1];
    q[k] = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
  }
  g[0] = (PlkV_f64)LANES_PD(LANES_PD(q[0], q[1]), LANES_PD(q[2], q[3]));
}
#define TREES_f32        trees_f32_of
#define TREES_f64        trees_f64_of
#define ACROSS_COLS(sfx) sum_cols_across_##sfx
#else
#define ACROSS_COLS(sfx) NULL
#endif

#define S    float
#define SFX  f32
#define C    float
#define CSFX f32
#ifdef TREES_f32
#define TREES TREES_f32
#endif
#include "kernels/cpu/isa/reduce_body.h"
#define S    double
#define SFX  f64
#define C    double
#define CSFX f64
#ifdef TREES_f64
#define TREES TREES_f64
#endif
#include "kernels/cpu/isa/reduce_body.h"
#define S    uint16_t
#define SFX  bf16
#define C    float
#define CSFX f32
#ifdef TREES_f32
#define TREES TREES_f32
#endif
#include "kernels/cpu/isa/reduce_body.h"
#define S    uint16_t
#define SFX  f16
#define C    float
#define CSFX f32
#ifdef TREES_f32
#define TREES TREES_f32
#endif
#include "kernels/cpu/isa/reduce_body.h"

#define ONE_ROW(T, sfx)                                                         \
  static double sum_##sfx(const T *x, int64_t n) { return sum_of_##sfx(x, n); } \
  static T max_##sfx(const T *x, int64_t n) { return max_of_##sfx(x, n); }      \
  static T min_##sfx(const T *x, int64_t n) { return min_of_##sfx(x, n); }
ONE_ROW(float, f32)
ONE_ROW(double, f64)

/* (a, da) -> (a x, da x + a v) in lanes, which are multiplied in order. */
enum { PROD_LANES = 32, HIT_BLOCK = 64 };
#define TANGENTS(T, sfx)                                                                                       \
  static double prod_tangent_##sfx(const T *x, const T *v, int64_t n) {                                        \
    double a[PROD_LANES], da[PROD_LANES], all = 1, t = 0;                                                      \
    int64_t i = 0;                                                                                             \
    for (int k = 0; k < PROD_LANES; k++) a[k] = 1, da[k] = 0;                                                  \
    for (; i + PROD_LANES <= n; i += PROD_LANES)                                                               \
      for (int k = 0; k < PROD_LANES; k++) {                                                                   \
        const double e = (double)x[i + k], w = (double)v[i + k];                                               \
        da[k] = da[k] * e + a[k] * w;                                                                          \
        a[k] *= e;                                                                                             \
      }                                                                                                        \
    for (int k = 0; i < n; i++, k++) da[k] = da[k] * (double)x[i] + a[k] * (double)v[i], a[k] *= (double)x[i]; \
    for (int k = 0; k < PROD_LANES; k++) t = t * a[k] + all * da[k], all *= a[k];                              \
    return t;                                                                                                  \
  }                                                                                                            \
  static double hits_##sfx(const T *x, const T *v, T y, bool nan, int64_t n, double *count) {                  \
    const bool all = nan && y != y;                                                                            \
    double sum = 0, hits = 0;                                                                                  \
    for (int64_t at = 0; at < n; at += HIT_BLOCK) { /* most blocks have none: v is not read there */           \
      const int64_t m = n - at < HIT_BLOCK ? n - at : HIT_BLOCK;                                               \
      const T *const b = x + at;                                                                               \
      int any = all;                                                                                           \
      if (m == HIT_BLOCK)                                                                                      \
        for (int k = 0; k < HIT_BLOCK; k++) any |= b[k] == y;                                                  \
      else any = 1;                                                                                            \
      if (!any) continue;                                                                                      \
      for (int64_t k = 0; k < m; k++)                                                                          \
        if (b[k] == y || (all && b[k] != b[k])) sum += (double)v[at + k], hits++;                              \
    }                                                                                                          \
    *count = hits;                                                                                             \
    return sum;                                                                                                \
  }
TANGENTS(float, f32)
TANGENTS(double, f64)

#define FORMS(name, sfx, CROSS) \
  { name##_rows_##sfx, name##_cols_##sfx, name##_rows_across_##sfx, CROSS }
#define TYPE(sfx) \
  { FORMS(sum, sfx, ACROSS_COLS(sfx)), FORMS(max, sfx, max_cols_across_##sfx), FORMS(min, sfx, min_cols_across_##sfx) }
extern const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table);
const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table) = {
    .sum_f32 = sum_f32,
    .sum_f64 = sum_f64,
    .max_f32 = max_f32,
    .min_f32 = min_f32,
    .max_f64 = max_f64,
    .min_f64 = min_f64,
    .prod_tangent_f32 = prod_tangent_f32,
    .prod_tangent_f64 = prod_tangent_f64,
    .hits_f32 = hits_f32,
    .hits_f64 = hits_f64,
    .colpart_f32 = colpart_f32,
    .colpart_f64 = colpart_f64,
    .plain = {[PL_F32] = TYPE(f32), [PL_F64] = TYPE(f64), [PL_F16] = TYPE(f16), [PL_BF16] = TYPE(bf16)},
};
extern const PlkRowSums PLK_ISA_NAME(plk_row_sums);
const PlkRowSums PLK_ISA_NAME(plk_row_sums) = {sum_rows_f32, sum_rows_f64};
