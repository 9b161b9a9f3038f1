-- SPDX-License-Identifier: MIT
-- Gradients of functions over nested tables of tensors; checkpoint; gradcheck; anomaly.

local T = require "perilune"
local nn = T.nn
local near = require "spec.support.near"
local live = require "spec.support.live"
local eq, fails = near.near, near.fails

local f64 = { dtype = "f64" }
local function vec(...) return T.tensor({ ... }, f64) end

describe("grad and value_and_grad", function()
  it("give a gradient for every argument, in its structure", function()
    local w, b = vec(1, 2), vec(5)
    local value, g, other, none = T.value_and_grad(function(p, k)
      return (p.w * p.bias[1] * k.x):sum()
    end)({ w = w, bias = { b, name = "b" }, unused = vec(9) }, { x = vec(3, 4), n = 7 }, "text")
    assert.equal(55.0, value:item())
    eq(g.w, { 15, 20 })
    eq(g.bias[1], { 11 })
    assert.is_nil(g.bias.name)
    assert.is_nil(g.unused)
    eq(other.x, { 5, 10 })
    assert.is_nil(other.n)
    assert.is_nil(none)
  end)

  it("give nil for what the function does not depend on", function()
    local a, b = T.grad(function(x) return (x * x):sum() end)(vec(1, 2), vec(3))
    eq(a, { 2, 4 })
    assert.is_nil(b)
    assert.is_nil((T.grad(function() return vec(1) end)(vec(2))))
  end)

  it("nest, to the third order", function()
    local f = T.grad(T.grad(T.grad(function(x) return x:sin() end)))
    eq(f(T.tensor(0.4, f64)), { -math.cos(0.4) }, 1e-12)
  end)

  it("keep levels apart: a constant of the inner function", function()
    -- d/dx (x * d/dy (x + y)) = 1
    local f = T.grad(function(x) return x * T.grad(function(y) return x + y end)(T.tensor(1.0, f64)) end)
    eq(f(T.tensor(3.0, f64)), { 1 })
  end)

  it("are seen by the ambient key and by explicit ones", function()
    local w = vec(2, 3):requires_grad_()
    T.grad(function(x) return (x ^ 3):sum() end)(w):sum():backward()
    eq(w.grad, { 12, 18 })
    local key, got = T.GradKey {}, nil
    local x = vec(2)
    key:attach(x, function(_, g) got = g end)
    key:backward(T.grad(function(a) return (a ^ 4):sum() end)(x))
    eq(got, { 48 })
  end)

  it("work inside no_grad, and then nothing sees them", function()
    local w = vec(2):requires_grad_()
    local _ <close> = T.no_grad()
    local g = T.grad(function(x) return (x ^ 3):sum() end)(w)
    eq(g, { 12 })
    assert.is_false(g.requires_grad)
    eq(T.hessian(function(x) return (x ^ 3):sum() end)(w), { 12 })
  end)

  it("refuse what is no scalar, and leave no key", function()
    fails("must return a scalar tensor, got f64[2]", function() T.grad(function(x) return x end)(vec(1, 2)) end)
    fails("must return a scalar tensor, got number", function() T.grad(function() return 1 end)(vec(1)) end)
    fails("a function expected, got 3", function() T.grad(3) end)
    fails("mine", function() T.grad(function() error("mine") end)(vec(1)) end)
    collectgarbage()
    assert.same({}, T.grad_keys())
  end)
end)

