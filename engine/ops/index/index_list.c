/* SPDX-License-Identifier: MIT
 * Lists of index tensors, NumPy's advanced indexing: index reads, index_put writes. The list is x (and the
 * value), then one integer tensor or bool mask per indexed place; attribute `dims` says at which dim of x each
 * begins (none: one after the other from the first). Bindings build t[{…}] from views and these. */
#include <string.h>

#include "engine/ops/index/index.h"
#include "engine/ops/names.h"

static PlStatus plan_of(const PlInfer *c, int first, int k, int ndim, const int64_t *shape, PlkIndexPlan *plan) {
  bool given = pl_attr_has(c->attrs, k);
  if (c->nin <= first) PL_FAIL(PL_ERR_ARG, "%s: no index tensor in the list", c->op->name);
  return plk_cpu_index_plan(c->op->name, ndim, shape, c->nin - first, c->in + first, given ? pl_attr_n(c->attrs, k) : 0,
                            given ? pl_attr_list(c->attrs, k) : NULL, plan);
}

static void copy_dims(PlMaker *g, PlAttrs *a, int to, int from) {
  if (pl_attr_has(g->attrs, from)) pl_g_attrs_list(g, a, to, pl_attr_n(g->attrs, from), pl_attr_list(g->attrs, from));
}

/* ---- index ---------------------------------------------------------------------------------------------- */

static PlStatus index_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlkIndexPlan plan;
  PL_TRY(plan_of(c, 1, 0, x->ndim, x->shape, &plan));
  PL_TRY(pl_sizes_check(c, plan.ndim, plan.shape));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, plan.ndim, plan.shape);
  return PL_OK;
}

static PlStatus index_grad(PlMaker *g) {
  PlVal in[PL_MAX_INDICES + 1];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pl_attrs_init(&pl_op_index_bwd, &a);
  pl_g_attrs_list(g, &a, 0, g->in[0]->ndim, g->in[0]->shape);
  copy_dims(g, &a, 1, 0);
  pl_attrs_int(&a, 2, pl_attr_i(g->attrs, 1));
  in[0] = g->dy[0];
  for (int i = 1; i < g->nin; i++) in[i] = g->x[i];
  g->dx[0] = pl_g_op(g, &pl_op_index_bwd, g->nin, in, &a, NULL);
  return g->status;
}

/* Positions have a shape, whatever they say; of a mask the shape depends on how often it is true. */
static bool list_by_shape(const PlArray *in, const PlAttrs *attrs) {
  (void)attrs;
  return in->dtype != PL_BOOL;
}

PL_OP(index,
      .doc = "x at a list of index tensors: integer tensors broadcast together, a bool mask means the positions "
             "of its trues. Their dims come where the indexed dims were if those are adjacent, else first; a 0-d integer "
             "tensor picks as a number does.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }[T.tensor({ 2, 1 }, { dtype = \"i64\" })])\n"
                 "--> {{3., 4.},\n"
                 "-->  {1., 2.}}  -- f32[2,2] cpu",
      .nin = PL_VARIADIC, .nout = 1, .nattr = 2, .args = {"x and indices"}, .attrs = {A_DIMS_OPT("dims"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_index, .flags = PL_F_LINEAR | PL_F_NOMETHOD | PL_F_IMPURE, .reads_values = 0xFE, .by_shape = list_by_shape,
      .infer = index_infer, .grad = index_grad, PL_KERNEL(index), );

/* Of a mask only the values tell how many positions there are: that alone is left to the kernels. */
static PlStatus index_bwd_infer(PlInfer *c) {
  PlkIndexPlan plan;
  bool given = pl_attr_has(c->attrs, 1), masks = false;
  PL_TRY(pl_index_infer_shape(c, 0));
  for (int i = 1; i < c->nin; i++) masks |= c->in[i]->dtype == PL_BOOL;
  if (masks) {
    PL_TRY(plk_cpu_index_plan_by_shape(c->op->name, c->out[0].ndim, c->out[0].shape, c->nin - 1, c->in + 1,
                                       given ? pl_attr_n(c->attrs, 1) : 0, given ? pl_attr_list(c->attrs, 1) : NULL, &plan));
    if (c->in[0]->ndim == plan.ndim) return PL_OK;
    PL_FAIL(PL_ERR_SHAPE, "index_bwd: dy %s does not have the %d dims of what the indices select", pl_desc_text(c->in[0]), plan.ndim);
  }
  PL_TRY(plan_of(c, 1, 1, c->out[0].ndim, c->out[0].shape, &plan));
  return pl_check_shape(c, 0, plan.ndim, plan.shape);
}

static PlStatus index_bwd_grad(PlMaker *g) {
  PlVal in[PL_MAX_INDICES + 1];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pl_attrs_init(&pl_op_index, &a);
  copy_dims(g, &a, 0, 1);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 2));
  in[0] = g->dy[0];
  for (int i = 1; i < g->nin; i++) in[i] = g->x[i];
  g->dx[0] = pl_g_op(g, &pl_op_index, g->nin, in, &a, NULL);
  return g->status;
}

