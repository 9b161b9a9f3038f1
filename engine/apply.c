/* SPDX-License-Identifier: MIT
 * Running one op: promote → infer → allocate → kernel → record. The hot path (pointwise, equal shapes and
 * dtypes, nothing tracked) does only what it must. */
#include <stdlib.h>
#include <string.h>

#include "engine/alloc.h"
#include "engine/autocast.h"
#include "engine/batch/batch.h"
#include "engine/device.h"
#include "engine/grad/graph.h"
#include "engine/grad/node.h"
#include "engine/graph/graph.h"
#include "engine/state.h"

enum { FEW = PL_MAX_IN };

typedef PlCall Call;

static const PlAttrs no_attrs;

static PlStatus no_memory(const PlOp *op) { PL_FAIL(PL_ERR_OOM, "%s: out of memory", op->name); }

/* ---- promotion ----------------------------------------------------------------------------------------- */

/* PyTorch's rule: tensors with dimensions decide within the highest class among them; 0-d tensors count only
 * when their class is higher, numbers only when theirs is higher still. */
static PlDtype promoted(const PlOp *op, PlTensor *const *in, int nin) {
  int best = -1;
  PlDtype by_rank[3] = {PL_NDTYPE, PL_NDTYPE, PL_NDTYPE};
  for (int i = 0; i < nin; i++) {
    if (!in[i] || (op->promote_mask && i < 8 && !((op->promote_mask >> i) & 1))) continue;
    int rank = in[i]->a.weak ? 0 : in[i]->a.ndim == 0 ? 1 : 2;
    PlDtype d = (PlDtype)in[i]->a.dtype;
    if (rank == 0) d = pl_is_float(d) ? pl_default_float() : d;
    by_rank[rank] = by_rank[rank] == PL_NDTYPE ? d : pl_promote2(by_rank[rank], d);
    if (rank > best) best = rank;
  }
  if (best < 0) return PL_F32;
  PlDtype r = by_rank[best];
  for (int rank = best - 1; rank >= 0; rank--) {
    PlDtype d = by_rank[rank];
    if (d == PL_NDTYPE) continue;
    int have = pl_is_float(r) ? 2 : r == PL_BOOL ? 0 : 1, add = pl_is_float(d) ? 2 : d == PL_BOOL ? 0 : 1;
    if (add > have) r = d;
  }
  if (op->promote == PL_PROMOTE_FLOAT && !pl_is_float(r)) r = pl_default_float();
  return r;
}

static PlStatus cast_input(Call *c, int i, PlDtype to) {
  PlTensor *t = c->in[i], *out;
  if (t->a.weak)
    PL_TRY(pl_number_as(&out, t, to));
  else {
    PlAttrs a;
    pl_attrs_init(&pl_op_cast, &a);
    pl_attrs_int(&a, 0, to);
    PL_TRY(pl_apply(&pl_op_cast, &t, 1, &a, &out));
  }
  c->in[i] = out;
  c->made[i] = true;
  return PL_OK;
}

static PlStatus promote(Call *c) {
  const PlOp *op = c->op;
  PlTensor *first = c->nin > 0 ? c->in[0] : NULL;
  c->compute = first ? (PlDtype)first->a.dtype : PL_F32;
  for (int i = 0; (op->flags & PL_F_NO_BOOL) && i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.dtype == PL_BOOL)
      PL_FAIL(PL_ERR_DTYPE, "%s: %s has no order or difference; use logical_xor, or convert: x:to(\"i64\")", op->name,
              pl_desc_text(&c->in[i]->a));
  if (op->promote == PL_PROMOTE_NONE) {
    for (int i = 0; i < c->nin; i++) /* a number stands for a tensor of input 0's dtype */
      if (c->in[i] && c->in[i]->a.weak && i > 0 && first && c->in[i]->a.dtype != first->a.dtype)
        PL_TRY(cast_input(c, i, (PlDtype)first->a.dtype));
    return PL_OK;
  }
  c->compute = promoted(op, c->in, c->nin);
  for (int i = 0; i < c->nin; i++) {
    if (!c->in[i] || (op->promote_mask && i < 8 && !((op->promote_mask >> i) & 1))) continue;
    if (c->in[i]->a.dtype != c->compute) PL_TRY(cast_input(c, i, c->compute));
  }
  return PL_OK;
}

