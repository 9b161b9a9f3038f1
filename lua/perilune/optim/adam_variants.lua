-- SPDX-License-Identifier: MIT
--- Kin of Adam: Adamax, NAdam, RAdam.
-- @module perilune.optim.adam_variants
local T = require "perilune"
local check = require("perilune.optim.optimizer").check
local simple = require "perilune.optim.simple"

local betas, decay, eps, decoupled, zeros, moments, toward =
  simple.betas, simple.decay, simple.eps, simple.decoupled, simple.zeros, simple.moments, simple.toward
local sqrt = math.sqrt
local out = {}

-- Kingma & Ba 2015, section 7.1: the second moment by the largest magnitude.
-- `lr=2e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0`
--- optim.Adamax(…) → optimizer
-- Adam with the largest gradient in place of the second moment.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adamax({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Adamax = simple.define("Adamax", 2e-3, { betas, eps(1e-8), decay() },
  function(p) return { exp_avg = zeros(p), exp_inf = zeros(p) } end,
  function(p, g, s, t, group)
    local b1, b2 = group.betas[1], group.betas[2]
    toward(s.exp_avg, g, 1 - b1)
    s.exp_inf:copy_(T.maximum(s.exp_inf * b2, g:abs():add_(group.eps)))
    p:sub_(s.exp_avg / s.exp_inf * (group.lr / (1 - b1 ^ t)))
  end)

-- Adam with Nesterov's momentum (Dozat 2016), its weight growing with t by momentum_decay.
-- `lr=2e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 momentum_decay=4e-3 decoupled_weight_decay=false`
--- optim.NAdam(…) → optimizer
-- Adam with Nesterov's momentum (Dozat 2016).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.NAdam({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.NAdam = simple.define("NAdam", 2e-3, { betas, eps(1e-8), decay(), { "momentum_decay", 4e-3,
  check.nonnegative }, decoupled },
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

-- Adam that waits with the second moment until its variance is bounded (Liu et al. 2020).
-- `lr=1e-3 betas={0.9, 0.999} eps=1e-8 weight_decay=0 decoupled_weight_decay=false`
--- optim.RAdam(…) → optimizer
-- Adam that corrects for the variance of its rate in the first steps (Liu et al. 2020).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.RAdam({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.RAdam = simple.define("RAdam", 1e-3, { betas, eps(1e-8), decay(), decoupled }, moments, function(p, g, s, t, group)
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

return out
