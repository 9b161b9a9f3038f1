/* SPDX-License-Identifier: MIT
 * Order: among the gradients of one forward node, those that nobody reads any more (of parameters, usually) are computed
 * first. They free what they read, and what must be recomputed for them is, before the others take memory. */
#include <stdlib.h>

#include "engine/graph/passes/pass.h"

/* All outputs of node i go to the caller, and nothing it reads is made at `from` or behind it. */
static bool goes_first(const PlGraph *f, int32_t i, int32_t from, const uint8_t *read) {
  const PlGNode *n = &f->nodes[i];
  if (!pl_gnode_pure(n) || n->nafter || n->nout < 1) return false;
  for (int32_t o = 0; o < n->nout; o++)
    if (read[n->first + o]) return false;
  for (int32_t k = 0; k < n->nin; k++)
    if (n->in[k] >= 0 && f->vals[n->in[k]].node >= from) return false;
  return true;
}

PlStatus pl_pass_order(PlGraph *f, int32_t *removed) {
  int32_t *order = malloc(((size_t)f->nnodes + 1) * sizeof *order), n = 0;
  uint8_t *read = calloc((size_t)f->nvals + 1, 1);
  PlStatus s = order && read ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  *removed = 0;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) read[f->nodes[i].in[k]] = 1;
  bool moved = false;
  for (int32_t i = 0, end; i < f->nnodes && s == PL_OK; i = end) {
    const PlGNode *a = &f->nodes[i];
    for (end = i + 1; end < f->nnodes && a->stage && a->origin >= 0; end++)
      if (f->nodes[end].stage != a->stage || f->nodes[end].origin != a->origin) break;
    for (int pass = 0; pass < 2; pass++)
      for (int32_t j = i; j < end; j++) {
        if (goes_first(f, j, i, read) != (pass == 0)) continue;
        moved |= n != j;
        order[n++] = j;
      }
  }
  if (s == PL_OK && moved) s = pl_graph_compact(f, order);
  free(order);
  free(read);
  return s;
}
