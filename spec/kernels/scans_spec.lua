-- SPDX-License-Identifier: MIT
-- Running sums and products: several rows that are walked at once have the bits of each row by itself.

local T = require "perilune"

describe("running sums and products", function()
  for _, d in ipairs { "f32", "f64" } do
    for _, name in ipairs { "cumsum", "cumprod" } do
      it(("%s of %s: rows together, alone, with strides, in place"):format(name, d), function()
        T.manual_seed(2)
        for _, size in ipairs { { 1, 5 }, { 4, 1 }, { 7, 33 }, { 16, 70000 }, { 3, 0 }, { 0, 3 } } do
          local x = (T.rand(size, { dtype = d }) + 0.5)
          local y = T[name](x, 2)
          assert.is_true(T[name](x:t():contiguous():t(), 2):equal(y))
          for r = 1, size[1] do assert.is_true(T[name](x[r], 1):equal(y[r])) end
          local z = x:clone()
          if z[name .. "_"] then assert.is_true(z[name .. "_"](z, 2):equal(y)) end
        end
      end)
    end
    it("the gradient of cumsum of " .. d .. " runs backwards", function()
      local x = T.randn({ 9, 21 }, { dtype = d }):requires_grad_()
      local dy = T.randn({ 9, 21 }, { dtype = d })
      T.cumsum(x, 2):backward(dy)
      assert.is_true(x.grad:flip(2):equal(dy:flip(2):cumsum(2)))
    end)
  end

  it("casts of f32 to i32 keep what fits, and the ends", function()
    local inf = math.huge
    local list = { 0, -0.9, 1.9, 2147483520, 2147483648, 3e9, -2147483648, -3e9, 0 / 0, inf, -inf, 7.5 }
    local most, least = 2147483647, -2147483648
    local want = { 0, 0, 1, 2147483520, most, most, least, least, 0, most, least, 7 }
    for n = 1, 41 do
      local a, b = {}, {}
      for k = 1, n do a[k], b[k] = list[(k * 5 + n) % 12 + 1], want[(k * 5 + n) % 12 + 1] end
      assert.same(b, T.tensor(a):to("i32"):totable())
    end
  end)
end)
