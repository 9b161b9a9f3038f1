/* SPDX-License-Identifier: MIT
 * Activation functions. Each has a one-pass gradient op NAME_bwd(dy, x) = dy f'(x), whose own gradient is
 * (dd f'(x), dd dy f''(x)): the first is NAME_bwd again, the second is spelled out where f'' is not 0.
 * sigmoid and tanh keep y instead of x; their forward rows are in unary.c. */
#include <math.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

#define F1(OP, V)    pl_g1(g, &pl_op_##OP, V)
#define NO_ATTRS     .nattr = 0
#define PARAM1(A)    .nattr = 1, .attrs = {A}
#define PARAM2(A, B) .nattr = 2, .attrs = {A, B}

static double number(const PlMaker *g, int k) { return pl_attr_f(g->attrs, k); }

/* dd f'(x) by the op itself; dd dy f'' where there is one. dy and x broadcast: many gradients at one x under vmap. */
static PlStatus twice(PlMaker *g, PlVal (*second)(PlMaker *g, PlVal x)) {
  if (g->want[0]) g_give(g, 0, g_again2(g, g->dy[0], g->x[1]));
  if (g->want[1] && second) g_give(g, 1, g_mul(g, g_mul(g, g->dy[0], g->x[0]), second(g, g->x[1])));
  return g->status;
}

