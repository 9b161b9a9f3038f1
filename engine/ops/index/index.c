/* SPDX-License-Identifier: MIT
 * Reading at positions: gather, take_along_dim, index_select, take, embedding, lists of index tensors, one_hot.
 * Each adjoint adds a gradient back into zeros, in index order, and reads again in its own gradient. */
#include "engine/ops/index/index.h"
#include "engine/ops/names.h"

/* ---- shared ------------------------------------------------------------------------------------------- */

PlStatus pl_index_check(const PlInfer *c, int i) {
  if (pl_is_int((PlDtype)c->in[i]->dtype)) return PL_OK;
  PL_FAIL(PL_ERR_DTYPE, "%s: %s must hold integers (i64 or i32), got %s; say %s:long()", c->op->name, c->op->args[i],
          pl_desc_text(c->in[i]), c->op->args[i]);
}

PlStatus pl_index_check_list(const PlInfer *c, int i) {
  PL_TRY(pl_index_check(c, i));
  if (c->in[i]->ndim <= 1) return PL_OK;
  PL_FAIL(PL_ERR_SHAPE, "%s: %s must be 1-d, got %s", c->op->name, c->op->args[i], pl_desc_text(c->in[i]));
}

PlStatus pl_index_check_beside(const PlInfer *c, int i, int dim) { return pl_index_check_along(c, c->in[0], i, dim); }

PlStatus pl_index_check_along(const PlInfer *c, const PlArray *x, int i, int dim) {
  const PlArray *index = c->in[i];
  PL_TRY(pl_index_check(c, i));
  if (index->numel == 0) return PL_OK;
  bool fits = (x->ndim ? x->ndim : 1) == (index->ndim ? index->ndim : 1);
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s and %s %s must have equally many dims", c->op->name, pl_desc_text(x), c->op->args[i],
            pl_desc_text(index));
  for (int d = 0; d < index->ndim && d < x->ndim; d++)
    if (d != dim && index->shape[d] > x->shape[d])
      PL_FAIL(PL_ERR_SHAPE, "%s: %s %s is larger than %s in dim %d; only dim %d may be", c->op->name, c->op->args[i], pl_desc_text(index),
              pl_desc_text(x), d + 1, dim + 1);
  return PL_OK;
}

PlStatus pl_index_infer_shape(PlInfer *c, int k) {
  PL_TRY(pl_sizes_check(c, pl_attr_n(c->attrs, k), pl_attr_list(c->attrs, k)));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, pl_attr_n(c->attrs, k), pl_attr_list(c->attrs, k));
  return PL_OK;
}

static PlVal at_dim(PlMaker *g, const PlOp *op, PlVal v, PlVal index, int64_t dim, int64_t base) {
  PlAttrs a;
  PlVal in[2] = {v, index};
  pl_attrs_init(op, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 1, base);
  return pl_g_op(g, op, 2, in, &a, NULL);
}
PlVal pl_g_gather(PlMaker *g, PlVal v, PlVal index, int64_t dim, int64_t base) { return at_dim(g, &pl_op_gather, v, index, dim, base); }
PlVal pl_g_index_select(PlMaker *g, PlVal v, PlVal index, int64_t dim, int64_t base) {
  return at_dim(g, &pl_op_index_select, v, index, dim, base);
}

PlVal pl_g_sum_sizes(PlMaker *g, PlVal v, int i) {
  PlAttrs a;
  PlVal in[2] = {v, PL_NONE};
  pl_attrs_init(&pl_op_sum_to, &a);
  pl_g_attrs_list(g, &a, 0, g->in[i]->ndim, g->in[i]->shape);
  return pl_g_op(g, &pl_op_sum_to, 2, in, &a, NULL);
}

/* op(v, index; shape, dim, base): the adjoints of gather and index_select. */
static PlVal back(PlMaker *g, const PlOp *op, PlVal v, PlVal index, int n, const int64_t *shape, int64_t dim, int64_t base) {
  PlAttrs a;
  PlVal in[2] = {v, index};
  pl_attrs_init(op, &a);
  pl_g_attrs_list(g, &a, 0, n, shape);
  pl_attrs_int(&a, 1, dim);
  pl_attrs_int(&a, 2, base);
  return pl_g_op(g, op, 2, in, &a, NULL);
}

/* x of the forward op, as attribute `shape` describes it. */
static PlArray big_of(const PlInfer *c) {
  return (PlArray){.shape = pl_attr_list(c->attrs, 0), .ndim = (uint8_t)pl_attr_n(c->attrs, 0), .dtype = c->in[0]->dtype};
}

