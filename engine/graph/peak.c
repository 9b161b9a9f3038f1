/* SPDX-License-Identifier: MIT
 * Recomputation for the peak. A plan is looked at where most is alive: what lies idle there, read before and not again until
 * later in the backward half, is given up and computed again in front of its next reader, from what is alive there; what is not
 * is computed again on the way. So a value may be computed several times, and each time lives as briefly as it can.
 * A round does that to a batch of stores, cheapest operations per byte first, and stands if no more is alive at the most then,
 * else half of the batch is tried. The best plan met is taken. Rounds are bounded, and by WORK nodes planned in all. */
#include "engine/graph/peak.h"

#include <stdlib.h>
#include <string.h>

enum {
  WORK = 150000,   /* nodes planned, over all rounds */
  MOST_ROUNDS = 400,
  MOST_FAILED = 12, /* one after the other */
  MOST_LEVEL = 32,  /* rounds, one after the other, after which as much is alive as before */
  CLOSURE = 64,    /* nodes computed again for one store */
  TRIED = 2, MOST_TRIED = 3, /* till less is alive; twice as often where it lies idle */
  BATCH = 8        /* a round gives up to a part of so many of the peak */
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* ---- what is alive --------------------------------------------------------------------------------------- */

typedef struct Use {
  int32_t at_most; /* last reader that is no node of this backward half; -1 */
  int32_t first, last; /* of all readers and the maker */
} Use;

typedef struct Peak {
  PlPlan *p;        /* the plan so far, without places */
  int32_t stage;
  uint8_t *may;     /* per node: may be computed again; plus TRIED for each time that this was tried in vain */
  /* of p, made anew for each round */
  int64_t most;     /* bytes alive at once in the arena */
  int32_t at, until, places; /* the moment, the first of so many */
  Use *use;         /* per store */
  int32_t *use_at, *uses; /* store → nodes that read it, views aside, in order */
  int32_t *kin;     /* per store: the next one that holds the same result of the same node; a ring */
  int32_t *writes;  /* per store: the first node that writes it, nnodes: none; and behind nstores the last, -1 */
  int32_t *cut, *from; /* per store: computed again before this node, idle since that; -1 */
  int32_t *low, *high; /* per store: where copies of this round read it */
  /* chosen in this round */
  int32_t *pick;
  int32_t npick;
  uint8_t *banned;  /* per store */
} Peak;

static void drop(Peak *k) {
  free(k->use);
  free(k->use_at);
  free(k->uses);
  free(k->kin);
  free(k->banned);
  k->use = NULL;
  k->use_at = k->uses = k->kin = NULL;
  k->banned = NULL;
}

static int32_t root_of(const PlFlow *f, int32_t i) {
  return f->nodes[i].flags & PL_FN_MIRROR && f->nodes[i].origin >= 0 ? f->nodes[i].origin : i;
}

static void list_uses(Peak *k) {
  const PlFlow *f = k->p->flow;
  int32_t ns = f->nstores;
  memset(k->use_at, 0, ((size_t)ns + 2) * sizeof *k->use_at);
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t s = 0; s < ns; s++) k->kin[s] = -1; /* the node that was listed last */
    for (int32_t i = 0; i < f->nnodes; i++) {
      const PlFNode *n = &f->nodes[i];
      if (n->flags & PL_FN_VIEW) continue;
      for (int32_t j = 0; j < n->nin; j++) {
        if (n->in[j] < 0) continue;
        int32_t s = f->vals[n->in[j]].store;
        if (k->kin[s] == i) continue;
        k->kin[s] = i;
        if (pass == 0)
          k->use_at[s + 2]++;
        else
          k->uses[k->use_at[s + 1]++] = i;
      }
    }
    if (pass == 0)
      for (int32_t s = 0; s < ns; s++) k->use_at[s + 2] += k->use_at[s + 1];
  }
}

