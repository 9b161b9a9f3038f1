/* SPDX-License-Identifier: MIT
 * Batching rules of normalizations, losses and indexing by lists. */
#include <string.h>

#include "engine/device/device.h"
#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

/* ---- normalizations -------------------------------------------------------------------------------------- */

/* layer_norm, rms_norm: over the last dims, so the batch may lead; batched parameters are applied apart. */
void pl_batch_row_norm(PlBatchCall *c) {
  bool apart = false;
  for (int i = 1; i < c->nin; i++) apart |= c->full[i] != NULL;
  PlTensor *in[3] = {apart ? pl_b_each(c, 0) : c->full[0], NULL, NULL};
  for (int i = 1; i < c->nin && !apart; i++) in[i] = c->in[i];
  pl_b_ops(c, c->op, apart ? 1 : c->nin, in, c->attrs, c->out);
  int rank = c->in[0]->a.ndim;
  if (apart && c->in[1]) c->out[0] = pl_b_two(c, &pl_op_mul, c->out[0], pl_b_ranked(c, 1, rank));
  if (apart && c->nin > 2 && c->in[2]) c->out[0] = pl_b_two(c, &pl_op_add, c->out[0], pl_b_ranked(c, 2, rank));
}

/* Their gradients: (dy, x, [mean,] rstd, weight) → dx, dw, [db]. dx by the op with w dy for dy; dw = Σ dy h and
 * db = Σ dy, h = (x - mean) rstd, over the dims in front of the normalized ones. */
void pl_batch_row_norm_bwd(PlBatchCall *c) {
  int stats = c->op->nin - 3, w = 2 + stats, rank = c->in[1]->a.ndim;
  int64_t wanted = pl_attr_i(c->attrs, 1);
  int lead = rank - pl_attr_n(c->attrs, 0);
  PlDtype d = (PlDtype)c->desc[0].dtype;
  PlTensor *dy = pl_b_each(c, 0);
  if (wanted & 1) {
    PlAttrs a;
    PlTensor *in[5], *outs[PL_MAX_OUT];
    bool weight = w < c->nin && c->in[w];
    memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
    pl_attrs_int(&a, 1, 1);
    for (int i = 1; i < w; i++) in[i] = pl_b_each(c, i);
    in[0] = weight && c->full[w] ? pl_b_two(c, &pl_op_mul, dy, pl_b_ranked(c, w, rank)) : dy;
    in[w] = weight && !c->full[w] ? c->in[w] : NULL;
    pl_b_ops(c, c->op, w + 1, in, &a, outs);
    c->out[0] = outs[0];
  }
  if (wanted & 2) {
    PlTensor *h = c->full[1] ? c->full[1] : c->in[1];
    if (stats == 2) h = pl_b_two(c, &pl_op_sub, h, c->full[2] ? c->full[2] : c->in[2]);
    h = pl_b_two(c, &pl_op_mul, h, c->full[1 + stats] ? c->full[1 + stats] : c->in[1 + stats]);
    c->out[1] = pl_b_sum(c, pl_b_two(c, &pl_op_mul, dy, h), 1, 1 + lead);
  }
  if (wanted & 4) c->out[2] = pl_b_sum(c, dy, 1, 1 + lead);
  for (int o = 1; o < c->op->nout && c->status == PL_OK; o++) /* statistics may be wider than x */
    if ((wanted >> o & 1) && c->desc[o].dtype != d) {
      PlAttrs a;
      pl_attrs_init(&pl_op_cast, &a);
      pl_attrs_int(&a, 0, c->desc[o].dtype);
      c->out[o] = pl_b_op(c, &pl_op_cast, 1, &c->out[o], &a);
    }
}

/* batch_norm and its gradient: statistics are per channel, so the batch joins the channels. */
void pl_batch_channels(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN], *outs[PL_MAX_OUT];
  for (int i = 0; i < c->nin; i++) {
    in[i] = pl_b_each(c, i);
    if (!in[i] || c->status != PL_OK) continue;
    if (c->in[i]->a.ndim == 1) in[i] = pl_b_merge(c, in[i], 0);
    else in[i] = pl_b_merge(c, pl_b_move(c, in[i], 0, 1), 1);
  }
  c->declined = c->in[0]->a.ndim < 2;
  if (c->declined) return;
  pl_b_ops(c, c->op, c->nin, in, c->attrs, outs);
  for (int o = 0; o < c->op->nout && c->status == PL_OK; o++) {
    c->out[o] = outs[o];
    const PlDesc *d = &c->desc[o];
    if (!outs[o] || d->ndim < 2) continue;
    int64_t sizes[PL_MAX_DIM];
    sizes[0] = d->shape[0];
    sizes[1] = c->n;
    memcpy(sizes + 2, d->shape + 1, (size_t)(d->ndim - 1) * sizeof *sizes);
    c->out[o] = pl_b_move(c, pl_b_reshape(c, outs[o], d->ndim + 1, sizes), 1, 0);
  }
}

