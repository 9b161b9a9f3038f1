-- SPDX-License-Identifier: MIT
--- Prodigy.
-- @module perilune.optim.prodigy
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local fused = require "perilune.optim.fused"
local options = require "perilune.options"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local optimizer_step = T.core.op.optimizer_step
local real, tracing = base.real, T.core.jit_tracing
local sqrt, max, huge = math.sqrt, math.max, math.huge

local function positive(v) return type(v) == "number" and v > 0 and v < huge or "a finite number > 0" end
local function growth(v) return type(v) == "number" and v > 1 or "a number > 1" end
local function beta3(v)
  return v == false or type(v) == "number" and v >= 0 and v < 1 or "false or from 0 to below 1"
end
local function steps(v) return math.type(v) == "integer" and v >= 0 or "an integer >= 0" end

-- Mishchenko & Defazio 2024: AdamW whose rate d is estimated by how far all parameters came from where they began:
-- <gradients, way> / ‖sum of gradients‖₁. One estimate for all groups; lr multiplies it and is the same in all, or 0.
-- `lr=1 betas={0.9, 0.999} beta3=false eps=1e-8 weight_decay=0 decouple=true use_bias_correction=false
-- safeguard_warmup=false d0=1e-6 d_coef=1 growth_rate=math.huge maximize=false state_dtype=false`
--- optim.Prodigy(…) → optimizer
-- AdamW that finds its learning rate by itself (Mishchenko & Defazio 2024); leave lr = 1. param_groups[1].d is the rate
-- found so far.
--   local p = nn.Parameter(T.tensor { 1, -2 })
--   local opt = optim.Prodigy { p }
--   for _ = 1, 60 do
--     opt:zero_grad();
--     (p * p):sum():backward()
--     opt:step()
--   end
--   print((p * p):sum():item() < 4, opt.param_groups[1].d > 1e-2)  --> true	true
local Prodigy = base.class("Prodigy", {
  { "lr", 1.0, check.nonnegative }, fused.betas, { "beta3", false, beta3 }, { "eps", 1e-8, positive }, fused.decay(),
  { "decouple", true, check.bool }, { "use_bias_correction", false, check.bool },
  { "safeguard_warmup", false, check.bool }, { "d0", 1e-6, positive }, { "d_coef", 1.0, positive },
  { "growth_rate", huge, growth }, { "maximize", false, check.bool }, base.settings.state_dtype(fused.all_states),
  -- The estimate; in each group, so that it is saved and loaded with its settings.
  { "k", 0, steps }, { "d", 0.0, check.nonnegative }, { "d_max", 0.0, check.nonnegative },
  { "d_numerator", 0.0, check.number },
})
Prodigy.copies = true

local columns = { "exp_avg", "exp_avg_sq", "s", "p0" }
Prodigy.remembers = columns
local WIDTH = 2 + #columns

local function make(p, group)
  local s = fused.make_moments(p, group)
  s.s, s.p0 = T.zeros_like(p), p:detach():clone()
  return s
end

-- The first group's settings count for the estimate, and one lr for all.
local function rate_of(self)
  local lr = 0.0
  for _, group in ipairs(self.param_groups) do lr = max(lr, group.lr) end
  for _, group in ipairs(self.param_groups) do
    if group.lr ~= lr and group.lr ~= 0 then
      options.fail("optim.Prodigy: one rate is estimated for all groups, so lr must be the same in all, or 0; got %g "
        .. "and %g", group.lr, lr)
    end
  end
  return lr
end

-- ---- the estimate: in a tensor that the rules read and write (kernels/optim.h), and in the groups -----------

local WAY, LENGTH = 5, 6 -- the sums; before them what FIELDS says
local FIELDS = { "d", "d_max", "d_numerator", "k" }
local carried = { d = true, d_max = true, d_numerator = true, k = true }
Prodigy.moves = carried

-- That of a device; what a script or a loaded state changed in the groups goes into it before a step.
local function estimate_on(self, device)
  local first, known = self.param_groups[1], self._estimates[device]
  local changed = not known
  if not known then
    known = { has = {}, tensor = real(T.zeros, { 6 }, { dtype = "f64", device = device }) }
    self._estimates[device] = known
  end
  for _, key in ipairs(FIELDS) do changed = changed or known.has[key] ~= first[key] end
  if changed then
    for _, key in ipairs(FIELDS) do known.has[key] = first[key] end
    real(function()
      local now = { first.d, first.d_max, first.d_numerator, first.k, 0, 0 }
      T.no_grad(function() known.tensor:copy_(T.tensor(now, { dtype = "f64" })) end)
    end)
  end
  return known
end

