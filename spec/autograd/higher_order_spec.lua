-- SPDX-License-Identifier: MIT
-- Gradients of gradients: nested keys, training steps of second order, the differentiable families of ops.

local T = require "perilune"
local near = require "spec.support.near"
local live = require "spec.support.live"
local oracle = require "spec.support.oracle"
local eq = near.near

local f64 = { dtype = "f64" }

local function leaf(v, o) return T.tensor(v, o):requires_grad_() end

-- Numbers of PyTorch in f64, from
--   def wave(seed, *shape): n = math.prod(shape)
--       return torch.sin(torch.arange(1, n + 1, dtype=torch.float64) * 0.7 + seed).reshape(shape)
-- and otherwise the program below, line by line; each gradient g is told by sum(g * wave(9, *g.shape)).
describe("second-order training steps equal PyTorch's", function()
  local function wave(seed, ...)
    local n = 1
    for _, s in ipairs { ... } do n = n * s end
    return ((T.arange(1, n, { dtype = "f64" })) * 0.7 + seed):sin():view(...)
  end
  local function net(x, p) return (x:matmul(p[1]) + p[2]):tanh():matmul(p[3]) end
  local function params() return { wave(1, 3, 4), wave(2, 4), wave(3, 4, 1) } end
  local function fit(p, x, y) return ((net(x, p) - y) ^ 2):mean() end

  local function judge(loss, grads, want, numbers)
    eq(loss, { want }, 1e-12)
    for i, g in ipairs(grads) do eq((g * wave(9, table.unpack(g:shape()))):sum(), { numbers[i] }, 1e-9) end
  end
  local maml = { 1.8132062508457938, { 0.005477346273480836, 1.5393546109232683, 1.4408261478915725 } }
  local wgan = { 14.07771248190359, { -40.41482024436307, -15.059025444246581, 39.87624164945386 } }

  it("MAML, with create_graph and with nested functions", function()
    local xs, ys, xq, yq = wave(5, 6, 3), wave(6, 6, 1), wave(7, 5, 3), wave(8, 5, 1)
    local function step(p, g)
      local q = {}
      for i in ipairs(p) do q[i] = p[i] - 0.1 * g[i] end
      return fit(q, xq, yq)
    end
    local p = params()
    for _, w in ipairs(p) do w:requires_grad_() end
    local loss = step(p, T.grad_of(fit(p, xs, ys), p, { create_graph = true }))
    judge(loss, T.grad_of(loss, p), table.unpack(maml))

    local value, grads = T.value_and_grad(function(q)
      return step(q, T.grad(function(r) return fit(r, xs, ys) end)(q))
    end)(params())
    judge(value, grads, table.unpack(maml))
  end)

  it("the gradient penalty of WGAN-GP, by the ambient key and by managers", function()
    local real, fake, e = wave(10, 6, 3), wave(11, 6, 3), wave(12, 6, 1) * 0.5 + 0.5
    local function total(p, d)
      return net(fake, p):mean() - net(real, p):mean() + 10 * ((d:norm(2, 2) - 1) ^ 2):mean()
    end
    local p = params()
    for _, w in ipairs(p) do w:requires_grad_() end
    local mid = (e * real + (1 - e) * fake):requires_grad_()
    local loss = total(p, T.grad_of(net(mid, p):sum(), mid, { create_graph = true }))
    judge(loss, T.grad_of(loss, p), table.unpack(wgan))

    p, mid = params(), mid:detach()
    local outer, inner = T.GradManager():attach(p), T.GradManager():attach(mid)
    local _ <close> = outer:record()
    do
      local _ <close> = inner:record()
      inner:backward(net(mid, p):sum())
    end
    loss = total(p, mid.grad)
    outer:backward(loss)
    judge(loss, { p[1].grad, p[2].grad, p[3].grad }, table.unpack(wgan))
  end)
end)

