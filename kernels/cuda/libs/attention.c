/* SPDX-License-Identifier: MIT
 * Attention that cuDNN takes: f16 and bf16 without mask and dropout, head sizes in multiples of 8. Its statistics are
 * log Σ exp; ours are the largest score and the sum above it, of which (log Σ exp, 1) is one form. */
#include <string.h>

#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/libs/cudnn.h"

/* [B, H, rows, cols] from […, rows, cols]: the last of the leading dims is H, the others must walk in one step. */
static bool strides_of(const PlArray *a, int64_t *B, int64_t *H, int64_t *strides) {
  const int n = a->ndim;
  if (a->strides[n - 1] != 1 && a->shape[n - 1] != 1) return false;
  *H = n > 3 ? a->shape[n - 3] : 1;
  *B = 1;
  int64_t step = 0;
  for (int d = (n > 3 ? n - 4 : n - 3); d >= 0; d--) {
    if (a->shape[d] == 1) continue;
    if (*B > 1 && a->strides[d] != step * *B) return false;
    if (*B == 1) step = a->strides[d];
    *B *= a->shape[d];
  }
  strides[3] = 1;
  strides[2] = a->strides[n - 2];
  strides[1] = *H > 1 ? a->strides[n - 3] : a->shape[n - 2] * strides[2];
  strides[0] = *B > 1 ? step : *H * strides[1];
  for (int d = 0; d < 3; d++)
    if (strides[d] % 8 || strides[d] == 0) return false; /* rows of 16 bytes */
  return true;
}

static bool fits(PlcSdpaKey *k, const PlArray *q, const PlArray *kk, const PlArray *v) {
  int64_t B, H;
  if (q->dtype != PL_F16 && q->dtype != PL_BF16) return false;
  memset(k, 0, sizeof *k);
  k->what = 'A';
  k->dtype = q->dtype;
  k->L = q->shape[q->ndim - 2], k->E = q->shape[q->ndim - 1];
  k->S = kk->shape[kk->ndim - 2], k->D = v->shape[v->ndim - 1];
  k->deterministic = plc_deterministic();
  k->workspace = PLC_DNN_WORKSPACE;
  if (q->numel == 0 || kk->numel == 0 || v->numel == 0 || k->E % 8 || k->D % 8) return false;
  return strides_of(q, &k->B, &k->H, k->q) && strides_of(kk, &B, &H, k->k) && strides_of(v, &B, &H, k->v);
}

/* The numbers that graphs take, at addresses that outlive the call's start. */
typedef struct Numbers {
  float scale, masked, one;
} Numbers;

static PlStatus forward_into(const PlkCall *call, const PlArray *y, void *stats, bool *done) {
  PlcSdpaKey k;
  int64_t B, H;
  *done = false;
  if (!fits(&k, call->in[0], call->in[1], call->in[2]) || !strides_of(y, &B, &H, k.o)) return PL_OK;
  const Numbers num = {.scale = (float)pl_attr_f(call->attrs, 0), .masked = -0x1.fffffep127f, .one = 1};
  k.causal = pl_attr_i(call->attrs, 1) != 0;
  const int64_t uid[] = {PLC_UID_Q, PLC_UID_K, PLC_UID_V, PLC_UID_O, PLC_UID_STATS, PLC_UID_SCALE, PLC_UID_MASKED};
  void *const at[] = {call->in[0]->data, call->in[1]->data, call->in[2]->data, y->data, stats, (void *)&num.scale, (void *)&num.masked};
  k.align = plc_dnn_align(4, at);
  return plc_dnn_run(&k, sizeof k, plc_sdpa_plan, k.causal ? 7 : 6, uid, at, done);
}

/* in q, k, v, mask; out y, sums, state */
static PlStatus attention(const PlkCall *call, bool *done) {
  const PlArray *q = call->in[0];
  PlArray *y = call->out[0], *sums = call->out[1];
  *done = false;
  if ((call->nin > 3 && call->in[3]) || pl_attr_f(call->attrs, 2) > 0 || !y || y->numel == 0) return PL_OK;
  if (q->dtype != PL_F16 && q->dtype != PL_BF16) return PL_OK;
  const int64_t rows = q->numel / q->shape[q->ndim - 1];
  void *stats = NULL;
  PL_TRY(plc_scratch((size_t)rows * sizeof(float), &stats));
  PlStatus s = forward_into(call, y, stats, done);
  if (s == PL_OK && *done && sums) s = plc_attention_split(rows, stats, sums);
  plc_scratch_free(stats);
  return s;
}

/* ---- backward ------------------------------------------------------------------------------------------------- */

/* Scratch: row statistics, Σ dy o, dq in f32, and what the caller did not give or want. */
typedef struct Room {
  void *stats, *sum, *acc, *y, *unwanted[3];
} Room;

