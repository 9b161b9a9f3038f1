-- SPDX-License-Identifier: MIT
-- Steps that fail, and scripts that go on: first states are those of the weights at the first step that was made, in
-- scripts, in T.jit and behind T.GradScaler; what a step cannot go on from is refused.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local function fails(text, f, ...)
  local ok, why = pcall(f, ...)
  assert.is_false(ok, text)
  assert.truthy(tostring(why):find(text, 1, true), why)
end

local function parameter(...) return nn.Parameter(T.tensor({ ... }, { dtype = "f64" })) end

local copying = { "AdamWScheduleFree", "SGDScheduleFree", "Prodigy" } -- first states that are copies of weights

describe("a first step that fails leaves no first states:", function()
  -- An index out of range fails in the script, and in a run of the graph.
  local function trained(name, jitted)
    local p = parameter(1, 2, 3)
    local opt = optim[name]({ p }, {})
    local function step(places)
      opt:zero_grad();
      (p:index_select(1, places) - 4):square():sum():backward()
      opt:step()
    end
    local f = jitted and T.jit(step) or step
    fails("out of range", f, T.tensor({ 7, 9 }, { dtype = "i64" }))
    assert.is_nil(opt.state[p].step)
    assert.same({}, opt:state_dict().state)
    T.no_grad(function() p:mul_(10) end)
    for _ = 1, 4 do f(T.tensor({ 1, 3 }, { dtype = "i64" })) end
    assert.equal(4, opt.state[p].step)
    return p:detach()
  end
  for _, name in ipairs { "AdamWScheduleFree", "SGDScheduleFree", "Prodigy", "ASGD", "SGD", "Adafactor" } do
    it(name .. ", a run of a graph", function()
      local a, b = trained(name, false), trained(name, true)
      assert.is_true((a - b):abs():max():item() < 1e-12, tostring(a) .. tostring(b))
    end)
  end

  -- The second group's states cannot be made: nothing has moved, and no state of the first waits.
  for _, name in ipairs { "AdamWScheduleFree", "SGDScheduleFree", "SOAP", "Adam" } do
    it(name .. ", the states of a later group", function()
      local seen = {}
      for _, way in ipairs { "script", "jitted", "scaler", "jitted scaler" } do
        local p, q = parameter(1, 2), parameter(-1, 3)
        local opt, broken = optim[name]({ { params = { p } }, { params = { q } } }, { lr = 0.1 }), true
        local ready = opt._ready
        function opt:_ready(group)
          if broken and group == self.param_groups[2] then error("broken", 0) end
          return ready(self, group)
        end
        local scaler = way:find "scaler" and T.GradScaler { init_scale = 4 } or nil
        local function step()
          opt:zero_grad()
          local loss = (p * q):square():sum();
          (scaler and scaler:scale(loss) or loss):backward()
          if not scaler then return opt:step() end
          scaler:step(opt)
          scaler:update()
        end
        local f = way:find "jitted" and T.jit(step) or step
        fails("broken", f)
        assert.same({ 1, 2 }, p:totable())
        broken = false
        opt._ready = nil
        T.no_grad(function() p:mul_(10) end)
        for _ = 1, 3 do f() end
        seen[#seen + 1] = T.cat({ p, q }):detach()
        assert.is_true((seen[#seen] - seen[1]):abs():max():item() < 1e-12, way)
      end
    end)
  end

  for _, name in ipairs(copying) do
    it(name .. ", which would copy what a traced function has written by then", function()
      local p = parameter(1, 2)
      local opt = optim[name]({ p }, {})
      local function step()
        T.no_grad(function() p:mul_(0.5) end)
        opt:zero_grad()
        p:square():sum():backward()
        opt:step()
      end
      fails("take that step outside", T.jit(step))
      step()
      T.jit(step, { check = true })()
    end)
  end
end)

-- The first step is made, and moves what its groups carry, also where they have no gradient; the second is not.
it("a run that fails behind a step counts it in groups without gradients", function()
  for _, name in ipairs(copying) do
    local seen = {}
    for _, way in ipairs { "script", "jitted" } do
      local p, q, r = parameter(1, 2), parameter(-1, 3), parameter(4)
      local opt = optim[name]({ { params = { p } }, { params = { q } }, { params = { r } } }, {})
      local function step(places)
        opt:zero_grad()
        p:square():sum():backward()
        opt:step()
        opt:zero_grad();
        (q:square() + p):index_select(1, places):sum():backward()
        opt:step()
      end
      local f = way == "jitted" and T.jit(step) or step
      local good, bad = T.tensor({ 1, 2 }, { dtype = "i64" }), T.tensor({ 1, 9 }, { dtype = "i64" })
      for _, places in ipairs { bad, good, bad, good } do assert.equal(places == good, (pcall(f, places))) end
      local k = {}
      for i, group in ipairs(opt.param_groups) do k[i] = group.k end
      seen[way] = { T.cat({ p, q, r }):detach(), table.concat(k, " ") }
    end
    assert.equal(seen.script[2], seen.jitted[2], name)
    assert.is_true((seen.script[1] - seen.jitted[1]):abs():max():item() < 1e-12, name)
  end
end)

it("what GradScaler found in a traced function is not asked for outside, nor the other way", function()
  local function trained(inside, outside)
    local p = parameter(1, 2)
    local opt, scaler = optim.SGD({ p }, { lr = 0.1 }), T.GradScaler { init_scale = 4 }
    local f = T.jit(function()
      opt:zero_grad()
      scaler:scale(p:sum()):backward()
      inside(scaler, opt)
    end)
    for _ = 1, 2 do
      f()
      outside(scaler, opt)
    end
    return p:totable()
  end
  local function unscale(s, opt) s:unscale_(opt) end
  local function step(s, opt) s:step(opt) end
  local function update(s) s:update() end
  local function both(s, opt)
    s:step(opt)
    s:update()
  end
  assert.is_true(T.tensor(trained(function() end, both)):allclose(T.tensor { 0.8, 1.8 }))
  fails("belong together", trained, unscale, both)
  fails("belong together", trained, step, update)
  local p = parameter(1, 2)
  local opt, scaler = optim.SGD({ p }, { lr = 0.1 }), T.GradScaler { init_scale = 4 }
  scaler:scale(p:sum()):backward()
  scaler:unscale_(opt)
  fails("belong together", T.jit(function() scaler:step(opt) end))
  scaler:step(opt)
  fails("belong together", T.jit(function() scaler:update() end))
  scaler:update()
end)

it("a step that failed holds on to no gradient", function()
  for _, many in ipairs { false, true } do
    local p, q = parameter(1, 2), parameter(3)
    local groups = many and { { params = { p } }, { params = { q } } } or { p, q }
    local opt = optim.Adam(groups, { lr = 0.1 })
    p.grad, q.grad = T.ones_like(p), T.ones_like(q)
    opt:step()
    p.grad, q.grad = T.ones_like(p), T.ones_like(q)
    local kept = setmetatable({ p.grad, q.grad }, { __mode = "v" })
    function opt.update(self, group)
      optim.Adam._ready(self, group)
      error "broken"
    end
    fails("broken", opt.step, opt)
    opt.update = nil
    p.grad, q.grad = nil, nil
    collectgarbage()
    collectgarbage()
    assert.is_nil(next(kept))
  end
end)

describe("groups", function()
  it("are one optimizer's, and there once", function()
    local p = parameter(1, 2)
    local a, b = optim.SGD({ p }, { lr = 0.1 }), optim.SGD({ p }, { lr = 0.1 })
    b.param_groups[1] = a.param_groups[1]
    fails("a group of another optimizer, optim.SGD", b.step, b)
    fails("a group of another optimizer, optim.SGD", b.state_dict, b)
    a.param_groups[2] = a.param_groups[1]
    fails("param_groups[2] is param_groups[1]", a.step, a)
  end)

  it("that were taken out are no hindrance to their parameters", function()
    local p, q = parameter(1, 2), parameter(3)
    local opt = optim.SGD({ { params = { p } }, { params = { q } } }, { lr = 0.1 })
    table.remove(opt.param_groups, 1)
    opt:add_param_group { params = { p }, lr = 0.5 }
    p.grad, q.grad = T.ones_like(p), T.ones_like(q)
    opt:step()
    assert.same({ 0.5, 1.5 }, p:totable())
    assert.same({ 2.9 }, q:totable())
    fails("appears twice", opt.add_param_group, opt, { params = { q } })
  end)

  it("keep states of one kind", function()
    local p = nn.Parameter(T.ones(64, 64))
    local adam = optim.Adam({ p }, { lr = 0.1 })
    adam.param_groups[1].state_dtype = "bf16" -- no state is made yet
    p.grad = T.ones_like(p)
    adam:step()
    adam.param_groups[1].state_dtype = "f32"
    fails("state_dtype of a group was \"bf16\" when its states were made", adam.step, adam)
    adam:load_state_dict(optim.Adam({ p }, { lr = 0.1 }):state_dict())
    adam:step()
    local rms = optim.RMSprop({ p }, { lr = 0.1, state_dtype = "i8" })
    rms:step()
    rms.param_groups[1].centered = true
    fails("centered needs state_dtype", rms.step, rms)
  end)

  it("may have what is no setting of the optimizer, which does not read it, as PyTorch's", function()
    local p, q = parameter(1, 2), parameter(1, 2)
    local a, b = optim.Rprop({ p }, { lr = 0.1 }), optim.Rprop({ q }, { lr = 0.1 })
    a.param_groups[1].weight_decay = 10
    p.grad, q.grad = T.full_like(p, -1), T.full_like(q, -1)
    a:step()
    b:step()
    assert.is_true(p:equal(q))
  end)
end)

it("a schedule that sets rates by its formula has one start for a group that came later", function()
  local S = optim.lr_scheduler
  for _, made in ipairs { function(o) return S.LambdaLR(o, function(t) return 1 / (t + 1) end) end,
    function(o) return S.CosineAnnealingWarmRestarts(o, 8) end } do
    local opt = optim.SGD({ parameter(1) }, { lr = 1 })
    local schedule = made(opt)
    for t = 1, 6 do
      if t == 3 then opt:add_param_group { params = { parameter(2) }, lr = 0.5 } end
      schedule:step()
      local groups = opt.param_groups
      assert.is_true(t < 3 or math.abs(groups[2].lr - 0.5 * groups[1].lr) < 1e-12, t)
    end
  end
end)

it("averages refuse a model whose tensors are of other sizes, which would be repeated", function()
  local average = optim.swa_utils.AveragedModel(nn.Linear(3, 2))
  local before = average.module.weight:detach():clone()
  fails("tensor 1 of the model is", average.update_parameters, average, nn.Linear(1, 2))
  assert.is_true(before:equal(average.module.weight) and average.n_averaged:item() == 0)
end)

it("optimizers print, whatever their settings are", function()
  for name, C in pairs(optim) do
    if type(C) == "table" and rawget(C, "settings") then
      local text = tostring(C { nn.Parameter(T.ones(2, 2)) })
      for _, s in ipairs(C.settings) do assert.truthy(text:find("\n    " .. s[1] .. ": ", 1, true), name .. text) end
    end
  end
end)

it("a step without memory leaves weights and states of each parameter as they were", function()
  local function trained(name, extra)
    T.manual_seed(1)
    local list = { nn.Parameter(T.randn(12, 9)), nn.Parameter(name == "Muon" and T.randn(6, 30) or T.randn(70)) }
    local opt = optim[name](list, name == "SOAP" and { precondition_frequency = 2 } or {})
    local function step()
      if name == "LBFGS" then return opt:step(function() return list[1]:sum() end) end
      opt:step()
    end
    local function gradients() for _, p in ipairs(list) do p.grad = T.randn(p:shape()) end end
    for _ = 1, 2 do
      gradients()
      step()
    end
    gradients()
    local state, before = opt:state_dict().state, {}
    for _, s in pairs(state) do for _, v in pairs(s) do before[v] = T.core.is_tensor(v) and v:clone() or nil end end
    local weights = { list[1]:detach():clone(), list[2]:detach():clone() }
    collectgarbage()
    collectgarbage()
    T.set_memory_budget(T.memory().live + extra)
    local ok, why = pcall(step)
    T.set_memory_budget(-1)
    if ok then return false end
    assert.truthy(tostring(why):find "out of memory")
    for i, p in ipairs(list) do
      if name == "LBFGS" then
        assert.equal(weights[1]:equal(list[1]:detach()), weights[i]:equal(p:detach()))
      elseif opt.state[p].step == 2 then
        assert.is_true(weights[i]:equal(p:detach()), name)
        for _, v in pairs(state[i]) do assert.is_true(not before[v] or before[v]:equal(v), name) end
      end
    end
    return true
  end
  for _, name in ipairs { "Adafactor", "Muon", "SOAP", "LBFGS" } do
    local failed, extra = 0, 0
    while trained(name, extra) do
      failed, extra = failed + 1, extra * 3 + 200
    end
    assert.is_true(failed > 2, name .. failed)
  end
end)

it("the text of an optimizer in a jitted function is that of its settings now", function()
  local p = parameter(1, 2)
  for _, name in ipairs { "AdamW", "Prodigy" } do
    local opt = optim[name] { p }
    local f = T.jit(function()
      opt:zero_grad()
      p:square():sum():backward()
      opt:step()
      return tostring(opt)
    end)
    for k = 1, 3 do
      opt.param_groups[1].lr = 0.1 * k
      assert.equal(tostring(opt):gsub("\n    [dk][^:]*: [^\n]*", ""), (f():gsub("\n    [dk][^:]*: [^\n]*", "")), name)
    end
  end
end)

it("a jitted function that moves what it reads of an optimizer is refused, and so are counts of steps", function()
  local p = parameter(1, 2)
  local opt = optim.SGD({ p }, { lr = 1, momentum = 0.5 })
  local function refused(why, schedule, read)
    fails(why, T.jit(function()
      opt:zero_grad()
      p:square():sum():backward()
      opt:step()
      schedule:step()
      return read()
    end))
  end
  local fast, slow = optim.lr_scheduler.StepLR(opt, 1, 0.5), optim.lr_scheduler.StepLR(opt, 100)
  refused("changes opt.param_groups[1].lr (from 1.0 to 0.5)", fast, function() return tostring(opt) end)
  refused("opt.state[p].step: counts of steps", slow, function() return opt.state[p].step end)
  refused("opt.state[p]: counts of steps", slow, function() return (pairs(opt.state[p])) end)
  refused("opt:state_dict(): counts of steps", slow, function() return #opt:state_dict().param_groups end)
end)

it("states of another optimizer, which has not what this one goes on from, are refused", function()
  local p = parameter(1, 2)
  p.grad = T.ones_like(p)
  local sgd, adam = optim.SGD({ p }, { lr = 0.1, momentum = 0.9 }), optim.Adam({ p }, { lr = 0.1 })
  sgd:step()
  fails("the state of parameter 1 has no exp_avg; it has momentum_buffer", adam.load_state_dict, adam, sgd:state_dict())
  assert.is_nil(adam.state[p].step)
end)

describe("LBFGS", function()
  local function trainer(p, o)
    local opt = optim.LBFGS({ p }, o or { lr = 0.5, max_iter = 4 })
    return opt, function(q)
      opt:step(function()
        opt:zero_grad()
        local loss = ((q - 3) ^ 4):sum()
        loss:backward()
        return loss
      end)
    end
  end
  it("knows nothing of tensors that come into its group", function()
    local p, q, alone = parameter(1, -2), parameter(5, 9), parameter(5, 9)
    local opt, step = trainer(p)
    step(p)
    opt.param_groups[1].params[1] = q
    step(q)
    local _, other = trainer(alone)
    other(alone)
    assert.is_true(q:equal(alone))
    opt.param_groups[1].params = { p, p }
    fails("appears twice", step, p)
  end)
  it("takes states of other dtypes, and none of other sizes", function()
    local p = parameter(1, -2)
    local opt, step = trainer(p)
    step(p)
    local q = nn.Parameter(p:detach():to "f32")
    local second, go = trainer(q)
    second:load_state_dict(opt:state_dict())
    go(q)
    step(p)
    assert.is_true((p:detach() - q:detach()):abs():max():item() < 1e-5)
    local third = trainer(parameter(1, 2, 3))
    fails("the state is of 2 elements, the parameters have 3", third.load_state_dict, third, opt:state_dict())
  end)
end)

it("a jitted function that names param_groups sees settings, and not what each step moves", function()
  for _, name in ipairs(copying) do
    local p = parameter(1, 2)
    local opt = optim[name]({ p }, {})
    local f = T.jit(function()
      opt:zero_grad()
      p:square():sum():backward()
      opt:step()
      return opt.param_groups[1].lr
    end)
    for _ = 1, 3 do f() end
    assert.equal(1, f.ntraces)
    opt.param_groups[1].lr = 0.125
    assert.equal(0.125, f())
  end
  local keys, each = { "d" }, next
  local function one_letter(k) return #k == 1 and k < "e" end
  local reads = { -- of the optimizer: all of a group that goes into a call is looked at anyway
    function(o) return o.param_groups[1].d end,
    function(o) return o.param_groups[1][keys[1]] end,
    function(o, key) return o.param_groups[1][key] end,
    function(o, list) return o.param_groups[1][list.key] end,
    function(o)
      for k, v in pairs(o.param_groups[1]) do if one_letter(k) then return v end end
    end,
    function(o)
      for k, v in each, o.param_groups[1] do if one_letter(k) then return v end end
    end,
    function(o) return o.param_groups[1][("a:d"):match ":(.)"] end,
    function(o) return o.param_groups[1]["d_" .. "max"] end, -- which is d here
  }
  local given = { [3] = "d", [4] = { key = "d" } } -- others know of it by themselves
  for k, read in ipairs(reads) do
    local p = parameter(1, 2)
    local opt = optim.Prodigy({ p }, {})
    local f = T.jit(function(key)
      local d = read(opt, key)
      opt:zero_grad()
      p:square():sum():backward()
      opt:step()
      return d
    end)
    for _ = 1, 3 do
      local d = opt.param_groups[1].d
      assert.equal(d, f(given[k]), k)
    end
  end
end)
