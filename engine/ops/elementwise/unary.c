/* SPDX-License-Identifier: MIT
 * Elementwise functions of one tensor: one row each, gradient above. dy is the output's gradient,
 * x the input, y the output; a gradient reads whichever makes it shortest. Kernels: kernels/elementwise.h. */
#include <math.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/polygamma.h"

#define PI           3.14159265358979323846
#define LN2          0.69314718055994530942
#define LN10         2.30258509299404568402
#define TWO_RSQRT_PI 1.12837916709551257390 /* 2 / sqrt(pi) */
#define SQRT_2PI     2.50662827463100050242
#define HALF_SQRT_PI 0.88622692545275801365 /* sqrt(pi) / 2 */

/* NAME_grad: dx = expr. */
#define GRAD(NAME, EXPR)                                 \
  static PlStatus NAME##_grad(PlMaker *g) {              \
    const PlVal x = g->x[0], y = g->y[0], dy = g->dy[0]; \
    (void)x, (void)y, (void)dy;                          \
    g->dx[0] = (EXPR);                                   \
    return g->status;                                    \
  }
#define F1(OP, V) pl_g1(g, &pl_op_##OP, V)

static PlStatus infer_no_bool(PlInfer *c) {
  if (c->compute == PL_BOOL)
    PL_FAIL(PL_ERR_DTYPE, "%s: %s has no arithmetic; use logical_not or x:to(\"i64\")", c->op->name, pl_desc_text(c->in[0]));
  return pl_infer_same(c);
}

/* The common rule is pl_infer_broadcast, which the engine knows to skip where shape and dtype are plain;
 * dtypes that an op does not have are refused by the kernel.
 * UNARY(name, kernel code, promotion, shape and dtype rule, formula, doc, example): differentiable. */
#define UNARY(NAME, CODE, PROMOTE, INFER, FORMULA, DOC, EXAMPLE)                                                           \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_POINTWISE, \
        .promote = PROMOTE, .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .infer = INFER, .grad = NAME##_grad,          \
        PL_ELEMENTWISE(PLK_EW_##CODE));
#define FLOATING(NAME, CODE, FORMULA, DOC, EXAMPLE)       UNARY(NAME, CODE, PL_PROMOTE_FLOAT, pl_infer_broadcast, FORMULA, DOC, EXAMPLE)
#define KEEPING(NAME, CODE, INFER, FORMULA, DOC, EXAMPLE) UNARY(NAME, CODE, PL_PROMOTE_ALL, INFER, FORMULA, DOC, EXAMPLE)

/* ---- sign, absolute value, rounding --------------------------------------------------------------- */

static bool neg_ok(PlTensor *const *in, int nin, PlTensor *const *out, const PlAttrs *attrs) {
  (void)in, (void)nin, (void)out, (void)attrs;
  return pl_tensor_dtype(in[0]) == pl_tensor_dtype(out[0]);
}
static PlStatus neg_bwd(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  (void)attrs, (void)saved;
  if (!want[0] || !dy[0]) return PL_OK;
  return pl_apply(&pl_op_neg, dy, 1, NULL, dx);
}
static const PlNative neg_native = {.ok = neg_ok, .bwd = neg_bwd};

GRAD(neg, g_neg(g, dy))
PL_OP(neg, .doc = "-x. Any shape; every dtype but bool.",
      .example = "print(-T.tensor { 1, -2 })  --> {-1.,  2.}  -- f32[2] cpu\n"
                 "print(T.tensor { 1 }:neg())  --> {-1.}  -- f32[1] cpu",
      .formula = "y = -x; dx = -dy", .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_POINTWISE,
      .flags = PL_F_LINEAR | PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .promote = PL_PROMOTE_ALL, .infer = pl_infer_broadcast,
      .grad = neg_grad, .native = &neg_native, PL_ELEMENTWISE(PLK_EW_NEG));
GRAD(abs, g_mul(g, dy, F1(sign, x)))
KEEPING(abs, ABS, infer_no_bool, "dx = dy sign(x)", "|x|. Any dtype but bool; the gradient at 0 is 0.",
        "print(T.tensor { -1.5, 2 }:abs())  --> {1.5000, 2.0000}  -- f32[2] cpu")

/* Steps are flat where they are smooth. */
#define FLAT(NAME)                          \
  static PlStatus NAME##_grad(PlMaker *g) { \
    g_flat(g, 0);                           \
    return g->status;                       \
  }
