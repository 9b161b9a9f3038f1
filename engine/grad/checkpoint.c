/* SPDX-License-Identifier: MIT
 * Checkpoints: their life, the nodes recorded inside, and running the function again. See checkpoint.h.
 *
 * A node holds its checkpoint until it is cleared; the checkpoint knows its nodes weakly and holds the arguments (as
 * aliases with their history of then) and the memory from outside. So it goes when the last of its nodes has run. */
#include "engine/grad/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grad/forward_mode.h"
#include "kernels/kernel.h"

_Thread_local uint64_t pl_clock;

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void release(PlCheckpoint *c) {
  if (!c || --c->refs) return;
  for (int i = 0; i < c->nheld; i++) pl_tensor_release(c->args[i]);
  free(c->args);
  free(c->family);
  free(c->same);
  free(c->roots);
  free(c->keys);
  free(c->nodes);
  pl_ck_log_free(c);
  pl_ck_kept_free(c);
  free(c->traces);
  if (c->rerun.drop) c->rerun.drop(c->rerun.ud);
  free(c);
}

static void push(PlCheckpoint *c) {
  pl_clock = (pl_clock | 7) + 1;
  c->base = pl_clock;
  c->outer = pl_set_checkpoint(c);
}

static PlStatus hold(PlCheckpoint *c, PlTensor *t) {
  PL_TRY(pl_tensor_alias(&c->args[c->nheld], t));
  PlTensor *alias = c->args[c->nheld];
  c->roots[c->nheld++] = t;
  PL_TRY(pl_entries_copy(alias, t, NULL));
  const PlNode *n = t->node;
  if (n && n->kind == PL_NODE_LEAF && n->u.target == t) alias->flags |= PL_T_STANDS_IN;
  return PL_OK;
}

static PlStatus hold_arguments(PlCheckpoint *c, PlTensor *const *args, int nargs) {
  const size_t room = 2 * (size_t)nargs + 1;
  c->args = calloc(room, sizeof *c->args);
  c->roots = calloc(room, sizeof *c->roots);
  c->family = calloc(room, sizeof *c->family);
  c->same = calloc(room, sizeof *c->same);
  if (!c->args || !c->roots || !c->family || !c->same) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  PL_TRY(pl_history_current(args, nargs));
  for (int i = 0; i < nargs; i++) {
    PL_TRY(hold(c, args[i]));
    while (args[c->same[i]] != args[i]) c->same[i]++;
  }
  c->nargs = nargs;
  for (int i = 0; i < nargs; i++) {
    int at = args[i]->base ? 0 : -1;
    while (at >= 0 && at < c->nheld && c->roots[at] != args[i]->base) at++;
    if (at == c->nheld) PL_TRY(hold(c, args[i]->base));
    c->family[i] = at;
  }
  return PL_OK;
}

PlStatus pl_checkpoint_begin(PlCheckpoint **out, const PlRerun *rerun, PlTensor *const *args, int nargs) {
  PlCheckpoint *outer = pl_state.checkpoint;
  *out = NULL;
  bool plain = pl_state.grad_off || pl_forward_runs() || pl_state.trace || pl_state.batch || (outer && !outer->replaying);
  for (int i = 0; i < nargs; i++) plain |= args[i]->a.symbolic != 0;
  if (plain) {
    if (outer) pl_clock = (pl_clock | 7) + 1; /* as where this becomes one when the outer function runs again */
    rerun->drop(rerun->ud);
    return PL_OK;
  }
  PlCheckpoint *c = calloc(1, sizeof *c);
  if (!c) {
    rerun->drop(rerun->ud);
    PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  }
  c->refs = 1;
  c->rerun = *rerun;
  c->keys_born = outer ? outer->keys_born : pl_state.key_seq + 1;
  (void)pl_rng_take(0); /* seeded by now: a second run must not be seeded anew */
  pl_ck_modes_read(&c->modes);
  PlStatus s = hold_arguments(c, args, nargs);
  if (s == PL_OK) s = pl_ck_keys_read(c);
  if (s != PL_OK) {
    release(c);
    return s;
  }
  push(c);
  c->first = c->base;
  *out = c;
  return PL_OK;
}

