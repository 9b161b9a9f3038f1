/* SPDX-License-Identifier: MIT
 * A plain recurrent layer over a whole sequence (see kernels/recurrent.h) and its gradient, cut as an LSTM is
 * (lstm_seq.c): h' = f(x + h wᵀ), f = tanh or relu;  da = f'(h') (dh + da_next w),  dh <- da w. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/recurrent/gru_seq.h"
#include "kernels/cpu/recurrent/lstm.h"
#include "kernels/recurrent.h"

PLK_ISA_DECLARE(const PlkGruLoops, plk_gru);
PLK_ISA_DECLARE(const PlkLstmSeqLoops, plk_lstm_seq);

typedef struct Seq {
  const PlkGruLoops *loops;
  const PlkLstmSeqLoops *products;
  int64_t S, N, H, tasks;
  bool reverse, relu;
  const void *gx, *hs, *dhs;
  void *hs_out, *dgx, *dh0;
  void *panels;
} Seq;

PLK_SEQ_PLACES

static Seq seq_of(int64_t S, int64_t N, int64_t H, const PlAttrs *attrs) {
  return (Seq){.loops = &PLK_ISA_PICK(plk_gru),
               .products = &PLK_ISA_PICK(plk_lstm_seq),
               .S = S,
               .N = N,
               .H = H,
               .tasks = plk_recurrent_tasks(N, H),
               .reverse = pl_attr_i(attrs, 0) != 0,
               .relu = pl_attr_i(attrs, 1) != 0};
}

/* Some rows of the batch through all steps, forward and back. gx is [S][N][H], hs [S + 1][N][H]. */
#define ROWS(T, X)                                                                                                                      \
  static PlStatus forward_rows_##X(const Seq *q, int64_t from, int64_t to) {                                                            \
    const int64_t N = q->N, H = q->H, wide = plk_panels(H, sizeof(T)), rows = to - from;                                                \
    void *room;                                                                                                                         \
    PL_TRY(plk_scratch((size_t)(rows * wide) * sizeof(T), &room));                                                                      \
    T *a = room, *hs = q->hs_out;                                                                                                       \
    PlStatus s = PL_OK;                                                                                                                 \
    for (int64_t k = 0; k < q->S && s == PL_OK; k++) {                                                                                  \
      const int64_t x = place(q, k) * N, old = state(q, k) * N, new = state(q, k + 1) * N;                                              \
      q->products->X.product(hs + (old + from) * H, H, q->panels, H, a, wide, rows, wide, false);                                       \
      for (int64_t r = from; r < to; r++)                                                                                               \
        q->loops->X.plain((const T *)q->gx + (x + r) * H, a + (r - from) * wide, q->relu, hs + (new + r) * H, H);                       \
      s = plk_poll();                                                                                                                   \
    }                                                                                                                                   \
    plk_scratch_free(room);                                                                                                             \
    return s;                                                                                                                           \
  }                                                                                                                                     \
  static PlStatus backward_rows_##X(const Seq *q, int64_t from, int64_t to) {                                                           \
    const int64_t N = q->N, H = q->H, wide = plk_panels(H, sizeof(T)), rows = to - from;                                                \
    const T *hs = q->hs, *dhs = q->dhs;                                                                                                 \
    void *room;                                                                                                                         \
    PL_TRY(plk_scratch((size_t)(rows * wide) * sizeof(T), &room));                                                                      \
    T *dh = room;                                                                                                                       \
    memset(dh, 0, (size_t)(rows * wide) * sizeof(T));                                                                                   \
    PlStatus s = PL_OK;                                                                                                                 \
    for (int64_t k = q->S - 1; k >= 0 && s == PL_OK; k--) {                                                                             \
      const int64_t x = place(q, k) * N, new = state(q, k + 1) * N;                                                                     \
      for (int64_t r = from; r < to; r++)                                                                                               \
        q->loops->X.plain_back(hs + (new + r) * H, dhs + (new + r) * H, dh + (r - from) * wide, q->relu, (T *)q->dgx + (x + r) * H, H); \
      q->products->X.product((const T *)q->dgx + (x + from) * H, H, q->panels, H, dh, wide, rows, wide, false);                         \
      s = plk_poll();                                                                                                                   \
    }                                                                                                                                   \
    for (int64_t r = from; r < to && s == PL_OK; r++)                                                                                   \
      for (int64_t j = 0; j < H; j++) ((T *)q->dh0)[r * H + j] = dh[(r - from) * wide + j] + dhs[(state(q, 0) * N + r) * H + j];        \
    plk_scratch_free(room);                                                                                                             \
    return s;                                                                                                                           \
  }
ROWS(float, f32)
ROWS(double, f64)

PLK_SEQ_BODY(forward, forward_rows_f32)
PLK_SEQ_BODY(forward64, forward_rows_f64)
PLK_SEQ_BODY(backward, backward_rows_f32)
PLK_SEQ_BODY(backward64, backward_rows_f64)

PlStatus plk_cpu_rnn_seq(const PlkCall *call) {
  const PlArray *gx = call->in[0];
  Seq q = seq_of(gx->shape[0], gx->shape[1], gx->shape[2], call->attrs);
  const size_t one = (size_t)(q.N * q.H) * pl_dtype_size((PlDtype)gx->dtype);
  memcpy((char *)call->out[0]->data + (size_t)state(&q, 0) * one, call->in[1]->data, one);
  if (q.S * q.N * q.H == 0) return PL_OK;
  q.gx = gx->data, q.hs_out = call->out[0]->data;
  PL_TRY(plk_pack_panels(call->in[2], q.H, q.H, true, &q.panels));
  PlStatus s = plk_parallel(q.tasks, 1, gx->dtype == PL_F64 ? forward64 : forward, &q);
  plk_scratch_free(q.panels);
  return s;
}

PlStatus plk_cpu_rnn_seq_bwd(const PlkCall *call) {
  const PlArray *hs = call->in[0];
  const int64_t H = hs->shape[2];
  Seq q = seq_of(hs->shape[0] - 1, hs->shape[1], H, call->attrs);
  q.hs = hs->data, q.dhs = call->in[2]->data, q.dgx = call->out[0]->data, q.dh0 = call->out[1]->data;
  if (H == 0) return PL_OK;
  PL_TRY(plk_pack_panels(call->in[1], H, H, false, &q.panels));
  PlStatus s = q.N > 0 ? plk_parallel(q.tasks, 1, hs->dtype == PL_F64 ? backward64 : backward, &q) : PL_OK;
  plk_scratch_free(q.panels);
  return s == PL_OK ? plk_recurrent_weight(hs, q.dgx, H, q.reverse, call->out[2]) : s;
}
