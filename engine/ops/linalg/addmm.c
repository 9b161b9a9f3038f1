/* SPDX-License-Identifier: MIT
 * Products with something added: linear, and the addmm family  beta·input + alpha·(product). */
#include "engine/device/dispatch.h"
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/gemm.h"

PL_EITHER(linear)
PL_EITHER(addmm)
PL_EITHER(elementwise)

/* ---- linear: y[…,N] = x[…,K] w[N,K]ᵀ + b[N] --------------------------------------------------------------- */

/*   dx = dy w;  dw = Σ dyᵀ x over leading dims;  db = Σ dy.  w may be one row, w[K]: then y[…]. */
static PlStatus linear_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *w = c->in[1], *b = c->in[2];
  PL_TRY(pl_check_same_dtype(c, 0, 1));
  PL_TRY(pl_check_same_dtype(c, 0, 2));
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  PL_TRY(pl_check_ndim(c, 1, 1, 2));
  int64_t k = x->shape[x->ndim - 1], kw = w->shape[w->ndim - 1];
  if (k != kw) {
    if (x->ndim > 1 && w->ndim == 2 && x->numel / (x->shape[0] ? x->shape[0] : 1) == kw)
      PL_FAIL(PL_ERR_SHAPE, "linear: %s with weight %s: %lld features given, %lld expected; flatten first: x:view(%lld,-1)",
              pl_desc_text(x), pl_desc_text(w), (long long)k, (long long)kw, (long long)x->shape[0]);
    bool before = x->ndim > 1 && x->shape[x->ndim - 2] == kw; /* features are last, and dimensions count from 1 */
    PL_FAIL(PL_ERR_SHAPE, "linear: %s with weight %s: %lld features given, %lld expected%s", pl_desc_text(x), pl_desc_text(w), (long long)k,
            (long long)kw, before ? ", which come last: x:transpose(-2,-1)" : "");
  }
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim - 1, x->shape);
  if (w->ndim == 2) c->out[0].shape[c->out[0].ndim++] = w->shape[0];
  if (!b) return PL_OK;
  if (w->ndim == 2 ? b->ndim != 1 || b->shape[0] != w->shape[0] : b->numel != 1)
    PL_FAIL(PL_ERR_SHAPE, "linear: bias %s does not fit weight %s; it needs one value for each output feature", pl_desc_text(b),
            pl_desc_text(w));
  return PL_OK;
}

PL_HOST_KERNEL(pl_host_linear) {
  PlWindow x, w, b, y;
  void *sx = NULL, *sb = NULL;
  pl_window_of(&w, call->in[1]);
  if (w.a.ndim == 1) pl_window_insert(&w, 0);
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL;
  PL_TRY(pl_window_dense(&x, call->in[0], 1, &sx));
  PlStatus s = PL_OK;
  pl_window_flatten(&y, call->out[0], call->in[1]->ndim == 2 ? 1 : 0); /* outputs are contiguous */
  if (y.a.ndim == 1) pl_window_insert(&y, 1);
  if (bias && bias->contiguous) {
    pl_window_of(&b, bias);
    if (b.a.ndim == 0) pl_window_insert(&b, 0);
  } else if (bias) {
    s = pl_window_copy(&b, bias, &sb);
  }
  if (s == PL_OK) {
    const PlArray *in[3] = {&x.a, &w.a, bias ? &b.a : NULL};
    PlArray *out[1] = {&y.a};
    PlkCall k = *call;
    k.nin = bias ? 3 : 2;
    k.in = in;
    k.out = out;
    s = either_linear(&k);
  }
  pl_scratch_free_at(call->out[0]->device, sx);
  pl_scratch_free_at(call->out[0]->device, sb);
  return s;
}

static PlVal unsqueeze(PlMaker *g, PlVal v, int64_t dim) {
  PlAttrs a;
  pl_attrs_init(&pl_op_unsqueeze, &a);
  pl_attrs_int(&a, 0, dim);
  return pl_g_op(g, &pl_op_unsqueeze, 1, &v, &a, NULL);
}

