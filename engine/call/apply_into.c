/* SPDX-License-Identifier: MIT
 * Ops that write into a tensor there is: out= and op_ (pl_apply_into), and ops that always change input 0. Where
 * gradients are recorded, what was there before goes on in a copy. docs/design/in-place.md has the reasons. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/remat/remat.h"
#include "engine/tensor/layout.h"
#include "engine/vmap/vmap.h"
#include "kernels/optim.h"

typedef PlCall Call;

/* True if writing `out` may change bytes that `t` still has to be read from (same array: fine for kernels
 * that go element by element). */
static bool hurts(const PlTensor *out, const PlTensor *t) {
  if (!t || t->storage != out->storage) return false;
  return !(t->a.data == out->a.data && pl_shape_equal(&t->a, &out->a) &&
           memcmp(t->a.strides, out->a.strides, t->a.ndim * sizeof(int64_t)) == 0);
}

PlStatus pl_call_check_target(const PlOp *op, const PlTensor *out, const PlDesc *d) {
  PlArray want = {.shape = d->shape, .ndim = d->ndim, .dtype = d->dtype};
  if (!pl_shape_equal(&want, &out->a))
    PL_FAIL(PL_ERR_SHAPE, "%s: the result is %s, it cannot be written into %s", op->name, pl_desc_text(&want), pl_desc_text(&out->a));
  int from = pl_is_float((PlDtype)d->dtype) ? 2 : d->dtype == PL_BOOL ? 0 : 1;
  int to = pl_is_float((PlDtype)out->a.dtype) ? 2 : out->a.dtype == PL_BOOL ? 0 : 1;
  if (from > to)
    PL_FAIL(PL_ERR_DTYPE,
            "%s: the result %s cannot be stored in %s without loss; use the form that returns a new "
            "tensor, or cast",
            op->name, pl_desc_text(&want), pl_desc_text(&out->a));
  if (pl_self_overlaps(&out->a))
    PL_FAIL(PL_ERR_STATE, "%s: %s is expanded, several of its elements share memory; write into a clone", op->name, pl_desc_text(&out->a));
  return PL_OK;
}

/* After a kernel that writes into t: whatever it refuses, it refuses before it writes; only Ctrl-C comes between. */
static PlStatus wrote(const PlOp *op, PlTensor *t, PlStatus s) {
  if (s == PL_OK || s == PL_ERR_INTERRUPT) t->storage->version++;
  if (s == PL_ERR_INTERRUPT) PL_FAIL(s, "%s: interrupted while writing; %s is partly new", op->name, pl_desc_text(&t->a));
  return s;
}

/* Computes into `out` (no history). The result passes through a temporary where dtype, overlap or strides ask for it: loops over
 * elements follow any strides of their output, other kernels (products, say) may write rows one behind the other. */
static PlStatus compute_into(Call *c, PlTensor *out) {
  bool direct = c->desc[0].dtype == out->a.dtype && !c->desc[0].is_view && c->op->nout == 1 && (out->a.contiguous || pl_op_each(c->op));
  if (PL_UNLIKELY(c->layout != 0) && (c->op->flags & PL_F_CONTIGUOUS)) direct = pl_is_channels_last(&out->a);
  if (PL_UNLIKELY(c->op->flags & PL_F_LATE)) /* what is refused must not have been written */
    direct = direct && (c->op->cls == PL_POINTWISE ? pl_is_float((PlDtype)out->a.dtype) : c->in[0] && c->in[0]->a.data == out->a.data);
  for (int i = 0; i < c->nin && direct; i++)
    direct =
        !(c->in[i] && c->in[i]->storage == out->storage) ||
        ((c->op->cls == PL_POINTWISE || (i == 0 && (c->op->flags & PL_F_INPLACE)) || (i + 1 == c->op->over && pl_on_gpu(out->a.device))) &&
         !hurts(out, c->in[i]));
  if (direct) {
    if (PL_LIKELY(pl_state.remat == NULL)) return wrote(c->op, out, pl_call_run(c, &out));
    PlRewrite w;
    PL_TRY(pl_remat_rewrite_begin(&w, c, out));
    const PlDrawn drawn = pl_remat_drawn(c->op);
    const PlStatus s = pl_call_run(c, &out);
    pl_remat_rewrite_end(&w, c, out, drawn, s == PL_OK);
    return wrote(c->op, out, s);
  }
  PlTensor *tmp[PL_MAX_OUT];
  PL_TRY(pl_call_outputs(c, tmp));
  PlStatus s = pl_copy_data(out, tmp[0]);
  pl_release_all(tmp, c->op->nout);
  return s;
}

/* What was there before, which lies as t does: so does what is computed of it, tracked or not. */
static PlStatus copy_of_old(PlTensor **old, PlTensor *t) {
  return PL_LIKELY(t->a.contiguous || t->a.symbolic) ? pl_tensor_copy(old, t) : pl_tensor_copy_as(old, PL_STRIDED, t);
}

/* Tracked in-place: the op runs out of place on a copy that carries the old history, the data moves into
 * the old memory, the handle takes the new history. Exact for every op, whatever its gradient reads. */
