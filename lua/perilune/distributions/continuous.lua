-- SPDX-License-Identifier: MIT
--- Distributions of a real number: Normal, LogNormal, HalfNormal, Uniform, Exponential, Laplace, Cauchy, HalfCauchy,
-- Gumbel, Weibull, Pareto. Densities as in Johnson, Kotz & Balakrishnan,
-- "Continuous Univariate Distributions" (1994). All are drawn by inverting the distribution function, or scaling a
-- standard draw, so that samples have gradients.
-- @module perilune.distributions.continuous
local T = require "perilune"
local base = require "perilune.distributions.base"

local class, uniform = base.class, base.uniform
local pi, log, euler = math.pi, math.log, 0.57721566490153286061
local out = {}

local location = { { "loc", "operand", 0 }, { "scale", "operand", 1 } }
local location_sets = { loc = "real", scale = "positive" }

local function define(name, args, settings)
  local C = class(name, args, settings)
  C.has_rsample = true
  out[name] = C
  return C
end

-- ---- Normal -------------------------------------------------------------------------------------------------

--- T.distributions.Normal(…) → distribution
-- loc + scale ε with ε standard normal.
--   print(T.distributions.Normal(0, 1):log_prob(0))  --> -0.9189  -- f32[] cpu
local Normal = define("Normal", location, { sets = location_sets })
Normal.support = "real"
function Normal.props.mean(d) return d.loc end
Normal.props.mode, Normal.props.median = Normal.props.mean, Normal.props.mean
function Normal.props.stddev(d) return d.scale end
function Normal.props.variance(d) return d.scale:square() end
function Normal:rsample(shape) return self.loc + self.scale * base.normal(self.loc, self:shape_of(shape)) end
--- -((x - loc)/scale)²/2 - log scale - log(2π)/2
function Normal:log_prob(x)
  x = self:value(x)
  return ((x - self.loc) / self.scale):square() * -0.5 - self.scale:log() - 0.5 * log(2 * pi)
end
function Normal:entropy() return self.scale:log() + 0.5 * (1 + log(2 * pi)) end
function Normal:cdf(x) return T.special.ndtr((self:value(x, "cdf") - self.loc) / self.scale) end
function Normal:icdf(p) return self.loc + self.scale * T.special.ndtri(self:probability(p)) end

-- ---- functions of a normal draw -----------------------------------------------------------------------------

--- T.distributions.LogNormal(…) → distribution
-- e to a normal draw.
--   print(T.distributions.LogNormal(0, 1).median)  --> 1.  -- f32[] cpu
local LogNormal = define("LogNormal", location, { sets = location_sets })
LogNormal.support = "positive"
function LogNormal.props.mean(d) return (d.loc + d.scale:square() / 2):exp() end
function LogNormal.props.mode(d) return (d.loc - d.scale:square()):exp() end
function LogNormal.props.median(d) return d.loc:exp() end
function LogNormal.props.variance(d)
  local s = d.scale:square()
  return s:expm1() * (2 * d.loc + s):exp()
end
function LogNormal:rsample(shape) return Normal.rsample(self, shape):exp() end
function LogNormal:log_prob(x)
  local l = self:value(x):log()
  return ((l - self.loc) / self.scale):square() * -0.5 - self.scale:log() - 0.5 * log(2 * pi) - l
end
function LogNormal:entropy() return Normal.entropy(self) + self.loc end
function LogNormal:cdf(x) return T.special.ndtr((self:value(x, "cdf"):log() - self.loc) / self.scale) end
function LogNormal:icdf(p) return (self.loc + self.scale * T.special.ndtri(self:probability(p))):exp() end

local scale_only = { { "scale", "operand", 1 } }

