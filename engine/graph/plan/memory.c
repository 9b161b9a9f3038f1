/* SPDX-License-Identifier: MIT
 * Memory of a plan: how long each store lives, which nodes may work in place, and the offsets of buffers. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/fuse/tile.h"
#include "engine/graph/plan/plan.h"

typedef struct Mem {
  PlPlan *p;
  PlGraph *f;
  int32_t *parent; /* per store: union-find over stores that share memory */
  int32_t *birth, *death;
  int32_t *last;   /* per store: the node that touches it last; before its death if that is in a group */
  int32_t end;     /* of the group at hand */
  int32_t *output; /* per store: the requested output that is there, -1 */
} Mem;

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph"); }

static int32_t find(const Mem *m, int32_t s) {
  while (m->parent[s] != s) s = m->parent[s] = m->parent[m->parent[s]];
  return s;
}

static bool is_leaf(const PlGraph *f, int32_t s) { return f->vals[f->stores[s].first].kind != PL_FV_NODE; }

/* A group of fused nodes is one moment: its tiles go through all of them in turn. */
static int32_t group_begin(const PlPlan *p, int32_t i) { return p->group && p->group[i] >= 0 ? p->group[i] : i; }
static int32_t group_end(const PlPlan *p, int32_t i) {
  if (!p->group || p->group[i] < 0) return i;
  int32_t begin = p->group[i];
  while (i + 1 < p->graph->nnodes && p->group[i + 1] == begin) i++;
  return i;
}

static void lifetimes(Mem *m) {
  const PlGraph *f = m->f;
  for (int32_t s = 0; s < f->nstores; s++) {
    m->parent[s] = s;
    m->birth[s] = f->nnodes;
    m->death[s] = -1;
    m->output[s] = -1;
  }
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    int32_t begin = group_begin(m->p, i), end = m->p->group && m->p->group[i] >= 0 && begin < i ? m->end : group_end(m->p, i);
    m->end = end;
    for (int32_t k = 0; k < n->nin; k++)
      if (n->in[k] >= 0) {
        int32_t s = f->vals[n->in[k]].store;
        m->death[s] = end;
        m->last[s] = i;
      }
    for (int32_t o = 0; o < n->nout; o++) {
      int32_t s = f->vals[n->first + o].store;
      if (m->birth[s] > begin) m->birth[s] = begin;
      if (m->death[s] < end) m->death[s] = end;
      m->last[s] = i;
    }
  }
  for (int32_t o = 0; o < f->noutputs; o++) {
    int32_t s = f->vals[f->outputs[o]].store;
    m->death[s] = f->nnodes;
    m->output[s] = o;
  }
}

/* ---- in place --------------------------------------------------------------------------------------------- */

static bool covers(const PlGraph *f, const PlGValue *v) {
  return v->contiguous && v->offset == 0 && pl_gvalue_bytes(v) == f->stores[v->store].bytes;
}

static bool same_window(const PlGValue *a, const PlGValue *b) {
  return a->offset == b->offset && a->dtype == b->dtype && a->ndim == b->ndim &&
         memcmp(a->dims, b->dims, 2 * a->ndim * sizeof(int64_t)) == 0;
}

/* Output v of node i over value x, which i or an earlier node of its group reads: the kernels' contract is the very same
 * array, read element by element; a group comes back to x with every tile. */
static bool may_take(const Mem *m, int32_t i, PlGVal in, const PlGValue *v) {
  const PlGraph *f = m->f;
  if (in < 0 || (m->p->inner && m->p->inner[in])) return false;
  const PlGValue *x = &f->vals[in];
  if (group_begin(m->p, i) < m->end && v->numel != m->p->space[group_begin(m->p, i)].numel) return false;
  if (is_leaf(f, x->store) || v->dtype != x->dtype || !covers(f, x) || v->ndim != x->ndim ||
      memcmp(v->dims, x->dims, v->ndim * sizeof(int64_t)) != 0)
    return false;
  int32_t t = find(m, x->store), s = find(m, v->store);
  if (t == s || m->death[t] != m->end || m->last[t] > i || (m->output[t] >= 0 && m->output[s] >= 0)) return false;
  for (int32_t g = group_begin(m->p, i); g <= i; g++)
    for (int32_t j = 0; j < f->nodes[g].nin; j++) {
      if (f->nodes[g].in[j] < 0) continue;
      const PlGValue *y = &f->vals[f->nodes[g].in[j]];
      if (find(m, y->store) == t && !same_window(x, y)) return false;
    }
  return true;
}

