/* SPDX-License-Identifier: MIT
 * Linear algebra of matrices: the last two dims are a matrix, all before them a batch; f32 and f64. In Lua
 * these are T.linalg.inv and so on; what broadcasts, takes vectors or is made of others is in
 * lua/perilune/linalg/init.lua. */
#include "engine/ops/linalg/linalg.h"

#include <string.h>

#include "engine/tensor/tensor.h"
#include "kernels/linalg.h"

/* ---- shapes -------------------------------------------------------------------------------------------- */

static PlStatus check_matrix(const PlInfer *c, int i) {
  const PlArray *a = c->in[i];
  if (a->dtype != PL_F32 && a->dtype != PL_F64)
    PL_FAIL(PL_ERR_DTYPE, "%s: %s must be f32 or f64, got %s; convert it first: %s:to(\"f32\")", c->op->name, c->op->args[i],
            pl_desc_text(a), c->op->args[i]);
  if (a->ndim < 2)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s must be a matrix or a batch of matrices, got %s", c->op->name, c->op->args[i], pl_desc_text(a));
  return PL_OK;
}

static PlStatus check_square(const PlInfer *c) {
  const PlArray *a = c->in[0];
  PL_TRY(check_matrix(c, 0));
  if (a->shape[a->ndim - 2] != a->shape[a->ndim - 1])
    PL_FAIL(PL_ERR_SHAPE, "%s: %s must be square matrices, got %s", c->op->name, c->op->args[0], pl_desc_text(a));
  return PL_OK;
}

/* Output o: the batch dims of input 0, then `inner` sizes. */
static void set_out(PlInfer *c, int o, int inner, int64_t r, int64_t s) {
  const PlArray *a = c->in[0];
  int nd = a->ndim - 2;
  int64_t shape[PL_MAX_DIM];
  memcpy(shape, a->shape, (size_t)nd * sizeof *shape);
  if (inner > 0) shape[nd++] = r;
  if (inner > 1) shape[nd++] = s;
  pl_desc_set(&c->out[o], (PlDtype)a->dtype, nd, shape);
}

static int64_t rows(const PlInfer *c) { return c->in[0]->shape[c->in[0]->ndim - 2]; }
static int64_t cols(const PlInfer *c) { return c->in[0]->shape[c->in[0]->ndim - 1]; }
static int64_t least(const PlInfer *c) { return rows(c) < cols(c) ? rows(c) : cols(c); }

