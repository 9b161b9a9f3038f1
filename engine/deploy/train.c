/* SPDX-License-Identifier: MIT
 * Steps of models that train: see perilune_model.h. An optimizer is a node that writes; its numbers are its attributes. */
#include <math.h>
#include <string.h>

#include "engine/call/call.h"
#include "engine/deploy/model.h"
#include "engine/ops/names.h"
#include "kernels/optim.h"

static PlStatus must_train(const char *who, const perilune_model *m) {
  PL_TRY(pl_model_given(who, "the model", m));
  if (!m->trains) PL_FAIL(PL_ERR_STATE, "%s: this model has no optimizer: it writes into none of its weights", who);
  return PL_OK;
}

/* The optimizers of the model at other sizes have the numbers of those at its own, which count. */
static PlStatus same_steps(const PlSavedGraph *from, const PlSavedGraph *to) {
  if (from == to) return PL_OK;
  for (int64_t k = 0; k < from->nnodes && k < to->nnodes; k++) {
    if (from->nodes[k] <= 0 || to->nodes[k] <= 0) continue;
    const PlGNode *n = &from->graph->nodes[from->nodes[k] - 1];
    if (pl_graph_is_step(n)) PL_TRY(pl_graph_step_put(to->graph, to->nodes[k] - 1, n->attrs));
  }
  return PL_OK;
}

typedef struct Ran {
  const PlSavedGraph *from;
  const PlModelAt *at;
} Ran;

/* Had the node that node i of the model stands for at these sizes run, when the newest run failed? */
static bool ran(void *ud, int32_t i) {
  const Ran *r = ud;
  for (int64_t k = 0; k < r->from->nnodes && k < r->at->saved.nnodes; k++)
    if (r->from->nodes[k] == i + 1 && r->at->saved.nodes[k] > 0)
      return pl_exec_ran(r->at->exec, r->at->saved.graph->nodes[r->at->saved.nodes[k] - 1].attrs);
  return false;
}

/* A step at the sizes that were set, under the lock. */
static PlStatus step(perilune_model *m, int32_t threads, const void *const *in, void *const *out) {
  PlModelAt *at;
  PlGraphSteps *counts;
  bool ended = false;
  PL_TRY(pl_model_find(m, m->step_value, &at));
  pl_exec_forget(at->exec);
  PL_TRY(pl_graph_steps_begin(&counts, m->base->saved.graph));
  PlStatus s = same_steps(&m->base->saved, &at->saved);
  if (s == PL_OK) s = pl_model_execute(m, at, threads, in, out, &ended);
  pl_graph_steps_end(counts, ended ? NULL : ran, &(Ran){&m->base->saved, at});
  return s;
}

perilune_status perilune_model_step(perilune_model *m, int32_t threads, const void *const *in, int32_t nin, void *const *out,
                                    int32_t nout) {
  PL_TRY(must_train("perilune_model_step", m));
  PL_TRY(pl_model_counts(m, nin, nout));
  if (nin > 0) PL_TRY(pl_model_given("perilune_model_step", "in", (const void *)in));
  if (nout > 0) PL_TRY(pl_model_given("perilune_model_step", "out", (const void *)out));
  pthread_mutex_lock(&m->lock);
  PlStatus s = step(m, threads, in, out);
  pthread_mutex_unlock(&m->lock);
  return s;
}

perilune_status perilune_model_set_size(perilune_model *m, const char *name, int64_t value) {
  PL_TRY(must_train("perilune_model_set_size", m));
  PL_TRY(pl_model_given("perilune_model_set_size", "name", name));
  const int32_t k = pl_model_size_find(m, name);
  if (k < 0) PL_FAIL(PL_ERR_ARG, "perilune_model_set_size: the model has no free size '%s'", name);
  PL_TRY(pl_model_size_check(m, k, value));
  pthread_mutex_lock(&m->lock);
  m->step_value[k] = value;
  pthread_mutex_unlock(&m->lock);
  return PL_OK;
}

