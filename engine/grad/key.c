/* SPDX-License-Identifier: MIT
 * Gradient keys: the ambient one, which requires_grad_ and backward use, and explicit ones with callbacks,
 * nested by level. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/device/device.h"
#include "engine/grad/backward_walk.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/ir/graph.h"
#include "engine/tensor/alloc.h"

static void init_key(PlKey *k, int level) {
  *k = (PlKey){.refs = 1, .level = level, .active = true, .recording = true};
  k->tape.prev = k->tape.next = &k->tape;
}

PlKey *pl_key_ambient(void) {
  static _Thread_local PlKey ambient; /* one per thread, like the tensors it tracks; never finalized */
  if (!pl_state.ambient) {
    init_key(&ambient, 0);
    snprintf(ambient.name, sizeof ambient.name, "ambient");
    ambient.is_ambient = true;
    pl_state.ambient = &ambient;
  }
  return pl_state.ambient;
}

int pl_key_top_level(void) {
  int top = 0;
  for (PlKey *k = pl_state.keys; k; k = k->next)
    if (k->active && k->level > top) top = k->level;
  return top;
}

static bool name_taken(const char *name) {
  for (PlKey *k = pl_state.keys; k; k = k->next)
    if (k->active && strcmp(k->name, name) == 0) return true;
  return false;
}

/* grad_N; every T.jvp makes a key. */
static void number_name(char name[sizeof((PlKey *)0)->name], uint64_t n) {
  char digits[20];
  int k = 0;
  do digits[k++] = (char)('0' + n % 10);
  while (n /= 10);
  memcpy(name, "grad_", 5);
  for (name += 5; k > 0;) *name++ = digits[--k];
  *name = 0;
}

PlStatus pl_key_new(PlKey **out, const char *name, int level, bool mutes_ambient) {
  if (level < 1) PL_FAIL(PL_ERR_ARG, "GradKey: level must be at least 1, not %d; the ambient key has level 0", level);
  if (name && name_taken(name)) PL_FAIL(PL_ERR_ARG, "GradKey: a live key is already named '%s'", name);
  PlKey *k = malloc(sizeof *k);
  if (!k) PL_FAIL(PL_ERR_OOM, "GradKey: out of memory");
  init_key(k, level);
  k->mutes_ambient = mutes_ambient;
  if (name) snprintf(k->name, sizeof k->name, "%s", name);
  else do
      number_name(k->name, pl_state.unnamed++);
    while (name_taken(k->name));
  k->born = ++pl_state.key_seq;
  k->next = pl_state.keys;
  pl_state.keys = k;
  if (mutes_ambient) pl_state.ambient_muted++;
  *out = k;
  return PL_OK;
}

PlStatus pl_key_rename(PlKey *k, const char *name) {
  if (strcmp(name, k->name) == 0) return PL_OK;
  if (name_taken(name)) PL_FAIL(PL_ERR_ARG, "GradKey: a live key is already named '%s'", name);
  snprintf(k->name, sizeof k->name, "%s", name);
  return PL_OK;
}

void pl_key_retain(PlKey *k) { k->refs++; }

/* Does the ambient key rest because of it? */
static bool mutes_now(const PlKey *k) { return k->active && k->mutes_ambient && !k->away; }

void pl_key_away(PlKey *k, bool away) {
  const bool was = mutes_now(k);
  k->away = away;
  pl_state.ambient_muted += mutes_now(k) - was;
}

static void leave_list(const PlKey *k) {
  for (PlKey **p = &pl_state.keys; *p; p = &(*p)->next)
    if (*p == k) {
      *p = k->next;
      if (k->forward) pl_set_forward(pl_state.forward - 1);
      break;
    }
}

/* Nodes may outlive the key through tensors: they are emptied and forget it. It will never record again, so that nobody has
 * to look at it, however long the embedding program holds it. */
void pl_key_close(PlKey *k) {
  if (mutes_now(k)) pl_state.ambient_muted--;
  k->active = false;
  k->closed |= k->walking;
  if (k->walking) return;
  leave_list(k);
  while (k->tape.next != &k->tape) {
    PlNode *n = k->tape.next;
    n->refs++;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->prev = n->next = n;
    if (n->kind <= PL_NODE_IDENTITY && n->u.target) pl_entry_remove(n->u.target, k); /* before the tensor is used again */
    n->key = NULL;
    pl_node_clear(n);
    pl_hooks_drop(n);
    pl_node_release(n);
  }
}

