-- SPDX-License-Identifier: MIT
-- A linear layer's cross entropy and its gradient as one node (passes/losses.c): when, which bits, how much memory.

local T = require "perilune"
local nn = T.nn
local F = nn.F

local N, K, C = 600, 8, 40

local function data(dtype)
  T.manual_seed(7)
  local x, w, b = T.randn(N, K):to(dtype), T.randn(C, K):to(dtype), T.randn(C):to(dtype)
  local y = T.randint(1, C, { N })
  y[3] = -100
  return x, w, b, y
end

-- The ops of f(w, b, x, y) → loss as a step that walks backward, and what it gives: eagerly, compiled.
local function step(f, dtype)
  local function made(jit)
    local x, w, b, y = data(dtype)
    for _, t in ipairs { x, w, b } do t:requires_grad_() end
    local function run(v, u)
      x.grad, w.grad, b.grad = nil, nil, nil
      local loss, more = f(w, b, v, u)
      loss:backward()
      return loss:detach(), more
    end
    local g = jit and T.jit(run) or run
    local loss, more = g(x, y)
    return { loss, x.grad, w.grad, b.grad, more }
  end
  return made(false), made(true)
end

local function ops(f, dtype)
  local x, w, b, y = data(dtype)
  for _, t in ipairs { x, w, b } do t:requires_grad_() end
  local g = T.jit(function(v, u)
    local loss, more = f(w, b, v, u)
    loss:backward()
    return loss:detach(), more
  end)
  g(x, y)
  local list = {}
  for _, node in ipairs(g:plan():list()) do list[node.op] = (list[node.op] or 0) + 1 end
  return list
end

local function lce(o)
  return function(w, b, x, y)
    local all = { linear_bias = b, chunk = 70 }
    for k, v in pairs(o) do all[k] = v end
    return F.linear_cross_entropy(x, w, y, all)
  end
end

describe("the cross entropy of a linear layer", function()
  it("is one node with its gradient in a step, whose bits are the script's", function()
    for _, dtype in ipairs { "f32", "f64", "bf16" } do
      for _, o in ipairs { {}, { reduction = "sum", label_smoothing = 0.1 },
        { weight = T.rand(C):add(0.5):to(dtype) } } do
        local f = lce(o)
        local has = ops(f, dtype)
        assert.equal(1, has.cross_entropy_linear_both)
        assert.is_nil(has.cross_entropy_linear)
        assert.is_nil(has.cross_entropy_linear_bwd)
        local eager, compiled = step(f, dtype)
        for k = 1, 4 do assert.is_true(eager[k]:equal(compiled[k]), dtype .. k) end
      end
    end
  end)

  it("stays two where the loss decides about its gradient, or its losses are weighed by each other", function()
    for _, f in ipairs {
      function(w, b, x, y)
        local l = lce {} (w, b, x, y)
        return l * l
      end,
      function(w, b, x, y) return (lce { reduction = "none" } (w, b, x, y):square():sum()) end,
    } do
      local has = ops(f, "f32")
      assert.equal(1, has.cross_entropy_linear)
      assert.equal(1, has.cross_entropy_linear_bwd)
      local eager, compiled = step(f, "f32")
      for k = 1, 4 do assert.is_true(eager[k]:equal(compiled[k])) end
    end
  end)

  it("is one where what arrives is computed behind it, and where the loss has other readers", function()
    local f = function(w, b, x, y)
      local l = lce {} (w, b, x, y)
      local by = x:detach():abs():mean() -- behind the loss in the script
      return l * by, (l + 1):detach()
    end
    assert.equal(1, ops(f, "f32").cross_entropy_linear_both)
    local eager, compiled = step(f, "f32")
    for k = 1, 5 do assert.is_true(eager[k]:equal(compiled[k])) end
  end)

  it("has the same bits on any number of threads, and no output stands whole", function()
    local n, k, c = 2048, 16, 9000 -- outputs: 74 MB
    T.manual_seed(3)
    local x, w, y = T.randn(n, k):requires_grad_(), T.randn(c, k):requires_grad_(), T.randint(1, c, { n })
    local function run() F.linear_cross_entropy(x, w, y):backward() end
    local before, kept = T.get_num_threads(), nil
    for _, threads in ipairs { 1, 2 } do
      T.set_num_threads(threads)
      for _, f in ipairs { run, T.jit(run) } do
        x.grad, w.grad = nil, nil
        collectgarbage()
        T.reset_peak_memory()
        local live = T.memory().live
        f()
        assert.is_true(T.memory().peak - live < 30e6, T.memory().peak - live)
        kept = kept or { x.grad, w.grad }
        assert.is_true(kept[1]:equal(x.grad) and kept[2]:equal(w.grad))
      end
    end
    T.set_num_threads(before)
  end)

  it("says where a wrong class number stands in all of them", function()
    local x, w = T.randn(9, 4), T.randn(5, 4)
    local y = T.tensor({ 1, 1, 1, 1, 1, 1, 6, 1, 1 }):long()
    local ok, message = pcall(F.linear_cross_entropy, x, w, y, { chunk = 2 })
    assert.is_false(ok)
    local says = "linear_cross_entropy: target 6 at position 7 is not in 1 … 5"
    assert.is_truthy(tostring(message):find(says, 1, true), tostring(message))
  end)
end)
