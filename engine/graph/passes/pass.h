/* SPDX-License-Identifier: MIT
 * The contract of a pass: it rewrites a graph that pl_graph_verify accepts into another, with the same outputs bit for bit,
 * and counts the nodes that went. It leaves node numbers alone where it can and marks nodes PL_FN_DEAD, or compacts. */
#ifndef PL_ENGINE_GRAPH_PASSES_PASS_H
#define PL_ENGINE_GRAPH_PASSES_PASS_H

#include "engine/graph/ir/graph.h"

#define PASS(name) PlStatus pl_pass_##name(PlGraph *f, int32_t *removed);
#include "engine/graph/passes/passes.def"
#undef PASS

#endif
