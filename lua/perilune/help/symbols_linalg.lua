-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- T.linalg and T.special, beyond the ops: name → {signature, text, example, shapes=}.
-- Signatures are written from the declared arguments where there are any.
local signature = require "perilune.help.signature"

local S = {}
local sig = signature.of

S["linalg.cond"] = { sig("linalg.cond", "tensor", "T."),
  "‖A‖ ‖A⁻¹‖ in the norm p; for 2 the ratio of the outer singular values.", [[
print(T.linalg.cond(T.tensor { { 2, 0 }, { 0, 4 } }))  --> 2.  -- f32[] cpu]] }

S["linalg.cross"] = { "T.linalg.cross(x, y, {dim=-1}) → tensor",
  "The vector product over a dimension of size 3.", [[
print(T.linalg.cross(T.tensor { 1, 0, 0 }, T.tensor { 0, 1, 0 }))  --> {0., 0., 1.}  -- f32[3] cpu]] }

S["linalg.eigvals"] = { sig("linalg.eigvals", "real parts, imaginary parts", "T."),
  "Eigenvalues of square matrices that need not be symmetric.", [[
print(T.linalg.eigvals(T.tensor { { 0, -1 }, { 1, 0 } }))
--> {0., 0.}  -- f32[2] cpu	{ 1., -1.}  -- f32[2] cpu]] }

S["linalg.householder_product"] = { sig("linalg.householder_product", "tensor", "T."),
  "The first columns of the product of reflectors I - tau v vᵀ.", [[
print(T.linalg.householder_product(T.tensor { { 0 }, { 1 } }, T.tensor { 1 }))
--> {{ 0.},
-->  {-1.}}  -- f32[2,1] cpu]] }

S["linalg.inv_ex"] = { "T.linalg.inv_ex(A) → tensor", "Another name of T.linalg.inv.", [[
print(T.linalg.inv_ex(T.eye(1)))  --> {{1.}}  -- f32[1,1] cpu]] }

S["linalg.lstsq"] = { sig("linalg.lstsq", "X, residuals, rank, singular values", "T."),
  "The shortest X that minimizes ‖A X - B‖.", [[
print((T.linalg.lstsq(T.tensor { { 1, 1 }, { 1, 2 }, { 1, 3 } }, T.tensor { 2, 4, 6 }):round(3)))
--> {0., 2.}  -- f32[2] cpu]] }

S["linalg.lu"] = { sig("linalg.lu", "P, L, U", "T."), "A = P L U with row exchanges; every size of matrix.", [[
print(T.linalg.lu(T.tensor { { 1, 2 }, { 4, 4 } }))
--> {{0., 1.},
-->  {1., 0.}}  -- f32[2,2] cpu	{{1.0000, 0.0000},
-->  {0.2500, 1.0000}}  -- f32[2,2] cpu	{{4., 4.},
-->  {0., 1.}}  -- f32[2,2] cpu]] }

S["linalg.lu_solve"] = { sig("linalg.lu_solve", "tensor", "T."),
  "X with A X = B (adjoint=true: Aᵀ X = B) from what lu_factor gave.", [[
local LU, pivots = T.linalg.lu_factor(T.tensor { { 0, 2 }, { 4, 0 } })
print(T.linalg.lu_solve(LU, pivots, T.tensor { { 2 }, { 4 } }))
--> {{1.},
-->  {1.}}  -- f32[2,1] cpu]] }

S["linalg.matmul"] = { "T.linalg.matmul(x, y) → tensor", "Another name of T.matmul.", [[
print(T.linalg.matmul(T.eye(1), T.eye(1)))  --> {{1.}}  -- f32[1,1] cpu]] }

S["linalg.matrix_exp"] = { "T.linalg.matrix_exp(A) → tensor", "Another name of T.matrix_exp.", [[
print(T.linalg.matrix_exp(T.zeros(1, 1)))  --> {{1.}}  -- f32[1,1] cpu]] }

S["linalg.diagonal"] = { "T.linalg.diagonal(A, {offset=0}) → tensor", "Another name of T.diagonal.", [[
print(T.linalg.diagonal(T.eye(2)))  --> {1., 1.}  -- f32[2] cpu]] }

S["linalg.matrix_norm"] = { "T.linalg.matrix_norm(A, ord=\"fro\", dim={-2, -1}, {keepdim=, dtype=}) → tensor",
  "\"fro\", \"nuc\", 1, -1, 2, -2, inf or -inf norms of matrices.", [[
print(T.linalg.matrix_norm(T.tensor { { 3, 0 }, { 0, 4 } }))  --> 5.  -- f32[] cpu]] }

