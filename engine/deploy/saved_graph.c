/* SPDX-License-Identifier: MIT
 * See saved_graph.h. One reader a kind of line; values are made once and before they are used. */
#include "engine/deploy/saved_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/deploy/text_fields.h"
#include "engine/device/device.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/io/file.h"
#include "engine/ops/names.h"

typedef struct Value {
  int64_t number; /* + 1; 0: an empty place of the table */
  PlTensor *t;    /* NULL: an output that the node does not have */
  PlText dims;    /* as the text has them, between separators `sep` */
  char sep;
} Value;

typedef struct Reader {
  const char *path;
  int64_t line;
  PlGraph *f;
  PlSafetensors *tensors;
  Value *values; /* a table by hash, at most half full */
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
} Reader;

#define BAD(...)      return pl_file_bad(r->path, __VA_ARGS__)
#define AT_LINE(text) "line %lld: " text, (long long)r->line

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to read a graph"); }

static PlStatus grow(void *array, int64_t n, int64_t *capacity, size_t item) {
  if (n < *capacity) return PL_OK;
  const int64_t want = 2 * n + 16;
  void **a = array, *p = realloc(*a, (size_t)want * item);
  if (!p) return no_memory();
  *a = p;
  *capacity = want;
  return PL_OK;
}

/* ---- values by their numbers -------------------------------------------------------------------------------------- */

static Value *place_of(const Reader *r, int64_t number) {
  uint64_t h = (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15);
  for (int64_t i = (int64_t)(h >> 20) & (r->capacity - 1);; i = (i + 1) & (r->capacity - 1))
    if (r->values[i].number == 0 || r->values[i].number == number + 1) return &r->values[i];
}

static PlStatus grow_values(Reader *r) {
  if (2 * (r->nvalues + 1) <= r->capacity) return PL_OK;
  Value *old = r->values;
  const int64_t n = r->capacity;
  r->values = calloc((size_t)(n ? 2 * n : 64), sizeof *r->values);
  if (!r->values) {
    r->values = old;
    return no_memory();
  }
  r->capacity = n ? 2 * n : 64;
  for (int64_t i = 0; i < n; i++)
    if (old[i].number) *place_of(r, old[i].number - 1) = old[i];
  free(old);
  return PL_OK;
}

/* The value of that number is t, which it takes; of the sizes `dims` in the text, if it has them. */
static PlStatus new_sized_value(Reader *r, PlText number, PlTensor *t, PlText dims, char sep) {
  int64_t k;
  PlStatus s = PL_OK;
  if (!pl_field_integer(number, 0, 1 << 28, &k))
    s = pl_file_bad(r->path, AT_LINE("value number %.*s"), (int)(number.n < 40 ? number.n : 40), number.s);
  else if (r->nvalues == PL_SAVED_MOST_VALUES) s = pl_file_bad(r->path, AT_LINE("more than %d values"), PL_SAVED_MOST_VALUES);
  else s = grow_values(r);
  if (s == PL_OK) {
    Value *v = place_of(r, k);
    if (v->number) s = pl_file_bad(r->path, AT_LINE("value %lld is made twice"), (long long)k);
    else {
      *v = (Value){k + 1, t, dims, sep};
      r->nvalues++;
      return PL_OK;
    }
  }
  pl_tensor_release(t);
  return s;
}

static PlStatus new_value(Reader *r, PlText number, PlTensor *t) { return new_sized_value(r, number, t, (PlText){NULL, 0}, 'x'); }

static const Value *known(const Reader *r, PlText number) {
  int64_t k;
  const Value *v = pl_field_integer(number, 0, 1 << 28, &k) && r->capacity ? place_of(r, k) : NULL;
  return v && v->number && v->t ? v : NULL;
}

static bool size_of(const void *ud, PlText number, int64_t dim, int64_t *out) {
  const Value *v = known(ud, number);
  if (!v || dim > v->t->a.ndim) return false;
  *out = v->t->a.shape[dim - 1];
  return true;
}

static PlStatus find_value(const Reader *r, PlText number, PlTensor **out) {
  const Value *v = known(r, number);
  if (!v) BAD(AT_LINE("value %.*s is used before it is made"), (int)(number.n < 40 ? number.n : 40), number.s);
  *out = v->t;
  return PL_OK;
}

