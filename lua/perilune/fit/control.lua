-- SPDX-License-Identifier: MIT
--- A running T.fit that is looked at and told something from outside (perilune watch): beside each log that is among
-- its callbacks, LOG.run says how far it is, and what LOG.control says is done at the end of the next step: pause,
-- resume or stop.
--
-- LOG.control counts only where it belongs to this user, nobody else can write it, it is no link, and it names the
-- token of this run, so that nothing is left over from an earlier one. Both files go when training ends.
--
-- Of several processes that train one network (DistributedDataParallel) rank 0 has the logs and reads the wishes. It
-- tells the others in a broadcast, which all make at the same step: about twice a second, since each broadcast says at
-- which step the next one comes. So all pause after the same step, and none waits in a collective call meanwhile.
-- @module perilune.fit.control
local core = require "perilune.core"
local snapshot = require "perilune.fit.snapshot"
local json = require "perilune.io.json"

local M = {}

local EVERY, NAP, MOST = 1.0, 0.05, 128 -- seconds between two states, between two looks while paused; bytes
local TOGETHER, FAR = 0.5, 1000 -- seconds between two looks of several processes, and the most steps
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
    if text and text:find "\n$" then -- else it is being written
      local word, whose = text:match "^(%l+) (%x+)\n$"
      os.remove(path)
      if whose == c.token then return word end
    end
  end
end

-- ---- several processes ----------------------------------------------------------------------------------------------

-- The processes that train this network step by step together; nil: this one alone, or nobody knows.
local function group_of(run)
  if core.rank == nil or rawget(run.net, "_ddp") == nil then return nil end
  local group = rawget(run.net, "group")
  return not group.gone and group.n > 1 and group or nil
end

local function alone() return core.rank == nil or require("perilune.distributed").get_world_size() == 1 end

-- Can they be told something? Rank 0 is one of them and has logs, and all want it. All processes make this call.
local function agree(run, group, places)
  local mine = { control = run.options.control, speaks = #places > 0 }
  local all = require("perilune.distributed").all_gather_object({}, mine, { group = group })
  for _, of in ipairs(all) do if not of.control then return false end end
  return all[1].speaks and group.ranks[1] == 0
end

local words = { "pause", "resume", "stop" }
local codes = {}
for code, word in ipairs(words) do codes[word] = code end

-- What rank 0 has read (nil on the others) → what all do, and at which step they ask again.
local function together(c, word, ahead)
  local T = require "perilune"
  local _ <close> = T.no_grad()
  local said = T.tensor({ codes[word] or 0, ahead }, { dtype = "i64", device = "cpu" })
  require("perilune.distributed").broadcast(said, c.group.ranks[1], { group = c.group })
  return words[said:get(1)], said:get(2)
end

-- At the steps that were agreed on: the word for all.
local function shared_wish(c, run)
  if run.step < c.next then return nil end
  local now, mine, ahead = core.clock(), nil, 1
  if c.group.mine == 0 then
    mine = wish(c)
    local seconds = (now - c.looked) / math.max(run.step - c.looked_at, 1) -- of a step
    local steps = TOGETHER / math.max(seconds, 1e-6)
    ahead = math.floor(math.min(math.max(steps, 1), FAR, 2 * c.ahead)) -- one step says little of the next ones
    c.looked, c.looked_at, c.ahead = now, run.step, ahead
  end
  local word
  word, ahead = together(c, mine, ahead)
  c.next = run.step + ahead
  return word
end

-- While they are paused: the next word for all.
local function shared_word(c)
  local mine = c.group.mine == 0 and wish(c) or nil
  if c.group.mine == 0 and #c.places == 0 then mine = "resume" end
  return (together(c, mine, 0))
end

-- ---- a run ----------------------------------------------------------------------------------------------------------

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
  local group = group_of(run)
  if group and not agree(run, group, places) then group = nil end
  local now = core.clock()
  run.control = (#places > 0 or group) and { places = places, token = token(), pid = pid, host = host,
    told = -math.huge, started = os.time(), batches = require("perilune.fit.batches").count(run.options.train),
    -- one of several processes that nobody knows to go step by step together cannot pause or stop alone
    controls = alone() or group ~= nil, group = group, next = run.step + 1, looked = now, looked_at = run.step,
    ahead = 1 } or nil
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
  local word = c.controls and (c.group and shared_wish(c, run) or not c.group and wish(c)) or nil
  if word == "pause" then
    local from, say = core.clock(), not run.silent and not run.progress
    if say then print(("paused after step %d by perilune watch"):format(run.step)) end
    repeat
      tell(run, "paused")
      core.sleep(NAP)
      if c.group then word = shared_word(c) else word = wish(c) end
    until word == "resume" or word == "stop" or not c.group and #c.places == 0
    run.idle = run.idle + core.clock() - from
    c.looked, c.looked_at = core.clock(), run.step
    if say and word == "resume" then print "goes on" end
    if word == "resume" then tell(run, "running") end
  end
  if word == "stop" then
    tell(run, "stopping")
    run.stop, run.halted = "by perilune watch", true
  end
end

return M
