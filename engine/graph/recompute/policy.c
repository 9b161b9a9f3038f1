/* SPDX-License-Identifier: MIT
 * Which recomputation to take: candidates are applied to a clone, planned and compared. Policy "auto" wants the lowest
 * planned peak, never above that of none; a budget wants the fewest repeated operations within it. */
#include "engine/graph/recompute/peak.h"
#include "engine/graph/recompute/policy_internal.h"

#include <stdlib.h>
#include <string.h>

enum { LITTLE = 500 }; /* one part in so many of the peak is worth no further operation */

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- candidates -------------------------------------------------------------------------------------------- */

static bool fits(const Search *s, const PlPlan *c) { return c->stash_bytes <= s->most_stash && c->peak_bytes <= s->most_peak; }

static bool better(const Search *s, const PlPlan *c, const PlPlan *than) {
  bool a = fits(s, c), b = fits(s, than);
  if (a != b) return a;
  if (!a && s->most_stash != INT64_MAX && c->stash_bytes != than->stash_bytes) return c->stash_bytes < than->stash_bytes;
  if (s->by_peak || !a) {
    const int64_t less = than->peak_bytes - c->peak_bytes;
    if (less <= 0) return less == 0 && c->extra_flops < than->extra_flops;
    return less > than->peak_bytes / LITTLE || c->extra_flops <= than->extra_flops;
  }
  return c->extra_flops != than->extra_flops ? c->extra_flops < than->extra_flops : c->peak_bytes < than->peak_bytes;
}

/* c's graph is there: it is planned and compared. Takes c over. */
static PlStatus rank(Search *s, PlPlan *c) {
  PlStatus st = pl_recompute_stash(c->graph, &c->stash_bytes);
  if (st == PL_OK) st = pl_plan_memory(c);
  if (st != PL_OK) {
    pl_plan_release(c);
    return st;
  }
  if (c->peak_bytes < s->low_peak) s->low_peak = c->peak_bytes;
  if (c->stash_bytes < s->low_stash) s->low_stash = c->stash_bytes;
  if (!s->best || better(s, c, s->best)) {
    pl_plan_release(s->best);
    s->best = c;
  } else pl_plan_release(c);
  return PL_OK;
}

static PlPlan *new_candidate(const Search *s, const char *name) {
  PlPlan *c = calloc(1, sizeof *c);
  if (c) *c = (PlPlan){.refs = 1, .policy = name, .copies = s->p->copies, .extra_flops = s->p->extra_flops};
  return c;
}

PlStatus pl_choose_consider(Search *s, const PlRecompute *m, const char *name) {
  PL_TRY(plk_poll());
  PlPlan *c = new_candidate(s, name);
  if (!c) return no_memory();
  PlStatus st = pl_graph_clone(&c->graph, s->p->graph);
  if (st == PL_OK) st = pl_recompute_apply(c->graph, m, &c->copies, &c->extra_flops);
  if (st == PL_OK) return rank(s, c);
  pl_plan_release(c);
  return st;
}

static PlStatus pinned(Search *s) {
  int32_t *cuts, n;
  PlRecompute *m = s->m;
  PL_TRY(pl_recompute_cuts(m, &cuts, &n));
  uint8_t *may = malloc((size_t)m->first + 1);
  PlStatus st = may ? PL_OK : no_memory();
  if (st == PL_OK) {
    memcpy(may, m->may, (size_t)m->first);
    for (int32_t k = 0; k < n; k++)
      if (!m->force[m->maker[cuts[k]]]) m->may[m->maker[cuts[k]]] = 0;
    st = pl_recompute_mincut(m);
    if (st == PL_OK) st = pl_choose_consider(s, m, "pinned");
    memcpy(m->may, may, (size_t)m->first);
  }
  free(may);
  free(cuts);
  return st;
}

/* Segments: checkpoints among the cuts so that what is between two of them is at most `most` bytes; all nodes but those
 * of the last segment, whose backward comes at once, are repeated. */
static void segments(PlRecompute *m, const int32_t *cuts, int32_t n, int64_t most) {
  int64_t held = 0;
  int32_t last = 0, c = 0;
  for (int32_t i = 0; i < m->first; i++) m->again[i] = m->may[i];
  int64_t before = 0; /* bytes since the last checkpoint at the last cut seen */
  int32_t candidate = -1;
  for (int32_t i = 0; i < m->first; i++) {
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) held += m->bytes[m->out[e]];
    if (c >= n || m->maker[cuts[c]] != i) continue;
    c++;
    if (held > most && candidate >= 0) {
      m->again[candidate] = m->force[candidate];
      last = candidate;
      held -= before;
    }
    candidate = i;
    before = held;
  }
  if (candidate >= 0 && held > most) {
    m->again[candidate] = m->force[candidate];
    last = candidate;
  }
  for (int32_t i = last; i < m->first; i++) m->again[i] = m->force[i];
}

