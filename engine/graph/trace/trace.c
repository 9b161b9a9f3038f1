/* SPDX-License-Identifier: MIT
 * What a trace must know of real leaves: backward inside of a traced function leaves symbolic .grads in them, which
 * become outputs of the graph; and .grads that were there before are inputs of a kind. */
#include <stdlib.h>

#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/graph/ir/graph.h"
#include "engine/graph/trace/symbolic.h"

static PlNode *leaf_of(const PlTensor *t) { return t->node && t->node->kind == PL_NODE_LEAF ? t->node : NULL; }

static bool captured(const PlGraph *f, const PlTensor *t) {
  for (int32_t v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real->storage == t->storage) return true;
  return false;
}

/* The script replaces a .grad that nothing in the graph has read so far. */
static void forget_grad(const PlGraph *f, PlGLeaf *l) {
  if (leaf_of(l->t)->grad != l->grad || (l->grad && (l->looked || captured(f, l->grad)))) return;
  pl_tensor_release(l->grad);
  l->grad = NULL;
  l->zeroed = true;
}

static PlStatus saw(PlGraph *f, PlTensor *t, PlGVal *v) {
  *v = -1;
  t = pl_behind(t);
  if (!f->record || f->closed || t->a.symbolic || t->a.weak || (t->flags & PL_T_CONST)) return PL_OK;
  PL_TRY(pl_history_current(&t, 1));
  return pl_graph_capture(f, t, v);
}

PlStatus pl_graph_saw_history(PlGraph *f, PlTensor *t) {
  PlGVal v;
  return saw(f, t, &v);
}

PlStatus pl_graph_saw_version(PlGraph *f, PlTensor *t) {
  PlGVal v;
  PL_TRY(saw(f, t, &v));
  if (v < 0) return PL_OK;
  PlGVersion *more = realloc(f->versions, ((size_t)f->nversions + 1) * sizeof *more);
  if (!more) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
  f->versions = more;
  f->versions[f->nversions++] = (PlGVersion){v, t->storage->version};
  return PL_OK;
}

PlStatus pl_graph_guards_copy(PlGraph *to, const PlGraph *from) {
  to->gradients = from->gradients;
  if (from->nversions == 0) return PL_OK;
  const size_t size = (size_t)from->nversions * sizeof *from->versions;
  PlGVersion *more = realloc(to->versions, size);
  if (!more) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
  to->versions = memcpy(more, from->versions, size);
  to->nversions = from->nversions;
  return PL_OK;
}

bool pl_graph_versions_same(const PlGraph *f) {
  for (int32_t i = 0; i < f->nversions; i++) {
    const PlGValue *v = &f->vals[f->versions[i].v];
    if (v->kind != PL_FV_CAPTURE || v->real->storage->version != f->versions[i].version) return false;
  }
  return true;
}

void pl_graph_asked(PlGraph *f, PlTensor *const *xs, int nx) {
  for (int i = 0; i < nx; i++) {
    int32_t who = -1;
    if (xs[i]->a.symbolic && pl_sym_graph(xs[i]) == f && f->vals[pl_sym_value(xs[i])].kind == PL_FV_INPUT)
      who = f->vals[pl_sym_value(xs[i])].slot + 1;
    f->asked = f->asked == 0 || f->asked == who ? who : -1;
  }
}

uint64_t pl_graph_leaf_hooks(const PlTensor *t) {
  uint64_t all = 0;
  for (const PlHook *h = leaf_of(t) ? leaf_of(t)->slots[0].hooks : NULL; h; h = h->next)
    if (!h->removed) all = all * UINT64_C(0x9E3779B97F4A7C15) + h->who;
  return all;
}

/* A leaf of a key that was opened in the trace, as T.grad does for its arguments: each call of the script makes another. */
static bool passing(const PlGraph *f, const PlNode *leaf) { return leaf->seq > f->began && !(leaf->key && leaf->key->is_ambient); }

PlStatus pl_graph_leaf(PlGraph *f, PlTensor *t, bool zeroed) {
  if (zeroed) f->gradients = true;
  if (!leaf_of(t) || t->a.symbolic || !f->record || f->closed || passing(f, leaf_of(t))) return PL_OK;
  for (int32_t i = 0; i < f->nleaves; i++)
    if (f->leaves[i].t->node == t->node) {
      if (zeroed) forget_grad(f, &f->leaves[i]);
      return PL_OK; /* otherwise what came first counts */
    }
  if (f->nleaves == f->cap_leaves) {
    int32_t cap = f->cap_leaves ? 2 * f->cap_leaves : 32;
    PlGLeaf *more = realloc(f->leaves, (size_t)cap * sizeof *more);
    if (!more) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
    f->leaves = more;
    f->cap_leaves = cap;
  }
  PlNode *n = leaf_of(t);
  PlTensor *g = zeroed ? NULL : n->grad;
  f->leaves[f->nleaves++] = (PlGLeaf){.t = pl_retain(t),
                                      .grad = g ? pl_retain(g) : NULL,
                                      .zeroed = zeroed,
                                      .torn = g && pl_leaf_torn(n),
                                      .torn_at = n->torn_at,
                                      .had = leaf_of(t)->grad != NULL,
                                      .hooks = pl_graph_leaf_hooks(t)};
  if (g) { /* as if it were: what is left of it when somebody asks, and at the end, is what a run on a torn one leaves */
    n->torn = true;
    n->torn_at = pl_graph_grad_version(f, g);
  }
  return PL_OK;
}