static PlStatus linear_grad(PlMaker *g) {
  PlVal x = g->x[0], w = g->x[1], dy = g->dy[0];
  int nx = g->in[0]->ndim, nw = g->in[1]->ndim;
  if (g->want[0]) {
    if (nw == 1) g->dx[0] = g_mul(g, unsqueeze(g, dy, -1), w);
    else g->dx[0] = pl_g2(g, &pl_op_matmul, dy, w);
  }
  if (g->want[1]) {
    if (nw == 1) g->dx[1] = pl_g_sum_to(g, g_mul(g, unsqueeze(g, dy, -1), x), 1);
    else if (nx == 1) g->dx[1] = pl_g2(g, &pl_op_outer, dy, x);
    else if (nx == 2) g->dx[1] = pl_g_matmul(g, dy, x, true, false);
    else g->dx[1] = pl_g2(g, &pl_op_matmul_flat_t, dy, x);
  }
  if (g->nin > 2 && g->want[2]) g->dx[2] = pl_g_sum_to(g, dy, 2);
  return g->status;
}
static double linear_flops(const PlInfer *c) {
  double n = 2 * (double)c->in[0]->numel;
  return c->in[1]->ndim == 2 ? n * (double)c->in[1]->shape[0] : n;
}
PL_OP(linear, .autocast = PL_CAST_LOW, .doc = "x[...,K] times the transpose of weight[N,K], plus bias[N] if given: [...,N]. One dtype.",
      .example = "print(T.linear(T.tensor { 1, 2 }, T.tensor { { 1, 0 }, { 1, 1 } }, T.tensor { 10, 20 }))\n"
                 "--> {11., 23.}  -- f32[2] cpu",
      .formula = "y = x w^T + b; dx = dy w; dw = dy^T x; db = sum of dy over all but the last dim", .nin = 3, .nopt = 1, .nout = 1,
      .args = {"x", "weight", "bias"}, .cls = PL_HEAVY, .batch = pl_batch_linear, .flags = PL_F_POLY | PL_F_NOMETHOD, .infer = linear_infer,
      .grad = linear_grad, .flops = linear_flops, PL_KERNEL_EITHER(pl_host_linear));

/* ---- addmm, addmv, addr ------------------------------------------------------------------------------------- */

#define BETA_ALPHA \
  .nattr = 2, .attrs = {{.name = "beta", .type = PL_A_SCALAR, .optional = true}, {.name = "alpha", .type = PL_A_SCALAR, .optional = true}}

/* The factor; of integer tensors its whole part counts. */
static double factor(const PlAttrs *a, int k, PlDtype d) {
  if (!a || !pl_attr_has(a, k)) return 1;
  double v = (a->isint >> k) & 1 ? (double)pl_attr_i(a, k) : pl_attr_f(a, k);
  return pl_is_float(d) || (a->isint >> k & 1) || !(v > -1e18 && v < 1e18) ? v : (double)(int64_t)v;
}

/* input must broadcast to the product's shape, in c->out[0]. */
static PlStatus check_addend(const PlInfer *c) {
  const PlArray *a = c->in[0];
  const PlDesc *d = &c->out[0];
  PL_TRY(pl_check_same_dtype(c, 0, 1));
  bool ok = a->ndim <= d->ndim;
  for (int k = 1; ok && k <= a->ndim; k++) ok = a->shape[a->ndim - k] == 1 || a->shape[a->ndim - k] == d->shape[d->ndim - k];
  if (ok) return PL_OK;
  PlArray out = {.shape = d->shape, .ndim = d->ndim, .dtype = d->dtype};
  PL_FAIL(PL_ERR_SHAPE, "%s: input %s does not broadcast to the product's shape, %s", c->op->name, pl_desc_text(a), pl_desc_text(&out));
}

static PlStatus addmm_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 1, 2, 2));
  PL_TRY(pl_check_ndim(c, 2, 2, 2));
  PL_TRY(pl_infer_matmul(c, 1, 2, false, false));
  return check_addend(c);
}
static PlStatus baddbmm_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 1, 3, 3));
  PL_TRY(pl_check_ndim(c, 2, 3, 3));
  if (c->in[1]->shape[0] != c->in[2]->shape[0])
    PL_FAIL(PL_ERR_SHAPE, "baddbmm: %s x %s: batches differ", pl_desc_text(c->in[1]), pl_desc_text(c->in[2]));
  PL_TRY(pl_infer_matmul(c, 1, 2, false, false));
  return check_addend(c);
}
static PlStatus addmv_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 1, 2, 2));
  PL_TRY(pl_check_ndim(c, 2, 1, 1));
  PL_TRY(pl_infer_matmul(c, 1, 2, false, false));
  return check_addend(c);
}
static PlStatus addr_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 1, 1, 1));
  PL_TRY(pl_check_ndim(c, 2, 1, 1));
  PL_TRY(pl_check_same_dtype(c, 1, 2));
  const int64_t shape[2] = {c->in[1]->shape[0], c->in[2]->shape[0]};
  pl_desc_set(&c->out[0], (PlDtype)c->in[1]->dtype, 2, shape);
  return check_addend(c);
}