static PlStatus square_infer(PlInfer *c) {
  PL_TRY(check_square(c));
  set_out(c, 0, 2, rows(c), cols(c));
  return PL_OK;
}
static PlStatus det_infer(PlInfer *c) {
  PL_TRY(check_square(c));
  for (int o = 0; o < c->op->nout; o++) set_out(c, o, 0, 0, 0);
  return PL_OK;
}
/* Two square matrices of one size. */
static PlStatus square_pair_infer(PlInfer *c) {
  const PlArray *g = c->in[0], *a = c->in[1];
  PL_TRY(square_infer(c));
  if (g->dtype != a->dtype) PL_FAIL(PL_ERR_DTYPE, "%s: %s and %s must have one dtype", c->op->name, pl_desc_text(g), pl_desc_text(a));
  if (!pl_shape_equal(g, a)) PL_FAIL(PL_ERR_SHAPE, "%s: %s and %s must have one shape", c->op->name, pl_desc_text(g), pl_desc_text(a));
  return PL_OK;
}
static PlStatus eigh_infer(PlInfer *c) {
  PL_TRY(check_square(c));
  set_out(c, 0, 1, rows(c), 0);
  if (c->op->nout > 1) set_out(c, 1, 2, rows(c), rows(c));
  return PL_OK;
}
static PlStatus qr_infer(PlInfer *c) {
  PL_TRY(check_matrix(c, 0));
  const int64_t mode = pl_attr_i(c->attrs, 0), k = mode == 1 ? rows(c) : least(c);
  set_out(c, 0, 2, rows(c), k);
  if (mode == 2) c->out[0].dtype = PL_NDTYPE;
  set_out(c, 1, 2, k, cols(c));
  return PL_OK;
}
static PlStatus pivoted_cholesky_infer(PlInfer *c) {
  PL_TRY(check_square(c));
  const double tol = pl_attr_f(c->attrs, 1);
  if (!(tol <= 0x1.fffffffffffffp1023)) PL_FAIL(PL_ERR_ARG, "%s: tol must be a number, got %g", c->op->name, tol);
  set_out(c, 0, 2, rows(c), rows(c));
  set_out(c, 1, 1, rows(c), 0);
  set_out(c, 2, 0, 0, 0);
  c->out[1].dtype = c->out[2].dtype = PL_I64;
  set_out(c, 3, 2, rows(c), rows(c));
  return PL_OK;
}
static PlStatus geqrf_infer(PlInfer *c) {
  PL_TRY(check_matrix(c, 0));
  set_out(c, 0, 2, rows(c), cols(c));
  set_out(c, 1, 1, least(c), 0);
  return PL_OK;
}
static PlStatus svd_infer(PlInfer *c) {
  PL_TRY(check_matrix(c, 0));
  const bool full = pl_attr_i(c->attrs, 0) != 0;
  set_out(c, 0, 2, rows(c), full ? rows(c) : least(c));
  set_out(c, 1, 1, least(c), 0);
  set_out(c, 2, 2, full ? cols(c) : least(c), cols(c));
  return PL_OK;
}
static PlStatus svdvals_infer(PlInfer *c) {
  PL_TRY(check_matrix(c, 0));
  set_out(c, 0, 1, least(c), 0);
  return PL_OK;
}

static PlStatus lu_infer(PlInfer *c) {
  PL_TRY(check_matrix(c, 0));
  set_out(c, 0, 2, rows(c), cols(c));
  set_out(c, 1, 1, least(c), 0);
  c->out[1].dtype = PL_I64;
  set_out(c, 2, 2, rows(c), rows(c));
  return PL_OK;
}
static PlStatus eig_infer(PlInfer *c) {
  PL_TRY(check_square(c));
  for (int o = 0; o < 2; o++) set_out(c, o, 1, rows(c), 0);
  for (int o = 2; o < 4; o++) set_out(c, o, 2, rows(c), rows(c));
  return PL_OK;
}

/* Attribute `at` says on which side A is. */
static PlStatus system_infer(PlInfer *c, int at) {
  const PlArray *a = c->in[0], *b = c->in[1];
  const bool left = pl_attr_i(c->attrs, at) != 0;
  PL_TRY(check_square(c));
  PL_TRY(check_matrix(c, 1));
  if (a->dtype != b->dtype) PL_FAIL(PL_ERR_DTYPE, "%s: %s and %s must have one dtype", c->op->name, pl_desc_text(a), pl_desc_text(b));
  bool ok = a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)(a->ndim - 2) * sizeof(int64_t)) == 0;
  if (!ok) PL_FAIL(PL_ERR_SHAPE, "%s: the batch sizes of %s and %s differ", c->op->name, pl_desc_text(a), pl_desc_text(b));
  if (b->shape[b->ndim - (left ? 2 : 1)] != rows(c))
    PL_FAIL(PL_ERR_SHAPE, "%s: %s with %s: B must have as many %s as A", c->op->name, pl_desc_text(a), pl_desc_text(b),
            left ? "rows" : "columns");
  pl_desc_set(&c->out[0], (PlDtype)b->dtype, b->ndim, b->shape);
  return PL_OK;
}
static PlStatus solve_infer(PlInfer *c) { return system_infer(c, 0); }
static PlStatus solve_triangular_infer(PlInfer *c) { return system_infer(c, 1); }

