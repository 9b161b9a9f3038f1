/* SPDX-License-Identifier: MIT
 * See gguf_header.h. The header is read into memory in growing pieces, and checked from its first byte each time. */
#include "engine/io/gguf/gguf_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/gguf/gguf_types.h"
#include "engine/io/region.h"
#include "engine/tensor/tensor.h"
#include "kernels/kernel.h"

/* The records of keys and tensors are longer than what the shortest of them are in a file: hence the last two. */
enum { FIRST_PIECE = 1 << 18, MAX_NAME = 65535, DEFAULT_ALIGNMENT = 32, MAX_TENSORS = 100000, MAX_KEYS = 100000 };

/* ---- the header's bytes ------------------------------------------------------------------------------------------------ */

typedef struct Cursor {
  const PlGguf *g;
  size_t at;
  bool more; /* the piece ends before the file does: read a longer one */
} Cursor;

static PlStatus bad(const Cursor *c, const char *why) { return pl_file_bad(c->g->path, "the header at byte %zu: %s", c->at, why); }

/* n more bytes; a failure with c->more says that a longer piece is needed. */
static PlStatus need(Cursor *c, uint64_t n) {
  if (n <= c->g->have - c->at) return PL_OK;
  if (n > (uint64_t)c->g->size - c->at) return bad(c, "something longer than the file");
  c->more = true;
  return PL_ERR_FORMAT;
}

static PlStatus take(Cursor *c, int bytes, uint64_t *v) {
  PL_TRY(need(c, (uint64_t)bytes));
  *v = pl_gguf_le(c->g->head + c->at, bytes);
  c->at += (size_t)bytes;
  return PL_OK;
}

static PlStatus take_text(Cursor *c, uint64_t most, PlText *t) {
  uint64_t n;
  PL_TRY(take(c, 8, &n));
  if (n > most) return bad(c, "a name or text that is too long");
  PL_TRY(need(c, n));
  *t = (PlText){c->g->head + c->at, (size_t)n};
  if (!pl_utf8_valid(t->s, t->n)) return bad(c, "a name or text that is not UTF-8");
  c->at += (size_t)n;
  return PL_OK;
}

