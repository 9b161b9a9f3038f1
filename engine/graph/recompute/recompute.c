/* SPDX-License-Identifier: MIT
 * Carries a recomputation decision out: copies of forward nodes, each as late as possible, in front of the backward
 * node that needs it first; but before any node that overwrites a leaf they read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/recompute.h"

enum { NONE = -1, COMING = -2 };

typedef struct Redo {
  PlGraph *f;
  const PlRecompute *m;
  int32_t nnodes; /* before copies */
  int32_t nvals;
  uint8_t *want; /* per node: a copy of it is needed (views too) */
  int32_t *copy; /* per node: its copy, NONE, or COMING */
  int32_t *order, n, cap;
  int32_t *made; /* what one demand copies, in order */
  int32_t copies;
  double flops;
} Redo;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

/* Does backward read a copy of value v rather than v itself? */
static bool moved(const Redo *r, PlGVal v) {
  if (v < 0 || v >= r->nvals) return false;
  int32_t i = r->f->vals[v].node;
  return i >= 0 && i < r->m->first && r->want[i];
}

/* Which nodes need copies: those of R that are read, and views of what they make. Backwards, so each once. */
static void close_wants(Redo *r, uint8_t *need) {
  const PlGraph *f = r->f;
  const PlRecompute *m = r->m;
  for (int32_t i = m->first; i < r->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin && f->nodes[i].stage == m->stage; k++)
      if (f->nodes[i].in[k] >= 0) need[f->nodes[i].in[k]] = 1;
  for (int32_t i = m->first - 1; i >= 0; i--) {
    const PlGNode *n = &f->nodes[i];
    bool read = false, view = (n->flags & PL_FN_VIEW) != 0;
    for (int32_t o = 0; o < n->nout; o++) read |= need[n->first + o] != 0;
    if (view && read) {
      int32_t by = m->maker[f->vals[n->in[0]].store];
      r->want[i] = by >= 0 && m->again[by];
    } else r->want[i] = read && m->again[i];
    for (int32_t k = 0; k < n->nin && r->want[i]; k++)
      if (n->in[k] >= 0) need[n->in[k]] = 1;
  }
}

static PlStatus put(Redo *r, int32_t node) {
  if (r->n == r->cap) {
    int32_t *order = realloc(r->order, 2 * (size_t)r->cap * sizeof *order);
    if (!order) return no_memory();
    r->order = order;
    r->cap *= 2;
  }
  r->order[r->n++] = node;
  return PL_OK;
}

PlStatus pl_recompute_repeat(PlGraph *f, int32_t i, int32_t stage, const PlGVal *in, int32_t *node) {
  char name[160];
  int32_t of = f->nodes[i].flags & PL_FN_RECOMPUTED && f->nodes[i].origin >= 0 ? f->nodes[i].origin : i;
  snprintf(name, sizeof name, "%.140s_mirror", f->nodes[of].name);
  const char *kept = pl_graph_string(f, name);
  if (!kept) return no_memory();
  f->stage = (uint8_t)stage;
  f->origin = of;
  PlStatus s = pl_graph_repeat(f, i, in, kept, node);
  f->stage = 0;
  f->origin = -1;
  PL_TRY(s);
  f->nodes[*node].flags |= PL_FN_RECOMPUTED;
  return PL_OK;
}

static PlStatus copy_node(Redo *r, int32_t i) {
  PlGraph *f = r->f;
  int32_t nin = f->nodes[i].nin, node;
  PlGVal *in = pl_graph_alloc(f, (size_t)nin * sizeof *in + 1);
  if (!in) return no_memory();
  for (int32_t k = 0; k < nin; k++) {
    PlGVal v = f->nodes[i].in[k];
    in[k] = moved(r, v) ? f->nodes[r->copy[f->vals[v].node]].first + f->vals[v].slot : v;
  }
  PL_TRY(pl_recompute_repeat(f, i, r->m->stage, in, &node));
  for (int32_t k = 0; k < f->nodes[node].nafter; k++) { /* what it waits for is copied, too, or ran in forward */
    int32_t *b = &f->nodes[node].after[k];
    if (*b < r->m->first && r->copy[*b] >= 0) *b = r->copy[*b];
  }
  r->copy[i] = node;
  PL_TRY(put(r, node));
  if (!(f->nodes[i].flags & PL_FN_VIEW)) {
    r->copies++;
    r->flops += f->nodes[i].flops;
  }
  return PL_OK;
}

