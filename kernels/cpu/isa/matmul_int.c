/* SPDX-License-Identifier: MIT
 * Rows of a product of integer matrices, compiled once per ISA level: y = a b in unsigned arithmetic, whose low bits
 * wrap as two's complement does. A few rows and two vectors of columns are summed in registers; what is left over, and
 * columns that do not follow each other, row by row, in tiles that stay in the first cache, four terms at a time. */
#include "kernels/cpu/gemm/matmul_int.h"
#include "kernels/base.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"

enum { COLS = 512 };
/* Rows summed together. */
#if defined(__AVX512F__)
enum { BYTES = 64, FEW = 6 };
#elif defined(__AVX2__)
enum { BYTES = 32, FEW = 4 };
#else
enum { BYTES = 16, FEW = 4 };
#endif
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Sums of FEW rows by the columns of two vectors. */
#define TILE(T, Y, U, sfx)                                                                                            \
  typedef U Vec_##sfx __attribute__((vector_size(BYTES), aligned(sizeof(U)), may_alias));                             \
  typedef T Mem_##sfx __attribute__((vector_size(BYTES / sizeof(U) * sizeof(T)), aligned(sizeof(T)), may_alias));     \
  typedef Y Out_##sfx __attribute__((vector_size(BYTES / sizeof(U) * sizeof(Y)), aligned(sizeof(Y)), may_alias));     \
  enum { WIDE_##sfx = BYTES / (int)sizeof(U) };                                                                       \
  PLK_LANE void tile_##sfx(const T *a, int64_t am, int64_t as, const T *b, int64_t bk, Y *y, int64_t ym, int64_t K) { \
    Vec_##sfx s[FEW][2];                                                                                              \
    UNROLL for (int r = 0; r < FEW; r++) s[r][0] = s[r][1] = (Vec_##sfx){0};                                          \
    for (int64_t k = 0; k < K; k++, a += as, b += bk) {                                                               \
      const Vec_##sfx v = __builtin_convertvector(*(const Mem_##sfx *)b, Vec_##sfx);                                  \
      const Vec_##sfx w = __builtin_convertvector(*(const Mem_##sfx *)(b + WIDE_##sfx), Vec_##sfx);                   \
      UNROLL for (int r = 0; r < FEW; r++) {                                                                          \
        const U x = (U)a[r * am];                                                                                     \
        s[r][0] += x * v, s[r][1] += x * w;                                                                           \
      }                                                                                                               \
    }                                                                                                                 \
    UNROLL for (int r = 0; r < FEW; r++) {                                                                            \
      *(Out_##sfx *)(y + r * ym) = __builtin_convertvector(s[r][0], Out_##sfx);                                       \
      *(Out_##sfx *)(y + r * ym + WIDE_##sfx) = __builtin_convertvector(s[r][1], Out_##sfx);                          \
    }                                                                                                                 \
  }

/* U: the unsigned type in which the low bits of T come out right; Y: the results' type. */
#define ROW(T, Y, U, sfx)                                                                                                         \
  TILE(T, Y, U, sfx)                                                                                                              \
  static inline U low_##sfx(T v) { return (U)v; }                                                                                 \
  static void row_##sfx(const void *av, int64_t as, const void *bv, int64_t bk, int64_t bn, void *yv, int64_t N, int64_t K) {     \
    const T *a = av, *b = bv;                                                                                                     \
    Y *y = yv;                                                                                                                    \
    U sum[COLS];                                                                                                                  \
    for (int64_t n0 = 0; n0 < N; n0 += COLS) {                                                                                    \
      const int64_t n = N - n0 < COLS ? N - n0 : COLS;                                                                            \
      int64_t k = 0;                                                                                                              \
      for (int64_t j = 0; j < n; j++) sum[j] = 0;                                                                                 \
      for (; bn == 1 && k + 4 <= K; k += 4) {                                                                                     \
        const T *p = b + k * bk + n0, *q = p + bk, *r = q + bk, *s = r + bk, *f = a + k * as;                                     \
        const U u = low_##sfx(f[0]), v = low_##sfx(f[as]), w = low_##sfx(f[2 * as]), x = low_##sfx(f[3 * as]);                    \
        for (int64_t j = 0; j < n; j++)                                                                                           \
          sum[j] += (u * low_##sfx(p[j]) + v * low_##sfx(q[j])) + (w * low_##sfx(r[j]) + x * low_##sfx(s[j]));                    \
      }                                                                                                                           \
      for (; k < K; k++) {                                                                                                        \
        const T *p = b + k * bk + n0 * bn;                                                                                        \
        const U u = low_##sfx(a[k * as]);                                                                                         \
        for (int64_t j = 0; j < n; j++) sum[j] += u * low_##sfx(p[j * bn]);                                                       \
      }                                                                                                                           \
      for (int64_t j = 0; j < n; j++) y[n0 + j] = (Y)sum[j];                                                                      \
    }                                                                                                                             \
  }                                                                                                                               \
  static void rows_##sfx(const PlkIntRows *q) {                                                                                   \
    enum { TWO = 2 * WIDE_##sfx };                                                                                                \
    const T *a = q->a, *b = q->b;                                                                                                 \
    Y *y = q->y;                                                                                                                  \
    const int64_t few = q->bn == 1 ? q->M / FEW * FEW : 0, whole = q->N / TWO * TWO;                                              \
    for (int64_t n = 0; few > 0 && n < whole; n += TWO) /* columns stay in the first cache while all rows meet them */            \
      for (int64_t m = 0; m < few; m += FEW) tile_##sfx(a + m * q->am, q->am, q->as, b + n, q->bk, y + m * q->N + n, q->N, q->K); \
    for (int64_t m = 0; m < q->M; m++) {                                                                                          \
      const int64_t n = m < few ? whole : 0;                                                                                      \
      if (n < q->N) row_##sfx(a + m * q->am, q->as, b + n * q->bn, q->bk, q->bn, y + m * q->N + n, q->N - n, q->K);               \
    }                                                                                                                             \
  }
ROW(int8_t, int8_t, uint32_t, i8)
ROW(uint8_t, uint8_t, uint32_t, u8)
ROW(int16_t, int16_t, uint32_t, i16)
ROW(int32_t, int32_t, uint32_t, i32)
ROW(int64_t, int64_t, uint64_t, i64)
ROW(int8_t, int32_t, uint32_t, i8_i32)

extern const PlkMatmulInt PLK_ISA_NAME(plk_matmul_int);
const PlkMatmulInt PLK_ISA_NAME(plk_matmul_int) = {rows_i8, rows_i16, rows_i32, rows_i64, rows_u8, rows_i8_i32};
