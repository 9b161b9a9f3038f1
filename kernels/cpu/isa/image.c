/* SPDX-License-Identifier: MIT
 * See image.h. */
#include "kernels/cpu/image/image.h"

enum { BLOCK = 32 };

static void columns_u8(const uint8_t *rows, int64_t stride, const int16_t *w, int n, int16_t *to, int64_t len) {
  enum { SHIFT = PLK_IMAGE_WEIGHT_BITS - PLK_IMAGE_ROW_BITS };
  int64_t x = 0;
  for (; x + BLOCK <= len; x += BLOCK) {
    int32_t acc[BLOCK];
    for (int j = 0; j < BLOCK; j++) acc[j] = 1 << (SHIFT - 1);
    for (int k = 0; k < n; k++) {
      const uint8_t *r = rows + k * stride + x;
      const int32_t wk = w[k];
      for (int j = 0; j < BLOCK; j++) acc[j] += r[j] * wk;
    }
    for (int j = 0; j < BLOCK; j++) to[x + j] = (int16_t)(acc[j] >> SHIFT);
  }
  for (; x < len; x++) {
    int32_t acc = 1 << (SHIFT - 1);
    for (int k = 0; k < n; k++) acc += rows[k * stride + x] * w[k];
    to[x] = (int16_t)(acc >> SHIFT);
  }
}

static void columns_f32(const float *rows, int64_t stride, const float *w, int n, float *to, int64_t len) {
  for (int64_t x = 0; x < len; x++) to[x] = 0;
  for (int k = 0; k < n; k++) {
    const float *PL_RESTRICT r = rows + k * stride;
    const float wk = w[k];
    for (int64_t x = 0; x < len; x++) to[x] += r[x] * wk;
  }
}

static void plane_u8(const uint8_t *from, int64_t step, float scale, float shift, float *to, int64_t n) {
  if (step == 1)
    for (int64_t p = 0; p < n; p++) to[p] = (float)from[p] * scale + shift;
  else if (step == 3)
    for (int64_t p = 0; p < n; p++) to[p] = (float)from[3 * p] * scale + shift;
  else
    for (int64_t p = 0; p < n; p++) to[p] = (float)from[p * step] * scale + shift;
}

const PlkImageLoops PLK_ISA_NAME(plk_image) = {columns_u8, columns_f32, plane_u8};
