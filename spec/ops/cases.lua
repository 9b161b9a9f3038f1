-- SPDX-License-Identifier: MIT
-- One row per op of the registry: how it is called and what judges its values. A new op needs one row here;
-- spec/ops/coverage_spec.lua names the ops that lack one. Builders and the fields of a row:
-- spec/ops/rows.lua.

local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local unary, binary, reduction, scan, golden = rows.unary, rows.binary, rows.reduction, rows.scan, rows.golden
local rand, distinct, ints, bools = rows.rand, rows.distinct, rows.ints, rows.bools
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
  R.add_scaled.more = nil
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

-- ---- reductions and scans -----------------------------------------------------------------------

local sum = oracle.sum_list
local function product(l)
  local p = 1.0
  for _, v in ipairs(l) do p = p * v end
  return p
end
local function variance(l)
  local m, s = sum(l) / #l, 0.0
  for _, v in ipairs(l) do s = s + (v - m) ^ 2 end
  return s / (#l - 1)
end
local function best(better)
  return function(l)
    local k = 1
    for i, v in ipairs(l) do
      if better(v, l[k]) then k = i end
    end
    return l[k], k
  end
end
local function greater(a, b) return a > b end
local function less(a, b) return a < b end
local largest, smallest = best(greater), best(less)
local function second(f)
  return function(l) return (select(2, f(l))) end
end
local function true_count(l)
  local n = 0
  for _, v in ipairs(l) do n = n + (v ~= 0 and 1 or 0) end
  return n
end

-- Ops that choose one of several equal values have no difference quotient where stride 0 makes ties.
local chooses = { ties = true }
R.sum = reduction(sum)
R.mean = reduction(function(l) return sum(l) / #l end)
R.prod = reduction(product, nil, {
  more = { function(g) return rand(g, { 3, 4 }, 0.5, 2), { dim = 1 } end },
})
R.amax, R.amin = reduction(largest, distinct, chooses), reduction(smallest, distinct, chooses)
R.max_all = { ties = true, args = function(g) return distinct(g, { 3, 4 }) end, ref = oracle.reduce(largest) }
R.min_all = { ties = true, args = R.max_all.args, ref = oracle.reduce(smallest) }
local function along(f)
  local red = oracle.reduce(f)
  return { ties = true, args = function(g) return distinct(g, { 3, 4 }), { dim = 2 } end,
    more = { function(g) return distinct(g, { 3, 4 }), { dim = 1, keepdim = true } end },
    ref = function(x, o) return red(x, o.dim, o.keepdim) end }
end
R.max_dim, R.min_dim = along(largest), along(smallest)
R.argmax = reduction(second(largest), distinct, { golden = true })
R.argmin = reduction(second(smallest), distinct, { golden = true })
R.var = reduction(variance)
R.std = reduction(function(l) return sqrt(variance(l)) end)
R.logsumexp = reduction(function(l)
  local s = 0.0
  for _, v in ipairs(l) do s = s + exp(v) end
  return log(s)
end, nil, {
  args = function(g) return rand(g, { 3, 4 }), { dim = 2 } end,
})
R.norm = reduction(function(l)
  local s = 0.0
  for _, v in ipairs(l) do s = s + v * v end
  return sqrt(s)
end)
R.any = reduction(function(l) return true_count(l) > 0 and 1 or 0 end, bools)
R.all = reduction(function(l) return true_count(l) == #l and 1 or 0 end, bools)
R.count_nonzero = reduction(true_count, bools, { golden = true })
R.nansum = reduction(sum)
R.median = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.kthvalue = golden(function(g) return distinct(g, { 3, 5 }), { k = 2, dim = 2 } end)
R.sort = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.argsort = golden(function(g) return distinct(g, { 3, 5 }), { dim = 2 } end)
R.topk = golden(function(g) return distinct(g, { 3, 5 }), { k = 2, dim = 2 } end)
R.mode = golden(function(g) return ints(g, { 3, 5 }, 1, 3):to("f64"), { dim = 2 } end,
  { skip_grad = "a count of equal values has no difference quotient; golden gradients judge it" })
R.cumsum = scan(function(l)
  local s, out = 0.0, {}
  for i, v in ipairs(l) do
    s = s + v
    out[i] = s
  end
  return out
end)
R.cumprod = scan(function(l)
  local s, out = 1.0, {}
  for i, v in ipairs(l) do
    s = s * v
    out[i] = s
  end
  return out
end)
R.logcumsumexp = scan(function(l)
  local s, out = 0.0, {}
  for i, v in ipairs(l) do
    s = s + exp(v)
    out[i] = log(s)
  end
  return out
end)
R.cummax = golden(function(g) return distinct(g, { 3, 4 }), { dim = 2 } end)
R.cummin = golden(function(g) return distinct(g, { 3, 4 }), { dim = 2 } end)

-- ---- rows: softmax, norms, losses ---------------------------------------------------------------

R.softmax = { args = function(g) return rand(g, { 3, 4 }), { dim = -1 } end,
  more = { function(g) return rand(g, { 3, 4, 2 }), { dim = 1 } end },
  ref = function(x, o) return oracle.softmax(x, o.dim) end }
R.log_softmax = { args = function(g) return rand(g, { 3, 4 }), { dim = -1 } end,
  more = { function(g) return rand(g, { 3, 4, 2 }), { dim = 2 } end },
  ref = function(x, o) return oracle.log_softmax(x, o.dim) end }
R.layer_norm = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 4 }), { normalized_shape = 4 } end,
  more = { function(g) return rand(g, { 2, 3, 4 }), { normalized_shape = { 4 } } end },
  ref = function(x, w, b)
    if not w.data then w, b = nil, nil end
    return oracle.layer_norm(x, w, b)
  end,
}
R.rms_norm = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), { normalized_shape = 4 } end)
R.group_norm = golden(function(g)
  return rand(g, { 2, 4, 3 }), rand(g, { 4 }), rand(g, { 4 }), { num_groups = 2 }
end)
R.batch_norm = golden(function(g)
  return rand(g, { 3, 2, 2 }), nil, nil, rand(g, { 2 }), rand(g, { 2 }), { training = true }
end)
R.running_update = { args = function(g) return rand(g, { 4 }), rand(g, { 4 }) end,
  ref = oracle.pointwise(function(r, s) return r + 0.1 * (s - r) end) }