static PlStatus pinv_infer(PlInfer *c) {
  const PlArray *a = c->in[0];
  PL_TRY(check_matrix(c, 0));
  for (int i = 1; i < c->nin; i++) {
    const PlArray *t = c->in[i];
    if (!t) continue;
    PL_TRY(pl_check_dtype(c, i, PL_F64));
    if (t->ndim != a->ndim - 2 || memcmp(t->shape, a->shape, (size_t)t->ndim * sizeof(int64_t)) != 0)
      PL_FAIL(PL_ERR_SHAPE, "%s: %s must have the batch sizes of %s, got %s", c->op->name, c->op->args[i], pl_desc_text(a),
              pl_desc_text(t));
  }
  set_out(c, 0, 2, cols(c), rows(c));
  return PL_OK;
}

/* ---- descriptors ------------------------------------------------------------------------------------------- */

#define PL_OP_LINALG(NAME, ...)     const PlOp pl_op_linalg_##NAME = {.name = "linalg." #NAME, __VA_ARGS__}
#define LINALG(KERNEL, INFER, GRAD) .cls = PL_HEAVY, .flags = PL_F_NOMETHOD | PL_F_LATE, .infer = INFER, .grad = GRAD, PL_KERNEL_OWN(KERNEL)
#define ON_A                        .nin = 1, .batch = pl_batch_each, .args = {"A"}
#define ON_A_B                      .nin = 2, .batch = pl_batch_solve, .args = {"A", "B"}

PL_OP_LINALG(inv, .autocast = PL_CAST_F32, LINALG(plk_cpu_inv, square_infer, pl_grad_inv), ON_A, .nout = 1,
             .doc = "The inverse of square matrices A[...,n,n]. A singular matrix is an error.",
             .example = "print(T.linalg.inv(T.tensor { { 2, 0 }, { 0, 4 } }))\n"
                        "--> {{0.5000, 0.0000},\n"
                        "-->  {0.0000, 0.2500}}  -- f32[2,2] cpu",
             .formula = "Y = A^-1;  dA = -Y^T dY Y^T");

PL_OP_LINALG(solve, .autocast = PL_CAST_F32, LINALG(plk_cpu_solve, solve_infer, pl_grad_solve), ON_A_B, .nout = 1, .nattr = 1,
             .attrs = {A_BOOL("left", 1)},
             .doc = "X with A X = B (left=false: X A = B), A[...,n,n]; B is a batch of matrices, or of vectors if it has "
                    "one dim or the shape of A without its last dim. Batch dims broadcast. A singular A is an error.",
             .example = "print(T.linalg.solve(T.tensor { { 2, 0 }, { 0, 4 } }, T.tensor { 2, 8 }))  --> {1., 2.}  -- f32[2] cpu",
             .formula = "dB = A^-T dX;  dA = -dB X^T");

PL_OP_LINALG(solve_triangular, .autocast = PL_CAST_F32, LINALG(plk_cpu_solve_triangular, solve_triangular_infer, pl_grad_solve_triangular),
             ON_A_B, .nout = 1, .nattr = 3, .attrs = {{.name = "upper", .type = PL_A_BOOL}, A_BOOL("left", 1), A_BOOL("unitriangular", 0)},
             .doc = "X with A X = B (left=false: X A = B), where only A's upper (upper=true) or lower triangle is read; "
                    "unitriangular=true takes its diagonal as ones. Batch dims broadcast. Zeros on the diagonal give inf.",
             .example = "print(T.linalg.solve_triangular(T.tensor { { 1, 0 }, { 1, 1 } }, T.tensor { { 1 }, { 3 } }, { upper = false }))\n"
                        "--> {{1.},\n"
                        "-->  {2.}}  -- f32[2,1] cpu",
             .formula = "dB = A^-T dX;  dA = -dB X^T within the triangle");

PL_OP_LINALG(det, .autocast = PL_CAST_F32, LINALG(plk_cpu_det, det_infer, pl_grad_det), ON_A, .nout = 1,
             .doc = "The determinants of square matrices A[...,n,n].",
             .example = "print(T.linalg.det(T.tensor { { 1, 2 }, { 3, 4 } }))  --> -2.  -- f32[] cpu",
             .formula = "dA = dy det(A) A^-T, the cofactors");

