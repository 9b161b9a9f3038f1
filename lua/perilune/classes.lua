-- SPDX-License-Identifier: MIT
--- What methods of perilune's classes, and the constructors and forward methods of its modules, promise of their
-- arguments: see surface.lua. A class is made here, and each of its methods looked after from its definition on.
-- @module perilune.classes
local options = require "perilune.options"
local surface = require "perilune.surface"

local classes = {}
local fail, describe = options.fail, options.describe
local getmetatable, rawset, select, setmetatable, type = getmetatable, rawset, select, setmetatable, type
local core = require "perilune.core"
local count, getlocal, is_one_object = core.parameters, debug.getlocal, core.is_one_object
local too_many, class_name, sealed = surface.too_many, surface.class_name, surface.sealed

--- All classes → what one calls an object of theirs. spec/call/methods_spec.lua finds the others.
classes.all = setmetatable({}, { __mode = "k" })

-- What stands for the method f of a class: called without an object it says how it is meant, `label` being what one
-- calls such an object; and no argument is dropped. Functions of C and of scripts stand for themselves.
local function method(label, key, f)
  if sealed[f] then return sealed[f] end
  local n, any = count(f)
  local own = n and n > 0 and getlocal(f, 1) == "self"
  if not n or any and not own then return f end
  local first = own and 2 or 1
  n = n + 1 - first
  local function refuse(...) -- names are made for messages
    local names = surface.parameters(f)
    too_many(key, table.move(names, first, #names, 1, {}), ...)
  end
  local made = own and function(self, ...)
    if type(self) ~= "table" and type(self) ~= "userdata" or getmetatable(self) == nil then
      options.colon(("%s:%s()"):format(label, key))
    end
    if not any and select("#", ...) > n then refuse(...) end
    return f(self, ...)
  end or function(...)
    if select("#", ...) > n then refuse(...) end
    return f(...)
  end
  sealed[f], sealed[made] = made, made
  surface.original[made] = f
  return made
end

--- C, a table of methods, as a class: those that it has and those that it gets. skip: the name of one that perilune
-- alone calls, often.
function classes.class(C, label, skip)
  local function is_method(key, f)
    return type(f) == "function" and type(key) == "string" and key:byte(1) ~= 95 and key ~= skip
      and key ~= "forward" and key ~= "init" and key ~= "new" -- constructors count for themselves
  end
  for key, f in next, C do
    if is_method(key, f) then C[key] = method(label, key, f) end
  end
  local meta = getmetatable(C) or {}
  function meta.__newindex(t, key, f) rawset(t, key, is_method(key, f) and method(label, key, f) or f) end
  classes.all[C] = label
  return setmetatable(C, meta)
end

--- A new class whose objects look up their methods in it. parent: what it comes from.
function classes.new(name, label, parent)
  local C = { __name = name }
  C.__index = C
  return classes.class(parent and setmetatable(C, { __index = parent }) or C, label)
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
function classes.init(self, ...)
  local f = self.init
  local names = inits[f]
  if names == nil then
    local list, any = surface.parameters(f)
    names = list and not any and table.move(list, 2, #list, 1, {}) or false
    inits[f] = names
  end
  local n = select("#", ...)
  if names and n > #names then
    local last = select(n, ...)
    if n ~= #names + 1 or type(last) ~= "table" or next(last) ~= nil then -- else a table of no options
      too_many("nn." .. class_name(self), names, ...)
    end
  end
  return f(self, ...)
end

--- Looks at the arguments of self:forward(...) where the method f is perilune's own.
function classes.look(self, f, ...)
  local form = forms[f]
  if form == nil then
    form = type(f) == "function" and form_of(f)
    if type(f) == "function" then forms[f] = form end
  end
  if form and not (form.n > 0 and is_one_object(...)) then check(self, form, select("#", ...), ...) end
end
classes.forms = forms

return classes
