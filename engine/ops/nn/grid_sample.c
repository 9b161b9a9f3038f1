/* SPDX-License-Identifier: MIT
 * Images read at given places. Value and gradient have kernels; further derivatives, and devices without these kernels, take it
 * as a sum over elements that are picked by ops. */
#include "kernels/grid_sample.h"

#include "engine/ops/make.h"
#include "engine/ops/shape/view.h"

enum { MODE, PADDING, ALIGN, WANTED };

/* x and grid are inputs `first` and `first` + 1. */
static PlStatus check_places(const PlInfer *c, int first, int64_t *out) {
  const PlArray *x = c->in[first], *grid = c->in[first + 1];
  const int nd = x->ndim - 2;
  PL_TRY(pl_check_float(c, first));
  PL_TRY(pl_check_float(c, first + 1));
  if (nd < 2 || nd > 3 || grid->ndim != x->ndim || grid->shape[nd + 1] != nd || grid->shape[0] != x->shape[0])
    PL_FAIL(PL_ERR_SHAPE, "%s: input [N, C, H, W] with grid [N, h, w, 2] (or one dimension more) is wanted, got %s and %s", c->op->name,
            pl_desc_text(x), pl_desc_text(grid));
  if (x->dtype != grid->dtype)
    PL_FAIL(PL_ERR_DTYPE, "%s: input and grid must have one dtype, got %s and %s", c->op->name, pl_desc_text(x), pl_desc_text(grid));
  if (nd == 3 && pl_attr_i(c->attrs, MODE) == PLK_GRID_BICUBIC)
    PL_FAIL(PL_ERR_SHAPE, "%s: bicubic takes [N, C, H, W], got %s", c->op->name, pl_desc_text(x));
  for (int d = 0; d < nd; d++) {
    if (x->shape[d + 2] < 1) PL_FAIL(PL_ERR_SHAPE, "%s: the input %s is empty", c->op->name, pl_desc_text(x));
    if (x->shape[d + 2] > PLK_GRID_DIM_MAX)
      PL_FAIL(PL_ERR_SHAPE, "%s: dim %d of %s has more than 2^30 elements", c->op->name, d + 3, pl_desc_text(x));
    out[d + 2] = grid->shape[d + 1];
  }
  out[0] = x->shape[0], out[1] = x->shape[1];
  return PL_OK;
}

static PlStatus sample_infer(PlInfer *c) {
  int64_t out[5];
  PL_TRY(check_places(c, 0, out));
  pl_desc_set(&c->out[0], c->compute, c->in[0]->ndim, out);
  return PL_OK;
}

static PlStatus sample_grad(PlMaker *g) {
  const PlVal in[3] = {g->dy[0], g->x[0], g->x[1]};
  PlVal out[2];
  PlAttrs a;
  if (g->dy[0] == PL_NONE) return g->status;
  pl_attrs_init(&pl_op_grid_sample_bwd, &a);
  for (int k = MODE; k <= ALIGN; k++) pl_attrs_int(&a, k, pl_attr_i(g->attrs, k));
  pl_attrs_int(&a, WANTED, (g->want[0] ? 1 : 0) | (g->want[1] ? 2 : 0));
  pl_g_op(g, &pl_op_grid_sample_bwd, 3, in, &a, out);
  for (int i = 0; i < 2; i++)
    if (g->want[i]) g->dx[i] = out[i];
  return g->status;
}

static PlStatus bwd_infer(PlInfer *c) {
  int64_t out[5];
  PL_TRY(check_places(c, 1, out));
  PL_TRY(pl_check_same_dtype(c, 0, 1));
  PL_TRY(pl_check_shape(c, 0, c->in[1]->ndim, out));
  for (int i = 0; i < 2; i++) {
    pl_desc_set(&c->out[i], (PlDtype)c->in[i + 1]->dtype, c->in[i + 1]->ndim, c->in[i + 1]->shape);
    if (!(pl_attr_i(c->attrs, WANTED) >> i & 1)) c->out[i].dtype = PL_NDTYPE;
  }
  return PL_OK;
}

/* ---- by other ops; the formulas are those of kernels/cpu/isa/grid_sample_body.h ---- */

/* What is read along one axis, [N, places]: up to four elements, their numbers, whether they are there, their weights. */
typedef struct Axis {
  int n;
  PlVal at[4], there[4], w[4];
} Axis;

static PlVal less(PlMaker *g, PlVal a, PlVal b) { return pl_g2(g, &pl_op_lt, a, b); }

