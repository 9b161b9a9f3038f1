/* SPDX-License-Identifier: MIT
 * Views of a part: narrow, select, slice, unfold, diagonal, as_strided. Each has an adjoint op that puts a
 * gradient back into zeros of the full shape, and whose own gradient is the view again. */
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"
#include "kernels/join.h"

/* ---- slices ------------------------------------------------------------------------------------------ */

static PlStatus sliced(PlInfer *c, int dim, int64_t start, int64_t length, int64_t step) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  if (x->ndim == 0) PL_FAIL(PL_ERR_SHAPE, "%s: %s has no dim to cut", c->op->name, pl_desc_text(x));
  int64_t n = x->shape[dim], last;
  if (length < 0) PL_FAIL(PL_ERR_ARG, "%s: length %lld is negative", c->op->name, (long long)length);
  if (step < 1) PL_FAIL(PL_ERR_ARG, "%s: step %lld; it must be at least 1", c->op->name, (long long)step);
  /* start may be one past the end for an empty slice */
  if (start < -n || start > n || (start < 0 && n == 0))
    PL_FAIL(PL_ERR_INDEX, "%s: start %lld is out of range 1..%lld of dim %d of %s", c->op->name,
            (long long)(start >= 0 ? start + 1 : start), (long long)n, dim + 1, pl_desc_text(x));
  if (start < 0) start += n;
  if (length > 0 && (__builtin_mul_overflow(length - 1, step, &last) || __builtin_add_overflow(last, start, &last) || last >= n))
    PL_FAIL(PL_ERR_INDEX, "%s: %lld items from %lld with step %lld exceed the size %lld of dim %d of %s", c->op->name, (long long)length,
            (long long)start + 1, (long long)step, (long long)n, dim + 1, pl_desc_text(x));
  pl_view_same(c, d);
  d->shape[dim] = length;
  d->offset = length ? start * x->strides[dim] : 0;
  if (length > 1) d->strides[dim] = x->strides[dim] * step;
  return PL_OK;
}

static void slice_attrs(PlAttrs *a, int64_t dim, int64_t start, int64_t length, int64_t step) {
  pl_attrs_init(&pl_op_slice, a);
  pl_attrs_int(a, 0, dim);
  pl_attrs_int(a, 1, start);
  pl_attrs_int(a, 2, length);
  pl_attrs_int(a, 3, step);
}

PlVal pl_g_slice(PlMaker *g, PlVal v, int64_t dim, int64_t start, int64_t length, int64_t step) {
  PlAttrs a;
  slice_attrs(&a, dim, start, length, step);
  return pl_g_op(g, &pl_op_slice, 1, &v, &a, NULL);
}

PlVal pl_g_slice_bwd(PlMaker *g, PlVal v, int n, const int64_t *shape, int64_t dim, int64_t start, int64_t step) {
  PlAttrs a;
  pl_attrs_init(&pl_op_slice_bwd, &a);
  pl_g_attrs_list(g, &a, 0, n, shape);
  pl_attrs_int(&a, 1, dim);
  pl_attrs_int(&a, 2, start);
  pl_attrs_int(&a, 3, step);
  return pl_g_op(g, &pl_op_slice_bwd, 1, &v, &a, NULL);
}

static PlVal slice_back(PlMaker *g, PlVal dy, int64_t dim, int64_t start, int64_t step) {
  const PlArray *x = g->in[0];
  return pl_g_slice_bwd(g, dy, x->ndim, x->shape, dim, start < 0 ? start + x->shape[dim] : start, step);
}

static PlStatus narrow_infer(PlInfer *c) {
  return sliced(c, (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), 1);
}

static PlStatus narrow_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = slice_back(g, g->dy[0], pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, 1), 1);
  return g->status;
}

PL_OP(narrow, .doc = "length positions of dim from start on; shares memory.",
      .example = "print(T.arange(5):narrow(1, 2, 3))  --> {2, 3, 4}  -- i64[3] cpu", .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},
      .attrs = {A_DIM_REQ("dim"), A_INDEX_REQ("start"), A_INT_REQ("length")}, .cls = PL_VIEW, .flags = PL_F_LINEAR, .batch = pl_batch_dims,
      .infer = narrow_infer, .grad = narrow_grad, );

static PlStatus slice_infer(PlInfer *c) {
  return sliced(c, (int)pl_attr_i(c->attrs, 0), pl_attr_i(c->attrs, 1), pl_attr_i(c->attrs, 2), pl_attr_i(c->attrs, 3));
}

