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
  PL_TRY(pl_tensor_empty_as(&c, layout, t->a.device, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape));
  PlStatus s = pl_copy_data(c, t);
  if (s != PL_OK) {
    pl_tensor_release(c);
    return s;
  }
  c->a.weak = t->a.weak;
  *out = c;
  return PL_OK;
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
  return op->cls == PL_POINTWISE && op->nout == 1 && !(op->flags & (PL_F_CONTIGUOUS | PL_F_MUTATES)) && has_channels(c->desc[0].ndim) &&
         any_channels_last(c, &c->desc[0]);
}

void pl_layout_follow(PlCall *c) {
  c->layout = 0;
  if (c->device == PL_CPU || pl_state.row_major || pl_state.batch_busy || c->op->nout == 0 || c->desc[0].is_view || !follows(c)) return;
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