S["linalg.matrix_power"] = { "T.linalg.matrix_power(A, n) → tensor",
  "The n-fold product, of the inverse for n < 0.", [[
print(T.linalg.matrix_power(T.tensor { { 1, 1 }, { 0, 1 } }, 5))
--> {{1., 5.},
-->  {0., 1.}}  -- f32[2,2] cpu]] }

S["linalg.matrix_rank"] = { sig("linalg.matrix_rank", "i64 tensor", "T."),
  "How many singular values are above max(atol, rtol · largest).", [[
print(T.linalg.matrix_rank(T.ones(2, 2)))  --> 1  -- i64[] cpu]] }

S["linalg.multi_dot"] = { "T.linalg.multi_dot{A, B, …} → tensor",
  "The product in the order with the fewest multiplications.", [[
print(T.linalg.multi_dot { T.ones(1, 2), T.ones(2, 3), T.ones(3, 1) })  --> {{6.}}  -- f32[1,1] cpu]] }

S["linalg.norm"] = { "T.linalg.norm(x, ord, dim, {keepdim=, dtype=}) → tensor",
  "A matrix norm for two dims, a vector norm for one; without ord the 2-norm of all elements.", [[
print(T.linalg.norm(T.tensor { 3, 4 }))  --> 5.  -- f32[] cpu]] }

S["linalg.vector_norm"] = { "T.linalg.vector_norm(x, ord=2, dim=all, {keepdim=, dtype=}) → tensor",
  "The ord-norm over dims.", [[
print(T.linalg.vector_norm(T.tensor { 3, -4 }, 1))  --> 7.  -- f32[] cpu]] }

S["linalg.tensorinv"] = { sig("linalg.tensorinv", "tensor", "T."),
  "The inverse of a tensor as a map from its last dims to its first ind.", [[
print(T.linalg.tensorinv(T.eye(2):view(2, 1, 2), 1):shape()[1])  --> 1]] }

S["linalg.tensorsolve"] = { sig("linalg.tensorsolve", "tensor", "T."),
  "X with the sum of A X over X's dims equal to B.", [[
print(T.linalg.tensorsolve(T.eye(2) * 2, T.tensor { 2, 4 }))  --> {1., 2.}  -- f32[2] cpu]] }

S["linalg.vander"] = { sig("linalg.vander", "tensor", "T."), "Powers 0 … N-1 of vectors in columns.", [[
print(T.linalg.vander(T.tensor { 2, 3 }))
--> {{1., 2.},
-->  {1., 3.}}  -- f32[2,2] cpu]] }

