-- SPDX-License-Identifier: MIT
-- Gradient rules written in Lua, long and broken walks, the ambient key.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local watch = require "spec.support.watch".watch
local eq, fails = near.near, near.fails
local clock = T.clock or T.core.clock

describe("rules written in Lua", function()
  local function leaf(v) return T.tensor(v):requires_grad_() end

  local function step(params, loss)
    local opt = T.optim.SGD(params, { lr = 1 })
    loss:backward()
    opt:step()
  end

  it("one input, one output: backward gives the gradient that the rule returns", function()
    local f = T.custom { name = "ten", forward = function(_, a) return a * 10 end,
      backward = function(_, g) return g * 10 end }
    local a = leaf { 1, 2, 3 }
    step({ a }, f(a):sum())
    eq(a, { -9, -8, -7 })
  end)

  it("two inputs get the gradients that the rule returns, right or not", function()
    local f = T.custom { name = "prod", forward = function(ctx, a, b)
      ctx:save(a, b)
      return a * b
    end, backward = function(ctx, g)
      local a, b = ctx:saved()
      return g * 2 * b, g * 3 * a
    end }
    local a, b = leaf { 1, 2 }, leaf { 5, 7 }
    step({ a, b }, f(a, b):sum())
    eq(a, { 1 - 10, 2 - 14 })
    eq(b, { 5 - 3, 7 - 6 })
  end)

  it("two outputs bring two gradients", function()
    local f = T.custom { name = "both", forward = function(ctx, a, b)
      ctx:save(a, b)
      return a * b, a + b
    end, backward = function(ctx, g1, g2)
      local a, b = ctx:saved()
      return g1 * (b + 1), g2 * (a + 1)
    end }
    local a, b = leaf { 2 }, leaf { 5 }
    local p, s = f(a, b)
    step({ a, b }, p:sum() + s:sum())
    eq(a, { 2 - 5 - 1 })
    eq(b, { 5 - 2 - 1 })
  end)

  it("the same constant may be the gradient of both inputs", function()
    local c = T.tensor { 3 }
    local f = T.custom { name = "constant", forward = function(_, a, b) return a + b end,
      backward = function() return c, c end }
    local a, b = leaf { 10 }, leaf { 20 }
    step({ a, b }, f(a, b):sum())
    eq(a, { 7 })
    eq(b, { 17 })
    eq(c, { 3 })
  end)

  it("straight-through rounding passes the gradient on", function()
    local f = T.custom { name = "ste", forward = function(_, a) return a:round() end,
      backward = function(_, g) return g end }
    local a = leaf { 0.4, 2.7 }
    step({ a }, (2 * f(a)):sum())
    eq(a, { 0.4 - 2, 2.7 - 2 })
  end)

  it("inputs may be returned unchanged; an unused output brings nil", function()
    local seen
    local f = T.custom { name = "pass", forward = function(_, a, b) return a, b end,
      backward = function(_, g1, g2)
        seen = { g1 ~= nil, g2 ~= nil }
        return g1, nil
      end }
    local a, b = leaf { 1 }, leaf { 4 }
    local first = f(a, b)
    step({ a, b }, first:sum())
    assert.same({ true, false }, seen)
    eq(a, { 0 })
    eq(b, { 4 })
    assert.is_nil(b.grad)
  end)

  it("saves arguments, nils and results in any order; another ctx:save replaces what one before it kept", function()
    local seen
    local f = T.custom { name = "mixed", forward = function(ctx, a, b)
      local y = a * b
      ctx:save(y, a, b, y)
      ctx:save(nil, b, y)
      local n, b2, y2, more = ctx:saved()
      assert(n == nil and more == nil and T.equal(b2, b) and T.equal(y2, y))
      ctx:save(b, nil, y, a)
      seen = setmetatable({ y }, { __mode = "v" })
      return y
    end, backward = function(ctx, g)
      local b, n, y, a = ctx:saved()
      assert(n == nil and select("#", ctx:saved()) == 4)
      eq(y, a * b)
      return g * b, g * a
    end }
    for _ = 1, 3 do
      local a, b = leaf { 1, 2 }, leaf { 3, 4 }
      f(a, b):sum():backward()
      eq(a.grad, { 3, 4 })
      eq(b.grad, { 1, 2 })
    end
    collectgarbage()
    assert.is_nil(seen[1]) -- no context keeps what its first ctx:save took
  end)

  it("a saved argument that forward edits is stale in forward", function()
    local f = T.custom { name = "edits", forward = function(ctx, a, b)
      ctx:save(b)
      b:add_(1)
      ctx:saved()
      return a * b
    end, backward = function(_, g) return g, g end }
    fails("saved tensor 1, f32[2], was modified in place afterwards", function()
      f(leaf { 1, 2 }, T.tensor { 1, 2 })
    end)
  end)

  it("a rule that returns nil gives no gradient", function()
    local f = T.custom { name = "stop", forward = function(_, a) return a * 1 end,
      backward = function() return nil end }
    local a = leaf { 1 }
    step({ a }, (f(3 * a) + 4 * a):sum())
    eq(a, { -3 })
  end)

  it("detach stops the gradient", function()
    local x, a, b = T.ones(10, 10), leaf { 1 }, leaf { 1 }
    step({ a, b }, ((x * a):detach() * b):sum())
    eq(a, { 1 })
    eq(b, { -99 })
  end)

  it("a wrong count, a value that is no tensor and a wrong shape are errors", function()
    local function run(back)
      local f = T.custom { name = "bad", forward = function(_, a, b) return a + b end, backward = back }
      local a, b = leaf { 1 }, leaf { 2 }
      f(a, b):sum():backward()
    end
    fails("custom grad rule returned wrong number of grads", run, function(_, g) return g, g, g end)
    fails("custom grad rule returned wrong number of grads", run, function(_, g) return g end)
    fails("returned non-tensor", run, function(_, g) return g, 7 end)
    fails("[3]", run, function(_, g) return g, T.ones(3) end)
  end)

  it("refuses to yield across backward, and keeps the error object", function()
    local object = { "mine" }
    local f = T.custom { name = "raise", forward = function(_, a) return a * 1 end,
      backward = function() error(object) end }
    local ok, err = pcall(function() f(leaf { 1 }):sum():backward() end)
    assert.is_false(ok)
    assert.equal(object, err)
    local g = T.custom { name = "yield", forward = function(_, a) return a * 1 end,
      backward = function() coroutine.yield() end }
    local co = coroutine.wrap(function()
      return pcall(function() g(leaf { 1 }):sum():backward() end)
    end)
    local fine, text = co()
    assert.is_false(fine)
    assert.is_string(text)
  end)

  it("override_gradient replaces a built-in rule and gives the old one back", function()
    local x = leaf { 0.5 }
    local old = T.override_gradient("sin", function(_, g) return g * 100 end)
    x:sin():sum():backward()
    T.override_gradient("sin", old)
    eq(x.grad, { 100 })
    x.grad = nil
    x:sin():sum():backward()
    eq(x.grad, { math.cos(0.5) })
  end)
end)

