/* SPDX-License-Identifier: MIT
 * Matrix products without cuBLASLt: one plain tiled kernel for every floating dtype. It is what runs where the library is
 * missing, and the judge of the library in tests. 64 × 64 results a block, 4 × 4 a thread, 16 of k at a time in shared
 * memory; sums run over k in one order. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/operand.h"

enum { TILE = 64, DEPTH = 16, EACH = 4 };

struct Product {
  int64_t m, n, k, lda, ldb, ldc, sa, sb, sc;
  bool ta, tb;
  double alpha, beta;
  int epilogue;
};

template <typename T, typename R, typename A> __global__ void plain(Product p, const T *a, const T *b, R *c, const R *bias) {
  __shared__ A as[DEPTH][TILE], bs[DEPTH][TILE];
  int tid = (int)threadIdx.x, tx = tid % 16, ty = tid / 16;
  int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
  a += (int64_t)blockIdx.z * p.sa;
  b += (int64_t)blockIdx.z * p.sb;
  c += (int64_t)blockIdx.z * p.sc;
  A sum[EACH][EACH];
  for (int r = 0; r < EACH; r++)
    for (int s = 0; s < EACH; s++) sum[r][s] = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
    for (int e = tid; e < TILE * DEPTH; e += 256) {
      int kk = p.ta ? e / TILE : e % DEPTH, i = p.ta ? e % TILE : e / DEPTH;
      bool in = i0 + i < p.m && k0 + kk < p.k;
      as[kk][i] = in ? (A)plc_type<T>::load(p.ta ? a[(k0 + kk) * p.lda + i0 + i] : a[(i0 + i) * p.lda + k0 + kk]) : (A)0;
      int kb = p.tb ? e % DEPTH : e / TILE, j = p.tb ? e / DEPTH : e % TILE;
      in = j0 + j < p.n && k0 + kb < p.k;
      bs[kb][j] = in ? (A)plc_type<T>::load(p.tb ? b[(j0 + j) * p.ldb + k0 + kb] : b[(k0 + kb) * p.ldb + j0 + j]) : (A)0;
    }
    __syncthreads();
    for (int kk = 0; kk < DEPTH; kk++)
      for (int r = 0; r < EACH; r++)
        for (int s = 0; s < EACH; s++) sum[r][s] = fma(as[kk][ty + 16 * r], bs[kk][tx + 16 * s], sum[r][s]);
    __syncthreads();
  }
  for (int r = 0; r < EACH; r++)
    for (int s = 0; s < EACH; s++) {
      int64_t i = i0 + ty + 16 * r, j = j0 + tx + 16 * s;
      if (i >= p.m || j >= p.n) continue;
      A v = (A)p.alpha * sum[r][s];
      R *at = c + i * p.ldc + j;
      if (p.beta != 0) v += (A)p.beta * (A)plc_type<R>::load(*at);
      if (p.epilogue != PLC_EPI_NONE) v += (A)plc_type<R>::load(bias[j]);
      if (p.epilogue == PLC_EPI_BIAS_RELU) v = v < 0 ? (A)0 : v;
      *at = plc_type<R>::store(v);
    }
}

template <typename T, typename R, typename A> static PlStatus launch(const PlcGemm *g) {
  Product p = {g->m, g->n, g->k, g->lda, g->ldb, g->ldc, g->sa, g->sb, g->sc, g->ta, g->tb, g->alpha, g->beta, (int)g->epilogue};
  for (int64_t z = 0; z < g->batch; z += 65535)
    for (int64_t y = 0; y < g->m; y += (int64_t)65535 * TILE) { /* a grid's second and third size end at 65535 */
      int64_t rows = g->m - y < (int64_t)65535 * TILE ? g->m - y : (int64_t)65535 * TILE;
      p.m = rows;
      dim3 grid((unsigned)((g->n + TILE - 1) / TILE), (unsigned)((rows + TILE - 1) / TILE),
                (unsigned)(g->batch - z < 65535 ? g->batch - z : 65535));
      const T *a = (const T *)g->a + z * g->sa + (g->ta ? y : y * g->lda);
      const T *b = (const T *)g->b + z * g->sb;
      R *c = (R *)g->c + z * g->sc + y * g->ldc;
      PLC_LAUNCH((plain<T, R, A>), grid, 256, 0, p, a, b, c, (const R *)g->bias);
    }
  return PL_OK;
}

extern "C" PlStatus plc_gemm_plain(const PlcGemm *g) {
  if (g->m == 0 || g->n == 0 || g->batch == 0) return PL_OK;
  bool narrow = g->result == PL_F32;
  switch (g->dtype) {
  case PL_F32: return launch<float, float, float>(g);
  case PL_F64: return launch<double, double, double>(g);
  case PL_F16: return narrow ? launch<plc_f16, float, float>(g) : launch<plc_f16, plc_f16, float>(g);
  case PL_BF16: return narrow ? launch<plc_bf16, float, float>(g) : launch<plc_bf16, plc_bf16, float>(g);
  default: return plc_gemm_integer(g);
  }
}

extern "C" PlStatus plc_gemm(const PlcGemm *g) {
  bool done = false;
  if (g->m == 0 || g->n == 0 || g->batch == 0) return PL_OK;
  if (plc_gemm_library && g->k > 0) PL_TRY(plc_gemm_library(g, &done));
  return done ? PL_OK : plc_gemm_plain(g);
}
