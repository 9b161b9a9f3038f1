/* SPDX-License-Identifier: MIT
 * Recording: one forward, then one node on the tape of every key that tracks an input. A failure leaves no
 * node behind. See docs/design and autograd notes in node.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/forward_mode.h"
#include "engine/grad/gradient_graph.h"
#include "engine/grad/node.h"
#include "engine/grad/saved_tensors_hooks.h"
#include "engine/tensor/alloc.h"

/* Keys that record one op: rarely more than one or two, but scripts may nest them at will. */
typedef struct Keys {
  PlKey **at, *few[8];
  int n, room;
} Keys;

static PlStatus more_room(Keys *k) {
  PlKey **m = malloc((size_t)k->room * 2 * sizeof *m);
  if (!m) PL_FAIL(PL_ERR_OOM, "out of memory for a gradient node");
  memcpy((void *)m, (void *)k->at, (size_t)k->n * sizeof *m);
  if (k->at != k->few) free(k->at);
  k->at = m;
  k->room *= 2;
  return PL_OK;
}

static void keys_free(Keys *k) {
  if (PL_UNLIKELY(k->at != k->few)) free(k->at);
}

static PlStatus add_key(Keys *k, PlKey *key) {
  for (int i = 0; i < k->n; i++)
    if (k->at[i] == key) return PL_OK;
  if (PL_UNLIKELY(k->n == k->room)) PL_TRY(more_room(k));
  int i = k->n++;
  for (; i > 0 && k->at[i - 1]->level > key->level; i--) k->at[i] = k->at[i - 1];
  k->at[i] = key;
  return PL_OK;
}

/* Distinct recording keys of the inputs, lowest level first: a higher key's saved outputs then carry the
 * entries of the lower ones. keys_free when it succeeded. */
static PlStatus collect_keys(PlTensor *const *in, int nin, Keys *keys) {
  keys->at = keys->few;
  keys->n = 0;
  keys->room = sizeof keys->few / sizeof *keys->few;
  for (int i = 0; i < nin; i++) {
    if (!in[i] || !(in[i]->node || in[i]->more) || !pl_tracked(in[i])) continue;
    PlEntry first = {.next = in[i]->more, .node = in[i]->node};
    for (PlEntry *e = &first; e; e = e->next) {
      PlStatus s = pl_key_records(e->node->key) ? add_key(keys, e->node->key) : PL_OK;
      if (s == PL_OK) continue;
      keys_free(keys);
      return s;
    }
  }
  return PL_OK;
}

/* The node of a call inside of a checkpoint: a new one, or forward's (*again), where the function runs again. */
__attribute__((noinline)) static PlStatus checkpoint_node_for(PlNode **out, bool *again, PlKey *key, PlNodeKind kind, const PlOp *op,
                                                              const char *name, PlTensor *const *in, uint32_t nin, uint32_t nout,
                                                              uint32_t nsaved) {
  *out = NULL;
  PL_TRY(pl_checkpoint_node(out, key, name, in, (int)nin));
  *again = *out != NULL;
  if (*again && ((*out)->kind != kind || (*out)->nsaved != nsaved || (*out)->nin != nin || (*out)->nout != nout)) {
    pl_node_release(*out);
    PL_FAIL(PL_ERR_STATE, "checkpoint: run again, the function's %s has another gradient rule than in forward", name);
  }
  if (*again) return PL_OK;
  PL_TRY(pl_node_new(out, key, kind, nin, nout, nsaved));
  (*out)->op = op;
  (*out)->name = name;
  PlStatus s = pl_checkpoint_made(*out);
  if (s != PL_OK) pl_node_release(*out);
  return s;
}

/* The node of this call. */
static inline PlStatus node_for(PlNode **out, bool *again, PlKey *key, PlNodeKind kind, const PlOp *op, const char *name,
                                PlTensor *const *in, uint32_t nin, uint32_t nout, uint32_t nsaved) {
  if (PL_UNLIKELY(pl_state.checkpoint != NULL)) return checkpoint_node_for(out, again, key, kind, op, name, in, nin, nout, nsaved);
  *again = false;
  PL_TRY(pl_node_new(out, key, kind, nin, nout, nsaved));
  (*out)->op = op;
  (*out)->name = name;
  return PL_OK;
}

