/* SPDX-License-Identifier: MIT
 * Memory formats: see layout.h. */
#include "engine/tensor/layout.h"
#include "engine/call/call.h"

#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"

static bool has_channels(int ndim) { return ndim == 4 || ndim == 5; }

void pl_layout_strides(int layout, int ndim, const int64_t *shape, int64_t *strides) {
  int64_t step = 1;
  if (layout == PL_CHANNELS_LAST) {
    strides[1] = 1;
    step = shape[1] ? shape[1] : 1;
  }
  for (int d = ndim - 1; d >= 0; d--) {
    if (d == 1 && layout == PL_CHANNELS_LAST) continue;
    strides[d] = step;
    step *= shape[d] ? shape[d] : 1;
  }
}

bool pl_is_channels_last(const PlArray *a) {
  int64_t want[5];
  if (!has_channels(a->ndim)) return false;
  if (a->numel == 0) return true;
  pl_layout_strides(PL_CHANNELS_LAST, a->ndim, a->shape, want);
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != 1 && a->strides[d] != want[d]) return false;
  return true;
}

bool pl_channels_last(const PlArray *a) {
  int64_t want[5], rows[5];
  if (!has_channels(a->ndim)) return false;
  if (!a->contiguous) return pl_is_channels_last(a);
  pl_layout_strides(PL_CHANNELS_LAST, a->ndim, a->shape, want);
  pl_layout_strides(0, a->ndim, a->shape, rows);
  const size_t size = a->ndim * sizeof *want;
  return memcmp(a->strides, want, size) == 0 && memcmp(rows, want, size) != 0;
}

void pl_layout_apply(PlTensor *t, int layout) {
  if (layout != PL_CHANNELS_LAST || !has_channels(t->a.ndim)) return;
  pl_layout_strides(layout, t->a.ndim, t->a.shape, pl_strides(t));
  pl_tensor_set_contiguous(t);
}

PlStatus pl_tensor_empty_as(PlTensor **out, int layout, int device, PlDtype dtype, int ndim, const int64_t *shape) {
  PL_TRY(pl_tensor_empty_on(out, device, dtype, ndim, shape));
  pl_layout_apply(*out, layout);
  return PL_OK;
}

