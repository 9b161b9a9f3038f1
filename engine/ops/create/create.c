/* SPDX-License-Identifier: MIT
 * Tensors out of numbers: zeros, ones, full, eye, number lines; and the fills and copies that overwrite an
 * existing tensor. */
#include "kernels/create.h"

#include <math.h>

#include "engine/ops/make.h"
#include "engine/ops/shape/view.h"
#include "kernels/join.h"

/* Shape from list attribute `k`, dtype from attribute `t` (none: `other`). */
static PlStatus created(PlInfer *c, int k, int t, PlDtype other) {
  const int64_t *sizes = pl_attr_list(c->attrs, k);
  int n = pl_attr_n(c->attrs, k);
  PL_TRY(pl_sizes_check(c, n, sizes));
  pl_desc_set(&c->out[0], pl_attr_has(c->attrs, t) ? (PlDtype)pl_attr_i(c->attrs, t) : other, n, sizes);
  return PL_OK;
}

static PlStatus line(PlInfer *c, const char *what, int64_t n, int t, PlDtype other) {
  if (n < 0) PL_FAIL(PL_ERR_ARG, "%s: %s %lld is negative", c->op->name, what, (long long)n);
  pl_desc_set(&c->out[0], pl_attr_has(c->attrs, t) ? (PlDtype)pl_attr_i(c->attrs, t) : other, 1, &n);
  return PL_OK;
}

static PlStatus zeros_infer(PlInfer *c) { return created(c, 0, 1, pl_default_float()); }

