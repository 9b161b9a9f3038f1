/* SPDX-License-Identifier: MIT
 * Inner loops of reductions, compiled once per ISA level. f32 sums (and those of halves, which are widened in registers) run
 * in four times sixteen lanes over chunks of 4096 elements, chunks add up in double: at most 64 rounded additions are behind
 * a partial sum. reduce_body.h has the loops. */
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/isa/short_rows.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = PLK_SUM_CHUNK };

/* A later value v takes the place of b if it is better, or NaN. */
#define LATER_ONE(name, CMP)                                                                     \
  PLK_LANE float later_##name##_f32(float b, float v) { return ((v CMP b) | (v != v)) ? v : b; } \
  PLK_LANE double later_##name##_f64(double b, double v) { return ((v CMP b) | (v != v)) ? v : b; }
LATER_ONE(max, >)
LATER_ONE(min, <)

/* The best of all lanes; of equal ones that in the lowest half, quarter and so on. In registers where they are as wide: halves that are
 * stored and read back wait. */
#if defined(__AVX512F__)
/* v with its upper lanes, from lane k on, first. */
#define UPPER_f32(v, k)                                                                                                          \
  __builtin_shufflevector(v, v, k, k + 1, (k + 2) % 16, (k + 3) % 16, (k + 4) % 16, (k + 5) % 16, (k + 6) % 16, (k + 7) % 16,    \
                          (k + 8) % 16, (k + 9) % 16, (k + 10) % 16, (k + 11) % 16, (k + 12) % 16, (k + 13) % 16, (k + 14) % 16, \
                          (k + 15) % 16)
#define UPPER_f64(v, k) \
  __builtin_shufflevector(v, v, k, (k + 1) % 8, (k + 2) % 8, (k + 3) % 8, (k + 4) % 8, (k + 5) % 8, (k + 6) % 8, (k + 7) % 8)
#define LANES_BEST(name, sfx, T, CMP)                                                     \
  PLK_LANE T lanes_##name##_##sfx(const PlkP_##sfx *a) {                                  \
    PlkP_##sfx v = a[0];                                                                  \
    if (PLK_N_##sfx > 8) v = plk_part_##name##_##sfx(v, UPPER_##sfx(v, 8 % PLK_N_##sfx)); \
    v = plk_part_##name##_##sfx(v, UPPER_##sfx(v, 4));                                    \
    v = plk_part_##name##_##sfx(v, UPPER_##sfx(v, 2));                                    \
    v = plk_part_##name##_##sfx(v, UPPER_##sfx(v, 1));                                    \
    return v[0];                                                                          \
  }
#elif defined(__AVX__)
PLK_LANE __m128 upper_two_ps(__m128 v) { return _mm_movehl_ps(v, v); }
PLK_LANE __m128 upper_one_ps(__m128 v) { return _mm_movehdup_ps(v); }
PLK_LANE __m128d upper_one_pd(__m128d v) { return _mm_unpackhi_pd(v, v); }
#define HALF_BEST_f32(name, a) _mm_##name##_ps(_mm256_extractf128_ps((__m256)(a), 1), _mm256_castps256_ps128((__m256)(a)))
#define HALF_BEST_f64(name, a) _mm_##name##_pd(_mm256_extractf128_pd((__m256d)(a), 1), _mm256_castpd256_pd128((__m256d)(a)))
#define LANES_BEST_IN(name)                                    \
  PLK_LANE float best_##name##_f32(PlkP_f32 a) {               \
    __m128 v = HALF_BEST_f32(name, a);                         \
    v = _mm_##name##_ps(upper_two_ps(v), v);                   \
    return _mm_cvtss_f32(_mm_##name##_ss(upper_one_ps(v), v)); \
  }                                                            \
  PLK_LANE double best_##name##_f64(PlkP_f64 a) {              \
    const __m128d v = HALF_BEST_f64(name, a);                  \
    return _mm_cvtsd_f64(_mm_##name##_sd(upper_one_pd(v), v)); \
  }
LANES_BEST_IN(max)
LANES_BEST_IN(min)
#define LANES_BEST(name, sfx, T, CMP) \
  PLK_LANE T lanes_##name##_##sfx(const PlkP_##sfx *a) { return best_##name##_##sfx(plk_part_##name##_##sfx(a[0], a[1])); }
