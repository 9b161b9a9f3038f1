/* SPDX-License-Identifier: MIT
 * See gemm_panels.h. Tiles of gemm.c are squares, each of which a library packs for itself: with few rows the same columns are
 * packed again for each tile, and for few multiplications. Here each column is packed once. */
#include "kernels/cpu/gemm/gemm_panels.h"

#include "kernels/cpu/sizes.h"

/* Terms of a block, and columns of a unit: the packed rows of a block and its columns fit the second cache. Columns of a matrix that lies by
 * rows are packed several panels at once, as few bytes of many rows are slow to get. */
enum { TERMS = 768, TERMS_BY_ROWS = 384, PANELS_BY_ROWS = 4 };
enum {
  LEAST_ROWS = 32,
  MOST_ROWS = 1024,
  BLOCK_ROWS = 512,
  FEW_ROWS = 256,
  LEAST_COLUMNS = 128,
  LEAST_TERMS = 64,
  LEAST_MACS = 1 << 20,
  LARGE = 1 << 20,
  WIDE = 1024,
  MOST_PACKED = 1 << 21
};

typedef struct Panels {
  const PlkGemm *g;
  const PlkGemmCode *code;
  int64_t terms;   /* of a block */
  int64_t whole;   /* panels of rows that lie packed */
  int64_t block;   /* rows that a unit multiplies with its columns */
  int64_t columns; /* of a unit */
  size_t size;
  char *rows; /* a block after the other, its panels in order */
} Panels;

bool plk_gemm_panels_fits(const PlkGemm *g) {
  if (g->dtype != PL_F32 || g->widen || g->nbatch > 0 || plk_isa()[1] != '4') return false;
  if (g->M < LEAST_ROWS || g->M > MOST_ROWS || g->N < LEAST_COLUMNS || g->K < LEAST_TERMS) return false;
  if (g->K > MOST_PACKED / g->M || g->N < LEAST_MACS / (g->M * g->K)) return false;
  /* What lies by rows costs a library little to pack, as long as it fits the cache, or is narrow beside many rows. */
  return g->tb || (g->N >= LARGE / g->K && (g->M <= FEW_ROWS || g->N >= WIDE));
}

static PlStatus pack_body(void *ctx, int64_t begin, int64_t end) {
  const Panels *q = ctx;
  const PlkGemm *g = q->g;
  const int64_t ai = g->ta ? 1 : g->lda, ap = g->ta ? g->lda : 1, mr = q->code->mr;
  for (int64_t p = 0; p < g->K; p += q->terms) {
    const int64_t kc = plk_min64(q->terms, g->K - p);
    q->code->pack(kc, (end - begin) * mr, (int)mr, (const char *)g->A + (size_t)(begin * mr * ai + p * ap) * q->size, ap, ai,
                  q->rows + (size_t)((q->whole * p + begin * kc) * mr) * q->size);
  }
  return PL_OK;
}

static PlStatus unit_body(void *ctx, int64_t begin, int64_t end) {
  const Panels *q = ctx;
  const PlkGemm *g = q->g;
  const int64_t bp = g->tb ? 1 : g->ldb, bj = g->tb ? g->ldb : 1, w = q->code->w;
  void *columns;
  PL_TRY(plk_scratch((size_t)(q->terms * plk_ceil_div(plk_min64(q->columns, g->N), w) * w) * q->size, &columns));
  for (int64_t u = begin; u < end; u++) {
    const int64_t across = plk_ceil_div(g->N, q->columns), part = u / across, i0 = part * q->block;
    const int64_t j0 = u % across * q->columns, nc = plk_min64(q->columns, g->N - j0);
    PlkGemm tile = *g;
    tile.M = plk_min64(q->block, g->M - i0), tile.N = nc;
    tile.A = (const char *)g->A + (size_t)(i0 * (g->ta ? 1 : g->lda)) * q->size;
    tile.C = (char *)g->C + (size_t)(i0 * g->ldc + j0) * q->size;
    for (int64_t p = 0; p < g->K; p += q->terms) {
      const int64_t kc = plk_min64(q->terms, g->K - p);
      q->code->pack(kc, nc, (int)w, (const char *)g->B + (size_t)(p * bp + j0 * bj) * q->size, bp, bj, columns);
      /* what is packed next: of these columns, or of the following ones */
      const bool last = p + kc == g->K;
      const char *here = q->rows + (size_t)(q->whole * p * q->code->mr + i0 * kc) * q->size, *soon = NULL;
      if (g->tb) soon = (const char *)g->B + (size_t)(last ? (j0 + nc) % g->N * bj : (p + kc) * bp + j0 * bj) * q->size;
      q->code->strip(&tile, p, kc, here, columns, nc, tile.C, (uintptr_t)soon, g->tb ? bj * (int64_t)q->size : 0);
    }
    if (g->bias) tile.bias = (const char *)g->bias + (size_t)j0 * q->size;
    plk_gemm_finish(&tile);
  }
  plk_scratch_free(columns);
  return PL_OK;
}

PlStatus plk_gemm_panels(const PlkGemm *g) {
  const PlkGemmCode *code = plk_gemm_code(g->dtype);
  const int64_t most = g->tb ? TERMS : TERMS_BY_ROWS;
  Panels q = {.g = g, .code = code, .whole = g->M / code->mr, .columns = code->w, .size = pl_dtype_size(g->dtype)};
  q.terms = plk_min64(g->K, plk_ceil_div(plk_ceil_div(g->K, plk_ceil_div(g->K, most)), 16) * 16);
  q.block = plk_ceil_div(plk_ceil_div(g->M, plk_ceil_div(g->M, BLOCK_ROWS)), code->mr) * code->mr;
  while (!g->tb && q.columns < PANELS_BY_ROWS * code->w && g->N >= 16 * q.columns) q.columns *= 2;
  void *mem;
  PL_TRY(plk_scratch((size_t)plk_max64(1, q.whole * code->mr * g->K) * q.size, &mem));
  q.rows = mem;
  PlStatus s = plk_parallel(q.whole, plk_max64(1, PLK_GRAIN / (code->mr * g->K)), pack_body, &q);
  if (s == PL_OK) s = plk_parallel(plk_ceil_div(g->M, q.block) * plk_ceil_div(g->N, q.columns), 1, unit_body, &q);
  plk_scratch_free(mem);
  return s;
}
