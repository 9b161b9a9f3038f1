/* SPDX-License-Identifier: MIT
 * What softmax_body.h and norm_body.h are written in, for one type: T and SFX (f32 or f64) are given where it is used. Row sums
 * run in two vectors of lanes over chunks of 4096 elements, then in double. */
#ifndef PL_KERNELS_CPU_ISA_ROW_SUMS_H
#define PL_KERNELS_CPU_ISA_ROW_SUMS_H

#include "kernels/cpu/isa/lanes.h"

#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, SFX)
#define L          CAT1(PLK_N, SFX)
#define LSUM       CAT1(plk_lanes_sum, SFX)
#define TAIL       CAT1(plk_tail, SFX)
#define VMAX       CAT1(plk_max, SFX)

#define AT(p) (*(const V *)((p) + i))

/* Dot-like sums: TERM of a vector u of row p and w of row q (which may be p), over chunks of 4096 elements.
 * Lanes beyond the end hold PU and PW, which make TERM 0. */
#define ROWSUM(name, PARAMS, TERM, PU, PW)               \
  static double FN(name) PARAMS {                        \
    double total = 0;                                    \
    for (int64_t at = 0; at < n; at += 4096) {           \
      int64_t m = n - at < 4096 ? n : at + 4096, i = at; \
      V a = {0}, b = {0};                                \
      for (; i + 2 * L <= m; i += 2 * L) {               \
        V u = AT(p), w = AT(q);                          \
        (void)w;                                         \
        a += TERM;                                       \
        u = AT(p + L), w = AT(q + L);                    \
        b += TERM;                                       \
      }                                                  \
      for (; i < m; i += L) {                            \
        bool whole = i + L <= m;                         \
        V u = whole ? AT(p) : TAIL(p + i, m - i, PU);    \
        V w = whole ? AT(q) : TAIL(q + i, m - i, PW);    \
        (void)w;                                         \
        a += TERM;                                       \
      }                                                  \
      total += LSUM(a + b);                              \
    }                                                    \
    return total;                                        \
  }

#endif
