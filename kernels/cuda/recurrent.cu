/* SPDX-License-Identifier: MIT
 * Recurrent layers over whole sequences (kernels/recurrent.h): a product and one pointwise kernel a step, products over all
 * steps at once where nothing waits for the step before. All work is queued without a wait, so a captured graph holds it.
 * cuDNN's recurrent layers are not used: they keep what backward needs in a form of their own, while these ops give the gates.
 *   LSTM  a = gx + h wᵀ;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c')          gates: i, f, g, o after activation
 *   GRU   m = h w_nᵀ + b;  n = tanh(gx_n + r m);  h' = (1 - z) n + z h             acts: r, z, n, m
 *   RNN   h' = tanh(gx + h wᵀ), or relu */
#include "kernels/cuda/device.h"
#include "kernels/cuda/operand.h"

#define EACH(i, n) PLC_EACH(i, n)

template <typename T> PLC_DEV T logistic(T x) { return (T)1 / ((T)1 + exp(-x)); }

/* ---- one step ------------------------------------------------------------------------------------------------------ */

/* p[N,4H]: h wᵀ, may be NULL; gx[N,4H]; c[N,H]; out gates[N,4H], c2, h2[N,H]. */
template <typename T>
__global__ void lstm_step(int64_t n, int64_t H, const T *gx, const T *p, const T *c, T *gates, T *c2, T *h2) {
  for (EACH(e, n)) {
    const int64_t at = e / H * 4 * H + e % H;
    T a[4];
    for (int k = 0; k < 4; k++) a[k] = p ? gx[at + k * H] + p[at + k * H] : gx[at + k * H];
    const T i = logistic(a[0]), f = logistic(a[1]), g = tanh(a[2]), o = logistic(a[3]), cell = f * c[e] + i * g;
    if (gates) gates[at] = i, gates[at + H] = f, gates[at + 2 * H] = g, gates[at + 3 * H] = o;
    c2[e] = cell;
    h2[e] = o * tanh(cell);
  }
}

/* dh, dc: from the step after; dc becomes that of the step before. dhs, dcs, dgates: from outside, the last two may be NULL. */
template <typename T>
__global__ void lstm_back(int64_t n, int64_t H, const T *gates, const T *c, const T *c2, const T *dhs, const T *dh, const T *dcs,
                          const T *dgates, T *dc, T *da) {
  for (EACH(e, n)) {
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

template <typename T>
__global__ void gru_step(int64_t n, int64_t H, const T *gx, const T *p, const T *b, const T *h, T *acts, T *h2) {
  for (EACH(e, n)) {
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
  for (EACH(e, n)) {
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

template <typename T> __global__ void rnn_step(int64_t n, bool relu, const T *gx, const T *p, T *h2) {
  for (EACH(e, n)) {
    const T a = gx[e] + p[e];
    h2[e] = relu ? (a > 0 || a != a ? a : (T)0) : (T)tanh(a);
  }
}
template <typename T> __global__ void rnn_back(int64_t n, bool relu, const T *h2, const T *dhs, const T *dh, T *da) {
  for (EACH(e, n)) {
    const T d = dhs[e] + dh[e];
    da[e] = relu ? (h2[e] > 0 ? d : (T)0) : d * (1 - h2[e] * h2[e]);
  }
}

/* y = a + b */
template <typename T> __global__ void plus(int64_t n, const T *a, const T *b, T *y) {
  for (EACH(e, n)) y[e] = a[e] + b[e];
}
/* db[j] = Σ of rows of da[rows,3H] at 2H + j, in one order. */
template <typename T> __global__ void last_third(int64_t rows, int64_t H, const T *da, T *db) {
  for (EACH(j, H)) {
    T sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += da[r * 3 * H + 2 * H + j];
    db[j] = sum;
  }
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
/* Where step k lies in the sequence, and the state after k steps among the S + 1. */
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

/* ---- GRU ------------------------------------------------------------------------------------------------------------------ */

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
  if (s == PL_OK)
    s = product<T>(3 * q.H, q.H, q.S * q.N, da, true, DATA(hs) + (q.reverse ? q.n : 0), false, 0, DATA(c.out[2]), NULL);
  if (s == PL_OK) s = sum_bias<T>(q, da, DATA(c.out[3]));
  plc_scratch_free(da);
  plc_scratch_free(dh);
  give_back(&v);
  return s;
}

/* ---- without gates --------------------------------------------------------------------------------------------------------- */

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

/* ---- a single step of gates -------------------------------------------------------------------------------------------------- */

template <typename T> static PlStatus gates_of(const PlkCall *call) { /* in a, c; out h, c2 */
  const PlArray *c = call->in[1];
  const int64_t n = c->numel, H = c->shape[1], numel[4] = {n, n, 0, 0};
  if (n == 0) return PL_OK;
  Wanted v;
  PlStatus s = want_all<T>(&v, call, numel);
  if (s == PL_OK) {
    T *gates = NULL;
    const T *none = NULL;
    s = [&]() -> PlStatus {
      PLC_LAUNCH(lstm_step<T>, plc_grid(n, 1), PLC_BLOCK, 0, n, H, (const T *)call->in[0]->data, none, (const T *)c->data, gates,
                 DATA(v.out[1]), DATA(v.out[0]));
      return PL_OK;
    }();
  }
  give_back(&v);
  return s;
}

/* ---- families ------------------------------------------------------------------------------------------------------------------ */

#define FAMILY(NAME, FUNCTION)                                                                       \
  static PlStatus NAME(const PlkCall *call) {                                                        \
    return call->in[0]->dtype == PL_F64 ? FUNCTION<double>(call) : FUNCTION<float>(call);            \
  }                                                                                                  \
  PLC_KERNEL(NAME, NAME)
FAMILY(lstm_gates, gates_of)
FAMILY(lstm_seq, lstm_seq_of)
FAMILY(lstm_layer, lstm_layer_of)
FAMILY(lstm_seq_bwd, lstm_bwd_of)
FAMILY(gru_seq, gru_seq_of)
FAMILY(gru_seq_bwd, gru_bwd_of)
FAMILY(rnn_seq, rnn_seq_of)
FAMILY(rnn_seq_bwd, rnn_bwd_of)
