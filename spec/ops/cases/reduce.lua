-- SPDX-License-Identifier: MIT
-- Reductions, scans, orders. Rows of spec/ops/cases.lua; their fields: spec/ops/rows.lua.

local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local reduction, scan, golden, rand, distinct, ints, bools =
  rows.reduction, rows.scan, rows.golden, rows.rand,
  rows.distinct, rows.ints, rows.bools
local exp, log, sqrt = math.exp, math.log, math.sqrt

local T = require "perilune"
local R = {}

-- ---- reductions and scans -----------------------------------------------------------------------

local sum = oracle.sum_list
local function product(l)
  local p = 1.0
  for _, v in ipairs(l) do p = p * v end
  return p
end
local function variance(l)
  local m, s = sum(l) / #l, 0.0
  for _, v in ipairs(l) do s = s + (v - m) ^ 2 end
  return s / (#l - 1)
end
local function best(better)
  return function(l)
    local k = 1
    for i, v in ipairs(l) do
      if better(v, l[k]) then k = i end
    end
    return l[k], k
  end
end
local function greater(a, b) return a > b end
local function less(a, b) return a < b end
local largest, smallest = best(greater), best(less)
local function second(f)
  return function(l) return (select(2, f(l))) end
end
local function true_count(l)
  local n = 0
  for _, v in ipairs(l) do n = n + (v ~= 0 and 1 or 0) end
  return n
end

-- Ops that choose one of several equal values have no difference quotient where stride 0 makes ties.
local chooses = { ties = true }
R.sum = reduction(sum)
R.mean = reduction(function(l) return sum(l) / #l end)
R.prod = reduction(product, nil, {
  more = {
    function(g) return rand(g, { 3, 4 }, 0.5, 2), { dim = 1 } end,
    function(g) return rand(g, { 2, 3, 2 }, 0.5, 2), { dim = { 1, 3 } } end,
    function(g) return rand(g, { 2, 2, 3, 2 }, 0.5, 2), { dim = { -1, 2 }, keepdim = true } end,
    function(g) -- one zero, two zeros in a product
      return rand(g, { 2, 3, 2 }, 0.5, 2) * T.tensor({ { 1, 0, 1 }, { 0, 1, 0 } }, { dtype = "f64" }):unsqueeze(3),
        { dim = { 1, 3 } }
    end,
  },
})
R.amax, R.amin = reduction(largest, distinct, chooses), reduction(smallest, distinct, chooses)
R.max_all = { ties = true, args = function(g) return distinct(g, { 3, 4 }) end, ref = oracle.reduce(largest) }
R.min_all = { ties = true, args = R.max_all.args, ref = oracle.reduce(smallest) }
local function along(f)
  local red = oracle.reduce(f)
  return { ties = true, args = function(g) return distinct(g, { 3, 4 }), { dim = 2 } end,
    more = { function(g) return distinct(g, { 3, 4 }), { dim = 1, keepdim = true } end },
    ref = function(x, o) return red(x, o.dim, o.keepdim) end }
end
R.max_dim, R.min_dim = along(largest), along(smallest)
R.argmax = reduction(second(largest), distinct, { golden = true })
R.argmin = reduction(second(smallest), distinct, { golden = true })
R.var = reduction(variance)
R.std = reduction(function(l) return sqrt(variance(l)) end)
R.logsumexp = reduction(function(l)
  local s = 0.0
  for _, v in ipairs(l) do s = s + exp(v) end
  return log(s)
end, nil, {
  args = function(g) return rand(g, { 3, 4 }), { dim = 2 } end,
})
R.norm = reduction(function(l)
  local s = 0.0
  for _, v in ipairs(l) do s = s + v * v end
  return sqrt(s)
end)
R.any = reduction(function(l) return true_count(l) > 0 and 1 or 0 end, bools)
R.all = reduction(function(l) return true_count(l) == #l and 1 or 0 end, bools)
R.count_nonzero = reduction(true_count, bools, { golden = true })
R.nansum = reduction(sum)
R.median = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.kthvalue = golden(function(g) return distinct(g, { 3, 5 }), { k = 2, dim = 2 } end)
R.sort = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.argsort = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.topk = golden(function(g) return distinct(g, { 3, 5 }), { k = 2, dim = 2 } end)
R.mode = golden(function(g) return ints(g, { 3, 5 }, 1, 3):to("f64"), { dim = 2 } end,
  { skip_grad = "a count of equal values has no difference quotient; golden gradients judge it" })
R.cumsum = scan(function(l)
  local s, out = 0.0, {}
  for i, v in ipairs(l) do
    s = s + v
    out[i] = s
  end
  return out
end)
R.cumprod = scan(function(l)
  local s, out = 1.0, {}
  for i, v in ipairs(l) do
    s = s * v
    out[i] = s
  end
  return out
end)
R.logcumsumexp = scan(function(l)
  local s, out = 0.0, {}
  for i, v in ipairs(l) do
    s = s + exp(v)
    out[i] = log(s)
  end
  return out
end)
R.cummax = golden(function(g) return distinct(g, { 3, 4 }), { dim = 2 } end)
R.cummin = golden(function(g) return distinct(g, { 3, 4 }), { dim = 2 } end)

return R
