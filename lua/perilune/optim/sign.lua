-- SPDX-License-Identifier: MIT
--- Optimizers that step by the sign: Rprop, Lion.
-- @module perilune.optim.sign
local T = require "perilune"
local check = require("perilune.optim.optimizer").check
local simple = require "perilune.optim.simple"

local decay, zeros, toward = simple.decay, simple.zeros, simple.toward
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
out.Rprop = simple.define("Rprop", 1e-2, { { "etas", { 0.5, 1.2 }, pair }, { "step_sizes", { 1e-6, 50.0 }, pair } },
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
out.Lion = simple.define("Lion", 1e-4, { { "betas", { 0.9, 0.99 }, check.betas }, decay() },
  function(p) return { exp_avg = zeros(p) } end,
  function(p, g, s, _, group)
    local b1, b2 = group.betas[1], group.betas[2]
    if group.weight_decay ~= 0 then p:mul_(1 - group.lr * group.weight_decay) end
    p:sub_((s.exp_avg * b1):add_(g * (1 - b1)):sign_():mul_(group.lr))
    toward(s.exp_avg, g, 1 - b2)
  end, true)

return out
