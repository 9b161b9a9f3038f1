-- SPDX-License-Identifier: MIT
--- Learning rates made of others: MultiplicativeLR, ChainedScheduler, SWALR.
-- @module perilune.optim.lr_scheduler
local classes = require "perilune.classes"
local options = require "perilune.options"
local setting = require("perilune.optim.lr_scheduler_groups").setting

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
  define("MultiplicativeLR", { { "lr_lambda", "any" } }, nil, function(self, who)
    local f, n = self.lr_lambda, #self.optimizer.param_groups
    if type(f) == "table" and #f ~= n then fail("%s: %d functions for %d groups", who, #f, n) end
    if type(f) ~= "function" and type(f) ~= "table" then
      fail("%s: lr_lambda must be a function or a list of them, got %s", who, options.describe(f))
    end
  end, { _lr_next = function(self, lr, t, _, i)
    return lr * setting(self, "lr_lambda", i)(t)
  end, _begin = function(self) self.last_epoch = 0 end, _apply = function() end })

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
  local function annealed(self, t)
    local part = max(0, min(1, t / max(1, self.anneal_epochs)))
    return self.anneal_strategy == "cos" and (1 - cos(pi * part)) / 2 or part
  end
  define("SWALR", { { "swa_lr", "any" }, { "anneal_epochs", "size", 10 },
    { "anneal_strategy", { "cos", "linear" }, "cos" } }, nil, function(self, who)
    local rates, n = self.swa_lr, #self.optimizer.param_groups
    if type(rates) == "number" then rates = { rates } elseif type(rates) == "table" and #rates ~= n then
      fail("%s: %d rates for %d groups", who, #rates, n)
    end
    for _, v in ipairs(type(rates) == "table" and rates or { rates }) do
      if type(v) ~= "number" or v < 0 then
        fail("%s: swa_lr must be a number >= 0 or a list of them, got %s", who, options.describe(self.swa_lr))
      end
    end
  end, { _lr_next = function(self, lr, t, _, i)
    if self.anneal_epochs == 0 then t = max(1, t) end
    local goal = setting(self, "swa_lr", i)
    local before, now = annealed(self, t - 1), annealed(self, t)
    local start = before == 1 and goal or (lr - before * goal) / (1 - before) -- where the way to goal began
    return goal * now + start * (1 - now)
  end, _apply = function() end })

  local Chained = classes.new("ChainedScheduler", "schedule", Scheduler)
  local spec = options.spec("lr_scheduler.ChainedScheduler", { { "schedulers", "any" } }, { list_first = true })

  --- optim.lr_scheduler.ChainedScheduler{schedule, …} → schedule
  -- All schedules at once, one on top of the other.
  --   local S = optim.lr_scheduler
  --   local opt = optim.SGD({ nn.Parameter(T.ones(1)) }, { lr = 1 })
  --   local schedule = optim.lr_scheduler.ChainedScheduler { S.ConstantLR(opt, 0.5, 1), S.ExponentialLR(opt, 0.1) }
  --   schedule:step()
  --   print(("%.3g"):format(opt.param_groups[1].lr))  --> 0.1
  sched.ChainedScheduler = Chained
  getmetatable(Chained).__call = function(_, list, ...)
    local who = "lr_scheduler.ChainedScheduler"
    if type(list) == "table" and list.schedulers then list = options.read(spec, list).schedulers end
    if select("#", ...) > 0 or type(list) ~= "table" or #list == 0 then
      fail("%s: one list of schedulers is wanted, got %s", who, options.describe(list))
    end
    options.list(who, "the schedulers", list, "schedulers")
    local opt = type(list[1]) == "table" and list[1].optimizer
    for i, part in ipairs(list) do
      if type(part) ~= "table" or not part._advance or not opt or part.optimizer ~= opt then
        fail("%s: entry %d must be a scheduler of the same optimizer", who, i)
      end
      if part.best then fail("%s: %s cannot be a part", who, part.__name) end
    end
    local parts = { table.unpack(list) }
    return setmetatable({ optimizer = opt, schedulers = parts, last_epoch = 0, base_lrs = {} }, Chained)
  end

  function Chained:_advance()
    self.last_epoch = self.last_epoch + 1
    for _, part in ipairs(self.schedulers) do part:_advance() end
  end
  function Chained:_begin()
    self.last_epoch = 0
    for _, part in ipairs(self.schedulers) do part:_begin() end
  end
  function Chained:_jump(epoch)
    if epoch == 0 then -- a part of SequentialLR whose turn it is: the rates before all schedules are where it begins
      for _, group in ipairs(self.optimizer.param_groups) do group.lr = group.initial_lr or group.lr end
      return self:_begin()
    end
    fail("lr_scheduler.ChainedScheduler: the rates at epoch %d have no formula; step() one by one", epoch)
  end
  function Chained:state_dict()
    local parts = {}
    for i, part in ipairs(self.schedulers) do parts[i] = part:state_dict() end
    return { last_epoch = self.last_epoch, schedulers = parts, last_lr = self:get_last_lr() }
  end
  function Chained:_restore(sd)
    if type(sd) ~= "table" or type(sd.schedulers) ~= "table" or #sd.schedulers ~= #self.schedulers then
      fail("ChainedScheduler:load_state_dict: a state of %d schedulers is wanted", #self.schedulers)
    end
    for i, part in ipairs(self.schedulers) do part:_restore(sd.schedulers[i]) end
    self.last_epoch = sd.last_epoch
  end
  function Chained:_apply() end
  sched.LRScheduler = Scheduler
end
