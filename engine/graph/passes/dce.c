/* SPDX-License-Identifier: MIT
 * Dead code: nodes that no output needs. Writes into leaves and nodes that random streams count are kept: a draw that
 * is dropped would shift those behind it. */
#include <stdlib.h>

#include "engine/graph/passes/pass.h"

static bool has_effect(const PlGraph *f, const PlGNode *n) {
  if (n->draw >= 0 && !(n->flags & PL_FN_RECOMPUTED)) return true;
  for (int32_t o = 0; o < pl_gnode_written(n); o++)
    if (f->vals[f->stores[f->vals[n->first + o].store].first].kind != PL_FV_NODE) return true;
  return false;
}

PlStatus pl_pass_dce(PlGraph *f, int32_t *removed) {
  uint8_t *need = calloc((size_t)f->nvals + (size_t)f->nnodes + 1, 1), *order = need ? need + f->nvals : NULL;
  if (!need) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  for (int32_t o = 0; o < f->noutputs; o++) need[f->outputs[o]] = 1;
  *removed = 0;
  for (int32_t i = f->nnodes - 1; i >= 0; i--) {
    PlGNode *n = &f->nodes[i];
    bool live = order[i] || has_effect(f, n);
    for (int32_t o = 0; o < n->nout && !live; o++) live = need[n->first + o];
    if (n->flags & PL_FN_DEAD) live = false;
    if (!live) {
      *removed += !(n->flags & PL_FN_DEAD);
      n->flags |= PL_FN_DEAD;
      continue;
    }
    for (int32_t k = 0; k < n->nin; k++)
      if (n->in[k] >= 0) need[n->in[k]] = 1;
    for (int32_t k = 0; k < n->nafter; k++) order[n->after[k]] = 1;
  }
  free(need);
  return *removed ? pl_graph_compact(f, NULL) : PL_OK;
}
