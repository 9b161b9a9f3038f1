-- SPDX-License-Identifier: MIT
--- Gamma draws and what is made of them: Gamma, Chi2, InverseGamma, Beta, Dirichlet, StudentT.
-- @module perilune.distributions.gamma
local T = require "perilune"
local core = require "perilune.core"
local base = require "perilune.distributions.base"
local options = require "perilune.options"

local class = base.class
local pi, log = math.pi, math.log
local out = {}

-- ---- draws of Gamma(α, 1) -----------------------------------------------------------------------------------

-- Marsaglia & Tsang, "A simple method for generating gamma variables" (2000): with d = α - 1/3 and x normal,
-- v = (1 + x / √(9 d))³, d v is a draw if log u < x²/2 + d - d v + d log v. Below 1 a draw of α + 1 times u^(1/α).
local function draw(alpha)
  if core.jit_tracing() or core.is_batched(alpha) then
    options.untraceable("distributions: draws of Gamma and of distributions made of it are repeated until all are "
      .. "taken, which no graph and no T.vmap can; draw outside")
  end
  local like = { dtype = "f64", device = alpha:device() }
  local a = alpha:to("f64")
  local shape, small = a:shape(), a:lt(1)
  local d = T.where(small, a + 1, a) - 1 / 3
  local c = (9 * d):rsqrt()
  local z, open = T.zeros(shape, like), T.ones(shape, { dtype = "bool", device = alpha:device() })
  for _ = 1, 1000 do -- each takes more than 95 %
    local x = T.randn(shape, like)
    local v = (1 + c * x) ^ 3
    local bound = x:square() / 2 + d - d * v + d * v:clamp(1e-300, nil):log()
    local taken = open:logical_and(v:gt(0)):logical_and(T.rand(shape, like):clamp(1e-300, nil):log():lt(bound))
    z = T.where(taken, d * v, z)
    open = open:logical_and(taken:logical_not())
    if not open:any():item() then break end
  end
  local shrink = T.rand(shape, like):clamp(1e-300, nil):log() / a
  return T.where(small, z * shrink:exp(), z)
end

-- dz/dα of a draw z that keeps its place in the distribution: -(∂P/∂α) / p(z), with P(α, z) the distribution function
-- (implicit reparametrization: Figurnov, Mohamed & Mnih 2018). ∂P/∂α by differences of fourth order, of the smaller
-- tail, in f64.
local function slope(alpha, z)
  local a, x = alpha:to("f64"), z:to("f64")
  local h = 1e-3 * a:minimum(a:sqrt())
  local left = x:lt(a)
  local function tail(at) return T.where(left, T.gammainc(at, x), -T.gammaincc(at, x)) end
  local rise = (tail(a - 2 * h) - tail(a + 2 * h) + 8 * (tail(a + h) - tail(a - h))) / (12 * h)
  return -rise / ((a - 1) * x:log() - x - a:lgamma()):exp()
end

out.slope = slope

--- Draws of Gamma(α, 1), of α's shape, whose gradient goes to α.
local standard_gamma = T.custom {
  name = "standard_gamma",
  forward = function(ctx, alpha)
    local z = draw(alpha):to(alpha:dtype()):clamp(base.least[alpha:dtype()], nil)
    ctx:save(alpha, z)
    return z
  end,
  backward = function(ctx, g)
    local alpha, z = ctx:saved()
    return g * slope(alpha, z):to(g:dtype())
  end,
}
out.standard_gamma = standard_gamma

local function lbeta(a, b) return a:lgamma() + b:lgamma() - (a + b):lgamma() end

-- ---- Gamma, Chi2, InverseGamma ------------------------------------------------------------------------------

local positive = { concentration = "positive", rate = "positive" }
local shape_rate = { { "concentration", "operand" }, { "rate", "operand", 1 } }

--- T.distributions.Gamma(…) → distribution
-- rate^α x^(α-1) e^(-rate x) / Γ(α), α the concentration. Drawn as by Marsaglia & Tsang (2000).
--   print(T.distributions.Gamma(3, 2).mean)  --> 1.5000  -- f32[] cpu
local Gamma = class("Gamma", shape_rate, { sets = positive })
out.Gamma = Gamma
Gamma.has_rsample, Gamma.support = true, "nonnegative"
function Gamma.props.mean(d) return d.concentration / d.rate end
function Gamma.props.mode(d) return (d.concentration - 1):clamp(0, nil) / d.rate end
function Gamma.props.variance(d) return d.concentration / d.rate:square() end
function Gamma:rsample(shape)
  return standard_gamma(self.concentration:expand(self:shape_of(shape)):contiguous()) / self.rate
