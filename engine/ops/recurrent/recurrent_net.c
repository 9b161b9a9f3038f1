/* SPDX-License-Identifier: MIT
 * A recurrent net as one op that a device's library computes (kernels/recurrent_library.h), and its gradient as one; the
 * gradient of that is made of our own ops (recurrent_net_double_backward.c). What the library keeps for backward is a tensor of bytes
 * whose form only it knows. nn.RNN, nn.GRU and nn.LSTM ask core.recurrent_takes first; there is no such op on the CPU. */
#include "engine/ops/recurrent/recurrent_net.h"
#include "engine/device/device.h"
#include "engine/ops/names.h"

#define ATTRS                                                                                                    \
  A_ENUM("mode", "relu|tanh|lstm|gru", PLK_RNN_LSTM), A_INT_REQ("hidden"), A_INT("proj", 0), A_INT("layers", 1), \
      A_BOOL("bidirectional", 0), A_BOOL("bias", 1), A_BOOL("tf32", 0), A_BOOL("train", 1)

static PlStatus shape_is(const PlInfer *c, int i, int ndim, const int64_t *shape, PlDtype dtype) {
  const PlArray *a = i < c->nin ? c->in[i] : NULL;
  if (!a) return PL_OK;
  bool ok = a->ndim == ndim && a->dtype == dtype;
  for (int d = 0; ok && d < ndim; d++) ok = a->shape[d] == shape[d];
  if (ok) return PL_OK;
  const PlArray want = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim, .shape = shape};
  PL_FAIL(PL_ERR_SHAPE, "%s: %s is %s, should be %s", c->op->name, c->op->args[i], pl_desc_text(a), pl_desc_text(&want));
}

/* What both ops read first: x, state, w; lengths are input `at`. */
static PlStatus check_net(const PlInfer *c, int at, PlkRecurrent *n) {
  const PlArray *x = c->in[PL_R_X];
  PL_TRY(pl_check_ndim(c, PL_R_X, 3, 3));
  PL_TRY(pl_check_float(c, PL_R_X));
  if (!plk_recurrent_of(n, c->attrs, x)) PL_FAIL(PL_ERR_SHAPE, "%s: no net of such sizes, from %s", c->op->name, pl_desc_text(x));
  const int64_t state = plk_recurrent_states(n, x->shape[1]), w = plk_recurrent_weights(n);
  PL_TRY(shape_is(c, PL_R_STATE, 1, &state, (PlDtype)x->dtype));
  PL_TRY(shape_is(c, PL_R_W, 1, &w, (PlDtype)x->dtype));
  return shape_is(c, at, 1, &x->shape[1], PL_I64);
}

static const PlkRecurrentTable *table(void) {
  const PlDeviceTable *t = pl_device_open();
  return t ? t->extension("recurrent") : NULL;
}
bool pl_recurrent_takes(int device, const PlkRecurrent *n) {
  const PlkRecurrentTable *t = table();
  return t && t->takes(pl_gpu_index(device), n);
}

static PlStatus forward_infer(PlInfer *c) {
  PlkRecurrent n;
  PL_TRY(check_net(c, PL_R_LENGTHS, &n));
  const PlArray *x = c->in[PL_R_X];
  const PlkRecurrentTable *t = table();
  if (!t) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: no library for it on this device", c->op->name);
  int64_t bytes = 0;
  if (n.train) PL_TRY(t->reserve(pl_gpu_index(pl_on_gpu(x->device) ? x->device : PL_CUDA), &n, x->shape[0], x->shape[1], &bytes));
  const int64_t y[3] = {x->shape[0], x->shape[1], n.directions * plk_recurrent_out(&n)};
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 3, y);
  pl_desc_set(&c->out[1], (PlDtype)x->dtype, 1, c->in[PL_R_STATE]->shape);
  pl_desc_set(&c->out[2], PL_U8, 1, &bytes);
  return PL_OK;
}

static PlStatus forward_grad(PlMaker *g) {
  const PlVal lengths = g->nin > PL_R_LENGTHS && g->in[PL_R_LENGTHS] ? g->x[PL_R_LENGTHS] : PL_NONE;
  PlVal in[PL_RB_NIN] = {g->x[PL_R_X], g->x[PL_R_STATE], g->x[PL_R_W], g->y[0], g->y[2], g->dy[0], g->dy[1], lengths};
  PlVal out[3] = {PL_NONE, PL_NONE, PL_NONE};
  if (!pl_attr_i(g->attrs, PLK_RNN_TRAIN)) PL_FAIL(PL_ERR_STATE, "%s: it was computed without what backward reads", g->op->name);
  if (g->dy[0] == PL_NONE && g->dy[1] == PL_NONE) return g->status;
  const int nin = lengths != PL_NONE ? PL_RB_NIN : g->dy[1] != PL_NONE ? PL_RB_DSTATE + 1 : PL_RB_DY + 1;
  pl_g_op(g, &pl_op_recurrent_bwd, nin, in, g->attrs, out);
  for (int i = 0; i < 3; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

static double net_flops(const PlInfer *c) {
  const PlArray *x = c->in[PL_R_X];
  return 2.0 * (double)(x->shape[0] * x->shape[1]) * (double)c->in[PL_R_W]->numel;
}
static double bwd_flops(const PlInfer *c) { return 2 * net_flops(c); }

PL_OP(recurrent,
      .doc = "All layers of a recurrent net over x[S,N,I], by a device's library. state and w: everything in one row, as "
             "kernels/recurrent_library.h says; lengths[N] on the CPU. Gives y, the last states, and what the library keeps.",
      .nin = 4, .nopt = 1, .nout = 3, .nvisible = 2, .nattr = 8, .args = {"x", "state", "w", "lengths"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL | PL_F_POLY, .sizes = 1 << PL_R_LENGTHS, .infer = forward_infer, .grad = forward_grad,
      .flops = net_flops);

static PlStatus bwd_infer(PlInfer *c) {
  PlkRecurrent n;
  PL_TRY(check_net(c, PL_RB_LENGTHS, &n));
  const PlArray *x = c->in[PL_R_X], *state = c->in[PL_R_STATE], *w = c->in[PL_R_W];
  const PlDtype d = (PlDtype)x->dtype;
  const int64_t y[3] = {x->shape[0], x->shape[1], n.directions * plk_recurrent_out(&n)};
  PL_TRY(shape_is(c, PL_RB_Y, 3, y, d));
  PL_TRY(shape_is(c, PL_RB_DY, 3, y, d));
  PL_TRY(shape_is(c, PL_RB_DSTATE, 1, state->shape, d));
  PL_TRY(pl_check_dtype(c, PL_RB_RESERVE, PL_U8));
  pl_desc_set(&c->out[0], d, 3, x->shape);
  pl_desc_set(&c->out[1], d, 1, state->shape);
  pl_desc_set(&c->out[2], d, 1, w->shape);
  return PL_OK;
}

PL_OP(recurrent_bwd, .doc = "The gradients of recurrent for x, state and w.", .nin = PL_RB_NIN, .nopt = 3, .nout = 3, .nattr = 8,
      .args = {"x", "state", "w", "y", "reserve", "dy", "dstate", "lengths"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .sizes = 1 << PL_RB_LENGTHS, .infer = bwd_infer, .grad = pl_recurrent_bwd_grad,
      .flops = bwd_flops);
