-- SPDX-License-Identifier: MIT
--- Checkpoints of T.fit: everything that the next step depends on, so that a run that was killed goes on with the same
-- bits. Written by T.save: the old file stays good until the new one is on the disk.
-- @module perilune.fit.checkpoint
local T = require "perilune"
local options = require "perilune.options"
local History = require "perilune.fit.history"
local batches = require "perilune.fit.batches"
local snapshot = require "perilune.fit.snapshot"

local fail, describe = options.fail, options.describe
local M = {}
local FORMAT = "perilune.fit 1"

local spec = options.spec("fit: checkpoint", { { "path", "string" }, { "every", "count", optional = true },
  { "best", "string", optional = true }, { "best_path", "string", optional = true },
  { "mode", { "min", "max" }, optional = true } })

--- `checkpoint = "path"`, or `{path=, every=steps, best="valid_loss", mode=, best_path=}`.
function M.settings(given)
  if given == nil then return nil end
  if type(given) ~= "string" and type(given) ~= "table" then
    fail("fit: checkpoint must be a path or a table of settings, got %s", describe(given))
  end
  local s = options.read(spec, given)
  if s.best then
    s.best_path = s.best_path or s.path .. ".best"
    s.mode = History.mode("fit: checkpoint", s.best, s.mode)
  end
  return s
end

-- Objects of the run by name.
local function objects_of(run)
  local out = { net = run.net, optimizer = run.optimizer, scheduler = run.scheduler,
    scaler = run.options.scaler }
  for name, v in pairs(run.options.state or {}) do
    if out[name] or type(name) ~= "string" then fail("fit: state has a wrong name, '%s'", tostring(name)) end
    out[name] = v
  end
  for i, c in ipairs(run.callbacks) do
    if snapshot.has(c, "state_dict") and snapshot.has(c, "load_state_dict") then out["callback" .. i] = c end
  end
  return out
end

-- A meter's figures: everything in it that is plain data.
local function plain(v)
  local kind = type(v)
  if kind == "number" or kind == "string" or kind == "boolean" or T.is_tensor(v) then return v end
  if kind ~= "table" or getmetatable(v) ~= nil then return nil end
  local out = {}
  for key, x in pairs(v) do out[key] = plain(x) end
  return out
end

function M.save(run, path)
  if (T.core.rank or 0) > 0 then return true end -- of several processes rank 0 writes
  local t = objects_of(run)
  t.metrics = {}
  for name, m in pairs(run.metrics) do
    t.metrics[name] = {}
    for key, v in pairs(m) do t.metrics[name][key] = plain(v) end
  end
  local rows = {}
  for i, row in ipairs(run.history) do rows[i] = row end
  local valid = run.options.valid
  t.fit = { format = FORMAT, epoch = run.epoch, batch = run.batch, step = run.step, total = run.total,
    count = run.count, history = rows, row = run.row_open and run.row or nil,
    start = run.batch > 0 and run.pass_start or nil,
    train_order = batches.order_of(run.options.train), valid_order = batches.order_of(valid),
    train_epoch = type(run.options.train) == "table" and run.options.train.epoch or nil,
    valid_epoch = type(valid) == "table" and valid.epoch or nil,
    stop = not run.halted and run.stop or nil } -- who was told to stop goes on later
  local ok, message, code = T.save(path, T.snapshot(t))
  if not ok then
    run.save_error = message
    io.stderr:write("fit: no checkpoint could be written, training goes on: ", tostring(message), "\n")
    return nil, message, code
  end
  return true
end

--- Writes the best weights, if those of the row that was completed are the best.
function M.keep_best(run)
  local c = run.checkpoint
  if not c or not c.best or run.history:best(c.best, c.mode) ~= run.row or (T.core.rank or 0) > 0 then return end
  local opt = run.optimizer
  local averages = opt.is_training and opt:is_training() -- of a schedule-free optimizer: they are what is to be used
  if averages then opt:eval() end
  local ok, message = T.save(c.best_path, run.net:state_dict())
  if averages then opt:train() end
  if not ok then io.stderr:write("fit: the best weights could not be written: ", tostring(message), "\n") end
