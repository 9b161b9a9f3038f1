/* SPDX-License-Identifier: MIT
 * See text_fields.h. */
#include "engine/deploy/text_fields.h"

#include <math.h>
#include <string.h>

#include "engine/io/parse_number.h"

bool pl_field_next(PlText *rest, char sep, PlText *out) {
  if (!rest->s) return false;
  const char *at = memchr(rest->s, sep, rest->n);
  *out = (PlText){rest->s, at ? (size_t)(at - rest->s) : rest->n};
  if (at) *rest = (PlText){at + 1, rest->n - out->n - 1};
  else *rest = (PlText){NULL, 0};
  return true;
}

bool pl_field_integer(PlText t, int64_t lo, int64_t hi, int64_t *out) {
  const bool minus = t.n > 0 && t.s[0] == '-';
  const size_t begin = minus ? 1 : 0;
  int64_t v = 0;
  if (t.n == begin || t.n > 20) return false;
  if (t.s[begin] == '0' && (t.n > begin + 1 || minus)) return false;
  for (size_t i = begin; i < t.n; i++) {
    if (t.s[i] < '0' || t.s[i] > '9') return false;
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, t.s[i] - '0', &v)) return false; /* counts down: INT64_MIN */
  }
  if (!minus && v == INT64_MIN) return false;
  if (!minus) v = -v;
  if (v < lo || v > hi) return false;
  *out = v;
  return true;
}

bool pl_field_number(PlText t, bool *is_int, int64_t *i, double *f) {
  PlDecimal d;
  *is_int = pl_field_integer(t, INT64_MIN, INT64_MAX, i);
  *f = *is_int ? (double)*i : 0;
  if (*is_int) return true;
  if (pl_field_is(t, "nan") || pl_field_is(t, "-nan")) *f = NAN;
  else if (pl_field_is(t, "inf")) *f = INFINITY;
  else if (pl_field_is(t, "-inf")) *f = -INFINITY;
  else {
    for (size_t k = 0; k < t.n; k++)
      if (!strchr("0123456789.eE+-", t.s[k]) || !t.s[k]) return false;
    const size_t digit = t.n > 0 && t.s[0] == '-';
    if (t.n == digit || t.s[digit] < '0' || t.s[digit] > '9' || !pl_number_parse(t.s, t.n, &d)) return false;
    *f = d.f;
  }
  return true;
}

bool pl_field_dtype(PlText t, PlDtype *out) {
  for (int d = 0; d < PL_NDTYPE; d++)
    if (pl_field_is(t, pl_dtype_name((PlDtype)d))) {
      *out = (PlDtype)d;
      return true;
    }
  return false;
}

bool pl_field_shape(PlText t, char sep, int *ndim, int64_t *shape) {
  PlText one;
  *ndim = 0;
  if (t.n == 0) return true;
  while (pl_field_next(&t, sep, &one)) {
    if (*ndim == PL_MAX_DIM || !pl_field_integer(one, 0, INT64_MAX, &shape[*ndim])) return false;
    ++*ndim;
  }
  return true;
}

