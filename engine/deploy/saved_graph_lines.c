/* SPDX-License-Identifier: MIT
 * See saved_graph_lines.h: all lines but those of nodes, a function a kind; values are made once and before they are used. */
#include <stdlib.h>

#include "engine/deploy/saved_graph_lines.h"
#include "engine/device/device.h"
#include "engine/graph/trace/symbolic.h"

static PlStatus read_free_size(PlGraphReader *r, PlText line) {
  PlText name;
  PlFreeSize s;
  bool bad;
  if (r->now.n == PL_MOST_FREE_SIZES) BAD(AT_LINE("more than %d free sizes"), PL_MOST_FREE_SIZES);
  if (!pl_free_size_read(line, &name, &s)) BAD(AT_LINE("a size line"));
  s.name = pl_field_name(r->f, name, &bad);
  if (!s.name) return pl_reader_no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (int32_t i = 0; i < r->now.n; i++)
    if (strcmp(r->sizes[i].name, s.name) == 0) BAD(AT_LINE("there is a size named '%s' already"), s.name);
  if (!r->sizes) r->sizes = calloc(PL_MOST_FREE_SIZES, sizeof *r->sizes);
  if (!r->sizes) return pl_reader_no_memory();
  if (!r->of) r->now.value[r->now.n] = s.example;
  r->sizes[r->now.n++] = s;
  return PL_OK;
}

typedef struct DimLists {
  const char *const ***names;
  const int64_t ***shapes;
  int64_t *capacity;
} DimLists;

/* What the sizes of a value are called, and which are free, as entry n of the lists. */
static PlStatus tell_dims(const PlGraphReader *r, const PlReaderValue *v, int64_t n, DimLists to) {
  int64_t capacity = *to.capacity;
  PlText rest = v->dims, one;
  PL_TRY(pl_reader_grow((void *)to.names, n, &capacity, sizeof **to.names));
  PL_TRY(pl_reader_grow((void *)to.shapes, n, to.capacity, sizeof **to.shapes));
  (*to.names)[n] = NULL;
  (*to.shapes)[n] = NULL;
  if (r->of || (!pl_size_is_free(v->dims) && !(v->dims.n && memchr(v->dims.s, '?', v->dims.n)))) return PL_OK;
  const char **names = pl_graph_alloc(r->f, (size_t)(v->t->a.ndim + 1) * sizeof *names);
  int64_t *shape = pl_graph_alloc(r->f, (size_t)(v->t->a.ndim + 1) * sizeof *shape);
  if (!names || !shape) return pl_reader_no_memory();
  for (int d = 0; d < v->t->a.ndim; d++) {
    names[d] = NULL;
    shape[d] = v->t->a.shape[d];
    if (!pl_field_next(&rest, v->sep, &one) || !(pl_size_is_free(one) || pl_field_is(one, "?"))) continue;
    names[d] = pl_size_words(r->f, r->sizes, r->now.n, one);
    shape[d] = -1;
    if (!names[d]) return pl_reader_no_memory();
  }
  (*to.names)[n] = names;
  (*to.shapes)[n] = shape;
  return PL_OK;
}

static PlStatus read_pair(PlGraphReader *r, PlText line) {
  PlText f[1];
  if (r->paired) BAD(AT_LINE("a second pair line"));
  r->paired = true;
  if (r->of) return PL_OK; /* the tensors are those that came with it */
  if (!pl_reader_fields(line, 1, false, f) || !r->pair[0] || !pl_field_is(f[0], r->pair))
    BAD(AT_LINE("its tensors (the .safetensors file beside it) come from another save; save the graph again"));
  return PL_OK;
}

