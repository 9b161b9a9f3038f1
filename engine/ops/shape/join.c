/* SPDX-License-Identifier: MIT
 * Joining and repeating: cat, stack, tile, repeat_interleave, pad. Repeats add up in their adjoints, each an
 * op of its own whose gradient is the repeat again. */
#include "kernels/join.h"
#include "engine/ops/names.h"
#include "engine/ops/shape/view.h"

/* ---- cat, stack ---------------------------------------------------------------------------------------- */

/* An empty 1-d tensor joins with anything. */
static bool skipped(const PlArray *x) { return x->ndim == 1 && x->shape[0] == 0; }

static PlStatus cat_infer(PlInfer *c) {
  PlDesc *d = &c->out[0];
  int dim = 0, first = -1;
  if (c->nin == 0) PL_FAIL(PL_ERR_ARG, "cat: the list of tensors is empty");
  for (int i = 0; i < c->nin; i++) {
    const PlArray *x = c->in[i];
    if (x->ndim == 0) PL_FAIL(PL_ERR_SHAPE, "cat: tensor %d is 0-d; unsqueeze it first, or use stack", i + 1);
    if (skipped(x)) continue;
    if (first < 0) {
      first = i;
      int64_t want = pl_attr_i(c->attrs, 0);
      dim = pl_dim_wrap(want, x->ndim);
      if (dim < 0) PL_FAIL(PL_ERR_ARG, "cat: dim %lld of %s does not exist", (long long)(want < 0 ? want : want + 1), pl_desc_text(x));
      pl_desc_set(d, c->compute, x->ndim, x->shape);
      continue;
    }
    bool fits = x->ndim == d->ndim;
    for (int k = 0; fits && k < x->ndim; k++) fits = k == dim || x->shape[k] == d->shape[k];
    if (!fits)
      PL_FAIL(PL_ERR_SHAPE, "cat: tensor %d is %s, but tensor %d is %s; all sizes but that of dim %d must be equal", i + 1, pl_desc_text(x),
              first + 1, pl_desc_text(c->in[first]), dim + 1);
    if (__builtin_add_overflow(d->shape[dim], x->shape[dim], &d->shape[dim]))
      PL_FAIL(PL_ERR_SHAPE, "cat: the sizes of dim %d add up past 64 bits", dim + 1);
  }
  if (first < 0) { /* nothing but empty 1-d tensors */
    if (pl_dim_wrap(pl_attr_i(c->attrs, 0), 1) < 0) PL_FAIL(PL_ERR_ARG, "cat: 1-d tensors have no such dim");
    pl_desc_set(d, c->compute, 1, c->in[0]->shape);
  }
  d->layout = PL_MAY_FOLLOW;
  return PL_OK;
}

static PlStatus cat_grad(PlMaker *g) {
  int64_t dim = pl_dim_wrap(pl_attr_i(g->attrs, 0), g->outd[0].ndim), at = 0;
  for (int i = 0; i < g->nin; i++) {
    const PlArray *x = g->in[i];
    bool none = skipped(x) && (g->outd[0].ndim != 1 || dim != 0);
    if (g->want[i]) g->dx[i] = none ? pl_g_zeros_like(g, i) : pl_g_slice(g, g->dy[0], dim, at, x->shape[dim], 1);
    if (!none) at += x->shape[dim];
  }
  return g->status;
}

PL_OP(cat, .autocast = PL_CAST_WIDEST, .doc = "Joins a list of tensors along dim; the other sizes must be equal, dtypes are promoted.",
      .example = "print(T.cat({ T.ones(1, 2), T.zeros(1, 2) }, 1))\n"
                 "--> {{1., 1.},\n"
                 "-->  {0., 0.}}  -- f32[2,2] cpu",
      .nin = PL_VARIADIC, .nout = 1, .nattr = 1, .args = {"tensors"},
      /* Not a DIM: those are dims of input 0, which may be an empty 1-d tensor beside larger ones. */
      .attrs = {{.name = "dim", .type = PL_A_INDEX, .has_def = true, .i = 0}}, .cls = PL_INDEXING, .flags = PL_F_LINEAR,
      .batch = pl_batch_list, .promote = PL_PROMOTE_ALL, .infer = cat_infer, .grad = cat_grad, PL_KERNEL(cat), );

