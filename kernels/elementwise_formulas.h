/* SPDX-License-Identifier: MIT
 * The hot float ops, one expression each; no include guard, float.h expands it several times.
 * U unary, B binary, T3 ternary, P1/P2 predicates, G gradient of (dy, x). F(f) is f for the element type,
 * K(c) a constant, p0 … parameters. Comparisons combine with | and &, which vectorize. WHOLE_VECTORS(f): where a level has
 * vector code of its own for f, it comes first. */
#ifndef WHOLE_VECTORS
#define WHOLE_VECTORS(f)
#endif
/* clang-format off */

/* arithmetic */
B(ADD, , x + y)
B(SUB, , x - y)
B(MUL, , x * y)
B(DIV, , x / y)
B(ADD_ALPHA, PARAM(0, 1), F(vm_fma)(p0, y, x))
U(NEG, , -x)
U(ABS, , F(vm_abs)(x))
U(SIGN, , K(x > 0) - K(x < 0))
U(SQUARE, , x * x)
U(ONE_MINUS_SQUARE, , (1 - x) * (1 + x))
B(TRUNC_DIVIDE, , F(vm_trunc)(x / y))
B(MAXIMUM, , ((x > y) | (x != x)) ? x : y)
B(MINIMUM, , ((x < y) | (x != x)) ? x : y)
B(FMAX, , ((x >= y) | (y != y)) ? x : y)
B(FMIN, , ((x <= y) | (y != y)) ? x : y)
B(COPYSIGN, , F(vm_copysign)(x, y))
U(CLAMP, PARAM(0, -INFINITY) PARAM(1, INFINITY),
  F(clamp)(F(clamp_nan)(x, p0, p1), p0, p1))
T3(CLAMP_T, , F(clamp)(F(clamp_nan)(x, y, z), y, z))
T3(ADDCMUL, PARAM(0, 1), F(vm_fma)(p0 * y, z, x))
T3(ADDCDIV, PARAM(0, 1), x + p0 * (y / z))
T3(LERP, , z < K(0.5) ? F(vm_fma)(z, y - x, x) : F(vm_fma)(-(y - x), K(1) - z, y))
U(FLOOR, , F(vm_floor)(x))
U(CEIL, , F(vm_ceil)(x))
U(TRUNC, , F(vm_trunc)(x))
U(FRAC, , x - F(vm_trunc)(x))
U(NAN_TO_NUM, PARAM(0, 0) PARAM(1, LARGEST) PARAM(2, -LARGEST),
  x != x ? p0 : x > LARGEST ? p1 : x < -LARGEST ? p2 : x)
U(SQRT, , F(vm_sqrt)(x))
U(RSQRT, , K(1) / F(vm_sqrt)(x))
U(RECIPROCAL, , K(1) / x)

/* predicates */
P2(EQ, x == y)
P2(NE, x != y)
P2(LT, x < y)
P2(LE, x <= y)
P2(GT, x > y)
P2(GE, x >= y)
P2(LOGICAL_AND, (x != 0) & (y != 0))
P2(LOGICAL_OR, (x != 0) | (y != 0))
P2(LOGICAL_XOR, (x != 0) ^ (y != 0))
P1(LOGICAL_NOT, x == 0)
P1(ISNAN, x != x)
P1(ISINF, F(vm_abs)(x) > LARGEST)
P1(ISFINITE, F(vm_abs)(x) <= LARGEST)

/* functions */
U(EXP, WHOLE_VECTORS(vm_exp_whole), F(vm_exp)(x))
U(EXPM1, , F(vm_expm1)(x))
U(LOG, , F(vm_log)(x))
U(TANH, , F(vm_tanh)(x))
U(SIGMOID, , F(vm_sigmoid)(x))
U(ERF, , F(vm_erf)(x))
/* Without eps, 0 and 1 give infinities and the outside NaN, by log itself. */
U(LOGIT, PARAM(0, -1), F(logit)(x, p0))
B(LOGADDEXP, , F(logaddexp)(x, y))
B(XLOGY, , ((x == 0) & (y == y)) ? K(0) : x * F(vm_log)(y))

/* activations: Hendrycks & Gimpel 2016 (gelu), Klambauer et al. 2017 (selu), Misra 2019 (mish),
 * Howard et al. 2019 (hardswish) */