const uint8_t pl_gguf_kind_bytes[PL_GGUF_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

const char *pl_gguf_kind_name(PlGgufKind kind) {
  static const char *const names[PL_GGUF_KINDS] = {"u8",   "i8",   "u16",  "i16", "u32", "i32", "f32",
                                                   "bool", "text", "list", "u64", "i64", "f64"};
  return names[kind];
}

static PlStatus skip_bools(Cursor *c, uint64_t n) {
  for (uint64_t i = 0; i < n; i++)
    if ((unsigned char)c->g->head[c->at + i] > 1) return bad(c, "a bool that is neither 0 nor 1");
  return PL_OK;
}

/* n values of one kind. The lists that are open are on a stack of our own. */
static PlStatus skip_values(Cursor *c, uint64_t kind, uint64_t n) {
  struct {
    uint64_t kind, n;
  } open[PL_GGUF_MAX_DEPTH];
  int depth = 0;
  for (;;) {
    if (kind >= PL_GGUF_KINDS) return bad(c, "a value of a kind that GGUF does not have");
    if (n > ((uint64_t)c->g->size - c->at) / pl_gguf_kind_bytes[kind]) return bad(c, "a list longer than the file");
    if (kind == PL_GGUF_LIST && n > 0) {
      if (depth == PL_GGUF_MAX_DEPTH) return bad(c, "lists nested too deep");
      open[depth].kind = kind;
      open[depth++].n = n - 1;
      PL_TRY(take(c, 4, &kind));
      PL_TRY(take(c, 8, &n));
      continue;
    }
    if (kind == PL_GGUF_TEXT) {
      PlText text;
      for (; n > 0; n--) PL_TRY(take_text(c, UINT64_MAX, &text));
    } else if (n > 0) {
      PL_TRY(need(c, n * pl_gguf_kind_bytes[kind]));
      if (kind == PL_GGUF_BOOL) PL_TRY(skip_bools(c, n));
      c->at += (size_t)(n * pl_gguf_kind_bytes[kind]);
    }
    do {
      if (depth == 0) return PL_OK;
      kind = open[--depth].kind;
      n = open[depth].n;
    } while (n == 0);
  }
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

static bool is(PlText t, const char *name) { return t.n == strlen(name) && memcmp(t.s, name, t.n) == 0; }

static PlStatus take_key(Cursor *c, PlGgufKey *k, int64_t *alignment) {
  uint64_t kind;
  PL_TRY(take_text(c, MAX_NAME, &k->name));
  PL_TRY(take(c, 4, &kind));
  const size_t at = c->at;
  PL_TRY(skip_values(c, kind, 1));
  k->kind = (PlGgufKind)kind;
  k->value = c->g->head + at;
  if (!is(k->name, "general.alignment")) return PL_OK;
  const uint64_t v = kind == PL_GGUF_U32 ? pl_gguf_le(k->value, 4) : 0; /* of another kind there may be fewer bytes */
  if (v == 0 || (v & (v - 1)) != 0 || v > 1u << 30) return bad(c, "general.alignment is no power of two");
  *alignment = (int64_t)v;
  return PL_OK;
}

/* ---- tensors --------------------------------------------------------------------------------------------------------------- */

static PlStatus bad_entry(const Cursor *c, const PlGgufEntry *e, PlStatus code, const char *why) {
  const int n = (int)(e->name.n < 80 ? e->name.n : 80);
  if (code == PL_ERR_FORMAT) return pl_file_bad(c->g->path, "tensor '%.*s': %s", n, e->name.s, why);
  return pl_file_code(pl_fail(code, "%s: tensor '%.*s': %s", c->g->path, n, e->name.s, why));
}

static PlStatus take_entry(Cursor *c, PlGgufEntry *e, int64_t alignment) {
  uint64_t ndim, type, place, dims[PL_GGUF_DIMS] = {0};
  char why[96];
  PL_TRY(take_text(c, MAX_NAME, &e->name));
  PL_TRY(take(c, 4, &ndim));
  if (ndim < 1 || ndim > PL_GGUF_DIMS) {
    snprintf(why, sizeof why, "%" PRIu64 " dimensions; 1 to 4 are possible", ndim);
    return bad_entry(c, e, PL_ERR_FORMAT, why);
  }
  for (uint64_t d = 0; d < ndim; d++) PL_TRY(take(c, 8, &dims[d]));
  PL_TRY(take(c, 4, &type));
  PL_TRY(take(c, 8, &place));
  PlGgufType t;
  if (type > INT32_MAX || !pl_gguf_type((int)type, &t)) {
    snprintf(why, sizeof why, "type %" PRIu64 ", which is not known", type);
    return bad_entry(c, e, PL_ERR_UNSUPPORTED, why);
  }
  int64_t numel;
  size_t wide;
  e->type = (int)type;
  e->ndim = (int)ndim;
  for (int d = 0; d < e->ndim; d++) {
    if (dims[d] > INT64_MAX) return bad_entry(c, e, PL_ERR_FORMAT, "a negative size");
    e->shape[e->ndim - 1 - d] = (int64_t)dims[d];
  }
  if (pl_count(e->ndim, e->shape, PL_F64, &numel, &wide) != PL_OK) return bad_entry(c, e, PL_ERR_FORMAT, "sizes that overflow");
  if (dims[0] % (uint64_t)t.elements != 0) {
    snprintf(why, sizeof why, "rows of %" PRIu64 " elements, which are no whole blocks of %d", dims[0], t.elements);
    return bad_entry(c, e, PL_ERR_FORMAT, why);
  }
  if (place > INT64_MAX || place % (uint64_t)alignment != 0) return bad_entry(c, e, PL_ERR_FORMAT, "a place that is not aligned");
  e->at = (int64_t)place;
  e->bytes = numel / t.elements * t.bytes; /* no more than f64 would have, and that was counted */
  return PL_OK;
}

static int compare(PlText a, PlText b) {
  const size_t n = a.n < b.n ? a.n : b.n;
  const int d = n ? memcmp(a.s, b.s, n) : 0;
  return d ? d : a.n < b.n ? -1 : a.n > b.n;
}
static int by_name(const void *a, const void *b) { return compare(*(const PlText *)a, *(const PlText *)b); }
static int by_place(const void *a, const void *b) {
  const PlGgufEntry *x = *(const PlGgufEntry *const *)a, *y = *(const PlGgufEntry *const *)b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static PlStatus check_names(const PlGguf *g, PlText *names, int64_t n, const char *what) {
  if (n > 0) qsort(names, (size_t)n, sizeof *names, by_name);
  for (int64_t i = 1; i < n; i++)
    if (compare(names[i - 1], names[i]) == 0)
      return pl_file_bad(g->path, "the %s '%.*s' appears twice", what, (int)(names[i].n < 80 ? names[i].n : 80), names[i].s);
  return PL_OK;
}

static PlStatus check_places(const PlGguf *g, const PlGgufEntry **order) {
  for (int64_t i = 0; i < g->n; i++) order[i] = &g->entry[i];
  if (g->n > 0) qsort((void *)order, (size_t)g->n, sizeof *order, by_place);
  const int64_t data = g->size - g->data_at;
  for (int64_t i = 0; i < g->n; i++) {
    const PlGgufEntry *e = order[i];
    const int n = (int)(e->name.n < 80 ? e->name.n : 80);
    if (e->at > data || e->bytes > data - e->at)
      return pl_file_bad(g->path, "tensor '%.*s' reaches beyond the end of the file", n, e->name.s);
    if (i > 0 && order[i - 1]->at + order[i - 1]->bytes > e->at)
      return pl_file_bad(g->path, "tensor '%.*s' overlaps another", n, e->name.s);
  }
  return PL_OK;
}

static PlStatus check_all(const PlGguf *g) {
  const int64_t most = g->n > g->nkey ? g->n : g->nkey;
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)(most + 1) * sizeof(PlText), &mem)));
  PlText *names = mem;
  for (int64_t i = 0; i < g->nkey; i++) names[i] = g->key[i].name;
  PlStatus st = check_names(g, names, g->nkey, "key");
  for (int64_t i = 0; i < g->n; i++) names[i] = g->entry[i].name;
  if (st == PL_OK) st = check_names(g, names, g->n, "tensor");
  if (st == PL_OK) st = check_places(g, mem);
  plk_scratch_free(mem);
  return st;
}