static int hex(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

const char *pl_field_name(PlGraph *f, PlText t, bool *bad) {
  char *to = pl_graph_alloc(f, t.n + 1), *at = to;
  *bad = false;
  if (!to) return NULL;
  for (size_t i = 0; i < t.n; i++) {
    char c = t.s[i];
    if (c == '%' && i + 2 < t.n && hex(t.s[i + 1]) >= 0 && hex(t.s[i + 2]) >= 0) {
      c = (char)(16 * hex(t.s[i + 1]) + hex(t.s[i + 2]));
      i += 2;
    } else *bad |= c == ' ' || (c >= '\t' && c <= '\r'); /* blanks are written as %XX */
    *bad |= c == '\0';
    *at++ = c;
  }
  *at = '\0';
  return to;
}

/* ---- attributes: as file.lua writes them, dimensions and indices from 1 ------------------------------------------ */

static bool is_list(PlAttrType t) { return t == PL_A_DIMS || t == PL_A_INTS || t == PL_A_SHAPE || t == PL_A_FLOATS; }

/* A whole number, which may be written as 2.0. */
static bool whole(bool is_int, double f, int64_t *i) {
  if (is_int) return true;
  if (!(f >= -0x1p63 && f < 0x1p63) || f != floor(f)) return false;
  *i = (int64_t)f;
  return true;
}

static bool from_one(int64_t *v) {
  if (*v == 0) return false;
  if (*v > 0) --*v;
  return true;
}

static bool read_list(const PlAttrDef *d, PlAttrs *a, int k, PlText value, const char **why) {
  int64_t list[PL_ATTR_POOL] = {0}, i;
  int n = 0;
  PlText rest = value, one;
  if (value.n >= 2 && value.s[0] == '{' && value.s[value.n - 1] == '}') rest = (PlText){value.s + 1, value.n - 2};
  *why = "a list of numbers";
  if (rest.n == 0) {
    if (d->has_def) return true; /* an empty list stands for the default */
    return pl_attrs_list(a, k, 0, list) == PL_OK;
  }
  while (pl_field_next(&rest, ',', &one)) {
    bool is_int;
    double f;
    if (n == PL_ATTR_POOL / 2 || !pl_field_number(one, &is_int, &i, &f)) return false;
    if (d->type == PL_A_FLOATS) memcpy(&i, &f, sizeof i);
    else if (!whole(is_int, f, &i) || (d->type == PL_A_DIMS && !from_one(&i))) return false;
    list[n++] = i;
  }
  a->isint = (uint16_t)(a->isint & ~(1u << k));
  return pl_attrs_list(a, k, n, list) == PL_OK;
}

static bool read_word(const PlAttrDef *d, PlAttrs *a, int k, PlText word) {
  const char *p = d->choices;
  for (int64_t at = 0; p && *p; at++) {
    const size_t m = strcspn(p, "|");
    if (m == word.n && memcmp(p, word.s, m) == 0) {
      pl_attrs_int(a, k, at);
      return true;
    }
    p += m;
    p += *p == '|';
  }
  return false;
}

bool pl_field_attr(const PlOp *op, PlAttrs *a, int k, PlText value, const char **why) {
  const PlAttrDef *d = &op->attrs[k];
  const bool quoted = value.n >= 2 && value.s[0] == '"' && value.s[value.n - 1] == '"';
  const bool yes = pl_field_is(value, "true"), no = pl_field_is(value, "false");
  const PlText word = quoted ? (PlText){value.s + 1, value.n - 2} : (PlText){NULL, 0};
  PlDtype dtype;
  bool is_int = false;
  int64_t i = 0;
  double f = 0;
  if (is_list(d->type)) return read_list(d, a, k, value, why);
  const bool number = !quoted && !yes && !no && pl_field_number(value, &is_int, &i, &f);
  switch (d->type) {
  case PL_A_DIM:
  case PL_A_NEWDIM:
  case PL_A_INDEX:
    *why = "an integer, from 1 or from -1";
    if (!number || !whole(is_int, f, &i) || !from_one(&i)) return false;
    break;
  case PL_A_BASE:
    *why = "0 or 1";
    if (!number || !whole(is_int, f, &i) || (i != 0 && i != 1)) return false;
    break;
  case PL_A_FLOAT:
    *why = "a number";
    if (number) pl_attrs_float(a, k, f);
    return number;
  case PL_A_SCALAR:
    *why = "a number";
    if (number && !is_int) {
      pl_attrs_float(a, k, f);
      return true;
    }
    if (d->truth && (yes || no)) i = yes;
    else if (!number) return false;
    break;
  case PL_A_BOOL:
    *why = "true or false";
    if (!yes && !no) return false;
    i = yes;
    break;
  case PL_A_DTYPE:
    *why = "a dtype";
    if (!quoted || !pl_field_dtype(word, &dtype)) return false;
    i = dtype;
    break;
  case PL_A_ENUM: *why = d->choices; return quoted && read_word(d, a, k, word);
  default:
    *why = "an integer";
    if (!number || !whole(is_int, f, &i)) return false;
  }
  pl_attrs_int(a, k, i);
  return true;
}
