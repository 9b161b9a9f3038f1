/* SPDX-License-Identifier: MIT
 * A matrix times one or a few vectors, compiled once per ISA level: rows times the vectors, or rows that the vectors weigh.
 * Halves are widened in registers and give the bits of the same product of f32. For one vector both ways add in one order, so that a matrix and its transpose give the same bits: in lanes of T over 4096 terms, then in double.
 * matvec_body.h has the loops. */
#include "kernels/cpu/gemm/matvec.h"
#include "kernels/convert.h"
#include "kernels/cpu/isa/lanes.h"
#include "kernels/cpu/isa/level.h"

/* What fits the registers: rows times one vector; rows and vectors of a tile of sums, rows that are added to sums in
 * memory. */
#if defined(__AVX512F__)
enum { MATVEC_BYTES = 64, MATVEC_DOTS = 4, MATVEC_ROWS = 4, MATVEC_TILE = 6, MATVEC_TERMS = 8 };
#define MATVEC_WIDE(...) __VA_ARGS__
#else
#if defined(__AVX2__)
enum { MATVEC_BYTES = 32, MATVEC_DOTS = 2 };
#else
enum { MATVEC_BYTES = 16, MATVEC_DOTS = 1 };
#endif
enum { MATVEC_ROWS = 4, MATVEC_TILE = 2, MATVEC_TERMS = 4 };
#define MATVEC_WIDE(...)
#endif
#if defined(__clang__)
#define MATVEC_UNROLL _Pragma("unroll")
#else
#define MATVEC_UNROLL _Pragma("GCC unroll 8")
#endif

typedef float Matvec_f32 __attribute__((vector_size(MATVEC_BYTES), aligned(4), may_alias));
typedef double Matvec_f64 __attribute__((vector_size(MATVEC_BYTES), aligned(8), may_alias));
enum { HALVES = MATVEC_BYTES / 4 }; /* as many as become one vector */

/* ---- halves as floats ------------------------------------------------------------------------------------------ */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

PLK_LANE __m256i halves(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
PLK_LANE __m256i halves_part(const uint16_t *p, int64_t m) { return _mm256_maskz_loadu_epi16((__mmask16)((1u << m) - 1), p); }
PLK_LANE Matvec_f32 widen_bf16(__m256i h) { return (Matvec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16); }
PLK_LANE Matvec_f32 widen_f16(__m256i h) { return (Matvec_f32)_mm512_cvtph_ps(h); }
PLK_LANE Matvec_f32 mload_bf16(const uint16_t *p) { return widen_bf16(halves(p)); }
PLK_LANE Matvec_f32 mpart_bf16(const uint16_t *p, int64_t m) { return widen_bf16(halves_part(p, m)); }
PLK_LANE Matvec_f32 mload_f16(const uint16_t *p) { return widen_f16(halves(p)); }
PLK_LANE Matvec_f32 mpart_f16(const uint16_t *p, int64_t m) { return widen_f16(halves_part(p, m)); }
PLK_LANE Matvec_f32 matvec_tail_f32(const float *p, int64_t k, float fill) { return plk_tail_f32(p, k, fill); }
PLK_LANE Matvec_f64 matvec_tail_f64(const double *p, int64_t k, double fill) { return plk_tail_f64(p, k, fill); }

#else

#if defined(__AVX2__) && defined(__F16C__)
PLK_LANE Matvec_f32 mload_bf16(const uint16_t *p) {
  return (Matvec_f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
}
PLK_LANE Matvec_f32 mload_f16(const uint16_t *p) { return (Matvec_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
#else
#define LOAD_OF(name)                                                  \
  PLK_LANE Matvec_f32 mload_##name(const uint16_t *p) {                \
    Matvec_f32 v = {0}; /* at -O2 gcc does not see that all are set */ \
    for (int i = 0; i < HALVES; i++) v[i] = plk_##name##_to_f32(p[i]); \
    return v;                                                          \
  }
LOAD_OF(bf16)
LOAD_OF(f16)
#endif
#define PART_OF(name)                                              \
  PLK_LANE Matvec_f32 mpart_##name(const uint16_t *p, int64_t m) { \
    uint16_t t[HALVES] = {0};                                      \
    memcpy(t, p, (size_t)m * sizeof *t);                           \
    return mload_##name(t);                                        \
  }
PART_OF(bf16)
PART_OF(f16)

#define TAIL_OF(T, sfx)                                                                   \
  PLK_LANE Matvec_##sfx matvec_tail_##sfx(const T *p, int64_t k, T fill) {                \
    T t[MATVEC_BYTES / sizeof(T)];                                                        \
    for (int i = 0; i < (int)(MATVEC_BYTES / sizeof(T)); i++) t[i] = i < k ? p[i] : fill; \
    return *(Matvec_##sfx *)t;                                                            \
  }
TAIL_OF(float, f32)
TAIL_OF(double, f64)

#endif

/* ---- sums of lanes --------------------------------------------------------------------------------------------- */

/* y[r] += the sum of s[r], a tree over its lanes. */
PLK_LANE void sums_f32(const Matvec_f32 *s, const int rows, double *y) {
#if defined(__AVX512F__)
  if (rows == 4) { /* four trees at once */
    const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps((__m512)s[0], (__m512)s[1]), _mm512_unpackhi_ps((__m512)s[0], (__m512)s[1]));
    const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps((__m512)s[2], (__m512)s[3]), _mm512_unpackhi_ps((__m512)s[2], (__m512)s[3]));
    const __m512 c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(c), 1)));
    const __m128 e = _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
    _mm256_storeu_pd(y, _mm256_add_pd(_mm256_loadu_pd(y), _mm256_cvtps_pd(e)));
    return;
  }
