/* SPDX-License-Identifier: MIT
 * Batching rules that families of ops share. n is the size of the batch, the first dimension of every full handle. */
#include <string.h>

#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

/* ---- shapes line up from the last dimension: elementwise ops ----------------------------------------------- */

static int rank_of(const PlBatchCall *c) {
  int rank = 0;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && c->in[i]->a.ndim > rank) rank = c->in[i]->a.ndim;
  return rank;
}

/* Inputs broadcast; whatever they are, the outputs have the batch in front. */
void pl_batch_leading(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN];
  int rank = rank_of(c);
  for (int i = 0; i < c->nin; i++) in[i] = pl_b_ranked(c, i, rank);
  pl_b_ops(c, c->op, c->nin, in, c->attrs, c->out);
}

/* The op takes any number of dimensions in front: every input gets the batch there. */
void pl_batch_each(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN];
  for (int i = 0; i < c->nin; i++) in[i] = pl_b_each(c, i);
  pl_b_ops(c, c->op, c->nin, in, c->attrs, c->out);
}

/* Square matrices and right sides; a vector is a matrix of one column. */
void pl_batch_solve(PlBatchCall *c) {
  PlTensor *in[2] = {pl_b_each(c, 0), pl_b_each(c, 1)};
  if (c->in[0]->a.ndim != 2 || c->in[1]->a.ndim > 2) {
    c->declined = true;
    return;
  }
  if (c->in[1]->a.ndim == 1 && c->status == PL_OK) {
    const int64_t sizes[3] = {c->n, c->in[1]->a.shape[0], 1};
    in[1] = pl_b_reshape(c, in[1], 3, sizes);
  }
  pl_b_ops(c, c->op, 2, in, c->attrs, c->out);
}

/* Only input `at` is batched, and its dims go through: table look-ups. */
static void only(PlBatchCall *c, int at) {
  PlTensor *in[PL_MAX_IN];
  for (int i = 0; i < c->nin; i++) {
    in[i] = c->full[i] ? c->full[i] : c->in[i];
    if ((i == at) != (c->full[i] != NULL)) c->declined = true;
  }
  if (!c->declined) pl_b_ops(c, c->op, c->nin, in, c->attrs, c->out);
}
void pl_batch_first(PlBatchCall *c) { only(c, 0); }
void pl_batch_second(PlBatchCall *c) { only(c, 1); }

/* ---- attributes that name dimensions -------------------------------------------------------------------------- */

static bool named_dim(const PlAttrDef *d) { return (d->type == PL_A_INT || d->type == PL_A_INDEX) && strncmp(d->name, "dim", 3) == 0; }

/* Dims move up by one, "none: all" becomes their list; sizes get the batch in front. flat: none means the flattened
 * input, whose one dim is then dim 1. */
