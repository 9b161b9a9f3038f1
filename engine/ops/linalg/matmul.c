/* SPDX-License-Identifier: MIT
 * Matrix products: matmul for all ranks, its strict relatives, and the two internal forms that gradients use.
 * Gradients of z = a b:  da = dz bᵀ,  db = aᵀ dz, summed over broadcast batch dims. */
#include <string.h>

#include "engine/device/dispatch.h"
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/gemm.h"

PL_EITHER(matmul)
PL_EITHER(elementwise)

/* ---- the core: transposition flags instead of copies ----------------------------------------------------- */

PlVal pl_g_matmul(PlMaker *g, PlVal a, PlVal b, bool ta, bool tb) {
  PlAttrs at;
  pl_attrs_init(&pl_op_matmul_t, &at);
  pl_attrs_int(&at, 0, ta);
  pl_attrs_int(&at, 1, tb);
  const PlVal in[2] = {a, b};
  return pl_g_op(g, &pl_op_matmul_t, 2, in, &at, NULL);
}

static PlStatus matmul_t_infer(PlInfer *c) { return pl_infer_matmul(c, 0, 1, pl_attr_i(c->attrs, 0) != 0, pl_attr_i(c->attrs, 1) != 0); }
PL_HOST_KERNEL(pl_host_matmul_t) {
  return pl_run_matmul(call, either_matmul, pl_attr_i(call->attrs, 0) != 0, pl_attr_i(call->attrs, 1) != 0);
}
static double matmul_t_flops(const PlInfer *c) {
  const PlArray *a = c->in[0];
  double n = 2;
  for (int d = 0; d < c->out[0].ndim; d++) n *= (double)c->out[0].shape[d];
  return n * (double)a->shape[a->ndim - 1 - (pl_attr_i(c->attrs, 0) && a->ndim > 1 ? 1 : 0)];
}

static PlVal unsqueeze(PlMaker *g, PlVal v, int64_t dim) {
  PlAttrs a;
  pl_attrs_init(&pl_op_unsqueeze, &a);
  pl_attrs_int(&a, 0, dim);
  return pl_g_op(g, &pl_op_unsqueeze, 1, &v, &a, NULL);
}
/* A view with the last two dims swapped. */
static PlVal swapped(PlMaker *g, PlVal v) {
  PlAttrs a;
  pl_attrs_init(&pl_op_transpose, &a);
  pl_attrs_int(&a, 0, -2);
  pl_attrs_int(&a, 1, -1);
  return pl_g_op(g, &pl_op_transpose, 1, &v, &a, NULL);
}

/* Summed to the input's shape unless both are plain matrices. */
static void give(PlMaker *g, int i, PlVal v) {
  if (g->want[i]) g->dx[i] = g->in[0]->ndim == 2 && g->in[1]->ndim == 2 ? v : pl_g_sum_to(g, v, i);
}
/* Both operands of rank ≥ 2: aᵀ used means da = b dzᵀ in place of dz bᵀ, and so on. */
static PlStatus product_grad(PlMaker *g, bool ta, bool tb) {
  PlVal a = g->x[0], b = g->x[1], dz = g->dy[0];
  if (g->want[0] && !ta && !tb && g->in[0]->ndim == 2 && g->in[1]->ndim > 2) /* Σ dz bᵀ in one product */
    g->dx[0] = pl_g2(g, &pl_op_matmul_flat_t, swapped(g, dz), swapped(g, b));
  else if (g->want[0]) give(g, 0, ta ? pl_g_matmul(g, b, dz, tb, true) : pl_g_matmul(g, dz, b, false, !tb));
  if (!g->want[1]) return g->status;
  if (!ta && !tb && g->in[1]->ndim == 2 && g->in[0]->ndim > 2) /* one matrix for all batches */
    g->dx[1] = pl_g2(g, &pl_op_matmul_flat_t, a, dz);
  else give(g, 1, tb ? pl_g_matmul(g, dz, a, true, ta) : pl_g_matmul(g, a, dz, !ta, false));
  return g->status;
}
static PlStatus matmul_t_grad(PlMaker *g) { return product_grad(g, pl_attr_i(g->attrs, 0) != 0, pl_attr_i(g->attrs, 1) != 0); }
PL_OP(matmul_t, .doc = "The product of two (batches of) matrices, each transposed where ta, tb say so.", .nin = 2, .nout = 1, .nattr = 2,
      .args = {"x", "y"}, .attrs = {A_BOOL("ta", 0), A_BOOL("tb", 0)}, .cls = PL_HEAVY, .batch = pl_batch_matmul_t,
      .flags = PL_F_POLY | PL_F_INTERNAL, .infer = matmul_t_infer, .grad = matmul_t_grad, .flops = matmul_t_flops,
      PL_KERNEL_EITHER(pl_host_matmul_t));

