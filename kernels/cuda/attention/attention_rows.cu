/* SPDX-License-Identifier: MIT
 * See attention.h: one block of threads a row. Formulas: attention.cu. */
#include "kernels/cuda/attention/attention.h"

namespace {

enum { ROW_THREADS = 128 };

PLC_DEV int64_t mask_at(const PlcMask &m, int64_t batch, int64_t row) {
  int64_t at = row * m.rows;
  for (int d = m.nbatch - 1; d >= 0; d--) {
    at += batch % m.size[d] * m.step[d];
    batch /= m.size[d];
  }
  return at;
}

/* What the mask adds to a score: 0 or -inf where it is bool. */
template <typename A> PLC_DEV A mask_value(const PlcMask &m, int64_t at) {
  switch (m.dtype) {
  case PL_BOOL: return ((const uint8_t *)m.data)[at] ? (A)0 : -(A)INFINITY;
  case PL_F32: return (A)((const float *)m.data)[at];
  case PL_F64: return (A)((const double *)m.data)[at];
  case PL_F16: return (A)plc_widen(((const plc_f16 *)m.data)[at]);
  default: return (A)plc_widen(((const plc_bf16 *)m.data)[at]);
  }
}

/* 0 or keep for score j of row `row` (of all batches). Four scores share a block of words. */
PLC_DEV double kept(const PlcScores &r, int64_t row, int64_t j) {
  uint32_t word[4];
  plk_philox(r.state[0], r.state[r.state_step], r.state[2 * r.state_step] + (uint64_t)row * (uint64_t)((r.S + 3) / 4) + (uint64_t)(j / 4),
             word);
  const uint32_t low = j % 2 ? word[1] : word[0], high = j % 2 ? word[3] : word[2]; /* an index would put them into local memory */
  return (j % 4 < 2 ? low : high) < r.cut ? 0.0 : r.keep;
}

PLC_DEV int64_t seen(const PlcScores &r, int64_t i) { return r.causal && i + 1 < r.S ? i + 1 : r.S; }

template <typename A> PLC_DEV A score(const PlcScores &r, const A *z, int64_t j, int64_t at) {
  return r.mask.data ? z[j] + mask_value<A>(r.mask, at + j * r.mask.cols) : z[j];
}

/* One block a row: p[j] = shares times what dropout keeps, in T; sums[2 row] = largest score, sum of exponentials. z and p
 * may be the same memory. A row that sees nothing becomes zeros with sum 1. */
template <typename T, typename A> __global__ void shares(PlcScores r, const A *z, T *p, A *sums) {
  __shared__ A room[32];
  const int64_t row = blockIdx.x, i = row % r.L, batch = r.first + row / r.L, n = seen(r, i);
  const int64_t at = r.mask.data ? mask_at(r.mask, batch, i) : 0;
  z += row * r.S;
  p += row * r.S;
  A top = -(A)INFINITY, sum = 0;
  for (int64_t j = threadIdx.x; j < n; j += ROW_THREADS) top = plc_max()(top, score(r, z, j, at));
  top = plc_block_all(top, plc_max(), -(A)INFINITY, room);
  const bool blind = top == -(A)INFINITY;
  for (int64_t j = threadIdx.x; j < n; j += ROW_THREADS) sum += blind ? (A)0 : exp(score(r, z, j, at) - top);
  sum = plc_block_all(sum, plc_sum(), (A)0, room);
  if (blind) sum = 1;
  for (int64_t j = threadIdx.x; j < r.S; j += ROW_THREADS) {
    A v = j < n && !blind ? exp(score(r, z, j, at) - top) / sum : (A)0;
    if (r.cut && j < n) v *= (A)kept(r, batch * r.L + i, j);
    p[j] = plc_type<T>::store(v);
  }
  if (threadIdx.x == 0 && sums) {
    sums[2 * (batch * r.L + i)] = top;
    sums[2 * (batch * r.L + i) + 1] = sum;
  }
}

/* One block a row: from scores z and dy vᵀ = t: p <- P d, g <- P (d t - Σ P d t), both in T. */
template <typename T, typename A> __global__ void slopes(PlcScores r, const A *z, const A *t, T *p, T *g) {
  __shared__ A room[32];
  const int64_t row = blockIdx.x, i = row % r.L, batch = r.first + row / r.L, n = seen(r, i);
  const int64_t at = r.mask.data ? mask_at(r.mask, batch, i) : 0;
  const A *kept_sums = (const A *)r.sums + (batch * r.L + i) * r.sums_row;
  const A top = kept_sums[0], sum = kept_sums[r.sums_col];
  const bool blind = top == -(A)INFINITY;
  z += row * r.S;
  t += row * r.S;
  p += row * r.S;
  g += row * r.S;
  A mean = 0;
  for (int64_t j = threadIdx.x; j < n && !blind; j += ROW_THREADS) {
    const A d = r.cut ? (A)kept(r, batch * r.L + i, j) : (A)1;
    mean += exp(score(r, z, j, at) - top) / sum * (d * t[j]);
  }
  mean = plc_block_all(mean, plc_sum(), (A)0, room);
  for (int64_t j = threadIdx.x; j < r.S; j += ROW_THREADS) {
    const bool on = j < n && !blind;
    const A share = on ? exp(score(r, z, j, at) - top) / sum : (A)0;
    const A d = r.cut && on ? (A)kept(r, batch * r.L + i, j) : (A)1, slope = on ? share * (d * t[j] - mean) : (A)0;
    p[j] = plc_type<T>::store(share * d);
    g[j] = plc_type<T>::store(slope);
  }
}

template <typename A> __global__ void keep_rows(PlcScores r, int64_t n, A *out) {
  for (PLC_EACH(i, n)) out[i] = (A)kept(r, i / r.S, i % r.S);
}

__global__ void note_state(uint64_t *state, PlcRng rng) {
  const PlkRng now = plc_now(rng);
  if (threadIdx.x == 0) state[0] = now.seed, state[1] = now.stream, state[2] = now.offset;
}

} // namespace

