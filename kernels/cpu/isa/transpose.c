/* SPDX-License-Identifier: MIT
 * Transposed copies of windows with elements of 2, 4 and 8 bytes, in blocks that fit the registers, compiled once per
 * ISA level: dst[j * ld + r] = src[r * stride + j] for r < n, j < k. */
#include "kernels/cpu/shape/transpose.h"
#include "kernels/base.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"

typedef uint16_t H8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t W8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint64_t D4 __attribute__((vector_size(32), aligned(8), may_alias));

/* Eight rows: pairs, pairs of pairs, halves. LO and HI interleave rows that are 1, 2 and 4 apart. */
#define EIGHT(V, S, LO1, HI1, LO2, HI2, LO4, HI4)                                                     \
  PLK_LANE void block_##V(S *PL_RESTRICT dst, int64_t ld, const S *PL_RESTRICT src, int64_t stride) { \
    V a[8], b[8];                                                                                     \
    for (int i = 0; i < 8; i++) a[i] = *(const V *)(src + i * stride);                                \
    for (int i = 0; i < 8; i += 2) {                                                                  \
      b[i] = __builtin_shufflevector(a[i], a[i + 1], LO1);                                            \
      b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], HI1);                                        \
    }                                                                                                 \
    for (int i = 0; i < 8; i += 4)                                                                    \
      for (int j = 0; j < 2; j++) {                                                                   \
        a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], LO2);                          \
        a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], HI2);                      \
      }                                                                                               \
    for (int i = 0; i < 4; i++) {                                                                     \
      b[i] = __builtin_shufflevector(a[i], a[i + 4], LO4);                                            \
      b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], HI4);                                        \
    }                                                                                                 \
    FINISH_##V                                                                                        \
  }
#define COMMA ,
/* In a vector of two 16-byte lanes columns c and c + 4 end up in halves of one register. */
#define FINISH_W8 \
  for (int i = 0; i < 8; i++) *(W8 *)(dst + i * ld) = b[i];
#define FINISH_H8 \
  for (int i = 0; i < 4; i++) *(H8 *)(dst + 2 * i * ld) = b[i], *(H8 *)(dst + (2 * i + 1) * ld) = b[i + 4];
EIGHT(W8, uint32_t, 0 COMMA 8 COMMA 1 COMMA 9 COMMA 4 COMMA 12 COMMA 5 COMMA 13,
      2 COMMA 10 COMMA 3 COMMA 11 COMMA 6 COMMA 14 COMMA 7 COMMA 15, 0 COMMA 1 COMMA 8 COMMA 9 COMMA 4 COMMA 5 COMMA 12 COMMA 13,
      2 COMMA 3 COMMA 10 COMMA 11 COMMA 6 COMMA 7 COMMA 14 COMMA 15, 0 COMMA 1 COMMA 2 COMMA 3 COMMA 8 COMMA 9 COMMA 10 COMMA 11,
      4 COMMA 5 COMMA 6 COMMA 7 COMMA 12 COMMA 13 COMMA 14 COMMA 15)
EIGHT(H8, uint16_t, 0 COMMA 8 COMMA 1 COMMA 9 COMMA 2 COMMA 10 COMMA 3 COMMA 11,
      4 COMMA 12 COMMA 5 COMMA 13 COMMA 6 COMMA 14 COMMA 7 COMMA 15, 0 COMMA 1 COMMA 8 COMMA 9 COMMA 2 COMMA 3 COMMA 10 COMMA 11,
      4 COMMA 5 COMMA 12 COMMA 13 COMMA 6 COMMA 7 COMMA 14 COMMA 15, 0 COMMA 1 COMMA 2 COMMA 3 COMMA 8 COMMA 9 COMMA 10 COMMA 11,
      4 COMMA 5 COMMA 6 COMMA 7 COMMA 12 COMMA 13 COMMA 14 COMMA 15)

PLK_LANE void block_D4(uint64_t *PL_RESTRICT dst, int64_t ld, const uint64_t *PL_RESTRICT src, int64_t stride) {
  const D4 a = *(const D4 *)src, b = *(const D4 *)(src + stride);
  const D4 c = *(const D4 *)(src + 2 * stride), d = *(const D4 *)(src + 3 * stride);
  const D4 ab = __builtin_shufflevector(a, b, 0, 4, 2, 6), AB = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  const D4 cd = __builtin_shufflevector(c, d, 0, 4, 2, 6), CD = __builtin_shufflevector(c, d, 1, 5, 3, 7);
  *(D4 *)dst = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *(D4 *)(dst + ld) = __builtin_shufflevector(AB, CD, 0, 1, 4, 5);
  *(D4 *)(dst + 2 * ld) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *(D4 *)(dst + 3 * ld) = __builtin_shufflevector(AB, CD, 2, 3, 6, 7);
}

#define TRANSPOSE(name, S, N, BLOCK)                                                               \
  static void name(void *to, int64_t ld, const void *from, int64_t stride, int64_t n, int64_t k) { \
    S *PL_RESTRICT dst = to;                                                                       \
    const S *PL_RESTRICT src = from;                                                               \
    int64_t r = 0;                                                                                 \
    for (; r + N <= n; r += N) {                                                                   \
      int64_t j = 0;                                                                               \
      for (; j + N <= k; j += N) BLOCK(dst + j * ld + r, ld, src + r * stride + j, stride);        \
      for (; j < k; j++)                                                                           \
        for (int64_t i = r; i < r + N; i++) dst[j * ld + i] = src[i * stride + j];                 \
    }                                                                                              \
    for (; r < n; r++)                                                                             \
      for (int64_t j = 0; j < k; j++) dst[j * ld + r] = src[r * stride + j];                       \
  }
TRANSPOSE(transpose_2, uint16_t, 8, block_H8)
TRANSPOSE(transpose_4, uint32_t, 8, block_W8)
TRANSPOSE(transpose_8, uint64_t, 4, block_D4)

extern const PlkTransposeLoops PLK_ISA_NAME(plk_transpose_table);
const PlkTransposeLoops PLK_ISA_NAME(plk_transpose_table) = {transpose_2, transpose_4, transpose_8};
