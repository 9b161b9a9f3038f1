/* SPDX-License-Identifier: MIT
 * Writing to symbolic tensors: in-place ops become out-of-place ones whose result the handle names from then on, except on
 * leaves, whose memory is really written. */
#include <stdlib.h>

#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/ops/names.h"

/* ---- writing ------------------------------------------------------------------------------------------- */

static bool is_leaf_store(const PlGraph *f, int32_t store) { return f->vals[f->stores[store].first].kind != PL_FV_NODE; }

bool pl_sym_constant(const PlTensor *t) { return !t->a.symbolic || is_leaf_store(pl_sym_graph(t), pl_sym_storage(t)->store); }

static bool covers(const PlGraph *f, const PlTensor *t) {
  const PlGStore *s = &f->stores[pl_sym_storage(t)->store];
  return t->a.contiguous && t->a.numel * (int64_t)pl_dtype_size((PlDtype)t->a.dtype) == s->bytes;
}

/* The same of a value, in whatever shape: the only row of a matrix is all of it. */
static bool covers_store(const PlGraph *f, PlGVal v) {
  const PlGValue *val = &f->vals[v];
  return val->contiguous && pl_gvalue_bytes(val) == f->stores[val->store].bytes;
}

/* Does t's memory have a history that this write is not to become a part of? Where gradients are off, or through a
 * detached handle. v may be NULL. */
static bool is_unknown(const PlGraph *f, PlTensor *t, PlTensor *v) {
  if (!f->record || !t->storage->has_history) return false;
  return pl_state.grad_off || !(pl_may_record(&t, 1) || (v && pl_may_record(&v, 1)));
}

/* The same of all that a node writes. */
static bool writes_unknown(const PlGraph *f, const PlCall *c, int nout) {
  bool known = false, history = false;
  for (int k = 0; f->record && k < c->nin; k++) {
    if (!c->in[k]) continue;
    PlTensor *t = c->in[k];
    history |= k < nout && t->a.symbolic && t->storage->has_history;
    known |= c->op->nin != PL_VARIADIC && !pl_state.grad_off && pl_may_record(&t, 1); /* steps of optimizers are recorded by nobody */
  }
  return history && !known;
}

/* Where memory is written through a handle that was detached, its history is what it was: that of what is behind. */
static void write_behind_stops(PlGraph *f, PlGNode *n) {
  for (int32_t k = 0; k < n->nout; k++) {
    const PlGValue *v = &f->vals[n->in[k]];
    if (v->kind == PL_FV_NODE && f->nodes[v->node].flags & PL_FN_VIEW && f->nodes[v->node].op->flags & PL_F_STOPS)
      n->in[k] = f->nodes[v->node].in[0];
  }
}

/* t, a detached handle, names the value without its history. */
static PlStatus stop_at(PlTensor *t) {
  PlTensor *stopped;
  PL_TRY(pl_sym_apply(&pl_op_stop_grad, &t, 1, NULL, &stopped));
  pl_sym_point(t, pl_sym_value(stopped));
  pl_tensor_release(stopped);
  return PL_OK;
}

/* A node that writes into leaf memory; its new values become the newest of their stores. */
static PlStatus write_leaf(PlGraph *f, PlCall *c, PlTensor *const *targets) {
  int32_t node;
  PL_TRY(pl_sym_node(f, c, PL_FN_MUTATES, &node));
  if (writes_unknown(f, c, f->nodes[node].nout)) f->nodes[node].flags |= PL_FN_THROUGH;
  if (f->nodes[node].flags & PL_FN_THROUGH) write_behind_stops(f, &f->nodes[node]);
  for (int32_t k = 0; k < f->nodes[node].nout; k++) {
    PlGVal v = f->nodes[node].first + k;
    PlGStore *st = &f->stores[f->vals[v].store];
    PlGVal was = f->nodes[node].in[k];
    bool root = was == st->root || covers_store(f, was);
    f->vals[v].version = ++st->version;
    if (root) st->root = v;
    else if (st->root >= 0) st->root = -1; /* the whole is not known any more: other windows cannot be taken again */
    if (targets[k]) {
      PL_TRY(pl_sym_writes(f, targets[k]));
      pl_sym_point(targets[k], v);
      targets[k]->storage->version++;
      if (targets[k]->flags & PL_T_DETACHED && f->nodes[node].flags & PL_FN_THROUGH) PL_TRY(stop_at(targets[k]));
    }
  }
  return PL_OK;
}