R.cross_entropy = {
  args = function(g) return rand(g, { 3, 5 }), ints(g, { 3 }, 1, 5) end,
  ref = oracle.cross_entropy,
}
R.nll_loss = {
  args = function(g) return rand(g, { 3, 5 }, -2, -0.1), ints(g, { 3 }, 1, 5) end,
  ref = function(x, t)
    local s = 0.0
    for i, k in ipairs(t.data) do s = s - x.data[(i - 1) * 5 + k] end
    return { shape = {}, data = { s / 3 } }
  end,
}
local function mean_of(f)
  return function(a, b)
    local y = oracle.pointwise(f)(a, b)
    return { shape = {}, data = { sum(y.data) / #y.data } }
  end
end
local function pair(lo, hi)
  return function(g) return rand(g, { 3, 4 }, lo, hi), rand(g, { 3, 4 }, lo, hi) end
end
R.cross_entropy_prob = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 3, 4 }, 0.1, 0.9) end,
  { golden = "cross_entropy" })
R.mse_loss = { args = pair(), ref = mean_of(function(a, b) return (a - b) ^ 2 end) }
R.l1_loss = { args = pair(), ref = mean_of(function(a, b) return abs(a - b) end) }
R.smooth_l1_loss = { args = pair(-0.4, 0.4), ref = mean_of(function(a, b) return (a - b) ^ 2 / 2 end) }
R.huber_loss = { args = pair(-0.4, 0.4), ref = mean_of(function(a, b) return (a - b) ^ 2 / 2 end) }
R.binary_cross_entropy = { args = pair(0.1, 0.9),
  ref = mean_of(function(p, t) return -(t * log(p) + (1 - t) * log(1 - p)) end) }
R.binary_cross_entropy_with_logits = { args = pair(0.1, 0.9),
  ref = mean_of(function(x, t) return softplus(x) - t * x end) }
R.kl_div = { args = pair(0.1, 0.9), ref = mean_of(function(x, t) return t * (log(t) - x) end) }

