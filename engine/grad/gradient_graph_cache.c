/* SPDX-License-Identifier: MIT
 * Caches of graphs by the kind of call. See gradient_graph_cache.h. */
#include "engine/grad/gradient_graph_cache.h"
#include "engine/ops/names.h"

#include <stdlib.h>
#include <string.h>

struct PlGradGraphEntry {
  PlGradGraphEntry *next;
  void *graph;
  uint64_t hash;
  size_t size;
  unsigned char key[];
};

static void put(PlGradGraphKey *k, const void *p, size_t n) {
  if (k->n + n > PL_GRAD_GRAPH_KEY_MAX) {
    k->over = true;
    return;
  }
  memcpy(k->b + k->n, p, n);
  k->n += n;
}

static uint64_t hash_bytes(const unsigned char *p, size_t n) {
  uint64_t h = 0xcbf29ce484222325u ^ n; /* FNV-1a over words */
  uint64_t w;
  for (; n >= 8; n -= 8, p += 8) {
    memcpy(&w, p, 8);
    h = (h ^ w) * 0x100000001b3u;
    h ^= h >> 29;
  }
  for (; n; n--) h = (h ^ *p++) * 0x100000001b3u;
  return h;
}

void pl_grad_graph_key(PlGradGraphKey *k, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out,
                       const bool *want, const bool *same, bool sizes) {
  k->n = 0;
  k->over = false;
  uint32_t head = (uint32_t)nin;
  put(k, &head, sizeof head);
  for (int i = 0; i < nin; i++) {
    const PlTensor *t = in[i];
    unsigned char d[4] = {0, 0, 0, 0};
    if (t) {
      d[0] = (unsigned char)(1 + t->a.dtype);
      d[1] = t->a.ndim;
      d[2] = t->a.device;
      d[3] = (unsigned char)(want[i] | same[i] << 1 | t->a.weak << 2);
    }
    put(k, d, sizeof d);
    if (t && sizes) put(k, t->a.shape, t->a.ndim * sizeof(int64_t));
  }
  unsigned char dt = out[0] ? out[0]->a.dtype : 0;
  put(k, &dt, 1);
  for (int o = 0; sizes && o < op->nout; o++) /* which inputs' values may have chosen */
    if (out[o]) put(k, out[o]->a.shape, out[o]->a.ndim * sizeof(int64_t));
  if (attrs && op->nattr) put(k, attrs, pl_attrs_size(attrs));
  k->hash = hash_bytes(k->b, k->n);
}

PlStatus pl_grad_graph_cache_open(PlGradGraphCache *c) {
  if (!c->at && !(c->at = calloc(PL_NOP, sizeof(PlGradGraphEntry *)))) PL_FAIL(PL_ERR_OOM, "out of memory for a gradient graph");
  return PL_OK;
}

static void drop_entry(PlGradGraphCache *c, PlGradGraphEntry *e) {
  c->drop(e->graph);
  free(e);
  c->entries--;
}

/* The entry found moves to the front. */
bool pl_grad_graph_cache_find(PlGradGraphCache *c, const PlOp *op, const PlGradGraphKey *k, void **out) {
  PlGradGraphEntry **list = &c->at[pl_op_id(op)], **p = list;
  for (int n = 0; !k->over && *p; p = &(*p)->next, n++) {
    PlGradGraphEntry *e = *p;
    if (e->hash == k->hash && e->size == k->n && memcmp(e->key, k->b, k->n) == 0) {
      *p = e->next;
      e->next = *list;
      *list = e;
      *out = e->graph;
      c->hits++;
      return true;
    }
    if (n >= PL_GRAPHS_PER_OP) { /* what follows has not been used for long */
      PlGradGraphEntry *rest = e->next;
      e->next = NULL;
      while (rest) {
        PlGradGraphEntry *next = rest->next;
        drop_entry(c, rest);
        rest = next;
      }
    }
  }
  c->misses++;
  return false;
}

void pl_grad_graph_cache_put(PlGradGraphCache *c, const PlOp *op, const PlGradGraphKey *k, void *graph) {
  PlGradGraphEntry *e = k->over ? NULL : malloc(sizeof *e + k->n);
  if (!e) { /* the graph is merely not cached */
    c->drop(graph);
    return;
  }
  PlGradGraphEntry **list = &c->at[pl_op_id(op)];
  *e = (PlGradGraphEntry){.next = *list, .graph = graph, .hash = k->hash, .size = k->n};
  memcpy(e->key, k->b, k->n);
  *list = e;
  c->entries++;
}

void pl_grad_graph_cache_clear(PlGradGraphCache *c) {
  for (int i = 0; c->at && i < PL_NOP; i++)
    while (c->at[i]) {
      PlGradGraphEntry *e = c->at[i];
      c->at[i] = e->next;
      drop_entry(c, e);
    }
}

void pl_grad_graph_cache_end(PlGradGraphCache *c) {
  pl_grad_graph_cache_clear(c);
  free(c->at);
  c->at = NULL;
}
