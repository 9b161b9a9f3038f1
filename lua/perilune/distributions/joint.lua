-- SPDX-License-Identifier: MIT
--- Distributions made of others, and of many numbers at once: Independent, MixtureSameFamily, MultivariateNormal,
-- TransformedDistribution with its transforms, and the relaxed ones (Maddison, Mnih & Teh 2017; Jang, Gu & Poole 2017).
-- @module perilune.distributions.joint
local T = require "perilune"
local core = require "perilune.core"
local base = require "perilune.distributions.base"
local classes = require "perilune.classes"
local discrete = require "perilune.distributions.discrete"
local options = require "perilune.options"

local class, fail, describe = base.class, options.fail, options.describe
local F = T.nn.F
local log, pi = math.log, math.pi
local out = {}

local function is_distribution(v)
  return type(v) == "table" and type(v.log_prob) == "function" and type(v.batch_shape) == "table"
end

-- ---- MultivariateNormal -------------------------------------------------------------------------------------

--- T.distributions.MultivariateNormal(…) → distribution
-- loc + L ε; L from the covariance, its inverse, or given as scale_tril.
--   local d = T.distributions.MultivariateNormal(T.zeros(2), { covariance_matrix = T.tensor { { 4, 0 }, { 0, 1 } } })
--   print(d.scale_tril, d:log_prob(T.zeros(2)))
--   --> {{2., 0.},
--   -->  {0., 1.}}  -- f32[2,2] cpu	-2.5310  -- f32[] cpu
local Multi = class("MultivariateNormal", { { "loc", "operand" }, { "covariance_matrix", "operand", optional = true },
  { "precision_matrix", "operand", optional = true }, { "scale_tril", "operand", optional = true } },
  { names = { "loc", "scale_tril" }, inner = { loc = 1, scale_tril = 2 }, sets = { loc = "real" } })
out.MultivariateNormal = Multi
Multi.has_rsample, Multi.event_dim, Multi.support = true, 1, "real"

-- The Cholesky factor of a matrix; a wrong one is an error of the constructor.
local function factor(who, name, a)
  local ok, l = core.attempt(T.linalg.cholesky, a)
  if not ok then fail("%s: %s must be symmetric and positive definite, got %s", who, name, describe(a)) end
  return l
end

-- L of P⁻¹ from the precision P: with J turning the order of rows and columns, and J P J = M Mᵀ, it is J M⁻ᵀ J.
local function from_precision(who, p)
  local m = factor(who, "precision_matrix", p:flip { -2, -1 })
  local eye = T.eye(p:size(-1), { dtype = p:dtype() }):to(p:device())
  return T.linalg.solve_triangular(m:flip { -2, -1 }:transpose(-2, -1), eye, { upper = false })
end

function Multi:init(a, who)
  local given = (a.covariance_matrix and 1 or 0) + (a.precision_matrix and 1 or 0) + (a.scale_tril and 1 or 0)
  if given ~= 1 then fail("%s: one of covariance_matrix, precision_matrix and scale_tril is wanted", who) end
  local l = a.scale_tril
  local matrix = l or a.covariance_matrix or a.precision_matrix
  if type(matrix) ~= "userdata" or matrix:dim() < 2 or matrix:size(-1) ~= matrix:size(-2) then
    fail("%s: a square matrix is wanted, got %s", who, describe(matrix))
  end
  if a.covariance_matrix then
    l = factor(who, "covariance_matrix", a.covariance_matrix)
  elseif a.precision_matrix then
    l = from_precision(who, a.precision_matrix)
  elseif self.validate_args then
    base.check(who, "the diagonal of scale_tril", l:diagonal { dim1 = -2, dim2 = -1 }, "positive")
  end
  local loc = a.loc
  if type(loc) == "number" then loc = T.full({ l:size(-1) }, loc, { dtype = l:dtype(), device = l:device() }) end
  base.store(self, { loc = loc, scale_tril = l }, who)
  if self.loc:size(-1) ~= l:size(-1) then
    fail("%s: loc has %d entries and the matrix %d rows", who, self.loc:size(-1), l:size(-1))
  end
