-- SPDX-License-Identifier: MIT
-- Gradient managers: what they see of each other, what they keep, and misuse.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local eq, fails = near.near, near.fails

describe("GradManager", function()
  it("an unused inner manager changes nothing", function()
    local f = T.custom { name = "twice", forward = function(_, a) return a * 10 end,
      backward = function(_, g) return g * 20 end }
    local a = T.tensor { 1, 2 }:requires_grad_()
    local opt = T.optim.SGD({ a }, { lr = 1 })
    local outer, inner = T.GradManager():attach(a), T.GradManager():attach(a)
    local _ <close> = outer:record()
    do
      local _ <close> = inner:record()
      outer:backward(f(a):sum())
    end
    opt:step()
    eq(a, { -19, -18 })
    assert.is_false(inner:recording())
  end)

  it("record(f) records what f computes and returns its results", function()
    local w = T.tensor { 1, 2 }
    local gm = T.GradManager():attach(w)
    local y, again = gm:record(function(x)
      local y = (w * x):sum()
      gm:backward(y)
      return y:item(), gm:recording()
    end, 3)
    assert.same({ 9, false }, { y, again })
    eq(w.grad, { 3, 3 })
    fails("record: a function expected", gm.record, gm, 1)
    fails("boom", gm.record, gm, function() error("boom") end)
    assert.is_false(gm:recording())
  end)

  it("a manager that was released records again", function()
    local x = T.tensor { { 1, 3, 5 } }
    local w, b = T.tensor { { 2 }, { 4 }, { 6 } }, T.tensor { -1 }
    local gm = T.GradManager():attach { w, b }
    for _ = 1, 2 do
      local scope = gm:record()
      gm:backward(x:matmul(w) + b)
      assert.is_truthy(scope)
      gm:release()
      eq(w.grad, { 1, 3, 5 })
      eq(b.grad, { 1 })
      w.grad, b.grad = nil, nil
    end
    do
      local _ <close> = gm:record()
      gm:release()
      assert.is_false(gm:recording())
    end
    eq(w, { 2, 4, 6 })
  end)

  it("a tensor that is attached while a manager records gets a gradient", function()
    local a = T.tensor { 2 }
    local gm = T.GradManager():attach(a)
    local _ <close> = gm:record()
    local b = 3 * a
    gm:attach(b)
    gm:backward(b + 1)
    eq(b.grad, { 1 })
    eq(a.grad, { 3 })
  end)

  it("runs the hooks of .grad once it has added to it", function()
    local w, seen = T.tensor { 1, 2 }:requires_grad_(), {}
    w:register_post_accumulate_grad_hook(function(t) seen[#seen + 1] = t.grad:totable() end)
    local gm = T.GradManager():attach(w)
    for _ = 1, 2 do gm:record(function() gm:backward((w * w):sum()) end) end
    assert.same({ { 2, 4 }, { 4, 8 } }, seen)
  end)

  it("a callback is given the same object; a temporary is freed afterwards", function()
    local w = T.tensor { 2 }
    local gm = T.GradManager():attach(w)
    local function round(i)
      local x, calls = T.tensor { i }, 0
      local _ <close> = gm:record()
      gm:attach(x, function(t, g)
        assert.equal(x, t)
        eq(g, { 2 })
        calls = calls + 1
      end)
      gm:backward(x * w)
      assert.equal(1, calls)
      w.grad = nil
      return setmetatable({ x }, { __mode = "v" })
    end
    round(0)
    local blocks = live.blocks(T)
    for i = 1, 3 do
      local weak = round(i)
      assert.equal(blocks, (live.blocks(T)))
      assert.is_nil(weak[1])
      assert.equal(1, #gm:attached())
    end
  end)

  it("attaching twice lists once and runs both callbacks", function()
    local w1, w2, order = T.tensor { 1 }, T.tensor { 2 }, {}
    local gm = T.GradManager()
    gm:attach(w1, function() order[#order + 1] = "first" end)
    gm:attach(w2)
    gm:attach(w1, function() order[#order + 1] = "second" end)
    local list = gm:attached()
    assert.equal(2, #list)
    assert.equal(w1, list[1])
    assert.equal(w2, list[2])
    local _ <close> = gm:record()
    gm:backward(w1 * w2)
    assert.same({ "first", "second" }, order)
    eq(w1.grad, { 2 })
    eq(w2.grad, { 1 })
  end)

  it("a result that is not in the loss gives no gradient", function()
    local x, w, w2 = T.tensor { 3 }, T.tensor { 2 }, T.tensor { 5 }
    local gm = T.GradManager():attach { w, w2 }
    local _ <close> = gm:record()
    local o = x * w
    local unused = w2 * o
    gm:backward(o)
    eq(w.grad, { 3 })
    assert.is_nil(w2.grad)
    assert.equal(1, unused:numel())
  end)

  it("a live op off the path gets nothing", function()
    local x, k = T.randn(2, 1, 5, 5), T.randn(3, 1, 3, 3)
    local scale, shift = T.ones(3), T.zeros(3)
    local gm = T.GradManager():attach { k, scale, shift }
    local _ <close> = gm:record()
    local o = T.conv2d(x, k)
    local y, mean, var = T.batch_norm(o, nil, nil, scale, shift, { training = true })
    gm:backward(o + 1)
    assert.same(k:shape(), k.grad:shape())
    assert.is_nil(scale.grad)
    assert.is_nil(shift.grad)
    assert.is_truthy(y and mean and var)
  end)

  it("the outer manager sees the inner one's backward, built-in and custom", function()
    local csin, ccos
    csin = T.custom { name = "csin", forward = function(ctx, a)
      ctx:save(a)
      return a:sin()
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * ccos(a)
    end }
    ccos = T.custom { name = "ccos", forward = function(ctx, a)
      ctx:save(a)
      return a:cos()
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * -csin(a)
    end }
    for _, cos in ipairs { T.cos, ccos } do
      for _, requires in ipairs { false, true } do
        local x = T.randn(8)
        if requires then x:requires_grad_() end
        local v = x:detach()
        local gm, gm2 = T.GradManager():attach(x), T.GradManager():attach(x)
        do
          local _ <close> = gm:record()
          do
            local _ <close> = gm2:record()
            gm2:backward(cos(x))
            collectgarbage() -- rules called by rules are kept by what they made
            eq(x.grad, -v:sin())
          end
          gm:backward(x.grad)
        end
        eq(x.grad, -v:sin() - v:cos(), 1e-5)
      end
    end
  end)

  it("members of a group do not see each other", function()
    local x = T.randn(8)
    local gm, gm2 = T.GradManager():attach(x), T.GradManager():attach(x)
    T.GradManager.group { gm, gm2 }
    do
      local _ <close> = gm:record()
      local _ <close> = gm2:record()
      local y = x:cos()
      gm:backward(y)
      gm2:backward(y)
      eq(x.grad, -2 * x:sin(), 1e-5)
    end
    x.grad = nil
    do
      local _ <close> = gm:record()
      local _ <close> = gm2:record()
      gm2:backward(x:cos())
      gm:backward(x.grad)
      eq(x.grad, -x:sin(), 1e-5)
    end
  end)

  it("a backward of the outer manager that comes first sees nothing of the inner one", function()
    local x = T.randn(8)
    local outer, inner = T.GradManager():attach(x), T.GradManager():attach(x)
    local _ <close> = outer:record()
    local _ <close> = inner:record()
    outer:backward(x:cos())
    inner:backward(x.grad)
    eq(x.grad, -x:sin(), 1e-5)
  end)

  it("keeps the rules that a recorded .grad needs, and lets them go", function()
    local f = T.custom { name = "cube", forward = function(ctx, a)
      ctx:save(a)
      return a ^ 3
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * 3 * a ^ 2
    end }
    local function nested()
      local x = T.tensor({ 1.1 }, { dtype = "f64" })
      local gm, gm2 = T.GradManager():attach(x), T.GradManager():attach(x)
      local _ <close> = gm:record()
      do
        local _ <close> = gm2:record()
        gm2:backward(f(f(x)))
      end
      live.collect()
      local first = x.grad
      eq(first, { 9 * 1.1 ^ 8 }, 1e-12)
      x.grad = nil
      gm:backward(first)
      eq(x.grad, { 72 * 1.1 ^ 7 }, 1e-12)
    end
    live.flat(T, nested)
    local function keys()
      local x, got = T.tensor({ 1.1 }, { dtype = "f64" }), {}
      local outer, inner = T.GradKey {}, T.GradKey {}
      outer:attach(x, function(_, g) got[2] = g end)
      inner:attach(x, function(_, g) got[1] = g end)
      inner:backward(f(f(x)))
      live.collect()
      outer:backward(got[1])
      eq(got[2], { 72 * 1.1 ^ 7 }, 1e-12)
    end
    live.flat(T, keys)
  end)

  it("keeps the ambient key from recording, unless told otherwise", function()
    local w = T.tensor { 2 }:requires_grad_()
    local gm, both = T.GradManager():attach(w), T.GradManager { ambient = true }:attach(w)
    do
      local _ <close> = gm:record()
      local y = w * 3
      assert.is_false(y.requires_grad)
      gm:backward(y * w)
      assert.is_false(w.grad.requires_grad)
      eq(w.grad, { 12 })
    end
    assert.is_true((w * 3).requires_grad)
    local _ <close> = both:record()
    assert.is_true((w * 3).requires_grad)
  end)

  it("trains a network", function()
    T.manual_seed(1)
    local net = T.nn.Sequential(T.nn.Linear(2, 16), T.nn.Tanh(), T.nn.Linear(16, 1))
    local x = T.randn(64, 2)
    local y = x:select(2, 1):unsqueeze(2) * x:select(2, 2):unsqueeze(2)
    local gm = T.GradManager():attach(net:parameters())
    local opt = T.optim.Adam(net:parameters(), { lr = 0.02 })
    local first, last
    for _ = 1, 150 do
      local _ <close> = gm:record()
      local loss = T.nn.F.mse_loss(net(x), y)
      opt:zero_grad()
      gm:backward(loss)
      opt:step()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < 0.2 * first, first .. " to " .. last)
  end)

  it("says what was expected", function()
    local x = T.randn(2)
    local gm = T.GradManager():attach(x)
    fails("i64", function() gm:attach(T.arange(3)) end)
    fails("a tensor or a list of tensors expected", function() gm:attach(7) end)
    fails("callback must be a function", function() gm:attach(x, 7) end)
    fails("nothing is recorded", function() gm:backward(x) end)
    fails("entry 1 must be a manager", function() T.GradManager.group { 3 } end)
    fails("did you mean 'ambient'", function() T.GradManager { ambiant = true } end)
    local _ <close> = gm:record()
    fails("records already", function() gm:record() end)
    fails("tensor and grad size mismatch", function() gm:backward({ x * 1 }, { T.ones(2), T.ones(2) }) end)
    assert.is_true(gm:recording())
    gm:backward(x * 1)
    fails("nothing is recorded", function() gm:backward(x) end)
  end)

  it("an error in a callback ends the recording and leaves nothing", function()
    local x = T.randn(2)
    local gm = T.GradManager():attach(x, function() error("mine") end)
    local function run()
      local _ <close> = gm:record()
      gm:backward(x:exp() * 2)
    end
    local function round() fails("mine", run) end
    live.flat(T, round)
    assert.is_false(gm:recording())
    assert.same({}, T.grad_keys())
  end)
end)