describe("long and broken walks", function()
  it("a chain of a million adds is walked on a stack of 256 kB", function()
    local code = "local T = require 'perilune' local x = T.ones(1):requires_grad_() "
      .. "local one, y = T.ones(1), x "
      .. "for _ = 1, 1000000 do y = y + one end y:backward() assert(x.grad:item() == 1) y = nil "
      .. "collectgarbage() collectgarbage() print('done')"
    local limit = (os.getenv("PERILUNE_SANITIZE") or "") == "" and "ulimit -s 256; " or ""
    local exe = (os.getenv("PERILUNE_BUILD") or "build") .. "/bin/perilune"
    local f = io.open(exe)
    if f then f:close() else exe = "lua5.4" end
    local p = io.popen(limit .. "exec '" .. exe .. "' -e \"" .. code .. "\" 2>&1")
    local text = p:read("a")
    assert.is_truthy(p:close(), text)
    assert.equal("done\n", text)
  end)

  it("an error in the k-th of 50 nodes leaves nothing, for every k", function()
    local bad
    local f = T.custom { name = "fragile", forward = function(ctx, a, k)
      ctx.k = k
      return a * 1.01
    end, backward = function(ctx, g)
      if ctx.k == bad then error("broken at " .. bad) end
      return g * 1.01
    end }
    local x = T.randn(8):requires_grad_()
    local function run()
      local y = x
      for k = 1, 50 do y = f(y, k) end
      y:sum():backward()
    end
    run()
    local want = x.grad:to_string()
    x.grad = nil
    live.collect()
    local blocks = T.memory().blocks
    for k = 1, 50 do
      bad = k
      fails("broken at " .. k, run)
      bad = nil
      x.grad = nil
      live.collect()
      assert.equal(blocks, T.memory().blocks, "blocks left after " .. k)
      run()
      assert.equal(want, x.grad:to_string())
      x.grad = nil
    end
  end)

  it("a short walk does not pay for a long tape", function()
    local x = T.ones(1):requires_grad_()
    local one = T.ones(1)
    local function short()
      local y = x
      for _ = 1, 10 do y = y + one end
      local start = clock()
      y:backward()
      return clock() - start
    end
    local function best()
      local b = math.huge
      for _ = 1, 300 do b = math.min(b, short()) end
      return b
    end
    local alone = best()
    local y, kept = T.ones(1):requires_grad_(), {}
    local long = require "spec.support.device".mode and 10000 or 100000
    for i = 1, long do
      y = y + one
      kept[i] = y
    end
    local crowded = best()
    assert.equal(long, #kept)
    local text = string.format("%.2f us and %.2f us", alone * 1e6, crowded * 1e6)
    assert.is_true(crowded <= 2 * alone + 2e-6, text)
  end)

  it("every subset of three outputs' gradients counts as if the others were zero", function()
    local three = T.custom { name = "three", forward = function(_, a) return a * 2, a * 3, a * 5 end,
      backward = function(_, g1, g2, g3)
        local s = T.zeros(4)
        if g1 then s = s + g1 * 2 end
        if g2 then s = s + g2 * 3 end
        if g3 then s = s + g3 * 5 end
        return s
      end }
    local function subset(ys, mask)
      local some, dys = {}, {}
      for i, y in ipairs(ys) do
        if mask & 1 << i - 1 ~= 0 then
          some[#some + 1] = y
          dys[#dys + 1] = T.ones(y:shape())
        end
      end
      return some, dys
    end
    for mask = 1, 7 do
      local x = T.randn(4)
      local key, got = watch(x)
      key:backward(subset({ three(x) }, mask))
      eq(got[x], (mask & 1) * 2 + (mask >> 1 & 1) * 3 + (mask >> 2) * 5)

      local z = T.randn(6)
      key, got = watch(z)
      key:backward(subset(z:split(2), mask))
      local m = { mask & 1, mask & 1, mask >> 1 & 1, mask >> 1 & 1, mask >> 2, mask >> 2 }
      eq(got[z], m)
    end
    local x = T.tensor { { 1, 5, 2 }, { 7, 3, 4 } }
    local key, got = watch(x)
    local values, where = x:max(2)
    key:backward(values, T.ones(2))
    eq(got[x], { 0, 1, 0, 1, 0, 0 })
    assert.is_false(where.requires_grad)
  end)

  it("gradients share no memory", function()
    local a, b = T.randn(3):requires_grad_(), T.randn(3):requires_grad_()
    local s = (a + b):sum()
    s:backward()
    a.grad:mul_(2)
    eq(a.grad, 2)
    eq(b.grad, 1)
    local x = T.randn(3, 4):requires_grad_()
    x:sum():backward()
    assert.is_true(x.grad:is_contiguous())
    eq(x.grad, 1)
  end)
end)

describe("the ambient key", function()
  it("accumulates, and refuses a second walk without retain_graph", function()
    local x = T.tensor { 3.0 }:requires_grad_()
    local y = (x * x):sum()
    y:backward(nil, { retain_graph = true })
    y:backward()
    eq(x.grad, { 12 })
    assert.is_false((pcall(function() y:backward() end)))
    assert.is_true(x.is_leaf)
    assert.is_false((x * 2).is_leaf)
  end)

  it("needs a scalar or a gradient", function()
    local x = T.randn(3):requires_grad_()
    fails("[3]", function() (x * 2):backward() end)
    fails("i64", function() T.arange(3):requires_grad_() end)
  end)

  it("no_grad records nothing; create_graph gives second order", function()
    local x = T.tensor { 2.0 }:requires_grad_()
    T.no_grad(function() assert.is_false((x * x).requires_grad) end)
    do
      local _ <close> = T.no_grad()
      assert.is_false((x * x).requires_grad)
    end
    local g = T.grad_of({ (x * x * x):sum() }, { x }, { create_graph = true })
    if type(g) == "table" then g = g[1] end
    eq(g, { 12 })
    g:sum():backward()
    eq(x.grad, { 12 })
  end)

  it("a saved tensor that was overwritten is an error", function()
    local x, w = T.randn(3):requires_grad_(), T.randn(3)
    local y = (x * w):sum()
    w:add_(1)
    assert.is_false((pcall(function() y:backward() end)))
    assert.is_false((pcall(function() x:add_(1) end)))
  end)
end)

describe("custom rules with state", function()
  local function counter()
    local Count = {}
    Count.__index = Count
    function Count:add(what, n) self[what] = (self[what] or 0) + n end
    return setmetatable({}, Count)
  end

  it("find one object in every call, forward and backward", function()
    local state = counter()
    local f = T.custom {
      name = "scaled",
      state = state,
      forward = function(ctx, x)
        ctx.state:add("calls", 1)
        ctx.k = ctx.state.calls -- of this call alone
        return x * ctx.k
      end,
      backward = function(ctx, g)
        ctx.state:add("seen", g:sum():item())
        return g * ctx.k
      end,
    }
    local x = T.tensor { 1, 2 }:requires_grad_()
    local first, second = f(x), f(x)
    local total = (first + 10 * second):sum()
    total:backward()
    eq(x.grad, { 21, 21 })
    assert.equal(2, state.calls)
    assert.equal(22.0, state.seen)
  end)

  it("are separate, may be replaced in one context, and are nil without", function()
    local seen = {}
    local function rule(state)
      return T.custom {
        state = state,
        forward = function(ctx, x)
          seen[#seen + 1] = ctx.state or "none"
          ctx.state = 7
          return x * 1
        end,
        backward = function(ctx, g)
          seen[#seen + 1] = ctx.state
          return g
        end,
      }
    end
    local a, b = {}, {}
    local x = T.tensor { 1 }:requires_grad_()
    for _, f in ipairs { rule(a), rule(b), rule(nil) } do f(x):backward() end
    assert.equal(6, #seen)
    assert.equal(a, seen[1])
    assert.equal(b, seen[3])
    assert.equal("none", seen[5])
    for i = 2, 6, 2 do assert.equal(7, seen[i]) end
    fails("custom: state must be a table, got an integer", T.custom, { state = 1, forward = rule, backward = rule })
  end)

  it("are collected with the rule, also when they hold its results", function()
    live.collect()
    local before = T.memory().live
    do
      local state = {}
      local f = T.custom { state = state, forward = function(ctx, x) return x * 2 end, backward = function(ctx, g)
        ctx.state.g = g
        return g * 2
      end }
      local x = T.randn(1000):requires_grad_()
      state.y = f(x)
      state.y:sum():backward()
      state.f = f
    end
    live.collect()
    assert.equal(before, T.memory().live)
  end)
end)