/* ---- begin and end ----------------------------------------------------------------------------------------- */

void pl_call_end(Call *c) {
  for (int i = 0; i < c->nin; i++)
    if (c->made[i]) pl_tensor_release(c->in[i]);
  if (c->in != c->few_in) free(c->in);
}

static PlStatus bad_count(const PlOp *op, int nin) {
  if (op->nin == PL_VARIADIC) PL_FAIL(PL_ERR_ARG, "%s: a list of 1 to %d tensors, not %d", op->name, PL_MAX_VARIADIC, nin);
  PL_FAIL(PL_ERR_ARG, "%s: takes %d to %d tensors, not %d", op->name, op->nin - op->nopt, op->nin, nin);
}

static bool has_dims(const PlOp *op) {
  for (int k = 0; k < op->nattr; k++)
    if (op->attrs[k].type == PL_A_DIM || op->attrs[k].type == PL_A_NEWDIM || op->attrs[k].type == PL_A_DIMS ||
        !(op->attrs[k].has_def || op->attrs[k].optional))
      return true;
  return false;
}

PlStatus pl_call_begin(Call *c, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs) {
  c->op = op;
  int want = op->nin == PL_VARIADIC ? nin : op->nin;
  if (nin > want || (op->nin == PL_VARIADIC ? nin < 1 || nin > PL_MAX_VARIADIC : nin < op->nin - op->nopt))
    return bad_count(op, nin);
  c->nin = want;
  c->in = c->few_in;
  c->made = c->few_made;
  c->arr = c->few_arr;
  if (want > FEW) {
    size_t n = (size_t)want;
    char *m = malloc(n * (sizeof(PlTensor *) + sizeof(PlArray *) + sizeof(bool)));
    if (!m) return no_memory(op);
    c->in = (PlTensor **)(void *)m;
    c->arr = (const PlArray **)(void *)(m + n * sizeof(PlTensor *));
    c->made = (bool *)(m + n * (sizeof(PlTensor *) + sizeof(PlArray *)));
  }
  unsigned away = pl_state.device | (op->flags & PL_F_MOVES);
  for (int i = 0; i < want; i++) {
    c->in[i] = i < nin ? in[i] : NULL;
    c->made[i] = false;
    if (c->in[i]) away |= c->in[i]->a.device;
  }
  PlStatus s = PL_OK;
  c->device = PL_CPU;
  int required = op->nin == PL_VARIADIC ? nin : op->nin - op->nopt;
  for (int i = 0; i < required && s == PL_OK; i++)
    if (!in[i])
      s = pl_fail(PL_ERR_ARG, "%s: argument %s is missing", op->name, op->nin == PL_VARIADIC ? op->args[0] : op->args[i]);
  c->attrs = &no_attrs;
  if (op->nattr && s == PL_OK) {
    if (!attrs) {
      pl_attrs_init(op, &c->normal);
      attrs = &c->normal;
    }
    c->attrs = attrs;
    if (has_dims(op)) {
      PlAttrs raw;
      if (attrs == &c->normal) {
        memcpy(&raw, attrs, pl_attrs_size(attrs));
        attrs = &raw;
      }
      s = pl_attrs_normalize(op, attrs, want > 0 && c->in[0] ? &c->in[0]->a : NULL, &c->normal);
      c->attrs = &c->normal;
    }
  }
  if (PL_UNLIKELY(away != 0) && s == PL_OK) s = pl_call_place(c);
  if (s == PL_OK) s = promote(c);
  if (PL_UNLIKELY(c->device != PL_CPU) && s == PL_OK) s = pl_call_bring(c);
  for (int i = 0; i < want; i++) c->arr[i] = c->in[i] ? &c->in[i]->a : NULL;
  if (s != PL_OK) pl_call_end(c);
  return s;
}