static PlStatus apply_tracked(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *out) {
  PL_TRY(pl_inplace_check(op->name, out));
  PlTensor *old = NULL, *res[PL_MAX_OUT], **args = malloc((size_t)(nin ? nin : 1) * sizeof *args);
  if (!args) return pl_call_no_memory(op);
  PlStatus s = copy_of_old(&old, out);
  if (s == PL_OK) s = pl_entries_copy(old, out, NULL);
  for (int i = 0; i < nin; i++) args[i] = in[i] == out ? old : in[i];
  if (s == PL_OK) s = pl_apply(op, args, nin, attrs, res);
  free(args);
  pl_tensor_release(old);
  PL_TRY(s);
  PlTensor *r = res[0];
  if (r->a.dtype != out->a.dtype) {
    PlAttrs a;
    pl_attrs_init(&pl_op_cast, &a);
    pl_attrs_int(&a, 0, out->a.dtype);
    PlTensor *cast;
    s = pl_apply(&pl_op_cast, &r, 1, &a, &cast);
    pl_tensor_release(r);
    r = s == PL_OK ? cast : NULL;
  }
  if (s == PL_OK) s = pl_copy_data(out, r);
  if (s == PL_OK) s = pl_inplace_install(out, r);
  pl_tensor_release(r);
  return s;
}

bool pl_view_unseen(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  const PlTensor *base = t->base;
  if (PL_LIKELY(!base || t->node || !base->node) || pl_history_old(t) || !pl_is_float((PlDtype)t->a.dtype)) return false;
  return pl_state.ambient && pl_key_records(pl_state.ambient) && pl_entry_get(base, pl_state.ambient, &n, &slot);
}

static PlStatus check_view(const char *op, const PlTensor *t) {
  const PlTensor *base = t->base;
  if (PL_LIKELY(!pl_view_unseen(t))) return PL_OK;
  PL_FAIL(PL_ERR_STATE,
          "%s: %s is a view that was taken where no gradients are recorded, of %s, which requires a gradient; take the view "
          "outside of T.no_grad(), or change it inside",
          op, pl_desc_text(&t->a), pl_desc_text(&base->a));
}

PlStatus pl_call_tracked(const char *op, PlTensor *const *in, int nin, PlTensor *out, bool *yes) {
  *yes = false;
  if (pl_state.grad_off) return PL_OK;
  PL_TRY(check_view(op, out));
  if (!(pl_may_record(in, nin) || pl_may_record(&out, 1))) return PL_OK;
  PL_TRY(pl_history_refresh(out));
  *yes = pl_tracked(out);
  for (int i = 0; i < nin && !*yes; i++) {
    if (!in[i]) continue;
    PL_TRY(pl_history_refresh(in[i]));
    *yes = pl_tracked(in[i]);
  }
  return PL_OK;
}

/* out := op(in…) where op is made of other ops: they are recorded one by one, and so is the copy. */
static PlStatus expand_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *out) {
  PlTensor *r;
  PL_TRY(pl_apply(op, in, nin, attrs, &r));
  PlDesc d = {.dtype = r->a.dtype, .ndim = r->a.ndim};
  for (int i = 0; i < d.ndim; i++) d.shape[i] = r->a.shape[i];
  PlStatus s = pl_call_check_target(op, out, &d);
  PlTensor *same = NULL, *both[] = {out, r};
  if (s == PL_OK) s = pl_apply(&pl_op_copy, both, 2, NULL, &same);
  pl_tensor_release(same);
  pl_tensor_release(r);
  return s;
}

PlStatus pl_apply_into_inside(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out) {
  if (op->flags & PL_F_MUTATES) PL_FAIL(PL_ERR_ARG, "%s: has no out argument", op->name);
  if (op->nout != 1) PL_FAIL(PL_ERR_ARG, "%s: several results cannot be written in place", op->name);
  if (op->expand && !op->kernel[PL_CPU]) return expand_into(op, in, nin, attrs, out[0]);
  PlTensor *y = out[0];
  const uint32_t modes = pl_state.modes;
  bool batched = (modes & PL_MODE_BATCH) && (pl_is_batched(y) || pl_any_batched(in, nin));
  if (PL_UNLIKELY((modes & PL_MODE_TRACE) || y->a.symbolic || pl_any_symbolic(in, nin)) && !batched)
    return pl_sym_apply_into(op, in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = pl_call_check_target(op, y, &c.desc[0]);
  if (PL_UNLIKELY(modes & PL_MODE_BATCH) && s == PL_OK && (pl_is_batched(y) || pl_any_batched(c.in, c.nin))) {
    s = pl_batch_into(op, c.in, c.nin, c.attrs, y);
    pl_call_end(&c);
    return s;
  }
  bool tracked = false;
  if (PL_UNLIKELY(modes & PL_MODE_BATCH) && s == PL_OK && (op->flags & PL_F_SEEDED)) s = pl_batch_random_into(op, y);
  if (s == PL_OK) s = pl_call_tracked(op->name, in, nin, y, &tracked);
  if (s == PL_OK && !tracked) s = compute_into(&c, y);
  pl_call_end(&c);
  if (s == PL_OK && tracked) s = apply_tracked(op, in, nin, attrs, y);
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->wrote(op->name, y->storage);
  return s;
}

PlStatus pl_apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out) {
  if (PL_LIKELY((pl_state.modes & PL_MODES_AROUND) == 0)) return pl_apply_into_inside(op, in, nin, attrs, out);
  const PlApplied a = {.op = op, .in = in, .nin = nin, .attrs = attrs, .into = out};
  return pl_apply_around(&a);
}