#define STEP(NAME, CODE, DOC, EXAMPLE) \
  FLAT(NAME)                           \
  KEEPING(NAME, CODE, pl_infer_broadcast, "dx = 0", DOC, EXAMPLE)
STEP(sign, SIGN, "-1, 0 or 1 with the sign of x; NaN gives 0.", "print(T.tensor { -3, 0, 2 }:sign())  --> {-1.,  0.,  1.}  -- f32[3] cpu")
STEP(floor, FLOOR, "The largest integer not above x, in x's dtype.", "print(T.tensor { -1.5, 1.5 }:floor())  --> {-2.,  1.}  -- f32[2] cpu")
STEP(ceil, CEIL, "The smallest integer not below x, in x's dtype.", "print(T.tensor { -1.5, 1.5 }:ceil())  --> {-1.,  2.}  -- f32[2] cpu")
STEP(trunc, TRUNC, "x without its fraction, in x's dtype.", "print(T.tensor { -1.5, 1.5 }:trunc())  --> {-1.,  1.}  -- f32[2] cpu")

FLAT(round)
static PlStatus round_infer(PlInfer *c) {
  if (!pl_attr_has(c->attrs, 0)) return pl_infer_broadcast(c);
  const double decimals = (c->attrs->isint & 1) ? (double)pl_attr_i(c->attrs, 0) : pl_attr_f(c->attrs, 0);
  if (decimals != floor(decimals)) PL_FAIL(PL_ERR_ARG, "round: decimals must be an integer, got %g", decimals);
  if (decimals < 0 && !pl_is_float(c->compute))
    PL_FAIL(PL_ERR_ARG, "round: decimals = %g is for floating x, got %s; convert it first: x:to(\"f64\")", decimals,
            pl_desc_text(c->in[0]));
  return pl_infer_broadcast(c);
}
PL_OP(round,
      .doc = "The nearest integer, halves to even; with decimals, that many digits after the point "
             "(negative: before it; floating x only).",
      .example = "print(T.tensor { 0.5, 1.5, 2.4 }:round())  --> {0., 2., 2.}  -- f32[3] cpu\n"
                 "print(T.tensor { 3.14159 }:round(2))  --> {3.1400}  -- f32[1] cpu",
      .formula = "dx = 0", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SCALAR_OPT("decimals")}, .cls = PL_POINTWISE,
      .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .promote = PL_PROMOTE_ALL, .infer = round_infer, .grad = round_grad,
      PL_ELEMENTWISE(PLK_EW_ROUND));
GRAD(frac, dy)
KEEPING(frac, FRAC, pl_infer_broadcast, "y = x - trunc(x); dx = dy", "The fraction of x, with x's sign. Floating x.",
        "print(T.tensor { -1.5, 1.25 }:frac())  --> {-0.5000,  0.2500}  -- f32[2] cpu")

/* ---- powers, roots, exponentials, logarithms -------------------------------------------------------- */

/* x and numbers of it; bool counts as i64, as in x ^ 2. */
static PlStatus square_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], c->compute == PL_BOOL ? PL_I64 : c->compute, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
PL_HOST_KERNEL(pl_host_square) {
  if (call->in[0]->dtype == call->out[0]->dtype) return plk_cpu_elementwise(call);
  PlkCall k = *call; /* bool: 0 and 1 are their own squares */
  k.code = PLK_EW_CAST;
  return plk_cpu_elementwise(&k);
}
GRAD(square, g_mul(g, dy, g_muln(g, x, 2)))
PL_OP(square, .doc = "x * x. Any shape and dtype; bool gives i64.",
      .example = "print(T.tensor { 1, 2, 3 }:square())  --> {1., 4., 9.}  -- f32[3] cpu", .formula = "y = x^2; dx = 2 x dy", .nin = 1,
      .nout = 1, .args = {"x"}, .cls = PL_POINTWISE, .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .promote = PL_PROMOTE_ALL,
      .kcode = PLK_EW_SQUARE, .infer = square_infer, .grad = square_grad, PL_KERNEL_OWN(pl_host_square), .fused = {1 + PLK_EW_SQUARE});
