/* SPDX-License-Identifier: MIT
 * Backward graphs: what gradient makers emit, how it is optimized, split, cached and run. */
#ifndef PL_ENGINE_GRAD_GRADIENT_GRAPH_H
#define PL_ENGINE_GRAD_GRADIENT_GRAPH_H

#include "engine/tensor/hooks.h"

struct PlGraph;

typedef struct PlGradNode {
  const PlOp *op;
  PlAttrs *attrs; /* compact copy, or NULL for the defaults */
  int nin, nout;
  PlVal first; /* outputs are values first … first+nout-1 */
  PlVal *in;
} PlGradNode;

/* Values 0 … ninputs-1 are the inputs; a value with a constant is produced by no node. */
typedef struct PlGradGraph {
  int ninputs, nvals, nnodes, nresults;
  int cap_vals, cap_nodes;
  PlTensor **consts; /* per value, NULL: not a constant */
  PlGradNode *nodes;
  PlVal *results;
  int32_t *last; /* per value: the last node that reads it, -1: none; made by pl_grad_graph_finish */
} PlGradGraph;

PlStatus pl_grad_graph_new(PlGradGraph **out, int ninputs);
void pl_grad_graph_free(PlGradGraph *g);
PlStatus pl_grad_graph_add(PlGradGraph *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *first);
PlStatus pl_grad_graph_const(PlGradGraph *g, PlTensor *t, PlVal *out); /* retains t */
PlStatus pl_grad_graph_results(PlGradGraph *g, int n, const PlVal *v);
PlStatus pl_grad_graph_finish(PlGradGraph *g);
/* Runs the graph through pl_apply, so recording keys see its ops. out[i] is owned by the caller. */
PlStatus pl_grad_graph_run(const PlGradGraph *g, PlTensor *const *in, PlTensor **out);
/* need[nvals]: the values, inputs first, that the wanted results depend on. */
void pl_grad_graph_needed(const PlGradGraph *g, const bool *wants, bool *need);
/* Computes the wanted results alone, the others are NULL; inputs that are not needed may be NULL. NULL, NULL: all. device: of what the
 * graph makes (zeros) where no input is on one: that of the gradients, which it need not read. */
PlStatus pl_grad_graph_run_some(const PlGradGraph *g, PlTensor *const *in, const bool *need, const bool *wants, uint8_t device,
                                PlTensor **out);
/* Merges equal pure nodes and drops nodes that no result needs. */
PlStatus pl_grad_graph_optimize(PlGradGraph **g);
/* Copies node i of `from` with its inputs renamed by map, which then names its outputs, too. */
PlStatus pl_grad_graph_copy_node(PlGradGraph *to, const PlGradGraph *from, int i, PlVal *map);
PlStatus pl_grad_graph_copy_consts(PlGradGraph *to, const PlGradGraph *from, PlVal *map, const bool *need_or_null);
/* Copies what the wanted values of a whole graph need. map: per value of f, of the new graph; PL_NONE: not there yet (a constant
 * or a node's). Values below 0 are none. PL_ERR_UNSUPPORTED: it writes or draws. */
PlStatus pl_grad_graph_from(PlGradGraph *to, const struct PlGraph *f, PlVal *map, int n, const int32_t *wanted, PlVal *out);
/* The same inputs give the same outputs, and nothing else happens. */
bool pl_op_is_pure(const PlOp *op);
/* One line a node: %3 = mul(%0, %2)   … returns a malloc'ed text, NULL when out of memory. */
char *pl_grad_graph_text(const PlGradGraph *g);

/* The gradient of one op call in executable form. */
typedef struct PlBackward {
  uint32_t refs;
  int nin, nout;
  PlGradGraph *precomp;  /* over all inputs, then all outputs; NULL: nothing to do in forward */
  PlGradGraph *backward; /* over [precomp results…, what `save` names of inputs | outputs | dys] */
  uint8_t *save;         /* nin + 2 nout */
  uint8_t *has_grad;     /* nin: which inputs get a gradient, in order of the graph's results */
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
PlStatus pl_backward_graph_make(const PlMakeArgs *a, PlBackward **out, PlGradGraph **unsplit_or_null);
/* The whole, unsplit gradient over [inputs | outputs | dys]; has_grad[nin]: whose gradients are its results. */
PlStatus pl_gradient_graph_make(const PlMakeArgs *a, PlGradGraph **out, uint8_t *has_grad);
/* The split of a whole gradient graph of the call that a describes, see docs/design/backward-split.md. */
PlStatus pl_backward_graph_split(const PlGradGraph *g, const PlMakeArgs *a, PlBackward *b);
/* false: everything stays in backward, to measure what the split saves. Returns what it was; clears the cache. */
bool pl_backward_split_enable(bool on);
void pl_backward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries);
void pl_backward_cache_clear(void);

#endif
