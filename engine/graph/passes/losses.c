/* SPDX-License-Identifier: MIT
 * cross_entropy_linear and its gradient become one node, where the loss is not needed to know the gradient that arrives for it (a step
 * that walks backward from its loss): each chunk of outputs is made once then, not once more in the backward half. What arrives is
 * computed ahead of the loss. The kernel is the same, so are the bits. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

enum { LSE = 1, FIRST = 5 /* attributes that both have */ };

typedef struct Losses {
  PlGraph *f;
  int32_t *uses;    /* per value: readers, outputs too */
  uint8_t *awaited; /* per node: others wait for it */
  uint8_t *mark;    /* per node, between loss and gradient: 1 depends on the loss or stays, 2 goes ahead of it */
  int32_t *order;   /* the new order of nodes */
  PlGVal *map;
} Losses;

static bool plain(const Losses *t, int32_t i) {
  const PlGNode *n = &t->f->nodes[i];
  return !n->nafter && !t->awaited[i] && !(n->flags & (PL_FN_MUTATES | PL_FN_RECOMPUTED | PL_FN_DEAD | PL_FN_VIEW));
}

static bool same_attrs(const PlAttrs *a, const PlAttrs *b) {
  bool same = true;
  for (int k = 0; k < FIRST; k++) same = same && memcmp(&a->v[k], &b->v[k], sizeof a->v[k]) == 0;
  return same;
}

static PlGVal input(const PlGNode *n, int k) { return k < n->nin ? n->in[k] : -1; }

/* The loss whose gradient node i is; -1: none that could be one node with it. */
static int32_t loss_of(const Losses *t, int32_t i) {
  const PlGraph *f = t->f;
  const PlGNode *b = &f->nodes[i];
  if (b->op != &pl_op_cross_entropy_linear_bwd || !plain(t, i) || f->vals[b->in[4]].kind != PL_FV_NODE) return -1;
  const int32_t at = f->vals[b->in[4]].node;
  const PlGNode *l = &f->nodes[at];
  if (l->op != &pl_op_cross_entropy_linear || !plain(t, at) || b->in[4] != l->first + LSE || t->uses[l->first + LSE] != 1) return -1;
  for (int k = 0; k < 3; k++)
    if (b->in[1 + k] != l->in[k]) return -1;
  for (int k = 3; k < 5; k++)
    if (input(b, 2 + k) != input(l, k)) return -1;
  return same_attrs(l->attrs, b->attrs) ? at : -1;
}

/* Can what arrives for the loss be computed ahead of it? Then marks what goes there. */
static bool ahead(Losses *t, int32_t loss, int32_t i) {
  const PlGraph *f = t->f;
  t->mark[loss] = 1;
  for (int32_t k = loss + 1; k < i; k++) {
    const PlGNode *n = &f->nodes[k];
    bool stays = !pl_gnode_pure(n) || n->nafter || t->awaited[k] || (n->flags & PL_FN_DEAD);
    for (int32_t j = 0; j < n->nin && !stays; j++)
      stays =
          n->in[j] >= 0 && f->vals[n->in[j]].kind == PL_FV_NODE && f->vals[n->in[j]].node >= loss && t->mark[f->vals[n->in[j]].node] == 1;
    t->mark[k] = stays;
  }
  const PlGVal dy = f->nodes[i].in[0];
  if (f->vals[dy].kind != PL_FV_NODE || f->vals[dy].node < loss) return true;
  if (t->mark[f->vals[dy].node]) return false;
  t->mark[f->vals[dy].node] = 2;
  for (int32_t k = i - 1; k > loss; k--)
    for (int32_t j = 0; t->mark[k] == 2 && j < f->nodes[k].nin; j++) {
      const PlGVal v = f->nodes[k].in[j];
      if (v >= 0 && f->vals[v].kind == PL_FV_NODE && f->vals[v].node > loss) t->mark[f->vals[v].node] = 2;
    }
  return true;
}

static void desc_of(const PlGValue *v, PlDesc *d) {
  *d = (PlDesc){.dtype = v->dtype};
  if (v->dtype != PL_NDTYPE) pl_desc_set(d, (PlDtype)v->dtype, v->ndim, v->dims);
}

