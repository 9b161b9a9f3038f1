-- SPDX-License-Identifier: MIT
-- Order statistics and histograms of values with infinities and NaN, by generated lists, counted by hand in Lua.

local T = require "perilune"
local near = require "spec.support.near"
local random = require "spec.support.random"

local inf, nan = math.huge, 0 / 0
local function same(a, b) return a == b or a ~= a and b ~= b end

-- As IEEE rounds: halves to even.
local function round(v)
  local low = math.floor(v)
  if v - low == 0.5 then return low % 2 == 0 and low or low + 1 end
  return math.floor(v + 0.5)
end

local function wanted(list, q, mode, skip)
  local numbers = {}
  for _, v in ipairs(list) do
    if v == v then numbers[#numbers + 1] = v end
  end
  if #numbers == 0 or #numbers < #list and not skip then return nan end
  table.sort(numbers)
  local at = q * (#numbers - 1)
  local low, high = numbers[math.floor(at) + 1], numbers[math.ceil(at) + 1]
  if mode == "lower" then return low elseif mode == "higher" then return high end
  if mode == "nearest" then return numbers[round(at) + 1] end
  local share = at - math.floor(at)
  if mode == "midpoint" then share = share > 0 and 0.5 or 0 end
  return share < 0.5 and low + share * (high - low) or high - (high - low) * (1 - share)
end

it("quantiles of infinite values are elements where no mean is taken", function()
  local rng = random.new(7)
  local values = { inf, -inf, nan, 0, 1, -2, 3.5, 4, 5 }
  for case = 1, 400 do
    local list = {}
    for i = 1, rng:int(1, 6) do list[i] = values[rng:int(1, #values)] end
    local q = rng:int(0, 8) / 8
    for _, mode in ipairs { "linear", "lower", "higher", "midpoint", "nearest" } do
      for _, name in ipairs { "quantile", "nanquantile" } do
        local got = T[name](T.tensor(list, { dtype = "f64" }), q, { interpolation = mode }):item()
        local want = wanted(list, q, mode, name == "nanquantile")
        assert.is_true(same(got, want) or math.abs(got - want) < 1e-12,
          ("case %d: %s of {%s} at %g, %s: %g, not %g"):format(case, name, table.concat(list, " "), q, mode, got, want))
      end
    end
  end
end)

it("a histogram between equal ends is one between the extremes, or around the end that range names", function()
  local x = T.tensor { 1, 2, 2, 5 }
  for _, at in ipairs { 0, 1, -3 } do
    assert.same({ 1, 2, 0, 1 }, T.histc(x, { bins = 4, min = at, max = at }):totable())
  end
  assert.same({ 1, 2, 0, 1 }, (T.histogram(x, 4)):totable())
  local counts, edges = T.histogram(x, 2, { range = { 2, 2 } })
  assert.same({ { 0, 2 }, { 1.5, 2, 2.5 } }, { counts:totable(), edges:totable() })
  assert.same({ 0, 0 }, (T.histogram(x, 2, { range = { 0, 0 } })):totable())
end)

-- Values on the borders of bins, as people write them: 0.7 is in the bin that begins at 0.7. histc finds places with
-- the roundings of x's dtype, histogram by the edges that it returns, whatever those were rounded to.
it("histograms put what lies on a border into the bin that begins there", function()
  local function rounded(dtype, v) return dtype == "f32" and string.unpack("<f", string.pack("<f", v)) or v end
  for _, dtype in ipairs { "f32", "f64" } do
    for _, row in ipairs { { 0, 1, 10 }, { -1, 1, 20 }, { 0, 100, 30 }, { 0.1, 0.9, 8 }, { 1, 1.7, 7 },
      { -0.3, 0.3, 6 }, { 0, 0.7, 49 } } do
      local low, high, bins = table.unpack(row)
      local list, hand = {}, {}
      for i = 0, bins do
        list[#list + 1] = low + i * ((high - low) / bins)
        list[#list + 1] = tonumber(("%.6f"):format(list[#list]))
      end
      local x = T.tensor(list, { dtype = dtype })
      local from, to = rounded(dtype, low), rounded(dtype, high)
      for b = 1, bins do hand[b] = 0 end
      for _, v in ipairs(x:totable()) do
        if v >= from and v <= to then
          local at = rounded(dtype, rounded(dtype, rounded(dtype, v - from) * bins) / rounded(dtype, to - from)) // 1
          hand[1 + math.min(at, bins - 1)] = hand[1 + math.min(at, bins - 1)] + 1
        end
      end
      local text = ("%s from %g to %g"):format(dtype, low, high)
      assert.same(hand, T.histc(x, bins, low, high):totable(), text)
      local counts, edges = T.histogram(x, bins, { range = { low, high } })
      assert.same((T.histogram(x, edges)):totable(), counts:totable(), text)
      assert.is_true(x:ge(edges[3]):logical_and(x:lt(edges[4])):sum():eq(counts[3]):item(), text)
    end
  end
end)

it("the results of nothing have the places of results", function()
  local x = T.zeros(2, 0)
  local y, inverse, counts = x:unique_consecutive { return_inverse = true, return_counts = true }
  assert.same({ { 0 }, { 2, 0 }, { 0 } }, { y:shape(), inverse:shape(), counts:shape() })
  y, counts = x:unique_consecutive { return_counts = true }
  assert.same({ { 0 }, { 0 } }, { y:shape(), counts:shape() })
  near.fails("topk: k = 0 of f32[]", function() return T.tensor(3.0):topk(0) end)
  assert.equal(3, (T.tensor(3.0):topk(1)):item())
end)

-- Among edges about equally far apart a place is computed, then corrected: as many are below as a plain count has.
it("bucketize and searchsorted count the edges below, whether they are evenly spaced or not", function()
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
    for _, n in ipairs { 1, 3, 8, 9, 65 } do
      for _, at in ipairs { T.linspace(-3, 3, n), (T.randn(n):sort()), (T.randn(n):mul(2):round():sort()),
        T.linspace(0, 1e-3, n) } do
        local edges = at:to(dtype)
        local x = T.cat { T.randn({ 20 }, { dtype = "f64" }), edges:double(), edges:double() * (1 + 0x1p-20),
          T.tensor({ 0 / 0, math.huge, -math.huge, -0.0 }, { dtype = "f64" }) }:to(dtype)
        local column = x:unsqueeze(2)
        for _, right in ipairs { false, true } do
          local below = (right and column:ge(edges) or column:gt(edges)):sum { dim = 2 }:masked_fill(T.isnan(x), n)
          local options = { right = right, index_base = 0 }
          assert.is_true(T.bucketize(x, edges, options):equal(below), dtype .. n)
          assert.is_true(T.searchsorted(edges, x, options):equal(below), dtype .. n)
        end
      end
    end
  end
end)

it("histograms with a range are traced, and count halves in f32", function()
  local x, w = T.rand(3000) * 3 - 1, T.rand(3000)
  local function histc(u) return u:histc(4, -0.5, 1) end
  local function weighted(u, v) return (T.histogram(u, 5, { range = { -0.5, 1 }, weight = v, density = true })) end
  local function plain(u) return (T.histogram(u, 7, { range = { -2, 1 } })) end
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do
    local u = x:to(dtype)
    assert.equal(dtype == "f64" and "f64" or "f32", histc(u):dtype())
    assert.is_true(T.jit(histc)(u):equal(histc(u)))
    assert.is_true(T.jit(plain)(u):equal(plain(u)))
    assert.is_true(T.vmap(histc)(u:view(3, -1))[2]:equal(histc(u:view(3, -1)[2])))
    assert.is_true((T.jit(weighted)(u, w) - weighted(u, w)):abs():max():item() < 1e-5)
    assert.same({ 0, 70000 }, T.ones({ 70000 }, { dtype = dtype }):histc(2, 0, 2):totable())
  end
end)

it("kthvalue and median of long rows are those of the sorted row, ties, signs of zero and NaN included", function()
  for _, dtype in ipairs { "f32", "f64", "bf16", "f16", "i64", "i16", "u8" } do
    for _, n in ipairs { 699, 1024, 9001 } do
      for _, kind in ipairs { "any", "ties", "one", "odd", "near", "zeros" } do
        local x = T.randn(n) * 30
        if kind == "ties" then x = x:floor():div(9):trunc() end
        if kind == "one" then x = T.full({ n }, 7) end
        if kind == "zeros" then x = x:sub(30):relu() end
        if kind == "near" then -- neighbours, which differ in their last bits alone
          local step = ({ f64 = 2.0 ^ -52, f32 = 2.0 ^ -23, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 })[dtype] or 1
          x = T.arange(1, n):remainder(3):double() * step + (dtype == "i64" and 2.0 ^ 40 or 1)
        end
        if kind == "odd" and not dtype:find "[iu]" then
          for k, v in ipairs { 0 / 0, 1 / 0, -1 / 0, -0.0, 0, 1 / 0, 0 / 0 } do x[k * 97] = v end
        end
        if kind == "any" and dtype == "i64" then x = x * 2.0 ^ 50 end
        x = (dtype == "u8" and x:abs() or x):to(dtype)
        local sorted, places = x:sort()
        for _, k in ipairs { 1, 2, n // 3, n // 2, n - 1, n } do
          local value, place = x:kthvalue(k)
          assert.equal(places:get(k), place:item(), dtype .. kind .. k)
          assert.is_true(value:equal(sorted[k]) or value:isnan():item(), dtype .. kind .. k)
        end
        local bad = x:isnan():any():item()
        local _, middle = x:median(1)
        assert.equal(bad and 97 or places:get((n + 1) // 2), middle:item(), dtype .. kind)
      end
    end
  end
end)

it("quantile of a number is that of a vector of one, in all precisions", function()
  for _, dtype in ipairs { "f32", "f64", "bf16", "f16" } do
    for _, n in ipairs { 300, 4095, 4096, 10001 } do
      local x = T.randn(2, n):to(dtype)
      local wide = dtype == "f64" and x or x:float()
      for _, q in ipairs { 0, 1, 0.5, 1 / 3, 0.9999 } do
        for _, way in ipairs { "linear", "lower", "higher", "midpoint", "nearest" } do
          local function both(y, p)
            y = y:clone():requires_grad_()
            local r = y:quantile(p, { dim = 2, interpolation = way })
            r:sum():backward()
            return r:detach():reshape(-1), y.grad
          end
          local one, done = both(x, q)
          local many, dmany = both(wide, T.tensor({ q }, { dtype = wide:dtype() }))
          assert.is_true(one:equal(many:to(dtype)) and done:equal(dmany:to(dtype)), dtype .. n .. way .. q)
        end
      end
      x[1][n // 2] = 0 / 0
      assert.same({ true, false }, x:quantile(0.4, { dim = 2 }):isnan():tolist())
    end
  end
end)

-- As PyTorch has it: the product of q, as x's dtype holds it, and n - 1 is not rounded to f32, which makes whole ranks
-- of all from 2^23 on.
it("quantiles are at ranks that are not rounded to f32", function()
  for _, case in ipairs { { 10001, 0.1, 1000, 1001, 1000 }, { 4096, 1 / 3, 1365, 1366, 1365 },
    { 10001, 0.9999, 9998, 9999, 9999 }, { 3001, 0.7, 2099, 2100, 2100 } } do
    local n, q, lower, higher, nearest = table.unpack(case)
    local x = T.arange(0, n - 1):float()
    local holed = T.cat { x, T.tensor { 0 / 0 } }
    for way, want in pairs { lower = lower, higher = higher, nearest = nearest } do
      local o = { interpolation = way }
      assert.equal(want, x:quantile(q, o):item())
      assert.equal(want, x:quantile(T.tensor(q), o):item())
      assert.equal(want, holed:nanquantile(q, o):item())
    end
  end
  local at = string.unpack("f", string.pack("f", 0.3)) * 3e6 - 900000
  local x = T.arange(0, 3000000):sub(900000):float()
  for _, p in ipairs { 0.3, T.tensor { 0.3 } } do assert.near(at, x:quantile(p):item(), 1e-7) end
end)

it("unique of integers is that of the same numbers in f64, whether they lie close together or not", function()
  local o = { return_inverse = true, return_counts = true }
  for _, dtype in ipairs { "i64", "i32", "i16", "i8", "u8", "bool" } do
    for _, n in ipairs { 0, 1, 3, 300, 5000 } do
      for _, span in ipairs { 1, 2, 90, 30000, 1 << 40 } do
        if span <= (({ i64 = 1 << 40, i32 = 30000, i16 = 30000, bool = 2 })[dtype] or 90) then
          local low, high = dtype:find "[ub]" and 0 or -(span // 2), dtype == "bool" and 1 or span // 2
          local x = T.randint(low, high, { n }):to(dtype)
          local got, want = { x:unique(o) }, { x:double():unique(o) }
          assert.equal(dtype, got[1]:dtype())
          got[1] = got[1]:double()
          for k = 1, 3 do assert.is_true(got[k]:equal(want[k]), ("%s %d %d %d"):format(dtype, n, span, k)) end
        end
      end
    end
  end
  local ends = T.tensor({ math.mininteger, math.maxinteger, 0, math.mininteger }, { dtype = "i64" })
  assert.same({ math.mininteger, 0, math.maxinteger }, ends:unique():tolist())
end)

it("weights that count are observations that come so often, whatever is taken off their number", function()
  T.manual_seed(4)
  for n = 1, 5 do
    for correction = 0, 7 do
      local x, times = T.randn({ 2, n }, { dtype = "f64" }), T.randint(1, 3, { n })
      local want = x:repeat_interleave(times, 2):cov { correction = correction }
      for name, got in pairs { fweights = x:cov { correction = correction, fweights = times },
        both = x:cov { correction = correction, fweights = times, aweights = T.ones(n, { dtype = "f64" }) } } do
        local text = ("%s, %d observations - %d: %s, not %s"):format(name, n, correction, got, want)
        assert.is_true(got:allclose(want, { equal_nan = true }), text)
      end
    end
  end
end)

it("a range whose width no f32 holds has bins like any other", function()
  local x = T.tensor { -3e38, -1e38, 0, 2e38, 3e38 }
  assert.same({ 1, 1, 1, 2 }, (T.histogram(x, 4)):totable())
  assert.same({ 1, 1, 1, 2 }, x:histc(4):totable())
  assert.same({ 0, 5, 0 }, x:histc(3, -1e300, 1e300):totable())
  local wide = T.tensor({ -1e308, 0, 1e308 }, { dtype = "f64" })
  assert.same({ 0, 1, 0, 0, 0, 1, 0, 0, 1, 0 }, wide:histc(10, -1.5e308, 1.5e308):totable())
end)