static int ascending(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* Emits the copy of node `top` after those it reads or waits for, in the order of the originals: what is needed late comes late. */
static PlStatus demand(Redo *r, int32_t top) {
  const PlGraph *f = r->f;
  int32_t n = 0, found = 0;
  if (r->copy[top] >= 0) return PL_OK;
  r->made[found++] = top;
  r->copy[top] = COMING;
  for (; n < found; n++) {
    const PlGNode *node = &f->nodes[r->made[n]];
    for (int32_t k = 0; k < node->nin; k++) {
      PlGVal v = node->in[k];
      if (!moved(r, v) || r->copy[f->vals[v].node] != NONE) continue;
      r->copy[f->vals[v].node] = COMING;
      r->made[found++] = f->vals[v].node;
    }
    for (int32_t k = 0; k < node->nafter; k++) {
      int32_t b = node->after[k];
      if (b >= r->m->first || !r->want[b] || r->copy[b] != NONE) continue;
      r->copy[b] = COMING;
      r->made[found++] = b;
    }
  }
  qsort(r->made, (size_t)found, sizeof *r->made, ascending);
  for (int32_t j = 0; j < found; j++) PL_TRY(copy_node(r, r->made[j]));
  return PL_OK;
}

/* Node i is about to overwrite a store: copies that would read it afterwards come first. */
static PlStatus before_write(Redo *r, int32_t i) {
  const PlRecompute *m = r->m;
  for (int32_t o = 0; o < pl_gnode_written(&r->f->nodes[i]); o++) {
    int32_t s = r->f->vals[r->f->nodes[i].first + o].store;
    if (s >= m->nstores) continue;
    for (int32_t e = m->reader_at[s]; e < m->reader_at[s + 1]; e++)
      if (r->want[m->reader[e]]) PL_TRY(demand(r, m->reader[e]));
  }
  return PL_OK;
}

static PlStatus rewrite(Redo *r) {
  const PlRecompute *m = r->m;
  for (int32_t i = 0; i < r->nnodes; i++) {
    if (i >= m->first && r->f->nodes[i].stage == m->stage) {
      for (int32_t k = 0; k < r->f->nodes[i].nin; k++) {
        PlGVal v = r->f->nodes[i].in[k];
        if (!moved(r, v)) continue;
        PL_TRY(demand(r, r->f->vals[v].node));
        r->f->nodes[i].in[k] = r->f->nodes[r->copy[r->f->vals[v].node]].first + r->f->vals[v].slot;
      }
    }
    if (i >= m->first && pl_gnode_written(&r->f->nodes[i])) PL_TRY(before_write(r, i));
    PL_TRY(put(r, i));
  }
  return PL_OK;
}

PlStatus pl_recompute_apply(PlGraph *f, const PlRecompute *m, int32_t *copies, double *flops) {
  size_t nn = (size_t)f->nnodes + 1;
  Redo r = {.f = f, .m = m, .nnodes = f->nnodes, .nvals = f->nvals};
  r.want = calloc(nn, 1);
  r.copy = malloc(2 * nn * sizeof *r.copy);
  r.cap = (int32_t)(2 * nn);
  r.order = malloc((size_t)r.cap * sizeof *r.order);
  uint8_t *need = calloc((size_t)f->nvals + 1, 1);
  PlStatus s = r.want && r.copy && r.order && need ? PL_OK : no_memory();
  if (s == PL_OK) {
    for (size_t i = 0; i < nn; i++) r.copy[i] = NONE;
    r.made = r.copy + nn;
    close_wants(&r, need);
    s = rewrite(&r);
    if (s == PL_OK) s = pl_graph_compact(f, r.order);
  }
  *copies += r.copies;
  *flops += r.flops;
  free(r.want);
  free(r.copy);
  free(r.order);
  free(need);
  return s;
}
