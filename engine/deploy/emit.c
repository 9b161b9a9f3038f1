/* SPDX-License-Identifier: MIT
 * Programs as C source: tables of the structs in kernels/program.h, with kernels by their names, so that a linker takes what the
 * tables name and nothing else. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deploy/program.h"
#include "engine/io/file.h"
#include "engine/ops/op.h"
#include "kernels/reduce.h"

typedef struct Emit {
  const PlProgram *p;
  const PlkProgram *k;
  const PlGraph *f;
  FILE *out;
} Emit;

/* ---- words -------------------------------------------------------------------------------------------------------------- */

static void put_string(FILE *out, const char *s) {
  fputc('"', out);
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') fprintf(out, "\\%c", *s);
    else if ((unsigned char)*s < 32 || (unsigned char)*s > 126 || *s == '?') fprintf(out, "\\%03o", (unsigned char)*s);
    else fputc(*s, out);
  }
  fputc('"', out);
}

static void put_int(FILE *out, int64_t v) {
  if (v == INT64_MIN) fputs("(-INT64_C(9223372036854775807) - 1)", out);
  else if (v > INT32_MAX || v < -INT32_MAX) fprintf(out, "INT64_C(%" PRId64 ")", v);
  else fprintf(out, "%" PRId64, v);
}

/* ---- attributes: a{node} ------------------------------------------------------------------------------------------------- */

static void put_attrs(const Emit *e, int32_t node) {
  const PlAttrs *a = e->f->nodes[node].attrs;
  if (!a) return;
  fprintf(e->out, "static const PlAttrs a%d = {.set = %u, .isint = %u, .nval = %u, .npool = %u, .v = {", (int)node, (unsigned)a->set,
          (unsigned)a->isint, (unsigned)a->nval, (unsigned)a->npool);
  for (int k = 0; k < PL_MAX_ATTR; k++) {
    fputs(k ? ", {" : "{", e->out);
    put_int(e->out, k < a->nval ? a->v[k].i : 0);
    fputc('}', e->out);
  }
  fputs("}, .pool = {", e->out);
  for (int k = 0; k < a->npool || k == 0; k++) {
    if (k) fputs(", ", e->out);
    put_int(e->out, k < a->npool ? a->pool[k] : 0);
  }
  fputs("}};\n", e->out);
}

/* ---- kernels --------------------------------------------------------------------------------------------------------------- */

/* The kernel of a node: of those with its bits the one that links least. */
static const char *symbol_of(const Emit *e, int32_t node) {
  const PlGNode *n = &e->f->nodes[node];
  const bool sum = n->op->kernel[PL_CPU] == plk_cpu_reduce && (n->op->kcode == PLK_R_SUM || n->op->kcode == PLK_R_MEAN);
  const int x = n->nin < 1 || n->in[0] < 0 ? PL_NDTYPE : e->f->vals[n->in[0]].dtype;
  return sum && x <= PL_F64 && e->f->vals[n->first].dtype == x ? "plk_cpu_float_sums" : n->op->symbol;
}

static bool first_with(const Emit *e, int32_t node) {
  for (int32_t i = 0; i < node; i++)
    if (!(e->f->nodes[i].flags & PL_FN_VIEW) && strcmp(symbol_of(e, i), symbol_of(e, node)) == 0) return false;
  return true;
}

static PlStatus put_kernels(const Emit *e) {
  for (int32_t i = 0; i < e->f->nnodes; i++) {
    const PlGNode *n = &e->f->nodes[i];
    if (n->flags & PL_FN_VIEW) continue;
    if (!n->op->symbol)
      PL_FAIL(PL_ERR_UNSUPPORTED, "%s: the kernel of %s cannot be linked into a program; libperilune runs such a model", n->name,
              n->op->name);
    if (first_with(e, i)) fprintf(e->out, "PlStatus %s(const PlkCall *call);\n", symbol_of(e, i));
  }
  return PL_OK;
}

static const char *pieces_of(const PlkPiecewise *p) {
  return !p                                    ? "NULL"
         : p == &plk_cpu_sum_pieces            ? "&plk_cpu_sum_pieces"
         : p == &plk_cpu_layer_norm_bwd_pieces ? "&plk_cpu_layer_norm_bwd_pieces"
                                               : NULL;
}

/* ---- lists of integers ------------------------------------------------------------------------------------------------------ */

