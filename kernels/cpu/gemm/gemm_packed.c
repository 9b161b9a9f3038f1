/* SPDX-License-Identifier: MIT
 * Our own matrix product on one thread: packed panels and a register tile in vector code,
 * one instance of gemm_micro.h for each scalar type and ISA level. Serves builds without
 * BLAS libraries, small shapes (a library need not be opened for them), and f64 where it
 * is ahead. */
#include <string.h>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemm_panels.h"

enum { GM_KC = 256, GM_NC = 256, GM_SOON = 4 };

#if defined(__clang__)
#define GM_UNROLL _Pragma("unroll")
#else
#define GM_UNROLL _Pragma("GCC unroll 16")
#endif

/* Any processor: 16-byte vectors, multiply and add rounded apart. */
#define GM_T    float
#define GM_VL   4
#define GM_N(x) x##_base_f32
#define GM_TARGET
#define GM_SET1(s)      ((vec_base_f32){(s), (s), (s), (s)})
#define GM_FMA(a, b, c) ((a) * (b) + (c))
#define GM_MR           6
#define GM_M2           4
#define GM_M3           3
#define GM_M4           2
#include "kernels/cpu/gemm/gemm_micro.h"

#define GM_T    double
#define GM_VL   2
#define GM_N(x) x##_base_f64
#define GM_TARGET
#define GM_SET1(s)      ((vec_base_f64){(s), (s)})
#define GM_FMA(a, b, c) ((a) * (b) + (c))
#define GM_MR           6
#define GM_M2           4
#define GM_M3           3
#define GM_M4           2
#include "kernels/cpu/gemm/gemm_micro.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define GM_T            float
#define GM_VL           8
#define GM_N(x)         x##_v3_f32
#define GM_TARGET       __attribute__((target("avx2,fma")))
#define GM_SET1(s)      ((vec_v3_f32)_mm256_set1_ps(s))
#define GM_FMA(a, b, c) ((vec_v3_f32)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define GM_MR           6
#define GM_M2           4
#define GM_M3           3
#define GM_M4           2
#include "kernels/cpu/gemm/gemm_micro.h"

#define GM_T            double
#define GM_VL           4
#define GM_N(x)         x##_v3_f64
#define GM_TARGET       __attribute__((target("avx2,fma")))
#define GM_SET1(s)      ((vec_v3_f64)_mm256_set1_pd(s))
#define GM_FMA(a, b, c) ((vec_v3_f64)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define GM_MR           6
#define GM_M2           4
#define GM_M3           3
#define GM_M4           2
#include "kernels/cpu/gemm/gemm_micro.h"

/* 32 rows of k floats, k a multiple of 4, as k rows of 32: loads put four floats of four rows side by side, which are then turned lane by
 * lane. */
static __attribute__((target("avx512f,avx512dq"))) void turn_v4_f32(int64_t k, const void *from, int64_t step, void *to) {
  const float *src = from;
  float *dst = to;
  for (int64_t p = 0; p < k; p += 4, src += 4, dst += 4 * 32)
    for (int half = 0; half < 2; half++) {
      __m512 q[4];
      GM_UNROLL
      for (int i = 0; i < 4; i++) {
        const float *row = src + (16 * half + i) * step;
        q[i] = _mm512_castps128_ps512(_mm_loadu_ps(row));
        q[i] = _mm512_mask_broadcast_f32x4(q[i], 0x00f0, _mm_loadu_ps(row + 4 * step));
        q[i] = _mm512_mask_broadcast_f32x4(q[i], 0x0f00, _mm_loadu_ps(row + 8 * step));
        q[i] = _mm512_mask_broadcast_f32x4(q[i], 0xf000, _mm_loadu_ps(row + 12 * step));
      }
      const __m512 a = _mm512_unpacklo_ps(q[0], q[1]), b = _mm512_unpackhi_ps(q[0], q[1]);
      const __m512 c = _mm512_unpacklo_ps(q[2], q[3]), d = _mm512_unpackhi_ps(q[2], q[3]);
      float *at = dst + 16 * half;
      _mm512_storeu_ps(at, _mm512_shuffle_ps(a, c, 0x44));
      _mm512_storeu_ps(at + 32, _mm512_shuffle_ps(a, c, 0xee));
      _mm512_storeu_ps(at + 64, _mm512_shuffle_ps(b, d, 0x44));
      _mm512_storeu_ps(at + 96, _mm512_shuffle_ps(b, d, 0xee));
    }
}