end
--- α log β + (α - 1) log x - β x - log Γ(α)
function Gamma:log_prob(x)
  local a, b = self.concentration, self.rate
  x = self:value(x)
  return T.xlogy(a, b) + T.xlogy(a - 1, x) - b * x - a:lgamma()
end
function Gamma:entropy()
  local a = self.concentration
  return a - self.rate:log() + a:lgamma() + (1 - a) * a:digamma()
end
function Gamma:cdf(x) return T.gammainc(self.concentration, self.rate * self:value(x, "cdf")) end

local Chi2 = class("Chi2", { { "df", "operand" } }, { parent = Gamma, sets = { df = "positive" } })
out.Chi2 = Chi2
function Chi2.props.concentration(d) return d.df / 2 end
function Chi2.props.rate(d) return T.full_like(d.df, 0.5) end

--- T.distributions.InverseGamma(…) → distribution
-- 1 over a Gamma draw.
--   print(T.distributions.InverseGamma(3, 2).mean)  --> 1.  -- f32[] cpu
local InverseGamma = class("InverseGamma", shape_rate, { sets = positive })
out.InverseGamma = InverseGamma
InverseGamma.has_rsample, InverseGamma.support = true, "positive"
function InverseGamma.props.mean(d)
  return T.where(d.concentration:gt(1), d.rate / (d.concentration - 1), math.huge)
end
function InverseGamma.props.mode(d) return d.rate / (d.concentration + 1) end
function InverseGamma.props.variance(d)
  local a = d.concentration
  return T.where(a:gt(2), d.rate:square() / ((a - 1):square() * (a - 2)), math.huge)
end
function InverseGamma:rsample(shape) return 1 / Gamma.rsample(self, shape) end
function InverseGamma:log_prob(x)
  local a, b = self.concentration, self.rate
  x = self:value(x)
  return T.xlogy(a, b) - a:lgamma() - (a + 1) * x:log() - b / x
end
function InverseGamma:cdf(x) return T.gammaincc(self.concentration, self.rate / self:value(x, "cdf")) end
function InverseGamma:entropy()
  local a = self.concentration
  return a + self.rate:log() + a:lgamma() - (1 + a) * a:digamma()
end

-- ---- Dirichlet, Beta ----------------------------------------------------------------------------------------

--- T.distributions.Dirichlet(…) → distribution
-- Shares that sum to 1; the last dimension of concentration is one draw.
--   print(T.distributions.Dirichlet(T.tensor { 1, 3 }).mean)  --> {0.2500, 0.7500}  -- f32[2] cpu
local Dirichlet = class("Dirichlet", { { "concentration", "operand" } },
  { sets = { concentration = "positive" }, inner = { concentration = 1 } })
out.Dirichlet = Dirichlet
Dirichlet.has_rsample, Dirichlet.event_dim, Dirichlet.support = true, 1, "simplex"
function Dirichlet.props.event_shape(d) return { d.concentration:size(-1) } end
function Dirichlet.props.mean(d) return d.concentration / d.concentration:sum(-1, { keepdim = true }) end
function Dirichlet.props.variance(d)
  local total, m = d.concentration:sum(-1, { keepdim = true }), d.mean
  return m * (1 - m) / (total + 1)
end
-- In the inside, or at the largest entry's corner where all are below 1.
function Dirichlet.props.mode(d)
  local a = d.concentration
  local part = (a - 1):clamp(0, nil)
  local corner = T.one_hot(a:argmax(-1), a:size(-1)):to(a:dtype())
  return T.where(a:lt(1):all(-1, { keepdim = true }), corner, part / part:sum(-1, { keepdim = true }))
end
-- Shares are those of draws in f64: in f32 all draws of small concentrations are below the least number, which would
-- make their shares alike.
local function wide_gamma(concentration, shape)
  return standard_gamma(concentration:to("f64"):expand(shape):contiguous())
