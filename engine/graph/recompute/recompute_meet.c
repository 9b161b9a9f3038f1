/* SPDX-License-Identifier: MIT
 * On a device, an elementwise operation that is computed again meets the next one that reads the same input (the gradient of an
 * activation): that one comes right behind it where nothing keeps it, so that both are one kernel, which reads the input once. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/recompute/recompute.h"

enum { REACH = 16, LEAST = 1 << 14 }; /* nodes ahead; elements that are worth it */

static bool elementwise(const PlGraph *f, const PlGNode *n) {
  return n->op->cls == PL_POINTWISE && n->nout == 1 && n->draw < 0 && !n->nafter && pl_gnode_pure(n) && f->vals[n->first].device != PL_CPU;
}

static bool same_sizes(const PlGValue *a, const PlGValue *b) {
  return a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof(int64_t)) == 0;
}

/* Does b read something whole that a reads, and has everything else been made? */
static bool meets(const PlGraph *f, const PlGNode *a, const PlGNode *b, const uint8_t *placed) {
  bool shared = false;
  if (!elementwise(f, b) || b->stage != a->stage || !same_sizes(&f->vals[a->first], &f->vals[b->first])) return false;
  for (int32_t k = 0; k < b->nin; k++) {
    if (b->in[k] < 0) continue;
    const PlGValue *v = &f->vals[b->in[k]];
    if (v->kind == PL_FV_NODE && !placed[v->node]) return false;
    for (int32_t q = 0; q < a->nin; q++) shared = shared || (a->in[q] == b->in[k] && same_sizes(v, &f->vals[a->first]));
  }
  return shared;
}

PlStatus pl_recompute_meet(PlGraph *f) {
  int32_t *order = malloc(((size_t)f->nnodes + 1) * sizeof *order), n = 0;
  uint8_t *placed = calloc((size_t)f->nnodes + 1, 1);
  bool moved = false;
  if (!order || !placed) {
    free(order);
    free(placed);
    PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  }
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *a = &f->nodes[i];
    if (placed[i]) continue;
    order[n++] = i;
    placed[i] = 1;
    if (!(a->flags & PL_FN_RECOMPUTED) || !elementwise(f, a) || f->vals[a->first].numel < LEAST) continue;
    for (int32_t j = i + 1; j < f->nnodes && j <= i + REACH; j++) {
      const PlGNode *b = &f->nodes[j];
      if (b->flags & PL_FN_MUTATES) break;
      if (placed[j] || !meets(f, a, b, placed)) continue;
      moved = moved || j > i + 1;
      order[n++] = j;
      placed[j] = 1;
      break;
    }
  }
  PlStatus s = moved ? pl_graph_compact(f, order) : PL_OK;
  free(order);
  free(placed);
  return s;
}
