-- SPDX-License-Identifier: MIT
-- Decompositions of T.linalg and what is made of them: LU factors and solutions, least squares, ranks, condition
-- numbers, eigenvalues of general matrices, tensor equations. Matrices are the last two dims, all before them a batch.
local options = require "perilune.options"
local values = require "perilune.values"

return function(T, core)
  local op, fail = core.op, options.fail
  local L, methods = T.linalg, core.metatable().methods
  local make = require "perilune.define"(T, core)
  local define = require "perilune.define"(T, core, { into = L, prefix = "linalg." })
  local unpack = table.unpack

  local function matrix(who, name, x, square)
    if x:dim() < 2 then fail("linalg.%s: %s must be a matrix or a batch of them, got %s", who, name, x:describe()) end
    if square and x:size(-1) ~= x:size(-2) then
      fail("linalg.%s: %s must be square matrices, got %s", who, name, x:describe())
    end
    return x
  end

  -- ---- LU --------------------------------------------------------------------------------------------

  local factor = op["linalg.lu_factor"]
  -- A = P L U → LU (both in one matrix), pivots
  define("lu_factor", { { "A", "tensor" } }, function(a)
    local LU, pivots = factor(a.A)
    return LU, pivots
  end)

  --- T.linalg.lu(…) → P, L, U
  -- A = P L U with row exchanges; every size of matrix.
  --   print(T.linalg.lu(T.tensor { { 1, 2 }, { 4, 4 } }))
  --   --> {{0., 1.},
  --   -->  {1., 0.}}  -- f32[2,2] cpu	{{1.0000, 0.0000},
  --   -->  {0.2500, 1.0000}}  -- f32[2,2] cpu	{{4., 4.},
  --   -->  {0., 1.}}  -- f32[2,2] cpu
  define("lu", { { "A", "tensor" } }, function(a)
    local LU, _, P = factor(a.A)
    local m, n = LU:size(-2), LU:size(-1)
    local k = math.min(m, n)
    local lower = LU:narrow(-1, 1, k):tril(-1) + T.eye(m, k, { dtype = LU:dtype() })
    return P, lower, LU:narrow(-2, 1, k):triu()
  end)
  -- The same by ops, for pivots that have no values yet or stand for many: k swaps in each.
  local function traced_order(pivots, m)
    local shape = pivots:shape()
    shape[#shape] = m
    local order = (T.arange(m) - 1):expand(shape)
    for i = 1, pivots:size(-1) do
      local from = pivots:narrow(-1, i, 1):long()
      local here, there = order:narrow(-1, i, 1), T.gather(order, from, { dim = -1 })
      order = T.scatter(order, from, here, { dim = -1 })
      order = T.scatter(order, T.full_like(from, i), there, { dim = -1 })
    end
    return order
  end

  -- The order of rows that the pivots (numbered from 1) make, for each of the batch: [..., m], from 0.
  local function order_of(who, pivots, m)
    if values.some(pivots, function(t) return T.logical_or(t:lt(1), t:gt(m)) end) then
      fail("%s: a pivot is not in 1 … %d", who, m)
    end
    local known, batches = core.readable(pivots)
    if not known or batches > 0 then return traced_order(pivots, m) end
    local k, flat = pivots:size(-1), pivots:reshape(-1):totable()
    local out, at = {}, 0
    for b = 1, k > 0 and #flat // k or 0 do
      local rows = {}
      for i = 1, m do rows[i] = i - 1 end
      for i = 1, k do
        local j = flat[(b - 1) * k + i]
        rows[i], rows[j] = rows[j], rows[i]
      end
      for i = 1, m do out[at + i] = rows[i] end
      at = at + m
    end
    local shape = pivots:shape()
    shape[#shape] = m
    return T.tensor(out, { dtype = "i64" }):reshape(shape)
  end

  --- T.linalg.lu_solve(…) → tensor
  -- X with A X = B (adjoint=true: Aᵀ X = B; left=false: X A = B, or X Aᵀ = B) from what lu_factor gave.
  --   local LU, pivots = T.linalg.lu_factor(T.tensor { { 0, 2 }, { 4, 0 } })
  --   print(T.linalg.lu_solve(LU, pivots, T.tensor { { 2 }, { 4 } }))
  --   --> {{1.},
  --   -->  {1.}}  -- f32[2,1] cpu
  define("lu_solve", { { "LU", "tensor" }, { "pivots", "tensor" }, { "B", "tensor" }, { "adjoint", "bool", false },
    { "left", "bool", true } },
    function(a)
      local LU, B = matrix("lu_solve", "LU", a.LU, true), matrix("lu_solve", "B", a.B)
      local n, adjoint = LU:size(-1), a.adjoint
      if not a.left then -- (X A)ᵀ = Aᵀ Xᵀ
        if B:size(-1) ~= n then
          fail("linalg.lu_solve: %s with %s: B must have as many columns as LU with left=false", LU:describe(),
            B:describe())
        end
        B, adjoint = B:transpose(-2, -1), not adjoint
      end
      if a.pivots:is_floating_point() or a.pivots:dim() ~= LU:dim() - 1 or a.pivots:size(-1) ~= n then
        fail("linalg.lu_solve: the pivots of %s must be whole numbers, one a row, got %s", LU:describe(),
          a.pivots:describe())
      end
      if B:size(-2) ~= n then
        fail("linalg.lu_solve: %s with %s: B must have as many rows as LU", LU:describe(), B:describe())
      end
      local order, index = order_of("linalg.lu_solve", a.pivots, n), nil
      local function permuted(x, by)
        index = by:unsqueeze(-1):expand(x:shape())
        return T.gather(x, index, { dim = x:dim() - 1, index_base = 0 })
      end
      local function done(X) return a.left and X or X:transpose(-2, -1) end
      if not adjoint then
        if #B:shape() ~= #LU:shape() then fail("linalg.lu_solve: B must have as many dims as LU") end
        local Y = L.solve_triangular(LU, permuted(B, order), { upper = false, unitriangular = true })
        return done(L.solve_triangular(LU, Y, { upper = true }))
      end
      local t = LU:transpose(-2, -1)
      local Y = L.solve_triangular(t, B, { upper = false })
      local Z = L.solve_triangular(t, Y, { upper = true, unitriangular = true })
      return done(permuted(Z, op.argsort(order, { dim = -1 }) - 1))
    end)

  --- T.lu_unpack(…) → P, L, U
  -- The factors from what T.linalg.lu_factor gave.
  --   local P, L, U = T.lu_unpack(T.linalg.lu_factor(T.tensor { { 1, 2 }, { 4, 4 } }))
  --   print(P:matmul(L):matmul(U))
  --   --> {{1., 2.},
  --   -->  {4., 4.}}  -- f32[2,2] cpu
  make("lu_unpack", { { "LU", "tensor" }, { "pivots", "tensor" } }, function(a)
    local LU = matrix("lu_unpack", "LU", a.LU)
    local m, n = LU:size(-2), LU:size(-1)
    local k = math.min(m, n)
    if a.pivots:is_floating_point() or a.pivots:dim() ~= LU:dim() - 1 or a.pivots:size(-1) ~= k then
      fail("lu_unpack: the pivots of %s must be %d whole numbers, got %s", LU:describe(), k, a.pivots:describe())
    end
    local order = order_of("lu_unpack", a.pivots, m)
    local P = T.one_hot(order, { num_classes = m, index_base = 0 }):to(LU:dtype()):transpose(-2, -1)
    return P, LU:narrow(-1, 1, k):tril(-1) + T.eye(m, k, { dtype = LU:dtype() }), LU:narrow(-2, 1, k):triu()
  end)

  -- ---- a few singular values ---------------------------------------------------------------------------------

  -- The largest q singular values and vectors, approximately (Halko, Martinsson, Tropp 2011, algorithms 4.4 and 5.1).
  local function lowrank(A, q, niter)
    local n = A:size(-1)
    local shape = A:shape()
    shape[#shape - 1], shape[#shape] = n, q
    local At = A:transpose(-2, -1)
    local Q = L.qr(A:matmul(T.randn(shape, { dtype = A:dtype(), device = A:device() })))
    for _ = 1, niter do
      local Z = L.qr(At:matmul(Q))
      Q = L.qr(A:matmul(Z))
    end
    local U, S, Vh = L.svd(Q:transpose(-2, -1):matmul(A), { full_matrices = false })
    return Q:matmul(U), S, Vh:transpose(-2, -1)
  end
  local function check_q(who, A, q)
    matrix(who, "A", A)
    if q > math.min(A:size(-1), A:size(-2)) then
      fail("%s: q is %d, but %s has %d singular values", who, q, A:describe(), math.min(A:size(-1), A:size(-2)))
    end
  end

  --- T.svd_lowrank(…) → U, S, V
  -- The largest q singular values and vectors, approximately, from a random sketch (Halko et al. 2011).
  --   local A = T.outer(T.tensor { 1, 2, 2 }, T.tensor { 3, 4 })
  --   print((select(2, T.svd_lowrank(A, 1)):round()))  --> {15.}  -- f32[1] cpu
  make("svd_lowrank", { { "A", "tensor" }, { "q", "count", 6 }, { "niter", "size", 2 } }, function(a)
    check_q("svd_lowrank", a.A, a.q)
    return lowrank(a.A, a.q, a.niter)
  end)

  --- T.pca_lowrank(…) → U, S, V
  -- Principal components of rows of observations: svd_lowrank after subtracting the mean.
  --   local A = T.tensor { { 1, 1 }, { 2, 2 }, { 3, 3 } }
  --   print((select(2, T.pca_lowrank(A, 1)):round()))  --> {2.}  -- f32[1] cpu
  make("pca_lowrank", { { "A", "tensor" }, { "q", "count", optional = true }, { "center", "bool", true },
    { "niter", "size", 2 } }, function(a)
    local q = a.q or math.min(6, a.A:size(-1), matrix("pca_lowrank", "A", a.A):size(-2))
    check_q("pca_lowrank", a.A, q)
    return lowrank(a.center and a.A - a.A:mean(-2, { keepdim = true }) or a.A, q, a.niter)
  end)

  -- ---- Cholesky ------------------------------------------------------------------------------------------

  -- X with A X = B from the Cholesky factor of A
  local function cholesky_solve(a)
    local lower = a.upper and a.L:transpose(-2, -1) or a.L
    matrix("cholesky_solve", "L", lower, true)
    local Y = L.solve_triangular(lower, matrix("cholesky_solve", "B", a.B), { upper = false })
    return L.solve_triangular(lower:transpose(-2, -1), Y, { upper = true })
  end

  --- T.cholesky_solve(…) → tensor
  -- X with A X = B, from the Cholesky factor L of A (upper=true: from its transpose).
  --   local A = T.tensor { { 4, 0 }, { 0, 9 } }
  --   print(T.cholesky_solve(T.tensor { { 8 }, { 9 } }, T.linalg.cholesky(A)))
  --   --> {{2.},
  --   -->  {1.}}  -- f32[2,1] cpu
  make("cholesky_solve", { { "B", "tensor" }, { "L", "tensor" }, { "upper", "bool", false } }, cholesky_solve)

  --- T.cholesky_inverse(…) → tensor
  -- The inverse of A from its Cholesky factor L.
  --   print(T.cholesky_inverse(T.tensor { { 2, 0 }, { 0, 1 } }))
  --   --> {{0.2500, 0.0000},
  --   -->  {0.0000, 1.0000}}  -- f32[2,2] cpu
  make("cholesky_inverse", { { "L", "tensor" }, { "upper", "bool", false } }, function(a)
    matrix("cholesky_inverse", "L", a.L, true)
    local eye = T.eye(a.L:size(-1), { dtype = a.L:dtype() })
    return cholesky_solve { L = a.L, B = eye:expand(a.L:shape()), upper = a.upper }
  end)

  --- T.logdet(…) → tensor
  -- The logarithm of the determinant of square matrices; NaN where it is negative.
  --   print(T.logdet(T.eye(2) * math.exp(1)))  --> 2.0000  -- f32[] cpu
  make("logdet", { { "A", "tensor" } }, function(a)
    local sign, log = L.slogdet(a.A)
    return log:masked_fill(sign:lt(0), 0 / 0)
  end)
  L.inv_ex = L.inv

  -- ---- ranks and condition ---------------------------------------------------------------------------------

  local epsilon = { f32 = 2.0 ^ -23, f64 = 2.0 ^ -52 }
  -- Singular values and what counts as zero among them.
  local function spectrum(who, A, rtol, atol, hermitian)
    matrix(who, "A", A, hermitian)
    local s = hermitian and L.eigvalsh(A):abs() or L.svdvals(A)
    local function known(v) return v == nil and 0.0 or core.is_tensor(v) and v:unsqueeze(-1) or v end
    if rtol == nil and (atol == nil or atol == 0) then
      rtol = math.max(A:size(-1), A:size(-2)) * (epsilon[s:dtype()] or epsilon.f32)
    end
    if rtol == nil and core.is_tensor(atol) then -- where it is 0 the usual share of the largest counts
      local share = math.max(A:size(-1), A:size(-2)) * (epsilon[s:dtype()] or epsilon.f32)
      rtol = T.where(atol:gt(0), 0.0, T.full_like(atol:to(s:dtype()), share))
    end
    if s:numel() == 0 then return s, T.zeros_like(s) end
    local least = s:amax { dim = -1, keepdim = true } * known(rtol)
    local floor = known(atol)
    return s, core.is_tensor(floor) and T.maximum(least, floor) or least:clamp { min = floor }
  end
  local tolerances = { { "rtol", "operand", optional = true }, { "atol", "operand", optional = true } }

  --- T.linalg.matrix_rank(…) → i64 tensor
  -- How many singular values are above max(atol, rtol · largest).
  --   print(T.linalg.matrix_rank(T.ones(2, 2)))  --> 1  -- i64[] cpu
  define("matrix_rank", { { "A", "tensor" }, tolerances[1], tolerances[2], { "hermitian", "bool", false } }, function(a)
    local s, zero = spectrum("matrix_rank", a.A, a.rtol, a.atol, a.hermitian)
    return s:gt(zero):long():sum(-1)
  end)

  local ORDERS = { fro = true, nuc = true, [1] = true, [-1] = true, [2] = true, [-2] = true, [math.huge] = true,
    [-math.huge] = true }

  --- T.linalg.cond(…) → tensor
  -- ‖A‖ ‖A⁻¹‖ in the norm p; for 2 the ratio of the outer singular values. 0 of matrices without entries.
  --   print(T.linalg.cond(T.tensor { { 2, 0 }, { 0, 4 } }))  --> 2.  -- f32[] cpu
  define("cond", { { "A", "tensor" }, { "p", "any", 2 } }, function(a)
    matrix("cond", "A", a.A)
    if not ORDERS[a.p] then
      fail("linalg.cond: p is \"fro\", \"nuc\", 1, -1, 2, -2, inf or -inf, got %s", options.describe(a.p))
    end
    if a.A:size(-1) * a.A:size(-2) == 0 then return a.A:sum { dim = { -2, -1 } } end
    if a.p == 2 or a.p == -2 then
      local s = L.svdvals(a.A)
      local high, low = s:select(-1, 1), s:select(-1, -1)
      if a.p == 2 then return high / low end
      return low / high
    end
    matrix("cond", "A", a.A, true)
    return L.matrix_norm(a.A, a.p) * L.matrix_norm(L.inv(a.A), a.p)
  end)

  -- ---- least squares ---------------------------------------------------------------------------------------

  --- T.linalg.lstsq(…) → X, residuals, rank, singular values
  -- The shortest X that minimizes ‖A X - B‖.
  --   print((T.linalg.lstsq(T.tensor { { 1, 1 }, { 1, 2 }, { 1, 3 } }, T.tensor { 2, 4, 6 }):round(3)))
  --   --> {0., 2.}  -- f32[2] cpu
  define("lstsq", { { "A", "tensor" }, { "B", "tensor" }, { "rcond", "nonnegative", optional = true } },
    core.without_autocast(function(a)
    local A, B = matrix("lstsq", "A", a.A), a.B
    local vector = B:dim() == 1
    if vector then B = B:unsqueeze(-1) end
    matrix("lstsq", "B", B)
    local m, n = A:size(-2), A:size(-1)
    if B:size(-2) ~= m then
      fail("linalg.lstsq: %s with %s: B must have as many rows as A", A:describe(), a.B:describe())
    end
    local rtol = a.rcond or math.max(m, n) * (epsilon[A:dtype()] or epsilon.f32)
    local X = L.pinv(A, { rtol = rtol }):matmul(B)
    local s, zero = spectrum("lstsq", A:detach(), rtol)
    local rank = s:gt(zero):long():sum(-1)
    local residuals = T.zeros({ 0 }, { dtype = A:dtype(), device = A:device() })
    if m > n then
      local known, batches = core.readable(rank)
      local traced = not known or batches > 0
      if traced or not values.some(rank, function(r) return r:ne(n) end) then
        residuals = (A:matmul(X) - B):square():sum(-2)
        -- a graph and a batch have one shape for all: NaN where the rank is less and others would get nothing
        if traced then residuals = residuals:masked_fill(rank:ne(n):unsqueeze(-1), 0 / 0) end
      end
    end
    return vector and X:squeeze(-1) or X, residuals, rank, s
  end))

  -- ---- eigenvalues of general matrices ------------------------------------------------------------------------

  local eig = op["linalg.eig"]
  -- → real and imaginary parts of the values, and of the vectors
  define("eig", { { "A", "tensor" } }, function(a) return eig(a.A) end)

  --- T.linalg.eigvals(…) → real parts, imaginary parts
  -- Eigenvalues of square matrices that need not be symmetric.
  --   print(T.linalg.eigvals(T.tensor { { 0, -1 }, { 1, 0 } }))
  --   --> {0., 0.}  -- f32[2] cpu	{ 1., -1.}  -- f32[2] cpu
  define("eigvals", { { "A", "tensor" } }, function(a)
    local re, im = eig(a.A)
    return re, im
  end)

  -- ---- tensors ------------------------------------------------------------------------------------------------

  --- T.linalg.vecdot(…) → tensor
  -- The sum of x y along dim.
  --   print(T.linalg.vecdot(T.tensor { 1, 2 }, T.tensor { 3, 4 }))  --> 11.  -- f32[] cpu
  local products = { vecdot = function(x, y, dim) return (x * y):sum(dim) end }
  core.rounded_once(products, { "vecdot" })
  define("vecdot", { { "x", "tensor" }, { "y", "tensor" }, { "dim", "int", -1 } }, function(a)
    local x, y, low = a.x, a.y, core.autocast_dtype()
    if low then x, y = core.autocast_cast(x, low), core.autocast_cast(y, low) end -- a product, as matmul is
    return products.vecdot(x, y, a.dim)
  end)
  local function count(shape, from, to)
    local n = 1
    for i = from, to do n = n * shape[i] end
    return n
  end

  --- T.linalg.tensorinv(…) → tensor
  -- The inverse of a tensor as a map from its last dims to its first ind.
  --   print(T.linalg.tensorinv(T.eye(2):view(2, 1, 2), 1):shape()[1])  --> 1
  define("tensorinv", { { "A", "tensor" }, { "ind", "count", 2 } }, function(a)
    local s = a.A:shape()
    local n = count(s, 1, math.min(a.ind, #s))
    if a.ind >= #s or n ~= count(s, a.ind + 1, #s) then
      fail("linalg.tensorinv: the first %d sizes of %s must have the product of the others", a.ind, a.A:describe())
    end
    local shape = { unpack(s, a.ind + 1) }
    for i = 1, a.ind do shape[#shape + 1] = s[i] end
    return L.inv(a.A:reshape(n, n)):reshape(shape)
  end)

  --- T.linalg.tensorsolve(…) → tensor
  -- X with the sum of A X over X's dims equal to B.
  --   print(T.linalg.tensorsolve(T.eye(2) * 2, T.tensor { 2, 4 }))  --> {1., 2.}  -- f32[2] cpu
  define("tensorsolve", { { "A", "tensor" }, { "B", "tensor" }, { "dims", "ints", optional = true } }, function(a)
    local A, dims = a.A, a.dims
    if type(dims) == "number" then dims = { dims } end
    if dims then
      local targets = {}
      for i = 1, #dims do targets[i] = A:dim() - #dims + i end
      A = A:movedim(dims, targets)
    end
    local s = A:shape()
    local n = a.B:numel()
    local rest = { unpack(s, a.B:dim() + 1) }
    if A:numel() ~= n * n or count(rest, 1, #rest) ~= n then
      fail("linalg.tensorsolve: %s with %s: A must have %d² elements, %d of them in its last dims", A:describe(),
        a.B:describe(), n, n)
    end
    return L.solve(A:reshape(n, n), a.B:reshape(n)):reshape(rest)
  end)

  -- ---- reflectors --------------------------------------------------------------------------------------------

  -- V and S with (I - tau_1 v_1 v_1ᵀ) (I - tau_2 v_2 v_2ᵀ) … = I - V S Vᵀ: products of matrices in place of one
  -- reflector after the other (Schreiber & Van Loan 1989). S⁻¹ = diag(1 / tau) + triu(Vᵀ V, 1); nothing is divided.
  local function reflectors(who, A, tau, whole)
    local m, k = A:size(-2), tau:dim() > 0 and tau:size(-1) or 0
    local s, t = A:shape(), tau:shape()
    local fits = #t == #s - 1 and k <= A:size(-1) and k <= m and (not whole or A:size(-1) <= m)
      and tau:dtype() == A:dtype()
    for d = 1, #s - 2 do fits = fits and s[d] == t[d] end
    if not fits then
      fail("%s: A needs at least as many rows as columns, and these as tau has numbers, got %s and %s", who,
        A:describe(), tau:describe())
    end
    local where = { dtype = A:dtype(), device = A:device() }
    local V = A:narrow(-1, 1, k):tril(-1) + T.eye(m, k, where)
    local factors = op.diag_embed(tau)
    local M = T.eye(k, where) + tau:unsqueeze(-1) * V:transpose(-2, -1):matmul(V):triu(1)
    return V, L.solve_triangular(M, factors, { upper = true, unitriangular = true })
  end

  --- T.linalg.householder_product(A, tau) → tensor
  -- The first columns of the product of reflectors I - tau v vᵀ, as many as A[…,m,n] has: Q of what T.geqrf gave.
  --   print(T.linalg.householder_product(T.tensor { { 0 }, { 1 } }, T.tensor { 1 }))
  --   --> {{ 0.},
  --   -->  {-1.}}  -- f32[2,1] cpu
  local product = define("householder_product", { { "A", "tensor" }, { "tau", "tensor" } },
    core.without_autocast(function(a)
    local A = matrix("householder_product", "A", a.A)
    local m, n = A:size(-2), A:size(-1)
    local V, S = reflectors("linalg.householder_product", A, a.tau, true)
    local Q = V:matmul(S:matmul(V:narrow(-2, 1, n):transpose(-2, -1)))
    return T.eye(m, n, { dtype = A:dtype(), device = A:device() }) - Q
  end))

  --- T.orgqr(A, tau) → tensor
  -- Another name of T.linalg.householder_product.
  --   print(T.orgqr(T.geqrf(T.tensor { { 3 }, { 4 } })))
  --   --> {{-0.6000},
  --   -->  {-0.8000}}  -- f32[2,1] cpu
  T.orgqr, methods.orgqr, options.aliases.orgqr = product, product, "linalg.householder_product"

  --- T.geqrf(A) → R and reflectors, tau
  -- Another name of T.linalg.geqrf.
  --   local a, tau = T.geqrf(T.tensor { { 3 }, { 4 } })
  --   print(a:get(1, 1), tau)  --> -5.0	{1.6000}  -- f32[1] cpu
  T.geqrf, methods.geqrf, options.aliases.geqrf = L.geqrf, L.geqrf, "linalg.geqrf"

  --- T.ormqr(A, tau, other, {left=true, transpose=false}) → tensor
  -- Q other, where Q [m,m] is the product of the reflectors in A [m,k] and tau; left=false: other Q; transpose: Qᵀ in
  -- place of Q. Q itself is not made.
  --   local a, tau = T.geqrf(T.tensor { { 3 }, { 4 } })
  --   print(T.ormqr(a, tau, T.tensor { { 3 }, { 4 } }, { transpose = true }))
  --   --> {{-5.},
  --   -->  { 0.}}  -- f32[2,1] cpu
  make("ormqr", { { "A", "tensor" }, { "tau", "tensor" }, { "other", "tensor" }, { "left", "bool", true },
    { "transpose", "bool", false } }, core.without_autocast(function(a)
    if a.A:dim() < 2 then fail("ormqr: A must be a matrix or a batch of them, got %s", a.A:describe()) end
    local C = a.other
    if C:dim() < 2 or C:size(a.left and -2 or -1) ~= a.A:size(-2) then
      fail("ormqr: other must have as many %s as A has rows, got %s and %s", a.left and "rows" or "columns",
        C:describe(), a.A:describe())
    end
    local V, S = reflectors("ormqr", a.A, a.tau)
    if a.transpose then S = S:transpose(-2, -1) end
    local Vt = V:transpose(-2, -1)
    if a.left then return C - V:matmul(S:matmul(Vt:matmul(C))) end
    return C - C:matmul(V):matmul(S):matmul(Vt)
  end))

  --- T.linalg.vander(…) → tensor
  -- Powers 0 … N-1 of vectors in columns.
  --   print(T.linalg.vander(T.tensor { 2, 3 }))
  --   --> {{1., 2.},
  --   -->  {1., 3.}}  -- f32[2,2] cpu
  define("vander", { { "x", "tensor" }, { "N", "count", optional = true } }, function(a)
    local x = a.x
    if not x:is_floating_point() then x = x:to("i64") end
    return x:unsqueeze(-1) ^ T.arange(0, (a.N or x:size(-1)) - 1):to(x:dtype())
  end)

  --- T.linalg.diagonal(…) → view
  -- The diagonals of matrices: T.diagonal of the last two dims.
  --   print(T.linalg.diagonal(T.eye(2):expand { 3, 2, 2 }):size(1))  --> 3
  define("diagonal", { { "A", "tensor" }, { "offset", "int", 0 }, { "dim1", "int", -2 }, { "dim2", "int", -1 } },
    function(a) return a.A:diagonal { offset = a.offset, dim1 = a.dim1, dim2 = a.dim2 } end)

  --- T.linalg.inv_ex(A) → tensor
  -- Another name of T.linalg.inv.
  --   print(T.linalg.inv_ex(T.eye(1)))  --> {{1.}}  -- f32[1,1] cpu

  --- T.linalg.matmul(x, y) → tensor
  -- Another name of T.matmul.
  --   print(T.linalg.matmul(T.eye(1), T.eye(1)))  --> {{1.}}  -- f32[1,1] cpu

  --- T.linalg.matrix_exp(x) → tensor
  -- Another name of T.matrix_exp.
  --   print(T.linalg.matrix_exp(T.zeros(1, 1)))  --> {{1.}}  -- f32[1,1] cpu
  L.matmul, L.matrix_exp = T.matmul, T.matrix_exp

  -- ---- under other names -------------------------------------------------------------------------------

  for name, from in pairs { inverse = "inv", det = "det", slogdet = "slogdet", cholesky = "cholesky", qr = "qr",
    svd = "svd", matrix_power = "matrix_power", pinverse = "pinv", cross = "cross" } do
    T[name], methods[name], options.aliases[name] = L[from], L[from], "linalg." .. from
  end

  --- T.chain_matmul(A, B, C, …) → matrix
  -- The product in the order with the fewest multiplications; T.linalg.multi_dot takes a list.
  --   print(T.chain_matmul(T.ones(1, 2), T.ones(2, 3), T.ones(3, 1)):item())  --> 6.0
  T.chain_matmul = options.named("chain_matmul", function(...)
    local list = { ... }
    if select("#", ...) == 1 and type(list[1]) == "table" then list = list[1] end
    for i = 1, select("#", ...) > 1 and select("#", ...) or 0 do
      if not core.is_tensor(list[i]) then
        options.fail("chain_matmul: argument #%d must be a tensor, got %s", i, options.describe(list[i]))
      end
    end
    options.tensors("chain_matmul", "the matrices", list, 1)
    return L.multi_dot(list)
  end)
end