static PlStatus read_input(PlGraphReader *r, PlText line) {
  PlText f[5];
  PlDtype dtype;
  int ndim;
  int64_t shape[PL_MAX_DIM];
  bool bad;
  char room[PL_READER_ROOM];
  PlGVal v;
  PlTensor *t;
  if (!pl_reader_fields(line, 5, false, f) || !(pl_field_is(f[4], "leaf") || pl_field_is(f[4], "fed"))) BAD(AT_LINE("an input line"));
  if (!pl_field_dtype(f[2], &dtype)) BAD(AT_LINE("the dtype %.*s"), (int)(f[2].n < 40 ? f[2].n : 40), f[2].s);
  const PlText said = f[3];
  PL_TRY(pl_reader_settle(r, &f[3], ',', room, sizeof room));
  if (!pl_field_shape(pl_field_is(f[3], "-") ? (PlText){"", 0} : f[3], ',', &ndim, shape)) BAD(AT_LINE("its sizes"));
  const char *name = pl_field_name(r->f, f[1], &bad);
  if (!name) return pl_reader_no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (PlGVal k = 0; k < r->f->nvals; k++)
    if (r->f->vals[k].kind == PL_FV_INPUT && strcmp(r->f->vals[k].name, name) == 0)
      BAD(AT_LINE("there is an input named '%s' already"), name);
  PL_TRY(pl_graph_input(r->f, name, dtype, ndim, shape, pl_field_is(f[4], "leaf"), &v));
  r->f->vals[v].device = r->device;
  PL_TRY(pl_sym_tensor(&t, r->f, v));
  const DimLists lists = {&r->input_dims, &r->input_shapes, &r->cap_input_dims};
  const PlStatus s = tell_dims(r, &(PlReaderValue){1, t, said, ','}, r->f->ninputs - 1, lists);
  if (s != PL_OK) pl_tensor_release(t);
  PL_TRY(s);
  return pl_reader_sized_value(r, f[0], t, said, ',');
}

static PlStatus read_constant(PlGraphReader *r, PlText line) {
  PlText f[4];
  PlDtype dtype;
  bool is_int;
  int64_t i;
  double d;
  char room[PL_READER_ROOM];
  PlTensor *t;
  if (!pl_reader_fields(line, 4, false, f)) BAD(AT_LINE("a number line"));
  PL_TRY(pl_reader_settle(r, &f[3], ',', room, sizeof room));
  if (!pl_field_dtype(f[1], &dtype) || !pl_field_number(f[3], &is_int, &i, &d) ||
      !(pl_field_is(f[2], "weak") || pl_field_is(f[2], "tensor")))
    BAD(AT_LINE("a number line"));
  PL_TRY(pl_tensor_empty(&t, dtype, 0, NULL));
  if (is_int) pl_write_i(dtype, t->a.data, i);
  else pl_write_f(dtype, t->a.data, d);
  t->a.weak = pl_field_is(f[2], "weak");
  t->flags |= PL_T_CONST;
  return pl_reader_value(r, f[0], t);
}

/* A captured tensor of that name, which the value takes. */
static PlStatus store(PlGraphReader *r, PlText name, PlTensor *t) {
  PlGVal v;
  bool bad;
  PL_TRY(pl_reader_value(r, name, t));
  PL_TRY(pl_reader_grow(&r->stored, r->nstored, &r->cap_stored, sizeof *r->stored));
  r->stored[r->nstored++] = pl_retain(t);
  PL_TRY(pl_graph_capture(r->f, t, &v));
  r->f->vals[v].name = pl_field_name(r->f, name, &bad);
  return r->f->vals[v].name ? PL_OK : pl_reader_no_memory();
}

static PlStatus read_stored(PlGraphReader *r, PlText line) {
  PlText f[1];
  PlTensor *t;
  if (!pl_reader_fields(line, 1, false, f)) BAD(AT_LINE("a line of a stored tensor"));
  if (r->of) {
    if (r->nstored == r->of->nstored) BAD(AT_LINE("a tensor that the safetensors file lacks"));
    return store(r, f[0], pl_retain(r->of->stored[r->nstored]));
  }
  for (int64_t i = 0; i < pl_safetensors_count(r->tensors); i++) {
    size_t n;
    const char *name = pl_safetensors_name(r->tensors, i, &n);
    if (n != f[0].n || memcmp(name, f[0].s, n) != 0) continue;
    PL_TRY(pl_safetensors_read(r->tensors, i, &t));
    if (r->device != PL_CPU) {
      PlTensor *host = t;
      PlStatus s = pl_tensor_moved(&t, host, r->device);
      pl_tensor_release(host);
      PL_TRY(s);
    }
    return store(r, f[0], t);
  }
  BAD(AT_LINE("a tensor that the safetensors file lacks"));
}

