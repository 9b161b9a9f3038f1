/* SPDX-License-Identifier: MIT
 * See gguf.h. What the header says was checked when it was read (gguf_header.c). */
#include "engine/io/gguf/gguf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/gguf/gguf_header.h"
#include "engine/io/gguf/gguf_types.h"
#include "engine/io/region.h"
#include "engine/tensor/tensor.h"
#include "kernels/convert.h"
#include "kernels/kernel.h"

PlStatus pl_gguf_open(PlGguf **out, const char *path) {
  PlGguf *g = calloc(1, sizeof *g);
  char *copy = strdup(path);
  if (!g || !copy) {
    free(g);
    free(copy);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  }
  g->path = copy;
  g->fd = -1;
  PlStatus st = pl_file_open(path, &g->fd, &g->size);
  if (st == PL_OK) st = pl_gguf_read_header(g);
  if (st != PL_OK) {
    pl_gguf_release(g);
    return st;
  }
  *out = g;
  return PL_OK;
}

void pl_gguf_release(PlGguf *g) {
  if (!g) return;
  pl_file_maps_end(&g->maps);
  if (g->fd >= 0) close(g->fd);
  plk_scratch_free(g->head);
  plk_scratch_free(g->key);
  plk_scratch_free(g->entry);
  free(g->path);
  free(g);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

static void take_item(const char **at, PlGgufKind kind, PlGgufItem *item) {
  const char *p = *at;
  const uint64_t v = pl_gguf_le(p, kind == PL_GGUF_LIST ? 4 : pl_gguf_kind_bytes[kind]);
  *item = (PlGgufItem){.kind = kind, .i = (int64_t)v};
  *at += pl_gguf_kind_bytes[kind];
  switch (kind) {
  case PL_GGUF_I8: item->i = (int8_t)v; break;
  case PL_GGUF_I16: item->i = (int16_t)v; break;
  case PL_GGUF_I32: item->i = (int32_t)v; break;
  case PL_GGUF_F32: item->f = (double)plk_f32_from((uint32_t)v); break;
  case PL_GGUF_F64: memcpy(&item->f, &v, sizeof v); break;
  case PL_GGUF_TEXT:
    item->text = (PlText){p + 8, (size_t)v};
    *at += v;
    break;
  case PL_GGUF_LIST: item->list = (PlGgufValue){(PlGgufKind)v, (int64_t)pl_gguf_le(p + 4, 8), p + 12}; break;
  default: break;
  }
}

/* A list in a list is passed over: its elements are known only by going through them. */
static const char *behind(const PlGgufItem *item, const char *at) {
  if (item->kind != PL_GGUF_LIST) return at;
  PlGgufValue list = item->list;
  if (list.kind != PL_GGUF_LIST && list.kind != PL_GGUF_TEXT) return list.next + list.n * pl_gguf_kind_bytes[list.kind];
  PlGgufItem inner;
  while (pl_gguf_next(&list, &inner)) {
  }
  return list.next;
}

bool pl_gguf_next(PlGgufValue *list, PlGgufItem *item) {
  if (list->n == 0) return false;
  const char *at = list->next;
  take_item(&at, list->kind, item);
  list->next = behind(item, at);
  list->n--;
  return true;
}

int64_t pl_gguf_keys(const PlGguf *g) { return g->nkey; }

PlText pl_gguf_key(const PlGguf *g, int64_t i, PlGgufItem *value) {
  const char *at = g->key[i].value;
  take_item(&at, g->key[i].kind, value);
  return g->key[i].name;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------------------ */

int64_t pl_gguf_count(const PlGguf *g) { return g->n; }
PlText pl_gguf_name(const PlGguf *g, int64_t i) { return g->entry[i].name; }
int64_t pl_gguf_alignment(const PlGguf *g) { return g->alignment; }

const char *pl_gguf_describe(const PlGguf *g, int64_t i, PlDtype *dtype, int *ndim, int64_t *shape, int64_t *bytes) {
  const PlGgufEntry *e = &g->entry[i];
  PlGgufType t;
  (void)pl_gguf_type(e->type, &t);
  *dtype = t.dtype;
  *ndim = e->ndim;
  *bytes = e->bytes;
  memcpy(shape, e->shape, (size_t)e->ndim * sizeof *shape);
  return t.name;
}

static PlStatus read_plain(PlGguf *g, const PlGgufEntry *e, const PlGgufType *t, const PlRegion *r, PlTensor *out) {
  PL_TRY(pl_region_read(r, g->fd, g->path, g->data_at + e->at, (size_t)t->bytes, pl_tensor_data(out)));
  return pl_wire_convert(pl_wire_of(t->dtype), g->path, PL_BIG_ENDIAN, pl_tensor_data(out), pl_tensor_numel(out));
}

enum { SOME = 4096 }; /* numbers at a time, where these are made of another dtype */

static void put(const PlGgufType *t, const char *blocks, int64_t n, PlDtype dtype, char *out) {
  float x[SOME];
  if (dtype == PL_F32) {
    t->blocks->dequantize((const uint8_t *)blocks, (float *)(void *)out, n);
    return;
  }
  while (n > 0) {
    const int64_t most = SOME / t->elements, k = n < most ? n : most, count = k * t->elements;
    t->blocks->dequantize((const uint8_t *)blocks, x, k);
    if (dtype == PL_F16) plk_f16_store(x, (uint16_t *)(void *)out, count);
    else plk_bf16_store(x, (uint16_t *)(void *)out, count);
    blocks += k * t->bytes;
    out += count * 2;
    n -= k;
  }
}

typedef struct Job {
  const PlGgufType *t;
  const char *from;
  char *to;
  PlDtype dtype;
} Job;

static PlStatus put_range(void *arg, int64_t first, int64_t last) {
  const Job *j = arg;
  put(j->t, j->from + first * j->t->bytes, last - first, j->dtype, j->to + first * j->t->elements * (int64_t)pl_dtype_size(j->dtype));
  return PL_OK;
}

/* The blocks of a region, a piece of the file at a time where they lie together. */
static PlStatus read_blocks(PlGguf *g, const PlGgufEntry *e, const PlGgufType *t, const PlRegion *r, PlTensor *out) {
  enum { PIECE = 4 << 20 };
  int64_t n = 1, whole = 1;
  for (int d = 0; d < r->ndim; d++) {
    n *= r->count[d];
    whole *= r->shape[d];
  }
  const bool all = n == whole;
  const int64_t piece = all && n * t->bytes > PIECE ? PIECE / t->bytes : n;
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)(piece * t->bytes) + 1, &mem)));
  PlStatus st = PL_OK;
  const PlDtype dtype = pl_tensor_dtype(out);
  for (int64_t at = 0; st == PL_OK && at < n; at += piece) {
    const int64_t k = n - at < piece ? n - at : piece;
    const int64_t place = g->data_at + e->at;
    st = all ? pl_file_read_at(g->fd, g->path, mem, (size_t)(k * t->bytes), place + at * t->bytes)
             : pl_region_read(r, g->fd, g->path, place, (size_t)t->bytes, mem);
    Job j = {t, mem, (char *)pl_tensor_data(out) + (size_t)(at * t->elements) * pl_dtype_size(dtype), dtype};
    if (st == PL_OK) st = pl_file_code(plk_parallel(k, 16384 / t->elements, put_range, &j));
  }
  plk_scratch_free(mem);
  return st;
}

