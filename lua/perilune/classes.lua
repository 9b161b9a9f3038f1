-- SPDX-License-Identifier: MIT
--- What methods of perilune's classes, and the constructors and forward methods of its modules, promise of their
-- arguments: see surface.lua.
-- @module perilune.classes
local options = require "perilune.options"
local surface = require "perilune.surface"

local classes = {}
local fail, describe = options.fail, options.describe
local select, type = select, type
local is_one_object = require("perilune.core").is_one_object
local too_many, class_name, sealed = surface.too_many, surface.class_name, surface.sealed

--- The methods of a class, those of its functions whose first parameter is self: called without an object they say how
-- it is meant, `label` being what one calls such an object; and no argument is dropped.
function classes.class(C, label, skip)
  for key, f in pairs(C) do
    local names, any = nil, nil
    local method = type(f) == "function" and type(key) == "string" and key:sub(1, 1) ~= "_"
    if method and key ~= skip and key ~= "forward" and key ~= "init" then
      if sealed[f] then C[key] = sealed[f] else names, any = surface.parameters(f) end
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

local whole = setmetatable({}, { __mode = "k" }) -- classes that were looked at

--- The same for all classes of modules in t and those that they come from.
function classes.modules(t)
  for _, C in next, t do
    while type(C) == "table" and rawget(C, "__perilune_module") and not whole[C] do
      whole[C] = true
      C = rawget(classes.class(C, "net"), "super")
    end
  end
  return t
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
  if names and select("#", ...) > #names then too_many("nn." .. class_name(self), names, ...) end
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