static void put_ints(const Emit *e, const char *name, int32_t number, const char *what, int32_t n, const int32_t *v) {
  fprintf(e->out, "static const int32_t %s%d%s[] = {", name, (int)number, what);
  for (int32_t i = 0; i < n || i == 0; i++) fprintf(e->out, "%s%d", i ? ", " : "", n ? (int)v[i] : 0);
  fputs("};\n", e->out);
}

static void put_dims(const Emit *e, const char *name, int32_t number, int ndim, const int64_t *shape, const int64_t *strides) {
  fprintf(e->out, "static const int64_t %s%d[] = {", name, (int)number);
  for (int d = 0; d < 2 * ndim; d++) {
    if (d) fputs(", ", e->out);
    put_int(e->out, d < ndim ? shape[d] : strides[d - ndim]);
  }
  fputs(ndim ? "};\n" : "0};\n", e->out);
}

/* ---- groups: g{step}, with what it points to --------------------------------------------------------------------------------- */

static void put_form(const Emit *e, int32_t step, const PlkTileGroup *g, int form) {
  char name[48];
  snprintf(name, sizeof name, "f%d_%d_", (int)step, form);
  for (int32_t k = 0; k < g->nop; k++) put_dims(e, name, k, g->form[form][k].ndim, g->form[form][k].shape, g->form[form][k].strides);
  fprintf(e->out, "static const PlArray f%d_%d[] = {\n", (int)step, form);
  for (int32_t k = 0; k < g->nop || k == 0; k++) {
    const PlArray *a = &g->form[form][k];
    if (!g->nop) break;
    fprintf(e->out,
            "  {.numel = %" PRId64 ", .shape = %s%d, .strides = %s%d + %d, .dtype = %d, .ndim = %d, .contiguous = %d, .weak = %d},\n",
            a->numel, name, (int)k, name, (int)k, a->ndim, a->dtype, a->ndim, a->contiguous, a->weak);
  }
  fputs(g->nop ? "};\n" : "  {.numel = 0}};\n", e->out);
}

static PlStatus put_members(const Emit *e, int32_t step, const PlkTileGroup *g) {
  char name[32];
  snprintf(name, sizeof name, "m%d_", (int)step);
  for (int32_t i = 0; i < g->n; i++) {
    put_ints(e, name, i, "_at", g->m[i].nin + g->m[i].nout, g->m[i].at);
    put_ints(e, name, i, "_arg", g->m[i].nin + g->m[i].nout, g->m[i].arg);
  }
  fprintf(e->out, "static const PlkTileMember m%d[] = {\n", (int)step);
  int32_t node = g->begin;
  for (int32_t i = 0; i < g->n; i++, node++) {
    const PlkTileMember *m = &g->m[i];
    while (e->f->nodes[node].flags & PL_FN_VIEW) node++;
    const char *pieces = pieces_of(m->cut.grain ? m->pieces : NULL);
    if (!pieces) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: sums of %s have no name to link", e->f->nodes[node].name, m->name);
    fprintf(e->out, "  {.name = \"%s\", .kernel = %s, .pieces = %s, .at = %s%d_at, .arg = %s%d_arg, .code = %d, .nin = %d, .nout = %d, ",
            m->name, symbol_of(e, node), pieces, name, (int)i, name, (int)i, (int)m->code, (int)m->nin, (int)m->nout);
    if (m->attrs) fprintf(e->out, ".attrs = &a%d, ", (int)node);
    fprintf(e->out, ".cut = {%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %zu, %zu, %d}, .shared = %zu, .local = %zu},\n",
            m->cut.rows, m->cut.cols, m->cut.grain, m->cut.unit, m->cut.shared, m->cut.local, m->cut.note, m->shared, m->local);
  }
  fputs("};\n", e->out);
  return PL_OK;
}

