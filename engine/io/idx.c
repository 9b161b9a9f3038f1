/* SPDX-License-Identifier: MIT
 * IDX, the format of MNIST and its relatives (http://yann.lecun.com/exdb/mnist, "the IDX
 * file format"): byte 0, byte 0, type, ndim; ndim sizes of 4 bytes, big-endian; the
 * elements, row-major, big-endian. The declared sizes are believed only as far as the
 * file's own size allows. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "engine/io/file.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_ZLIB
#include <zlib.h>
#endif

enum {
  IN_CHUNK = 1 << 16,
  MAX_RATIO = 1032
}; /* deflate codes at most 258 bytes in 2 bits */

/* Where bytes come from: the file itself, or its inflated contents. */
typedef struct Source {
  const char *path;
  int fd;
  bool gz;
  int64_t size, at; /* of the file; next byte to read from it */
#ifdef PL_HAVE_ZLIB
  z_stream z;
  unsigned char *in;
  bool ended; /* the last member is complete */
#endif
} Source;

#ifdef PL_HAVE_ZLIB
static PlStatus refill(Source *s) {
  int64_t left = s->size - s->at;
  if (left <= 0) return pl_file_bad(s->path, "the gzip data ends early");
  size_t n = left < IN_CHUNK ? (size_t)left : IN_CHUNK;
  PL_TRY(pl_file_read_at(s->fd, s->path, s->in, n, s->at));
  s->at += (int64_t)n;
  s->z.next_in = s->in;
  s->z.avail_in = (uInt)n;
  return PL_OK;
}

/* Inflates up to n bytes; *got < n only at the end of the data. A file may hold several
 * gzip members. */
static PlStatus inflate_some(Source *s, void *buf, size_t n, size_t *got) {
  unsigned char *p = buf;
  size_t done = 0;
  while (done < n) {
    if (s->ended) {
      if (s->z.avail_in == 0 && s->at >= s->size) break;
      if (inflateReset(&s->z) != Z_OK)
        return pl_file_bad(s->path, "gzip state is broken");
      s->ended = false;
    }
    if (s->z.avail_in == 0) PL_TRY(refill(s));
    size_t want = n - done < (1u << 24) ? n - done : (1u << 24);
    s->z.next_out = p + done;
    s->z.avail_out = (uInt)want;
    int rc = inflate(&s->z, Z_NO_FLUSH);
    done += want - s->z.avail_out;
    if (rc == Z_STREAM_END)
      s->ended = true;
    else if (rc == Z_MEM_ERROR)
      return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", s->path));
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
      return pl_file_bad(s->path, "corrupt gzip data: %s",
                         s->z.msg ? s->z.msg : "not a deflate stream");
    PL_TRY(pl_file_code(plk_poll()));
  }
  *got = done;
  return PL_OK;
}
#endif

static PlStatus take(Source *s, void *buf, size_t n) {
#ifdef PL_HAVE_ZLIB
  if (s->gz) {
    size_t got = 0;
    PL_TRY(inflate_some(s, buf, n, &got));
    return got == n ? PL_OK : pl_file_bad(s->path, "the data ends early");
  }
#endif
  PL_TRY(pl_file_read_at(s->fd, s->path, buf, n, s->at));
  s->at += (int64_t)n;
  return PL_OK;
}

/* Nothing may follow the last element. For gzip this also reads the checksum behind it.
 */
static PlStatus expect_end(Source *s) {
#ifdef PL_HAVE_ZLIB
  if (s->gz) {
    unsigned char extra;
    size_t got = 0;
    PL_TRY(inflate_some(s, &extra, 1, &got));
    return got == 0 ? PL_OK : pl_file_bad(s->path, "more data than the header declares");
  }
#endif
  if (s->at == s->size) return PL_OK;
  return pl_file_bad(s->path, "%lld bytes more than the header declares",
                     (long long)(s->size - s->at));
}

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

