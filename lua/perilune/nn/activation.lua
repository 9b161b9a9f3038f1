-- SPDX-License-Identifier: MIT
--- Activations as modules; each calls the function of the same name in nn.F.
-- @module perilune.nn.activation
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local class, fail, describe, read = base.class, options.fail, options.describe, options.read
local out = {}

-- class, function, arguments in positional order; those of `inplace` also take inplace=, which overwrites the input
local inplace = {}
for name in ("ReLU ReLU6 SiLU Mish SELU Hardswish Hardsigmoid ELU CELU LeakyReLU Hardtanh Threshold"):gmatch "%S+" do
  inplace[name] = true
end
local list = {
  { "ReLU", "relu" }, { "ReLU6", "relu6" }, { "Sigmoid", "sigmoid" }, { "Tanh", "tanh" }, { "SiLU", "silu" },
  { "Mish", "mish" }, { "SELU", "selu" }, { "Softsign", "softsign" }, { "Tanhshrink", "tanhshrink" },
  { "Hardswish", "hardswish" }, { "Hardsigmoid", "hardsigmoid" }, { "LogSigmoid", "logsigmoid" },
  { "GELU", "gelu", { { "approximate", { "none", "tanh" }, "none" } } },
  { "ELU", "elu", { { "alpha", "number", 1.0 } } },
  { "CELU", "celu", { { "alpha", "number", 1.0 } } },
  { "LeakyReLU", "leaky_relu", { { "negative_slope", "number", 0.01 } } },
  { "Hardtanh", "hardtanh", { { "min_val", "number", -1.0 }, { "max_val", "number", 1.0 } } },
  { "Hardshrink", "hardshrink", { { "lambd", "number", 0.5 } } },
  { "Softshrink", "softshrink", { { "lambd", "nonnegative", 0.5 } } },
  { "Softplus", "softplus", { { "beta", "number", 1.0 }, { "threshold", "number", 20.0 } } },
  { "Threshold", "threshold", { { "threshold", "number" }, { "value", "number" } } },
  { "Softmax", "softmax", { { "dim", "int", -1 } } },
  { "LogSoftmax", "log_softmax", { { "dim", "int", -1 } } },
  { "Softmin", "softmin", { { "dim", "int", -1 } } },
  { "GLU", "glu", { { "dim", "int", -1 } } },
}

local function define(name, f, args)
  local C = base.class(name)
  local apply = F[f]
  if not apply then return end
  local write = inplace[name] and T[f .. "_"]
  local all = table.move(args or {}, 1, #(args or {}), 1, {})
  if write then all[#all + 1] = { "inplace", "bool", false } end
  local spec = options.spec("nn." .. name, all)
  if not args then
    function C:init(...) self.inplace = options.read(spec, ...).inplace or nil end
    function C:forward(x) if self.inplace then return write(x) end return apply(x) end
  else
    function C:init(...)
      local a = options.read(spec, ...)
      self.inplace, a.inplace = a.inplace or nil, nil
      for key, v in pairs(a) do self[key] = v end
      self._opts = a
    end
    function C:forward(x) return (self.inplace and write or apply)(x, self._opts) end
  end
  function C:extra_repr()
    local parts = {}
    for i, arg in ipairs(args or {}) do
      local v = self[arg[1]]
      parts[i] = ("%s=%s"):format(arg[1], math.type(v) == "float" and ("%g"):format(v) or tostring(v))
    end
    if self.inplace then parts[#parts + 1] = "inplace=true" end
    return table.concat(parts, ", ")
  end
  out[name] = C
end

for _, item in ipairs(list) do define(item[1], item[2], item[3]) end

--- max(0, x) + weight · min(0, x) with a learned slope for all channels (or one each).
local PReLU = base.class "PReLU"
local prelu_spec = options.spec("nn.PReLU", { { "num_parameters", "count", 1 }, { "init", "number", 0.25 } })

function PReLU:init(...)
  local a = options.read(prelu_spec, ...)
  self.num_parameters = a.num_parameters
  self.weight = base.Parameter(T.full({ a.num_parameters }, a.init + 0.0))
end

function PReLU:forward(x) return F.prelu(x, self.weight) end
function PReLU:extra_repr() return ("num_parameters=%d"):format(self.num_parameters) end
out.PReLU = PReLU

--- leaky_relu with random slopes in training, their mean otherwise.
local RReLU = class "RReLU"
local rrelu_spec = options.spec("nn.RReLU", { { "lower", "number", 1 / 8 }, { "upper", "number", 1 / 3 } })
function RReLU:init(...)
  local a = read(rrelu_spec, ...)
  if a.lower > a.upper then fail("nn.RReLU: lower %g is above upper %g", a.lower, a.upper) end
  self.lower, self.upper = a.lower, a.upper
end
function RReLU:forward(x) return F.rrelu(x, self.lower, self.upper, self.training) end
function RReLU:extra_repr() return ("lower=%g, upper=%g"):format(self.lower, self.upper) end
out.RReLU = RReLU

--- Softmax over the channels of [N, C, H, W] (or [C, H, W]).
local Softmax2d = class "Softmax2d"
function Softmax2d:forward(x)
  if x:dim() ~= 3 and x:dim() ~= 4 then fail("Softmax2d: [N, C, H, W] or [C, H, W] is wanted, got %s", describe(x)) end
  return T.softmax(x, -3)
end
out.Softmax2d = Softmax2d

return out