describe("vjp, jvp and hvp", function()
  it("jvp agrees with difference quotients", function()
    local x, v = T.randn({ 10 }, f64), T.randn({ 10 }, f64)
    local fs = { T.sin, T.cos, function(a) return 2 * a + 1 end, function(a) return a:softmax(1) * a end }
    for _, f in ipairs(fs) do
      local y, jv = T.jvp(f, x, v)
      eq(y, f(x))
      eq(jv, (f(x + v * 1e-5) - f(x - v * 1e-5)) / 2e-5, 1e-3)
      eq(jv, (f(x + v * 1e-5) - f(x - v * 1e-5)) / 2e-5, 1e-8)
    end
  end)

  it("vjp pulls as often as wanted, through nested results", function()
    local a, b = vec(1, 2), vec(3, 4)
    local y, pull = T.vjp(function(p, q) return { p * q, sum = (p + q):sum(), n = 3 } end, a, b)
    eq(y[1], { 3, 8 })
    assert.equal(10.0, y.sum:item())
    assert.equal(3, y.n)
    for _ = 1, 2 do
      local ga, gb = pull { vec(1, 10), sum = T.tensor(100.0, f64) }
      eq(ga, { 103, 140 })
      eq(gb, { 101, 120 })
    end
    local ga, gb = pull { sum = T.tensor(1.0, f64) }
    eq(ga, 1)
    eq(gb, 1)
    fails("f64[3]", function() pull { vec(1, 2, 3) } end)
    assert.is_false(y[1].requires_grad)
  end)

  it("a pull is differentiable itself", function()
    local x = vec(2, 3)
    local _, pull = T.vjp(function(a) return a * a end, x)
    eq(T.grad(function(u) return (pull(u) * u):sum() end)(vec(1, 1)), { 8, 12 })
  end)

  it("jvp takes lists of arguments and tangents", function()
    local function f(a, p) return { a * p.b, p.b } end
    local y, dy = T.jvp(f, { vec(2), { b = vec(5) } }, { vec(1), { b = vec(10) } })
    eq(y[1], { 10 })
    eq(dy[1], { 25 })
    eq(dy[2], { 10 })
    local _, zero = T.jvp(function(a) return a:detach() * 0 end, vec(1), vec(1))
    eq(zero, { 0 })
    fails("tangent", function() T.jvp(T.sin, vec(1, 2), vec(1)) end)
  end)

  it("hvp is the Hessian times a vector", function()
    local x, v = T.randn({ 4 }, f64), T.randn({ 4 }, f64)
    local function f(a) return (a:sin() * a:cumsum(1)):sum() end
    local y, hv = T.hvp(f, x, v)
    eq(y, f(x))
    eq(hv, T.hessian(f)(x):matmul(v), 1e-10)
    local _, list = T.hvp(function(a, b) return (a * b * b):sum() end, { vec(2), vec(3) }, { vec(1), vec(0) })
    eq(list[1], { 0 })
    eq(list[2], { 6 })
  end)
end)