PL_OP(index_bwd, .doc = "Adds dy into zeros of the shape where index read.", .nin = PL_VARIADIC, .nout = 1, .nattr = 3,
      .args = {"dy and indices"}, .attrs = {A_SHAPE_REQ("shape"), A_INTS_OPT("dims"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_index_bwd, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = index_bwd_infer, .grad = index_bwd_grad,
      PL_KERNEL(index_bwd), );

/* ---- index_put -------------------------------------------------------------------------------------------- */

static PlStatus index_put_infer(PlInfer *c) {
  PlkIndexPlan plan;
  if (c->nin < 3) PL_FAIL(PL_ERR_ARG, "index_put: the list is x, the value, then the index tensors");
  const PlArray *x = c->in[0], *v = c->in[1];
  PL_TRY(plan_of(c, 2, 0, x->ndim, x->shape, &plan));
  bool fits = true;
  for (int d = 0; d < v->ndim && fits; d++) {
    int64_t n = v->shape[v->ndim - 1 - d];
    fits = n == 1 || (d < plan.ndim && n == plan.shape[plan.ndim - 1 - d]);
  }
  PlArray place = {.shape = plan.shape, .ndim = (uint8_t)plan.ndim, .dtype = x->dtype};
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "index_put: value %s does not broadcast to the indexed %s", pl_desc_text(v), pl_desc_text(&place));
  if (pl_is_float((PlDtype)v->dtype) && !pl_is_float((PlDtype)x->dtype))
    PL_FAIL(PL_ERR_DTYPE, "index_put: value %s does not fit into %s; cast it first", pl_desc_text(v), pl_desc_text(x));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  return PL_OK;
}

/* index(v, indices…) with the attributes of the index_put being differentiated. */
static PlVal read_again(PlMaker *g, PlVal v) {
  PlVal in[PL_MAX_INDICES + 1];
  PlAttrs a;
  pl_attrs_init(&pl_op_index, &a);
  copy_dims(g, &a, 0, 0);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 2));
  in[0] = v;
  for (int i = 2; i < g->nin; i++) in[i - 1] = g->x[i];
  return pl_g_op(g, &pl_op_index, g->nin - 1, in, &a, NULL);
}

/* The positions that integer index tensors name together: their broadcast shape, in place of the dims they take, behind
 * which are `tail` others. false: fewer than two positions, or a mask among the index tensors, whose trues are distinct
 * (a mask beside integers that repeat is left alone: how many positions there are is not known here). */
static bool positions(const PlMaker *g, int *nb, int64_t *shape, int *tail) {
  int64_t count = 1;
  int n = g->nin - 2;
  uint8_t taken[PL_MAX_DIM] = {PLK_FREE};
  *nb = 0;
  for (int k = 0; k < n; k++) {
    const PlArray *a = g->in[k + 2];
    int dim = pl_attr_has(g->attrs, 0) ? (int)pl_attr_list(g->attrs, 0)[k] : k;
    if (a->dtype == PL_BOOL) return false;
    taken[dim] = a->ndim == 0 ? PLK_ONE : PLK_POSITIONS;
    for (; *nb < a->ndim; ++*nb) {
      memmove(shape + 1, shape, (size_t)*nb * sizeof *shape);
      shape[0] = 1;
    }
    for (int d = 0; d < a->ndim; d++)
      if (a->shape[d] != 1) shape[*nb - a->ndim + d] = a->shape[d];
  }
  for (int d = 0; d < *nb; d++) count *= shape[d];
  *tail = g->in[0]->ndim - n - plk_index_where(g->in[0]->ndim, taken);
  return count > 1;
}

/* Of values written to one place the last stays: zero for the others. Each position writes its number into a table that
 * has only the indexed dims, and those that find it there again have won. */