static PlStatus shifted(const PlBatchCall *c, int ndim, PlAttrs *a, bool *flat) {
  const PlOp *op = c->op;
  int64_t list[PL_MAX_DIM + 1];
  memcpy(a, c->attrs, pl_attrs_size(c->attrs));
  *flat = false;
  for (int k = 0; k < op->nattr; k++) {
    const PlAttrDef *d = &op->attrs[k];
    bool has = pl_attr_has(c->attrs, k), one = d->type == PL_A_DIM || d->type == PL_A_NEWDIM || named_dim(d);
    if (one && has) {
      int64_t at = pl_attr_i(c->attrs, k);
      a->v[k].i = at < 0 ? at : at + 1;
    } else if (one && d->optional) {
      *flat = true;
      pl_attrs_int(a, k, 1);
    } else if (d->type == PL_A_DIMS) {
      int n = has ? pl_attr_n(c->attrs, k) : 0;
      for (int i = 0; i < n; i++) list[i] = pl_attr_list(c->attrs, k)[i] + 1;
      if (n == 0) {
        if (d->flat) *flat = true;
        if (!d->optional) continue;
        n = *flat ? 1 : ndim;
        for (int i = 0; i < n; i++) list[i] = i + 1;
      }
      PL_TRY(pl_attrs_list(a, k, n, list));
    } else if (d->type == PL_A_SHAPE && has && strcmp(d->name, "shape") == 0) {
      int n = pl_attr_n(c->attrs, k);
      if (n == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: inside vmap a tensor has at most %d dimensions", op->name, n - 1);
      list[0] = c->n;
      memcpy(list + 1, pl_attr_list(c->attrs, k), (size_t)n * sizeof *list);
      if (n == 0) list[++n] = 1; /* a 0-d tensor has its dim 0, as by_dims gives it */
      PL_TRY(pl_attrs_list(a, k, n + 1, list));
    }
  }
  return PL_OK;
}

/* A source that is the same number for all positions and all elements of the batch. */
static bool one_value(const PlBatchCall *c, int i) {
  return i > 1 && c->in[i] && !c->full[i] && c->in[i]->a.ndim == 0 && c->in[1]->a.ndim > 0;
}

/* A 0-d tensor stands for a row of one here, which with the batch in front it no longer does. */
static bool numbers_beside_rows(const PlBatchCall *c) {
  bool numbers = false, rows = false;
  for (int i = 0; i < c->nin; i++) {
    if (!c->in[i] || (c->in[i]->a.weak && !c->full[i]) || one_value(c, i)) continue;
    numbers |= c->in[i]->a.ndim == 0;
    rows |= c->in[i]->a.ndim > 0;
  }
  return numbers && rows;
}

/* every: all inputs get the batch; else input 1 is shared by all and must not be batched. A 0-d input 0 gets a dim. */
static void by_dims(PlBatchCall *c, bool every) {
  PlTensor *in[PL_MAX_IN], *first = c->in[0];
  PlAttrs a;
  bool flat;
  int ndim = first->a.ndim;
  /* of one number, an index of it and its new row nothing tells which of them are rows */
  if (!every && c->nin > 1 && (c->full[1] || ndim == 0)) {
    c->declined = true;
    return;
  }
  c->status = shifted(c, ndim ? ndim : 1, &a, &flat);
  for (int k = 0; flat && k < c->op->nattr; k++)
    if (c->op->attrs[k].type == PL_A_SHAPE) c->declined = true;
  for (int k = 0; ndim > 0 && k < c->op->nattr; k++) /* dims of something 0-d, such as the windows of a number */
    if (c->op->attrs[k].type == PL_A_SHAPE && pl_attr_has(c->attrs, k) && pl_attr_n(c->attrs, k) == 0) c->declined = true;
  for (int i = 2; !every && i < c->nin; i++) c->declined |= c->full[i] && c->in[i]->a.ndim == 0;
  if (c->declined || (every && numbers_beside_rows(c))) {
    c->declined = true;
    return;
  }
  for (int i = 0; i < c->nin && c->status == PL_OK; i++) {
    bool shared = every ? one_value(c, i) : i == 1 || (i > 1 && c->in[i] && c->in[i]->a.ndim == 0);
    in[i] = shared || !c->in[i] || (c->in[i]->a.weak && !c->full[i]) ? c->in[i] : pl_b_each(c, i);
    bool like_first = c->in[i] && c->in[i]->a.ndim == ndim && !(c->in[i]->a.weak && !c->full[i]);
    if (shared || !in[i] || !like_first || !(ndim == 0 || flat) || c->status != PL_OK) continue;
    const int64_t sizes[2] = {c->n, c->in[i]->a.numel};
    in[i] = pl_b_reshape(c, in[i], 2, sizes);
  }
  if (c->status == PL_OK) pl_b_ops(c, c->op, c->nin, in, &a, c->out);
}
void pl_batch_dims(PlBatchCall *c) { by_dims(c, true); }
void pl_batch_rows(PlBatchCall *c) { by_dims(c, false); }

/* Lists of tensors: cat, stack. */
void pl_batch_list(PlBatchCall *c) {
  PlAttrs a;
  bool flat;
  c->status = shifted(c, c->in[0]->a.ndim, &a, &flat);
  /* cat leaves out what is empty and of one dim, whatever the others have; [n, 0] would have to fit */
  int most = 1, n = 0;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i]->a.ndim != 1) most = c->in[i]->a.ndim;
  for (int i = 0; i < c->nin; i++) {
    const PlArray *x = &c->in[i]->a;
    if (most != 1 && x->ndim == 1 && x->numel == 0) continue;
    c->full[n++] = pl_b_each(c, i);
  }
  if (c->status == PL_OK) pl_b_ops(c, c->op, n, c->full, &a, c->out);
}

/* masked_fill by one number each: what where does with numbers of the same dtype. */
void pl_batch_masked_fill(PlBatchCall *c) {
  if (!c->full[2]) {
    pl_batch_leading(c);
    return;
  }
  if (c->in[2]->a.dtype != c->in[0]->a.dtype) {
    c->declined = true;
    return;
  }
  const int rank = rank_of(c);
  PlTensor *in[3] = {pl_b_ranked(c, 1, rank), pl_b_ranked(c, 2, rank), pl_b_ranked(c, 0, rank)};
  c->out[0] = pl_b_op(c, &pl_op_where, 3, in, NULL);
}