PlStatus pl_call_infer(Call *c) {
  for (int o = 0; o < c->op->nout; o++) {
    c->desc[o].is_view = false;
    c->desc[o].ndim = 0;
    c->desc[o].dtype = (uint8_t)c->compute;
    c->desc[o].offset = 0;
  }
  if (PL_UNLIKELY(c->device != PL_CPU)) return pl_call_infer_device(c);
  PlInfer f = {.op = c->op, .attrs = c->attrs, .nin = c->nin, .in = c->arr, .compute = c->compute, .out = c->desc};
  return c->op->infer(&f);
}

/* ---- computing ------------------------------------------------------------------------------------------------ */

static PlStatus no_kernel(const PlOp *op) {
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: no kernel for device cpu", op->name);
}

/* Whether input i may stay one element that repeats: see PL_F_REPEATED. */
static bool repeats(const Call *c, int i) {
  const PlArray *a = c->arr[i];
  if (!(c->op->flags & PL_F_REPEATED) || i < c->op->nin - c->op->nopt || c->device != PL_CPU) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->strides[d] != 0 && a->shape[d] != 1) return false;
  return true;
}

/* Runs the kernel on contiguous copies of inputs where the op asks for that. */
static PlStatus run_kernel(Call *c, PlTensor *const *out) {
  const PlOp *op = c->op;
  PlKernel kernel = op->kernel[PL_CPU];
  if (!kernel && c->device == PL_CPU) return no_kernel(op);
  PlArray *dst[PL_MAX_OUT];
  for (int o = 0; o < op->nout; o++) dst[o] = out[o] ? &out[o]->a : NULL;
  PlTensor **copies = NULL;
  PlStatus s = PL_OK;
  const PlArray **arr = c->arr;
  if (op->flags & PL_F_CONTIGUOUS)
    for (int i = 0; i < c->nin && s == PL_OK; i++) {
      if (!c->in[i] || c->in[i]->a.contiguous || repeats(c, i)) continue;
      if (!copies) {
        copies = calloc((size_t)c->nin, sizeof *copies + sizeof *arr);
        if (!copies) return no_memory(op);
        arr = (const PlArray **)(void *)(copies + c->nin);
        memcpy((void *)arr, (const void *)c->arr, (size_t)c->nin * sizeof *arr);
      }
      s = pl_tensor_copy(&copies[i], c->in[i]);
      if (s == PL_OK) arr[i] = &copies[i]->a;
    }
  if (s == PL_OK) {
    PlkCall call = {.name = op->name, .code = op->kcode, .nin = c->nin, .nout = op->nout, .in = arr,
                    .out = dst, .attrs = c->attrs};
    uint64_t offset = pl_state.offset;
    if (op->flags & PL_F_SEEDED) call.rng = pl_rng_take(op->draws(&call));
    s = PL_LIKELY(c->device == PL_CPU) ? kernel(&call) : pl_call_run_device(op, &call);
    if (s != PL_OK && (op->flags & PL_F_SEEDED)) pl_state.offset = offset;
    if (PL_UNLIKELY(pl_state.profile != NULL)) pl_state.profile->work(pl_flops_made(op, c->attrs, arr, c->nin, dst));
  }
  for (int i = 0; copies && i < c->nin; i++) pl_tensor_release(copies[i]);
  free(copies);
  return s;
}

PlStatus pl_call_kernel(const PlOp *op, const PlAttrs *attrs, PlTensor *const *in, const PlArray **arr, int nin,
                        PlTensor *const *out) {
  Call c;
  c.op = op;
  c.attrs = attrs ? attrs : &no_attrs;
  c.nin = nin;
  c.in = (PlTensor **)(uintptr_t)in; /* read only */
  c.arr = arr;
  c.device = nin == 0 && op->nout > 0 && out[0] ? out[0]->a.device : PL_CPU;
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.device) c.device = in[i]->a.device;
  return run_kernel(&c, out);
}

