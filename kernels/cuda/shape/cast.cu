/* SPDX-License-Identifier: MIT
 * Conversions between dtypes. Integer to integer wraps, float to integer saturates (NaN becomes 0), anything to bool asks
 * whether it differs from 0. Between f32, f16 and bf16 in packs; else one element at a time through f64 or i64. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/elementwise/elementwise.h"

/* Four elements a pack: neighbours read and write without gaps on both sides. A thread has four packs under way. */
enum { FOUR = 4, CAST_EACH = FOUR * FOUR };
template <typename From, typename To> __global__ void __launch_bounds__(PLC_BLOCK) cast_flat(int64_t n, const From *x, To *y) {
  const int64_t each = (int64_t)PLC_BLOCK * CAST_EACH;
  for (int64_t b = blockIdx.x * each; b < n; b += gridDim.x * each) {
    if (b + each > n) {
      for (int64_t i = b + threadIdx.x; i < n; i += PLC_BLOCK) y[i] = plc_type<To>::store((float)plc_type<From>::load(x[i]));
      return;
    }
    const int64_t e = b + (int64_t)threadIdx.x * FOUR;
    plc_pack<From, FOUR> a[FOUR];
    PLC_UNROLL for (int k = 0; k < FOUR; k++) a[k] = *(const plc_pack<From, FOUR> *)(x + e + k * PLC_BLOCK * FOUR);
    PLC_UNROLL for (int k = 0; k < FOUR; k++) {
      plc_pack<To, FOUR> r;
      PLC_UNROLL for (int j = 0; j < FOUR; j++) r.v[j] = plc_type<To>::store((float)plc_type<From>::load(a[k].v[j]));
      *(plc_pack<To, FOUR> *)(y + e + k * PLC_BLOCK * FOUR) = r;
    }
  }
}

template <typename From> __global__ void cast_any(plc_layout<2> l, const From *x, double nf, int64_t ni, void *y, int to) {
  typedef typename plc_type<From>::math M;
  const bool whole = !ew_is_float<M>::value;
  for (PLC_EACH(i, l.numel)) {
    int64_t at[2];
    plc_offsets<2>(l, i, at);
    M v = x ? plc_type<From>::load(x[at[1]]) : whole ? (M)ni : (M)nf;
    plc_put_any(y, to, at[0], whole, whole ? 0.0 : (double)v, whole ? (int64_t)v : 0);
  }
}

template <typename From, typename To> static PlStatus flat(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  PLC_LAUNCH((cast_flat<From, To>), plc_grid(y->numel, CAST_EACH), PLC_BLOCK, 0, y->numel, (const From *)x->data, (To *)y->data);
  return PL_OK;
}

static bool even(const PlArray *a) { return a->contiguous && (uintptr_t)a->data % 16 == 0; }

PlStatus plc_ew_cast(const PlkCall *call) {
  const PlArray *x = call->in[0], *y = call->out[0];
  if (!plc_on_host(x) && even(x) && even(y) && x->numel == y->numel) {
    switch (x->dtype * PL_NDTYPE + y->dtype) {
    case PL_F32 *PL_NDTYPE + PL_F16: return flat<float, plc_f16>(call);
    case PL_F32 *PL_NDTYPE + PL_BF16: return flat<float, plc_bf16>(call);
    case PL_F16 *PL_NDTYPE + PL_F32: return flat<plc_f16, float>(call);
    case PL_BF16 *PL_NDTYPE + PL_F32: return flat<plc_bf16, float>(call);
    default: break;
    }
  }
  const PlArray *arr[2] = {y, x};
  bool number = plc_on_host(x);
  double nf = number ? plc_number_f(x) : 0;
  int64_t ni = number ? plc_number_i(x) : 0;
  if (number) arr[1] = NULL;
  plc_layout<2> l;
  plc_layout_of<2>(&l, arr);
  PLC_TYPES(
      x->dtype, T, call->name,
      PLC_LAUNCH(cast_any<T>, plc_grid(l.numel, 1), PLC_BLOCK, 0, l, (const T *)(number ? NULL : x->data), nf, ni, y->data, (int)y->dtype));
  return PL_OK;
}
