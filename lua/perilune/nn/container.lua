-- SPDX-License-Identifier: MIT
--- Modules that hold modules: Sequential, ModuleList, ModuleDict.
-- @module perilune.nn.container
local T = require "perilune"
local base = require "perilune.nn.module"
local core = require "perilune.core"
local options = require "perilune.options"

local class, is_module, fail = base.class, base.is_module, options.fail
local Module = base.Module

-- A list given as one plain table, or as several arguments.
local function listed(who, ...)
  local list, n = { ... }, select("#", ...)
  if n == 1 and type(list[1]) == "table" and not is_module(list[1]) and getmetatable(list[1]) == nil then
    list, n = options.list(who, "the modules", list[1], "modules"), #list[1]
  end
  for i = 1, n do
    if not is_module(list[i]) then
      fail("%s: argument %d must be a module, got %s", who, i, base.no_module(list[i]))
    end
  end
  return list, n
end

local function position(who, self, i, top)
  local n = options.integer(i)
  if n and n < 0 then n = #self + 1 + n end
  if not n or n < 1 or n > top then
    fail("%s: index %s is not in 1..%d (indices start at 1)", who, tostring(i), top)
  end
  return n
end

-- Children are at integer keys, so list[i] and #list need no method; list["1"], list[-1], the last, and list[{2, 4}],
-- a list of the same modules, work as well.
local function index_of(C)
  return function(self, key)
    if math.type(key) == "integer" then
      if key > 0 or not rawget(self, "_known") then return nil end
      return rawget(self, position(C.__name, self, key, #self))
    end
    if type(key) == "table" then
      local who, n = C.__name, #self
      local from, to = position(who, self, key[1], n), position(who, self, key[2], n)
      local part = C()
      for i = from, to do part:append(rawget(self, i)) end
      return part
    end
    local value = C[key]
    if value == nil and type(key) == "string" then
      local i = key:match("^%d+$") and math.tointeger(tonumber(key))
      if i then return rawget(self, i) end
    end
    return value
  end
end

local function list_class(name)
  local C = class(name)
  C.__index = index_of(C)
  local assign = C.__newindex
  function C.__newindex(self, key, value)
    if math.type(key) == "integer" and key < 1 then key = position(name, self, key, #self) end
    if value == nil or rawget(self, key) == nil then return assign(self, key, value) end
    rawset(self, key, value)
  end

  function C:init(...)
    local list, n = listed("nn." .. name, ...)
    for i = 1, n do self[i] = list[i] end
  end

  --- Adds modules at the end.
  function C:append(...)
    local list, n = listed(name .. ":append", ...)
    local top = #self
    for i = 1, n do self[top + i] = list[i] end
    return self
  end

  --- Adds all of another list's modules.
  function C:extend(other)
    for i = 1, #other do self:append(other[i]) end
    return self
  end

  --- Puts a module before position i.
  function C:insert(i, m)
    listed(name .. ":insert", m)
    local at, top = position(name .. ":insert", self, i, #self + 1), #self
    for k = top, at, -1 do self[k + 1] = rawget(self, k) end
    self[at] = m
    return self
  end

  --- Takes out the module at position i (the last one without i) and returns it.
  function C:pop(i)
    local at = position(name .. ":pop", self, i or -1, #self)
    local m, top = rawget(self, at), #self
    for k = at, top do rawset(self, k, rawget(self, k + 1)) end
    return m
  end

  return C
end

--- nn.Sequential(a, b, …) or nn.Sequential{a, b, …} → module
-- Calls its modules in turn, each on what the one before returned. net[1], #net, append, insert, extend, pop; children
-- are named "1", "2", ….
-- Shapes: what the first takes → what the last returns
--   local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
--   print(#net, net[2])  --> 3	ReLU()
--   print(table.concat(net(T.ones(4, 2)):shape(), " "))  --> 4 1
local Sequential = list_class "Sequential"

function Sequential:forward(x, ...)
  local n = #self
  if n == 0 then return x, ... end
  if select("#", ...) > 0 then
    local out = table.pack(self[1](x, ...))
    for i = 2, n do out = table.pack(self[i](table.unpack(out, 1, out.n))) end
    return table.unpack(out, 1, out.n)
  end
  for i = 1, n - 1 do x = self[i](x) end
  return self[n](x)
end

--- nn.ModuleList{a, b, …} → module
-- A list of modules that registers them and computes nothing. append, insert, extend, pop, #list, list[i].
--   local list = nn.ModuleList { nn.Linear(1, 1), nn.ReLU() }
--   print(#list, list[2])  --> 2	ReLU()
local ModuleList = list_class "ModuleList"

--- nn.ModuleDict{name = module, …} → module
-- Modules by name: d.name, d:get(name), d:set(name, m), d:keys(). They are in the order of their names; a list
-- {{name, module}, …} keeps its own, which counts where an optimizer's state comes from PyTorch.
--   print(nn.ModuleDict { act = nn.ReLU() }.act)  --> ReLU()
local ModuleDict = class "ModuleDict"

function ModuleDict:init(modules)
  if modules == nil then return end
  if type(modules) ~= "table" then
    fail("nn.ModuleDict: a table of modules is wanted, got %s", options.describe(modules))
  end
  for _, pair in ipairs(options.named_pairs("nn.ModuleDict", modules)) do self:set(pair[1], pair[2]) end
end

function ModuleDict:set(name, m)
  if type(name) ~= "string" then fail("ModuleDict: names are strings, got %s", options.describe(name)) end
  if m ~= nil and not is_module(m) then fail("ModuleDict: '%s' must be a module, got %s", name, base.no_module(m)) end
  if ModuleDict[name] ~= nil or name == "training" or name:sub(1, 1) == "_" then
    fail("ModuleDict: the name '%s' is taken by a method or field", name)
  end
  self:register_module(name, m)
end

function ModuleDict:get(name) return rawget(self, name) end

--- Names in the order in which they were set.
function ModuleDict:keys()
  local names = {}
  for name in self:named_children() do names[#names + 1] = name end
  return names
end

function ModuleDict:__len() return #self:keys() end

--- nn.Identity(…) → module
-- Returns its arguments, whatever it was made with: it stands for a layer, (norm or nn.Identity)(64).
-- Shapes: x → x
--   print(nn.Identity()(T.ones(2)))  --> {1., 1.}  -- f32[2] cpu
local Identity = class "Identity"
function Identity:init(...) end -- luacheck: ignore
function Identity:forward(...) return ... end

--- nn.checkpointed(module, {save=, names=, policy=, segments=}) → module
-- Computes what the module does and keeps only its arguments: backward computes the module again, with the same random
-- numbers and modes, adds the same gradients; running statistics are updated once. Memory for time: T.checkpoint, whose
-- options it takes. segments = n cuts an nn.Sequential into n pieces, each of which keeps its own arguments.
--   local block = nn.checkpointed(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
--   block(T.ones(1, 4)):sum():backward()
--   print(#block:parameters(), block:parameters()[1].grad:shape()[1])  --> 2	4
local Checkpointed = class "Checkpointed"
function Checkpointed:init(m, opts)
  if not is_module(m) then fail("nn.checkpointed: a module expected, got %s", options.describe(m)) end
  self.inner = m
  opts = options.check("nn.checkpointed", opts, { "save", "names", "policy", "segments" })
  local n = opts.segments
  if n ~= nil then
    if getmetatable(m).__name ~= "Sequential" then
      fail("nn.checkpointed: segments are of an nn.Sequential, not of %s", options.describe(m))
    end
    if not options.integer(n) or n < 1 or n > #m then
      fail("nn.checkpointed: segments must be from 1 to %d, the number of modules, got %s", #m, options.describe(n))
    end
    self.segments = options.integer(n)
  end
  local _ = T.checkpoint -- brings its part
  local keep, names = core.checkpoint_settings("nn.checkpointed", opts)
  self._kept_ops, self._kept_names = keep or false, names or false
end
function Checkpointed:forward(...)
  local inner, keep, names = self.inner, self._kept_ops or nil, self._kept_names or nil
  if not self.segments then return core.run_checkpoint(inner, keep, names, ...) end
  if inner._hooks then fail("nn.checkpointed: hooks of a module that is cut into segments would not run") end
  local n, from, out = #inner, 1, table.pack(...)
  for s = 1, self.segments do
    local first, to = from, n * s // self.segments
    out = table.pack(core.run_checkpoint(function(...)
      local values = table.pack(...)
      for i = first, to do values = table.pack(inner[i](table.unpack(values, 1, values.n))) end
      return table.unpack(values, 1, values.n)
    end, keep, names, table.unpack(out, 1, out.n)))
    from = to + 1
  end
  return table.unpack(out, 1, out.n)
end

return { Sequential = Sequential, ModuleList = ModuleList, ModuleDict = ModuleDict, Identity = Identity,
  Module = Module, checkpointed = function(m, opts) return Checkpointed(m, opts) end }
