/* SPDX-License-Identifier: MIT
 * Joins, repeats, flips, rolls and pads (kernels/join.h). What is a product of straight pieces is a strided copy; pads and
 * rolls map each output position to its source. Gradients gather what an element was copied to. */
#include "kernels/convert.h"
#include "kernels/cuda/shape/window_walk.h"
#include "kernels/elementwise_codes.h"
#include "kernels/join.h"
#include "kernels/reduce.h"

namespace {

PlStatus cat(const PlkCall *call) {
  PlArray *y = call->out[0];
  int64_t at = 0, dim = pl_attr_i(call->attrs, 0);
  if (dim < 0) dim += y->ndim;
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    if (x->numel == 0) continue; /* also the empty 1-d tensor that joins with anything; nothing to count on */
    plc_walk w;
    w.n = 0;
    const bool last = !y->contiguous && x->ndim > 1 && y->strides[1] == 1; /* channels last: they are walked innermost */
    for (int d = 0; d < x->ndim; d++)
      if (d != 1 || !last) plc_walk_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
    if (last) plc_walk_dim(&w, x->shape[1], y->strides[1], x->strides[1]);
    PL_TRY(plc_walk_copy(&w, y->dtype, plc_at(y->data, at * y->strides[dim], y->dtype), x->data));
    at += x->shape[dim];
  }
  return PL_OK;
}

/* As cat, but x + 0, which is what sums with zeros make of it: a few parts a launch, 16 bytes at once where all of them allow it. */
enum { AT_ONCE = 4 };
struct Slices {
  int n;
  int64_t first[AT_ONCE + 1]; /* items before each part */
  plc_layout<2> l[AT_ONCE];
  void *y[AT_ONCE];
  const void *x[AT_ONCE];
};
template <typename T, int N> __global__ void join_slices(const __grid_constant__ Slices s) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(i, s.first[s.n])) {
    int64_t at[2];
    int k = 0;
    while (k + 1 < s.n && s.first[k + 1] <= i) k++;
    plc_offsets<2>(s.l[k], (i - s.first[k]) * N, at);
    plc_pack<T, N> v = *(const plc_pack<T, N> *)((const T *)s.x[k] + at[1]);
    PLC_UNROLL for (int e = 0; e < N; e++) v.v[e] = plc_type<T>::store(plc_type<T>::load(v.v[e]) + (A)0);
    *(plc_pack<T, N> *)((T *)s.y[k] + at[0]) = v;
  }
}
bool in_packs(const Slices &s, int64_t n) {
  for (int k = 0; k < s.n; k++) {
    const plc_layout<2> &l = s.l[k];
    const bool dense = l.ndim > 0 && l.stride[0][0] == 1 && l.stride[1][0] == 1 && l.size[0] % n == 0;
    if (!dense || ((uintptr_t)s.x[k] | (uintptr_t)s.y[k]) % 16) return false;
    for (int d = 1; d < l.ndim; d++)
      if (l.stride[0][d] % n || l.stride[1][d] % n) return false;
  }
  return true;
}
PlStatus join_now(const char *name, Slices *s, int dtype) {
  const int64_t n = 16 / (int64_t)pl_dtype_size((PlDtype)dtype);
  const bool packs = in_packs(*s, n);
  for (int k = 0; k < s->n; k++) s->first[k + 1] = s->first[k] + s->l[k].numel / (packs ? n : 1);
  if (s->n)
    PLC_FLOATS(dtype, T, name, {
      if (packs) PLC_LAUNCH((join_slices<T, 16 / (int)sizeof(T)>), plc_grid(s->first[s->n], 1), PLC_BLOCK, 0, *s);
      else PLC_LAUNCH((join_slices<T, 1>), plc_grid(s->first[s->n], 1), PLC_BLOCK, 0, *s);
    })
  s->n = 0;
  return PL_OK;
}
PlStatus slices_bwd(const PlkCall *call) {
  PlArray *y = call->out[0];
  const int64_t dim = pl_attr_i(call->attrs, 0);
  int64_t at = 0;
  Slices s;
  memset(&s, 0, sizeof s);
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    PlArray part = *y;
    part.data = plc_at(y->data, at * y->strides[dim], y->dtype);
    part.shape = x->shape, part.numel = x->numel;
    at += x->shape[dim];
    if (x->numel == 0) continue;
    const PlArray *both[2] = {&part, x};
    plc_layout_of<2>(&s.l[s.n], both);
    s.y[s.n] = part.data, s.x[s.n] = x->data;
    if (++s.n == AT_ONCE) PL_TRY(join_now(call->name, &s, y->dtype));
  }
  return join_now(call->name, &s, y->dtype);
}