static PlVal winners(PlMaker *g, PlVal d) {
  int64_t shape[PL_MAX_DIM], table[PL_MAX_DIM], count = 1;
  int nb, tail;
  if (!positions(g, &nb, shape, &tail) || nb + tail > PL_MAX_DIM) return d;
  for (int k = 0; k < nb; k++) count *= shape[k];
  for (int k = 0; k < tail; k++) shape[nb + k] = 1;
  for (int k = 0; k < g->in[0]->ndim; k++) table[k] = 1;
  for (int k = 0; k < g->nin - 2; k++) {
    int dim = pl_attr_has(g->attrs, 0) ? (int)pl_attr_list(g->attrs, 0)[k] : k;
    table[dim] = g->in[0]->shape[dim];
  }
  PlAttrs a;
  pl_attrs_init(&pl_op_linear_fill, &a);
  pl_attrs_int(&a, 0, count);
  pl_attrs_int(&a, 1, 0);
  pl_attrs_int(&a, 2, 1);
  pl_attrs_int(&a, 3, PL_I64);
  PlVal in[PL_MAX_INDICES + 2];
  PlVal number = pl_g_reshape(g, pl_g_op(g, &pl_op_linear_fill, 0, NULL, &a, NULL), nb + tail, shape);
  pl_attrs_init(&pl_op_full, &a);
  pl_g_attrs_list(g, &a, 0, g->in[0]->ndim, table);
  pl_attrs_int(&a, 1, -1);
  pl_attrs_int(&a, 2, PL_I64);
  in[0] = pl_g_op(g, &pl_op_full, 0, NULL, &a, NULL);
  in[1] = number;
  for (int i = 2; i < g->nin; i++) in[i] = g->x[i];
  PlVal last = read_again(g, pl_g_op(g, &pl_op_index_put, g->nin, in, g->attrs, NULL));
  return pl_g3(g, &pl_op_masked_fill, d, pl_g2(g, &pl_op_ne, last, number), pl_g_num(g, 0));
}

/* dx is dy, but zero where values replaced it; dvalue is dy there, summed over what was broadcast. */
static PlStatus index_put_grad(PlMaker *g) {
  bool add = pl_attr_i(g->attrs, 1) != 0;
  if (g->want[0] && add) g->dx[0] = g->dy[0];
  if (g->want[0] && !add) {
    PlVal in[PL_MAX_INDICES + 2];
    in[0] = g->dy[0];
    in[1] = pl_g_num(g, 0);
    for (int i = 2; i < g->nin; i++) in[i] = g->x[i];
    g->dx[0] = pl_g_op(g, &pl_op_index_put, g->nin, in, g->attrs, NULL);
  }
  if (!g->want[1]) return g->status;
  const PlArray *v = g->in[1];
  PlAttrs a;
  int lead = 0;
  while (lead < v->ndim && v->shape[lead] == 1) lead++; /* leading ones may exceed what is indexed */
  PlVal d = read_again(g, g->dy[0]);
  PlVal in[2] = {add ? d : winners(g, d), PL_NONE};
  pl_attrs_init(&pl_op_sum_to, &a);
  pl_g_attrs_list(g, &a, 0, v->ndim - lead, v->shape + lead);
  d = pl_g_op(g, &pl_op_sum_to, 2, in, &a, NULL);
  if (lead) d = pl_g_reshape(g, d, v->ndim, v->shape);
  if (v->dtype != g->in[0]->dtype) d = pl_g_cast(g, d, (PlDtype)v->dtype);
  g->dx[1] = d;
  return g->status;
}

PL_OP(index_put,
      .doc = "x with value (broadcast) written, or with accumulate added, at a list of index tensors. The list is x, "
             "value, indices; repeated positions take their values in order.",
      .example = "local x = T.zeros(3)\n"
                 "print(T.index_put({ x, T.tensor { 5, 6 }, T.tensor({ 1, 3 }, { dtype = \"i64\" }) }))  --> {5., 0., 6.}  -- f32[3] cpu\n"
                 "x[T.tensor({ 2 }, { dtype = \"i64\" })] = 7 -- the usual way\n"
                 "print(x)  --> {0., 7., 0.}  -- f32[3] cpu",
      .nin = PL_VARIADIC, .nout = 1, .nattr = 3, .args = {"x, value and indices"},
      .attrs = {A_DIMS_OPT("dims"), A_BOOL("accumulate", 0), A_BASE}, .cls = PL_INDEXING,
      .flags = PL_F_LINEAR | PL_F_NOMETHOD | PL_F_INPLACE | PL_F_IMPURE, .reads_values = 0xFC, .by_shape = list_by_shape,
      .infer = index_put_infer, .grad = index_put_grad, PL_KERNEL(index_put), );
