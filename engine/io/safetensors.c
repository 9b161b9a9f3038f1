/* SPDX-License-Identifier: MIT
 * Reading safetensors (https://github.com/huggingface/safetensors, "Format"): 8 bytes
 * length of the header, little-endian; the JSON header; the tensors' bytes,
 * little-endian, row-major. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/region.h"
#include "engine/io/safetensors_header.h"
#include "engine/tensor/file_map.h"
#include "kernels/kernel.h"

struct PlSafetensors {
  int fd;
  char *path;
  int64_t data_at; /* where the tensors' bytes begin */
  PlHeader header;
  PlFileMaps maps;
};

/* ---- files that are something else ------------------------------------------------------------------------------ */

static bool names(const char *text, size_t n, const char *part) { return memmem(text, n, part, strlen(part)) != NULL; }

/* What a zip archive is, by the name of its first file: at byte 30, its length at 26. */
static const char *archive(const char *b, size_t n) {
  const size_t len = n < 30 ? 0 : (size_t)(unsigned char)b[26] | (size_t)(unsigned char)b[27] << 8;
  const size_t name = n < 30 ? 0 : len < n - 30 ? len : n - 30;
  if (name >= 4 && memcmp(b + 30 + name - 4, ".npy", 4) == 0) return "an npz archive; T.load_npz reads it";
  if (names(b + 30, name, ".pkl") || names(b + 30, name, "/version") || names(b + 30, name, "/byteorder"))
    return "a PyTorch file; T.load and T.load_pt read it";
  return "a zip archive";
}

/* A file of another kind that someone may take for a safetensors file; NULL for none that is known. */
static const char *other_kind(const char *b, size_t n) {
#define MAGIC(text, what) \
  { text, sizeof text - 1, what }
  static const struct {
    const char *magic;
    size_t n;
    const char *what;
  } kinds[] = {
      MAGIC("\x93NUMPY", "an npy file; T.load_npy reads it"),
      MAGIC("GGUF", "a GGUF file; T.load and T.load_gguf read it"),
      MAGIC("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", "an old PyTorch file; T.load and T.load_pt read it"),
      MAGIC("\x89HDF\r\n", "an HDF5 file, which perilune does not read"),
      MAGIC("\x89PNG\r\n", "a PNG image; T.load_image reads it"),
      MAGIC("\x1f\x8b", "compressed by gzip; unpack it first"),
      MAGIC("version https://git-lfs", "a Git LFS pointer, not the file itself; git lfs pull fetches it"),
      MAGIC("3\n1\n", "a file of torch7; T.load_t7 reads it"),
      MAGIC("4\n1\n", "a file of torch7; T.load_t7 reads it"),
      MAGIC("\3\0\0\0\1\0\0\0", "a file of torch7; T.load_t7 reads it"),
      MAGIC("\4\0\0\0\1\0\0\0", "a file of torch7; T.load_t7 reads it"),
  };
#undef MAGIC
  if (n >= 4 && memcmp(b, "PK\x03\x04", 4) == 0) return archive(b, n);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (n >= kinds[i].n && memcmp(b, kinds[i].magic, kinds[i].n) == 0) return kinds[i].what;
  const unsigned char version = n >= 2 && b[0] == '\x80' ? (unsigned char)b[1] : 0;
  return version >= 2 && version <= 5 ? "a pickle of Python, which is code" : NULL;
}

/* The header cannot be as long as the first bytes say. */
static PlStatus no_header(const PlSafetensors *s, uint64_t len, int64_t size) {
  char b[256];
  const size_t n = size < (int64_t)sizeof b ? (size_t)size : sizeof b;
  PL_TRY(pl_file_read_at(s->fd, s->path, b, n, 0));
  const char *kind = other_kind(b, n);
  if (kind) return pl_file_bad(s->path, "not a safetensors file but %s", kind);
  if (size < 8) return pl_file_bad(s->path, "not a safetensors file (%lld bytes)", (long long)size);
  if (len <= (uint64_t)(size - 8))
    return pl_file_bad(s->path, "a header of %llu bytes; safetensors files have at most %lld", (unsigned long long)len,
                       (long long)PL_SAFETENSORS_MAX_HEADER);
  return pl_file_bad(s->path, "not a safetensors file, or truncated: a header of %llu bytes in a file of %lld", (unsigned long long)len,
                     (long long)size);
}

static PlStatus read_header(PlSafetensors *s, int64_t size) {
  unsigned char b[8];
  if (size < 8) return no_header(s, 0, size);
  PL_TRY(pl_file_read_at(s->fd, s->path, b, 8, 0));
  uint64_t len = 0;
  for (int i = 7; i >= 0; i--) len = len << 8 | b[i];
  if (len > PL_SAFETENSORS_MAX_HEADER || len > (uint64_t)(size - 8)) return no_header(s, len, size);
  void *mem;
  PL_TRY(pl_file_code(plk_scratch((size_t)len + 1, &mem)));
  s->header.text = mem;
  s->header.len = (size_t)len;
  PL_TRY(pl_file_read_at(s->fd, s->path, mem, (size_t)len, 8));
  s->data_at = 8 + (int64_t)len;
  return pl_header_parse(&s->header, s->path, size - s->data_at);
}

