/* SPDX-License-Identifier: MIT
 * Blocks of 256, whose parts of 16 or 32 have scales of a few bits: Q2_K … Q6_K, IQ4_XS, TQ1_0, TQ2_0. d and dmin are f16; s and m
 * are the scale and the offset of a part.
 *
 *   Q2_K, Q4_K, Q5_K: d s q - dmin m   Q3_K: d (s - 32) (q - 4 or q)   Q6_K: d s (q - 32)   IQ4_XS: d (s - 32) values[q]
 *   TQ1_0, TQ2_0: d (q - 1) */
#include "kernels/cpu/blocks/blocks.h"

enum { N = 256 };

/* scales[16] qs[64] d dmin: parts of 16; s has the low, m the high 4 bits. A group of 128 is 32 bytes, whose bits 2k, 2k+1 are
 * the elements 32k … of it; so it is in Q3_K. */
PLK_DEQUANTIZE(q2_k) {
  for (; n > 0; n--, blocks += 84, x += N) {
    const uint8_t *scales = blocks, *q = blocks + 16;
    const float d = plk_half_at(blocks + 80), dmin = plk_half_at(blocks + 82);
    for (int part = 0; part < 16; part++) {
      const uint8_t *p = q + part / 8 * 32 + part % 2 * 16;
      const float s = d * (float)(scales[part] & 15), m = dmin * (float)(scales[part] >> 4);
      const int shift = part % 8 / 2 * 2;
      for (int j = 0; j < 16; j++) x[part * 16 + j] = s * (float)(p[j] >> shift & 3) - m;
    }
  }
}

/* hmask[32] qs[64] scales[12] d. Scale i of 16: the low 4 bits in byte i % 8, in its low half for i < 8; the high 2 bits in byte
 * 8 + i % 4, at bit i / 4 * 2. Bit k of hmask[j % 32], k = j / 32: 0 takes 4 away. */
