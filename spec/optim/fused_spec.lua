-- SPDX-License-Identifier: MIT
-- Optimizers whose step is one rule of optimizer_step, against the same formulas as chains of ops: every dtype,
-- layouts, sizes at which loops change, one to eight threads, and inside T.jit; parameters that share memory.

local T = require "perilune"
local nn, optim = T.nn, T.optim

describe("a step without weight decay", function()
  it("has no factor of the parameter: one that is infinite stays so, and its state is that of the gradient", function()
    for name, make in pairs(optim) do
      local ok, opt = false, nil
      local p = T.tensor { math.huge, -math.huge, 1 }:requires_grad_()
      if type(name) == "string" and name:match "^%u%a+$" and name ~= "LBFGS" and name ~= "Muon" then
        ok, opt = pcall(make, { p }, { lr = 0.1, weight_decay = 0.0 })
      end
      -- Rates that are the parameter's size, a way from where it was, products with it.
      local sized = name == "Adafactor" or name == "LAMB" or name == "Prodigy" or name == "SOAP"
        or type(name) == "string" and name:find "ScheduleFree"
      if ok and not sized then
        p.grad = T.tensor { 1, 1, 1 }
        opt:step()
        local got = p:detach():totable()
        assert(got[1] == math.huge and got[2] == -math.huge, name .. ": " .. tostring(p))
        assert(got[3] == got[3], name)
      end
    end
  end)
end)

local function toward(a, b, w) a:mul_(1 - w):add_(b * w) end

-- name → options, step(p, g, state, t): p and the state are f64.
local chains = {
  Adamax = { { lr = 0.02, weight_decay = 0.1 }, function(p, g, s, t)
    toward(s[1], g, 0.1)
    s[2]:copy_(T.maximum(s[2] * 0.999, g:abs():add_(1e-8)))
    p:sub_(s[1] / s[2] * (0.02 / (1 - 0.9 ^ t)))
  end },
  NAdam = { { lr = 0.02, weight_decay = 0.1, decoupled_weight_decay = true }, function(p, g, s, t)
    local function mu_at(k) return 0.9 * (1 - 0.5 * 0.96 ^ (k * 4e-3)) end
    local mu, next_mu = mu_at(t), mu_at(t + 1)
    s.product = (s.product or 1.0) * mu
    toward(s[1], g, 0.1)
    toward(s[2], g * g, 0.001)
    local under = (s[2] / (1 - 0.999 ^ t)):sqrt_():add_(1e-8)
    p:sub_(g / under * (0.02 * (1 - mu) / (1 - s.product)))
    p:sub_(s[1] / under * (0.02 * next_mu / (1 - s.product * next_mu)))
  end },
  RAdam = { { lr = 0.02, weight_decay = 0.1 }, function(p, g, s, t)
    toward(s[1], g, 0.1)
    toward(s[2], g * g, 0.001)
    local bias2, far = 1 - 0.999 ^ t, 2 / (1 - 0.999) - 1
    local rho = far - 2 * t * 0.999 ^ t / bias2
    local step = s[1] * (0.02 / (1 - 0.9 ^ t))
    if rho > 5 then
      local rect = math.sqrt((rho - 4) * (rho - 2) * far / ((far - 4) * (far - 2) * rho))
      step:mul_(rect * math.sqrt(bias2)):div_(s[2]:sqrt():add_(1e-8))
    end
    p:sub_(step)
  end },
  Adagrad = { { lr = 0.05, lr_decay = 0.1, maximize = true }, function(p, g, s, t)
    s[1]:add_(g * g)
    p:sub_(g / s[1]:sqrt():add_(1e-10) * (0.05 / (1 + (t - 1) * 0.1)))
  end },
  Adadelta = { { lr = 0.5, weight_decay = 0.1 }, function(p, g, s)
    toward(s[1], g * g, 1 - 0.9)
    local delta = (s[2] + 1e-6):sqrt_():div_((s[1] + 1e-6):sqrt_()):mul_(g)
    toward(s[2], delta * delta, 1 - 0.9)
    p:sub_(delta * 0.5)
  end },
  ASGD = { { lr = 0.05, lambd = 0.01, t0 = 3, weight_decay = 0.1 }, function(p, g, s, t)
    local eta, mu = s.eta or 0.05, 1 / math.max(1, t - 1 - 3)
    p:mul_(1 - 0.01 * eta):sub_(g * eta)
    if mu == 1 then s[1]:copy_(p) else s[1]:add_((p - s[1]) * mu) end
    s.eta = 0.05 / (1 + 0.01 * 0.05 * t) ^ 0.75
  end },
  Rprop = { { lr = 0.05 }, function(p, g, s)
    if not s.begun then s[2]:fill_(0.05) end
    s.begun = true
    local agree = g * s[1]
    local up, down = agree:gt(0), agree:lt(0)
    s[2]:mul_(T.ones_like(p):masked_fill(up, 1.2):masked_fill(down, 0.5)):clamp_(1e-6, 50)
    local kept = g:masked_fill(down, 0)
    p:sub_(kept:sign() * s[2])
    s[1]:copy_(kept)
  end },
  Lion = { { lr = 0.02, weight_decay = 0.1 }, function(p, g, s)
    p:sub_((s[1] * 0.9):add_(g * (1 - 0.9)):sign_():mul_(0.02))
    toward(s[1], g, 1 - 0.99)
  end },
}

