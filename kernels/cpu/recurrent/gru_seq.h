/* SPDX-License-Identifier: MIT
 * Between kernels/cpu/recurrent/gru_seq.c, rnn_seq.c and their inner loops, which are compiled once per ISA level
 * (isa/gru_seq.c). */
#ifndef PL_KERNELS_CPU_RECURRENT_GRU_SEQ_H
#define PL_KERNELS_CPU_RECURRENT_GRU_SEQ_H

#include <stdbool.h>
#include <stdint.h>

#define PLK_GRU_LOOPS(T)                                                                                                \
  /* One row of a step: gates before activation are x[3H] and a[3H], b[H] the bias within the third; act[4H] receives \
   * r, z, n and m = a_n + b, h2 the new state. */ \
  void (*step)(const T *x, const T *a, const T *b, const T *h, T *act, T *h2, int64_t H);                               \
  /* Backward: the gradient dh + more of h2 and dact[4H] of act (NULL: none) become dx[3H], da[3H] and, in `more`, \
   * that of h but for what comes through a. */    \
  void (*back)(const T *act, const T *h, const T *dh, T *more, const T *dact, T *dx, T *da, int64_t H);                 \
  /* A row without gates: h2 = tanh(x + a), or relu; da = slope(h2) (dh + more). */                                     \
  void (*plain)(const T *x, const T *a, bool relu, T *h2, int64_t H);                                                   \
  void (*plain_back)(const T *h2, const T *dh, const T *more, bool relu, T *da, int64_t H);

typedef struct PlkGruF32 {
  PLK_GRU_LOOPS(float)
} PlkGruF32;
typedef struct PlkGruF64 {
  PLK_GRU_LOOPS(double)
} PlkGruF64;
typedef struct PlkGruLoops {
  PlkGruF32 f32;
  PlkGruF64 f64;
} PlkGruLoops;

#endif
