/* SPDX-License-Identifier: MIT
 * Elementwise arithmetic of two and three tensors: one paragraph an op, formula, gradient, descriptor.
 * All broadcast and promote; a gradient is summed back to its input's shape (g_give). The four of the hot
 * path have hand-written rules beside their graphs. Kernels: kernels/elementwise.h. */
#include <math.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/tensor/tensor.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"

#define FLAGS                         (PL_F_INPLACE | PL_F_SCALAR | PL_F_POLY)
#define ARITHMETIC                    (FLAGS | PL_F_WIDE)
#define BINARY(NAME, ...)             BINARY_FLAGS(NAME, FLAGS, __VA_ARGS__)
#define WIDE(NAME, ...)               BINARY_FLAGS(NAME, ARITHMETIC, __VA_ARGS__)
#define BINARY_FLAGS(NAME, BITS, ...) BINARY_WRAPS(NAME, BITS, 0, __VA_ARGS__)
#define RING(NAME, BITS, ...)         BINARY_WRAPS(NAME, ARITHMETIC | BITS, 3, __VA_ARGS__)
#define BINARY_WRAPS(NAME, BITS, WRAPS, A, B, CODE, PROMOTE, INFER, NATIVE, FORMULA, DOC, EXAMPLE)                                         \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = FORMULA, .nin = 2, .nout = 1, .args = {A, B}, .cls = PL_POINTWISE, .flags = BITS, \
        .wraps = WRAPS, .promote = PROMOTE, .infer = INFER, .grad = NAME##_grad, .native = NATIVE, PL_ELEMENTWISE(PLK_EW_##CODE));

/* The rule is pl_infer_broadcast wherever possible: the engine skips it where shapes and dtypes are equal. What
 * a dtype lacks (bool: sub) the kernel refuses. */
static PlStatus pow_infer(PlInfer *c) {
  if (c->compute == PL_BOOL)
    PL_FAIL(PL_ERR_DTYPE, "pow: %s and %s are bool; convert one: x:to(\"i64\")", pl_desc_text(c->in[0]), pl_desc_text(c->in[1]));
  return pl_infer_broadcast(c);
}

/* Input i as an array of the dtype in which it is computed with, the output's, but f32 beside halves: arithmetic between two plain
 * numbers would happen in the default float and lose digits of f64. */
static PlVal strong(PlMaker *g, int i) { return g->in[i]->weak ? pl_g_cast(g, g->x[i], (PlDtype)g->in[i]->dtype) : g->x[i]; }

/* ---- native rules ------------------------------------------------------------------------------------ */

/* Number, or like the output: then its gradient needs neither sum nor cast. */
static inline bool plain(const PlTensor *t, const PlTensor *out) {
  return t->a.weak || (t->a.dtype == out->a.dtype && pl_shape_equal(&t->a, &out->a));
}
static bool linear_ok(PlTensor *const *in, int nin, PlTensor *const *out, const PlAttrs *attrs) {
  (void)nin, (void)attrs;
  return plain(in[0], out[0]) && plain(in[1], out[0]);
}
static bool div_ok(PlTensor *const *in, int nin, PlTensor *const *out, const PlAttrs *attrs) {
  (void)nin, (void)attrs;
  return in[1]->a.weak && plain(in[0], out[0]);
}

static PlStatus add_bwd(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  (void)attrs, (void)saved;
  for (int i = 0; i < 2; i++)
    if (want[i]) dx[i] = pl_retain(dy[0]);
  return PL_OK;
}
static PlStatus sub_bwd(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  (void)attrs, (void)saved;
  if (want[1]) PL_TRY(pl_apply(&pl_op_neg, dy, 1, NULL, &dx[1]));
  if (want[0]) dx[0] = pl_retain(dy[0]);
  return PL_OK;
}
static PlStatus mul_bwd(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  (void)attrs;
  for (int i = 0; i < 2; i++) {
    PlTensor *const in[2] = {dy[0], saved[1 - i]};
    if (want[i]) PL_TRY(pl_apply(&pl_op_mul, in, 2, NULL, &dx[i])); /* the caller releases dx on failure */
  }
  return PL_OK;
}
static PlStatus div_bwd(const PlAttrs *attrs, PlTensor *const *saved, PlTensor *const *dy, const bool *want, PlTensor **dx) {
  (void)attrs;
  PlTensor *const in[2] = {dy[0], saved[1]};
  return want[0] ? pl_apply(&pl_op_div, in, 2, NULL, &dx[0]) : PL_OK;
}
static const PlNative add_native = {.ok = linear_ok, .bwd = add_bwd};
static const PlNative sub_native = {.ok = linear_ok, .bwd = sub_bwd};
static const PlNative mul_native = {.reads = {2, 1}, .ok = linear_ok, .bwd = mul_bwd};
static const PlNative div_native = {.reads = {2}, .ok = div_ok, .bwd = div_bwd};

