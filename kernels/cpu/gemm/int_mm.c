/* SPDX-License-Identifier: MIT
 * z[M,N] = x[M,K] y[K,N], i8 in, i32 out. Processors with VNNI multiply four pairs at a time, one factor unsigned: y is
 * packed once with 128 added, and what that adds, 128 times the sums of x's rows, is taken off again; those with AVX2 alone
 * read the same bytes, widened. Sums wrap, so nothing depends on their order. The plain form, everywhere else, judges it. */
#include <string.h>

#include "kernels/cpu/gemm/int_tile.h"
#include "kernels/cpu/gemm/matmul_int.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/gemm.h"

PLK_ISA_DECLARE(const PlkMatmulInt, plk_matmul_int);

typedef struct Product {
  const int8_t *x, *y;
  int64_t xs[2], ys[2], M, N, K;
  int32_t *z;
  const uint8_t *panel; /* [N / COLS][K / 4][COLS][4] */
} Product;

static PlStatus plain(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const PlkIntRows q = {.a = p->x + begin * p->xs[0],
                        .am = p->xs[0],
                        .as = p->xs[1],
                        .b = p->y,
                        .bk = p->ys[0],
                        .bn = p->ys[1],
                        .y = p->z + begin * p->N,
                        .M = end - begin,
                        .N = p->N,
                        .K = p->K};
  PLK_ISA_PICK(plk_matmul_int).i8_i32(&q);
  return plk_poll();
}

#if defined(__x86_64__)
#include <immintrin.h>

enum { COLS = PLK_INT_COLS, ROWS = PLK_INT_ROWS, STRIPE = 8 * ROWS /* rows of a job */ };
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

/* Four rows of sixteen columns, column by column. */
static inline void interleave(const int8_t *from, int64_t ld, uint8_t *to) {
  const __m128i flip = _mm_set1_epi8(-128);
  __m128i r[4];
  for (int k = 0; k < 4; k++) r[k] = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(from + k * ld)), flip);
  const __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpackhi_epi8(r[0], r[1]);
  const __m128i c = _mm_unpacklo_epi8(r[2], r[3]), d = _mm_unpackhi_epi8(r[2], r[3]);
  __m128i *out = (__m128i *)(void *)to;
  _mm_storeu_si128(out, _mm_unpacklo_epi16(a, c));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(a, c));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(b, d));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(b, d));
}

static void pack_part(const Product *p, const int8_t *from, int64_t terms, int64_t cols, uint8_t *to) {
  for (int64_t k = 0; k < terms; k++)
    for (int64_t j = 0; j < cols; j++) to[4 * j + k] = (uint8_t)(from[k * p->ys[0] + j * p->ys[1]] ^ -128);
}

static PlStatus pack(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const int64_t quads = (p->K + 3) / 4;
  for (int64_t j0 = begin; j0 < end; j0++) {
    uint8_t *to = (uint8_t *)(uintptr_t)p->panel + j0 * quads * 4 * COLS;
    const int64_t n = plk_min64(COLS, p->N - j0 * COLS);
    for (int64_t k = 0; k < p->K; k += 4, to += 4 * COLS) {
      const int8_t *from = p->y + k * p->ys[0] + j0 * COLS * p->ys[1];
      const int64_t terms = plk_min64(4, p->K - k);
      int64_t j = 0;
      if (terms < 4 || n < COLS) memset(to, 128, 4 * COLS);
      if (terms == 4 && p->ys[1] == 1)
        for (; j + 16 <= n; j += 16) interleave(from + j, p->ys[0], to + 4 * j);
      if (terms == 4 && p->ys[0] == 1)
        for (; j < n; j++) {
          uint32_t four;
          memcpy(&four, from + j * p->ys[1], sizeof four);
          four ^= 0x80808080u;
          memcpy(to + 4 * j, &four, sizeof four);
        }
      pack_part(p, from + j * p->ys[1], terms, n - j, to + 4 * j);
    }
  }
  return plk_poll();
}

/* sums + four products of u8 and i8 a lane. As an instruction by name: of the intrinsic gcc 12 keeps every result in memory. */
static inline __attribute__((always_inline)) VNNI __m512i plus_dots(__m512i sums, __m512i u8, __m512i i8) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u8), "v"(i8));
  return sums;
}

