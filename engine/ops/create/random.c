/* SPDX-License-Identifier: MIT
 * Random tensors. Values depend on (seed, stream, element) only; `draws` says how many counter blocks a call
 * consumes. The kernels read the distribution's parameters from the first attributes. */
#include "kernels/random.h"

#include <float.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"
#include "kernels/create.h"

/* ---- counters ----------------------------------------------------------------------------------------- */

static uint64_t draws_of(const PlkCall *call, PlkRngKind kind) {
  const PlArray *y = call->out[0];
  return plk_rng_advance(kind, (PlDtype)y->dtype, (uint64_t)y->numel);
}
static uint64_t draws_uniform(const PlkCall *c) { return draws_of(c, PLK_RNG_UNIFORM); }
static uint64_t draws_normal(const PlkCall *c) { return draws_of(c, PLK_RNG_NORMAL); }
static uint64_t draws_exponential(const PlkCall *c) { return draws_of(c, PLK_RNG_EXPONENTIAL); }
static uint64_t draws_randint(const PlkCall *c) { return draws_of(c, PLK_RNG_RANDINT); }
static uint64_t draws_bernoulli(const PlkCall *c) { return draws_of(c, PLK_RNG_BERNOULLI); }
static uint64_t draws_dropout(const PlkCall *c) { return draws_of(c, PLK_RNG_DROPOUT); }
static uint64_t draws_randperm(const PlkCall *c) { return draws_of(c, PLK_RNG_RANDPERM); }
static uint64_t draws_multinomial(const PlkCall *c) {
  int64_t a = c->in[0]->numel, b = c->out[0]->numel;
  return plk_rng_advance(PLK_RNG_MULTINOMIAL, PL_I64, (uint64_t)(a > b ? a : b));
}

/* ---- rules --------------------------------------------------------------------------------------------- */

/* Attributes: two parameters, shape, dtype. */
static PlStatus drawn_infer(PlInfer *c) {
  int n = pl_attr_n(c->attrs, 2);
  bool ints = c->op->attrs[0].type == PL_A_INT;
  PlDtype t = pl_attr_has(c->attrs, 3) ? (PlDtype)pl_attr_i(c->attrs, 3) : ints ? PL_I64 : pl_default_float();
  PL_TRY(pl_sizes_check(c, n, pl_attr_list(c->attrs, 2)));
  if (!ints && !pl_is_float(t)) PL_FAIL(PL_ERR_DTYPE, "%s: dtype must be floating, got %s", c->op->name, pl_dtype_name(t));
  pl_desc_set(&c->out[0], t, n, pl_attr_list(c->attrs, 2));
  return PL_OK;
}

/* Are all integers of low … high of the dtype? Floats have gaps beyond 2^digits. */
static PlStatus fits_check(const PlInfer *c, PlDtype t) {
  static const int digits[PL_NDTYPE] = {[PL_F16] = 11, [PL_BF16] = 8, [PL_F32] = 24, [PL_F64] = 53};
  const int64_t low = pl_attr_i(c->attrs, 0), high = pl_attr_i(c->attrs, 1);
  const int64_t lo = digits[t] ? -(INT64_C(1) << digits[t]) : pl_int_least(t), hi = digits[t] ? INT64_C(1) << digits[t] : pl_int_most(t);
  if (t != PL_BOOL && (low < lo || high > hi))
    PL_FAIL(PL_ERR_ARG, "%s: %s does not hold all integers from %lld to %lld, only from %lld to %lld; draw i64 and convert that",
            c->op->name, pl_dtype_name(t), (long long)low, (long long)high, (long long)lo, (long long)hi);
  return PL_OK;
}

static PlStatus range_check(const PlInfer *c) {
  if (pl_attr_i(c->attrs, 0) > pl_attr_i(c->attrs, 1))
    PL_FAIL(PL_ERR_ARG, "%s: low %lld is above high %lld", c->op->name, (long long)pl_attr_i(c->attrs, 0),
            (long long)pl_attr_i(c->attrs, 1));
  return PL_OK;
}

