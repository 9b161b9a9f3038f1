-- SPDX-License-Identifier: MIT
-- Loops that only calls of some size take, against what defines them: sums around a kept dim, losses added up in one
-- pass, topk of floats, casts and signs of halves, maxima of columns, rows added to a table.

local T = require "perilune"
local near = require "spec.support.near"
local F = T.nn.F

local NAN = 0 / 0

local function close(got, want, bound, what)
  assert.same(want:shape(), got:shape(), what)
  local d = (got:double() - want:double()):abs():max():item()
  assert.is_true(d <= bound * math.max(1, want:double():abs():max():item()), ("%s: off by %g"):format(what, d))
end

local function with_threads(f)
  local before, one = T.get_num_threads(), nil
  for threads = 1, 3 do
    T.set_num_threads(threads)
    local y = f()
    if one then near.same_bits(y, one) end
    one = one or y
  end
  T.set_num_threads(before)
  return one
end

describe("sums around a kept dim", function()
  for dtype, bound in pairs { f32 = 1e-6, f64 = 1e-14, f16 = 2e-3, bf16 = 1e-2 } do
    it("of " .. dtype, function()
      for _, shape in ipairs { { 3, 5, 16 }, { 2, 7, 33 }, { 130, 3, 17 }, { 2, 1, 3, 40 }, { 4, 6, 5, 8 },
        { 70, 64, 90 } } do
        local x = T.rand(table.unpack(shape)):to(dtype)
        local dims = #shape == 4 and { 1, 3, 4 } or { 1, 3 }
        local moved = x:double():transpose(1, 2):contiguous():reshape(shape[2], -1)
        close(with_threads(function() return x:sum { dim = dims } end), moved:sum(2), bound, "sum")
        close(x:mean { dim = dims }, moved:mean(2), bound, "mean")
        close(x:norm { dim = dims }, moved:square():sum(2):sqrt(), bound, "norm")
        local line = { 1, shape[2] }
        for d = 3, #shape do line[d] = 1 end
        close(x:sum { dim = dims, keepdim = true }, moved:sum(2):view(line), bound, "kept dims")
      end
      local x = T.ones(2, 3, 20):to(dtype)
      x[2][2][7] = NAN
      local y = x:sum { dim = { 1, 3 } }:tolist()
      assert.is_true(y[1] == 40 and y[3] == 40 and y[2] ~= y[2])
    end)
  end
end)

describe("losses added up in one pass", function()
  local formulas = {
    mse_loss = function(d) return d * d end,
    l1_loss = function(d) return d:abs() end,
    smooth_l1_loss = function(d) return T.where(d:abs():lt(1), d * d * 0.5, d:abs() - 0.5) end,
    huber_loss = function(d) return T.where(d:abs():lt(1), d * d * 0.5, d:abs() - 0.5) end,
  }
  for name, formula in pairs(formulas) do
    it(name, function()
      for _, n in ipairs { 1, 2, 31, 32, 33, 65, 8191, 8192, 8193, 20001 } do
        local x, t = T.randn(n) * 2, T.randn(n)
        local want = formula(x:double() - t:double())
        close(with_threads(function() return F[name](x, t, { reduction = "sum" }) end), want:sum(), 1e-6, name)
        close(F[name](x, t), want:mean(), 1e-6, name)
        close(F[name](x, t, { reduction = "none" }), want, 1e-6, name)
        x[n] = NAN
        local y = F[name](x, t):item()
        assert.is_true(y ~= y)
      end
    end)
  end
end)

