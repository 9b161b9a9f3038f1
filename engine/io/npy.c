/* SPDX-License-Identifier: MIT
 * NumPy's npy format (NEP 1; numpy.lib.format): "\x93NUMPY", version, length of the header, the header (a Python
 * dictionary of descr, fortran_order and shape, padded with blanks), the elements. */
#include "engine/io/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/wire.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

enum { MAX_HEADER = 1 << 16, PREFIX = 8 };

typedef struct Header {
  char descr[8];
  bool fortran, swap;
  PlDtype dtype;
  const PlWire *wire; /* of an element in the file */
  int ndim, seen;
  int64_t shape[PL_MAX_DIM];
} Header;

typedef struct Cursor {
  const char *p, *end, *path;
} Cursor;

static PlStatus bad(const Cursor *c, const char *why) { return pl_file_bad(c->path, "malformed npy header: %s", why); }

static void skip_blanks(Cursor *c) {
  while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\t')) c->p++;
}

static bool accept(Cursor *c, char ch) {
  skip_blanks(c);
  if (c->p >= c->end || *c->p != ch) return false;
  c->p++;
  return true;
}

/* A quoted word without escapes. */
static PlStatus word(Cursor *c, const char **s, size_t *n) {
  char quote = accept(c, '\'') ? '\'' : accept(c, '"') ? '"' : 0;
  if (!quote) return bad(c, "a quoted word was due");
  const char *stop = memchr(c->p, quote, (size_t)(c->end - c->p));
  if (!stop || memchr(c->p, '\\', (size_t)(stop - c->p))) return bad(c, "a quoted word does not end");
  *s = c->p;
  *n = (size_t)(stop - c->p);
  c->p = stop + 1;
  return PL_OK;
}

static bool keyword(Cursor *c, const char *text) {
  size_t n = strlen(text);
  skip_blanks(c);
  if ((size_t)(c->end - c->p) < n || memcmp(c->p, text, n) != 0) return false;
  c->p += n;
  return true;
}

/* A tuple as Python writes it: (), (3,), (3, 4) or (3, 4,). */
static PlStatus shape(Cursor *c, Header *h) {
  bool comma = true; /* before the next size */
  if (!accept(c, '(')) return bad(c, "shape must be a tuple");
  while (!accept(c, ')')) {
    int64_t v = 0;
    skip_blanks(c);
    if (!comma) return bad(c, "',' or ')' was due");
    if (c->p >= c->end || *c->p < '0' || *c->p > '9') return bad(c, "a size was due");
    if (*c->p == '0' && c->p + 1 < c->end && c->p[1] >= '0' && c->p[1] <= '9') return bad(c, "a size begins with 0");
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
      if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->p - '0', &v)) return bad(c, "a size overflows");
    if (c->p < c->end && *c->p == 'L') c->p++; /* Python 2 */
    if (h->ndim == PL_MAX_DIM) return bad(c, "more than 16 dimensions");
    h->shape[h->ndim++] = v;
    comma = accept(c, ',');
  }
  return h->ndim == 1 && !comma ? bad(c, "shape must be a tuple: (n,), not (n)") : PL_OK;
}

static PlStatus entry(Cursor *c, Header *h) {
  enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
  const char *key, *s;
  size_t n, len;
  PL_TRY(word(c, &key, &n));
  if (!accept(c, ':')) return bad(c, "':' was due");
  int which = n == 5 && memcmp(key, "descr", n) == 0            ? DESCR
              : n == 13 && memcmp(key, "fortran_order", n) == 0 ? ORDER
              : n == 5 && memcmp(key, "shape", n) == 0          ? SHAPE
                                                                : 0;
  if (!which || (h->seen & which)) return bad(c, "descr, fortran_order and shape are due, once each");
  h->seen |= which;
  if (which == SHAPE) return shape(c, h);
  if (which == ORDER) {
    h->fortran = keyword(c, "True");
    return h->fortran || keyword(c, "False") ? PL_OK : bad(c, "fortran_order must be True or False");
  }
  if (accept(c, '[')) return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: structured arrays are not supported", c->path));
  PL_TRY(word(c, &s, &len));
  if (memchr(s, '\0', len)) return bad(c, "a NUL in descr");
  if (len >= sizeof h->descr) len = sizeof h->descr - 1;
  memcpy(h->descr, s, len);
  h->descr[len] = '\0';
  return PL_OK;
}

