-- SPDX-License-Identifier: MIT
-- Numbers beside f16 and bf16 on the device, alone and in fused groups: the results of the CPU, which
-- spec/ops/half_numbers_spec.lua judges.

local T = require "perilune"

local ok, why = T.core.device.available()
local FIRST = { "add", "sub", "mul", "div", "floor_divide", "trunc_divide", "remainder", "fmod", "pow", "maximum", "eq",
  "lt", "nextafter", "atan2" }
local NUMBERS = { 0.1, 10000, 1 / 3, 65520, -0.3, -7.7, 3 }
local EXACT = { pow = false, atan2 = false }

describe("on the device a number beside halves", function()
  if not ok then
    it("is not looked at: " .. tostring(why), function() end)
    return
  end
  local function check(got, want, what, op)
    got = got:cpu()
    assert.equal(want:dtype(), got:dtype(), what)
    if want:dtype() == "bool" then return assert(got:equal(want), what) end
    local m, n = got:isnan(), want:isnan()
    got, want = T.where(m, 0, got):float(), T.where(n, 0, want):float()
    local off = T.where(got:eq(want), 0, (got - want):abs() / want:abs()):max():item()
    assert(m:equal(n) and off <= (EXACT[op] == false and 2.0 ^ -7 or 0), ("%s is off by %g"):format(what, off))
  end
  for _, d in ipairs { "bf16", "f16" } do
    it("is f32: " .. d, function()
      T.manual_seed(1)
      local x = (T.randn(40, 24) * 3):to(d)
      x[{ 1, { 1, 4 } }]:copy_(T.tensor { 9984, -9984, 65504, 0.1 })
      local y = x:cuda()
      for _, op in ipairs(FIRST) do
        for _, n in ipairs(NUMBERS) do
          local what = ("%s of %s and %g"):format(op, d, n)
          check(T[op](y, n), T[op](x, n), what, op)
          check(T[op](n, y), T[op](n, x), what .. ", the number first", op)
          check(T[op](y:t(), n), T[op](x:t(), n), what .. ", transposed", op)
          check(T[op](y, T.tensor(n)), T[op](x, T.tensor(n)), what .. ", a 0-d tensor of the CPU", op)
        end
      end
      local function chain(a)
        local b = (a * 0.1 + 1 / 3) // 0.7 - a
        return T.lerp(b / 10000, a, 0.3), T.addcmul(b, a, 0.1), 1 / 3 - a, b:nextafter(a)
      end
      local want, fused = { chain(x) }, T.jit(chain)
      for _ = 1, 4 do
        for k, r in ipairs { fused(y) } do check(r, want[k], ("result %d of a fused group of %s"):format(k, d)) end
      end
    end)
  end
end)
