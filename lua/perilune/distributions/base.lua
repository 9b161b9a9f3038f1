-- SPDX-License-Identifier: MIT
--- What all distributions share: parameters that are broadcast and checked, shapes of samples, properties that are
-- computed when they are read (d.mean, d.variance, …).
--
-- The shapes are PyTorch's: of a sample it is sample_shape .. batch_shape .. event_shape, of log_prob sample_shape ..
-- batch_shape. batch_shape is that of the parameters, event_shape that of one draw.
-- @module perilune.distributions.base
local T = require "perilune"
local classes = require "perilune.classes"
local core = require "perilune.core"
local options = require "perilune.options"
local values = require "perilune.values"

local fail, describe, integer = options.fail, options.describe, options.integer
local M = {}

-- ---- shapes --------------------------------------------------------------------------------------------------------

--- A shape from nothing, a number, or a list.
function M.shape(who, v)
  if v == nil then return {} end
  local list = type(v) == "number" and { v } or v
  if type(list) ~= "table" then fail("%s: the shape must be a number or a list of sizes, got %s", who, describe(v)) end
  local out = {}
  for i, size in ipairs(list) do
    out[i] = integer(size)
    if not out[i] or out[i] < 0 then fail("%s: size %d of the shape is %s", who, i, describe(size)) end
  end
  return out
end

