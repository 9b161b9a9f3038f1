/* SPDX-License-Identifier: MIT
 * The gradient of scatter_reduce's product. Of src it is the product over the others, by division where no value is 0 or one is. Of two
 * zeros in one place it is 0, but it has slopes: the k-th derivative sees k + 1 zeros. Those come from an op of their own, whose value
 * is 0 and whose derivatives are those of the product, multiplied together without a division. */
#include "engine/ops/index/index.h"
#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/reduce/dims.h"
#include "kernels/create.h"

/* Which elements of src are 0, and how many of each place. */
typedef struct Zeros {
  PlVal is, count;
} Zeros;

static PlVal scattered(PlMaker *g, const PlOp *op, PlVal to, PlVal index, PlVal src, int64_t dim, int64_t base) {
  PlAttrs a;
  const PlVal in[3] = {to, index, src};
  pl_attrs_init(op, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 1, base);
  return pl_g_op(g, op, 3, in, &a, NULL);
}

static Zeros zeros_of(PlMaker *g, PlVal src, PlVal index, int64_t dim, int64_t base) {
  Zeros z = {.is = pl_g2(g, &pl_op_eq, src, pl_g_num(g, 0))};
  z.count = scattered(g, &pl_op_scatter_add, pl_g_zeros_like(g, 0), index, pl_g_cast(g, z.is, (PlDtype)g->in[0]->dtype), dim, base);
  return z;
}

static PlVal product_again(PlMaker *g, PlVal x, PlVal src) {
  const PlVal in[3] = {x, g->x[1], src};
  return pl_g_op(g, &pl_op_scatter_reduce, 3, in, g->attrs, NULL);
}

static PlVal several_zeros(PlMaker *g, PlVal w, PlVal src, int64_t dim, int64_t base) {
  PlAttrs a;
  const PlVal in[3] = {w, g->x[1], src};
  pl_attrs_init(&pl_op_scatter_zeros, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 1, base);
  return pl_g_op(g, &pl_op_scatter_zeros, 3, in, &a, NULL);
}

void pl_g_scatter_product(PlMaker *g, PlVal src, PlVal *dself, PlVal *dsrc) {
  const int64_t dim = pl_attr_i(g->attrs, 0), base = pl_attr_i(g->attrs, 3);
  const bool self = pl_attr_i(g->attrs, 2) != 0;
  const PlArray *index = g->in[1];
  const PlVal one = pl_g_num(g, 1), zero = pl_g_num(g, 0), dy = g->dy[0];
  PlVal x1 = pl_g3(g, &pl_op_masked_fill, g->x[0], pl_g2(g, &pl_op_eq, g->x[0], zero), one);
  *dself = g_div(g, g_mul(g, dy, product_again(g, x1, src)), x1);
  if (!g->want[2]) return;
  const Zeros z = zeros_of(g, src, g->x[1], dim, base);
  PlVal only = pl_g2(g, &pl_op_logical_and, z.is, pl_g2(g, &pl_op_le, pl_g_gather(g, z.count, g->x[1], dim, base), one));
  PlVal y1 = product_again(g, g->x[0], pl_g3(g, &pl_op_masked_fill, src, only, one));
  PlVal there = pl_g_gather(g, g_mul(g, dy, y1), g->x[1], dim, base);
  PlVal plain = g_div(g, pl_g_gather(g, g_mul(g, dy, g->y[0]), g->x[1], dim, base), pl_g3(g, &pl_op_masked_fill, src, z.is, one));
  *dsrc = g_where(g, only, there, pl_g3(g, &pl_op_masked_fill, plain, z.is, zero));
  if (index->ndim > 0 && index->shape[dim] > 1)
    *dsrc = g_add(g, *dsrc, several_zeros(g, self ? g_mul(g, dy, g->x[0]) : dy, src, dim, base));
}

