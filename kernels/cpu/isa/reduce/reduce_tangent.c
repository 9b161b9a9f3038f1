/* SPDX-License-Identifier: MIT
 * Reductions with their tangents in one pass, compiled once per ISA level: what reduce_map.c adds up or multiplies, step by step in its
 * order, so that the values have its bits, and beside each partial result r the same of r's tangent d. x is read once. */
#include "kernels/base.h"
#include "kernels/cpu/isa/halves.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

/* gcc 12 makes five instructions of __builtin_convertvector to 64 bytes. */
#if defined(__AVX512F__)
#define DOUBLES(v) ((PlkV_f64)_mm512_cvtps_pd((__m256)(v)))
#else
#define DOUBLES(v) __builtin_convertvector(v, PlkV_f64)
#endif
#define LOAD_f32(p) DOUBLES(*(const PlkH_f32 *)(p))
#define LOAD_f64(p) plk_in_f64(p)

PLK_LANE PlkV_f64 magnitude(PlkV_f64 v) { return (PlkV_f64)((PlkM_f64)v & INT64_MAX); }
PLK_LANE PlkV_f64 sign_of(PlkV_f64 x) { /* 0 for 0 and NaN */
  const PlkV_f64 one = (PlkV_f64){0} + 1.0;
  return (PlkV_f64)(((PlkM_f64)one | ((PlkM_f64)x & INT64_MIN)) & (PlkM_f64)(magnitude(x) > 0));
}
static inline double sign_one(double x) { return (double)(x > 0) - (double)(x < 0); }

/* (r, d) becomes that joined with (s, e). */
#define ADDED(r, d, s, e)      ((d) = (d) + (e), (r) = (r) + (s))
#define MULTIPLIED(r, d, s, e) ((d) = (d) * (s) + (r) * (e), (r) = (r) * (s))

/* Of elements x and their tangents w: (VALUE, SLOPE) joined by JOIN from START on; the same of one as (VALUE1, SLOPE1). c is the output's
 * number. Rows give value and tangent; columns are added to acc and dacc. */
