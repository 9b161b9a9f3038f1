/* SPDX-License-Identifier: MIT
 * Values and recipes: noting them, the lists they are in, freeing what nobody needs. Nothing here recurses: chains of
 * recipes may be as long as the program ran. */
#include <string.h>

#include "engine/grad/node.h"
#include "engine/remat/remat_internal.h"
#include "engine/tensor/layout.h"
#include "kernels/gemm.h"

/* ---- values ------------------------------------------------------------------------------------------------- */

PlValue *remat_value_new(PlStorage *s) {
  PlValue *v = pl_pool_get(sizeof *v);
  if (!v) return NULL;
  *v = (PlValue){.storage = s, .bytes = s->nbytes, .was = s->owns, .used = remat()->clock};
  s->owns = PL_OWNS_REMAT;
  s->value = v;
  remat()->stats.values++;
  return v;
}

void remat_lru_remove(PlValue *v) {
  if (!v->next) return;
  v->prev->next = v->next;
  v->next->prev = v->prev;
  v->next = v->prev = NULL;
}

void remat_lru_add(PlValue *v) {
  PlValue *head = &remat()->lru;
  remat_lru_remove(v);
  v->prev = head->prev;
  v->next = head;
  v->prev->next = v;
  head->prev = v;
}

void remat_touch(PlValue *v) {
  v->used = remat()->clock;
  if (v->next && !v->evicted) remat_lru_add(v); /* one that could not be brought back stays in the other ring */
}

/* ---- handles ------------------------------------------------------------------------------------------------ */

static PlListed *links(PlTensor *t) {
  return (PlListed *)(void *)((char *)t + pl_round16(sizeof(PlTensor) + 2 * (size_t)t->a.ndim * sizeof(int64_t)));
}

void pl_remat_list(PlTensor *t) {
  PlValue *v = t->storage->value;
  PlListed *l = links(t);
  l->next = v->handles;
  l->at = &v->handles;
  if (l->next) links(l->next)->at = &l->next;
  v->handles = t;
  t->flags |= PL_T_LISTED;
}

void pl_remat_unlist(PlTensor *t) {
  PlListed *l = links(t);
  *l->at = l->next;
  if (l->next) links(l->next)->at = l->at;
  t->flags &= (uint16_t)~PL_T_LISTED;
}

void remat_move(PlValue *v, void *data) {
  PlStorage *s = v->storage;
  const uintptr_t by = (uintptr_t)data - (uintptr_t)s->data;
  s->data = data;
  PlTensor *first = s->block; /* freed or not: its piece is the storage's */
  first->a.data = (void *)((uintptr_t)first->a.data + by);
  for (PlTensor *t = v->handles; t; t = links(t)->next) t->a.data = (void *)((uintptr_t)t->a.data + by);
}

void remat_let_go(PlValue *v) {
  PlStorage *s = v->storage;
  while (v->handles) pl_remat_unlist(v->handles);
  remat_lru_remove(v);
  s->owns = v->was;
  s->value = NULL;
  v->storage = NULL;
  v->held = false;
}

/* ---- freeing ------------------------------------------------------------------------------------------------ */

static void drain(PlRematState *rs);

void remat_check(PlValue *v) {
  PlRematState *rs = remat();
  if (v->readers || v->pins || v->orphan || (is_live(v) && (v->recipe || v->evicted))) return;
  v->orphan = true;
  v->link = rs->orphans;
  rs->orphans = v;
  if (!rs->draining) drain(rs);
}

static void recipe_free(Recipe *r) {
  for (int i = 0; i < r->nin; i++) {
    Read *in = &r->in[i];
    if (!in->of) continue;
    *in->at = in->next;
    if (in->next) in->next->at = in->at;
    remat_check(in->of);
  }
  pl_pool_put(r, r->piece);
}

void remat_recipe_release(Recipe *r) {
  if (--r->refs == 0) recipe_free(r);
}

void remat_drop_recipe(PlValue *v) {
  Recipe *r = v->recipe;
  if (!r) return;
  remat_lru_remove(v);
  v->recipe = NULL;
  r->out[v->out].value = NULL;
  remat_recipe_release(r);
  remat_check(v);
}

static void drain(PlRematState *rs) {
  rs->draining = true;
  while (rs->orphans) {
    PlValue *v = rs->orphans;
    rs->orphans = v->link;
    PlStorage *s = v->held ? v->storage : NULL;
    if (v->storage) remat_let_go(v);
    else rs->stats.dead--;
    if (s) { /* no handle has it */
      pl_block_free(s->data);
      pl_pool_put(s->block, s->piece);
    }
    remat_drop_recipe(v);
    rs->stats.values--;
    pl_pool_put(v, sizeof *v);
  }
  rs->draining = false;
}

