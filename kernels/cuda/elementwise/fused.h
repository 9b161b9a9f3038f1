/* SPDX-License-Identifier: MIT
 * What generated kernels (libs/fused_source.c) are written in; compiled by NVRTC on the user's machine, where only the
 * headers that the plug-in carries are found, and in tests by a C++ compiler. Formulas are those of the elementwise
 * family. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_FUSED_H
#define PL_KERNELS_CUDA_ELEMENTWISE_FUSED_H

#include "kernels/cuda/elementwise/elementwise_math.h"

enum { FUSED_ARGS = 24, FUSED_PARAMS = 16 };

struct FusedArgs {
  int64_t numel, cols;
  plc_div by_cols;   /* for numel below 2^31 */
  bool wide, packed; /* packed: every pack of N is in one row and at a multiple of its size */
  int width;         /* threads of a row, in groups of rows */
  void *at[FUSED_ARGS];
  double number[FUSED_ARGS];
  EwParams p[FUSED_PARAMS];
};

/* One pack of N items from e on of a dense array, or of the row or column of element e. */
template <typename E, int N, typename M> PLC_DEV void fused_full(const FusedArgs &a, int k, int64_t e, int valid, M *v) {
  const E *p = (const E *)a.at[k] + e;
  if (a.packed && valid == N) {
    const plc_pack<E, N> pack = *(const plc_pack<E, N> *)p;
    for (int j = 0; j < N; j++) v[j] = plc_type<E>::load(pack.v[j]);
  } else
    for (int j = 0; j < N; j++) v[j] = plc_type<E>::load(p[j < valid ? j : valid - 1]);
}
PLC_DEV int64_t fused_row_of(const FusedArgs &a, int64_t e) { return a.wide ? e / a.cols : (int64_t)plc_quotient((uint32_t)e, a.by_cols); }
template <typename E, int N, typename M> PLC_DEV void fused_row(const FusedArgs &a, int k, int64_t e, int valid, M *v) {
  const E *p = (const E *)a.at[k];
  if (a.packed && valid == N) {
    const plc_pack<E, N> pack = *(const plc_pack<E, N> *)(p + (e - fused_row_of(a, e) * a.cols));
    for (int j = 0; j < N; j++) v[j] = plc_type<E>::load(pack.v[j]);
  } else
    for (int j = 0; j < N; j++) {
      const int64_t i = e + (j < valid ? j : valid - 1);
      v[j] = plc_type<E>::load(p[i - fused_row_of(a, i) * a.cols]);
    }
}
template <typename E, int N, typename M> PLC_DEV void fused_col(const FusedArgs &a, int k, int64_t e, int valid, M *v) {
  const E *p = (const E *)a.at[k];
  if (a.packed && valid == N) {
    const M x = plc_type<E>::load(p[fused_row_of(a, e)]);
    for (int j = 0; j < N; j++) v[j] = x;
  } else
    for (int j = 0; j < N; j++) v[j] = plc_type<E>::load(p[fused_row_of(a, e + (j < valid ? j : valid - 1))]);
}
template <typename E, int N, typename M> PLC_DEV void fused_one(const FusedArgs &a, int k, M *v) {
  const M x = plc_type<E>::load(*(const E *)a.at[k]);
  for (int j = 0; j < N; j++) v[j] = x;
}
/* A number of the host takes the dtype of the operation before it takes part. */
template <typename E, int N, typename M> PLC_DEV void fused_number(const FusedArgs &a, int k, M *v) {
  const M x = plc_type<E>::load(plc_type<E>::store((M)a.number[k]));
  for (int j = 0; j < N; j++) v[j] = x;
}
template <typename E, int N, typename M> PLC_DEV void fused_store(const FusedArgs &a, int k, int64_t e, int valid, const M *v) {
  E *p = (E *)a.at[k] + e;
  if (a.packed && valid == N) {
    plc_pack<E, N> pack;
    for (int j = 0; j < N; j++) pack.v[j] = plc_type<E>::store(v[j]);
    *(plc_pack<E, N> *)p = pack;
  } else
    for (int j = 0; j < N; j++)
      if (j < valid) p[j] = plc_type<E>::store(v[j]);
}
/* What a value is after it was written down and read again. */
template <typename E, int N, typename M> PLC_DEV void fused_round(M *v) {
  for (int j = 0; j < N; j++) v[j] = plc_type<E>::load(plc_type<E>::store(v[j]));
}

#ifdef PLC_EMULATED
#define FUSED_KERNEL static void
#else
#define FUSED_KERNEL extern "C" __global__ void
#endif
/* ---- groups of rows: thread t of a row's takes elements t, t + width, …, as the kernels of such operations do. A source that is made
 * for rows of one length says COLS, their WIDTH and how many elements a thread KEEPs in registers: it reads them at once and
 * has them in every walk; else these are 0. ---- */

template <typename E, typename M> PLC_DEV void fused_at(const FusedArgs &a, int k, int64_t e, M *v) {
  v[0] = plc_type<E>::load(((const E *)a.at[k])[e]);
}
template <typename E, typename M> PLC_DEV void fused_put(const FusedArgs &a, int k, int64_t e, const M *v) {
  ((E *)a.at[k])[e] = plc_type<E>::store(v[0]);
}
/* v joined over the threads of a row, in all of them. */
template <int WIDTH, typename T, typename Op> PLC_DEV T fused_all(const FusedArgs &a, T v, Op op, T zero, T *room) {
  return (WIDTH ? WIDTH : a.width) == 32 ? plc_warp_all(v, op) : plc_block_all(v, op, zero, room);
}

/* Rows of 32 threads are eight in a block, others have one of their own. */
#define FUSED_ROWS                                                                            \
  const int width = WIDTH ? WIDTH : a.width, team = WIDTH > 32 ? 1 : (int)blockDim.x / width; \
  const int lane = WIDTH > 32 ? (int)threadIdx.x : (int)threadIdx.x % width;                  \
  const int64_t cols = COLS ? COLS : a.cols, rows = a.numel / cols;                           \
  (void)width, (void)lane;                                                                    \
  for (int64_t row = (int64_t)blockIdx.x * team + (WIDTH > 32 ? 0 : (int)threadIdx.x / width); row < rows; row += (int64_t)gridDim.x * team)
#define FUSED_ROW for (int64_t i = lane; i < cols; i += width)
#if defined(__CUDACC__)
#define FUSED_UNROLL _Pragma("unroll")
#else
#define FUSED_UNROLL
#endif
#define FUSED_KEPT                                                                     \
  FUSED_UNROLL for (int k = 0; k < KEEP; k++) if (const int i = k * (int)WIDTH + lane; \
                                                  (int)COLS % ((int)WIDTH + !WIDTH) == 0 || k + 1 < KEEP || i < (int)COLS)

#define FUSED_UNTIL(n) for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i * N < (n); i += (int64_t)gridDim.x * blockDim.x)

#endif