/* ---- gather ---------------------------------------------------------------------------------------------- */

static PlStatus gather_infer(PlInfer *c) {
  PL_TRY(pl_index_check_beside(c, 1, (int)pl_attr_i(c->attrs, 0)));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[1]->ndim, c->in[1]->shape);
  return PL_OK;
}

static PlStatus gather_grad(PlMaker *g) {
  if (g->want[0])
    g->dx[0] =
        back(g, &pl_op_gather_bwd, g->dy[0], g->x[1], g->in[0]->ndim, g->in[0]->shape, pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, 1));
  return g->status;
}

/* y[i, j] = x[index[i, j], j] for dim 1, and so on. */
PL_OP(gather,
      .doc = "Element by element: the position along dim comes from index, the others from where the element is. "
             "The result has index's shape, which may exceed x only along dim.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:gather(2, T.tensor({ { 2 }, { 1 } }, { dtype = \"i64\" })))\n"
                 "--> {{2.},\n"
                 "-->  {3.}}  -- f32[2,1] cpu",
      .nin = 2, .nout = 1, .nattr = 2, .args = {"x", "index"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_SPREAD | PL_F_LATE, .infer = gather_infer, .grad = gather_grad,
      PL_KERNEL(gather), );

/* take_along_dim's adjoint is gather_bwd too, and its negative values must survive backward. */
PL_OP(gather_wrapping, .doc = "gather that counts negative index values from the end.", .nin = 2, .nout = 1, .nattr = 2,
      .args = {"x", "index"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_CONTIGUOUS | PL_F_SPREAD | PL_F_INTERNAL, .kcode = 1, .infer = gather_infer, .grad = gather_grad, PL_KERNEL(gather), );

static PlStatus gather_bwd_infer(PlInfer *c) {
  PL_TRY(pl_index_infer_shape(c, 0));
  const PlArray x = big_of(c);
  PL_TRY(pl_check_axis(c, 1, x.ndim));
  PL_TRY(pl_check_like(c, 0, 1));
  return pl_index_check_along(c, &x, 1, (int)pl_attr_i(c->attrs, 1));
}

static PlStatus gather_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = at_dim(g, &pl_op_gather_wrapping, g->dy[0], g->x[1], pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 2));
  return g->status;
}

PL_OP(gather_bwd, .doc = "Adds dy into zeros of the shape where gather read.", .nin = 2, .nout = 1, .nattr = 3, .args = {"dy", "index"},
      .attrs = {A_SHAPE_REQ("shape"), A_INT_REQ("dim"), A_BASE}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS | PL_F_SPREAD, .infer = gather_bwd_infer, .grad = gather_bwd_grad,
      PL_KERNEL(gather_bwd), );

/* ---- take_along_dim ----------------------------------------------------------------------------------------- */

static bool is_flat(const PlAttrs *a, const PlArray *x) { return !pl_attr_has(a, 0) || x->ndim == 0; }

static PlStatus take_along_dim_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *index = c->in[1];
  PlDesc *d = &c->out[0];
  PL_TRY(pl_index_check(c, 1));
  if (is_flat(c->attrs, x)) {
    pl_desc_set(d, (PlDtype)x->dtype, 1, &index->numel);
    return PL_OK;
  }
  int dim = (int)pl_attr_i(c->attrs, 0);
  bool fits = x->ndim == index->ndim;
  pl_desc_set(d, (PlDtype)x->dtype, index->ndim, index->shape);
  for (int k = 0; fits && k < x->ndim; k++) {
    if (k == dim) continue;
    fits = x->shape[k] == index->shape[k] || x->shape[k] == 1 || index->shape[k] == 1;
    if (index->shape[k] == 1) d->shape[k] = x->shape[k];
  }
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "take_along_dim: %s and index %s must have equally many dims and broadcast but for dim %d", pl_desc_text(x),
            pl_desc_text(index), dim + 1);
  return PL_OK;
}

static PlStatus take_along_dim_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  const PlDesc *o = &g->outd[0];
  int64_t base = pl_attr_i(g->attrs, 1), shape[PL_MAX_DIM];
  if (!g->want[0]) return g->status;
  if (is_flat(g->attrs, x)) {
    PlVal index = pl_g_reshape(g, g->x[1], 1, &g->in[1]->numel);
    PlVal flat = back(g, &pl_op_gather_bwd, g->dy[0], index, 1, &x->numel, 0, base);
    g->dx[0] = pl_g_reshape(g, flat, x->ndim, x->shape);
    return g->status;
  }
  int64_t dim = pl_attr_i(g->attrs, 0);
  PlVal index = pl_g_list(g, &pl_op_broadcast_to, g->x[1], 0, o->ndim, o->shape);
  for (int d = 0; d < o->ndim; d++) shape[d] = d == dim ? x->shape[d] : o->shape[d];
  PlVal wide = back(g, &pl_op_gather_bwd, g->dy[0], index, o->ndim, shape, dim, base);
  g->dx[0] = pl_g_sum_sizes(g, wide, 0);
  return g->status;
}

