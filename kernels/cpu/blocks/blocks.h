/* SPDX-License-Identifier: MIT
 * What the files of this folder share: the functions that the table in formats.c names, and numbers at any address. */
#ifndef PL_KERNELS_CPU_BLOCKS_H
#define PL_KERNELS_CPU_BLOCKS_H

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/convert.h"

static inline uint32_t plk_le16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static inline uint32_t plk_le32(const uint8_t *p) { return plk_le16(p) | plk_le16(p + 2) << 16; }
static inline float plk_half_at(const uint8_t *p) { return plk_f16_to_f32((uint16_t)plk_le16(p)); }
/* Writes v as f16; false if it is not finite there. */
static inline bool plk_half_put(uint8_t *p, float v) {
  const uint16_t h = plk_f32_to_f16(v);
  p[0] = (uint8_t)h;
  p[1] = (uint8_t)(h >> 8);
  return (h & 0x7c00u) != 0x7c00u;
}

#define PLK_DEQUANTIZE(name) void plk_dequantize_##name(const uint8_t *blocks, float *x, int64_t n)
#define PLK_QUANTIZE(name)   bool plk_quantize_##name(const float *x, uint8_t *blocks, int64_t n)

PLK_DEQUANTIZE(q4_0);
PLK_DEQUANTIZE(q4_1);
PLK_DEQUANTIZE(q5_0);
PLK_DEQUANTIZE(q5_1);
PLK_DEQUANTIZE(q8_0);
PLK_DEQUANTIZE(iq4_nl);
PLK_DEQUANTIZE(mxfp4);
PLK_QUANTIZE(q4_0);
PLK_QUANTIZE(q4_1);
PLK_QUANTIZE(q5_0);
PLK_QUANTIZE(q5_1);
PLK_QUANTIZE(q8_0);
PLK_DEQUANTIZE(q2_k);
PLK_DEQUANTIZE(q3_k);
PLK_DEQUANTIZE(q4_k);
PLK_DEQUANTIZE(q5_k);
PLK_DEQUANTIZE(q6_k);
PLK_QUANTIZE(q4_k);
PLK_QUANTIZE(q5_k);
PLK_QUANTIZE(q6_k);
PLK_DEQUANTIZE(iq4_xs);
PLK_DEQUANTIZE(tq1_0);
PLK_DEQUANTIZE(tq2_0);

extern const int8_t plk_iq4_values[16];

#endif
