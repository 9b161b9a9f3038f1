-- SPDX-License-Identifier: MIT
--- What a server of models works on: replies that are made in turns, one token each, so that a short one does not wait
-- for the end of a long one. Each job is a coroutine, which yields after every token, and the request that it answers.
-- @module perilune.serve.jobs
local core = require "perilune.core"

local M = {}
local Jobs, Job = {}, {}
Jobs.__index, Job.__index = Jobs, Job

--- limits: streams (jobs in turns), queue (jobs that wait for one of these), seconds (for a job, from its arrival).
-- batch: what makes the next token of all that wait for one (models/batch.lua); nil: each makes its own.
function M.new(limits, batch)
  return setmetatable({ limits = limits, batch = batch, running = {}, waiting = {}, done = 0, lost = 0 }, Jobs)
end

--- Takes a job: a request, and work(job), which calls job:turn() after each token, and job:say(bytes) for an answer in
-- pieces or request:respond for a whole one. fail(job, status, message) answers where that does not come to its end.
-- → true, or false where too many wait
function Jobs:add(request, work, fail)
  if #self.running >= self.limits.streams and #self.waiting >= self.limits.queue then return false end
  local job = setmetatable({ request = request, fail = fail, out = "", deadline = core.clock() + self.limits.seconds,
    batch = self.batch }, Job)
  job.coroutine = coroutine.create(function() work(job) end)
  local list = #self.running < self.limits.streams and self.running or self.waiting
  list[#list + 1] = job
  return true
end

function Jobs:busy() return #self.running > 0 end

--- The end of a turn.
Job.turn = coroutine.yield

--- More of an answer in pieces. A reader that is behind is waited for between turns, by nobody but this job.
function Job:say(bytes) self.out = self.out .. bytes end

-- What is said goes to the loop of the server. → true, "full" where the reader is behind, nil where it has gone
function Job:flush()
  if self.out == "" then return true end
  local taken = self.request:push(self.out)
  if taken then self.out = "" end
  return taken == false and "full" or taken
end

-- Goes on to the end of the turn, or to where the job waits for the batch. → "went", or nil and what failed
function Job:resume()
  core.raised(false)
  local ok, what = coroutine.resume(self.coroutine)
  if not ok then return nil, what end
  self.parked = self.batch ~= nil and what == self.batch
  self.batched = self.batched or self.parked
  return "went"
end

-- One turn → "went", "parked" where it waits for the batch, "full" where its reader is behind, "done" at its end,
-- "lost" where nobody waits for the answer
function Job:step()
  if not self.request:is_open() then return "lost" end
  local flushed = self:flush()
  if not flushed then return "lost" end
  if core.clock() > self.deadline then
    self:fail(504, "the reply took too long")
    return "done"
  end
  if flushed == "full" then return "full" end
  if self.parked then return "parked" end
  if coroutine.status(self.coroutine) == "dead" then
    if self.begun then self.request:finish() end
    return "done"
  end
  local went, why = self:resume()
  if went and self.batched and not self.parked and coroutine.status(self.coroutine) ~= "dead" then
    -- what it says of its token goes out, and it asks for the next one with the others
    if self:flush() == true then went, why = self:resume() end
  end
  if not went then
    if core.raised() == "interrupt" then error(why, 0) end
    io.stderr:write("perilune serve: ", debug.traceback(self.coroutine, tostring(why)), "\n")
    self:fail(500, "an error in the server")
    return "done"
  end
  return "went"
end

--- One turn of every job that runs, and one step of the batch. → whether one went on; else all wait for their readers
function Jobs:round()
  local went = false
  for i = #self.running, 1, -1 do
    local job = self.running[i]
    local how = job:step()
    if how == "done" or how == "lost" then
      coroutine.close(job.coroutine) -- what it has open ends now, its cache is garbage
      table.remove(self.running, i)
      self[how] = self[how] + 1
      went = true
    elseif how == "went" then
      went = true
    end
  end
  if self.batch and self.batch:step() > 0 then
    went = true
    for _, job in ipairs(self.running) do job.parked = false end
  end
  while #self.waiting > 0 and #self.running < self.limits.streams do
    table.insert(self.running, 1, table.remove(self.waiting, 1))
    went = true
  end
  return went
end

return M
