/* SPDX-License-Identifier: MIT
 * Pointwise losses (kernels/cpu/loss/loss.c): inputs broadcast, f16 and bf16 compute in f32; each block adds its items in double,
 * in an order that the number of items alone decides. */
#include "kernels/cuda/loss/loss.h"
#include "kernels/loss.h"

namespace {

template <typename A> PLC_DEV A at_least(A v, A least) { return v < least ? least : v; }
template <typename A> PLC_DEV A smooth(A d, A beta) {
  d = d < 0 ? -d : d;
  return d < beta ? (A)0.5 * d * d / beta : d - (A)0.5 * beta;
}
/* As kernels/cpu/isa/loss.c. */
template <typename A> PLC_DEV A with_logits(A x, A t, A q) { return (1 - t - (x < 0 ? q : (A)0)) * x + q * (A)log1p(exp(x < 0 ? x : -x)); }
/* kl: t log t - t x, 0 log 0 = 0; with log_target e^t (t - x). bce with logits: q = 1 + (pos_weight - 1) t. */
template <typename A> PLC_DEV A loss_of(int code, A x, A t, A pos, A p) {
  switch (code) {
  case PLK_L_MSE: return (x - t) * (x - t);
  case PLK_L_L1: return x > t ? x - t : t - x;
  case PLK_L_SMOOTH_L1: return smooth(x - t, p);
  case PLK_L_HUBER: return p * smooth(x - t, p);
  case PLK_L_BCE: return (t - 1) * at_least((A)log1p(-x), (A)-100) - t * at_least((A)log(x), (A)-100);
  case PLK_L_BCE_LOGITS: return with_logits(x, t, pos == 1 ? (A)1 : 1 + (pos - 1) * t);
  default: return p != 0 ? exp(t) * (t - x) : (t == 0 ? (A)0 : t * log(t)) - t * x;
  }
}

struct Loss {
  plc_layout<5> l; /* y, x, target, weight, pos_weight */
  int code;
  double param;
  bool flat; /* the four have the layout of the result */
  PlcFlag *flag;
};

/* y NULL: part[block] = the block's sum. */
template <typename T>
__global__ void losses(Loss k, const T *x, const T *t, const T *w, const T *pos, T *y, double *part, const char *name) {
  typedef typename plc_type<T>::math A;
  __shared__ double room[32];
  double sum = 0;
  for (PLC_EACH(i, k.l.numel)) {
    int64_t at[5] = {i, i, i, i, i};
    if (!k.flat) plc_offsets<5>(k.l, i, at);
    const A v = plc_type<T>::load(x[at[1]]);
    const A target = plc_type<T>::load(t[at[2]]), weight = w ? plc_type<T>::load(w[at[3]]) : (A)1;
    if (k.code == PLK_L_BCE && (v < 0 || v > 1)) plc_fault(k.flag, PLC_FAULT_PROBABILITY, name, 0, 0, 0);
    if ((k.code == PLK_L_BCE || (k.code == PLK_L_BCE_LOGITS && !y && weight != 0)) && (target < 0 || target > 1))
      plc_fault(k.flag, PLC_FAULT_PROBABILITY, name, 0, 0, 0);
    A r = loss_of<A>(k.code, v, target, pos ? plc_type<T>::load(pos[at[4]]) : (A)1, (A)k.param);
    if (w) r *= weight;
    if (y) y[at[0]] = plc_type<T>::store(r);
    else sum += (double)r;
  }
  if (y) return;
  sum = plc_block_all(sum, plc_sum(), 0.0, room);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void parts_of(int64_t n, const double *a, const double *b, double *part) {
  __shared__ double room[32];
  double sa = 0, sb = 0;
  for (PLC_EACH(i, n)) {
    if (a) sa += a[i];
    if (b) sb += b[i];
  }
  sa = plc_block_all(sa, plc_sum(), 0.0, room);
  sb = plc_block_all(sb, plc_sum(), 0.0, room);
  if (threadIdx.x == 0) part[blockIdx.x * 2] = sa, part[blockIdx.x * 2 + 1] = sb;
}
__global__ void end_of(int end, int parts, const double *part, double divisor, plc_numbers factor, plc_numbers y) { /* one block */
  __shared__ double room[32];
  double a = 0, b = 0;
  for (int i = (int)threadIdx.x; i < parts; i += (int)blockDim.x) a += part[i * 2], b += part[i * 2 + 1];
  a = plc_block_all(a, plc_sum(), 0.0, room);
  b = plc_block_all(b, plc_sum(), 0.0, room);
  if (threadIdx.x != 0) return;
  plc_number_put(y, 0, end == PLC_LOSS_SUM ? a / divisor : end == PLC_LOSS_RATIO ? a / b : plc_number(factor, 0, 1) / b);
}

bool lies_flat(const PlArray *a, int64_t numel) { return !a || a->numel == numel; }

/* The shape that all inputs broadcast to (the shape rule has checked that they do), as a contiguous array. */
void common(PlArray *a, int nin, const PlArray *const *in, int64_t *shape, int64_t *strides) {
  memset(a, 0, sizeof *a);
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->ndim > a->ndim) a->ndim = in[i]->ndim;
  a->numel = 1, a->shape = shape, a->strides = strides, a->contiguous = 1;
  for (int d = a->ndim - 1; d >= 0; d--) {
    shape[d] = 1;
    for (int i = 0; i < nin; i++) {
      const int k = in[i] ? d - (a->ndim - in[i]->ndim) : -1;
      if (k >= 0 && in[i]->shape[k] != 1) shape[d] = in[i]->shape[k];
    }
    strides[d] = a->numel;
    a->numel *= shape[d];
  }
}

PlStatus run(const PlkCall *call, Loss *k, const PlArray *const *arr, int64_t reduction, double *part) {
  PlArray *y = call->out[0];
  const int64_t n = k->l.numel, need = (n + PLC_BLOCK * 4 - 1) / (PLC_BLOCK * 4);
  const unsigned grid = reduction == 0 ? plc_grid(n, 1) : (unsigned)(need < 1024 ? need : 1024);
  PLC_FLOATS(arr[1]->dtype, T, call->name,
             PLC_LAUNCH(losses<T>, grid, PLC_BLOCK, 0, *k, (const T *)arr[1]->data, (const T *)arr[2]->data,
                        (const T *)(arr[3] ? arr[3]->data : NULL), (const T *)(arr[4] ? arr[4]->data : NULL),
                        (T *)(reduction == 0 ? y->data : NULL), part, (const char *)call->name))
  if (reduction == 0) return PL_OK;
  const double divisor = reduction == 1 ? (double)n : reduction == 3 ? (double)(arr[0]->ndim ? arr[0]->shape[0] : 1) : 1;
  return plc_loss_end(PLC_LOSS_SUM, grid, part, NULL, divisor, plc_numbers_of(NULL), part + 1024, plc_numbers_of(y));
}

PlStatus loss(const PlkCall *call) {
  const int64_t reduction = pl_attr_i(call->attrs, 0);
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  const int nin = call->nin < 4 ? call->nin : 4;
  PlArray all;
  common(&all, nin, call->in, shape, strides);
  const PlArray *arr[5] = {&all, call->in[0], call->in[1], nin > 2 ? call->in[2] : NULL, nin > 3 ? call->in[3] : NULL};
  Loss k;
  plc_layout_of<5>(&k.l, arr);
  k.code = call->code, k.param = 0, k.flag = plc_flag(), k.flat = true;
  for (int i = 1; i < 5; i++) k.flat = k.flat && lies_flat(arr[i], all.numel);
  if (call->code == PLK_L_SMOOTH_L1 || call->code == PLK_L_HUBER) k.param = pl_attr_f(call->attrs, 1);
  if (call->code == PLK_L_KL_DIV) k.param = (double)pl_attr_i(call->attrs, 1);
  if (all.numel == 0 && reduction == 0) return PL_OK;
  void *part = NULL;
  if (reduction != 0) PL_TRY(plc_scratch((1024 + 2 * PLC_LOSS_PARTS) * sizeof(double), &part));
  PlStatus s;
  if (all.numel > 0) s = run(call, &k, arr, reduction, (double *)part);
  else
    s = plc_loss_end(PLC_LOSS_SUM, 0, (double *)part, NULL,
                     reduction == 1   ? 0
                     : reduction == 3 ? (double)(all.ndim ? shape[0] : 1)
                                      : 1,
                     plc_numbers_of(NULL), (double *)part + 1024, plc_numbers_of(call->out[0]));
  plc_scratch_free(part);
  return s;
}

} // namespace

PLC_KERNEL(loss, loss)

PlStatus plc_loss_end(PlcLossEnd end, int64_t n, const double *a, const double *b, double divisor, plc_numbers factor, double *part,
                      plc_numbers y) {
  const int64_t need = (n + PLC_BLOCK * 4 - 1) / (PLC_BLOCK * 4);
  const int parts = need < PLC_LOSS_PARTS ? (int)need : (int)PLC_LOSS_PARTS;
  if (parts > 0) PLC_LAUNCH(parts_of, (unsigned)parts, PLC_BLOCK, 0, n, a, b, part);
  PLC_LAUNCH(end_of, 1, PLC_LOSS_PARTS, 0, (int)end, parts, part, divisor, factor, y);
  return PL_OK;
}
