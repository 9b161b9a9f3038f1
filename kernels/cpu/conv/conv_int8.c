/* SPDX-License-Identifier: MIT
 * Convolution of 8-bit integers with 32-bit sums (kernels/conv.h). The images are rounded once, into bytes with their border; for
 * 64 places of an image what the windows see is laid out, [window][places], and the channels of the result are rows of a product with
 * it. Where windows move by one, places are those of the image with its border: 64 neighbours see 64 neighbours, which are
 * read where they lie, and the few results between the lines are not kept. Else what they see is gathered. */
#include <math.h>
#include <string.h>

#include "kernels/conv.h"
#include "kernels/cpu/gemm/int_tile.h"
#include "kernels/cpu/gemm/matmul_int.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/sizes.h"

PLK_ISA_DECLARE(const PlkMatmulInt, plk_matmul_int);

enum { COLS = PLK_INT_COLS, ROWS = PLK_INT_ROWS, SLACK = 64 /* bytes that copies of runs may touch behind the end */ };

typedef struct Conv {
  const float *x, *scale, *bias;
  const int8_t *w;
  float *y;
  int64_t n, groups, c, o, size[2], k[2], out[2], stride[2], pad[2], dil[2]; /* c, o: of one group */
  int64_t wide[2], plane, places, terms, quads;                              /* wide: the image with its border */
  int64_t across;                                                            /* places of a line, with those that are not kept */
  int64_t *terms_at;                                                         /* where the window's elements are, from its first one */
  float x_scale, inverse;
  int zero;
  bool relu, tiles /* plk_int_tile */, avx512, side_by_side;
  uint8_t *image; /* [n][groups * c][plane], x_zero added and 128 */
  int8_t *rows;   /* w, rows of 4 * quads */
  int32_t *off;   /* of each row */
} Conv;

/* ---- rounding ------------------------------------------------------------------------------------------------------------------ */

/* NaN and what is below the range become its least number. */
static inline uint8_t byte_of(float v, float inverse, int zero) {
  v *= inverse;
  v = v > -512.0f ? v : -512.0f;
  v = v < 512.0f ? v : 512.0f;
  int q = (int)rintf(v) + zero;
  q = q < -128 ? -128 : q > 127 ? 127 : q;
  return (uint8_t)(q + 128);
}

static void bytes_plain(const float *x, uint8_t *to, int64_t n, float inverse, int zero) {
  for (int64_t i = 0; i < n; i++) to[i] = byte_of(x[i], inverse, zero);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

static AVX512 void bytes_fast(const float *x, uint8_t *to, int64_t n, float inverse, int zero) {
  const __m512 by = _mm512_set1_ps(inverse), lo = _mm512_set1_ps(-512), hi = _mm512_set1_ps(512);
  const __m512i shift = _mm512_set1_epi32(zero + 128), least = _mm512_setzero_si512(), most = _mm512_set1_epi32(255);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 some = (__mmask16)(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), by);
    v = _mm512_min_ps(_mm512_max_ps(v, lo), hi); /* max of NaN and lo is lo */
    __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(v), shift);
    q = _mm512_min_epi32(_mm512_max_epi32(q, least), most);
    _mm512_mask_cvtepi32_storeu_epi8(to + i, some, q);
  }
}
#else
#define bytes_fast bytes_plain
#endif

static PlStatus round_planes(void *ctx, int64_t begin, int64_t end) {
  const Conv *v = ctx;
  const int64_t across = v->wide[1];
  const int border = v->zero + 128;
  for (int64_t p = begin; p < end; p++) {
    const float *from = v->x + p * v->size[0] * v->size[1];
    uint8_t *to = v->image + p * v->plane;
    if (v->pad[0] || v->pad[1]) memset(to, border, (size_t)v->plane);
    to += v->pad[0] * across + v->pad[1];
    const bool whole = v->pad[1] == 0;
    const int64_t lines = whole ? 1 : v->size[0], length = whole ? v->size[0] * v->size[1] : v->size[1];
    for (int64_t r = 0; r < lines; r++, from += length, to += across) {
      if (v->avx512) bytes_fast(from, to, length, v->inverse, v->zero);
      else bytes_plain(from, to, length, v->inverse, v->zero);
    }
  }
  return plk_poll();
}

/* ---- what windows see ---------------------------------------------------------------------------------------------------------- */

