/* SPDX-License-Identifier: MIT
 * Gradients of linear algebra, all as graphs of ops, so that gradients of any order follow. Sources: M. Giles,
 * "Collected matrix derivative results" (2008), unless a formula names its own. Where eigenvalues or singular
 * values coincide, the part of the gradient that depends on the choice of vectors is left out (0 / 0 → 0). */
#include "engine/ops/linalg/linalg.h"
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/ops/make.h"
#include "engine/ops/names.h"

#include <math.h>

/* ---- words -------------------------------------------------------------------------------------------- */

static PlVal mm(PlMaker *g, PlVal a, PlVal b) { return pl_g_matmul(g, a, b, false, false); }
static PlVal mm_tn(PlMaker *g, PlVal a, PlVal b) { return pl_g_matmul(g, a, b, true, false); }
static PlVal mm_nt(PlMaker *g, PlVal a, PlVal b) { return pl_g_matmul(g, a, b, false, true); }

/* op(a; v0, v1, v2), as many as it has. */
static PlVal with3(PlMaker *g, const PlOp *op, PlVal a, int64_t v0, int64_t v1, int64_t v2) {
  const int64_t v[3] = {v0, v1, v2};
  PlAttrs at;
  pl_attrs_init(op, &at);
  for (int k = 0; k < 3 && k < op->nattr; k++) pl_attrs_int(&at, k, v[k]);
  return pl_g_op(g, op, 1, &a, &at, NULL);
}
static PlVal tr(PlMaker *g, PlVal a) { return with3(g, &pl_op_transpose, a, -2, -1, 0); }
static PlVal col(PlMaker *g, PlVal v) { return with3(g, &pl_op_unsqueeze, v, -1, 0, 0); } /* v_i for all j */
static PlVal row(PlMaker *g, PlVal v) { return with3(g, &pl_op_unsqueeze, v, -2, 0, 0); } /* v_j for all i */
static PlVal tril(PlMaker *g, PlVal a, int64_t d) { return with3(g, &pl_op_tril, a, d, 0, 0); }
static PlVal triu(PlMaker *g, PlVal a, int64_t d) { return with3(g, &pl_op_triu, a, d, 0, 0); }
static PlVal diag(PlMaker *g, PlVal v) { return pl_g1(g, &pl_op_diag_embed, v); }
static PlVal diag_of(PlMaker *g, PlVal a) { return with3(g, &pl_op_diagonal, a, 0, -2, -1); }
static PlVal part(PlMaker *g, PlVal a, int64_t dim, int64_t from, int64_t n) { return with3(g, &pl_op_narrow, a, dim, from, n); }
/* A number for each matrix, ready to multiply it. */
static PlVal scalar(PlMaker *g, PlVal v) { return col(g, col(g, v)); }
static PlVal cat2(PlMaker *g, PlVal a, PlVal b, int64_t dim) {
  const PlVal in[2] = {a, b};
  PlAttrs at;
  pl_attrs_init(&pl_op_cat, &at);
  pl_attrs_int(&at, 0, dim);
  return pl_g_op(g, &pl_op_cat, 2, in, &at, NULL);
}
static PlVal solve_tri(PlMaker *g, PlVal a, PlVal b, bool upper, bool left, bool unit) {
  const PlVal in[2] = {a, b};
  PlAttrs at;
  pl_attrs_init(&pl_op_linalg_solve_triangular, &at);
  pl_attrs_int(&at, 0, upper);
  pl_attrs_int(&at, 1, left);
  pl_attrs_int(&at, 2, unit);
  return pl_g_op(g, &pl_op_linalg_solve_triangular, 2, in, &at, NULL);
}
/* v summed over both dims of each matrix, which stay as 1. */
static PlVal matrix_sum(PlMaker *g, PlVal v) {
  PlAttrs at;
  const int64_t last[2] = {-2, -1};
  pl_attrs_init(&pl_op_sum, &at);
  pl_g_fail(g, pl_attrs_list(&at, 0, 2, last));
  pl_attrs_int(&at, 1, 1);
  return pl_g_op(g, &pl_op_sum, 1, &v, &at, NULL);
}
/* Of each matrix, a number that is 0 where nothing arrives for its vectors. */
static PlVal arrives(PlMaker *g, PlVal dv) { return matrix_sum(g, pl_g1(g, &pl_op_abs, dv)); }
/* v / by, but 0 where `by` is 0 in matrices for whose vectors nothing arrives. Elsewhere 0 / 0 makes NaN: vectors of equal values are no
 * functions of the matrix, and what a function that does not see which they are has for a gradient, as V f(w) Vᵀ has one, is a limit
 * that the vectors' gradients do not tell. Filled in afterwards: what is differentiated further, or forward, is NaN as well. */
