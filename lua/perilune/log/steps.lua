-- SPDX-License-Identifier: MIT
--- Rows of steps: what a log with every = n does among the callbacks of T.fit. A row every n steps of the optimizer:
-- mean loss since the last row, learning rate, norm of the gradients, samples a second, memory; and one where T.fit has
-- measured something: at the end of an epoch, or of every eval_every steps.
-- @module perilune.log.steps
local core = require "perilune.core"
local options = require "perilune.options"

local M = {}

local measured = { loss = "epoch_loss", seconds = "epoch_seconds" }

--- The names that rows of this run may have: a table of columns has to know them from the start.
function M.names(run)
  local out = { "step", "epoch", "loss", "lr", "samples_per_second", "memory", "grad_norm", "epoch_loss",
    "epoch_seconds" }
  if run.options.valid then out[#out + 1] = "valid_loss" end
  for _, name in ipairs(run.metric_names) do out[#out + 1] = (run.options.valid and "valid_" or "") .. name end
  return out
end

--- T.fit begins. The window is what lies behind the last row; T.fit adds each batch to all of run.windows.
function M.begin(log, run)
  local w = log.window or {}
  log.window = { total = w.total or 0.0, count = w.count or 0, timed = 0, clock = core.clock(), idle = run.idle }
  run.windows[#run.windows + 1] = log.window
  run.norm_every[#run.norm_every + 1] = log.every
end

local function memory(run)
  local T = require "perilune"
  local p = run.net:parameters()[1]
  return T.memory(p and p:device() or nil).live
end

--- The row of a step, or nil where none is due.
function M.row(log, run)
  if run.step % log.every ~= 0 then return nil end
  local w, now = log.window, core.clock()
  local seconds = now - w.clock - (run.idle - w.idle)
  local row = { step = run.step, epoch = run.epoch, lr = run.optimizer.param_groups[1].lr, grad_norm = run.grad_norm,
    loss = w.count > 0 and w.total / w.count or nil, memory = memory(run),
    samples_per_second = seconds > 0 and w.timed / seconds or nil }
  w.total, w.count, w.timed, w.clock, w.idle = 0.0, 0, 0, now, run.idle
  return row
end

--- The row of what was measured at an epoch's end.
function M.measured(run, known)
  local row = { step = run.step, epoch = run.epoch }
  for name, v in pairs(run.row) do
    name = measured[name] or name
    if name ~= "lr" and (not known or known[name]) then row[name] = v end
  end
  return row
end

--- What a checkpoint keeps, so that the row after a resumed run's first steps is the one that it would have been.
function M.keep(log)
  function log.state_dict() return { total = log.window.total, count = log.window.count } end
  function log.load_state_dict(_, sd)
    log.window = { total = tonumber(sd.total) or 0.0, count = math.tointeger(sd.count) or 0 }
  end
end

--- Reads the option of logs: every = n.
function M.option(who, n)
  local every = options.integer(n)
  if n ~= nil and (not every or every < 1) then
    options.fail("%s: every must be a positive integer, the steps between two rows; got %s", who, options.describe(n))
  end
  return every
end

return M