static PlStatus look(PlGraph *f, PlTensor *t) {
  PL_TRY(pl_graph_leaf(f, t, false));
  for (int32_t i = 0; i < f->nleaves; i++) {
    PlGLeaf *l = &f->leaves[i];
    if (l->t->node == t->node && !l->zeroed && leaf_of(t) && leaf_of(t)->grad == l->grad) l->looked = true;
  }
  return PL_OK;
}

PlStatus pl_graph_leaf_look(PlGraph *f, PlTensor *t) {
  const PlCalling calling = pl_calls_enter(f);
  const PlStatus s = look(f, t);
  PlTensor *g = pl_grad(t);
  return pl_calls_leave(&calling, s, &(PlCallIs){.kind = PL_CALL_LOOK_GRAD, .in = {&t}, .n = {1}, .out = &g, .nout = 1});
}

void pl_graph_leaf_give(PlGraph *f, const PlTensor *t) {
  for (int32_t i = 0; i < f->nleaves; i++) f->leaves[i].given |= f->leaves[i].grad && f->leaves[i].grad->storage == t->storage;
}

/* The trace is over. A .grad that it read is another tensor at each run, since backward makes a new one. */
static void settle(PlGraph *f, PlGLeaf *l) {
  PlGVal at = -1;
  int n = 0;
  l->expects = l->zeroed && !l->looked ? PL_FGRAD_ANY : l->had ? PL_FGRAD_SOME : PL_FGRAD_NONE;
  if (!l->grad) return;
  for (PlGVal v = 0; v < f->nvals; v++) {
    if (f->vals[v].kind != PL_FV_CAPTURE || f->vals[v].real->storage != l->grad->storage) continue;
    n++;
    if (f->vals[v].real == l->grad) at = v;
  }
  l->expects = l->given                                     ? PL_FGRAD_SAME
               : n == 0                                     ? l->looked ? PL_FGRAD_SOME : PL_FGRAD_ANY
               : n == 1 && at >= 0 && l->grad->a.contiguous ? PL_FGRAD_INPUT
                                                            : PL_FGRAD_SAME;
  if (l->expects == PL_FGRAD_SAME) return;
  if (l->expects == PL_FGRAD_INPUT) {
    PlGValue *v = &f->vals[at];
    pl_tensor_release(v->real);
    v->real = NULL;
    v->kind = PL_FV_INPUT;
    v->name = "grad";
    v->slot = l->slot = f->ninputs++;
  }
  pl_tensor_release(l->grad);
  l->grad = NULL;
}

uint32_t pl_graph_grad_version(const PlGraph *f, const PlTensor *g) {
  if (g->a.symbolic) return (uint32_t)f->stores[pl_sym_storage(g)->store].version;
  for (PlGVal v = 0; v < f->nvals; v++)
    if (f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real->storage == g->storage)
      return g->storage->version + (uint32_t)f->stores[f->vals[v].store].version;
  return g->storage->version;
}

static bool part_left(const PlGraph *f, const PlNode *n) { return n->torn && n->grad && pl_graph_grad_version(f, n->grad) == n->torn_at; }

bool pl_graph_leaf_torn(PlGraph *f, PlTensor *t) {
  const PlNode *n = leaf_of(t);
  if (!n || !n->grad || pl_graph_leaf(f, t, false) != PL_OK) return false;
  for (int32_t i = 0; i < f->nleaves; i++) {
    PlGLeaf *l = &f->leaves[i];
    if (l->t->node != t->node) continue;
    if (!part_left(f, n)) return false;
    l->asks = true;
    return l->torn;
  }
  return pl_leaf_torn(n);
}

void pl_graph_torn_note(PlGraph *f) {
  for (int32_t i = 0; i < f->nleaves; i++) {
    PlGLeaf *l = &f->leaves[i];
    l->torn = l->keeps && leaf_of(l->t) && pl_leaf_torn(leaf_of(l->t));
  }
}

void pl_graph_torn_keep(PlGraph *f) {
  for (int32_t i = 0; i < f->nleaves; i++)
    if (f->leaves[i].torn && leaf_of(f->leaves[i].t)) pl_leaf_tear(leaf_of(f->leaves[i].t));
}

/* What the script did to a .grad so far happens in each run instead: the one that was there comes back. */
static PlStatus take_grad(PlGraph *f, PlGLeaf *l, PlGVal *grad) {
  PlNode *n = leaf_of(l->t);
  PlTensor *g = n ? n->grad : NULL;
  if (n && l->grad) {
    l->keeps = part_left(f, n);
    n->torn = l->torn;
    n->torn_at = l->torn_at;
  }
  bool untouched = g && !g->a.symbolic && g == l->grad && !l->zeroed;
  if (!n || untouched) return PL_OK; /* a gradient that backward was given may be passed on as it is: a real tensor */
  l->cleared = !g && l->grad;
  n->grad = l->grad ? pl_retain(l->grad) : NULL;
  PlStatus s = g && grad ? pl_sym_value_of(f, g, grad) : PL_OK;
  pl_tensor_release(g);
  return s;
}

