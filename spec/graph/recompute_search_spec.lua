-- SPDX-License-Identifier: MIT
-- What searches for a recomputation ends on every graph, and leaves alone what cannot be computed again.

local T = require "perilune"

local POLICIES = { "none", "mirror", "mincut", "auto" }

-- A chain, a residual chain and a fan of one-element tensors.
local SHAPES = {
  chain = function(x)
    for _ = 1, 12 do x = T.tanh(x) end
    return x
  end,
  residual = function(x, w)
    for _ = 1, 12 do x = x + T.relu(x * w) end
    return x
  end,
  layers = function(x, w)
    x = x:view(1, 1)
    for _ = 1, 8 do x = x + T.tanh(T.linear(x, w:view(1, 1))) end
    return x:view(1)
  end,
  fan = function(x, w)
    local sum = x
    for i = 1, 8 do sum = sum + T.sigmoid(x * w) * i end
    return sum
  end,
}

describe("planning graphs of one-element tensors ends", function()
  for name, build in pairs(SHAPES) do
    for _, n in ipairs { 1, 0 } do
      it(("%s of %d elements"):format(name, n), function()
        if n == 0 and name == "layers" then return end
        local want
        local function ask(options)
          local g = T.graph()
          local x, w = g:input("x", { n }), g:input("w", { n }, { leaf = true })
          local y = build(x, w)
          options.allow_unused = true
          local dx, dw = table.unpack(g:gradient({ y }, { x, w }, options))
          g:outputs { y, dx, dw }
          local ok, plan = pcall(g.plan, g)
          if ok then
            local out = g:run { x = T.full({ n }, 0.5), w = T.full({ n }, 0.7) }
            want = want or out
            for i = 1, #want do assert.is_true(want[i]:equal(out[i])) end
          end
          return ok, plan
        end
        for _, policy in ipairs(POLICIES) do
          for _, heavy in ipairs { false, true } do
            assert.is_true((ask { mirror = policy, heavy = heavy, seeded = heavy }))
          end
        end
        assert.is_true((ask { budget = { fraction = 0 } }))
        assert.is_true((ask { budget = { fraction = 0.3 }, heavy = true }))
        local ok, err = ask { budget = { bytes = 1 }, heavy = true }
        if n == 1 then
          assert.is_false(ok)
          assert.is_truthy(err:find("a budget of 1 bytes cannot be met: the lowest planned peak is", 1, true), err)
        end
      end)
    end
  end

  it("a training step of scalar parameters", function()
    local function step(policy)
      local w, b = T.full({ 1 }, 0.5):requires_grad_(), T.zeros(1):requires_grad_()
      local f = T.jit(function(x)
        w.grad, b.grad = nil, nil
        local y = x
        for _ = 1, 6 do y = T.tanh(y * w + b) end
        local loss = (y * y):sum()
        loss:backward()
        T.no_grad(function()
          w:sub_(w.grad * 0.1)
          b:sub_(b.grad * 0.1)
        end)
        return loss
      end, { mirror = policy, heavy = policy and true or nil })
      local last
      for k = 1, 3 do last = f(T.full({ 1 }, k)) end
      return { last, w:detach(), b:detach() }
    end
    local want = step(nil)
    for _, policy in ipairs(POLICIES) do
      for i, t in ipairs(step(policy)) do assert.is_true(want[i]:equal(t), policy) end
    end
  end)
end)