static void give_back(Room *r) {
  plc_scratch_free(r->stats);
  plc_scratch_free(r->sum);
  plc_scratch_free(r->acc);
  plc_scratch_free(r->y);
  for (int i = 0; i < 3; i++) plc_scratch_free(r->unwanted[i]);
}

/* The output of attention, computed again: [B,H,L,D] dense. */
static PlStatus output_again(const PlkCall *call, const PlArray *dy, Room *r, PlArray *y, int64_t *strides, bool *done) {
  int64_t step = 1;
  *y = *dy;
  for (int d = dy->ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= dy->shape[d];
  }
  y->strides = strides;
  PL_TRY(plc_scratch((size_t)dy->numel * pl_dtype_size((PlDtype)dy->dtype), &r->y));
  y->data = r->y;
  const PlkCall again = {.name = call->name, .nin = 3, .nout = 1, .in = call->in + 1, .out = NULL, .attrs = call->attrs};
  return forward_into(&again, y, r->stats, done);
}

static PlStatus backward(const PlkCall *call, PlcSdpaKey *k, Room *r, bool *done) {
  const PlArray *dy = call->in[0], *given = call->nin > 7 ? call->in[7] : NULL;
  PlArray y;
  int64_t B, H, strides[PL_MAX_DIM], *const out_strides[3] = {k->dq, k->dk, k->dv};
  const size_t item = pl_dtype_size((PlDtype)dy->dtype), rows = (size_t)(k->B * k->H * k->L);
  PL_TRY(plc_scratch(rows * sizeof(float), &r->stats));
  if (given && strides_of(given, &B, &H, k->o)) y = *given;
  else {
    PL_TRY(output_again(call, dy, r, &y, strides, done));
    if (!*done) return PL_OK;
    *done = false;
    (void)strides_of(&y, &B, &H, k->o);
  }
  PL_TRY(plc_attention_join(call->in[4], r->stats));
  PL_TRY(plc_scratch(rows * sizeof(float), &r->sum));
  PL_TRY(plc_scratch(rows * (size_t)k->E * sizeof(float), &r->acc));
  void *out[3];
  for (int i = 0; i < 3; i++) {
    const PlArray *like = call->in[1 + i];
    const int64_t L = like->shape[like->ndim - 2], C = like->shape[like->ndim - 1];
    if (!call->out[i]) PL_TRY(plc_scratch((size_t)like->numel * item, &r->unwanted[i]));
    out[i] = call->out[i] ? call->out[i]->data : r->unwanted[i];
    out_strides[i][0] = k->H * L * C, out_strides[i][1] = L * C, out_strides[i][2] = C, out_strides[i][3] = 1;
  }
  const Numbers num = {.scale = (float)pl_attr_f(call->attrs, 0), .masked = -0x1.fffffep127f, .one = 1};
  int64_t uid[14];
  void *at[14];
  int n = 0;
#define ADD(u, p) (uid[n] = (u), at[n++] = (void *)(p))
  ADD(PLC_UID_Q, call->in[1]->data), ADD(PLC_UID_K, call->in[2]->data), ADD(PLC_UID_V, call->in[3]->data);
  ADD(PLC_UID_O, y.data), ADD(PLC_UID_DY, dy->data), ADD(PLC_UID_DQ, out[0]), ADD(PLC_UID_DK, out[1]), ADD(PLC_UID_DV, out[2]);
  k->align = plc_dnn_align(n, at);
  ADD(PLC_UID_STATS, r->stats), ADD(PLC_UID_SUM, r->sum), ADD(PLC_UID_SCALE, &num.scale), ADD(PLC_UID_ONE, &num.one);
  if (k->causal) ADD(PLC_UID_MASKED, &num.masked);
  if (!k->deterministic) ADD(PLC_UID_ACC, r->acc);
#undef ADD
  return plc_dnn_run(k, sizeof *k, plc_sdpa_plan, n, uid, at, done);
}

/* in dy, q, k, v, sums, mask, state, y; out dq, dk, dv */
static PlStatus attention_bwd(const PlkCall *call, bool *done) {
  PlcSdpaKey k;
  int64_t B, H;
  *done = false;
  if ((call->nin > 5 && call->in[5]) || (call->nin > 6 && call->in[6])) return PL_OK;
  if (!fits(&k, call->in[1], call->in[2], call->in[3]) || !strides_of(call->in[0], &B, &H, k.dy)) return PL_OK;
  k.backward = 1;
  k.causal = pl_attr_i(call->attrs, 1) != 0;
  Room r = {.stats = NULL};
  PlStatus s = backward(call, &k, &r, done);
  give_back(&r);
  return s;
}

PLC_LIBRARY(attention, attention)
PLC_LIBRARY(attention_bwd, attention_bwd)