S["linalg.vecdot"] = { sig("linalg.vecdot", "tensor", "T."), "The sum of x y along dim.", [[
print(T.linalg.vecdot(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu]] }

S["special.digamma"] = { "T.special.digamma(…), as T.digamma", "Another name of T.digamma.", [[
print(T.special.digamma == T.digamma)  --> true]] }

S["special.psi"] = { "T.special.psi(…), as T.digamma", "Another name of T.digamma.", [[
print(T.special.psi == T.digamma)  --> true]] }

S["special.entr"] = { "T.special.entr(…), as T.entr", "Another name of T.entr.", [[
print(T.special.entr == T.entr)  --> true]] }

S["special.erf"] = { "T.special.erf(…), as T.erf", "Another name of T.erf.", [[
print(T.special.erf == T.erf)  --> true]] }

S["special.erfc"] = { "T.special.erfc(…), as T.erfc", "Another name of T.erfc.", [[
print(T.special.erfc == T.erfc)  --> true]] }

S["special.erfcx"] = { "T.special.erfcx(…), as T.erfcx", "Another name of T.erfcx.", [[
print(T.special.erfcx == T.erfcx)  --> true]] }

S["special.erfinv"] = { "T.special.erfinv(…), as T.erfinv", "Another name of T.erfinv.", [[
print(T.special.erfinv == T.erfinv)  --> true]] }

S["special.exp2"] = { "T.special.exp2(…), as T.exp2", "Another name of T.exp2.", [[
print(T.special.exp2 == T.exp2)  --> true]] }

S["special.expit"] = { "T.special.expit(…), as T.sigmoid", "Another name of T.sigmoid.", [[
print(T.special.expit == T.sigmoid)  --> true]] }

S["special.expm1"] = { "T.special.expm1(…), as T.expm1", "Another name of T.expm1.", [[
print(T.special.expm1 == T.expm1)  --> true]] }

S["special.gammainc"] = { "T.special.gammainc(…), as T.gammainc", "Another name of T.gammainc.", [[
print(T.special.gammainc == T.gammainc)  --> true]] }

S["special.gammaincc"] = { "T.special.gammaincc(…), as T.gammaincc", "Another name of T.gammaincc.", [[
print(T.special.gammaincc == T.gammaincc)  --> true]] }

S["special.gammaln"] = { "T.special.gammaln(…), as T.lgamma", "Another name of T.lgamma.", [[
print(T.special.gammaln == T.lgamma)  --> true]] }

S["special.i0"] = { "T.special.i0(…), as T.i0", "Another name of T.i0.", [[
print(T.special.i0 == T.i0)  --> true]] }

S["special.i0e"] = { "T.special.i0e(…), as T.i0e", "Another name of T.i0e.", [[
print(T.special.i0e == T.i0e)  --> true]] }

S["special.i1"] = { "T.special.i1(…), as T.i1", "Another name of T.i1.", [[
print(T.special.i1 == T.i1)  --> true]] }

S["special.i1e"] = { "T.special.i1e(…), as T.i1e", "Another name of T.i1e.", [[
print(T.special.i1e == T.i1e)  --> true]] }

S["special.log1p"] = { "T.special.log1p(…), as T.log1p", "Another name of T.log1p.", [[
print(T.special.log1p == T.log1p)  --> true]] }

S["special.log_ndtr"] = { "T.special.log_ndtr(…), as T.log_ndtr", "Another name of T.log_ndtr.", [[
print(T.special.log_ndtr == T.log_ndtr)  --> true]] }

S["special.log_softmax"] = { "T.special.log_softmax(…), as T.log_softmax", "Another name of T.log_softmax.", [[
print(T.special.log_softmax == T.log_softmax)  --> true]] }

S["special.logit"] = { "T.special.logit(…), as T.logit", "Another name of T.logit.", [[
print(T.special.logit == T.logit)  --> true]] }

S["special.logsumexp"] = { "T.special.logsumexp(…), as T.logsumexp", "Another name of T.logsumexp.", [[
print(T.special.logsumexp == T.logsumexp)  --> true]] }

S["special.multigammaln"] = { "T.special.multigammaln(…), as T.mvlgamma", "Another name of T.mvlgamma.", [[
print(T.special.multigammaln == T.mvlgamma)  --> true]] }

S["special.ndtr"] = { "T.special.ndtr(…), as T.ndtr", "Another name of T.ndtr.", [[
print(T.special.ndtr == T.ndtr)  --> true]] }

S["special.ndtri"] = { "T.special.ndtri(…), as T.ndtri", "Another name of T.ndtri.", [[
print(T.special.ndtri == T.ndtri)  --> true]] }

S["special.polygamma"] = { "T.special.polygamma(…), as T.polygamma", "Another name of T.polygamma.", [[
print(T.special.polygamma == T.polygamma)  --> true]] }

S["special.round"] = { "T.special.round(…), as T.round", "Another name of T.round.", [[
print(T.special.round == T.round)  --> true]] }

S["special.sinc"] = { "T.special.sinc(…), as T.sinc", "Another name of T.sinc.", [[
print(T.special.sinc == T.sinc)  --> true]] }

S["special.softmax"] = { "T.special.softmax(…), as T.softmax", "Another name of T.softmax.", [[
print(T.special.softmax == T.softmax)  --> true]] }

S["special.xlog1py"] = { "T.special.xlog1py(…), as T.xlog1py", "Another name of T.xlog1py.", [[
print(T.special.xlog1py == T.xlog1py)  --> true]] }

S["special.xlogy"] = { "T.special.xlogy(…), as T.xlogy", "Another name of T.xlogy.", [[
print(T.special.xlogy == T.xlogy)  --> true]] }

S["special.modified_bessel_i0"] = { "T.special.modified_bessel_i0(…), as T.i0", "Another name of T.i0.", [[
print(T.special.modified_bessel_i0 == T.i0)  --> true]] }

S["special.modified_bessel_i1"] = { "T.special.modified_bessel_i1(…), as T.i1", "Another name of T.i1.", [[
print(T.special.modified_bessel_i1 == T.i1)  --> true]] }

return S