/* Places that lie side by side in the image, at the window's first element. */
typedef struct Run {
  int64_t from;
  int to, count;
} Run;

static int runs_of(const Conv *v, int64_t first, int64_t count, Run *runs) {
  int n = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t y = (first + i) / v->out[1], x = (first + i) % v->out[1];
    const int64_t at = y * v->stride[0] * v->wide[1] + x * v->stride[1];
    if (n > 0 && runs[n - 1].from + runs[n - 1].count == at) {
      runs[n - 1].count++;
    } else {
      runs[n++] = (Run){.from = at, .to = (int)i, .count = 1};
    }
  }
  return n;
}

/* In pieces of 16 bytes: what is written too far the next run writes again. */
static inline void gather(const uint8_t *plane, const Run *runs, int n, uint8_t *to) {
  for (int r = 0; r < n; r++) {
    const uint8_t *from = plane + runs[r].from;
    uint8_t *at = to + runs[r].to;
    if (runs[r].count == 1) {
      *at = *from;
      continue;
    }
    for (int i = 0; i < runs[r].count; i += 16) memcpy(at + i, from + i, 16);
  }
}

#if defined(__x86_64__)
/* Four rows of sixteen places, place by place. */
static inline void interleave(const uint8_t *r0, const uint8_t *r1, const uint8_t *r2, const uint8_t *r3, uint8_t *to) {
  const __m128i v0 = _mm_loadu_si128((const __m128i *)(const void *)r0), v1 = _mm_loadu_si128((const __m128i *)(const void *)r1);
  const __m128i v2 = _mm_loadu_si128((const __m128i *)(const void *)r2), v3 = _mm_loadu_si128((const __m128i *)(const void *)r3);
  const __m128i a = _mm_unpacklo_epi8(v0, v1), b = _mm_unpackhi_epi8(v0, v1);
  const __m128i c = _mm_unpacklo_epi8(v2, v3), d = _mm_unpackhi_epi8(v2, v3);
  __m128i *out = (__m128i *)(void *)to;
  _mm_storeu_si128(out, _mm_unpacklo_epi16(a, c));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(a, c));
  _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(b, d));
  _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(b, d));
}
#else
static void interleave(const uint8_t *r0, const uint8_t *r1, const uint8_t *r2, const uint8_t *r3, uint8_t *to) {
  for (int i = 0; i < 16; i++) to[4 * i] = r0[i], to[4 * i + 1] = r1[i], to[4 * i + 2] = r2[i], to[4 * i + 3] = r3[i];
}
#endif

/* Signed, [terms][COLS], where the tile of unsigned panels is not there. */
static void columns_of(const uint8_t *const rows[4], int count, int8_t *to) {
  for (int t = 0; t < count; t++, to += COLS)
    for (int i = 0; i < COLS; i++) to[i] = (int8_t)(rows[t][i] ^ 0x80);
}

/* What the windows of COLS places see: of places side by side, n == 0, from the image itself. */
static void panel_of(const Conv *v, const uint8_t *image, int64_t first, const Run *runs, int n, uint8_t *panel) {
  uint8_t lines[4][COLS + SLACK];
  memset(lines, 0, sizeof lines);
  const uint8_t *rows[4] = {lines[0], lines[1], lines[2], lines[3]};
  for (int64_t q = 0; q < v->quads; q++, panel += 4 * COLS) {
    const int count = (int)plk_min64(4, v->terms - 4 * q);
    for (int t = 0; t < count; t++) {
      const uint8_t *from = image + v->terms_at[4 * q + t];
      if (n == 0) rows[t] = from + first;
      else gather(from, runs, n, lines[t]);
    }
    if (!v->tiles) {
      columns_of(rows, count, (int8_t *)panel);
      continue;
    }
    for (int i = 0; i < COLS; i += 16) interleave(rows[0] + i, rows[1] + i, rows[2] + i, rows[3] + i, panel + 4 * i);
  }
}

/* ---- products ------------------------------------------------------------------------------------------------------------------ */

static inline void numbers_plain(const int32_t *sums, int64_t n, float by, float plus, bool relu, float *to) {
  for (int64_t k = 0; k < n; k++) {
    const float r = (float)sums[k] * by + plus;
    to[k] = relu && r < 0 ? 0.0f : r;
  }
}

