-- SPDX-License-Identifier: MIT
-- What a gradient needs of Lua is there whenever the collector runs; what nobody can reach goes.

local T = require "perilune"
local live = require "spec.support.live"

local function close(a, b)
  assert.is_true((a - b):abs():max():item() < 1e-5, tostring(a) .. " is not " .. tostring(b))
end
local function leaf(...) return T.tensor { ... }:requires_grad_() end
local function collect() collectgarbage() collectgarbage() end

local square = T.custom {
  name = "square",
  forward = function(ctx, a)
    ctx:save(a)
    return a * a
  end,
  backward = function(ctx, g) return ctx:saved() * 2 * g end
}

describe("hooks and rules live as long as a history that leads to them", function()
  it("on a temporary", function()
    for _ = 1, 50 do
      local x, ran = leaf(1, 2), 0
      local loss
      do
        local h = x * 2
        h:register_hook(function(g)
          ran = ran + 1
          return g * 10
        end)
        loss = (h * 3):sum()
      end
      collect()
      loss:backward()
      assert.equal(1, ran)
      close(x.grad, T.tensor { 60, 60 })
    end
  end)

  it("registered after the tensor was used", function()
    local x, ran = leaf(1, 2), 0
    local loss
    do
      local h = x * 2
      loss = (h * 3):sum()
      h:register_hook(function() ran = ran + 1 end)
    end
    collect()
    loss:backward()
    assert.equal(1, ran)
  end)

  it("below a write through a view, and on siblings that are made again", function()
    local x, hooks = leaf(1, 2), 0
    local base = T.zeros(2, 2)
    local sibling = base[{ {}, 1 }]
    do
      local h = square(x * 2)
      h:register_hook(function() hooks = hooks + 1 end)
      base[1] = h
    end
    collect()
    sibling:sum():backward()
    assert.equal(1, hooks)
    close(x.grad, T.tensor { 8, 0 })
  end)

  it("below jitted functions", function()
    local f = T.jit(function(a) return (a * 3):tanh():sum() end)
    local x, ran = leaf(0.1, 0.2), 0
    local want
    do
      local h = square(x)
      want = T.grad(function(a) return (a * a * 3):tanh():sum() end)(x:detach())
      h = T.checkpoint(function(a) return a * 1 end, h)
      h:register_hook(function() ran = ran + 1 end)
      h = f(h)
      collect()
      h:backward()
    end
    assert.equal(1, ran)
    close(x.grad, want)
  end)

  it("in gradients of gradients", function()
    local x = leaf(1, 2)
    local g
    do
      local y = square(square(x)):sum()
      g = T.grad_of(y, x, { create_graph = true })
    end
    collect()
    g:sum():backward()
    close(x.grad, T.tensor { 12, 48 })
    x.grad = nil
    square(square(x)):sum():backward(nil, { create_graph = true })
    collect()
    local again = T.grad_of(x.grad:sum(), x)
    close(again, T.tensor { 12, 48 })
    x.grad = nil
  end)

  it("of keys", function()
    local x, seen = T.tensor { 1, 2 }, nil
    local key = T.GradKey()
    local y
    do
      local t = x * 3
      key:attach(t, function(tensor, grad) seen = { tensor, grad } end)
      y = square(t)
    end
    collect()
    key:backward(y)
    close(seen[1], T.tensor { 3, 6 })
    close(seen[2], T.tensor { 6, 12 })
  end)
end)

describe("what nobody can reach goes", function()
  local function dies(make)
    local weak = setmetatable({}, { __mode = "v" })
    weak[1] = make()
    live.collect()
    assert.is_nil(weak[1])
  end

  it("with a hook that mentions its own result", function()
    live.flat(T, function()
      for _ = 1, 10 do
        local x = T.ones(1000):requires_grad_()
        local y = x * 2
        local z = y * 3
        y:register_hook(function() return z end)
      end
    end)
  end)

  it("with a late hook, a context, a callback and a checkpoint that do", function()
    live.flat(T, function()
      local x = T.ones(100):requires_grad_()
      local all = {}
      local y = T.checkpoint(function(a) return all and a:sin():cos() end, x)
      local f = T.custom { forward = function(ctx, a)
        ctx.all = all
        return a * 2
      end, backward = function(_, g) return g end }
      local z = f(y)
      local key = T.GradKey()
      key:attach(z, function() return all, key end)
      local w = z * 3
      z:register_hook(function() return w end)
      all[1], all[2], all[3] = y, z, w
    end)
  end)

  it("with a chain of rules that is never walked", function()
    live.flat(T, function()
      local y = T.ones(100):requires_grad_()
      for _ = 1, 200 do
        y = square(y)
        local held = y
        y:register_hook(function() return held end)
      end
    end)
  end)

  it("so boxes that a rule saved die with the rule", function()
    dies(function()
      local x = leaf(1)
      local h = x * 2
      local y = square(h)
      return h, y
    end)
  end)

  it("but not what a running coroutine, an upvalue or a user value holds", function()
    local x = leaf(1, 2)
    local co = coroutine.create(function(a)
      local y = square(a * 2)
      y:register_hook(function() return y and nil end)
      coroutine.yield()
      y:sum():backward()
    end)
    assert(coroutine.resume(co, x))
    collect()
    collect()
    assert(coroutine.resume(co))
    close(x.grad, T.tensor { 8, 16 })
  end)

  it("and tracing may run inside of the parser", function()
    local x = leaf(1)
    local y = square(x)
    local n = 0
    assert(load(function()
      n = n + 1
      collectgarbage()
      if n < 20 then return ("local function f%d() return f%d end "):format(n, n) end
    end))
    y:backward()
    close(x.grad, T.tensor { 2 })
  end)
end)

describe("backward without retain_graph", function()
  it("frees what rules and checkpoints saved, though their results are kept", function()
    local losses = {}
    local x = T.ones(10000):requires_grad_()
    local function step(f)
      local loss = f(x * 2):sum()
      loss:backward()
      losses[#losses + 1] = loss
    end
    local deep = function(a) return a:sin():cos():sin() end
    for _, f in ipairs { square, deep, function(a) return T.checkpoint(deep, a) end } do
      step(f)
      live.collect()
      local before = T.memory().live
      for _ = 1, 20 do step(f) end
      live.collect()
      assert.is_true(T.memory().live - before < 20000)
    end
  end)
end)

describe("a tensor that is written with what was computed of it", function()
  it("is freed, also when a write in between left it without a history", function()
    local function once()
      local w = T.ones(4):requires_grad_()
      local h = w * 2
      local y = h * h
      h:zero_()
      h:mul_(y)
      local k = w:sum(1, true)
      local z = k * k
      k:fill_(0.5)
      k:copy_(z)
    end
    local function blocks()
      T.core.collect()
      T.debug.cache_clear()
      return (live.blocks(T))
    end
    once()
    local before = blocks()
    for _ = 1, 5 do once() end
    assert.equal(before, blocks())
  end)
end)
