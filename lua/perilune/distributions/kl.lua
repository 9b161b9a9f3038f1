-- SPDX-License-Identifier: MIT
--- The divergence of Kullback and Leibler between two distributions, E_p[log p(x) - log q(x)]: of one family, between
-- families where PyTorch has a formula, and a table where others may be added.
-- @module perilune.distributions.kl
local T = require "perilune"
local base = require "perilune.distributions.base"
local options = require "perilune.options"

local fail = options.fail
local rules = {}

local M = {}

local function name_of(v)
  local name = type(v) == "table" and rawget(v, "__name")
  return type(name) == "string" and name or nil
end

--- T.distributions.register_kl(P, Q, function(p, q) … end)
-- Adds a rule to kl_divergence for two classes.
--   T.distributions.register_kl(T.distributions.Normal, T.distributions.Laplace, function(p, q)
--     local x = p:rsample(20000)
--     return (p:log_prob(x) - q:log_prob(x)):mean(1)
--   end)
--   print(T.distributions.kl_divergence(T.distributions.Normal(), T.distributions.Laplace()):lt(0.1):item())  --> true
function M.register_kl(p, q, f)
  if not name_of(p) or not name_of(q) or type(f) ~= "function" then
    fail("distributions.register_kl: two classes and a function are wanted")
  end
  rules[name_of(p) .. " " .. name_of(q)] = f
end

--- T.distributions.kl_divergence(p, q) → tensor
-- E_p[log p(x) - log q(x)], of batch_shape: of two distributions of one family, or of two that are known together, such
-- as Gamma and Normal. Infinite where p has values that q does not.
--   local p, q = T.distributions.Normal(0, 1), T.distributions.Normal(1, 1)
--   print(T.distributions.kl_divergence(p, q))  --> 0.5000  -- f32[] cpu
function M.kl_divergence(p, q)
  for i, d in ipairs { p, q } do
    if type(d) ~= "table" or type(d.log_prob) ~= "function" or type(d.type) ~= "function" then
      fail("distributions.kl_divergence: argument #%d must be a distribution, got %s", i, options.describe(d))
    end
  end
  if p == nil or q == nil then fail("distributions.kl_divergence: two distributions are wanted") end
  local rule = rules[p:type() .. " " .. q:type()]
  if not rule then
    fail("distributions.kl_divergence: no rule for %s and %s; add one with register_kl, or average "
      .. "p:log_prob(x) - q:log_prob(x) over samples x of p", p:type(), q:type())
  end
  return rule(p, q)
end

local function same(name, f) rules[name .. " " .. name] = f end

local function normal(p, q)
  local ratio = (p.scale / q.scale):square()
  return 0.5 * (ratio + ((p.loc - q.loc) / q.scale):square() - 1 - ratio:log())
end
same("Normal", normal)
same("LogNormal", normal)
same("HalfNormal", function(p, q)
  local ratio = (p.scale / q.scale):square()
  return 0.5 * (ratio - 1 - ratio:log())
end)
same("Laplace", function(p, q)
  local r, d = p.scale / q.scale, (p.loc - q.loc):abs()
  return -r:log() + d / q.scale + r * (-d / p.scale):exp() - 1
end)
same("Exponential", function(p, q)
  local r = q.rate / p.rate
  return r - 1 - r:log()
end)
same("Uniform", function(p, q)
  local kl = ((q.high - q.low) / (p.high - p.low)):log()
  return T.where(q.low:gt(p.low):logical_or(q.high:lt(p.high)), math.huge, kl)
end)
local function bernoulli(p, q)
  local a = p.probs
  return a * (T.nn.F.logsigmoid(p.logits) - T.nn.F.logsigmoid(q.logits))
    + (1 - a) * (T.nn.F.logsigmoid(-p.logits) - T.nn.F.logsigmoid(-q.logits))
end
same("Bernoulli", bernoulli)
same("Geometric", function(p, q) return bernoulli(p, q) / p.probs end)
same("Binomial", function(p, q)
  local n, m = p.total_count, q.total_count
  if n:ne(m):any():item() then
    fail("distributions.kl_divergence: of Binomials of one total_count alone, got %s and %s", n:brief(), m:brief())
  end
  return n * bernoulli(p, q)
end)
local function categorical(p, q)
  local t = p.probs * (p.logits - q.logits)
  t = T.where(q.probs:eq(0), math.huge, t)
  return T.where(p.probs:eq(0), 0, t):sum(-1)
