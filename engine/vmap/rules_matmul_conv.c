/* SPDX-License-Identifier: MIT
 * Batching rules of products: matrices get the batch as a further leading dimension; convolutions get it as samples
 * where the weight is shared, as groups of channels where it is not. */
#include <string.h>

#include "engine/ops/names.h"
#include "engine/tensor/presence.h"
#include "engine/vmap/vmap.h"

/* ---- matrices ------------------------------------------------------------------------------------------- */

/* Operand i of a product of ranks ≥ 2: a vector is one row (i = 0) or one column. */
static PlTensor *matrix(PlBatchCall *c, int i, int rank, bool column) {
  PlTensor *t = c->full[i] ? c->full[i] : c->in[i];
  if (c->status != PL_OK) return NULL;
  if (c->in[i]->a.ndim > 1) return pl_b_ranked(c, i, rank);
  int64_t sizes[PL_MAX_DIM], len = c->in[i]->a.shape[0];
  int n = 0;
  if (c->full[i]) {
    sizes[n++] = c->n;
    for (int d = 2; d < rank; d++) sizes[n++] = 1;
  }
  sizes[n++] = column ? len : 1;
  sizes[n++] = column ? 1 : len;
  return pl_b_reshape(c, t, n, sizes);
}

/* matmul, mm, bmm, mv, dot, matmul_t: the product of inputs a and b, broadcast over what is in front. */
static PlTensor *product(PlBatchCall *c, int a, int b, const PlOp *op, const PlAttrs *attrs) {
  int ra = c->in[a]->a.ndim, rb = c->in[b]->a.ndim, rank = ra > rb ? ra : rb;
  if (rank < 2) rank = 2;
  PlTensor *in[2] = {matrix(c, a, rank, false), matrix(c, b, rank, true)};
  return pl_b_op(c, op, 2, in, attrs);
}
void pl_batch_matmul(PlBatchCall *c) { c->out[0] = product(c, 0, 1, &pl_op_matmul, NULL); }
void pl_batch_matmul_t(PlBatchCall *c) { c->out[0] = product(c, 0, 1, &pl_op_matmul_t, c->attrs); }

/* Σ over leading dims of xᵀ y: those dims become one. */
static PlTensor *rows(PlBatchCall *c, int i) {
  const PlArray *a = &c->in[i]->a;
  int64_t sizes[3] = {c->n, 1, a->shape[a->ndim - 1]};
  for (int d = 0; d + 1 < a->ndim; d++) sizes[1] *= a->shape[d];
  return c->full[i] ? pl_b_reshape(c, c->full[i], 3, sizes) : pl_b_reshape(c, c->in[i], 2, sizes + 1);
}
void pl_batch_flat_t(PlBatchCall *c) {
  PlTensor *in[2] = {rows(c, 0), rows(c, 1)};
  PlAttrs a;
  pl_attrs_init(&pl_op_matmul_t, &a);
  pl_attrs_int(&a, 0, 1);
  pl_attrs_int(&a, 1, 0);
  c->out[0] = pl_b_op(c, &pl_op_matmul_t, 2, in, &a);
}

/* x[…, K] w[N, K]ᵀ + b; w of one row: a product with a vector. */
void pl_batch_linear(PlBatchCall *c) {
  bool bias = c->nin > 2 && c->in[2];
  if (!c->full[1] && !(bias && c->full[2])) { /* the usual case: the op itself */
    PlTensor *in[3] = {c->full[0], c->in[1], bias ? c->in[2] : NULL};
    c->out[0] = pl_b_op(c, c->op, bias ? 3 : 2, in, c->attrs);
    return;
  }
  int rank = c->in[0]->a.ndim > 2 ? c->in[0]->a.ndim : 2, out = c->desc[0].ndim;
  PlAttrs a;
  pl_attrs_init(&pl_op_matmul_t, &a);
  pl_attrs_int(&a, 0, 0);
  pl_attrs_int(&a, 1, 1);
  PlTensor *in[2] = {matrix(c, 0, rank, false), matrix(c, 1, rank, false)}; /* w[K] is one row, w[1, K] */
  PlTensor *y = pl_b_op(c, &pl_op_matmul_t, 2, in, &a);
  if (bias && c->status == PL_OK) {
    int64_t sizes[PL_MAX_DIM + 1];
    bool some = c->full[0] || c->full[1];
    sizes[0] = c->n;
    memcpy(sizes + 1, c->desc[0].shape, (size_t)out * sizeof *sizes);
    y = some ? pl_b_reshape(c, y, out + 1, sizes) : pl_b_reshape(c, y, out, sizes + 1);
    y = pl_b_two(c, &pl_op_add, y, pl_b_ranked(c, 2, out));
  }
  c->out[0] = y;
}