/* ---- losses ------------------------------------------------------------------------------------------------- */

enum { NONE, MEAN, SUM };

/* Elementwise losses: without reduction, then mean or sum over all but the batch. Attribute 0 is the reduction. */
void pl_batch_loss(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN];
  PlAttrs a;
  int rank = 0;
  int64_t how = pl_attr_i(c->attrs, 0);
  if (how > SUM) {
    c->declined = true;
    return;
  }
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.ndim > rank) rank = c->in[i]->a.ndim;
  for (int i = 0; i < c->nin; i++) in[i] = pl_b_ranked(c, i, rank);
  if (pl_shape_equal(&c->in[0]->a, &c->in[1]->a)) in[1] = pl_b_each(c, 1); /* some do not broadcast */
  in[0] = rank == c->in[0]->a.ndim ? pl_b_each(c, 0) : in[0];
  if (c->op->nout > 1) in[2] = pl_b_each(c, 2); /* nor does a tangent, which the batch may share */
  memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  pl_attrs_int(&a, 0, NONE);
  pl_b_ops(c, c->op, c->nin, in, &a, c->out); /* a second result is the tangent of the first one */
  for (int o = 0; o < c->op->nout && how != NONE && c->status == PL_OK; o++) {
    const int64_t flat[2] = {c->n, c->n ? c->out[o]->a.numel / c->n : 0}, dim = 1;
    PlTensor *each = pl_b_reshape(c, c->out[o], 2, flat);
    const PlOp *op = how == MEAN ? &pl_op_mean : &pl_op_sum;
    pl_attrs_init(op, &a);
    c->status = pl_attrs_list(&a, 0, 1, &dim);
    c->out[o] = pl_b_op(c, op, 1, &each, &a);
  }
}

/* The gradient of a loss is linear in dy: with only dy batched it is dy times the gradient for dy = 1. Attribute 0 is
 * the reduction, input 0 is dy, the result has the shape of x with the classes last or (N, C, …) in dim 2. */
void pl_batch_loss_bwd(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN];
  for (int i = 1; i < c->nin; i++) c->declined |= c->full[i] != NULL;
  if (c->declined) return;
  PlTensor *one = NULL;
  const PlArray *dy = &c->in[0]->a;
  const PlDesc *d = &c->desc[0];
  c->status = pl_tensor_full_on(&one, dy->device, (PlDtype)dy->dtype, dy->ndim, dy->shape, 1);
  for (int i = 1; i < c->nin; i++) in[i] = c->in[i];
  in[0] = one;
  PlTensor *unit = c->status == PL_OK ? pl_b_op(c, c->op, c->nin, in, c->attrs) : NULL;
  pl_tensor_release(one);
  if (c->status != PL_OK) return;
  int64_t sizes[PL_MAX_DIM + 1];
  int n = 0, at = 0, classes = d->ndim > 1 ? 1 : 0;
  sizes[n++] = c->n;
  for (int k = 0; k < d->ndim; k++) sizes[n++] = dy->ndim == 0 || k == classes ? 1 : dy->shape[at++];
  if (at != dy->ndim) {
    c->declined = true;
    return;
  }
  c->out[0] = pl_b_two(c, &pl_op_mul, pl_b_reshape(c, c->full[0], n, sizes), unit);
}

/* A loss with a value a sample: its sum over them, over their count where that is given. */
static PlTensor *over_samples(PlBatchCall *c, PlTensor *each, PlTensor *count) {
  int64_t flat[2] = {c->n, c->n ? each->a.numel / c->n : 0};
  each = pl_b_sum(c, pl_b_reshape(c, each, 2, flat), 1, 2);
  return count ? pl_b_two(c, &pl_op_div, each, count) : each;
}

/* cross_entropy, nll_loss of (x, target, weight): every element's samples side by side, without reduction; the mean divides by
 * the weights of the targets that count, which is what nll_loss of -1 adds up to. And cross_entropy_dual, whose third input is like x
 * and third output like the loss. */
