-- SPDX-License-Identifier: MIT
-- Products and what is made of them, with zeros among the factors: derivatives up to the fifth order, each along a
-- direction of its own, against what they are for polynomials, the sum over all choices of different factors. The k-th
-- derivative of a product is not 0 where k factors are, so that every formula that divides by a factor meets one.
local T = require "perilune"

local F64, ORDERS, N = { dtype = "f64" }, 5, 6

-- Σ over the groups of c · the k-th derivative of their product at xs along ws[1] … ws[k]
local function expected(xs, ws, k, groups)
  local total, used = 0, {}
  for _, group in ipairs(groups) do
    local function choose(j, factor)
      if j <= k then
        for _, i in ipairs(group) do
          if not used[i] then
            used[i] = true
            choose(j + 1, factor * ws[j][i])
            used[i] = nil
          end
        end
        return
      end
      for _, i in ipairs(group) do
        if not used[i] then factor = factor * xs[i] end
      end
      total = total + factor * group.c
    end
    choose(1, 1)
  end
  return total
end

local function found(f, xs, ws)
  local x, out = T.tensor(xs, F64):requires_grad_(), {}
  local s = f(x)
  for k = 1, ORDERS do
    local g = s.requires_grad and T.grad_of(s, x, { create_graph = true, allow_unused = true })
    s = g and (g * T.tensor(ws[k], F64)):sum() or T.zeros({}, F64)
    out[k] = s:item()
  end
  return out
end

local function longs(list) return T.tensor(list, { dtype = "i64" }) end
local function dot(y, ...) return (y * T.tensor({ ... }, F64)):sum() end
local function scatter(self, at, x, own) return self:scatter_reduce(1, longs(at), x, "prod", own) end

local all, running = { 1, 2, 3, 4, 5, 6, c = 1 }, {}
for i = 1, N do
  running[i] = { c = i }
  for j = 1, i do running[i][j] = j end
end
local halves = { { 1, 2, 3, c = 2 }, { 4, 5, 6, c = 3 } }
local cases = {
  { "prod", function(x) return x:prod() end, { all } },
  { "prod of a dim", function(x) return dot(x:view(2, 3):prod(2), 2, 3) end, halves },
  { "prod of the first dim", function(x) return dot(x:view(2, 3):prod(1), 2, 3, 4) end,
    { { 1, 4, c = 2 }, { 2, 5, c = 3 }, { 3, 6, c = 4 } } },
  { "prod of dims", function(x) return dot(x:view(2, 3, 1):transpose(1, 2):prod { 1, 3 }, 2, 3) end, halves },
  { "cumprod", function(x) return dot(x:cumprod(1), 1, 2, 3, 4, 5, 6) end, running },
  { "scatter_reduce", function(x) return dot(scatter(T.full({ 3 }, 2, F64), { 1, 2, 1, 1, 2, 1 }, x), 1, 2, 3) end,
    { { 1, 3, 4, 6, c = 2 }, { 2, 5, c = 4 } } },
  { "scatter_reduce without x", function(x)
    return scatter(T.full({ 1 }, 2, F64), { 1, 1, 1, 1, 1, 1 }, x, false):sum()
  end, { all } },
  { "scatter_reduce of both", function(x)
    return dot(scatter(x:narrow(1, 1, 2), { 1, 1, 2, 1 }, x:narrow(1, 3, 4)), 1, 2)
  end, { { 1, 3, 4, 6, c = 1 }, { 2, 5, c = 2 } } },
  { "scatter_reduce along the first of two dims", function(x)
    local at = longs { 1, 2, 1, 1, 1, 2 }:view(3, 2)
    return dot(T.full({ 2, 2 }, 2, F64):scatter_reduce(1, at, x:view(3, 2), "prod"):flatten(), 1, 2, 3, 4)
  end, { { 1, 3, 5, c = 2 }, { 4, c = 4 }, { 2, 6, c = 8 } } },
  { "scatter_reduce in a batch", function(x)
    local f = T.vmap(function(row) return scatter(T.full({ 1 }, 2, F64), { 1, 1, 1 }, row) end)
    return dot(f(x:view(2, 3)):flatten(), 1, 1.5)
  end, halves },
}

describe("derivatives of products with zeros among the factors", function()
  for _, case in ipairs(cases) do
    it("are those of the polynomial: " .. case[1], function()
      for zeros = 0, N do
        local xs, ws = {}, {}
        for i = 1, N do xs[i] = (i * 5 + zeros) % N < zeros and 0 or (i % 4 + 1) * (i % 3 == 0 and -0.5 or 0.75) end
        for k = 1, ORDERS do
          ws[k] = {}
          for i = 1, N do ws[k][i] = ((i * 7 + k * 3) % 5 + 1) * ((i + k) % 3 == 0 and -0.5 or 0.25) end
        end
        local is = found(case[2], xs, ws)
        for k = 1, ORDERS do
          local want = expected(xs, ws, k, case[3])
          assert.is_true(math.abs(is[k] - want) <= 1e-9 * (1 + math.abs(want)),
            string.format("%s, %d zeros, derivative %d: %.17g, not %.17g", case[1], zeros, k, is[k], want))
        end
      end
    end)
  end

  it("leave places with infinities to themselves", function()
    local x = T.tensor({ 0, 0, 0, math.huge, 0, 2 }, F64):requires_grad_()
    local y = scatter(T.ones({ 2 }, F64), { 1, 1, 1, 2, 2, 2 }, x)
    local g = T.grad_of(y[1], x, { create_graph = true })
    for _ = 1, 2 do g = T.grad_of(g:sum(), x, { create_graph = true }) end
    assert.same({ 2, 2, 2 }, g:detach():narrow(1, 1, 3):totable())
  end)
end)
