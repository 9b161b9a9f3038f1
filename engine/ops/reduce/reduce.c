/* SPDX-License-Identifier: MIT
 * Reductions: sums, means, products, extremes, truth, norms, moments. x is any shape; y has the dims that
 * are left (keepdim: reduced ones stay as 1). Sums run over fixed blocks, so bits do not depend on threads. */
#include <math.h>

#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/ops/shape/view.h"
#include "kernels/fused.h"
#include "kernels/reduce.h"

#define DIMS A_DIMS_OPT("dim"), A_BOOL("keepdim", 0)
/* What fused kernels call a reduction; others have no member there. */
#define FUSED(CODE)                                    \
  (CODE == PLK_R_SUM         ? 1 + PLK_FUSED_SUM       \
   : CODE == PLK_R_MEAN      ? 1 + PLK_FUSED_MEAN      \
   : CODE == PLK_R_AMAX      ? 1 + PLK_FUSED_AMAX      \
   : CODE == PLK_R_AMIN      ? 1 + PLK_FUSED_AMIN      \
   : CODE == PLK_R_LOGSUMEXP ? 1 + PLK_FUSED_LOGSUMEXP \
                             : 0)
#define REDUCTION(CODE)                                                                                                           \
  .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_REDUCTION, .kcode = CODE,                                                         \
  .rows = {PL_ROWS_DIMS, 0, "f:c", CODE == PLK_R_SUM || CODE == PLK_R_MEAN ? &plk_cpu_sum_pieces : NULL}, .fused = {FUSED(CODE)}, \
  PL_KERNEL(reduce)

static uint32_t mask_of(const PlMaker *g) { return dims_listed(g->attrs, 0, g->in[0]->ndim); }
/* A value of the reduced shape, ready to broadcast against x. */
static PlVal wide(PlMaker *g, PlVal v, uint32_t mask, int keep_at) {
  return g_undo_reduce(g, v, g->in[0]->ndim, mask, pl_attr_i(g->attrs, keep_at) != 0);
}

/* ---- sum, mean ------------------------------------------------------------------------------------- */

static PlStatus sum_infer(PlInfer *c) {
  const PlDtype d = dims_sum_dtype(c, 2);
  PL_TRY(dims_sum_check(c, d));
  return pl_infer_reduced(c, d);
}

static PlStatus sum_grad(PlMaker *g) {
  PlVal v = g_to_input(g, g->dy[0], (PlDtype)g->outd[0].dtype, 0);
  g->dx[0] = pl_g_expand_like(g, wide(g, v, mask_of(g), 1), 0);
  return g->status;
}

PL_OP(sum, REDUCTION(PLK_R_SUM),
      .doc = "The sum over the dims given, or of all elements. Integers and bools add up in i64; "
             "dtype= converts first.",
      .example = "local x = T.tensor { { 1, 2 }, { 3, 4 } }\n"
                 "print(x:sum())  --> 10.  -- f32[] cpu\n"
                 "print(x:sum(1), x:sum(-1, { keepdim = true }))\n"
                 "--> {4., 6.}  -- f32[2] cpu\t{{3.},\n"
                 "-->  {7.}}  -- f32[2,1] cpu",
      .formula = "dx = dy", .nattr = 3, .attrs = {DIMS, A_DTYPE_OPT("dtype")},
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_ANY_STRIDES | PL_F_POLY, .batch = pl_batch_dims, .infer = sum_infer,
      .grad = sum_grad);

static PlStatus mean_infer(PlInfer *c) {
  bool given = pl_attr_has(c->attrs, 2);
  PlDtype d = given ? (PlDtype)pl_attr_i(c->attrs, 2) : c->compute;
  if (!pl_is_float(d))
    PL_FAIL(PL_ERR_DTYPE, "%s: %s is no floating %s; say x:%s{dtype=\"f32\"}", c->op->name,
            given ? pl_dtype_name(d) : pl_desc_text(c->in[0]), given ? "dtype" : "tensor", c->op->name);
  return pl_infer_reduced(c, d);
}

