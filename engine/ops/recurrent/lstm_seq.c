/* SPDX-License-Identifier: MIT
 * An LSTM over a whole sequence as one op, and its gradient as one; the gradient of that is unrolled into primitives.
 * Step k: (i, f, g, o) = activations of gx_k + h_k w^T;  c_{k+1} = f c_k + i g;  h_{k+1} = o tanh(c_{k+1}).
 * hs and cs hold h_0 … h_S and c_0 … c_S; `reverse` walks from the end of the sequence, and then both are reversed. */
#include <stdlib.h>

#include "engine/ops/names.h"
#include "engine/ops/recurrent/unroll.h"
#include "engine/ops/reduce/dims.h"
#include "engine/vmap/vmap.h"
#include "kernels/recurrent.h"

enum { IN_GX, IN_H0, IN_C0, IN_W };
enum { L_X, L_H0, L_C0, L_WX, L_W, L_B, L_NIN };
enum { B_GATES, B_CS, B_HS, B_W, B_DHS, B_DCS, B_DGATES, B_NIN };
#define ATTRS A_BOOL("reverse", 0)

static PlStatus check_first(const PlInfer *c, int64_t *H) {
  const PlArray *a = c->in[0];
  PL_TRY(pl_check_ndim(c, 0, 3, 3));
  if (a->dtype != PL_F32 && a->dtype != PL_F64) PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(a));
  if (a->shape[2] % 4 != 0) PL_FAIL(PL_ERR_SHAPE, "%s: %s %s: [S,N,4H] is wanted", c->op->name, c->op->args[0], pl_desc_text(a));
  *H = a->shape[2] / 4;
  return PL_OK;
}

static PlStatus seq_infer(PlInfer *c) {
  int64_t H;
  PL_TRY(check_first(c, &H));
  const PlArray *gx = c->in[IN_GX];
  const int64_t state[2] = {gx->shape[1], H}, w[2] = {4 * H, H};
  PL_TRY(pl_unroll_shape(c, IN_H0, 2, state));
  PL_TRY(pl_unroll_shape(c, IN_C0, 2, state));
  PL_TRY(pl_unroll_shape(c, IN_W, 2, w));
  if (gx->shape[0] == INT64_MAX) PL_FAIL(PL_ERR_SHAPE, "%s: too long", c->op->name);
  const int64_t states[3] = {gx->shape[0] + 1, gx->shape[1], H};
  pl_desc_set(&c->out[0], (PlDtype)gx->dtype, 3, states);
  pl_desc_set(&c->out[1], (PlDtype)gx->dtype, 3, states);
  pl_desc_set(&c->out[2], (PlDtype)gx->dtype, 3, gx->shape);
  return PL_OK;
}

