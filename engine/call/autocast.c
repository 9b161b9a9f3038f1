/* SPDX-License-Identifier: MIT
 * Regions of mixed precision and their cache of cast leaves. A kept cast is used again only while its leaf has the
 * same contents (version) and is recorded by the same keys as when the cast was made. */
#include "engine/call/autocast.h"

#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/checkpoint.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"

enum { MAX_KEYS = 4, FIRST_SLOTS = 64 };

typedef struct Kept {
  PlTensor *leaf, *cast; /* strong; leaf NULL: a free slot */
  const PlGraph *graph;  /* of the trace that the cast was made in, which holds it; else NULL */
  uint32_t version;      /* of the leaf's storage; in a trace which value of the graph the leaf was */
  uint32_t nkeys;
  const PlNode *by[MAX_KEYS]; /* the leaf's nodes under the keys that recorded the cast; the cast holds them */
} Kept;

/* Open addressing by the leaf's address; freed as a whole. */
struct PlCasts {
  size_t n, slots; /* a power of two */
  Kept *at;
};

/* ---- the cache ------------------------------------------------------------------------------------------- */

static void drop_all(struct PlCasts *c) {
  if (!c) return;
  for (size_t i = 0; i < c->slots; i++) {
    pl_tensor_release(c->at[i].cast);
    pl_tensor_release(c->at[i].leaf);
  }
  free(c->at);
  free(c);
}

static void cache_clear(void) {
  struct PlCasts *c = pl_state.casts;
  pl_state.casts = NULL;
  drop_all(c);
}

static Kept *slot_of(struct PlCasts *c, const PlTensor *leaf) {
  size_t i = ((uintptr_t)leaf >> 4) * 0x9e3779b97f4a7c15ULL >> 20;
  while (c->at[i & (c->slots - 1)].leaf && c->at[i & (c->slots - 1)].leaf != leaf) i++;
  return &c->at[i & (c->slots - 1)];
}

/* Room for one more; false: no memory, the cast is simply not kept. */
static bool make_room(void) {
  struct PlCasts *c = pl_state.casts;
  if (c && 2 * c->n < c->slots) return true;
  struct PlCasts *bigger = calloc(1, sizeof *bigger);
  if (!bigger) return false;
  bigger->slots = c ? 2 * c->slots : FIRST_SLOTS;
  bigger->at = calloc(bigger->slots, sizeof *bigger->at);
  if (!bigger->at) {
    free(bigger);
    return false;
  }
  for (size_t i = 0; c && i < c->slots; i++)
    if (c->at[i].leaf) *slot_of(bigger, c->at[i].leaf) = c->at[i], bigger->n++;
  if (c) {
    free(c->at);
    free(c);
  }
  pl_state.casts = bigger;
  return true;
}

/* A leaf that requires a gradient of some key. Fills in what a kept cast must agree with; false: not to be kept. In a trace
 * each op gets a handle of its own for the same leaf: the leaf itself is what they have in common. */
static bool describe(PlTensor *t, Kept *k) {
  if (!t->node || t->node->kind != PL_NODE_LEAF) return false;
  if (t->a.symbolic) {
    if (!t->node->u.target) return false;
    *k = (Kept){.leaf = t->node->u.target, .graph = pl_sym_graph(t), .version = (uint32_t)pl_sym_value(t)};
  } else {
    if (!(t->node->u.target == t || (t->flags & PL_T_STANDS_IN))) return false;
    *k = (Kept){.leaf = t, .version = t->storage->version};
  }
  if (pl_state.grad_off) return true;
  PlEntry first = {.next = t->more, .node = t->node};
  for (const PlEntry *e = &first; e; e = e->next) {
    if (!pl_key_records(e->node->key)) continue;
    if (k->nkeys == MAX_KEYS) return false;
    k->by[k->nkeys++] = e->node;
  }
  return true;
}

static bool agrees(const Kept *have, const Kept *want, PlDtype to) {
  bool same = have->leaf && !(have->cast->node && have->cast->node->spent) && have->graph == want->graph &&
              have->version == want->version && have->nkeys == want->nkeys && have->cast->a.dtype == to;
  for (uint32_t i = 0; same && i < want->nkeys; i++) same = have->by[i] == want->by[i];
  return same;
}

static PlStatus cast(PlTensor **out, PlTensor *t, PlDtype to) {
  PlAttrs a;
  pl_attrs_init(&pl_op_cast, &a);
  pl_attrs_int(&a, 0, to);
  return pl_apply(&pl_op_cast, &t, 1, &a, out);
}

