-- SPDX-License-Identifier: MIT
-- f32 functions that have vector code agree with f64, which is libm's: special values in all pairs, random ones, tails
-- behind whole vectors, operands that are one number. f64 functions agree with the C library as Lua calls it.

local T = require "perilune"

local SPECIAL = { 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 5.5, -7.25, 1e-40, -1e-40, 1e30, -1e30, 3e38, math.huge,
  -math.huge, 0 / 0, 1e-10, 0.1, 123456.7, 16777216, 0.3, 1e-3 }

-- The same number, zeros with their signs; others to one place of f32, on a device to what CUDA says of its functions.
local tolerance = require "spec.support.device".mode and 5e-7 or 1.2e-7
local function alike(p, q)
  if p ~= p or q ~= q then return p ~= p and q ~= q end
  if p == q then return p ~= 0 or 1 / p == 1 / q end
  return math.abs(p - q) <= tolerance * math.abs(q) + 2e-45
end

local function check(name, got, want, x, y)
  got, want, x, y = got:totable(), want:float():totable(), x:totable(), y and y:totable()
  for i = 1, #got do
    if not alike(got[i], want[i]) then
      local at = y and ("%g, %g"):format(x[i], y[i]) or ("%g"):format(x[i])
      error(("%s(%s): %.9g in f32, %.9g in f64"):format(name, at, got[i], want[i]))
    end
  end
end