U(RELU, , x < 0 ? K(0) : x)
U(RELU6, , x < 0 ? K(0) : x > 6 ? K(6) : x)
U(SILU, , x * F(vm_sigmoid)(x))
U(GELU, , K(0.5) * x * (K(1) + F(vm_erf_fast)(x * K(0.70710678118654752))))
U(GELU_TANH, , K(0.5) * x * (K(1) + F(vm_tanh)(F(gelu_inner)(x))))
U(SOFTPLUS, PARAM(0, 1) PARAM(1, 20), x * p0 > p1 ? x : F(softplus)(x * p0) / p0)
U(ELU, PARAM(0, 1), x > 0 ? x : p0 * F(vm_expm1)(x))
U(SELU, , SELU_SCALE * (x > 0 ? x : SELU_ALPHA * F(vm_expm1)(x)))
U(CELU, PARAM(0, 1), x > 0 ? x : p0 * F(vm_expm1)(x / p0))
U(LEAKY_RELU, PARAM(0, 0.01), x > 0 ? x : x * p0)
U(HARDTANH, PARAM(0, -1) PARAM(1, 1), x < p0 ? p0 : x > p1 ? p1 : x)
U(HARDSIGMOID, , F(relu6)(x + K(3)) / K(6))
U(HARDSWISH, , x * F(relu6)(x + K(3)) / K(6))
U(HARDSHRINK, PARAM(0, 0.5), ((x >= -p0) & (x <= p0)) ? K(0) : x)
U(SOFTSHRINK, PARAM(0, 0.5), x > p0 ? x - p0 : x < -p0 ? x + p0 : x * K(0))
U(MISH, , x * F(mish_tanh)(x))
U(SOFTSIGN, , x / (K(1) + F(vm_abs)(x)))
U(LOGSIGMOID, , -F(softplus)(-x))
U(TANHSHRINK, , x - F(vm_tanh)(x))
U(THRESHOLD, PARAM(0, 0) PARAM(1, 0), x <= p0 ? p1 : x)

/* gradients; sigmoid and tanh get their own output as x */
G(RELU_BWD, , x <= 0 ? K(0) : dy)
G(SIGMOID_BWD, , dy * (x * (K(1) - x)))
G(TANH_BWD, , dy * (K(1) - x * x))
G(SILU_BWD, , dy * F(silu_slope)(x))
G(GELU_BWD, , dy * F(gelu_slope)(x))
G(GELU_TANH_BWD, , dy * F(gelu_tanh_slope)(x))
G(SOFTPLUS_BWD, PARAM(0, 1) PARAM(1, 20), x * p0 > p1 ? dy : dy * F(vm_logistic)(x * p0))
G(ELU_BWD, PARAM(0, 1), x > 0 ? dy : dy * p0 * F(vm_exp)(x))
G(SELU_BWD, , dy * (x > 0 ? SELU_SCALE : SELU_SCALE * SELU_ALPHA * F(vm_exp)(x)))
G(CELU_BWD, PARAM(0, 1), x > 0 ? dy : dy * F(vm_exp)(x / p0))
G(LEAKY_RELU_BWD, PARAM(0, 0.01), x > 0 ? dy : dy * p0)
G(HARDTANH_BWD, PARAM(0, -1) PARAM(1, 1), ((x > p0) & (x < p1)) ? dy : K(0))
G(RELU6_BWD, , ((x > 0) & (x < 6)) ? dy : K(0))
G(HARDSIGMOID_BWD, , ((x > -3) & (x < 3)) ? dy * SIXTH : K(0))
G(HARDSWISH_BWD, , x <= -3 ? K(0) : x >= 3 ? dy : dy * (x / K(3) + K(0.5)))
G(HARDSHRINK_BWD, PARAM(0, 0.5), ((x < -p0) | (x > p0)) ? dy : K(0))
G(SOFTSHRINK_BWD, PARAM(0, 0.5), ((x < -p0) | (x > p0)) ? dy : K(0))
G(MISH_BWD, , dy * F(mish_slope)(x))
/* x - x: NaN at infinity, as differentiating the quotient x / (1 + |x|) gives */
G(SOFTSIGN_BWD, , dy / ((K(1) + F(vm_abs)(x)) * (K(1) + F(vm_abs)(x))) + (x - x))
G(LOGSIGMOID_BWD, , dy * F(vm_logistic)(-x))
G(THRESHOLD_BWD, PARAM(0, 0), x <= p0 ? K(0) : dy)
/* an infinite bound is none: dy passes an infinite x */
G(CLAMP_BWD, PARAM(0, -INFINITY) PARAM(1, INFINITY),
  (((x > p0) | ((p0 == -INFINITY) & (x < 0))) & ((x < p1) | ((p1 == INFINITY) & (x > 0)))) ? dy : K(0))
