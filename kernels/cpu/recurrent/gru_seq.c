/* SPDX-License-Identifier: MIT
 * A GRU over a whole sequence (see kernels/recurrent.h) and its gradient, cut as an LSTM is (lstm_seq.c): a task takes
 * some rows of the batch through all steps. */
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
  bool reverse;
  const void *gx, *bias, *acts, *hs, *dhs, *dacts; /* what a direction reads; dacts: or NULL */
  void *hs_out, *acts_out, *dgx, *dh0, *da;        /* what it writes; da [S][N][3H]: gradients of h wᵀ */
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
               .reverse = pl_attr_i(attrs, 0) != 0};
}

#define T       float
#define NAME(x) x##_f32
#define LOOPS   f32
#include "kernels/cpu/recurrent/gru_seq_body.h"

#define T       double
#define NAME(x) x##_f64
#define LOOPS   f64
#include "kernels/cpu/recurrent/gru_seq_body.h"

PLK_SEQ_BODY(forward, forward_rows_f32)
PLK_SEQ_BODY(forward64, forward_rows_f64)
PLK_SEQ_BODY(backward, backward_rows_f32)
PLK_SEQ_BODY(backward64, backward_rows_f64)

PlStatus plk_cpu_gru_seq(const PlkCall *call) {
  const PlArray *gx = call->in[0], *h0 = call->in[1];
  const bool f64 = gx->dtype == PL_F64;
  Seq q = seq_of(gx->shape[0], gx->shape[1], h0->shape[1], call->attrs);
  const size_t one = (size_t)(q.N * q.H) * pl_dtype_size((PlDtype)gx->dtype);
  memcpy((char *)call->out[0]->data + (size_t)state(&q, 0) * one, h0->data, one);
  if (q.S * q.N * q.H == 0) return PL_OK;
  q.gx = gx->data, q.bias = call->in[3]->data, q.hs_out = call->out[0]->data, q.acts_out = call->out[1]->data;
  PL_TRY(plk_pack_panels(call->in[2], 3 * q.H, q.H, true, &q.panels));
  PlStatus s = plk_parallel(q.tasks, 1, f64 ? forward64 : forward, &q);
  plk_scratch_free(q.panels);
  return s;
}

PlStatus plk_cpu_gru_seq_bwd(const PlkCall *call) {
  const PlArray *acts = call->in[0], *hs = call->in[1];
  const bool f64 = acts->dtype == PL_F64;
  const int64_t size = (int64_t)pl_dtype_size((PlDtype)acts->dtype);
  Seq q = seq_of(acts->shape[0], acts->shape[1], hs->shape[2], call->attrs);
  q.acts = acts->data, q.hs = hs->data, q.dhs = call->in[3]->data;
  q.dgx = call->out[0]->data, q.dh0 = call->out[1]->data;
  const int64_t H = q.H;
  if (H == 0) return PL_OK;
  void *room = NULL;
  PL_TRY(plk_scratch((size_t)(q.S * q.N * 3 * H + 1) * (size_t)size, &q.da));
  PlStatus s = plk_gradient_given(call->nin > 4 ? call->in[4] : NULL, &q.dacts, &room);
  if (s == PL_OK) s = plk_pack_panels(call->in[2], 3 * H, H, false, &q.panels);
  if (s == PL_OK && q.N > 0) s = plk_parallel(q.tasks, 1, f64 ? backward64 : backward, &q);
  plk_scratch_free(q.panels);
  plk_scratch_free(room);
  if (s == PL_OK) s = plk_recurrent_weight(hs, q.da, 3 * H, q.reverse, call->out[2]);
  if (s == PL_OK && f64) bias_gradient_f64(&q, call->out[3]->data);
  else if (s == PL_OK) bias_gradient_f32(&q, call->out[3]->data);
  plk_scratch_free(q.da);
  return s;
}