/* No list of the script's: no empty 1-d tensor is among others, and dim is as the maker resolved it. */
static PlStatus slices_bwd_infer(PlInfer *c) {
  for (int i = 1; i < c->nin; i++) PL_TRY(pl_check_ndim(c, i, c->in[0]->ndim, c->in[0]->ndim));
  PL_TRY(pl_check_axis(c, 0, c->in[0]->ndim));
  return cat_infer(c);
}

PL_OP(slices_bwd, .doc = "The sum of what slice_bwd makes of slices that follow each other along dim, from end to end.", .nin = PL_VARIADIC,
      .nout = 1, .nattr = 1, .args = {"dys"}, .attrs = {A_INT_REQ("dim")}, .cls = PL_INDEXING, .batch = pl_batch_list,
      .promote = PL_PROMOTE_ALL, .flags = PL_F_LINEAR | PL_F_INTERNAL, .infer = slices_bwd_infer, .grad = cat_grad,
      PL_KERNEL(slices_bwd), );

static PlStatus stack_infer(PlInfer *c) {
  PlDesc *d = &c->out[0];
  int dim = (int)pl_attr_i(c->attrs, 0), from = 0;
  if (c->nin == 0) PL_FAIL(PL_ERR_ARG, "stack: the list of tensors is empty");
  const PlArray *x = c->in[0];
  if (x->ndim == PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "stack: %s has the most dims possible", pl_desc_text(x));
  for (int i = 1; i < c->nin; i++) {
    bool same = c->in[i]->ndim == x->ndim;
    for (int k = 0; same && k < x->ndim; k++) same = c->in[i]->shape[k] == x->shape[k];
    if (!same)
      PL_FAIL(PL_ERR_SHAPE, "stack: tensor %d is %s, but tensor 1 is %s; all shapes must be equal", i + 1, pl_desc_text(c->in[i]),
              pl_desc_text(x));
  }
  pl_desc_set(d, c->compute, x->ndim, x->shape);
  d->ndim = (uint8_t)(x->ndim + 1);
  for (int k = 0; k < d->ndim; k++) d->shape[k] = k == dim ? c->nin : x->shape[from++];
  return pl_sizes_check(c, d->ndim, d->shape);
}

static PlStatus stack_grad(PlMaker *g) {
  for (int i = 0; i < g->nin; i++) {
    PlAttrs a;
    if (!g->want[i]) continue;
    pl_attrs_init(&pl_op_select, &a);
    pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
    pl_attrs_int(&a, 1, i);
    g->dx[i] = pl_g_op(g, &pl_op_select, 1, &g->dy[0], &a, NULL);
  }
  return g->status;
}

PL_OP(stack, .autocast = PL_CAST_WIDEST, .doc = "Joins a list of tensors of one shape along a new dim; dtypes are promoted.",
      .example = "print(T.stack({ T.tensor { 1, 2 }, T.tensor { 3, 4 } }, 2))\n"
                 "--> {{1., 3.},\n"
                 "-->  {2., 4.}}  -- f32[2,2] cpu",
      .nin = PL_VARIADIC, .nout = 1, .nattr = 1, .args = {"tensors"}, .attrs = {A_NEWDIM("dim", 0)}, .cls = PL_INDEXING,
      .batch = pl_batch_list, .flags = PL_F_LINEAR | PL_F_POLY, .promote = PL_PROMOTE_ALL, .infer = stack_infer, .grad = stack_grad,
      PL_KERNEL(stack), );

/* ---- tile -------------------------------------------------------------------------------------------------- */

static PlStatus tile_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  int m = pl_attr_n(c->attrs, 0), n = m > x->ndim ? m : x->ndim;
  const int64_t *reps = pl_attr_list(c->attrs, 0);
  if (n > PL_MAX_DIM) PL_FAIL(PL_ERR_SHAPE, "tile: %d dims; at most %d are possible", n, PL_MAX_DIM);
  d->dtype = x->dtype;
  d->ndim = (uint8_t)n;
  for (int k = 0; k < n; k++) {
    int64_t size = k < n - x->ndim ? 1 : x->shape[k - (n - x->ndim)], rep = k < n - m ? 1 : reps[k - (n - m)];
    if (rep < 0) PL_FAIL(PL_ERR_ARG, "tile: repeat %lld of dim %d is negative", (long long)rep, k + 1);
    if (__builtin_mul_overflow(size, rep, &d->shape[k]))
      PL_FAIL(PL_ERR_SHAPE, "tile: %lld times %lld positions are too many", (long long)rep, (long long)size);
  }
  return pl_sizes_check(c, n, d->shape);
}

