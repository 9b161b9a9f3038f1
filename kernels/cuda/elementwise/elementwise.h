/* SPDX-License-Identifier: MIT
 * The elementwise engine, for the files that instantiate it by dtype. A kernel takes 16 bytes of each operand at once: flat
 * where all operands are contiguous or are one number, else by offsets (plc_layout), a pack at a time where the
 * innermost dimension allows it. The op is a uniform switch inside the kernel. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_H
#define PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_H

#include "kernels/cuda/device.h"
extern "C" {
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
}

enum { EW_OPERANDS = EW_IN + 1 };

/* Operand 0 is the output. number: a host number; one: a single element on the device; vec: packs are aligned. */
struct EwArgs {
  void *at[EW_OPERANDS];
  double f[EW_OPERANDS];
  int64_t i[EW_OPERANDS];
  unsigned number, one, vec;
  bool packed; /* strided: the innermost dimension goes in packs */
  int nin, code;
  EwParams p;
  PlcFlag *flag;
  uint64_t name;
};

template <typename T> struct ew_is_float { static const bool value = false; };
template <> struct ew_is_float<float> { static const bool value = true; };
template <> struct ew_is_float<double> { static const bool value = true; };

/* 16 bytes of an operand as words: taken apart only behind the last load, so that the loads of all operands are under way
 * together (halves in a register each would be taken apart where they arrive). */
struct alignas(16) ew_words {
  uint32_t w[4];
};

/* Items of operand k as they are in memory. The tail of a flat array repeats its last item. */
template <typename T, int N> PLC_DEV void ew_fetch(const EwArgs &a, int k, int64_t at, int64_t step, int valid, ew_words *raw) {
  static_assert(sizeof(T) * N == sizeof *raw, "a pack is 16 bytes");
  if (k > a.nin || ((a.number >> k) & 1)) return;
  const T *p = (const T *)a.at[k];
  if (((a.vec >> k) & 1) && step == 1 && valid == N) {
    *raw = *(const ew_words *)(p + at);
    return;
  }
  plc_pack<T, N> items;
  PLC_UNROLL for (int j = 0; j < N; j++) items.v[j] = p[at + (j < valid ? j : valid - 1) * step];
  memcpy(raw, &items, sizeof *raw);
}
/* The same in arithmetic. */
template <typename T, int N, typename M> PLC_DEV void ew_widen(const EwArgs &a, int k, const ew_words &raw, M *v) {
  if (k > a.nin) return;
  plc_pack<T, N> items;
  memcpy(&items, &raw, sizeof raw);
  const bool number = (a.number >> k) & 1;
  const M x = ew_is_float<M>::value ? (M)a.f[k] : (M)a.i[k];
  PLC_UNROLL for (int j = 0; j < N; j++) v[j] = number ? x : plc_type<T>::load(items.v[j]);
}
template <typename R, int N, typename M> PLC_DEV void ew_store(const EwArgs &a, int64_t at, int64_t step, int valid, const M *v) {
  R *p = (R *)a.at[0];
  if ((a.vec & 1) && step == 1 && valid == N) {
    plc_pack<R, N> pack;
    for (int j = 0; j < N; j++) pack.v[j] = plc_type<R>::store(v[j]);
    *(plc_pack<R, N> *)(p + at) = pack;
    return;
  }
  for (int j = 0; j < N; j++)
    if (j < valid) p[at + j * step] = plc_type<R>::store(v[j]);
}

/* Op: struct with element type T, result type R, at most IN operands, blocks that a multiprocessor holds at least (BUSY: four
 * of them have 32 KiB of operands under way, which keeps the memory of an H200 busy), and run(args, a, b, c, r) on N values each. */
template <typename Op> __global__ void __launch_bounds__(PLC_BLOCK, Op::BUSY) ew_flat(EwArgs a, int64_t n) {
  typedef typename plc_type<typename Op::T>::math M;
  typedef typename plc_type<typename Op::R>::math MR;
  const int N = Op::N;
  const int64_t packs = (n + N - 1) / N, stride = (int64_t)gridDim.x * blockDim.x;
  const bool two = Op::IN == 2 && a.nin == 1; /* the registers of a second operand take the next pack of the only one */
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += two ? 2 * stride : stride) {
    ew_words raw[Op::IN];
    int valid = n - i * N < N ? (int)(n - i * N) : N;
    PLC_UNROLL for (int k = 1; k <= Op::IN; k++)
        ew_fetch<typename Op::T, N>(a, k, (a.one >> k) & 1 ? 0 : i * N, (a.one >> k) & 1 ? 0 : 1, valid, &raw[k - 1]);
    if constexpr (Op::IN == 2) {
      const int64_t e = (i + stride) * N;
      if (two && e < n)
        ew_fetch<typename Op::T, N>(a, 1, (a.one >> 1) & 1 ? 0 : e, (a.one >> 1) & 1 ? 0 : 1, n - e < N ? (int)(n - e) : N, &raw[1]);
    }
    PLC_ROLLED for (int64_t e = i * N; e < n && e <= (i + (two ? stride : 0)) * N; e += stride * N) {
      M x[3][N]; /* those that no op has are never read */
      MR r[N];
      valid = n - e < N ? (int)(n - e) : N;
      PLC_UNROLL for (int k = 1; k <= Op::IN; k++) ew_widen<typename Op::T, N>(a, k, raw[k - 1], x[k - 1]);
      Op::run(a, x[0], x[1], x[2], r);
      ew_store<typename Op::R, N>(a, e, 1, valid, r);
      raw[0] = raw[Op::IN == 2];
    }
  }
}