PlStatus stack(const PlkCall *call) {
  PlArray *y = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 0);
  for (int i = 0; i < call->nin; i++) {
    const PlArray *x = call->in[i];
    plc_walk w;
    w.n = 0;
    for (int d = 0; d < x->ndim; d++) plc_walk_dim(&w, x->shape[d], y->strides[d + (d >= dim)], x->strides[d]);
    PL_TRY(plc_walk_copy(&w, y->dtype, plc_at(y->data, i * y->strides[dim], y->dtype), x->data));
  }
  return PL_OK;
}

/* ---- repeats -------------------------------------------------------------------------------------------------------- */

/* y [.., r n, ..] and x [.., n, ..]: two dims a dim, stride 0 over the repeats in x. */
void tile_walk(plc_walk *w, const PlAttrs *a, const PlArray *x, const PlArray *y) {
  const int64_t *reps = pl_attr_list(a, 0);
  const int n = pl_attr_n(a, 0), lead = y->ndim - x->ndim, skip = y->ndim - n;
  w->n = 0;
  for (int d = 0; d < y->ndim; d++) {
    const int64_t size = d < lead ? 1 : x->shape[d - lead], rep = d < skip ? 1 : reps[d - skip];
    plc_walk_dim(w, rep, y->strides[d] * size, 0);
    if (d >= lead) plc_walk_dim(w, size, y->strides[d], x->strides[d - lead]);
  }
}
/* y and x with every position along dim (none: of the flattened x) r times in a row. */
void interleave_walk(plc_walk *w, const PlAttrs *a, const PlArray *x, const PlArray *y) {
  const int64_t r = y->numel ? pl_attr_i(a, 0) : 0; /* of nothing any number may be asked */
  w->n = 0;
  if (!pl_attr_has(a, 1) || x->ndim == 0) {
    int64_t strides[PL_MAX_DIM], step = r;
    for (int d = x->ndim - 1; d >= 0; d--) {
      strides[d] = step;
      step *= x->shape[d];
    }
    for (int d = 0; d < x->ndim; d++) plc_walk_dim(w, x->shape[d], strides[d], x->strides[d]);
    plc_walk_dim(w, r, 1, 0);
    return;
  }
  const int dim = (int)pl_attr_i(a, 1);
  for (int d = 0; d < x->ndim; d++) {
    plc_walk_dim(w, x->shape[d], y->strides[d] * (d == dim ? r : 1), x->strides[d]);
    if (d == dim) plc_walk_dim(w, r, y->strides[d], 0);
  }
}
void exchange(plc_walk *w) {
  for (int d = 0; d < w->n; d++) {
    const int64_t t = w->dst[d];
    w->dst[d] = w->src[d];
    w->src[d] = t;
  }
}

typedef void (*Walker)(plc_walk *w, const PlAttrs *a, const PlArray *x, const PlArray *y);
template <Walker walker> PlStatus repeat(const PlkCall *call) {
  plc_walk w;
  walker(&w, call->attrs, call->in[0], call->out[0]);
  return plc_walk_copy(&w, call->out[0]->dtype, call->out[0]->data, call->in[0]->data);
}
template <Walker walker> PlStatus repeat_bwd(const PlkCall *call) {
  PlArray *dx = call->out[0];
  plc_walk w;
  if (call->in[0]->numel == 0) return plc_zero(dx);
  walker(&w, call->attrs, dx, call->in[0]);
  exchange(&w);
  return plc_walk_sum(&w, dx->dtype, dx->data, call->in[0]->data);
}

