/* SPDX-License-Identifier: MIT
 * ggml's types of tensors: plain numbers and blocks. */
#ifndef PL_ENGINE_IO_GGUF_TYPES_H
#define PL_ENGINE_IO_GGUF_TYPES_H

#include "engine/io/gguf/gguf.h"

typedef struct PlGgufType {
  const char *name;
  int id;
  int elements, bytes;          /* of a block; 1 element for plain numbers */
  PlDtype dtype;                /* of plain numbers; f32 for blocks */
  const PlkBlockFormat *blocks; /* NULL: plain numbers */
} PlGgufType;

bool pl_gguf_type(int id, PlGgufType *type);
bool pl_gguf_type_named(const char *name, PlGgufType *type);

#endif