#if defined(__x86_64__)
static AVX512 void numbers_fast(const int32_t *sums, int64_t n, float by, float plus, bool relu, float *to) {
  const __m512 b = _mm512_set1_ps(by), p = _mm512_set1_ps(plus), zero = _mm512_setzero_ps();
  for (int64_t k = 0; k < n; k += 16) {
    const __mmask16 some = (__mmask16)(n - k >= 16 ? 0xffff : (1 << (n - k)) - 1);
    __m512 r = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(some, sums + k)), b), p);
    if (relu) r = _mm512_max_ps(zero, r); /* of zero and NaN it is NaN */
    _mm512_mask_storeu_ps(to + k, some, r);
  }
}
#else
#define numbers_fast numbers_plain
#endif

/* Places first … first + n of one channel, of which y is the first. */
static void finish(const Conv *v, int64_t channel, const int32_t *sums, int64_t first, int64_t n, float *y) {
  const float by = v->x_scale * v->scale[channel], plus = v->bias ? v->bias[channel] : 0.0f;
  int64_t line = first / v->across, at = first % v->across;
  for (int64_t i = 0; i < n; i += v->across - at, at = 0, line++) {
    const int64_t kept = plk_min64(v->out[1] - at, n - i);
    if (kept <= 0) continue;
    if (v->avx512) numbers_fast(sums + i, kept, by, plus, v->relu, y + line * v->out[1] + at);
    else numbers_plain(sums + i, kept, by, plus, v->relu, y + line * v->out[1] + at);
  }
}

/* Job: 64 places of one group of one image. */
static PlStatus places(void *ctx, int64_t begin, int64_t end) {
  const Conv *v = ctx;
  const int64_t chunks = plk_ceil_div(v->places, COLS), ld = 4 * v->quads;
  void *room;
  PL_TRY(plk_scratch((size_t)((v->quads * 4 + 4 * ROWS) * COLS), &room));
  uint8_t *panel = room;
  int32_t *sums = (int32_t *)(void *)(panel + v->quads * 4 * COLS);
  PlStatus status = PL_OK;
  for (int64_t job = begin; job < end && status == PL_OK; job++) {
    const int64_t first = job % chunks * COLS, group = job / chunks % v->groups, image = job / chunks / v->groups;
    const int64_t n = plk_min64(COLS, v->places - first);
    const uint8_t *from = v->image + (image * v->groups + group) * v->c * v->plane;
    Run runs[COLS];
    panel_of(v, from, first, runs, v->side_by_side ? 0 : runs_of(v, first, n, runs), panel);
    for (int64_t o = 0; o < v->o; o += ROWS) {
      const int64_t at = group * v->o + o, rows = plk_min64(ROWS, v->o - o);
      if (v->tiles) {
        plk_int_tile(rows, v->quads, v->rows + at * ld, ld, panel, v->off + at, sums, COLS, COLS);
      } else {
        const PlkIntRows p = {
            .a = v->rows + at * ld, .am = ld, .as = 1, .b = panel, .bk = COLS, .bn = 1, .y = sums, .M = rows, .N = COLS, .K = v->terms};
        PLK_ISA_PICK(plk_matmul_int).i8_i32(&p);
        for (int64_t r = 0; r < rows; r++)
          for (int i = 0; i < COLS; i++) sums[r * COLS + i] = (int32_t)((uint32_t)sums[r * COLS + i] + (uint32_t)v->off[at + r]);
      }
      for (int64_t r = 0; r < rows; r++)
        finish(v, at + r, sums + r * COLS, first, n, v->y + (image * v->groups * v->o + at + r) * v->out[0] * v->out[1]);
    }
    status = plk_poll();
  }
  plk_scratch_free(room);
  return status;
}

/* Rows of w with zeros behind them, and what x_zero, and the 128 where bytes are unsigned, add to their sums. */
static void weights(const Conv *v) {
  const int64_t ld = 4 * v->quads, shift = v->tiles ? v->zero + 128 : v->zero;
  for (int64_t o = 0; o < v->groups * v->o; o++) {
    int64_t sum = 0;
    for (int64_t k = 0; k < v->terms; k++) sum += v->w[o * v->terms + k];
    memcpy(v->rows + o * ld, v->w + o * v->terms, (size_t)v->terms);
    memset(v->rows + o * ld + v->terms, 0, (size_t)(ld - v->terms));
    v->off[o] = (int32_t)(uint32_t)(-shift * sum);
  }
}

