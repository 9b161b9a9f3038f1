-- SPDX-License-Identifier: MIT
-- Gradient keys, tapes and the gradients of built-in ops, one small program each. dy is 1 and x is random f32 unless a
-- name says otherwise.

local T = require "perilune"
local nn = T.nn
local near = require "spec.support.near"
local live = require "spec.support.live"
local keys = require "spec.support.watch"
local eq, fails = near.near, near.fails
local watch, grad_by_key = keys.watch, keys.grad

local function leaf(v, o) return T.tensor(v, o):requires_grad_() end

local function bytes()
  live.collect()
  return T.memory().live
end

-- The node of that op among those that y depends on holds on to no tensor: at most to two sizes.
local function saves_nothing(y, op)
  for _, row in ipairs(T.debug.tape(y)) do
    if row.name == op then return assert.is_true(row.saved_bytes <= 16, op .. " keeps " .. row.saved_bytes) end
  end
  error("no node of " .. op)
end

describe("explicit keys", function()
  it("the gradient of cos x is -sin x", function()
    local x = T.randn(10)
    eq(grad_by_key(function(a) return a:cos() end, x, T.ones(10)), -x:sin())
  end)

  it("an intermediate result that is used twice adds both gradients", function()
    local x = T.randn(10)
    eq(grad_by_key(function(a)
      local y = a * a
      return y * y
    end, x, T.ones(10)), 4 * x * x * x, 1e-5)
  end)

  it("an in-place product with itself has the gradient of the product", function()
    local x = T.randn(10)
    eq(grad_by_key(function(a)
      local y = a * a
      y:mul_(y)
      return y
    end, x, T.ones(10)), 4 * x * x * x, 1e-5)
  end)

  it("attaching a tracked tensor links a new node; both callbacks fire", function()
    local x = T.randn(10)
    local key, got = watch(x)
    local y, dy = x * x, nil
    key:attach(y, function(_, g) dy = g end)
    key:backward(y * y, T.ones(10))
    eq(got[x], 4 * x * x * x, 1e-5)
    eq(dy, 2 * x * x, 1e-5)
  end)

  it("a copy's callback does not fire for the original", function()
    for _, copy in ipairs { function(t) return t:clone() end, function(t) return t:detach() end } do
      for _, attached in ipairs { true, false } do
        local x, fired = T.randn(10), false
        local key = T.GradKey {}
        if attached then key:attach(x, function() end) end
        local y = x * x
        key:attach(copy(y), function() fired = true end)
        key:backward(y * y, T.ones(10))
        assert.is_false(fired)
      end
    end
  end)

  it("loops leave nothing behind", function()
    local x = T.randn(10)
    local loops = {
      function() watch(x):backward(x:cos(), T.ones(10)) end,
      function() watch(x) end,
      function()
        local key = watch(x)
        local y = x:cos()
        assert(y and key)
      end,
    }
    for i, loop in ipairs(loops) do
      collectgarbage("stop")
      for _ = 1, 100 do loop() end -- tables of the engine reach their size
      collectgarbage("restart")
      local grown = math.huge
      for _ = 1, 3 do -- what is left behind is left each time; a table grows once
        live.collect()
        local before, objects = T.memory().blocks, collectgarbage("count")
        collectgarbage("stop")
        for _ = 1, 100 do loop() end
        live.collect()
        collectgarbage("restart")
        assert.equal(before, T.memory().blocks, "loop " .. i)
        grown = math.min(grown, collectgarbage("count") - objects)
      end
      assert.is_true(grown < 4, "Lua memory grew in loop " .. i)
    end
  end)

  it("the identity passes dy through, bit for bit", function()
    local x, dy = T.randn(10), T.randn(10)
    near.same_bits(grad_by_key(function(a) return a end, x, dy), dy)
    near.same_bits(grad_by_key(function(a) return a:clone() end, x, dy), dy)
    near.same_bits(grad_by_key(function(a) return a:view(10) end, x, dy), dy)
  end)

  it("temporaries of a sum are freed; the broadcast side is summed", function()
    local x, dz = T.randn(10), T.randn(10, 10)
    local key, got = watch(x)
    local y = T.randn(10, 10)
    local twice = 2 * x
    local z = twice + y
    local held = bytes()
    twice, y = nil, nil -- luacheck: ignore
    assert.is_true(bytes() <= held - 440)
    key:backward(z, dz)
    eq(got[x], 2 * dz:sum(1), 1e-5)
  end)

  it("relu keeps its output, not its input", function()
    local x = T.tensor { 1, -1 }
    local key, got = watch(x)
    local twice = 2 * x
    local z = twice:relu()
    local held = bytes()
    twice = nil -- luacheck: ignore
    assert.is_true(bytes() < held)
    key:backward(z, T.ones(2))
    eq(got[x], { 2, 0 })
  end)

  it("a reshape keeps nothing", function()
    local x = T.randn(2, 5)
    local key, got = watch(x)
    local z = (x * 1):reshape(5, 2)
    saves_nothing(z, "reshape")
    key:backward(z, T.ones(5, 2))
    eq(got[x], 1)
    assert.same({ 2, 5 }, got[x]:shape())
  end)

  it("the gradient of a window is zero outside of it", function()
    local x = T.randn(3, 3)
    local g = grad_by_key(function(a) return a[{ { 2, -2 }, { 1, 2 } }] end, x, T.ones(1, 2))
    eq(g, { { 0, 0, 0 }, { 1, 1, 0 }, { 0, 0, 0 } })
  end)

  it("the gradient of a selection by a row mask is zero in the other rows", function()
    local x = T.randn(3, 2)
    local one, none = T.tensor { true, false, false }, T.tensor { false, false, false }
    eq(grad_by_key(function(a) return a[one] end, x, T.ones(1, 2)), { 1, 1, 0, 0, 0, 0 })
    eq(grad_by_key(function(a) return a[none] end, x, T.ones(0, 2)), 0)
  end)

  it("squeeze of expand has a gradient of ones and keeps nothing", function()
    local x = T.randn(1, 5)
    local key, got = watch(x)
    local z = x:expand(1, 5):squeeze(1)
    saves_nothing(z, "expand")
    saves_nothing(z, "squeeze")
    key:backward(z, T.ones(5))
    eq(got[x], 1)
    eq(grad_by_key(function(a) return a:unsqueeze(1):squeeze(1) end, x, T.ones(1, 5)), 1)
  end)

  it("the gradient of a broadcast input is the sum over what it was repeated along", function()
    eq(grad_by_key(function(a) return a:expand(3, 3, 10) end, T.randn(3, 3, 1), T.ones(3, 3, 10)), 10)
  end)

  it("sum and mean over rows have gradients 1 and 1/n", function()
    eq(grad_by_key(function(a) return a:sum(1) end, T.randn(3, 3), T.ones(3)), 1)
    eq(grad_by_key(function(a) return a:mean(1) end, T.randn(3, 3), T.ones(3)), 1 / 3)
  end)

  it("the dot of a vector and a matrix-vector product has the outer product for its gradient", function()
    local u, v = T.ones(2), T.ones(2)
    eq(grad_by_key(function(a) return u:matmul(a:matmul(v)) end, T.randn(2, 2)), 1)
  end)

  it("the maximum of x and x shares the gradient between both sides", function()
    eq(grad_by_key(function(a) return T.maximum(a, a) end, T.randn(10), T.ones(10)), 1)
  end)

  it("the outer key sees the inner key's backward", function()
    local x = T.randn(10)
    local outer, second = watch(x)
    local inner, first = watch(x)
    inner:backward(x:cos(), T.ones(10))
    eq(first[x], -x:sin())
    outer:backward(first[x], T.ones(10))
    eq(second[x], -x:cos())
  end)

  it("where passes the gradient to the side that was chosen", function()
    local x, y = T.full({ 100 }, 0.5), T.ones(100)
    local key, got = watch(x, y)
    key:backward(T.where(x:gt(0.7), x, y), T.ones(100))
    eq(got[x], 0)
    eq(got[y], 1)
  end)

  it("only floating tensors can be attached", function()
    for _, dtype in ipairs { "i8", "i16", "i32", "i64", "u8", "bool" } do
      local key = T.GradKey {}
      fails(dtype, function() key:attach(T.ones(2, { dtype = dtype }), function() end) end)
    end
    for _, dtype in ipairs { "f16", "bf16", "f32", "f64" } do
      local x = T.ones(2, { dtype = dtype })
      local g = grad_by_key(function(a) return a * a end, x, T.ones(2, { dtype = dtype }))
      eq(g, 2)
      assert.equal(dtype, g:dtype())
    end
  end)

  it("finalized keys and mismatched lists are errors", function()
    local x = T.randn(4)
    local key = watch(x)
    local y = x:cos()
    fails("tensor and grad size mismatch", function() key:backward({ y }, { T.ones(4), T.ones(4) }) end)
    key:backward(y, T.ones(4))
    fails("finalized", function() key:backward(y, T.ones(4)) end)
    fails("grad key finalized", function() key:attach(x, function() end) end)
  end)

  it("an unused branch that was recorded first delays nothing", function()
    local w, calls, grad = T.randn(5), 0, nil
    local key = T.GradKey {}
    key:attach(w, function(_, g)
      calls, grad = calls + 1, g
    end)
    local a = w:exp()
    local b = w * 3
    key:backward(b, T.ones(5))
    assert.equal(1, calls)
    eq(grad, 3)
    eq(a, w:exp())
  end)

  it("gather adds the gradients of a repeated index in index order", function()
    local x = T.randn(5)
    local at = T.tensor({ 2, 4, 2, 2, 1 }, { dtype = "i64" })
    local dy = T.tensor { 1e8, 3, 1, -1e8, 7 }
    local g = grad_by_key(function(a) return a:gather(at, 1) end, x, dy)
    -- f32: (1e8 + 1) - 1e8 in this order is 0
    eq(g, { 7, 0, 0, 3, 0 })
    local dense = grad_by_key(function(a) return a[at] end, x, T.ones(5))
    eq(dense, { 1, 3, 0, 1, 0 })
  end)

  it("bilinear interpolation to half the size gives every pixel a quarter", function()
    local x = T.randn(1, 1, 32, 32)
    local function half(a) return nn.F.interpolate(a, { size = { 16, 16 }, mode = "bilinear" }) end
    eq(grad_by_key(half, x, T.ones(1, 1, 16, 16)), 0.25)
  end)

  it("pixel_shuffle moves the gradient to where the pixels came from", function()
    local x = T.randn(2, 4, 3, 3)
    local g = grad_by_key(function(a)
      local p = T.pixel_shuffle(a, 2)
      return p * p
    end, x, T.ones(2, 1, 6, 6))
    eq(g, 2 * x)
  end)

  it("a rule with always=true runs without gradients", function()
    local wire = {}
    local send = T.custom { name = "send", always = true, forward = function(_, a)
      wire.value = a:detach():clone()
      return T.zeros(0)
    end, backward = function(_, g)
      assert.is_nil(g)
      return wire.grad
    end }
    local x = T.randn(6)
    local sender, got = watch(x)
    local token = send(x)
    local r = wire.value
    local receiver, received = watch(r)
    receiver:backward(r * r, T.ones(6))
    wire.grad = received[r]
    sender:backward({}, {})
    eq(got[x], 2 * x)
    assert.equal(0, token:numel())

    local idle = T.custom { name = "idle", forward = function(_, a) return a * 1 end,
      backward = function() error("must not run") end }
    local key, none = watch(x)
    local kept = idle(x)
    key:backward({}, {})
    assert.is_nil(none[x])
    assert.equal(6, kept:numel())
  end)

  it("a rule that edits its input in place gives what it says", function()
    local double = T.custom { name = "double_", forward = function(ctx, a)
      a:mul_(2)
      ctx:mark_dirty(a)
      return a
    end, backward = function(_, g) return g * 2 end }
    local x = T.randn(4)
    local before = x:clone()
    local key, got = watch(x)
    local y = x * 3
    local z = double(y)
    eq(z, 6 * before)
    eq(y, 6 * before)
    key:backward(y * y, T.ones(4))
    eq(got[x], 2 * 36 * before, 1e-5)
    assert.is_true(z:numel() == 4)
    fails("leaf", function() double(leaf { 1, 2 }) end)
  end)

  it("a rule that edits a tracked input and does not say so is told", function()
    local function rule(name, forward)
      return T.custom { name = name, forward = forward, backward = function(_, g) return g * 2 end }
    end
    local silent = rule("silent", function(_, a)
      a:mul_(2)
      return a + 1
    end)
    local itself = rule("itself", function(_, a) return a:mul_(2) end)
    local lost = rule("lost", function(ctx, a)
      ctx:mark_dirty(a:mul_(2))
      return a + 1
    end)
    local function tracked() return leaf { 1, 2 } * 1 end
    fails("silent: forward edited its argument #1, f32[2], in place, and gradients pass through it; work on a copy",
      function() silent(tracked()) end)
    fails("ctx:mark_dirty(x) and return x", function() itself(tracked()) end)
    fails("lost: forward edited its argument #1, f32[2], in place, and gradients pass through it; it must return it",
      function() lost(tracked()) end)
    -- what nobody tracks may be edited: statistics, buffers
    eq(silent(T.ones(2)), 3)
    local count = rule("count", function(_, a, n)
      n:add_(1)
      return a * 2
    end)
    local n, x = T.zeros(1), leaf { 1, 2 }
    local ok, text = pcall(function() return count(x, n):sum():backward() end)
    assert.is_false(ok) -- two tensors, one gradient
    assert.truthy(text:find("count has 2 tensor inputs", 1, true))
    assert.equal(1, n:item())
    local y = T.no_grad(function() return itself(tracked()) end)
    eq(y, T.tensor { 2, 4 })
  end)

  it("calls back nobody where nothing was computed", function()
    local x, y = T.randn(3), T.randn(3)
    local key, got = watch(x, y)
    key:backward(x * 2)
    eq(got[x], 2)
    assert.is_nil(got[y])
  end)

  it("strict names the tensor without a path", function()
    local x, y = T.randn(3), T.randn(2)
    local key = watch(x)
    fails("f32[2]", function() key:backward({ y }, { T.ones(2) }, { strict = true }) end)
    key:backward({ x * 1 }, { T.ones(3) }, { strict = true })
  end)

  it("batch norm takes a gradient for its last output only", function()
    local descs = { { shape = { 4, 3, 2 } } }
    for i = 2, 5 do descs[i] = { shape = { 3 } } end
    for which = 1, 3 do
      local has = { which == 1, which == 2, which == 3 }
      assert.has_no.errors(function()
        T.debug.backward_graph("batch_norm", descs, { true, false, false, true, true }, { has_grad = has,
          attrs = { training = true } })
      end)
    end
    local x, w, b = T.randn(4, 3, 2), T.ones(3), T.zeros(3)
    local key = watch(x, w, b)
    local _, _, var = T.batch_norm(x, nil, nil, w, b, { training = true })
    key:backward(var, T.ones(3))
  end)

  it("a rule on and off the path runs in every round", function()
    local f = T.custom { name = "sig", forward = function(ctx, a)
      local y = a:sigmoid()
      ctx:save(y)
      return y
    end, backward = function(ctx, g)
      local y = ctx:saved()
      return g * y * (1 - y)
    end }
    local x = T.randn(5)
    for _ = 1, 3 do
      local key, got = watch(x)
      local a, b = f(x), f(x * 2)
      key:backward(a, T.ones(5))
      eq(got[x], x:sigmoid() * (1 - x:sigmoid()))
      assert.equal(5, b:numel())
    end
  end)

  it("gradients are clipped by norm and by value", function()
    local w = leaf { 3, 4 }
    local up = w * T.tensor { 3, 4 }
    up:sum():backward()
    nn.utils.clip_grad_norm_({ w }, 1)
    eq(w.grad, { 0.6, 0.8 }, 1e-5)
    w.grad = nil
    up = w * T.tensor { -3, 7 }
    up:sum():backward()
    w.grad:clamp_(-2, 5)
    eq(w.grad, { -2, 5 })
  end)

  it("a scaled loss has scaled gradients", function()
    local x, y = leaf { 1, 2 }, leaf { 3, 4 }
    local loss = (2 * (x + 2 * y) + 1):sum()
    loss:backward(T.tensor(16.0))
    eq(x.grad, 32)
    eq(y.grad, 64)
    x.grad:div_(16)
    eq(x.grad, 2)
  end)

  it("eager programs keep NaN and infinities", function()
    local x = leaf { 0 }
    local q = x / x
    assert.is_true(q:item() ~= q:item())
    local y = T.tensor { 1e4 }
    eq(T.log(y:exp() + 1), { math.huge })
  end)
end)