/* uniform: low, high; normal: mean, std. NaN is neither. */
static PlStatus limits_check(const PlInfer *c, PlDtype t) {
  const double a = pl_attr_f(c->attrs, 0), b = pl_attr_f(c->attrs, 1);
  if (c->op == &pl_op_normal || c->op == &pl_op_normal_fill) {
    if (!(b >= 0.0)) PL_FAIL(PL_ERR_ARG, "%s: std must be a number >= 0, got %g", c->op->name, b);
  } else if (!(a <= b)) PL_FAIL(PL_ERR_ARG, "%s: low %g must not exceed high %g", c->op->name, a, b);
  else if (pl_is_float(t)) { /* halves are drawn in f32, so their range may be wider than they are */
    const double most = t == PL_F16 ? 65504.0 : t == PL_F64 ? DBL_MAX : t == PL_BF16 ? 0x1.fep127 : (double)FLT_MAX;
    const double widest = t == PL_F64 ? DBL_MAX : (double)FLT_MAX;
    if (!(a >= -most && b <= most && b - a <= widest))
      PL_FAIL(PL_ERR_ARG, "%s: %g to %g is no range of %s, whose numbers reach %g; the range must not be wider than %g", c->op->name, a, b,
              pl_dtype_name(t), most, widest);
  }
  return PL_OK;
}
static PlStatus floats_infer(PlInfer *c) {
  PL_TRY(drawn_infer(c));
  return limits_check(c, (PlDtype)c->out[0].dtype);
}

static PlStatus randint_infer(PlInfer *c) {
  PL_TRY(range_check(c));
  PL_TRY(drawn_infer(c));
  return fits_check(c, (PlDtype)c->out[0].dtype);
}

PL_OP(uniform, .doc = "Floats uniform in [low, high).",
      .example = "local x = T.uniform(2, 3, { 100 })\n"
                 "print(x:ge(2):all():item(), x:lt(3):all():item())  --> true\ttrue",
      .nin = 0, .nout = 1, .nattr = 4, .attrs = {A_FLOAT_REQ("low"), A_FLOAT_REQ("high"), A_SHAPE_REQ("shape"), A_DTYPE_OPT("dtype")},
      .cls = PL_CREATION, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS, .infer = floats_infer, .draws = draws_uniform, PL_KERNEL(uniform), );

PL_OP(normal, .doc = "Floats from the normal distribution with the given mean and standard deviation.",
      .example = "T.manual_seed(1)\n"
                 "print(math.abs(T.normal(5, 0.1, { 1000 }):mean():item() - 5) < 0.05)  --> true",
      .nin = 0, .nout = 1, .nattr = 4, .attrs = {A_FLOAT_REQ("mean"), A_FLOAT_REQ("std"), A_SHAPE_REQ("shape"), A_DTYPE_OPT("dtype")},
      .cls = PL_CREATION, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS, .infer = floats_infer, .draws = draws_normal, PL_KERNEL(normal), );

PL_OP(randint, .doc = "Integers uniform in low … high, both included; i64 unless dtype is given.",
      .example = "local x = T.randint(1, 6, { 100 })\n"
                 "print(x:min():item() >= 1, x:max():item() <= 6, x:dtype())  --> true\ttrue\ti64",
      .nin = 0, .nout = 1, .nattr = 4, .attrs = {A_INT_REQ("low"), A_INT_REQ("high"), A_SHAPE_REQ("shape"), A_DTYPE_OPT("dtype")},
      .cls = PL_CREATION, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS, .infer = randint_infer, .draws = draws_randint, PL_KERNEL(randint), );

static PlStatus randperm_infer(PlInfer *c) {
  int64_t n = pl_attr_i(c->attrs, 0);
  if (n < 0) PL_FAIL(PL_ERR_ARG, "randperm: n %lld is negative", (long long)n);
  pl_desc_set(&c->out[0], PL_I64, 1, &n);
  return PL_OK;
}