PlStatus pl_safetensors_open(PlSafetensors **out, const char *path) {
  int64_t size = 0;
  PlSafetensors *s = calloc(1, sizeof *s);
  char *copy = strdup(path);
  if (!s || !copy) {
    free(s);
    free(copy);
    return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", path));
  }
  s->path = copy;
  s->fd = -1;
  PlStatus st = pl_file_open(path, &s->fd, &size);
  if (st == PL_OK) st = read_header(s, size);
  if (st != PL_OK) {
    pl_safetensors_release(s);
    return st;
  }
  *out = s;
  return PL_OK;
}

void pl_safetensors_release(PlSafetensors *s) {
  if (!s) return;
  pl_file_maps_end(&s->maps);
  if (s->fd >= 0) close(s->fd);
  pl_header_free(&s->header);
  plk_scratch_free(s->header.text);
  free(s->path);
  free(s);
}

void pl_safetensors_map(PlSafetensors *s) { s->maps.wanted = !PL_BIG_ENDIAN; }

int64_t pl_safetensors_count(const PlSafetensors *s) { return s->header.n; }

const char *pl_safetensors_name(const PlSafetensors *s, int64_t i, size_t *len) {
  *len = s->header.entry[i].name_len;
  return s->header.entry[i].name;
}

void pl_safetensors_describe(const PlSafetensors *s, int64_t i, PlDtype *dtype, int *ndim, int64_t *shape) {
  const PlEntry *e = &s->header.entry[i];
  *dtype = (PlDtype)e->wire->dtype;
  *ndim = e->ndim;
  pl_header_shape(&s->header, e, shape);
}

bool pl_safetensors_next_meta(PlSafetensors *s, const char **key, size_t *nkey, const char **value, size_t *nvalue) {
  return pl_header_next_meta(&s->header, key, nkey, value, nvalue);
}

const char *pl_safetensors_stored(const PlSafetensors *s, int64_t i, int64_t *bytes) {
  *bytes = s->header.entry[i].end - s->header.entry[i].begin;
  return s->header.entry[i].wire->name;
}

static PlStatus check_dtype(const PlSafetensors *s, const PlEntry *e) {
  if (e->wire->dtype != PL_NDTYPE) return PL_OK;
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: tensor \"%.*s\" has dtype %s, which perilune does not have", s->path,
                              (int)(e->name_len < 80 ? e->name_len : 80), e->name, e->wire->name));
}

PlStatus pl_safetensors_part(PlSafetensors *s, int64_t i, const int64_t *start, const int64_t *count, PlTensor **out) {
  const PlEntry *e = &s->header.entry[i];
  PlRegion r = {.ndim = e->ndim};
  PlTensor *t;
  PL_TRY(check_dtype(s, e));
  pl_header_shape(&s->header, e, r.shape);
  memcpy(r.start, start, (size_t)r.ndim * sizeof *start);
  memcpy(r.count, count, (size_t)r.ndim * sizeof *count);
  PL_TRY(pl_region_check(&r, "slice"));
  const PlDtype dtype = (PlDtype)e->wire->dtype;
  const size_t wire = e->wire->bits / 8, wide = pl_dtype_size(dtype);
  const int64_t at = s->data_at + e->begin;
  if (dtype != PL_BOOL && !e->wire->widen && memcmp(r.count, r.shape, (size_t)r.ndim * sizeof *r.count) == 0) {
    PL_TRY(pl_file_code(pl_file_map_tensor(out, &s->maps, s->fd, at, dtype, r.ndim, r.count)));
    if (*out) return PL_OK;
  }
  PL_TRY(pl_file_code(pl_tensor_empty(&t, dtype, r.ndim, r.count)));
  const int64_t n = pl_tensor_numel(t);
  char *data = pl_tensor_data(t);
  PlStatus st = pl_region_read(&r, s->fd, s->path, at, wire, data + (size_t)n * (wide - wire));
  if (st == PL_OK) st = pl_wire_convert(e->wire, s->path, PL_BIG_ENDIAN, data, n);
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}

PlStatus pl_safetensors_read(PlSafetensors *s, int64_t i, PlTensor **out) {
  int64_t start[PL_MAX_DIM] = {0}, shape[PL_MAX_DIM];
  pl_header_shape(&s->header, &s->header.entry[i], shape);
  return pl_safetensors_part(s, i, start, shape, out);
}