PlStatus pl_autocast_one(PlTensor **out, PlTensor *t, PlDtype to) {
  if (t->a.dtype == to || t->a.dtype == PL_F64 || t->a.weak || !pl_is_float((PlDtype)t->a.dtype)) {
    *out = pl_retain(t);
    return PL_OK;
  }
  Kept want;
  if (!pl_state.autocast_cache || t->a.dtype != PL_F32 || !describe(t, &want)) return cast(out, t, to);
  if (pl_state.casts) {
    Kept *have = slot_of(pl_state.casts, want.leaf);
    if (agrees(have, &want, to)) {
      if (PL_UNLIKELY(pl_watched())) PL_TRY(pl_checkpoint_uses_cast(t, have->cast));
      *out = pl_retain(have->cast);
      return PL_OK;
    }
  }
  PlTensor *known = PL_UNLIKELY(pl_watched()) ? pl_checkpoint_cast(t, to) : NULL;
  if (known) {
    *out = pl_retain(known);
    return PL_OK;
  }
  PL_TRY(cast(out, t, to));
  /* Several losses may share this cast, and each has a backward of its own: it frees nothing of it. */
  PlEntry first = {.next = (*out)->more, .node = (*out)->node};
  for (PlEntry *e = &first; e; e = e->next)
    if (e->node) e->node->shared = true;
  if (!make_room()) return PL_OK;
  Kept *slot = slot_of(pl_state.casts, want.leaf);
  if (slot->leaf) {
    pl_tensor_release(slot->cast);
    pl_tensor_release(slot->leaf);
  } else pl_state.casts->n++;
  want.cast = pl_retain(*out);
  pl_retain(want.leaf);
  *slot = want;
  return PL_OK;
}

/* ---- regions --------------------------------------------------------------------------------------------- */

PlAutocast pl_autocast_now(void) {
  return (PlAutocast){.dtype = pl_state.autocast, .cache = pl_state.autocast_cache, .depth = (int16_t)pl_state.autocast_depth};
}

void pl_autocast_set(PlAutocast region) {
  pl_set_autocast(region.dtype);
  pl_state.autocast_cache = region.cache;
  pl_state.autocast_depth = region.depth;
  if (region.depth == 0) cache_clear();
}

PlDtype pl_autocast_dtype(void) { return pl_state.autocast ? (PlDtype)(pl_state.autocast - 1) : PL_NDTYPE; }

void pl_autocast_end(void) { cache_clear(); }

/* ---- one op ---------------------------------------------------------------------------------------------- */

static bool takes_part(const PlTensor *t) { return t && !t->a.weak && t->a.dtype != PL_F64 && pl_is_float((PlDtype)t->a.dtype); }

/* The dtype that op's inputs get; PL_NDTYPE: they stay as they are. */
static PlDtype wanted(const PlOp *op, PlTensor *const *in, int nin) {
  PlDtype to = op->autocast == PL_CAST_LOW ? pl_autocast_dtype() : op->autocast == PL_CAST_F32 ? PL_F32 : PL_NDTYPE;
  bool other = false;
  for (int i = 0; i < nin; i++) {
    if (!takes_part(in[i])) continue;
    if (op->autocast == PL_CAST_WIDEST) to = to == PL_NDTYPE ? (PlDtype)in[i]->a.dtype : pl_promote2(to, (PlDtype)in[i]->a.dtype);
    other |= in[i]->a.dtype != to || op->autocast == PL_CAST_WIDEST;
  }
  return other ? to : PL_NDTYPE;
}

PlStatus pl_autocast_apply(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  PlTensor *few[PL_MAX_IN], **args = few;
  PlAttrs wide;
  if (op->autocast == PL_CAST_RESULT && takes_part(in[0]) && in[0]->a.dtype != PL_F32 && !pl_attr_has(attrs, op->nattr - 1)) {
    memcpy(&wide, attrs, pl_attrs_size(attrs));
    pl_attrs_int(&wide, op->nattr - 1, PL_F32);
    attrs = &wide;
  }
  const PlDtype to = wanted(op, in, nin);
  PlStatus s = PL_OK;
  int made = 0;
  if (to != PL_NDTYPE) {
    if (nin > PL_MAX_IN && !(args = malloc((size_t)nin * sizeof *args))) PL_FAIL(PL_ERR_OOM, "%s: out of memory", op->name);
    for (; made < nin && s == PL_OK; made++) {
      args[made] = NULL;
      if (in[made]) s = pl_autocast_one(&args[made], in[made], to);
    }
    in = args;
  }
  if (s == PL_OK) { /* what the op is made of has its dtypes now */
    const uint8_t was = pl_set_autocast(0);
    s = pl_apply(op, in, nin, attrs, out);
    pl_set_autocast(was);
  }
  for (int i = 0; i < made; i++) pl_tensor_release(args[i]);
  if (args != few) free(args);
  return s;
}