void pl_key_release(PlKey *k) {
  if (!k || --k->refs) return;
  pl_key_close(k);
  free(k);
}

static PlStatus check_float(const char *what, const PlTensor *t) {
  if (!pl_is_float((PlDtype)t->a.dtype))
    PL_FAIL(PL_ERR_DTYPE, "%s: only floating tensors have gradients, not %s; convert first, e.g. x:float()", what, pl_desc_text(&t->a));
  return PL_OK;
}

/* Takes hooks out that were removed. */
static void purge_hooks(PlSlot *slot) {
  PlHook *last = NULL;
  uint32_t n = 0;
  for (PlHook **p = &slot->hooks; *p;) {
    PlHook *h = *p;
    if (!h->removed) {
      last = h;
      n++;
      p = &h->next;
      continue;
    }
    *p = h->next;
    if (h->drop) h->drop(h->ud);
    free(h);
  }
  if (!slot->hooks) return;
  slot->hooks->last = last;
  slot->hooks->length = n;
}

/* Removed ones go where that is cheap, at the latest when the list has grown to twice its length; but not while a walk may be
 * among them. */
static void append_hook(PlNode *n, uint32_t at, PlHook *hook) {
  PlSlot *slot = &n->slots[at];
  const PlHook *first = slot->hooks;
  if (first && !n->busy && (first->removed || first->last->removed || !(first->length & (first->length - 1)))) purge_hooks(slot);
  n->hooked = true;
  if (!slot->hooks) {
    hook->last = slot->hooks = hook;
    hook->length = 1;
    return;
  }
  slot->hooks->last->next = hook;
  slot->hooks->last = hook;
  slot->hooks->length++;
}

void pl_hooks_follow(const PlTensor *t, PlNode *from, uint32_t slot) {
  PlNode *to;
  uint32_t at;
  if (!from->hooked || from->busy || !pl_entry_get(t, pl_key_ambient(), &to, &at) || (to == from && at == slot)) return;
  PlSlot *s = &from->slots[slot];
  PlHook *all = s->hooks, *next;
  s->hooks = NULL;
  for (PlHook *h = all; h; h = next) {
    next = h->next;
    h->next = NULL;
    append_hook(h->follows == t && !h->removed ? to : from, h->follows == t && !h->removed ? at : slot, h);
  }
}

PlStatus pl_slot_whole(const char *what, const PlNode *n, uint32_t slot) {
  if (n->kind != PL_NODE_RULE || !n->u.rule || !n->u.rule->inside || !n->u.rule->inside[slot]) return PL_OK;
  PL_FAIL(PL_ERR_UNSUPPORTED,
          "%s: %s computes further results from this one, and its gradient through them passes inside of the "
          "compiled function; ask for it there, or return a value that is used no further",
          what, n->name);
}

PlStatus pl_key_attach(PlKey *k, PlTensor *t, PlHook *callback) {
  if (!k->active) PL_FAIL(PL_ERR_STATE, "grad key finalized");
  PL_TRY(check_float("attach", t));
  PL_TRY(pl_history_current(&t, 1));
  PlNode *old = NULL, *n;
  uint32_t slot = 0;
  bool tracked = pl_entry_get(t, k, &old, &slot);
  if (tracked) PL_TRY(pl_slot_whole("attach", old, slot));
  if (tracked && old->kind <= PL_NODE_IDENTITY && old->u.target == t) n = old; /* attached before: callbacks add up */
  else {
    if (t->base && !t->node && !t->more) pl_tensor_leave(t); /* a leaf's history is no part of another tensor's */
    PL_TRY(pl_node_new(&n, k, tracked ? PL_NODE_IDENTITY : PL_NODE_LEAF, tracked ? 1 : 0, 1, 0));
    n->name = "attach";
    n->u.target = t;
    if (tracked) pl_node_link(n, 0, old, slot);
    PlStatus s = pl_entry_set(t, n, 0);
    if (s != PL_OK) {
      pl_node_release(n);
      return s;
    }
    pl_node_release(n); /* the tensor holds it */
  }
  if (callback) append_hook(n, 0, callback);
  return PL_OK;
}

