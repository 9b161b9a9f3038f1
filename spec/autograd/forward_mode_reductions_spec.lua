-- SPDX-License-Identifier: MIT
-- Losses of differences, extremes and products with their tangents (PlOp.dual, *_tangent): beside the same by other
-- ops, in every option, with the bits of the value outside of T.jvp, traced, under a limit of memory, and in batches.

local T = require "perilune"
local F = T.nn.F

local function near(got, want, tol)
  assert.same(want:shape(), got:shape())
  local scale = math.max(1, want:abs():nan_to_num(0):max():item())
  local d = (got - want):nan_to_num(0):abs():max():item()
  assert.is_true(d <= tol * scale, ("%g off, %s"):format(d, got))
  assert.is_true(got:isnan():equal(want:isnan()))
end
local function same(a, b) assert.is_true(a:nan_to_num(7):equal(b:nan_to_num(7)), ("%s, %s"):format(a, b)) end

-- f and what it is, made of other ops; x, v.
local function check(f, plain, x, v)
  local tol = x:dtype() == "f64" and 1e-11 or 2e-5
  local value, d = T.jvp(f, x, v)
  local want, slope = T.jvp(plain, x, v)
  same(f(x), value)
  near(value, want, tol)
  near(d, slope, tol)
  near(select(2, T.jvp(T.jit(f), x, v)), d, tol)
  near(T.jit(function(a, b) return select(2, T.jvp(f, a, b)) end)(x, v), d, tol)
  do
    local _ <close> = T.memory_limit "1 GB"
    near(select(2, T.jvp(f, x, v)), d, tol)
  end
  local _, each = T.vmap(function(b) return T.jvp(f, x, b) end)(T.stack({ v, v * 2 }, 1))
  near(each[1], slope, tol)
  near(each[2], slope * 2, tol)
  local _, both = T.vmap(function(a, b) return T.jvp(f, a, b) end)(T.stack({ x, x + 0.25 }, 1), T.stack({ v, v }, 1))
  near(both[1], slope, tol)
  near(both[2], select(2, T.jvp(plain, x + 0.25, v)), tol)
  -- gradients of the value and of the tangent
  local function total(g) return function(p)
    local y, t = T.jvp(g, p[1], p[2])
    return (y * 0.5):sum() + t:square():sum()
  end end
  local got, right = T.grad(total(f), { x, v }), T.grad(total(plain), { x, v })
  for k = 1, 2 do near(got[k], right[k], tol * 10) end
end

local sizes = { { 7, 5 }, { 3, 600 }, { 40, 500 }, { 4 }, { 2, 3, 4 } }