/* ---- the whole header ------------------------------------------------------------------------------------------------------ */

static PlStatus check_version(Cursor *c) {
  uint64_t version;
  if (c->g->size < 4 || memcmp(c->g->head, "GGUF", 4) != 0) return pl_file_bad(c->g->path, "not a GGUF file");
  c->at = 4;
  PL_TRY(take(c, 4, &version));
  if (version == 2 || version == 3) return PL_OK;
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: GGUF version %" PRIu64 "%s; 2 and 3 are read", c->g->path,
                              swapped ? (uint64_t)__builtin_bswap32((uint32_t)version) : version,
                              swapped ? " of a big-endian machine" : ""));
}

/* PL_ERR_FORMAT with c->more: again with a longer piece. */
static PlStatus parse(PlGguf *g, Cursor *c) {
  uint64_t n, nkey;
  void *mem;
  PL_TRY(check_version(c));
  PL_TRY(take(c, 8, &n));
  PL_TRY(take(c, 8, &nkey));
  /* a key has at least a length, a kind, a byte; a tensor a length, a count, a size, a type, a place */
  if (nkey > ((uint64_t)g->size - c->at) / 13 || n > ((uint64_t)g->size - c->at) / 32)
    return bad(c, "more keys or tensors than the file has room for");
  if (nkey > MAX_KEYS || n > MAX_TENSORS) return bad(c, "more than 100000 keys or tensors");
  if (!g->key) {
    PL_TRY(pl_file_code(plk_scratch((size_t)(nkey + 1) * sizeof *g->key, &mem)));
    g->key = mem;
    PL_TRY(pl_file_code(plk_scratch((size_t)(n + 1) * sizeof *g->entry, &mem)));
    g->entry = mem;
  }
  g->nkey = (int64_t)nkey;
  g->n = (int64_t)n;
  g->alignment = DEFAULT_ALIGNMENT;
  for (int64_t i = 0; i < g->nkey; i++) PL_TRY(take_key(c, &g->key[i], &g->alignment));
  for (int64_t i = 0; i < g->n; i++) PL_TRY(take_entry(c, &g->entry[i], g->alignment));
  g->data_at = ((int64_t)c->at + g->alignment - 1) / g->alignment * g->alignment;
  return check_all(g);
}

PlStatus pl_gguf_read_header(PlGguf *g) {
  int64_t piece = g->size < FIRST_PIECE ? g->size : FIRST_PIECE;
  for (;;) {
    void *mem;
    plk_scratch_free(g->head);
    g->head = NULL;
    PL_TRY(pl_file_code(plk_scratch((size_t)piece + 8, &mem)));
    g->head = mem;
    memset(g->head + piece, 0, 8);
    g->have = (size_t)piece;
    PL_TRY(pl_file_read_at(g->fd, g->path, g->head, (size_t)piece, 0));
    Cursor c = {.g = g};
    PlStatus st = parse(g, &c);
    if (st == PL_OK || !c.more) return st;
    piece = piece > g->size / 2 ? g->size : 2 * piece;
  }
}