PL_OP_LINALG(slogdet, .autocast = PL_CAST_F32, LINALG(plk_cpu_slogdet, det_infer, pl_grad_slogdet), ON_A, .nout = 2,
             .doc = "Sign and logarithm of the absolute value of the determinants of A[...,n,n]; 0 and -inf if singular.",
             .example = "print(T.linalg.slogdet(T.tensor { { 0, 1 }, { 1, 0 } }))  --> -1.  -- f32[] cpu\t0.  -- f32[] cpu",
             .formula = "dA = dlog A^-T");

/* What det's gradient reads, so that singular matrices have one too. */
PL_OP_LINALG(cofactor, .doc = "The matrix of cofactors of A[...,n,n], det(A) A^-T where A has an inverse.",
             .formula = "dA = cofactor_bwd(dy, A)", ON_A, .nout = 1, .cls = PL_HEAVY, .flags = PL_F_INTERNAL, .infer = square_infer,
             .grad = pl_grad_cofactor, PL_KERNEL(cofactor));
/* The second derivative of det in the direction of dy, of singular matrices, too. */
PL_OP_LINALG(cofactor_bwd,
             .doc = "The gradient of cofactor: d (tr(dy Y) Y^T - Y^T dy^T Y^T) with Y = A^-1 and d = det A where A has an inverse. "
                    "It is symmetric: the sum of w cofactor_bwd(dy, A) is that of dy cofactor_bwd(w, A).",
             .formula = "d dy = cofactor_bwd(w, A); dA, with Y = A^-1, only where A has one", .nin = 2, .batch = pl_batch_each,
             .args = {"dy", "A"}, .nout = 1, .cls = PL_HEAVY, .flags = PL_F_INTERNAL, .infer = square_pair_infer,
             .grad = pl_grad_cofactor_bwd, PL_KERNEL(cofactor_bwd));

PL_OP_LINALG(cholesky, .autocast = PL_CAST_F32, LINALG(plk_cpu_cholesky, square_infer, pl_grad_cholesky), ON_A, .nout = 1, .nattr = 1,
             .attrs = {A_BOOL("upper", 0)},
             .doc = "The lower triangular L with A = L L^T of symmetric positive definite matrices A[...,n,n], of which the "
                    "lower triangle is read; upper=true: U with A = U^T U from the upper one. Else an error.",
             .example = "print(T.linalg.cholesky(T.tensor { { 4, 2 }, { 2, 5 } }))\n"
                        "--> {{2., 0.},\n"
                        "-->  {1., 2.}}  -- f32[2,2] cpu",
             .formula = "dA = L^-T sym(phi(L^T dL)) L^-1, phi: the lower triangle with half the diagonal");

PL_OP_LINALG(
    pivoted_cholesky, .autocast = PL_CAST_F32, LINALG(plk_cpu_pivoted_cholesky, pivoted_cholesky_infer, pl_grad_pivoted_cholesky), ON_A,
    .nout = 4, .nvisible = 3, .nattr = 2, .attrs = {A_BOOL("upper", 0), A_FLOAT("tol", -1)},
    .doc = "L, pivots p and ranks r with A[p,p] = L L^T of symmetric positive semidefinite matrices A[...,n,n], of which "
           "the lower triangle is read; upper=true: U with A[p,p] = U^T U from the upper one. The largest diagonal "
           "element that is left is taken each time, until after the first it is no more than tol (below 0: n u max(diag A), u = 2^-53 "
           "or 2^-24); columns of L from r on are zeros.",
    .example = "local L, p, rank = T.linalg.pivoted_cholesky(T.tensor { { 1, 2 }, { 2, 4 } })\n"
               "print(p, rank:item())  --> {2, 1}  -- i64[2] cpu\t1\n"
               "print(L)\n"
               "--> {{2., 0.},\n"
               "-->  {1., 0.}}  -- f32[2,2] cpu",
    .formula = "dA = P cholesky's dA of (L, dL) P^T");

