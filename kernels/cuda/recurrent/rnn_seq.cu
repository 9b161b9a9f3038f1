/* SPDX-License-Identifier: MIT
 * Recurrent layers without gates over whole sequences, as in lstm_seq.cu: h' = tanh(gx + h wᵀ), or relu. */
#include "kernels/cuda/recurrent/recurrent.h"

template <typename T> __global__ void rnn_step(int64_t n, bool relu, const T *gx, const T *p, T *h2) {
  for (PLC_EACH(e, n)) {
    const T a = gx[e] + p[e];
    h2[e] = relu ? (a > 0 || a != a ? a : (T)0) : (T)tanh(a);
  }
}

template <typename T> __global__ void rnn_back(int64_t n, bool relu, const T *h2, const T *dhs, const T *dh, T *da) {
  for (PLC_EACH(e, n)) {
    const T d = dhs[e] + dh[e];
    da[e] = relu ? (h2[e] > 0 ? d : (T)0) : d * (1 - h2[e] * h2[e]);
  }
}

template <typename T> static PlStatus rnn_steps(const PlkCall *call, const Seq &q, T *p) {
  const T *gx = DATA(call->in[0]), *w = DATA(call->in[2]);
  T *hs = DATA(call->out[0]);
  const bool relu = pl_attr_i(call->attrs, 1) != 0;
  for (int64_t k = 0; k < q.S; k++) {
    PL_TRY(product<T>(q.N, q.H, q.H, hs + state(q, k) * q.n, false, w, true, 0, p, NULL));
    PLC_LAUNCH(rnn_step<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, relu, gx + place(q, k) * q.n, (const T *)p, hs + state(q, k + 1) * q.n);
  }
  return PL_OK;
}

template <typename T> static PlStatus rnn_seq_of(const PlkCall *call) {
  const PlArray *gx = call->in[0];
  const Seq q = seq_of(gx->shape[0], gx->shape[1], gx->shape[2], call);
  T *p = NULL;
  PL_TRY(copy(DATA(call->out[0]) + state(q, 0) * q.n, call->in[1]->data, q.n));
  if (q.S * q.n == 0) return PL_OK;
  PL_TRY(room(q.n, &p));
  PlStatus s = rnn_steps<T>(call, q, p);
  plc_scratch_free(p);
  return s;
}

template <typename T> static PlStatus rnn_back_steps(const PlkCall *call, const Seq &q, T *dh) {
  const T *hs = DATA(call->in[0]), *w = DATA(call->in[1]), *dhs = DATA(call->in[2]);
  T *dgx = DATA(call->out[0]);
  const bool relu = pl_attr_i(call->attrs, 1) != 0;
  PL_TRY(zero(dh, q.n));
  for (int64_t k = q.S - 1; k >= 0; k--) {
    const int64_t x = place(q, k) * q.n, next = state(q, k + 1) * q.n;
    PLC_LAUNCH(rnn_back<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, relu, hs + next, dhs + next, (const T *)dh, dgx + x);
    PL_TRY(product<T>(q.N, q.H, q.H, dgx + x, false, w, false, 0, dh, NULL));
  }
  return add<T>(q.n, dh, dhs + state(q, 0) * q.n, DATA(call->out[1]));
}

template <typename T> static PlStatus rnn_bwd_of(const PlkCall *call) {
  const PlArray *hs = call->in[0];
  const Seq q = seq_of(hs->shape[0] - 1, hs->shape[1], hs->shape[2], call);
  const int64_t numel[4] = {q.S * q.n, q.n, q.H * q.H, 0};
  if (q.H == 0) return PL_OK;
  Wanted v;
  T *dh = NULL;
  PlkCall c = *call;
  PlStatus s = want_all<T>(&v, call, numel);
  c.out = v.out;
  if (s == PL_OK) s = room(q.n, &dh);
  if (s == PL_OK && q.n > 0) s = rnn_back_steps<T>(&c, q, dh);
  if (s == PL_OK)
    s = product<T>(q.H, q.H, q.S * q.N, DATA(c.out[0]), true, DATA(hs) + (q.reverse ? q.n : 0), false, 0, DATA(c.out[2]), NULL);
  plc_scratch_free(dh);
  give_back(&v);
  return s;
}

PLC_RECURRENT(rnn_seq, rnn_seq_of)
PLC_RECURRENT(rnn_seq_bwd, rnn_bwd_of)
