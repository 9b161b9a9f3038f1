/* SPDX-License-Identifier: MIT
 * Ops under modes that wrap every call: a graph under construction takes it, a checkpoint notes it, a measurement
 * counts it. One way for results of their own and for op_ and out=; what runs inside is apply.c's and apply_into.c's. */
#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/grad/checkpoint.h"
#include "engine/graph/ir/graph.h"
#include "engine/vmap/vmap.h"

bool pl_batch_call(const PlOp *op, PlTensor *const *in, int nin) {
  return (pl_state.modes & PL_MODE_BATCH) && (pl_any_batched(in, nin) || (pl_state.batch && (op->flags & PL_F_SEEDED)));
}

static PlStatus inside(const PlApplied *a) {
  return a->into ? pl_apply_into_inside(a->op, a->in, a->nin, a->attrs, a->into) : pl_apply_inside(a->op, a->in, a->nin, a->attrs, a->out);
}

static PlStatus measured(const PlApplied *a) {
  const PlProfile *p = pl_state.profile;
  if (!p) return inside(a);
  p->begin(a->op, 1);
  PlStatus s = inside(a);
  p->end();
  return s;
}

/* Under a checkpoint: it notes the call, and what tensors that are written held. */
static PlStatus noted(const PlApplied *a) {
  const PlOp *op = a->op;
  PlTensor *const *written = a->into ? a->into : a->in;
  const int nwritten = a->into ? 1 : !(op->flags & PL_F_MUTATES) ? 0 : op->nin == PL_VARIADIC ? a->nin : 1;
  PL_TRY(pl_checkpoint_enter(op->name, a->attrs, a->attrs ? pl_attrs_size(a->attrs) : 0, (op->flags & PL_F_SEEDED) != 0, a->in, a->nin,
                             written, nwritten));
  PlStatus s = a->into ? pl_checkpoint_writes(op->name, a->into[0]) : PL_OK;
  if (s == PL_OK) s = measured(a);
  if (s == PL_OK) pl_checkpoint_leave(a->out, a->into ? 0 : op->nout, written, nwritten);
  else pl_checkpoint_failed();
  return s;
}

PlStatus pl_apply_around(const PlApplied *a) {
  if ((pl_state.modes & PL_MODE_TRACE) && !a->into)
    return pl_batch_call(a->op, a->in, a->nin) ? inside(a) : pl_sym_apply(a->op, a->in, a->nin, a->attrs, a->out);
  const bool symbolic = (a->into && a->into[0]->a.symbolic) || pl_any_symbolic(a->in, a->nin);
  return pl_watched() && !symbolic ? noted(a) : measured(a);
}