/* ---- noting ------------------------------------------------------------------------------------------------- */

PlDrawn pl_remat_drawn(const PlOp *op) {
  if (!(op->flags & PL_F_SEEDED)) return (PlDrawn){0, 0, 0};
  pl_rng_take(0); /* seeds it, if nobody has */
  return (PlDrawn){pl_state.seed, pl_state.stream, pl_state.offset};
}

/* Can the recipe of something read t? */
static bool readable(const PlTensor *t) {
  const PlStorage *s = t->storage;
  if (t->a.elsewhere || s->device) return false;
  if (s->nbytes <= PL_SMALL || s->owns == PL_OWNS_REMAT) return true;
  return s->owns == PL_OWNS_BLOCK && !s->shared;
}

static bool can_read(const PlCall *c) {
  if (c->device != PL_CPU || c->layout || (c->op->flags & (PL_F_MUTATES | PL_F_IMPURE))) return false;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && !readable(c->in[i])) return false;
  return true;
}

static bool is_new_block(const PlStorage *s) { return s->owns == PL_OWNS_BLOCK && s->refs == 1 && !s->shared; }

static bool can_note(const PlCall *c, PlTensor *const *out) {
  bool any = false;
  if (!can_read(c)) return false;
  for (int o = 0; o < c->op->nout; o++) {
    if (!out[o]) continue;
    if (out[o]->a.elsewhere || !pl_layout_dense(&out[o]->a)) return false;
    any |= is_new_block(out[o]->storage);
  }
  return any;
}

/* All parts of a recipe are in one piece; `at` walks over it, from NULL to count. */
static void *part(char **at, size_t n) {
  char *p = *at;
  *at = (char *)((uintptr_t)p + pl_round16(n));
  return p;
}

static size_t lay_out(Recipe *r, char *base, const PlCall *c, PlTensor *const *out) {
  char *at = base;
  Recipe *self = part(&at, sizeof *self);
  Read *in = part(&at, (size_t)c->nin * sizeof *in);
  Result *results = part(&at, (size_t)c->op->nout * sizeof *results);
  PlAttrs *attrs = c->op->nattr ? part(&at, pl_attrs_size(c->attrs)) : NULL;
  if (r) {
    r->in = in;
    r->out = results;
    r->attrs = attrs;
  }
  for (int i = 0; i < c->nin; i++) {
    int64_t *dims = c->in[i] ? part(&at, 2 * (size_t)c->in[i]->a.ndim * sizeof *dims) : NULL;
    if (r) in[i].dims = dims;
  }
  for (int o = 0; o < c->op->nout; o++) {
    int64_t *dims = out[o] ? part(&at, 2 * (size_t)out[o]->a.ndim * sizeof *dims) : NULL;
    if (r) results[o].shape = dims;
  }
  return (size_t)(at - base);
}

static void fill_read(Read *in, const PlTensor *t, Recipe *by) {
  const PlStorage *s = t->storage;
  in->by = by;
  in->given = true;
  in->dtype = t->a.dtype;
  in->ndim = t->a.ndim;
  in->weak = t->a.weak;
  in->offset = (int64_t)((uintptr_t)t->a.data - (uintptr_t)s->data);
  memcpy(in->dims, t->a.shape, t->a.ndim * sizeof(int64_t));
  memcpy(in->dims + t->a.ndim, t->a.strides, t->a.ndim * sizeof(int64_t));
  if (s->nbytes > PL_SMALL) return;
  in->nfew = (uint8_t)s->nbytes;
  memcpy(in->few, s->data, s->nbytes);
}

/* Links the inputs; false: no memory for the record of one. The storage of `rewritten` means its old value. */
static bool link_inputs(Recipe *r, const PlCall *c, const PlTensor *rewritten, PlValue *old) {
  for (int i = 0; i < c->nin; i++) {
    PlTensor *t = c->in[i];
    if (!t || t->storage->nbytes <= PL_SMALL) continue;
    PlValue *v = rewritten && t->storage == rewritten->storage ? old
                 : t->storage->owns == PL_OWNS_REMAT           ? t->storage->value
                                                               : remat_value_new(t->storage);
    if (!v) return false;
    Read *in = &r->in[i];
    in->of = v;
    in->next = v->readers;
    in->at = &v->readers;
    if (in->next) in->next->at = &in->next;
    v->readers = in;
  }
  return true;
}