PlStatus pl_call_no_history(const PlOp *op, const PlTensor *y) {
  PL_TRY(pl_inplace_check(op->name, y));
  PL_FAIL(PL_ERR_STATE, "%s: cannot change %s while gradients are recorded; use T.no_grad()", op->name, pl_desc_text(&y->a));
}

PlStatus pl_call_record_write(PlCall *c, PlTensor *old) {
  PlTensor *y = c->in[0], *fresh;
  PL_TRY(pl_tensor_alias(&fresh, y));
  c->in[0] = old;
  PlStatus s = pl_record(c->op, c->in, c->nin, c->attrs, &fresh);
  c->in[0] = y;
  if (s == PL_OK) s = pl_inplace_install(y, fresh);
  pl_tensor_release(fresh);
  return s;
}

/* Kernels that change input 0 read the others while they write: what shares memory with y is read from a copy, the inputs themselves
 * wait in `kept`. CPU kernels of ops that only set y look themselves. */
static PlStatus read_apart(Call *c, const PlTensor *y, PlTensor **kept) {
  const bool looks = (c->op->flags & PL_F_SETS) && y->a.device == PL_CPU;
  for (int i = 1; i < c->nin && !looks; i++) {
    if (PL_LIKELY(!c->in[i] || !hurts(y, c->in[i]) || !plk_extents_meet(plk_extent(&y->a), plk_extent(&c->in[i]->a)))) continue;
    PlTensor *copy;
    PL_TRY(pl_tensor_copy(&copy, c->in[i]));
    kept[i] = c->in[i];
    c->in[i] = copy;
    c->arr[i] = &copy->a;
  }
  return PL_OK;
}

static void put_back(Call *c, PlTensor **kept) {
  for (int i = 1; i < c->nin; i++) {
    if (PL_LIKELY(!kept[i])) continue;
    pl_tensor_release(c->in[i]);
    c->in[i] = kept[i];
    c->arr[i] = &kept[i]->a;
  }
}

PlStatus pl_call_mutate(Call *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlTensor *y = c->in[0];
  if (c->made[0]) PL_FAIL(PL_ERR_DTYPE, "%s: input 0 would have to be cast", op->name);
  bool tracked = false, variadic = op->nin == PL_VARIADIC;
  if (!variadic) PL_TRY(pl_call_tracked(op->name, c->in, c->nin, y, &tracked));
  if (tracked && !op->grad) return pl_call_no_history(op, y);
  for (int i = 0; PL_UNLIKELY(pl_watched()) && i < (variadic ? c->nin : 1); i++) PL_TRY(pl_checkpoint_writes(op->name, c->in[i]));
  if (!variadic && pl_self_overlaps(&y->a))
    PL_FAIL(PL_ERR_STATE, "%s: %s is expanded, several of its elements share memory; write into a clone", op->name, pl_desc_text(&y->a));
  PlTensor *copy = NULL, *target = y;
  if ((op->flags & PL_F_CONTIGUOUS) && !y->a.contiguous && !variadic) {
    PL_TRY(pl_tensor_copy(&copy, y));
    target = copy;
    c->arr[0] = &copy->a;
    c->in[0] = copy;
  }
  PlTensor *old = NULL, *kept[PL_MAX_IN] = {NULL};
  PlStatus s = variadic ? PL_OK : read_apart(c, y, kept);
  if (tracked && s == PL_OK) {
    s = pl_inplace_check(op->name, y);
    if (s == PL_OK) s = copy_of_old(&old, y); /* history before the change hangs on the copy */
    if (s == PL_OK) s = pl_entries_copy(old, y, NULL);
  }
  for (int i = 0; s == PL_OK && i < (variadic ? c->nin : 1); i++) {
    s = pl_writes(c->in[i]->storage);
    if (s == PL_OK) s = pl_own(c->in[i]->storage);
  }
  if (s == PL_OK) s = pl_call_run(c, &target);
  if (!copy) s = wrote(op, y, s);
  else if (s == PL_OK) s = pl_copy_data(y, copy);
  if (copy) c->in[0] = y;
  if (!variadic) put_back(c, kept);
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->wrote(op->name, y->storage);
  for (int i = 1; variadic && i < c->nin; i++) c->in[i]->storage->version++;
  if (s == PL_OK && tracked) s = pl_call_record_write(c, old);
  pl_tensor_release(old);
  pl_tensor_release(copy);
  if (s == PL_OK && op->nout > 0) out[0] = pl_retain(y);
  for (int o = 1; s == PL_OK && o < op->nout; o++) out[o] = NULL;
  return s;
}
