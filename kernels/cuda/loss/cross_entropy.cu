/* SPDX-License-Identifier: MIT
 * Negative log-likelihood and cross entropy over rows of classes (formulas: kernels/cpu/loss/cross_entropy.c). Cross entropy reads x
 * once forward, with a running maximum, and once backward. A row belongs to a block, to a warp, or, where rows are
 * side, to a thread. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/loss/loss.h"
#include "kernels/loss.h"

namespace {

struct Class {
  int64_t rows, n, inner, ignore, base;
  int width; /* threads of a row */
  double smooth;
  plc_numbers w;
  const void *target;
  int ttype;
  const double *sums; /* device: Σ w, then the scale of backward */
  plc_numbers dy;     /* of each row; p NULL: the scale is for all */
  PlcFlag *flag;
};

PLC_DEV int64_t start_of(const Class &k, int64_t row) { return row / k.inner * k.n * k.inner + row % k.inner; }
PLC_DEV double weight(const Class &k, int64_t c) { return plc_number(k.w, c, 1); }
/* The 0-based class of a row's target; -1: ignored. */
PLC_DEV int64_t target_of(const Class &k, int64_t row, const char *name) {
  const int64_t v = plc_get_i(k.target, k.ttype, row);
  if (v == k.ignore) return -1;
  if (v < k.base || v - k.base >= k.n) {
    plc_fault(k.flag, PLC_FAULT_INDEX, name, v, k.n, (int)k.base);
    return -1;
  }
  return v - k.base;
}
PLC_DEV int64_t row_of(const Class &k) { return (int64_t)blockIdx.x * ((int)blockDim.x / k.width) + (int)threadIdx.x / k.width; }
PLC_DEV double row_sum(const Class &k, double v, double *room) {
  if (k.width == 1) return v;
  return k.width == 32 ? plc_warp_all(v, plc_sum()) : plc_block_all(v, plc_sum(), 0.0, room);
}
PLC_DEV double row_max(const Class &k, double v, double *room) {
  if (k.width == 1) return v;
  return k.width == 32 ? plc_warp_all(v, plc_max()) : plc_block_all(v, plc_max(), -(double)INFINITY, room);
}

/* The maximum and Σ e^(x - maximum) of two parts of a row. */
template <typename A> struct Sum { A max, sum; };
template <typename A> PLC_DEV Sum<A> joined(Sum<A> a, Sum<A> b) {
  const A m = a.max > b.max ? a.max : b.max;
  Sum<A> r = {m, 0};
  if (a.sum != 0) r.sum += a.sum * (a.max == m ? (A)1 : (A)exp(a.max - m));
  if (b.sum != 0) r.sum += b.sum * (b.max == m ? (A)1 : (A)exp(b.max - m));
  return r;
}
template <typename A> PLC_DEV Sum<A> row_joined(const Class &k, Sum<A> s, A *room) {
  if (k.width == 1) return s;
  for (int d = 16; d > 0; d >>= 1) s = joined(s, Sum<A>{__shfl_xor_sync(0xffffffffu, s.max, d), __shfl_xor_sync(0xffffffffu, s.sum, d)});
  if (k.width == 32) return s;
  const int warp = (int)threadIdx.x >> 5;
  if (((int)threadIdx.x & 31) == 0) room[warp * 2] = s.max, room[warp * 2 + 1] = s.sum;
  __syncthreads();
  s = Sum<A>{room[0], room[1]};
  for (int w = 1; w < PLC_BLOCK / 32; w++) s = joined(s, Sum<A>{room[w * 2], room[w * 2 + 1]});
  return s;
}