/* ---- sums and products ---------------------------------------------------------------------------------- */

static PlStatus add_grad(PlMaker *g) {
  g_give(g, 0, g->dy[0]);
  g_give(g, 1, g->dy[0]);
  return g->status;
}
RING(add, PL_F_LINEAR | PL_F_COMMUTES, "x", "y", ADD, PL_PROMOTE_ALL, pl_infer_broadcast, &add_native, "dx = dy; dy' = dy",
     "x + y, broadcast and promoted; with {alpha = a} x + a y. Of two bool tensors: or.",
     "print(T.tensor { 1, 2 } + T.tensor { 10, 20 })  --> {11., 22.}  -- f32[2] cpu\n"
     "print(T.tensor { 1, 2 }:add(3))  --> {4., 5.}  -- f32[2] cpu")

static PlStatus sub_grad(PlMaker *g) {
  g_give(g, 0, g->dy[0]);
  if (g->want[1]) g_give(g, 1, g_neg(g, g->dy[0]));
  return g->status;
}
RING(sub, PL_F_LINEAR | PL_F_NO_BOOL, "x", "y", SUB, PL_PROMOTE_ALL, pl_infer_broadcast, &sub_native, "dx = dz; dy = -dz",
     "x - y, broadcast and promoted; with {alpha = a} x - a y. Not for bool.",
     "print(T.tensor { 1, 2 } - T.tensor { 10, 20 })  --> { -9., -18.}  -- f32[2] cpu\n"
     "print(T.tensor { 5 }:sub(3))  --> {2.}  -- f32[1] cpu")

/* x + alpha y: what add and sub do when given alpha. */
static PlStatus add_scaled_infer(PlInfer *c) {
  if (!pl_is_float(c->compute) && !(c->attrs->isint & 1))
    PL_FAIL(PL_ERR_ARG, "add: alpha %g is not an integer, but %s and %s are", pl_attr_f(c->attrs, 0), pl_desc_text(c->in[0]),
            pl_desc_text(c->in[1]));
  return pl_infer_broadcast(c);
}
static PlStatus add_scaled_grad(PlMaker *g) {
  double alpha = (g->attrs->isint & 1) ? (double)pl_attr_i(g->attrs, 0) : pl_attr_f(g->attrs, 0);
  g_give(g, 0, g->dy[0]);
  if (g->want[1]) g_give(g, 1, g_muln(g, g->dy[0], alpha));
  return g->status;
}
PL_OP(add_scaled, .doc = "x + alpha y, broadcast and promoted; integers need an integer alpha.",
      .example = "print(T.add_scaled(T.tensor { 1, 2 }, T.tensor { 10, 20 }, { alpha = 0.1 }))  --> {2., 4.}  -- f32[2] cpu",
      .formula = "dx = dz; dy = alpha dz", .nin = 2, .nout = 1, .nattr = 1, .args = {"x", "y"}, .attrs = {A_SCALAR_REQ("alpha")},
      .cls = PL_POINTWISE, .flags = ARITHMETIC, .promote = PL_PROMOTE_ALL, .infer = add_scaled_infer, .grad = add_scaled_grad,
      PL_ELEMENTWISE(PLK_EW_ADD_ALPHA));

static PlStatus mul_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, g_mul(g, g->dy[0], g->x[1]));
  if (g->want[1]) g_give(g, 1, g_mul(g, g->dy[0], g->x[0]));
  return g->status;
}
RING(mul, PL_F_COMMUTES, "x", "y", MUL, PL_PROMOTE_ALL, pl_infer_broadcast, &mul_native, "dx = dz y; dy = dz x",
     "x * y elementwise, broadcast and promoted. Of two bool tensors: and.",
     "print(T.tensor { 1, 2 } * T.tensor { 10, 20 })  --> {10., 40.}  -- f32[2] cpu\n"
     "print(T.tensor { 2 }:mul(3))  --> {6.}  -- f32[1] cpu")

