/* SPDX-License-Identifier: MIT
 * The pointwise half of an LSTM step, with two orders of gradients. */
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"
#include "kernels/recurrent.h"

/* Inputs ia [N,4H] and ic [N,H] of one floating dtype. */
static PlStatus check_gates(const PlInfer *c, int ia, int ic) {
  const PlArray *a = c->in[ia], *cell = c->in[ic];
  PL_TRY(pl_check_ndim(c, ia, 2, 2));
  PL_TRY(pl_check_ndim(c, ic, 2, 2));
  if (cell->dtype != PL_F32 && cell->dtype != PL_F64)
    PL_FAIL(PL_ERR_DTYPE, "%s: f32 or f64 is wanted, got %s", c->op->name, pl_desc_text(cell));
  for (int i = 0; i < c->nin; i++)
    if (c->in[i]->dtype != cell->dtype)
      PL_FAIL(PL_ERR_DTYPE, "%s: %s and %s differ in dtype", c->op->name, pl_desc_text(c->in[i]), pl_desc_text(cell));
  if (a->shape[0] != cell->shape[0] || cell->shape[1] > INT64_MAX / 4 || a->shape[1] != 4 * cell->shape[1])
    PL_FAIL(PL_ERR_SHAPE, "%s: gates %s do not fit the cell %s: [N,4H] and [N,H] are wanted", c->op->name, pl_desc_text(a),
            pl_desc_text(cell));
  return PL_OK;
}

static void like(PlInfer *c, int out, int i) { pl_desc_set(&c->out[out], (PlDtype)c->in[i]->dtype, c->in[i]->ndim, c->in[i]->shape); }

static PlStatus gates_infer(PlInfer *c) {
  PL_TRY(check_gates(c, 0, 1));
  like(c, 0, 1);
  like(c, 1, 1);
  return PL_OK;
}

static PlStatus gates_grad(PlMaker *g) {
  PlVal in[4] = {g->dy[0], g->dy[1], g->x[0], g->x[1]}, out[2] = {PL_NONE, PL_NONE};
  for (int k = 0; k < 2; k++)
    if (in[k] == PL_NONE) in[k] = pl_g_zeros_like(g, 1);
  pl_g_op(g, &pl_op_lstm_gates_bwd, 4, in, NULL, out);
  for (int k = 0; k < 2; k++)
    if (g->want[k]) g->dx[k] = out[k];
  return g->status;
}

static PlStatus gates_composed(PlMaker *g) {
  const int64_t H = g->in[1]->shape[1];
  PlVal k[4];
  for (int i = 0; i < 4; i++) k[i] = pl_g1(g, i == 2 ? &pl_op_tanh : &pl_op_sigmoid, pl_g_slice(g, g->x[0], 1, i * H, H, 1));
  g->dx[1] = g_add(g, g_mul(g, k[1], g->x[1]), g_mul(g, k[0], k[2]));
  g->dx[0] = g_mul(g, k[3], pl_g1(g, &pl_op_tanh, g->dx[1]));
  return g->status;
}

PL_OP(lstm_gates,
      .doc = "The pointwise half of an LSTM step: a[N,4H] holds the gates i, f, g, o before their activations, c[N,H] the cell. "
             "Gives the new h and c. f32 or f64.",
      .example = "local h, c = T.lstm_gates(T.zeros(1, 4), T.ones(1, 1))\n"
                 "print(h, c)  --> {{0.2311}}  -- f32[1,1] cpu\t{{0.5000}}  -- f32[1,1] cpu",
      .formula = "c2 = s(f) c + s(i) tanh(g); h = s(o) tanh(c2)", .nin = 2, .nout = 2, .args = {"a", "c"}, .cls = PL_OPAQUE,
      .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY, .infer = gates_infer, .grad = gates_grad,
      .composed = gates_composed, PL_KERNEL(lstm_gates));

static PlStatus gates_bwd_infer(PlInfer *c) {
  PL_TRY(check_gates(c, 2, 3));
  PL_TRY(pl_check_like(c, 0, 3));
  PL_TRY(pl_check_like(c, 1, 3));
  like(c, 0, 2);
  like(c, 1, 3);
  return PL_OK;
}

static PlStatus gates_bwd_grad(PlMaker *g) {
  PlVal in[6] = {g->x[0], g->x[1], g->x[2], g->x[3], g->dy[0], g->dy[1]};
  PlVal out[4] = {PL_NONE, PL_NONE, PL_NONE, PL_NONE};
  if (in[4] == PL_NONE) in[4] = pl_g_zeros_like(g, 2);
  if (in[5] == PL_NONE) in[5] = pl_g_zeros_like(g, 3);
  pl_g_op(g, &pl_op_lstm_gates_bwd2, 6, in, NULL, out);
  for (int k = 0; k < 4; k++)
    if (g->want[k]) g->dx[k] = out[k];
  return g->status;
}

PL_OP(lstm_gates_bwd, .doc = "The gradients of lstm_gates for a and c.", .gradient_of = &pl_op_lstm_gates, .nin = 4, .nout = 2,
      .args = {"dh", "dc", "a", "c"}, .cls = PL_OPAQUE, .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL | PL_F_POLY,
      .infer = gates_bwd_infer, .grad = gates_bwd_grad, .hessian = "ddxx", PL_KERNEL(lstm_gates_bwd));

static PlStatus gates_bwd2_infer(PlInfer *c) {
  PL_TRY(check_gates(c, 2, 3));
  PL_TRY(pl_check_like(c, 0, 3));
  PL_TRY(pl_check_like(c, 1, 3));
  PL_TRY(pl_check_like(c, 4, 2));
  PL_TRY(pl_check_like(c, 5, 3));
  for (int k = 0; k < 4; k++) like(c, k, k);
  return PL_OK;
}

PL_OP(lstm_gates_bwd2, .doc = "The gradients of lstm_gates_bwd for its inputs; va and vc are those of its results.",
      .gradient_of = &pl_op_lstm_gates_bwd, .nin = 6, .nout = 4, .args = {"dh", "dc", "a", "c", "va", "vc"}, .cls = PL_OPAQUE,
      .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = gates_bwd2_infer, .grad = pl_grad_by_composition,
      PL_KERNEL(lstm_gates_bwd2));
