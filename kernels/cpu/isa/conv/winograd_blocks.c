/* SPDX-License-Identifier: MIT
 * Winograd's transforms and products on blocks of channels (kernels/cpu/conv/winograd_blocks.h), compiled once per ISA level: a
 * vector's lanes are channels, so nothing is shuffled. */
#include "kernels/cpu/conv/winograd_blocks.h"

#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/sizes.h"

enum { WIDE = PLK_WINOGRAD_WIDE };

/* Of 8 channels, and as many as a register takes. */
#if defined(__AVX512F__)
typedef PlkH_f32 F8;
typedef int32_t I8 __attribute__((vector_size(32), aligned(4), may_alias));
#else
typedef PlkP_f32 F8;
typedef PlkPM_f32 I8;
#endif

/* ---- weights ---------------------------------------------------------------------------------------------------- */

/* G along one axis: three values to four. */
#define G4(o0, o1, o2, o3, a, b, c)                               \
  do {                                                            \
    const PlkP_f32 half_ = ((a) + (c)) * 0.5f, b_ = (b)*0.5f;     \
    (o0) = (a), (o1) = half_ + b_, (o2) = half_ - b_, (o3) = (c); \
  } while (0)

static void weights(const float *w, int64_t channels, int64_t outputs, float *u) {
  const int64_t step = channels * WIDE;
  for (int64_t from = 0; from < WIDE; from += PLK_W_f32)
    for (int64_t c = 0; c < channels; c++) {
      PlkP_f32 g[9], t[4][3];
      float lane[9][PLK_W_f32] = {{0}};
      for (int64_t j = 0; j < PLK_W_f32 && from + j < outputs; j++)
        for (int i = 0; i < 9; i++) lane[i][j] = w[((from + j) * channels + c) * 9 + i];
      for (int i = 0; i < 9; i++) g[i] = *(const PlkP_f32 *)lane[i];
      for (int x = 0; x < 3; x++) G4(t[0][x], t[1][x], t[2][x], t[3][x], g[x], g[3 + x], g[6 + x]);
      for (int i = 0; i < 4; i++) {
        PlkP_f32 r[4];
        G4(r[0], r[1], r[2], r[3], t[i][0], t[i][1], t[i][2]);
        for (int j = 0; j < 4; j++) *(PlkP_f32 *)(u + (4 * i + j) * step + c * WIDE + from) = r[j];
      }
    }
}

/* ---- transforms ---------------------------------------------------------------------------------------------------- */

/* Of blocks of N channels, in one or several vectors V. */
#define TRANSFORMS(N, V, I)                                                                                                          \
  /* Bᵀ d B of one tile, whose first line and column are y and x: along lines first, as the plain form does. */                    \
  PLK_LANE void tile_in_##N(const float *p, const PlkBlockPlane *q, int64_t y, int64_t x, float *v, int64_t step) {                  \
    V t[4][4];                                                                                                                       \
    const bool inside = y >= 0 && x >= 0 && y + 4 <= q->h && x + 4 <= q->w;                                                          \
    for (int i = 0; i < 4; i++) {                                                                                                    \
      V d[4];                                                                                                                        \
      const float *line = p + ((y + i) * q->w + x) * N;                                                                              \
      for (int j = 0; j < 4; j++) {                                                                                                  \
        const bool there = inside || (y + i >= 0 && y + i < q->h && x + j >= 0 && x + j < q->w);                                     \
        d[j] = there ? *(const V *)(line + j * N) : (V){0};                                                                          \
      }                                                                                                                              \
      t[i][0] = d[0] - d[2], t[i][1] = d[1] + d[2], t[i][2] = d[2] - d[1], t[i][3] = d[1] - d[3];                                    \
    }                                                                                                                                \
    for (int j = 0; j < 4; j++) {                                                                                                    \
      *(V *)(v + j * step) = t[0][j] - t[2][j];                                                                                      \
      *(V *)(v + (4 + j) * step) = t[1][j] + t[2][j];                                                                                \
      *(V *)(v + (8 + j) * step) = t[2][j] - t[1][j];                                                                                \
      *(V *)(v + (12 + j) * step) = t[1][j] - t[3][j];                                                                               \
    }                                                                                                                                \
  }                                                                                                                                  \
  static void input_##N(const float *p, const PlkBlockPlane *q, int64_t first, int64_t rows, float *v, int64_t lead, int64_t step) { \
    for (int64_t ty = first; ty < first + rows; ty++)                                                                                \
      for (int64_t x = -1; x + 1 < q->w; x += 2, v += lead)                                                                          \
        for (int at = 0; at < N; at += (int)(sizeof(V) / 4)) tile_in_##N(p + at, q, 2 * ty - 1, x, v + at, step);                    \
  }                                                                                                                                  \
  PLK_LANE void put_##N(const PlkBlockPlane *q, int64_t y, int64_t x, int64_t lane, V value) {                                       \
    if (y >= q->h || x >= q->w) return;                                                                                              \
    const int64_t at = (y * q->w + x) * N + lane;                                                                                    \
    if (q->addend) value = value + *(const V *)(q->addend + at);                                                                     \
    if (q->relu) value = (V)((I)value & ~(I)(value < 0));                                                                            \
    *(V *)(q->out + at) = value;                                                                                                     \
  }                                                                                                                                  \
  /* Aᵀ m A + bias, along columns first, as the plain form does. */                                                                \
  static void output_##N(const float *m, int64_t step, const PlkBlockPlane *q, int64_t first, int64_t rows) {                        \
    for (int64_t ty = first; ty < first + rows; ty++)                                                                                \
      for (int64_t x = 0; x < q->w; x += 2, m += WIDE)                                                                               \
        for (int at = 0; at < N; at += (int)(sizeof(V) / 4)) {                                                                       \
          const V bias = q->bias ? *(const V *)(q->bias + at) : (V){0};                                                              \
          V up[4], low[4];                                                                                                           \
          for (int j = 0; j < 4; j++) {                                                                                              \
            const float *p = m + j * step + at;                                                                                      \
            const V b = *(const V *)(p + 4 * step), c = *(const V *)(p + 8 * step);                                                  \
            up[j] = *(const V *)p + (b + c);                                                                                         \
            low[j] = (b - c) - *(const V *)(p + 12 * step);                                                                          \
          }                                                                                                                          \
          put_##N(q, 2 * ty, x, at, up[0] + (up[1] + up[2]) + bias);                                                                 \
          put_##N(q, 2 * ty, x + 1, at, (up[1] - up[2]) - up[3] + bias);                                                             \
          put_##N(q, 2 * ty + 1, x, at, low[0] + (low[1] + low[2]) + bias);                                                          \
          put_##N(q, 2 * ty + 1, x + 1, at, (low[1] - low[2]) - low[3] + bias);                                                      \
        }                                                                                                                            \
  }