static PlVal padded(PlMaker *g, PlVal x, int64_t size, int padding, bool align) {
  const PlVal zero = pl_g_num(g, 0), most = pl_g_num(g, (double)(size - 1));
  if (padding == PLK_GRID_ZEROS) return x;
  if (padding == PLK_GRID_REFLECTION) {
    const double low = align ? 0 : -0.5, span = (double)(align ? size - 1 : size);
    if (span == 0) return g_muln(g, x, 0);
    PlVal d = pl_g1(g, &pl_op_abs, g_addn(g, x, -low));
    PlVal extra = g_sub(g, d, g_muln(g, pl_g1(g, &pl_op_trunc, g_divn(g, d, 2 * span)), 2 * span)), other = g_rsubn(g, 2 * span, extra);
    x = g_addn(g, g_where(g, less(g, other, extra), other, extra), low);
  }
  x = g_where(g, less(g, zero, x), x, g_where(g, pl_g2(g, &pl_op_le, x, zero), zero, x)); /* its slope at a border is 0 */
  return g_where(g, less(g, x, most), x, g_where(g, pl_g2(g, &pl_op_le, most, x), most, x));
}

static void tap(PlMaker *g, Axis *a, PlVal x, int64_t size, PlVal w) {
  const PlVal zero = pl_g_num(g, 0);
  PlVal there = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_ge, x, zero), pl_g2(g, &pl_op_le, x, pl_g_num(g, (double)(size - 1))));
  a->there[a->n] = there;
  a->at[a->n] = pl_g_cast(g, g_where(g, there, x, zero), PL_I64);
  a->w[a->n++] = g_where(g, there, w, g_where(g, pl_g2(g, &pl_op_eq, x, x), zero, x)); /* a place that is none is not outside */
}

/* a t^3 + b t^2 + c t + d */
static PlVal polynomial(PlMaker *g, PlVal t, double a, double b, double c, double d) {
  PlVal y = g_mul(g, g_addn(g, g_muln(g, t, a), b), t);
  return g_addn(g, g_mul(g, c == 0 ? y : g_addn(g, y, c), t), d);
}

static void axis_of(PlMaker *g, const PlAttrs *attrs, PlVal x, int64_t size, Axis *a) {
  const bool align = pl_attr_i(attrs, ALIGN) != 0;
  const int mode = (int)pl_attr_i(attrs, MODE), padding = (int)pl_attr_i(attrs, PADDING);
  const double scale = (double)(align ? size - 1 : size) / 2;
  a->n = 0;
  x = g_muln(g, g_addn(g, x, 1), scale);
  if (!align) x = g_addn(g, x, -0.5);
  if (mode == PLK_GRID_BICUBIC) { /* Keys 1981 with a = -0.75 */
    PlVal low = pl_g1(g, &pl_op_floor, x), t = g_where(g, pl_g1(g, &pl_op_isfinite, x), g_sub(g, x, low), pl_g_num(g, 0)),
          u = g_rsubn(g, 1, t), w[4];
    w[0] = polynomial(g, g_addn(g, t, 1), -0.75, 3.75, -6, 3);
    w[1] = polynomial(g, t, 1.25, -2.25, 0, 1);
    w[2] = polynomial(g, u, 1.25, -2.25, 0, 1);
    w[3] = polynomial(g, g_addn(g, u, 1), -0.75, 3.75, -6, 3);
    for (int k = 0; k < 4; k++) tap(g, a, padded(g, g_addn(g, low, k - 1), size, padding, align), size, w[k]);
    return;
  }
  x = padded(g, x, size, padding, align);
  if (mode == PLK_GRID_NEAREST) {
    PlVal at = pl_g1(g, &pl_op_round, x);
    /* 1, with a gradient of zeros, as the kernel's: chosen, since 0 times an infinite element is NaN */
    tap(g, a, at, size, g_where(g, pl_g1(g, &pl_op_isfinite, at), pl_g_num(g, 1), at));
    return;
  }
  PlVal low = pl_g1(g, &pl_op_floor, x), part = g_sub(g, x, low);
  tap(g, a, low, size, g_rsubn(g, 1, part));
  tap(g, a, g_addn(g, low, 1), size, part);
}

/* [N, places] under [N, C, places] */
static PlVal beside_channels(PlMaker *g, PlVal v, int64_t N, int64_t C, int64_t places) {
  const int64_t to[3] = {N, C, places};
  v = pl_g_reshape(g, v, 3, (int64_t[]){N, 1, places});
  return pl_g_list(g, &pl_op_expand, v, 0, 3, to);
}

