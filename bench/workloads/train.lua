-- SPDX-License-Identifier: MIT
-- Training steps of small networks. A step clears gradients, runs forward and backward, clips where the
-- workload says so, and updates. Returns the loss.

return function(T, W, tools)
  local nn, optim = T.nn, T.optim
  local F = nn.F

  -- A function that trains one step on a batch and returns the loss.
  function tools.trainer(model, opt, clip)
    local params = clip and model:parameters()
    return tools.compiled(function(x, y)
      opt:zero_grad()
      local loss
      do
        local _ <close> = T.autocast("bf16", { enabled = tools.amp or tools.mode == "bf16" })
        local out = model(x)
        if out:dim() > 2 then out, y = out:flatten(1, -2), y:flatten() end
        loss = F.cross_entropy(out, y)
      end
      loss:backward()
      if clip then clip(params) end
      opt:step()
      return loss
    end)
  end

  local function on_batch(step, x, y)
    return function() return step(x, y) end
  end
  tools.on_batch = on_batch

  local function mlp()
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
  end

  local function adam(model)
    return optim.Adam(model:parameters(), { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8 })
  end

  tools.mlp, tools.adam = mlp, adam

  function tools.sgd(model, lr)
    return optim.SGD(model:parameters(), { lr = lr or 0.01, momentum = 0.9 })
  end

  -- The penalty of a Wasserstein critic: the norm of its gradient for the images is to be one.
  function W.gradient_penalty_step()
    local critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 128), nn.Tanh(),
      nn.Linear(128, 1))
    local opt, x = adam(critic), T.randn(256, 784)
    return function()
      opt:zero_grad()
      x.grad = nil
      x:requires_grad_()
      local g = T.grad_of(critic(x):sum(), x, { create_graph = true })
      local loss = ((g * g):sum(2):add(1e-12):sqrt() - 1):square():mean()
      loss:backward { inputs = critic:parameters() }
      opt:step()
      return loss
    end
  end

  -- Burgers' equation, u_t + u u_x = nu u_xx, as the loss of a net for u(t, x): two orders of derivatives.
  function W.pinn_step()
    local net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64),
      nn.Tanh(), nn.Linear(64, 1))
    local opt, t, x = adam(net), T.rand(1024, 1), T.rand(1024, 1) * 2 - 1
    return function()
      opt:zero_grad()
      t:requires_grad_()
      x:requires_grad_()
      local u = net(T.cat({ t, x }, 2))
      local du = T.grad_of(u:sum(), { t, x }, { create_graph = true })
      local uxx = T.grad_of(du[2]:sum(), x, { create_graph = true })
      local loss = (du[1] + u * du[2] - uxx * (0.01 / math.pi)):square():mean()
      loss:backward { inputs = net:parameters() }
      opt:step()
      return loss
    end
  end

  for _, batch in ipairs { 64, 1024 } do
    W["mlp_step_b" .. batch] = function()
      local model = mlp()
      return on_batch(tools.trainer(model, adam(model)), T.randn(batch, 784), T.randint(1, 10, { batch }))
    end
  end

  function W.lenet_step_b64()
    local model = nn.Sequential(
      nn.Conv2d(1, 32, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(32, 64, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
      nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))
    return on_batch(tools.trainer(model, tools.sgd(model)), T.randn(64, 1, 28, 28), T.randint(1, 10, { 64 }))
  end

  function W.mnist_epoch()
    local x, y = T.rand(60000, 784), T.randint(1, 10, { 60000 })
    local model = mlp()
    local step = tools.trainer(model, adam(model))
    return function()
      local order, loss = T.randperm(60000), nil
      for i = 1, 937 * 64, 64 do
        local rows = order[{ { i, i + 63 } }]
        loss = step(x[rows], y[rows])
      end
      return loss
    end
  end
end
