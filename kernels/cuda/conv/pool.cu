/* SPDX-License-Identifier: MIT
 * Pooling (kernels/pool.h): one thread an output, or, for gradients, one thread an input that gathers from every window it
 * is in, in one order, so nothing is added atomically. Spatial dims are padded to three. Planes are one after the other, or
 * side by side (channels last: neighbouring threads then have neighbouring channels). */
#include "kernels/cuda/norm/channels.h"
#include "kernels/elementwise_codes.h"
#include "kernels/pool.h"

namespace {

struct Pool {
  bool adaptive, include_pad, wide, last;                         /* last: channels are side by side */
  int64_t planes, insize, outsize, divisor;                       /* divisor 0: the window's size */
  int64_t step;                                                   /* between neighbours of a plane: 1, or channels last their number */
  int64_t in[3], out[3], k[3], stride[3], pad[3], end[3], dil[3]; /* pad: before, end: behind */
  plc_div by_in[3], by_out[3], by_stride[3], by_step;
};

/* One dim of a window: positions lo, lo + step … below hi, `count` of them; `full` counts padding too. */
struct Span {
  int64_t lo, hi, step, count, full;
};

PLC_DEV Span span(const Pool &p, int d, int64_t t) {
  Span s;
  if (p.adaptive) {
    s.lo = t * p.in[d] / p.out[d];
    s.hi = ((t + 1) * p.in[d] + p.out[d] - 1) / p.out[d];
    s.step = 1;
    s.count = s.full = s.hi - s.lo;
    return s;
  }
  const int64_t from = t * p.stride[d] - p.pad[d];
  s.step = p.dil[d];
  s.lo = from < 0 ? (s.step == 1 ? 0 : from + (-from + s.step - 1) / s.step * s.step) : from;
  const int64_t end = from + (p.k[d] - 1) * s.step + 1, wall = p.in[d] + p.end[d];
  s.hi = end < p.in[d] ? end : p.in[d];
  s.count = s.hi <= s.lo ? 0 : s.step == 1 ? s.hi - s.lo : (s.hi - s.lo + s.step - 1) / s.step;
  s.full = s.step == 1 ? wall - from : (wall - from + s.step - 1) / s.step;
  if (s.full > p.k[d]) s.full = p.k[d];
  return s;
}

PLC_DEV int64_t quotient(const Pool &p, int64_t n, plc_div by, int64_t d) {
  return p.wide ? n / d : (int64_t)plc_quotient((uint32_t)n, by);
}
/* i = (plane, t[0], t[1], t[2]), or (sample, t[0], t[1], t[2], channel). Where the plane begins in an array with planes of
 * `other` elements. */
PLC_DEV int64_t split(const Pool &p, int64_t i, const plc_div by[3], const int64_t size[3], int64_t other, int64_t t[3]) {
  int64_t c = 0;
  if (p.last) {
    const int64_t q = quotient(p, i, p.by_step, p.step);
    c = i - q * p.step;
    i = q;
  }
  for (int d = 2; d >= 0; d--) {
    const int64_t q = quotient(p, i, by[d], size[d]);
    t[d] = i - q * size[d];
    i = q;
  }
  return i * other * p.step + c;
}
PLC_DEV int64_t place(const int64_t size[3], int64_t i, int64_t j, int64_t k) { return (i * size[1] + j) * size[2] + k; }

/* The windows [*first, *last] that may hold position i of a dim. */
PLC_DEV void windows(const Pool &p, int d, int64_t i, int64_t *first, int64_t *last) {
  if (p.adaptive) {
    *first = i * p.out[d] / p.in[d];
    *last = ((i + 1) * p.out[d] + p.in[d] - 1) / p.in[d] - 1;
    return;
  }
  const int64_t at = i + p.pad[d], low = at - (p.k[d] - 1) * p.dil[d];
  *last = quotient(p, at, p.by_stride[d], p.stride[d]);
  *first = low <= 0 ? 0 : quotient(p, low + p.stride[d] - 1, p.by_stride[d], p.stride[d]);
  if (*last > p.out[d] - 1) *last = p.out[d] - 1;
}

/* Whether window t has position i, which is between its first and its last. */
PLC_DEV bool holds(const Pool &p, int d, int64_t t, int64_t i) { return p.dil[d] == 1 || (i + p.pad[d] - t * p.stride[d]) % p.dil[d] == 0; }

template <typename A> PLC_DEV A divisor(const Pool &p, const Span &z, const Span &y, const Span &x) {
  if (p.divisor) return (A)p.divisor;
  if (p.include_pad) return (A)(z.full * y.full * x.full);
  return (A)(z.count * y.count * x.count);
}
PLC_DEV bool empty(const Span &z, const Span &y, const Span &x) { return z.hi <= z.lo || y.hi <= y.lo || x.hi <= x.lo; }

template <typename T> __global__ void max_forward(Pool p, const T *x, T *y, int64_t *index, int64_t base, int64_t *place) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(o, p.planes * p.outsize)) {
    int64_t t[3];
    const T *src = x + split(p, o, p.by_out, p.out, p.insize, t);
    const Span sz = span(p, 0, t[0]), sy = span(p, 1, t[1]), sx = span(p, 2, t[2]);
    A best = -(A)INFINITY;
    int64_t which = empty(sz, sy, sx) ? 0 : (sz.lo * p.in[1] + sy.lo) * p.in[2] + sx.lo;
    for (int64_t i = sz.lo; i < sz.hi; i += sz.step)
      for (int64_t j = sy.lo; j < sy.hi; j += sy.step)
        for (int64_t k = sx.lo; k < sx.hi; k += sx.step) {
          const int64_t at = (i * p.in[1] + j) * p.in[2] + k;
          const A v = plc_type<T>::load(src[at * p.step]);
          if (v > best || v != v) best = v, which = at;
        }
    if (y) y[o] = plc_type<T>::store(best);
    if (index) index[o] = which + base;
    if (place) place[o] = which;
  }
}

