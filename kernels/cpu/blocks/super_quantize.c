/* SPDX-License-Identifier: MIT
 * Blocks of 256 from numbers: Q4_K, Q5_K, Q6_K; their layouts are in super.c. For every part the scale (and offset) is sought that
 * loses least in squares: some steps around the one that just holds the largest, each improved by least squares with the
 * levels that it gives. These are then rounded to the few bits that they are kept in, and levels are chosen once more for what is
 * kept. */
#include <string.h>

#include "kernels/cpu/blocks/blocks.h"

enum { N = 256, TRIES = 9 };

static inline int nearest(float v, int least, int most) {
  const float r = rintf(v);
  return !(r > (float)least) ? least : r >= (float)most ? most : (int)r;
}
static inline float inverse(float d) { return d == 0 ? 0 : 1 / d; }

static bool all_finite(const float *x) {
  for (int j = 0; j < N; j++)
    if (!isfinite(x[j])) return false;
  return true;
}

/* ---- scales with a sign: x = s q, -32 <= q < 32 ----------------------------------------------------------------------------- */

/* The scale of n numbers for levels from -half to half - 1. */
static float scale_of(const float *x, int n, int half) {
  float far = 0, best = 0, gained = 0;
  for (int j = 0; j < n; j++) far = fabsf(x[j]) > fabsf(far) ? x[j] : far;
  if (far == 0) return 0;
  for (int t = 0; t < TRIES; t++) {
    const float by = -((float)half + 0.1f * (float)(t - TRIES / 2)) / far;
    float xq = 0, qq = 0;
    for (int j = 0; j < n; j++) {
      const float q = (float)nearest(x[j] * by, -half, half - 1);
      xq += x[j] * q;
      qq += q * q;
    }
    /* of all scales xq / qq loses least with these levels, namely xq^2 / qq less than 0 would */
    if (qq > 0 && xq * xq > gained * qq) {
      gained = xq * xq / qq;
      best = xq / qq;
    }
  }
  return best;
}

PLK_QUANTIZE(q6_k) {
  for (; n > 0; n--, blocks += 210, x += N) {
    float scale[16], most = 0;
    int8_t q[N];
    if (!all_finite(x)) return false;
    for (int p = 0; p < 16; p++) {
      scale[p] = scale_of(x + 16 * p, 16, 32);
      most = fabsf(scale[p]) > fabsf(most) ? scale[p] : most;
    }
    if (!plk_half_put(blocks + 208, most / -128)) return false;
    const float d = plk_half_at(blocks + 208);
    for (int p = 0; p < 16; p++) {
      const int s = nearest(scale[p] * inverse(d), -128, 127);
      const float by = inverse(d * (float)s);
      blocks[192 + p] = (uint8_t)(int8_t)s;
      for (int j = 0; j < 16; j++) q[16 * p + j] = (int8_t)nearest(x[16 * p + j] * by, -32, 31);
    }
    memset(blocks, 0, 192);
    for (int i = 0; i < N; i++) {
      const int v = q[i] + 32, g = i / 128, r = i % 128 / 32, j = i % 32;
      uint8_t *low = blocks + g * 64 + r % 2 * 32 + j, *high = blocks + 128 + g * 32 + j;
      *low = (uint8_t)(*low | (v & 15) << (r / 2 * 4));
      *high = (uint8_t)(*high | v >> 4 << (2 * r));
    }
  }
  return true;
}

/* ---- scales and offsets: x = s q - m, 0 <= q <= top, s and m not negative --------------------------------------------------- */

typedef struct Line {
  float s, m;
} Line;

/* What is lost of n numbers. */
static float lost(const float *x, int n, int top, Line l) {
  const float by = inverse(l.s);
  float sum = 0;
  for (int j = 0; j < n; j++) {
    const float e = l.s * (float)nearest((x[j] + l.m) * by, 0, top) - l.m - x[j];
    sum += e * e;
  }
  return sum;
}

