-- SPDX-License-Identifier: MIT
--- Learning rates made of others: MultiplicativeLR, ChainedScheduler, SWALR.
-- @module perilune.optim.lr_scheduler
local options = require "perilune.options"

local fail, cos, pi, max, min = options.fail, math.cos, math.pi, math.max, math.min

return function(sched, define, Scheduler)

  --- optim.lr_scheduler.MultiplicativeLR(…) → schedule
  -- lr · f(1) · f(2) · … · f(t); a function, or one a group.
  --   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
  --   local schedule = optim.lr_scheduler.MultiplicativeLR(opt, function() return 0.5 end)
  --   local rates = {}
  --   for t = 1, 4 do
  --     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  --     schedule:step()
  --   end
  --   print(table.concat(rates, " "))  --> 1 0.5 0.25 0.125
  define("MultiplicativeLR", { { "lr_lambda", "any" } }, function(self, t, base, i)
    local f = type(self.lr_lambda) == "table" and self.lr_lambda[i] or self.lr_lambda
    local known = self._products[i] or { at = 0, value = 1.0 }
    if t < known.at then known = { at = 0, value = 1.0 } end
    for k = known.at + 1, t do known.value = known.value * f(k) end
    known.at = t
    self._products[i] = known
    return base * known.value
  end, function(self, who)
    local f, n = self.lr_lambda, #self.optimizer.param_groups
    if type(f) == "table" and #f ~= n then fail("%s: %d functions for %d groups", who, #f, n) end
    if type(f) ~= "function" and type(f) ~= "table" then
      fail("%s: lr_lambda must be a function or a list of them, got %s", who, options.describe(f))
    end
    self._products = {}
  end)

  --- optim.lr_scheduler.SWALR(…) → schedule
  -- From the rate that is there to swa_lr in anneal_epochs steps.
  --   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
  --   local schedule = optim.lr_scheduler.SWALR(opt, 0.05, 2)
  --   local rates = {}
  --   for t = 1, 4 do
  --     rates[t] = ("%.3g"):format(opt.param_groups[1].lr)
  --     schedule:step()
  --   end
  --   print(table.concat(rates, " "))  --> 1 0.525 0.05 0.05

  --- optim.swa_utils.SWALR(opt, swa_lr, anneal_epochs=10, anneal_strategy="cos") → schedule
  -- Another name of optim.lr_scheduler.SWALR.
  --   print(optim.swa_utils.SWALR == optim.lr_scheduler.SWALR)  --> true
  define("SWALR", { { "swa_lr", "any" }, { "anneal_epochs", "size", 10 },
    { "anneal_strategy", { "cos", "linear" }, "cos" } }, function(self, t, base, i)
    local part = self.anneal_epochs == 0 and 1 or max(0, min(1, t / self.anneal_epochs))
    local share = self.anneal_strategy == "cos" and (1 - cos(pi * part)) / 2 or part
    local goal = type(self.swa_lr) == "table" and self.swa_lr[i] or self.swa_lr
    return goal * share + base * (1 - share)
  end, function(self, who)
    local rates, n = self.swa_lr, #self.optimizer.param_groups
    if type(rates) == "number" then rates = { rates } elseif type(rates) == "table" and #rates ~= n then
      fail("%s: %d rates for %d groups", who, #rates, n)
    end
    for _, v in ipairs(type(rates) == "table" and rates or { rates }) do
      if type(v) ~= "number" or v < 0 then
        fail("%s: swa_lr must be a number >= 0 or a list of them, got %s", who, options.describe(self.swa_lr))
      end
    end
  end)

  -- What a step changes a given rate by, for schedules one on top of the other. Most multiply; the cosine moves
  -- towards eta_min.
  local function follow(part, lr, t, i, group)
    local base = part.base_lrs[i] or lr
    if part.__name == "CosineAnnealingLR" then
      local T, low = part.T_max, part.eta_min
      if (t - 1 - T) % (2 * T) == 0 then return lr + (base - low) * (1 - cos(pi / T)) / 2 end
      return (1 + cos(pi * t / T)) / (1 + cos(pi * (t - 1) / T)) * (lr - low) + low
    end
    local before = part:lr_at(t - 1, base, i, group)
    local now = part:lr_at(t, base, i, group)
    return before ~= 0 and lr * (now / before) or now
  end

  local Chained = setmetatable({ __name = "ChainedScheduler" }, { __index = Scheduler })
  Chained.__index = Chained
  local spec = options.spec("lr_scheduler.ChainedScheduler", { { "schedulers", "any" } }, { list_first = true })

  --- optim.lr_scheduler.ChainedScheduler{schedule, …} → schedule
  -- All schedules at once, one on top of the other.
  --   local S = optim.lr_scheduler
  --   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
  --   local schedule = optim.lr_scheduler.ChainedScheduler { S.ConstantLR(opt, 0.5, 1), S.ExponentialLR(opt, 0.1) }
  --   schedule:step()
  --   print(("%.3g"):format(opt.param_groups[1].lr))  --> 0.1
  sched.ChainedScheduler = setmetatable(Chained, { __index = Scheduler, __call = function(_, list, ...)
    local who = "lr_scheduler.ChainedScheduler"
    if type(list) == "table" and list.schedulers then list = options.read(spec, list).schedulers end
    if select("#", ...) > 0 or type(list) ~= "table" or #list == 0 then
      fail("%s: one list of schedulers is wanted, got %s", who, options.describe(list))
    end
    options.list(who, "the schedulers", list, "schedulers")
    local opt = type(list[1]) == "table" and list[1].optimizer
    for i, part in ipairs(list) do
      if type(part) ~= "table" or not part.lr_at or not opt or part.optimizer ~= opt then
        fail("%s: entry %d must be a scheduler of the same optimizer", who, i)
      end
      if part.best or part.schedulers then fail("%s: %s cannot be a part", who, part.__name or "this") end
    end
    local parts = { table.unpack(list) }
    for _, part in ipairs(parts) do -- each was made when those before had changed the rates
      for g, lr in ipairs(parts[1].base_lrs) do part.base_lrs[g] = lr end
    end
    return setmetatable({ optimizer = opt, schedulers = parts, last_epoch = 0, base_lrs = {} }, Chained)
  end })

  function Chained:step()
    self.last_epoch = self.last_epoch + 1
    for _, part in ipairs(self.schedulers) do
      part.last_epoch = part.last_epoch + 1
      for i, group in ipairs(self.optimizer.param_groups) do
        group.lr = follow(part, group.lr, part.last_epoch, i, group)
      end
    end
  end
  function Chained:state_dict()
    local parts = {}
    for i, part in ipairs(self.schedulers) do parts[i] = part:state_dict() end
    return { last_epoch = self.last_epoch, schedulers = parts, last_lr = self:get_last_lr() }
  end
  function Chained:load_state_dict(sd)
    if type(sd) ~= "table" or type(sd.schedulers) ~= "table" or #sd.schedulers ~= #self.schedulers then
      fail("ChainedScheduler:load_state_dict: a state of %d schedulers is wanted", #self.schedulers)
    end
    for i, part in ipairs(self.schedulers) do part:load_state_dict(sd.schedulers[i]) end
    self.last_epoch = sd.last_epoch
    for i, group in ipairs(self.optimizer.param_groups) do group.lr = sd.last_lr[i] or group.lr end
  end
  sched.LRScheduler = Scheduler
end