/* Nodes of a checkpoint save nothing that its function makes again. */
static inline bool keeps(PlNode *n, uint32_t i, const PlTensor *t) {
  return PL_LIKELY(n->checkpoint == NULL) || pl_checkpoint_keeps(n, i, t);
}

/* A view is saved as an alias with its entries: it would hold its base, whose history may come to hold this node. */
static PlStatus save_as_it_is(PlNode *n, uint32_t i, PlTensor *t, int32_t relink) {
  PlTensor *alias = t;
  if (PL_UNLIKELY(t->base != NULL)) {
    PL_TRY(pl_tensor_alias(&alias, t));
    alias->a.weak = t->a.weak;
    PlStatus s = pl_entries_copy(alias, t, NULL);
    if (s != PL_OK) {
      pl_tensor_release(alias);
      return s;
    }
  } else {
    pl_retain(t);
    t->flags |= PL_T_SAVED;
  }
  n->saved[i] = (PlSaved){.t = alias, .version = t->storage->version, .relink = relink};
  return PL_OK;
}

/* Saves t as pl_state.packing wants it. */
static PlStatus save_packed(PlNode *n, uint32_t i, PlTensor *t, int32_t relink) {
  PlPacked *p;
  PL_TRY(pl_packed_make(&p, t, relink >= 0 ? n->key : NULL));
  if (!p) return save_as_it_is(n, i, t, relink);
  PlSavedPacked *s = pl_pool_get(sizeof *s);
  if (!s) {
    pl_packed_free(p);
    PL_FAIL(PL_ERR_OOM, "%s: out of memory for a saved tensor", n->name);
  }
  *s = (PlSavedPacked){.value = p, .relink = relink};
  n->saved[i] = (PlSaved){.t = NULL};
  n->saved[i].packed = s;
  return PL_OK;
}

static inline PlStatus save(PlNode *n, uint32_t i, PlTensor *t) {
  if (PL_LIKELY(!pl_state.packing && !n->checkpoint && !t->base)) {
    n->saved[i] = (PlSaved){.t = pl_retain(t), .version = t->storage->version, .relink = -1};
    t->flags |= PL_T_SAVED;
    return PL_OK;
  }
  if (!keeps(n, i, t)) return PL_OK;
  return pl_state.packing ? save_packed(n, i, t, -1) : save_as_it_is(n, i, t, -1);
}

/* An output that its own node keeps is kept as an alias without this key's entry: no cycle. */
static PlStatus save_output(PlNode *n, uint32_t i, PlTensor *t, int slot) {
  PlTensor *alias;
  if (!keeps(n, i, t)) return PL_OK;
  PL_TRY(pl_tensor_alias(&alias, t));
  PlStatus s = pl_entries_copy(alias, t, n->key);
  if (s == PL_OK) s = PL_UNLIKELY(pl_state.packing != NULL) ? save_packed(n, i, alias, slot) : save_as_it_is(n, i, alias, slot);
  pl_tensor_release(alias);
  return s;
}

static void link_inputs(PlNode *n, PlTensor *const *in, const uint8_t *has_grad) {
  for (uint32_t i = 0; i < n->nin; i++) {
    PlNode *to;
    uint32_t slot;
    if (in[i] && (!has_grad || has_grad[i]) && pl_entry_get(in[i], n->key, &to, &slot)) pl_node_link(n, i, to, slot);
  }
}

/* A zero as large as the output, in a few bytes: what a rule reads when no gradient arrives there. */
static PlStatus keep_shape(PlNode *n, int o, PlTensor *out) {
  static const int64_t strides[PL_MAX_DIM];
  PlTensor *zero;
  PL_TRY(pl_tensor_full_on(&zero, out->a.device, (PlDtype)out->a.dtype, 0, NULL, 0));
  PlStatus s = pl_tensor_window(&n->slots[o].shape, zero, out->a.ndim, out->a.shape, strides, zero->a.data);
  pl_tensor_release(zero);
  return s;
}