/* The kernel with vectors as matrices of one column or row. */
static PlStatus run_addmm(const PlkCall *call, bool v1_column, bool v2_column, bool out_column) {
  PlWindow w[3], y;
  for (int i = 0; i < 3; i++) pl_window_of(&w[i], call->in[i]);
  pl_window_of(&y, call->out[0]);
  if (w[1].a.ndim == 1) pl_window_insert(&w[1], v1_column ? 1 : 0);
  if (w[2].a.ndim == 1) pl_window_insert(&w[2], v2_column ? 1 : 0);
  if (out_column) {
    pl_window_insert(&y, 1);
    if (w[0].a.ndim == 1) pl_window_insert(&w[0], 1);
  }
  const PlArray *in[3] = {&w[0].a, &w[1].a, &w[2].a};
  PlArray *out[1] = {&y.a};
  PlkCall k = *call;
  k.in = in;
  k.out = out;
  return either_addmm(&k);
}
PL_HOST_KERNEL(pl_host_addmm) { return run_addmm(call, false, false, false); }
PL_HOST_KERNEL(pl_host_baddbmm) { return either_addmm(call); }
PL_HOST_KERNEL(pl_host_addmv) { return run_addmm(call, false, true, true); }
/* bool: input or (x and y), of which beta and alpha may switch off a part. */
static PlStatus addr_bool(const PlkCall *call) {
  PlWindow x;
  pl_window_of(&x, call->in[1]);
  pl_window_insert(&x, 1);
  const PlArray *in[2] = {&x.a, call->in[2]}, *more[2] = {call->out[0], call->in[0]};
  PlkCall k = *call;
  k.nin = 2;
  k.in = in;
  k.code = PLK_EW_MUL;
  PL_TRY(either_elementwise(&k));
  k.in = more;
  if (factor(call->attrs, 1, PL_BOOL) == 0) { /* alpha = 0: x y counts as false */
    const PlArray *same[2] = {call->out[0], call->out[0]};
    k.in = same;
    k.code = PLK_EW_BITWISE_XOR;
    PL_TRY(either_elementwise(&k));
  }
  k.in = more;
  k.code = PLK_EW_ADD;
  return factor(call->attrs, 0, PL_BOOL) == 0 ? PL_OK : either_elementwise(&k);
}
PL_HOST_KERNEL(pl_host_addr) { return call->out[0]->dtype == PL_BOOL ? addr_bool(call) : run_addmm(call, true, false, false); }

/* v times beta (k = 0) or alpha (1). Products are scaled, not their factors: terms of halves that are rounded before they are
 * added up leave their errors where the sum cancels. */
static PlVal scaled(PlMaker *g, int k, PlVal v) {
  double by = factor(g->attrs, k, (PlDtype)g->outd[0].dtype);
  return by == 1 ? v : g_muln(g, v, by);
}
/* dinput = beta dz;  da = alpha (dz bᵀ);  db = alpha (aᵀ dz) */
static PlStatus addmm_grad(PlMaker *g) {
  PlVal a = g->x[1], b = g->x[2];
  if (g->want[0]) g_give(g, 0, scaled(g, 0, g->dy[0]));
  if (g->want[1]) g->dx[1] = scaled(g, 1, pl_g_matmul(g, g->dy[0], b, false, true));
  if (g->want[2]) g->dx[2] = scaled(g, 1, pl_g_matmul(g, a, g->dy[0], true, false));
  return g->status;
}
#define baddbmm_grad addmm_grad
static PlStatus addmv_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, scaled(g, 0, g->dy[0]));
  if (g->want[1]) g->dx[1] = scaled(g, 1, pl_g2(g, &pl_op_outer, g->dy[0], g->x[2]));
  if (g->want[2]) g->dx[2] = scaled(g, 1, pl_g2(g, &pl_op_matmul, g->dy[0], g->x[1]));
  return g->status;
}
static PlStatus addr_grad(PlMaker *g) {
  if (g->want[0]) g_give(g, 0, scaled(g, 0, g->dy[0]));
  if (g->want[1]) g->dx[1] = scaled(g, 1, pl_g2(g, &pl_op_matmul, g->dy[0], g->x[2]));
  if (g->want[2]) g->dx[2] = scaled(g, 1, pl_g2(g, &pl_op_matmul, g->x[1], g->dy[0]));
  return g->status;
}
static double add_flops(const PlInfer *c) {
  double n = 2;
  for (int d = 0; d < c->out[0].ndim; d++) n *= (double)c->out[0].shape[d];
  return c->in[1]->ndim > 1 ? n * (double)c->in[1]->shape[c->in[1]->ndim - 1] : n;
}
#define ADDED(NAME, CAST, BATCH, A, B, DOC, EXAMPLE)                                                                           \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .formula = "beta input + alpha (product)", .nin = 3, .nout = 1, BETA_ALPHA,      \
        .args = {"input", A, B}, .cls = PL_HEAVY, .batch = BATCH, .autocast = CAST, .flags = PL_F_POLY, .infer = NAME##_infer, \
        .grad = NAME##_grad, .flops = add_flops, PL_KERNEL_EITHER(pl_host_##NAME));
