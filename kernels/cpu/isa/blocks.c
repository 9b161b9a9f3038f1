/* SPDX-License-Identifier: MIT
 * Products with rows of blocks, see kernels/cpu/blocks/loops.h. */
#include <math.h>

#include "kernels/base.h"
#include "kernels/blocks.h"
#include "kernels/cpu/isa/blocks_span.h"
#include "kernels/cpu/isa/level.h"

/* ---- one span times one span of x ---------------------------------------------------------------------------------------- */

INLINE int value(const Span *w, int i, int zero) { return zero == SIGNED ? (int8_t)w->q[i] : w->q[i] - zero; }

#if defined(__AVX512BW__)
typedef struct Sum {
  __m512 v, m;
} Sum;
INLINE Sum nothing(void) { return (Sum){_mm512_setzero_ps(), _mm512_setzero_ps()}; }

INLINE Sum plus_offset(Sum a, const Span *w, const PlkSpanX *x, int zero) {
  const __m512 least = zero == MIN ? _mm512_load_ps(w->min) : _mm512_mul_ps(_mm512_load_ps(w->scale), _mm512_set1_ps((float)zero));
  a.m = _mm512_fmadd_ps(least, _mm512_loadu_ps(x->sum), a.m);
  return a;
}

/* 64 elements a vector: each lane of 32 bits has the products of four. */
INLINE Sum plus(Sum a, const Span *w, const PlkSpanX *x, int zero) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512 ws = _mm512_load_ps(w->scale), scale = _mm512_mul_ps(ws, _mm512_loadu_ps(x->scale));
  for (int k = 0; k < 4; k++) {
    const __m512i q = _mm512_load_si512(w->q + 64 * k);
    const __m512i e = zero == SIGNED ? _mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8) : _mm512_and_si512(q, _mm512_set1_epi16(255));
    const __m512i o = zero == SIGNED ? _mm512_srai_epi16(q, 8) : _mm512_srli_epi16(q, 8);
    const __m512i s = _mm512_add_epi32(_mm512_madd_epi16(e, _mm512_loadu_si512(x->q + 32 * k)),
                                       _mm512_madd_epi16(o, _mm512_loadu_si512(x->q + PLK_SPAN / 2 + 32 * k)));
    const __m512 by = _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(4 * k)), scale);
    a.v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), by, a.v);
  }
  if (zero != SIGNED) a = plus_offset(a, w, x, zero);
  return a;
}
INLINE float whole(Sum a) { return _mm512_reduce_add_ps(_mm512_sub_ps(a.v, a.m)); }
#elif defined(__AVX2__)
typedef struct Sum {
  __m256 v, m;
} Sum;
INLINE Sum nothing(void) { return (Sum){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

INLINE Sum plus(Sum a, const Span *w, const PlkSpanX *x, int zero) {
  const __m256i lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  __m256 scale[2];
  for (int k = 0; k < 2; k++) scale[k] = _mm256_mul_ps(_mm256_load_ps(w->scale + 8 * k), _mm256_loadu_ps(x->scale + 8 * k));
  for (int k = 0; k < 8; k++) {
    const __m256i q = _mm256_load_si256((const void *)(w->q + 32 * k));
    const __m256i e = zero == SIGNED ? _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8) : _mm256_and_si256(q, _mm256_set1_epi16(255));
    const __m256i o = zero == SIGNED ? _mm256_srai_epi16(q, 8) : _mm256_srli_epi16(q, 8);
    const __m256i s = _mm256_add_epi32(_mm256_madd_epi16(e, _mm256_loadu_si256((const void *)(x->q + 16 * k))),
                                       _mm256_madd_epi16(o, _mm256_loadu_si256((const void *)(x->q + PLK_SPAN / 2 + 16 * k))));
    const __m256 by = _mm256_permutevar8x32_ps(scale[k / 4], _mm256_add_epi32(lanes, _mm256_set1_epi32(k % 4 * 2)));
    a.v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), by, a.v);
  }
  for (int k = 0; zero != SIGNED && k < 2; k++) {
    const __m256 least =
        zero == MIN ? _mm256_load_ps(w->min + 8 * k) : _mm256_mul_ps(_mm256_load_ps(w->scale + 8 * k), _mm256_set1_ps((float)zero));
    a.m = _mm256_fmadd_ps(least, _mm256_loadu_ps(x->sum + 8 * k), a.m);
  }
  return a;
}
INLINE float whole(Sum a) {
  const __m256 d = _mm256_sub_ps(a.v, a.m);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
#else
typedef struct Sum {
  float v[PLK_SPAN_PARTS];
} Sum;
INLINE Sum nothing(void) { return (Sum){{0}}; }

INLINE Sum plus(Sum a, const Span *w, const PlkSpanX *x, int zero) {
  for (int p = 0; p < PLK_SPAN_PARTS; p++) {
    int32_t sum = 0;
    for (int j = 0; j < 8; j++)
      sum += value(w, 16 * p + 2 * j, zero) * x->q[8 * p + j] + value(w, 16 * p + 2 * j + 1, zero) * x->q[PLK_SPAN / 2 + 8 * p + j];
    a.v[p] += (w->scale[p] * x->scale[p]) * (float)sum;
    if (zero == MIN) a.v[p] -= w->min[p] * x->sum[p];
  }
  return a;
}
INLINE float whole(Sum a) {
  for (int n = PLK_SPAN_PARTS / 2; n > 0; n /= 2)
    for (int p = 0; p < n; p++) a.v[p] += a.v[p + n];
  return a.v[0];
}
#endif

/* ---- rows -------------------------------------------------------------------------------------------------------------------- */

typedef void Unpack(const uint8_t *b, int n, Span *s);

/* elements, bytes, zero and unpack are constants where this is used. */
INLINE void dots(Unpack *unpack, int elements, int bytes, int zero, const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx,
                 int rows, float *y, int64_t ldy) {
  const int many = PLK_SPAN / elements;
  Sum sum[PLK_BLOCK_FEW];
  Span s;
  for (int r = 0; r < rows; r++) sum[r] = nothing();
  for (; blocks >= many; blocks -= many, w += many * bytes, x++) {
    unpack(w, many, &s);
    for (int r = 0; r < rows; r++) sum[r] = plus(sum[r], &s, x + r * ldx, zero);
  }
  if (blocks > 0) {
    memset(&s, 0, sizeof s);
    unpack(w, (int)blocks, &s);
    for (int r = 0; r < rows; r++) sum[r] = plus(sum[r], &s, x + r * ldx, zero);
  }
  for (int r = 0; r < rows; r++) y[r * ldy] = whole(sum[r]);
}

INLINE void numbers(Unpack *unpack, int elements, int bytes, int zero, const uint8_t *w, int64_t blocks, float *x) {
  const int many = PLK_SPAN / elements;
  Span s;
  while (blocks > 0) {
    const int n = blocks < many ? (int)blocks : many;
    if (n == many) unpack(w, many, &s);
    else unpack(w, n, &s);
    for (int p = 0; p < n * elements / 16; p++, x += 16)
#pragma GCC unroll 1 /* gcc unrolls it before it would make vectors of it, and then makes none */
      for (int j = 0; j < 16; j++) {
        const float v = s.scale[p] * (float)value(&s, 16 * p + j, zero);
        x[j] = zero == MIN ? v - s.min[p] : v;
      }
    blocks -= n;
    w += n * bytes;
  }
}

/* One row of x is by far the most frequent, and keeps its sums in registers. */
#define NUMBERS(name, elements, bytes, zero) \
  static void numbers_##name(const uint8_t *w, int64_t blocks, float *x) { numbers(span_##name, elements, bytes, zero, w, blocks, x); }
#define FORMAT(name, elements, bytes, zero)                                                                                    \
  NUMBERS(name, elements, bytes, zero)                                                                                         \
  static void dots_##name(const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y, int64_t ldy) { \
    if (rows == 1) dots(span_##name, elements, bytes, zero, w, blocks, x, ldx, 1, y, ldy);                                     \
    else dots(span_##name, elements, bytes, zero, w, blocks, x, ldx, rows, y, ldy);                                            \
  }
#if defined(__AVX512BW__) /* those with dots of their own */
#define OTHER NUMBERS
#else
#define OTHER FORMAT
#endif
OTHER(q4_0, 32, 18, 8)
OTHER(q4_1, 32, 20, MIN)
FORMAT(q5_0, 32, 22, 16)
FORMAT(q5_1, 32, 24, MIN)
FORMAT(q8_0, 32, 34, SIGNED)
FORMAT(q2_k, 256, 84, MIN)
FORMAT(q3_k, 256, 110, 4)
OTHER(q4_k, 256, 144, MIN)
FORMAT(q5_k, 256, 176, MIN)
FORMAT(q6_k, 256, 210, 32)
FORMAT(iq4_nl, 32, 18, SIGNED)
FORMAT(iq4_xs, 256, 136, SIGNED)
FORMAT(tq1_0, 256, 54, 1)
FORMAT(tq2_0, 256, 66, 1)
FORMAT(mxfp4, 32, 17, SIGNED)

/* ---- x ------------------------------------------------------------------------------------------------------------------------- */

#if defined(__AVX512BW__)
/* ---- four bits -------------------------------------------------------------------------------------------------------- */

/* Products of 128 elements in 64 bytes, which need not become bytes first: pairs of bytes hold four of them. */
INLINE __m512i of_nibbles(__m512i v, const int16_t *x) {
  const __m512i low = _mm512_set1_epi16(15);
  __asm__("" : "+v"(v)); /* else it is loaded for every shift, across two lines */
  const __m512i a = _mm512_madd_epi16(_mm512_and_si512(v, low), _mm512_loadu_si512(x));
  const __m512i b = _mm512_madd_epi16(_mm512_and_si512(_mm512_srli_epi16(v, 4), low), _mm512_loadu_si512(x + 32));
  const __m512i c = _mm512_madd_epi16(_mm512_and_si512(_mm512_srli_epi16(v, 8), low), _mm512_loadu_si512(x + 64));
  const __m512i d = _mm512_madd_epi16(_mm512_srli_epi16(v, 12), _mm512_loadu_si512(x + 96));
  return _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
}
INLINE __m512i four_blocks(const uint8_t *b, int bytes) {
  __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)b));
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + bytes)), 1);
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + 2 * bytes)), 2);
  return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + 3 * bytes)), 3);
}

