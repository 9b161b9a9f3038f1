/* SPDX-License-Identifier: MIT
 * What happens to values whose storage is written, or goes. Recipes read values, not storages, so a written storage simply
 * parts with its value: one that has a recipe lives on without memory, if anybody reads it. One that has none cannot be
 * had again: what was computed from it and is in memory forgets how (remat_cut); only if something is not, the old
 * contents are kept in a copy. */
#include <string.h>

#include "engine/remat/remat_internal.h"

/* ---- cutting ------------------------------------------------------------------------------------------------ */

/* Puts what cannot be computed without v, and has no memory of its own that anybody knows, on the list that begins with v;
 * in `missing` a live value that is evicted, or NULL. */
static void find_dependents(PlValue *v, PlValue **missing) {
  PlRematState *rs = remat();
  PlValue *last = v;
  const uint64_t pass = ++rs->pass;
  *missing = NULL;
  v->pass = pass;
  v->link = NULL;
  for (PlValue *at = v; at; at = at->link)
    for (Read *in = at->readers; in; in = in->next)
      for (int o = 0; o < in->by->op->nout; o++) {
        PlValue *w = in->by->out[o].value;
        if (!w || w->pass == pass) continue;
        w->pass = pass;
        if (is_live(w)) {
          if (w->evicted) *missing = w;
          continue;
        }
        last->link = w;
        w->link = NULL;
        last = w;
      }
}

/* Is there an evicted value that will have to be computed from v? */
static bool is_awaited(PlValue *v) {
  PlValue *missing;
  find_dependents(v, &missing);
  return missing != NULL;
}

/* False, and nothing has changed, if an evicted value depends on v. Else nothing reads v any more. */
bool remat_cut(PlValue *v) {
  PlValue *missing;
  find_dependents(v, &missing);
  if (missing || remat()->replaying) return false;
  for (PlValue *at = v; at; at = at->link) at->pins++; /* none of the list goes while it is walked */
  for (PlValue *at = v, *next; at; at = next) {
    while (at->readers) {
      Recipe *r = at->readers->by;
      r->refs++;
      for (int o = 0; o < r->op->nout; o++)
        if (r->out[o].value) {
          remat_drop_recipe(r->out[o].value);
        }
      remat_recipe_release(r); /* with its reads */
    }
    next = at->link;
  }
  for (PlValue *at = v, *next; at; at = next) {
    next = at->link;
    at->pins--;
    if (at != v) remat_check(at);
  }
  return true;
}

/* ---- writes --------------------------------------------------------------------------------------------------- */

/* The old contents live on in memory of their own. */
static PlStatus keep_copy(PlValue *v) {
  PlTensor *t;
  const int64_t n = (int64_t)v->bytes;
  PlStorage *s = v->storage;
  v->pins++;
  PlStatus st = pl_tensor_empty(&t, PL_U8, 1, &n);
  v->pins--;
  PL_TRY(st);
  memcpy(t->storage->data, s->data, v->bytes);
  remat_let_go(v);
  v->storage = t->storage;
  v->was = v->storage->owns;
  v->storage->value = v;
  v->storage->owns = PL_OWNS_REMAT;
  v->storage->refs++;
  v->held = true;
  pl_tensor_release(t);
  return PL_OK;
}

/* Without memory for a copy: what depends on it is computed now. */
static PlStatus bring_dependents(PlValue *v) {
  for (;;) {
    PlValue *w;
    find_dependents(v, &w);
    if (!w) return PL_OK;
    PL_TRY(remat_bring(w));
    remat_drop_recipe(w);
  }
}

static PlStatus detach(PlValue *v) {
  if (v->evicted) PL_TRY(remat_bring(v));
  if (v->readers && !v->recipe && !remat_cut(v)) {
    if (keep_copy(v) == PL_OK) return PL_OK;
    PL_TRY(bring_dependents(v));
    remat_cut(v);
  }
  remat_let_go(v);
  remat()->stats.dead++;
  return PL_OK;
}

PlStatus pl_remat_detach(PlStorage *s) {
  PlValue *v = s->value;
  v->pins++; /* its last reader may go meanwhile */
  PlStatus st = detach(v);
  v->pins--;
  remat_check(v);
  return st;
}

PlStatus pl_remat_settle(PlStorage *s) {
  PlValue *v = s->value;
  if (v->evicted) PL_TRY(remat_bring(v));
  remat_drop_recipe(v);
  return PL_OK;
}

/* ---- the end of a storage ----------------------------------------------------------------------------------------- */

void pl_remat_end(PlStorage *s) {
  PlValue *v = s->value;
  PlRematState *rs = remat();
  if (v->readers && !v->evicted && (v->recipe ? is_awaited(v) : !remat_cut(v))) { /* kept for those who read it */
    s->refs = 1;
    v->held = true;
    if (v->recipe) remat_lru_add(v);
    return;
  }
  if (v->evicted) {
    v->evicted = false;
    rs->stats.evicted--;
    rs->stats.evicted_bytes -= (int64_t)v->bytes;
  }
  const bool away = ((uintptr_t)s->data >> 53) & 1;
  remat_let_go(v);
  if (s->owns == PL_OWNS_BLOCK && !away) pl_block_free(s->data);
  pl_pool_put(s->block, s->piece);
  rs->stats.dead++;
  remat_check(v);
}