ADDED(addmm, PL_CAST_LOW, pl_batch_addmm, "x", "y",
      "beta input + alpha x[M,K] y[K,N]; input broadcasts to [M,N]. beta = 0 ignores "
      "input.",
      "print(T.addmm(T.zeros(2, 2), T.eye(2), T.eye(2), { alpha = 3 }))\n"
      "--> {{3., 0.},\n"
      "-->  {0., 3.}}  -- f32[2,2] cpu")
ADDED(baddbmm, PL_CAST_LOW, pl_batch_addmm, "x", "y", "beta input + alpha x[B,M,K] y[B,K,N], product by product; input broadcasts.",
      "print(T.baddbmm(T.ones(1, 1, 1), T.ones(1, 1, 3), T.ones(1, 3, 1)))  --> {{{4.}}}  -- f32[1,1,1] cpu")
ADDED(addmv, PL_CAST_NONE, pl_batch_addmm, "x", "y", "beta input + alpha x[M,K] y[K]; input broadcasts to [M].",
      "print(T.addmv(T.tensor { 1, 1 }, T.eye(2), T.tensor { 2, 3 }))  --> {3., 4.}  -- f32[2] cpu")
ADDED(addr, PL_CAST_WIDEST, pl_batch_addr, "x", "y", "beta input + alpha times the outer product of x[M] and y[N].",
      "print(T.addr(T.zeros(2, 2), T.tensor { 1, 2 }, T.tensor { 3, 4 }))\n"
      "--> {{3., 4.},\n"
      "-->  {6., 8.}}  -- f32[2,2] cpu")

/* ---- the sum over a batch: made of other ops, which are recorded one by one ---------------------------------------- */

static PlStatus as_matrix(PlTensor *t, int64_t rows, int64_t cols, PlTensor **out) {
  PlAttrs a;
  pl_attrs_init(&pl_op_reshape, &a);
  PL_TRY(pl_attrs_list(&a, 0, 2, (int64_t[]){rows, cols}));
  return pl_apply(&pl_op_reshape, &t, 1, &a, out);
}
/* Σ_b x_b y_b: one product over the joined dim. */
static PlStatus addbmm_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  if (nin != 3) PL_FAIL(PL_ERR_ARG, "addbmm: takes 3 tensors, not %d", nin);
  const int64_t *x = pl_tensor_shape(in[1]), *y = pl_tensor_shape(in[2]);
  char tx[96], ty[96];
  if (pl_tensor_ndim(in[1]) != 3 || pl_tensor_ndim(in[2]) != 3 || x[0] != y[0] || x[2] != y[1])
    PL_FAIL(PL_ERR_SHAPE, "addbmm: %s x %s: needs x[B,M,K] and y[B,K,N]", pl_tensor_text(in[1], tx, sizeof tx),
            pl_tensor_text(in[2], ty, sizeof ty));
  const int64_t rows = x[1], joined = x[0] * x[2], cols = y[2];
  PlAttrs a;
  pl_attrs_init(&pl_op_transpose, &a);
  pl_attrs_int(&a, 0, 0);
  pl_attrs_int(&a, 1, 1);
  PlTensor *xt, *parts[3] = {in[0], NULL, NULL};
  PL_TRY(pl_apply(&pl_op_transpose, &in[1], 1, &a, &xt));
  PlStatus s = as_matrix(xt, rows, joined, &parts[1]);
  pl_tensor_release(xt);
  if (s == PL_OK) s = as_matrix(in[2], joined, cols, &parts[2]);
  if (s == PL_OK) s = pl_apply(&pl_op_addmm, parts, 3, attrs, out);
  pl_tensor_release(parts[1]);
  pl_tensor_release(parts[2]);
  return s;
}
/* The shape rule of an op that never comes here: its parts have their own. */
static PlStatus parts_infer(PlInfer *c) { PL_FAIL(PL_ERR_UNSUPPORTED, "%s: made of other ops", c->op->name); }
PL_OP(addbmm, .autocast = PL_CAST_LOW, .doc = "beta input + alpha times the sum over b of x[b] y[b], of x[B,M,K] and y[B,K,N].",
      .example = "print(T.addbmm(T.zeros(1, 1), T.ones(2, 1, 3), T.ones(2, 3, 1)))  --> {{6.}}  -- f32[1,1] cpu",
      .formula = "beta input + alpha sum_b x_b y_b", .nin = 3, .nout = 1, BETA_ALPHA, .args = {"input", "x", "y"}, .cls = PL_HEAVY,
      .infer = parts_infer, .expand = addbmm_expand);
