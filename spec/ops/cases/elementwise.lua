-- SPDX-License-Identifier: MIT
-- Elementwise ops. Rows of spec/ops/cases.lua; their fields: spec/ops/rows.lua.

local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local unary, binary, golden, rand, ints, bools =
  rows.unary, rows.binary, rows.golden, rows.rand,
  rows.ints, rows.bools
local exp, log, abs, sqrt = math.exp, math.log, math.abs, math.sqrt

local R = {}

local function tanh(x) return (exp(2 * x) - 1) / (exp(2 * x) + 1) end
local function sigmoid(x) return 1 / (1 + exp(-x)) end
local function softplus(x) return log(1 + exp(x)) end

-- ---- elementwise, one input ---------------------------------------------------------------------

R.neg = unary(function(x) return -x end)
R.abs = unary(abs, 0.1, 2)
R.sign = unary(function(x) return x > 0 and 1 or x < 0 and -1 or 0 end, 0.2, 2)
R.floor = unary(function(x) return math.floor(x) + 0.0 end, 0.1, 0.9)
R.ceil = unary(function(x) return math.ceil(x) + 0.0 end, 0.1, 0.9)
R.trunc = unary(function(x) return x < 0 and math.ceil(x) + 0.0 or math.floor(x) + 0.0 end, 1.1, 1.9)
R.round = unary(function(x) return math.floor(x + 0.5) + 0.0 end, 0.6, 1.4)
R.frac = unary(function(x) return x - math.floor(x) end, 1.1, 1.9)
R.square = unary(function(x) return x * x end)
R.one_minus_square = unary(function(x) return (1 - x) * (1 + x) end)
R.sqrt = unary(sqrt, 0.2, 3)
R.rsqrt = unary(function(x) return 1 / sqrt(x) end, 0.2, 3)
R.reciprocal = unary(function(x) return 1 / x end, 0.3, 2)
R.exp = unary(exp, -2, 2)
R.exp2 = unary(function(x) return 2.0 ^ x end, -2, 2)
R.expm1 = unary(function(x) return exp(x) - 1 end, -2, 2)
R.log = unary(log, 0.2, 3)
R.log2 = unary(function(x) return log(x, 2) end, 0.2, 3)
R.log10 = unary(function(x) return log(x, 10) end, 0.2, 3)
R.log1p = unary(function(x) return log(1 + x) end, -0.7, 3)
R.sin, R.cos, R.tan = unary(math.sin, -3, 3), unary(math.cos, -3, 3), unary(math.tan, -1, 1)
R.asin, R.acos, R.atan = unary(math.asin, -0.8, 0.8), unary(math.acos, -0.8, 0.8), unary(math.atan, -3, 3)
R.sinh = unary(function(x) return (exp(x) - exp(-x)) / 2 end)
R.cosh = unary(function(x) return (exp(x) + exp(-x)) / 2 end)
R.tanh = unary(tanh, -2, 2)
R.asinh = unary(function(x) return log(x + sqrt(x * x + 1)) end)
R.acosh = unary(function(x) return log(x + sqrt(x * x - 1)) end, 1.2, 3)
R.atanh = unary(function(x) return log((1 + x) / (1 - x)) / 2 end, -0.8, 0.8)
R.erf, R.erfc = unary(nil, -2, 2, { golden = true }), unary(nil, -2, 2, { golden = true })
R.erfinv = unary(nil, -0.8, 0.8, { golden = true })
R.lgamma = unary(nil, 0.5, 3, { golden = true })
R.digamma = unary(nil, 0.5, 3, { golden = true })
R.sinc = unary(function(x) return math.sin(math.pi * x) / (math.pi * x) end, 0.1, 2)
R.sigmoid = unary(sigmoid, -3, 3)
R.logit = unary(function(x) return log(x / (1 - x)) end, 0.1, 0.9)
R.polygamma = { args = function(g) return rand(g, { 3, 4 }, 0.5, 3), 1 end, tol = 1e-8,
  -- the second derivative of log gamma: sum of 1 / (x + k)^2, its tail by Euler and Maclaurin
  ref = function(x)
    return oracle.pointwise(function(v)
      local s = 0.0
      for k = 0, 999 do s = s + 1 / (v + k) ^ 2 end
      local y = v + 1000
      return s + 1 / y + 1 / (2 * y * y) + 1 / (6 * y ^ 3)
    end)(x)
  end }