void pl_batch_class_loss(PlBatchCall *c) {
  PlTensor *in[4] = {NULL, NULL, NULL, NULL}, *count = NULL;
  const int dual = c->op->nout == 3, w = 2 + dual;
  const bool samples = c->in[0]->a.ndim > 1, weight = c->nin > w && c->in[w];
  int64_t how = pl_attr_i(c->attrs, 0);
  PlAttrs a;
  if (weight && c->full[w]) c->declined = true;
  if (c->declined) return;
  for (int i = 0; i < w; i++) {
    in[i] = pl_b_each(c, i);
    if (samples) in[i] = pl_b_merge(c, in[i], 0);
  }
  in[w] = weight ? c->in[w] : NULL;
  memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  pl_attrs_int(&a, 0, NONE);
  pl_b_ops(c, c->op, weight ? w + 1 : w, in, &a, c->out); /* a further output has a value for each sample */
  if (how == NONE || c->status != PL_OK) return;
  if (how == MEAN) {
    PlTensor *minus = NULL, *ones[3] = {NULL, in[1], in[w]};
    const PlArray *like = &in[0]->a;
    const PlDtype of = (PlDtype)c->out[0]->a.dtype; /* bf16 cannot count beyond 256 */
    c->status = pl_tensor_full_on(&minus, like->device, of, like->ndim, like->shape, -1);
    PlAttrs b;
    pl_attrs_init(&pl_op_nll_loss, &b);
    pl_attrs_int(&b, 0, NONE);
    pl_attrs_int(&b, 1, pl_attr_i(c->attrs, 1)); /* ignore_index, index_base: at 1 and 2 in all tables */
    pl_attrs_int(&b, 2, pl_attr_i(c->attrs, 2));
    ones[0] = minus;
    if (c->status == PL_OK) count = pl_b_op(c, &pl_op_nll_loss, weight ? 3 : 2, ones, &b);
    pl_tensor_release(minus);
    if (c->status == PL_OK) count = over_samples(c, count, NULL);
  }
  for (int o = 0; o < c->op->nout && c->status == PL_OK; o += 2) c->out[o] = over_samples(c, c->out[o], count);
}

/* ---- lists of indices ----------------------------------------------------------------------------------------- */

/* index, index_bwd: x or dy alone is batched. The indexed dims move up by one; the indices' own dims then stay where
 * they are only if the indexed ones are adjacent. */
static void index_list(PlBatchCall *c, bool bwd) {
  int at = bwd ? 1 : 0, next = 0;
  int64_t dims[PL_MAX_DIM];
  PlAttrs a;
  bool given = pl_attr_has(c->attrs, at);
  if (!c->full[0] || c->nin > PL_MAX_DIM) c->declined = true;
  for (int i = 1; i < c->nin && !c->declined; i++) {
    const PlArray *t = &c->in[i]->a;
    int64_t d = given ? pl_attr_list(c->attrs, at)[i - 1] : next;
    if (c->full[i] || (i > 1 && d != next)) c->declined = true;
    dims[i - 1] = d + 1;
    next = (int)d + (t->dtype == PL_BOOL ? t->ndim : 1);
  }
  if (c->declined) return;
  memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  c->status = pl_attrs_list(&a, at, c->nin - 1, dims);
  if (bwd && c->status == PL_OK) {
    int64_t sizes[PL_MAX_DIM + 1];
    int n = pl_attr_n(c->attrs, 0);
    sizes[0] = c->n;
    memcpy(sizes + 1, pl_attr_list(c->attrs, 0), (size_t)n * sizeof *sizes);
    c->status = pl_attrs_list(&a, 0, n + 1, sizes);
  }
  PlTensor *in[PL_MAX_DIM];
  in[0] = c->full[0];
  for (int i = 1; i < c->nin; i++) in[i] = c->in[i];
  if (c->status == PL_OK) pl_b_ops(c, c->op, c->nin, in, &a, c->out);
}

void pl_batch_index(PlBatchCall *c) { index_list(c, false); }
void pl_batch_index_bwd(PlBatchCall *c) { index_list(c, true); }

/* embedding_bwd: dy[…, D] of all elements side by side in the last dim. */
void pl_batch_embedding_bwd(PlBatchCall *c) {
  PlTensor *dy = c->full[0];
  if (!dy || c->full[1]) {
    c->declined = true;
    return;
  }
  int last = dy->a.ndim - 1;
  int64_t D = dy->a.shape[last];
  PlTensor *in[2] = {pl_b_merge(c, pl_b_move(c, dy, 0, last - 1), last - 1), c->in[1]};
  PlTensor *dw = pl_b_op(c, c->op, 2, in, c->attrs);
  if (c->status != PL_OK) return;
  const int64_t sizes[3] = {dw->a.shape[0], c->n, D};
  c->out[0] = pl_b_move(c, pl_b_reshape(c, dw, 3, sizes), 1, 0);
}
