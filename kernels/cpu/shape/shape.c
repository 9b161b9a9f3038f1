/* SPDX-License-Identifier: MIT
 * Copies that views fall back to, the adjoints of windows (zeros with the window's gradient put or added
 * back), triangles and traces. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/join.h"

static size_t esize_of(const PlArray *a) { return pl_dtype_size((PlDtype)a->dtype); }

static bool same_shape(const PlArray *a, const PlArray *b) {
  return a->ndim == b->ndim && memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

PlStatus plk_cpu_copy(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  PlkNd w;
  int64_t strides[PL_MAX_DIM];
  if (same_shape(x, y)) {
    plk_nd_walk(&w, y, x);
    return plk_nd_copy(y->data, x->data, &w, esize_of(x));
  }
  if (y->contiguous || !x->contiguous) {
    void *scratch = NULL, *to = y->data;
    if (!y->contiguous) {
      PL_TRY(plk_scratch((size_t)plk_max64(x->numel, 1) * esize_of(x), &scratch));
      to = scratch;
    }
    plk_nd_strides(x->ndim, x->shape, strides);
    w.n = 0;
    for (int d = 0; d < x->ndim; d++) plk_nd_dim(&w, x->shape[d], strides[d], x->strides[d]);
    PlStatus st = plk_nd_copy(to, x->data, &w, esize_of(x));
    if (st == PL_OK && scratch) {
      plk_nd_strides(y->ndim, y->shape, strides);
      w.n = 0;
      for (int d = 0; d < y->ndim; d++) plk_nd_dim(&w, y->shape[d], y->strides[d], strides[d]);
      st = plk_nd_copy(y->data, scratch, &w, esize_of(x));
    }
    plk_scratch_free(scratch);
    return st;
  }
  plk_nd_strides(y->ndim, y->shape, strides);
  w.n = 0;
  for (int d = 0; d < y->ndim; d++) plk_nd_dim(&w, y->shape[d], y->strides[d], strides[d]);
  return plk_nd_copy(y->data, x->data, &w, esize_of(x));
}

static const char *window_end(const PlArray *a) {
  int64_t last = 0;
  for (int d = 0; d < a->ndim; d++) last += (a->shape[d] - 1) * a->strides[d];
  return plk_cat(a->data, last + 1, esize_of(a));
}

/* x[2:5] = x[1:4]: source and target may be windows on the same memory. */
static bool may_overlap(const PlArray *a, const PlArray *b) {
  return a->numel && b->numel && (const char *)a->data < window_end(b) && (const char *)b->data < window_end(a);
}

PlStatus plk_cpu_copy_into(const PlkCall *call) {
  const PlArray *src = call->in[1];
  PlArray *y = call->out[0], dense = *src;
  int64_t strides[PL_MAX_DIM];
  PlkNd w;
  void *scratch = NULL;
  if (may_overlap(y, src)) { /* through a copy of the source */
    const void *data;
    dense.contiguous = 0;
    PL_TRY(plk_nd_dense(&dense, (PlDtype)src->dtype, src->ndim, src->shape, &scratch, &data));
    plk_nd_strides(src->ndim, src->shape, strides);
    dense.data = scratch;
    dense.strides = strides;
  }
  plk_nd_walk(&w, y, &dense);
  PlStatus st = plk_nd_cast(y->data, (PlDtype)y->dtype, dense.data, (PlDtype)src->dtype, &w);
  plk_scratch_free(scratch);
  return st;
}

PlStatus plk_cpu_shape_of(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  for (int d = 0; d < x->ndim; d++) ((int64_t *)y->data)[d * y->strides[0]] = x->shape[d];
  return PL_OK;
}

/* ---- adjoints of windows --------------------------------------------------------------------------- */

PlStatus plk_cpu_slice_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 1);
  const int64_t start = pl_attr_i(call->attrs, 2), step = pl_attr_i(call->attrs, 3);
  const size_t esize = esize_of(dx);
  PlkNd w = {0};
  for (int d = 0; d < dy->ndim; d++) plk_nd_dim(&w, dy->shape[d], dx->strides[d] * (d == dim ? step : 1), dy->strides[d]);
  if (dy->numel < dx->numel) PL_TRY(plk_nd_zero(dx->data, (size_t)dx->numel * esize));
  int64_t offset = dx->ndim ? start * dx->strides[dim] : 0;
  return plk_nd_copy(plk_at(dx->data, offset, esize), dy->data, &w, esize);
}

