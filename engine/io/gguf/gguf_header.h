/* SPDX-License-Identifier: MIT
 * The header of a GGUF file: what it says of keys and tensors, checked from its first byte, so that what is taken from it later
 * needs no checks. */
#ifndef PL_ENGINE_IO_GGUF_GGUF_HEADER_H
#define PL_ENGINE_IO_GGUF_GGUF_HEADER_H

#include "engine/io/gguf/gguf.h"
#include "engine/tensor/file_map.h"

enum { PL_GGUF_DIMS = 4 };

typedef struct PlGgufEntry {
  PlText name;
  int type, ndim;
  int64_t shape[PL_GGUF_DIMS]; /* slowest first */
  int64_t at, bytes;           /* from the beginning of the data */
} PlGgufEntry;

typedef struct PlGgufKey {
  PlText name;
  PlGgufKind kind;
  const char *value;
} PlGgufKey;

struct PlGguf {
  char *path;
  int fd;
  int64_t size;
  char *head; /* scratch */
  size_t have;
  PlGgufKey *key;     /* scratch, in the file's order */
  PlGgufEntry *entry; /* scratch, in the file's order */
  int64_t nkey, n, alignment, data_at;
  PlFileMaps maps;
};

/* Bytes of a value of each kind; texts and lists: the least that they have. */
extern const uint8_t pl_gguf_kind_bytes[PL_GGUF_KINDS];

/* A number of n bytes, the lowest first. */
static inline uint64_t pl_gguf_le(const char *p, int n) {
  uint64_t v = 0;
  for (int i = n - 1; i >= 0; i--) v = v << 8 | (unsigned char)p[i];
  return v;
}

/* Reads the header of g->fd into g, in growing pieces, as nothing says how long it is. */
PlStatus pl_gguf_read_header(PlGguf *g);

#endif