PLK_DEQUANTIZE(q3_k) {
  for (; n > 0; n--, blocks += 110, x += N) {
    const uint8_t *mask = blocks, *q = blocks + 32, *packed = blocks + 96;
    const float d = plk_half_at(blocks + 108);
    for (int i = 0; i < 16; i++) {
      const uint8_t *p = q + i / 8 * 32 + i % 2 * 16, *h = mask + i % 2 * 16;
      const float s = d * (float)(((packed[i % 8] >> (i / 8 * 4) & 15) | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32);
      const int shift = i % 8 / 2 * 2, bit = i / 2;
      for (int j = 0; j < 16; j++) x[i * 16 + j] = s * (float)((p[j] >> shift & 3) + (h[j] >> bit & 1) * 4 - 4);
    }
  }
}

/* Twelve bytes hold eight scales and offsets of 6 bits: those of the parts 0 … 3 are the low 6 bits of bytes 0 … 3 and 4 … 7; of the
 * parts 4 … 7 the low 4 bits are the halves of bytes 8 … 11, the high 2 bits the high bits of bytes 0 … 3 and 4 … 7. */
static void six_bits(const uint8_t *p, int part, int *s, int *m) {
  if (part < 4) {
    *s = p[part] & 63;
    *m = p[part + 4] & 63;
  } else {
    *s = (p[part + 4] & 15) | p[part - 4] >> 6 << 4;
    *m = p[part + 4] >> 4 | p[part] >> 6 << 4;
  }
}

/* d dmin scales[12] qs[128]: parts of 32; 32 bytes hold two of them, the first in the low halves. */
PLK_DEQUANTIZE(q4_k) {
  for (; n > 0; n--, blocks += 144, x += N) {
    const float d = plk_half_at(blocks), dmin = plk_half_at(blocks + 2);
    for (int part = 0; part < 8; part++) {
      const uint8_t *q = blocks + 16 + part / 2 * 32;
      int si, mi;
      six_bits(blocks + 4, part, &si, &mi);
      const float s = d * (float)si, m = dmin * (float)mi;
      for (int j = 0; j < 32; j++) x[part * 32 + j] = s * (float)(q[j] >> (part % 2 * 4) & 15) - m;
    }
  }
}

/* d dmin scales[12] qh[32] qs[128]: the fifth bit of part k is bit k of qh. */
PLK_DEQUANTIZE(q5_k) {
  for (; n > 0; n--, blocks += 176, x += N) {
    const uint8_t *high = blocks + 16;
    const float d = plk_half_at(blocks), dmin = plk_half_at(blocks + 2);
    for (int part = 0; part < 8; part++) {
      const uint8_t *q = blocks + 48 + part / 2 * 32;
      int si, mi;
      six_bits(blocks + 4, part, &si, &mi);
      const float s = d * (float)si, m = dmin * (float)mi;
      for (int j = 0; j < 32; j++) {
        const int v = (q[j] >> (part % 2 * 4) & 15) | (high[j] >> part & 1) << 4;
        x[part * 32 + j] = s * (float)v - m;
      }
    }
  }
}

/* ql[128] qh[64] scales[16] (signed) d: parts of 16. Of a group of 128, 64 bytes of ql hold the low 4 bits, the first 64 elements in
 * the low halves; bits 2k, 2k+1 of 32 bytes of qh are the high 2 bits of the elements 32k … . */
PLK_DEQUANTIZE(q6_k) {
  for (; n > 0; n--, blocks += 210, x += N) {
    const uint8_t *ql = blocks, *qh = blocks + 128;
    const float d = plk_half_at(blocks + 208);
    for (int part = 0; part < 16; part++) {
      const int g = part / 8, k = part % 8; /* 16 of the 128 elements of a group */
      const uint8_t *low = ql + g * 64 + k % 4 * 16, *high = qh + g * 32 + k % 2 * 16;
      const float s = d * (float)(int8_t)blocks[192 + part];
      const int low_shift = k / 4 * 4, high_shift = k / 2 * 2;
      for (int j = 0; j < 16; j++) x[part * 16 + j] = s * (float)(((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4) - 32);
    }
  }
}

/* d high[2] low[4] qs[128]: the scale of part k of 32 has its low 4 bits in half k % 2 of low[k / 2], its high 2 bits at bit 2k of high. 16
 * bytes hold a part, as in IQ4_NL. */
PLK_DEQUANTIZE(iq4_xs) {
  for (; n > 0; n--, blocks += 136, x += N) {
    const float d = plk_half_at(blocks);
    const uint32_t high = plk_le16(blocks + 2);
    for (int part = 0; part < 8; part++) {
      const uint8_t *q = blocks + 8 + part * 16;
      const int si = (blocks[4 + part / 2] >> (part % 2 * 4) & 15) | (int)(high >> (2 * part) & 3) << 4;
      const float s = d * (float)(si - 32);
      for (int j = 0; j < 32; j++) x[part * 32 + j] = s * (float)plk_iq4_values[j < 16 ? q[j] & 15 : q[j - 16] >> 4];
    }
  }
}

/* Digits of base 3 as a fraction of 256: the first digit of q is q * 3 / 256, the k-th that of q * 3^k, which keeps its low 8
 * bits. */
static inline int ternary(uint8_t q, int power) { return (int)(uint8_t)(q * power) * 3 >> 8; }

/* qs[48] qh[4] d: 32 bytes of 5 digits (element 32 k + j is digit k of byte j), 16 bytes of 5, 4 bytes of 4. */
PLK_DEQUANTIZE(tq1_0) {
  static const int powers[5] = {1, 3, 9, 27, 81};
  for (; n > 0; n--, blocks += 54, x += N) {
    const float d = plk_half_at(blocks + 52);
    for (int j = 0; j < 160; j++) x[j] = d * (float)(ternary(blocks[j % 32], powers[j / 32]) - 1);
    for (int j = 0; j < 80; j++) x[160 + j] = d * (float)(ternary(blocks[32 + j % 16], powers[j / 16]) - 1);
    for (int j = 0; j < 16; j++) x[240 + j] = d * (float)(ternary(blocks[48 + j % 4], powers[j / 4]) - 1);
  }
}

/* qs[64] d: groups of 128 as in Q2_K. */
PLK_DEQUANTIZE(tq2_0) {
  for (; n > 0; n--, blocks += 66, x += N) {
    const float d = plk_half_at(blocks + 64);
    for (int part = 0; part < 8; part++) {
      const uint8_t *p = blocks + part / 4 * 32;
      for (int j = 0; j < 32; j++) x[part * 32 + j] = d * (float)((p[j] >> (part % 4 * 2) & 3) - 1);
    }
  }
}
