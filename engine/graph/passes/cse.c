/* SPDX-License-Identifier: MIT
 * Common subexpressions: a pure node that repeats an earlier one of the same stage is dropped, its readers read that one.
 * Equal numbers count as one. Never merged: copies made for recomputation, random draws, and results that somebody
 * writes into. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/passes/pass.h"

typedef struct Cse {
  PlGraph *f;
  PlGVal *map;      /* per value: what replaces it */
  uint8_t *written; /* per store */
  int32_t *slots;   /* hash of nodes and of constants (as -2 - value); -1: free */
  uint32_t mask;
} Cse;

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * UINT64_C(0x9E3779B97F4A7C15);
  return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n) {
  const unsigned char *b = p;
  for (size_t i = 0; i < n; i++) h = mix(h, b[i]);
  return h;
}

/* ---- constants --------------------------------------------------------------------------------------------- */

static bool is_number(const PlGValue *v) { return v->kind == PL_FV_CONST && v->ndim == 0 && v->real && v->real->a.contiguous; }

static bool same_number(const PlGValue *a, const PlGValue *b) {
  return a->dtype == b->dtype && a->weak == b->weak && memcmp(a->real->a.data, b->real->a.data, pl_dtype_size((PlDtype)a->dtype)) == 0;
}

static void merge_number(Cse *c, PlGVal v) {
  const PlGValue *val = &c->f->vals[v];
  uint64_t h = mix(val->dtype, val->weak);
  h = hash_bytes(h, val->real->a.data, pl_dtype_size((PlDtype)val->dtype));
  for (uint32_t s = (uint32_t)(h >> 32) & c->mask;; s = (s + 1) & c->mask) {
    if (c->slots[s] == -1) {
      c->slots[s] = -2 - v;
      return;
    }
    if (c->slots[s] < -1 && same_number(val, &c->f->vals[-2 - c->slots[s]])) {
      c->map[v] = -2 - c->slots[s];
      return;
    }
  }
}

/* ---- nodes --------------------------------------------------------------------------------------------------- */

static bool may_merge(const Cse *c, const PlGNode *n) {
  if (!pl_gnode_pure(n) || n->flags & (PL_FN_RECOMPUTED | PL_FN_DEAD) || n->nafter) return false;
  for (int32_t o = 0; o < n->nout; o++)
    if (c->written[c->f->vals[n->first + o].store]) return false;
  return true;
}

static uint64_t hash_node(const PlGNode *n) {
  uint64_t h = mix((uint64_t)(uintptr_t)n->op, n->stage);
  if (n->op->flags & PL_F_COMMUTES) h = mix(h, (uint64_t)n->in[0] + (uint64_t)n->in[1]);
  else
    for (int32_t k = 0; k < n->nin; k++) h = mix(h, (uint64_t)n->in[k]);
  return n->attrs ? hash_bytes(h, n->attrs, pl_attrs_size(n->attrs)) : h;
}

static bool same_node(const PlGraph *f, const PlGNode *a, const PlGNode *b) {
  if (a->op != b->op || a->nin != b->nin || a->stage != b->stage || (a->flags ^ b->flags) & PL_FN_PLACED) return false;
  if (a->nin == 0 && f->vals[a->first].device != f->vals[b->first].device) return false;
  if (memcmp(a->in, b->in, (size_t)a->nin * sizeof *a->in) != 0 &&
      !((a->op->flags & PL_F_COMMUTES) && a->in[0] == b->in[1] && a->in[1] == b->in[0]))
    return false;
  if (!a->attrs || !b->attrs) return a->attrs == b->attrs;
  return pl_attrs_size(a->attrs) == pl_attrs_size(b->attrs) && memcmp(a->attrs, b->attrs, pl_attrs_size(a->attrs)) == 0;
}

static bool merge_node(Cse *c, int32_t i) {
  PlGNode *n = &c->f->nodes[i];
  for (uint32_t s = (uint32_t)(hash_node(n) >> 32) & c->mask;; s = (s + 1) & c->mask) {
    if (c->slots[s] == -1) {
      c->slots[s] = i;
      return false;
    }
    if (c->slots[s] < 0 || !same_node(c->f, &c->f->nodes[c->slots[s]], n)) continue;
    const PlGNode *first = &c->f->nodes[c->slots[s]];
    for (int32_t o = 0; o < n->nout; o++) c->map[n->first + o] = first->first + o;
    n->flags |= PL_FN_DEAD;
    return true;
  }
}

PlStatus pl_pass_cse(PlGraph *f, int32_t *removed) {
  Cse c = {.f = f};
  uint32_t size = 64;
  while (size < 3 * ((uint32_t)f->nnodes + (uint32_t)f->nvals)) size *= 2;
  c.mask = size - 1;
  c.map = malloc(((size_t)f->nvals + 1) * sizeof *c.map);
  c.written = calloc((size_t)f->nstores + 1, 1);
  c.slots = malloc(size * sizeof *c.slots);
  PlStatus s = c.map && c.written && c.slots ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  *removed = 0;
  if (s == PL_OK) {
    pl_graph_written(f, c.written);
    memset(c.slots, 0xff, size * sizeof *c.slots);
    for (PlGVal v = 0; v < f->nvals; v++) {
      c.map[v] = v;
      if (is_number(&f->vals[v])) merge_number(&c, v);
    }
    for (int32_t i = 0; i < f->nnodes; i++) {
      PlGNode *n = &f->nodes[i];
      for (int32_t k = 0; k < n->nin; k++)
        if (n->in[k] >= 0) n->in[k] = c.map[n->in[k]];
      if (may_merge(&c, n)) *removed += merge_node(&c, i);
    }
    pl_graph_rewire(f, c.map);
    if (*removed) s = pl_graph_compact(f, NULL);
  }
  free(c.map);
  free(c.written);
  free(c.slots);
  return s;
}
