-- SPDX-License-Identifier: MIT
--- ASGD: averaged stochastic gradient descent.
-- @module perilune.optim.asgd
local check = require("perilune.optim.optimizer").check
local fused = require "perilune.optim.fused"

local decay, zeros = fused.decay, fused.zeros
local out = {}

-- Averaged SGD (Polyak & Juditsky 1992); the average is in the state as `ax`. As in PyTorch the rate `eta` of a step
-- was computed at the end of the step before: a change of the group's lr is seen one step later.
-- `lr=1e-2 lambd=1e-4 alpha=0.75 t0=1e6 weight_decay=0`
--- optim.ASGD(…) → optimizer
-- Averaged gradient descent (Polyak & Juditsky 1992).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.ASGD({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.ASGD = fused.define("ASGD", 1e-2, { { "lambd", 1e-4, check.nonnegative }, { "alpha", 0.75, check.number },
  { "t0", 1e6, check.nonnegative }, decay() }, {
  rule = "asgd", columns = { "ax" }, carry = "eta",
  make = function(p, group) return { ax = zeros(p), eta = group.lr } end,
  numbers = function(group, _, s)
    return { group.lambd, group.alpha, group.t0, s.eta, group.lr, s.eta, group.lr }
  end,
  fixed = 3,
  take = function(n, s)
    s.eta = n[4]
    return { lambd = n[1], alpha = n[2], lr = n[5] }
  end,
  advance = function(group, t, s) s.eta = group.lr / (1 + group.lambd * group.lr * t) ^ group.alpha end,
})

return out