/* Position i along dim counts[i] times; ends[i]: where its copies end. one: the same count for all. */
struct Each {
  int64_t outer, n, inner, total;
  const int64_t *ends;
  bool one;
  PlcFlag *flag;
  const char *name;
};
PLC_DEV int64_t end_of(const Each &e, int64_t i) { return i < 0 ? 0 : e.one ? e.ends[0] * (i + 1) : e.ends[i]; }
/* Counts are values: no infer rule of the adjoint has looked at them, nor at those of a graph that was made for others. */
PLC_DEV bool adds_up(const Each &e, int64_t i, int64_t begin, int64_t end) {
  if (begin >= 0 && begin <= end && end <= e.total && (i + 1 < e.n || end == e.total)) return true;
  plc_fault(e.flag, PLC_FAULT_COUNTS, e.name, 0, e.total, 0);
  return false;
}
template <typename E> __global__ void each_forward(Each e, const E *x, E *y) {
  for (PLC_EACH(k, e.outer * e.total * e.inner)) {
    if (k == 0) adds_up(e, e.n - 1, 0, end_of(e, e.n - 1));
    const int64_t in = k % e.inner, t = k / e.inner % e.total, o = k / e.inner / e.total;
    int64_t lo = 0, hi = e.n - 1;
    while (lo < hi) {
      const int64_t mid = (lo + hi) / 2;
      if (end_of(e, mid) <= t) lo = mid + 1;
      else hi = mid;
    }
    y[k] = x[(o * e.n + lo) * e.inner + in];
  }
}
template <typename T> __global__ void each_backward(Each e, const T *dy, T *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(k, e.outer * e.n * e.inner)) {
    const int64_t in = k % e.inner, i = k / e.inner % e.n, o = k / e.inner / e.n, begin = end_of(e, i - 1), end = end_of(e, i);
    A sum = 0;
    for (int64_t t = adds_up(e, i, begin, end) ? begin : end; t < end; t++) sum += plc_type<T>::load(dy[(o * e.total + t) * e.inner + in]);
    dx[k] = plc_type<T>::store(sum);
  }
}

PlStatus each_ends(const PlArray *counts, Each *e, void **mem) {
  PL_TRY(plc_scratch((size_t)(counts->numel + 1) * sizeof(int64_t), mem));
  int64_t shape[1] = {counts->numel}, strides[1] = {1};
  PlArray x = *counts, y = *counts;
  x.ndim = y.ndim = 1, x.shape = y.shape = shape, x.strides = y.strides = strides;
  y.data = *mem, y.dtype = PL_I64;
  PlAttrs attrs;
  memset(&attrs, 0, sizeof attrs);
  attrs.nval = 1, attrs.set = 1;
  const PlArray *in[1] = {&x};
  PlArray *out[1] = {&y};
  PlkCall k;
  memset(&k, 0, sizeof k);
  k.name = "cumsum", k.code = PLK_S_CUMSUM, k.nin = k.nout = 1, k.in = in, k.out = out, k.attrs = &attrs;
  e->ends = (const int64_t *)*mem;
  e->one = counts->numel == 1;
  return plc_run(&plc_kernel_scan, &k);
}

PlStatus repeat_each(const PlkCall *call, bool backward) {
  const PlArray *y = backward ? call->in[0] : call->out[0], *x = backward ? call->out[0] : call->in[0];
  const bool flat = !pl_attr_has(call->attrs, 0) || x->ndim == 0;
  const int64_t dim = flat ? -1 : pl_attr_i(call->attrs, 0);
  const plc_rows r = plc_rows_of(x, dim);
  Each e = {r.outer, r.n, r.inner, flat ? y->numel : y->shape[dim], NULL, false, plc_flag(), (const char *)call->name};
  void *mem;
  if (y->numel == 0) return backward ? plc_zero(x) : PL_OK;
  if (x->numel == 0) return pl_fail(PL_ERR_SHAPE, "%s: the counts do not add up to the %lld positions", call->name, (long long)e.total);
  PL_TRY(each_ends(call->in[1], &e, &mem));
  if (backward)
    PLC_FLOATS(x->dtype, T, call->name,
               PLC_LAUNCH(each_backward<T>, plc_grid(x->numel, 1), PLC_BLOCK, 0, e, (const T *)y->data, (T *)x->data))
  else PLC_BITS(x->dtype, E, PLC_LAUNCH(each_forward<E>, plc_grid(y->numel, 1), PLC_BLOCK, 0, e, (const E *)x->data, (E *)y->data))
  plc_scratch_free(mem);
  return PL_OK;
}
PlStatus each(const PlkCall *call) { return repeat_each(call, false); }
PlStatus each_bwd(const PlkCall *call) { return repeat_each(call, true); }

