/* SPDX-License-Identifier: MIT
 * Adjoints of windows, diagonals, triangles (kernels/cpu/shape/shape.c). Zeros and one strided copy where elements do not meet;
 * where they do, each result gathers its own terms, or they are sorted by where they go. */
#include "kernels/cuda/norm/channels.h"
#include "kernels/cuda/shape/window_walk.h"
#include "kernels/cuda/sort/sort.h"
#include "kernels/elementwise.h"
#include "kernels/join.h"

namespace {

PlStatus slice_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int64_t dim = pl_attr_i(call->attrs, 1), start = pl_attr_i(call->attrs, 2), step = pl_attr_i(call->attrs, 3);
  plc_walk w;
  w.n = 0;
  for (int d = 0; d < dy->ndim; d++) plc_walk_dim(&w, dy->shape[d], dx->strides[d] * (d == dim ? step : 1), dy->strides[d]);
  if (dy->numel < dx->numel) PL_TRY(plc_zero(dx));
  return plc_walk_copy(&w, dx->dtype, plc_at(dx->data, dx->ndim ? start * dx->strides[dim] : 0, dx->dtype), dy->data);
}

/* dx is zero but for its diagonal over dims a and b: kept dims in order, the diagonal last. */
PlStatus put_diagonal(const PlArray *dy, PlArray *dx, int64_t offset, int a, int b) {
  plc_walk w;
  int n = 0;
  w.n = 0;
  PL_TRY(plc_zero(dx));
  if (dy->numel == 0) return PL_OK;
  for (int d = 0; d < dx->ndim; d++)
    if (d != a && d != b) plc_walk_dim(&w, dy->shape[n], dx->strides[d], dy->strides[n]), n++;
  plc_walk_dim(&w, dy->shape[n], dx->strides[a] + dx->strides[b], dy->strides[n]);
  const int64_t start = offset >= 0 ? offset * dx->strides[b] : -offset * dx->strides[a];
  return plc_walk_copy(&w, dx->dtype, plc_at(dx->data, start, dx->dtype), dy->data);
}
PlStatus diagonal_bwd(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  return put_diagonal(call->in[0], call->out[0], pl_attr_i(a, 1), (int)pl_attr_i(a, 2), (int)pl_attr_i(a, 3));
}
PlStatus diag_embed(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  const int n = call->out[0]->ndim, d1 = (int)pl_attr_i(a, 1), d2 = (int)pl_attr_i(a, 2);
  return put_diagonal(call->in[0], call->out[0], pl_attr_i(a, 0), d1 < 0 ? d1 + n : d1, d2 < 0 ? d2 + n : d2);
}
PlStatus diag(const PlkCall *call) {
  if (call->in[0]->ndim == 1) return put_diagonal(call->in[0], call->out[0], pl_attr_i(call->attrs, 0), 0, 1);
  return plc_run(&plc_kernel_copy, call);
}

/* ---- windows that overlap ---------------------------------------------------------------------------------------------- */

/* dx[o, p, i] = Σ dy[o, t, i, p - t step] over the windows t that hold p. dy by its strides. */
struct Unfold {
  int64_t n, size, step, windows, at_window, at_item, at_x; /* along dim; strides of dy and dx */
};
template <typename T> __global__ void unfold_backward(Unfold u, plc_layout<2> l, const T *dy, T *dx) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(e, l.numel * u.n)) { /* l: dx without dim */
    int64_t at[2];
    const int64_t p = e / l.numel;
    plc_offsets<2>(l, e - p * l.numel, at);
    int64_t t = p < u.size ? 0 : (p - u.size) / u.step + 1, last = p / u.step;
    A sum = 0;
    for (last = last < u.windows ? last : u.windows - 1; t <= last; t++)
      sum += plc_type<T>::load(dy[at[1] + t * u.at_window + (p - t * u.step) * u.at_item]);
    dx[at[0] + p * u.at_x] = plc_type<T>::store(sum);
  }
}

