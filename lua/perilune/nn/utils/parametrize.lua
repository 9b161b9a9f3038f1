-- SPDX-License-Identifier: MIT
--- nn.utils.parametrize: a parameter or buffer that is computed by modules from another tensor wherever it is read.
-- That one is parametrizations.NAME.original in the module, as in PyTorch, whose states load. A module has a metatable
-- of its own, in which such names are looked up; they are no entries of _parameters, so whoever needs the module's own
-- parameter finds none.
-- @module perilune.nn.utils.parametrize
local T = require "perilune"
local base = require "perilune.nn.module"
local container = require "perilune.nn.container"
local options = require "perilune.options"
local rerun = require "perilune.autograd.checkpoint_state"
local class_name = require("perilune.surface").class_name

local fail, describe = options.fail, options.describe
local rawget, rawequal, type = rawget, rawequal, type

local parametrize = {}

-- ---- values that are kept for a while ------------------------------------------------------------------------

local scopes = setmetatable({}, { __mode = "k" }) -- by coroutine: those that are open, the innermost last
local running = coroutine.running

-- Where a value belongs: to the trace, and to the run of a checkpointed function, that it was computed in. When that
-- runs again it computes what it computed.
local function place() return T.core.jit_tracing(), rerun.running or rerun.anew end

-- What decides whether a value that was computed may be used again, besides the tensors it was computed of.
local function mode_of(list)
  return ("%s %s %s"):format(T.is_grad_enabled(), T.core.autocast_dtype(), list.training)
end

-- Calls f(tensor, its version, its requires_grad) for each tensor that a value is computed of, until that gives false.
local function each_tensor(list, f)
  for _, what in ipairs { "parameter", "buffer" } do
    for _, item in ipairs(base.collect(list, what)) do
      if f(item[2], item[2]:version(), item[2].requires_grad) == false then return false end
    end
  end
  return true
end

local function current(list, entry)
  if not entry or entry.mode ~= mode_of(list) or entry.value:version() ~= entry.version then return false end
  local i = 0
  return each_tensor(list, function(t, version, tracked)
    i = i + 1
    local was = entry[i]
    return was ~= nil and rawequal(was[1], t) and was[2] == version and was[3] == tracked
  end)
end