static PlStatus copy_into(PlGraph *f, PlTensor *t, PlTensor *v) {
  PlCall c;
  PlTensor *in[2] = {t, v};
  PL_TRY(pl_call_begin(&c, &pl_op_copy, in, 2, NULL));
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = write_leaf(f, &c, &t);
  pl_call_end(&c);
  return s;
}

/* A handle on the whole of t's memory. */
static PlStatus root_of(PlGraph *f, const PlTensor *t, PlTensor **out) {
  const PlGStore *st = &f->stores[pl_sym_storage(t)->store];
  if (st->root < 0)
    PL_FAIL(PL_ERR_TRACE, "a window of a tensor that the graph does not know as a whole was written; use the whole "
                          "tensor inside of the graph and take views there");
  return pl_sym_tensor(out, f, st->root);
}

/* The storage object of t and its views represents another store from now on. */
static void move_storage(PlGraph *f, PlSymStorage *s, int32_t store) {
  if (s->store != store && f->stores[s->store].live == s) f->stores[s->store].live = NULL;
  f->stores[store].layout_notes |= f->stores[s->store].layout_notes;
  s->store = store;
  f->stores[store].live = s; /* further views of it belong to t's family */
}

/* What is written is row-major, however v lies. */
static PlStatus clone_dense(PlTensor *v, PlTensor **out) {
  pl_state.row_major++;
  PlStatus s = pl_sym_apply(&pl_op_clone, &v, 1, NULL, out);
  pl_state.row_major--;
  return s;
}

/* history: what t was has one, which leads from what t becomes, with zeros, as on a tape. */
static PlStatus assign(PlTensor *t, PlTensor *v, bool history) {
  PlGraph *f = pl_sym_graph(t);
  PlTensor *root = NULL, *now = NULL, *dense = NULL;
  PL_TRY(pl_sym_refresh(t));
  PL_TRY(pl_sym_writes(f, t));
  bool leaf = is_leaf_store(f, pl_sym_storage(t)->store), whole = covers(f, t);
  if (leaf && (whole || f->stores[pl_sym_storage(t)->store].root == pl_sym_value(t))) return copy_into(f, t, v);
  bool recorded = f->record ? pl_may_record(&t, 1) || pl_may_record(&v, 1) : !leaf;
  if (PL_UNLIKELY(t->flags & PL_T_DETACHED) && recorded && !pl_state.grad_off)
    PL_FAIL(PL_ERR_TRACE,
            "%s was detached and is written while gradients are recorded: what it was detached from would "
            "get that history in a graph; write into a clone",
            pl_desc_text(&t->a));
  PlStatus s = PL_OK;
  PlGVal nv;
  PL_TRY(pl_sym_value_of(f, v, &nv));
  const PlGValue *val = &f->vals[nv];
  if (!v->a.symbolic || val->kind != PL_FV_NODE || !val->contiguous || is_leaf_store(f, val->store) ||
      pl_gvalue_bytes(val) != f->stores[val->store].bytes)
    s = clone_dense(v, &dense);
  else dense = pl_retain(v);
  PL_TRY(s);
  bool unknown = !leaf && is_unknown(f, t, v);
  if (whole && !leaf && !unknown && !history) now = pl_retain(dense);
  else {
    s = root_of(f, t, &root);
    PlAttrs a;
    PlTensor *in[2] = {root, dense};
    int64_t at = s == PL_OK ? f->vals[pl_sym_value(t)].offset - f->vals[pl_sym_value(root)].offset : 0;
    if (s == PL_OK) s = pl_sym_window(&pl_op_strided_put, t, at, &a);
    if (s == PL_OK) s = pl_sym_apply(&pl_op_strided_put, in, 2, &a, &now);
    if (s == PL_OK && unknown) f->nodes[f->vals[pl_sym_value(now)].node].flags |= PL_FN_THROUGH;
    if (s == PL_OK && leaf) s = copy_into(f, root, now);
  }
  if (s == PL_OK) {
    if (!leaf) move_storage(f, pl_sym_storage(t), f->vals[pl_sym_value(now)].store);
    t->storage->version++;
    s = pl_sym_refresh(t);
  }
  pl_tensor_release(root);
  pl_tensor_release(now);
  pl_tensor_release(dense);
  return s;
}

