/* SPDX-License-Identifier: MIT
 * What surrounds a library's CTC, which puts each frame through softmax, takes blank 0, and counts on letters that fit into
 * the frames. With log Z[t] = log Σ_k exp lp[t][k] its cost is that of lp - log Z, so
 *   nll = cost - Σ_t log Z[t]                        over the sequence's frames;
 * the shares of classes are the same with and without Z, and its gradient is softmax - share, so
 *   dlp = dnll (exp lp - share) = dnll (gradient + exp lp - exp(lp - log Z)).
 * Both hold for any lp; where rows add up to 1 the corrections vanish. Sequences that the library must not see, or gave no
 * number for, are our own kernels'; it gets one letter in their place. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/loss/ctc.h"

namespace {

struct Given {
  int64_t T, N, C, S, base;
  const float *lp;
  const int64_t *targets, *frames, *lengths;
};

__global__ void inspect(Given g, int *letters, int *frames, int *own) {
  __shared__ double part[32];
  const int64_t n = (int64_t)blockIdx.x, T = g.frames[n], L = g.lengths[n], *of = g.targets + n * g.S;
  const bool sized = T > 0 && T <= g.T && L > 0 && L <= g.S && L <= PLC_CTC_LETTERS;
  double bad = 0, twins = 0;
  for (int64_t s = threadIdx.x; sized && s < L; s += blockDim.x) {
    bad += of[s] <= g.base || of[s] - g.base >= g.C; /* a blank is no letter */
    twins += s > 0 && of[s] == of[s - 1];
  }
  for (int64_t t = 0; sized && t < T; t++)
    for (int64_t k = threadIdx.x; k < g.C; k += blockDim.x) bad += !isfinite(g.lp[(t * g.N + n) * g.C + k]);
  bad = plc_block_all(bad, plc_sum(), 0.0, part);
  twins = plc_block_all(twins, plc_sum(), 0.0, part);
  if (threadIdx.x != 0) return;
  own[n] = !sized || bad > 0 || (double)L + twins > (double)T;
  letters[n] = own[n] ? 1 : (int)L;
  frames[n] = own[n] ? (int)g.T : (int)T;
}

__global__ void pack(Given g, const int *letters, const int *own, int *labels) {
  __shared__ double part[32];
  const int64_t n = (int64_t)blockIdx.x;
  double at = 0;
  for (int64_t m = threadIdx.x; m < n; m += blockDim.x) at += letters[m];
  at = plc_block_all(at, plc_sum(), 0.0, part);
  for (int64_t s = threadIdx.x; s < letters[n]; s += blockDim.x)
    labels[(int64_t)at + s] = own[n] ? 1 : (int)(g.targets[n * g.S + s] - g.base);
}

__global__ void doubt(int64_t N, const float *costs, int *own) {
  for (PLC_EACH(n, N)) own[n] = own[n] || !isfinite(costs[n]);
}

/* log Z of a frame, in all threads of a warp */
PLC_DEV double log_sum(const float *lp, int64_t C) {
  const int lane = (int)threadIdx.x % 32;
  double top = -(double)INFINITY, sum = 0;
  for (int64_t k = lane; k < C; k += 32) top = plc_max()(top, (double)lp[k]);
  top = plc_warp_all(top, plc_max());
  for (int64_t k = lane; k < C; k += 32) sum += exp((double)lp[k] - top);
  return top + log(plc_warp_all(sum, plc_sum()));
}

__global__ void losses(Given g, const float *costs, const int *own, float *nll, double *alpha) {
  __shared__ double part[32];
  const int64_t n = (int64_t)blockIdx.x;
  if (own[n]) return;
  double z = 0;
  for (int64_t t = (int)threadIdx.x / 32; t < g.frames[n]; t += blockDim.x / 32) z += log_sum(g.lp + (t * g.N + n) * g.C, g.C);
  z = plc_block_all(threadIdx.x % 32 ? 0.0 : z, plc_sum(), 0.0, part);
  if (threadIdx.x != 0) return;
  nll[n] = (float)((double)costs[n] - z);
  if (alpha) alpha[n * g.T * (2 * g.S + 1)] = (double)INFINITY; /* there are none */
}

__global__ void gradients(Given g, const float *dnll, const int *own, float *out) {
  const int64_t rows = g.T * g.N, team = blockDim.x / 32;
  for (int64_t r = (int64_t)blockIdx.x * team + threadIdx.x / 32; r < rows; r += (int64_t)gridDim.x * team) {
    const int64_t n = r % g.N;
    if (own[n]) continue;
    const float *lp = g.lp + r * g.C;
    const double dy = dnll[n];
    const bool none = r / g.N >= g.frames[n] || dy == 0;
    const double z = none ? 0 : log_sum(lp, g.C);
    for (int64_t k = threadIdx.x % 32; k < g.C; k += 32) {
      const double x = (double)lp[k];
      out[r * g.C + k] = none ? 0.0f : (float)(dy * ((double)out[r * g.C + k] + exp(x) - exp(x - z)));
    }
  }
}

Given read_given(const PlkCall *call, int at) {
  const PlArray *x = call->in[at];
  Given g = {x->shape[0],
             x->shape[1],
             x->shape[2],
             call->in[at + 1]->shape[1],
             pl_attr_i(call->attrs, 1),
             (const float *)x->data,
             (const int64_t *)call->in[at + 1]->data,
             (const int64_t *)call->in[at + 2]->data,
             (const int64_t *)call->in[at + 3]->data};
  return g;
}

} // namespace

extern "C" PlStatus plc_ctc_begin(PlcCtc *c, const PlkCall *call, int at) {
  const Given g = read_given(call, at);
  void *room;
  c->call = call, c->at = at;
  PL_TRY(plc_scratch((size_t)(g.N * ((g.S > 0 ? g.S : 1) + 4)) * 4, &room));
  c->labels = (int *)room;
  c->letters = c->labels + g.N * (g.S > 0 ? g.S : 1);
  c->frames = c->letters + g.N;
  c->own = c->frames + g.N;
  c->costs = (float *)(c->own + g.N);
  PLC_LAUNCH(inspect, (unsigned)g.N, 128, 0, g, c->letters, c->frames, c->own);
  PLC_LAUNCH(pack, (unsigned)g.N, 128, 0, g, c->letters, c->own, c->labels);
  return PL_OK;
}

extern "C" PlStatus plc_ctc_loss_end(const PlcCtc *c) {
  const Given g = read_given(c->call, c->at);
  PlArray *alpha = c->call->out[1];
  PLC_LAUNCH(doubt, plc_grid(g.N, 1), PLC_BLOCK, 0, g.N, c->costs, c->own);
  PLC_LAUNCH(losses, (unsigned)g.N, 256, 0, g, c->costs, c->own, (float *)c->call->out[0]->data, alpha ? (double *)alpha->data : NULL);
  return plc_ctc_loss_own(c->call, c->own);
}

extern "C" PlStatus plc_ctc_loss_bwd_end(const PlcCtc *c) {
  const Given g = read_given(c->call, c->at);
  PLC_LAUNCH(doubt, plc_grid(g.N, 1), PLC_BLOCK, 0, g.N, c->costs, c->own);
  PLC_LAUNCH(gradients, plc_grid(g.T * g.N * 32, 1), PLC_BLOCK, 0, g, (const float *)c->call->in[0]->data, c->own,
             (float *)c->call->out[0]->data);
  return plc_ctc_loss_bwd_own(c->call, c->own);
}
