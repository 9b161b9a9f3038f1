-- SPDX-License-Identifier: MIT
--- Distributions of classes and counts: Bernoulli, Categorical, OneHotCategorical (also straight through), Geometric,
-- Binomial, NegativeBinomial, Poisson, Multinomial. Most take probs or logits, one of them. Classes count from 1, as
-- everywhere; counts and Bernoulli's values from 0.
-- @module perilune.distributions.discrete
local T = require "perilune"
local base = require "perilune.distributions.base"
local options = require "perilune.options"

local class, fail = base.class, options.fail
local F = T.nn.F
local out = {}

local either = { { "probs", "operand", optional = true }, { "logits", "operand", optional = true } }
local function with(...)
  local list = { ... }
  return table.move(either, 1, 2, #list + 1, list)
end

local function need_one(a, who)
  if (a.probs == nil) == (a.logits == nil) then fail("%s: one of probs and logits is wanted", who) end
end

local least = { f64 = 2.0 ^ -52, f32 = 2.0 ^ -23, bf16 = 2.0 ^ -7, f16 = 2.0 ^ -10 }
local function inside(p) return p:clamp(least[p:dtype()], 1 - least[p:dtype()]) end

-- ---- two outcomes -------------------------------------------------------------------------------------------

-- logits = log p - log(1 - p)
local function binary(name, args, settings)
  settings.sets = settings.sets or {}
  settings.sets.probs, settings.sets.logits = settings.sets.probs or "unit", "real"
  local C = class(name, args, settings)
  out[name] = C
  function C:init(a, who)
    need_one(a, who)
    base.store(self, a, who)
  end
  function C.props.probs(d) return d.logits:sigmoid() end
  function C.props.logits(d)
    local p = inside(d.probs)
    return p:log() - (-p):log1p()
  end
  return C
end
out.binary = binary

-- The cross entropy of a true share p with these logits.
local function cross(logits, p)
  return F.softplus(logits) - logits * p
end

local Bernoulli = binary("Bernoulli", either, {})
Bernoulli.has_enumerate_support, Bernoulli.support = true, "boolean"
function Bernoulli.props.mean(d) return d.probs end
function Bernoulli.props.variance(d) return d.probs * (1 - d.probs) end
function Bernoulli.props.mode(d)
  local p = d.probs
  return T.where(p:eq(0.5), 0 / 0, p:gt(0.5):to(p:dtype()))
end
function Bernoulli:sample(shape)
  return T.bernoulli(self.probs:detach():expand(self:shape_of(shape)):contiguous())
end

--- T.distributions.Bernoulli(…) → distribution
-- 1 with probability probs, else 0. logits = log(p / (1 - p)).
--   print(T.distributions.Bernoulli { logits = 0 }.mean)  --> 0.5000  -- f32[] cpu
function Bernoulli:log_prob(x)
  return -cross(self.logits, self:value(x))
end
function Bernoulli:entropy() return cross(self.logits, self.probs) end
function Bernoulli:_values()
  local p = self:parameters()[1]
  return T.tensor({ 0, 1 }, { dtype = p:dtype(), device = p:device() })
end

-- Failures before the first success.
local Geometric = binary("Geometric", either, {})
Geometric.support = "count"
function Geometric.props.mean(d) return 1 / d.probs - 1 end
function Geometric.props.mode(d) return T.zeros_like(d.probs) end
function Geometric.props.variance(d) return (1 / d.probs - 1) / d.probs end
function Geometric:sample(shape)
  local p = self.probs:detach()
  return (base.uniform(p, self:shape_of(shape)):log() / (-p):log1p()):floor()
end

--- T.distributions.Geometric(…) → distribution
-- Failures before the first success.
--   print(T.distributions.Geometric(0.25).mean)  --> 3.  -- f32[] cpu
function Geometric:log_prob(x)
  local p = self.probs
  return T.xlog1py(self:value(x), -p) + p:log()
end
function Geometric:entropy() return cross(self.logits, self.probs) / self.probs end

local Binomial = binary("Binomial", with({ "total_count", "operand", 1 }), { sets = { total_count = "count" } })
Binomial.support, Binomial.has_enumerate_support = "count", true
function Binomial.props.mean(d) return d.total_count * d.probs end
function Binomial.props.mode(d) return ((d.total_count + 1) * d.probs):floor():minimum(d.total_count) end
function Binomial.props.variance(d) return d.total_count * d.probs * (1 - d.probs) end
function Binomial:sample(shape)
  shape = self:shape_of(shape)
  local n, p = self.total_count:detach(), self.probs:detach()
  return T.binomial(n:expand(shape):contiguous(), p:expand(shape):contiguous())
end

--- T.distributions.Binomial(…) → distribution
-- Successes among total_count.
--   print(T.distributions.Binomial(2, 0.5):log_prob(T.tensor { 0, 1, 2 }):exp())
--   --> {0.2500, 0.5000, 0.2500}  -- f32[3] cpu
function Binomial:log_prob(x)
  local n, k, l = self.total_count, self:value(x), self.logits
  if self.validate_args then base.check("Binomial: log_prob", "total_count - the value", n - k, "nonnegative") end
  -- k log p + (n - k) log(1 - p): k l - n log(1 - p) would be the small difference of large terms where p is near 1
  return (n + 1):lgamma() - (k + 1):lgamma() - (n - k + 1):lgamma() - k * F.softplus(-l) - (n - k) * F.softplus(l)
end
function Binomial:_values()
  local n = self.total_count:detach()
  local most = n:max():item()
  if n:ne(most):any():item() then fail("Binomial: enumerate_support needs one total_count for all") end
  return T.arange(math.tointeger(most) + 1, { dtype = n:dtype(), device = n:device() }) - 1
end
function Binomial:entropy()
  local lp = self:log_prob(self:enumerate_support())
  return -(lp:exp() * lp):sum(1)
end

-- Successes before total_count failures.
local NegativeBinomial = binary("NegativeBinomial", with({ "total_count", "operand" }),
  { sets = { total_count = "nonnegative" } })
NegativeBinomial.support = "count"
function NegativeBinomial.props.mean(d) return d.total_count * d.logits:exp() end
function NegativeBinomial.props.mode(d) return ((d.total_count - 1) * d.logits:exp()):floor():clamp(0, nil) end
function NegativeBinomial.props.variance(d) return d.mean / (-d.logits):sigmoid() end
function NegativeBinomial:sample(shape)
  local gamma = require "perilune.distributions.gamma"
  return T.no_grad(function()
    local z = gamma.standard_gamma(self.total_count:expand(self:shape_of(shape)):contiguous())
    return T.poisson(z * self.logits:exp())
  end)
end

--- T.distributions.NegativeBinomial(…) → distribution
-- Successes before total_count failures.
--   print(T.distributions.NegativeBinomial(3, 0.5).mean)  --> 3.  -- f32[] cpu
function NegativeBinomial:log_prob(x)
  local n, k, l = self.total_count, self:value(x), self.logits
  local none = (n + k):eq(0) -- no failure is waited for: 0, where lgamma(n + k) and lgamma(n) are both infinite
  local ways = T.where(none, 0, T.where(none, 1, n + k):lgamma() - (k + 1):lgamma() - T.where(none, 1, n):lgamma())
  return n * F.logsigmoid(-l) + k * F.logsigmoid(l) + ways
end

--- T.distributions.Poisson(…) → distribution
-- Events of a mean of rate.
--   print(T.distributions.Poisson(2).variance)  --> 2.  -- f32[] cpu
local Poisson = class("Poisson", { { "rate", "operand" } }, { sets = { rate = "nonnegative" } })
out.Poisson = Poisson
Poisson.support = "count"
function Poisson.props.mean(d) return d.rate end
function Poisson.props.mode(d) return d.rate:floor() end
function Poisson.props.variance(d) return d.rate end
function Poisson:sample(shape) return T.poisson(self.rate:detach():expand(self:shape_of(shape)):contiguous()) end
function Poisson:log_prob(x)
  x = self:value(x)
  return T.xlogy(x, self.rate) - self.rate - (x + 1):lgamma()
end

-- ---- many classes -------------------------------------------------------------------------------------------

local SHARES = { "such that they can be made to sum to 1", base.sets.real[2] }

local function classes(name, args, settings)
  settings.inner = { probs = 1, logits = 1 }
  settings.sets = { probs = "nonnegative", logits = "real" }
  local C = class(name, args, settings)
  out[name] = C
  function C:init(a, who)
    need_one(a, who)
    base.store(self, a, who)
    local p, l = rawget(self, "probs"), rawget(self, "logits")
    if p then -- shares of 1; log p that sum to it
      self.probs = p / p:sum(-1, { keepdim = true })
    else
      self.logits = l - l:logsumexp(-1, { keepdim = true })
    end
    if self.validate_args then -- all 0, or some infinite
      base.check(who, p and "probs" or "logits", self.probs, SHARES)
    end
  end
  function C.props.probs(d) return d.logits:softmax(-1) end
  function C.props.logits(d) return inside(d.probs):log() end
  function C.props.num_classes(d) return d:parameters()[1]:size(-1) end
  return C
end
out.classes = classes

--- T.distributions.Categorical(…) → distribution
-- One of the classes 1 … n, by probs (of any sum) or logits along the last dimension.
--   local d = T.distributions.Categorical(T.tensor { 1, 1, 2 })
--   print(d:log_prob(3):exp(), d.mode, d:sample(5):size(1))  --> 0.5000  -- f32[] cpu	3  -- i64[] cpu	5
local Categorical = classes("Categorical", either, {})
Categorical.has_enumerate_support = true
function Categorical.props.mean(d) return T.full_like(d.probs:select(-1, 1), 0 / 0) end
Categorical.props.variance = Categorical.props.mean
function Categorical.props.mode(d) return d.probs:argmax(-1) end
-- Classes of `shape`, drawn with the probabilities p, which broadcast.
local function drawn(p, shape)
  p = p:detach()
  local wide = p:expand(base.join(shape, { p:size(-1) }))
  if wide:numel() == 0 then return T.zeros(shape, { dtype = "i64", device = p:device() }) end
  return wide:reshape(-1, p:size(-1)):multinomial(1, true):view(shape)
end
out.drawn = drawn
function Categorical:sample(shape) return drawn(self.probs, self:shape_of(shape)) end
-- Classes as i64, checked against their number.
local function chosen(self, x, who)
  local p = self:parameters()[1]
  if type(x) == "number" then x = T.tensor(x, { dtype = "i64", device = p:device() }) end
  if type(x) ~= "userdata" then
    fail("Categorical: %s: a tensor or a number is wanted, got %s", who, options.describe(x))
  end
  if self.validate_args then
    local n = p:size(-1)
    base.check("Categorical: " .. who, "the value", x, { ("a class from 1 to %d"):format(n), function(v)
      local ok = v:ge(1):logical_and(v:le(n))
      return v:is_floating_point() and ok:logical_and(v:eq(v:floor())) or ok
    end })
  end
  return x:to("i64")
end
function Categorical:log_prob(x)
  x = chosen(self, x, "log_prob"):unsqueeze(-1)
  local l, own = self.logits, x:shape()
  own[#own] = nil
  local batch = T.broadcast_shapes(own, self.batch_shape)
  local n = l:size(-1)
  return l:expand(base.join(batch, { n })):gather(-1, x:expand(base.join(batch, { 1 }))):squeeze(-1)
end

function Categorical:entropy()
  local p = self.probs
  return -(p * self.logits:clamp(p:dtype() == "f16" and -65504 or -3.3e38, nil)):sum(-1) -- 0 log 0 = 0
end
function Categorical:_values()
  local p = self:parameters()[1]
  return T.arange(p:size(-1), { device = p:device() })
end

--- T.distributions.OneHotCategorical(…) → distribution
-- The same as a vector with one 1.
--   print(T.distributions.OneHotCategorical(T.tensor { 0, 1 }):sample())  --> {0., 1.}  -- f32[2] cpu
local OneHot = classes("OneHotCategorical", either, {})
OneHot.event_dim, OneHot.support, OneHot.has_enumerate_support = 1, "one_hot", true
function OneHot.props.event_shape(d) return { d.num_classes } end
function OneHot.props.mean(d) return d.probs end
function OneHot.props.variance(d) return d.probs * (1 - d.probs) end
function OneHot.props.mode(d) return T.one_hot(d.probs:argmax(-1), d.num_classes):to(d.probs:dtype()) end
function OneHot:sample(shape)
  local index = drawn(self.probs, base.join(base.shape("sample", shape), self.batch_shape))
  return T.one_hot(index, self.num_classes):to(self.probs:dtype())
end
-- Σ x log p. Of logits by themselves: p may be 0 where its logarithm is -200.
local function likelihood(self, x)
  local l = rawget(self, "logits")
  if not l then return T.xlogy(x, self.probs):sum(-1) end
  return (x * T.where(x:eq(0), 0, l)):sum(-1)
end
function OneHot:log_prob(x) return likelihood(self, self:value(x)) end
OneHot.entropy = Categorical.entropy
function OneHot:_values()
  local p = self:parameters()[1]
  return T.eye(p:size(-1), { dtype = p:dtype() }):to(p:device())
end

-- The gradient of a sample is taken as that of probs (Bengio, Léonard & Courville 2013).
local Straight = classes("OneHotCategoricalStraightThrough", either, { parent = OneHot })
Straight.has_rsample = true

--- T.distributions.OneHotCategoricalStraightThrough(…) → distribution
-- OneHotCategorical; rsample has the gradient of probs.
--   print(T.distributions.OneHotCategoricalStraightThrough(T.tensor { 0, 1 }):rsample())  --> {0., 1.}  -- f32[2] cpu
function Straight:rsample(shape)
  local p = self.probs
  return OneHot.sample(self, shape) + (p - p:detach())
end
Straight.sample = OneHot.sample

--- T.distributions.Multinomial(…) → distribution
-- How often each class came in total_count draws.
--   print(T.distributions.Multinomial(4, T.tensor { 1, 1 }).mean)  --> {2., 2.}  -- f32[2] cpu
local Multinomial = classes("Multinomial", { { "total_count", "size", 1 }, either[1], either[2] },
  { names = { "probs", "logits" } })
Multinomial.event_dim, Multinomial.support = 1, "count"
local categories = Multinomial.init
function Multinomial:init(a, who)
  categories(self, a, who)
  self.total_count = a.total_count
end
function Multinomial.props.event_shape(d) return { d.num_classes } end
function Multinomial.props.mean(d) return d.probs * d.total_count end
function Multinomial.props.variance(d) return d.total_count * d.probs * (1 - d.probs) end
function Multinomial:sample(shape)
  local list = base.join(base.shape("sample", shape), self.batch_shape, { self.total_count })
  return T.one_hot(drawn(self.probs:unsqueeze(-2), list), self.num_classes):sum(-2):to(self.probs:dtype())
end
--- log n! - Σ log x! + Σ x log p
function Multinomial:log_prob(x)
  x = self:value(x)
  if self.validate_args then
    base.check("Multinomial: log_prob", "the value", x, { ("counts that sum to %d"):format(self.total_count),
      function(v) return v:sum(-1):eq(self.total_count) end })
  end
  return (x:sum(-1) + 1):lgamma() - (x + 1):lgamma():sum(-1) + likelihood(self, x)
end
--- n H(p) - log n! + Σ over classes and counts k of P(k) log k!, P that of Binomial(n, p)
function Multinomial:entropy()
  local n, p = self.total_count, self.probs
  local binomial = Binomial { total_count = n, probs = p, validate_args = false }
  local k = binomial:enumerate_support()
  local extra = (binomial:log_prob(k):exp() * (k + 1):lgamma()):sum(1):sum(-1)
  return n * Categorical.entropy(self) - T.tensor(n + 1.0, { dtype = "f64" }):lgamma():item() + extra
end

return out