end

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

-- What is wrong with a checkpoint's own table, or nil: a file is not trusted to hold what M.save wrote.
local function damage(f, metrics, meters)
  for _, name in ipairs { "epoch", "batch", "step" } do
    if math.type(f[name]) ~= "integer" or f[name] < 0 then return name end
  end
  for _, name in ipairs { "total", "count" } do
    if type(f[name]) ~= "number" then return name end
  end
  local function is_row(row)
    if type(row) ~= "table" then return false end
    for name, v in pairs(row) do
      if type(name) ~= "string" or type(v) ~= "number" then return false end
    end
    return true
  end
  if type(f.history) ~= "table" then return "history" end
  local n = 0
  for _ in pairs(f.history) do n = n + 1 end
  for i = 1, n do
    if not is_row(f.history[i]) then return "history" end
  end
  if f.row ~= nil and not is_row(f.row) then return "row" end
  if f.batch > 0 then
    if type(f.start) ~= "table" or f.start.rng == nil then return "start" end
  end
  for _, name in ipairs { "train_epoch", "valid_epoch" } do
    if f[name] ~= nil and math.type(f[name]) ~= "integer" then return name end
  end
  for _, order in ipairs { { f.train_order }, { f.valid_order }, { f.start and f.start.order } } do
    if order[1] ~= nil and type(order[1]) ~= "table" then return "order" end
  end
  local epoch = f.start and f.start.epoch
  if epoch ~= nil and math.type(epoch) ~= "integer" then return "start" end
  if f.stop ~= nil and type(f.stop) ~= "boolean" and type(f.stop) ~= "string" then return "stop" end
  -- a meter's figures stay of their kind, and none stands in a method's place
  if metrics ~= nil and type(metrics) ~= "table" then return "metrics" end
  for name, m in pairs(meters) do
    local figures = metrics and metrics[name]
    if figures ~= nil and type(figures) ~= "table" then return "metrics" end
    for key, v in pairs(figures or {}) do
      if m[key] ~= nil and type(m[key]) ~= type(v) then return "metrics" end
    end
  end
end

--- Goes back to where the checkpoint was written; without a file, to the start.
function M.resume(run)
  local c = run.checkpoint
  if not c then fail("fit: resume needs checkpoint = path") end
  if not exists(c.path) then return true end
  local state, message, code = T.load(c.path)
  if not state then return nil, message, code end
  local f = state.fit
  if type(f) ~= "table" or f.format ~= FORMAT then
    return nil, c.path .. ": not a checkpoint of T.fit", "format"
  end
  local wrong = damage(f, state.metrics, run.metrics)
  if wrong then return nil, ("%s: a damaged checkpoint ('%s')"):format(c.path, wrong), "format" end
  T.restore(objects_of(run), state)
  for name, m in pairs(run.metrics) do
    for key, v in pairs(state.metrics and state.metrics[name] or {}) do m[key] = v end
  end
  run.epoch, run.batch, run.step, run.total, run.count = f.epoch, f.batch, f.step, f.total, f.count
  run.history = History.new(f.history)
  run.stop = f.stop or false
  local train, valid = run.options.train, run.options.valid
  if f.train_epoch ~= nil and type(train) == "table" then train.epoch = f.train_epoch end
  batches.set_order(train, f.train_order)
  batches.set_order(valid, f.valid_order)
  if f.valid_epoch ~= nil and type(valid) == "table" then valid.epoch = f.valid_epoch end
  run.resumed_from = f.batch > 0 and f.epoch or f.epoch + 1 -- the first epoch whose row is still to come
  run.row, run.row_open = f.row or {}, f.row ~= nil
  if f.batch > 0 then
    run.resumed = batches.continue(run, f.start, f.batch)
    T.set_rng_state(state.rng)
  end
  return true
end

return M