template <typename T, int V>
__global__ void ce_forward(Class k, const T *x, double *loss, double *wt, plc_numbers out, plc_numbers lses, const char *name) {
  typedef typename plc_type<T>::math A;
  __shared__ A room[PLC_BLOCK / 16];
  __shared__ double sums[32];
  const int64_t row = row_of(k);
  const bool mine = row < k.rows;
  const T *from = x + (mine ? start_of(k, row) : 0);
  const int lane = (int)threadIdx.x % k.width;
  Sum<A> s = {-(A)INFINITY, 0};
  for (int64_t i = (int64_t)lane * V; mine && i < k.n; i += (int64_t)k.width * V) {
    A v[V], m = s.max, sum = 0;
    if (V > 1) {
      const plc_pack<T, V> p = *(const plc_pack<T, V> *)(from + i);
      for (int j = 0; j < V; j++) v[j] = plc_type<T>::load(p.v[j]);
    } else v[0] = plc_type<T>::load(from[i * k.inner]);
    for (int j = 0; j < V; j++) m = v[j] > m ? v[j] : m;
    for (int j = 0; j < V; j++) sum += v[j] == m ? (A)1 : (A)exp(v[j] - m);
    if (m == -(A)INFINITY) sum = v[0] != v[0] ? v[0] : (A)0;
    if (s.sum != 0) sum += s.sum * (s.max == m ? (A)1 : (A)exp(s.max - m));
    s = Sum<A>{m, sum};
  }
  s = row_joined(k, s, room);
  const double max = (double)s.max, rest = log((double)s.sum); /* apart: beside a large max the rest would be rounded away */
  double all = 0;
  for (int64_t i = lane; k.smooth > 0 && mine && i < k.n; i += k.width)
    all += weight(k, i) * ((max - (double)plc_type<T>::load(from[i * k.inner])) + rest);
  if (k.smooth > 0) all = row_sum(k, all, sums);
  if (!mine || lane != 0) return;
  const int64_t t = target_of(k, row, name);
  double l = 0, w = 0;
  if (t >= 0) {
    w = weight(k, t);
    l = (1 - k.smooth) * w * ((max - (double)plc_type<T>::load(from[t * k.inner])) + rest);
    if (k.smooth > 0) l += k.smooth / (double)k.n * all;
  }
  loss[row] = l;
  wt[row] = w;
  plc_number_put(out, row, l);
  plc_number_put(lses, row, max + rest);
}

/* Softmax of a row is e^(x - lse) / this: an lse far from 0 was rounded, in the loss' dtype, by what all quotients show; there it is
 * their sum. All threads of a row call it. */
template <typename A, typename Load> PLC_DEV double soften(const Class &k, A lse, int64_t n, double *room, Load x) {
  if (!(fabs((double)lse) >= PLK_LSE_FAR) || !isfinite((double)lse)) return 1;
  double sum = 0;
  for (int64_t i = (int)threadIdx.x % k.width; i < n; i += k.width) sum += (double)exp(x(i) - lse);
  return row_sum(k, sum, room);
}

/* dx_c = s (K q_c - (1-e) w_t [c = t] - e/C w_c),  K = (1-e) w_t + e/C W,  q_c = e^(x_c - lse). For q_t next to 1, q_t - 1 is taken as
 * minus the sum of the others (the CPU's kernel says why). */
template <typename T, int V> __global__ void ce_backward(Class k, const T *x, plc_numbers lses, T *dx, const char *name) {
  typedef typename plc_type<T>::math A;
  __shared__ double room[32];
  const int64_t row = row_of(k);
  if (row >= k.rows) return;
  const int64_t t = target_of(k, row, name), at = start_of(k, row);
  const double scale = t < 0 ? 0 : plc_number(k.dy, row, k.sums[1]), e = k.smooth / (double)k.n;
  const double hit = t < 0 ? 0 : (1 - k.smooth) * weight(k, t), K = t < 0 ? 0 : hit + e * k.sums[0];
  const A lse = (A)plc_number(lses, row, 0);
  const double sum = soften(k, lse, k.n, room, [&](int64_t i) { return (A)plc_type<T>::load(x[at + i * k.inner]); });
  const A f = (A)(scale * K / sum), g = (A)(scale * e), h = (A)(scale * hit);
  A rest = 0, own = 0;
  for (int64_t i = (int64_t)((int)threadIdx.x % k.width) * V; i < k.n; i += (int64_t)k.width * V) {
    plc_pack<T, V> p, q;
    if (V > 1) p = *(const plc_pack<T, V> *)(x + at + i);
    else p.v[0] = x[at + i * k.inner];
    for (int j = 0; j < V; j++) {
      A v = t < 0 ? (A)0 : f * (A)exp(plc_type<T>::load(p.v[j]) - lse);
      if (i + j == t) own = v;
      else rest += v;
      if (k.smooth > 0 && t >= 0) v -= g * (A)weight(k, i + j);
      if (i + j == t) v -= h;
      q.v[j] = plc_type<T>::store(v);
    }
    if (V > 1) *(plc_pack<T, V> *)(dx + at + i) = q;
    else dx[at + i * k.inner] = q.v[0];
  }
  const double others = row_sum(k, (double)rest, room);
  if (t < 0 || t / V % k.width != (int)threadIdx.x % k.width || !(fabs((double)own) > 0.5 * fabs(scale * K))) return;
  dx[at + t * k.inner] = plc_type<T>::store((A)(scale * e * (k.sums[0] - weight(k, t)) - others));
}

