/* SPDX-License-Identifier: MIT
 * Views that keep all elements: view, reshape, transpose, permute, squeeze, expand, … Their infer rules name
 * strides and offset; nothing is computed. Where a reshape has no strides the copy kernel runs. */
#include "engine/ops/shape/view.h"

#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/ops/names.h"
#include "engine/tensor/layout.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/join.h"

/* dx = dy in the shape of x: every op here that only renames positions. */
static PlStatus reshape_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_reshape_like(g, g->dy[0], 0);
  return g->status;
}
/* dx = dy summed over what was repeated. */
static PlStatus expand_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_sum_to(g, g->dy[0], 0);
  return g->status;
}
static PlStatus same_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = g->dy[0];
  return g->status;
}

/* ---- view, reshape, flatten, unflatten ------------------------------------------------------------------ */

/* Out becomes `sizes` (n of them, resolved): a view if strides exist, else (may_copy) a fresh array. */
static PlStatus reshaped(PlInfer *c, int n, const int64_t *sizes, bool may_copy) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  pl_desc_set(d, (PlDtype)x->dtype, n, sizes);
  d->offset = 0;
  d->is_view = pl_strides_reshaped(x->ndim, x->shape, x->strides, n, sizes, d->strides);
  if (d->is_view || may_copy) return PL_OK;
  PlArray want = {.shape = d->shape, .ndim = d->ndim, .dtype = d->dtype};
  PL_FAIL(PL_ERR_SHAPE, "%s: %s is laid out so that %s needs a copy; use reshape, or contiguous() before", c->op->name, pl_desc_text(x),
          pl_desc_text(&want));
}

static PlStatus view_infer(PlInfer *c) {
  int64_t sizes[PL_MAX_DIM];
  int n = pl_attr_n(c->attrs, 0);
  PL_TRY(pl_sizes_resolve(c, n, pl_attr_list(c->attrs, 0), sizes));
  return reshaped(c, n, sizes, c->op->kcode == 0);
}

PL_OP(view,
      .doc = "The same elements under another shape, sharing memory; one size may be -1. Errors if the layout "
             "needs a copy (use reshape).",
      .example = "print(T.arange(4):view(2, 2))\n"
                 "--> {{1, 2},\n"
                 "-->  {3, 4}}  -- i64[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SHAPE_REQ("shape")}, .cls = PL_VIEW, .batch = pl_batch_shape,
      .flags = PL_F_POLY | PL_F_BY_MEMORY, .kcode = 1, .infer = view_infer, .grad = reshape_grad, );

PL_OP(reshape,
      .doc = "The same elements in row-major order under another shape; one size may be -1. Shares memory where "
             "the layout allows, else copies.",
      .example = "print(T.arange(6):reshape(2, -1))\n"
                 "--> {{1, 2, 3},\n"
                 "-->  {4, 5, 6}}  -- i64[2,3] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SHAPE_REQ("shape")}, .cls = PL_VIEW, .batch = pl_batch_shape,
      .flags = PL_F_LINEAR | PL_F_POLY, .infer = view_infer, .grad = reshape_grad, PL_COPY, );

static PlStatus flatten_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t sizes[PL_MAX_DIM], run = 1;
  int a = (int)pl_attr_i(c->attrs, 0), b = (int)pl_attr_i(c->attrs, 1), n = 0;
  if (a > b) PL_FAIL(PL_ERR_ARG, "flatten: start_dim %d comes after end_dim %d", a + 1, b + 1);
  for (int d = 0; d < x->ndim; d++) {
    if (d < a || d > b) {
      sizes[n++] = x->shape[d];
      continue;
    }
    run *= x->shape[d];
    if (d == b) sizes[n++] = run;
  }
  if (x->ndim == 0) sizes[n++] = 1;
  return reshaped(c, n, sizes, true);
}

PL_OP(flatten, .doc = "Merges dims start_dim … end_dim (default: all) into one. Shares memory where the layout allows.",
      .example = "print(T.ones(2, 3, 4):flatten(2):size(2))  --> 12", .nin = 1, .nout = 1, .nattr = 2, .args = {"x"},
      .attrs = {A_DIM("start_dim", 0), A_DIM("end_dim", -1)}, .cls = PL_VIEW, .batch = pl_batch_shape, .flags = PL_F_LINEAR | PL_F_POLY,
      .infer = flatten_infer, .grad = reshape_grad, PL_COPY, );

