-- SPDX-License-Identifier: MIT
-- Statistics and numerical calculus made of other ops: cov, corrcoef, histc, histogram, quantile, nanquantile,
-- nanmedian, renorm, gradient, trapezoid, cumulative_trapezoid, pdist.
local options = require "perilune.options"
local values = require "perilune.values"

return function(T, core)
  local fail, describe = options.fail, options.describe
  local define = require "perilune.define"(T, core)

  local function axis(x, dim) return dim < 0 and dim + x:dim() + 1 or dim end
  local function floating(who, x)
    if not x:is_floating_point() then
      fail("%s: a floating tensor is wanted, got %s; convert it first: x:to(\"f32\")", who, x:describe())
    end
    return x
  end

  -- Halves pass through f32, so that what is made of several ops is rounded once: f(x, …) of wide tensors.
  local function in_f32(x, f)
    local dtype = x:dtype()
    if dtype ~= "f16" and dtype ~= "bf16" then return f(x) end
    return f(x:to("f32")):to(dtype)
  end

  -- ---- covariance --------------------------------------------------------------------------------------

  -- Σ w (x - m)(x - m)ᵀ / norm over observations in columns, w = fweights · aweights; norm = Σ w - correction
  -- · Σ w aweights / Σ w (NumPy's definition).
  local function cov(who, x, correction, fweights, aweights)
    if x:dim() > 2 then fail("%s: at most 2 dimensions are wanted, got %s", who, x:describe()) end
    if not x:is_floating_point() then x = x:to(T.default_dtype()) end
    if x:dim() < 2 then x = x:reshape(1, -1) end
    local one = x:size(1) == 1 -- a single variable has a variance, no matrix
    local n, w = x:size(2), nil
    for name, v in pairs { fweights = fweights or false, aweights = aweights or false } do
      if v then
        if v:dim() ~= 1 or v:numel() ~= n then
          fail("%s: %s must be a vector of %d weights, got %s", who, name, n, v:describe())
        end
        if name == "fweights" and v:is_floating_point() then
          fail("%s: fweights counts observations, integers are wanted, got %s", who, v:describe())
        end
        if values.some(v, function(t) return t:lt(0) end) then fail("%s: %s has negative entries", who, name) end
      end
    end
    if aweights and aweights:is_floating_point() then x = x:to(T.promote_types(x:dtype(), aweights:dtype())) end
    if fweights then w = fweights:to(x:dtype()) end
    if aweights then w = w and w * aweights:to(x:dtype()) or aweights:to(x:dtype()) end
    local total = w and w:sum() or n
    local function mean(v) return w and (v * w):sum(2, { keepdim = true }) / total or v:mean(2, { keepdim = true }) end
    local norm = total - correction
    if w and aweights and correction ~= 0 then norm = total - (w * aweights):sum() / total * correction end
    norm = w and norm:clamp { min = 0 } or math.max(norm, 0) -- infinite, not negative
    local c = x - mean(x)
    c = c - mean(c) -- the first mean was rounded
    local y = (w and c * w or c):matmul(c:t()) / norm
    return one and y:reshape {} or y
  end

  --- T.cov(…) → tensor
  -- The covariance matrix of variables in rows and observations in columns, divided by n - correction; fweights counts
  -- observations, aweights weighs them. Of one variable, a vector or a single row, its variance.
  --   print(T.cov(T.tensor { { 1, 2, 3 }, { 3, 2, 1 } }))
  --   --> {{ 1., -1.},
  --   -->  {-1.,  1.}}  -- f32[2,2] cpu
  define("cov", { { "x", "tensor" }, { "correction", "int", 1 }, { "fweights", "tensor", optional = true },
    { "aweights", "tensor", optional = true } },
    function(a) return cov("cov", a.x, a.correction, a.fweights, a.aweights) end)

  --- T.corrcoef(…) → tensor
  -- The correlation coefficients of variables in rows.
  --   print(T.corrcoef(T.tensor { { 1, 2, 3 }, { 3, 2, 1 } }))
  --   --> {{ 1., -1.},
  --   -->  {-1.,  1.}}  -- f32[2,2] cpu
  define("corrcoef", { { "x", "tensor" } }, function(a)
    local c = cov("corrcoef", a.x, 1)
    if c:dim() == 0 then return c / c end
    local d = c:diagonal():sqrt()
    return (c / d:unsqueeze(2) / d:unsqueeze(1)):clamp(-1, 1)
  end)

  core.rounded_once(T, { "cov", "corrcoef" })
  core.rounded_once(core.metatable().methods, { "cov", "corrcoef" })

  -- ---- histograms ------------------------------------------------------------------------------------------

  -- The ends of the first and the last bin; low nil: the extremes of x. Equal ones are moved apart by `room`.
  local function limits(who, x, low, high, room)
    if not low then
      low, high = 0, 0
      if x:numel() > 0 then low, high = x:min():item(), x:max():item() end
    end
    if not (low - low == 0 and high - high == 0) then
      fail("%s: the range is not finite: %s to %s", who, tostring(low), tostring(high))
    end
    if low > high then fail("%s: the range begins at %s, above its end %s", who, tostring(low), tostring(high)) end
    if low == high then low, high = low - room, high + room end
    return low, high
  end
  -- The bins of a vector's elements, from 0 on, `bins` where one is outside (or NaN). Places are found in the elements'
  -- own dtype, as PyTorch finds them: what is written 0.7 is then in the bin that begins at 0.7, in f32, too. inside:
  -- none is outside.
  local function equal_bins(bins, low, high, inside)
    local function f32(v) return (string.unpack("<f", string.pack("<f", v))) end
    return function(x)
      local wide = x:dtype() == "f64" or (f32(high) - f32(low)) * bins > 0x1p127 -- would be infinite
      x = x:to(wide and "f64" or "f32")
      local first, last = wide and low or f32(low), wide and high or f32(high)
      local outside = not inside and x:clamp({ min = first, max = last }):ne(x)
      local scale = wide and (high - low) * bins == math.huge and 0x1p-64 or 1
      local width = T.tensor(last * scale, { dtype = x:dtype(), device = x:device() }) - first * scale
      local at = ((scale == 1 and x or x * scale) - first * scale):mul_(bins):div_(width):clamp_ { max = bins - 1 }
      return (outside and at:masked_fill_(outside, bins) or at):long()
    end, 0
  end
  -- The same between edges, which need not be equally far apart; from 1 on, and 0 is outside, too.
  local function bins_between(edges)
    local last = edges:narrow(1, edges:numel(), 1)
    return function(x)
      return T.bucketize(x, edges, { right = true, index_base = 0 }):sub_(x:eq(last):long())
    end, 1
  end
  -- Counts (or weights) of x in `bins` bins, the first of which is number `from`; what is outside is left out. Some
  -- passes, over pieces that stay in a core's cache, as long as they are many times the bins.
  local function counted(x, bins, weights, bin_of, from)
    local flat = x:detach():reshape(-1)
    local n, piece = flat:numel(), 1 << 14
    if core.is_symbolic(flat) then -- the size of bincount's result is read of its values, this one is known
      local at = bin_of(flat)
      local each = weights and weights:detach():reshape(-1) or T.ones_like(at)
      return T.zeros({ from + bins + 1 }, { dtype = each:dtype(), device = x:device() })
        :index_add(1, at, each, { index_base = 0 }):narrow(1, from + 1, bins):clone()
    end
    if weights or x:device() ~= "cpu" or piece < 8 * bins then piece = math.max(n, 1) end
    local count = { minlength = from + bins + 1, index_base = 0, weights = weights and weights:reshape(-1) }
    local all
    for at = 1, math.max(n, 1), piece do
      local some = T.bincount(bin_of(flat:narrow(1, at, math.min(piece, n - at + 1))), count)
      all = all and all:add_(some) or some
    end
    return all:narrow(1, from + 1, bins):clone()
  end

  local function of_counts(x) return x:dtype() == "f64" and "f64" or "f32" end

  --- T.histc(…) → tensor
  -- How many elements are in each of equal bins from min to max (equal: from the least to the largest element), in x's
  -- dtype; of halves, which hold no large counts, in f32.
  --   print(T.tensor { 1, 2, 2, 3 }:histc(3, 1, 4))  --> {1., 2., 1.}  -- f32[3] cpu
  define("histc", { { "x", "tensor" }, { "bins", "count", 100 }, { "min", "number", 0 }, { "max", "number", 0 } },
    function(a)
      floating("histc", a.x)
      local same = a.min == a.max
      local low, high = limits("histc", a.x, not same and a.min or nil, a.max, 1)
      return counted(a.x, a.bins, nil, equal_bins(a.bins, low, high, same)):to(of_counts(a.x))
    end)
  -- counts and edges; bins: how many between the extremes (or range), or the edges themselves
  --- T.histogram(…) → counts, edges
  -- How many elements are between neighbouring edges: an edge begins its bin, the last one ends it. bins: how many,
  -- from range={low, high} or the least to the largest element, or the edges themselves. density=true scales to area 1.
  --   print(T.histogram(T.tensor { 1, 2, 2, 3 }, 2, { range = { 1, 3 } }))
  --   --> {1., 3.}  -- f32[2] cpu	{1., 2., 3.}  -- f32[3] cpu
  define("histogram", { { "x", "tensor" }, { "bins", "any" }, { "range", "any", optional = true },
    { "weight", "tensor", optional = true }, { "density", "bool", false } }, function(a)
    floating("histogram", a.x)
    if a.weight and a.weight:numel() ~= a.x:numel() then
      fail("histogram: %s weights for %s", a.weight:describe(), a.x:describe())
    end
    local edges
    if core.is_tensor(a.bins) then
      edges = a.bins
      if a.range ~= nil then fail("histogram: range goes with a number of bins; bins are edges here") end
      if edges:dim() ~= 1 or edges:numel() < 2 then
        fail("histogram: bins must be a number or a vector of at least two edges, got %s", describe(edges))
      end
    else
      local bins = options.integer(a.bins)
      if not bins or bins < 1 then fail("histogram: bins must be a positive integer, got %s", describe(a.bins)) end
      local r = a.range or {}
      if a.range and (type(r) ~= "table" or #r ~= 2 or type(r[1]) ~= "number" or type(r[2]) ~= "number") then
        fail("histogram: range must be {low, high}, got %s", describe(a.range))
      end
      local low, high = limits("histogram", a.x, r[1], r[2], 0.5)
      local dtype = a.x:dtype()
      edges = T.linspace(low, high, bins + 1, { dtype = high - low < 0x1p127 and dtype or "f64" }):to(dtype)
    end
    local hist = counted(a.x, edges:numel() - 1, a.weight, bins_between(edges))
    hist = hist:to(of_counts(a.x))
    if a.density then hist = hist / hist:sum() / edges:diff() end
    return hist, edges
  end)

  -- ---- order statistics --------------------------------------------------------------------------------------

  local function lines(x, dim)
    local flat = dim and x or x:reshape(-1)
    return flat, axis(flat, dim or 1)
  end
  local function numbers(flat, d) return T.isnan(flat):logical_not():sum(d, { keepdim = true }) end
  -- Values of x in ascending order along dim, NaN last, and how many numbers each line has.
  local function ordered(x, dim)
    local flat, d = lines(x, dim)
    local sorted, places = flat:sort(d)
    return sorted, places, numbers(flat, d), d
  end
  -- A number as this dtype holds it.
  local function stored(v, dtype) return dtype == "f32" and string.unpack("f", string.pack("f", v)) or v end
  -- Whether a saved graph is made whose sizes are free: which element it is has to be said there, not here.
  local function sizes_are_free()
    local sizes = package.loaded["perilune.graph.sizes"]
    return sizes and sizes.tracing
  end
  local SELECTED = 4096 -- of as many elements the kernel finds one without sorting them

  -- Whether dim is the one that a 0-d tensor has for reductions.
  local function number_along(x, dim) return x:dim() == 0 and (dim == 1 or dim == -1) end
  local function outside(q) return T.logical_and(q:ge(0), q:le(1)):logical_not() end

  local modes = { "linear", "lower", "higher", "midpoint", "nearest" }
  -- The value at rank q (n - 1) of each line, between neighbours as `mode` says. skip: NaN does not count.
  --- T.quantile(…) → tensor
  -- The value that a share q of the elements does not exceed, of all or along dim; NaN if one is. q may be a vector:
  -- then its dimension comes first.
  --   print(T.tensor { 1, 2, 3, 4 }:quantile(0.5):item())  --> 2.5
  local function quantile(who, a, skip)
    local x, q = floating(who, a.x), a.q
    if number_along(x, a.dim) then a.dim = nil end
    local within = type(q) == "number" and q >= 0 and q <= 1 -- needs no values, also in a traced function
    if type(q) == "number" then q = T.tensor({ q }, { dtype = x:dtype(), device = x:device() })
    elseif core.is_tensor(q) and q:dim() <= 1 then q = q:reshape(-1)
    else fail("%s: q must be a number or a vector, got %s", who, describe(a.q)) end
    q = q:to(x:dtype())
    if not within and (type(a.q) == "number" or values.some(q, outside)) then
      fail("%s: q must be a number from 0 to 1, got %s", who,
        type(a.q) == "number" and tostring(a.q) or core.readable(q):brief())
    end
    local flat, d = lines(x, a.dim)
    local n = flat:size(d)
    if n == 0 then fail("%s: %s has no elements along the dimension", who, x:describe()) end
    local count, at, element -- ranks, in f64, as f32 has no halves beyond 2^23; and the elements there, rounded so
    if within and not skip and n >= SELECTED and not sizes_are_free() then
      local r = stored(a.q, x:dtype()) * (n - 1)
      local low, high = math.floor(r), math.ceil(r)
      local near = (r - low > 0.5 or r - low == 0.5 and low % 2 == 1) and high or low
      local places = { floor = low, ceil = high, round = near }
      count, at = numbers(flat, d), T.tensor({ r }, { dtype = "f64", device = x:device() })
      function element(round) return (flat:kthvalue(places[round] + 1, { dim = d, keepdim = true })) end
    else
      local sorted, _
      local shape = {}
      sorted, _, count = ordered(x, a.dim)
      for k = 1, sorted:dim() do shape[k] = k == d and q:numel() or 1 end
      local top = (skip and count:clamp { min = 1 } or T.full_like(count, n)):to("f64") - 1
      at = top * q:reshape(shape):to("f64")
      function element(round)
        return T.take_along_dim(sorted, at[round](at):long(), { dim = d, index_base = 0 })
      end
    end
    local round = ({ lower = "floor", higher = "ceil", nearest = "round" })[a.interpolation]
    local y
    if round then y = element(round) -- an element itself, infinite ones, too
    else
      local share = at - at:floor()
      share = a.interpolation == "midpoint" and share:gt(0):to(x:dtype()) * 0.5 or share:to(x:dtype())
      y = T.lerp(element("floor"), element("ceil"), share)
    end
    local bad = skip and count:eq(0) or count:lt(n)
    y = y:masked_fill(bad, 0 / 0)
    -- the dimension of q goes first, or away for a number; reduced dimensions stay only with keepdim
    y = y:movedim(d, 1)
    local rest = y:shape()
    table.remove(rest, 1)
    if a.keepdim and a.dim then table.insert(rest, d, 1)
    elseif a.keepdim then for k = 1, x:dim() do rest[k] = 1 end end
    local vector = core.is_tensor(a.q) and a.q:dim() == 1
    if vector then table.insert(rest, 1, q:numel()) end
    return y:reshape(rest)
  end

  --- T.nanquantile(…) → tensor
  -- As quantile, of the elements that are not NaN.
  --   print(T.tensor { 1, 0 / 0, 3 }:nanquantile(0.5):item())  --> 2.0
  for name, skip in pairs { quantile = false, nanquantile = true } do
    define(name, { { "x", "tensor" }, { "q", "any" }, { "dim", "int", optional = true }, { "keepdim", "bool", false },
      { "interpolation", modes, "linear" } }, function(a)
      return in_f32(a.x, function(x) -- in halves ranks would be rounded to some 11 bits or 8
        a.x = x
        return quantile(name, a, skip)
      end)
    end)
  end
  core.full_precision(T, { "quantile", "nanquantile" })
  core.full_precision(core.metatable().methods, { "quantile", "nanquantile" })

  --- T.nanmedian(…) → value, or values, indices along dim
  -- The lower median of the elements that are not NaN.
  --   print(T.tensor { 1, 0 / 0, 3, 2 }:nanmedian():item())  --> 2.0
  define("nanmedian", { { "x", "tensor" }, { "dim", "int", optional = true }, { "keepdim", "bool", false },
    { "index_base", "int", 1 } }, function(a)
    if not a.x:is_floating_point() then
      if a.dim then return T.median(a.x, a.dim, { keepdim = a.keepdim, index_base = a.index_base }) end
      return (T.median(a.x))
    end
    if a.x:numel() == 0 and not a.dim then return T.tensor(0 / 0, { dtype = a.x:dtype(), device = a.x:device() }) end
    local number = number_along(a.x, a.dim)
    local sorted, places, count, d = ordered(number and a.x:reshape(1) or a.x, a.dim)
    local at = T.floor_divide(count:clamp { min = 1 } - 1, 2)
    local value = T.take_along_dim(sorted, at, { dim = d, index_base = 0 })
    if not a.dim then -- equal elements share the gradient, as in median
      value = value:reshape {}
      local sign = value:detach():lt(0):to(a.x:dtype()) * -2 + 1 -- so that nothing else is as low as -inf
      local shared = T.where(a.x:eq(value:detach()), a.x * sign, T.full_like(value, -1 / 0)):amax() * sign
      return T.where(value:isnan(), value, shared)
    end
    local place = T.take_along_dim(places, at, { dim = d, index_base = 0 }) - 1 + a.index_base
    if a.keepdim and not number then return value, place end
    return value:squeeze(d), place:squeeze(d)
  end)

  -- ---- norms and distances -----------------------------------------------------------------------------------

  --- T.renorm(…) → tensor
  -- x with every slice along dim whose p-norm exceeds maxnorm scaled down to it.
  --   print(T.tensor { { 3, 4 }, { 0.3, 0.4 } }:renorm(2, 1, 1))
  --   --> {{0.6000, 0.8000},
  --   -->  {0.3000, 0.4000}}  -- f32[2,2] cpu
  local renorm = define("renorm", { { "x", "tensor" }, { "p", "number" }, { "dim", "int" },
    { "maxnorm", "nonnegative" } }, function(a)
    floating("renorm", a.x)
    if a.x:dim() < 2 then fail("renorm: at least 2 dimensions are wanted, got %s", a.x:describe()) end
    if a.p <= 0 or a.p ~= a.p then fail("renorm: p must be positive, got %s", tostring(a.p)) end
    local d, others = axis(a.x, a.dim), {}
    a.x:size(a.dim)
    for k = 1, a.x:dim() do if k ~= d then others[#others + 1] = k end end
    return in_f32(a.x, function(x)
      local o = { p = a.p, dim = others, keepdim = true }
      local over = x:detach():norm(o):gt(a.maxnorm)
      local norm = T.where(over, x, 0):norm(o) -- a norm that is not greater has no part in the gradient, be it NaN
      return x * T.where(over, a.maxnorm / (norm + 1e-7), T.ones_like(norm))
    end)
  end)
  --- x:renorm_(p, dim, maxnorm) → x
  -- renorm in place.
  --   print(T.tensor { { 3, 4 }, { 0, 1 } }:renorm_(2, 1, 1)[1])  --> {0.6000, 0.8000}  -- f32[2] cpu
  core.metatable().methods.renorm_ = options.named("renorm_", function(x, ...)
    if not core.is_tensor(x) then fail("renorm_: argument #1 must be a tensor, got %s", options.describe(x)) end
    return x:copy_(renorm(x, ...))
  end)

  --- T.pdist(…) → tensor
  -- The distances of all pairs of rows of [N, M], N (N - 1)/2 numbers.
  --   print(T.pdist(T.tensor { { 0, 0 }, { 3, 4 }, { 3, 0 } }))  --> {5., 3., 4.}  -- f32[3] cpu
  define("pdist", { { "x", "tensor" }, { "p", "nonnegative_or_inf", 2.0 } }, function(a)
    floating("pdist", a.x)
    if a.x:dim() ~= 2 then fail("pdist: rows [N, M] are wanted, got %s", a.x:describe()) end
    local n = a.x:size(1)
    if n < 2 then return a.x:narrow(1, 1, 0):sum(2) end -- of no rows: what differentiates it gives zeros
    local first, second = {}, {}
    for i = 1, n - 1 do
      for j = i + 1, n do first[#first + 1], second[#second + 1] = i, j end
    end
    local whole = { dtype = "i64", device = a.x:device() }
    local difference = T.index_select(a.x, T.tensor(first, whole), 1) - T.index_select(a.x, T.tensor(second, whole), 1)
    return difference:norm { p = a.p, dim = 2 }
  end)

  -- ---- calculus ------------------------------------------------------------------------------------------------

  -- (y_i + y_(i+1))/2 times the widths: of x, or dx
  local function strips(who, y, x, dx, dim)
    local n = y:size(dim)
    if n < 2 then return nil end
    local sums = (T.narrow(y, dim, 1, n - 1) + T.narrow(y, dim, 2, n - 1)) / 2
    if not x then return sums * dx end
    local d = axis(y, dim)
    while x:dim() > 1 and x:dim() < y:dim() do x = x:unsqueeze(1) end -- dims are those of y
    local at = x:dim() == 1 and 1 or axis(x, dim)
    if x:size(at) ~= n then fail("%s: %d positions x for %d values along dim %d", who, x:size(at), n, dim) end
    local widths = T.narrow(x, at, 2, n - 1) - T.narrow(x, at, 1, n - 1)
    if x:dim() == 1 then
      local shape = {}
      for k = 1, y:dim() do shape[k] = k == d and n - 1 or 1 end
      widths = widths:reshape(shape)
    end
    return sums * widths
  end

  --- T.cumulative_trapezoid(…) → tensor
  -- The integrals of y up to each position by the trapezoidal rule.
  --   print(T.tensor { 0, 1, 2 }:cumulative_trapezoid())  --> {0.5000, 2.0000}  -- f32[2] cpu

  --- T.trapezoid(…) → tensor
  -- The integral of y over dim by the trapezoidal rule, at positions x or with the step dx.
  --   print(T.tensor { 0, 1, 2 }:trapezoid():item())  --> 2.0
  local function calculus(name, sum)
    define(name, { { "y", "tensor" }, { "x", "tensor", optional = true },
      { "dx", "number", optional = true }, { "dim", "int", -1 } },
      function(a)
        if a.x and a.dx then fail("%s: positions x or a step dx, not both", name) end
        local function integral(y, x) return sum(strips(name, y, x, a.dx or 1, a.dim), { y = y, dim = a.dim }) end
        if a.x and a.x:dtype() ~= a.y:dtype() then return integral(a.y, a.x) end
        return in_f32(a.y, function(y) return integral(y, a.x and a.x:to(y:dtype())) end)
      end)
  end
  calculus("trapezoid", function(parts, a) return parts and parts:sum(a.dim) or a.y:narrow(a.dim, 1, 0):sum(a.dim) end)
  calculus("cumulative_trapezoid", function(parts, a)
    return parts and parts:cumsum(a.dim) or T.narrow(a.y, a.dim, 1, 0) * 1.0
  end)

  --- T.trapz(y, x?, {dx=1, dim=-1}) → tensor
  -- Another name of T.trapezoid.
  --   print(T.trapz(T.tensor { 0, 1, 2 }):item())  --> 2.0
  T.trapz = T.trapezoid

  -- The derivative along d at positions with the given step, or with coordinates h (a vector): second order inside
  -- (for uneven steps the parabola through three points), of edge_order at the ends (NumPy's scheme).
  local function slope(y, d, step, h, edge)
    local n = y:size(d)
    local function part(from, length) return T.narrow(y, d, from, length) end
    local shape = {}
    for k = 1, y:dim() do shape[k] = k == d and -1 or 1 end
    local inner, first, last
    if not h then
      if n > 2 then inner = (part(3, n - 2) - part(1, n - 2)) / (2 * step) end
      if edge == 1 then
        first, last = (part(2, 1) - part(1, 1)) / step, (part(n, 1) - part(n - 1, 1)) / step
      else
        first = (part(1, 1) * -1.5 + part(2, 1) * 2 - part(3, 1) * 0.5) / step
        last = (part(n, 1) * 1.5 - part(n - 1, 1) * 2 + part(n - 2, 1) * 0.5) / step
      end
      return inner and T.cat({ first, inner, last }, d) or T.cat({ first, last }, d)
    end
    local w = T.diff(h)
    local function width(from, length) return T.narrow(w, 1, from, length):reshape(shape) end
    if n > 2 then
      local a, b = width(1, n - 2), width(2, n - 2)
      inner = part(1, n - 2) * (-b / (a * (a + b))) + part(2, n - 2) * ((b - a) / (a * b))
        + part(3, n - 2) * (a / (b * (a + b)))
    end
    local a, b = width(1, 1), width(n - 1, 1)
    if edge == 1 then
      first, last = (part(2, 1) - part(1, 1)) / a, (part(n, 1) - part(n - 1, 1)) / b
    else
      local a2, b2 = width(2, 1), width(n - 2, 1)
      first = part(1, 1) * (-(a * 2 + a2) / (a * (a + a2))) + part(2, 1) * ((a + a2) / (a * a2))
        - part(3, 1) * (a / (a2 * (a + a2)))
      last = part(n - 2, 1) * (b / (b2 * (b2 + b))) - part(n - 1, 1) * ((b2 + b) / (b2 * b))
        + part(n, 1) * ((b2 + b * 2) / (b * (b2 + b)))
    end
    return inner and T.cat({ first, inner, last }, d) or T.cat({ first, last }, d)
  end

  --- T.gradient(…) → list of tensors
  -- The derivatives of values on a grid, one tensor a dimension: second order inside, of edge_order at the ends.
  -- spacing: a step, or one or the coordinates for each dimension.
  --   print(T.gradient(T.tensor { 1, 4, 9, 16 })[1])  --> {3., 4., 6., 7.}  -- f32[4] cpu
  define("gradient", { { "y", "tensor" }, { "spacing", "any", 1 }, { "dim", "ints", optional = true },
    { "edge_order", "count", 1 } }, function(a)
    local y, dims = a.y, a.dim
    if not y:is_floating_point() then y = y:to(T.default_dtype()) end
    if type(dims) == "number" then dims = { dims } end
    if not dims then
      dims = {}
      for d = 1, y:dim() do dims[d] = d end
    end
    local seen = {}
    for _, d in ipairs(dims) do
      local at = axis(y, d)
      if seen[at] then fail("gradient: dimension %d is given twice", d) end
      seen[at] = true
    end
    if a.edge_order > 2 then fail("gradient: edge_order must be 1 or 2, got %d", a.edge_order) end
    local spacing = a.spacing
    if type(spacing) == "number" or core.is_tensor(spacing) then
      local one = spacing
      spacing = {}
      for i = 1, #dims do spacing[i] = one end
    end
    if type(spacing) ~= "table" or #spacing ~= #dims then
      fail("gradient: spacing must be a number, or a list with one entry for each of the %d dims", #dims)
    end
    local out = {}
    for i, d in ipairs(dims) do
      local n, s = y:size(d), spacing[i]
      if n < a.edge_order + 1 then
        fail("gradient: dimension %d of %s needs at least %d elements", d, y:describe(), a.edge_order + 1)
      end
      if core.is_tensor(s) then
        if s:dim() ~= 1 or s:numel() ~= n then
          fail("gradient: the coordinates of dimension %d must be a vector of %d, got %s", d, n, s:describe())
        end
      elseif type(s) ~= "number" then
        fail("gradient: spacing %d must be a number or a vector, got %s", i, describe(s))
      end
      local h = core.is_tensor(s) and s:to(y:dtype()) or nil
      out[i] = slope(y, axis(y, d), not h and s or nil, h, a.edge_order)
    end
    return out
  end)

  -- ---- the alias method ----------------------------------------------------------------------------------

  --- T.multinomial_alias_draw(J, q, num_samples, {index_base=1, generator=}) → tensor
  -- num_samples categories with replacement from the tables of T.multinomial_alias_setup, each in constant time: faster
  -- than T.multinomial where many are drawn from the same weights.
  --   local J, q = T.multinomial_alias_setup(T.tensor { 0, 3, 0 })
  --   print(T.multinomial_alias_draw(J, q, 4))  --> {2, 2, 2, 2}  -- i64[4] cpu
  define("multinomial_alias_draw", { { "J", "tensor" }, { "q", "tensor" }, { "num_samples", "size" },
    { "index_base", "int", 1 }, { "generator", "any", optional = true } }, function(a)
    local J, q = a.J, a.q
    local k = q:numel()
    if q:dim() ~= 1 or k == 0 or not q:is_floating_point() or J:dtype() ~= "i64" or J:dim() ~= 1 or J:numel() ~= k then
      fail("multinomial_alias_draw: J and q must be what T.multinomial_alias_setup gave, got %s and %s", J:describe(),
        q:describe())
    end
    -- one number says the place, and by what is behind its point which of the place's two categories
    local u = T.rand({ a.num_samples }, { dtype = "f64", device = q:device(), generator = a.generator }) * k
    local place = u:long():clamp { max = k - 1 }
    local own = (u - place:to("f64")):lt(T.index_select(q, place, { dim = 1, index_base = 0 }):to("f64"))
    return T.where(own, place + a.index_base, T.index_select(J, place, { dim = 1, index_base = 0 }))
  end)
end
