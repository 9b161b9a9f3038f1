/* SPDX-License-Identifier: MIT
 * LSTM layers over whole sequences (kernels/recurrent.h): a product and one pointwise kernel a step, products over all
 * steps at once where nothing waits for the step before. All work is queued without a wait, so a captured graph holds it.
 * Where cuDNN computes whole nets (libs/recurrent.c) these serve second gradients alone.
 *   a = gx + h wᵀ;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c')          gates: i, f, g, o after activation */
#include "kernels/cuda/recurrent/recurrent.h"

/* dh, dc: from the step after; dc becomes that of the step before. dhs, dcs, dgates: from outside, the last two may be NULL. */
template <typename T>
__global__ void lstm_back(int64_t n, int64_t H, const T *gates, const T *c, const T *c2, const T *dhs, const T *dh, const T *dcs,
                          const T *dgates, T *dc, T *da) {
  for (PLC_EACH(e, n)) {
    const int64_t at = e / H * 4 * H + e % H;
    const T i = gates[at], f = gates[at + H], g = gates[at + 2 * H], o = gates[at + 3 * H], t = tanh(c2[e]);
    const T dh1 = dhs[e] + dh[e], dc1 = dc[e] + (dcs ? dcs[e] : (T)0) + dh1 * o * (1 - t * t);
    T d[4] = {dc1 * g, dc1 * c[e], dc1 * i, dh1 * t};
    if (dgates)
      for (int k = 0; k < 4; k++) d[k] += dgates[at + k * H];
    da[at] = d[0] * i * (1 - i);
    da[at + H] = d[1] * f * (1 - f);
    da[at + 2 * H] = d[2] * (1 - g * g);
    da[at + 3 * H] = d[3] * o * (1 - o);
    dc[e] = dc1 * f;
  }
}

template <typename T> static PlStatus lstm_steps(const Seq &q, const T *gx, const T *w, T *hs, T *cs, T *gates, T *p) {
  for (int64_t k = 0; k < q.S; k++) {
    const int64_t x = place(q, k) * 4 * q.n, old = state(q, k) * q.n, next = state(q, k + 1) * q.n;
    PL_TRY(product<T>(q.N, 4 * q.H, q.H, hs + old, false, w, true, 0, p, NULL));
    PLC_LAUNCH(lstm_step<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, q.H, gx + x, (const T *)p, (const T *)cs + old, gates + x, cs + next,
               hs + next);
  }
  return PL_OK;
}

template <typename T> static PlStatus lstm_forward(const PlkCall *call, const Seq &q, const T *gx, const PlArray *w) {
  T *hs = DATA(call->out[0]), *cs = DATA(call->out[1]), *gates = DATA(call->out[2]), *p = NULL;
  PL_TRY(copy(hs + state(q, 0) * q.n, call->in[1]->data, q.n));
  PL_TRY(copy(cs + state(q, 0) * q.n, call->in[2]->data, q.n));
  if (q.S * q.n == 0) return PL_OK;
  PL_TRY(room(4 * q.n, &p));
  PlStatus s = lstm_steps<T>(q, gx, DATA(w), hs, cs, gates, p);
  plc_scratch_free(p);
  return s;
}

template <typename T> static PlStatus lstm_seq_of(const PlkCall *call) {
  const PlArray *gx = call->in[0];
  return lstm_forward<T>(call, seq_of(gx->shape[0], gx->shape[1], call->in[2]->shape[1], call), DATA(gx), call->in[3]);
}

/* The inputs' product of all steps first. */
template <typename T> static PlStatus lstm_layer_of(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const Seq q = seq_of(x->shape[0], x->shape[1], call->in[2]->shape[1], call);
  T *gx = NULL;
  PL_TRY(room(q.S * 4 * q.n, &gx));
  PlStatus s = product<T>(q.S * q.N, 4 * q.H, x->shape[2], DATA(x), false, DATA(call->in[3]), true, 0, gx, DATA(call->in[5]));
  if (s == PL_OK) s = lstm_forward<T>(call, q, gx, call->in[4]);
  plc_scratch_free(gx);
  return s;
}

template <typename T> static PlStatus lstm_back_steps(const PlkCall *call, const Seq &q, T *dh, T *dc) {
  const T *gates = DATA(call->in[0]), *cs = DATA(call->in[1]), *w = DATA(call->in[3]), *dhs = DATA(call->in[4]);
  const T *dcs = call->nin > 5 ? DATA(call->in[5]) : NULL, *dgates = call->nin > 6 ? DATA(call->in[6]) : NULL;
  T *dgx = DATA(call->out[0]);
  PL_TRY(zero(dh, q.n));
  PL_TRY(zero(dc, q.n));
  for (int64_t k = q.S - 1; k >= 0; k--) {
    const int64_t x = place(q, k) * 4 * q.n, old = state(q, k) * q.n, next = state(q, k + 1) * q.n;
    PLC_LAUNCH(lstm_back<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, q.H, gates + x, cs + old, cs + next, dhs + next, (const T *)dh,
               dcs ? dcs + next : NULL, dgates ? dgates + x : NULL, dc, dgx + x);
    PL_TRY(product<T>(q.N, q.H, 4 * q.H, dgx + x, false, w, false, 0, dh, NULL));
  }
  const int64_t first = state(q, 0) * q.n;
  PL_TRY(add<T>(q.n, dh, dhs + first, DATA(call->out[1])));
  return dcs ? add<T>(q.n, dc, dcs + first, DATA(call->out[2])) : copy<T>(DATA(call->out[2]), dc, q.n);
}

template <typename T> static PlStatus lstm_bwd_of(const PlkCall *call) {
  const PlArray *gates = call->in[0], *hs = call->in[2];
  const Seq q = seq_of(gates->shape[0], gates->shape[1], hs->shape[2], call);
  const int64_t numel[4] = {q.S * 4 * q.n, q.n, q.n, 4 * q.H * q.H};
  if (q.H == 0) return PL_OK;
  Wanted v;
  T *dh = NULL, *dc = NULL;
  PlkCall c = *call;
  PlStatus s = want_all<T>(&v, call, numel);
  c.out = v.out;
  if (s == PL_OK) s = room(q.n, &dh);
  if (s == PL_OK) s = room(q.n, &dc);
  if (s == PL_OK && q.n > 0) s = lstm_back_steps<T>(&c, q, dh, dc);
  if (s == PL_OK && call->out[3])
    s = product<T>(4 * q.H, q.H, q.S * q.N, DATA(c.out[0]), true, DATA(hs) + (q.reverse ? q.n : 0), false, 0, DATA(call->out[3]), NULL);
  plc_scratch_free(dc);
  plc_scratch_free(dh);
  give_back(&v);
  return s;
}

PLC_RECURRENT(lstm_seq, lstm_seq_of)
PLC_RECURRENT(lstm_layer, lstm_layer_of)
PLC_RECURRENT(lstm_seq_bwd, lstm_bwd_of)