static PlVal over(PlMaker *g, PlVal v, PlVal by, PlVal arriving) {
  PlVal zero = pl_g_num(g, 0), none = pl_g2(g, &pl_op_logical_and, pl_g2(g, &pl_op_eq, by, zero), pl_g2(g, &pl_op_eq, arriving, zero));
  return pl_g3(g, &pl_op_masked_fill, g_div(g, v, by), none, zero);
}
/* Differences of all elements of w with all, with 1 on the diagonal, where the numerators are 0. */
static PlVal gaps(PlMaker *g, PlVal square, PlVal w) { return g_add(g, square, diag(g, g_addn(g, g_muln(g, w, 0), 1))); }
static PlVal skew(PlMaker *g, PlVal a) { return g_sub(g, a, tr(g, a)); }

/* Factorizations are costly and their gradients lose digits: f32 ones are computed in f64 and rounded once. */
static PlVal exact(PlMaker *g, PlVal v) { return v != PL_NONE && g->in[0]->dtype == PL_F32 ? pl_g_cast(g, v, PL_F64) : v; }

/* The gradient of output o; zeros where none arrives. */
static PlVal dy_of(PlMaker *g, int o) {
  if (g->dy[o] != PL_NONE) return g->dy[o];
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, g->outd[o].dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->y[o]);
  return pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL);
}
static PlVal rounded(PlMaker *g, PlVal v) { return g->in[0]->dtype == PL_F32 ? pl_g_cast(g, v, PL_F32) : v; }

static int64_t m_of(const PlMaker *g) { return g->in[0]->shape[g->in[0]->ndim - 2]; }
static int64_t n_of(const PlMaker *g) { return g->in[0]->shape[g->in[0]->ndim - 1]; }

/* ---- inverse, systems ------------------------------------------------------------------------------------- */

PlStatus pl_grad_inv(PlMaker *g) {
  PlVal y = g->y[0];
  g->dx[0] = g_neg(g, mm_nt(g, mm_tn(g, y, g->dy[0]), y));
  return g->status;
}

/* A X = B: dB = A^-T dX, dA = -dB Xᵀ.  X A = B: dB = dX A^-T, dA = -Xᵀ dB. */
static PlVal system_da(PlMaker *g, PlVal db, bool left) { return g_neg(g, left ? mm_nt(g, db, g->y[0]) : mm_tn(g, g->y[0], db)); }

PlStatus pl_grad_solve(PlMaker *g) {
  const PlVal in[2] = {tr(g, g->x[0]), g->dy[0]};
  PlVal db = pl_g_op(g, &pl_op_linalg_solve, 2, in, g->attrs, NULL);
  if (g->want[0]) g->dx[0] = system_da(g, db, pl_attr_i(g->attrs, 0) != 0);
  if (g->want[1]) g->dx[1] = db;
  return g->status;
}

PlStatus pl_grad_solve_triangular(PlMaker *g) {
  const bool upper = pl_attr_i(g->attrs, 0) != 0, left = pl_attr_i(g->attrs, 1) != 0;
  const bool unit = pl_attr_i(g->attrs, 2) != 0;
  PlVal db = solve_tri(g, tr(g, g->x[0]), g->dy[0], !upper, left, unit);
  if (g->want[0]) {
    PlVal da = system_da(g, db, left);
    g->dx[0] = upper ? triu(g, da, unit ? 1 : 0) : tril(g, da, unit ? -1 : 0);
  }
  if (g->want[1]) g->dx[1] = db;
  return g->status;
}

/* ---- determinants --------------------------------------------------------------------------------------------- */

