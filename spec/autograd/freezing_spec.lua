-- SPDX-License-Identifier: MIT
-- Leaves that require no gradient for a while, as in a GAN: what was registered on them, what they hold
-- and what was computed from them is as in PyTorch when they require one again.

local T = require "perilune"
local nn = T.nn

-- Each turns a tensor's requires_grad off and on again.
local ways = {
  requires_grad_ = function(w, on) w:requires_grad_(on) end,
  ["requires_grad ="] = function(w, on) w.requires_grad = on end,
  module = function(w, on)
    local m = nn.Module()
    m.w = w
    if on then m:requires_grad_() else m:freeze() end
  end,
}

describe("a leaf that requires a gradient again", function()
  for name, set in pairs(ways) do
    it("has its hooks, " .. name, function()
      local w, log = nn.Parameter(T.tensor { 1, 2, 3 }), {}
      local removed = w:register_hook(function() log[#log + 1] = "removed" end)
      w:register_hook(function(g)
        log[#log + 1] = "hook"
        return g * 10
      end)
      w:register_post_accumulate_grad_hook(function(p) log[#log + 1] = "after " .. p.grad:sum():item() end)
      local key = T.GradKey { name = "freezing" }
      key:attach(w, function() log[#log + 1] = "callback" end)
      set(w, false)
      assert.is_false((w:detach() * w).requires_grad)
      removed:remove()
      set(w, true)
      w:sum():backward()
      assert.same({ 10, 10, 10 }, w.grad:totable())
      key:backward((w * w):sum())
      assert.same({ "hook", "after 30.0", "callback" }, log)
    end)

    it("gets gradients of what was computed before, " .. name, function()
      local w, v = nn.Parameter(T.tensor { 1, 2 }), nn.Parameter(T.ones(2))
      local y = (w * w * v):sum()
      set(w, false)
      y:backward(nil, { retain_graph = true })
      assert.is_nil(w.grad)
      set(w, true)
      y:backward()
      assert.same({ 2, 4 }, w.grad:totable())
      assert.same({ 2, 8 }, v.grad:totable())
      set(w, false);
      (w * v):sum():backward()
      set(w, true)
      assert.same({ 2, 4 }, w.grad:totable())
      assert.is_true(w.is_leaf)
    end)

    it("counts in jitted functions as outside, " .. name, function()
      local function play(wrap)
        local w, v, x, seen = nn.Parameter(T.tensor { 1, 2 }), nn.Parameter(T.ones(2)), T.tensor { 3, 4 }, {}
        w:register_hook(function(g) return g * 2 end)
        local step = wrap(function(a)
          local l = (w * a * v):sum()
          l:backward()
          return l:detach()
        end)
        local value = wrap(function(a) return (w * a + v):sum() end)
        for i = 1, 9 do
          if i % 3 ~= 2 then set(w, i % 3 == 1) end
          step(x * i)
          value(x):backward()
          seen[i] = { w.grad:totable(), v.grad:totable() }
          if i == 4 then w.grad = nil end
        end
        return seen
      end
      assert.same(play(function(f) return f end), play(T.jit))
    end)
  end

  it("may rest in a hook of the backward that leads to it", function()
    local w = nn.Parameter(T.tensor { 1, 2 })
    local y = w * 2
    y:register_hook(function() w:requires_grad_(false) end)
    y:sum():backward()
    assert.is_nil(w.grad)
    w:requires_grad_(true);
    (w * 3):sum():backward()
    assert.same({ 3, 3 }, w.grad:totable())
  end)

  it("rests inside of a jitted function as outside", function()
    local bodies = {
      before = function(w, v, x)
        w:requires_grad_(false)
        local y = (w * x * v):sum()
        w:requires_grad_(true)
        return y
      end,
      between = function(w, v, x)
        local a = (w * x):sum()
        w:requires_grad_(false)
        local y = (w * x * v):sum()
        w:requires_grad_(true)
        return y + a + (w * w):sum()
      end,
      ["in a step"] = function(w, v, x)
        local a = (w * v):sum()
        w:requires_grad_(false);
        ((w * x * v):sum() + a):backward()
        w:requires_grad_(true)
        local l = (w * x):square():sum()
        l:backward()
        return (l:detach() * v):sum()
      end,
      ["for good"] = function(w, v, x)
        local a = (w * x):sum()
        w:requires_grad_(false)
        return (w * v):sum() + a
      end,
      ["by turns"] = function(w, v, x)
        w:requires_grad_(false)
        return (v * x):sum()
      end,
      ["awake for a while"] = function(w, v, x)
        local a = (w * x * v):sum()
        w:requires_grad_(true)
        a = a + (w * x):sum() * v:sum()
        w:requires_grad_(false)
        return a
      end,
    }
    for name, body in pairs(bodies) do
      local function play(wrap)
        local w, v, seen = nn.Parameter(T.tensor { 1, 2 }), nn.Parameter(T.tensor { 3, 4 }), {}
        local f = wrap(function(x) return body(w, v, x) end)
        for i = 1, 5 do
          w:requires_grad_(name ~= "awake for a while" and not (name == "by turns" and i < 4))
          local y = f(T.tensor { 5, i })
          y:backward()
          seen[i] = { y:item(), w.requires_grad, w.grad and w.grad:totable() or "none", v.grad:totable() }
        end
        return seen
      end
      assert.same(play(function(f) return f end), play(function(f) return T.jit(f, { max_traces = 20 }) end), name)
    end
  end)

  it("is as before where a function did not come to its end", function()
    local w, v = nn.Parameter(T.tensor { 1, 2 }), nn.Parameter(T.tensor { 3, 4 })
    local function f(x)
      local a = (w * x):sum()
      w:requires_grad_(false)
      local y = (w * x * v):sin():sum() * 2 + a
      local big = y:item() > 1e9
      w:requires_grad_(not big)
      return y
    end
    local function grads(g)
      w.grad, v.grad = nil, nil
      g(T.tensor { 5, 6 }):backward()
      assert.is_true(w.requires_grad)
      return { w.grad:totable(), v.grad:totable() }
    end
    local want = grads(f)
    assert.same(want, grads(T.jit(f, { fallback = true }))) -- the trace ends where numbers are looked at
    assert.same(want, grads(function(x) return T.checkpoint(f, x) end)) -- the second run ends where all is there
    assert.is_false(pcall(T.jit(f), T.tensor { 5, 6 }))
    assert.is_true(w.requires_grad)
  end)

  it("has no part in gradients of jitted functions while it rests, and takes numbers", function()
    for _, what in ipairs { "a hook", ".grad", "uses" } do
      local w, x = T.randn(3, 4):requires_grad_(), T.randn(2, 3):requires_grad_()
      local uses = w * 1
      if what == "a hook" then w:register_hook(function() end) end
      if what == ".grad" then uses:sum():backward() end
      w:requires_grad_(false)
      for _, wrap in ipairs { function(f) return f end, T.jit } do
        local y = wrap(function(a) return a:mm(w):sum() end)(x)
        T.no_grad(function() x:mul_(2) end) -- which only the gradient of w would read
        x.grad = nil
        y:backward()
        assert.is_true(x.grad:allclose(w:sum(2):expand(2, 3), { atol = 1e-5 }), what)
      end
      w:set(1, 2, 5)
      assert.equal(5, w[1][2]:item())
      w:requires_grad_()
      assert.has_error(function() w:set(1, 2, 6) end)
    end
  end)

  it("gets what a jitted function computed before it rests for good", function()
    local bodies = {
      good = function(w, v, x)
        local y = (w * v * x):sum()
        w:requires_grad_(false)
        return y
      end,
      ["for a while"] = function(w, v, x)
        w:requires_grad_(true)
        local y = (w * v * x):sum()
        w:requires_grad_(false)
        return y
      end,
    }
    for name, body in pairs(bodies) do
      local function play(wrap)
        local w, v, seen = nn.Parameter(T.tensor { 1, 2 }), nn.Parameter(T.tensor { 3, 4 }), {}
        local f = wrap(function(x) return body(w, v, x) end)
        for i = 1, 3 do
          w:requires_grad_(name == "good")
          local y = f(T.tensor { i, 1 })
          seen[i] = { w.requires_grad }
          w:requires_grad_(true)
          y:backward()
          seen[i][2], seen[i][3] = w.grad:totable(), v.grad:totable()
        end
        return seen
      end
      assert.same(play(function(f) return f end), play(T.jit), name)
    end
  end)

  it("is another one in each call where the jitted function makes it", function()
    for name, make in pairs {
      option = function() return T.tensor({ 1, 2 }, { requires_grad = true }) end,
      parameter = function() return nn.Parameter(T.tensor { 1, 2 }) end,
      ["off and on"] = function() return T.tensor { 1, 2 }:requires_grad_():requires_grad_(false):requires_grad_() end,
    } do
      local f = T.jit(function(x)
        local w = make()
        return T.grad_of((w * w * x):sum(), w)
      end)
      for i = 1, 5 do assert.same({ 2 * i, 4 }, f(T.tensor { i, 1 }):totable()) end
      assert.equal(1, f.ntraces, name)
    end
  end)

  it("is detached in place with its .grad and its hooks", function()
    local w, n = nn.Parameter(T.tensor { 1, 2 }), 0
    w:register_hook(function() n = n + 1 end)
    local y = (w * w):sum()
    y:backward(nil, { retain_graph = true })
    w:detach_()
    assert.is_false(w.requires_grad)
    y:backward()
    assert.same({ 2, 4 }, w.grad:totable())
    w:requires_grad_();
    (w * 3):sum():backward()
    assert.same({ 5, 7 }, w.grad:totable())
    assert.equal(3, n)
  end)

  it("takes true, false or nothing", function()
    local w = T.ones(2)
    for _, wrong in ipairs { 0, "false", {} } do assert.has_error(function() w:requires_grad_(wrong) end) end
    assert.has_error(function() w:requires_grad_(true, false) end)
    assert.is_false(w.requires_grad)
    assert.is_true(w:requires_grad_(nil).requires_grad)
  end)
end)

describe("retain_grad", function()
  it("keeps what all hooks made of the gradient, whenever they came", function()
    local x = T.tensor { 1, 2 }:requires_grad_()
    local y = (x * 2):retain_grad()
    y:register_hook(function(g) return g * 100 end)
    y:sum():backward()
    assert.same({ 100, 100 }, y.grad:totable())
    assert.same({ 200, 200 }, x.grad:totable())
  end)
end)

describe("create_graph inside of no_grad", function()
  local function second(f)
    local x = T.tensor({ 1, 2 }, { dtype = "f64" }):requires_grad_()
    local y, g = (x * x * x):sum(), nil
    T.no_grad(function()
      g = f(y, x)
      assert.is_false((x * 2).requires_grad)
    end)
    return T.grad_of(g:sum(), x):totable()
  end

  it("records, as in PyTorch", function()
    assert.same({ 6, 12 }, second(function(y, x) return T.grad_of(y, x, { create_graph = true }) end))
    assert.same({ 6, 12 }, second(function(y, x)
      y:backward(nil, { create_graph = true })
      return x.grad
    end))
  end)

  it("counts for hooks, too, whose results are part of the gradient", function()
    local x = T.tensor { 1, 2 }:requires_grad_()
    local recorded
    x:register_hook(function() recorded = (x * 2).requires_grad end)
    local y = (x * x):sum()
    T.no_grad(function() T.grad_of(y, x, { create_graph = true }) end)
    assert.is_true(recorded)
  end)

  it("counts for gradients that somebody else holds", function()
    local held
    local square = T.custom { name = "square", forward = function(ctx, a)
      ctx:save(a)
      return a * a
    end, backward = function(ctx, g)
      held = g * ctx:saved() * 2
      return held
    end }
    local x = T.tensor({ 1, 2 }, { dtype = "f64" }):requires_grad_()
    local y, g, twice = square(x):sum(), nil, nil
    T.no_grad(function() g, twice = table.unpack(T.grad_of(y, { x, x }, { create_graph = true })) end)
    assert.same({ 2, 2 }, T.grad_of(g:sum(), x, { retain_graph = true }):totable())
    assert.same({ 2, 2 }, T.grad_of(twice:sum(), x):totable())
    assert.same({ 2, 4 }, held:detach():totable())
  end)
end)