/* The diagonal of `full` over dims a and b: its strides in `full` for every dimension of the diagonal's
 * array (kept dims in order, the diagonal last), and where it starts. */
static int64_t diagonal_window(const PlArray *full, int64_t offset, int a, int b, int64_t *strides) {
  int n = 0;
  for (int d = 0; d < full->ndim; d++)
    if (d != a && d != b) strides[n++] = full->strides[d];
  strides[n] = full->strides[a] + full->strides[b];
  return offset >= 0 ? offset * full->strides[b] : -offset * full->strides[a];
}

static PlStatus put_diagonal(const PlArray *dy, PlArray *dx, int64_t offset, int a, int b) {
  const size_t esize = esize_of(dx);
  int64_t strides[PL_MAX_DIM];
  PL_TRY(plk_nd_zero(dx->data, (size_t)dx->numel * esize));
  if (dy->numel == 0) return PL_OK;
  int64_t start = diagonal_window(dx, offset, a, b, strides);
  PlkNd w = {0};
  for (int d = 0; d < dy->ndim; d++) plk_nd_dim(&w, dy->shape[d], strides[d], dy->strides[d]);
  return plk_nd_copy(plk_at(dx->data, start, esize), dy->data, &w, esize);
}

PlStatus plk_cpu_diagonal_bwd(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  return put_diagonal(call->in[0], call->out[0], pl_attr_i(a, 1), (int)pl_attr_i(a, 2), (int)pl_attr_i(a, 3));
}

PlStatus plk_cpu_diag_embed(const PlkCall *call) {
  const PlAttrs *a = call->attrs;
  int n = call->out[0]->ndim, d1 = (int)pl_attr_i(a, 1), d2 = (int)pl_attr_i(a, 2);
  return put_diagonal(call->in[0], call->out[0], pl_attr_i(a, 0), d1 < 0 ? d1 + n : d1, d2 < 0 ? d2 + n : d2);
}

PlStatus plk_cpu_diag(const PlkCall *call) {
  if (call->in[0]->ndim == 1) return put_diagonal(call->in[0], call->out[0], pl_attr_i(call->attrs, 0), 0, 1);
  return plk_cpu_copy(call);
}

PlStatus plk_cpu_unfold_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int dim = (int)pl_attr_i(call->attrs, 1);
  const int64_t step = pl_attr_i(call->attrs, 3);
  PlkNd w = {0};
  for (int d = 0; d < dx->ndim; d++) plk_nd_dim(&w, dy->shape[d], dx->strides[d] * (d == dim ? step : 1), dy->strides[d]);
  plk_nd_dim(&w, dy->shape[dx->ndim], dx->ndim ? dx->strides[dim] : 1, dy->strides[dx->ndim]);
  return plk_nd_zero_add(dx->data, dx->numel, dy->data, &w, (PlDtype)dx->dtype);
}

PlStatus plk_cpu_as_strided_bwd(const PlkCall *call) {
  const PlArray *dy = call->in[0];
  PlArray *dx = call->out[0];
  const int64_t *strides = pl_attr_list(call->attrs, 2);
  const int64_t offset = pl_attr_i(call->attrs, 3);
  PlkNd w = {0};
  for (int d = 0; d < dy->ndim; d++) plk_nd_dim(&w, dy->shape[d], strides[d], dy->strides[d]);
  /* The walk starts `offset` elements in: a leading dimension of 1 cannot say so, a shifted zeroing can. */
  if (dx->dtype != PL_F16 && dx->dtype != PL_BF16) {
    PL_TRY(plk_nd_zero(dx->data, (size_t)dx->numel * esize_of(dx)));
    return plk_nd_add(plk_at(dx->data, offset, esize_of(dx)), dy->data, &w, (PlDtype)dx->dtype);
  }
  PL_TRY(plk_nd_zero(dx->data, (size_t)offset * esize_of(dx)));
  return plk_nd_zero_add(plk_at(dx->data, offset, esize_of(dx)), dx->numel - offset, dy->data, &w, (PlDtype)dx->dtype);
}

