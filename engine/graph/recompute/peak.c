/* SPDX-License-Identifier: MIT
 * Recomputation for the peak. A plan is looked at where most is alive: what is idle there, read before and not again until
 * later in the backward half, is evicted and computed again in front of its next reader, from what is alive there; what is not
 * is computed again on the way. So a value may be computed several times, and each time lives as briefly as it can.
 * A round does that to a batch of stores, cheapest operations per byte first, and is kept if no more is alive at the most then,
 * else half of the batch is tried. The best plan met is taken. Rounds are bounded, and by WORK nodes planned in all. */
#include "engine/graph/recompute/peak_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
  WORK = 150000, /* nodes planned, over all rounds */
  MOST_ROUNDS = 400,
  MOST_FAILED = 12, /* one after the other */
  MOST_LEVEL = 32,  /* rounds, one after the other, after which as much is alive as before */
  TRIED = 2,
  MOST_TRIED = 3, /* till less is alive; twice as often where it is idle */
  BATCH = 8       /* a round gives up to a part of so many of the peak */
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- what is alive --------------------------------------------------------------------------------------- */

static void drop(PlPeak *k) {
  free(k->use);
  free(k->use_at);
  free(k->uses);
  free(k->kin);
  free(k->banned);
  k->use = NULL;
  k->use_at = k->uses = k->kin = NULL;
  k->banned = NULL;
}

static void list_uses(PlPeak *k) {
  const PlGraph *f = k->p->graph;
  int32_t ns = f->nstores;
  memset(k->use_at, 0, ((size_t)ns + 2) * sizeof *k->use_at);
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t s = 0; s < ns; s++) k->kin[s] = -1; /* the node that was listed last */
    for (int32_t i = 0; i < f->nnodes; i++) {
      const PlGNode *n = &f->nodes[i];
      if (n->flags & PL_FN_VIEW) continue;
      for (int32_t j = 0; j < n->nin; j++) {
        if (n->in[j] < 0) continue;
        int32_t s = f->vals[n->in[j]].store;
        if (k->kin[s] == i) continue;
        k->kin[s] = i;
        if (pass == 0) k->use_at[s + 2]++;
        else k->uses[k->use_at[s + 1]++] = i;
      }
    }
    if (pass == 0)
      for (int32_t s = 0; s < ns; s++) k->use_at[s + 2] += k->use_at[s + 1];
  }
}

static void sum_up(PlPeak *k) {
  const PlGraph *f = k->p->graph;
  int32_t ns = f->nstores;
  for (int32_t s = 0; s < ns; s++) {
    const PlGValue *v = &f->vals[f->stores[s].first];
    PlPeakUse *u = &k->use[s];
    *u = (PlPeakUse){.at_most = -1, .first = v->node, .last = v->node};
    for (int32_t e = k->use_at[s]; e < k->use_at[s + 1]; e++) {
      u->last = k->uses[e];
      if (f->nodes[k->uses[e]].stage != k->stage) u->at_most = k->uses[e];
    }
    k->kin[s] = k->cut[s] = k->from[s] = k->low[s] = k->high[s] = -1;
    k->writes[s] = f->nnodes;
    k->writes[ns + s] = -1;
  }
  for (int32_t o = 0; o < f->noutputs; o++) k->use[f->vals[f->outputs[o]].store].at_most = f->nnodes;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t o = 0; o < pl_gnode_written(&f->nodes[i]); o++) {
      int32_t s = f->vals[f->nodes[i].first + o].store;
      if (k->writes[s] == f->nnodes) k->writes[s] = i;
      k->writes[ns + s] = i;
    }
}

/* Results of a node and of its copies in one ring per result. */
static void find_kin(PlPeak *k) {
  const PlGraph *f = k->p->graph;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES)) continue;
    int32_t r = pl_peak_root(f, i);
    for (int32_t o = 0; o < n->nout; o++) {
      int32_t s = f->vals[n->first + o].store;
      k->kin[s] = s;
      if (r == i || f->nodes[r].nout != n->nout) continue;
      int32_t head = f->vals[f->nodes[r].first + o].store;
      k->kin[s] = k->kin[head];
      k->kin[head] = s;
    }
  }
}