static PlStatus div_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, g_div(g, g->dy[0], g->x[1]));
  if (g->want[1]) /* -x/y^2, in an order that does not overflow where x/y and 1/y do not */
    g_give(g, 1, g_mul(g, g_neg(g, g->dy[0]), g_div(g, g_div(g, g->x[0], g->x[1]), g->x[1])));
  return g->status;
}
WIDE(div, "x", "y", DIV, PL_PROMOTE_FLOAT, pl_infer_broadcast, &div_native, "dx = dz / y; dy = -dz x / y^2",
     "x / y, broadcast; integers give the default float. See floor_divide and trunc_divide for whole quotients.",
     "print(T.tensor { 1, 2 } / T.tensor { 10, 20 })  --> {0.1000, 0.1000}  -- f32[2] cpu\n"
     "print(T.tensor { 1 }:div(4))  --> {0.2500}  -- f32[1] cpu")

/* ---- whole quotients and remainders ------------------------------------------------------------------------ */

/* Piecewise constant in both. */
static PlStatus flat_grad(PlMaker *g) {
  g_flat(g, 0);
  g_flat(g, 1);
  return g->status;
}
#define floor_divide_grad flat_grad
#define trunc_divide_grad flat_grad
BINARY_FLAGS(floor_divide, ARITHMETIC | PL_F_LATE, "x", "y", FLOOR_DIVIDE, PL_PROMOTE_ALL, pl_infer_broadcast, NULL,
             "floor(x / y); gradients are 0", "x / y rounded down, in the common dtype. Integer division by 0 is an error.",
             "print(T.tensor { 7, -7 } // 2)  --> { 3., -4.}  -- f32[2] cpu\n"
             "print(T.tensor { 7 }:floor_divide(2))  --> {3.}  -- f32[1] cpu")
BINARY_FLAGS(trunc_divide, ARITHMETIC | PL_F_LATE, "x", "y", TRUNC_DIVIDE, PL_PROMOTE_ALL, pl_infer_broadcast, NULL,
             "trunc(x / y); gradients are 0", "x / y rounded toward 0, in the common dtype. Integer division by 0 is an error.",
             "print(T.tensor { 7, -7 }:trunc_divide(2))  --> { 3., -3.}  -- f32[2] cpu")

/* The quotient is the one that the result, which is exact, belongs to: -8 / 0.1 rounds to -80 in f32, 79 times 0.1 is what was taken. */
static PlStatus modulo_grad(PlMaker *g, const PlOp *modulo, const PlOp *quotient) {
  g_give(g, 0, g->dy[0]);
  if (g->want[1]) {
    PlVal x = pl_g1(g, &pl_op_stop_grad, g->x[0]), y = pl_g1(g, &pl_op_stop_grad, g->x[1]),
          q = g_div(g, g_sub(g, x, pl_g2(g, modulo, x, y)), y);
    PlVal whole = g_where(g, pl_g1(g, &pl_op_isfinite, q), pl_g1(g, &pl_op_round, q), pl_g2(g, quotient, x, y));
    g_give(g, 1, g_neg(g, g_mul(g, g->dy[0], whole)));
  }
  return g->status;
}
static PlStatus fmod_grad(PlMaker *g) { return modulo_grad(g, &pl_op_fmod, &pl_op_trunc_divide); }
static PlStatus remainder_grad(PlMaker *g) { return modulo_grad(g, &pl_op_remainder, &pl_op_floor_divide); }
BINARY_FLAGS(fmod, ARITHMETIC | PL_F_LATE, "x", "y", FMOD, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "dx = dz; dy = -dz trunc(x / y)",
             "x - y trunc(x / y): C's remainder, with the sign of x.", "print(T.tensor { 7, -7 }:fmod(3))  --> { 1., -1.}  -- f32[2] cpu")
BINARY_FLAGS(remainder, ARITHMETIC | PL_F_LATE, "x", "y", REMAINDER, PL_PROMOTE_ALL, pl_infer_broadcast, NULL,
             "dx = dz; dy = -dz floor(x / y)", "x - y floor(x / y): Lua's %, with the sign of y.",
             "print(T.tensor { 7, -7 } % 3)  --> {1., 2.}  -- f32[2] cpu\n"
             "print(T.tensor { 7 }:remainder(4))  --> {3.}  -- f32[1] cpu")

