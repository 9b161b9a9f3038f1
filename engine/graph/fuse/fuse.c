/* SPDX-License-Identifier: MIT
 * Which nodes become groups: runs of neighbours in the order of execution that can all work on tiles of one space (tile.h),
 * pointwise ones and those that treat rows by themselves. The longest run from each node on is taken, but for members at its
 * ends that save no way to memory. */
#include "engine/graph/fuse/fuse.h"

#include <stdlib.h>
#include <string.h>

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

int32_t pl_group_end(const PlPlan *plan, int32_t i) {
  int32_t end = i + 1;
  while (end < plan->graph->nnodes && plan->group[end] == i) end++;
  return end;
}

int32_t *pl_last_readers(const PlGraph *f) {
  int32_t *last = malloc(((size_t)f->nstores + 1) * sizeof *last);
  if (!last) return NULL;
  for (int32_t s = 0; s < f->nstores; s++) last[s] = -1;
  for (int32_t i = 0; i < f->nnodes; i++) {
    if (f->nodes[i].flags & PL_FN_VIEW) continue;
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) last[f->vals[f->nodes[i].in[k]].store] = i;
  }
  for (int32_t o = 0; o < f->noutputs; o++) last[f->vals[f->outputs[o]].store] = f->nnodes;
  return last;
}

/* ---- what lives in tiles ------------------------------------------------------------------------------------ */