PlStatus pl_tensor_copy_as(PlTensor **out, int layout, PlTensor *t) {
  PlTensor *c;
  int64_t strides[PL_MAX_DIM];
  PL_TRY(pl_tensor_empty_as(&c, layout, t->a.device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  if (layout == PL_STRIDED && pl_layout_permuted(&t->a, strides)) pl_layout_stride(c, strides);
  PlStatus s = pl_copy_data(c, t);
  if (s != PL_OK) {
    pl_tensor_release(c);
    return s;
  }
  c->a.weak = t->a.weak;
  *out = c;
  return PL_OK;
}

/* ---- the order of operands ------------------------------------------------------------------------------------------ */

bool pl_layout_dense(const PlArray *a) {
  int order[PL_MAX_DIM];
  int64_t step = 1;
  if (a->contiguous) return true;
  pl_layout_order(a->ndim, a->shape, a->strides, order);
  for (int k = a->ndim - 1; k >= 0; k--) {
    if (a->shape[order[k]] == 1) continue;
    if (a->strides[order[k]] != step) return false;
    step *= a->shape[order[k]];
  }
  return true;
}

void pl_layout_order(int ndim, const int64_t *shape, const int64_t *strides, int *order) {
  for (int d = 0; d < ndim; d++) {
    int k = d; /* sizes of 1 lie outside of what has the same stride */
    for (; k > 0; k--) {
      const int o = order[k - 1];
      if (strides[o] > strides[d] || (strides[o] == strides[d] && (shape[o] > 1 || shape[d] == 1))) break;
      order[k] = o;
    }
    order[k] = d;
  }
}

/* The stride of a's dim that meets dim d of ndim ones; 0 where it repeats. */
static int64_t stride_at(const PlArray *a, int ndim, const int64_t *shape, int d) {
  const int e = d - (ndim - a->ndim);
  return e < 0 || (a->shape[e] == 1 && shape[d] != 1) ? 0 : a->strides[e];
}

/* Does dim a, the lower one in memory until now, belong outside of b? 1: yes, -1: no, 0: no operand says so. PyTorch's
 * TensorIterator asks the operands in turn, and takes the first that repeats along neither. */
static int outside(const PlArray *const *in, int nin, int ndim, const int64_t *shape, int a, int b) {
  for (int i = 0; i < nin; i++) {
    if (!in[i]) continue;
    const int64_t sa = stride_at(in[i], ndim, shape, a), sb = stride_at(in[i], ndim, shape, b);
    if (sa == 0 || sb == 0) continue;
    if (sa != sb) return sa > sb ? 1 : -1;
    if (shape[a] > shape[b]) return 1;
  }
  return 0;
}

/* All operands are dense with their dims in the very same order: so is the result, where sizes of 1 leave it open, too. */
static bool all_the_same(const PlArray *const *in, int nin, int ndim, const int64_t *shape, int *order) {
  bool any = false;
  for (int i = 0; i < nin; i++) {
    const PlArray *a = in[i];
    int other[PL_MAX_DIM];
    if (!a) continue;
    if (a->ndim != ndim || memcmp(a->shape, shape, (size_t)ndim * sizeof *shape) != 0 || !pl_layout_dense(a)) return false;
    pl_layout_order(ndim, shape, a->strides, any ? other : order);
    if (any && memcmp(other, order, (size_t)ndim * sizeof *order) != 0) return false;
    any = true;
  }
  return any;
}

bool pl_layout_row_major(const PlArray *a) {
  if (!a->contiguous) return false;
  int64_t step = 1;
  for (int d = a->ndim - 1; d >= 0; d--) {
    if (a->strides[d] != step) return false;
    step *= a->shape[d] ? a->shape[d] : 1;
  }
  return true;
}

bool pl_layout_like(const PlArray *const *in, int nin, int ndim, const int64_t *shape, int64_t *strides) {
  int order[PL_MAX_DIM]; /* from the innermost dim */
  bool as_written = true;
  int64_t step = 1;
  if (all_the_same(in, nin, ndim, shape, order)) {
    for (int k = ndim - 1; k >= 0; k--) {
      as_written = as_written && order[k] == k;
      strides[order[k]] = step;
      step *= shape[order[k]] ? shape[order[k]] : 1;
    }
    return !as_written;
  }
  for (int k = 0; k < ndim; k++) order[k] = ndim - 1 - k;
  for (int i = 1; i < ndim; i++)
    for (int at = i, k = i - 1; k >= 0; k--) {
      const int says = outside(in, nin, ndim, shape, order[k], order[at]);
      if (says < 0) break;
      if (says == 0) continue;
      const int d = order[k];
      order[k] = order[at];
      order[at] = d;
      at = k;
    }
  for (int k = 0; k < ndim; k++) {
    as_written = as_written && order[k] == ndim - 1 - k;
    strides[order[k]] = step;
    step *= shape[order[k]] ? shape[order[k]] : 1;
  }
  return !as_written;
}

bool pl_layout_permuted(const PlArray *a, int64_t *strides) {
  if (a->device != PL_CPU || a->ndim < 2 || PL_LIKELY(pl_layout_row_major(a))) return false;
  return pl_layout_like(&a, 1, a->ndim, a->shape, strides);
}

void pl_layout_stride(PlTensor *t, const int64_t *strides) {
  memcpy(pl_strides(t), strides, t->a.ndim * sizeof *strides);
  pl_tensor_set_contiguous(t);
}

void pl_layout_keep(PlCall *c) {
  const PlOp *op = c->op;
  PlDesc *d = &c->desc[0];
  bool strays = false;
  for (int i = 0; i < c->nin; i++) strays = strays || (c->arr[i] && !c->arr[i]->contiguous);
  if (!strays && (op->flags & PL_F_KEEPS)) strays = !pl_layout_row_major(c->arr[0]);
  if (PL_LIKELY(!strays) || !pl_op_each(op) || op->nout != 1 || (op->flags & PL_F_MUTATES) || d->is_view || d->ndim < 2 ||
      pl_state.row_major || pl_state.batch)
    return;
  if (pl_layout_like(c->arr, c->nin, d->ndim, d->shape, d->strides)) d->layout = PL_STRIDED;
}

/* ---- which results follow ----------------------------------------------------------------------------------------- */

/* One input that is channels last decides: gradients that arrive row-major (of a mean, say) meet such arrays, and those
 * are worth keeping. */
static bool any_channels_last(const PlCall *c, const PlDesc *like) {
  for (int i = 0; i < c->nin; i++) {
    const PlArray *a = c->arr[i];
    if (!a || !has_channels(a->ndim) || a->weak || !pl_channels_last(a)) continue;
    if (!like || (a->ndim == like->ndim && memcmp(a->shape, like->shape, a->ndim * sizeof *a->shape) == 0)) return true;
  }
  return false;
}

static bool follows(const PlCall *c) {
  const PlOp *op = c->op;
  if (c->desc[0].layout == PL_MAY_FOLLOW) return any_channels_last(c, NULL);
  return pl_op_each(op) && op->nout == 1 && !(op->flags & PL_F_MUTATES) && has_channels(c->desc[0].ndim) &&
         any_channels_last(c, &c->desc[0]);
}

void pl_layout_follow(PlCall *c) {
  c->layout = 0;
  if (c->device == PL_CPU || pl_state.row_major || pl_state.batch || c->op->nout == 0 || c->desc[0].is_view || !follows(c)) return;
  c->layout = PL_CHANNELS_LAST;
  for (int o = 0; o < c->op->nout; o++)
    if (has_channels(c->desc[o].ndim) && c->desc[o].dtype != PL_NDTYPE) c->desc[o].layout = PL_CHANNELS_LAST;
}

/* ---- turned arrays -------------------------------------------------------------------------------------------------- */

typedef struct Turned {
  PlArray a;
  int64_t shape[5], strides[5];
} Turned;

/* a, which broadcasts against ndim dims, with the second of them behind all others. */
static void turn(const PlArray *a, int ndim, Turned *t) {
  const int lead = ndim - a->ndim;
  t->a = *a;
  for (int k = 0; k < ndim; k++) {
    const int d = (k == 0 ? 0 : k == ndim - 1 ? 1 : k + 1) - lead;
    t->shape[k] = d < 0 ? 1 : a->shape[d];
    t->strides[k] = d < 0 ? 0 : a->strides[d];
  }
  t->a.ndim = (uint8_t)ndim;
  t->a.shape = t->shape;
  t->a.strides = t->strides;
  int64_t step = 1;
  t->a.contiguous = 1;
  for (int k = ndim - 1; k >= 0; k--) {
    if (t->shape[k] != 1 && t->strides[k] != step) t->a.contiguous = 0;
    step *= t->shape[k];
  }
}

PlStatus pl_layout_turned(const PlOp *op, const PlkCall *call, PlStatus (*run)(const PlOp *op, const PlkCall *call)) {
  enum { MOST = 4 };
  const PlArray *y = call->nout == 1 ? call->out[0] : NULL;
  if (!y || call->nin > MOST || y->contiguous || !pl_channels_last(y)) return run(op, call);
  Turned in[MOST], out;
  const PlArray *arr[MOST] = {NULL};
  PlArray *dst[1] = {&out.a};
  for (int i = 0; i < call->nin; i++) {
    const PlArray *a = call->in[i];
    arr[i] = a;
    if (!a || a->numel == 1 || a->ndim > y->ndim) continue;
    turn(a, y->ndim, &in[i]);
    arr[i] = &in[i].a;
  }
  turn(y, y->ndim, &out);
  PlkCall k = *call;
  k.in = arr;
  k.out = dst;
  return run(op, &k);
}
