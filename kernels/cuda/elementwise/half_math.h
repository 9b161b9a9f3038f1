/* SPDX-License-Identifier: MIT
 * Activations of f16 and bf16. A result is rounded to 11 or 8 bits, so one of 5e-6 relative error will do (a hundredth of a step of
 * f16), which the multiprocessor's own 2^x and 1/x give: in f32's formulas these kernels wait for arithmetic, not for memory.
 * Infinities, NaN and numbers too large or small come out as from kernels/elementwise_formulas.h. */
#ifndef PL_KERNELS_CUDA_ELEMENTWISE_HALF_MATH_H
#define PL_KERNELS_CUDA_ELEMENTWISE_HALF_MATH_H

#include "kernels/cuda/device.h"
extern "C" {
#include "kernels/elementwise_codes.h"
}

#ifdef PLC_EMULATED
PLC_DEV float plc_exp2_short(float x) { return exp2f(x); }
PLC_DEV float plc_reciprocal_short(float x) { return 1.0f / x; }
#else
/* Both to about an ulp; results and operands below 2^-126 are 0. */
PLC_DEV float plc_exp2_short(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PLC_DEV float plc_reciprocal_short(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
/* 4^x for x <= 0: as a square it also has what is below 2^-126. */
PLC_DEV float plc_exp4_short(float x) {
  const float h = plc_exp2_short(x);
  return h * h;
}

/* The normal distribution's tail behind |x| is e^(-x^2/2) q, q = erfcx(|x| / sqrt 2) / 2: a polynomial in t = 1 / (1 + 0.31 |x|) (the
 * form of Hastings 1955; fitted here: relative minimax by Lawson's weights on [0, 15], 4.7e-6). q has the sign of -x. */
struct plc_tail {
  float e, q;
};
PLC_DEV plc_tail plc_normal_tail(float x) {
  const float t = plc_reciprocal_short(fmaf(0.31f, fabsf(x), 1.0f));
  float q = fmaf(-0.0739291854f, t, 0.180450478f);
  q = fmaf(q, t, 0.015744563f);
  q = fmaf(q, t, 0.133429863f);
  q = fmaf(q, t, 0.120441257f);
  q = fmaf(q, t, 0.123860704f) * t;
  return plc_tail{plc_exp4_short(-0.36067376f * x * x), x > 0.0f ? -q : q};
}
/* s = 1 / (1 + e^-x) and rest = 1 - s, either without cancellation. */
struct plc_logistic {
  float s, rest;
};
PLC_DEV plc_logistic plc_logistic_short(float x) {
  const float z = plc_exp4_short(-0.72134752f * fabsf(x)), d = plc_reciprocal_short(1.0f + z), zd = z * d;
  return x < 0.0f ? plc_logistic{zd, d} : plc_logistic{d, zd};
}
PLC_DEV float plc_gelu_inner2(float x) { return 1.5957691216f * fmaf(0.044715f * x * x, x, x); }

/* Which ops have a formula here. */
static constexpr bool ew_for_halves(int code) {
  return code == PLK_EW_SIGMOID || code == PLK_EW_SILU || code == PLK_EW_SILU_BWD || code == PLK_EW_GELU || code == PLK_EW_GELU_BWD ||
         code == PLK_EW_GELU_TANH || code == PLK_EW_GELU_TANH_BWD;
}
template <int CODE> PLC_DEV float ew_half(float x) {
  if constexpr (CODE == PLK_EW_GELU) {
    const plc_tail n = plc_normal_tail(x);
    return x * fmaf(n.e, n.q, x > 0.0f ? 1.0f : 0.0f);
  } else if constexpr (CODE == PLK_EW_SIGMOID) return plc_logistic_short(x).s;
  else if constexpr (CODE == PLK_EW_SILU) return x * plc_logistic_short(x).s;
  else if constexpr (CODE == PLK_EW_GELU_TANH) return x * plc_logistic_short(plc_gelu_inner2(x)).s; /* (1 + tanh u) / 2 = s(2 u) */
  else return x;
}
template <int CODE> PLC_DEV float ew_half_bwd(float dy, float x) {
  if constexpr (CODE == PLK_EW_GELU_BWD) {
    const plc_tail n = plc_normal_tail(x);
    return dy * fmaf(n.e, fmaf(0.39894228f, x, n.q), x > 0.0f ? 1.0f : 0.0f);
  } else if constexpr (CODE == PLK_EW_SILU_BWD) {
    const plc_logistic l = plc_logistic_short(x);
    return dy * (l.s * fmaf(x, l.rest, 1.0f));
  } else if constexpr (CODE == PLK_EW_GELU_TANH_BWD) {
    const plc_logistic l = plc_logistic_short(plc_gelu_inner2(x));
    const float near = fminf(fmaxf(x, -1e4f), 1e4f); /* no infinity beside a factor of 0 */
    return dy * fmaf(near * (l.s * l.rest), 1.5957691216f * fmaf(0.134145f, near * near, 1.0f), l.s);
  } else return dy;
}

#endif