/* Jacobi's formula, with cofactors in place of det(A) A^-T: it holds for every rank. */
PlStatus pl_grad_det(PlMaker *g) {
  g->dx[0] = g_mul(g, scalar(g, g->dy[0]), pl_g1(g, &pl_op_linalg_cofactor, g->x[0]));
  return g->status;
}

PlStatus pl_grad_slogdet(PlMaker *g) {
  g->dx[0] = g_mul(g, scalar(g, g->dy[1]), tr(g, pl_g1(g, &pl_op_linalg_inv, g->x[0])));
  return g->status;
}

PlStatus pl_grad_cofactor(PlMaker *g) {
  g->dx[0] = pl_g2(g, &pl_op_linalg_cofactor_bwd, g->dy[0], g->x[0]);
  return g->status;
}

/* tr(A B) of each matrix, with sizes 1 in the place of its dims. */
static PlVal trace_of_product(PlMaker *g, PlVal a, PlVal b) { return matrix_sum(g, g_mul(g, a, tr(g, b))); }

/* With Y = A^-1, d = det A, t = tr(G Y), s = tr(W Y): the sum of W cofactor_bwd(G, A) is d (t s - tr(Y G Y W)), in which
 * dd = d tr(Y dA), dY = -Y dA Y. */
PlStatus pl_grad_cofactor_bwd(PlMaker *g) {
  PlVal G = g->x[0], A = g->x[1], W = g->dy[0];
  if (g->want[0]) g->dx[0] = pl_g2(g, &pl_op_linalg_cofactor_bwd, W, A);
  if (!g->want[1]) return g->status;
  PlVal Y = pl_g1(g, &pl_op_linalg_inv, A), d = pl_g1(g, &pl_op_linalg_det, A);
  PlVal GY = mm(g, G, Y), WY = mm(g, W, Y), YGY = mm(g, Y, GY), YWY = mm(g, Y, WY);
  PlVal t = trace_of_product(g, G, Y), s = trace_of_product(g, W, Y), q = trace_of_product(g, YGY, W);
  PlVal inner = g_mul(g, g_sub(g, g_mul(g, t, s), q), Y);
  inner = g_sub(g, inner, g_add(g, g_mul(g, s, YGY), g_mul(g, t, YWY)));
  inner = g_add(g, inner, g_add(g, mm(g, YGY, WY), mm(g, YWY, GY)));
  g->dx[1] = g_mul(g, scalar(g, d), tr(g, inner));
  return g->status;
}

/* ---- Cholesky, QR ------------------------------------------------------------------------------------------------ */

/* I. Murray, "Differentiation of the Cholesky decomposition" (2016): dA = L^-T sym(Φ(Lᵀ dL)) L^-1, where Φ takes the
 * lower triangle with half its diagonal. The gradient is the symmetric one. */
static PlVal cholesky_back(PlMaker *g, PlVal L, PlVal dL) {
  PlVal M = mm_tn(g, L, dL), low = tril(g, M, 0);
  PlVal S = g_muln(g, g_sub(g, g_add(g, low, tr(g, low)), diag(g, diag_of(g, M))), 0.5);
  PlVal W = solve_tri(g, tr(g, L), S, true, true, false);
  return solve_tri(g, L, W, false, false, false);
}
PlStatus pl_grad_cholesky(PlMaker *g) {
  const bool upper = pl_attr_i(g->attrs, 0) != 0;
  g->dx[0] = cholesky_back(g, upper ? tr(g, g->y[0]) : g->y[0], upper ? tr(g, g->dy[0]) : g->dy[0]);
  return g->status;
}

/* That of A' = PT A P. The columns from the rank on are zeros whatever A is, and those before are also the first ones of
 * the factor of L LT with ones added to the diagonal where L has zeros, which can be solved with. */
PlStatus pl_grad_pivoted_cholesky(PlMaker *g) {
  const bool upper = pl_attr_i(g->attrs, 0) != 0;
  if (g->dy[0] == PL_NONE) return g->status;
  PlVal L = upper ? tr(g, g->y[0]) : g->y[0], dL = upper ? tr(g, g->dy[0]) : g->dy[0], P = g->y[3];
  PlVal d = diag_of(g, L), dead = pl_g2(g, &pl_op_eq, d, pl_g_num(g, 0));
  PlVal whole = g_add(g, L, diag(g, pl_g_cast(g, dead, (PlDtype)g->in[0]->dtype)));
  PlVal B = cholesky_back(g, whole, g_where(g, row(g, dead), pl_g_num(g, 0), dL));
  g->dx[0] = mm_nt(g, mm(g, P, B), P);
  return g->status;
}