-- Behind a step: the groups have what it made.
local function tell(self)
  local known = self._estimates[self.param_groups[1].params[1]:device()] or select(2, next(self._estimates))
  if not known then return end
  local now = known.tensor:tolist()
  for at, key in ipairs(FIELDS) do
    local v = key == "k" and math.tointeger(now[at]) or now[at]
    for _, group in ipairs(self.param_groups) do group[key] = v end
    for _, one in pairs(self._estimates) do one.has[key] = v end
  end
end

-- Sums of several devices are one.
local function join(self)
  local _, one = next(self._estimates)
  if not one or not next(self._estimates, (next(self._estimates))) then return end
  local way, length = 0.0, 0.0
  for _, known in pairs(self._estimates) do
    local now = known.tensor:tolist()
    way, length = way + now[WAY], length + now[LENGTH]
  end
  T.no_grad(function()
    for _, known in pairs(self._estimates) do
      known.tensor:narrow(1, WAY, 2):copy_(T.tensor({ way, length }, { dtype = "f64" }))
    end
  end)
end

-- ---- steps ---------------------------------------------------------------------------------------------------------

-- The settings that both rules begin with.
local function settings_of(self)
  local first = self.param_groups[1]
  return { first.betas[1], first.betas[2], first.beta3 or sqrt(first.betas[2]), first.d0,
    first.use_bias_correction and 1 or 0 }
end

local function with_estimate(list, known)
  local out = table.move(list, 1, #list, 1, {})
  out[#out + 1] = known.tensor
  return out
end

function Prodigy:_ready(group) -- luacheck: ignore self
  if group.lr == 0 then return {}, {}, 0 end
  return gather(group, columns, make)
end

-- First pass: moments and sums of one group.
local function moments(self, group, lists, counts, n)
  if group.lr == 0 then return end
  local o = group._opts or {}
  group._opts = o
  local function of(g, to, step)
    local coupled = not self.param_groups[1].decouple
    to.k, to.rule, to.numbers, to.step = WIDTH, "prodigy", settings_of(self), step
    to.numbers[6], to.numbers[7] = g.d0, g.safeguard_warmup and 1 or 0
    to.lr, to.weight_decay, to.flags = rate_of(self), g.weight_decay, (g.maximize and 1 or 0) + (coupled and 2 or 0)
    return to
  end
  if not lists then lists, counts, n = self:_ready(group) end
  for i = 1, n do
    local known = estimate_on(self, lists[i][1]:device())
    local list = with_estimate(lists[i], known)
    call(function(_, settings) optimizer_step(list, settings) end, group, lists, i, WIDTH, o, counts[i], of,
      { carried = carried, load = function() tell(self) end })
    self._pending[#self._pending + 1] = { group = group, list = list, last = i == n, device = known }
  end
end

-- Second pass, when the sums of all groups are known.
local function apply(self)
  local pending, first = self._pending, self.param_groups[1]
  self._pending = nil
  join(self)
  local last = {} -- call of each device
  for i, part in ipairs(pending) do last[part.device] = i end
  for i, part in ipairs(pending) do
    local group, keeps = part.group, last[part.device] == i and 1 or 0
    local function of()
      local numbers = settings_of(self)
      numbers[6], numbers[7], numbers[8], numbers[9] = group.eps, first.d_coef, first.growth_rate, keeps
      return { k = WIDTH, rule = "prodigy_apply", numbers = numbers, lr = rate_of(self),
        weight_decay = group.weight_decay, flags = first.decouple and 4 or 0 }
    end
    optimizer_step(part.list, of())
    if tracing() then
      require("perilune.jit").live(of, function() end, function() return true end)
    end
    if part.last then forget_grads(group, WIDTH) end
  end
end

-- Do all parameters lie on one device?
local function on_one_device(self)
  local device
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do
      device = device or p:device()
      if p:device() ~= device then return false end
    end
  end
  return true
end

-- In a trace: what changed in the groups goes into the estimate before a run, and what the run made of it back.
local function follow(self)
  local device = self.param_groups[1].params[1]:device()
  local jit = require "perilune.jit"
  local moves = {}
  for k, group in ipairs(self.param_groups) do moves[k] = group.lr ~= 0 end
  jit.move(function(by) if by > 0 then estimate_on(self, device) end end, nil, function()
    for k, group in ipairs(self.param_groups) do if moves[k] ~= (group.lr ~= 0) then return false end end
    return true
  end)
  jit.behind(function() tell(self) end)
end

function Prodigy:update(group, ...)
  local groups, in_trace = self.param_groups, tracing()
  if in_trace and not on_one_device(self) then return require("perilune.jit").defer(self, group) end
  if rawequal(group, groups[1]) then
    self._pending = {}
    self._estimates = self._estimates or {}
    if in_trace then follow(self) end
  end
  moments(self, group, ...)
  if rawequal(group, groups[#groups]) then
    apply(self)
    if not in_trace then tell(self) end
  end
end

return { Prodigy = Prodigy }
