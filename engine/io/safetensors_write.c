/* SPDX-License-Identifier: MIT
 * Writing safetensors: header with sorted entries, padded with spaces to 8 bytes, then
 * the tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/safetensors_header.h"
#include "kernels/kernel.h"

/* One tensor on its way into the file. */
typedef struct Item {
  PlText name;
  PlTensor *t;
  int rank; /* of the dtype */
} Item;

/* Wide dtypes first keeps every tensor aligned without padding; among equals the format's
 * own order. */
static int dtype_rank(PlDtype d) {
  static const PlDtype order[] = {PL_I64, PL_F64, PL_F32, PL_I32, PL_BF16, PL_F16, PL_I16, PL_I8, PL_U8, PL_BOOL};
  for (int i = 0; i < (int)(sizeof order / sizeof *order); i++)
    if (order[i] == d) return i;
  return PL_NDTYPE;
}

static int compare_text(const PlText *a, const PlText *b) {
  size_t n = a->n < b->n ? a->n : b->n;
  int d = n ? memcmp(a->s, b->s, n) : 0;
  return d ? d : a->n < b->n ? -1 : a->n > b->n;
}

static int by_name(const void *a, const void *b) { return compare_text(&((const Item *)a)->name, &((const Item *)b)->name); }

static int by_rank(const void *a, const void *b) {
  const Item *x = a, *y = b;
  return x->rank != y->rank ? x->rank - y->rank : by_name(a, b);
}

/* ---- the header's text --------------------------------------------------------------------------------- */

/* Writes text if there is room and always counts, so the same code measures and fills. */
typedef struct Text {
  char *s;
  size_t n, room;
} Text;

static void put(Text *t, const char *s, size_t n) {
  if (t->s && t->n + n <= t->room) memcpy(t->s + t->n, s, n);
  t->n += n;
}

static void put_text(Text *t, const char *s) { put(t, s, strlen(s)); }

static void put_int(Text *t, int64_t v) {
  char b[24];
  int n = snprintf(b, sizeof b, "%" PRId64, v);
  put(t, b, (size_t)n);
}

static void put_string(Text *t, PlText s) {
  put(t, "\"", 1);
  for (size_t i = 0; i < s.n; i++) {
    unsigned char c = (unsigned char)s.s[i];
    if (c == '"' || c == '\\') {
      char b[2] = {'\\', (char)c};
      put(t, b, 2);
    } else if (c < 0x20) {
      char b[8];
      snprintf(b, sizeof b, "\\u%04x", c);
      put(t, b, 6);
    } else {
      put(t, s.s + i, 1);
    }
  }
  put(t, "\"", 1);
}

static int64_t nbytes(const PlTensor *t) { return pl_tensor_numel(t) * (int64_t)pl_dtype_size(pl_tensor_dtype(t)); }

static void put_item(Text *t, const Item *it, int64_t at) {
  put_string(t, it->name);
  put_text(t, ":{\"dtype\":\"");
  put_text(t, pl_wire_of(pl_tensor_dtype(it->t))->name);
  put_text(t, "\",\"shape\":[");
  for (int i = 0; i < pl_tensor_ndim(it->t); i++) {
    if (i) put(t, ",", 1);
    put_int(t, pl_tensor_shape(it->t)[i]);
  }
  put_text(t, "],\"data_offsets\":[");
  put_int(t, at);
  put(t, ",", 1);
  put_int(t, at + nbytes(it->t));
  put_text(t, "]}");
}

static void put_header(Text *t, int64_t n, const Item *items, int64_t nmeta, const PlText *meta) {
  int64_t at = 0;
  t->n = 0;
  put(t, "{", 1);
  if (nmeta > 0) {
    put_text(t, "\"__metadata__\":{");
    for (int64_t i = 0; i < nmeta; i++) {
      if (i) put(t, ",", 1);
      put_string(t, meta[2 * i]);
      put(t, ":", 1);
      put_string(t, meta[2 * i + 1]);
    }
    put(t, "}", 1);
  }
  for (int64_t i = 0; i < n; i++) {
    if (i || nmeta > 0) put(t, ",", 1);
    put_item(t, &items[i], at);
    at += nbytes(items[i].t);
  }
  put(t, "}", 1);
  while (t->n % 8) put(t, " ", 1);
}

/* ---- the tensors' bytes -------------------------------------------------------------------------------- */

enum { BUFFER = 1 << 16 };

static bool row_major(const PlTensor *t) {
  int64_t expect = 1;
  for (int d = pl_tensor_ndim(t) - 1; d >= 0; d--) {
    if (pl_tensor_shape(t)[d] != 1 && pl_tensor_strides(t)[d] != expect) return false;
    expect *= pl_tensor_shape(t)[d];
  }
  return true;
}

/* Elements in row-major order through a small buffer: no copy of the whole tensor is
 * made. */
