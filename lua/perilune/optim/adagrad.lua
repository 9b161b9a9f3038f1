-- SPDX-License-Identifier: MIT
--- Adagrad and Adadelta.
-- @module perilune.optim.adagrad
local check = require("perilune.optim.optimizer").check
local simple = require "perilune.optim.simple"

local decay, eps, zeros, toward = simple.decay, simple.eps, simple.zeros, simple.toward
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
out.Adagrad = simple.define("Adagrad", 1e-2, { { "lr_decay", 0.0, check.nonnegative }, decay(),
  { "initial_accumulator_value", 0.0, check.nonnegative }, eps(1e-10) },
  function(p, group) return { sum = zeros(p):fill_(group.initial_accumulator_value) } end,
  function(p, g, s, t, group)
    s.sum:add_(g * g)
    p:sub_(g / (s.sum:sqrt():add_(group.eps)) * (group.lr / (1 + (t - 1) * group.lr_decay)))
  end)

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
out.Adadelta = simple.define("Adadelta", 1.0, { { "rho", 0.9, check.nonnegative }, eps(1e-6), decay() },
  function(p) return { square_avg = zeros(p), acc_delta = zeros(p) } end,
  function(p, g, s, _, group)
    local w = 1 - group.rho
    toward(s.square_avg, g * g, w)
    local delta = (s.acc_delta + group.eps):sqrt_():div_((s.square_avg + group.eps):sqrt_()):mul_(g)
    toward(s.acc_delta, delta * delta, w)
    p:sub_(delta * group.lr)
  end)

return out