GRAD(sqrt, g_div(g, dy, g_muln(g, y, 2)))
FLOATING(sqrt, SQRT, "dx = dy / (2 y)", "The square root; NaN below 0. Integers give the default float.",
         "print(T.tensor { 4, 9 }:sqrt())  --> {2., 3.}  -- f32[2] cpu")
GRAD(rsqrt, g_mul(g, g_muln(g, dy, -0.5), g_mul(g, y, g_mul(g, y, y))))
FLOATING(rsqrt, RSQRT, "y = x^(-1/2); dx = -dy y^3 / 2", "1 / sqrt(x). Integers give the default float.",
         "print(T.tensor { 4, 16 }:rsqrt())  --> {0.5000, 0.2500}  -- f32[2] cpu")
GRAD(reciprocal, g_neg(g, g_mul(g, dy, g_mul(g, y, y))))
FLOATING(reciprocal, RECIPROCAL, "y = 1/x; dx = -dy y^2", "1 / x. Integers give the default float.",
         "print(T.tensor { 2, 4 }:reciprocal())  --> {0.5000, 0.2500}  -- f32[2] cpu")
GRAD(exp, g_mul(g, dy, y))
FLOATING(exp, EXP, "dx = dy y", "e^x. Integers give the default float.",
         "print(T.tensor { 0, 1 }:exp())  --> {1.0000, 2.7183}  -- f32[2] cpu")
GRAD(exp2, g_mul(g, dy, g_muln(g, y, LN2)))
FLOATING(exp2, EXP2, "dx = dy y ln 2", "2^x. Integers give the default float.",
         "print(T.tensor { 0, 3 }:exp2())  --> {1., 8.}  -- f32[2] cpu")
GRAD(expm1, g_mul(g, dy, g_addn(g, y, 1)))
FLOATING(expm1, EXPM1, "y = e^x - 1; dx = dy (y + 1)", "e^x - 1, exact near 0.",
         "print(T.tensor { 0, 1 }:expm1())  --> {0.0000, 1.7183}  -- f32[2] cpu")
GRAD(log, g_div(g, dy, x))
FLOATING(log, LOG, "dx = dy / x", "The natural logarithm; -inf at 0, NaN below.",
         "print(T.tensor { 1, 10 }:log())  --> {0.0000, 2.3026}  -- f32[2] cpu")
GRAD(log2, g_div(g, dy, g_muln(g, x, LN2)))
FLOATING(log2, LOG2, "dx = dy / (x ln 2)", "The logarithm to base 2.", "print(T.tensor { 1, 8 }:log2())  --> {0., 3.}  -- f32[2] cpu")
GRAD(log10, g_div(g, dy, g_muln(g, x, LN10)))
FLOATING(log10, LOG10, "dx = dy / (x ln 10)", "The logarithm to base 10.",
         "print(T.tensor { 1, 1000 }:log10())  --> {0., 3.}  -- f32[2] cpu")
GRAD(log1p, g_div(g, dy, g_addn(g, x, 1)))
FLOATING(log1p, LOG1P, "y = log(1 + x); dx = dy / (x + 1)", "log(1 + x), exact near 0.",
         "print(T.tensor { 0, 1 }:log1p())  --> {0.0000, 0.6931}  -- f32[2] cpu")

/* ---- circular and hyperbolic ---------------------------------------------------------------------------- */

GRAD(sin, g_mul(g, dy, F1(cos, x)))
FLOATING(sin, SIN, "dx = dy cos x", "The sine of x in radians.", "print(T.tensor { 0, math.pi / 2 }:sin())  --> {0., 1.}  -- f32[2] cpu")
GRAD(cos, g_neg(g, g_mul(g, dy, F1(sin, x))))
FLOATING(cos, COS, "dx = -dy sin x", "The cosine of x in radians.", "print(T.tensor { 0, math.pi }:cos())  --> { 1., -1.}  -- f32[2] cpu")
GRAD(tan, g_mul(g, dy, g_addn(g, g_mul(g, y, y), 1)))
FLOATING(tan, TAN, "dx = dy (1 + y^2)", "The tangent of x in radians.",
         "print(T.tensor { 0, math.pi / 4 }:tan())  --> {0., 1.}  -- f32[2] cpu")
