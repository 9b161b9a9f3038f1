/* SPDX-License-Identifier: MIT
 * Attention as one op that keeps no matrix of scores: q[B,L,E], k[B,S,E], v[B,S,D], f32. Its gradient is one op,
 * too; the gradient of that is made of products. */
#include "engine/ops/dims.h"
#include "kernels/attention.h"

#define ATTRS A_FLOAT_REQ("scale"), A_BOOL("is_causal", 0)

static PlStatus check_qkv(const PlInfer *c, int first) {
  const PlArray *q = c->in[first], *k = c->in[first + 1], *v = c->in[first + 2];
  for (int i = first; i < first + 3; i++) {
    PL_TRY(pl_check_ndim(c, i, 3, 3));
    PL_TRY(pl_check_dtype(c, i, PL_F32));
  }
  if (q->shape[0] != k->shape[0] || q->shape[0] != v->shape[0] || q->shape[2] != k->shape[2] ||
      k->shape[1] != v->shape[1])
    PL_FAIL(PL_ERR_SHAPE, "%s: queries %s, keys %s, values %s: [B,L,E], [B,S,E], [B,S,D] are wanted", c->op->name,
            pl_desc_text(q), pl_desc_text(k), pl_desc_text(v));
  if (k->shape[1] == 0) PL_FAIL(PL_ERR_SHAPE, "%s: there are no keys", c->op->name);
  return PL_OK;
}

static PlStatus attention_infer(PlInfer *c) {
  PL_TRY(check_qkv(c, 0));
  const PlArray *q = c->in[0], *v = c->in[2];
  pl_desc_set(&c->out[0], PL_F32, 3, (const int64_t[]){q->shape[0], q->shape[1], v->shape[2]});
  pl_desc_set(&c->out[1], PL_F32, 3, (const int64_t[]){q->shape[0], q->shape[1], 2});
  return PL_OK;
}

