/* SPDX-License-Identifier: MIT
 * Gradients for chosen tensors through an explicit key that stays usable: what the functional API is made of.
 * And what a stretch of recorded ops reads from outside, for recomputation. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/walk.h"

static PlStatus seed(PlWalk *w, PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int n) {
  for (int i = 0; i < n; i++) {
    PlNode *node;
    uint32_t slot;
    PL_TRY(pl_history_refresh(ys[i]));
    if (pl_entry_get(ys[i], k, &node, &slot))
      PL_TRY(pl_walk_seed_tensor(w, ys[i], dys ? dys[i] : NULL, node, slot, false));
  }
  return PL_OK;
}

PlStatus pl_key_pull(PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx,
                     PlTensor **out) {
  if (!k->active) PL_FAIL(PL_ERR_STATE, "grad key finalized");
  PlWalk w = {.retain = true, .results = out};
  memset(out, 0, (size_t)nx * sizeof *out);
  int *same_as = malloc((size_t)(nx ? nx : 1) * sizeof *same_as);
  if (!same_as) PL_FAIL(PL_ERR_OOM, "backward: out of memory");
  for (int i = 0; i < nx; i++) pl_retain(xs[i]);
  pl_key_retain(k);
  PlStatus s = seed(&w, k, ys, dys, ny);
  if (s == PL_OK) s = pl_walk_capture(&w, k, xs, nx, same_as);
  if (s == PL_OK)
    s = pl_walk_run(&w, k, PL_MUTE_SELF);
  else
    pl_walk_abandon(&w);
  for (int i = 0; i < nx && s == PL_OK; i++)
    if (same_as[i] >= 0 && out[same_as[i]]) out[i] = pl_retain(out[same_as[i]]);
  free(same_as);
  for (int i = 0; i < nx; i++) pl_tensor_release(xs[i]);
  if (s != PL_OK) pl_release_all(out, nx);
  pl_key_release(k);
  return s;
}

/* ---- what newer nodes read from older ones -------------------------------------------------------------- */

typedef struct Search {
  PlNode **todo; /* seen nodes, retained */
  size_t n, cap;
  uint64_t since, pass;
} Search;

static PlStatus push(Search *f, PlNode *n) {
  for (size_t i = 0; n->seq <= f->since && i < f->n; i++)
    if (f->todo[i] == n) return PL_OK;
  if (f->n == f->cap) {
    size_t cap = f->cap ? 2 * f->cap : 64;
    PlNode **todo = realloc(f->todo, cap * sizeof *todo);
    if (!todo) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
    f->todo = todo;
    f->cap = cap;
  }
  n->refs++;
  f->todo[f->n++] = n;
  return PL_OK;
}

static PlStatus reach(Search *f, PlNode *n) {
  if (n->seq > f->since) { /* new: marked by the pass number, as a walk does */
    if (n->pass == f->pass) return PL_OK;
    n->pass = f->pass;
  }
  return push(f, n);
}

PlStatus pl_grad_captured(PlTensor *const *ys, int n, uint64_t since, PlStatus (*found)(void *ctx, PlTensor *t),
                          void *ctx, bool *inner) {
  Search f = {.since = since, .pass = pl_walk_number()};
  PlStatus s = PL_OK;
  *inner = false;
  for (int i = 0; i < n && s == PL_OK; i++) {
    PlEntry first = {.next = ys[i]->more, .node = ys[i]->node};
    for (PlEntry *e = &first; e && s == PL_OK; e = e->next)
      if (e->node && pl_key_records(e->node->key)) s = reach(&f, e->node);
  }
  for (size_t i = 0; i < f.n && s == PL_OK; i++) {
    PlNode *m = f.todo[i];
    for (uint32_t d = 0; m->seq > since && d < m->nin && s == PL_OK; d++)
      if (m->dests[d].node) s = reach(&f, m->dests[d].node);
  }
  for (size_t i = 0; i < f.n && s == PL_OK; i++) {
    PlNode *m = f.todo[i];
    if (m->seq > since) continue;
    if (m->kind <= PL_NODE_IDENTITY && m->u.target)
      s = found(ctx, m->u.target);
    else
      *inner = true;
  }
  for (size_t i = 0; i < f.n; i++) pl_node_release(f.todo[i]);
  free(f.todo);
  return s;
}
