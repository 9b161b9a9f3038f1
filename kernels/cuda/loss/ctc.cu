/* SPDX-License-Identifier: MIT
 * Connectionist temporal classification in double (formulas: kernels/cpu/loss/ctc.c), a block a sequence: the states of a frame in
 * parallel, frames one after the other. What frames of one class add up to is found along chains of equal letters, in order. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/loss/ctc.h"
#include "kernels/loss.h"

namespace {

struct Ctc {
  int64_t T, N, C, S, blank, base;
  plc_numbers lp;
  const int64_t *targets, *frames, *lengths;
  PlcFlag *flag;
};

PLC_DEV double impossible() { return -(double)INFINITY; }
PLC_DEV double lse2(double a, double b) {
  const double m = a > b ? a : b;
  return m == impossible() ? m : m + log(exp(a - m) + exp(b - m));
}
PLC_DEV double lse3(double a, double b, double d) {
  double m = a > b ? a : b;
  m = m > d ? m : d;
  return m == impossible() ? m : m + log(exp(a - m) + exp(b - m) + exp(d - m));
}
PLC_DEV double prob(const Ctc &c, int64_t t, int64_t n, int64_t k) { return plc_number(c.lp, (t * c.N + n) * c.C + k, 0); }
PLC_DEV int64_t label(const Ctc &c, int64_t n, int64_t s) { return s % 2 ? c.targets[n * c.S + s / 2] - c.base : c.blank; }
/* Whether state s may directly follow s - 2: it is no blank and another letter. */
PLC_DEV bool leaps(const Ctc &c, int64_t n, int64_t s) { return s >= 2 && s % 2 && label(c, n, s) != label(c, n, s - 2); }

/* Lengths and letters of sequence n; false, with a report, where one is out of range. Threads agree. */
PLC_DEV bool sound(const Ctc &c, int64_t n, const char *name) {
  __shared__ int bad;
  const int64_t T = c.frames[n], L = c.lengths[n];
  if (threadIdx.x == 0) bad = 0;
  __syncthreads();
  if (threadIdx.x == 0 && (T < 0 || T > c.T)) bad = 1, plc_fault(c.flag, PLC_FAULT_INDEX, name, T, c.T + 1, 0);
  if (threadIdx.x == 0 && (L < 0 || L > c.S)) bad = 1, plc_fault(c.flag, PLC_FAULT_INDEX, name, L, c.S + 1, 0);
  for (int64_t s = threadIdx.x; s < L && s < c.S; s += blockDim.x) {
    const int64_t k = c.targets[n * c.S + s];
    if (k < c.base || k - c.base >= c.C) bad = 1, plc_fault(c.flag, PLC_FAULT_INDEX, name, k, c.C, (int)c.base);
  }
  __syncthreads();
  return !bad;
}

/* alpha[n][t][s]. again: only where they are missing, and the loss is known. */
__global__ void forward(Ctc c, double *alpha, plc_numbers nll, const int *own, bool again, const char *name) {
  const int64_t n = (int64_t)blockIdx.x, W = 2 * c.S + 1;
  double *a = alpha + n * c.T * W;
  if ((own && !own[n]) || (again && (c.T == 0 || a[0] != (double)INFINITY))) return;
  __syncthreads(); /* all have seen it */
  for (int64_t i = threadIdx.x; i < c.T * W; i += blockDim.x) a[i] = impossible();
  if (!sound(c, n, name)) {
    if (threadIdx.x == 0 && !again) plc_number_put(nll, n, (double)NAN);
    return;
  }
  const int64_t T = c.frames[n], L = 2 * c.lengths[n] + 1;
  for (int64_t t = 0; t < T; t++) {
    const double *before = a + (t - 1) * W;
    for (int64_t s = threadIdx.x; s < L; s += blockDim.x) {
      double v = s < 2 ? 0 : impossible();
      if (t > 0) v = lse3(before[s], s ? before[s - 1] : impossible(), leaps(c, n, s) ? before[s - 2] : impossible());
      a[t * W + s] = v + prob(c, t, n, label(c, n, s));
    }
    __syncthreads();
  }
  if (threadIdx.x != 0 || again) return;
  if (T == 0) plc_number_put(nll, n, L == 1 ? 0 : (double)INFINITY);
  else plc_number_put(nll, n, -lse2(a[(T - 1) * W + L - 1], L > 1 ? a[(T - 1) * W + L - 2] : impossible()));
}