local function value_of(list)
  local open = scopes[running()]
  local scope, tracing, run = open and open[#open], place()
  if not scope or scope.tracing ~= tracing or scope.run ~= run then return list() end
  local entry = scope.values[list]
  if current(list, entry) then return entry.value end
  local value = list()
  entry = { value = value, version = value:version(), mode = mode_of(list) }
  each_tensor(list, function(...) entry[#entry + 1] = { ... } end) -- as they are now: spectral_norm changes its buffers
  scope.values[list] = entry
  return value
end

-- One that opens inside of another takes its values along.
local function open()
  local own, tracing, run = running(), place()
  scopes[own] = scopes[own] or {}
  local list = scopes[own]
  local outer = list[#list]
  local scope = { tracing = tracing, run = run, of = list,
    values = outer and outer.tracing == tracing and outer.run == run and outer.values or {} }
  list[#list + 1] = scope
  return scope
end

local function close(scope)
  local list = scope.of
  for i = #list, 1, -1 do
    if list[i] == scope then return table.remove(list, i) and nil end
  end
end

local Scope = { __name = "parametrize.cached", __close = close }

--- nn.utils.parametrize.cached(f, …) → what f returns; local _ <close> = nn.utils.parametrize.cached()
-- While f runs, or until the end of the block, what is parametrized is computed once and not wherever it is read, as
-- long as the tensors it is computed of stay as they are: for weights that a call reads many times.
--   local l = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
--   print(rawequal(l.weight, l.weight))  --> false
--   print(nn.utils.parametrize.cached(function() return rawequal(l.weight, l.weight) end))  --> true
function parametrize.cached(f, ...)
  if f == nil then return setmetatable(open(), Scope) end
  if type(f) ~= "function" and not base.is_module(f) then
    fail("parametrize.cached: a function is wanted, got %s", describe(f))
  end
  return T.core.around(open, nil, close, f, ...)
end

-- ---- the list of one tensor ----------------------------------------------------------------------------------

local List = base.class("ParametrizationList", container.ModuleList)
List.__index = List

-- Names of what is computed of: original, or original0, original1 … where the first module takes several.
local function originals(list)
  local out = {}
  for i = 1, list.ntensors do out[i] = list.ntensors == 1 and "original" or "original" .. i - 1 end
  if list.is_tensor == false then out[1] = "original0" end
  return out
end

local function values(list)
  local out = originals(list)
  for i, name in ipairs(out) do out[i] = base.member(list, name) end
  return out
end

function List:forward()
  local x = self[1](table.unpack(values(self)))
  for i = 2, #self do x = self[i](x) end
  return x
end

local function same_kind(a, b)
  local fits = a:dtype() == b:dtype() and a:dim() == b:dim()
  for d = 1, fits and a:dim() or 0 do fits = fits and a:size(d) == b:size(d) end
  return fits
end

local function inverse_of(m) return type(m.right_inverse) == "function" and m.right_inverse or nil end

-- What the modules, from the last one of them back, would have to be given to make `value`. strict: each must know.
local function inverted(who, modules, value, strict)
  local x = value
  for i = #modules, 1, -1 do
    local m = modules[i]
    local f, new = inverse_of(m), nil
    if f then new = f(m, x) end
    if new == nil and strict then fail("%s: %s has no right_inverse", who, class_name(m)) end
    if new ~= nil then
      if i > 1 and not T.is_tensor(new) then
        fail("%s: right_inverse of %s must give a tensor, got %s; several may go into the first one only", who,
          class_name(m), describe(new))
      end
      x = new
    end
  end
  if T.is_tensor(x) then return { x }, true end
  if type(x) ~= "table" or #x == 0 then
    fail("%s: right_inverse of %s must give a tensor or a list of them, got %s", who, class_name(modules[1]),
      describe(x))
  end
  for i, t in ipairs(x) do
    if not T.is_tensor(t) then
      fail("%s: entry %d of what right_inverse of %s gives must be a tensor, got %s", who, i, class_name(modules[1]),
        describe(t))
    end
  end
  return x, false
end

--- Gives the original tensors what makes `value`, by the modules' right_inverse.
function List:right_inverse(value)
  local who = "ParametrizationList:right_inverse"
  if not T.is_tensor(value) then fail("%s: a tensor is wanted, got %s", who, describe(value)) end
  local modules = {}
  for i = 1, #self do modules[i] = self[i] end
  local new, single = T.no_grad(inverted, who, modules, value:detach(), true)
  local old = values(self)
  if single ~= self.is_tensor or #new ~= #old then
    fail("%s: it has %d original tensor(s), and right_inverse gives %d", who, #old, #new)
  end
  for i, t in ipairs(new) do
    if not same_kind(t, old[i]) then
      fail("%s: %s is %s, and right_inverse gives %s", who, originals(self)[i], old[i]:describe(), t:describe())
    end
  end
  local _ <close> = T.no_grad()
  local _ <close> = T.core.hold_interrupts() -- all of them, or none
  for i, t in ipairs(new) do old[i]:copy_(t) end
end

-- ---- modules that have some ----------------------------------------------------------------------------------

local function list_of(m, name)
  local lists = rawget(m, "parametrizations")
  local list = type(lists) == "table" and rawget(lists, name)
  return list and getmetatable(list).__class == List and list or nil
end

-- From now on m's names are looked up among the parametrizations, too, before its class.
local function arm(m)
  local meta, parameters = getmetatable(m), m._parameters
  local class = meta.__class
  local index, newindex = class.__index, class.__newindex
  meta.__parametrized = arm
  function meta.__index(self, key)
    local p = rawget(parameters, key)
    if p ~= nil then return p end
    local list = list_of(self, key)
    if list then return value_of(list) end
    if type(index) == "table" then return index[key] end
    return index(self, key)
  end
  function meta.__newindex(self, key, value)
    local list = list_of(self, key)
    if not list then return newindex(self, key, value) end
    if value == nil then
      fail("%s: '%s' is parametrized; nn.utils.parametrize.remove_parametrizations takes that away", class_name(self),
        tostring(key))
    end
    list:right_inverse(value)
  end
end

local function module_of(who, m)
  if not base.is_module(m) then fail("%s: a module is wanted, got %s", who, describe(m)) end
end

local function check_result(who, m, y, x)
  if not T.is_tensor(y) then fail("%s: %s must give a tensor, got %s", who, class_name(m), describe(y)) end
  if not same_kind(y, x) then
    fail("%s: %s gives %s for %s; where that is meant say { unsafe = true }", who, class_name(m), y:describe(),
      x:describe())
  end
end

-- A further module behind those that are there.
local function appended(who, list, m, unsafe)
  if not unsafe then
    T.no_grad(function()
      local x = list()
      local y = m(x)
      check_result(who, m, y, x)
      local f = inverse_of(m)
      local z = f and f(m, y)
      if z ~= nil then check_result(who .. ": right_inverse", m, z, x) end
    end)
  end
  list:append(m)
  list.unsafe = list.unsafe or unsafe
end

-- A list of its own for the tensor t of m, which stays the same object where one tensor is made of one.
local function first(who, m, name, t, by, unsafe)
  local buffer = m._buffers[name]
  local new, single = T.no_grad(inverted, who, { by }, t:detach(), false)
  if single and new[1]:dtype() ~= t:dtype() then
    fail("%s: right_inverse of %s gives %s for %s", who, class_name(by), new[1]:describe(), t:describe())
  end
  local list = List()
  rawset(list, "is_tensor", single)
  rawset(list, "ntensors", #new)
  rawset(list, "unsafe", unsafe)
  rawset(list, "training", m.training)
  list:append(by)
  local keeps = single and same_kind(new[1], t)
  for i, key in ipairs(originals(list)) do
    local own = keeps and t or new[i]:detach():clone()
    if buffer then
      list:register_buffer(key, own, { persistent = buffer == "persistent" })
    else
      list:register_parameter(key, keeps and t or base.Parameter(own, { requires_grad = t.requires_grad }))
    end
  end
  if not unsafe then -- before anything of m changes
    T.no_grad(function() check_result(who, by, by(table.unpack(new)), t) end)
  end
  if keeps and not rawequal(new[1], t) then T.no_grad(function() t:copy_(new[1]) end) end
  return list
end

local register_spec = options.spec("parametrize.register_parametrization", { { "module", "any" },
  { "tensor_name", "string" }, { "parametrization", "any" }, { "unsafe", "bool", false } })

--- nn.utils.parametrize.register_parametrization(module, tensor_name, parametrization, {unsafe=false}) → module
-- From now on the parameter or buffer is what the module `parametrization` makes of another tensor, wherever it is
-- read; gradients go to that one, module.parametrizations[tensor_name].original. It is the parameter that was there, so
-- optimizers go on. Where parametrization has a method right_inverse the tensor keeps its value, and may be assigned
-- to; one that gives a list makes original0, original1 …, with which forward is called. Several are computed one
-- behind the other. unsafe=true: results of another shape or dtype are meant.
--   local Symmetric = nn.class("Symmetric")
--   function Symmetric:forward(x) return x:triu() + x:triu(1):t() end
--   function Symmetric:right_inverse(y) return y:triu() end
--   local l = nn.utils.parametrize.register_parametrization(nn.Linear(2, 2), "weight", Symmetric())
--   print(l.weight:equal(l.weight:t()))  --> true
--   for name in l:named_parameters() do print(name) end
--   --> bias
--   --> parametrizations.weight.original
--   l.weight = T.tensor { { 1, 2 }, { 2, 3 } }
--   print(l.parametrizations.weight.original:detach())
--   --> {{1., 2.},
--   -->  {0., 3.}}  -- f32[2,2] cpu
function parametrize.register_parametrization(...)
  local a = options.read(register_spec, ...)
  local who, m, name, by = "parametrize.register_parametrization", a.module, a.tensor_name, a.parametrization
  module_of(who, m)
  if not base.is_module(by) then fail("%s: the parametrization must be a module, got %s", who, base.no_module(by)) end
  local list = list_of(m, name)
  if list then
    appended(who, list, by, a.unsafe)
    return m
  end
  local t = base.member(m, name)
  if not T.is_tensor(t) or not (base.is_parameter[t] or m._buffers[name]) then
    fail("%s: %s has no parameter or buffer '%s'", who, class_name(m), name)
  end
  local lists = rawget(m, "parametrizations")
  if lists ~= nil and not getmetatable(m).__parametrized then
    fail("%s: %s has something else in its field 'parametrizations'", who, class_name(m))
  end
  list = first(who, m, name, t, by, a.unsafe)
  local all = lists or container.ModuleDict()
  all:set(name, list)
  base.forget(m, name)
  rawset(m, name, nil)
  if not lists then
    rawset(all, "training", m.training)
    m:register_module("parametrizations", all)
    arm(m)
  end
  return m
end

--- nn.utils.parametrize.is_parametrized(module, tensor_name=nil) → boolean
-- Whether that parameter or buffer of the module is, or any.
--   local l = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
--   print(nn.utils.parametrize.is_parametrized(l), nn.utils.parametrize.is_parametrized(l, "bias"))  --> true	false
function parametrize.is_parametrized(m, tensor_name)
  local who = "parametrize.is_parametrized"
  module_of(who, m)
  if tensor_name ~= nil then return list_of(m, options.kind(who, "tensor_name", "string", tensor_name)) ~= nil end
  return getmetatable(m).__parametrized ~= nil and rawget(m, "parametrizations") ~= nil
end

local remove_spec = options.spec("parametrize.remove_parametrizations", { { "module", "any" },
  { "tensor_name", "string" }, { "leave_parametrized", "bool", true } })

--- nn.utils.parametrize.remove_parametrizations(module, tensor_name, {leave_parametrized=true}) → module
-- Back to a plain parameter or buffer, with the value that was computed, or with the original one. It is the original
-- parameter where there is one alone, else a new one.
--   local l = nn.utils.parametrizations.orthogonal(nn.Linear(2, 2))
--   local w = l.weight:detach()
--   nn.utils.parametrize.remove_parametrizations(l, "weight")
--   print(#l:parameters(), l.weight:equal(w))  --> 2	true
function parametrize.remove_parametrizations(...)
  local a = options.read(remove_spec, ...)
  local who, m, name = "parametrize.remove_parametrizations", a.module, a.tensor_name
  module_of(who, m)
  local list = list_of(m, name)
  if not list then fail("%s: '%s' of %s is not parametrized", who, name, class_name(m)) end
  if not a.leave_parametrized and not list.is_tensor then
    fail("%s: '%s' is computed of %d tensors, none of which is it; leave_parametrized must be true", who, name,
      list.ntensors)
  end
  local value = a.leave_parametrized and T.no_grad(list):detach():clone() or nil
  local all = values(list)
  local buffer, old, trained = list._buffers[originals(list)[1]], all[1], false
  for _, t in ipairs(all) do trained = trained or t.requires_grad end
  local lists = m.parametrizations
  base.forget(lists, name)
  rawset(lists, name, nil)
  if #lists == 0 then
    base.forget(m, "parametrizations")
    rawset(m, "parametrizations", nil)
  end
  if value and list.is_tensor and same_kind(value, old) then
    T.no_grad(function() old:copy_(value) end)
    value = nil
  end
  if buffer then
    m:register_buffer(name, value or old, { persistent = buffer == "persistent" })
  else
    m:register_parameter(name, value and base.Parameter(value, { requires_grad = trained }) or old)
  end
  return m
end

return parametrize
