-- SPDX-License-Identifier: MIT
-- T.jit on what training loops are made of: schedules, scalers, clipping, several optimizers, computed parameters,
-- hooks, averages. Each runs as a script and as a graph, from the same state; every tensor must have the same bits.
local T = require "perilune"
local nn, optim = T.nn, T.optim
local sched = optim.lr_scheduler

local function raises(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(err))
end

-- make() → a step, and a function that lists the tensors to compare besides its results. → the jitted step
local function both(make, opts, calls)
  local runs, jitted = {}, nil
  for k = 1, 2 do
    T.manual_seed(5)
    local step, state = make()
    if k == 2 then
      step = T.jit(step, opts)
      jitted = step
    end
    local out = {}
    for _ = 1, calls or 4 do
      local results = table.pack(step(T.randn(4, 6)))
      for i = 1, results.n do out[#out + 1] = results[i]:detach():clone() end
    end
    for _, t in ipairs(state()) do out[#out + 1] = t:detach():clone() end
    runs[k] = out
  end
  assert.equal(#runs[1], #runs[2])
  for i, t in ipairs(runs[1]) do assert.is_true(t:equal(runs[2][i]), "tensor " .. i) end
  assert.equal(1, jitted.ntraces)
  assert.is_falsy(jitted.eager)
  return jitted
end

local function tensors_of(...)
  local list = {}
  for _, m in ipairs { ... } do
    for _, t in ipairs(m:parameters()) do list[#list + 1] = t end
    for _, t in ipairs(m:buffers()) do list[#list + 1] = t end
  end
  return list
end

-- A step of net with opt; between backward and the update, and after it, come `before` and `after`.
local function trainer(net, opt, before, after)
  return function(x)
    opt:zero_grad()
    local loss = net(x):pow(2):mean()
    loss:backward()
    if before then before(net, opt) end
    opt:step()
    if after then after(loss) end
    return loss
  end, function() return tensors_of(net) end
end

local schedules = {
  StepLR = function(opt) return sched.StepLR(opt, 2) end,
  CosineAnnealingLR = function(opt) return sched.CosineAnnealingLR(opt, 10) end,
  OneCycleLR = function(opt) return sched.OneCycleLR(opt, { max_lr = 0.1, total_steps = 12 }) end,
  LambdaLR = function(opt) return sched.LambdaLR(opt, function(t) return 1 / (t + 1) end) end,
  SequentialLR = function(opt)
    return sched.SequentialLR(opt, { schedulers = { sched.LinearLR(opt), sched.ExponentialLR(opt, 0.9) },
      milestones = { 2 } })
  end,
  ChainedScheduler = function(opt)
    return sched.ChainedScheduler { sched.ConstantLR(opt), sched.ExponentialLR(opt, 0.8) }
  end,
}

describe("T.jit in training:", function()
  for name, make in pairs(schedules) do
    it(name .. " steps inside of the traced function, without a new trace", function()
      for _, kind in ipairs { "SGD", "Lion" } do -- a fused update, and one behind the graph
        for _, opts in ipairs { {}, { check = true } } do
          local opt, s
          both(function()
            local net = nn.Linear(6, 3)
            opt = optim[kind](net:parameters(), { lr = 0.1, momentum = kind == "SGD" and 0.9 or nil })
            s = make(opt)
            return trainer(net, opt, nil, function() s:step() end)
          end, opts, 6)
          assert.equal(6, s.last_epoch)
          local fresh = optim[kind](nn.Linear(6, 3):parameters(), { lr = 0.1 })
          local other = make(fresh)
          for _ = 1, 6 do other:step() end
          assert.equal(fresh.param_groups[1].lr, opt.param_groups[1].lr)
        end
      end
    end)
  end

  it("ReduceLROnPlateau takes the loss of the graph", function()
    local opt
    both(function()
      local net = nn.Linear(6, 3)
      opt = optim.SGD(net:parameters(), { lr = 0.5 })
      local s = sched.ReduceLROnPlateau(opt, { patience = 0, mode = "max" })
      return trainer(net, opt, nil, function(loss) s:step(loss) end)
    end, {}, 6)
    assert.is_true(opt.param_groups[1].lr < 0.5)
  end)

  it("a schedule before the update, and two updates a call, go in the script's order", function()
    both(function()
      local net = nn.Linear(6, 3)
      local opt = optim.Adam(net:parameters(), { lr = 0.1 })
      local s = sched.ExponentialLR(opt, 0.5)
      local step = trainer(net, opt, function() s:step() end, function() s:step() end)
      return function(x) return step(x), step(x + 1) end, function() return tensors_of(net) end
    end)
  end)

  it("GradScaler scales, unscales, leaves steps out and moves its scale", function()
    for _, clip in ipairs { false, true } do
      for _, kind in ipairs { "SGD", "Lion" } do
        local scaler
        both(function()
          local net = nn.Linear(6, 3)
          local opt = optim[kind](net:parameters(), { lr = 0.1 })
          scaler = T.GradScaler { init_scale = 1024, growth_interval = 2 }
          return function(x)
            opt:zero_grad()
            local loss = net(x):pow(2):mean()
            scaler:scale(loss):backward()
            if clip then
              scaler:unscale_(opt)
              nn.utils.clip_grad_norm_(net:parameters(), 0.5)
            end
            scaler:step(opt)
            scaler:update()
            return loss
          end, function() return tensors_of(net) end
        end, {}, 5)
        assert.equal(4096, scaler:get_scale()) -- two growths
      end
    end
    -- Inf: the step is left out and the scale halves.
    local net, factor = nn.Linear(2, 1), T.tensor(1.0)
    local opt, scaler = optim.SGD(net:parameters(), { lr = 0.1 }), T.GradScaler { init_scale = 8 }
    local step = T.jit(function(x)
      opt:zero_grad()
      scaler:scale((net(x) * factor):sum()):backward()
      scaler:step(opt)
      scaler:update()
    end)
    step(T.ones(1, 2))
    local before = net.weight:detach():clone()
    factor:fill_(math.huge)
    step(T.ones(1, 2))
    assert.is_true(net.weight:detach():equal(before))
    assert.equal(4, scaler:get_scale())
    factor:fill_(1)
    step(T.ones(1, 2))
    assert.is_false(net.weight:detach():equal(before))
    assert.equal(1, step.ntraces)
    local ok, failure = pcall(T.jit(function(x)
      scaler:scale(net(x):sum()):backward()
      scaler:step(opt)
      return net.weight * 2
    end), T.ones(1, 2))
    assert.is_false(ok)
    assert.truthy(failure:find("used after GradScaler:step() of SGD", 1, true), failure)
  end)

  it("weight_norm and spectral_norm compute their parameter in each run", function()
    for _, norm in ipairs { "weight_norm", "spectral_norm" } do
      local net
      both(function()
        net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        nn.utils[norm](net[1])
        nn.utils[norm](net[3])
        return trainer(net, optim.SGD(net:parameters(), { lr = 0.1 }))
      end)
      assert.is_number(net[1].weight:get(1, 1)) -- no symbolic tensor is left behind
    end
  end)

  it("several optimizers, and a network whose gradients another loss leaves behind", function()
    both(function()
      local made, judge = nn.Linear(6, 6), nn.Linear(6, 1)
      local a, b = optim.Adam(made:parameters(), { lr = 0.1 }), optim.SGD(judge:parameters(), { lr = 0.1 })
      return function(x)
        b:zero_grad()
        local d = judge(made(x):detach()):pow(2):mean()
        d:backward()
        b:step()
        a:zero_grad()
        local g = (judge(made(x)) - 1):pow(2):mean()
        g:backward()
        a:step()
        return d, g
      end, function() return tensors_of(made, judge) end
    end)
  end)

  it("dropout under autocast, clipping by norm and by value, hooks of modules and parameters", function()
    both(function()
      local net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
      net[1]:register_forward_hook(function(_, _, y) return y * 2 end)
      net[4]:register_forward_pre_hook(function(_, x) return x end)
      net[4].bias:register_hook(function(g) return g * 0.5 end)
      local low = function(x) return T.autocast("bf16", function() return net(x) end):float() end
      local opt = optim.AdamW(net:parameters(), { lr = 0.1 })
      local step = trainer(low, opt, function()
        nn.utils.clip_grad_value_(net:parameters(), 0.01)
        nn.utils.clip_grad_norm_(net:parameters(), 0.02)
      end)
      return step, function() return tensors_of(net) end
    end)
  end)

  it("a plain average of batch statistics", function()
    local norm
    both(function()
      norm = nn.BatchNorm1d(3, { momentum = false })
      local net = nn.Sequential(nn.Linear(6, 3), norm)
      return trainer(net, optim.SGD(net:parameters(), { lr = 0.1 }))
    end)
    assert.equal(4, norm.num_batches_tracked:item())
    local plain, sum = nn.BatchNorm1d(2, { momentum = false }), T.zeros(2)
    for i = 1, 5 do
      local x = T.randn(7, 2) * i
      plain(x)
      sum = sum + x:mean(1)
    end
    assert.is_true((plain.running_mean - sum / 5):abs():max():item() < 1e-6)
  end)

  it("averages of weights: the plain mean and moving ones", function()
    local swa = optim.swa_utils
    for _, make in ipairs { function(m) return swa.AveragedModel(m) end,
      function(m) return swa.AveragedModel(m, { avg_fn = swa.get_ema_avg_fn(0.9), use_buffers = true }) end } do
      both(function()
        local net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        local average = make(net)
        local step = trainer(net, optim.SGD(net:parameters(), { lr = 0.1 }), nil, function()
          average:update_parameters(net)
        end)
        return step, function() return tensors_of(net, average.module) end
      end)
    end
  end)

  it("lazy layers, made at the first call", function()
    local net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))
    local plain = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    local f = T.jit(net)
    local x = T.randn(5, 6)
    f(x)
    plain:load_state_dict(net:state_dict())
    assert.is_true(f(x):equal(plain(x)))
    assert.equal(1, f.ntraces)
  end)

  it("gradients of several batches go into one step", function()
    local net, step
    local function run(wrap)
      T.manual_seed(5)
      net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
      local opt = optim.Adam(net:parameters(), { lr = 0.1 })
      local pull = wrap(function(x)
        local loss = net(x):pow(2):mean()
        loss:backward()
        nn.utils.clip_grad_norm_(net:parameters(), 0.5)
        return loss
      end)
      step = pull
      for i = 1, 9 do
        pull(T.randn(4, 6))
        if i % 3 == 0 then
          opt:step()
          opt:zero_grad()
        end
      end
      return tensors_of(net)
    end
    local a = run(function(f) return f end)
    for _, opts in ipairs { {}, { check = true } } do
      local b = run(function(f) return T.jit(f, opts) end)
      for i, t in ipairs(a) do assert.is_true(t:equal(b[i])) end
      assert.equal(2, step.ntraces)
    end
  end)

  it("a result keeps its history where a backward ran before the trace through what it captured", function()
    local a = T.tensor({ 1, 2 }):requires_grad_()
    local c = a * 2 -- recorded outside
    (c * c):sum():backward()
    local f = T.jit(function(x) return x * c end)
    for _ = 1, 2 do assert.is_true(f(T.ones(2)).requires_grad) end
    local b = T.tensor({ 3, 4 }):requires_grad_()
    local g = T.jit(function(x) -- one part is spent, the other is not
      local l = (b * x):sum()
      l:backward()
      return l + (b * x * x):sum()
    end)
    for _ = 1, 2 do assert.is_true(g(T.ones(2)).requires_grad) end
  end)

  -- Steps as people write them: way(net, opt, x) → results.
  local ways = {
    ["losses whose backward has run are summed and returned"] = function(net, opt, x)
      opt:zero_grad()
      local a = net(x):square():mean()
      a:backward()
      local b = net(x * 2):square():mean()
      b:backward()
      opt:step()
      return a + b, a * 2
    end,
    ["parameters are reached through the optimizer's groups"] = function(net, opt, x)
      opt:zero_grad()
      local loss = net(x):square():mean()
      loss:backward()
      local all = {}
      for _, group in ipairs(opt.param_groups) do for _, p in ipairs(group.params) do all[#all + 1] = p end end
      nn.utils.clip_grad_norm_(all, 0.1)
      opt:step()
      return loss
    end,
    [".grad is given a detached tensor"] = function(net, opt, x)
      local gs = T.grad_of(net(x):square():mean(), net:parameters(), { create_graph = true })
      for i, p in ipairs(net:parameters()) do p.grad = (gs[i] * gs[i]:sum()):detach() end
      opt:step()
      return gs[1]:detach()
    end,
    ["aliases of weights are there before the step"] = function(net, opt, x)
      local before = net.weight:detach()
      opt:zero_grad()
      net(x):square():mean():backward()
      opt:step()
      return net.weight:detach() - before, before
    end,
    ["T.grad of what was captured, for each sample too"] = function(net, opt, x)
      local function loss(d, a) return nn.utils.functional_call(net, d, a):square():mean() end
      local d = {}
      for k, p in net:named_parameters() do d[k] = p:detach() end
      local all, each = T.grad(loss)(d, x), T.vmap(T.grad(loss), { in_dims = { false, 1 } })(d, x)
      opt:zero_grad()
      for k, p in net:named_parameters() do p.grad = all[k] + each[k]:amax(1) end
      opt:step()
      return all.weight
    end,
  }
  for name, way in pairs(ways) do
    it(name .. ": one trace, the same bits, rates that a schedule moves", function()
      for _, kind in ipairs { "SGD", "Adam" } do
        both(function()
          local net = nn.Linear(6, 3)
          local opt = optim[kind](net:parameters(), { lr = 0.1 })
          local s = sched.ExponentialLR(opt, 0.5)
          return function(x)
            local results = table.pack(way(net, opt, x))
            if not name:find("groups") then s:step() end -- a rate that the function can read is a guard
            return table.unpack(results, 1, results.n)
          end, function() return tensors_of(net) end
        end)
      end
    end)
  end

  it("a result whose weights were stepped before its gradient is asked for: how to return it", function()
    local net = nn.Linear(6, 3)
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    raises("return those that need none detached", T.jit(function(x)
      local other = net.weight:square():sum()
      opt:zero_grad()
      net(x):sum():backward()
      opt:step()
      return other
    end), T.randn(4, 6))
  end)

  it("a trace that fails takes back what schedules and counters did", function()
    local net = nn.Linear(2, 2)
    local opt = optim.Adam(net:parameters(), { lr = 0.1 })
    local s = sched.StepLR(opt, 1)
    local bad = true
    local f = T.jit(function(x)
      opt:zero_grad()
      local loss = net(x):sum()
      loss:backward()
      opt:step()
      s:step()
      if bad then loss:item() end
    end)
    raises("is symbolic", f, T.ones(1, 2))
    assert.equal(0, s.last_epoch)
    assert.equal(0.1, opt.param_groups[1].lr)
    assert.is_nil(opt:state_dict().state[1])
    bad = false
    f(T.ones(1, 2))
    assert.equal(1, opt:state_dict().state[1].step)
  end)
end)