/* y = sin(πx)/(πx), y' = (cos(πx) - y) / x. Near 0 the difference has no digits left: there the series of y', whose next term
 * is below 3e-17 of it. */
static PlStatus sinc_grad(PlMaker *g) {
  static const double series[] = {1, -1 / 10.0, 1 / 280.0, -1 / 15120.0, 1 / 1330560.0, -1 / 172972800.0};
  PlVal x = g->x[0], near = pl_g2(g, &pl_op_lt, F1(abs, x), pl_g_num(g, 0.1)), sum = PL_NONE;
  PlVal small = g_where(g, near, x, pl_g_num(g, 0)), q = F1(square, g_muln(g, small, PI));
  for (int k = 5; k >= 0; k--) sum = k == 5 ? g_muln(g, q, series[5]) : k ? g_mul(g, g_addn(g, sum, series[k]), q) : g_addn(g, sum, 1);
  PlVal inner = g_mul(g, g_muln(g, small, -PI * PI / 3), sum);
  PlVal turn = g_sub(g, x, g_muln(g, F1(round, g_muln(g, x, 0.5)), 2)); /* exact: pi x would round, and overflow */
  PlVal outer = g_div(g, g_sub(g, F1(cos, g_muln(g, turn, PI)), g->y[0]), g_where(g, near, pl_g_num(g, 1), x));
  g->dx[0] = g_mul(g, g->dy[0], g_where(g, near, inner, outer));
  return g->status;
}
FLOATING(sinc, SINC, "y = sin(pi x) / (pi x); dx = dy (cos(pi x) - y) / x", "sin(pi x) / (pi x), and 1 at 0.",
         "print(T.tensor { 0, 0.5, 1.5 }:sinc())  --> { 1.0000,  0.6366, -0.2122}  -- f32[3] cpu")
/* An op of its own: the slopes of both factors, one of which is 0 at an end where dy is infinite, would be NaN there. */
GRAD(one_minus_square, g_mul(g, dy, g_muln(g, x, -2)))
PL_OP(one_minus_square, .doc = "1 - x^2, as (1 - x)(1 + x), which keeps its digits near -1 and 1. Floating x.",
      .formula = "y = 1 - x^2; dx = -2 x dy", .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_POINTWISE, .flags = PL_F_INTERNAL | PL_F_POLY,
      .promote = PL_PROMOTE_FLOAT, .infer = pl_infer_broadcast, .grad = one_minus_square_grad, PL_ELEMENTWISE(PLK_EW_ONE_MINUS_SQUARE));
static PlVal one_minus_square(PlMaker *g, PlVal x) { return F1(one_minus_square, x); }
GRAD(asin, g_mul(g, dy, F1(rsqrt, one_minus_square(g, x))))
FLOATING(asin, ASIN, "dx = dy (1 - x^2)^(-1/2)", "The arc sine, in radians; NaN outside [-1, 1].",
         "print(T.tensor { 0, 1 }:asin())  --> {0.0000, 1.5708}  -- f32[2] cpu")
GRAD(acos, g_neg(g, g_mul(g, dy, F1(rsqrt, one_minus_square(g, x)))))
FLOATING(acos, ACOS, "dx = -dy (1 - x^2)^(-1/2)", "The arc cosine, in radians; NaN outside [-1, 1].",
         "print(T.tensor { 1, 0 }:acos())  --> {0.0000, 1.5708}  -- f32[2] cpu")
static PlVal atan_slope(PlMaker *g, PlVal dy, PlVal x) {
  if (g->outd[0].dtype != PL_F16) return g_div(g, dy, g_addn(g, g_mul(g, x, x), 1));
  const PlVal h = pl_g2(g, &pl_op_hypot, x, pl_g_num(g, 1)); /* 256 squared is infinite, its slope is not 0 */
  return g_div(g, g_div(g, dy, h), h);
}
GRAD(atan, atan_slope(g, dy, x))
FLOATING(atan, ATAN, "dx = dy / (1 + x^2)", "The arc tangent, in radians.",
         "print(T.tensor { 0, 1 }:atan())  --> {0.0000, 0.7854}  -- f32[2] cpu")
GRAD(sinh, g_mul(g, dy, F1(cosh, x)))
FLOATING(sinh, SINH, "dx = dy cosh x", "The hyperbolic sine, (e^x - e^-x) / 2.",
         "print(T.tensor { 0, 1 }:sinh())  --> {0.0000, 1.1752}  -- f32[2] cpu")
