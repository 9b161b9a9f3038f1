-- SPDX-License-Identifier: MIT
-- A network whose hidden weights are only signs, trained with a gradient rule of its own: forward uses sign(w),
-- backward lets the gradient through where |w| <= 1, as if the sign were not there (the straight-through estimator of
-- Bengio et al. 2013, as in binarized networks, Hubara et al. 2016).
--   perilune run examples/custom_gradient.lua -- [--epochs 30] [--seed 1] [--quick]
-- Ends with "ok" when it separates two spirals with 97 % of new points right (--quick, 10 epochs: 90 %) and the rule
-- of a smooth function agrees with difference quotients.
local T = require "perilune"
local nn, optim, F = T.nn, T.optim, T.nn.F

local options = T.cli {
  about = "Trains a network with binary weights through a gradient of its own.",
  { "epochs", type = "integer", min = 1, help = "passes over the points (30; 10 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "a short run with a lower goal" },
}
local epochs = options.epochs or (options.quick and 10 or 30)
T.manual_seed(options.seed)

-- ---- two rules -----------------------------------------------------------------------------------------
-- sign(w) with a gradient: dw = dy where |w| <= 1
local binarize = T.custom {
  name = "binarize",
  forward = function(ctx, w)
    ctx:save(w)
    return w:ge(0):float() * 2 - 1
  end,
  backward = function(ctx, dy)
    local w = ctx:saved()
    return dy * w:abs():le(1)
  end,
}

-- log(1 + eˣ) without overflow; its derivative is the sigmoid, which the rule reuses.
local softplus = T.custom {
  name = "softplus",
  forward = function(ctx, x)
    ctx:save(x)
    return x:clamp(0) + (-x:abs()):exp():log1p()
  end,
  backward = function(ctx, dy)
    return dy * ctx:saved():sigmoid()
  end,
}
assert(T.gradcheck(softplus, { T.randn({ 5, 3 }, { dtype = "f64" }) }))
assert(T.gradgradcheck(softplus, { T.randn({ 5 }, { dtype = "f64" }) }))

-- ---- network -------------------------------------------------------------------------------------------
local BinaryLinear = nn.class("BinaryLinear")

function BinaryLinear:init(nin, nout)
  self.weight = nn.Parameter(T.randn(nout, nin) * 0.5)
  self.bias = nn.Parameter(T.zeros(nout))
  self.scale = nin ^ -0.5
end

function BinaryLinear:forward(x) return F.linear(x * self.scale, binarize(self.weight), self.bias) end

local net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), BinaryLinear(64, 128), nn.BatchNorm1d(128), nn.Tanh(),
  BinaryLinear(128, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 2))

-- ---- data ----------------------------------------------------------------------------------------------
-- n points of two spirals, and which spiral they are on
local function spirals(n)
  local which = T.randint(1, 2, { n })
  local t = T.rand(n):sqrt() * 3 + 0.3
  local angle = t * 2 + (which - 1):float() * math.pi
  return T.stack({ t * angle:cos(), t * angle:sin() }, 2) / 2 + T.randn(n, 2) * 0.03, which
end

local x, y = spirals(4000)
local train = T.data.DataLoader(T.data.TensorDataset(x, y), { batch_size = 50, shuffle = true })
local history = T.fit(net, {
  train = train, valid = { { spirals(2000) } }, epochs = epochs, metrics = "accuracy", quiet = true, schedule = "batch",
  optimizer = optim.Adam(net:parameters(), { lr = 5e-3 }),
  callbacks = function(run)
    if run.epoch % 5 == 0 then
      print(("epoch %2d: loss %.3f, %.1f %% of the test points"):format(run.epoch, run.row.loss,
        100 * run.row.valid_accuracy))
    end
    for _, g in ipairs(run.optimizer.param_groups) do g.lr = 5e-3 * (1 - run.epoch / epochs) + 1e-4 end
    T.no_grad(function() -- weights beyond 1 would have no gradient for ever
      for _, m in ipairs(net:modules()) do
        if m:type() == "BinaryLinear" then m.weight:clamp_(-1, 1) end
      end
    end)
  end,
})
print(history:plot("valid_accuracy"):text { width = 60, height = 8 })
local reached = history[#history].valid_accuracy
print(("%.2f %% with %d binary weights"):format(100 * reached, 64 * 128 + 128 * 64))
assert(reached >= (options.quick and 0.9 or 0.97), "the goal was missed")
print("ok")