void pl_checkpoint_end(PlCheckpoint *c) {
  if (!c) return;
  PlCheckpoint *top = pl_state.checkpoint, **at = &top;
  while (*at && *at != c) at = &(*at)->outer;
  if (*at) *at = c->outer;
  pl_set_checkpoint(top);
  c->outer = NULL;
  free(c->roots);
  c->roots = NULL;
  release(c);
}

uint32_t pl_checkpoint_refs(const PlCheckpoint *c) { return c->refs; }
int pl_checkpoint_kept(const PlCheckpoint *c) { return c->rerun.kept; }

void pl_checkpoint_each(const PlCheckpoint *c, void (*tensor)(void *ctx, PlTensor *t), void (*around)(void *ctx, PlCheckpoint *c),
                        void *ctx) {
  for (size_t i = 0; i < c->nnodes; i++)
    if (c->nodes[i].from) around(ctx, c->nodes[i].from);
  for (size_t i = 0; i < c->nkept; i++)
    for (int o = 0; o < PL_MAX_OUT; o++)
      if (c->kept[i].out[o]) tensor(ctx, c->kept[i].out[o]);
  for (int i = 0; i < c->nheld; i++) tensor(ctx, c->args[i]);
  for (size_t i = 0; i < c->noutside; i++) {
    tensor(ctx, c->outside[i].t);
    if (c->outside[i].written) {
      tensor(ctx, c->outside[i].written->bytes);
      tensor(ctx, c->outside[i].written->now);
    }
  }
  for (size_t i = 0; i < c->ncasts; i++) {
    tensor(ctx, c->casts[i].leaf);
    tensor(ctx, c->casts[i].cast);
  }
}