static PlStatus mean_grad(PlMaker *g) {
  uint32_t mask = mask_of(g);
  int64_t n = dims_count(g->in[0], mask);
  PlVal v = g_divn(g, g->dy[0], (double)(n ? n : 1));
  g->dx[0] = pl_g_expand_like(g, wide(g, g_to_input(g, v, (PlDtype)g->outd[0].dtype, 0), mask, 1), 0);
  return g->status;
}

PL_OP(mean, REDUCTION(PLK_R_MEAN),
      .doc = "The mean over the dims given, or of all elements. Floating tensors only, unless "
             "dtype= says a floating dtype.",
      .example = "local x = T.tensor { { 1, 2 }, { 3, 4 } }\n"
                 "print(x:mean(), x:mean(1))  --> 2.5000  -- f32[] cpu\t{2., 3.}  -- f32[2] cpu",
      .formula = "dx = dy / n", .nattr = 3, .attrs = {DIMS, A_DTYPE_OPT("dtype")},
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_ANY_STRIDES, .batch = pl_batch_dims, .infer = mean_infer,
      .grad = mean_grad);

static PlStatus nansum_grad(PlMaker *g) {
  PlVal v = g_to_input(g, g->dy[0], (PlDtype)g->outd[0].dtype, 0);
  g->dx[0] = g_mul(g, wide(g, v, mask_of(g), 1), pl_g2(g, &pl_op_eq, g->x[0], g->x[0]));
  return g->status;
}

PL_OP(nansum, REDUCTION(PLK_R_NANSUM), .doc = "The sum with NaN counted as 0.",
      .example = "print(T.tensor { 1, 0 / 0, 2 }:nansum())  --> 3.  -- f32[] cpu", .formula = "dx = dy where x is not NaN, else 0",
      .nattr = 3, .attrs = {DIMS, A_DTYPE_OPT("dtype")}, .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY, .batch = pl_batch_dims,
      .infer = sum_infer, .grad = nansum_grad);

/* ---- sum_to ------------------------------------------------------------------------------------------ */

/* The target shape: attribute 0, or the values of input 1. */
static PlStatus sum_to_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *s = c->nin > 1 ? c->in[1] : NULL;
  int64_t shape[PL_MAX_DIM];
  const int64_t *to = shape;
  int64_t n = 0;
  if (pl_attr_has(c->attrs, 0)) {
    to = pl_attr_list(c->attrs, 0), n = pl_attr_n(c->attrs, 0);
  } else if (s) {
    if (s->dtype != PL_I64 || s->ndim != 1) PL_FAIL(PL_ERR_DTYPE, "sum_to: shape must be a list of sizes, i64[n], got %s", pl_desc_text(s));
    n = s->shape[0];
    for (int64_t i = 0; i < n && n <= x->ndim; i++) shape[i] = ((const int64_t *)s->data)[i * s->strides[0]];
  } else {
    PL_FAIL(PL_ERR_ARG, "sum_to: argument shape is missing");
  }
  int64_t lead = x->ndim - n;
  bool fits = lead >= 0;
  for (int64_t d = 0; fits && d < n; d++) fits = to[d] == x->shape[lead + d] || to[d] == 1;
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "sum_to: %s cannot be summed to a shape of %lld dims that does not broadcast to it", pl_desc_text(x),
            (long long)n);
  pl_desc_set(&c->out[0], c->compute, (int)n, to);
  return PL_OK;
}

static PlStatus sum_to_grad(PlMaker *g) {
  g->dx[0] = pl_g_expand_like(g, g->dy[0], 0);
  return g->status;
}

PL_OP(sum_to, .doc = "x summed down to a shape that broadcasts to x's: the adjoint of broadcasting.",
      .example = "print(T.sum_to(T.ones(2, 3), nil, { shape = { 1, 3 } }))  --> {{2., 2., 2.}}  -- f32[1,3] cpu",
      .formula = "dx = dy broadcast", .nin = 2, .nopt = 1, .nout = 1, .nattr = 1, .args = {"x", "shape_values"},
      .attrs = {{.name = "shape", .type = PL_A_SHAPE, .optional = true}}, .cls = PL_REDUCTION, .batch = pl_batch_sum_to,
      .rows = {PL_ROWS_TO, 0, "f:c", &plk_cpu_sum_pieces},
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_ANY_STRIDES | PL_F_POLY, .reads_values = 2, .sizes = 2,
      .sized = &pl_op_sum_to, .infer = sum_to_infer, .grad = sum_to_grad, .fused = {1 + PLK_FUSED_SUM}, PL_KERNEL(sum_to));

