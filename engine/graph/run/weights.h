/* SPDX-License-Identifier: MIT
 * Weights of a graph that stay as they are from run to run: what kernels may keep of them (kernels/kernel.h). */
#ifndef PL_ENGINE_GRAPH_RUN_WEIGHTS_H
#define PL_ENGINE_GRAPH_RUN_WEIGHTS_H

#include "engine/graph/ir/graph.h"
#include "kernels/kernel.h"

typedef struct PlWeights PlWeights;

/* *out NULL: no node of the graph keeps anything, or the graph writes into its leaves. */
PlStatus pl_weights_new(PlWeights **out, const PlGraph *f);
void pl_weights_free(PlWeights *w); /* NULL is fine */
/* Before a run on the CPU with these leaves (by value): lets go of what was made of weights that were written since, or that
 * are others. A weight that was the same at the run before may be kept from now on. */
void pl_weights_look(PlWeights *w, PlTensor *const *vals);
/* What the call of node i keeps; NULL: nothing. */
PlkKept *pl_weights_kept(PlWeights *w, int32_t i);

#endif