--- Lists one after the other.
function M.join(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

--- The sum over the last n dimensions.
function M.sum_last(x, n)
  for _ = 1, n do x = x:sum(-1) end
  return x
end

-- ---- parameters ----------------------------------------------------------------------------------------------------

-- What parameters and values must be: name → {text, test}; a test gives a bool tensor.
local sets = {
  real = { "finite or infinite, not NaN", function(x) return x:isnan():logical_not() end },
  positive = { "above 0", function(x) return x:gt(0) end },
  nonnegative = { "0 or above", function(x) return x:ge(0) end },
  unit = { "from 0 to 1", function(x) return x:ge(0):logical_and(x:le(1)) end },
  open_unit = { "between 0 and 1", function(x) return x:gt(0):logical_and(x:lt(1)) end },
  boolean = { "0 or 1", function(x) return x:eq(0):logical_or(x:eq(1)) end },
  count = { "whole numbers from 0", function(x) return x:ge(0):logical_and(x:eq(x:floor())) end },
  simplex = { "numbers from 0 that sum to 1 along the last dimension", function(x)
    return x:ge(0):all(-1):logical_and((x:sum(-1) - 1):abs():lt(1e-5))
  end },
  one_hot = { "one 1 among zeros along the last dimension", function(x)
    return x:eq(0):logical_or(x:eq(1)):all(-1):logical_and(x:sum(-1):eq(1))
  end },
}
M.sets = sets

--- Raises unless every element of x is in the set.
function M.check(who, name, x, set)
  local entry = type(set) == "table" and set or sets[set]
  if values.some(x, function(t) return entry[2](t):logical_not() end) then
    fail("%s: %s must be %s, got %s", who, name, entry[1], core.readable(x):brief())
  end
end

--- Numbers and tensors as tensors of one floating dtype: that of the first floating tensor, else the default.
function M.floats(list)
  local dtype, device
  for _, v in ipairs(list) do
    if core.is_tensor(v) then
      device = device or v:device()
      if v:is_floating_point() then dtype = dtype or v:dtype() end
    end
  end
  dtype = dtype or T.default_dtype()
  local out = {}
  for i, v in ipairs(list) do
    if not core.is_tensor(v) then
      out[i] = T.tensor(v, { dtype = dtype, device = device })
    else
      out[i] = v:is_floating_point() and v or v:to(dtype)
    end
  end
  return out
end

-- ---- classes -------------------------------------------------------------------------------------------------------

--- T.distributions.Distribution :: T.distributions.Distribution, the parent of all
-- What all have: d:sample(shape?) without gradients, d:rsample(shape?) with gradients where has_rsample, d:log_prob(x),
-- d:entropy(), d:expand(shape), d:type(); cdf, icdf, enumerate_support(expand=true), perplexity where they make sense;
-- fields mean, variance, stddev, mode, batch_shape, event_shape. Parameters are numbers or tensors and broadcast. A
-- sample has shape .. batch_shape .. event_shape, a log_prob shape .. batch_shape. Parameters and values are checked
-- unless validate_args=false is given, during T.jit's tracing or in T.vmap.
--   local d = T.distributions.Normal(T.zeros(3), 1) -- a T.distributions.Distribution
--   print(d:sample(2):describe(), d:log_prob(d:sample(2)):describe())  --> f32[2,3]	f32[2,3]
--   print(d.variance)  --> {1., 1., 1.}  -- f32[3] cpu
local Distribution = classes.class({ has_rsample = false, has_enumerate_support = false, event_dim = 0 }, "d")
M.Distribution = Distribution
local props = {}
Distribution.props = props

function props.event_shape() return {} end
function props.stddev(d) return d.variance:sqrt() end

--- The class's name.
function Distribution:type() return self.__name end

--- sample_shape .. batch_shape .. event_shape.
function Distribution:shape_of(shape)
  return M.join(M.shape("sample", shape), self.batch_shape, self.event_shape)
end

--- Draws without gradients: `d:sample()`, `d:sample(5)`, `d:sample({5, 2})`.
function Distribution:sample(shape)
  return T.no_grad(function() return self:rsample(shape) end):detach()
end

function Distribution:rsample()
  fail("%s: its samples have no gradient with respect to the parameters; use sample and log_prob", self:type())
end

for name, f in pairs {
  log_prob = function(self, _) fail("%s: there is no log_prob", self:type()) end,
  entropy = function(self) fail("%s: there is no entropy", self:type()) end,
  cdf = function(self, _) fail("%s: there is no cdf", self:type()) end,
  icdf = function(self, _) fail("%s: there is no icdf", self:type()) end,
} do Distribution[name] = f end

--- All values, [n] .. batch_shape .. event_shape; without expand [n] .. ones .. event_shape.
function Distribution:enumerate_support(expand)
  if not self.has_enumerate_support then fail("%s: there is no enumerate_support", self:type()) end
  if type(expand) == "table" then expand = options.check("enumerate_support", expand, { "expand" }).expand end
  if expand ~= nil and type(expand) ~= "boolean" then
    fail("enumerate_support: expand must be true or false, got %s", describe(expand))
  end
  local all = self:_values()
  local n, ones = all:size(1), {}
  for i = 1, #self.batch_shape do ones[i] = 1 end
  all = all:view(M.join({ n }, ones, self.event_shape))
  return expand == false and all or all:expand(M.join({ n }, self.batch_shape, self.event_shape))
end

--- A value as a tensor of the parameters' dtype and device; checked against the support.
function Distribution:value(v, who)
  local like = self:parameters()[1]
  if not core.is_tensor(v) then
    if type(v) ~= "number" and type(v) ~= "table" then
      fail("%s: a tensor or a number is wanted, got %s", who or "log_prob", describe(v))
    end
    v = T.tensor(v, { dtype = like:dtype(), device = like:device() })
  elseif not v:is_floating_point() and like:is_floating_point() then
    v = v:to(like:dtype())
  end
  local support = self.support
  if self.validate_args and support then
    M.check(self:type() .. ": " .. (who or "log_prob"), "the value", v, support)
  end
  return v
end

--- The argument of icdf.
function Distribution:probability(p)
  local like = self:parameters()[1]
  if not core.is_tensor(p) then p = T.tensor(p, { dtype = like:dtype(), device = like:device() }) end
  if self.validate_args then M.check(self:type() .. ": icdf", "the probability", p, "unit") end
  return p
end

--- The tensors that it was made of, in order.
function Distribution:parameters()
  local out = {}
  for _, name in ipairs(self.names) do
    local v = rawget(self, name)
    if v ~= nil then out[#out + 1] = v end
  end
  return out
end

--- The same distribution for a larger batch_shape, without copies.
function Distribution:expand(shape)
  local made = setmetatable({}, getmetatable(self))
  shape = M.shape("expand", shape)
  for key, v in pairs(self) do made[key] = v end
  for _, name in ipairs(self.names) do
    local v = rawget(self, name)
    if core.is_tensor(v) then
      local inner, own = self.inner[name] or 0, v:shape()
      made[name] = v:expand(M.join(shape, table.move(own, #own - inner + 1, #own, 1, {})))
    end
  end
  made.batch_shape = shape
  return made
end

function Distribution:__tostring()
  local parts = {}
  for _, name in ipairs(self.names) do
    local v = rawget(self, name)
    if core.is_tensor(v) then
      parts[#parts + 1] = ("%s: %s"):format(name, v:numel() == 1 and ("%g"):format(v:item()) or v:describe())
    end
  end
  return ("%s(%s)"):format(self:type(), table.concat(parts, ", "))
end

--- e to the entropy (of a Categorical: how many equally likely classes it is worth).
function Distribution:perplexity() return self:entropy():exp() end

-- Makes a class. args: options.spec's list, kind "operand" for parameters. `inner`: name → dimensions of the
-- parameter that belong to one draw; `sets`: name → set. C.init(self, a, who), in place of
-- store, reads the checked arguments.
--- T.distributions.Chi2(…) → distribution
-- The sum of df squared normal draws.
--   print(T.distributions.Chi2(3).mean)  --> 3.  -- f32[] cpu
function M.class(name, args, settings)
  local C = { __name = name, props = setmetatable({}, { __index = (settings.parent or Distribution).props }),
    inner = settings.inner or {}, names = settings.names or {} }
  if not settings.names then
    for i, arg in ipairs(args) do C.names[i] = arg[1] end
  end
  local who = "distributions." .. name
  local all = table.move(args, 1, #args, 1, {})
  all[#all + 1] = { "validate_args", "bool", true }
  local spec = options.spec(who, all)
  setmetatable(C, { __index = settings.parent or Distribution, __call = function(_, ...)
    local a = options.read(spec, ...)
    local self = setmetatable({ validate_args = a.validate_args }, C)
    local init = C.init
    if init then
      init(self, a, who)
    else
      M.store(self, a, who)
    end
    return self
  end })
  classes.class(C, "d")
  C.sets = settings.sets or {}
  C.who = who
  C.__tostring = Distribution.__tostring
  C.__index = function(self, key)
    local p = C.props[key]
    if p then return p(self) end
    return C[key]
  end
  return C
end

--- Broadcasts the parameters against each other, checks and stores them; sets batch_shape. `a`: name → number or
-- tensor.
function M.store(self, a, who)
  local list, names = {}, {}
  for _, name in ipairs(self.names) do
    if a[name] ~= nil then
      list[#list + 1], names[#names + 1] = a[name], name
    end
  end
  list = M.floats(list)
  local shapes = {}
  for i, v in ipairs(list) do
    local own, inner = v:shape(), self.inner[names[i]] or 0
    if #own < inner then fail("%s: %s needs at least %d dimensions, got %s", who, names[i], inner, describe(v)) end
    shapes[i] = table.move(own, 1, #own - inner, 1, {})
  end
  local ok, batch = core.attempt(T.broadcast_shapes, table.unpack(shapes))
  if not ok then fail("%s: the parameters do not broadcast against each other", who) end
  for i, v in ipairs(list) do
    local own, inner = v:shape(), self.inner[names[i]] or 0
    if self.validate_args and self.sets[names[i]] then M.check(who, names[i], v, self.sets[names[i]]) end
    local want = M.join(batch, table.move(own, #own - inner + 1, #own, 1, {}))
    self[names[i]] = table.concat(own, ",") == table.concat(want, ",") and v or v:expand(want)
  end
  self.batch_shape = batch
end

--- The least normal numbers, and half of what is between 1 and the next number, by dtype.
M.least = { f64 = 2.0 ^ -1022, f32 = 2.0 ^ -126, bf16 = 2.0 ^ -126, f16 = 2.0 ^ -14 }
local margin = { f64 = 2.0 ^ -53, f32 = 2.0 ^ -24, bf16 = 2.0 ^ -8, f16 = 2.0 ^ -11 }

--- What is between 0 and 1, though it was rounded to one of them: those have no logit.
function M.below_one(x) return x:clamp(M.least[x:dtype()], 1 - margin[x:dtype()]) end

--- Uniform draws of (0, 1): never 0, whose logarithm is infinite.
function M.uniform(like, shape)
  local u = T.rand(shape, { dtype = like:dtype(), device = like:device() })
  return u:clamp(M.least[u:dtype()], nil)
end

--- Standard normal draws.
function M.normal(like, shape) return T.randn(shape, { dtype = like:dtype(), device = like:device() }) end

return M