template <typename T> __global__ void max_backward(Pool p, const T *dy, const int64_t *index, T *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(e, p.planes * p.insize)) {
    int64_t t[3], a[3], b[3];
    const int64_t plane = split(p, e, p.by_in, p.in, p.outsize, t), here = place(p.in, t[0], t[1], t[2]);
    for (int d = 0; d < 3; d++) windows(p, d, t[d], &a[d], &b[d]);
    A sum = 0;
    for (int64_t i = a[0]; i <= b[0]; i++)
      for (int64_t j = a[1]; j <= b[1]; j++)
        for (int64_t k = a[2]; k <= b[2]; k++) {
          const int64_t o = plane + place(p.out, i, j, k) * p.step;
          if (index[o] == here) sum += plc_type<T>::load(dy[o]);
        }
    dx[e] = plc_type<T>::store(sum);
  }
}

/* The same for channels last in packs of V channels: planes and steps of p count packs. */
template <typename T, int V>
__global__ void max_forward_packs(Pool p, const plc_pack<T, V> *x, plc_pack<T, V> *y, plc_pack<int64_t, V> *index, int64_t base,
                                  plc_pack<int64_t, V> *place) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(o, p.planes * p.outsize)) {
    int64_t t[3];
    const plc_pack<T, V> *src = x + split(p, o, p.by_out, p.out, p.insize, t);
    const Span sz = span(p, 0, t[0]), sy = span(p, 1, t[1]), sx = span(p, 2, t[2]);
    A best[V];
    int which[V];
    PLC_UNROLL for (int e = 0; e < V; e++) {
      best[e] = -(A)INFINITY;
      which[e] = empty(sz, sy, sx) ? 0 : (int)((sz.lo * p.in[1] + sy.lo) * p.in[2] + sx.lo);
    }
    for (int64_t i = sz.lo; i < sz.hi; i += sz.step)
      for (int64_t j = sy.lo; j < sy.hi; j += sy.step)
        for (int64_t k = sx.lo; k < sx.hi; k += sx.step) {
          const int at = (int)((i * p.in[1] + j) * p.in[2] + k);
          const plc_pack<T, V> pack = src[at * p.step];
          PLC_UNROLL for (int e = 0; e < V; e++) {
            const A v = plc_type<T>::load(pack.v[e]);
            if (v > best[e] || v != v) best[e] = v, which[e] = at;
          }
        }
    plc_pack<T, V> r;
    plc_pack<int64_t, V> at;
    PLC_UNROLL for (int e = 0; e < V; e++) r.v[e] = plc_type<T>::store(best[e]), at.v[e] = which[e];
    if (y) y[o] = r;
    if (place) place[o] = at;
    PLC_UNROLL for (int e = 0; e < V; e++) at.v[e] += base;
    if (index) index[o] = at;
  }
}
template <typename T, int V>
__global__ void max_backward_packs(Pool p, const plc_pack<T, V> *dy, const plc_pack<int64_t, V> *index, plc_pack<T, V> *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(n, p.planes * p.insize)) {
    int64_t t[3], a[3], b[3];
    const int64_t plane = split(p, n, p.by_in, p.in, p.outsize, t), here = place(p.in, t[0], t[1], t[2]);
    for (int d = 0; d < 3; d++) windows(p, d, t[d], &a[d], &b[d]);
    A sum[V];
    PLC_UNROLL for (int e = 0; e < V; e++) sum[e] = 0;
    for (int64_t i = a[0]; i <= b[0]; i++)
      for (int64_t j = a[1]; j <= b[1]; j++)
        for (int64_t k = a[2]; k <= b[2]; k++) {
          const int64_t o = plane + place(p.out, i, j, k) * p.step;
          const plc_pack<int64_t, V> at = index[o];
          const plc_pack<T, V> g = dy[o];
          PLC_UNROLL for (int e = 0; e < V; e++) if (at.v[e] == here) sum[e] += plc_type<T>::load(g.v[e]);
        }
    plc_pack<T, V> r;
    PLC_UNROLL for (int e = 0; e < V; e++) r.v[e] = plc_type<T>::store(sum[e]);
    dx[n] = r;
  }
}
/* p with planes and steps in packs of V channels; false: they do not go so, or one of the arrays is not in whole packs. */
bool in_packs(const Pool &p, int V, const void *x, const void *y, const void *index, const void *place, Pool *q) {
  if (p.step < 2 || p.step % V || p.insize > INT32_MAX) return false;
  if (((uintptr_t)x | (uintptr_t)y) % 16 || ((uintptr_t)index | (uintptr_t)place) % (8 * (size_t)V)) return false;
  *q = p;
  q->step = p.step / V, q->planes = p.planes / V;
  q->by_step = plc_div_by(p.wide ? 1u : (uint32_t)q->step);
  return true;
}

