/* SPDX-License-Identifier: MIT
 * Saving models again, as T.save_graph does: the text that was read, with the newest numbers of optimizers, and the weights as they are.
 * Both files carry a checksum of the text, and the tensors bring the text along where they replace another, so that a save which is
 * cut between the two is told (lua/perilune/graph/file.lua). */
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/deploy/model.h"
#include "engine/deploy/text_fields.h"
#include "engine/device/device.h"
#include "engine/io/file.h"

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to save a model"); }

/* ---- the text --------------------------------------------------------------------------------------------------------- */

static void put_float(FILE *out, double v) {
  char s[40];
  if (isnan(v)) fputs("nan", out);
  else if (isinf(v)) fputs(v > 0 ? "inf" : "-inf", out);
  else {
    snprintf(s, sizeof s, "%.17g", v);
    const char *point = localeconv()->decimal_point; /* the program that uses us may have set a locale */
    char *at = strcmp(point, ".") != 0 ? strstr(s, point) : NULL;
    if (at) {
      *at = '.';
      memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    fputs(s, out);
    if (!strpbrk(s, ".e")) fputs(".0", out);
  }
}

static bool is_number(const PlOp *op, int k) {
  const PlAttrType t = op->attrs[k].type;
  return t == PL_A_INT || t == PL_A_FLOAT || t == PL_A_BOOL || t == PL_A_FLOATS;
}

static void put_number(FILE *out, const PlOp *op, const PlAttrs *a, int k) {
  fprintf(out, " %s=", op->attrs[k].name);
  if (op->attrs[k].type == PL_A_FLOAT) put_float(out, pl_attr_f(a, k));
  else if (op->attrs[k].type == PL_A_INT) fprintf(out, "%" PRId64, pl_attr_i(a, k));
  else if (op->attrs[k].type == PL_A_FLOATS) {
    fputc('{', out);
    for (int i = 0; i < pl_attr_n(a, k); i++) {
      double v;
      memcpy(&v, pl_attr_list(a, k) + i, sizeof v);
      if (i) fputc(',', out);
      put_float(out, v);
    }
    fputc('}', out);
  } else fputs(pl_attr_i(a, k) ? "true" : "false", out);
}

/* An optimizer's node: the line up to its attributes, then those that are numbers as they are now, then the others as they were. */
static void put_node(FILE *out, PlText line, const PlGNode *n) {
  PlText rest = line, one;
  for (int i = 0; i < 8 && pl_field_next(&rest, ' ', &one); i++) fprintf(out, i ? " %.*s" : "%.*s", (int)one.n, one.s);
  for (int k = 0; k < n->op->nattr; k++)
    if (is_number(n->op, k) && (n->attrs->set >> k & 1)) put_number(out, n->op, n->attrs, k);
  while (pl_field_next(&rest, ' ', &one)) {
    const char *eq = memchr(one.s, '=', one.n);
    int k = 0;
    while (eq && k < n->op->nattr && !pl_field_is((PlText){one.s, (size_t)(eq - one.s)}, n->op->attrs[k].name)) k++;
    if (eq && k < n->op->nattr && !is_number(n->op, k)) fprintf(out, " %.*s", (int)one.n, one.s);
  }
  fputc('\n', out);
}

/* The lines behind the pair. */
static void put_lines(FILE *out, const PlSavedGraph *g) {
  PlText text = g->text, line;
  for (int64_t number = 1, node = 0; pl_field_next(&text, '\n', &line) && text.s; number++) {
    if (number <= 2) continue;
    PlText words = line, word;
    const bool is_node = pl_field_next(&words, ' ', &word) && pl_field_is(word, "node");
    const PlGNode *n = is_node && node < g->nnodes && g->nodes[node] > 0 ? &g->graph->nodes[g->nodes[node] - 1] : NULL;
    node += is_node;
    if (n && pl_graph_is_step(n)) put_node(out, line, n);
    else fprintf(out, "%.*s\n", (int)line.n, line.s);
  }
}

static uint32_t sum_of(const char *s, size_t n) {
  uint32_t h = 2166136261U; /* FNV-1a: it tells texts apart, and need be no more */
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619U;
  return h;
}

/* *text: malloc'ed; sum has room for 16. */
static PlStatus write_text(const PlSavedGraph *g, char **text, size_t *n, char *sum) {
  char *lines = NULL;
  size_t nlines = 0;
  *text = NULL;
  FILE *f = open_memstream(&lines, &nlines);
  if (!f) return no_memory();
  put_lines(f, g);
  if (fclose(f) != 0 || !lines) {
    free(lines);
    return no_memory();
  }
  snprintf(sum, 16, "%08" PRIx32, sum_of(lines, nlines));
  f = open_memstream(text, n);
  if (f) fprintf(f, "perilune graph 1\npair %s\n", sum);
  const bool fine = f && fwrite(lines, 1, nlines, f) == nlines;
  const bool closed = f && fclose(f) == 0;
  free(lines);
  if (fine && closed && *text) return PL_OK;
  free(*text);
  *text = NULL;
  return no_memory();
}

/* As metadata has it: UTF-8, whatever the names in it are. */
static char *escaped(const char *s, size_t n, size_t *to) {
  char *out = malloc(3 * n + 1), *at = out;
  if (!out) return NULL;
  for (size_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)s[i];
    if (c == '%' || c >= 128) at += snprintf(at, 4, "%%%02X", c);
    else *at++ = (char)c;
  }
  *to = (size_t)(at - out);
  return out;
}