static void release_all(PlTensor **out, int n) {
  for (int o = 0; o < n; o++) {
    pl_tensor_release(out[o]);
    out[o] = NULL;
  }
}

static PlStatus make_outputs(Call *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlStatus s = PL_OK;
  for (int o = 0; o < op->nout; o++) out[o] = NULL;
  if (op->nout > 0 && c->desc[0].is_view) {
    const PlDesc *d = &c->desc[0];
    PlTensor *t = c->in[0];
    char *data = (char *)t->a.data + d->offset * (int64_t)pl_dtype_size((PlDtype)t->a.dtype);
    if (!t->storage->base && !(t->flags & PL_T_DETACHED) && t->a.contiguous && t->a.data == t->storage->data &&
        t->a.numel * (int64_t)pl_dtype_size((PlDtype)t->a.dtype) == (int64_t)t->storage->nbytes)
      t->storage->base = t;
    return pl_tensor_window(&out[0], t, d->ndim, d->shape, d->strides, data);
  }
  for (int o = 0; o < op->nout && s == PL_OK; o++) {
    if (c->desc[o].dtype == PL_NDTYPE) continue; /* an output that this call does not have */
    s = pl_tensor_empty_on(&out[o], c->device, (PlDtype)c->desc[o].dtype, c->desc[o].ndim, c->desc[o].shape);
  }
  if (s == PL_OK) s = run_kernel(c, out);
  if (s != PL_OK) release_all(out, op->nout);
  return s;
}

/* Ops that always work on input 0: its contents change, its version moves. */
static PlStatus apply_mutating(Call *c, PlTensor **out);