/* The sums are in registers by name: as an array the compiler keeps them in memory. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define START(r)                                                     \
  const int64_t i##r = r < rows ? r : rows - 1;                      \
  const int8_t *x##r = x + i##r * ldx;                               \
  __m512i s##r##0 = _mm512_set1_epi32(off[i##r]), s##r##1 = s##r##0; \
  __m512i s##r##2 = s##r##0, s##r##3 = s##r##0;
#define STEP(r)                                \
  {                                            \
    int32_t four;                              \
    memcpy(&four, x##r + k, sizeof four);      \
    const __m512i a = _mm512_set1_epi32(four); \
    s##r##0 = plus_dots(s##r##0, b0, a);       \
    s##r##1 = plus_dots(s##r##1, b1, a);       \
    s##r##2 = plus_dots(s##r##2, b2, a);       \
    s##r##3 = plus_dots(s##r##3, b3, a);       \
  }
#define STORE(r)                                                   \
  _mm512_mask_storeu_epi32(z + i##r * ldz, some[0], s##r##0);      \
  _mm512_mask_storeu_epi32(z + i##r * ldz + 16, some[1], s##r##1); \
  _mm512_mask_storeu_epi32(z + i##r * ldz + 32, some[2], s##r##2); \
  _mm512_mask_storeu_epi32(z + i##r * ldz + 48, some[3], s##r##3);

static VNNI void tile_vnni(int64_t rows, int64_t quads, const int8_t *x, int64_t ldx, const uint8_t *panel, const int32_t *off, int32_t *z,
                           int64_t ldz, int64_t n) {
  __mmask16 some[4];
  for (int v = 0; v < 4; v++) some[v] = (__mmask16)(n >= 16 * v + 16 ? 0xffff : n > 16 * v ? (1 << (n - 16 * v)) - 1 : 0);
  EACH_ROW(START)
  for (int64_t k = 0; k < 4 * quads; k += 4, panel += 4 * COLS) {
    const __m512i b0 = _mm512_loadu_si512(panel), b1 = _mm512_loadu_si512(panel + 64);
    const __m512i b2 = _mm512_loadu_si512(panel + 128), b3 = _mm512_loadu_si512(panel + 192);
    EACH_ROW(STEP)
  }
  EACH_ROW(STORE)
}

/* The same without VNNI: bytes are widened to 16 bits, whose products two terms at a time are exact in 32. */
#define AVX2 __attribute__((target("avx2")))
enum { TERMS = 256 /* of x that are widened at once, on the stack */, EIGHT = 8 /* columns, two vectors of two sums a column */ };

/* The sums of four columns each, two a column, joined in order. */
static inline __attribute__((always_inline)) AVX2 __m256i joined(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
}
#define ZERO(r) __m256i s##r##0 = _mm256_setzero_si256(), s##r##1 = s##r##0;
/* s0 and s1 + two products a lane of four terms of x and b0, b1. By name, as above: of the intrinsics gcc keeps most sums in memory. */
static inline __attribute__((always_inline)) AVX2 void plus_pairs(__m256i *s0, __m256i *s1, const int16_t *x, __m256i b0, __m256i b1) {
  typedef int16_t Four[4];
  __m256i a, products;
  __asm__("vpbroadcastq %4, %2\n\tvpmaddwd %5, %2, %3\n\tvpaddd %3, %0, %0\n\tvpmaddwd %6, %2, %2\n\tvpaddd %2, %1, %1"
          : "+x"(*s0), "+x"(*s1), "=&x"(a), "=&x"(products)
          : "m"(*(const Four *)(const void *)x), "x"(b0), "x"(b1));
}
#define PAIRS(r) plus_pairs(&s##r##0, &s##r##1, wide[r] + k, b0, b1);
#define KEEP(r)  keep(z + r * ldz + j, joined(s##r##0, s##r##1), k0 ? NULL : off + r, r < rows ? n - j : 0);
/* to[0 … n) becomes sums + *start, or more by them. */
static inline __attribute__((always_inline)) AVX2 void keep(int32_t *to, __m256i sums, const int32_t *start, int64_t n) {
  if (n <= 0) return;
  const __m256i count = _mm256_set1_epi32((int)plk_min64(EIGHT, n)),
                some = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_maskstore_epi32(to, some, _mm256_add_epi32(sums, start ? _mm256_set1_epi32(*start) : _mm256_maskload_epi32(to, some)));
}

static AVX2 void tile_avx2(int64_t rows, int64_t quads, const int8_t *x, int64_t ldx, const uint8_t *panel, const int32_t *off, int32_t *z,
                           int64_t ldz, int64_t n) {
  int16_t wide[ROWS][TERMS];
  for (int64_t k0 = 0; k0 < 4 * quads || k0 == 0; k0 += TERMS) {
    const int64_t terms = plk_min64(TERMS, 4 * quads - k0);
    for (int64_t r = 0; r < ROWS; r++)
      for (int64_t k = 0; k < terms; k++) wide[r][k] = r < rows ? x[r * ldx + k0 + k] : 0;
    for (int64_t j = 0; j < n; j += EIGHT) {
      const uint8_t *b = panel + k0 * COLS + 4 * j;
      EACH_ROW(ZERO)
      for (int64_t k = 0; k < terms; k += 4, b += 4 * COLS) {
        const __m256i b0 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)b));
        const __m256i b1 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(b + 16)));
        EACH_ROW(PAIRS)
      }
      EACH_ROW(KEEP)
    }
  }
}

