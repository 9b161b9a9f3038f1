/* SPDX-License-Identifier: MIT
 * Contractions made of other ops, which are recorded one by one: inner, kron, bilinear. They run through
 * `expand` on every device and have no gradient of their own. */
#include "engine/ops/names.h"
#include "engine/ops/op.h"

/* A chain of ops on owned intermediates: `t` holds the current result, `s` the first failure. */
typedef struct Chain {
  PlTensor *t;
  PlStatus s;
} Chain;

static void chain_set(Chain *c, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *a) {
  PlTensor *r = NULL;
  if (c->s == PL_OK) c->s = pl_apply(op, in, nin, a, &r);
  pl_tensor_release(c->t);
  c->t = c->s == PL_OK ? r : NULL;
}
static void chain_reshape(Chain *c, PlTensor *x, int n, const int64_t *shape) {
  PlAttrs a;
  pl_attrs_init(&pl_op_reshape, &a);
  if (c->s == PL_OK) c->s = pl_attrs_list(&a, 0, n, shape);
  chain_set(c, &pl_op_reshape, &x, 1, &a);
}
static PlStatus chain_end(Chain *c, PlTensor **out) {
  if (c->s == PL_OK) *out = c->t;
  return c->s;
}
static PlStatus parts_infer(PlInfer *c) { PL_FAIL(PL_ERR_UNSUPPORTED, "%s: made of other ops", c->op->name); }
static PlStatus check_count(const char *op, int nin, int want) {
  if (nin != want) PL_FAIL(PL_ERR_ARG, "%s: takes %d tensors, not %d", op, want, nin);
  return PL_OK;
}
static PlStatus shapes_fail(const char *op, PlTensor *x, PlTensor *y, const char *why) {
  char tx[160], ty[160];
  PL_FAIL(PL_ERR_SHAPE, "%s: %s x %s: %s", op, pl_tensor_text(x, tx, sizeof tx), pl_tensor_text(y, ty, sizeof ty), why);
}

/* z[i…, j…] = Σ_k x[i…, k] y[j…, k]; a 0-d factor multiplies. */
static PlStatus inner_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  (void)attrs;
  PL_TRY(check_count("inner", nin, 2));
  PlTensor *x = in[0], *y = in[1];
  int nx = pl_tensor_ndim(x), ny = pl_tensor_ndim(y);
  if (nx == 0 || ny == 0) return pl_apply(&pl_op_mul, in, 2, NULL, out);
  const int64_t *sx = pl_tensor_shape(x), *sy = pl_tensor_shape(y);
  if (sx[nx - 1] != sy[ny - 1]) return shapes_fail("inner", x, y, "the last sizes differ");
  if (nx == 1 && ny == 1) return pl_apply(&pl_op_dot, in, 2, NULL, out); /* which a region of mixed precision leaves in f32 */
  if (nx + ny - 2 > PL_MAX_DIM) return shapes_fail("inner", x, y, "too many dims");
  int64_t rows[2] = {1, sy[ny - 1]}, shape[2 * PL_MAX_DIM];
  int n = 0;
  for (int d = 0; d < nx - 1; d++) shape[n++] = sx[d];
  for (int d = 0; d < ny - 1; d++) shape[n++] = sy[d], rows[0] *= sy[d];
  Chain w = {0}, z = {0};
  chain_reshape(&w, y, 2, rows);
  PlTensor *const pair[2] = {x, w.t};
  z.s = w.s;
  chain_set(&z, &pl_op_linear, pair, 2, NULL);
  if (z.s == PL_OK) {
    Chain last = {0};
    chain_reshape(&last, z.t, n, shape);
    pl_tensor_release(z.t);
    z = last;
  }
  pl_tensor_release(w.t);
  return chain_end(&z, out);
}
PL_OP(inner, .doc = "Products over the last dims: z[i...,j...] = sum_k x[i...,k] y[j...,k]; a 0-d factor multiplies.",
      .example = "print(T.inner(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu", .formula = "sum_k x[i...,k] y[j...,k]",
      .nin = 2, .nout = 1, .args = {"x", "y"}, .cls = PL_HEAVY, .infer = parts_infer, .expand = inner_expand);