/* Emits a backward op whose last attribute is the shape of input 0, the others those of the forward op. */
static PlVal with_shape(PlMaker *g, const PlOp *op, int nin, const PlVal *in) {
  PlAttrs a;
  const PlArray *x = g->in[0];
  pl_attrs_init(op, &a);
  for (int k = 0; k + 1 < op->nattr; k++) {
    PlAttrType t = op->attrs[k].type;
    if (!pl_attr_has(g->attrs, k)) pl_attrs_none(&a, k);
    else if (t == PL_A_INTS || t == PL_A_SHAPE) pl_g_attrs_list(g, &a, k, pl_attr_n(g->attrs, k), pl_attr_list(g->attrs, k));
    else pl_attrs_int(&a, k, pl_attr_i(g->attrs, k));
  }
  pl_g_attrs_list(g, &a, op->nattr - 1, x->ndim, x->shape);
  return pl_g_op(g, op, nin, in, &a, NULL);
}

/* The gradient: the forward op with the backward op's attributes but the last. */
static PlVal without_shape(PlMaker *g, const PlOp *op, int nin, const PlVal *in) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  for (int k = 0; k + 1 < g->op->nattr; k++) {
    PlAttrType t = g->op->attrs[k].type;
    if (!pl_attr_has(g->attrs, k)) pl_attrs_none(&a, k);
    else if (t == PL_A_INTS || t == PL_A_SHAPE) pl_g_attrs_list(g, &a, k, pl_attr_n(g->attrs, k), pl_attr_list(g->attrs, k));
    else pl_attrs_int(&a, k, pl_attr_i(g->attrs, k));
  }
  return pl_g_op(g, op, nin, in, &a, NULL);
}

/* The rule of a backward op: its last attribute is the shape of x, and dy must be what `forward` makes of such an x with
 * the other attributes, which are the same. `dim`: that of them which is an axis of x, or -1. */
static PlStatus last_shape_infer(PlInfer *c, PlStatus (*forward)(PlInfer *), int dim) {
  const int k = c->op->nattr - 1, n = pl_attr_n(c->attrs, k);
  const int64_t *shape = pl_attr_list(c->attrs, k);
  PL_TRY(pl_sizes_check(c, n, shape));
  PlArray x = {.shape = shape, .ndim = (uint8_t)n, .dtype = c->in[0]->dtype, .numel = 1};
  for (int d = 0; d < n; d++) x.numel *= shape[d];
  if (dim >= 0) PL_TRY(pl_check_axis(c, dim, n));
  const PlArray *in[2] = {&x, c->nin > 1 ? c->in[1] : NULL};
  PlDesc y = {0};
  PlInfer f = *c;
  f.in = in;
  f.out = &y;
  PL_TRY(forward(&f));
  PL_TRY(pl_check_shape(c, 0, y.ndim, y.shape));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, n, shape);
  return PL_OK;
}
static PlStatus tile_bwd_infer(PlInfer *c) { return last_shape_infer(c, tile_infer, -1); }

static PlStatus tile_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = with_shape(g, &pl_op_tile_bwd, 1, &g->dy[0]);
  return g->status;
}

PL_OP(tile, .doc = "x repeated the given number of times along each dim (the last ones, if fewer are given), copied.",
      .example = "print(T.tensor { 1, 2 }:tile(2))  --> {1., 2., 1., 2.}  -- f32[4] cpu", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},
      .attrs = {A_SHAPE_REQ("dims")}, .cls = PL_INDEXING, .flags = PL_F_LINEAR, .batch = pl_batch_tile, .infer = tile_infer,
      .grad = tile_grad, PL_KERNEL(tile), );

static PlStatus tile_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = without_shape(g, &pl_op_tile, 1, &g->dy[0]);
  return g->status;
}

PL_OP(tile_bwd, .doc = "Adds the repeats of a tiled gradient up.", .nin = 1, .nout = 1, .nattr = 2, .args = {"dy"},
      .attrs = {A_SHAPE_REQ("dims"), A_SHAPE_REQ("shape")}, .cls = PL_REDUCTION, .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS,
      .infer = tile_bwd_infer, .grad = tile_bwd_grad, PL_KERNEL(tile_bwd), );

/* ---- repeat_interleave --------------------------------------------------------------------------------------- */

