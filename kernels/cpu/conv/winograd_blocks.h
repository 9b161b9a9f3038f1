/* SPDX-License-Identifier: MIT
 * Winograd's F(2×2, 3×3) on blocks of channels: what winograd.h does with lanes that are tiles, with lanes that are channels. Loops
 * are in isa/conv/winograd_blocks.c, the convolution in conv_winograd_blocks.c. */
#ifndef PL_KERNELS_CPU_CONV_WINOGRAD_BLOCKS_H
#define PL_KERNELS_CPU_CONV_WINOGRAD_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { PLK_WINOGRAD_WIDE = 32 }; /* output channels of a slice of weights */

/* One block of channels of an image: lines of w columns of 8 or 16 values. What is written has a tail. */
typedef struct PlkBlockPlane {
  int64_t h, w;
  float *out;
  const float *bias, *addend; /* of the block; where out is; NULL: none */
  bool relu;
} PlkBlockPlane;

typedef struct PlkWinogradBlockLoops {
  /* Up to 32 outputs' kernels w[output][channels][9] → u[16][channels][32]. */
  void (*weights)(const float *w, int64_t channels, int64_t outputs, float *u);
  /* [0]: blocks of 8, [1]: of 16. Rows of tiles first … of a block → v, entry ij of a tile at [ij * step + tile * lead]. */
  void (*input[2])(const float *plane, const PlkBlockPlane *q, int64_t first, int64_t rows, float *v, int64_t lead, int64_t step);
  /* m, entry ij of a tile at [ij * step + tile * 32] → rows of tiles. */
  void (*output[2])(const float *m, int64_t step, const PlkBlockPlane *q, int64_t first, int64_t rows);
  /* m[tiles][32] = v[tiles][channels] u[channels][32]: each sum over the channels in order. */
  void (*product)(const float *v, const float *u, int64_t channels, int64_t tiles, float *m);
} PlkWinogradBlockLoops;

#endif
