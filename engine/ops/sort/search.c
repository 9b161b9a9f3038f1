/* SPDX-License-Identifier: MIT
 * Searching and counting by value: searchsorted, bucketize, bincount, isin, unique. None has a gradient. */
#include "engine/ops/index/index.h"

enum { NO_GRAD = PL_F_CONTIGUOUS | PL_F_NOGRAD_OK };

/* Output 0: the shape of input i; i64, or i32 where attribute k says so. */
static PlStatus positions(PlInfer *c, int i, int k) {
  PlDtype t = pl_attr_i(c->attrs, k) ? PL_I32 : PL_I64;
  pl_desc_set(&c->out[0], t, c->in[i]->ndim, c->in[i]->shape);
  return PL_OK;
}

static PlStatus searchsorted_infer(PlInfer *c) {
  const PlArray *s = c->in[0], *v = c->in[1], *order = c->in[2];
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  bool fits = s->ndim == 1 || s->ndim == v->ndim;
  for (int d = 0; fits && s->ndim > 1 && d + 1 < s->ndim; d++) fits = s->shape[d] == v->shape[d];
  if (!fits)
    PL_FAIL(PL_ERR_SHAPE, "searchsorted: sorted %s must be 1-d or agree with values %s in all dims but the last", pl_desc_text(s),
            pl_desc_text(v));
  if (pl_attr_has(c->attrs, 3) && pl_attr_i(c->attrs, 3) == 0 && pl_attr_i(c->attrs, 0))
    PL_FAIL(PL_ERR_ARG, "searchsorted: side=\"left\" and right=true contradict each other");
  if (order) {
    PL_TRY(pl_index_check(c, 2));
    bool same = order->ndim == s->ndim;
    for (int d = 0; same && d < s->ndim; d++) same = order->shape[d] == s->shape[d];
    if (!same) PL_FAIL(PL_ERR_SHAPE, "searchsorted: sorter %s must have the shape of %s", pl_desc_text(order), pl_desc_text(s));
  }
  return positions(c, 1, 2);
}

PL_OP(searchsorted,
      .doc = "Where each value would be inserted into the last dim of sorted (1-d, or with values' leading dims) to keep "
             "it sorted: before equal items, or after them if right (or side is right). sorter: index values that sort it.",
      .example = "print(T.searchsorted(T.tensor { 1, 3, 5 }, T.tensor { 0, 3, 9 }))  --> {1, 2, 4}  -- i64[3] cpu", .nin = 3, .nopt = 1,
      .nout = 1, .nattr = 4, .args = {"sorted", "values", "sorter"},
      .attrs = {A_BOOL("right", 0),
                A_BASE,
                A_BOOL("out_int32", 0),
                {.name = "side", .type = PL_A_ENUM, .optional = true, .choices = "left|right"}},
      .cls = PL_INDEXING, .flags = NO_GRAD, .promote = PL_PROMOTE_ALL, .promote_mask = 3, .infer = searchsorted_infer,
      PL_KERNEL(searchsorted), );

static PlStatus bucketize_infer(PlInfer *c) {
  PL_TRY(pl_check_ndim(c, 1, 1, 1));
  return positions(c, 0, 2);
}

PL_OP(bucketize,
      .doc = "The bucket of each element between sorted 1-d boundaries; a boundary belongs to the bucket below it, or "
             "above it if right.",
      .example = "print(T.bucketize(T.tensor { 0, 2, 9 }, T.tensor { 1, 5 }))  --> {1, 2, 3}  -- i64[3] cpu", .nin = 2, .nout = 1,
      .nattr = 3, .args = {"x", "boundaries"}, .attrs = {A_BOOL("right", 0), A_BASE, A_BOOL("out_int32", 0)}, .cls = PL_INDEXING,
      .batch = pl_batch_first, .flags = NO_GRAD, .promote = PL_PROMOTE_ALL, .infer = bucketize_infer, PL_KERNEL(bucketize), );

