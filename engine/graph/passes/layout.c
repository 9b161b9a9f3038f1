/* SPDX-License-Identifier: MIT
 * Layout: kernels that want row-major inputs get them from nodes of their own, which the planner sees, instead of copies
 * that the engine would make on the way. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/graph/passes/pass.h"
#include "engine/ops/names.h"

typedef struct Layout {
  PlGraph *f;
  int32_t *order, n;
} Layout;

static PlStatus dense(Layout *l, int32_t i, int32_t k) {
  PlGraph *f = l->f;
  PlGVal v = f->nodes[i].in[k];
  PlDesc d = {.dtype = f->vals[v].dtype};
  int32_t node;
  char name[160];
  pl_desc_set(&d, (PlDtype)f->vals[v].dtype, f->vals[v].ndim, f->vals[v].dims);
  snprintf(name, sizeof name, "%.140s_dense", f->nodes[i].name);
  const char *kept = pl_graph_string(f, name);
  if (!kept) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  f->stage = f->nodes[i].stage;
  f->origin = f->nodes[i].origin;
  f->emit_name = kept;
  f->emit_count = k;
  PlStatus s = pl_graph_node(f, &pl_op_clone, 1, &v, NULL, &d, 0, &node);
  f->stage = 0;
  f->origin = -1;
  f->emit_name = NULL;
  PL_TRY(s);
  f->nodes[node].flops = (double)f->vals[v].numel;
  f->nodes[i].in[k] = f->nodes[node].first;
  l->order[l->n++] = node;
  return PL_OK;
}

PlStatus pl_pass_layout(PlGraph *f, int32_t *removed) {
  size_t most = (size_t)f->nnodes + 1;
  int32_t nnodes = f->nnodes;
  for (int32_t i = 0; i < nnodes; i++) most += (size_t)f->nodes[i].nin;
  Layout l = {.f = f, .order = malloc(most * sizeof *l.order)};
  *removed = 0;
  if (!l.order) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < nnodes && s == PL_OK; i++) {
    for (int32_t k = pl_gnode_written(&f->nodes[i]); k < f->nodes[i].nin && s == PL_OK; k++) {
      PlGVal v = f->nodes[i].in[k];
      const PlOp *op = f->nodes[i].op;
      if ((op->flags & PL_F_REPEATED) && k >= op->nin - op->nopt) continue; /* seldom more than one element */
      if ((op->flags & PL_F_STRIDED) && k == 0 && v >= 0 && f->vals[v].device == PL_CPU) continue;
      if ((f->nodes[i].op->flags & PL_F_CONTIGUOUS) && !(f->nodes[i].flags & PL_FN_VIEW) && v >= 0 && !f->vals[v].contiguous)
        s = dense(&l, i, k);
    }
    l.order[l.n++] = i;
  }
  if (s == PL_OK && f->nnodes > nnodes) s = pl_graph_compact(f, l.order);
  free(l.order);
  return s;
}