template <typename T> __global__ void avg_forward(Pool p, const T *x, T *y) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(o, p.planes * p.outsize)) {
    int64_t t[3];
    const T *src = x + split(p, o, p.by_out, p.out, p.insize, t);
    const Span sz = span(p, 0, t[0]), sy = span(p, 1, t[1]), sx = span(p, 2, t[2]);
    A sum = 0;
    for (int64_t i = sz.lo; i < sz.hi; i += sz.step)
      for (int64_t j = sy.lo; j < sy.hi; j += sy.step)
        for (int64_t k = sx.lo; k < sx.hi; k += sx.step) sum += plc_type<T>::load(src[place(p.in, i, j, k) * p.step]);
    y[o] = plc_type<T>::store(empty(sz, sy, sx) ? (A)0 : sum / divisor<A>(p, sz, sy, sx));
  }
}

/* The mean of a whole plane: a warp each. */
template <typename T> __global__ void avg_plane(Pool p, const T *x, T *y) {
  typedef typename plc_type<T>::math A;
  const int64_t plane = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const bool mine = plane < p.planes;
  A sum = 0;
  if (mine)
    for (int64_t i = threadIdx.x % 32; i < p.insize; i += 32) sum += plc_type<T>::load(x[plane * p.insize + i]);
  sum = plc_warp_all(sum, plc_sum());
  if (mine && threadIdx.x % 32 == 0) y[plane] = plc_type<T>::store(sum / (A)p.insize);
}

template <typename T> __global__ void avg_backward(Pool p, const T *dy, T *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(e, p.planes * p.insize)) {
    int64_t t[3], a[3], b[3];
    const int64_t plane = split(p, e, p.by_in, p.in, p.outsize, t);
    for (int d = 0; d < 3; d++) windows(p, d, t[d], &a[d], &b[d]);
    A sum = 0;
    for (int64_t i = a[0]; i <= b[0]; i++) {
      if (!holds(p, 0, i, t[0])) continue;
      const Span z = span(p, 0, i);
      for (int64_t j = a[1]; j <= b[1]; j++) {
        if (!holds(p, 1, j, t[1])) continue;
        const Span y = span(p, 1, j);
        for (int64_t k = a[2]; k <= b[2]; k++) {
          if (!holds(p, 2, k, t[2])) continue;
          const Span x = span(p, 2, k);
          sum += plc_type<T>::load(dy[plane + place(p.out, i, j, k) * p.step]) / divisor<A>(p, z, y, x);
        }
      }
    }
    dx[e] = plc_type<T>::store(sum);
  }
}

/* ---- what a call is ---------------------------------------------------------------------------------------------------- */

/* Entry d of a list that has one for all dims, or one each. */
int64_t entry(const PlAttrs *a, int k, int d) { return pl_attr_list(a, k)[pl_attr_n(a, k) == 1 ? 0 : d]; }

enum Kind { MAX, AVG, ADAPTIVE }; /* how attributes read: those of max_pool, avg_pool (engine/ops/nn/pool.c), none */

