/* SPDX-License-Identifier: MIT
 * See saved_graph_lines.h: node lines. A node is made again by its op, whose rules check inputs and attributes; what they give must be what
 * the line says. */
#include <stdlib.h>

#include "engine/deploy/saved_graph_lines.h"
#include "engine/graph/trace/symbolic.h"
#include "engine/ops/names.h"

static PlStatus read_attrs(PlGraphReader *r, const PlOp *op, PlText text, PlAttrs *a) {
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
    char room[PL_READER_ROOM];
    while (k < op->nattr && !pl_field_is(name, op->attrs[k].name)) k++;
    if (k == op->nattr) BAD(AT_LINE("%s has no attribute '%.*s'"), op->name, (int)(name.n < 40 ? name.n : 40), name.s);
    if ((seen >> k) & 1) BAD(AT_LINE("attribute %s is given twice"), op->attrs[k].name);
    seen |= 1u << k;
    if (!(value.n && value.s[0] == '"')) PL_TRY(pl_reader_settle(r, &value, ',', room, sizeof room));
    if (!pl_field_attr(op, a, k, value, &why)) BAD(AT_LINE("%s: attribute %s must be %s"), op->name, op->attrs[k].name, why);
  }
  return PL_OK;
}

/* The sizes of a result as the line has them; "?" stands for what the rule gives. */
static bool said_shape(const PlGraphReader *r, const PlTensor *t, PlText said, int *ndim, int64_t *shape) {
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
static PlStatus check_type(const PlGraphReader *r, const PlOp *op, const PlTensor *t, PlText said, PlText *dims) {
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
static PlStatus keep_results(PlGraphReader *r, const PlOp *op, PlText text, PlTensor **out, int nout) {
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
    s = pl_reader_sized_value(r, number, t, dims, 'x');
  }
  if (s == PL_OK && n != nout) s = pl_file_bad(r->path, AT_LINE("%s has %d outputs, the line names %d"), op->name, nout, n);
  pl_release_all(out, nout);
  return s;
}

static PlStatus apply_node(PlGraphReader *r, const PlOp *op, PlText ins, PlText outs, const PlAttrs *a, int stage, int32_t origin,
                           const char *name, PlTensor **in) {
  PlText one;
  int nin = 0;
  if (!pl_field_is(ins, "-")) /* alone: no inputs */
    while (pl_field_next(&ins, ',', &one)) {
      in[nin] = NULL;
      if (!pl_field_is(one, "-")) PL_TRY(pl_reader_find(r, one, &in[nin]));
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

PlStatus pl_reader_node(PlGraphReader *r, PlText line) {
  PlText f[8];
  int64_t stage, from;
  bool bad;
  PlAttrs a;
  if (!pl_reader_fields(line, 8, true, f) || !pl_field_is(f[5], "->")) BAD(AT_LINE("a node line"));
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
  if (!name) return pl_reader_no_memory();
  if (bad) BAD(AT_LINE("its name has a zero byte or a blank"));
  size_t most = 1;
  for (size_t i = 0; i < f[4].n; i++) most += f[4].s[i] == ',';
  PlTensor **in = malloc((most + 1) * sizeof *in);
  if (!in) return pl_reader_no_memory();
  PlStatus s = apply_node(r, op, f[4], f[6], &a, (int)stage, from ? r->nodes[from - 1] - 1 : -1, name, in);
  free(in);
  PL_TRY(s);
  PL_TRY(pl_reader_grow(&r->nodes, r->nnodes, &r->cap_nodes, sizeof *r->nodes));
  r->nodes[r->nnodes++] = r->f->nnodes;
  return PL_OK;
}
