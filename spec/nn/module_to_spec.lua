-- SPDX-License-Identifier: MIT
-- net:to, :float(), :half() …: a parameter stays the same object when its dtype, device or memory format changes, so
-- that whoever holds it (optimizers, tied modules, hooks, the script) holds the converted one.

local T = require "perilune"
local nn, optim = T.nn, T.optim

local function small()
  return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
end

local function learn(net, opt, x)
  local function closure()
    opt:zero_grad()
    local loss = net(x):square():sum()
    loss:backward()
    return loss
  end
  if opt.name == "LBFGS" then return opt:step(closure) end
  closure()
  opt:step()
end

local function values(net)
  local out = {}
  for i, p in ipairs(net:parameters()) do out[i] = p:detach():clone() end
  return out
end

describe("net:to", function()
  before_each(function() T.manual_seed(3) end)

  it("keeps every parameter's identity, and what requires a gradient", function()
    local changes = {
      function(net) return net:double() end, function(net) return net:half() end,
      function(net) return net:bfloat16() end,
      function(net) return net:to("f64") end, function(net) return net:to { dtype = "f64" } end,
      function(net) return net:to(T.zeros({ 1 }, { dtype = "f64" })) end, function(net) return net:to("cpu", "f64") end,
      function(net) return net:to("cpu", { dtype = "f64" }) end,
      function(net) return net:to { memory_format = "channels_last" } end,
      function(net) return net:float() end, function(net) return net:cpu() end, function(net) return net:to {} end,
    }
    for k, change in ipairs(changes) do
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
      net[4].bias:requires_grad_(false)
      local before, names = net:parameters(), {}
      for name, p in net:named_parameters() do names[name] = p end
      assert.is_true(rawequal(net, change(net)), "change " .. k)
      local after = net:parameters()
      assert.equal(#before, #after)
      for i, p in ipairs(before) do assert.is_true(rawequal(p, after[i]), "change " .. k .. ", parameter " .. i) end
      for name, p in net:named_parameters() do assert.is_true(rawequal(p, names[name])) end
      assert.is_false(net[4].bias.requires_grad)
      assert.is_true(net[4].weight.requires_grad and net[4].weight.is_leaf)
      assert.equal("i64", net[2].num_batches_tracked:dtype())
      if k >= 4 and k <= 8 then
        assert.equal("f64", net[1].weight:dtype())
        assert.equal("f64", net[2].running_var:dtype())
      end
    end
  end)

  it("leaves everything alone where nothing changes", function()
    local net = small()
    net(T.randn(5, 3)):sum():backward()
    local p, buffer = net[1].weight, net[2].running_mean
    local grad, storage = p.grad, p:detach()
    net:float():to(p:device()):to { dtype = "f32" }:to(T.zeros(1))
    assert.is_true(rawequal(grad, p.grad))
    assert.is_true(rawequal(buffer, net[2].running_mean))
    assert.is_true(p:shares_storage(storage))
  end)

  it("takes .grad along, as the same object", function()
    local net = small()
    net(T.randn(5, 3)):sum():backward()
    local p = net[1].weight
    local grad, was = p.grad, p.grad:clone()
    net:double()
    assert.is_true(rawequal(grad, p.grad))
    assert.equal("f64", grad:dtype())
    assert.is_true(grad:equal(was:double()))
  end)

  it("keeps ties between modules", function()
    local a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    nn.Sequential(a, b):double()
    assert.is_true(rawequal(a.weight, b.weight))
    local alone = nn.Linear(3, 3)
    alone.weight = a.weight
    a:half() -- a module outside of the converted one shares the parameter, too
    assert.equal("f16", alone.weight:dtype())
  end)

  it("refuses what cannot be", function()
    local net = small()
    for words, call in pairs {
      ["floating dtypes"] = function() net:to("i64") end, ["unknown dtype"] = function() net:to("f31") end,
      ["did you mean 'dtype'"] = function() net:to { dtyp = "f32" } end, ["got 3"] = function() net:to(3) end,
      ["memory format"] = function() net:to { memory_format = "x" } end, ["got nil"] = function() net:to() end,
    } do
      local ok, err = pcall(call)
      assert.is_false(ok, words)
      assert.is_truthy(err:find(words, 1, true), err)
      assert.is_truthy(err:find("^[^:]*module_to_spec"), err)
    end
    assert.equal("f32", net[1].weight:dtype())
  end)

  for _, name in ipairs { "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
    "Rprop", "ASGD", "Adafactor", "Lion", "LBFGS" } do
    it("lets optim." .. name .. " go on, its state converted", function()
      local setting = { lr = 0.01 }
      if name == "SGD" then setting.momentum = 0.9 end
      local net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
      local x = T.randn(5, 3)
      local opt = optim[name](net:parameters(), setting)
      learn(net, opt, x)
      learn(net, opt, x)
      -- a second net that was f64 from here on, and an optimizer that loaded the same state
      local other = net:clone():double()
      local again = optim[name](other:parameters(), setting)
      local sd = opt:state_dict()
      for _, s in pairs(sd.state) do
        for key, v in pairs(s) do
          if T.is_tensor(v) and v:is_floating_point() then s[key] = v:double() end
        end
      end
      again:load_state_dict(sd)
      net:double()
      for _ = 1, 2 do
        local before = values(net)
        learn(net, opt, x:double())
        learn(other, again, x:double())
        assert.is_false(before[1]:equal(net[1].weight:detach()), "it learns nothing")
      end
      for i, p in ipairs(values(other)) do
        assert.is_true(T.allclose(p, values(net)[i], { rtol = 1e-12, atol = 1e-14 }), "parameter " .. i)
      end
      net:float()
      learn(net, opt, x)
      assert.equal("f32", net[1].weight:dtype())
    end)
  end

  it("keeps hooks and grad keys", function()
    local net, seen = small(), {}
    local p = net[1].weight
    p:register_hook(function(g) seen[#seen + 1] = g:dtype() end)
    net:double()
    net(T.randn({ 5, 3 }, { dtype = "f64" })):sum():backward()
    assert.same({ "f64" }, seen)
  end)

  it("between forward and backward: the gradient is that of the values used, in the new dtype", function()
    for _, loss_of in ipairs {
      function(p, x) return (p * p * x):sum() end, function(p, x) return (p + x):sum() end,
    } do
      local m = nn.ParameterList { T.tensor { 1.5, 2.5, -1 } }
      local p, x = m[1], T.tensor { 1, 2, 3 }
      local want = T.grad_of(loss_of(p, x), { p })[1]
      local loss = loss_of(p, x)
      m:double()
      loss:backward()
      assert.equal("f64", p.grad:dtype())
      assert.is_true(p.grad:equal(want:double()))
    end
  end)

  it("is seen by jitted functions", function()
    local net = nn.Linear(3, 2)
    local f = T.jit(function(x) return net(x) end)
    local x = T.randn(4, 3)
    f(x) f(x)
    net:double()
    net:float()
    T.no_grad(function() net.weight:fill_(2) end)
    assert.is_true(T.allclose(f(x), net(x)))
    net:double()
    assert.equal("f64", f(x:double()):dtype())
  end)

  it("makes graphs that read the old memory say so", function()
    local net = nn.Linear(3, 2)
    local x = T.randn(4, 3)
    local g = T.graph()
    g:outputs { net(g:input("x", { 4, 3 })) }
    assert.is_true(T.allclose(g:run { x = x }[1], net(x)))
    net:double()
    local ok, err = pcall(function() return g:run { x = x } end)
    assert.is_false(ok)
    assert.is_truthy(err:find("converted", 1, true), err)
  end)
end)

describe("a step that fails", function()
  for _, name in ipairs { "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam", "Lion" } do
    it("is no step of optim." .. name, function()
      local a, b = T.ones(3):requires_grad_(), T.ones(3):requires_grad_()
      local opt = optim[name]({ a, b }, { lr = 0.1 })
      a.grad, b.grad = T.ones(3), T.ones(3)
      opt:step()
      a.grad, b.grad = T.ones(3), T.ones(3)
      local before = opt:state_dict().state
      b:free()
      assert.is_false((pcall(opt.step, opt)))
      local group = opt.param_groups[1]
      assert.equal(before[2].step, group._steps[2])
      if name ~= "Adagrad" and name ~= "Adamax" and name ~= "NAdam" and name ~= "RAdam" and name ~= "Lion" then
        assert.equal(before[1].step, group._steps[1]) -- all in one call, which never was
      end
    end)
  end
end)
