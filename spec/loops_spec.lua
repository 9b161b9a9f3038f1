-- SPDX-License-Identifier: MIT
-- Loops that only calls of some size take, against what defines them: sums around a kept dim, losses added up in one
-- pass, topk of floats, casts of halves, maxima of columns, rows added to a table.

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