/* z[K,N] = Σ x[…,m,K]ᵀ y[…,m,N] over all leading dims: the gradient of a weight. dx = y dzᵀ, dy = x dz. */
static PlStatus flat_t_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *y = c->in[1];
  PL_TRY(pl_check_same_dtype(c, 0, 1));
  bool ok = x->ndim == y->ndim && x->ndim >= 2 && memcmp(x->shape, y->shape, (size_t)(x->ndim - 1) * sizeof(int64_t)) == 0;
  if (!ok) PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: all sizes but the last must agree", c->op->name, pl_desc_text(x), pl_desc_text(y));
  const int64_t shape[2] = {x->shape[x->ndim - 1], y->shape[y->ndim - 1]};
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 2, shape);
  return PL_OK;
}
static PlStatus flat_t_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_matmul(g, g->x[1], g->dy[0], false, true);
  if (g->want[1]) g->dx[1] = pl_g_matmul(g, g->x[0], g->dy[0], false, false);
  return g->status;
}
PL_HOST_KERNEL(pl_host_flat_t) {
  PlWindow x, y;
  void *sx, *sy = NULL;
  PL_TRY(pl_window_dense(&x, call->in[0], 1, &sx));
  PlStatus s = pl_window_dense(&y, call->in[1], 1, &sy);
  if (s == PL_OK) {
    const PlArray *in[2] = {&x.a, &y.a};
    PlkCall k = *call;
    k.in = in;
    s = pl_run_matmul(&k, either_matmul, true, false);
  }
  pl_scratch_free_at(call->out[0]->device, sx);
  pl_scratch_free_at(call->out[0]->device, sy);
  return s;
}
static double flat_t_flops(const PlInfer *c) { return 2.0 * (double)c->in[0]->numel * (double)c->out[0].shape[1]; }
PL_OP(matmul_flat_t, .doc = "The sum over all leading dims of x[...,M,K]^T y[...,M,N]: the gradient of a weight.", .nin = 2, .nout = 1,
      .args = {"x", "y"}, .cls = PL_HEAVY, .batch = pl_batch_flat_t, .flags = PL_F_POLY | PL_F_INTERNAL, .infer = flat_t_infer,
      .grad = flat_t_grad, .flops = flat_t_flops, PL_KERNEL_EITHER(pl_host_flat_t));

/* ---- matmul -------------------------------------------------------------------------------------------------- */

static PlStatus matmul_infer(PlInfer *c) { return pl_infer_matmul(c, 0, 1, false, false); }
PL_HOST_KERNEL(pl_host_matmul) { return pl_run_matmul(call, either_matmul, false, false); }

/* At least one vector: rank decides, sizes are not looked at.
 *   a·b: da = dz b, db = dz a          A b: dA = dz ⊗ b, db = Σ Aᵀ dz     a B: da = Σ B dz, dB = a ⊗ dz */
static PlStatus matmul_grad(PlMaker *g) {
  int na = g->in[0]->ndim, nb = g->in[1]->ndim;
  PlVal a = g->x[0], b = g->x[1], dz = g->dy[0];
  if (na > 1 && nb > 1) return product_grad(g, false, false);
  if (na == 1 && nb == 1) {
    if (g->want[0]) g->dx[0] = g_mul(g, b, dz);
    if (g->want[1]) g->dx[1] = g_mul(g, a, dz);
  } else if (nb == 1) {
    if (g->want[0]) g->dx[0] = g_mul(g, unsqueeze(g, dz, -1), b);
    if (g->want[1]) { /* Aᵀ dz as dz A, over all batches in one product */
      if (na == 2) g->dx[1] = pl_g2(g, &pl_op_matmul, dz, a);
      else g->dx[1] = pl_g_reshape_like(g, pl_g2(g, &pl_op_matmul_flat_t, unsqueeze(g, dz, -1), a), 1);
    }
  } else {
    if (g->want[0]) {
      if (nb == 2) g->dx[0] = pl_g2(g, &pl_op_matmul, b, dz);
      else g->dx[0] = pl_g_reshape_like(g, pl_g2(g, &pl_op_matmul_flat_t, unsqueeze(g, dz, -1), swapped(g, b)), 0);
    }
    if (g->want[1]) g->dx[1] = g_mul(g, unsqueeze(g, a, -1), unsqueeze(g, dz, -2));
  }
  return g->status;
}
PL_OP(matmul, .autocast = PL_CAST_LOW,
      .doc = "The matrix product of x[...,M,K] and y[...,K,N] over broadcast batch dims; vectors "
             "count as one row (x) or one column (y), two vectors give their 0-d dot product. Both need one dtype.",
      .example = "local a = T.tensor { { 1, 2 }, { 3, 4 } }\n"
                 "print(a:matmul(a))\n"
                 "--> {{ 7., 10.},\n"
                 "-->  {15., 22.}}  -- f32[2,2] cpu\n"
                 "print(a:matmul(T.tensor { 1, 1 }))  --> {3., 7.}  -- f32[2] cpu",
      .formula = "z = x y; dx = dz y^T; dy = x^T dz, summed over broadcast dims", .nin = 2, .nout = 1, .args = {"x", "y"}, .cls = PL_HEAVY,
      .batch = pl_batch_matmul, .flags = PL_F_POLY, .infer = matmul_infer, .grad = matmul_grad, .flops = pl_flops_matmul,
      PL_KERNEL_EITHER(pl_host_matmul));

