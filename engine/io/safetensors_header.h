/* SPDX-License-Identifier: MIT
 * The JSON header of a safetensors file, read by a pull parser that keeps nothing but a
 * small record a tensor: a general JSON tree can be 20 times the size of a hostile text.
 * Strings are decoded in place. */
#ifndef PL_ENGINE_IO_SAFETENSORS_HEADER_H
#define PL_ENGINE_IO_SAFETENSORS_HEADER_H

#include "engine/io/wire.h"

typedef struct PlEntry {
  const char *name; /* decoded, inside the header's own memory */
  uint32_t name_len, shape_at;
  int64_t begin, end; /* bytes from the end of the header */
  const PlWire *wire;
  uint8_t ndim;
} PlEntry;

typedef struct PlHeader {
  char *text; /* owned by the caller; changed by parsing */
  size_t len;
  PlEntry *entry; /* scratch memory, sorted by offset */
  int64_t n;
  size_t meta_at; /* where the next metadata pair starts; 0: none */
  bool meta_seen;
} PlHeader;

/* Parses h->text and checks everything against `data`, the bytes behind the header. */
PlStatus pl_header_parse(PlHeader *h, const char *path, int64_t data);
void pl_header_shape(const PlHeader *h, const PlEntry *e, int64_t *shape);
bool pl_header_next_meta(PlHeader *h, const char **key, size_t *nkey, const char **value, size_t *nvalue);
void pl_header_free(PlHeader *h);

#endif