end
function Dirichlet:rsample(shape)
  local z = wide_gamma(self.concentration, self:shape_of(shape))
  return (z / z:sum(-1, { keepdim = true })):to(self.concentration:dtype())
end
function Dirichlet:log_prob(x)
  local a = self.concentration
  return T.xlogy(a - 1, self:value(x)):sum(-1) + a:sum(-1):lgamma() - a:lgamma():sum(-1)
end
function Dirichlet:entropy()
  local a = self.concentration
  local k, total = a:size(-1), a:sum(-1)
  return a:lgamma():sum(-1) - total:lgamma() - (k - total) * total:digamma() - ((a - 1) * a:digamma()):sum(-1)
end

-- Its first parameter belongs to 1, the second to 0.
--- T.distributions.Beta(…) → distribution
-- x^(a-1) (1-x)^(b-1) / B(a, b): a belongs to 1, b to 0.
--   print(T.distributions.Beta(2, 2).mean)  --> 0.5000  -- f32[] cpu
local Beta = class("Beta", { { "concentration1", "operand" }, { "concentration0", "operand" } },
  { sets = { concentration1 = "positive", concentration0 = "positive" } })
out.Beta = Beta
Beta.has_rsample, Beta.support = true, "unit"
function Beta.props.mean(d) return d.concentration1 / (d.concentration1 + d.concentration0) end
function Beta.props.mode(d)
  return Dirichlet.props.mode({ concentration = T.stack({ d.concentration1, d.concentration0 }, -1) }):select(-1, 1)
end
function Beta.props.variance(d)
  local a, b = d.concentration1, d.concentration0
  return a * b / ((a + b):square() * (a + b + 1))
end
function Beta:rsample(shape)
  shape = self:shape_of(shape)
  local one, zero = wide_gamma(self.concentration1, shape), wide_gamma(self.concentration0, shape)
  return base.below_one((one / (one + zero)):to(self.concentration1:dtype()))
end
function Beta:log_prob(x)
  local a, b = self.concentration1, self.concentration0
  x = self:value(x)
  return T.xlogy(a - 1, x) + T.xlog1py(b - 1, -x) - lbeta(a, b)
end
function Beta:entropy()
  local a, b = self.concentration1, self.concentration0
  return lbeta(a, b) - (a - 1) * a:digamma() - (b - 1) * b:digamma() + (a + b - 2) * (a + b):digamma()
end

-- ---- StudentT -----------------------------------------------------------------------------------------------

--- T.distributions.StudentT(…) → distribution
-- A normal draw over a mean of df squared ones.
--   print(T.distributions.StudentT(4).variance)  --> 2.  -- f32[] cpu
local StudentT = class("StudentT", { { "df", "operand" }, { "loc", "operand", 0 }, { "scale", "operand", 1 } },
  { sets = { df = "positive", loc = "real", scale = "positive" } })
out.StudentT = StudentT
StudentT.has_rsample, StudentT.support = true, "real"
function StudentT.props.mean(d) return T.where(d.df:gt(1), d.loc, 0 / 0) end
function StudentT.props.mode(d) return d.loc end
function StudentT.props.variance(d)
  local v = d.scale:square() * d.df / (d.df - 2)
  return T.where(d.df:gt(2), v, T.where(d.df:gt(1), T.full_like(v, math.huge), T.full_like(v, 0 / 0)))
end
function StudentT:rsample(shape)
  shape = self:shape_of(shape)
  local chi2 = standard_gamma((self.df / 2):expand(shape):contiguous()) * 2
  return self.loc + self.scale * base.normal(self.loc, shape) * (self.df / chi2):sqrt()
end
function StudentT:log_prob(x)
  local n = self.df
  local t = (self:value(x) - self.loc) / self.scale
  return (n + 1) * -0.5 * (t:square() / n):log1p() - self.scale:log() - 0.5 * n:log() - 0.5 * log(pi)
    - (n / 2):lgamma() + ((n + 1) / 2):lgamma()
end
function StudentT:entropy()
  local n = self.df
  local half = T.full_like(n, 0.5)
  return self.scale:log() + (n + 1) / 2 * (((n + 1) / 2):digamma() - (n / 2):digamma()) + 0.5 * n:log()
    + lbeta(half, n / 2)
end

return out