Pool describe(Kind kind, int nd, const PlAttrs *attrs, const PlArray *x, const PlArray *y) {
  Pool p;
  memset(&p, 0, sizeof p);
  p.adaptive = kind == ADAPTIVE;
  p.planes = p.insize = p.outsize = 1;
  p.step = x->contiguous && y->contiguous ? 1 : x->shape[1];
  p.last = p.step > 1;
  for (int d = 0; d < 3; d++) {
    const int i = d - (3 - nd);
    p.in[d] = p.out[d] = p.k[d] = p.stride[d] = p.dil[d] = 1;
    if (i < 0) continue;
    p.in[d] = x->shape[x->ndim - nd + i];
    p.out[d] = y->shape[y->ndim - nd + i];
    p.insize *= p.in[d], p.outsize *= p.out[d];
    if (kind == ADAPTIVE) continue;
    p.k[d] = entry(attrs, 0, i);
    p.stride[d] = pl_attr_has(attrs, 1) && pl_attr_n(attrs, 1) > 0 ? entry(attrs, 1, i) : p.k[d];
    p.pad[d] = entry(attrs, 2, i);
    p.end[d] = pl_attr_n(attrs, 2) == 2 * nd ? entry(attrs, 2, nd + i) : p.pad[d];
    p.dil[d] = entry(attrs, kind == MAX ? 3 : 6, i);
  }
  for (int i = 0; i < x->ndim - nd; i++) p.planes *= x->shape[i];
  if (kind == AVG) {
    p.include_pad = pl_attr_i(attrs, 4) != 0;
    p.divisor = pl_attr_has(attrs, 5) ? pl_attr_i(attrs, 5) : 0;
  }
  p.wide = p.planes * p.insize > INT32_MAX / 2 || p.planes * p.outsize > INT32_MAX / 2;
  for (int d = 0; d < 3; d++) p.wide = p.wide || p.stride[d] > INT32_MAX / 4 || p.pad[d] > INT32_MAX / 4;
  p.by_step = plc_div_by(p.wide || p.step < 1 ? 1u : (uint32_t)p.step);
  for (int d = 0; d < 3; d++) {
    p.by_in[d] = plc_div_by(p.wide || p.in[d] < 1 ? 1u : (uint32_t)p.in[d]);
    p.by_out[d] = plc_div_by(p.wide || p.out[d] < 1 ? 1u : (uint32_t)p.out[d]);
    p.by_stride[d] = plc_div_by(p.wide ? 1u : (uint32_t)p.stride[d]);
  }
  return p;
}

/* Integers go through f64, as on the CPU. */
PlStatus through_f64(PlStatus (*forward)(const Pool *, const PlkCall *), const Pool *p, const PlkCall *call) {
  static const PlAttrs none = {};
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  void *mx, *my;
  const void *data;
  PlArray fx = *x, fy = *y;
  PL_TRY(plc_as(x, PL_F64, &mx, &data));
  PlStatus s = plc_scratch((size_t)y->numel * sizeof(double), &my);
  if (s != PL_OK) {
    plc_scratch_free(mx);
    return s;
  }
  fx.data = mx, fx.dtype = PL_F64, fy.data = my, fy.dtype = PL_F64;
  const PlArray *in[1] = {&fx}, *back[1] = {&fy};
  PlArray *out[3] = {&fy, call->nout > 1 ? call->out[1] : NULL, call->nout > 2 ? call->out[2] : NULL}, *done[1] = {y};
  PlkCall k = *call;
  k.in = in, k.out = out;
  s = forward(p, &k);
  k.name = "cast", k.code = PLK_EW_CAST, k.nin = k.nout = 1, k.in = back, k.out = done, k.attrs = &none;
  if (s == PL_OK) s = plc_run(&plc_kernel_elementwise, &k);
  plc_scratch_free(my);
  plc_scratch_free(mx);
  return s;
}

