-- SPDX-License-Identifier: MIT
-- Optimizers against their formulas in plain Lua, groups, state, and learning rate schedules.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim
local eq, fails = near.near, near.fails

-- Steps the optimizer with the given gradients of one scalar parameter; returns its values.
local function run(make, start, grads)
  local p = nn.Parameter(T.tensor({ start }, { dtype = "f64" }))
  local opt = make(p)
  local out = {}
  for i, g in ipairs(grads) do
    p.grad = T.tensor({ g }, { dtype = "f64" })
    opt:step()
    out[i] = p:get(1)
  end
  return out
end

local grads = { 0.5, -1.0, 2.0, 0.25, 0.25 }

local function sgd(p, o)
  local out, buf = {}, nil
  for i, g in ipairs(grads) do
    if o.maximize then g = -g end
    g = g + (o.weight_decay or 0) * p
    if o.momentum then
      buf = buf and o.momentum * buf + (1 - (o.dampening or 0)) * g or g
      g = o.nesterov and g + o.momentum * buf or buf
    end
    p = p - o.lr * g
    out[i] = p
  end
  return out
end

local function adam(p, o)
  local out, m, v, top = {}, 0, 0, 0
  for t, g in ipairs(grads) do
    if o.maximize then g = -g end
    if o.decoupled then p = p - o.lr * o.weight_decay * p else g = g + (o.weight_decay or 0) * p end
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    top = math.max(top, v)
    local denominator = math.sqrt((o.amsgrad and top or v) / (1 - 0.99 ^ t)) + 1e-8
    p = p - o.lr * m / (1 - 0.9 ^ t) / denominator
    out[t] = p
  end
  return out
end

describe("SGD", function()
  for name, o in pairs {
    plain = { lr = 0.1 }, decay = { lr = 0.1, weight_decay = 0.3 }, momentum = { lr = 0.1, momentum = 0.9 },
    dampening = { lr = 0.1, momentum = 0.9, dampening = 0.4, weight_decay = 0.1 },
    nesterov = { lr = 0.1, momentum = 0.9, nesterov = true }, maximize = { lr = 0.1, maximize = true },
  } do
    it("steps by its formula: " .. name, function()
      eq(T.tensor(run(function(p) return optim.SGD({ p }, o) end, 1.5, grads), { dtype = "f64" }), sgd(1.5,
        o), 1e-12)
    end)
  end

  it("wants momentum for nesterov", function()
    fails("nesterov needs momentum", optim.SGD, { nn.Parameter(T.zeros(1)) }, { nesterov = true })
  end)

  it("starts a buffer when momentum is switched on", function()
    local p = nn.Parameter(T.zeros(1))
    local opt = optim.SGD({ p }, { lr = 1.0 })
    p.grad = T.ones(1)
    opt:step()
    opt.param_groups[1].momentum = 0.5
    opt:step()
    opt:step()
    eq(p, -1 - 1 - 1.5)
  end)
end)

describe("Adam and AdamW", function()
  local betas = { 0.9, 0.99 }
  for name, o in pairs {
    plain = { lr = 0.1, betas = betas }, decay = { lr = 0.1, betas = betas, weight_decay = 0.3 },
    amsgrad = { lr = 0.1, betas = betas, amsgrad = true }, maximize = { lr = 0.1, betas = betas,
      maximize = true },
  } do
    it("step by their formulas: " .. name, function()
      eq(T.tensor(run(function(p) return optim.Adam({ p }, o) end, 1.5, grads), { dtype = "f64" }),
        adam(1.5, o), 1e-9)
      o.decoupled, o.weight_decay = true, o.weight_decay or 0.01
      local want = adam(1.5, o)
      o.decoupled = nil
      eq(T.tensor(run(function(p) return optim.AdamW({ p }, o) end, 1.5, grads), { dtype = "f64" }), want,
        1e-9)
    end)
  end

  it("count the steps of each parameter by itself", function()
    local a, b = nn.Parameter(T.zeros(1, { dtype = "f64" })), nn.Parameter(T.zeros(1, { dtype = "f64" }))
    local opt = optim.Adam({ a, b }, { lr = 0.1, betas = betas })
    local g = {}
    for i, v in ipairs(grads) do g[i] = T.tensor({ v }, { dtype = "f64" }) end
    for i = 1, 5 do
      a.grad = g[i]
      b.grad = i > 2 and g[i - 2] or nil
      opt:step()
    end
    local want = adam(0.0, { lr = 0.1 })
    eq(a, want[5], 1e-9)
    eq(b, want[3], 1e-9)
    assert.equal(3, opt:state_dict().state[2].step)
  end)

  it("many parameters of several dtypes and shapes in one step", function()
    local params, copies = {}, {}
    for i, shape in ipairs { { 3, 4 }, { 5 }, { 2, 2, 2 }, { 1 } } do
      local opts = { dtype = i == 2 and "f64" or "f32" }
      params[i] = nn.Parameter(T.ones(shape, opts))
      copies[i] = nn.Parameter(T.ones(shape, opts))
      params[i].grad, copies[i].grad = T.full(shape, i, opts), T.full(shape, i, opts)
    end
    optim.Adam(params, { lr = 0.5 }):step()
    for i, p in ipairs(copies) do
      optim.Adam({ p }, { lr = 0.5 }):step()
      eq(params[i], p)
      eq(p, 0.5, 1e-5)
    end
  end)
end)

