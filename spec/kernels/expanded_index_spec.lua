-- SPDX-License-Identifier: MIT
-- Indices that repeat along dims (expanded, strides 0) are read without a copy: the same bits as from a copy, for
-- reading and writing, every dtype and reduction, and the gradients.

local T = require "perilune"
local near = require "spec.support.near"

-- Index shapes with 1 where they repeat, the shape they are expanded to, and the dim.
local CASES = {
  { { 9, 1 }, { 9, 5 }, 1 }, { { 9, 1 }, { 9, 70 }, 1 }, { { 1, 9 }, { 4, 9 }, 2 }, { { 9, 1 }, { 9, 3 }, 2 },
  { { 2, 6, 1 }, { 2, 6, 33 }, 2 }, { { 1, 6, 1 }, { 3, 6, 4 }, 2 }, { { 1, 1, 7 }, { 2, 3, 7 }, 3 },
  { { 5, 1, 1 }, { 5, 2, 3 }, 1 }, { { 1, 1 }, { 4, 4 }, 1 }, { { 0, 1 }, { 0, 5 }, 1 }, { { 4, 1 }, { 4, 0 }, 1 },
}

local function each(f)
  for n, c in ipairs(CASES) do
    T.manual_seed(n)
    local small, shape, dim = table.unpack(c)
    local wide = T.randint(1, 8, small):expand(shape)
    local size = { table.unpack(shape) }
    size[dim] = 8
    f(wide, wide:contiguous(), size, shape, dim, "case " .. n)
  end
end

local function drawn(shape, dtype)
  if dtype:find("^[iu]") then return T.randint(0, 50, shape):to(dtype) end
  return dtype == "bool" and T.rand(shape):gt(0.5) or T.randn(shape):to(dtype)
end

describe("an expanded index", function()
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16", "u8", "i16", "i64", "bool" } do
    it("reads and writes " .. dtype, function()
      each(function(index, copy, size, shape, dim, what)
        local x, src = drawn(size, dtype), drawn(shape, dtype)
        local function both(f)
          local a, b = f(index), f(copy)
          assert.same(b:shape(), a:shape(), what)
          near.same_bits(a, b)
        end
        both(function(i) return x:gather(i, { dim = dim }) end)
        both(function(i) return x:take_along_dim(i, { dim = dim }) end)
        both(function(i) return x:take_along_dim(i) end)
        both(function(i) return x:scatter(i, src, { dim = dim }) end)
        both(function(i) return x:scatter(i, src, { dim = dim, reduce = "multiply" }) end)
        both(function(i) return x:scatter_add(i, src, { dim = dim }) end)
        for _, reduce in ipairs { "sum", "prod", "mean", "amax", "amin" } do
          if dtype ~= "bool" then
            both(function(i) return x:scatter_reduce(i, src, { dim = dim, reduce = reduce }) end)
            both(function(i) return x:scatter_reduce(i, src, { dim = dim, reduce = reduce, include_self = false }) end)
          end
        end
      end)
    end)
  end

  it("has the gradients of its copy, on any number of threads", function()
    local before = T.get_num_threads()
    each(function(index, copy, size, shape, dim)
      local x, src = T.randn(size), T.randn(shape)
      local function slopes(i, threads)
        T.set_num_threads(threads)
        local a, b = x:detach():clone():requires_grad_(), src:detach():clone():requires_grad_()
        local y = a:gather(i, { dim = dim }):sin():sum() + a:take_along_dim(i, { dim = dim }):cos():sum()
        y = y + a:scatter_add(i, b, { dim = dim }):sin():sum() + a:scatter(i, b, { dim = dim }):cos():sum()
        y:backward()
        return { a.grad, b.grad }
      end
      local want = slopes(copy, 1)
      for threads = 1, 3 do
        local got = slopes(index, threads)
        for k = 1, 2 do near.same_bits(got[k], want[k]) end
      end
    end)
    T.set_num_threads(before)
  end)

  it("names the value that is out of range, and where it stands", function()
    local index = T.tensor({ { 1 }, { 9 } }, { dtype = "i64" }):expand(2, 3)
    for _, f in ipairs { function() return T.zeros(4, 3):gather(index, { dim = 1 }) end,
      function() return T.zeros(4, 3):scatter_add(index, T.ones(2, 3), { dim = 1 }) end } do
      local fine, message = pcall(f)
      assert.is_false(fine)
      assert.truthy(tostring(message):find("index value 9 at position [2,1] is out of range 1..4", 1, true), message)
    end
  end)
end)