/* All of one tensor: the same over all its dims. */
static void whole(PlBatchCall *c, const PlOp *op) {
  PlAttrs a;
  int64_t dims[PL_MAX_DIM];
  PlTensor *x = c->full[0];
  pl_attrs_init(op, &a);
  for (int d = 1; d < x->a.ndim; d++) dims[d - 1] = d;
  if (x->a.ndim == 1) {
    c->out[0] = x;
    return;
  }
  c->status = pl_attrs_list(&a, 0, x->a.ndim - 1, dims);
  c->out[0] = pl_b_op(c, op, 1, &x, &a);
}
void pl_batch_max_all(PlBatchCall *c) { whole(c, &pl_op_amax); }
void pl_batch_min_all(PlBatchCall *c) { whole(c, &pl_op_amin); }

/* ---- the result's shape says all ----------------------------------------------------------------------------- */

/* view, reshape, squeeze …: the caller reshapes to what infer said. */
void pl_batch_shape(PlBatchCall *c) {
  if (c->full[0]) c->out[0] = c->full[0];
  else c->declined = true;
}

void pl_batch_expand(PlBatchCall *c) {
  PlAttrs a;
  int64_t sizes[PL_MAX_DIM + 1];
  const PlDesc *d = &c->desc[0];
  if (!c->full[0]) { /* expand_as a batched tensor: only its shape counts */
    c->plain = true;
    c->out[0] = c->in[0];
    memcpy(sizes, d->shape, d->ndim * sizeof *sizes);
  } else {
    c->out[0] = pl_b_ranked(c, 0, d->ndim);
    sizes[0] = c->n;
    memcpy(sizes + 1, d->shape, d->ndim * sizeof *sizes);
  }
  pl_attrs_init(&pl_op_expand, &a);
  if (c->status == PL_OK) c->status = pl_attrs_list(&a, 0, d->ndim + !c->plain, sizes);
  c->out[0] = pl_b_op(c, &pl_op_expand, 1, &c->out[0], &a);
}

void pl_batch_sum_to(PlBatchCall *c) {
  const PlDesc *d = &c->desc[0];
  PlTensor *x = c->full[0];
  PlAttrs a;
  int64_t dims[PL_MAX_DIM];
  if (!x || (c->nin > 1 && c->full[1])) {
    c->declined = true;
    return;
  }
  int n = 0, lead = x->a.ndim - 1 - d->ndim;
  for (int k = 0; k < x->a.ndim - 1; k++)
    if (k < lead || (d->shape[k - lead] == 1 && x->a.shape[k + 1] != 1)) dims[n++] = k + 1;
  c->out[0] = x;
  if (n == 0) return;
  pl_attrs_init(&pl_op_sum, &a);
  c->status = pl_attrs_list(&a, 0, n, dims);
  c->out[0] = pl_b_op(c, &pl_op_sum, 1, &x, &a);
}

/* The sizes of one element, the same for all. */
void pl_batch_sizes(PlBatchCall *c) {
  PlTensor *t = NULL;
  int64_t n = c->in[0]->a.ndim;
  c->status = pl_tensor_from(&t, PL_I64, 1, &n, c->in[0]->a.shape);
  c->plain = true;
  if (t && pl_state.trace) t->flags |= PL_T_CONST; /* graphs know shapes */
  c->out[0] = t ? pl_b_take(c, t) : NULL;
}

void pl_batch_transpose2(PlBatchCall *c) {
  PlTensor *x = c->full[0];
  c->out[0] = x->a.ndim == 3 ? pl_b_move(c, x, 1, 2) : x;
}

/* permute: the batch stays in front. */
void pl_batch_permute(PlBatchCall *c) {
  PlAttrs a;
  int64_t dims[PL_MAX_DIM] = {0};
  int n = pl_attr_n(c->attrs, 0);
  for (int k = 0; k < n && k + 1 < PL_MAX_DIM; k++) dims[k + 1] = pl_attr_list(c->attrs, 0)[k] + 1;
  pl_attrs_init(c->op, &a);
  c->status = pl_attrs_list(&a, 0, n + 1, dims);
  c->out[0] = pl_b_op(c, c->op, 1, &c->full[0], &a);
}

void pl_batch_strided(PlBatchCall *c) {
  PlAttrs a;
  PlTensor *x = c->full[0];
  int64_t sizes[PL_MAX_DIM + 1], strides[PL_MAX_DIM + 1];
  int n = pl_attr_n(c->attrs, 0);
  sizes[0] = c->n;
  strides[0] = x->a.strides[0];
  memcpy(sizes + 1, pl_attr_list(c->attrs, 0), (size_t)n * sizeof *sizes);
  memcpy(strides + 1, pl_attr_list(c->attrs, 1), (size_t)n * sizeof *strides);
  pl_attrs_init(c->op, &a);
  c->status = pl_attrs_list(&a, 0, n + 1, sizes);
  if (c->status == PL_OK) c->status = pl_attrs_list(&a, 1, n + 1, strides);
  pl_attrs_int(&a, 2, pl_attr_i(c->attrs, 2));
  c->out[0] = pl_b_op(c, c->op, 1, &x, &a);
}

