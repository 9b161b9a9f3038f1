/* SPDX-License-Identifier: MIT
 * Batch norms whose only reader is a relu, or a sum of which a relu is the only reader. */
#ifndef PL_ENGINE_GRAPH_PASSES_NORM_TAILS_H
#define PL_ENGINE_GRAPH_PASSES_NORM_TAILS_H

#include "engine/graph/ir/graph.h"

/* tail[] (per node, -1 before): of such a norm, its sum and its relu, which node the relu is. last[]: per value its last reader. */
PlStatus pl_norm_tails(const PlGraph *f, const int32_t *last, int32_t *tail);

#endif
