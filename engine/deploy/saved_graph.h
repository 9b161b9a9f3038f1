/* SPDX-License-Identifier: MIT
 * Saved graphs (T.save_graph): a text of inputs, nodes and outputs, and beside it PATH.safetensors with the tensors that the
 * graph captured. lua/perilune/graph/file.lua writes them. */
#ifndef PL_ENGINE_DEPLOY_SAVED_GRAPH_H
#define PL_ENGINE_DEPLOY_SAVED_GRAPH_H

#include "engine/graph/ir/graph.h"
#include "engine/io/io.h"

enum {
  PL_SAVED_MOST_BYTES = 1 << 28, /* of a text */
  PL_SAVED_MOST_VALUES = 1 << 22,
  PL_SAVED_MOST_NODES = 1 << 20
};

typedef struct PlSavedGraph {
  PlGraph *graph;     /* with its outputs set */
  const char **names; /* of the outputs, in the graph's pool: "1", "2" … of a list, else their keys */
  PlText text;        /* as it was read; owned */
  int32_t *nodes;     /* per node line of the text: number of the node in the graph, from 1 */
  int64_t nnodes;
} PlSavedGraph;

/* Reads and checks both files. The text is not trusted: each line is read whole, by its form, and the graph is built again
 * through the ops that made it, whose rules check inputs and attributes; what they say of the results must be what the line
 * says. Captured tensors are named by their keys in the safetensors file, and like inputs are of `device`. Errors: IO, FORMAT
 * (with the line), UNSUPPORTED, OOM. */
PlStatus pl_saved_graph_read(PlSavedGraph *out, const char *path, uint8_t device);
void pl_saved_graph_free(PlSavedGraph *g);
/* The checksum in a text's second line, a part of the text; empty: there is none. */
PlText pl_saved_graph_pair(PlText text);

#endif
