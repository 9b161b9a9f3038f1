/* SPDX-License-Identifier: MIT
 * NVIDIA's libraries are opened when they are first needed, never linked. */
#ifndef PL_KERNELS_CUDA_LIBS_LIBRARY_H
#define PL_KERNELS_CUDA_LIBS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A function and where its address goes in the table. */
typedef struct PlcSymbol {
  const char *name;
  size_t at;
} PlcSymbol;

/* Opens the first of `files` (ends with NULL) that is there, and fills `table` by `symbols` (ends with a NULL name). On
 * failure writes why into `missing`: the library's name, where it was looked for, what the linker said. */
bool plc_library_open(const char *name, const char *const *files, const PlcSymbol *symbols, void *table, char *missing, size_t size);

#endif
