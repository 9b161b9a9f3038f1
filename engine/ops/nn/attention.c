/* SPDX-License-Identifier: MIT
 * Attention as one op that keeps no matrix of scores: q[…,L,E], k[…,S,E], v[…,S,D], with a mask and dropout if wanted.
 * Its gradient is one op, too; the gradient of that is made of products. Dropout draws the same random words again from
 * the state that the forward op keeps. */
#include "kernels/attention.h"
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/vmap/vmap.h"

enum { Q, K, V, MASK }; /* inputs of attention; those of its gradient: */
enum { B_DY, B_Q, B_K, B_V, B_SUMS, B_MASK, B_STATE, B_Y, B_NIN };
enum { A_SCALE, A_CAUSAL, A_DROP };
#define ATTRS A_FLOAT_REQ("scale"), A_BOOL("is_causal", 0), A_FLOAT("dropout_p", 0)

static PlDtype wide_dtype(int d) { return d == PL_F64 ? PL_F64 : PL_F32; }

static PlStatus check_mask(const PlInfer *c, int i, const PlArray *q, const PlArray *k) {
  const PlArray *m = i < c->nin ? c->in[i] : NULL;
  if (!m) return PL_OK;
  bool fits = m->ndim <= q->ndim && (m->dtype == PL_BOOL || pl_is_float((PlDtype)m->dtype));
  for (int d = 1; d <= m->ndim && fits; d++) {
    const int64_t have = m->shape[m->ndim - d], want = d == 1 ? k->shape[k->ndim - 2] : q->shape[q->ndim - d];
    fits = have == 1 || have == want;
  }
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE,
            "%s: the mask %s must be bool or floating and broadcast to the scores of queries %s and keys %s, "
            "[...,L,S]",
            c->op->name, pl_desc_text(m), pl_desc_text(q), pl_desc_text(k));
  return PL_OK;
}

static PlStatus check_qkv(const PlInfer *c, int first, int mask) {
  const PlArray *q = c->in[first], *k = c->in[first + 1], *v = c->in[first + 2];
  for (int i = first; i < first + 3; i++) {
    PL_TRY(pl_check_ndim(c, i, 3, PL_MAX_DIM));
    PL_TRY(pl_check_float(c, i));
  }
  bool fits = k->ndim == q->ndim && v->ndim == q->ndim && k->dtype == q->dtype && v->dtype == q->dtype;
  for (int d = 0; fits && d < q->ndim - 2; d++) fits = k->shape[d] == q->shape[d] && v->shape[d] == q->shape[d];
  if (!fits || k->shape[k->ndim - 1] != q->shape[q->ndim - 1] || k->shape[k->ndim - 2] != v->shape[v->ndim - 2])
    PL_FAIL(PL_ERR_SHAPE, "%s: queries %s, keys %s, values %s: [...,L,E], [...,S,E], [...,S,D] of one dtype are wanted", c->op->name,
            pl_desc_text(q), pl_desc_text(k), pl_desc_text(v));
  const double p = pl_attr_f(c->attrs, A_DROP);
  if (!(p >= 0 && p <= 1)) PL_FAIL(PL_ERR_ARG, "%s: dropout_p %g must be from 0 to 1", c->op->name, p);
  return check_mask(c, mask, q, k);
}

static PlStatus attention_infer(PlInfer *c) {
  PL_TRY(check_qkv(c, 0, MASK));
  const PlArray *q = c->in[Q], *v = c->in[V];
  int64_t shape[PL_MAX_DIM];
  for (int d = 0; d < q->ndim; d++) shape[d] = q->shape[d];
  shape[q->ndim - 1] = v->shape[v->ndim - 1];
  pl_desc_set(&c->out[0], (PlDtype)q->dtype, q->ndim, shape);
  shape[q->ndim - 1] = 2;
  pl_desc_set(&c->out[1], wide_dtype(q->dtype), q->ndim, shape);
  if (c->op->nout > 2) pl_desc_set(&c->out[2], PL_I64, 1, (const int64_t[]){3});
  return PL_OK;
}

static double attention_flops(const PlInfer *c) {
  const PlArray *q = c->in[Q], *k = c->in[K], *v = c->in[V];
  double n = 2.0 * (double)k->shape[k->ndim - 2] * (double)(k->shape[k->ndim - 1] + v->shape[v->ndim - 1]);
  for (int d = 0; d < q->ndim - 1; d++) n *= (double)q->shape[d];
  return n;
}