/* D. Roberts, L. Roberts, "QR and LQ decomposition matrix backpropagation algorithms" (2020), for m > n:
 * dA = (dQ + Q copyltu(M)) R^-T with M = R dRᵀ - dQᵀ Q, copyltu(M): the lower triangle mirrored upwards. */
static PlVal qr_tall(PlMaker *g, PlVal Q, PlVal R, PlVal dQ, PlVal dR) {
  PlVal M = mm_nt(g, R, dR);
  if (dQ != PL_NONE) M = g_sub(g, M, mm_tn(g, dQ, Q));
  PlVal sym = g_add(g, tril(g, M, 0), tr(g, tril(g, M, -1)));
  PlVal B = mm(g, Q, sym);
  if (dQ != PL_NONE) B = g_add(g, dQ, B);
  return solve_tri(g, tr(g, R), B, false, false, false);
}

/* For m <= n, Q is square, so dQ = Q W with W skew: its lower part is that of C = Qᵀ dA R^-1, and dR = Qᵀ dA - W R.
 * Read backwards, with N = Qᵀ dQ - dR Rᵀ:  dA = Q (dR + X),  X Rᵀ = tril(N - Nᵀ, -1). The last column of X is zero,
 * so the last pivot is not divided by: a leading block of rank m - 1 is enough. */
static PlVal qr_wide(PlMaker *g, PlVal Q, PlVal R, PlVal dQ, PlVal dR) {
  const int64_t m = m_of(g), n = n_of(g);
  PlVal G = triu(g, dR, 0), N = g_neg(g, mm_nt(g, G, R));
  if (dQ != PL_NONE) N = g_add(g, N, mm_tn(g, Q, dQ));
  if (m < 2) return mm(g, Q, G);
  PlVal K = part(g, tril(g, skew(g, N), -1), -1, 0, m - 1);
  PlVal lead = part(g, part(g, R, -1, 0, m - 1), -2, 0, m - 1);
  PlVal X = solve_tri(g, tr(g, lead), K, false, false, false);
  PlVal first = g_add(g, part(g, G, -1, 0, m - 1), X);
  return mm(g, Q, cat2(g, first, part(g, G, -1, m - 1, n - m + 1), g->in[0]->ndim - 1));
}

/* R with 0 for each pivot that is rounding error beside its column: there the gradient does not exist. Divided by 0 it
 * comes out infinite or NaN; divided by what rounding left, it would be a number like any other. */
static PlVal qr_pivots(PlMaker *g, PlVal R) {
  const int64_t m = m_of(g), n = n_of(g), k = m < n ? m : n, first = -2;
  if (k == 0) return R;
  const double eps = g->in[0]->dtype == PL_F64 ? 0x1p-50 : 0x1p-21; /* four times that of the dtype */
  PlAttrs at;
  pl_attrs_init(&pl_op_sum, &at);
  pl_g_fail(g, pl_attrs_list(&at, 0, 1, &first));
  PlVal lead = part(g, R, -1, 0, k), sizes = pl_g1(g, &pl_op_abs, lead), pivots = diag_of(g, lead);
  PlVal least = g_muln(g, pl_g_op(g, &pl_op_sum, 1, &sizes, &at, NULL), eps * sqrt((double)(m > n ? m : n)));
  PlVal lost = pl_g2(g, &pl_op_le, pl_g1(g, &pl_op_abs, pivots), least);
  lead = g_sub(g, lead, diag(g, g_where(g, lost, pivots, pl_g_num(g, 0))));
  return n > k ? cat2(g, lead, part(g, R, -1, k, n - k), g->in[0]->ndim - 1) : lead;
}