static PlStatus dtype_of(const Cursor *c, Header *h) {
  static const struct {
    const char *name, *wire;
  } known[] = {{"b1", "BOOL"}, {"i1", "I8"},  {"i2", "I16"}, {"i4", "I32"}, {"i8", "I64"}, {"u1", "U8"},
               {"u2", "U16"},  {"u4", "U32"}, {"u8", "U64"}, {"f2", "F16"}, {"f4", "F32"}, {"f8", "F64"}};
  const char *d = h->descr;
  char order = *d == '<' || *d == '>' || *d == '|' || *d == '=' ? *d++ : '=';
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(d, known[i].name) == 0) {
      h->wire = pl_wire_find(known[i].wire, strlen(known[i].wire));
      h->dtype = (PlDtype)h->wire->dtype;
      h->swap = order == (PL_BIG_ENDIAN ? '<' : '>');
      return PL_OK;
    }
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: elements of type '%s', which perilune does not have%s", c->path, h->descr,
                              d[0] == 'O' ? " (Python objects are code)" : ""));
}

static PlStatus parse(Cursor *c, Header *h) {
  if (!accept(c, '{')) return bad(c, "'{' was due");
  while (!accept(c, '}')) {
    PL_TRY(entry(c, h));
    if (!accept(c, ',') && !(c->p < c->end && *c->p == '}')) return bad(c, "',' or '}' was due");
  }
  skip_blanks(c);
  if (c->p != c->end) return bad(c, "text behind the dictionary");
  if (h->seen != 7) return bad(c, "descr, fortran_order and shape are due");
  return dtype_of(c, h);
}

static PlStatus read_header(PlStream *s, Header *h) {
  unsigned char fix[12];
  PL_TRY(pl_stream_take(s, fix, PREFIX));
  if (memcmp(fix, "\x93NUMPY", 6) != 0) return pl_file_bad(s->path, "not an npy file (it must begin with \\x93NUMPY)");
  if (fix[6] < 1 || fix[6] > 3 || fix[7] != 0) return pl_file_bad(s->path, "npy version %d.%d; 1.0, 2.0 and 3.0 are known", fix[6], fix[7]);
  size_t nlen = fix[6] == 1 ? 2 : 4, n = 0;
  PL_TRY(pl_stream_take(s, fix, nlen));
  for (size_t i = 0; i < nlen; i++) n |= (size_t)fix[i] << (8 * i);
  if (n > MAX_HEADER) return pl_file_bad(s->path, "an npy header of %zu bytes", n);
  char *text = malloc(n + 1);
  if (!text) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", s->path));
  PlStatus st = pl_stream_take(s, text, n);
  Cursor c = {.p = text, .end = text + n, .path = s->path};
  if (st == PL_OK) st = parse(&c, h);
  free(text);
  return st;
}

static PlStatus read_data(PlStream *s, const Header *h, PlTensor *t, int64_t bytes) {
  const int64_t n = pl_tensor_numel(t);
  const size_t wire = (size_t)n * (h->wire->bits / 8);
  char *data = pl_tensor_data(t);
  PL_TRY(pl_stream_take(s, data + ((size_t)bytes - wire), wire));
  PL_TRY(pl_stream_expect_end(s));
  return pl_wire_convert(h->wire, s->path, h->swap, data, n);
}

PlStatus pl_npy_read(PlStream *s, PlTensor **out, int64_t max_bytes) {
  Header h;
  memset(&h, 0, sizeof h);
  PL_TRY(read_header(s, &h));
  int64_t bytes, numel = 1, dims[PL_MAX_DIM], strides[PL_MAX_DIM];
  for (int d = 0; d < h.ndim; d++) dims[d] = h.fortran ? h.shape[h.ndim - 1 - d] : h.shape[d];
  PL_TRY(pl_file_shape(s->path, h.dtype, h.ndim, dims, &bytes));
  PL_TRY(pl_stream_check_size(s, bytes / (int64_t)pl_dtype_size(h.dtype) * (h.wire->bits / 8), max_bytes));
  PlTensor *t, *view = NULL;
  PL_TRY(pl_file_code(pl_tensor_empty(&t, h.dtype, h.ndim, dims)));
  PlStatus st = read_data(s, &h, t, bytes);
  if (st == PL_OK && h.fortran && h.ndim > 1) {
    for (int d = 0; d < h.ndim; d++) {
      strides[d] = numel;
      numel *= h.shape[d] ? h.shape[d] : 1;
    }
    st = pl_file_code(pl_tensor_view(&view, t, h.ndim, h.shape, strides, 0));
    pl_tensor_release(t);
    t = view;
  }
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}