/* ---- flip, roll, pad ---------------------------------------------------------------------------------------------------- */

PlStatus flip(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  const int64_t *dims = pl_attr_list(call->attrs, 0);
  plc_walk w;
  int64_t start = 0;
  if (x->numel == 0) return PL_OK;
  w.n = 0;
  for (int d = 0; d < x->ndim; d++) plc_walk_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
  for (int k = 0, n = x->ndim ? pl_attr_n(call->attrs, 0) : 0; k < n; k++) {
    const int d = (int)dims[k];
    start += (x->shape[d] - 1) * x->strides[d];
    w.src[d] = -w.src[d];
  }
  return plc_walk_copy(&w, y->dtype, y->data, plc_at(x->data, start, x->dtype));
}

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

/* Output position t of dim d (outermost first) reads first + r, r = t - lo brought into 0 … n-1 by the mode. */
struct Map {
  int ndim, mode;
  bool wide;
  int64_t size[PL_MAX_DIM], lo[PL_MAX_DIM], n[PL_MAX_DIM], first[PL_MAX_DIM], xs[PL_MAX_DIM], ys[PL_MAX_DIM];
  plc_div by[PL_MAX_DIM];
};
template <typename E> __global__ void mapped(Map m, int64_t numel, const E *x, E *y, E value) {
  for (PLC_EACH(i, numel)) {
    int64_t rest = i, from = 0, to = 0;
    bool inside = true;
    for (int d = m.ndim - 1; d >= 0; d--) {
      const int64_t q = m.wide ? rest / m.size[d] : (int64_t)plc_quotient((uint32_t)rest, m.by[d]), t = rest - q * m.size[d];
      int64_t r = t - m.lo[d];
      const int64_t n = m.n[d];
      rest = q;
      if (m.mode == PAD_CONSTANT) inside = inside && r >= 0 && r < n;
      else if (m.mode == PAD_REFLECT) r = r < 0 ? -r : r >= n ? 2 * n - 2 - r : r;
      else if (m.mode == PAD_REPLICATE) r = r < 0 ? 0 : r >= n ? n - 1 : r;
      else r = r < 0 ? r + n : r >= n ? r - n : r;
      from += (m.first[d] + r) * m.xs[d];
      to += t * m.ys[d];
    }
    y[to] = inside ? x[from] : value;
  }
}

PlStatus map_run(Map *m, const PlArray *x, PlArray *y, uint64_t value) {
  m->wide = y->numel > INT32_MAX;
  for (int d = 0; d < m->ndim; d++) m->by[d] = plc_div_by(m->wide || m->size[d] < 1 ? 1u : (uint32_t)m->size[d]);
  if (y->numel == 0) return PL_OK;
  PLC_BITS(y->dtype, E, {
    E v;
    memcpy(&v, &value, sizeof v);
    PLC_LAUNCH(mapped<E>, plc_grid(y->numel, 1), PLC_BLOCK, 0, *m, y->numel, (const E *)x->data, (E *)y->data, v);
  })
  return PL_OK;
}