/* Exactly n fields between single blanks; the last one takes the rest of the line if `rest`. */
static bool fields(PlText line, int n, bool rest, PlText *out) {
  for (int i = 0; i < n; i++) {
    if (i == n - 1 && rest) {
      out[i] = line;
      return true;
    }
    if (!pl_field_next(&line, ' ', &out[i]) || out[i].n == 0) return false;
  }
  return line.s == NULL;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------ */

/* A field in which expressions of free sizes are their values; `room` has to be as large as the field's longest form. */
static PlStatus settle(const Reader *r, PlText *field, char sep, char *to, size_t room) {
  if (!pl_size_is_free(*field)) return PL_OK;
  if (!pl_sizes_put(&r->now, *field, sep, to, room, field)) BAD(AT_LINE("the size %.*s"), (int)(field->n < 60 ? field->n : 60), field->s);
  return PL_OK;
}

enum { ROOM = 24 * PL_ATTR_POOL };

static PlStatus read_free_size(Reader *r, PlText line) {
  PlText name;
  PlFreeSize s;
  bool bad;
  if (r->now.n == PL_MOST_FREE_SIZES) BAD(AT_LINE("more than %d free sizes"), PL_MOST_FREE_SIZES);
  if (!pl_free_size_read(line, &name, &s)) BAD(AT_LINE("a size line"));
  s.name = pl_field_name(r->f, name, &bad);
  if (!s.name) return no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (int32_t i = 0; i < r->now.n; i++)
    if (strcmp(r->sizes[i].name, s.name) == 0) BAD(AT_LINE("there is a size named '%s' already"), s.name);
  if (!r->sizes) r->sizes = calloc(PL_MOST_FREE_SIZES, sizeof *r->sizes);
  if (!r->sizes) return no_memory();
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
static PlStatus tell_dims(const Reader *r, const Value *v, int64_t n, DimLists to) {
  int64_t capacity = *to.capacity;
  PlText rest = v->dims, one;
  PL_TRY(grow((void *)to.names, n, &capacity, sizeof **to.names));
  PL_TRY(grow((void *)to.shapes, n, to.capacity, sizeof **to.shapes));
  (*to.names)[n] = NULL;
  (*to.shapes)[n] = NULL;
  if (r->of || (!pl_size_is_free(v->dims) && !(v->dims.n && memchr(v->dims.s, '?', v->dims.n)))) return PL_OK;
  const char **names = pl_graph_alloc(r->f, (size_t)(v->t->a.ndim + 1) * sizeof *names);
  int64_t *shape = pl_graph_alloc(r->f, (size_t)(v->t->a.ndim + 1) * sizeof *shape);
  if (!names || !shape) return no_memory();
  for (int d = 0; d < v->t->a.ndim; d++) {
    names[d] = NULL;
    shape[d] = v->t->a.shape[d];
    if (!pl_field_next(&rest, v->sep, &one) || !(pl_size_is_free(one) || pl_field_is(one, "?"))) continue;
    names[d] = pl_size_words(r->f, r->sizes, r->now.n, one);
    shape[d] = -1;
    if (!names[d]) return no_memory();
  }
  (*to.names)[n] = names;
  (*to.shapes)[n] = shape;
  return PL_OK;
}

static PlStatus read_pair(Reader *r, PlText line) {
  PlText f[1];
  if (r->paired) BAD(AT_LINE("a second pair line"));
  r->paired = true;
  if (r->of) return PL_OK; /* the tensors are those that came with it */
  if (!fields(line, 1, false, f) || !r->pair[0] || !pl_field_is(f[0], r->pair))
    BAD(AT_LINE("its tensors (the .safetensors file beside it) come from another save; save the graph again"));
  return PL_OK;
}

static PlStatus read_input(Reader *r, PlText line) {
  PlText f[5];
  PlDtype dtype;
  int ndim;
  int64_t shape[PL_MAX_DIM];
  bool bad;
  char room[ROOM];
  PlGVal v;
  PlTensor *t;
  if (!fields(line, 5, false, f) || !(pl_field_is(f[4], "leaf") || pl_field_is(f[4], "fed"))) BAD(AT_LINE("an input line"));
  if (!pl_field_dtype(f[2], &dtype)) BAD(AT_LINE("the dtype %.*s"), (int)(f[2].n < 40 ? f[2].n : 40), f[2].s);
  const PlText said = f[3];
  PL_TRY(settle(r, &f[3], ',', room, sizeof room));
  if (!pl_field_shape(pl_field_is(f[3], "-") ? (PlText){"", 0} : f[3], ',', &ndim, shape)) BAD(AT_LINE("its sizes"));
  const char *name = pl_field_name(r->f, f[1], &bad);
  if (!name) return no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (PlGVal k = 0; k < r->f->nvals; k++)
    if (r->f->vals[k].kind == PL_FV_INPUT && strcmp(r->f->vals[k].name, name) == 0)
      BAD(AT_LINE("there is an input named '%s' already"), name);
  PL_TRY(pl_graph_input(r->f, name, dtype, ndim, shape, pl_field_is(f[4], "leaf"), &v));
  r->f->vals[v].device = r->device;
  PL_TRY(pl_sym_tensor(&t, r->f, v));
  const DimLists lists = {&r->input_dims, &r->input_shapes, &r->cap_input_dims};
  const PlStatus s = tell_dims(r, &(Value){1, t, said, ','}, r->f->ninputs - 1, lists);
  if (s != PL_OK) pl_tensor_release(t);
  PL_TRY(s);
  return new_sized_value(r, f[0], t, said, ',');
}

static PlStatus read_constant(Reader *r, PlText line) {
  PlText f[4];
  PlDtype dtype;
  bool is_int;
  int64_t i;
  double d;
  char room[ROOM];
  PlTensor *t;
  if (!fields(line, 4, false, f)) BAD(AT_LINE("a number line"));
  PL_TRY(settle(r, &f[3], ',', room, sizeof room));
  if (!pl_field_dtype(f[1], &dtype) || !pl_field_number(f[3], &is_int, &i, &d) ||
      !(pl_field_is(f[2], "weak") || pl_field_is(f[2], "tensor")))
    BAD(AT_LINE("a number line"));
  PL_TRY(pl_tensor_empty(&t, dtype, 0, NULL));
  if (is_int) pl_write_i(dtype, t->a.data, i);
  else pl_write_f(dtype, t->a.data, d);
  t->a.weak = pl_field_is(f[2], "weak");
  t->flags |= PL_T_CONST;
  return new_value(r, f[0], t);
}

/* A captured tensor of that name, which the value takes. */
static PlStatus store(Reader *r, PlText name, PlTensor *t) {
  PlGVal v;
  bool bad;
  PL_TRY(new_value(r, name, t));
  PL_TRY(grow(&r->stored, r->nstored, &r->cap_stored, sizeof *r->stored));
  r->stored[r->nstored++] = pl_retain(t);
  PL_TRY(pl_graph_capture(r->f, t, &v));
  r->f->vals[v].name = pl_field_name(r->f, name, &bad);
  return r->f->vals[v].name ? PL_OK : no_memory();
}

static PlStatus read_stored(Reader *r, PlText line) {
  PlText f[1];
  PlTensor *t;
  if (!fields(line, 1, false, f)) BAD(AT_LINE("a line of a stored tensor"));
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

static PlStatus read_attrs(Reader *r, const PlOp *op, PlText text, PlAttrs *a) {
  uint32_t seen = 0;
  pl_attrs_init(op, a);
  PlText one;
  if (text.n == 0) return PL_OK;
  while (pl_field_next(&text, ' ', &one)) {
    const char *eq = memchr(one.s, '=', one.n), *why = "";
    int k = 0;
    if (!eq) BAD(AT_LINE("its attributes"));
    const PlText name = {one.s, (size_t)(eq - one.s)};
    PlText value = {eq + 1, one.n - name.n - 1};
    char room[ROOM];
    while (k < op->nattr && !pl_field_is(name, op->attrs[k].name)) k++;
    if (k == op->nattr) BAD(AT_LINE("%s has no attribute '%.*s'"), op->name, (int)(name.n < 40 ? name.n : 40), name.s);
    if ((seen >> k) & 1) BAD(AT_LINE("attribute %s is given twice"), op->attrs[k].name);
    seen |= 1u << k;
    if (!(value.n && value.s[0] == '"')) PL_TRY(settle(r, &value, ',', room, sizeof room));
    if (!pl_field_attr(op, a, k, value, &why)) BAD(AT_LINE("%s: attribute %s must be %s"), op->name, op->attrs[k].name, why);
  }
  return PL_OK;
}

/* The sizes of a result as the line has them; "?" stands for what the rule gives. */
static bool said_shape(const Reader *r, const PlTensor *t, PlText said, int *ndim, int64_t *shape) {
  PlText one;
  *ndim = 0;
  while (said.n > 0 && pl_field_next(&said, 'x', &one)) {
    if (*ndim == PL_MAX_DIM) return false;
    int64_t *to = &shape[*ndim];
    if (pl_field_is(one, "?")) *to = t && *ndim < t->a.ndim ? t->a.shape[*ndim] : 0;
    else if (pl_size_is_free(one) ? !pl_size_value(&r->now, one, to) : !pl_field_integer(one, 0, INT64_MAX, to)) return false;
    ++*ndim;
    if (!said.s) break;
    if (said.n == 0) return false; /* 3x */
  }
  return true;
}

/* Is what the op made what the line says? Files that say nothing of types were saved before types were noted. *dims: its sizes
 * in the text. */
static PlStatus check_type(const Reader *r, const PlOp *op, const PlTensor *t, PlText said, PlText *dims) {
  PlDtype dtype;
  int ndim;
  int64_t shape[PL_MAX_DIM];
  *dims = (PlText){NULL, 0};
  if (said.n == 0) return PL_OK;
  if (pl_field_is(said, "none")) {
    if (t) BAD(AT_LINE("%s gives an output more than the line says"), op->name);
    return PL_OK;
  }
  const char *open = memchr(said.s, '[', said.n);
  if (!open || said.s[said.n - 1] != ']' || !pl_field_dtype((PlText){said.s, (size_t)(open - said.s)}, &dtype))
    BAD(AT_LINE("the type of an output"));
  *dims = (PlText){open + 1, (size_t)(said.s + said.n - 2 - open)};
  if (!said_shape(r, t, *dims, &ndim, shape)) BAD(AT_LINE("the type of an output"));
  if (!t || t->a.dtype != dtype || t->a.ndim != ndim || (ndim && memcmp(t->a.shape, shape, (size_t)ndim * sizeof *shape) != 0))
    BAD(AT_LINE("%s gives %s, the line says %.*s"), op->name, t ? pl_desc_text(&t->a) : "nothing", (int)(said.n < 80 ? said.n : 80),
        said.s);
  return PL_OK;
}

/* Outputs "7:f32[2x3],8:none" become values; takes what is in out. */
static PlStatus keep_results(Reader *r, const PlOp *op, PlText text, PlTensor **out, int nout) {
  PlText one;
  int n = 0;
  PlStatus s = PL_OK;
  if (pl_field_is(text, "-")) text = (PlText){NULL, 0};
  while (s == PL_OK && pl_field_next(&text, ',', &one)) {
    const char *colon = memchr(one.s, ':', one.n);
    const PlText number = {one.s, colon ? (size_t)(colon - one.s) : one.n};
    const PlText type = colon ? (PlText){colon + 1, one.n - number.n - 1} : (PlText){NULL, 0};
    if (n == nout) s = pl_file_bad(r->path, AT_LINE("%s has %d outputs, the line names more"), op->name, nout);
    if (s == PL_OK && colon && type.n == 0) s = pl_file_bad(r->path, AT_LINE("the type of an output"));
    PlText dims;
    if (s == PL_OK) s = check_type(r, op, out[n], type, &dims);
    if (s != PL_OK) break;
    PlTensor *t = out[n];
    out[n++] = NULL;
    s = new_sized_value(r, number, t, dims, 'x');
  }
  if (s == PL_OK && n != nout) s = pl_file_bad(r->path, AT_LINE("%s has %d outputs, the line names %d"), op->name, nout, n);
  pl_release_all(out, nout);
  return s;
}

static PlStatus apply_node(Reader *r, const PlOp *op, PlText ins, PlText outs, const PlAttrs *a, int stage, int32_t origin,
                           const char *name, PlTensor **in) {
  PlText one;
  int nin = 0;
  if (!pl_field_is(ins, "-")) /* alone: no inputs */
    while (pl_field_next(&ins, ',', &one)) {
      in[nin] = NULL;
      if (!pl_field_is(one, "-")) PL_TRY(find_value(r, one, &in[nin]));
      nin++;
    }
  const bool lists = (op->flags & PL_F_MUTATES) && op->nin == PL_VARIADIC;
  PlTensor *res[PL_MAX_OUT] = {NULL}, **out = res;
  PL_TRY(pl_sym_emit(r->f, stage, origin, name, op, in, nin, a, res));
  if (!lists) return keep_results(r, op, outs, out, op->nout);
  pl_release_all(res, op->nout); /* what was written keeps its handle */
  for (int i = 0; i < nin; i++) in[i] = in[i] ? pl_retain(in[i]) : NULL;
  return keep_results(r, op, outs, in, nin);
}

static PlStatus read_node(Reader *r, PlText line) {
  PlText f[8];
  int64_t stage, from;
  bool bad;
  PlAttrs a;
  if (!fields(line, 8, true, f) || !pl_field_is(f[5], "->")) BAD(AT_LINE("a node line"));
  if (r->nnodes == PL_SAVED_MOST_NODES) BAD(AT_LINE("more than %d nodes"), PL_SAVED_MOST_NODES);
  if (!pl_field_integer(f[2], 0, 255, &stage)) BAD(AT_LINE("its stage"));
  if (!pl_field_integer(f[3], 0, r->nnodes, &from)) BAD(AT_LINE("its origin is no node before it"));
  char op_name[64];
  const PlOp *op = NULL;
  if (f[1].n < sizeof op_name) {
    memcpy(op_name, f[1].s, f[1].n);
    op_name[f[1].n] = '\0';
    op = pl_op_find(op_name);
  }
  if (!op) BAD(AT_LINE("there is no op %.*s"), (int)(f[1].n < 60 ? f[1].n : 60), f[1].s);
  PlText attrs = f[7];
  while (attrs.n && attrs.s[attrs.n - 1] == ' ') attrs.n--;
  PL_TRY(read_attrs(r, op, attrs, &a));
  const char *name = pl_field_name(r->f, f[0], &bad);
  if (!name) return no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  size_t most = 1;
  for (size_t i = 0; i < f[4].n; i++) most += f[4].s[i] == ',';
  PlTensor **in = malloc((most + 1) * sizeof *in);
  if (!in) return no_memory();
  PlStatus s = apply_node(r, op, f[4], f[6], &a, (int)stage, from ? r->nodes[from - 1] - 1 : -1, name, in);
  free(in);
  PL_TRY(s);
  PL_TRY(grow(&r->nodes, r->nnodes, &r->cap_nodes, sizeof *r->nodes));
  r->nodes[r->nnodes++] = r->f->nnodes;
  return PL_OK;
}

static PlStatus read_after(Reader *r, PlText line) {
  PlText f[1], one;
  int64_t k;
  if (!fields(line, 1, false, f) || r->nnodes == 0 || r->nodes[r->nnodes - 1] < 1) BAD(AT_LINE("a line of nodes that come first"));
  while (pl_field_next(&f[0], ',', &one)) {
    if (!pl_field_integer(one, 1, r->nnodes - 1, &k) || r->nodes[k - 1] < 1) BAD(AT_LINE("a node that comes first but is not there"));
    PL_TRY(pl_graph_after(r->f, r->nodes[r->nnodes - 1] - 1, r->nodes[k - 1] - 1));
  }
  return PL_OK;
}

static PlStatus read_output(Reader *r, PlText line) {
  PlText f[2];
  PlTensor *t = NULL;
  PlGVal v;
  int64_t k;
  bool bad = false;
  if (!fields(line, 2, false, f)) BAD(AT_LINE("an output line"));
  PL_TRY(find_value(r, f[0], &t));
  const PlText key = {f[1].s + 1, f[1].n - 1};
  if (f[1].s[0] == '#' && (!pl_field_integer(key, 1, INT32_MAX, &k) || k != ++r->nlist)) BAD(AT_LINE("an output out of order"));
  if (f[1].s[0] != '#' && f[1].s[0] != '=') BAD(AT_LINE("an output line"));
  const char *name = pl_field_name(r->f, key, &bad);
  if (!name) return no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  for (int64_t o = 0; o < r->noutputs; o++)
    if (strcmp(r->names[o], name) == 0) BAD(AT_LINE("output %s is named twice"), name);
  PL_TRY(pl_sym_value_of(r->f, t, &v));
  int64_t capacity = r->cap_outputs;
  PL_TRY(grow(&r->outputs, r->noutputs, &capacity, sizeof *r->outputs));
  PL_TRY(grow(&r->names, r->noutputs, &r->cap_outputs, sizeof *r->names));
  PL_TRY(tell_dims(r, known(r, f[0]), r->noutputs, (DimLists){&r->output_dims, &r->output_shapes, &r->cap_output_dims}));
  r->outputs[r->noutputs] = v;
  r->names[r->noutputs++] = name;
  return PL_OK;
}

/* A gradient pass, and what of it may be computed again. */
static PlStatus read_region(Reader *r, PlText line) {
  PlText f[8], one;
  int64_t policy, bytes, k, choice;
  double fraction;
  bool is_int;
  PlRecomputeOptions m = {0};
  if (!fields(line, 8, false, f) || !pl_field_integer(f[0], 0, 3, &policy) || !pl_field_number(f[1], &is_int, &k, &fraction) ||
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
  if (!ys) return no_memory();
  int32_t ny = 0;
  PlStatus s = PL_OK;
  if (!pl_field_is(f[6], "-"))
    while (s == PL_OK && pl_field_next(&f[6], ',', &one)) {
      PlTensor *t;
      s = find_value(r, one, &t);
      if (s == PL_OK) s = pl_sym_value_of(r->f, t, &ys[ny++]);
    }
  if (s == PL_OK && (m.listed || !pl_field_is(f[7], "-"))) {
    m.nchoice = r->f->nnodes;
    m.choice = calloc((size_t)m.nchoice + 1, 1);
    if (!m.choice) s = no_memory();
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
  PlStatus (*read)(Reader *r, PlText line);
} kinds[] = {{"input", read_input}, {"number", read_constant}, {"capture", read_stored}, {"constant", read_stored},
             {"node", read_node},   {"after", read_after},     {"output", read_output},  {"region", read_region},
             {"pair", read_pair},   {"size", read_free_size}};

static PlStatus read_line(Reader *r, PlText line) {
  PlText word;
  if (pl_field_next(&line, ' ', &word) && line.s)
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
      if (pl_field_is(word, kinds[k].word)) {
        PlStatus s = kinds[k].read(r, line);
        if (s == PL_OK || s == PL_ERR_OOM || s == PL_ERR_INTERRUPT || s == PL_ERR_IO || s == PL_ERR_FORMAT) return s;
        return pl_file_bad(r->path, AT_LINE("%s"), pl_message()); /* a rule of an op refuses */
      }
  BAD(AT_LINE("an unknown line"));
}

/* Outputs of the C ABI are row-major. Results lie as their operands do, and views as they look: of these a copy is the output. */
static PlStatus row_major_outputs(Reader *r) {
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

static PlStatus read_text(Reader *r, PlText text) {
  PlText line;
  bool done = false;
  while (!done && pl_field_next(&text, '\n', &line) && text.s) { /* a last line without its end is cut off */
    r->line++;
    if (r->line == 1) {
      if (!pl_field_is(line, "perilune graph 1")) BAD("this is no saved graph");
    } else if (pl_field_is(line, "end")) {
      done = true;
      if (text.n) BAD(AT_LINE("there is more behind the end"));
    } else PL_TRY(read_line(r, line));
  }
  if (!done) BAD("the file is cut off");
  if (!r->paired) BAD("it does not say which tensors go with it");
  if (r->noutputs == 0) BAD("it names no outputs");
  PL_TRY(row_major_outputs(r));
  PL_TRY(pl_graph_set_outputs(r->f, (int)r->noutputs, r->outputs));
  PlStatus s = pl_graph_verify(r->f);
  return s == PL_ERR_STATE ? pl_file_bad(r->path, "%s", pl_message()) : s;
}

/* ---- both files ------------------------------------------------------------------------------------------------------ */

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
static PlStatus read_metadata(Reader *r, char **text, size_t *n) {
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
      if (!*text) return no_memory();
    }
  }
  return PL_OK;
}

static PlStatus open_tensors(Reader *r) {
  const size_t n = strlen(r->path);
  char *beside = malloc(n + sizeof ".safetensors");
  if (!beside) return no_memory();
  memcpy(beside, r->path, n);
  memcpy(beside + n, ".safetensors", sizeof ".safetensors");
  PlStatus s = pl_safetensors_open(&r->tensors, beside);
  free(beside);
  return s;
}

static void end(Reader *r) {
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
static PlStatus give(Reader *r, PlText use, PlSavedGraph *out) {
  char *own = malloc(use.n + 1);
  if (!own) return no_memory();
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

static PlStatus build(Reader *r, PlText text, PlSavedGraph *out) {
  const uint8_t was = pl_state.device;
  r->now.size_of = size_of;
  r->now.ud = r;
  pl_state.device = r->device;
  PlStatus s = pl_graph_new(&r->f);
  if (s == PL_OK) s = read_text(r, text);
  pl_state.device = was;
  return s == PL_OK ? give(r, text, out) : s;
}

PlStatus pl_saved_graph_read(PlSavedGraph *out, const char *path, uint8_t device) {
  Reader r = {.path = path, .device = device};
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
  Reader r = {.path = "the model at these sizes", .device = device, .of = of};
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