static PlStatus read_header(Source *s, PlDtype *dtype, int *ndim, int64_t *shape,
                            int64_t *bytes) {
  unsigned char h[4];
  PL_TRY(take(s, h, sizeof h));
  if (h[0] != 0 || h[1] != 0)
    return pl_file_bad(s->path, "not an IDX file (it must begin with two zero bytes)");
  if (!dtype_of(h[2], dtype))
    return pl_file_bad(s->path, "unknown IDX element type 0x%02X", h[2]);
  if (h[3] > PL_MAX_DIM)
    return pl_file_bad(s->path, "%d dimensions; at most %d are supported", h[3],
                       PL_MAX_DIM);
  *ndim = h[3];
  int64_t total = (int64_t)pl_dtype_size(*dtype);
  for (int i = 0; i < *ndim; i++) {
    PL_TRY(take(s, h, sizeof h));
    shape[i] = (int64_t)((uint32_t)h[0] << 24 | (uint32_t)h[1] << 16 |
                         (uint32_t)h[2] << 8 | h[3]);
    if (__builtin_mul_overflow(total, shape[i], &total))
      return pl_file_bad(s->path, "the declared sizes overflow");
  }
  *bytes = total;
  return PL_OK;
}

static PlStatus check_size(const Source *s, int64_t bytes, int64_t max_bytes) {
  if (bytes > max_bytes)
    return pl_file_bad(s->path,
                       "the header declares %lld bytes, more than max_bytes = %lld",
                       (long long)bytes, (long long)max_bytes);
  int64_t most = s->gz
                     ? (s->size > INT64_MAX / MAX_RATIO ? INT64_MAX : s->size * MAX_RATIO)
                     : s->size - s->at;
  if (bytes > most)
    return pl_file_bad(
        s->path,
        "truncated: the header declares %lld bytes of data, the file can hold %lld",
        (long long)bytes, (long long)most);
  return PL_OK;
}

static PlStatus load(Source *s, PlTensor **out, int64_t max_bytes) {
  PlDtype dtype = PL_U8;
  int ndim = 0;
  int64_t shape[PL_MAX_DIM], bytes = 0;
  PL_TRY(read_header(s, &dtype, &ndim, shape, &bytes));
  PL_TRY(check_size(s, bytes, max_bytes));
  PlTensor *t;
  PL_TRY(pl_file_code(pl_tensor_empty(&t, dtype, ndim, shape)));
  PlStatus st = take(s, pl_tensor_data(t), (size_t)bytes);
  if (st == PL_OK) st = expect_end(s);
  if (st != PL_OK) {
    pl_tensor_release(t);
    return st;
  }
  if (!PL_BIG_ENDIAN)
    pl_file_swap(pl_tensor_data(t), pl_tensor_numel(t), pl_dtype_size(dtype));
  *out = t;
  return PL_OK;
}

#ifdef PL_HAVE_ZLIB
static PlStatus load_gz(Source *s, PlTensor **out, int64_t max_bytes) {
  void *in;
  PL_TRY(pl_file_code(plk_scratch(IN_CHUNK, &in)));
  s->in = in;
  PlStatus st;
  if (inflateInit2(&s->z, 16 + MAX_WBITS) != Z_OK) {
    st = pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory for gzip", s->path));
  } else {
    st = load(s, out, max_bytes);
    inflateEnd(&s->z);
  }
  plk_scratch_free(in);
  return st;
}
#else
static PlStatus load_gz(Source *s, PlTensor **out, int64_t max_bytes) {
  (void)out;
  (void)max_bytes;
  return pl_file_code(pl_fail(
      PL_ERR_UNSUPPORTED, "%s: this build has no zlib; gunzip the file first", s->path));
}
#endif

PlStatus pl_idx_load(PlTensor **out, const char *path, int64_t max_bytes) {
  if (max_bytes < 0) max_bytes = (int64_t)1 << 32;
  Source s;
  memset(&s, 0, sizeof s);
  s.path = path;
  PL_TRY(pl_file_open(path, &s.fd, &s.size));
  unsigned char magic[2];
  PlStatus st = s.size >= 2 ? pl_file_read_at(s.fd, path, magic, 2, 0)
                            : pl_file_bad(path, "the file ends early");
  if (st == PL_OK) {
    s.gz = magic[0] == 0x1f && magic[1] == 0x8b;
    st = s.gz ? load_gz(&s, out, max_bytes) : load(&s, out, max_bytes);
  }
  close(s.fd);
  return st;
}