--- T.distributions.HalfNormal(…) → distribution
-- |scale ε| with ε standard normal.
--   print(T.distributions.HalfNormal(2):cdf(0))  --> 0.  -- f32[] cpu
local HalfNormal = define("HalfNormal", scale_only, { sets = { scale = "positive" } })
HalfNormal.support = "nonnegative"
function HalfNormal.props.mean(d) return d.scale * math.sqrt(2 / pi) end
function HalfNormal.props.mode(d) return T.zeros_like(d.scale) end
function HalfNormal.props.variance(d) return d.scale:square() * (1 - 2 / pi) end
function HalfNormal:rsample(shape) return (self.scale * base.normal(self.scale, self:shape_of(shape))):abs() end
function HalfNormal:log_prob(x)
  x = self:value(x)
  local y = (x / self.scale):square() * -0.5 - self.scale:log() + 0.5 * log(2 / pi)
  return T.where(x:ge(0), y, -math.huge)
end
function HalfNormal:entropy() return self.scale:log() + 0.5 * log(pi / 2) + 0.5 end
function HalfNormal:cdf(x) return (self:value(x, "cdf") / self.scale * math.sqrt(0.5)):erf() end
function HalfNormal:icdf(p) return self.scale * T.special.ndtri((self:probability(p) + 1) / 2) end

-- ---- by inversion -------------------------------------------------------------------------------------------

--- T.distributions.Uniform(…) → distribution
-- All of low <= x < high alike.
--   print(T.distributions.Uniform(0, 4):log_prob(T.tensor { 1, 5 }):exp())  --> {0.2500, 0.0000}  -- f32[2] cpu
local Uniform = define("Uniform", { { "low", "operand", 0 }, { "high", "operand", 1 } }, {})
function Uniform:init(a, who)
  base.store(self, a, who)
  if self.validate_args then
    base.check(who, "high - low", self.high - self.low, "positive")
  end
end
function Uniform.props.mean(d) return (d.low + d.high) / 2 end
function Uniform.props.mode(d) return T.full_like(d.low, 0 / 0) end
function Uniform.props.variance(d) return (d.high - d.low):square() / 12 end
function Uniform:rsample(shape)
  local u = T.rand(self:shape_of(shape), { dtype = self.low:dtype(), device = self.low:device() })
  return self.low + (self.high - self.low) * u
end
--- -log(high - low) where low <= x < high, else -inf
function Uniform:log_prob(x)
  x = self:value(x)
  local inside = x:ge(self.low):logical_and(x:lt(self.high))
  return T.where(inside, -(self.high - self.low):log(), -math.huge)
end
function Uniform:entropy() return (self.high - self.low):log() end
function Uniform:cdf(x) return ((self:value(x, "cdf") - self.low) / (self.high - self.low)):clamp(0, 1) end
function Uniform:icdf(p) return self.low + (self.high - self.low) * self:probability(p) end

--- T.distributions.Exponential(…) → distribution
-- Waiting times: rate e^(-rate x).
--   print(T.distributions.Exponential(2).mean)  --> 0.5000  -- f32[] cpu
local Exponential = define("Exponential", { { "rate", "operand", 1 } }, { sets = { rate = "positive" } })
Exponential.support = "nonnegative"
function Exponential.props.mean(d) return 1 / d.rate end
function Exponential.props.mode(d) return T.zeros_like(d.rate) end
function Exponential.props.stddev(d) return 1 / d.rate end
function Exponential.props.variance(d) return 1 / d.rate:square() end
function Exponential:rsample(shape) return -uniform(self.rate, self:shape_of(shape)):log() / self.rate end
function Exponential:log_prob(x) return self.rate:log() - self.rate * self:value(x) end
function Exponential:entropy() return 1 - self.rate:log() end
function Exponential:cdf(x) return -(-self.rate * self:value(x, "cdf")):expm1() end
function Exponential:icdf(p) return -(-self:probability(p)):log1p() / self.rate end

