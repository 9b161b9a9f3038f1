-- SPDX-License-Identifier: MIT
-- Rows of few elements are worked on side by side, a row a lane (kernels/cpu/isa/short_rows.h): each must have the bits
-- that it has alone, where it goes element by element. Lengths are around those of vectors, pairs of vectors and the
-- limits of that way.

describe("short rows", function()
  local T = require "perilune"
  local near = require "spec.support.near"
  local F = T.nn.F

  local LENGTHS = { 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20, 24, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65 }
  local ROWS = 37 -- more than two groups of f32, and some rows beside them

  -- Of rows x, with y as numbers beside them and t as classes: what has a row for each row of x.
  local FUNCTIONS = {
    sum = function(x) return x:sum { dim = 2 } end,
    mean = function(x) return x:mean { dim = 2 } end,
    amax = function(x) return x:amax { dim = 2 } end,
    amin = function(x) return x:amin { dim = 2 } end,
    prod = function(x) return x:prod(2) end,
    norm = function(x) return x:norm { dim = 2 } end,
    ["norm of magnitudes"] = function(x) return x:norm(1, { dim = 2 }) end,
    var = function(x) return x:var { dim = 2 } end,
    std = function(x) return x:std { dim = 2 } end,
    logsumexp = function(x) return x:logsumexp { dim = 2 } end,
    softmax = function(x) return x:softmax(2) end,
    log_softmax = function(x) return x:log_softmax(2) end,
    ["gradient of softmax"] = function(x, y)
      local z = x:clone():requires_grad_()
      z:softmax(2):backward(y)
      return z.grad
    end,
    ["gradient of log_softmax"] = function(x, y)
      local z = x:clone():requires_grad_()
      z:log_softmax(2):backward(y)
      return z.grad
    end,
    cross_entropy = function(x, _, t) return F.cross_entropy(x, t, { reduction = "none" }) end,
    ["cross_entropy with smoothing"] = function(x, _, t)
      return F.cross_entropy(x, t, { reduction = "none", label_smoothing = 0.1 })
    end,
    ["gradient of cross_entropy"] = function(x, _, t)
      local z = x:clone():requires_grad_()
      F.cross_entropy(z, t, { reduction = "sum" }):backward()
      return z.grad
    end,
  }

  local function check(x, y, t, what)
    for name, f in pairs(FUNCTIONS) do
      local all = f(x, y, t)
      for _, row in ipairs { 1, 8, 16, 17, 30, 32, 33, ROWS } do
        local alone = f(x:narrow(1, row, 1), y:narrow(1, row, 1), t:narrow(1, row, 1))
        local same, why = pcall(near.same_bits, all:narrow(1, row, 1), alone)
        assert(same, ("%s of %s, row %d: %s"):format(name, what, row, why))
      end
    end
  end

  for _, kind in ipairs { "f32", "f64", "bf16", "f16" } do
    it("have the bits of rows that are alone, in " .. kind, function()
      T.manual_seed(5)
      for _, n in ipairs(LENGTHS) do
        local x, y, t = T.randn(ROWS, n) * 3, T.randn(ROWS, n):to(kind), T.randint(1, n, { ROWS })
        check(x:to(kind), y, t, ("%s of %d"):format(kind, n))
        if n % 4 == 1 then
          local which = T.randint(0, 50, { ROWS, n })
          for k, v in ipairs { 0 / 0, math.huge, -math.huge, 0.0, -0.0 } do x = x:masked_fill(which:eq(k), v) end
          x:narrow(1, 17, 1):fill_(-math.huge)
          check(x:to(kind), y, t, ("%s of %d, NaN, infinities and zeros"):format(kind, n))
        end
      end
    end)
  end

  it("are right, and see nothing of what lies beside them", function()
    T.manual_seed(6)
    for _, n in ipairs(LENGTHS) do
      local wide = T.full({ ROWS, n + 3 }, math.huge)
      local x = wide:narrow(2, 2, n)
      x:copy_(T.randn(ROWS, n))
      local d = x:double()
      near.near(x:logsumexp { dim = 2 }, d:exp():sum({ dim = 2 }):log(), 1e-5)
      near.near(x:softmax(2), d:exp() / d:exp():sum { dim = 2, keepdim = true }, 1e-6)
      near.near(x:norm { dim = 2 }, d:square():sum({ dim = 2 }):sqrt(), 1e-5)
      near.near(x:sum { dim = 2 }, d:sum { dim = 2 }, 1e-5)
    end
  end)

  it("of few rows, and columns of few rows, give means that are rounded once", function()
    T.manual_seed(7)
    for _, rows in ipairs { 1, 2, 3, 5, 7, 9, 255, 256, 257 } do
      local x = T.randint(-4000, 4000, { rows, 70 })
      for _, kind in ipairs { "f32", "bf16", "f16" } do
        local z = kind == "f32" and x:to(kind) or x:remainder(64):to(kind)
        near.same_bits(z:mean(1), (z:double():sum(1) / rows):to(kind))
      end
    end
  end)
end)