/* Levels that PERILUNE_ISA allows: with VNNI, with AVX2. */
static bool vnni(void) { return plk_isa()[1] == '4' && __builtin_cpu_supports("avx512vnni"); }
bool plk_int_tile_there(void) {
  __builtin_cpu_init();
  return plk_isa()[1] == '3' || plk_isa()[1] == '4';
}

void plk_int_tile(int64_t rows, int64_t quads, const int8_t *x, int64_t ldx, const uint8_t *panel, const int32_t *off, int32_t *z,
                  int64_t ldz, int64_t n) {
  (vnni() ? tile_vnni : tile_avx2)(rows, quads, x, ldx, panel, off, z, ldz, n);
}

/* Stripes of rows, each times every panel; x in rows of 4 · quads terms, the last ones 0. */
static PlStatus stripes(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const int64_t quads = (p->K + 3) / 4, ld = 4 * quads;
  const bool dense = p->xs[1] == 1 && p->K % 4 == 0;
  void *copy = NULL;
  if (!dense) PL_TRY(plk_scratch((size_t)(STRIPE * ld), &copy));
  PlStatus status = PL_OK;
  for (int64_t s = begin; s < end && status == PL_OK; s++) {
    const int64_t i0 = s * STRIPE, m = plk_min64(STRIPE, p->M - i0);
    int32_t off[STRIPE];
    for (int64_t i = 0; i < m; i++) {
      const int8_t *from = p->x + (i0 + i) * p->xs[0];
      int64_t sum = 0;
      for (int64_t k = 0; k < p->K; k++) sum += from[k * p->xs[1]];
      off[i] = (int32_t)(uint32_t)(-128 * sum);
      if (dense) continue;
      int8_t *to = (int8_t *)copy + i * ld;
      memset(to + ld - 4, 0, 4);
      for (int64_t k = 0; k < p->K; k++) to[k] = from[k * p->xs[1]];
    }
    const int8_t *x = dense ? p->x + i0 * p->xs[0] : copy;
    const int64_t ldx = dense ? p->xs[0] : ld;
    for (int64_t j = 0; j < p->N; j += COLS)
      for (int64_t i = 0; i < m; i += ROWS)
        plk_int_tile(plk_min64(ROWS, m - i), quads, x + i * ldx, ldx, p->panel + j * 4 * quads, off + i, p->z + (i0 + i) * p->N + j, p->N,
                     plk_min64(COLS, p->N - j));
    status = plk_poll();
  }
  plk_scratch_free(copy);
  return status;
}

static PlStatus fast(Product *p) {
  const int64_t quads = (p->K + 3) / 4, panels = plk_ceil_div(p->N, COLS);
  void *room;
  PL_TRY(plk_scratch((size_t)(panels * quads * 4 * COLS), &room));
  p->panel = room;
  PlStatus s = plk_parallel(panels, plk_max64(1, PLK_GRAIN / (p->K * COLS)), pack, p);
  if (s == PL_OK) s = plk_parallel(plk_ceil_div(p->M, STRIPE), 1, stripes, p);
  plk_scratch_free(room);
  return s;
}
#else
bool plk_int_tile_there(void) { return false; }
void plk_int_tile(int64_t rows, int64_t quads, const int8_t *x, int64_t ldx, const uint8_t *panel, const int32_t *off, int32_t *z,
                  int64_t ldz, int64_t n) {
  (void)rows, (void)quads, (void)x, (void)ldx, (void)panel, (void)off, (void)z, (void)ldz, (void)n;
}
static PlStatus fast(Product *p) { return plain(p, 0, p->M); }
#endif

/* Multiply-adds below which packing costs more than it gives. */
enum { SMALL = 1 << 12 };

PlStatus plk_cpu_int_mm(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->in[1];
  Product p = {.x = x->data, .y = y->data, .z = call->out[0]->data};
  p.M = x->shape[0], p.K = x->shape[1], p.N = y->shape[1];
  for (int d = 0; d < 2; d++) p.xs[d] = x->strides[d], p.ys[d] = y->strides[d];
  if (p.M == 0 || p.N == 0) return PL_OK;
  if (p.K > 0 && p.M > 1 && p.M * p.N >= SMALL / p.K && plk_int_tile_there()) return fast(&p);
  return plk_parallel(p.M, plk_max64(1, PLK_GRAIN / (p.N * plk_max64(p.K, 1))), plain, &p);
}
