-- SPDX-License-Identifier: MIT
--- nn.init: fills tensors in place, without recording. Formulas: Glorot & Bengio 2010 (xavier), He et al.
-- 2015 (kaiming), Saxe et al. 2013 (orthogonal).
-- @module perilune.nn.init
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"

local state = require "perilune.nn.init_state"

local fail = options.fail
local too_many = require("perilune.surface").too_many
local init = {}

local function tensor(who, t)
  if not core.is_tensor(t) then fail("nn.init.%s: a tensor is wanted, got %s", who, options.describe(t)) end
  return t
end
local function floating(who, t)
  if not tensor(who, t):is_floating_point() then
    fail("nn.init.%s: a floating tensor is wanted, got %s", who, options.describe(t))
  end
end

-- Reads (t, a, b, …, {name=…}) into values in the order of `names`.
local function read(who, t, names, defaults, ...)
  if who == "constant_" or who == "dirac_" then tensor(who, t) else floating(who, t) end
  local n = select("#", ...)
  local last = n > 0 and select(n, ...)
  local given = type(last) == "table" and options.check("nn.init." .. who, last, names)
  if given then n = n - 1 end
  if n > #names then too_many("nn.init." .. who, { "t", table.unpack(names) }, t, ...) end
  local out = {}
  for i, name in ipairs(names) do
    local v = nil
    if i <= n then v = (select(i, ...)) end
    if given and given[name] ~= nil then
      if v ~= nil then fail("nn.init.%s: %s is given twice", who, name) end
      v = given[name]
    end
    if v == nil then v = defaults[i] end
    if type(defaults[i]) == "number" and type(v) ~= "number" then
      fail("nn.init.%s: %s must be a number, got %s", who, name, options.describe(v))
    end
    out[i] = v
  end
  return table.unpack(out, 1, #names)
end

local function quietly(t, f, ...)
  if state.off then return t end
  local _ <close> = T.no_grad()
  f(t, ...)
  return t
end

local function uniform(t, a, b) return quietly(t, t.uniform_, a, b) end
local function normal(t, mean, std) return quietly(t, t.normal_, mean, std) end

--- nn.init.uniform_(t, a=0, b=1) → t
-- Uniform on [a, b). Fills t in place, without recording.
--   print(nn.init.uniform_(T.zeros(2), 3, 3))  --> {3., 3.}  -- f32[2] cpu
function init.uniform_(t, ...)
  local a, b = read("uniform_", t, { "a", "b" }, { 0.0, 1.0 }, ...)
  if a ~= a or b ~= b or a > b then fail("nn.init.uniform_: a = %g must not exceed b = %g", a, b) end
  return uniform(t, a, b)
end

-- Normal with the given mean and standard deviation.
--- nn.init.normal_(t, mean=0, std=1) → t
-- Normal with mean and std. Fills t in place, without recording.
--   print(nn.init.normal_(T.zeros(2), 3, 0))  --> {3., 3.}  -- f32[2] cpu
function init.normal_(t, ...)
  local mean, std = read("normal_", t, { "mean", "std" }, { 0.0, 1.0 }, ...)
  if std ~= std or std < 0 then fail("nn.init.normal_: std must be a number >= 0, got %g", std) end
  return normal(t, mean, std)
end

--- nn.init.constant_(t, value) → t
-- One value everywhere. Fills t in place, without recording.
--   print(nn.init.constant_(T.zeros(2), 7))  --> {7., 7.}  -- f32[2] cpu
function init.constant_(t, ...)
  tensor("constant_", t)
  return quietly(t, t.fill_, (read("constant_", t, { "value" }, { 0.0 }, ...)))
end

--- nn.init.zeros_(t) → t
-- Zeros. Fills t in place, without recording.
--   print(nn.init.zeros_(T.ones(2)))  --> {0., 0.}  -- f32[2] cpu
function init.zeros_(t) return quietly(tensor("zeros_", t), t.fill_, 0.0) end

--- nn.init.ones_(t) → t
-- Ones. Fills t in place, without recording.
--   print(nn.init.ones_(T.zeros(2)))  --> {1., 1.}  -- f32[2] cpu
function init.ones_(t) return quietly(tensor("ones_", t), t.fill_, 1.0) end

--- nn.init.eye_(t) → t
-- The identity matrix. Fills t in place, without recording.
--   print(nn.init.eye_(T.zeros(2, 2)))
--   --> {{1., 0.},
--   -->  {0., 1.}}  -- f32[2,2] cpu
function init.eye_(t)
  if tensor("eye_", t):dim() ~= 2 then fail("nn.init.eye_: a 2-d tensor is wanted, got %d-d", t:dim()) end
  return quietly(t, t.copy_, core.device.with(t:device(), T.eye, t:size(1), t:size(2)))
end

-- Inputs and outputs of one unit: sizes 2 and 1, times the receptive field.
local function fans(who, t)
  if t:dim() < 2 then fail("nn.init.%s: needs at least 2 dimensions, got %d", who, t:dim()) end
  local field = 1
  for d = 3, t:dim() do field = field * t:size(d) end
  return t:size(2) * field, t:size(1) * field
end

local gains = { linear = 1, identity = 1, conv1d = 1, conv2d = 1, conv3d = 1, sigmoid = 1, tanh = 5 / 3,
  relu = math.sqrt(2), selu = 3 / 4 }
local gain_names = { "linear", "identity", "conv1d", "conv2d", "conv3d", "sigmoid", "tanh", "relu",
  "leaky_relu",
  "selu" }

-- The factor by which a nonlinearity's weights are scaled; `param` is leaky_relu's slope (0.01).
--- nn.init.calculate_gain(nonlinearity, param) → number
-- The factor by which a nonlinearity shrinks a normal signal.
--   print(nn.init.calculate_gain("relu"))  --> 1.4142135623731
function init.calculate_gain(nonlinearity, param)
  if param ~= nil and type(param) ~= "number" then
    fail("nn.init.calculate_gain: the slope must be a number, got %s", options.describe(param))
  end
  if nonlinearity == "leaky_relu" then
    param = param or 0.01
    return math.sqrt(2 / (1 + param * param))
  end
  return gains[nonlinearity] or
    fail("nn.init.calculate_gain: %s", options.unknown("nonlinearity", nonlinearity, gain_names))
end

--- nn.init.xavier_uniform_(t, gain=1) → t
-- Uniform within ±gain √(6/(fan_in + fan_out)) (Glorot & Bengio 2010). Fills t in place, without recording.
--   print(nn.init.xavier_uniform_(T.zeros(3, 3)):abs():le(1):all():item())  --> true
function init.xavier_uniform_(t, ...)
  local gain = read("xavier_uniform_", t, { "gain" }, { 1.0 }, ...)
  local fan_in, fan_out = fans("xavier_uniform_", t)
  local bound = gain * math.sqrt(6 / (fan_in + fan_out))
  return uniform(t, -bound, bound)
end

--- nn.init.xavier_normal_(t, gain=1) → t
-- Normal with std gain √(2/(fan_in + fan_out)). Fills t in place, without recording.
--   print(nn.init.xavier_normal_(T.zeros(3, 3)):isfinite():all():item())  --> true
function init.xavier_normal_(t, ...)
  local gain = read("xavier_normal_", t, { "gain" }, { 1.0 }, ...)
  local fan_in, fan_out = fans("xavier_normal_", t)
  return normal(t, 0.0, gain * math.sqrt(2 / (fan_in + fan_out)))
end

local function kaiming_std(who, t, ...)
  local a, mode, nonlinearity = read(who, t, { "a", "mode", "nonlinearity" }, { 0, "fan_in", "leaky_relu" },
    ...)
  local fan_in, fan_out = fans(who, t)
  local fan = mode == "fan_in" and fan_in or mode == "fan_out" and fan_out or
    fail("nn.init.%s: %s", who, options.unknown("mode", mode, { "fan_in", "fan_out" }))
  return init.calculate_gain(nonlinearity, a) / math.sqrt(math.max(fan, 1))
end

--- nn.init.kaiming_uniform_(t, a=0, mode="fan_in", nonlinearity="leaky_relu") → t
-- Uniform within ±gain √(3/fan) (He et al. 2015). Fills t in place, without recording.
--   print(nn.init.kaiming_uniform_(T.zeros(3, 3)):abs():le(1.5):all():item())  --> true
function init.kaiming_uniform_(t, ...)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, ...)
  return uniform(t, -bound, bound)
