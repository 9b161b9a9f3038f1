-- SPDX-License-Identifier: MIT
--- A running T.fit that is looked at and told something from outside (perilune watch): beside each log that is among
-- its callbacks, LOG.run says how far it is, and what LOG.control says is done at the end of the next step: pause,
-- resume or stop.
--
-- LOG.control counts only where it belongs to this user, nobody else can write it, it is no link, and it names the
-- token of this run, so that nothing is left over from an earlier one. Both files go when training ends.
-- @module perilune.fit.control
local core = require "perilune.core"
local snapshot = require "perilune.fit.snapshot"
local json = require "perilune.io.json"

local M = {}

local EVERY, NAP, MOST = 1.0, 0.05, 128 -- seconds between two states, between two looks while paused; bytes
local FORMAT = "perilune.run 1"
M.FORMAT = FORMAT

--- Where the state and the wishes for a log stand.
function M.paths(place) return place .. ".run", place .. ".control" end

local function token()
  local f = io.open("/dev/urandom", "rb")
  local bytes = f and f:read(16) or ("%016x"):format(math.random(0))
  if f then f:close() end
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function number(v) return type(v) == "number" and v or nil end

-- Says in LOG.run how the run stands: at most once a second, unless something changed.
local function tell(run, state)
  local c, now = run.control, core.clock()
  if state == c.state and now - c.told < EVERY then return end
  c.state, c.told = state, now
  local a = run.options
  local text = json.line { format = FORMAT, pid = c.pid, host = c.host, token = c.token, state = state,
    time = os.time(), started = c.started, epoch = run.epoch, epochs = a.epochs, step = run.step, steps = a.steps,
    batches = c.batches, batch = run.batch, loss = run.count > 0 and number(run.total / run.count) or nil,
    lr = number(run.optimizer.param_groups[1].lr), controls = c.controls }
  for i = #c.places, 1, -1 do
    local path = M.paths(c.places[i])
    if not core.write_own(path, text .. "\n") then table.remove(c.places, i) end -- a folder that is read-only
  end
end

-- What is wished for, if anything; the wish is taken away.
local function wish(c)
  for _, place in ipairs(c.places) do
    local _, path = M.paths(place)
    local text = core.read_own(path, MOST)
    if text then
      local word, whose = text:match "^(%l+) (%x+)\n$"
      os.remove(path)
      if whose == c.token then return word end
    end
  end
end

--- Begins: → a value to be closed when training ends, however it ends.
function M.begin(run)
  local places = {}
  if run.options.control and (core.rank or 0) == 0 then
    for _, c in ipairs(run.callbacks) do
      local place = snapshot.has(c, "beside") and c:beside()
      if place then places[#places + 1] = place end
    end
  end
  local pid, host = core.process()
  run.control = #places > 0 and { places = places, token = token(), pid = pid, host = host, told = -math.huge,
    started = os.time(), batches = require("perilune.fit.batches").count(run.options.train),
    controls = core.rank == nil } or nil -- one of several processes cannot stop alone
  return setmetatable({}, { __close = function() M.finish(run) end })
end

function M.finish(run)
  local c = run.control
  run.control = nil
  for _, place in ipairs(c and c.places or {}) do
    for _, path in ipairs { M.paths(place) } do os.remove(path) end
  end
end

--- At the end of a step: says how far it is, does what is wished for. pause waits here until resume or stop.
function M.look(run)
  local c = run.control
  if not c then return end
  tell(run, "running")
  local word = c.controls and wish(c)
  if word == "pause" then
    local from, say = core.clock(), not run.silent and not run.progress
    if say then print(("paused after step %d by perilune watch"):format(run.step)) end
    repeat
      tell(run, "paused")
      core.sleep(NAP)
      word = wish(c)
    until word == "resume" or word == "stop" or #c.places == 0
    run.idle = run.idle + core.clock() - from
    if say and word == "resume" then print "goes on" end
    if word == "resume" then tell(run, "running") end
  end
  if word == "stop" then
    tell(run, "stopping")
    run.stop, run.halted = "by perilune watch", true
  end
end

return M