PlStatus pl_add_hook(PlTensor *t, PlHook *hook) {
  PlNode *n;
  uint32_t slot;
  PL_TRY(pl_history_current(&t, 1));
  const char *name = hook->kind == PL_HOOK_ACCUMULATED ? "register_post_accumulate_grad_hook" : "register_hook";
  if (!pl_entry_get(t, pl_key_ambient(), &n, &slot)) PL_FAIL(PL_ERR_STATE, "%s: %s does not require a gradient", name, pl_desc_text(&t->a));
  if (hook->kind == PL_HOOK_ACCUMULATED && n->kind != PL_NODE_LEAF)
    PL_FAIL(PL_ERR_STATE, "%s: %s was computed by %s and accumulates no .grad; register it on a leaf", name, pl_desc_text(&t->a), n->name);
  PL_TRY(pl_slot_whole(name, n, slot));
  if (PL_UNLIKELY(pl_state.checkpoint != NULL) && pl_checkpoint_repeats(n)) { /* the node has it since forward */
    if (hook->drop) hook->drop(hook->ud);
    free(hook);
    return PL_OK;
  }
  append_hook(n, slot, hook);
  return PL_OK;
}

PlStatus pl_key_backward(PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int n, bool strict) {
  if (!k->active) PL_FAIL(PL_ERR_STATE, "finalized");
  PlWalk w = {.retain = false};
  PlStatus s = PL_OK;
  for (int i = 0; i < n && s == PL_OK; i++) {
    PlNode *node;
    uint32_t slot;
    s = pl_history_refresh(ys[i]);
    if (s != PL_OK) break;
    if (pl_entry_get(ys[i], k, &node, &slot)) s = pl_walk_seed_tensor(&w, ys[i], dys ? dys[i] : NULL, node, slot, false);
    else if (strict)
      s = pl_fail(PL_ERR_STATE, "backward: tensor %d, %s, has no path to an attached tensor", i + 1, pl_desc_text(&ys[i]->a));
  }
  if (s != PL_OK) { /* nothing has run: the key stays usable */
    pl_walk_abandon(&w);
    return s;
  }
  s = pl_walk_touch_always(&w, k);
  pl_key_retain(k);
  const bool mutes = mutes_now(k); /* the walk is not for the ambient key either */
  k->mutes_ambient = false;
  k->active = false;
  w.status = s;
  k->walking = true;
  s = pl_walk_run(&w, k, PL_MUTE_ABOVE);
  k->walking = false;
  if (mutes) pl_state.ambient_muted--;
  pl_key_close(k);
  pl_key_release(k);
  return s;
}

/* ---- leaves of the ambient key -------------------------------------------------------------------------- */

/* A key that never records. Its leaves only hold what tensors have that are no leaves of the ambient key: the .grad of those
 * attached to managers, all of those that require no gradient any more. Lives as long as the thread. */
static PlStatus make_holder(void) {
  if (pl_state.holder) return PL_OK;
  PlKey *k = malloc(sizeof *k);
  if (!k) PL_FAIL(PL_ERR_OOM, "grad: out of memory");
  init_key(k, 0);
  k->recording = false;
  pl_state.holder = k;
  return PL_OK;
}

/* Takes g: the .grad of t, which the ambient key does not track. */
static PlStatus hold_grad(PlTensor *t, PlTensor *g) {
  PlNode *n;
  PlStatus s = make_holder();
  if (s == PL_OK) s = pl_node_new(&n, pl_state.holder, PL_NODE_LEAF, 0, 1, 0);
  if (s != PL_OK) {
    pl_tensor_release(g);
    return s;
  }
  n->name = "grad";
  n->u.target = t;
  s = pl_entry_set(t, n, 0);
  if (s == PL_OK) s = pl_leaf_take_grad(n, g);
  else pl_tensor_release(g);
  pl_node_release(n);
  return s;
}

/* n, a leaf, belongs to another key from now on: older than all that reads it, whichever that is. */
static void change_key(PlNode *n, PlKey *to) {
  n->prev->next = n->next;
  n->next->prev = n->prev;
  n->prev = &to->tape;
  n->next = to->tape.next;
  n->prev->next = n->next->prev = n;
  n->key = to;
}