PlStatus pl_graph_leaf_grads(PlGraph *f, PlGVal *grads) {
  PlStatus s = PL_OK;
  pl_graph_switches_end(f);
  for (int32_t i = 0; i < f->nleaves; i++) {
    if (grads) grads[i] = -1;
    PlStatus one = take_grad(f, &f->leaves[i], grads && s == PL_OK ? &grads[i] : NULL);
    if (s == PL_OK) s = one;
  }
  for (int32_t i = 0; i < f->nleaves; i++) settle(f, &f->leaves[i]);
  return s;
}

void pl_graph_leaves_drop(PlGraph *f) {
  for (int32_t i = 0; i < f->nleaves; i++) {
    pl_tensor_release(f->leaves[i].t);
    pl_tensor_release(f->leaves[i].grad);
  }
  free(f->leaves);
  f->leaves = NULL;
  f->nleaves = f->cap_leaves = 0;
}

/* given: look only at leaves where it is not negative, and at those whose .grad is read; NULL: at all. */
bool pl_graph_leaves_same(const PlGraph *f, const int32_t *given) {
  for (int32_t i = 0; i < f->nleaves; i++) {
    const PlGLeaf *l = &f->leaves[i];
    const PlNode *n = leaf_of(l->t);
    bool read = l->looked || l->expects == PL_FGRAD_INPUT || l->expects == PL_FGRAD_SAME;
    if (f->gradients && l->hooks != pl_graph_leaf_hooks(l->t)) return false; /* a walk inside has run those of then */
    if (l->asks && n && PL_UNLIKELY(pl_leaf_torn(n))) return false;          /* the script says so */
    if (given && given[i] < 0 && !read && !f->gradients) continue;
    if (!n) return false;
    if (l->expects == PL_FGRAD_NONE && n->grad) return false;
    if (l->expects == PL_FGRAD_SOME && !n->grad) return false;
    if (l->expects == PL_FGRAD_SAME && n->grad != l->grad) return false;
    if (l->expects == PL_FGRAD_INPUT &&
        (!n->grad || !n->grad->a.contiguous || n->grad->a.dtype != l->t->a.dtype || !pl_shape_equal(&n->grad->a, &l->t->a)))
      return false;
  }
  return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------- */

PlStatus pl_graph_note_line(PlGraph *f, uint64_t first) {
  const char *where = f->nnodes ? f->nodes[f->nnodes - 1].where : NULL;
  if (!where || pl_state.seq < first) return PL_OK;
  PlGLine *last = f->nlines ? &f->lines[f->nlines - 1] : NULL;
  if (last && last->where == where && last->last + 1 == first) {
    last->last = pl_state.seq;
    return PL_OK;
  }
  if (f->nlines == f->cap_lines) {
    int32_t cap = f->cap_lines ? 2 * f->cap_lines : 64;
    PlGLine *more = realloc(f->lines, (size_t)cap * sizeof *more);
    if (!more) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
    f->lines = more;
    f->cap_lines = cap;
  }
  f->lines[f->nlines++] = (PlGLine){.first = first, .last = pl_state.seq, .where = where};
  return PL_OK;
}

const char *pl_graph_line(const PlGraph *f) {
  int32_t lo = 0, hi = f->tape ? f->nlines : 0;
  while (lo < hi) { /* the first that does not end before it */
    int32_t mid = lo + (hi - lo) / 2;
    if (f->lines[mid].last < f->tape) lo = mid + 1;
    else hi = mid;
  }
  if (f->tape && lo < f->nlines && f->lines[lo].first <= f->tape) return f->lines[lo].where;
  return f->where ? f->where(f->where_ud) : NULL;
}

/* Only the outermost walk is a region: what runs inside of it belongs to it. */
int32_t pl_graph_backward_begin(PlGraph *f) {
  if (!f->record || f->stage != 0) return -1;
  f->gradients = true;
  f->stage = (uint8_t)(f->nregions < 254 ? f->nregions + 1 : 255);
  return f->nnodes;
}

PlStatus pl_graph_backward_end(PlGraph *f, int32_t begin, int ny, PlTensor *const *ys) {
  if (begin < 0) return PL_OK;
  f->stage = 0;
  if (begin == f->nnodes || f->nregions >= 254) return PL_OK;
  PlGVal *v = malloc((size_t)(ny + 1) * sizeof *v);
  if (!v) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
  int n = 0;
  for (int i = 0; i < ny; i++)
    if (ys[i]->a.symbolic && pl_sym_graph(ys[i]) == f) v[n++] = pl_sym_value(ys[i]);
  PlRecomputeOptions m = f->recompute;
  PlStatus s = pl_graph_region(f, begin, n, v, &m);
  free(v);
  return s;
}
