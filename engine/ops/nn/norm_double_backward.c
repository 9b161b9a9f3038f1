/* SPDX-License-Identifier: MIT
 * Second derivatives of normalization, made of primitives. With r = rstd, h = (x - mean) r, g = w dy and the
 * projection P(a) = r (a - mean a - h mean(a h)) (no "mean a" for RMS norm), the backward ops compute
 *   dx = P(g),  dw = sum dy h,  db = sum dy.
 * P is symmetric, so with v, u, b the gradients of dx, dw, db:
 *   ddy = w P(v) + u h + b,   dw' = sum dy P(v),
 *   dx' = P(-r (v mean(g h) + g mean(v h))) - r h mean(v P(g)) + P(u dy),
 * where h and r count as functions of x. With fixed statistics P(a) = r a and dx' = r u dy alone.
 *
 * The statistics are outputs that nothing differentiates, so a graph that reads them as they are has no derivative through them: the
 * derivatives of these formulas (the third ones of the norms, and those of tangents) would be wrong. norm_statistic says what
 * they are functions of. */
#include "engine/ops/names.h"
#include "engine/ops/nn/norm.h"

#include <stdio.h>

#include "kernels/join.h"
#include "kernels/norm.h"

/* ---- statistics as functions of x ------------------------------------------------------------------------------ */

static PlStatus statistic_infer(PlInfer *c) {
  const PlArray *s = c->in[0];
  for (int i = 0; i < c->nin; i++) {
    if (!c->in[i]) continue;
    PL_TRY(pl_check_float(c, i));
    PL_TRY(pl_check_ndim(c, i, s->ndim, s->ndim));
  }
  if (pl_attr_i(c->attrs, 0) < 1) PL_FAIL(PL_ERR_ARG, "%s: of %lld elements", c->op->name, (long long)pl_attr_i(c->attrs, 0));
  pl_desc_set(&c->out[0], (PlDtype)s->dtype, s->ndim, s->shape);
  return PL_OK;
}

/* mean = sum x / n; r = (sum (x - mean)^2 / n + eps)^-1/2, in which the mean's own derivative cancels. */
static PlStatus statistic_grad(PlMaker *g) {
  const double n = (double)pl_attr_i(g->attrs, 0);
  if (!g->want[1] || g->dy[0] == PL_NONE) return g->status;
  PlVal v;
  if (pl_attr_i(g->attrs, 1)) {
    PlVal r = g->y[0], d = g->nin > 2 && g->in[2] ? g_sub(g, g->x[1], g->x[2]) : g->x[1];
    PlVal cube = g_mul(g, r, pl_g1(g, &pl_op_square, r));
    v = g_mul(g, g_muln(g, g_mul(g, g->dy[0], cube), -1 / n), d);
  } else v = pl_g_expand_like(g, g_divn(g, g->dy[0], n), 1);
  g->dx[1] = pl_g_cast(g, v, (PlDtype)g->in[1]->dtype);
  return g->status;
}

PL_OP(norm_statistic,
      .doc = "A statistic of x that a norm has computed, as it is: the mean of n elements, or the reciprocal of their deviation "
             "from mean (without it from 0). Its gradient is that of the statistic as a function of x.",
      .nin = 3, .nopt = 1, .nout = 1, .nattr = 2, .args = {"statistic", "x", "mean"}, .attrs = {A_INT_REQ("n"), A_BOOL("reciprocal", 0)},
      .cls = PL_OPAQUE, .batch = pl_batch_leading, .flags = PL_F_POLY | PL_F_INTERNAL, .infer = statistic_infer, .grad = statistic_grad,
      PL_KERNEL(copy), );

/* The statistic s of x, broadcast against it, over n elements; mean: PL_NONE, unless s is a reciprocal deviation from it. */
static PlVal statistic(PlMaker *g, PlVal s, PlVal x, PlVal mean, int64_t n, bool reciprocal) {
  PlAttrs a;
  const PlVal in[3] = {s, x, mean};
  pl_attrs_init(&pl_op_norm_statistic, &a);
  pl_attrs_int(&a, 0, n > 0 ? n : 1); /* of none: nothing is divided */
  pl_attrs_int(&a, 1, reciprocal);
  return pl_g_op(g, &pl_op_norm_statistic, mean == PL_NONE ? 2 : 3, in, &a, NULL);
}

