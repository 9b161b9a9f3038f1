-- SPDX-License-Identifier: MIT
--- optim.compat: optimizers as functions of a function, torch7's way. opfunc(x) returns f(x) and df/dx; `x` is one
-- tensor, changed in place; config holds the settings, state what is remembered (config itself if it is not given).
-- Each returns x and a list with f(x).
-- @module perilune.optim.compat
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local sqrt, max = math.sqrt, math.max
local compat = {}

-- A setting is given by its default, by "?" for a number or tensor that has none, or by the types of what has none.
local function fits(setting, v)
  if setting == "?" then return type(v) == "number" or T.is_tensor(v) end
  if type(setting) ~= "table" then return type(v) == type(setting) end
  for _, kind in ipairs(setting) do
    if type(v) == kind then return true end
  end
  return false
end
local function wanted(setting)
  if type(setting) == "table" then return table.concat(setting, " or a ") end
  return setting == "?" and "number" or type(setting)
end

-- settings: those that a method knows; step(x, evaluate, c, s, opfunc) updates x.
local function define(name, settings, step)
  local who = "optim.compat." .. name
  local known = {}
  for key in pairs(settings) do known[#known + 1] = key end
  table.sort(known)
  compat[name] = function(opfunc, x, config, state)
    if type(opfunc) ~= "function" then fail("%s: opfunc must be a function, got %s", who, describe(opfunc)) end
    if not T.is_tensor(x) or not x:is_floating_point() then
      fail("%s: x must be a floating tensor, got %s", who, describe(x))
    end
    if config ~= nil and type(config) ~= "table" then
      fail("%s: config must be a table, got %s", who, describe(config))
    end
    config = config or {}
    state = state or config
    local own = state == config
    for key, v in pairs(config) do
      if settings[key] == nil and not (own and type(key) == "string" and key:sub(1, 1) == "_") then
        fail("%s: %s", who, options.unknown("option", tostring(key), known))
      end
      if settings[key] ~= nil and not fits(settings[key], v) then
        fail("%s: %s must be a %s, got %s", who, key, wanted(settings[key]), describe(v))
      end
    end
    local c = setmetatable({}, { __index = function(_, key)
      local v = config[key]
      if v == nil and settings[key] ~= "?" and type(settings[key]) ~= "table" then v = settings[key] end
      return v
    end })
    local function evaluate()
      local fx, g = opfunc(x)
      if not T.is_tensor(g) or g:numel() ~= x:numel() then
        fail("%s: opfunc must return f(x) and a gradient of x's size, got %s", who, describe(g))
      end
      if c.weightDecay and c.weightDecay ~= 0 then g = g + x:detach() * c.weightDecay end
      return fx, g:detach()
    end
    return step(x, evaluate, c, state, opfunc)
  end
end

-- x ← x + a y, outside of any recording
local function move(x, y)
  local _ <close> = T.no_grad()
  x:add_(y)
end
local function rate(c, s, t) return c.learningRate / (1 + (t or s._evals or 0) * c.learningRateDecay) end
local function counted(s) s._evals = (s._evals or 0) + 1 end

--- optim.compat.sgd(opfunc, x, {learningRate=1e-3, learningRateDecay=0, weightDecay=0, momentum=0, dampening=momentum,
--   nesterov=false, learningRates=}, state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.sgd(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("sgd", { learningRate = 1e-3, learningRateDecay = 0, weightDecay = 0, momentum = 0, dampening = "?",
  nesterov = false, learningRates = "?" }, function(x, evaluate, c, s)
  local fx, g = evaluate()
  if c.momentum ~= 0 then
    local damp = c.dampening or c.momentum
    if c.nesterov and damp ~= 0 then fail("optim.compat.sgd: nesterov needs a momentum and dampening = 0") end
    s._velocity = s._velocity and s._velocity * c.momentum + g * (1 - damp) or g:clone()
    g = c.nesterov and g + s._velocity * c.momentum or s._velocity
  end
  if c.learningRates then g = g * c.learningRates end
  move(x, g * -rate(c, s))
  counted(s)
  return x, { fx }
end)

--- optim.compat.adam(opfunc, x, {learningRate=1e-3, learningRateDecay=0, beta1=0.9, beta2=0.999, epsilon=1e-8,
--   weightDecay=0}, state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.adam(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("adam", { learningRate = 1e-3, learningRateDecay = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8,
  weightDecay = 0 }, function(x, evaluate, c, s)
  local fx, g = evaluate()
  s._m = (s._m or T.zeros_like(g)) * c.beta1 + g * (1 - c.beta1)
  s._v = (s._v or T.zeros_like(g)) * c.beta2 + g * g * (1 - c.beta2)
  local lr = rate(c, s)
  counted(s)
  local t = s._evals
  local step = lr * sqrt(1 - c.beta2 ^ t) / (1 - c.beta1 ^ t)
  move(x, s._m / (s._v:sqrt() + c.epsilon) * -step)
  return x, { fx }
end)

--- optim.compat.adamax(opfunc, x, {learningRate=2e-3, beta1=0.9, beta2=0.999, epsilon=1e-38, weightDecay=0}, state) →
--   x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.adamax(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("adamax", { learningRate = 0.002, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-38, weightDecay = 0 },
  function(x, evaluate, c, s)
    local fx, g = evaluate()
    s._m = (s._m or T.zeros_like(g)) * c.beta1 + g * (1 - c.beta1)
    s._u = T.maximum((s._u or T.zeros_like(g)) * c.beta2, g:abs() + c.epsilon)
    counted(s)
    move(x, s._m / s._u * -(c.learningRate / (1 - c.beta1 ^ s._evals)))
    return x, { fx }
  end)

--- optim.compat.adagrad(opfunc, x, {learningRate=1e-3, learningRateDecay=0, weightDecay=0}, state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.adagrad(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("adagrad", { learningRate = 1e-3, learningRateDecay = 0, weightDecay = 0 }, function(x, evaluate, c, s)
  local fx, g = evaluate()
  s._sum = (s._sum or T.zeros_like(g)) + g * g
  move(x, g / (s._sum:sqrt() + 1e-10) * -rate(c, s))
  counted(s)
  return x, { fx }
end)

--- optim.compat.adadelta(opfunc, x, {rho=0.9, eps=1e-6, weightDecay=0}, state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.adadelta(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("adadelta", { rho = 0.9, eps = 1e-6, weightDecay = 0 }, function(x, evaluate, c, s)
  local fx, g = evaluate()
  s._square = (s._square or T.zeros_like(g)) * c.rho + g * g * (1 - c.rho)
  s._moved = s._moved or T.zeros_like(g)
  local d = (s._moved + c.eps):sqrt() / (s._square + c.eps):sqrt() * g
  s._moved = s._moved * c.rho + d * d * (1 - c.rho)
  move(x, -d)
  counted(s)
  return x, { fx }
end)

--- optim.compat.rmsprop(opfunc, x, {learningRate=1e-2, alpha=0.99, epsilon=1e-8, weightDecay=0, initialMean=0}, state)
--   → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.rmsprop(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("rmsprop", { learningRate = 1e-2, alpha = 0.99, epsilon = 1e-8, weightDecay = 0, initialMean = 0 },
  function(x, evaluate, c, s)
    local fx, g = evaluate()
    s._square = (s._square or T.full_like(g, c.initialMean)) * c.alpha + g * g * (1 - c.alpha)
    move(x, g / (s._square:sqrt() + c.epsilon) * -c.learningRate)
    return x, { fx }
  end)

-- Nesterov's accelerated gradient (Sutskever et al. 2013), evaluated ahead of x: learningRate=1e-3 learningRateDecay=0
-- momentum=0.9 weightDecay=0.
--- optim.compat.nag(opfunc, x, {learningRate=1e-3, learningRateDecay=0, momentum=0.9, weightDecay=0}, state) → x,
--   {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.nag(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("nag", { learningRate = 1e-3, learningRateDecay = 0, momentum = 0.9, weightDecay = 0 },
  function(x, evaluate, c, s)
    if s._velocity then move(x, s._velocity * c.momentum) end
    local fx, g = evaluate()
    local step = g * -rate(c, s)
    s._velocity = s._velocity and s._velocity * c.momentum + step or step
    move(x, step)
    counted(s)
    return x, { fx }
  end)

-- Averaged gradient descent (Bottou 2012): eta0=1e-4 lambda=1e-4 alpha=0.75 t0=1e6 weightDecay=0. Returns the average
-- of x as a third value.
--- optim.compat.asgd(opfunc, x, {eta0=1e-4, lambda=1e-4, alpha=0.75, t0=1e6, weightDecay=0}, state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.asgd(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("asgd", { eta0 = 1e-4, lambda = 1e-4, alpha = 0.75, t0 = 1e6, weightDecay = 0 },
  function(x, evaluate, c, s)
    local fx, g = evaluate()
    local eta, mu = s._eta or c.eta0, s._mu or 1
    move(x, x:detach() * (-c.lambda * eta) - g * eta)
    local now = x:detach()
    s._average = (s._average and mu ~= 1) and s._average + (now - s._average) * mu or now:clone()
    counted(s)
    s._eta = c.eta0 / (1 + c.lambda * c.eta0 * s._evals) ^ c.alpha
    s._mu = 1 / max(1, s._evals - c.t0)
    return x, { fx }, s._average
  end)

--- optim.compat.rprop(opfunc, x, {stepsize=0.1, etaplus=1.2, etaminus=0.5, stepsizemax=50, stepsizemin=1e-6, niter=1},
--   state) → x, {f(x), …}
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.rprop(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("rprop", { stepsize = 0.1, etaplus = 1.2, etaminus = 0.5, stepsizemax = 50, stepsizemin = 1e-6, niter = 1 },
  function(x, evaluate, c, s)
    local hist = {}
    for k = 1, c.niter do
      local fx, g = evaluate()
      hist[k] = fx
      s._size = s._size or T.full_like(g, c.stepsize)
      local agree = s._last and T.sign(s._last * g) or T.zeros_like(g)
      local factor = T.where(agree:gt(0), T.full_like(g, c.etaplus),
        T.where(agree:lt(0), T.full_like(g, c.etaminus), T.ones_like(g)))
      s._size = (s._size * factor):clamp(c.stepsizemin, c.stepsizemax)
      g = g:masked_fill(agree:lt(0), 0)
      move(x, T.sign(g) * s._size * -1)
      s._last = g
    end
    return x, hist
  end)

-- By optim.LBFGS, with torch7's rules for stopping: sums of absolute values against tolFun and tolX.
--- optim.compat.lbfgs(opfunc, x, {maxIter=20, maxEval=, learningRate=1, tolFun=1e-5, tolX=1e-9, nCorrection=100,
--   lineSearch=, lineSearchOptions=}, state) → x, {f(x), …}, evaluations
-- torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place, state (or the settings) remembers. lineSearch
-- is true (strong Wolfe conditions) or a function (opfunc, x, t, d, f, g, slope, lineSearchOptions) that returns f, g,
-- x, t and how often it called opfunc.
--   local x, state = T.tensor { 1, -2 }, {}
--   local _, fx = optim.compat.lbfgs(function(x) return (x * x):sum():item(), 2 * x end, x, {}, state)
--   print(fx[1], (x * x):sum():item() < 5)  --> 5.0	true
define("lbfgs", { maxIter = 20, maxEval = "?", learningRate = 1, tolFun = 1e-5, tolX = 1e-9, nCorrection = 100,
  lineSearch = { "boolean", "function" }, lineSearchOptions = { "table" } }, function(x, evaluate, c, s, opfunc)
  local who, hist, evals = "optim.compat.lbfgs", {}, 0
  local leaf = x:detach():requires_grad_() -- the same memory
  local search = c.lineSearch
  if not s._optimizer then s._optimizer = require("perilune.optim.lbfgs")({ leaf }) end
  local o = s._optimizer
  local group = o.param_groups[1]
  group.params[1], group.lr, group.max_iter, group.history_size = leaf, c.learningRate, c.maxIter, c.nCorrection
  group.max_eval = c.maxEval or c.maxIter * 1.25
  group.tolerance_grad, group.tolerance_change = c.tolFun, c.tolX
  group.line_search_fn = search == true and "strong_wolfe" or false
  o._sums = true
  o._search = type(search) == "function" and function(t, d, f, g, slope)
    local _ <close> = T.enable_grad()
    local f1, g1, x1, t1, n = search(opfunc, x, t, d:view(x:shape()), f, g:view(x:shape()), slope, c.lineSearchOptions)
    if not T.is_tensor(x1) or x1:numel() ~= x:numel() or not T.is_tensor(g1) or g1:numel() ~= x:numel()
      or type(t1) ~= "number" or math.type(n) ~= "integer" then
      fail("%s: lineSearch must return f, g, x, t and the number of evaluations, got %s, %s, %s, %s, %s", who,
        describe(f1), describe(g1), describe(x1), describe(t1), describe(n))
    end
    if x1 ~= x then x:copy_(x1:view(x:shape())) end
    hist[#hist + 1], evals = f1, evals + n
    return T.is_tensor(f1) and f1:item() or f1, g1:detach():reshape(-1), t1, n
  end or nil
  o:step(function()
    local fx, g = evaluate()
    evals = evals + 1
    leaf.grad = g:reshape(x:shape())
    hist[#hist + 1] = fx
    return T.is_tensor(fx) and fx or T.tensor(fx, { dtype = x:dtype(), device = x:device() })
  end)
  return x, hist, evals
end)

return compat
