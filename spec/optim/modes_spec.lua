-- SPDX-License-Identifier: MIT
-- Optimizers with training and evaluation modes (schedule-free), which nobody may forget; all optimizers inside T.jit
-- and by name in T.fit, with rates of their own and clipped gradients.

local T = require "perilune"
local near = require "spec.support.near"
local nn, optim = T.nn, T.optim
local fails = near.fails

local function problem(seed)
  T.manual_seed(seed or 1)
  local net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
  return net, T.randn(64, 8), T.randint(1, 3, { 64 })
end

describe("schedule-free", function()
  for _, name in ipairs { "AdamWScheduleFree", "SGDScheduleFree" } do
    local function make(net) return optim[name](net:parameters(), { lr = name:find "SGD" and 1.0 or 0.05 }) end

    it(name .. " says when a net is evaluated or trained in the wrong mode", function()
      local net, x, y = problem()
      local opt = make(net)
      local function step()
        nn.F.cross_entropy(net(x), y):backward()
        opt:step()
        opt:zero_grad()
      end
      step()
      fails("net:eval(): its parameters are where optim." .. name .. " takes gradients", net.eval, net)
      assert.is_true(net.training)
      fails("call opt:eval() first", net[1].eval, net[1]) -- a part of it, too
      assert.equal(opt, opt:eval())
      net:eval()
      fails("call opt:train() before gradients are taken", step)
      fails("net:train(): its parameters are the averages", net.train, net)
      assert.is_false(net.training)
      opt:train()
      net:train()
      step()
      nn.Linear(2, 2):eval() -- of others nothing is asked
    end)

    it(name .. " goes to the averages and back, which are better, and again is no change", function()
      local net, x, y = problem()
      local opt = make(net)
      for _ = 1, 30 do
        nn.F.cross_entropy(net(x), y):backward()
        opt:step()
        opt:zero_grad()
      end
      local before = net[1].weight:detach():clone()
      opt:eval()
      local average = net[1].weight:detach():clone()
      assert.is_false(average:equal(before))
      opt:eval()
      near.same_bits(net[1].weight:detach(), average)
      opt:train()
      assert.is_true(T.allclose(net[1].weight:detach(), before, { atol = 1e-6 }))
      opt:train()
      assert.is_true(opt:is_training())
    end)

    it(name .. " has graphs of steps saved in training, and others at the averages", function()
      local net, x, y = problem()
      local opt, path = make(net), os.tmpname()
      local step = T.jit(function(a, b)
        opt:zero_grad()
        local loss = nn.F.cross_entropy(net(a), b)
        loss:backward()
        opt:step()
        return loss
      end)
      step(x, y)
      local function save() return T.save_graph(path, function(a) return net(a) end, x) end
      assert.is_true(T.save_graph(path, step:graph()))
      fails("not their averages; call opt:eval() first", save)
      opt:eval()
      assert.is_true(save())
      fails("optimizer changed", T.save_graph, path, step:graph())
      opt:train()
      assert.is_true(T.save_graph(path, step:graph()))
      os.remove(path)
      os.remove(path .. ".safetensors")
    end)

    it(name .. " keeps its mode in its state", function()
      local net, x, y = problem()
      local opt = make(net)
      nn.F.cross_entropy(net(x), y):backward()
      opt:step()
      opt:eval()
      local again = make(net)
      again:load_state_dict(opt:state_dict())
      assert.is_false(again:is_training())
      fails("call opt:train()", again.step, again)
    end)

    it(name .. " trains in T.fit, which leaves the averages and saves them as the best", function()
      local net, x, y = problem()
      local data = T.data.DataLoader(T.data.TensorDataset(x, y), { batch_size = 16 })
      local path = os.tmpname()
      local history, run = T.fit(net, { train = data, valid = data, epochs = 6, quiet = true,
        optimizer = { name, lr = name:find "SGD" and 1.0 or 0.05 },
        checkpoint = { path = path, best = "valid_loss", best_path = path .. ".best" } })
      assert.is_true(history[6].valid_loss < history[1].valid_loss)
      assert.is_false(run.optimizer:is_training())
      local loss = nn.F.cross_entropy(net(x), y):item()
      assert.near(history[6].valid_loss, loss, 1e-5)
      local best = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
      best:load_state_dict((assert(T.load(path .. ".best"))))
      assert.near(history:best("valid_loss").valid_loss, nn.F.cross_entropy(best(x), y):item(), 1e-5)
      -- A run that was stopped goes on with the same bits.
      local function train(epochs, resume, from)
        T.manual_seed(1)
        local other = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        T.fit(other, { train = data, valid = data, epochs = epochs, quiet = true, optimizer = { name, lr = 0.05 },
          checkpoint = from, resume = resume })
        return other[1].weight:detach()
      end
      os.remove(path)
      train(2, false, path)
      near.same_bits(train(4, true, path), train(4, false, path .. "2"))
      for _, ending in ipairs { "", ".best", "2" } do os.remove(path .. ending) end
    end)
  end
end)

