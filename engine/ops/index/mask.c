/* SPDX-License-Identifier: MIT
 * Bool masks: masked_fill, masked_select, masked_scatter, nonzero. */
#include "engine/ops/index/index.h"
#include "engine/ops/names.h"

/* x and mask (inputs 0 and 1) broadcast; input 1 must be bool. Output 0 gets that shape. */
static PlStatus masked(PlInfer *c) {
  if (c->in[1]->dtype != PL_BOOL)
    PL_FAIL(PL_ERR_DTYPE, "%s: mask must be bool, got %s; compare first, such as x:gt(0)", c->op->name, pl_desc_text(c->in[1]));
  PlInfer two = *c;
  two.nin = 2;
  PL_TRY(pl_infer_broadcast(&two));
  c->out[0].dtype = c->in[0]->dtype;
  return PL_OK;
}

static void broadcast_shape(const PlMaker *g, int *n, int64_t *shape) {
  const PlArray *a = g->in[0], *b = g->in[1];
  *n = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int d = 0; d < *n; d++) {
    int ka = d - (*n - a->ndim), kb = d - (*n - b->ndim);
    int64_t sa = ka < 0 ? 1 : a->shape[ka], sb = kb < 0 ? 1 : b->shape[kb];
    shape[d] = sa == 1 ? sb : sa;
  }
}

/* ---- masked_fill ----------------------------------------------------------------------------------------- */

static PlStatus masked_fill_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *v = c->in[2];
  if (v->ndim != 0) PL_FAIL(PL_ERR_SHAPE, "masked_fill: value must be a number or 0-d, got %s; see where for more", pl_desc_text(v));
  if (pl_is_float((PlDtype)v->dtype) && !pl_is_float((PlDtype)x->dtype))
    PL_FAIL(PL_ERR_DTYPE, "masked_fill: value %s does not fit into %s; cast one of them", pl_desc_text(v), pl_desc_text(x));
  return masked(c);
}

static PlStatus masked_fill_grad(PlMaker *g) {
  PlVal zero = pl_g_num(g, 0);
  if (g->want[0]) g->dx[0] = pl_g_sum_to(g, pl_g3(g, &pl_op_masked_fill, g->dy[0], g->x[1], zero), 0);
  if (g->want[2]) {
    PlVal keep = pl_g1(g, &pl_op_logical_not, g->x[1]);
    PlVal d = pl_g_sum_to(g, pl_g3(g, &pl_op_masked_fill, g->dy[0], keep, zero), 2);
    g->dx[2] = g->in[2]->dtype == g->in[0]->dtype ? d : pl_g_cast(g, d, (PlDtype)g->in[2]->dtype);
  }
  return g->status;
}

PL_OP(masked_fill, .doc = "x with value (a number or 0-d tensor) where the bool mask, broadcast, is true.",
      .example = "local x = T.tensor { 1, -2, 3 }\n"
                 "print(x:masked_fill(x:lt(0), 0))  --> {1., 0., 3.}  -- f32[3] cpu",
      .nin = 3, .nout = 1, .args = {"x", "mask", "value"}, .cls = PL_POINTWISE, .batch = pl_batch_masked_fill,
      .flags = PL_F_LINEAR | PL_F_POLY | PL_F_SCALAR | PL_F_INPLACE | PL_F_STORES, .conditions = 2, .infer = masked_fill_infer,
      .grad = masked_fill_grad, PL_KERNEL(masked_fill), );

/* ---- masked_select ------------------------------------------------------------------------------------------ */

static PlStatus masked_select_infer(PlInfer *c) {
  const PlArray *mask = c->in[1];
  int64_t count, numel = 1;
  PL_TRY(masked(c));
  PL_TRY(pl_sizes_check(c, c->out[0].ndim, c->out[0].shape));
  PL_TRY(plk_cpu_count_nonzero(mask, &count));
  for (int d = 0; d < c->out[0].ndim; d++) numel *= c->out[0].shape[d];
  if (mask->numel) count *= numel / mask->numel;
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, 1, &count);
  return PL_OK;
}

static PlStatus masked_select_grad(PlMaker *g) {
  int64_t shape[PL_MAX_DIM];
  int n;
  PlAttrs a;
  PlVal in[2] = {g->dy[0], g->x[1]};
  if (!g->want[0]) return g->status;
  broadcast_shape(g, &n, shape);
  pl_attrs_init(&pl_op_masked_select_bwd, &a);
  pl_g_attrs_list(g, &a, 0, n, shape);
  PlVal d = pl_g_op(g, &pl_op_masked_select_bwd, 2, in, &a, NULL);
  bool same = n == g->in[0]->ndim;
  for (int k = 0; same && k < n; k++) same = shape[k] == g->in[0]->shape[k];
  g->dx[0] = same ? d : pl_g_sum_sizes(g, d, 0);
  return g->status;
}

