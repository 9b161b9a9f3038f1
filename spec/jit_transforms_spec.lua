-- SPDX-License-Identifier: MIT
-- Jitted functions inside of function transforms: values and gradients are those of the script, whatever follows the
-- arguments or what the function has captured.

local T = require "perilune"

local function pair()
  local w = T.tensor { 0.5, -2, 3 }
  local function f(x) return (x * w):tanh():sum() + (x * x):sum() end
  return f, T.jit(f), w
end

local function close(a, b) assert.is_true(T.allclose(a, b, { rtol = 1e-6, atol = 1e-6 })) end

describe("a jitted function", function()
  local x
  before_each(function() x = T.tensor { 0.1, 0.7, -0.4 } end)
  after_each(function() x = nil end)

  for _, used in ipairs { false, true } do
    it("has the script's derivatives" .. (used and ", once it has run too" or ""), function()
      local f, j = pair()
      if used then j(x) end
      local y, pull = T.vjp(f, x)
      local z, pull_j = T.vjp(j, x)
      close(y, z)
      close(pull(T.ones {}), pull_j(T.ones {}))
      close(T.grad(f)(x), T.grad(j)(x))
      for _, name in ipairs { "jvp", "hvp" } do
        local a, b = T[name](f, x, T.ones(3))
        local c, d = T[name](j, x, T.ones(3))
        close(a, c)
        close(b, d)
      end
      assert.is_true(T.gradcheck(j, { x:to("f64") }, { eps = 1e-3, atol = 1e-2, rtol = 1e-2 }))
    end)

    it("runs once an element in T.vmap" .. (used and ", once it has run too" or ""), function()
      local f, j = pair()
      local rows = T.stack({ x, 2 * x, -x })
      if used then j(x) end
      close(T.stack({ f(x), f(2 * x), f(-x) }), T.vmap(j)(rows))
    end)
  end

  it("sees what is followed in a tensor that it captured", function()
    local f, j, w = pair()
    j(x)
    local got = {}
    for i, call in ipairs { f, j } do
      local key <close> = T.GradKey {}
      key:attach(w, function(_, g) got[i] = g end)
      key:backward(call(x))
    end
    assert.is_truthy(got[1]:abs():sum():item() > 0)
    close(got[1], got[2])
  end)

  it("runs as a graph again afterwards", function()
    local _, j = pair()
    j(x)
    do
      T.vmap(j)(T.stack { x, x })
      T.grad(j)(x)
    end
    collectgarbage()
    collectgarbage()
    local runs = j.runs
    j(x)
    assert.equal(runs + 1, j.runs)
  end)
end)
