/* SPDX-License-Identifier: MIT
 * The pointwise half of an LSTM step, its gradient and the gradient of that (kernels/recurrent.h). Formulas and names:
 * kernels/cpu/isa/lstm_cell.c. */
#include "kernels/cuda/recurrent/recurrent.h"

/* The gates of element e and what both gradients are made of. */
template <typename T> struct Gates {
  T i, f, g, o, t, q;
  int64_t at;
  __device__ __forceinline__ Gates(int64_t e, int64_t H, const T *dh, const T *dc2, const T *a, const T *c) {
    at = e / H * 4 * H + e % H;
    i = logistic(a[at]), f = logistic(a[at + H]), g = tanh(a[at + 2 * H]), o = logistic(a[at + 3 * H]);
    t = tanh(f * c[e] + i * g);
    q = dc2[e] + dh[e] * o * (1 - t * t);
  }
};

template <typename T> __global__ void gates_back(int64_t n, int64_t H, const T *dh, const T *dc2, const T *a, const T *c, T *da, T *dc) {
  for (PLC_EACH(e, n)) {
    const Gates<T> s(e, H, dh, dc2, a, c);
    da[s.at] = s.q * s.g * s.i * (1 - s.i);
    da[s.at + H] = s.q * c[e] * s.f * (1 - s.f);
    da[s.at + 2 * H] = s.q * s.i * (1 - s.g * s.g);
    da[s.at + 3 * H] = dh[e] * s.t * s.o * (1 - s.o);
    dc[e] = s.q * s.f;
  }
}

template <typename T>
__global__ void gates_back2(int64_t n, int64_t H, const T *dh, const T *dc2, const T *a, const T *c, const T *va, const T *vc, T *gdh,
                            T *gdc2, T *ga, T *gc) {
  for (PLC_EACH(e, n)) {
    const Gates<T> s(e, H, dh, dc2, a, c);
    const T di = s.i * (1 - s.i), df = s.f * (1 - s.f), dg = 1 - s.g * s.g, d_o = s.o * (1 - s.o), dt = 1 - s.t * s.t;
    const T vi = va[s.at], vf = va[s.at + H], vg = va[s.at + 2 * H], vo = va[s.at + 3 * H];
    const T S = vi * s.g * di + vf * c[e] * df + vg * s.i * dg + vc[e] * s.f;
    const T G = (vo * dh[e] * d_o - 2 * S * dh[e] * s.o * s.t) * dt;
    gdc2[e] = S;
    gdh[e] = S * s.o * dt + vo * s.t * d_o;
    ga[s.at] = s.q * (vi * s.g * di * (1 - 2 * s.i) + vg * dg * di) + G * s.g * di;
    ga[s.at + H] = s.q * (vf * c[e] * df * (1 - 2 * s.f) + vc[e] * df) + G * c[e] * df;
    ga[s.at + 2 * H] = s.q * (vi * di * dg - 2 * vg * s.i * s.g * dg) + G * s.i * dg;
    ga[s.at + 3 * H] = S * dh[e] * dt * d_o + vo * dh[e] * s.t * d_o * (1 - 2 * s.o);
    gc[e] = s.q * vf * df + G * s.f;
  }
}

/* Runs `launch(n, H, out)` with room for every result; cell: the input [N,H]. */
template <typename T, typename F> static PlStatus with_results(const PlkCall *call, const PlArray *cell, F launch) {
  const int64_t n = cell->numel, numel[4] = {4 * n, 4 * n, 4 * n, 4 * n};
  if (n == 0) return PL_OK;
  Wanted v;
  PlStatus s = want_all<T>(&v, call, numel);
  if (s == PL_OK) s = launch(n, cell->shape[1], v.out);
  give_back(&v);
  return s;
}

template <typename T> static PlStatus gates_of(const PlkCall *call) {
  const PlArray *const *in = call->in;
  return with_results<T>(call, in[1], [&](int64_t n, int64_t H, PlArray *const *out) -> PlStatus {
    PLC_LAUNCH(lstm_step<T>, plc_grid(n, 1), PLC_BLOCK, 0, n, H, DATA(in[0]), (const T *)NULL, DATA(in[1]), (T *)NULL, DATA(out[1]),
               DATA(out[0]));
    return PL_OK;
  });
}
template <typename T> static PlStatus gates_bwd_of(const PlkCall *call) {
  const PlArray *const *in = call->in;
  return with_results<T>(call, in[3], [&](int64_t n, int64_t H, PlArray *const *out) -> PlStatus {
    PLC_LAUNCH(gates_back<T>, plc_grid(n, 1), PLC_BLOCK, 0, n, H, DATA(in[0]), DATA(in[1]), DATA(in[2]), DATA(in[3]), DATA(out[0]),
               DATA(out[1]));
    return PL_OK;
  });
}
template <typename T> static PlStatus gates_bwd2_of(const PlkCall *call) {
  const PlArray *const *in = call->in;
  return with_results<T>(call, in[3], [&](int64_t n, int64_t H, PlArray *const *out) -> PlStatus {
    PLC_LAUNCH(gates_back2<T>, plc_grid(n, 1), PLC_BLOCK, 0, n, H, DATA(in[0]), DATA(in[1]), DATA(in[2]), DATA(in[3]), DATA(in[4]),
               DATA(in[5]), DATA(out[0]), DATA(out[1]), DATA(out[2]), DATA(out[3]));
    return PL_OK;
  });
}
PLC_RECURRENT(lstm_gates, gates_of)
PLC_RECURRENT(lstm_gates_bwd, gates_bwd_of)
PLC_RECURRENT(lstm_gates_bwd2, gates_bwd2_of)