#define PAIRS(T, sfx, name, START, JOIN, VALUE, SLOPE, VALUE1, SLOPE1)                                                                    \
  static double name##_row_##sfx(const T *p, const T *q, int64_t n, double aux, double *tangent) {                                        \
    const PlkV_f64 c = (PlkV_f64){0} + aux;                                                                                               \
    PlkV_f64 a[4], b[4];                                                                                                                  \
    (void)c;                                                                                                                              \
    for (int j = 0; j < 4; j++) a[j] = (PlkV_f64){0} + (double)(START), b[j] = (PlkV_f64){0};                                             \
    int64_t i = 0;                                                                                                                        \
    for (; i + 32 <= n; i += 32)                                                                                                          \
      for (int j = 0; j < 4; j++) {                                                                                                       \
        const PlkV_f64 x = LOAD_##sfx(p + i + 8 * j), w = LOAD_##sfx(q + i + 8 * j);                                                      \
        JOIN(a[j], b[j], VALUE, SLOPE);                                                                                                   \
      }                                                                                                                                   \
    for (; i + 8 <= n; i += 8) {                                                                                                          \
      const PlkV_f64 x = LOAD_##sfx(p + i), w = LOAD_##sfx(q + i);                                                                        \
      JOIN(a[0], b[0], VALUE, SLOPE);                                                                                                     \
    }                                                                                                                                     \
    JOIN(a[0], b[0], a[1], b[1]);                                                                                                         \
    JOIN(a[2], b[2], a[3], b[3]);                                                                                                         \
    JOIN(a[0], b[0], a[2], b[2]);                                                                                                         \
    double r[8], d[8];                                                                                                                    \
    for (int j = 0; j < 8; j++) r[j] = a[0][j], d[j] = b[0][j];                                                                           \
    for (int h = 4; h; h /= 2)                                                                                                            \
      for (int j = 0; j < h; j++) JOIN(r[j], d[j], r[j + h], d[j + h]);                                                                   \
    for (; i < n; i++) {                                                                                                                  \
      const double x = (double)p[i], w = (double)q[i], c1 = aux;                                                                          \
      (void)c1;                                                                                                                           \
      JOIN(r[0], d[0], VALUE1, SLOPE1);                                                                                                   \
    }                                                                                                                                     \
    *tangent = d[0];                                                                                                                      \
    return r[0];                                                                                                                          \
  }                                                                                                                                       \
  static void name##_col_##sfx(const T *PL_RESTRICT p, const T *PL_RESTRICT q, int64_t ld, int64_t rows, int64_t cols, const double *aux, \
                               double *PL_RESTRICT acc, double *PL_RESTRICT dacc) {                                                       \
    static const double none[PLK_COLS];                                                                                                   \
    const double *PL_RESTRICT c = aux ? aux : none;                                                                                       \
    int64_t r = 0;                                                                                                                        \
    for (; r + 4 <= rows; r += 4, p += 4 * ld, q += 4 * ld)                                                                               \
      for (int64_t k = 0; k < cols; k++) {                                                                                                \
        const double c1 = c[k];                                                                                                           \
        double f[4], g[4], a = acc[k], b = dacc[k];                                                                                       \
        (void)c1;                                                                                                                         \
        for (int j = 0; j < 4; j++) {                                                                                                     \
          const double x = (double)p[k + j * ld], w = (double)q[k + j * ld];                                                              \
          f[j] = VALUE1, g[j] = SLOPE1;                                                                                                   \
        }                                                                                                                                 \
        JOIN(f[0], g[0], f[1], g[1]);                                                                                                     \
        JOIN(f[2], g[2], f[3], g[3]);                                                                                                     \
        JOIN(f[0], g[0], f[2], g[2]);                                                                                                     \
        JOIN(a, b, f[0], g[0]);                                                                                                           \
        acc[k] = a, dacc[k] = b;                                                                                                          \
      }                                                                                                                                   \
    for (; r < rows; r++, p += ld, q += ld)                                                                                               \
      for (int64_t k = 0; k < cols; k++) {                                                                                                \
        const double x = (double)p[k], w = (double)q[k], c1 = c[k];                                                                       \
        double a = acc[k], b = dacc[k];                                                                                                   \
        (void)c1;                                                                                                                         \
        JOIN(a, b, VALUE1, SLOPE1);                                                                                                       \
        acc[k] = a, dacc[k] = b;                                                                                                          \
      }                                                                                                                                   \
  }
#define BOTH(name, START, JOIN, VALUE, SLOPE, VALUE1, SLOPE1)        \
  PAIRS(float, f32, name, START, JOIN, VALUE, SLOPE, VALUE1, SLOPE1) \
  PAIRS(double, f64, name, START, JOIN, VALUE, SLOPE, VALUE1, SLOPE1)
BOTH(square, 0, ADDED, x *x, x *w, x *x, x *w)
BOTH(abs, 0, ADDED, magnitude(x), sign_of(x) * w, vm_abs_f64(x), sign_one(x) * w)
BOTH(sqdiff, 0, ADDED, (x - c) * (x - c), (x - c) * w, (x - c1) * (x - c1), (x - c1) * w)
BOTH(prod, 1, MULTIPLIED, x, w, x, w)

