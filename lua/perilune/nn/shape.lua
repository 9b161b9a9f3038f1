-- SPDX-License-Identifier: MIT
--- Layers that only rearrange: Flatten, Unflatten.
-- @module perilune.nn.shape
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, read = base.class, options.read

--- nn.Flatten(…) → module
-- Joins the dimensions start_dim … end_dim into one.
-- Shapes: [N, *] → [N, product]
--   print(table.concat(nn.Flatten()(T.ones(2, 3, 4)):shape(), " "))  --> 2 12
local Flatten = class "Flatten"
local flatten_spec = options.spec("nn.Flatten", { { "start_dim", "int", 2 }, { "end_dim", "int", -1 } })

function Flatten:init(...)
  local a = read(flatten_spec, ...)
  self.start_dim, self.end_dim = a.start_dim, a.end_dim
end

function Flatten:forward(x) return x:flatten(self.start_dim, self.end_dim) end

function Flatten:extra_repr() return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim) end

--- nn.Unflatten(…) → module
-- Splits a dimension into sizes; one of them may be -1.
-- Shapes: [*, n, *] → [*, sizes, *]
--   print(table.concat(nn.Unflatten(2, { 3, -1 })(T.ones(2, 6)):shape(), " "))  --> 2 3 2
local Unflatten = class "Unflatten"
local unflatten_spec = options.spec("nn.Unflatten", { { "dim", "int" }, { "sizes", "ints" } })

function Unflatten:init(...)
  local a = read(unflatten_spec, ...)
  self.dim = a.dim
  self.sizes = type(a.sizes) == "table" and a.sizes or { a.sizes }
end

function Unflatten:forward(x) return x:unflatten(self.dim, self.sizes) end

function Unflatten:extra_repr()
  return ("dim=%d, sizes={%s}"):format(self.dim, table.concat(self.sizes, ", "))
end

return { Flatten = Flatten, Unflatten = Unflatten }