describe("f32 agrees with f64:", function()
  for _, name in ipairs { "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv" } do
    it(name, function()
      T.manual_seed(2)
      local many = { T.tensor(SPECIAL), T.randn(1037), T.rand(515) * 2 - 1, T.randn(77) * 20, T.randn(50):exp() }
      for _, x in ipairs(many) do
        check(name, x[name](x), x:double()[name](x:double()), x)
      end
    end)
  end

  for _, name in ipairs { "atan2", "hypot", "fmod", "remainder", "pow" } do
    it(name, function()
      T.manual_seed(2)
      local a, b = {}, {}
      for _, p in ipairs(SPECIAL) do
        for _, q in ipairs(SPECIAL) do a[#a + 1], b[#b + 1] = p, q end
      end
      local wide = function(n) return T.randn(n):sign() * (T.randn(n) * 9):exp() end
      local base = name == "pow" and T.rand(1037) * 4 or T.randn(1037) * 30
      for _, pair in ipairs { { T.tensor(a), T.tensor(b) }, { base, T.randn(1037) }, { wide(4099), wide(4099) } } do
        local x, y = pair[1], pair[2]
        check(name, x[name](x, y), x:double()[name](x:double(), y:double()), x, y)
      end
    end)

    it(name .. " with one number", function()
      local x = T.rand(777) * 10
      for _, n in ipairs { 2.5, 0.75, 3 } do
        local one = T.tensor(n)
        check(name, x[name](x, one), x[name](x, one:expand(777):clone()), x)
        check(name, one[name](one, x), one:expand(777):clone()[name](one:expand(777):clone(), x), x)
      end
    end)
  end
end)

-- Whole vectors, what is left of them and runs in which some numbers take a longer way: an element's bits are its own.
describe("bits do not depend on neighbours:", function()
  for _, name in ipairs { "exp", "expm1", "exp2", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "tanh",
    "sigmoid", "erf", "erfinv" } do
    it(name, function()
      T.manual_seed(6)
      for _, dtype in ipairs { "f32", "f64" } do
        local parts = { T.randn(67) * 3, T.rand(40), T.randn(20) * 3e4, T.randn(9) * 3e6, T.tensor(SPECIAL) }
        local x = T.cat(parts, 1):to(dtype)
        local all = x[name](x)
        for i = 1, x:numel() do
          local one = x:narrow(1, i, 1):clone()
          local got, want = one[name](one):item(), all[i]:item()
          local same = got == want and 1 / got == 1 / want or got ~= got and want ~= want
          assert.is_true(same, ("%s of %.9g: %.17g alone, %.17g among others"):format(dtype, one:item(), got, want))
        end
      end
    end)
  end
end)

-- Units of the last place between two doubles.
local function ulps(p, q)
  if p ~= p or q ~= q then return (p ~= p and q ~= q) and 0 or math.huge end
  if p == q then return (p ~= 0 or 1 / p == 1 / q) and 0 or math.huge end
  local place = math.floor(math.log(math.max(math.abs(q), 2.3e-308), 2))
  return math.abs(p - q) / 2.0 ^ (place - 52)
end

describe("f64 agrees with the C library:", function()
  local one = {
    sin = math.sin, cos = math.cos, tan = math.tan, asin = math.asin, acos = math.acos, atan = math.atan,
    exp2 = function(x) return 2.0 ^ x end,
    cosh = function(x) -- in two factors, as e^x overflows first
      local h = math.exp(math.abs(x) / 2)
      return math.abs(x) > 30 and 0.5 * h * h or (math.exp(x) + math.exp(-x)) / 2
    end,
  }
  local two = {
    atan2 = math.atan,
    fmod = function(x, y) return y == 0 and 0 / 0 or math.fmod(x, y) end,
    remainder = function(x, y) return y == 0 and 0 / 0 or x % y end,
  }
  local special = { 1e300, -1e300, 1.7e308, 1e6, 1e7, 5e-324, -1e-310, 1 - 2 ^ -53, 710.2, 19.9 }
  table.move(SPECIAL, 1, #SPECIAL, #special + 1, special)

  local function worst(got, f, x, y)
    local most, where = 0, ""
    got, x, y = got:totable(), x:totable(), y and y:totable()
    for i = 1, #got do
      local u = ulps(got[i], f(x[i], y and y[i]))
      if u > most then most, where = u, ("%.17g, %s"):format(x[i], y and y[i]) end
    end
    return most, where
  end

  for name, f in pairs(one) do
    it(name, function()
      T.manual_seed(4)
      local many = { T.tensor(special, { dtype = "f64" }), T.randn(1037):double() * 300, T.rand(515):double() * 2 - 1 }
      for _, x in ipairs(many) do
        local most, where = worst(x[name](x), f, x)
        assert.is_true(most <= 4, ("%g units off at %s"):format(most, where))
      end
    end)
  end

  for name, f in pairs(two) do
    it(name, function()
      T.manual_seed(4)
      local a, b = {}, {}
      for _, p in ipairs(special) do
        for _, q in ipairs(special) do a[#a + 1], b[#b + 1] = p, q end
      end
      local function wide() return (T.randn(2001):double() * 12):exp() end
      local pairs_of = { { T.tensor(a, { dtype = "f64" }), T.tensor(b, { dtype = "f64" }) }, { wide(), -wide() } }
      for _, pair in ipairs(pairs_of) do
        local most, where = worst(pair[1][name](pair[1], pair[2]), f, pair[1], pair[2])
        assert.is_true(most <= (name == "atan2" and 4 or 0), ("%g units off at %s"):format(most, where))
      end
    end)
  end

  it("log1p, atanh and sinh against each other and at the ends", function()
    local x = T.tensor({ 0.0, -0.0, 5e-324, 1e-17, -1, math.huge, 0 / 0, -2 }, { dtype = "f64" })
    local want = { 0.0, -0.0, 5e-324, 1e-17, -math.huge, math.huge, 0 / 0, 0 / 0 }
    for i, v in ipairs(x:log1p():totable()) do assert.equal(0, ulps(v, want[i])) end
    local y = T.rand(999):double() * 40 - 20
    assert.is_true((y:sinh():asinh() - y):abs():amax():item() < 1e-14)
    assert.is_true((y:tanh():atanh() - y):abs()[y:abs():lt(3)]:amax():item() < 1e-13)
    assert.is_true((y:abs():log1p():expm1() - y:abs()):abs():amax():item() < 1e-13)
  end)
end)