describe("gradients of gradients", function()
  -- of ops that save their result, where the first key is the ambient one and the second was made around it
  it("are those of nested functions where T.grad_of takes the first", function()
    local x = T.tensor({ 0.3, 1.2, 0.7 }, { dtype = "f64" })
    local ops = {}
    for name in ("exp tanh sigmoid sqrt softmax log_softmax reciprocal rsqrt cumsum relu prod"):gmatch "%S+" do
      ops[name] = function(v) return v[name](v, name:find "soft" and 1 or name == "cumsum" and 1 or nil) end
    end
    ops.norm = function(v) return v * v:norm() end
    ops.rule = T.custom { name = "own_exp", forward = function(ctx, v)
      local y = v:exp()
      ctx:save(y)
      return y
    end, backward = function(ctx, g) return g * ctx:saved() end }
    for name, f in pairs(ops) do
      local function energy(v) return (f(v) * v:cos()):sum() end
      local function ambient(v)
        local own = v + T.zeros_like(v):requires_grad_()
        return (T.grad_of(energy(own), own, { create_graph = true }))
      end
      local function nested(v) return (T.grad(energy)(v)) end
      for how, second in pairs {
        jacobian = function(h) return T.jacobian(h, x) end,
        forward = function(h) return T.jacobian(h, x, { mode = "forward" }) end,
        vjp = function(h) return (select(2, T.vjp(h, x))(x)) end,
        jvp = function(h) return select(2, T.jvp(h, x, x)) end,
        linearize = function(h) return select(2, T.linearize(h, x))(x) end,
        third = function(h) return T.jacobian(T.grad(function(v) return h(v):square():sum() end))(x) end,
      } do
        local want, got = second(nested), second(ambient)
        assert.is_true((want - got):abs():max():item() < 1e-12, name .. " by " .. how)
      end
    end
  end)

  it("three nested keys give the third derivative", function()
    local v = { 0.7, -1.3, 0.2 }
    local x = T.tensor(v, f64)
    local keys, got = {}, {}
    for level = 1, 3 do
      keys[level] = T.GradKey {}
      keys[level]:attach(x, function(_, g) got[level] = g end)
    end
    local y = (x * x):sin()
    for level = 3, 1, -1 do
      keys[level]:backward(y, T.ones(3, f64))
      y = got[level]
    end
    local want = {}
    for i, a in ipairs(v) do want[i] = -12 * a * math.sin(a * a) - 8 * a ^ 3 * math.cos(a * a) end
    eq(got[1], want, 1e-6)
  end)

  it("the gradient of a gradient's norm is right in a network with layer norm and softmax", function()
    T.manual_seed(75)
    local x = T.randn({ 3, 4 }, f64)
    local w1, b1 = T.randn({ 4, 5 }, f64), T.randn({ 5 }, f64)
    local g1, w2 = T.randn({ 5 }, f64), T.randn({ 5, 2 }, f64)
    local target = T.rand({ 3, 2 }, f64)
    local function loss(a)
      local h = T.layer_norm((a:matmul(w1) + b1):tanh(), g1, b1, { 5 })
      return ((h:matmul(w2):softmax(2) - target) ^ 2):sum()
    end
    local function penalty(a)
      local g = T.grad_of(loss(a), a, { create_graph = true })
      return (g * g):sum()
    end
    local leaf_x = x:clone():requires_grad_()
    local got = T.grad_of(penalty(leaf_x), leaf_x)
    local want = {}
    for e = 1, 12 do
      local function at(h)
        local v = x:clone()
        v:view(-1):set(e, v:view(-1):get(e) + h)
        return penalty(v:requires_grad_()):item()
      end
      want[e] = (at(1e-6) - at(-1e-6)) / 2e-6
    end
    eq(got, want, 1e-5)
  end)

  local cases = {
    tanh = { function(a) return a:tanh() end, { { 5 } } },
    sigmoid = { function(a) return a:sigmoid() * a:exp() end, { { 5 } } },
    division = { function(a, b) return a / (b * b + 1) end, { { 2, 3 }, { 3 } } },
    matmul = { T.matmul, { { 2, 3, 4 }, { 4, 2 } } },
    softmax = { function(a) return a:softmax(2) end, { { 3, 4 } } },
    log_softmax = { function(a) return a:log_softmax(2) end, { { 3, 4 } } },
    layer_norm = { function(a, w, b) return (T.layer_norm(a, w, b, { 4 })) end, { { 3, 4 }, { 4 }, { 4 } } },
    conv2d = { function(a, w, b) return T.conv2d(a, w, b, { padding = 1, stride = 2 }) end,
      { { 1, 2, 5, 5 }, { 3, 2, 3, 3 }, { 3 } } },
    cross_entropy = { function(a) return T.cross_entropy(a, T.tensor({ 1, 3, 2 }, { dtype = "i64" })) end,
      { { 3, 4 } } },
    indexing = { function(a)
      local rows = a[T.tensor({ 2, 1, 2 }, { dtype = "i64" })]
      return rows * rows * a[{ { 1, 3 } }]
    end, { { 3, 4 } } },
    ["in place"] = { function(a)
      local y = a * a
      y[{ 1 }]:mul_(3)
      y:mul_(y)
      return y
    end, { { 2, 3 } } },
    reductions = { function(a) return a:std(2) * a:logsumexp(2) end, { { 3, 4 } } },
    ["max pool"] = { function(a) return (T.max_pool2d(a * a, 2)) end, { { 1, 1, 4, 4 } } },
  }
  for name, case in pairs(cases) do
    it("through " .. name, function()
      T.manual_seed(11)
      local inputs = {}
      for i, shape in ipairs(case[2]) do inputs[i] = T.randn(shape, f64) end
      assert(T.gradcheck(case[1], inputs))
      assert(T.gradgradcheck(case[1], inputs))
      -- and by the ambient key with create_graph
      local xs = {}
      for i, t in ipairs(inputs) do xs[i] = t:clone():requires_grad_() end
      local y = case[1](table.unpack(xs))
      local g = T.grad_of({ (y * y):sum() }, xs, { create_graph = true })
      local s = 0
      for _, t in ipairs(g) do s = s + (t * t):sum() end
      local second = T.grad_of({ s }, xs, { allow_unused = true })
      local other = { T.grad(function(...)
        local h = { T.grad(function(...) return (case[1](...) ^ 2):sum() end)(...) }
        local sum = 0
        for _, t in ipairs(h) do sum = sum + (t * t):sum() end
        return sum
      end)(table.unpack(inputs)) }
      for i in ipairs(xs) do eq(second[i], oracle.from(other[i]).data, 1e-9) end
    end)
  end

  it("through rules written in Lua, to the third order", function()
    local cube = T.custom { name = "cube", forward = function(ctx, a)
      ctx:save(a)
      return a ^ 3
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * 3 * a ^ 2
    end }
    assert(T.gradcheck(cube, { T.randn({ 4 }, f64) }))
    assert(T.gradgradcheck(cube, { T.randn({ 4 }, f64) }))
    local third = T.grad(T.grad(T.grad(function(a) return cube(a) end)))
    eq(third(T.tensor(2.0, f64)), { 6 })
    local x = leaf({ 2.0 }, f64)
    local g = T.grad_of(cube(x), x, { create_graph = true })
    local gg = T.grad_of(g, x, { create_graph = true })
    eq(gg, { 12 })
    eq(T.grad_of(gg, x), { 6 })
  end)

  it("a gradient inside a rule", function()
    local f = T.custom { name = "inner", forward = function(ctx, a)
      ctx:save(a)
      return a:sin()
    end, backward = function(ctx, g)
      local a = ctx:saved()
      return g * T.grad(function(b) return b:sin():sum() end)(a)
    end }
    local x = leaf({ 0.3, 0.9 }, f64)
    f(x):sum():backward()
    eq(x.grad, { math.cos(0.3), math.cos(0.9) })
    assert(T.gradgradcheck(f, { T.randn({ 3 }, f64) }))
  end)

  it("of ctc_nll are those of its gradient: lengths, repetitions, blanks and what is far apart", function()
    local i64 = { dtype = "i64" }
    local function check(logits, targets, frames, lengths, o)
      o = o or {}
      local function gradient(a)
        local function loss(b)
          local each = T.ctc_nll(b, T.tensor(targets, i64), T.tensor(frames, i64), T.tensor(lengths, i64), o)
          return (each * T.arange(1, #frames, 1, f64)):sum()
        end
        return T.grad(loss)(a)
      end
      local x, v = logits:log_softmax(-1), T.randn(logits:shape(), f64)
      local h = 1e-5
      local want = (gradient(x + v * h) - gradient(x - v * h)) / (2 * h)
      local push = select(2, T.linearize(gradient, x))
      eq(push(v), want:totable(), 1e-6)
      eq(select(2, T.jvp(gradient, x, v)), want:totable(), 1e-6)
    end
    T.manual_seed(4)
    check(T.randn({ 6, 3, 4 }, f64), { { 2, 2, 3 }, { 4, 0, -7 }, { 3, 4, 2 } }, { 6, 4, 5 }, { 3, 1, 2 },
      { blank = 1 })
    check(T.randn({ 4, 2, 3 }, f64), { { 1, 2 }, { 2, 0 } }, { 4, 3 }, { 2, 0 }, { blank = 0, index_base = 0 })
    check(T.randn({ 5, 1, 3 }, f64) * 300, { { 1, 2 } }, { 5 }, { 2 }, { blank = 3 })
    check(T.randn({ 1, 2, 3 }, f64), { { 1 }, { 2 } }, { 1, 1 }, { 1, 1 }, { blank = 3 })
  end)

  it("of logaddexp are finite where one number is far above the other", function()
    local x = leaf({ 0, 1e3, -1e30, 5 }, f64)
    local y = leaf({ 800, 0, 3, 5 }, f64)
    local g = T.grad_of(T.logaddexp(x, y):sum(), x, { create_graph = true })
    eq(g, { 0, 1, 0, 0.5 })
    eq(T.grad_of(g:sum(), x), { 0, 0, 0, 0.25 })
  end)

  -- d^k/dx^k of products, sigmoids and softmaxes of any order, with zeros, by closed formulas
  it("go on where the second has a kernel of its own", function()
    local x = leaf({ 2, 0, 3, 5 }, f64)
    local function along(f, n)
      local g = f(x)
      for k = 1, n do g = T.grad_of(g, x, { create_graph = true })[k] end
      return g:item()
    end
    local function product(a) return a:prod() end
    assert.equal(0.0, along(product, 1))
    assert.equal(15.0, along(product, 2)) -- d/dx1 d/dx2
    assert.equal(5.0, along(product, 3))
    assert.equal(1.0, along(product, 4))
    local function running(a) return (a:cumprod(1) * T.tensor({ 1, 10, 100, 1000 }, f64)):sum() end
    assert.equal(10.0 + 300.0 + 15000.0, along(running, 2))
    assert.equal(100.0 + 5000.0, along(running, 3))
    assert.equal(1000.0, along(running, 4))
    local p = { 0.7, 0.3 }
    local z = leaf({ { math.log(p[1]), math.log(p[2]) } }, f64)
    local g = T.cross_entropy(z, T.tensor({ 2 }, { dtype = "i64" }))
    for _ = 1, 4 do g = T.grad_of(g, z, { create_graph = true })[{ 1, 1 }] end
    local a, b = p[1], p[2] -- the derivatives of the logistic function a, of which ab is the first
    assert.is_true(math.abs(g:item() - a * b * ((b - a) ^ 2 - 2 * a * b)) < 1e-12)
  end)

  it("leave nothing behind", function()
    local x = T.randn({ 3, 4 }, f64)
    live.flat(T, function()
      T.hessian(function(a) return (a:softmax(2) * a):sum() end)(x)
      local a = x:clone():requires_grad_()
      local g = T.grad_of(a:tanh():sum(), a, { create_graph = true })
      g:sum():backward()
    end)
  end)
end)
