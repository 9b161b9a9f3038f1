/* SPDX-License-Identifier: MIT
 * Inner loops of attention, compiled once per ISA level: a small matrix product that keeps four rows by up to
 * 64 columns in registers, and the exponentials. Sums run in sixteen lanes and a fixed tree whatever the
 * level. */
#include "kernels/cpu/attention.h"

#include <math.h>

#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/vmath.h"

enum { N = PLK_AT_LANES };
typedef float V __attribute__((vector_size(N * sizeof(float)), aligned(4), may_alias));

/* c + a x; contraction is off, so the fused form is asked for where the level has it in this width. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define MULTIPLY_ADD(a, x, c) ((V)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)(x), (__m512)(c)))
#else
#define MULTIPLY_ADD(a, x, c) ((c) + (a) * (x))
#endif

/* Four rows by `m` vectors. */
static inline __attribute__((always_inline)) void panel(const float *a, int64_t ar, int64_t ak, const float *b,
                                                        int64_t ldb, int64_t K, float *c, int64_t ldc, const int m) {
  V acc[PLK_AT_ROWS][4];
  for (int r = 0; r < PLK_AT_ROWS; r++)
    for (int j = 0; j < m; j++) acc[r][j] = *(const V *)(c + r * ldc + j * N);
  for (int64_t k = 0; k < K; k++)
    for (int j = 0; j < m; j++) {
      const V x = *(const V *)(b + k * ldb + j * N);
      for (int r = 0; r < PLK_AT_ROWS; r++) acc[r][j] = MULTIPLY_ADD(a[r * ar + k * ak], x, acc[r][j]);
    }
  for (int r = 0; r < PLK_AT_ROWS; r++)
    for (int j = 0; j < m; j++) *(V *)(c + r * ldc + j * N) = acc[r][j];
}

static void mm4(const float *a, int64_t ar, int64_t ak, const float *b, int64_t ldb, int64_t K, float *c,
                int64_t ldc, int64_t w) {
  int64_t j = 0;
  for (; j + 4 * N <= w; j += 4 * N) panel(a, ar, ak, b + j, ldb, K, c + j, ldc, 4);
  for (; j + 2 * N <= w; j += 2 * N) panel(a, ar, ak, b + j, ldb, K, c + j, ldc, 2);
  for (; j < w; j += N) panel(a, ar, ak, b + j, ldb, K, c + j, ldc, 1);
}

static float lanes_sum(const V *from) { /* by address: the way vectors are passed differs between levels */
  V v = *from;
  for (int w = N / 2; w; w /= 2)
    for (int j = 0; j < w; j++) v[j] += v[j + w];
  return v[0];
}
/* w is a multiple of the lanes, and what lies beyond the end is zero. */
static float row_sum(const float *s, int64_t w) {
  V acc = {0};
  for (int64_t j = 0; j < w; j += N) acc += *(const V *)(s + j);
  return lanes_sum(&acc);
}

static void exps(float *s, int64_t n, int64_t w, float scale, float shift) {
  PLK_IVDEP for (int64_t j = 0; j < n; j++) s[j] = vm_exp_f32(scale * s[j] - shift);
  for (int64_t j = n; j < w; j++) s[j] = 0;
}

static float softmax(float *s, int64_t n, int64_t w, float scale, float *sum) {
  float top = -(float)INFINITY;
  for (int64_t j = 0; j < n; j++) {
    float v = scale * s[j];
    top = v > top ? v : top;
  }
  exps(s, n, w, scale, top);
  *sum = row_sum(s, w);
  return top;
}

static void again(float *s, int64_t n, int64_t w, float scale, float top, float sum) {
  const float share = 1 / sum;
  exps(s, n, w, scale, top);
  for (int64_t j = 0; j < n; j++) s[j] *= share;
}

static void slope(const float *p, float *dp, int64_t w, float scale) {
  V acc = {0};
  for (int64_t j = 0; j < w; j += N) acc += *(const V *)(p + j) * *(const V *)(dp + j);
  const float d = lanes_sum(&acc);
  for (int64_t j = 0; j < w; j += N) {
    V *x = (V *)(dp + j);
    *x = *(const V *)(p + j) * (*x - d) * scale;
  }
}

extern const PlkAttentionLoops PLK_ISA_NAME(plk_attention);
const PlkAttentionLoops PLK_ISA_NAME(plk_attention) = {mm4, softmax, again, slope};
