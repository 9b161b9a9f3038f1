/* SPDX-License-Identifier: MIT
 * See csv.h. */
#include "engine/io/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/file.h"
#include "engine/io/parse_number.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

/* WIDE, LONG: an integer that f32, or f64, does not hold; HUGE: one beyond 64 bits */
enum { SEEN_INT = 1, SEEN_FLOAT = 2, SEEN_BOOL = 4, SEEN_TEXT = 8, SEEN_WIDE = 16, SEEN_LONG = 32, SEEN_HUGE = 64 };
enum { MAX_COLUMNS = 1 << 20, POLL_LINES = 4096 };

typedef struct Column {
  int64_t missing;
  PlText name;
  int seen;
} Column;

struct PlCsv {
  PlCsvOptions o;
  char *path, *names;            /* owned */
  char *owned;                   /* the file's bytes (scratch), or NULL */
  const char *text, *end, *body; /* body: behind the header */
  int64_t ncol, nrow, body_line;
  Column *col; /* scratch */
  /* the walk of pl_csv_next_text */
  const char *at;
  int64_t next_col;
  char *field;
  size_t room;
};

/* One field. Inside quotes: `s … n` is what is between them, doubled quotes still doubled. */
typedef struct Field {
  const char *s;
  size_t n;
  bool quoted, doubled, last; /* last: the line ends behind it */
} Field;

/* ---- walking ------------------------------------------------------------------------------------------------------ */

/* Behind the end of the line at p: "\n", "\r\n" or "\r". */
static const char *skip_newline(const char *p, const char *end) {
  if (p < end && *p == '\r') p++;
  if (p < end && *p == '\n') p++;
  return p;
}

static bool quoted_field(const PlCsv *c, const char **at, Field *f) {
  const char *p = *at + 1, *q = p;
  f->quoted = true;
  for (;;) {
    q = memchr(q, c->o.quote, (size_t)(c->end - q));
    if (!q) return false;
    if (q + 1 >= c->end || q[1] != c->o.quote) break;
    f->doubled = true;
    q += 2;
  }
  f->s = p;
  f->n = (size_t)(q - p);
  *at = q + 1;
  return *at >= c->end || **at == c->o.delimiter || **at == '\n' || **at == '\r';
}

/* The field at *at; moves behind its delimiter or line end. false: a quote does not end, or text follows it. */
static bool next_field(const PlCsv *c, const char **at, Field *f) {
  const char *p = *at, *end = c->end;
  const char delimiter = c->o.delimiter;
  *f = (Field){.s = p};
  if (p < end && *p == c->o.quote && c->o.quote) {
    if (!quoted_field(c, &p, f)) return false;
  } else {
    while (p < end && *p != delimiter && *p != '\n' && *p != '\r') p++;
    f->n = (size_t)(p - f->s);
  }
  f->last = p >= end || *p != delimiter;
  *at = f->last ? skip_newline(p, end) : p + 1;
  return true;
}

/* Skips empty and comment lines; false at the end of the text. */
static bool next_line(const PlCsv *c, const char **at, int64_t *line) {
  const char *p = *at;
  while (p < c->end && (*p == '\n' || *p == '\r' || (c->o.comment && *p == c->o.comment))) {
    while (p < c->end && *p != '\n' && *p != '\r') p++;
    p = skip_newline(p, c->end);
    (*line)++;
  }
  *at = p;
  return p < c->end;
}

static PlStatus bad(const PlCsv *c, int64_t line, const char *why) { return pl_file_bad(c->path, "line %lld: %s", (long long)line, why); }

static PlStatus bad_quote(const PlCsv *c, int64_t line) { return bad(c, line, "a quoted field does not end, or text follows it"); }

/* Lines inside a quoted field count too. */
static int64_t lines_in(const Field *f) {
  int64_t n = 0;
  for (size_t i = 0; f->quoted && i < f->n; i++) n += f->s[i] == '\n';
  return n;
}

/* ---- kinds ---------------------------------------------------------------------------------------------------------- */

static bool is_missing(const PlCsv *c, const Field *f) {
  if (f->n == 0) return !f->quoted;
  for (int i = 0; i < c->o.nmissing; i++)
    if (c->o.missing[i].n == f->n && memcmp(c->o.missing[i].s, f->s, f->n) == 0) return !f->quoted;
  return false;
}

/* 1 true, 0 false, -1 neither. */
static int as_bool(const Field *f) {
  static const char yes[] = "true", no[] = "false";
  const char *word = f->n == 4 ? yes : f->n == 5 ? no : NULL;
  if (!word) return -1;
  for (size_t i = 0; i < f->n; i++)
    if ((f->s[i] | 0x20) != word[i]) return -1;
  return f->n == 4;
}

/* Below 2^63 in both directions, so that the way back is defined. */
static bool f64_holds(const PlDecimal *v) { return v->f < 0x1p63 && (int64_t)v->f == v->i; }