PlStatus pl_grad_qr(PlMaker *g) {
  const int64_t mode = pl_attr_i(g->attrs, 0), m = m_of(g), n = n_of(g);
  PlVal Q = g->y[0], R = g->y[1], dQ = g->dy[0], dR = dy_of(g, 1);
  if (mode == 1 && m > n)
    PL_FAIL(PL_ERR_UNSUPPORTED,
            "%s: mode \"complete\" has no gradient for matrices with more rows than columns, "
            "as the added columns of Q are arbitrary; use \"reduced\"",
            g->op->name);
  if (mode == 2) { /* Q was not kept */
    PlVal out[2];
    pl_g_op(g, &pl_op_linalg_qr, 1, &g->x[0], NULL, out);
    Q = out[0], R = out[1], dQ = PL_NONE;
  }
  Q = exact(g, Q), R = exact(g, R), dQ = exact(g, dQ), dR = exact(g, dR);
  R = qr_pivots(g, R);
  g->dx[0] = rounded(g, m > n ? qr_tall(g, Q, R, dQ, dR) : qr_wide(g, Q, R, dQ, dR));
  return g->status;
}

/* ---- SVD, eigenvalues ----------------------------------------------------------------------------------------------- */

/* J. Townsend, "Differentiating the singular value decomposition" (2016), with F_ij = 1 / (s_j² - s_i²):
 *   dA = U [(F ∘ skew(Uᵀ dU)) S + S (F ∘ skew(Vᵀ dV)) + diag(dS)] Vᵀ + (I - U Uᵀ) dU S^-1 Vᵀ + U S^-1 dVᵀ (I - V Vᵀ).
 * Of full matrices the first k vectors count; the others are arbitrary. */
PlStatus pl_grad_svd(PlMaker *g) {
  const int64_t m = m_of(g), n = n_of(g), k = m < n ? m : n;
  const bool full = pl_attr_i(g->attrs, 0) != 0;
  PlVal U = g->y[0], s = g->y[1], Vh = g->y[2], dU = dy_of(g, 0), dS = dy_of(g, 1), dVh = dy_of(g, 2);
  U = exact(g, U), s = exact(g, s), Vh = exact(g, Vh);
  dU = exact(g, dU), dS = exact(g, dS), dVh = exact(g, dVh);
  if (full && m > k) U = part(g, U, -1, 0, k), dU = part(g, dU, -1, 0, k);
  if (full && n > k) Vh = part(g, Vh, -2, 0, k), dVh = part(g, dVh, -2, 0, k);
  PlVal arriving = g_add(g, arrives(g, dU), arrives(g, dVh));
  PlVal E = gaps(g, g_mul(g, g_sub(g, row(g, s), col(g, s)), g_add(g, row(g, s), col(g, s))), s);
  PlVal MU = mm_tn(g, U, dU), MV = mm_nt(g, Vh, dVh);
  PlVal left = over(g, skew(g, MU), E, arriving), right = over(g, skew(g, MV), E, arriving);
  PlVal inner = g_add(g, g_mul(g, left, row(g, s)), g_mul(g, right, col(g, s)));
  PlVal dA = mm(g, mm(g, U, g_add(g, inner, diag(g, dS))), Vh);
  if (m > k) {
    PlVal rest = g_sub(g, dU, mm(g, U, MU));
    dA = g_add(g, dA, mm(g, over(g, rest, row(g, s), arriving), Vh));
  }
  if (n > k) {
    PlVal rest = g_sub(g, dVh, mm_tn(g, MV, Vh));
    dA = g_add(g, dA, mm(g, U, over(g, rest, col(g, s), arriving)));
  }
  g->dx[0] = rounded(g, dA);
  return g->status;
}

PlStatus pl_grad_svdvals(PlMaker *g) {
  PlAttrs at;
  PlVal out[3];
  pl_attrs_init(&pl_op_linalg_svd, &at);
  pl_attrs_int(&at, 0, 0);
  pl_g_op(g, &pl_op_linalg_svd, 1, &g->x[0], &at, out);
  if (g->status == PL_OK) g->dx[0] = mm(g, g_mul(g, out[0], row(g, g->dy[0])), out[2]);
  return g->status;
}

/* dA = V (diag(dw) + Vᵀ dV / E) Vᵀ with E_ij = w_j - w_i; of Vᵀ dV only the skew part moves along symmetric
 * matrices, so the gradient is taken symmetric. */
