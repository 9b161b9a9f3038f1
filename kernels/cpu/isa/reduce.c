/* SPDX-License-Identifier: MIT
 * Inner loops of reductions, compiled once per ISA level. f32 sums run in four times sixteen lanes over
 * chunks of 4096 elements, chunks add up in double: at most 64 rounded additions are behind a partial
 * sum. Maxima keep the first NaN they meet. */
#include "kernels/base.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = PLK_SUM_CHUNK };

#define SUM(T, sfx)                                                 \
  PLK_LANE double sum_of_##sfx(const T *x, int64_t n) {             \
    enum { L = PLK_N_##sfx, STEP = 4 * L };                         \
    double total = 0;                                               \
    for (int64_t at = 0; at < n; at += CHUNK) {                     \
      const T *p = x + at;                                          \
      int64_t m = n - at < CHUNK ? n - at : CHUNK, i = 0;           \
      PlkV_##sfx a = {0}, b = {0}, c = {0}, d = {0};                \
      for (; i + STEP <= m; i += STEP) {                            \
        a += *(const PlkV_##sfx *)(p + i);                          \
        b += *(const PlkV_##sfx *)(p + i + L);                      \
        c += *(const PlkV_##sfx *)(p + i + 2 * L);                  \
        d += *(const PlkV_##sfx *)(p + i + 3 * L);                  \
      }                                                             \
      for (; i + L <= m; i += L) a += *(const PlkV_##sfx *)(p + i); \
      if (i < m) b += plk_tail_##sfx(p + i, m - i, 0);              \
      total += plk_lanes_sum_##sfx((a + b) + (c + d));              \
    }                                                               \
    return total;                                                   \
  }
SUM(float, f32)
SUM(double, f64)
static double sum_f32(const float *x, int64_t n) { return sum_of_f32(x, n); }
static double sum_f64(const double *x, int64_t n) { return sum_of_f64(x, n); }

/* NaN is looked for beside the comparisons, which pass it over; the first one is the result. */
#define TAKE(sfx, BEST, acc, p)                               \
  do {                                                        \
    const PlkV_##sfx v_ = (p);                                \
    acc = BEST##_##sfx(acc, v_);                              \
    nan = PLK_OR_SEEN(PlkSeen_##sfx, nan, plk_nan_##sfx(v_)); \
  } while (0)
#define EXTREME(T, sfx, fn, BEST, CMP, START)                                                \
  PLK_LANE T fn##_of(const T *x, int64_t n) {                                                \
    enum { L = PLK_N_##sfx, STEP = 4 * L };                                                  \
    PlkV_##sfx a = plk_tail_##sfx(x, 0, START), b = a, c = a, d = a;                         \
    PlkSeen_##sfx nan = PLK_NONE_SEEN;                                                       \
    int64_t i = 0;                                                                           \
    for (; i + STEP <= n; i += STEP) {                                                       \
      TAKE(sfx, BEST, a, *(const PlkV_##sfx *)(x + i));                                      \
      TAKE(sfx, BEST, b, *(const PlkV_##sfx *)(x + i + L));                                  \
      TAKE(sfx, BEST, c, *(const PlkV_##sfx *)(x + i + 2 * L));                              \
      TAKE(sfx, BEST, d, *(const PlkV_##sfx *)(x + i + 3 * L));                              \
    }                                                                                        \
    for (; i + L <= n; i += L) TAKE(sfx, BEST, a, *(const PlkV_##sfx *)(x + i));             \
    if (i < n) TAKE(sfx, BEST, b, plk_tail_##sfx(x + i, n - i, START));                      \
    if (PL_UNLIKELY(plk_seen_##sfx(nan))) {                                                  \
      for (i = 0; i < n - 1 && x[i] == x[i];) i++;                                           \
      return x[i];                                                                           \
    }                                                                                        \
    T lane[L];                                                                               \
    *(PlkV_##sfx *)lane = BEST##_##sfx(BEST##_##sfx(a, b), BEST##_##sfx(c, d));              \
    for (int w = L / 2; w; w /= 2)                                                           \
      for (int j = 0; j < w; j++) lane[j] = lane[j + w] CMP lane[j] ? lane[j + w] : lane[j]; \
    return lane[0];                                                                          \
  }                                                                                          \
  static T fn(const T *x, int64_t n) { return fn##_of(x, n); }
EXTREME(float, f32, max_f32, plk_max, >, -INFINITY)
EXTREME(float, f32, min_f32, plk_min, <, INFINITY)
EXTREME(double, f64, max_f64, plk_max, >, -(double)INFINITY)
EXTREME(double, f64, min_f64, plk_min, <, (double)INFINITY)

#define ROWS(name, ONE)                                                    \
  static void name(const float *x, int64_t n, int64_t rows, double *out) { \
    for (int64_t r = 0; r < rows; r++) out[r] = (double)ONE(x + r * n, n); \
  }
ROWS(sums_f32, sum_of_f32)
ROWS(maxs_f32, max_f32_of)
ROWS(mins_f32, min_f32_of)

/* Eight rows at a time as a tree, up to 256 rows in T, then into double. */
#define COLSUM(T, sfx)                                                                                                                    \
  static void colpart_##sfx(const T *x, int64_t ld, int64_t rows, int64_t cols, T *PL_RESTRICT part) {                                    \
    const T *p = x;                                                                                                                       \
    int64_t r = 0;                                                                                                                        \
    for (; r + 8 <= rows; r += 8, p += 8 * ld)                                                                                            \
      for (int64_t c = 0; c < cols; c++)                                                                                                  \
        part[c] +=                                                                                                                        \
            ((p[c] + p[c + ld]) + (p[c + 2 * ld] + p[c + 3 * ld])) + ((p[c + 4 * ld] + p[c + 5 * ld]) + (p[c + 6 * ld] + p[c + 7 * ld])); \
    for (; r < rows; r++, p += ld)                                                                                                        \
      for (int64_t c = 0; c < cols; c++) part[c] += p[c];                                                                                 \
  }                                                                                                                                       \
  static void colsum_##sfx(const T *x, int64_t ld, int64_t rows, int64_t cols, double *PL_RESTRICT acc) {                                 \
    T part[PLK_COLS];                                                                                                                     \
    for (int64_t r0 = 0; r0 < rows; r0 += PLK_COLSUM_ROWS) {                                                                              \
      int64_t m = rows - r0 < PLK_COLSUM_ROWS ? rows - r0 : PLK_COLSUM_ROWS;                                                              \
      for (int64_t c = 0; c < cols; c++) part[c] = 0;                                                                                     \
      colpart_##sfx(x + r0 * ld, ld, m, cols, part);                                                                                      \
      for (int64_t c = 0; c < cols; c++) acc[c] += (double)part[c];                                                                       \
    }                                                                                                                                     \
  }
COLSUM(float, f32)
COLSUM(double, f64)

/* Four rows at a time, one after the other: a later NaN wins, else what is better. */
#define COLBEST(fn, CMP)                                                                            \
  static void fn(const float *x, int64_t ld, int64_t rows, int64_t cols, double *PL_RESTRICT acc) { \
    float best[PLK_COLS];                                                                           \
    int64_t r = 0;                                                                                  \
    for (int64_t c = 0; c < cols; c++) best[c] = (float)acc[c];                                     \
    for (; r + 4 <= rows; r += 4) {                                                                 \
      const float *p = x + r * ld, *q = p + ld, *s = q + ld, *t = s + ld;                           \
      for (int64_t c = 0; c < cols; c++) {                                                          \
        float b = best[c];                                                                          \
        b = ((p[c] CMP b) | (p[c] != p[c])) ? p[c] : b;                                             \
        b = ((q[c] CMP b) | (q[c] != q[c])) ? q[c] : b;                                             \
        b = ((s[c] CMP b) | (s[c] != s[c])) ? s[c] : b;                                             \
        best[c] = ((t[c] CMP b) | (t[c] != t[c])) ? t[c] : b;                                       \
      }                                                                                             \
    }                                                                                               \
    for (; r < rows; r++) {                                                                         \
      const float *p = x + r * ld;                                                                  \
      for (int64_t c = 0; c < cols; c++) {                                                          \
        float v = p[c], b = best[c];                                                                \
        best[c] = ((v CMP b) | (v != v)) ? v : b;                                                   \
      }                                                                                             \
    }                                                                                               \
    for (int64_t c = 0; c < cols; c++) acc[c] = (double)best[c];                                    \
  }
COLBEST(colmax_f32, >)
COLBEST(colmin_f32, <)

extern const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table);
const PlkReduceLoops PLK_ISA_NAME(plk_reduce_table) = {sum_f32,    sum_f64,    max_f32,    min_f32,     max_f64,
                                                       min_f64,    colsum_f32, colsum_f64, colpart_f32, colpart_f64,
                                                       colmax_f32, colmin_f32, sums_f32,   maxs_f32,    mins_f32};
