-- SPDX-License-Identifier: MIT
-- T.jit of a module, differentiated outside, in less memory: what backward would be given by forward is computed again,
-- by the same policies, budgets, pins and marks as in a whole step; bits are equal.
local T = require "perilune"
local nn = T.nn

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

local function network(wrap)
  local layers = {}
  for i = 1, 5 do
    local block = nn.Sequential(nn.Conv2d(i == 1 and 3 or 8, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(),
      nn.Dropout(0.2))
    layers[i] = wrap and nn.checkpointed(block) or block
  end
  layers[6], layers[7] = nn.Flatten(), nn.Linear(8 * 64, 4)
  return nn.Sequential(layers)
end

-- Two calls with backward outside; gradients accumulate → results, gradients, running statistics; plans.
local function run(opts, marked)
  T.manual_seed(5)
  local net = network(marked)
  local f = opts and T.jit(net, opts) or net
  local out = {}
  for _ = 1, 2 do
    local y = f(T.randn(4, 3, 8, 8))
    y:pow(2):sum():backward()
    out[#out + 1] = y:detach()
  end
  for _, p in ipairs(net:parameters()) do out[#out + 1] = p.grad end
  for _, b in ipairs(net:buffers()) do out[#out + 1] = b end
  local forward, backward
  if opts then forward, backward = f:plan() end
  return out, forward, backward
end

local function equal(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do assert.is_true(a[i]:equal(b[i]), "tensor " .. i) end
end

describe("a jitted module", function()
  it("keeps less for backward, with equal bits, by every policy", function()
    local want = run()
    local all, plain = run {}
    equal(want, all)
    for _, o in ipairs { { { mirror = "mirror" }, 0.9 }, { { mirror = "mincut" }, 0.9 }, { { mirror = "auto" }, 1 },
      { { mirror = "auto", heavy = true }, 1 }, { { budget = { fraction = 0.5 }, heavy = true }, 0.5 },
      { { mirror = function(node) return node.op == "relu" end }, 1 } } do
      local got, forward, backward = run(o[1])
      equal(want, got)
      assert.is_true(forward.stash_bytes <= o[2] * plain.stash_bytes, forward.stash_bytes)
      assert.equal(forward.policy, backward.policy)
      if forward.stash_bytes < plain.stash_bytes then
        assert.is_true(backward.recomputed > 0)
        assert.is_true(forward.output_bytes < plain.output_bytes)
      end
    end
  end)

  it("heeds nn.checkpointed, pins and forces", function()
    local want, plain = run({}, false)
    local got, forward, backward = run({}, true)
    equal(want, got)
    assert.is_true(forward.stash_bytes < 0.6 * plain.stash_bytes, forward.stash_bytes)
    assert.is_true(backward.recomputed >= 10)
    local w = T.randn(16, 16):requires_grad_()
    local function f(x) return x:matmul(w):tanh():sigmoid():matmul(w) end
    local function names(opts)
      local g, list = T.jit(f, opts), {}
      g(T.ones(8, 16)):sum():backward()
      for _, node in ipairs(select(2, g:plan()):list()) do
        if node.mirror then list[#list + 1] = node.name end
      end
      return table.concat(list, " ")
    end
    assert.equal("tanh_1_mirror sigmoid_1_mirror", names { mirror = "mincut", force = { "tanh_1", "sigmoid_1" } })
    assert.equal("", names { mirror = "mincut", pin = { "tanh_1", "sigmoid_1" } })
    raises("pin: entry 1, nobody, is no node", names, { mirror = "auto", pin = { "nobody" } })
  end)

  it("does not draw again", function()
    local _, _, backward = run { mirror = "auto", heavy = true, budget = { fraction = 0 } }
    for _, node in ipairs(backward:list()) do assert.is_true(node.op ~= "dropout") end
    assert.is_true(backward.recomputed > 0)
  end)

  it("says when a budget cannot be met, also where nothing has a gradient", function()
    local net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    local x = T.ones(32, 64)
    raises("a budget of 1000 bytes cannot be met: the lowest planned peak is %d+ bytes",
      T.jit(net, { budget = { bytes = 1000 } }), x)
    T.no_grad(function()
      local f = T.jit(net, { budget = { bytes = 1000 } })
      raises("a budget of 1000 bytes cannot be met: the planned peak is %d+ bytes", f, x)
      assert.is_true(T.jit(net, { budget = { bytes = 1e6 } })(x):equal(net(x)))
    end)
  end)

  it("has second derivatives then, too; what a copy would read must be as it was", function()
    local w = T.full({ 3 }, 0.5):requires_grad_()
    local function plain(x) return ((x * w):tanh():sigmoid() * w):sum() end
    local f = T.jit(plain, { mirror = "mincut" })
    for _, g in ipairs { plain, f } do
      local x = T.tensor { 1, 2, 3 }:requires_grad_()
      local d = T.grad_of(g(x), x, { create_graph = true })
      w.grad = nil
      d:pow(2):sum():backward()
      if g == plain then plain = w.grad else assert.is_true(plain:allclose(w.grad)) end
    end
    local x = T.ones(3)
    local y = f(x)
    x:add_(1)
    raises("its argument 1, .* was modified in place afterwards", function() y:backward() end)
  end)
end)
