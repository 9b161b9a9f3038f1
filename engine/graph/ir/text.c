/* SPDX-License-Identifier: MIT
 * Graphs as text, one line a node, which specs compare and people read; and as Graphviz dot. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/ir/graph.h"

static void put_type(FILE *f, const PlGValue *v) {
  fprintf(f, "%s[", v->dtype == PL_NDTYPE ? "none" : pl_dtype_name((PlDtype)v->dtype));
  for (int d = 0; d < v->ndim; d++) fprintf(f, "%s%" PRId64, d ? "," : "", v->dims[d]);
  fputc(']', f);
}

static void put_value(FILE *out, const PlGraph *f, PlGVal v) {
  if (v < 0) {
    fputs("nil", out);
    return;
  }
  const PlGValue *val = &f->vals[v];
  if (val->kind == PL_FV_CONST && val->numel == 1) { /* a number */
    if (pl_is_float((PlDtype)val->dtype)) fprintf(out, "%.9g", pl_read_f(&val->real->a, 0));
    else fprintf(out, "%" PRId64, pl_read_i(&val->real->a, 0));
  } else fprintf(out, "%%%d", (int)v);
}

/* ---- attributes, as one would write them in Lua ------------------------------------------------------------ */

static void put_choice(FILE *out, const char *choices, int64_t k) {
  const char *p = choices;
  for (; k > 0 && *p; p++) k -= *p == '|';
  fprintf(out, "\"%.*s\"", (int)strcspn(p, "|"), p);
}

static void put_attr(FILE *out, const PlAttrDef *d, const PlAttrs *a, int k) {
  int64_t i = a->v[k].i;
  switch (d->type) {
  case PL_A_DIM:
  case PL_A_NEWDIM:
  case PL_A_INDEX: fprintf(out, "%" PRId64, i >= 0 ? i + 1 : i); break;
  case PL_A_FLOAT: fprintf(out, "%.9g", a->v[k].f); break;
  case PL_A_SCALAR:
    if ((a->isint >> k) & 1) fprintf(out, "%" PRId64, i);
    else fprintf(out, "%.9g", a->v[k].f);
    break;
  case PL_A_BOOL: fputs(i ? "true" : "false", out); break;
  case PL_A_DTYPE: fprintf(out, "\"%s\"", pl_dtype_name((PlDtype)i)); break;
  case PL_A_ENUM: put_choice(out, d->choices, i); break;
  case PL_A_DIMS:
  case PL_A_INTS:
  case PL_A_SHAPE:
  case PL_A_FLOATS:
    fputc('{', out);
    for (int j = 0; j < pl_attr_n(a, k); j++) {
      double v;
      int64_t e = pl_attr_list(a, k)[j];
      memcpy(&v, &e, sizeof v);
      if (d->type == PL_A_FLOATS) fprintf(out, "%s%.9g", j ? "," : "", v);
      else fprintf(out, "%s%" PRId64, j ? "," : "", d->type == PL_A_DIMS ? e + 1 : e);
    }
    fputc('}', out);
    break;
  default: fprintf(out, "%" PRId64, i);
  }
}

/* Those that differ from their defaults. */
static void put_attrs(FILE *out, const PlGNode *n) {
  if (!n->attrs) return;
  PlAttrs def;
  pl_attrs_init(n->op, &def);
  const char *sep = n->nin ? "; " : "";
  for (int k = 0; k < n->op->nattr; k++) {
    const PlAttrDef *d = &n->op->attrs[k];
    if (!pl_attr_has(n->attrs, k)) continue;
    bool list = d->type == PL_A_DIMS || d->type == PL_A_INTS || d->type == PL_A_SHAPE || d->type == PL_A_FLOATS;
    if (list && (pl_attr_n(n->attrs, k) == 0 || (d->has_def && pl_attr_n(n->attrs, k) == 1 && pl_attr_list(n->attrs, k)[0] == d->i)))
      continue;
    if (!list && d->has_def && memcmp(&def.v[k], &n->attrs->v[k], sizeof def.v[k]) == 0) continue;
    fprintf(out, "%s%s=", sep, d->name);
    put_attr(out, d, n->attrs, k);
    sep = ", ";
  }
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static void put_leaves(FILE *out, const PlGraph *f) {
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE || (val->kind == PL_FV_CONST && val->numel == 1)) continue;
    fprintf(out, "%%%d = %s", (int)v, val->kind == PL_FV_INPUT ? "input" : val->kind == PL_FV_CAPTURE ? "capture" : "constant");
    if (val->name) fprintf(out, " %s", val->name);
    fputs(" : ", out);
    put_type(out, val);
    fputs(val->leaf && val->kind == PL_FV_INPUT ? "  # leaf\n" : "\n", out);
  }
}

