/* SPDX-License-Identifier: MIT
 * The gradient pass, inside: gradient.c walks the graph backwards, gradient_sum.c adds up what arrives at a value. */
#ifndef PL_ENGINE_GRAPH_GRADIENT_GRADIENT_INTERNAL_H
#define PL_ENGINE_GRAPH_GRADIENT_GRADIENT_INTERNAL_H

#include "engine/graph/ir/graph.h"

typedef struct PlGradTerm {
  struct PlGradTerm *next;
  PlGVal v;
} PlGradTerm;

typedef struct PlGradWalk {
  PlGraph *f;
  const PlGradientOptions *opts;
  int32_t nvals, nnodes;  /* of the graph before the pass */
  uint8_t *reached, *dep; /* per value: ys depend on it; it depends on xs */
  uint8_t *touched;       /* per node */
  PlGradTerm **terms;     /* per value: its gradients so far, newest first */
  PlGVal *sum;            /* per value: their sum, once made; -1 */
} PlGradWalk;

/* One more gradient of v. Summed on arrival, so that terms do not wait for each other; zeros are dropped. */
PlStatus pl_grad_add_term(PlGradWalk *w, PlGVal v, PlGVal g);
/* The gradient of v, in w->sum[v]: of no term -1, of one the term; of more, where somebody else sums, what aggregate makes of
 * all that are not zero, oldest first. */
PlStatus pl_grad_sum_terms(PlGradWalk *w, PlGVal v);
/* Is v a tensor of zeros that the pass knows as such? */
bool pl_grad_is_zero(const PlGradWalk *w, PlGVal v);
/* Zeros in the type of x, an input of a node without a rule. */
PlStatus pl_grad_zeros(PlGradWalk *w, PlGVal x, const char *name, PlGVal *out);
/* One op on values of the graph; its first result. */
PlStatus pl_grad_apply(PlGraph *f, const PlOp *op, int nin, const PlGVal *in, const PlAttrs *attrs, PlGVal *out);
/* zeros or ones in the shape and dtype of `like`. */
PlStatus pl_grad_constant_like(PlGraph *f, const PlOp *op, PlGVal like, const char *name, PlGVal *out);
/* A copy of gradient g. */
PlStatus pl_grad_copy(PlGradWalk *w, PlGVal g, const char *name, PlGVal *out);
/* What the nodes that come next are called. */
void pl_grad_name_next(PlGraph *f, const char *name);
PlStatus pl_grad_no_memory(void);
/* reached[nvals]: the values that a tape would have had a gradient of y for, be it zeros. */
PlStatus pl_grad_reached(PlGraph *f, PlGVal y, uint8_t *reached);

#endif