static Line line_of(const float *x, int n, int top) {
  float least = 0, most = x[0], sum = 0;
  for (int j = 0; j < n; j++) {
    least = x[j] < least ? x[j] : least;
    most = x[j] > most ? x[j] : most;
    sum += x[j];
  }
  if (most < 0) most = 0;
  Line best = {(most - least) / (float)top, -least};
  if (!(best.s > 0)) return (Line){0, 0};
  float fewest = lost(x, n, top, best);
  for (int t = 0; t < TRIES; t++) {
    const float by = ((float)top + 0.25f * (float)(t - TRIES + 2)) / (most - least);
    float q1 = 0, q2 = 0, xq = 0;
    for (int j = 0; j < n; j++) {
      const float q = (float)nearest((x[j] - least) * by, 0, top);
      q1 += q;
      q2 += q * q;
      xq += x[j] * q;
    }
    const float det = (float)n * q2 - q1 * q1;
    if (!(det > 0)) continue;
    Line l = {((float)n * xq - sum * q1) / det, 0};
    l.m = (l.s * q1 - sum) / (float)n;
    if (l.m < 0) l = (Line){xq / q2, 0};
    if (!(l.s > 0) || !isfinite(l.s) || !isfinite(l.m)) continue;
    const float e = lost(x, n, top, l);
    if (e < fewest) {
      fewest = e;
      best = l;
    }
  }
  return best;
}

/* Eight parts of 32 with scales and offsets of 6 bits; d, dmin and the twelve bytes of these at the front of the block. */
static bool eight(const float *x, int top, uint8_t *block, uint8_t *q) {
  Line l[8];
  float s = 0, m = 0;
  if (!all_finite(x)) return false;
  for (int p = 0; p < 8; p++) {
    l[p] = line_of(x + 32 * p, 32, top);
    s = l[p].s > s ? l[p].s : s;
    m = l[p].m > m ? l[p].m : m;
  }
  if (!plk_half_put(block, s / 63) || !plk_half_put(block + 2, m / 63)) return false;
  const float d = plk_half_at(block), dmin = plk_half_at(block + 2);
  uint8_t *packed = block + 4;
  memset(packed, 0, 12);
  for (int p = 0; p < 8; p++) {
    const int si = nearest(l[p].s * inverse(d), 0, 63), mi = nearest(l[p].m * inverse(dmin), 0, 63);
    if (p < 4) {
      packed[p] = (uint8_t)(packed[p] | si);
      packed[p + 4] = (uint8_t)(packed[p + 4] | mi);
    } else {
      packed[p + 4] = (uint8_t)((si & 15) | (mi & 15) << 4);
      packed[p - 4] = (uint8_t)(packed[p - 4] | si >> 4 << 6);
      packed[p] = (uint8_t)(packed[p] | mi >> 4 << 6);
    }
    const float by = inverse(d * (float)si), offset = dmin * (float)mi;
    for (int j = 0; j < 32; j++) q[32 * p + j] = (uint8_t)nearest((x[32 * p + j] + offset) * by, 0, top);
  }
  return true;
}

static void put_low(uint8_t *to, const uint8_t *q) {
  for (int g = 0; g < 4; g++)
    for (int j = 0; j < 32; j++) to[32 * g + j] = (uint8_t)((q[64 * g + j] & 15) | (q[64 * g + 32 + j] & 15) << 4);
}

PLK_QUANTIZE(q4_k) {
  uint8_t q[N];
  for (; n > 0; n--, blocks += 144, x += N) {
    if (!eight(x, 15, blocks, q)) return false;
    put_low(blocks + 16, q);
  }
  return true;
}

PLK_QUANTIZE(q5_k) {
  uint8_t q[N];
  for (; n > 0; n--, blocks += 176, x += N) {
    if (!eight(x, 31, blocks, q)) return false;
    memset(blocks + 16, 0, 32);
    for (int i = 0; i < N; i++) blocks[16 + i % 32] = (uint8_t)(blocks[16 + i % 32] | (q[i] >> 4 & 1) << (i / 32));
    put_low(blocks + 48, q);
  }
  return true;
}