PlStatus pl_npy_load(PlTensor **out, const char *path, int64_t max_bytes) {
  if (max_bytes < 0) max_bytes = INT64_MAX;
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  PlStream s;
  PlStatus st = pl_stream_begin(&s, path, fd, 0, size, PL_PLAIN);
  if (st == PL_OK) st = pl_npy_read(&s, out, max_bytes);
  pl_stream_end(&s);
  close(fd);
  return st;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* The header with its prefix: the elements begin at a multiple of 64 bytes. Returns its length. */
static size_t make_header(const PlTensor *t, const char *descr, char *text, size_t room) {
  int64_t n = PREFIX + 2 + snprintf(text + PREFIX + 2, room - PREFIX - 2, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
  for (int d = 0; d < pl_tensor_ndim(t); d++)
    n += snprintf(text + n, room - (size_t)n, "%s%lld", d ? ", " : "", (long long)pl_tensor_shape(t)[d]);
  n += snprintf(text + n, room - (size_t)n, "%s), }", pl_tensor_ndim(t) == 1 ? "," : "");
  size_t whole = ((size_t)n + 1 + 63) / 64 * 64;
  memset(text + n, ' ', whole - (size_t)n);
  text[whole - 1] = '\n';
  memcpy(text, "\x93NUMPY\x01\x00", PREFIX);
  size_t len = whole - PREFIX - 2;
  text[PREFIX] = (char)(len & 0xff);
  text[PREFIX + 1] = (char)(len >> 8);
  return whole;
}

PlStatus pl_npy_header(const PlTensor *t, const char *who, char *text, size_t room, size_t *n) {
  static const char *const descr[PL_NDTYPE] = {[PL_F32] = "f4", [PL_F64] = "f8", [PL_F16] = "f2", [PL_I8] = "i1",  [PL_I16] = "i2",
                                               [PL_I32] = "i4", [PL_I64] = "i8", [PL_U8] = "u1",  [PL_BOOL] = "b1"};
  PlDtype dtype = pl_tensor_dtype(t);
  if (!descr[dtype])
    return pl_file_code(pl_fail(PL_ERR_ARG, "%s: NumPy has no dtype %s; convert first: x:to(\"f32\")", who, pl_dtype_name(dtype)));
  char code[8];
  snprintf(code, sizeof code, "%c%s", pl_dtype_size(dtype) == 1 ? '|' : PL_BIG_ENDIAN ? '>' : '<', descr[dtype]);
  *n = make_header(t, code, text, room);
  return PL_OK;
}

PlStatus pl_npy_save(const char *path, PlTensor *t) {
  const PlDtype dtype = pl_tensor_dtype(t);
  char text[PL_NPY_HEADER];
  size_t n;
  PL_TRY(pl_npy_header(t, "save_npy", text, sizeof text, &n));
  PlTensor *c = t;
  if (!t->a.contiguous) PL_TRY(pl_file_code(pl_tensor_copy(&c, t)));
  PlFileTemp f;
  PlStatus st = pl_file_temp_open(&f, path);
  if (st == PL_OK) {
    st = pl_file_write(f.fd, path, text, n);
    if (st == PL_OK) st = pl_file_code(pl_tensor_hold(c));
    if (st == PL_OK) st = pl_file_write(f.fd, path, pl_tensor_data(c), (size_t)pl_tensor_numel(c) * pl_dtype_size(dtype));
    if (st == PL_OK) st = pl_file_temp_commit(&f);
    else pl_file_temp_abort(&f);
  }
  if (c != t) pl_tensor_release(c);
  return st;
}

PlStatus pl_bytes_load(PlTensor **out, const char *path, int64_t max_bytes) {
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  PlTensor *t = NULL;
  PlStatus st = size > (max_bytes < 0 ? (int64_t)1 << 32 : max_bytes)
                    ? pl_file_bad(path, "%lld bytes, more than max_bytes allows", (long long)size)
                    : pl_file_code(pl_tensor_empty(&t, PL_U8, 1, &size));
  if (st == PL_OK) st = pl_file_read_at(fd, path, pl_tensor_data(t), (size_t)size, 0);
  close(fd);
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}