PL_OP(take_along_dim,
      .doc = "gather whose index broadcasts with x in the other dims; without dim both are flattened. "
             "Negative index values count from the end.",
      .example = "local x = T.tensor { { 3, 1 }, { 2, 4 } }\n"
                 "print(x:take_along_dim(x:argsort(2), 2))\n"
                 "--> {{1., 3.},\n"
                 "-->  {2., 4.}}  -- f32[2,2] cpu",
      .nin = 2, .nout = 1, .nattr = 2, .args = {"x", "index"}, .attrs = {A_DIM_OPT("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS | PL_F_SPREAD, .infer = take_along_dim_infer, .grad = take_along_dim_grad,
      PL_KERNEL(take_along_dim), );

/* ---- index_select --------------------------------------------------------------------------------------------- */

static PlStatus index_select_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *index = c->in[1];
  PL_TRY(pl_index_check_list(c, 1));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  if (x->ndim) c->out[0].shape[pl_attr_i(c->attrs, 0)] = index->numel;
  else if (index->numel != 1) PL_FAIL(PL_ERR_SHAPE, "index_select: a 0-d tensor takes one index, got %s", pl_desc_text(index));
  return pl_sizes_check(c, x->ndim, c->out[0].shape);
}

static PlStatus index_select_grad(PlMaker *g) {
  if (g->want[0])
    g->dx[0] = back(g, &pl_op_index_select_bwd, g->dy[0], g->x[1], g->in[0]->ndim, g->in[0]->shape, pl_attr_i(g->attrs, 0),
                    pl_attr_i(g->attrs, 1));
  return g->status;
}

PL_OP(index_select, .doc = "The positions of dim that index (1-d) lists, in its order, copied.",
      .example = "print(T.tensor { 10, 20, 30 }:index_select(1, T.tensor({ 3, 1 }, { dtype = \"i64\" })))  --> {30., 10.}  -- f32[2] cpu",
      .nin = 2, .nout = 1, .nattr = 2, .args = {"x", "index"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .flags = PL_F_LINEAR, .batch = pl_batch_rows, .infer = index_select_infer, .grad = index_select_grad, PL_KERNEL(index_select), );

static PlStatus index_select_bwd_infer(PlInfer *c) {
  int64_t rows[PL_MAX_DIM];
  PL_TRY(pl_index_infer_shape(c, 0));
  const PlArray x = big_of(c);
  PL_TRY(pl_check_axis(c, 1, x.ndim));
  PL_TRY(pl_index_check_list(c, 1));
  for (int d = 0; d < x.ndim; d++) rows[d] = d == pl_attr_i(c->attrs, 1) ? c->in[1]->numel : x.shape[d];
  if (x.ndim == 0 && c->in[1]->numel != 1) PL_FAIL(PL_ERR_SHAPE, "%s: a 0-d tensor takes one index", c->op->name);
  return pl_check_shape(c, 0, x.ndim, rows);
}

static PlStatus index_select_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_index_select(g, g->dy[0], g->x[1], pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 2));
  return g->status;
}

PL_OP(index_select_bwd, .doc = "Adds the rows of dy into zeros of the shape where index_select read.", .nin = 2, .nout = 1, .nattr = 3,
      .args = {"dy", "index"}, .attrs = {A_SHAPE_REQ("shape"), A_INT_REQ("dim"), A_BASE}, .cls = PL_INDEXING, .batch = pl_batch_rows,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = index_select_bwd_infer, .grad = index_select_bwd_grad,
      PL_KERNEL(index_select_bwd), );

/* ---- take ------------------------------------------------------------------------------------------------------- */

static PlStatus take_infer(PlInfer *c) {
  PL_TRY(pl_index_check(c, 1));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[1]->ndim, c->in[1]->shape);
  return PL_OK;
}

static PlStatus take_grad(PlMaker *g) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  pl_attrs_init(&pl_op_take_bwd, &a);
  pl_g_attrs_list(g, &a, 0, g->in[0]->ndim, g->in[0]->shape);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 0));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_take_bwd, 2, in, &a, NULL);
  return g->status;
}

