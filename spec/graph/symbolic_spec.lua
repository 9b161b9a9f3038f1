-- SPDX-License-Identifier: MIT
-- T.graph: symbolic tensors, the gradient pass, running, texts. The judge is the same program run eagerly.

local T = require "perilune"
local nn = T.nn
local live = require "spec.support.live"

local HERE = debug.getinfo(1, "S").short_src:gsub("%p", "%%%0")

local function refused(words, f, ...)
  local args = table.pack(...)
  local ok, err = pcall(function() return f(table.unpack(args, 1, args.n)) end)
  assert.is_false(ok, "accepted")
  assert.is_truthy(tostring(err):find("^" .. HERE .. ":%d+: "), err)
  assert.is_truthy(err:find(words, 1, true), err)
end

local function same(a, b, tol)
  assert.same(a:shape(), b:shape())
  local d = (a - b):abs():max():item()
  assert.is_true(d <= (tol or 0), ("differs by %g"):format(d))
end

-- Nodes whose op is `op`.
local function count(g, op)
  local n = 0
  for _, node in ipairs(g:nodes()) do if node.op == op then n = n + 1 end end
  return n
end

describe("a graph", function()
  it("takes every op and method on symbolic tensors and runs what eager code computes", function()
    local g = T.graph()
    local x, w = g:input("x", { 5, 13 }), g:input("w", { 7, 13 }, { leaf = true })
    local y = T.tanh(x:matmul(w:t()))
    local z = (y * 2 + 1):sum(2, { keepdim = true }):exp():log() - y[{ {}, { 2, 3 } }]
    local dw, dx = table.unpack(g:gradient({ z }, { w, x }))
    g:outputs { z, dw = dw, dx = dx }
    assert.is_true(g:verify())
    local X, W = T.randn(5, 13):requires_grad_(), T.randn(7, 13):requires_grad_()
    local out = g:run { x = X, w = W }
    local Y = T.tanh(X:matmul(W:t()))
    local Z = (Y * 2 + 1):sum(2, { keepdim = true }):exp():log() - Y[{ {}, { 2, 3 } }]
    Z:sum():backward()
    same(out[1], Z:detach())
    same(out.dw, W.grad, 1e-5)
    same(out.dx, X.grad, 1e-5)
    assert.is_false(out.dw.requires_grad)
  end)

  it("prints one line a node", function()
    local g = T.graph()
    local x = g:input("x", { 2, 3 })
    local y = g:name((x + 5):sum(-1), "total")
    g:outputs { y }
    assert.equal(table.concat({
      "%0 = input x : f32[2,3]",
      "%2 = add(%0, 5) : f32[2,3]  # add_1, stage 0",
      "%3 = sum(%2; dim={2}) : f32[2]  # total, stage 0",
      "outputs: %3",
      "" }, "\n"), tostring(g))
    assert.is_truthy(g:dot():find("total", 1, true))
    assert.equal("%3 : f32[2] symbolic", tostring(y))
    assert.same({ 2 }, y:shape())
    local node = g:nodes()[2]
    assert.same({ "total", "sum", { 2 }, 8 }, { node.name, node.op, node.attrs.dim, node.bytes })
  end)

  it("captures real tensors by reference: modules work as they are", function()
    T.manual_seed(3)
    local net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    local g = T.graph()
    local x = g:input("x", { 2, 4 })
    local target = T.tensor({ 1, 3 }, { dtype = "i64" })
    local loss = nn.F.cross_entropy(net(x), target)
    g:outputs { loss = loss, grads = g:gradient(loss, net:parameters())[1] }
    for _ = 1, 2 do
      local X = T.randn(2, 4)
      local out = g:run { x = X }
      for _, p in ipairs(net:parameters()) do p.grad = nil end
      local eager = nn.F.cross_entropy(net(X), target)
      eager:backward()
      same(out.loss, eager:detach())
      same(out.grads, net:parameters()[1].grad, 1e-6)
      T.no_grad(function() net:parameters()[1]:mul_(0.5) end)
    end
  end)

  it("gives wrong use as errors", function()
    local g, h = T.graph(), T.graph()
    local x, y = g:input("x", { 2, 3 }), h:input("y", { 2, 3 })
    refused("is symbolic: it has no values", x.item, x:sum())
    refused("is symbolic: it has no values", x.totable, x)
    refused("is symbolic: it has no values", x.equal, x, x)
    refused("is symbolic: it has no values", x.set, x, 1, 1, 0)
    refused("is symbolic: it has no values", T.tensor, x)
    refused("<: f32[] is symbolic", function() return x:sum() < x:sum() end)
    refused("belongs to another graph", function() return x + y end)
    refused("add: f32[2,4] does not broadcast", function() return x + T.ones(2, 4) end)
    refused("masked_select", function() return x:masked_select(x:gt(0)) end)
    refused("cannot differentiate with respect to input z: not reachable from the outputs", g.gradient, g, { x * 2 },
      { g:input("z", { 1 }) })
    refused("there is an input named 'z' already", g.input, g, "z", { 1 })
    refused("gradient: 1 outputs, but 2 out_grads", g.gradient, g, { x * 2 }, { x }, { out_grads = { x, x } })
    refused("gradient: 2 outputs, but 1 out_grads; leave them out", g.gradient, g, { x * 2, x * 3 }, { x },
      { out_grads = { x } })
    refused("gradient: 2 outputs, but 1 out_grads", g.gradient, g, { x * 2, x * 3 }, { x }, { out_grads = x })
    refused("gradient: 2 outputs, but 0 out_grads", g.gradient, g, { x * 2, x * 3 }, { x }, { out_grads = {} })
    refused("out_grads: entry 2 must be a tensor, or false for ones, got true", g.gradient, g, { x * 2, x }, { x },
      { out_grads = { x, true } })
    refused("out_grads: there is no entry b", g.gradient, g, { x * 2 }, { x }, { out_grads = { x, b = x } })
    refused("the outputs: entry 2 must be a tensor, got false", g.gradient, g, { x * 2, false }, { x })
    refused("the outputs: there is no entry loss", g.gradient, g, { x * 2, loss = x }, { x })
    refused("the inputs: entry 2 must be a tensor, got nil", g.gradient, g, { x * 2 }, { x, nil, x })
    refused("budget.bytes must be a number of bytes, got inf", g.gradient, g, x, x, { budget = { bytes = math.huge } })
    refused("its out-gradient is f32[1]", g.gradient, g, { x * 2 }, { x }, { out_grads = { T.ones(1) } })
    refused("did you mean copy?", g.gradient, g, { x }, { x }, { copi = true })
    refused("output 1 is bool[2,3]", g.gradient, g, { x:gt(0) }, { x })
    refused("call g:outputs", g.run, g, {})
    g:outputs { x * 2 }
    refused("out: the graph has no output 'y'", g.run, g, { x = T.ones(2, 3), z = T.ones(1) },
      { out = { y = T.ones(2, 3) } })
    refused("input x is missing", g.run, g, { z = T.ones(1) })
    refused("the graph has no input 'q'", g.run, g, { q = T.ones(1) })
    refused("input x is f32[3,2], the graph was made for f32[2,3]", g.run, g, { x = T.ones(3, 2), z = T.ones(1) })
    same(g:run({ x = T.ones(2, 3), z = T.ones(1) })[1], T.full({ 2, 3 }, 2))
  end)
end)

