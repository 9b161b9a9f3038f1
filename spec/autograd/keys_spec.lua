-- SPDX-License-Identifier: MIT
-- Gradient keys, tapes and rules: the acceptance scenarios of the autograd design, by their row numbers.
-- dy is 1 and x is random f32 unless a row says otherwise.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local keys = require "spec.support.watch"
local eq, fails = near.near, near.fails
local watch, grad_by_key = keys.watch, keys.grad

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
  it("cos", function()
    local x = T.randn(10)
    eq(grad_by_key(function(a) return a:cos() end, x, T.ones(10)), -x:sin())
  end)

  it("x*x squared", function()
    local x = T.randn(10)
    eq(grad_by_key(function(a)
      local y = a * a
      return y * y
    end, x, T.ones(10)), 4 * x * x * x, 1e-5)
  end)

  it("in place y:mul_(y)", function()
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
      live.collect()
      local before, objects = T.memory().blocks, collectgarbage("count")
      collectgarbage("stop")
      for _ = 1, 100 do loop() end
      live.collect()
      collectgarbage("restart")
      assert.equal(before, T.memory().blocks, "loop " .. i)
      assert.is_true(collectgarbage("count") - objects < 4, "Lua memory grew in loop " .. i)
    end
  end)

  it("identity passes dy through exactly", function()
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

  it("a window's gradient lands in the window", function()
    local x = T.randn(3, 3)
    local g = grad_by_key(function(a) return a[{ { 2, -2 }, { 1, 2 } }] end, x, T.ones(1, 2))
    eq(g, { { 0, 0, 0 }, { 1, 1, 0 }, { 0, 0, 0 } })
  end)

  it("a row mask of one and of none", function()
    local x = T.randn(3, 2)
    local one, none = T.tensor { true, false, false }, T.tensor { false, false, false }
    eq(grad_by_key(function(a) return a[one] end, x, T.ones(1, 2)), { 1, 1, 0, 0, 0, 0 })
    eq(grad_by_key(function(a) return a[none] end, x, T.ones(0, 2)), 0)
  end)

  it("squeeze of expand", function()
    local x = T.randn(1, 5)
    local key, got = watch(x)
    local z = x:expand(1, 5):squeeze(1)
    saves_nothing(z, "expand")
    saves_nothing(z, "squeeze")
    key:backward(z, T.ones(5))
    eq(got[x], 1)
    eq(grad_by_key(function(a) return a:unsqueeze(1):squeeze(1) end, x, T.ones(1, 5)), 1)
  end)

  it("broadcasting sums back", function()
    eq(grad_by_key(function(a) return a:expand(3, 3, 10) end, T.randn(3, 3, 1), T.ones(3, 3, 10)), 10)
  end)

  it("sum and mean over rows", function()
    eq(grad_by_key(function(a) return a:sum(1) end, T.randn(3, 3), T.ones(3)), 1)
    eq(grad_by_key(function(a) return a:mean(1) end, T.randn(3, 3), T.ones(3)), 1 / 3)
  end)

  it("dot of a vector and a matrix-vector product", function()
    local u, v = T.ones(2), T.ones(2)
    eq(grad_by_key(function(a) return u:matmul(a:matmul(v)) end, T.randn(2, 2)), 1)
  end)

  it("the maximum of x and x", function()
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

  it("where", function()
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

  it("finalized keys and mismatched lists", function()
    local x = T.randn(4)
    local key = watch(x)
    local y = x:cos()
    fails("tensor and grad size mismatch", function() key:backward({ y }, { T.ones(4), T.ones(4) }) end)
    key:backward(y, T.ones(4))
    fails("finalized", function() key:backward(y, T.ones(4)) end)
    fails("grad key finalized", function() key:attach(x, function() end) end)
  end)

  it("an unused branch recorded first delays nothing", function()
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
end)

describe("matmul", function()
  it("gradients for ranks 1 to 4, transposed or not", function()
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
