/* SPDX-License-Identifier: MIT
 * See pickle.h. */
#include "engine/io/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/file.h"

enum { BUFFER = 1 << 14, MAX_NAME = 512 };

struct PlPickle {
  const char *path;
  int fd;
  int64_t end, next; /* next: first byte of the file that is not in the buffer */
  size_t at, have;   /* in the buffer */
  char *string;
  size_t room;
  char names[2][MAX_NAME];
  unsigned char buffer[BUFFER];
};

PlStatus pl_pickle_open(PlPickle **out, const char *path, int fd, int64_t at, int64_t end) {
  PlPickle *p = calloc(1, sizeof *p);
  if (!p) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  p->path = path;
  p->fd = fd;
  p->next = at;
  p->end = end;
  *out = p;
  return PL_OK;
}

void pl_pickle_release(PlPickle *p) {
  if (!p) return;
  free(p->string);
  free(p);
}

int64_t pl_pickle_place(const PlPickle *p) { return p->next - (int64_t)(p->have - p->at); }
static int64_t left(const PlPickle *p) { return p->end - pl_pickle_place(p); }

PlStatus pl_pickle_bad(const PlPickle *p, PlStatus code, const char *why) {
  if (code == PL_ERR_FORMAT) return pl_file_bad(p->path, "the pickle at byte %lld: %s", (long long)pl_pickle_place(p), why);
  return pl_file_code(pl_fail(code, "%s: the pickle at byte %lld: %s", p->path, (long long)pl_pickle_place(p), why));
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

static PlStatus take(PlPickle *p, void *to, size_t n) {
  char *q = to;
  if ((int64_t)n > left(p)) return pl_pickle_bad(p, PL_ERR_FORMAT, "it ends early");
  while (n > 0) {
    if (p->at == p->have) {
      const int64_t rest = p->end - p->next;
      const size_t k = rest < BUFFER ? (size_t)rest : BUFFER;
      PL_TRY(pl_file_read_at(p->fd, p->path, p->buffer, k, p->next));
      p->next += (int64_t)k;
      p->at = 0;
      p->have = k;
    }
    const size_t k = p->have - p->at < n ? p->have - p->at : n;
    memcpy(q, p->buffer + p->at, k);
    p->at += k;
    q += k;
    n -= k;
  }
  return PL_OK;
}

static PlStatus take_unsigned(PlPickle *p, int bytes, uint64_t *v) {
  unsigned char b[8];
  PL_TRY(take(p, b, (size_t)bytes));
  *v = 0;
  for (int i = bytes - 1; i >= 0; i--) *v = *v << 8 | b[i];
  return PL_OK;
}

/* A length of so many bytes, and as many bytes of text. */
static PlStatus take_text(PlPickle *p, int bytes, PlPickleOp *op) {
  uint64_t n;
  PL_TRY(take_unsigned(p, bytes, &n));
  if (n > (uint64_t)left(p)) return pl_pickle_bad(p, PL_ERR_FORMAT, "a text longer than the file");
  if (n > p->room || !p->string) {
    char *s = realloc(p->string, (size_t)n + 1);
    if (!s) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", p->path));
    p->string = s;
    p->room = (size_t)n;
  }
  PL_TRY(take(p, p->string, (size_t)n));
  op->kind = PL_PICKLE_text;
  op->s = p->string;
  op->n = (size_t)n;
  return PL_OK;
}

static PlStatus take_line(PlPickle *p, char *to, size_t *n) {
  for (*n = 0;; (*n)++) {
    if (*n == MAX_NAME) return pl_pickle_bad(p, PL_ERR_FORMAT, "a name that does not end");
    PL_TRY(take(p, to + *n, 1));
    if (to[*n] == '\n') return PL_OK;
  }
}

static PlStatus take_global(PlPickle *p, PlPickleOp *op) {
  op->kind = PL_PICKLE_global;
  PL_TRY(take_line(p, p->names[0], &op->n));
  PL_TRY(take_line(p, p->names[1], &op->nname));
  op->s = p->names[0];
  op->name = p->names[1];
  return PL_OK;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

static PlStatus take_integer(PlPickle *p, int bytes, PlPickleOp *op) {
  uint64_t v;
  PL_TRY(take_unsigned(p, bytes, &v));
  op->kind = PL_PICKLE_integer;
  op->i = bytes == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v;
  return PL_OK;
}

/* LONG: two's complement, little-endian, as many bytes as it needs. */
static PlStatus take_long(PlPickle *p, int bytes, PlPickleOp *op) {
  PL_TRY(take_text(p, bytes, op));
  const unsigned char *b = (const unsigned char *)op->s;
  op->kind = op->n > 8 ? PL_PICKLE_big : PL_PICKLE_integer;
  uint64_t v = op->n > 0 && op->n <= 8 && (b[op->n - 1] & 0x80) ? UINT64_MAX : 0;
  for (size_t i = op->n; op->n <= 8 && i-- > 0;) v = v << 8 | b[i];
  op->i = (int64_t)v;
  return PL_OK;
}

static PlStatus take_double(PlPickle *p, PlPickleOp *op) {
  unsigned char b[8];
  uint64_t v = 0;
  PL_TRY(take(p, b, 8));
  for (int i = 0; i < 8; i++) v = v << 8 | b[i];
  op->kind = PL_PICKLE_number;
  memcpy(&op->f, &v, 8);
  return PL_OK;
}

static PlStatus take_index(PlPickle *p, PlPickleKind kind, int bytes, PlPickleOp *op) {
  uint64_t v;
  PL_TRY(take_unsigned(p, bytes, &v));
  op->kind = kind;
  op->i = (int64_t)v;
  return PL_OK;
}

/* ---- opcodes -------------------------------------------------------------------------------------------------------- */

static PlStatus take_protocol(PlPickle *p) {
  uint64_t v;
  PL_TRY(take_unsigned(p, 1, &v));
  if (v >= 2 && v <= 5) return PL_OK;
  char why[80];
  snprintf(why, sizeof why, "protocol %d; 2 to 5 are known", (int)v);
  return pl_pickle_bad(p, PL_ERR_FORMAT, why);
}

static PlStatus take_frame(PlPickle *p) {
  uint64_t n;
  PL_TRY(take_unsigned(p, 8, &n));
  return n <= (uint64_t)left(p) ? PL_OK : pl_pickle_bad(p, PL_ERR_FORMAT, "a frame longer than the file");
}

/* Opcodes that Python has and that data does not need: they make objects, or refer to what is not in the file. */
static const char *code_opcode(unsigned char c) {
  static const struct {
    unsigned char c;
    const char *name;
  } rows[] = {{'i', "INST"},  {'o', "OBJ"},    {0x92, "NEWOBJ_EX"},  {0x82, "EXT1"},        {0x83, "EXT2"},
              {0x84, "EXT4"}, {'P', "PERSID"}, {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
              {'I', "INT"},   {'L', "LONG"},   {'F', "FLOAT"},       {'S', "STRING"},       {'V', "UNICODE"},
              {'g', "GET"},   {'p', "PUT"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].c == c) return rows[i].name;
  return NULL;
}

static PlStatus refuse(const PlPickle *p, unsigned char c) {
  char why[96];
  const char *name = code_opcode(c);
  if (name) snprintf(why, sizeof why, "the opcode %s, which the data of PyTorch's files does not need", name);
  else snprintf(why, sizeof why, "0x%02x, which is no opcode", c);
  return pl_pickle_bad(p, name ? PL_ERR_UNSUPPORTED : PL_ERR_FORMAT, why);
}

/* Opcodes without an argument; PL_PICKLE_get: none of them. */
static PlPickleKind plain(unsigned char c) {
  switch (c) {
  case '.': return PL_PICKLE_stop;
  case '(': return PL_PICKLE_mark;
  case '0': return PL_PICKLE_pop;
  case '1': return PL_PICKLE_pop_mark;
  case '2': return PL_PICKLE_dup;
  case 'N': return PL_PICKLE_none;
  case 0x88: return PL_PICKLE_yes;
  case 0x89: return PL_PICKLE_no;
  case ']': return PL_PICKLE_empty_list;
  case '}': return PL_PICKLE_empty_dict;
  case ')': return PL_PICKLE_empty_tuple;
  case 0x8f: return PL_PICKLE_empty_set;
  case 't': return PL_PICKLE_tuple;
  case 'l': return PL_PICKLE_list;
  case 'd': return PL_PICKLE_dict;
  case 'a': return PL_PICKLE_append;
  case 'e': return PL_PICKLE_appends;
  case 's': return PL_PICKLE_setitem;
  case 'u': return PL_PICKLE_setitems;
  case 0x90: return PL_PICKLE_additems;
  case 0x91: return PL_PICKLE_frozenset;
  case 0x93: return PL_PICKLE_stack_global;
  case 'R': return PL_PICKLE_reduce;
  case 0x81: return PL_PICKLE_newobj;
  case 'b': return PL_PICKLE_build;
  case 0x94: return PL_PICKLE_memoize;
  case 'Q': return PL_PICKLE_persid;
  default: return PL_PICKLE_get;
  }
}

PlStatus pl_pickle_next(PlPickle *p, PlPickleOp *op) {
  for (;;) {
    unsigned char c;
    PL_TRY(take(p, &c, 1));
    *op = (PlPickleOp){.kind = plain(c)};
    if (op->kind != PL_PICKLE_get) return PL_OK;
    switch (c) {
    case 0x80: PL_TRY(take_protocol(p)); continue;
    case 0x95: PL_TRY(take_frame(p)); continue;
    case 'K': return take_integer(p, 1, op);
    case 'M': return take_integer(p, 2, op);
    case 'J': return take_integer(p, 4, op);
    case 0x8a: return take_long(p, 1, op);
    case 0x8b: return take_long(p, 4, op);
    case 'G': return take_double(p, op);
    case 'U': /* SHORT_BINSTRING, of Python 2 */
    case 'C':
    case 0x8c: return take_text(p, 1, op);
    case 'T':
    case 'B':
    case 'X': return take_text(p, 4, op);
    case 0x8d:
    case 0x8e: return take_text(p, 8, op);
    case 'c': return take_global(p, op);
    case 'h': return take_index(p, PL_PICKLE_get, 1, op);
    case 'j': return take_index(p, PL_PICKLE_get, 4, op);
    case 'q': return take_index(p, PL_PICKLE_put, 1, op);
    case 'r': return take_index(p, PL_PICKLE_put, 4, op);
    case 0x85:
    case 0x86:
    case 0x87:
      op->kind = PL_PICKLE_tuple_of;
      op->i = c - 0x84;
      return PL_OK;
    default: return refuse(p, c);
    }
  }
}
