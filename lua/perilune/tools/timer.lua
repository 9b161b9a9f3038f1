-- SPDX-License-Identifier: MIT
--- `T.timer()` is a stopwatch, `T.timer(f)` measures a function.
-- @module perilune.tools.timer
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"

local fail = options.fail
local clock = core.clock
local Timer = classes.new("timer", "timer")

--- Seconds in words: "1.24 ms".
local function text(s)
  for _, unit in ipairs { { 1, "s" }, { 1e-3, "ms" }, { 1e-6, "us" } } do
    if s >= unit[1] then return ("%.4g %s"):format(s / unit[1], unit[2]) end
  end
  return ("%.4g ns"):format(s / 1e-9)
end

--- Seconds since it was made or reset, without the time it was paused.
function Timer:elapsed() return self.before + (self.from and clock() - self.from or 0) end
Timer.__call = Timer.elapsed

--- Starts over.
function Timer:reset()
  self.before, self.from, self.last = 0, clock(), 0
  return self
end

function Timer:pause()
  self.before, self.from = self:elapsed(), nil
  return self
end

function Timer:resume()
  self.from = self.from or clock()
  return self
end

--- Seconds since the lap before.
function Timer:lap()
  local now = self:elapsed()
  local lap = now - self.last
  self.last = now
  return lap
end

function Timer:__tostring() return text(self:elapsed()) end

local Result = { __name = "timing" }
Result.__index = Result
function Result:__tostring()
  return ("%s a call (median of %d runs of %d; %s … %s)"):format(text(self.median), #self, self.calls, text(self[1]),
    text(self[#self]))
end

-- Runs of about `share` seconds each, after one that warms up; the list is sorted.
local function measure(f, opts)
  opts = options.check("timer", opts, { "seconds", "runs" })
  local seconds, runs = opts.seconds or 0.5, opts.runs or 7
  if type(seconds) ~= "number" or
    seconds <= 0 or seconds ~= seconds then fail("timer: seconds must be a positive number") end
  if math.type(runs) ~= "integer" or runs < 1 then fail("timer: runs must be a positive integer") end
  local calls, share = 1, seconds / runs
  f()
  while true do -- how many calls fill a share?
    local from = clock()
    for _ = 1, calls do f() end
    local took = clock() - from
    if took >= share / 2 or calls >= 1 << 30 then break end
    calls = took > 0 and math.min(math.ceil(calls * math.min(10, 1.2 * share / took)), 1 << 30) or calls * 10
  end
  local self = { calls = calls }
  for i = 1, runs do
    local from = clock()
    for _ = 1, calls do f() end
    self[i] = (clock() - from) / calls
  end
  table.sort(self)
  self.median = runs % 2 == 1 and self[runs // 2 + 1] or (self[runs // 2] + self[runs // 2 + 1]) / 2
  self.min = self[1]
  return setmetatable(self, Result)
end

--- T.timer() → stopwatch; T.timer(f, {seconds=0.5, runs=7}) → measurement
-- A stopwatch: t() or t:elapsed() seconds, t:lap() since the last lap, t:pause(), t:resume(), t:reset(). Of a function:
-- calls it until figures settle; .median and .min seconds a call, .calls in a run, the runs at 1, 2 ….
--   local t = T.timer()
--   print(t() >= 0, t:lap() >= 0)  --> true	true
--   local m = T.timer(function() return T.ones(2) + 1 end, { seconds = 0.02 })
--   print(m.median > 0, #m)        --> true	7
return function(f, opts)
  if f == nil then
    if opts ~= nil then fail("timer: options are for a function to measure, and it is nil") end
    return setmetatable({}, Timer):reset()
  end
  local meta = getmetatable(f)
  if type(f) ~= "function" and not (type(meta) == "table" and meta.__call) then
    fail("timer: a function is wanted, got %s", options.describe(f))
  end
  return measure(f, opts)
end
