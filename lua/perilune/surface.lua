-- SPDX-License-Identifier: MIT
--- What every public function promises of its arguments, whoever wrote it: none is dropped. Lua passes over what a
-- function has no parameter for, and an option that is passed over is a wrong result without a word; so functions of
-- perilune's own Lua files that take a fixed number of arguments refuse more.
-- @module perilune.surface
local options = require "perilune.options"

local surface = {}
local core = require "perilune.core"
local fail, describe = options.fail, options.describe
local getlocal, select, type, rawget, rawset = debug.getlocal, select, type, rawget, rawset
local count, mode = core.parameters, options.mode

--- The name of a module's class, also where the module has a field `type`.
function surface.class_name(m)
  local meta = getmetatable(m)
  return type(meta) == "table" and meta.__name or type(m)
end

--- The names of f's parameters, and whether it takes any number; nil for functions of C and of scripts.
function surface.parameters(f)
  local n, any = count(f)
  if not n then return nil end
  local names = {}
  for i = 1, n do names[i] = getlocal(f, i) or "?" end
  return names, any
end

--- Raises: what stands behind the last of `names`, the parameters of `who`, is no argument of it.
function surface.too_many(who, names, ...)
  local n, given = #names, table.pack(...)
  local extra
  for i = n + 1, given.n do
    if extra == nil and not options.comes_with(given[i], given[i - 1]) then extra = given[i] end
  end
  if extra == nil then return end -- nothing, written out
  for i = 1, given.n - 2 do -- f(T.load(path)) of a file that is not there: nil, message, code
    if given[i] == nil and type(given[i + 1]) == "string" and type(given[i + 2]) == "string" then
      fail("%s: %s is nil: %s (assert(…) around the call that gave it raises there)", who, names[i] or "an argument",
        given[i + 1])
    end
  end
  local takes = n == 0 and "no arguments" or ("at most %d argument%s (%s)"):format(n, n == 1 and "" or "s",
    table.concat(names, ", "))
  if type(extra) == "table" and getmetatable(extra) == nil then
    local key = next(extra)
    if type(key) == "string" then fail("%s: takes %s: unknown option '%s'", who, takes, key) end
  end
  fail("%s: takes %s, got %d; the last is %s", who, takes, given.n, describe(given[given.n]))
end
local too_many = surface.too_many

local sealed = setmetatable({}, { __mode = "kv" }) -- function → what stands for it; that → itself
--- What stands for a function → that function, with its names and place in the source.
surface.original = setmetatable({}, { __mode = "k" })

-- Loading perilune comes here for every public function: names of parameters are for messages, and made for them.
local function extra(who, f, ...)
  too_many(who, surface.parameters(f), ...)
  return f(...)
end

local noted = setmetatable({}, { __mode = "k" }) -- what surface.again made → what it stands for

--- What stands for f, the same: a trace of T.jit notes it as a whole (jit/again.lua).
function surface.again(f)
  local function made(...)
    if mode.again then return mode.again(f, ...) end
    return f(...)
  end
  noted[made], surface.original[made] = f, f
  return made
end

--- f, or what stands for it: the same, with no argument dropped; a trace of T.jit notes it as a whole (jit/again.lua).
function surface.one(who, f)
  f = noted[f] or f
  local made = sealed[f]
  if made then return made end
  local n, any = count(f)
  if not n then return f end
  who = options.aliases[who] or who
  options.publish(f, who)
  made = any and surface.again(f) or function(...)
    if select("#", ...) > n then return extra(who, f, ...) end
    if mode.again then return mode.again(f, ...) end
    return f(...)
  end
  sealed[f], sealed[made] = made, made
  surface.original[made] = f
  return made
end
local one = surface.one

--- All functions of a table of public ones, or those in the list `keys`; prefix: of their names in messages.
function surface.seal(t, keys, prefix)
  local function each(key, f)
    if count(f) and type(key) == "string" and key:byte(1) ~= 95 then -- "_"
      rawset(t, key, one(prefix and prefix .. key or key, f))
    end
  end
  if keys then
    for _, key in ipairs(keys) do each(key, rawget(t, key)) end
  else
    for key, f in next, t do each(key, f) end
  end
  return t
end

--- Functions of C among those of t, which take the parameters named, one text each: "manual_seed seed".
function surface.limit(t, list)
  for _, text in ipairs(list) do
    local names = {}
    for name in text:gmatch "%S+" do names[#names + 1] = name end
    local key = table.remove(names, 1)
    local f, n = rawget(t, key), #names
    if f and not sealed[f] then
      local function made(...)
        if select("#", ...) > n then too_many(key, names, ...) end
        return f(...)
      end
      sealed[made] = made
      rawset(t, key, made)
    end
  end
end

surface.sealed = sealed

return surface