/* The recipe of a call, with one reference; NULL: no memory. */
static Recipe *make_recipe(const PlCall *c, PlTensor *const *out, PlDrawn drawn, const PlTensor *rewritten, PlValue *old) {
  const size_t size = lay_out(NULL, NULL, c, out);
  Recipe *r = size <= UINT32_MAX ? pl_pool_get(size) : NULL;
  if (!r) return NULL;
  memset(r, 0, size);
  *r = (Recipe){.refs = 1, .piece = (uint32_t)size, .op = c->op, .nin = c->nin, .drawn = drawn, .precision = (int)plk_matmul_precision()};
  lay_out(r, (char *)r, c, out);
  if (r->attrs) memcpy(r->attrs, c->attrs, pl_attrs_size(c->attrs));
  r->cost = remat_cost(c, out);
  remat()->clock += r->cost;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i]) fill_read(&r->in[i], c->in[i], r);
  for (int o = 0; o < c->op->nout; o++) {
    Result *x = &r->out[o];
    if (!out[o]) continue;
    x->given = true;
    x->dtype = out[o]->a.dtype;
    x->ndim = out[o]->a.ndim;
    memcpy(x->shape, out[o]->a.shape, out[o]->a.ndim * sizeof(int64_t));
    memcpy(x->shape + x->ndim, out[o]->a.strides, out[o]->a.ndim * sizeof(int64_t));
  }
  if (link_inputs(r, c, rewritten, old)) return r;
  remat_recipe_release(r);
  return NULL;
}

static void give_recipe(Recipe *r, int o, PlValue *v) {
  v->recipe = r;
  v->out = (uint16_t)o;
  r->out[o].value = v;
  r->refs++;
  remat_lru_add(v);
}

/* Where recipes outnumber the tensors that they are for, as in a loop that goes on and on, those of the tensors in memory
 * are forgotten, and with them all that led there. */
static void prune(PlRematState *rs) {
  enum { FEW = 1 << 14 };
  if (rs->stats.dead < FEW || rs->stats.dead < 4 * (rs->stats.values - rs->stats.dead)) return;
  for (PlValue *v = rs->lru.next, *next; v != &rs->lru; v = next) {
    next = v->next;
    if (v->held || v->pins) continue;
    next->pins++; /* the head has room for it, too */
    remat_drop_recipe(v);
    next->pins--;
  }
}

/* Gradients of a walk that records nothing: few are alive at a time and each is read soon, while its recipe would keep, or
 * have computed again, what the walk has done with. */
static bool passes(const PlCall *c) { return pl_state.in_backward > 0 && !pl_may_record(c->in, c->nin); }

void pl_remat_note(const PlCall *c, PlTensor *const *out, PlDrawn drawn) {
  PlRematState *rs = remat();
  if (rs->replaying || passes(c) || !can_note(c, out)) return;
  Recipe *r = make_recipe(c, out, drawn, NULL, NULL);
  if (!r) return;
  for (int o = 0; o < c->op->nout; o++) {
    PlStorage *s = out[o] ? out[o]->storage : NULL;
    PlValue *v = s && is_new_block(s) ? remat_value_new(s) : NULL;
    if (v) give_recipe(r, o, v);
  }
  remat_recipe_release(r);
  prune(rs);
}

/* ---- writing in place --------------------------------------------------------------------------------------- */

PlStatus pl_remat_rewrite_begin(PlRewrite *w, const PlCall *c, const PlTensor *y) {
  PlStorage *s = y->storage;
  w->old = NULL;
  if (s->owns != PL_OWNS_REMAT) return PL_OK;
  PlValue *old = s->value, *now;
  const bool whole = y->a.contiguous && y->a.data == s->data && (size_t)y->a.numel * pl_dtype_size((PlDtype)y->a.dtype) == s->nbytes;
  if (!old->recipe || !whole || !can_read(c) || !(now = pl_pool_get(sizeof *now))) return pl_remat_detach(s);
  if (old->evicted) {
    PlStatus st = pl_remat_bring(s);
    if (st != PL_OK) {
      pl_pool_put(now, sizeof *now);
      return st;
    }
  }
  *now = (PlValue){.storage = s, .bytes = s->nbytes, .was = old->was, .used = remat()->clock, .handles = old->handles};
  if (now->handles) links(now->handles)->at = &now->handles;
  old->handles = NULL;
  old->storage = NULL;
  remat_lru_remove(old);
  s->value = now;
  now->pins++;
  old->pins++;
  remat()->stats.values++;
  remat()->stats.dead++;
  w->old = old;
  return PL_OK;
}

/* A call that failed has written nothing, or some: then what is there cannot be computed again. */
void pl_remat_rewrite_end(PlRewrite *w, const PlCall *c, PlTensor *y, PlDrawn drawn, bool ok) {
  if (!w->old) return;
  PlValue *now = y->storage->value;
  Recipe *r = ok && !remat()->replaying ? make_recipe(c, &y, drawn, y, w->old) : NULL;
  if (r) give_recipe(r, 0, now);
  if (r) remat_recipe_release(r);
  now->pins--;
  w->old->pins--;
  remat_check(w->old);
  remat_check(now);
}
