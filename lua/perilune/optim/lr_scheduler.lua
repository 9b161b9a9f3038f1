-- SPDX-License-Identifier: MIT
--- Learning rates that change from step to step. Each sets group.lr of every parameter group, first when it
-- is made, then at each `:step()`. `last_epoch` counts the steps. Most change the rate that is there (by a factor, or
-- towards a limit), so several may work on one optimizer, and a rate that was set by hand is gone on from; LambdaLR,
-- OneCycleLR, CyclicLR and CosineAnnealingWarmRestarts set what their formula says. group.initial_lr is the rate
-- before the first schedule, from which formulas start.
-- @module perilune.optim.lr_scheduler
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"
local groups = require "perilune.optim.lr_scheduler_groups"

local fail, tracing = options.fail, T.core.jit_tracing
local each, setting = groups.each, groups.setting
local cos, pi, max, min, floor = math.cos, math.pi, math.max, math.min, math.floor
local sched = {}

--- optim.lr_scheduler.LRScheduler :: schedule:step(), schedule:get_last_lr(), schedule:state_dict(),
--   schedule:load_state_dict(sd)
-- What all schedules have; last_epoch counts the steps.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.StepLR(opt, 1)
--   schedule:step()
--   print(schedule:get_last_lr()[1], schedule.last_epoch, optim.lr_scheduler.LRScheduler ~= nil)  --> 0.1	1	true
local Scheduler = classes.new("LRScheduler", "schedule")

--- The learning rates now, one a group.
function Scheduler:get_last_lr()
  local out = {}
  for i, group in ipairs(self.optimizer.param_groups) do out[i] = group.lr end
  return out
end

-- The rate from which formulas start; of a group that was added since, the one that it came with, or that of the
-- schedule.
local function base_of(self, i, group)
  local base = self.base_lrs[i]
  if not base then
    base = self.start_of and setting(self, self.start_of, i) or group.initial_lr or group.lr
    self.base_lrs[i] = base
  end
  return base
end

-- That of each group.
local function starts_of(self)
  local out = {}
  for i, group in each(self) do out[i] = base_of(self, i, group) end
  return out
end

-- The rates where they are after `last_epoch` steps, whatever they were.
function Scheduler:_apply()
  for i, group in each(self) do
    group.lr = self:lr_at(self.last_epoch, base_of(self, i, group), i, group)
  end
end

-- The rate after step t, where it is lr now. A rate that is what this schedule left stays exactly on its formula.
function Scheduler:_lr_after(lr, t, i, group)
  local base = base_of(self, i, group)
  if self.sets then return self:lr_at(t, base, i, group) end
  if self._lr_next then return self:_lr_next(lr, t, base, i) end
  local before = t > 0 and self:lr_at(t - 1, base, i, group) or base
  local now = self:lr_at(t, base, i, group)
  if lr == before then return now end
  if self._lr_from then return self:_lr_from(lr, t, base) end
  if before == 0 then return now == 0 and lr or now end
  return lr * (now / before)
end

-- The first rates, from those that are there.
function Scheduler:_begin()
  self.last_epoch = 0
  for i, group in each(self) do group.lr = self:_lr_after(group.lr, 0, i, group) end
end

function Scheduler:_advance()
  local t = self.last_epoch + 1
  self.last_epoch = t
  for i, group in each(self) do group.lr = self:_lr_after(group.lr, t, i, group) end
end

-- The steps taken are `epoch` now, and the rates those of the formula.
function Scheduler:_jump(epoch)
  self.last_epoch = epoch
  if not self._lr_next then return self:_apply() end
  for i, group in each(self) do group.lr = self:_lr_after(group.lr, epoch, i, group) end
end

-- A step is whole or none: where a function of the script fails, or Ctrl-C comes, counts and rates are as they were, of
-- all groups and of all parts. Else the next one began at another place for each.
local Whole = { __close = T.core.held(function(self, err)
  if err == nil then return end
  for i = 1, #self, 2 do
    for key, v in pairs(self[i + 1]) do rawset(self[i], key, v) end
  end
end) }

local function note(list, schedule)
  local n, kept = #list, {}
  for key, v in next, schedule do if type(v) ~= "table" then kept[key] = v end end
  list[n + 1], list[n + 2] = schedule, kept
  for _, part in ipairs(rawget(schedule, "schedulers") or {}) do note(list, part) end
end

-- Lists are of the groups that there are: before anything is noted that is put back, here or by T.jit.
function Scheduler:_settle()
  groups.settle(self)
  for _, part in ipairs(rawget(self, "schedulers") or {}) do part:_settle() end