/* ---- prod ---------------------------------------------------------------------------------------------- */

#define prod_infer sum_infer

/* The gradient's kernel takes one dim, or all; several become one behind the others. */
static PlStatus prod_grad(PlMaker *g) {
  const int n = g->in[0]->ndim;
  const uint32_t mask = mask_of(g), every = (1u << n) - 1;
  const int count = __builtin_popcount(mask);
  PlAttrs a;
  PlVal in[2] = {g->x[0], g->dy[0]};
  pl_attrs_init(&pl_op_prod_bwd, &a);
  if (mask == every || count < 2) {
    if (mask != every) pl_attrs_int(&a, 0, __builtin_ctz(mask));
    g->dx[0] = pl_g_op(g, &pl_op_prod_bwd, 2, in, &a, NULL);
    return g->status;
  }
  int64_t order[PL_MAX_DIM], back[PL_MAX_DIM];
  int kept = 0, last = n - count;
  for (int d = 0; d < n; d++) {
    back[d] = mask >> d & 1 ? last++ : kept++;
    order[back[d]] = d;
  }
  PlAttrs by;
  pl_attrs_init(&pl_op_permute, &by);
  pl_g_fail(g, pl_attrs_list(&by, 0, n, order));
  PlVal x = pl_g_op(g, &pl_op_permute, 1, &g->x[0], &by, NULL), shape = pl_g1(g, &pl_op_shape_of, x);
  pl_attrs_init(&pl_op_flatten, &by);
  pl_attrs_int(&by, 0, kept);
  pl_attrs_int(&by, 1, n - 1);
  in[0] = pl_g_op(g, &pl_op_flatten, 1, &x, &by, NULL);
  pl_attrs_int(&a, 0, kept);
  PlVal v = pl_g2(g, &pl_op_reshape_to, pl_g_op(g, &pl_op_prod_bwd, 2, in, &a, NULL), shape);
  pl_attrs_init(&pl_op_permute, &by);
  pl_g_fail(g, pl_attrs_list(&by, 0, n, back));
  g->dx[0] = pl_g_op(g, &pl_op_permute, 1, &v, &by, NULL);
  return g->status;
}

static void pass_dim(const PlMaker *g, const PlOp *op, PlAttrs *a) {
  pl_attrs_init(op, a);
  if (pl_attr_has(g->attrs, 0)) pl_attrs_int(a, 0, pl_attr_i(g->attrs, 0));
}

/* ---- tangents in one pass --------------------------------------------------------------------------- */

/* t = op(x, y, v) along one dim or all, where y is the result and v the tangent of x; where that has a kernel. */
static PlStatus reduced_tangent(PlMaker *g, const PlOp *op, uint32_t mask, bool nan) {
  const PlArray *x = g->in[0];
  const uint32_t every = (1u << x->ndim) - 1;
  PlVal in[3] = {g->x[0], g->y[0], g->dy[0]};
  PlAttrs a;
  if (in[2] == PL_NONE || x->device != PL_CPU || g->outd[0].dtype != x->dtype || (mask != every && __builtin_popcount(mask) != 1))
    return g->status;
  pl_attrs_init(op, &a);
  if (mask != every) pl_attrs_int(&a, 0, __builtin_ctz(mask));
  if (op->nattr > 1) pl_attrs_int(&a, 1, nan);
  g->dx[0] = pl_g_op(g, op, 3, in, &a, NULL);
  return g->status;
}

static PlStatus prod_tangent(PlMaker *g) { return reduced_tangent(g, &pl_op_prod_tangent, mask_of(g), false); }

