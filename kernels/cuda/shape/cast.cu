/* SPDX-License-Identifier: MIT
 * Conversions between dtypes. Integer to integer wraps, float to integer saturates (NaN becomes 0), anything to bool asks
 * whether it differs from 0. Between f32, f16 and bf16 in packs; else one element at a time through f64 or i64. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/elementwise/elementwise.h"

template <typename From, typename To> __global__ void cast_flat(int64_t n, const From *x, To *y) {
  const int N = 8;
  for (PLC_EACH(i, (n + N - 1) / N)) {
    int64_t e = i * N;
    if (e + N <= n) {
      plc_pack<From, N / 2> a[2];
      plc_pack<To, N / 2> r[2];
      for (int h = 0; h < 2; h++) {
        a[h] = *(const plc_pack<From, N / 2> *)(x + e + h * (N / 2));
        for (int k = 0; k < N / 2; k++) r[h].v[k] = plc_type<To>::store((float)plc_type<From>::load(a[h].v[k]));
        *(plc_pack<To, N / 2> *)(y + e + h * (N / 2)) = r[h];
      }
    } else
      for (int64_t k = e; k < n; k++) y[k] = plc_type<To>::store((float)plc_type<From>::load(x[k]));
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
  PLC_LAUNCH((cast_flat<From, To>), plc_grid(y->numel, 8), PLC_BLOCK, 0, y->numel, (const From *)x->data, (To *)y->data);
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