/* ACTIVATION: the pair. ARG is what the gradient keeps: x[0] or y[0]. SECOND: f'' as a maker, or NULL. */
#define ACTIVATION(NAME, CODE, INFER, ARG, SECOND, PARAMS, FORMULA, DOC, EXAMPLE)                                                  \
  BACKWARD(NAME, CODE, SECOND, PARAMS)                                                                                             \
  static PlStatus NAME##_grad(PlMaker *g) {                                                                                        \
    const PlVal in[2] = {g->dy[0], g->ARG};                                                                                        \
    g->dx[0] = pl_g_op(g, &pl_op_##NAME##_bwd, 2, in, g->attrs, NULL);                                                             \
    return g->status;                                                                                                              \
  }                                                                                                                                \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 1, .nout = 1, PARAMS, .args = {"x"}, .cls = PL_POINTWISE, \
        .promote = PL_PROMOTE_ALL, .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .infer = INFER, .grad = NAME##_grad,           \
        PL_ELEMENTWISE(PLK_EW_##CODE));
#define BACKWARD(NAME, CODE, SECOND, ...)                                                                                            \
  static PlStatus NAME##_bwd_grad(PlMaker *g) { return twice(g, SECOND); }                                                           \
  PL_OP(NAME##_bwd, .doc = "The gradient of " #NAME ".", .nin = 2, .nout = 1, __VA_ARGS__, .args = {"dy", "x"}, .cls = PL_POINTWISE, \
        .promote = PL_PROMOTE_ALL, .flags = PL_F_POLY | PL_F_INTERNAL, .infer = pl_infer_broadcast, .grad = NAME##_bwd_grad,         \
        PL_ELEMENTWISE(PLK_EW_##CODE##_BWD));

/* ---- piecewise linear: f'' = 0 --------------------------------------------------------------------- */

/* The gradient reads y: x > 0 and y > 0 say the same, and y is often kept by the next op anyway. */
ACTIVATION(relu, RELU, pl_infer_broadcast, y[0], NULL, NO_ATTRS, "max(x, 0); dx = dy where x > 0", "max(x, 0); the gradient at 0 is 0.",
           "print(T.tensor { -1, 2 }:relu())  --> {0., 2.}  -- f32[2] cpu")
ACTIVATION(relu6, RELU6, pl_infer_broadcast, x[0], NULL, NO_ATTRS, "min(max(x, 0), 6); dx = dy where 0 < x < 6",
           "x limited to [0, 6]; no gradient at or beyond the limits.",
           "print(T.tensor { -1, 2, 9 }:relu6())  --> {0., 2., 6.}  -- f32[3] cpu")
ACTIVATION(leaky_relu, LEAKY_RELU, pl_infer_broadcast, x[0], NULL, PARAM1(A_FLOAT("negative_slope", 0.01)), "x > 0 ? x : slope x",
           "x where positive, negative_slope x elsewhere.",
           "print(T.tensor { -1, 2 }:leaky_relu(0.1))  --> {-0.1000,  2.0000}  -- f32[2] cpu")
ACTIVATION(hardsigmoid, HARDSIGMOID, pl_infer_broadcast, x[0], NULL, NO_ATTRS, "min(max(x + 3, 0), 6) / 6",
           "A piecewise linear sigmoid: 0 below -3, 1 above 3.",
           "print(T.tensor { -4, 0, 4 }:hardsigmoid())  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu")
ACTIVATION(hardshrink, HARDSHRINK, pl_infer_broadcast, x[0], NULL, PARAM1(A_FLOAT("lambd", 0.5)), "|x| > lambd ? x : 0",
           "x where |x| > lambd, else 0.", "print(T.tensor { -1, 0.2, 1 }:hardshrink())  --> {-1.,  0.,  1.}  -- f32[3] cpu")
static PlStatus softshrink_infer(PlInfer *c) {
  double by = pl_attr_f(c->attrs, 0);
  if (!(by >= 0)) PL_FAIL(PL_ERR_ARG, "softshrink: lambd must be a number >= 0, got %g", by);
  return pl_infer_broadcast(c);
}
ACTIVATION(softshrink, SOFTSHRINK, softshrink_infer, x[0], NULL, PARAM1(A_FLOAT("lambd", 0.5)), "sign(x) max(|x| - lambd, 0)",
           "x moved toward 0 by lambd, 0 where |x| <= lambd.",
           "print(T.tensor { -1, 0.2, 1 }:softshrink())  --> {-0.5000,  0.0000,  0.5000}  -- f32[3] cpu")
static PlStatus threshold_infer(PlInfer *c) {
  PL_TRY(pl_check_fits(c, c->compute, (c->attrs->isint >> 1) & 1 ? (double)pl_attr_i(c->attrs, 1) : pl_attr_f(c->attrs, 1)));
  PL_TRY(pl_check_whole(c, c->compute, 1));
  return pl_infer_broadcast(c);
}
ACTIVATION(threshold, THRESHOLD, threshold_infer, x[0], NULL, PARAM2(A_FLOAT_REQ("threshold"), A_FLOAT_REQ("value")),
           "x > threshold ? x : value", "x where above threshold, else value.",
           "print(T.tensor { -1, 0.2, 1 }:threshold(0.5, 0))  --> {0., 0., 1.}  -- f32[3] cpu")

static PlStatus hardtanh_infer(PlInfer *c) {
  double lo = pl_attr_f(c->attrs, 0), hi = pl_attr_f(c->attrs, 1);
  if (lo > hi) PL_FAIL(PL_ERR_ARG, "hardtanh: min_val %g is above max_val %g", lo, hi);
  if (pl_is_int(c->compute)) { /* a limit beyond the dtype is none, but where it would be every element */
    if (lo > (double)pl_int_most(c->compute)) PL_TRY(pl_check_fits(c, c->compute, lo));
    if (hi < (double)pl_int_least(c->compute)) PL_TRY(pl_check_fits(c, c->compute, hi));
  }
  return pl_infer_broadcast(c);
}
ACTIVATION(hardtanh, HARDTANH, hardtanh_infer, x[0], NULL, PARAM2(A_FLOAT("min_val", -1), A_FLOAT("max_val", 1)),
           "min(max(x, min_val), max_val)", "x limited to [min_val, max_val]; no gradient at or beyond the limits.",
           "print(T.tensor { -3, 0.5, 3 }:hardtanh())  --> {-1.0000,  0.5000,  1.0000}  -- f32[3] cpu")

/* ---- smooth ------------------------------------------------------------------------------------------- */

/* in terms of y: s' = y(1-y), d/dy = 1 - 2y;  t' = 1 - y², d/dy = -2y */
static PlVal sigmoid_second(PlMaker *g, PlVal y) { return g_rsubn(g, 1, g_muln(g, y, 2)); }
static PlVal tanh_second(PlMaker *g, PlVal y) { return g_muln(g, y, -2); }
BACKWARD(sigmoid, SIGMOID, sigmoid_second, NO_ATTRS)
BACKWARD(tanh, TANH, tanh_second, NO_ATTRS)

/* s = sigmoid x, r = sigmoid(-x), which is 1 - s with the digits that this has no more where s is nearly 1 */
typedef struct Logistic {
  PlVal s, r, slope; /* s r */
} Logistic;
static Logistic logistic(PlMaker *g, PlVal x) {
  Logistic l = {.s = F1(sigmoid, x), .r = F1(sigmoid, g_neg(g, x))};
  l.slope = g_mul(g, l.s, l.r);
  return l;
}

/* s r (2 + x(r - s)) */
static PlVal silu_second(PlMaker *g, PlVal x) {
  const Logistic l = logistic(g, x);
  return g_mul(g, l.slope, g_addn(g, g_mul(g, x, g_sub(g, l.r, l.s)), 2));
}
ACTIVATION(silu, SILU, pl_infer_broadcast, x[0], silu_second, NO_ATTRS, "x sigmoid(x)", "x sigmoid(x), also known as swish.",
           "print(T.tensor { -1, 0, 1 }:silu())  --> {-0.2689,  0.0000,  0.7311}  -- f32[3] cpu")

/* x within ±most, beyond which a derivative is 0: its powers would be infinite beside a factor of 0. */
static PlVal within(PlMaker *g, PlVal x, double most) {
  return pl_g2(g, &pl_op_minimum, pl_g2(g, &pl_op_maximum, x, pl_g_num(g, -most)), pl_g_num(g, most));
}
/* e^(-x²/2)/√(2π) (2 - x²) */
static PlVal gelu_second(PlMaker *g, PlVal x) {
  x = within(g, x, 40);
  PlVal q = g_mul(g, x, x), bell = g_muln(g, F1(exp, g_muln(g, q, -0.5)), 0.39894228040143267794);
  return g_mul(g, bell, g_rsubn(g, 2, q));
}
/* u = k(x + c x³), t = tanh u: (1-t²)(u' + x u''/2 - x t u'²), k = √(2/π), c = 0.044715 */
static PlVal gelu_tanh_second(PlMaker *g, PlVal x) {
  const double k = 0.79788456080286535588, c = 0.044715;
  x = within(g, x, 10);
  PlVal q = g_mul(g, x, x);
  PlVal u = g_mul(g, g_muln(g, x, k), g_addn(g, g_muln(g, q, c), 1));
  PlVal du = g_addn(g, g_muln(g, q, 3 * k * c), k), t = F1(tanh, u);
  PlVal xddu = g_muln(g, q, 3 * k * c); /* x u''/2 */
  PlVal rest = g_sub(g, g_add(g, du, xddu), g_mul(g, g_mul(g, x, t), g_mul(g, du, du)));
  return g_mul(g, g_rsubn(g, 1, g_mul(g, t, t)), rest);
}
BACKWARD(gelu, GELU, gelu_second, NO_ATTRS)
BACKWARD(gelu_tanh, GELU_TANH, gelu_tanh_second, NO_ATTRS)
static PlStatus gelu_grad(PlMaker *g) {
  const PlOp *op = pl_attr_i(g->attrs, 0) ? &pl_op_gelu_tanh_bwd : &pl_op_gelu_bwd;
  g->dx[0] = pl_g2(g, op, g->dy[0], g->x[0]);
  return g->status;
}
PL_HOST_KERNEL(pl_host_gelu) {
  PlkCall k = *call;
  k.code = pl_attr_i(call->attrs, 0) ? PLK_EW_GELU_TANH : PLK_EW_GELU;
  return plk_cpu_elementwise(&k);
}
PL_OP(gelu, .doc = "x times the normal distribution function of x; approximate=\"tanh\" uses its tanh formula.",
      .example = "print(T.tensor { -1, 0, 1 }:gelu())  --> {-0.1587,  0.0000,  0.8413}  -- f32[3] cpu\n"
                 "print(T.tensor { 1 }:gelu { approximate = \"tanh\" })  --> {0.8412}  -- f32[1] cpu",
      .formula = "x (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016)", .nin = 1, .nout = 1, .args = {"x"},
      PARAM1(A_ENUM("approximate", "none|tanh", 0)), .cls = PL_POINTWISE, .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY,
      .promote = PL_PROMOTE_ALL, .kcode = PLK_EW_GELU, .infer = pl_infer_broadcast, .grad = gelu_grad, PL_KERNEL_OWN(pl_host_gelu),
      .fused = {1 + PLK_EW_GELU, 1 + PLK_EW_GELU_TANH});

/* β s r at βx; 0 where βx > threshold */
static PlVal softplus_second(PlMaker *g, PlVal x) {
  double beta = number(g, 0);
  PlVal bx = g_muln(g, x, beta);
  PlVal linear = pl_g2(g, &pl_op_gt, bx, pl_g_num(g, number(g, 1)));
  return g_where(g, linear, g_zero(g), g_muln(g, logistic(g, bx).slope, beta));
}
ACTIVATION(softplus, SOFTPLUS, pl_infer_broadcast, x[0], softplus_second, PARAM2(A_FLOAT("beta", 1), A_FLOAT("threshold", 20)),
           "log(1 + e^(beta x)) / beta", "A smooth relu, log(1 + e^(beta x)) / beta; x itself where beta x > threshold.",
           "print(T.tensor { -1, 0, 1 }:softplus())  --> {0.3133, 0.6931, 1.3133}  -- f32[3] cpu")

/* a e^(x/b)/b where x < 0; the slope jumps at 0, and PyTorch takes 0 there */
static PlVal exp_tail(PlMaker *g, PlVal x, double scale, double b) {
  PlVal negative = pl_g2(g, &pl_op_lt, x, g_zero(g));
  return g_where(g, negative, g_muln(g, F1(exp, b == 1 ? x : g_divn(g, x, b)), scale), g_zero(g));
}
static PlVal elu_second(PlMaker *g, PlVal x) { return exp_tail(g, x, number(g, 0), 1); }
static PlVal celu_second(PlMaker *g, PlVal x) { return exp_tail(g, x, 1 / number(g, 0), number(g, 0)); }
static PlVal selu_second(PlMaker *g, PlVal x) {
  return exp_tail(g, x, 1.0507009873554804934193349852946 * 1.6732632423543772848170429916717, 1);
}
ACTIVATION(elu, ELU, pl_infer_broadcast, x[0], elu_second, PARAM1(A_FLOAT("alpha", 1)), "x > 0 ? x : alpha (e^x - 1)",
           "x where positive, alpha (e^x - 1) elsewhere.", "print(T.tensor { -1, 1 }:elu())  --> {-0.6321,  1.0000}  -- f32[2] cpu")
ACTIVATION(selu, SELU, pl_infer_broadcast, x[0], selu_second, NO_ATTRS, "scale (x > 0 ? x : alpha (e^x - 1))",
           "elu with the two constants that keep mean 0 and variance 1 (Klambauer et al. 2017).",
           "print(T.tensor { -1, 1 }:selu())  --> {-1.1113,  1.0507}  -- f32[2] cpu")
static PlStatus celu_infer(PlInfer *c) {
  if (pl_attr_f(c->attrs, 0) == 0) PL_FAIL(PL_ERR_ARG, "celu: alpha must not be 0");
  return pl_infer_broadcast(c);
}
ACTIVATION(celu, CELU, celu_infer, x[0], celu_second, PARAM1(A_FLOAT("alpha", 1)), "x > 0 ? x : alpha (e^(x/alpha) - 1)",
           "x where positive, alpha (e^(x/alpha) - 1) elsewhere.",
           "print(T.tensor { -1, 1 }:celu(2))  --> {-0.7869,  1.0000}  -- f32[2] cpu")

/* 1/3 between -3 and 3 */
static PlVal hardswish_second(PlMaker *g, PlVal x) {
  PlVal inside = pl_g2(g, &pl_op_lt, F1(abs, x), pl_g_num(g, 3));
  return g_divn(g, pl_g_cast(g, inside, (PlDtype)g->outd[0].dtype), 3);
}
ACTIVATION(hardswish, HARDSWISH, pl_infer_broadcast, x[0], hardswish_second, NO_ATTRS, "x min(max(x + 3, 0), 6) / 6",
           "x hardsigmoid(x) (Howard et al. 2019).",
           "print(T.tensor { -4, 1, 4 }:hardswish())  --> {-0.0000,  0.6667,  4.0000}  -- f32[3] cpu")

/* t = tanh(softplus x): (1-t²)(2s + x s r - 2x t s²), 1 - t² = 4q/(1+q)² with q = e^(-2 softplus x) */
static PlVal mish_second(PlMaker *g, PlVal x) {
  const Logistic l = logistic(g, x);
  PlVal u = F1(softplus, x), t = F1(tanh, u), q = F1(exp, g_muln(g, u, -2)), q1 = g_addn(g, q, 1);
  PlVal a = g_add(g, g_muln(g, l.s, 2), g_mul(g, x, l.slope));
  PlVal b = g_muln(g, g_mul(g, g_mul(g, x, t), g_mul(g, l.s, l.s)), 2);
  return g_mul(g, g_muln(g, g_div(g, q, g_mul(g, q1, q1)), 4), g_sub(g, a, b));
}
ACTIVATION(mish, MISH, pl_infer_broadcast, x[0], mish_second, NO_ATTRS, "x tanh(softplus(x))", "x tanh(log(1 + e^x)) (Misra 2019).",
           "print(T.tensor { -1, 1 }:mish())  --> {-0.3034,  0.8651}  -- f32[2] cpu")

/* -s r */
static PlVal logsigmoid_second(PlMaker *g, PlVal x) { return g_neg(g, logistic(g, x).slope); }
ACTIVATION(logsigmoid, LOGSIGMOID, pl_infer_broadcast, x[0], logsigmoid_second, NO_ATTRS, "-log(1 + e^-x)",
           "log(sigmoid(x)) without underflow.", "print(T.tensor { -1, 1 }:logsigmoid())  --> {-1.3133, -0.3133}  -- f32[2] cpu")

/* ---- these two take integers as well: the default float comes out --------------------------------------- */

/* f' = 1/(1+|x|)², f'' = -2 sign(x)/(1+|x|)³ */
static PlVal softsign_second(PlMaker *g, PlVal x) {
  PlVal a = g_addn(g, F1(abs, x), 1);
  return g_div(g, g_muln(g, F1(sign, x), -2), g_mul(g, a, g_mul(g, a, a)));
}
BACKWARD(softsign, SOFTSIGN, softsign_second, NO_ATTRS)
static PlStatus softsign_grad(PlMaker *g) {
  g->dx[0] = pl_g2(g, &pl_op_softsign_bwd, g->dy[0], g->x[0]);
  return g->status;
}
/* f' = tanh² x */
static PlStatus tanhshrink_grad(PlMaker *g) {
  PlVal t = F1(tanh, g->x[0]);
  g->dx[0] = g_mul(g, g->dy[0], g_mul(g, t, t));
  return g->status;
}
#define FROM_INTEGERS(NAME, CODE, FORMULA, DOC, EXAMPLE)                                                                                \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_POINTWISE,              \
        .promote = PL_PROMOTE_FLOAT, .flags = PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY, .infer = pl_infer_broadcast, .grad = NAME##_grad, \
        PL_ELEMENTWISE(PLK_EW_##CODE));
FROM_INTEGERS(softsign, SOFTSIGN, "x / (1 + |x|)", "x / (1 + |x|); integers give the default float.",
              "print(T.tensor { -1, 3 }:softsign())  --> {-0.5000,  0.7500}  -- f32[2] cpu")
FROM_INTEGERS(tanhshrink, TANHSHRINK, "x - tanh(x)", "x - tanh(x); integers give the default float.",
              "print(T.tensor { -1, 1 }:tanhshrink())  --> {-0.2384,  0.2384}  -- f32[2] cpu")

/* ---- with a learned slope ----------------------------------------------------------------------------------- */

/* y = x (x > 0 ? 1 : w), w broadcast against x; made of three ops that are recorded one by one, so that no gradient has a
 * factor of the branch that was not taken. Lua shapes a per-channel weight to [C, 1, …]. */
static PlStatus prelu_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  (void)nin, (void)attrs;
  PlTensor *zero_t = NULL, *one_t = NULL, *positive = NULL, *slope = NULL;
  PlStatus s = pl_tensor_number(&zero_t, true, 0, 0);
  if (s == PL_OK) s = pl_tensor_number(&one_t, true, 1, 1);
  PlTensor *const cmp[2] = {in[0], zero_t};
  if (s == PL_OK) s = pl_apply(&pl_op_gt, cmp, 2, NULL, &positive);
  PlTensor *const pick[3] = {positive, one_t, in[1]};
  if (s == PL_OK) s = pl_apply(&pl_op_where, pick, 3, NULL, &slope);
  PlTensor *const both[2] = {in[0], slope};
  if (s == PL_OK) s = pl_apply(&pl_op_mul, both, 2, NULL, out);
  pl_tensor_release(zero_t);
  pl_tensor_release(one_t);
  pl_tensor_release(positive);
  pl_tensor_release(slope);
  return s;
}
PL_OP(prelu_core, .autocast = PL_CAST_LOW, .doc = "x where positive, weight x elsewhere; weight broadcasts against x.",
      .example = "print(T.prelu_core(T.tensor { -2, 3 }, T.tensor { 0.5 }))  --> {-1.,  3.}  -- f32[2] cpu",
      .formula = "x > 0 ? x : w x (He et al. 2015)", .nin = 2, .nout = 1, .args = {"x", "weight"}, .cls = PL_POINTWISE,
      .flags = PL_F_POLY | PL_F_NOMETHOD, .promote = PL_PROMOTE_ALL, .infer = pl_infer_broadcast, .expand = prelu_expand);
