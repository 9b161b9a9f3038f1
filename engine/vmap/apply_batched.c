/* SPDX-License-Identifier: MIT
 * One op on batched inputs: by its batching rule, else element by element; in-place forms; random ops.
 * Keys made inside the batch do not see what happens here: pl_apply records the op for them afterwards. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/device/device.h"
#include "engine/grad/node.h"
#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

static PlStatus no_memory(const PlOp *op) { PL_FAIL(PL_ERR_OOM, "%s: out of memory for a batch", op->name); }

/* The running batch of the innermost batched input. */
static PlStatus batch_of(const PlOp *op, PlTensor *const *in, int nin, PlBatch **out) {
  uint64_t born = 0;
  for (int i = 0; i < nin; i++)
    if (in[i] && pl_is_batched(in[i]) && pl_batched(in[i])->born > born) born = pl_batched(in[i])->born;
  for (PlBatch *b = pl_state.batch; b; b = b->outer)
    if (b->born == born) {
      *out = b;
      return PL_OK;
    }
  PL_FAIL(PL_ERR_STATE, "%s: a tensor was kept from a vmap that has ended; return it from the function instead", op->name);
}

/* ---- element by element ------------------------------------------------------------------------------ */

static PlStatus element(PlTensor *full, int64_t i, PlTensor **out) {
  PlAttrs a;
  pl_attrs_init(&pl_op_select, &a);
  pl_attrs_int(&a, 0, 0);
  pl_attrs_int(&a, 1, i);
  return pl_apply(&pl_op_select, &full, 1, &a, out);
}

/* n tensors become one; stack takes them in groups, then their cat. */
static PlStatus stacked(const PlOp *op, PlTensor **t, int64_t n, PlTensor **out) {
  enum { GROUP = 4096 };
  PlAttrs a;
  for (int64_t i = 1; i < n; i++)
    if (!pl_shape_equal(&t[0]->a, &t[i]->a))
      PL_FAIL(PL_ERR_SHAPE, "vmap: %s gives %s for one element and %s for another; results must have one shape", op->name,
              pl_desc_text(&t[0]->a), pl_desc_text(&t[i]->a));
  pl_attrs_init(&pl_op_stack, &a);
  pl_attrs_int(&a, 0, 0);
  if (n <= GROUP) return pl_apply(&pl_op_stack, t, (int)n, &a, out);
  PlStatus s = PL_OK;
  int64_t groups = 0;
  PlTensor **part = calloc((size_t)(n / GROUP + 1), sizeof *part);
  if (!part) return no_memory(op);
  for (int64_t i = 0; i < n && s == PL_OK; i += GROUP) {
    s = pl_apply(&pl_op_stack, t + i, (int)(n - i < GROUP ? n - i : GROUP), &a, &part[groups]);
    if (s == PL_OK) groups++;
  }
  pl_attrs_init(&pl_op_cat, &a);
  if (s == PL_OK) s = pl_apply(&pl_op_cat, part, (int)groups, &a, out);
  while (groups > 0) pl_tensor_release(part[--groups]);
  free(part);
  return s;
}

static PlStatus same_in_graph(const PlOp *op) {
  PL_FAIL(PL_ERR_UNSUPPORTED,
          "vmap: %s is to draw the same numbers for all elements, which a graph cannot say; draw them "
          "outside of vmap, or say randomness=\"different\"",
          op->name);
}

/* res[o n + i]: output o of element i. */
static PlStatus run_elements(const PlBatchCall *c, const PlBatch *b, PlTensor **args, PlTensor **res) {
  uint64_t offset = pl_state.offset;
  if (b->random == PL_RANDOM_SAME && pl_state.trace && (c->op->flags & PL_F_SEEDED)) return same_in_graph(c->op);
  for (int64_t i = 0; i < c->n; i++) {
    PlTensor *outs[PL_MAX_OUT];
    PlStatus s = PL_OK;
    for (int k = 0; k < c->nin; k++) args[k] = c->full[k] ? NULL : c->in[k];
    for (int k = 0; k < c->nin && s == PL_OK; k++)
      if (c->full[k]) s = element(c->full[k], i, &args[k]);
    if (b->random == PL_RANDOM_SAME) pl_state.offset = offset;
    if (s == PL_OK) s = pl_apply(c->op, args, c->nin, c->attrs, outs);
    for (int k = 0; k < c->nin; k++)
      if (c->full[k]) pl_tensor_release(args[k]);
    PL_TRY(s);
    for (int o = 0; o < c->op->nout; o++) res[o * c->n + i] = outs[o];
  }
  return PL_OK;
}