static PlStatus unflatten_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  int64_t sizes[2 * PL_MAX_DIM];
  int dim = (int)pl_attr_i(c->attrs, 0), m = pl_attr_n(c->attrs, 1), n = 0;
  if (m == 0) PL_FAIL(PL_ERR_ARG, "unflatten: sizes are empty");
  if (x->ndim == 0) PL_FAIL(PL_ERR_SHAPE, "unflatten: %s has no dim to split", pl_desc_text(x));
  if (x->ndim - 1 + m > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "unflatten: %d dims; at most %d are possible", x->ndim - 1 + m, PL_MAX_DIM);
  for (int d = 0; d < x->ndim; d++) {
    if (d != dim) sizes[n++] = x->shape[d];
    else {
      PL_TRY(pl_sizes_resolve_to(c, x->shape[d], m, pl_attr_list(c->attrs, 1), sizes + n));
      n += m;
    }
  }
  return reshaped(c, n, sizes, true);
}

PL_OP(unflatten, .doc = "Splits dim into the given sizes, which multiply to its size; one may be -1.",
      .example = "print(T.arange(6):unflatten(1, { 2, 3 }))\n"
                 "--> {{1, 2, 3},\n"
                 "-->  {4, 5, 6}}  -- i64[2,3] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_DIM_REQ("dim"), A_SHAPE_REQ("sizes")}, .cls = PL_VIEW,
      .batch = pl_batch_shape, .flags = PL_F_LINEAR | PL_F_POLY, .infer = unflatten_infer, .grad = reshape_grad, PL_COPY, );

/* Reads the sizes in a 1-d i64 shape tensor (input 1). */
static PlStatus shape_tensor(const PlInfer *c, int i, int *n, int64_t *sizes) {
  const PlArray *s = c->in[i];
  PL_TRY(pl_check_dtype(c, i, PL_I64));
  PL_TRY(pl_check_ndim(c, i, 1, 1));
  if (s->numel > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: shape of %lld dims", c->op->name, (long long)s->numel);
  *n = (int)s->numel;
  for (int d = 0; d < *n; d++) sizes[d] = ((const int64_t *)s->data)[d * s->strides[0]];
  return PL_OK;
}

static PlStatus reshape_to_infer(PlInfer *c) {
  int64_t sizes[PL_MAX_DIM], out[PL_MAX_DIM];
  int n;
  PL_TRY(shape_tensor(c, 1, &n, sizes));
  PL_TRY(pl_sizes_resolve(c, n, sizes, out));
  return reshaped(c, n, out, true);
}

PL_OP(reshape_to, .doc = "reshape with the sizes in an i64 tensor (backward graphs of any shape).", .nin = 2, .nout = 1,
      .args = {"x", "shape"}, .cls = PL_VIEW, .batch = pl_batch_shape, .flags = PL_F_LINEAR | PL_F_POLY | PL_F_INTERNAL, .reads_values = 2,
      .sizes = 2, .sized = &pl_op_reshape, .infer = reshape_to_infer, .grad = reshape_grad, PL_COPY, );

/* ---- transpose, permute, movedim ----------------------------------------------------------------------------- */

static void permute_desc(PlInfer *c, const int *order) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  pl_view_same(c, d);
  for (int k = 0; k < x->ndim; k++) {
    d->shape[k] = x->shape[order[k]];
    d->strides[k] = x->strides[order[k]];
  }
}

static PlStatus transpose_infer(PlInfer *c) {
  int order[PL_MAX_DIM], n = c->in[0]->ndim;
  for (int k = 0; k < n; k++) order[k] = k;
  if (n) {
    int a = (int)pl_attr_i(c->attrs, 0), b = (int)pl_attr_i(c->attrs, 1);
    order[a] = b;
    order[b] = a;
  }
  permute_desc(c, order);
  return PL_OK;
}

static PlStatus transpose_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_transpose, 1, &g->dy[0], g->attrs, NULL);
  return g->status;
}

PL_OP(transpose, .doc = "Swaps two dims; shares memory.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:transpose(1, 2))\n"
                 "--> {{1., 3.},\n"
                 "-->  {2., 4.}}  -- f32[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 2, .args = {"x"}, .attrs = {A_DIM_REQ("dim0"), A_DIM_REQ("dim1")}, .cls = PL_VIEW,
      .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_POLY, .infer = transpose_infer, .grad = transpose_grad, );

