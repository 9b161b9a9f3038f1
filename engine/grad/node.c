/* SPDX-License-Identifier: MIT
 * Making and releasing nodes, and the gradient entries of tensors. See node.h. */
#include "engine/grad/node.h"

#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/gradient_graph.h"
#include "engine/grad/saved_tensors_hooks.h"
#include "engine/tensor/alloc.h"

_Thread_local PlState pl_state;

static size_t node_size(uint32_t nin, uint32_t nout, uint32_t nsaved) {
  return sizeof(PlNode) + nin * sizeof(PlEdge) + nout * sizeof(PlSlot) + nsaved * sizeof(PlSaved);
}

PlStatus pl_node_new(PlNode **out, PlKey *key, PlNodeKind kind, uint32_t nin, uint32_t nout, uint32_t nsaved) {
  size_t size = node_size(nin, nout, nsaved);
  PlNode *n = pl_pool_get(size);
  if (!n) PL_FAIL(PL_ERR_OOM, "out of memory for a gradient node");
  memset(n, 0, size);
  n->refs = 1;
  n->kind = (uint8_t)kind;
  n->nin = nin;
  n->nout = nout;
  n->nsaved = nsaved;
  n->seq = ++pl_state.seq;
  n->key = key;
  n->slots = (PlSlot *)(void *)(n + 1);
  n->dests = (PlEdge *)(void *)(n->slots + nout);
  n->saved = (PlSaved *)(void *)(n->dests + nin);
  n->prev = key->tape.prev;
  n->next = &key->tape;
  n->prev->next = n;
  key->tape.prev = n;
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->recorded(n);
  *out = n;
  return PL_OK;
}

/* With every op of a function of T.jvp: no memory that is not needed is cleared. */
PlStatus pl_node_tangent(PlTensor *y, PlKey *key, const char *name, PlTensor *tangent) {
  const size_t size = node_size(0, 0, 0);
  PlNode *n = pl_pool_get(size);
  if (PL_UNLIKELY(!n)) {
    pl_tensor_release(tangent);
    PL_FAIL(PL_ERR_OOM, "out of memory for a tangent");
  }
  *n = (PlNode){.refs = 1,
                .kind = PL_NODE_TANGENT,
                .seq = ++pl_state.seq,
                .key = key,
                .prev = key->tape.prev,
                .next = &key->tape,
                .name = name,
                .grad = tangent,
                .slots = (PlSlot *)(void *)(n + 1),
                .dests = (PlEdge *)(void *)(n + 1),
                .saved = (PlSaved *)(void *)(n + 1)};
  n->prev->next = n;
  key->tape.prev = n;
  if (PL_UNLIKELY(pl_state.watch != NULL)) pl_state.watch->recorded(n);
  y->node = n;
  y->slot = 0;
  return PL_OK;
}

void pl_node_link(PlNode *n, uint32_t i, PlNode *to, uint32_t slot) {
  n->dests[i].node = to;
  n->dests[i].slot = slot;
  to->refs++;
}

/* Dead nodes wait here, so that freeing a chain of any length needs no stack. */
static _Thread_local PlNode *dead;
static _Thread_local bool reaping;

void pl_hooks_drop(PlNode *n) {
  for (uint32_t o = 0; o < n->nout; o++)
    while (PL_UNLIKELY(n->slots[o].hooks != NULL)) {
      PlHook *h = n->slots[o].hooks;
      n->slots[o].hooks = h->next;
      if (h->drop) h->drop(h->ud);
      free(h);
    }
}

void pl_node_drop_rule(PlNode *n) {
  if (n->kind == PL_NODE_GRAPH && n->u.graph) pl_backward_graph_release(n->u.graph);
  else if (n->kind == PL_NODE_NATIVE && n->u.native.attrs) pl_pool_put(n->u.native.attrs, pl_attrs_size(n->u.native.attrs));
  else if (n->kind == PL_NODE_RULE && n->u.rule) {
    PlRule *r = n->u.rule;
    n->u.rule = NULL;
    if (r->drop) r->drop(r->ud);
    if (r->piece) pl_pool_put(r, r->piece);
    else free(r);
  }
  memset(&n->u, 0, sizeof n->u);
}

