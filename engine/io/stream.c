/* SPDX-License-Identifier: MIT
 * See stream.h. */
#include "engine/io/stream.h"

#include <string.h>

#include "engine/io/png_write.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_ZLIB
#include <zlib.h>

enum { IN_CHUNK = 1 << 16 };

struct PlInflate {
  z_stream z;
  bool ended; /* the last member is complete */
  unsigned char in[IN_CHUNK];
};

static PlStatus begin_inflate(PlStream *s) {
  void *mem;
  PL_TRY(pl_file_code(plk_scratch(sizeof *s->z, &mem)));
  s->z = mem;
  memset(&s->z->z, 0, sizeof s->z->z);
  s->z->ended = false;
  if (inflateInit2(&s->z->z, s->packing == PL_GZIP ? 16 + MAX_WBITS : -MAX_WBITS) == Z_OK) return PL_OK;
  plk_scratch_free(mem);
  s->z = NULL;
  return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory for inflating", s->path));
}

static PlStatus refill(PlStream *s) {
  int64_t left = s->end - s->at;
  if (left <= 0) return pl_file_bad(s->path, "the compressed data ends early");
  size_t n = left < IN_CHUNK ? (size_t)left : IN_CHUNK;
  PL_TRY(pl_file_read_at(s->fd, s->path, s->z->in, n, s->at));
  s->at += (int64_t)n;
  s->z->z.next_in = s->z->in;
  s->z->z.avail_in = (uInt)n;
  return PL_OK;
}

/* What comes behind a complete member: another gzip member, or nothing. */
static PlStatus next_member(PlStream *s, bool *over) {
  *over = s->packing == PL_DEFLATE || (s->z->z.avail_in == 0 && s->at >= s->end);
  if (*over) return PL_OK;
  if (inflateReset(&s->z->z) != Z_OK) return pl_file_bad(s->path, "gzip state is broken");
  s->z->ended = false;
  return PL_OK;
}

/* Inflates up to n bytes; *got < n only at the end of the data. */
static PlStatus inflate_some(PlStream *s, void *buf, size_t n, size_t *got) {
  struct PlInflate *d = s->z;
  unsigned char *p = buf;
  size_t done = 0;
  while (done < n) {
    bool over = false;
    if (d->ended) PL_TRY(next_member(s, &over));
    if (over) break;
    if (d->z.avail_in == 0) PL_TRY(refill(s));
    size_t want = n - done < (1u << 24) ? n - done : (1u << 24);
    d->z.next_out = p + done;
    d->z.avail_out = (uInt)want;
    int rc = inflate(&d->z, Z_NO_FLUSH);
    done += want - d->z.avail_out;
    if (rc == Z_STREAM_END) d->ended = true;
    else if (rc == Z_MEM_ERROR) return pl_file_code(pl_fail(PL_ERR_OOM, "%s: out of memory", s->path));
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
      return pl_file_bad(s->path, "corrupt %s data: %s", s->packing == PL_GZIP ? "gzip" : "compressed",
                         d->z.msg ? d->z.msg : "not a deflate stream");
    PL_TRY(pl_file_code(plk_poll()));
  }
  *got = done;
  return PL_OK;
}

uint32_t pl_stream_crc(uint32_t crc, const void *bytes, size_t n) {
  const unsigned char *p = bytes;
  for (; n > 0; n -= n < (1u << 30) ? n : (1u << 30)) {
    size_t k = n < (1u << 30) ? n : (1u << 30);
    crc = (uint32_t)crc32(crc, p, (uInt)k);
    p += k;
  }
  return crc;
}
#endif

#ifndef PL_HAVE_ZLIB
uint32_t pl_stream_crc(uint32_t crc, const void *p, size_t n) { return pl_crc32(0xEDB88320, crc, p, n); }
#endif

PlStatus pl_stream_begin(PlStream *s, const char *path, int fd, int64_t at, int64_t end, PlPacking packing) {
  *s = (PlStream){.path = path, .fd = fd, .packing = packing, .at = at, .end = end};
  if (packing == PL_PLAIN) return PL_OK;
#ifdef PL_HAVE_ZLIB
  return begin_inflate(s);
#else
  return pl_file_code(pl_fail(PL_ERR_UNSUPPORTED, "%s: compressed, and this build has no zlib (zlib1g-dev); unpack it first", path));
#endif
}

void pl_stream_end(PlStream *s) {
#ifdef PL_HAVE_ZLIB
  if (s->z) inflateEnd(&s->z->z);
  plk_scratch_free(s->z);
#endif
  s->z = NULL;
}

PlStatus pl_stream_take(PlStream *s, void *buf, size_t n) {
  if (n == 0) return PL_OK;
#ifdef PL_HAVE_ZLIB
  if (s->z) {
    size_t got = 0;
    PL_TRY(inflate_some(s, buf, n, &got));
    if (got < n) return pl_file_bad(s->path, "the data ends early");
    if (s->want_crc) s->crc = pl_stream_crc(s->crc, buf, n);
    return PL_OK;
  }
#endif
  if ((uint64_t)n > (uint64_t)(s->end - s->at)) return pl_file_bad(s->path, "the file ends early");
  PL_TRY(pl_file_read_at(s->fd, s->path, buf, n, s->at));
  s->at += (int64_t)n;
  if (s->want_crc) s->crc = pl_stream_crc(s->crc, buf, n);
  return PL_OK;
}

PlStatus pl_stream_expect_end(PlStream *s) {
#ifdef PL_HAVE_ZLIB
  if (s->z) {
    unsigned char extra;
    size_t got = 0;
    PL_TRY(inflate_some(s, &extra, 1, &got));
    return got == 0 ? PL_OK : pl_file_bad(s->path, "more data than the header declares");
  }
#endif
  if (s->at == s->end) return PL_OK;
  return pl_file_bad(s->path, "%lld bytes more than the header declares", (long long)(s->end - s->at));
}

int64_t pl_stream_most(const PlStream *s) {
  enum { MAX_RATIO = 1032 };
  int64_t left = s->end - s->at;
  if (s->packing == PL_PLAIN) return left;
#ifdef PL_HAVE_ZLIB
  left += s->z ? (int64_t)s->z->z.avail_in : 0;
#endif
  return left > INT64_MAX / MAX_RATIO ? INT64_MAX : (left + 1) * MAX_RATIO;
}

PlStatus pl_stream_check_size(const PlStream *s, int64_t n, int64_t max_bytes) {
  if (n > max_bytes)
    return pl_file_bad(s->path, "the header declares %lld bytes, more than max_bytes = %lld", (long long)n, (long long)max_bytes);
  int64_t most = pl_stream_most(s);
  if (n > most)
    return pl_file_bad(s->path, "truncated: the header declares %lld bytes of data, the file can hold %lld", (long long)n, (long long)most);
  return PL_OK;
}