/* ---- gradients: with P = softmax(Z), Z = scale q kᵀ + mask, D = what dropout keeps, T = D (dy vᵀ) ------------------ */

/* x y, x yᵀ or xᵀ y */
static PlVal product(PlMaker *g, PlVal x, PlVal y, bool tx, bool ty) {
  const PlVal in[2] = {x, y};
  PlAttrs a;
  pl_attrs_init(&pl_op_matmul_t, &a);
  pl_attrs_int(&a, 0, tx);
  pl_attrs_int(&a, 1, ty);
  return pl_g_op(g, &pl_op_matmul_t, 2, in, &a, NULL);
}
static PlVal row_sum(PlMaker *g, PlVal v, int ndim) { return g_reduce(g, &pl_op_sum, v, ndim, 1u << (ndim - 1)); }

/* What a maker works with: the inputs in the dtype of sums, and the matrices named above. */
typedef struct Parts {
  PlDtype narrow, wide;
  int ndim;
  double scale;
  PlVal q, k, v, P, D; /* D PL_NONE: no dropout */
} Parts;

static PlVal widen(PlMaker *g, const Parts *p, PlVal v) { return p->narrow == p->wide ? v : pl_g_cast(g, v, p->wide); }
static PlVal narrowed(PlMaker *g, const Parts *p, PlVal v) { return p->narrow == p->wide ? v : pl_g_cast(g, v, p->narrow); }
static PlVal kept(PlMaker *g, const Parts *p, PlVal v) { return p->D == PL_NONE ? v : g_mul(g, v, p->D); }

/* Scores that are hidden count as this; what is near it has no share. */
#define LOW (-1e30)

static PlVal shares(PlMaker *g, const Parts *p, PlVal mask, PlDtype mask_dtype, bool causal) {
  PlVal z = g_muln(g, product(g, p->q, p->k, false, true), p->scale);
  if (mask != PL_NONE && mask_dtype == PL_BOOL) z = g_where(g, mask, z, pl_g_num(g, LOW));
  else if (mask != PL_NONE) /* -inf would make NaN of rows that see nothing */
    z = pl_g2(g, &pl_op_maximum, g_add(g, z, mask_dtype == p->wide ? mask : pl_g_cast(g, mask, p->wide)), pl_g_num(g, LOW));
  if (causal) {
    PlVal shape = pl_g1(g, &pl_op_shape_of, z);
    PlAttrs a;
    pl_attrs_init(&pl_op_zeros_of, &a);
    pl_attrs_int(&a, 0, p->wide);
    PlVal low = g_addn(g, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL), LOW);
    z = g_add(g, pl_g1(g, &pl_op_tril, z), g_with_int(g, &pl_op_triu, 1, &low, 1));
  }
  PlVal P = g_with_int(g, &pl_op_softmax, 1, &z, p->ndim - 1);
  if (mask == PL_NONE) return P;
  return g_mul(g, P, pl_g_cast(g, pl_g2(g, &pl_op_gt, z, pl_g_num(g, 0.9 * LOW)), p->wide));
}

static Parts parts_of(PlMaker *g, int first, int mask, PlVal state) {
  Parts p = {.narrow = (PlDtype)g->in[first]->dtype,
             .wide = wide_dtype(g->in[first]->dtype),
             .ndim = g->in[first]->ndim,
             .scale = pl_attr_f(g->attrs, A_SCALE),
             .D = PL_NONE};
  const bool masked = mask < g->nin && g->in[mask];
  p.q = widen(g, &p, g->x[first]);
  p.k = widen(g, &p, g->x[first + 1]);
  p.v = widen(g, &p, g->x[first + 2]);
  p.P = shares(g, &p, masked ? g->x[mask] : PL_NONE, masked ? (PlDtype)g->in[mask]->dtype : PL_NDTYPE, pl_attr_i(g->attrs, A_CAUSAL) != 0);
  if (state != PL_NONE) {
    const PlVal in[3] = {g->x[first], g->x[first + 1], state};
    PlAttrs a;
    pl_attrs_init(&pl_op_attention_keep, &a);
    pl_attrs_float(&a, 0, pl_attr_f(g->attrs, A_DROP));
    p.D = pl_g_op(g, &pl_op_attention_keep, 3, in, &a, NULL);
  }
  return p;
}