/* ---- powers ---------------------------------------------------------------------------------------------------- */

/* dx = dz e x^(e-1), 0 where e = 0 (not 0·∞ at x = 0); de = dz z log x, 0 where x = 0 and e ≥ 0. What is to be 0 there is
 * the slope, made of finite numbers: a mask
 * around the product would be within its transposed, 0·∞, in forward mode and second derivatives. */
static PlStatus pow_grad(PlMaker *g) {
  PlVal x = strong(g, 0), e = strong(g, 1), dz = g->dy[0];
  if (g->want[0]) {
    PlVal flat = pl_g2(g, &pl_op_eq, e, g_zero(g));
    /* where e may vary the slope is so at e = 0, too (it grows by 1/x), as long as 1/x is a number */
    if (g->want[1])
      flat = pl_g2(g, &pl_op_logical_and, flat, pl_g1(g, &pl_op_logical_not, pl_g1(g, &pl_op_isfinite, pl_g1(g, &pl_op_reciprocal, x))));
    PlVal safe = g_where(g, flat, pl_g_num(g, 1), e);
    PlVal slope = g_mul(g, e, pl_g2(g, &pl_op_pow, x, g_addn(g, safe, -1)));
    g_give(g, 0, g_mul(g, dz, g_where(g, flat, g_zero(g), slope)));
  }
  if (g->want[1]) {
    PlVal flat = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, x, g_zero(g)), pl_g2(g, &pl_op_ge, e, g_zero(g)));
    PlVal slope = g_mul(g, g->y[0], pl_g1(g, &pl_op_log, g_where(g, flat, pl_g_num(g, 1), x)));
    g_give(g, 1, g_mul(g, dz, slope));
  }
  return g->status;
}
BINARY_FLAGS(pow, ARITHMETIC | PL_F_NATURAL, "x", "exponent", POW, PL_PROMOTE_ALL, pow_infer, NULL, "dx = dz e x^(e-1); de = dz z log x",
             "x to the power of exponent, broadcast and promoted. Integer x with a negative integer exponent is an error.",
             "print(T.tensor { 1, 2, 3 } ^ 2)  --> {1., 4., 9.}  -- f32[3] cpu\n"
             "print(T.tensor { 2 }:pow(3))  --> {8.}  -- f32[1] cpu")

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

static PlStatus maximum_grad(PlMaker *g) {
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g_give(g, i, g_won(g, &pl_op_lt, g->x[i], g->x[1 - i], g->dy[0]));
  return g->status;
}
static PlStatus minimum_grad(PlMaker *g) {
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g_give(g, i, g_won(g, &pl_op_gt, g->x[i], g->x[1 - i], g->dy[0]));
  return g->status;
}
BINARY(maximum, "x", "y", MAXIMUM, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "equal inputs share the gradient",
       "The larger of x and y, elementwise; NaN if either is NaN.",
       "print(T.maximum(T.tensor { 1, 5 }, T.tensor { 3, 2 }))  --> {3., 5.}  -- f32[2] cpu")
BINARY(minimum, "x", "y", MINIMUM, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "equal inputs share the gradient",
       "The smaller of x and y, elementwise; NaN if either is NaN.",
       "print(T.minimum(T.tensor { 1, 5 }, T.tensor { 3, 2 }))  --> {1., 2.}  -- f32[2] cpu")

/* x is taken where x > y (fmax) or y is NaN; equal values take half each. */
static PlStatus fextreme_grad(PlMaker *g, const PlOp *wins) {
  PlVal x = g->x[0], y = g->x[1], dy = g->dy[0];
  PlVal first = pl_g2(g, &pl_op_logical_or, pl_g2(g, wins, x, y), pl_g1(g, &pl_op_isnan, strong(g, 1)));
  PlVal equal = pl_g2(g, &pl_op_eq, x, y), half = g_muln(g, dy, 0.5);
  if (g->want[0]) g_give(g, 0, g_where(g, equal, half, g_where(g, first, dy, g_zero(g))));
  if (g->want[1]) g_give(g, 1, g_where(g, equal, half, g_where(g, first, g_zero(g), dy)));
  return g->status;
}
static PlStatus fmax_grad(PlMaker *g) { return fextreme_grad(g, &pl_op_gt); }
static PlStatus fmin_grad(PlMaker *g) { return fextreme_grad(g, &pl_op_lt); }
BINARY(fmax, "x", "y", FMAX, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "the one taken gets the gradient, equal ones half each",
       "The larger of x and y, elementwise; a NaN loses against a number.",
       "print(T.fmax(T.tensor { 1, 0 / 0 }, T.tensor { 3, 2 }))  --> {3., 2.}  -- f32[2] cpu")