/* The shape of x with `total` positions along dim attribute k (none: flattened). */
static PlStatus repeated(PlInfer *c, int k, int64_t total) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  if (!pl_attr_has(c->attrs, k) || x->ndim == 0) {
    pl_desc_set(d, (PlDtype)x->dtype, 1, &total);
  } else {
    pl_desc_set(d, (PlDtype)x->dtype, x->ndim, x->shape);
    d->shape[pl_attr_i(c->attrs, k)] = total;
  }
  return pl_sizes_check(c, d->ndim, d->shape);
}

static int64_t positions(const PlInfer *c, int k) {
  const PlArray *x = c->in[0];
  return pl_attr_has(c->attrs, k) && x->ndim ? x->shape[pl_attr_i(c->attrs, k)] : x->numel;
}

static PlStatus repeat_interleave_infer(PlInfer *c) {
  int64_t r = pl_attr_i(c->attrs, 0), total;
  if (r < 0) PL_FAIL(PL_ERR_ARG, "repeat_interleave: repeats %lld is negative", (long long)r);
  if (__builtin_mul_overflow(positions(c, 1), r, &total))
    PL_FAIL(PL_ERR_SHAPE, "repeat_interleave: %lld repeats are too many", (long long)r);
  return repeated(c, 1, total);
}

static PlStatus repeat_interleave_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = with_shape(g, &pl_op_repeat_interleave_bwd, 1, &g->dy[0]);
  return g->status;
}

PL_OP(repeat_interleave, .doc = "Every position along dim `repeats` times in a row; without dim, of the flattened tensor.",
      .example = "print(T.tensor { 1, 2 }:repeat_interleave(2))  --> {1., 1., 2., 2.}  -- f32[4] cpu", .nin = 1, .nout = 1, .nattr = 2,
      .args = {"x"}, .attrs = {A_INT_REQ("repeats"), A_DIM_OPT("dim")}, .cls = PL_INDEXING, .flags = PL_F_LINEAR, .batch = pl_batch_dims,
      .infer = repeat_interleave_infer, .grad = repeat_interleave_grad, PL_KERNEL(repeat_interleave), );

static PlStatus repeat_interleave_bwd_infer(PlInfer *c) { return last_shape_infer(c, repeat_interleave_infer, 1); }
static PlStatus repeat_interleave_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = without_shape(g, &pl_op_repeat_interleave, 1, &g->dy[0]);
  return g->status;
}

PL_OP(repeat_interleave_bwd, .doc = "Adds runs of repeats up.", .nin = 1, .nout = 1, .nattr = 3, .args = {"dy"},
      .attrs = {A_INT_REQ("repeats"), A_INT_OPT("dim"), A_SHAPE_REQ("shape")}, .cls = PL_REDUCTION, .batch = pl_batch_dims,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = repeat_interleave_bwd_infer, .grad = repeat_interleave_bwd_grad,
      PL_KERNEL(repeat_interleave_bwd), );

static int64_t count_at(const PlArray *a, int64_t i) {
  int64_t at = i * (a->ndim ? a->strides[0] : 0);
  return a->dtype == PL_I64 ? ((const int64_t *)a->data)[at] : ((const int32_t *)a->data)[at];
}

static PlStatus check_counts(const PlInfer *c, int64_t n) {
  const PlArray *r = c->in[1];
  PL_TRY(pl_check_ndim(c, 1, 0, 1));
  if (r->dtype != PL_I64 && r->dtype != PL_I32)
    PL_FAIL(PL_ERR_DTYPE, "%s: counts must be i64 or i32, got %s", c->op->name, pl_desc_text(r));
  if (r->numel != n && r->numel != 1)
    PL_FAIL(PL_ERR_SHAPE, "%s: %lld counts for %lld positions of %s", c->op->name, (long long)r->numel, (long long)n,
            pl_desc_text(c->in[0]));
  return PL_OK;
}

static PlStatus repeat_each_infer(PlInfer *c) {
  const PlArray *r = c->in[1];
  int64_t n = positions(c, 0), total = 0;
  PL_TRY(check_counts(c, n));
  for (int64_t i = 0; i < n; i++) {
    int64_t k = count_at(r, r->numel == 1 ? 0 : i);
    if (k < 0) PL_FAIL(PL_ERR_ARG, "repeat_each: count %lld at position %lld is negative", (long long)k, (long long)i + 1);
    if (__builtin_add_overflow(total, k, &total)) PL_FAIL(PL_ERR_SHAPE, "repeat_each: the counts are too large");
  }
  return repeated(c, 0, total);
}

