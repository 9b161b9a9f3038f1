/* SPDX-License-Identifier: MIT
 * Inner loops of attention, compiled once per ISA level: a small matrix product that keeps four rows by up to
 * four vectors in registers, and the exponentials. Sums run in fixed lanes and a fixed tree whatever the level. */
#include "kernels/cpu/attention/attention.h"

#include <math.h>

#include "kernels/base.h"
#include "kernels/cpu/isa/level.h"
#include "kernels/cpu/isa/reduce/parts.h"
#include "kernels/cpu/vmath/vmath.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define AT_T       float
#define AT_N       16
#define AT_NAME(x) x##_f32
#define AT_EXP     vm_exp_f32
#define AT_TAIL    plk_tail_f32
#define AT_MAX     plk_part_max_f32
#if defined(__AVX512F__) /* contraction is off: the fused form is asked for where the level has it in this width */
#define AT_FMA(a, x, c) ((V_f32)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)(x), (__m512)(c)))
#else
#define AT_FMA(a, x, c) ((c) + (a) * (x))
#endif
#include "kernels/cpu/isa/attention_body.h"

#define AT_T       double
#define AT_N       8
#define AT_NAME(x) x##_f64
#define AT_EXP     vm_exp_f64
#define AT_TAIL    plk_tail_f64
#define AT_MAX     plk_part_max_f64
#if defined(__AVX512F__)
#define AT_FMA(a, x, c) ((V_f64)_mm512_fmadd_pd(_mm512_set1_pd(a), (__m512d)(x), (__m512d)(c)))
#else
#define AT_FMA(a, x, c) ((c) + (a) * (x))
#endif
#include "kernels/cpu/isa/attention_body.h"

extern const PlkAttentionLoops PLK_ISA_NAME(plk_attention);
const PlkAttentionLoops PLK_ISA_NAME(plk_attention) = {{mm4_f32, mm1_f32, dots_f32, softmax_f32, again_f32, slope_f32, drop_f32},
                                                       {mm4_f64, mm1_f64, dots_f64, softmax_f64, again_f64, slope_f64, drop_f64}};
