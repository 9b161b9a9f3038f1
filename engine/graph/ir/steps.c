/* SPDX-License-Identifier: MIT
 * Graphs that train: the attributes of an optimizer's node are those of its newest step, and the next one counts on from there. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph/ir/graph.h"
#include "kernels/optim.h"

static int attr_of(const PlOp *op, const char *name) {
  for (int k = 0; k < op->nattr; k++)
    if (strcmp(op->attrs[k].name, name) == 0) return k;
  return -1;
}

bool pl_graph_is_step(const PlGNode *n) { return n->flags & PL_FN_MUTATES && n->attrs && attr_of(n->op, "lr") >= 0; }

int pl_graph_step_attr(const PlGNode *n, const char *name) { return pl_graph_is_step(n) ? attr_of(n->op, name) : -1; }

PlStatus pl_graph_step_put(const PlGraph *f, int32_t i, const PlAttrs *now) {
  const PlGNode *n = &f->nodes[i];
  PL_TRY(pl_graph_node_takes(f, i, now));
  memcpy(n->attrs, now, pl_attrs_size(n->attrs)); /* which a plan's nodes share */
  return PL_OK;
}

/* The store by which steps of one optimizer over the same parameters are told: that of the last state of a node's first parameter, or, where
 * the last column is computed in each step (Adafactor) or there is no state (SGD), of what the first one writes; -1: it steps nothing. */
static int32_t state_of(const PlGraph *f, const PlGNode *n) {
  const int k = pl_graph_step_attr(n, "k");
  const int64_t width = k < 0 ? 0 : pl_attr_i(n->attrs, k);
  if (width < 2 || width > n->nin || n->in[width - 1] < 0 || n->in[0] < 0) return -1;
  if (width == 2) return f->vals[n->in[0]].store;
  const int32_t last = f->vals[n->in[width - 1]].store;
  return f->vals[f->stores[last].first].kind != PL_FV_NODE ? last : f->vals[n->in[0]].store;
}

static bool steps_the_same(const PlGraph *f, int32_t i, int32_t j) {
  const PlGNode *n = &f->nodes[i], *m = &f->nodes[j];
  const int rule = pl_graph_step_attr(n, "rule");
  if (m->op != n->op || pl_graph_step_attr(m, "step") < 0) return false;
  if (rule >= 0 && pl_attr_i(m->attrs, rule) != pl_attr_i(n->attrs, rule)) return false;
  const int32_t of = state_of(f, n);
  return of >= 0 && state_of(f, m) == of;
}

static int64_t step_of(const PlGNode *n) { return pl_attr_i(n->attrs, pl_graph_step_attr(n, "step")); }

int32_t pl_graph_steps_beside(const PlGraph *f, int32_t i, bool after) {
  int32_t found = 0;
  if (pl_graph_step_attr(&f->nodes[i], "step") < 0) return 0;
  const int64_t mine = step_of(&f->nodes[i]);
  for (int32_t j = after ? i + 1 : 0; j < (after ? f->nnodes : i); j++)
    if (steps_the_same(f, i, j))
      found += after ? step_of(&f->nodes[j]) > mine : step_of(&f->nodes[j]) < mine; /* equal: two nodes of one step */
  return found;
}

/* The node that makes the step before that of node i in its next run: in the same run, or, of the first one, the last of the run before. */
static int32_t step_before(const PlGraph *f, int32_t i) {
  int32_t in_run = -1, last = i;
  for (int32_t j = 0; j < f->nnodes; j++) {
    if (j == i || !steps_the_same(f, i, j)) continue;
    const int64_t other = step_of(&f->nodes[j]);
    if (other < step_of(&f->nodes[i]) && (in_run < 0 || other > step_of(&f->nodes[in_run]))) in_run = j;
    if (other > step_of(&f->nodes[last])) last = j;
  }
  return in_run >= 0 ? in_run : last;
}

/* What node i's rule carries, from the attributes of the step before it, which the nodes before it in this run have by now: rates may have
 * been set in between. */
static PlStatus count_carried(const PlGraph *f, int32_t i, int by, int32_t steps, int32_t before, PlAttrs *now) {
  double numbers[PLK_OPTIM_MOST], from[PLK_OPTIM_MOST];
  const PlAttrs *was = f->nodes[before].attrs;
  const int64_t rule = pl_attr_i(now, PLK_OPTIM_RULE);
  int64_t *list = now->pool + now->v[PLK_OPTIM_NUMBERS].list.at;
  const size_t n = (size_t)pl_attr_n(now, PLK_OPTIM_NUMBERS);
  if (n != (size_t)pl_attr_n(was, PLK_OPTIM_NUMBERS) || n > PLK_OPTIM_MOST)
    PL_FAIL(PL_ERR_STATE, "%s (%s): steps of one optimizer with different numbers", f->nodes[i].name, f->nodes[i].op->name);
  memcpy(numbers, list, n * sizeof *list);
  memcpy(from, pl_attr_list(was, PLK_OPTIM_NUMBERS), n * sizeof *list);
  if (by > 0) plk_optim_count(rule, pl_attr_f(now, PLK_OPTIM_LR), pl_attr_i(was, PLK_OPTIM_STEP), from, numbers);
  else plk_optim_count_back(rule, steps, numbers);
  memcpy(list, numbers, n * sizeof *list);
  return PL_OK;
}

/* Node i as it is in the next run, which is steps of its optimizer further, or where it was before that. */
static PlStatus count_node(const PlGraph *f, int32_t i, int by, int32_t steps, int32_t before) {
  const int step = pl_graph_step_attr(&f->nodes[i], "step");
  PlAttrs now;
  memcpy(&now, f->nodes[i].attrs, pl_attrs_size(f->nodes[i].attrs));
  const int rule = pl_graph_step_attr(&f->nodes[i], "rule");
  if (rule >= 0 && plk_optim_carries(pl_attr_i(&now, rule))) PL_TRY(count_carried(f, i, by, steps, before, &now));
  if (step >= 0) now.v[step].i += by * steps;
  return pl_graph_step_put(f, i, &now);
}

/* Before any count moves. */
static PlStatus check_averages(const PlGraph *f) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    const int rule = pl_graph_step_attr(n, "rule");
    if (rule >= 0 && plk_optim_schedule_free(pl_attr_i(n->attrs, rule)) && pl_attr_i(n->attrs, PLK_OPTIM_FLAGS) & PLK_OPTIM_AVERAGED)
      PL_FAIL(PL_ERR_STATE,
              "%s (%s): the weights are the optimizer's averages, at which no step begins; perilune_model_average(model, 0) goes back",
              n->name, n->op->name);
  }
  return PL_OK;
}

PlStatus pl_graph_step_count(const PlGraph *f, int by) {
  if (by > 0) PL_TRY(check_averages(f));
  int32_t *steps = malloc(2 * ((size_t)f->nnodes + 1) * sizeof *steps);
  if (!steps) PL_FAIL(PL_ERR_OOM, "out of memory to count a graph's steps");
  int32_t *before = steps + f->nnodes; /* both by the numbers as they are before any moves */
  for (int32_t i = 0; i < f->nnodes; i++) {
    steps[i] = 1 + pl_graph_steps_beside(f, i, false) + pl_graph_steps_beside(f, i, true);
    before[i] = pl_graph_step_attr(&f->nodes[i], "step") >= 0 ? step_before(f, i) : i;
  }
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    if (pl_graph_step_attr(&f->nodes[i], "step") >= 0) s = count_node(f, i, by, steps[i], before[i]);
  free(steps);
  return s;
}
