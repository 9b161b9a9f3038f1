/* SPDX-License-Identifier: MIT
 * Between kernels/cpu/attention.c and its inner loops, which are compiled once per ISA level
 * (isa/attention.c). */
#ifndef PL_KERNELS_CPU_ATTENTION_H
#define PL_KERNELS_CPU_ATTENTION_H

#include <stdint.h>

enum { PLK_AT_ROWS = 4, PLK_AT_LANES = 16 };

typedef struct PlkAttentionLoops {
  /* c[r][0..w) += sum over k < K of a[r * ar + k * ak] b[k][0..w), r < 4; w is a multiple of 16. */
  void (*mm4)(const float *a, int64_t ar, int64_t ak, const float *b, int64_t ldb, int64_t K, float *c,
              int64_t ldc, int64_t w);
  /* s[0..n) <- exp(scale s - max), zeros up to w; returns the maximum, *sum. */
  float (*softmax)(float *s, int64_t n, int64_t w, float scale, float *sum);
  /* s[0..n) <- exp(scale s - top) / sum, zeros up to w */
  void (*again)(float *s, int64_t n, int64_t w, float scale, float top, float sum);
  /* dp <- p (dp - sum p dp) scale */
  void (*slope)(const float *p, float *dp, int64_t w, float scale);
} PlkAttentionLoops;

#endif