static PlStatus info_at(perilune_model *m, const char *who, bool output, int32_t i, perilune_tensor_info *out) {
  PlModelAt *at;
  const PlGValue *v;
  PL_TRY(must_train(who, m));
  PL_TRY(pl_model_given(who, "out", out));
  pthread_mutex_lock(&m->lock);
  PlStatus s = pl_model_find(m, m->step_value, &at);
  if (s == PL_OK) s = output ? pl_model_output_value(&at->saved, i, &v) : pl_model_input_value(&at->saved, i, &v);
  if (s == PL_OK) *out = pl_model_info(v, output ? m->base->saved.names[i] : m->inputs[i]);
  pthread_mutex_unlock(&m->lock);
  return s;
}

perilune_status perilune_model_step_input(perilune_model *m, int32_t i, perilune_tensor_info *out) {
  return info_at(m, "perilune_model_step_input", false, i, out);
}

perilune_status perilune_model_step_output(perilune_model *m, int32_t i, perilune_tensor_info *out) {
  return info_at(m, "perilune_model_step_output", true, i, out);
}

/* put: else it is only asked whether all would take it. */
static PlStatus set(const perilune_model *m, const char *name, double value, bool put) {
  const PlGraph *f = m->base->saved.graph;
  bool any = false;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const int k = pl_graph_step_attr(&f->nodes[i], name);
    if (k < 0) continue;
    const int rule = strcmp(name, "step") == 0 ? pl_graph_step_attr(&f->nodes[i], "rule") : -1;
    if (rule >= 0 && plk_optim_carries(pl_attr_i(f->nodes[i].attrs, rule)))
      PL_FAIL(PL_ERR_ARG,
              "perilune_model_set: %s (%s) keeps more of its steps than their count, which would stay as it is; load the model again",
              f->nodes[i].name, f->nodes[i].op->name);
    PlAttrs now;
    memcpy(&now, f->nodes[i].attrs, pl_attrs_size(f->nodes[i].attrs));
    const PlAttrType type = f->nodes[i].op->attrs[k].type;
    if (type == PL_A_FLOAT) now.v[k].f = value;
    else if (type == PL_A_INT && value == floor(value) && fabs(value) < 9e15)
      now.v[k].i = (int64_t)value - (strcmp(name, "step") == 0 ? pl_graph_steps_beside(f, i, true) : 0);
    else PL_FAIL(PL_ERR_ARG, "perilune_model_set: %s does not take %g", name, value);
    PL_TRY(put ? pl_graph_step_put(f, i, &now) : pl_graph_node_takes(f, i, &now));
    any = true;
  }
  if (!any) PL_FAIL(PL_ERR_ARG, "perilune_model_set: no optimizer of the model has a number '%s'", name);
  return PL_OK;
}

perilune_status perilune_model_set(perilune_model *m, const char *name, double value) {
  PL_TRY(must_train("perilune_model_set", m));
  PL_TRY(pl_model_given("perilune_model_set", "name", name));
  pthread_mutex_lock(&m->lock);
  PlStatus s = set(m, name, value, false);
  if (s == PL_OK) s = set(m, name, value, true);
  pthread_mutex_unlock(&m->lock);
  return s;
}

perilune_status perilune_model_get(perilune_model *m, const char *name, double *out) {
  PL_TRY(must_train("perilune_model_get", m));
  PL_TRY(pl_model_given("perilune_model_get", "name", name));
  PL_TRY(pl_model_given("perilune_model_get", "out", out));
  const PlGraph *f = m->base->saved.graph;
  PlStatus s = PL_ERR_ARG;
  pthread_mutex_lock(&m->lock);
  for (int32_t i = 0; i < f->nnodes && s != PL_OK; i++) {
    const int k = pl_graph_step_attr(&f->nodes[i], name);
    if (k < 0) continue;
    const PlAttrType type = f->nodes[i].op->attrs[k].type;
    if (type != PL_A_FLOAT && type != PL_A_INT) continue;
    *out = type == PL_A_FLOAT ? pl_attr_f(f->nodes[i].attrs, k) : (double)pl_attr_i(f->nodes[i].attrs, k);
    if (strcmp(name, "step") == 0) *out += pl_graph_steps_beside(f, i, true);
    s = PL_OK;
  }
  pthread_mutex_unlock(&m->lock);
  if (s != PL_OK) PL_FAIL(s, "perilune_model_get: no optimizer of the model has a number '%s'", name);
  return PL_OK;
}