/* With q = softmax x:  ddy = Σ_c v_c dx_c / dy,  dx_c = s K q_c (v_c - Σ q v). v is taken from that of the likeliest class on.
 * sums[1] is 1/divisor; first: dy for all rows. */
__global__ void ce_backward2(Class k, plc_numbers x, plc_numbers v, plc_numbers first, plc_numbers dx, plc_numbers ddy, double *loss,
                             const char *name) {
  __shared__ double room[32];
  const int64_t row = row_of(k);
  const bool mine = row < k.rows;
  const int64_t at = mine ? start_of(k, row) : 0, n = mine ? k.n : 0;
  const int lane = (int)threadIdx.x % k.width;
  double top = -(double)INFINITY, place = 0, sum = 0, qv = 0, wv = 0;
  for (int64_t i = lane; i < n; i += k.width) {
    const double xi = plc_number(x, at + i * k.inner, 0);
    if (xi > top) top = xi, place = (double)i;
  }
  const double mine_top = top;
  top = row_max(k, top, room);
  place = row_max(k, mine_top == top ? place : 0, room);
  const double own = n > 0 ? plc_number(v, at + (int64_t)place * k.inner, 0) : 0;
  for (int64_t i = lane; i < n; i += k.width) {
    const double vi = plc_number(v, at + i * k.inner, 0) - own, q = exp(plc_number(x, at + i * k.inner, 0) - top);
    sum += q;
    qv += q * vi;
    wv += weight(k, i) * vi;
  }
  sum = row_sum(k, sum, room);
  qv = row_sum(k, qv, room) / sum;
  wv = row_sum(k, wv, room);
  if (!mine) return;
  const int64_t t = target_of(k, row, name);
  const double e = k.smooth / (double)k.n, hit = t < 0 ? 0 : (1 - k.smooth) * weight(k, t), K = t < 0 ? 0 : hit + e * k.sums[0];
  const double s = k.dy.p ? plc_number(k.dy, row, 0) : k.sums[1] * plc_number(first, 0, 1);
  if (lane == 0) {
    const double d = t < 0 ? 0 : K * qv + hit * (own - plc_number(v, at + t * k.inner, 0)) - e * wv;
    loss[row] = d * (k.dy.p ? 1 : k.sums[1]);
    plc_number_put(ddy, row, d);
  }
  for (int64_t i = lane; dx.p && i < n; i += k.width) {
    const int64_t p = at + i * k.inner;
    plc_number_put(dx, p, t < 0 ? 0 : s * K * (exp(plc_number(x, p, 0) - top) / sum) * (plc_number(v, p, 0) - own - qv));
  }
}

/* l = Σ_c w_c ((1-e) t_c + e/C) (lse - x_c) for targets that are probabilities */
__global__ void ce_prob(Class k, plc_numbers x, plc_numbers target, plc_numbers out, double *loss) {
  __shared__ double room[32];
  const int64_t row = row_of(k);
  const bool mine = row < k.rows;
  const int64_t at = mine ? start_of(k, row) : 0, n = mine ? k.n : 0;
  const int lane = (int)threadIdx.x % k.width;
  double m = -(double)INFINITY, sum = 0, l = 0;
  for (int64_t i = lane; i < n; i += k.width) {
    const double v = plc_number(x, at + i * k.inner, 0);
    m = v > m ? v : m;
  }
  m = row_max(k, m, room);
  for (int64_t i = lane; i < n; i += k.width) sum += exp(plc_number(x, at + i * k.inner, 0) - m);
  const double rest = log(row_sum(k, sum, room)), e = k.smooth / (double)k.n;
  for (int64_t i = lane; i < n; i += k.width) {
    const int64_t p = at + i * k.inner;
    l += weight(k, i) * ((1 - k.smooth) * plc_number(target, p, 0) + e) * ((m - plc_number(x, p, 0)) + rest);
  }
  l = row_sum(k, l, room);
  if (!mine || lane != 0) return;
  loss[row] = l;
  plc_number_put(out, row, l);
}

