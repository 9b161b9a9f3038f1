/* SPDX-License-Identifier: MIT
 * Reductions of mapped elements in one pass, compiled once per ISA level: squares, squared differences, magnitudes and
 * products in double whatever the element and exponentials of floats. Rows run in four times
 * eight lanes that join as a tree; columns take four rows at a time. */
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/isa/short_rows.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vmath/vmath.h"

/* Of PlkP_f64 and of PlkV_f64, which differ below AVX-512. */
#define magnitude(v) ((__typeof__(v))(((__typeof__((v) > (v)))(v)) & INT64_MAX))

#if PLK_SHORT_ROWS
/* As name_of, of n < 32 elements of LANES rows: e[k * LANES …] are their elements k, a part of the rows at a time. */
#define SHORT_OF(START, J, VMAP, WIDE, LANES)                              \
  for (int h = 0; h < LANES; h += PLK_W_f64) {                             \
    const PlkP_f64 c = aux ? *(const PlkP_f64 *)(aux + h) : (PlkP_f64){0}; \
    PlkP_f64 a[8], all, v;                                                 \
    int64_t k = 0;                                                         \
    (void)c;                                                               \
    for (int j = 0; j < 8; j++) a[j] = (PlkP_f64){0} + (double)(START);    \
    for (; k + 8 <= n; k += 8)                                             \
      for (int j = 0; j < 8; j++) {                                        \
        v = WIDE(e + (k + j) * LANES + h);                                 \
        a[j] = a[j] J(VMAP);                                               \
      }                                                                    \
    all = ((a[0] J a[4])J(a[2] J a[6]))J((a[1] J a[5])J(a[3] J a[7]));     \
    for (; k < n; k++) {                                                   \
      v = WIDE(e + k * LANES + h);                                         \
      all = all J(VMAP);                                                   \
    }                                                                      \
    *(PlkP_f64 *)(out + h) = all;                                          \
  }
#define SHORT_f64(S, sfx, name, START, J, VMAP)                                                       \
  static void name##_short_##sfx(const S *x, int64_t ld, int64_t n, const double *aux, double *out) { \
    _Alignas(64) PlkV_f64 turned[32];                                                                 \
    const double *e = (const double *)turned;                                                         \
    plk_turn_f64(x, ld, n, 8, turned);                                                                \
    SHORT_OF(START, J, VMAP, plk_wide_f64, 8)                                                         \
  }
#define SHORT_f32(S, sfx, name, START, J, VMAP)                                                       \
  static void name##_short_##sfx(const S *x, int64_t ld, int64_t n, const double *aux, double *out) { \
    _Alignas(64) PlkV_f32 turned[32];                                                                 \
    const float *e = (const float *)turned;                                                           \
    plk_turn_##sfx(x, ld, n, 16, turned);                                                             \
    SHORT_OF(START, J, VMAP, plk_wide_f32, 16)                                                        \
  }
