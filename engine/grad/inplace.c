/* SPDX-License-Identifier: MIT
 * In-place ops and history. The storage knows its base: the handle that covers all of it and from which views
 * were taken. Writing through a view replaces a window of the base, so the base's history becomes
 * strided_put(old base, new window) and the view's becomes a view of that. Other views carry an older history
 * number and are taken from the base again at their next use. */
#include "engine/batch/batch.h"
#include "engine/grad/graph.h"
#include "engine/grad/node.h"
#include "engine/graph/graph.h"
#include "engine/layout.h"
#include "engine/state.h"

static bool is_leaf(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  return t->node && pl_state.ambient && pl_entry_get(t, pl_state.ambient, &n, &slot) && n->kind == PL_NODE_LEAF &&
         n->u.target == t;
}

PlStatus pl_inplace_check(const char *op, const PlTensor *t) {
  const PlTensor *base = t->storage->base;
  if (is_leaf(t) || (base && base != t && is_leaf(base)))
    PL_FAIL(PL_ERR_STATE, "%s: %s is %sa leaf that requires a gradient; change it inside T.no_grad(), or work on a "
                          "clone", op, pl_desc_text(&t->a), is_leaf(t) ? "" : "a view of ");
  return PL_OK;
}

/* Nodes since t's own that saved this very handle would keep alive the history that t gets now, and be kept alive
 * by it. They get an alias with the old history. Without memory for it nothing is wrong but the cycle. */
static void unsave(PlTensor *t, const PlTensor *fresh) {
  PlTensor *alias = NULL;
  PlEntry first = {.next = fresh->more, .node = fresh->node};
  for (const PlEntry *e = &first; e && e->node && e->node->key; e = e->next) {
    PlKey *key = e->node->key;
    PlNode *own = NULL;
    uint32_t slot;
    pl_entry_get(t, key, &own, &slot);
    for (PlNode *n = key->tape.prev; n != &key->tape && n != own; n = n->prev)
      for (uint32_t i = 0; i < n->nsaved; i++) {
        if (n->saved[i].t != t) continue;
        if (!alias && pl_tensor_alias(&alias, t) != PL_OK) return;
        n->saved[i].t = pl_retain(alias);
        pl_tensor_release(t);
      }
  }
  if (alias) {
    (void)pl_entries_copy(alias, t, NULL);
    alias->history = t->history;
  }
  pl_tensor_release(alias);
}

void pl_history_move(PlTensor *to, PlTensor *from) {
  if (to->refs > 1) unsave(to, from);
  pl_entries_move(to, from);
}

/* Windows are places in memory, so a base that is channels last is seen turned, [N,…,C], where it lies row-major. out[0]:
 * the base, or that view of it with its history; attrs: how to turn it back. */
