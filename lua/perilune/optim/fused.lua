-- SPDX-License-Identifier: MIT
--- Optimizers whose step is one rule of kernels/optim_formulas.h: one call of the engine for all parameters of a group
-- that are at the same step, one pass over memory. What they share.
-- @module perilune.optim.fused
local T = require "perilune"
local base = require "perilune.optim.optimizer"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local optimizer_step = T.core.op.optimizer_step

local M = {}

-- list: {name, default, check} after lr; rule.rule: its name; columns: the names of its state; make(p, group) →
-- state, by name; numbers(group, step, state) → the rule's numbers: settings, of which plk_optim_numbers makes those
-- of a step, so that a saved graph can go on without Lua. carry: the name of a number in the state that numbers()
-- reads, as it was before the step, and advance(group, step, state) moves, as plk_optim_count does without Lua;
-- parameters that differ in it are not stepped together; take(numbers, state) sets it to what a saved step read and
-- returns the settings that this step had, the first `fixed` of its numbers being settings. decay = "apart": weight
-- decay never goes through the gradient; "inside": it is the rule's; else the group's decoupled_weight_decay says so.
-- states: what state_dtype may be.
function M.define(name, lr, list, rule)
  local settings = { { "lr", lr, check.nonnegative } }
  for _, s in ipairs(list) do settings[#settings + 1] = s end
  settings[#settings + 1] = { "maximize", false, check.bool }
  if rule.states then settings[#settings + 1] = base.settings.state_dtype(rule.states) end
  local C = base.class(name, settings)
  C.remembers = rule.columns
  local width, numbers, carry = 2 + #rule.columns, rule.numbers, rule.carry
  local has = {} -- what else a script keeps in a group is no setting
  for _, s in ipairs(settings) do has[s[1]] = true end

  local function options(group, o, step, state)
    local flags, decay = group.maximize and 1 or 0, has.weight_decay and group.weight_decay or 0
    if has.weight_decay and rule.decay ~= "inside" then
      local apart = rule.decay == "apart" or has.decoupled_weight_decay and group.decoupled_weight_decay
      flags = flags + (apart and 4 or 2)
    end
    o.k, o.rule, o.numbers, o.step = width, rule.rule, numbers(group, step, state), step
    o.lr, o.weight_decay, o.flags = group.lr, decay, flags
    return o
  end

  -- The call of list i, whose parameters have the same carried number: what it was before the step is what the step's
  -- numbers come from, whenever a traced node asks for them.
  local function carried(group, lists, i, o, count)
    local at, own = lists.at and lists.at[i], {}
    for k = 1, at and #at or #group.params do own[k] = group._state[at and at[k] or k] end
    local before = {}
    local function keep() before[carry] = own[1][carry] end
    keep()
    local function move(by, step)
      for _, s in ipairs(own) do
        if by > 0 then rule.advance(group, step, s) else s[carry] = before[carry] end
      end
    end
    local function settings_of(g, to, step) return options(g, to, step, before) end
    local function level()
      for _, s in ipairs(own) do if s[carry] ~= own[1][carry] then return false end end
      return true
    end
    local function load(attrs)
      for _, s in ipairs(own) do
        local had = rule.take(attrs.numbers, s)
        before[carry] = s[carry]
        rule.advance(had, attrs.step, s)
      end
    end
    call(optimizer_step, group, lists, i, width, o, count, settings_of,
      { moved = move, keep = keep, level = level, load = load, fixed = rule.fixed })
    move(1, count)
  end

  function C:_ready(group) -- luacheck: ignore self
    return gather(group, rule.columns, rule.make, carry)
  end

  function C:update(group, lists, counts, n)
    local o = group._opts
    if not o then
      o = {}
      group._opts = o
    end
    if not lists then lists, counts, n = self:_ready(group) end
    for i = 1, n do
      if carry then
        carried(group, lists, i, o, counts[i])
      else
        call(optimizer_step, group, lists, i, width, o, counts[i], options)
      end
    end
    if n > 0 then forget_grads(group, width) end
  end

  return C
end

for name, setting in pairs(base.settings) do M[name] = setting end
local zeros = base.settings.zeros
M.moments = { "exp_avg", "exp_avg_sq" }
function M.make_moments(p, group)
  return { exp_avg = zeros(p, group, "exp_avg"), exp_avg_sq = zeros(p, group, "exp_avg_sq") }
end
M.all_states = { "f32", "bf16", "i8" }

return M
