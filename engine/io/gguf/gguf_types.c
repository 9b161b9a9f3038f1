/* SPDX-License-Identifier: MIT
 * See gguf_types.h. */
#include "engine/io/gguf/gguf_types.h"

#include <string.h>

static const PlGgufType plain[] = {
    {"F32", 0, 1, 4, PL_F32, NULL}, {"F16", 1, 1, 2, PL_F16, NULL},  {"BF16", 30, 1, 2, PL_BF16, NULL}, {"F64", 28, 1, 8, PL_F64, NULL},
    {"I8", 24, 1, 1, PL_I8, NULL},  {"I16", 25, 1, 2, PL_I16, NULL}, {"I32", 26, 1, 4, PL_I32, NULL},   {"I64", 27, 1, 8, PL_I64, NULL},
};

static void of_blocks(const PlkBlockFormat *f, PlGgufType *type) {
  *type = (PlGgufType){.name = f->name, .id = f->id, .elements = f->elements, .bytes = f->bytes, .dtype = PL_F32, .blocks = f};
}

bool pl_gguf_type(int id, PlGgufType *type) {
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (plain[i].id == id) {
      *type = plain[i];
      return true;
    }
  const PlkBlockFormat *f = plk_block_format(id);
  if (f) of_blocks(f, type);
  return f != NULL;
}

bool pl_gguf_type_named(const char *name, PlGgufType *type) {
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (strcmp(plain[i].name, name) == 0) {
      *type = plain[i];
      return true;
    }
  const PlkBlockFormat *f = plk_block_format_named(name, strlen(name));
  if (f) of_blocks(f, type);
  return f != NULL;
}
