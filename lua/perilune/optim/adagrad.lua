-- SPDX-License-Identifier: MIT
--- Adagrad and Adadelta.
-- @module perilune.optim.adagrad
local check = require("perilune.optim.optimizer").check
local fused = require "perilune.optim.fused"

local decay, eps, zeros = fused.decay, fused.eps, fused.zeros
local out = {}

-- Duchi et al. 2011: s += g²; p -= lr/(1 + (t-1) lr_decay) · g / (√s + eps).
-- `lr=1e-2 lr_decay=0 weight_decay=0 initial_accumulator_value=0 eps=1e-10`
--- optim.Adagrad(…) → optimizer
-- Gradients over the root of the sum of their squares (Duchi et al. 2011).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adagrad({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Adagrad = fused.define("Adagrad", 1e-2, { { "lr_decay", 0.0, check.nonnegative }, decay(),
  { "initial_accumulator_value", 0.0, check.nonnegative }, eps(1e-10) }, {
  rule = "adagrad", columns = { "sum" }, states = { "f32", "bf16" },
  make = function(p, group) return { sum = zeros(p, group):fill_(group.initial_accumulator_value) } end,
  numbers = function(group) return { group.eps, group.lr_decay } end,
})

-- Zeiler 2012: steps scaled by the ratio of running magnitudes of steps and gradients.
-- `lr=1 rho=0.9 eps=1e-6 weight_decay=0`
--- optim.Adadelta(…) → optimizer
-- Steps in the units of former steps (Zeiler 2012).
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Adadelta({ p }, { lr = 1.0 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Adadelta = fused.define("Adadelta", 1.0, { { "rho", 0.9, check.nonnegative }, eps(1e-6), decay() }, {
  rule = "adadelta", columns = { "square_avg", "acc_delta" }, states = { "f32", "bf16" },
  make = function(p, group) return { square_avg = zeros(p, group), acc_delta = zeros(p, group) } end,
  numbers = function(group) return { group.rho, group.eps } end,
})

return out