PlStatus pl_grad_eigh(PlMaker *g) {
  PlVal w = exact(g, g->y[0]), V = exact(g, g->y[1]), dw = exact(g, dy_of(g, 0)), dV = exact(g, dy_of(g, 1));
  PlVal E = gaps(g, g_sub(g, row(g, w), col(g, w)), w);
  PlVal F = over(g, g_muln(g, skew(g, mm_tn(g, V, dV)), 0.5), E, arrives(g, dV));
  g->dx[0] = rounded(g, mm_nt(g, mm(g, V, g_add(g, F, diag(g, dw))), V));
  return g->status;
}

PlStatus pl_grad_eigvalsh(PlMaker *g) {
  PlVal out[2];
  pl_g_op(g, &pl_op_linalg_eigh, 1, &g->x[0], g->attrs, out);
  if (g->status == PL_OK) g->dx[0] = mm_nt(g, g_mul(g, out[1], row(g, g->dy[0])), out[1]);
  return g->status;
}

/* ---- pseudo-inverse, exponential ---------------------------------------------------------------------------------------- */

/* G. Golub, V. Pereyra (1973), for matrices whose rank does not change nearby:
 *   dP = -P dA P + P Pᵀ dAᵀ (I - A P) + (I - P A) dAᵀ Pᵀ P; read backwards with G the gradient of P:
 *   dA = -Pᵀ G Pᵀ + (I - A P) Gᵀ P Pᵀ + Pᵀ P Gᵀ (I - P A). */
PlStatus pl_grad_pinv(PlMaker *g) {
  if (!g->want[0]) return g->status;
  PlVal A = g->x[0], P = g->y[0], G = g->dy[0];
  PlVal B = mm_nt(g, mm_tn(g, G, P), P), C = mm_nt(g, mm_tn(g, P, P), G);
  PlVal first = g_neg(g, mm_nt(g, mm_tn(g, P, G), P));
  PlVal second = g_sub(g, B, mm(g, A, mm(g, P, B)));
  PlVal third = g_sub(g, C, mm(g, mm(g, C, P), A));
  g->dx[0] = g_add(g, first, g_add(g, second, third));
  return g->status;
}

/* I. Najfeld, T. Havel (1995): exp([[Xᵀ, G], [0, Xᵀ]]) has dX in its upper right block. */
PlStatus pl_grad_matrix_exp(PlMaker *g) {
  const int nd = g->in[0]->ndim;
  const int64_t n = n_of(g);
  PlVal XT = tr(g, g->x[0]);
  PlVal upper = cat2(g, XT, g->dy[0], nd - 1), lower = cat2(g, pl_g_zeros_like(g, 0), XT, nd - 1);
  PlVal Y = pl_g1(g, &pl_op_matrix_exp, cat2(g, upper, lower, nd - 2));
  g->dx[0] = part(g, part(g, Y, -1, n, n), -2, 0, n);
  return g->status;
}

/* ---- LU, general eigenvalues --------------------------------------------------------------------------------------------- */

/* With A = P L U, k = min(m, n), L1 and U1 the square blocks, L2 below and U2 beside them:
 *   dA1 = P L1^-T [tril(L1ᵀ dL1 - dU2 U2ᵀ, -1) + triu(dU1 U1ᵀ - L2ᵀ dL2)] U1^-T,
 * and the rest is P L1^-T dU2 (columns) or P dL2 U1^-T (rows); see S. Walter, L. Lehmann, "Algorithmic
 * differentiation of linear algebra functions" (2010), read backwards. */