/* Another value of a captured tensor: one that is detached beside the one that is not. */
static PlStatus read_same(PlGraphReader *r, PlText line) {
  PlText f[2];
  PlTensor *t = NULL;
  if (!pl_reader_fields(line, 2, false, f)) BAD(AT_LINE("a line of a captured tensor that is there twice"));
  PL_TRY(pl_reader_find(r, f[1], &t));
  if (t->a.symbolic || t->flags & PL_T_CONST) BAD(AT_LINE("a captured tensor that is not there"));
  return pl_reader_value(r, f[0], pl_retain(t));
}

static PlStatus read_after(PlGraphReader *r, PlText line) {
  PlText f[1], one;
  int64_t k;
  if (!pl_reader_fields(line, 1, false, f) || r->nnodes == 0 || r->nodes[r->nnodes - 1] < 1)
    BAD(AT_LINE("a line of nodes that come first"));
  while (pl_field_next(&f[0], ',', &one)) {
    if (!pl_field_integer(one, 1, r->nnodes - 1, &k) || r->nodes[k - 1] < 1) BAD(AT_LINE("a node that comes first but is not there"));
    PL_TRY(pl_graph_after(r->f, r->nodes[r->nnodes - 1] - 1, r->nodes[k - 1] - 1));
  }
  return PL_OK;
}

/* The node before is of a piece that Ctrl-C does not part. */
static PlStatus read_whole(PlGraphReader *r, PlText line) {
  PlText f[1];
  int64_t piece;
  if (!pl_reader_fields(line, 1, false, f) || r->nnodes == 0 || r->nodes[r->nnodes - 1] < 1 ||
      !pl_field_integer(f[0], 1, r->nnodes, &piece))
    BAD(AT_LINE("a line of nodes that are one piece"));
  pl_graph_piece(r->f, r->nodes[r->nnodes - 1] - 1, (int32_t)piece);
  return PL_OK;
}

static PlStatus read_output(PlGraphReader *r, PlText line) {
  PlText f[2];
  PlTensor *t = NULL;
  PlGVal v;
  int64_t k;
  bool bad = false;
  if (!pl_reader_fields(line, 2, false, f)) BAD(AT_LINE("an output line"));
  PL_TRY(pl_reader_find(r, f[0], &t));
  const PlText key = {f[1].s + 1, f[1].n - 1};
  if (f[1].s[0] == '#' && (!pl_field_integer(key, 1, INT32_MAX, &k) || k != ++r->nlist)) BAD(AT_LINE("an output out of order"));
  if (f[1].s[0] != '#' && f[1].s[0] != '=') BAD(AT_LINE("an output line"));
  const char *name = pl_field_name(r->f, key, &bad);
  if (!name) return pl_reader_no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (int64_t o = 0; o < r->noutputs; o++)
    if (strcmp(r->names[o], name) == 0) BAD(AT_LINE("output %s is named twice"), name);
  PL_TRY(pl_sym_value_of(r->f, t, &v));
  int64_t capacity = r->cap_outputs;
  PL_TRY(pl_reader_grow(&r->outputs, r->noutputs, &capacity, sizeof *r->outputs));
  PL_TRY(pl_reader_grow(&r->names, r->noutputs, &r->cap_outputs, sizeof *r->names));
  PL_TRY(tell_dims(r, pl_reader_known(r, f[0]), r->noutputs, (DimLists){&r->output_dims, &r->output_shapes, &r->cap_output_dims}));
  r->outputs[r->noutputs] = v;
  r->names[r->noutputs++] = name;
  return PL_OK;
}

