/* SPDX-License-Identifier: MIT
 * Between kernels/cpu/recurrent/lstm_cell.c, lstm_seq.c and their inner loops, which are compiled once per ISA level (isa/lstm_cell.c,
 * isa/lstm_seq.c). */
#ifndef PL_KERNELS_CPU_RECURRENT_LSTM_H
#define PL_KERNELS_CPU_RECURRENT_LSTM_H

#include "kernels/kernel.h"

/* One row of H cells. p: the op's inputs, then its outputs, at that row. */
typedef void (*PlkLstmRow)(void *const *p, int64_t H);

typedef struct PlkLstmLoops {
  PlkLstmRow gates[2], bwd[2], bwd2[2]; /* f32, f64 */
} PlkLstmLoops;

/* Bytes of a packed row of a panel, whatever the scalar. */
enum { PLK_LSTM_PANEL = 128 };

#define PLK_LSTM_SEQ_LOOPS(T)                                                                                                    \
  /* c[rows][cols] = a[rows][K] B, or added to c; B in panels of PLK_LSTM_PANEL bytes: [panel][K][columns]; cols in   \
   * whole panels. */          \
  void (*product)(const T *a, int64_t lda, const T *panels, int64_t K, T *c, int64_t ldc, int64_t rows, int64_t cols, bool add); \
  /* One row of a step: gates before activation are x + a; act[4H] receives them after, c2 and h the new state. */               \
  void (*step)(const T *x, const T *a, const T *c, T *act, T *c2, T *h, int64_t H);                                              \
  /* Backward: gradients dh + more of h, dc of c2 and dact[4H] of act (NULL: none) become da[4H], that of x + a, \
   * and dc, that of c. */               \
  void (*back)(const T *act, const T *c, const T *c2, const T *dh, const T *more, const T *dact, T *dc, T *da, int64_t H);

typedef struct PlkLstmSeqF32 {
  PLK_LSTM_SEQ_LOOPS(float)
} PlkLstmSeqF32;
typedef struct PlkLstmSeqF64 {
  PLK_LSTM_SEQ_LOOPS(double)
} PlkLstmSeqF64;
typedef struct PlkLstmSeqLoops {
  PlkLstmSeqF32 f32;
  PlkLstmSeqF64 f64;
} PlkLstmSeqLoops;

/* n columns of elements of that size, rounded up to whole panels. */
static inline int64_t plk_panels(int64_t n, size_t size) {
  const int64_t P = PLK_LSTM_PANEL / (int64_t)size;
  return (n + P - 1) / P * P;
}
/* B as panels: w[rows][cols] itself (K = rows), or its transpose (K = cols); scratch that the caller frees. Threads
 * share the work. */
PlStatus plk_pack_panels(const PlArray *w, int64_t rows, int64_t cols, bool transpose, void **out);
/* The data of an optional gradient: NULL where it is missing or one zero that repeats; *room, which the caller frees,
 * where another element repeats. */
PlStatus plk_gradient_given(const PlArray *a, const void **data, void **room);
/* Into how many tasks the rows of a batch are cut: by shape alone. */
int64_t plk_recurrent_tasks(int64_t N, int64_t H);
/* dw[M,H] = Σ_k dgx_kᵀ (h before step k): dgx [S][N][M], hs [S + 1][N][H], whose matrices follow each other. */
PlStatus plk_recurrent_weight(const PlArray *hs, const void *dgx, int64_t M, bool reverse, const PlArray *dw);

/* For a struct Seq of a file with S, N, tasks, reverse. Where step k = 0 … S - 1 is in the sequence, and where the state
 * after k steps is among the S + 1. */
#define PLK_SEQ_PLACES                                                                    \
  static int64_t place(const Seq *q, int64_t k) { return q->reverse ? q->S - 1 - k : k; } \
  static int64_t state(const Seq *q, int64_t k) { return q->reverse ? q->S - k : k; }
/* The body NAME of a parallel region over tasks: ROWS(seq, from, to) for each one's rows of the batch. */
#define PLK_SEQ_BODY(NAME, ROWS)                                                                           \
  static PlStatus NAME(void *ctx, int64_t begin, int64_t end) {                                            \
    const Seq *q = ctx;                                                                                    \
    for (int64_t t = begin; t < end; t++) PL_TRY(ROWS(q, t * q->N / q->tasks, (t + 1) * q->N / q->tasks)); \
    return PL_OK;                                                                                          \
  }

#endif