static bool any_symbolic(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && in[i]->a.symbolic) return true;
  return false;
}

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
  if (s != PL_OK) release_all(out, op->nout);
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
  if (PL_UNLIKELY(any_symbolic(in, nin)) && !is_batch_call(op, in, nin)) return pl_sym_apply(op, in, nin, attrs, out);
  if (op->autocast && pl_state.autocast) return pl_autocast_apply(op, in, nin, attrs, out);
  if (op->expand && (!op->kernel[PL_CPU] || PL_UNLIKELY(expands_on_device(op, in, nin)))) return op->expand(in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  if (PL_UNLIKELY(pl_state.batch_busy != 0)) {
    bool done = false;
    PlStatus b = apply_batched(&c, out, &done);
    if (b == PL_OK && !done && (pl_state.trace || any_symbolic(in, nin))) { /* a draw that is the same for all */
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
    s = apply_mutating(&c, out);
  else if (s == PL_OK) {
    s = make_outputs(&c, out);
    if (s == PL_OK && !pl_state.grad_off && pl_may_record(c.in, c.nin)) {
      s = pl_record(op, c.in, c.nin, c.attrs, out);
      if (s != PL_OK) release_all(out, op->nout);
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
  PlkCall call = {.name = op->name, .code = op->kcode, .nin = nin, .nout = 1, .in = arr, .out = dst, .attrs = &no_attrs};
  PlStatus s = op->kernel[PL_CPU](&call);
  if (PL_LIKELY(s == PL_OK) && !pl_state.grad_off && pl_may_record(in, nin)) s = pl_record(op, in, nin, &no_attrs, &y);
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

/* ---- in place -------------------------------------------------------------------------------------------------- */

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
    PL_FAIL(PL_ERR_SHAPE, "%s: the result is %s, it cannot be written into %s", op->name, pl_desc_text(&want),
            pl_desc_text(&out->a));
  int from = pl_is_float((PlDtype)d->dtype) ? 2 : d->dtype == PL_BOOL ? 0 : 1;
  int to = pl_is_float((PlDtype)out->a.dtype) ? 2 : out->a.dtype == PL_BOOL ? 0 : 1;
  if (from > to)
    PL_FAIL(PL_ERR_DTYPE, "%s: the result %s cannot be stored in %s without loss; use the form that returns a new "
                          "tensor, or cast", op->name, pl_desc_text(&want), pl_desc_text(&out->a));
  if (pl_self_overlaps(&out->a))
    PL_FAIL(PL_ERR_STATE, "%s: %s is expanded, several of its elements share memory; write into a clone", op->name,
            pl_desc_text(&out->a));
  return PL_OK;
}

/* After a kernel that writes into t: whatever it refuses, it refuses before it writes; only Ctrl-C comes between. */
static PlStatus wrote(const PlOp *op, PlTensor *t, PlStatus s) {
  if (s == PL_OK || s == PL_ERR_INTERRUPT) t->storage->version++;
  if (s == PL_ERR_INTERRUPT) PL_FAIL(s, "%s: interrupted while writing; %s is partly new", op->name, pl_desc_text(&t->a));
  return s;
}

/* Computes into `out` (no history). The result passes through a temporary where dtype or overlap ask for it. */
static PlStatus compute_into(Call *c, PlTensor *out) {
  bool direct = c->desc[0].dtype == out->a.dtype && !c->desc[0].is_view && c->op->nout == 1 &&
                (out->a.contiguous || !(c->op->flags & PL_F_CONTIGUOUS));
  /* integer division meets its zeros on the way */
  if (!pl_is_float((PlDtype)out->a.dtype) &&
      (c->op == &pl_op_floor_divide || c->op == &pl_op_remainder || c->op == &pl_op_fmod))
    direct = false;
  for (int i = 0; i < c->nin && direct; i++)
    direct = !(c->in[i] && c->in[i]->storage == out->storage) ||
             ((c->op->cls == PL_POINTWISE || (i == 0 && (c->op->flags & PL_F_INPLACE))) && !hurts(out, c->in[i]));
  if (direct) return wrote(c->op, out, run_kernel(c, &out));
  PlTensor *tmp[PL_MAX_OUT];
  PL_TRY(make_outputs(c, tmp));
  PlStatus s = pl_copy_data(out, tmp[0]);
  release_all(tmp, c->op->nout);
  return s;
}

/* Tracked in-place: the op runs out of place on a copy that carries the old history, the data moves into
 * the old memory, the handle takes the new history. Exact for every op, whatever its gradient reads. */
static PlStatus apply_tracked(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *out) {
  PL_TRY(pl_inplace_check(op->name, out));
  PlTensor *old = NULL, *res[PL_MAX_OUT], **args = malloc((size_t)(nin ? nin : 1) * sizeof *args);
  if (!args) return no_memory(op);
  PlStatus s = pl_tensor_copy(&old, out);
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

/* Is any of these, or could any be once its history is brought up to date, tracked by a recording key? */
static PlStatus any_tracked(PlTensor *const *in, int nin, PlTensor *out, bool *yes) {
  *yes = false;
  if (pl_state.grad_off || !(pl_may_record(in, nin) || pl_may_record(&out, 1))) return PL_OK;
  PL_TRY(pl_history_refresh(out));
  *yes = pl_tracked(out);
  for (int i = 0; i < nin && !*yes; i++) {
    if (!in[i]) continue;
    PL_TRY(pl_history_refresh(in[i]));
    *yes = pl_tracked(in[i]);
  }
  return PL_OK;
}

static PlStatus apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out) {
  if (op->flags & PL_F_MUTATES) PL_FAIL(PL_ERR_ARG, "%s: has no out argument", op->name);
  if (op->nout != 1) PL_FAIL(PL_ERR_ARG, "%s: several results cannot be written in place", op->name);
  PlTensor *y = out[0];
  bool batched = pl_state.batch_busy != 0 && (pl_is_batched(y) || pl_any_batched(in, nin));
  if (PL_UNLIKELY(pl_state.trace || y->a.symbolic || any_symbolic(in, nin)) && !batched)
    return pl_sym_apply_into(op, in, nin, attrs, out);
  Call c;
  PL_TRY(pl_call_begin(&c, op, in, nin, attrs));
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = pl_call_check_target(op, y, &c.desc[0]);
  if (PL_UNLIKELY(pl_state.batch_busy != 0) && s == PL_OK && (pl_is_batched(y) || pl_any_batched(c.in, c.nin))) {
    s = pl_batch_into(op, c.in, c.nin, c.attrs, y);
    pl_call_end(&c);
    return s;
  }
  bool tracked = false;
  if (s == PL_OK) s = any_tracked(in, nin, y, &tracked);
  if (s == PL_OK && !tracked) s = compute_into(&c, y);
  pl_call_end(&c);
  if (s == PL_OK && tracked) s = apply_tracked(op, in, nin, attrs, y);
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->wrote(op->name, y->storage);
  return s;
}

PlStatus pl_apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out) {
  const PlProfile *p = pl_state.profile;
  if (PL_LIKELY(p == NULL)) return apply_into(op, in, nin, attrs, out);
  p->begin(op, 1);
  PlStatus s = apply_into(op, in, nin, attrs, out);
  p->end();
  return s;
}

static PlStatus apply_mutating(Call *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlTensor *y = c->in[0];
  if (c->made[0]) PL_FAIL(PL_ERR_DTYPE, "%s: input 0 would have to be cast", op->name);
  bool tracked = false, variadic = op->nin == PL_VARIADIC;
  if (!variadic) PL_TRY(any_tracked(c->in, c->nin, y, &tracked));
  if (tracked && !op->grad) {
    PL_TRY(pl_inplace_check(op->name, y));
    PL_FAIL(PL_ERR_STATE, "%s: cannot change %s while gradients are recorded; use T.no_grad()", op->name,
            pl_desc_text(&y->a));
  }
  if (!variadic && pl_self_overlaps(&y->a))
    PL_FAIL(PL_ERR_STATE, "%s: %s is expanded, several of its elements share memory; write into a clone", op->name,
            pl_desc_text(&y->a));
  PlTensor *copy = NULL, *target = y;
  if ((op->flags & PL_F_CONTIGUOUS) && !y->a.contiguous && !variadic) {
    PL_TRY(pl_tensor_copy(&copy, y));
    target = copy;
    c->arr[0] = &copy->a;
    c->in[0] = copy;
  }
  PlTensor *old = NULL;
  PlStatus s = PL_OK;
  if (tracked) {
    s = pl_inplace_check(op->name, y);
    if (s == PL_OK) s = pl_tensor_copy(&old, y); /* history before the change hangs on the copy */
    if (s == PL_OK) s = pl_entries_copy(old, y, NULL);
  }
  if (s == PL_OK) s = run_kernel(c, &target);
  if (!copy)
    s = wrote(op, y, s);
  else if (s == PL_OK)
    s = pl_copy_data(y, copy);
  if (copy) c->in[0] = y;
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->wrote(op->name, y->storage);
  for (int i = 1; variadic && i < c->nin; i++) c->in[i]->storage->version++;
  if (s == PL_OK && tracked) {
    PlTensor *fresh;
    s = pl_tensor_alias(&fresh, y);
    if (s == PL_OK) {
      c->in[0] = old;
      s = pl_record(op, c->in, c->nin, c->attrs, &fresh);
      c->in[0] = y;
      if (s == PL_OK) s = pl_inplace_install(y, fresh);
      pl_tensor_release(fresh);
    }
  }
  pl_tensor_release(old);
  pl_tensor_release(copy);
  if (s == PL_OK && op->nout > 0) out[0] = pl_retain(y);
  for (int o = 1; s == PL_OK && o < op->nout; o++) out[o] = NULL;
  return s;
}
