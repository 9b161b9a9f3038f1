-- SPDX-License-Identifier: MIT
--- Small layers: padding of images, sequences and volumes, adaptive max pooling, Softmax2d, and ParameterList.
-- @module perilune.nn.extra
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, fail, describe = base.class, options.fail, options.describe
local out = {}

-- ---- padding -----------------------------------------------------------------------------------------

-- `size`: one number for all sides, or before and after for each dimension, the last dimension first.
local function padding(name, nd, mode)
  local C = class(name)
  local args = { { "padding", "window" } }
  if mode == "constant" and name:match("^Constant") then args[2] = { "value", "number" } end
  local spec = options.spec("nn." .. name, args, { list_first = true })
  function C:init(...)
    local a = options.read(spec, ...)
    local sides = a.padding
    if type(sides) == "table" and #sides == 1 then sides = sides[1] end
    if type(sides) == "number" then
      local one = sides
      sides = {}
      for i = 1, 2 * nd do sides[i] = one end
    end
    if #sides ~= 2 * nd then fail("nn.%s: padding must be one number or %d, got %d", name, 2 * nd, #sides) end
    self.padding, self.value = sides, a.value
  end
  function C:forward(x)
    if mode == "constant" then return T.pad(x, self.padding, { value = self.value or 0 }) end
    return T.pad(x, self.padding, { mode = mode })
  end
  function C:extra_repr()
    return ("padding={%s}%s"):format(table.concat(self.padding, ", "),
      self.value and (", value=%g"):format(self.value) or "")
  end
  out[name] = C
end

for nd = 1, 3 do
  padding(("ZeroPad%dd"):format(nd), nd, "constant")
  padding(("ConstantPad%dd"):format(nd), nd, "constant")
  padding(("ReflectionPad%dd"):format(nd), nd, "reflect")
  padding(("ReplicationPad%dd"):format(nd), nd, "replicate")
  padding(("CircularPad%dd"):format(nd), nd, "circular")

  -- Windows cut so that the output has the given size: the largest value of each.
  local name, op = ("AdaptiveMaxPool%dd"):format(nd), ("adaptive_max_pool%dd"):format(nd)
  local C = class(name)
  local spec = options.spec("nn." .. name, { { "output_size", "window" }, { "return_indices", "bool", false } },
    { list_first = true })
  function C:init(...)
    local a = options.read(spec, ...)
    if type(a.output_size) == "table" and #a.output_size == 1 then a.output_size = a.output_size[1] end
    self.output_size, self.return_indices, self._opts = a.output_size, a.return_indices, a
  end
  function C:forward(x) return F[op](x, self._opts) end
  function C:extra_repr()
    local size = self.output_size
    return "output_size=" .. (type(size) == "table" and "{" .. table.concat(size, ", ") .. "}" or tostring(size))
  end
  out[name] = C
end

--- Softmax over the channels of [N, C, H, W] (or [C, H, W]).
local Softmax2d = class "Softmax2d"
function Softmax2d:forward(x)
  if x:dim() ~= 3 and x:dim() ~= 4 then fail("Softmax2d: [N, C, H, W] or [C, H, W] is wanted, got %s", describe(x)) end
  return T.softmax(x, -3)
end
out.Softmax2d = Softmax2d

-- ---- parameters ----------------------------------------------------------------------------------------

--- Parameters by number: `nn.ParameterList{T.zeros(2), nn.Parameter(…)}`; tensors become parameters. `#list`,
-- `list[i]`, `ipairs(list)`, `list:append(p)`.
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

return out
