/* SPDX-License-Identifier: MIT
 * See window_walk.h. */
#include "kernels/cuda/shape/window_walk.h"

namespace {

struct alignas(16) Sixteen {
  uint64_t v[2];
}; /* one access */

/* A thread finds one place and takes up to EACH items of the innermost dim from there on, l.size[0] apart: neighbours have
 * neighbours, the loads are under way together, and places cost a fraction of what one for each item did. inner: that dim's size. */
enum { EACH = 4 };
template <typename E> __global__ void copy_walk(plc_layout<2> l, int64_t inner, E *y, const E *x) {
  const int64_t group = l.size[0], ys = group * l.stride[0][0], xs = group * l.stride[1][0];
  for (PLC_EACH(i, l.numel)) {
    int64_t at[2];
    plc_offsets<2>(l, i, at);
    const int64_t p = l.wide ? i % group : (int64_t)((uint32_t)i - plc_quotient((uint32_t)i, l.by[0]) * (uint32_t)group);
    E v[EACH];
    PLC_UNROLL for (int k = 0; k < EACH; k++) if (p + k * group < inner) v[k] = x[at[1] + k * xs];
    PLC_UNROLL for (int k = 0; k < EACH; k++) if (p + k * group < inner) y[at[0] + k * ys] = v[k];
  }
}

/* Joins neighbours, innermost first; -1 where more than PL_MAX_DIM are left. */
int collapse(const plc_walk *w, plc_layout<2> *l) {
  l->ndim = 0;
  l->numel = plc_walk_numel(w);
  l->wide = l->numel > INT32_MAX;
  for (int d = w->n - 1; d >= 0; d--) {
    const int k = l->ndim - 1;
    if (w->size[d] == 1) continue;
    if (k >= 0 && w->dst[d] == l->stride[0][k] * l->size[k] && w->src[d] == l->stride[1][k] * l->size[k]) {
      l->size[k] *= w->size[d];
      continue;
    }
    if (l->ndim == PL_MAX_DIM) return -1;
    l->size[l->ndim] = w->size[d];
    l->stride[0][l->ndim] = w->dst[d];
    l->stride[1][l->ndim] = w->src[d];
    l->ndim++;
  }
  return l->ndim;
}
void divisors(plc_layout<2> *l) {
  for (int d = 0; d < l->ndim; d++) l->by[d] = plc_div_by(l->wide || l->size[d] > INT32_MAX ? 1u : (uint32_t)l->size[d]);
}

template <typename E> PlStatus launch(const plc_layout<2> *l, int64_t inner, void *dst, const void *src) {
  PLC_LAUNCH(copy_walk<E>, plc_grid(l->numel, 1), PLC_BLOCK, 0, *l, inner, (E *)dst, (const E *)src);
  return PL_OK;
}

/* A dst element a thread; `reps` walks what adds up, by its second strides. */
template <typename T> __global__ void sum_walk(plc_layout<2> l, plc_layout<2> reps, T *y, const T *x) {
  typedef typename plc_type<T>::math A;
  for (PLC_EACH(i, l.numel)) {
    int64_t at[2], r[2];
    plc_offsets<2>(l, i, at);
    A sum = 0;
    for (int64_t k = 0; k < reps.numel; k++) {
      plc_offsets<2>(reps, k, r);
      sum += plc_type<T>::load(x[at[1] + r[1]]);
    }
    y[at[0]] = plc_type<T>::store(sum);
  }
}

} // namespace

PlStatus plc_walk_copy(const plc_walk *w, int dtype, void *dst, const void *src) {
  plc_layout<2> l;
  size_t size = pl_dtype_size((PlDtype)dtype);
  if (plc_walk_numel(w) == 0) return PL_OK;
  if (collapse(w, &l) < 0) PL_FAIL(PL_ERR_UNSUPPORTED, "a copy over more than %d dims", (int)PL_MAX_DIM);
  /* two elements as one, while everything is even */
  while (size < 16 && l.ndim > 0 && l.stride[0][0] == 1 && l.stride[1][0] == 1 && l.size[0] % 2 == 0 && (uintptr_t)dst % (2 * size) == 0 &&
         (uintptr_t)src % (2 * size) == 0) {
    bool even = true;
    for (int d = 1; d < l.ndim; d++) even = even && l.stride[0][d] % 2 == 0 && l.stride[1][d] % 2 == 0;
    if (!even) break;
    l.size[0] /= 2, l.numel /= 2, size *= 2;
    for (int d = 1; d < l.ndim; d++) l.stride[0][d] /= 2, l.stride[1][d] /= 2;
  }
  if (l.ndim == 0) l.ndim = 1, l.size[0] = 1, l.stride[0][0] = l.stride[1][0] = 0; /* one element */
  const int64_t inner = l.size[0];
  l.size[0] = (inner + EACH - 1) / EACH;
  l.numel = l.numel / inner * l.size[0];
  l.wide = l.numel > INT32_MAX;
  divisors(&l);
  switch (size) {
  case 1: return launch<uint8_t>(&l, inner, dst, src);
  case 2: return launch<uint16_t>(&l, inner, dst, src);
  case 4: return launch<uint32_t>(&l, inner, dst, src);
  case 8: return launch<uint64_t>(&l, inner, dst, src);
  default: return launch<Sixteen>(&l, inner, dst, src);
  }
}

PlStatus plc_walk_sum(const plc_walk *w, int dtype, void *dst, const void *src) {
  plc_walk kept = {0, {0}, {0}, {0}}, reps = {0, {0}, {0}, {0}};
  plc_layout<2> l, r;
  for (int d = 0; d < w->n; d++) plc_walk_dim(w->dst[d] == 0 && w->size[d] != 1 ? &reps : &kept, w->size[d], w->dst[d], w->src[d]);
  if (plc_walk_numel(&kept) == 0) return PL_OK;
  if (collapse(&kept, &l) < 0 || collapse(&reps, &r) < 0) PL_FAIL(PL_ERR_UNSUPPORTED, "a sum over more than %d dims", (int)PL_MAX_DIM);
  divisors(&l);
  if (r.numel > 0) divisors(&r);
  switch ((PlDtype)dtype) {
    PLC_CASE(PL_F32, float, T, PLC_LAUNCH(sum_walk<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, r, (T *)dst, (const T *)src))
    PLC_CASE(PL_F64, double, T, PLC_LAUNCH(sum_walk<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, r, (T *)dst, (const T *)src))
    PLC_CASE(PL_F16, plc_f16, T, PLC_LAUNCH(sum_walk<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, r, (T *)dst, (const T *)src))
    PLC_CASE(PL_BF16, plc_bf16, T, PLC_LAUNCH(sum_walk<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, r, (T *)dst, (const T *)src))
    PLC_CASE(PL_I64, int64_t, T, PLC_LAUNCH(sum_walk<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, r, (T *)dst, (const T *)src))
  default: PL_FAIL(PL_ERR_DTYPE, "no gradient of %s", pl_dtype_name((PlDtype)dtype));
  }
  return PL_OK;
}

PlStatus plc_zero(const PlArray *a) {
  if (a->numel > 0) PLC_TRY(cudaMemsetAsync(a->data, 0, (size_t)a->numel * pl_dtype_size((PlDtype)a->dtype), plc_stream()));
  return PL_OK;
}
