-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of T.distributions: name → {signature, text, example}. Signatures are written from
-- the declared arguments.
local signature = require "perilune.help.signature"
require "perilune.distributions"

local S = {}

local function entry(name, text, example)
  S["distributions." .. name] = { signature.of("distributions." .. name, "distribution"), text, example }
end

S["distributions.Distribution"] = { "T.distributions.Distribution, the parent of all",
  [[What all have: d:sample(shape?) without gradients, d:rsample(shape?) with gradients where has_rsample,
d:log_prob(x), d:entropy(), d:expand(shape), d:type(); cdf, icdf, enumerate_support, perplexity where they make sense;
fields mean, variance, stddev, mode, batch_shape, event_shape. Parameters are numbers or tensors and broadcast. A sample
has shape .. batch_shape .. event_shape, a log_prob shape .. batch_shape. Parameters and values are checked unless
validate_args=false is given, during T.jit's tracing or in T.vmap.]], [[
local d = T.distributions.Normal(T.zeros(3), 1) -- a T.distributions.Distribution
print(d:sample(2):describe(), d:log_prob(d:sample(2)):describe())  --> f32[2,3]	f32[2,3]
print(d.variance)  --> {1., 1., 1.}  -- f32[3] cpu]] }

entry("Normal", "loc + scale ε with ε standard normal.", [[
print(T.distributions.Normal(0, 1):log_prob(0))  --> -0.9189  -- f32[] cpu]])
entry("LogNormal", "e to a normal draw.", [[
print(T.distributions.LogNormal(0, 1).median)  --> 1.  -- f32[] cpu]])
entry("HalfNormal", "|scale ε| with ε standard normal.", [[
print(T.distributions.HalfNormal(2):cdf(0))  --> 0.  -- f32[] cpu]])
entry("Uniform", "All of low <= x < high alike.", [[
print(T.distributions.Uniform(0, 4):log_prob(T.tensor { 1, 5 }):exp())  --> {0.2500, 0.0000}  -- f32[2] cpu]])
entry("Exponential", "Waiting times: rate e^(-rate x).", [[
print(T.distributions.Exponential(2).mean)  --> 0.5000  -- f32[] cpu]])
entry("Laplace", "e^(-|x - loc| / scale) / (2 scale).", [[
print(T.distributions.Laplace(0, 1):log_prob(0):exp())  --> 0.5000  -- f32[] cpu]])
entry("Cauchy", "1 / (π scale (1 + ((x - loc)/scale)²)); it has no mean.", [[
print(T.distributions.Cauchy(3, 1).median)  --> 3.  -- f32[] cpu]])
entry("HalfCauchy", "The size of a Cauchy draw around 0.", [[
print(T.distributions.HalfCauchy(1):cdf(1))  --> 0.5000  -- f32[] cpu]])
entry("Gumbel", "The largest of many; loc - scale log(-log u).", [[
print(T.distributions.Gumbel(1, 1).mode)  --> 1.  -- f32[] cpu]])
entry("Weibull", "scale (-log u)^(1/concentration).", [[
print(T.distributions.Weibull(2, 1).mean)  --> 2.  -- f32[] cpu]])
entry("Pareto", "scale u^(-1/alpha): a power law from scale on.", [[
print(T.distributions.Pareto(1, 3).mean)  --> 1.5000  -- f32[] cpu]])
entry("Gamma",
  "rate^α x^(α-1) e^(-rate x) / Γ(α), α the concentration. Drawn as by Marsaglia & Tsang (2000).", [[
print(T.distributions.Gamma(3, 2).mean)  --> 1.5000  -- f32[] cpu]])
entry("Chi2", "The sum of df squared normal draws.", [[
print(T.distributions.Chi2(3).mean)  --> 3.  -- f32[] cpu]])
entry("InverseGamma", "1 over a Gamma draw.", [[
print(T.distributions.InverseGamma(3, 2).mean)  --> 1.  -- f32[] cpu]])
entry("Beta", "x^(a-1) (1-x)^(b-1) / B(a, b): a belongs to 1, b to 0.", [[
print(T.distributions.Beta(2, 2).mean)  --> 0.5000  -- f32[] cpu]])
entry("Dirichlet", "Shares that sum to 1; the last dimension of concentration is one draw.", [[
print(T.distributions.Dirichlet(T.tensor { 1, 3 }).mean)  --> {0.2500, 0.7500}  -- f32[2] cpu]])
entry("StudentT", "A normal draw over a mean of df squared ones.", [[
print(T.distributions.StudentT(4).variance)  --> 2.  -- f32[] cpu]])
entry("Bernoulli", "1 with probability probs, else 0. logits = log(p / (1 - p)).", [[
print(T.distributions.Bernoulli { logits = 0 }.mean)  --> 0.5000  -- f32[] cpu]])
entry("Geometric", "Failures before the first success.", [[
print(T.distributions.Geometric(0.25).mean)  --> 3.  -- f32[] cpu]])
entry("Binomial", "Successes among total_count.", [[
print(T.distributions.Binomial(2, 0.5):log_prob(T.tensor { 0, 1, 2 }):exp())
--> {0.2500, 0.5000, 0.2500}  -- f32[3] cpu]])
entry("NegativeBinomial", "Successes before total_count failures.", [[
print(T.distributions.NegativeBinomial(3, 0.5).mean)  --> 3.  -- f32[] cpu]])
entry("Poisson", "Events of a mean of rate.", [[
print(T.distributions.Poisson(2).variance)  --> 2.  -- f32[] cpu]])
entry("Categorical", "One of the classes 1 … n, by probs (of any sum) or logits along the last dimension.", [[
local d = T.distributions.Categorical(T.tensor { 1, 1, 2 })
print(d:log_prob(3):exp(), d.mode, d:sample(5):describe())  --> 0.5000  -- f32[] cpu	3  -- i64[] cpu	i64[5] ]])
entry("OneHotCategorical", "The same as a vector with one 1.", [[
print(T.distributions.OneHotCategorical(T.tensor { 0, 1 }):sample())  --> {0., 1.}  -- f32[2] cpu]])
entry("OneHotCategoricalStraightThrough", "OneHotCategorical; rsample has the gradient of probs.",
  [[
print(T.distributions.OneHotCategoricalStraightThrough(T.tensor { 0, 1 }):rsample())  --> {0., 1.}  -- f32[2] cpu]])
entry("Multinomial", "How often each class came in total_count draws.", [[
print(T.distributions.Multinomial(4, T.tensor { 1, 1 }).mean)  --> {2., 2.}  -- f32[2] cpu]])
entry("RelaxedBernoulli", "Between 0 and 1, near them for a small temperature (Maddison et al. 2017).", [[
print(T.distributions.RelaxedBernoulli(0.5, 0.5):rsample(3):describe())  --> f32[3] ]])
entry("RelaxedOneHotCategorical", "Softmax of logits and Gumbel noise over a temperature (Jang et al. 2017).", [[
local d = T.distributions.RelaxedOneHotCategorical(0.5, { logits = T.zeros(4) })
print(d:rsample():describe())  --> f32[4] ]])
entry("MultivariateNormal", "loc + L ε; L from the covariance, its inverse, or given as scale_tril.", [[
local d = T.distributions.MultivariateNormal(T.zeros(2), { covariance_matrix = T.tensor { { 4, 0 }, { 0, 1 } } })
print(d.scale_tril, d:log_prob(T.zeros(2)))
--> {{2., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu	-2.5310  -- f32[] cpu]])
entry("Independent", "The last dimensions of the batch as parts of one draw: log_prob sums over them.", [[
local d = T.distributions.Independent(T.distributions.Normal(T.zeros(3), 1), 1)
print(d:log_prob(T.zeros(3)))  --> -2.7568  -- f32[] cpu]])
entry("MixtureSameFamily", "A draw of one component, chosen by a Categorical over the batch's last dimension.", [[
local which, each = T.distributions.Categorical(T.tensor { 1, 1 }), T.distributions.Normal(T.tensor { -1, 1 }, 1)
local d = T.distributions.MixtureSameFamily(which, each)
print(d.mean, d.variance)  --> 0.  -- f32[] cpu	2.  -- f32[] cpu]])
entry("TransformedDistribution", "A draw of base through a transform, or a list of them, first to last.", [[
local steps = { T.distributions.AffineTransform(1, 2), T.distributions.ExpTransform() }
local d = T.distributions.TransformedDistribution(T.distributions.Normal(0, 1), steps)
print(d:log_prob(1))  --> -1.7371  -- f32[] cpu]])

for name, text in pairs {
  AffineTransform = "loc + scale x", ExpTransform = "e^x", PowerTransform = "x^exponent, x above 0",
  SigmoidTransform = "1 / (1 + e^-x)", TanhTransform = "tanh x", SoftplusTransform = "log(1 + e^x)",
} do
  local example = name == "PowerTransform" and "PowerTransform(2)" or name .. "()"
  S["distributions." .. name] = { signature.of("distributions." .. name, "transform"),
    text .. ", for TransformedDistribution: t(x), t:inv(y), t:log_abs_det_jacobian(x, y).",
    ("local t = T.distributions.%s\nprint(t:inv(t(T.tensor { 0.5 })))  --> {0.5000}  -- f32[1] cpu"):format(example) }
end

S["distributions.kl_divergence"] = { "T.distributions.kl_divergence(p, q) → tensor",
  "E_p[log p(x) - log q(x)] of two distributions of one family, of batch_shape.", [[
local p, q = T.distributions.Normal(0, 1), T.distributions.Normal(1, 1)
print(T.distributions.kl_divergence(p, q))  --> 0.5000  -- f32[] cpu]] }
S["distributions.register_kl"] = { "T.distributions.register_kl(P, Q, function(p, q) … end)",
  "Adds a rule to kl_divergence for two classes.", [[
T.distributions.register_kl(T.distributions.Normal, T.distributions.Laplace, function(p, q)
  local x = p:rsample(20000)
  return (p:log_prob(x) - q:log_prob(x)):mean(1)
end)
print(T.distributions.kl_divergence(T.distributions.Normal(), T.distributions.Laplace()):lt(0.1):item())  --> true]] }

return S
