-- SPDX-License-Identifier: MIT
--- Optimizers whose steps are made of ops, parameter by parameter, with little beside (Adafactor, Muon, SOAP): what
-- they share.
-- @module perilune.optim.simple
local T = require "perilune"
local base = require "perilune.optim.optimizer"

local check, real, call = base.check, base.real, base.call
local tracing = T.core.jit_tracing
local optimizer_step = T.core.op.optimizer_step
local M = {}

local function class(name, lr, settings)
  local list = { { "lr", lr, check.nonnegative } }
  for _, s in ipairs(settings) do list[#list + 1] = s end
  list[#list + 1] = { "maximize", false, check.bool }
  return base.class(name, list)
end

-- settings: {name, default, check} after lr; make(p, group) → state; update(p, g, state, step, group) with g the
-- gradient, its sign applied → list of tensors, each with what is to be written into it behind it, and a table of
-- states that it begins: nothing moves until all is computed, for which memory may not be there. What it does depends
-- on the step in ways that no graph has: in a trace it runs behind it.
function M.define(name, lr, settings, make, update)
  local C = class(name, lr, settings)
  function C:_ready(group) -- luacheck: ignore self
    local states = group._state
    for i, p in ipairs(group.params) do
      if p.grad and not states[i] then states[i] = real(make, p, group) end
    end
  end

  function C:update(group)
    if tracing() then return require("perilune.jit").defer(self, group) end
    local _ <close> = T.no_grad()
    self:_ready(group)
    local steps, states = group._steps, group._state
    for i, p in ipairs(group.params) do
      local g = p.grad
      if g then
        local s = states[i]
        local t = (steps[i] or 0) + 1
        local writes, begun = update(p, group.maximize and -g or g, s, t, group)
        for k = 1, #writes, 2 do writes[k]:copy_(writes[k + 1]) end
        for key, v in pairs(begun or {}) do s[key] = v end
        steps[i] = t -- an update that fails is no step
      end
    end
  end
  return C
end

-- The parameters of a group that have gradients, in lists of those that one call steps: alike in count, device and
-- what key(p, group) gives.
local function buckets(group, make, key)
  local out, by_kind = {}, {}
  for i, p in ipairs(group.params) do
    if p.grad then
      local count, own = (group._steps[i] or 0) + 1, key(p, group)
      local kind = ("%d %s %s"):format(count, p:device(), own)
      local bucket = by_kind[kind]
      if not bucket then
        bucket = { count = count, key = own }
        by_kind[kind], out[#out + 1] = bucket, bucket
      end
      group._state[i] = group._state[i] or real(make, p, group)
      bucket[#bucket + 1] = i
    end
  end
  return out
end

-- The call of a rule, whose settings a trace asks for before each run, when the counts have not moved yet.
local function means(group, list, bucket, settings)
  local first, step = bucket[1], bucket.count
  optimizer_step(list, settings(group, step))
  if not tracing() then return end
  require("perilune.jit").live(function() return settings(group, step) end, function(by)
    if by > 0 then step = (group._steps[first] or 0) + 1 end
  end, function() return true end, nil,
    { of = group, at = table.concat(bucket, ","), own_step = true, load = function(attrs) step = attrs.step end })
end

-- What means() writes before the step is made goes back where that fails.
local Kept = { __close = T.core.held(function(kept, err)
  if err == nil then return end
  for state, was in next, kept do state:copy_(was) end
end) }

local function keep(kept, list)
  for k = 1, #list, 3 do kept[list[k]] = list[k]:clone() end
end

-- As M.define, of steps that a graph can have: their ops depend on `fixed`, names of settings, alone, and what moves is
-- settings of rules (kernels/optim_formulas.h). key(p, group): what its settings differ in. means(p, g, state): {mean,
-- what it moves towards, …}, moved by the rule of means_settings(group, step). columns(p, g, state, group) → the
-- columns of the rule of settings(group, step, key), from the second on. after(g, state, group): what is written when
-- the step is made, without a need for memory.
function M.define_live(name, lr, settings, rule)
  local C = class(name, lr, settings)

  local function fixed(group)
    local list = {}
    for k, key in ipairs(rule.fixed) do
      local v = group[key]
      list[k] = type(v) == "table" and table.concat({ tostring(v[1]), tostring(v[2]) }, " ") or v
    end
    return list
  end

  function C:_ready(group) -- luacheck: ignore self
    local _ <close> = T.no_grad()
    return buckets(group, rule.make, rule.key)
  end

  function C:update(group, ready)
    local _ <close> = T.no_grad()
    local made_for = fixed(group)
    for _, bucket in ipairs(ready or self:_ready(group)) do
      local grads, list, width = {}, {}, 0
      for k, i in ipairs(bucket) do
        local p, g = group.params[i], group.params[i].grad
        grads[k] = group.maximize and -g or g
        for _, x in ipairs(rule.means and rule.means(p, grads[k], group._state[i]) or {}) do list[#list + 1] = x end
      end
      local kept <close> = setmetatable({}, Kept)
      if #list > 0 then
        if not tracing() then keep(kept, list) end
        means(group, list, bucket, rule.means_settings)
      end
      list = {}
      for k, i in ipairs(bucket) do
        local p = group.params[i]
        local columns = table.pack(rule.columns(p, grads[k], group._state[i], group))
        list[#list + 1] = p
        table.move(columns, 1, columns.n, #list + 1, list)
        width = 1 + columns.n
      end
      call(optimizer_step, group, { list, at = { bucket } }, 1, width, {}, bucket.count, function(g, o, step)
        local to = rule.settings(g, step, bucket.key)
        o.k, o.rule, o.numbers, o.lr, o.step = width, to.rule, to.numbers, g.lr, step
        o.weight_decay, o.flags = g.weight_decay, to.flags
        return o
      end, { level = function()
        for k, v in ipairs(fixed(group)) do if v ~= made_for[k] then return false end end
        return true
      end })
      if rule.after then
        for k, i in ipairs(bucket) do rule.after(grads[k], group._state[i], group) end
      end
    end
  end
  return C
end

for name, setting in pairs(base.settings) do M[name] = setting end

return M
