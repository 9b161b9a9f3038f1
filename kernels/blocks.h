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

#include "kernels/kernel.h"

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

/* The formats that have numbers, as ops name them; plk_block_choice is the one of that position, from 0. */
#define PLK_BLOCK_CHOICES "Q4_0|Q4_1|Q5_0|Q5_1|Q8_0|Q2_K|Q3_K|Q4_K|Q5_K|Q6_K|IQ4_NL|IQ4_XS|TQ1_0|TQ2_0|MXFP4"
const PlkBlockFormat *plk_block_choice(int i);

/* All arrays contiguous. attrs 0: position of the format. w: u8 [N, bytes of a row of K]; x, y, bias of one float dtype.
 *
 * x[…, K] W^T + bias[N], which is optional: out [..., N]. attrs 1: 0 where x may be rounded to 16 bits in every 32 elements, with
 * their largest as its scale; 1: x as it is. */
PlStatus plk_cpu_quantized_linear(const PlkCall *call);
/* x[…, N] W: out [..., K]. */
PlStatus plk_cpu_quantized_matmul(const PlkCall *call);
/* w[…, bytes] to numbers [..., K] of out's dtype, and the other way. Fails where a format cannot hold a number. */
PlStatus plk_cpu_dequantize_blocks(const PlkCall *call);
PlStatus plk_cpu_quantize_blocks(const PlkCall *call);

#endif
