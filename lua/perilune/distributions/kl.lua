-- SPDX-License-Identifier: MIT
--- The divergence of Kullback and Leibler between two distributions of one family, E_p[log p(x) - log q(x)], and a
-- table where others may be added.
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
-- E_p[log p(x) - log q(x)] of two distributions of one family, of batch_shape.
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

return M
