/* SPDX-License-Identifier: MIT
 * Attention whose result a reshape copies into rows of all heads, or whose three gradients one join takes, and nobody else but
 * attention's own gradient. */
#ifndef PL_ENGINE_GRAPH_PASSES_HEADS_H
#define PL_ENGINE_GRAPH_PASSES_HEADS_H

#include "engine/graph/ir/graph.h"

/* tail[] (per node, -1 before): of such an attention, and of the node behind it, which node that is: a reshape of one input, or a
 * join of three. last[]: per value its last reader; written[]: per store, does a node write it? apart[]: per node, 1: none of these. */
PlStatus pl_heads(const PlGraph *f, const int32_t *last, const uint8_t *written, const uint8_t *apart, int32_t *tail);

#endif