static void put_node(FILE *out, const PlGraph *f, int32_t i, const uint8_t *recomputed) {
  const PlGNode *n = &f->nodes[i];
  bool any = false;
  for (int32_t o = 0; o < n->nout; o++) {
    if (f->vals[n->first + o].dtype == PL_NDTYPE) continue;
    fprintf(out, "%s%%%d", any ? ", " : "", (int)(n->first + o));
    any = true;
  }
  fprintf(out, " = %s(", n->op->name);
  for (int32_t k = 0; k < n->nin; k++) {
    if (k) fputs(", ", out);
    put_value(out, f, n->in[k]);
  }
  put_attrs(out, n);
  fputs(") : ", out);
  any = false;
  for (int32_t o = 0; o < n->nout; o++) {
    if (f->vals[n->first + o].dtype == PL_NDTYPE) continue;
    if (any) fputs(", ", out);
    put_type(out, &f->vals[n->first + o]);
    any = true;
  }
  fprintf(out, "  # %s, stage %d", n->name, n->stage);
  if (recomputed) fprintf(out, ", recompute %d", recomputed[i]);
  if (n->flags & PL_FN_MUTATES) fputs(", writes", out);
  for (int32_t k = 0; k < n->nafter; k++) fprintf(out, "%s%s", k ? " " : ", after ", f->nodes[n->after[k]].name);
  fputc('\n', out);
}

char *pl_graph_text(const PlGraph *f, const uint8_t *recomputed) {
  char *buf = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&buf, &size);
  if (!out) return NULL;
  put_leaves(out, f);
  for (int32_t i = 0; i < f->nnodes; i++) put_node(out, f, i, recomputed);
  if (f->noutputs) fputs("outputs:", out);
  for (int32_t o = 0; o < f->noutputs; o++) {
    fputc(' ', out);
    put_value(out, f, f->outputs[o]);
  }
  if (f->noutputs) fputc('\n', out);
  if (fclose(out) != 0) {
    free(buf);
    return NULL;
  }
  return buf;
}

/* ---- dot ------------------------------------------------------------------------------------------------------- */

static void put_quoted(FILE *out, const char *s) {
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') fputc('\\', out);
    fputc(*s, out);
  }
}

static void put_dot_source(FILE *out, const PlGraph *f, PlGVal v) {
  if (f->vals[v].kind == PL_FV_NODE) fprintf(out, "n%d", (int)f->vals[v].node);
  else fprintf(out, "v%d", (int)v);
}

char *pl_graph_dot(const PlGraph *f) {
  char *buf = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&buf, &size);
  if (!out) return NULL;
  fputs("digraph graph_ {\n  rankdir=TB; node [fontname=\"sans-serif\", fontsize=10];\n", out);
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlGValue *val = &f->vals[v];
    if (val->kind == PL_FV_NODE || (val->kind == PL_FV_CONST && val->numel == 1)) continue;
    fprintf(out, "  v%d [shape=box, label=\"", (int)v);
    put_quoted(out, val->name ? val->name : val->kind == PL_FV_CAPTURE ? "capture" : "constant");
    fputs("\\n", out);
    put_type(out, val);
    fputs("\"];\n", out);
  }
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    fprintf(out, "  n%d [shape=ellipse%s, label=\"", (int)i,
            n->flags & PL_FN_RECOMPUTED ? ", style=filled, fillcolor=lightyellow"
            : n->stage                  ? ", style=filled, fillcolor=lightblue"
                                        : "");
    put_quoted(out, n->name);
    if (n->nout && f->vals[n->first].dtype != PL_NDTYPE) {
      fputs("\\n", out);
      put_type(out, &f->vals[n->first]);
    }
    fputs("\"];\n", out);
    for (int32_t k = 0; k < n->nin; k++) {
      if (n->in[k] < 0 || (f->vals[n->in[k]].kind == PL_FV_CONST && f->vals[n->in[k]].numel == 1)) continue;
      fputs("  ", out);
      put_dot_source(out, f, n->in[k]);
      fprintf(out, " -> n%d;\n", (int)i);
    }
    for (int32_t k = 0; k < n->nafter; k++) fprintf(out, "  n%d -> n%d [style=dashed];\n", (int)n->after[k], (int)i);
  }
  for (int32_t o = 0; o < f->noutputs; o++) {
    fprintf(out, "  out%d [shape=plaintext, label=\"output %d\"];\n  ", (int)o, (int)o + 1);
    put_dot_source(out, f, f->outputs[o]);
    fprintf(out, " -> out%d;\n", (int)o);
  }
  fputs("}\n", out);
  if (fclose(out) != 0) {
    free(buf);
    return NULL;
  }
  return buf;
}
