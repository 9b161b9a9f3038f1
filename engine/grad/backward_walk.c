/* SPDX-License-Identifier: MIT
 * The walk: from the ys, in reverse record order, over what is reachable and nothing else. One pass counts
 * the consumers of every reachable node, the second runs rules and delivers gradients; a leaf is final, and
 * its callbacks run, the moment its last consumer has delivered. Every exit leaves slots and marks clean. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/backward_walk.h"
#include "engine/grad/checkpoint.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/tensor/presence.h"

/* Running number of the walk, so that marks of older walks need no clearing. */
static _Thread_local uint64_t pass_counter;

/* ---- the ready heap, largest record number on top ---------------------------------------------------- */

static PlStatus heap_push(PlWalk *w, PlNode *n) {
  enum { FEW = sizeof w->few / sizeof *w->few };
  if (!w->heap) {
    w->heap = w->few;
    w->cap = FEW;
  }
  if (w->nheap == w->cap) {
    PlNode **h = realloc(w->heap == w->few ? NULL : w->heap, 2 * w->cap * sizeof *h);
    if (!h) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
    if (w->heap == w->few) memcpy(h, w->few, sizeof w->few);
    w->heap = h;
    w->cap *= 2;
  }
  size_t i = w->nheap++;
  for (; i > 0 && w->heap[(i - 1) / 2]->seq < n->seq; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = n;
  return PL_OK;
}

static PlNode *heap_pop(PlWalk *w) {
  PlNode *top = w->heap[0], *last = w->heap[--w->nheap];
  size_t i = 0;
  for (;;) {
    size_t c = 2 * i + 1;
    if (c >= w->nheap) break;
    if (c + 1 < w->nheap && w->heap[c + 1]->seq > w->heap[c]->seq) c++;
    if (last->seq >= w->heap[c]->seq) break;
    w->heap[i] = w->heap[c];
    i = c;
  }
  w->heap[i] = last;
  return top;
}

/* ---- one node ------------------------------------------------------------------------------------------------ */

/* Nobody else sees t, and each element has a place of its own, so that it can be written. */
static bool is_own(const PlTensor *t) { return pl_tensor_sole(t) && (t->a.symbolic || !pl_self_overlaps(&t->a)); }

/* A gradient that nobody else holds or sees: what a callback is given, what .grad and grad_of hand out. */
static PlStatus make_own(PlTensor **g) {
  PlTensor *t = *g, *c;
  if (is_own(t) || (t->refs == 1 && pl_is_batched(t))) return PL_OK;
  if (t->node || t->more || t->a.symbolic || pl_is_batched(t)) PL_TRY(pl_apply(&pl_op_clone, &t, 1, NULL, &c));
  else PL_TRY(pl_tensor_copy(&c, t));
  pl_tensor_release(t);
  *g = c;
  return PL_OK;
}

static PlStatus run_hook(const PlHook *h, PlSlot *slot) {
  PlTensor *other = NULL;
  pl_calls_refuse(pl_state.trace, "it has a hook on a gradient");
  PL_TRY(h->call(h->ud, slot->grad, &other));
  if (!other) return PL_OK;
  pl_tensor_release(slot->grad);
  slot->grad = other;
  return PL_OK;
}

/* Each callback gets a gradient of its own; the last one the slot's, where that goes nowhere else. */
static PlStatus run_callback(const PlHook *h, const PlSlot *slot, bool last) {
  const bool given = last && is_own(slot->grad);
  PlTensor *g = pl_retain(slot->grad), *ignored = NULL;
  pl_calls_refuse(pl_state.trace, "it has a hook on a gradient");
  PlStatus s = given ? PL_OK : make_own(&g);
  if (s == PL_OK) s = h->call(h->ud, g, &ignored);
  pl_tensor_release(g);
  pl_tensor_release(ignored);
  return s;
}

static bool any_hook(const PlSlot *slot, PlHookKind kind) {
  for (const PlHook *h = slot->hooks; h; h = h->next)
    if (h->kind == kind && !h->removed) return true;
  return false;
}

/* Hooks may replace the gradient; what follows its tensor (retain_grad) sees the final one, and then callbacks do. */
enum { REPLACING, FOLLOWING, CALLBACKS, NROUNDS };
static int round_of(const PlHook *h) { return h->kind == PL_HOOK_CALLBACK ? CALLBACKS : h->follows ? FOLLOWING : REPLACING; }

/* Those registered meanwhile wait for the next walk; those that were removed stay in the list, so that a hook may remove itself or
 * others. `final`: the gradient goes nowhere from here. */
static PlStatus run_hooks(const PlNode *n, PlSlot *slot, bool final) {
  const PlHook *last = slot->hooks;
  while (last->next) last = last->next;
  if (any_hook(slot, PL_HOOK_REPLACE)) PL_TRY(make_own(&slot->grad));
  for (int round = REPLACING; round < NROUNDS; round++)
    for (PlHook *h = slot->hooks, *next; h && slot->grad; h = next) {
      next = h == last ? NULL : h->next;
      if (h->kind == PL_HOOK_ACCUMULATED || round_of(h) != round || h->removed || (round == CALLBACKS && n->key && n->key->closed))
        continue;
      PL_TRY(round == CALLBACKS ? run_callback(h, slot, final && h == last) : run_hook(h, slot));
    }
  return PL_OK;
}

static inline PlStatus finish_slots(PlWalk *w, PlNode *n) {
  for (uint32_t o = 0; o < n->nout; o++) {
    PlSlot *slot = &n->slots[o];
    if (PL_UNLIKELY(slot->hooks != NULL) && slot->grad)
      PL_TRY(run_hooks(n, slot, n->kind == PL_NODE_LEAF && !slot->capture && !w->fill_leaves));
    if (PL_UNLIKELY(slot->capture != 0) && slot->grad && w->results) w->results[slot->capture - 1] = pl_retain(slot->grad);
  }
  return PL_OK;
}

PlStatus pl_walk_results(PlTensor **out, int nx, const int *same_as) {
  PlStatus s = PL_OK;
  for (int i = 0; i < nx; i++)
    if (same_as[i] >= 0 && out[same_as[i]]) out[i] = pl_retain(out[same_as[i]]);
  for (int i = 0; i < nx && s == PL_OK; i++) {
    if (!out[i]) continue;
    /* of what was asked for twice neither is the other's history, nor is what other gradients were made of */
    PlTensor *shared = same_as[i] != -1 && out[i]->node ? pl_retain(out[i]) : NULL;
    s = make_own(&out[i]);
    pl_tensor_release(shared);
  }
  return s;
}

static PlStatus arrive(PlWalk *w, PlNode *n);

/* Hands dx to the producers; a leaf that is now complete is finished at once. */
static PL_ALWAYS_INLINE PlStatus deliver(PlWalk *w, PlNode *n, PlTensor **dx, bool narrow) {
  PlStatus s = PL_OK;
  for (uint32_t i = 0; i < n->nin; i++) {
    PlNode *to = n->dests[i].node;
    PlTensor *g = dx[i];
    dx[i] = NULL;
    if (!to || s != PL_OK || (narrow && !pl_walk_wants(n, i))) {
      pl_tensor_release(g);
      continue;
    }
    if (g) s = pl_gradient_accumulate(&to->slots[n->dests[i].slot].grad, g);
    if (s == PL_OK && --to->pending == 0) s = arrive(w, to);
  }
  return s;
}

/* A walk for chosen inputs ends at them: a node that only has one of them runs no rule and keeps what it saved. */
static bool ends_here(const PlWalk *w, const PlNode *n) {
  if (PL_LIKELY(!w->narrow)) return false;
  for (uint32_t i = 0; i < n->nin; i++)
    if (pl_walk_wants(n, i)) return false;
  return true;
}

static PL_ALWAYS_INLINE PlStatus run_node(PlWalk *w, PlNode *n, bool narrow) {
  bool any = false;
  if (PL_UNLIKELY(pl_state.trace != NULL)) pl_state.trace->tape = n->seq;
  if (n->kind != PL_NODE_IDENTITY) PL_TRY(finish_slots(w, n));
  if (narrow && ends_here(w, n)) return PL_OK;
  for (uint32_t o = 0; o < n->nout; o++) any |= n->slots[o].grad != NULL;
  PlTensor *few[PL_MAX_IN], **dx = few;
  if (n->nin > PL_MAX_IN && !(dx = malloc(n->nin * sizeof *dx))) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  memset(dx, 0, n->nin * sizeof *dx);
  PlStatus s = PL_OK;
  if (any || (n->kind == PL_NODE_RULE && n->u.rule && n->u.rule->always)) s = pl_rule_run(n, dx);
  if (PL_UNLIKELY(pl_state.watch != NULL) && s == PL_OK) {
    s = pl_anomaly_check(n, dx, n->nin, false);
    for (uint32_t i = 0; s != PL_OK && i < n->nin; i++) {
      pl_tensor_release(dx[i]);
      dx[i] = NULL;
    }
  }
  for (uint32_t o = 0; o < n->nout; o++) { /* before delivery: producers may then add in place */
    pl_tensor_release(n->slots[o].grad);
    n->slots[o].grad = NULL;
  }
  if (s == PL_OK) s = deliver(w, n, dx, narrow);
  else
    for (uint32_t i = 0; i < n->nin; i++) pl_tensor_release(dx[i]);
  if (dx != few) free(dx);
  if (s == PL_OK && !w->retain && !n->shared) pl_node_clear(n);
  else if (PL_UNLIKELY(n->checkpoint != NULL) && s == PL_OK) pl_checkpoint_drop_again(n);
  return s;
}

PlStatus pl_leaf_accumulated(PlNode *n) {
  const PlHook *last = n->slots[0].hooks;
  while (last && last->next) last = last->next;
  for (PlHook *h = n->slots[0].hooks, *next; h; h = next) {
    next = h == last ? NULL : h->next;
    if (h->kind != PL_HOOK_ACCUMULATED || h->removed || !n->u.target) continue;
    PlTensor *leaf = pl_retain(n->u.target), *ignored = NULL;
    pl_calls_refuse(pl_state.trace, "it has a hook on a gradient");
    PlStatus s = h->call(h->ud, leaf, &ignored);
    pl_tensor_release(leaf);
    PL_TRY(s);
  }
  return PL_OK;
}

/* Every consumer of n has delivered: its gradients are final. Callbacks of attached tensors run at once; rules wait until
 * their turn in record order has come. */
static PlStatus arrive(PlWalk *w, PlNode *n) {
  if (n->kind == PL_NODE_IDENTITY) PL_TRY(finish_slots(w, n));
  if (n->kind != PL_NODE_LEAF) return heap_push(w, n);
  PL_TRY(finish_slots(w, n));
  PlTensor *g = n->slots[0].grad;
  n->slots[0].grad = NULL;
  if (g && w->fill_leaves && n->u.target && n->key && n->key->is_ambient) {
    PlStatus s = PL_OK;
    if (PL_UNLIKELY(pl_state.trace != NULL)) s = pl_graph_leaf(pl_state.trace, n->u.target, false);
    else if (PL_UNLIKELY(pl_state.checkpoint != NULL)) s = pl_checkpoint_sets_grad(n->u.target);
    if (s == PL_OK) s = pl_leaf_take_grad(n, g);
    else pl_tensor_release(g);
    PL_TRY(s);
    return PL_UNLIKELY(n->slots[0].hooks != NULL) ? pl_leaf_accumulated(n) : PL_OK;
  }
  pl_tensor_release(g);
  return PL_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------------- */

/* A walk inside of a rule, a hook or a function that a checkpoint runs again may reach what the outer walk has reached, too: a
 * parameter, or a part of the tape if the inner one keeps it. What the outer one noted there is deferred until the inner one ends. */
struct PlAside {
  PlNode *node;
  PlNode *link;
  uint64_t pass;
  int32_t pending;
  bool skip, ends;
  PlAside *next;
  struct {
    PlTensor *grad;
    uint32_t capture;
  } slots[];
};

static PlStatus put_aside(PlWalk *w, PlNode *n) {
  PlAside *a = malloc(sizeof *a + n->nout * sizeof *a->slots);
  if (!a) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  *a = (PlAside){.node = n, .link = n->link, .pass = n->pass, .pending = n->pending, .skip = n->skip, .ends = n->ends, .next = w->aside};
  for (uint32_t o = 0; o < n->nout; o++) {
    a->slots[o].grad = n->slots[o].grad;
    a->slots[o].capture = n->slots[o].capture;
    n->slots[o].grad = NULL;
    n->slots[o].capture = 0;
  }
  n->skip = n->ends = false;
  w->aside = a;
  return PL_OK;
}

static void put_back(PlWalk *w) {
  while (w->aside) {
    PlAside *a = w->aside;
    PlNode *n = a->node;
    w->aside = a->next;
    for (uint32_t o = 0; o < n->nout; o++) {
      n->slots[o].grad = a->slots[o].grad;
      n->slots[o].capture = a->slots[o].capture;
    }
    n->link = a->link;
    n->pass = a->pass;
    n->pending = a->pending;
    n->skip = a->skip;
    n->ends = a->ends;
    n->busy = true;
    free(a);
  }
}

PlStatus pl_walk_unspent(const PlNode *n) {
  if (PL_UNLIKELY(n->spent) && n->kind != PL_NODE_LEAF)
    PL_FAIL(PL_ERR_STATE,
            "backward: the tape below this tensor was freed by an earlier backward (at %s); "
            "pass retain_graph=true to that one to go back twice",
            n->name ? n->name : "a tensor");
  return PL_OK;
}

static PlStatus visit(PlWalk *w, PlNode *n) {
  if (n->pass == w->pass) return PL_OK;
  if (PL_UNLIKELY(n->busy) && n->kind != PL_NODE_LEAF && !w->retain)
    PL_FAIL(PL_ERR_STATE, "backward: called again from inside itself over the same tape, at %s; the inner one takes retain_graph=true",
            n->name);
  PL_TRY(pl_walk_unspent(n));
  if (PL_UNLIKELY(n->busy)) PL_TRY(put_aside(w, n));
  n->pass = w->pass;
  n->pending = 0;
  n->busy = true;
  n->refs++;
  n->link = NULL;
  if (w->last) w->last->link = n;
  else w->first = n;
  w->last = n;
  return PL_OK;
}

uint64_t pl_walk_mark(void) { return ++pass_counter; }

PlStatus pl_walk_seed(PlWalk *w, PlNode *n, uint32_t slot, PlTensor *dy) {
  if (!w->pass) w->pass = ++pass_counter;
  if (PL_UNLIKELY(pl_state.watch != NULL)) PL_TRY(pl_anomaly_check(n, &dy, 1, true));
  PL_TRY(visit(w, n));
  return pl_gradient_accumulate(&n->slots[slot].grad, pl_retain(dy));
}

PlStatus pl_walk_touch(PlWalk *w, PlNode *n) {
  if (!w->pass) w->pass = ++pass_counter;
  return visit(w, n);
}

PlStatus pl_walk_touch_always(PlWalk *w, PlKey *k) {
  if (PL_LIKELY(!k->has_always)) return PL_OK;
  bool any = false;
  for (PlNode *m = k->tape.next; m != &k->tape; m = m->next) {
    if (m->kind != PL_NODE_RULE || !m->u.rule || !m->u.rule->always) continue;
    any = true;
    if (!m->busy) PL_TRY(pl_walk_touch(w, m));
  }
  k->has_always = any;
  return PL_OK;
}

/* ---- the whole walk ------------------------------------------------------------------------------------------------ */

/* A graph sees neither that a tape from outside is freed by its backward nor that what it saved is written later. Such a tape
 * may be asked about, but not walked. */
static PlStatus all_traced(const PlWalk *w) {
  const PlGraph *f = pl_state.trace;
  if (PL_LIKELY(!f) || !f->record) return PL_OK;
  for (const PlNode *n = w->first; n; n = n->link)
    if (n->seq <= f->began && n->kind != PL_NODE_LEAF && !n->skip && !ends_here(w, n))
      PL_FAIL(PL_ERR_TRACE,
              "backward in a traced function reaches %s, which was computed before the trace began; pass its result as "
              "an argument, or compute it inside",
              n->name ? n->name : "a tensor");
  return PL_OK;
}

static PlStatus walk_narrow(PlWalk *w) {
  PL_TRY(pl_walk_visit_leading(w));
  PL_TRY(all_traced(w));
  for (PlNode *n = w->first; n; n = n->link)
    for (uint32_t i = 0; i < n->nin && !n->skip; i++)
      if (pl_walk_wants(n, i)) n->dests[i].node->pending++;
  w->started = true;
  /* nodes become ready while others are delivered to: those that wait for nobody are noted before */
  size_t ready = 0, room = 0;
  for (PlNode *n = w->first; n; n = n->link) room += n->pending == 0 && !n->skip;
  PlNode **at = malloc((room + 1) * sizeof *at);
  if (!at) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  for (PlNode *n = w->first; n; n = n->link)
    if (n->pending == 0 && !n->skip) at[ready++] = n;
  PlStatus s = PL_OK;
  for (size_t i = 0; i < ready && s == PL_OK; i++) s = arrive(w, at[i]);
  free(at);
  while (w->nheap && s == PL_OK) s = run_node(w, heap_pop(w), true);
  return s;
}

static PlStatus walk(PlWalk *w) {
  if (w->narrow) return walk_narrow(w);
  PlNode *end_of_seeds = w->last;
  for (PlNode *n = w->first; n; n = n->link)
    for (uint32_t i = 0; i < n->nin; i++) {
      PlNode *to = n->dests[i].node;
      if (!to) continue;
      PL_TRY(visit(w, to));
      to->pending++;
    }
  PL_TRY(all_traced(w));
  w->started = true;
  for (PlNode *n = w->first; n; n = n == end_of_seeds ? NULL : n->link)
    if (n->pending == 0) PL_TRY(arrive(w, n));
  while (w->nheap) PL_TRY(run_node(w, heap_pop(w), false));
  return PL_OK;
}

static void clean(PlWalk *w) {
  for (PlNode *n = w->first; n;) {
    PlNode *next = n->link;
    for (uint32_t o = 0; o < n->nout; o++) {
      PlTensor *g = n->slots[o].grad;
      n->slots[o].grad = NULL;
      n->slots[o].capture = 0;
      pl_tensor_release(g);
    }
    n->busy = false;
    n->skip = n->ends = false;
    n->link = NULL;
    pl_node_release(n);
    n = next;
  }
  if (PL_UNLIKELY(w->aside != NULL)) put_back(w);
  if (w->heap != w->few) free(w->heap);
  w->first = w->last = NULL;
  w->heap = NULL;
}

/* Only keys born before the walk: one made and kept by a rule was never muted. */
/* A walk mutes no forward key: while one is open, the walk is a part of the function that it differentiates. */
void pl_keys_mute(const PlKey *key, PlMute how, uint64_t born_before, uint32_t by) {
  PlKey *ambient = pl_key_ambient();
  if (how == PL_MUTE_NONE) return;
  if (ambient == key || (how == PL_MUTE_ABOVE && ambient->level >= key->level)) ambient->muted += by;
  for (PlKey *k = pl_state.keys; k; k = k->next)
    if (k->born < born_before && (k == key || (how == PL_MUTE_ABOVE && k->level >= key->level && (key->forward || !k->forward))))
      k->muted += by;
}

PlStatus pl_walk_run(PlWalk *w, const PlKey *key, PlMute mute) {
  uint64_t born = ++pl_state.key_seq;
  const bool changes = pl_changes_begin();
  pl_keys_mute(key, mute, born, 1);
  const uint8_t autocast = pl_set_autocast(0); /* gradients have the dtypes that forward chose */
  const bool records = !pl_state.grad_off;
  if (mute == PL_MUTE_NONE) pl_grad_enable(true); /* create_graph asks for a history, whatever is around */
  pl_state.in_backward++;
  w->outer = pl_state.walk;
  pl_state.walk = w;
  PlStatus s = w->status;
  if (s == PL_OK && PL_UNLIKELY(pl_state.trace != NULL)) {
    PlGraph *f = pl_state.trace;
    const uint64_t outer = f->tape;
    int32_t begin = pl_graph_backward_begin(f);
    s = walk(w);
    f->tape = outer;
    if (s == PL_OK) s = pl_graph_backward_end(f, begin, w->ny, w->ys);
  } else if (s == PL_OK) s = walk(w);
  pl_sums_end(w, s == PL_OK);
  pl_state.walk = w->outer;
  pl_state.in_backward--;
  pl_set_autocast(autocast);
  pl_grad_enable(records);
  pl_keys_mute(key, mute, born, (uint32_t)-1);
  pl_changes_end(changes);
  if (s != PL_OK && w->started && !w->retain) /* nothing of a failed tape stays behind, unless somebody wants to go back once more */
    for (PlNode *n = w->first; n; n = n->link)
      if (n->kind > PL_NODE_IDENTITY && !n->skip && !ends_here(w, n)) pl_node_clear(n);
  clean(w);
  return s;
}

void pl_walk_abandon(PlWalk *w) { clean(w); }
