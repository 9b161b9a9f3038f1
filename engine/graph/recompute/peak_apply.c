/* SPDX-License-Identifier: MIT
 * Lowering the peak, what was chosen: stores computed again in front of the node that reads them next, from what is alive there.
 * See peak.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/peak_internal.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

int32_t pl_peak_alive(const PlPeak *k, int32_t s, int32_t u) {
  for (int32_t t = s, first = 1; t != s || first; t = k->kin[t], first = 0)
    if (k->use[t].first < u && k->use[t].last >= u && !(k->cut[t] >= u && k->from[t] < u)) return t;
  return -1;
}

/* Would node i, run in front of u, read leaves as they were? */
static bool unwritten(const PlPeak *k, int32_t s, int32_t i, int32_t u) {
  const int32_t ns = k->p->graph->nstores;
  return k->writes[s] >= u || k->writes[ns + s] < i;
}

/* Adds node i (a root) after what it reads and is not alive in front of u. false: it cannot be. */
static bool close_over(const PlPeak *k, PlPeakClosure *c, int32_t i, int32_t u, int depth) {
  const PlGraph *f = k->p->graph;
  const PlGNode *n = &f->nodes[i];
  if (!(k->may[i] & 1) || depth > PL_PEAK_CLOSURE) return false;
  for (int32_t j = 0; j < n->nin; j++) {
    if (n->in[j] < 0) continue;
    int32_t s = f->vals[n->in[j]].store;
    const PlGValue *v = &f->vals[f->stores[s].first];
    if (v->kind != PL_FV_NODE) {
      if (!unwritten(k, s, i, u)) return false;
      continue;
    }
    if (f->nodes[v->node].flags & PL_FN_MUTATES) return false;
    bool there = false;
    int32_t r = pl_peak_root(f, v->node), t = pl_peak_alive(k, s, u);
    for (int32_t q = 0; q < c->n && !there; q++) there = c->node[q] == r;
    if (there) continue;
    if (t >= 0) {
      if (c->nread == 2 * PL_PEAK_CLOSURE) return false;
      c->read[c->nread++] = t;
    } else if (!close_over(k, c, r, u, depth + 1)) return false;
  }
  if (c->n == PL_PEAK_CLOSURE) return false;
  c->node[c->n++] = i;
  c->flops += n->flops + 1;
  return true;
}

bool pl_peak_close(const PlPeak *k, PlPeakClosure *c, int32_t s, int32_t u) {
  const PlGraph *f = k->p->graph;
  c->n = c->nread = 0;
  c->flops = 0;
  return close_over(k, c, pl_peak_root(f, f->vals[f->stores[s].first].node), u, 0);
}

typedef struct Trial {
  const PlPeak *k;
  PlGraph *f;                     /* a clone, which grows */
  int32_t nnodes, nvals, nstores; /* before */
  int32_t *order, n, cap;
  int32_t *again;              /* per store: the copy that readers from now on read, -1 */
  int32_t *temp;               /* per node: its copy for the store at hand, -1 */
  PlGVal *view;                /* per value of a view: its copy, -1 */
  int32_t *seen, nseen, nview; /* nodes with a temp; values of views with a copy */
  PlGVal *views;
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

static PlStatus repeat(Trial *t, int32_t i, const PlGVal *in, int32_t *node) {
  PlGraph *f = t->f;
  PL_TRY(pl_recompute_repeat(f, i, t->k->stage, in, node));
  if (!(f->nodes[i].flags & PL_FN_VIEW)) {
    t->copies++;
    t->flops += f->nodes[i].flops;
  }
  return put(t, *node);
}

/* Value v as it is read in front of node u by a copy (again_only: by node u itself, which reads copies that stay). */
static PlStatus fetch(Trial *t, PlGVal v, int32_t u, bool again_only, PlGVal *out) {
  PlGraph *f = t->f;
  *out = v;
  if (v < 0 || v >= t->nvals) return PL_OK;
  int32_t i = f->vals[v].node, s = f->vals[v].store;
  if (i < 0 || f->vals[v].dtype == PL_NDTYPE) return PL_OK;
  if (f->nodes[i].flags & PL_FN_VIEW) {
    PlGVal in, *list;
    int32_t node;
    if (again_only && (t->again[s] < 0 || i >= t->k->cut[s])) return PL_OK; /* made behind the copy: it shows that */
    PL_TRY(fetch(t, f->nodes[i].in[0], u, again_only, &in));
    if (in == f->nodes[i].in[0]) return PL_OK;
    if (t->view[v] >= 0) {
      *out = t->view[v];
      return PL_OK;
    }
    list = pl_graph_alloc(f, (size_t)f->nodes[i].nin * sizeof *list + 1);
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
  int32_t r = pl_peak_root(t->k->p->graph, i);
  if (t->temp[r] >= 0) {
    *out = f->nodes[t->temp[r]].first + f->vals[v].slot;
    return PL_OK;
  }
  int32_t like = pl_peak_alive(t->k, s, u);
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
  PlGraph *f = t->f;
  PlPeakClosure c;
  if (!pl_peak_close(t->k, &c, s, u)) PL_FAIL(PL_ERR_STATE, "recomputation cannot reach what it chose");
  int32_t node = -1;
  forget(t);
  qsort(c.node, (size_t)c.n, sizeof *c.node, ascending);
  for (int32_t q = 0; q < c.n; q++) {
    int32_t i = c.node[q];
    PlGVal *in = pl_graph_alloc(f, (size_t)f->nodes[i].nin * sizeof *in + 1);
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
  PlGraph *f = t->f;
  for (int32_t i = 0; i < t->nnodes; i++) {
    for (int32_t q = 0; q < t->k->npick; q++)
      if (t->k->cut[t->k->pick[q]] == i) PL_TRY(emit(t, t->k->pick[q], i));
    if (f->nodes[i].stage == t->k->stage)
      for (int32_t j = 0; j < f->nodes[i].nin; j++) {
        PlGVal v;
        PL_TRY(fetch(t, f->nodes[i].in[j], i, true, &v));
        f->nodes[i].in[j] = v;
      }
    PL_TRY(put(t, i));
  }
  return PL_OK;
}

/* Copies that nobody reads any more go; who waited for one waits for what it repeated. */
static void sweep(Trial *t, uint8_t *read) {
  PlGraph *f = t->f;
  for (int32_t o = 0; o < f->noutputs; o++) read[f->outputs[o]] = 1;
  for (int32_t j = t->n - 1; j >= 0; j--) {
    PlGNode *n = &f->nodes[t->order[j]];
    bool any = !(n->flags & PL_FN_RECOMPUTED);
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
      const PlGNode *b = &f->nodes[f->nodes[i].after[q]];
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

PlStatus pl_peak_apply(const PlPeak *k, PlPlan **out, uint8_t **may) {
  PlPlan *c = calloc(1, sizeof *c);
  if (!c) return no_memory();
  *c = (PlPlan){.refs = 1, .copies = k->p->copies, .extra_flops = k->p->extra_flops};
  PlStatus s = pl_graph_clone(&c->graph, k->p->graph);
  if (s != PL_OK) {
    pl_plan_release(c);
    return s;
  }
  PlGraph *f = c->graph;
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
    s = *may ? pl_graph_compact(f, t.order) : no_memory();
  }
  if (s == PL_OK) s = pl_plan_live(c);
  free(t.order);
  free(t.again);
  free(t.view);
  free(read);
  if (s == PL_OK) *out = c;
  else pl_plan_release(c);
  return s;
}