static PlStatus repeat_each_grad(PlMaker *g) {
  PlVal in[2] = {g->dy[0], g->x[1]};
  if (g->want[0]) g->dx[0] = with_shape(g, &pl_op_repeat_each_bwd, 2, in);
  return g->status;
}

PL_OP(repeat_each,
      .doc = "Position i along dim counts[i] times in a row (counts: 1-d i64 or i32); without dim, of the flattened "
             "tensor. repeat_interleave calls this when its repeats are a tensor.",
      .example = "print(T.repeat_each(T.tensor { 1, 2 }, T.tensor({ 2, 1 }, { dtype = \"i64\" }), { dim = 1 }))\n"
                 "--> {1., 1., 2.}  -- f32[3] cpu",
      .nin = 2, .nout = 1, .nattr = 1, .args = {"x", "counts"}, .attrs = {A_DIM_OPT("dim")}, .cls = PL_INDEXING, .batch = pl_batch_rows,
      .flags = PL_F_LINEAR | PL_F_CONTIGUOUS | PL_F_IMPURE | PL_F_NOMETHOD, .reads_values = 2, .infer = repeat_each_infer,
      .grad = repeat_each_grad, PL_KERNEL(repeat_each), );

/* What the counts add up to is not known here: the kernel looks. */
static PlStatus repeat_each_bwd_infer(PlInfer *c) {
  const PlArray *dy = c->in[0];
  const int n = pl_attr_n(c->attrs, 1);
  const int64_t *shape = pl_attr_list(c->attrs, 1);
  PL_TRY(pl_sizes_check(c, n, shape));
  PL_TRY(pl_check_axis(c, 0, n));
  const bool flat = !pl_attr_has(c->attrs, 0) || n == 0;
  int64_t count = 1;
  for (int d = 0; d < n; d++) count *= shape[d];
  PL_TRY(check_counts(c, flat ? count : shape[pl_attr_i(c->attrs, 0)]));
  if (flat) PL_TRY(pl_check_ndim(c, 0, 1, 1));
  bool fits = flat || dy->ndim == n;
  for (int d = 0; !flat && fits && d < n; d++) fits = d == pl_attr_i(c->attrs, 0) || dy->shape[d] == shape[d];
  if (!fits) PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit the shape", c->op->name, pl_desc_text(dy));
  pl_desc_set(&c->out[0], (PlDtype)dy->dtype, n, shape);
  return PL_OK;
}

static PlStatus repeat_each_bwd_grad(PlMaker *g) {
  PlVal in[2] = {g->dy[0], g->x[1]};
  if (g->want[0]) g->dx[0] = without_shape(g, &pl_op_repeat_each, 2, in);
  return g->status;
}

PL_OP(repeat_each_bwd, .doc = "Adds runs of counted repeats up.", .nin = 2, .nout = 1, .nattr = 2, .args = {"dy", "counts"},
      .attrs = {A_INT_OPT("dim"), A_SHAPE_REQ("shape")}, .cls = PL_REDUCTION, .batch = pl_batch_rows,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = repeat_each_bwd_infer, .grad = repeat_each_bwd_grad,
      PL_KERNEL(repeat_each_bwd), );

/* ---- pad ----------------------------------------------------------------------------------------------------- */

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };
#define PAD_LIMIT ((int64_t)1 << 40)