#else
#define LANES_BEST(name, sfx, T, CMP)                                                \
  PLK_LANE T lanes_##name##_##sfx(const PlkP_##sfx *a) {                             \
    T t[PLK_N_##sfx];                                                                \
    for (int k = 0; k < PLK_PARTS; k++) *(PlkP_##sfx *)(t + PLK_W_##sfx * k) = a[k]; \
    for (int h = PLK_N_##sfx / 2; h; h /= 2)                                         \
      for (int k = 0; k < h; k++) t[k] = t[k + h] CMP t[k] ? t[k + h] : t[k];        \
    return t[0];                                                                     \
  }
#endif
LANES_BEST(max, f32, float, >)
LANES_BEST(min, f32, float, <)
LANES_BEST(max, f64, double, >)
LANES_BEST(min, f64, double, <)

/* Sums of eight neighbours, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), of one row a lane. Others than these levels transpose tiles. */
#if defined(__AVX512F__)
/* x[0] + x[1] of each pair in the even places, of y in the odd ones; what a pair is says SWAP. Blends cost less than shuffles. */
#define JOIN_PS(MASK, SWAP, x, y) _mm512_add_ps(_mm512_mask_blend_ps(MASK, x, y), SWAP(_mm512_mask_blend_ps(MASK, y, x)))
#define SWAP_ONES(v)              _mm512_permute_ps(v, 0xb1)
#define SWAP_TWOS(v)              _mm512_permute_ps(v, 0x4e)
#define SWAP_FOURS(v)             _mm512_shuffle_f32x4(v, v, 0xb1)
/* Sixteen rows of sixteen: g[0] from their first eight elements, g[1] from the others. */
PLK_LANE void trees_f32_of(const PlkV_f32 *v, PlkV_f32 *g) {
  __m512 q[2];
  for (int k = 0; k < 2; k++) {
    const PlkV_f32 *r = v + 8 * k;
    __m512 two[4], four[2];
    for (int j = 0; j < 4; j++) two[j] = JOIN_PS(0xaaaa, SWAP_ONES, (__m512)r[2 * j], (__m512)r[2 * j + 1]);
    for (int j = 0; j < 2; j++) four[j] = JOIN_PS(0xcccc, SWAP_TWOS, two[2 * j], two[2 * j + 1]);
    q[k] = JOIN_PS(0xf0f0, SWAP_FOURS, four[0], four[1]); /* first eight: 16-byte lanes 0 and 1 */
  }
  g[0] = (PlkV_f32)_mm512_shuffle_f32x4(q[0], q[1], 0x44);
  g[1] = (PlkV_f32)_mm512_shuffle_f32x4(q[0], q[1], 0xee);
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
#elif defined(__AVX__)
/* Eight rows of eight. */
PLK_LANE PlkP_f32 eights_f32_of(const PlkP_f32 *v) {
  __m256 q[2]; /* a row's first four elements, and its last, of four rows */
  for (int k = 0; k < 2; k++) {
    const PlkP_f32 *r = v + 4 * k;
    q[k] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)r[0], (__m256)r[1]), _mm256_hadd_ps((__m256)r[2], (__m256)r[3]));
  }
  return (PlkP_f32)_mm256_add_ps(_mm256_permute2f128_ps(q[0], q[1], 0x20), _mm256_permute2f128_ps(q[0], q[1], 0x31));
}
/* Four rows of eight. */
PLK_LANE PlkP_f64 eights_f64_of(const PlkP_f64 *v) { return plk_fours(v) + plk_fours(v + 4); }
#define EIGHTS_f32       eights_f32_of
#define EIGHTS_f64       eights_f64_of
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
#elif defined(EIGHTS_f32)
#define EIGHTS EIGHTS_f32
#endif
#include "kernels/cpu/isa/reduce/reduce_body.h"
#define S    double
#define SFX  f64
#define C    double
#define CSFX f64
#ifdef TREES_f64
#define TREES TREES_f64
#elif defined(EIGHTS_f64)
#define EIGHTS EIGHTS_f64
#endif
#include "kernels/cpu/isa/reduce/reduce_body.h"
#define S    uint16_t
#define SFX  bf16
#define C    float
#define CSFX f32
#ifdef TREES_f32
#define TREES TREES_f32
#elif defined(EIGHTS_f32)
#define EIGHTS EIGHTS_f32
#endif
#include "kernels/cpu/isa/reduce/reduce_body.h"
#define S    uint16_t
#define SFX  f16
#define C    float
#define CSFX f32
#ifdef TREES_f32
#define TREES TREES_f32
#elif defined(EIGHTS_f32)
#define EIGHTS EIGHTS_f32
#endif
#include "kernels/cpu/isa/reduce/reduce_body.h"