PL_OP(take, .doc = "Elements of the flattened x at the positions in index; negative ones count from the end.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:take(T.tensor({ 1, 4 }, { dtype = \"i64\" })))  --> {1., 4.}  -- f32[2] cpu",
      .nin = 2, .nout = 1, .nattr = 1, .args = {"x", "index"}, .attrs = {A_BASE}, .cls = PL_INDEXING, .batch = pl_batch_second,
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS, .infer = take_infer, .grad = take_grad, PL_KERNEL(take), );

static PlStatus take_bwd_infer(PlInfer *c) {
  PL_TRY(pl_index_check(c, 1));
  PL_TRY(pl_check_like(c, 0, 1));
  return pl_index_infer_shape(c, 0);
}

static PlStatus take_bwd_grad(PlMaker *g) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  pl_attrs_init(&pl_op_take, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 1));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_take, 2, in, &a, NULL);
  return g->status;
}

PL_OP(take_bwd, .doc = "Adds dy into zeros of the shape where take read.", .nin = 2, .nout = 1, .nattr = 2, .args = {"dy", "index"},
      .attrs = {A_SHAPE_REQ("shape"), A_BASE}, .cls = PL_INDEXING, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = take_bwd_infer,
      .grad = take_bwd_grad, PL_KERNEL(take_bwd), );

/* ---- embedding ------------------------------------------------------------------------------------------------- */

/* A padding_idx counted from base, or negative from the end: its row, or -1. */
static int64_t padding_row(int64_t p, int64_t rows, int64_t base) {
  int64_t row = p < 0 ? p + rows : p - base;
  return row >= 0 && row < rows ? row : -1;
}

static PlStatus embedding_infer(PlInfer *c) {
  const PlArray *w = c->in[0], *ids = c->in[1];
  PlDesc *d = &c->out[0];
  if (w->ndim != 2) PL_FAIL(PL_ERR_SHAPE, "embedding: weight must be [rows,width], got %s", pl_desc_text(w));
  PL_TRY(pl_index_check(c, 1));
  if (ids->ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "embedding: ids %s have the most dims possible", pl_desc_text(ids));
  if (pl_attr_has(c->attrs, 0) && padding_row(pl_attr_i(c->attrs, 0), w->shape[0], pl_attr_i(c->attrs, 2)) < 0)
    PL_FAIL(PL_ERR_INDEX, "embedding: padding_idx %lld is no row of weight %s", (long long)pl_attr_i(c->attrs, 0), pl_desc_text(w));
  pl_desc_set(d, (PlDtype)w->dtype, ids->ndim, ids->shape);
  d->ndim = (uint8_t)(ids->ndim + 1);
  d->shape[ids->ndim] = w->shape[1];
  return pl_sizes_check(c, d->ndim, d->shape);
}

static PlStatus embedding_grad(PlMaker *g) {
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  pl_attrs_init(&pl_op_embedding_bwd, &a);
  pl_attrs_int(&a, 0, g->in[0]->shape[0]);
  if (pl_attr_has(g->attrs, 0)) pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 0));
  pl_attrs_int(&a, 2, pl_attr_i(g->attrs, 1));
  pl_attrs_int(&a, 3, pl_attr_i(g->attrs, 2));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_embedding_bwd, 2, in, &a, NULL);
  return g->status;
}

PL_OP(embedding,
      .doc = "Rows of weight [rows,width] for ids of any shape: ids.shape + [width]. The row padding_idx gets no "
             "gradient; scale_grad_by_freq divides each row's gradient by how often its id occurs.",
      .example = "local table_of_vectors = T.tensor { { 1, 1 }, { 2, 2 } }\n"
                 "print(T.embedding(table_of_vectors, T.tensor({ 2, 1 }, { dtype = \"i64\" })))\n"
                 "--> {{2., 2.},\n"
                 "-->  {1., 1.}}  -- f32[2,2] cpu",
      .nin = 2, .nout = 1, .nattr = 3, .args = {"weight", "ids"},
      .attrs = {A_INT_OPT("padding_idx"), A_BOOL("scale_grad_by_freq", 0), A_BASE}, .cls = PL_INDEXING, .batch = pl_batch_second,
      .flags = PL_F_NOMETHOD | PL_F_COSTLY, .infer = embedding_infer, .grad = embedding_grad, PL_KERNEL(embedding), );

