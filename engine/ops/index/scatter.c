/* SPDX-License-Identifier: MIT
 * Writing at positions along a dim: scatter, scatter_add, scatter_reduce, index_add, index_copy, index_fill.
 * Each takes x and gives x changed; repeated positions take their values in index order. */
#include "engine/ops/index/index.h"
#include "engine/ops/names.h"

/* ---- element by element: scatter ------------------------------------------------------------------------- */

/* index beside x, src at least as large as index (or 0-d: one value for all). */
static PlStatus scatter_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *index = c->in[1], *src = c->in[2];
  PL_TRY(pl_index_check_beside(c, 1, (int)pl_attr_i(c->attrs, 0)));
  if (src->dtype != x->dtype)
    PL_FAIL(PL_ERR_DTYPE, "%s: src %s must have the dtype of %s; cast it first", c->op->name, pl_desc_text(src), pl_desc_text(x));
  bool fits = src->ndim == 0 || index->numel == 0 || src->ndim == (index->ndim ? index->ndim : 1);
  for (int d = 0; fits && index->numel && src->ndim && d < index->ndim; d++) fits = index->shape[d] <= src->shape[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: src %s must have as many dims as index %s and be at least as large", c->op->name, pl_desc_text(src),
            pl_desc_text(index));
  return pl_infer_same(c);
}

static int base_at(const PlOp *op) {
  int k = 0;
  while (op->attrs[k].type != PL_A_BASE) k++; /* every op here has one */
  return k;
}

static PlVal scatter_of(PlMaker *g, const PlOp *op, PlVal x, PlVal src) {
  PlAttrs a;
  PlVal in[3] = {x, g->x[1], src};
  pl_attrs_init(op, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  pl_attrs_int(&a, base_at(op), pl_attr_i(g->attrs, base_at(g->op)));
  return pl_g_op(g, op, 3, in, &a, NULL);
}

static PlVal gather_again(PlMaker *g, PlVal v) {
  return pl_g_gather(g, v, g->x[1], pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, base_at(g->op)));
}

/* v, of index's shape, as src's gradient: summed for a single value, zeros where src is larger than index. */
static PlVal like_src(PlMaker *g, PlVal v) {
  const PlArray *index = g->in[1], *src = g->in[2];
  int64_t shape[PL_MAX_DIM];
  if (src->ndim == 0) return index->ndim == 0 ? v : pl_g_sum_sizes(g, v, 2);
  if (index->numel == 0) return pl_g_zeros_like(g, 2);
  for (int d = 0; d < src->ndim; d++) shape[d] = index->ndim ? index->shape[d] : 1;
  if (index->ndim == 0) v = pl_g_reshape(g, v, 1, shape);
  for (int d = 0; d < src->ndim; d++) {
    if (shape[d] == src->shape[d]) continue;
    shape[d] = src->shape[d];
    v = pl_g_slice_bwd(g, v, src->ndim, shape, d, 0, 1);
  }
  return v;
}

/* dx = dy but zero where something was written (dy where it was added); dsrc = dy read there, where it was not overwritten. */
static PlStatus scatter_grad(PlMaker *g) {
  bool add = pl_attr_i(g->attrs, 2) == 1;
  if (pl_attr_i(g->attrs, 2) == 2)
    return pl_fail(PL_ERR_UNSUPPORTED, "scatter: reduce=\"multiply\" has no gradient; use scatter_reduce with prod");
  if (add) {
    if (g->want[0]) g->dx[0] = g->dy[0];
    if (g->want[2]) g->dx[2] = like_src(g, gather_again(g, g->dy[0]));
  } else if (g->want[2]) {
    const PlVal in[2] = {g->dy[0], g->x[1]};
    PlVal out[2];
    PlAttrs a;
    pl_attrs_init(&pl_op_scatter_bwd, &a);
    pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
    pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 1));
    pl_g_op(g, &pl_op_scatter_bwd, 2, in, &a, out);
    if (g->want[0]) g->dx[0] = out[0];
    g->dx[2] = like_src(g, out[1]);
  } else if (g->want[0]) {
    g->dx[0] = scatter_of(g, &pl_op_scatter, g->dy[0], pl_g_num(g, 0));
  }
  return g->status;
}

