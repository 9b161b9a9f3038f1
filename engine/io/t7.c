/* SPDX-License-Identifier: MIT
 * See t7.h. Binary files hold little-endian integers of 4 and 8 bytes; ascii ones decimal numbers between blanks, with a
 * line end behind each array, while bytes are written as they are. */
#include "engine/io/t7.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/file.h"
#include "engine/io/parse_number.h"
#include "engine/tensor/tensor.h"

enum { BUFFER = 1 << 16, MAX_WORD = 64 };

struct PlT7 {
  char *path;
  int fd;
  int64_t size, next; /* next: first byte of the file that is not in the buffer */
  size_t at, have;    /* in the buffer */
  bool ascii;
  char *string;
  size_t room;
  char buffer[BUFFER];
};

static int64_t place(const PlT7 *t) { return t->next - (int64_t)(t->have - t->at); }
static int64_t left(const PlT7 *t) { return t->size - place(t); }

PlStatus pl_t7_bad(const PlT7 *t, const char *why) { return pl_file_bad(t->path, "byte %lld: %s", (long long)place(t), why); }

static PlStatus refill(PlT7 *t) {
  int64_t n = t->size - t->next < BUFFER ? t->size - t->next : BUFFER;
  if (n <= 0) return pl_file_bad(t->path, "the file ends early");
  PL_TRY(pl_file_read_at(t->fd, t->path, t->buffer, (size_t)n, t->next));
  t->next += n;
  t->at = 0;
  t->have = (size_t)n;
  return PL_OK;
}

/* n raw bytes; more than a buffer go past it. */
static PlStatus bytes(PlT7 *t, void *to, size_t n) {
  char *p = to;
  while (n > 0) {
    size_t k = t->have - t->at < n ? t->have - t->at : n;
    memcpy(p, t->buffer + t->at, k);
    t->at += k;
    p += k;
    n -= k;
    if (n >= BUFFER) {
      if ((int64_t)n > t->size - t->next) return pl_file_bad(t->path, "the file ends early");
      PL_TRY(pl_file_read_at(t->fd, t->path, p, n, t->next));
      t->next += (int64_t)n;
      return PL_OK;
    }
    if (n > 0) PL_TRY(refill(t));
  }
  return PL_OK;
}

/* ---- ascii --------------------------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* The line end behind an array, if it is there. */
static PlStatus line_end(PlT7 *t) {
  if (!t->ascii || left(t) == 0) return PL_OK;
  if (t->at == t->have) PL_TRY(refill(t));
  if (t->buffer[t->at] == '\n') t->at++;
  return PL_OK;
}

static PlStatus word(PlT7 *t, char *to, size_t *n) {
  *n = 0;
  for (;;) {
    if (t->at == t->have) {
      if (left(t) == 0 && *n > 0) return PL_OK;
      PL_TRY(refill(t));
    }
    char c = t->buffer[t->at];
    if (is_blank(c) && *n > 0) return PL_OK;
    if (*n == MAX_WORD) return pl_t7_bad(t, "a number was due");
    if (!is_blank(c)) to[(*n)++] = c;
    t->at++;
  }
}

static PlStatus ascii_number(PlT7 *t, PlDecimal *v) {
  char text[MAX_WORD];
  size_t n;
  PL_TRY(word(t, text, &n));
  return pl_number_parse(text, n, v) ? PL_OK : pl_t7_bad(t, "a number was due");
}

static PlStatus ascii_int(PlT7 *t, int64_t *v) {
  PlDecimal d;
  PL_TRY(ascii_number(t, &d));
  if (!d.is_int) return pl_t7_bad(t, "an integer was due");
  *v = d.i;
  return PL_OK;
}

/* ---- elements -------------------------------------------------------------------------------------------------------- */

static PlStatus integer(PlT7 *t, size_t size, int64_t *v) {
  unsigned char b[8];
  if (t->ascii) {
    PL_TRY(ascii_int(t, v));
    return line_end(t);
  }
  PL_TRY(bytes(t, b, size));
  uint64_t u = 0;
  for (size_t i = size; i-- > 0;) u = u << 8 | b[i];
  *v = size == 4 ? (int64_t)(int32_t)(uint32_t)u : (int64_t)u;
  return PL_OK;
}