end
same("Categorical", categorical)
same("OneHotCategorical", categorical)
same("OneHotCategoricalStraightThrough", categorical)
same("Poisson", function(p, q) return p.rate * (p.rate:log() - q.rate:log()) - (p.rate - q.rate) end)
local function gamma(p, q)
  local a, b = p.concentration, q.concentration
  return b * (p.rate / q.rate):log() + b:lgamma() - a:lgamma() + (a - b) * a:digamma()
    + (q.rate - p.rate) * (a / p.rate)
end
same("Gamma", gamma)
same("Chi2", gamma)
same("Dirichlet", function(p, q)
  local a, b = p.concentration, q.concentration
  local total = a:sum(-1)
  return total:lgamma() - b:sum(-1):lgamma() + (b:lgamma() - a:lgamma()):sum(-1)
    + ((a - b) * (a:digamma() - total:digamma():unsqueeze(-1))):sum(-1)
end)
same("Beta", function(p, q)
  local a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
  return (a + b):lgamma() - (c + d):lgamma() + c:lgamma() + d:lgamma() - a:lgamma() - b:lgamma()
    + (a - c) * a:digamma() + (b - d) * b:digamma() + (c + d - a - b) * (a + b):digamma()
end)
--- (|Lq⁻¹ Lp|² + |Lq⁻¹ (μq - μp)|² - k)/2 + Σ log Lq_ii - Σ log Lp_ii
same("MultivariateNormal", function(p, q)
  local k = p.loc:size(-1)
  if q.loc:size(-1) ~= k then
    fail("distributions.kl_divergence: events of %d and %d numbers", k, q.loc:size(-1))
  end
  local batch = T.broadcast_shapes(p.batch_shape, q.batch_shape)
  local square = base.join(batch, { k, k })
  local lp, lq = p.scale_tril:expand(square), q.scale_tril:expand(square)
  local diff = (q.loc - p.loc):unsqueeze(-1):expand(base.join(batch, { k, 1 }))
  local both = T.linalg.solve_triangular(lq, T.cat({ lp, diff }, -1), { upper = false })
  local function logs(l) return l:diagonal { dim1 = -2, dim2 = -1 }:log():sum(-1) end
  return 0.5 * (both:square():sum(-1):sum(-1) - k) + logs(lq) - logs(lp)
end)
same("Independent", function(p, q)
  if p.n ~= q.n then fail("distributions.kl_divergence: Independents of %d and %d dimensions", p.n, q.n) end
  return base.sum_last(M.kl_divergence(p.base, q.base), p.n)
end)

-- (s_p + s_q)² + (m_p - m_q)² over 4 s_p s_q (Chyzak & Nielsen 2019); of halves, m = 0.
local function cauchy(p, q)
  local d = p.loc and (p.loc - q.loc):square() or 0
  return ((p.scale + q.scale):square() + d):log() - (4 * p.scale * q.scale):log()
end
same("Cauchy", cauchy)
same("HalfCauchy", cauchy)
same("InverseGamma", gamma) -- that of the Gammas whose inverses they are

-- ---- between families ------------------------------------------------------------------------------------------
-- -H(p) - E_p[log q(x)]: the density of q says which means of p it needs, below by the class of p, and where x may be.

local euler = 0.57721566490153286061
local function xlogx(x) return T.xlogy(x, x) end

local real = { -math.huge, math.huge }
local function positive() return 0, math.huge end
local range = {
  Normal = function() return real[1], real[2] end, Exponential = positive, Gamma = positive, Chi2 = positive,
  Beta = function() return 0, 1 end, Pareto = function(p) return p.scale, math.huge end,
  Uniform = function(p) return p.low, p.high end,
}
range.Laplace, range.Gumbel = range.Normal, range.Normal

-- E log x
local log_mean = {
  Exponential = function(p) return -euler - p.rate:log() end,
  Gamma = function(p) return p.concentration:digamma() - p.rate:log() end,
  Beta = function(p) return p.concentration1:digamma() - (p.concentration1 + p.concentration0):digamma() end,
  Pareto = function(p) return p.scale:log() + 1 / p.alpha end,
  Uniform = function(p) return (xlogx(p.high) - xlogx(p.low)) / (p.high - p.low) - 1 end,
}
log_mean.Chi2 = log_mean.Gamma

