/* SPDX-License-Identifier: MIT
 * See saved_graph.h: the text as a whole, its tensors, and what becomes of them. Lines: saved_graph_lines.c, saved_graph_nodes.c. */
#include "engine/deploy/saved_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/deploy/saved_graph_lines.h"
#include "engine/ops/names.h"

/* Outputs of the C ABI are row-major. Results lie as their operands do, and views as they look: of these a copy is the output. */
static PlStatus row_major_outputs(PlGraphReader *r) {
  PlGraph *f = r->f;
  for (int64_t o = 0; o < r->noutputs; o++) {
    const PlGValue *v = &f->vals[r->outputs[o]];
    if (v->contiguous) continue;
    PlDesc d = {.dtype = v->dtype};
    int32_t node;
    pl_desc_set(&d, (PlDtype)v->dtype, v->ndim, v->dims);
    f->stage = v->node >= 0 ? f->nodes[v->node].stage : 0;
    f->emit_name = "output";
    f->emit_count = (int)o;
    const PlStatus s = pl_graph_node(f, &pl_op_clone, 1, &r->outputs[o], NULL, &d, 0, &node);
    f->emit_name = NULL;
    f->stage = 0;
    PL_TRY(s);
    r->outputs[o] = f->nodes[node].first;
  }
  return PL_OK;
}

static PlStatus read_text(PlGraphReader *r, PlText text) {
  PlText line;
  bool done = false;
  while (!done && pl_field_next(&text, '\n', &line) && text.s) { /* a last line without its end is cut off */
    r->line++;
    if (r->line == 1) {
      if (!pl_field_is(line, "perilune graph 1")) BAD("this is no saved graph");
    } else if (pl_field_is(line, "end")) {
      done = true;
      if (text.n) BAD(AT_LINE("there is more behind the end"));
    } else PL_TRY(pl_reader_line(r, line));
  }
  if (!done) BAD("the file is cut off");
  if (!r->paired) BAD("it does not say which tensors go with it");
  if (r->noutputs == 0) BAD("it names no outputs");
  PL_TRY(row_major_outputs(r));
  PL_TRY(pl_graph_set_outputs(r->f, (int)r->noutputs, r->outputs));
  PlStatus s = pl_graph_verify(r->f);
  return s == PL_ERR_STATE ? pl_file_bad(r->path, "%s", pl_message()) : s;
}

/* The checksum that stands in the text's second line. */
PlText pl_saved_graph_pair(PlText text) {
  PlText line, word;
  if (!pl_field_next(&text, '\n', &line) || !pl_field_next(&text, '\n', &line) || !pl_field_next(&line, ' ', &word) ||
      !pl_field_is(word, "pair") || !line.s)
    return (PlText){"", 0};
  return line;
}

static void keep_sum(char *to, const char *value, size_t n) {
  if (n >= 16) n = 0;
  memcpy(to, value, n);
  to[n] = '\0';
}

/* What the tensors' file says of its text. *text: the text itself, where it brings it along; malloc'ed. */
static PlStatus read_metadata(PlGraphReader *r, char **text, size_t *n) {
  const char *key, *value;
  size_t nkey, nvalue;
  while (pl_safetensors_next_meta(r->tensors, &key, &nkey, &value, &nvalue)) {
    const PlText k = {key, nkey};
    if (pl_field_is(k, "perilune.graph")) keep_sum(r->pair, value, nvalue);
    if (pl_field_is(k, "perilune.graph.replaces")) keep_sum(r->replaces, value, nvalue);
    if (pl_field_is(k, "perilune.graph.text") && !*text) {
      bool bad;
      PlGraph *pool;
      PL_TRY(pl_graph_new(&pool));
      const char *plain = pl_field_name(pool, (PlText){value, nvalue}, &bad);
      *n = plain ? strlen(plain) : 0;
      *text = plain ? strdup(plain) : NULL; /* of lines with blanks; what is behind a zero byte is cut off */
      pl_graph_release(pool);
      if (!*text) return pl_reader_no_memory();
    }
  }
  return PL_OK;
}

static PlStatus open_tensors(PlGraphReader *r) {
  const size_t n = strlen(r->path);
  char *beside = malloc(n + sizeof ".safetensors");
  if (!beside) return pl_reader_no_memory();
  memcpy(beside, r->path, n);
  memcpy(beside + n, ".safetensors", sizeof ".safetensors");
  PlStatus s = pl_safetensors_open(&r->tensors, beside);
  free(beside);
  return s;
}

