-- SPDX-License-Identifier: MIT
--- Activations as modules; each calls the function of the same name in nn.F.
-- @module perilune.nn.activation
local F = require "perilune.nn.functional"
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"
local simple = require "perilune.nn.simple"

local class, fail, describe, read = base.class, options.fail, options.describe, options.read
local out = {}

-- class, function, arguments in positional order; those of `inplace` also take inplace=, which overwrites the input
local inplace = {}
for name in ("ReLU ReLU6 SiLU Mish SELU Hardswish Hardsigmoid ELU CELU LeakyReLU Hardtanh Threshold"):gmatch "%S+" do
  inplace[name] = true
end

--- nn.CELU(…) → module
-- x, or alpha (e^(x/alpha) - 1) below 0.
-- Shapes: [*] → the same
--   print(nn.CELU(2)(T.tensor { -1, 1 }))  --> {-0.7869,  1.0000}  -- f32[2] cpu

--- nn.ELU(…) → module
-- x, or alpha (e^x - 1) below 0.
-- Shapes: [*] → the same
--   print(nn.ELU()(T.tensor { -1, 1 }))  --> {-0.6321,  1.0000}  -- f32[2] cpu

--- nn.GELU(…) → module
-- x Φ(x), Φ the normal distribution function; approximate="tanh" for the cheaper form.
-- Shapes: [*] → the same
--   print(nn.GELU()(T.tensor { -1, 1 }))  --> {-0.1587,  0.8413}  -- f32[2] cpu

--- nn.GLU(…) → module
-- a · sigmoid(b) of the halves a, b along dim.
-- Shapes: [*, 2n] → [*, n]
--   print(nn.GLU()(T.tensor { 2, 0 }))  --> {1.}  -- f32[1] cpu

--- nn.Hardshrink(…) → module
-- x, or 0 within ±lambd.
-- Shapes: [*] → the same
--   print(nn.Hardshrink()(T.tensor { 0.2, 1 }))  --> {0., 1.}  -- f32[2] cpu

--- nn.Hardsigmoid(…) → module
-- min(max(0, x + 3), 6) / 6.
-- Shapes: [*] → the same
--   print(nn.Hardsigmoid()(T.tensor { -4, 0, 4 }))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu

--- nn.Hardswish(…) → module
-- x min(max(0, x + 3), 6) / 6.
-- Shapes: [*] → the same
--   print(nn.Hardswish()(T.tensor { -4, 1, 4 }))  --> {-0.0000,  0.6667,  4.0000}  -- f32[3] cpu

--- nn.Hardtanh(…) → module
-- x limited to min_val … max_val.
-- Shapes: [*] → the same
--   print(nn.Hardtanh()(T.tensor { -3, 0.5 }))  --> {-1.0000,  0.5000}  -- f32[2] cpu

--- nn.LeakyReLU(…) → module
-- x, or negative_slope x below 0.
-- Shapes: [*] → the same
--   print(nn.LeakyReLU(0.1)(T.tensor { -1, 1 }))  --> {-0.1000,  1.0000}  -- f32[2] cpu

--- nn.LogSigmoid(…) → module
-- log(1 / (1 + e^-x)).
-- Shapes: [*] → the same
--   print(nn.LogSigmoid()(T.tensor { -1, 1 }))  --> {-1.3133, -0.3133}  -- f32[2] cpu

--- nn.LogSoftmax(…) → module
-- The logarithm of softmax along dim.
-- Shapes: [*] → the same
--   print(nn.LogSoftmax()(T.tensor { 0, 0 }))  --> {-0.6931, -0.6931}  -- f32[2] cpu

--- nn.Mish(…) → module
-- x tanh(softplus(x)).
-- Shapes: [*] → the same
--   print(nn.Mish()(T.tensor { -1, 1 }))  --> {-0.3034,  0.8651}  -- f32[2] cpu

--- nn.ReLU(…) → module
-- max(0, x).
-- Shapes: [*] → the same
--   print(nn.ReLU()(T.tensor { -1, 2 }))  --> {0., 2.}  -- f32[2] cpu

--- nn.ReLU6(…) → module
-- min(max(0, x), 6).
-- Shapes: [*] → the same
--   print(nn.ReLU6()(T.tensor { -1, 9 }))  --> {0., 6.}  -- f32[2] cpu