/* What is written into v's memory later, an optimizer's step perhaps, is written into that of its twin. */
static void moved_to(const PlGraph *f, PlGVal v, PlGVal twin) {
  const int32_t store = f->vals[v].store;
  for (PlGVal k = 0; k < f->nvals; k++)
    if (k != v && f->vals[k].store == store) f->vals[k].store = f->vals[twin].store;
}

static PlStatus join(Losses *t, int32_t loss, int32_t i) {
  PlGraph *f = t->f;
  const PlGNode *l = &f->nodes[loss], *b = &f->nodes[i];
  const PlGVal in[6] = {b->in[0], b->in[1], b->in[2], b->in[3], input(b, 5), input(b, 6)}, from = l->first, back = b->first;
  PlDesc d[4];
  PlAttrs a = {.nval = 0};
  int32_t node, n = 0;
  const double flops = b->flops;
  memcpy(&a, b->attrs, pl_attrs_size(b->attrs));
  desc_of(&f->vals[from], &d[0]);
  for (int k = 0; k < 3; k++) desc_of(&f->vals[back + k], &d[1 + k]);
  f->stage = l->stage;
  f->origin = l->origin;
  f->emit_name = NULL;
  PlStatus s = pl_graph_node(f, &pl_op_cross_entropy_linear_both, 6, in, &a, d, 0, &node);
  f->stage = 0;
  f->origin = -1;
  PL_TRY(s);
  f->nodes[node].where = f->nodes[loss].where;
  f->nodes[node].flops = flops;
  for (PlGVal v = 0; v < f->nvals; v++) t->map[v] = v;
  t->map[from] = f->nodes[node].first;
  for (int k = 0; k < 3; k++) t->map[back + k] = f->nodes[node].first + 1 + k;
  moved_to(f, from, f->nodes[node].first);
  for (int k = 0; k < 3; k++) moved_to(f, back + k, f->nodes[node].first + 1 + k);
  f->nodes[loss].flags |= PL_FN_DEAD;
  f->nodes[i].flags |= PL_FN_DEAD;
  pl_graph_rewire(f, t->map);
  for (int32_t k = 0; k < f->nodes[node].nin; k++) f->nodes[node].in[k] = in[k];
  for (int32_t k = 0; k < node; k++) {
    if (k == loss) {
      for (int32_t j = loss + 1; j < i; j++)
        if (t->mark[j] == 2) {
          f->nodes[j].stage = f->nodes[loss].stage;
          t->order[n++] = j;
        }
      t->order[n++] = node;
    }
    if (!(k > loss && k < i && t->mark[k] == 2)) t->order[n++] = k;
  }
  return pl_graph_compact(f, t->order);
}

static PlStatus run(Losses *t, bool *found) {
  PlGraph *f = t->f;
  *found = false;
  for (int32_t i = 0; i < f->nnodes; i++) {
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) t->uses[f->nodes[i].in[k]]++;
    for (int32_t k = 0; k < f->nodes[i].nafter; k++) t->awaited[f->nodes[i].after[k]] = 1;
  }
  for (int32_t o = 0; o < f->noutputs; o++) t->uses[f->outputs[o]]++;
  for (int32_t i = 0; i < f->nnodes && !*found; i++) {
    const int32_t loss = loss_of(t, i);
    if (loss < 0 || !ahead(t, loss, i)) continue;
    *found = true;
    return join(t, loss, i);
  }
  return PL_OK;
}

PlStatus pl_pass_losses(PlGraph *f, int32_t *removed) {
  *removed = 0;
  for (bool found = true; found;) { /* a step has one, seldom two */
    found = false;
    for (int32_t i = 0; i < f->nnodes && !found; i++) found = f->nodes[i].op == &pl_op_cross_entropy_linear_bwd;
    if (!found) return PL_OK;
    const size_t nodes = (size_t)f->nnodes + 2, vals = (size_t)f->nvals + 8;
    Losses t = {.f = f,
                .uses = calloc(vals, sizeof *t.uses),
                .awaited = calloc(nodes, 1),
                .mark = calloc(nodes, 1),
                .order = malloc(nodes * sizeof *t.order),
                .map = malloc(vals * sizeof *t.map)};
    PlStatus s = t.uses && t.awaited && t.mark && t.order && t.map ? run(&t, &found) : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
    if (s == PL_OK && found) ++*removed;
    free(t.uses);
    free(t.awaited);
    free(t.mark);
    free(t.order);
    free(t.map);
    PL_TRY(s);
  }
  return PL_OK;
}
