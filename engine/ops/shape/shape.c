/* SPDX-License-Identifier: MIT
 * Shapes as values (shape_of, zeros_of), triangles, diagonals, traces, and copies of repeated, flipped, rolled
 * and padded tensors. */
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"
#include "kernels/create.h"
#include "kernels/join.h"

/* ---- shapes as values ---------------------------------------------------------------------------------- */

static PlStatus shape_of_infer(PlInfer *c) {
  int64_t n = c->in[0]->ndim;
  pl_desc_set(&c->out[0], PL_I64, 1, &n);
  return PL_OK;
}

PL_OP(shape_of, .doc = "The sizes of x as a 1-d i64 tensor; its elements are not looked at.", .nin = 1, .nout = 1, .args = {"x"},
      .cls = PL_CREATION, .batch = pl_batch_sizes, .flags = PL_F_INTERNAL | PL_F_NOGRAD_OK | PL_F_POLY | PL_F_SIZES,
      .infer = shape_of_infer, PL_KERNEL(shape_of), );

static PlStatus zeros_of_infer(PlInfer *c) {
  const PlArray *s = c->in[0];
  int64_t sizes[PL_MAX_DIM];
  PL_TRY(pl_check_dtype(c, 0, PL_I64));
  PL_TRY(pl_check_ndim(c, 0, 1, 1));
  if (s->numel > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "zeros_of: a shape of %lld dims", (long long)s->numel);
  for (int64_t d = 0; d < s->numel; d++) sizes[d] = ((const int64_t *)s->data)[d * s->strides[0]];
  PL_TRY(pl_sizes_check(c, (int)s->numel, sizes));
  pl_desc_set(&c->out[0], (PlDtype)pl_attr_i(c->attrs, 0), (int)s->numel, sizes);
  return PL_OK;
}

PL_OP(zeros_of, .doc = "Zeros of the shape in a 1-d i64 tensor.", .nin = 1, .nout = 1, .nattr = 1, .args = {"shape"},
      .attrs = {A_DTYPE_REQ("dtype")}, .cls = PL_CREATION, .flags = PL_F_INTERNAL | PL_F_NOGRAD_OK | PL_F_POLY | PL_F_ZEROS,
      .reads_values = 1, .sizes = 1, .sized = &pl_op_zeros, .infer = zeros_of_infer, PL_KERNEL(zeros), );

/* ---- triangles, diagonals --------------------------------------------------------------------------------- */

static PlStatus tri_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 0, 2, PL_MAX_DIM));
  return pl_infer_same(c);
}

static PlStatus linear_self_grad(PlMaker *g) { /* the op is its own adjoint */
  if (g->want[0]) g->dx[0] = pl_g_op(g, g->op, 1, &g->dy[0], g->attrs, NULL);
  return g->status;
}

#define TRI(NAME, CODE, DOC, EXAMPLE)                                                                                              \
  PL_OP(NAME, .doc = DOC, .example = EXAMPLE, .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_INT("diagonal", 0)},     \
        .cls = PL_POINTWISE, .flags = PL_F_LINEAR | PL_F_POLY | PL_F_CONTIGUOUS | PL_F_INPLACE, .kcode = CODE, .infer = tri_infer, \
        .grad = linear_self_grad, PL_KERNEL(tri), )
TRI(tril, 0, "The lower triangle of the last two dims, zeros above diagonal `diagonal` (0: main, > 0: above).",
    "print(T.ones(2, 2):tril())\n"
    "--> {{1., 0.},\n"
    "-->  {1., 1.}}  -- f32[2,2] cpu");
TRI(triu, 1, "The upper triangle of the last two dims, zeros below diagonal `diagonal` (0: main, > 0: above).",
    "print(T.ones(2, 2):triu())\n"
    "--> {{1., 1.},\n"
    "-->  {0., 1.}}  -- f32[2,2] cpu");

/* Square of size n + |offset|; PL_ERR_SHAPE if that overflows. */
static PlStatus square_size(const PlInfer *c, int64_t n, int64_t offset, int64_t *size) {
  if (offset == INT64_MIN || __builtin_add_overflow(n, offset < 0 ? -offset : offset, size))
    PL_FAIL(PL_ERR_SHAPE, "%s: offset %lld is too far from the main diagonal", c->op->name, (long long)offset);
  return PL_OK;
}