--- nn.SELU(…) → module
-- scale (x, or alpha (e^x - 1) below 0), with constants that keep mean 0 and variance 1.
-- Shapes: [*] → the same
--   print(nn.SELU()(T.tensor { -1, 1 }))  --> {-1.1113,  1.0507}  -- f32[2] cpu

--- nn.SiLU(…) → module
-- x / (1 + e^-x).
-- Shapes: [*] → the same
--   print(nn.SiLU()(T.tensor { -1, 1 }))  --> {-0.2689,  0.7311}  -- f32[2] cpu

--- nn.Sigmoid(…) → module
-- 1 / (1 + e^-x).
-- Shapes: [*] → the same
--   print(nn.Sigmoid()(T.tensor { 0, 2 }))  --> {0.5000, 0.8808}  -- f32[2] cpu

--- nn.Softmax(…) → module
-- e^x over its sum along dim.
-- Shapes: [*] → the same
--   print(nn.Softmax()(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu

--- nn.Softmin(…) → module
-- softmax of -x.
-- Shapes: [*] → the same
--   print(nn.Softmin()(T.tensor { 0, 0 }))  --> {0.5000, 0.5000}  -- f32[2] cpu

--- nn.Softplus(…) → module
-- log(1 + e^(beta x)) / beta; x itself where beta x is above threshold.
-- Shapes: [*] → the same
--   print(nn.Softplus()(T.tensor { 0, 30 }))  --> { 0.6931, 30.0000}  -- f32[2] cpu

--- nn.Softshrink(…) → module
-- x moved towards 0 by lambd.
-- Shapes: [*] → the same
--   print(nn.Softshrink()(T.tensor { 0.2, 1 }))  --> {0.0000, 0.5000}  -- f32[2] cpu

--- nn.Softsign(…) → module
-- x / (1 + |x|).
-- Shapes: [*] → the same
--   print(nn.Softsign()(T.tensor { -1, 3 }))  --> {-0.5000,  0.7500}  -- f32[2] cpu

--- nn.Tanh(…) → module
-- tanh x.
-- Shapes: [*] → the same
--   print(nn.Tanh()(T.tensor { 0, 1 }))  --> {0.0000, 0.7616}  -- f32[2] cpu

--- nn.Tanhshrink(…) → module
-- x - tanh x.
-- Shapes: [*] → the same
--   print(nn.Tanhshrink()(T.tensor { -1, 1 }))  --> {-0.2384,  0.2384}  -- f32[2] cpu

--- nn.Threshold(…) → module
-- x, or value where x is at most threshold.
-- Shapes: [*] → the same
--   print(nn.Threshold(0.5, 0)(T.tensor { 0.2, 1 }))  --> {0., 1.}  -- f32[2] cpu
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
  local all, names = table.move(args or {}, 1, #(args or {}), 1, {}), {}
  for i, arg in ipairs(args or {}) do names[i] = arg[1] end
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
    function C:forward(x) return (self.inplace and write or apply)(x, simple.current(self, names)) end
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

-- max(0, x) + weight · min(0, x) with a learned slope for all channels (or one each).
--- nn.PReLU(…) → module
-- x, or weight x below 0; one learned slope, or one a channel.
-- Shapes: [N, C, *] → the same
--   print(nn.PReLU()(T.tensor { -1, 1 }):detach())  --> {-0.2500,  1.0000}  -- f32[2] cpu
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

-- leaky_relu with random slopes in training, their mean otherwise.
--- nn.RReLU(…) → module
-- x, or a x below 0, a uniform in lower … upper for each element in training, their mean in evaluation.
-- Shapes: [*] → the same
--   print(nn.RReLU():eval()(T.tensor { -1, 1 }))  --> {-0.2292,  1.0000}  -- f32[2] cpu
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

--- nn.Softmax2d() → module
-- softmax over the channels.
-- Shapes: [N, C, H, W] → the same
--   print(nn.Softmax2d()(T.zeros(2, 1, 1)):flatten())  --> {0.5000, 0.5000}  -- f32[2] cpu
local Softmax2d = class "Softmax2d"
function Softmax2d:forward(x)
  if x:dim() ~= 3 and x:dim() ~= 4 then fail("Softmax2d: [N, C, H, W] or [C, H, W] is wanted, got %s", describe(x)) end
  return T.softmax(x, -3)
end
out.Softmax2d = Softmax2d

return out
