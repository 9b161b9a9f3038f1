/* SPDX-License-Identifier: MIT
 * Pictures for data loading: resampling, conversion to floats, colour changes. No ops: they have no gradient and write
 * interleaved memory (row by row, channels side by side), which is what decoders make and what runs fast. */
#ifndef PL_KERNELS_IMAGE_H
#define PL_KERNELS_IMAGE_H

#include "kernels/base.h"

enum { PLK_IMAGE_CHANNELS = 4 };

/* A picture in memory, u8 or f32; strides in elements. */
typedef struct PlkImage {
  const void *data;
  bool is_float;
  int64_t c, h, w, sc, sh, sw;
} PlkImage;

typedef enum PlkFilter { PLK_NEAREST, PLK_BILINEAR, PLK_BICUBIC } PlkFilter;

/* Writes h x w x from->c interleaved elements of from's type to `to`. antialias widens the filter when shrinking, as
 * Pillow does; flip mirrors left and right. Errors: OOM, INTERRUPT. */
PlStatus plk_image_resize(const PlkImage *from, void *to, int64_t h, int64_t w, PlkFilter filter, bool antialias, bool flip);
/* to[c][h][w] = from * scale[c] + shift[c], planes of floats. */
void plk_image_to_float(const PlkImage *from, float *to, const float *scale, const float *shift);
/* The same elements interleaved. */
void plk_image_interleave(const PlkImage *from, void *to);

typedef enum PlkAdjust { PLK_BRIGHTNESS, PLK_CONTRAST, PLK_SATURATION, PLK_HUE } PlkAdjust;
/* Changes n interleaved pixels of c channels in place; gray ones ignore saturation and hue. Values stay in 0 … 255 (u8)
 * or 0 … 1 (f32). Formulas as torchvision.transforms.functional: blends with black, the mean gray, the pixel's own gray;
 * hue turns by factor times the full circle. */
void plk_image_adjust(void *pixels, bool is_float, int64_t n, int64_t c, PlkAdjust what, float factor);

#endif