static PlStatus seq_grad(PlMaker *g) {
  PlVal in[B_NIN] = {g->y[2], g->y[1], g->y[0], g->x[IN_W], g->dy[0], g->dy[1], g->dy[2]};
  PlVal out[4] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  if (in[B_DHS] == PL_NONE) in[B_DHS] = pl_unroll_zeros(g, g->y[0]);
  const int n = in[B_DGATES] != PL_NONE ? B_NIN : in[B_DCS] != PL_NONE ? B_DGATES : B_DCS;
  pl_g_op(g, &pl_op_lstm_seq_bwd, n, in, g->attrs, out);
  for (int i = 0; i < 4; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

/* ---- many at once: the batch joins N, while all share the weight ------------------------------------------------- */

/* Input i [.., N, ..] with N its dim `at`, as [.., n N, ..]. */
static PlTensor *joined(PlBatchCall *c, int i, int at) {
  PlTensor *t = i < c->nin && c->in[i] ? pl_b_each(c, i) : NULL;
  return t ? pl_b_merge(c, pl_b_move(c, t, 0, at), at) : NULL;
}
/* The backward pass for a result. */
static PlTensor *parted(PlBatchCall *c, PlTensor *t, int at) {
  if (!t || c->status != PL_OK) return NULL;
  int64_t shape[PL_MAX_DIM];
  for (int d = 0; d < t->a.ndim; d++) shape[d + (d > at)] = t->a.shape[d];
  shape[at] = c->n;
  shape[at + 1] = t->a.shape[at] / c->n;
  return pl_b_move(c, pl_b_reshape(c, t, t->a.ndim + 1, shape), at, 0);
}

static void seq_batch(PlBatchCall *c) {
  if ((c->declined = c->full[IN_W] != NULL || c->n == 0)) return;
  PlTensor *in[4] = {joined(c, IN_GX, 1), joined(c, IN_H0, 0), joined(c, IN_C0, 0), c->in[IN_W]}, *out[PL_MAX_OUT] = {NULL};
  pl_b_ops(c, c->op, 4, in, c->attrs, out);
  for (int o = 0; o < 3; o++) c->out[o] = parted(c, out[o], 1);
}

static void seq_bwd_batch(PlBatchCall *c) {
  if ((c->declined = c->full[B_W] != NULL || c->n == 0)) return;
  PlTensor *in[B_NIN], *out[PL_MAX_OUT] = {NULL};
  int nin = 0;
  for (int i = 0; i < c->nin; i++) {
    in[i] = i == B_W ? c->in[i] : joined(c, i, 1);
    if (in[i]) nin = i + 1;
  }
  pl_b_ops(c, c->op, nin, in, c->attrs, out);
  for (int o = 0; o < 3; o++) c->out[o] = parted(c, out[o], o ? 0 : 1);
  if (c->status != PL_OK) return;
  /* dw apart for every element: Σ dgxᵀ (h before) */
  const int64_t S = c->in[B_GATES]->a.shape[0];
  PlAttrs a;
  pl_attrs_init(&pl_op_narrow, &a);
  pl_attrs_int(&a, 0, 1);
  pl_attrs_int(&a, 1, pl_attr_i(c->attrs, 0) != 0);
  pl_attrs_int(&a, 2, S);
  PlTensor *hs = pl_b_each(c, B_HS), *before = pl_b_op(c, &pl_op_narrow, 1, &hs, &a);
  PlTensor *pair[2] = {pl_b_merge(c, c->out[0], 1), pl_b_merge(c, before, 1)};
  pl_attrs_init(&pl_op_matmul_t, &a);
  pl_attrs_int(&a, 0, 1);
  c->out[3] = pl_b_op(c, &pl_op_matmul_t, 2, pair, &a);
}

static double seq_flops(const PlInfer *c) {
  const PlArray *gx = c->in[0];
  return 2.0 * (double)gx->numel * (double)(gx->shape[2] / 4);
}

PL_OP(lstm_seq, .autocast = PL_CAST_F32,
      .doc = "An LSTM over gx[S,N,4H] (inputs times their weight, with biases), from h0[N,H] and c0[N,H] with w[4H,H]. Gives "
             "hs and cs [S+1,N,H]: the states before, between and after the steps; backwards if reverse. f32 or f64.",
      .example = "local hs, cs = T.lstm_seq(T.zeros(2, 1, 4), T.zeros(1, 1), T.ones(1, 1), T.zeros(4, 1))\n"
                 "print(hs:flatten(), cs:flatten())\n"
                 "--> {0.0000, 0.2311, 0.1225}  -- f32[3] cpu\t{1.0000, 0.5000, 0.2500}  -- f32[3] cpu",
      .formula = "i, f, g, o = s, s, tanh, s of gx + h w^T; c = f c + i g; h = o tanh(c)", .nin = 4, .nout = 3, .nvisible = 2, .nattr = 1,
      .args = {"gx", "h0", "c0", "w"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .batch = seq_batch,
      .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY, .infer = seq_infer, .grad = seq_grad, .flops = seq_flops, PL_KERNEL(lstm_seq));

/* ---- with the inputs' product ------------------------------------------------------------------------------------- */

static PlStatus layer_infer(PlInfer *c) {
  const PlArray *x = c->in[L_X], *h0 = c->in[L_H0];
  PL_TRY(pl_check_ndim(c, L_X, 3, 3));
  PL_TRY(pl_check_ndim(c, L_H0, 2, 2));
  if (x->dtype != PL_F32 && x->dtype != PL_F64) PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(x));
  int64_t G;
  if (x->shape[0] == INT64_MAX || __builtin_mul_overflow(h0->shape[1], (int64_t)4, &G)) PL_FAIL(PL_ERR_SHAPE, "%s: too long", c->op->name);
  const int64_t N = x->shape[1], H = h0->shape[1];
  const int64_t first[2] = {N, H}, wx[2] = {G, x->shape[2]}, w[2] = {G, H}, states[3] = {x->shape[0] + 1, N, H};
  PL_TRY(pl_unroll_shape(c, L_H0, 2, first));
  PL_TRY(pl_unroll_shape(c, L_C0, 2, first));
  PL_TRY(pl_unroll_shape(c, L_WX, 2, wx));
  PL_TRY(pl_unroll_shape(c, L_W, 2, w));
  PL_TRY(pl_unroll_shape(c, L_B, 1, &G));
  const int64_t gates[3] = {x->shape[0], N, G};
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 3, states);
  pl_desc_set(&c->out[1], (PlDtype)x->dtype, 3, states);
  pl_desc_set(&c->out[2], (PlDtype)x->dtype, 3, gates);
  return PL_OK;
}

/* lstm_seq's gradients, and dgx as that of a linear's result. */
static PlStatus layer_grad(PlMaker *g) {
  PlVal in[B_NIN] = {g->y[2], g->y[1], g->y[0], g->x[L_W], g->dy[0], g->dy[1], g->dy[2]};
  PlVal out[4] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  if (in[B_DHS] == PL_NONE) in[B_DHS] = pl_unroll_zeros(g, g->y[0]);
  const int n = in[B_DGATES] != PL_NONE ? B_NIN : in[B_DCS] != PL_NONE ? B_DGATES : B_DCS;
  pl_g_op(g, &pl_op_lstm_seq_bwd, n, in, g->attrs, out);
  const PlVal dgx = out[0];
  if (g->want[L_X]) g->dx[L_X] = pl_g2(g, &pl_op_matmul, dgx, g->x[L_WX]);
  if (g->want[L_H0]) g->dx[L_H0] = out[1];
  if (g->want[L_C0]) g->dx[L_C0] = out[2];
  if (g->want[L_WX]) g->dx[L_WX] = pl_g2(g, &pl_op_matmul_flat_t, dgx, g->x[L_X]);
  if (g->want[L_W]) g->dx[L_W] = out[3];
  if (g->want[L_B]) g->dx[L_B] = pl_g_sum_to(g, dgx, L_B);
  return g->status;
}

static void layer_batch(PlBatchCall *c) {
  if ((c->declined = c->full[L_WX] || c->full[L_W] || c->full[L_B] || c->n == 0)) return;
  PlTensor *in[L_NIN] = {joined(c, L_X, 1), joined(c, L_H0, 0), joined(c, L_C0, 0), c->in[L_WX], c->in[L_W], c->in[L_B]};
  PlTensor *out[PL_MAX_OUT] = {NULL};
  pl_b_ops(c, c->op, L_NIN, in, c->attrs, out);
  for (int o = 0; o < 3; o++) c->out[o] = parted(c, out[o], 1);
}

static double layer_flops(const PlInfer *c) {
  const PlArray *x = c->in[L_X], *w = c->in[L_W];
  return 2.0 * (double)x->shape[0] * (double)x->shape[1] * (double)w->shape[0] * (double)(x->shape[2] + w->shape[1]);
}

PL_OP(lstm_layer, .autocast = PL_CAST_F32,
      .doc = "lstm_seq over inputs x[S,N,I], whose product with wx[4H,I] and biases b[4H] it takes itself, step by step: "
             "gx = x wx^T + b is never in memory. Gives hs and cs [S+1,N,H].",
      .example = "local hs = T.lstm_layer(T.ones(2, 1, 1), T.zeros(1, 1), T.ones(1, 1), T.zeros(4, 1), T.zeros(4, 1), T.zeros(4))\n"
                 "print(hs:flatten())  --> {0.0000, 0.2311, 0.1225}  -- f32[3] cpu",
      .formula = "i, f, g, o = s, s, tanh, s of x wx^T + h w^T + b; c = f c + i g; h = o tanh(c)", .nin = L_NIN, .nout = 3, .nvisible = 2,
      .nattr = 1, .args = {"x", "h0", "c0", "wx", "w", "b"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .batch = layer_batch,
      .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY, .infer = layer_infer, .grad = layer_grad, .flops = layer_flops,
      PL_KERNEL_OWN(plk_cpu_lstm_layer));

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

static PlStatus seq_bwd_infer(PlInfer *c) {
  int64_t H;
  PL_TRY(check_first(c, &H));
  const PlArray *gates = c->in[B_GATES];
  const int64_t states[3] = {gates->shape[0] + 1, gates->shape[1], H}, w[2] = {4 * H, H};
  PL_TRY(pl_unroll_shape(c, B_CS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_HS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_W, 2, w));
  PL_TRY(pl_unroll_shape(c, B_DHS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_DCS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_DGATES, 3, gates->shape));
  const PlDtype d = (PlDtype)gates->dtype;
  pl_desc_set(&c->out[0], d, 3, gates->shape);
  pl_desc_set(&c->out[1], d, 2, states + 1);
  pl_desc_set(&c->out[2], d, 2, states + 1);
  pl_desc_set(&c->out[3], d, 2, w);
  return PL_OK;
}

/* What a step of backward computes, and the derivatives of the activations. */
typedef struct Step {
  PlVal act[4], slope[4], d[4], da; /* d: gradients of the activations; da [N,4H]: before them */
  PlVal c, t, dt, dh, q, h;         /* c and h before the step, t = tanh of c after it, dt = 1 - t² */
} Step;

/* Emits backward, so that all of its values can be named. */
static void replay(PlMaker *g, Step *s, int64_t S, int64_t H, bool reverse) {
  PlVal dh_next = PL_NONE, dc_next = PL_NONE;
  for (int64_t k = S - 1; k >= 0; k--) {
    const int64_t at = reverse ? S - 1 - k : k, old = reverse ? S - k : k, new = reverse ? old - 1 : old + 1;
    Step *e = &s[k];
    PlVal all = pl_unroll_pick(g, g->x[B_GATES], at),
          extra = g->nin > B_DGATES && g->in[B_DGATES] ? pl_unroll_pick(g, g->x[B_DGATES], at) : PL_NONE;
    PlVal dcs = g->nin > B_DCS && g->in[B_DCS] ? pl_unroll_pick(g, g->x[B_DCS], new) : PL_NONE;
    for (int j = 0; j < 4; j++) {
      PlVal a = e->act[j] = pl_unroll_part(g, all, j, H);
      e->slope[j] = j == 2 ? g_rsubn(g, 1, g_mul(g, a, a)) : g_mul(g, a, g_rsubn(g, 1, a));
    }
    e->c = pl_unroll_pick(g, g->x[B_CS], old);
    e->h = pl_unroll_pick(g, g->x[B_HS], old);
    e->t = pl_g1(g, &pl_op_tanh, pl_unroll_pick(g, g->x[B_CS], new));
    e->dt = g_rsubn(g, 1, g_mul(g, e->t, e->t));
    e->dh = pl_unroll_plus(g, pl_unroll_pick(g, g->x[B_DHS], new), dh_next);
    e->q = pl_unroll_plus(g, pl_unroll_plus(g, dcs, dc_next), g_mul(g, g_mul(g, e->dh, e->act[3]), e->dt));
    const PlVal d[4] = {g_mul(g, e->q, e->act[2]), g_mul(g, e->q, e->c), g_mul(g, e->q, e->act[0]), g_mul(g, e->dh, e->t)};
    PlVal da[4];
    for (int j = 0; j < 4; j++) {
      e->d[j] = pl_unroll_plus(g, d[j], pl_unroll_part(g, extra, j, H));
      da[j] = g_mul(g, e->d[j], e->slope[j]);
    }
    e->da = g_with_int(g, &pl_op_cat, 4, da, 1);
    dh_next = pl_unroll_product(g, e->da, g->x[B_W], false, false);
    dc_next = g_mul(g, e->q, e->act[1]);
  }
}

/* Gradients of a step's results for the values it read; *e and *p: those of dh and dc, of the step before and of this. */
typedef struct Back {
  PlVal act, dact, c_old, c_new, h_old, w;
} Back;

static Back step_back(PlMaker *g, const Step *s, PlVal va, PlVal vw, PlVal w, PlVal *e, PlVal *p, int64_t H) {
  Back r;
  PlVal z = pl_unroll_plus(g, va, pl_unroll_plus(g, pl_unroll_product(g, s->h, vw, false, true), pl_unroll_product(g, *e, w, false, true)));
  r.h_old = pl_unroll_product(g, s->da, vw, false, false);
  r.w = pl_unroll_product(g, s->da, *e, true, false);
  if (z == PL_NONE) z = pl_unroll_zeros(g, s->da);
  PlVal u[4], a[4]; /* gradients of d and of the activations */
  for (int j = 0; j < 4; j++) {
    PlVal zj = pl_unroll_part(g, z, j, H), bend = j == 2 ? g_muln(g, s->act[2], -2) : g_rsubn(g, 1, g_muln(g, s->act[j], 2));
    u[j] = g_mul(g, zj, s->slope[j]);
    a[j] = g_mul(g, g_mul(g, zj, s->d[j]), bend);
  }
  PlVal q = pl_unroll_plus(g, pl_unroll_times(g, *p, s->act[1]), g_mul(g, u[0], s->act[2]));
  q = g_add(g, g_add(g, q, g_mul(g, u[1], s->c)), g_mul(g, u[2], s->act[0]));
  a[0] = g_add(g, a[0], g_mul(g, u[2], s->q));
  a[1] = pl_unroll_plus(g, a[1], pl_unroll_times(g, *p, s->q));
  a[2] = g_add(g, a[2], g_mul(g, u[0], s->q));
  PlVal q_dt = g_mul(g, q, s->dt), q_dh = g_mul(g, q, s->dh);
  a[3] = g_add(g, a[3], g_mul(g, q_dt, s->dh));
  PlVal t = g_sub(g, g_mul(g, u[3], s->dh), g_muln(g, g_mul(g, g_mul(g, q_dh, s->act[3]), s->t), 2));
  r.act = g_with_int(g, &pl_op_cat, 4, a, 1);
  r.dact = g_with_int(g, &pl_op_cat, 4, u, 1);
  r.c_old = g_mul(g, u[1], s->q);
  r.c_new = g_mul(g, t, s->dt);
  *e = g_add(g, g_mul(g, u[3], s->t), g_mul(g, q_dt, s->act[3]));
  *p = q;
  return r;
}

static void unroll(PlMaker *g, int64_t S, int64_t H, bool reverse, Step *s, PlVal *v) {
  PlVal *act = v, *dact = act + S, *cs = dact + S, *hs = cs + S + 1, *dhs = hs + S + 1, *dcs = dhs + S + 1;
  PlVal e = g->dy[1], p = g->dy[2], vw = g->dy[3], w = PL_NONE;
  replay(g, s, S, H, reverse);
  cs[0] = PL_NONE, hs[S] = PL_NONE;
  for (int64_t k = 0; k < S; k++) {
    dhs[k] = e, dcs[k] = p;
    Back r = step_back(g, &s[k], pl_unroll_pick(g, g->dy[0], reverse ? S - 1 - k : k), vw, g->x[B_W], &e, &p, H);
    act[k] = r.act, dact[k] = r.dact, hs[k] = r.h_old;
    cs[k] = pl_unroll_plus(g, cs[k], r.c_old);
    cs[k + 1] = r.c_new;
    w = pl_unroll_plus(g, w, r.w);
  }
  dhs[S] = e, dcs[S] = p;
  PlVal like = s[0].c;
  if (g->want[B_GATES]) g->dx[B_GATES] = pl_unroll_stack(g, act, S, reverse, PL_NONE);
  if (g->want[B_CS]) g->dx[B_CS] = pl_unroll_stack(g, cs, S + 1, reverse, like);
  if (g->want[B_HS]) g->dx[B_HS] = pl_unroll_stack(g, hs, S + 1, reverse, like);
  if (g->want[B_W]) g->dx[B_W] = w == PL_NONE ? pl_g_zeros_like(g, B_W) : w;
  if (g->want[B_DHS]) g->dx[B_DHS] = pl_unroll_stack(g, dhs, S + 1, reverse, like);
  if (g->nin > B_DCS && g->in[B_DCS] && g->want[B_DCS]) g->dx[B_DCS] = pl_unroll_stack(g, dcs, S + 1, reverse, like);
  if (g->nin > B_DGATES && g->in[B_DGATES] && g->want[B_DGATES]) g->dx[B_DGATES] = pl_unroll_stack(g, dact, S, reverse, PL_NONE);
}

static PlStatus seq_bwd_grad(PlMaker *g) {
  const int64_t S = g->in[B_GATES]->shape[0], H = g->in[B_GATES]->shape[2] / 4;
  if (S == 0 || S >= PL_MAX_VARIADIC) PL_FAIL(PL_ERR_UNSUPPORTED, "lstm_seq: no second gradient of %lld steps", (long long)S);
  Step *s = calloc((size_t)S, sizeof *s);
  PlVal *v = calloc((size_t)(6 * S + 4), sizeof *v);
  if (s && v) unroll(g, S, H, pl_attr_i(g->attrs, 0) != 0, s, v);
  else pl_g_fail(g, pl_fail(PL_ERR_OOM, "lstm_seq: out of memory for its second gradient"));
  free(v);
  free(s);
  return g->status;
}

PL_OP(lstm_seq_bwd, .doc = "The gradients of lstm_seq for gx, h0, c0 and w.", .nin = B_NIN, .nopt = 2, .nout = 4, .nattr = 1,
      .args = {"gates", "cs", "hs", "w", "dhs", "dcs", "dgates"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .batch = seq_bwd_batch,
      .flags = PL_F_CONTIGUOUS | PL_F_REPEATED | PL_F_INTERNAL | PL_F_OVER, .infer = seq_bwd_infer, .grad = seq_bwd_grad,
      PL_KERNEL(lstm_seq_bwd));