/* The node of [begin, end) that made the memory of v, -1: none of them. */
static int32_t maker(const PlGraph *f, PlGVal v, int32_t begin, int32_t end) {
  const PlGValue *first = &f->vals[f->stores[f->vals[v].store].first];
  return first->kind == PL_FV_NODE && first->node >= begin && first->node < end ? first->node : -1;
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
bool pl_tile_slots(PlTileSlots *t, const PlGraph *f, const int32_t *last, int32_t begin, int32_t end, int32_t i, const PlTileRole *r) {
  const PlGNode *n = &f->nodes[i];
  for (int32_t o = 0; o < n->nout; o++) {
    PlGVal v = n->first + o;
    int32_t until = last[f->vals[v].store];
    if (f->vals[v].dtype == PL_NDTYPE || until >= end || (until < 0 && (r->spare >> o) & 1)) continue;
    if (r->out[o] == PL_TILE_SUM) continue;
    if (!take(t, f, v, r->out[o] == PL_TILE_COL)) return false;
  }
  for (int32_t o = 0; o < n->nout; o++) {
    PlGVal v = n->first + o;
    if (f->vals[v].dtype != PL_NDTYPE && last[f->vals[v].store] < 0 && !((r->spare >> o) & 1) && r->out[o] != PL_TILE_SUM)
      give(t, f, v, r->out[o] == PL_TILE_COL);
  }
  for (int32_t k = 0; k < n->nin; k++) {
    PlGVal v = n->in[k];
    if (v < 0 || seen_before(f, n, k) || last[f->vals[v].store] != i || maker(f, v, begin, end) < 0) continue;
    give(t, f, v, r->in[k] == PL_TILE_COL);
  }
  return true;
}

/* ---- runs --------------------------------------------------------------------------------------------------- */

/* What the group made must be read as it was made: a window of it is in other tiles. Sums are not there yet. */
static bool reads_whole(const PlGraph *f, int32_t begin, int32_t i, const PlTileRole *roles) {
  const PlGNode *n = &f->nodes[i];
  for (int32_t k = 0; k < n->nin; k++) {
    PlGVal v = n->in[k];
    int32_t by = v < 0 ? -1 : maker(f, v, begin, i);
    if (by < 0) continue;
    const PlGValue *made = &f->vals[f->stores[f->vals[v].store].first];
    if (roles[i - begin].in[k] != roles[by - begin].out[made->slot] || f->vals[v].offset != 0 || f->vals[v].dtype != made->dtype)
      return false;
  }
  return true;
}

typedef struct Fuse {
  PlPlan *p;
  const PlGraph *f;
  const int32_t *last;
  int32_t *next; /* per node: the next one that needs rows, with nothing between that is in no group; -1 */
} Fuse;

/* Slots that the group [begin, end) needs, had it ended there. */
static bool slots_suffice(const Fuse *u, int32_t begin, int32_t end, PlTileSpace s, const PlTileRole *roles) {
  PlTileSlots t = {.full = 0};
  for (int32_t i = begin; i < end; i++)
    if (!(u->f->nodes[i].flags & PL_FN_VIEW) && !pl_tile_slots(&t, u->f, u->last, begin, end, i, &roles[i - begin])) return false;
  return !s.rows ||
         t.nfull * s.cols * 8 * (s.unit > 1 ? s.unit : 1) <= 1 << 19; /* rows and what becomes of them stay in the second-level cache */
}

/* The group from `begin` on in space *s (numel 0: any): one behind its end; `begin`: none. */
static int32_t run_from(const Fuse *u, int32_t begin, PlTileSpace *s) {
  const PlGraph *f = u->f;
  PlTileRole roles[2 * PL_TILE_MEMBERS];
  int32_t end = begin, members = 0, i = begin;
  for (; i < f->nnodes && members < PL_TILE_MEMBERS && i - begin < 2 * PL_TILE_MEMBERS; i++) {
    if (f->nodes[i].flags & PL_FN_VIEW) continue;
    PlTileSpace wider = *s;
    if (pl_gnode_waits(&f->nodes[i], begin)) break;
    if (!pl_tile_join(f, &f->nodes[i], &wider, &roles[i - begin])) break;
    if (!reads_whole(f, begin, i, roles)) break;
    if (!slots_suffice(u, begin, i + 1, wider, roles)) break;
    *s = wider;
    end = i + 1;
    members++;
  }
  return members < 2 ? begin : end;
}

/* A group may begin with values of one per row, whose space is known when rows come. */
static int32_t best_from(const Fuse *u, int32_t begin, PlTileSpace *s) {
  PlTileSpace wide;
  *s = (PlTileSpace){.numel = 0};
  int32_t end = run_from(u, begin, s), ahead = u->next[begin];
  if (ahead < end || ahead < 0 || !pl_tile_rows(u->f, &u->f->nodes[ahead], &wide)) return end;
  int32_t other = run_from(u, begin, &wide);
  if (other <= end || other <= ahead) return end;
  *s = wide;
  return other;
}

/* ---- what a group is for ------------------------------------------------------------------------------------ */

/* Is v made by node i, or as large as the space and read by it? */
static bool touches(const PlGraph *f, int32_t i, PlGVal v, int64_t numel) {
  const PlGNode *n = &f->nodes[i];
  int32_t store = f->vals[v].store;
  for (int32_t o = 0; o < n->nout; o++)
    if (f->vals[n->first + o].store == store) return true;
  for (int32_t k = 0; k < n->nin && f->vals[v].numel == numel; k++)
    if (n->in[k] >= 0 && f->vals[n->in[k]].store == store) return true;
  return false;
}

/* Does member i of [begin, end) save anybody a way to memory? Unless another one reads what it made or what it reads too,
 * or made what it reads, its own kernel does as well. */
static bool exchanges(const PlGraph *f, int32_t i, int32_t begin, int32_t end, int64_t numel) {
  const PlGNode *n = &f->nodes[i];
  for (int32_t j = begin; j < end; j++) {
    const PlGNode *m = &f->nodes[j];
    if (j == i || (m->flags & PL_FN_VIEW)) continue;
    for (int32_t k = 0; k < m->nin; k++)
      if (m->in[k] >= 0 && touches(f, i, m->in[k], numel)) return true;
    for (int32_t k = 0; k < n->nin && j < i; k++)
      if (n->in[k] >= 0 && touches(f, j, n->in[k], numel)) return true;
  }
  return false;
}

/* The group without members at its end that are no use; `begin`: the first is none, or nothing is left. */
static int32_t worth(const PlGraph *f, int32_t begin, int32_t end, int64_t numel) {
  while (end > begin && ((f->nodes[end - 1].flags & PL_FN_VIEW) || !exchanges(f, end - 1, begin, end, numel))) end--;
  return end > begin && exchanges(f, begin, begin, end, numel) ? end : begin;
}

static void find_rows(Fuse *u) {
  const PlGraph *f = u->f;
  int32_t next = -1;
  for (int32_t i = f->nnodes - 1; i >= 0; i--) {
    const PlGNode *n = &f->nodes[i];
    PlTileSpace s;
    if (pl_tile_rows(f, n, &s)) next = i;
    else if (!(n->flags & PL_FN_VIEW) && n->op->cls != PL_POINTWISE && !n->op->rows.pieces) next = -1;
    u->next[i] = next >= 0 && next - i < PL_TILE_MEMBERS ? next : -1;
  }
}

static void note(const Fuse *u, int32_t begin, int32_t end, const PlTileSpace *s) {
  PlPlan *p = u->p;
  p->space[begin] = *s;
  for (int32_t i = begin; i < end; i++) {
    p->group[i] = begin;
    for (int32_t o = 0; o < u->f->nodes[i].nout; o++) {
      PlGVal v = u->f->nodes[i].first + o;
      p->inner[v] = u->f->vals[v].dtype != PL_NDTYPE && maker(u->f, v, begin, end) >= 0 && u->last[u->f->vals[v].store] < end;
    }
  }
}

PlStatus pl_fuse(PlPlan *plan) {
  const PlGraph *f = plan->graph;
  size_t n = (size_t)f->nnodes + 1;
  free(plan->group);
  free(plan->inner);
  free(plan->space);
  plan->group = malloc(n * sizeof *plan->group);
  plan->space = malloc(n * sizeof *plan->space);
  plan->inner = calloc((size_t)f->nvals + 1, 1);
  int32_t *last = pl_last_readers(f);
  Fuse u = {plan, f, last, malloc(n * sizeof *u.next)};
  PlStatus s = plan->group && plan->space && plan->inner && last && u.next ? PL_OK : no_memory();
  for (int32_t i = 0; s == PL_OK && i < f->nnodes; i++) plan->group[i] = -1;
  if (s == PL_OK) find_rows(&u);
  for (int32_t i = 0; s == PL_OK && i < f->nnodes;) {
    PlTileSpace space;
    int32_t end = f->nodes[i].flags & PL_FN_VIEW ? i : best_from(&u, i, &space);
    if (end > i) end = worth(f, i, end, space.numel);
    if (end > i) note(&u, i, end, &space);
    i = end > i ? end : i + 1;
  }
  free(last);
  free(u.next);
  return s;
}