PlStatus roll(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  const int64_t *shifts = pl_attr_list(call->attrs, 0);
  const bool flat = !pl_attr_has(call->attrs, 1) || pl_attr_n(call->attrs, 1) == 0;
  Map m;
  if (x->numel == 0) return PL_OK;
  memset(&m, 0, sizeof m);
  m.mode = PAD_CIRCULAR;
  m.ndim = flat ? 1 : x->ndim;
  for (int d = 0; d < m.ndim; d++) {
    m.size[d] = m.n[d] = flat ? x->numel : x->shape[d];
    m.xs[d] = flat ? 1 : x->strides[d];
    m.ys[d] = flat ? 1 : y->strides[d];
  }
  for (int k = 0; k < (flat ? 1 : pl_attr_n(call->attrs, 1)); k++) {
    const int d = flat ? 0 : (int)pl_attr_list(call->attrs, 1)[k];
    m.lo[d] = (m.lo[d] + shifts[k] % m.n[d] + m.n[d]) % m.n[d];
  }
  return map_run(&m, x, y, 0);
}

/* Negative pads crop first; the borders are then made from what is left. */
void pad_map(Map *m, const PlAttrs *a, const PlArray *x, const PlArray *y) {
  const int64_t *pads = pl_attr_list(a, 0);
  const int pairs = pl_attr_n(a, 0) / 2;
  memset(m, 0, sizeof *m);
  m->mode = (int)pl_attr_i(a, 1);
  m->ndim = x->ndim;
  for (int d = 0; d < x->ndim; d++) {
    const int k = x->ndim - 1 - d;
    const int64_t lo = k < pairs ? pads[2 * k] : 0, hi = k < pairs ? pads[2 * k + 1] : 0;
    m->size[d] = y->shape[d];
    m->first[d] = lo < 0 ? -lo : 0;
    m->n[d] = x->shape[d] - m->first[d] - (hi < 0 ? -hi : 0);
    m->lo[d] = lo > 0 ? lo : 0;
    m->xs[d] = x->strides[d];
    m->ys[d] = y->strides[d];
    if (m->mode != PAD_REPLICATE || m->n[d] > 0) continue;
    m->first[d] = lo > 0 ? 0 : x->shape[d] - 1; /* all is cropped: an end is repeated */
    m->n[d] = 1;
    m->lo[d] = 0;
  }
}

/* A double as dtype's bits, converted as the CPU does. */
uint64_t bits_of(double v, int dtype) {
  uint64_t r = 0;
  const int64_t i = v != v ? 0 : v >= 0x1p63 ? INT64_MAX : v > -0x1p63 ? (int64_t)v : INT64_MIN;
#define SATURATED(T, LO, HI)                                                    \
  {                                                                             \
    const T t = v != v ? (T)0 : i < (LO) ? (T)(LO) : i > (HI) ? (T)(HI) : (T)i; \
    memcpy(&r, &t, sizeof t);                                                   \
  }                                                                             \
  break;
  switch (dtype) {
  case PL_F32: {
    const float t = (float)v;
    memcpy(&r, &t, sizeof t);
  } break;
  case PL_F16: r = plk_f32_to_f16((float)v); break;
  case PL_BF16: r = plk_f32_to_bf16((float)v); break;
  case PL_F64: memcpy(&r, &v, sizeof v); break;
  case PL_I8: SATURATED(int8_t, INT8_MIN, INT8_MAX)
  case PL_I16: SATURATED(int16_t, INT16_MIN, INT16_MAX)
  case PL_I32: SATURATED(int32_t, INT32_MIN, INT32_MAX)
  case PL_I64: SATURATED(int64_t, INT64_MIN, INT64_MAX)
  case PL_U8: SATURATED(uint8_t, 0, UINT8_MAX)
  default: r = v != 0; break;
  }
#undef SATURATED
  return r;
}
PlStatus pad(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  const double v = pl_attr_i(call->attrs, 1) == PAD_CONSTANT ? pl_attr_f(call->attrs, 2) : 0;
  Map m;
  pad_map(&m, call->attrs, x, y);
  const uint64_t value = bits_of(v, y->dtype);
  return map_run(&m, x, y, value);
}

