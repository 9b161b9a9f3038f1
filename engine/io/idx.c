/* SPDX-License-Identifier: MIT
 * IDX, the format of MNIST and its relatives (http://yann.lecun.com/exdb/mnist, "the IDX
 * file format"): byte 0, byte 0, type, ndim; ndim sizes of 4 bytes, big-endian; the
 * elements, row-major, big-endian. The declared sizes are believed only as far as the
 * file's own size allows. */
#include <string.h>
#include <unistd.h>

#include "engine/io/stream.h"

static bool dtype_of(unsigned char code, PlDtype *d) {
  switch (code) {
  case 0x08: *d = PL_U8; return true;
  case 0x09: *d = PL_I8; return true;
  case 0x0B: *d = PL_I16; return true;
  case 0x0C: *d = PL_I32; return true;
  case 0x0D: *d = PL_F32; return true;
  case 0x0E: *d = PL_F64; return true;
  default: return false;
  }
}

static PlStatus read_header(PlStream *s, PlDtype *dtype, int *ndim, int64_t *shape, int64_t *bytes) {
  unsigned char h[4];
  PL_TRY(pl_stream_take(s, h, sizeof h));
  if (h[0] != 0 || h[1] != 0) return pl_file_bad(s->path, "not an IDX file (it must begin with two zero bytes)");
  if (!dtype_of(h[2], dtype)) return pl_file_bad(s->path, "unknown IDX element type 0x%02X", h[2]);
  if (h[3] > PL_MAX_DIM) return pl_file_bad(s->path, "%d dimensions; at most %d are supported", h[3], PL_MAX_DIM);
  *ndim = h[3];
  for (int i = 0; i < *ndim; i++) {
    PL_TRY(pl_stream_take(s, h, sizeof h));
    shape[i] = (int64_t)((uint32_t)h[0] << 24 | (uint32_t)h[1] << 16 | (uint32_t)h[2] << 8 | h[3]);
  }
  return pl_file_shape(s->path, *dtype, *ndim, shape, bytes);
}

static PlStatus load(PlStream *s, PlTensor **out, int64_t max_bytes) {
  PlDtype dtype = PL_U8;
  int ndim = 0;
  int64_t shape[PL_MAX_DIM], bytes = 0;
  PL_TRY(read_header(s, &dtype, &ndim, shape, &bytes));
  PL_TRY(pl_stream_check_size(s, bytes, max_bytes));
  PlTensor *t;
  PL_TRY(pl_file_code(pl_tensor_empty(&t, dtype, ndim, shape)));
  PlStatus st = pl_stream_take(s, pl_tensor_data(t), (size_t)bytes);
  if (st == PL_OK) st = pl_stream_expect_end(s);
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  if (!PL_BIG_ENDIAN) pl_file_swap(pl_tensor_data(t), pl_tensor_numel(t), pl_dtype_size(dtype));
  *out = t;
  return PL_OK;
}

PlStatus pl_idx_load(PlTensor **out, const char *path, int64_t max_bytes) {
  if (max_bytes < 0) max_bytes = (int64_t)1 << 32;
  int fd;
  int64_t size;
  PL_TRY(pl_file_open(path, &fd, &size));
  unsigned char magic[2] = {0};
  PlStream s = {.z = NULL};
  PlStatus st = size >= 2 ? pl_file_read_at(fd, path, magic, 2, 0) : pl_file_bad(path, "the file ends early");
  bool gz = magic[0] == 0x1f && magic[1] == 0x8b;
  if (st == PL_OK) st = pl_stream_begin(&s, path, fd, 0, size, gz ? PL_GZIP : PL_PLAIN);
  if (st == PL_OK) st = load(&s, out, max_bytes);
  pl_stream_end(&s);
  close(fd);
  return st;
}
