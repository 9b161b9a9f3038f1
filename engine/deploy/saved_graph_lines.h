/* SPDX-License-Identifier: MIT
 * The reader of saved graphs' texts, between its files: values by their numbers (saved_graph_values.c), node lines (saved_graph_nodes.c), all other
 * lines (saved_graph_lines.c), and the text and its tensors (saved_graph.c). */
#ifndef PL_ENGINE_DEPLOY_SAVED_GRAPH_LINES_H
#define PL_ENGINE_DEPLOY_SAVED_GRAPH_LINES_H

#include <string.h>

#include "engine/deploy/saved_graph.h"
#include "engine/deploy/text_fields.h"
#include "engine/io/file.h"

typedef struct PlReaderValue {
  int64_t number; /* + 1; 0: an empty place of the table */
  PlTensor *t;    /* NULL: an output that the node does not have */
  PlText dims;    /* as the text has them, between separators `sep` */
  char sep;
} PlReaderValue;

typedef struct PlGraphReader {
  const char *path;
  int64_t line;
  PlGraph *f;
  PlSafetensors *tensors;
  PlReaderValue *values; /* a table by hash, at most half full */
  int64_t nvalues, capacity;
  int32_t *nodes; /* per node of the text: its number in the graph */
  int64_t nnodes, cap_nodes;
  PlGVal *outputs;
  const char **names;
  int64_t noutputs, cap_outputs, nlist; /* nlist: of the outputs those without a name */
  char pair[16], replaces[16];
  uint8_t device;
  bool paired;
  const PlSavedGraph *of; /* NULL: it is read for the first time */
  PlFreeSize *sizes;      /* now.n of them */
  PlSizesNow now;
  PlTensor **stored;
  int64_t nstored, cap_stored;
  const char *const **input_dims, *const **output_dims;
  const int64_t **input_shapes, **output_shapes;
  int64_t cap_input_dims, cap_output_dims;
} PlGraphReader;

#define BAD(...)      return pl_file_bad(r->path, __VA_ARGS__)
#define AT_LINE(text) "line %lld: " text, (long long)r->line

/* Room for a field in which formulas of free sizes are their values. */
enum { PL_READER_ROOM = 24 * PL_ATTR_POOL };

PlStatus pl_reader_no_memory(void);
/* Room for an entry more than n in an array. */
PlStatus pl_reader_grow(void *array, int64_t n, int64_t *capacity, size_t item);
/* The value of that number is t, which is taken in any case; of the sizes `dims` in the text, if it has them. */
PlStatus pl_reader_sized_value(PlGraphReader *r, PlText number, PlTensor *t, PlText dims, char sep);
PlStatus pl_reader_value(PlGraphReader *r, PlText number, PlTensor *t);
/* NULL: there is none of that number. */
const PlReaderValue *pl_reader_known(const PlGraphReader *r, PlText number);
PlStatus pl_reader_find(const PlGraphReader *r, PlText number, PlTensor **out);
/* Size `dim` of a value, for formulas; ud is the reader. */
bool pl_reader_size_of(const void *ud, PlText number, int64_t dim, int64_t *out);
/* Exactly n fields between single blanks; the last one takes the rest of the line if `rest`. */
bool pl_reader_fields(PlText line, int n, bool rest, PlText *out);
/* A field in which formulas of free sizes are their values; `room` has to be as large as the field's longest form. */
PlStatus pl_reader_settle(const PlGraphReader *r, PlText *field, char sep, char *to, size_t room);
/* A line behind its word "node"; a whole line. */
PlStatus pl_reader_node(PlGraphReader *r, PlText line);
PlStatus pl_reader_line(PlGraphReader *r, PlText line);

#endif
