/* SPDX-License-Identifier: MIT
 * A run of bytes of an open file, plain or compressed (gzip; bare deflate inside zip archives), read from front to
 * back. The readers of IDX, npy and npz take their bytes from here. */
#ifndef PL_ENGINE_IO_STREAM_H
#define PL_ENGINE_IO_STREAM_H

#include "engine/io/file.h"

typedef enum PlPacking { PL_PLAIN, PL_GZIP, PL_DEFLATE } PlPacking;

typedef struct PlStream {
  const char *path; /* borrowed, for messages */
  int fd;           /* borrowed */
  PlPacking packing;
  int64_t at, end; /* bytes of the file still to be read */
  bool want_crc;   /* set it after pl_stream_begin */
  uint32_t crc;    /* then: CRC-32 of what was taken so far */
  struct PlInflate *z;
} PlStream;

/* Bytes at … end of fd. Errors: OOM, UNSUPPORTED (packed bytes without zlib). */
PlStatus pl_stream_begin(PlStream *s, const char *path, int fd, int64_t at, int64_t end, PlPacking packing);
/* CRC-32 of zip and gzip; start with 0. */
uint32_t pl_stream_crc(uint32_t crc, const void *p, size_t n);
/* Exactly n bytes; fewer are FORMAT. */
PlStatus pl_stream_take(PlStream *s, void *buf, size_t n);
/* Fails unless nothing follows; for gzip this also checks the checksum behind the data. */
PlStatus pl_stream_expect_end(PlStream *s);
void pl_stream_end(PlStream *s);
/* The most bytes that the rest can hold: what a header may declare. Deflate codes at most 258 bytes in 2 bits. */
int64_t pl_stream_most(const PlStream *s);
/* n bytes are declared: FORMAT if max_bytes or the file cannot hold them. */
PlStatus pl_stream_check_size(const PlStream *s, int64_t n, int64_t max_bytes);

#endif