describe("tracing a function into a graph", function()
  it("makes nodes of ops on real tensors, too", function()
    local p, q = T.ones(2):requires_grad_(), T.full({ 2 }, 3.0):requires_grad_()
    local g = T.graph()
    local x = g:input("x", { 2 })
    refused("compute it inside g:trace(f)", function() return x * (p + q) end)
    local y = g:trace(function(k) return x * (p + q) * T.full({ 2 }, k) end, 2.0)
    g:outputs { y, g:gradient({ y }, p) }
    for k = 1, 2 do
      local out = g:run { x = T.tensor { 1, 2 } }
      same(out[1], T.tensor { 1, 2 } * (2.0 * (k + 3)))
      same(out[2], T.tensor { 2, 4 })
      T.no_grad(function() p:add_(1) end)
    end
    local thrown = {}
    local ok, err = pcall(g.trace, g, function() error(thrown) end)
    assert.is_false(ok)
    assert.equal(thrown, err)
    same(p + q, T.full({ 2 }, 6.0)) -- eager again
  end)

  it("keeps regions of mixed precision: gradients come back as f32", function()
    local w = T.randn(4, 4)
    local g = T.graph()
    local x = g:input("x", { 4, 4 })
    local y = T.autocast("bf16", function() return x:matmul(w) end)
    assert.equal("bf16", y:dtype())
    local d = g:gradient({ y:float():sum() }, { x, w })
    g:outputs { y, d[1], d[2] }
    local X = T.randn(4, 4)
    local out = g:run { x = X }
    same(out[1], T.autocast("bf16", function() return X:matmul(w) end))
    assert.same({ "f32", "f32" }, { out[2]:dtype(), out[3]:dtype() })
  end)
end)

