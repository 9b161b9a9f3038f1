-- SPDX-License-Identifier: MIT
-- Products with rows of a table (passes/embedding_products.c): what unsafe_math rewrites, what it leaves
-- alone, and that the values are the same but for rounding.

local T = require "perilune"
local nn = T.nn
local F = nn.F

local N, S, V, D, G = 9, 8, 5, 6, 7

-- A graph of f(E, W, ids) → outputs; options of T.graph. The plan's ops as text, and what a run gives.
local function build(f, options, feed)
  local g = T.graph(options)
  local E, W = g:input("E", { V, D }, { leaf = true }), g:input("W", { G, D }, { leaf = true })
  local ids = g:input("ids", { N, S }, { dtype = "i64" })
  g:outputs(f(g, E, W, ids))
  local plan, list = g:plan(), {}
  assert.is_true(plan:verify())
  for _, node in ipairs(plan:list()) do list[#list + 1] = node.op end
  return table.concat(list, " "), g:run(feed)
end

local function feed()
  T.manual_seed(3)
  return { E = T.randn(V, D), W = T.randn(G, D), ids = T.randint(1, V, { N, S }) }
end

local function close(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do assert.is_true(T.allclose(a[i], b[i], { rtol = 1e-5, atol = 1e-5 })) end
end

local function count(ops, op)
  local n = 0
  for word in ops:gmatch("%S+") do n = n + (word == op and 1 or 0) end
  return n
end

-- The two plans and their values; asserts that the values are close and the safe plan has its products as written.
local function both(f)
  local data = feed()
  local safe, a = build(f, nil, data)
  local unsafe, b = build(f, { unsafe_math = true }, data)
  close(a, b)
  return safe, unsafe
end

local function loss_of(y) return (y * y):sum() end

describe("products with rows of a table", function()
  it("multiply the table, not what was picked", function()
    local safe, unsafe = both(function(_, E, W, ids) return { F.linear(F.embedding(ids, E), W) } end)
    assert.equal("embedding linear", safe)
    assert.equal("linear embedding", unsafe)
  end)

  it("take batch_first's transposes to the ids", function()
    for _, swap in ipairs { { 1, 2 }, { -3, -2 } } do
      local _, unsafe = both(function(_, E, W, ids)
        return { F.linear(F.embedding(ids, E):transpose(swap[1], swap[2]), W, T.ones(G)) }
      end)
      assert.is_truthy(unsafe:find "linear.* transpose embedding$")
    end
    local safe, same = both(function(_, E, W, ids) -- the width is no dim of the ids
      return { F.linear(F.embedding(ids, E):transpose(2, 3):transpose(2, 3), W),
        F.linear(F.embedding(ids, E):transpose(2, 3), T.ones(G, S)) }
    end)
    assert.equal(2, count(safe, "linear"))
    assert.equal(1, count(same, "embedding_bwd") + count(same, "linear") - 1)
  end)

  it("add gradients up by row before they meet a weight", function()
    local function step(swap)
      return function(g, E, W, ids)
        local x = F.embedding(ids, E)
        if swap then x = x:transpose(1, 2) end
        local loss = loss_of(F.linear(x, W):tanh())
        return { loss, table.unpack(g:gradient(loss, { E, W })) }
      end
    end
    for _, swap in ipairs { false, true } do
      local safe, unsafe = both(step(swap))
      assert.equal(1, count(safe, "embedding_bwd"))
      assert.equal(1, count(unsafe, "embedding_bwd")) -- one for both gradients
      assert.is_truthy(unsafe:find "embedding_bwd matmul_flat_t .*matmul$")
    end
  end)

  it("are left alone where that would not pay or not be the same", function()
    local cases = {
      few = function(g, E, W, ids) -- as many ids as rows
        local loss = loss_of(F.linear(F.embedding(ids:narrow(1, 1, 1), E), W))
        return { loss, table.unpack(g:gradient(loss, { E, W })) }
      end,
      f16 = function(_, E, W, ids) return { F.linear(F.embedding(ids, E:to("f16")), W:to("f16")) } end,
    }
    for name, f in pairs(cases) do
      local safe, unsafe = both(f)
      assert.equal(safe, unsafe, name)
    end
    local _, read = both(function(g, E, W, ids) -- somebody wants the gradient of what was picked
      local x = F.embedding(ids, E)
      local loss = loss_of(F.linear(x, W):tanh())
      return { loss, table.unpack(g:gradient(loss, { E, x })) }
    end)
    assert.is_truthy(read:find "matmul.*embedding_bwd")
    local _, pad = both(function(g, E, W, ids)
      local loss = loss_of(F.linear(F.embedding(ids, E, { padding_idx = 2 }), W):tanh())
      return { loss, table.unpack(g:gradient(loss, { E, W })) }
    end)
    assert.equal(2, count(pad, "embedding_bwd")) -- the table's without its padding row, the weight's with it
  end)

  it("see what was in the table when rows were picked", function()
    T.manual_seed(5)
    local E, W, ids = T.randn(V, D), T.randn(G, D), T.randint(1, V, { N, S })
    local function f()
      local x = F.embedding(ids, E)
      E:mul_(2)
      return F.linear(x, W)
    end
    local before = E:clone()
    local want = f()
    E:copy_(before)
    local j = T.jit(f, { unsafe_math = true })
    assert.is_true(T.allclose(want, j()))
    assert.is_true(E:equal(before * 2))
  end)
end)

describe("T.jit{unsafe_math = true}", function()
  local function model()
    T.manual_seed(11)
    local Net = nn.class("TableLSTM")
    function Net:init()
      self.embed = nn.Embedding(V, D)
      self.lstm = nn.LSTM(D, G, { batch_first = true })
      self.head = nn.Linear(G, V)
    end
    function Net:forward(ids) return self.head((self.lstm(self.embed(ids)))) end
    return Net()
  end

  local function train(jit)
    local net = model()
    local opt = T.optim.SGD(net:parameters(), { lr = 0.1 })
    local function step(x, y)
      opt:zero_grad()
      local loss = F.cross_entropy(net(x):flatten(1, 2), y:flatten())
      loss:backward()
      opt:step()
      return loss
    end
    local run = jit and T.jit(step, jit) or step
    T.manual_seed(12)
    local losses = {}
    for i = 1, 4 do losses[i] = run(T.randint(1, V, { N, S }), T.randint(1, V, { N, S })):item() end
    return losses, net, jit and run:source()
  end

  it("trains as the script does, but for rounding", function()
    local want, a = train()
    local same = train { unsafe_math = false }
    local got, b = train { unsafe_math = true }
    assert.same(want, same)
    for i = 1, #want do assert.near(want[i], got[i], 1e-5) end
    local q = b:parameters()
    for i, p in ipairs(a:parameters()) do assert.is_true(T.allclose(p, q[i], { rtol = 1e-4, atol = 1e-5 })) end
  end)

  it("has gradients that can be differentiated", function()
    T.manual_seed(4)
    local E, W = T.randn(V, D), T.randn(G, D)
    local ids = T.randint(1, V, { N, S })
    local f = T.jit(function(e, w) return loss_of(F.linear(F.embedding(ids, e), w):tanh()) end, { unsafe_math = true })
    assert.is_true(T.gradcheck(f, { E:to("f64"), W:to("f64") }))
  end)
end)