static void packed_drop(PlSavedPacked *p) {
  pl_packed_free(p->value);
  pl_pool_put(p, sizeof *p);
}

void pl_node_clear(PlNode *n) {
  n->spent = true;
  for (uint32_t i = 0; i < n->nsaved; i++) {
    const PlSaved s = n->saved[i];
    n->saved[i] = (PlSaved){.t = NULL};
    if (PL_LIKELY(s.t != NULL)) pl_tensor_release(s.t);
    else if (s.packed) packed_drop(s.packed);
  }
  if (n->kind > PL_NODE_IDENTITY && n->u.rule) pl_node_drop_rule(n);
  if (PL_UNLIKELY(n->checkpoint != NULL)) pl_checkpoint_forget(n);
  if (PL_UNLIKELY(n->kind == PL_NODE_TANGENT)) {
    PlTensor *t = n->grad;
    n->grad = NULL;
    pl_tensor_release(t);
  }
  if (PL_UNLIKELY(n->hooked) && n->kind != PL_NODE_LEAF) pl_hooks_drop(n); /* nothing arrives here any more */
  for (uint32_t i = 0; i < n->nin; i++) {
    PlNode *to = n->dests[i].node;
    n->dests[i].node = NULL;
    if (to) pl_node_release(to);
  }
}

static void node_free(PlNode *n) {
  n->prev->next = n->next;
  n->next->prev = n->prev;
  pl_node_clear(n);
  for (uint32_t o = 0; o < n->nout; o++) {
    pl_tensor_release(n->slots[o].grad);
    pl_tensor_release(n->slots[o].shape);
  }
  if (PL_UNLIKELY(n->hooked)) pl_hooks_drop(n);
  pl_tensor_release(n->grad);
  pl_pool_put(n, node_size(n->nin, n->nout, n->nsaved));
}

void pl_node_release(PlNode *n) {
  if (!n || --n->refs) return;
  if (n->kind == PL_NODE_TANGENT && !n->checkpoint && !n->hooked) { /* it leads on to nothing but by its tensor's history */
    PlTensor *tangent = n->grad;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    pl_pool_put(n, node_size(0, 0, 0));
    pl_tensor_release(tangent);
    return;
  }
  n->link = dead;
  dead = n;
  if (reaping) return;
  reaping = true;
  while (dead) {
    PlNode *m = dead;
    dead = m->link;
    node_free(m);
  }
  reaping = false;
}

/* ---- entries -------------------------------------------------------------------------------------- */

bool pl_entry_get(const PlTensor *t, const PlKey *key, PlNode **node, uint32_t *slot) {
  if (t->node && t->node->key == key) {
    *node = t->node;
    *slot = t->slot;
    return true;
  }
  for (PlEntry *e = t->more; e; e = e->next)
    if (e->node->key == key) {
      *node = e->node;
      *slot = e->slot;
      return true;
    }
  return false;
}

static void forget_target(PlNode *n, const PlTensor *t) {
  if (n->kind <= PL_NODE_IDENTITY && n->u.target == t) n->u.target = NULL;
}

static void inline_entry_drop(PlTensor *t) {
  PlNode *n = t->node;
  if (!n) return;
  forget_target(n, t);
  t->node = NULL;
  t->flags &= (uint16_t)~PL_T_LEAF;
  pl_node_release(n);
}

static bool stale(const PlNode *n) { return !n->key || !n->key->active; }

