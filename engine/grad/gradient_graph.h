/* SPDX-License-Identifier: MIT
 * Backward graphs: what gradient makers emit, how it is optimized, split, cached and run. */
#ifndef PL_ENGINE_GRAD_GRADIENT_GRAPH_H
#define PL_ENGINE_GRAD_GRADIENT_GRAPH_H

#include "engine/tensor/tensor.h"

typedef struct PlGNode {
  const PlOp *op;
  PlAttrs *attrs; /* compact copy, or NULL for the defaults */
  int nin, nout;
  PlVal first; /* outputs are values first … first+nout-1 */
  PlVal *in;
} PlGNode;

/* Values 0 … ninputs-1 are the inputs; a value with a constant is produced by no node. */
typedef struct PlGraph {
  int ninputs, nvals, nnodes, nresults;
  int cap_vals, cap_nodes;
  PlTensor **consts; /* per value, NULL: not a constant */
  PlGNode *nodes;
  PlVal *results;
  int32_t *last; /* per value: the last node that reads it, -1: none; made by pl_graph_finish */
} PlGraph;

PlStatus pl_graph_new(PlGraph **out, int ninputs);
void pl_graph_free(PlGraph *g);
PlStatus pl_graph_add(PlGraph *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *first);
PlStatus pl_graph_const(PlGraph *g, PlTensor *t, PlVal *out); /* retains t */
PlStatus pl_graph_results(PlGraph *g, int n, const PlVal *v);
PlStatus pl_graph_finish(PlGraph *g);
/* Runs the graph through pl_apply, so recording keys see its ops. out[i] is owned by the caller. */
PlStatus pl_graph_run(const PlGraph *g, PlTensor *const *in, PlTensor **out);
/* need[nvals]: the values, inputs first, that the wanted results depend on. */
void pl_graph_needed(const PlGraph *g, const bool *wants, bool *need);
/* Computes the wanted results alone, the others are NULL; inputs that are not needed may be NULL. NULL, NULL: all. */
PlStatus pl_graph_run_some(const PlGraph *g, PlTensor *const *in, const bool *need, const bool *wants, PlTensor **out);
/* Merges equal pure nodes and drops nodes that no result needs. */
PlStatus pl_graph_optimize(PlGraph **g);
/* Copies node i of `from` with its inputs renamed by map, which then names its outputs, too. */
PlStatus pl_graph_copy_node(PlGraph *to, const PlGraph *from, int i, PlVal *map);
PlStatus pl_graph_copy_consts(PlGraph *to, const PlGraph *from, PlVal *map, const bool *need_or_null);
/* The same inputs give the same outputs, and nothing else happens. */
bool pl_op_is_pure(const PlOp *op);
/* One line a node: %3 = mul(%0, %2)   … returns a malloc'ed text, NULL when out of memory. */
char *pl_graph_text(const PlGraph *g);

/* The gradient of one op call in executable form. */
typedef struct PlBackward {
  uint32_t refs;
  int nin, nout;
  PlGraph *precomp;  /* over all inputs, then all outputs; NULL: nothing to do in forward */
  PlGraph *backward; /* over [precomp results…, what `save` names of inputs | outputs | dys] */
  uint8_t *save;     /* nin + 2 nout */
  uint8_t *has_grad; /* nin: which inputs get a gradient, in order of the graph's results */
} PlBackward;

void pl_backward_graph_release(PlBackward *b);
/* From the op's gradient maker, through the cache. *out is yours (release it), NULL when no
 * wanted input gets a gradient. polymorphic: never look at sizes or at equal shapes. */
PlStatus pl_backward_graph_get(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out_tensors,
                               const bool *want, PlBackward **out);
/* The same without tensors and cache, for inspection: descriptions instead, dy_given[nout]. */
typedef struct PlMakeArgs {
  const PlOp *op;
  int nin;
  const PlArray *const *in;
  const PlAttrs *attrs;
  const PlDesc *outd;
  const bool *want;
  const bool *dy_given;
  const bool *same;
} PlMakeArgs;
/* The description of a call. pl_make_args_end when it succeeded. */
typedef struct PlMakeRoom {
  PlMakeArgs args;
  const PlArray **arr, *few[PL_MAX_IN];
  bool given[PL_MAX_OUT];
  PlDesc outd[PL_MAX_OUT];
} PlMakeRoom;
PlStatus pl_make_args(PlMakeRoom *r, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor *const *out,
                      const bool *want, const bool *same);
void pl_make_args_end(PlMakeRoom *r);
PlStatus pl_backward_graph_make(const PlMakeArgs *a, PlBackward **out, PlGraph **unsplit_or_null);
/* The whole, unsplit gradient over [inputs | outputs | dys]; has_grad[nin]: whose gradients are its results. */
PlStatus pl_gradient_graph_make(const PlMakeArgs *a, PlGraph **out, uint8_t *has_grad);
/* The split of a whole gradient graph of the call that a describes, see docs/design/backward-split.md. */
PlStatus pl_backward_graph_split(const PlGraph *g, const PlMakeArgs *a, PlBackward *b);
/* false: everything stays in backward, to measure what the split saves. Returns what it was; clears the cache. */
bool pl_backward_split_enable(bool on);
void pl_backward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries);
void pl_backward_cache_clear(void);
void pl_backward_cache_end(void); /* frees it all: this thread ends */

#endif