describe("matmul", function()
  it("has right gradients for ranks 1 to 4, transposed or not", function()
    local gradcheck = require "spec.support.gradcheck"
    local random = require "spec.support.random"
    local g = random.new(22)
    local left = { { 3 }, { 2, 3 }, { 2, 2, 3 }, { 2, 1, 2, 3 } }
    local right = { { 3 }, { 3, 2 }, { 2, 3, 2 }, { 1, 2, 3, 2 } }
    for _, sa in ipairs(left) do
      for _, sb in ipairs(right) do
        for _, relayout in ipairs { false, function(t) return random.layout(T, t, "transposed") end } do
          local a = random.tensor(T, g:list(random.numel(sa)), sa)
          local b = random.tensor(T, g:list(random.numel(sb)), sb)
          local ok, why = gradcheck.check(T, T.matmul, { a, b }, { relayout = relayout or nil })
          assert.is_true(ok, string.format("%d x %d: %s", #sa, #sb, tostring(why)))
        end
      end
    end
  end)
end)

describe("backward graphs", function()
  local function flags(list)
    local out = {}
    for i, v in ipairs(list) do out[i] = (v == true or v == 1) and 1 or 0 end
    return out
  end

  it("relu saves its output and dy", function()
    local g = T.debug.backward_graph("relu", { { shape = { 2 } } }, { true }, { has_grad = { true } })
    assert.same({ 0, 1, 1 }, flags(g.save))
  end)

  it("mul saves both inputs and dy", function()
    local g = T.debug.backward_graph("mul", { { shape = { 42 } }, { shape = { 42 } } }, { true, true },
      { has_grad = { true } })
    assert.same({ 1, 1, 0, 1 }, flags(g.save))
    assert.same({ 1, 1 }, flags(g.input_has_grad))
    local a, b, dc = T.randn(42), T.randn(42), T.randn(42)
    local key, got = watch(a, b)
    key:backward(a * b, dc)
    near.same_bits(got[a], dc * b)
    near.same_bits(got[b], dc * a)
  end)

  it("a broadcast add saves shapes, not inputs", function()
    local descs, both = { { shape = { 42 } }, { shape = { 5, 42 } } }, { true, true }
    local g = T.debug.backward_graph("add", descs, both, { has_grad = { true }, polymorphic = true })
    assert.same({ 0, 0, 0, 1 }, flags(g.save))
    assert.equal(2, g.precomp_outputs)
    assert.is_string(g.precomp)
    local fixed = T.debug.backward_graph("add", descs, both, { has_grad = { true }, polymorphic = false })
    assert.same({ 0, 0, 0, 1 }, flags(fixed.save))
    local a, b, dy = T.randn(42), T.randn(5, 42), T.randn(5, 42)
    local both_ways = T.debug.backward_graph("add", descs, both,
      { has_grad = { true }, polymorphic = true, values = { a, b, a + b, dy } })
    near.same_bits(both_ways.split[1], both_ways.unsplit[1])
    near.same_bits(both_ways.split[2], both_ways.unsplit[2])
    local key, got = watch(a, b)
    key:backward(a + b, dy)
    eq(got[a], dy:sum(1), 1e-5)
    near.same_bits(got[b], dy)
  end)
end)

describe("in place", function()
  it("a write through a view of a tracked base has the gradients of the program without it", function()
    local x, c = T.randn(4, 3), T.randn(4, 3)
    local views = {
      function(b) return b[{ { 2, 3 } }] end,
      function(b) return b:select(2, 1) end,
      function(b) return b:t()[{ { 1, 2 }, { 2, 4 } }] end,
      function(b) return b:view(12)[{ { 3, 7 } }] end,
    }
    for i, view in ipairs(views) do
      local mask = T.zeros(4, 3)
      view(mask):fill_(1)
      local want = grad_by_key(function(a)
        local b = a * a
        return (b + mask * b) * c
      end, x)
      local got = grad_by_key(function(a)
        local b = a * a
        view(b):mul_(2)
        return b * c
      end, x)
      assert.has_no.errors(function() eq(got, want, 1e-5) end, "view " .. i)
    end
  end)

  it("an overwritten operand is an error where it was saved, exact where it was not", function()
    local ran = 0
    for _, op in ipairs(T.core.ops()) do
      local change = T[op.name .. "_"]
      if op.flags.inplace and op.nin >= 1 and op.nin <= 3 and change then
        local x = T.full({ 3 }, 0.25):requires_grad_()
        local w = T.full({ 3 }, 0.5)
        local saved, unsaved = (x * w):sum(), (x + w):sum()
        local others = {}
        for i = 2, op.nin do others[i - 1] = T.full({ 3 }, 0.5) end
        if pcall(change, w, table.unpack(others)) then
          ran = ran + 1
          unsaved:backward()
          eq(x.grad, 1)
          local text = fails("mul", function() saved:backward() end)
          assert.is_truthy(text:find("f32[3]", 1, true), op.name .. ": " .. text)
          assert.is_truthy(text:find("version 1, saved at 0", 1, true), op.name .. ": " .. text)
        end
      end
    end
    assert.is_true(ran >= 70, ran .. " ops could be called")
  end)
end)