const char *norm_list_text(char *buf, size_t size, int n, const int64_t *v) {
  size_t at = 0;
  buf[0] = 0;
  for (int i = 0; i < n && at + 24 < size; i++) at += (size_t)snprintf(buf + at, size - at, i ? ", %lld" : "%lld", (long long)v[i]);
  return buf;
}

/* One of the four ops in a common layout: every value broadcasts against x. */
typedef struct Second {
  PlMaker *g;
  PlVal dy, x, h, r, w; /* w: PL_NONE for ones */
  PlVal v, u, b;        /* gradients of dx, dw, db or PL_NONE */
  int ndim;
  uint32_t dims, wdims; /* normalized over; summed for dw */
  bool center, fixed;
  PlVal ddy, dx, dw; /* results */
} Second;

static PlVal avg(Second *s, PlVal v) { return g_reduce(s->g, &pl_op_mean, v, s->ndim, s->dims); }
static PlVal plus(PlMaker *g, PlVal a, PlVal b) { return a == PL_NONE ? b : b == PL_NONE ? a : g_add(g, a, b); }
static PlVal weighted(Second *s, PlVal v) { return s->w == PL_NONE ? v : g_mul(s->g, s->w, v); }

static PlVal project(Second *s, PlVal a) {
  PlMaker *g = s->g;
  if (s->fixed) return g_mul(g, s->r, a);
  PlVal t = g_sub(g, a, g_mul(g, s->h, avg(s, g_mul(g, a, s->h))));
  if (s->center) t = g_sub(g, t, avg(s, a));
  return g_mul(g, s->r, t);
}

static void second(Second *s) {
  PlMaker *g = s->g;
  s->ddy = s->dx = s->dw = PL_NONE;
  if (s->v != PL_NONE) {
    PlVal pv = project(s, s->v), gw = weighted(s, s->dy);
    s->ddy = weighted(s, pv);
    s->dw = g_reduce(g, &pl_op_sum, g_mul(g, s->dy, pv), s->ndim, s->wdims);
    if (!s->fixed) {
      PlVal gh = avg(s, g_mul(g, gw, s->h)), vh = avg(s, g_mul(g, s->v, s->h));
      PlVal a = g_neg(g, g_mul(g, s->r, g_add(g, g_mul(g, s->v, gh), g_mul(g, gw, vh))));
      PlVal vd = avg(s, g_mul(g, s->v, project(s, gw)));
      s->dx = g_sub(g, project(s, a), g_mul(g, g_mul(g, s->r, s->h), vd));
    }
  }
  if (s->u != PL_NONE) {
    s->ddy = plus(g, s->ddy, g_mul(g, s->u, s->h));
    s->dx = plus(g, s->dx, project(s, g_mul(g, s->u, s->dy)));
  }
  if (s->b != PL_NONE) s->ddy = plus(g, s->ddy, s->b);
}

/* Hands a result to input i: broadcast, back in its shape and dtype. */
static void hand(Second *s, int i, PlVal v, bool broadcast) {
  PlMaker *g = s->g;
  if (i >= g->nin || !g->in[i] || !g->want[i] || v == PL_NONE) return;
  if (broadcast) v = g_add(g, v, g_muln(g, s->x, 0)); /* v may be of the parameters' shape alone */
  PlDtype d = (PlDtype)g->in[i]->dtype;
  g->dx[i] = pl_g_cast(g, pl_g_reshape_like(g, v, i), d);
}

static PlStatus finish(Second *s, int w_at) {
  bool thin = s->v == PL_NONE && s->u == PL_NONE;
  second(s);
  hand(s, 0, s->ddy, thin);
  hand(s, 1, s->dx, false);
  hand(s, w_at, s->dw, false);
  return s->g->status;
}

/* ---- layer norm, RMS norm: parameters broadcast as they are ---------------------------------------------- */