end

--- nn.init.kaiming_normal_(t, a=0, mode="fan_in", nonlinearity="leaky_relu") → t
-- Normal with std gain/√fan. Fills t in place, without recording.
--   print(nn.init.kaiming_normal_(T.zeros(3, 3)):isfinite():all():item())  --> true
function init.kaiming_normal_(t, ...)
  return normal(t, 0.0, kaiming_std("kaiming_normal_", t, ...))
end

-- Normal, drawn again where outside [a, b]: by the inverse of its distribution function, so in one pass.
--- nn.init.trunc_normal_(t, mean=0, std=1, a=-2, b=2) → t
-- Normal, drawn again outside [a, b]. Fills t in place, without recording.
--   print(nn.init.trunc_normal_(T.zeros(50), 0, 1, -0.5, 0.5):abs():le(0.5):all():item())  --> true
function init.trunc_normal_(t, ...)
  local mean, std, a, b = read("trunc_normal_", t, { "mean", "std", "a", "b" }, { 0.0, 1.0, -2.0, 2.0 }, ...)
  if std ~= std or std <= 0 then fail("nn.init.trunc_normal_: std must be a number > 0, got %g", std) end
  if a >= b then fail("nn.init.trunc_normal_: a = %g must be below b = %g", a, b) end
  local limits = T.tensor({ (a - mean) / std, (b - mean) / std }, { dtype = "f64", device = "cpu" })
  limits = T.erf(limits * math.sqrt(0.5))
  local lo, hi = limits:get(1), limits:get(2)
  return quietly(t, function()
    t:uniform_(lo, hi)
    t:erfinv_():mul_(std * math.sqrt(2)):add_(mean):clamp_(a, b)
  end)