/* v moved by step along dim, forward or back, with ones in front or behind, and ones where another place's begin. */
static PlVal moved(PlMaker *g, PlVal v, PlVal place, int64_t dim, int64_t step, bool back) {
  const PlArray *index = g->in[1];
  const int64_t n = index->shape[dim], left = n - step;
  PlVal early = pl_g_slice(g, place, dim, 0, left, 1), late = pl_g_slice(g, place, dim, step, left, 1);
  PlVal part = g_where(g, pl_g2(g, &pl_op_eq, early, late), pl_g_slice(g, v, dim, back ? step : 0, left, 1), pl_g_num(g, 1));
  PlVal ones = g_addn(g, g_muln(g, pl_g_slice(g, v, dim, 0, step, 1), 0), 1);
  const PlVal parts[2] = {back ? part : ones, back ? ones : part};
  return g_with_int(g, &pl_op_cat, 2, parts, dim);
}

/* Of each element the product of those of its place that are before it, or behind. */
static PlVal products(PlMaker *g, PlVal v, PlVal place, int64_t dim, bool back) {
  const int64_t n = g->in[1]->shape[dim];
  PlVal p = moved(g, v, place, dim, 1, back);
  for (int64_t step = 1; step < n - 1; step *= 2) p = g_mul(g, p, moved(g, p, place, dim, step, back));
  return p;
}

/* In the order of places, so that a place's elements are neighbours. What is in places without several zeros is taken for 1, and its
 * w for 0: infinities there are not this op's. */
static PlStatus zeros_composed(PlMaker *g) {
  const int64_t dim = pl_attr_i(g->attrs, 0), base = pl_attr_i(g->attrs, 1);
  const PlVal index = g->x[1], one = pl_g_num(g, 1), zero = pl_g_num(g, 0);
  if (g->in[1]->ndim == 0 || g->in[1]->shape[dim] < 2) {
    g->dx[0] = g_mul(g, g_mul(g, pl_g_gather(g, g->x[0], index, dim, base), g->x[2]), zero);
    return g->status;
  }
  const Zeros z = zeros_of(g, g->x[2], index, dim, base);
  PlVal place = pl_g2(g, &pl_op_gt, z.count, one), there = pl_g_gather(g, place, index, dim, base), order[2];
  PlVal w = g_where(g, place, g->x[0], zero), src = g_where(g, there, g->x[2], one);
  PlAttrs a;
  pl_attrs_init(&pl_op_sort, &a);
  pl_attrs_int(&a, 0, dim);
  pl_attrs_int(&a, 3, base);
  pl_g_op(g, &pl_op_sort, 1, &index, &a, order);
  PlVal sorted = pl_g_gather(g, src, order[1], dim, base);
  PlVal others = g_mul(g, products(g, sorted, order[0], dim, false), products(g, sorted, order[0], dim, true));
  others = scattered(g, &pl_op_scatter, g_muln(g, src, 0), order[1], others, dim, base);
  PlVal some = pl_g2(g, &pl_op_logical_and, z.is, there);
  g->dx[0] = g_where(g, some, g_mul(g, pl_g_gather(g, w, index, dim, base), others), zero);
  return g->status;
}

static PlStatus zeros_infer(PlInfer *c) {
  const PlArray *w = c->in[0], *index = c->in[1];
  PL_TRY(pl_index_check_beside(c, 1, (int)pl_attr_i(c->attrs, 0)));
  PL_TRY(pl_check_like(c, 2, 1));
  PL_TRY(pl_check_dtype(c, 2, (PlDtype)w->dtype));
  pl_desc_set(&c->out[0], (PlDtype)w->dtype, index->ndim, index->shape);
  return PL_OK;
}

PL_OP(scatter_zeros,
      .doc = "What the product of scatter_reduce has for a gradient where src is 0 in a place with other zeros: 0. Its derivatives "
             "are not: w at index times the product of the other elements of src that index sends to the same position.",
      .nin = 3, .nout = 1, .nattr = 2, .args = {"w", "index", "src"}, .attrs = {A_DIM_REQ("dim"), A_BASE}, .cls = PL_INDEXING,
      .batch = pl_batch_dims, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = zeros_infer, .grad = pl_grad_by_composition,
      .composed = zeros_composed, PL_KERNEL(zeros));
