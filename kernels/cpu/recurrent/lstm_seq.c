/* SPDX-License-Identifier: MIT
 * An LSTM over a whole sequence (see kernels/recurrent.h) and its gradient. Rows of the batch do not depend on each
 * other, so a task takes some of them through all steps: one parallel region a sequence, and a weight that is packed
 * once. The weight's gradient is one product over all steps. */
#include <string.h>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/recurrent/lstm.h"
#include "kernels/recurrent.h"

PLK_ISA_DECLARE(const PlkLstmSeqLoops, plk_lstm_seq);

typedef struct Seq {
  const PlkLstmSeqLoops *loops;
  int64_t S, N, H, tasks;
  bool reverse;
  const void *gx, *gates, *cs, *dhs, *dcs, *dgates;    /* what a direction reads; dcs, dgates: or NULL */
  void *hs_out, *cs_out, *gates_out, *dgx, *dh0, *dc0; /* what it writes; dh0, dc0: or NULL */
  void *panels;                                        /* the packed weight */
  const void *x, *bias;                                /* in place of gx: inputs [S][N][I], biases [4H] */
  void *x_panels;                                      /* and the inputs' weight */
  int64_t I;
} Seq;

/* A weight on its way into panels: B[K][n]. */
typedef struct Pack {
  const void *w;
  void *panels;
  int64_t K, n;
  bool transpose;
} Pack;

PLK_SEQ_PLACES

/* About a dozen rows a task share a pass over the weight; a few more tasks where there is little else to share out. */
int64_t plk_recurrent_tasks(int64_t N, int64_t H) {
  const int64_t n = (N + 12) / 13;
  return n > 64 ? 64 : n >= 2 || N < 2 || H < 32 ? n : 2;
}

static Seq seq_of(int64_t S, int64_t N, int64_t H, const PlAttrs *attrs) {
  return (Seq){.loops = &PLK_ISA_PICK(plk_lstm_seq),
               .S = S,
               .N = N,
               .H = H,
               .tasks = plk_recurrent_tasks(N, H),
               .reverse = pl_attr_i(attrs, 0) != 0};
}

#define T       float
#define NAME(x) x##_f32
#define LOOPS   f32
#include "kernels/cpu/recurrent/lstm_seq_body.h"

#define T       double
#define NAME(x) x##_f64
#define LOOPS   f64
#include "kernels/cpu/recurrent/lstm_seq_body.h"

PLK_SEQ_BODY(forward, forward_rows_f32)
PLK_SEQ_BODY(forward64, forward_rows_f64)
PLK_SEQ_BODY(backward, backward_rows_f32)
PLK_SEQ_BODY(backward64, backward_rows_f64)

PlStatus plk_gradient_given(const PlArray *a, const void **data, void **room) {
  *data = *room = NULL;
  if (!a || a->numel == 0) return PL_OK;
  const bool f64 = a->dtype == PL_F64;
  const double x = f64 ? *(const double *)a->data : (double)*(const float *)a->data;
  if (a->contiguous) *data = a->data;
  else if (x != 0) {
    PL_TRY(plk_scratch((size_t)a->numel * pl_dtype_size((PlDtype)a->dtype), room));
    for (int64_t i = 0; i < a->numel; i++)
      if (f64) ((double *)*room)[i] = x;
      else ((float *)*room)[i] = (float)x;
    *data = *room;
  }
  return PL_OK;
}

PlStatus plk_recurrent_weight(const PlArray *hs, const void *dgx, int64_t M, bool reverse, const PlArray *dw) {
  const int64_t N = hs->shape[1], H = hs->shape[2], size = (int64_t)pl_dtype_size((PlDtype)hs->dtype);
  const PlkGemm g = {.dtype = (PlDtype)hs->dtype,
                     .ta = true,
                     .M = M,
                     .N = H,
                     .K = (hs->shape[0] - 1) * N,
                     .lda = M,
                     .ldb = H,
                     .ldc = H,
                     .alpha = 1,
                     .A = dgx,
                     .C = dw->data,
                     .B = (const char *)hs->data + (reverse ? N * H * size : 0)};
  return plk_gemm_run(&g);
}

static PlStatus pack32(void *ctx, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at++) pack_f32(ctx, at);
  return PL_OK;
}
static PlStatus pack64(void *ctx, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at++) pack_f64(ctx, at);
  return PL_OK;
}