static PlStatus record_native(PlKey *key, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  const PlNative *r = op->native;
  PlNode *n, *to;
  uint32_t slot, k = 0;
  uint8_t saved = 0;
  bool again;
  for (int i = 0; i < nin && i < 2; i++)
    if (r->reads[i] && in[i] && (in[i]->node || in[i]->more) && pl_entry_get(in[i], key, &to, &slot)) saved |= r->reads[i];
  PL_TRY(node_for(&n, &again, key, PL_NODE_NATIVE, op, op->name, in, (uint32_t)nin, (uint32_t)op->nout, (saved & 1U) + (saved >> 1 & 1U)));
  n->u.native.saved = saved;
  PlStatus s = PL_OK;
  if (op->nattr && !again && !(n->u.native.attrs = pl_attrs_compact(attrs)))
    s = pl_fail(PL_ERR_OOM, "%s: out of memory for a gradient node", op->name);
  for (int i = 0; i < nin && s == PL_OK; i++)
    if ((saved >> i) & 1) s = save(n, k++, in[i]);
  if (s == PL_OK) {
    if (!again) link_inputs(n, in, NULL);
    s = pl_entry_set(out[0], n, 0);
  }
  pl_node_release(n);
  return s;
}

static PlStatus save_for_graph(PlNode *n, PlBackward *b, PlTensor *const *in, int nin, PlTensor **out) {
  uint32_t k = 0;
  if (b->precomp) {
    PlTensor *few[2 * PL_MAX_IN], **args = few, *res[64];
    if (nin + b->nout > 2 * PL_MAX_IN && !(args = malloc((size_t)(nin + b->nout) * sizeof *args)))
      PL_FAIL(PL_ERR_OOM, "out of memory for a gradient node");
    memcpy(args, in, (size_t)nin * sizeof *args);
    memcpy(args + nin, out, (size_t)b->nout * sizeof *args);
    bool off = pl_grad_enable(false);                       /* what it keeps has no gradient: nothing to record */
    struct PlCheckpoint *running = pl_set_checkpoint(NULL); /* this is recording, no work of its function */
    PlStatus s = pl_grad_graph_run(b->precomp, args, res);
    pl_set_checkpoint(running);
    pl_grad_enable(off);
    if (args != few) free(args);
    PL_TRY(s);
    for (int r = 0; r < b->precomp->nresults; r++, k++) {
      const bool size = !pl_is_float((PlDtype)res[r]->a.dtype);
      if (PL_UNLIKELY(n->checkpoint != NULL) && (n->saved[k].t || !(size || pl_checkpoint_keeps(n, k, res[r])))) pl_tensor_release(res[r]);
      else if (PL_UNLIKELY(pl_state.packing != NULL) && !size) {
        if (s == PL_OK) s = save_packed(n, k, res[r], -1);
        pl_tensor_release(res[r]);
      } else n->saved[k] = (PlSaved){.t = res[r], .version = res[r]->storage->version, .relink = -1};
    }
    PL_TRY(s);
  }
  for (int i = 0; i < nin; i++)
    if (b->save[i]) PL_TRY(save(n, k++, in[i]));
  for (int o = 0; o < b->nout; o++)
    if (b->save[nin + o]) PL_TRY(save_output(n, k++, out[o], o));
  return PL_OK;
}