static PlStatus try_segments(Search *s) {
  int32_t *cuts, n;
  int64_t total = 0;
  PlRecompute *m = s->all;
  PL_TRY(pl_recompute_cuts(m, &cuts, &n));
  for (int32_t k = 0; k < m->nstores; k++)
    if (m->maker[k] >= 0) total += m->bytes[k];
  PlStatus st = PL_OK;
  static const int parts[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32};
  for (size_t k = 0; k < sizeof parts / sizeof *parts && st == PL_OK && n > 0; k++) {
    if (parts[k] > n + 1) break;
    segments(m, cuts, n, total / parts[k]);
    st = pl_choose_consider(s, m, "segments");
  }
  free(cuts);
  return st;
}

/* ---- heavy ops one by one ---------------------------------------------------------------------------------- */

typedef struct Heavy {
  double cost; /* operations per byte */
  int32_t node;
} Heavy;

static int by_cost(const void *a, const void *b) {
  const Heavy *x = a, *y = b;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  return x->node < y->node ? -1 : x->node > y->node;
}

/* A minimum cut with the k cheapest heavy nodes unlocked. */
static PlStatus unlock(Search *s, const Heavy *h, int32_t n, int32_t k, int64_t *stash) {
  PlRecompute *m = s->all;
  double flops;
  for (int32_t j = 0; j < n; j++) m->may[h[j].node] = j < k;
  PL_TRY(pl_recompute_mincut(m));
  return pl_recompute_cost(m, stash, &flops);
}

/* The fewest heavy nodes, cheapest per byte first, that bring the stash within the budget. */
static PlStatus try_unlock(Search *s) {
  PlRecompute *m = s->all;
  Heavy *h = malloc(((size_t)m->first + 1) * sizeof *h);
  if (!h) return no_memory();
  int32_t n = 0;
  for (int32_t i = 0; i < m->first; i++) {
    int64_t bytes = 1;
    for (int32_t e = m->out_at[i]; e < m->out_at[i + 1]; e++) bytes += m->bytes[m->out[e]];
    if (m->may[i] && !s->m->may[i]) h[n++] = (Heavy){m->f->nodes[i].flops / (double)bytes, i};
  }
  qsort(h, (size_t)n, sizeof *h, by_cost);
  int32_t lo = 0, hi = n;
  int64_t stash = 0;
  PlStatus st = PL_OK;
  while (lo < hi && st == PL_OK) {
    int32_t mid = (lo + hi) / 2;
    st = unlock(s, h, n, mid, &stash);
    if (stash <= s->most_stash) hi = mid;
    else lo = mid + 1;
  }
  if (st == PL_OK) st = unlock(s, h, n, lo, &stash);
  if (st == PL_OK) st = pl_choose_consider(s, m, "unlocked");
  for (int32_t j = 0; j < n; j++) m->may[h[j].node] = 1;
  free(h);
  return st;
}

/* ---- the choice -------------------------------------------------------------------------------------------- */

/* The greedy policy never repeats a draw. */
static PlStatus greedy(Search *s) {
  PlRecompute *m = s->m;
  uint8_t *may = malloc((size_t)m->first + 1);
  if (!may) return no_memory();
  memcpy(may, m->may, (size_t)m->first);
  for (int32_t i = 0; i < m->first; i++)
    if (m->f->nodes[i].draw >= 0) m->may[i] = 0;
  PlStatus st = pl_recompute_greedy(m);
  if (st == PL_OK) st = pl_choose_consider(s, m, "mirror");
  memcpy(m->may, may, (size_t)m->first);
  free(may);
  return st;
}

static PlStatus cuts_of(Search *s) {
  PL_TRY(pl_recompute_mincut(s->m));
  PL_TRY(pl_choose_consider(s, s->m, "mincut"));
  return pinned(s);
}

/* The cuts again with poolings and the like kept: what they read is larger than what they give, and copying it in the
 * middle of backward can cost more than it saves. */
static PlStatus cuts_without_pools(Search *s) {
  PlRecompute *m = s->m;
  uint8_t *may = malloc((size_t)m->first + 1);
  if (!may) return no_memory();
  memcpy(may, m->may, (size_t)m->first);
  bool any = false;
  for (int32_t i = 0; i < m->first; i++)
    if (m->may[i] && m->f->nodes[i].op->cls == PL_OPAQUE && m->f->nodes[i].draw < 0 && !m->force[i]) {
      m->may[i] = 0;
      any = true;
    }
  PlStatus st = any ? cuts_of(s) : PL_OK;
  memcpy(m->may, may, (size_t)m->first);
  free(may);
  return st;
}