bool pl_checkpoint_stopped(void) {
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    if (c->replaying && c->stopped) return true;
  return false;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

/* What a node lacks of what its rule reads. */
static int64_t lacks(const PlNode *n) {
  int64_t count = n->kind == PL_NODE_RULE && n->u.rule == NULL;
  for (uint32_t i = 0; i < n->nsaved; i++) count += !n->saved[i].t && !n->saved[i].packed;
  return count;
}

/* The walk that runs will come to it. */
static bool wanted(const PlNode *n) { return n->busy && !n->spent && lacks(n) > 0; }

static PlStatus log_node(PlCheckpoint *c, PlNode *n) {
  PL_TRY(pl_ck_grow(&c->nodes, c->nnodes, &c->nodes_cap, sizeof *c->nodes));
  c->nodes[c->nnodes] = (PlCkNode){.node = n, .name = n->name, .born = n->key->born};
  n->checkpoint = c;
  n->checkpoint_at = (uint32_t)c->nnodes++;
  c->refs++;
  return PL_OK;
}

/* n leaves its checkpoint and those around that one, but for `but`, which has it again; NULL: all. */
static void leave(PlNode *n, const PlCheckpoint *but) {
  while (n->checkpoint && n->checkpoint != but) {
    PlCheckpoint *c = n->checkpoint;
    PlCkNode *e = &c->nodes[n->checkpoint_at];
    n->checkpoint = e->from; /* with its reference */
    n->checkpoint_at = (uint32_t)e->from_at;
    e->node = NULL;
    e->from = NULL;
    release(c);
  }
}

void pl_checkpoint_forget(PlNode *n) { leave(n, NULL); }

/* A checkpoint inside of c's second run takes n over; c still knows it, for a third. */
static PlStatus hand_over(PlCheckpoint *to, PlNode *n, PlCheckpoint *c, size_t at) {
  leave(n, c);
  PL_TRY(log_node(to, n));
  to->nodes[to->nnodes - 1].from = c; /* the node's reference */
  to->nodes[to->nnodes - 1].from_at = at;
  return PL_OK;
}

PlStatus pl_checkpoint_made(PlNode *n) {
  PlCheckpoint *c = pl_state.checkpoint;
  if (!pl_watched() || c->replaying || !pl_ck_old(c, n->key)) return PL_OK;
  return log_node(c, n);
}

static PlStatus not_the_same(PlCheckpoint *c, const char *name, const char *was) {
  c->failed = true;
  PL_FAIL(PL_ERR_STATE,
          "checkpoint: run again, the function does not do what it did in forward: gradients pass through %s, "
          "where they passed through %s; nothing it looks at may change between forward and backward",
          name, was ? was : "nothing more");
}

/* A leaf that the function makes is made again; it represents the first one unless that one is still reachable. */
static bool same_leaf(const PlNode *was, const PlNode *now) {
  return was->kind == PL_NODE_LEAF && now->kind == PL_NODE_LEAF && !was->u.target;
}

/* n's inputs must have the history that they had. */
static PlStatus check_inputs(PlCheckpoint *c, const PlNode *n, PlTensor *const *in, int nin) {
  for (int i = 0; i < nin && (uint32_t)i < n->nin; i++) {
    PlNode *to = NULL;
    uint32_t slot = 0;
    if (!n->dests[i].node) continue;
    if (in[i] && pl_entry_get(in[i], n->key, &to, &slot) &&
        ((to == n->dests[i].node && slot == n->dests[i].slot) || same_leaf(n->dests[i].node, to)))
      continue;
    c->failed = true;
    PL_FAIL(PL_ERR_STATE,
            "checkpoint: run again, the function's %s gets %s with another history than in forward; pass tensors "
            "that change as arguments",
            n->name, in[i] ? pl_desc_text(&in[i]->a) : "nothing");
  }
  return PL_OK;
}

PlStatus pl_checkpoint_node(PlNode **out, PlKey *key, const char *name, PlTensor *const *in, int nin) {
  PlCheckpoint *top = pl_state.checkpoint, *c = top;
  *out = NULL;
  while (c && !c->replaying) c = c->outer;
  if (!pl_watched() || !c || !pl_ck_old(c, key)) return PL_OK;
  while (c->node < c->nnodes && !c->nodes[c->node].node && c->nodes[c->node].born != key->born &&
         !pl_ck_key_runs(c, c->nodes[c->node].born))
    c->node++; /* of a key that has ended */
  PlCkNode *was = c->node < c->nnodes ? &c->nodes[c->node] : NULL;
  if (!was || was->born != key->born || strcmp(was->name, name) != 0) return not_the_same(c, name, was ? was->name : NULL);
  c->node++;
  PlNode *n = was->node;
  if (!n) return PL_OK; /* it has run, or nobody wanted it: a node in its place, for as long as the function runs */
  if (wanted(n)) PL_TRY(check_inputs(c, n, in, nin));
  if (top != c) { /* a checkpoint inside: from now on it is the one that restores n */
    const int64_t less = n->checkpoint == c && wanted(n) ? lacks(n) : 0;
    PL_TRY(hand_over(top, n, c, (size_t)(was - c->nodes)));
    c->pending -= less;
    if (c->pending == 0) c->complete = true;
  }
  n->refs++;
  *out = n;
  return PL_OK;
}

static bool got(PlCheckpoint *c) {
  if (--c->pending == 0) c->complete = true;
  return true;
}

bool pl_checkpoint_keeps(PlNode *n, uint32_t i, const PlTensor *t) {
  PlCheckpoint *c = n->checkpoint;
  if (n->saved[i].t || n->saved[i].packed) return false;
  if (c->replaying) return wanted(n) && got(c);
  return !pl_ck_inside(c, t->storage) || t->storage->kept;
}

bool pl_checkpoint_keeps_rule(PlNode *n) {
  PlCheckpoint *c = n->checkpoint;
  return c->replaying && wanted(n) && got(c);
}

bool pl_checkpoint_repeats(const PlNode *n) {
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    if (c->replaying && n->seq <= c->seq) return true;
  return false;
}

void pl_checkpoint_drop_again(PlNode *n) {
  const PlCheckpoint *c = n->checkpoint;
  for (uint32_t i = 0; i < n->nsaved; i++) {
    PlTensor *t = n->saved[i].t;
    if (!t || t->storage->stamp < c->first || t->storage->nbytes <= PL_SMALL || t->storage->kept) continue;
    n->saved[i] = (PlSaved){.t = NULL};
    pl_tensor_release(t);
  }
  if (n->kind == PL_NODE_RULE && n->u.rule && n->u.rule->again) pl_node_drop_rule(n);
}

/* ---- running again ------------------------------------------------------------------------------------------------ */

/* The first argument that is the same tensor as number i. */
static int first_of(const PlCheckpoint *c, int i) { return i < c->nargs ? c->same[i] : i; }

/* The arguments, under handles of their own: the function may change their histories. */
static PlStatus stand_ins(PlCheckpoint *c, PlTensor ***out) {
  PlTensor **args = calloc((size_t)c->nheld + 1, sizeof *args);
  PlStatus s = args ? PL_OK : pl_fail(PL_ERR_OOM, "checkpoint: out of memory");
  for (int i = 0; i < c->nheld && s == PL_OK; i++) {
    const int first = first_of(c, i);
    if (first != i) {
      args[i] = pl_retain(args[first]);
      continue;
    }
    s = pl_tensor_alias(&args[i], c->args[i]);
    if (s == PL_OK) s = pl_entries_copy(args[i], c->args[i], NULL);
    if (s == PL_OK) args[i]->flags |= c->args[i]->flags & PL_T_STANDS_IN;
  }
  for (int i = 0; i < c->nargs && s == PL_OK; i++) {
    if (c->family[i] < 0 || first_of(c, i) != i) continue;
    args[i]->base = pl_retain(args[c->family[i]]);
    args[i]->history = args[i]->base->history;
  }
  if (s == PL_OK) {
    *out = args;
    return PL_OK;
  }
  if (args) pl_release_all(args, c->nheld);
  free(args);
  return s;
}

PlStatus pl_checkpoint_switches(PlTensor *t) {
  PlCheckpoint *c = pl_state.checkpoint;
  while (c && !c->replaying) c = c->outer;
  if (!c || pl_ck_inside(c, t->storage)) return PL_OK;
  for (size_t i = 0; i < c->nswitches; i++)
    if (c->switches[i].t == t) return PL_OK;
  PL_TRY(pl_ck_grow(&c->switches, c->nswitches, &c->switches_cap, sizeof *c->switches));
  c->switches[c->nswitches++] = (PlCkSwitch){pl_retain(t), pl_tensor_requires_grad(t)};
  return PL_OK;
}

static PlStatus switch_back(PlCheckpoint *c) {
  PlStatus s = PL_OK;
  while (c->nswitches > 0) {
    const PlCkSwitch w = c->switches[--c->nswitches];
    const PlStatus mine = pl_tensor_requires_grad(w.t) == w.was ? PL_OK : pl_requires_grad(w.t, w.was);
    if (s == PL_OK) s = mine;
    pl_tensor_release(w.t);
  }
  free(c->switches);
  c->switches = NULL;
  c->switches_cap = 0;
  return s;
}

static PlStatus run(PlCheckpoint *c) {
  PlTensor **args;
  PL_TRY(stand_ins(c, &args));
  PlStatus s = pl_ck_put_back(c);
  c->roots = args;
  if (s == PL_OK) s = c->rerun.run(c->rerun.ud, args, c->nargs);
  if (s != PL_OK && c->stopped) s = PL_OK;
  PlStatus back = pl_ck_put_forth(c);
  pl_ck_kept_back(c);
  c->roots = NULL;
  pl_release_all(args, c->nheld);
  free(args);
  return s == PL_OK ? back : s;
}

static PlStatus run_then(PlCheckpoint *c) {
  PlCkModes now;
  PlCkKeysWas *keys;
  struct PlCasts *casts = pl_state.casts;
  PlCheckpoint *outer = pl_state.checkpoint;
  const int depth = pl_state.checkpoint_depth, in_backward = pl_state.in_backward;
  PL_TRY(pl_ck_keys_set(c, &keys));
  pl_ck_modes_read(&now);
  const bool changes = pl_changes_begin();
  pl_ck_modes_set(&c->modes);
  pl_set_packing(NULL); /* what it saves now is used at once */
  pl_state.casts = NULL;
  pl_set_checkpoint(NULL); /* what is around sees nothing of it */
  pl_state.checkpoint_depth = 0;
  push(c);
  PlStatus s = run(c);
  pl_set_checkpoint(outer);
  PlStatus back = switch_back(c);
  if (s == PL_OK) s = back;
  pl_state.checkpoint_depth = depth;
  pl_state.in_backward = in_backward;
  pl_autocast_end();
  pl_state.casts = casts;
  pl_ck_modes_set(&now);
  pl_changes_end(changes);
  pl_ck_keys_back(keys);
  return s;
}

PlStatus pl_checkpoint_restore(PlNode *n) {
  PlCheckpoint *c = n->checkpoint;
  if (!c) PL_FAIL(PL_ERR_STATE, "backward of %s: what it saved has been freed", n->name);
  for (const PlCheckpoint *r = pl_state.checkpoint; r; r = r->outer)
    if (r == c)
      PL_FAIL(PL_ERR_STATE,
              "backward of %s: it is in a checkpoint whose function is running; inside of it use T.grad, or go back "
              "outside",
              n->name);
  if (c->replaying) PL_FAIL(PL_ERR_STATE, "backward of %s: its checkpoint is already run again", n->name);
  c->pending = 0;
  for (size_t i = 0; i < c->nnodes; i++)
    if (c->nodes[i].node && c->nodes[i].node->checkpoint == c && wanted(c->nodes[i].node)) c->pending += lacks(c->nodes[i].node);
  c->replaying = true;
  c->complete = c->stopped = c->failed = false;
  c->call = c->node = c->kernel = 0;
  c->seq = pl_state.seq;
  c->refs++;
  PlStatus s = run_then(c);
  c->replaying = false;
  c->base = c->first;
  if (s == PL_OK && (c->pending > 0 || (n->checkpoint == c && lacks(n) > 0)))
    s = pl_fail(PL_ERR_STATE,
                "checkpoint: run again, the function ended before it had computed what backward of %s needs; it must "
                "do the same whenever it is called",
                n->name);
  release(c);
  return s;
}

/* ---- kept casts ------------------------------------------------------------------------------------------------------ */

PlStatus pl_checkpoint_uses_cast(PlTensor *leaf, PlTensor *cast) {
  for (PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer) {
    if (c->replaying || pl_ck_inside(c, cast->storage)) continue;
    PL_TRY(pl_ck_grow(&c->casts, c->ncasts, &c->casts_cap, sizeof *c->casts));
    c->casts[c->ncasts++] = (PlCkCast){pl_retain(leaf), pl_retain(cast)};
  }
  return PL_OK;
}

PlTensor *pl_checkpoint_cast(const PlTensor *leaf, PlDtype to) {
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    for (size_t i = 0; c->replaying && i < c->ncasts; i++)
      if (c->casts[i].leaf->a.data == leaf->a.data && c->casts[i].cast->a.dtype == to && pl_shape_equal(&c->casts[i].leaf->a, &leaf->a))
        return c->casts[i].cast;
  return NULL;
}