static PlStatus slice_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = slice_back(g, g->dy[0], pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 3));
  return g->status;
}

PL_OP(slice, .doc = "length positions of dim: start, start + step, …; shares memory.",
      .example = "print(T.arange(6):slice(1, 2, 2, 3))  --> {2, 5}  -- i64[2] cpu", .nin = 1, .nout = 1, .nattr = 4, .args = {"x"},
      .attrs = {A_DIM_REQ("dim"), A_INDEX_REQ("start"), A_INT_REQ("length"), A_INT("step", 1)}, .cls = PL_VIEW, .flags = PL_F_LINEAR,
      .batch = pl_batch_dims, .infer = slice_infer, .grad = slice_grad, );

static PlStatus select_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int dim = (int)pl_attr_i(c->attrs, 0), n = 0;
  int64_t at;
  if (x->ndim == 0) PL_FAIL(PL_ERR_SHAPE, "select: %s has no dim to index", pl_desc_text(x));
  PL_TRY(pl_index_resolve(c, "index", pl_attr_i(c->attrs, 1), x->shape[dim], &at));
  pl_desc_set(d, (PlDtype)x->dtype, x->ndim - 1, x->shape);
  d->is_view = true;
  for (int k = 0; k < x->ndim; k++) {
    if (k == dim) continue;
    d->shape[n] = x->shape[k];
    d->strides[n++] = x->strides[k];
  }
  d->offset = at * x->strides[dim];
  return PL_OK;
}

static PlStatus select_grad(PlMaker *g) {
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pl_attrs_init(&pl_op_unsqueeze, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  PlVal dy = pl_g_op(g, &pl_op_unsqueeze, 1, &g->dy[0], &a, NULL);
  g->dx[0] = slice_back(g, dy, pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, 1), 1);
  return g->status;
}

PL_OP(select, .doc = "One position of dim; the result has a dim less and shares memory.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:select(1, 2))  --> {3., 4.}  -- f32[2] cpu", .nin = 1, .nout = 1, .nattr = 2,
      .args = {"x"}, .attrs = {A_DIM_REQ("dim"), A_INDEX_REQ("index")}, .cls = PL_VIEW, .flags = PL_F_LINEAR, .batch = pl_batch_dims,
      .infer = select_infer, .grad = select_grad, );

/* The adjoints' output: the shape in attribute 0, the dtype of dy. */
static PlStatus shaped_infer(PlInfer *c) {
  PL_TRY(pl_sizes_check(c, pl_attr_n(c->attrs, 0), pl_attr_list(c->attrs, 0)));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, pl_attr_n(c->attrs, 0), pl_attr_list(c->attrs, 0));
  return PL_OK;
}

/* The same, where dy must be the window that `forward` takes of such a tensor with the other attributes, in their order. */
static PlStatus windowed_infer(PlInfer *c, PlStatus (*forward)(PlInfer *)) {
  PlAttrs a = *c->attrs;
  int64_t strides[PL_MAX_DIM];
  PL_TRY(shaped_infer(c));
  const PlDesc *big = &c->out[0];
  PlArray x = {.shape = big->shape, .strides = strides, .ndim = big->ndim, .dtype = big->dtype, .numel = 1, .contiguous = 1};
  for (int d = big->ndim - 1; d >= 0; d--) {
    strides[d] = x.numel;
    x.numel *= big->shape[d];
  }
  for (int k = 0; k + 1 < c->op->nattr; k++) a.v[k] = a.v[k + 1];
  a.set = (uint16_t)(a.set >> 1);
  a.isint = (uint16_t)(a.isint >> 1);
  const PlArray *in[1] = {&x};
  PlDesc window = {0};
  PlInfer f = *c;
  f.attrs = &a;
  f.nin = 1;
  f.in = in;
  f.out = &window;
  PL_TRY(forward(&f));
  return pl_check_shape(c, 0, window.ndim, window.shape);
}

static PlStatus slice_bwd_infer(PlInfer *c) {
  const PlArray *dy = c->in[0];
  const int64_t *shape = pl_attr_list(c->attrs, 0), dim = pl_attr_i(c->attrs, 1);
  PL_TRY(shaped_infer(c));
  bool fits =
      pl_attr_n(c->attrs, 0) == dy->ndim && dim >= 0 && dim < dy->ndim && pl_attr_i(c->attrs, 2) >= 0 && pl_attr_i(c->attrs, 3) >= 1;
  for (int d = 0; fits && d < dy->ndim; d++) {
    int64_t last;
    if (d != dim) fits = dy->shape[d] == shape[d];
    else if (dy->shape[d] > 0)
      fits = !__builtin_mul_overflow(dy->shape[d] - 1, pl_attr_i(c->attrs, 3), &last) &&
             !__builtin_add_overflow(last, pl_attr_i(c->attrs, 2), &last) && last < shape[d];
  }
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "slice_bwd: %s is no such slice of the shape", pl_desc_text(dy));
  return PL_OK;
}