-- ---- products, convolution, pooling -------------------------------------------------------------

R.matmul = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 4, 2 }) end,
  more = { function(g) return rand(g, { 2, 1, 3, 4 }), rand(g, { 3, 4, 2 }) end },
  ref = oracle.matmul,
}
R.mm = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4, 2 }) end, ref = oracle.matmul }
R.bmm = { args = function(g) return rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end, ref = oracle.matmul }
R.mv = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 4 }) end)
R.dot = golden(function(g) return rand(g, { 4 }), rand(g, { 4 }) end)
R.outer = golden(function(g) return rand(g, { 3 }), rand(g, { 4 }) end)
R.addmm = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 3, 4 }), rand(g, { 4, 2 }) end, {
  more = { function(g)
    return rand(g, { 2 }), rand(g, { 3, 4 }), rand(g, { 4, 2 }), { beta = 0.5, alpha = 2 }
  end },
})
R.baddbmm = golden(function(g) return rand(g, { 2, 3, 2 }), rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end)
R.addmv = golden(function(g) return rand(g, { 3 }), rand(g, { 3, 4 }), rand(g, { 4 }) end)
R.addr = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 3 }), rand(g, { 2 }) end)
R.addbmm = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end)
R.linear = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 2, 4 }), rand(g, { 2 }) end, {
  more = { function(g) return rand(g, { 2, 3, 4 }), rand(g, { 2, 4 }) end },
})
R.conv2d = {
  args = function(g) return rand(g, { 2, 2, 4, 4 }), rand(g, { 3, 2, 3, 3 }), rand(g, { 3 }) end,
  more = {
    function(g)
      return rand(g, { 1, 4, 5, 5 }), rand(g, { 4, 2, 2, 2 }), rand(g, { 4 }),
        { stride = 2, padding = 1, groups = 2 }
    end,
  },
  ref = function(x, w, b, o) return oracle.conv2d(x, w, b, o) end,
}
R.max_pool2d = {
  args = function(g) return distinct(g, { 1, 2, 4, 4 }), { kernel_size = 2 } end,
  more = {
    function(g) return distinct(g, { 1, 1, 5, 5 }), { kernel_size = 3, stride = 2, padding = 1 } end,
  },
  ref = function(x, o) return oracle.max_pool2d(x, o.kernel_size, o.stride, o.padding) end,
}
local size = { { 5 }, { 4, 4 }, { 3, 3, 4 } }
local function image(channels, nd) return { 1, channels, table.unpack(size[nd]) } end
for nd = 1, 3 do
  local k = { 2, 2, 2 }
  local kernel = table.move(k, 1, nd, 1, {})
  if nd ~= 2 then
    R["conv" .. nd .. "d"] = golden(function(g)
      return rand(g, image(2, nd)), rand(g, { 3, 2, table.unpack(kernel) }), rand(g, { 3 })
    end)
  end
  R["conv_transpose" .. nd .. "d"] = golden(function(g)
    return rand(g, image(2, nd)), rand(g, { 2, 3, table.unpack(kernel) }), rand(g, { 3 }), { stride = 2 }
  end)
  if nd ~= 2 then
    R["max_pool" .. nd .. "d"] = golden(function(g) return distinct(g, image(2, nd)), { kernel_size = 2 } end)
  end
  R["avg_pool" .. nd .. "d"] = golden(function(g) return rand(g, image(2, nd)), { kernel_size = 2 } end)
  local adaptive = "adaptive_%s_pool" .. nd .. "d"
  R[adaptive:format("max")] = golden(function(g) return distinct(g, image(2, nd)), { output_size = 2 } end)
  R[adaptive:format("avg")] = golden(function(g) return rand(g, image(2, nd)), { output_size = 2 } end)
end
R.embedding = {
  args = function(g) return rand(g, { 5, 2 }), ints(g, { 2, 3 }, 1, 5) end,
  ref = function(w, ids)
    return oracle.pick(w, { 2, 3, 2 }, function(i) return { ids.data[(i[1] - 1) * 3 + i[2]], i[3] } end)
  end,
}

-- ---- shapes -------------------------------------------------------------------------------------