PlStatus pl_t7_int(PlT7 *t, int64_t *v) { return integer(t, 4, v); }
PlStatus pl_t7_long(PlT7 *t, int64_t *v) { return integer(t, 8, v); }

PlStatus pl_t7_double(PlT7 *t, double *v) {
  if (t->ascii) {
    PlDecimal d;
    PL_TRY(ascii_number(t, &d));
    *v = d.f;
    return line_end(t);
  }
  PL_TRY(bytes(t, v, sizeof *v));
  if (PL_BIG_ENDIAN) pl_file_swap(v, 1, sizeof *v);
  return PL_OK;
}

PlStatus pl_t7_string(PlT7 *t, const char **s, size_t *n) {
  int64_t len = 0;
  PL_TRY(pl_t7_int(t, &len));
  if (len < 0 || len > left(t)) return pl_t7_bad(t, "a text longer than the file");
  if ((size_t)len > t->room || !t->string) {
    char *p = realloc(t->string, (size_t)len + 1);
    if (!p) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", t->path));
    t->string = p;
    t->room = (size_t)len;
  }
  PL_TRY(bytes(t, t->string, (size_t)len));
  *s = t->string;
  *n = (size_t)len;
  return len > 0 ? line_end(t) : PL_OK;
}

static PlStatus ascii_elements(PlT7 *t, PlTensor *out) {
  PlDtype dtype = pl_tensor_dtype(out);
  char *to = pl_tensor_data(out);
  for (int64_t i = 0; i < pl_tensor_numel(out); i++, to += pl_dtype_size(dtype)) {
    PlDecimal d;
    PL_TRY(ascii_number(t, &d));
    if (pl_is_float(dtype)) pl_write_f(dtype, to, d.f);
    else if (d.is_int) pl_write_i(dtype, to, d.i);
    else return pl_t7_bad(t, "an integer was due");
  }
  return PL_OK;
}

PlStatus pl_t7_storage(PlT7 *t, PlDtype dtype, int64_t n, PlTensor **out) {
  bool raw = !t->ascii || pl_dtype_size(dtype) == 1;
  int64_t most = raw ? left(t) / (int64_t)pl_dtype_size(dtype) : (left(t) + 1) / 2; /* a digit and a blank each */
  if (n < 0 || n > most) return pl_t7_bad(t, "a storage longer than the file");
  PlTensor *x;
  PL_TRY(pl_file_code(pl_tensor_empty(&x, dtype, 1, &n)));
  PlStatus st = raw ? bytes(t, pl_tensor_data(x), (size_t)n * pl_dtype_size(dtype)) : ascii_elements(t, x);
  if (st == PL_OK && PL_BIG_ENDIAN && !t->ascii) pl_file_swap(pl_tensor_data(x), n, pl_dtype_size(dtype));
  if (st == PL_OK && n > 0) st = line_end(t);
  if (st != PL_OK) {
    pl_tensor_release(x);
    return st;
  }
  *out = x;
  return PL_OK;
}

PlStatus pl_t7_end(PlT7 *t, bool *over) {
  while (left(t) > 0) {
    if (t->at == t->have) PL_TRY(refill(t));
    if (!t->ascii || !is_blank(t->buffer[t->at])) break;
    t->at++;
  }
  *over = left(t) == 0;
  return PL_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

PlStatus pl_t7_open(PlT7 **out, const char *path) {
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  PlT7 *t = calloc(1, sizeof *t);
  char *copy = strdup(path);
  if (!t || !copy) {
    free(t);
    free(copy);
    close(fd);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  }
  t->path = copy;
  t->fd = fd;
  t->size = size;
  PlStatus st = refill(t);
  if (st != PL_OK) {
    pl_t7_release(t);
    return st;
  }
  t->ascii = t->buffer[0] >= '0' && t->buffer[0] <= '9'; /* binary: a type, 0 to 8 */
  *out = t;
  return PL_OK;
}

void pl_t7_release(PlT7 *t) {
  if (!t) return;
  close(t->fd);
  free(t->path);
  free(t->string);
  free(t);
}
