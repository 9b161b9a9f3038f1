-- SPDX-License-Identifier: MIT
--- Optimizers that step by the sign: Rprop, Lion.
-- @module perilune.optim.sign
local check = require("perilune.optim.optimizer").check
local fused = require "perilune.optim.fused"

local decay, zeros = fused.decay, fused.zeros
local out = {}

local function pair(v)
  return type(v) == "table" and #v == 2 and type(v[1]) == "number" and type(v[2]) == "number" or "two numbers"
end

-- Steps by sign alone, each weight with a size of its own that grows while signs agree (Riedmiller & Braun 1993).
-- For full batches. `lr=1e-2 etas={0.5, 1.2} step_sizes={1e-6, 50}`
--- optim.Rprop(…) → optimizer
-- Steps by the sign of the gradient alone (Riedmiller & Braun 1993).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Rprop({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Rprop = fused.define("Rprop", 1e-2, { { "etas", { 0.5, 1.2 }, pair }, { "step_sizes", { 1e-6, 50.0 }, pair } }, {
  rule = "rprop", columns = { "prev", "step_size" },
  make = function(p, group) return { prev = zeros(p), step_size = zeros(p):fill_(group.lr) } end,
  numbers = function(group) return { group.etas[1], group.etas[2], group.step_sizes[1], group.step_sizes[2] } end,
})

-- The sign of an interpolation of momentum and gradient (Chen et al. 2023); decay apart from the gradient.
-- `lr=1e-4 betas={0.9, 0.99} weight_decay=0`
--- optim.Lion(…) → optimizer
-- The sign of a mixed momentum (Chen et al. 2023).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Lion({ p }, { lr = 0.01 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Lion = fused.define("Lion", 1e-4, { { "betas", { 0.9, 0.99 }, check.betas }, decay() }, {
  rule = "lion", columns = { "exp_avg" }, decay = "apart", states = fused.all_states,
  make = function(p, group) return { exp_avg = zeros(p, group, "exp_avg") } end,
  numbers = function(group) return { group.betas[1], group.betas[2] } end,
})

return out
