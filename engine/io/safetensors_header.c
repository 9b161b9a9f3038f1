/* SPDX-License-Identifier: MIT
 * Parser of safetensors headers: {"name": {"dtype": "F32", "shape": [2,3],
 * "data_offsets": [0,24]}, …,
 * "__metadata__": {"key": "value"}}. JSON as RFC 8259 has it, numbers restricted to what
 * sizes need. */
#include "engine/io/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#include "engine/io/file.h"
#include "kernels/kernel.h"

typedef struct Cursor {
  char *p, *end;
  const char *path, *text;
} Cursor;

static PlStatus bad(const Cursor *c, const char *why) {
  return pl_file_bad(c->path, "malformed header at byte %zu: %s", (size_t)(c->p - c->text) + 8, why);
}

static void skip_space(Cursor *c) {
  while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')) c->p++;
}

static bool accept(Cursor *c, char ch) {
  skip_space(c);
  if (c->p >= c->end || *c->p != ch) return false;
  c->p++;
  return true;
}

static PlStatus expect(Cursor *c, char ch) {
  if (accept(c, ch)) return PL_OK;
  char why[] = "expected 'x'";
  why[10] = ch;
  return bad(c, why);
}

/* ---- strings ------------------------------------------------------------------------------------------- */

/* Bytes of the well-formed UTF-8 sequence at s (RFC 3629: no overlong forms, no
 * surrogates), or 0. */
static size_t utf8_len(const unsigned char *s, size_t n) {
  if (s[0] < 0x80) return 1;
  size_t len = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
  if (s[0] < 0xC2 || s[0] > 0xF4 || len > n) return 0;
  for (size_t i = 1; i < len; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F)) return 0;
  if ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0;
  return len;
}

size_t pl_utf8_char(const char *s, size_t n) { return utf8_len((const unsigned char *)s, n); }

bool pl_utf8_valid(const char *s, size_t n) {
  for (size_t i = 0; i < n;) {
    uint64_t eight;
    if (n - i >= sizeof eight) { /* nearly all texts are ASCII */
      memcpy(&eight, s + i, sizeof eight);
      if (!(eight & 0x8080808080808080u)) {
        i += sizeof eight;
        continue;
      }
    }
    size_t k = utf8_len((const unsigned char *)s + i, n - i);
    if (k == 0) return false;
    i += k;
  }
  return true;
}

static int hex4(const char *p, const char *end) {
  int v = 0;
  if (end - p < 4) return -1;
  for (int i = 0; i < 4; i++) {
    char ch = p[i];
    int d = ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
    if (d < 0) return -1;
    v = v * 16 + d;
  }
  return v;
}

static char *put_utf8(char *w, int u) {
  if (u < 0x80) {
    *w++ = (char)u;
  } else if (u < 0x800) {
    *w++ = (char)(0xC0 | u >> 6);
    *w++ = (char)(0x80 | (u & 63));
  } else if (u < 0x10000) {
    *w++ = (char)(0xE0 | u >> 12);
    *w++ = (char)(0x80 | (u >> 6 & 63));
    *w++ = (char)(0x80 | (u & 63));
  } else {
    *w++ = (char)(0xF0 | u >> 18);
    *w++ = (char)(0x80 | (u >> 12 & 63));
    *w++ = (char)(0x80 | (u >> 6 & 63));
    *w++ = (char)(0x80 | (u & 63));
  }
  return w;
}

/* The escape behind a backslash: one character, or \uHHHH (a pair of them for one beyond
 * U+FFFF). */
static PlStatus take_escape(Cursor *c, char **w) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char ch = c->p < c->end ? *c->p++ : 0;
  const char *k = ch ? strchr(from, ch) : NULL;
  if (k) {
    *(*w)++ = to[k - from];
    return PL_OK;
  }
  if (ch != 'u') return bad(c, "unknown escape");
  int u = hex4(c->p, c->end);
  if (u < 0) return bad(c, "\\u needs four hexadecimal digits");
  c->p += 4;
  if (u >= 0xDC00 && u <= 0xDFFF) return bad(c, "half a surrogate pair");
  if (u >= 0xD800 && u <= 0xDBFF) {
    int v = c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u' ? hex4(c->p + 2, c->end) : -1;
    if (v < 0xDC00 || v > 0xDFFF) return bad(c, "half a surrogate pair");
    c->p += 6;
    u = 0x10000 + ((u - 0xD800) << 10) + (v - 0xDC00);
  }
  *w = put_utf8(*w, u);
  return PL_OK;
}

/* A string, decoded over its own source: every escape is longer than what it stands for.
 * With keep false nothing is changed, so that the same text can be taken again. */
