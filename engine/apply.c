/* SPDX-License-Identifier: MIT
 * pl_apply: one op from its call to its recorded result. The hot path (pointwise, equal shapes and dtypes, nothing
 * tracked) does only what it must; everything else goes the general way through engine/call.c. */
#include "engine/autocast.h"
#include "engine/batch/batch.h"
#include "engine/device.h"
#include "engine/grad/node.h"
#include "engine/graph/graph.h"
#include "engine/state.h"

typedef PlCall Call;

/* Inside vmap and batched backward passes: ops on handles that stand for many tensors, and random ops. The keys made
 * in there record the op as it was called, the others what it is made of. */
static PlStatus apply_batched(Call *c, PlTensor **out, bool *done) {
  const PlOp *op = c->op;
  bool blind = false;
  if (!pl_any_batched(c->in, c->nin)) {
    if (!pl_state.batch || !(op->flags & PL_F_SEEDED)) return PL_OK;
    if (op->flags & PL_F_MUTATES) return pl_batch_random_into(op);
    return pl_batch_random(op, c->in, c->nin, c->attrs, out, done);
  }
  *done = true;
  for (int i = 0; i < c->nin; i++)
    blind |= c->in[i] && pl_is_batched(c->in[i]) && i < 8 && ((op->reads_values >> i) & 1);
  if (!blind) PL_TRY(pl_call_infer(c));
  if (op->flags & PL_F_MUTATES) {
    PL_TRY(pl_batch_mutate(op, c->in, c->nin, c->attrs));
    for (int o = 0; o < op->nout; o++) out[o] = o ? NULL : pl_retain(c->in[0]);
    return PL_OK;
  }
  PL_TRY(pl_batch_compute(op, c->in, c->nin, c->attrs, blind ? NULL : c->desc, out));
  if (pl_state.grad_off || !pl_may_record(c->in, c->nin)) return PL_OK;
  uint64_t floor = pl_batch_enter(c->in, c->nin);
  PlStatus s = pl_record(op, c->in, c->nin, c->attrs, out);
  pl_state.key_floor = floor;
  if (s != PL_OK) pl_release_all(out, op->nout);
  return s;
}

/* Does a running batch, rather than the graph under construction, say how the op is computed? */
static bool is_batch_call(const PlOp *op, PlTensor *const *in, int nin) {
  return pl_state.batch_busy != 0 && (pl_any_batched(in, nin) || (pl_state.batch && (op->flags & PL_F_SEEDED)));
}

/* An op with both: the device may have no kernel for it. */
static bool expands_on_device(const PlOp *op, PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.device != PL_CPU) return !pl_op_on_device(op);
  return false;
}

static PlStatus apply_general(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (PL_UNLIKELY(pl_any_symbolic(in, nin)) && !is_batch_call(op, in, nin)) return pl_sym_apply(op, in, nin, attrs, out);
  if (op->autocast && pl_state.autocast) return pl_autocast_apply(op, in, nin, attrs, out);
  if (op->expand && (!op->kernel[PL_CPU] || PL_UNLIKELY(expands_on_device(op, in, nin)))) return op->expand(in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  if (PL_UNLIKELY(pl_state.batch_busy != 0)) {
    bool done = false;
    PlStatus b = apply_batched(&c, out, &done);
    if (b == PL_OK && !done && (pl_state.trace || pl_any_symbolic(in, nin))) { /* a draw that is the same for all */
      b = pl_sym_apply(op, in, nin, attrs, out);
      done = true;
    }
    if (b != PL_OK || done) {
      pl_call_end(&c);
      return b;
    }
  }
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK && (op->flags & PL_F_MUTATES))
    s = pl_call_mutate(&c, out);
  else if (s == PL_OK) {
    s = pl_call_outputs(&c, out);
    if (s == PL_OK && !pl_state.grad_off && pl_may_record(c.in, c.nin)) {
      s = pl_record(op, c.in, c.nin, c.attrs, out);
      if (s != PL_OK) pl_release_all(out, op->nout);
    }
  }
  pl_call_end(&c);
  return s;
}

/* Equal dtypes, and equal shapes or a number on one side, no attributes: neither promotion nor infer has
 * anything to say. Returns the operand whose shape the result has, or -1. */
static int plain_binary(const PlOp *op, PlTensor *const *in, int nin) {
  if (nin != 2 || op->nin != 2 || !in[0] || !in[1]) return -1;
  const PlArray *a = &in[0]->a, *b = &in[1]->a;
  if (a->dtype != b->dtype || (a->elsewhere | b->elsewhere)) return -1;
  if (op->promote != PL_PROMOTE_ALL && !pl_is_float((PlDtype)a->dtype)) return -1;
  if (a->weak | b->weak) return a->weak & b->weak ? -1 : a->weak;
  if (a->ndim != b->ndim) return -1;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != b->shape[d]) return -1;
  return 0;
}

static PlStatus apply_plain(const PlOp *op, PlTensor *const *in, int nin, int like, PlDtype dtype, PlTensor **out) {
  PlTensor *y;
  PL_TRY(pl_tensor_like(&y, in[like], dtype));
  const PlArray *arr[2] = {&in[0]->a, nin > 1 ? &in[1]->a : NULL};
  PlArray *dst[1] = {&y->a};
  PlkCall call = {.name = op->name, .code = op->kcode, .nin = nin, .nout = 1, .in = arr, .out = dst, .attrs = &pl_no_attrs};
  PlStatus s = op->kernel[PL_CPU](&call);
  if (PL_LIKELY(s == PL_OK) && !pl_state.grad_off && pl_may_record(in, nin)) s = pl_record(op, in, nin, &pl_no_attrs, &y);
  if (PL_UNLIKELY(s != PL_OK)) {
    pl_tensor_release(y);
    return s;
  }
  *out = y;
  return PL_OK;
}

static inline PlStatus apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (op->cls == PL_POINTWISE && op->nattr == 0 && !op->autocast && op->kernel[PL_CPU] && PL_LIKELY(pl_state.batch_busy == 0)) {
    if (op->infer == pl_infer_broadcast && op->promote != PL_PROMOTE_NONE && !op->promote_mask) {
      int like = plain_binary(op, in, nin);
      if (like >= 0) return apply_plain(op, in, 2, like, (PlDtype)in[0]->a.dtype, out);
      if (nin == 1 && op->nin == 1 && in[0] && pl_is_float((PlDtype)in[0]->a.dtype) && !(in[0]->a.weak | in[0]->a.elsewhere))
        return apply_plain(op, in, 1, 0, (PlDtype)in[0]->a.dtype, out);
    } else if (op->infer == pl_infer_predicate && !op->promote_mask) {
      int like = plain_binary(op, in, nin);
      if (like >= 0) return apply_plain(op, in, 2, like, PL_BOOL, out);
    }
  }
  return apply_general(op, in, nin, attrs, out);
}

PlStatus pl_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  const PlProfile *p = pl_state.profile;
  if (PL_LIKELY(((uintptr_t)p | (uintptr_t)pl_state.trace) == 0)) return apply(op, in, nin, attrs, out);
  if (pl_state.trace) return is_batch_call(op, in, nin) ? apply_general(op, in, nin, attrs, out) : pl_sym_apply(op, in, nin, attrs, out);
  p->begin(op, 1);
  PlStatus s = apply_general(op, in, nin, attrs, out);
  p->end();
  return s;
}