/* y has the reduced shape, with dim or without, and v that of x. */
static PlStatus tangent_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *y = c->in[1];
  PL_TRY(pl_check_axis(c, 0, x->ndim));
  const uint32_t mask = dims_single(c->attrs, 0, x->ndim);
  const int64_t rows = x->numel > 0 ? x->numel / dims_count(x, mask) : dims_count(x, ~mask);
  PL_TRY(pl_check_float(c, 0));
  if (y->numel != rows)
    PL_FAIL(PL_ERR_SHAPE, "%s: y %s does not have one element a row of %s", c->op->name, pl_desc_text(y), pl_desc_text(x));
  PL_TRY(pl_check_like(c, 2, 0));
  for (int i = 1; i < 3; i++) PL_TRY(pl_check_dtype(c, i, (PlDtype)x->dtype));
  pl_desc_set(&c->out[0], (PlDtype)y->dtype, y->ndim, y->shape);
  return PL_OK;
}

/* Halves multiplied until one is left: right with zeros, and all derivatives are. attrs: of prod_bwd. */
static PlStatus prod_composed(PlMaker *g) {
  const PlArray *x = g->in[0];
  const bool all = !pl_attr_has(g->attrs, 0) || x->ndim == 0;
  const int64_t dim = all ? 0 : pl_attr_i(g->attrs, 0);
  PlVal y = all ? pl_g1(g, &pl_op_flatten, g->x[0]) : g->x[0];
  PlAttrs shape;
  int64_t n = all ? x->numel : x->shape[dim];
  if (n == 0) y = g_add(g, g_reduce(g, &pl_op_sum, y, all ? 1 : x->ndim, 1u << dim), pl_g_num(g, 1)); /* of nothing: 1, constant */
  for (; n > 1; n = (n + 1) / 2) {
    const int64_t half = n / 2;
    PlVal parts[2] = {g_mul(g, pl_g_slice(g, y, dim, 0, half, 1), pl_g_slice(g, y, dim, half, half, 1))};
    if (n % 2) parts[1] = pl_g_slice(g, y, dim, n - 1, 1, 1);
    y = n % 2 ? g_with_int(g, &pl_op_cat, 2, parts, dim) : parts[0];
  }
  pl_attrs_init(&pl_op_reshape, &shape);
  pl_g_fail(g, pl_attrs_list(&shape, 0, g->outd[0].ndim, g->outd[0].shape));
  g->dx[0] = pl_g_op(g, &pl_op_reshape, 1, &y, &shape, NULL);
  return g->status;
}

PL_OP(prod, .autocast = PL_CAST_F32, REDUCTION(PLK_R_PROD),
      .doc = "The product over the dims given, or of all elements. Integers and bools multiply in i64.",
      .example = "print(T.tensor { 2, 3, 4 }:prod())  --> 24.  -- f32[] cpu", .formula = "dx_j = dy * product of the other elements",
      .nattr = 3, .attrs = {DIMS, A_DTYPE_OPT("dtype")}, .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY, .batch = pl_batch_dims,
      .infer = prod_infer, .grad = prod_grad, .with_tangent = plk_cpu_reduce_with_tangent, .tangent = prod_tangent,
      .composed = prod_composed);

static PlStatus prod_tangent_grad(PlMaker *g) {
  PlVal in[3] = {g->x[0], g->dy[0], g->x[2]};
  PlAttrs a;
  pass_dim(g, &pl_op_prod_bwd, &a);
  if (g->want[2]) g->dx[2] = pl_g_op(g, &pl_op_prod_bwd, 2, in, &a, NULL);
  pass_dim(g, &pl_op_prod_bwd2, &a);
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_prod_bwd2, 3, in, &a, NULL);
  return g->status;
}

#define TANGENT(NAME, WORD, NATTR, GRAD, FUNCTION, ...)                                                                                 \
  PL_OP(NAME, .doc = "The tangent of " WORD ", y, where v is that of x.", .nin = 3, .nout = 1, .nattr = NATTR, .args = {"x", "y", "v"}, \
        .attrs = {A_INT_OPT("dim"), __VA_ARGS__}, .cls = PL_REDUCTION, .batch = pl_batch_dims,                                          \
        .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = tangent_infer, .grad = GRAD, PL_KERNEL(FUNCTION));
TANGENT(prod_tangent, "a product", 1, prod_tangent_grad, prod_tangent, {.name = NULL})

