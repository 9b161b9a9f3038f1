/* SPDX-License-Identifier: MIT
 * A GRU over a whole sequence as one op, and its gradient as one; the gradient of that is unrolled into primitives, as
 * for an LSTM (lstm_seq.c). Step k: r, z = s of gx_k + h w^T;  m = h w_n^T + b;  n = tanh(gx_n + r m);
 * h' = n + z (h - n). hs holds h_0 … h_S; `reverse` walks from the end, and then it is reversed. */
#include <stdlib.h>

#include "engine/ops/names.h"
#include "engine/ops/recurrent/unroll.h"
#include "engine/ops/reduce/dims.h"
#include "kernels/recurrent.h"

enum { IN_GX, IN_H0, IN_W, IN_B };
enum { B_ACTS, B_HS, B_W, B_DHS, B_DACTS, B_NIN };
#define ATTRS A_BOOL("reverse", 0)

/* Input 0 is [S,N,times H] in f32 or f64. */
static PlStatus check_first(const PlInfer *c, int64_t times, int64_t *H) {
  const PlArray *a = c->in[0];
  PL_TRY(pl_check_ndim(c, 0, 3, 3));
  if (a->dtype != PL_F32 && a->dtype != PL_F64) PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(a));
  if (a->shape[2] % times != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s %s: [S,N,%lldH] is wanted", c->op->name, c->op->args[0], pl_desc_text(a), (long long)times);
  *H = a->shape[2] / times;
  return PL_OK;
}

static PlStatus seq_infer(PlInfer *c) {
  int64_t H;
  PL_TRY(check_first(c, 3, &H));
  const PlArray *gx = c->in[IN_GX];
  const int64_t h0[2] = {gx->shape[1], H}, w[2] = {3 * H, H};
  PL_TRY(pl_unroll_shape(c, IN_H0, 2, h0));
  PL_TRY(pl_unroll_shape(c, IN_W, 2, w));
  PL_TRY(pl_unroll_shape(c, IN_B, 1, &H));
  if (gx->shape[0] == INT64_MAX || H > INT64_MAX / 4) PL_FAIL(PL_ERR_SHAPE, "%s: too long", c->op->name);
  pl_desc_set(&c->out[0], (PlDtype)gx->dtype, 3, (const int64_t[]){gx->shape[0] + 1, gx->shape[1], H});
  pl_desc_set(&c->out[1], (PlDtype)gx->dtype, 3, (const int64_t[]){gx->shape[0], gx->shape[1], 4 * H});
  return PL_OK;
}

