/* SPDX-License-Identifier: MIT
 * See unroll.h. */
#include "engine/ops/recurrent/unroll.h"
#include "engine/ops/names.h"

#include <stdlib.h>

#include "engine/ops/reduce/dims.h"

PlStatus pl_unroll_shape(const PlInfer *c, int i, int ndim, const int64_t *shape) {
  const PlArray *a = i < c->nin ? c->in[i] : NULL;
  if (!a) return PL_OK;
  bool ok = a->ndim == ndim && a->dtype == c->in[0]->dtype;
  for (int d = 0; ok && d < ndim; d++) ok = a->shape[d] == shape[d];
  if (ok) return PL_OK;
  const PlArray want = {.dtype = c->in[0]->dtype, .ndim = (uint8_t)ndim, .shape = shape};
  PL_FAIL(PL_ERR_SHAPE, "%s: %s is %s, should be %s", c->op->name, c->op->args[i], pl_desc_text(a), pl_desc_text(&want));
}

PlVal pl_unroll_zeros(PlMaker *g, PlVal v) {
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, g->in[0]->dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, v);
  return pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL);
}

PlVal pl_unroll_pick(PlMaker *g, PlVal v, int64_t k) {
  if (v == PL_NONE) return v;
  PlAttrs a;
  pl_attrs_init(&pl_op_select, &a);
  pl_attrs_int(&a, 0, 0);
  pl_attrs_int(&a, 1, k);
  return pl_g_op(g, &pl_op_select, 1, &v, &a, NULL);
}
PlVal pl_unroll_part(PlMaker *g, PlVal v, int64_t j, int64_t H) {
  if (v == PL_NONE) return v;
  PlAttrs a;
  pl_attrs_init(&pl_op_narrow, &a);
  pl_attrs_int(&a, 0, 1);
  pl_attrs_int(&a, 1, j * H);
  pl_attrs_int(&a, 2, H);
  return pl_g_op(g, &pl_op_narrow, 1, &v, &a, NULL);
}
PlVal pl_unroll_plus(PlMaker *g, PlVal a, PlVal b) { return a == PL_NONE ? b : b == PL_NONE ? a : g_add(g, a, b); }
PlVal pl_unroll_times(PlMaker *g, PlVal a, PlVal b) { return a == PL_NONE || b == PL_NONE ? PL_NONE : g_mul(g, a, b); }
PlVal pl_unroll_product(PlMaker *g, PlVal a, PlVal b, bool ta, bool tb) {
  if (a == PL_NONE || b == PL_NONE) return PL_NONE;
  PlAttrs at;
  pl_attrs_init(&pl_op_matmul_t, &at);
  pl_attrs_int(&at, 0, ta);
  pl_attrs_int(&at, 1, tb);
  const PlVal in[2] = {a, b};
  return pl_g_op(g, &pl_op_matmul_t, 2, in, &at, NULL);
}

PlVal pl_unroll_stack(PlMaker *g, const PlVal *v, int64_t n, bool reverse, PlVal like) {
  PlVal *in = malloc((size_t)n * sizeof *in), zero = PL_NONE;
  if (!in) {
    pl_g_fail(g, pl_fail(PL_ERR_OOM, "out of memory for a second gradient"));
    return PL_NONE;
  }
  for (int64_t k = 0; k < n; k++) {
    PlVal x = v[reverse ? n - 1 - k : k];
    if (x == PL_NONE && zero == PL_NONE) zero = pl_unroll_zeros(g, like);
    in[k] = x == PL_NONE ? zero : x;
  }
  PlVal y = g_with_int(g, &pl_op_stack, (int)n, in, 0);
  free(in);
  return y;
}