static PlStatus slice_bwd_grad(PlMaker *g) {
  if (g->want[0])
    g->dx[0] = pl_g_slice(g, g->dy[0], pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 2), g->in[0]->shape[pl_attr_i(g->attrs, 1)],
                          pl_attr_i(g->attrs, 3));
  return g->status;
}

PL_OP(slice_bwd, .doc = "Zeros of the shape with dy at start, start + step, … of dim.", .nin = 1, .nout = 1, .nattr = 4, .args = {"dy"},
      .attrs = {A_SHAPE_REQ("shape"), A_INT_REQ("dim"), A_INT_REQ("start"), A_INT_REQ("step")}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = slice_bwd_infer, .grad = slice_bwd_grad, PL_KERNEL(slice_bwd), );

/* ---- unfold -------------------------------------------------------------------------------------------------- */

static PlStatus unfold_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int dim = (int)pl_attr_i(c->attrs, 0);
  int64_t size = pl_attr_i(c->attrs, 1), step = pl_attr_i(c->attrs, 2);
  int64_t n = x->ndim ? x->shape[dim] : 1;
  if (x->ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "unfold: %s has the most dims possible", pl_desc_text(x));
  if (step < 1) PL_FAIL(PL_ERR_ARG, "unfold: step %lld; it must be at least 1", (long long)step);
  if (size < 0 || size > n)
    PL_FAIL(PL_ERR_SHAPE, "unfold: windows of %lld do not fit the %lld positions of dim %d of %s", (long long)size, (long long)n, dim + 1,
            pl_desc_text(x));
  pl_view_same(c, d);
  d->ndim = (uint8_t)(x->ndim + 1);
  d->shape[x->ndim] = size;
  d->strides[x->ndim] = x->ndim ? x->strides[dim] : 1;
  if (x->ndim == 0) return PL_OK;
  d->shape[dim] = (n - size) / step + 1;
  d->strides[dim] = d->shape[dim] > 1 ? x->strides[dim] * step : x->strides[dim];
  return PL_OK;
}

static PlVal unfold_like(PlMaker *g, const PlOp *op, PlVal v, const PlArray *x, int64_t dim, int64_t size, int64_t step) {
  PlAttrs a;
  int k = 0;
  pl_attrs_init(op, &a);
  if (x) pl_g_attrs_list(g, &a, k++, x->ndim, x->shape);
  pl_attrs_int(&a, k++, dim);
  pl_attrs_int(&a, k++, size);
  pl_attrs_int(&a, k, step);
  return pl_g_op(g, op, 1, &v, &a, NULL);
}

static PlStatus unfold_grad(PlMaker *g) {
  if (g->want[0])
    g->dx[0] =
        unfold_like(g, &pl_op_unfold_bwd, g->dy[0], g->in[0], pl_attr_i(g->attrs, 0), pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 2));
  return g->status;
}

PL_OP(unfold,
      .doc = "Sliding windows: dim becomes the number of windows of `size` taken every `step`, and a new last dim "
             "holds each window. Shares memory.",
      .example = "print(T.arange(4):unfold(1, 2, 1))\n"
                 "--> {{1, 2},\n"
                 "-->  {2, 3},\n"
                 "-->  {3, 4}}  -- i64[3,2] cpu",
      .nin = 1, .nout = 1, .nattr = 3, .args = {"x"}, .attrs = {A_DIM_REQ("dim"), A_INT_REQ("size"), A_INT("step", 1)}, .cls = PL_VIEW,
      .flags = PL_F_LINEAR, .batch = pl_batch_dims, .infer = unfold_infer, .grad = unfold_grad, );

static PlStatus unfold_bwd_infer(PlInfer *c) {
  PL_TRY(pl_check_axis(c, 1, pl_attr_n(c->attrs, 0)));
  return windowed_infer(c, unfold_infer);
}

static PlStatus unfold_bwd_grad(PlMaker *g) {
  if (g->want[0])
    g->dx[0] = unfold_like(g, &pl_op_unfold, g->dy[0], NULL, pl_attr_i(g->attrs, 1), pl_attr_i(g->attrs, 2), pl_attr_i(g->attrs, 3));
  return g->status;
}

