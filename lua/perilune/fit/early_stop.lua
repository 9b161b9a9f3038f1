-- SPDX-License-Identifier: MIT
--- Ends training when a figure no longer gets better: a callback of T.fit, or by hand `if stop(loss) then break end`.
-- @module perilune.fit.early_stop
local classes = require "perilune.classes"
local options = require "perilune.options"
local History = require "perilune.fit.history"

local fail = options.fail
local Early = classes.new("early_stop", "early")

local spec = options.spec("early_stop", { { "patience", "size", 3 }, { "monitor", "string", optional = true },
  { "min_delta", "nonnegative", 0 }, { "mode", { "min", "max" }, optional = true }, { "restore", "bool", false } })

--- Notes a figure. True when `patience` figures in a row were no better than the best by min_delta.
function Early:__call(v)
  if type(v) == "userdata" and v.numel and v:numel() == 1 then v = v:item() end
  if type(v) ~= "number" then fail("early_stop: a number is wanted, got %s", options.describe(v)) end
  local mode = self.mode or (self.monitor and History.mode("early_stop", self.monitor)) or "min"
  local better = not self.best or (mode == "min" and v < self.best - self.min_delta) or
    (mode == "max" and v > self.best + self.min_delta)
  self.seen = self.seen + 1
  self.improved = better and v == v
  if self.improved then
    self.best, self.best_at, self.bad = v, self.seen, 0
  else
    self.bad = self.bad + 1
  end
  self.stopped = self.bad >= math.max(1, self.patience)
  return self.stopped
end

function Early:on_epoch(run)
  local name = self.monitor or (run.row.valid_loss ~= nil and "valid_loss") or "loss"
  local v = run.row[name]
  if v == nil then
    local names = {}
    for key in pairs(run.row) do names[#names + 1] = key end
    table.sort(names)
    fail("early_stop: %s", options.unknown("figure", name, names))
  end
  self.monitor = name
  if self(v) then
    local of = run.options and run.options.eval_every and "evaluations" or "epochs"
    run.stop = ("%s has not got better for %d %s"):format(name, self.bad, of)
  end
  if self.improved and self.restore then
    local opt = run.optimizer
    local averages = opt and opt.is_training and opt:is_training() -- of a schedule-free optimizer: they were measured
    if averages then opt:eval() end
    self.weights = {}
    for key, t in pairs(run.net:state_dict()) do self.weights[key] = t:clone() end
    if averages then opt:train() end
  end
end

function Early:on_end(run)
  if self.restore and self.weights then run.net:load_state_dict(self.weights) end
end

local plain = { "best", "best_at", "bad", "seen" }

function Early:state_dict()
  local out = { weights = self.weights }
  for _, key in ipairs(plain) do out[key] = self[key] end
  return out
end

function Early:load_state_dict(sd)
  for _, key in ipairs(plain) do self[key] = sd[key] end
  self.weights = sd.weights
end

--- T.early_stop{patience=3, monitor="valid_loss", min_delta=0, mode=, restore=false} → callback
-- mode: "min" or "max", by default as the name says; a name that says nothing needs it. Ends T.fit when `patience`
-- epochs in a row brought nothing better; restore: the network gets its best weights back. By hand: `if stop(loss) then
-- break end`.
--   local stop = T.early_stop { patience = 2 }
--   print(stop(0.5), stop(0.6), stop(0.55))  --> false	false	true
return function(...)
  local self = setmetatable(options.read(spec, ...), Early)
  if self.monitor then History.mode("early_stop", self.monitor, self.mode) end -- now, not behind the first epoch
  self.bad, self.seen, self.stopped = 0, 0, false
  return self
end
