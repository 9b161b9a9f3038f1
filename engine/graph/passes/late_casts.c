/* SPDX-License-Identifier: MIT
 * Late: gradients of parameters that are cast from a half to f32 between pointwise nodes of activations are cast behind those: such a
 * cast, of other sizes, would part them into two groups (fuse.h). */
#include <stdlib.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

static bool waits(const PlGraph *f, const PlGNode *n, const uint8_t *written) {
  if (n->op != &pl_op_cast || !n->stage || !pl_gnode_pure(n) || n->nafter || n->nin != 1 || n->nout != 1 || n->in[0] < 0) return false;
  const PlGValue *x = &f->vals[n->in[0]], *y = &f->vals[n->first];
  return pl_is_half((PlDtype)x->dtype) && y->dtype == PL_F32 && x->kind == PL_FV_NODE && !written[x->store] && !(n->flags & PL_FN_VIEW);
}

/* to[i]: before which node i goes, which is the first that reads it at the latest; -1: it stays, as nodes do that others wait for by name. */
static bool choose(const PlGraph *f, const uint8_t *written, int32_t *to) {
  bool any = false;
  for (int32_t i = f->nnodes - 1, other = f->nnodes; i >= 0; i--) { /* other: the next node that is not pointwise */
    const PlGNode *n = &f->nodes[i];
    to[i] = waits(f, n, written) ? other : -1;
    any = any || to[i] >= 0;
    if (n->op->cls != PL_POINTWISE && !(n->flags & PL_FN_VIEW)) other = i;
  }
  for (int32_t i = f->nnodes - 1; i >= 0 && any; i--) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < n->nafter; k++) to[n->after[k]] = -1;
    for (int32_t k = 0; k < n->nin; k++) {
      const int32_t by = n->in[k] >= 0 && f->vals[n->in[k]].kind == PL_FV_NODE ? f->vals[n->in[k]].node : -1;
      if (by >= 0 && to[by] > i) to[by] = i;
    }
  }
  return any;
}

PlStatus pl_pass_late(PlGraph *f, int32_t *removed) {
  const size_t n = (size_t)f->nnodes + 1;
  int32_t *to = malloc(n * sizeof *to), *order = malloc(n * sizeof *order), at = 0;
  uint8_t *written = calloc((size_t)f->nstores + 1, 1);
  PlStatus s = to && order && written ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  *removed = 0;
  if (s == PL_OK) pl_graph_written(f, written);
  if (s == PL_OK && choose(f, written, to)) {
    int32_t *next = malloc(n * sizeof *next), *first = malloc((n + 1) * sizeof *first); /* casts that go before a node, in order */
    s = next && first ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
    for (int32_t i = 0; i <= f->nnodes && s == PL_OK; i++) first[i] = -1;
    for (int32_t i = f->nnodes - 1; i >= 0 && s == PL_OK; i--)
      if (to[i] >= 0) next[i] = first[to[i]], first[to[i]] = i;
    for (int32_t i = 0; i <= f->nnodes && s == PL_OK; i++) {
      for (int32_t c = first[i]; c >= 0; c = next[c]) order[at++] = c;
      if (i < f->nnodes && to[i] < 0) order[at++] = i;
    }
    if (s == PL_OK) s = pl_graph_compact(f, order);
    free(next);
    free(first);
  }
  free(to);
  free(order);
  free(written);
  return s;
}