static PlStatus diag_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int64_t k = pl_attr_i(c->attrs, 0), sizes[2], len;
  PL_TRY(pl_check_ndim(c, 0, 1, 2));
  if (x->ndim == 1) {
    PL_TRY(square_size(c, x->shape[0], k, &sizes[0]));
    sizes[1] = sizes[0];
    PL_TRY(pl_sizes_check(c, 2, sizes));
    pl_desc_set(d, (PlDtype)x->dtype, 2, sizes);
    return PL_OK;
  }
  int64_t rows = x->shape[0], cols = x->shape[1];
  if (k >= 0) len = cols > k ? cols - k : 0;
  else len = k > -rows ? rows + k : 0;
  if (len > (k >= 0 ? rows : cols)) len = k >= 0 ? rows : cols;
  pl_desc_set(d, (PlDtype)x->dtype, 1, &len);
  d->is_view = true;
  d->strides[0] = x->strides[0] + x->strides[1];
  d->offset = len == 0 ? 0 : k >= 0 ? k * x->strides[1] : -k * x->strides[0];
  return PL_OK;
}

static PlStatus diag_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  if (x->ndim == 1) {
    g->dx[0] = pl_g_op(g, &pl_op_diag, 1, &g->dy[0], g->attrs, NULL);
    return g->status;
  }
  pl_attrs_init(&pl_op_diagonal_bwd, &a);
  pl_g_attrs_list(g, &a, 0, 2, x->shape);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 0));
  pl_attrs_int(&a, 2, 0);
  pl_attrs_int(&a, 3, 1);
  g->dx[0] = pl_g_op(g, &pl_op_diagonal_bwd, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(diag,
      .doc = "Of a vector: the matrix with it on diagonal `diagonal`. Of a matrix: a copy of that diagonal (x:diagonal() is a view of it).",
      .example = "print(T.diag(T.tensor { 1, 2 }))\n"
                 "--> {{1., 0.},\n"
                 "-->  {0., 2.}}  -- f32[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 1, .args = {"x"}, .attrs = {A_INT("diagonal", 0)}, .cls = PL_VIEW,
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS, .infer = diag_infer, .grad = diag_grad, PL_KERNEL(diag), );

static PlStatus diag_embed_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int n = x->ndim + 1, from = 0;
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM - 1));
  int64_t a = pl_attr_i(c->attrs, 1), b = pl_attr_i(c->attrs, 2), size = 0;
  if (pl_dim_wrap(a, n) < 0 || pl_dim_wrap(b, n) < 0)
    PL_FAIL(PL_ERR_ARG, "diag_embed: dim1 %lld and dim2 %lld must be dims of the result, which has %d", (long long)(a < 0 ? a : a + 1),
            (long long)(b < 0 ? b : b + 1), n);
  a = pl_dim_wrap(a, n), b = pl_dim_wrap(b, n);
  if (a == b) PL_FAIL(PL_ERR_ARG, "diag_embed: dim1 and dim2 are both %lld; they must differ", (long long)a + 1);
  PL_TRY(square_size(c, x->shape[x->ndim - 1], pl_attr_i(c->attrs, 0), &size));
  pl_desc_set(d, (PlDtype)x->dtype, n, x->shape);
  for (int k = 0; k < n; k++) d->shape[k] = k == a || k == b ? size : x->shape[from++];
  return pl_sizes_check(c, n, d->shape);
}

static PlStatus diag_embed_grad(PlMaker *g) {
  PlAttrs a;
  int n = g->in[0]->ndim + 1;
  pl_attrs_init(&pl_op_diagonal, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  for (int k = 1; k < 3; k++) pl_attrs_int(&a, k, pl_dim_wrap(pl_attr_i(g->attrs, k), n));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_diagonal, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(diag_embed, .doc = "Zeros with the last dim of x on the diagonal over dims dim1 and dim2 of the result.",
      .example = "print(T.tensor { 1, 2 }:diag_embed())\n"
                 "--> {{1., 0.},\n"
                 "-->  {0., 2.}}  -- f32[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},
      /* Dims of the result: NEWDIM counts over one dim more than x has. */
      .attrs = {A_INT("offset", 0), A_NEWDIM("dim1", -2), A_NEWDIM("dim2", -1)}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_POLY | PL_F_CONTIGUOUS, .infer = diag_embed_infer, .grad = diag_embed_grad, PL_KERNEL(diag_embed), );

static PlStatus trace_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 0, 2, 2));
  PlDtype t = (PlDtype)c->in[0]->dtype;
  pl_desc_set(&c->out[0], pl_is_float(t) ? t : PL_I64, 0, NULL);
  return PL_OK;
}