/* t, whose leaf is n, requires no gradient until it is asked to again. As in PyTorch its .grad stays, an optimizer's step or further
 * gradients may come later, its hooks do, and what was computed from it leads to it again then: it is the same leaf, which rests. */
static PlStatus rest_leaf(PlTensor *t, PlNode *n) {
  bool kept = n->grad || n->refs > 1 || pl_state.trace; /* a trace knows a captured leaf by its node */
  for (const PlHook *h = n->slots[0].hooks; h && !kept; h = h->next) kept = !h->removed;
  if (!kept) {
    pl_entry_remove(t, n->key);
    return PL_OK;
  }
  PL_TRY(make_holder());
  pl_entry_remove(t, pl_state.holder);
  change_key(n, pl_state.holder);
  n->name = "grad";
  if (t->node == n) t->flags &= (uint16_t)~PL_T_LEAF;
  return PL_OK;
}

PlStatus pl_history_drop(PlTensor *t) {
  PlNode *n = NULL;
  uint32_t slot = 0;
  if (PL_UNLIKELY(pl_watched()) && pl_tensor_requires_grad(t)) PL_TRY(pl_checkpoint_switches(t));
  if (PL_UNLIKELY(pl_state.trace != NULL) && !t->a.symbolic && pl_tensor_requires_grad(t)) {
    pl_calls_refuse(pl_state.trace, "it detaches a tensor from outside");
    PL_TRY(pl_graph_switches(pl_state.trace, t));
  }
  if (pl_entry_get(t, pl_key_ambient(), &n, &slot) && n->kind == PL_NODE_LEAF) PL_TRY(rest_leaf(t, n));
  const bool kept = pl_state.holder && pl_entry_get(t, pl_state.holder, &n, &slot);
  const bool own = kept && n->u.target == t;
  if (kept) n->refs++;
  pl_entries_drop(t);
  pl_tensor_leave(t);
  if (!kept) return PL_OK;
  PlStatus s = pl_entry_set(t, n, slot);
  if (own && s == PL_OK) n->u.target = t;
  pl_node_release(n);
  return s;
}

bool pl_leaf_rests(const PlTensor *t) { return pl_state.holder && t->node && t->node->key == pl_state.holder && !t->more; }

static PlStatus requires_grad(PlTensor *t, bool on) {
  PlKey *k = pl_key_ambient();
  PlNode *n;
  uint32_t slot;
  PL_TRY(pl_history_current(&t, 1));
  bool tracked = pl_entry_get(t, k, &n, &slot);
  if (!on) {
    if (tracked && n->kind != PL_NODE_LEAF)
      PL_FAIL(PL_ERR_STATE, "requires_grad_(false): %s was computed by %s; use x:detach()", pl_desc_text(&t->a), n->name);
    return tracked ? rest_leaf(t, n) : PL_OK;
  }
  PL_TRY(check_float("requires_grad_", t));
  if (tracked) return PL_OK;
  PlNode *held;
  if (pl_state.holder && pl_entry_get(t, pl_state.holder, &held, &slot) && (!held->u.target || held->u.target == t)) {
    change_key(held, k);
    held->name = "leaf";
    held->u.target = t;
    if (t->node == held) t->flags |= PL_T_LEAF;
    return PL_OK;
  }
  if (t->base && !t->node && !t->more) pl_tensor_leave(t); /* a leaf's history is no part of another tensor's */
  PL_TRY(pl_node_new(&n, k, PL_NODE_LEAF, 0, 1, 0));
  n->name = "leaf";
  n->u.target = t;
  PlStatus s = pl_entry_set(t, n, 0);
  if (s == PL_OK && t->node == n) t->flags |= PL_T_LEAF;
  pl_node_release(n);
  return s;
}

PlStatus pl_requires_grad(PlTensor *t, bool on) {
  if (PL_UNLIKELY(pl_watched())) PL_TRY(pl_checkpoint_switches(t));
  if (PL_LIKELY(pl_state.trace == NULL)) return requires_grad(t, on);
  if (!t->a.symbolic) pl_calls_refuse(pl_state.trace, "it changes whether a tensor requires a gradient");
  PL_TRY(pl_graph_switches(pl_state.trace, t)); /* also where it is so already: a call that finds it otherwise is another one */
  const PlCalling calling = pl_calls_enter(pl_state.trace);
  const PlStatus s = requires_grad(t, on);
  return pl_calls_leave(&calling, s, &(PlCallIs){.kind = PL_CALL_REQUIRES_GRAD, .in = {&t}, .n = {1}, .retain = on});
}

