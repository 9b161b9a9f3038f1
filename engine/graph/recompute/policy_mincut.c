/* SPDX-License-Identifier: MIT
 * Policy "mincut": the cheapest set of stores from which backward can compute all it reads. A store is an edge in → out
 * with its bytes as capacity (0 where it stays anyway), a node links the outs of its inputs to itself and itself to
 * the ins of its outputs, without limit; the source feeds leaves and nodes that must not be computed again, backward's
 * reads drain into the sink. The cut nearest the sink is what is kept.
 * Flow by Dinic's algorithm (E. A. Dinic 1970), without recursion. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/recompute.h"

static const int64_t ENDLESS = INT64_MAX / 4;
enum { POLL_EVERY = 4096 }; /* rounds */

typedef struct Net {
  int32_t n, nedges;
  int32_t *at;   /* per vertex: first edge, -1 */
  int32_t *next; /* per edge; edge e ^ 1 is its reverse */
  int32_t *to;
  int64_t *room;
  int32_t *level, *cursor, *queue, *path;
} Net;

static void edge(Net *g, int32_t a, int32_t b, int64_t room) {
  for (int k = 0; k < 2; k++) {
    int32_t e = g->nedges++;
    g->to[e] = k ? a : b;
    g->room[e] = k ? 0 : room;
    int32_t from = k ? b : a;
    g->next[e] = g->at[from];
    g->at[from] = e;
  }
}

/* Levels by distance from the sink over edges with room towards it; true if the source is reached. */
static bool levels(Net *g, int32_t source, int32_t sink) {
  int32_t head = 0, tail = 0;
  for (int32_t v = 0; v < g->n; v++) g->level[v] = -1;
  g->level[sink] = 0;
  g->queue[tail++] = sink;
  while (head < tail) {
    int32_t v = g->queue[head++];
    for (int32_t e = g->at[v]; e >= 0; e = g->next[e]) {
      int32_t u = g->to[e];
      if (g->level[u] >= 0 || g->room[e ^ 1] == 0) continue;
      g->level[u] = g->level[v] + 1;
      g->queue[tail++] = u;
    }
  }
  return g->level[source] >= 0;
}

/* One blocking flow along falling levels. path[] is the walk from the source. It ends: a round fills an edge, gives a vertex
 * up, or goes one level down. */
static PlStatus block(Net *g, int32_t source, int32_t sink) {
  int32_t n = 0, v = source;
  for (int32_t u = 0; u < g->n; u++) g->cursor[u] = g->at[u];
  for (uint32_t round = 1;; round++) {
    if (round % POLL_EVERY == 0) PL_TRY(plk_poll());
    if (v == sink) {
      int64_t most = ENDLESS;
      int32_t back = 0;
      for (int32_t k = 0; k < n; k++)
        if (g->room[g->path[k]] < most) most = g->room[g->path[k]];
      for (int32_t k = n - 1; k >= 0; k--) {
        g->room[g->path[k]] -= most;
        g->room[g->path[k] ^ 1] += most;
        if (g->room[g->path[k]] == 0) back = k;
      }
      n = back; /* on from before the first edge that is full */
      v = g->to[g->path[n] ^ 1];
      continue;
    }
    int32_t e = g->cursor[v];
    while (e >= 0 && !(g->room[e] > 0 && g->level[g->to[e]] == g->level[v] - 1)) e = g->next[e];
    g->cursor[v] = e;
    if (e >= 0) {
      g->path[n++] = e;
      v = g->to[e];
    } else {
      g->level[v] = -1; /* a dead end */
      if (n == 0) return PL_OK;
      v = g->to[g->path[--n] ^ 1];
    }
  }
}

/* Vertices: in of store s 2s, out 2s + 1, node i 2 ns + i, source, sink. */
static void build(Net *g, const PlRecompute *m, int32_t source, int32_t sink) {
  for (int32_t v = 0; v < g->n; v++) g->at[v] = -1;
  for (int32_t s = 0; s < m->nstores; s++) {
    int32_t by = m->maker[s];
    bool used = m->back[s] || m->reader_at[s + 1] > m->reader_at[s];
    if (!used) continue;
    edge(g, 2 * s, 2 * s + 1, by >= 0 && m->force[by] && !m->held[s] ? ENDLESS : m->held[s] ? 0 : m->bytes[s]);
    if (m->back[s]) edge(g, 2 * s + 1, sink, ENDLESS);
    if (by < 0) edge(g, source, 2 * s, ENDLESS);
  }
  for (int32_t i = 0; i < m->first; i++) {
    int32_t v = 2 * m->nstores + i;
    if (!m->may[i] && m->out_at[i] < m->out_at[i + 1]) edge(g, source, v, ENDLESS);
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) edge(g, 2 * m->in[e] + 1, v, ENDLESS);
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) edge(g, v, 2 * m->out[e], ENDLESS);
  }
}

/* After the flow: a store is kept where its in is cut off from the sink and its out is not. */
static void read_cut(Net *g, PlRecompute *m, int32_t source, int32_t sink) {
  (void)levels(g, source, sink);
  for (int32_t i = 0; i < m->first; i++) {
    bool keep = false, any = false;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) {
      int32_t s = m->out[e];
      bool in_t = g->level[2 * s] >= 0, out_t = g->level[2 * s + 1] >= 0;
      any |= in_t && out_t && !m->held[s];
      keep |= !in_t && out_t;
    }
    m->again[i] = m->may[i] && any;
    (void)keep;
  }
}

PlStatus pl_recompute_mincut(PlRecompute *m) {
  size_t edges = 0;
  for (int32_t i = 0; i < m->first; i++) edges += 1 + (size_t)(m->in_at[i + 1] - m->in_at[i]) + (size_t)(m->out_at[i + 1] - m->out_at[i]);
  edges = 2 * (edges + 3 * (size_t)m->nstores + 1);
  Net g = {.n = 2 * m->nstores + m->first + 2};
  size_t n = (size_t)g.n;
  g.at = malloc(5 * n * sizeof *g.at);
  g.next = malloc(2 * edges * sizeof *g.next);
  g.room = malloc(edges * sizeof *g.room);
  PlStatus s = PL_OK;
  if (!g.at || !g.next || !g.room) s = pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  else {
    g.to = g.next + edges;
    g.level = g.at + n;
    g.cursor = g.level + n;
    g.queue = g.cursor + n;
    g.path = g.queue + n;
    int32_t source = g.n - 2, sink = g.n - 1;
    build(&g, m, source, sink);
    /* after each blocking flow the sink is farther from the source: at most g.n of them */
    for (int32_t phase = 0; phase <= g.n && s == PL_OK && levels(&g, source, sink); phase++) s = block(&g, source, sink);
    if (s == PL_OK) read_cut(&g, m, source, sink);
  }
  free(g.at);
  free(g.next);
  free(g.room);
  return s;
}
