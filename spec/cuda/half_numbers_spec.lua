-- SPDX-License-Identifier: MIT
-- Numbers beside f16 and bf16 on the device, alone and in fused groups: the results of the CPU, which
-- spec/ops/half_numbers_spec.lua judges.

local T = require "perilune"
local F = T.nn.F

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

  -- Every number of the dtype: half a step of f64's result and a little, NaN where that is.
  local ACTIVATIONS = { sigmoid = T.sigmoid, silu = F.silu, gelu = F.gelu,
    gelu_tanh = function(x) return F.gelu(x, { approximate = "tanh" }) end }
  local bits = {}
  for k = 0, 65535 do bits[k + 1] = ("<I2"):pack(k) end
  for d, digits in pairs { bf16 = 8, f16 = 11 } do
    local least = d == "bf16" and 2.0 ^ -30 or 2.0 ^ -14 -- f64 has its digits
    for name, f in pairs(ACTIVATIONS) do
      it(("has %s of every %s, and its gradient, eager and generated"):format(name, d), function()
        local all = T.from_string(table.concat(bits), d, { 65536 })
        local function both(x)
          local leaf = x:detach():requires_grad_()
          local y = f(leaf)
          y:sum():backward()
          return y:detach(), leaf.grad
        end
        local x, wide = all:cuda(), { both(all:double()) }
        local eager, generated = { both(x) }, T.jit(function(v) return f(v) * 1 end)
        for k, what in ipairs { "value", name ~= "sigmoid" and "gradient" or nil } do -- of its own rounded result
          local got, want = eager[k]:cpu():double(), wide[k]
          local size = T.maximum(want:abs(), k == 1 and least or 2.0 ^ -6)
          local off = (got - want):abs() / (size:log2():floor() + (1 - digits)):exp2()
          local plain = want:isfinite():logical_and(want:abs():lt(d == "bf16" and 3.38e38 or 65504))
          off = T.where(plain, off, 0)
          local most, at = off:max():item(), off:argmax():item()
          assert(k == 2 or got:isnan():equal(want:isnan()), "others are NaN")
          assert(most <= 0.56, ("the %s of %g is %g, not %g: %.3f steps off"):format(what, all[at]:item(),
            got[at]:item(), want[at]:item(), most))
        end
        for _ = 1, 3 do
          local y = generated(x)
          assert(T.where(y:isnan(), 0, y):equal(T.where(eager[1]:isnan(), 0, eager[1])), "generated kernels differ")
        end
      end)
    end
  end
end)

-- Packs of four, sixteen elements a thread, launches that stride: lengths on both sides of each, from any place.
describe("casts on the device", function()
  if not ok then
    it("are not looked at: " .. tostring(why), function() end)
    return
  end
  it("have the CPU's bits at random lengths and places", function()
    T.manual_seed(3)
    math.randomseed(3)
    local random = math.random
    local dtypes = { "f32", "f16", "bf16", "f64", "i32", "i64", "u8", "bool" }
    for case = 1, tonumber(os.getenv "PERILUNE_HOSTILE") or 150 do
      local lengths = { random(9), random(250, 270), random(4080, 4110), random(8180, 8200), random(20000) }
      local n = case == 1 and (1 << 20) + 4099 or lengths[random(#lengths)]
      local from, to = dtypes[random(random(4) == 1 and #dtypes or 3)], dtypes[random(random(4) == 1 and #dtypes or 3)]
      local first, step = random(9), random(8) == 1 and 2 or 1
      local base = (T.randn(n * step + first) * 10):to(from)
      local function part(t)
        t = t:narrow(1, first, n * step)
        return (step == 1 and t or t:view(n, step):select(2, 1)):to(to):cpu()
      end
      local same = T.isclose(part(base:cuda()):double(), part(base):double(), { rtol = 0, atol = 0, equal_nan = true })
      assert(same:all():item(), ("case %d: %d from %d by %d, %s to %s"):format(case, n, first, step, from, to))
    end
  end)
end)
