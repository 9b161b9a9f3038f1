/* SPDX-License-Identifier: MIT
 * Policy "mirror": assume that every node that may be computed again is; then go forward from the frontier, the nodes
 * all of whose inputs stay. Frontier nodes that share an input form a group. Storing a group's outputs allocates bytes;
 * it releases the inputs that nobody else needs in backward. Where it releases at least as much as it allocates the group
 * is stored, and its readers may join the frontier.
 * Groups are a union-find with sums, a store counts its readers outside of the frontier: every node joins once, so each
 * edge is visited a bounded number of times. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/recompute.h"

typedef struct Greedy {
  PlRecompute *m;
  int32_t *parent;          /* per node: union-find, -1: not in the frontier */
  int64_t *alloc, *release; /* per group */
  int32_t *next, *tail;     /* members of a group as a list */
  int32_t *waiting;         /* per node: inputs made by nodes that are computed again */
  int32_t *outside;         /* per store: readers that are neither stored nor in the frontier */
  int32_t *group;           /* per store: a frontier node that reads it, -1 */
  uint8_t *stored;
  int32_t *queue, head, tailq; /* nodes that join */
  int32_t *dirty, ndirty;      /* groups to look at */
} Greedy;

static int32_t find(Greedy *g, int32_t i) {
  while (g->parent[i] != i) {
    g->parent[i] = g->parent[g->parent[i]];
    i = g->parent[i];
  }
  return i;
}

static int32_t join_groups(Greedy *g, int32_t a, int32_t b) {
  a = find(g, a);
  b = find(g, b);
  if (a == b) return a;
  g->parent[b] = a;
  g->alloc[a] += g->alloc[b];
  g->release[a] += g->release[b];
  g->next[g->tail[a]] = b;
  g->tail[a] = g->tail[b];
  return a;
}

/* Node i has all its inputs: it joins the frontier. */
static void join(Greedy *g, int32_t i) {
  PlRecompute *m = g->m;
  g->parent[i] = i;
  g->next[i] = -1;
  g->tail[i] = i;
  g->alloc[i] = g->release[i] = 0;
  for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) {
    int32_t s = m->out[e];
    if (m->back[s] || m->reader_at[s + 1] > m->reader_at[s]) g->alloc[i] += m->bytes[s];
  }
  int32_t root = i;
  for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) {
    int32_t s = m->in[e];
    if (g->group[s] >= 0 && g->parent[g->group[s]] >= 0) root = join_groups(g, g->group[s], root);
    g->group[s] = i;
    if (--g->outside[s] == 0 && !m->back[s]) g->release[find(g, i)] += m->bytes[s];
  }
  g->dirty[g->ndirty++] = root;
}

static void settle(Greedy *g, int32_t i);

/* The group's results stay: their readers wait for one input less. */
static void store(Greedy *g, int32_t root) {
  for (int32_t i = root, next; i >= 0; i = next) {
    next = g->next[i];
    g->parent[i] = -1;
    g->stored[i] = 1;
    settle(g, i);
  }
}

/* Node i is computed in forward only. */
static void settle(Greedy *g, int32_t i) {
  PlRecompute *m = g->m;
  for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++)
    for (int32_t r = m->reader_at[m->out[e]]; r < m->reader_at[m->out[e] + 1]; r++) {
      int32_t k = m->reader[r];
      if (--g->waiting[k] == 0 && m->may[k] && !g->stored[k]) g->queue[g->tailq++] = k;
    }
}

static void start(Greedy *g) {
  PlRecompute *m = g->m;
  for (int32_t s = 0; s < m->nstores; s++) {
    g->group[s] = -1;
    g->outside[s] = m->reader_at[s + 1] - m->reader_at[s];
  }
  for (int32_t i = 0; i < m->first; i++) {
    g->parent[i] = -1;
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) g->waiting[i] += m->maker[m->in[e]] >= 0;
  }
  for (int32_t i = 0; i < m->first; i++) {
    if (m->in_at[i] == m->in_at[i + 1] && m->out_at[i] == m->out_at[i + 1]) continue; /* a view */
    if (!m->may[i]) {
      g->stored[i] = 1;
      /* a heavy op reads its inputs in forward, and in backward where its gradient does: it holds none back */
      for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) g->outside[m->in[e]]--;
      settle(g, i);
    } else if (g->waiting[i] == 0 && m->in_at[i] == m->in_at[i + 1]) g->queue[g->tailq++] = i;
  }
  for (int32_t i = 0; i < m->first; i++)
    if (m->may[i] && g->waiting[i] == 0 && m->in_at[i] < m->in_at[i + 1]) {
      bool made = false;
      for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) made |= m->maker[m->in[e]] >= 0;
      if (!made) g->queue[g->tailq++] = i; /* reads leaves only */
    }
}

static bool forced(const Greedy *g, int32_t root) {
  for (int32_t i = root; i >= 0; i = g->next[i])
    if (g->m->force[i]) return true;
  return false;
}

/* A node joins once and marks one group then, so there are at most m->first rounds. */
static void decide(Greedy *g) {
  while (g->head < g->tailq || g->ndirty) {
    while (g->head < g->tailq) join(g, g->queue[g->head++]);
    int32_t root = g->dirty[--g->ndirty];
    if (g->parent[root] < 0) continue;
    root = find(g, root);
    if (g->release[root] >= g->alloc[root] && !forced(g, root)) store(g, root);
  }
}

PlStatus pl_recompute_greedy(PlRecompute *m) {
  size_t nn = (size_t)m->first + 1, ns = (size_t)m->nstores + 1;
  Greedy g = {.m = m};
  g.parent = malloc(nn * sizeof *g.parent);
  g.alloc = calloc(2 * nn, sizeof *g.alloc);
  g.next = calloc(2 * nn, sizeof *g.next);
  g.waiting = calloc(nn, sizeof *g.waiting);
  g.outside = malloc(2 * ns * sizeof *g.outside);
  g.stored = calloc(nn, 1);
  g.queue = malloc(2 * nn * sizeof *g.queue);
  PlStatus s = PL_OK;
  if (!g.parent || !g.alloc || !g.next || !g.waiting || !g.outside || !g.stored || !g.queue)
    s = pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  else {
    g.release = g.alloc + nn;
    g.tail = g.next + nn;
    g.group = g.outside + ns;
    g.dirty = g.queue + nn;
    start(&g);
    decide(&g);
    for (int32_t i = 0; i < m->first; i++) m->again[i] = m->may[i] && !g.stored[i];
  }
  free(g.parent);
  free(g.alloc);
  free(g.next);
  free(g.waiting);
  free(g.outside);
  free(g.stored);
  free(g.queue);
  return s;
}
