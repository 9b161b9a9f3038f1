/* SPDX-License-Identifier: MIT
 * Linear algebra of matrices, f32 or f64: matrices are the last two dims, all others are a batch. Inputs may
 * have any strides, outputs too; the inputs of a call share dtype and batch shape. Solvers and factorizations
 * need LAPACK, opened at the first call; without it they fail with PL_ERR_UNSUPPORTED. A LAPACK call cannot be
 * interrupted: the flag is looked at between the matrices of a batch. */
#ifndef PL_KERNELS_LINALG_H
#define PL_KERNELS_LINALG_H

#include "kernels/kernel.h"

/* A matrix with NaN or infinity gives NaN from inv, solve, det, slogdet, cofactor, qr and matrix_exp, and a
 * failure from cholesky, svd, eigh and pinv, which would not end or would invent numbers. */

PlStatus plk_cpu_inv(const PlkCall *call); /* singular: a failure */
/* in a[…,n,n], b[…,n,k] (left) or [k,n]; attr 0: left. Singular: a failure. */
PlStatus plk_cpu_solve(const PlkCall *call);
/* The same with a triangle of a; attrs: 0 upper, 1 left, 2 unitriangular. Zeros on the diagonal give inf. */
PlStatus plk_cpu_solve_triangular(const PlkCall *call);
PlStatus plk_cpu_det(const PlkCall *call);
PlStatus plk_cpu_slogdet(const PlkCall *call);  /* out sign, log |det| */
PlStatus plk_cpu_cofactor(const PlkCall *call); /* det(a) a^-T, also of singular matrices */
/* in g, a of one shape: the derivative of the sum of g cofactor(a) by a, also of singular matrices. */
PlStatus plk_cpu_cofactor_bwd(const PlkCall *call);
PlStatus plk_cpu_cholesky(const PlkCall *call); /* attr 0: upper */
/* attrs: 0 upper, 1 tol (below 0: n u max a_ii, u half the distance from 1 to the next number); out the factor, pivots
 * (i64, from 1), ranks (i64), the permutation matrix. */
PlStatus plk_cpu_pivoted_cholesky(const PlkCall *call);
PlStatus plk_cpu_geqrf(const PlkCall *call); /* out r with the reflectors below its diagonal, their factors */
PlStatus plk_cpu_qr(const PlkCall *call);    /* attr 0: 0 reduced, 1 complete, 2 r; out q, r (2: only out 1) */
PlStatus plk_cpu_svd(const PlkCall *call);   /* attr 0: full; out u, s, vh */
PlStatus plk_cpu_svdvals(const PlkCall *call);
PlStatus plk_cpu_eigh(const PlkCall *call); /* attr 0: 0 lower, 1 upper triangle is read; out values, vectors */
PlStatus plk_cpu_eigvalsh(const PlkCall *call);
/* in a, optional rtol, atol (f64, the batch's shape): singular values up to max(atol, rtol · largest) are 0. */
PlStatus plk_cpu_pinv(const PlkCall *call);
PlStatus plk_cpu_lu(const PlkCall *call);         /* out l and u in one matrix, pivots (i64, from 1), the permutation matrix */
PlStatus plk_cpu_eig(const PlkCall *call);        /* out values re, im, vectors re, im */
PlStatus plk_cpu_matrix_exp(const PlkCall *call); /* needs no LAPACK */

#endif
