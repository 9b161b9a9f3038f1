/* SPDX-License-Identifier: MIT
 * A traced function that turns requires_grad of tensors from outside off and on again, as a step of a GAN does: what it computes from
 * one that rests has no part in the gradients of its results, though the graph's own gradient pass knows tensors by their memory. So
 * a resting one is another value there, of a handle that has no history. */
#include <stdlib.h>

#include "engine/call/thread_state.h"
#include "engine/grad/node.h"
#include "engine/graph/trace/symbolic.h"

/* A handle on t's memory with the histories of other keys. */
static PlStatus resting(PlTensor **out, PlTensor *t) {
  PL_TRY(pl_tensor_alias(out, t));
  (*out)->a.weak = t->a.weak;
  PlStatus s = PL_OK;
  PlEntry first = {.next = t->more, .node = t->node, .slot = t->slot};
  for (const PlEntry *e = &first; e && e->node && s == PL_OK; e = e->next)
    if (e->node->key && !e->node->key->is_ambient && e->node->key != pl_state.holder) s = pl_entry_set(*out, e->node, e->slot);
  if (s != PL_OK) pl_tensor_release(*out);
  return s;
}

static PlGSwitch *switch_of(const PlGraph *f, const PlTensor *t) {
  for (int32_t i = 0; i < f->nswitches; i++)
    if (f->switches[i].t == t) return &f->switches[i];
  return NULL;
}

/* Did the function make t itself, and its leaf, if it has one? Each call makes another, so that nothing is turned for the next. */
static bool made_here(const PlGraph *f, const PlTensor *t) {
  if (t->storage->stamp != PL_CLOCK_TRACE) return false;
  return t->node ? t->node->seq > f->began : t->boxes == 0; /* the latter: nobody has asked for a gradient of it */
}

PlStatus pl_graph_switches(PlGraph *f, PlTensor *t) {
  if (!f->record || f->closed || t->a.symbolic || made_here(f, t)) return PL_OK;
  if (switch_of(f, t)) return PL_OK;
  const bool was = pl_tensor_requires_grad(t);
  PlGSwitch *more = realloc(f->switches, ((size_t)f->nswitches + 1) * sizeof *more);
  if (!more) PL_FAIL(PL_ERR_OOM, "out of memory for a trace");
  f->switches = more;
  f->switches[f->nswitches++] = (PlGSwitch){.t = pl_retain(t), .was = was};
  for (PlGVal v = 0; v < f->nvals && !was; v++) { /* as which it was captured until now */
    if (f->vals[v].kind != PL_FV_CAPTURE || f->vals[v].real != t) continue;
    PlTensor *alias;
    PL_TRY(resting(&alias, t));
    pl_tensor_release(t);
    f->vals[v].real = alias;
  }
  return PL_OK;
}

PlStatus pl_graph_switched(const PlGraph *f, PlTensor *t, PlTensor **out) {
  if (PL_LIKELY(f->nswitches == 0) || !switch_of(f, t) || pl_tensor_requires_grad(t)) {
    *out = pl_retain(t);
    return PL_OK;
  }
  return resting(out, t);
}

bool pl_graph_rests(const PlGraph *f, const PlTensor *t) { return pl_leaf_rests(t) && !switch_of(f, t); }

void pl_graph_switches_end(PlGraph *f) {
  for (int32_t i = 0; i < f->nswitches; i++) f->switches[i].now = pl_tensor_requires_grad(f->switches[i].t);
}

/* What cannot be turned back was computed in the function: then it is no leaf any more, whatever it was. */
void pl_graph_switches_back(const PlGraph *f) {
  for (int32_t i = 0; i < f->nswitches; i++)
    if (pl_tensor_requires_grad(f->switches[i].t) != f->switches[i].was) (void)pl_requires_grad(f->switches[i].t, f->switches[i].was);
}

PlStatus pl_graph_switches_wake(const PlGraph *f, bool **woken) {
  PlStatus s = PL_OK;
  if (!(*woken = calloc((size_t)f->nswitches + 1, sizeof **woken))) PL_FAIL(PL_ERR_OOM, "jit: out of memory");
  for (int32_t i = 0; i < f->nswitches && s == PL_OK; i++) {
    (*woken)[i] = pl_leaf_rests(f->switches[i].t);
    if ((*woken)[i]) s = pl_requires_grad(f->switches[i].t, true);
  }
  return s;
}

PlStatus pl_graph_switches_rest(const PlGraph *f, bool *woken) {
  PlStatus s = PL_OK;
  for (int32_t i = 0; i < f->nswitches && woken; i++) {
    const PlStatus mine = woken[i] ? pl_requires_grad(f->switches[i].t, false) : PL_OK;
    if (s == PL_OK) s = mine;
  }
  free(woken);
  return s;
}

bool pl_graph_switches_same(const PlGraph *f) {
  for (int32_t i = 0; i < f->nswitches; i++) {
    const PlGSwitch *s = &f->switches[i];
    if (s->was != s->now || s->was != pl_tensor_requires_grad(s->t)) return false;
  }
  return true;
}
