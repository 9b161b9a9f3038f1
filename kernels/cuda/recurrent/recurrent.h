/* SPDX-License-Identifier: MIT
 * What lstm_cell.cu, lstm_seq.cu, gru_seq.cu and rnn_seq.cu share: the layout of a sequence in memory, the product of a step, results
 * that nobody wants. */
#ifndef PL_KERNELS_CUDA_RECURRENT_RECURRENT_H
#define PL_KERNELS_CUDA_RECURRENT_RECURRENT_H

#include "kernels/cuda/device.h"

template <typename T> PLC_DEV T logistic(T x) { return (T)1 / ((T)1 + exp(-x)); }

/* p[N,4H]: h wᵀ, may be NULL; gx[N,4H]; c[N,H]; out gates[N,4H], c2, h2[N,H]. */
template <typename T> __global__ void lstm_step(int64_t n, int64_t H, const T *gx, const T *p, const T *c, T *gates, T *c2, T *h2) {
  for (PLC_EACH(e, n)) {
    const int64_t at = e / H * 4 * H + e % H;
    T a[4];
    for (int k = 0; k < 4; k++) a[k] = p ? gx[at + k * H] + p[at + k * H] : gx[at + k * H];
    const T i = logistic(a[0]), f = logistic(a[1]), g = tanh(a[2]), o = logistic(a[3]), cell = f * c[e] + i * g;
    if (gates) gates[at] = i, gates[at + H] = f, gates[at + 2 * H] = g, gates[at + 3 * H] = o;
    c2[e] = cell;
    h2[e] = o * tanh(cell);
  }
}

/* y = a + b */
template <typename T> __global__ void plus(int64_t n, const T *a, const T *b, T *y) {
  for (PLC_EACH(e, n)) y[e] = a[e] + b[e];
}

/* ---- sequences ------------------------------------------------------------------------------------------------------ */

struct Seq {
  int64_t S, N, H, n; /* n = N H */
  bool reverse;
};

static Seq seq_of(int64_t S, int64_t N, int64_t H, const PlkCall *call) {
  Seq q = {S, N, H, N * H, pl_attr_i(call->attrs, 0) != 0};
  return q;
}
/* Where step k is in the sequence, and the state after k steps among the S + 1. */
static int64_t place(const Seq &q, int64_t k) { return q.reverse ? q.S - 1 - k : k; }
static int64_t state(const Seq &q, int64_t k) { return q.reverse ? q.S - k : k; }

template <typename T> static PlDtype dtype_of(void) { return sizeof(T) == 8 ? PL_F64 : PL_F32; }

/* c[m,n] = a[m,k] b[k,n] (b transposed: w is [n,k]) + beta c */
template <typename T>
static PlStatus product(int64_t m, int64_t n, int64_t k, const T *a, bool ta, const T *b, bool tb, double beta, T *c, const T *bias) {
  PlcGemm g;
  memset(&g, 0, sizeof g);
  g.m = m, g.n = n, g.k = k, g.batch = 1, g.dtype = g.result = dtype_of<T>();
  g.ta = ta, g.tb = tb, g.a = a, g.b = b, g.c = c, g.lda = ta ? m : k, g.ldb = tb ? k : n, g.ldc = n, g.alpha = 1, g.beta = beta;
  if (bias) g.epilogue = PLC_EPI_BIAS, g.bias = bias;
  return plc_gemm(&g);
}

template <typename T> static PlStatus copy(T *to, const void *from, int64_t n) {
  if (n > 0) PLC_TRY(cudaMemcpyAsync(to, from, (size_t)n * sizeof(T), cudaMemcpyDeviceToDevice, plc_stream()));
  return PL_OK;
}
template <typename T> static PlStatus zero(T *at, int64_t n) {
  if (n > 0) PLC_TRY(cudaMemsetAsync(at, 0, (size_t)n * sizeof(T), plc_stream()));
  return PL_OK;
}
template <typename T> static PlStatus add(int64_t n, const T *a, const T *b, T *y) {
  PLC_LAUNCH(plus<T>, plc_grid(n, 1), PLC_BLOCK, 0, n, a, b, y);
  return PL_OK;
}
template <typename T> static PlStatus room(int64_t n, T **out) {
  void *p = NULL;
  PL_TRY(plc_scratch((size_t)(n + 1) * sizeof(T), &p));
  *out = (T *)p;
  return PL_OK;
}

#define DATA(a) ((T *)((a) ? (a)->data : NULL))

/* Gradients that nobody wants are written to scratch: later ones are made of them. */
struct Wanted {
  PlArray *out[4], kept[4];
  void *scratch[4];
};
template <typename T> static PlStatus want_all(Wanted *v, const PlkCall *call, const int64_t *numel) {
  memset(v, 0, sizeof *v);
  for (int i = 0; i < call->nout; i++) {
    v->out[i] = call->out[i];
    if (v->out[i]) continue;
    T *p = NULL;
    PL_TRY(room(numel[i], &p));
    v->scratch[i] = v->kept[i].data = p;
    v->out[i] = &v->kept[i];
  }
  return PL_OK;
}
static void give_back(Wanted *v) {
  for (int i = 0; i < 4; i++) plc_scratch_free(v->scratch[i]);
}

/* The family NAME: FUNCTION of f32 or f64. */
#define PLC_RECURRENT(NAME, FUNCTION)                                                                                                 \
  static PlStatus NAME(const PlkCall *call) { return call->in[0]->dtype == PL_F64 ? FUNCTION<double>(call) : FUNCTION<float>(call); } \
  PLC_KERNEL(NAME, NAME)

#endif