BINARY(fmin, "x", "y", FMIN, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "the one taken gets the gradient, equal ones half each",
       "The smaller of x and y, elementwise; a NaN loses against a number.",
       "print(T.fmin(T.tensor { 1, 0 / 0 }, T.tensor { 3, 2 }))  --> {1., 2.}  -- f32[2] cpu")

/* ---- functions of two floats -------------------------------------------------------------------------------------- */

static PlStatus atan2_grad(PlMaker *g) {
  PlVal y = strong(g, 0), x = strong(g, 1);
  PlVal origin = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, x, g_zero(g)), pl_g2(g, &pl_op_eq, y, g_zero(g)));
  PlVal far = g_where(g, origin, pl_g_num(g, (double)INFINITY), y);
  PlVal r = pl_g2(g, &pl_op_hypot, far, x); /* squares would leave the range where slopes do not; 0 at the origin */
  if (g->want[0]) g_give(g, 0, g_div(g, g_mul(g, g->dy[0], g_div(g, x, r)), r));
  if (g->want[1]) g_give(g, 1, g_neg(g, g_div(g, g_mul(g, g->dy[0], g_div(g, y, r)), r)));
  return g->status;
}
WIDE(atan2, "y", "x", ATAN2, PL_PROMOTE_FLOAT, pl_infer_broadcast, NULL, "dy = dz x / (x^2+y^2); dx = -dz y / (x^2+y^2)",
     "The angle of the point (x, y) from the positive x axis, in (-pi, pi].",
     "print(T.atan2(T.tensor { 1, -1 }, T.tensor { 1, -1 }))  --> { 0.7854, -2.3562}  -- f32[2] cpu")

static PlStatus hypot_grad(PlMaker *g) {
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g_give(g, i, g_mul(g, g->dy[0], g_div(g, g->x[i], g->y[0])));
  return g->status;
}
WIDE(hypot, "x", "y", HYPOT, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "dx = dz x / z; dy = dz y / z",
     "sqrt(x^2 + y^2) without overflow on the way. Floating inputs.",
     "print(T.hypot(T.tensor { 3, 5 }, T.tensor { 4, 12 }))  --> { 5., 13.}  -- f32[2] cpu")

/* The slope is ±1 in x, 0 at x = 0. */
static PlStatus copysign_grad(PlMaker *g) {
  if (g->want[0]) {
    PlVal sign = pl_g1(g, &pl_op_sign, strong(g, 0));
    g_give(g, 0, g_mul(g, g->dy[0], g_mul(g, sign, pl_g2(g, &pl_op_copysign, sign, g->y[0]))));
  }
  g_flat(g, 1);
  return g->status;
}
BINARY(copysign, "x", "y", COPYSIGN, PL_PROMOTE_FLOAT, pl_infer_broadcast, NULL, "dx = dz sign(x) sign(z); dy = 0",
       "|x| with the sign of y, that of -0 included.",
       "print(T.copysign(T.tensor { 1, 2 }, T.tensor { -1, 1 }))  --> {-1.,  2.}  -- f32[2] cpu")

static PlStatus logaddexp_grad(PlMaker *g) {
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g_give(g, i, g_logistic(g, g->dy[0], g_sub(g, g->x[i], g->x[1 - i])));
  return g->status;
}
WIDE(logaddexp, "x", "y", LOGADDEXP, PL_PROMOTE_ALL, pl_infer_broadcast, NULL, "dx = dz sigmoid(x - y); dy likewise",
     "log(e^x + e^y) without overflow. Floating inputs.",
     "print(T.logaddexp(T.tensor { 0, 100 }, T.tensor { 0, 100 }))  --> {  0.6931, 100.6931}  -- f32[2] cpu")