describe("losses of differences and their tangents run in one pass", function()
  local losses = {
    mse_loss = function(d) return d * d end,
    l1_loss = function(d) return d:abs() end,
    smooth_l1_loss = function(d, p)
      local a = d:abs()
      return T.where(a:lt(p), a * a * (0.5 / math.max(p, 1e-9)), a - 0.5 * p)
    end,
    huber_loss = function(d, p)
      local a = d:abs()
      return T.where(a:lt(p), a * a * 0.5, (a - 0.5 * p) * p)
    end,
  }
  for name, formula in pairs(losses) do
    it(name .. ", in every option", function()
      for _, dtype in ipairs { "f32", "f64" } do
        for _, shape in ipairs(sizes) do
          T.manual_seed(#shape + shape[1])
          local x, y = T.randn(shape, { dtype = dtype }), T.randn(shape, { dtype = dtype })
          local v = T.randn(shape, { dtype = dtype })
          for _, reduction in ipairs { "mean", "sum", "none" } do
            for _, p in ipairs(name == "smooth_l1_loss" and { 1, 0.3, 0 } or { 1, name == "huber_loss" and 0.3 }) do
              local o = { reduction = reduction, beta = name == "smooth_l1_loss" and p or nil,
                delta = name == "huber_loss" and p or nil }
              check(function(a) return F[name](a, y, o) end, function(a)
                local l = formula(a - y, p)
                return reduction == "none" and l or reduction == "sum" and l:sum() or l:mean()
              end, x, v)
            end
          end
        end
      end
    end)
  end

  it("also where both have a tangent, shapes or dtypes differ, or the target is a number", function()
    local x, y, v = T.randn(4, 3), T.randn(3), T.randn(4, 3)
    local function f(a, b) return F.mse_loss(a, b) end
    near(select(2, T.jvp(function(a) return T.mse_loss(a, y) end, x, v)), (2 * (x - y) * v):mean(), 1e-5)
    near(select(2, T.jvp(function(a) return f(a, a * 3) end, x, v)), (8 * x * v):mean(), 1e-5)
    near(select(2, T.jvp(function(a) return F.l1_loss(x, a:expand(4, 3)) end, y, v[1])),
      ((y - x):sign() * v[1]):mean(), 1e-5)
    local zeros = T.zeros(4, 3, { dtype = "bf16" })
    local half = select(2, T.jvp(function(a) return f(a, zeros) end, x:bfloat16(), v:bfloat16()))
    near(half:float(), (2 * x * v):mean(), 2e-2)
  end)
end)

describe("extremes and products have tangents in one pass", function()
  local function rows(name, dim)
    return function(a) return dim and a[name](a, dim) or a[name](a) end
  end
  -- The mean of v where x is the extreme, and products, by other ops.
  local function extreme(f, dim, nan)
    return function(a)
      local y = f(a):detach()
      local wide = dim and y:unsqueeze(dim) or y
      local hit = a:detach():eq(wide)
      if nan then hit = hit:logical_or(a:detach():isnan()) end
      local part = T.where(hit, a, T.zeros_like(a))
      return dim and part:sum(dim) / hit:sum(dim) or part:sum() / hit:sum()
    end
  end
  local function product(dim)
    return function(a)
      if not dim then a = a:flatten() end
      local y
      for i = 1, a:size(dim or 1) do
        local e = a:select(dim or 1, i)
        y = y and y * e or e
      end
      return y
    end
  end
  for _, dtype in ipairs { "f32", "f64" } do
    it("in " .. dtype, function()
      for _, shape in ipairs(sizes) do
        T.manual_seed(#shape + shape[1])
        local x, v = T.randn(shape, { dtype = dtype }), T.randn(shape, { dtype = dtype })
        local ties = (x * 2):round()
        for d = 0, #shape do
          local dim = d > 0 and d or nil
          for _, name in ipairs { "amax", "amin" } do
            for _, a in ipairs { x, ties } do check(rows(name, dim), extreme(rows(name, dim), dim), a, v) end
          end
          if (dim and shape[dim] or x:numel()) <= 24 then
            local zeros = x * x:abs():gt(0.4)
            for _, a in ipairs { x, zeros } do check(rows("prod", dim), product(dim), a, v) end
          end
        end
        for _, name in ipairs { "max_all", "min_all" } do
          check(T[name], extreme(T[name], nil, true), ties, v)
        end
      end
    end)
  end

  it("where NaN is the largest", function()
    local x, v = T.tensor { { 1, 0 / 0, 3 }, { 4, 5, 5 } }, T.tensor { { 1, 2, 3 }, { 4, 5, 7 } }
    local t = select(2, T.jvp(function(a) return a:amax(2) end, x, v))
    assert.is_true(t[1]:isnan():item())
    assert.equal(6, t[2]:item())
    assert.equal(2, select(2, T.jvp(T.max_all, x, v)):item())
  end)

  it("as long products, whatever is zero", function()
    local x, v = T.rand(3, 300, { dtype = "f64" }) * 0.4 + 0.8, T.randn(3, 300, { dtype = "f64" })
    x[2][7], x[3][7], x[3][9] = 0, 0, 0
    local t = select(2, T.jvp(function(a) return a:prod(2) end, x, v))
    near(t[1], (x[1]:prod() * (v[1] / x[1]):sum()), 1e-10)
    local others = T.cat({ x[2]:narrow(1, 1, 6), x[2]:narrow(1, 8, 293) }):prod()
    near(t[2], others * v[2][7], 1e-10)
    assert.equal(0, t[3]:item())
  end)

  it("of nothing: products are 1, and constant to every order", function()
    for shape, dim in pairs { [{ 0 }] = 1, [{ 0, 3 }] = 1, [{ 2, 0 }] = 2, [{ 0, 0 }] = 1 } do
      local x = T.zeros(shape, { dtype = "f64" })
      for _, f in ipairs { function(a) return a:prod(dim) end, function(a) return a:prod() end } do
        local function first(a) return (select(2, T.jvp(f, a, x))) end
        same(first(x), f(x) * 0)
        same(select(2, T.jvp(first, x, x)), f(x) * 0)
        assert.same(shape, T.grad(function(a) return first(a):sum() end, x):shape())
      end
    end
  end)

  it("of NaN, what the gradient says of it", function()
    for name, o in pairs { l1_loss = {}, smooth_l1_loss = { beta = 0 }, huber_loss = {}, mse_loss = {} } do
      for _, d in ipairs { "f32", "f64", "bf16" } do
        local x, t = T.tensor({ 0 / 0, 1, 0, -2 }, { dtype = d }), T.zeros({ 4 }, { dtype = d })
        o.reduction = "none"
        local _, each = T.jvp(function(a) return F[name](a, t, o) end, x, T.ones_like(x))
        o.reduction = "sum"
        local _, all = T.jvp(function(a) return F[name](a, t, o) end, x, T.ones_like(x))
        local y = x:clone():requires_grad_()
        local g = T.grad_of(F[name](y, t, o), y)
        local s = g:sum()
        assert.is_true(T.isclose(each, g, { equal_nan = true }):all():item(), name .. " of " .. d)
        assert.is_true(T.isclose(all, s, { equal_nan = true }):item(), "sum, " .. name .. " of " .. d)
      end
    end
  end)

  it("in T.vmap, whatever is the batch's", function()
    T.manual_seed(4)
    local x, v, t = T.randn(3, 4, 6), T.randn(3, 4, 6), T.randn(4, 6)
    local CALLS = {
      amax = function(a) return a:amax(2) end,
      whole = function(a) return a:max() end,
      prod = function(a) return a:prod(2) end,
    }
    for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" } do
      for _, reduction in ipairs { "none", "mean", "sum" } do
        CALLS[name .. " " .. reduction] = function(a) return T.nn.F[name](a, t, { reduction = reduction }) end
      end
    end
    for name, f in pairs(CALLS) do
      local function tangent(a, w) return select(2, T.jvp(f, a, w)) end
      local function each(g)
        local list = {}
        for i = 1, 3 do list[i] = g(i) end
        return T.stack(list)
      end
      local both = T.vmap(tangent)(x, v)
      local points = T.vmap(function(a) return tangent(a, v[1]) end)(x)
      local tangents = T.vmap(function(w) return tangent(x[1], w) end)(v)
      for how, pair in pairs {
        both = { both, each(function(i) return tangent(x[i], v[i]) end) },
        points = { points, each(function(i) return tangent(x[i], v[1]) end) },
        tangents = { tangents, each(function(i) return tangent(x[1], v[i]) end) },
      } do
        assert.same(pair[2]:shape(), pair[1]:shape())
        local off = (pair[1] - pair[2]):abs():max():item()
        assert(off <= 1e-5, ("%s, %s of a batch: %g"):format(name, how, off))
      end
    end
  end)
end)