/* Pads come in pairs (before, after), the last dim's first; negative ones crop. */
static PlStatus pad_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  PlDesc *d = &c->out[0];
  const int64_t *pads = pl_attr_list(c->attrs, 0), mode = pl_attr_i(c->attrs, 1);
  int m = pl_attr_n(c->attrs, 0);
  if (mode == 0 && c->op == &pl_op_pad) {
    PL_TRY(pl_check_fits(c, (PlDtype)x->dtype, pl_attr_f(c->attrs, 2)));
    PL_TRY(pl_check_whole(c, (PlDtype)x->dtype, 2));
  }
  if (m % 2 || m / 2 > x->ndim)
    PL_FAIL(PL_ERR_ARG, "pad: %d pads for %s; give a pair (before, after) a dim, the last dim's first", m, pl_desc_text(x));
  pl_desc_set(d, (PlDtype)x->dtype, x->ndim, x->shape);
  for (int k = 0; k < m / 2; k++) {
    int dim = x->ndim - 1 - k;
    int64_t lo = pads[2 * k], hi = pads[2 * k + 1], n = x->shape[dim];
    if (lo < -PAD_LIMIT || hi < -PAD_LIMIT || lo > PAD_LIMIT || hi > PAD_LIMIT)
      PL_FAIL(PL_ERR_ARG, "pad: pads %lld, %lld of dim %d are out of range", (long long)lo, (long long)hi, dim + 1);
    int64_t left = n + (lo < 0 ? lo : 0) + (hi < 0 ? hi : 0);            /* what cropping leaves */
    const bool ends = mode == PAD_REPLICATE && n > 0 && n + lo + hi > 0; /* an end is there to repeat, whatever is cropped */
    if (left < 0 && !ends)
      PL_FAIL(PL_ERR_SHAPE, "pad: pads %lld, %lld crop more than dim %d of %s has", (long long)lo, (long long)hi, dim + 1, pl_desc_text(x));
    int64_t most = mode == PAD_REFLECT ? left - 1 : mode == PAD_CIRCULAR ? left : INT64_MAX;
    if (mode == PAD_REPLICATE && !ends) most = 0;
    if ((lo > 0 && lo > most) || (hi > 0 && hi > most))
      PL_FAIL(PL_ERR_SHAPE, "pad: pads %lld, %lld are too large for mode %s on dim %d of %s; at most %lld", (long long)lo, (long long)hi,
              mode == PAD_REFLECT    ? "reflect"
              : mode == PAD_CIRCULAR ? "circular"
                                     : "replicate",
              dim + 1, pl_desc_text(x), (long long)(most < 0 ? 0 : most));
    d->shape[dim] = n + lo + hi;
  }
  return pl_sizes_check(c, d->ndim, d->shape);
}

static PlVal pad_like(PlMaker *g, const PlOp *op, PlVal v, bool negate) {
  PlAttrs a;
  int64_t pads[PL_ATTR_POOL];
  int n = pl_attr_n(g->attrs, 0);
  for (int k = 0; k < n; k++) pads[k] = pl_attr_list(g->attrs, 0)[k] * (negate ? -1 : 1);
  pl_attrs_init(op, &a);
  pl_g_attrs_list(g, &a, 0, n, pads);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, 1));
  if (op == &pl_op_pad_bwd) pl_g_attrs_list(g, &a, 2, g->in[0]->ndim, g->in[0]->shape);
  return pl_g_op(g, op, 1, &v, &a, NULL);
}

/* Padding with a constant is undone by the opposite pads; borders made from x add back into it. */
static PlStatus pad_grad(PlMaker *g) {
  bool constant = pl_attr_i(g->attrs, 1) == PAD_CONSTANT;
  if (g->want[0]) g->dx[0] = pad_like(g, constant ? &pl_op_pad : &pl_op_pad_bwd, g->dy[0], constant);
  return g->status;
}

PL_OP(pad,
      .doc = "Widens (or, with negative pads, crops) dims; pads are pairs (before, after), the last dim's first. "
             "Modes: constant (value), reflect, replicate, circular.",
      .example = "print(T.tensor { 1, 2 }:pad({ 1, 2 }))  --> {0., 1., 2., 0., 0.}  -- f32[5] cpu\n"
                 "print(T.tensor { 1, 2, 3 }:pad({ 1, 1 }, { mode = \"circular\" }))  --> {3., 1., 2., 3., 1.}  -- f32[5] cpu",
      .nin = 1, .nout = 1, .nattr = 3, .args = {"x"},
      .attrs = {A_INTS_REQ("pad"), A_ENUM("mode", "constant|reflect|replicate|circular", 0), A_FLOAT("value", 0)}, .cls = PL_INDEXING,
      .batch = pl_batch_each, .infer = pad_infer, .grad = pad_grad, PL_KERNEL(pad), );

static PlStatus pad_bwd_infer(PlInfer *c) { return last_shape_infer(c, pad_infer, -1); }
static PlStatus pad_bwd_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = pad_like(g, &pl_op_pad, g->dy[0], false);
  return g->status;
}

PL_OP(pad_bwd, .doc = "Adds the borders of a padded gradient back to where they were read.", .nin = 1, .nout = 1, .nattr = 3,
      .args = {"dy"}, .attrs = {A_INTS_REQ("pad"), A_ENUM("mode", "constant|reflect|replicate|circular", 0), A_SHAPE_REQ("shape")},
      .cls = PL_REDUCTION, .batch = pl_batch_dims, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = pad_bwd_infer, .grad = pad_bwd_grad,
      PL_KERNEL(pad_bwd), );