end

local whole = T.core.held(function(self)
  self:_settle()
  local list = setmetatable({}, Whole)
  note(list, self)
  for _, group in ipairs(self.optimizer.param_groups) do
    local n, betas = #list, group.betas
    list[n + 1], list[n + 2] = group, { lr = group.lr, momentum = group.momentum, betas = betas }
    if type(betas) == "table" then list[n + 3], list[n + 4] = betas, { betas[1], betas[2] } end
  end
  return list
end)

--- Moves on by one; with a number, to that epoch.
function Scheduler:step(epoch)
  if type(self) ~= "table" then options.colon "scheduler:step()" end
  local _ <close> = whole(self)
  if epoch == nil then return self:_advance() end
  local number = type(epoch) == "number" and (self.fractions and epoch or options.integer(epoch))
  if not number or not (number >= 0 and number < math.huge) then
    fail("lr_scheduler.%s:step: an epoch, %s >= 0, or nothing is wanted, got %s; only ReduceLROnPlateau takes a loss",
      self.__name, self.fractions and "a number" or "a whole number", options.describe(epoch))
  end
  self:_jump(number)
end

--- Numbers only, for T.save.
function Scheduler:state_dict()
  local out = {}
  groups.settle(self)
  for key, v in pairs(self) do
    if type(v) == "number" or type(v) == "boolean" or type(v) == "string" then out[key] = v end
  end
  for _, key in ipairs { "milestones", "min_lr" } do
    if type(self[key]) == "table" then out[key] = { table.unpack(self[key]) } end
  end
  out.base_lrs, out.last_lr = starts_of(self), self:get_last_lr()
  return out
end