template <typename T, typename A> static PlStatus launch_shares(const PlcScores *r, int64_t n, const void *z, void *p, void *sums) {
  PLC_LAUNCH((shares<T, A>), (unsigned)n, ROW_THREADS, 0, *r, (const A *)z, (T *)p, (A *)sums);
  return PL_OK;
}
PlStatus plc_attention_shares(const PlcScores *r, int64_t n, int dtype, const void *z, void *p, void *sums) {
  PLC_FLOATS(dtype, T, "attention", return (launch_shares<T, typename plc_type<T>::math>(r, n, z, p, sums)));
}

template <typename T, typename A>
static PlStatus launch_slopes(const PlcScores *r, int64_t n, const void *z, const void *t, void *p, void *g) {
  PLC_LAUNCH((slopes<T, A>), (unsigned)n, ROW_THREADS, 0, *r, (const A *)z, (const A *)t, (T *)p, (T *)g);
  return PL_OK;
}
PlStatus plc_attention_slopes(const PlcScores *r, int64_t n, int dtype, const void *z, const void *t, void *p, void *g) {
  PLC_FLOATS(dtype, T, "attention_bwd", return (launch_slopes<T, typename plc_type<T>::math>(r, n, z, t, p, g)));
}

PlStatus plc_attention_kept(const PlcScores *r, int64_t n, int dtype, void *out) {
  if (dtype == PL_F64) PLC_LAUNCH(keep_rows<double>, plc_grid(n, 1), PLC_BLOCK, 0, *r, n, (double *)out);
  else PLC_LAUNCH(keep_rows<float>, plc_grid(n, 1), PLC_BLOCK, 0, *r, n, (float *)out);
  return PL_OK;
}

PlStatus plc_attention_state(void *state, const PlkRng *rng) {
  PLC_LAUNCH(note_state, 1, 32, 0, (uint64_t *)state, plc_rng(rng));
  return PL_OK;
}