static PlStatus seq_grad(PlMaker *g) {
  PlVal in[B_NIN] = {g->y[1], g->y[0], g->x[IN_W], g->dy[0], g->dy[1]}, out[4] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  if (in[B_DHS] == PL_NONE) in[B_DHS] = pl_unroll_zeros(g, g->y[0]);
  pl_g_op(g, &pl_op_gru_seq_bwd, in[B_DACTS] == PL_NONE ? B_DACTS : B_NIN, in, g->attrs, out);
  for (int i = 0; i < 4; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

static double seq_flops(const PlInfer *c) {
  const PlArray *gx = c->in[0];
  return 2.0 * (double)gx->numel * (double)(gx->shape[2] / 3);
}

PL_OP(gru_seq, .autocast = PL_CAST_F32,
      .doc = "A GRU over gx[S,N,3H] (inputs times their weight, with all biases but that within the reset), from h0[N,H] with "
             "w[3H,H] and that bias b[H]. Gives hs[S+1,N,H]: the states before, between and after the steps; backwards if "
             "reverse. f32 or f64.",
      .example = "local hs = T.gru_seq(T.zeros(2, 1, 3), T.ones(1, 1), T.zeros(3, 1), T.zeros(1))\n"
                 "print(hs:flatten())  --> {1.0000, 0.5000, 0.2500}  -- f32[3] cpu",
      .formula = "r, z = s of gx + h w^T; n = tanh(gx + r (h w^T + b)); h = n + z (h - n)", .nin = 4, .nout = 2, .nvisible = 1, .nattr = 1,
      .args = {"gx", "h0", "w", "b"}, .attrs = {ATTRS}, .cls = PL_HEAVY, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY,
      .infer = seq_infer, .grad = seq_grad, .flops = seq_flops, PL_KERNEL(gru_seq));

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

static PlStatus seq_bwd_infer(PlInfer *c) {
  int64_t H;
  PL_TRY(check_first(c, 4, &H));
  const PlArray *acts = c->in[B_ACTS];
  const int64_t states[3] = {acts->shape[0] + 1, acts->shape[1], H}, w[2] = {3 * H, H};
  PL_TRY(pl_unroll_shape(c, B_HS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_W, 2, w));
  PL_TRY(pl_unroll_shape(c, B_DHS, 3, states));
  PL_TRY(pl_unroll_shape(c, B_DACTS, 3, acts->shape));
  const PlDtype d = (PlDtype)acts->dtype;
  pl_desc_set(&c->out[0], d, 3, (const int64_t[]){acts->shape[0], acts->shape[1], 3 * H});
  pl_desc_set(&c->out[1], d, 2, states + 1);
  pl_desc_set(&c->out[2], d, 2, w);
  pl_desc_set(&c->out[3], d, 1, &H);
  return PL_OK;
}

/* What a step of backward computes: d of h', and the gradients of r, z, n before their slopes; an = that of n's
 * argument, da [N,3H] that of h w^T. */
typedef struct Step {
  PlVal r, z, n, m, h, d, dr, dz, dn, an, da, slope_r, slope_z, slope_n;
} Step;

static PlVal logistic_slope(PlMaker *g, PlVal a) { return g_mul(g, a, g_rsubn(g, 1, a)); }

static void replay(PlMaker *g, Step *s, int64_t S, int64_t H, bool reverse) {
  PlVal next = PL_NONE;
  const bool extra = g->nin > B_DACTS && g->in[B_DACTS];
  for (int64_t k = S - 1; k >= 0; k--) {
    const int64_t at = reverse ? S - 1 - k : k, old = reverse ? S - k : k, new = reverse ? old - 1 : old + 1;
    Step *e = &s[k];
    PlVal all = pl_unroll_pick(g, g->x[B_ACTS], at), more = extra ? pl_unroll_pick(g, g->x[B_DACTS], at) : PL_NONE;
    e->r = pl_unroll_part(g, all, 0, H), e->z = pl_unroll_part(g, all, 1, H);
    e->n = pl_unroll_part(g, all, 2, H), e->m = pl_unroll_part(g, all, 3, H);
    e->h = pl_unroll_pick(g, g->x[B_HS], old);
    e->d = pl_unroll_plus(g, pl_unroll_pick(g, g->x[B_DHS], new), next);
    e->slope_r = logistic_slope(g, e->r), e->slope_z = logistic_slope(g, e->z);
    e->slope_n = g_rsubn(g, 1, g_mul(g, e->n, e->n));
    e->dn = pl_unroll_plus(g, g_mul(g, e->d, g_rsubn(g, 1, e->z)), pl_unroll_part(g, more, 2, H));
    e->an = g_mul(g, e->dn, e->slope_n);
    e->dr = pl_unroll_plus(g, g_mul(g, e->an, e->m), pl_unroll_part(g, more, 0, H));
    e->dz = pl_unroll_plus(g, g_mul(g, e->d, g_sub(g, e->h, e->n)), pl_unroll_part(g, more, 1, H));
    const PlVal da[3] = {g_mul(g, e->dr, e->slope_r), g_mul(g, e->dz, e->slope_z),
                         pl_unroll_plus(g, g_mul(g, e->an, e->r), pl_unroll_part(g, more, 3, H))};
    e->da = g_with_int(g, &pl_op_cat, 3, da, 1);
    next = g_add(g, g_mul(g, e->d, e->z), pl_unroll_product(g, e->da, g->x[B_W], false, false));
  }
}

typedef struct Back {
  PlVal act, dact, h, w;
} Back;

/* Gradients of a step's results for what it read; *e: that of the gradient it passes to the step before, then its own. */
static Back step_back(PlMaker *g, const Step *s, PlVal vx, PlVal *e, int64_t H) {
  PlVal w = g->x[B_W], vw = g->dy[2], vb = g->dy[3];
  Back r;
  PlVal A = pl_unroll_plus(g, pl_unroll_product(g, s->h, vw, false, true), pl_unroll_product(g, *e, w, false, true));
  if (A == PL_NONE) A = pl_unroll_zeros(g, s->da);
  if (vx == PL_NONE) vx = pl_unroll_zeros(g, s->da);
  r.w = pl_unroll_product(g, s->da, *e, true, false);
  PlVal dm = pl_unroll_plus(g, pl_unroll_part(g, A, 2, H), vb);
  PlVal ar = g_add(g, pl_unroll_part(g, vx, 0, H), pl_unroll_part(g, A, 0, H));
  PlVal az = g_add(g, pl_unroll_part(g, vx, 1, H), pl_unroll_part(g, A, 1, H));
  PlVal dz = g_mul(g, az, s->slope_z), dr = g_mul(g, ar, s->slope_r);
  PlVal an = g_add(g, g_add(g, pl_unroll_part(g, vx, 2, H), g_mul(g, dm, s->r)), g_mul(g, dr, s->m));
  PlVal dn = g_mul(g, an, s->slope_n), dz_d = g_mul(g, dz, s->d);
  PlVal gr = g_add(g, g_mul(g, dm, s->an), g_mul(g, g_mul(g, ar, s->dr), g_rsubn(g, 1, g_muln(g, s->r, 2))));
  PlVal gz = g_sub(g, g_mul(g, g_mul(g, az, s->dz), g_rsubn(g, 1, g_muln(g, s->z, 2))), g_mul(g, dn, s->d));
  PlVal gn = g_sub(g, g_muln(g, g_mul(g, g_mul(g, an, s->dn), s->n), -2), dz_d);
  PlVal d = g_add(g, g_mul(g, dz, g_sub(g, s->h, s->n)), g_mul(g, dn, g_rsubn(g, 1, s->z)));
  if (*e != PL_NONE) {
    gz = g_add(g, gz, g_mul(g, *e, s->d));
    d = g_add(g, d, g_mul(g, *e, s->z));
  }
  const PlVal act[4] = {gr, gz, gn, g_mul(g, dr, s->an)}, dact[4] = {dr, dz, dn, dm};
  r.act = g_with_int(g, &pl_op_cat, 4, act, 1);
  r.dact = g_with_int(g, &pl_op_cat, 4, dact, 1);
  r.h = pl_unroll_plus(g, dz_d, pl_unroll_product(g, s->da, vw, false, false));
  *e = d;
  return r;
}

static void unroll(PlMaker *g, int64_t S, int64_t H, bool reverse, Step *s, PlVal *v) {
  PlVal *act = v, *dact = act + S, *hs = dact + S, *dhs = hs + S + 1, e = g->dy[1], w = PL_NONE;
  replay(g, s, S, H, reverse);
  hs[S] = PL_NONE;
  for (int64_t k = 0; k < S; k++) {
    dhs[k] = e;
    Back r = step_back(g, &s[k], pl_unroll_pick(g, g->dy[0], reverse ? S - 1 - k : k), &e, H);
    act[k] = r.act, dact[k] = r.dact, hs[k] = r.h;
    w = pl_unroll_plus(g, w, r.w);
  }
  dhs[S] = e;
  PlVal like = s[0].h;
  if (g->want[B_ACTS]) g->dx[B_ACTS] = pl_unroll_stack(g, act, S, reverse, PL_NONE);
  if (g->want[B_HS]) g->dx[B_HS] = pl_unroll_stack(g, hs, S + 1, reverse, like);
  if (g->want[B_W]) g->dx[B_W] = w == PL_NONE ? pl_g_zeros_like(g, B_W) : w;
  if (g->want[B_DHS]) g->dx[B_DHS] = pl_unroll_stack(g, dhs, S + 1, reverse, like);
  if (g->nin > B_DACTS && g->in[B_DACTS] && g->want[B_DACTS]) g->dx[B_DACTS] = pl_unroll_stack(g, dact, S, reverse, PL_NONE);
}

static PlStatus seq_bwd_grad(PlMaker *g) {
  const int64_t S = g->in[B_ACTS]->shape[0], H = g->in[B_ACTS]->shape[2] / 4;
  if (S == 0 || S >= PL_MAX_VARIADIC) PL_FAIL(PL_ERR_UNSUPPORTED, "gru_seq: no second gradient of %lld steps", (long long)S);
  Step *s = calloc((size_t)S, sizeof *s);
  PlVal *v = calloc((size_t)(4 * S + 2), sizeof *v);
  if (s && v) unroll(g, S, H, pl_attr_i(g->attrs, 0) != 0, s, v);
  else pl_g_fail(g, pl_fail(PL_ERR_OOM, "gru_seq: out of memory for its second gradient"));
  free(v);
  free(s);
  return g->status;
}

PL_OP(gru_seq_bwd, .doc = "The gradients of gru_seq for gx, h0, w and b.", .nin = B_NIN, .nopt = 1, .nout = 4, .nattr = 1,
      .args = {"acts", "hs", "w", "dhs", "dacts"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
      .flags = PL_F_CONTIGUOUS | PL_F_REPEATED | PL_F_INTERNAL, .infer = seq_bwd_infer, .grad = seq_bwd_grad, PL_KERNEL(gru_seq_bwd));
