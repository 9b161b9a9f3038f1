-- SPDX-License-Identifier: MIT
-- What a checkpointed function depends on that is Lua's: the states of the generators and the training modes of the
-- modules that it uses. They are noted when it first uses them, and are there again when it runs anew.
local around = require("perilune.core").around
local M = {}

-- What the function that runs for the first time is to note, or nil.
M.running = nil

-- The record of the function that runs anew, or nil.
M.anew = nil

--- A record to begin with, or that of the function around, which keeps one already.
function M.record(outer) return outer or { generators = {}, modules = {} } end

--- What is noted from now on, → what was; and back to that.
function M.run_with(record)
  local outer = M.running
  M.running = record
  return outer
end
function M.leave(outer) M.running = outer end

--- A record of what f(…) uses and of nothing before; those around it note that, too. Returns what f does, packed, and
-- the record.
function M.recorded(f, ...)
  local record = { generators = {}, modules = {}, outer = M.running }
  return table.pack(around(M.run_with, record, M.leave, f, ...)), record
end

--- The generators of the record stand where they stood.
function M.rewind(record)
  for g, fields in pairs(record.generators) do
    if M.running then M.generator(g) end
    for name, value in pairs(fields) do rawset(g, name, value) end
  end
end

--- Before a generator is used or asked.
function M.generator(g)
  local record = M.running
  while record do
    local generators = record.generators
    if generators[g] == nil then generators[g] = { state = g.state, first = g.first } end
    record = record.outer
  end
end

--- Before a module is called.
function M.module(m)
  local record = M.running
  while record do
    local modules = record.modules
    if modules[m] == nil then modules[m] = { training = m.training } end
    record = record.outer
  end
end

local function swap(list)
  local was = {}
  for object, fields in pairs(list) do
    was[object] = {}
    for name, value in pairs(fields) do
      was[object][name] = object[name]
      rawset(object, name, value)
    end
  end
  return was
end

local function begin_under(record)
  local was = { outer = M.run_with(nil), anew = M.anew }
  M.anew = record
  was.generators, was.modules = swap(record.generators), swap(record.modules)
  return was
end

local function end_under(was)
  swap(was.generators)
  swap(was.modules)
  M.running, M.anew = was.outer, was.anew
end

--- f(…) under what the record says; puts back what is now.
function M.under(record, f, ...)
  return table.pack(around(begin_under, record, end_under, f, ...))
end

return M
