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
/* Below BITWISE_AND is arithmetic: a kernel of its own with few registers. */
#define EW_CASE(NAME, PARAMS, ...)                                      \
  case PLK_EW_##NAME:                                                   \
    if constexpr (LIGHT == (PLK_EW_##NAME < PLK_EW_BITWISE_AND)) { PARAMS __VA_ARGS__ } \
    break;
#define U(NAME, PARAMS, E) EW_CASE(NAME, PARAMS, EW_EACH { const T x = a[k]; r[k] = (T)(E); })
#define B(NAME, PARAMS, E) EW_CASE(NAME, PARAMS, EW_EACH { const T x = a[k], y = b[k]; r[k] = (T)(E); })
#define G(NAME, PARAMS, E) EW_CASE(NAME, PARAMS, EW_EACH { const T dy = a[k], x = b[k]; r[k] = (T)(E); })
#define T3(NAME, PARAMS, E) EW_CASE(NAME, PARAMS, EW_EACH { const T x = a[k], y = b[k], z = c[k]; r[k] = (T)(E); })
#define SLOW1(NAME, E) EW_CASE(NAME, , EW_SLOW { const T x = a[k]; r[k] = (T)(E); })
#define SLOW2(NAME, E) EW_CASE(NAME, , EW_SLOW { const T x = a[k], y = b[k]; r[k] = (T)(E); })
#define P1(NAME, E)
#define P2(NAME, E)

template <int N, bool LIGHT> static __device__ __forceinline__ void ew_same(int code, const T *a, const T *b, const T *c, T *r, const EwParams &p) {
  switch (code) {
#include "kernels/elementwise_formulas.h"
    EW_CASE(ROUND, PARAM(0, 0), {
      const T s = p0 == 0 ? K(1) : (T)pow(10.0, fabs((double)p0));
      EW_EACH { r[k] = p0 == 0 ? F(vm_rint)(a[k]) : p0 < 0 ? F(vm_rint)(a[k] / s) * s : F(vm_rint)(a[k] * s) / s; }
    })
    SLOW2(POW, pow(x, y))
    SLOW2(FMOD, fmod(x, y))
    SLOW2(REMAINDER, plc_remainder(x, y))
    SLOW2(FLOOR_DIVIDE, plc_floor_divide(x, y))
    SLOW1(EXP2, exp2(x))
    SLOW1(LOG2, log2(x))
    SLOW1(LOG10, log10(x))
    SLOW1(LOG1P, log1p(x))
    SLOW1(SIN, sin(x))
    SLOW1(COS, cos(x))
    SLOW1(TAN, tan(x))
    SLOW1(SINC, sf_sinc((double)x))
    SLOW1(ASIN, asin(x))
    SLOW1(ACOS, acos(x))
    SLOW1(ATAN, atan(x))
    SLOW1(SINH, sinh(x))
    SLOW1(COSH, cosh(x))
    SLOW1(ASINH, asinh(x))
    SLOW1(ACOSH, acosh(x))
    SLOW1(ATANH, atanh(x))
    SLOW1(ERFC, erfc(x))
    SLOW1(ERFINV, sf_erfinv((double)x))
    SLOW1(LGAMMA, lgamma(x))
    SLOW1(DIGAMMA, sf_digamma((double)x))
    SLOW2(ATAN2, atan2(x, y))
    SLOW2(HYPOT, hypot(x, y))
    SLOW1(I0, sf_i0((double)x))
    SLOW1(I0E, sf_i0e((double)x))
    SLOW1(I1, sf_i1((double)x))
    SLOW1(I1E, sf_i1e((double)x))
    SLOW1(ERFCX, sf_erfcx((double)x))
    SLOW1(NDTRI, sf_ndtri((double)x))
    SLOW2(GAMMAINC, sf_gammainc((double)x, (double)y))
    SLOW2(GAMMAINCC, sf_gammaincc((double)x, (double)y))
    SLOW2(NEXTAFTER, plc_nextafter(x, y))
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
#undef EW_EACH
#undef EW_UNROLL
#undef EW_SLOW
