/* SPDX-License-Identifier: MIT
 * The loops of kernels/cpu/image/image.c that are compiled once per processor level. Fixed point: weights have 14 bits behind
 * the point, rows between the two passes 6. */
#ifndef PL_KERNELS_CPU_IMAGE_IMAGE_H
#define PL_KERNELS_CPU_IMAGE_IMAGE_H

#include "kernels/cpu/isa/level.h"

enum { PLK_IMAGE_WEIGHT_BITS = 14, PLK_IMAGE_ROW_BITS = 6 };

typedef struct PlkImageLoops {
  /* to[x] = sum over k < n of rows[k * stride + x] * w[k], for x < len */
  void (*columns_u8)(const uint8_t *rows, int64_t stride, const int16_t *w, int n, int16_t *to, int64_t len);
  void (*columns_f32)(const float *rows, int64_t stride, const float *w, int n, float *to, int64_t len);
  /* to[p] = from[p * step] * scale + shift */
  void (*plane_u8)(const uint8_t *from, int64_t step, float scale, float shift, float *to, int64_t n);
} PlkImageLoops;

PLK_ISA_DECLARE(const PlkImageLoops, plk_image);

#endif