PL_OP(unfold_bwd, .doc = "Adds windows back where unfold took them.", .nin = 1, .nout = 1, .nattr = 4, .args = {"dy"},
      .attrs = {A_SHAPE_REQ("shape"), A_INT_REQ("dim"), A_INT_REQ("size"), A_INT_REQ("step")}, .cls = PL_INDEXING, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = unfold_bwd_infer, .grad = unfold_bwd_grad, PL_KERNEL(unfold_bwd), );

/* ---- diagonal -------------------------------------------------------------------------------------------------- */

static PlStatus diagonal_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int a = (int)pl_attr_i(c->attrs, 1), b = (int)pl_attr_i(c->attrs, 2), n = 0;
  int64_t offset = pl_attr_i(c->attrs, 0);
  PL_TRY(pl_check_ndim(c, 0, 2, PL_MAX_DIM));
  if (a == b) PL_FAIL(PL_ERR_ARG, "diagonal: dim1 and dim2 are both %d; they must differ", a + 1);
  int64_t rows = x->shape[a], cols = x->shape[b], len;
  if (offset >= 0) len = cols > offset ? cols - offset : 0;
  else len = offset > -rows ? rows + offset : 0;
  if (offset >= 0 && len > rows) len = rows;
  if (offset < 0 && len > cols) len = cols;
  pl_view_same(c, d);
  for (int k = 0; k < x->ndim; k++) {
    if (k == a || k == b) continue;
    d->shape[n] = x->shape[k];
    d->strides[n++] = x->strides[k];
  }
  d->shape[n] = len;
  d->strides[n++] = x->strides[a] + x->strides[b];
  d->ndim = (uint8_t)n;
  if (len) d->offset = offset >= 0 ? offset * x->strides[b] : -offset * x->strides[a];
  return PL_OK;
}