/* ---- triangles ---------------------------------------------------------------------------------------- */

typedef struct Tri {
  const PlArray *x;
  PlArray *y;
  int64_t diagonal;
  bool upper;
} Tri;

/* Rows of the last two dimensions: keeps columns ≤ row + diagonal (lower) or ≥ (upper). */
static PlStatus tri_body(void *ctx, int64_t begin, int64_t end) {
  const Tri *t = ctx;
  const int n = t->x->ndim;
  const int64_t cols = t->x->shape[n - 1], rows = t->x->shape[n - 2];
  const size_t esize = esize_of(t->x);
  for (int64_t r = begin; r < end; r++) {
    const char *x = plk_cat(t->x->data, r * cols, esize);
    char *y = plk_at(t->y->data, r * cols, esize);
    int64_t k = r % rows + t->diagonal + (t->upper ? 0 : 1); /* first column of the second part */
    k = plk_max64(0, plk_min64(k, cols));
    size_t head = (size_t)k * esize, tail = (size_t)(cols - k) * esize;
    if (t->upper) {
      memset(y, 0, head);
      if (x != y) memcpy(y + head, x + head, tail);
    } else {
      if (x != y) memcpy(y, x, head);
      memset(y + head, 0, tail);
    }
  }
  return PL_OK;
}

PlStatus plk_cpu_tri(const PlkCall *call) {
  const PlArray *x = call->in[0];
  /* Far diagonals are all or nothing; clamping them keeps row + diagonal from overflowing. */
  int64_t k = pl_attr_i(call->attrs, 0), limit = plk_max64(x->shape[x->ndim - 1], x->shape[x->ndim - 2]) + 1;
  Tri t = {x, call->out[0], plk_max64(-limit, plk_min64(k, limit)), call->code == 1};
  int64_t cols = x->shape[x->ndim - 1];
  if (x->numel == 0) return PL_OK;
  return plk_parallel(x->numel / cols, plk_max64(1, PLK_GRAIN / cols), tri_body, &t);
}

PlStatus plk_cpu_trace(const PlkCall *call) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  int64_t n = plk_min64(x->shape[0], x->shape[1]), step = x->strides[0] + x->strides[1];
  const size_t esize = esize_of(x);
  double sum = 0;
  uint64_t isum = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *p = plk_cat(x->data, i * step, esize);
    if (pl_is_float((PlDtype)x->dtype)) {
      double v;
      plk_nd_load_f64(&v, p, (PlDtype)x->dtype, 1, 1);
      sum += v;
    } else {
      int64_t v;
      plk_nd_load_i64(&v, p, (PlDtype)x->dtype, 1, 1);
      isum += (uint64_t)v;
    }
  }
  int64_t whole = (int64_t)isum;
  if (pl_is_float((PlDtype)x->dtype)) plk_nd_store_f64(y->data, (PlDtype)y->dtype, &sum, 1, 1);
  else plk_nd_store_i64(y->data, (PlDtype)y->dtype, &whole, 1, 1);
  return PL_OK;
}

/* out = x, then value over the window (sizes, strides, offset: attributes 0 to 2). */
PlStatus plk_cpu_strided_put(const PlkCall *call) {
  PlArray *y = call->out[0];
  const PlArray *src[1] = {call->in[0]};
  PlArray window = {.data = (char *)y->data + pl_attr_i(call->attrs, 2) * (int64_t)pl_dtype_size((PlDtype)y->dtype),
                    .numel = call->in[1]->numel,
                    .shape = call->in[1]->shape,
                    .strides = pl_attr_list(call->attrs, 1),
                    .dtype = y->dtype,
                    .ndim = call->in[1]->ndim};
  PlArray *dst[1] = {y};
  PlkCall copy = *call;
  copy.code = PLK_EW_COPY;
  copy.nin = 1;
  copy.in = src;
  copy.out = dst;
  PL_TRY(plk_cpu_elementwise(&copy));
  if (window.numel == 0) return PL_OK;
  src[0] = call->in[1];
  dst[0] = &window;
  return plk_cpu_elementwise(&copy);
}