PlStatus unfold_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 1);
  if (dx->numel == 0) return PL_OK;
  if (dx->ndim == 0 || dy->numel == 0) { /* one element, seen at most once */
    if (dy->numel == 0) return plc_zero(dx);
    plc_walk w;
    w.n = 0;
    return plc_walk_copy(&w, dx->dtype, dx->data, dy->data);
  }
  const int64_t size = pl_attr_i(call->attrs, 2), step = pl_attr_i(call->attrs, 3);
  Unfold u = {dx->shape[dim], size, step, dy->shape[dim], dy->strides[dim], dy->strides[dx->ndim], dx->strides[dim]};
  int64_t shape[PL_MAX_DIM], xs[PL_MAX_DIM], ys[PL_MAX_DIM];
  PlArray a = *dx, b = *dy;
  a.ndim = b.ndim = 0;
  a.shape = b.shape = shape, a.strides = xs, b.strides = ys;
  for (int d = 0; d < dx->ndim; d++) {
    if (d == dim) continue;
    shape[a.ndim] = dx->shape[d], xs[a.ndim] = dx->strides[d], ys[a.ndim] = dy->strides[d];
    a.ndim++, b.ndim++;
  }
  a.numel = b.numel = dx->numel / dx->shape[dim];
  const PlArray *both[2] = {&a, &b};
  plc_layout<2> l;
  plc_layout_of<2>(&l, both);
  PLC_FLOATS(dx->dtype, T, call->name,
             PLC_LAUNCH(unfold_backward<T>, plc_grid(dx->numel, 1), PLC_BLOCK, 0, u, l, (const T *)dy->data, (T *)dx->data))
  return PL_OK;
}

/* Are all elements of a window at different places? Enough: each stride steps over all that smaller ones reach. */
bool apart(int n, const int64_t *size, const int64_t *stride) {
  bool used[PL_MAX_DIM] = {false};
  int64_t reach = 0;
  for (int k = 0; k < n; k++) {
    int least = -1;
    for (int d = 0; d < n; d++)
      if (!used[d] && (least < 0 || stride[d] < stride[least])) least = d;
    used[least] = true;
    if (size[least] <= 1) continue;
    if (stride[least] <= reach) return false;
    reach += (size[least] - 1) * stride[least];
  }
  return true;
}

__global__ void destinations(plc_layout<1> l, int64_t offset, uint32_t *key, uint32_t *at) {
  for (PLC_EACH(i, l.numel)) {
    int64_t to[1];
    plc_offsets<1>(l, i, to);
    key[i] = (uint32_t)(offset + to[0]);
    at[i] = (uint32_t)i;
  }
}

PlStatus as_strided_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int64_t *strides = pl_attr_list(call->attrs, 2), offset = pl_attr_i(call->attrs, 3);
  if (dy->numel == 0) return plc_zero(dx);
  if (apart(dy->ndim, dy->shape, strides)) {
    plc_walk w;
    w.n = 0;
    for (int d = 0; d < dy->ndim; d++) plc_walk_dim(&w, dy->shape[d], strides[d], dy->strides[d]);
    PL_TRY(plc_zero(dx));
    return plc_walk_copy(&w, dx->dtype, plc_at(dx->data, offset, dx->dtype), dy->data);
  }
  if (dy->numel > INT32_MAX || dx->numel > INT32_MAX)
    PL_FAIL(PL_ERR_UNSUPPORTED, "%s: an overlapping window of %lld elements is more than the device's kernel takes", call->name,
            (long long)dy->numel);
  void *copy, *mem;
  const void *data;
  PL_TRY(plc_as(dy, dy->dtype, &copy, &data));
  plc_pairs<uint32_t> p;
  PlStatus s = plc_pairs_room(&p, dy->numel, &mem);
  if (s != PL_OK) {
    plc_scratch_free(copy);
    return s;
  }
  PlArray to = *dy;
  to.strides = strides;
  const PlArray *one[1] = {&to};
  plc_layout<1> l;
  plc_layout_of<1>(&l, one);
  PLC_LAUNCH(destinations, plc_grid(dy->numel, 1), PLC_BLOCK, 0, l, offset, p.key, p.at);
  int bits = 8;
  while (bits < 32 && dx->numel >> bits) bits += 8;
  s = plc_sort_pairs(&p, 1, dy->numel, bits);
  if (s == PL_OK) s = plc_sum_sorted(&p, dy->numel, dy->dtype, data, dx->numel, dx->dtype, dx->data);
  plc_scratch_free(mem);
  plc_scratch_free(copy);
  return s;
}