static PlStatus as_it_lies(PlTensor *base, PlTensor **out, PlAttrs *back) {
  PlAttrs a;
  const int n = base->a.ndim;
  int64_t there[5], home[5];
  if (base->a.contiguous) {
    *out = pl_retain(base);
    return PL_OK;
  }
  for (int d = 0; d < n; d++) {
    there[d] = d == 0 ? 0 : d == n - 1 ? 1 : d + 1;
    home[there[d]] = d;
  }
  pl_attrs_init(&pl_op_permute, &a);
  pl_attrs_init(&pl_op_permute, back);
  PL_TRY(pl_attrs_list(&a, 0, n, there));
  PL_TRY(pl_attrs_list(back, 0, n, home));
  int64_t shape[5], strides[5];
  for (int d = 0; d < n; d++) {
    shape[d] = base->a.shape[there[d]];
    strides[d] = base->a.strides[there[d]];
  }
  PL_TRY(pl_tensor_window(out, base, n, shape, strides, base->a.data));
  PlStatus s = pl_record(&pl_op_permute, &base, 1, &a, out);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

/* Where t lies in its base. */
static PlStatus window_attrs(const PlOp *op, const PlTensor *t, const PlTensor *base, PlAttrs *a) {
  pl_attrs_init(op, a);
  PL_TRY(pl_attrs_list(a, 0, t->a.ndim, t->a.shape));
  PL_TRY(pl_attrs_list(a, 1, t->a.ndim, t->a.strides));
  pl_attrs_int(a, 2, t->a.symbolic ? pl_sym_offset(t, base)
                                   : ((char *)t->a.data - (char *)base->a.data) / (ptrdiff_t)pl_dtype_size((PlDtype)t->a.dtype));
  return PL_OK;
}

/* t's entries := those of a view of the base, as it is now. */
static PlStatus take_from_base(PlTensor *t, PlTensor *base) {
  PlAttrs a, back;
  PlTensor *fresh = NULL, *flat;
  PL_TRY(window_attrs(&pl_op_as_strided, t, base, &a));
  PL_TRY(as_it_lies(base, &flat, &back));
  PlStatus s = pl_tensor_alias(&fresh, t);
  if (s == PL_OK) s = pl_record(&pl_op_as_strided, &flat, 1, &a, &fresh);
  if (s == PL_OK) pl_history_move(t, fresh);
  pl_tensor_release(fresh);
  pl_tensor_release(flat);
  return s;
}

PlStatus pl_history_refresh(PlTensor *t) {
  PlStorage *st = t->storage;
  if (t->history == st->history) return PL_OK;
  PlTensor *base = st->base;
  if (base == t || pl_is_batched(t)) { /* what a batched handle stands for is brought up to date when it is used */
    t->history = st->history;
    return PL_OK;
  }
  if (!base || base->history != st->history) {
    if (!t->node && !t->more && pl_state.grad_off) return PL_OK;
    PL_FAIL(PL_ERR_STATE, "%s was changed in place through another tensor that shares its memory, and the tensor "
                          "both were taken from is gone; take the view again", pl_desc_text(&t->a));
  }
  return take_from_base(t, base);
}

static PlStatus into_base(PlTensor *t, PlTensor *base, PlTensor *fresh) {
  PlAttrs a, back;
  PlTensor *old = NULL, *flat = NULL, *put = NULL, *now = NULL;
  PL_TRY(window_attrs(&pl_op_strided_put, t, base, &a));
  PlStatus s = pl_tensor_alias(&old, base);
  if (s == PL_OK) s = pl_entries_copy(old, base, NULL);
  if (s == PL_OK) s = as_it_lies(old, &flat, &back);
  if (s == PL_OK) s = pl_tensor_alias(&put, flat);
  PlTensor *in[2] = {flat, fresh};
  if (s == PL_OK) s = pl_record(&pl_op_strided_put, in, 2, &a, &put);
  if (s == PL_OK && base->a.contiguous)
    now = pl_retain(put);
  else if (s == PL_OK) {
    s = pl_tensor_alias(&now, base);
    if (s == PL_OK) s = pl_record(&pl_op_permute, &put, 1, &back, &now);
  }
  if (s == PL_OK) {
    base->storage->history++;
    pl_history_move(base, now);
    s = take_from_base(t, base);
  }
  pl_tensor_release(old);
  pl_tensor_release(flat);
  pl_tensor_release(put);
  pl_tensor_release(now);
  return s;
}

PlStatus pl_inplace_install(PlTensor *t, PlTensor *fresh) {
  PlStorage *st = t->storage;
  PlTensor *base = st->base;
  pl_state.history_moved = true;
  if (base && base != t) return into_base(t, base, fresh);
  bool whole = (t->a.contiguous || pl_channels_last(&t->a)) && t->a.data == st->data &&
               t->a.numel * (int64_t)pl_dtype_size((PlDtype)t->a.dtype) == (int64_t)st->nbytes;
  if (!base && whole) st->base = t;
  st->history++;
  pl_history_move(t, fresh);
  return PL_OK;
}