static PlStatus cheap_candidates(Search *s) {
  PL_TRY(greedy(s));
  PL_TRY(cuts_of(s));
  return cuts_without_pools(s);
}

/* From the candidate c on, see peak.h. Takes c over. */
static PlStatus lower(Search *s, PlPlan *c) {
  PlStatus st = pl_peak_lower(&c, s->m, s->by_peak ? 0 : s->most_peak);
  c->policy = "peak";
  if (st == PL_OK) return rank(s, c);
  pl_plan_release(c);
  return st;
}

/* Where what is alive at once decides, not what is kept: on from the best candidate, from what is forced, and from the minimum
 * cut. */
static PlStatus lower_peak(Search *s) {
  PlRecompute *m = s->m;
  for (int k = 0; k < 3; k++) {
    PlPlan *c = new_candidate(s, "peak");
    if (!c) return no_memory();
    PlStatus st = pl_graph_clone(&c->graph, k == 0 ? s->best->graph : s->p->graph);
    if (k == 0) {
      c->copies = s->best->copies;
      c->extra_flops = s->best->extra_flops;
    }
    if (k == 1) memcpy(m->again, m->force, (size_t)m->first);
    if (k == 2 && st == PL_OK) st = pl_recompute_mincut(m);
    if (k > 0 && st == PL_OK) st = pl_recompute_apply(c->graph, m, &c->copies, &c->extra_flops);
    if (st != PL_OK) {
      pl_plan_release(c);
      return st;
    }
    PL_TRY(lower(s, c));
  }
  return PL_OK;
}

static PlStatus search(Search *s, const PlRecomputeOptions *o) {
  memcpy(s->m->again, s->m->force, (size_t)s->m->first); /* what is forced is never left out */
  PL_TRY(pl_choose_consider(s, s->m, "none"));
  if (o->fraction >= 0) {
    double most = (double)s->best->stash_bytes * o->fraction;
    s->most_stash = (int64_t)most;
  }
  if (o->bytes >= 0) s->most_peak = o->bytes;
  bool budget = o->fraction >= 0 || o->bytes >= 0;
  if (budget && fits(s, s->best)) return PL_OK;
  PL_TRY(cheap_candidates(s));
  if (o->fraction < 0) {
    PL_TRY(pl_choose_all(s, o->heavy ? s->all : s->m));
    if (s->by_peak || !fits(s, s->best)) PL_TRY(lower_peak(s));
  }
  if ((budget && !fits(s, s->best)) || o->heavy) {
    PL_TRY(try_segments(s));
    if (o->fraction >= 0) PL_TRY(try_unlock(s));
    if (o->fraction >= 0 && !fits(s, s->best)) { /* the lowest stash there is */
      PL_TRY(pl_recompute_mincut(s->all));
      PL_TRY(pl_choose_consider(s, s->all, "mincut"));
    }
  }
  if (o->bytes >= 0 && !fits(s, s->best))
    PL_FAIL(PL_ERR_ARG,
            "a budget of %lld bytes cannot be met: the lowest planned peak is %lld bytes (of which %lld are "
            "inputs and parameters, %lld requested outputs)",
            (long long)o->bytes, (long long)s->low_peak, (long long)s->best->leaf_bytes, (long long)s->best->output_bytes);
  return PL_OK;
}

/* The problem with cheap and random ops only, or with everything unlocked that has no effect, but for what the user
 * pinned. */
static PlStatus problem(PlRecompute **out, PlPlan *p, int32_t region, bool unlocked) {
  PlRecomputeOptions *o = &p->graph->regions[region].recompute;
  bool heavy = o->heavy, seeded = o->seeded;
  o->heavy = unlocked;
  o->seeded = true;
  PlStatus st = pl_recompute_new(out, p->graph, region);
  o->heavy = heavy;
  o->seeded = seeded;
  return st;
}

PlStatus pl_recompute_choose(PlPlan *p, int32_t region) {
  Search s = {.p = p, .region = region, .most_stash = INT64_MAX, .most_peak = INT64_MAX, .low_peak = INT64_MAX, .low_stash = INT64_MAX};
  PlRecomputeOptions o = p->graph->regions[region].recompute;
  s.by_peak = o.fraction < 0 && o.bytes < 0;
  PL_TRY(problem(&s.m, p, region, false));
  if (!s.m) return PL_OK;
  PlStatus st = problem(&s.all, p, region, true);
  if (st == PL_OK) st = search(&s, &o);
  if (st == PL_OK) { /* the candidate's graph and figures become the plan's */
    PlGraph *f = p->graph;
    p->graph = s.best->graph;
    s.best->graph = f;
    p->copies = s.best->copies;
    p->extra_flops = s.best->extra_flops;
    p->policy = s.best->policy;
  }
  pl_plan_release(s.best);
  pl_recompute_free(s.m);
  pl_recompute_free(s.all);
  return st;
}
