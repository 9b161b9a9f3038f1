/* SPDX-License-Identifier: MIT
 * Writing to symbolic tensors: in-place ops become out-of-place ones whose result the handle names from then on, except on
 * leaves, whose memory is really written. */
#include "engine/grad/node.h"
#include "engine/graph/symbolic.h"

/* ---- writing ------------------------------------------------------------------------------------------- */

static bool is_leaf_store(const PlFlow *f, int32_t store) { return f->vals[f->stores[store].first].kind != PL_FV_NODE; }

static bool covers(const PlFlow *f, const PlTensor *t) {
  const PlFStore *s = &f->stores[pl_sym_storage(t)->store];
  return t->a.contiguous && t->a.numel * (int64_t)pl_dtype_size((PlDtype)t->a.dtype) == s->bytes;
}

/* A node that writes into leaf memory; its new values become the newest of their stores. */
static PlStatus write_leaf(PlFlow *f, PlCall *c, PlTensor *const *targets) {
  int32_t node;
  PL_TRY(pl_sym_node(f, c, PL_FN_MUTATES, &node));
  for (int32_t k = 0; k < f->nodes[node].nout; k++) {
    PlFVal v = f->nodes[node].first + k;
    PlFStore *st = &f->stores[f->vals[v].store];
    bool root = f->nodes[node].in[k] == st->root;
    f->vals[v].version = ++st->version;
    if (root)
      st->root = v;
    else if (st->root >= 0)
      st->root = -1; /* the whole is not known any more: other windows cannot be taken again */
    if (targets[k]) {
      pl_sym_point(targets[k], v);
      targets[k]->storage->version++;
    }
  }
  return PL_OK;
}

static PlStatus copy_into(PlFlow *f, PlTensor *t, PlTensor *v) {
  PlCall c;
  PlTensor *in[2] = {t, v};
  PL_TRY(pl_call_begin(&c, &pl_op_copy, in, 2, NULL));
  PlStatus s = pl_call_infer(&c);
  if (s == PL_OK) s = write_leaf(f, &c, &t);
  pl_call_end(&c);
  return s;
}

/* A handle on the whole of t's memory. */
static PlStatus root_of(PlFlow *f, const PlTensor *t, PlTensor **out) {
  const PlFStore *st = &f->stores[pl_sym_storage(t)->store];
  if (st->root < 0)
    PL_FAIL(PL_ERR_UNSUPPORTED, "a window of a tensor that the graph does not know as a whole was written; use the whole "
                                "tensor inside of the graph and take views there");
  return pl_sym_tensor(out, f, st->root);
}

/* The storage object of t and its views stands for another store from now on. */
static void move_storage(PlFlow *f, PlSymStorage *s, int32_t store) {
  if (s->store != store && f->stores[s->store].live == s) f->stores[s->store].live = NULL;
  s->store = store;
  f->stores[store].live = s; /* further views of it belong to t's family */
}

