-- SPDX-License-Identifier: MIT
-- The short way of plain arithmetic (engine/call/fast_path.c) gives what the general way gives: bits, dtypes, history.
-- While a profile is taken every op goes the general way.

local T = require "perilune"
require "spec.support.live"

local OPS = { "add", "sub", "mul", "div", "pow", "remainder", "floor_divide", "maximum", "minimum", "fmod", "atan2",
              "hypot", "logaddexp", "xlogy", "copysign", "lt", "ge", "eq" }
local UNARY = { "neg", "exp", "sqrt", "sigmoid", "square", "abs", "floor", "lgamma" }

local function general(fn)
  local y
  T.profile(function() y = fn() end)
  return y
end

local function same(fn, what)
  local quick, slow = fn(), general(fn)
  assert.equal(slow:dtype(), quick:dtype(), what)
  assert.same(slow:size(), quick:size(), what)
  assert.equal(slow:to_string(), quick:to_string(), what)
end

describe("plain arithmetic", function()
  it("gives the same bits on few elements, on many, and on views", function()
    T.manual_seed(3)
    for _, dtype in ipairs { "f32", "f64" } do
      for _, shape in ipairs { {}, { 1 }, { 2, 3 }, { 16 }, { 17 }, { 0 }, { 5000 } } do
        local x, y = T.rand(shape, { dtype = dtype }), T.rand(shape, { dtype = dtype }) + 0.5
        for _, op in ipairs(OPS) do
          local what = op .. " " .. dtype .. "[" .. table.concat(shape, ",") .. "]"
          same(function() return T[op](x, y) end, what)
          same(function() return T[op](x, 2) end, what .. " and a number")
          same(function() return T[op](1.1, y) end, "a number and " .. what)
        end
        for _, op in ipairs(UNARY) do same(function() return T[op](y) end, op) end
      end
      local m = T.rand({ 3, 2 }, { dtype = dtype })
      same(function() return m:t() * T.ones({ 2, 3 }, { dtype = dtype }) end, "a transposed operand")
      same(function() return m:t() - 0.1 end, "a transposed operand and a number")
    end
  end)

  it("promotes and refuses as ever", function()
    local f, i = T.tensor { 1.5, 2 }, T.tensor({ 3, 4 }, { dtype = "i64" })
    for _, op in ipairs { "add", "mul", "div", "lt" } do
      same(function() return T[op](f, i) end, op)
      same(function() return T[op](i, 2) end, op)
      same(function() return T[op](i, 2.5) end, op)
      same(function() return T[op](f, f:to("f16")) end, op)
    end
    assert.has_error(function() return T.ones(2) + T.ones(3) end)
    assert.has_error(function() return T.ones(4) - T.ones({ 2, 2 }):view(4):to("bool") end)
  end)

  it("is recorded with numbers on either side", function()
    local x = T.tensor { 2 }:requires_grad_()
    local y = 3 * x * x + x / 4 - 1
    y:backward(T.ones(1))
    assert.equal(12.25, x.grad:item())
    local z = x:detach() * 3
    assert.is_false(z.requires_grad)
    assert.equal(6, z:item())
  end)
end)
