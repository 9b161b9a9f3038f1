/* SPDX-License-Identifier: MIT
 * Constants: nodes that read nothing but constants and give few elements are computed now, by the very kernels that would
 * compute them later. They are on the CPU: a number that only pointwise nodes read serves on a device, too. */
#include <stdlib.h>

#include "engine/call/thread_state.h"
#include "engine/graph/passes/pass.h"

enum { MOST = 64 }; /* elements of a result that is kept as a constant */

/* Does the node compute on a device whatever becomes of its 0-d inputs? */
static bool stays_on_device(const PlGraph *f, const PlGNode *n) {
  for (int32_t k = 0; n->op->cls == PL_POINTWISE && k < n->nin; k++)
    if (n->in[k] >= 0 && f->vals[n->in[k]].ndim && f->vals[n->in[k]].device != PL_CPU) return true;
  return false;
}

/* Is value v of a device a number that mixes there, wherever it or (at most `deep` times) a number made of it is read? */
static bool mixes(const PlGraph *f, PlGVal v, int deep) {
  if (f->vals[v].ndim) return false;
  for (int32_t o = 0; o < f->noutputs; o++)
    if (f->outputs[o] == v) return false;
  for (int32_t i = f->vals[v].node + 1; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t k = 0; k < n->nin; k++)
      if (n->in[k] == v && !stays_on_device(f, n) &&
          !(deep > 0 && n->op->cls == PL_POINTWISE && n->nout == 1 && mixes(f, n->first, deep - 1)))
        return false;
  }
  return true;
}

static bool foldable(const PlGraph *f, const PlGNode *n, const uint8_t *written) {
  if (!pl_gnode_pure(n) || n->op->flags & PL_F_MOVES || n->flags & (PL_FN_RECOMPUTED | PL_FN_VIEW) || n->nout != 1 || n->nin > PL_MAX_IN ||
      n->nafter)
    return false;
  const PlGValue *y = &f->vals[n->first];
  if (y->dtype == PL_NDTYPE || y->numel > MOST || written[y->store]) return false;
  if (n->nin == 0 && y->numel > 1) return false; /* a tensor of ones says more as it is */
  for (int32_t k = 0; k < n->nin; k++)
    if (n->in[k] >= 0 && f->vals[n->in[k]].kind != PL_FV_CONST) return false;
  return y->device == PL_CPU || mixes(f, n->first, 8);
}

static PlStatus fold(PlGraph *f, const PlGNode *n, PlGVal *out) {
  PlTensor *in[PL_MAX_IN], *y[PL_MAX_OUT];
  for (int32_t k = 0; k < n->nin; k++) in[k] = n->in[k] < 0 ? NULL : f->vals[n->in[k]].real;
  PL_TRY(pl_apply(n->op, in, n->nin, n->attrs, y));
  PlStatus s = pl_graph_const(f, y[0], out);
  pl_tensor_release(y[0]);
  return s;
}

static PlStatus fold_all(PlGraph *f, PlGVal *map, const uint8_t *written, int32_t *removed) {
  for (int32_t i = 0; i < f->nnodes; i++) {
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) f->nodes[i].in[k] = map[f->nodes[i].in[k]];
    if (!foldable(f, &f->nodes[i], written)) continue;
    PlGVal y;
    PL_TRY(fold(f, &f->nodes[i], &y));
    map[f->nodes[i].first] = y;
    map[y] = y;
    f->nodes[i].flags |= PL_FN_DEAD;
    ++*removed;
  }
  return PL_OK;
}

PlStatus pl_pass_fold(PlGraph *f, int32_t *removed) {
  size_t n = (size_t)f->nvals + (size_t)f->nnodes + 1; /* at most one constant a node */
  PlGVal *map = malloc(n * sizeof *map);
  uint8_t *written = calloc((size_t)f->nstores + 1, 1);
  PlStatus s = map && written ? PL_OK : pl_fail(PL_ERR_OOM, "out of memory to plan a graph");
  *removed = 0;
  if (s == PL_OK) {
    pl_graph_written(f, written);
    for (PlGVal v = 0; v < f->nvals; v++) map[v] = v;
    bool was = pl_grad_enable(false);
    PlGraph *trace = pl_state.trace;
    const uint8_t device = pl_state.device, autocast = pl_set_autocast(0); /* the graph's casts are nodes */
    struct PlCheckpoint *checkpoint = pl_set_checkpoint(NULL);             /* which would miss these ops when the plan is there */
    const PlWatch *watch = pl_set_watch(NULL);
    pl_set_trace(NULL);
    pl_state.device = PL_CPU;
    s = fold_all(f, map, written, removed);
    pl_state.device = device;
    pl_set_trace(trace);
    pl_set_watch(watch);
    pl_set_checkpoint(checkpoint);
    pl_set_autocast(autocast);
    pl_grad_enable(was);
    pl_graph_rewire(f, map);
    if (s == PL_OK && *removed) s = pl_graph_compact(f, NULL);
  }
  free(map);
  free(written);
  return s;
}