static PlStatus loop(PlBatchCall *c, const PlBatch *b, PlTensor **out) {
  const PlOp *op = c->op;
  pl_state.batch_loops++;
  if (c->n == 0) {
    if (!c->desc) PL_FAIL(PL_ERR_UNSUPPORTED, "vmap: %s over no elements at all", op->name);
    for (int o = 0; o < op->nout; o++) {
      int64_t sizes[PL_MAX_DIM + 1] = {0};
      out[o] = NULL;
      if (c->desc[o].dtype == PL_NDTYPE) continue;
      memcpy(sizes + 1, c->desc[o].shape, c->desc[o].ndim * sizeof *sizes);
      const int device = c->nin > 0 && c->in[0] ? c->in[0]->a.device : PL_CPU;
      PL_TRY(pl_tensor_empty_on(&out[o], device, (PlDtype)c->desc[o].dtype, c->desc[o].ndim + 1, sizes));
    }
    return PL_OK;
  }
  size_t total = (size_t)c->n * (size_t)op->nout;
  PlTensor **res = calloc(total + (size_t)c->nin, sizeof *res);
  if (!res) return no_memory(op);
  PlBatch *running = pl_state.batch; /* a random op asks the batches outside of this one */
  pl_state.batch = b->outer;
  PlStatus s = run_elements(c, b, res + total, res);
  pl_state.batch = running;
  for (int o = 0; o < op->nout; o++) {
    out[o] = NULL;
    if (s == PL_OK && res[(size_t)o * (size_t)c->n]) s = stacked(op, res + (size_t)o * (size_t)c->n, c->n, &out[o]);
  }
  for (size_t i = 0; i < total; i++) pl_tensor_release(res[i]);
  free(res);
  for (int o = 0; s != PL_OK && o < op->nout; o++) {
    pl_tensor_release(out[o]);
    out[o] = NULL;
  }
  return s;
}

/* ---- by rule ------------------------------------------------------------------------------------------- */

static void (*rule_of(const PlOp *op))(PlBatchCall *) {
  if (op->batch) return op->batch;
  return op->cls == PL_POINTWISE ? pl_batch_leading : NULL;
}

/* The rule's results as [n, sizes of one]. */
static PlStatus take(PlBatchCall *c, PlTensor **out) {
  for (int o = 0; o < c->op->nout; o++) {
    const PlDesc *d = &c->desc[o];
    PlTensor *t = c->out[o];
    if (d->dtype == PL_NDTYPE || !t) continue;
    if (!c->plain) {
      int64_t sizes[PL_MAX_DIM + 1];
      sizes[0] = c->n;
      memcpy(sizes + 1, d->shape, d->ndim * sizeof *sizes);
      t = pl_b_reshape(c, t, d->ndim + 1, sizes);
    }
    PL_TRY(c->status);
    out[o] = pl_retain(t);
  }
  return PL_OK;
}

static void end(PlBatchCall *c) {
  for (int i = 0; i < c->nmade; i++) pl_tensor_release(c->made[i]);
  free(c->made);
  free(c->full);
}

/* full results, or (c->plain) results for all elements alike */
static PlStatus compute(PlBatchCall *c, const PlBatch *b, PlTensor **out) {
  void (*rule)(PlBatchCall *) = c->desc ? rule_of(c->op) : NULL;
  if (c->op->flags & PL_F_SEEDED) {
    rule = NULL;
    PL_TRY(pl_batch_random_asks(c->op, b));
  }
  for (int o = 0; c->desc && o < c->op->nout; o++)
    if (c->desc[o].ndim == PL_MAX_DIM && c->desc[o].dtype != PL_NDTYPE)
      PL_FAIL(PL_ERR_SHAPE, "%s: inside vmap a tensor has at most %d dimensions", c->op->name, PL_MAX_DIM - 1);
  if (!rule) return loop(c, b, out);
  rule(c);
  PL_TRY(c->status);
  if (c->declined) return loop(c, b, out);
  return take(c, out);
}

