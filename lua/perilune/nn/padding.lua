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
  local function all_sides(v)
    if type(v) ~= "number" then return v end
    local sides = {}
    for i = 1, 2 * nd do sides[i] = v end
    return sides
  end
  function C:init(...)
    local a = options.read(spec, ...)
    local sides = a.padding
    if type(sides) == "table" and #sides == 1 then sides = sides[1] end
    sides = all_sides(sides)
    if #sides ~= 2 * nd then fail("nn.%s: padding must be one number or %d, got %d", name, 2 * nd, #sides) end
    self.padding, self.value = sides, a.value
  end
  function C:forward(x)
    if mode == "constant" then return T.pad(x, all_sides(self.padding), { value = self.value or 0 }) end
    return T.pad(x, all_sides(self.padding), { mode = mode })
  end
  function C:extra_repr()
    return ("padding=%s%s"):format(options.list_text(self.padding),
      self.value and (", value=%g"):format(self.value) or "")
  end
  out[name] = C
end

--- nn.CircularPad1d(…) → module
-- Adds the values from the other side around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, L] → [*, L']
--   print(nn.CircularPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{3., 1., 2., 3., 1.}}  -- f32[1,5] cpu

--- nn.CircularPad2d(…) → module
-- Adds the values from the other side around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, H, W] → [*, H, W']
--   print(table.concat(nn.CircularPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6

--- nn.CircularPad3d(…) → module
-- Adds the values from the other side around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, D, H, W] → [*, D, H, W']
--   print(table.concat(nn.CircularPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6

--- nn.ConstantPad1d(…) → module
-- Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, L] → [*, L']
--   print(nn.ConstantPad1d({ 1, 1 }, 7)(T.tensor { { 1, 2, 3 } }))  --> {{7., 1., 2., 3., 7.}}  -- f32[1,5] cpu

--- nn.ConstantPad2d(…) → module
-- Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, H, W] → [*, H, W']
--   print(table.concat(nn.ConstantPad2d(1, 7)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6

--- nn.ConstantPad3d(…) → module
-- Adds a number around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, D, H, W] → [*, D, H, W']
--   print(table.concat(nn.ConstantPad3d(1, 7)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6

--- nn.ReflectionPad1d(…) → module
-- Adds the values mirrored at the border around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, L] → [*, L']
--   print(nn.ReflectionPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{2., 1., 2., 3., 2.}}  -- f32[1,5] cpu

--- nn.ReflectionPad2d(…) → module
-- Adds the values mirrored at the border around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, H, W] → [*, H, W']
--   print(table.concat(nn.ReflectionPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6

--- nn.ReflectionPad3d(…) → module
-- Adds the values mirrored at the border around. padding: one number, or before and after for each dimension, the last
-- dimension first.
-- Shapes: [*, D, H, W] → [*, D, H, W']
--   print(table.concat(nn.ReflectionPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6

--- nn.ReplicationPad1d(…) → module
-- Adds the border's values around. padding: one number, or before and after for each dimension, the last dimension
-- first.
-- Shapes: [*, L] → [*, L']
--   print(nn.ReplicationPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{1., 1., 2., 3., 3.}}  -- f32[1,5] cpu

--- nn.ReplicationPad2d(…) → module
-- Adds the border's values around. padding: one number, or before and after for each dimension, the last dimension
-- first.
-- Shapes: [*, H, W] → [*, H, W']
--   print(table.concat(nn.ReplicationPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6

--- nn.ReplicationPad3d(…) → module
-- Adds the border's values around. padding: one number, or before and after for each dimension, the last dimension
-- first.
-- Shapes: [*, D, H, W] → [*, D, H, W']
--   print(table.concat(nn.ReplicationPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6

--- nn.ZeroPad1d(…) → module
-- Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, L] → [*, L']
--   print(nn.ZeroPad1d(1)(T.tensor { { 1, 2, 3 } }))  --> {{0., 1., 2., 3., 0.}}  -- f32[1,5] cpu

--- nn.ZeroPad2d(…) → module
-- Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, H, W] → [*, H, W']
--   print(table.concat(nn.ZeroPad2d(1)(T.ones(1, 1, 4, 4)):shape(), " "))  --> 1 1 6 6

--- nn.ZeroPad3d(…) → module
-- Adds zeros around. padding: one number, or before and after for each dimension, the last dimension first.
-- Shapes: [*, D, H, W] → [*, D, H, W']
--   print(table.concat(nn.ZeroPad3d(1)(T.ones(1, 1, 4, 4, 4)):shape(), " "))  --> 1 1 6 6 6
for nd = 1, 3 do
  padding(("ZeroPad%dd"):format(nd), nd, "constant")
  padding(("ConstantPad%dd"):format(nd), nd, "constant")
  padding(("ReflectionPad%dd"):format(nd), nd, "reflect")
  padding(("ReplicationPad%dd"):format(nd), nd, "replicate")
  padding(("CircularPad%dd"):format(nd), nd, "circular")
end

return out
