-- SPDX-License-Identifier: MIT
--- Kin of Adam: Adamax, NAdam, RAdam.
-- @module perilune.optim.adam_variants
local check = require("perilune.optim.optimizer").check
local fused = require "perilune.optim.fused"

local betas, decay, eps, decoupled, zeros = fused.betas, fused.decay, fused.eps, fused.decoupled, fused.zeros
local out = {}

local function settings(group) return { group.betas[1], group.betas[2], group.eps } end

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
out.Adamax = fused.define("Adamax", 2e-3, { betas, eps(1e-8), decay() }, {
  rule = "adamax", columns = { "exp_avg", "exp_inf" },
  states = fused.all_states,
  make = function(p, group)
    return { exp_avg = zeros(p, group, "exp_avg"), exp_inf = zeros(p, group, "exp_inf") }
  end,
  numbers = settings,
})

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
local function mu_at(group, k) return group.betas[1] * (1 - 0.5 * 0.96 ^ (k * group.momentum_decay)) end
out.NAdam = fused.define("NAdam", 2e-3, { betas, eps(1e-8), decay(), { "momentum_decay", 4e-3, check.nonnegative },
  decoupled }, {
  rule = "nadam", columns = fused.moments, make = fused.make_moments, states = fused.all_states, carry = "mu_product",
  numbers = function(group, _, s)
    local product = s.mu_product or 1.0
    return { group.betas[1], group.betas[2], group.eps, group.momentum_decay, product, product }
  end,
  fixed = 4,
  take = function(n, s)
    s.mu_product = n[5]
    return { betas = n, momentum_decay = n[4] }
  end,
  advance = function(group, t, s) s.mu_product = (s.mu_product or 1.0) * mu_at(group, t) end,
})

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
out.RAdam = fused.define("RAdam", 1e-3, { betas, eps(1e-8), decay(), decoupled }, {
  rule = "radam", columns = fused.moments, make = fused.make_moments, states = fused.all_states,
  numbers = settings,
})

return out