-- Gradients and starts that f16 and bf16 have exactly, so that signs are the same in every dtype.
local function wave(n, k, dtype)
  return ((T.arange(0, n - 1):to("f64") * 37 + k * 61):remainder(97) - 47.5):div(32):to(dtype)
end

local function reference(name, n, steps)
  local o, step = table.unpack(chains[name])
  local p, s = wave(n, 0, "f64"), { T.zeros(n, { dtype = "f64" }), T.zeros(n, { dtype = "f64" }) }
  for t = 1, steps do
    local g = wave(n, t, "f64")
    if o.maximize then g = -g end
    local decay = o.weight_decay or 0
    if name == "Lion" or o.decoupled_weight_decay then p:mul_(1 - o.lr * decay) else g = g + p * decay end
    step(p, g, s, t)
  end
  return p
end

local function fused(name, n, steps, dtype, strided)
  local start = wave(n, 0, dtype)
  local p = strided and T.stack({ start, start }, 2):select(2, 1) or start
  p = p:detach():requires_grad_()
  local opt = optim[name]({ p }, chains[name][1])
  for t = 1, steps do
    p.grad = wave(n, t, dtype)
    opt:step()
  end
  return p:detach()
end

describe("a fused optimizer", function()
  local near = { f64 = 1e-9, f32 = 2e-5, f16 = 2e-2, bf16 = 0.15 }
  for name in pairs(chains) do
    it(name .. " steps as the same formula made of ops", function()
      for _, n in ipairs { 1, 7, 33, 1000, 40003 } do
        local want = reference(name, n, 7)
        for dtype, bound in pairs(near) do
          if dtype == "f64" or dtype == "f32" or n < 40000 then
            local got = fused(name, n, 7, dtype)
            local off = (got:to("f64") - want):abs():max():item()
            assert.is_true(off <= bound, ("%s %s of %d: off by %g"):format(name, dtype, n, off))
            assert.is_true(got:equal(fused(name, n, 7, dtype, true)), name .. " strided")
          end
        end
      end
    end)

    it(name .. " has the same bits with one to eight threads", function()
      local before, first = T.get_num_threads(), nil
      for n = 1, 8 do
        T.set_num_threads(n)
        local p = fused(name, 100003, 3, "f32")
        first = first or p
        assert.is_true(p:equal(first))
      end
      T.set_num_threads(before)
    end)

    it(name .. " is part of a compiled step", function()
      local function train(compiled)
        T.manual_seed(4)
        local net, x, y = nn.Linear(5, 3), T.randn(8, 5), T.randn(8, 3)
        local opt = optim[name](net:parameters(), chains[name][1])
        local sched = optim.lr_scheduler.ExponentialLR(opt, 0.9)
        local function step()
          local loss = nn.F.mse_loss(net(x), y)
          opt:zero_grad()
          loss:backward()
          opt:step()
          return loss
        end
        local f = compiled and T.jit(step) or step
        for _ = 1, 6 do
          f()
          sched:step()
        end
        return net.weight:detach(), opt:state_dict()
      end
      local want, state = train(false)
      local got, compiled = train(true)
      assert.is_true(T.allclose(got, want, { rtol = 1e-5, atol = 1e-6 }))
      assert.equal(state.state[1].step, compiled.state[1].step)
    end)
  end

  it("steps parameters that share memory one after the other, whatever the threads", function()
    local before = T.get_num_threads()
    local names = { "SGD", "Adam", "RMSprop" }
    for name in pairs(chains) do names[#names + 1] = name end
    local function stepped(name, apart)
      local all = T.linspace(-1, 1, 120000)
      local columns = all:view(2, 60000):t() -- share no byte, though one lies between the other's
      local params = { all:narrow(1, 1, 80000), all:narrow(1, 40001, 80000), all, all, columns:select(2, 1),
        columns:select(2, 2) }
      for i, x in ipairs(params) do
        local p = x:detach():requires_grad_()
        params[i], p.grad = p, T.full(x:shape(), i, { dtype = "f32" })
      end
      if apart then
        for _, p in ipairs(params) do optim[name]({ p }, { lr = 0.1 }):step() end
      else
        optim[name](params, { lr = 0.1 }):step()
      end
      return all
    end
    for _, name in ipairs(names) do
      T.set_num_threads(1)
      local want = stepped(name, true)
      for n = 1, 12 do
        T.set_num_threads(n % 4 + 1)
        assert.is_true(stepped(name):equal(want), name)
      end
    end
    local g = T.ones(200000)
    local list = { g, g, g:narrow(1, 1, 100000) }
    for n = 1, 12 do
      T.set_num_threads(n % 4 + 1)
      g:fill_(1)
      T.core.op.foreach_scale_ { list[1], list[2], list[3], T.tensor(0.5) }
      assert.same({ 0.125, 0.25 }, { g:narrow(1, 1, 100000):mean():item(), g:narrow(1, 100001, 100000):mean():item() })
    end
    T.set_num_threads(before)
  end)

  it("keeps NaN and infinities where they are", function()
    for name in pairs(chains) do
      local p = T.tensor { 1, 0 / 0, 2, 3 }:requires_grad_()
      local opt = optim[name]({ p }, { lr = 0.01 })
      p.grad = T.tensor { 0.5, 1, 0 / 0, 1 }
      opt:step()
      local nan = p:detach():isnan():tolist()
      assert.same({ false, true, false }, { nan[1], nan[2], nan[4] }, name)
      assert.equal(name ~= "Rprop" and name ~= "Lion", nan[3], name)
    end
  end)

  it("refuses what is not a rule's list", function()
    local step = T.core.op.optimizer_step
    local function refused(why, list, o)
      local ok, message = pcall(step, list, o)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(why, 1, true), message)
    end
    local p, g, a = T.ones(3), T.ones(3), T.ones(3)
    refused("needs 3 tensors", { p, g, a, T.ones(3) }, { k = 4, rule = "lion", numbers = { 1, 1, 1, 1, 1 } })
    refused("needs 2", { p, g, a }, { k = 3, rule = "lion", numbers = { 1 } })
    refused("step counts from 1", { p, g, a }, { k = 3, rule = "lion", numbers = { 0.9, 0.99 }, step = 0 })
    refused("but its parameter is", { p, g, T.ones(4) }, { k = 3, rule = "adagrad", numbers = { 0, 1 } })
    refused("rule", { p, g, a }, { k = 3, rule = "nothing", numbers = { 0, 1 } })
  end)
end)