/* ---- strict ranks ------------------------------------------------------------------------------------------- */

#define STRICT(NAME, NA, NB, CAST, DOC, EXAMPLE)                                                                                        \
  static PlStatus NAME##_infer(PlInfer *c) {                                                                                            \
    PL_TRY(pl_check_ndim(c, 0, NA, NA));                                                                                                \
    PL_TRY(pl_check_ndim(c, 1, NB, NB));                                                                                                \
    if (NA == 3 && c->in[0]->shape[0] != c->in[1]->shape[0])                                                                            \
      PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: batch sizes differ; matmul broadcasts", c->op->name, pl_desc_text(c->in[0]),                  \
              pl_desc_text(c->in[1]));                                                                                                  \
    return pl_infer_matmul(c, 0, 1, false, false);                                                                                      \
  }                                                                                                                                     \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = "see matmul", .nin = 2, .nout = 1, .batch = pl_batch_matmul, .autocast = CAST, \
        .args = {"x", "y"}, .cls = PL_HEAVY, .flags = PL_F_POLY, .infer = NAME##_infer, .grad = NAME##_grad, .flops = pl_flops_matmul,  \
        PL_KERNEL_EITHER(pl_host_matmul));

#define mm_grad  matmul_grad
#define mv_grad  matmul_grad
#define dot_grad matmul_grad
/* No broadcasting, so no sums. */
static PlStatus bmm_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_matmul(g, g->dy[0], g->x[1], false, true);
  if (g->want[1]) g->dx[1] = pl_g_matmul(g, g->x[0], g->dy[0], true, false);
  return g->status;
}
STRICT(mm, 2, 2, PL_CAST_LOW, "The product of two matrices, x[M,K] and y[K,N]. matmul takes any ranks.",
       "print(T.eye(2):mm(T.tensor { { 1, 2 }, { 3, 4 } }))\n"
       "--> {{1., 2.},\n"
       "-->  {3., 4.}}  -- f32[2,2] cpu")
STRICT(bmm, 3, 3, PL_CAST_LOW, "Products of two batches of matrices, x[B,M,K] and y[B,K,N]. matmul takes any ranks.",
       "print(T.bmm(T.ones(2, 1, 3), T.ones(2, 3, 1)):flatten())  --> {3., 3.}  -- f32[2] cpu")
STRICT(mv, 2, 1, PL_CAST_NONE, "A matrix x[M,K] times a vector y[K].",
       "print(T.tensor { { 1, 2 }, { 3, 4 } }:mv(T.tensor { 1, 1 }))  --> {3., 7.}  -- f32[2] cpu")
STRICT(dot, 1, 1, PL_CAST_NONE, "The sum of products of two vectors of equal size, 0-d.",
       "print(T.dot(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu")

/* z[M,N] = x[M] y[N]ᵀ;  dx = dz y,  dy = dzᵀ x */
static PlStatus outer_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 0, 1, 1));
  PL_TRY(pl_check_ndim(c, 1, 1, 1));
  const int64_t shape[2] = {c->in[0]->shape[0], c->in[1]->shape[0]};
  pl_desc_set(&c->out[0], c->compute, 2, shape);
  return PL_OK;
}
PL_HOST_KERNEL(pl_host_outer) {
  PlWindow x;
  pl_window_of(&x, call->in[0]);
  pl_window_insert(&x, 1);
  const PlArray *in[2] = {&x.a, call->in[1]};
  PlkCall k = *call;
  k.in = in;
  return either_elementwise(&k);
}
static PlStatus outer_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g2(g, &pl_op_matmul, g->dy[0], g->x[1]);
  if (g->want[1]) g->dx[1] = pl_g2(g, &pl_op_matmul, g->x[0], g->dy[0]);
  return g->status;
}
PL_OP(outer, .doc = "All products of two vectors: z[i,j] = x[i] y[j]. Promotes.",
      .example = "print(T.outer(T.tensor { 1, 2 }, T.tensor { 3, 4 }))\n"
                 "--> {{3., 4.},\n"
                 "-->  {6., 8.}}  -- f32[2,2] cpu",
      .formula = "dx = dz y; dy = x dz", .nin = 2, .nout = 1, .args = {"x", "y"}, .cls = PL_HEAVY, .batch = pl_batch_outer,
      .flags = PL_F_POLY, .promote = PL_PROMOTE_ALL, .kcode = PLK_EW_MUL, .infer = outer_infer, .grad = outer_grad,
      PL_KERNEL_EITHER(pl_host_outer));