#define SHORT_bf16                          SHORT_f32
#define SHORT_f16                           SHORT_f32
#define SHORT(S, sfx, name, START, J, VMAP) SHORT_##sfx(S, sfx, name, START, J, VMAP)
#define BY_SHORT(name, sfx)              \
  enum { W = 64 / sizeof(PlkOf_##sfx) }; \
  if (n < 32)                            \
    for (; r + W <= rows; r += W) name##_short_##sfx(x + r * ld, ld, n, aux ? aux + r : NULL, out + r);
typedef float PlkOf_f32, PlkOf_bf16, PlkOf_f16;
typedef double PlkOf_f64;
#else
#define SHORT(S, sfx, name, START, J, VMAP)
#define BY_SHORT(name, sfx)
#endif

enum { AT_ONCE = 8 }; /* a multiple of 4, no more lines than a set of the first cache has */

/* MAP of elements v with the output's c, joined by J from START on. */
#define MAPPED(S, sfx, name, START, J, VMAP, MAP)                                                                                    \
  PLK_LANE double name##_of_##sfx(const S *x, int64_t n, double aux) {                                                               \
    const PlkP_f64 c = (PlkP_f64){0} + aux;                                                                                          \
    PlkP_f64 a[4 * PLK_PARTS], v;                                                                                                    \
    double r[8];                                                                                                                     \
    (void)c;                                                                                                                         \
    for (int j = 0; j < 4 * PLK_PARTS; j++) a[j] = (PlkP_f64){0} + (double)(START);                                                  \
    int64_t i = 0;                                                                                                                   \
    for (; i + 32 <= n; i += 32)                                                                                                     \
      for (int j = 0; j < 4 * PLK_PARTS; j++) {                                                                                      \
        v = plk_wide_##sfx(x + i + PLK_W_f64 * j);                                                                                   \
        a[j] = a[j] J(VMAP);                                                                                                         \
      }                                                                                                                              \
    for (; i + 8 <= n; i += 8)                                                                                                       \
      for (int j = 0; j < PLK_PARTS; j++) {                                                                                          \
        v = plk_wide_##sfx(x + i + PLK_W_f64 * j);                                                                                   \
        a[j] = a[j] J(VMAP);                                                                                                         \
      }                                                                                                                              \
    for (int j = 0; j < PLK_PARTS; j++)                                                                                              \
      *(PlkP_f64 *)(r + PLK_W_f64 * j) = (a[j] J a[PLK_PARTS + j]) J(a[2 * PLK_PARTS + j] J a[3 * PLK_PARTS + j]);                   \
    double all = ((r[0] J r[4])J(r[2] J r[6]))J((r[1] J r[5])J(r[3] J r[7]));                                                        \
    for (; i < n; i++) {                                                                                                             \
      const double v1 = (double)plk_one_##sfx(x[i]), c1 = aux;                                                                       \
      (void)c1;                                                                                                                      \
      all = all J(MAP);                                                                                                              \
    }                                                                                                                                \
    return all;                                                                                                                      \
  }                                                                                                                                  \
  SHORT(S, sfx, name, START, J, VMAP)                                                                                                \
  static void name##_row_##sfx(const void *xv, int64_t ld, int64_t n, int64_t rows, const double *aux, double *out) {                \
    const S *x = xv;                                                                                                                 \
    int64_t r = 0;                                                                                                                   \
    BY_SHORT(name, sfx)                                                                                                              \
    for (; r < rows; r++) out[r] = name##_of_##sfx(x + r * ld, n, aux ? aux[r] : 0);                                                 \
  }                                                                                                                                  \
  static inline double name##_one_##sfx(S x, double c1) {                                                                            \
    const double v1 = (double)plk_one_##sfx(x);                                                                                      \
    (void)c1;                                                                                                                        \
    return MAP;                                                                                                                      \
  }                                                                                                                                  \
  /* AT_ONCE rows, so that sums are loaded and stored once for all of them */                                                        \
  static void name##_col_##sfx(const void *xv, int64_t ld, int64_t rows, int64_t cols, const double *aux, double *PL_RESTRICT acc) { \
    static const double none[PLK_COLS];                                                                                              \
    const double *PL_RESTRICT c_of = aux ? aux : none;                                                                               \
    for (int64_t r0 = 0; r0 < rows; r0 += AT_ONCE) {                                                                                 \
      const S *x = (const S *)xv + r0 * ld;                                                                                          \
      const int64_t n = rows - r0 < AT_ONCE ? rows - r0 : AT_ONCE;                                                                   \
      int64_t k = 0;                                                                                                                 \
      for (; k + PLK_W_f64 <= cols; k += PLK_W_f64, x += PLK_W_f64) {                                                                \
        const PlkP_f64 c = *(const PlkP_f64 *)(c_of + k);                                                                            \
        PlkP_f64 all = *(PlkP_f64 *)(acc + k), q[4], v;                                                                              \
        const S *p = x;                                                                                                              \
        int64_t r = 0;                                                                                                               \
        (void)c;                                                                                                                     \
        for (; r + 4 <= n; r += 4) {                                                                                                 \
          for (int j = 0; j < 4; j++, p += ld) {                                                                                     \
            v = plk_wide_##sfx(p);                                                                                                   \
            q[j] = VMAP;                                                                                                             \
          }                                                                                                                          \
          all = all J((q[0] J q[1])J(q[2] J q[3]));                                                                                  \
        }                                                                                                                            \
        for (; r < n; r++, p += ld) {                                                                                                \
          v = plk_wide_##sfx(p);                                                                                                     \
          all = all J(VMAP);                                                                                                         \
        }                                                                                                                            \
        *(PlkP_f64 *)(acc + k) = all;                                                                                                \
      }                                                                                                                              \
      for (; k < cols; k++, x++) {                                                                                                   \
        double all = acc[k];                                                                                                         \
        int64_t r = 0;                                                                                                               \
        for (; r + 4 <= n; r += 4)                                                                                                   \
          all = all J((name##_one_##sfx(x[r * ld], c_of[k]) J name##_one_##sfx(x[(r + 1) * ld], c_of[k]))                            \
                          J(name##_one_##sfx(x[(r + 2) * ld], c_of[k]) J name##_one_##sfx(x[(r + 3) * ld], c_of[k])));               \
        for (; r < n; r++) all = all J name##_one_##sfx(x[r * ld], c_of[k]);                                                         \
        acc[k] = all;                                                                                                                \
      }                                                                                                                              \
    }                                                                                                                                \
  }

/* Columns that lie along rows, x[c * ld + r], with the bits of name_col: as many at once as a part has lanes, four neighbours of each as
 * a tree. Other levels transpose tiles. */
#if defined(__AVX__)
#if defined(__AVX512F__)
#define LANES_PD(a, b) _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd))
/* part + (0 + 1) + (2 + 3) of each of eight columns of eight, and then + (4 + 5) + (6 + 7). */
PLK_LANE PlkP_f64 plus_fours(PlkP_f64 part, const PlkP_f64 *v) {
  __m512d q[4];
  for (int k = 0; k < 4; k++) {
    const __m512d a = (__m512d)v[2 * k], b = (__m512d)v[2 * k + 1];
    q[k] = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)); /* per 16 bytes: a pair of each */
  }
  const __m512d low = LANES_PD(q[0], q[1]), high = LANES_PD(q[2], q[3]);
  return (part + (PlkP_f64)_mm512_shuffle_f64x2(low, high, 0x88)) + (PlkP_f64)_mm512_shuffle_f64x2(low, high, 0xdd);
}
#else
PLK_LANE PlkP_f64 plus_fours(PlkP_f64 part, const PlkP_f64 *v) { return part + plk_fours(v); }
#endif
#define ACROSS(S, sfx, name, VMAP)                                                                                                      \
  static void name##_across_##sfx(const void *xv, int64_t ld, int64_t rows, int64_t cols, const double *aux, double *PL_RESTRICT acc) { \
    enum { W = PLK_W_f64 };                                                                                                             \
    for (int64_t c0 = 0; c0 < cols; c0 += W) {                                                                                          \
      const S *p[W];                                                                                                                    \
      double c1[W], sum[W];                                                                                                             \
      for (int k = 0; k < W; k++) {                                                                                                     \
        const int64_t at = c0 + k < cols ? c0 + k : cols - 1; /* the last once more: not kept */                                        \
        p[k] = (const S *)xv + at * ld, c1[k] = aux ? aux[at] : 0, sum[k] = acc[at];                                                    \
      }                                                                                                                                 \
      PlkP_f64 part = *(PlkP_f64 *)sum, w[W];                                                                                           \
      int64_t i = 0;                                                                                                                    \
      for (; i + W <= rows; i += W) {                                                                                                   \
        for (int k = 0; k < W; k++) {                                                                                                   \
          const PlkP_f64 v = plk_wide_##sfx(p[k] + i), c = (PlkP_f64){0} + c1[k];                                                       \
          (void)c;                                                                                                                      \
          w[k] = VMAP;                                                                                                                  \
        }                                                                                                                               \
        part = plus_fours(part, w);                                                                                                     \
      }                                                                                                                                 \
      for (int k = 0; k < W && c0 + k < cols; k++) {                                                                                    \
        const S *x = p[k];                                                                                                              \
        double s = part[k];                                                                                                             \
        int64_t r = i;                                                                                                                  \
        if (W > 4 && r + 4 <= rows) {                                                                                                   \
          s += (name##_one_##sfx(x[r], c1[k]) + name##_one_##sfx(x[r + 1], c1[k])) +                                                    \
               (name##_one_##sfx(x[r + 2], c1[k]) + name##_one_##sfx(x[r + 3], c1[k]));                                                 \
          r += 4;                                                                                                                       \
        }                                                                                                                               \
        for (; r < rows; r++) s += name##_one_##sfx(x[r], c1[k]);                                                                       \
        acc[c0 + k] = s;                                                                                                                \
      }                                                                                                                                 \
    }                                                                                                                                   \
  }
#define LOOPS_ACROSS(name) \
  { name##_across_f32, name##_across_f64, name##_across_f16, name##_across_bf16 }
#else
#define ACROSS(S, sfx, name, VMAP)
#define LOOPS_ACROSS(name) \
  { 0 }
#endif
#define SUMS_ACROSS(name, VMAP)     \
  ACROSS(float, f32, name, VMAP)    \
  ACROSS(double, f64, name, VMAP)   \
  ACROSS(uint16_t, f16, name, VMAP) \
  ACROSS(uint16_t, bf16, name, VMAP)

#define EACH(name, START, J, VMAP, MAP)            \
  MAPPED(float, f32, name, START, J, VMAP, MAP)    \
  MAPPED(double, f64, name, START, J, VMAP, MAP)   \
  MAPPED(uint16_t, f16, name, START, J, VMAP, MAP) \
  MAPPED(uint16_t, bf16, name, START, J, VMAP, MAP)
EACH(square, 0, +, v *v, v1 *v1)
EACH(diff, 0, +, v - c, v1 - c1)
EACH(sqdiff, 0, +, (v - c) * (v - c), (v1 - c1) * (v1 - c1))
EACH(abs, 0, +, magnitude(v), vm_abs_f64(v1))
EACH(prod, 1, *, v, v1)
SUMS_ACROSS(square, v *v)
SUMS_ACROSS(diff, v - c)
SUMS_ACROSS(sqdiff, (v - c) * (v - c))
SUMS_ACROSS(abs, magnitude(v))

/* Sums of exp(x - c): each column in float, added up in double. */
static void exp_col_f32(const void *xv, int64_t ld, int64_t rows, int64_t cols, const double *aux, double *PL_RESTRICT acc) {
  const float *x = xv;
  float c[PLK_COLS];
  for (int64_t k = 0; k < cols; k++) c[k] = (float)aux[k];
  for (int64_t r = 0; r < rows; r++, x += ld)
    for (int64_t k = 0; k < cols; k++) acc[k] += (double)vm_exp_f32(x[k] - c[k]);
}
static void exp_col_f64(const void *xv, int64_t ld, int64_t rows, int64_t cols, const double *aux, double *PL_RESTRICT acc) {
  const double *x = xv;
  for (int64_t r = 0; r < rows; r++, x += ld)
    for (int64_t k = 0; k < cols; k++) acc[k] += vm_exp_f64(x[k] - aux[k]);
}

#if PLK_SHORT_ROWS
/* m <= 16 rows of n < PLK_SHORT_EXPS, with the bits that the tiles of longer rows have. */
#define EXPS(S, sfx)                                                                                               \
  static void exp_short_##sfx(const S *x, int64_t ld, int64_t n, int64_t m, const double *aux, double *out) {      \
    enum { L = PLK_N_f32 };                                                                                        \
    _Alignas(64) PlkV_f32 v[PLK_SHORT_EXPS], a[L], b[L];                                                           \
    _Alignas(64) float c[L];                                                                                       \
    for (int j = 0; j < L; j++) c[j] = (float)aux[j < m ? j : m - 1];                                              \
    plk_turn_##sfx(x, ld, n, m, v);                                                                                \
    for (int k = 0; k < L; k++) a[k] = b[k] = (PlkV_f32){0};                                                       \
    for (int64_t k = 0; k < n; k++) {                                                                              \
      float *const e = (float *)(v + k);                                                                           \
      for (int j = 0; j < L; j++) e[j] = vm_exp_f32(e[j] - c[j]);                                                  \
      if (k < n / L * L) a[k % L] += v[k];                                                                         \
      else b[k % L] += v[k];                                                                                       \
    }                                                                                                              \
    for (int k = 0; k < L; k++) a[k] += b[k];                                                                      \
    plk_join_f32(a, n < L ? n : L, out);                                                                           \
  }                                                                                                                \
  static void exp_row_##sfx(const void *xv, int64_t ld, int64_t n, int64_t rows, const double *aux, double *out) { \
    enum { L = PLK_N_f32 };                                                                                        \
    const S *x = xv;                                                                                               \
    double some[L];                                                                                                \
    int64_t r = 0;                                                                                                 \
    for (; r + L <= rows; r += L) exp_short_##sfx(x + r * ld, ld, n, L, aux + r, out + r);                         \
    if (r == rows) return;                                                                                         \
    exp_short_##sfx(x + r * ld, ld, n, rows - r, aux + r, some);                                                   \
    for (int64_t k = r; k < rows; k++) out[k] = some[k - r];                                                       \
  }
EXPS(float, f32)
EXPS(uint16_t, bf16)
EXPS(uint16_t, f16)
#define EXP_ROWS \
  { exp_row_f32, NULL, exp_row_f16, exp_row_bf16 }
#else
#define EXP_ROWS \
  { 0 }
#endif

#define LOOPS(name, across)                                                                                                               \
  {                                                                                                                                       \
    {name##_row_f32, name##_row_f64, name##_row_f16, name##_row_bf16}, {name##_col_f32, name##_col_f64, name##_col_f16, name##_col_bf16}, \
        across                                                                                                                            \
  }
#define SUMS(name) LOOPS(name, LOOPS_ACROSS(name))
_Static_assert(PL_F32 == 0 && PL_F64 == 1 && PL_F16 == 2 && PL_BF16 == 3, "their order");
extern const PlkMapLoops PLK_ISA_NAME(plk_map_table);
const PlkMapLoops PLK_ISA_NAME(plk_map_table) = {
    .square = SUMS(square),
    .diff = SUMS(diff),
    .sqdiff = SUMS(sqdiff),
    .abs = SUMS(abs),
    .prod = LOOPS(prod, {0}),
    .exp = {.row = EXP_ROWS, .col = {exp_col_f32, exp_col_f64}},
};
