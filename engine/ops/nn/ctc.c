/* SPDX-License-Identifier: MIT
 * Connectionist temporal classification: the loss and its gradient. */
#include "kernels/ctc.h"

#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"

#define CTC_ATTRS A_INT("blank", 1), A_BASE

static PlStatus check_ctc(PlInfer *c, int first) {
  const PlArray *x = c->in[first], *t = c->in[first + 1];
  PL_TRY(pl_check_ndim(c, first, 3, 3));
  if (x->dtype != PL_F32 && x->dtype != PL_F64)
    PL_FAIL(PL_ERR_DTYPE, "%s: log_probs must be f32 or f64, got %s", c->op->name, pl_desc_text(x));
  PL_TRY(pl_check_ndim(c, first + 1, 2, 2));
  for (int i = first + 1; i < first + 4; i++) PL_TRY(pl_check_dtype(c, i, PL_I64));
  if (t->shape[0] != x->shape[1])
    PL_FAIL(PL_ERR_SHAPE, "%s: log_probs %s and targets %s: [T,N,C] and [N,S] are wanted", c->op->name, pl_desc_text(x), pl_desc_text(t));
  for (int i = first + 2; i < first + 4; i++)
    if (c->in[i]->ndim != 1 || c->in[i]->shape[0] != x->shape[1])
      PL_FAIL(PL_ERR_SHAPE, "%s: one length a sequence is wanted, i64[%lld], got %s", c->op->name, (long long)x->shape[1],
              pl_desc_text(c->in[i]));
  int64_t blank;
  if (__builtin_sub_overflow(pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), &blank) || blank < 0 || blank >= x->shape[2])
    PL_FAIL(PL_ERR_INDEX, "%s: blank %lld is not one of %lld classes", c->op->name, (long long)pl_attr_i(c->attrs, 0),
            (long long)x->shape[2]);
  return PL_OK;
}

static PlStatus ctc_infer(PlInfer *c) {
  PL_TRY(check_ctc(c, 0));
  const PlArray *x = c->in[0], *t = c->in[1];
  int64_t S2;
  if (__builtin_mul_overflow(t->shape[1], 2, &S2)) PL_FAIL(PL_ERR_SHAPE, "%s: too long", c->op->name);
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 1, &x->shape[1]);
  pl_desc_set(&c->out[1], PL_F64, 3, (const int64_t[]){x->shape[1], x->shape[0], S2 + 1});
  return PL_OK;
}

static PlStatus ctc_grad(PlMaker *g) {
  PlVal in[7] = {g->dy[0], g->x[0], g->x[1], g->x[2], g->x[3], g->y[0], g->y[1]};
  if (!g->want[0] || g->dy[0] == PL_NONE) return g->status;
  g->dx[0] = pl_g_op(g, &pl_op_ctc_loss_bwd, 7, in, g->attrs, NULL);
  return g->status;
}

/* <gradient of each loss, tangent>. What backward computes is known once only, so there is no other way to it. */
static PlStatus ctc_tangent(PlMaker *g) {
  PlAttrs zero;
  if (g->dy[0] == PL_NONE) return g->status;
  pl_attrs_init(&pl_op_zeros_of, &zero);
  pl_attrs_int(&zero, 0, g->outd[0].dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->y[0]), one = g_addn(g, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &zero, NULL), 1);
  PlVal in[7] = {one, g->x[0], g->x[1], g->x[2], g->x[3], g->y[0], g->y[1]};
  PlVal each = g_mul(g, pl_g_op(g, &pl_op_ctc_loss_bwd, 7, in, g->attrs, NULL), g->dy[0]);
  g->dx[0] = pl_g2(g, &pl_op_reshape_to, g_reduce(g, &pl_op_sum, each, 3, 5), shape); /* frames and classes */
  return g->status;
}

PL_OP(ctc_nll, .autocast = PL_CAST_F32,
      .doc = "Minus the log-probability that log_probs[T,N,C] spell targets[N,S] (i64, class numbers; only the first "
             "target_lengths[N] of each row count) within the first input_lengths[N] frames, blanks and repetitions removed "
             "(Graves et al. 2006). The gradient takes log_probs for a log_softmax, as PyTorch's does. Further output: the "
             "forward variables.",
      .example = "local log_probs = T.zeros(2, 1, 2):log_softmax(-1) -- two steps, one sample, blank and one letter\n"
                 "local i64 = { dtype = \"i64\" }\n"
                 "print((T.ctc_nll(log_probs, T.tensor({ { 2 } }, i64), T.tensor({ 2 }, i64), T.tensor({ 1 }, i64), { blank = 1 })))\n"
                 "--> {0.2877}  -- f32[1] cpu",
      .nin = 4, .nout = 2, .nvisible = 1, .nattr = 2, .args = {"log_probs", "targets", "input_lengths", "target_lengths"},
      .attrs = {CTC_ATTRS}, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY | PL_F_COSTLY, .infer = ctc_infer,
      .grad = ctc_grad, .tangent = ctc_tangent, PL_KERNEL(ctc_loss));

static PlStatus ctc_bwd_infer(PlInfer *c) {
  PL_TRY(check_ctc(c, 1));
  const PlArray *x = c->in[1];
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 3, x->shape);
  for (int i = 0; i < 6; i += 5)
    if (c->in[i]->ndim != 1 || c->in[i]->shape[0] != x->shape[1] || c->in[i]->dtype != x->dtype)
      PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit %s", c->op->name, pl_desc_text(c->in[i]), pl_desc_text(x));
  const PlArray *al = c->in[6];
  if (al->dtype != PL_F64 || al->ndim != 3 || al->shape[0] != x->shape[1] || al->shape[1] != x->shape[0] ||
      al->shape[2] != 2 * c->in[2]->shape[1] + 1)
    PL_FAIL(PL_ERR_SHAPE, "%s: forward variables %s do not fit %s", c->op->name, pl_desc_text(al), pl_desc_text(x));
  return PL_OK;
}

PL_OP(ctc_loss_bwd, .doc = "The gradient of ctc_nll for log_probs.", .gradient_of = &pl_op_ctc_nll, .nin = 7, .nout = 1, .nattr = 2,
      .args = {"dy", "log_probs", "targets", "input_lengths", "target_lengths", "nll", "alpha"}, .attrs = {CTC_ATTRS}, .cls = PL_OPAQUE,
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL | PL_F_POLY, .infer = ctc_bwd_infer, PL_KERNEL(ctc_loss_bwd));