/* room[n]: two rows of W, then for each letter the next equal one (-1: none; < -1: not the first of its class). */
__global__ void backward(Ctc c, plc_numbers dnll, plc_numbers nlls, const double *alpha, plc_numbers out, double *room, int64_t *chains,
                         const int *own, const char *name) {
  __shared__ double part[32];
  const int64_t n = (int64_t)blockIdx.x, W = 2 * c.S + 1;
  if (own && !own[n]) return;
  const int t0 = (int)threadIdx.x, many = (int)blockDim.x;
  const double *a = alpha + n * c.T * W, dy = plc_number(dnll, n, 0), nll = plc_number(nlls, n, 0);
  double *now = room + n * 2 * W, *after = now + W;
  int64_t *next = chains + n * 2 * c.S, *first = next + c.S;
  const bool fine = sound(c, n, name);
  const int64_t T = fine && dy != 0 ? c.frames[n] : 0, letters = fine ? c.lengths[n] : 0, L = 2 * letters + 1;
  for (int64_t t = T; t < c.T; t++) /* behind the end, or a loss set aside */
    for (int64_t k = t0; k < c.C; k += many) plc_number_put(out, (t * c.N + n) * c.C + k, 0);
  if (T == 0) return;
  if (nll == (double)INFINITY) { /* no alignment at all: as on the CPU, so that nobody trains on it unseen */
    for (int64_t t = 0; t < T; t++)
      for (int64_t k = t0; k < c.C; k += many) plc_number_put(out, (t * c.N + n) * c.C + k, (double)NAN);
    return;
  }
  for (int64_t j = t0; j < letters; j += many) {
    const int64_t k = label(c, n, 2 * j + 1);
    int64_t i = j + 1, b = 0;
    while (i < letters && label(c, n, 2 * i + 1) != k) i++;
    while (b < j && label(c, n, 2 * b + 1) != k) b++;
    next[j] = i < letters ? i : -1;
    first[j] = b == j && k != c.blank;
  }
  for (int64_t t = T; t-- > 0;) {
    double *swap = after;
    after = now;
    now = swap;
    __syncthreads();
    double top = impossible(), sum = 0;
    for (int64_t s = t0; s < L; s += many) {
      double v = s >= L - 2 ? 0 : impossible();
      if (t < T - 1)
        v = lse3(after[s], s + 1 < L ? after[s + 1] : impossible(), s + 2 < L && leaps(c, n, s + 2) ? after[s + 2] : impossible());
      const int64_t k = label(c, n, s);
      now[s] = v + prob(c, t, n, k);
      if (k == c.blank && a[t * W + s] + now[s] > top) top = a[t * W + s] + now[s];
    }
    top = plc_block_all(top, plc_max(), impossible(), part);
    for (int64_t s = t0; s < L && top != impossible(); s += many)
      if (label(c, n, s) == c.blank) sum += exp(a[t * W + s] + now[s] - top);
    sum = plc_block_all(sum, plc_sum(), 0.0, part);
    const double blank = top == impossible() ? top : top + log(sum);
    for (int64_t k = t0; k < c.C; k += many) {
      const double lp = prob(c, t, n, k);
      plc_number_put(out, (t * c.N + n) * c.C + k, dy * (exp(lp) - (k == c.blank && blank != impossible() ? exp(blank + nll - lp) : 0)));
    }
    __syncthreads(); /* now is whole, and every class has its first value */
    for (int64_t j = t0; j < letters; j += many) {
      if (!first[j]) continue;
      double v = impossible();
      for (int64_t i = j; i >= 0; i = next[i]) v = lse2(v, a[t * W + 2 * i + 1] + now[2 * i + 1]);
      const int64_t k = label(c, n, 2 * j + 1);
      const double lp = prob(c, t, n, k);
      plc_number_put(out, (t * c.N + n) * c.C + k, dy * (exp(lp) - (v == impossible() ? 0 : exp(v + nll - lp))));
    }
  }
}

Ctc read_call(const PlkCall *call, int at) {
  const PlArray *x = call->in[at];
  const int64_t base = pl_attr_i(call->attrs, 1);
  Ctc c = {x->shape[0],
           x->shape[1],
           x->shape[2],
           call->in[at + 1]->shape[1],
           pl_attr_i(call->attrs, 0) - base,
           base,
           plc_numbers_of(x),
           (const int64_t *)call->in[at + 1]->data,
           (const int64_t *)call->in[at + 2]->data,
           (const int64_t *)call->in[at + 3]->data,
           plc_flag()};
  return c;
}
unsigned threads_for(int64_t states) { return states <= 32 ? 32 : states <= 128 ? 128 : 256; }

} // namespace

extern "C" PlStatus plc_ctc_loss_own(const PlkCall *call, const int *own) {
  const Ctc c = read_call(call, 0);
  void *room = NULL;
  if (c.N == 0) return PL_OK;
  if (!call->out[1]) PL_TRY(plc_scratch((size_t)(c.N * c.T * (2 * c.S + 1) + 1) * sizeof(double), &room));
  PLC_LAUNCH(forward, (unsigned)c.N, threads_for(2 * c.S + 1), 0, c, (double *)(room ? room : call->out[1]->data),
             plc_numbers_of(call->out[0]), own, false, (const char *)call->name);
  plc_scratch_free(room);
  return PL_OK;
}

extern "C" PlStatus plc_ctc_loss_bwd_own(const PlkCall *call, const int *own) {
  const Ctc c = read_call(call, 1);
  void *room;
  if (c.N == 0 || !call->out[0] || call->out[0]->numel == 0) return PL_OK;
  const int64_t doubles = c.N * 2 * (2 * c.S + 1);
  PL_TRY(plc_scratch((size_t)(doubles + c.N * 2 * c.S) * 8, &room));
  PLC_LAUNCH(forward, (unsigned)c.N, threads_for(2 * c.S + 1), 0, c, (double *)call->in[6]->data, plc_numbers_of(call->in[5]), own, true,
             (const char *)call->name);
  PLC_LAUNCH(backward, (unsigned)c.N, threads_for(c.C > 2 * c.S ? c.C : 2 * c.S + 1), 0, c, plc_numbers_of(call->in[0]),
             plc_numbers_of(call->in[5]), (const double *)call->in[6]->data, plc_numbers_of(call->out[0]), (double *)room,
             (int64_t *)room + doubles, own, (const char *)call->name);
  plc_scratch_free(room);
  return PL_OK;
}

static PlStatus ctc_loss(const PlkCall *call) { return plc_ctc_loss_own(call, NULL); }
static PlStatus ctc_loss_bwd(const PlkCall *call) { return plc_ctc_loss_bwd_own(call, NULL); }

PLC_KERNEL(ctc_loss, ctc_loss)
PLC_KERNEL(ctc_loss_bwd, ctc_loss_bwd)
