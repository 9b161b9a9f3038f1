/* SPDX-License-Identifier: MIT
 * Products with matrices of blocks. A few rows of x are rounded to 16 bits and multiplied with the blocks' whole numbers as these
 * are read: that takes as long as reading them. More rows, and x that is not to be rounded, go through tiles of numbers and the
 * products of gemm.c. Both are cut by shape alone. */
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/convert.h"
#include "kernels/cpu/blocks/loops.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/gemm.h"

PLK_ISA_DECLARE(const PlkBlockLoops, plk_block_loops);

typedef struct Product {
  const PlkBlockFormat *f;
  const PlkBlockLoop *loop;
  const uint8_t *w;
  int64_t M, N, K, bytes; /* of a row of w */
  PlDtype dtype;          /* PL_F32 or PL_F64, of x, y, bias */
  const void *x, *bias;
  void *y;
  const PlkSpanX *rounded;
  int64_t spans;
} Product;

/* ---- x in the dtype that is computed in ---------------------------------------------------------------------------------- */

static PlStatus cast(void *dst, PlDtype to, const void *src, PlDtype from, int64_t n) {
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, n, 1, 1);
  return plk_nd_cast(dst, to, src, from, &walk);
}

/* run with x, bias and y of call as f32 where they are narrower. */
static PlStatus widened(Product *p, const PlkCall *call, PlStatus (*run)(Product *)) {
  const PlArray *x = call->in[0], *b = call->nin > 2 ? call->in[2] : NULL, *y = call->out[0];
  const PlDtype d = (PlDtype)x->dtype;
  p->x = x->data, p->bias = b ? b->data : NULL, p->y = y->data, p->dtype = d;
  if (d == PL_F32 || d == PL_F64) return run(p);
  const int64_t nb = b ? b->numel : 0;
  void *mem;
  PL_TRY(plk_scratch((size_t)(x->numel + nb + y->numel) * sizeof(float), &mem));
  float *wide = mem;
  PlStatus s = cast(wide, PL_F32, x->data, d, x->numel);
  if (s == PL_OK && b) s = cast(wide + x->numel, PL_F32, b->data, d, nb);
  p->x = wide, p->y = wide + x->numel + nb, p->dtype = PL_F32;
  if (b) p->bias = wide + x->numel;
  if (s == PL_OK) s = run(p);
  if (s == PL_OK) s = cast(y->data, d, p->y, PL_F32, y->numel);
  plk_scratch_free(mem);
  return s;
}

static Product of_call(const PlkCall *call) {
  const PlArray *w = call->in[1], *y = call->out[0];
  const int choice = (int)pl_attr_i(call->attrs, 0);
  Product p = {.f = plk_block_choice(choice), .loop = &PLK_ISA_PICK(plk_block_loops).of[choice], .w = w->data};
  p.N = w->shape[0], p.bytes = w->shape[1], p.K = p.bytes / p.f->bytes * p.f->elements;
  p.M = y->numel / y->shape[y->ndim - 1]; /* outputs without elements have returned */
  return p;
}

/* ---- a few rows --------------------------------------------------------------------------------------------------------------- */

static PlStatus few_rows(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const int64_t blocks = p->bytes / p->f->bytes;
  float *y = p->y;
  const float *bias = p->bias;
  for (int64_t n = begin; n < end; n++) {
    p->loop->dots(p->w + n * p->bytes, blocks, p->rounded, p->spans, (int)p->M, y + n, p->N);
    if (bias)
      for (int64_t m = 0; m < p->M; m++) y[m * p->N + n] += bias[n];
  }
  return plk_poll();
}

enum { ROOM = 24 }; /* spans of x that need no memory of their own */

/* *done: false where x is not to be rounded. */
static PlStatus few(Product *p, bool *done) {
  p->spans = plk_ceil_div(p->K, PLK_SPAN);
  _Alignas(64) PlkSpanX room[ROOM];
  void *mem = NULL;
  if (p->M * p->spans > ROOM) PL_TRY(plk_scratch((size_t)(p->M * p->spans) * sizeof(PlkSpanX), &mem));
  PlkSpanX *to = mem ? mem : room;
  p->rounded = to;
  *done = true;
  for (int64_t m = 0; *done && m < p->M; m++)
    *done = PLK_ISA_PICK(plk_block_loops).round((const float *)p->x + m * p->K, p->K, p->loop->order, to + m * p->spans);
  PlStatus s = *done ? plk_parallel(p->N, plk_max64(1, PLK_GRAIN / (p->K * p->M)), few_rows, p) : PL_OK;
  plk_scratch_free(mem);
  return s;
}

/* ---- tiles of numbers ------------------------------------------------------------------------------------------------------ */

enum { TILE_N = 128, TILE_K = 1024 /* whole blocks of every format */ };