PlStatus pl_sym_assign(PlTensor *t, PlTensor *v) { return assign(t, v, false); }

/* A copy of t as it is, which carries its history on; the graph's own gradient pass goes through it, too. */
static PlStatus history_copy(PlGraph *f, PlTensor **out, PlTensor *t) {
  PL_TRY(pl_sym_copy(out, t));
  f->nodes[f->vals[pl_sym_value(*out)].node].flags &= (uint8_t)~PL_FN_NO_GRAD;
  PlStatus s = pl_entries_copy(*out, t, NULL);
  if (s == PL_OK) return PL_OK;
  pl_tensor_release(*out);
  *out = NULL;
  return s;
}

/* Computes op(in…) for a write into y; where gradients are recorded, with a copy in y's place: as apply_tracked does. */
static PlStatus compute_for(PlGraph *f, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *y, bool tracked,
                            PlTensor **r) {
  if (!tracked) return pl_sym_apply(op, in, nin, attrs, r);
  PlTensor *old = NULL, **args = malloc((size_t)(nin ? nin : 1) * sizeof *args);
  if (!args) return pl_call_no_memory(op);
  PlStatus s = history_copy(f, &old, y);
  for (int i = 0; i < nin; i++) args[i] = in[i] == y ? old : in[i];
  if (s == PL_OK) s = pl_sym_apply(op, args, nin, attrs, r);
  free(args);
  pl_tensor_release(old);
  return s;
}

/* As y's dtype. */
static PlStatus cast_like(PlTensor **r, const PlTensor *y) {
  PlAttrs to;
  PlTensor *cast;
  if ((*r)->a.dtype == y->a.dtype) return PL_OK;
  pl_attrs_init(&pl_op_cast, &to);
  pl_attrs_int(&to, 0, y->a.dtype);
  PL_TRY(pl_sym_apply(&pl_op_cast, r, 1, &to, &cast));
  pl_tensor_release(*r);
  *r = cast;
  return PL_OK;
}

/* A tensor from outside would carry the trace's history on when the trace is over. */
static PlStatus from_outside(const PlOp *op, const PlTensor *y) {
  PL_FAIL(PL_ERR_TRACE,
          "%s: %s comes from outside of the traced function, and what is written has a gradient; detach it, "
          "or make the tensor inside",
          op->name, pl_desc_text(&y->a));
}