-- A state of PyTorch's, by our names. It counts how often a milestone stands in the list.
local theirs = { num_bad_epochs = "bad", cooldown_counter = "rest", min_lrs = "min_lr" }
local function by_our_names(sd)
  if type(sd) ~= "table" or type(sd._last_lr) ~= "table" then return sd end
  local out = {}
  for key, v in pairs(sd) do
    if not (type(key) == "string" and key:find "^_") then out[theirs[key] or key] = v end
  end
  out.last_lr = sd._last_lr
  if type(sd.milestones) == "table" then
    out.milestones = {}
    for stone, times in pairs(sd.milestones) do
      for _ = 1, times do out.milestones[#out.milestones + 1] = stone end
    end
    table.sort(out.milestones)
  end
  out.milestones = sd._milestones or out.milestones
  if type(sd._schedulers) == "table" then
    out.schedulers = {}
    for i, part in ipairs(sd._schedulers) do out.schedulers[i] = by_our_names(part) end
    out.last_epoch = out.last_epoch or out.schedulers[1] and out.schedulers[1].last_epoch
  end
  return out
end

-- All but the rates.
function Scheduler:_restore(sd)
  if type(sd) ~= "table" or type(sd.last_epoch) ~= "number" then
    fail("lr_scheduler:load_state_dict: not a scheduler's state")
  end
  groups.settle(self)
  for key, v in pairs(sd) do
    if key == "base_lrs" then self.base_lrs = { table.unpack(v) }
    elseif key == "milestones" and self.milestones then self.milestones = { table.unpack(v) }
    elseif key ~= "last_lr" and (type(v) == type(self[key]) or self[key] == nil) then self[key] = v end
  end
end

-- The rates that a state has.
function Scheduler:_restore_rates(sd)
  for i, group in ipairs(self.optimizer.param_groups) do group.lr = sd.last_lr and sd.last_lr[i] or group.lr end
end

--- Takes over what state_dict returned, here or of the same schedule of PyTorch.
function Scheduler:load_state_dict(sd)
  sd = by_our_names(sd)
  self:_restore(sd)
  if self.sets or not sd.last_lr then self:_apply() end -- momentum moves, too
  self:_restore_rates(sd)
end

-- `lr_at(self, t, base, i, group)` is the formula. `setup(self)` runs before the first learning rates are set. `how`
-- has fields of the class: sets, the formula overrides the rate that is there; _lr_from(self, lr, t, base), how another
-- rate goes on where that is not by a factor; _lr_next(self, lr, t, base, i), in place of the formula; fractions, of
-- epochs; passive, it leaves the rate as it is at first; start_of, the setting from which groups start.
local function define(name, args, lr_at, setup, how)
  local who = "lr_scheduler." .. name
  local spec = options.spec(who, args)
  local C = { __name = name, lr_at = lr_at }
  for key, v in pairs(how or {}) do C[key] = v end
  local function new(_, opt, ...)
    if type(opt) ~= "table" or type(opt.param_groups) ~= "table" then
      fail("%s: the first argument must be an optimizer, got %s", who, options.describe(opt))
    end
    local self = setmetatable({ optimizer = opt, last_epoch = 0, base_lrs = {} }, C)
    for key, v in pairs(options.read(spec, ...)) do self[key] = v end
    groups.settle(self)
    if setup then setup(self, who) end
    if C.passive then return self end
    for i, group in ipairs(opt.param_groups) do
      group.initial_lr = group.initial_lr or group.lr
      self.base_lrs[i] = self.base_lrs[i] or group.initial_lr
    end
    self:_begin()
    return self
  end
  C.__index = C
  sched[name] = classes.class(setmetatable(C, { __index = Scheduler, __call = new }), "schedule", "lr_at")
  return C
end

--- optim.lr_scheduler.StepLR(…) → schedule
-- lr · gamma^(t // step_size).
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.StepLR(opt, 2)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 1 0.1 0.1
define("StepLR", { { "step_size", "count" }, { "gamma", "number", 0.1 } },
  function(self, t, base) return base * self.gamma ^ (t // self.step_size) end)

--- optim.lr_scheduler.MultiStepLR(…) → schedule
-- lr · gamma^(number of milestones reached).
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.MultiStepLR(opt, { 1, 3 })
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.1 0.1 0.01
define("MultiStepLR", { { "milestones", "window" }, { "gamma", "number", 0.1 } }, function(self, t, base)
  local n = 0
  for _, m in ipairs(self.milestones) do if t >= m then n = n + 1 end end
  return base * self.gamma ^ n
end, function(self) if type(self.milestones) ~= "table" then self.milestones = { self.milestones } end end)

--- optim.lr_scheduler.ExponentialLR(…) → schedule
-- lr · gamma^t.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.ExponentialLR(opt, 0.5)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.5 0.25 0.125
define("ExponentialLR", { { "gamma", "number" } }, function(self, t, base) return base * self.gamma ^ t end)

--- optim.lr_scheduler.ConstantLR(…) → schedule
-- lr · factor during the first total_iters steps, then lr.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.ConstantLR(opt, 0.5, 2)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 0.5 0.5 1 1
define("ConstantLR", { { "factor", "probability", 1 / 3 }, { "total_iters", "count", 5 } },
  function(self, t, base) return t < self.total_iters and base * self.factor or base end)

--- optim.lr_scheduler.LinearLR(…) → schedule
-- The factor goes from start_factor to end_factor in total_iters steps.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.LinearLR(opt, 0.5, 1, 2)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 0.5 0.75 1 1
define("LinearLR", { { "start_factor", "probability", 1 / 3 }, { "end_factor", "probability", 1.0 },
  { "total_iters", "count", 5 } }, function(self, t, base)
  local part = min(t, self.total_iters) / self.total_iters
  return base * (self.start_factor + (self.end_factor - self.start_factor) * part)
end, function(self, who)
  if self.start_factor == 0 then fail("%s: start_factor must be above 0, got 0", who) end
end)

--- optim.lr_scheduler.PolynomialLR(…) → schedule
-- lr (1 - t/total_iters)^power, then 0.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.PolynomialLR(opt, 4)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.75 0.5 0.25
define("PolynomialLR", { { "total_iters", "count", 5 }, { "power", "number", 1.0 } },
  function(self, t, base) return base * (1 - min(t, self.total_iters) / self.total_iters) ^ self.power end)

--- optim.lr_scheduler.CosineAnnealingLR(…) → schedule
-- Half a cosine from lr to eta_min in T_max steps (Loshchilov & Hutter 2017).
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.CosineAnnealingLR(opt, 4)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.854 0.5 0.146
define("CosineAnnealingLR", { { "T_max", "count" }, { "eta_min", "number", 0.0 } }, function(self, t, base)
  return self.eta_min + (base - self.eta_min) * (1 + cos(pi * t / self.T_max)) / 2
end, nil, { _lr_from = function(self, lr, t, base)
  local T_max, low = self.T_max, self.eta_min
  if t == 0 then return lr end -- begins at the rate that is there
  if (t - 1 - T_max) % (2 * T_max) == 0 then return lr + (base - low) * (1 - cos(pi / T_max)) / 2 end
  local before = t > 0 and 1 + cos(pi * (t - 1) / T_max) or 2
  return (1 + cos(pi * t / T_max)) / before * (lr - low) + low
end })

--- optim.lr_scheduler.CosineAnnealingWarmRestarts(…) → schedule
-- The same, starting again every T_0 steps, each period T_mult times as long. step(epoch) takes fractions of an epoch.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 2)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.5 1 0.5
define("CosineAnnealingWarmRestarts", { { "T_0", "count" }, { "T_mult", "count", 1 }, { "eta_min", "number",
  0.0 } },
  function(self, t, base)
    local period = self.T_0
    if self.T_mult == 1 then
      t = t % period
    else
      while t >= period do
        t = t - period
        period = period * self.T_mult
      end
    end
    return self.eta_min + (base - self.eta_min) * (1 + cos(pi * t / period)) / 2
  end, nil, { sets = true, fractions = true })

--- optim.lr_scheduler.LambdaLR(…) → schedule
-- lr · f(t); a function, or one a group.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.LambdaLR(opt, function(t) return 1 / (t + 1) end)
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 1 0.5 0.333 0.25
define("LambdaLR", { { "lr_lambda", "any" } }, function(self, t, base, i)
  return base * setting(self, "lr_lambda", i)(t)
end, function(self, who)
  local f, n = self.lr_lambda, #self.optimizer.param_groups
  if type(f) == "table" and #f ~= n then fail("%s: %d functions for %d groups", who, #f, n) end
  if type(f) ~= "function" and type(f) ~= "table" then
    fail("%s: lr_lambda must be a function or a list of them, got %s", who, options.describe(f))
  end
end, { sets = true })

-- Moves momentum (SGD) or betas[1] (Adam).
local function set_momentum(group, v)
  if group.betas then group.betas[1] = v elseif group.momentum then group.momentum = v end
end
local function check_momentum(self, who)
  local known = self.optimizer.defaults or {}
  if self.cycle_momentum and not known.momentum and not known.betas then
    fail("%s: the optimizer has neither momentum nor betas; pass cycle_momentum = false", who)
  end
end

-- One cycle (Smith & Topin 2018): from max_lr/div_factor up to max_lr in pct_start of the steps, then down to
-- a final_div_factor-th of the start; momentum goes the other way. Steps in all: total_steps, or
-- epochs · steps_per_epoch. A step() after the last batch too keeps the last rate.
--- optim.lr_scheduler.OneCycleLR(…) → schedule
-- Up to max_lr and down again in total_steps; momentum the other way (Smith & Topin 2018).
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.OneCycleLR(opt, 1.0, { total_steps = 10 })
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 0.04 0.52 1 0.95
define("OneCycleLR", {
  { "max_lr", "any" }, { "total_steps", "count", optional = true }, { "epochs", "count", optional = true },
  { "steps_per_epoch", "count", optional = true }, { "pct_start", "probability", 0.3 },
  { "anneal_strategy", { "cos", "linear" }, "cos" }, { "cycle_momentum", "bool", true },
  { "base_momentum", "number", 0.85 }, { "max_momentum", "number", 0.95 }, { "div_factor", "number", 25.0 },
  { "final_div_factor", "number", 1e4 }, { "three_phase", "bool", false } }, function(self, t, _, i, group)
  local function anneal(a, b, part)
    if self.anneal_strategy == "linear" then return a + (b - a) * part end
    return b + (a - b) / 2 * (1 + cos(pi * part))
  end
  local top = setting(self, "max_lr", i)
  local start = top / self.div_factor
  local last = start / self.final_div_factor
  local hi, lo = self.max_momentum, self.base_momentum
  local up = self.pct_start * self.total_steps - 1
  local phases = { { up, start, top, hi, lo }, { self.total_steps - 1, top, last, lo, hi } }
  if self.three_phase then
    phases = { { up, start, top, hi, lo }, { 2 * up, top, start, lo, hi },
      { self.total_steps - 1, start, last, hi, hi } }
  end
  if t > self.total_steps then
    fail("lr_scheduler.OneCycleLR: step %d, but total_steps is %d", t, self.total_steps)
  end
  local from = 0
  for k, phase in ipairs(phases) do
    if t <= phase[1] or k == #phases then
      local part = min((t - from) / (phase[1] - from), 1)
      if self.cycle_momentum then set_momentum(group, anneal(phase[4], phase[5], part)) end
      return anneal(phase[2], phase[3], part)
    end
    from = phase[1]
  end
end, function(self, who)
  if not self.total_steps then
    if not (self.epochs and self.steps_per_epoch) then
      fail("%s: total_steps, or epochs and steps_per_epoch, must be given", who)
    end
    self.total_steps = self.epochs * self.steps_per_epoch
  end
  check_momentum(self, who)
  groups.check_numbers(self, who, "max_lr")
  for i, group in each(self) do group.initial_lr = setting(self, "max_lr", i) / self.div_factor end
end, { sets = true })

--- optim.lr_scheduler.CyclicLR(…) → schedule
-- Back and forth between base_lr and max_lr (Smith 2017).
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.CyclicLR(opt, 0.1, 0.5, 2, { cycle_momentum = false })
--   local rates = {}
--   for t = 1, 4 do
--     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
--     schedule:step()
--   end
--   print(table.concat(rates, " "))  --> 0.1 0.3 0.5 0.3
define("CyclicLR", {
  { "base_lr", "any" }, { "max_lr", "any" }, { "step_size_up", "count", 2000 },
  { "step_size_down", "count", optional = true },
  { "mode", { "triangular", "triangular2", "exp_range" }, "triangular" }, { "gamma", "number", 1.0 },
  { "cycle_momentum", "bool", true }, { "base_momentum", "number", 0.8 }, { "max_momentum", "number", 0.9 } },
  function(self, t, low, i, group)
    local up = self.step_size_up
    local total = up + (self.step_size_down or up)
    local cycle = floor(1 + t / total)
    local x = 1 + t / total - cycle
    local share = up / total
    local scale = x <= share and x / share or (x - 1) / (share - 1)
    local factor = 1
    if self.mode == "triangular2" then factor = 1 / 2 ^ (cycle - 1) end
    if self.mode == "exp_range" then factor = self.gamma ^ t end
    if self.cycle_momentum then
      set_momentum(group, self.max_momentum - (self.max_momentum - self.base_momentum) * scale * factor)
    end
    return low + (setting(self, "max_lr", i) - low) * scale * factor
  end, function(self, who)
    check_momentum(self, who)
    groups.check_numbers(self, who, "max_lr")
    groups.check_numbers(self, who, "base_lr")
    for i, group in each(self) do
      local low = setting(self, "base_lr", i)
      self.base_lrs[i], group.lr = low, low
    end
  end, { sets = true, start_of = "base_lr" })

--- optim.lr_scheduler.SequentialLR(…) → schedule
-- One schedule after the other, each with its own count from 0; the parts are made first, on the same optimizer, and
-- may be made of others.
--   local S = optim.lr_scheduler
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.SequentialLR(opt, {
--     schedulers = { S.LinearLR(opt, 0.5, 1, 2), S.ExponentialLR(opt, 0.5) }, milestones = { 2 } })
--   schedule:step()
--   print(opt.param_groups[1].lr)  --> 0.75
local Sequential = define("SequentialLR", { { "schedulers", "any" }, { "milestones", "ints" } },
  function(_, _, base) return base end, function(self, who)
    if type(self.milestones) ~= "table" then self.milestones = { self.milestones } end
    local parts, stones = self.schedulers, self.milestones
    if type(parts) ~= "table" or #parts ~= #stones + 1 then
      fail("%s: a list of %d schedulers is wanted for %d milestones", who, #stones + 1, #stones)
    end
    for k = 2, #stones do
      if stones[k] < stones[k - 1] then
        fail("%s: milestones must not fall, got %s", who, options.list_text(stones))
      end
    end
    for i, part in ipairs(parts) do
      if type(part) ~= "table" or part.optimizer ~= self.optimizer or not part._advance then
        fail("%s: entry %d must be a scheduler of the same optimizer", who, i)
      end
      if part.best then fail("%s: ReduceLROnPlateau cannot be a part", who) end
    end
    -- Each part was made when those before had already changed the rates: the first begins anew.
    for i, group in ipairs(self.optimizer.param_groups) do
      self.base_lrs[i] = group.initial_lr
      group.lr = group.initial_lr
    end
    self:_part_at(0):_begin()
  end, { passive = true })

function Sequential:_begin()
  self.last_epoch = 0
  self:_part_at(0):_begin()
end

-- The schedule whose turn it is after t steps, and the step at which that began.
function Sequential:_part_at(t)
  local k = 1
  while self.milestones[k] and t >= self.milestones[k] do k = k + 1 end
  return self.schedulers[k], self.milestones[k - 1] or 0
end
function Sequential:_advance()
  local t = self.last_epoch + 1
  local part, from = self:_part_at(t)
  self.last_epoch = t
  if t == from then part:_jump(0) else part:_advance() end
end
function Sequential:_jump(t)
  local part, from = self:_part_at(t)
  self.last_epoch = t
  part:_jump(t - from)
end

function Sequential:state_dict()
  local parts = {}
  for i, part in ipairs(self.schedulers) do parts[i] = part:state_dict() end
  return { last_epoch = self.last_epoch, base_lrs = starts_of(self),
    milestones = { table.unpack(self.milestones) }, schedulers = parts, last_lr = self:get_last_lr() }
end

function Sequential:_restore(sd)
  if type(sd) ~= "table" or type(sd.schedulers) ~= "table" or #sd.schedulers ~= #self.schedulers then
    fail("SequentialLR:load_state_dict: a state of %d schedulers is wanted", #self.schedulers)
  end
  groups.settle(self)
  for i, part in ipairs(self.schedulers) do part:_restore(sd.schedulers[i]) end
  self.last_epoch, self.base_lrs = sd.last_epoch, { table.unpack(sd.base_lrs or self.base_lrs) }
  if sd.milestones then self.milestones = { table.unpack(sd.milestones) } end
end
function Sequential:_apply()
  local part, from = self:_part_at(self.last_epoch)
  part.last_epoch = self.last_epoch - from
  part:_apply()
end
Sequential.sets = true

--- optim.lr_scheduler.ReduceLROnPlateau(…) → schedule
-- lr · factor whenever step(metric) has not improved for more than patience steps.
--   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
--   local schedule = optim.lr_scheduler.ReduceLROnPlateau(opt, { patience = 1 })
--   for _ = 1, 4 do schedule:step(2.5) end
--   print(opt.param_groups[1].lr)  --> 0.1
local Plateau = define("ReduceLROnPlateau", {
  { "mode", { "min", "max" }, "min" }, { "factor", "number", 0.1 }, { "patience", "size", 10 },
  { "threshold", "number", 1e-4 }, { "threshold_mode", { "rel", "abs" }, "rel" }, { "cooldown", "size", 0 },
  { "min_lr", "any", 0.0 }, { "eps", "number", 1e-8 } }, function(_, _, base) return base end,
    function(self, who)
  if self.factor >= 1 then fail("%s: factor must be below 1, got %g", who, self.factor) end
  groups.check_numbers(self, who, "min_lr")
  self.best = self.mode == "min" and math.huge or -math.huge
  self.bad, self.rest = 0, 0
end, { passive = true })

Plateau.needs_metric = true

local function better(self, v)
  local up = self.mode == "max"
  local margin = self.threshold_mode == "rel" and self.best * self.threshold or self.threshold
  if self.best == math.huge or self.best == -math.huge then return up and v > self.best or v < self.best end
  if up then return v > self.best + margin end
  return v < self.best - margin
end

function Plateau:step(metric)
  if type(self) ~= "table" then options.colon "scheduler:step(loss)" end
  if type(metric) == "userdata" then metric = metric:item() end
  if type(metric) ~= "number" then fail("ReduceLROnPlateau:step: a number is wanted") end
  local _ <close> = whole(self)
  for i in each(self) do setting(self, "min_lr", i) end
  self.last_epoch = self.last_epoch + 1
  if better(self, metric) then
    self.best, self.bad = metric, 0
  else
    self.bad = self.bad + 1
  end
  if self.rest > 0 then self.rest, self.bad = self.rest - 1, 0 end
  if self.bad > self.patience then
    for i, group in each(self) do
      local new = max(group.lr * self.factor, setting(self, "min_lr", i))
      if group.lr - new > self.eps then group.lr = new end
    end
    self.rest, self.bad = self.cooldown, 0
  end
end

function Plateau:load_state_dict(sd)
  sd = by_our_names(sd)
  groups.settle(self)
  for key, v in pairs(sd) do
    if (type(v) == type(self[key]) or key == "min_lr") and key ~= "base_lrs" then self[key] = v end
  end
end

require "perilune.optim.lr_scheduler_combine"(sched, define, Scheduler)

-- In a traced function a step is taken at every run of its graph.
for _, C in pairs(sched) do
  local step = rawget(C, "step")
  C.__jit = "opaque" -- knows how to be traced: perilune/jit/guards.lua
  if step then
    C.step = nil -- what is assigned anew is looked after, too
    function C:step(...)
      if tracing() then return require("perilune.jit").act(self, step, ...) end
      return step(self, ...)
    end
  end
end
return sched