static PlStatus take_string(Cursor *c, bool keep, const char **s, size_t *n) {
  PL_TRY(expect(c, '"'));
  char *start = c->p, *w = c->p, spare[8];
  while (c->p < c->end && *c->p != '"') {
    unsigned char ch = (unsigned char)*c->p;
    if (ch < 0x20) return bad(c, "control character in a string");
    if (ch == '\\') {
      c->p++;
      char *at = keep ? w : spare;
      PL_TRY(take_escape(c, &at));
      if (keep) w = at;
    } else {
      size_t k = utf8_len((const unsigned char *)c->p, (size_t)(c->end - c->p));
      if (k == 0) return bad(c, "not UTF-8");
      if (keep) {
        memmove(w, c->p, k);
        w += k;
      }
      c->p += k;
    }
  }
  if (c->p >= c->end) return bad(c, "a string does not end");
  c->p++;
  *s = start;
  *n = (size_t)(w - start);
  return PL_OK;
}

static bool is_text(const char *s, size_t n, const char *lit) { return n == strlen(lit) && memcmp(s, lit, n) == 0; }

/* ---- numbers, dtypes ----------------------------------------------------------------------------------- */

static PlStatus take_size(Cursor *c, int64_t *v) {
  skip_space(c);
  if (c->p >= c->end || *c->p < '0' || *c->p > '9') return bad(c, "expected a non-negative integer");
  if (*c->p == '0' && c->p + 1 < c->end && c->p[1] >= '0' && c->p[1] <= '9') return bad(c, "a number begins with 0");
  int64_t x = 0;
  for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
    if (__builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *c->p - '0', &x)) return bad(c, "a size is too large");
  if (c->p < c->end && (*c->p == '.' || *c->p == 'e' || *c->p == 'E')) return bad(c, "expected an integer");
  *v = x;
  return PL_OK;
}

static PlStatus take_dtype(Cursor *c, PlEntry *e) {
  const char *s;
  size_t n;
  PL_TRY(take_string(c, true, &s, &n));
  e->wire = pl_wire_find(s, n);
  if (e->wire) return PL_OK;
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: tensor \"%.*s\" has dtype %.*s, which perilune does not know", c->path,
                              (int)(e->name_len < 80 ? e->name_len : 80), e->name, (int)(n < 20 ? n : 20), s));
}

/* The entry keeps where the numbers are; pl_header_shape reads them again when they are wanted. */
static PlStatus take_shape(Cursor *c, PlEntry *e, int64_t *shape) {
  PL_TRY(expect(c, '['));
  e->shape_at = (uint32_t)(c->p - c->text);
  int ndim = 0;
  if (!accept(c, ']')) {
    do {
      if (ndim == PL_MAX_DIM) return bad(c, "too many dimensions (at most 16)");
      PL_TRY(take_size(c, &shape[ndim++]));
    } while (accept(c, ','));
    PL_TRY(expect(c, ']'));
  }
  e->ndim = (uint8_t)ndim;
  return PL_OK;
}

static PlStatus take_offsets(Cursor *c, PlEntry *e) {
  PL_TRY(expect(c, '['));
  PL_TRY(take_size(c, &e->begin));
  PL_TRY(expect(c, ','));
  PL_TRY(take_size(c, &e->end));
  return expect(c, ']');
}

