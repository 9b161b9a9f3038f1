-- SPDX-License-Identifier: MIT
--- Padding of sequences, images and volumes: zeros, a constant, reflected, replicated, circular.
-- @module perilune.nn.padding
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, fail = base.class, options.fail
local out = {}

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
end

return out