describe("an optimizer", function()
  local net, x, y
  before_each(function()
    T.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = T.randn(8, 3), T.randint(1, 2, { 8 })
  end)
  after_each(function() net, x, y = nil, nil, nil end)

  local function loss() return nn.F.cross_entropy(net(x), y) end

  local function train(opt, n)
    local l
    for _ = 1, n do
      opt:zero_grad()
      l = loss()
      l:backward()
      opt:step()
    end
    return l:item()
  end

  it("brings the loss down", function()
    for name, o in pairs { SGD = { lr = 0.5, momentum = 0.9 }, Adam = { lr = 0.05 },
      AdamW = { lr = 0.05 } } do
      local before = loss():item()
      local after = train(optim[name](net:parameters(), o), 60)
      assert.is_true(after < 0.5 * before, name .. ": " .. before .. " → " .. after)
      for _, m in ipairs { net[1], net[3] } do m:reset_parameters() end
    end
  end)

  it("clears gradients, by nil or by zeros", function()
    local opt = optim.SGD(net:parameters(), { lr = 0.0 })
    train(opt, 1)
    opt:zero_grad { set_to_none = false }
    eq(net[1].weight.grad, 0)
    opt:zero_grad()
    assert.is_nil(net[1].weight.grad)
    fails("did you mean 'set_to_none'", opt.zero_grad, opt, { set_to_non = false })
  end)

  it("takes groups with their own settings", function()
    local opt = optim.SGD({ { params = net[1]:parameters(), lr = 0.0 }, { params = net[3]:parameters() } },
      { lr = 0.1 })
    local first, last = net[1].weight:detach():clone(), net[3].weight:detach():clone()
    train(opt, 2)
    assert.is_true(net[1].weight:detach():equal(first))
    assert.is_false(net[3].weight:detach():equal(last))
    assert.equal(0.1, opt.param_groups[2].lr)
    opt:add_param_group { params = { nn.Parameter(T.zeros(1)) }, lr = 3 }
    assert.equal(3, opt.param_groups[3].lr)
    fails("appears twice", opt.add_param_group, opt, { params = net[1]:parameters() })
  end)

  it("steps with a closure", function()
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local calls = 0
    local l = opt:step(function()
      opt:zero_grad()
      local v = loss()
      v:backward()
      calls = calls + 1
      return v
    end)
    assert.equal(1, calls)
    assert.is_true(loss():item() < l:item())
  end)

  it("goes on from its saved state as if nothing had happened", function()
    local path = os.tmpname()
    for name, o in pairs { SGD = { lr = 0.1, momentum = 0.9 }, Adam = { lr = 0.05, amsgrad = true } } do
      local opt = optim[name](net:parameters(), o)
      train(opt, 3)
      assert(T.save(path, { net = net:state_dict(), opt = opt:state_dict(), epoch = 3 }))
      train(opt, 3)
      local want = net[1].weight:detach():clone()
      local saved = assert(T.load(path))
      net:load_state_dict(saved.net)
      local fresh = optim[name](net:parameters(), { lr = 1 })
      fresh:load_state_dict(saved.opt)
      assert.equal(o.lr, fresh.param_groups[1].lr)
      train(fresh, 3)
      near.same_bits(net[1].weight:detach(), want)
    end
    os.remove(path)
  end)

  it("refuses what it cannot use", function()
    fails("optim.Adam: unknown option 'learning_rate'", optim.Adam, net:parameters(), { learning_rate = 1 })
    fails("optim.Adam: lr must be a finite number >= 0, got -1", optim.Adam, net:parameters(), { lr = -1 })
    fails("betas must be two numbers", optim.Adam, net:parameters(), { betas = { 0.9, 1 } })
    fails("the list of parameters is empty", optim.SGD, {})
    fails("parameter 1 must be a tensor, got 3", optim.SGD, { 3 })
    fails("not a leaf", optim.SGD, { net[1].weight * 2 })
    fails("a list of parameters", optim.SGD, "net")
    local opt = optim.SGD(net:parameters())
    fails("state and param_groups", opt.load_state_dict, opt, {})
    fails("has 1 parameters in the state, 4 here", opt.load_state_dict, opt,
      { state = {}, param_groups = { { lr = 1, params = { 1 } } } })
  end)

  it("keeps no gradients alive", function()
    local live = require "spec.support.live"
    local opt = optim.Adam(net:parameters())
    train(opt, 2)
    opt:zero_grad()
    live.flat(T, function()
      train(opt, 2)
      opt:zero_grad()
    end)
  end)

  it("prints its settings", function()
    local text = tostring(optim.Adam(net:parameters(), { lr = 0.5 }))
    assert.is_truthy(text:find("Adam (", 1, true))
    assert.is_truthy(text:find("4 parameters", 1, true))
    assert.is_truthy(text:find("lr: 0.5", 1, true))
  end)
end)