/* Libraries of CUDA want y again, for Σ dy y in place of Σ P T; it is an input only where they take the call. */
static bool reads_output(const PlMaker *g) {
  const PlArray *q = g->in[Q];
  return pl_on_gpu(q->device) && (q->dtype == PL_F16 || q->dtype == PL_BF16) && g->op->nout == 2 && !(g->nin > MASK && g->in[MASK]);
}

static PlStatus attention_grad(PlMaker *g) {
  PlVal state = g->op->nout > 2 ? g->y[2] : PL_NONE;
  const bool masked = g->nin > MASK && g->in[MASK];
  PlVal in[B_NIN] = {g->dy[0], g->x[Q], g->x[K], g->x[V], g->y[1], masked ? g->x[MASK] : PL_NONE, state, PL_NONE};
  PlVal out[3] = {PL_NONE, PL_NONE, PL_NONE};
  if (g->dy[0] == PL_NONE) return g->status;
  if (reads_output(g)) in[B_Y] = g->y[0];
  if (g->want[Q] || g->want[K] || g->want[V])
    pl_g_op(g, &pl_op_attention_bwd,
            reads_output(g)    ? B_NIN
            : state != PL_NONE ? B_STATE + 1
            : masked           ? B_MASK + 1
                               : B_SUMS + 1,
            in, g->attrs, out);
  for (int i = 0; i < 3; i++)
    if (g->want[i]) g->dx[i] = out[i];
  if (masked && g->want[MASK]) { /* P (T - Σ P T): a mask that learns has the size of the scores */
    Parts p = parts_of(g, Q, MASK, state);
    PlVal T = kept(g, &p, product(g, widen(g, &p, g->dy[0]), p.v, false, true));
    PlVal dz = g_mul(g, p.P, g_sub(g, T, row_sum(g, g_mul(g, p.P, T), p.ndim)));
    g->dx[MASK] = g_to_input(g, pl_g_sum_to(g, dz, MASK), p.wide, MASK);
  }
  return g->status;
}

/* Any number of dims may lead; a mask lines up from the last ones. What draws or drew random numbers goes one by one. */
static void attention_batch(PlBatchCall *c) {
  const int nmat = c->op == &pl_op_attention_bwd ? B_MASK : MASK;
  PlTensor *in[PL_MAX_IN];
  c->declined = nmat == B_MASK && c->nin > B_STATE && c->in[B_STATE];
  if (c->declined) return;
  for (int i = 0; i < nmat; i++) in[i] = pl_b_each(c, i);
  in[nmat] = c->nin > nmat && c->in[nmat] ? pl_b_ranked(c, nmat, c->in[nmat == B_MASK ? B_Q : Q]->a.ndim) : NULL;
  pl_b_ops(c, c->op, in[nmat] ? nmat + 1 : nmat, in, c->attrs, c->out);
}