static PlStatus take_entry(Cursor *c, PlEntry *e) {
  enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
  int seen = 0;
  int64_t bytes, shape[PL_MAX_DIM];
  PL_TRY(expect(c, '{'));
  do {
    const char *key;
    size_t n;
    PL_TRY(take_string(c, true, &key, &n));
    PL_TRY(expect(c, ':'));
    int which = is_text(key, n, "dtype") ? DTYPE : is_text(key, n, "shape") ? SHAPE : is_text(key, n, "data_offsets") ? OFFSETS : 0;
    if (which == 0) return bad(c, "a tensor has dtype, shape and data_offsets, nothing else");
    if (seen & which) return bad(c, "a key appears twice");
    seen |= which;
    PL_TRY(which == DTYPE ? take_dtype(c, e) : which == SHAPE ? take_shape(c, e, shape) : take_offsets(c, e));
  } while (accept(c, ','));
  PL_TRY(expect(c, '}'));
  if (seen != (DTYPE | SHAPE | OFFSETS)) return bad(c, "a tensor needs dtype, shape and data_offsets");
  /* the same rule as for any tensor: also sizes beside a 0 must multiply to something */
  const PlDtype dtype = e->wire->dtype == PL_NDTYPE ? PL_F64 : (PlDtype)e->wire->dtype;
  if (pl_file_shape(c->path, dtype, e->ndim, shape, &bytes) != PL_OK) return bad(c, "a shape overflows");
  const int64_t numel = bytes / (int64_t)pl_dtype_size(dtype), bits = e->wire->bits;
  if (bits % 8 && numel % 8) return bad(c, "elements of less than a byte that do not fill the last one");
  bytes = bits % 8 ? numel / 8 * bits : numel * (bits / 8);
  if (e->begin > e->end || e->end - e->begin != bytes) return bad(c, "data_offsets do not fit the dtype and shape");
  return PL_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static PlStatus skip_metadata(Cursor *c, PlHeader *h) {
  const char *s;
  size_t n;
  if (h->meta_seen) return bad(c, "__metadata__ appears twice");
  h->meta_seen = true;
  PL_TRY(expect(c, '{'));
  if (accept(c, '}')) return PL_OK;
  h->meta_at = (size_t)(c->p - c->text);
  do {
    PL_TRY(take_string(c, false, &s, &n));
    PL_TRY(expect(c, ':'));
    PL_TRY(take_string(c, false, &s, &n));
  } while (accept(c, ','));
  return expect(c, '}');
}

static int by_name(const void *a, const void *b) {
  const PlEntry *x = a, *y = b;
  size_t n = x->name_len < y->name_len ? x->name_len : y->name_len;
  int d = memcmp(x->name, y->name, n);
  return d ? d : x->name_len < y->name_len ? -1 : x->name_len > y->name_len;
}

/* Empty tensors are between their neighbours; the name keeps the order a total one. */
static int by_offset(const void *a, const void *b) {
  const PlEntry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end < y->end ? -1 : 1;
  return by_name(a, b);
}

static PlStatus check_entries(PlHeader *h, const char *path, int64_t data) {
  size_t n = (size_t)h->n;
  if (n > 0) qsort(h->entry, n, sizeof *h->entry, by_name);
  for (size_t i = 1; i < n; i++)
    if (by_name(&h->entry[i - 1], &h->entry[i]) == 0) {
      const PlEntry *e = &h->entry[i];
      return pl_file_bad(path, "tensor \"%.*s\" appears twice", (int)(e->name_len < 80 ? e->name_len : 80), e->name);
    }
  if (n > 0) qsort(h->entry, n, sizeof *h->entry, by_offset);
  int64_t at = 0;
  for (size_t i = 0; i < n; i++) {
    const PlEntry *e = &h->entry[i];
    if (e->begin != at)
      return pl_file_bad(path, "tensor \"%.*s\" begins at byte %lld of the data where %lld was due (%s)",
                         (int)(e->name_len < 80 ? e->name_len : 80), e->name, (long long)e->begin, (long long)at,
                         e->begin < at ? "overlap" : "hole");
    at = e->end;
  }
  if (at != data)
    return pl_file_bad(path, "%s: the header describes %lld bytes of data, the file has %lld", at > data ? "truncated" : "too long",
                       (long long)at, (long long)data);
  return PL_OK;
}

/* An upper bound for the number of tensors that stays below the size of the text itself.
 */
static size_t count_bound(const PlHeader *h) {
  size_t braces = 0;
  for (size_t i = 0; i < h->len; i++) braces += h->text[i] == '{';
  size_t shortest = strlen("\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}"), fit = h->len / shortest;
  return braces <= fit ? braces : fit + 1;
}

PlStatus pl_header_parse(PlHeader *h, const char *path, int64_t data) {
  Cursor c = {.p = h->text, .end = h->text + h->len, .path = path, .text = h->text};
  size_t room = count_bound(h);
  void *mem = NULL;
  if (room > 0) PL_TRY(pl_file_code(plk_scratch(room * sizeof(PlEntry), &mem)));
  h->entry = mem;
  h->n = 0;
  h->meta_at = 0;
  h->meta_seen = false;
  if (!accept(&c, '{')) return bad(&c, "it must begin with '{'");
  if (!accept(&c, '}')) {
    do {
      const char *name;
      size_t n;
      PL_TRY(take_string(&c, true, &name, &n));
      PL_TRY(expect(&c, ':'));
      if (is_text(name, n, "__metadata__")) {
        PL_TRY(skip_metadata(&c, h));
        continue;
      }
      if ((size_t)h->n >= room) return bad(&c, "expected '{'");
      PlEntry *e = &h->entry[h->n];
      memset(e, 0, sizeof *e);
      e->name = name;
      e->name_len = (uint32_t)n;
      PL_TRY(take_entry(&c, e));
      h->n++;
    } while (accept(&c, ','));
    PL_TRY(expect(&c, '}'));
  }
  skip_space(&c);
  if (c.p != c.end) return bad(&c, "text behind the closing '}'");
  return check_entries(h, path, data);
}

void pl_header_shape(const PlHeader *h, const PlEntry *e, int64_t *shape) {
  Cursor c = {.p = h->text + e->shape_at, .end = h->text + h->len, .path = "", .text = h->text};
  for (int i = 0; i < e->ndim; i++) {
    shape[i] = 0;
    (void)take_size(&c, &shape[i]); /* cannot fail: the same bytes were read before */
    (void)accept(&c, ',');
  }
}

bool pl_header_next_meta(PlHeader *h, const char **key, size_t *nkey, const char **value, size_t *nvalue) {
  if (h->meta_at == 0) return false;
  Cursor c = {.p = h->text + h->meta_at, .end = h->text + h->len, .path = "", .text = h->text};
  bool ok = take_string(&c, true, key, nkey) == PL_OK && accept(&c, ':') && take_string(&c, true, value, nvalue) == PL_OK;
  h->meta_at = ok && accept(&c, ',') ? (size_t)(c.p - c.text) : 0;
  return ok;
}

void pl_header_free(PlHeader *h) {
  plk_scratch_free(h->entry);
  h->entry = NULL;
  h->n = 0;
}
