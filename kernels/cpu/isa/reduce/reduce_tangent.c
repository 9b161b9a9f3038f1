/* SPDX-License-Identifier: MIT
 * Reductions with their tangents in one pass, compiled once per ISA level: what reduce_map.c adds up or multiplies, step by step in its
 * order, so that the values have its bits, and beside each partial result r the same of r's tangent d. x is read once. */
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

PLK_LANE PlkP_f64 magnitude(PlkP_f64 v) { return (PlkP_f64)((PlkPM_f64)v & INT64_MAX); }
PLK_LANE PlkP_f64 sign_of(PlkP_f64 x) { /* 0 for 0 and NaN */
  const PlkP_f64 one = (PlkP_f64){0} + 1.0;
  return (PlkP_f64)(((PlkPM_f64)one | ((PlkPM_f64)x & INT64_MIN)) & (PlkPM_f64)(magnitude(x) > 0));
}
static inline double sign_one(double x) { return (double)(x > 0) - (double)(x < 0); }

/* (r, d) becomes that joined with (s, e). */
#define ADDED(r, d, s, e)      ((d) = (d) + (e), (r) = (r) + (s))
#define MULTIPLIED(r, d, s, e) ((d) = (d) * (s) + (r) * (e), (r) = (r) * (s))

/* Of elements x and their tangents w: (VALUE, SLOPE) joined by JOIN from START on; the same of one as (VALUE1, SLOPE1). c is the output's
 * number. Rows give value and tangent; columns are added to acc and dacc. */
#define PAIRS(T, sfx, name, START, JOIN, VALUE, SLOPE, VALUE1, SLOPE1)                                                                    \
  static double name##_row_##sfx(const T *p, const T *q, int64_t n, double aux, double *tangent) {                                        \
    const PlkP_f64 c = (PlkP_f64){0} + aux;                                                                                               \
    PlkP_f64 a[4 * PLK_PARTS], b[4 * PLK_PARTS];                                                                                          \
    (void)c;                                                                                                                              \
    for (int j = 0; j < 4 * PLK_PARTS; j++) a[j] = (PlkP_f64){0} + (double)(START), b[j] = (PlkP_f64){0};                                 \
    int64_t i = 0;                                                                                                                        \
    for (; i + 32 <= n; i += 32)                                                                                                          \
      for (int j = 0; j < 4 * PLK_PARTS; j++) {                                                                                           \
        const PlkP_f64 x = plk_wide_##sfx(p + i + PLK_W_f64 * j), w = plk_wide_##sfx(q + i + PLK_W_f64 * j);                              \
        JOIN(a[j], b[j], VALUE, SLOPE);                                                                                                   \
      }                                                                                                                                   \
    for (; i + 8 <= n; i += 8)                                                                                                            \
      for (int j = 0; j < PLK_PARTS; j++) {                                                                                               \
        const PlkP_f64 x = plk_wide_##sfx(p + i + PLK_W_f64 * j), w = plk_wide_##sfx(q + i + PLK_W_f64 * j);                              \
        JOIN(a[j], b[j], VALUE, SLOPE);                                                                                                   \
      }                                                                                                                                   \
    double r[8], d[8];                                                                                                                    \
    for (int j = 0; j < PLK_PARTS; j++) {                                                                                                 \
      enum { N = PLK_PARTS };                                                                                                             \
      JOIN(a[j], b[j], a[N + j], b[N + j]);                                                                                               \
      JOIN(a[2 * N + j], b[2 * N + j], a[3 * N + j], b[3 * N + j]);                                                                       \
      JOIN(a[j], b[j], a[2 * N + j], b[2 * N + j]);                                                                                       \
      *(PlkP_f64 *)(r + PLK_W_f64 * j) = a[j], *(PlkP_f64 *)(d + PLK_W_f64 * j) = b[j];                                                   \
    }                                                                                                                                     \
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
    PlkP_f64 a[4 * PLK_PARTS];                                                                                                         \
    double r[8];                                                                                                                       \
    for (int j = 0; j < 4 * PLK_PARTS; j++) a[j] = (PlkP_f64){0};                                                                      \
    int64_t i = 0;                                                                                                                     \
    for (; i + 32 <= n; i += 32)                                                                                                       \
      for (int j = 0; j < 4 * PLK_PARTS; j++) a[j] += plk_wide_##sfx(e + i + PLK_W_f64 * j) * plk_wide_##sfx(w + i + PLK_W_f64 * j);   \
    for (; i + 8 <= n; i += 8)                                                                                                         \
      for (int j = 0; j < PLK_PARTS; j++) a[j] += plk_wide_##sfx(e + i + PLK_W_f64 * j) * plk_wide_##sfx(w + i + PLK_W_f64 * j);       \
    for (int j = 0; j < PLK_PARTS; j++)                                                                                                \
      *(PlkP_f64 *)(r + PLK_W_f64 * j) = (a[j] + a[PLK_PARTS + j]) + (a[2 * PLK_PARTS + j] + a[3 * PLK_PARTS + j]);                    \
    double all = ((r[0] + r[4]) + (r[2] + r[6])) + ((r[1] + r[5]) + (r[3] + r[7]));                                                    \
    for (; i < n; i++) all += (double)e[i] * (double)w[i];                                                                             \
    return all;                                                                                                                        \
  }
EXP_COLUMNS(float, f32)
EXP_COLUMNS(double, f64)

/* Where columns are equal to y: the sum of w, and at how many places. Most pieces of rows have no such place: w is not read there. */
enum { PIECE = 64 };
#define HITS(T, sfx)                                                                                                                   \
  static void hits_col_##sfx(const T *p, const T *q, int64_t ld, int64_t rows, int64_t cols, const T *y, double *sum, double *count) { \
    for (int64_t r = 0; r < rows; r++, p += ld, q += ld) {                                                                             \
      int64_t k0 = 0;                                                                                                                  \
      for (; k0 + PIECE <= cols; k0 += PIECE) {                                                                                        \
        uint64_t m = 0;                                                                                                                \
        for (int k = 0; k < PIECE; k += PLK_N_##sfx) m |= (uint64_t)plk_equal_##sfx(p + k0 + k, y + k0 + k) << k;                      \
        for (; m; m &= m - 1) {                                                                                                        \
          const int64_t k = k0 + __builtin_ctzll(m);                                                                                   \
          sum[k] += (double)q[k];                                                                                                      \
          count[k] += 1;                                                                                                               \
        }                                                                                                                              \
      }                                                                                                                                \
      for (int64_t k = k0; k < cols; k++) {                                                                                            \
        sum[k] += p[k] == y[k] ? (double)q[k] : 0;                                                                                     \
        count[k] += p[k] == y[k] ? 1 : 0;                                                                                              \
      }                                                                                                                                \
    }                                                                                                                                  \
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