static PlStatus begin(PlBatchCall *c, const PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs,
                      const PlDesc *desc) {
  *c = (PlBatchCall){.op = op, .attrs = attrs, .nin = nin, .in = in, .n = b->size, .desc = desc, .status = PL_OK};
  c->full = calloc((size_t)(nin ? nin : 1), sizeof *c->full);
  if (!c->full) return no_memory(op);
  for (int i = 0; i < nin; i++)
    if (in[i] && pl_is_batched(in[i]) && pl_batched(in[i])->born == b->born) c->full[i] = pl_batched(in[i])->full;
  return PL_OK;
}

static PlStatus compute_in(PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, const PlDesc *desc,
                           PlTensor **out) {
  PlBatchCall c;
  PL_TRY(begin(&c, b, op, in, nin, attrs, desc));
  uint64_t ceiling = pl_state.key_ceiling, floor = pl_state.key_floor;
  pl_state.key_ceiling = ~b->born;
  pl_state.key_floor = 0;
  for (int o = 0; o < op->nout; o++) out[o] = NULL;
  PlStatus s = compute(&c, b, out);
  pl_state.key_ceiling = ceiling;
  pl_state.key_floor = floor;
  for (int o = 0; o < op->nout && !c.plain; o++) {
    PlTensor *full = out[o];
    out[o] = NULL;
    if (s == PL_OK && full) s = pl_batch_wrap(&out[o], b, full);
    pl_tensor_release(full);
  }
  for (int o = 0; s != PL_OK && o < op->nout; o++) {
    pl_tensor_release(out[o]);
    out[o] = NULL;
  }
  end(&c);
  return s;
}

PlStatus pl_batch_compute(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, const PlDesc *desc, PlTensor **out) {
  PlBatch *b;
  PL_TRY(batch_of(op, in, nin, &b));
  return compute_in(b, op, in, nin, attrs, desc, out);
}

bool pl_batch_draws(const PlBatch *b, PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && pl_is_batched(in[i]) && pl_batched(in[i])->born == b->born) return true;
  return b->random != PL_RANDOM_SAME;
}

PlStatus pl_batch_draw(PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, const PlDesc *desc, PlTensor **out) {
  return compute_in(b, op, in, nin, attrs, desc, out);
}

PlStatus pl_batch_random_asks(const PlOp *op, const PlBatch *b) {
  if (b->random != PL_RANDOM_ERROR) return PL_OK;
  PL_FAIL(PL_ERR_STATE, "vmap: %s draws random numbers; say randomness=\"different\" or \"same\"", op->name);
}

PlStatus pl_batch_random_into(const PlOp *op, const PlTensor *y) {
  for (const PlBatch *b = pl_state.batch; b && !(pl_is_batched(y) && pl_batched(y)->born >= b->born); b = b->outer) {
    PL_TRY(pl_batch_random_asks(op, b));
    if (b->random != PL_RANDOM_SAME)
      PL_FAIL(PL_ERR_STATE,
              "vmap: %s draws random numbers into a tensor that is the same for all elements; say "
              "randomness=\"same\", or use the form that returns a new tensor",
              op->name);
  }
  return PL_OK;
}

/* ---- in place ------------------------------------------------------------------------------------------- */

/* Do keys made inside the batch track one of these? */
static PlStatus tracked_inside(const PlBatch *b, PlTensor *const *t, int n, bool *yes) {
  PlStatus s = PL_OK;
  *yes = false;
  if (pl_state.grad_off) return PL_OK;
  const uint64_t floor = pl_state.key_floor;
  pl_state.key_floor = b->born;
  for (int i = 0; i < n && s == PL_OK && !*yes; i++) {
    if (!t[i]) continue;
    s = pl_history_current(&t[i], 1);
    *yes = s == PL_OK && pl_tracked(t[i]);
  }
  pl_state.key_floor = floor;
  return s;
}

