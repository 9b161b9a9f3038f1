-- SPDX-License-Identifier: MIT
-- What tostring and brief write: numbers by the usual rules, braces that Lua can read, a line about the
-- tensor.

local T = require "perilune"
local near = require "spec.support.near"

local function body(t)
  return (tostring(t):gsub("%s*%-%-[^\n]*$", ""))
end

describe("tostring", function()
  it("writes integers, floats, booleans", function()
    assert.equal("{1., 2., 3.}", body(T.tensor { 1, 2, 3 }))
    assert.equal("{1.5000, 2.2500}", body(T.tensor { 1.5, 2.25 }))
    assert.equal("{1, 2, 3}", body(T.arange(3)))
    assert.equal("{true, false}", (body(T.tensor { true, false }):gsub(" +", " "):gsub("{ ", "{")))
    assert.equal("{1.0000e-05, 1.0000e+00}", body(T.tensor { 1e-5, 1 }))
  end)

  it("says dtype, shape and device, and the op of a gradient", function()
    local x = T.ones(2, 3)
    assert.is_truthy(tostring(x):find("-- f32[2,3] " .. x:device(), 1, true))
    assert.is_truthy(tostring(x:to("cpu")):find("-- f32[2,3] cpu", 1, true))
    x = T.ones(2):requires_grad_()
    assert.is_truthy(tostring(x * 2):find("grad=mul", 1, true))
  end)

  it("of a finite unabridged tensor is Lua that gives the values back", function()
    local flags = T.tensor { { true }, { false } }
    for _, t in ipairs { T.randn(3, 4), T.arange(6):view(2, 3), flags, T.zeros(1, 1, 2) } do
      local back = assert(load("return " .. tostring(t)))()
      near.near(T.tensor(back, { dtype = t:dtype() }), t, 1e-4)
    end
  end)

  it("abridges large tensors to three items on each edge", function()
    local text = tostring(T.zeros(2000))
    assert.is_truthy(text:find("...", 1, true))
    assert.is_true(#text < 200)
    assert.is_truthy(tostring(T.zeros(0)):find("{}", 1, true))
    assert.equal("3.", body(T.tensor(3.0)))
  end)
end)

describe("brief", function()
  it("is one line with dtype, shape, range and count of NaN", function()
    local text = T.tensor({ 1, 2, 3, 0 / 0 }):brief()
    assert.is_nil(text:find("\n", 1, true))
    assert.is_truthy(text:find("f32[4]", 1, true))
    assert.is_truthy(text:find("NaN:1", 1, true))
  end)
end)