static void end(PlGraphReader *r) {
  for (int64_t i = 0; i < r->capacity; i++) pl_tensor_release(r->values[i].t);
  free(r->values);
  free(r->nodes);
  free(r->outputs);
  free(r->names);
  for (int64_t i = 0; i < r->nstored; i++) pl_tensor_release(r->stored[i]);
  free(r->stored);
  free(r->sizes);
  free(r->input_dims);
  free(r->output_dims);
  free(r->input_shapes);
  free(r->output_shapes);
  pl_graph_release(r->f);
  pl_safetensors_release(r->tensors);
}

/* What was read, which the reader gives away; its text is copied. */
static PlStatus give(PlGraphReader *r, PlText use, PlSavedGraph *out) {
  char *own = malloc(use.n + 1);
  if (!own) return pl_reader_no_memory();
  memcpy(own, use.s, use.n);
  *out = (PlSavedGraph){.graph = r->f,
                        .names = r->names,
                        .text = {own, use.n},
                        .nodes = r->nodes,
                        .nnodes = r->nnodes,
                        .stored = r->stored,
                        .nstored = r->nstored,
                        .sizes = r->sizes,
                        .nsizes = r->now.n,
                        .input_dims = r->input_dims,
                        .output_dims = r->output_dims,
                        .input_shapes = r->input_shapes,
                        .output_shapes = r->output_shapes};
  r->f = NULL;
  r->names = NULL;
  r->nodes = NULL;
  r->stored = NULL;
  r->nstored = 0;
  r->sizes = NULL;
  r->input_dims = r->output_dims = NULL;
  r->input_shapes = r->output_shapes = NULL;
  return PL_OK;
}

static PlStatus build(PlGraphReader *r, PlText text, PlSavedGraph *out) {
  const uint8_t was = pl_state.device;
  r->now.size_of = pl_reader_size_of;
  r->now.ud = r;
  pl_state.device = r->device;
  PlStatus s = pl_graph_new(&r->f);
  if (s == PL_OK) s = read_text(r, text);
  pl_state.device = was;
  return s == PL_OK ? give(r, text, out) : s;
}

PlStatus pl_saved_graph_read(PlSavedGraph *out, const char *path, uint8_t device) {
  PlGraphReader r = {.path = path, .device = device};
  char *text = NULL, *other = NULL;
  size_t n = 0, nother = 0;
  PL_TRY(pl_file_bytes(path, PL_SAVED_MOST_BYTES, &text, &n));
  PlStatus s = open_tensors(&r);
  if (s == PL_OK) s = read_metadata(&r, &other, &nother);
  PlText use = {text, n};
  if (s == PL_OK) { /* a save that was cut between its two files: the tensors know the text that goes with them */
    const PlText sum = pl_saved_graph_pair(use);
    if (other && sum.n && !pl_field_is(sum, r.pair) && pl_field_is(sum, r.replaces)) use = (PlText){other, nother};
    s = build(&r, use, out);
  }
  end(&r);
  free(other);
  plk_scratch_free(text);
  return s;
}

PlStatus pl_saved_graph_at(PlSavedGraph *out, const PlSavedGraph *of, const int64_t *value, uint8_t device) {
  PlGraphReader r = {.path = "the model at these sizes", .device = device, .of = of};
  memcpy(r.now.value, value, (size_t)of->nsizes * sizeof *value);
  PlStatus s = build(&r, of->text, out);
  end(&r);
  if (s != PL_ERR_FORMAT) return s;
  char why[512];
  snprintf(why, sizeof why, "%s", pl_message());
  PL_FAIL(PL_ERR_SHAPE, "%s", why);
}

void pl_saved_graph_free(PlSavedGraph *g) {
  for (int64_t i = 0; i < g->nstored; i++) pl_tensor_release(g->stored[i]);
  free(g->stored);
  free(g->sizes);
  free(g->input_dims);
  free(g->output_dims);
  free(g->input_shapes);
  free(g->output_shapes);
  pl_graph_release(g->graph);
  free(g->names);
  free((char *)(uintptr_t)g->text.s);
  free(g->nodes);
  *g = (PlSavedGraph){.graph = NULL};
}