end
function Multi.props.event_shape(d) return { d.loc:size(-1) } end
function Multi.props.mean(d) return d.loc end
Multi.props.mode = Multi.props.mean
function Multi.props.variance(d) return d.scale_tril:square():sum(-1) end
function Multi.props.covariance_matrix(d) return d.scale_tril:matmul(d.scale_tril:transpose(-2, -1)) end
function Multi.props.precision_matrix(d) return T.linalg.inv(d.covariance_matrix) end
function Multi:rsample(shape)
  local eps = base.normal(self.loc, self:shape_of(shape))
  return self.loc + self.scale_tril:matmul(eps:unsqueeze(-1)):squeeze(-1)
end
local function half_log_det(d) return d.scale_tril:diagonal { dim1 = -2, dim2 = -1 }:log():sum(-1) end
--- -(|L⁻¹(x - loc)|² + k log 2π)/2 - Σ log L_ii
function Multi:log_prob(x)
  local diff = (self:value(x) - self.loc):unsqueeze(-1)
  local shape = T.broadcast_shapes(table.move(diff:shape(), 1, diff:dim() - 2, 1, {}), self.batch_shape)
  local k = self.loc:size(-1)
  local m = T.linalg.solve_triangular(self.scale_tril:expand(base.join(shape, { k, k })),
    diff:expand(base.join(shape, { k, 1 })), { upper = false })
  return m:squeeze(-1):square():sum(-1) * -0.5 - 0.5 * k * log(2 * pi) - half_log_det(self)
end
function Multi:entropy() return half_log_det(self) + 0.5 * self.loc:size(-1) * (1 + log(2 * pi)) end

-- ---- Independent, MixtureSameFamily -------------------------------------------------------------------------

local function need(who, name, v)
  if not is_distribution(v) then fail("%s: %s must be a distribution, got %s", who, name, describe(v)) end
end

