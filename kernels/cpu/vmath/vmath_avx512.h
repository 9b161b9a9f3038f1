/* SPDX-License-Identifier: MIT
 * Whole vectors of functions for which AVX-512 has an instruction that compilers do not find (vmath.h includes this), with the bits of
 * the scalar code. vm_<f>_whole_<dtype>(out, in, n) computes the last n / lanes whole vectors and returns how many elements at the
 * start it leaves. */
#ifndef PL_KERNELS_CPU_VMATH_VMATH_AVX512_H
#define PL_KERNELS_CPU_VMATH_VMATH_AVX512_H

#if defined(__AVX512F__)
#include <immintrin.h>

/* scalef multiplies by 2^n and rounds once, as vm_scale_f32 does with two factors; what is 0 is masked, not computed. */
VM int64_t vm_exp_whole_f32(float *out, const float *in, int64_t n) {
#define K(c) _mm512_set1_ps(c)
#define FMA  _mm512_fmadd_ps
  const __m512i most = _mm512_set1_epi32(0x4b400000 + 129);
  for (int64_t i = n % 16; i < n; i += 16) {
    const __m512 x = _mm512_loadu_ps(in + i);
    const __mmask16 some = _mm512_cmp_ps_mask(x, K(-104.0f), _CMP_NLT_UQ);
    const __m512 c = _mm512_maskz_mov_ps(some, x), u = FMA(c, K((float)VM_LOG2E), K(VM_RINT_F32));
    const __m512 m = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_min_epi32(_mm512_castps_si512(u), most)), K(VM_RINT_F32));
    const __m512 r = FMA(m, K(-VM_LN2_LO_F32), FMA(m, K(-VM_LN2_HI_F32), c));
    __m512 q = FMA(K(0.00139262504f), r, K(0.00836323295f));
    q = FMA(q, r, K(0.0416665524f));
    q = FMA(q, r, K(0.166665763f));
    q = FMA(q, r, K(0.5f));
    const __m512 p = _mm512_add_ps(FMA(_mm512_mul_ps(r, r), q, r), K(1.0f));
    _mm512_storeu_ps(out + i, _mm512_maskz_scalef_ps(some, p, m));
  }
#undef K
#undef FMA
  return n % 16;
}
VM int64_t vm_exp_whole_f64(double *out, const double *in, int64_t n) {
#define K(c) _mm512_set1_pd(c)
#define FMA  _mm512_fmadd_pd
  for (int64_t i = n % 8; i < n; i += 8) {
    const __m512d x = _mm512_loadu_pd(in + i);
    const __mmask8 some = _mm512_cmp_pd_mask(x, K(-746.0), _CMP_NLT_UQ);
    const __m512d c = _mm512_maskz_mov_pd(some, x), u = FMA(c, K(VM_LOG2E), K(VM_RINT_F64));
    const __m512d m = _mm512_sub_pd(_mm512_min_pd(K(VM_RINT_F64 + 1025.0), u), K(VM_RINT_F64));
    const __m512d r = FMA(m, K(-VM_LN2_LO_F64), FMA(m, K(-VM_LN2_HI_F64), c));
    __m512d q = FMA(K(2.0914755325893202e-09), r, K(2.5105312729622103e-08));
    q = FMA(q, r, K(2.7557273478718582e-07));
    q = FMA(q, r, K(2.7557255170000888e-06));
    q = FMA(q, r, K(2.4801587325677461e-05));
    q = FMA(q, r, K(0.00019841269875002279));
    q = FMA(q, r, K(0.0013888888888883711));
    q = FMA(q, r, K(0.0083333333333260838));
    q = FMA(q, r, K(0.041666666666666671));
    q = FMA(q, r, K(0.16666666666666671));
    q = FMA(q, r, K(0.5));
    const __m512d p = _mm512_add_pd(FMA(_mm512_mul_pd(r, r), q, r), K(1.0));
    _mm512_storeu_pd(out + i, _mm512_maskz_scalef_pd(some, p, m));
  }
#undef K
#undef FMA
  return n % 8;
}
#endif

#endif