-- E e^(-x / s)
local falling_mean = {
  Normal = function(p, s) return (0.5 * (p.scale / s):square() - p.loc / s):exp() end,
  Gumbel = function(p, s) return (T.lgamma(1 + p.scale / s) - p.loc / s):exp() end,
  Exponential = function(p, s) return p.rate / (p.rate + 1 / s) end,
  Gamma = function(p, s) return (-p.concentration * (1 / (p.rate * s)):log1p()):exp() end,
  Uniform = function(p, s) return s * ((-p.low / s):exp() - (-p.high / s):exp()) / (p.high - p.low) end,
}
falling_mean.Chi2 = falling_mean.Gamma

local function log_beta(a, b) return a:lgamma() + b:lgamma() - (a + b):lgamma() end

local function gamma_density(q, p, of)
  local a, b = q.concentration, q.rate
  return a * b:log() - a:lgamma() + (a - 1) * of.log(p) - b * p.mean
end
-- E_p[log q(x)], from { log, falling }, the means above for the class of p; which of them each needs.
local densities = {
  Normal = { "", function(q, p)
    local v = q.scale:square()
    return -0.5 * (2 * math.pi * v):log() - (p.variance + (p.mean - q.loc):square()) / (2 * v)
  end },
  Exponential = { "", function(q, p) return q.rate:log() - q.rate * p.mean end },
  Gamma = { "log", gamma_density },
  Chi2 = { "log", gamma_density },
  Pareto = { "log", function(q, p, of)
    return q.alpha:log() + q.alpha * q.scale:log() - (q.alpha + 1) * of.log(p)
  end },
  Gumbel = { "falling", function(q, p, of)
    local s = q.scale
    return -s:log() - (p.mean - q.loc) / s - (q.loc / s):exp() * of.falling(p, s)
  end },
  Uniform = { "", function(q) return -(q.high - q.low):log() end },
}

-- E_p[log q(x)] of Beta densities needs E log(1 - x) as well, and that of Laplace E |x - loc|: for these alone.
local special = {
  ["Uniform Beta"] = function(q, p)
    local a, b = q.concentration1, q.concentration0
    local high, low = 1 - p.low, 1 - p.high
    local other = (xlogx(high) - xlogx(low)) / (high - low) - 1
    return (a - 1) * log_mean.Uniform(p) + (b - 1) * other - log_beta(a, b)
  end,
  ["Normal Laplace"] = function(q, p)
    local d = p.loc - q.loc
    local t = d / p.scale
    local far = math.sqrt(2 / math.pi) * p.scale * (-0.5 * t:square()):exp() + d * (math.sqrt(0.5) * t):erf()
    return -(2 * q.scale):log() - far / q.scale
  end,
}

local function unbounded(v) return v == real[1] or v == real[2] end

local function between(P, Q)
  local density, given = densities[Q], special[P .. " " .. Q]
  local of = { log = log_mean[P], falling = falling_mean[P] }
  local finite = given or density and (density[1] == "" or of[density[1]]) and density[2]
  rules[P .. " " .. Q] = function(p, q)
    local lo, hi = range[P](p)
    local from, to = range[Q](q)
    local outside = unbounded(lo) and not unbounded(from) or unbounded(hi) and not unbounded(to)
    local zero = -p:entropy() + 0 * q:entropy() -- of both batch shapes
    if outside then return T.full_like(zero, math.huge) end
    if not finite then
      fail("distributions.kl_divergence: no rule for %s and %s; add one with register_kl, or average "
        .. "p:log_prob(x) - q:log_prob(x) over samples x of p", P, Q)
    end
    local kl = -p:entropy() - finite(q, p, of)
    if unbounded(from) and unbounded(to) then return kl end
    if not unbounded(from) and not (lo == 0 and from == 0) then
      kl = T.where(T.lt(lo, from), math.huge, kl)
    end
    if not unbounded(to) and not unbounded(hi) then kl = T.where(T.gt(hi, to), math.huge, kl) end
    return kl
  end
end
for P in pairs(range) do
  for Q in pairs(range) do
    if not rules[P .. " " .. Q] then between(P, Q) end
  end
end

rules["Bernoulli Poisson"] = function(p, q) return -p:entropy() - p.probs * q.rate:log() + q.rate end
local function never(p, q) return T.full_like(0 * p.mean + 0 * q.mean, math.huge) end
rules["Poisson Bernoulli"], rules["Poisson Binomial"] = never, never

return M
