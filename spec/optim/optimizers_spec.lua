-- SPDX-License-Identifier: MIT
-- Optimizers against their formulas in plain Lua, groups, state that is saved and loaded, refusals.

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

  it("starts a buffer that a loaded state lacks, also where there was one before", function()
    local function made(momentum)
      local p = nn.Parameter(T.zeros(1))
      local opt = optim.SGD({ p }, { lr = 1.0, momentum = momentum, dampening = 0.5 })
      p.grad = T.ones(1)
      opt:step()
      return opt, p
    end
    local opt, p = made(0.9)
    opt:load_state_dict(made(0):state_dict())
    opt.param_groups[1].momentum = 0.9
    p.grad = T.ones(1)
    opt:step()
    eq(p, -1 - 1)
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
    fails("a table with names such as 'w'; net:parameters() is one", optim.SGD, { w = T.ones(1):requires_grad_() })
    local p = nn.Parameter(T.ones(1))
    fails("the list of parameters has the key \"lr\"; settings come in a table behind it", optim.SGD, { p, lr = 0.1 })
    fails("takes at most 2 arguments (params, options)", optim.SGD, { p }, nil, { lr = 0.1 })
    fails("the list of groups has the key \"lr\"", optim.SGD, { { params = { p } }, lr = 0.1 })
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

local function close(got, want, tol)
  assert(math.abs(got - want) <= tol, ("%s is not %s"):format(got, want))
end

local f64 = { dtype = "f64" }

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

describe("rarer optimizers:", function()
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
      local got = run(function(q) return optim.RMSprop({ q }, o) end, 1.0, grads)
      for i, v in ipairs(want) do close(got[i], v, 1e-12) end
    end
  end)

  it("RMSprop takes half precision and any layout", function()
    local base = T.zeros(4, 3)
    local p = base:t():detach():requires_grad_()
    local half = T.zeros({ 3 }, { dtype = "f16" }):requires_grad_()
    local opt = optim.RMSprop({ p, half }, { lr = 0.1 })
    p.grad, half.grad = T.ones(3, 4), T.ones({ 3 }, { dtype = "f16" })
    opt:step()
    close(p:get(1, 1), -1, 1e-5) -- 0.1 · 1 / √0.01
    close(half:get(1), -1, 1e-2)
  end)

  it("Lion steps by signs", function()
    local p, m, want = 1.0, 0.0, {}
    for i, g in ipairs(grads) do
      local u = 0.9 * m + 0.1 * g
      p = p * (1 - 0.1 * 0.5) - 0.1 * (u > 0 and 1 or u < 0 and -1 or 0)
      m = 0.99 * m + 0.01 * g
      want[i] = p
    end
    local got = run(function(q) return optim.Lion({ q }, { lr = 0.1, weight_decay = 0.5 }) end, 1.0, grads)
    for i, v in ipairs(want) do close(got[i], v, 1e-12) end
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
    close(gram:trace():item() / 4, 1.0, 0.35)
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

  it("Adam with decoupled_weight_decay is AdamW", function()
    local a, b = nn.Parameter(T.tensor({ 1, -2 }, f64)), nn.Parameter(T.tensor({ 1, -2 }, f64))
    local one = optim.Adam({ a }, { lr = 0.1, weight_decay = 0.3, decoupled_weight_decay = true })
    local two = optim.AdamW({ b }, { lr = 0.1, weight_decay = 0.3 })
    for _ = 1, 3 do
      a.grad, b.grad = T.tensor({ 0.5, 2 }, f64), T.tensor({ 0.5, 2 }, f64)
      one:step()
      two:step()
    end
    near.same_bits(a:detach(), b:detach())
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

-- A tensor that is put into group.params in another's place is stepped from then on, from a state of its own; one that
-- comes back goes on where it was. T.jit the same.
describe("tensors that are exchanged in a group:", function()
  local all = { SOAP = { lr = 0.1 }, Muon = { lr = 0.1 }, SGD = { lr = 0.1, momentum = 0.9 } }
  for _, name in ipairs { "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop",
    "ASGD", "Adafactor", "Lion", "LAMB" } do
    all[name] = { lr = 0.1 }
  end
  local function weights()
    return nn.Parameter(T.arange(4):view(2, 2):double()), nn.Parameter(T.ones(2, 2):double() * 3)
  end
  -- The tensor is reached through a table that the function can see, so that its graph is found again for the same one.
  local function stepped(opt, jitted, scaler)
    local now = {}
    local function step()
      opt:zero_grad()
      local l = (now.p * now.p * now.p):sum();
      (scaler and scaler:scale(l) or l):backward()
      if scaler then
        scaler:step(opt)
        scaler:update()
      else
        opt:step()
      end
    end
    local f = jitted and T.jit(step) or step
    return function(p)
      now.p = p
      f()
    end, f
  end
  for name, o in pairs(all) do
    it(name, function()
      for _, way in ipairs { "script", "T.jit", "T.jit, GradScaler" } do
        local jitted = way ~= "script"
        local a, b = weights()
        local a2, b2 = weights()
        local opt = optim[name]({ a }, o)
        local scaler = way:find "Scaler" and T.GradScaler { init_scale = 4 } or nil
        local step, f = stepped(opt, jitted, scaler)
        local group = opt.param_groups[1]
        local step_a, step_b = stepped(optim[name]({ a2 }, o)), stepped(optim[name]({ b2 }, o))
        for _, turn in ipairs { "a", "a", "b", "b", "list", "a", "b" } do
          if turn == "list" then group.params = { a } else group.params[1] = turn == "a" and a or b end
          step(turn == "b" and b or a);
          (turn == "b" and step_b or step_a)(turn == "b" and b2 or a2)
          assert.is_true(a:equal(a2) and b:equal(b2), ("%s, %s: at turn %s"):format(name, way, turn))
        end
        assert.is_true(not jitted or f.runs == 7)
        group.params[1] = a
        assert.equal(4, opt.state[a].step)
        assert.equal(4, opt:state_dict().state[1].step)
        group.params[2] = b
        assert.equal(3, opt.state[b].step)
      end
    end)
  end
  it("refusals", function()
    local a, b = weights()
    local opt = optim.Adam({ a }, { lr = 0.1 })
    opt.param_groups[1].params[2] = a
    fails("parameter 2 appears twice", opt.step, opt)
    opt.param_groups[1].params[2] = b * 2
    fails("parameter 2 is a result of ops", opt.step, opt)
    opt.param_groups[1].params[2] = nil
    opt.param_groups[2] = { params = { b }, lr = 0.1 }
    fails("param_groups[2] is not by opt:add_param_group", opt.step, opt)
    opt.param_groups[2] = nil
    opt.param_groups[1].params[1] = b
    opt:add_param_group { params = { a } }
    local free = optim.AdamWScheduleFree({ a }, { lr = 0.1 })
    free.param_groups[1].params[1] = b
    fails("make a new optimizer", free.step, free)
  end)
  it("states that wait follow net:to, and a refused group leaves nothing", function()
    local net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    local opt = optim.Adam({ net.weight }, { lr = 0.1 })
    local function step()
      opt:zero_grad()
      opt.param_groups[1].params[1].grad = T.ones_like(opt.param_groups[1].params[1])
      opt:step()
    end
    step()
    opt.param_groups[1].params[1] = other.weight
    step()
    net:to "f64"
    opt.param_groups[1].params[1] = net.weight
    step()
    assert.equal("f64", opt.state[net.weight].exp_avg:dtype())
    local a = weights()
    local muon = optim.Muon({ nn.Parameter(T.ones(2, 2)) }, { lr = 0.1 })
    assert.is_false(pcall(muon.add_param_group, muon, { params = { a, nn.Parameter(T.ones(2)) } }))
    muon:add_param_group { params = { a } }
  end)
end)

it("what steps take between them goes through state_dict, too", function()
  local p = nn.Parameter(T.ones(2))
  local opt = optim.AdamW({ p }, { lr = 0.1 })
  local group = opt.param_groups[1]
  group.weight_decay, group.betas = -0.1, { 1, 0.5 }
  opt:load_state_dict(opt:state_dict())
  assert.equal(-0.1, group.weight_decay)
  assert.same({ 1, 0.5 }, group.betas)
end)