/* Eight blocks of 32 whose elements are `at` bytes from the beginning. */
INLINE Sum plus_small(Sum a, const uint8_t *b, int bytes, int at, const Span *w, const PlkSpanX *x, int zero) {
  const __m512 ws = _mm512_load_ps(w->scale), scale = _mm512_mul_ps(ws, _mm512_loadu_ps(x->scale));
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
  for (int g = 0; g < 2; g++) {
    const __m512 by = _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(8 * g)), scale);
    a.v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_nibbles(four_blocks(b + at + 4 * g * bytes, bytes), x->q + 128 * g)), by, a.v);
  }
  return plus_offset(a, w, x, zero);
}

INLINE void fast(int bytes, int at, int zero, const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y,
                 int64_t ldy) {
  Sum sum[PLK_BLOCK_FEW];
  Span s;
  uint8_t rest[8 * 20]; /* blocks behind the last of a row are zeros */
  for (int r = 0; r < rows; r++) sum[r] = nothing();
  for (; blocks > 0; blocks -= 8, w += 8 * bytes, x++) {
    const uint8_t *b = w;
    if (blocks < 8) {
      memset(rest, 0, sizeof rest);
      memcpy(rest, w, (size_t)(blocks * bytes));
      b = rest;
    }
    halves(b, bytes, 8, s.scale);
    if (zero == MIN) {
      halves(b + 2, bytes, 8, s.min);
      negated(s.min);
    }
    for (int r = 0; r < rows; r++) sum[r] = plus_small(sum[r], b, bytes, at, &s, x + r * ldx, zero);
  }
  for (int r = 0; r < rows; r++) y[r * ldy] = whole(sum[r]);
}
#define FAST(name, bytes, at, zero)                                                                                            \
  static void fast_##name(const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y, int64_t ldy) { \
    if (rows == 1) fast(bytes, at, zero, w, blocks, x, ldx, 1, y, ldy);                                                        \
    else fast(bytes, at, zero, w, blocks, x, ldx, rows, y, ldy);                                                               \
  }