/* A gradient pass, and what of it may be computed again. */
static PlStatus read_region(PlGraphReader *r, PlText line) {
  PlText f[8], one;
  int64_t policy, bytes, k, choice;
  double fraction;
  bool is_int;
  PlRecomputeOptions m = {0};
  if (!pl_reader_fields(line, 8, false, f) || !pl_field_integer(f[0], 0, 3, &policy) || !pl_field_number(f[1], &is_int, &k, &fraction) ||
      !(fraction <= 1) || !pl_field_integer(f[2], -1, INT64_MAX, &bytes))
    BAD(AT_LINE("a region line"));
  bool flag[3];
  for (int i = 0; i < 3; i++) {
    flag[i] = pl_field_is(f[3 + i], "true");
    if (!flag[i] && !pl_field_is(f[3 + i], "false")) BAD(AT_LINE("a region line"));
  }
  m = (PlRecomputeOptions){
      .policy = (int)policy, .fraction = fraction, .bytes = bytes, .seeded = flag[0], .heavy = flag[1], .listed = flag[2]};
  size_t most = 1;
  for (size_t i = 0; i < f[6].n; i++) most += f[6].s[i] == ',';
  PlGVal *ys = malloc((most + 1) * sizeof *ys);
  if (!ys) return pl_reader_no_memory();
  int32_t ny = 0;
  PlStatus s = PL_OK;
  if (!pl_field_is(f[6], "-"))
    while (s == PL_OK && pl_field_next(&f[6], ',', &one)) {
      PlTensor *t;
      s = pl_reader_find(r, one, &t);
      if (s == PL_OK) s = pl_sym_value_of(r->f, t, &ys[ny++]);
    }
  if (s == PL_OK && (m.listed || !pl_field_is(f[7], "-"))) {
    m.nchoice = r->f->nnodes;
    m.choice = calloc((size_t)m.nchoice + 1, 1);
    if (!m.choice) s = pl_reader_no_memory();
    if (pl_field_is(f[7], "-")) f[7] = (PlText){NULL, 0};
    while (s == PL_OK && pl_field_next(&f[7], ',', &one)) {
      const char *colon = memchr(one.s, ':', one.n);
      if (!colon || !pl_field_integer((PlText){one.s, (size_t)(colon - one.s)}, 1, r->nnodes, &k) ||
          !pl_field_integer((PlText){colon + 1, (size_t)(one.s + one.n - 1 - colon)}, -1, 2, &choice) || r->nodes[k - 1] < 1)
        s = pl_file_bad(r->path, AT_LINE("an unknown node of a region, or an unknown choice"));
      else m.choice[r->nodes[k - 1] - 1] = (int8_t)choice;
    }
  }
  if (s == PL_OK) s = pl_graph_region(r->f, r->f->nnodes, ny, ys, &m);
  free(m.choice);
  free(ys);
  return s;
}

static const struct {
  const char *word;
  PlStatus (*read)(PlGraphReader *r, PlText line);
} kinds[] = {{"input", read_input},   {"number", read_constant}, {"capture", read_stored}, {"constant", read_stored},
             {"same", read_same},     {"node", pl_reader_node},  {"after", read_after},    {"output", read_output},
             {"region", read_region}, {"pair", read_pair},       {"size", read_free_size}, {"whole", read_whole}};

PlStatus pl_reader_line(PlGraphReader *r, PlText line) {
  PlText word;
  if (pl_field_next(&line, ' ', &word) && line.s)
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
      if (pl_field_is(word, kinds[k].word)) {
        PlStatus s = kinds[k].read(r, line);
        if (s == PL_OK || pl_must_report(s) || s == PL_ERR_IO || s == PL_ERR_FORMAT) return s;
        return pl_file_bad(r->path, AT_LINE("%s"), pl_message()); /* a rule of an op refuses */
      }
  BAD(AT_LINE("an unknown line"));
}
