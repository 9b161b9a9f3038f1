-- SPDX-License-Identifier: MIT
--- Prodigy.
-- @module perilune.optim.prodigy
local T = require "perilune"
local base = require "perilune.optim.optimizer"
local fused = require "perilune.optim.fused"
local options = require "perilune.options"

local check, gather, forget_grads, call = base.check, base.gather, base.forget_grads, base.call
local optimizer_step = T.core.op.optimizer_step
local sqrt, max, min, huge = math.sqrt, math.max, math.min, math.huge

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

local columns = { "exp_avg", "exp_avg_sq", "s", "p0" }
local WIDTH = 2 + #columns

local function make(p, group)
  local s = fused.make_moments(p, group)
  s.s, s.p0 = T.zeros_like(p), p:detach():clone()
  return s
end

-- The first group's settings count for the estimate; its rate of this step, and lr.
local function rate_of(self)
  local first, lr = self.param_groups[1], 0.0
  for _, group in ipairs(self.param_groups) do lr = max(lr, group.lr) end
  for _, group in ipairs(self.param_groups) do
    if group.lr ~= lr and group.lr ~= 0 then
      options.fail("optim.Prodigy: one rate is estimated for all groups, so lr must be the same in all, or 0; got %g "
        .. "and %g", group.lr, lr)
    end
  end
  local b1, b2, k = first.betas[1], first.betas[2], first.k
  local correction = first.use_bias_correction and sqrt(1 - b2 ^ (k + 1)) / (1 - b1 ^ (k + 1)) or 1
  local d = first.d ~= 0 and first.d or first.d0
  return d, d * lr * correction, lr
end

-- First pass: moments and sums of one group, `sums` grows.
local function moments(self, group, d, rate)
  local o, b1, b2 = group._opts or {}, self.param_groups[1].betas[1], self.param_groups[1].betas[2]
  group._opts = o
  local b3 = self.param_groups[1].beta3 or sqrt(b2)
  if group.lr == 0 then return end
  local coupled = group.weight_decay ~= 0 and not self.param_groups[1].decouple
  local numbers = { b1, d * (1 - b1), b2, d * d * (1 - b2), b3, d / group.d0 * (group.safeguard_warmup and d or rate) }
  local function of(g, to, step)
    to.k, to.rule, to.numbers, to.step = WIDTH, "prodigy", numbers, step
    to.weight_decay, to.flags = g.weight_decay, (g.maximize and 1 or 0) + (coupled and 2 or 0)
    return to
  end
  local lists, counts, n = gather(group, columns, make)
  for i = 1, n do
    local sums = T.zeros({ 2 }, { dtype = "f64", device = lists[i][1]:device() })
    local with_sums = table.move(lists[i], 1, #lists[i], 1, {})
    with_sums[#with_sums + 1] = sums
    call(function(_, settings) optimizer_step(with_sums, settings) end, group, lists, i, WIDTH, o, counts[i], of)
    local s = sums:tolist()
    self._way = self._way + d / group.d0 * rate * s[1]
    self._length = self._length + s[2]
  end
  self._pending[#self._pending + 1] = { group = group, lists = lists, n = n }
end

-- Second pass, when the sums of all groups are known.
local function apply(self, d, rate, lr)
  local first = self.param_groups[1]
  local pending, length = self._pending, self._length
  local b3 = first.beta3 or sqrt(first.betas[2])
  local numerator = first.d_numerator * b3 + self._way
  self._pending = nil
  if length ~= 0 then
    local d_max = first.d_max ~= 0 and first.d_max or first.d0
    if lr > 0 then
      local d_hat = first.d_coef * numerator / length
      if d == first.d0 then d = max(d, d_hat) end
      d_max = max(d_max, d_hat)
      d = min(d_max, d * first.growth_rate)
    end
    for _, group in ipairs(self.param_groups) do
      group.d, group.d_max, group.d_numerator, group.k = d, d_max, numerator, group.k + 1
    end
  end
  for _, part in ipairs(pending) do
    local group, apart = part.group, part.group.weight_decay ~= 0 and first.decouple
    local to = { k = WIDTH, rule = "prodigy_apply", numbers = { d * group.eps, rate },
      lr = rate, weight_decay = group.weight_decay, flags = apart and 4 or 0 }
    for i = 1, length ~= 0 and part.n or 0 do optimizer_step(part.lists[i], to) end
    if part.n > 0 then forget_grads(group, WIDTH) end
  end
end

function Prodigy:update(group)
  if T.core.jit_tracing() then return require("perilune.jit").defer(self, group) end
  local groups = self.param_groups
  if rawequal(group, groups[1]) then self._pending, self._way, self._length = {}, 0.0, 0.0 end
  local d, rate, lr = rate_of(self)
  moments(self, group, d, rate)
  if rawequal(group, groups[#groups]) then apply(self, d, rate, lr) end
end

return { Prodigy = Prodigy }
