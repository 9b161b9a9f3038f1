-- SPDX-License-Identifier: MIT
-- T.distributions against PyTorch's figures (fixtures/make_distributions.py), its samples against its own densities.

local T = require "perilune"
local D = T.distributions
local known = dofile("spec/fixtures/distributions.lua")
local near = require "spec.support.near"
local eq, fails = near.near, near.fails

local f64 = { dtype = "f64" }
local function tensors(args)
  local out = {}
  for name, v in pairs(args) do
    out[name] = (name ~= "total_count" or type(v) == "table") and T.tensor(v, f64) or v
  end
  return out
end

local function same(a, b, tol, what)
  a, b = a:to("f64"), T.tensor(b, f64)
  assert.same(b:shape(), a:shape(), what)
  local ok = a:allclose(b, { rtol = tol, atol = tol, equal_nan = true })
  assert.is_true(ok, ("%s: %s, should be %s"):format(what, tostring(a), tostring(b)))
end

describe("a distribution's density and figures", function()
  for i, row in ipairs(known.points) do
    it(("are PyTorch's: %s, row %d"):format(row.name, i), function()
      local d = D[row.name](tensors(row.args))
      local x = T.tensor(row.x, f64)
      same(d:log_prob(x), row.log_prob, 1e-9, "log_prob")
      for _, field in ipairs { "mean", "variance", "mode" } do
        if row[field] and not (field == "mode" and (row.name == "Binomial" or row.name == "Weibull")) then
          same(d[field] + T.zeros_like(T.tensor(row[field], f64)), row[field], 1e-9, field)
        end
      end
      if row.entropy then same(d:entropy(), row.entropy, 1e-9, "entropy") end
      if row.cdf then same(d:cdf(x), row.cdf, 1e-9, "cdf") end
      if row.icdf then same(d:icdf(T.tensor({ { 0.1, 0.5 }, { 0.9, 0.25 } }, f64)), row.icdf, 1e-8, "icdf") end
      assert.equal(row.name, d:type())
      assert.truthy(tostring(d):find(row.name, 1, true))
    end)
  end

  it("have gradients with respect to the parameters", function()
    for _, row in ipairs(known.points) do
      local names, values = {}, {}
      for name, v in pairs(tensors(row.args)) do
        if type(v) == "userdata" and name ~= "total_count" and not name:find("matrix") then
          names[#names + 1], values[#values + 1] = name, v
        end
      end
      if row.name ~= "Uniform" and #values > 0 then
        local x = T.tensor(row.x, f64)
        local ok, why = T.gradcheck(function(...)
          local args = tensors(row.args)
          for i, v in ipairs { ... } do args[names[i]] = v end
          args.validate_args = false -- differences leave simplexes and triangles
          return D[row.name](args):log_prob(x)
        end, values)
        assert.is_true(ok, row.name .. ": " .. tostring(why))
      end
    end
  end)

  for i, row in ipairs(known.kl) do
    it(("divergence is PyTorch's: %s and %s, row %d"):format(row.name, row.other or row.name, i), function()
      local p, q = D[row.name](tensors(row.p)), D[row.other or row.name](tensors(row.q))
      same(D.kl_divergence(p, q), row.kl, 1e-9, "kl")
      if not row.other then same(D.kl_divergence(p, p), 0, 1e-9, "kl") end
    end)
  end
end)

describe("between distributions", function()
  it("the divergence has the shape of both, the gradient of both, and is infinite outside", function()
    local rate, loc = T.tensor({ 1, 2 }, { dtype = "f64" }):requires_grad_(), T.zeros({ 3, 1 }, { dtype = "f64" })
    assert.same({ 3, 2 }, D.kl_divergence(D.Exponential(rate), D.Normal(loc:requires_grad_(), 2.0)):shape())
    assert.is_true(T.gradcheck(function(a, b) return D.kl_divergence(D.Exponential(a), D.Normal(b, 2.0)) end,
      { rate:detach():requires_grad_(), loc:detach():requires_grad_() }))
    local beyond = D.kl_divergence(D.Normal(loc:detach(), 1.0), D.Beta(T.tensor { 2.0, 3 }, 1.0))
    assert.same({ 3, 2 }, beyond:shape())
    assert.is_true(beyond:eq(math.huge):all():item())
    local some = D.kl_divergence(D.Uniform(T.tensor { 0.2, -0.2 }, 0.9), D.Beta(2.0, 3.0))
    assert.is_true(some[1]:item() < 10 and some[2]:item() == math.huge)
  end)

  it("transformed distributions have distribution functions, also through falling transforms", function()
    local steps = { D.AffineTransform(1, -2), D.ExpTransform() }
    local d = D.TransformedDistribution(D.Normal(T.tensor(0.5, { dtype = "f64" }), 0.7), steps)
    local x, p = T.tensor({ 0.3, 1, 4 }, { dtype = "f64" }), T.tensor({ 0.1, 0.5, 0.9 }, { dtype = "f64" })
    same(d:cdf(x), { 0.19489987531368425, 0.5, 0.8389643201535453 }, 1e-9, "cdf")
    same(d:icdf(p), { 0.16626503095686726, 1.0, 6.014493812949888 }, 1e-9, "icdf")
  end)

  it("halves have no density below 0", function()
    for _, name in ipairs { "HalfNormal", "HalfCauchy" } do
      local y = D[name] { scale = 2.0, validate_args = false }:log_prob(T.tensor { -1.0, 0, 1 })
      assert.is_true(y[1]:item() == -math.huge and y[2]:item() > y[3]:item() and y[3]:item() > -10)
    end
  end)
end)

describe("samples", function()
  local function all()
    local two = T.tensor { 0.5, 2 }
    return {
      D.Normal(1, two), D.LogNormal(0.1, 0.3), D.HalfNormal(two), D.Uniform(-1, two), D.Exponential(two),
      D.Laplace(1, two),
      D.Gumbel(1, two), D.Weibull(2, two + 1), D.Pareto(1, 9), D.Gamma(two, 2), D.Chi2(3), D.InverseGamma(9, 2),
      D.Beta(two, 3), D.StudentT(12, 1, 2), D.Bernoulli(two / 4), D.Geometric(0.3), D.Binomial(10, two / 4),
      D.NegativeBinomial(4, 0.3), D.Poisson(two), D.Dirichlet(T.tensor { 1, 2, 3 }),
      D.OneHotCategorical(T.tensor { 1, 2, 3 }), D.OneHotCategoricalStraightThrough(T.tensor { 1, 2, 3 }),
      D.Multinomial(5, T.tensor { 1, 2, 3 }), D.Independent(D.Normal(T.zeros(3), T.ones(3)), 1),
      D.MultivariateNormal(T.tensor { 1, 2 }, { covariance_matrix = T.tensor { { 2, 0.5 }, { 0.5, 1 } } }),
      D.MultivariateNormal(T.tensor { 1, 2 }, { precision_matrix = T.tensor { { 2, 0.5 }, { 0.5, 1 } } }),
      D.MixtureSameFamily(D.Categorical(T.tensor { 1, 3 }), D.Normal(T.tensor { -1, 1 }, T.tensor { 0.5, 0.2 })),
      D.MixtureSameFamily(D.Categorical(T.tensor { 1, 3 }),
        D.Independent(D.Normal(T.tensor { { -1, 1 }, { 2, 3 } }, T.tensor { { 0.5, 0.2 }, { 1, 1 } }), 1)),
    }
  end
  local names = {}
  for i, d in ipairs(all()) do names[i] = d:type() end
  for i, name in ipairs(names) do
    it(("have mean, variance and entropy of their distribution: %s, row %d"):format(name, i), function()
      local d = all()[i]
      T.manual_seed(i)
      local n = 20000
      local x = d:sample(n)
      assert.is_false(x.requires_grad)
      local shape = { n, table.unpack(d.batch_shape) }
      for _, s in ipairs(d.event_shape) do shape[#shape + 1] = s end
      assert.same(shape, x:shape())
      local off = ((x:mean(1) - d.mean) / d.variance:sqrt()):abs():max():item()
      assert.is_true(off < 5 / math.sqrt(n), "mean off by " .. off)
      local spread = (x:var(1) / d.variance - 1):abs():max():item()
      assert.is_true(spread < 0.15, "variance off by " .. spread)
      local lp = d:log_prob(x)
      assert.same({ n, table.unpack(d.batch_shape) }, lp:shape())
      local ok, h = pcall(d.entropy, d)
      if ok then
        local err = (lp:mean(1) + h):abs():max():item()
        assert.is_true(err < 0.05, "entropy off by " .. err)
      end
    end)
  end

  it("of two outcomes keep their digits where one is rare", function()
    for name, args in pairs { Bernoulli = {}, Geometric = {}, Binomial = { total_count = 40.0 },
      NegativeBinomial = { total_count = 40.0 } } do
      for _, share in ipairs { 1e-6, 1e-4, 0.01, 0.3, 0.7, 0.99, 0.9999, 0.999999 } do
        for _, k in ipairs { 0, 1, 2, 12, 39, 40 } do
          if name ~= "Bernoulli" or k < 2 then
            local function of(dtype)
              local p = T.tensor(share, { dtype = "f32" }):to(dtype)
              local n = args.total_count and T.tensor(args.total_count, { dtype = dtype })
              return D[name] { probs = p, total_count = n }:log_prob(T.tensor(k, { dtype = dtype })):item()
            end
            local got, want = of "f32", of "f64"
            local off = math.abs(got - want) / math.max(1, math.abs(want))
            assert(off < 3e-6, ("%s of %g at %d: %.9g, not %.9g"):format(name, share, k, got, want))
          end
        end
      end
    end
  end)

  it("of classes count from 1", function()
    T.manual_seed(1)
    local d = D.Categorical(T.tensor { { 1, 0, 3 }, { 0, 1, 0 } })
    local x = d:sample { 4000 }
    assert.equal("i64", x:dtype())
    assert.same({ 4000, 2 }, x:shape())
    local share = T.bincount(x[{ {}, 1 }], { minlength = 4 }):float() / 4000
    assert.is_true(math.abs(share:get(2) - 0.25) < 0.03 or math.abs(share:get(1) - 0.25) < 0.03)
    assert.equal(0, x[{ {}, 1 }]:eq(2):sum():item())
    assert.equal(4000, x[{ {}, 2 }]:eq(2):sum():item())
    eq(d:log_prob(T.tensor({ 3, 2 }, { dtype = "i64" })), { math.log(0.75), 0 }, 1e-5)
    eq(d.mode, { 3, 2 })
    eq(d:enumerate_support(), { { 1, 1 }, { 2, 2 }, { 3, 3 } })
    eq(d:entropy(), { -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), 0 }, 1e-5)
    eq(D.Categorical { logits = T.zeros(4) }:perplexity(), 4, 1e-5)
    eq(D.Bernoulli(0.25):enumerate_support(), { 0, 1 })
    eq(D.Binomial(2, 0.25):enumerate_support(), { 0, 1, 2 })
    eq(D.OneHotCategorical(T.ones(2)):enumerate_support(), { { 1, 0 }, { 0, 1 } })
  end)

  it("repeat with the seed", function()
    for _, d in ipairs(all()) do
      T.manual_seed(7)
      local a = d:sample(5)
      T.manual_seed(7)
      assert.is_true(a:equal(d:sample(5)), d:type())
    end
  end)

  it("are empty where the shape says so", function()
    assert.same({ 0, 3, 2 }, D.Normal(T.zeros(2), 1):sample({ 0, 3 }):shape())
    assert.same({ 0 }, D.Categorical(T.ones(2)):sample(0):shape())
    assert.same({ 0, 2 }, D.Gamma(T.ones(2), 1):sample(0):shape())
  end)
end)

describe("rsample", function()
  it("has the gradient of the expectation", function()
    -- d E[x] and d E[x²] by each parameter
    for i, case in ipairs {
      { D.Normal, { loc = 0.5, scale = 0.7 } }, { D.Gamma, { concentration = 2.5, rate = 1.5 } },
      { D.Gamma, { concentration = 0.4, rate = 1.5 } }, { D.Beta, { concentration1 = 2, concentration0 = 3 } },
      { D.Exponential, { rate = 2 } }, { D.Laplace, { loc = 0.5, scale = 0.7 } },
      { D.Weibull, { scale = 1.5, concentration = 3 } }, { D.StudentT, { df = 30, loc = 0.5, scale = 1 } },
      { D.Gumbel, { loc = 0.5, scale = 0.7 } },
    } do
      T.manual_seed(i)
      local names, leaves, args = {}, {}, {}
      for name, v in pairs(case[2]) do
        names[#names + 1], leaves[#leaves + 1] = name, T.tensor(v, f64):requires_grad_()
        args[name] = leaves[#leaves]
      end
      local d = case[1](args)
      local x = d:rsample(60000)
      local exact = T.grad_of(d.variance + d.mean:square(), leaves, { allow_unused = true })
      local drawn = T.grad_of(x:square():mean(), leaves)
      for k, name in ipairs(names) do
        local want = exact[k] and exact[k]:item() or 0
        local err = math.abs(drawn[k]:item() - want)
        assert.is_true(err < 0.06 * math.max(1, math.abs(want)),
          ("%s, %s: %g, should be %g"):format(d:type(), name, drawn[k]:item(), want))
      end
    end
  end)

  it("of Gamma moves as its quantiles do", function()
    local slope = require("perilune.distributions.gamma").slope
    for _, row in ipairs(known.gamma) do
      local alpha, z = T.tensor(row.alpha, f64), T.tensor(row.z, f64)
      local got, want = slope(alpha, z), T.tensor(row.slope, f64)
      local err = ((got - want) / want):abs():max():item()
      assert.is_true(err < 1e-5, "relative error " .. err)
    end
  end)

  it("of Gamma says that it is no part of a graph", function()
    local function f(a) return D.Gamma(a, 1):rsample():sum() end
    fails("draws of Gamma and of distributions made of it are repeated", T.jit(f), T.ones(2))
    fails("draws of Gamma and of distributions made of it are repeated", T.vmap(f), T.ones(2, 2))
    local draw = T.jit(function(a) return D.Normal(a, 1):rsample():sum() end)
    assert.not_equal(draw(T.ones(2)):item(), draw(T.ones(2)):item())
  end)

  it("straight through has the gradient of the probabilities", function()
    local logits = T.tensor { 0.1, 0.2, 0.3 }:requires_grad_()
    local x = D.OneHotCategoricalStraightThrough { logits = logits }:rsample()
    eq(x:detach():sum(), 1, 1e-6)
    local w = T.tensor { 1, 2, 3 }
    local g = T.grad_of((x * w):sum(), logits)
    eq(g, T.grad_of((logits:softmax(-1) * w):sum(), logits), 1e-6)
  end)

  it("of the relaxed ones is between, and sums to 1", function()
    local b = D.RelaxedBernoulli(T.tensor(0.5), { probs = T.tensor { 0.3, 0.9 } }):rsample(100)
    assert.is_true(b:gt(0):logical_and(b:lt(1)):all():item())
    local logits = T.zeros(3):requires_grad_()
    local c = D.RelaxedOneHotCategorical(T.tensor(0.5), { logits = logits }):rsample(100)
    eq(c:detach():sum(-1), T.ones(100), 1e-5)
    assert.is_truthy(T.grad_of(c:square():sum(), logits))
  end)

  it("is refused where there is none", function()
    fails("Poisson: its samples have no gradient", function() D.Poisson(2):rsample() end)
  end)
end)

describe("distributions", function()
  it("take numbers, tensors and named arguments, and broadcast", function()
    local d = D.Normal(0, T.ones(3))
    assert.same({ 3 }, d.batch_shape)
    assert.same({}, d.event_shape)
    assert.same({ 2, 3 }, d:expand({ 2, 3 }).loc:shape())
    assert.same({ 4, 2, 3 }, d:expand({ 2, 3 }):sample(4):shape())
    assert.equal("f64", D.Normal(T.zeros({ 2 }, f64), 1):sample():dtype())
    assert.equal("Normal(loc: 0, scale: 1)", tostring(D.Normal()))
    assert.equal("Normal(loc: f32[3], scale: f32[3])", tostring(d))
    assert.same({ 5, 2 }, D.Dirichlet(T.ones(2)):expand(5).concentration:shape())
    assert.same({ 5 }, D.Independent(D.Normal(T.zeros(3), 1), 1):expand(5).batch_shape)
  end)

  it("transform", function()
    local base = D.Normal(T.tensor({ 0.1, 0.2 }, f64), T.tensor({ 0.5, 0.7 }, f64))
    local x = T.tensor({ 0.3, 1.7 }, f64)
    local exp = D.TransformedDistribution(base, { D.ExpTransform() })
    eq(exp:log_prob(x), D.LogNormal(base.loc, base.scale):log_prob(x), 1e-12)
    local twice = D.TransformedDistribution(base, { D.AffineTransform(1, 2), D.AffineTransform { scale = 3 } })
    eq(twice:log_prob(x), D.Normal(base.loc * 6 + 3, base.scale * 6):log_prob(x), 1e-12)
    assert.equal("TransformedDistribution(Normal(loc: f64[2], scale: f64[2]), {AffineTransform, AffineTransform})",
      tostring(twice))
    for _, t in ipairs { D.SigmoidTransform(), D.TanhTransform(), D.SoftplusTransform(), D.PowerTransform(3) } do
      local u = T.tensor({ 0.2, 0.6 }, f64):requires_grad_()
      local y = t(u)
      eq(t:inv(y), u, 1e-12)
      eq(t:log_abs_det_jacobian(u, y), T.grad_of(y:sum(), u):abs():log(), 1e-9)
      -- the density integrates to 1
      local d = D.TransformedDistribution(D.Uniform(T.tensor(0.1, f64), 0.9), t)
      local lo, hi = t(T.tensor(0.1, f64)):item(), t(T.tensor(0.9, f64)):item()
      local n = 2000
      local at = lo + (T.arange(n):to("f64") - 0.5) * ((hi - lo) / n)
      eq(d:log_prob(at):exp():mean() * (hi - lo), 1, 1e-3)
    end
    local drawn = D.TransformedDistribution(base, D.ExpTransform()):rsample(3)
    assert.is_true(drawn:gt(0):all():item())
  end)

  it("train a policy", function() -- REINFORCE finds the better of two arms
    T.manual_seed(1)
    local logits = T.zeros(2):requires_grad_()
    local opt = T.optim.Adam({ logits }, { lr = 0.1 })
    for _ = 1, 60 do
      local d = D.Categorical { logits = logits }
      local a = d:sample(32)
      local loss = -(d:log_prob(a) * a:eq(2):float()):mean()
      opt:zero_grad()
      loss:backward()
      opt:step()
    end
    assert.is_true(logits:softmax(-1):get(2) > 0.9)
  end)

  it("expand to more draws of their own, and so they do for transforms of more numbers", function()
    local made = {
      D.Normal(0, 1), D.Categorical(T.ones(3)), D.Multinomial(4, T.ones(3)), D.Gamma(2, 1), D.Dirichlet(T.ones(3)),
      D.MultivariateNormal(T.zeros(2), { scale_tril = T.eye(2) }), D.Independent(D.Normal(T.zeros(2), 1), 1),
      D.MixtureSameFamily(D.Categorical(T.ones(2)), D.Normal(T.zeros(2), 1)),
      D.MixtureSameFamily(D.Categorical(T.ones(2)), D.Independent(D.Normal(T.zeros(2, 3), 1), 1)),
      D.TransformedDistribution(D.Normal(0, 1), D.ExpTransform()), D.RelaxedOneHotCategorical(1, T.ones(3)) }
    for _, d in ipairs(made) do
      local wide = d:expand { 4, 5 }
      local x = wide:sample()
      assert.same({ 4, 5, table.unpack(d.event_shape) }, x:shape(), tostring(d))
      assert.same({ 4, 5 }, wide:log_prob(x):shape(), tostring(d))
      eq(wide:log_prob(x), d:log_prob(x), 1e-6)
    end
    local d = D.TransformedDistribution(D.Normal(0, 1), D.AffineTransform(T.zeros(500), 1))
    assert.same({ 500 }, d.batch_shape)
    assert.is_true(d:sample():unique():numel() > 400)
    fails("the transforms' tensors do not broadcast to draws", D.TransformedDistribution,
      D.Independent(D.Normal(T.zeros(1), 1), 1), D.AffineTransform(T.zeros(3), 1))
  end)

  it("of extreme parameters have the right figures", function()
    -- shares of Beta(a, a) between 0.01 and 0.99, by its distribution function
    for a, share in pairs { [0.1] = 0.3567, [0.01] = 0.0449 } do
      for _, x in ipairs { D.Beta(a, a):sample(5000), D.Dirichlet(T.full({ 2 }, a)):sample(5000):select(-1, 1) } do
        local got = x:gt(0.01):logical_and(x:lt(0.99)):to("f32"):mean():item()
        assert.near(share, got, 0.03)
      end
    end
    local l = T.tensor { 0, -400, 5 }
    local want, one = D.Categorical({ logits = l }):log_prob(2), T.tensor { 0., 1., 0. }
    for _, d in ipairs { D.OneHotCategorical { logits = l }, D.Multinomial(1, { logits = l }) } do
      eq(d:log_prob(one), want, 1e-5)
    end
    local tracked = T.tensor({ 0, -400, 5 }):requires_grad_()
    D.OneHotCategorical({ logits = tracked }):log_prob(T.tensor { 1., 0., 0. }):backward()
    assert.is_true(tracked.grad:isfinite():all():item())
    assert.equal(0, D.NegativeBinomial(0, 0.5):log_prob(0):item())
    for _, dtype in ipairs { "f16", "bf16", "f32", "f64" } do
      local p = T.tensor({ 0, -math.huge }, { dtype = dtype })
      assert.equal(0, D.Categorical({ logits = p }):entropy():item())
      local bases = { D.RelaxedBernoulli(T.tensor(0.1, { dtype = dtype }), 0.5), D.TransformedDistribution(
        D.Normal(T.tensor(0, { dtype = dtype }), 30), D.SigmoidTransform()) }
      for _, d in ipairs(bases) do assert.is_true(d:log_prob(d:rsample(300)):isfinite():all():item(), dtype) end
    end
  end)

  it("say what is wrong", function()
    fails("sum to 1", D.Categorical, T.zeros(3))
    fails("sum to 1", D.OneHotCategorical, T.tensor { 1, math.huge })
    fails("sum to 1", D.Multinomial, 2, { logits = T.full({ 2 }, -math.huge) })
    fails("distributions.Normal: scale must be above 0, got f32[2]", D.Normal, 0, T.tensor { 1, -1 })
    fails("distributions.Bernoulli: probs must be from 0 to 1", D.Bernoulli, 1.5)
    fails("distributions.Categorical: one of probs and logits is wanted", D.Categorical)
    fails("distributions.Normal: the parameters do not broadcast", D.Normal, T.zeros(2), T.ones(3))
    fails("distributions.Normal: unknown option 'std'", D.Normal, { loc = 0, std = 1 })
    fails("distributions.Normal: loc must be a tensor or a number", D.Normal, "0", 1)
    fails("distributions.Dirichlet: concentration needs at least 1 dimension", D.Dirichlet, 1)
    fails("distributions.MultivariateNormal: covariance_matrix must be symmetric and positive definite",
      D.MultivariateNormal, T.zeros(2), { covariance_matrix = T.zeros(2, 2) })
    fails("one of covariance_matrix, precision_matrix and scale_tril", D.MultivariateNormal, T.zeros(2))
    fails("Categorical: log_prob: the value must be a class from 1 to 3", function()
      D.Categorical(T.ones(3)):log_prob(T.tensor({ 0 }, { dtype = "i64" }))
    end)
    fails("Bernoulli: log_prob: the value must be 0 or 1", function() D.Bernoulli(0.5):log_prob(2) end)
    fails("Exponential: log_prob: the value must be 0 or above", function() D.Exponential(1):log_prob(-1) end)
    fails("Multinomial: log_prob: the value must be counts that sum to 3", function()
      D.Multinomial(3, T.ones(2)):log_prob(T.ones(2))
    end)
    fails("sample: size 1 of the shape is 1.5", function() D.Normal():sample(1.5) end)
    fails("Poisson: there is no entropy", function() D.Poisson(1):entropy() end)
    fails("no rule for Laplace and Gumbel", D.kl_divergence, D.Laplace(), D.Gumbel())
    fails("no rule for StudentT and Normal", D.kl_divergence, D.StudentT(3), D.Normal())
    fails("argument #2 must be a distribution", D.kl_divergence, D.Normal(), 1)
    fails("2 dimensions of a batch_shape of 1", D.Independent, D.Normal(T.zeros(2), 1), 2)
    fails("mixture_distribution must be a Categorical", D.MixtureSameFamily, D.Normal(), D.Normal())
    fails("entry 1 is no transform", D.TransformedDistribution, D.Normal(), { 1 })
    eq(D.Normal(0, T.tensor { 1, -1 }, { validate_args = false }).scale, { 1, -1 })
    D.register_kl(D.StudentT, D.StudentT, function() return T.tensor(3) end)
    eq(D.kl_divergence(D.StudentT(3), D.StudentT(3)), 3)
  end)
end)