static PlStatus t_infer(PlInfer *c) {
  int order[2] = {1, 0};
  PL_TRY(pl_check_ndim(c, 0, 0, 2));
  if (c->in[0]->ndim == 2) permute_desc(c, order);
  else pl_view_same(c, &c->out[0]);
  return PL_OK;
}

static PlStatus t_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g1(g, &pl_op_t, g->dy[0]);
  return g->status;
}

PL_OP(t, .doc = "The transpose of a matrix; shares memory. 0-d and 1-d tensors stay as they are.",
      .example = "print(T.tensor { { 1, 2, 3 } }:t())\n"
                 "--> {{1.},\n"
                 "-->  {2.},\n"
                 "-->  {3.}}  -- f32[3,1] cpu",
      .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_VIEW, .batch = pl_batch_transpose2, .flags = PL_F_LINEAR | PL_F_POLY, .infer = t_infer,
      .grad = t_grad, );

static PlStatus permute_infer(PlInfer *c) {
  int n = pl_attr_n(c->attrs, 0), order[PL_MAX_DIM];
  if (n != c->in[0]->ndim) PL_FAIL(PL_ERR_ARG, "permute: %d dims given for %s; name each dim once", n, pl_desc_text(c->in[0]));
  for (int k = 0; k < n; k++) order[k] = (int)pl_attr_list(c->attrs, 0)[k];
  permute_desc(c, order);
  return PL_OK;
}

static PlStatus permute_grad(PlMaker *g) {
  int64_t inverse[PL_MAX_DIM] = {0};
  int n = g->in[0]->ndim;
  for (int k = 0; k < n; k++) inverse[pl_attr_list(g->attrs, 0)[k]] = k;
  if (g->want[0]) g->dx[0] = pl_g_permute(g, g->dy[0], n, inverse);
  return g->status;
}

PL_OP(permute, .doc = "Reorders the dims: dim k of the result is dims[k] of x; shares memory.",
      .example = "print(table.concat(T.ones(2, 3, 4):permute(3, 1, 2):shape(), \" \"))  --> 4 2 3", .nin = 1, .nout = 1, .nattr = 1,
      .args = {"x"}, .attrs = {A_DIMS_REQ("dims")}, .cls = PL_VIEW, .batch = pl_batch_permute, .flags = PL_F_LINEAR | PL_F_POLY,
      .infer = permute_infer, .grad = permute_grad, );

/* order[destination[k]] = source[k]; the other dims fill the gaps in order. */
static void movedim_order(const PlAttrs *a, int n, int *order) {
  bool taken[PL_MAX_DIM] = {false};
  for (int k = 0; k < n; k++) order[k] = -1;
  for (int k = 0; k < pl_attr_n(a, 0); k++) {
    order[pl_attr_list(a, 1)[k]] = (int)pl_attr_list(a, 0)[k];
    taken[pl_attr_list(a, 0)[k]] = true;
  }
  for (int k = 0, next = 0; k < n; k++) {
    if (order[k] >= 0) continue;
    while (taken[next]) next++;
    order[k] = next++;
  }
}

static PlStatus movedim_infer(PlInfer *c) {
  int order[PL_MAX_DIM], n = pl_attr_n(c->attrs, 0), m = pl_attr_n(c->attrs, 1);
  if (n != m) PL_FAIL(PL_ERR_ARG, "movedim: %d source dims but %d destination dims", n, m);
  if (c->in[0]->ndim == 0) {
    pl_view_same(c, &c->out[0]);
    return PL_OK;
  }
  movedim_order(c->attrs, c->in[0]->ndim, order);
  permute_desc(c, order);
  return PL_OK;
}

static PlStatus movedim_grad(PlMaker *g) {
  int order[PL_MAX_DIM], n = g->in[0]->ndim;
  int64_t inverse[PL_MAX_DIM];
  if (!g->want[0]) return g->status;
  g->dx[0] = g->dy[0];
  if (n == 0) return g->status;
  movedim_order(g->attrs, n, order);
  for (int k = 0; k < n; k++) inverse[order[k]] = k;
  g->dx[0] = pl_g_permute(g, g->dy[0], n, inverse);
  return g->status;
}

PL_OP(movedim,
      .doc = "Moves dims source (a dim or a list) to positions destination; the others keep their order. Shares "
             "memory.",
      .example = "print(table.concat(T.ones(2, 3, 4):movedim(1, 3):shape(), \" \"))  --> 3 4 2", .nin = 1, .nout = 1, .nattr = 2,
      .args = {"x"}, .attrs = {A_DIMS_REQ("source"), A_DIMS_REQ("destination")}, .cls = PL_VIEW, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_POLY, .infer = movedim_infer, .grad = movedim_grad, );