#define COMMON_BUT(INFER)                                                                                                               \
  .autocast = PL_CAST_LOW, .formula = "p = softmax(scale q k^T + mask); y = p v", .nin = 4, .nopt = 1, .nvisible = 1, .nattr = 3,       \
  .args = {"q", "k", "v", "mask"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .infer = INFER, .grad = attention_grad, .flops = attention_flops, \
  PL_KERNEL(attention)
#define SHAPES                                                                                                   \
  "q[...,L,E], k[...,S,E], v[...,S,D]. mask, broadcast to [...,L,S], is bool (false: not seen) or added to the " \
  "scores; with is_causal query i sees keys 1 to i. A query that sees nothing gives zeros. "

static PlStatus pure_infer(PlInfer *c) {
  if (pl_attr_f(c->attrs, A_DROP) != 0) PL_FAIL(PL_ERR_ARG, "attention: dropout is attention_dropout's");
  return attention_infer(c);
}

PL_OP(attention,
      .doc = "softmax(scale q k^T + mask) v without the matrix of scores: " SHAPES "Further output: each row's largest score "
             "and sum. See nn.F.scaled_dot_product_attention.",
      .example = "local q = T.ones(1, 2, 4)\n"
                 "print((T.attention(q, q, T.tensor { { { 1 }, { 3 } } }:expand(1, 2, 4), { scale = 0.5 })))\n"
                 "--> {{{2., 2., 2., 2.},\n"
                 "-->   {2., 2., 2., 2.}}}  -- f32[1,2,4] cpu",
      .nout = 2, .spare = 2, .batch = attention_batch, .flags = PL_F_NOMETHOD | PL_F_POLY, COMMON_BUT(pure_infer));

PL_OP(attention_dropout,
      .doc = "attention with each share dropped with probability dropout_p and the others over 1 - dropout_p: " SHAPES
             "Further outputs: each row's largest score and sum; the random state.",
      .example = "local q = T.ones(1, 2, 4)\n"
                 "print((T.attention_dropout(q, q, q, nil, { scale = 0.5, dropout_p = 0.0 })):flatten())\n"
                 "--> {1., 1., 1., 1., 1., 1., 1., 1.}  -- f32[8] cpu",
      .nout = 3, .spare = 6, .flags = PL_F_NOMETHOD | PL_F_POLY | PL_F_SEEDED, .draws = plk_attention_draws, COMMON_BUT(attention_infer));

static PlStatus attention_bwd_infer(PlInfer *c) {
  PL_TRY(check_qkv(c, B_Q, B_MASK));
  const PlArray *dy = c->in[B_DY], *q = c->in[B_Q], *v = c->in[B_V], *sums = c->in[B_SUMS];
  PL_TRY(pl_check_dtype(c, B_DY, (PlDtype)q->dtype));
  PL_TRY(pl_check_dtype(c, B_SUMS, wide_dtype(q->dtype)));
  const int n = q->ndim;
  bool dy_fits = dy->ndim == n && dy->shape[n - 1] == v->shape[n - 1];
  bool sums_fit = sums->ndim == n && sums->shape[n - 1] == 2;
  for (int d = 0; d < n - 1; d++) {
    dy_fits = dy_fits && dy->shape[d] == q->shape[d];
    sums_fit = sums_fit && sums->shape[d] == q->shape[d];
  }
  if (!dy_fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: gradient %s does not fit queries %s and values %s", c->op->name, pl_desc_text(dy), pl_desc_text(q),
            pl_desc_text(v));
  if (!sums_fit) PL_FAIL(PL_ERR_SHAPE, "%s: sums %s do not fit queries %s", c->op->name, pl_desc_text(sums), pl_desc_text(q));
  if (c->nin > B_STATE && c->in[B_STATE]) {
    PL_TRY(pl_check_dtype(c, B_STATE, PL_I64));
    PL_TRY(pl_check_shape(c, B_STATE, 1, (const int64_t[]){3}));
  }
  const PlArray *y = c->nin > B_Y ? c->in[B_Y] : NULL;
  if (y && (y->dtype != dy->dtype || !pl_shape_equal(y, dy)))
    PL_FAIL(PL_ERR_SHAPE, "%s: output %s does not fit its gradient %s", c->op->name, pl_desc_text(y), pl_desc_text(dy));
  for (int i = 0; i < 3; i++) pl_desc_set(&c->out[i], (PlDtype)q->dtype, n, c->in[i + 1]->shape);
  return PL_OK;
}

/* The gradient of dq = s S k, dk = s Sᵀ q, dv = (P D)ᵀ dy, S = P (T - Σ P T), for gradients a, b, c of them:
 *   U = s (a kᵀ + q bᵀ), w = Σ U P;  gP = D (dy cᵀ) + U (T - Σ P T) - w T;  gT = D P (U - w);  gZ = P (gP - Σ gP P)
 *   gdy = gT v + (P D) c, gq = s (gZ k + S b), gk = s (gZᵀ q + Sᵀ a), gv = gTᵀ dy, gmask = gZ */
static PlStatus attention_bwd_grad(PlMaker *g) {
  const PlVal state = g->nin > B_STATE && g->in[B_STATE] ? g->x[B_STATE] : PL_NONE;
  Parts p = parts_of(g, B_Q, B_MASK, state);
  PlVal dy = widen(g, &p, g->x[B_DY]), d[3];
  for (int i = 0; i < 3; i++) d[i] = widen(g, &p, g->dy[i] == PL_NONE ? pl_g_zeros_like(g, i + 1) : g->dy[i]);
  PlVal a = d[0], b = d[1], c = d[2], P = p.P, T = kept(g, &p, product(g, dy, p.v, false, true));
  PlVal centered = g_sub(g, T, row_sum(g, g_mul(g, P, T), p.ndim)), S = g_mul(g, P, centered);
  PlVal U = g_muln(g, g_add(g, product(g, a, p.k, false, true), product(g, p.q, b, false, true)), p.scale);
  PlVal w = row_sum(g, g_mul(g, U, P), p.ndim), gT = kept(g, &p, g_mul(g, P, g_sub(g, U, w)));
  PlVal gP = g_add(g, kept(g, &p, product(g, dy, c, false, true)), g_sub(g, g_mul(g, U, centered), g_mul(g, w, T)));
  PlVal gZ = g_mul(g, P, g_sub(g, gP, row_sum(g, g_mul(g, gP, P), p.ndim)));
  if (g->want[B_DY])
    g->dx[B_DY] = narrowed(g, &p, g_add(g, product(g, gT, p.v, false, false), product(g, kept(g, &p, P), c, false, false)));
  if (g->want[B_Q])
    g->dx[B_Q] = narrowed(g, &p, g_muln(g, g_add(g, product(g, gZ, p.k, false, false), product(g, S, b, false, false)), p.scale));
  if (g->want[B_K])
    g->dx[B_K] = narrowed(g, &p, g_muln(g, g_add(g, product(g, gZ, p.q, true, false), product(g, S, a, true, false)), p.scale));
  if (g->want[B_V]) g->dx[B_V] = narrowed(g, &p, product(g, gT, dy, true, false));
  if (g->nin > B_MASK && g->in[B_MASK] && g->want[B_MASK]) g->dx[B_MASK] = g_to_input(g, pl_g_sum_to(g, gZ, B_MASK), p.wide, B_MASK);
  return g->status;
}

/* The scores once more, and four products of their size. */
static double attention_bwd_flops(const PlInfer *c) {
  const PlArray *q = c->in[1], *k = c->in[2], *v = c->in[3];
  double e = (double)q->shape[q->ndim - 1], d = (double)v->shape[v->ndim - 1];
  return e > 0 ? 2 * (double)q->numel / e * (double)k->shape[k->ndim - 2] * (3 * e + 2 * d) : 0;
}

PL_OP(attention_bwd, .doc = "The gradients of attention for q, k and v.", .nin = B_NIN, .nopt = 3, .nout = 3, .nattr = 3,
      .args = {"dy", "q", "k", "v", "sums", "mask", "state", "y"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .batch = attention_batch,
      .flags = PL_F_INTERNAL | PL_F_POLY, .infer = attention_bwd_infer, .grad = attention_bwd_grad, .flops = attention_bwd_flops,
      PL_KERNEL(attention_bwd));

static PlStatus keep_infer(PlInfer *c) {
  const PlArray *q = c->in[0], *k = c->in[1];
  int64_t shape[PL_MAX_DIM];
  PL_TRY(pl_check_ndim(c, 0, 3, PL_MAX_DIM));
  PL_TRY(pl_check_ndim(c, 1, q->ndim, q->ndim));
  PL_TRY(pl_check_float(c, 0));
  const double p = pl_attr_f(c->attrs, 0);
  if (!(p >= 0 && p <= 1)) PL_FAIL(PL_ERR_ARG, "%s: p %g must be from 0 to 1", c->op->name, p);
  PL_TRY(pl_check_dtype(c, 2, PL_I64));
  PL_TRY(pl_check_ndim(c, 2, 1, 1));
  if (c->in[2]->numel != 3) PL_FAIL(PL_ERR_SHAPE, "%s: the state is i64[3], not %s", c->op->name, pl_desc_text(c->in[2]));
  for (int d = 0; d < q->ndim - 1; d++) shape[d] = q->shape[d];
  shape[q->ndim - 1] = k->shape[k->ndim - 2];
  pl_desc_set(&c->out[0], wide_dtype(q->dtype), q->ndim, shape);
  return PL_OK;
}

PL_OP(attention_keep, .doc = "What attention_dropout multiplied its shares with: 0 or 1 / (1 - p), [...,L,S].", .nin = 3, .nout = 1,
      .nattr = 1, .args = {"q", "k", "state"}, .attrs = {A_FLOAT_REQ("p")}, .cls = PL_OPAQUE,
      .flags = PL_F_INTERNAL | PL_F_POLY | PL_F_NOGRAD_OK, .infer = keep_infer, PL_KERNEL(attention_keep));
