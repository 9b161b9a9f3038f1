-- SPDX-License-Identifier: MIT
-- Sums of many small numbers in f16 and bf16: where each step was rounded, the sum would stand still at 256 or 32.

local T = require "perilune"

local N = 5000

describe("5000 times 0.1 of halves is 500", function()
  local function rows(d) return T.full({ N, 1 }, 0.1, { dtype = d }), T.ones({ N }, { dtype = "i64" }) end
  local function zero(d) return T.zeros({ 1, 1 }, { dtype = d }) end
  -- the gradient of what reads one number N times, each time multiplied by 0.1
  local function gradient(d, read)
    local x, at = rows(d)
    local w = T.ones({ 1, 1 }, { dtype = d, requires_grad = true })
    return T.grad_of((read(w, at) * x):sum(), w)
  end
  local SUMS = {
    index_add = function(d) local x, at = rows(d) return zero(d):index_add(1, at, x) end,
    index_add_ = function(d) local x, at = rows(d) return zero(d):index_add_(1, at, x) end,
    scatter_add = function(d) local x, at = rows(d) return zero(d):scatter_add(1, at:view(N, 1), x) end,
    ["scatter, add"] = function(d)
      local x, at = rows(d)
      return T.scatter(zero(d), at:view(N, 1), x, { dim = 1, reduce = "add" })
    end,
    ["scatter_reduce, sum"] = function(d)
      local x, at = rows(d)
      return zero(d):scatter_reduce(1, at:view(N, 1), x, "sum")
    end,
    index_put = function(d) local x, at = rows(d) return zero(d):index_put({ at }, x, { accumulate = true }) end,
    embedding = function(d) return gradient(d, function(w, at) return T.nn.F.embedding(at, w) end) end,
    gather = function(d) return gradient(d, function(w, at) return w:gather(1, at:view(N, 1)) end) end,
    index_select = function(d) return gradient(d, function(w, at) return w:index_select(1, at) end) end,
    take = function(d) return gradient(d, function(w, at) return w:take(at:view(N, 1)) end) end,
    index = function(d) return gradient(d, function(w, at) return w[at] end) end,
    expand = function(d) return gradient(d, function(w) return w:expand(N, 1) end) end,
    sum = function(d) return (rows(d)):sum() end,
    cumsum = function(d) return (rows(d)):cumsum(1)[-1] end,
  }
  for name, f in pairs(SUMS) do
    it(name, function()
      for _, d in ipairs { "f16", "bf16" } do
        local y = f(d)
        assert.equal(d, y:dtype())
        local got = y:to("f64"):sum():item()
        assert.is_true(math.abs(got - 500) <= 4, ("%s of %s gives %g"):format(name, d, got))
      end
    end)
  end

  it("scatter_reduce, mean and prod", function()
    for _, d in ipairs { "f16", "bf16" } do
      local x, at = rows(d)
      local mean = zero(d):scatter_reduce(1, at:view(N, 1), x, "mean", { include_self = false })
      assert.is_true(math.abs(mean:item() - 0.1) < 1e-3, mean:item())
      local one = T.full({ 200, 1 }, 1 + 2.0 ^ -7, { dtype = d })
      local product = T.ones({ 1, 1 }, { dtype = d }):scatter_reduce(1, at:narrow(1, 1, 200):view(200, 1), one, "prod")
      local want = (1 + 2.0 ^ -7) ^ 200
      assert.is_true(math.abs(product:item() / want - 1) < 2.0 ^ -7, product:item())
    end
  end)
end)
