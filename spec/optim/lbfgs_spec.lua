-- SPDX-License-Identifier: MIT
-- Limited-memory BFGS: where it ends, its searches along lines, a closure that fails in one.

local T = require "perilune"
local nn, optim = T.nn, T.optim
local f64 = { dtype = "f64" }

local function close(got, want, tol)
  assert(math.abs(got - want) <= tol, ("%s is not %s"):format(got, want))
end

describe("LBFGS", function()
  it("finds the bottom of Rosenbrock's valley", function()
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
        close(p:get(1), 1, 1e-5)
        close(p:get(2), 1, 1e-5)
      else
        assert.is_true(loss():item() < first)
      end
    end
  end)

  it("with maximize goes where it goes down on the negative", function()
    for _, search in ipairs { "strong_wolfe", false } do
      local ends, losses = {}, {}
      for k, sign in ipairs { 1, -1 } do
        local p = nn.Parameter(T.tensor({ -1.2, 1.0 }, f64))
        local opt = optim.LBFGS({ p }, { line_search_fn = search, lr = search and 1.0 or 0.002, maximize = sign < 0 })
        for _ = 1, 3 do
          losses[k] = opt:step(function()
            opt:zero_grad()
            local x, y = p:select(1, 1), p:select(1, 2)
            local l = ((1 - x) ^ 2 + 100 * (y - x * x) ^ 2) * sign
            l:backward()
            return l
          end):item()
        end
        ends[k] = p:detach()
      end
      assert.is_true(ends[1]:equal(ends[2]))
      assert.equal(losses[1], -losses[2])
    end
  end)

  it("goes on as if nothing had been, where its closure fails in a search", function()
    local function build(search, iterations)
      local p, n, stop = nn.Parameter(T.tensor({ -1.2, 1, 0.7 }, { dtype = "f64" })), 0, nil
      local opt = optim.LBFGS({ p }, { lr = search and 1 or 0.05, max_iter = iterations, max_eval = 1000,
        line_search_fn = search })
      local function step()
        return pcall(opt.step, opt, function()
          n = n + 1
          if n == stop then error("stop", 0) end
          opt:zero_grad()
          local loss = 100 * (p[2] - p[1] ^ 2) ^ 2 + (1 - p[1]) ^ 2 + (p[3] - 0.3 * p[1]) ^ 2
          loss:backward()
          return loss
        end)
      end
      return step, function() return ("%.17g %.17g %.17g"):format(p:get(1), p:get(2), p:get(3)) end,
        function(k) stop = k end
    end
    for _, search in ipairs { "strong_wolfe", false } do
      local on_the_way, step, point = {}, build(search, 1)
      for _ = 1, 40 do
        on_the_way[point()] = true
        step()
      end
      local failures = 0
      for k = 1, 20 do
        local again, where, fail_at = build(search, 3)
        fail_at(k)
        for i = 1, 8 do
          if not again() then failures = failures + 1 end
          assert.is_true(on_the_way[where()], ("%s: evaluation %d fails, step %d"):format(search, k, i))
        end
      end
      assert.equal(20, failures)
    end
  end)

  it("keeps to max_eval also while it searches along a line, as PyTorch does", function()
    local p = nn.Parameter(T.tensor({ -1.2, 1.0, 0.5, 2.0 }, f64))
    local opt = optim.LBFGS({ p }, { line_search_fn = "strong_wolfe", lr = 0.3, max_iter = 1, history_size = 2 })
    local calls = 0
    local function closure()
      opt:zero_grad()
      local a, b = p[{ { 1, 3 } }], p[{ { 2, 4 } }]
      local l = ((1 - a) ^ 2 + 100 * (b - a ^ 2) ^ 2):sum() * 0.01
      l:backward()
      calls = calls + 1
      return l
    end
    for _, want in ipairs { 3.557, 2.581913997496357, 0.13275474630796302, 0.07889924310444102 } do
      close(opt:step(closure):item(), want, 1e-9)
    end
    assert.equal(8, calls)
  end)
end)