static PlStatus prod_bwd_grad(PlMaker *g) {
  PlAttrs a;
  const PlArray *x = g->in[0];
  PlVal v = g->dy[0], in[3] = {g->x[0], g->x[1], v};
  if (in[1] == PL_NONE) { /* left out: ones */
    PlAttrs zero;
    pl_attrs_init(&pl_op_prod, &a);
    const int64_t dim = pl_attr_has(g->attrs, 0) ? pl_attr_i(g->attrs, 0) : 0;
    if (pl_attr_has(g->attrs, 0)) pl_g_fail(g, pl_attrs_list(&a, 0, 1, &dim));
    pl_attrs_init(&pl_op_zeros_of, &zero);
    pl_attrs_int(&zero, 0, x->dtype);
    PlVal shape = pl_g1(g, &pl_op_shape_of, pl_g_op(g, &pl_op_prod, 1, &g->x[0], &a, NULL));
    in[1] = g_add(g, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &zero, NULL), pl_g_num(g, 1));
  }
  if (g->want[1]) {
    uint32_t mask = dims_single(g->attrs, 0, x->ndim);
    pass_dim(g, &pl_op_prod_bwd, &a);
    PlVal others = pl_g_op(g, &pl_op_prod_bwd, 1, &g->x[0], &a, NULL);
    PlVal s = g_reduce(g, &pl_op_sum, g_mul(g, v, others), x->ndim, mask);
    g->dx[1] = g_to_input(g, pl_g_reshape_like(g, s, 1), (PlDtype)x->dtype, 1);
  }
  if (g->want[0]) {
    pass_dim(g, &pl_op_prod_bwd2, &a);
    g->dx[0] = pl_g_op(g, &pl_op_prod_bwd2, 3, in, &a, NULL);
  }
  return g->status;
}

/* dy, where it is given, has the reduced shape, with dim or without; v has x's. */
static PlStatus prod_bwd_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *dy = c->nin > 1 ? c->in[1] : NULL;
  PL_TRY(pl_check_axis(c, 0, x->ndim));
  const uint32_t mask = dims_single(c->attrs, 0, x->ndim);
  const int64_t rows = x->numel > 0 ? x->numel / dims_count(x, mask) : dims_count(x, ~mask);
  if (dy && dy->numel != rows)
    PL_FAIL(PL_ERR_SHAPE, "%s: dy %s does not have one element a row of %s", c->op->name, pl_desc_text(dy), pl_desc_text(x));
  if (c->nin > 2) PL_TRY(pl_check_like(c, 2, 0));
  return pl_infer_same(c);
}

PL_OP(prod_bwd, .doc = "The gradient of prod: dy (1 if left out) times the product of the other elements.", .gradient_of = &pl_op_prod,
      .nin = 2, .nopt = 1, .nout = 1, .nattr = 1, .args = {"x", "dy"}, .attrs = {A_INT_OPT("dim")}, .cls = PL_REDUCTION,
      .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS | PL_F_POLY | PL_F_INTERNAL, .infer = prod_bwd_infer, .grad = prod_bwd_grad,
      .hessian = "xd", PL_KERNEL(prod_bwd));

PL_OP(prod_bwd2, .doc = "The gradient of prod_bwd with respect to x; v is the gradient of its result.", .gradient_of = &pl_op_prod_bwd,
      .nin = 3, .nout = 1, .nattr = 1, .args = {"x", "dy", "v"}, .attrs = {A_INT_OPT("dim")}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = prod_bwd_infer, .grad = pl_grad_by_composition, PL_KERNEL(prod_bwd2));

/* ---- extremes --------------------------------------------------------------------------------------------- */

static PlStatus extreme_infer(PlInfer *c) {
  PL_TRY(dims_nonempty(c, dims_listed(c->attrs, 0, c->in[0]->ndim)));
  return pl_infer_reduced(c, c->compute);
}

/* Equal elements share: dx = dy [x = y] / count. */
static PlStatus extreme_grad(PlMaker *g) {
  uint32_t mask = mask_of(g);
  PlVal hit = pl_g2(g, &pl_op_eq, g->x[0], wide(g, g->y[0], mask, 1));
  PlVal count = g_reduce(g, &pl_op_sum, hit, g->in[0]->ndim, mask);
  g->dx[0] = g_mul(g, hit, g_div(g, wide(g, g->dy[0], mask, 1), count));
  return g->status;
}