/* Attributes k and k + 1 are sizes and strides of a window of an element; those of the windows of all n elements. */
static void windows(PlBatchCall *c, PlAttrs *a, int k, int64_t numel) {
  int64_t sizes[PL_MAX_DIM + 1] = {c->n}, strides[PL_MAX_DIM + 1] = {numel};
  const int n = pl_attr_n(c->attrs, k);
  memcpy(sizes + 1, pl_attr_list(c->attrs, k), (size_t)n * sizeof *sizes);
  memcpy(strides + 1, pl_attr_list(c->attrs, k + 1), (size_t)n * sizeof *strides);
  if (c->status == PL_OK) c->status = pl_attrs_list(a, k, n + 1, sizes);
  if (c->status == PL_OK) c->status = pl_attrs_list(a, k + 1, n + 1, strides);
  pl_attrs_int(a, k + 2, pl_attr_i(c->attrs, k + 2));
}

void pl_batch_strided_put(PlBatchCall *c) {
  PlAttrs a;
  PlTensor *in[2] = {pl_b_each(c, 0), pl_b_each(c, 1)};
  pl_attrs_init(c->op, &a);
  windows(c, &a, 0, c->in[0]->a.numel);
  c->out[0] = pl_b_op(c, c->op, 2, in, &a);
}

void pl_batch_strided_bwd(PlBatchCall *c) {
  PlAttrs a;
  int64_t sizes[PL_MAX_DIM + 1] = {c->n}, numel = 1;
  const int n = pl_attr_n(c->attrs, 0);
  for (int d = 0; d < n; d++) numel *= sizes[d + 1] = pl_attr_list(c->attrs, 0)[d];
  pl_attrs_init(c->op, &a);
  c->status = pl_attrs_list(&a, 0, n + 1, sizes);
  windows(c, &a, 1, numel);
  c->out[0] = pl_b_op(c, c->op, 1, &c->full[0], &a);
}

/* tile: repeats line up with the last dims. */
void pl_batch_tile(PlBatchCall *c) {
  PlAttrs a;
  int64_t reps[PL_MAX_DIM + 1];
  int n = pl_attr_n(c->attrs, 0), rank = n > c->in[0]->a.ndim ? n : c->in[0]->a.ndim;
  PlTensor *x = pl_b_ranked(c, 0, rank);
  for (int k = 0; k <= rank; k++) reps[k] = k <= rank - n ? 1 : pl_attr_list(c->attrs, 0)[k - 1 - (rank - n)];
  pl_attrs_init(c->op, &a);
  if (c->status == PL_OK) c->status = pl_attrs_list(&a, 0, rank + 1, reps);
  c->out[0] = pl_b_op(c, c->op, 1, &x, &a);
}

/* ---- the batch joins the first dimension: samples, or channels treated one by one --------------------------- */

/* Every input of two or more dims: [n, N, …] as [n N, …]; attribute `sizes` likewise. One-dimensional ones beside
 * them are parameters, the same for all samples. */
void pl_batch_samples(PlBatchCall *c) {
  PlTensor *in[PL_MAX_IN];
  PlAttrs a;
  bool samples = rank_of(c) > 1;
  memcpy(&a, c->attrs, pl_attrs_size(c->attrs));
  for (int i = 0; i < c->nin; i++) c->declined |= samples && c->full[i] && c->in[i]->a.ndim < 2;
  for (int i = 0; i < c->nin && !c->declined; i++) {
    bool parameter = samples && c->in[i] && c->in[i]->a.ndim < 2;
    in[i] = parameter ? c->in[i] : pl_b_each(c, i);
    if (in[i] && c->in[i]->a.ndim > 1) in[i] = pl_b_merge(c, in[i], 0);
  }
  for (int k = 0; k < c->op->nattr && !c->declined && c->status == PL_OK; k++) {
    if (c->op->attrs[k].type != PL_A_SHAPE || strcmp(c->op->attrs[k].name, "sizes") != 0) continue;
    int64_t sizes[PL_MAX_DIM];
    int n = pl_attr_n(c->attrs, k);
    memcpy(sizes, pl_attr_list(c->attrs, k), (size_t)n * sizeof *sizes);
    if (n) sizes[0] *= c->n;
    c->status = pl_attrs_list(&a, k, n, sizes);
  }
  if (c->status == PL_OK && !c->declined) pl_b_ops(c, c->op, c->nin, in, &a, c->out);
}
