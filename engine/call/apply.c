/* SPDX-License-Identifier: MIT
 * pl_apply_any: one op from its call to its recorded result, the general way through engine/call/call.c. What most calls of
 * small models need is in fast_path.c. */
#include "engine/call/autocast.h"
#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/forward_mode.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

typedef PlCall Call;

/* Is a 0-d tensor that is f32 beside halves (PL_F_WIDE) another one for each element of a batch? */
static bool many_numbers(const Call *c) {
  bool any = false;
  for (int i = 0; pl_is_half(c->compute) && (c->op->flags & PL_F_WIDE) && i < c->nin; i++)
    any |= c->in[i]->a.dtype != c->compute && pl_is_batched(c->in[i]);
  return any;
}

static PlStatus cast(PlTensor *t, PlDtype to, PlTensor **out) {
  PlAttrs a;
  pl_attrs_init(&pl_op_cast, &a);
  pl_attrs_int(&a, 0, to);
  return pl_apply(&pl_op_cast, &t, 1, &a, out);
}

/* Then it is an array beside halves, which would make all of it f32: it is f32, and what comes out is rounded, the same bits. */
static PlStatus apply_numbers(Call *c, PlTensor **out) {
  PlTensor *in[PL_MAX_IN] = {NULL}, *y = NULL;
  PlStatus s = PL_OK;
  for (int i = 0; i < c->nin && s == PL_OK; i++) s = cast(c->in[i], PL_F32, &in[i]);
  if (s == PL_OK) s = pl_apply(c->op, in, c->nin, c->attrs, &y);
  if (s == PL_OK) s = cast(y, c->compute, out);
  pl_tensor_release(y);
  pl_release_all(in, c->nin);
  return s;
}

/* Inside vmap and batched backward passes: ops on handles that represent many tensors, and random ops. The keys made
 * in there record the op as it was called, the others what it is made of. */
static PlStatus apply_batched(Call *c, PlTensor **out, bool *done) {
  const PlOp *op = c->op;
  bool blind = false;
  PlBatch *draws = op->flags & PL_F_SEEDED ? pl_state.batch : NULL;
  const bool many = pl_any_batched(c->in, c->nin);
  if (draws && (op->flags & PL_F_MUTATES)) PL_TRY(pl_batch_random_into(op, c->in[0]));
  if (!many && (!draws || (op->flags & PL_F_MUTATES))) return PL_OK;
  const bool outwards = draws && !(op->flags & PL_F_MUTATES) && !pl_batch_draws(draws, c->in, c->nin);
  if (outwards && !many && !draws->outer) return PL_OK; /* one draw for all, as anywhere */
  *done = true;
  if (outwards) {
    pl_state.batch = draws->outer;
    PlStatus s = pl_apply(op, c->in, c->nin, c->attrs, out);
    pl_state.batch = draws;
    return s;
  }
  if (PL_UNLIKELY(many_numbers(c))) return apply_numbers(c, out);
  for (int i = 0; i < c->nin; i++) blind |= c->in[i] && pl_is_batched(c->in[i]) && i < 8 && ((op->reads_values >> i) & 1);
  if (!blind) PL_TRY(pl_call_infer(c));
  if (op->flags & PL_F_MUTATES) {
    PL_TRY(pl_batch_mutate(op, c->in, c->nin, c->attrs));
    for (int o = 0; o < op->nout; o++) out[o] = o ? NULL : pl_retain(c->in[0]);
    return PL_OK;
  }
  const PlDesc *desc = blind ? NULL : c->desc;
  if (draws) PL_TRY(pl_batch_draw(draws, op, c->in, c->nin, c->attrs, desc, out));
  else PL_TRY(pl_batch_compute(op, c->in, c->nin, c->attrs, desc, out));
  if (desc && op->nout == 1 && desc[0].is_view) pl_batch_join(out[0], c->in[0]);
  if (pl_state.grad_off || !pl_may_record(c->in, c->nin)) return PL_OK;
  uint64_t floor = pl_batch_enter(draws ? out : c->in, draws ? op->nout : c->nin); /* the keys inside of the innermost that differs */
  PlStatus s = pl_record(op, c->in, c->nin, c->attrs, out);
  pl_state.key_floor = floor;
  if (s != PL_OK) pl_release_all(out, op->nout);
  return s;
}

bool pl_op_expands(const PlOp *op, PlTensor *const *in, int nin) {
  if (!op->kernel[PL_CPU]) return true;
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.device != PL_CPU) return !pl_op_on_device(op);
  return false;
}

PlStatus pl_apply_inside(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (PL_UNLIKELY(pl_any_symbolic(in, nin)) && !pl_batch_call(op, in, nin)) return pl_sym_apply(op, in, nin, attrs, out);
  if (op->autocast && pl_state.autocast) return pl_autocast_apply(op, in, nin, attrs, out);
  if (op->expand && pl_op_expands(op, in, nin)) return op->expand(in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  if (PL_UNLIKELY(pl_state.modes & PL_MODE_BATCH)) {
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
  if (s == PL_OK && (op->flags & PL_F_MUTATES)) s = pl_call_mutate(&c, out);
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

/* Nothing else happens than the call: no mode, no cast, no record. */
static bool alone(const PlOp *op, PlTensor *const *in, int nin) {
  if (pl_state.modes || (op->autocast && pl_state.autocast) || op->expand || pl_any_symbolic(in, nin)) return false;
  return pl_state.grad_off || !pl_may_record(in, nin);
}

PlStatus pl_apply_shown(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (PL_UNLIKELY(op->spare && pl_state.modes == PL_MODE_FORWARD)) {
    bool done;
    PL_TRY(pl_forward_spared(op, in, nin, attrs, out, &done));
    if (done) return PL_OK;
  }
  if (PL_LIKELY(!op->spare) || !alone(op, in, nin)) return pl_apply(op, in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  PlStatus s = pl_call_infer(&c);
  c.spared = op->spare;
  if (s == PL_OK) s = pl_call_outputs(&c, out);
  pl_call_end(&c);
  return s;
}

PlStatus pl_apply_any(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (PL_LIKELY((pl_state.modes & PL_MODES_AROUND) == 0)) return pl_apply_inside(op, in, nin, attrs, out);
  const PlApplied a = {.op = op, .in = in, .nin = nin, .attrs = attrs, .out = out};
  return pl_apply_around(&a);
}
