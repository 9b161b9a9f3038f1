/* SPDX-License-Identifier: MIT
 * What kernels/cpu/image/grid_sample.c and its loops (isa/grid_sample.c) share. Channels are taken in chunks of `lanes`: a chunk
 * of one image is a list of its places with the channels side by side, so that a tap is one vector; in front of it is a row of zeros,
 * which is what lies outside. lanes 0: planes as they are, for few channels or few places. */
#ifndef PL_KERNELS_CPU_IMAGE_GRID_SAMPLE_H
#define PL_KERNELS_CPU_IMAGE_GRID_SAMPLE_H

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/transpose.h"
#include "kernels/grid_sample.h"

enum { PLK_GRID_BLOCK = 64 }; /* places that the loops take at a time */
enum { PLK_GRID_FEW = 4 };    /* lanes for up to four channels; else 64 bytes */

typedef struct PlkGrid {
  int nd, mode, padding, lanes;
  bool align;
  int64_t N, C, places, volume; /* per image */
  int64_t size[3];              /* the outermost dim first */
  PlkTranspose turn;
} PlkGrid;

typedef struct PlkGridLoops {
  /* n ≤ PLK_GRID_BLOCK places of an image, which begin at grid: y[c * places + p] for each of its channels. x: its chunks, each
   * (volume + 1) * lanes elements, or its planes. */
  void (*sample_f32)(const PlkGrid *g, const float *grid, int64_t n, const float *x, float *y);
  void (*sample_f64)(const PlkGrid *g, const double *grid, int64_t n, const double *x, double *y);
  /* The gradients for `channels` of them, those of a chunk, or of lanes 0 any: into dx as x lies, and as dgrid[p * nd + i], which is
   * written. x, dx and dgrid may be NULL, x only without dgrid. */
  void (*back_f32)(const PlkGrid *g, const float *grid, int64_t n, int64_t channels, const float *x, const float *dy, float *dx,
                   float *dgrid);
  void (*back_f64)(const PlkGrid *g, const double *grid, int64_t n, int64_t channels, const double *x, const double *dy, double *dx,
                   double *dgrid);
} PlkGridLoops;

PLK_ISA_DECLARE(const PlkGridLoops, plk_grid_loops);

#endif
