-- SPDX-License-Identifier: MIT
-- T.int_mm against sums of products in i64, at the sizes at which its tiles change, in any layout, on any number of
-- threads.

local T = require "perilune"

local function ints(rows, cols) return T.randint(-128, 127, { rows, cols }):to("i8") end

local function check(x, y, what)
  local z = T.int_mm(x, y)
  assert.equal("i32", z:dtype())
  assert.is_true(z:to("i64"):equal(x:to("i64"):matmul(y:to("i64"))), what)
end

describe("T.int_mm", function()
  it("is the exact product at sizes around its tiles", function()
    T.manual_seed(1)
    for _, m in ipairs { 1, 2, 5, 6, 7, 47, 48, 49, 100 } do
      for _, n in ipairs { 1, 15, 16, 17, 63, 64, 65, 130 } do
        for _, k in ipairs { 1, 3, 4, 5, 64, 67 } do check(ints(m, k), ints(k, n), ("%d x %d x %d"):format(m, k, n)) end
      end
    end
    check(ints(3, 5000), ints(5000, 70), "long")
  end)

  it("reads any layout", function()
    T.manual_seed(2)
    local x, y = ints(70, 66), ints(66, 90)
    local want = T.int_mm(x, y)
    local xt, yt = x:t():contiguous():t(), y:t():contiguous():t()
    for _, a in ipairs { x, xt, T.stack({ x, x }, 3):select(3, 1), T.cat({ x, x }, 2):narrow(2, 67, 66) } do
      for _, b in ipairs { y, yt, T.stack({ y, y }, 3):select(3, 2) } do assert.is_true(want:equal(T.int_mm(a, b))) end
    end
    check(x:narrow(1, 1, 1):expand(60, 66), y, "expanded")
  end)

  it("holds the extremes, and empty sums", function()
    local low, high = T.full({ 8, 256 }, -128, { dtype = "i8" }), T.full({ 256, 8 }, 127, { dtype = "i8" })
    assert.equal(-128 * 127 * 256, T.int_mm(low, high)[8][8]:item())
    assert.equal(128 * 128 * 256, T.int_mm(low, low:t())[1][1]:item())
    assert.equal(0, T.int_mm(T.zeros(2, 0, { dtype = "i8" }), T.zeros(0, 3, { dtype = "i8" })):abs():sum():item())
    assert.same({ 0, 4 }, T.int_mm(T.zeros(0, 3, { dtype = "i8" }), T.zeros(3, 4, { dtype = "i8" })):shape())
  end)

  it("is the same on one to eight threads", function()
    T.manual_seed(3)
    local x, y, before, first = ints(200, 130), ints(130, 300), T.get_num_threads(), nil
    for n = 1, 8 do
      T.set_num_threads(n)
      first = first or T.int_mm(x, y)
      assert.is_true(first:equal(T.int_mm(x, y)))
    end
    T.set_num_threads(before)
  end)

  it("refuses other dtypes and shapes", function()
    local x = ints(3, 4)
    for _, call in ipairs {
      { "must be i8", x:to("i32"), x:t() }, { "must be i8", x, T.ones(4, 3) }, { "rows of the second", x, x },
      { "int_mm", x, ints(4, 1):squeeze(2) },
    } do
      local ok, message = pcall(T.int_mm, call[2], call[3])
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(call[1], 1, true), message)
    end
  end)
end)