describe("topk", function()
  it("is the beginning of a sorted row, NaN, zeros and equals included", function()
    for _, dtype in ipairs { "f32", "bf16", "f64", "i64" } do
      for _, n in ipairs { 49, 64, 100, 1000, 4097 } do
        for _, k in ipairs { 1, 5, n // 9 } do
          local x = (T.randn(4, n) * 20):floor() / 4
          if dtype ~= "i64" then
            x["1, 7"], x["1, 8"], x["2, 3"], x["2, 9"] = NAN, NAN, math.huge, -math.huge
            x["3, :"] = 0.0
            x["3, 40"] = -0.0
            x["4, :"] = NAN
            x["4, 30"] = 1.0
          end
          x = x:to(dtype)
          for _, largest in ipairs { true, false } do
            local y, at = x:topk(k, { largest = largest })
            local all, order = x:sort { descending = largest }
            assert.is_true(at:equal(order:narrow(2, 1, k)), ("%s n %d k %d"):format(dtype, n, k))
            near.same_bits(y, all:narrow(2, 1, k):contiguous())
          end
        end
      end
    end
  end)
end)

describe("casts of halves", function()
  it("are those of strided halves, which go through tiles", function()
    for _, half in ipairs { "f16", "bf16" } do
      for _, n in ipairs { 1, 7, 15, 16, 17, 33, 64, 513, 40001 } do
        local x = T.randn(n) * 10 ^ (n % 9 - 4)
        x[1] = ({ NAN, math.huge, -math.huge, 1e-7, 65520.0, -0.0, 6e-8, 1e38, 3.0 })[n % 9 + 1]
        local low = with_threads(function() return x:to(half) end)
        near.same_bits(low, T.stack({ x, x }, 2):select(2, 1):to(half):contiguous())
        local wide = with_threads(function() return low:to("f32") end)
        near.same_bits(wide, T.stack({ low, low }, 2):select(2, 2):to("f32"):contiguous())
      end
    end
  end)
end)

describe("maxima of columns", function()
  it("pass NaN on, from whichever row", function()
    for rows = 1, 10 do
      for _, cols in ipairs { 2, 15, 16, 33 } do
        local x = T.randn(rows, cols)
        local list = x:tolist()
        for c = 1, cols do -- one column in three has a NaN
          if c % 3 == 0 then
            list[c % rows + 1][c] = NAN
            x[("%d, %d"):format(c % rows + 1, c)] = NAN
          end
        end
        local top, low = x:amax { dim = 1 }:tolist(), x:amin { dim = 1 }:tolist()
        for c = 1, cols do
          local most, least = -math.huge, math.huge
          for r = 1, rows do most, least = math.max(most, list[r][c]), math.min(least, list[r][c]) end
          if c % 3 == 0 then
            assert.is_true(top[c] ~= top[c] and low[c] ~= low[c])
          else
            assert.equal(most, top[c])
            assert.equal(least, low[c])
          end
        end
      end
    end
  end)
end)

describe("rows added to a table", function()
  it("come in order of the list, on any number of threads", function()
    for _, cols in ipairs { 1, 7, 8, 16, 33, 130 } do
      local x, i, y = T.randn(20, cols), T.randint(1, 20, { 3000 }), T.randn(3000, cols)
      local got = with_threads(function() return x:index_add(i, y, { dim = 1, alpha = 0.5 }) end)
      local hot = T.one_hot(i, { num_classes = 20 }):double()
      close(got, x:double() + hot:t():matmul(y:double()) * 0.5, 1e-5, "index_add")
    end
  end)
end)

describe("sums with alpha", function()
  it("are one pass over floats, in place too, and have their gradients", function()
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
      local bound = ({ f32 = 1e-6, f64 = 1e-14, f16 = 2e-3, bf16 = 1e-2 })[dtype]
      local x, y = T.randn(5, 70):to(dtype):requires_grad_(), T.randn(70):to(dtype):requires_grad_()
      for name, sign in pairs { add = 1, sub = -1 } do
        for _, alpha in ipairs { 0.3, -2, 3 } do
          local want = x:detach():double() + y:detach():double() * (sign * alpha)
          close(x[name](x, y, alpha):detach(), want, bound, name)
          close(x[name](x, y, { alpha = alpha }):detach(), want, bound, name)
          close(x:detach():clone()[name .. "_"](x:detach():clone(), y:detach(), alpha), want, bound, name .. "_")
          local out = T.zeros({ 5, 70 }, { dtype = dtype })
          T[name](x:detach(), y:detach(), { alpha = alpha, out = out })
          close(out, want, bound, name .. " out")
          local gx, gy = table.unpack(T.grad_of({ x[name](x, y, alpha):sum() }, { x, y }))
          assert.is_true(gx:eq(1):all():item())
          close(gy, T.full({ 70 }, 5.0 * sign * alpha, { dtype = dtype }), bound, "gradient")
        end
      end
      assert.has_error(function() x:add(T.randn(3):to(dtype), 2) end)
    end
    local n = T.tensor({ 1, 2 }, { dtype = "i64" })
    assert.same({ 4, 8 }, n:add(n, 3):tolist())
    assert.has_error(function() n:add(n, 0.5) end)
  end)
end)

describe("small matrices", function()
  local function det(a) -- along the first row
    if #a == 1 then return a[1][1] end
    local sum = 0
    for j = 1, #a do
      local minor = {}
      for i = 2, #a do
        minor[i - 1] = {}
        for k = 1, #a do if k ~= j then table.insert(minor[i - 1], a[i][k]) end end
      end
      sum = sum + (j % 2 == 1 and 1 or -1) * a[1][j] * det(minor)
    end
    return sum
  end

  it("are inverted, solved, factored", function()
    for n = 1, 10 do
      for dtype, bound in pairs { f64 = 1e-11, f32 = 1e-4 } do
        local a = T.randn({ 20, n, n }, { dtype = dtype }) + T.eye(n):to(dtype) * 3
        a[1] = a[1]:flip(1) -- the largest are off the diagonal
        local one = T.eye(n):to("f64"):expand(20, n, n)
        local inverse = with_threads(function() return T.linalg.inv(a) end)
        local size = inverse:double():abs():max():item()
        close(a:double():matmul(inverse:double()) / size, one / size, bound, "inverse")
        local b = T.randn({ 20, n, 3 }, { dtype = dtype })
        close(a:double():matmul(T.linalg.solve(a, b):double()) / size, b:double() / size, bound, "solution")
        local c = T.randn({ 20, 3, n }, { dtype = dtype })
        local x = T.linalg.solve(a, c, { left = false })
        close(x:double():matmul(a:double()) / size, c:double() / size, bound, "solution from the right")
        local s = a:matmul(a:transpose(2, 3)) + T.eye(n):to(dtype)
        local l = T.linalg.cholesky(s)
        close(l:double():matmul(l:double():transpose(2, 3)), s:double(), bound, "cholesky")
        near.same_bits(l:tril(), l)
        close(T.linalg.cholesky(s, { upper = true }), l:transpose(2, 3), bound, "upper factor")
        if n <= 6 then
          local d = T.linalg.det(a):tolist()
          for i, m in ipairs(a:double():tolist()) do
            assert.is_true(math.abs(det(m) - d[i]) < bound * 10 ^ n, "determinant")
          end
        end
      end
    end
  end)

  it("that are singular, not definite or not finite are refused or passed on", function()
    local a = T.tensor({ { 1, 2 }, { 2, 4 } }, { dtype = "f64" })
    local fine, message = pcall(T.linalg.inv, a)
    assert.is_false(fine)
    assert.truthy(tostring(message):find("pivot 2 is zero", 1, true))
    assert.equal(0, T.linalg.det(a):item())
    local ok, why = pcall(T.linalg.cholesky, T.tensor({ { 1, 2 }, { 2, 1 } }, { dtype = "f64" }))
    assert.is_false(ok)
    assert.truthy(tostring(why):find("leading minor of order 2", 1, true))
    local tiny = T.eye(3):to("f64") * 1e-310
    assert.is_true(T.linalg.det(T.linalg.inv(T.eye(3):to("f64") * 1e-300)):item() > 1e300)
    assert.is_false(pcall(T.linalg.inv, T.zeros({ 3, 3 })))
    assert.equal("number", type(T.linalg.det(tiny):item()))
    local nan = T.full({ 2, 2 }, NAN)
    local y = T.linalg.inv(nan):tolist()
    assert.is_true(y[1][1] ~= y[1][1])
  end)
end)

describe("counts and membership", function()
  it("of many values in few bins, and of tests of any number", function()
    for _, n in ipairs { 0, 1, 15, 16, 67, 1000, 5003 } do
      for _, bins in ipairs { 1, 3, 60 } do
        local x = T.randint(1, bins, { n }):to("i64")
        local want = {}
        for b = 1, bins do want[b] = 0 end
        for _, v in ipairs(x:tolist()) do want[v] = want[v] + 1 end
        assert.same(want, T.bincount(x, { minlength = bins }):tolist())
      end
    end
    for tests = 0, 20 do
      local x, t = T.randint(0, 30, { 200 }), T.randint(0, 30, { tests })
      for _, dtype in ipairs { "i64", "f32", "u8" } do
        local has = {}
        for _, v in ipairs(t:tolist()) do has[v] = true end
        local got = T.isin(x:to(dtype), t:to(dtype)):tolist()
        for i, v in ipairs(x:tolist()) do assert.equal(has[v] or false, got[i]) end
      end
    end
    local x = T.tensor { NAN, 1, -0.0 }
    assert.same({ false, false, true }, T.isin(x, T.tensor { NAN, 0, 2 }):tolist())
  end)
end)

describe("neg and abs of halves", function()
  it("are those of the numbers, signs of zeros and all that is no number included", function()
    local function words(x) -- -0 is not 0; NaN is NaN
      local list = x:tolist()
      for i, v in ipairs(list) do list[i] = v ~= v and "nan" or ("%a"):format(v) end
      return list
    end
    for dtype, least in pairs { f16 = -24, bf16 = -133 } do
      local list = { 0.0, -0.0, 1 / 0, -1 / 0, NAN, -NAN }
      for e = least, 15 do
        for _, m in ipairs { 1.0, 1.5, 1.9921875 } do
          list[#list + 1], list[#list + 2] = m * 2.0 ^ e, -m * 2.0 ^ e
        end
      end
      local x = T.tensor(list, { dtype = "f64" }):to(dtype)
      for _, f in ipairs { "neg", "abs" } do
        assert.same(words(x[f](x:float())), words(x[f](x)), f .. " " .. dtype)
      end
    end
  end)
end)