R.signbit = unary(function(x) return x < 0 and 1 or 0 end)
R.cast = golden(function(g) return rand(g, { 3, 4 }), { dtype = "f32" } end, { golden = "to", gtol = 1e-3,
  skip_grad = "f32 results are too coarse for difference quotients" })
R.isnan = unary(function() return 0 end)
R.isinf = unary(function() return 0 end)
R.isfinite = unary(function() return 1 end)
R.logical_not = unary(function() return 0 end, 0.5, 1)
R.bitwise_not = { args = function(g) return ints(g, { 3, 4 }, -9, 9) end,
  ref = oracle.pointwise(function(x) return ~x end) }
R.nan_to_num = unary(function(x) return x end)
R.clamp = {
  args = function(g) return rand(g, { 3, 4 }, -2, 2), { min = -0.5, max = 0.7 } end,
  more = { function(g) return rand(g, { 5 }, -2, 2), { min = 0 } end },
  ref = function(x, o)
    return oracle.pointwise(function(v)
      return math.min(math.max(v, o.min or -math.huge), o.max or math.huge)
    end)(x)
  end,
}

R.clamp_tensor = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }, -1, -0.5), rand(g, { 4 }, 0.5, 1) end,
  ref = oracle.pointwise(function(x, lo, hi) return math.min(math.max(x, lo), hi) end) }

-- ---- activations --------------------------------------------------------------------------------

R.relu = unary(function(x) return math.max(x, 0.0) end)
R.relu6 = unary(function(x) return math.min(math.max(x, 0.0), 6.0) end, -2, 5)
R.leaky_relu = unary(function(x) return x > 0 and x or 0.01 * x end)
R.elu = unary(function(x) return x > 0 and x or exp(x) - 1 end)
R.celu = unary(function(x) return x > 0 and x or exp(x) - 1 end)
R.selu = unary(function(x)
  return 1.0507009873554805 * (x > 0 and x or 1.6732632423543772 * (exp(x) - 1))
end)
R.silu = unary(function(x) return x * sigmoid(x) end)
R.mish = unary(function(x) return x * tanh(softplus(x)) end)
R.softplus = unary(softplus)
R.logsigmoid = unary(function(x) return -softplus(-x) end)
R.softsign = unary(function(x) return x / (1 + abs(x)) end, 0.1, 2)
R.tanhshrink = unary(function(x) return x - tanh(x) end)
R.hardtanh = unary(function(x) return math.min(math.max(x, -1.0), 1.0) end, -0.9, 0.9)
R.hardsigmoid = unary(function(x) return x / 6 + 0.5 end, -2, 2)
R.hardswish = unary(function(x) return x * (x / 6 + 0.5) end, -2, 2)
R.hardshrink = unary(function(x) return abs(x) > 0.5 and x or 0.0 end, 0.6, 2)
R.softshrink = unary(function(x) return x - 0.5 end, 0.6, 2)
R.gelu = unary(nil, -2, 2, { golden = true })
R.prelu_core = binary(function(x, w) return x > 0 and x or w * x end, 0.2, 2)
R.threshold = golden(function(g) return rand(g, { 3, 4 }, -2, 2), { threshold = 0.05, value = -1 } end)

-- ---- elementwise, two and three inputs ----------------------------------------------------------

R.add = binary(function(a, b) return a + b end)
R.sub = binary(function(a, b) return a - b end)
R.mul = binary(function(a, b) return a * b end)
R.add_scaled = binary(function(a, b) return a + 0.5 * b end)
do
  local args = R.add_scaled.args
  R.add_scaled.args = function(g)
    local a, b = args(g)
    return a, b, { alpha = 0.5 }
  end
  for i, more in ipairs(R.add_scaled.more) do
    R.add_scaled.more[i] = function(g)
      local a, b = more(g)
      return a, b, { alpha = 0.5 }
    end
  end
  R.add_scaled.ref = function(a, b)
    return oracle.pointwise(function(x, y) return x + 0.5 * y end)(a, b)
  end