GRAD(cosh, g_mul(g, dy, F1(sinh, x)))
FLOATING(cosh, COSH, "dx = dy sinh x", "The hyperbolic cosine, (e^x + e^-x) / 2.",
         "print(T.tensor { 0, 1 }:cosh())  --> {1.0000, 1.5431}  -- f32[2] cpu")
GRAD(tanh, pl_g2(g, &pl_op_tanh_bwd, dy, y))
FLOATING(tanh, TANH, "dx = dy (1 - y^2)", "The hyperbolic tangent.", "print(T.tensor { 0, 1 }:tanh())  --> {0.0000, 0.7616}  -- f32[2] cpu")
/* x^2 would be infinite where the slope is a plain number still. */
GRAD(asinh, g_div(g, dy, pl_g2(g, &pl_op_hypot, x, pl_g_num(g, 1))))
FLOATING(asinh, ASINH, "dx = dy (x^2 + 1)^(-1/2)", "The inverse hyperbolic sine.",
         "print(T.tensor { 0, 1 }:asinh())  --> {0.0000, 0.8814}  -- f32[2] cpu")
GRAD(acosh, g_mul(g, g_mul(g, dy, F1(rsqrt, g_addn(g, F1(abs, x), -1))), F1(rsqrt, g_addn(g, F1(abs, x), 1))))
FLOATING(acosh, ACOSH, "dx = dy (x^2 - 1)^(-1/2)", "The inverse hyperbolic cosine; NaN below 1.",
         "print(T.tensor { 1, 2 }:acosh())  --> {0.0000, 1.3170}  -- f32[2] cpu")
GRAD(atanh, g_div(g, dy, one_minus_square(g, x)))
FLOATING(atanh, ATANH, "dx = dy / (1 - x^2)", "The inverse hyperbolic tangent; NaN outside [-1, 1].",
         "print(T.tensor { 0, 0.5 }:atanh())  --> {0.0000, 0.5493}  -- f32[2] cpu")
GRAD(sigmoid, pl_g2(g, &pl_op_sigmoid_bwd, dy, y))
FLOATING(sigmoid, SIGMOID, "y = 1 / (1 + e^-x); dx = dy y (1 - y)", "The logistic function.",
         "print(T.tensor { -2, 0, 2 }:sigmoid())  --> {0.1192, 0.5000, 0.8808}  -- f32[3] cpu")

/* 1/(x (1-x)) as 1/x + 1/(1-x), whose own slope is a number next to 0, too. Without eps NaN outside [0, 1]; with eps x is clamped, so
 * the gradient outside is 0: dy / NaN and dy / ∞. */
static PlStatus logit_grad(PlMaker *g) {
  PlVal x = g->x[0];
  bool clamped = pl_attr_has(g->attrs, 0);
  double eps = clamped ? ((g->attrs->isint & 1) ? (double)pl_attr_i(g->attrs, 0) : pl_attr_f(g->attrs, 0)) : 0;
  PlVal out = pl_g2(g, &pl_op_logical_or, pl_g2(g, &pl_op_lt, x, pl_g_num(g, eps)), pl_g2(g, &pl_op_gt, x, pl_g_num(g, 1 - eps)));
  PlVal at = g_where(g, out, pl_g_num(g, clamped ? (double)INFINITY : (double)NAN), x);
  g->dx[0] = g_add(g, g_div(g, g->dy[0], at), g_div(g, g->dy[0], g_rsubn(g, 1, at)));
  return g->status;
}
PL_OP(logit,
      .doc = "log(x / (1 - x)), the inverse of sigmoid. eps clamps x to [eps, 1 - eps] first; without "
             "it values outside [0, 1] give NaN.",
      .example = "print(T.tensor { 0.5, 0.9 }:logit())  --> {0.0000, 2.1972}  -- f32[2] cpu", .formula = "dx = dy / (x (1 - x))", .nin = 1,
      .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SCALAR_OPT("eps")}, .cls = PL_POINTWISE,
      .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .promote = PL_PROMOTE_FLOAT, .infer = pl_infer_same, .grad = logit_grad,
      PL_ELEMENTWISE(PLK_EW_LOGIT));