describe("a custom rule", function()
  it("is refused in a graph, where its gradient would be lost", function()
    local cube = T.custom { name = "cube", forward = function(ctx, x) return x ^ 3 end,
      backward = function(ctx, d) return d end }
    local g = T.graph()
    refused("whose gradient pass would not see this rule", cube, g:input("x", { 2 }))
    same(cube(T.full({ 2 }, 2.0)), T.full({ 2 }, 8.0))
    local x = g:input("y", { 2 })
    T.override_gradient("sin", function(ctx, d) return d end)
    local ok, err = pcall(T.sin, x)
    T.override_gradient("sin", nil)
    assert.is_false(ok)
    assert.is_truthy(err:find("its gradient was replaced", 1, true), err)
    assert.same({ 2 }, T.sin(x):shape())
  end)
end)

describe("the gradient pass", function()
  it("M7: x added eight times gives 8", function()
    local g = T.graph()
    local x = g:input("x", { 4 })
    local y = x
    for _ = 1, 7 do y = y + x end
    g:outputs { g:gradient({ y }, x) }
    same(g:run({ x = T.randn(4) })[1], T.full({ 4 }, 8))
  end)

  it("M9: through detach nothing flows", function()
    local g = T.graph()
    local a = g:input("a", { 3 })
    g:outputs { g:gradient({ (a * 2):detach() }, a) }
    same(g:run({ a = T.ones(3) })[1], T.zeros(3))
  end)

  it("M13: several outputs, each with its out-gradient or none", function()
    local g = T.graph()
    local x = g:input("x", { 15 })
    local parts = x:split(5)
    local up, down = T.arange(5):float(), T.tensor { 5, 4, 3, 2, 1 }
    g:outputs { g:gradient(parts, x, { out_grads = { nil, up, down } }) }
    same(g:run({ x = T.randn(15) })[1], T.cat { T.ones(5), up, down })
  end)

  it("M16, M17: gradients of gradients, in any order; gradients of inner values", function()
    local g = T.graph()
    local x = g:input("x", { 1 })
    local dx = g:gradient({ T.exp(x) + x }, x)
    local ddx = g:gradient({ dx }, x)
    g:outputs { dx, ddx }
    local out = g:run { x = T.ones(1) }
    same(out[1], T.tensor { 3.71828175 }, 3e-7)
    same(out[2], T.tensor { 2.71828175 }, 3e-7)
    g = T.graph()
    x = g:input("x", { 3 })
    local y = g:input("y", { 3 })
    local u = x * y
    g:outputs(g:gradient({ u * x }, { u, x, y }, { out_grads = { T.full({ 3 }, 10.0) } }))
    local X, Y = T.randn(3), T.randn(3)
    out = g:run { x = X, y = Y }
    same(out[1], X * 10)
    same(out[2], X * Y * 20, 1e-4)
    same(out[3], X * X * 10, 1e-5)
  end)

  it("N16: y listed twice adds its seeds; N17: x listed twice is a copy; N18: exactly one copy node", function()
    local g = T.graph()
    local x = g:input("x", { 2 })
    local y = x * 3
    g:outputs { g:gradient({ y, y }, x, { out_grads = { T.ones(2), T.full({ 2 }, 2.0) } }) }
    same(g:run({ x = T.ones(2) })[1], T.full({ 2 }, 9))
    g = T.graph()
    x = g:input("x", { 2 })
    local d = g:gradient({ x * x }, { x, x }, { copy = true })
    g:outputs(d)
    assert.equal(1, count(g, "clone"))
    local out = g:run { x = T.tensor { 1, 5 } }
    same(out[1], T.tensor { 2, 10 })
    same(out[2], T.tensor { 2, 10 })
    for _, copy in ipairs { true, false } do
      g = T.graph()
      local a, b = g:input("a", { 2 }), g:input("b", { 2 })
      g:outputs(g:gradient({ a + b }, { a, b }, { copy = copy }))
      assert.equal(copy and 1 or 0, count(g, "clone"))
      out = g:run { a = T.ones(2), b = T.ones(2) }
      out[1]:add_(1)
      same(out[2], T.ones(2))
    end
    local names = {}
    for _, node in ipairs(g:nodes()) do names[#names + 1] = node.name end
    assert.same({ "add_1", "ones" }, names)
  end)

  it("N19: a reader that reaches outputs only through a shape ends; a+b at the head succeeds", function()
    local g = T.graph()
    local a, b = g:input("a", { 3 }), g:input("b", { 1 })
    local r = (a * 2):expand_as(a) -- reads a's shape
    g:outputs(g:gradient({ a + b, r }, { a, b }))
    local out = g:run { a = T.randn(3), b = T.randn(1) }
    same(out[1], T.full({ 3 }, 3))
    same(out[2], T.full({ 1 }, 3))
  end)

  it("sums in a chain, or as aggregate says", function()
    local g = T.graph()
    local x = g:input("x", { 2 })
    local seen
    local d = g:gradient({ x * 2 + x:sin() + x:exp() }, x, { aggregate = function(list)
      seen = #list
      return T.stack(list):sum(1)
    end })
    g:outputs { d }
    assert.equal(3, seen)
    local X = T.randn(2)
    same(g:run({ x = X })[1], X:cos() + X:exp() + 2, 1e-6)
    refused("aggregate must return one tensor, got nil", g.gradient, g, { x + x }, x, { aggregate = function() end })
    local thrown = {}
    local ok, err = pcall(g.gradient, g, { x + x }, x, { aggregate = function() error(thrown) end })
    assert.is_false(ok)
    assert.equal(thrown, err)
  end)

  it("gives nil for unused inputs if allowed, zeros where no gradient arrives", function()
    local g = T.graph()
    local x, z = g:input("x", { 2 }), g:input("z", { 2 })
    local d = g:gradient({ x * 2 }, { x, z }, { allow_unused = true })
    assert.is_nil(d[2])
    local e = g:gradient({ x:gt(0):float() + x }, { x })
    g:outputs { d[1], e[1] }
    same(g:run({ x = T.ones(2), z = T.ones(2) })[2], T.ones(2))
  end)
end)

describe("writing in a graph", function()
  it("in place on a value is a new value; views follow", function()
    local g = T.graph()
    local x = g:input("x", { 2, 3 })
    local y = x * 2
    local row = y[1]
    y:add_(1)
    row:mul_(10)
    y[{ 2, 1 }] = 7
    g:outputs { y, row + 0 }
    assert.is_true(g:verify())
    local X = T.randn(2, 3)
    local Y = X * 2
    Y:add_(1)
    Y[1]:mul_(10)
    Y[{ 2, 1 }] = 7
    local out = g:run { x = X }
    same(out[1], Y)
    same(out[2], Y[1])
  end)

  it("in place on a captured tensor is a write at each run", function()
    local p = T.zeros(2)
    local g = T.graph()
    local x = g:input("x", { 2 })
    local before = p + x
    p:add_(before)
    assert.is_true(g:verify())
    g:outputs { before }
    same(p, T.zeros(2))
    for k = 1, 3 do
      g:run { x = T.ones(2) }
      same(p, T.full({ 2 }, 2 ^ k - 1))
    end
  end)

  it("a gradient that reads what was overwritten is refused", function()
    local p = T.ones(2)
    local g = T.graph()
    local x = g:input("x", { 2 })
    local y = x * p
    p:mul_(x)
    refused("was overwritten", g.gradient, g, { y }, x)
  end)

  it("M11: duplicate outputs are two tensors, written or added to", function()
    for _, dtype in ipairs { "f16", "f32", "f64" } do
      local g = T.graph()
      local a, b = g:input("a", { 4 }, { dtype = dtype }), g:input("b", { 4 }, { dtype = dtype })
      local d = a * b
      g:outputs { d, d, d + b, d + b }
      local A, B = T.arange(4):to(dtype), T.full({ 4 }, 2, { dtype = dtype })
      local feed, want = { a = A, b = B }, { A * B, A * B, A * B + B, A * B + B }
      local out = g:run(feed)
      for i = 1, 4 do same(out[i], want[i]) end
      out[1]:zero_()
      same(out[2], want[2])
      local mine = {}
      for i = 1, 4 do mine[i] = T.ones(4, { dtype = dtype }) end
      g:run(feed, { out = mine })
      for i = 1, 4 do same(mine[i], want[i]) end
      g:run(feed, { out = mine, add = true })
      for i = 1, 4 do same(mine[i], want[i] * 2) end
    end
  end)

  it("random ops draw from eager's stream", function()
    local g = T.graph()
    local x = g:input("x", { 100 })
    g:outputs { nn.F.dropout(x, 0.5) + nn.F.dropout(x, 0.25) }
    local X = T.ones(100)
    T.manual_seed(7)
    local want = nn.F.dropout(X, 0.5) + nn.F.dropout(X, 0.25)
    T.manual_seed(7)
    same(g:run({ x = X })[1], want)
  end)

  it("leaves nothing behind", function()
    live.flat(T, function()
      local g = T.graph()
      local x = g:input("x", { 64, 64 })
      local y = x
      for _ = 1, 50 do y = y:tanh() + x end
      g:outputs { y, g:gradient({ y }, x) }
      g:run { x = T.randn(64, 64) }
    end)
  end)
end)
