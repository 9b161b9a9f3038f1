/* SPDX-License-Identifier: MIT
 * What softmax_body.h and norm_body.h are written in, for one type: T and SFX (f32 or f64) are given where it is used. Row sums
 * run in two vectors of lanes over chunks of 4096 elements, then in double. */
#ifndef PL_KERNELS_CPU_ISA_ROW_SUMS_H
#define PL_KERNELS_CPU_ISA_ROW_SUMS_H

#include "kernels/cpu/isa/reduce/parts.h"

#define CAT2(a, b) a##_##b
#define CAT1(a, b) CAT2(a, b)
#define FN(name)   CAT1(name, SFX)
#define V          CAT1(PlkV, SFX)
#define L          CAT1(PLK_N, SFX)
#define P          CAT1(PlkP, SFX)
#define PW         CAT1(PLK_W, SFX)
#define LSUM       CAT1(plk_parts_sum, SFX)
#define TAIL       CAT1(plk_tail, SFX)
#define VMAX       CAT1(plk_max, SFX)
#define PMAX       CAT1(plk_part_max, SFX)

/* Part k of what follows p + i; of vector v. */
#define AT(p, k)   (*(const P *)((p) + i + PW * (k)))
#define PART(v, k) (((const P *)&(v))[k])

/* Dot-like sums: TERM of a vector u of row p and w of row q (which may be p), over chunks of 4096 elements.
 * Lanes beyond the end hold PU and QW, which make TERM 0. */
#define ROWSUM(name, PARAMS, TERM, PU, QW)                                \
  static double FN(name) PARAMS {                                         \
    double total = 0;                                                     \
    for (int64_t at = 0; at < n; at += 4096) {                            \
      int64_t m = n - at < 4096 ? n : at + 4096, i = at;                  \
      P a[2 * PLK_PARTS];                                                 \
      for (int k = 0; k < 2 * PLK_PARTS; k++) a[k] = (P){0};              \
      for (; i + 2 * L <= m; i += 2 * L)                                  \
        for (int k = 0; k < 2 * PLK_PARTS; k++) {                         \
          const P u = AT(p, k), w = AT(q, k);                             \
          (void)w;                                                        \
          a[k] += TERM;                                                   \
        }                                                                 \
      for (; i + L <= m; i += L)                                          \
        for (int k = 0; k < PLK_PARTS; k++) {                             \
          const P u = AT(p, k), w = AT(q, k);                             \
          (void)w;                                                        \
          a[k] += TERM;                                                   \
        }                                                                 \
      if (i < m) {                                                        \
        const V pu = TAIL(p + i, m - i, PU), qw = TAIL(q + i, m - i, QW); \
        for (int k = 0; k < PLK_PARTS; k++) {                             \
          const P u = PART(pu, k), w = PART(qw, k);                       \
          (void)w;                                                        \
          a[k] += TERM;                                                   \
        }                                                                 \
      }                                                                   \
      for (int k = 0; k < PLK_PARTS; k++) a[k] += a[PLK_PARTS + k];       \
      total += LSUM(a);                                                   \
    }                                                                     \
    return total;                                                         \
  }

#endif