static PlStatus put_group(const Emit *e, int32_t step, const PlkTileGroup *g) {
  PL_TRY(put_members(e, step, g));
  fprintf(e->out, "static const PlkTileOperand o%d[] = {\n", (int)step);
  for (int32_t k = 0; k < g->nop; k++) {
    const PlkTileOperand *o = &g->op[k];
    fprintf(e->out, "  {.v = %d, .slot = %d, .column = %d, .kind = %d, .wide = %d, .by_row = %" PRId64 ", .by_col = %" PRId64 "},\n",
            (int)o->v, o->slot, o->column, o->kind, o->wide, o->by_row, o->by_col);
  }
  fputs(g->nop ? "};\n" : "  {.v = -1}};\n", e->out);
  put_form(e, step, g, 0);
  put_form(e, step, g, 1);
  fprintf(
      e->out,
      "static const PlkTileGroup g%d = {.begin = %d, .end = %d, .n = %d, .numel = %" PRId64 ", .inner = %" PRId64 ", .cols = %" PRId64
      ", .rows = %" PRId64 ", .ncol = %" PRId64 ", .ntile = %" PRId64 ", .chunk = %" PRId64
      ", .m = m%d, .op = o%d, .form = {f%d_0, f%d_1}, .summed = %d, .nop = %d, .nptr = %d, .nfull = %d, .ncolumn = %d, .full_bytes = %zu, "
      ".column_bytes = %zu, .bytes = %zu, .local = %zu, .shared = %zu};\n",
      (int)step, (int)g->begin, (int)g->end, (int)g->n, g->numel, g->inner, g->cols, g->rows, g->ncol, g->ntile, g->chunk, (int)step,
      (int)step, (int)step, (int)step, g->summed, (int)g->nop, (int)g->nptr, (int)g->nfull, (int)g->ncolumn, g->full_bytes, g->column_bytes,
      g->bytes, g->local, g->shared);
  return PL_OK;
}

/* ---- the program -------------------------------------------------------------------------------------------------------------- */

static void put_values(const Emit *e) {
  for (int32_t v = 0; v < e->k->nvals; v++) {
    const PlkValue *a = &e->k->vals[v];
    if (a->dtype != PL_NDTYPE) put_dims(e, "d", v, a->ndim, a->dims, a->dims ? a->dims + a->ndim : NULL);
  }
  fputs("static const PlkValue vals[] = {\n", e->out);
  for (int32_t v = 0; v < e->k->nvals; v++) {
    const PlkValue *a = &e->k->vals[v];
    if (a->dtype == PL_NDTYPE) fprintf(e->out, "  {.dtype = %d},\n", PL_NDTYPE);
    else
      fprintf(e->out,
              "  {.dims = d%d, .numel = %" PRId64 ", .at = %" PRId64
              ", .which = %d, .place = %d, .dtype = %d, .ndim = %d, .contiguous = %d},\n",
              (int)v, a->numel, a->at, (int)a->which, a->place, a->dtype, a->ndim, a->contiguous);
  }
  fputs("};\n", e->out);
}

static PlStatus put_steps(const Emit *e) {
  for (int32_t i = 0; i < e->k->nsteps; i++) {
    const PlkCallStep *s = &e->k->steps[i];
    if (s->group) PL_TRY(put_group(e, i, s->group));
    else put_ints(e, "s", i, "", s->nin + s->nout, s->arg);
  }
  fputs("static const PlkCallStep steps[] = {\n", e->out);
  for (int32_t i = 0; i < e->k->nsteps; i++) {
    const PlkCallStep *s = &e->k->steps[i];
    const int32_t node = pl_program_node(e->p, i);
    fputs("  {.name = ", e->out);
    put_string(e->out, s->name);
    if (s->group) fprintf(e->out, ", .group = &g%d},\n", (int)i);
    else {
      fprintf(e->out, ", .kernel = %s, .arg = s%d, .code = %d, .nin = %d, .nout = %d", symbol_of(e, node), (int)i, (int)s->code,
              (int)s->nin, (int)s->nout);
      if (s->attrs) fprintf(e->out, ", .attrs = &a%d", (int)node);
      fputs("},\n", e->out);
    }
  }
  fputs(e->k->nsteps ? "};\n" : "  {.name = NULL}};\n", e->out);
  return PL_OK;
}

static void put_ports(const Emit *e, const char *what, const PlkPort *p, int32_t n) {
  for (int32_t i = 0; i < n; i++) put_dims(e, what, i, p[i].ndim, p[i].shape, p[i].shape);
  fprintf(e->out, "static const PlkPort %s[] = {\n", what);
  for (int32_t i = 0; i < n; i++) {
    fputs("  {.name = ", e->out);
    put_string(e->out, p[i].name);
    fprintf(e->out, ", .shape = %s%d, .bytes = %" PRId64 ", .dtype = %d, .ndim = %d},\n", what, (int)i, p[i].bytes, p[i].dtype, p[i].ndim);
  }
  fputs(n ? "};\n" : "  {.name = NULL}};\n", e->out);
}