PL_OP_LINALG(geqrf, .autocast = PL_CAST_F32, LINALG(plk_cpu_geqrf, geqrf_infer, NULL), ON_A, .nout = 2,
             .doc = "The QR factorization of A[...,m,n] as LAPACK keeps it: R on and above the diagonal, below it the reflectors "
                    "v_i of Q = (I - tau_1 v_1 v_1^T) (I - tau_2 v_2 v_2^T)..., whose first 1 is left out, and tau. T.ormqr "
                    "and T.linalg.householder_product take both. No gradient; linalg.qr has one.",
             .example = "local a, tau = T.linalg.geqrf(T.tensor { { 3 }, { 4 } })\n"
                        "print(a, tau)\n"
                        "--> {{-5.0000},\n"
                        "-->  { 0.5000}}  -- f32[2,1] cpu\t{1.6000}  -- f32[1] cpu");

PL_OP_LINALG(qr, .autocast = PL_CAST_F32, LINALG(plk_cpu_qr, qr_infer, pl_grad_qr), ON_A, .nout = 2, .nattr = 1,
             .attrs = {A_ENUM("mode", "reduced|complete|r", 0)},
             .doc = "Q with orthonormal columns and upper triangular R, A[...,m,n] = Q R. Q is [m,min(m,n)], in mode "
                    "\"complete\" [m,m]; mode \"r\" gives nil and R.",
             .example = "local Q, R = T.linalg.qr(T.tensor { { 3, 1 }, { 4, 2 } })\n"
                        "print(T.allclose(Q:matmul(R), T.tensor { { 3, 1 }, { 4, 2 } }, { atol = 1e-5 }))  --> true",
             .formula = "dA = (dQ + Q copyltu(M)) R^-T, M = R dR^T - dQ^T Q");

PL_OP_LINALG(svd, .autocast = PL_CAST_F32, LINALG(plk_cpu_svd, svd_infer, pl_grad_svd), ON_A, .nout = 3, .nattr = 1,
             .attrs = {A_BOOL("full_matrices", 1)},
             .doc = "U, S, Vh with A[...,m,n] = U diag(S) Vh, S descending; full_matrices=false gives min(m,n) columns of U "
                    "and rows of Vh. Singular vectors are unique up to sign only; gradients want distinct singular values.",
             .example = "local U, S, Vh = T.linalg.svd(T.tensor { { 0, 2 }, { 1, 0 } })\n"
                        "print(S, (U * S):matmul(Vh):round())\n"
                        "--> {2., 1.}  -- f32[2] cpu\t{{0., 2.},\n"
                        "-->  {1., 0.}}  -- f32[2,2] cpu",
             .formula = "dA = U ((F skew(U^T dU)) S + S (F skew(V^T dV)) + diag(dS)) Vh + (I - U U^T) dU S^-1 Vh + "
                        "U S^-1 dVh (I - V V^T), F_ij = 1 / (s_j^2 - s_i^2)");

PL_OP_LINALG(svdvals, .autocast = PL_CAST_F32, LINALG(plk_cpu_svdvals, svdvals_infer, pl_grad_svdvals), ON_A, .nout = 1,
             .doc = "The singular values of A[...,m,n], descending.",
             .example = "print(T.linalg.svdvals(T.tensor { { 0, 2 }, { 1, 0 } }))  --> {2., 1.}  -- f32[2] cpu",
             .formula = "dA = U diag(dS) Vh");

PL_OP_LINALG(eigh, .autocast = PL_CAST_F32, LINALG(plk_cpu_eigh, eigh_infer, pl_grad_eigh), ON_A, .nout = 2, .nattr = 1,
             .attrs = {A_ENUM("UPLO", "L|U", 0)},
             .doc = "Eigenvalues, ascending, and eigenvectors (columns) of symmetric matrices A[...,n,n], of which the lower "
                    "triangle (UPLO=\"U\": the upper) is read.",
             .example = "local w, V = T.linalg.eigh(T.tensor { { 2, 0 }, { 0, 1 } })\n"
                        "print(w, V:abs())\n"
                        "--> {1., 2.}  -- f32[2] cpu\t{{0., 1.},\n"
                        "-->  {1., 0.}}  -- f32[2,2] cpu",
             .formula = "dA = V (diag(dw) + skew(V^T dV) / E) V^T, E_ij = w_j - w_i");

