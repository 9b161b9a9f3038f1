-- SPDX-License-Identifier: MIT
--- optim.compat: optimizers as functions of a function, torch7's way. opfunc(x) returns f(x) and df/dx; `x` is one
-- tensor, changed in place; config holds the settings, state what is remembered (config itself if it is not given).
-- Each returns x and a list with f(x).
-- @module perilune.optim.compat
local T = require "perilune"
local members = require "perilune.optim.members"
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
-- Where opfunc fails, x goes back from a point that was only tried: the next call would begin there.
local Tried = { __close = T.core.held(function(self, err)
  if err ~= nil then self.back() end
end) }

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
    local fx, g
    if s._velocity then
      local was = x:detach():clone()
      local _ <close> = setmetatable({ back = function() T.no_grad(function() x:copy_(was) end) end }, Tried)
      move(x, s._velocity * c.momentum)
      fx, g = evaluate()
    else
      fx, g = evaluate()
    end
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
  members.of(group) -- x goes on, whatever tensor has it
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

-- ---- methods that search on their own -----------------------------------------------------------------------

local function number(v) return T.is_tensor(v) and v:item() or v end
local function dot(a, b) return (a:reshape(-1) * b:reshape(-1)):sum():item() end
local function finite(v) return v - v == 0 end

-- Nonlinear conjugate gradients (Polak & Ribière 1969), each line search by cubic or quadratic interpolation and
-- extrapolation until the conditions of Wolfe and Powell hold: sufficient decrease `rho`, slope reduced to `sig`. A new
-- value stays `int` of the bracket away from its ends and goes at most `ext` times as far as the last one.
--- optim.compat.cg(opfunc, x, {maxIter=20, maxEval=, rho=0.01, sig=0.5, int=0.1, ext=3, ratio=100}, state) → x,
--   {f(x), …}, evaluations
-- Conjugate gradients with a line search, torch7's way: opfunc(x) returns f(x) and df/dx, x is changed in place.
--   local x = T.tensor { 1, -2 }
--   local _, fx = optim.compat.cg(function(x) return (x * x):sum():item(), 2 * x end, x)
--   print(fx[1], fx[#fx] < 1e-6)  --> 5.0	true
define("cg", { maxIter = 20, maxEval = "?", rho = 0.01, sig = 0.5, int = 0.1, ext = 3.0, ratio = 100 },
  function(x, evaluate, c)
    local maxEval, evals, hist = c.maxEval or c.maxIter * 1.25, 0, {}
    local function place(v)
      local _ <close> = T.no_grad()
      x:copy_(v)
    end
    local function at(v)
      place(v)
      local f, g = evaluate()
      evals = evals + 1
      return number(f), g:clone()
    end
    local x0 = x:detach():clone()
    local _ <close> = setmetatable({ back = function() place(x0) end }, Tried)
    local f0, g0 = at(x0)
    hist[1] = f0
    local s = -g0
    local d0 = -dot(s, s) -- the slope
    local z, failed = 1 / (1 - d0), false
    local iter = 0
    while iter < c.maxIter and evals < maxEval and d0 < 0 do
      iter = iter + 1
      -- a bracket: t1 is the best point that is low enough; t4, where it is known, one beyond a minimum
      local t1, f1, d1, low, t4 = 0, f0, d0, nil, nil
      local t, done = z, false
      local most = math.min(maxEval, evals + 20)
      while evals < most do
        local f, g = at(x0 + s * t)
        local d = dot(g, s)
        if not finite(f) or not finite(d) then -- too far: half of it
          t4 = t
          t = (t1 + t) / 2
        elseif f > f0 + c.rho * t * d0 or f >= f1 and t1 > 0 or d > -c.sig * d0 then
          t4 = t
          local h, step, f4, d4 = t4 - t1, 0 / 0, f, d
          if f4 > f0 + c.rho * t * d0 then -- quadratic through f1, d1, f4
            step = -0.5 * d1 * h * h / (f4 - f1 - d1 * h)
          else -- cubic through both
            local a = d1 + d4 - 3 * (f4 - f1) / h
            local b = a * a - d1 * d4
            if b >= 0 then step = h * (1 - (d4 + sqrt(b) - a) / (d4 - d1 + 2 * sqrt(b))) end
          end
          if not finite(step) then step = h / 2 end
          t = t1 + max(math.min(step, (1 - c.int) * h), c.int * h)
        elseif d > c.sig * d0 then -- low enough, flat enough
          low, done = { t = t, f = f, g = g, d = d }, true
          break
        else -- low enough, still steep
          low = { t = t, f = f, g = g, d = d }
          local h = t - t1
          local a = d1 + d - 3 * (f - f1) / h
          local b = a * a - d1 * d
          local step = b >= 0 and d - d1 + 2 * sqrt(b) ~= 0
            and h * (1 - (d + sqrt(b) - a) / (d - d1 + 2 * sqrt(b))) - h or 0 / 0
          t1, f1, d1 = t, f, d
          if t4 then
            t = (t1 + t4) / 2
          else
            if not finite(step) or step < 0 or step > c.ext * t then step = (c.ext - 1) * t end
            t = t + max(step, c.int * h)
          end
        end
      end
      if low and low.f < f0 then
        x0 = x0 + s * low.t
        local g1 = low.g
        -- Polak and Ribière; back to the gradient where that is no descent
        local beta = (dot(g1, g1) - dot(g0, g1)) / dot(g0, g0)
        s = s * beta - g1
        local before = d0
        f0, g0, d0 = low.f, g1, dot(s, g1)
        hist[#hist + 1] = f0
        if d0 >= 0 or d0 ~= d0 then
          s = -g1
          d0 = -dot(s, s)
        end
        if d0 == 0 then break end
        z = low.t * math.min(c.ratio, before / (d0 - 2.2e-308))
        failed = false
      else
        if failed or done then break end -- twice in a row
        s, failed = -g0, true
        d0 = -dot(s, s)
        z = 1 / (1 - d0)
      end
    end
    place(x0)
    return x, hist, evals
  end)

-- Covariance matrix adaptation (Hansen 2006, "The CMA evolution strategy: a comparing review"): samples around a mean
-- with a covariance that follows the steps which succeeded. Gradients are not read.
--- optim.compat.cmaes(opfunc, x, {maxEval=, ftarget=0, popsize=, sigma=0.5, tolX=1e-11}, state) → x, {f(x), …},
--   evaluations
-- Evolution strategy with covariance matrix adaptation, for functions without useful gradients: opfunc(x) returns f(x)
-- (a gradient beside it is not read). The list has the best value of each generation.
--   T.manual_seed(1)
--   local x = T.tensor({ 1, -2 }, { dtype = "f64" })
--   local _, fx = optim.compat.cmaes(function(x) return (x * x):sum():item() end, x, { ftarget = 1e-8 })
--   print(fx[#fx] < 1e-8, x:abs():max():item() < 1e-3)  --> true	true
define("cmaes", { maxEval = "?", ftarget = 0, popsize = "?", sigma = 0.5, tolX = 1e-11 },
  function(x, _evaluate, c, _state, opfunc)
    local who, n = "optim.compat.cmaes", x:numel()
    if n == 0 then fail("%s: x is empty", who) end
    local exact = { dtype = "f64", device = x:device() }
    local lambda = math.floor(c.popsize or 4 + math.floor(3 * math.log(n)))
    if lambda < 2 then fail("%s: popsize must be at least 2, got %s", who, tostring(c.popsize)) end
    local maxEval = c.maxEval or math.floor(1e3 * n * n)
    local mu = lambda // 2
    local raw, total, squares = {}, 0, 0
    for i = 1, mu do
      raw[i] = math.log((lambda + 1) / 2) - math.log(i)
      total = total + raw[i]
    end
    for i = 1, mu do
      raw[i] = raw[i] / total
      squares = squares + raw[i] ^ 2
    end
    local weights, mueff = T.tensor(raw, exact), 1 / squares
    local cc = (4 + mueff / n) / (n + 4 + 2 * mueff / n)
    local cs = (mueff + 2) / (n + mueff + 5)
    local c1 = 2 / ((n + 1.3) ^ 2 + mueff)
    local cmu = math.min(1 - c1, 2 * (mueff - 2 + 1 / mueff) / ((n + 2) ^ 2 + mueff))
    local damps = 1 + 2 * max(0, sqrt((mueff - 1) / (n + 1)) - 1) + cs
    local chi = sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    local mean, sigma = x:detach():reshape(-1):to("f64"):clone(), c.sigma
    local pc, ps = T.zeros({ n }, exact), T.zeros({ n }, exact)
    local C, B, D = T.eye(n, exact), T.eye(n, exact), T.ones({ n }, exact)
    local shape, evals, decomposed, hist = x:shape(), 0, 0, {}
    local best, best_x = math.huge, mean
    local function place(v)
      local _ <close> = T.no_grad()
      x:copy_(v:to(x:dtype()):view(shape))
    end
    local _ <close> = T.no_grad()
    local _ <close> = setmetatable({ back = function() place(best_x) end }, Tried)
    while evals < maxEval do
      local Z = T.randn({ lambda, n }, exact)
      local Y = (Z * D):matmul(B:t())
      local X, fit = mean + Y * sigma, {}
      for k = 1, lambda do
        place(X[k])
        local f
        do
          local _ <close> = T.enable_grad()
          f = number((opfunc(x)))
        end
        if type(f) ~= "number" then fail("%s: opfunc must return f(x), got %s", who, describe(f)) end
        fit[k] = f == f and f or math.huge
      end
      evals = evals + lambda
      local values, order = T.sort(T.tensor(fit, exact))
      hist[#hist + 1] = values:get(1)
      if hist[#hist] < best then best, best_x = hist[#hist], X[order:get(1)]:clone() end
      local top = T.index_select(Y, order:narrow(1, 1, mu), 1)
      local step = weights:matmul(top)
      mean = mean + step * sigma
      -- the paths, and with them the size and the shape of the cloud
      ps = ps * (1 - cs) + B:matmul(B:t():matmul(step) / D) * sqrt(cs * (2 - cs) * mueff)
      local length = ps:norm():item()
      local small = length / sqrt(1 - (1 - cs) ^ (2 * evals / lambda)) / chi < 1.4 + 2 / (n + 1) and 1 or 0
      pc = pc * (1 - cc) + step * (small * sqrt(cc * (2 - cc) * mueff))
      C = C * (1 - c1 - cmu + (1 - small) * c1 * cc * (2 - cc)) + T.outer(pc, pc) * c1
        + (top * weights:unsqueeze(2)):t():matmul(top) * cmu
      sigma = sigma * math.exp((cs / damps) * (length / chi - 1))
      if evals - decomposed > lambda / (c1 + cmu) / n / 10 then
        decomposed = evals
        C = (C + C:t()) / 2
        local w, v = T.linalg.eigh(C)
        B, D = v, w:clamp({ min = 1e-300 }):sqrt()
      end
      if best <= c.ftarget or not finite(sigma) or sigma * D:max():item() < c.tolX then break end
    end
    place(best_x)
    return x, hist, evals
  end)

-- Beck & Teboulle 2009: a gradient step of the smooth part, the proximal step of the other, and Nesterov's momentum.
--- optim.compat.fista(f, g, pl, x, {L=0.1, Lstep=1.5, maxiter=50, maxline=20, errthres=1e-4, doFistaUpdate=true}) → x,
--   {{F=, Fx=, L=, nline=}, …}
-- Minimizes f(x) + g(x) by FISTA with backtracking, as torch7's FistaLS: f(x, mode) is smooth and returns its value
-- and, with mode "dx", its gradient; g(x) need not be; pl(y, L) returns the x that minimizes g(x) + L/2 |x - y|². x is
-- changed in place. doFistaUpdate=false: without momentum (ISTA).
--   local y = T.tensor { 3, 0.2 }
--   local function f(x) return 0.5 * ((x - y) ^ 2):sum():item(), x - y end
--   local function g(x) return x:abs():sum():item() end
--   local function pl(v, L) return T.nn.F.softshrink(v, 1 / L) end
--   print((optim.compat.fista(f, g, pl, T.zeros(2), { errthres = 1e-9 })))
--   --> {2.0000, 0.0000}  -- f32[2] cpu
function compat.fista(f, g, pl, x, params)
  local who = "optim.compat.fista"
  for i, v in ipairs { f or false, g or false, pl or false } do
    if type(v) ~= "function" then fail("%s: argument #%d must be a function, got %s", who, i, describe(v or nil)) end
  end
  if not T.is_tensor(x) or not x:is_floating_point() then
    fail("%s: x must be a floating tensor, got %s", who, describe(x))
  end
  local defaults = { L = 0.1, Lstep = 1.5, maxiter = 50, maxline = 20, errthres = 1e-4, doFistaUpdate = true }
  local known = {}
  for key in pairs(defaults) do known[#known + 1] = key end
  table.sort(known)
  local c = options.check(who, params, known)
  for key, v in pairs(defaults) do
    if c[key] ~= nil and type(c[key]) ~= type(v) then
      fail("%s: %s must be a %s, got %s", who, key, type(v), describe(c[key]))
    end
    if c[key] ~= nil then defaults[key] = c[key] end
  end
  c = defaults
  if not (c.L > 0 and c.Lstep > 1) then fail("%s: L must be > 0 and Lstep > 1", who) end
  local L, t, hist = c.L, 1, {}
  local now = x:detach():clone()
  local y, last = now, math.huge
  for k = 1, c.maxiter do
    local fy, slope = f(y, "dx")
    if not T.is_tensor(slope) or slope:numel() ~= x:numel() then
      fail("%s: f must return f(x) and a gradient of x's size, got %s", who, describe(slope))
    end
    fy, slope = number(fy), slope:detach()
    local nline, new, Fx, gx = 0
    repeat -- until the parabola of curvature L lies above f
      nline = nline + 1
      new = pl(y - slope / L, L)
      if not T.is_tensor(new) or new:numel() ~= x:numel() then
        fail("%s: pl must return a tensor of x's size, got %s", who, describe(new))
      end
      new = new:detach()
      local fx = number((f(new)))
      gx = number((g(new)))
      Fx = fx + gx
      local d = new - y
      if fx <= fy + dot(d, slope) + L / 2 * dot(d, d) then break end
      L = L * c.Lstep
    until nline >= c.maxline
    hist[k] = { F = Fx, Fx = Fx - gx, L = L, nline = nline }
    local before = now
    now = new
    if c.doFistaUpdate then
      local t1 = (1 + sqrt(1 + 4 * t * t)) / 2
      y = now + (now - before) * ((t - 1) / t1)
      t = t1
    else
      y = now
    end
    if math.abs(last - Fx) <= c.errthres * max(1, math.abs(Fx)) and k > 1 then break end
    last = Fx
  end
  move(x, now - x:detach())
  return x, hist
end

return compat