static void put_kept(const Emit *e) {
  fputs("static PlkKept kept[] = {", e->out);
  for (int32_t i = 0; i < e->k->nsteps; i++) fprintf(e->out, "%s{%u, NULL}", i ? ", " : "", (unsigned)e->k->kept[i].fixed);
  fprintf(e->out, "%s};\n__attribute__((destructor)) static void forget(void) { plk_kept_clear(kept, %d); }\n",
          e->k->nsteps ? "" : "{0, NULL}", (int)e->k->nsteps);
}

static void put_weights(const Emit *e, const char *prefix, FILE *weights) {
  static const char zeros[64];
  int64_t at = 0;
  fprintf(e->out, "extern const unsigned char %s_weights[];\nstatic const void *const weights[] = {\n", prefix);
  for (int32_t w = 0; w < e->k->nweights; w++) {
    const int64_t n = pl_program_weight_bytes(e->p, w), pad = ((n + 63) & ~(int64_t)63) - n;
    fprintf(e->out, "  %s_weights + %" PRId64 ",\n", prefix, at);
    if (n) fwrite(e->k->weights[w], 1, (size_t)n, weights);
    fwrite(zeros, 1, (size_t)pad, weights);
    at += n + pad;
  }
  fputs(e->k->nweights ? "};\n" : "  NULL};\n", e->out);
  fwrite(zeros, 1, sizeof zeros, weights);
}

static void note_dtype(const Emit *e, PlGVal v, bool own, bool *halves, bool *integers) {
  const int d = v < 0 ? PL_NDTYPE : e->f->vals[v].dtype;
  *halves |= d == PL_F16 || d == PL_BF16;
  *integers |= !own && (d == PL_BOOL || (d < PL_NDTYPE && pl_is_int((PlDtype)d)));
}

/* The least tables of loops that have the dtypes which ops without loops of their own work on. */
static const char *loops_of(const Emit *e) {
  bool halves = false, integers = false;
  for (int32_t i = 0; i < e->f->nnodes; i++) {
    const PlGNode *n = &e->f->nodes[i];
    if (n->flags & PL_FN_VIEW) continue;
    const bool own = n->op->cls == PL_OPAQUE || n->op->cls == PL_HEAVY; /* places of a pool's maxima */
    for (int32_t k = 0; k < n->nin; k++) note_dtype(e, n->in[k], own, &halves, &integers);
    for (int32_t o = 0; o < n->nout; o++) note_dtype(e, n->first + o, own, &halves, &integers);
  }
  return halves ? NULL : integers ? "plain" : "floats";
}

PlStatus pl_program_emit(const PlProgram *p, const char *prefix, FILE *source, FILE *weights) {
  const Emit e = {.p = p, .k = pl_program_of(p), .f = pl_program_plan(p)->graph, .out = source};
  fputs("#include \"kernels/program.h\"\n", source);
  const char *loops = loops_of(&e);
  if (loops)
    fprintf(source,
            "typedef struct PlkIsaLevels PlkIsaLevels;\nextern const PlkIsaLevels plk_isa_%s;\n"
            "extern const PlkIsaLevels *const plk_isa_chosen;\nconst PlkIsaLevels *const plk_isa_chosen = &plk_isa_%s;\n",
            loops, loops);
  PL_TRY(put_kernels(&e));
  for (int32_t i = 0; i < e.f->nnodes; i++)
    if (!(e.f->nodes[i].flags & PL_FN_VIEW)) put_attrs(&e, i);
  put_values(&e);
  PL_TRY(put_steps(&e));
  put_ports(&e, "in", e.k->in, e.k->nin);
  put_ports(&e, "out", e.k->out, e.k->nout);
  put_kept(&e);
  put_weights(&e, prefix, weights);
  fprintf(source,
          "static const PlkProgram program = {.vals = vals, .steps = steps, .in = in, .out = out, .weights = weights, .kept = kept, .arena "
          "= %" PRId64 ", .nvals = %d, .nsteps = %d, .nin = %d, .nout = %d, .nweights = %d};\n",
          e.k->arena, (int)e.k->nvals, (int)e.k->nsteps, (int)e.k->nin, (int)e.k->nout, (int)e.k->nweights);
  if (fflush(source) != 0 || ferror(source) || fflush(weights) != 0 || ferror(weights))
    return pl_file_fail("cannot write", "the program's source", errno);
  return PL_OK;
}
