/* SPDX-License-Identifier: MIT
 * The recomputation problem of one region: stores, who makes and reads them, what backward reads. See recompute.h. */
#include "engine/graph/recompute/recompute.h"

#include <stdlib.h>
#include <string.h>

enum { MUCH = 1 << 20 }; /* bytes; what reads less costs nothing worth to be asked */

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

bool pl_recompute_cheap(const PlGNode *n, bool seeded, bool heavy) {
  const PlOp *op = n->op;
  if (n->flags & PL_FN_MUTATES || op->flags & (PL_F_MUTATES | PL_F_IMPURE)) return false;
  if (op->flags & PL_F_SEEDED) return seeded;
  if (op->cls != PL_HEAVY && !(op->flags & PL_F_COSTLY)) return true;
  return heavy;
}

bool pl_recompute_forced(const PlGraph *f, const PlRecomputeOptions *o) {
  for (int32_t i = 0; i < f->nnodes; i++)
    if (f->nodes[i].mark == PL_RECOMPUTE_FORCE) return true;
  for (int32_t i = 0; i < o->nchoice; i++)
    if (o->choice[i] == PL_RECOMPUTE_FORCE) return true;
  return false;
}

void pl_recompute_free(PlRecompute *m) {
  if (!m) return;
  free(m->bytes);
  free(m->held);
  free(m->leaf);
  free(m->back);
  free(m->maker);
  free(m->in_at);
  free(m->in);
  free(m->out_at);
  free(m->out);
  free(m->reader_at);
  free(m->reader);
  free(m->may);
  free(m->force);
  free(m->again);
  free(m);
}

static bool is_real(const PlGNode *n) { return !(n->flags & PL_FN_VIEW); }

/* Does option force name it? */
static bool is_named(const PlGNode *n, const PlRecomputeOptions *o) {
  return o->choice && n->source >= 0 && n->source < o->nchoice && o->choice[n->source] == PL_RECOMPUTE_FORCE;
}

static void mark_stores(PlRecompute *m) {
  const PlGraph *f = m->f;
  for (int32_t s = 0; s < m->nstores; s++) {
    m->maker[s] = -1;
    m->bytes[s] = f->stores[s].bytes;
    m->leaf[s] = f->vals[f->stores[s].first].kind != PL_FV_NODE;
    m->held[s] = m->leaf[s];
  }
  for (int32_t o = 0; o < f->noutputs; o++) m->held[f->vals[f->outputs[o]].store] = 1;
  for (int32_t i = m->first; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (n->stage != m->stage || !is_real(n)) continue;
    for (int32_t k = 0; k < n->nin; k++)
      if (n->in[k] >= 0) m->back[f->vals[n->in[k]].store] = 1;
  }
}

/* Lists of stores per node; seen[] has one stamp a store. */
static void list_edges(PlRecompute *m, int32_t *seen) {
  const PlGraph *f = m->f;
  int32_t nin = 0, nout = 0;
  for (int32_t s = 0; s < m->nstores; s++) seen[s] = -1;
  for (int32_t i = 0; i < m->first; i++) {
    const PlGNode *n = &f->nodes[i];
    m->in_at[i] = nin;
    m->out_at[i] = nout;
    for (int32_t k = 0; k < n->nin && is_real(n); k++) {
      int32_t s = n->in[k] < 0 ? -1 : f->vals[n->in[k]].store;
      if (s < 0 || seen[s] == i) continue;
      seen[s] = i;
      m->in[nin++] = s;
      m->reader_at[s + 1]++;
    }
    for (int32_t o = 0; o < n->nout && is_real(n) && !(n->flags & PL_FN_MUTATES); o++) {
      int32_t s = f->vals[n->first + o].store;
      if (f->vals[n->first + o].dtype == PL_NDTYPE) continue;
      m->maker[s] = i;
      m->out[nout++] = s;
    }
  }
  m->in_at[m->first] = nin;
  m->out_at[m->first] = nout;
  for (int32_t s = 0; s < m->nstores; s++) m->reader_at[s + 1] += m->reader_at[s];
  for (int32_t s = 0; s < m->nstores; s++) seen[s] = m->reader_at[s];
  for (int32_t i = 0; i < m->first; i++)
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) m->reader[seen[m->in[e]]++] = i;
}

