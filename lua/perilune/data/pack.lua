-- SPDX-License-Identifier: MIT
--- Values as text and a list of tensors, for loader workers: another Lua state makes equal values of them.
--
-- What travels: nil, booleans, numbers, strings, tensors (their memory is shared), tables with their metatables,
-- also with cycles, and Lua functions with their upvalues. What belongs to a loaded module (the module itself, its
-- functions and classes, standard libraries) travels by name and is required anew at the other end. An object whose
-- metatable has `__pack(v)` → function, {arguments} is made by that function there. Coroutines, files and other
-- userdata, and C functions that no module holds do not travel.
-- @module perilune.data.pack
local core = require "perilune.core"
local loaded = require "perilune.loaded"
local options = require "perilune.options"

local is_tensor = core.is_tensor
local spack, sunpack = string.pack, string.unpack
local getmeta = debug.getmetatable
local pack = {}

local MAX_DEPTH, NAME_DEPTH = 150, 4

-- ---- what modules hold ---------------------------------------------------------------------------------------

-- value → {module, key, key, …}, for the functions, tables and userdata that can be reached from loaded modules by
-- names.
local function names_of_modules()
  local where, front = {}, {}
  local function note(value, path)
    local kind = type(value)
    local wanted = kind == "table" or kind == "function" or kind == "userdata"
    if not wanted or where[value] or is_tensor(value) then return end
    where[value] = path
    if kind == "table" then front[#front + 1] = value end
  end
  local modules, names = {}, {}
  for _, of in ipairs { loaded, package.loaded } do for name, m in pairs(of) do modules[name] = m end end
  for name in pairs(modules) do if type(name) == "string" then names[#names + 1] = name end end
  table.sort(names)
  for _, name in ipairs(names) do note(modules[name], { name }) end
  for _ = 1, NAME_DEPTH do
    local now = front
    front = {}
    for _, holder in ipairs(now) do
      local path = where[holder]
      -- The globals are the user's: of them only functions go by name, and only those every state has.
      for key, value in next, holder do
        if type(key) == "string" and (path[1] ~= "_G" or (#path == 1 and type(value) == "function" and
          debug.getinfo(value, "S").what == "C")) then
          local longer = table.move(path, 1, #path, 1, {})
          longer[#longer + 1] = key
          note(value, longer)
        end
      end
    end
  end
  return where
end

-- ---- packing ---------------------------------------------------------------------------------------------------

local put

-- What has no parts, as text.
local simple = {
  ["nil"] = function() return "n" end,
  boolean = function(v) return v and "t" or "f" end,
  string = function(v) return spack("<c1s8", "s", v) end,
  number = function(v)
    if math.type(v) == "integer" then return spack("<c1i8", "i", v) end
    return spack("<c1d", "d", v)
  end,
}

local function fail_at(state, what)
  options.fail("%s: %s cannot travel %s: it is %s", state.who, (table.concat(state.path):gsub("^%.", "")),
    state.plain and "back from a worker" or "to a worker; make it in worker_init", what)
end

local function inside(state, step, value, depth)
  local path = state.path
  path[#path + 1] = step
  put(state, value, depth + 1)
  path[#path] = nil
end

local function step_name(key)
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return "." .. key end
  return "[" .. (type(key) == "string" and ("%q"):format(key) or tostring(key)) .. "]"
end

local function number(state, value)
  state.count = state.count + 1
  state.seen[value] = state.count
end

local function put_table(state, t, depth)
  local out = state.out
  number(state, t)
  out[#out + 1] = "{"
  for key, value in next, t do
    out[#out + 1] = "+"
    local text = simple[type(key)]
    if text then out[#out + 1] = text(key) else inside(state, "(key)", key, depth) end
    text = simple[type(value)]
    if text then out[#out + 1] = text(value) else inside(state, step_name(key), value, depth) end
  end
  out[#out + 1] = "}"
  inside(state, "(metatable)", getmeta(t), depth)
end

local function put_function(state, f, depth)
  local ok, code = pcall(string.dump, f)
  if not ok then fail_at(state, "a C function that no loaded module holds") end
  local out = state.out
  number(state, f)
  local n = debug.getinfo(f, "u").nups
  out[#out + 1] = spack("<c1s8B", "F", code, n)
  for i = 1, n do
    local name, value = debug.getupvalue(f, i)
    local id = debug.upvalueid(f, i)
    local known = state.upvalues[id]
    if known then -- shared with a function that was packed before
      out[#out + 1] = spack("<c1I4B", "U", known[1], known[2])
    else
      state.upvalues[id] = { state.seen[f], i }
      out[#out + 1] = "u"
      inside(state, (" (upvalue %s)"):format(name), value, depth)
    end
  end
end

-- An object that is made anew: __pack(v) gives a function and its arguments, which travel.
local function put_made(state, v, depth)
  local make, args = getmeta(v).__pack(v)
  state.out[#state.out + 1] = "M"
  inside(state, ".__pack", make, depth)
  inside(state, ".__pack", args, depth)
  number(state, v) -- behind its parts: it is there once they are
end

local function put_name(state, path)
  state.out[#state.out + 1] = spack("<c1B", "G", #path)
  for _, key in ipairs(path) do state.out[#state.out + 1] = spack("<s4", key) end
end

function put(state, v, depth)
  local kind, out = type(v), state.out
  if simple[kind] then
    out[#out + 1] = simple[kind](v)
    return
  end
  if depth > MAX_DEPTH then fail_at(state, "nested deeper than " .. MAX_DEPTH .. " values") end
  local id = state.seen[v]
  if id then
    out[#out + 1] = spack("<c1I4", "r", id)
    return
  end
  if is_tensor(v) then
    number(state, v)
    state.tensors[#state.tensors + 1] = v
    out[#out + 1] = spack("<c1I4", "T", #state.tensors)
    return
  end
  -- Batches are mostly tensors in plain tables: the names of modules are gathered only when something else comes.
  local by_name = not state.plain or kind ~= "table" or getmeta(v)
  if by_name and not state.names then state.names = names_of_modules() end
  local path = by_name and state.names[v]
  if path then
    number(state, v)
    put_name(state, path)
  elseif by_name and type(getmeta(v)) == "table" and rawget(getmeta(v), "__pack") then
    put_made(state, v, depth)
  elseif kind == "table" then
    put_table(state, v, depth)
  elseif kind == "function" then
    put_function(state, v, depth)
  else
    fail_at(state, (kind == "userdata" and "a userdata (%s)" or "a %s"):format(kind == "userdata" and
      tostring(v):gsub("[ :].*", "") or kind == "thread" and "coroutine" or kind))
  end
end

--- Packs a value. `who` is for the message when something in it cannot travel; `plain`: tables without metatable are
-- copied even if a module holds them.
-- @treturn string
-- @treturn {Tensor,…}
function pack.pack(value, who, plain)
  local state = { out = {}, tensors = {}, seen = {}, upvalues = {}, count = 0, who = who, plain = plain, path = {} }
  put(state, value, 1)
  return table.concat(state.out), state.tensors
end

-- ---- unpacking -------------------------------------------------------------------------------------------------

local get

local function get_table(state, at)
  local t = {}
  state.list[#state.list + 1] = t
  while state.text:sub(at, at) == "+" do
    local key, value
    key, at = get(state, at + 1)
    value, at = get(state, at)
    t[key] = value -- the metatable comes later, so this is a plain assignment
  end
  local meta
  meta, at = get(state, at + 1)
  if meta ~= nil then debug.setmetatable(t, meta) end
  return t, at
end

local function get_function(state, at)
  local code, n
  code, n, at = sunpack("<s8B", state.text, at)
  local f = assert(load(code, "=packed function", "b"))
  state.list[#state.list + 1] = f
  for i = 1, n do
    local mark = state.text:sub(at, at)
    if mark == "U" then
      local id, k
      id, k, at = sunpack("<I4B", state.text, at + 1)
      debug.upvaluejoin(f, i, state.list[id], k)
    else
      local value
      value, at = get(state, at + 1)
      debug.setupvalue(f, i, value)
    end
  end
  return f, at
end

local function get_made(state, at)
  local make, args
  make, at = get(state, at)
  args, at = get(state, at)
  local v = assert(make(table.unpack(args)))
  state.list[#state.list + 1] = v
  return v, at
end

local function get_name(state, at)
  local n, key, value
  n, at = sunpack("<B", state.text, at)
  for i = 1, n do
    key, at = sunpack("<s4", state.text, at)
    if i == 1 then
      value = require(key)
    else
      value = value[key]
    end
  end
  state.list[#state.list + 1] = value
  return value, at
end

function get(state, at)
  local mark = state.text:sub(at, at)
  at = at + 1
  if mark == "n" then return nil, at end
  if mark == "t" or mark == "f" then return mark == "t", at end
  if mark == "s" then return sunpack("<s8", state.text, at) end
  if mark == "i" then return sunpack("<i8", state.text, at) end
  if mark == "d" then return sunpack("<d", state.text, at) end
  if mark == "{" then return get_table(state, at) end
  if mark == "F" then return get_function(state, at) end
  if mark == "G" then return get_name(state, at) end
  if mark == "M" then return get_made(state, at) end
  local id
  id, at = sunpack("<I4", state.text, at)
  if mark == "r" then return state.list[id], at end
  assert(mark == "T")
  state.list[#state.list + 1] = state.tensors[id]
  return state.tensors[id], at
end

--- The value that pack.pack was given.
function pack.unpack(text, tensors)
  return (get({ text = text, tensors = tensors, list = {} }, 1))
end

return pack
