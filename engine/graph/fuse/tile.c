/* SPDX-License-Identifier: MIT
 * The CPU as the search for groups sees it: there is room for as many results as a tile has slots. See tile.h. */
#include "engine/graph/fuse/tile.h"

#include <stdlib.h>

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

int32_t pl_tile_end(const PlPlan *plan, int32_t i) {
  int32_t end = i + 1;
  while (end < plan->graph->nnodes && plan->group[end] == i) end++;
  return end;
}

static bool take(PlTileSlots *t, const PlGraph *f, PlGVal v, bool col) {
  uint32_t *taken = col ? &t->col : &t->full;
  int8_t *most = col ? &t->ncol : &t->nfull;
  int at = 0, room = col ? PL_TILE_COLUMNS : PL_TILE_SLOTS;
  while (at < room && (*taken >> at) & 1) at++;
  if (at == room) return false;
  *taken |= 1u << at;
  if (at + 1 > *most) *most = (int8_t)(at + 1);
  if (t->of) t->of[f->vals[v].store] = (int8_t)at;
  return true;
}

static bool seen_before(const PlGraph *f, const PlGNode *n, int32_t k) {
  for (int32_t j = 0; j < k; j++)
    if (n->in[j] >= 0 && f->vals[n->in[j]].store == f->vals[n->in[k]].store) return true;
  return false;
}

/* Counting only (of is NULL) slots are anonymous: any one is given back. */
static void give(PlTileSlots *t, const PlGraph *f, PlGVal v, bool col) {
  uint32_t *taken = col ? &t->col : &t->full;
  *taken &= t->of ? ~(1u << t->of[f->vals[v].store]) : *taken - 1;
}

/* Results take slots before inputs give theirs back: a kernel may not be told that they are one. */
bool pl_tile_slots(PlTileSlots *t, const PlGraph *f, const int32_t *last, int32_t begin, int32_t end, int32_t i, const PlFuseRoles *r) {
  const PlGNode *n = &f->nodes[i];
  for (int32_t o = 0; o < n->nout; o++) {
    PlGVal v = n->first + o;
    int32_t until = last[f->vals[v].store];
    if (f->vals[v].dtype == PL_NDTYPE || until >= end || (until < 0 && (r->spare >> o) & 1)) continue;
    if (r->out[o] == PL_ROLE_SUM) continue;
    if (!take(t, f, v, r->out[o] == PL_ROLE_COL)) return false;
  }
  for (int32_t o = 0; o < n->nout; o++) {
    PlGVal v = n->first + o;
    if (f->vals[v].dtype != PL_NDTYPE && last[f->vals[v].store] < 0 && !((r->spare >> o) & 1) && r->out[o] != PL_ROLE_SUM)
      give(t, f, v, r->out[o] == PL_ROLE_COL);
  }
  for (int32_t k = 0; k < n->nin; k++) {
    PlGVal v = n->in[k];
    if (v < 0 || seen_before(f, n, k) || last[f->vals[v].store] != i || pl_fuse_maker(f, v, begin, end) < 0) continue;
    give(t, f, v, r->in[k] == PL_ROLE_COL);
  }
  return true;
}

/* Slots that the group needs, and rows that stay in the second-level cache with what becomes of them. */
static PlFuseRoom room(const PlFuse *u, const PlFuseGroup *g) {
  const PlFuseSpace *s = &g->space;
  PlTileSlots t = {.full = 0};
  for (int32_t i = g->begin; i < g->end; i++)
    if (!(u->graph->nodes[i].flags & PL_FN_VIEW) && !pl_tile_slots(&t, u->graph, u->last, g->begin, g->end, i, &g->roles[i - g->begin]))
      return PL_ROOM_NONE;
  return !s->rows || t.nfull * s->cols * 8 * (s->unit > 1 ? s->unit : 1) <= 1 << 19 ? PL_ROOM_ENOUGH : PL_ROOM_NONE;
}

const PlFuseDevice pl_tile_device = {.members = 64, .least = 2, .sums = true, .room = room};

static void note(const PlFuse *u, PlPlan *p, const PlFuseGroup *g) {
  p->space[g->begin] = g->space;
  for (int32_t i = g->begin; i < g->end; i++) {
    p->group[i] = g->begin;
    for (int32_t o = 0; o < u->graph->nodes[i].nout; o++) {
      const PlGVal v = u->graph->nodes[i].first + o;
      const PlGValue *val = &u->graph->vals[v];
      p->inner[v] = val->dtype != PL_NDTYPE && pl_fuse_maker(u->graph, v, g->begin, g->end) >= 0 && u->last[val->store] < g->end;
    }
  }
}

PlStatus pl_fuse(PlPlan *plan) {
  const PlGraph *f = plan->graph;
  const size_t n = (size_t)f->nnodes + 1;
  free(plan->group);
  free(plan->inner);
  free(plan->space);
  plan->group = malloc(n * sizeof *plan->group);
  plan->space = malloc(n * sizeof *plan->space);
  plan->inner = calloc((size_t)f->nvals + 1, 1);
  int32_t *last = pl_last_readers(f, false);
  PlFuse u = {.graph = f, .device = &pl_tile_device, .last = last};
  PlStatus s = plan->group && plan->space && plan->inner && last ? pl_fuse_begin(&u) : no_memory();
  for (int32_t i = 0; s == PL_OK && i < f->nnodes; i++) plan->group[i] = -1;
  for (int32_t i = 0; s == PL_OK && i < f->nnodes;) {
    PlFuseGroup g;
    const bool found = pl_fuse_from(&u, i, &g);
    if (found) note(&u, plan, &g);
    i = found ? g.end : i + 1;
  }
  free(last);
  free(u.next);
  return s;
}
