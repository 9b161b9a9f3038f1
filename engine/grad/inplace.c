/* SPDX-License-Identifier: MIT
 * In-place ops and history. A view holds its base: the handle from which the first view was taken. Both, and all
 * other views of that base, are a family: writing through a view replaces a window of the base, so the base's history
 * becomes strided_put(old base, new window) and the view's becomes a view of that. Other views carry an older history
 * number and are taken from the base again at their next use. detach() begins a family of its own in the same memory:
 * nothing that is recorded for one of the two becomes part of the other. */
#include "engine/call/thread_state.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/gradient_graph.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"

static bool is_leaf(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  return t->node && pl_state.ambient && pl_entry_get(t, pl_state.ambient, &n, &slot) && n->kind == PL_NODE_LEAF &&
         (n->u.target == t || !n->u.target); /* which is cut when the leaf's last Lua object goes */
}

/* Dims of a base in the order in which its elements are in memory, largest stride first; false if they leave gaps. */
static bool memory_order(const PlArray *a, int64_t *order) {
  int n = 0;
  for (int d = 0; d < a->ndim; d++) {
    int i = n++;
    for (; i > 0 && a->strides[order[i - 1]] < a->strides[d]; i--) order[i] = order[i - 1];
    order[i] = d;
  }
  int64_t stride = 1;
  for (int i = n - 1; i >= 0; i--) {
    if (a->shape[order[i]] != 1 && a->strides[order[i]] != stride) return a->numel == 0;
    stride *= a->shape[order[i]];
  }
  return true;
}

PlStatus pl_inplace_leaf(const char *op, const PlTensor *t, bool view) {
  if (t->a.symbolic)
    PL_FAIL(PL_ERR_TRACE,
            "%s: %s is %san argument of the traced function, or a tensor from outside, that requires a gradient; a trace cannot continue "
            "the history that it has there: work on a clone, or change it inside T.no_grad()",
            op, pl_desc_text(&t->a), view ? "a view of " : "");
  PL_FAIL(PL_ERR_STATE,
          "%s: %s is %sa leaf that requires a gradient; change it inside T.no_grad(), or work on a "
          "clone",
          op, pl_desc_text(&t->a), view ? "a view of " : "");
}

PlStatus pl_inplace_check(const char *op, const PlTensor *t) {
  const PlTensor *base = t->base;
  int64_t order[PL_MAX_DIM];
  if (is_leaf(t) || (base && is_leaf(base))) return pl_inplace_leaf(op, t, !is_leaf(t));
  if (PL_UNLIKELY(t->flags & PL_T_FOREIGN))
    PL_FAIL(PL_ERR_STATE,
            "%s: %s is the result of a rule (or a view of one) in memory that is not its own, such as an argument's; let the rule return a "
            "copy, x:clone(), or work on a clone",
            op, pl_desc_text(&t->a));
  if (PL_UNLIKELY(base && !base->a.contiguous && !memory_order(&base->a, order)))
    PL_FAIL(PL_ERR_STATE,
            "%s: %s is a view of %s, which has gaps in memory (it was detached so, or vmap maps another dimension than the first), so "
            "its history cannot be followed; take views of a contiguous tensor, or work on a clone",
            op, pl_desc_text(&t->a), pl_desc_text(&base->a));
  return PL_UNLIKELY(pl_watched()) ? pl_checkpoint_rewrites(op, t) : PL_OK;
}

/* In one key: see unsave. */
static PlStatus unsave_in(const PlKey *key, PlTensor *t, PlTensor **alias) {
  if (key->forward) return PL_OK; /* saves nothing */
  PlNode *own = NULL;
  uint32_t slot;
  pl_entry_get(t, key, &own, &slot);
  for (PlNode *n = key->tape.prev; n != &key->tape && n != own; n = n->prev)
    for (uint32_t i = 0; i < n->nsaved; i++) {
      if (n->saved[i].t != t) continue;
      if (!*alias) PL_TRY(pl_tensor_alias(alias, t));
      n->saved[i].t = pl_retain(*alias);
      pl_tensor_release(t);
    }
  return PL_OK;
}

/* Nodes since t's own that saved this very handle would keep alive the history that t gets now, or with a later write, and be
 * kept alive by it. They get an alias with the old history. Without memory for it nothing is wrong but the cycle. */