--- T.distributions.Laplace(…) → distribution
-- e^(-|x - loc| / scale) / (2 scale).
--   print(T.distributions.Laplace(0, 1):log_prob(0):exp())  --> 0.5000  -- f32[] cpu
local Laplace = define("Laplace", location, { sets = location_sets })
Laplace.support = "real"
function Laplace.props.mean(d) return d.loc end
Laplace.props.mode, Laplace.props.median = Laplace.props.mean, Laplace.props.mean
function Laplace.props.variance(d) return 2 * d.scale:square() end
function Laplace:icdf(p)
  local t = self:probability(p) - 0.5
  return self.loc - self.scale * t:sign() * (t:abs() * -2):log1p()
end
function Laplace:rsample(shape) return self:icdf(uniform(self.loc, self:shape_of(shape))) end
function Laplace:log_prob(x) return -(self:value(x) - self.loc):abs() / self.scale - (2 * self.scale):log() end
function Laplace:entropy() return 1 + (2 * self.scale):log() end
function Laplace:cdf(x)
  local t = (self:value(x, "cdf") - self.loc) / self.scale
  return 0.5 - 0.5 * t:sign() * (-t:abs()):expm1()
end

--- T.distributions.Cauchy(…) → distribution
-- 1 / (π scale (1 + ((x - loc)/scale)²)); it has no mean.
--   print(T.distributions.Cauchy(3, 1).median)  --> 3.  -- f32[] cpu
local Cauchy = define("Cauchy", location, { sets = location_sets })
Cauchy.support = "real"
function Cauchy.props.mean(d) return T.full_like(d.loc, 0 / 0) end
function Cauchy.props.mode(d) return d.loc end
Cauchy.props.median = Cauchy.props.mode
function Cauchy.props.variance(d) return T.full_like(d.loc, math.huge) end
function Cauchy:icdf(p) return self.loc + self.scale * (pi * (self:probability(p) - 0.5)):tan() end
function Cauchy:rsample(shape) return self:icdf(uniform(self.loc, self:shape_of(shape))) end
function Cauchy:log_prob(x)
  return -log(pi) - self.scale:log() - ((self:value(x) - self.loc) / self.scale):square():log1p()
end
function Cauchy:entropy() return (4 * pi * self.scale):log() end
function Cauchy:cdf(x) return ((self:value(x, "cdf") - self.loc) / self.scale):atan() / pi + 0.5 end

--- T.distributions.HalfCauchy(…) → distribution
-- The size of a Cauchy draw around 0.
--   print(T.distributions.HalfCauchy(1):cdf(1))  --> 0.5000  -- f32[] cpu
local HalfCauchy = define("HalfCauchy", scale_only, { sets = { scale = "positive" } })
HalfCauchy.support = "nonnegative"
function HalfCauchy.props.mean(d) return T.full_like(d.scale, math.huge) end
function HalfCauchy.props.mode(d) return T.zeros_like(d.scale) end
function HalfCauchy.props.variance(d) return T.full_like(d.scale, math.huge) end
function HalfCauchy:icdf(p) return self.scale * (pi / 2 * self:probability(p)):tan() end
function HalfCauchy:rsample(shape) return self:icdf(uniform(self.scale, self:shape_of(shape))) end
function HalfCauchy:log_prob(x)
  x = self:value(x)
  return T.where(x:ge(0), log(2 / pi) - self.scale:log() - (x / self.scale):square():log1p(), -math.huge)
end
function HalfCauchy:entropy() return (2 * pi * self.scale):log() end
function HalfCauchy:cdf(x) return (self:value(x, "cdf") / self.scale):atan() * (2 / pi) end