FAST(q4_0, 18, 2, 8)
FAST(q4_1, 20, 4, MIN)

/* Blocks of Q4_K: the low halves of 32 bytes, then the high ones. */
INLINE Sum plus_q4_k(Sum a, const uint8_t *b, const Span *w, const PlkSpanX *x) {
  const __m512 scale = _mm512_mul_ps(_mm512_load_ps(w->scale), _mm512_loadu_ps(x->scale));
  const __m512i low = _mm512_set1_epi16(15), lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
  for (int g = 0; g < 4; g++) {
    const __m512i v = twice(b + 16 + 32 * g, 0, 4);
    const __m512i e = _mm512_and_si512(v, low), o = _mm512_and_si512(_mm512_srli_epi16(v, 8), low);
    const __m512i s = _mm512_add_epi32(_mm512_madd_epi16(e, _mm512_loadu_si512(x->q + 32 * g)),
                                       _mm512_madd_epi16(o, _mm512_loadu_si512(x->q + PLK_SPAN / 2 + 32 * g)));
    const __m512 by = _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(4 * g)), scale);
    a.v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), by, a.v);
  }
  return plus_offset(a, w, x, MIN);
}
INLINE void fast_k(const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y, int64_t ldy) {
  Sum sum[PLK_BLOCK_FEW];
  Span s;
  for (int r = 0; r < rows; r++) sum[r] = nothing();
  for (; blocks > 0; blocks--, w += 144, x++) {
    six_bits(w + 4, half(w), half(w + 2), &s);
    for (int r = 0; r < rows; r++) sum[r] = plus_q4_k(sum[r], w, &s, x + r * ldx);
  }
  for (int r = 0; r < rows; r++) y[r * ldy] = whole(sum[r]);
}
static void fast_q4_k(const uint8_t *w, int64_t blocks, const PlkSpanX *x, int64_t ldx, int rows, float *y, int64_t ldy) {
  if (rows == 1) fast_k(w, blocks, x, ldx, 1, y, ldy);
  else fast_k(w, blocks, x, ldx, rows, y, ldy);
}
#endif