PL_OP(scatter,
      .doc = "x with src's elements written where index says along dim (the other positions stay), or with reduce "
             "added or multiplied there; src may be a number. Of elements written to one position the last stays.",
      .example = "print(T.zeros(3):scatter(1, T.tensor({ 3, 1 }, { dtype = \"i64\" }), T.tensor { 5, 6 }))\n"
                 "--> {6., 0., 5.}  -- f32[3] cpu",
      .nin = 3, .nout = 1, .nattr = 3, .args = {"x", "index", "src"},
      .attrs = {A_DIM_REQ("dim"), A_BASE, A_ENUM("reduce", "none|add|multiply", 0)}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_SPREAD | PL_F_SCALAR | PL_F_INPLACE | PL_F_LATE, .infer = scatter_infer,
      .grad = scatter_grad, PL_KERNEL(scatter), );

static PlStatus scatter_bwd_infer(PlInfer *c) {
  const PlArray *dy = c->in[0], *index = c->in[1];
  PL_TRY(pl_index_check_beside(c, 1, (int)pl_attr_i(c->attrs, 0)));
  pl_desc_set(&c->out[0], (PlDtype)dy->dtype, dy->ndim, dy->shape);
  pl_desc_set(&c->out[1], (PlDtype)dy->dtype, index->ndim, index->shape);
  return PL_OK;
}

/* Each element of dy goes to one element of the results, or nowhere: back come those that scatter takes, in its order. */
static PlStatus scatter_bwd_grad(PlMaker *g) {
  if (!g->want[0]) return g->status;
  const PlVal dx = g->dy[0] == PL_NONE ? pl_g_zeros_like(g, 0) : g->dy[0];
  g->dx[0] = scatter_of(g, &pl_op_scatter, dx, g->dy[1] == PL_NONE ? pl_g_num(g, 0) : g->dy[1]);
  return g->status;
}

PL_OP(scatter_bwd,
      .doc = "The gradients of scatter: dy with zeros where it wrote, and what was there, for the last of those that wrote to one place "
             "(zeros for the others).",
      .nin = 2, .nout = 2, .nattr = 2, .args = {"dy", "index"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS | PL_F_SPREAD, .infer = scatter_bwd_infer,
      .grad = scatter_bwd_grad, PL_KERNEL(scatter_bwd), );

static PlStatus scatter_add_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = g->dy[0];
  if (g->want[2]) g->dx[2] = like_src(g, gather_again(g, g->dy[0]));
  return g->status;
}