/* For these keys: y, which holds the new values, takes the history of fresh. */
static PlStatus install(const PlBatch *b, PlTensor *y, PlTensor *fresh) {
  const uint64_t floor = pl_state.key_floor;
  pl_state.key_floor = b->born;
  PlStatus s = pl_inplace_install(y, fresh);
  pl_state.key_floor = floor;
  return s;
}

/* The full handle of an op's target; every batched input must belong to its batch or one further out. */
static PlStatus target(const PlOp *op, PlTensor *const *in, int nin, PlTensor *y, PlBatch **b, PlTensor **full) {
  PL_TRY(batch_of(op, in, nin, b));
  if (!pl_is_batched(y) || pl_batched(y)->born < (*b)->born)
    PL_FAIL(PL_ERR_STATE,
            "%s: in place inside vmap, but %s is the same for all elements and what it would get is not; "
            "map it, too (in_dims), or use the form that returns a new tensor",
            op->name, pl_desc_text(&y->a));
  PL_TRY(batch_of(op, &y, 1, b));
  *full = pl_batched(y)->full;
  return PL_OK;
}

/* full.copy_(value), broadcast behind the batch dimension; keys made before the batch record it. */
static PlStatus store(const PlBatch *b, PlTensor *full, PlTensor *value) {
  PlTensor *v, *res[PL_MAX_OUT] = {NULL};
  uint64_t ceiling = pl_state.key_ceiling;
  pl_state.key_ceiling = ~b->born;
  PlStatus s = pl_batch_unwrap(&v, b, value);
  if (s == PL_OK && v->a.ndim < full->a.ndim) {
    int64_t sizes[PL_MAX_DIM];
    int lead = full->a.ndim - v->a.ndim;
    PlAttrs a;
    PlTensor *r;
    sizes[0] = v->a.shape[0];
    for (int d = 1; d <= lead; d++) sizes[d] = 1;
    memcpy(sizes + 1 + lead, v->a.shape + 1, (size_t)(v->a.ndim - 1) * sizeof *sizes);
    pl_attrs_init(&pl_op_reshape, &a);
    s = pl_attrs_list(&a, 0, full->a.ndim, sizes);
    if (s == PL_OK) s = pl_apply(&pl_op_reshape, &v, 1, &a, &r);
    pl_tensor_release(v);
    v = s == PL_OK ? r : NULL;
  }
  PlTensor *in[2] = {full, v};
  if (s == PL_OK) s = pl_apply(&pl_op_copy, in, 2, NULL, res);
  pl_tensor_release(res[0]);
  pl_tensor_release(v);
  pl_state.key_ceiling = ceiling;
  return s;
}

PlStatus pl_batch_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *y) {
  PlBatch *b;
  PlTensor *full, *all[PL_MAX_IN + 1], *res[PL_MAX_OUT];
  bool tracked;
  if (nin > PL_MAX_IN) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: in place on many tensors inside vmap", op->name);
  memcpy(all, in, (size_t)nin * sizeof *all);
  all[nin] = y;
  PL_TRY(target(op, all, nin + 1, y, &b, &full));
  PL_TRY(tracked_inside(b, all, nin + 1, &tracked));
  if (tracked) PL_TRY(pl_inplace_check(op->name, y));
  PlTensor *old = NULL; /* gradients may read what is overwritten */
  PlStatus s = pl_apply(&pl_op_clone, &y, 1, NULL, &old);
  for (int i = 0; i < nin; i++)
    if (in[i] == y) all[i] = old;
  if (s == PL_OK) s = pl_apply(op, all, nin, attrs, res);
  pl_tensor_release(old);
  PL_TRY(s);
  if (pl_is_batched(res[0]) && pl_batched(res[0])->born > b->born) s = pl_batch_random_into(op, y);
  if (s == PL_OK) s = store(b, full, res[0]);
  if (s == PL_OK && tracked) s = install(b, y, res[0]);
  pl_tensor_release(res[0]);
  return s;
}

