-- SPDX-License-Identifier: MIT
--- Muon.
-- @module perilune.optim.muon
local base = require "perilune.optim.optimizer"
local options = require "perilune.options"
local simple = require "perilune.optim.simple"

local decay, eps, zeros = simple.decay, simple.eps, simple.zeros
local max, sqrt = math.max, math.sqrt
local out = {}

-- The nearest matrix with orthonormal rows or columns, roughly: a few steps of a quintic iteration that drives all
-- singular values towards 1 (Jordan et al. 2024).
local function orthogonalized(g, steps, epsilon)
  local a, b, c = 3.4445, -4.7750, 2.0315
  local tall = g:size(1) > g:size(2)
  local x = tall and g:t() or g
  x = x / x:norm():clamp { min = epsilon }
  for _ = 1, steps do
    local m = x:matmul(x:t())
    x = x * a + (m * b + m:matmul(m) * c):matmul(x)
  end
  return tall and x:t() or x
end

local function check_matrix(p)
  if p:dim() ~= 2 then options.fail("optim.Muon: only matrices, got %s", options.describe(p)) end
end

-- Momentum made orthogonal, for the matrices of hidden layers (Jordan et al. 2024).
-- `lr=1e-3 weight_decay=0.1 momentum=0.95 nesterov=true ns_steps=5 eps=1e-7`
--- optim.Muon(…) → optimizer
-- Orthogonalized momentum for matrices (Jordan et al. 2024).
--   local p = nn.Parameter(T.eye(2))
--   local opt = optim.Muon({ p }, { lr = 0.1 })
--   local before = (p * p):sum()
--   before:backward()
--   opt:step()
--   opt:zero_grad()
--   print((p * p):sum():item() < before:item())  --> true
out.Muon = simple.define_live("Muon", 1e-3, { decay(0.1), { "momentum", 0.95, base.check.nonnegative },
  { "nesterov", true, base.check.bool },
  { "ns_steps", 5, base.check.nonnegative }, eps(1e-7) },
  {
    fixed = { "momentum", "nesterov", "ns_steps", "eps" },
    key = function(p) return sqrt(max(1, p:dim() == 2 and p:size(2) > 0 and p:size(1) / p:size(2) or 1)) end,
    make = function(p)
      check_matrix(p)
      return { momentum_buffer = zeros(p) }
    end,
    columns = function(_, g, s, group)
      local m = group.momentum
      local mean = s.momentum_buffer:lerp(g, 1 - m)
      local step = orthogonalized(group.nesterov and g:lerp(mean, m) or mean, group.ns_steps, group.eps)
      return step, step
    end,
    after = function(g, s, group) s.momentum_buffer:lerp_(g, 1 - group.momentum) end,
    settings = function(_, _, scale) return { rule = "muon", numbers = { scale }, flags = 4 } end,
  })

function out.Muon:_admit(group) -- luacheck: ignore self
  for _, p in ipairs(group.params) do check_matrix(p) end
end

return out