static PlStatus trace_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  int64_t n = x->shape[0] < x->shape[1] ? x->shape[0] : x->shape[1];
  PlVal dy = pl_g_list(g, &pl_op_expand, g->dy[0], 0, 1, &n);
  pl_attrs_init(&pl_op_diagonal_bwd, &a);
  pl_g_attrs_list(g, &a, 0, 2, x->shape);
  pl_attrs_int(&a, 1, 0);
  pl_attrs_int(&a, 2, 0);
  pl_attrs_int(&a, 3, 1);
  g->dx[0] = pl_g_op(g, &pl_op_diagonal_bwd, 1, &dy, &a, NULL);
  return g->status;
}

PL_OP(trace, .autocast = PL_CAST_F32, .doc = "The sum of a matrix's main diagonal, 0-d; integers sum in i64.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:trace())  --> 5.  -- f32[] cpu", .nin = 1, .nout = 1, .args = {"x"},
      .cls = PL_REDUCTION, .flags = PL_F_LINEAR, .infer = trace_infer, .grad = trace_grad, PL_KERNEL(trace), );

/* ---- flip, roll -------------------------------------------------------------------------------------------- */

PL_OP(flip, .doc = "A copy with the order along the named dims reversed.",
      .example = "print(T.tensor { 1, 2, 3 }:flip(1))  --> {3., 2., 1.}  -- f32[3] cpu", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_DIMS_REQ("dims")}, .cls = PL_INDEXING, .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_POLY, .infer = pl_infer_same,
      .grad = linear_self_grad, PL_KERNEL(flip), );

static PlStatus roll_infer(PlInfer *c) {
  int n = pl_attr_n(c->attrs, 0), m = pl_attr_has(c->attrs, 1) ? pl_attr_n(c->attrs, 1) : 0;
  if (n == 0) PL_FAIL(PL_ERR_ARG, "roll: shifts are empty");
  if (m == 0 && n != 1) PL_FAIL(PL_ERR_ARG, "roll: %d shifts without dims; name a dim for each", n);
  if (m != 0 && n != m) PL_FAIL(PL_ERR_ARG, "roll: %d shifts for %d dims", n, m);
  if (m != 0 && c->in[0]->ndim == 0) PL_FAIL(PL_ERR_SHAPE, "roll: %s has no dims", pl_desc_text(c->in[0]));
  for (int k = 0; k < n; k++)
    if (pl_attr_list(c->attrs, 0)[k] == INT64_MIN) PL_FAIL(PL_ERR_ARG, "roll: shift out of range");
  return pl_infer_same(c);
}

static PlStatus roll_grad(PlMaker *g) {
  int64_t back[PL_ATTR_POOL];
  PlAttrs a;
  int n = pl_attr_n(g->attrs, 0);
  pl_attrs_init(&pl_op_roll, &a);
  for (int k = 0; k < n; k++) back[k] = -pl_attr_list(g->attrs, 0)[k];
  pl_g_attrs_list(g, &a, 0, n, back);
  if (pl_attr_has(g->attrs, 1)) pl_g_attrs_list(g, &a, 1, pl_attr_n(g->attrs, 1), pl_attr_list(g->attrs, 1));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_roll, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(roll,
      .doc = "A copy shifted along dims by shifts (one each), wrapping around; without dims the flattened tensor "
             "is shifted.",
      .example = "print(T.tensor { 1, 2, 3 }:roll(1))  --> {3., 1., 2.}  -- f32[3] cpu", .nin = 1, .nout = 1, .nattr = 2, .args = {"x"},
      .attrs = {A_INTS_REQ("shifts"), A_DIMS_FLAT("dims")}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_POLY | PL_F_CONTIGUOUS, .infer = roll_infer, .grad = roll_grad, PL_KERNEL(roll), );