static PlStatus find_peak(PlPeak *k) {
  const PlPlan *p = k->p;
  int32_t n = p->graph->nnodes;
  int64_t *live = calloc((size_t)n + 2, sizeof *live), now = 0;
  if (!live) return no_memory();
  for (int32_t b = 0; b < p->nbuffers; b++) {
    const PlBuffer *x = &p->buffers[b];
    if (x->place != PL_AT_ARENA) continue;
    live[x->birth] += x->bytes;
    live[x->death + 1 <= n ? x->death + 1 : n] -= x->bytes;
  }
  k->most = 0;
  k->places = 0;
  for (int32_t i = 0; i < n; i++) {
    now += live[i];
    k->places = now > k->most ? 1 : k->places + (now == k->most);
    if (now <= k->most) continue;
    k->most = now;
    k->at = k->until = i;
  }
  if (p->group && n > 0 && p->group[k->at] >= 0) { /* a group is one moment */
    int32_t begin = p->group[k->at];
    k->at = begin;
    while (k->until + 1 < n && p->group[k->until + 1] == begin) k->until++;
  }
  free(live);
  return PL_OK;
}

/* Lists for p, whose buffers are known. */
static PlStatus look(PlPeak *k) {
  const PlGraph *f = k->p->graph;
  size_t ns = (size_t)f->nstores + 2, edges = 1;
  for (int32_t i = 0; i < f->nnodes; i++) edges += (size_t)f->nodes[i].nin;
  drop(k);
  k->use = malloc(ns * sizeof *k->use);
  k->use_at = malloc(ns * sizeof *k->use_at);
  k->uses = malloc(edges * sizeof *k->uses);
  k->kin = malloc(8 * ns * sizeof *k->kin);
  k->banned = calloc(ns, 1);
  if (!k->use || !k->use_at || !k->uses || !k->kin || !k->banned) return no_memory();
  k->cut = k->kin + ns;
  k->from = k->cut + ns;
  k->low = k->from + ns;
  k->high = k->low + ns;
  k->pick = k->high + ns;
  k->writes = k->pick + ns; /* two of ns */
  list_uses(k);
  sum_up(k);
  find_kin(k);
  return find_peak(k);
}

/* ---- what can be evicted --------------------------------------------------------------------------------- */

/* The reader in front of which s could be computed again to be evicted at the moment, and the last one before that; -1: there
 * is none, or others than this backward half read it afterwards. Best is what is idle at the moment. In a group that is one
 * moment, what it reads could be made inside, and what it makes for later could be made later: it may take no memory then. */
static int32_t idle_until(const PlPeak *k, int32_t s, int32_t *since, bool *idle) {
  const PlGraph *f = k->p->graph;
  const PlGValue *v = &f->vals[f->stores[s].first];
  if (v->kind != PL_FV_NODE || k->banned[s]) return -1;
  const PlGNode *n = &f->nodes[v->node];
  const PlBuffer *b = &k->p->buffers[k->p->buffer[s]];
  const PlPeakUse *u = &k->use[s];
  if (b->place != PL_AT_ARENA || b->birth > k->until || b->death < k->at || u->first > k->until || u->last < k->at) return -1;
  if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES) || !(k->may[pl_peak_root(f, v->node)] & 1)) return -1;
  const bool made = u->first >= k->at;
  if (k->at == k->until && made) return -1;
  *since = -1;
  *idle = !made;
  for (int32_t e = k->use_at[s]; e < k->use_at[s + 1]; e++) {
    int32_t i = k->uses[e];
    if (i < k->at || (made && i <= k->until)) {
      *since = i;
      continue;
    }
    if (i <= k->until && k->at == k->until) return -1;
    if (i <= k->until) *idle = false;
    if (k->may[pl_peak_root(f, v->node)] >= TRIED * (*idle ? 2 * MOST_TRIED : MOST_TRIED)) return -1;
    if (u->at_most >= i || (*since < 0 && !(n->flags & PL_FN_RECOMPUTED))) return -1; /* else it would not run at all */
    if (*since < 0) *since = v->node;
    return i;
  }
  return -1;
}

typedef struct Offer {
  double cost; /* operations per byte */
  int32_t s, u, since;
  bool idle;
} Offer;

/* What is idle first, then cheap ones; of equals those that are read last. */
static int by_cost(const void *a, const void *b) {
  const Offer *x = a, *y = b;
  if (x->idle != y->idle) return x->idle ? -1 : 1;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  if (x->u != y->u) return x->u > y->u ? -1 : 1;
  return x->s < y->s ? -1 : x->s > y->s;
}

