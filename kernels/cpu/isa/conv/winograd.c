/* SPDX-License-Identifier: MIT
 * Transforms of Winograd convolution (kernels/cpu/conv/winograd.h), compiled once per ISA level. Planes are first split into
 * their even and odd columns, so that a vector's lanes are neighbouring tiles. */
#include <string.h>

#include "kernels/cpu/conv/winograd.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/sizes.h"

enum { LANES = PLK_W_f32, PAD = PLK_WINOGRAD_PAD };
typedef PlkP_f32 V;
_Static_assert((int)PAD >= (int)LANES, "room for a whole vector");

static inline V load(const float *p) { return *(const V *)p; }
static inline void store(float *p, V v) { *(V *)p = v; }
/* The k < LANES elements at p, then zeros. */
static inline V tail(const float *p, int64_t k) {
#if defined(__AVX512F__)
  return plk_tail_f32(p, k, 0);
#elif defined(__AVX2__)
  return plk_tail_half_f32(p, k, 0);
#else
  V v = {0};
  for (int i = 0; i < LANES; i++) v[i] = i < k ? p[i] : 0;
  return v;
#endif
}

/* Of two vectors: every second lane, the first one's last lane in front of the second, the first but for its first lane with the
 * second's; lanes in turn, in two parts. */
#if defined(__AVX512F__)
#define EVEN(a, b)   __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD(a, b)    __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define BEFORE(a, b) __builtin_shufflevector(a, b, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)
#define BEHIND(a, b) __builtin_shufflevector(a, b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
#define FIRST(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define SECOND(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined(__AVX__)
#define EVEN(a, b)   __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b)    __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define BEFORE(a, b) __builtin_shufflevector(a, b, 7, 8, 9, 10, 11, 12, 13, 14)
#define BEHIND(a, b) __builtin_shufflevector(a, b, 1, 2, 3, 4, 5, 6, 7, 8)
#define FIRST(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define SECOND(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define EVEN(a, b)   __builtin_shufflevector(a, b, 0, 2, 4, 6)
#define ODD(a, b)    __builtin_shufflevector(a, b, 1, 3, 5, 7)
#define BEFORE(a, b) __builtin_shufflevector(a, b, 3, 4, 5, 6)
#define BEHIND(a, b) __builtin_shufflevector(a, b, 1, 2, 3, 4)
#define FIRST(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define SECOND(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* ---- weights ---------------------------------------------------------------------------------------------------- */

/* G along one axis: three values to four. */
#define G4(o0, o1, o2, o3, a, b, c)                               \
  do {                                                            \
    const V half_ = ((a) + (c)) * 0.5f, b_ = (b)*0.5f;            \
    (o0) = (a), (o1) = half_ + b_, (o2) = half_ - b_, (o3) = (c); \
  } while (0)

static void weights_block(const float *w, int64_t k, bool flip, float *u, int64_t step) {
  V g[9], t[4][3];
  float lane[9][LANES] = {{0}}; /* filled before any is read: a vector read waits for its last store */
  for (int64_t j = 0; j < k; j++)
    for (int i = 0; i < 9; i++) lane[i][j] = w[j * 9 + i];
  for (int i = 0; i < 9; i++) g[i] = load(lane[flip ? 8 - i : i]);
  for (int x = 0; x < 3; x++) G4(t[0][x], t[1][x], t[2][x], t[3][x], g[x], g[3 + x], g[6 + x]);
  for (int i = 0; i < 4; i++) {
    V r[4];
    G4(r[0], r[1], r[2], r[3], t[i][0], t[i][1], t[i][2]);
    for (int j = 0; j < 4; j++) {
      if (k == LANES) store(u + (4 * i + j) * step, r[j]);
      else memcpy(u + (4 * i + j) * step, &r[j], (size_t)k * sizeof(float));
    }
  }
}

static void weights(const float *w, int64_t n, bool flip, float *u, int64_t step) {
  for (int64_t k = 0; k < n; k += LANES) weights_block(w + k * 9, n - k < LANES ? n - k : LANES, flip, u + k, step);
}

/* Gᵀ along one axis: four values to three. */
#define GT3(o0, o1, o2, a, b, c, d)                                  \
  do {                                                               \
    const V sum_ = ((b) + (c)) * 0.5f;                               \
    (o0) = (a) + sum_, (o1) = ((b) - (c)) * 0.5f, (o2) = sum_ + (d); \
  } while (0)