perilune_status perilune_model_seed(perilune_model *m, uint64_t seed) {
  PL_TRY(pl_model_given("perilune_model_seed", "the model", m));
  pthread_mutex_lock(&m->lock);
  m->draws = (PlModelDraws){.seed = seed, .seeded = true};
  pthread_mutex_unlock(&m->lock);
  return PL_OK;
}

/* What schedule-free optimizers step in nodes of the graph, to the averages or back. Nothing is moved twice: a node's flag says where
 * its parameters are. */
static PlStatus average_node(const PlGraph *f, int32_t i, bool on) {
  const PlGNode *n = &f->nodes[i];
  PlAttrs now, move;
  memcpy(&now, n->attrs, pl_attrs_size(n->attrs));
  if (((pl_attr_i(&now, PLK_OPTIM_FLAGS) & PLK_OPTIM_AVERAGED) != 0) == on) return PL_OK;
  const int k = (int)pl_attr_i(&now, PLK_OPTIM_K);
  double part; /* of the average: the first number of both rules */
  memcpy(&part, pl_attr_list(&now, PLK_OPTIM_NUMBERS), sizeof part);
  part = on ? 1 - 1 / part : 1 - part;
  pl_attrs_init(&pl_op_optimizer_step, &move);
  pl_attrs_int(&move, PLK_OPTIM_K, 3);
  pl_attrs_int(&move, PLK_OPTIM_RULE, PLK_OPTIM_SCHEDULE_FREE_MOVE);
  int64_t bits;
  memcpy(&bits, &part, sizeof bits);
  PL_TRY(pl_attrs_list(&move, PLK_OPTIM_NUMBERS, 1, &bits));
  PlTensor **list, *same = NULL;
  void *room;
  PL_TRY(plk_scratch((size_t)(n->nin / k) * 3 * sizeof *list, &room));
  list = room;
  for (int g = 0; g < n->nin / k; g++) {
    list[3 * g] = f->vals[n->in[g * k]].real;
    list[3 * g + 1] = list[3 * g + 2] = f->vals[n->in[g * k + k - 1]].real; /* z is the last column of both */
  }
  PlStatus s = pl_apply(&pl_op_optimizer_step, list, n->nin / k * 3, &move, &same);
  pl_tensor_release(same);
  plk_scratch_free(room);
  PL_TRY(s);
  now.v[PLK_OPTIM_FLAGS].i ^= PLK_OPTIM_AVERAGED;
  return pl_graph_step_put(f, i, &now);
}

static bool has_averages(const PlGNode *n) {
  const int rule = pl_graph_step_attr(n, "rule");
  return rule >= 0 && plk_optim_schedule_free(pl_attr_i(n->attrs, rule));
}

perilune_status perilune_model_average(perilune_model *m, int32_t on) {
  PL_TRY(must_train("perilune_model_average", m));
  const PlGraph *f = m->base->saved.graph;
  int32_t found = 0;
  for (int32_t i = 0; i < f->nnodes; i++) found += has_averages(&f->nodes[i]);
  if (found == 0)
    PL_FAIL(PL_ERR_UNSUPPORTED, "perilune_model_average: the model's optimizer keeps no averages; that of AdamWScheduleFree or "
                                "SGDScheduleFree does");
  PlStatus s = PL_OK;
  pthread_mutex_lock(&m->lock);
  for (int32_t i = 0; i < f->nnodes && s == PL_OK; i++)
    if (has_averages(&f->nodes[i])) s = average_node(f, i, on != 0);
  pthread_mutex_unlock(&m->lock);
  return s;
}