PL_OP(zeros, .doc = "A tensor of zeros.",
      .example = "print(T.zeros(2, 2))\n"
                 "--> {{0., 0.},\n"
                 "-->  {0., 0.}}  -- f32[2,2] cpu",
      .nin = 0, .nout = 1, .nattr = 2, .attrs = {A_SHAPE_REQ("shape"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION, .flags = PL_F_ZEROS,
      .infer = zeros_infer, PL_KERNEL(zeros), );

PL_OP(ones, .doc = "A tensor of ones.", .example = "print(T.ones({ 2 }, { dtype = \"i64\" }))  --> {1, 1}  -- i64[2] cpu", .nin = 0,
      .nout = 1, .nattr = 2, .attrs = {A_SHAPE_REQ("shape"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION, .infer = zeros_infer,
      PL_KERNEL(ones), );

static PlStatus full_infer(PlInfer *c) { return created(c, 0, 2, pl_default_float()); }

PL_OP(full, .doc = "A tensor with every element set to value; dtype is the default float unless given.",
      .example = "print(T.full({ 2 }, 7))  --> {7, 7}  -- i64[2] cpu", .nin = 0, .nout = 1, .nattr = 3,
      .attrs = {A_SHAPE_REQ("shape"), A_VALUE_REQ("value"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION, .kcode = 1, .infer = full_infer,
      PL_KERNEL(full), );

static PlStatus eye_infer(PlInfer *c) {
  int64_t n = pl_attr_i(c->attrs, 0), m = pl_attr_has(c->attrs, 1) ? pl_attr_i(c->attrs, 1) : n;
  int64_t sizes[2] = {n, m};
  PL_TRY(pl_sizes_check(c, 2, sizes));
  pl_desc_set(&c->out[0], pl_attr_has(c->attrs, 2) ? (PlDtype)pl_attr_i(c->attrs, 2) : pl_default_float(), 2, sizes);
  return PL_OK;
}

PL_OP(eye, .doc = "The n by m (default n) matrix with ones on the main diagonal and zeros elsewhere.",
      .example = "print(T.eye(2))\n"
                 "--> {{1., 0.},\n"
                 "-->  {0., 1.}}  -- f32[2,2] cpu",
      .nin = 0, .nout = 1, .nattr = 3, .attrs = {A_INT_REQ("n"), A_INT_OPT("m"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION,
      .infer = eye_infer, PL_KERNEL(eye), );

/* ---- number lines ---------------------------------------------------------------------------------------- */

/* Attribute k, which may be an integer. */
static double number(const PlAttrs *a, int k) { return (a->isint >> k) & 1 ? (double)pl_attr_i(a, k) : pl_attr_f(a, k); }

static PlStatus linear_fill_infer(PlInfer *c) {
  bool whole = ((c->attrs->isint >> 1) & 1) && ((c->attrs->isint >> 2) & 1);
  const int64_t n = pl_attr_i(c->attrs, 0);
  PL_TRY(line(c, "n", n, 3, whole ? PL_I64 : pl_default_float()));
  const PlDtype d = (PlDtype)c->out[0].dtype;
  if (n == 0 || d == PL_I64 || !pl_is_int(d)) return PL_OK; /* of i64, sums wrap */
  const double start = number(c->attrs, 1), step = number(c->attrs, 2);
  PL_TRY(pl_check_fits(c, d, start));
  return pl_check_fits(c, d, start + (double)(n - 1) * step);
}

/* y[i] = start + i·step; arange counts n and calls this. */
PL_OP(linear_fill, .doc = "n numbers start, start + step, …; i64 if both are integers, else the default float.",
      .example = "print(T.linear_fill(3, 1, 0.5))  --> {1.0000, 1.5000, 2.0000}  -- f32[3] cpu", .nin = 0, .nout = 1, .nattr = 4,
      .attrs = {A_INT_REQ("n"), A_SCALAR_REQ("start"), A_SCALAR_REQ("step"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION,
      .flags = PL_F_CONTIGUOUS, .infer = linear_fill_infer, PL_KERNEL(linear_fill), );

static PlStatus linspace_infer(PlInfer *c) {
  const int64_t n = pl_attr_i(c->attrs, 2);
  PL_TRY(line(c, "steps", n, c->op->nattr - 1, pl_default_float()));
  const PlDtype d = (PlDtype)c->out[0].dtype;
  for (int k = 0; k < (n > 1 ? 2 : (int)n); k++) {
    const double v = pl_attr_f(c->attrs, k);
    PL_TRY(pl_check_fits(c, d, c->op == &pl_op_logspace ? pow(pl_attr_f(c->attrs, 3), v) : v));
  }
  return PL_OK;
}

PL_OP(linspace, .doc = "`steps` evenly spaced numbers from start to end, both included.",
      .example = "print(T.linspace(0, 1, 5))  --> {0.0000, 0.2500, 0.5000, 0.7500, 1.0000}  -- f32[5] cpu", .nin = 0, .nout = 1, .nattr = 4,
      .attrs = {A_FLOAT_REQ("start"), A_FLOAT_REQ("end"), A_INT_REQ("steps"), A_DTYPE_OPT("dtype")}, .cls = PL_CREATION,
      .flags = PL_F_CONTIGUOUS, .infer = linspace_infer, PL_KERNEL(linspace), );

PL_OP(logspace, .doc = "base to the power of `steps` evenly spaced numbers from start to end, both included.",
      .example = "print(T.logspace(0, 2, 3))  --> {  1.,  10., 100.}  -- f32[3] cpu", .nin = 0, .nout = 1, .nattr = 5,
      .attrs = {A_FLOAT_REQ("start"), A_FLOAT_REQ("end"), A_INT_REQ("steps"), A_FLOAT("base", 10.0), A_DTYPE_OPT("dtype")},
      .cls = PL_CREATION, .flags = PL_F_CONTIGUOUS, .infer = linspace_infer, PL_KERNEL(logspace), );

/* ---- overwriting -------------------------------------------------------------------------------------------- */

/* The old value does not reach the new one: its gradient is zero. What is written still requires a gradient, as where only a
 * part is written. */
static PlStatus forget_grad(PlMaker *g) {
  g_flat(g, 0);
  return g->status;
}

PL_OP(fill, .doc = "Sets every element of x to value, in place.",
      .example = "local x = T.zeros(2)\n"
                 "x:fill_(7)\n"
                 "print(x)  --> {7., 7.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_VALUE_REQ("value")}, .cls = PL_CREATION,
      .flags = PL_F_MUTATES | PL_F_SETS | PL_F_STORES | PL_F_POLY, .infer = pl_infer_same, .grad = forget_grad, PL_KERNEL(full), );

PL_OP(zero, .doc = "Sets every element of x to zero, in place.",
      .example = "local x = T.ones(2)\n"
                 "x:zero_()\n"
                 "print(x)  --> {0., 0.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_CREATION, .flags = PL_F_MUTATES | PL_F_SETS | PL_F_POLY, .infer = pl_infer_same,
      .grad = forget_grad, PL_KERNEL(zeros), );

static PlStatus copy_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *s = c->in[1];
  bool fits = s->ndim <= x->ndim;
  for (int d = 0; fits && d < s->ndim; d++) {
    int64_t n = s->shape[s->ndim - 1 - d];
    fits = n == 1 || n == x->shape[x->ndim - 1 - d];
  }
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "copy: %s does not broadcast to %s", pl_desc_text(s), pl_desc_text(x));
  return pl_infer_same(c);
}

static PlStatus copy_grad(PlMaker *g) {
  g_flat(g, 0);
  if (g->want[1]) g->dx[1] = pl_g_cast(g, pl_g_sum_to(g, g->dy[0], 1), (PlDtype)g->in[1]->dtype);
  return g->status;
}

PL_OP(copy, .doc = "Overwrites x with src, broadcast and converted to x's dtype, in place.",
      .example = "local x = T.zeros(2)\n"
                 "x:copy_(T.tensor { 1, 2 })\n"
                 "print(x)  --> {1., 2.}  -- f32[2] cpu",
      .nin = 2, .nout = 1, .args = {"x", "src"}, .cls = PL_CREATION,
      .flags = PL_F_MUTATES | PL_F_SETS | PL_F_CROSSES | PL_F_POLY | PL_F_SCALAR, .infer = copy_infer, .grad = copy_grad,
      PL_KERNEL(copy_into), );