static PlStatus diagonal_grad(PlMaker *g) {
  const PlArray *x = g->in[0];
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pl_attrs_init(&pl_op_diagonal_bwd, &a);
  pl_g_attrs_list(g, &a, 0, x->ndim, x->shape);
  for (int k = 0; k < 3; k++) pl_attrs_int(&a, k + 1, pl_attr_i(g->attrs, k));
  g->dx[0] = pl_g_op(g, &pl_op_diagonal_bwd, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(diagonal, .doc = "The diagonal over dim1 and dim2 as a new last dim; offset > 0 is above it. Shares memory.",
      .example = "print(T.tensor { { 1, 2 }, { 3, 4 } }:diagonal())  --> {1., 4.}  -- f32[2] cpu", .nin = 1, .nout = 1, .nattr = 3,
      .args = {"x"}, .attrs = {A_INT("offset", 0), A_DIM("dim1", 0), A_DIM("dim2", 1)}, .cls = PL_VIEW, .flags = PL_F_LINEAR,
      .batch = pl_batch_dims, .infer = diagonal_infer, .grad = diagonal_grad, );

static PlStatus diagonal_bwd_infer(PlInfer *c) {
  if (pl_attr_n(c->attrs, 0) < 2) PL_FAIL(PL_ERR_SHAPE, "%s: a shape of two dims and more is wanted", c->op->name);
  PL_TRY(pl_check_axis(c, 2, pl_attr_n(c->attrs, 0)));
  PL_TRY(pl_check_axis(c, 3, pl_attr_n(c->attrs, 0)));
  return windowed_infer(c, diagonal_infer);
}

static PlStatus diagonal_bwd_grad(PlMaker *g) {
  PlAttrs a;
  pl_attrs_init(&pl_op_diagonal, &a);
  for (int k = 0; k < 3; k++) pl_attrs_int(&a, k, pl_attr_i(g->attrs, k + 1));
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_diagonal, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(diagonal_bwd, .doc = "Zeros of the shape with dy on the diagonal over dim1 and dim2.", .nin = 1, .nout = 1, .nattr = 4,
      .args = {"dy"}, .attrs = {A_SHAPE_REQ("shape"), A_INT_REQ("offset"), A_INT_REQ("dim1"), A_INT_REQ("dim2")}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = diagonal_bwd_infer,
      .grad = diagonal_bwd_grad, PL_KERNEL(diagonal_bwd), );

/* ---- as_strided -------------------------------------------------------------------------------------------------- */

static PlStatus as_strided_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int n = pl_attr_n(c->attrs, 0), m = pl_attr_n(c->attrs, 1);
  const int64_t *sizes = pl_attr_list(c->attrs, 0), *strides = pl_attr_list(c->attrs, 1);
  int64_t last = pl_attr_i(c->attrs, 2);
  bool empty = false;
  if (n != m) PL_FAIL(PL_ERR_ARG, "as_strided: %d sizes but %d strides", n, m);
  if (!x->contiguous) PL_FAIL(PL_ERR_SHAPE, "as_strided: %s is not contiguous; call contiguous() first", pl_desc_text(x));
  PL_TRY(pl_sizes_check(c, n, sizes));
  if (last < 0) PL_FAIL(PL_ERR_ARG, "as_strided: offset %lld is negative", (long long)last);
  for (int k = 0; k < n; k++) {
    int64_t reach;
    if (strides[k] < 0) PL_FAIL(PL_ERR_ARG, "as_strided: stride %lld is negative", (long long)strides[k]);
    empty = empty || sizes[k] == 0;
    if (sizes[k] > 1 && (__builtin_mul_overflow(sizes[k] - 1, strides[k], &reach) || __builtin_add_overflow(last, reach, &last)))
      last = INT64_MAX;
    if (last == INT64_MAX) break;
  }
  if (!empty && last >= x->numel)
    PL_FAIL(PL_ERR_INDEX, "as_strided: these sizes, strides and offset reach past the %lld elements of %s", (long long)x->numel,
            pl_desc_text(x));
  pl_desc_set(d, (PlDtype)x->dtype, n, sizes);
  d->is_view = true;
  d->offset = empty ? 0 : pl_attr_i(c->attrs, 2);
  for (int k = 0; k < n; k++) d->strides[k] = strides[k];
  return PL_OK;
}

static PlStatus as_strided_grad(PlMaker *g) {
  const PlAttrs *at = g->attrs;
  PlAttrs a;
  if (!g->want[0]) return g->status;
  pl_attrs_init(&pl_op_as_strided_bwd, &a);
  pl_g_attrs_list(g, &a, 0, g->in[0]->ndim, g->in[0]->shape);
  for (int k = 0; k < 2; k++) pl_g_attrs_list(g, &a, k + 1, pl_attr_n(at, k), pl_attr_list(at, k));
  pl_attrs_int(&a, 3, pl_attr_i(at, 2));
  g->dx[0] = pl_g_op(g, &pl_op_as_strided_bwd, 1, &g->dy[0], &a, NULL);
  return g->status;
}

PL_OP(as_strided,
      .doc = "A window on a contiguous tensor with given sizes, strides and offset, all in elements from its first "
             "one. Elements may appear several times.",
      .example = "print(T.arange(4):as_strided({ 2, 2 }, { 1, 2 }))\n"
                 "--> {{1, 3},\n"
                 "-->  {2, 4}}  -- i64[2,2] cpu",
      .nin = 1, .nout = 1, .nattr = 3, .args = {"x"}, .attrs = {A_SHAPE_REQ("size"), A_INTS_REQ("stride"), A_INT("offset", 0)},
      .cls = PL_VIEW, .batch = pl_batch_strided, .flags = PL_F_BY_MEMORY, .infer = as_strided_infer, .grad = as_strided_grad, );

static PlStatus as_strided_bwd_infer(PlInfer *c) { return windowed_infer(c, as_strided_infer); }

static PlStatus as_strided_bwd_grad(PlMaker *g) {
  PlAttrs a;
  pl_attrs_init(&pl_op_as_strided, &a);
  for (int k = 0; k < 2; k++) pl_g_attrs_list(g, &a, k, pl_attr_n(g->attrs, k + 1), pl_attr_list(g->attrs, k + 1));
  pl_attrs_int(&a, 2, pl_attr_i(g->attrs, 3));
  PlVal dy = pl_g1(g, &pl_op_contiguous, g->dy[0]);
  if (g->want[0]) g->dx[0] = pl_g_op(g, &pl_op_as_strided, 1, &dy, &a, NULL);
  return g->status;
}

PL_OP(as_strided_bwd, .doc = "Adds a strided window back into zeros of the shape.", .nin = 1, .nout = 1, .nattr = 4, .args = {"dy"},
      .attrs = {A_SHAPE_REQ("shape"), A_SHAPE_REQ("size"), A_INTS_REQ("stride"), A_INT_REQ("offset")}, .cls = PL_INDEXING,
      .batch = pl_batch_strided_bwd, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = as_strided_bwd_infer,
      .grad = as_strided_bwd_grad, PL_KERNEL(as_strided_bwd), );