PL_OP(masked_select, .doc = "The elements of x where the bool mask is true, as a 1-d tensor; both broadcast.",
      .example = "local x = T.tensor { 1, -2, 3 }\n"
                 "print(x:masked_select(x:gt(0)))  --> {1., 3.}  -- f32[2] cpu",
      .nin = 2, .nout = 1, .args = {"x", "mask"}, .cls = PL_INDEXING, .flags = PL_F_LINEAR | PL_F_IMPURE, .reads_values = 2,
      .infer = masked_select_infer, .grad = masked_select_grad, PL_KERNEL(masked_select), );

/* How many are true is not known here: the kernel looks. */
static PlStatus masked_bwd_infer(PlInfer *c) {
  const PlArray *mask = c->in[1];
  PL_TRY(pl_index_infer_shape(c, 0));
  PL_TRY(pl_check_dtype(c, 1, PL_BOOL));
  const bool select = c->op == &pl_op_masked_select_bwd;
  const int n = select ? c->out[0].ndim : c->in[0]->ndim;
  const int64_t *shape = select ? c->out[0].shape : c->in[0]->shape;
  if (select) PL_TRY(pl_check_ndim(c, 0, 1, 1));
  bool fits = mask->ndim <= n;
  for (int d = 1; fits && d <= mask->ndim; d++) fits = mask->shape[mask->ndim - d] == 1 || mask->shape[mask->ndim - d] == shape[n - d];
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "%s: mask %s does not broadcast to what it selects from", c->op->name, pl_desc_text(mask));
  return PL_OK;
}

static PlStatus masked_select_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g2(g, &pl_op_masked_select, g->dy[0], g->x[1]);
  return g->status;
}

PL_OP(masked_select_bwd, .doc = "Zeros of the shape with dy's elements where the mask is true.", .nin = 2, .nout = 1, .nattr = 1,
      .args = {"dy", "mask"}, .attrs = {A_SHAPE_REQ("shape")}, .cls = PL_INDEXING, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS,
      .infer = masked_bwd_infer, .grad = masked_select_bwd_grad, PL_KERNEL(masked_select_bwd), );

/* ---- masked_scatter ------------------------------------------------------------------------------------------ */

static PlStatus masked_scatter_infer(PlInfer *c) {
  if (c->in[2]->dtype != c->in[0]->dtype)
    PL_FAIL(PL_ERR_DTYPE, "masked_scatter: src %s must have the dtype of %s", pl_desc_text(c->in[2]), pl_desc_text(c->in[0]));
  return masked(c);
}

static PlStatus masked_scatter_grad(PlMaker *g) {
  PlAttrs a;
  if (g->want[0]) g->dx[0] = pl_g_sum_to(g, pl_g3(g, &pl_op_masked_fill, g->dy[0], g->x[1], pl_g_num(g, 0)), 0);
  if (g->want[2]) {
    PlVal in[2] = {g->dy[0], g->x[1]};
    pl_attrs_init(&pl_op_masked_scatter_bwd, &a);
    pl_g_attrs_list(g, &a, 0, g->in[2]->ndim, g->in[2]->shape);
    g->dx[2] = pl_g_op(g, &pl_op_masked_scatter_bwd, 2, in, &a, NULL);
  }
  return g->status;
}

PL_OP(masked_scatter,
      .doc = "x with consecutive elements of src where the bool mask, broadcast, is true. src needs at least as many "
             "elements as there are trues.",
      .example = "print(T.zeros(3):masked_scatter(T.tensor({ true, false, true }), T.tensor { 5, 6 }))  --> {5., 0., 6.}  -- f32[3] cpu",
      .nin = 3, .nout = 1, .args = {"x", "mask", "src"}, .cls = PL_INDEXING, .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_INPLACE,
      .infer = masked_scatter_infer, .grad = masked_scatter_grad, PL_KERNEL(masked_scatter), );

static PlStatus masked_scatter_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g3(g, &pl_op_masked_scatter, pl_g_zeros_like(g, 0), g->x[1], g->dy[0]);
  return g->status;
}

PL_OP(masked_scatter_bwd, .doc = "The elements of dy where the mask is true, in front of zeros of the shape.", .nin = 2, .nout = 1,
      .nattr = 1, .args = {"dy", "mask"}, .attrs = {A_SHAPE_REQ("shape")}, .cls = PL_INDEXING,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = masked_bwd_infer, .grad = masked_scatter_bwd_grad,
      PL_KERNEL(masked_scatter_bwd), );

/* ---- nonzero --------------------------------------------------------------------------------------------------- */

static PlStatus nonzero_infer(PlInfer *c) {
  int64_t sizes[2] = {0, c->in[0]->ndim};
  PL_TRY(plk_cpu_count_nonzero(c->in[0], &sizes[0]));
  pl_desc_set(&c->out[0], PL_I64, 2, sizes);
  return PL_OK;
}

PL_OP(nonzero, .doc = "The positions of all elements that are not zero, one a row: i64 [n,ndim], in row-major order.",
      .example = "print(T.tensor { 0, 5, 0, 7 }:nonzero())\n"
                 "--> {{2},\n"
                 "-->  {4}}  -- i64[2,1] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_BASE}, .cls = PL_INDEXING, .flags = PL_F_NOGRAD_OK | PL_F_IMPURE,
      .reads_values = 1, .infer = nonzero_infer, PL_KERNEL(nonzero), );