static PlStatus embedding_bwd_infer(PlInfer *c) {
  const PlArray *dy = c->in[0];
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  int64_t sizes[2] = {pl_attr_i(c->attrs, 0), dy->shape[dy->ndim - 1]};
  PL_TRY(pl_sizes_check(c, 2, sizes));
  PL_TRY(pl_index_check(c, 1));
  PL_TRY(pl_check_shape(c, 1, dy->ndim - 1, dy->shape));
  if (pl_attr_has(c->attrs, 1) && padding_row(pl_attr_i(c->attrs, 1), sizes[0], pl_attr_i(c->attrs, 3)) < 0)
    PL_FAIL(PL_ERR_INDEX, "%s: padding_idx %lld is none of %lld rows", c->op->name, (long long)pl_attr_i(c->attrs, 1), (long long)sizes[0]);
  pl_desc_set(&c->out[0], (PlDtype)dy->dtype, 2, sizes);
  return PL_OK;
}

static PlStatus embedding_bwd_grad(PlMaker *g) {
  int64_t rows = pl_attr_i(g->attrs, 0), base = pl_attr_i(g->attrs, 3);
  PlVal dd = g->dy[0];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  if (pl_attr_i(g->attrs, 2)) return pl_fail(PL_ERR_UNSUPPORTED, "embedding: no second gradient with scale_grad_by_freq");
  if (pl_attr_has(g->attrs, 1)) { /* the padding row took no gradient, so it gives none */
    int64_t row = padding_row(pl_attr_i(g->attrs, 1), rows, base);
    PlVal pad = pl_g_slice(g, dd, 0, row, 1, 1);
    dd = pl_g2(g, &pl_op_sub, dd, pl_g_slice_bwd(g, pad, 2, g->outd[0].shape, 0, row, 1));
  }
  pl_attrs_init(&pl_op_embedding, &a);
  pl_attrs_int(&a, 2, base);
  PlVal in[2] = {dd, g->x[1]};
  g->dx[0] = pl_g_op(g, &pl_op_embedding, 2, in, &a, NULL);
  return g->status;
}

PL_OP(embedding_bwd, .doc = "Adds the rows of dy to the rows of a zero matrix that ids name, in the order of ids.", .nin = 2, .nout = 1,
      .nattr = 4, .args = {"dy", "ids"}, .attrs = {A_INT_REQ("rows"), A_INT_OPT("padding_idx"), A_BOOL("scale_grad_by_freq", 0), A_BASE},
      .cls = PL_INDEXING, .batch = pl_batch_embedding_bwd, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = embedding_bwd_infer,
      .grad = embedding_bwd_grad, PL_KERNEL(embedding_bwd), );

/* ---- one_hot ---------------------------------------------------------------------------------------------------- */

static PlStatus one_hot_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t n = pl_attr_i(c->attrs, 0);
  PL_TRY(pl_index_check(c, 0));
  if (x->ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "one_hot: %s has the most dims possible", pl_desc_text(x));
  if (n == -1) {
    if (x->numel == 0) PL_FAIL(PL_ERR_ARG, "one_hot: num_classes cannot be inferred from an empty tensor; give it");
    PL_TRY(plk_cpu_index_max(x, &n));
    if (__builtin_sub_overflow(n, pl_attr_i(c->attrs, 1) - 1, &n)) n = -2;
    if (n < 1) n = 1; /* the kernel names the value that is too small */
  }
  if (n < 1) PL_FAIL(PL_ERR_ARG, "one_hot: num_classes %lld must be at least 1", (long long)n);
  pl_desc_set(&c->out[0], PL_I64, x->ndim, x->shape);
  c->out[0].ndim = (uint8_t)(x->ndim + 1);
  c->out[0].shape[x->ndim] = n;
  return pl_sizes_check(c, c->out[0].ndim, c->out[0].shape);
}

static bool one_hot_by_shape(const PlArray *x, const PlAttrs *attrs) {
  (void)x;
  return attrs && pl_attr_i(attrs, 0) != -1;
}

PL_OP(one_hot, .doc = "i64 zeros with a 1 at each class of x along a new last dim; num_classes -1: as many as the largest needs.",
      .example = "print(T.one_hot(T.tensor({ 1, 3 }, { dtype = \"i64\" })))\n"
                 "--> {{1, 0, 0},\n"
                 "-->  {0, 0, 1}}  -- i64[2,3] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_INT("num_classes", -1), A_BASE}, .cls = PL_INDEXING,
      .flags = PL_F_CONTIGUOUS | PL_F_NOGRAD_OK | PL_F_IMPURE, .reads_values = 1, .by_shape = one_hot_by_shape, .infer = one_hot_infer,
      PL_KERNEL(one_hot), );
