/* SPDX-License-Identifier: MIT
 * Reductions of whole numbers as they are stored, compiled once per ISA level. Vectors hold as many elements as they are narrow: sums of 8
 * and 16 bits are kept in 32, a CHUNK of rows or elements at a time, extremes in the element's own type. Whole numbers add up to the
 * same in any order. */
#include "kernels/cpu/reduce/reduce_int.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = 1 << 15 }; /* 2^15 elements of 16 bits fit into 32 */

/* P: what partial sums are kept in, unsigned where they may wrap. */
#define SUM(T, sfx, P)                                                                                                  \
  static int64_t sum_row_##sfx(const void *xv, int64_t n) {                                                             \
    uint64_t all = 0;                                                                                                   \
    for (int64_t at = 0; at < n; at += CHUNK) {                                                                         \
      const T *x = (const T *)xv + at;                                                                                  \
      const int64_t m = n - at < CHUNK ? n - at : CHUNK;                                                                \
      P part = 0;                                                                                                       \
      for (int64_t i = 0; i < m; i++) part += (P)x[i];                                                                  \
      all += (uint64_t)(int64_t)part;                                                                                   \
    }                                                                                                                   \
    return (int64_t)all;                                                                                                \
  }                                                                                                                     \
  static void sum_col_##sfx(const void *xv, int64_t ld, int64_t rows, int64_t cols, int64_t *acc) {                     \
    P part[PLK_COLS];                                                                                                   \
    for (int64_t r0 = 0; r0 < rows; r0 += CHUNK) {                                                                      \
      const T *x = (const T *)xv + r0 * ld;                                                                             \
      const int64_t m = rows - r0 < CHUNK ? rows - r0 : CHUNK;                                                          \
      int64_t r = 0;                                                                                                    \
      for (int64_t c = 0; c < cols; c++) part[c] = 0;                                                                   \
      for (; r + 4 <= m; r += 4, x += 4 * ld)                                                                           \
        for (int64_t c = 0; c < cols; c++) part[c] += ((P)x[c] + (P)x[c + ld]) + ((P)x[c + 2 * ld] + (P)x[c + 3 * ld]); \
      for (; r < m; r++, x += ld)                                                                                       \
        for (int64_t c = 0; c < cols; c++) part[c] += (P)x[c];                                                          \
      for (int64_t c = 0; c < cols; c++) acc[c] = (int64_t)((uint64_t)acc[c] + (uint64_t)(int64_t)part[c]);             \
    }                                                                                                                   \
  }
/* How many of a chunk are not 0, counted in lanes as wide as the elements: C holds MOST of them. */
#define COUNT(T, sfx, C, MOST)                                                                        \
  static int64_t count_row_##sfx(const void *xv, int64_t n) {                                         \
    enum { LANES = 64 };                                                                              \
    int64_t all = 0;                                                                                  \
    for (int64_t at = 0; at < n; at += LANES * MOST) {                                                \
      const T *x = (const T *)xv;                                                                     \
      const int64_t m = n - at < LANES * MOST ? n : at + LANES * MOST;                                \
      C part[LANES] = {0};                                                                            \
      int64_t i = at;                                                                                 \
      for (; i + LANES <= m; i += LANES)                                                              \
        for (int j = 0; j < LANES; j++) part[j] = (C)(part[j] + (x[i + j] != 0));                     \
      for (int j = 0; j < LANES; j++) all += (int64_t)part[j];                                        \
      for (; i < m; i++) all += x[i] != 0;                                                            \
    }                                                                                                 \
    return all;                                                                                       \
  }                                                                                                   \
  static void count_col_##sfx(const void *xv, int64_t ld, int64_t rows, int64_t cols, int64_t *acc) { \
    C part[PLK_COLS];                                                                                 \
    const T *x = xv;                                                                                  \
    for (int64_t r0 = 0; r0 < rows; r0 += MOST) {                                                     \
      const int64_t m = rows - r0 < MOST ? rows - r0 : MOST;                                          \
      for (int64_t c = 0; c < cols; c++) part[c] = 0;                                                 \
      for (int64_t r = 0; r < m; r++, x += ld)                                                        \
        for (int64_t c = 0; c < cols; c++) part[c] = (C)(part[c] + (x[c] != 0));                      \
      for (int64_t c = 0; c < cols; c++) acc[c] += (int64_t)part[c];                                  \
    }                                                                                                 \
  }
#define EXTREME(T, sfx, name, CMP)                                                                       \
  static int64_t name##_row_##sfx(const void *xv, int64_t n) {                                           \
    const T *x = xv;                                                                                     \
    T best = x[0];                                                                                       \
    for (int64_t i = 1; i < n; i++) best = x[i] CMP best ? x[i] : best;                                  \
    return (int64_t)best;                                                                                \
  }                                                                                                      \
  static void name##_col_##sfx(const void *xv, int64_t ld, int64_t rows, int64_t cols, int64_t *acc) {   \
    T best[PLK_COLS];                                                                                    \
    const T *x = xv;                                                                                     \
    for (int64_t c = 0; c < cols; c++) best[c] = x[c];                                                   \
    for (int64_t r = 1; r < rows; r++) {                                                                 \
      x += ld;                                                                                           \
      for (int64_t c = 0; c < cols; c++) best[c] = x[c] CMP best[c] ? x[c] : best[c];                    \
    }                                                                                                    \
    for (int64_t c = 0; c < cols; c++) acc[c] = (int64_t)best[c] CMP acc[c] ? (int64_t)best[c] : acc[c]; \
  }
#define EACH(T, sfx, P, C, MOST) \
  SUM(T, sfx, P)                 \
  COUNT(T, sfx, C, MOST)         \
  EXTREME(T, sfx, max, >)        \
  EXTREME(T, sfx, min, <)
EACH(uint8_t, u8, uint32_t, uint8_t, 255)
EACH(int8_t, i8, int32_t, uint8_t, 255)
EACH(int16_t, i16, int32_t, uint16_t, 4096)
EACH(int32_t, i32, int64_t, uint32_t, 4096)
EACH(int64_t, i64, uint64_t, uint64_t, 4096)
COUNT(float, f32, uint32_t, 4096)
COUNT(double, f64, uint64_t, 4096)

#define LOOPS(sfx)                                                                                                                       \
  {                                                                                                                                      \
    {sum_row_##sfx, sum_col_##sfx}, {max_row_##sfx, max_col_##sfx}, {min_row_##sfx, min_col_##sfx}, { count_row_##sfx, count_col_##sfx } \
  }
extern const PlkIntLoops PLK_ISA_NAME(plk_int_table);
const PlkIntLoops PLK_ISA_NAME(plk_int_table) = {{
    [PL_U8] = LOOPS(u8),
    [PL_BOOL] = LOOPS(u8),
    [PL_I8] = LOOPS(i8),
    [PL_I16] = LOOPS(i16),
    [PL_I32] = LOOPS(i32),
    [PL_I64] = LOOPS(i64),
    [PL_F32] = {[PLK_INT_COUNT] = {count_row_f32, count_col_f32}},
    [PL_F64] = {[PLK_INT_COUNT] = {count_row_f64, count_col_f64}},
}};