#define ONE_ROW(T, sfx)                                                         \
  static double sum_##sfx(const T *x, int64_t n) { return sum_of_##sfx(x, n); } \
  static T max_##sfx(const T *x, int64_t n) { return max_of_##sfx(x, n); }      \
  static T min_##sfx(const T *x, int64_t n) { return min_of_##sfx(x, n); }
ONE_ROW(float, f32)
ONE_ROW(double, f64)

/* The first place where x = y, which is there. */
#if defined(__AVX512F__)
#define PLACE(T, sfx, ps, MASK)                                                                                              \
  static int64_t place_##sfx(const T *x, T y, int64_t n) {                                                                   \
    enum { L = PLK_N_##sfx };                                                                                                \
    unsigned at = 0;                                                                                                         \
    int64_t i = 0;                                                                                                           \
    for (; i + L < n && !at; i += L) at = _mm512_cmp_##ps##_mask(_mm512_loadu_##ps(x + i), _mm512_set1_##ps(y), _CMP_EQ_OQ); \
    if (at) return i - L + __builtin_ctz(at);                                                                                \
    const MASK rest = (MASK)((1u << (n - i)) - 1);                                                                           \
    at = _mm512_mask_cmp_##ps##_mask(rest, _mm512_maskz_loadu_##ps(rest, x + i), _mm512_set1_##ps(y), _CMP_EQ_OQ);           \
    return i + (at ? __builtin_ctz(at) : 0);                                                                                 \
  }
PLACE(float, f32, ps, __mmask16)
PLACE(double, f64, pd, __mmask8)
#else
#define PLACE(T, sfx)                                      \
  static int64_t place_##sfx(const T *x, T y, int64_t n) { \
    int64_t i = 0;                                         \
    while (i < n - 1 && x[i] != y) i++;                    \
    return i;                                              \
  }
PLACE(float, f32)
PLACE(double, f64)
#endif

/* (a, da) -> (a x, da x + a v) in lanes, which are multiplied in order. */
enum { PROD_LANES = 32, HIT_BLOCK = 64, HIT_LANES = 16 };
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
  }
TANGENTS(float, f32)
TANGENTS(double, f64)

/* HIT is whether element e is one; BITS says so of lanes. Sums in lanes, of what is behind the last whole block in the first one; most
 * blocks have no hit, and w is not read there. */