#define GM_TURN           turn_v4_f32
#define GM_T              float
#define GM_VL             16
#define GM_MASK           __mmask16
#define GM_LOAD(m, p)     ((vec_v4_f32)_mm512_maskz_loadu_ps(m, p))
#define GM_STORE(p, m, v) _mm512_mask_storeu_ps(p, m, (__m512)(v))
#define GM_N(x)           x##_v4_f32
#define GM_TARGET         __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define GM_SET1(s)        ((vec_v4_f32)_mm512_set1_ps(s))
#define GM_FMA(a, b, c)   ((vec_v4_f32)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define GM_MR             14
#define GM_M2             8
#define GM_M3             4
#define GM_M4             2
#include "kernels/cpu/gemm/gemm_micro.h"

#define GM_T              double
#define GM_VL             8
#define GM_MASK           __mmask8
#define GM_LOAD(m, p)     ((vec_v4_f64)_mm512_maskz_loadu_pd(m, p))
#define GM_STORE(p, m, v) _mm512_mask_storeu_pd(p, m, (__m512d)(v))
#define GM_N(x)           x##_v4_f64
#define GM_TARGET         __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
#define GM_SET1(s)        ((vec_v4_f64)_mm512_set1_pd(s))
#define GM_FMA(a, b, c)   ((vec_v4_f64)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define GM_MR             14
#define GM_M2             8
#define GM_M3             4
#define GM_M4             2
#include "kernels/cpu/gemm/gemm_micro.h"
#endif

typedef void (*Body)(const PlkGemm *, void *);

static Body body_find(const PlkGemm *g) {
  const PlDtype d = g->dtype;
  const char level = plk_isa()[1]; /* "v2" "v3" "v4" "generic" */
#if defined(__x86_64__)
  const bool narrow = g->N <= (d == PL_F64 ? 8 : 16) && g->K <= GM_KC && !g->tb;
  if (level == '4' && narrow) return d == PL_F64 ? narrow_v4_f64 : narrow_v4_f32;
  if (level == '4') return d == PL_F64 ? gemm_v4_f64 : gemm_v4_f32;
  if (level == '3') return d == PL_F64 ? gemm_v3_f64 : gemm_v3_f32;
#endif
  (void)level;
  return d == PL_F64 ? gemm_base_f64 : gemm_base_f32;
}

PlStatus plk_gemm_plain(const PlkGemm *g) {
  if (g->M == 0 || g->N == 0 || g->K == 0) return PL_OK; /* the caller scales C */
  const int64_t kc = g->K < GM_KC ? g->K : GM_KC;
  const int64_t nc = g->N < GM_NC ? (g->N + 31) / 32 * 32 : GM_NC;
  const size_t need = (size_t)(kc * (nc + 16)) * pl_dtype_size(g->dtype);
  char small[8192] __attribute__((aligned(64)));
  void *work = small;
  if (need > sizeof small) PL_TRY(plk_scratch(need, &work));
  body_find(g)(g, work);
  if (work != small) plk_scratch_free(work);
  return PL_OK;
}

const PlkGemmCode *plk_gemm_code(PlDtype d) {
  const char level = plk_isa()[1];
#if defined(__x86_64__)
  if (level == '4') return d == PL_F64 ? &code_v4_f64 : &code_v4_f32;
  if (level == '3') return d == PL_F64 ? &code_v3_f64 : &code_v3_f32;
#endif
  (void)level;
  return d == PL_F64 ? &code_base_f64 : &code_base_f32;
}