static PlStatus apply_into(PlGraph *f, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *y) {
  PlTensor *r[PL_MAX_OUT], *target = NULL;
  bool tracked = false;
  if (f->record) PL_TRY(pl_call_tracked(op->name, in, nin, y, &tracked));
  if (tracked) PL_TRY(pl_inplace_check(op->name, y));
  if (tracked && !y->a.symbolic) return from_outside(op, y);
  PL_TRY(compute_for(f, op, in, nin, attrs, y, tracked, r));
  PlArray a = r[0]->a;
  PlDesc d = {.dtype = a.dtype};
  pl_desc_set(&d, (PlDtype)a.dtype, a.ndim, a.shape);
  PlStatus s = pl_call_check_target(op, y, &d);
  if (s == PL_OK) s = cast_like(r, y);
  if (s == PL_OK) s = pl_sym_enter(f, y, &target);
  if (s == PL_OK && !target->a.symbolic) s = pl_fail(PL_ERR_ARG, "%s: a constant cannot be written", op->name);
  if (s == PL_OK) s = pl_sym_assign(target, r[0]);
  if (s == PL_OK && tracked) s = pl_inplace_install(y, r[0]);
  pl_tensor_release(target);
  pl_tensor_release(r[0]);
  return s;
}

PlStatus pl_sym_apply_into(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out) {
  PlGraph *f = pl_sym_graph_of(in, nin);
  if (!f && out[0]->a.symbolic) f = pl_sym_graph(out[0]);
  const PlCalling calling = pl_calls_enter(f);
  const PlStatus s = apply_into(f, op, in, nin, attrs, out[0]);
  return pl_calls_leave(&calling, s, &(PlCallIs){.kind = PL_CALL_INTO, .op = op, .attrs = attrs, .in = {in, out}, .n = {nin, 1}});
}

PlStatus pl_sym_copy(PlTensor **out, PlTensor *t) {
  bool was = pl_grad_enable(false);
  PlStatus s = clone_dense(t, out);
  pl_grad_enable(was);
  return s;
}

PlStatus pl_sym_view(PlTensor **out, PlTensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset) {
  PlAttrs a;
  pl_attrs_init(&pl_op_as_strided, &a);
  PL_TRY(pl_attrs_list(&a, 0, ndim, shape));
  PL_TRY(pl_attrs_list(&a, 1, ndim, strides));
  pl_attrs_int(&a, 2, offset);
  return pl_apply(&pl_op_as_strided, &t, 1, &a, out);
}

/* The graph's own gradient pass hears of it as well. */
PlStatus pl_sym_detach(PlTensor **out, PlTensor *t) {
  const PlCalling calling = pl_calls_enter(pl_sym_graph(t));
  const PlStatus s = pl_apply(&pl_op_stop_grad, &t, 1, NULL, out);
  if (s == PL_OK) {
    pl_entries_drop(*out);
    pl_tensor_leave(*out);
    (*out)->flags |= PL_T_DETACHED;
  }
  return pl_calls_leave(&calling, s, &(PlCallIs){.kind = PL_CALL_DETACH, .in = {&t}, .n = {1}, .out = out, .nout = 1});
}

/* copy_, fill_ and zero_ on values of the graph need no write: what they leave behind is known. */
static PlStatus overwritten(const PlOp *op, PlTensor *const *in, const PlAttrs *attrs, PlTensor **out) {
  PlTensor *y = in[0], *v = NULL;
  PlAttrs a;
  if (op->nin == 2) {
    PlTensor *src = in[1], *cast = NULL, *moved = NULL;
    PlStatus s = PL_OK;
    if (src->a.device != y->a.device) {
      pl_attrs_init(&pl_op_to_device, &a);
      pl_attrs_int(&a, 0, y->a.device);
      PL_TRY(pl_sym_apply(&pl_op_to_device, &src, 1, &a, &moved));
      src = moved;
    }
    if (src->a.dtype != y->a.dtype) {
      pl_attrs_init(&pl_op_cast, &a);
      pl_attrs_int(&a, 0, y->a.dtype);
      s = pl_sym_apply(&pl_op_cast, &src, 1, &a, &cast);
      src = cast;
    }
    pl_attrs_init(&pl_op_expand, &a);
    if (s == PL_OK) s = pl_attrs_list(&a, 0, y->a.ndim, y->a.shape);
    if (s == PL_OK) s = pl_sym_apply(&pl_op_expand, &src, 1, &a, &v);
    pl_tensor_release(cast);
    pl_tensor_release(moved);
    PL_TRY(s);
    s = clone_dense(v, out);
    pl_tensor_release(v);
    return s;
  }
  pl_attrs_init(&pl_op_full, &a);
  PL_TRY(pl_attrs_list(&a, 0, y->a.ndim, y->a.shape));
  if (op->nattr == 0) pl_attrs_int(&a, 1, 0);
  else {
    a.v[1] = attrs->v[0];
    a.set |= 2;
    a.isint = (uint16_t)((a.isint & ~2) | ((attrs->isint & 1) << 1));
  }
  pl_attrs_int(&a, 2, y->a.dtype);
  const uint8_t was = pl_state.device;
  pl_state.device = y->a.device;
  PlStatus s = pl_sym_apply(&pl_op_full, NULL, 0, &a, out);
  pl_state.device = was;
  return s;
}