/* The op on one element after the other. */
static PlStatus mutate_elements(const PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs) {
  PlBatchCall c;
  PlTensor *args[PL_MAX_IN];
  PL_TRY(begin(&c, b, op, in, nin, attrs, NULL));
  pl_state.batch_loops++;
  PlStatus s = PL_OK;
  for (int64_t i = 0; i < c.n && s == PL_OK; i++) {
    PlTensor *res[PL_MAX_OUT] = {NULL};
    for (int k = 0; k < nin; k++) args[k] = c.full[k] ? NULL : in[k];
    for (int k = 0; k < nin && s == PL_OK; k++)
      if (c.full[k]) s = element(c.full[k], i, &args[k]);
    if (s == PL_OK) s = pl_apply(op, args, nin, attrs, res);
    for (int k = 0; k < nin; k++)
      if (c.full[k]) pl_tensor_release(args[k]);
    pl_release_all(res, op->nout);
  }
  end(&c);
  return s;
}

/* What it means for the values, and for keys outside of the batch. */
static PlStatus mutate(PlBatch *b, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *full) {
  if ((op->flags & PL_F_SETS) && nin == 2) return store(b, full, in[1]);
  const bool same = (op->flags & PL_F_SEEDED) && b->random == PL_RANDOM_SAME;
  if (op->flags & PL_F_SEEDED) PL_TRY(pl_batch_random_asks(op, b));
  if (same && pl_state.trace) PL_TRY(same_in_graph(op));
  PlTensor *res[PL_MAX_OUT] = {NULL};
  uint64_t ceiling = pl_state.key_ceiling;
  PlBatch *running = pl_state.batch;
  pl_state.key_ceiling = ~b->born;
  pl_state.batch = b->outer;
  PlTensor *one = NULL, *copy = NULL; /* what one element draws, for all */
  PlStatus s = same && b->size > 0 ? element(full, 0, &one) : PL_OK;
  if (s == PL_OK && one) s = pl_apply(&pl_op_clone, &one, 1, NULL, &copy);
  if (s == PL_OK && nin > 1) s = mutate_elements(b, op, in, nin, attrs);
  else if (s == PL_OK && (copy || !same)) s = pl_apply(op, copy ? &copy : &full, 1, attrs, res);
  pl_state.batch = running;
  pl_state.key_ceiling = ceiling;
  if (s == PL_OK && copy) s = store(b, full, copy);
  pl_tensor_release(one);
  pl_tensor_release(copy);
  pl_tensor_release(res[0]);
  return s;
}

PlStatus pl_batch_mutate(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs) {
  PlBatch *b;
  PlTensor *full, *y = in[0], *args[PL_MAX_IN], *fresh = NULL;
  bool tracked;
  if (op->nin == PL_VARIADIC || nin > PL_MAX_IN) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: not inside vmap", op->name);
  PL_TRY(target(op, in, nin, y, &b, &full));
  PL_TRY(tracked_inside(b, in, nin, &tracked));
  if (!tracked) return mutate(b, op, in, nin, attrs, full);
  if (!op->grad) return pl_call_no_history(op, y);
  PL_TRY(pl_inplace_check(op->name, y));
  memcpy(args, in, (size_t)nin * sizeof *args);
  PL_TRY(pl_apply(&pl_op_clone, &y, 1, NULL, &args[0])); /* history before the change hangs on it */
  PlStatus s = mutate(b, op, in, nin, attrs, full);
  if (s == PL_OK) s = pl_tensor_alias(&fresh, y);
  if (s == PL_OK) {
    const uint64_t floor = pl_state.key_floor;
    pl_state.key_floor = b->born;
    s = pl_record(op, args, nin, attrs, &fresh);
    pl_state.key_floor = floor;
  }
  if (s == PL_OK) s = install(b, y, fresh);
  pl_tensor_release(fresh);
  pl_tensor_release(args[0]);
  return s;
}
