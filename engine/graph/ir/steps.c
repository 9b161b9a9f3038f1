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
static PlStatus count_carried(const PlGraph *f, int32_t i, int32_t before, PlAttrs *now) {
  double numbers[PLK_OPTIM_MOST], from[PLK_OPTIM_MOST];
  const PlAttrs *was = f->nodes[before].attrs;
  int64_t *list = now->pool + now->v[PLK_OPTIM_NUMBERS].list.at;
  const size_t n = (size_t)pl_attr_n(now, PLK_OPTIM_NUMBERS);
  if (n != (size_t)pl_attr_n(was, PLK_OPTIM_NUMBERS) || n > PLK_OPTIM_MOST)
    PL_FAIL(PL_ERR_STATE, "%s (%s): steps of one optimizer with different numbers", f->nodes[i].name, f->nodes[i].op->name);
  memcpy(numbers, list, n * sizeof *list);
  memcpy(from, pl_attr_list(was, PLK_OPTIM_NUMBERS), n * sizeof *list);
  plk_optim_count(pl_attr_i(now, PLK_OPTIM_RULE), pl_attr_f(now, PLK_OPTIM_LR), pl_attr_i(was, PLK_OPTIM_STEP), from, numbers);
  memcpy(list, numbers, n * sizeof *list);
  return PL_OK;
}

static bool carries(const PlGNode *n) {
  const int rule = pl_graph_step_attr(n, "rule");
  return rule >= 0 && plk_optim_carries(pl_attr_i(n->attrs, rule));
}

/* Node i as it is in the next run, which is steps of its optimizer further. */
static PlStatus count_node(const PlGraph *f, int32_t i, int32_t steps, int32_t before) {
  PlAttrs now;
  memcpy(&now, f->nodes[i].attrs, pl_attrs_size(f->nodes[i].attrs));
  if (carries(&f->nodes[i])) PL_TRY(count_carried(f, i, before, &now));
  now.v[pl_graph_step_attr(&f->nodes[i], "step")].i += steps;
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

/* ---- a run's steps ------------------------------------------------------------------------------------------ */

typedef struct Counted {
  int32_t node, steps, before; /* how many of its optimizer the run makes; the node that makes the step before this one's */
  int64_t step;                /* as they were before the run */
  double numbers[PLK_OPTIM_MOST];
} Counted;

struct PlGraphSteps {
  const PlGraph *f;
  int32_t n;
  Counted list[];
};

/* Number and carried numbers of c's node as they were before the run, or as node `like` has them. */
static void put_counts(const PlGraph *f, const Counted *c, const Counted *was, int32_t like) {
  PlAttrs *to = f->nodes[c->node].attrs;
  const PlAttrs *from = f->nodes[like].attrs;
  to->v[pl_graph_step_attr(&f->nodes[c->node], "step")].i = was ? was->step : step_of(&f->nodes[like]);
  if (!carries(&f->nodes[c->node])) return;
  const size_t n = (size_t)pl_attr_n(to, PLK_OPTIM_NUMBERS) * sizeof(int64_t);
  memmove(to->pool + to->v[PLK_OPTIM_NUMBERS].list.at, was ? (const void *)was->numbers : pl_attr_list(from, PLK_OPTIM_NUMBERS), n);
}

static void note(const PlGraph *f, Counted *c, int32_t i) {
  *c = (Counted){.node = i, .steps = 1 + pl_graph_steps_beside(f, i, false) + pl_graph_steps_beside(f, i, true)};
  c->before = step_before(f, i);
  c->step = step_of(&f->nodes[i]);
  const size_t n = carries(&f->nodes[i]) ? (size_t)pl_attr_n(f->nodes[i].attrs, PLK_OPTIM_NUMBERS) : 0;
  if (n <= PLK_OPTIM_MOST && n > 0) memcpy(c->numbers, pl_attr_list(f->nodes[i].attrs, PLK_OPTIM_NUMBERS), n * sizeof(int64_t));
}

PlStatus pl_graph_steps_begin(PlGraphSteps **out, const PlGraph *f) {
  int32_t n = 0;
  *out = NULL;
  PL_TRY(check_averages(f));
  for (int32_t i = 0; i < f->nnodes; i++) n += pl_graph_step_attr(&f->nodes[i], "step") >= 0;
  PlGraphSteps *s = malloc(sizeof *s + (size_t)n * sizeof *s->list);
  if (!s) PL_FAIL(PL_ERR_OOM, "out of memory to count a graph's steps");
  *s = (PlGraphSteps){.f = f};
  for (int32_t i = 0; i < f->nnodes; i++) /* all by the numbers as they are before any moves */
    if (pl_graph_step_attr(&f->nodes[i], "step") >= 0) note(f, &s->list[s->n++], i);
  for (int32_t k = 0; k < s->n; k++) {
    const PlStatus st = count_node(f, s->list[k].node, s->list[k].steps, s->list[k].before);
    if (st == PL_OK) continue;
    while (k-- > 0) put_counts(f, &s->list[k], &s->list[k], s->list[k].node);
    free(s);
    return st;
  }
  *out = s;
  return PL_OK;
}

/* Whose step of that number the run before was, of the optimizer of c's node. */
static const Counted *step_at(const PlGraphSteps *s, const Counted *c, int64_t step) {
  for (int32_t k = 0; k < s->n; k++)
    if (s->list[k].step == step && (&s->list[k] == c || steps_the_same(s->f, c->node, s->list[k].node))) return &s->list[k];
  return NULL;
}

/* How many of the optimizer's steps the run has made. */
static int32_t steps_made(const PlGraphSteps *s, const Counted *c, PlGraphRan *ran, void *ud) {
  int32_t made = ran(ud, c->node);
  for (int32_t k = 0; k < s->n; k++) {
    const Counted *o = &s->list[k];
    if (o != c && o->step != c->step && steps_the_same(s->f, c->node, o->node)) made += ran(ud, o->node);
  }
  return made;
}

void pl_graph_steps_end(PlGraphSteps *s, PlGraphRan *ran, void *ud) {
  if (!s) return;
  for (int32_t k = s->n; ran && k-- > 0;) { /* from the last step on: what it takes over is of an earlier one */
    const Counted *c = &s->list[k];
    const int32_t made = steps_made(s, c, ran, ud);
    if (made == c->steps) continue;
    const int64_t step = c->step + made; /* which the run before has made, or, if that is too far, this one */
    const Counted *was = step_at(s, c, step), *is = was ? NULL : step_at(s, c, step - c->steps);
    if (was || is) put_counts(s->f, c, was, is ? is->node : c->node);
  }
  free(s);
}
