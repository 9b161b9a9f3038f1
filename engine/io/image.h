/* SPDX-License-Identifier: MIT
 * Between the image readers and writers: pixels in memory, 8 bits a channel, rows from the top, channels interleaved. */
#ifndef PL_ENGINE_IO_IMAGE_H
#define PL_ENGINE_IO_IMAGE_H

#include "engine/io/file.h"

typedef struct PlPixels {
  int64_t h, w;
  int c;       /* 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA */
  PlTensor *t; /* u8 [h, w, c] */
} PlPixels;

/* Checks the declared size against max_bytes, makes p->t. */
PlStatus pl_pixels_new(PlPixels *p, const char *path, int64_t h, int64_t w, int c, int64_t max_bytes);
/* Decode the n bytes of the file named path into p (p->t is the caller's also after a failure). `c`: channels wanted,
 * 0: the file's own. */
PlStatus pl_image_png_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes);
PlStatus pl_image_jpeg_decode(PlPixels *p, const char *path, const void *bytes, size_t n, int c, int64_t max_bytes);
/* Encodes h x w x c pixels into scratch memory. */
PlStatus pl_image_jpeg_encode(const char *path, const uint8_t *data, int64_t h, int64_t w, int c, int quality, void **out, size_t *n);

#endif