static PlStatus sample_composed(PlMaker *g) {
  const PlArray *x = g->in[0], *grid = g->in[1];
  const int nd = x->ndim - 2;
  const int64_t N = x->shape[0], C = x->shape[1];
  const bool half = pl_is_half((PlDtype)x->dtype);
  int64_t volume = 1, places = 1, out[5] = {N, C}, ends[3] = {1, 1, 1};
  for (int d = 0; d < nd; d++) volume *= x->shape[d + 2], places *= out[d + 2] = grid->shape[d + 1];
  PlVal from = half ? pl_g_cast(g, g->x[0], PL_F32) : g->x[0], where = half ? pl_g_cast(g, g->x[1], PL_F32) : g->x[1], y = PL_NONE;
  from = pl_g_reshape(g, from, 3, (int64_t[]){N, C, volume});
  Axis axis[3];
  int taps = 1;
  for (int d = 0; d < nd; d++) { /* the grid names the last dim first */
    PlVal p = pl_g_reshape(g, pl_g_slice(g, where, nd + 1, nd - 1 - d, 1, 1), 2, (int64_t[]){N, places});
    axis_of(g, g->attrs, p, x->shape[d + 2], &axis[d]);
    taps *= axis[d].n;
  }
  for (int d = nd - 2; d >= 0; d--) ends[d] = ends[d + 1] * axis[d + 1].n;
  for (int k = 0; k < taps; k++) {
    PlVal at = PL_NONE, there = PL_NONE, w = PL_NONE;
    for (int d = 0; d < nd; d++) {
      const int j = k / (int)ends[d] % axis[d].n;
      const Axis *a = &axis[d];
      at = d ? g_add(g, g_muln(g, at, (double)x->shape[d + 2]), a->at[j]) : a->at[j];
      there = d ? pl_g2(g, &pl_op_logical_and, there, a->there[j]) : a->there[j];
      w = d ? g_mul(g, w, a->w[j]) : a->w[j];
    }
    const PlVal in[2] = {from, beside_channels(g, at, N, C, places)};
    PlAttrs a;
    pl_attrs_init(&pl_op_gather, &a);
    pl_attrs_int(&a, 0, 2);
    pl_attrs_int(&a, 1, 0); /* index_base */
    PlVal v = g_where(g, beside_channels(g, there, N, C, places), pl_g_op(g, &pl_op_gather, 2, in, &a, NULL), pl_g_num(g, 0));
    v = g_mul(g, v, pl_g_reshape(g, w, 3, (int64_t[]){N, 1, places}));
    y = k ? g_add(g, y, v) : v;
  }
  y = pl_g_reshape(g, y, nd + 2, out);
  g->dx[0] = half ? pl_g_cast(g, y, (PlDtype)x->dtype) : y;
  return g->status;
}

static PlStatus sample_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  return pl_expand_composed(&pl_op_grid_sample, in, nin, attrs, out);
}

#define GRID_ATTRS \
  A_ENUM("mode", "bilinear|nearest|bicubic", 0), A_ENUM("padding_mode", "zeros|border|reflection", 0), A_BOOL("align_corners", 0)

PL_OP(grid_sample, .autocast = PL_CAST_F32,
      .doc = "x[N,C,H,W] read at places grid[N,h,w,2], whose last dim has x (width), then y (height) in [-1, 1] (Jaderberg et al. "
             "2015): [N,C,h,w]; with one dim more in volumes. padding_mode: what is outside. align_corners: -1 and 1 are the outer "
             "elements' centres, else their outer borders. bicubic takes [N,C,H,W] alone. A place that is NaN, or infinite where it "
             "is reflected, reads NaN.",
      .example = "print(T.grid_sample(T.ones(1, 1, 2, 2), T.zeros(1, 1, 1, 2)))  --> {{{{1.}}}}  -- f32[1,1,1,1] cpu",
      .formula = "y[n,c,p] = sum over elements near grid[n,p] of weight x[n,c,element]", .nin = 2, .nout = 1, .nattr = 3,
      .args = {"x", "grid"}, .attrs = {GRID_ATTRS}, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY,
      .promote = PL_PROMOTE_ALL, .batch = pl_batch_samples, .infer = sample_infer, .grad = sample_grad, .composed = sample_composed,
      .expand = sample_expand, PL_KERNEL(grid_sample));
PL_OP(grid_sample_bwd, .doc = "The gradients of grid_sample: dx, dgrid.", .nin = 3, .nout = 2, .nattr = 4, .args = {"dy", "x", "grid"},
      .attrs = {GRID_ATTRS, A_INT_REQ("wanted")}, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_INTERNAL, .batch = pl_batch_samples,
      .infer = bwd_infer, .grad = pl_grad_by_composition, .gradient_of = &pl_op_grid_sample, PL_KERNEL(grid_sample_bwd));