PlStatus plk_pack_panels(const PlArray *w, int64_t rows, int64_t cols, bool transpose, void **out) {
  const size_t size = pl_dtype_size((PlDtype)w->dtype);
  Pack p = {.w = w->data, .K = transpose ? cols : rows, .n = transpose ? rows : cols, .transpose = transpose};
  const int64_t wide = plk_panels(p.n, size), count = wide * (int64_t)size / PLK_LSTM_PANEL;
  PL_TRY(plk_scratch((size_t)(wide * p.K) * size, &p.panels));
  PlStatus s = plk_parallel(count, PLK_GRAIN / (PLK_LSTM_PANEL * (p.K + 1)) + 1, w->dtype == PL_F64 ? pack64 : pack32, &p);
  if (s != PL_OK) plk_scratch_free(p.panels), p.panels = NULL;
  *out = p.panels;
  return s;
}

/* The two states before the first step; then all steps. */
static PlStatus run_forward(Seq *q, const PlArray *h0, const PlArray *c0, const PlArray *w, PlArray *const *out) {
  const size_t one = (size_t)(q->N * q->H) * pl_dtype_size((PlDtype)h0->dtype);
  memcpy((char *)out[0]->data + (size_t)state(q, 0) * one, h0->data, one);
  memcpy((char *)out[1]->data + (size_t)state(q, 0) * one, c0->data, one);
  if (q->S * q->N * q->H == 0) return PL_OK;
  q->hs_out = out[0]->data, q->cs_out = out[1]->data, q->gates_out = out[2]->data;
  PL_TRY(plk_pack_panels(w, 4 * q->H, q->H, true, &q->panels));
  PlStatus s = plk_parallel(q->tasks, 1, h0->dtype == PL_F64 ? forward64 : forward, q);
  plk_scratch_free(q->panels);
  return s;
}

PlStatus plk_cpu_lstm_seq(const PlkCall *call) {
  const PlArray *gx = call->in[0];
  Seq q = seq_of(gx->shape[0], gx->shape[1], call->in[2]->shape[1], call->attrs);
  q.gx = gx->data;
  return run_forward(&q, call->in[1], call->in[2], call->in[3], call->out);
}

PlStatus plk_cpu_lstm_layer(const PlkCall *call) {
  const PlArray *x = call->in[0];
  Seq q = seq_of(x->shape[0], x->shape[1], call->in[2]->shape[1], call->attrs);
  q.x = x->data, q.I = x->shape[2], q.bias = call->in[5]->data;
  if (q.S * q.N * q.H > 0) PL_TRY(plk_pack_panels(call->in[3], 4 * q.H, q.I, true, &q.x_panels));
  PlStatus s = run_forward(&q, call->in[1], call->in[2], call->in[4], call->out);
  plk_scratch_free(q.x_panels);
  return s;
}

PlStatus plk_cpu_lstm_seq_bwd(const PlkCall *call) {
  const PlArray *gates = call->in[0], *hs = call->in[2], *dw = call->out[3];
  const bool f64 = gates->dtype == PL_F64;
  Seq q = seq_of(gates->shape[0], gates->shape[1], hs->shape[2], call->attrs);
  q.gates = gates->data, q.cs = call->in[1]->data, q.dhs = call->in[4]->data;
  q.dgx = call->out[0]->data, q.dh0 = call->out[1]->data, q.dc0 = call->out[2]->data;
  const int64_t H = q.H;
  if (q.N * H == 0) return PL_OK;
  void *room[2] = {NULL, NULL};
  PlStatus s = plk_gradient_given(call->nin > 5 ? call->in[5] : NULL, &q.dcs, &room[0]);
  if (s == PL_OK) s = plk_gradient_given(call->nin > 6 ? call->in[6] : NULL, &q.dgates, &room[1]);
  if (s == PL_OK) s = plk_pack_panels(call->in[3], 4 * H, H, false, &q.panels);
  if (s == PL_OK) s = plk_parallel(q.tasks, 1, f64 ? backward64 : backward, &q);
  plk_scratch_free(q.panels);
  plk_scratch_free(room[0]);
  plk_scratch_free(room[1]);
  if (s != PL_OK) return s;
  return plk_recurrent_weight(hs, q.dgx, 4 * H, q.reverse, dw);
}