describe("the owner of a mode", function()
  -- Every class takes over from a schedule-free one that left its averages.
  it("is the optimizer that was the last to be made for a parameter", function()
    local tried = 0
    for _, name in ipairs { "AdamWScheduleFree", "SGDScheduleFree" } do
      for other, class in pairs(optim) do
        if type(class) == "table" and class.settings and other ~= "Muon" then
          local net, x, y = problem()
          local opt = optim[name](net:parameters())
          nn.F.cross_entropy(net(x), y):backward()
          opt:step()
          opt:eval()
          net:eval()
          class(net:parameters())
          net:train()
          tried = tried + 1
        end
      end
    end
    assert.is_true(tried >= 40, tried)
  end)

  it("can always go back: what would lose the averages is refused", function()
    local p = T.ones(3):requires_grad_()
    for _, first in ipairs { 0, 0.0 } do
      fails("betas must be two numbers below 1, the first above 0", optim.AdamWScheduleFree, { p },
        { betas = { first, 0.99 } })
    end
    fails("momentum must be a number between 0 and 1", optim.SGDScheduleFree, { p }, { momentum = 0.0 })
  end)
end)

describe("parameters of every shape, also without elements", function()
  local shapes = { { 5, 4 }, { 3 }, {}, { 0, 3 }, { 3, 0 }, { 0 }, { 2, 3, 4 }, { 2, 0, 4 }, { 1, 1 } }
  for name, class in pairs(optim) do
    if type(class) == "table" and class.settings and name ~= "LBFGS" and name ~= "Muon" then
      it("are stepped by " .. name, function()
        local params = {}
        for i, shape in ipairs(shapes) do params[i] = T.ones(shape):requires_grad_() end
        local opt = class(params)
        for t = 1, 12 do
          for i, shape in ipairs(shapes) do
            T.manual_seed(100 * t + i)
            params[i].grad = T.randn(shape)
          end
          opt:step()
        end
        for i, p in ipairs(params) do
          assert.same(shapes[i], p:shape())
          assert.is_true(p:detach():isfinite():all():item())
          if p:numel() > 0 then assert.is_false(p:detach():equal(T.ones(shapes[i]))) end
        end
      end)
    end
  end
end)

