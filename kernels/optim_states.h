/* SPDX-License-Identifier: MIT
 * States of optimizers in fewer bits than the parameter has, shared by all devices.
 *
 * bf16: rounded up or down by chance, with the chances that make the mean right. A running mean that moves by 0.1 % a step
 * would never move if it were rounded to the nearest of 8 bits. The chance is a function of step, column and element, so
 * results depend on nothing else.
 *
 * 8 bits, block-wise (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization"): dtype i8 for what has a sign, u8
 * for what has none, shape [blocks, 260]: a row is 256 elements of the parameter in row-major order, their largest magnitude
 * as an f32 in 4 bytes, then a code each. A code stands for a part of the largest: seven decades, 10^-6 … 1, each cut evenly
 * into twice as many parts as the one below it (dynamic quantization, Dettmers 2016), whose centres are the values; 0 and 1
 * have codes of their own. */
#ifndef PL_KERNELS_OPTIM_STATES_H
#define PL_KERNELS_OPTIM_STATES_H

#include <stdint.h>
#include <string.h>

#ifndef PLK_STATES_FN
#define PLK_STATES_FN static inline
#endif

enum { PLK_CODED_BLOCK = 256, PLK_CODED_HEAD = 4, PLK_CODED_ROW = PLK_CODED_BLOCK + PLK_CODED_HEAD };

