/* SPDX-License-Identifier: MIT
 * GRU layers over whole sequences, as in lstm_seq.cu:
 *   m = h w_nᵀ + b;  n = tanh(gx_n + r m);  h' = (1 - z) n + z h             acts: r, z, n, m */
#include "kernels/cuda/recurrent/recurrent.h"

template <typename T> __global__ void gru_step(int64_t n, int64_t H, const T *gx, const T *p, const T *b, const T *h, T *acts, T *h2) {
  for (PLC_EACH(e, n)) {
    const int64_t row = e / H, j = e % H, at = row * 3 * H + j, to = row * 4 * H + j;
    const T r = logistic(gx[at] + p[at]), z = logistic(gx[at + H] + p[at + H]), m = p[at + 2 * H] + b[j];
    const T v = tanh(gx[at + 2 * H] + r * m);
    acts[to] = r, acts[to + H] = z, acts[to + 2 * H] = v, acts[to + 3 * H] = m;
    h2[e] = (1 - z) * v + z * h[e];
  }
}

/* dh becomes what goes straight to the step before; da: the gradient of h wᵀ. */
template <typename T>
__global__ void gru_back(int64_t n, int64_t H, const T *acts, const T *h, const T *dhs, const T *dacts, T *dh, T *dgx, T *da) {
  for (PLC_EACH(e, n)) {
    const int64_t row = e / H, j = e % H, at = row * 3 * H + j, from = row * 4 * H + j;
    const T r = acts[from], z = acts[from + H], v = acts[from + 2 * H], m = acts[from + 3 * H], dh1 = dhs[e] + dh[e];
    T d[4] = {0, dh1 * (h[e] - v), dh1 * (1 - z), 0};
    if (dacts)
      for (int k = 0; k < 4; k++) d[k] += dacts[from + k * H];
    const T dv = d[2] * (1 - v * v);
    d[3] += dv * r;
    d[0] += dv * m;
    dgx[at] = da[at] = d[0] * r * (1 - r);
    dgx[at + H] = da[at + H] = d[1] * z * (1 - z);
    dgx[at + 2 * H] = dv;
    da[at + 2 * H] = d[3];
    dh[e] = dh1 * z;
  }
}

/* db[j] = Σ of rows of da[rows,3H] at 2H + j, in one order. */
template <typename T> __global__ void last_third(int64_t rows, int64_t H, const T *da, T *db) {
  for (PLC_EACH(j, H)) {
    T sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += da[r * 3 * H + 2 * H + j];
    db[j] = sum;
  }
}

template <typename T> static PlStatus gru_steps(const PlkCall *call, const Seq &q, T *p) {
  const T *gx = DATA(call->in[0]), *w = DATA(call->in[2]), *b = DATA(call->in[3]);
  T *hs = DATA(call->out[0]), *acts = DATA(call->out[1]);
  for (int64_t k = 0; k < q.S; k++) {
    const int64_t x = place(q, k), old = state(q, k) * q.n, next = state(q, k + 1) * q.n;
    PL_TRY(product<T>(q.N, 3 * q.H, q.H, hs + old, false, w, true, 0, p, NULL));
    PLC_LAUNCH(gru_step<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, q.H, gx + x * 3 * q.n, (const T *)p, b, (const T *)hs + old,
               acts + x * 4 * q.n, hs + next);
  }
  return PL_OK;
}

template <typename T> static PlStatus gru_seq_of(const PlkCall *call) {
  const PlArray *gx = call->in[0], *h0 = call->in[1];
  const Seq q = seq_of(gx->shape[0], gx->shape[1], h0->shape[1], call);
  T *p = NULL;
  PL_TRY(copy(DATA(call->out[0]) + state(q, 0) * q.n, h0->data, q.n));
  if (q.S * q.n == 0) return PL_OK;
  PL_TRY(room(3 * q.n, &p));
  PlStatus s = gru_steps<T>(call, q, p);
  plc_scratch_free(p);
  return s;
}

template <typename T> static PlStatus gru_back_steps(const PlkCall *call, const Seq &q, T *dh, T *da) {
  const T *acts = DATA(call->in[0]), *hs = DATA(call->in[1]), *w = DATA(call->in[2]), *dhs = DATA(call->in[3]);
  const T *dacts = call->nin > 4 ? DATA(call->in[4]) : NULL;
  T *dgx = DATA(call->out[0]);
  PL_TRY(zero(dh, q.n));
  for (int64_t k = q.S - 1; k >= 0; k--) {
    const int64_t x = place(q, k), old = state(q, k) * q.n, next = state(q, k + 1) * q.n;
    PLC_LAUNCH(gru_back<T>, plc_grid(q.n, 1), PLC_BLOCK, 0, q.n, q.H, acts + x * 4 * q.n, hs + old, dhs + next,
               dacts ? dacts + x * 4 * q.n : NULL, dh, dgx + x * 3 * q.n, da + x * 3 * q.n);
    PL_TRY(product<T>(q.N, q.H, 3 * q.H, da + x * 3 * q.n, false, w, false, 1, dh, NULL));
  }
  return add<T>(q.n, dh, dhs + state(q, 0) * q.n, DATA(call->out[1]));
}

template <typename T> static PlStatus sum_bias(const Seq &q, const T *da, T *db) {
  PLC_LAUNCH(last_third<T>, plc_grid(q.H, 1), PLC_BLOCK, 0, q.S * q.N, q.H, da, db);
  return PL_OK;
}

template <typename T> static PlStatus gru_bwd_of(const PlkCall *call) {
  const PlArray *acts = call->in[0], *hs = call->in[1];
  const Seq q = seq_of(acts->shape[0], acts->shape[1], hs->shape[2], call);
  const int64_t numel[4] = {q.S * 3 * q.n, q.n, 3 * q.H * q.H, q.H};
  if (q.H == 0) return PL_OK;
  Wanted v;
  T *dh = NULL, *da = NULL;
  PlkCall c = *call;
  PlStatus s = want_all<T>(&v, call, numel);
  c.out = v.out;
  if (s == PL_OK) s = room(q.n, &dh);
  if (s == PL_OK) s = room(q.S * 3 * q.n, &da);
  if (s == PL_OK && q.n > 0) s = gru_back_steps<T>(&c, q, dh, da);
  if (s == PL_OK) s = product<T>(3 * q.H, q.H, q.S * q.N, da, true, DATA(hs) + (q.reverse ? q.n : 0), false, 0, DATA(c.out[2]), NULL);
  if (s == PL_OK) s = sum_bias<T>(q, da, DATA(c.out[3]));
  plc_scratch_free(da);
  plc_scratch_free(dh);
  give_back(&v);
  return s;
}

PLC_RECURRENT(gru_seq, gru_seq_of)
PLC_RECURRENT(gru_seq_bwd, gru_bwd_of)
