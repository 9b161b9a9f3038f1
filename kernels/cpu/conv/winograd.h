/* SPDX-License-Identifier: MIT
 * Inner loops of 3×3 convolution by Winograd's minimal filtering F(2×2, 3×3) (A. Lavin, S. Gray, "Fast Algorithms for
 * Convolutional Neural Networks", 2015): y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for tiles d of 4×4 inputs, which overlap by two,
 * and y of 2×2 outputs. Sixteen products in place of thirty-six. The gradient of g is its adjoint,
 * Gᵀ [(A dy Aᵀ) ⊙ (Bᵀ d B)] G. Arrays of sixteen matrices keep entry (i, j) at [4i + j] * step. Loops are in
 * isa/conv/winograd.c, the convolution in conv_winograd.c. */
#ifndef PL_KERNELS_CPU_CONV_WINOGRAD_H
#define PL_KERNELS_CPU_CONV_WINOGRAD_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of tiles of one plane: all of its tiles in rows first … first + rows - 1. */
typedef struct PlkTileRows {
  int64_t h, w;        /* of the plane */
  int64_t first, rows; /* rows of tiles: two rows of the plane each */
} PlkTileRows;

enum { PLK_WINOGRAD_PAD = 16 }; /* loops write up to so many values more than they should */

/* What the loops need for runs of tile rows; made by plk_tile_scratch. */
typedef struct PlkTileMasks {
  const int32_t *inner, *last; /* per tile, line after line: 0 for the first, or the last, of its line; else -1 */
} PlkTileMasks;
typedef struct PlkTileScratch {
  PlkTileMasks mask;
  float *even;  /* lines of odd width, with a zero at the end */
  float *lines; /* four times `line` values: combined columns of all lines of a run */
  int64_t line;
} PlkTileScratch;

typedef struct PlkWinogradLoops {
  /* n kernels of 9 → u (G g Gᵀ); `flip` turns the kernels by 180° first. */
  void (*weights)(const float *w, int64_t n, bool flip, float *u, int64_t step);
  /* The adjoint: n kernels' Gᵀ u G. */
  void (*weights_back)(const float *u, int64_t step, int64_t n, float *dw);
  /* Plane → v (Bᵀ d B), a value a tile, in order; outside of the plane are zeros. */
  void (*input)(const float *plane, const PlkTileRows *r, float *v, int64_t step, PlkTileScratch *use);
  /* Plane of output gradients → z (A dy Aᵀ). */
  void (*gradient)(const float *plane, const PlkTileRows *r, float *z, int64_t step, PlkTileScratch *use);
  /* m → plane (Aᵀ m A + bias). */
  void (*output)(const float *m, int64_t step, const PlkTileRows *r, float bias, float *plane, PlkTileScratch *use);
} PlkWinogradLoops;

#endif
