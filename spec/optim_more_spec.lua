-- SPDX-License-Identifier: MIT
-- RMSprop, the rarer optimizers and LBFGS: what the golden corpus does not show. Formulas without a golden file, state
-- that is saved and taken up again, refusals.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim
local fails = near.fails

local function eq(got, want, tol)
  assert(math.abs(got - want) <= tol, ("%s is not %s"):format(got, want))
end

local f64 = { dtype = "f64" }
local grads = { 0.5, -1.0, 2.0, 0.25, 0.25 }

local function run(make, start)
  local p = nn.Parameter(T.tensor({ start }, f64))
  local opt, out = make { p }, {}
  for i, g in ipairs(grads) do
    p.grad = T.tensor({ g }, f64)
    opt:step()
    out[i] = p:get(1)
  end
  return out
end

-- Gradients of ½ ‖W x - y‖² with fixed x, y for some steps.
local function descend(w, opt, steps)
  local x, y = T.linspace(-1, 1, 12, f64):view(3, 4), T.linspace(0, 1, 6, f64):view(2, 3)
  for _ = 1, steps do
    opt:step(function()
      opt:zero_grad()
      local loss = 0.5 * (w:matmul(x:t()) - y):square():sum()
      loss:backward()
      return loss
    end)
  end
end

local function start()
  return nn.Parameter(T.linspace(-0.5, 0.7, 8, f64):view(2, 4))
end

describe("an optimizer", function()
  it("RMSprop follows its formula, centered, with momentum, and to ascend", function()
    for _, o in ipairs { { lr = 0.1 }, { lr = 0.1, centered = true, momentum = 0.5 },
      { lr = 0.1, momentum = 0.9, weight_decay = 0.1, maximize = true } } do
      local p, s, a, b, want = 1.0, 0.0, 0.0, 0.0, {}
      for i, g in ipairs(grads) do
        g = (o.maximize and -g or g) + (o.weight_decay or 0) * p
        s = 0.99 * s + 0.01 * g * g
        a = a + 0.01 * (g - a)
        local step = g / (math.sqrt(o.centered and s - a * a or s) + 1e-8)
        b = (o.momentum or 0) * b + step
        p = p - o.lr * b
        want[i] = p
      end
      local got = run(function(ps) return optim.RMSprop(ps, o) end, 1.0)
      for i, v in ipairs(want) do eq(got[i], v, 1e-12) end
    end
  end)

  it("RMSprop takes half precision and any layout", function()
    local base = T.zeros(4, 3)
    local p = base:t():detach():requires_grad_()
    local half = T.zeros({ 3 }, { dtype = "f16" }):requires_grad_()
    local opt = optim.RMSprop({ p, half }, { lr = 0.1 })
    p.grad, half.grad = T.ones(3, 4), T.ones({ 3 }, { dtype = "f16" })
    opt:step()
    eq(p:get(1, 1), -1, 1e-5) -- 0.1 · 1 / √0.01
    eq(half:get(1), -1, 1e-2)
  end)

  it("Lion steps by signs", function()
    local p, m, want = 1.0, 0.0, {}
    for i, g in ipairs(grads) do
      local u = 0.9 * m + 0.1 * g
      p = p * (1 - 0.1 * 0.5) - 0.1 * (u > 0 and 1 or u < 0 and -1 or 0)
      m = 0.99 * m + 0.01 * g
      want[i] = p
    end
    local got = run(function(ps) return optim.Lion(ps, { lr = 0.1, weight_decay = 0.5 }) end, 1.0)
    for i, v in ipairs(want) do eq(got[i], v, 1e-12) end
  end)

  it("Muon steps by matrices with singular values near one, and takes matrices only", function()
    T.manual_seed(3)
    local p = nn.Parameter(T.zeros({ 6, 4 }, f64))
    local opt = optim.Muon({ p }, { lr = 1.0, weight_decay = 0.0 })
    p.grad = T.randn({ 6, 4 }, f64)
    opt:step()
    local step = p:detach() / math.sqrt(6 / 4)
    local gram = step:t():matmul(step)
    -- the iteration brings singular values between about 0.7 and 1.2
    eq(gram:trace():item() / 4, 1.0, 0.35)
    local off = (gram - T.diag(gram:diagonal())):abs():max():item()
    assert.is_true(off < 0.45, off)
    fails("only matrices", function()
      local q = nn.Parameter(T.zeros(3))
      local o = optim.Muon { q }
      q.grad = T.ones(3)
      o:step()
    end)
  end)

  for _, name in ipairs { "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD", "Adafactor",
    "Lion", "Muon", "LBFGS" } do
    it(name .. " goes down, and goes on from a saved state with the same bits", function()
      local o = name == "LBFGS" and { max_iter = 2 } or nil
      local w = start()
      local opt = optim[name]({ w }, o)
      local function loss()
        local x, y = T.linspace(-1, 1, 12, f64):view(3, 4), T.linspace(0, 1, 6, f64):view(2, 3)
        return (w:detach():matmul(x:t()) - y):square():sum():item()
      end
      local before = loss()
      descend(w, opt, 3)
      assert.is_true(loss() < before)
      local saved, at = opt:state_dict(), w:detach():clone()
      local path = os.tmpname()
      assert(T.save(path, { opt = saved }))
      saved = assert(T.load(path)).opt
      os.remove(path)
      descend(w, opt, 2)
      local want = w:detach():clone()
      w = nn.Parameter(at)
      local fresh = optim[name]({ w }, o)
      fresh:load_state_dict(saved)
      descend(w, fresh, 2)
      near.same_bits(w:detach(), want)
    end)
  end

  it("LBFGS finds the bottom of Rosenbrock's valley", function()
    for _, search in ipairs { "strong_wolfe", false } do
      local p = nn.Parameter(T.tensor({ -1.2, 1.0 }, f64))
      local opt = optim.LBFGS({ p }, { line_search_fn = search, lr = search and 1.0 or 0.002, max_iter = 100,
        history_size = 10, tolerance_change = 1e-14 })
      local function loss()
        local x, y = p:select(1, 1), p:select(1, 2)
        return (1 - x) ^ 2 + 100 * (y - x * x) ^ 2
      end
      local first = loss():item()
      for _ = 1, 5 do
        opt:step(function()
          opt:zero_grad()
          local l = loss()
          l:backward()
          return l
        end)
      end
      if search then
        eq(p:get(1), 1, 1e-5)
        eq(p:get(2), 1, 1e-5)
      else
        assert.is_true(loss():item() < first)
      end
    end
  end)

  it("refuses what it cannot use", function()
    local p = nn.Parameter(T.zeros(2))
    fails("RMSprop: alpha", optim.RMSprop, { p }, { alpha = -1 })
    fails("etas must be two numbers", optim.Rprop, { p }, { etas = 3 })
    fails("unknown option 'foo'", optim.NAdam, { p }, { foo = 1 })
    fails("line_search_fn must be", optim.LBFGS, { p }, { line_search_fn = "armijo" })
    fails("a closure", function() optim.LBFGS({ p }):step() end)
    fails("only one group", optim.LBFGS, { { params = { p } }, { params = { nn.Parameter(T.zeros(1)) } } })
  end)
end)