static void sum_up(Peak *k) {
  const PlFlow *f = k->p->flow;
  int32_t ns = f->nstores;
  for (int32_t s = 0; s < ns; s++) {
    const PlFValue *v = &f->vals[f->stores[s].first];
    Use *u = &k->use[s];
    *u = (Use){.at_most = -1, .first = v->node, .last = v->node};
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
    for (int32_t o = 0; o < pl_fnode_written(&f->nodes[i]); o++) {
      int32_t s = f->vals[f->nodes[i].first + o].store;
      if (k->writes[s] == f->nnodes) k->writes[s] = i;
      k->writes[ns + s] = i;
    }
}

/* Results of a node and of its copies in one ring per result. */
static void find_kin(Peak *k) {
  const PlFlow *f = k->p->flow;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlFNode *n = &f->nodes[i];
    if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES)) continue;
    int32_t r = root_of(f, i);
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

static PlStatus find_peak(Peak *k) {
  const PlPlan *p = k->p;
  int32_t n = p->flow->nnodes;
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
static PlStatus look(Peak *k) {
  const PlFlow *f = k->p->flow;
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

/* ---- what can be given up --------------------------------------------------------------------------------- */

/* Of the results like store s one that is alive in front of node u, whatever was chosen in this round; -1. */
static int32_t alive(const Peak *k, int32_t s, int32_t u) {
  for (int32_t t = s, first = 1; t != s || first; t = k->kin[t], first = 0)
    if (k->use[t].first < u && k->use[t].last >= u && !(k->cut[t] >= u && k->from[t] < u)) return t;
  return -1;
}

/* Would node i, run in front of u, read leaves as they were? */
static bool unwritten(const Peak *k, int32_t s, int32_t i, int32_t u) {
  const int32_t ns = k->p->flow->nstores;
  return k->writes[s] >= u || k->writes[ns + s] < i;
}

typedef struct Closure {
  int32_t node[CLOSURE]; /* roots; what they read comes first */
  int32_t n;
  int32_t read[2 * CLOSURE], nread; /* stores alive that they read */
  double flops;
} Closure;

/* Adds node i (a root) after what it reads and is not alive in front of u. false: it cannot be. */
static bool close_over(const Peak *k, Closure *c, int32_t i, int32_t u, int depth) {
  const PlFlow *f = k->p->flow;
  const PlFNode *n = &f->nodes[i];
  if (!(k->may[i] & 1) || depth > CLOSURE) return false;
  for (int32_t j = 0; j < n->nin; j++) {
    if (n->in[j] < 0) continue;
    int32_t s = f->vals[n->in[j]].store;
    const PlFValue *v = &f->vals[f->stores[s].first];
    if (v->kind != PL_FV_NODE) {
      if (!unwritten(k, s, i, u)) return false;
      continue;
    }
    if (f->nodes[v->node].flags & PL_FN_MUTATES) return false;
    bool there = false;
    int32_t r = root_of(f, v->node), t = alive(k, s, u);
    for (int32_t q = 0; q < c->n && !there; q++) there = c->node[q] == r;
    if (there) continue;
    if (t >= 0) {
      if (c->nread == 2 * CLOSURE) return false;
      c->read[c->nread++] = t;
    } else if (!close_over(k, c, r, u, depth + 1))
      return false;
  }
  if (c->n == CLOSURE) return false;
  c->node[c->n++] = i;
  c->flops += n->flops + 1;
  return true;
}

/* The reader in front of which s could be computed again to be given up at the moment, and the last one before that; -1: there
 * is none, or others than this backward half read it afterwards. Best is what lies idle at the moment. In a group that is one
 * moment, what it reads could be made inside, and what it makes for later could be made later: it may take no memory then. */
static int32_t idle_until(const Peak *k, int32_t s, int32_t *since, bool *idle) {
  const PlFlow *f = k->p->flow;
  const PlFValue *v = &f->vals[f->stores[s].first];
  if (v->kind != PL_FV_NODE || k->banned[s]) return -1;
  const PlFNode *n = &f->nodes[v->node];
  const PlBuffer *b = &k->p->buffers[k->p->buffer[s]];
  const Use *u = &k->use[s];
  if (b->place != PL_AT_ARENA || b->birth > k->until || b->death < k->at || u->first > k->until || u->last < k->at) return -1;
  if (n->flags & (PL_FN_VIEW | PL_FN_MUTATES) || !(k->may[root_of(f, v->node)] & 1)) return -1;
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
    if (k->may[root_of(f, v->node)] >= TRIED * (*idle ? 2 * MOST_TRIED : MOST_TRIED)) return -1;
    if (u->at_most >= i || (*since < 0 && !(n->flags & PL_FN_MIRROR))) return -1; /* else it would not run at all */
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

/* What lies idle first, then cheap ones; of equals those that are read last. */
static int by_cost(const void *a, const void *b) {
  const Offer *x = a, *y = b;
  if (x->idle != y->idle) return x->idle ? -1 : 1;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  if (x->u != y->u) return x->u > y->u ? -1 : 1;
  return x->s < y->s ? -1 : x->s > y->s;
}

static bool close_store(const Peak *k, Closure *c, int32_t s, int32_t u) {
  const PlFlow *f = k->p->flow;
  c->n = c->nread = 0;
  c->flops = 0;
  return close_over(k, c, root_of(f, f->vals[f->stores[s].first].node), u, 0);
}

/* Chooses stores until an eighth of the peak is given up; a store that others of the round now need is left for the next. */
static PlStatus choose(Peak *k) {
  const PlFlow *f = k->p->flow;
  Offer *offer = malloc(((size_t)f->nstores + 1) * sizeof *offer);
  Closure c;
  if (!offer) return no_memory();
  int32_t n = 0;
  for (int32_t s = 0; s < f->nstores; s++) {
    int32_t since;
    bool idle;
    int32_t u = idle_until(k, s, &since, &idle);
    if (u < 0 || f->stores[s].bytes == 0 || !close_store(k, &c, s, u)) continue;
    offer[n++] = (Offer){c.flops / (double)f->stores[s].bytes, s, u, since, idle};
  }
  qsort(offer, (size_t)n, sizeof *offer, by_cost);
  int64_t freed = 0;
  k->npick = 0;
  for (int32_t j = 0; j < n && (freed < k->most / BATCH || k->npick == 0); j++) {
    int32_t s = offer[j].s, u = offer[j].u;
    if (!offer[j].idle && offer[0].idle) break; /* only where nothing else is left */
    if (k->low[s] >= 0 && k->low[s] <= u && k->high[s] > offer[j].since) continue;
    if (!close_store(k, &c, s, u) || c.flops > 1.5 * offer[j].cost * (double)f->stores[s].bytes + 1) continue;
    for (int32_t q = 0; q < c.nread; q++) {
      int32_t t = c.read[q];
      if (k->low[t] < 0 || u < k->low[t]) k->low[t] = u;
      if (u > k->high[t]) k->high[t] = u;
    }
    uint8_t *may = &k->may[root_of(f, f->vals[f->stores[s].first].node)];
    if (*may < 2 * TRIED * MOST_TRIED) *may += TRIED;
    k->cut[s] = u;
    k->from[s] = offer[j].since;
    k->pick[k->npick++] = s;
    freed += f->stores[s].bytes;
  }
  free(offer);
  return PL_OK;
}

/* ---- doing it ----------------------------------------------------------------------------------------------- */

typedef struct Trial {
  const Peak *k;
  PlFlow *f;         /* a clone, which grows */
  int32_t nnodes, nvals, nstores; /* before */
  int32_t *order, n, cap;
  int32_t *again;    /* per store: the copy that readers from now on read, -1 */
  int32_t *temp;     /* per node: its copy for the store at hand, -1 */
  PlFVal *view;      /* per value of a view: its copy, -1 */
  int32_t *seen, nseen, nview; /* nodes with a temp; values of views with a copy */
  PlFVal *views;
  int32_t copies;
  double flops;
} Trial;

static PlStatus put(Trial *t, int32_t node) {
  if (t->n == t->cap) {
    int32_t *more = realloc(t->order, 2 * (size_t)t->cap * sizeof *more);
    if (!more) return no_memory();
    t->order = more;
    t->cap *= 2;
  }
  t->order[t->n++] = node;
  return PL_OK;
}

static PlStatus repeat(Trial *t, int32_t i, const PlFVal *in, int32_t *node) {
  PlFlow *f = t->f;
  PL_TRY(pl_mirror_repeat(f, i, t->k->stage, in, node));
  if (!(f->nodes[i].flags & PL_FN_VIEW)) {
    t->copies++;
    t->flops += f->nodes[i].flops;
  }
  return put(t, *node);
}

/* Value v as it is read in front of node u by a copy (again_only: by node u itself, which reads copies that stay). */
static PlStatus fetch(Trial *t, PlFVal v, int32_t u, bool again_only, PlFVal *out) {
  PlFlow *f = t->f;
  *out = v;
  if (v < 0 || v >= t->nvals) return PL_OK;
  int32_t i = f->vals[v].node, s = f->vals[v].store;
  if (i < 0 || f->vals[v].dtype == PL_NDTYPE) return PL_OK;
  if (f->nodes[i].flags & PL_FN_VIEW) {
    PlFVal in, *list;
    int32_t node;
    if (again_only && (t->again[s] < 0 || i >= t->k->cut[s])) return PL_OK; /* made behind the copy: it shows that */
    PL_TRY(fetch(t, f->nodes[i].in[0], u, again_only, &in));
    if (in == f->nodes[i].in[0]) return PL_OK;
    if (t->view[v] >= 0) {
      *out = t->view[v];
      return PL_OK;
    }
    list = pl_flow_alloc(f, (size_t)f->nodes[i].nin * sizeof *list + 1);
    if (!list) return no_memory();
    memcpy(list, f->nodes[i].in, (size_t)f->nodes[i].nin * sizeof *list);
    list[0] = in;
    PL_TRY(repeat(t, i, list, &node));
    *out = f->nodes[node].first;
    t->view[v] = *out;
    t->views[t->nview++] = v;
    return PL_OK;
  }
  if (again_only) {
    if (t->again[s] >= 0) *out = f->nodes[t->again[s]].first + f->vals[v].slot;
    return PL_OK;
  }
  if (f->nodes[i].flags & PL_FN_MUTATES) return PL_OK;
  int32_t r = root_of(t->k->p->flow, i);
  if (t->temp[r] >= 0) {
    *out = f->nodes[t->temp[r]].first + f->vals[v].slot;
    return PL_OK;
  }
  int32_t like = alive(t->k, s, u);
  if (like < 0) PL_FAIL(PL_ERR_STATE, "recomputation reads %s where it is not alive", f->nodes[i].name);
  int32_t by = t->again[like] >= 0 ? t->again[like] : f->vals[f->stores[like].first].node;
  *out = f->nodes[by].first + f->vals[v].slot;
  return PL_OK;
}

static void forget(Trial *t) {
  while (t->nseen > 0) t->temp[t->seen[--t->nseen]] = -1;
  while (t->nview > 0) t->view[t->views[--t->nview]] = -1;
}

static int ascending(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Store s again in front of node u; what it needs in the order of the originals, so that what is needed late comes late. */
static PlStatus emit(Trial *t, int32_t s, int32_t u) {
  PlFlow *f = t->f;
  Closure c;
  if (!close_store(t->k, &c, s, u)) PL_FAIL(PL_ERR_STATE, "recomputation cannot reach what it chose");
  int32_t node = -1;
  forget(t);
  qsort(c.node, (size_t)c.n, sizeof *c.node, ascending);
  for (int32_t q = 0; q < c.n; q++) {
    int32_t i = c.node[q];
    PlFVal *in = pl_flow_alloc(f, (size_t)f->nodes[i].nin * sizeof *in + 1);
    if (!in) return no_memory();
    for (int32_t j = 0; j < f->nodes[i].nin; j++) PL_TRY(fetch(t, f->nodes[i].in[j], u, false, &in[j]));
    PL_TRY(repeat(t, i, in, &node));
    t->temp[i] = node;
    t->seen[t->nseen++] = i;
  }
  forget(t);
  t->again[s] = node;
  return PL_OK;
}

static PlStatus rewrite(Trial *t) {
  PlFlow *f = t->f;
  for (int32_t i = 0; i < t->nnodes; i++) {
    for (int32_t q = 0; q < t->k->npick; q++)
      if (t->k->cut[t->k->pick[q]] == i) PL_TRY(emit(t, t->k->pick[q], i));
    if (f->nodes[i].stage == t->k->stage)
      for (int32_t j = 0; j < f->nodes[i].nin; j++) {
        PlFVal v;
        PL_TRY(fetch(t, f->nodes[i].in[j], i, true, &v));
        f->nodes[i].in[j] = v;
      }
    PL_TRY(put(t, i));
  }
  return PL_OK;
}

/* Copies that nobody reads any more go; who waited for one waits for what it repeated. */
static void sweep(Trial *t, uint8_t *read) {
  PlFlow *f = t->f;
  for (int32_t o = 0; o < f->noutputs; o++) read[f->outputs[o]] = 1;
  for (int32_t j = t->n - 1; j >= 0; j--) {
    PlFNode *n = &f->nodes[t->order[j]];
    bool any = !(n->flags & PL_FN_MIRROR);
    for (int32_t o = 0; o < n->nout && !any; o++) any = read[n->first + o];
    if (!any) {
      n->flags |= PL_FN_DEAD;
      if (!(n->flags & PL_FN_VIEW)) {
        t->copies--;
        t->flops -= n->flops;
      }
      continue;
    }
    for (int32_t q = 0; q < n->nin; q++)
      if (n->in[q] >= 0) read[n->in[q]] = 1;
  }
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t q = 0; q < f->nodes[i].nafter; q++) {
      const PlFNode *b = &f->nodes[f->nodes[i].after[q]];
      if (b->flags & PL_FN_DEAD && b->origin >= 0) f->nodes[i].after[q] = b->origin;
    }
}

/* may[] of the new nodes, in their new order. */
static uint8_t *carry(const Trial *t, const uint8_t *may) {
  uint8_t *out = malloc((size_t)t->n + 1);
  int32_t n = 0;
  for (int32_t j = 0; out && j < t->n; j++) {
    int32_t i = t->order[j];
    if (!(t->f->nodes[i].flags & PL_FN_DEAD)) out[n++] = i < t->nnodes ? may[i] : 0;
  }
  return out;
}

/* The plan with the chosen stores given up; *may goes with it. */
static PlStatus try_out(const Peak *k, PlPlan **out, uint8_t **may) {
  PlPlan *c = calloc(1, sizeof *c);
  if (!c) return no_memory();
  *c = (PlPlan){.refs = 1, .copies = k->p->copies, .extra_flops = k->p->extra_flops};
  PlStatus s = pl_flow_clone(&c->flow, k->p->flow);
  if (s != PL_OK) {
    pl_plan_release(c);
    return s;
  }
  PlFlow *f = c->flow;
  size_t nn = (size_t)f->nnodes + 1, nv = (size_t)f->nvals + 1, ns = (size_t)f->nstores + 1;
  Trial t = {.k = k, .f = f, .nnodes = f->nnodes, .nvals = f->nvals, .nstores = f->nstores, .cap = (int32_t)(2 * nn)};
  t.order = malloc((size_t)t.cap * sizeof *t.order);
  t.again = malloc((ns + 2 * nn) * sizeof *t.again);
  t.view = malloc(2 * nv * sizeof *t.view);
  uint8_t *read = NULL;
  s = t.order && t.again && t.view ? PL_OK : no_memory();
  if (s == PL_OK) {
    t.temp = t.again + ns;
    t.seen = t.temp + nn;
    t.views = t.view + nv;
    memset(t.again, 0xff, (ns + nn) * sizeof *t.again);
    memset(t.view, 0xff, nv * sizeof *t.view);
    s = rewrite(&t);
  }
  if (s == PL_OK && !(read = calloc((size_t)f->nvals + 1, 1))) s = no_memory();
  if (s == PL_OK) {
    sweep(&t, read);
    c->copies += t.copies;
    c->extra_flops += t.flops;
    *may = carry(&t, k->may);
    s = *may ? pl_flow_compact(f, t.order) : no_memory();
  }
  if (s == PL_OK) s = pl_plan_live(c);
  free(t.order);
  free(t.again);
  free(t.view);
  free(read);
  if (s == PL_OK)
    *out = c;
  else
    pl_plan_release(c);
  return s;
}

/* ---- rounds --------------------------------------------------------------------------------------------------- */

/* One round: *stood is 0 if nothing was given up, 1 if there is nothing to be given up, 2 if as much is alive at the most as
 * before, though elsewhere, and 3 if less is. */
static PlStatus round_of(Peak *k, int64_t *work, bool level, int *stood) {
  *stood = 0;
  PL_TRY(choose(k));
  if (k->npick == 0) *stood = 1;
  while (k->npick > 0 && *stood == 0 && *work > 0) { /* halves each time */
    Peak next = {.stage = k->stage};
    PL_TRY(plk_poll());
    *work -= k->p->flow->nnodes;
    PlStatus s = try_out(k, &next.p, &next.may);
    if (s == PL_OK) s = look(&next);
    if (s == PL_OK && next.most <= k->most)
      *stood = next.most < k->most ? 3 : level || next.places < k->places ? 2 : 0;
    if (*stood) {
      Peak was = *k;
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

static PlStatus rounds(Peak *k, PlPlan **best, int64_t enough) {
  int64_t work = WORK, most = k->most;
  for (int round = 0, failed = 0, level = 0; round < MOST_ROUNDS && failed < MOST_FAILED && level < MOST_LEVEL && work > 0; round++) {
    int stood;
    if (most + k->p->leaf_bytes + k->p->output_bytes <= enough) break;
    PL_TRY(round_of(k, &work, true, &stood));
    if (stood == 1) break;
    failed = stood ? 0 : failed + 1;
    level = stood == 2 ? level + 1 : stood == 3 ? 0 : level;
    if (stood != 3) continue;
    for (int32_t i = 0; i < k->p->flow->nnodes; i++) k->may[i] &= 1;
    most = k->most;
    pl_plan_release(*best);
    *best = k->p;
    k->p->refs++;
  }
  return PL_OK;
}

PlStatus pl_peak_lower(PlPlan **plan, const PlMirror *m, int64_t enough) {
  Peak k = {.p = *plan, .stage = m->stage};
  k.p->refs++;
  k.may = calloc((size_t)k.p->flow->nnodes + 1, 1);
  PlStatus s = k.may ? PL_OK : no_memory();
  /* forward nodes stand in m's order; copies are asked about by the node they repeat */
  for (int32_t i = 0, j = 0; s == PL_OK && i < k.p->flow->nnodes && j < m->first; i++)
    if (!(k.p->flow->nodes[i].flags & PL_FN_MIRROR)) k.may[i] = m->may[j++];
  if (s == PL_OK) s = pl_plan_live(k.p);
  if (s == PL_OK) s = look(&k);
  if (s == PL_OK) s = rounds(&k, plan, enough);
  drop(&k);
  free(k.may);
  pl_plan_release(k.p);
  return s;
}