/* out = x, then value over the window (sizes, strides, offset: attributes 0 to 2). */
PlStatus strided_put(const PlkCall *call) {
  PlArray *y = call->out[0];
  const PlArray *x = call->in[0], *v = call->in[1];
  plc_walk w;
  w.n = 0;
  if (x->data != y->data) {
    for (int d = 0; d < x->ndim; d++) plc_walk_dim(&w, x->shape[d], y->strides[d], x->strides[d]);
    PL_TRY(plc_walk_copy(&w, y->dtype, y->data, x->data));
  }
  w.n = 0;
  for (int d = 0; d < v->ndim; d++) plc_walk_dim(&w, v->shape[d], pl_attr_list(call->attrs, 1)[d], v->strides[d]);
  return plc_walk_copy(&w, y->dtype, plc_at(y->data, pl_attr_i(call->attrs, 2), y->dtype), v->data);
}

/* ---- triangles, trace ------------------------------------------------------------------------------------------------------ */

template <typename E> __global__ void triangle(int64_t n, int64_t rows, int64_t cols, int64_t diagonal, bool upper, const E *x, E *y) {
  for (PLC_EACH(i, n)) {
    const int64_t r = i / cols, c = i - r * cols, edge = r % rows + diagonal;
    y[i] = (upper ? c >= edge : c <= edge) ? x[i] : (E)0;
  }
}
PlStatus tri(const PlkCall *call) {
  const PlArray *x = call->in[0];
  const int64_t rows = x->ndim > 1 ? x->shape[x->ndim - 2] : 1, cols = x->shape[x->ndim - 1];
  /* Far diagonals are all or nothing; clamping them keeps row + diagonal from overflowing. */
  const int64_t limit = (rows > cols ? rows : cols) + 1, k = pl_attr_i(call->attrs, 0);
  const int64_t diagonal = k > limit ? limit : k < -limit ? -limit : k;
  if (x->numel == 0) return PL_OK;
  PLC_BITS(x->dtype, E,
           PLC_LAUNCH(triangle<E>, plc_grid(x->numel, 1), PLC_BLOCK, 0, x->numel, rows, cols, diagonal, call->code == 1, (const E *)x->data,
                      (E *)call->out[0]->data))
  return PL_OK;
}

__global__ void trace_of(int64_t n, int64_t step, int from, const void *x, int to, void *y) {
  __shared__ double fs[32];
  __shared__ uint64_t is[32];
  double f = 0;
  uint64_t u = 0;
  for (int64_t i = threadIdx.x; i < n; i += PLC_BLOCK)
    if (from <= PL_BF16) f += plc_get_f(x, from, i * step);
    else u += (uint64_t)plc_get_i(x, from, i * step);
  f = plc_block_all(f, plc_sum(), 0.0, fs);
  u = plc_block_all(u, plc_sum(), (uint64_t)0, is);
  if (threadIdx.x != 0) return;
  if (from <= PL_BF16) plc_put_f(y, to, 0, f);
  else plc_put_i(y, to, 0, (int64_t)u);
}
PlStatus trace(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  const int64_t n = x->shape[0] < x->shape[1] ? x->shape[0] : x->shape[1];
  PLC_LAUNCH(trace_of, 1, PLC_BLOCK, 0, n, x->strides[0] + x->strides[1], (int)x->dtype, x->data, (int)y->dtype, y->data);
  return PL_OK;
}

} // namespace

PLC_KERNEL(slice_bwd, slice_bwd)
PLC_KERNEL(diagonal_bwd, diagonal_bwd)
PLC_KERNEL(diag_embed, diag_embed)
PLC_KERNEL(diag, diag)
PLC_KERNEL(unfold_bwd, unfold_bwd)
PLC_KERNEL(as_strided_bwd, as_strided_bwd)
PLC_KERNEL(strided_put, strided_put)
PLC_KERNEL(tri, tri)
PLC_KERNEL(trace, trace)