TRANSFORMS(16, PlkP_f32, PlkPM_f32)
TRANSFORMS(8, F8, I8)

/* ---- products --------------------------------------------------------------------------------------------------------- */

/* A register tile of ROWS × 2 vectors, whose sums run over the channels in order. */
#if defined(__AVX512F__)
typedef __m512 W;
enum { LANES = 16, ROWS = 12 };
#define SET1(x)      _mm512_set1_ps(x)
#define LOAD(p)      _mm512_loadu_ps(p)
#define STORE(p, v)  _mm512_storeu_ps(p, v)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ZERO         _mm512_setzero_ps()
#elif defined(__FMA__)
#include <immintrin.h>
typedef __m256 W;
enum { LANES = 8, ROWS = 6 };
#define SET1(x)      _mm256_set1_ps(x)
#define LOAD(p)      _mm256_loadu_ps(p)
#define STORE(p, v)  _mm256_storeu_ps(p, v)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ZERO         _mm256_setzero_ps()
#else
typedef float W __attribute__((vector_size(16), aligned(4), may_alias));
enum { LANES = 4, ROWS = 6 };
#define SET1(x)      ((W){(x), (x), (x), (x)})
#define LOAD(p)      (*(const W *)(p))
#define STORE(p, v)  (*(W *)(p) = (v))
#define FMA(a, b, c) ((a) * (b) + (c))
#define ZERO         ((W){0})
#endif

PLK_LANE void rows_of(const int rows, const float *v, const float *u, int64_t channels, float *m) {
  for (int at = 0; at < WIDE; at += 2 * LANES) {
    W acc[ROWS][2];
    const float *b = u + at, *a0 = v, *a1 = v + 4 * channels, *a2 = v + 8 * channels;
    const int64_t one = channels, two = 2 * channels, three = 3 * channels;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = ZERO;
    for (int64_t c = 0; c < channels; c++, b += WIDE, a0++, a1++, a2++) {
      const W b0 = LOAD(b), b1 = LOAD(b + LANES);
#pragma GCC unroll 16
      for (int r = 0; r < rows; r++) {
        const float *a = r < 4 ? a0 : r < 8 ? a1 : a2;
        const W k = SET1(a[r % 4 == 0 ? 0 : r % 4 == 1 ? one : r % 4 == 2 ? two : three]);
        acc[r][0] = FMA(k, b0, acc[r][0]);
        acc[r][1] = FMA(k, b1, acc[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      STORE(m + r * WIDE + at, acc[r][0]);
      STORE(m + r * WIDE + at + LANES, acc[r][1]);
    }
  }
}

#if defined(__AVX512F__)
#define SIZES(X) X(12) X(11) X(10) X(9) X(8) X(7) X(6) X(5) X(4) X(3) X(2) X(1)
#else
#define SIZES(X) X(6) X(5) X(4) X(3) X(2) X(1)
#endif
#define CASE(N) \
  if (n == N) rows_of(N, a, u, channels, to);

/* As many rows as a register tile has, or some less, alike. */
static void product(const float *v, const float *u, int64_t channels, int64_t tiles, float *m) {
  const int64_t parts = plk_ceil_div(tiles, ROWS);
  for (int64_t k = 0, at = 0; k < parts; k++) {
    const int64_t n = tiles * (k + 1) / parts - at;
    const float *a = v + at * channels;
    float *to = m + at * WIDE;
    SIZES(CASE)
    at += n;
  }
}

extern const PlkWinogradBlockLoops PLK_ISA_NAME(plk_winograd_block_table);
const PlkWinogradBlockLoops PLK_ISA_NAME(plk_winograd_block_table) = {weights, {input_8, input_16}, {output_8, output_16}, product};