static PlStatus run(Conv *v) {
  const int64_t area = v->k[0] * v->k[1];
  for (int64_t k = 0; k < v->terms; k++)
    v->terms_at[k] = k / area * v->plane + k % area / v->k[1] * v->dil[0] * v->wide[1] + k % v->k[1] * v->dil[1];
  const int64_t planes = v->n * v->groups * v->c, outs = v->groups * v->o;
  PL_TRY(plk_parallel(planes, plk_max64(1, PLK_GRAIN / plk_max64(1, v->plane)), round_planes, v));
  weights(v);
  const int64_t jobs = v->n * v->groups * plk_ceil_div(v->places, COLS);
  return plk_parallel(jobs, plk_max64(1, 8 * (int64_t)PLK_GRAIN / plk_max64(1, COLS * v->terms * (outs / v->groups))), places, v);
}

PlStatus plk_cpu_int8_conv2d(const PlkCall *call) {
  const PlArray *x = call->in[0], *w = call->in[1], *y = call->out[0];
  Conv v = {.x = x->data, .w = w->data, .scale = call->in[2]->data, .y = call->out[0]->data, .n = x->shape[0]};
  v.groups = pl_attr_i(call->attrs, 3);
  v.relu = pl_attr_i(call->attrs, 4) != 0;
  v.x_scale = *(const float *)call->in[3]->data;
  v.inverse = 1.0f / v.x_scale;
  const int32_t zero = *(const int32_t *)call->in[4]->data;
  if (zero < -128 || zero > 127) PL_FAIL(PL_ERR_ARG, "%s: x_zero is %d, must be from -128 to 127", call->name, (int)zero);
  if (!(v.x_scale > 0) || !isfinite(v.x_scale) || !isfinite(v.inverse))
    PL_FAIL(PL_ERR_ARG, "%s: x_scale is %g, must be positive", call->name, (double)v.x_scale);
  v.zero = (int)zero;
  v.bias = call->nin > 5 && call->in[5] ? call->in[5]->data : NULL;
  v.c = w->shape[1], v.o = w->shape[0] / v.groups;
  const int64_t *lists[3] = {pl_attr_list(call->attrs, 0), pl_attr_list(call->attrs, 1), pl_attr_list(call->attrs, 2)};
  for (int d = 0; d < 2; d++) {
    v.size[d] = x->shape[2 + d], v.k[d] = w->shape[2 + d], v.out[d] = y->shape[2 + d];
    v.stride[d] = lists[0][d], v.pad[d] = lists[1][d], v.dil[d] = lists[2][d];
    v.wide[d] = v.size[d] + 2 * v.pad[d];
  }
  if (y->numel == 0) return PL_OK;
  if (__builtin_mul_overflow(v.wide[0], v.wide[1], &v.plane)) v.plane = INT64_MAX; /* which is refused below */
  v.side_by_side = v.stride[0] == 1 && v.stride[1] == 1;
  v.across = v.side_by_side ? v.wide[1] : v.out[1];
  v.terms = v.c * v.k[0] * v.k[1];
  v.quads = (v.terms + 3) / 4;
  v.tiles = plk_int_tile_there(), v.avx512 = plk_isa()[1] == '4';
  const int64_t outs = v.groups * v.o;
  int64_t pixels, bytes;
  if (__builtin_mul_overflow(v.n * v.groups * v.c, v.plane, &pixels) || v.plane == INT64_MAX ||
      __builtin_add_overflow(pixels, outs * (4 * v.quads + (int64_t)sizeof(int32_t)) + 8 * v.terms + 2 * SLACK, &bytes))
    PL_FAIL(PL_ERR_OOM, "%s: padding makes images that no memory holds", call->name);
  v.places = (v.out[0] - 1) * v.across + v.out[1];
  void *room;
  PL_TRY(plk_scratch((size_t)bytes, &room));
  v.terms_at = room;
  v.off = (int32_t *)(void *)(v.terms_at + v.terms);
  v.rows = (int8_t *)(v.off + outs);
  v.image = (uint8_t *)v.rows + outs * 4 * v.quads;
  const PlStatus status = run(&v);
  plk_scratch_free(room);
  return status;
}
