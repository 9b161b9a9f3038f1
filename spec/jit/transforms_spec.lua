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

describe("a transform inside of a jitted function", function()
  -- The gradient of f(x):sum() at x, taken outside.
  local function outside(f, ...)
    local x = T.tensor(...):requires_grad_()
    f(x):sum():backward()
    return x.grad
  end

  it("keeps what was detached out of gradients", function()
    for _, body in ipairs { function(r) return r:detach() * r end, function(r)
      return T.vmap(function(q) return q:detach() * q end)(r)
    end, function(r) return T.checkpoint(function(a) return a * a:detach() end, r) end } do
      local f = T.vmap(body)
      local g = T.jit(function(x) return f(x) end)
      local at = { { 1, 2 }, { 3, -4 } }
      assert.same(at, outside(f, at):totable())
      assert.same(at, outside(g, at):totable())
    end
  end)

  it("lets T.checkpoint's gradients through", function()
    local w = T.tensor { 2 }:requires_grad_()
    local function body(r) return T.checkpoint(function(a) return a * a * w end, r) end
    local f = T.vmap(body)
    for _, g in ipairs { f, T.jit(function(x) return f(x) end), function(x)
      return T.jit(function(y) return T.vmap(body)(y) end)(x)
    end } do
      w.grad = nil
      assert.same({ { 4, 8 } }, outside(g, { { 1, 2 } }):totable())
      assert.same({ 5 }, w.grad:totable())
    end
    local c = T.jit(function(x)
      return T.grad(function(a) return (T.checkpoint(function(b) return b:sin() * b end, a) + a * a):sum() end, x)
    end, { check = true })
    c(T.tensor { 0.3, 1.7, 2.2 })
  end)

  it("writes to parts of what an element made, and lets go of it", function()
    local live = require "spec.support.live"
    local function run(parts)
      local f = T.jit(function(x) return T.vmap(parts)(x) end)
      assert.same(T.vmap(parts)(T.ones(2, 3)):totable(), f(T.ones(2, 3)):totable())
    end
    for _, parts in ipairs { function(r) local y = r * 1 y[1] = 0.5 return y end,
      function(r) local y = r * 1 y[{ { 1, 2 } }] = r[3] return y end } do
      live.flat(T, run, parts)
    end
  end)

  it("gives no gradient where the script has none", function()
    for _, f in ipairs { function(x, y) return x:gt(y):to("f32") * y end, function(x, y) return x:detach() * y end,
      function(x, y) return T.no_grad(function() return x * 2 end) + y end } do
      for _, g in ipairs { f, T.jit(f) } do
        local x, y = T.tensor { 1, -1 }:requires_grad_(), T.tensor { 0.5, 0.5 }:requires_grad_()
        g(x, y):sum():backward()
        assert.is_nil(x.grad)
        assert.is_not_nil(y.grad)
      end
    end
  end)

  it("is traced inside of a checkpoint, which holds the graph alone for its function's work", function()
    local l1, l2, v = T.nn.Linear(3, 3), T.nn.Linear(3, 3), T.randn(4, 3)
    local function block(u) return l2((l1(u) * T.tensor { 1, 2, 3 }):tanh()) + T.tensor { 1, 1, 1 } end
    local function whole(f) return function(u) return T.checkpoint(f, u) end end
    local makes = {
      ["as a whole"] = function() return whole(T.jit(block)) end,
      ["with a checkpoint inside"] = function() return whole(T.jit(whole(block))) end,
      ["in two"] = function() return whole(whole(T.jit(block))) end,
      ["made in the function"] = function()
        return whole(function(u)
          local k = T.tensor { 1, 2, 3 }
          return T.jit(function(a) return l2((l1(a) * k):tanh()) + T.tensor { 1, 1, 1 } end)(u)
        end)
      end,
      ["between ops"] = function()
        local f = T.jit(function(a) return (a * T.tensor { 1, 2, 3 }):tanh() end)
        return whole(function(u) return l2(f(l1(u))) + T.tensor { 1, 1, 1 } end)
      end,
      ["after a trace that failed"] = function()
        local bad = true
        local f = T.jit(function(u) return bad and u:sum():item() or block(u) end)
        return whole(function(u)
          if bad then assert.is_false((pcall(f, u))) end
          bad = false
          return f(u)
        end)
      end,
      ["running as it is written"] = function()
        return whole(T.jit(function(u) return u:sum():item() and block(u) end, { fallback = true }))
      end,
    }
    local function gradient(f)
      local u = v:clone():requires_grad_()
      f(u):square():sum():backward()
      return u.grad
    end
    local want = gradient(block)
    for name, make in pairs(makes) do
      local f = make()
      for _ = 1, 3 do assert.is_true(want:equal(gradient(f)), name) end
    end
  end)
end)