PLK_STATES_FN uint32_t plk_float_bits(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
PLK_STATES_FN float plk_bits_float(uint32_t b) {
  float x;
  memcpy(&x, &b, sizeof x);
  return x;
}

/* What `column` of a parameter takes its chances from in step number `step`. */
PLK_STATES_FN uint32_t plk_rounding_seed(int64_t step, int column) { return (uint32_t)step * 0x9E3779B9u + (uint32_t)column * 0x85EBCA6Bu; }
/* A mixing of 32 bits whose every output bit depends on every input bit (Mueller's constants). */
#define PLK_ROUNDING_STEP 0x2C1B3C6Du
#define PLK_ROUNDING_MIX  0x45D9F3Bu
PLK_STATES_FN uint32_t plk_rounding_mixed(uint32_t seed, uint32_t k) {
  uint32_t h = k * PLK_ROUNDING_STEP + seed;
  h = (h ^ h >> 16) * PLK_ROUNDING_MIX;
  h = (h ^ h >> 16) * PLK_ROUNDING_MIX;
  return h ^ h >> 16;
}
/* Sixteen bits for element i: of 32 elements that begin at a multiple of 32, the first sixteen have the lower halves of sixteen numbers,
 * the others the upper ones. */
PLK_STATES_FN uint32_t plk_rounding_bits(uint32_t seed, uint32_t i) {
  const uint32_t h = plk_rounding_mixed(seed, (i >> 5 << 4) | (i & 15u));
  return (i & 16u) ? h >> 16 : h & 0xFFFFu;
}
/* The bf16 in the upper half; in 32 bits throughout, as loops over it become vectors. */
PLK_STATES_FN uint32_t plk_bf16_by_chance_above(float x, uint32_t bits) {
  const uint32_t b = plk_float_bits(x);
  const uint32_t special = b | ((b & 0x7FFFFFu) != 0 ? 0x400000u : 0u); /* infinities, NaN */
  return (b & 0x7F800000u) == 0x7F800000u ? special : b + bits;
}
PLK_STATES_FN uint16_t plk_bf16_by_chance(float x, uint32_t bits) { return (uint16_t)(plk_bf16_by_chance_above(x, bits) >> 16); }

/* 10^i, 0 <= i <= 6, exact. */
PLK_STATES_FN float plk_decade(int32_t i) { return ((i & 1) ? 10.0f : 1.0f) * ((i & 2) ? 100.0f : 1.0f) * ((i & 4) ? 10000.0f : 1.0f); }
/* The part of the largest that q stands for: 2^e <= q < 2^(e+1) are the parts of decade e - base, base 0 where there is a sign
 * and 1 where there is none. */
PLK_STATES_FN float plk_coded_part(int32_t q, int32_t base) {
  const uint32_t b = plk_float_bits((float)q + 0.5f);
  const int32_t e = (int32_t)(b >> 23) - 127;
  const float within = plk_bits_float((b & 0x7FFFFFu) | 0x3F800000u); /* from 1 to below 2 */
  return (0.9f * within - 0.8f) * (plk_decade(e - base) * 1e-6f);
}
/* In decade k, 0 <= k <= 6, q is the whole part of slope a + start, at most top, of n parts in the lowest decade. Borders of decades lie
 * in the middle between the centres beside them; what is under the lowest is zero, and from the last on it is one. */
#define PLK_CODED_SLOPE(K, N) \
  (((K) == 0 ? 1e6f : (K) == 1 ? 2e5f : (K) == 2 ? 4e4f : (K) == 3 ? 8e3f : (K) == 4 ? 1.6e3f : (K) == 5 ? 320.0f : 64.0f) / 0.9f * (N))
#define PLK_CODED_START(K, N) (0.8f * (float)(1 << (K)) / 0.9f * (N))
#define PLK_CODED_TOP(K, N)   ((float)(2 << (K)) * (N)-1)
#define PLK_CODED_BORDER(K, N) \
  (((K) == 1   ? 1e-6f         \
    : (K) == 2 ? 1e-5f         \
    : (K) == 3 ? 1e-4f         \
    : (K) == 4 ? 1e-3f         \
    : (K) == 5 ? 1e-2f         \
               : 1e-1f) *      \
   (1 + 0.9f / (float)(1 << ((K)-1)) / (N)))
#define PLK_CODED_ZERO(N) (1e-6f * (0.05f + 0.225f / (N)))
#define PLK_CODED_ONE(N)  (1 - 0.003515625f / (N))

/* The q whose value is nearest to a, 0 <= a <= 1; 0 for zero, 256 for one. Selections, not a table: they vectorize everywhere. */
PLK_STATES_FN int32_t plk_coded_q(float a, int32_t base) {
  const float n = base ? 2.0f : 1.0f;
  float slope = PLK_CODED_SLOPE(0, n), start = PLK_CODED_START(0, n), top = PLK_CODED_TOP(0, n);
#define DECADE(K)                                   \
  {                                                 \
    const int32_t in = a >= PLK_CODED_BORDER(K, n); \
    slope = in ? PLK_CODED_SLOPE(K, n) : slope;     \
    start = in ? PLK_CODED_START(K, n) : start;     \
    top = in ? PLK_CODED_TOP(K, n) : top;           \
  }
  DECADE(1)
  DECADE(2)
  DECADE(3)
  DECADE(4)
  DECADE(5)
  DECADE(6)
#undef DECADE
  float q = a * slope + start;
  q = q < top ? q : top;
  q = a >= PLK_CODED_ZERO(n) ? q : 0; /* also NaN: the block's largest says so */
  q = a >= PLK_CODED_ONE(n) ? 256.0f : q;
  return (int32_t)q;
}
PLK_STATES_FN float plk_decoded_i8(int8_t c) {
  const int32_t q = c < 0 ? -(int32_t)c : c;
  const float part = plk_coded_part(q, 0);
  return q == 128 ? 1.0f : c == 0 ? 0.0f : c < 0 ? -part : part;
}
PLK_STATES_FN float plk_decoded_u8(uint8_t c) {
  const int32_t q = c;
  return q == 1 ? 1.0f : q == 0 ? 0.0f : plk_coded_part(q, 1);
}
/* x is at most 1 in magnitude. There is no code for -1: the nearest is below it. */
PLK_STATES_FN int32_t plk_coded_i8(float x) {
  const int32_t q = plk_coded_q(x < 0 ? -x : x, 0);
  return q == 256 ? (x < 0 ? -127 : -128) : x < 0 ? -q : q;
}
PLK_STATES_FN int32_t plk_coded_u8(float x) {
  const int32_t q = plk_coded_q(x, 1);
  return q == 256 ? 1 : q;
}

#endif
