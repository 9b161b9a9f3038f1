-- SPDX-License-Identifier: MIT
-- Runs of loaded graphs that train, and fail in their middle: the steps that were made count, the others do not; and
-- what a graph writes into inputs is in them, or is refused.

local T = require "perilune"
local optim = T.optim

local path = os.tmpname()
teardown(function()
  os.remove(path)
  os.remove(path .. ".safetensors")
end)

local function places(list) return T.tensor(list, { dtype = "i64" }) end

-- Statistics, then two steps; places that are not there fail between what `at` says.
local function training(name, options, at)
  T.manual_seed(2)
  local p, norm = T.randn(3):requires_grad_(), T.nn.BatchNorm1d(3)
  local opt = optim[name]({ p }, options)
  local function pick(k, where, x) return k == at and x:index_select(1, where) or x * 1 end
  return function(where)
    norm(T.ones(4, 3) * 2)
    p.grad = pick(1, where, p:detach() * 2)
    opt:step()
    p.grad = pick(2, where, p:detach() * 2)
    opt:step()
    return p:detach() * 1
  end
end

describe("a loaded graph that trains, where a run fails", function()
  it("goes on as the script that made as many steps does", function()
    for name, options in pairs { SGD = { lr = 0.1, momentum = 0.9 }, Adam = { lr = 0.1 },
      NAdam = { momentum_decay = 0.1 }, ASGD = { lr = 0.1, lambd = 0.1, t0 = 3, alpha = 0.6 },
      SGDScheduleFree = { lr = 0.1, warmup_steps = 5 } } do
      for at = 1, 2 do
        local eager, jitted = training(name, options, at), T.jit(training(name, options, at))
        local good, bad = places { 1, 2, 3 }, places { 1, 2, 99 }
        eager(good)
        jitted(good)
        assert(T.save_graph(path, jitted:graph()))
        local g = assert(T.load_graph(path))
        local input
        for k in pairs(g.names) do input = k end
        local function run(where) return g:run({ [input] = where })[1] end
        for _ = 1, 2 do
          assert.is_false((pcall(eager, bad)))
          assert.is_false((pcall(run, bad)))
          for _ = 1, 2 do
            assert.equal(eager(good):to_string(), run(good):to_string(), ("%s, fails before step %d"):format(name, at))
          end
        end
      end
    end
  end)
end)

describe("a graph that writes into an input", function()
  it("writes into what is given, or refuses it", function()
    local g = T.graph()
    local x, y = g:input("x", { 2, 3 }), g:input("y", { 2, 3 })
    g:trace(function() x:add_(1) end)
    g:outputs { x * y }
    local given, other = T.zeros(2, 3), T.ones(2, 3)
    assert.equal(6, g:run({ x = given, y = other })[1]:sum():item())
    assert.equal(6, given:sum():item())
    for text, bad in pairs { ["has to be contiguous"] = T.zeros(3, 2):t(),
      ["shares its memory with y"] = other:view(2, 3) } do
      local ok, err = pcall(g.run, g, { x = bad, y = other })
      assert.is_false(ok)
      assert.matches("run: the graph writes into input x.*" .. text, tostring(err))
    end
    assert.equal(6, other:sum():item())
    local rows = T.ones(2, 2, 3) -- of one memory, and apart from each other
    assert.equal(12, g:run({ x = rows[1], y = rows[2] })[1]:sum():item())
    assert.equal(18, rows:sum():item())
  end)
end)