/* Forgets entries of finalized keys. */
static void drop_stale(PlTensor *t) {
  for (PlEntry **p = &t->more; *p;) {
    PlEntry *e = *p;
    if (!stale(e->node)) {
      p = &e->next;
      continue;
    }
    *p = e->next;
    forget_target(e->node, t);
    pl_node_release(e->node);
    pl_pool_put(e, sizeof *e);
  }
  if (!t->node || !stale(t->node)) return;
  inline_entry_drop(t);
  if (t->more) { /* keep the inline place filled: the hot path looks there first */
    PlEntry *e = t->more;
    t->more = e->next;
    t->node = e->node;
    t->slot = e->slot;
    pl_pool_put(e, sizeof *e);
  }
}

PlStatus pl_entry_set(PlTensor *t, PlNode *node, uint32_t slot) {
  if (PL_UNLIKELY(t->more || (t->node && stale(t->node)))) drop_stale(t);
  node->refs++;
  if (!t->node || t->node->key == node->key) {
    inline_entry_drop(t);
    t->node = node;
    t->slot = slot;
  } else {
    PlEntry *e = t->more;
    while (e && e->node->key != node->key) e = e->next;
    if (e) {
      PlNode *old = e->node;
      e->node = node;
      pl_node_release(old);
    } else {
      e = pl_pool_get(sizeof *e);
      if (!e) {
        pl_node_release(node);
        PL_FAIL(PL_ERR_OOM, "out of memory for a gradient entry");
      }
      *e = (PlEntry){.next = t->more, .node = node};
      t->more = e;
    }
    e->slot = slot;
  }
  if (t->base) t->history = t->base->history;
  if (PL_UNLIKELY(t->a.symbolic)) t->storage->has_history = true;
  return PL_OK;
}

void pl_entry_remove(PlTensor *t, const PlKey *key) {
  if (t->node && t->node->key == key) {
    inline_entry_drop(t);
    if (t->more) { /* keep the inline place filled: the hot path looks there first */
      PlEntry *e = t->more;
      t->more = e->next;
      t->node = e->node;
      t->slot = e->slot;
      if (e->node->kind == PL_NODE_LEAF && e->node->u.target == t) t->flags |= PL_T_LEAF;
      pl_pool_put(e, sizeof *e);
    }
    return;
  }
  for (PlEntry **p = &t->more; *p; p = &(*p)->next)
    if ((*p)->node->key == key) {
      PlEntry *e = *p;
      *p = e->next;
      forget_target(e->node, t);
      pl_node_release(e->node);
      pl_pool_put(e, sizeof *e);
      return;
    }
}

void pl_entries_drop(PlTensor *t) {
  inline_entry_drop(t);
  while (t->more) {
    PlEntry *e = t->more;
    t->more = e->next;
    forget_target(e->node, t);
    pl_node_release(e->node);
    pl_pool_put(e, sizeof *e);
  }
}

PlStatus pl_entries_copy(PlTensor *to, const PlTensor *from, const PlKey *except) {
  if (from->node && from->node->key && from->node->key != except) PL_TRY(pl_entry_set(to, from->node, from->slot));
  for (PlEntry *e = from->more; e; e = e->next)
    if (e->node->key && e->node->key != except) PL_TRY(pl_entry_set(to, e->node, e->slot));
  return PL_OK;
}

void pl_entries_move(PlTensor *to, PlTensor *from) {
  pl_entries_drop(to);
  to->node = from->node;
  to->slot = from->slot;
  to->more = from->more;
  from->node = NULL;
  from->more = NULL;
  if (to->base) to->history = to->base->history;
  if (PL_UNLIKELY(to->a.symbolic) && to->node) to->storage->has_history = true;
}

bool pl_tracked(PlTensor *t) {
  if (!t || (pl_state.grad_off && !pl_state.bookkeeping)) return false;
  if (PL_UNLIKELY(t->more || (t->node && stale(t->node)))) drop_stale(t);
  if (t->node && pl_key_records(t->node->key)) return true;
  for (PlEntry *e = t->more; e; e = e->next)
    if (pl_key_records(e->node->key)) return true;
  return false;
}