static PlStatus attention_grad(PlMaker *g) {
  PlVal in[5] = {g->dy[0], g->x[0], g->x[1], g->x[2], g->y[1]}, out[3] = {PL_NONE, PL_NONE, PL_NONE};
  if (g->dy[0] == PL_NONE) return g->status;
  pl_g_op(g, &pl_op_attention_bwd, 5, in, g->attrs, out);
  for (int i = 0; i < 3; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

static double attention_flops(const PlInfer *c) {
  const PlArray *q = c->in[0], *k = c->in[1], *v = c->in[2];
  return 2.0 * (double)q->shape[0] * (double)q->shape[1] * (double)k->shape[1] * (double)(k->shape[2] + v->shape[2]);
}

const PlOp pl_op_attention = {
    .autocast = PL_CAST_LOW,
    .name = "attention",
    .doc = "softmax(scale q k^T) v without the matrix of scores: q[B,L,E], k[B,S,E], v[B,S,D] in f32. With is_causal query i "
           "sees keys 1 to i. Further output: each row's largest score and sum. For everything else see "
           "nn.F.scaled_dot_product_attention.",
    .formula = "p = softmax(scale q k^T); y = p v", .nin = 3, .nout = 2, .nvisible = 1, .nattr = 2,
    .args = {"q", "k", "v"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
    .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY,
    .infer = attention_infer, .grad = attention_grad, .flops = attention_flops,
    .kernel = {[PL_CPU] = plk_cpu_attention}};

/* ---- gradients ---------------------------------------------------------------------------------------------- */

static PlStatus attention_bwd_infer(PlInfer *c) {
  PL_TRY(check_qkv(c, 1));
  const PlArray *dy = c->in[0], *q = c->in[1], *v = c->in[3], *sums = c->in[4];
  PL_TRY(pl_check_dtype(c, 0, PL_F32));
  PL_TRY(pl_check_dtype(c, 4, PL_F32));
  if (dy->ndim != 3 || dy->shape[0] != q->shape[0] || dy->shape[1] != q->shape[1] || dy->shape[2] != v->shape[2])
    PL_FAIL(PL_ERR_SHAPE, "%s: gradient %s does not fit queries %s and values %s", c->op->name, pl_desc_text(dy),
            pl_desc_text(q), pl_desc_text(v));
  if (sums->ndim != 3 || sums->shape[0] != q->shape[0] || sums->shape[1] != q->shape[1] || sums->shape[2] != 2)
    PL_FAIL(PL_ERR_SHAPE, "%s: sums %s do not fit queries %s", c->op->name, pl_desc_text(sums), pl_desc_text(q));
  for (int i = 0; i < 3; i++) pl_desc_set(&c->out[i], PL_F32, 3, c->in[i + 1]->shape);
  return PL_OK;
}

/* x y, x yᵀ or xᵀ y */
static PlVal product(PlMaker *g, PlVal x, PlVal y, bool tx, bool ty) {
  const PlVal in[2] = {x, y};
  PlAttrs a;
  pl_attrs_init(&pl_op_matmul_t, &a);
  pl_attrs_int(&a, 0, tx);
  pl_attrs_int(&a, 1, ty);
  return pl_g_op(g, &pl_op_matmul_t, 2, in, &a, NULL);
}
static PlVal row_sum(PlMaker *g, PlVal v) { return g_reduce(g, &pl_op_sum, v, 3, 1u << 2); }

/* softmax(scale q kᵀ), with the future far below everything. */
static PlVal shares(PlMaker *g, PlVal q, PlVal k, double scale, bool causal) {
  PlVal z = g_muln(g, product(g, q, k, false, true), scale);
  if (causal) {
    PlVal shape = pl_g1(g, &pl_op_shape_of, z);
    PlAttrs a;
    pl_attrs_init(&pl_op_zeros_of, &a);
    pl_attrs_int(&a, 0, PL_F32);
    PlVal low = g_addn(g, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL), -1e30);
    z = g_add(g, pl_g1(g, &pl_op_tril, z), g_with_int(g, &pl_op_triu, 1, &low, 1));
  }
  return g_with_int(g, &pl_op_softmax, 1, &z, 2);
}

/* The gradient of dq = s S k, dk = s Sᵀ q, dv = Pᵀ dy, S = P (T - Σ P T), T = dy vᵀ, for gradients a, b, c of them:
 *   U = s (a kᵀ + q bᵀ), w = Σ U P;  gP = dy cᵀ + U (T - Σ P T) - w T;  gT = P (U - w);  gZ = P (gP - Σ gP P)
 *   gdy = gT v + P c, gq = s (gZ k + S b), gk = s (gZᵀ q + Sᵀ a), gv = gTᵀ dy */
static PlStatus attention_bwd_grad(PlMaker *g) {
  double s = pl_attr_f(g->attrs, 0);
  PlVal dy = g->x[0], q = g->x[1], k = g->x[2], v = g->x[3], d[3];
  for (int i = 0; i < 3; i++) d[i] = g->dy[i] == PL_NONE ? pl_g_zeros_like(g, i + 1) : g->dy[i];
  PlVal a = d[0], b = d[1], c = d[2];
  PlVal P = shares(g, q, k, s, pl_attr_i(g->attrs, 1) != 0), T = product(g, dy, v, false, true);
  PlVal centered = g_sub(g, T, row_sum(g, g_mul(g, P, T))), S = g_mul(g, P, centered);
  PlVal U = g_muln(g, g_add(g, product(g, a, k, false, true), product(g, q, b, false, true)), s);
  PlVal w = row_sum(g, g_mul(g, U, P)), gT = g_mul(g, P, g_sub(g, U, w));
  PlVal gP = g_add(g, product(g, dy, c, false, true), g_sub(g, g_mul(g, U, centered), g_mul(g, w, T)));
  PlVal gZ = g_mul(g, P, g_sub(g, gP, row_sum(g, g_mul(g, gP, P))));
  if (g->want[0]) g->dx[0] = g_add(g, product(g, gT, v, false, false), product(g, P, c, false, false));
  if (g->want[1])
    g->dx[1] = g_muln(g, g_add(g, product(g, gZ, k, false, false), product(g, S, b, false, false)), s);
  if (g->want[2])
    g->dx[2] = g_muln(g, g_add(g, product(g, gZ, q, true, false), product(g, S, a, true, false)), s);
  if (g->want[3]) g->dx[3] = product(g, gT, dy, true, false);
  return g->status;
}

const PlOp pl_op_attention_bwd = {
    .name = "attention_bwd", .doc = "The gradients of attention for q, k and v.", .nin = 5, .nout = 3, .nattr = 2,
    .args = {"dy", "q", "k", "v", "sums"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .batch = pl_batch_samples,
    .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL | PL_F_POLY, .infer = attention_bwd_infer, .grad = attention_bwd_grad,
    .kernel = {[PL_CPU] = plk_cpu_attention_bwd}};
