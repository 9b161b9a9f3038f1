-- SPDX-License-Identifier: MIT
-- T.jit when something goes wrong: a failing op in a run, memory budgets, tensors that belong elsewhere, leaves that
-- are overwritten, plans that cannot be. The error says what; the graph, its arena and the tensors stay whole; the next
-- call works.
local T = require "perilune"
local nn, optim = T.nn, T.optim

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
  return err
end

local function live()
  collectgarbage()
  collectgarbage()
  return T.memory().live
end

-- A step over an embedding, whose indices are only known when it runs.
local function make(wrap)
  T.manual_seed(2)
  local net = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
  local opt = optim.Adam(net:parameters(), { lr = 0.1 })
  local step = wrap(function(ids, y)
    opt:zero_grad()
    local loss = nn.F.cross_entropy(net(ids), y)
    loss:backward()
    opt:step()
    return loss
  end)
  return step, net, opt
end

local function i64(list) return T.tensor(list, { dtype = "i64" }) end

describe("T.jit", function()
  it("LBFGS decides by the loss: its closure is traced, not its step", function()
    local p = T.zeros(2):requires_grad_()
    local target = T.tensor { 3, -1 }
    local opt = T.optim.LBFGS({ p })
    local closure = T.jit(function()
      opt:zero_grad()
      local loss = (p - target):pow(2):sum()
      loss:backward()
      return loss
    end)
    local whole = T.jit(function() return opt:step(closure) end)
    local ok, err = pcall(whole)
    assert.is_false(ok)
    assert.matches("optim.LBFGS:step in a traced function: .*jit the closure", tostring(err))
    opt:step(closure)
    assert.is_true(p:detach():allclose(target))
    assert.equal(1, closure.ntraces)
  end)

  it("an op that fails in a run leaves all as it was; the next call works", function()
    local good, target = i64 { 1, 6, 3 }, i64 { 1, 2, 3 }
    local eager, net = make(function(f) return f end)
    local jitted, other = make(T.jit)
    eager(good, target)
    jitted(good, target)
    local before = live()
    for _, bad in ipairs { { i64 { 1, 7, 3 }, target, "embedding" }, { i64 { 1, 0, 3 }, target, "embedding" },
      { good, i64 { 1, 2, 4 }, "cross_entropy: target 4 at position 3 is not in 1" } } do
      raises(bad[3], jitted, bad[1], bad[2])
    end
    assert.is_true(live() <= before) -- gradients that were cleared are gone
    for _ = 1, 2 do assert.equal(eager(good, target):item(), jitted(good, target):item()) end
    for i, p in ipairs(net:parameters()) do assert.is_true(p:equal(other:parameters()[i])) end
    assert.equal(1, jitted.ntraces)
  end)

  it("the error of a run names the op and what was wrong, at the caller's line", function()
    local step = make(T.jit)
    local err = raises("embedding", step, i64 { 9 }, i64 { 1 })
    assert.matches("failure_spec.lua:%d+", err)
    assert.matches("9", err)
  end)

  it("a memory budget that the arena does not fit into is an error; without it the call works", function()
    local f = T.jit(function(x)
      local y = x:matmul(x)
      return (y:matmul(y) + y:t()):sum()
    end)
    local x = T.ones(200, 200)
    local want = f(x):item()
    local before = live()
    T.set_memory_budget(before + 100000)
    local err = raises("out of memory: %d+ bytes wanted.*budget", f, x)
    T.set_memory_budget()
    assert.is_string(err)
    assert.equal(before, live())
    assert.equal(want, f(x):item())
    assert.equal(1, f.ntraces)
  end)

  it("memory that runs out in the middle of a step is no second step", function()
    local function build(wrap)
      T.manual_seed(4)
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))
      local opt = optim.SGD(net:parameters(), { lr = 1e-3 })
      return wrap(function(x)
        opt:zero_grad()
        local loss = net(x):pow(2):mean()
        loss:backward()
        opt:step()
        return loss
      end), net
    end
    local step, net = build(T.jit)
    local x = T.randn(3, 2, 8, 8)
    step(x)
    local failed = 0
    for n = 0, 200 do
      local count = net[2].num_batches_tracked:item()
      T.empty_cache()
      T.core.fail_at(n)
      local ok = pcall(step, x)
      T.core.fail_at(-1)
      local moved = net[2].num_batches_tracked:item() - count
      assert.is_true(moved == 1 or not ok and moved == 0, tostring(ok) .. moved)
      if not ok then failed = failed + 1 end
    end
    assert.is_true(failed > 0)
    local loss = step(x)
    assert.is_true(loss:item() == loss:item())
  end)

  it("tensors of another graph or of a trace that is over are errors", function()
    local kept = {}
    local f = T.jit(function(x)
      rawset(kept, 1, x * 2)
      return x
    end)
    raises("the traced function changes kept%[1%]", f, T.ones(2))
    raises("trace is over; return it from the traced function", function() return kept[1] + 1 end)
    local g = T.graph()
    local s = g:input("s", { 2 })
    raises("belongs to another graph", T.jit(function(x) return x + s end), T.ones(2))
    local h = T.graph()
    raises("belongs to another graph", function() return h:input("t", { 2 }) + s end)
    assert.equal(2, T.jit(function(x) return x * 2 end)(T.ones(1)):item())
    raises("is symbolic", T.jit(function(x) return T.jit(function(y) return y:item() end)(x) end), T.ones(1))
  end)

  it("a plan that cannot be is an error; other functions go on", function()
    local w = T.ones(64, 64):requires_grad_()
    local function step(x)
      w.grad = nil
      local loss = (x:matmul(w):tanh():matmul(w)):pow(2):sum()
      loss:backward()
      return loss
    end
    local x = T.ones(8, 64)
    raises("the lowest planned peak is %d+ bytes", T.jit(step, { budget = { bytes = 1000 } }), x)
    raises("from 0 to 1", T.jit, step, { budget = { fraction = 2 } })
    raises("either bytes or fraction", T.jit, step, { budget = {} })
    local want = step(x):item()
    assert.equal(want, T.jit(step, { budget = { fraction = 0 } })(x):item())
    assert.equal(want, T.jit(step)(x):item())
  end)

  it("pins, forces and predicates name nodes; a name that is none is an error", function()
    local w = T.randn(16, 16):requires_grad_()
    local function step(x)
      w.grad = nil
      local loss = (x:matmul(w):tanh():sigmoid():matmul(w)):pow(2):sum()
      loss:backward()
      return loss
    end
    local x, asked = T.randn(8, 16), 0
    local want = step(x):item()
    local grad = w.grad
    local function recomputed(opts)
      local f = T.jit(step, opts)
      assert.equal(want, f(x):item())
      assert.is_true(grad:equal(w.grad))
      local names = {}
      for _, node in ipairs(f:plan():list()) do
        if node.mirror then names[#names + 1] = node.name end
      end
      local again = f:explain().again
      assert.equal(#names, again.ops)
      assert.equal(#names > 0, again.seconds > 0)
      if #names > 0 then assert.matches("%d+ ops of it are computed again for backward", tostring(f:explain())) end
      return table.concat(names, " ")
    end
    assert.equal("tanh_1_mirror sigmoid_1_mirror",
      recomputed { mirror = "mincut", force = { "tanh_1", "sigmoid_1" } })
    assert.equal("sigmoid_1_mirror", recomputed { mirror = function(node)
      asked = asked + 1
      assert(node.stage == 0)
      return node.op == "sigmoid"
    end })
    assert.equal(6, asked)
    assert.equal("", recomputed { mirror = "mincut", pin = { "tanh_1", "sigmoid_1", "matmul_1", "matmul_2" } })
    raises("pin: entry 1, nobody, is no node of the graph", T.jit(step, { mirror = "auto", pin = { "nobody" } }), x)
  end)

  it("a leaf that is overwritten before a recomputation would read it is an error", function()
    local w = T.ones(16, 16)
    local p = T.ones(16, 16):requires_grad_()
    local function step(x)
      local h = (x * w):tanh()
      local loss = (h:matmul(p):tanh()):sum()
      T.no_grad(function() w:mul_(0.5) end)
      p.grad = nil
      loss:backward()
      return loss
    end
    local x = T.ones(16, 16)
    local f = T.jit(step, { mirror = "auto" })
    local want, got = {}, {}
    for i = 1, 3 do want[i] = step(x):item() end
    local grad = p.grad:clone()
    w:fill_(1)
    for i = 1, 3 do got[i] = f(x):item() end
    assert.same(want, got)
    assert.is_true(grad:equal(p.grad))
  end)

  it("arguments of wrong shapes are errors of their op, and no trace stays open", function()
    local w = T.ones(3, 2)
    local f = T.jit(function(x) return x:matmul(w) end)
    raises("matmul: f32%[2,4%] x f32%[3,2%]: inner sizes 4 and 3 differ", f, T.ones(2, 4))
    assert.equal(3, f(T.ones(1, 3)):get(1, 1))
    assert.is_false(T.core.jit_tracing())
  end)
end)