static PlStatus extreme_tangent_grad(PlMaker *g) {
  uint32_t mask = dims_single(g->attrs, 0, g->in[0]->ndim);
  const bool kept = g->in[1]->ndim == g->in[0]->ndim;
  PlVal y = g_undo_reduce(g, g->x[1], g->in[0]->ndim, mask, kept), u = g_undo_reduce(g, g->dy[0], g->in[0]->ndim, mask, kept);
  PlVal hit = pl_g2(g, &pl_op_eq, g->x[0], y);
  if (pl_attr_i(g->attrs, 1)) hit = pl_g2(g, &pl_op_logical_or, hit, pl_g1(g, &pl_op_isnan, g->x[0]));
  if (g->want[2]) g->dx[2] = g_mul(g, hit, g_div(g, u, g_reduce(g, &pl_op_sum, hit, g->in[0]->ndim, mask)));
  return g->status;
}
TANGENT(extreme_tangent, "an extreme value", 2, extreme_tangent_grad, extreme_tangent, A_BOOL("nan", 0))

/* Along the last dim or all; columns are faster as they are composed. */
static PlStatus extreme_jvp(PlMaker *g) {
  const uint32_t mask = mask_of(g), every = (1u << g->in[0]->ndim) - 1;
  return mask == every || mask == 1u << (g->in[0]->ndim - 1) ? reduced_tangent(g, &pl_op_extreme_tangent, mask, false) : g->status;
}
static PlStatus whole_jvp(PlMaker *g) { return reduced_tangent(g, &pl_op_extreme_tangent, (1u << g->in[0]->ndim) - 1, true); }

#define EXTREME(NAME, CODE, WORD, EXAMPLE)                                                                                    \
  PL_OP(NAME, REDUCTION(CODE),                                                                                                \
        .doc = "The " WORD " over the dims given, or of all elements; NaN wins. Equal elements "                              \
               "share the gradient. A reduced dim must not be empty.",                                                        \
        .example = EXAMPLE, .formula = "dx = dy [x = y] / count(x = y)", .nattr = 2, .attrs = {DIMS}, .batch = pl_batch_dims, \
        .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY, .infer = extreme_infer, .grad = extreme_grad,                    \
        .with_tangent = plk_cpu_reduce_with_tangent, .tangent = extreme_jvp);
EXTREME(amax, PLK_R_AMAX, "largest value", "print(T.tensor { { 1, 5 }, { 7, 2 } }:amax(1))  --> {7., 5.}  -- f32[2] cpu")
EXTREME(amin, PLK_R_AMIN, "smallest value", "print(T.tensor { { 1, 5 }, { 7, 2 } }:amin(1))  --> {1., 2.}  -- f32[2] cpu")

static PlStatus whole_infer(PlInfer *c) {
  PL_TRY(dims_nonempty(c, ~0u));
  pl_desc_set(&c->out[0], c->compute, 0, NULL);
  return PL_OK;
}

/* As above, but a NaN result goes to the NaNs. */
static PlStatus whole_grad(PlMaker *g) {
  PlVal hit = pl_g2(g, &pl_op_logical_or, pl_g2(g, &pl_op_eq, g->x[0], g->y[0]), pl_g1(g, &pl_op_isnan, g->x[0]));
  PlVal count = pl_g1(g, &pl_op_sum, hit);
  g->dx[0] = g_mul(g, hit, g_div(g, g->dy[0], count));
  return g->status;
}

#define WHOLE(NAME, CODE, BATCH, WORD, EXAMPLE)                                                                               \
  PL_OP(NAME, REDUCTION(CODE),                                                                                                \
        .doc = "The " WORD " of all elements; what x:max() and x:min() "                                                      \
               "without a dim do. Equal elements share the gradient.",                                                        \
        .example = EXAMPLE, .formula = "dx = dy [x = y] / count(x = y)", .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY, \
        .batch = BATCH, .infer = whole_infer, .grad = whole_grad, .with_tangent = plk_cpu_extreme_with_tangent, .tangent = whole_jvp);
