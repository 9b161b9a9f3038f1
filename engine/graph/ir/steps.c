/* SPDX-License-Identifier: MIT
 * Graphs that train: the attributes of an optimizer's node are those of its newest step, and the next one counts on from there. */
#include <string.h>

#include "engine/graph/ir/graph.h"
#include "kernels/optim.h"

int pl_graph_step_attr(const PlGNode *n, const char *name) {
  if (!(n->flags & PL_FN_MUTATES) || !n->attrs) return -1;
  for (int k = 0; k < n->op->nattr; k++)
    if (strcmp(n->op->attrs[k].name, name) == 0) return k;
  return -1;
}

PlStatus pl_graph_step_put(const PlGraph *f, int32_t i, const PlAttrs *now) {
  const PlGNode *n = &f->nodes[i];
  PL_TRY(pl_graph_node_takes(f, i, now));
  memcpy(n->attrs, now, pl_attrs_size(n->attrs)); /* which a plan's nodes share */
  return PL_OK;
}

PlStatus pl_graph_step_count(const PlGraph *f, int by) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    const int step = pl_graph_step_attr(&f->nodes[i], "step"), first = pl_graph_step_attr(&f->nodes[i], "first");
    if (step < 0 && first < 0) continue;
    PlAttrs now;
    memcpy(&now, f->nodes[i].attrs, pl_attrs_size(f->nodes[i].attrs));
    const int rule = pl_graph_step_attr(&f->nodes[i], "rule");
    if (rule >= 0 && by > 0 && plk_optim_schedule_free(pl_attr_i(&now, rule)) && pl_attr_i(&now, PLK_OPTIM_FLAGS) & PLK_OPTIM_AVERAGED)
      PL_FAIL(PL_ERR_STATE,
              "%s (%s): the weights are the optimizer's averages, at which no step begins; perilune_model_average(model, 0) goes back",
              f->nodes[i].name, f->nodes[i].op->name);
    if (rule >= 0) {
      double numbers[PLK_OPTIM_MOST];
      int64_t *list = now.pool + now.v[PLK_OPTIM_NUMBERS].list.at;
      const size_t n = (size_t)pl_attr_n(&now, PLK_OPTIM_NUMBERS) * sizeof *list;
      memcpy(numbers, list, n);
      plk_optim_count(pl_attr_i(&now, rule), by, pl_attr_f(&now, PLK_OPTIM_LR), pl_attr_i(&now, step), numbers);
      memcpy(list, numbers, n);
    }
    if (step >= 0) now.v[step].i += by;
    if (first >= 0 && by > 0) now.v[first].i = 0;
    PL_TRY(pl_graph_step_put(f, i, &now));
  }
  return PL_OK;
}
