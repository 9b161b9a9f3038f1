/* SPDX-License-Identifier: MIT
 * Recurrent nets that a device's library computes as a whole, all layers and both directions in one call: what the engine
 * says of a net, the layout of its weights, and the table "recurrent" (PlDeviceTable.extension). */
#ifndef PL_KERNELS_RECURRENT_LIBRARY_H
#define PL_KERNELS_RECURRENT_LIBRARY_H

#include "kernels/kernel.h"

typedef enum PlkRecurrentMode { PLK_RNN_RELU, PLK_RNN_TANH, PLK_RNN_LSTM, PLK_RNN_GRU } PlkRecurrentMode;

/* The attributes of recurrent and recurrent_bwd, in their order. */
enum { PLK_RNN_MODE, PLK_RNN_HIDDEN, PLK_RNN_PROJ, PLK_RNN_LAYERS, PLK_RNN_BOTH, PLK_RNN_BIAS, PLK_RNN_TF32, PLK_RNN_TRAIN };

enum { PLK_RNN_WIDEST = 1 << 20, PLK_RNN_DEEPEST = 1 << 10 };

/* A key of plain data: no padding. proj 0: the output is the hidden state itself. */
typedef struct PlkRecurrent {
  int32_t mode, dtype, input, hidden, proj, layers, directions, bias, tf32, train;
} PlkRecurrent;

static inline int64_t plk_recurrent_gates(const PlkRecurrent *n) { return n->mode == PLK_RNN_LSTM ? 4 : n->mode == PLK_RNN_GRU ? 3 : 1; }
/* Size of the state that goes from step to step, and of what layer l reads. */
static inline int64_t plk_recurrent_out(const PlkRecurrent *n) { return n->proj ? n->proj : n->hidden; }
static inline int64_t plk_recurrent_in(const PlkRecurrent *n, int l) { return l ? n->directions * plk_recurrent_out(n) : n->input; }
/* Of N sequences: all h_0, then of an LSTM all c_0. */
static inline int64_t plk_recurrent_states(const PlkRecurrent *n, int64_t N) {
  return N * n->layers * n->directions * (plk_recurrent_out(n) + (n->mode == PLK_RNN_LSTM ? n->hidden : 0));
}
/* Weights are ordered by layer and direction: w_ih, w_hh, w_hr; behind them all, by layer and direction, b_ih, b_hh. Where those of
 * layer l, direction d begin: */
static inline int64_t plk_recurrent_matrices(const PlkRecurrent *n, int l, int d) {
  const int64_t out = plk_recurrent_out(n), rows = plk_recurrent_gates(n) * n->hidden;
  const int64_t rest = rows * out + (n->proj ? out * n->hidden : 0);
  const int64_t first = rows * n->input + rest, later = rows * n->directions * out + rest;
  return l ? n->directions * (first + (l - 1) * later) + d * later : d * first;
}
static inline int64_t plk_recurrent_biases(const PlkRecurrent *n, int l, int d) {
  const int64_t each = 2 * plk_recurrent_gates(n) * n->hidden;
  return plk_recurrent_matrices(n, n->layers, 0) + (n->bias ? (l * n->directions + d) * each : 0);
}
static inline int64_t plk_recurrent_weights(const PlkRecurrent *n) { return plk_recurrent_biases(n, n->layers, 0); }

/* False where a size is out of all proportion; else no count above overflows. */
static inline bool plk_recurrent_of(PlkRecurrent *n, const PlAttrs *a, const PlArray *x) {
  const int64_t wide[3] = {x->ndim == 3 ? x->shape[2] : 0, pl_attr_i(a, PLK_RNN_HIDDEN), pl_attr_i(a, PLK_RNN_PROJ)};
  const int64_t deep = pl_attr_i(a, PLK_RNN_LAYERS);
  for (int i = 0; i < 3; i++)
    if (wide[i] < (i < 2) || wide[i] > PLK_RNN_WIDEST) return false;
  if (deep < 1 || deep > PLK_RNN_DEEPEST || x->shape[0] < 1 || x->shape[0] > INT32_MAX || x->shape[1] < 1 || x->shape[1] > INT32_MAX ||
      x->shape[0] * x->shape[1] > INT32_MAX)
    return false;
  *n = (PlkRecurrent){.mode = (int32_t)pl_attr_i(a, PLK_RNN_MODE),
                      .dtype = x->dtype,
                      .input = (int32_t)wide[0],
                      .hidden = (int32_t)wide[1],
                      .proj = (int32_t)wide[2],
                      .layers = (int32_t)deep,
                      .directions = pl_attr_i(a, PLK_RNN_BOTH) ? 2 : 1,
                      .bias = pl_attr_i(a, PLK_RNN_BIAS) != 0,
                      .tf32 = pl_attr_i(a, PLK_RNN_TF32) != 0,
                      .train = pl_attr_i(a, PLK_RNN_TRAIN) != 0};
  return n->proj == 0 || n->mode == PLK_RNN_LSTM;
}

typedef struct PlkRecurrentTable {
  /* Does the library compute such a net? The first question about one may take a moment: it is tried. */
  bool (*takes)(int gpu, const PlkRecurrent *n);
  /* Bytes that backward reads, for S steps of N sequences. */
  PlStatus (*reserve)(int gpu, const PlkRecurrent *n, int64_t S, int64_t N, int64_t *bytes);
} PlkRecurrentTable;

#endif