--- T.distributions.Independent(…) → distribution
-- The last dimensions of the batch as parts of one draw: log_prob sums over them.
--   local d = T.distributions.Independent(T.distributions.Normal(T.zeros(3), 1), 1)
--   print(d:log_prob(T.zeros(3)))  --> -2.7568  -- f32[] cpu
local Independent = class("Independent", { { "base", "any" }, { "reinterpreted_batch_ndims", "size" } }, { names = {} })
out.Independent = Independent
function Independent:init(a, who)
  need(who, "base", a.base)
  local d, n = a.base, a.reinterpreted_batch_ndims
  local b = d.batch_shape
  if n > #b then fail("%s: %d dimensions of a batch_shape of %d", who, n, #b) end
  self.base, self.n = d, n
  self.has_rsample, self.event_dim = d.has_rsample, d.event_dim + n
  self.batch_shape = table.move(b, 1, #b - n, 1, {})
  self._event = base.join(table.move(b, #b - n + 1, #b, 1, {}), d.event_shape)
end
function Independent.props.event_shape(d) return d._event end
for _, name in ipairs { "mean", "variance", "mode" } do
  Independent.props[name] = function(d) return d.base[name] end
end
function Independent:parameters() return self.base:parameters() end
function Independent:sample(shape) return self.base:sample(shape) end
function Independent:rsample(shape) return self.base:rsample(shape) end
function Independent:log_prob(x) return base.sum_last(self.base:log_prob(x), self.n) end
function Independent:entropy() return base.sum_last(self.base:entropy(), self.n) end
function Independent:expand(shape)
  shape = base.shape("expand", shape)
  local own = self.base.batch_shape
  return Independent(self.base:expand(base.join(shape, table.move(own, #own - self.n + 1, #own, 1, {}))), self.n)
end
function Independent:__tostring() return ("Independent(%s, %d)"):format(tostring(self.base), self.n) end

--- T.distributions.MixtureSameFamily(…) → distribution
-- A draw of one component, chosen by a Categorical over the batch's last dimension.
--   local which, each = T.distributions.Categorical(T.tensor { 1, 1 }), T.distributions.Normal(T.tensor { -1, 1 }, 1)
--   local d = T.distributions.MixtureSameFamily(which, each)
--   print(d.mean, d.variance)  --> 0.  -- f32[] cpu	2.  -- f32[] cpu
local Mixture = class("MixtureSameFamily", { { "mixture_distribution", "any" }, { "component_distribution", "any" } },
  { names = {} })
out.MixtureSameFamily = Mixture
function Mixture:init(a, who)
  local m, c = a.mixture_distribution, a.component_distribution
  if not is_distribution(m) or getmetatable(m) ~= discrete.Categorical then
    fail("%s: mixture_distribution must be a Categorical, got %s", who, tostring(m))
  end
  need(who, "component_distribution", c)
  local b, k = c.batch_shape, m.num_classes
  if #b == 0 or b[#b] ~= k then
    fail("%s: %d components in the mixture, the last dimension of the components' batch_shape is %s", who, k,
      tostring(b[#b]))
  end
  self.mixture, self.component = m, c
  self.batch_shape = table.move(b, 1, #b - 1, 1, {})
  self.event_dim = #c.event_shape
end
function Mixture.props.event_shape(d) return d.component.event_shape end
function Mixture:expand(shape)
  shape = base.shape("expand", shape)
  local c = self.component
  return Mixture(self.mixture:expand(shape), c:expand(base.join(shape, { c.batch_shape[#c.batch_shape] })),
    { validate_args = self.validate_args })
end
-- The mixture's weights beside values of the components.
local function weights(d)
  local p = d.mixture.probs
  for _ = 1, d.event_dim do p = p:unsqueeze(-1) end
  return p
end
function Mixture.props.mean(d) return (weights(d) * d.component.mean):sum(-1 - d.event_dim) end
function Mixture.props.variance(d)
  local c, at = d.component, -1 - d.event_dim
  return (weights(d) * (c.variance + (c.mean - d.mean:unsqueeze(at)):square())):sum(at)
end
function Mixture:parameters() return base.join(self.mixture:parameters(), self.component:parameters()) end
function Mixture:sample(shape)
  local x, at = self.component:sample(shape), -1 - self.event_dim
  local list = base.join(base.shape("sample", shape), self.batch_shape)
  local p = self.mixture.probs
  local k = p:size(-1)
  local index = discrete.drawn(p:expand(base.join(self.batch_shape, { k })), list):unsqueeze(-1)
  for _ = 1, self.event_dim do index = index:unsqueeze(-1) end
  return x:gather(at, index:expand(base.join(list, { 1 }, self.event_shape))):squeeze(at)
end
function Mixture:log_prob(x)
  x = self.component:value(x)
  return (self.component:log_prob(x:unsqueeze(-1 - self.event_dim)) + self.mixture.logits):logsumexp(-1)
end
function Mixture:cdf(x)
  return (self.component:cdf(self.component:value(x):unsqueeze(-1)) * self.mixture.probs):sum(-1)
end
function Mixture:__tostring()
  return ("MixtureSameFamily(%s, %s)"):format(tostring(self.mixture), tostring(self.component))
end

-- ---- functions of a draw ------------------------------------------------------------------------------------

local Transform = classes.new("Transform", "transform")
-- call: y of x; inverse: x of y; slope(x, y): log |dy/dx|. All elementwise and rising or falling.
--- T.distributions.AffineTransform(…) → transform
-- loc + scale x, for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.AffineTransform()
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu

--- T.distributions.ExpTransform(…) → transform
-- e^x, for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.ExpTransform()
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu

--- T.distributions.PowerTransform(…) → transform
-- x^exponent, x above 0, for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.PowerTransform(2)
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu

--- T.distributions.SigmoidTransform(…) → transform
-- 1 / (1 + e^-x), for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.SigmoidTransform()
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu

--- T.distributions.SoftplusTransform(…) → transform
-- log(1 + e^x), for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.SoftplusTransform()
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu

--- T.distributions.TanhTransform(…) → transform
-- tanh x, for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).
--   local t = T.distributions.TanhTransform()
--   print(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu
local function transform(name, args, make)
  local spec = options.spec("distributions." .. name, args)
  out[name] = setmetatable({}, { __call = function(_, ...)
    local t = make(options.read(spec, ...))
    t.name = name
    return setmetatable(t, Transform)
  end })
end
Transform.__call = function(t, x) return t.call(x) end
Transform.__tostring = function(t) return t.name end
function Transform:inv(y) return self.inverse(y) end
function Transform:log_abs_det_jacobian(x, y) return self.slope(x, y) end

transform("AffineTransform", { { "loc", "operand", 0 }, { "scale", "operand", 1 } }, function(a)
  return { call = function(x) return a.loc + a.scale * x end, inverse = function(y) return (y - a.loc) / a.scale end,
    slope = function(x)
      local s = type(a.scale) == "number" and T.full_like(x, a.scale) or a.scale + T.zeros_like(x)
      return s:abs():log()
    end, sign = function() return T.sign(a.scale) end,
    operands = { a.loc, a.scale } }
end)
transform("ExpTransform", {}, function()
  return { call = T.exp, inverse = T.log, slope = function(x) return x end }
end)
transform("PowerTransform", { { "exponent", "operand" } }, function(a)
  return { call = function(x) return x ^ a.exponent end, inverse = function(y) return y ^ (1 / a.exponent) end,
    slope = function(x, y) return (a.exponent * y / x):abs():log() end,
    sign = function() return T.sign(a.exponent) end, operands = { a.exponent } }
end)
transform("SigmoidTransform", {}, function()
  return { call = function(x) return base.below_one(T.sigmoid(x)) end,
    inverse = function(y)
      return T.where(y:lt(0):logical_or(y:gt(1)), 0 / 0, base.below_one(y):logit())
    end, slope = function(x) return -F.softplus(-x) - F.softplus(x) end }
end)
transform("TanhTransform", {}, function()
  return { call = T.tanh, inverse = T.atanh, slope = function(x) return 2 * (log(2) - x - F.softplus(-2 * x)) end }
end)
transform("SoftplusTransform", {}, function()
  return { call = F.softplus, inverse = function(y) return (-(-y):expm1()):log() + y end,
    slope = function(x) return -F.softplus(-x) end }
end)

--- T.distributions.TransformedDistribution(…) → distribution
-- A draw of base through a transform, or a list of them, first to last.
--   local steps = { T.distributions.AffineTransform(1, 2), T.distributions.ExpTransform() }
--   local d = T.distributions.TransformedDistribution(T.distributions.Normal(0, 1), steps)
--   print(d:log_prob(1))  --> -1.7371  -- f32[] cpu
local Transformed = class("TransformedDistribution", { { "base", "any" }, { "transforms", "any" } }, { names = {} })
out.TransformedDistribution = Transformed
function Transformed:init(a, who)
  need(who, "base", a.base)
  local list = getmetatable(a.transforms) == Transform and { a.transforms } or a.transforms
  if type(list) ~= "table" or #list == 0 then fail("%s: a transform, or a list of them, is wanted", who) end
  for i, t in ipairs(list) do
    if getmetatable(t) ~= Transform then fail("%s: entry %d is no transform but %s", who, i, describe(t)) end
  end
  self.base, self.transforms = a.base, list
  local own = base.join(a.base.batch_shape, a.base.event_shape)
  local shapes, n = { own }, #a.base.event_shape
  for _, t in ipairs(list) do
    for _, v in ipairs(t.operands or {}) do shapes[#shapes + 1] = core.is_tensor(v) and v:shape() or {} end
  end
  local ok, all = core.attempt(T.broadcast_shapes, table.unpack(shapes))
  for k = 0, n - 1 do ok = ok and all[#all - k] == own[#own - k] end
  if not ok then fail("%s: the transforms' tensors do not broadcast to draws of the base", who) end
  if table.concat(all, ",") ~= table.concat(own, ",") then -- each entry has a draw of its own
    self.base = a.base:expand(table.move(all, 1, #all - n, 1, {}))
  end
  self.batch_shape, self.event_dim, self.has_rsample = self.base.batch_shape, a.base.event_dim, a.base.has_rsample
end
function Transformed:expand(shape)
  return Transformed(self.base:expand(base.shape("expand", shape)), self.transforms,
    { validate_args = self.validate_args })
end
function Transformed.props.event_shape(d) return d.base.event_shape end
function Transformed:parameters() return self.base:parameters() end
local function through(self, x)
  for _, t in ipairs(self.transforms) do x = t(x) end
  return x
end
function Transformed:sample(shape) return T.no_grad(function() return through(self, self.base:sample(shape)) end) end
function Transformed:rsample(shape) return through(self, self.base:rsample(shape)) end
--- log p(x) - Σ log |dy/dx|
function Transformed:log_prob(y)
  y = self:value(y)
  local sum
  for i = #self.transforms, 1, -1 do
    local t = self.transforms[i]
    local x = t:inv(y)
    local slope = base.sum_last(t:log_abs_det_jacobian(x, y), #self.event_shape)
    sum = sum and sum + slope or slope
    y = x
  end
  return self.base:log_prob(y) - sum
end
-- Falling transforms exchange the two sides: P(y' <= y) is 1 - P(x' <= x).
local function rising(self, p)
  for _, t in ipairs(self.transforms) do
    if t.sign then p = t.sign() * (p - 0.5) + 0.5 end
  end
  return p
end
local function of_one_number(self, name)
  if #self.event_shape > 0 then fail("TransformedDistribution:%s: events are numbers alone", name) end
end
function Transformed:cdf(y)
  of_one_number(self, "cdf")
  y = self:value(y, "cdf")
  for i = #self.transforms, 1, -1 do y = self.transforms[i]:inv(y) end
  return rising(self, self.base:cdf(y))
end
function Transformed:icdf(p)
  of_one_number(self, "icdf")
  return through(self, self.base:icdf(rising(self, self:probability(p))))
end
function Transformed:__tostring()
  local names = {}
  for i, t in ipairs(self.transforms) do names[i] = tostring(t) end
  return ("TransformedDistribution(%s, {%s})"):format(tostring(self.base), table.concat(names, ", "))
end

-- ---- relaxed ------------------------------------------------------------------------------------------------

local temperature = { "temperature", "operand" }

--- T.distributions.RelaxedBernoulli(…) → distribution
-- Between 0 and 1, near them for a small temperature (Maddison et al. 2017).
--   print(T.distributions.RelaxedBernoulli(0.5, 0.5):rsample(3):size(1))  --> 3
local Relaxed = discrete.binary("RelaxedBernoulli", { temperature, { "probs", "operand", optional = true },
  { "logits", "operand", optional = true } }, { sets = { temperature = "positive" } })
out.RelaxedBernoulli = Relaxed
Relaxed.has_rsample, Relaxed.support = true, "open_unit"
function Relaxed:rsample(shape)
  local u = base.below_one(base.uniform(self.temperature, self:shape_of(shape)))
  return base.below_one(((self.logits + u:log() - (-u):log1p()) / self.temperature):sigmoid())
end
function Relaxed:log_prob(y)
  y = self:value(y)
  local x = y:logit()
  local diff = self.logits - x * self.temperature
  return self.temperature:log() + diff - 2 * F.softplus(diff) + F.softplus(x) + F.softplus(-x)
end

--- T.distributions.RelaxedOneHotCategorical(…) → distribution
-- Softmax of logits and Gumbel noise over a temperature (Jang et al. 2017).
--   local d = T.distributions.RelaxedOneHotCategorical(0.5, { logits = T.zeros(4) })
--   print(d:rsample():size(1))  --> 4
local RelaxedOneHot = discrete.classes("RelaxedOneHotCategorical", { temperature,
  { "probs", "operand", optional = true }, { "logits", "operand", optional = true } }, {})
out.RelaxedOneHotCategorical = RelaxedOneHot
RelaxedOneHot.sets.temperature = "positive"
RelaxedOneHot.has_rsample, RelaxedOneHot.event_dim, RelaxedOneHot.support = true, 1, "simplex"
function RelaxedOneHot.props.num_classes(d) return d.logits:size(-1) end
function RelaxedOneHot.props.event_shape(d) return { d.num_classes } end
function RelaxedOneHot:rsample(shape)
  local u = base.below_one(base.uniform(self.temperature, self:shape_of(shape)))
  return ((self.logits - (-u:log()):log()) / self.temperature:unsqueeze(-1)):softmax(-1)
end
function RelaxedOneHot:log_prob(y)
  y = self:value(y)
  local k, ly, t = self.num_classes, y:log(), self.temperature
  local score = self.logits - t:unsqueeze(-1) * ly
  score = (score - score:logsumexp(-1, { keepdim = true })):sum(-1)
  return score + T.full_like(t, k):lgamma() + (k - 1) * t:log() - ly:sum(-1)
end

return out
