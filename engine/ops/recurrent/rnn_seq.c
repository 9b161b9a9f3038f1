/* SPDX-License-Identifier: MIT
 * A plain recurrent layer over a whole sequence as one op, and its gradient as one; the gradient of that is unrolled
 * into primitives, as for an LSTM (lstm_seq.c). h' = f(gx_k + h w^T) with f = tanh or relu; hs holds h_0 … h_S. */
#include <stdlib.h>

#include "engine/ops/names.h"
#include "engine/ops/recurrent/unroll.h"
#include "engine/ops/reduce/dims.h"
#include "kernels/recurrent.h"

enum { B_HS, B_W, B_DHS, B_NIN };
#define ATTRS A_BOOL("reverse", 0), A_BOOL("relu", 0)

static PlStatus check_first(const PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 0, 3, 3));
  if (c->in[0]->dtype != PL_F32 && c->in[0]->dtype != PL_F64)
    PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(c->in[0]));
  return PL_OK;
}

static PlStatus seq_infer(PlInfer *c) {
  PL_TRY(check_first(c));
  const PlArray *gx = c->in[0];
  const int64_t H = gx->shape[2], w[2] = {H, H};
  PL_TRY(pl_unroll_shape(c, 1, 2, gx->shape + 1));
  PL_TRY(pl_unroll_shape(c, 2, 2, w));
  if (gx->shape[0] == INT64_MAX) PL_FAIL(PL_ERR_SHAPE, "%s: too long", c->op->name);
  pl_desc_set(&c->out[0], (PlDtype)gx->dtype, 3, (const int64_t[]){gx->shape[0] + 1, gx->shape[1], H});
  return PL_OK;
}

