-- SPDX-License-Identifier: MIT
--- The rarer optimizers, written with in-place ops: Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop, ASGD,
-- Adafactor, Lion, Muon.
-- @module perilune.optim.more
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local options = require "perilune.options"

local check = base.check
local max, min, sqrt = math.max, math.min, math.sqrt
local out = {}

local function positive(v) return type(v) == "number" and v > 0 and v < math.huge or "a finite number > 0" end
local function pair(v)
  return type(v) == "table" and #v == 2 and type(v[1]) == "number" and type(v[2]) == "number" or "two numbers"
end

-- settings: {name, default, check} after lr; make(p, group) → state; update(p, g, state, step, group) with g the
-- gradient, its sign and weight decay applied (decoupled decay when the class says so).
local function define(name, lr, settings, make, update, own_decay)
  local list = { { "lr", lr, check.nonnegative } }
  for _, s in ipairs(settings) do list[#list + 1] = s end
  list[#list + 1] = { "maximize", false, check.bool }
  local C = base.class(name, list)
  function C:update(group)
    if T.core.jit_tracing() then return require("perilune.jit").defer(self, group) end
    local _ <close> = T.no_grad()
    local steps, states = group._steps, group._state
    local decay = group.weight_decay
    for i, p in ipairs(group.params) do
      local g = p.grad
      if g then
        local s = states[i]
        if not s then
          s = make(p, group)
          states[i] = s
        end
        local t = (steps[i] or 0) + 1
        if group.maximize then g = -g end
        if decay ~= 0 and not own_decay then
          if group.decoupled_weight_decay then p:mul_(1 - group.lr * decay) else g = g + p * decay end
        end
        update(p, g, s, t, group)
        steps[i] = t -- an update that fails is no step
      end
    end
  end
  out[name] = C
  return C
end

local betas = { "betas", { 0.9, 0.999 }, check.betas }
local function decay(v) return { "weight_decay", v or 0.0, check.nonnegative } end
local function eps(v) return { "eps", v, check.nonnegative } end
local decoupled = { "decoupled_weight_decay", false, check.bool }
local function zeros(p) return T.zeros_like(p) end
local function moments(p) return { exp_avg = zeros(p), exp_avg_sq = zeros(p) } end

-- a ← a + w (b - a)
local function toward(a, b, w) a:mul_(1 - w):add_(b * w) end

--- Duchi et al. 2011: s += g²; p -= lr/(1 + (t-1) lr_decay) · g / (√s + eps).
-- `lr=1e-2 lr_decay=0 weight_decay=0 initial_accumulator_value=0 eps=1e-10`
define("Adagrad", 1e-2, { { "lr_decay", 0.0, check.nonnegative }, decay(),
  { "initial_accumulator_value", 0.0, check.nonnegative }, eps(1e-10) },
  function(p, group) return { sum = zeros(p):fill_(group.initial_accumulator_value) } end,
  function(p, g, s, t, group)
    s.sum:add_(g * g)
    p:sub_(g / (s.sum:sqrt():add_(group.eps)) * (group.lr / (1 + (t - 1) * group.lr_decay)))
  end)

--- Zeiler 2012: steps scaled by the ratio of running magnitudes of steps and gradients.
-- `lr=1 rho=0.9 eps=1e-6 weight_decay=0`
define("Adadelta", 1.0, { { "rho", 0.9, check.nonnegative }, eps(1e-6), decay() },
  function(p) return { square_avg = zeros(p), acc_delta = zeros(p) } end,
  function(p, g, s, _, group)
    local w = 1 - group.rho
    toward(s.square_avg, g * g, w)
    local delta = (s.acc_delta + group.eps):sqrt_():div_((s.square_avg + group.eps):sqrt_()):mul_(g)
    toward(s.acc_delta, delta * delta, w)
    p:sub_(delta * group.lr)
  end)

--- Kingma & Ba 2015, section 7.1: the second moment by the largest magnitude.
-- `lr=2e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0`
define("Adamax", 2e-3, { betas, eps(1e-8), decay() },
  function(p) return { exp_avg = zeros(p), exp_inf = zeros(p) } end,
  function(p, g, s, t, group)
    local b1, b2 = group.betas[1], group.betas[2]
    toward(s.exp_avg, g, 1 - b1)
    s.exp_inf:copy_(T.maximum(s.exp_inf * b2, g:abs():add_(group.eps)))
    p:sub_(s.exp_avg / s.exp_inf * (group.lr / (1 - b1 ^ t)))
  end)

--- Adam with Nesterov's momentum (Dozat 2016), its weight growing with t by momentum_decay.
-- `lr=2e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 momentum_decay=4e-3 decoupled_weight_decay=false`
define("NAdam", 2e-3, { betas, eps(1e-8), decay(), { "momentum_decay", 4e-3, check.nonnegative }, decoupled },
  moments, function(p, g, s, t, group)
    local b1, b2 = group.betas[1], group.betas[2]
    local function mu_at(k) return b1 * (1 - 0.5 * 0.96 ^ (k * group.momentum_decay)) end
    local mu, next_mu = mu_at(t), mu_at(t + 1)
    s.mu_product = (s.mu_product or 1.0) * mu
    toward(s.exp_avg, g, 1 - b1)
    toward(s.exp_avg_sq, g * g, 1 - b2)
    local denom = (s.exp_avg_sq / (1 - b2 ^ t)):sqrt_():add_(group.eps)
    p:sub_(g / denom * (group.lr * (1 - mu) / (1 - s.mu_product)))
    p:sub_(s.exp_avg / denom * (group.lr * next_mu / (1 - s.mu_product * next_mu)))
  end)

--- Adam that waits with the second moment until its variance is bounded (Liu et al. 2020).
-- `lr=1e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 decoupled_weight_decay=false`
define("RAdam", 1e-3, { betas, eps(1e-8), decay(), decoupled }, moments, function(p, g, s, t, group)
  local b1, b2 = group.betas[1], group.betas[2]
  toward(s.exp_avg, g, 1 - b1)
  toward(s.exp_avg_sq, g * g, 1 - b2)
  local bias2, far = 1 - b2 ^ t, 2 / (1 - b2) - 1
  local rho = far - 2 * t * b2 ^ t / bias2
  local step = s.exp_avg * (group.lr / (1 - b1 ^ t))
  if rho > 5 then
    local rect = sqrt((rho - 4) * (rho - 2) * far / ((far - 4) * (far - 2) * rho))
    step:mul_(rect * sqrt(bias2)):div_(s.exp_avg_sq:sqrt():add_(group.eps))
  end
  p:sub_(step)
end)

--- Steps by sign alone, each weight with a size of its own that grows while signs agree (Riedmiller & Braun 1993).
-- For full batches. `lr=1e-2 etas={0.5, 1.2} step_sizes={1e-6, 50}`
define("Rprop", 1e-2, { { "etas", { 0.5, 1.2 }, pair }, { "step_sizes", { 1e-6, 50.0 }, pair } },
  function(p, group) return { prev = zeros(p), step_size = zeros(p):fill_(group.lr) } end,
  function(p, g, s, _, group)
    local agree = g * s.prev
    local up, down = agree:gt(0), agree:lt(0)
    local factor = T.ones_like(p):masked_fill(up, group.etas[2]):masked_fill(down, group.etas[1])
    s.step_size:mul_(factor):clamp_(group.step_sizes[1], group.step_sizes[2])
    local kept = g:masked_fill(down, 0)
    p:sub_(kept:sign() * s.step_size)
    s.prev:copy_(kept)
  end, true)

--- Averaged SGD (Polyak & Juditsky 1992); the average is in the state as `ax`.
-- `lr=1e-2 lambd=1e-4 alpha=0.75 t0=1e6 weight_decay=0`
define("ASGD", 1e-2, { { "lambd", 1e-4, check.nonnegative }, { "alpha", 0.75, check.number },
  { "t0", 1e6, check.nonnegative }, decay() },
  function(p) return { ax = zeros(p) } end,
  function(p, g, s, t, group)
    local eta = group.lr / (1 + group.lambd * group.lr * (t - 1)) ^ group.alpha
    local mu = 1 / max(1, t - 1 - group.t0)
    p:mul_(1 - group.lambd * eta):sub_(g * eta)
    if mu == 1 then s.ax:copy_(p) else s.ax:add_((p - s.ax) * mu) end
  end)

-- The spacing of numbers near 1.
local spacing = { f32 = 2.0 ^ -23, f64 = 2.0 ^ -52, f16 = 2.0 ^ -10, bf16 = 2.0 ^ -7 }
local function factors(v)
  return type(v) == "table" and (v[1] == false or type(v[1]) == "number") and type(v[2]) == "number" or
    "{a number or false, a number}"
end

--- Second moments of matrices as a product of row and column means (Shazeer & Stern 2018), steps relative to the
-- size of the weights. `lr=1e-2 beta2_decay=-0.8 eps={false, 1e-3} d=1 weight_decay=0`; eps[1] false: the dtype's
-- spacing.
define("Adafactor", 1e-2, { { "beta2_decay", -0.8, check.number }, { "eps", { false, 1e-3 }, factors },
  { "d", 1.0, positive }, decay() },
  function(p)
    if p:dim() < 2 then return { variance = zeros(p) } end
    local rows, cols = p:shape(), p:shape()
    rows[#rows], cols[#cols - 1] = 1, 1
    local o = { dtype = p:dtype(), device = p:device() }
    return { row_var = T.zeros(rows, o), col_var = T.zeros(cols, o) }
  end,
  function(p, g, s, t, group)
    local w = t ^ group.beta2_decay
    local eps1 = group.eps[1] or spacing[p:dtype()]
    local size = sqrt(p:numel())
    local alpha = max(group.eps[2], p:norm():item() / size) * min(group.lr, 1 / sqrt(t))
    if group.weight_decay ~= 0 then p:mul_(1 - group.lr * group.weight_decay) end
    local square = g * g
    local estimate
    if s.row_var then
      toward(s.row_var, square:mean(-1, { keepdim = true }), w)
      toward(s.col_var, square:mean(-2, { keepdim = true }), w)
      estimate = s.row_var:matmul(s.col_var) / s.row_var:mean(-2, { keepdim = true }):clamp { min = eps1 }
    else
      toward(s.variance, square, w)
      estimate = s.variance
    end
    local step = estimate:clamp({ min = eps1 * eps1 }):rsqrt():mul_(g)
    local scale = max(1, step:norm():item() / (size * group.d))
    p:sub_(step * (alpha / scale))
  end, true)

out.Adafactor.own_shapes = true -- its state is smaller than the parameters

--- The sign of an interpolation of momentum and gradient (Chen et al. 2023); decay apart from the gradient.
-- `lr=1e-4 betas={0.9, 0.99} weight_decay=0`
define("Lion", 1e-4, { { "betas", { 0.9, 0.99 }, check.betas }, decay() },
  function(p) return { exp_avg = zeros(p) } end,
  function(p, g, s, _, group)
    local b1, b2 = group.betas[1], group.betas[2]
    if group.weight_decay ~= 0 then p:mul_(1 - group.lr * group.weight_decay) end
    p:sub_((s.exp_avg * b1):add_(g * (1 - b1)):sign_():mul_(group.lr))
    toward(s.exp_avg, g, 1 - b2)
  end, true)

-- The nearest matrix with orthonormal rows or columns, roughly: a few steps of a quintic iteration that drives all
-- singular values towards 1 (Jordan et al. 2024).
local function orthogonalized(g, steps, epsilon)
  local a, b, c = 3.4445, -4.7750, 2.0315
  local tall = g:size(1) > g:size(2)
  local x = tall and g:t() or g
  x = x / max(x:norm():item(), epsilon)
  for _ = 1, steps do
    local m = x:matmul(x:t())
    x = x * a + (m * b + m:matmul(m) * c):matmul(x)
  end
  return tall and x:t() or x
end

--- Momentum made orthogonal, for the matrices of hidden layers (Jordan et al. 2024).
-- `lr=1e-3 weight_decay=0.1 momentum=0.95 nesterov=true ns_steps=5 eps=1e-7`
define("Muon", 1e-3, { decay(0.1), { "momentum", 0.95, check.nonnegative }, { "nesterov", true, check.bool },
  { "ns_steps", 5, check.nonnegative }, eps(1e-7) },
  function(p)
    if p:dim() ~= 2 then options.fail("optim.Muon: only matrices, got %s", options.describe(p)) end
    return { momentum_buffer = zeros(p) }
  end,
  function(p, g, s, _, group)
    local m = group.momentum
    toward(s.momentum_buffer, g, 1 - m)
    local step = group.nesterov and g * (1 - m) + s.momentum_buffer * m or s.momentum_buffer
    step = orthogonalized(step, group.ns_steps, group.eps)
    p:mul_(1 - group.lr * group.weight_decay)
    p:sub_(step * (group.lr * sqrt(max(1, p:size(1) / p:size(2)))))
  end, true)

return out
