-- SPDX-License-Identifier: MIT
-- Writes into tensors with a history, inside traced functions: gradients taken outside of the trace, inside of it, by
-- T.grad and by T.graph are those of the script, whether the write itself is recorded or not.

local T = require "perilune"

local f64 = { dtype = "f64" }

local function near(got, want, what)
  assert.same(want:shape(), got:shape())
  local d = (got:detach() - want):abs():max():item()
  assert.is_true(d < 1e-10, ("%s: differs by %g"):format(what, d))
end

-- Of x [3,3].
local recorded = {
  ["its own operand"] = function(x) return (x * 1):mul_(x):add_(1) end,
  ["itself"] = function(x)
    local y = x * 1
    y:mul_(y):mul_(y)
    return y:exp()
  end,
  ["a window"] = function(x)
    local y = x * 1
    local v = y[{ { 1, 2 } }]
    v:mul_(v)
    y[1]:add_(y[2])
    return y
  end,
  ["a window of a window"] = function(x)
    local y = x * 1
    local v = y:view(-1)
    local w = v[{ { 2, 5 } }]
    w:mul_(y[1]:sum())
    v[{ { 1, 2 } }]:copy_(w[{ { 2, 3 } }])
    return y + v:view(3, 3)
  end,
  ["a view that is read later"] = function(x)
    local y = x * 1
    local v = y[1]
    local w = v:view(3, 1)
    w:mul_(w)
    v:add_(w:squeeze(2))
    return y:cumsum(1)
  end,
  ["a diagonal"] = function(x)
    local y = x * 1
    local d = y:diagonal()
    d:mul_(d):mul_(d)
    y:add_(y:t())
    return y
  end,
  ["a view that repeats"] = function(x)
    local y = x * 1
    local s = y:expand(2, 3, 3)
    y:mul_(2)
    return s * x
  end,
  ["a sliding window"] = function(x)
    local y = x * 1
    local v = y:unfold(2, 2, 1)
    y[1]:mul_(3)
    return v:sum(3) * y[{ {}, { 1, 2 } }]
  end,
  ["rows and columns of zeros"] = function(x)
    local y, t = x * 1, T.zeros({ 3, 3 }, f64)
    t[1] = y[2]
    t[{ {}, 2 }] = y[3] * 2
    local r = t[1]
    t:mul_(2)
    return t * y + r
  end,
  ["a row by copy_"] = function(x)
    local t = T.zeros({ 3, 3 }, f64)
    local r = t[1]
    r:copy_(x[1])
    t[2]:add_(r)
    return t * x
  end,
  ["rows that repeat"] = function(x)
    local t = x * 1
    t[T.tensor({ 3, 1, 3 }, { dtype = "i64" })] = x * x
    return t * x
  end,
  ["what is filled and zeroed"] = function(x)
    local y = x * 1
    y:fill_(0)
    y[2] = x[1]
    local z = y + x
    y:zero_()
    y:add_(x)
    return y * y + z
  end,
}

-- The history does not know of the write: gradients pass as if it had not been.
local unknown = {
  ["the whole"] = function(x)
    local y = x * 1
    T.no_grad(function() y:mul_(3) end)
    return y * 2
  end,
  ["a row"] = function(x)
    local y = x * 1
    T.no_grad(function() y[1]:zero_() end)
    return y * 2
  end,
  ["a row by assignment"] = function(x)
    local y = x * 1
    T.no_grad(function() y[1] = 5 end)
    return y * 2
  end,
  ["a detached handle"] = function(x)
    local y = x * 1
    y:detach():mul_(3)
    return y * 2
  end,
  ["a view read where nothing is recorded"] = function(x)
    local y = x * 1
    local v, s = y[{ { 1, 2 } }], nil
    y:mul_(2)
    T.no_grad(function() s = v:sum() end)
    return v * v * s
  end,
}

local function check(f, what)
  local x0 = T.rand({ 3, 3 }, f64) * 0.8 + 0.2
  local function loss(x)
    local y = f(x)
    return (y * T.arange(1, y:numel(), { dtype = "f64" }):view(y:shape())):sum() * 0.1
  end
  local function leaf() return x0:clone():requires_grad_() end
  local want = T.grad(loss)(x0)
  local x = leaf()
  loss(x):backward()
  near(x.grad, want, what .. ", eager")
  local outer, inner = T.jit(loss), T.jit(function(a)
    local y = loss(a)
    y:backward()
    return y
  end)
  for _ = 1, 2 do
    x = leaf()
    local y = outer(x)
    near(y, loss(x0), what .. ", value")
    y:backward()
    near(x.grad, want, what .. ", backward outside")
    x = leaf()
    inner(x)
    near(x.grad, want, what .. ", backward inside")
    near(T.jit(T.grad(loss))(x0), want, what .. ", T.grad")
  end
  return loss, x0, want
end

describe("a traced function that writes into", function()
  for name, f in pairs(recorded) do
    it(name, function()
      local loss, x0, want = check(f, name)
      assert(T.gradcheck(loss, { x0 }))
      local g = T.graph()
      local x = g:input("x", { 3, 3 }, { dtype = "f64", leaf = true })
      g:outputs(g:gradient(g:trace(loss, x), { x }))
      near(g:run({ x = x0 })[1], want, name .. ", T.graph")
    end)
  end

  for name, f in pairs(unknown) do
    it(name .. ", unknown to its history", function() check(f, name) end)
  end

  it("a tensor from outside, with a gradient, says so", function()
    local t = T.zeros({ 3 }, f64)
    local f = T.jit(function(x)
      t[1] = x:sum()
      return t:sum()
    end)
    local ok, err = pcall(f, T.ones({ 3 }, f64):requires_grad_())
    assert.is_false(ok)
    assert.is_truthy(tostring(err):find("comes from outside of the traced function", 1, true), tostring(err))
  end)

  it("is planned, also where the function only writes and returns nothing", function()
    local f = T.jit(function(a, b) b:copy_((a * 2 + 1):tanh()) end)
    local a, b = T.rand(30, 20), T.zeros(30, 20)
    for _ = 1, 3 do
      f(a, b)
      assert.is_true(b:allclose((a * 2 + 1):tanh()))
      a:add_(1)
    end
    assert.truthy(tostring(f:plan()):find("nodes", 1, true))
  end)
end)
