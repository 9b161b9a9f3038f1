/* SPDX-License-Identifier: MIT
 * Elementwise ops of one floating dtype: arithmetic, functions, slow functions, and tests, a kernel each. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_FLOAT_H
#define PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_FLOAT_H

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/elementwise_math.h"

template <typename E, int KIND> struct EwFloat {
  typedef E T;
  typedef E R;
  static const int N = 16 / (int)sizeof(E), IN = KIND == EW_TERNARY ? 3 : 2, BUSY = KIND < EW_TERNARY ? 4 : 2;
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &g, const M *a, const M *b, const M *c, M *r) {
    ew_same<N, KIND, sizeof(E) == 2>(g.code, a, b, c, r, g.p);
  }
};
template <typename E> struct EwTest {
  typedef E T;
  typedef uint8_t R;
  static const int N = 16 / (int)sizeof(E), IN = 2, BUSY = 4;
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &g, const M *a, const M *b, const M *, uint8_t *r) {
    ew_test<N>(g.code, a, b, r);
  }
};

/* nextafter of halves is by their bits: no number of f32 knows which halves are next to each other. */
template <typename E> PLC_DEV uint16_t ew_bits(float v) {
  const E e = plc_type<E>::store(v);
  uint16_t h;
  memcpy(&h, &e, sizeof h);
  return h;
}
template <typename E> struct EwAfter {
  typedef E T;
  typedef E R;
  static const int N = 16 / (int)sizeof(E), IN = 2, BUSY = 4;
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &, const M *a, const M *b, const M *, M *r) {
    for (int k = 0; k < N; k++) {
      const uint16_t h = sf_half_after(ew_bits<E>((float)a[k]), ew_bits<E>((float)b[k]), ew_bits<E>(INFINITY));
      E e;
      memcpy(&e, &h, sizeof h);
      r[k] = plc_type<E>::load(e);
    }
  }
};

template <typename E> static PlStatus ew_floating(const PlkCall *call) {
  if constexpr (sizeof(E) == 2) {
    if (call->code == PLK_EW_NEXTAFTER) return ew_launch<EwAfter<E>>(call);
  }
  if (plc_ew_tests(call->code)) return ew_launch<EwTest<E>>(call);
  switch (ew_kind(call->code)) {
  case EW_ARITHMETIC: return ew_launch<EwFloat<E, EW_ARITHMETIC>>(call);
  case EW_TERNARY: return ew_launch<EwFloat<E, EW_TERNARY>>(call);
  case EW_FUNCTION: return ew_launch<EwFloat<E, EW_FUNCTION>>(call);
  default: return ew_launch<EwFloat<E, EW_SLOW_OP>>(call);
  }
}

#endif
