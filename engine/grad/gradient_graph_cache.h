/* SPDX-License-Identifier: MIT
 * Caches of what is made once per kind of call: backward graphs (gradient_maker.c), graphs of tangents (forward_mode_graph.c). An entry
 * is compared in full; per op the least recently used go first. One cache belongs to one thread, as tensors do. */
#ifndef PL_ENGINE_GRAD_GRADIENT_GRAPH_CACHE_H
#define PL_ENGINE_GRAD_GRADIENT_GRAPH_CACHE_H

#include "engine/tensor/tensor.h"

enum { PL_GRAD_GRAPH_KEY_MAX = 1536, PL_GRAPHS_PER_OP = 64 };

/* All that the graph of a call depends on. */
typedef struct PlGradGraphKey {
  size_t n;
  uint64_t hash;
  bool over; /* too long: such a call is not cached */
  _Alignas(8) unsigned char b[PL_GRAD_GRAPH_KEY_MAX];
} PlGradGraphKey;

typedef struct PlGradGraphEntry PlGradGraphEntry;
typedef struct PlGradGraphCache {
  PlGradGraphEntry **at;     /* PL_NOP lists */
  void (*drop)(void *graph); /* takes NULL */
  int64_t hits, misses, entries;
} PlGradGraphCache;

/* want[i]: input i takes part; same[i]: it has the shape of output 0. sizes: shapes count, too. */
void pl_grad_graph_key(PlGradGraphKey *k, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out,
                       const bool *want, const bool *same, bool sizes);
PlStatus pl_grad_graph_cache_open(PlGradGraphCache *c);
/* True and *out set (borrowed; NULL: known to be none) when found. */
bool pl_grad_graph_cache_find(PlGradGraphCache *c, const PlOp *op, const PlGradGraphKey *k, void **out);
/* Takes over `graph`, or drops it where it does not fit. */
void pl_grad_graph_cache_put(PlGradGraphCache *c, const PlOp *op, const PlGradGraphKey *k, void *graph);
void pl_grad_graph_cache_clear(PlGradGraphCache *c);
void pl_grad_graph_cache_end(PlGradGraphCache *c);

#endif