local function same_data(shape)
  return function(x) return { shape = shape, data = x.data } end
end
R.view = { one_layout = true, args = function(g) return rand(g, { 3, 4 }), { 2, -1 } end, ref = same_data { 2, 6 } }
R.reshape = { args = function(g) return rand(g, { 3, 4 }), { 2, -1 } end, ref = same_data { 2, 6 } }
R.flatten = { args = function(g) return rand(g, { 2, 3, 2 }), { start_dim = 2 } end,
  ref = same_data { 2, 6 } }
R.unflatten = { args = function(g) return rand(g, { 2, 6 }), { dim = 2, sizes = { 3, -1 } } end,
  ref = same_data { 2, 3, 2 } }
R.squeeze = { args = function(g) return rand(g, { 3, 1, 4 }), { dim = 2 } end, ref = same_data { 3, 4 } }
R.unsqueeze = { args = function(g) return rand(g, { 3, 4 }), { dim = 2 } end, ref = same_data { 3, 1, 4 } }
R.contiguous = { args = function(g) return rand(g, { 3, 4 }) end, ref = same_data { 3, 4 } }
R.clone = { args = function(g) return rand(g, { 3, 4 }) end, ref = same_data { 3, 4 } }
R.transpose = { args = function(g) return rand(g, { 3, 4 }), 1, 2 end,
  ref = function(x) return oracle.pick(x, { 4, 3 }, function(i) return { i[2], i[1] } end) end }
R.permute = { args = function(g) return rand(g, { 2, 3, 4 }), { 3, 1, 2 } end,
  ref = function(x) return oracle.pick(x, { 4, 2, 3 }, function(i) return { i[2], i[3], i[1] } end) end }
R.expand = { args = function(g) return rand(g, { 3, 1 }), { 2, 3, 4 } end,
  ref = function(x) return oracle.pick(x, { 2, 3, 4 }, function(i) return { i[2], 1 } end) end }
R.narrow = { args = function(g) return rand(g, { 3, 5 }), 2, 2, 3 end,
  ref = function(x) return oracle.pick(x, { 3, 3 }, function(i) return { i[1], i[2] + 1 } end) end }
R.select = { args = function(g) return rand(g, { 3, 4 }), 2, -1 end,
  ref = function(x) return oracle.pick(x, { 3 }, function(i) return { i[1], 4 } end) end }
R.flip = { args = function(g) return rand(g, { 3, 4 }), { 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 4 }, function(i) return { i[1], 5 - i[2] } end) end }
R.tile = { args = function(g) return rand(g, { 2, 3 }), { 2, 2 } end,
  ref = function(x)
    return oracle.pick(x, { 4, 6 }, function(i) return { (i[1] - 1) % 2 + 1, (i[2] - 1) % 3 + 1 } end)
  end }
R.roll = { args = function(g) return rand(g, { 3, 4 }), { shifts = 1, dims = 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 4 }, function(i) return { i[1], (i[2] - 2) % 4 + 1 } end) end }
R.diagonal = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x) return oracle.pick(x, { 3 }, function(i) return { i[1], i[1] } end) end }
R.triu = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x)
    for k = 1, 12 do if (k - 1) // 4 > (k - 1) % 4 then x.data[k] = 0.0 end end
    return x
  end }
R.tril = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x)
    for k = 1, 12 do if (k - 1) // 4 < (k - 1) % 4 then x.data[k] = 0.0 end end
    return x
  end }
R.t = { args = function(g) return rand(g, { 3, 4 }) end, ref = R.transpose.ref }
R.broadcast_to = { args = function(g) return rand(g, { 3, 1 }), { 2, 3, 4 } end, ref = R.expand.ref }
R.expand_as = { args = function(g) return rand(g, { 3, 1 }), ints(g, { 2, 3, 4 }, 1, 2) end,
  ref = R.expand.ref }
R.slice = { args = function(g) return rand(g, { 3, 5 }), { dim = 2, start = 2, length = 2, step = 2 } end,
  ref = function(x) return oracle.pick(x, { 3, 2 }, function(i) return { i[1], 2 * i[2] } end) end }