#endif
  enum { QUADS = MATVEC_BYTES / 16 };
  for (int r = 0; r < rows; r++) { /* the same additions: lanes of four, then these */
    const Matvec_f32 v = s[r];
    float q[QUADS];
    for (int k = 0; k < QUADS; k++) q[k] = (v[4 * k] + v[4 * k + 2]) + (v[4 * k + 1] + v[4 * k + 3]);
    for (int d = QUADS / 2; d > 0; d /= 2)
      for (int k = 0; k < d; k++) q[k] += q[k + d];
    y[r] += (double)q[0];
  }
}
PLK_LANE void sums_f64(const Matvec_f64 *s, const int rows, double *y) {
  for (int r = 0; r < rows; r++) {
    const Matvec_f64 v = s[r];
    double q[MATVEC_BYTES / 8];
    for (int k = 0; k < MATVEC_BYTES / 8; k++) q[k] = v[k];
    for (int d = MATVEC_BYTES / 16; d > 0; d /= 2)
      for (int k = 0; k < d; k++) q[k] += q[k + d];
    y[r] += q[0];
  }
}

#define T           float
#define S           float
#define SFX         f32
#define TSFX        f32
#define MLOAD(p)    (*(const Matvec_f32 *)(p))
#define MPART(p, m) matvec_tail_f32(p, m, 0)
#define SUMS        sums_f32
#include "kernels/cpu/isa/matvec_body.h"

#define T           double
#define S           double
#define SFX         f64
#define TSFX        f64
#define MLOAD(p)    (*(const Matvec_f64 *)(p))
#define MPART(p, m) matvec_tail_f64(p, m, 0)
#define SUMS        sums_f64
#include "kernels/cpu/isa/matvec_body.h"

#define T           float
#define S           uint16_t
#define SFX         f16
#define TSFX        f32
#define MLOAD(p)    mload_f16(p)
#define MPART(p, m) mpart_f16(p, m)
#define SUMS        sums_f32
#include "kernels/cpu/isa/matvec_body.h"

#define T           float
#define S           uint16_t
#define SFX         bf16
#define TSFX        f32
#define MLOAD(p)    mload_bf16(p)
#define MPART(p, m) mpart_bf16(p, m)
#define SUMS        sums_f32
#include "kernels/cpu/isa/matvec_body.h"

#define LOOPS(sfx) \
  { dots_##sfx, weigh_##sfx, dots_few_##sfx, weigh_few_##sfx }
extern const PlkMatvecTable PLK_ISA_NAME(plk_matvec_table);
const PlkMatvecTable PLK_ISA_NAME(plk_matvec_table) = {{LOOPS(f32), LOOPS(f64), LOOPS(f16), LOOPS(bf16)}};
