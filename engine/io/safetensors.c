/* SPDX-License-Identifier: MIT
 * Reading safetensors (https://github.com/huggingface/safetensors, "Format"): 8 bytes
 * length of the header, little-endian; the JSON header; the tensors' bytes,
 * little-endian, row-major. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/safetensors_header.h"
#include "kernels/kernel.h"

struct PlSafetensors {
  int fd;
  char *path;
  int64_t data_at; /* where the tensors' bytes begin */
  PlHeader header;
};

static PlStatus read_header(PlSafetensors *s, int64_t size) {
  unsigned char b[8];
  if (size < 8) return pl_file_bad(s->path, "not a safetensors file (%lld bytes)", (long long)size);
  PL_TRY(pl_file_read_at(s->fd, s->path, b, 8, 0));
  uint64_t len = 0;
  for (int i = 7; i >= 0; i--) len = len << 8 | b[i];
  if (len > PL_SAFETENSORS_MAX_HEADER || len > (uint64_t)(size - 8))
    return pl_file_bad(s->path, "not a safetensors file, or truncated: a header of %llu bytes in a file of %lld", (unsigned long long)len,
                       (long long)size);
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
  if (s->fd >= 0) close(s->fd);
  pl_header_free(&s->header);
  plk_scratch_free(s->header.text);
  free(s->path);
  free(s);
}

int64_t pl_safetensors_count(const PlSafetensors *s) { return s->header.n; }

const char *pl_safetensors_name(const PlSafetensors *s, int64_t i, size_t *len) {
  *len = s->header.entry[i].name_len;
  return s->header.entry[i].name;
}

void pl_safetensors_describe(const PlSafetensors *s, int64_t i, PlDtype *dtype, int *ndim, int64_t *shape) {
  const PlEntry *e = &s->header.entry[i];
  *dtype = (PlDtype)e->dtype;
  *ndim = e->ndim;
  pl_header_shape(&s->header, e, shape);
}

bool pl_safetensors_next_meta(PlSafetensors *s, const char **key, size_t *nkey, const char **value, size_t *nvalue) {
  return pl_header_next_meta(&s->header, key, nkey, value, nvalue);
}

PlStatus pl_safetensors_read(PlSafetensors *s, int64_t i, PlTensor **out) {
  const PlEntry *e = &s->header.entry[i];
  PlDtype dtype = (PlDtype)e->dtype;
  int64_t shape[PL_MAX_DIM];
  PlTensor *t;
  pl_header_shape(&s->header, e, shape);
  PL_TRY(pl_file_code(pl_tensor_empty(&t, dtype, e->ndim, shape)));
  size_t n = (size_t)(e->end - e->begin);
  PlStatus st = pl_file_read_at(s->fd, s->path, pl_tensor_data(t), n, s->data_at + e->begin);
  if (st == PL_OK && dtype == PL_BOOL) {
    const unsigned char *b = pl_tensor_data(t);
    unsigned char any = 0;
    for (size_t k = 0; k < n; k++) any |= b[k];
    if (any > 1) st = pl_file_bad(s->path, "a BOOL tensor holds a byte that is neither 0 nor 1");
  }
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  if (PL_BIG_ENDIAN) pl_file_swap(pl_tensor_data(t), pl_tensor_numel(t), pl_dtype_size(dtype));
  *out = t;
  return PL_OK;
}