R.trace = { args = function(g) return rand(g, { 3, 4 }) end,
  ref = function(x) return { shape = {}, data = { x.data[1] + x.data[6] + x.data[11] } } end }
R.sum_to = { args = function(g) return rand(g, { 2, 3, 4 }), { shape = { 3, 1 } } end,
  ref = function(x)
    local y = oracle.reduce(sum)(x, { 1, 3 })
    return { shape = { 3, 1 }, data = y.data }
  end }
R.movedim = golden(function(g) return rand(g, { 2, 3, 4 }), 1, 3 end)
R.as_strided = golden(function(g) return rand(g, { 12 }), { 2, 3 }, { 3, 1 } end, { one_layout = true })
R.pad = golden(function(g) return rand(g, { 3, 4 }), { pad = { 1, 2 } } end)
R.unfold = golden(function(g) return rand(g, { 3, 5 }), 2, 3, 1 end)
R.repeat_interleave = golden(function(g) return rand(g, { 3, 4 }), 2 end)
R.diag_embed = golden(function(g) return rand(g, { 3, 4 }) end)
R.diag = golden(function(g) return rand(g, { 3, 4 }) end)
R.repeat_each = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 3 }, 0, 2), { dim = 1 } end,
  { golden = "repeat_interleave" })

-- ---- joining and indexing -----------------------------------------------------------------------

R.cat = { args = function(g) return { rand(g, { 2, 3 }), rand(g, { 1, 3 }) } end,
  ref = function(l)
    local data = table.move(l[1].data, 1, 6, 1, {})
    return { shape = { 3, 3 }, data = table.move(l[2].data, 1, 3, 7, data) }
  end }
R.stack = { args = function(g) return { rand(g, { 2, 3 }), rand(g, { 2, 3 }) } end,
  ref = function(l)
    local data = table.move(l[1].data, 1, 6, 1, {})
    return { shape = { 2, 2, 3 }, data = table.move(l[2].data, 1, 6, 7, data) }
  end }
R.gather = { args = function(g) return rand(g, { 3, 4 }), { dim = 2, index = ints(g, { 3, 2 }, 1, 4) } end,
  golden = true }
R.index_select = golden(function(g) return rand(g, { 3, 4 }), { dim = 1, index = ints(g, { 4 }, 1, 3) } end)
R.masked_fill = {
  args = function(g) return rand(g, { 3, 4 }), bools(g, { 4 }), 7 end,
  ref = oracle.pointwise(function(x, m, v) return m ~= 0 and v or x end),
}
R.take = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 5 }, 1, 12) end)
R.take_along_dim = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 3, 2 }, 1, 4), { dim = 2 } end)
R.one_hot = golden(function(g) return ints(g, { 4 }, 1, 3), { num_classes = 3 } end)
R.index = { args = function(g) return { rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3) } end,
  ref = function(l)
    return oracle.pick(l[1], { 2, 4 }, function(i) return { l[2].data[i[1]], i[2] } end)
  end }
R.index_put = golden(function(g) return { rand(g, { 3, 4 }), rand(g, { 2, 4 }), ints(g, { 2 }, 1, 3) },
  { accumulate = true } end)
R.masked_select = golden(function(g) return rand(g, { 3, 4 }), bools(g, { 3, 4 }) end)
R.masked_scatter = golden(function(g) return rand(g, { 3, 4 }), bools(g, { 3, 4 }), rand(g, { 12 }) end)
R.nonzero = golden(function(g) return bools(g, { 3, 4 }) end)
-- positions without repeats along dimension 2, so that the last write is no matter of order
local function columns() return function(g) return rows.permutations(g, 3, 4) end end
R.scatter = golden(function(g) return rand(g, { 3, 4 }), columns()(g), rand(g, { 3, 4 }), { dim = 2 } end)
R.scatter_add = golden(function(g)
  return rand(g, { 3, 4 }), ints(g, { 3, 4 }, 1, 4), rand(g, { 3, 4 }), { dim = 2 }
end)
R.scatter_reduce = golden(function(g)
  return rand(g, { 3, 4 }, 0.5, 2), ints(g, { 3, 4 }, 1, 4), rand(g, { 3, 4 }, 0.5, 2),
    { dim = 2, reduce = "mean" }
end)
R.index_add = golden(function(g)
  return rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3), rand(g, { 2, 4 }), { dim = 1 }
