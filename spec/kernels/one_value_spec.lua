-- SPDX-License-Identifier: MIT
-- Integer and bool loops with one value in place of an array, from a number, a column or a row, against whole arrays;
-- and transposed copies whose rows are so far apart that they share few sets of a cache.

local T = require "perilune"

describe("an operand that is one value", function()
  local ops = {
    add = true, sub = true, mul = true, maximum = true, minimum = true, floor_divide = true, remainder = true,
    fmod = true, eq = true, lt = true, ge = true, bitwise_and = true, bitwise_or = true, bitwise_xor = true,
    bitwise_left_shift = true, gcd = true, lcm = true, logical_and = true, logical_xor = true,
  }
  local function whole(x, shape) return x:expand(shape):clone() end

  for _, dtype in ipairs { "i8", "i16", "i32", "i64", "u8" } do
    it("gives what the array gives, " .. dtype, function()
      T.manual_seed(1)
      for _, size in ipairs { { 3, 5 }, { 40, 130 }, { 2, 40001 }, { 300, 300 } } do
        local x = T.randint(1, 11, size):to(dtype)
        local column, row = T.randint(1, 7, { size[1], 1 }):to(dtype), T.randint(1, 7, { size[2] }):to(dtype)
        local one = T.full({ 1 }, 3, { dtype = dtype })
        for op in pairs(ops) do
          for _, y in ipairs { column, row, one } do
            local full = whole(y, size)
            assert.is_true(T[op](x, y):equal(T[op](x, full)), op)
            assert.is_true(T[op](y, x):equal(T[op](full, x)), op .. " reversed")
          end
        end
        assert.is_true(T.add(x, column, { alpha = 3 }):equal(T.add(x, whole(column, size), { alpha = 3 })))
        assert.is_true(T.add(column, x, { alpha = 3 }):equal(T.add(whole(column, size), x, { alpha = 3 })))
      end
    end)
  end

  it("is an error where it is a zero divisor", function()
    for _, y in ipairs { T.zeros(1, { dtype = "i32" }), T.zeros(4, 1, { dtype = "i32" }) } do
      local ok, message = pcall(T.floor_divide, T.ones(4, 50, { dtype = "i32" }), y)
      assert.is_false(ok)
      assert.matches("division by zero", tostring(message))
    end
  end)

  it("may be a bool", function()
    local x, y = T.rand(40, 130):lt(0.5), T.rand(40, 1):lt(0.5)
    for _, op in ipairs { "logical_and", "logical_or", "logical_xor", "bitwise_or", "maximum", "eq" } do
      assert.is_true(T[op](x, y):equal(T[op](x, whole(y, { 40, 130 }))), op)
    end
  end)
end)

describe("a transposed copy", function()
  it("of halves is exact at any distance of rows", function()
    T.manual_seed(2)
    for _, rows in ipairs { 512, 1024, 1536 } do
      for _, cols in ipairs { 31, 32, 33, 200 } do
        local x = T.randn(rows, cols)
        for _, dtype in ipairs { "bf16", "f16", "i16" } do
          local h = (x * 100):to(dtype)
          assert.is_true(h:t():contiguous():to("f32"):equal(h:to("f32"):t():contiguous()), dtype)
        end
      end
    end
    local b = T.randn(3, 130, 1024):transpose(1, 3):contiguous():to("bf16") -- [1024, 130, 3]
    assert.is_true(b:transpose(1, 3):contiguous():to("f32"):equal(b:to("f32"):transpose(1, 3):contiguous()))
  end)
end)
