/* SPDX-License-Identifier: MIT
 * Connectionist temporal classification: the loss and its gradient. */
#include "kernels/loss.h"

#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "engine/ops/shape/view.h"

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

/* ---- by other ops, for further derivatives ---- */

#define NOT_THERE (-1e30) /* a log-probability of what cannot be: finite, so that derivatives are */

static PlVal cat2(PlMaker *g, PlVal a, PlVal b, int64_t dim) {
  PlVal both[2] = {a, b};
  return g_with_int(g, &pl_op_cat, 2, both, dim);
}
static PlVal filled(PlMaker *g, PlVal like, double v) { return g_addn(g, g_muln(g, like, 0), v); }
/* a[N,L], k states later */
static PlVal later(PlMaker *g, PlVal a, int64_t k, int64_t L) {
  return cat2(g, filled(g, pl_g_slice(g, a, 1, 0, k, 1), NOT_THERE), pl_g_slice(g, a, 1, 0, L - k, 1), 1);
}
static PlVal pick(PlMaker *g, PlVal x, PlVal index, int64_t dim) {
  PlVal in[2] = {x, index};
  PlAttrs a;
  pl_attrs_init(&pl_op_gather, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 1));
  return pl_g_op(g, &pl_op_gather, 2, in, &a, NULL);
}
static PlVal shaped(PlMaker *g, const PlOp *op, PlVal v, int n, const int64_t *shape) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, n, shape));
  return pl_g_op(g, op, 1, &v, &a, NULL);
}

/* labels[N,L]: blanks and targets in turn; targets behind a sequence's length count as blanks. leaps: where a label may come
 * right after the one before the last. Both are constants. */
static PlVal labels_of(PlMaker *g, PlVal *leaps) {
  const int64_t N = g->in[1]->shape[0], S = g->in[1]->shape[1], L = 2 * S + 1;
  const double blank = (double)pl_attr_i(g->attrs, 0);
  PlVal column = filled(g, g_with_int(g, &pl_op_unsqueeze, 1, &g->x[3], 1), blank);
  *leaps = PL_NONE;
  if (S == 0) return column;
  PlVal ones = filled(g, g->x[1], 1), length = g_with_int(g, &pl_op_unsqueeze, 1, &g->x[3], 1), blanks = filled(g, ones, blank);
  PlVal there = pl_g2(g, &pl_op_le, g_with_int(g, &pl_op_cumsum, 1, &ones, 1), length), t = g_where(g, there, g->x[1], blanks);
  PlVal pairs = cat2(g, g_with_int(g, &pl_op_unsqueeze, 1, &blanks, 2), g_with_int(g, &pl_op_unsqueeze, 1, &t, 2), 2);
  PlVal labels = cat2(g, shaped(g, &pl_op_reshape, pairs, 2, (int64_t[]){N, 2 * S}), column, 1);
  PlVal from = pl_g_slice(g, labels, 1, 2, L - 2, 1), two = filled(g, pl_g_slice(g, labels, 1, 0, 2, 1), 0);
  PlVal may = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_ne, from, pl_g_slice(g, labels, 1, 0, L - 2, 1)),
                    pl_g2(g, &pl_op_ne, from, pl_g_num(g, blank)));
  *leaps = cat2(g, pl_g2(g, &pl_op_ne, two, pl_g_num(g, 0)), may, 1);
  return labels;
}

/* The loss, plus the sum of all probabilities within the length: so its gradient is that of the kernel, which takes log_probs for a
 * log_softmax. */
static PlStatus ctc_composed(PlMaker *g) {
  const int64_t T = g->in[0]->shape[0], N = g->in[0]->shape[1], L = 2 * g->in[1]->shape[1] + 1;
  const double base = (double)pl_attr_i(g->attrs, 1);
  PlVal leaps, labels = labels_of(g, &leaps), ones = filled(g, labels, 1), at = g_with_int(g, &pl_op_cumsum, 1, &ones, 1);
  PlVal lengths = g_with_int(g, &pl_op_unsqueeze, 1, &g->x[2], 1), a = PL_NONE, sum = PL_NONE;
  for (int64_t t = 0; t < T; t++) {
    PlVal p = shaped(g, &pl_op_reshape, pl_g_slice(g, g->x[0], 0, t, 1, 1), 2, (int64_t[]){N, g->in[0]->shape[2]});
    PlVal alive = pl_g2(g, &pl_op_gt, lengths, pl_g_num(g, (double)t)), e = pick(g, p, labels, 1), now;
    if (t == 0) now = g_where(g, pl_g2(g, &pl_op_le, at, pl_g_num(g, 2)), e, filled(g, e, NOT_THERE));
    else {
      PlVal v = a;
      if (L > 1) v = pl_g2(g, &pl_op_logaddexp, v, later(g, a, 1, L));
      if (L > 1) v = pl_g2(g, &pl_op_logaddexp, v, g_where(g, leaps, later(g, a, 2, L), filled(g, a, NOT_THERE)));
      now = g_where(g, alive, g_add(g, v, e), a);
    }
    a = now;
    PlVal q = g_where(g, alive, pl_g1(g, &pl_op_exp, p), filled(g, p, 0));
    sum = t ? g_add(g, sum, q) : q;
  }
  if (T == 0) {
    g->dx[0] = g_reduce(g, &pl_op_sum, g->x[0], 3, 5);
    g->dx[0] = shaped(g, &pl_op_reshape, g->dx[0], 1, &N);
    return g->status;
  }
  PlVal n = g_with_int(g, &pl_op_unsqueeze, 1, &g->x[3], 1), last = g_addn(g, g_muln(g, n, 2), base);
  PlVal end = pick(g, a, last, 1), some = pl_g2(g, &pl_op_gt, n, pl_g_num(g, 0));
  PlVal before = pick(g, a, g_where(g, some, g_addn(g, last, -1), last), 1);
  end = pl_g2(g, &pl_op_logaddexp, end, g_where(g, some, before, filled(g, before, NOT_THERE)));
  PlVal possible =
      pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_gt, end, pl_g_num(g, NOT_THERE / 2)), pl_g2(g, &pl_op_gt, lengths, pl_g_num(g, 0)));
  PlVal loss = g_sub(g, g_reduce(g, &pl_op_sum, sum, 2, 2), end);
  g->dx[0] = shaped(g, &pl_op_reshape, g_where(g, possible, loss, filled(g, loss, 0)), 1, &N);
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
      .nin = 4, .nout = 2, .nvisible = 1, .spare = 2, .nattr = 2, .args = {"log_probs", "targets", "input_lengths", "target_lengths"},
      .attrs = {CTC_ATTRS}, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY | PL_F_COSTLY, .infer = ctc_infer,
      .grad = ctc_grad, .tangent = ctc_tangent, .composed = ctc_composed, PL_KERNEL(ctc_loss));

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
      .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .infer = ctc_bwd_infer, .grad = pl_grad_by_composition, PL_KERNEL(ctc_loss_bwd));