describe("a buffer that is updated after it was read", function()
  it("keeps its readers from being computed again, under every policy of T.graph", function()
    local function run(options)
      local buf, g = T.full({ 4 }, 0.5), T.graph()
      local x = g:input("x", { 4 })
      local mean = T.tanh(x * 2) + buf       -- reads the buffer before the update …
      buf:mul_(0.9)
      buf:add_(g:trace(function() return mean * 0.1 end))
      local y = T.tanh(T.tanh(mean) * buf)   -- … and after it
      local dx = g:gradient({ y * y }, x, options)
      g:outputs { y, dx }
      local out
      for k = 1, 3 do out = g:run { x = T.arange(4):float() * (0.1 * k) } end
      assert.is_true(g:plan():verify())
      assert.equal(0, g:plan().stage[mean])
      return { out[1], out[2], buf }
    end
    local want = run { mirror = "none" }
    for _, policy in ipairs(POLICIES) do
      for _, more in ipairs { false, true } do
        local got = run { mirror = policy, seeded = more, heavy = more }
        for i, t in ipairs(got) do assert.is_true(want[i]:equal(t), policy) end
      end
    end
    for i, t in ipairs(run { budget = { fraction = 0 } }) do assert.is_true(want[i]:equal(t)) end
    for i, t in ipairs(run { mirror = function() return true end }) do assert.is_true(want[i]:equal(t)) end
  end)

  it("does so in jitted steps, checkpointed modules included", function()
    local function run(policy, checkpointed)
      local block = T.nn.Sequential(T.nn.Linear(8, 8), T.nn.BatchNorm1d(8), T.nn.Tanh())
      local net = T.nn.Sequential(T.nn.Linear(6, 8), T.nn.BatchNorm1d(8), T.nn.ReLU(),
        checkpointed and T.nn.checkpointed(block) or block, T.nn.Linear(8, 2))
      T.manual_seed(3)
      for _, p in ipairs(net:parameters()) do T.no_grad(function() p:copy_(T.randn(p:size()) * 0.3) end) end
      local count = T.zeros(1)
      local f = T.jit(function(x)
        local y = net(x * (count + 1))
        T.no_grad(function() count:add_(1) end)
        local loss = (y * y):mean()
        loss:backward()
        return loss
      end, { mirror = policy })
      local out
      for _ = 1, 3 do
        for _, p in ipairs(net:parameters()) do p.grad = nil end
        out = f(T.randn(5, 6))
      end
      local list = { out, count }
      for _, p in ipairs(net:parameters()) do list[#list + 1] = p.grad end
      for _, p in pairs(net:state_dict()) do list[#list + 1] = p:float():sum() end
      return list
    end
    local want = run(nil)
    local function sum(list)
      local s = 0
      for _, t in ipairs(list) do s = s + t:double():abs():sum():item() end
      return s
    end
    for k = 1, 2 * #POLICIES do
      local policy = POLICIES[(k + 1) // 2]
      local got = run(policy, k % 2 == 0)
      for i = 1, 2 + 10 do assert.is_true(want[i]:equal(got[i]), policy) end
      assert.is_true(math.abs(sum(want) - sum(got)) < 1e-9)
    end
  end)

  it("is an error only where such a node is forced by name, whatever the policy", function()
    for _, policy in ipairs(POLICIES) do
      local buf, g = T.ones(4), T.graph()
      local x = g:input("x", { 4 })
      local sum = x + buf
      local y = T.tanh(T.tanh(sum))
      buf:add_(x)
      g:outputs { g:gradient({ y }, x, { mirror = policy, force = { sum } }) }
      local ok, err = pcall(g.plan, g)
      assert.is_false(ok)
      assert.is_truthy(err:find("recomputing add_1 in backward would read a leaf that is overwritten", 1, true), err)
    end
  end)
end)

describe("options that say what is computed again", function()
  local function ask(options)
    local g = T.graph()
    local x = g:input("x", { 64 })
    local y = T.tanh(x)
    local z = T.tanh(y)
    g:outputs { g:gradient({ z * z }, x, options(y)) }
    return g:plan()
  end

  it("force nodes under every policy, and without one", function()
    for _, policy in ipairs { false, table.unpack(POLICIES) } do
      local plan = ask(function(y) return { mirror = policy or nil, force = { y } } end)
      assert.equal(1, plan.stage.tanh_1, policy)
    end
  end)

  it("force what a view shows, by tensor and by name", function()
    for k = 1, 2 do
      local g = T.graph()
      local x = g:input("x", { 8, 8 })
      local y = T.tanh(x)
      local v = g:name(y:t():narrow(1, 1, 4), "part")
      g:outputs { g:gradient({ (T.tanh(v) * v):sum() }, x, { force = { k == 1 and v or "part" } }) }
      assert.equal(1, g:plan().stage[y])
    end
  end)

  it("are refused where they contradict each other, or say nothing", function()
    local function refused(text, options)
      local fine, message = pcall(ask, options)
      assert.is_false(fine, text)
      assert.is_truthy(message:find(text, 1, true), message)
    end
    refused("pin and force both name tanh_1", function(y)
      return { mirror = "mincut", pin = { y }, force = { "tanh_1" } }
    end)
    refused("heavy=true says what else may be computed again; it needs mirror= or budget=", function()
      return { heavy = true }
    end)
    refused("seeded=true says what else", function() return { seeded = true } end)
    assert.is_false((pcall(T.jit, function(x) return x end, { heavy = true })))
    assert.is_false((pcall(T.graph, { unsafe_math = "yes" })))
    local buf, g = T.zeros(4), T.graph()
    local x = g:input("x", { 4 })
    g:trace(function() buf:add_(x) end)
    local moved = g:nodes()[#g:nodes()].name
    local y = T.tanh(T.tanh(x))
    g:outputs { g:gradient({ y * y }, x, { force = { moved } }) }
    local fine, message = pcall(g.plan, g)
    assert.is_false(fine)
    assert.is_truthy(message:find(moved .. " cannot be computed again: it has an effect", 1, true), message)
    local ok, err = pcall(ask, function() return { mirror = "none", budget = { fraction = 0.5 } } end)
    assert.is_false(ok)
    assert.is_truthy(err:find('a budget needs a policy that computes something again, not mirror="none"', 1, true), err)
  end)
end)

describe("a gradient pass that fails", function()
  it("leaves no nodes behind", function()
    local g = T.graph()
    local x = g:input("x", { 3 })
    local y, z, wrong = x:sin(), x * 2, g:input("wrong", { 1 })
    local before = g:text()
    local ok, err = pcall(g.gradient, g, { y, z }, x, { out_grads = { false, wrong } })
    assert.is_false(ok)
    assert.is_truthy(err:find("its out-gradient is f32[1]", 1, true), err)
    assert.equal(before, g:text())
    g:outputs { g:gradient(y, x) }
    assert.is_true(g:verify())
    assert.is_true((g:run { x = T.ones(3), wrong = T.ones(1) })[1]:allclose(T.ones(3):cos()))
  end)
end)

describe("where more is alive than kept", function()
  local ROWS, WIDTH = 2048, 16
  local MAP = 4 * ROWS * WIDTH

  -- x + relu(linear(x)) n times: its sums can be computed again, but not all at once.
  local function tower(n, options, rows)
    local g, ws = T.graph(), {}
    local x = g:input("x", { rows or ROWS, WIDTH })
    local y = x
    for i = 1, n do
      ws[i] = g:input("w" .. i, { WIDTH, WIDTH }, { leaf = true })
      y = y + T.relu(T.linear(y, ws[i]))
    end
    local loss = y:mean()
    local outputs = g:gradient(loss, ws, options)
    outputs[#outputs + 1] = loss
    g:outputs(outputs)
    return g
  end

  it("a tower of one-layer blocks needs a map a layer and one more, not two a layer", function()
    for _, n in ipairs { 4, 8, 16, 32, 64 } do
      local none, auto = tower(n, { mirror = "none" }):plan(), tower(n, { mirror = "auto" }):plan()
      assert.is_true(none.arena_bytes >= (2 * n - 1) * MAP)
      assert.is_true(auto:verify())
      assert.is_true(auto.arena_bytes <= (n + 1) * MAP + 1024,
        ("%d layers: %.2f maps"):format(n, auto.arena_bytes / MAP))
    end
    assert.is_true(tower(16, { mirror = "none" }):plan().peak_bytes > 4.2e6)
    assert.is_true(tower(16, { mirror = "auto" }):plan().peak_bytes <= 2.4e6)
    local plan = tower(16, { budget = { bytes = 2400000 } }):plan()
    assert.is_true(plan.peak_bytes <= 2400000)
  end)

  it("does so at any size, one element included, with the same bits", function()
    for _, rows in ipairs { 1, 3, 64 } do
      local feed, want = { x = T.randn(rows, WIDTH) }, nil
      for i = 1, 24 do feed["w" .. i] = T.randn(WIDTH, WIDTH) * 0.2 end
      for _, policy in ipairs(POLICIES) do
        local g = tower(24, { mirror = policy }, rows)
        local out = g:run(feed)
        want = want or out
        for i = 1, #want do assert.is_true(want[i]:equal(out[i]), policy) end
        local plan = g:plan()
        assert.equal(plan.measured_bytes, plan.peak_bytes + plan.workspace_bytes)
      end
    end
  end)

  it("draws dropout's numbers again, and leaves buffers alone that are updated", function()
    local function run(policy)
      T.manual_seed(4)
      local g, buf = T.graph(), T.zeros(64, 32)
      local x = g:input("x", { 64, 32 })
      local y = x
      for _ = 1, 6 do
        y = y + T.nn.F.dropout(T.tanh(y * 2), 0.4)
        y = y + T.sigmoid(y + buf)
      end
      buf:add_(g:trace(function() return y * 0.1 end))
      y = y * T.tanh(y + buf)
      g:outputs { y:sum(), g:gradient(y:sum(), x, { mirror = policy }) }
      local out
      for k = 1, 3 do out = g:run { x = T.arange(2048):float():view(64, 32) * (1e-3 * k) } end
      assert.is_true(g:plan():verify())
      return { out[1], out[2], buf }, g:plan()
    end
    local want, none = run "none"
    local got, auto = run "auto"
    for i = 1, 3 do assert.is_true(want[i]:equal(got[i])) end
    assert.is_true(auto.recomputed > 0 and auto.peak_bytes < none.peak_bytes)
  end)

  it("the search takes a bounded time", function()
    -- Least times of several runs: neighbours on the machine make single ones longer, never shorter.
    for _, case in ipairs { { 12, 0.5 }, { 300, 1.0 }, { 2500, 2.5 } } do
      local least, tries = math.huge, 0
      repeat
        local g = tower(case[1], { mirror = "auto" }, 4)
        local from = os.clock()
        g:plan()
        least, tries = math.min(least, os.clock() - from), tries + 1
      until least < case[2] or tries == 10
      assert.is_true(least < case[2], ("%d layers: %.2f s"):format(case[1], least))
    end
  end)
end)

describe("passes over long graphs", function()
  it("are done in proportion: sums of very many slices", function()
    local function seconds(n)
      local g, sum = T.graph(), nil
      local x = g:input("x", { 64, 2 })
      for i = 1, n do
        local part = x:narrow(1, (i - 1) % 64 + 1, 1):sin()
        sum = sum and sum + part or part
      end
      g:outputs { g:gradient(sum:sum(), x) }
      local from = os.clock()
      assert.is_true(g:plan():verify())
      return os.clock() - from
    end
    local least, tries = math.huge, 0
    repeat
      least, tries = math.min(least, seconds(20000)), tries + 1
    until least < 1 or tries == 5
    assert.is_true(least < 1, ("%.2f s"):format(least))
    seconds(150000) -- nor does anything run out of stack
  end)
end)