/* z[i s + j] = x[i] y[j] in every dim, s the size of y there: x as [a,1,b,1…] times y as [1,c,1,d…]. */
static PlStatus kron_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  (void)attrs;
  PL_TRY(check_count("kron", nin, 2));
  int nx = pl_tensor_ndim(in[0]), ny = pl_tensor_ndim(in[1]), n = nx > ny ? nx : ny;
  if (2 * n > PL_MAX_DIM) return shapes_fail("kron", in[0], in[1], "too many dims");
  int64_t a[PL_MAX_DIM], b[PL_MAX_DIM], all[PL_MAX_DIM];
  for (int d = 0; d < n; d++) {
    int dx = d - (n - nx), dy = d - (n - ny);
    int64_t x = dx >= 0 ? pl_tensor_shape(in[0])[dx] : 1, y = dy >= 0 ? pl_tensor_shape(in[1])[dy] : 1;
    a[2 * d] = x, a[2 * d + 1] = 1;
    b[2 * d] = 1, b[2 * d + 1] = y;
    if (__builtin_mul_overflow(x, y, &all[d])) return shapes_fail("kron", in[0], in[1], "the result is too large");
  }
  Chain x = {0}, y = {0}, z = {0};
  chain_reshape(&x, in[0], 2 * n, a);
  chain_reshape(&y, in[1], 2 * n, b);
  PlTensor *const pair[2] = {x.t, y.t};
  z.s = x.s != PL_OK ? x.s : y.s;
  chain_set(&z, &pl_op_mul, pair, 2, NULL);
  pl_tensor_release(x.t);
  pl_tensor_release(y.t);
  if (z.s != PL_OK) return z.s;
  Chain last = {0};
  chain_reshape(&last, z.t, n, all);
  pl_tensor_release(z.t);
  return chain_end(&last, out);
}
PL_OP(kron, .doc = "The Kronecker product: every element of x times all of y, in blocks. Promotes.",
      .example = "print(T.kron(T.eye(2), T.tensor { { 1, 2 } }))\n"
                 "--> {{1., 2., 0., 0.},\n"
                 "-->  {0., 0., 1., 2.}}  -- f32[2,4] cpu",
      .formula = "z[i s + j] = x[i] y[j] in every dim, s the size of y there", .nin = 2, .nout = 1, .args = {"x", "y"}, .cls = PL_POINTWISE,
      .infer = parts_infer, .expand = kron_expand);

/* z[…, o] = Σ_ij x[…, i] w[o, i, j] y[…, j] + b[o]: x times w as [I, O J], then with y over j. */
static PlStatus bilinear_expand(PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out) {
  (void)attrs;
  if (nin < 3 || nin > 4) PL_FAIL(PL_ERR_ARG, "bilinear: takes 3 or 4 tensors, not %d", nin);
  PlTensor *x = in[0], *y = in[1], *w = in[2];
  int n = pl_tensor_ndim(x);
  const int64_t *sx = pl_tensor_shape(x), *sy = pl_tensor_shape(y), *sw = pl_tensor_shape(w);
  if (pl_tensor_ndim(w) != 3 || n < 1 || pl_tensor_ndim(y) != n || n + 1 > PL_MAX_DIM || sx[n - 1] != sw[1] || sy[n - 1] != sw[2])
    return shapes_fail("bilinear", x, y, "needs x[...,I], y[...,J] and weight[O,I,J]");
  for (int d = 0; d < n - 1; d++)
    if (sx[d] != sy[d]) return shapes_fail("bilinear", x, y, "leading sizes differ");
  int64_t rows[2] = {sw[0] * sw[2], sw[1]}, split[PL_MAX_DIM + 1], pick[PL_MAX_DIM + 1];
  for (int d = 0; d < n - 1; d++) split[d] = pick[d] = sx[d];
  split[n - 1] = sw[0], split[n] = sw[2]; /* […, O, J] */
  pick[n - 1] = sw[2], pick[n] = 1;       /* y as […, J, 1] */
  PlAttrs a;
  pl_attrs_init(&pl_op_transpose, &a);
  pl_attrs_int(&a, 0, 1);
  pl_attrs_int(&a, 1, 2);
  Chain wt = {0}, w2 = {0}, xw = {0}, xs = {0}, y1 = {0}, z = {0}, last = {0};
  chain_set(&wt, &pl_op_transpose, &w, 1, &a); /* [O, J, I] */
  w2.s = wt.s;
  chain_reshape(&w2, wt.t, 2, rows);
  PlTensor *const lin[2] = {x, w2.t};
  xw.s = w2.s;
  chain_set(&xw, &pl_op_linear, lin, 2, NULL);
  xs.s = xw.s;
  chain_reshape(&xs, xw.t, n + 1, split);
  y1.s = xs.s;
  chain_reshape(&y1, y, n + 1, pick);
  PlTensor *const prod[2] = {xs.t, y1.t};
  z.s = y1.s;
  chain_set(&z, &pl_op_matmul, prod, 2, NULL); /* […, O, 1] */
  last.s = z.s;
  chain_reshape(&last, z.t, n, split);
  if (nin == 4 && in[3] && last.s == PL_OK) {
    PlTensor *const sum[2] = {last.t, in[3]};
    chain_set(&last, &pl_op_add, sum, 2, NULL);
  }
  PlTensor *const used[] = {wt.t, w2.t, xw.t, xs.t, y1.t, z.t};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++) pl_tensor_release(used[i]);
  return chain_end(&last, out);
}
PL_OP(bilinear, .doc = "z[...,o] = sum over i, j of x[...,i] weight[o,i,j] y[...,j], plus bias[o] if given.",
      .example = "print(T.bilinear(T.tensor { { 1, 2 } }, T.tensor { { 3 } }, T.ones(1, 2, 1)))  --> {{9.}}  -- f32[1,1] cpu",
      .formula = "z = x w y + b", .nin = 4, .nopt = 1, .nout = 1, .args = {"x", "y", "weight", "bias"}, .cls = PL_HEAVY,
      .autocast = PL_CAST_WIDEST, .flags = PL_F_NOMETHOD, .infer = parts_infer, .expand = bilinear_expand);
