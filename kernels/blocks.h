/* SPDX-License-Identifier: MIT
 * ggml's block formats: a row of numbers as blocks of so many elements in so many bytes, with scales of their own. One table
 * says what there is; files are read and written by it, and products straight from blocks are built on it.
 *
 * Numbers in blocks are little-endian, and blocks lie at any address. Results are those of the formats' formulas in f32,
 * rounded after each operation: the same bits everywhere. */
#ifndef PL_KERNELS_BLOCKS_H
#define PL_KERNELS_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PlkBlockFormat {
  const char *name;
  int id;              /* ggml's number of it, as GGUF files have it */
  int elements, bytes; /* of one block */
  /* n blocks become n * elements numbers. NULL: the format is known by its size alone. */
  void (*dequantize)(const uint8_t *blocks, float *x, int64_t n);
  /* The other way, by the rounding of ggml's reference; false if a number is not finite or a scale leaves f16. NULL: not written. */
  bool (*quantize)(const float *x, uint8_t *blocks, int64_t n);
} PlkBlockFormat;

/* All of them; NULL behind the last. */
const PlkBlockFormat *plk_block_format_at(int i);
const PlkBlockFormat *plk_block_format(int id); /* NULL: no such number */
const PlkBlockFormat *plk_block_format_named(const char *name, size_t n);

#endif