/* beta input + alpha p. */
static void added(PlBatchCall *c, PlTensor *p) {
  if ((c->full[1] || c->full[2]) && c->status == PL_OK) {
    int64_t sizes[PL_MAX_DIM + 1];
    sizes[0] = c->n;
    memcpy(sizes + 1, c->desc[0].shape, c->desc[0].ndim * sizeof *sizes);
    p = pl_b_reshape(c, p, c->desc[0].ndim + 1, sizes);
  } else p = pl_b_reshape(c, p, c->desc[0].ndim, c->desc[0].shape);
  PlTensor *factor[2] = {NULL, NULL};
  for (int k = 0; k < 2; k++) {
    if (!pl_attr_has(c->attrs, k)) continue;
    factor[k] = pl_b_number(c, (c->attrs->isint >> k) & 1 ? (double)pl_attr_i(c->attrs, k) : pl_attr_f(c->attrs, k));
    if (!pl_is_float((PlDtype)c->desc[0].dtype)) c->declined = true; /* whole factors only */
  }
  if (c->declined) return;
  if (factor[1]) p = pl_b_two(c, &pl_op_mul, p, factor[1]);
  PlTensor *b = pl_b_ranked(c, 0, c->desc[0].ndim);
  if (factor[0] && c->status == PL_OK) c->status = pl_present(factor[0]);
  if (factor[0] && c->status == PL_OK && pl_read_f(&factor[0]->a, 0) == 0) { /* beta 0: input is not even read */
    c->out[0] = p;
    c->declined = !(c->full[1] || c->full[2]);
    return;
  }
  if (factor[0]) b = pl_b_two(c, &pl_op_mul, b, factor[0]);
  c->out[0] = pl_b_two(c, &pl_op_add, p, b);
}

void pl_batch_addmm(PlBatchCall *c) { added(c, product(c, 1, 2, &pl_op_matmul, NULL)); }

/* The product is that of a column and a row. */
void pl_batch_addr(PlBatchCall *c) {
  if (c->status != PL_OK) return;
  int64_t x[3] = {c->n, c->in[1]->a.shape[0], 1}, y[3] = {c->n, 1, c->in[2]->a.shape[0]};
  PlTensor *col = c->full[1] ? pl_b_reshape(c, c->full[1], 3, x) : pl_b_reshape(c, c->in[1], 2, x + 1);
  PlTensor *row = c->full[2] ? pl_b_reshape(c, c->full[2], 3, y) : pl_b_reshape(c, c->in[2], 2, y + 1);
  added(c, pl_b_two(c, &pl_op_mul, col, row));
}

void pl_batch_outer(PlBatchCall *c) {
  int64_t x[3] = {c->n, c->in[0]->a.shape[0], 1}, y[3] = {c->n, 1, c->in[1]->a.shape[0]};
  PlTensor *col = c->full[0] ? pl_b_reshape(c, c->full[0], 3, x) : pl_b_reshape(c, c->in[0], 2, x + 1);
  PlTensor *row = c->full[1] ? pl_b_reshape(c, c->full[1], 3, y) : pl_b_reshape(c, c->in[1], 2, y + 1);
  c->out[0] = pl_b_two(c, &pl_op_mul, col, row);
}

/* ---- convolutions --------------------------------------------------------------------------------------- */

/* Input i as samples: [N, C, …]; without N it gets one. The batch, if any, stays in front. */
static PlTensor *with_samples(PlBatchCall *c, int i, int nd) {
  PlTensor *t = c->full[i] ? c->full[i] : c->in[i];
  int lead = c->full[i] ? 1 : 0;
  int64_t sizes[PL_MAX_DIM];
  if (c->status != PL_OK || c->in[i]->a.ndim == nd + 2) return t;
  memcpy(sizes, t->a.shape, (size_t)lead * sizeof *sizes);
  sizes[lead] = 1;
  memcpy(sizes + lead + 1, t->a.shape + lead, (size_t)(t->a.ndim - lead) * sizeof *sizes);
  return pl_b_reshape(c, t, t->a.ndim + 1, sizes);
}

/* [n, N, C, …] → [n N, C, …] */
static PlTensor *as_samples(PlBatchCall *c, PlTensor *t) { return pl_b_merge(c, t, 0); }
/* [n, N, C, …] → [N, n C, …]; one without the batch is repeated. */
static PlTensor *as_channels(PlBatchCall *c, PlTensor *t, bool batched) {
  if (c->status != PL_OK) return NULL;
  if (!batched) {
    int64_t sizes[PL_MAX_DIM];
    PlAttrs a;
    sizes[0] = c->n;
    memcpy(sizes + 1, t->a.shape, t->a.ndim * sizeof *sizes);
    pl_attrs_init(&pl_op_expand, &a);
    c->status = pl_attrs_list(&a, 0, t->a.ndim + 1, sizes);
    t = pl_b_op(c, &pl_op_expand, 1, &t, &a);
  }
  return pl_b_merge(c, pl_b_move(c, t, 0, 1), 1);
}
/* [n, O, …] → [n O, …] of a weight */
static PlTensor *as_weight(PlBatchCall *c, int i) { return pl_b_merge(c, pl_b_each(c, i), 0); }