static void unsave(PlTensor *t, const PlTensor *fresh) {
  PlTensor *alias = NULL;
  const PlEntry after = {.next = fresh->more, .node = fresh->node}, before = {.next = t->more, .node = t->node};
  const PlEntry *lists[2] = {&before, &after};
  PlNode *had;
  uint32_t slot;
  PlStatus s = PL_OK;
  for (int k = 0; k < 2; k++)
    for (const PlEntry *e = lists[k]; e && e->node && s == PL_OK; e = e->next) {
      if (!e->node->key || (k == 1 && pl_entry_get(t, e->node->key, &had, &slot))) continue;
      s = unsave_in(e->node->key, t, &alias);
    }
  if (alias) (void)pl_entries_copy(alias, t, NULL);
  if (!pl_state.keys) t->flags &= (uint16_t)~PL_T_SAVED; /* a key that tracks neither may have saved it, too */
  pl_tensor_release(alias);
}

/* Keys that do not record now, as inside no_grad, know nothing of the write and keep what they had. */
static PlStatus keep_others(const PlTensor *to, PlTensor *from) {
  PlEntry first = {.next = to->more, .node = to->node, .slot = to->slot};
  for (const PlEntry *e = &first; e && e->node; e = e->next) {
    PlNode *n;
    uint32_t slot;
    if (!e->node->key || !e->node->key->active || pl_key_records(e->node->key)) continue;
    if (!pl_entry_get(from, e->node->key, &n, &slot)) PL_TRY(pl_entry_set(from, e->node, e->slot));
  }
  return PL_OK;
}

PlStatus pl_history_move(PlTensor *to, PlTensor *from) {
  PlNode *had = NULL;
  uint32_t slot = 0;
  PL_TRY(keep_others(to, from));
  if (to->flags & PL_T_SAVED) unsave(to, from);
  const bool hooked = to->node && pl_state.ambient && pl_entry_get(to, pl_state.ambient, &had, &slot) && had->hooked;
  if (hooked) had->refs++;
  PlStatus s = PL_OK;
  if (PL_LIKELY(from->refs == 1)) pl_entries_move(to, from);
  else { /* who holds it, as an op of its tangent that saved it, needs its history, too */ pl_entries_drop(to);
    s = pl_entries_copy(to, from, NULL);
  }
  if (hooked) {
    if (s == PL_OK) pl_hooks_follow(to, had, slot);
    pl_node_release(had);
  }
  return s;
}

PlStatus pl_history_alias(PlTensor **out, PlTensor *t) {
  if (!t->base && !t->more && t->node && t->node->kind == PL_NODE_LEAF) { /* without a history it may get one: not kept */
    *out = pl_retain(t);
    return PL_OK;
  }
  PlTensor *alias;
  PL_TRY(pl_tensor_alias(&alias, t));
  alias->a.weak = t->a.weak;
  PlStatus s = pl_entries_copy(alias, t, NULL);
  if (s == PL_OK) *out = alias;
  else pl_tensor_release(alias);
  return s;
}

/* Windows are ranges of memory, so a base whose elements are in another order than row-major, say channels last, is seen
 * permuted, in memory order. out[0]: the base, or that view of it with its history; attrs: how to turn it back. */