PL_OP(randperm, .doc = "A random permutation of index_base … n + index_base - 1, i64.",
      .example = "print((T.randperm(4):sort()))  --> {1, 2, 3, 4}  -- i64[4] cpu", .nin = 0, .nout = 1, .nattr = 2,
      .attrs = {A_INT_REQ("n"), A_BASE}, .cls = PL_CREATION, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS, .infer = randperm_infer,
      .draws = draws_randperm, PL_KERNEL(randperm_based), );

/* ---- drawing from probabilities --------------------------------------------------------------------------- */

static PlStatus bernoulli_infer(PlInfer *c) {
  if (!pl_attr_has(c->attrs, 0)) PL_TRY(pl_check_float(c, 0));
  return pl_infer_same(c);
}

/* Where x holds probabilities the draw is a constant of them, as in other frameworks: gradient zero. */
static PlStatus bernoulli_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_zeros_like(g, 0);
  return g->status;
}

PL_OP(bernoulli,
      .doc = "Ones and zeros of x's shape and dtype: one with probability p, or without p with the probability that "
             "x holds there.",
      .example = "print(T.bernoulli(T.tensor { 0, 1 }))  --> {0., 1.}  -- f32[2] cpu", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_FLOAT_OPT("p")}, .cls = PL_CREATION, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS | PL_F_POLY, .infer = bernoulli_infer,
      .grad = bernoulli_grad, .draws = draws_bernoulli, PL_KERNEL(bernoulli_like), );

static PlStatus multinomial_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t n = pl_attr_i(c->attrs, 0), k;
  PL_TRY(pl_check_ndim(c, 0, 1, 2));
  PL_TRY(pl_check_float(c, 0));
  k = x->shape[x->ndim - 1];
  if (n < 1) PL_FAIL(PL_ERR_ARG, "multinomial: num_samples %lld must be at least 1", (long long)n);
  if (!pl_attr_i(c->attrs, 1) && n > k)
    PL_FAIL(PL_ERR_ARG, "multinomial: %lld samples without replacement from %lld categories; pass replacement=true", (long long)n,
            (long long)k);
  pl_desc_set(&c->out[0], PL_I64, x->ndim, x->shape);
  c->out[0].shape[x->ndim - 1] = n;
  return pl_sizes_check(c, x->ndim, c->out[0].shape);
}

PL_OP(multinomial, .doc = "num_samples categories drawn with the weights in the last dim of x ([k] or [rows,k]), i64.",
      .example = "print(T.multinomial(T.tensor { 0, 1, 0 }, 1))  --> {2}  -- i64[1] cpu", .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},
      .attrs = {A_INT_REQ("num_samples"), A_BOOL("replacement", 0), A_BASE}, .cls = PL_CREATION,
      .flags = PL_F_SEEDED | PL_F_CONTIGUOUS | PL_F_NOGRAD_OK | PL_F_LATE, .infer = multinomial_infer, .draws = draws_multinomial,
      PL_KERNEL(multinomial_based), );

static PlStatus alias_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 0, 1, 1));
  PL_TRY(pl_check_float(c, 0));
  if (c->in[0]->shape[0] == 0) PL_FAIL(PL_ERR_SHAPE, "%s: probs is empty", c->op->name);
  pl_desc_set(&c->out[0], PL_I64, 1, c->in[0]->shape);
  pl_desc_set(&c->out[1], (PlDtype)c->in[0]->dtype, 1, c->in[0]->shape);
  return PL_OK;
}
static PlStatus alias_run(const PlkCall *call) {
  PL_TRY(plk_cpu_multinomial_alias_setup(call));
  const int64_t base = pl_attr_i(call->attrs, 0);
  for (int64_t i = 0; call->out[0] && i < call->out[0]->numel; i++) ((int64_t *)call->out[0]->data)[i] += base;
  return PL_OK;
}