PlStatus pl_grad_lu(PlMaker *g) {
  const int64_t m = m_of(g), n = n_of(g), k = m < n ? m : n;
  PlVal LU = exact(g, g->y[0]), P = exact(g, g->y[2]), G = exact(g, g->dy[0]);
  PlVal LU1 = part(g, part(g, LU, -1, 0, k), -2, 0, k), G1 = part(g, part(g, G, -1, 0, k), -2, 0, k);
  PlVal gl = tril(g, G1, -1), below = g_add(g, gl, mm_tn(g, tril(g, LU1, -1), gl));
  PlVal above = mm_nt(g, G1, triu(g, LU1, 0)); /* what is below G1's diagonal stays below it: the triu of `inner` drops it */
  PlVal LT = tr(g, LU1), rest = PL_NONE;
  if (n > k) {
    PlVal gu = part(g, G, -1, k, n - k);
    below = g_sub(g, below, mm_nt(g, gu, part(g, LU, -1, k, n - k)));
    rest = solve_tri(g, LT, gu, true, true, true);
  } else if (m > k) {
    PlVal gb = part(g, G, -2, k, m - k);
    above = g_sub(g, above, mm_tn(g, part(g, LU, -2, k, m - k), gb));
    rest = solve_tri(g, LT, gb, false, false, false);
  }
  PlVal inner = g_add(g, tril(g, below, -1), triu(g, above, 0));
  PlVal B = solve_tri(g, LT, solve_tri(g, LT, inner, true, true, true), false, false, false);
  if (rest != PL_NONE) B = cat2(g, B, rest, g->in[0]->ndim - (n > k ? 1 : 2));
  g->dx[0] = rounded(g, mm(g, P, B));
  return g->status;
}

/* Numbers as real and imaginary part. */
typedef struct Pair {
  PlVal r, i;
} Pair;
static Pair hermitian_mm(PlMaker *g, Pair a, Pair b) { /* a^H b */
  return (Pair){g_add(g, mm_tn(g, a.r, b.r), mm_tn(g, a.i, b.i)), g_sub(g, mm_tn(g, a.r, b.i), mm_tn(g, a.i, b.r))};
}
static Pair mm_hermitian(PlMaker *g, Pair a, Pair b) { /* a b^H */
  return (Pair){g_add(g, mm_nt(g, a.r, b.r), mm_nt(g, a.i, b.i)), g_sub(g, mm_nt(g, a.i, b.r), mm_nt(g, a.r, b.i))};
}

/* M. Giles (2008), 3.1, for vectors of length 1 (C. Boeddeker et al., "On the computation of complex-valued
 * gradients", 2017):  dA = V^-H [diag(dw) + (Vᴴ dV - Vᴴ V Re diag(Vᴴ dV)) / conj(E)] Vᴴ,  E_ij = w_j - w_i.
 * The system with Vᴴ is solved as a real one of twice the size. */
PlStatus pl_grad_eig(PlMaker *g) {
  Pair w = {exact(g, g->y[0]), exact(g, g->y[1])}, V = {exact(g, g->y[2]), exact(g, g->y[3])};
  Pair dw = {exact(g, dy_of(g, 0)), exact(g, dy_of(g, 1))}, dV = {exact(g, dy_of(g, 2)), exact(g, dy_of(g, 3))};
  Pair M = hermitian_mm(g, V, dV), VV = hermitian_mm(g, V, V);
  PlVal scale = row(g, diag_of(g, M.r));
  M = (Pair){g_sub(g, M.r, g_mul(g, VV.r, scale)), g_sub(g, M.i, g_mul(g, VV.i, scale))};
  Pair E = {g_sub(g, row(g, w.r), col(g, w.r)), g_sub(g, row(g, w.i), col(g, w.i))};
  PlVal size = gaps(g, g_add(g, g_mul(g, E.r, E.r), g_mul(g, E.i, E.i)), w.r), arriving = g_add(g, arrives(g, dV.r), arrives(g, dV.i));
  Pair Q = {over(g, g_sub(g, g_mul(g, M.r, E.r), g_mul(g, M.i, E.i)), size, arriving),
            over(g, g_add(g, g_mul(g, M.r, E.i), g_mul(g, M.i, E.r)), size, arriving)};
  Q = (Pair){g_add(g, Q.r, diag(g, dw.r)), g_add(g, Q.i, diag(g, dw.i))};
  Pair R = mm_hermitian(g, Q, V);
  const int nd = g->in[0]->ndim;
  PlVal tr_r = tr(g, V.r), tr_i = tr(g, V.i);
  const PlVal in[2] = {cat2(g, cat2(g, tr_r, tr_i, nd - 1), cat2(g, g_neg(g, tr_i), tr_r, nd - 1), nd - 2), cat2(g, R.r, R.i, nd - 2)};
  PlVal X = pl_g_op(g, &pl_op_linalg_solve, 2, in, NULL, NULL);
  g->dx[0] = rounded(g, part(g, X, -2, 0, n_of(g)));
  return g->status;
}