static PlStatus seq_grad(PlMaker *g) {
  PlVal in[B_NIN] = {g->y[0], g->x[2], g->dy[0]}, out[3] = {PL_NONE, PL_NONE, PL_NONE};
  if (g->dy[0] == PL_NONE) return g->status;
  pl_g_op(g, &pl_op_rnn_seq_bwd, B_NIN, in, g->attrs, out);
  for (int i = 0; i < 3; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

static double seq_flops(const PlInfer *c) { return 2.0 * (double)c->in[0]->numel * (double)c->in[0]->shape[2]; }

PL_OP(rnn_seq, .autocast = PL_CAST_F32,
      .doc = "A plain recurrent layer over gx[S,N,H] (inputs times their weight, with biases), from h0[N,H] with w[H,H]; tanh, "
             "or relu. Gives hs[S+1,N,H]: the states before, between and after the steps; backwards if reverse. f32 or f64.",
      .example = "local hs = T.rnn_seq(T.ones(2, 1, 1), T.zeros(1, 1), T.ones(1, 1), { relu = true })\n"
                 "print(hs:flatten())  --> {0., 1., 2.}  -- f32[3] cpu",
      .formula = "h = tanh(gx + h w^T)", .nin = 3, .nout = 1, .nattr = 2, .args = {"gx", "h0", "w"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
      .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY, .infer = seq_infer, .grad = seq_grad, .flops = seq_flops, PL_KERNEL(rnn_seq));

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

static PlStatus seq_bwd_infer(PlInfer *c) {
  PL_TRY(check_first(c));
  const PlArray *hs = c->in[B_HS];
  const int64_t H = hs->shape[2], w[2] = {H, H};
  if (hs->shape[0] < 1) PL_FAIL(PL_ERR_SHAPE, "%s: %s holds no state", c->op->name, pl_desc_text(hs));
  PL_TRY(pl_unroll_shape(c, B_W, 2, w));
  PL_TRY(pl_unroll_shape(c, B_DHS, 3, hs->shape));
  const PlDtype d = (PlDtype)hs->dtype;
  pl_desc_set(&c->out[0], d, 3, (const int64_t[]){hs->shape[0] - 1, hs->shape[1], H});
  pl_desc_set(&c->out[1], d, 2, hs->shape + 1);
  pl_desc_set(&c->out[2], d, 2, w);
  return PL_OK;
}

/* A step of backward: the state after it, the gradient d of that, the slope there, and da = d slope. */
typedef struct Step {
  PlVal after, before, d, slope, da;
} Step;

static void replay(PlMaker *g, Step *s, int64_t S, bool reverse, bool relu) {
  PlVal next = PL_NONE;
  for (int64_t k = S - 1; k >= 0; k--) {
    const int64_t old = reverse ? S - k : k, new = reverse ? old - 1 : old + 1;
    Step *e = &s[k];
    e->after = pl_unroll_pick(g, g->x[B_HS], new);
    e->before = pl_unroll_pick(g, g->x[B_HS], old);
    e->slope = relu ? pl_g_cast(g, pl_g2(g, &pl_op_gt, e->after, pl_g_num(g, 0)), (PlDtype)g->in[0]->dtype)
                    : g_rsubn(g, 1, g_mul(g, e->after, e->after));
    e->d = pl_unroll_plus(g, pl_unroll_pick(g, g->x[B_DHS], new), next);
    e->da = g_mul(g, e->d, e->slope);
    next = pl_unroll_product(g, e->da, g->x[B_W], false, false);
  }
}

static void unroll(PlMaker *g, int64_t S, bool reverse, bool relu, Step *s, PlVal *v) {
  PlVal *hs = v, *dhs = hs + S + 1, e = g->dy[1], vw = g->dy[2], w = PL_NONE;
  replay(g, s, S, reverse, relu);
  hs[0] = PL_NONE;
  for (int64_t k = 0; k < S; k++) {
    dhs[k] = e;
    PlVal A = pl_unroll_plus(g, pl_unroll_product(g, s[k].before, vw, false, true), pl_unroll_product(g, e, g->x[B_W], false, true));
    A = pl_unroll_plus(g, A, pl_unroll_pick(g, g->dy[0], reverse ? S - 1 - k : k));
    w = pl_unroll_plus(g, w, pl_unroll_product(g, s[k].da, e, true, false));
    hs[k] = pl_unroll_plus(g, hs[k], pl_unroll_product(g, s[k].da, vw, false, false));
    e = pl_unroll_times(g, A, s[k].slope);
    PlVal bend = relu ? PL_NONE : pl_unroll_times(g, A, s[k].d);
    hs[k + 1] = bend == PL_NONE ? PL_NONE : g_muln(g, g_mul(g, bend, s[k].after), -2);
  }
  dhs[S] = e;
  if (g->want[B_HS]) g->dx[B_HS] = pl_unroll_stack(g, hs, S + 1, reverse, s[0].before);
  if (g->want[B_W]) g->dx[B_W] = w == PL_NONE ? pl_g_zeros_like(g, B_W) : w;
  if (g->want[B_DHS]) g->dx[B_DHS] = pl_unroll_stack(g, dhs, S + 1, reverse, s[0].before);
}

static PlStatus seq_bwd_grad(PlMaker *g) {
  const int64_t S = g->in[B_HS]->shape[0] - 1;
  if (S == 0 || S >= PL_MAX_VARIADIC - 1) PL_FAIL(PL_ERR_UNSUPPORTED, "rnn_seq: no second gradient of %lld steps", (long long)S);
  Step *s = calloc((size_t)S, sizeof *s);
  PlVal *v = calloc((size_t)(2 * S + 2), sizeof *v);
  if (s && v) unroll(g, S, pl_attr_i(g->attrs, 0) != 0, pl_attr_i(g->attrs, 1) != 0, s, v);
  else pl_g_fail(g, pl_fail(PL_ERR_OOM, "rnn_seq: out of memory for its second gradient"));
  free(v);
  free(s);
  return g->status;
}

PL_OP(rnn_seq_bwd, .doc = "The gradients of rnn_seq for gx, h0 and w.", .nin = B_NIN, .nout = 3, .nattr = 2, .args = {"hs", "w", "dhs"},
      .attrs = {ATTRS}, .cls = PL_HEAVY, .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = seq_bwd_infer, .grad = seq_bwd_grad,
      PL_KERNEL(rnn_seq_bwd));
