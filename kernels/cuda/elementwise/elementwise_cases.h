/* SPDX-License-Identifier: MIT
 * The cases of a floating elementwise op for one arithmetic type; no include guard, elementwise.h takes it for float and for
 * double. The formulas are those of kernels/elementwise_formulas.h; what that file leaves to others follows here. */
#define PARAM(k, otherwise) const T p##k = (p.set >> k) & 1 ? (T)p.f[k] : (T)(otherwise);
#if defined(__CUDACC__)
#define EW_UNROLL(how) _Pragma(how)
#else
#define EW_UNROLL(how)
#endif
/* clang-format off */
#define EW_EACH EW_UNROLL("unroll") for (int k = 0; k < N; k++)
#define EW_SLOW EW_UNROLL("unroll 1") for (int k = 0; k < N; k++)
#define EW_CASE(KIND, NAME, PARAMS, ...)                \
  case PLK_EW_##NAME:                                   \
    if constexpr (EW == (KIND)) { PARAMS __VA_ARGS__ }  \
    break;
#define EW_UNROLLED(NAME) (PLK_EW_##NAME < PLK_EW_BITWISE_AND ? EW_ARITHMETIC : EW_FUNCTION)
/* of halves by half_math.h, what has a formula there */
#define EW_OR(NAME, H, E) if constexpr (HALF && ew_for_halves(PLK_EW_##NAME)) { r[k] = (T)(H); } else { r[k] = (T)(E); }
#define U(NAME, PARAMS, E) EW_CASE(EW_UNROLLED(NAME), NAME, PARAMS, EW_EACH { const T x = a[k]; EW_OR(NAME, ew_half<PLK_EW_##NAME>((float)x), E) })
#define B(NAME, PARAMS, E) EW_CASE(EW_UNROLLED(NAME), NAME, PARAMS, EW_EACH { const T x = a[k], y = b[k]; r[k] = (T)(E); })
#define G(NAME, PARAMS, E) EW_CASE(EW_UNROLLED(NAME), NAME, PARAMS, EW_EACH { const T dy = a[k], x = b[k]; EW_OR(NAME, (ew_half_bwd<PLK_EW_##NAME>((float)dy, (float)x)), E) })
#define T3(NAME, PARAMS, E) EW_CASE(EW_TERNARY, NAME, PARAMS, EW_EACH { const T x = a[k], y = b[k], z = c[k]; r[k] = (T)(E); })
/* On copies: what a loop indexes is in local memory, which the operands of a generated kernel's other ops need not be. */
#define EW_COPIED(...) { T xs[N], ys[N], rs[N]; EW_EACH { xs[k] = a[k], ys[k] = b[k]; } __VA_ARGS__ EW_EACH { r[k] = rs[k]; } }
#define SLOW1(NAME, E) EW_CASE(EW_SLOW_OP, NAME, , EW_COPIED(EW_SLOW { const T x = xs[k]; rs[k] = (T)(E); }))
#define SLOW2(NAME, E) EW_CASE(EW_SLOW_OP, NAME, , EW_COPIED(EW_SLOW { const T x = xs[k], y = ys[k]; rs[k] = (T)(E); }))
#define P1(NAME, E)
#define P2(NAME, E)

template <int N, int EW, bool HALF> static __device__ __forceinline__ void ew_same(int code, const T *a, const T *b, const T *c, T *r, const EwParams &p) {
  switch (code) {
#include "kernels/elementwise_formulas.h"
    EW_CASE(EW_SLOW_OP, ROUND, PARAM(0, 0), {
      const T s = p0 == 0 ? K(1) : (T)pow(10.0, fabs((double)p0));
      EW_EACH { r[k] = p0 == 0 ? F(vm_rint)(a[k]) : p0 < 0 ? F(vm_rint)(a[k] / s) * s : F(vm_rint)(a[k] * s) / s; }
    })
#include "kernels/cuda/elementwise/elementwise_slow.h"
  default: break;
  }
}

#undef U
#undef B
#undef G
#undef T3
#undef P1
#undef P2
#define U(NAME, PARAMS, E)
#define B(NAME, PARAMS, E)
#define G(NAME, PARAMS, E)
#define T3(NAME, PARAMS, E)
#define P1(NAME, E) case PLK_EW_##NAME: EW_EACH { const T x = a[k]; r[k] = (uint8_t)(E); } break;
#define P2(NAME, E) case PLK_EW_##NAME: EW_EACH { const T x = a[k], y = b[k]; r[k] = (uint8_t)(E); } break;
template <int N> static __device__ __forceinline__ void ew_test(int code, const T *a, const T *b, uint8_t *r) {
  switch (code) {
#include "kernels/elementwise_formulas.h"
    P1(SIGNBIT, plc_signbit(x))
  default: break;
  }
}
#undef U
#undef B
#undef G
#undef T3
#undef P1
#undef P2
#undef SLOW1
#undef SLOW2
#undef PARAM
#undef EW_CASE
#undef EW_UNROLLED
#undef EW_OR
#undef EW_EACH
#undef EW_UNROLL
#undef EW_SLOW
#undef EW_COPIED