static void take(Mem *m, int32_t t, int32_t s) {
  m->parent[s] = t;
  m->death[t] = m->death[s];
  m->last[t] = m->last[s];
  if (m->output[s] >= 0) m->output[t] = m->output[s];
  m->p->inplace++;
}

static void in_place(Mem *m) {
  const PlGraph *f = m->f;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    bool pointwise = n->op->cls == PL_POINTWISE;
    const int32_t there = n->op->over && n->nout > 0 && f->vals[n->first].device != PL_CPU ? n->op->over - 1 : -1; /* on a device */
    const bool over = (n->op->flags & PL_F_OVER) || there >= 0;
    if (!pointwise && !over && !(n->op->flags & PL_F_INPLACE)) continue;
    if (n->flags & (PL_FN_MUTATES | PL_FN_VIEW) || n->nout < 1 || (n->nout > 1 && !over)) continue;
    const PlGValue *v = &f->vals[n->first];
    if (v->dtype == PL_NDTYPE || v->numel == 0) continue;
    if (m->p->inner && m->p->inner[n->first]) continue;
    m->end = group_end(m->p, i);
    bool taken = false;
    for (int32_t g = i; g >= group_begin(m->p, i) && !taken; g--)
      for (int32_t k = there < 0 ? 0 : there; k < (pointwise ? f->nodes[g].nin : there < 0 ? 1 : there + 1) && !taken; k++)
        if ((taken = may_take(m, i, f->nodes[g].in[k], v))) take(m, find(m, f->vals[f->nodes[g].in[k]].store), v->store);
  }
}

/* ---- places ----------------------------------------------------------------------------------------------- */

static void make_buffers(Mem *m) {
  const PlGraph *f = m->f;
  PlPlan *p = m->p;
  p->nbuffers = 0;
  for (int32_t s = 0; s < f->nstores; s++) {
    int32_t t = find(m, s);
    if (t != s) continue;
    PlBuffer *b = &p->buffers[p->nbuffers];
    *b = (PlBuffer){.bytes = f->stores[s].bytes, .birth = m->birth[s], .death = m->death[s]};
    if (is_leaf(f, s)) {
      b->place = PL_AT_LEAF;
      p->leaf_bytes += f->vals[f->stores[s].first].kind == PL_FV_CONST ? 0 : b->bytes;
    } else if (m->output[s] >= 0) {
      b->place = PL_AT_OUTPUT;
      b->at = m->output[s];
      p->output_bytes += b->bytes;
    } else if (b->bytes > 0 && b->death >= 0 && !(p->inner && p->inner[f->stores[s].first])) {
      b->place = PL_AT_ARENA;
      b->bytes = (b->bytes + 63) & ~(int64_t)63;
    }
    p->buffer[s] = p->nbuffers++;
  }
  for (int32_t s = 0; s < f->nstores; s++) p->buffer[s] = p->buffer[find(m, s)];
}

static PlStatus place(PlPlan *p) {
  PlBuffer **list = malloc(((size_t)p->nbuffers + 1) * sizeof *list);
  if (!list) return no_memory();
  int32_t n = 0;
  for (int32_t b = 0; b < p->nbuffers; b++)
    if (p->buffers[b].place == PL_AT_ARENA) list[n++] = &p->buffers[b];
  PlStatus s = pl_arena_place(n, list, &p->arena_bytes, &p->lower_bound_bytes);
  free(list);
  return s;
}

PlStatus pl_plan_live(PlPlan *p) {
  PlGraph *f = p->graph;
  if (!pl_pass_is_off("fuse")) PL_TRY(pl_fuse(p));
  size_t ns = (size_t)f->nstores + 1;
  Mem m = {.p = p, .f = f, .parent = malloc(5 * ns * sizeof *m.parent)};
  free(p->buffer);
  free(p->buffers);
  p->buffer = malloc(ns * sizeof *p->buffer);
  p->buffers = calloc(ns, sizeof *p->buffers);
  PlStatus s = m.parent && p->buffer && p->buffers ? PL_OK : no_memory();
  if (s == PL_OK) {
    m.birth = m.parent + ns;
    m.death = m.birth + ns;
    m.output = m.death + ns;
    m.last = m.output + ns;
    p->leaf_bytes = p->output_bytes = p->inplace = 0;
    lifetimes(&m);
    in_place(&m);
    make_buffers(&m);
  }
  free(m.parent);
  return s;
}

PlStatus pl_plan_memory(PlPlan *p) {
  PL_TRY(pl_plan_live(p));
  PL_TRY(place(p));
  p->peak_bytes = p->arena_bytes + p->leaf_bytes + p->output_bytes;
  return PL_OK;
}