static PlStatus layer(PlMaker *g, bool center) {
  int k = pl_attr_n(g->attrs, 0), nd = g->in[1]->ndim, w_at = center ? 4 : 3;
  uint32_t all = (1u << nd) - 1, lead = (1u << (nd - k)) - 1;
  int64_t n = 1;
  for (int d = nd - k; d < nd; d++) n *= g->in[1]->shape[d];
  PlVal m = center ? statistic(g, g->x[2], g->x[1], PL_NONE, n, false) : PL_NONE;
  PlVal r = statistic(g, g->x[center ? 3 : 2], g->x[1], m, n, true), d = center ? g_sub(g, g->x[1], m) : g->x[1];
  Second s = {.g = g,
              .dy = g->x[0],
              .x = g->x[1],
              .h = g_mul(g, d, r),
              .r = r,
              .w = g->x[w_at],
              .v = g->dy[0],
              .u = g->dy[1],
              .b = center ? g->dy[2] : PL_NONE,
              .ndim = nd,
              .dims = all & ~lead,
              .wdims = lead,
              .center = center};
  return finish(&s, w_at);
}
PlStatus norm_second_layer(PlMaker *g) { return layer(g, true); }
PlStatus norm_second_rms(PlMaker *g) { return layer(g, false); }

/* ---- group norm [N,G,C/G,S], batch norm [N,C,S] ------------------------------------------------------------ */

static PlVal shaped(PlMaker *g, PlVal v, int n, const int64_t *shape) {
  PlAttrs a;
  if (v == PL_NONE) return v;
  pl_attrs_init(&pl_op_reshape, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, n, shape));
  return pl_g_op(g, &pl_op_reshape, 1, &v, &a, NULL);
}
static int64_t positions(const PlArray *x) {
  int64_t n = 1;
  for (int d = 2; d < x->ndim; d++) n *= x->shape[d];
  return n;
}

PlStatus norm_second_group(PlMaker *g) {
  const PlArray *a = g->in[1];
  int64_t N = a->shape[0], G = pl_attr_i(g->attrs, 0), M = a->shape[1] / G, S = positions(a);
  int64_t full[4] = {N, G, M, S}, stat[4] = {N, G, 1, 1}, par[4] = {1, G, M, 1};
  PlVal x = shaped(g, g->x[1], 4, full);
  PlVal m = statistic(g, shaped(g, g->x[2], 4, stat), x, PL_NONE, M * S, false);
  PlVal r = statistic(g, shaped(g, g->x[3], 4, stat), x, m, M * S, true);
  Second s = {.g = g,
              .dy = shaped(g, g->x[0], 4, full),
              .x = x,
              .h = g_mul(g, g_sub(g, x, m), r),
              .r = r,
              .w = shaped(g, g->x[4], 4, par),
              .v = shaped(g, g->dy[0], 4, full),
              .u = shaped(g, g->dy[1], 4, par),
              .b = shaped(g, g->dy[2], 4, par),
              .ndim = 4,
              .dims = 12,
              .wdims = 9,
              .center = true};
  return finish(&s, 4);
}

PlStatus norm_second_batch(PlMaker *g) {
  const PlArray *a = g->in[1];
  int64_t full[3] = {a->shape[0], a->shape[1], positions(a)}, par[3] = {1, a->shape[1], 1};
  PlVal x = shaped(g, g->x[1], 3, full), m = shaped(g, g->x[2], 3, par);
  PlVal r = pl_g1(g, &pl_op_rsqrt, g_addn(g, shaped(g, g->x[3], 3, par), pl_attr_f(g->attrs, 2)));
  const bool fixed = pl_attr_i(g->attrs, 0) == 0;
  if (!fixed) {
    m = statistic(g, m, x, PL_NONE, full[0] * full[2], false);
    r = statistic(g, r, x, m, full[0] * full[2], true);
  }
  Second s = {.g = g,
              .dy = shaped(g, g->x[0], 3, full),
              .x = x,
              .h = g_mul(g, g_sub(g, x, m), r),
              .r = r,
              .w = shaped(g, g->x[4], 3, par),
              .v = shaped(g, g->dy[0], 3, full),
              .u = shaped(g, g->dy[1], 3, par),
              .b = shaped(g, g->dy[2], 3, par),
              .ndim = 3,
              .dims = 5,
              .wdims = 5,
              .center = true,
              .fixed = fixed};
  return finish(&s, 4);
}