/* ---- error function, gamma function ----------------------------------------------------------------------- */

static PlVal bell(PlMaker *g, PlVal x, double scale) { /* scale e^(-x^2) */
  return g_muln(g, F1(exp, g_neg(g, g_mul(g, x, x))), scale);
}
GRAD(erf, g_mul(g, dy, bell(g, x, TWO_RSQRT_PI)))
FLOATING(erf, ERF, "dx = dy 2/sqrt(pi) e^(-x^2)", "The error function, 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x.",
         "print(T.tensor { 0, 1 }:erf())  --> {0.0000, 0.8427}  -- f32[2] cpu")
GRAD(erfc, g_mul(g, dy, bell(g, x, -TWO_RSQRT_PI)))
FLOATING(erfc, ERFC, "dx = -dy 2/sqrt(pi) e^(-x^2)", "1 - erf(x), exact for large x.",
         "print(T.tensor { 0, 1 }:erfc())  --> {1.0000, 0.1573}  -- f32[2] cpu")
GRAD(erfinv, g_mul(g, dy, g_muln(g, F1(exp, g_mul(g, y, y)), HALF_SQRT_PI)))
FLOATING(erfinv, ERFINV, "dx = dy sqrt(pi)/2 e^(y^2)", "The inverse error function; NaN outside [-1, 1].",
         "print(T.tensor { 0, 0.5 }:erfinv())  --> {0.0000, 0.4769}  -- f32[2] cpu")

static PlVal polygamma(PlMaker *g, int64_t n, PlVal x) {
  PlAttrs a;
  pl_attrs_init(&pl_op_polygamma, &a);
  pl_attrs_int(&a, 0, n);
  return pl_g_op(g, &pl_op_polygamma, 1, &x, &a, NULL);
}
GRAD(lgamma, g_mul(g, dy, F1(digamma, x)))
FLOATING(lgamma, LGAMMA, "dx = dy digamma(x)", "The logarithm of |gamma(x)|.",
         "print(T.tensor { 1, 5 }:lgamma())  --> {0.0000, 3.1781}  -- f32[2] cpu")
GRAD(digamma, g_mul(g, dy, polygamma(g, 1, x)))
FLOATING(digamma, DIGAMMA, "dx = dy polygamma(1, x)", "The derivative of lgamma; NaN at 0, -1, -2, ….",
         "print(T.tensor { 1, 2 }:digamma())  --> {-0.5772,  0.4228}  -- f32[2] cpu")

static PlStatus polygamma_infer(PlInfer *c) {
  if (pl_attr_i(c->attrs, 0) < 0 || pl_attr_i(c->attrs, 0) > 100)
    PL_FAIL(PL_ERR_ARG, "polygamma: n is %lld, must be 0 to 100", (long long)pl_attr_i(c->attrs, 0));
  return pl_infer_same(c);
}
GRAD(polygamma, g_mul(g, dy, polygamma(g, pl_attr_i(g->attrs, 0) + 1, x)))
PL_OP(polygamma, .doc = "The n-th derivative of digamma, n from 0 to 100.",
      .example = "print(T.tensor { 1, 2 }:polygamma(1))  --> {1.6449, 0.6449}  -- f32[2] cpu",
      .formula = "y = (-1)^(n+1) n! zeta(n+1, x); dx = dy polygamma(n+1, x)", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_INT_REQ("n")}, .cls = PL_POINTWISE, .flags = PL_F_SCALAR | PL_F_POLY | PL_F_CONTIGUOUS, .promote = PL_PROMOTE_FLOAT,
      .infer = polygamma_infer, .grad = polygamma_grad, PL_KERNEL(polygamma));

/* ---- Bessel functions, the normal distribution ------------------------------------------------------------ */

/* I1(x)/x, times e^-|x| where v is I1 scaled by that. Where |x| < 1 the sum of (x^2/4)^k / (2 k! (k+1)!): a quotient would be 0/0 at 0,
 * and its derivatives differences of large numbers beside it. */