/* Chooses stores until an eighth of the peak is evicted; a store that others of the round now need is left for the next. */
static PlStatus choose(PlPeak *k) {
  const PlGraph *f = k->p->graph;
  Offer *offer = malloc(((size_t)f->nstores + 1) * sizeof *offer);
  PlPeakClosure c;
  if (!offer) return no_memory();
  int32_t n = 0;
  for (int32_t s = 0; s < f->nstores; s++) {
    int32_t since;
    bool idle;
    int32_t u = idle_until(k, s, &since, &idle);
    if (u < 0 || f->stores[s].bytes == 0 || !pl_peak_close(k, &c, s, u)) continue;
    offer[n++] = (Offer){c.flops / (double)f->stores[s].bytes, s, u, since, idle};
  }
  qsort(offer, (size_t)n, sizeof *offer, by_cost);
  int64_t freed = 0;
  k->npick = 0;
  for (int32_t j = 0; j < n && (freed < k->most / BATCH || k->npick == 0); j++) {
    int32_t s = offer[j].s, u = offer[j].u;
    if (!offer[j].idle && offer[0].idle) break; /* only where nothing else is left */
    if (k->low[s] >= 0 && k->low[s] <= u && k->high[s] > offer[j].since) continue;
    if (!pl_peak_close(k, &c, s, u) || c.flops > 1.5 * offer[j].cost * (double)f->stores[s].bytes + 1) continue;
    for (int32_t q = 0; q < c.nread; q++) {
      int32_t t = c.read[q];
      if (k->low[t] < 0 || u < k->low[t]) k->low[t] = u;
      if (u > k->high[t]) k->high[t] = u;
    }
    uint8_t *may = &k->may[pl_peak_root(f, f->vals[f->stores[s].first].node)];
    if (*may < 2 * TRIED * MOST_TRIED) *may += TRIED;
    k->cut[s] = u;
    k->from[s] = offer[j].since;
    k->pick[k->npick++] = s;
    freed += f->stores[s].bytes;
  }
  free(offer);
  return PL_OK;
}

/* ---- rounds --------------------------------------------------------------------------------------------------- */

/* One round: *stood is 0 if nothing was evicted, 1 if there is nothing to be evicted, 2 if as much is alive at the most as
 * before, though elsewhere, and 3 if less is. */
static PlStatus round_of(PlPeak *k, int64_t *work, bool level, int *stood) {
  *stood = 0;
  PL_TRY(choose(k));
  if (k->npick == 0) *stood = 1;
  while (k->npick > 0 && *stood == 0 && *work > 0) { /* halves each time */
    PlPeak next = {.stage = k->stage};
    PL_TRY(plk_poll());
    *work -= k->p->graph->nnodes;
    PlStatus s = pl_peak_apply(k, &next.p, &next.may);
    if (s == PL_OK) s = look(&next);
    if (s == PL_OK && next.most <= k->most) *stood = next.most < k->most ? 3 : level || next.places < k->places ? 2 : 0;
    if (*stood) {
      PlPeak was = *k;
      *k = next;
      next = was;
    } else if (s == PL_OK) {
      if (k->npick == 1) k->banned[k->pick[0]] = 1;
      for (int32_t q = k->npick / 2; q < k->npick; q++) k->cut[k->pick[q]] = k->from[k->pick[q]] = -1;
      k->npick /= 2;
    }
    drop(&next);
    free(next.may);
    pl_plan_release(next.p);
    PL_TRY(s);
  }
  return PL_OK;
}

static PlStatus rounds(PlPeak *k, PlPlan **best, int64_t enough) {
  int64_t work = WORK, most = k->most;
  for (int round = 0, failed = 0, level = 0; round < MOST_ROUNDS && failed < MOST_FAILED && level < MOST_LEVEL && work > 0; round++) {
    int stood;
    if (most + k->p->leaf_bytes + k->p->output_bytes <= enough) break;
    PL_TRY(round_of(k, &work, true, &stood));
    if (stood == 1) break;
    failed = stood ? 0 : failed + 1;
    level = stood == 2 ? level + 1 : stood == 3 ? 0 : level;
    if (stood != 3) continue;
    for (int32_t i = 0; i < k->p->graph->nnodes; i++) k->may[i] &= 1;
    most = k->most;
    pl_plan_release(*best);
    *best = k->p;
    k->p->refs++;
  }
  return PL_OK;
}

PlStatus pl_peak_lower(PlPlan **plan, const PlRecompute *m, int64_t enough) {
  PlPeak k = {.p = *plan, .stage = m->stage};
  k.p->refs++;
  k.may = calloc((size_t)k.p->graph->nnodes + 1, 1);
  PlStatus s = k.may ? PL_OK : no_memory();
  if (s == PL_OK) memcpy(k.may, m->may, (size_t)m->first); /* copies come behind; they are asked about by the node they repeat */
  if (s == PL_OK) s = pl_plan_live(k.p);
  if (s == PL_OK) s = look(&k);
  if (s == PL_OK) s = rounds(&k, plan, enough);
  drop(&k);
  free(k.may);
  pl_plan_release(k.p);
  return s;
}