void pl_gguf_map(PlGguf *g) { g->maps.wanted = !PL_BIG_ENDIAN; }

PlStatus pl_gguf_part(PlGguf *g, int64_t i, const int64_t *start, const int64_t *count, PlDtype dtype, PlTensor **out) {
  const PlGgufEntry *e = &g->entry[i];
  const int show = (int)(e->name.n < 80 ? e->name.n : 80), last = e->ndim - 1;
  PlGgufType t;
  (void)pl_gguf_type(e->type, &t);
  if (dtype == PL_NDTYPE) dtype = t.dtype;
  if (t.blocks ? dtype != PL_F32 && dtype != PL_F16 && dtype != PL_BF16 : dtype != t.dtype)
    return pl_file_code(
        pl_fail(PL_ERR_ARG, "%s: tensor '%.*s' is %s and cannot be read as %s", g->path, show, e->name.s, t.name, pl_dtype_name(dtype)));
  if (t.blocks && !t.blocks->dequantize)
    return pl_file_code(
        pl_fail(PL_ERR_UNSUPPORTED, "%s: tensor '%.*s' is %s, which perilune cannot make numbers of", g->path, show, e->name.s, t.name));
  PlRegion r = {.ndim = e->ndim};
  memcpy(r.shape, e->shape, (size_t)r.ndim * sizeof *r.shape);
  memcpy(r.start, start, (size_t)r.ndim * sizeof *r.start);
  memcpy(r.count, count, (size_t)r.ndim * sizeof *r.count);
  PL_TRY(pl_region_check(&r, "slice"));
  /* whole blocks along the last dimension, of which the middle is the result */
  const int64_t first = r.start[last] / t.elements, cut = r.start[last] - first * t.elements, want = r.count[last];
  r.start[last] = first;
  r.count[last] = want > 0 ? (cut + want + t.elements - 1) / t.elements : 0;
  r.shape[last] /= t.elements;
  if (!t.blocks && memcmp(r.count, e->shape, (size_t)r.ndim * sizeof *r.count) == 0) {
    PL_TRY(pl_file_code(pl_file_map_tensor(out, &g->maps, g->fd, g->data_at + e->at, dtype, r.ndim, r.count)));
    if (*out) return PL_OK;
  }
  int64_t shape[PL_MAX_DIM];
  memcpy(shape, r.count, sizeof shape);
  shape[last] = r.count[last] * t.elements;
  PlTensor *x, *view;
  PL_TRY(pl_file_code(pl_tensor_empty(&x, dtype, r.ndim, shape)));
  PlStatus st = pl_tensor_numel(x) == 0 ? PL_OK : t.blocks ? read_blocks(g, e, &t, &r, x) : read_plain(g, e, &t, &r, x);
  if (st == PL_OK && shape[last] != want) {
    shape[last] = want;
    st = pl_file_code(pl_tensor_view(&view, x, r.ndim, shape, pl_tensor_strides(x), cut));
    pl_tensor_release(x);
    x = st == PL_OK ? view : NULL;
  }
  if (st != PL_OK) {
    pl_tensor_release(x);
    return st;
  }
  *out = x;
  return PL_OK;
}

PlStatus pl_gguf_bytes(PlGguf *g, int64_t i, PlTensor **out) {
  const PlGgufEntry *e = &g->entry[i];
  int64_t rows = 1;
  for (int d = 0; d + 1 < e->ndim; d++) rows *= e->shape[d];
  const int64_t shape[2] = {rows, rows > 0 ? e->bytes / rows : 0};
  PlTensor *x;
  PL_TRY(pl_file_code(pl_file_map_tensor(out, &g->maps, g->fd, g->data_at + e->at, PL_U8, 2, shape)));
  if (*out) return PL_OK;
  PL_TRY(pl_file_code(pl_tensor_empty(&x, PL_U8, 2, shape)));
  PlStatus st = pl_file_read_at(g->fd, g->path, pl_tensor_data(x), (size_t)e->bytes, g->data_at + e->at);
  if (st != PL_OK) {
    pl_tensor_release(x);
    return st;
  }
  *out = x;
  return PL_OK;
}
