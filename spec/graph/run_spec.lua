-- SPDX-License-Identifier: MIT
-- What runs of planned graphs really use: the executor's own counter, taken from the allocator, is the plan's figure to
-- the byte, on all models that the planner's figures are stated for; and what jitted functions tell of their runs.

local T = require "perilune"
local nn = T.nn
local models = require "spec.support.models"

local made = {
  mlp = models.mlp, lenet = models.lenet, lstm = models.lstm, gpt_nano = models.gpt_nano,
  resnet18 = function() return models.resnet18(2, 64) end,
  resnet50 = function() return models.resnet50(2, 64) end,
  resnet152 = function() return models.resnet152(1, 64) end,
  gpt_medium = function() return models.gpt(8, 8, 512, 256, 8192, 1) end,
}

local function exact(plan)
  assert.is_true(plan.measured_bytes > 0)
  assert.equal(plan.arena_bytes + plan.leaf_bytes + plan.output_bytes + plan.workspace_bytes, plan.measured_bytes)
end

describe("a run holds at its peak what its plan says, to the byte:", function()
  for name, make in pairs(made) do
    it(name, function()
      local net, feed = make()
      for _, options in ipairs { { mirror = "none" }, { mirror = true } } do
        local g, numbers = models.graph(net, feed, options)
        assert.is_nil(g:plan().measured_bytes)
        g:run(numbers())
        exact(g:plan())
        if options.mirror == "none" and name ~= "lstm" then assert.matches("measured in a run", tostring(g:plan())) end
      end
    end)
  end

  it("training steps with an optimizer, and functions whose results have gradients", function()
    local net, feed = models.lenet(4)
    local opt = T.optim.Adam(net:parameters(), { lr = 0.1 })
    local g = T.graph()
    local _, numbers = g:trace(feed, g)
    local n = numbers()
    local step = T.jit(function(x, y)
      opt:zero_grad()
      local loss = nn.F.cross_entropy(net(x), y)
      loss:backward()
      opt:step()
      return loss
    end)
    for _ = 1, 3 do
      step(n.x, n.y)
      exact(step:plan())
    end
    local f = T.jit(net)
    f(n.x):sum():backward()
    local forward, backward = f:plan()
    exact(forward)
    exact(backward)
  end)

  it("an input that has to be copied is seen", function()
    local g = T.graph()
    g:outputs { g:input("x", { 300, 200 }) + 1 }
    g:run { x = T.ones(200, 300):t() }
    local plan = g:plan()
    assert.equal(plan.peak_bytes, plan.measured_bytes) -- the copy in place of the input
    g:run { x = T.ones(300, 200) }
    exact(g:plan())
  end)
end)

describe("explain", function()
  it("tells ops, bytes, operations and seconds of each line, backward apart, recomputation where it runs", function()
    local w, v = T.randn(64, 64):requires_grad_(), T.ones(64)
    local body = function(x)
      local h = x:matmul(w)
      local y = (h * v):tanh()
      return y:pow(2):sum()
    end
    local first = debug.getinfo(body, "S").linedefined
    local f = T.jit(body)
    for _ = 1, 4 do f(T.ones(32, 64)):backward() end
    local rows, seen = f:explain(), {}
    for _, r in ipairs(rows) do
      local at = tonumber(r.line:match("run_spec.lua:(%d+)"))
      if at then seen[(r.backward and -1 or 1) * (at - first)] = r end
      assert.is_true(r.seconds > 0 and r.seconds < 60)
    end
    assert.same({ 1, 2 * 32 * 64 * 64, 4 * 32 * 64 }, { seen[1].ops, seen[1].flops, seen[1].bytes })
    assert.same({ mul = 1, tanh = 1 }, seen[2].names)
    assert.matches("^matmul", seen[-1].most)
    assert.is_true(seen[-2].ops >= 2 and seen[-3].ops >= 1)
    local own = debug.getinfo(1, "l").currentline
    local step = T.jit(function(x)
      w.grad = nil
      local h = x:matmul(w)
      local loss = h:tanh():sum()
      loss:backward()
      return loss
    end)
    for _ = 1, 2 do step(T.ones(32, 64)) end
    local of = {}
    for _, r in ipairs(step:explain()) do
      local at = tonumber(r.line:match("run_spec.lua:(%d+)"))
      if at then of[(r.backward and "back " or "") .. at - own] = r.names end
    end
    assert.same({ matmul = 1 }, of["3"])
    assert.matches("^matmul", next(of["back 3"])) -- gradients belong to the line whose they are
    assert.is_true(of["back 4"] ~= nil)
    local text = tostring(rows)
    assert.matches("line +ops +bytes +flops +us +%%  most time in", text)
    assert.matches(":%d+ %(backward%) +%d+ .- matmul", text)
  end)
end)