describe("jacobian and hessian", function()
  it("have the shapes of result and argument", function()
    local x = vec(1, 2, 3)
    local j = T.jacobian(function(a) return T.outer(a, a) end)(x) -- tall: by columns
    assert.same({ 3, 3, 3 }, j:shape())
    local want = {}
    for a = 1, 3 do
      for b = 1, 3 do
        for c = 1, 3 do want[#want + 1] = (a == c and b or 0) + (b == c and a or 0) end
      end
    end
    eq(j, want)
    local wide = T.jacobian(function(a) return (a * a):sum() end, T.ones({ 2, 2 }, f64))
    assert.same({ 2, 2 }, wide:shape())
    eq(wide, 2)
  end)

  it("follow nested arguments and results", function()
    local ja, jb = T.jacobian(function(a, p) return { s = a * p.w } end)(vec(2, 3), { w = vec(5, 7) })
    eq(ja.s, { 5, 0, 0, 7 })
    eq(jb.s.w, { 2, 0, 0, 3 })
  end)

  it("hessian of one and of several arguments", function()
    eq(T.hessian(function(a) return (a ^ 3):sum() end)(vec(1, 2)), { 6, 0, 0, 12 })
    local h = T.hessian(function(a, b) return (a * b * b):sum() end)(vec(2), vec(3))
    eq(h[1][1], { 0 })
    eq(h[1][2], { 6 })
    eq(h[2][1], { 6 })
    eq(h[2][2], { 4 })
  end)
end)

describe("checkpoint", function()
  local function net()
    T.manual_seed(5)
    local a, b = nn.Linear(4, 8), nn.Linear(8, 3)
    local function block(x, scale)
      return nn.F.dropout(b(nn.F.dropout(a(x):tanh(), 0.5, true)), 0.25, true) * scale.by
    end
    return block, { a.weight, a.bias, b.weight, b.bias }
  end

  it("gives the same bits as without, dropout included", function()
    local block, params = net()
    local x = T.randn(5, 4):requires_grad_()
    local scale = { by = T.tensor { 1, 2, 3 }:requires_grad_() }
    local function run(f)
      T.manual_seed(9)
      local y = f()
      T.randn(7) -- moves the generator before backward
      local after = T.get_rng_state();
      (y * y):sum():backward()
      assert.equal(after, T.get_rng_state())
      local out = { y:detach(), x.grad, scale.by.grad }
      x.grad, scale.by.grad = nil, nil
      for i, p in ipairs(params) do out[3 + i], p.grad = p.grad, nil end
      return out
    end
    local plain = run(function() return block(x, scale) end)
    local saved = run(function() return T.checkpoint(block, x, scale) end)
    assert.equal(7, #saved)
    for i = 1, 7 do near.same_bits(saved[i], plain[i]) end
  end)

  it("works under an explicit key, in sequence, and to the second order", function()
    local function f(a) return (a * a):sin() end
    local x = vec(0.5, 1.5)
    local key, got = T.GradKey {}, nil
    key:attach(x, function(_, g) got = g end)
    key:backward(T.checkpoint(f, T.checkpoint(f, x)))
    local want = T.grad(function(a) return f(f(a)):sum() end)(x)
    eq(got, want)
    assert(T.gradgradcheck(function(a) return T.checkpoint(f, a) end, { x }))
    local w = vec(0.5):requires_grad_()
    local g = T.grad_of(T.checkpoint(f, w), w, { create_graph = true })
    eq(T.grad_of(g, w), T.hessian(function(a) return f(a):sum() end)(vec(0.5)):reshape(1))
  end)

  it("keeps the arguments only", function()
    local x = T.randn(1000):requires_grad_()
    local function f(a)
      for _ = 1, 20 do a = a:sin() end
      return a
    end
    local function held(run)
      local y
      local _, bytes = live.left_by(T, function() y = run() end)
      assert.equal(1000, y:numel())
      return bytes
    end
    assert.is_true(held(function() return f(x) end) > 19 * 4000)
    assert.is_true(held(function() return T.checkpoint(f, x) end) < 3 * 4000)
  end)

  it("takes any number of arguments and parameters", function()
    local params, list = {}, {}
    for i = 1, 300 do
      params[i] = vec(i, 1):requires_grad_()
      list[i] = vec(1, i):requires_grad_()
    end
    local function f(t)
      local parts = {}
      for i = 1, 300 do parts[i] = params[i] * t[i] end
      return parts
    end
    local made = T.checkpoint(f, list)
    local sum = made[1]
    for i = 2, 300 do sum = sum + made[i] end
    sum:sum():backward()
    for i = 1, 300 do
      eq(params[i].grad, list[i])
      eq(list[i].grad, params[i])
    end
    local only = T.checkpoint(f, list)[7] -- the others get no gradient
    only:sum():backward()
    eq(params[7].grad, list[7] * 2)
    eq(params[8].grad, list[8])
  end)

  it("nests, with the same random numbers at every depth", function()
    T.manual_seed(2)
    local w = T.randn({ 6 }, f64):requires_grad_()
    local function noisy(a) return nn.F.dropout(a:tanh() * w, 0.5, true) + T.randn({ 6 }, f64) end
    local x = T.randn({ 6 }, f64):requires_grad_()
    local function run(inner, outer)
      T.manual_seed(4)
      local y = outer(function(a) return noisy(inner(noisy, inner(noisy, noisy(a)))) end, x)
      T.rand(5)
      local after = T.get_rng_state();
      (y ^ 2):sum():backward()
      assert.equal(after, T.get_rng_state())
      local got = { y:detach(), x.grad, w.grad }
      x.grad, w.grad = nil, nil
      return got
    end
    local function plain(f, ...) return f(...) end
    local function twice(f, ...) return T.checkpoint(function(...) return T.checkpoint(f, ...) end, ...) end
    local want = run(plain, plain)
    for _, got in ipairs { run(T.checkpoint, plain), run(plain, T.checkpoint), run(T.checkpoint, T.checkpoint),
      run(twice, T.checkpoint), run(twice, twice) } do
      for i = 1, 3 do near.same_bits(got[i], want[i]) end
    end
    local function smooth(a) return T.checkpoint(function(b) return T.checkpoint(T.sin, b) * b end, a) end
    assert(T.gradgradcheck(smooth, { T.randn({ 3 }, f64) }))
  end)

  it("says when an argument was overwritten", function()
    local x = vec(1, 2):requires_grad_()
    local a = x * 1
    local y = T.checkpoint(function(b) return b:exp() end, a)
    a:mul_(2)
    fails("was modified in place after the call", function() y:sum():backward() end)
  end)

  it("leaves nothing behind, also after an error", function()
    local x = T.randn(3):requires_grad_()
    local runs = 0
    local function bad(a)
      runs = runs + 1
      if runs % 2 == 0 then error("second run") end
      return a:exp() * 2
    end
    live.flat(T, function()
      fails("second run", function() T.checkpoint(bad, x):sum():backward() end)
      T.checkpoint(function(a) return a:exp() end, x):sum():backward()
      x.grad = nil
    end)
  end)
end)

describe("gradcheck", function()
  it("accepts right gradients and names wrong ones", function()
    local x = T.randn({ 3 }, f64)
    assert.is_true((T.gradcheck(function(a, b) return a:exp() * b end, { x, T.randn({ 3 }, f64) })))
    local wrong = T.custom { name = "wrong", forward = function(ctx, a)
      ctx:save(a)
      return a * a
    end, backward = function(ctx, g) return g * ctx:saved() end }
    local ok, why = T.gradcheck(wrong, { x })
    assert.is_false(ok)
    assert.is_truthy(why:find("difference quotient", 1, true))
    local half = T.custom { name = "half", forward = function(ctx, a)
      ctx:save(a)
      return a ^ 3
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * 3 * (a * a):detach()
    end }
    local drawn = T.custom { name = "drawn", forward = function(_, a) return a * 1 end, backward = function(_, g)
      return g * (1 + 1e-7 * T.rand_like(g))
    end }
    ok, why = T.gradcheck(drawn, { x })
    assert.is_false(ok)
    assert.is_truthy(why:find("another one the second time", 1, true))
    assert.is_true((T.gradcheck(drawn, { x }, { nondet_tol = 1e-6 })))
    assert.is_true((T.gradcheck(half, { x })))
    assert.is_false((T.gradgradcheck(half, { x })))
    fails("must be f64", function() T.gradcheck(T.sin, { T.randn(3) }) end)
    fails("no floating tensor", function() T.gradcheck(T.sin, {}) end)
  end)
end)

describe("anomaly", function()
  it("names the op and the line that first made NaN or Inf", function()
    local x = T.tensor { 0, 1 }:requires_grad_()
    do
      local _ <close> = T.anomaly(true)
      assert.is_true(T.anomaly())
      local s = x:sqrt()
      local line = debug.getinfo(1, "l").currentline - 1
      local y = (s * 2):sum()
      local text = fails("backward of sqrt (recorded at ", function() y:backward() end)
      assert.is_truthy(text:find("functional_spec.lua:" .. line .. ")", 1, true), text)
      local z = (x * 2):sum()
      fails("given to backward", function() z:backward(T.tensor(0 / 0)) end)
    end
    assert.is_false(T.anomaly())
    x:sqrt():sum():backward()
    x.grad = nil
  end)

  it("names who saved and who overwrote, with both lines", function()
    local _ <close> = T.anomaly(true)
    local x, w = T.randn(2):requires_grad_(), T.ones(2)
    local y = (x * w):sum()
    local saved = debug.getinfo(1, "l").currentline - 1
    w:add_(1)
    local wrote = debug.getinfo(1, "l").currentline - 1
    local text = fails("backward of mul", function() y:backward() end)
    assert.is_truthy(text:find("functional_spec.lua:" .. saved .. ")", 1, true), text)
    assert.is_truthy(text:find("by add at ", 1, true), text)
    assert.is_truthy(text:find("functional_spec.lua:" .. wrote .. " ", 1, true), text)
  end)

  it("passes healthy programs unchanged", function()
    local x = T.randn({ 4 }, f64)
    local function f(a) return (a:sigmoid() * a:cumsum(1)):sum() end
    local want = T.grad(f)(x)
    local _ <close> = T.anomaly(true)
    near.same_bits(T.grad(f)(x), want)
    fails("true or false", function() T.anomaly(3) end)
  end)
end)

describe("retain_grad", function()
  it("leaves the gradient of a computed tensor in .grad, once", function()
    local x = vec(1, 2):requires_grad_()
    local y = (x * x):retain_grad():retain_grad()
    local z = (y * 3):sum()
    z:backward(nil, { retain_graph = true })
    eq(y.grad, 3)
    eq(x.grad, { 6, 12 })
    z:backward()
    eq(y.grad, 6)
    assert.equal(x, x:retain_grad())
    fails("does not require", function() vec(1):retain_grad() end)
    live.flat(T, function()
      local a = vec(1):requires_grad_()
      local b = (a * a):retain_grad()
      b:sum():backward()
      assert.is_truthy(b.grad)
    end)
  end)
end)

describe("functional calls", function()
  it("leave nothing behind", function()
    local x, v = T.randn({ 3 }, f64), T.randn({ 3 }, f64)
    local function f(a) return (a:exp() * a):sum() end
    live.flat(T, function()
      T.grad(T.grad(function(a) return f(a) end))(T.tensor(1.0, f64))
      T.jvp(T.sin, x, v)
      T.hvp(f, x, v)
      T.hessian(f)(x)
      local _, pull = T.vjp(T.cos, x)
      pull(v)
      pcall(T.grad(function() error("x") end), x)
    end)
    assert.same({}, T.grad_keys())
  end)
end)

describe("what waits for its walks", function()
  it("is in nobody's way: a live pull of vjp leaves jitted functions jitted", function()
    local y, pull = T.vjp(function(x) return x * x end, T.tensor { 3, 4 })
    local f = T.jit(function(x) return x * 2 + 1 end)
    for _ = 1, 3 do f(T.ones(2)) end
    assert.equal(1, f.ntraces)
    assert.equal(3, f.runs)
    assert.same({ 9, 16 }, y:totable())
    assert.same({ 6, 8 }, pull(T.ones(2)):totable())
    assert.same({ 12, 16 }, pull(T.full({ 2 }, 2.0)):totable())
    -- differentiated once more, through another key
    local g = T.grad(function(x)
      local _, back = T.vjp(function(a) return a * a * a end, x)
      return back(T.ones(2)):sum()
    end)(T.tensor { 1, 2 })
    assert.same({ 6, 12 }, g:totable())
  end)

  it("refuse functions with several tensors as results, of which they would leave out some", function()
    local x, v = T.tensor { 1, 2 }, T.tensor { 1, 1 }
    local function two(a) return a * 2, a * a end
    for name, run in pairs {
      vjp = function() return T.vjp(two, x) end,
      jvp = function() return T.jvp(two, x, v) end,
      ["jvp "] = function() return T.jvp(two, { x }, { v }) end,
      linearize = function() return T.linearize(two, x) end,
      jacobian = function() return T.jacobian(two, x) end,
      ["jacobian "] = function() return T.jacobian(two, x, { mode = "forward" }) end,
    } do
      local ok, e = pcall(run)
      assert.is_false(ok, name)
      local said = "^[^\n]*functional_spec.lua:%d+: " .. name:gsub(" ", "") .. ": the function returned several"
      assert.truthy(e:find(said), e)
    end
    -- What is no floating tensor beside the result is looked at by nobody.
    local y = T.vjp(function(a) return a:max(1) end, x)
    assert.equal(2, y:item())
    assert.equal(3, (T.jvp(function(a) return a:sum(), "note" end, x, v)):item())
    assert.same({ 1, 1 }, (T.grad(function(a) return a:sum(), a end)(x)):tolist())
  end)
end)