/* [N, n O, …] → [n, N, O, …] */
static PlTensor *from_channels(PlBatchCall *c, PlTensor *t) {
  int64_t sizes[PL_MAX_DIM];
  if (c->status != PL_OK) return NULL;
  sizes[0] = t->a.shape[0];
  sizes[1] = c->n;
  sizes[2] = c->n ? t->a.shape[1] / c->n : 0;
  memcpy(sizes + 3, t->a.shape + 2, (size_t)(t->a.ndim - 2) * sizeof *sizes);
  return pl_b_move(c, pl_b_reshape(c, t, t->a.ndim + 1, sizes), 1, 0);
}

static void scale_groups(const PlBatchCall *c, PlAttrs *a, int at) {
  memcpy(a, c->attrs, pl_attrs_size(c->attrs));
  pl_attrs_int(a, at, pl_attr_i(c->attrs, at) * c->n);
}

/* conv and conv_transpose, forward. The bias is added apart where it or the weight is batched. */
void pl_batch_conv(PlBatchCall *c) {
  int nd = c->in[1]->a.ndim - 2;
  bool bias = c->nin > 2 && c->in[2];
  PlTensor *x = with_samples(c, 0, nd), *y;
  if (!c->full[1] && !(bias && c->full[2])) {
    PlTensor *in[3] = {as_samples(c, x), c->in[1], bias ? c->in[2] : NULL};
    c->out[0] = pl_b_op(c, c->op, bias ? 3 : 2, in, c->attrs);
    return;
  }
  PlAttrs a;
  int groups = 3; /* both tables have it there */
  scale_groups(c, &a, groups);
  PlTensor *in[2] = {as_channels(c, x, c->full[0] != NULL), as_weight(c, 1)};
  y = from_channels(c, pl_b_op(c, c->op, 2, in, &a));
  if (bias && c->status == PL_OK) {
    int64_t sizes[PL_MAX_DIM] = {c->n, 1, c->in[2]->a.shape[0]};
    for (int d = 0; d < nd; d++) sizes[3 + d] = 1;
    y = pl_b_two(c, &pl_op_add, y, pl_b_reshape(c, pl_b_each(c, 2), 3 + nd, sizes));
  }
  c->out[0] = y;
}

/* dy, w → dx of the given sizes */
void pl_batch_conv_input(PlBatchCall *c) {
  int nd = c->in[1]->a.ndim - 2;
  PlTensor *dy = with_samples(c, 0, nd);
  int64_t sizes[PL_MAX_DIM] = {1};
  int n = pl_attr_n(c->attrs, 4);
  if (c->status != PL_OK) return;
  memcpy(sizes + (n == nd + 1), pl_attr_list(c->attrs, 4), (size_t)n * sizeof *sizes);
  PlAttrs a;
  if (!c->full[1]) {
    memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
    sizes[0] *= c->n;
    c->status = pl_attrs_list(&a, 4, nd + 2, sizes);
    PlTensor *in[2] = {as_samples(c, dy), c->in[1]};
    c->out[0] = pl_b_op(c, c->op, 2, in, &a);
    return;
  }
  scale_groups(c, &a, 3);
  sizes[1] *= c->n;
  c->status = pl_attrs_list(&a, 4, nd + 2, sizes);
  PlTensor *in[2] = {as_channels(c, dy, c->full[0] != NULL), as_weight(c, 1)};
  c->out[0] = from_channels(c, pl_b_op(c, c->op, 2, in, &a));
}

/* dy, x → dw[O, C/groups, …]: one convolution whose channels are those of all elements. */
void pl_batch_conv_weight(PlBatchCall *c) {
  int nd = c->desc[0].ndim - 2;
  int64_t sizes[PL_MAX_DIM];
  PlAttrs a;
  memcpy(sizes, c->desc[0].shape, (size_t)(nd + 2) * sizeof *sizes);
  PlTensor *dy = with_samples(c, 0, nd), *x = with_samples(c, 1, nd);
  bool shared = !c->full[1] && pl_attr_i(c->attrs, 3) == 1;
  if (shared) memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  else scale_groups(c, &a, 3);
  sizes[0] *= c->n;
  if (c->status == PL_OK) c->status = pl_attrs_list(&a, 4, nd + 2, sizes);
  PlTensor *in[2] = {as_channels(c, dy, c->full[0] != NULL), shared ? x : as_channels(c, x, c->full[1] != NULL)};
  c->out[0] = pl_b_op(c, c->op, 2, in, &a);
}
