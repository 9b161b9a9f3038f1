/* SPDX-License-Identifier: MIT
 * strided_put: a tensor with one strided window replaced. It is what an in-place op on a view means for the
 * gradient history of the whole (engine/grad/inplace.c records it without running it). */
#include "engine/ops/names.h"
#include "engine/ops/op.h"
#include "engine/ops/shape/view.h"
#include "kernels/join.h"

static PlStatus infer(PlInfer *c) {
  const PlArray *v = c->in[1];
  PL_TRY(pl_check_dtype(c, 1, (PlDtype)c->in[0]->dtype));
  if (v->ndim != pl_attr_n(c->attrs, 0) || pl_attr_n(c->attrs, 0) != pl_attr_n(c->attrs, 1))
    PL_FAIL(PL_ERR_SHAPE, "strided_put: the window has %d sizes, the value is %s", pl_attr_n(c->attrs, 0), pl_desc_text(v));
  int64_t last = pl_attr_i(c->attrs, 2);
  for (int d = 0; d < v->ndim; d++) {
    if (v->shape[d] != pl_attr_list(c->attrs, 0)[d] || pl_attr_list(c->attrs, 1)[d] < 0)
      PL_FAIL(PL_ERR_SHAPE, "strided_put: the window does not have the shape of %s", pl_desc_text(v));
    int64_t reach;
    if (v->shape[d] > 0 &&
        (__builtin_mul_overflow(v->shape[d] - 1, pl_attr_list(c->attrs, 1)[d], &reach) || __builtin_add_overflow(last, reach, &last)))
      last = INT64_MAX;
  }
  if (v->numel > 0 && (pl_attr_i(c->attrs, 2) < 0 || last >= c->in[0]->numel))
    PL_FAIL(PL_ERR_INDEX, "strided_put: the window reaches outside of %s", pl_desc_text(c->in[0]));
  return pl_infer_same(c);
}

/* dx = dy with the window cleared; dvalue = the window of dy. */
static PlStatus grad(PlMaker *g) {
  PlVal dy = pl_g1(g, &pl_op_contiguous, g->dy[0]);
  if (g->want[1]) {
    PlAttrs a;
    pl_attrs_init(&pl_op_as_strided, &a);
    for (int k = 0; k < 2; k++) pl_g_attrs_list(g, &a, k, pl_attr_n(g->attrs, k), pl_attr_list(g->attrs, k));
    pl_attrs_int(&a, 2, pl_attr_i(g->attrs, 2));
    g->dx[1] = pl_g_op(g, &pl_op_as_strided, 1, &dy, &a, NULL);
  }
  if (g->want[0]) {
    PlVal in[2] = {dy, pl_g_zeros_like(g, 1)};
    g->dx[0] = pl_g_op(g, &pl_op_strided_put, 2, in, g->attrs, NULL);
  }
  return g->status;
}

PL_OP(strided_put,
      .doc = "x with the window of given sizes, strides and offset (elements) replaced by value. Internal: the "
             "history of an in-place op on a view.",
      .formula = "dx = dy outside the window, dvalue = dy inside", .nin = 2, .nout = 1, .nattr = 3, .args = {"x", "value"},
      .attrs = {A_SHAPE_REQ("size"), A_INTS_REQ("stride"), A_INT("offset", 0)}, .cls = PL_INDEXING, .batch = pl_batch_strided_put,
      .flags = PL_F_LINEAR | PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = infer, .grad = grad, PL_KERNEL(strided_put), );
