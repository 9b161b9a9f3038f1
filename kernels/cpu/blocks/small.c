/* SPDX-License-Identifier: MIT
 * Blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4. Element j of the first half has the low, of the second half
 * the high 4 bits of byte j; a fifth bit is bit j of 32 others. d: the scale, m: the least value, both f16.
 *
 *   Q4_0: d (q - 8)   Q5_0: d (q - 16)   Q8_0: d q   Q4_1, Q5_1: d q + m   IQ4_NL: d values[q]   MXFP4: 2^(e-128) (2 e2m1)[q] */
#include "kernels/cpu/blocks/blocks.h"

enum { N = 32, HALF = 16 };

/* ---- to numbers -------------------------------------------------------------------------------------------------------- */

static inline int low(const uint8_t *q, int j) { return j < HALF ? q[j] & 15 : q[j - HALF] >> 4; }

PLK_DEQUANTIZE(q4_0) {
  for (; n > 0; n--, blocks += 18, x += N) {
    const float d = plk_half_at(blocks);
    for (int j = 0; j < N; j++) x[j] = d * (float)(low(blocks + 2, j) - 8);
  }
}

PLK_DEQUANTIZE(q4_1) {
  for (; n > 0; n--, blocks += 20, x += N) {
    const float d = plk_half_at(blocks), m = plk_half_at(blocks + 2);
    for (int j = 0; j < N; j++) x[j] = d * (float)low(blocks + 4, j) + m;
  }
}

PLK_DEQUANTIZE(q5_0) {
  for (; n > 0; n--, blocks += 22, x += N) {
    const float d = plk_half_at(blocks);
    const uint32_t high = plk_le32(blocks + 2);
    for (int j = 0; j < N; j++) x[j] = d * (float)((low(blocks + 6, j) | (int)(high >> j & 1) << 4) - 16);
  }
}

PLK_DEQUANTIZE(q5_1) {
  for (; n > 0; n--, blocks += 24, x += N) {
    const float d = plk_half_at(blocks), m = plk_half_at(blocks + 2);
    const uint32_t high = plk_le32(blocks + 4);
    for (int j = 0; j < N; j++) x[j] = d * (float)(low(blocks + 8, j) | (int)(high >> j & 1) << 4) + m;
  }
}

PLK_DEQUANTIZE(q8_0) {
  for (; n > 0; n--, blocks += 34, x += N) {
    const float d = plk_half_at(blocks);
    for (int j = 0; j < N; j++) x[j] = (float)(int8_t)blocks[2 + j] * d;
  }
}

/* The levels of IQ4_NL and IQ4_XS: closer together near 0. */
const int8_t plk_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

PLK_DEQUANTIZE(iq4_nl) {
  for (; n > 0; n--, blocks += 18, x += N) {
    const float d = plk_half_at(blocks);
    for (int j = 0; j < N; j++) x[j] = d * (float)plk_iq4_values[low(blocks + 2, j)];
  }
}

/* OCP Microscaling Formats 1.0: a scale that is a power of two, elements with 1 sign, 2 exponent and 1 mantissa bits; here twice
 * their values, as integers, and half the scale. */
PLK_DEQUANTIZE(mxfp4) {
  static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (; n > 0; n--, blocks += 17, x += N) {
    const float d = ldexpf(1.0f, blocks[0] - 128);
    for (int j = 0; j < N; j++) x[j] = d * (float)twice[low(blocks + 1, j)];
  }
}

/* ---- from numbers ------------------------------------------------------------------------------------------------------ */

/* The least and the largest, and the one that is farthest from 0, the first of several; false if one is not finite. */
typedef struct Range {
  float least, most, far;
} Range;

static bool range(const float *x, Range *r) {
  float far = 0;
  *r = (Range){x[0], x[0], x[0]};
  for (int j = 0; j < N; j++) {
    const float a = fabsf(x[j]);
    if (!isfinite(a)) return false;
    if (a > far) {
      far = a;
      r->far = x[j];
    }
    r->least = x[j] < r->least ? x[j] : r->least;
    r->most = x[j] > r->most ? x[j] : r->most;
  }
  return true;
}

static inline float inverse(float d) { return d == 0 ? 0 : 1 / d; }
/* A scale so small that its inverse is infinite is 0 as f16: any v will do. */
static inline int at_most(float v, int top) { return v >= 0 && v < (float)top ? (int)v : v > 0 ? top : 0; }

static void put_low(uint8_t *q, const int *v) {
  for (int j = 0; j < HALF; j++) q[j] = (uint8_t)((v[j] & 15) | (v[j + HALF] & 15) << 4);
}
static void put_high(uint8_t *q, const int *v) {
  for (int b = 0; b < 4; b++) {
    q[b] = 0;
    for (int j = 0; j < 8; j++) q[b] = (uint8_t)(q[b] | (v[8 * b + j] >> 4 & 1) << j);
  }
}

/* The value farthest from 0 becomes -half exactly; the others are rounded to nearest. */
static bool symmetric(const float *x, float half, int top, float *d, int *v) {
  Range r;
  if (!range(x, &r)) return false;
  *d = r.far / -half;
  const float id = inverse(*d);
  for (int j = 0; j < N; j++) v[j] = at_most(x[j] * id + (half + 0.5f), top);
  return true;
}

static bool shifted(const float *x, int top, float *d, float *m, int *v) {
  Range r;
  if (!range(x, &r)) return false;
  *d = (r.most - r.least) / (float)top;
  if (!isfinite(*d)) return false;
  *m = r.least;
  const float id = inverse(*d);
  for (int j = 0; j < N; j++) v[j] = at_most((x[j] - r.least) * id + 0.5f, top);
  return true;
}

PLK_QUANTIZE(q4_0) {
  float d;
  int v[N];
  for (; n > 0; n--, blocks += 18, x += N) {
    if (!symmetric(x, 8, 15, &d, v) || !plk_half_put(blocks, d)) return false;
    put_low(blocks + 2, v);
  }
  return true;
}

PLK_QUANTIZE(q5_0) {
  float d;
  int v[N];
  for (; n > 0; n--, blocks += 22, x += N) {
    if (!symmetric(x, 16, 31, &d, v) || !plk_half_put(blocks, d)) return false;
    put_high(blocks + 2, v);
    put_low(blocks + 6, v);
  }
  return true;
}

PLK_QUANTIZE(q4_1) {
  float d, m;
  int v[N];
  for (; n > 0; n--, blocks += 20, x += N) {
    if (!shifted(x, 15, &d, &m, v) || !plk_half_put(blocks, d) || !plk_half_put(blocks + 2, m)) return false;
    put_low(blocks + 4, v);
  }
  return true;
}

PLK_QUANTIZE(q5_1) {
  float d, m;
  int v[N];
  for (; n > 0; n--, blocks += 24, x += N) {
    if (!shifted(x, 31, &d, &m, v) || !plk_half_put(blocks, d) || !plk_half_put(blocks + 2, m)) return false;
    put_high(blocks + 4, v);
    put_low(blocks + 8, v);
  }
  return true;
}

/* Halves are rounded away from 0. */
PLK_QUANTIZE(q8_0) {
  Range r;
  for (; n > 0; n--, blocks += 34, x += N) {
    if (!range(x, &r)) return false;
    const float d = fabsf(r.far) / 127, id = inverse(d);
    if (!plk_half_put(blocks, d)) return false;
    for (int j = 0; j < N; j++) {
      const float v = roundf(x[j] * id);
      blocks[2 + j] = (uint8_t)(int8_t)(v > 127 ? 127 : v >= -127 ? v : -127);
    }
  }
  return true;
}
