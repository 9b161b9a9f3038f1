/* SPDX-License-Identifier: MIT
 * Shorthands for gradient makers, so that a maker reads like its formula. All emit ops into g's graph. */
#ifndef PL_ENGINE_OPS_MAKE_H
#define PL_ENGINE_OPS_MAKE_H

#include "engine/ops/names.h"
#include "engine/ops/op.h"

static inline PlVal g_add(PlMaker *g, PlVal a, PlVal b) { return pl_g2(g, &pl_op_add, a, b); }
static inline PlVal g_sub(PlMaker *g, PlVal a, PlVal b) { return pl_g2(g, &pl_op_sub, a, b); }
static inline PlVal g_mul(PlMaker *g, PlVal a, PlVal b) { return pl_g2(g, &pl_op_mul, a, b); }
static inline PlVal g_div(PlMaker *g, PlVal a, PlVal b) { return pl_g2(g, &pl_op_div, a, b); }
static inline PlVal g_neg(PlMaker *g, PlVal a) { return pl_g1(g, &pl_op_neg, a); }
static inline PlVal g_where(PlMaker *g, PlVal c, PlVal a, PlVal b) { return pl_g3(g, &pl_op_where, c, a, b); }
/* With numbers: a * v, a + v, v - a, a / v. */
static inline PlVal g_muln(PlMaker *g, PlVal a, double v) { return g_mul(g, a, pl_g_num(g, v)); }
static inline PlVal g_addn(PlMaker *g, PlVal a, double v) { return g_add(g, a, pl_g_num(g, v)); }
static inline PlVal g_rsubn(PlMaker *g, double v, PlVal a) { return g_sub(g, pl_g_num(g, v), a); }
static inline PlVal g_divn(PlMaker *g, PlVal a, double v) { return g_div(g, a, pl_g_num(g, v)); }

static inline PlVal g_zero(PlMaker *g) { return pl_g_num(g, 0); }
/* dy where a wins against b (loses(a, b) is false), half of it where they are equal. */
static inline PlVal g_won(PlMaker *g, const PlOp *loses, PlVal a, PlVal b, PlVal dy) {
  PlVal shared = g_where(g, pl_g2(g, &pl_op_eq, a, b), g_muln(g, dy, 0.5), dy);
  return g_where(g, pl_g2(g, loses, a, b), g_zero(g), shared);
}

/* Is an input a float beside halves (PL_F_WIDE)? What a formula makes of it may be one, too. */
static inline bool g_wide(const PlMaker *g) {
  bool wide = false;
  for (int i = 0; (g->op->flags & PL_F_WIDE) && i < g->nin; i++) wide |= g->in[i]->dtype != g->outd[0].dtype;
  return wide;
}

/* dx of a broadcast input: v, of the output's shape, summed to input i's shape and cast to its dtype. */
static inline void g_give(PlMaker *g, int i, PlVal v) {
  if (!g->want[i] || v == PL_NONE) return;
  PlDtype d = (PlDtype)g->in[i]->dtype;
  if (!g->same[i]) v = pl_g_sum_to(g, v, i);
  if ((d != (PlDtype)g->outd[0].dtype || g_wide(g)) && pl_is_float(d)) v = pl_g_cast(g, v, d);
  g->dx[i] = v;
}

/* Zero gradients of a flat function: of dy's shape, so that the output counts as tracked, summed as usual. */
static inline void g_flat(PlMaker *g, int i) {
  if (!g->want[i]) return;
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, g->outd[0].dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->dy[0]);
  g_give(g, i, pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL));
}

/* v sigmoid(x): as softplus's gradient, without its threshold, so that its own gradient has digits where sigmoid(x) is nearly 1. */
static inline PlVal g_logistic(PlMaker *g, PlVal v, PlVal x) {
  const PlVal in[2] = {v, x};
  PlAttrs a;
  pl_attrs_init(&pl_op_softplus_bwd, &a);
  pl_attrs_float(&a, 1, 1e38);
  return pl_g_op(g, &pl_op_softplus_bwd, 2, in, &a, NULL);
}

/* Emits g->op itself on other inputs with the same attributes. */
static inline PlVal g_again2(PlMaker *g, PlVal a, PlVal b) {
  const PlVal in[2] = {a, b};
  return pl_g_op(g, g->op, 2, in, g->attrs, NULL);
}

#endif