template <typename Op> __global__ void __launch_bounds__(PLC_BLOCK, 2) ew_strided(EwArgs a, plc_layout<EW_OPERANDS> l) {
  typedef typename plc_type<typename Op::T>::math M;
  typedef typename plc_type<typename Op::R>::math MR;
  const int N = Op::N;
  for (PLC_EACH(i, a.packed ? l.numel / N : l.numel)) {
    int64_t at[EW_OPERANDS];
    plc_offsets<EW_OPERANDS>(l, a.packed ? i * N : i, at);
    ew_words raw[Op::IN];
    M x[3][N]; /* those that no op has are never read */
    MR r[N];
    int valid = a.packed ? N : 1;
    PLC_UNROLL for (int k = 1; k <= Op::IN; k++) ew_fetch<typename Op::T, N>(a, k, at[k], l.stride[k][0], valid, &raw[k - 1]);
    PLC_UNROLL for (int k = 1; k <= Op::IN; k++) ew_widen<typename Op::T, N>(a, k, raw[k - 1], x[k - 1]);
    Op::run(a, x[0], x[1], x[2], r);
    ew_store<typename Op::R, N>(a, at[0], l.stride[0][0], valid, r);
  }
}

/* ---- launching ------------------------------------------------------------------------------------------------------ */

bool plc_ew_params(EwArgs *a, const PlkCall *call); /* elementwise.cu */

template <typename Op> static PlStatus ew_launch(const PlkCall *call) {
  typedef typename Op::T T;
  const int N = Op::N;
  const PlArray *arr[EW_OPERANDS] = {call->out[0], NULL, NULL, NULL};
  EwArgs a;
  memset(&a, 0, sizeof a);
  if (call->out[0]->numel == 0) return PL_OK;
  plc_ew_params(&a, call);
  bool flat = call->out[0]->contiguous;
  a.at[0] = call->out[0]->data;
  for (int k = 1; k <= a.nin; k++) {
    const PlArray *x = call->in[k - 1];
    if ((a.number >> k) & 1) continue;
    a.at[k] = x->data;
    if (x->numel == 1) a.one |= 1u << k;
    else {
      flat = flat && x->contiguous && x->numel == call->out[0]->numel;
      arr[k] = x;
    }
  }
  for (int k = 0; k <= a.nin; k++)
    if (((uintptr_t)a.at[k] % ((k ? sizeof(T) : sizeof(typename Op::R)) * N)) == 0) a.vec |= 1u << k;
  int64_t n = call->out[0]->numel;
  if (flat) {
    PLC_LAUNCH(ew_flat<Op>, plc_grid(n, N), PLC_BLOCK, 0, a, n);
    return PL_OK;
  }
  plc_layout<EW_OPERANDS> l;
  plc_layout_of<EW_OPERANDS>(&l, arr);
  a.packed = l.ndim > 0 && l.size[0] % N == 0;
  for (int k = 0; k <= a.nin && a.packed; k++) {
    if (!arr[k]) continue;
    if (l.stride[k][0] > 1 || (k == 0 && l.stride[k][0] != 1)) a.packed = false;
    for (int d = 1; d < l.ndim; d++)
      if (l.stride[k][d] % N) a.vec &= ~(1u << k);
  }
  PLC_LAUNCH(ew_strided<Op>, plc_grid(n, a.packed ? N : 1), PLC_BLOCK, 0, a, l);
  return PL_OK;
}

/* By dtype, each in a file of its own: they take long to compile. */
PlStatus plc_ew_f32(const PlkCall *call);
PlStatus plc_ew_f64(const PlkCall *call);
PlStatus plc_ew_f16(const PlkCall *call);
PlStatus plc_ew_bf16(const PlkCall *call);
PlStatus plc_ew_int(const PlkCall *call);
PlStatus plc_ew_cast(const PlkCall *call);
PlStatus plc_ew_move(const PlkCall *call); /* copy, where */

static inline PlStatus plc_ew_undefined(const PlkCall *call) {
  PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name, pl_dtype_name((PlDtype)call->in[0]->dtype));
}
/* Does the code give bool? */
static inline bool plc_ew_tests(int code) { return code >= PLK_EW_EQ && code <= PLK_EW_SIGNBIT; }

#endif
