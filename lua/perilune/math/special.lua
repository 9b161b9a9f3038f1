-- SPDX-License-Identifier: MIT
-- Functions of numbers made of other ops (logaddexp2, heaviside, float_power, mvlgamma, …), T.special with
-- PyTorch's names, signal windows, and random numbers of more distributions (poisson, binomial, cauchy_ …).
local options = require "perilune.options"
local values = require "perilune.values"

return function(T, core)
  local fail, methods = options.fail, core.metatable().methods
  local define = require "perilune.define"(T, core)
  local pi = math.pi

  -- The operands as tensors of one floating dtype.
  local function floats(x, y)
    if not core.is_tensor(x) and not core.is_tensor(y) then x = T.tensor(x) end
    local like = core.is_tensor(x) and x or y
    if core.is_tensor(x) and core.is_tensor(y) then
      local dtype = T.promote_types(x:dtype(), y:dtype())
      if (x:dim() > 0) ~= (y:dim() > 0) then -- a 0-d tensor counts as a number beside floats, as in arithmetic
        local t, number = x, y
        if x:dim() == 0 then t, number = y, x end
        dtype = (t:is_floating_point() or not number:is_floating_point()) and t:dtype() or number:dtype()
      end
      if not dtype:match("^b?f") then dtype = T.default_dtype() end
      return x:to(dtype), y:to(dtype)
    end
    local dtype = like:is_floating_point() and like:dtype() or T.default_dtype()
    local function made(v) return core.is_tensor(v) and v:to(dtype) or T.tensor(v, { dtype = dtype }) end
    return made(x), made(y)
  end

  -- ---- two operands ----------------------------------------------------------------------------------------

  local two = { { "x", "operand" }, { "y", "operand" } }

  --- T.logaddexp2(…) → tensor
  -- log2(2^x + 2^y) without overflow.
  --   print(T.logaddexp2(T.tensor { 1.0 }, T.tensor { 1.0 }))  --> {2.}  -- f32[1] cpu
  define("logaddexp2", two, function(a)
    local x, y = floats(a.x, a.y)
    local ln2, dtype = math.log(2), x:dtype()
    if dtype == "f16" or dtype == "bf16" then x, y = x:to("f32"), y:to("f32") end -- what is between is not rounded
    -- The greater is taken off first: times ln 2 is rounded, and far from 0 the slopes would show it.
    local m = T.maximum(x, y):detach()
    m = T.where(m:isfinite(), m, 0)
    return (T.logaddexp((x - m) * ln2, (y - m) * ln2) / ln2 + m):to(dtype)
  end)

  --- T.heaviside(…) → tensor
  -- 0 below 0, 1 above, and values at 0.
  --   print(T.tensor { -2, 0, 2 }:heaviside(0.5))  --> {0.0000, 0.5000, 1.0000}  -- f32[3] cpu
  define("heaviside", { { "x", "tensor" }, { "values", "operand" } }, function(a)
    local v = a.values
    if not core.is_tensor(v) then v = T.tensor(v, { dtype = a.x:dtype(), device = a.x:device() }) end
    if v:dtype() ~= a.x:dtype() then
      fail("heaviside: x and values must have one dtype, got %s and %s", a.x:describe(), v:describe())
    end
    return T.where(a.x:eq(0), v, a.x:gt(0):to(a.x:dtype()))
  end)

  --- T.float_power(…) → tensor
  -- x^y in f64.
  --   print(T.float_power(T.arange(3), 2))  --> {1., 4., 9.}  -- f64[3] cpu
  define("float_power", two, function(a)
    local function f64(v) return core.is_tensor(v) and v:to("f64") or T.tensor(v, { dtype = "f64" }) end
    return f64(a.x) ^ f64(a.y)
  end)

  --- T.ldexp(…) → tensor
  -- x 2^y, where 2^y itself may leave the range.
  --   print(T.ldexp(T.tensor { 1, 3 }, 2))  --> { 4., 12.}  -- f32[2] cpu
  define("ldexp", two, function(a)
    local x, y = floats(a.x, a.y)
    local dtype = x:dtype()
    -- an exponent of an integer dtype counts whole, whatever x's dtype can hold
    local e = core.is_tensor(a.y) and not a.y:is_floating_point() and a.y:to("f64") or y:to("f64")
    -- 2^e in three parts, each of which f64 has; beyond 2200 all is 0 or infinite.
    local whole = e:clamp(-2200, 2200)
    local third = (whole / 3):trunc()
    local scaled = x:to("f64") * T.exp2(third) * T.exp2(third) * T.exp2(whole - 2 * third)
    return scaled:to(dtype)
  end)
  -- x = m 2^e with 0.5 <= |m| < 1, or 0, inf and NaN with e = 0: m, e (i32). Small numbers are scaled up first, so that
  -- those below the normal ones keep their digits.
  --- T.frexp(…) → mantissa, exponent
  -- x = m 2^e with 0.5 <= |m| < 1; zeros, infinities and NaN come back with e = 0.
  --   print(T.frexp(T.tensor { 8, -0.3 }))  --> { 0.5000, -0.6000}  -- f32[2] cpu	{ 4, -1}  -- i32[2] cpu
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
    local half = (e / 2):floor()
    -- m = x 2^-e in f64, where neither a power nor a product leaves the range; dm = dx 2^-e
    local full = x:to("f64")
    local m = T.where(tiny, full * 2.0 ^ 200, full) * T.exp2(-half) * T.exp2(half - e)
    e = T.where(plain, e - tiny:double() * 200, T.zeros_like(e))
    return T.where(plain, m, full):to(x:dtype()), e:to("i32")
  end)

  --- T.special.xlog1py(…), as T.xlog1py
  -- Another name of T.xlog1py.
  --   print(T.special.xlog1py == T.xlog1py)  --> true

  --- T.xlog1py(…) → tensor
  -- x log(1 + y), and 0 where x is 0 (unless y is NaN).
  --   print(T.xlog1py(T.tensor { 0, 2 }, T.tensor { 5, 0 }))  --> {0., 0.}  -- f32[2] cpu
  local xlog1py = define("xlog1py", two, function(a)
    local x, y = floats(a.x, a.y)
    -- only where the logarithm is infinite: elsewhere 0 times it is 0, and the slope for x is the logarithm
    local zero = T.logical_and(x:eq(0), T.logical_or(y:le(-1), y:isposinf()))
    return x * T.where(zero, 0, y):log1p()
  end)

  -- ---- one operand -------------------------------------------------------------------------------------------

  --- T.isneginf(…) → bool tensor
  -- Whether each element is -inf.
  --   print(T.tensor { 1, -math.huge }:isneginf())  --> {false,  true}  -- bool[2] cpu

  --- T.isposinf(…) → bool tensor
  -- Whether each element is inf.
  --   print(T.tensor { 1, math.huge }:isposinf())  --> {false,  true}  -- bool[2] cpu
  for name, bound in pairs { isposinf = math.huge, isneginf = -math.huge } do
    define(name, { { "x", "tensor" } }, function(a) return a.x:eq(bound) end)
  end

  --- T.isreal(…) → bool tensor
  -- Whether each element is real: always.
  --   print(T.ones(2):isreal())  --> {true, true}  -- bool[2] cpu
  define("isreal", { { "x", "tensor" } }, function(a) return T.ones_like(a.x, { dtype = "bool" }) end)

  --- T.mvlgamma(…) → tensor
  -- The logarithm of the multivariate gamma function of dimension p, for x above (p - 1)/2.
  --   print(T.mvlgamma(T.tensor { 1.0 }, 1))  --> {0.}  -- f32[1] cpu
  define("mvlgamma", { { "x", "tensor" }, { "p", "count" } }, function(a)
    local x = floats(a.x, 0)
    if a.p > 1 and values.some(x, function(t) return t:le((a.p - 1) / 2) end) then
      fail("mvlgamma: every element must be above (p - 1)/2 = %g", (a.p - 1) / 2)
    end
    local y = x:lgamma()
    for j = 2, a.p do y = y + (x + (1 - j) / 2):lgamma() end
    return y + a.p * (a.p - 1) / 4 * math.log(pi)
  end)

  --- T.entr(…) → tensor
  -- -x log x, 0 at 0 and -inf below.
  --   print(T.entr(T.tensor { 0, 1 }))  --> { 0., -0.}  -- f32[2] cpu

  --- T.special.entr(…), as T.entr
  -- Another name of T.entr.
  --   print(T.special.entr == T.entr)  --> true
  local entr = define("entr", { { "x", "tensor" } }, function(a)
    local x = floats(a.x, 0)
    local edge = T.logical_or(x:eq(0), x:eq(math.huge))
    local y, e = T.where(edge, 1, x), T.where(edge, x, 1) + 0.0
    -- at 0 a root: 0, with a slope that is infinite, too; at infinity a parabola: the slope of x log x is inf / inf
    return T.where(edge, e:clamp { max = 1 }:sqrt() - e * e, T.where(x:lt(0), -math.huge, -(y * y:log())))
  end)

  --- T.ndtr(…) → tensor
  -- The distribution function of the standard normal distribution: the share below x.
  --   print(T.ndtr(T.tensor { 0.0, 1.96 }))  --> {0.5000, 0.9750}  -- f32[2] cpu

  --- T.special.ndtr(…), as T.ndtr
  -- Another name of T.ndtr.
  --   print(T.special.ndtr == T.ndtr)  --> true
  local ndtr = define("ndtr", { { "x", "tensor" } }, function(a)
    return (floats(a.x, 0) * -math.sqrt(0.5)):erfc() / 2
  end)
  -- The logarithm of ndtr; below -1 through erfcx, which does not underflow.
  --- T.log_ndtr(…) → tensor
  -- The logarithm of ndtr, exact also where that underflows.
  --   print(T.log_ndtr(T.tensor { 0.0, -40 }))  --> {-6.9315e-01, -8.0461e+02}  -- f32[2] cpu

  --- T.special.log_ndtr(…), as T.log_ndtr
  -- Another name of T.log_ndtr.
  --   print(T.special.log_ndtr == T.log_ndtr)  --> true
  local log_ndtr = define("log_ndtr", { { "x", "tensor" } }, function(a)
    local x = floats(a.x, 0)
    local low = x:lt(-1)
    local t = x * math.sqrt(0.5)
    local below, above = T.where(low, t, -1), T.where(low, 1, t) -- each finite where the other is taken
    local tail = (T.erfcx(-below) / 2):log() - below * below
    return T.where(low, tail, (above:erfc() / -2):log1p())
  end)

  --- T.special.digamma(…), as T.digamma
  -- Another name of T.digamma.
  --   print(T.special.digamma == T.digamma)  --> true

  --- T.special.erf(…), as T.erf
  -- Another name of T.erf.
  --   print(T.special.erf == T.erf)  --> true

  --- T.special.erfc(…), as T.erfc
  -- Another name of T.erfc.
  --   print(T.special.erfc == T.erfc)  --> true

  --- T.special.erfcx(…), as T.erfcx
  -- Another name of T.erfcx.
  --   print(T.special.erfcx == T.erfcx)  --> true

  --- T.special.erfinv(…), as T.erfinv
  -- Another name of T.erfinv.
  --   print(T.special.erfinv == T.erfinv)  --> true

  --- T.special.exp2(…), as T.exp2
  -- Another name of T.exp2.
  --   print(T.special.exp2 == T.exp2)  --> true

  --- T.special.expit(…), as T.sigmoid
  -- Another name of T.sigmoid.
  --   print(T.special.expit == T.sigmoid)  --> true

  --- T.special.expm1(…), as T.expm1
  -- Another name of T.expm1.
  --   print(T.special.expm1 == T.expm1)  --> true

  --- T.special.gammainc(…), as T.gammainc
  -- Another name of T.gammainc.
  --   print(T.special.gammainc == T.gammainc)  --> true

  --- T.special.gammaincc(…), as T.gammaincc
  -- Another name of T.gammaincc.
  --   print(T.special.gammaincc == T.gammaincc)  --> true

  --- T.special.gammaln(…), as T.lgamma
  -- Another name of T.lgamma.
  --   print(T.special.gammaln == T.lgamma)  --> true

  --- T.special.i0(…), as T.i0
  -- Another name of T.i0.
  --   print(T.special.i0 == T.i0)  --> true

  --- T.special.i0e(…), as T.i0e
  -- Another name of T.i0e.
  --   print(T.special.i0e == T.i0e)  --> true

  --- T.special.i1(…), as T.i1
  -- Another name of T.i1.
  --   print(T.special.i1 == T.i1)  --> true

  --- T.special.i1e(…), as T.i1e
  -- Another name of T.i1e.
  --   print(T.special.i1e == T.i1e)  --> true

  --- T.special.log1p(…), as T.log1p
  -- Another name of T.log1p.
  --   print(T.special.log1p == T.log1p)  --> true

  --- T.special.log_softmax(…), as T.log_softmax
  -- Another name of T.log_softmax.
  --   print(T.special.log_softmax == T.log_softmax)  --> true

  --- T.special.logit(…), as T.logit
  -- Another name of T.logit.
  --   print(T.special.logit == T.logit)  --> true

  --- T.special.logsumexp(…), as T.logsumexp
  -- Another name of T.logsumexp.
  --   print(T.special.logsumexp == T.logsumexp)  --> true

  --- T.special.modified_bessel_i0(…), as T.i0
  -- Another name of T.i0.
  --   print(T.special.modified_bessel_i0 == T.i0)  --> true

  --- T.special.modified_bessel_i1(…), as T.i1
  -- Another name of T.i1.
  --   print(T.special.modified_bessel_i1 == T.i1)  --> true

  --- T.special.multigammaln(…), as T.mvlgamma
  -- Another name of T.mvlgamma.
  --   print(T.special.multigammaln == T.mvlgamma)  --> true

  --- T.special.ndtri(…), as T.ndtri
  -- Another name of T.ndtri.
  --   print(T.special.ndtri == T.ndtri)  --> true

  --- T.special.polygamma(…), as T.polygamma
  -- Another name of T.polygamma.
  --   print(T.special.polygamma == T.polygamma)  --> true

  --- T.special.psi(…), as T.digamma
  -- Another name of T.digamma.
  --   print(T.special.psi == T.digamma)  --> true

  --- T.special.round(…), as T.round
  -- Another name of T.round.
  --   print(T.special.round == T.round)  --> true

  --- T.special.sinc(…), as T.sinc
  -- Another name of T.sinc.
  --   print(T.special.sinc == T.sinc)  --> true

  --- T.special.softmax(…), as T.softmax
  -- Another name of T.softmax.
  --   print(T.special.softmax == T.softmax)  --> true

  --- T.special.xlogy(…), as T.xlogy
  -- Another name of T.xlogy.
  --   print(T.special.xlogy == T.xlogy)  --> true
  T.special = {
    digamma = T.digamma, psi = T.digamma, entr = entr, erf = T.erf, erfc = T.erfc, erfcx = T.erfcx, erfinv = T.erfinv,
    exp2 = T.exp2, expit = T.sigmoid, expm1 = T.expm1, gammainc = T.gammainc, gammaincc = T.gammaincc,
    gammaln = T.lgamma, i0 = T.i0, i0e = T.i0e, i1 = T.i1, i1e = T.i1e, log1p = T.log1p, log_ndtr = log_ndtr,
    log_softmax = T.log_softmax, logit = T.logit, logsumexp = T.logsumexp, multigammaln = T.mvlgamma, ndtr = ndtr,
    ndtri = T.ndtri, polygamma = T.polygamma, round = T.round, sinc = T.sinc, softmax = T.softmax,
    xlog1py = xlog1py, xlogy = T.xlogy, modified_bessel_i0 = T.i0, modified_bessel_i1 = T.i1,
  }

  --- T.igamma(a, x) → tensor
  -- Another name of T.gammainc.
  --   print(T.igamma(T.tensor { 1.0 }, T.tensor { 0.0 }))  --> {0.}  -- f32[1] cpu
  T.igamma, methods.igamma = T.gammainc, T.gammainc

  --- T.igammac(a, x) → tensor
  -- Another name of T.gammaincc.
  --   print(T.igammac(T.tensor { 1.0 }, T.tensor { 0.0 }))  --> {1.}  -- f32[1] cpu
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

  --- T.bartlett_window(…) → tensor
  -- The triangle from 0 to 1 and back.
  --   print(T.bartlett_window(4))  --> {0.0000, 0.5000, 1.0000, 0.5000}  -- f32[4] cpu

  --- T.blackman_window(…) → tensor
  -- 0.42 - 0.5 cos 2πt + 0.08 cos 4πt.
  --   print(T.blackman_window(4))  --> {-1.3878e-17,  3.4000e-01,  1.0000e+00,  3.4000e-01}  -- f32[4] cpu

  --- T.hamming_window(…) → tensor
  -- alpha - beta cos 2πt.
  --   print(T.hamming_window(4))  --> {0.0800, 0.5400, 1.0000, 0.5400}  -- f32[4] cpu

  --- T.hann_window(…) → tensor
  -- (1 - cos 2πt)/2, t from 0 to 1; periodic leaves the last point out.
  --   print(T.hann_window(4))  --> {0.0000, 0.5000, 1.0000, 0.5000}  -- f32[4] cpu

  --- T.kaiser_window(…) → tensor
  -- I0(beta sqrt(1 - (2t - 1)²)) / I0(beta).
  --   print(T.kaiser_window(4, { beta = 3 }))  --> {0.2049, 0.7269, 1.0000, 0.7269}  -- f32[4] cpu
  for name, w in pairs(windows) do
    local args = { { "n", "size" }, { "periodic", "bool", true } }
    for k = 2, #w do args[#args + 1] = w[k] end
    args[#args + 1] = { "dtype", "string", optional = true }
    define(name, args, function(a)
      local dtype = a.dtype or T.default_dtype()
      dtype = T.promote_types(dtype, dtype) -- "float32" → "f32"
      if not dtype:find "^b?f" then fail("%s: dtype must be floating, got %s", name, dtype) end
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
    if values.some(x, function(t) return t:ge(0):logical_not() end) then
      fail("%s: every rate must be at least 0", who)
    end
  end
  -- By inversion: the smallest k with P(X ≤ k) = Q(k + 1, λ) ≥ u, found from the normal approximation on.
  --- T.poisson(…) → tensor
  -- Numbers from Poisson distributions with the given rates, one for each element.
  --   print(T.poisson(T.zeros(2)))  --> {0., 0.}  -- f32[2] cpu
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

  --- T.binomial(…) → tensor
  -- How many of count trials succeed with probability prob, drawn for each element.
  --   print(T.binomial(T.tensor { 3, 5 }, T.tensor { 1.0, 0.0 }))  --> {3., 0.}  -- f32[2] cpu
  define("binomial", { { "count", "tensor" }, { "prob", "tensor" } }, function(a)
    nonnegative("binomial", a.count)
    nonnegative("binomial", a.prob)
    if values.some(a.prob, function(t) return t:gt(1) end) then
      fail("binomial: every probability must be at most 1")
    end
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

  local define_method = require "perilune.define"(T, core, { into = methods })

  -- x:name_(a, b) overwrites x with draws of f(u, a, b), u uniform in (0, 1).
  local function filler(name, args, f, whole)
    table.insert(args, 1, { "x", "tensor" })
    define_method(name, args, function(a)
      if not whole and not a.x:is_floating_point() then
        fail("%s: x must be floating, got %s; convert it first: x:to(\"f32\")", name, a.x:describe())
      end
      local _ <close> = T.no_grad()
      a.x:copy_(f(a))
      return a.x
    end)
  end
  --- x:cauchy_(median=0, sigma=1) → x
  -- Fills with draws of a Cauchy distribution.
  --   print(T.zeros(9):cauchy_():isfinite():all():item())  --> true
  filler("cauchy_", { { "median", "number", 0.0 }, { "sigma", "positive", 1.0 } }, function(a)
    return ((open_uniform(a.x:shape()) - 0.5) * pi):tan() * a.sigma + a.median
  end)
  --- x:log_normal_(mean=1, std=2) → x
  -- Fills with exponentials of normal numbers of this mean and standard deviation.
  --   print(T.zeros(9):log_normal_():gt(0):all():item())  --> true
  filler("log_normal_", { { "mean", "number", 1.0 }, { "std", "nonnegative", 2.0 } }, function(a)
    return T.normal(a.mean, a.std, a.x:shape(), { dtype = "f64" }):exp()
  end)
  --- x:geometric_(p) → x
  -- Fills with how many trials, from 1 on, the first success takes.
  --   print(T.zeros(9):geometric_(0.5):ge(1):all():item())  --> true
  filler("geometric_", { { "p", "inner_probability" } }, function(a)
    return (open_uniform(a.x:shape()):log() / math.log(1 - a.p)):ceil():clamp { min = 1 }
  end, true)
end
