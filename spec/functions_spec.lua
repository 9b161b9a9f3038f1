-- SPDX-License-Identifier: MIT
-- f32 functions that have vector code agree with f64, which is libm's: special values in all pairs, random ones, tails
-- behind whole vectors, operands that are one number.

local T = require "perilune"

local SPECIAL = { 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 5.5, -7.25, 1e-40, -1e-40, 1e30, -1e30, 3e38, math.huge,
  -math.huge, 0 / 0, 1e-10, 0.1, 123456.7, 16777216, 0.3, 1e-3 }

-- The same number, zeros with their signs; others to one place of f32.
local function alike(p, q)
  if p ~= p or q ~= q then return p ~= p and q ~= q end
  if p == q then return p ~= 0 or 1 / p == 1 / q end
  return math.abs(p - q) <= 1.2e-7 * math.abs(q) + 2e-45
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
