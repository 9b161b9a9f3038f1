/* SPDX-License-Identifier: MIT
 * One row of a product of integer matrices, compiled once per ISA level: y = a b in unsigned arithmetic, whose low bits
 * wrap as two's complement does. Columns go in tiles that stay in the first cache, four terms at a time. */
#include "kernels/cpu/gemm/matmul_int.h"
#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"

enum { COLS = 512 };

/* U: the unsigned type in which the low bits of T come out right; Y: the results' type. */
#define ROW(T, Y, U, sfx)                                                                                                     \
  static inline U low_##sfx(T v) { return (U)v; }                                                                             \
  static void row_##sfx(const void *av, int64_t as, const void *bv, int64_t bk, int64_t bn, void *yv, int64_t N, int64_t K) { \
    const T *a = av, *b = bv;                                                                                                 \
    Y *y = yv;                                                                                                                \
    U sum[COLS];                                                                                                              \
    for (int64_t n0 = 0; n0 < N; n0 += COLS) {                                                                                \
      const int64_t n = N - n0 < COLS ? N - n0 : COLS;                                                                        \
      int64_t k = 0;                                                                                                          \
      for (int64_t j = 0; j < n; j++) sum[j] = 0;                                                                             \
      for (; bn == 1 && k + 4 <= K; k += 4) {                                                                                 \
        const T *p = b + k * bk + n0, *q = p + bk, *r = q + bk, *s = r + bk, *f = a + k * as;                                 \
        const U u = low_##sfx(f[0]), v = low_##sfx(f[as]), w = low_##sfx(f[2 * as]), x = low_##sfx(f[3 * as]);                \
        for (int64_t j = 0; j < n; j++)                                                                                       \
          sum[j] += (u * low_##sfx(p[j]) + v * low_##sfx(q[j])) + (w * low_##sfx(r[j]) + x * low_##sfx(s[j]));                \
      }                                                                                                                       \
      for (; k < K; k++) {                                                                                                    \
        const T *p = b + k * bk + n0 * bn;                                                                                    \
        const U u = low_##sfx(a[k * as]);                                                                                     \
        for (int64_t j = 0; j < n; j++) sum[j] += u * low_##sfx(p[j * bn]);                                                   \
      }                                                                                                                       \
      for (int64_t j = 0; j < n; j++) y[n0 + j] = (Y)sum[j];                                                                  \
    }                                                                                                                         \
  }
ROW(int8_t, int8_t, uint32_t, i8)
ROW(uint8_t, uint8_t, uint32_t, u8)
ROW(int16_t, int16_t, uint32_t, i16)
ROW(int32_t, int32_t, uint32_t, i32)
ROW(int64_t, int64_t, uint64_t, i64)
ROW(int8_t, int32_t, uint32_t, i8_i32)

extern const PlkMatmulInt PLK_ISA_NAME(plk_matmul_int);
const PlkMatmulInt PLK_ISA_NAME(plk_matmul_int) = {row_i8, row_i16, row_i32, row_i64, row_u8, row_i8_i32};