static PlStatus bincount_infer(PlInfer *c) {
  const PlArray *x = c->in[0], *w = c->in[1];
  int64_t n = pl_attr_i(c->attrs, 0), max;
  PL_TRY(pl_index_check_list(c, 0));
  if (w && (w->numel != x->numel || w->ndim != x->ndim))
    PL_FAIL(PL_ERR_SHAPE, "bincount: weights %s must have the shape of %s", pl_desc_text(w), pl_desc_text(x));
  if (n < 0) PL_FAIL(PL_ERR_ARG, "bincount: minlength %lld is negative", (long long)n);
  PL_TRY(plk_cpu_index_max(x, &max));
  if (x->numel && max - pl_attr_i(c->attrs, 1) >= n) n = max - pl_attr_i(c->attrs, 1) + 1;
  PlDtype t = !w ? PL_I64 : w->dtype == PL_F32 ? PL_F32 : PL_F64;
  pl_desc_set(&c->out[0], t, 1, &n);
  return pl_sizes_check(c, 1, &n);
}

PL_OP(bincount, .doc = "How often each class occurs in x (1-d index values), or the sum of its weights; at least minlength bins.",
      .example = "print(T.bincount(T.tensor({ 1, 3, 3 }, { dtype = \"i64\" })))  --> {1, 0, 2}  -- i64[3] cpu", .nin = 2, .nopt = 1,
      .nout = 1, .nattr = 2, .args = {"x", "weights"}, .attrs = {A_INT("minlength", 0), A_BASE}, .cls = PL_INDEXING,
      .flags = NO_GRAD | PL_F_IMPURE, .reads_values = 1, .infer = bincount_infer, PL_KERNEL(bincount), );

static PlStatus isin_infer(PlInfer *c) {
  pl_desc_set(&c->out[0], PL_BOOL, c->in[0]->ndim, c->in[0]->shape);
  return PL_OK;
}

PL_OP(isin, .doc = "Whether each element occurs in test; with invert, whether it does not.",
      .example = "print(T.isin(T.arange(3), T.tensor({ 1, 3 }, { dtype = \"i64\" })))  --> { true, false,  true}  -- bool[3] cpu", .nin = 2,
      .nout = 1, .nattr = 1, .args = {"x", "test"}, .attrs = {A_BOOL("invert", 0)}, .cls = PL_INDEXING, .batch = pl_batch_first,
      .flags = NO_GRAD | PL_F_SCALAR, .wraps = PL_WIDENS, .promote = PL_PROMOTE_ALL, .infer = isin_infer, PL_KERNEL(isin), );

static PlStatus unique_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  bool along = pl_attr_has(c->attrs, 3) && x->ndim > 0;
  int dim = along ? (int)pl_attr_i(c->attrs, 3) : -1;
  int64_t n;
  PL_TRY(plk_cpu_unique_count(x, dim, &n));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, 1, &n);
  if (along) {
    pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
    c->out[0].shape[dim] = n;
  }
  int o = 1; /* what was not asked for leaves no gap */
  if (pl_attr_i(c->attrs, 1) && !along) pl_desc_set(&c->out[o++], PL_I64, x->ndim, x->shape);
  if (pl_attr_i(c->attrs, 1) && along) pl_desc_set(&c->out[o++], PL_I64, 1, &x->shape[dim]);
  if (pl_attr_i(c->attrs, 2)) pl_desc_set(&c->out[o++], PL_I64, 1, &n);
  for (; o < 3; o++) c->out[o].dtype = PL_NDTYPE;
  return PL_OK;
}

PL_OP(unique,
      .doc = "The distinct elements of x in ascending order, or its distinct slices along dim; on request also where "
             "each element went (inverse) and how often each occurs (counts).",
      .example = "print(T.unique(T.tensor { 3, 1, 3 }, { return_counts = true }))  --> {1., 3.}  -- f32[2] cpu\t{1, 2}  -- i64[2] cpu",
      .nin = 1, .nout = 3, .nattr = 5, .args = {"x"},
      .attrs = {A_BOOL("sorted", 1), A_BOOL("return_inverse", 0), A_BOOL("return_counts", 0), A_DIM_OPT("dim"), A_BASE}, .cls = PL_INDEXING,
      .flags = NO_GRAD | PL_F_IMPURE, .reads_values = 1, .infer = unique_infer, PL_KERNEL(unique), );
