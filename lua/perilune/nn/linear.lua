-- SPDX-License-Identifier: MIT
--- Layers that are matrix products: Linear, Bilinear.
-- @module perilune.nn.linear
local T = require "perilune"
local base = require "perilune.nn.module"
local init = require "perilune.nn.initializers"
local init_state = require "perilune.nn.init_state"
local options = require "perilune.options"

local linear = T.linear
local class, Parameter, read = base.class, base.Parameter, options.read

--- nn.Linear(…) → module
-- y = x Wᵀ + b on the last dimension. weight [out, in], bias [out]; both start uniform within ±1/√in.
-- Shapes: [*, in_features] → [*, out_features]
--   local l = nn.Linear(3, 2)
--   print(l)  --> Linear(in_features=3, out_features=2, bias=true)
--   print(table.concat(l(T.ones(4, 3)):shape(), " "))  --> 4 2
local Linear = class "Linear"

local linear_spec = options.spec("nn.Linear", {
  { "in_features", "size" }, { "out_features", "size" }, { "bias", "bool", true },
  { "dtype", "string", optional = true }, { "device", "string", optional = true } })

function Linear:init(...)
  local a = read(linear_spec, ...)
  self.in_features, self.out_features = a.in_features, a.out_features
  local opts = { dtype = a.dtype, device = a.device }
  self.weight = Parameter(init_state.empty({ a.out_features, a.in_features }, opts))
  if a.bias then self.bias = Parameter(T.empty({ a.out_features }, opts)) end
  self:reset_parameters()
end

function Linear:reset_parameters()
  init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
  if self.bias then
    local bound = self.in_features > 0 and 1 / math.sqrt(self.in_features) or 0.0
    init.uniform_(self.bias, -bound, bound)
  end
end

function Linear:forward(x) return linear(x, self.weight, self.bias) end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
    tostring(self.bias ~= nil))
end

--- nn.Bilinear(…) → module
-- y_k = x1ᵀ W_k x2 + b_k. weight [out, in1, in2], bias [out].
-- Shapes: [*, in1], [*, in2] → [*, out]
--   print(table.concat(nn.Bilinear(2, 3, 4)(T.ones(5, 2), T.ones(5, 3)):shape(), " "))  --> 5 4
local Bilinear = class "Bilinear"

local bilinear_spec = options.spec("nn.Bilinear", {
  { "in1_features", "count" }, { "in2_features", "count" }, { "out_features", "count" }, { "bias", "bool",
    true } })

function Bilinear:init(...)
  local a = read(bilinear_spec, ...)
  self.in1_features, self.in2_features, self.out_features = a.in1_features, a.in2_features, a.out_features
  local bound = 1 / math.sqrt(a.in1_features)
  self.weight = Parameter(T.empty { a.out_features, a.in1_features, a.in2_features })
  init.uniform_(self.weight, -bound, bound)
  if a.bias then
    self.bias = Parameter(T.empty { a.out_features })
    init.uniform_(self.bias, -bound, bound)
  end
end

function Bilinear:forward(x1, x2)
  local O, I1, I2 = self.out_features, self.in1_features, self.in2_features
  -- [*, O*I2] = x1 W, then the sum over I2 with x2.
  local w = self.weight:transpose(1, 2):reshape(I1, O * I2)
  local y = (x1:matmul(w):unflatten(-1, { O, I2 }) * x2:unsqueeze(-2)):sum(-1)
  return self.bias and y + self.bias or y
end

function Bilinear:extra_repr()
  return ("in1_features=%d, in2_features=%d, out_features=%d, bias=%s"):format(self.in1_features,
    self.in2_features, self.out_features, tostring(self.bias ~= nil))
end

return { Linear = Linear, Bilinear = Bilinear }
