-- SPDX-License-Identifier: MIT
-- Functions of numbers made of other ops (logaddexp2, heaviside, float_power, mvlgamma, …), T.special with
-- PyTorch's names, signal windows, and random numbers of more distributions (poisson, binomial, cauchy_ …).
local options = require "perilune.options"

return function(T, core)
  local fail, describe, methods = options.fail, options.describe, core.metatable().methods
  local define = require "perilune.define"(T, core)
  local pi = math.pi

  -- The operands as tensors of one floating dtype.
  local function floats(x, y)
    if not core.is_tensor(x) and not core.is_tensor(y) then x = T.tensor(x) end
    local like = core.is_tensor(x) and x or y
    if core.is_tensor(x) and core.is_tensor(y) then
      local dtype = T.promote_types(x:dtype(), y:dtype())
      if not dtype:match("^b?f") then dtype = T.default_dtype() end
      return x:to(dtype), y:to(dtype)
    end
    local dtype = like:is_floating_point() and like:dtype() or T.default_dtype()
    local function made(v) return core.is_tensor(v) and v:to(dtype) or T.tensor(v, { dtype = dtype }) end
    return made(x), made(y)
  end

  -- ---- two operands ----------------------------------------------------------------------------------------

  local two = { { "x", "operand" }, { "y", "operand" } }
  define("logaddexp2", two, function(a)
    local x, y = floats(a.x, a.y)
    local ln2 = math.log(2)
    return T.logaddexp(x * ln2, y * ln2) / ln2
  end)
  define("heaviside", { { "x", "tensor" }, { "values", "operand" } }, function(a)
    local v = a.values
    if not core.is_tensor(v) then v = T.tensor(v, { dtype = a.x:dtype(), device = a.x:device() }) end
    if v:dtype() ~= a.x:dtype() then
      fail("heaviside: x and values must have one dtype, got %s and %s", a.x:describe(), v:describe())
    end
    return T.where(a.x:eq(0), v, a.x:gt(0):to(a.x:dtype()))
  end)
  define("float_power", two, function(a)
    local function f64(v) return core.is_tensor(v) and v:to("f64") or T.tensor(v, { dtype = "f64" }) end
    return f64(a.x) ^ f64(a.y)
  end)
  define("ldexp", two, function(a)
    local x, y = floats(a.x, a.y)
    return x * T.exp2(y)
  end)
  -- x = m 2^e with 0.5 <= |m| < 1, or 0, inf and NaN with e = 0: m, e (i32). Small numbers are scaled up first, so that
  -- those below the normal ones keep their digits.
  define("frexp", { { "x", "tensor" } }, function(a)
    local x = floats(a.x, 0)
    local wide = x:detach():to("f64")
    local tiny = wide:abs():lt(2.0 ^ -1000)
    local y = T.where(tiny, wide * 2.0 ^ 200, wide)
    local plain = T.logical_and(y:ne(0), y:isfinite())
    local e = T.where(plain, y, T.ones_like(y)):abs():log2():floor() + 1
    -- half of 2^e twice: 2^1024 would overflow
    local function part() return y * T.exp2(-(e / 2):floor()) * T.exp2(-(e - (e / 2):floor())) end
    e = e + part():abs():ge(1):double()
    e = e - part():abs():lt(0.5):double()
    local m = T.where(plain, part(), wide)
    e = T.where(plain, e - tiny:double() * 200, T.zeros_like(e))
    -- dm = dx 2^-e
    local slope = T.exp2(-(e / 2):floor()) * T.exp2(-(e - (e / 2):floor()))
    local value = m:to(x:dtype())
    if x.requires_grad then value = value + (x - x:detach()) * slope:to(x:dtype()) end
    return value, e:to("i32")
  end)
  -- x log1p(y), 0 where x is 0 unless y is NaN
  local xlog1py = define("xlog1py", two, function(a)
    local x, y = floats(a.x, a.y)
    local zero = T.logical_and(x:eq(0), y:isnan():logical_not())
    return T.where(zero, T.zeros_like(x), x * T.where(zero, T.zeros_like(y), y):log1p())
  end)

  -- ---- one operand -------------------------------------------------------------------------------------------

  for name, bound in pairs { isposinf = math.huge, isneginf = -math.huge } do
    define(name, { { "x", "tensor" } }, function(a) return a.x:eq(bound) end)
  end
  define("isreal", { { "x", "tensor" } }, function(a) return T.ones_like(a.x, { dtype = "bool" }) end)
  -- log of Γ_p(x) = π^(p(p-1)/4) Π_j Γ(x + (1-j)/2), j = 1 … p
  define("mvlgamma", { { "x", "tensor" }, { "p", "count" } }, function(a)
    local x = floats(a.x, 0)
    if a.p > 1 and x:numel() > 0 and x:le((a.p - 1) / 2):any():item() then
      fail("mvlgamma: every element must be above (p - 1)/2 = %g", (a.p - 1) / 2)
    end
    local y = x:lgamma()
    for j = 2, a.p do y = y + (x + (1 - j) / 2):lgamma() end
    return y + a.p * (a.p - 1) / 4 * math.log(pi)
  end)
  -- -x log x, 0 at 0, -inf below
  local entr = define("entr", { { "x", "tensor" } }, function(a)
    local x = floats(a.x, 0)
    return T.where(x:lt(0), T.full_like(x, -math.huge), -T.xlogy(x, x))
  end)
  local ndtr = define("ndtr", { { "x", "tensor" } }, function(a)
    return (floats(a.x, 0) * -math.sqrt(0.5)):erfc() / 2
  end)
  -- The logarithm of ndtr; below -1 through erfcx, which does not underflow.
  local log_ndtr = define("log_ndtr", { { "x", "tensor" } }, function(a)
    local x = floats(a.x, 0)
    local low = x:lt(-1)
    local one, t = T.ones_like(x), x * math.sqrt(0.5)
    local tail = (T.erfcx(-T.where(low, t, one)) / 2):log() - t * t
    local body = (T.where(low, one, t):erfc() / -2):log1p()
    return T.where(low, tail, body)
  end)

  T.special = {
    digamma = T.digamma, psi = T.digamma, entr = entr, erf = T.erf, erfc = T.erfc, erfcx = T.erfcx, erfinv = T.erfinv,
    exp2 = T.exp2, expit = T.sigmoid, expm1 = T.expm1, gammainc = T.gammainc, gammaincc = T.gammaincc,
    gammaln = T.lgamma, i0 = T.i0, i0e = T.i0e, i1 = T.i1, i1e = T.i1e, log1p = T.log1p, log_ndtr = log_ndtr,
    log_softmax = T.log_softmax, logit = T.logit, logsumexp = T.logsumexp, multigammaln = T.mvlgamma, ndtr = ndtr,
    ndtri = T.ndtri, polygamma = T.polygamma, round = T.round, sinc = T.sinc, softmax = T.softmax,
    xlog1py = xlog1py, xlogy = T.xlogy, modified_bessel_i0 = T.i0, modified_bessel_i1 = T.i1,
  }
  T.igamma, methods.igamma = T.gammainc, T.gammainc
  T.igammac, methods.igammac = T.gammaincc, T.gammaincc

  -- ---- windows -------------------------------------------------------------------------------------------------

  -- name → f(t, a) for t from 0 to 1 over the window
  local function cosine(alpha, beta, gamma)
    return function(t, a)
      local w = (t * (2 * pi)):cos() * -(a.beta or beta) + (a.alpha or alpha)
      return gamma and w + (t * (4 * pi)):cos() * gamma or w
    end
  end
  local windows = {
    hann_window = { cosine(0.5, 0.5) }, blackman_window = { cosine(0.42, 0.5, 0.08) },
    hamming_window = { cosine(0.54, 0.46), { "alpha", "number", 0.54 }, { "beta", "number", 0.46 } },
    bartlett_window = { function(t) return 1 - (t * 2 - 1):abs() end },
    kaiser_window = { function(t, a)
      local r = t * 2 - 1
      return T.i0((1 - r * r):clamp { min = 0 }:sqrt() * a.beta) / T.i0(T.tensor(a.beta, { dtype = "f64" }))
    end, { "beta", "number", 12.0 } },
  }
  for name, w in pairs(windows) do
    local args = { { "n", "size" }, { "periodic", "bool", true } }
    for k = 2, #w do args[#args + 1] = w[k] end
    args[#args + 1] = { "dtype", "string", optional = true }
    define(name, args, function(a)
      local dtype = a.dtype or T.default_dtype()
      if a.n == 1 then return T.ones({ 1 }, { dtype = dtype }) end
      if a.n == 0 then return T.zeros({ 0 }, { dtype = dtype }) end
      local t = T.arange(0, a.n - 1):to("f64") / (a.periodic and a.n or a.n - 1)
      return w[1](t, a):to(dtype)
    end)
  end

  -- ---- random numbers ------------------------------------------------------------------------------------------

  -- Uniform in (0, 1) of a shape, never 0 nor 1.
  local function open_uniform(shape)
    return T.rand(shape, { dtype = "f64" }) * (1 - 2 ^ -53) + 2 ^ -54
  end
  local function nonnegative(who, x)
    if not x:is_floating_point() then fail("%s: a floating tensor is wanted, got %s", who, x:describe()) end
    if x:numel() > 0 and x:ge(0):logical_not():any():item() then fail("%s: every rate must be at least 0", who) end
  end
  -- By inversion: the smallest k with P(X ≤ k) = Q(k + 1, λ) ≥ u, found from the normal approximation on.
  define("poisson", { { "rates", "tensor" } }, function(a)
    nonnegative("poisson", a.rates)
    local _ <close> = T.no_grad()
    local rate = a.rates:to("f64")
    if rate:isinf():any():item() then fail("poisson: a rate is infinite") end
    local u = open_uniform(rate:shape())
    local k = (rate + rate:sqrt() * T.ndtri(u)):floor():clamp { min = 0 }
    while true do -- up while the probability of at most k is below u
      local up = T.gammaincc(k + 1, rate):lt(u)
      if not up:any():item() then break end
      k = k + up:to("f64")
    end
    while true do -- down while that of at most k - 1 is not
      local down = T.logical_and(k:gt(0), T.gammaincc(k:clamp { min = 1 }, rate):ge(u))
      if not down:any():item() then break end
      k = k - down:to("f64")
    end
    return T.where(rate:eq(0), rate, k):to(a.rates:dtype())
  end)
  -- How many of count trials succeed with probability prob.
  define("binomial", { { "count", "tensor" }, { "prob", "tensor" } }, function(a)
    nonnegative("binomial", a.count)
    nonnegative("binomial", a.prob)
    if a.prob:numel() > 0 and a.prob:gt(1):any():item() then fail("binomial: every probability must be at most 1") end
    local _ <close> = T.no_grad()
    local both = T.broadcast_tensors { a.count:floor(), a.prob:to(a.count:dtype()) }
    local n, p = both[1], both[2]
    local most = n:numel() > 0 and n:max():item() or 0
    if most > 1e6 then fail("binomial: counts may be at most 1e6, got %g", most) end
    local k = T.zeros_like(n)
    for trial = 1, math.tointeger(most) do
      k:add_(T.logical_and(T.rand(n:shape(), { dtype = "f64" }):lt(p), n:ge(trial)):to(k:dtype()))
    end
    return k
  end)

  -- x:name_(a, b) overwrites x with draws of f(u, a, b), u uniform in (0, 1).
  local function filler(name, args, f, check)
    table.insert(args, 1, { "x", "tensor" })
    define(name, args, function(a)
      if check then check(a) end
      local _ <close> = T.no_grad()
      a.x:copy_(f(a))
      return a.x
    end, methods)
  end
  filler("cauchy_", { { "median", "number", 0.0 }, { "sigma", "positive", 1.0 } }, function(a)
    return ((open_uniform(a.x:shape()) - 0.5) * pi):tan() * a.sigma + a.median
  end)
  filler("log_normal_", { { "mean", "number", 1.0 }, { "std", "nonnegative", 2.0 } }, function(a)
    return T.normal(a.mean, a.std, a.x:shape(), { dtype = "f64" }):exp()
  end)
  -- trials up to the first success, from 1 on
  filler("geometric_", { { "p", "probability" } }, function(a)
    return (open_uniform(a.x:shape()):log() / math.log(1 - a.p)):ceil():clamp { min = 1 }
  end, function(a)
    if a.p <= 0 or a.p >= 1 then fail("geometric_: p must be between 0 and 1, got %s", describe(a.p)) end
  end)
end
