/* SPDX-License-Identifier: MIT
 * A product of f16 or bf16 on one thread, for processors without instructions of their own: what a tile reads is widened to f32 piece by
 * piece, while it is in cache, the product is one of floats, and its result is rounded once. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/sizes.h"

/* Terms of a piece. */
enum { TERMS = 1024 };

/* n rows of `width` elements, ld apart, one after the other. */
static void widen(PlDtype d, const void *src, int64_t ld, int64_t n, int64_t width, float *dst) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  const uint16_t *x = src;
  if (ld == width) width *= n, n = 1;
  for (int64_t i = 0; i < n; i++) (d == PL_F16 ? cv->f16_load : cv->bf16_load)(x + i * ld, dst + i * width, width);
}

static const void *halves_at(const void *p, int64_t i) { return (const uint16_t *)p + i; }

PlStatus plk_gemm_widened(const PlkGemm *g) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  const int64_t step = plk_min64(g->K, TERMS);
  void *room;
  PL_TRY(plk_scratch((size_t)(g->M * step + step * g->N + (g->c_f32 ? 0 : g->M * g->N) + g->N) * sizeof(float), &room));
  float *a = room, *b = a + g->M * step, *bias = b + step * g->N, *c = g->c_f32 ? g->C : bias + g->N;
  if (g->bias && !g->bias_f32) widen(g->dtype, g->bias, g->N, 1, g->N, bias);
  PlkGemm part = {.dtype = PL_F32, .ta = g->ta, .tb = g->tb, .M = g->M, .N = g->N, .alpha = 1, .A = a, .B = b, .C = c};
  part.ldc = g->c_f32 ? g->ldc : g->N;
  PlStatus s = PL_OK;
  for (int64_t k = 0; k < g->K && s == PL_OK; k += step) {
    const int64_t n = part.K = plk_min64(step, g->K - k);
    const bool last = k + n == g->K;
    if (g->ta) widen(g->dtype, halves_at(g->A, k * g->lda), g->lda, n, g->M, a);
    else widen(g->dtype, halves_at(g->A, k), g->lda, g->M, n, a);
    if (g->tb) widen(g->dtype, halves_at(g->B, k), g->ldb, g->N, n, b);
    else widen(g->dtype, halves_at(g->B, k * g->ldb), g->ldb, n, g->N, b);
    part.lda = g->ta ? g->M : n, part.ldb = g->tb ? n : g->N;
    part.beta = k > 0;
    part.bias = !last || !g->bias ? NULL : g->bias_f32 ? g->bias : bias;
    part.relu = last && g->relu;
    s = plk_gemm_alone(&part);
    if (s == PL_OK && !last) s = plk_poll();
  }
  for (int64_t i = 0; i < g->M && s == PL_OK && !g->c_f32; i++)
    (g->dtype == PL_F16 ? cv->f16_store : cv->bf16_store)(c + i * g->N, (uint16_t *)g->C + i * g->ldc, g->N);
  plk_scratch_free(room);
  return s;
}