PL_OP(scatter_add, .doc = "x with src's elements added where index says along dim; src may be a number.",
      .example = "print(T.zeros(2):scatter_add(1, T.tensor({ 1, 1, 2 }, { dtype = \"i64\" }), T.ones(3)))  --> {2., 1.}  -- f32[2] cpu",
      .nin = 3, .nout = 1, .nattr = 2, .args = {"x", "index", "src"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_SPREAD | PL_F_SCALAR | PL_F_INPLACE | PL_F_LATE, .kcode = 1,
      .infer = scatter_infer, .grad = scatter_add_grad, PL_KERNEL(scatter), );

/* ---- scatter_reduce ---------------------------------------------------------------------------------------- */

enum { RED_SUM, RED_PROD, RED_MEAN, RED_AMAX, RED_AMIN };

/* src cut down to index's shape: a 0-d index takes the first of a row. */
static PlVal cut_src(PlMaker *g) {
  const PlArray *index = g->in[1], *src = g->in[2];
  PlVal v = g->x[2];
  for (int d = 0; d < src->ndim; d++) {
    const int64_t size = index->ndim ? index->shape[d] : 1;
    if (size != src->shape[d]) v = pl_g_slice(g, v, d, 0, size, 1);
  }
  return src->ndim > index->ndim ? pl_g_reshape(g, v, 0, NULL) : v;
}

static PlVal as_float(PlMaker *g, PlVal v) { return pl_g_cast(g, v, (PlDtype)g->in[0]->dtype); }

/* n = how many values were averaged, at least 1: dx = dy / n, dsrc the same read at index. */
static void mean_grad(PlMaker *g, PlVal *dself, PlVal *dsrc, bool self) {
  PlVal n = pl_g_zeros_like(g, 0);
  if (self) n = pl_g2(g, &pl_op_add, n, pl_g_num(g, 1));
  n = scatter_of(g, &pl_op_scatter_add, n, pl_g_num(g, 1));
  n = pl_g2(g, &pl_op_maximum, n, pl_g_num(g, 1));
  *dself = pl_g2(g, &pl_op_div, g->dy[0], n);
  *dsrc = gather_again(g, *dself);
}

/* All values that equal the extreme share its gradient evenly; what was only overwritten is none of them. */
static void extreme_grad(PlMaker *g, PlVal *dself, PlVal *dsrc, bool counts) {
  PlVal self = as_float(g, pl_g2(g, &pl_op_eq, g->x[0], g->y[0]));
  if (!counts) self = scatter_of(g, &pl_op_scatter, self, pl_g_num(g, 0));
  PlVal src = as_float(g, pl_g2(g, &pl_op_eq, cut_src(g), gather_again(g, g->y[0])));
  PlVal share = pl_g2(g, &pl_op_div, g->dy[0], scatter_of(g, &pl_op_scatter_add, self, src));
  *dself = pl_g2(g, &pl_op_mul, self, share);
  *dsrc = pl_g2(g, &pl_op_mul, src, gather_again(g, share));
}

static PlStatus scatter_reduce_grad(PlMaker *g) {
  bool self = pl_attr_i(g->attrs, 2) != 0;
  PlVal dself = g->dy[0], dsrc = PL_NONE;
  if (g->in[1]->numel == 0) { /* src, of whatever shape, is not read */
    if (g->want[0]) g->dx[0] = dself;
    if (g->want[2]) g->dx[2] = pl_g_zeros_like(g, 2);
    return g->status;
  }
  switch (pl_attr_i(g->attrs, 1)) {
  case RED_SUM: dsrc = gather_again(g, g->dy[0]); break;
  case RED_PROD: pl_g_scatter_product(g, cut_src(g), &dself, &dsrc); break;
  case RED_MEAN: mean_grad(g, &dself, &dsrc, self); break;
  default: extreme_grad(g, &dself, &dsrc, self); break;
  }
  if (g->want[0]) g->dx[0] = self ? dself : scatter_of(g, &pl_op_scatter, dself, pl_g_num(g, 0));
  if (g->want[2]) g->dx[2] = like_src(g, dsrc);
  return g->status;
}

static PlStatus scatter_reduce_infer(PlInfer *c) {
  if (c->in[0]->dtype == PL_BOOL && pl_attr_i(c->attrs, 1) == RED_MEAN) PL_FAIL(PL_ERR_DTYPE, "scatter_reduce: bool values have no mean");
  return scatter_infer(c);
}

PL_OP(scatter_reduce,
      .doc = "x with all elements of src that index sends to one position reduced there (sum, prod, mean, amax, amin); "
             "include_self: together with x's own.",
      .example = "local index = T.tensor({ 1, 1, 2 }, { dtype = \"i64\" })\n"
                 "print(T.zeros(2):scatter_reduce(1, index, T.tensor { 3, 5, 4 }, \"amax\"))  --> {5., 4.}  -- f32[2] cpu",
      .nin = 3, .nout = 1, .nattr = 4, .args = {"x", "index", "src"},
      .attrs = {A_DIM_REQ("dim"), A_ENUM("reduce", "sum|prod|mean|amax|amin", 0), A_BOOL("include_self", 1), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_CONTIGUOUS | PL_F_SPREAD | PL_F_INPLACE, .infer = scatter_reduce_infer,
      .grad = scatter_reduce_grad, PL_KERNEL(scatter_reduce), );

/* ---- row by row: index_add, index_copy, index_fill ------------------------------------------------------------ */

/* src is x but for dim, where it has one row an index. */
static PlStatus rows_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *index = c->in[1], *src = c->in[2];
  int dim = (int)pl_attr_i(c->attrs, 0);
  PL_TRY(pl_index_check_list(c, 1));
  if (src->dtype != x->dtype)
    PL_FAIL(PL_ERR_DTYPE, "%s: src %s must have the dtype of %s; cast it first", c->op->name, pl_desc_text(src), pl_desc_text(x));
  bool fits = src->ndim == x->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = src->shape[d] == (d == dim ? index->numel : x->shape[d]);
  if (x->ndim == 0) fits = src->numel == 1 && index->numel == 1;
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "%s: src %s must have %s's sizes, but %lld (one an index) in dim %d", c->op->name, pl_desc_text(src),
            pl_desc_text(x), (long long)index->numel, dim + 1);
  return pl_infer_same(c);
}

static PlVal select_again(PlMaker *g) {
  return pl_g_index_select(g, g->dy[0], g->x[1], pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, base_at(g->op)));
}

