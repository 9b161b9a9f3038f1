/* SPDX-License-Identifier: MIT
 * Elementwise ops of one floating dtype: arithmetic, everything else, and tests, a kernel each. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_FLOAT_H
#define PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_FLOAT_H

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/elementwise_math.h"

template <typename E, bool LIGHT> struct EwFloat {
  typedef E T;
  typedef E R;
  static const int N = 16 / (int)sizeof(E);
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &g, const M *a, const M *b, const M *c, M *r) {
    ew_same<N, LIGHT>(g.code, a, b, c, r, g.p);
  }
};
template <typename E> struct EwTest {
  typedef E T;
  typedef uint8_t R;
  static const int N = 16 / (int)sizeof(E);
  template <typename M> static __device__ __forceinline__ void run(const EwArgs &g, const M *a, const M *b, const M *, uint8_t *r) {
    ew_test<N>(g.code, a, b, r);
  }
};

template <typename E> static PlStatus ew_floating(const PlkCall *call) {
  if (plc_ew_tests(call->code)) return ew_launch<EwTest<E>>(call);
  return call->code < PLK_EW_BITWISE_AND ? ew_launch<EwFloat<E, true>>(call) : ew_launch<EwFloat<E, false>>(call);
}

#endif