/* One dim's adjoint: dx[o, p, i] = Σ of dy[o, t, i] over the t that read p. */
template <typename T>
__global__ void fold(int mode, int64_t outer, int64_t size, int64_t lo, int64_t n, int64_t first, int64_t whole, int64_t inner, const T *dy,
                     T *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(e, outer * whole * inner)) {
    const int64_t in = e % inner, p = e / inner % whole, o = e / inner / whole, r = p - first, hi = size - lo - n;
    const T *from = dy + o * size * inner + in;
    A sum = 0;
    if (r >= 0 && r < n) {
      sum = plc_type<T>::load(from[(r + lo) * inner]);
      if (mode == PAD_REFLECT) {
        if (r > 0 && r <= lo) sum += plc_type<T>::load(from[(lo - r) * inner]);
        if (r < n - 1 && n - 1 - r <= hi) sum += plc_type<T>::load(from[(lo + 2 * n - 2 - r) * inner]);
      } else if (mode == PAD_REPLICATE) {
        for (int64_t t = 0; r == 0 && t < lo; t++) sum += plc_type<T>::load(from[t * inner]);
        for (int64_t t = lo + n; r == n - 1 && t < size; t++) sum += plc_type<T>::load(from[t * inner]);
      } else if (mode == PAD_CIRCULAR) {
        if (r >= n - lo) sum += plc_type<T>::load(from[(r + lo - n) * inner]);
        if (r < hi) sum += plc_type<T>::load(from[(r + lo + n) * inner]);
      }
    }
    dx[e] = plc_type<T>::store(sum);
  }
}

PlStatus pad_bwd(const PlkCall *call) { /* dim after dim, outermost first */
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  Map m;
  if (dx->numel == 0) return PL_OK;
  if (dy->numel == 0) return plc_zero(dx);
  pad_map(&m, call->attrs, dx, dy);
  int last = -1;
  for (int d = 0; d < m.ndim; d++)
    if (m.size[d] != dx->shape[d] || m.lo[d] != 0 || m.first[d] != 0 || m.n[d] != dx->shape[d]) last = d;
  const void *from = dy->data;
  void *hold = NULL, *made = NULL;
  int64_t outer = 1;
  for (int d = 0; d <= last; d++) {
    int64_t inner = 1;
    for (int k = d + 1; k < m.ndim; k++) inner *= m.size[k];
    const int64_t count = outer * dx->shape[d] * inner;
    if (m.size[d] != dx->shape[d] || m.lo[d] != 0 || m.first[d] != 0 || m.n[d] != dx->shape[d]) {
      if (d != last) {
        PlStatus s = plc_scratch((size_t)count * pl_dtype_size((PlDtype)dx->dtype), &made);
        if (s != PL_OK) {
          plc_scratch_free(hold);
          return s;
        }
      }
      PLC_FLOATS(dx->dtype, T, call->name,
                 PLC_LAUNCH(fold<T>, plc_grid(count, 1), PLC_BLOCK, 0, m.mode, outer, m.size[d], m.lo[d], m.n[d], m.first[d], dx->shape[d],
                            inner, (const T *)from, (T *)(d == last ? dx->data : made)))
      plc_scratch_free(hold);
      hold = d == last ? NULL : made;
      from = hold;
    }
    outer *= dx->shape[d];
  }
  if (last < 0)
    PLC_TRY(
        cudaMemcpyAsync(dx->data, dy->data, (size_t)dx->numel * pl_dtype_size((PlDtype)dx->dtype), cudaMemcpyDeviceToDevice, plc_stream()));
  return PL_OK;
}

} // namespace

PLC_KERNEL(cat, cat)
PLC_KERNEL(slices_bwd, slices_bwd)
PLC_KERNEL(stack, stack)
PLC_KERNEL(tile, repeat<tile_walk>)
PLC_KERNEL(tile_bwd, repeat_bwd<tile_walk>)
PLC_KERNEL(repeat_interleave, repeat<interleave_walk>)
PLC_KERNEL(repeat_interleave_bwd, repeat_bwd<interleave_walk>)
PLC_KERNEL(repeat_each, each)
PLC_KERNEL(repeat_each_bwd, each_bwd)
PLC_KERNEL(flip, flip)
PLC_KERNEL(roll, roll)
PLC_KERNEL(pad, pad)
PLC_KERNEL(pad_bwd, pad_bwd)