#define HITS(T, sfx, name, HIT, BITS)                                                                             \
  PLK_LANE unsigned name##_block_##sfx(const T *b, const T *y) {                                                  \
    unsigned any = 0;                                                                                             \
    (void)y;                                                                                                      \
    for (int k = 0; k < HIT_BLOCK; k += PLK_N_##sfx) any |= BITS(sfx, b + k, y);                                  \
    return any;                                                                                                   \
  }                                                                                                               \
  static double name##_##sfx(const T *x, const T *v, T y, int64_t n, double *count) {                             \
    double sum[HIT_LANES] = {0};                                                                                  \
    int64_t at = 0, hits = 0;                                                                                     \
    T ys[PLK_N_##sfx];                                                                                            \
    for (int k = 0; k < PLK_N_##sfx; k++) ys[k] = y;                                                              \
    (void)ys;                                                                                                     \
    for (; at + HIT_BLOCK <= n; at += HIT_BLOCK) {                                                                \
      if (!name##_block_##sfx(x + at, ys)) continue;                                                              \
      for (int k = 0; k < HIT_BLOCK; k += PLK_N_##sfx) {                                                          \
        unsigned m = BITS(sfx, x + at + k, ys);                                                                   \
        const T *const w = v + at + k;                                                                            \
        double *const to = sum + k % HIT_LANES;                                                                   \
        hits += __builtin_popcount(m);                                                                            \
        if ((m & (m - 1)) == 0) { /* one or none */                                                               \
          if (m) to[__builtin_ctz(m)] += (double)w[__builtin_ctz(m)];                                             \
          continue;                                                                                               \
        }                                                                                                         \
        for (int j = 0; j < PLK_N_##sfx; j++) {                                                                   \
          const T e = x[at + k + j];                                                                              \
          to[j] += HIT ? (double)w[j] : 0;                                                                        \
        }                                                                                                         \
      }                                                                                                           \
    }                                                                                                             \
    for (; at + PLK_N_##sfx <= n; at += PLK_N_##sfx)                                                              \
      for (unsigned m = BITS(sfx, x + at, ys); m; m &= m - 1) sum[0] += (double)v[at + __builtin_ctz(m)], hits++; \
    for (; at < n; at++) {                                                                                        \
      const T e = x[at];                                                                                          \
      if (HIT) sum[0] += (double)v[at], hits++;                                                                   \
    }                                                                                                             \
    for (int h = HIT_LANES / 2; h; h /= 2)                                                                        \
      for (int k = 0; k < h; k++) sum[k] += sum[k + h];                                                           \
    *count = (double)hits;                                                                                        \
    return sum[0];                                                                                                \
  }
#define FIRST_HIT(T, sfx, name)                                                     \
  static int64_t name##_first_##sfx(const T *x, T y, int64_t n) {                   \
    T ys[PLK_N_##sfx];                                                              \
    for (int k = 0; k < PLK_N_##sfx; k++) ys[k] = y;                                \
    int64_t at = 0;                                                                 \
    while (at + HIT_BLOCK <= n && !name##_block_##sfx(x + at, ys)) at += HIT_BLOCK; \
    return at;                                                                      \
  }
#define EQUAL(sfx, p, y)   plk_equal_##sfx(p, y)
#define MISSING(sfx, p, y) plk_missing_##sfx(p)
#define HITS_OF(T, sfx)                                                                       \
  HITS(T, sfx, equal, (e == y), EQUAL)                                                        \
  HITS(T, sfx, missing, (e != e), MISSING)                                                    \
  FIRST_HIT(T, sfx, equal)                                                                    \
  FIRST_HIT(T, sfx, missing)                                                                  \
  static int64_t first_##sfx(const T *x, T y, bool nan, int64_t n) {                          \
    return (nan && y != y ? missing_first_##sfx : equal_first_##sfx)(x, y, n);                \
  }                                                                                           \
  static double hits_##sfx(const T *x, const T *v, T y, bool nan, int64_t n, double *count) { \
    return (nan && y != y ? missing_##sfx : equal_##sfx)(x, v, y, n, count);                  \
  }
HITS_OF(float, f32)
HITS_OF(double, f64)

#define FORMS(name, sfx, CROSS) \
  { name##_rows_##sfx, name##_cols_##sfx, name##_rows_across_##sfx, CROSS }
#define TYPE(sfx) \
  { FORMS(sum, sfx, ACROSS_COLS(sfx)), FORMS(max, sfx, max_cols_across_##sfx), FORMS(min, sfx, min_cols_across_##sfx) }
static void fill(double *to, double v, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = v;
}
static void divide(double *v, double by, int64_t n) {
  for (int64_t i = 0; i < n; i++) v[i] /= by;
}
/* Of floats by a float: rounding the quotient of doubles to float gives the same, as 53 bits are more than twice 24. */
static void divide_floats(double *v, double by, int64_t n) {
  const float b = (float)by;
  for (int64_t i = 0; i < n; i++) v[i] = (double)((float)v[i] / b);
}
static void root(double *v, int64_t n) {
  for (int64_t i = 0; i < n; i++) v[i] = sqrt(v[i]);
}
static void to_f32(const double *v, float *PL_RESTRICT to, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = (float)v[i];
}

/* What sums begin and end with, and what adds elements: all that a program needs which only sums floats. */
#define SUMS                                                                                                                              \
  .fill = fill, .divide = divide, .divide_floats = divide_floats, .root = root, .to_f32 = to_f32, .sum_f32 = sum_f32, .sum_f64 = sum_f64, \
  .colpart_f32 = colpart_f32, .colpart_f64 = colpart_f64
extern const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table);
const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table) = {
    SUMS,
    .max_f32 = max_f32,
    .min_f32 = min_f32,
    .max_f64 = max_f64,
    .min_f64 = min_f64,
    .place_f32 = place_f32,
    .place_f64 = place_f64,
    .prod_tangent_f32 = prod_tangent_f32,
    .prod_tangent_f64 = prod_tangent_f64,
    .first_f32 = first_f32,
    .first_f64 = first_f64,
    .hits_f32 = hits_f32,
    .hits_f64 = hits_f64,
    .plain = {[PL_F32] = TYPE(f32), [PL_F64] = TYPE(f64), [PL_F16] = TYPE(f16), [PL_BF16] = TYPE(bf16)},
};
extern const PlkReduceLoops PLK_ISA_NAME(plk_float_sums_table);
const PlkReduceLoops PLK_ISA_NAME(plk_float_sums_table) = {
    SUMS,
    .plain =
        {[PL_F32] = {[PLK_CORE_SUM] = FORMS(sum, f32, ACROSS_COLS(f32))}, [PL_F64] = {[PLK_CORE_SUM] = FORMS(sum, f64, ACROSS_COLS(f64))}},
};
extern const PlkRowSums PLK_ISA_NAME(plk_row_sums);
const PlkRowSums PLK_ISA_NAME(plk_row_sums) = {sum_rows_f32, sum_rows_f64};