WHOLE(max_all, PLK_R_AMAX, pl_batch_max_all, "largest", "print(T.max_all(T.tensor { 1, 5, 2 }))  --> 5.  -- f32[] cpu")
WHOLE(min_all, PLK_R_AMIN, pl_batch_min_all, "smallest", "print(T.min_all(T.tensor { 4, 1, 2 }))  --> 1.  -- f32[] cpu")

/* ---- truth -------------------------------------------------------------------------------------------------- */

static PlStatus truth_infer(PlInfer *c) { return pl_infer_reduced(c, c->compute == PL_U8 ? PL_U8 : PL_BOOL); }
static PlStatus count_infer(PlInfer *c) { return pl_infer_reduced(c, PL_I64); }

#define TRUTH(NAME, CODE, INFER, DOC, EXAMPLE)                                                                      \
  PL_OP(NAME, REDUCTION(CODE), .doc = DOC, .example = EXAMPLE, .nattr = 2, .attrs = {DIMS}, .batch = pl_batch_dims, \
        .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_NOGRAD_OK, .infer = INFER);
TRUTH(any, PLK_R_ANY, truth_infer, "Whether any element is not 0, over the dims given or all; bool (u8 for u8).",
      "print(T.tensor({ false, true }):any())  --> true  -- bool[] cpu")
TRUTH(all, PLK_R_ALL, truth_infer, "Whether no element is 0, over the dims given or all; bool (u8 for u8). True of nothing.",
      "print(T.tensor({ false, true }):all())  --> false  -- bool[] cpu")
TRUTH(count_nonzero, PLK_R_COUNT, count_infer, "How many elements are not 0 (NaN is not 0), over the dims given or all; i64.",
      "print(T.tensor { 0, 3, 4 }:count_nonzero())  --> 2  -- i64[] cpu")

/* ---- logsumexp ------------------------------------------------------------------------------------------------ */

static PlStatus logsumexp_infer(PlInfer *c) { return pl_infer_reduced(c, pl_is_float(c->compute) ? c->compute : pl_default_float()); }

/* Softmax of x over the dims. y was rounded to its dtype, which far from 0 moves e^(x - y) as a whole: 0.4% at 1e5 in f32. So it is only
 * what keeps e^ in range, a constant, and the quotients are divided by their own sum, which of halves may be beyond them. Where y is not
 * finite there is no such sum. */
static PlStatus logsumexp_grad(PlMaker *g) {
  const uint32_t mask = mask_of(g);
  const PlDtype d = (PlDtype)g->outd[0].dtype;
  const bool half = pl_is_half(d);
  const PlVal x = half ? pl_g_cast(g, g->x[0], PL_F32) : g->x[0], dy = wide(g, half ? pl_g_cast(g, g->dy[0], PL_F32) : g->dy[0], mask, 1);
  const PlVal kept = pl_g1(g, &pl_op_stop_grad, g->y[0]), y = wide(g, half ? pl_g_cast(g, kept, PL_F32) : kept, mask, 1);
  const PlVal p = pl_g1(g, &pl_op_exp, g_sub(g, x, y)), sum = g_reduce(g, &pl_op_sum, p, g->in[0]->ndim, mask);
  const PlVal dx = g_mul(g, g_where(g, pl_g1(g, &pl_op_isfinite, y), g_div(g, dy, sum), dy), p);
  g->dx[0] = half ? pl_g_cast(g, dx, d) : dx;
  return g->status;
}

PL_OP(logsumexp, REDUCTION(PLK_R_LOGSUMEXP), .doc = "log(sum(exp(x))) over the dims given or all, without overflow.",
      .example = "print(T.tensor { 1, 2, 3 }:logsumexp())  --> 3.4076  -- f32[] cpu", .formula = "dx = dy softmax(x)", .nattr = 2,
      .attrs = {DIMS}, .flags = PL_F_CONTIGUOUS | PL_F_STRIDED | PL_F_POLY, .batch = pl_batch_dims, .infer = logsumexp_infer,
      .grad = logsumexp_grad, .with_tangent = plk_cpu_reduce_with_tangent);
