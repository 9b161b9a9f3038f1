-- SPDX-License-Identifier: MIT
-- Kernels on several threads: tensors large enough for a team, same bits as on one. The lane of ThreadSanitizer
-- (ctest --preset tsan -L tsan) runs it, too.

local T = require "perilune"
local nn, F = T.nn, T.nn.F

-- Each makes tensors, the same whatever the number of threads.
local cases = {
  elementwise = function()
    local x = T.randn(700, 900)
    return { x:exp() + x:t():contiguous():t():sin(), x:gt(0), T.where(x:gt(0), x, x:tanh()) }
  end,
  reductions = function()
    local x = T.randn(700, 900)
    return { x:sum(), x:sum(1), x:mean(2), x:var(), x:norm(), x:amax(1), (x:argmax(2)), x:logsumexp(1), x:softmax(-1),
      x:double():cumsum(1), x:cumprod(2) }
  end,
  order = function()
    local x = T.randn(300000)
    local v, i = x:sort(1)
    return { v, i, (x:topk(50)), x:kthvalue(1000) }
  end,
  products = function()
    local x, y = T.randn(400, 500), T.randn(500, 300)
    return { x:matmul(y), T.randn(30, 64, 64):bmm(T.randn(30, 64, 64)), x:double():matmul(y:double()) }
  end,
  indexing = function()
    local x, i = T.randn(2000, 300), T.randint(1, 2000, { 5000 })
    local rows = T.randint(1, 1000, { 5000, 300 })
    return { x:index_select(1, i), T.zeros(1000, 300):scatter_add(1, rows, T.randn(5000, 300)), x[i] }
  end,
  random = function() return { T.randn(300000), T.rand(300000), T.randperm(200000), T.randint(1, 9, { 300000 }) } end,
  network = function()
    local net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(3),
      nn.Flatten(), nn.Linear(8 * 10 * 10, 10))
    local x = T.randn(16, 3, 64, 64):requires_grad_()
    F.cross_entropy(net(x), T.randint(1, 10, { 16 })):backward()
    local out = { x.grad }
    for _, p in ipairs(net:parameters()) do out[#out + 1] = p.grad end
    return out
  end,
  sequences = function()
    local ids = T.randint(1, 1000, { 32, 64 })
    local e, a, n = nn.Embedding(1000, 64), nn.MultiheadAttention(64, 4), nn.LayerNorm(64)
    local x = n(e(ids))
    local y = a(x, x, x)
    y:sum():backward()
    return { y:detach(), e.weight.grad }
  end,
  optimizer = function()
    local w = T.randn(600, 600):requires_grad_()
    local opt = T.optim.Adam({ w }, { lr = 0.1 });
    (w * w):sum():backward()
    opt:step()
    return { w:detach() }
  end,
}

describe("on several threads", function()
  local names = {}
  for name in pairs(cases) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it(name .. " gives the bits of one thread", function()
      local before = T.get_num_threads()
      local function run(threads)
        T.set_num_threads(threads)
        T.manual_seed(1)
        return cases[name]()
      end
      local ok, one = pcall(run, 1)
      local fine, three = pcall(run, 3)
      T.set_num_threads(before)
      assert.is_true(ok, one)
      assert.is_true(fine, three)
      for i, t in ipairs(one) do assert.is_true(t:equal(three[i]), name .. " " .. i) end
    end)
  end

  it("the first failure of a team is the one reported", function()
    local before = T.get_num_threads()
    T.set_num_threads(3)
    local target = T.full({ 200000 }, 11, { dtype = "i64" })
    local ok, err = pcall(F.cross_entropy, T.rand(200000, 10), target)
    T.set_num_threads(before)
    assert.is_false(ok)
    assert.is_truthy(err:find("target 11 at position 1 is not in", 1, true), err)
  end)
end)