/* Numbers k0 … of rows n0 … of w, rows k apart, in p's dtype; room: for one row. */
static void tile_of(const Product *p, int64_t n0, int64_t n, int64_t k0, int64_t k, void *tile, float *room) {
  for (int64_t i = 0; i < n; i++) {
    const uint8_t *from = p->w + (n0 + i) * p->bytes + k0 / p->f->elements * p->f->bytes;
    if (p->dtype == PL_F32) {
      p->loop->numbers(from, k / p->f->elements, (float *)tile + i * k);
      continue;
    }
    p->loop->numbers(from, k / p->f->elements, room);
    for (int64_t j = 0; j < k; j++) ((double *)tile)[i * k + j] = (double)room[j];
  }
}

static PlStatus linear_tiles(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const size_t size = pl_dtype_size(p->dtype);
  void *tile;
  float room[TILE_K];
  PL_TRY(plk_scratch((size_t)(TILE_N * plk_min64(TILE_K, p->K)) * size, &tile));
  PlStatus s = PL_OK;
  for (int64_t t = begin; t < end && s == PL_OK; t++) {
    const int64_t n0 = t * TILE_N, n = plk_min64(TILE_N, p->N - n0);
    for (int64_t k0 = 0; k0 < p->K && s == PL_OK; k0 += TILE_K) {
      const int64_t k = plk_min64(TILE_K, p->K - k0);
      tile_of(p, n0, n, k0, k, tile, room);
      PlkGemm g = {
          .dtype = p->dtype, .tb = true, .M = p->M, .N = n, .K = k, .lda = p->K, .ldb = k, .ldc = p->N, .alpha = 1, .beta = k0 > 0};
      g.A = plk_cat(p->x, k0, size), g.B = tile, g.C = plk_at(p->y, n0, size);
      g.bias = p->bias && k0 == 0 ? plk_cat(p->bias, n0, size) : NULL;
      s = plk_gemm_alone(&g);
      if (s == PL_OK) s = plk_poll();
    }
  }
  plk_scratch_free(tile);
  return s;
}

/* The same in bf16, whole rows at a time, as sums of such products are not added to. p->x is bf16. */
static PlStatus narrow_tiles(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  void *tile;
  PL_TRY(plk_scratch((size_t)p->K * (TILE_N * sizeof(uint16_t) + sizeof(float)), &tile));
  float *room = (float *)(void *)((uint16_t *)tile + TILE_N * p->K);
  PlStatus s = PL_OK;
  for (int64_t t = begin; t < end && s == PL_OK; t++) {
    const int64_t n0 = t * TILE_N, n = plk_min64(TILE_N, p->N - n0);
    for (int64_t i = 0; i < n; i++) {
      p->loop->numbers(p->w + (n0 + i) * p->bytes, p->bytes / p->f->bytes, room);
      plk_bf16_store(room, (uint16_t *)tile + i * p->K, p->K);
    }
    PlkGemm g = {.dtype = PL_BF16, .c_f32 = true, .bias_f32 = true, .tb = true, .M = p->M, .N = n, .K = p->K, .alpha = 1};
    g.lda = g.ldb = p->K, g.ldc = p->N;
    g.A = p->x, g.B = tile, g.C = (float *)p->y + n0;
    g.bias = p->bias ? (const float *)p->bias + n0 : NULL;
    s = plk_gemm_alone(&g);
    if (s == PL_OK) s = plk_poll();
  }
  plk_scratch_free(tile);
  return s;
}

static PlStatus by_narrow_tiles(const Product *p) {
  Product q = *p;
  void *x;
  PL_TRY(plk_scratch((size_t)(p->M * p->K) * sizeof(uint16_t), &x));
  PlStatus s = cast(x, PL_BF16, p->x, PL_F32, p->M * p->K);
  q.x = x;
  if (s == PL_OK) s = plk_parallel(plk_ceil_div(p->N, TILE_N), 1, narrow_tiles, &q);
  plk_scratch_free(x);
  return s;
}

static PlStatus by_tiles(Product *p) {
  const int64_t last = p->N % TILE_N ? p->N % TILE_N : TILE_N;
  if (p->dtype == PL_F32 && plk_matmul_precision() == PLK_PRECISION_MEDIUM && plk_gemm_bf16(p->M, plk_min64(TILE_N, p->N), p->K, 1, 1) &&
      plk_gemm_bf16(p->M, last, p->K, 1, 1))
    return by_narrow_tiles(p);
  return plk_parallel(plk_ceil_div(p->N, TILE_N), 1, linear_tiles, p);
}

static PlStatus few_or_tiles(Product *p) {
  bool done = false;
  if (p->dtype == PL_F32 && p->M <= PLK_BLOCK_FEW) PL_TRY(few(p, &done));
  return done ? PL_OK : by_tiles(p);
}

PlStatus plk_cpu_quantized_linear(const PlkCall *call) {
  if (call->out[0]->numel == 0) return PL_OK;
  Product p = of_call(call);
  return widened(&p, call, pl_attr_i(call->attrs, 1) == 0 ? few_or_tiles : by_tiles);
}

/* ---- the other way: x[M,N] W ------------------------------------------------------------------------------------------------- */

enum { TILE_COLS = 256, TILE_ROWS = 256 };

