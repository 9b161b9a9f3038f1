-- SPDX-License-Identifier: MIT
--- What every public function promises of its arguments, whoever wrote it: none is dropped. Lua passes over what a
-- function has no parameter for, and an option that is passed over is a wrong result without a word; so functions of
-- perilune's own Lua files that take a fixed number of arguments refuse more.
-- @module perilune.surface
local options = require "perilune.options"

local surface = {}
local fail, describe = options.fail, options.describe
local getinfo, getlocal, select, type, rawget, rawset = debug.getinfo, debug.getlocal, select, type, rawget, rawset

local here = getinfo(1, "S").source:gsub("surface%.lua$", "")

--- The name of a module's class, also where the module has a field `type`.
function surface.class_name(m)
  local meta = getmetatable(m)
  return type(meta) == "table" and meta.__name or type(m)
end
local class_name = surface.class_name

--- The names of f's parameters, and whether it takes any number; nil for functions of C and of scripts.
function surface.parameters(f)
  local info = getinfo(f, "Su")
  if info.what == "C" or info.source:sub(1, #here) ~= here then return nil end
  local names = {}
  for i = 1, info.nparams do names[i] = getlocal(f, i) or "?" end
  return names, info.isvararg
end

--- Raises: what stands behind the last of `names`, the parameters of `who`, is no argument of it.
function surface.too_many(who, names, ...)
  local n, given = #names, table.pack(...)
  local extra
  for i = n + 1, given.n do if extra == nil then extra = given[i] end end
  if extra == nil then return end -- nothing, written out
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

--- f, or what stands for it: the same, with no argument dropped.
function surface.one(who, f)
  local made = sealed[f]
  if made then return made end
  local names, any = surface.parameters(f)
  who = options.aliases[who] or who
  if names then options.publish(f, who) end
  if not names or any then return f end
  local n = #names
  made = function(...)
    if select("#", ...) > n then too_many(who, names, ...) end
    return f(...)
  end
  sealed[f], sealed[made] = made, made
  surface.original[made] = f
  return made
end

--- All functions of a table of public ones, or those in the list `keys`; prefix: of their names in messages.
function surface.seal(t, keys, prefix)
  local list = keys or {}
  if not keys then for key in next, t do list[#list + 1] = key end end
  for _, key in ipairs(list) do
    local f = rawget(t, key)
    if type(f) == "function" and type(key) == "string" and key:sub(1, 1) ~= "_" then
      rawset(t, key, surface.one((prefix or "") .. key, f))
    end
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

--- The methods of a class, those of its functions whose first parameter is self: called without an object they say how
-- it is meant, `label` being what one calls such an object; and no argument is dropped.
function surface.class(C, label, skip)
  for key, f in pairs(C) do
    local names, any = nil, nil
    local method = type(f) == "function" and type(key) == "string" and key:sub(1, 1) ~= "_"
    if method and key ~= skip and key ~= "forward" and key ~= "init" and not sealed[f] then
      names, any = surface.parameters(f)
    end
    if names and names[1] == "self" then
      local given, n = table.move(names, 2, #names, 1, {}), #names - 1
      local made = function(self, ...)
        if type(self) ~= "table" or getmetatable(self) == nil then options.colon(("%s:%s()"):format(label, key)) end
        if not any and select("#", ...) > n then too_many(key, given, ...) end
        return f(self, ...)
      end
      sealed[f], sealed[made] = made, made
      surface.original[made] = f
      C[key] = made
    end
  end
  return C
end

-- ---- modules ------------------------------------------------------------------------------------------------------

-- Parameters of forward methods that are tensors, by their names.
local TENSORS = {}
for name in ([[x x1 x2 y q k v ids indices src tgt memory target offsets h]]):gmatch "%S+" do TENSORS[name] = true end

local forms = setmetatable({}, { __mode = "k" }) -- forward → {names=, tensors={…}}, or false: it is a script's

local function form_of(f)
  local names, any = surface.parameters(f)
  if not names then return false end
  local form = { names = table.move(names, 2, #names, 1, {}), any = any, tensors = {} }
  for i, name in ipairs(form.names) do form.tensors[i] = not any and TENSORS[name] end
  form.n = any and math.huge or #form.names
  return form
end

-- Packed sequences and the like are tables with a metatable.
local function is_plain(v) return type(v) ~= "userdata" and not (type(v) == "table" and getmetatable(v)) end

local function check(self, form, n, ...)
  if n > form.n then too_many(class_name(self), form.names, ...) end
  for i = 1, #form.names do
    local v = (select(i, ...))
    if form.tensors[i] and is_plain(v) and (v ~= nil or i == 1) then
      fail("%s: %s must be a tensor, got %s", class_name(self), form.names[i], describe(v))
    end
  end
end

local inits = setmetatable({}, { __mode = "k" })

--- self:init(...), which takes no more than its parameters where it is perilune's own.
function surface.init(self, ...)
  local f = self.init
  local names = inits[f]
  if names == nil then
    local list, any = surface.parameters(f)
    names = list and not any and table.move(list, 2, #list, 1, {}) or false
    inits[f] = names
  end
  if names and select("#", ...) > #names then too_many("nn." .. class_name(self), names, ...) end
  return f(self, ...)
end

--- self:forward(...), whose arguments are looked at where the method is perilune's own.
function surface.forward(self, ...)
  local f = self.forward
  local form = forms[f]
  if form == nil then
    form = type(f) == "function" and form_of(f)
    if type(f) == "function" then forms[f] = form end
  end
  if form then
    local n = select("#", ...)
    if n ~= 1 or form.tensors[1] and type((...)) ~= "userdata" then check(self, form, n, ...) end
  end
  return f(self, ...)
end

return surface