PL_OP(multinomial_alias_setup,
      .example = "local J, q = T.multinomial_alias_setup(T.tensor { 3, 1 })\n"
                 "print(J, q)  --> {1, 1}  -- i64[2] cpu\t{1.0000, 0.5000}  -- f32[2] cpu",
      .doc = "Tables J (i64) and q for drawing from the weights probs[k] in constant time (Walker 1977): place i, all being "
             "equally likely, stands for category i with probability q[i], else for J[i]. T.multinomial_alias_draw draws.",
      .nin = 1, .nout = 2, .nattr = 1, .args = {"probs"}, .attrs = {A_BASE}, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_NOGRAD_OK,
      .infer = alias_infer, .kernel = {[PL_CPU] = alias_run});

/* ---- dropout ------------------------------------------------------------------------------------------------ */

static PlStatus dropout_infer(PlInfer *c) {
  double p = pl_attr_f(c->attrs, 0);
  PL_TRY(pl_check_float(c, 0));
  if (!(p >= 0.0 && p <= 1.0)) PL_FAIL(PL_ERR_ARG, "%s: p %g must be in 0..1", c->op->name, p);
  if (c->op == &pl_op_dropout_bwd) {
    PL_TRY(pl_check_dtype(c, 1, PL_BOOL));
    PL_TRY(pl_check_like(c, 1, 0));
  }
  PL_TRY(pl_infer_same(c));
  if (c->op->nout > 1) pl_desc_set(&c->out[1], PL_BOOL, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

static PlVal drop(PlMaker *g, PlVal v, PlVal mask) {
  PlAttrs a;
  PlVal in[2] = {v, mask};
  pl_attrs_init(&pl_op_dropout_bwd, &a);
  pl_attrs_float(&a, 0, pl_attr_f(g->attrs, 0));
  return pl_g_op(g, &pl_op_dropout_bwd, 2, in, &a, NULL);
}

static PlStatus dropout_grad(PlMaker *g) {
  if (g->want[0] && g->dy[0] != PL_NONE) g->dx[0] = drop(g, g->dy[0], g->y[1]);
  return g->status;
}

/* y = x·mask / (1 - p), mask ~ Bernoulli(1 - p); dx = dy·mask / (1 - p). */
PL_OP(dropout,
      .doc = "Zeroes elements with probability p and scales the others by 1 / (1 - p); also gives the bool mask of "
             "what was kept.",
      .example = "print(T.dropout(T.ones(2), 0))  --> {1., 1.}  -- f32[2] cpu", .nin = 1, .nout = 2, .nvisible = 1, .spare = 2, .nattr = 1,
      .args = {"x"}, .attrs = {A_FLOAT("p", 0.5)}, .cls = PL_OPAQUE, .flags = PL_F_SEEDED | PL_F_CONTIGUOUS | PL_F_POLY,
      .infer = dropout_infer, .grad = dropout_grad, .draws = draws_dropout, PL_KERNEL(dropout), );

static PlStatus dropout_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = drop(g, g->dy[0], g->x[1]);
  return g->status;
}

PL_OP(dropout_bwd, .doc = "dy where mask, over 1 - p; zero elsewhere.", .nin = 2, .nout = 1, .nattr = 1, .args = {"dy", "mask"},
      .attrs = {A_FLOAT_REQ("p")}, .cls = PL_OPAQUE, .batch = pl_batch_each, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS | PL_F_POLY,
      .infer = dropout_infer, .grad = dropout_bwd_grad, PL_KERNEL(dropout_bwd), );

/* ---- fills in place ----------------------------------------------------------------------------------------- */

/* The old value does not reach the new one: its gradient is zero. What is written still requires a gradient, as where only a
 * part is written. */
static PlStatus forget_grad(PlMaker *g) {
  g_flat(g, 0);
  return g->status;
}

static PlStatus fill_infer(PlInfer *c) {
  PL_TRY(pl_check_float(c, 0));
  if (c->op->nattr == 2) PL_TRY(limits_check(c, (PlDtype)c->in[0]->dtype));
  return pl_infer_same(c);
}
static PlStatus exponential_infer(PlInfer *c) {
  if (!(pl_attr_f(c->attrs, 0) > 0)) PL_FAIL(PL_ERR_ARG, "%s: rate %g must be positive", c->op->name, pl_attr_f(c->attrs, 0));
  return fill_infer(c);
}
static PlStatus randint_fill_infer(PlInfer *c) {
  PL_TRY(range_check(c));
  if (c->in[0]->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "randint_fill: not for bool; use bernoulli_fill");
  PL_TRY(fits_check(c, (PlDtype)c->in[0]->dtype));
  return pl_infer_same(c);
}
static PlStatus bernoulli_fill_infer(PlInfer *c) {
  double p = pl_attr_f(c->attrs, 0);
  if (!(p >= 0.0 && p <= 1.0)) PL_FAIL(PL_ERR_ARG, "%s: p %g must be in 0..1", c->op->name, p);
  return pl_infer_same(c);
}

enum { FILL = PL_F_MUTATES | PL_F_SEEDED | PL_F_CONTIGUOUS | PL_F_POLY };

PL_OP(uniform_fill, .doc = "Overwrites x with floats uniform in [low, high).",
      .example = "local x = T.zeros(2)\n"
                 "x:uniform_(3, 3)\n"
                 "print(x)  --> {3., 3.}  -- f32[2] cpu\n"
                 "T.uniform_fill_(x, 4, 4)\n"
                 "print(x)  --> {4., 4.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_FLOAT("low", 0.0), A_FLOAT("high", 1.0)}, .cls = PL_CREATION,
      .flags = FILL, .infer = fill_infer, .grad = forget_grad, .draws = draws_uniform, PL_KERNEL(uniform), );

PL_OP(normal_fill, .doc = "Overwrites x with floats of the normal distribution.",
      .example = "local x = T.zeros(2)\n"
                 "x:normal_(3, 0)\n"
                 "print(x)  --> {3., 3.}  -- f32[2] cpu\n"
                 "T.normal_fill_(x, 4, 0)\n"
                 "print(x)  --> {4., 4.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_FLOAT("mean", 0.0), A_FLOAT("std", 1.0)}, .cls = PL_CREATION,
      .flags = FILL, .infer = fill_infer, .grad = forget_grad, .draws = draws_normal, PL_KERNEL(normal), );

PL_OP(exponential_fill, .doc = "Overwrites x with floats of density rate·exp(-rate·x).",
      .example = "local x = T.zeros(2)\n"
                 "T.exponential_fill_(x, 2)\n"
                 "print(x:gt(0):all():item())  --> true",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_FLOAT("rate", 1.0)}, .cls = PL_CREATION, .flags = FILL,
      .infer = exponential_infer, .grad = forget_grad, .draws = draws_exponential, PL_KERNEL(exponential), );

PL_OP(randint_fill, .doc = "Overwrites x with integers uniform in low … high, both included.",
      .example = "local x = T.zeros(2)\n"
                 "T.randint_fill_(x, 5, 5)\n"
                 "print(x)  --> {5., 5.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_INT_REQ("low"), A_INT_REQ("high")}, .cls = PL_CREATION,
      .flags = FILL | PL_F_STORES, .infer = randint_fill_infer, .grad = forget_grad, .draws = draws_randint, PL_KERNEL(randint), );

PL_OP(bernoulli_fill, .doc = "Overwrites x with ones (probability p) and zeros.",
      .example = "local x = T.zeros(2)\n"
                 "T.bernoulli_fill_(x, 1)\n"
                 "print(x)  --> {1., 1.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_FLOAT("p", 0.5)}, .cls = PL_CREATION, .flags = FILL,
      .infer = bernoulli_fill_infer, .grad = forget_grad, .draws = draws_bernoulli, PL_KERNEL(bernoulli_fill), );