static PlStatus mutate(PlGraph *f, PlCall *c, PlTensor **out) {
  const PlOp *op = c->op;
  bool variadic = op->nin == PL_VARIADIC;
  PlTensor *y = c->in[0], *res = NULL;
  if (c->made[0]) PL_FAIL(PL_ERR_DTYPE, "%s: input 0 would have to be cast", op->name);
  for (int o = 1; o < op->nout; o++) out[o] = NULL;
  PlStatus s = PL_OK;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.symbolic) PL_TRY(pl_sym_refresh(c->in[i]));
  const PlGStore *st = variadic ? NULL : &f->stores[pl_sym_storage(y)->store];
  bool leaf = !st || is_leaf_store(f, pl_sym_storage(y)->store);
  /* a part of a leaf that is known as a whole: the whole is put together and written */
  bool value = !leaf || (st && st->root >= 0 && st->root != pl_sym_value(y));
  if (value && (op->flags & PL_F_SETS)) {
    s = overwritten(op, c->in, c->attrs, &res);
    if (s == PL_OK) s = assign(y, res, f->record && pl_may_record(&y, 1));
  } else if (value) { /* on a copy, which the handle names from then on */
    s = clone_dense(y, &res);
    if (s == PL_OK) {
      c->in[0] = res;
      s = write_leaf(f, c, &res);
      c->in[0] = y;
    }
    if (s == PL_OK) s = pl_sym_assign(y, res);
  } else s = write_leaf(f, c, c->in);
  pl_tensor_release(res);
  if (s == PL_OK && op->nout > 0) out[0] = pl_retain(y);
  return s;
}

PlStatus pl_sym_mutate(PlGraph *f, PlCall *c, PlTensor **out) {
  const PlOp *op = c->op;
  PlTensor *y = c->in[0], *old = NULL;
  bool tracked = false;
  for (int o = 0; o < op->nout; o++) out[o] = NULL; /* mutate may fail before it says so itself */
  for (int i = 0; i < (op->nin == PL_VARIADIC ? c->nin : 1); i++)
    if (!c->in[i]->a.symbolic) PL_FAIL(PL_ERR_ARG, "%s: input %d is a constant of the graph, which cannot be written", op->name, i + 1);
  if (f->record && op->nin != PL_VARIADIC) PL_TRY(pl_call_tracked(op->name, c->in, c->nin, y, &tracked));
  if (!tracked) return mutate(f, c, out);
  if (!op->grad) return pl_call_no_history(op, y);
  PL_TRY(pl_inplace_check(op->name, y));
  if (f->vals[f->stores[pl_sym_storage(y)->store].first].kind == PL_FV_CAPTURE) return from_outside(op, y);
  PlStatus s = history_copy(f, &old, y);
  if (s == PL_OK) s = mutate(f, c, out);
  if (s == PL_OK) s = pl_call_record_write(c, old);
  pl_tensor_release(old);
  if (s != PL_OK && op->nout > 0) pl_release_all(out, 1);
  return s;
}
