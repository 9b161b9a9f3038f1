/* SPDX-License-Identifier: MIT
 * Forward mode: tangents beside values, computed as the ops run. A forward key is a key (node.h) whose entries lead to
 * nodes of kind PL_NODE_TANGENT, and those hold a tangent; recording an op on it means computing the tangents of the
 * outputs at once. See docs/design/forward-mode.md. */
#ifndef PL_ENGINE_GRAD_FORWARD_MODE_H
#define PL_ENGINE_GRAD_FORWARD_MODE_H

#include "engine/call/thread_state.h"
#include "engine/grad/gradient_graph.h"
#include "engine/grad/node.h"

/* How one kind of call turns tangents of its inputs into those of its outputs. */
typedef struct PlForward {
  uint32_t refs;
  int nin, nout;
  PlGradGraph *graph;       /* over [inputs | outputs | tangents | a zero like each output]; the results are the tangents that exist */
  uint8_t has[PL_MAX_OUT];  /* which outputs have one, in order of the results */
  uint8_t zero[PL_MAX_OUT]; /* which of the zeros are read */
} PlForward;

void pl_forward_graph_release(PlForward *g);
/* The gradient graph of the call, transposed; through a cache. want[i]: input i has a tangent. Yours: release it. NULL: no
 * output has one. */
PlStatus pl_forward_graph_get(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out, const bool *want,
                              PlForward **result);
void pl_forward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries);
void pl_forward_cache_clear(void);

/* While a forward key is open: a pointwise op, or one with a PlOp.dual, with its tangent in one pass, where it is plain enough
 * (forward_mode_pointwise.c). *done:
 * the call is made; else nothing has happened. */
PlStatus pl_forward_pointwise(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out, bool *done);
/* The same for an op with a kernel for its tangent, whose spare results (PlOp.spare) nobody will read: they are not made, where it can
 * do without. */
PlStatus pl_forward_spared(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out, bool *done);
void pl_forward_pointwise_clear(void); /* what it has compiled */
void pl_forward_pointwise_stats(int64_t *hits, int64_t *misses, int64_t *entries);
void pl_forward_pointwise_end(void);

/* ---- keys ---- */
PlStatus pl_forward_key_new(PlKey **out, int level);
/* t's tangent under k is v, of its shape and dtype, from now on. */
PlStatus pl_forward_attach(PlKey *k, PlTensor *t, PlTensor *v);
/* *out: t's tangent, borrowed; NULL: it has none, which means zero. Fails where an op without a rule made t. */
PlStatus pl_forward_tangent(const PlKey *k, PlTensor *t, PlTensor **out);
/* Does a forward key record now? */
bool pl_forward_runs(void);

/* ---- recording: called by record.c for keys that are forward ---- */
PlStatus pl_forward_record(PlKey *k, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
PlStatus pl_forward_rule(PlKey *k, PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable,
                         const PlRuleSaved *saved, const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx);

/* While tangents of k are computed only keys below it record, and those that are made meanwhile. */
typedef struct PlForwardPause {
  const PlKey *key;
  uint64_t born;
  PlModes was;
  bool changes;
} PlForwardPause;
PlForwardPause pl_forward_pause(const PlKey *k);
void pl_forward_resume(PlForwardPause p);
PlStatus pl_forward_set(PlKey *k, const char *name, PlTensor *y, PlTensor *tangent); /* takes tangent; NULL: nobody knows it */
/* A zero as large as t, in a few bytes. */
PlStatus pl_forward_zero(PlTensor **out, const PlTensor *t);

#endif