PlStatus pl_sym_assign(PlTensor *t, PlTensor *v) {
  PlFlow *f = pl_sym_flow(t);
  PlTensor *root = NULL, *now = NULL, *dense = NULL;
  PL_TRY(pl_sym_refresh(t));
  bool leaf = is_leaf_store(f, pl_sym_storage(t)->store), whole = covers(f, t);
  if (leaf && (whole || f->stores[pl_sym_storage(t)->store].root == pl_sym_value(t))) return copy_into(f, t, v);
  PlStatus s = PL_OK;
  PlFVal nv;
  PL_TRY(pl_sym_value_of(f, v, &nv));
  const PlFValue *val = &f->vals[nv];
  if (!v->a.symbolic || val->kind != PL_FV_NODE || !val->contiguous || is_leaf_store(f, val->store) ||
      pl_fvalue_bytes(val) != f->stores[val->store].bytes)
    s = pl_sym_apply(&pl_op_clone, &v, 1, NULL, &dense);
  else
    dense = pl_retain(v);
  PL_TRY(s);
  if (whole && !leaf)
    now = pl_retain(dense);
  else {
    s = root_of(f, t, &root);
    PlAttrs a;
    PlTensor *in[2] = {root, dense};
    int64_t at = s == PL_OK ? f->vals[pl_sym_value(t)].offset - f->vals[pl_sym_value(root)].offset : 0;
    if (s == PL_OK) s = pl_sym_window(&pl_op_strided_put, t, at, &a);
    if (s == PL_OK) s = pl_sym_apply(&pl_op_strided_put, in, 2, &a, &now);
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

PlStatus pl_sym_copy(PlTensor **out, PlTensor *t) {
  bool was = pl_grad_enable(false);
  PlStatus s = pl_sym_apply(&pl_op_clone, &t, 1, NULL, out);
  pl_grad_enable(was);
  return s;
}

/* copy_, fill_ and zero_ on values of the graph need no write: what they leave behind is known. */
static PlStatus overwritten(const PlOp *op, PlTensor *const *in, const PlAttrs *attrs, PlTensor **out) {
  PlTensor *y = in[0], *v = NULL;
  PlAttrs a;
  if (op == &pl_op_copy) {
    PlTensor *src = in[1], *cast = NULL;
    PlStatus s = PL_OK;
    if (src->a.dtype != y->a.dtype) {
      pl_attrs_init(&pl_op_cast, &a);
      pl_attrs_int(&a, 0, y->a.dtype);
      PL_TRY(pl_sym_apply(&pl_op_cast, &src, 1, &a, &cast));
      src = cast;
    }
    pl_attrs_init(&pl_op_expand, &a);
    s = pl_attrs_list(&a, 0, y->a.ndim, y->a.shape);
    if (s == PL_OK) s = pl_sym_apply(&pl_op_expand, &src, 1, &a, &v);
    pl_tensor_release(cast);
    PL_TRY(s);
    s = pl_sym_apply(&pl_op_clone, &v, 1, NULL, out);
    pl_tensor_release(v);
    return s;
  }
  pl_attrs_init(&pl_op_full, &a);
  PL_TRY(pl_attrs_list(&a, 0, y->a.ndim, y->a.shape));
  if (op == &pl_op_zero)
    pl_attrs_int(&a, 1, 0);
  else {
    a.v[1] = attrs->v[0];
    a.set |= 2;
    a.isint = (uint16_t)((a.isint & ~2) | ((attrs->isint & 1) << 1));
  }
  pl_attrs_int(&a, 2, y->a.dtype);
  return pl_sym_apply(&pl_op_full, NULL, 0, &a, out);
}

PlStatus pl_sym_mutate(PlFlow *f, PlCall *c, PlTensor **out) {
  const PlOp *op = c->op;
  bool variadic = op->nin == PL_VARIADIC;
  PlTensor *y = c->in[0], *res = NULL;
  if (c->made[0]) PL_FAIL(PL_ERR_DTYPE, "%s: input 0 would have to be cast", op->name);
  for (int o = 1; o < op->nout; o++) out[o] = NULL;
  PlStatus s = PL_OK;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.symbolic) PL_TRY(pl_sym_refresh(c->in[i]));
  const PlFStore *st = variadic ? NULL : &f->stores[pl_sym_storage(y)->store];
  bool leaf = !st || is_leaf_store(f, pl_sym_storage(y)->store);
  /* a part of a leaf that is known as a whole: the whole is put together and written */
  bool value = !leaf || (st && st->root >= 0 && st->root != pl_sym_value(y));
  if (value && (op == &pl_op_copy || op == &pl_op_fill || op == &pl_op_zero)) {
    s = overwritten(op, c->in, c->attrs, &res);
    if (s == PL_OK) s = pl_sym_assign(y, res);
  } else if (value) { /* on a copy, which the handle names from then on */
    s = pl_sym_apply(&pl_op_clone, &y, 1, NULL, &res);
    if (s == PL_OK) {
      c->in[0] = res;
      s = write_leaf(f, c, &res);
      c->in[0] = y;
    }
    if (s == PL_OK) s = pl_sym_assign(y, res);
  } else
    s = write_leaf(f, c, c->in);
  pl_tensor_release(res);
  if (s == PL_OK && op->nout > 0) out[0] = pl_retain(y);
  return s;
}