static PlStatus matmul_tiles(void *ctx, int64_t begin, int64_t end) {
  const Product *p = ctx;
  const size_t size = pl_dtype_size(p->dtype);
  void *tile;
  float room[TILE_COLS];
  PL_TRY(plk_scratch((size_t)(plk_min64(TILE_ROWS, p->N) * TILE_COLS) * size, &tile));
  PlStatus s = PL_OK;
  for (int64_t t = begin; t < end && s == PL_OK; t++) {
    const int64_t k0 = t * TILE_COLS, k = plk_min64(TILE_COLS, p->K - k0);
    for (int64_t n0 = 0; n0 < p->N && s == PL_OK; n0 += TILE_ROWS) {
      const int64_t n = plk_min64(TILE_ROWS, p->N - n0);
      tile_of(p, n0, n, k0, k, tile, room);
      PlkGemm g = {.dtype = p->dtype, .M = p->M, .N = k, .K = n, .lda = p->N, .ldb = k, .ldc = p->K, .alpha = 1, .beta = n0 > 0};
      g.A = plk_cat(p->x, n0, size), g.B = tile, g.C = plk_at(p->y, k0, size);
      s = plk_gemm_alone(&g);
      if (s == PL_OK) s = plk_poll();
    }
  }
  plk_scratch_free(tile);
  return s;
}

static PlStatus matmul(Product *p) {
  if (p->N == 0) {
    memset(p->y, 0, (size_t)(p->M * p->K) * pl_dtype_size(p->dtype));
    return PL_OK;
  }
  return plk_parallel(plk_ceil_div(p->K, TILE_COLS), 1, matmul_tiles, p);
}

PlStatus plk_cpu_quantized_matmul(const PlkCall *call) {
  if (call->out[0]->numel == 0) return PL_OK;
  Product p = of_call(call);
  return widened(&p, call, matmul);
}

/* ---- blocks and numbers ---------------------------------------------------------------------------------------------------- */

typedef struct Numbers {
  const PlkBlockFormat *f;
  const PlkBlockLoop *loop;
  const char *name;
  const PlArray *in;
  PlArray *out;
} Numbers;

enum { SOME = 4096 / PLK_SPAN }; /* spans at a time where numbers are of another dtype */

static PlStatus to_numbers(void *ctx, int64_t begin, int64_t end) {
  const Numbers *c = ctx;
  const PlDtype d = (PlDtype)c->out->dtype;
  const int64_t e = c->f->elements, most = SOME * PLK_SPAN / e;
  float room[SOME * PLK_SPAN];
  for (int64_t at = begin; at < end; at += most) {
    const int64_t n = plk_min64(most, end - at);
    const uint8_t *from = (const uint8_t *)c->in->data + at * c->f->bytes;
    void *to = plk_at(c->out->data, at * e, pl_dtype_size(d));
    if (d == PL_F32) {
      c->loop->numbers(from, n, to);
      continue;
    }
    c->loop->numbers(from, n, room);
    if (d == PL_F16) plk_f16_store(room, to, n * e);
    else if (d == PL_BF16) plk_bf16_store(room, to, n * e);
    else
      for (int64_t j = 0; j < n * e; j++) ((double *)to)[j] = (double)room[j];
  }
  return plk_poll();
}

static PlStatus to_blocks(void *ctx, int64_t begin, int64_t end) {
  const Numbers *c = ctx;
  const PlDtype d = (PlDtype)c->in->dtype;
  const int64_t e = c->f->elements, most = SOME * PLK_SPAN / e;
  float room[SOME * PLK_SPAN];
  for (int64_t at = begin; at < end; at += most) {
    const int64_t n = plk_min64(most, end - at);
    const void *from = plk_cat(c->in->data, at * e, pl_dtype_size(d));
    const float *x = from;
    if (d != PL_F32) {
      x = room;
      if (d == PL_F16) plk_f16_load(from, room, n * e);
      else if (d == PL_BF16) plk_bf16_load(from, room, n * e);
      else
        for (int64_t j = 0; j < n * e; j++) room[j] = (float)((const double *)from)[j];
    }
    if (!c->f->quantize(x, (uint8_t *)c->out->data + at * c->f->bytes, n))
      PL_FAIL(PL_ERR_ARG, "%s: x has numbers that are not finite, or too large for %s", c->name, c->f->name);
  }
  return plk_poll();
}

static PlStatus converted(const PlkCall *call, const PlArray *blocks, PlkBody body) {
  const int choice = (int)pl_attr_i(call->attrs, 0);
  Numbers c = {plk_block_choice(choice), &PLK_ISA_PICK(plk_block_loops).of[choice], call->name, call->in[0], call->out[0]};
  return plk_parallel(blocks->numel / c.f->bytes, PLK_GRAIN / c.f->elements, body, &c);
}
PlStatus plk_cpu_dequantize_blocks(const PlkCall *call) { return converted(call, call->in[0], to_numbers); }
PlStatus plk_cpu_quantize_blocks(const PlkCall *call) { return converted(call, call->out[0], to_blocks); }
