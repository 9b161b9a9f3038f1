/* SPDX-License-Identifier: MIT
 * Saved graphs (T.save_graph): a text of inputs, nodes and outputs, and beside it PATH.safetensors with the tensors that the
 * graph captured. lua/perilune/graph/file.lua writes them. */
#ifndef PL_ENGINE_DEPLOY_SAVED_GRAPH_H
#define PL_ENGINE_DEPLOY_SAVED_GRAPH_H

#include "engine/deploy/free_sizes.h"
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
  PlTensor **stored; /* of the safetensors file, in the order of the text; held */
  int64_t nstored;
  PlFreeSize *sizes; /* that the text leaves free; names in the graph's pool */
  int32_t nsizes;
  /* Per input slot and per output: NULL, or per dimension NULL or what a free size is ("2*batch+1"); in the graph's pool. */
  const char *const **input_dims, *const **output_dims;
  const int64_t **input_shapes, **output_shapes; /* likewise NULL, or the sizes with -1 for those that are free */
} PlSavedGraph;

/* Reads and checks both files. The text is not trusted: each line is read whole, by its form, and the graph is built again
 * through the ops that made it, whose rules check inputs and attributes; what they say of the results must be what the line
 * says. Captured tensors are named by their keys in the safetensors file, and like inputs are of `device`. Errors: IO, FORMAT
 * (with the line), UNSUPPORTED, OOM. Free sizes are as in the example that was traced. */
PlStatus pl_saved_graph_read(PlSavedGraph *out, const char *path, uint8_t device);
/* The same graph for other sizes: built again from the text, through the ops' rules, over the same tensors. value[of->nsizes] are within
 * their bounds. What dimensions are called is not told again. Errors: SHAPE, where rules refuse these sizes or give other shapes than the
 * text says; OOM. */
PlStatus pl_saved_graph_at(PlSavedGraph *out, const PlSavedGraph *of, const int64_t *value, uint8_t device);
void pl_saved_graph_free(PlSavedGraph *g);
/* The checksum in a text's second line, a part of the text; empty: there is none. */
PlText pl_saved_graph_pair(PlText text);

#endif