PL_OP_LINALG(eigvalsh, .autocast = PL_CAST_F32, LINALG(plk_cpu_eigvalsh, eigh_infer, pl_grad_eigvalsh), ON_A, .nout = 1, .nattr = 1,
             .attrs = {A_ENUM("UPLO", "L|U", 0)},
             .doc = "Eigenvalues, ascending, of symmetric matrices A[...,n,n], of which the lower triangle (UPLO=\"U\": the "
                    "upper) is read.",
             .example = "print(T.linalg.eigvalsh(T.tensor { { 2, 1 }, { 1, 2 } }))  --> {1., 3.}  -- f32[2] cpu",
             .formula = "dA = V diag(dw) V^T");

PL_OP_LINALG(lu_factor, LINALG(plk_cpu_lu, lu_infer, pl_grad_lu), ON_A, .nout = 3,
             .doc = "A[...,m,n] = P L U with row exchanges: L below the diagonal (its diagonal is ones) and U above in one "
                    "matrix, the pivots (i64, row i was exchanged with row pivots[i]), and P.",
             .example = "local LU, pivots = T.linalg.lu_factor(T.tensor { { 1, 2 }, { 4, 4 } })\n"
                        "print(LU, pivots)\n"
                        "--> {{4.0000, 4.0000},\n"
                        "-->  {0.2500, 1.0000}}  -- f32[2,2] cpu\t{2, 2}  -- i64[2] cpu",
             .formula = "dA1 = P L1^-T (tril(L1^T dL1 - dU2 U2^T, -1) + triu(dU1 U1^T - L2^T dL2)) U1^-T, likewise the rest");

PL_OP_LINALG(eig, LINALG(plk_cpu_eig, eig_infer, pl_grad_eig), ON_A, .nout = 4,
             .doc = "Eigenvalues and eigenvectors (columns of length 1) of square matrices A[...,n,n] that need not be "
                    "symmetric: real parts, imaginary parts, and those of the vectors.",
             .example = "local re, im = T.linalg.eig(T.tensor { { 0, -1 }, { 1, 0 } })\n"
                        "print(re, im)  --> {0., 0.}  -- f32[2] cpu\t{ 1., -1.}  -- f32[2] cpu",
             .formula = "dA = Re(V^-H (diag(dw) + (V^H dV - V^H V Re(diag(V^H dV))) / conj(E)) V^H), E_ij = w_j - w_i");

PL_OP_LINALG(pinv, .autocast = PL_CAST_F32, LINALG(plk_cpu_pinv, pinv_infer, pl_grad_pinv), .nin = 3, .nopt = 2, .nout = 1,
             .args = {"A", "rtol", "atol"},
             .doc = "The Moore-Penrose inverse of A[...,m,n]; singular values up to max(atol, rtol s_1) count as zero "
                    "(default: rtol = max(m,n) eps if atol is not given or 0). Both may be numbers or tensors. hermitian=true promises "
                    "a symmetric A, which changes nothing.",
             .example = "print(T.linalg.pinv(T.tensor { { 2 }, { 0 } }))  --> {{0.5000, 0.0000}}  -- f32[1,2] cpu",
             .formula = "dA = -P^T G P^T + (I - A P) G^T P P^T + P^T P G^T (I - P A)");

PL_OP(matrix_exp, .doc = "The exponential of square matrices x[...,n,n], not of their elements.",
      .example = "print(T.matrix_exp(T.zeros(2, 2)))\n"
                 "--> {{1., 0.},\n"
                 "-->  {0., 1.}}  -- f32[2,2] cpu",
      .nin = 1, .nout = 1, .args = {"x"}, .cls = PL_HEAVY, .batch = pl_batch_each, .infer = square_infer, .grad = pl_grad_matrix_exp,
      .formula = "dx is the upper right block of exp([[x^T, dy], [0, x^T]])", PL_KERNEL(matrix_exp));