describe("T.fit by name", function()
  it("makes an optimizer of all parameters", function()
    local net, x, y = problem()
    local data = T.data.DataLoader(T.data.TensorDataset(x, y), { batch_size = 16 })
    for _, given in ipairs { "AdamW", { "LAMB", lr = 0.02 }, { "Prodigy" }, { "SOAP", lr = 0.01 },
      { "AdamW8bit", lr = 0.01 } } do
      local _, run = T.fit(net, { train = data, epochs = 1, quiet = true, optimizer = given })
      assert.equal(type(given) == "table" and given[1] or given, run.optimizer.name)
      assert.equal(4, #run.optimizer.param_groups[1].params)
      if type(given) == "table" and given.lr then assert.equal(given.lr, run.optimizer.param_groups[1].lr) end
    end
    fails("unknown optimizer 'Adamw'", T.fit, net,
      { train = data, optimizer = "Adamw", quiet = true })
    fails("unknown option 'rate'", T.fit, net,
      { train = data, optimizer = { "AdamW", rate = 1 }, quiet = true })
  end)
end)

describe("inside T.jit", function()
  -- Every class that there is, with two groups of rates of their own.
  local names = {}
  for name, class in pairs(optim) do
    local taken = type(class) == "table" and class.settings and name ~= "LBFGS" and name ~= "Muon"
    if taken then names[#names + 1] = name end
  end
  table.sort(names)
  it("are all of them", function() assert.is_true(#names >= 20, table.concat(names, " ")) end)

  for _, name in ipairs(names) do
    it(name .. " steps as outside", function()
      local function train(compiled)
        local net, x, y = problem(4)
        local rate = name ~= "Prodigy" and 0.01 or 1.0
        local opt = optim[name]({ { params = net[1]:parameters(), lr = rate }, { params = net[3]:parameters(),
          lr = name ~= "Prodigy" and 0.005 or 1.0 } })
        local function step()
          opt:zero_grad()
          local loss = nn.F.cross_entropy(net(x), y)
          loss:backward()
          nn.utils.clip_grad_norm_(net:parameters(), 0.5)
          opt:step()
          return loss
        end
        if compiled then step = T.jit(step) end
        local losses = {}
        for i = 1, 6 do losses[i] = step():item() end
        if opt.eval then opt:eval() end
        return net[1].weight:detach(), net[3].bias:detach(), losses
      end
      local a, b, losses = train(false)
      local c, d, compiled = train(true)
      assert.is_true(T.allclose(a, c, { rtol = 1e-4, atol = 1e-6 }))
      assert.is_true(T.allclose(b, d, { rtol = 1e-4, atol = 1e-6 }))
      for i, v in ipairs(losses) do assert.near(v, compiled[i], 1e-4) end
    end)
  end
end)

describe("maximize", function()
  it("is the step of the gradient turned round, with the same bits, for all that have it", function()
    local tried = 0
    for name, class in pairs(optim) do
      local has = {}
      for _, s in ipairs(type(class) == "table" and class.settings or {}) do has[s[1]] = true end
      if has.maximize and name ~= "LBFGS" then -- which steps by a closure, and is asked in a spec of its own
        tried = tried + 1
        local function stepped(up)
          local p = T.linspace(-1, 1, 5000):view(50, 100):requires_grad_()
          local opt = class({ p }, { maximize = up, weight_decay = has.weight_decay and 0.0 or nil })
          for t = 1, 3 do
            local g = (T.arange(0, 4999) * (0.37 * t)):sin():view(50, 100)
            p.grad = up and -g or g
            opt:step()
          end
          return p:detach()
        end
        near.same_bits(stepped(true), stepped(false))
      end
    end
    assert.is_true(tried >= 20, tried)
  end)
end)

describe("Prodigy", function()
  it("wants one rate, or none for a group that stays", function()
    local a, b = T.ones(3):requires_grad_(), T.ones(3):requires_grad_()
    local opt = optim.Prodigy { { params = { a }, lr = 1 }, { params = { b }, lr = 0 } }
    for _ = 1, 3 do
      a.grad, b.grad = T.ones(3), T.ones(3)
      opt:step()
    end
    assert.is_true(b:detach():equal(T.ones(3)))
    assert.is_false(a:detach():equal(T.ones(3)))
    opt.param_groups[2].lr = 0.5
    fails("lr must be the same in all", opt.step, opt)
  end)
end)
