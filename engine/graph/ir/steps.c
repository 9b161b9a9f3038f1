/* SPDX-License-Identifier: MIT
 * Graphs that train: the attributes of an optimizer's node are those of its newest step, and the next one counts on from there. */
#include <stdlib.h>
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

/* The store of the last state of a node's first parameter; -1: it has none, and its steps are alike. */
static int32_t state_of(const PlGraph *f, const PlGNode *n) {
  const int k = pl_graph_step_attr(n, "k");
  const int64_t width = k < 0 ? 0 : pl_attr_i(n->attrs, k);
  return width > 2 && width <= n->nin && n->in[width - 1] >= 0 ? f->vals[n->in[width - 1]].store : -1;
}

int32_t pl_graph_steps_beside(const PlGraph *f, int32_t i, bool after) {
  const PlGNode *n = &f->nodes[i];
  const int32_t of = state_of(f, n);
  const int step = pl_graph_step_attr(n, "step");
  int32_t found = 0;
  for (int32_t j = after ? i + 1 : 0; of >= 0 && step >= 0 && j < (after ? f->nnodes : i); j++) {
    const PlGNode *m = &f->nodes[j];
    if (m->op != n->op || state_of(f, m) != of) continue;
    const int64_t mine = pl_attr_i(n->attrs, step), other = pl_attr_i(m->attrs, step);
    found += after ? other > mine : other < mine; /* equal: two nodes of one step */
  }
  return found;
}

/* Node i as it is in the next run, which is steps of its optimizer further, or where it was before that. */
static PlStatus count_node(const PlGraph *f, int32_t i, int by, int32_t steps) {
  const int step = pl_graph_step_attr(&f->nodes[i], "step"), first = pl_graph_step_attr(&f->nodes[i], "first");
  PlAttrs now;
  memcpy(&now, f->nodes[i].attrs, pl_attrs_size(f->nodes[i].attrs));
  const int rule = pl_graph_step_attr(&f->nodes[i], "rule");
  if (steps > 1 && rule >= 0 && plk_optim_carries(pl_attr_i(&now, rule)))
    PL_FAIL(PL_ERR_STATE, "%s (%s): an optimizer that carries numbers from step to step makes one step a run", f->nodes[i].name,
            f->nodes[i].op->name);
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
  if (step >= 0) now.v[step].i += by * steps;
  if (first >= 0 && by > 0) now.v[first].i = 0;
  return pl_graph_step_put(f, i, &now);
}

PlStatus pl_graph_step_count(const PlGraph *f, int by) {
  int32_t *steps = malloc(((size_t)f->nnodes + 1) * sizeof *steps); /* by the numbers as they are before any moves */
  if (!steps) PL_FAIL(PL_ERR_OOM, "out of memory to count a graph's steps");
  for (int32_t i = 0; i < f->nnodes; i++) steps[i] = 1 + pl_graph_steps_beside(f, i, false) + pl_graph_steps_beside(f, i, true);
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    if (pl_graph_step_attr(&f->nodes[i], "step") >= 0 || pl_graph_step_attr(&f->nodes[i], "first") >= 0) s = count_node(f, i, by, steps[i]);
  free(steps);
  return s;
}