/* Where element i of a span goes. */
INLINE int place(int i, PlkSpanOrder order) {
  if (order == PLK_SPAN_PAIRS) return i % 2 * (PLK_SPAN / 2) + i / 2;
  return i / 128 * 128 + (i % 2 * 2 + i / 16 % 2) * 32 + i % 128 / 32 * 8 + i % 16 / 2;
}

INLINE bool round_in(const float *x, int64_t n, PlkSpanOrder order, PlkSpanX *out) {
  for (; n > 0; n -= PLK_SPAN, x += PLK_SPAN, out++) {
    float room[PLK_SPAN];
    const float *v = x;
    if (n < PLK_SPAN) {
      memcpy(room, x, (size_t)n * sizeof *x);
      memset(room + n, 0, (size_t)(PLK_SPAN - n) * sizeof *x);
      v = room;
    }
    for (int k = 0; k < PLK_SPAN / 32; k++, v += 32) {
      uint32_t most = 0; /* floats without their signs are in the order of their bits, NaN last */
      for (int j = 0; j < 32; j++) {
        uint32_t u;
        memcpy(&u, v + j, sizeof u);
        u &= 0x7fffffffu;
        most = u > most ? u : most;
      }
      float far;
      memcpy(&far, &most, sizeof far);
      if (!(far < INFINITY) || (far > 0 && far < 1e-30f)) return false;
      const float by = far > 0 ? 32767 / far : 0, scale = far / 32767;
      int32_t q[32], sum[2] = {0, 0};
      for (int j = 0; j < 32; j++) q[j] = (int32_t)rintf(v[j] * by);
      for (int j = 0; j < 32; j++) out->q[place(32 * k + j, order)] = (int16_t)q[j];
      for (int j = 0; j < 16; j++) sum[0] += q[j];
      for (int j = 16; j < 32; j++) sum[1] += q[j];
      for (int p = 0; p < 2; p++) {
        out->scale[2 * k + p] = scale;
        out->sum[2 * k + p] = scale * (float)sum[p];
      }
    }
  }
  return true;
}

static bool round_x(const float *x, int64_t n, PlkSpanOrder order, PlkSpanX *out) {
  if (order == PLK_SPAN_HALVES) return round_in(x, n, PLK_SPAN_HALVES, out);
  return round_in(x, n, PLK_SPAN_PAIRS, out);
}

#define LOOPS(name) \
  { dots_##name, numbers_##name, PLK_SPAN_PAIRS }
#if defined(__AVX512BW__)
#define LOOPS_OF(name, order) \
  { fast_##name, numbers_##name, order }
#else
#define LOOPS_OF(name, order) LOOPS(name)
#endif
extern const PlkBlockLoops PLK_ISA_NAME(plk_block_loops);
const PlkBlockLoops PLK_ISA_NAME(plk_block_loops) = {
    {LOOPS_OF(q4_0, PLK_SPAN_HALVES), LOOPS_OF(q4_1, PLK_SPAN_HALVES), LOOPS(q5_0), LOOPS(q5_1), LOOPS(q8_0), LOOPS(q2_k), LOOPS(q3_k),
     LOOPS_OF(q4_k, PLK_SPAN_PAIRS), LOOPS(q5_k), LOOPS(q6_k), LOOPS(iq4_nl), LOOPS(iq4_xs), LOOPS(tq1_0), LOOPS(tq2_0), LOOPS(mxfp4)},
    round_x};
