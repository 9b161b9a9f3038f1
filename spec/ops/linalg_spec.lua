-- SPDX-License-Identifier: MIT
-- T.linalg: factorizations multiply back, gradients along symmetric matrices and of second order, layouts, threads,
-- refusals, matrices that are singular, empty or not finite.

local T = require "perilune"
local near = require "spec.support.near"
local random = require "spec.support.random"
local gradcheck = require "spec.support.gradcheck"
local fails = near.fails
local L = T.linalg
local unpack = table.unpack

local g = random.new(5)
local function rand(shape, dtype)
  return random.tensor(T, g:list(random.numel(shape), -1, 1), shape, dtype or "f64")
end
local function strong(shape, dtype)
  local n = shape[#shape]
  return rand(shape, dtype) + T.diag((T.arange(1, n) * 2):to(dtype or "f64"))
end
local function mt(x) return x:transpose(-2, -1) end
local function same(a, b, tol)
  assert.same(b:shape(), a:shape())
  local gap = a:numel() > 0 and (a - b):abs():amax():item() or 0
  assert.is_true(gap <= (tol or 1e-12), "differs by " .. gap)
end
local function eye(n, dtype) return T.eye(n, n, { dtype = dtype or "f64" }) end

describe("factorizations multiply back:", function()
  for dtype, tol in pairs { f64 = 1e-11, f32 = 1e-4 } do
    for _, n in ipairs { 1, 2, 7, 150 } do -- 150: beyond the sizes that f64 scratch serves
      local name = dtype .. " of size " .. n
      local big = tol * n
      it("inv and solve, " .. name, function()
        local a, b = strong({ n, n }, dtype) * n, rand({ n, 3 }, dtype)
        same(a:matmul(L.inv(a)), eye(n, dtype), big)
        same(a:matmul(L.solve(a, b)), b, big)
        local sign, log = L.slogdet(a)
        if n < 100 then same(sign * log:exp() / L.det(a), T.ones({}, { dtype = dtype }), big) end
      end)
      it("cholesky and eigh, " .. name, function()
        local x = rand({ n, n }, dtype)
        local a = x:matmul(mt(x)) + eye(n, dtype)
        local l, u = L.cholesky(a), L.cholesky(a, { upper = true })
        same(l:matmul(mt(l)), a, big)
        same(u, mt(l), big)
        local w, v = L.eigh(a)
        same((v * w:unsqueeze(-2)):matmul(mt(v)), a, big)
        same(w, L.eigvalsh(a, { UPLO = "U" }), big)
      end)
      it("pivoted cholesky, " .. name, function()
        local x = rand({ 2, n, math.max(1, n // 2) }, dtype)
        local a = x:matmul(mt(x))
        for _, upper in ipairs { false, true } do
          local l, p, rank = L.pivoted_cholesky(a, upper)
          assert.equal("i64", p:dtype())
          for b = 1, 2 do
            assert.equal(x:size(-1), rank:get(b))
            local f = upper and l[b] or mt(l[b])
            same(mt(f):matmul(f), a[b]:index_select(1, p[b]):index_select(2, p[b]), big * 5)
            assert.is_true(f:narrow(1, 1, rank:get(b)):diagonal():diff():le(big):all():item())
          end
        end
        local l, _, rank = L.pivoted_cholesky(a[1], { tol = 1e30 }) -- the first is always taken
        assert.equal(1, rank:item())
        assert.equal(0, l:narrow(2, 2, n - 1):abs():sum():item())
      end)
      it("qr and svd, " .. name, function()
        for _, shape in ipairs { { n, n }, { n + 3, n }, { n, n + 3 } } do
          local a = rand(shape, dtype)
          for _, mode in ipairs { "reduced", "complete" } do
            local q, r = L.qr(a, mode)
            same(q:matmul(r), a, big)
            same(mt(q):matmul(q), eye(q:size(2), dtype), big)
            same(r, r:triu(), 0)
          end
          local none, r = L.qr(a, "r")
          assert.is_nil(none)
          same(r, (select(2, L.qr(a))), big)
          for _, full in ipairs { true, false } do
            local U, S, Vh = L.svd(a, { full_matrices = full })
            local k = S:size(1)
            same((U:narrow(2, 1, k) * S):matmul(Vh:narrow(1, 1, k)), a, big)
            same(mt(U):matmul(U), eye(U:size(2), dtype), big)
            same(Vh:matmul(mt(Vh)), eye(Vh:size(1), dtype), big)
            same(S, L.svdvals(a), big)
          end
        end
      end)
    end
  end

  it("lu_solve, from both sides", function()
    for _, batch in ipairs { {}, { 3 } } do
      local function sized(m, n) return rand(batch[1] and { batch[1], m, n } or { m, n }) end
      local a, b = sized(4, 4), sized(2, 4)
      local LU, pivots = L.lu_factor(a)
      local function off(x, y) return (x - y):abs():max():item() end
      assert.is_true(off(L.lu_solve(LU, pivots, b, { left = false }):matmul(a), b) < 1e-9)
      assert.is_true(off(L.lu_solve(LU, pivots, b, { left = false, adjoint = true }):matmul(mt(a)), b) < 1e-9)
      assert.is_true(off(a:matmul(L.lu_solve(LU, pivots, mt(b))), mt(b)) < 1e-9)
      assert.is_true(off(mt(a):matmul(L.lu_solve(LU, pivots, mt(b), { adjoint = true })), mt(b)) < 1e-9)
      assert.has_error(function() L.lu_solve(LU, pivots, mt(b), { left = false }) end)
    end
  end)

  it("pinv fulfils Penrose's conditions, also of a matrix without full rank", function()
    local a = rand { 5, 2 }:matmul(rand { 2, 4 })
    local p = L.pinv(a)
    same(a:matmul(p):matmul(a), a)
    same(p:matmul(a):matmul(p), p)
    same(mt(a:matmul(p)), a:matmul(p))
    same(mt(p:matmul(a)), p:matmul(a))
    same(L.pinv(a, { rtol = T.tensor(2.0) }), T.zeros({ 4, 5 }, { dtype = "f64" }))
  end)

  it("matrix_exp", function()
    same(T.matrix_exp(T.zeros({ 2, 2 }, { dtype = "f64" })), eye(2))
    local t = 0.7
    local turn = T.matrix_exp(T.tensor({ { 0, -t }, { t, 0 } }, { dtype = "f64" }))
    local c, s = math.cos(t), math.sin(t)
    same(turn, T.tensor({ { c, -s }, { s, c } }, { dtype = "f64" }), 1e-15)
    local a = rand { 2, 4, 4 } * 10
    same(T.matrix_exp(a):matmul(T.matrix_exp(-a)), eye(4):expand(2, 4, 4), 1e-4)
  end)
end)

describe("products and norms", function()
  it("matrix_power", function()
    local a = strong { 2, 3, 3 }
    same(L.matrix_power(a, 5), a:matmul(a):matmul(a):matmul(a):matmul(a), 1e-7)
    same(L.matrix_power(a, -2), L.inv(a):matmul(L.inv(a)))
    same(L.matrix_power(a, 0), eye(3):expand(2, 3, 3))
    fails("integer", L.matrix_power, a, 1.5)
    fails("square", L.matrix_power, rand { 2, 3 }, 2)
  end)

  it("multi_dot takes vectors at its ends", function()
    local a, b, c = rand { 4 }, rand { 4, 30 }, rand { 30, 2 }
    same(L.multi_dot { a, b, c }, a:matmul(b):matmul(c))
    same(L.multi_dot { b, c, rand { 2 } * 0 }, T.zeros({ 4 }, { dtype = "f64" }))
    fails("fit", L.multi_dot, { b, b })
    fails("list", L.multi_dot, { b })
  end)

  it("cross", function()
    local x, y = T.tensor { 1.0, 0.0, 0.0 }, T.tensor { 0.0, 1.0, 0.0 }
    same(L.cross(x, y), T.tensor { 0.0, 0.0, 1.0 }, 0)
    fails("size 3", L.cross, T.ones(2), T.ones(2))
  end)

  it("norms of a known matrix", function()
    local a = T.tensor({ { 3.0, 0.0 }, { 0.0, -4.0 } }, { dtype = "f64" })
    local want = { fro = 5, nuc = 7, [1] = 4, [-1] = 3, [2] = 4, [-2] = 3, [math.huge] = 4, [-math.huge] = 3 }
    for ord, v in pairs(want) do
      assert.is_true(math.abs(L.matrix_norm(a, ord):item() - v) < 1e-12, tostring(ord))
      assert.is_true(math.abs(L.norm(a, ord):item() - v) < 1e-12, tostring(ord))
      assert.same({ 1, 1 }, L.matrix_norm(a, { ord = ord, keepdim = true }):shape())
    end
    assert.equal(5.0, L.norm(a):item())
    assert.equal(7.0, L.vector_norm(a, 1):item())
    assert.equal(2.0, L.vector_norm(a, 0):item())
    for _, shape in ipairs { { 0, 3 }, { 3, 0 }, { 2, 0, 0 } } do -- of nothing: 0, and no least
      local batch = #shape == 3 and { 2 } or {}
      local none = T.zeros(shape, { dtype = "f64" })
      for ord in pairs(want) do
        local zero = T.zeros(batch, { dtype = "f64" })
        if type(ord) == "string" or ord > 0 then same(L.matrix_norm(none, ord), zero, 0) end
        same(L.cond(none, ord), zero, 0)
      end
      fails("least singular value", L.matrix_norm, none, -2)
    end
    fails("p is", L.cond, a, 3)
    fails("two dims", L.matrix_norm, a, "fro", { 1 })
    fails("fro", L.matrix_norm, a, 3)
  end)
end)

-- f of a symmetric matrix, as a function of any.
local function along(f)
  return function(x) return f((x + mt(x)) / 2) end
end

describe("gradients", function()
  local cases = {
    { "cholesky", along(L.cholesky) }, { "cholesky upper", along(function(x) return L.cholesky(x, true) end) },
    { "eigh", along(function(x) return L.eigh(x) end) }, { "eigvalsh", along(L.eigvalsh) },
    { "pivoted cholesky", function(x) return (L.pivoted_cholesky(x:matmul(mt(x)))) end },
    { "pivoted cholesky of rank 2", function(x)
      local b = x:narrow(-1, 1, 2)
      return (L.pivoted_cholesky(b:matmul(mt(b)), { upper = true, tol = 1e-9 }))
    end },
    { "reflectors", function(x) return L.householder_product(x, x:select(-2, 1) / 4) end },
    { "products with reflectors", function(x)
      return T.ormqr(x, x:select(-2, 1) / 4, x, { left = false, transpose = true })
    end },
    { "inv", L.inv }, { "det", L.det }, { "slogdet", L.slogdet }, { "qr", L.qr }, { "svdvals", L.svdvals },
    { "svd", function(x) return L.svd(x, { full_matrices = false }) end }, { "pinv", L.pinv },
    { "matrix_exp", function(x) return T.matrix_exp(x / 8) end },
    { "solve", function(x) return L.solve(x, T.ones({ 3, 2 }, { dtype = "f64" })) end },
    { "triangle", function(x)
      return L.solve_triangular(x, T.ones({ 3, 2 }, { dtype = "f64" }), { upper = false })
    end },
    { "nuclear norm", function(x) return L.matrix_norm(x, "nuc") end },
    { "power", function(x) return L.matrix_power(x / 4, 3) end },
  }
  for _, case in ipairs(cases) do
    local name, f = case[1], case[2]
    it("of " .. name, function()
      for _, x in ipairs { strong { 3, 3 }, strong { 2, 3, 3 } } do
        local ok, why = gradcheck.check(T, f, { x }, { rtol = 1e-5, atol = 1e-6 })
        assert.is_true(ok, why)
      end
    end)

    it("of second order of " .. name, function()
      local function first(x)
        if not x.requires_grad then x = x:detach():requires_grad_() end
        local loss
        for i, y in ipairs { f(x) } do
          local w = (T.arange(1, y:numel()):to("f64") * 0.3 + i):sin():reshape(y:shape())
          local part = (y * y * w):sum()
          loss = loss and loss + part or part
        end
        return (T.grad_of({ loss }, { x }, { create_graph = true }))
      end
      local ok, why = gradcheck.check(T, first, { strong { 3, 3 } }, { rtol = 1e-4, atol = 1e-5 })
      assert.is_true(ok, why)
    end)
  end

  it("of svd's full matrices are those of the reduced ones", function()
    for _, shape in ipairs { { 4, 2 }, { 2, 4 }, { 3, 3 } } do
      local x = rand(shape)
      local function gradient(full)
        local leaf = x:clone():requires_grad_()
        local u, s, vh = T.linalg.svd(leaf, { full_matrices = full })
        local k = s:numel()
        local a, b = u:narrow(2, 1, k), vh:narrow(1, 1, k)
        return T.grad_of((a:matmul(b) * 0.7 + (a * s):matmul(b):sin()):sum() + s:pow(3):sum(), { leaf })[1]
      end
      assert.is_true(T.allclose(gradient(true), gradient(false), { rtol = 1e-9, atol = 1e-9 }))
    end
  end)

  it("of a norm with p < 1 are 0 where an element is", function()
    local x = T.tensor({ 0, 3, -4 }, { dtype = "f64" }):requires_grad_()
    x:norm(0.5):backward()
    local root = 3 ^ 0.5 + 4 ^ 0.5 -- d(sum |x|^p)^(1/p) = sum^(1/p - 1) |x|^(p - 1) sign x
    assert.equal(0, x.grad:select(1, 1):item())
    assert.near(root / 3 ^ 0.5, x.grad:select(1, 2):item(), 1e-12)
    assert.near(-root / 4 ^ 0.5, x.grad:select(1, 3):item(), 1e-12)
  end)

  it("of second order of a norm are finite for what is not 0, whatever is 0 beside it", function()
    local x = T.tensor({ 0, 3, -4 }, { dtype = "f64" }):requires_grad_()
    for _, p in ipairs { 0.5, 1.5, 2, 2.5 } do
      local y = x:narrow(1, 2, 2):detach():requires_grad_() -- without the 0
      local function second(t)
        local slope = T.grad_of({ t:norm(p) }, { t }, { create_graph = true })[1]
        return T.grad_of({ (slope * slope):sum() }, { t })[1]
      end
      same(second(x):narrow(1, 2, 2), second(y), 1e-12)
    end
  end)

  it("of det where the matrix is singular are its cofactors", function()
    local x = T.tensor({ { 1.0, 2.0 }, { 2.0, 4.0 } }, { dtype = "f64" }):requires_grad_()
    same(T.grad_of({ L.det(x) }, { x })[1], T.tensor({ { 4.0, -2.0 }, { -2.0, 1.0 } }, { dtype = "f64" }))
  end)

  it("of second order of det are right for every rank, of third order where there is an inverse", function()
    for n = 1, 4 do
      for rank = 0, n do
        local x = rank == n and rand { n, n } or rand { n, rank }:matmul(rand { rank, n })
        local function cofactors(a) return T.grad(L.det)(a) end
        local got = T.hessian(L.det, x):view(n * n, n, n)
        for i = 1, n * n do -- cofactors are polynomials of degree n - 1, here in one entry: linear
          local up, down = x:clone(), x:clone()
          up:view(-1):select(1, i):add_(0.5)
          down:view(-1):select(1, i):sub_(0.5)
          same(got[i], cofactors(up) - cofactors(down), 1e-12)
        end
        local e = rand { n, n }
        local _, moved = T.jvp(cofactors, { x }, { e })
        same(moved, (got:view(n, n, n, n) * e:view(n, n, 1, 1)):sum { dim = { 1, 2 } }, 1e-12)
        if rank == n then
          local function second(a) return (T.hessian(L.det, a) * e):sum() end
          local third, h = T.grad(second)(x), 1e-4
          same(third:mul(e):sum(), (second(x + h * e) - second(x - h * e)) / (2 * h), 1e-6)
        end
      end
    end
  end)

  it("of coinciding values are finite where the vectors are not asked for", function()
    local x = eye(3):requires_grad_()
    local _, S = L.svd(x)
    same(T.grad_of({ S:sum() }, { x })[1], eye(3))
    local y = eye(3):requires_grad_()
    local w = L.eigh(y)
    same(T.grad_of({ w:sum() }, { y })[1], eye(3))
  end)

  it("of coinciding values are NaN where the vectors are asked for, of which they say nothing", function()
    local F64 = { dtype = "f64" }
    local other = T.tensor({ { 3, 1, 0 }, { 1, 5, 2 }, { 0, 2, 1 } }, F64)
    local c = T.tensor({ { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 10 } }, F64)
    local function root(x)
      local w, v = L.eigh(x)
      return v:matmul(w:sqrt():unsqueeze(-2) * v:transpose(-2, -1)) * c
    end
    for _, f in ipairs {
      root,
      function(x) return select(2, L.eigh(x)) * c end,
      function(x) return (L.svd(x)) * c end,
      function(x) return select(3, L.svd(x)) * c end,
      function(x) return select(3, L.eig(x)) * c end,
      function(x) return T.grad_of({ L.eigvalsh(x):log():sum() }, { x }, { create_graph = true })[1] * c end,
      function(x) return T.grad_of({ L.svdvals(x):log():sum() }, { x }, { create_graph = true })[1] * c end,
    } do
      local x = T.stack({ T.eye(3, F64) * 2, other }):requires_grad_()
      local dx = T.grad_of({ f(x):sum() }, { x })[1]
      assert.is_true(dx[1]:isnan():any():item())
      assert.is_true(dx[2]:isfinite():all():item())
    end
  end)

  it("of the complete Q of a tall matrix are refused", function()
    fails("complete", function()
      local x = rand { 4, 2 }:requires_grad_()
      L.qr(x, "complete"):sum():backward()
    end)
  end)
end)

describe("layouts and threads", function()
  local fs = {
    inv = L.inv, det = L.det, slogdet = L.slogdet, qr = L.qr, svd = L.svd, svdvals = L.svdvals, pinv = L.pinv,
    cholesky = function(x) return L.cholesky(x:matmul(mt(x)):contiguous() + 9 * eye(4, x:dtype())) end,
    eigh = L.eigh, eigvalsh = L.eigvalsh, solve = function(x) return L.solve(x, x) end, matrix_exp = T.matrix_exp,
    solve_triangular = function(x) return L.solve_triangular(x, x, { upper = true }) end,
  }
  for name, f in pairs(fs) do
    it(name .. " gives the same bits in every layout and at any number of threads", function()
      local x = strong({ 50, 4, 4 }, "f32")
      local want = { f(x) }
      for _, kind in ipairs { "transposed", "step", "offset" } do
        local other = random.layout(T, x, kind)
        for i, y in ipairs { f(other) } do near.same_bits(y, ({ f(other:contiguous()) })[i]) end
      end
      local n = T.get_num_threads()
      for _, count in ipairs { 1, 2, 3 } do
        T.set_num_threads(count)
        local got = { f(x) }
        T.set_num_threads(n)
        for i, y in ipairs(got) do near.same_bits(y, want[i]) end
      end
    end)
  end

  it("broadcast in systems", function()
    local a, b = strong { 3, 1, 4, 4 }, rand { 2, 4, 2 }
    local x = L.solve(a, b)
    assert.same({ 3, 2, 4, 2 }, x:shape())
    same(a:matmul(x), b:expand(3, 2, 4, 2))
    same(L.solve(strong { 4, 4 } * 0 + eye(4), b:select(3, 1):select(1, 1)), b:select(3, 1):select(1, 1))
    fails("broadcast", L.solve, strong { 3, 4, 4 }, rand { 2, 4, 1 })
  end)
end)

describe("refusals", function()
  it("name the matrix", function()
    local pair = T.tensor { { { 1.0, 0.0 }, { 0.0, 1.0 } }, { { 1.0, 2.0 }, { 2.0, 4.0 } } }
    fails("matrix 2 of the batch is singular", L.inv, pair)
    fails("singular", L.solve, pair, T.ones(2, 2, 1))
    fails("not positive definite", L.cholesky, pair)
    fails("not positive definite", L.cholesky, T.tensor { { 1.0, 2.0 }, { 2.0, 1.0 } })
    for _, name in ipairs { "inv", "det", "slogdet", "cholesky", "eigh", "eigvalsh" } do
      fails("square", L[name], T.ones(2, 3))
    end
    for _, name in ipairs { "inv", "det", "qr", "svd", "svdvals", "pinv", "cholesky", "eigh" } do
      fails("f32 or f64", L[name], T.ones(3, 3, { dtype = "i64" }))
      fails("f32 or f64", L[name], T.ones(3, 3, { dtype = "f16" }))
      fails(name == "pinv" and "dims" or "matrix", L[name], T.ones(3))
    end
  end)

  it("values that are not finite never reach an iteration", function()
    for _, v in ipairs { 0 / 0, math.huge, -math.huge } do
      local x = strong { 2, 3, 3 }
      x[2][1][1] = v
      for _, name in ipairs { "svd", "svdvals", "eigh", "eigvalsh", "pinv", "cholesky" } do
        fails("NaN or infinity", L[name], x)
      end
      for _, name in ipairs { "inv", "det", "slogdet", "qr" } do
        local y = L[name](x)
        assert.is_true(y:select(1, 2):isnan():all():item(), name)
        assert.is_false(y:select(1, 1):isnan():any():item(), name)
      end
      assert.is_true(T.matrix_exp(x):select(1, 2):isnan():all():item())
    end
  end)

  it("empty matrices have results", function()
    for _, s in ipairs { { 0, 0 }, { 2, 0, 0 }, { 0, 3, 3 } } do
      local x = T.zeros(s)
      assert.same(s, L.inv(x):shape())
      assert.same(s, L.cholesky(x):shape())
      assert.same({ unpack(s, 1, #s - 2) }, L.det(x):shape())
      assert.same(s, T.matrix_exp(x):shape())
    end
    assert.equal(1.0, L.det(T.zeros(0, 0)):item())
    local q = L.qr(T.zeros(3, 0), "complete")
    same(q, eye(3, "f32"), 0)
    local U, S, Vh = L.svd(T.zeros(0, 2))
    assert.same({ 0, 0 }, U:shape())
    assert.same({ 0 }, S:shape())
    same(Vh, eye(2, "f32"), 0)
  end)
end)

describe("products that are added", function()
  -- Gradients are compared with difference quotients of the op itself, which a wrong factor does not disturb.
  local shapes = { addmm = { { 3, 2 }, { 3, 4 }, { 4, 2 } }, addmv = { { 3 }, { 3, 4 }, { 4 } },
    addr = { { 3, 2 }, { 3 }, { 2 } }, addbmm = { { 3, 2 }, { 5, 3, 4 }, { 5, 4, 2 } },
    baddbmm = { { 5, 3, 2 }, { 5, 3, 4 }, { 5, 4, 2 } } }
  local product = { addmm = T.matmul, addmv = T.matmul, addr = T.outer, baddbmm = T.matmul,
    addbmm = function(x, y) return x:matmul(y):sum(1) end }
  for name, s in pairs(shapes) do
    it(name .. " takes beta and alpha", function()
      T.manual_seed(4)
      local c, x, y = T.randn(s[1]):double(), T.randn(s[2]):double(), T.randn(s[3]):double()
      for _, dtype in ipairs { "f64", "i64" } do
        if dtype == "i64" then c, x, y = (c * 9):to "i64", (x * 9):to "i64", (y * 9):to "i64" end
        for _, beta in ipairs { 0, 1, -2 } do
          for _, alpha in ipairs { 0, 1, 3 } do
            local want = c * beta + product[name](x, y) * alpha
            local got = T[name](c, x, y, { beta = beta, alpha = alpha })
            assert.equal(dtype, got:dtype())
            assert.is_true((got - want):abs():max():item() <= (dtype == "i64" and 0 or 1e-12),
              ("%s, beta %d, alpha %d"):format(dtype, beta, alpha))
          end
        end
      end
    end)
  end
end)