static PlVal over_x(PlMaker *g, PlVal v, PlVal x, bool scaled) {
  PlVal small = pl_g2(g, &pl_op_lt, F1(abs, x), pl_g_num(g, 1)), one = pl_g_num(g, 1);
  PlVal t = g_muln(g, F1(square, g_where(g, small, x, one)), 0.25), sum = one;
  for (int k = 8; k > 0; k--) sum = g_addn(g, g_muln(g, g_mul(g, t, sum), 1.0 / (k * (k + 1))), 1);
  PlVal near = g_muln(g, sum, 0.5);
  if (scaled) near = g_mul(g, near, F1(exp, g_neg(g, F1(abs, x))));
  return g_where(g, small, near, g_div(g, v, g_where(g, small, one, x)));
}
GRAD(i0, g_mul(g, dy, F1(i1, x)))
FLOATING(i0, I0, "dx = dy i1(x)", "The modified Bessel function of the first kind of order 0.",
         "print(T.tensor { 0, 1 }:i0())  --> {1.0000, 1.2661}  -- f32[2] cpu")
/* From |x| = 50 on the slopes of i0e and i1e are differences of nearly equal numbers. There Hankel's expansion (DLMF 10.40.1) is differentiated:
 * e^-x I_v(x) = (2 pi x)^(-1/2) sum of a_k x^-k, a_k = a_(k-1) ((2k-1)^2 - 4v^2) / (8k). near(x): the formula for smaller ones. */
static PlVal bessel_slope(PlMaker *g, int order, PlVal (*near)(PlMaker *, PlVal, PlVal)) {
  PlVal x = g->x[0], one = pl_g_num(g, 1), far = pl_g2(g, &pl_op_gt, F1(abs, x), pl_g_num(g, 50)), sum = PL_NONE;
  PlVal inf = F1(isinf, x); /* the root of 1 / x has no slope there */
  PlVal t = F1(reciprocal, g_where(g, inf, one, g_where(g, far, F1(abs, x), one)));
  double a[13] = {1};
  for (int k = 1; k <= 12; k++) a[k] = a[k - 1] * ((2 * k - 1) * (2 * k - 1) - 4 * order * order) / (8 * k);
  for (int k = 12; k >= 0; k--) {
    const double c = -(k + 0.5) * a[k] * 0.39894228040143267794;
    sum = k == 12 ? g_muln(g, t, c) : k ? g_mul(g, g_addn(g, sum, c), t) : g_addn(g, sum, c);
  }
  PlVal tail = g_where(g, inf, pl_g_num(g, 0), g_mul(g, sum, g_mul(g, t, F1(sqrt, t))));
  if (order == 0) tail = g_mul(g, tail, F1(sign, x));
  return g_where(g, far, tail, near(g, g_where(g, far, one, x), g_where(g, far, one, g->y[0])));
}
static PlVal i0e_near(PlMaker *g, PlVal x, PlVal y) { return g_sub(g, F1(i1e, x), g_mul(g, F1(sign, x), y)); }
static PlVal i1e_near(PlMaker *g, PlVal x, PlVal y) {
  return g_sub(g, g_sub(g, F1(i0e, x), g_mul(g, F1(sign, x), y)), over_x(g, y, x, true));
}
GRAD(i0e, g_mul(g, dy, bessel_slope(g, 0, i0e_near)))
FLOATING(i0e, I0E, "y = e^-|x| i0(x); dx = dy (i1e(x) - sign(x) y)", "i0 scaled by e^-|x|, so that it does not overflow.",
         "print(T.tensor { 0, 100 }:i0e())  --> {1.0000, 0.0399}  -- f32[2] cpu")
/* Where both are infinite the slope is, too. */
GRAD(i1, g_mul(g, dy, g_where(g, F1(isinf, y), F1(abs, y), g_sub(g, F1(i0, x), over_x(g, y, x, false)))))
FLOATING(i1, I1, "dx = dy (i0(x) - y / x)", "The modified Bessel function of the first kind of order 1.",
         "print(T.tensor { 0, 1 }:i1())  --> {0.0000, 0.5652}  -- f32[2] cpu")
GRAD(i1e, g_mul(g, dy, bessel_slope(g, 1, i1e_near)))
FLOATING(i1e, I1E, "y = e^-|x| i1(x); dx = dy (i0e(x) - sign(x) y - y / x)", "i1 scaled by e^-|x|, so that it does not overflow.",
         "print(T.tensor { 0, 100 }:i1e())  --> {0.0000, 0.0397}  -- f32[2] cpu")