static PlStatus record_graph(PlKey *key, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  bool few[PL_MAX_IN], *want = few, any = false;
  if (nin > PL_MAX_IN && !(want = malloc((size_t)nin * sizeof *want))) PL_FAIL(PL_ERR_OOM, "out of memory for a gradient node");
  PlNode *to;
  uint32_t slot;
  for (int i = 0; i < nin; i++) any |= want[i] = in[i] && pl_is_float((PlDtype)in[i]->a.dtype) && pl_entry_get(in[i], key, &to, &slot);
  PlBackward *b = NULL;
  PlStatus s = PL_OK;
  if (any && op->grad) s = pl_backward_graph_get(op, in, nin, attrs, out, want, &b);
  if (want != few) free(want);
  PL_TRY(s);
  if (!any || (op->grad && !b)) return PL_OK; /* not differentiable: outputs stay untracked */
  uint32_t nsaved = 0;
  if (b) {
    nsaved = b->precomp ? (uint32_t)b->precomp->nresults : 0;
    for (int v = 0; v < nin + b->nout; v++) nsaved += b->save[v];
  }
  PlNode *n;
  bool again;
  s = node_for(&n, &again, key, PL_NODE_GRAPH, op, op->name, in, (uint32_t)nin, (uint32_t)op->nout, nsaved);
  if (s != PL_OK) {
    pl_backward_graph_release(b);
    return s;
  }
  if (!again) n->u.graph = b; /* NULL: no gradient is known; backward says so */
  else { /* what forward's rule reads */ pl_backward_graph_release(b);
    b = n->u.graph;
  }
  if (b) s = save_for_graph(n, b, in, nin, out);
  if (s == PL_OK && !again) link_inputs(n, in, b ? b->has_grad : NULL);
  /* an output whose gradient nothing reads (indices, what was kept) has no history; where none is read the gradients are zeros,
   * of a draw or of an empty index, and those arrive */
  bool reads = false;
  for (int o = 0; b && o < op->nout; o++) reads |= b->save[nin + b->nout + o];
  for (int o = 0; o < op->nout && s == PL_OK; o++) {
    if (!out[o] || !pl_is_float((PlDtype)out[o]->a.dtype) || (reads && !b->save[nin + b->nout + o])) continue;
    if (op->nout > 1 && !again) s = keep_shape(n, o, out[o]);
    if (s == PL_OK) s = pl_entry_set(out[o], n, (uint32_t)o);
  }
  pl_node_release(n);
  return s;
}

/* ---- what lower keys have saved -------------------------------------------------------------------------------- */

/* The outputs that n saved get the history that they have for key k. */
static PlStatus share(PlNode *n, const PlKey *k, PlTensor *const *out) {
  for (uint32_t i = 0; i < n->nsaved; i++) {
    const PlSaved *s = &n->saved[i];
    PlTensor *kept = s->t ? s->t : s->packed ? pl_packed_shell(s->packed->value) : NULL;
    const int32_t relink = s->t ? s->relink : s->packed ? s->packed->relink : -1;
    PlNode *at;
    uint32_t slot;
    if (relink < 0 || !pl_entry_get(out[relink], k, &at, &slot)) continue;
    PL_TRY(pl_entry_set(kept, at, slot));
  }
  return PL_OK;
}

/* After all keys have recorded a call. Lower ones did so first, but the backward of one of them, should it run while a higher key
 * records, is a function of the saved outputs for that one, too: while tangents are computed, and where a backward of the ambient key
 * is recorded itself (create_graph), which mutes nobody. The nodes of both keys hold each other then, until the higher one ends,
 * which empties its nodes. */
static PlStatus share_all(PlKey *const *keys, int n, PlTensor *const *out, int nout) {
  for (int f = 1; f < n; f++)
    for (int r = 0; r < f; r++) {
      PlNode *last = NULL;
      if (keys[r]->forward || !(keys[f]->forward || keys[r]->is_ambient)) continue;
      for (int o = 0; o < nout; o++) {
        PlNode *node;
        uint32_t slot;
        if (!out[o] || !pl_entry_get(out[o], keys[r], &node, &slot) || node == last) continue;
        PL_TRY(share(node, keys[f], out));
        last = node;
      }
    }
  return PL_OK;
}

PlStatus pl_record(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (op->flags & PL_F_NOGRAD_OK) return PL_OK;
  Keys keys;
  PL_TRY(pl_history_current(in, nin));
  PL_TRY(collect_keys(in, nin, &keys));
  PlStatus s = PL_OK;
  for (int k = 0; k < keys.n && s == PL_OK; k++) {
    if (PL_UNLIKELY(keys.at[k]->forward)) s = pl_forward_record(keys.at[k], op, in, nin, attrs, out);
    else if (op->native && op->native->ok(in, nin, out, attrs)) s = record_native(keys.at[k], op, in, nin, attrs, out);
    else s = record_graph(keys.at[k], op, in, nin, attrs, out);
  }
  if (PL_UNLIKELY(keys.n > 1) && s == PL_OK) s = share_all(keys.at, keys.n, out, op->nout);
  keys_free(&keys);
  return s;
}

