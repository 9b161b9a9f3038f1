/* SPDX-License-Identifier: MIT
 * ew_same and ew_test: every floating elementwise op for float (HALF: of halves, to be rounded to one) and for double. For the eager kernels (elementwise_float.h)
 * and for generated ones (fused.h). */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_MATH_H
#define PL_KERNELS_CUDA_ELEMENTWISE_ELEMENTWISE_MATH_H

#include "kernels/cuda/elementwise/half_math.h"
#include "kernels/cuda/elementwise/math.h"
extern "C" {
#include "kernels/elementwise_codes.h"
}

/* Which kernel has an op. Arithmetic of one or two operands needs few registers, three operands more; functions are
 * unrolled over a pack; slow ops are not. */
enum { EW_ARITHMETIC, EW_FUNCTION, EW_TERNARY, EW_SLOW_OP };
static constexpr int ew_kind(int code) {
  switch (code) {
#define SLOW1(NAME, E) case PLK_EW_##NAME:
#define SLOW2(NAME, E) case PLK_EW_##NAME:
#include "kernels/cuda/elementwise/elementwise_slow.h"
#undef SLOW1
#undef SLOW2
  case PLK_EW_ROUND: return EW_SLOW_OP;
  case PLK_EW_CLAMP_T:
  case PLK_EW_ADDCMUL:
  case PLK_EW_ADDCDIV:
  case PLK_EW_LERP: return EW_TERNARY;
  default: return code < PLK_EW_BITWISE_AND ? EW_ARITHMETIC : EW_FUNCTION;
  }
}

#define LARGEST    F(vm_largest)
#define SELU_ALPHA K(1.6732632423543772848170429916717)
#define SELU_SCALE K(1.0507009873554804934193349852946)
#ifndef SIXTH
#define SIXTH K(1.0f / 6.0f)
#endif
#define T    float
#define F(f) f##_f32
#define K(c) ((float)(c))
#include "kernels/cuda/elementwise/elementwise_cases.h"
#undef T
#undef F
#undef K
#define T    double
#define F(f) f##_f64
#define K(c) ((double)(c))
#include "kernels/cuda/elementwise/elementwise_cases.h"
#undef T
#undef F
#undef K

#endif