/* nll: l = -w_t x_t. x.p NULL: only the weights of the targets, for backward. */
__global__ void nll_forward(Class k, plc_numbers x, plc_numbers out, double *loss, double *wt, const char *name) {
  for (PLC_EACH(row, k.rows)) {
    const int64_t t = target_of(k, row, name);
    const double w = t < 0 ? 0 : weight(k, t);
    wt[row] = w;
    if (!x.p) continue;
    loss[row] = t < 0 ? 0 : -plc_number(x, start_of(k, row) + t * k.inner, 0) * w;
    plc_number_put(out, row, loss[row]);
  }
}
__global__ void nll_backward(Class k, plc_numbers dx, const char *name) { /* dx is zeros */
  for (PLC_EACH(row, k.rows)) {
    const int64_t t = target_of(k, row, name);
    if (t >= 0) plc_number_put(dx, start_of(k, row) + t * k.inner, -weight(k, t) * plc_number(k.dy, row, k.sums[1]));
  }
}
__global__ void weight_sum(Class k, double *sums) { /* one block */
  __shared__ double room[32];
  double s = 0;
  for (int64_t i = threadIdx.x; i < k.n; i += PLC_BLOCK) s += weight(k, i);
  s = plc_block_all(s, plc_sum(), 0.0, room);
  if (threadIdx.x == 0) sums[0] = s, sums[1] = 1;
}

