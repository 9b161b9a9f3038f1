-- SPDX-License-Identifier: MIT
-- What a checkpointed function depends on that is Lua's: the states of the generators and the training modes of the
-- modules that it uses. They are noted when it first uses them, and are there again when it runs anew.
local M = {}

-- What the function that runs for the first time is to note, or nil.
M.running = nil

--- Begins a record, unless a function around this one keeps one already. Returns it, and what leave takes.
function M.enter()
  local outer = M.running
  local record = outer or { generators = {}, modules = {} }
  M.running = record
  return record, outer
end
function M.leave(outer) M.running = outer end

--- A record of what f(…) uses and of nothing before; those around it note that, too. Returns what f does, packed, and
-- the record.
function M.recorded(f, ...)
  local outer = M.running
  local record = { generators = {}, modules = {}, outer = outer }
  M.running = record
  local out = table.pack(pcall(f, ...))
  M.running = outer
  if not out[1] then error(out[2], 0) end
  return table.pack(table.unpack(out, 2, out.n)), record
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

--- f(…) under what the record says; puts back what is now.
function M.under(record, f, ...)
  local outer = M.running
  M.running = nil
  local generators, modules = swap(record.generators), swap(record.modules)
  local out = table.pack(pcall(f, ...))
  swap(generators)
  swap(modules)
  M.running = outer
  if not out[1] then error(out[2], 0) end
  return table.pack(table.unpack(out, 2, out.n))
end

return M