bool pl_tensor_requires_grad(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  return pl_entry_get(t, pl_key_ambient(), &n, &slot);
}

static PlNode *leaf_of(const PlTensor *t) {
  PlNode *n;
  uint32_t slot;
  if (pl_entry_get(t, pl_key_ambient(), &n, &slot) && n->kind == PL_NODE_LEAF) return n;
  return pl_state.holder && pl_entry_get(t, pl_state.holder, &n, &slot) ? n : NULL;
}

static PlStatus may_be_grad(const PlTensor *t, const PlTensor *g) {
  if (!pl_shape_equal(&g->a, &t->a) || g->a.dtype != t->a.dtype)
    PL_FAIL(PL_ERR_SHAPE, "grad: %s cannot be the gradient of %s", pl_desc_text(&g->a), pl_desc_text(&t->a));
  if (PL_UNLIKELY(g->a.device != t->a.device) && !g->a.symbolic && !t->a.symbolic)
    PL_FAIL(PL_ERR_ARG, "grad: %s on %s cannot be the gradient of %s on %s; move it: g:to(\"%s\")", pl_desc_text(&g->a),
            pl_device_name(g->a.device), pl_desc_text(&t->a), pl_device_name(t->a.device), pl_device_name(t->a.device));
  return PL_OK;
}

PlStatus pl_grad_add(PlTensor *t, PlTensor *g) {
  PlNode *n = leaf_of(t);
  PL_TRY(may_be_grad(t, g));
  if (!n) return hold_grad(t, pl_retain(g));
  PL_TRY(pl_leaf_take_grad(n, pl_retain(g)));
  return n->slots[0].hooks ? pl_leaf_accumulated(n) : PL_OK;
}

void pl_grad_tear(const PlTensor *t) {
  PlNode *n = leaf_of(t);
  if (n) pl_leaf_tear(n);
}

bool pl_grad_torn(const PlTensor *t) {
  if (PL_UNLIKELY(pl_state.trace != NULL)) return pl_graph_leaf_torn(pl_state.trace, (PlTensor *)(uintptr_t)t);
  const PlNode *n = PL_UNLIKELY(pl_state.torn) ? leaf_of(t) : NULL;
  return n && pl_leaf_torn(n);
}

PlTensor *pl_grad(const PlTensor *t) {
  PlNode *n = leaf_of(t);
  return n ? n->grad : NULL;
}

static PlStatus set_grad(PlTensor *t, PlTensor *grad) {
  PlNode *n = leaf_of(t);
  if (!n) {
    if (!grad) return PL_OK;
    PL_FAIL(PL_ERR_STATE, "grad: %s is no leaf that requires a gradient; call requires_grad_() first", pl_desc_text(&t->a));
  }
  if (grad) PL_TRY(may_be_grad(t, grad));
  if (PL_UNLIKELY(pl_watched()) && grad != n->grad) PL_TRY(pl_checkpoint_sets_grad(t));
  if (PL_UNLIKELY(pl_state.trace != NULL) && (!grad || grad != n->grad)) PL_TRY(pl_graph_leaf(pl_state.trace, t, true));
  if (grad) grad->refs++;
  PlTensor *old = n->grad;
  if (PL_UNLIKELY(pl_state.walk != NULL)) pl_sums_forget(n);
  n->torn = n->torn && grad == old;
  n->grad = grad;
  pl_tensor_release(old);
  return PL_OK;
}

PlStatus pl_set_grad(PlTensor *t, PlTensor *grad) {
  if (PL_LIKELY(pl_state.trace == NULL)) return set_grad(t, grad);
  const PlCalling calling = pl_calls_enter(pl_state.trace);
  const PlStatus s = set_grad(t, grad);
  return pl_calls_leave(&calling, s, &(PlCallIs){.kind = PL_CALL_SET_GRAD, .in = {&t, &grad}, .n = {1, 1}});
}