/* ---- squeeze, unsqueeze -------------------------------------------------------------------------------------- */

static PlStatus squeeze_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  uint32_t named = ~0u;
  if (pl_attr_has(c->attrs, 0)) {
    named = 0;
    for (int k = 0; k < pl_attr_n(c->attrs, 0); k++) named |= 1u << pl_attr_list(c->attrs, 0)[k];
  }
  pl_view_same(c, d);
  int n = 0;
  for (int k = 0; k < x->ndim; k++) {
    if (x->shape[k] == 1 && (named >> k & 1)) continue;
    d->shape[n] = x->shape[k];
    d->strides[n++] = x->strides[k];
  }
  d->ndim = (uint8_t)n;
  return PL_OK;
}

PL_OP(squeeze, .doc = "Drops dims of size 1: the named ones, or all. Shares memory.",
      .example = "print(T.ones(1, 2, 1):squeeze())  --> {1., 1.}  -- f32[2] cpu", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_DIMS_OPT("dim")}, .cls = PL_VIEW, .batch = pl_batch_shape, .flags = PL_F_LINEAR | PL_F_POLY, .infer = squeeze_infer,
      .grad = reshape_grad, );

static PlStatus unsqueeze_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int dim = (int)pl_attr_i(c->attrs, 0);
  if (x->ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "unsqueeze: %s has the most dims possible", pl_desc_text(x));
  pl_view_same(c, d);
  d->ndim = (uint8_t)(x->ndim + 1);
  memmove(d->shape + dim + 1, d->shape + dim, (size_t)(x->ndim - dim) * sizeof d->shape[0]);
  memmove(d->strides + dim + 1, d->strides + dim, (size_t)(x->ndim - dim) * sizeof d->shape[0]);
  d->shape[dim] = 1;
  d->strides[dim] = dim < x->ndim ? x->shape[dim] * x->strides[dim] : 1;
  return PL_OK;
}

PL_OP(unsqueeze, .doc = "A new dim of size 1 at position dim; shares memory.",
      .example = "print(T.tensor { 1, 2 }:unsqueeze(1))  --> {{1., 2.}}  -- f32[1,2] cpu", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_NEWDIM_REQ("dim")}, .cls = PL_VIEW, .batch = pl_batch_shape, .flags = PL_F_LINEAR | PL_F_POLY, .infer = unsqueeze_infer,
      .grad = reshape_grad, );

/* ---- expand ----------------------------------------------------------------------------------------------- */

static PlStatus expanded(PlInfer *c, int n, const int64_t *sizes) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int lead = n - x->ndim;
  if (n > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "%s: %d dims; at most %d are possible", c->op->name, n, PL_MAX_DIM);
  if (lead < 0) PL_FAIL(PL_ERR_SHAPE, "%s: %d sizes for %s; give at least %d", c->op->name, n, pl_desc_text(x), x->ndim);
  pl_view_same(c, d);
  d->ndim = (uint8_t)n;
  for (int k = 0; k < n; k++) {
    int64_t have = k < lead ? 1 : x->shape[k - lead], want = sizes[k];
    if (want == -1 && k >= lead) want = have;
    if (want < 0)
      PL_FAIL(PL_ERR_SHAPE, "%s: size %lld of dim %d of the result: only existing dims may say -1", c->op->name, (long long)want, k + 1);
    if (have != want && have != 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: %s: dim %d of the result would be %lld, but only sizes of 1 can grow (it has %lld)", c->op->name,
              pl_desc_text(x), k + 1, (long long)want, (long long)have);
    d->shape[k] = want;
    d->strides[k] = k < lead || have != want ? 0 : x->strides[k - lead];
  }
  return pl_sizes_check(c, n, d->shape);
}

static PlStatus expand_infer(PlInfer *c) { return expanded(c, pl_attr_n(c->attrs, 0), pl_attr_list(c->attrs, 0)); }

PL_OP(expand, .doc = "Repeats sizes of 1 (and new leading dims) to the given sizes without copying; -1 keeps a size.",
      .example = "print(T.tensor { { 1 }, { 2 } }:expand(2, 3))\n"
                 "--> {{1., 1., 1.},\n"
                 "-->  {2., 2., 2.}}  -- f32[2,3] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SHAPE_REQ("sizes")}, .cls = PL_VIEW, .batch = pl_batch_expand,
      .flags = PL_F_LINEAR | PL_F_POLY, .infer = expand_infer, .grad = expand_grad, );