/* y is 1/(sqrt(pi) x) (1 - u + 3 u^2 - 15 u^3 ...), u = 1/(2 x^2): from x = 10 on the difference is taken term by term. */
static PlVal erfcx_slope(PlMaker *g) {
  PlVal x = g->x[0], far = pl_g2(g, &pl_op_gt, x, pl_g_num(g, 10)), sum = pl_g_num(g, 1);
  PlVal u = g_muln(g, F1(square, F1(reciprocal, g_where(g, far, x, pl_g_num(g, 10)))), 0.5);
  for (int k = 13; k > 1; k--) sum = g_rsubn(g, 1, g_mul(g, g_muln(g, u, 2 * k - 1), sum));
  PlVal at = g_where(g, far, pl_g_num(g, 1), x), y = g_where(g, far, pl_g_num(g, 1), g->y[0]);
  PlVal near = g_addn(g, g_muln(g, g_mul(g, at, y), 2), -TWO_RSQRT_PI);
  return g_where(g, far, g_mul(g, g_muln(g, u, -TWO_RSQRT_PI), sum), near);
}
GRAD(erfcx, g_mul(g, dy, erfcx_slope(g)))
FLOATING(erfcx, ERFCX, "y = e^(x^2) erfc(x); dx = dy (2 x y - 2/sqrt(pi))", "erfc scaled by e^(x^2), so that it does not underflow.",
         "print(T.tensor { 0, 50 }:erfcx())  --> {1.0000, 0.0113}  -- f32[2] cpu")
GRAD(ndtri, g_mul(g, dy, g_muln(g, F1(exp, g_muln(g, g_mul(g, y, y), 0.5)), SQRT_2PI)))
FLOATING(ndtri, NDTRI, "dx = dy sqrt(2 pi) e^(y^2/2)",
         "The quantile of the standard normal distribution: the z with the share x below it; NaN outside [0, 1].",
         "print(T.tensor { 0.5, 0.975 }:ndtri())  --> {0.0000, 1.9600}  -- f32[2] cpu")

/* ---- replacing values ---------------------------------------------------------------------------------------- */

GRAD(nan_to_num, g_mul(g, dy, pl_g_cast(g, F1(isfinite, x), (PlDtype)g->outd[0].dtype)))
PL_OP(nan_to_num,
      .doc = "x with NaN, inf and -inf replaced (0, the largest and the lowest number of x's "
             "dtype unless given). Integers and bool are copied.",
      .example = "print(T.tensor { 0 / 0, math.huge, 1 }:nan_to_num(0, { posinf = 9 }))  --> {0., 9., 1.}  -- f32[3] cpu",
      .formula = "dx = dy where x is finite", .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},
      .attrs = {A_SCALAR_OPT("nan"), A_SCALAR_OPT("posinf"), A_SCALAR_OPT("neginf")}, .cls = PL_POINTWISE,
      .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .promote = PL_PROMOTE_ALL, .infer = pl_infer_same, .grad = nan_to_num_grad,
      PL_ELEMENTWISE(PLK_EW_NAN_TO_NUM));

/* x converted to another dtype; out of range is wrapped (integers) or infinite (floats). */
static PlStatus cast_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], (PlDtype)pl_attr_i(c->attrs, 0), c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}
static PlStatus cast_grad(PlMaker *g) {
  PlDtype from = (PlDtype)g->in[0]->dtype;
  if (!pl_is_float(from) || !pl_is_float((PlDtype)g->outd[0].dtype)) return g->status;
  g->dx[0] = from == (PlDtype)g->outd[0].dtype ? g->dy[0] : pl_g_cast(g, g->dy[0], from);
  return g->status;
}
PL_OP(cast,
      .doc = "A copy of x in the dtype given. Floats are cut toward 0 for integers; numbers that do not "
             "fit wrap around. x:to(dtype) is the usual spelling.",
      .example = "print(T.tensor { 1.9, -1.9 }:cast(\"i64\"))  --> { 1, -1}  -- i64[2] cpu", .formula = "dx = dy in x's dtype", .nin = 1,
      .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_DTYPE_REQ("dtype")}, .cls = PL_POINTWISE,
      .flags = PL_F_LINEAR | PL_F_POLY | PL_F_KEEPS, .infer = cast_infer, .grad = cast_grad, PL_ELEMENTWISE(PLK_EW_CAST));
