-- SPDX-License-Identifier: MIT
--- Functions of the library's while a trace runs: each is noted as a whole, with its arguments, and called again for
-- other sizes (docs/design/symbolic-sizes.md). So it may look at sizes as it likes.
-- @module perilune.jit.again
local core = require "perilune.core"
local options = require "perilune.options"
local guards = require "perilune.jit.guards"

local again = {}

local DEPTH = 4
local is_tensor = core.is_tensor

-- { list = what was noted } of the trace that runs.
local current


-- A copy of plain tables with {at = k} in place of the k-th tensor, which goes into `list`; nil: there is something in
-- it that has a state of its own. objects: what has one may be there, and is itself.
local function template(v, list, depth, objects)
  local kind = type(v)
  if is_tensor(v) then
    if not list[v] then list[#list + 1], list[v] = v, #list + 1 end -- what is one object stays one
    return { at = list[v] }
  elseif kind == "table" then
    if getmetatable(v) ~= nil then return objects and { is = v } or nil end
    if depth == 0 then return nil end
    local keys, of = {}, {}
    for k in next, v do
      if type(k) ~= "string" and math.type(k) ~= "integer" then return nil end
      keys[#keys + 1] = k
    end
    table.sort(keys, function(a, b)
      if type(a) ~= type(b) then return type(a) == "number" end
      return a < b
    end)
    for i, k in ipairs(keys) do
      local one = template(v[k], list, depth - 1, objects)
      if not one then return nil end
      of[i] = one
    end
    return { keys = keys, of = of }
  elseif kind == "function" or kind == "userdata" or kind == "thread" then
    return objects and { is = v } or nil
  end
  return { is = v }
end

local function packed_template(n, list, objects, ...)
  local args = table.pack(...)
  local of = {}
  for i = 1, n do
    of[i] = template(args[i], list, DEPTH, objects)
    if not of[i] then return nil end
  end
  return of
end

local function same(a, b)
  if a.at or b.at then return a.at == b.at end
  if not a.keys or not b.keys then
    local x, y = a.is, b.is
    return a.keys == b.keys and math.type(x) == math.type(y) and (rawequal(x, y) or x ~= x and y ~= y)
  end
  if #a.keys ~= #b.keys then return false end
  for i, k in ipairs(a.keys) do
    if k ~= b.keys[i] or not same(a.of[i], b.of[i]) then return false end
  end
  return true
end

local function same_all(a, b)
  if not a or not b or #a ~= #b then return false end
  for i = 1, #a do
    if not same(a[i], b[i]) then return false end
  end
  return true
end

local function fill(t, tensors)
  if t.at then return tensors[t.at] end
  if not t.keys then return t.is end
  local v = {}
  for i, k in ipairs(t.keys) do v[k] = fill(t.of[i], tensors) end
  return v
end

local function any_symbolic(list)
  for _, x in ipairs(list) do
    if core.is_symbolic(x) then return true end
  end
  return false
end

-- f's results are at hand: are they and the arguments, which it may have written, what can be repeated?
local function finish(noted, call, objects, n, ok, ...)
  local out, count = {}, select("#", ...)
  if not ok then
    core.jit_again_end(call, false, {}, {})
    return error((...), 0)
  end
  noted.results, noted.n = packed_template(count, out, objects, ...), count
  local after = packed_template(n, {}, objects, table.unpack(noted.given, 1, n))
  local intact = noted.results and same_all(noted.args, after) and not (noted.seen and guards.changed(noted.seen))
  noted.given = nil
  local k = core.jit_again_end(call, intact or false, noted.tensors, out)
  noted.tensors = nil
  if k then current.again[k] = noted end
  return ...
end

local function call(f, objects, ...)
  local tensors, n = {}, select("#", ...)
  if not current then return f(...) end
  local args = packed_template(n, tensors, objects, ...)
  if not args or not any_symbolic(tensors) then return f(...) end
  local begun = core.jit_again_begin()
  if not begun then return f(...) end
  local noted = { f = f, args = args, tensors = tensors, given = table.pack(...) }
  -- the script's functions among them may have something from around them; what they put there the calls would not tell
  noted.seen = objects and guards.take(f, noted.given, n)
  return finish(noted, begun, objects, n, pcall(f, ...))
end

--- f(…), noted as a whole if all that it gets is tensors and plain data.
function again.call(f, ...) return call(f, false, ...) end

--- The same for one that gets functions and modules, too, which it leaves as they are.
function again.method(f, ...) return call(f, true, ...) end

--- The trace that notes from now on, nil: none → the one before.
function again.enter(trace)
  local outer = current
  current = trace
  options.mode.again, options.mode.method = trace and again.call or false, trace and again.method or false
  return outer
end

--- What core.jit_replay asks: calls function k of a trace's list again with these tensors → its tensors.
function again.repeater(list)
  return list and function(k, tensors)
    local noted, out = list[k], {}
    local args = {}
    local name = noted.seen and guards.changed(noted.seen)
    if name then error(name .. " has changed since", 0) end
    for i, t in ipairs(noted.args) do args[i] = fill(t, tensors) end
    local results = table.pack(noted.f(table.unpack(args, 1, #noted.args)))
    local got = results.n == noted.n and packed_template(results.n, out, true, table.unpack(results, 1, results.n))
    if not same_all(noted.results, got) then error("its results are of another kind", 0) end
    return out
  end
end

return again