static void weights_back_block(const float *u, int64_t step, int64_t k, float *dw) {
  V s[3][4], d[9];
  for (int j = 0; j < 4; j++) {
    V c[4];
    for (int i = 0; i < 4; i++) {
      const float *at = u + (4 * i + j) * step;
      c[i] = k == LANES ? load(at) : tail(at, k);
    }
    GT3(s[0][j], s[1][j], s[2][j], c[0], c[1], c[2], c[3]);
  }
  for (int i = 0; i < 3; i++) GT3(d[3 * i], d[3 * i + 1], d[3 * i + 2], s[i][0], s[i][1], s[i][2], s[i][3]);
  float lane[9][LANES];
  for (int i = 0; i < 9; i++) store(lane[i], d[i]);
  for (int64_t j = 0; j < k; j++)
    for (int i = 0; i < 9; i++) dw[j * 9 + i] = lane[i][j];
}

static void weights_back(const float *u, int64_t step, int64_t n, float *dw) {
  for (int64_t k = 0; k < n; k += LANES) weights_back_block(u + k, step, n - k < LANES ? n - k : LANES, dw + k * 9);
}

/* ---- planes to tiles ---------------------------------------------------------------------------------------------- */

/* The lines' values from p on as pairs without gaps: lines of odd width get a zero at the end, in `copy`. */
static const float *even_lines(const float *p, int64_t w, int64_t lines, float *copy) {
  if (w % 2 == 0) return p;
  for (int64_t y = 0; y < lines; y++) {
    memcpy(copy + y * (w + 1), p + y * w, (size_t)w * sizeof(float));
    copy[y * (w + 1) + w] = 0;
  }
  return copy;
}

/* LANES pairs of the n at p, from the k-th on, as even and odd ones; zeros behind the last. */
static inline void pairs(const float *p, int64_t k, int64_t n, V *even, V *odd) {
  const int64_t left = 2 * (n - k);
  V a, b = {0};
  if (left >= 2 * LANES) {
    a = load(p + 2 * k), b = load(p + 2 * k + LANES);
  } else {
    a = left >= LANES ? load(p + 2 * k) : tail(p + 2 * k, left);
    if (left > LANES) b = tail(p + 2 * k + LANES, left - LANES);
  }
  *even = EVEN(a, b);
  *odd = ODD(a, b);
}

static inline V masked(V v, const int32_t *mask) { return (V)((PlkPM_f32)v & *(const PlkPM_f32 *)mask); }

/* Bᵀ along lines: columns -1, 0, 1, 2 of a tile are the odd one before, even, odd, the even one behind. */
static inline void input_lines(const float *p, int64_t n, const PlkTileMasks *mask, float *out, int64_t line) {
  V even = {0}, odd = {0}, behind, before;
  if (n > 0) pairs(p, 0, n, &even, &odd);
  before = (V){0};
  for (int64_t k = 0; k < n; k += LANES) {
    V next = {0}, next_odd = {0};
    if (k + LANES < n) pairs(p, k + LANES, n, &next, &next_odd);
    behind = BEHIND(even, next);
    store(out + k, masked(BEFORE(before, odd), mask->inner + k) - odd);
    store(out + line + k, even + odd);
    store(out + 2 * line + k, odd - even);
    store(out + 3 * line + k, even - masked(behind, mask->last + k));
    before = odd, even = next, odd = next_odd;
  }
}

/* A line of zeros outside of the plane; what it overwrites behind is written later. */
static inline void zero_line(const PlkTileScratch *use, int64_t at, int64_t across) {
  for (int64_t j = 0; j < 4; j++)
    for (int64_t t = 0; t < across; t += LANES) store(use->lines + j * use->line + at + t, (V){0});
}

/* One row of tiles from four lines of each of the four columns' arrays, as combined by EXPR; `n` lanes at a time. */
#define ALONG(TYPE, N, A, B, C, D)                                                                 \
  for (int j = 0; j < 4; j++) {                                                                    \
    const float *q = use->lines + j * use->line + at;                                              \
    float *o = out + j * step;                                                                     \
    for (int64_t t = 0; t < across; t += N) {                                                      \
      const TYPE a = *(const TYPE *)(q + t), b = *(const TYPE *)(q + t + across);                  \
      const TYPE c = *(const TYPE *)(q + t + 2 * across), d = *(const TYPE *)(q + t + 3 * across); \
      *(TYPE *)(o + t) = A, *(TYPE *)(o + 4 * step + t) = B;                                       \
      *(TYPE *)(o + 8 * step + t) = C, *(TYPE *)(o + 12 * step + t) = D;                           \
    }                                                                                              \
  }
typedef float V4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));