static PlStatus as_stored(PlTensor *base, PlTensor **out, PlAttrs *back) {
  PlAttrs a;
  const int n = base->a.ndim;
  int64_t there[PL_MAX_DIM], home[PL_MAX_DIM];
  if (base->a.contiguous) {
    *out = pl_retain(base);
    return PL_OK;
  }
  if (!memory_order(&base->a, there))
    PL_FAIL(PL_ERR_STATE,
            "a view of %s was used after that had changed in place; it has gaps in memory, so take the view "
            "again, or of a contiguous tensor",
            pl_desc_text(&base->a));
  for (int d = 0; d < n; d++) home[there[d]] = d;
  pl_attrs_init(&pl_op_permute, &a);
  pl_attrs_init(&pl_op_permute, back);
  PL_TRY(pl_attrs_list(&a, 0, n, there));
  PL_TRY(pl_attrs_list(back, 0, n, home));
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  for (int d = 0; d < n; d++) {
    shape[d] = base->a.shape[there[d]];
    strides[d] = base->a.strides[there[d]];
  }
  if (PL_UNLIKELY(pl_is_batched(base))) PL_TRY(pl_batch_window(out, base, n, shape, strides));
  else PL_TRY(pl_tensor_window(out, base, n, shape, strides, base->a.data));
  PlStatus s = pl_record(&pl_op_permute, &base, 1, &a, out);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

/* Where t is in its base. */
static PlStatus window_attrs(const PlOp *op, PlTensor *t, PlTensor *base, PlAttrs *a) {
  const PlTensor *behind = pl_behind(t);
  pl_attrs_init(op, a);
  PL_TRY(pl_attrs_list(a, 0, t->a.ndim, t->a.shape));
  PL_TRY(pl_attrs_list(a, 1, t->a.ndim, t->a.strides));
  pl_attrs_int(a, 2,
               behind->a.symbolic ? pl_sym_offset(behind, pl_behind(base))
                                  : ((char *)t->a.data - (char *)base->a.data) / (ptrdiff_t)pl_dtype_size((PlDtype)t->a.dtype));
  return PL_OK;
}

/* t's entries := those of a view of the base, as it is now, for every key: also those that are off at the moment. */
static PlStatus take_from_base(PlTensor *t, PlTensor *base) {
  PlAttrs a, back;
  PlTensor *fresh = NULL, *flat = NULL;
  PL_TRY(window_attrs(&pl_op_as_strided, t, base, &a));
  bool was = pl_state.bookkeeping;
  pl_state.bookkeeping = true;
  PlStatus s = as_stored(base, &flat, &back);
  if (s == PL_OK) s = pl_tensor_alias(&fresh, t);
  if (s == PL_OK) s = pl_record(&pl_op_as_strided, &flat, 1, &a, &fresh);
  if (s == PL_OK) s = pl_history_move(t, fresh);
  if (s == PL_OK) t->history = base->history; /* also where it has no entries */
  pl_state.bookkeeping = was;
  pl_tensor_release(fresh);
  pl_tensor_release(flat);
  return s;
}

PlStatus pl_history_refresh(PlTensor *t) {
  if (PL_UNLIKELY(t->flags & PL_T_FOREIGN) && t->history != t->storage->version && (t->node || t->more))
    PL_FAIL(PL_ERR_STATE,
            "%s is the result of a rule (or a view of one) in memory that is not its own, such as an argument's, and was changed in place "
            "since; let the rule return a copy, x:clone(), or change a copy",
            pl_desc_text(&t->a));
  if (!pl_history_old(t)) return PL_OK;
  struct PlCheckpoint *running = pl_state.checkpoint;
  if (PL_UNLIKELY(running != NULL) && pl_checkpoint_foreign(t->storage)) pl_set_checkpoint(NULL); /* no work of its function */
  PlStatus s = take_from_base(t, t->base);
  pl_set_checkpoint(running);
  return s;
}

static PlStatus into_base(PlTensor *t, PlTensor *base, PlTensor *fresh) {
  PlAttrs a, back;
  PlTensor *old = NULL, *flat = NULL, *put = NULL, *now = NULL;
  PL_TRY(window_attrs(&pl_op_strided_put, t, base, &a));
  PlStatus s = pl_tensor_alias(&old, base);
  if (s == PL_OK) s = pl_entries_copy(old, base, NULL);
  if (s == PL_OK) s = as_stored(old, &flat, &back);
  if (s == PL_OK) s = pl_tensor_alias(&put, flat);
  PlTensor *in[2] = {flat, fresh};
  if (s == PL_OK) s = pl_record(&pl_op_strided_put, in, 2, &a, &put);
  if (s == PL_OK && base->a.contiguous) {
    now = put;
    put = NULL;
  } else if (s == PL_OK) {
    s = pl_tensor_alias(&now, base);
    if (s == PL_OK) s = pl_record(&pl_op_permute, &put, 1, &back, &now);
  }
  if (s == PL_OK) {
    s = pl_history_move(base, now);
    if (s == PL_OK) base->history++;
    if (s == PL_OK) s = take_from_base(t, base);
  }
  pl_tensor_release(old);
  pl_tensor_release(flat);
  pl_tensor_release(put);
  pl_tensor_release(now);
  return s;
}

PlStatus pl_inplace_install(PlTensor *t, PlTensor *fresh) {
  if (PL_UNLIKELY(pl_watched())) PL_TRY(pl_checkpoint_rewrites("in-place edit", t));
  pl_state.history_moved = true;
  if (t->base) return into_base(t, t->base, fresh);
  PL_TRY(pl_history_move(t, fresh));
  t->history++;
  return PL_OK;
}