static int kind_of(const Field *f) {
  PlDecimal v;
  if (!f->doubled && pl_number_parse(f->s, f->n, &v)) {
    if (!v.plain) return SEEN_FLOAT;
    if (!v.is_int) return SEEN_INT | SEEN_WIDE | SEEN_LONG | SEEN_HUGE;
    const bool wide = (double)(float)v.f != v.f;
    return SEEN_INT | (wide ? SEEN_WIDE : 0) | (f64_holds(&v) ? 0 : SEEN_WIDE | SEEN_LONG);
  }
  return as_bool(f) >= 0 ? SEEN_BOOL : SEEN_TEXT;
}

static PlStatus wrong_width(const PlCsv *c, int64_t line, int64_t got) {
  return pl_file_bad(c->path, "line %lld: %lld fields where the first line has %lld (delimiter '%c')", (long long)line, (long long)got,
                     (long long)c->ncol, c->o.delimiter);
}

/* All lines behind the header: their number, the columns' kinds. */
static PlStatus scan(PlCsv *c) {
  const char *at = c->body;
  int64_t line = c->body_line;
  for (; next_line(c, &at, &line); c->nrow++) {
    int64_t k = 0, begin = line;
    for (Field f = {.last = false}; !f.last; k++) {
      if (!next_field(c, &at, &f)) return bad_quote(c, begin);
      line += lines_in(&f);
      if (k >= c->ncol) continue;
      Column *col = &c->col[k];
      if (is_missing(c, &f)) col->missing++;
      else if (!(col->seen & SEEN_TEXT)) col->seen |= kind_of(&f);
    }
    if (k != c->ncol) return wrong_width(c, begin, k);
    line++;
    if (c->nrow % POLL_LINES == 0) PL_TRY(pl_file_code(plk_poll()));
  }
  return PL_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

/* Copies a field without its doubled quotes; returns its length. */
static size_t decode(const PlCsv *c, const Field *f, char *to) {
  if (!f->doubled) {
    memcpy(to, f->s, f->n);
    return f->n;
  }
  size_t n = 0;
  for (size_t i = 0; i < f->n; i++) {
    to[n++] = f->s[i];
    if (f->s[i] == c->o.quote) i++;
  }
  return n;
}

/* Counts the first line's fields, keeps their names. */
static PlStatus read_header(PlCsv *c) {
  const char *at = c->text;
  int64_t line = 1;
  void *mem;
  if (c->end - c->text >= 3 && memcmp(c->text, "\xef\xbb\xbf", 3) == 0) at += 3; /* byte order mark */
  if (!next_line(c, &at, &line)) return pl_file_bad(c->path, "no lines of values");
  const char *first = at;
  int64_t first_line = line;
  for (Field f = {.last = false}; !f.last; c->ncol++)
    if (!next_field(c, &at, &f)) return bad_quote(c, line);
  if (c->ncol > MAX_COLUMNS) return bad(c, line, "more than 1048576 columns");
  PL_TRY(pl_file_code(plk_scratch((size_t)c->ncol * sizeof *c->col, &mem)));
  c->col = mem;
  memset(c->col, 0, (size_t)c->ncol * sizeof *c->col);
  c->body = c->o.header ? at : first;
  c->body_line = c->o.header ? line + 1 : first_line;
  if (!c->o.header) return PL_OK;
  PL_TRY(pl_file_code(plk_scratch((size_t)(at - first) + 1, &mem)));
  c->names = mem;
  char *to = c->names;
  at = first;
  for (int64_t k = 0; k < c->ncol; k++) {
    Field f;
    (void)next_field(c, &at, &f);
    if (k == 0 || f.quoted) c->body_line += lines_in(&f);
    c->col[k].name = (PlText){to, decode(c, &f, to)};
    to += c->col[k].name.n;
  }
  return PL_OK;
}

static PlStatus begin(PlCsv **out, const char *name, char *owned, const char *text, size_t n, const PlCsvOptions *o) {
  PlCsv *c = calloc(1, sizeof *c);
  char *path = strdup(name);
  if (!c || !path) {
    free(c);
    free(path);
    plk_scratch_free(owned);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", name));
  }
  *c = (PlCsv){.o = *o, .path = path, .owned = owned, .text = text, .end = text + n};
  PlStatus st = read_header(c);
  if (st == PL_OK) st = scan(c);
  c->at = c->body;
  c->o.missing = o->missing;
  if (st != PL_OK) {
    pl_csv_release(c);
    return st;
  }
  *out = c;
  return PL_OK;
}

PlStatus pl_csv_open(PlCsv **out, const char *path, const PlCsvOptions *o) {
  char *data;
  size_t n;
  PL_TRY(pl_file_bytes(path, o->max_bytes < 0 ? (int64_t)1 << 32 : o->max_bytes, &data, &n));
  return begin(out, path, data, data, n, o);
}

PlStatus pl_csv_open_text(PlCsv **out, const char *name, const char *text, size_t n, const PlCsvOptions *o) {
  return begin(out, name, NULL, text, n, o);
}

void pl_csv_release(PlCsv *c) {
  if (!c) return;
  plk_scratch_free(c->col);
  plk_scratch_free(c->names);
  plk_scratch_free(c->owned);
  free(c->field);
  free(c->path);
  free(c);
}

int64_t pl_csv_columns(const PlCsv *c) { return c->ncol; }
int64_t pl_csv_rows(const PlCsv *c) { return c->nrow; }
PlText pl_csv_name(const PlCsv *c, int64_t k) { return c->col[k].name.s ? c->col[k].name : (PlText){"", 0}; }
int64_t pl_csv_missing(const PlCsv *c, int64_t k) { return c->col[k].missing; }

PlCsvKind pl_csv_kind(const PlCsv *c, int64_t k) {
  const Column *col = &c->col[k];
  if ((col->seen & (SEEN_INT | SEEN_FLOAT | SEEN_BOOL | SEEN_TEXT)) == SEEN_INT) {
    if (!col->missing && !(col->seen & SEEN_HUGE)) return PL_CSV_INT;
    return col->seen & SEEN_LONG ? PL_CSV_TEXT : col->seen & SEEN_WIDE ? PL_CSV_DOUBLE : PL_CSV_FLOAT;
  }
  if (col->seen == SEEN_BOOL) return col->missing ? PL_CSV_TEXT : PL_CSV_BOOL;
  return col->seen & (SEEN_TEXT | SEEN_BOOL) ? PL_CSV_TEXT : PL_CSV_FLOAT;
}

/* ---- values ------------------------------------------------------------------------------------------------------------ */

static bool fits(PlDtype d, int64_t v) {
  switch (d) {
  case PL_I8: return v >= INT8_MIN && v <= INT8_MAX;
  case PL_I16: return v >= INT16_MIN && v <= INT16_MAX;
  case PL_I32: return v >= INT32_MIN && v <= INT32_MAX;
  case PL_U8: return v >= 0 && v <= UINT8_MAX;
  case PL_BOOL: return v == 0 || v == 1;
  default: return true;
  }
}

/* Writes the field as dtype; false if it cannot be that. */
static bool put(const PlCsv *c, const Field *f, PlDtype dtype, void *to) {
  PlDecimal v;
  if (is_missing(c, f)) {
    if (!pl_is_float(dtype)) return false;
    pl_write_f(dtype, to, (double)NAN);
    return true;
  }
  if (f->doubled || !pl_number_parse(f->s, f->n, &v)) {
    int b = as_bool(f);
    if (b < 0) return false;
    v = (PlDecimal){.is_int = true, .i = b, .f = b};
  }
  if (pl_is_float(dtype)) {
    pl_write_f(dtype, to, v.f);
    return true;
  }
  if (!v.is_int || !fits(dtype, v.i)) return false;
  pl_write_i(dtype, to, v.i);
  return true;
}

static PlStatus bad_value(const PlCsv *c, int64_t line, int64_t k, const Field *f, PlDtype dtype) {
  PlText name = pl_csv_name(c, k);
  return pl_file_bad(c->path, "line %lld, column %lld%s%.*s%s: '%.*s' is no %s", (long long)line, (long long)k + 1, name.n ? " (" : "",
                     (int)(name.n < 60 ? name.n : 60), name.s, name.n ? ")" : "", (int)(f->n < 60 ? f->n : 60), f->s, pl_dtype_name(dtype));
}

PlStatus pl_csv_fill(PlCsv *c, const PlDtype *wanted, PlTensor *const *out) {
  const char *at = c->body;
  int64_t line = c->body_line;
  for (int64_t row = 0; row < c->nrow && next_line(c, &at, &line); row++, line++) {
    int64_t begin = line;
    for (int64_t k = 0; k < c->ncol; k++) {
      Field f;
      if (!next_field(c, &at, &f)) return bad_quote(c, begin);
      line += lines_in(&f);
      if (wanted[k] >= PL_NDTYPE) continue;
      char *to = (char *)out[k]->a.data + (size_t)row * pl_dtype_size(wanted[k]);
      if (!put(c, &f, wanted[k], to)) return bad_value(c, begin, k, &f, wanted[k]);
    }
    if (row % POLL_LINES == 0) PL_TRY(pl_file_code(plk_poll()));
  }
  return PL_OK;
}

bool pl_csv_next_text(PlCsv *c, const bool *wanted, int64_t *column, PlText *text) {
  for (;;) {
    int64_t line = 0, k = c->next_col;
    Field f;
    if (k == 0 && !next_line(c, &c->at, &line)) return false;
    if (!next_field(c, &c->at, &f)) return false; /* cannot be: the scan saw the same bytes */
    c->next_col = k + 1 < c->ncol ? k + 1 : 0;
    if (!wanted[k]) continue;
    *column = k;
    *text = (PlText){f.s, f.n};
    if (is_missing(c, &f)) text->s = NULL;
    if (!f.doubled) return true;
    if (f.n > c->room) {
      char *p = realloc(c->field, f.n);
      if (!p) return false;
      c->field = p;
      c->room = f.n;
    }
    *text = (PlText){c->field, decode(c, &f, c->field)};
    return true;
  }
}