static void input(const float *plane, const PlkTileRows *r, float *v, int64_t step, PlkTileScratch *use) {
  const int64_t across = (r->w + 1) / 2, lines = 2 * r->rows + 2, top = 2 * r->first - 1;
  const int64_t y0 = top < 0 ? 0 : top, y1 = plk_min64(r->h, top + lines), n = (y1 - y0) * across;
  const int64_t skip = (y0 - top) * across;
  if (skip) zero_line(use, 0, across);
  input_lines(even_lines(plane + y0 * r->w, r->w, y1 - y0, use->even), n, &use->mask, use->lines + skip, use->line);
  for (int64_t k = skip + n; k < lines * across; k += across) zero_line(use, k, across);
  for (int64_t i = 0; i < r->rows; i++) {
    const int64_t at = 2 * i * across;
    float *out = v + i * across;
    if (LANES > 8 && across > 8) {
      ALONG(V, LANES, a - c, b + c, c - b, b - d)
    } else if (LANES > 4 && across > 4) {
      ALONG(V8, 8, a - c, b + c, c - b, b - d)
    } else {
      ALONG(V4, 4, a - c, b + c, c - b, b - d)
    }
  }
}

static void gradient(const float *plane, const PlkTileRows *r, float *z, int64_t step, PlkTileScratch *use) {
  const int64_t across = (r->w + 1) / 2, y0 = 2 * r->first, y1 = plk_min64(r->h, y0 + 2 * r->rows), n = (y1 - y0) * across;
  const float *p = even_lines(plane + y0 * r->w, r->w, y1 - y0, use->even);
  for (int64_t k = 0; k < n; k += LANES) { /* A along lines */
    V e, o;
    pairs(p, k, n, &e, &o);
    float *line = use->lines + k;
    store(line, e);
    store(line + use->line, e + o);
    store(line + 2 * use->line, e - o);
    store(line + 3 * use->line, -o);
  }
  for (int64_t k = n; k < 2 * r->rows * across; k += across) zero_line(use, k, across);
  for (int64_t i = 0; i < r->rows; i++) {
    const int64_t at = 2 * i * across;
    float *out = z + i * across;
#define UNUSED ((void)c, (void)d, a)
    if (LANES > 8 && across > 8) {
      ALONG(V, LANES, UNUSED, a + b, a - b, -b)
    } else if (LANES > 4 && across > 4) {
      ALONG(V8, 8, UNUSED, a + b, a - b, -b)
    } else {
      ALONG(V4, 4, UNUSED, a + b, a - b, -b)
    }
  }
}

/* ---- tiles to planes ---------------------------------------------------------------------------------------------- */

static void store_pairs(float *p, V even, V odd) {
  store(p, FIRST(even, odd));
  store(p + LANES, SECOND(even, odd));
}

/* Rows of at most 32 values by a few vectors, as most calls of memcpy would be for less. */
static inline void copy_row(float *to, const float *from, int64_t n) {
  if (n == 32 || n == 16)
    for (int64_t k = 0; k < n; k += LANES) store(to + k, load(from + k));
  else if (n == 8) *(V8 *)to = *(const V8 *)from;
  else if (n == 4) *(V4 *)to = *(const V4 *)from;
  else memcpy(to, from, (size_t)n * sizeof(float));
}

static void output(const float *m, int64_t step, const PlkTileRows *r, float bias, float *plane, PlkTileScratch *use) {
  const int64_t across = (r->w + 1) / 2, n = r->rows * across;
  float *upper = use->lines, *lower = use->lines + 2 * use->line; /* twice a line each */
  for (int64_t k = 0; k < n; k += LANES) {
    V up[4], low[4];
    for (int j = 0; j < 4; j++) {
      const float *at = m + j * step + k;
      const V b = load(at + 4 * step), c = load(at + 8 * step);
      up[j] = load(at) + (b + c);
      low[j] = (b - c) - load(at + 12 * step);
    }
    store_pairs(upper + 2 * k, up[0] + (up[1] + up[2]) + bias, (up[1] - up[2]) - up[3] + bias);
    store_pairs(lower + 2 * k, low[0] + (low[1] + low[2]) + bias, (low[1] - low[2]) - low[3] + bias);
  }
  for (int64_t i = 0; i < r->rows; i++) {
    const int64_t y = 2 * (r->first + i), at = 2 * i * across;
    copy_row(plane + y * r->w, upper + at, r->w);
    if (y + 1 < r->h) copy_row(plane + (y + 1) * r->w, lower + at, r->w);
  }
}

extern const PlkWinogradLoops PLK_ISA_NAME(plk_winograd_table);
const PlkWinogradLoops PLK_ISA_NAME(plk_winograd_table) = {weights, weights_back, input, gradient, output};
