/* SPDX-License-Identifier: MIT
 * Which nodes become groups: runs of neighbours in the order of execution that can all work on one space (roles.h), pointwise
 * ones and those that treat rows by themselves, as far as the device takes them. The longest run from each node on is taken;
 * where a member at its ends saves no way to memory and the device gains nothing else, without that. */
#include "engine/graph/fuse/fuse.h"

#include <stdlib.h>

int32_t *pl_last_readers(const PlGraph *f, bool views) {
  int32_t *last = malloc(((size_t)f->nstores + 1) * sizeof *last);
  if (!last) return NULL;
  for (int32_t s = 0; s < f->nstores; s++) last[s] = -1;
  for (int32_t i = 0; i < f->nnodes; i++) {
    if (!views && (f->nodes[i].flags & PL_FN_VIEW)) continue;
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) last[f->vals[f->nodes[i].in[k]].store] = i;
  }
  for (int32_t o = 0; o < f->noutputs; o++) last[f->vals[f->outputs[o]].store] = f->nnodes;
  return last;
}

int32_t pl_fuse_maker(const PlGraph *f, PlGVal v, int32_t begin, int32_t end) {
  const PlGValue *first = &f->vals[f->stores[f->vals[v].store].first];
  return first->kind == PL_FV_NODE && first->node >= begin && first->node < end ? first->node : -1;
}

/* ---- runs --------------------------------------------------------------------------------------------------- */

/* What the group made must be read as it was made: a window of it is elsewhere. Sums are not there yet. */
static bool reads_whole(const PlGraph *f, const PlFuseGroup *g, int32_t i) {
  const PlGNode *n = &f->nodes[i];
  for (int32_t k = 0; k < n->nin; k++) {
    PlGVal v = n->in[k];
    int32_t by = v < 0 ? -1 : pl_fuse_maker(f, v, g->begin, i);
    if (by < 0) continue;
    const PlGValue *made = &f->vals[f->stores[f->vals[v].store].first];
    if (g->roles[i - g->begin].in[k] != g->roles[by - g->begin].out[made->slot] || f->vals[v].offset != 0 ||
        f->vals[v].dtype != made->dtype)
      return false;
  }
  return true;
}

/* The group from `begin` on in that space (numel 0: any); of less than two members: g->end is begin. */
static void run_from(const PlFuse *u, int32_t begin, PlFuseSpace space, PlFuseGroup *g) {
  const PlGraph *f = u->graph;
  int32_t end = begin, fits = 0;
  PlFuseSpace fit = space;
  g->begin = begin;
  g->nmember = 0;
  g->space = space;
  for (int32_t i = begin; i < f->nnodes && g->nmember < u->device->members && i - begin < PL_FUSE_NODES; i++) {
    const PlGNode *n = &f->nodes[i];
    PlFuseRoles *r = &g->roles[i - begin];
    g->end = i;
    if (n->flags & PL_FN_VIEW) continue;
    if (pl_gnode_waits(n, begin) || !pl_fuse_roles(f, n, u->device, &space, r) || !reads_whole(f, g, i)) break;
    if (u->device->takes && !u->device->takes(u, g, i, &space, r)) break;
    g->end = i + 1;
    g->space = space;
    g->nmember++;
    const PlFuseRoom room = u->device->room(u, g);
    if (room == PL_ROOM_NONE) break;
    if (room == PL_ROOM_LATER) continue;
    end = g->end;
    fit = space;
    fits = g->nmember;
  }
  g->end = fits < 2 ? begin : end;
  g->space = fit;
  g->nmember = fits;
}

/* A group may begin with values of one per row, whose space is known when rows come. */
static void best_from(const PlFuse *u, int32_t begin, PlFuseGroup *g) {
  PlFuseSpace wide;
  PlFuseGroup other;
  const int32_t ahead = u->next[begin];
  run_from(u, begin, (PlFuseSpace){.numel = 0}, g);
  if (ahead < g->end || ahead < 0 || !pl_fuse_rows(u->graph, &u->graph->nodes[ahead], &wide)) return;
  run_from(u, begin, wide, &other);
  if (other.end > g->end && other.end > ahead) *g = other;
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

/* Does member i save anybody a way to memory? Unless another one reads what it made or what it reads too, or made what it
 * reads, its own kernel does as well. */
static bool exchanges(const PlGraph *f, int32_t i, const PlFuseGroup *g) {
  const PlGNode *n = &f->nodes[i];
  const int64_t numel = g->space.numel;
  for (int32_t j = g->begin; j < g->end; j++) {
    const PlGNode *m = &f->nodes[j];
    if (j == i || (m->flags & PL_FN_VIEW)) continue;
    for (int32_t k = 0; k < m->nin; k++)
      if (m->in[k] >= 0 && touches(f, i, m->in[k], numel)) return true;
    for (int32_t k = 0; k < n->nin && j < i; k++)
      if (n->in[k] >= 0 && touches(f, j, n->in[k], numel)) return true;
  }
  return false;
}

bool pl_fuse_from(const PlFuse *u, int32_t i, PlFuseGroup *g) {
  const PlGraph *f = u->graph;
  if (f->nodes[i].flags & PL_FN_VIEW) return false;
  best_from(u, i, g);
  if (u->device->lone || g->end == i) return g->end > i;
  while (g->end > i && ((f->nodes[g->end - 1].flags & PL_FN_VIEW) || !exchanges(f, g->end - 1, g)))
    g->nmember -= !(f->nodes[--g->end].flags & PL_FN_VIEW);
  return g->end > i && exchanges(f, i, g);
}

PlStatus pl_fuse_begin(PlFuse *u) {
  const PlGraph *f = u->graph;
  int32_t next = -1;
  u->next = malloc(((size_t)f->nnodes + 1) * sizeof *u->next);
  if (!u->next) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  for (int32_t i = f->nnodes - 1; i >= 0; i--) {
    const PlGNode *n = &f->nodes[i];
    PlFuseSpace s;
    if (pl_fuse_rows(f, n, &s)) next = i;
    else if (!(n->flags & PL_FN_VIEW) && n->op->cls != PL_POINTWISE && !n->op->rows.pieces) next = -1;
    u->next[i] = next >= 0 && next - i < u->device->members ? next : -1;
  }
  return PL_OK;
}