describe("a schedule", function()
  local function rates(make, n, metric)
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0, momentum = 0.9 })
    local s, out = make(opt), { opt.param_groups[1].lr }
    for i = 1, n do
      s:step(metric and metric[i])
      out[i + 1] = opt.param_groups[1].lr
    end
    return out
  end

  local function same(want, got)
    assert.equal(#want, #got)
    for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) < 1e-12, ("%d: %g, should be %g"):format(i, got[i], want[i]))
    end
  end

  local S = optim.lr_scheduler

  it("StepLR, MultiStepLR, ExponentialLR, LambdaLR", function()
    same({ 1, 1, 0.5, 0.5, 0.25 }, rates(function(o) return S.StepLR(o, 2, { gamma = 0.5 }) end, 4))
    same({ 1, 0.1, 0.1, 0.01, 0.01 }, rates(function(o) return S.MultiStepLR(o, { milestones = { 1,
      3 } }) end, 4))
    same({ 1, 0.5, 0.25 }, rates(function(o) return S.ExponentialLR(o, 0.5) end, 2))
    same({ 1, 3, 5 }, rates(function(o) return S.LambdaLR(o, function(t) return 1 + 2 * t end) end, 2))
  end)

  it("CosineAnnealingLR and warm restarts", function()
    local h = math.sqrt(0.5)
    same({ 1, (1 + h) / 2, 0.5, (1 - h) / 2, 0 }, rates(function(o) return S.CosineAnnealingLR(o, 4) end, 4))
    same({ 1, 0.5, 1, 0.5 }, rates(function(o) return S.CosineAnnealingWarmRestarts(o, 2) end, 3))
    same({ 1, 0.5, 1, (1 + h) / 2, 0.5 },
      rates(function(o) return S.CosineAnnealingWarmRestarts(o, { T_0 = 2, T_mult = 2 }) end, 4))
  end)

  it("ConstantLR, LinearLR, PolynomialLR", function()
    same({ 0.5, 0.5, 1 }, rates(function(o) return S.ConstantLR(o, { factor = 0.5, total_iters = 2 }) end, 2))
    same({ 0.5, 0.75, 1, 1 }, rates(function(o) return S.LinearLR(o, { start_factor = 0.5,
      total_iters = 2 }) end, 3))
    same({ 1, 0.25, 0, 0 }, rates(function(o) return S.PolynomialLR(o, { total_iters = 2, power = 2 }) end,
      3))
  end)

  it("OneCycleLR moves momentum the other way", function()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0, momentum = 0.9 })
    local s = S.OneCycleLR(opt, { max_lr = 1, total_steps = 10 })
    local g = opt.param_groups[1]
    assert.is_true(math.abs(g.lr - 0.04) < 1e-12 and math.abs(g.momentum - 0.95) < 1e-12)
    for _ = 1, 2 do s:step() end
    assert.is_true(math.abs(g.lr - 1) < 1e-12 and math.abs(g.momentum - 0.85) < 1e-12)
    for _ = 1, 7 do s:step() end
    assert.is_true(math.abs(g.lr - 4e-6) < 1e-12)
    s:step() -- after the last batch
    assert.is_true(math.abs(g.lr - 4e-6) < 1e-12)
    fails("total_steps is 10", s.step, s)
  end)

  it("ReduceLROnPlateau waits for patience", function()
    same({ 1, 1, 1, 1, 0.1, 0.1 },
      rates(function(o) return S.ReduceLROnPlateau(o, { patience = 1 }) end, 5, { 3, 2, 2, 2, 1 }))
  end)

  it("saves where it is", function()
    local opt = optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 1.0 })
    local s = S.StepLR(opt, { step_size = 2, gamma = 0.5 })
    for _ = 1, 3 do s:step() end
    local other = S.StepLR(optim.SGD({ nn.Parameter(T.zeros(1)) }, { lr = 7 }), 1)
    other:load_state_dict(s:state_dict())
    assert.same({ 0.5 }, other:get_last_lr())
    other:step()
    assert.same({ 0.25 }, other:get_last_lr())
    fails("must be an optimizer", S.StepLR, 3, 1)
    fails("step_size is missing", S.StepLR, opt)
  end)
end)