PL_OP(broadcast_to, .doc = "x broadcast to a shape without copying; the same as expand.",
      .example = "print(T.tensor { 1, 2 }:broadcast_to(2, 2))\n"
                 "--> {{1., 2.},\n"
                 "-->  {1., 2.}}  -- f32[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_SHAPE_REQ("shape")}, .cls = PL_VIEW, .batch = pl_batch_expand,
      .flags = PL_F_LINEAR | PL_F_POLY, .infer = expand_infer, .grad = expand_grad, );

static PlStatus expand_as_infer(PlInfer *c) { return expanded(c, c->in[1]->ndim, c->in[1]->shape); }

PL_OP(expand_as, .doc = "x broadcast to the shape of other without copying; other's elements are not looked at.",
      .example = "print(T.tensor { 1, 2 }:expand_as(T.ones(2, 2)))\n"
                 "--> {{1., 2.},\n"
                 "-->  {1., 2.}}  -- f32[2,2] cpu",
      .nin = 2, .nout = 1, .args = {"x", "other"}, .cls = PL_VIEW, .batch = pl_batch_expand, .flags = PL_F_POLY, .sized = &pl_op_expand,
      .infer = expand_as_infer, .grad = expand_grad, );

static PlStatus expand_to_infer(PlInfer *c) {
  int64_t sizes[PL_MAX_DIM];
  int n;
  PL_TRY(shape_tensor(c, 1, &n, sizes));
  return expanded(c, n, sizes);
}

PL_OP(expand_to, .doc = "expand with the sizes in an i64 tensor (backward graphs of any shape).", .nin = 2, .nout = 1,
      .args = {"x", "shape"}, .cls = PL_VIEW, .batch = pl_batch_expand, .flags = PL_F_LINEAR | PL_F_POLY | PL_F_INTERNAL, .reads_values = 2,
      .sizes = 2, .sized = &pl_op_expand, .infer = expand_to_infer, .grad = expand_grad, );

/* ---- copies ------------------------------------------------------------------------------------------------- */

static PlStatus contiguous_infer(PlInfer *c) {
  if (c->in[0]->contiguous) pl_view_same(c, &c->out[0]);
  else return pl_infer_same(c);
  return PL_OK;
}

PL_OP(contiguous,
      .doc = "x itself if it is contiguous (row-major, without gaps), else a contiguous copy. "
             "x:contiguous(\"channels_last\"), of 5 dims \"channels_last_3d\": the same with the channels, dim 2, innermost.",
      .example = "print(T.ones(2, 3):t():contiguous():is_contiguous())  --> true\n"
                 "local x = T.zeros(2, 3, 4, 5):contiguous(\"channels_last\")\n"
                 "print(x:is_contiguous(\"channels_last\"), x:stride(2))  --> true\t1",
      .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_VIEW, .batch = pl_batch_each, .flags = PL_F_LINEAR | PL_F_POLY,
      .infer = contiguous_infer, .grad = same_grad, PL_COPY, );

/* In a graph a detached tensor must be a node of its own: the gradient that arrives there ends. */
static PlStatus stop_infer(PlInfer *c) {
  pl_view_same(c, &c->out[0]);
  return PL_OK;
}
static PlStatus stop_grad_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pl_g_zeros_like(g, 0);
  return g->status;
}

PL_OP(stop_grad, .doc = "x, through which no gradient flows: what x:detach() becomes in a graph.", .nin = 1, .nout = 1, .args = {"x"},
      .cls = PL_VIEW, .flags = PL_F_POLY | PL_F_INTERNAL | PL_F_STOPS, .infer = stop_infer, .grad = stop_grad_grad, );

PL_OP(clone, .doc = "A copy of x, whose elements lie in memory in the order of those of x; gradients flow through.",
      .example = "local x = T.ones(2)\n"
                 "local y = x:clone()\n"
                 "y:zero_()\n"
                 "print(x, y)  --> {1., 1.}  -- f32[2] cpu\t{0., 0.}  -- f32[2] cpu",
      .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_POINTWISE, .batch = pl_batch_each, .flags = PL_F_LINEAR | PL_F_POLY | PL_F_KEEPS,
      .infer = pl_infer_same, .grad = same_grad, PL_COPY, );