end
R.trunc_divide = binary(function(a, b) return a // b end, 0.5, 4)
R.div = binary(function(a, b) return a / b end, 0.5, 2)
R.pow = binary(function(a, b) return a ^ b end, 0.5, 2)
R.floor_divide = binary(function(a, b) return a // b end, 0.5, 4)
R.remainder = binary(function(a, b) return a % b end, 0.5, 2)
R.fmod = binary(math.fmod, 0.5, 2)
R.maximum, R.minimum = binary(math.max), binary(math.min)
R.fmax, R.fmin = binary(math.max), binary(math.min)
R.atan2 = binary(function(a, b) return math.atan(a, b) end, 0.2, 2)
-- Values of these: spec/ops/pytorch_spec.lua, which compares with PyTorch.
local compared = { why = "spec/ops/pytorch_spec.lua compares with PyTorch" }
for name, range in pairs { i0 = { -3, 3 }, i0e = { 0.3, 3 }, i1 = { -3, 3 }, i1e = { 0.3, 3 }, erfcx = { -1, 3 },
  ndtri = { 0.1, 0.9 } } do
  R[name] = unary(nil, range[1], range[2], compared)
end
local function gamma_args(g) return ints(g, { 3, 4 }, 1, 4), rand(g, { 4 }, 0.5, 4) end
for _, name in ipairs { "gammainc", "gammaincc" } do
  R[name] = { args = gamma_args, why = compared.why }
end
R.nextafter = binary(nil, 0.5, 2, compared)
R.hypot = binary(function(a, b) return sqrt(a * a + b * b) end, 0.2, 2)
R.copysign = binary(function(a, b) return b < 0 and -abs(a) or abs(a) end, 0.2, 2)
R.logaddexp = binary(function(a, b) return log(exp(a) + exp(b)) end)
R.xlogy = binary(function(a, b) return a * log(b) end, 0.3, 2)
local function predicate(f)
  return binary(function(a, b) return f(a, b) and 1 or 0 end)
end
R.eq, R.ne = predicate(function(a, b) return a == b end), predicate(function(a, b) return a ~= b end)
R.lt, R.le = predicate(function(a, b) return a < b end), predicate(function(a, b) return a <= b end)
R.gt, R.ge = predicate(function(a, b) return a > b end), predicate(function(a, b) return a >= b end)
R.logical_and = predicate(function(a, b) return a ~= 0 and b ~= 0 end)
R.logical_or = predicate(function(a, b) return a ~= 0 or b ~= 0 end)
R.logical_xor = predicate(function(a, b) return (a ~= 0) ~= (b ~= 0) end)
local function bitwise(f, hi)
  return { args = function(g) return ints(g, { 3, 4 }, 0, 9), ints(g, { 4 }, 0, hi or 9) end,
    ref = oracle.pointwise(f) }
end
R.bitwise_and = bitwise(function(a, b) return a & b end)
local function gcd(a, b)
  a, b = math.abs(a), math.abs(b)
  while b ~= 0 do a, b = b, a % b end
  return a
end
R.gcd = bitwise(gcd)
R.lcm = bitwise(function(a, b) return (a == 0 or b == 0) and 0 or math.abs(a // gcd(a, b) * b) end)
R.bitwise_or = bitwise(function(a, b) return a | b end)
R.bitwise_xor = bitwise(function(a, b) return a ~ b end)
R.bitwise_left_shift = bitwise(function(a, b) return a << b end, 5)
R.bitwise_right_shift = bitwise(function(a, b) return a >> b end, 5)
R.where = {
  args = function(g) return bools(g, { 3, 4 }), rand(g, { 3, 4 }), rand(g, { 4 }) end,
  more = { function(g) return bools(g, { 4 }), rand(g, { 3, 1 }), rand(g, {}) end },
  ref = oracle.pointwise(function(c, a, b) if c ~= 0 then return a end return b end),
}
R.lerp = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 3, 4 }), rand(g, { 3, 4 }, 0, 1) end,
  more = { function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), 0.3 end },
  ref = oracle.pointwise(function(a, b, w) return a + w * (b - a) end),
}
R.addcmul = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 3, 1 }) end,
  ref = oracle.pointwise(function(a, b, c) return a + b * c end) }
R.addcdiv = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 3, 1 }, 0.5, 2) end,
  ref = oracle.pointwise(function(a, b, c) return a + b / c end) }

return R