--- T.distributions.Gumbel(…) → distribution
-- The largest of many; loc - scale log(-log u).
--   print(T.distributions.Gumbel(1, 1).mode)  --> 1.  -- f32[] cpu
local Gumbel = define("Gumbel", location, { sets = location_sets })
Gumbel.support = "real"
function Gumbel.props.mean(d) return d.loc + d.scale * euler end
function Gumbel.props.mode(d) return d.loc end
function Gumbel.props.variance(d) return d.scale:square() * (pi * pi / 6) end
function Gumbel:icdf(p) return self.loc - self.scale * (-self:probability(p):log()):log() end
function Gumbel:rsample(shape)
  return self.loc - self.scale * (-uniform(self.loc, self:shape_of(shape)):log()):log()
end
function Gumbel:log_prob(x)
  local t = (self.loc - self:value(x)) / self.scale
  return t - t:exp() - self.scale:log()
end
function Gumbel:entropy() return self.scale:log() + (1 + euler) end
function Gumbel:cdf(x) return (-((self.loc - self:value(x, "cdf")) / self.scale):exp()):exp() end

--- T.distributions.Weibull(…) → distribution
-- scale (-log u)^(1/concentration).
--   print(T.distributions.Weibull(2, 1).mean)  --> 2.  -- f32[] cpu
local Weibull = define("Weibull", { { "scale", "operand" }, { "concentration", "operand" } },
  { sets = { scale = "positive", concentration = "positive" } })
Weibull.support = "positive"
local function gamma_of(x) return x:lgamma():exp() end
function Weibull.props.mean(d) return d.scale * gamma_of(1 + 1 / d.concentration) end
function Weibull.props.mode(d)
  local k = d.concentration
  return T.where(k:gt(1), d.scale * ((k - 1) / k):clamp(0, nil) ^ (1 / k), 0)
end
function Weibull.props.variance(d)
  return d.scale:square() * (gamma_of(1 + 2 / d.concentration) - gamma_of(1 + 1 / d.concentration):square())
end
function Weibull:rsample(shape)
  return self.scale * (-uniform(self.scale, self:shape_of(shape)):log()) ^ (1 / self.concentration)
end
function Weibull:log_prob(x)
  local k, t = self.concentration, self:value(x) / self.scale
  return k:log() - self.scale:log() + (k - 1) * t:log() - t ^ k
end
function Weibull:entropy()
  return euler * (1 - 1 / self.concentration) + (self.scale / self.concentration):log() + 1
end
function Weibull:cdf(x) return -(-(self:value(x, "cdf") / self.scale) ^ self.concentration):expm1() end
function Weibull:icdf(p) return self.scale * (-(-self:probability(p)):log1p()) ^ (1 / self.concentration) end

--- T.distributions.Pareto(…) → distribution
-- scale u^(-1/alpha): a power law from scale on.
--   print(T.distributions.Pareto(1, 3).mean)  --> 1.5000  -- f32[] cpu
local Pareto = define("Pareto", { { "scale", "operand" }, { "alpha", "operand" } },
  { sets = { scale = "positive", alpha = "positive" } })
function Pareto.props.mean(d)
  local a = d.alpha:clamp(1, nil)
  return a * d.scale / (a - 1)
end
function Pareto.props.mode(d) return d.scale end
function Pareto.props.variance(d)
  local a = d.alpha:clamp(2, nil)
  return d.scale:square() * a / ((a - 1):square() * (a - 2))
end
function Pareto:rsample(shape)
  return self.scale * uniform(self.scale, self:shape_of(shape)) ^ (-1 / self.alpha)
end
function Pareto:log_prob(x)
  x = self:value(x)
  if self.validate_args then base.check("Pareto: log_prob", "the value - scale", x - self.scale, "nonnegative") end
  return self.alpha:log() + self.alpha * self.scale:log() - (self.alpha + 1) * x:log()
end
function Pareto:entropy() return (self.scale / self.alpha):log() + (1 + 1 / self.alpha) end
function Pareto:cdf(x) return 1 - (self.scale / self:value(x, "cdf")) ^ self.alpha end
function Pareto:icdf(p) return self.scale * (1 - self:probability(p)) ^ (-1 / self.alpha) end

return out