/* ---- both files ---------------------------------------------------------------------------------------------------------- */

/* The checksum of the text that is there and will be replaced; 0 characters: there is none. */
static size_t sum_there(const char *path, char *sum) {
  char *old = NULL;
  size_t n = 0;
  if (pl_file_bytes(path, PL_SAVED_MOST_BYTES, &old, &n) != PL_OK) return 0;
  const PlText pair = pl_saved_graph_pair((PlText){old, n});
  const size_t k = pair.n < 16 ? pair.n : 0;
  memcpy(sum, pair.s, k);
  plk_scratch_free(old);
  return k;
}

static PlStatus write_files(perilune_model *m, const char *path, PlText text, const char *sum) {
  const PlGraph *f = m->base->saved.graph;
  char replaced[16], *brought = NULL, *file = malloc(strlen(path) + sizeof ".safetensors");
  PlText *names = calloc((size_t)m->nweights + 1, sizeof *names);
  PlTensor **tensors = calloc((size_t)m->nweights + 1, sizeof *tensors);
  PlStatus s = names && tensors && file ? PL_OK : no_memory();
  PlText meta[6] = {
      {"perilune.graph", 14}, {sum, strlen(sum)}, {"perilune.graph.replaces", 23}, {"", 0}, {"perilune.graph.text", 19}, {"", 0}};
  const size_t nreplaced = sum_there(path, replaced);
  const bool other = nreplaced > 0 && !(nreplaced == strlen(sum) && memcmp(replaced, sum, nreplaced) == 0);
  if (s == PL_OK && other) {
    meta[3] = (PlText){replaced, nreplaced};
    brought = escaped(text.s, text.n, &meta[5].n);
    meta[5].s = brought;
    if (!brought) s = no_memory();
  }
  for (int32_t i = 0; i < m->nweights && s == PL_OK; i++) {
    const PlGValue *v = &f->vals[m->weights[i]];
    names[i] = (PlText){v->name, strlen(v->name)};
    s = pl_tensor_on_host(&tensors[i], v->real);
  }
  if (s == PL_OK) {
    memcpy(file, path, strlen(path));
    memcpy(file + strlen(path), ".safetensors", sizeof ".safetensors");
    s = pl_safetensors_save(file, m->nweights, names, tensors, other ? 3 : 1, meta, &(PlBeside){path, text});
  }
  for (int32_t i = 0; tensors && i < m->nweights; i++) pl_tensor_release(tensors[i]);
  free(names);
  free(tensors);
  free(brought);
  free(file);
  return s;
}

perilune_status perilune_model_save(perilune_model *m, const char *path) {
  PL_TRY(pl_model_given("perilune_model_save", "the model", m));
  PL_TRY(pl_model_given("perilune_model_save", "path", path));
  char *text, sum[16];
  size_t n;
  pthread_mutex_lock(&m->lock);
  PlStatus s = write_text(&m->base->saved, &text, &n, sum);
  if (s == PL_OK) s = write_files(m, path, (PlText){text, n}, sum);
  pthread_mutex_unlock(&m->lock);
  free(text);
  return s;
}