/* Sums of exp(x - c) and w exp(x - c), as exp_col of reduce_map.c has the first. */
#define EXP_COLUMNS(T, sfx)                                                                                                            \
  static void exp_col_##sfx(const T *PL_RESTRICT p, const T *PL_RESTRICT q, int64_t ld, int64_t rows, int64_t cols, const double *aux, \
                            double *PL_RESTRICT acc, double *PL_RESTRICT dacc) {                                                       \
    T c[PLK_COLS];                                                                                                                     \
    for (int64_t k = 0; k < cols; k++) c[k] = (T)aux[k];                                                                               \
    for (int64_t r = 0; r < rows; r++, p += ld, q += ld)                                                                               \
      for (int64_t k = 0; k < cols; k++) {                                                                                             \
        const double e = (double)vm_exp_##sfx(p[k] - c[k]);                                                                            \
        acc[k] += e;                                                                                                                   \
        dacc[k] += e * (double)q[k];                                                                                                   \
      }                                                                                                                                \
  }                                                                                                                                    \
  /* sum of e w */                                                                                                                     \
  static double dot_##sfx(const T *e, const T *w, int64_t n) {                                                                         \
    PlkV_f64 a[4];                                                                                                                     \
    for (int j = 0; j < 4; j++) a[j] = (PlkV_f64){0};                                                                                  \
    int64_t i = 0;                                                                                                                     \
    for (; i + 32 <= n; i += 32)                                                                                                       \
      for (int j = 0; j < 4; j++) a[j] += LOAD_##sfx(e + i + 8 * j) * LOAD_##sfx(w + i + 8 * j);                                       \
    for (; i + 8 <= n; i += 8) a[0] += LOAD_##sfx(e + i) * LOAD_##sfx(w + i);                                                          \
    a[0] = (a[0] + a[1]) + (a[2] + a[3]);                                                                                              \
    double all = ((a[0][0] + a[0][4]) + (a[0][2] + a[0][6])) + ((a[0][1] + a[0][5]) + (a[0][3] + a[0][7]));                            \
    for (; i < n; i++) all += (double)e[i] * (double)w[i];                                                                             \
    return all;                                                                                                                        \
  }
EXP_COLUMNS(float, f32)
EXP_COLUMNS(double, f64)

/* Where columns are equal to y: the sum of w, and at how many places. Most pieces of rows have no such place: w is not read there. */
enum { PIECE = 64 };
#define HITS(T, sfx)                                                                                                                   \
  static void hits_col_##sfx(const T *p, const T *q, int64_t ld, int64_t rows, int64_t cols, const T *y, double *sum, double *count) { \
    for (int64_t r = 0; r < rows; r++, p += ld, q += ld)                                                                               \
      for (int64_t k0 = 0; k0 < cols; k0 += PIECE) {                                                                                   \
        const int64_t n = cols - k0 < PIECE ? cols - k0 : PIECE;                                                                       \
        const T *PL_RESTRICT a = p + k0, *PL_RESTRICT b = y + k0, *PL_RESTRICT w = q + k0;                                             \
        double *PL_RESTRICT s = sum + k0, *PL_RESTRICT c = count + k0;                                                                 \
        int any = n < PIECE;                                                                                                           \
        for (int k = 0; k < PIECE && n == PIECE; k++) any |= a[k] == b[k];                                                             \
        if (!any) continue;                                                                                                            \
        for (int64_t k = 0; k < n; k++) {                                                                                              \
          s[k] += a[k] == b[k] ? (double)w[k] : 0;                                                                                     \
          c[k] += a[k] == b[k] ? 1 : 0;                                                                                                \
        }                                                                                                                              \
      }                                                                                                                                \
  }
HITS(float, f32)
HITS(double, f64)

#define LOOPS(sfx)                                                                                                                      \
  {                                                                                                                                     \
    .row = {square_row_##sfx, abs_row_##sfx, sqdiff_row_##sfx, prod_row_##sfx, NULL},                                                   \
    .col = {square_col_##sfx, abs_col_##sfx, sqdiff_col_##sfx, prod_col_##sfx, exp_col_##sfx}, .dot = dot_##sfx, .hits = hits_col_##sfx \
  }
extern const PlkReduceTangents PLK_ISA_NAME(plk_reduce_tangents);
const PlkReduceTangents PLK_ISA_NAME(plk_reduce_tangents) = {.f32 = LOOPS(f32), .f64 = LOOPS(f64)};