/* out: values, positions for the caller counted from a base, positions for the gradient; any may be NULL. */
PlStatus maximum(const Pool *p, const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *const *out = call->out;
  const int64_t n = p->planes * p->outsize, base = pl_attr_i(call->attrs, p->adaptive ? 2 : 6);
  if (out[0] && !pl_is_float((PlDtype)x->dtype)) return through_f64(maximum, p, call);
  void *y = out[0] ? out[0]->data : NULL, *index = out[1] ? out[1]->data : NULL, *place = out[2] ? out[2]->data : NULL;
  Pool q;
  PLC_FLOATS(x->dtype, T, call->name, {
    enum { V = 16 / (int)sizeof(T) };
    typedef plc_pack<T, V> Pack;
    typedef plc_pack<int64_t, V> Places;
    if (in_packs(*p, V, x->data, y, index, place, &q))
      PLC_LAUNCH((max_forward_packs<T, V>), plc_grid(n / V, 1), PLC_BLOCK, 0, q, (const Pack *)x->data, (Pack *)y, (Places *)index, base,
                 (Places *)place);
    else PLC_LAUNCH(max_forward<T>, plc_grid(n, 1), PLC_BLOCK, 0, *p, (const T *)x->data, (T *)y, (int64_t *)index, base, (int64_t *)place);
  });
  return PL_OK;
}
template <Kind kind, int nd> PlStatus max_pool(const PlkCall *call) {
  const PlArray *y = call->out[0] ? call->out[0] : call->out[1] ? call->out[1] : call->out[2];
  if (!y || y->numel == 0) return PL_OK;
  const Pool p = describe(kind, nd, call->attrs, call->in[0], y);
  return maximum(&p, call);
}

PlStatus average(const Pool *p, const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  if (!pl_is_float((PlDtype)x->dtype)) return through_f64(average, p, call);
  if (p->adaptive && p->outsize == 1 && p->step == 1)
    PLC_FLOATS(x->dtype, T, call->name,
               PLC_LAUNCH(avg_plane<T>, (unsigned)((p->planes + 7) / 8), PLC_BLOCK, 0, *p, (const T *)x->data, (T *)y->data))
  else
    PLC_FLOATS(x->dtype, T, call->name,
               PLC_LAUNCH(avg_forward<T>, plc_grid(y->numel, 1), PLC_BLOCK, 0, *p, (const T *)x->data, (T *)y->data))
  return PL_OK;
}
template <Kind kind, int nd> PlStatus avg_pool(const PlkCall *call) {
  if (call->out[0]->numel == 0) return PL_OK;
  const Pool p = describe(kind, nd, call->attrs, call->in[0], call->out[0]);
  return average(&p, call);
}

PlStatus gradient(Kind kind, int nd, const PlkCall *call) {
  const PlArray *dy = call->in[0], *index = call->nin > 1 ? call->in[1] : NULL;
  PlArray *dx = call->out[0];
  if (dx->numel == 0) return PL_OK;
  const Pool p = describe(kind, nd, call->attrs, dx, dy);
  Pool q;
  if (index)
    PLC_FLOATS(dx->dtype, T, call->name, {
      enum { V = 16 / (int)sizeof(T) };
      if (in_packs(p, V, dx->data, dy->data, index->data, NULL, &q))
        PLC_LAUNCH((max_backward_packs<T, V>), plc_grid(dx->numel / V, 1), PLC_BLOCK, 0, q, (const plc_pack<T, V> *)dy->data,
                   (const plc_pack<int64_t, V> *)index->data, (plc_pack<T, V> *)dx->data);
      else
        PLC_LAUNCH(max_backward<T>, plc_grid(dx->numel, 1), PLC_BLOCK, 0, p, (const T *)dy->data, (const int64_t *)index->data,
                   (T *)dx->data);
    })
  else
    PLC_FLOATS(dx->dtype, T, call->name,
               PLC_LAUNCH(avg_backward<T>, plc_grid(dx->numel, 1), PLC_BLOCK, 0, p, (const T *)dy->data, (T *)dx->data))
  return PL_OK;
}
PlStatus max_pool_bwd(const PlkCall *call) { return gradient(MAX, pl_attr_n(call->attrs, 0), call); }
PlStatus avg_pool_bwd(const PlkCall *call) { return gradient(AVG, pl_attr_n(call->attrs, 0), call); }
PlStatus adaptive_bwd(const PlkCall *call) { return gradient(ADAPTIVE, (int)pl_attr_i(call->attrs, 1), call); }

} // namespace

#define POOLS(ND)                                                \
  PLC_KERNEL(max_pool##ND##d, (max_pool<MAX, ND>))               \
  PLC_KERNEL(avg_pool##ND##d, (avg_pool<AVG, ND>))               \
  PLC_KERNEL(adaptive_max_pool##ND##d, (max_pool<ADAPTIVE, ND>)) \
  PLC_KERNEL(adaptive_avg_pool##ND##d, (avg_pool<ADAPTIVE, ND>))
POOLS(1)
POOLS(2)
POOLS(3)
PLC_KERNEL(max_pool_bwd, max_pool_bwd)
PLC_KERNEL(avg_pool_bwd, avg_pool_bwd)
PLC_KERNEL(adaptive_max_pool_bwd, adaptive_bwd)
PLC_KERNEL(adaptive_avg_pool_bwd, adaptive_bwd)
