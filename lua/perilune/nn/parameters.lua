-- SPDX-License-Identifier: MIT
--- Modules that hold parameters: ParameterList, ParameterDict.
-- @module perilune.nn.parameters
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, fail, describe = base.class, options.fail, options.describe
local out = {}

--- nn.ParameterList{tensor, …} → module
-- Parameters by number; tensors become parameters. append, #list, list[i].
--   local list = nn.ParameterList { T.ones(2), T.zeros(3) }
--   print(#list, list[2].requires_grad)  --> 2	true
local ParameterList = class "ParameterList"
function ParameterList:init(list)
  if list ~= nil then options.list("nn.ParameterList", "the parameters", list, "tensors") end
  for _, p in ipairs(list or {}) do self:append(p) end
end
function ParameterList:append(p)
  if type(p) ~= "userdata" then fail("nn.ParameterList: a tensor is wanted, got %s", describe(p)) end
  self[#self + 1] = base.is_parameter[p] and p or base.Parameter(p)
  return self
end
function ParameterList.__len(self) return rawlen(self._parameters) end
out.ParameterList = ParameterList

--- nn.ParameterDict{name = tensor, …} → module
-- Parameters by name: d.name, d:get(name), d:set(name, t), d:keys(). They are in the order of their names; a list
-- {{name, tensor}, …} keeps its own.
--   print(nn.ParameterDict { scale = T.ones(1) }.scale)  --> {1.}  -- f32[1] cpu requires_grad
local ParameterDict = class "ParameterDict"
function ParameterDict:init(given)
  if given ~= nil and type(given) ~= "table" then
    fail("nn.ParameterDict: a table of tensors is wanted, got %s", describe(given))
  end
  for _, pair in ipairs(options.named_pairs("nn.ParameterDict", given or {})) do
    self:set(pair[1], pair[2])
  end
end
function ParameterDict:set(name, p)
  if type(name) ~= "string" then fail("ParameterDict: names are strings, got %s", describe(name)) end
  if ParameterDict[name] ~= nil or name == "training" or name:sub(1, 1) == "_" then
    fail("ParameterDict: the name '%s' is taken by a method or field", name)
  end
  if not T.is_tensor(p) then fail("ParameterDict: '%s' must be a tensor, got %s", name, describe(p)) end
  self[name] = base.is_parameter[p] and p or base.Parameter(p)
  return self
end
function ParameterDict:get(name) return base.member(self, name) end
--- Names in the order in which they were set.
function ParameterDict:keys()
  local names = {}
  for name in self:named_parameters() do names[#names + 1] = name end
  return names
end
function ParameterDict:__len() return #self:keys() end
out.ParameterDict = ParameterDict

return out