/* What cannot be made again: results that somebody writes into, and those of nodes that read a store which is written between
 * them and the backward half. Only who names such a node gets an error: nothing else would come of the option. */
static PlStatus mark_overwritten(PlRecompute *m, const PlRecomputeOptions *opts, int32_t *written) {
  const PlGraph *f = m->f;
  for (int32_t s = 0; s < m->nstores; s++) written[s] = -1;
  for (int32_t i = 0; i < m->first; i++)
    for (int32_t o = 0; o < pl_gnode_written(&f->nodes[i]); o++) written[f->vals[f->nodes[i].first + o].store] = i;
  for (int32_t i = 0; i < m->first; i++) {
    const PlGNode *n = &f->nodes[i];
    bool stale = false;
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) stale |= written[m->in[e]] > i;
    if (stale && m->force[i] && is_named(n, opts))
      PL_FAIL(PL_ERR_STATE,
              "recomputing %s in backward would read a leaf that is overwritten in between; do not force it, or write "
              "into a clone",
              n->name);
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) stale |= written[m->out[e]] >= 0;
    if (stale) m->may[i] = m->force[i] = 0;
  }
  return PL_OK;
}

/* Does node i read much to make little (a loss of all logits, a sum of all elements)? To repeat it costs time and saves nothing. */
static bool saves_little(const PlRecompute *m, int32_t i) {
  int64_t in = 0, out = 0;
  for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++) in += m->bytes[m->in[e]];
  for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) out += m->bytes[m->out[e]];
  return in >= MUCH && out < in / 256;
}

static PlStatus fill(PlRecompute *m, const PlRecomputeOptions *o) {
  const PlGraph *f = m->f;
  size_t ns = (size_t)m->nstores + 1, nn = (size_t)m->first + 1, edges = 1, outs = 1;
  for (int32_t i = 0; i < m->first; i++) {
    edges += (size_t)f->nodes[i].nin;
    outs += (size_t)f->nodes[i].nout;
  }
  m->bytes = calloc(ns, sizeof *m->bytes);
  m->held = calloc(ns, 1);
  m->leaf = calloc(ns, 1);
  m->back = calloc(ns, 1);
  m->maker = calloc(ns, sizeof *m->maker);
  m->in_at = calloc(nn, sizeof *m->in_at);
  m->in = calloc(edges, sizeof *m->in);
  m->out_at = calloc(nn, sizeof *m->out_at);
  m->out = calloc(outs, sizeof *m->out);
  m->reader_at = calloc(ns + 1, sizeof *m->reader_at);
  m->reader = calloc(edges, sizeof *m->reader);
  m->may = calloc(nn, 1);
  m->force = calloc(nn, 1);
  m->again = calloc(nn, 1);
  int32_t *room = malloc(ns * sizeof *room);
  PlStatus s = PL_OK;
  if (!m->bytes || !m->held || !m->leaf || !m->back || !m->maker || !m->in_at || !m->in || !m->out_at || !m->out || !m->reader_at ||
      !m->reader || !m->may || !m->force || !m->again || !room)
    s = no_memory();
  else {
    mark_stores(m);
    list_edges(m, room);
    for (int32_t i = 0; i < m->first; i++) {
      const PlGNode *n = &f->nodes[i];
      int c = o->choice && n->source >= 0 && n->source < o->nchoice ? o->choice[n->source] : 0;
      if (!c) c = n->mark;
      bool able = is_real(n) && pl_recompute_cheap(n, true, true);
      m->may[i] = able && (c ? c > 0 : !o->listed && pl_recompute_cheap(n, o->seeded, o->heavy) && (o->heavy || !saves_little(m, i)));
      m->force[i] = able && c == PL_RECOMPUTE_FORCE;
      if (s == PL_OK && is_real(n) && !able && is_named(n, o))
        s = pl_fail(PL_ERR_ARG, "%s cannot be computed again: it has an effect; do not force it", n->name);
    }
    if (s == PL_OK) s = mark_overwritten(m, o, room);
  }
  free(room);
  return s;
}