end

-- The identity as a convolution: a one in the middle of each kernel from channel i to channel i, of each of `groups`.
--- nn.init.dirac_(t, groups=1) → t
-- The identity as a convolution: ones in the middle. Fills t in place, without recording.
--   print(nn.init.dirac_(T.zeros(1, 1, 3)))  --> {{{0., 1., 0.}}}  -- f32[1,1,3] cpu
function init.dirac_(t, ...)
  local groups = read("dirac_", t, { "groups" }, { 1 }, ...)
  local nd = t:dim()
  if nd < 3 or nd > 5 then fail("nn.init.dirac_: needs 3 to 5 dimensions, got %d", nd) end
  groups = options.integer(groups) or 0
  if groups < 1 or t:size(1) % groups ~= 0 then
    fail("nn.init.dirac_: size %d must be a multiple of groups %s", t:size(1), tostring(groups))
  end
  return quietly(t, function()
    t:zero_()
    local each = t:size(1) // groups
    for g = 0, groups - 1 do
      for i = 1, math.min(each, t:size(2)) do
        local kernel = t:select(1, g * each + i):select(1, i)
        for _ = 1, nd - 2 do kernel = kernel:select(1, kernel:size(1) // 2 + 1) end
        kernel:fill_(1)
      end
    end
  end)
end

--- nn.init.sparse_(t, sparsity, std=0.01) → t
-- Normal, with a share sparsity of each column zero. Fills t in place, without recording.
--   print(nn.init.sparse_(T.zeros(4, 2), 0.5):eq(0):sum(1))  --> {2, 2}  -- i64[2] cpu
function init.sparse_(t, ...)
  local sparsity, std = read("sparse_", t, { "sparsity", "std" }, { 0.1, 0.01 }, ...)
  if t:dim() ~= 2 then fail("nn.init.sparse_: a 2-d tensor is wanted, got %d-d", t:dim()) end
  if std ~= std or std < 0 then fail("nn.init.sparse_: std must be a number >= 0, got %g", std) end
  if not (sparsity >= 0 and sparsity <= 1) then
    fail("nn.init.sparse_: sparsity must be a number from 0 to 1, got %s", tostring(sparsity))
  end
  return quietly(t, function()
    t:normal_(0.0, std)
    local zeros = math.ceil(sparsity * t:size(1))
    for column = 1, zeros > 0 and t:size(2) or 0 do
      local rows = core.device.with(t:device(), T.randperm, t:size(1))
      t:select(2, column):index_fill_(1, rows:narrow(1, 1, zeros), 0)
    end
  end)
end

-- Rows (or columns, whichever are fewer) orthonormal, times gain; dimensions from 2 on are flattened.
--- nn.init.orthogonal_(t, gain=1) → t
-- Orthogonal rows or columns (Saxe et al. 2013). Fills t in place, without recording.
--   local q = nn.init.orthogonal_(T.zeros(2, 2))
--   print(T.allclose(q:matmul(q:t()), T.eye(2), { atol = 1e-5 }))  --> true
function init.orthogonal_(t, ...)
  local gain = read("orthogonal_", t, { "gain" }, { 1.0 }, ...)
  if t:dim() < 2 then fail("nn.init.orthogonal_: needs at least 2 dimensions, got %d", t:dim()) end
  local rows = t:size(1)
  local cols = rows > 0 and t:numel() // rows or 0
  if t:numel() == 0 then return t end
  return quietly(t, function()
    local tall = rows >= cols
    local m = T.randn(tall and rows or cols, tall and cols or rows, { dtype = "f64", device = t:device() })
    -- Modified Gram-Schmidt, twice, column by column: fine for weights, and needs no LAPACK.
    local q = {}
    for j = 1, m:size(2) do
      local v = m:select(2, j):clone()
      for _ = 1, 2 do
        for i = 1, j - 1 do v:sub_(q[i] * (q[i] * v):sum()) end
      end
      q[j] = v / v:norm()
    end
    local out = T.stack(q, tall and 2 or 1)
    t:copy_((out * gain):reshape(t:shape()))
  end)
end

return init
