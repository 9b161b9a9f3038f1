/* SPDX-License-Identifier: MIT
 * The table of block formats. */
#include <string.h>

#include "kernels/cpu/blocks/blocks.h"

/* clang-format off */
static const PlkBlockFormat formats[] = {
    {"Q4_0",     2,  32,  18, plk_dequantize_q4_0,   plk_quantize_q4_0},
    {"Q4_1",     3,  32,  20, plk_dequantize_q4_1,   plk_quantize_q4_1},
    {"Q5_0",     6,  32,  22, plk_dequantize_q5_0,   plk_quantize_q5_0},
    {"Q5_1",     7,  32,  24, plk_dequantize_q5_1,   plk_quantize_q5_1},
    {"Q8_0",     8,  32,  34, plk_dequantize_q8_0,   plk_quantize_q8_0},
    {"Q8_1",     9,  32,  36, NULL, NULL}, /* of llama.cpp's activations, not of files */
    {"Q2_K",    10, 256,  84, plk_dequantize_q2_k,   NULL},
    {"Q3_K",    11, 256, 110, plk_dequantize_q3_k,   NULL},
    {"Q4_K",    12, 256, 144, plk_dequantize_q4_k,   plk_quantize_q4_k},
    {"Q5_K",    13, 256, 176, plk_dequantize_q5_k,   plk_quantize_q5_k},
    {"Q6_K",    14, 256, 210, plk_dequantize_q6_k,   plk_quantize_q6_k},
    {"Q8_K",    15, 256, 292, NULL, NULL},
    /* IQ1, IQ2 and IQ3 are indices into code books of hundreds of points */
    {"IQ2_XXS", 16, 256,  66, NULL, NULL},
    {"IQ2_XS",  17, 256,  74, NULL, NULL},
    {"IQ3_XXS", 18, 256,  98, NULL, NULL},
    {"IQ1_S",   19, 256,  50, NULL, NULL},
    {"IQ4_NL",  20,  32,  18, plk_dequantize_iq4_nl, NULL},
    {"IQ3_S",   21, 256, 110, NULL, NULL},
    {"IQ2_S",   22, 256,  82, NULL, NULL},
    {"IQ4_XS",  23, 256, 136, plk_dequantize_iq4_xs, NULL},
    {"IQ1_M",   29, 256,  56, NULL, NULL},
    {"TQ1_0",   34, 256,  54, plk_dequantize_tq1_0,  NULL},
    {"TQ2_0",   35, 256,  66, plk_dequantize_tq2_0,  NULL},
    {"MXFP4",   39,  32,  17, plk_dequantize_mxfp4,  NULL},
};
/* clang-format on */

enum { COUNT = sizeof formats / sizeof *formats };

const PlkBlockFormat *plk_block_format_at(int i) { return i >= 0 && i < COUNT ? &formats[i] : NULL; }

const PlkBlockFormat *plk_block_format(int id) {
  for (int i = 0; i < COUNT; i++)
    if (formats[i].id == id) return &formats[i];
  return NULL;
}

const PlkBlockFormat *plk_block_format_named(const char *name, size_t n) {
  for (int i = 0; i < COUNT; i++)
    if (strlen(formats[i].name) == n && memcmp(formats[i].name, name, n) == 0) return &formats[i];
  return NULL;
}

const PlkBlockFormat *plk_block_choice(int i) {
  const char *word = PLK_BLOCK_CHOICES;
  for (; i > 0 && *word; word++) i -= *word == '|';
  return plk_block_format_named(word, strcspn(word, "|"));
}
