/* SPDX-License-Identifier: MIT
 * Products of integers: one thread a result, sums in 64 bits, so what does not fit wraps as on the CPU. Rare and small;
 * there is no library to leave it to. R: the result's type, T or, of i8, i32. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/operand.h"

struct IntProduct {
  int64_t m, n, k, batch, lda, ldb, ldc, sa, sb, sc;
  bool ta, tb, relu;
  int64_t alpha, beta;
};

template <typename T, typename R> __global__ void int_product(IntProduct p, const T *a, const T *b, R *c, const R *bias) {
  for (PLC_EACH(i, p.batch * p.m * p.n)) {
    const int64_t col = i % p.n, row = i / p.n % p.m, z = i / (p.n * p.m);
    const T *x = a + z * p.sa + (p.ta ? row : row * p.lda), *w = b + z * p.sb + (p.tb ? col * p.ldb : col);
    const int64_t dx = p.ta ? p.lda : 1, dw = p.tb ? 1 : p.ldb;
    uint64_t sum = 0;
    for (int64_t k = 0; k < p.k; k++) sum += (uint64_t)(int64_t)x[k * dx] * (uint64_t)(int64_t)w[k * dw];
    R *at = c + z * p.sc + row * p.ldc + col;
    sum *= (uint64_t)p.alpha;
    if (p.beta != 0) sum += (uint64_t)p.beta * (uint64_t)(int64_t)*at;
    if (bias) sum += (uint64_t)(int64_t)bias[col];
    const R v = (R)sum;
    *at = p.relu && !(v > 0) ? (R)0 : v;
  }
}

template <typename T, typename R = T> static PlStatus launch(const PlcGemm *g) {
  const IntProduct p = {g->m,
                        g->n,
                        g->k,
                        g->batch,
                        g->lda,
                        g->ldb,
                        g->ldc,
                        g->sa,
                        g->sb,
                        g->sc,
                        g->ta,
                        g->tb,
                        g->epilogue == PLC_EPI_BIAS_RELU,
                        (int64_t)g->alpha,
                        (int64_t)g->beta};
  PLC_LAUNCH((int_product<T, R>), plc_grid(g->batch * g->m * g->n, 1), PLC_BLOCK, 0, p, (const T *)g->a, (const T *)g->b, (R *)g->c,
             (const R *)(g->epilogue == PLC_EPI_NONE ? NULL : g->bias));
  return PL_OK;
}

extern "C" PlStatus plc_gemm_integer(const PlcGemm *g) {
  switch (g->dtype) {
  case PL_I8: return g->result == PL_I32 ? launch<int8_t, int32_t>(g) : launch<int8_t>(g);
  case PL_I16: return launch<int16_t>(g);
  case PL_I32: return launch<int32_t>(g);
  case PL_I64: return launch<int64_t>(g);
  case PL_U8: return launch<uint8_t>(g);
  default: PL_FAIL(PL_ERR_DTYPE, "matmul: no product of %s", pl_dtype_name(g->dtype));
  }
}
