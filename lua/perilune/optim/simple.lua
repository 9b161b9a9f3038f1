-- SPDX-License-Identifier: MIT
--- Optimizers that update one parameter after the other with ops, as their steps are more than one pass (Adafactor,
-- Muon): what they share.
-- @module perilune.optim.simple
local T = require "perilune"
local base = require "perilune.optim.optimizer"

local check = base.check
local M = {}

-- settings: {name, default, check} after lr; make(p, group) → state; update(p, g, state, step, group) with g the
-- gradient, its sign and weight decay applied (decoupled decay when the class says so).
function M.define(name, lr, settings, make, update, own_decay)
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
  return C
end

for name, setting in pairs(base.settings) do M[name] = setting end

-- a ← a + w (b - a)
function M.toward(a, b, w) a:mul_(1 - w):add_(b * w) end

return M