/* x log y, 0 where x = 0: there dx is log y, but 0 where y ≤ 0 as well. */
static PlStatus xlogy_grad(PlMaker *g) {
  PlVal x = strong(g, 0), y = strong(g, 1);
  if (g->want[0]) {
    PlVal flat = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, x, g_zero(g)), pl_g2(g, &pl_op_le, y, g_zero(g)));
    g_give(g, 0, g_mul(g, g->dy[0], g_where(g, flat, g_zero(g), pl_g1(g, &pl_op_log, y))));
  }
  if (g->want[1]) g_give(g, 1, g_mul(g, g->dy[0], g_div(g, x, y)));
  return g->status;
}
WIDE(xlogy, "x", "y", XLOGY, PL_PROMOTE_FLOAT, pl_infer_broadcast, NULL, "dx = dz log y; dy = dz x / y",
     "x log y, and 0 where x is 0 (unless y is NaN).", "print(T.xlogy(T.tensor { 0, 2 }, T.tensor { 0, 1 }))  --> {0., 0.}  -- f32[2] cpu")

/* ---- incomplete gamma functions, neighbours ------------------------------------------------------------- */

/* d/dx P(a, x) = x^(a-1) e^-x / gamma(a), taken through its logarithm. */
static PlStatus gammainc_slope(PlMaker *g, double sign) {
  if (g->want[0]) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: it has no gradient for a, only for x; pass a:detach()", g->op->name);
  /* in double: differences of large numbers, of which f32 has lost all digits at a = 1e6, f16 at 100 */
  PlVal a = pl_g_cast(g, strong(g, 0), PL_F64), x = pl_g_cast(g, strong(g, 1), PL_F64);
  PlVal l = g_sub(g, g_sub(g, g_mul(g, g_addn(g, a, -1), pl_g1(g, &pl_op_log, x)), x), pl_g1(g, &pl_op_lgamma, a));
  PlVal slope = pl_g_cast(g, g_muln(g, pl_g1(g, &pl_op_exp, l), sign), (PlDtype)g->outd[0].dtype);
  g_give(g, 1, g_mul(g, g->dy[0], slope));
  return g->status;
}
static PlStatus gammainc_grad(PlMaker *g) { return gammainc_slope(g, 1); }
static PlStatus gammaincc_grad(PlMaker *g) { return gammainc_slope(g, -1); }
BINARY_FLAGS(gammainc, PL_F_SCALAR | PL_F_POLY | PL_F_WIDE, "a", "x", GAMMAINC, PL_PROMOTE_FLOAT, pl_infer_broadcast, NULL,
             "dx = dz x^(a-1) e^-x / gamma(a)",
             "The regularized lower incomplete gamma function P(a, x), for a and x from 0 on; NaN below.",
             "print(T.gammainc(T.tensor { 1, 2 }, T.tensor { 1, 2 }))  --> {0.6321, 0.5940}  -- f32[2] cpu")
BINARY_FLAGS(gammaincc, PL_F_SCALAR | PL_F_POLY | PL_F_WIDE, "a", "x", GAMMAINCC, PL_PROMOTE_FLOAT, pl_infer_broadcast, NULL,
             "dx = -dz x^(a-1) e^-x / gamma(a)",
             "The regularized upper incomplete gamma function, 1 - gammainc(a, x) without its loss of digits.",
             "print(T.gammaincc(T.tensor { 1, 2 }, T.tensor { 1, 2 }))  --> {0.3679, 0.4060}  -- f32[2] cpu")

static PlStatus nextafter_infer(PlInfer *c) {
  if (!pl_is_float(c->compute))
    PL_FAIL(PL_ERR_DTYPE, "nextafter: needs floating tensors, got %s and %s", pl_desc_text(c->in[0]), pl_desc_text(c->in[1]));
  return pl_infer_broadcast(c);
}
static PlStatus nextafter_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, g->dy[0]);
  g_flat(g, 1);
  return g->status;
}
BINARY(nextafter, "x", "y", NEXTAFTER, PL_PROMOTE_ALL, nextafter_infer, NULL, "dx = dz; dy = 0",
       "The floating number of x's dtype next to x in the direction of y.",
       "print(T.tensor(1.0):nextafter(T.tensor(2.0)):item() > 1)  --> true")