PlStatus pl_rule_save(PlNode *n, const PlRuleSaved *saved, PlTensor *const *out, int nout) {
  for (uint32_t i = 0; saved && i < (uint32_t)saved->n; i++) {
    PlTensor *t = saved->t[i];
    const bool had = n->saved[i].t != NULL;
    int o = 0;
    while (o < nout && out[o] != t) o++;
    PL_TRY(o < nout ? save_output(n, i, t, o) : save(n, i, t));
    if (n->saved[i].t && !had) n->saved[i].version = saved->version[i];
  }
  return PL_OK;
}

/* The rule on one key's tape. */
PlStatus pl_record_rule_on(PlKey *key, PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable,
                           const PlRuleSaved *saved, const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx) {
  PlNode *n;
  bool again;
  PL_TRY(node_for(&n, &again, key, PL_NODE_RULE, NULL, name, in, (uint32_t)nin, (uint32_t)nout, saved ? (uint32_t)saved->n : 0));
  PlStatus s = PL_OK;
  if (!again || (!n->u.rule && pl_checkpoint_keeps_rule(n))) {
    n->u.rule = make(ctx, n);
    if (!n->u.rule) s = pl_fail(PL_ERR_OOM, "%s: out of memory for a gradient node", name);
    if (s == PL_OK && n->u.rule->always) key->has_always = true;
  }
  if (s == PL_OK) s = pl_rule_save(n, saved, out, nout);
  if (s == PL_OK && !again) link_inputs(n, in, NULL);
  for (int o = 0; o < nout && s == PL_OK; o++) {
    if ((differentiable && !differentiable[o]) || !pl_is_float((PlDtype)out[o]->a.dtype)) continue;
    if (nout > 1 && !again) s = keep_shape(n, o, out[o]);
    if (s == PL_OK) s = pl_entry_set(out[o], n, (uint32_t)o);
  }
  if (!again && s == PL_OK && n->checkpoint && n->u.rule->again && !n->u.rule->always) pl_node_drop_rule(n);
  pl_node_release(n);
  return s;
}

/* A result in memory that others may write: an argument's, another result's, or that of what the rule took a view of, whose
 * history the result has not. What is written there later is no part of its history, so that is refused, and later use as well. */
static void mark_foreign(PlTensor *const *in, int nin, PlTensor *const *out, int nout, int which) {
  PlTensor *t = out[which];
  bool shares = t->base != NULL;
  for (int i = 0; i < nin; i++) shares |= in[i] && in[i]->storage == t->storage;
  for (int o = 0; o < nout; o++) shares |= o != which && out[o]->storage == t->storage;
  if (!shares) return;
  pl_tensor_leave(t);
  t->flags |= PL_T_FOREIGN;
  pl_state.history_moved = true; /* from now on the inputs of calls are looked at */
  t->history = t->storage->version;
}

PlStatus pl_record_rule(PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable, const PlRuleSaved *saved,
                        const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx) {
  Keys keys;
  PL_TRY(pl_history_current(in, nin));
  PL_TRY(collect_keys(in, nin, &keys));
  PlStatus s = PL_OK;
  for (int k = 0; k < keys.n && s == PL_OK; k++)
    s = (keys.at[k]->forward ? pl_forward_rule : pl_record_rule_on)(keys.at[k], in, nin, out, nout, differentiable, saved, name, make, ctx);
  if (PL_UNLIKELY(keys.n > 1) && s == PL_OK) s = share_all(keys.at, keys.n, out, nout);
  for (int o = 0; o < nout && keys.n > 0; o++) mark_foreign(in, nin, out, nout, o);
  keys_free(&keys);
  return s;
}

bool pl_grad_enable(bool on) {
  bool was = !pl_state.grad_off;
  pl_state.grad_off = !on;
  return was;
}