end)
R.index_copy = golden(function(g)
  return rand(g, { 3, 4 }), rows.permutations(g, 1, 3):view(3), rand(g, { 3, 4 }), { dim = 1 }
end)
R.index_fill = golden(function(g) return rand(g, { 3, 4 }), ints(g, { 2 }, 1, 3), 0.5, { dim = 1 } end)
R.searchsorted = golden(function(g) return rand(g, { 5 }):sort(), rand(g, { 3 }) end)
R.bucketize = golden(function(g) return rand(g, { 3 }), (rand(g, { 5 }):sort()) end)
R.bincount = golden(function(g) return ints(g, { 6 }, 1, 4) end)
R.isin = golden(function(g) return ints(g, { 6 }, 1, 4), ints(g, { 3 }, 1, 4) end)
R.unique = golden(function(g) return ints(g, { 6 }, 1, 4) end)

-- ---- creation, in place, random, optimizers -------------------------------------------------------

local function filled(v)
  return function() return { shape = { 2, 3 }, data = { v, v, v, v, v, v } } end
end
R.zeros = { args = function() return { 2, 3 }, { dtype = "f64" } end, ref = filled(0) }
R.ones = { args = function() return { 2, 3 }, { dtype = "f64" } end, ref = filled(1) }
R.full = { args = function() return { 2, 3 }, 7, { dtype = "f64" } end, ref = filled(7) }
R.eye = golden(function() return 3, { m = 2 } end)
R.linear_fill = { args = function() return { n = 3, start = 2, step = 0.5, dtype = "f64" } end,
  ref = function() return { shape = { 3 }, data = { 2, 2.5, 3 } } end }
R.linspace, R.logspace = golden(function() return 0.0, 1.0, 5 end), golden(function() return 0.0, 1.0, 5 end)
R.fill = { args = function(g) return rand(g, { 2, 3 }), 7 end, ref = filled(7) }
R.zero = { args = function(g) return rand(g, { 2, 3 }) end, ref = filled(0) }
R.copy = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }) end,
  ref = oracle.pointwise(function(_, b) return b end) }
local function random_op(args) return { args = args, why = "spec/random_spec.lua" } end
R.uniform = random_op(function() return 0, 1, { 2, 3 } end)
R.normal = random_op(function() return 0, 1, { 2, 3 } end)
R.randint = random_op(function() return 1, 5, { 2, 3 } end)
R.randperm = random_op(function() return 5 end)
R.bernoulli = random_op(function(g) return rand(g, { 2, 3 }, 0, 1) end)
R.multinomial = random_op(function(g) return rand(g, { 4 }, 0.1, 1), 2 end)
R.dropout = random_op(function(g) return rand(g, { 2, 3 }) end)
R.uniform_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.normal_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.exponential_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
R.randint_fill = random_op(function(g) return rand(g, { 2, 3 }), 1, 5 end)
R.bernoulli_fill = random_op(function(g) return rand(g, { 2, 3 }) end)
local function optimizer(args) return { args = args, why = "golden optim.*, spec/optim_spec.lua" } end
R.sgd_step = optimizer(function(g) return { rand(g, { 3 }), rand(g, { 3 }) }, { lr = 0.1, k = 2 } end)
R.adam_step = optimizer(function(g)
  return { rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }), rand(g, { 3 }, 0, 1) }, { step = 1, k = 4 }
end)
R.foreach_norm = { args = function(g) return { rand(g, { 3 }), rand(g, { 2, 2 }) } end,
  ref = function(l)
    local s = 0.0
    for _, t in ipairs(l) do
      for _, v in ipairs(t.data) do s = s + v * v end
    end
    return { shape = {}, data = { sqrt(s) } }
  end }
R.foreach_scale_ = optimizer(function(g) return { rand(g, { 3 }), rand(g, {}) } end)
R.foreach_scale_.one_layout = true
R.foreach_zero_ = optimizer(function(g) return { rand(g, { 3 }), rand(g, { 2 }) } end)

return R