static PlStatus index_add_grad(PlMaker *g) {
  const PlAttrs *a = g->attrs;
  bool whole = (a->isint >> 1) & 1;
  if (g->want[0]) g->dx[0] = g->dy[0];
  if (g->want[2]) {
    double alpha = whole ? (double)a->v[1].i : a->v[1].f;
    PlVal d = select_again(g);
    if (g->in[2]->ndim != g->in[0]->ndim) d = pl_g_reshape(g, d, g->in[2]->ndim, g->in[2]->shape);
    g->dx[2] = alpha == 1.0 ? d : pl_g2(g, &pl_op_mul, d, pl_g_num(g, alpha));
  }
  return g->status;
}

PL_OP(index_add, .doc = "x with alpha times each row of src (along dim) added at the position that index (1-d) names.",
      .example = "print(T.zeros(2):index_add(1, T.tensor({ 1, 1 }, { dtype = \"i64\" }), T.tensor { 3, 4 }))  --> {7., 0.}  -- f32[2] cpu",
      .nin = 3, .nout = 1, .nattr = 3, .args = {"x", "index", "src"},
      .attrs = {A_DIM_REQ("dim"), {.name = "alpha", .type = PL_A_SCALAR, .has_def = true, .i = 1}, A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_rows, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_INPLACE, .infer = rows_infer, .grad = index_add_grad,
      PL_KERNEL(index_add), );

static PlVal filled(PlMaker *g, PlVal x, double number) {
  PlAttrs a;
  PlVal in[3] = {x, g->x[1], pl_g_num(g, number)};
  pl_attrs_init(&pl_op_index_fill, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 1));
  return pl_g_op(g, &pl_op_index_fill, 3, in, &a, NULL);
}
static PlVal fill_zero(PlMaker *g) { return filled(g, g->dy[0], 0); }

/* A row that a later one replaced gets its gradient, too, as in PyTorch; scatter and index_put are exact there. */
static PlStatus index_copy_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = fill_zero(g);
  if (g->want[2]) {
    PlVal d = select_again(g);
    g->dx[2] = g->in[2]->ndim == g->in[0]->ndim ? d : pl_g_reshape(g, d, g->in[2]->ndim, g->in[2]->shape);
  }
  return g->status;
}

PL_OP(index_copy, .autocast = PL_CAST_WIDEST,
      .doc = "x with each row of src (along dim) written at the position that index (1-d) names. Of rows written to one "
             "position the last stays, but all of them get its gradient.",
      .example = "print(T.zeros(3):index_copy(1, T.tensor({ 3, 1 }, { dtype = \"i64\" }), T.tensor { 5, 6 }))\n"
                 "--> {6., 0., 5.}  -- f32[3] cpu",
      .nin = 3, .nout = 1, .nattr = 2, .args = {"x", "index", "src"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_rows, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_INPLACE, .infer = rows_infer, .grad = index_copy_grad,
      PL_KERNEL(index_copy), );

static PlStatus index_fill_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *v = c->in[2];
  PL_TRY(pl_index_check_list(c, 1));
  if (v->ndim != 0) PL_FAIL(PL_ERR_SHAPE, "index_fill: value must be a number or 0-d, got %s", pl_desc_text(v));
  if (pl_is_float((PlDtype)v->dtype) && !pl_is_float((PlDtype)x->dtype))
    PL_FAIL(PL_ERR_DTYPE, "index_fill: value %s does not fit into %s; cast one of them", pl_desc_text(v), pl_desc_text(x));
  return pl_infer_same(c);
}

static PlStatus index_fill_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = fill_zero(g);
  if (g->want[2]) {
    /* each element that was written counts once, however often the index names it */
    PlVal others = pl_g2(g, &pl_op_eq, filled(g, pl_g_zeros_like(g, 0), 1), pl_g_num(g, 0));
    PlVal d = pl_g_sum_to(g, pl_g3(g, &pl_op_masked_fill, g->dy[0], others, pl_g_num(g, 0)), 2);
    g->dx[2] = g->in[2]->dtype == g->in[0]->dtype ? d : pl_g_cast(g, d, (PlDtype)g->in[2]->dtype);
  }
  return g->status;
}

PL_OP(index_fill, .doc = "x with value (a number or 0-d tensor) at the positions of dim that index (1-d) names.",
      .example = "print(T.zeros(3):index_fill(1, T.tensor({ 2 }, { dtype = \"i64\" }), 9))  --> {0., 9., 0.}  -- f32[3] cpu", .nin = 3,
      .nout = 1, .nattr = 2, .args = {"x", "index", "value"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_rows, .flags = PL_F_CONTIGUOUS | PL_F_SCALAR | PL_F_INPLACE | PL_F_STORES, .infer = index_fill_infer,
      .grad = index_fill_grad, PL_KERNEL(index_fill), );