__global__ void copy_scale(plc_numbers dy, double *sums) {
  if (threadIdx.x == 0) sums[1] = plc_number(dy, 0, 1);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */

struct Job {
  Class k;
  const char *name;
  int64_t reduction;
  unsigned grid;
  bool packs; /* rows are in whole packs */
  void *mem;
  double *loss, *wt, *part, *sums; /* device: a number a row each; room of plc_loss_end; Σ w and the scale */
};
const plc_numbers none = {NULL, (int)PL_F32};
plc_numbers if_none(const Job &j, const PlArray *a) { return j.reduction == 0 ? plc_numbers_of(a) : none; }

PlStatus start(Job *j, const PlkCall *call, const PlArray *x, const PlArray *target, const PlArray *w, bool labels) {
  const plc_rows r = plc_rows_of(x, x->ndim > 1 ? 1 : 0);
  memset(j, 0, sizeof *j);
  j->name = call->name;
  j->reduction = pl_attr_i(call->attrs, 0);
  Class *k = &j->k;
  k->rows = r.outer * r.inner, k->n = r.n, k->inner = r.inner;
  if (labels) k->ignore = pl_attr_i(call->attrs, 1), k->base = pl_attr_i(call->attrs, 2);
  k->width = r.n < 8 || (r.inner > 1 && k->rows >= 4096) ? 1 : r.n <= 2048 ? 32 : PLC_BLOCK;
  k->w = plc_numbers_of(w);
  k->target = target->data, k->ttype = target->dtype;
  k->dy = none;
  k->flag = plc_flag();
  const int each = PLC_BLOCK / k->width, V = 16 / (int)pl_dtype_size((PlDtype)x->dtype);
  j->grid = (unsigned)((k->rows + each - 1) / each);
  j->packs = r.inner == 1 && k->width > 1 && r.n % V == 0 && (uintptr_t)x->data % 16 == 0;
  PL_TRY(plc_scratch((size_t)(2 * k->rows + 2 * PLC_LOSS_PARTS + 2) * sizeof(double), &j->mem));
  j->loss = (double *)j->mem, j->wt = j->loss + k->rows, j->part = j->wt + k->rows, j->sums = j->part + 2 * PLC_LOSS_PARTS;
  k->sums = j->sums;
  if (w) {
    PLC_LAUNCH(weight_sum, 1, PLC_BLOCK, 0, *k, j->sums);
    return PL_OK;
  }
  const double plain[2] = {(double)k->n, 1};
  return plc_upload_few(j->sums, plain, sizeof plain);
}
/* Writes the reduced loss; `none` was written by the rows. */
PlStatus finish(const Job *j, PlArray *y, bool by_rows) {
  if (j->reduction == 0) return PL_OK;
  const bool ratio = j->reduction == 1 && !by_rows;
  return plc_loss_end(ratio ? PLC_LOSS_RATIO : PLC_LOSS_SUM, j->k.rows, j->loss, ratio ? j->wt : NULL,
                      j->reduction == 1 ? (double)j->k.rows : 1, none, j->part, plc_numbers_of(y));
}
/* For backward: sums[1] = dy over what mean divides by; with `dy` NULL 1 over it. */
PlStatus find_scale(const Job *j, const PlArray *dy) {
  const plc_numbers to = {j->sums + 1, (int)PL_F64};
  if (j->reduction == 0) return PL_OK;
  if (j->reduction == 1) {
    if (j->k.rows > 0) PLC_LAUNCH(nll_forward, plc_grid(j->k.rows, 1), PLC_BLOCK, 0, j->k, none, none, j->loss, j->wt, j->name);
    return plc_loss_end(PLC_LOSS_SCALE, j->k.rows, NULL, j->wt, 1, plc_numbers_of(dy), j->part, to);
  }
  if (dy) PLC_LAUNCH(copy_scale, 1, 32, 0, plc_numbers_of(dy), j->sums);
  return PL_OK;
}

PlStatus nll_run(const PlkCall *call, Job *j) {
  const Class &k = j->k;
  if (k.rows > 0)
    PLC_LAUNCH(nll_forward, plc_grid(k.rows, 1), PLC_BLOCK, 0, k, plc_numbers_of(call->in[0]), if_none(*j, call->out[0]), j->loss, j->wt,
               j->name);
  return finish(j, call->out[0], false);
}
PlStatus nll_bwd_run(const PlkCall *call, Job *j) {
  PlArray *dx = call->out[0];
  PL_TRY(find_scale(j, call->in[0]));
  j->k.dy = if_none(*j, call->in[0]);
  if (dx->numel == 0) return PL_OK;
  PLC_TRY(cudaMemsetAsync(dx->data, 0, (size_t)dx->numel * pl_dtype_size((PlDtype)dx->dtype), plc_stream()));
  PLC_LAUNCH(nll_backward, plc_grid(j->k.rows, 1), PLC_BLOCK, 0, j->k, plc_numbers_of(dx), j->name);
  return PL_OK;
}
PlStatus ce_run(const PlkCall *call, Job *j) {
  const PlArray *x = call->in[0];
  j->k.smooth = pl_attr_f(call->attrs, 3);
  const plc_numbers out = if_none(*j, call->out[0]), lse = plc_numbers_of(call->out[1]);
  if (j->k.rows > 0)
    PLC_FLOATS(x->dtype, T, call->name, {
      if (j->packs)
        PLC_LAUNCH((ce_forward<T, 16 / (int)sizeof(T)>), j->grid, PLC_BLOCK, 0, j->k, (const T *)x->data, j->loss, j->wt, out, lse,
                   j->name);
      else PLC_LAUNCH((ce_forward<T, 1>), j->grid, PLC_BLOCK, 0, j->k, (const T *)x->data, j->loss, j->wt, out, lse, j->name);
    })
  return finish(j, call->out[0], false);
}
PlStatus ce_bwd_run(const PlkCall *call, Job *j) {
  const PlArray *x = call->in[1], *dx = call->out[0];
  const plc_numbers lse = plc_numbers_of(call->in[3]);
  j->k.smooth = pl_attr_f(call->attrs, 3);
  PL_TRY(find_scale(j, call->in[0]));
  j->k.dy = if_none(*j, call->in[0]);
  if (dx->numel == 0) return PL_OK;
  PLC_FLOATS(x->dtype, T, call->name, {
    if (j->packs && (uintptr_t)dx->data % 16 == 0)
      PLC_LAUNCH((ce_backward<T, 16 / (int)sizeof(T)>), j->grid, PLC_BLOCK, 0, j->k, (const T *)x->data, lse, (T *)dx->data, j->name);
    else PLC_LAUNCH((ce_backward<T, 1>), j->grid, PLC_BLOCK, 0, j->k, (const T *)x->data, lse, (T *)dx->data, j->name);
  })
  return PL_OK;
}
PlStatus ce_bwd2_run(const PlkCall *call, Job *j) {
  PlArray *ddy = call->out[0], *dx = call->out[1];
  j->k.smooth = pl_attr_f(call->attrs, 3);
  PL_TRY(find_scale(j, NULL));
  j->k.dy = if_none(*j, call->in[0]);
  if (j->k.rows > 0)
    PLC_LAUNCH(ce_backward2, j->grid, PLC_BLOCK, 0, j->k, plc_numbers_of(call->in[1]), plc_numbers_of(call->in[4]),
               plc_numbers_of(call->in[0]), plc_numbers_of(dx), if_none(*j, ddy), j->loss, j->name);
  if (!ddy || j->reduction == 0) return PL_OK;
  return plc_loss_end(PLC_LOSS_SUM, j->k.rows, j->loss, NULL, 1, none, j->part, plc_numbers_of(ddy));
}
/* Loss and tangent: the second is Σ_c v_c dx_c, which the gradient's gradient adds up. */
PlStatus ce_dual_run(const PlkCall *call, Job *j) {
  PlArray lse = *call->in[1], *kept = call->out[1] ? call->out[1] : &lse;
  void *room = NULL;
  if (!call->out[1]) {
    PL_TRY(plc_scratch((size_t)(j->k.rows + 1) * sizeof(double), &room));
    lse.data = room, lse.dtype = PL_F64;
  }
  const PlArray *first[3] = {call->in[0], call->in[1], call->nin > 3 ? call->in[3] : NULL};
  const PlArray *second[6] = {NULL, call->in[0], call->in[1], kept, call->in[2], first[2]};
  PlArray *y[2] = {call->out[0], kept}, *tangent[2] = {call->out[2], NULL};
  PlkCall k = *call;
  k.in = first, k.nin = 3, k.out = y, k.nout = 2;
  PlStatus s = ce_run(&k, j);
  k.in = second, k.nin = 6, k.out = tangent;
  if (s == PL_OK) s = ce_bwd2_run(&k, j);
  plc_scratch_free(room);
  return s;
}
PlStatus prob_run(const PlkCall *call, Job *j) {
  j->k.smooth = pl_attr_f(call->attrs, 1);
  if (j->k.rows > 0)
    PLC_LAUNCH(ce_prob, j->grid, PLC_BLOCK, 0, j->k, plc_numbers_of(call->in[0]), plc_numbers_of(call->in[1]), if_none(*j, call->out[0]),
               j->loss);
  return finish(j, call->out[0], true);
}

/* x, target, weight: which inputs (x < 0: the output). */
template <PlStatus (*body)(const PlkCall *, Job *), int x, int target, int weight, bool labels> PlStatus with(const PlkCall *call) {
  Job j;
  PlStatus s = start(&j, call, x < 0 ? call->out[0] : call->in[x], call->in[target], call->nin > weight ? call->in[weight] : NULL, labels);
  if (s == PL_OK) s = body(call, &j);
  plc_scratch_free(j.mem);
  return s;
}

} // namespace

PLC_KERNEL(nll_loss, (with<nll_run, 0, 1, 2, true>))
PLC_KERNEL(nll_loss_bwd, (with<nll_bwd_run, -1, 1, 2, true>))
PLC_KERNEL(cross_entropy, (with<ce_run, 0, 1, 2, true>))
PLC_KERNEL(cross_entropy_dual, (with<ce_dual_run, 0, 1, 3, true>))
PLC_KERNEL(cross_entropy_bwd, (with<ce_bwd_run, 1, 2, 4, true>))
PLC_KERNEL(cross_entropy_bwd2, (with<ce_bwd2_run, 1, 2, 5, true>))
PLC_KERNEL(cross_entropy_prob, (with<prob_run, 0, 1, 2, false>))