PlStatus pl_recompute_new(PlRecompute **out, const PlGraph *f, int32_t region) {
  int32_t first = 0;
  *out = NULL;
  while (first < f->nnodes && f->nodes[first].stage != region + 1) first++;
  if (first == f->nnodes) return PL_OK;
  PlRecompute *m = calloc(1, sizeof *m);
  if (!m) return no_memory();
  *m = (PlRecompute){.f = f, .stage = region + 1, .first = first, .nstores = f->nstores};
  PlStatus s = fill(m, &f->regions[region].recompute);
  if (s != PL_OK) {
    pl_recompute_free(m);
    return s;
  }
  *out = m;
  return PL_OK;
}

/* ---- what a decision costs ------------------------------------------------------------------------------- */

PlStatus pl_recompute_cost(const PlRecompute *m, int64_t *stash, double *flops) {
  uint8_t *need = malloc((size_t)m->nstores + 1);
  if (!need) return no_memory();
  memcpy(need, m->back, (size_t)m->nstores);
  *stash = 0;
  *flops = 0;
  for (int32_t i = m->first - 1; i >= 0; i--) {
    bool copied = false;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) copied |= need[m->out[e]] && m->again[i];
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1] && copied; e++) need[m->in[e]] = 1;
    if (copied) *flops += m->f->nodes[i].flops;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1] && !copied; e++)
      if (need[m->out[e]] && !m->held[m->out[e]]) *stash += m->bytes[m->out[e]];
  }
  free(need);
  return PL_OK;
}

PlStatus pl_recompute_stash(const PlGraph *f, int64_t *bytes) {
  uint8_t *kept = calloc((size_t)f->nstores + 1, 1);
  if (!kept) return no_memory();
  *bytes = 0;
  for (int32_t o = 0; o < f->noutputs; o++) kept[f->vals[f->outputs[o]].store] = 1;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < n->nin && n->stage && is_real(n); k++) {
      if (n->in[k] < 0) continue;
      int32_t s = f->vals[n->in[k]].store;
      const PlGValue *v = &f->vals[f->stores[s].first];
      if (kept[s] || v->kind != PL_FV_NODE || f->nodes[v->node].stage >= n->stage) continue;
      kept[s] = 1;
      *bytes += f->stores[s].bytes;
    }
  }
  free(kept);
  return PL_OK;
}

/* Sweep in forward order over the stores that something later still needs: where exactly one is open, everything
 * after depends on everything before through it alone. Leaves do not count. */
PlStatus pl_recompute_cuts(const PlRecompute *m, int32_t **stores, int32_t *n) {
  int32_t *last = malloc(((size_t)m->nstores + 1) * sizeof *last), *list = malloc(((size_t)m->first + 1) * sizeof *list);
  int32_t open = 0;
  *n = 0;
  if (!last || !list) {
    free(last);
    free(list);
    return no_memory();
  }
  for (int32_t s = 0; s < m->nstores; s++) last[s] = -1;
  for (int32_t s = 0; s < m->nstores; s++)
    for (int32_t e = m->reader_at[s]; e < m->reader_at[s + 1]; e++)
      if (m->reader[e] > last[s]) last[s] = m->reader[e];
  for (int32_t i = 0; i < m->first; i++) {
    for (int32_t e = m->in_at[i]; e < m->in_at[i + 1]; e++)
      if (!m->leaf[m->in[e]] && last[m->in[e]] == i) open--;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++)
      if (last[m->out[e]] > i) open++;
    if (open == 1 && m->out_at[i + 1] > m->out_at[i])
      for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++)
        if (last[m->out[e]] > i) list[(*n)++] = m->out[e];
  }
  free(last);
  *stores = list;
  return PL_OK;
}