static PlStatus write_strided(int fd, const char *path, const PlTensor *t, char *buf) {
  size_t size = pl_dtype_size(pl_tensor_dtype(t)), used = 0;
  int nd = pl_tensor_ndim(t);
  const int64_t *shape = pl_tensor_shape(t), *strides = pl_tensor_strides(t);
  int64_t index[PL_MAX_DIM] = {0}, at = 0;
  const char *base = pl_tensor_data(t);
  for (int64_t k = pl_tensor_numel(t); k > 0; k--) {
    memcpy(buf + used, base + at * (int64_t)size, size);
    used += size;
    if (used + size > BUFFER || k == 1) {
      if (PL_BIG_ENDIAN) pl_file_swap(buf, (int64_t)(used / size), size);
      PL_TRY(pl_file_write(fd, path, buf, used));
      used = 0;
    }
    for (int d = nd - 1; d >= 0; d--) {
      at += strides[d];
      if (++index[d] < shape[d]) break;
      at -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
  return PL_OK;
}

static PlStatus write_all(PlFileTemp *f, int64_t n, const Item *items, const Text *head, char *buf) {
  unsigned char len[8];
  for (int i = 0; i < 8; i++) len[i] = (unsigned char)((uint64_t)head->n >> (8 * i));
  PL_TRY(pl_file_write(f->fd, f->target, len, 8));
  PL_TRY(pl_file_write(f->fd, f->target, head->s, head->n));
  for (int64_t i = 0; i < n; i++) {
    const PlTensor *t = items[i].t;
    if (pl_tensor_numel(t) == 0) continue;
    PL_TRY(pl_tensor_hold(t));
    if (row_major(t) && !PL_BIG_ENDIAN) PL_TRY(pl_file_write(f->fd, f->target, pl_tensor_data(t), (size_t)nbytes(t)));
    else PL_TRY(write_strided(f->fd, f->target, t, buf));
  }
  return PL_OK;
}

static PlStatus check_names(int64_t n, const Item *sorted, int64_t nmeta, const PlText *meta) {
  for (int64_t i = 0; i < n; i++) {
    PlText s = sorted[i].name;
    int show = (int)(s.n < 80 ? s.n : 80);
    if (s.n > UINT32_MAX || !pl_utf8_valid(s.s, s.n)) return pl_fail(PL_ERR_ARG, "save: tensor name \"%.*s\" is not UTF-8", show, s.s);
    if (s.n == 12 && memcmp(s.s, "__metadata__", 12) == 0)
      return pl_fail(PL_ERR_ARG, "save: the tensor name \"__metadata__\" is reserved by the format");
    if (i > 0 && by_name(&sorted[i - 1], &sorted[i]) == 0) return pl_fail(PL_ERR_ARG, "save: two tensors are called \"%.*s\"", show, s.s);
  }
  for (int64_t i = 0; i < 2 * nmeta; i++)
    if (!pl_utf8_valid(meta[i].s, meta[i].n)) return pl_fail(PL_ERR_ARG, "save: metadata that is not UTF-8");
  return PL_OK;
}

/* Both files are complete on disk before the first takes its name. */
static PlStatus commit_with(PlFileTemp *f, const PlBeside *beside) {
  PlFileTemp g;
  PlStatus s = pl_file_temp_open(&g, beside->path);
  if (s != PL_OK) {
    pl_file_temp_abort(f);
    return s;
  }
  s = pl_file_write(g.fd, g.target, beside->bytes.s, beside->bytes.n);
  if (s == PL_OK) s = pl_file_temp_flush(&g);
  if (s == PL_OK) s = pl_file_temp_commit(f);
  else pl_file_temp_abort(f);
  if (s == PL_OK) return pl_file_temp_commit(&g);
  pl_file_temp_abort(&g);
  return s;
}

static PlStatus save_sorted(const char *path, int64_t n, Item *items, int64_t nmeta, const PlText *meta, const PlBeside *beside) {
  if (n > 0) qsort(items, (size_t)n, sizeof *items, by_name);
  PL_TRY(pl_file_code(check_names(n, items, nmeta, meta)));
  if (n > 0) qsort(items, (size_t)n, sizeof *items, by_rank);
  Text head = {0};
  put_header(&head, n, items, nmeta, meta);
  if (head.n > PL_SAFETENSORS_MAX_HEADER)
    return pl_file_code(
        pl_fail(PL_ERR_ARG, "save: the names and metadata take %zu bytes, the format allows %d", head.n, PL_SAFETENSORS_MAX_HEADER));
  void *mem;
  head.room = head.n;
  PL_TRY(pl_file_code(plk_scratch(head.room + BUFFER, &mem)));
  head.s = mem;
  put_header(&head, n, items, nmeta, meta);
  PlFileTemp f;
  PlStatus s = pl_file_temp_open(&f, path);
  if (s == PL_OK) {
    s = write_all(&f, n, items, &head, head.s + head.room);
    if (s != PL_OK) pl_file_temp_abort(&f);
    else s = beside ? commit_with(&f, beside) : pl_file_temp_commit(&f);
  }
  plk_scratch_free(mem);
  return s;
}

PlStatus pl_safetensors_save(const char *path, int64_t n, const PlText *names, PlTensor *const *tensors, int64_t nmeta, const PlText *meta,
                             const PlBeside *beside) {
  void *mem = NULL;
  if (n > 0) PL_TRY(pl_file_code(plk_scratch((size_t)n * sizeof(Item), &mem)));
  Item *items = mem;
  for (int64_t i = 0; i < n; i++) items[i] = (Item){.name = names[i], .t = tensors[i], .rank = dtype_rank(pl_tensor_dtype(tensors[i]))};
  PlStatus s = save_sorted(path, n, items, nmeta, meta, beside);
  plk_scratch_free(mem);
  return s;
}
