-- SPDX-License-Identifier: MIT
-- Small conveniences made of other ops, under the names that users of PyTorch and NumPy look for: clip, fliplr,
-- moveaxis, atleast_2d, block_diag, nanmean, new_zeros … Each is both T.name(x, …) and
-- x:name(…), except those that take a list.
local options = require "perilune.options"

return function(T, core)
  local is_tensor, fail, describe = core.is_tensor, options.fail, options.describe
  local methods = core.metatable().methods

  local define = require "perilune.define"(T, core)
  local check = core.check_tensor
  local function tensors(fn, list)
    return options.tensors(fn, "tensors", list, 1)
  end

  -- ---- limits and angles --------------------------------------------------------------------------------

  --- T.clip(x, min?, max?) → tensor
  -- T.clamp under its other name: x limited to [min, max].
  --   print(T.tensor { 1, 5 }:clip(2, 3))  --> {2., 3.}  -- f32[2] cpu
  define("clip", T.clamp)

  --- T.clip_(x, min?, max?) → x
  -- T.clamp_ under its other name: limits x in place.
  --   print(T.tensor { 1, 5 }:clip_(2, 3))  --> {2., 3.}  -- f32[2] cpu
  define("clip_", T.clamp_)

  --- T.clamp_min(x, lo) → tensor
  -- The larger of x and lo, a number or a tensor.
  --   print(T.tensor { 1, 5 }:clamp_min(2))  --> {2., 5.}  -- f32[2] cpu
  define("clamp_min", function(x, lo)
    return is_tensor(lo) and T.maximum(x, lo) or T.clamp(check("clamp_min", x), lo)
  end)

  --- T.clamp_max(x, hi) → tensor
  -- The smaller of x and hi, a number or a tensor.
  --   print(T.tensor { 1, 5 }:clamp_max(2))  --> {1., 2.}  -- f32[2] cpu
  define("clamp_max", function(x, hi)
    if hi == nil then fail("clamp_max: a number or a tensor is wanted, got nil") end
    if is_tensor(hi) then return T.minimum(x, hi) end
    if type(hi) ~= "number" then fail("clamp_max: a number or a tensor is wanted, got %s", describe(hi)) end
    return T.clamp(check("clamp_max", x), { max = hi })
  end)

  --- T.deg2rad(x) → tensor
  -- Degrees to radians: x · π/180.
  --   print(T.tensor { 180 }:deg2rad())  --> {3.1416}  -- f32[1] cpu
  define("deg2rad", function(x) return check("deg2rad", x) * (math.pi / 180) end)

  --- T.rad2deg(x) → tensor
  -- Radians to degrees: x · 180/π.
  --   print(T.tensor { 0 }:rad2deg())  --> {0.}  -- f32[1] cpu
  define("rad2deg", function(x) return check("rad2deg", x) * (180 / math.pi) end)

  --- x:clamp_max_(hi) → x
  -- Nothing above hi, in place.
  --   print(T.clamp_max_(T.tensor { -1, 2 }, 0))  --> {-1.,  0.}  -- f32[2] cpu

  --- x:clamp_min_(lo) → x
  -- Nothing below lo, in place.
  --   print(T.clamp_min_(T.tensor { -1, 2 }, 0))  --> {0., 2.}  -- f32[2] cpu

  --- x:deg2rad_() → x
  -- Degrees become radians, in place.
  --   print(T.deg2rad_(T.tensor { 180 }))  --> {3.1416}  -- f32[1] cpu

  --- x:rad2deg_() → x
  -- Radians become degrees, in place.
  --   print(T.rad2deg_(T.tensor { 0 }))  --> {0.}  -- f32[1] cpu
  for _, name in ipairs { "deg2rad", "rad2deg", "clamp_min", "clamp_max" } do
    define(name .. "_", options.named(name .. "_", function(x, ...)
      return check(name .. "_", x):copy_(T[name](x, ...))
    end))
  end

  -- ---- shapes ---------------------------------------------------------------------------------------------

  --- T.ravel(x) → tensor
  -- All elements in one dimension; a view where the layout allows it.
  --   print(T.ones(2, 3):ravel():size(1))  --> 6
  define("ravel", function(x) return check("ravel", x):reshape(-1) end)

  --- T.moveaxis(x, source, destination) → view
  -- T.movedim under its other name.
  --   print(T.zeros(1, 2, 3):moveaxis(1, -1):size(3))  --> 1
  define("moveaxis", T.movedim)

  --- T.swapaxes(x, dim0, dim1) → view
  -- T.transpose under its other name.
  --   print(T.zeros(2, 3):swapaxes(1, 2):size(1))  --> 3
  define("swapaxes", T.transpose)

  --- T.fliplr(x) → tensor
  -- Columns (dimension 2) in reverse order.
  --   print(T.tensor { { 1, 2 } }:fliplr())  --> {{2., 1.}}  -- f32[1,2] cpu
  define("fliplr", function(x)
    if check("fliplr", x):dim() < 2 then fail("fliplr: at least 2 dimensions are wanted, got %s", describe(x)) end
    return x:flip(2)
  end)

  --- T.flipud(x) → tensor
  -- Rows (dimension 1) in reverse order.
  --   print(T.tensor { 1, 2 }:flipud())  --> {2., 1.}  -- f32[2] cpu
  define("flipud", function(x)
    if check("flipud", x):dim() < 1 then fail("flipud: at least 1 dimension is wanted, got %s", describe(x)) end
    return x:flip(1)
  end)

  --- T.atleast_1d(x) → tensor
  -- A 0-d tensor as a vector of one; others unchanged.
  --   print(T.tensor(3):atleast_1d())  --> {3.}  -- f32[1] cpu
  define("atleast_1d", function(x) return check("atleast_1d", x):dim() == 0 and x:reshape(1) or x end)

  --- T.atleast_2d(x) → tensor
  -- A number or vector as a matrix of one row; others unchanged.
  --   print(T.tensor { 3, 4 }:atleast_2d())  --> {{3., 4.}}  -- f32[1,2] cpu
  define("atleast_2d", function(x)
    x = T.atleast_1d(check("atleast_2d", x))
    return x:dim() == 1 and x:unsqueeze(1) or x
  end)

  --- T.column_stack{x, …} → tensor
  -- Side by side: vectors become columns, matrices stay.
  --   print(T.column_stack { T.tensor { 1, 2 }, T.tensor { 3, 4 } }[1])  --> {1., 3.}  -- f32[2] cpu
  function T.column_stack(list)
    local parts = {}
    for i, t in ipairs(tensors("column_stack", list)) do parts[i] = t:dim() < 2 and t:reshape(-1, 1) or t end
    return T.cat(parts, 2)
  end

  --- T.broadcast_tensors{x, …} → list
  -- Views of one common shape.
  --   print(T.broadcast_tensors { T.ones(2, 1), T.zeros(3) }[1]:size(2))  --> 3
  function T.broadcast_tensors(list)
    local sizes, out = {}, {}
    list = tensors("broadcast_tensors", list)
    for _, t in ipairs(list) do -- sizes counted from the last dim
      local shape = t:shape()
      for k = 1, #shape do
        local n, seen = shape[#shape + 1 - k], sizes[k]
        if seen == nil or seen == 1 then
          sizes[k] = n
        elseif n ~= 1 and n ~= seen then
          fail("broadcast_tensors: sizes %d and %d differ at dim -%d; sizes must be equal or 1", seen, n, k)
        end
      end
    end
    local shape = {}
    for k = 1, #sizes do shape[k] = sizes[#sizes + 1 - k] end
    for i, t in ipairs(list) do out[i] = t:expand(shape) end
    return out
  end

  --- T.block_diag{a, …} → tensor
  -- Matrices along the diagonal of one, zeros elsewhere. Vectors count as rows.
  --   print(T.block_diag { T.tensor { 1 }, T.tensor { 2, 3 } }[2])  --> {0., 2., 3.}  -- f32[3] cpu
  function T.block_diag(list)
    local parts, width, left = {}, 0, 0
    for i, t in ipairs(tensors("block_diag", list)) do
      parts[i] = T.atleast_2d(t)
      if parts[i]:dim() ~= 2 then fail("block_diag: entry %d must be a matrix, got %s", i, describe(t)) end
      width = width + parts[i]:size(2)
    end
    for i, t in ipairs(parts) do
      local n = t:size(2)
      parts[i] = T.pad(t, { left, width - left - n })
      left = left + n
    end
    return T.cat(parts, 1)
  end

  -- ---- reductions -------------------------------------------------------------------------------------------

  --- T.argwhere(x) → i64 [n, dims]
  -- Places of what is not zero, one a row.
  --   print(T.tensor { 0, 7 }:argwhere())  --> {{2}}  -- i64[1,1] cpu
  define("argwhere", function(x) return check("argwhere", x):nonzero() end)

  --- T.nanmean(x, dim?, {keepdim=false}) → tensor
  -- Mean of what is not NaN.
  --   print(T.tensor { 1, 0 / 0, 3 }:nanmean():item())  --> 2.0
  define("nanmean", function(x, dim, opts)
    local d, given = core.dim_of("nanmean", dim, opts, { "dim", "keepdim" })
    local o = { keepdim = given.keepdim }
    local dtype = check("nanmean", x):dtype()
    if dtype == "f16" or dtype == "bf16" then x = x:to("f32") end -- halves count to 65504, or in steps
    local y = T.nansum(x, d, o) / T.sum(x:isnan():logical_not(), d, o)
    return (dtype == "f16" or dtype == "bf16") and y:to(dtype) or y
  end)

  --- T.dist(x, y, p=2) → 0-d tensor
  -- The p-norm of x - y.
  --   print(T.tensor { 3, 0 }:dist(T.tensor { 0, 4 }):item())  --> 5.0
  define("dist", { { "x", "tensor" }, { "y", "tensor" }, { "p", "number", 2 } }, function(a)
    return T.norm(a.x - a.y, a.p)
  end)
  -- ---- makers with the dtype of another tensor ------------------------------------------------------------------
  local function made_like(fn, x, opts)
    local o = options.check(fn, opts, { "dtype", "device", "requires_grad" })
    return { dtype = o.dtype or check(fn, x):dtype(), device = o.device or x:device(), requires_grad = o.requires_grad }
  end
  --- x:new_empty(sizes, {dtype=, device=, requires_grad=}) → tensor
  -- An uninitialized tensor, with x's dtype and device.
  --   print(T.ones(2):new_empty(2, 3):numel())  --> 6

  --- x:new_ones(sizes, {dtype=, device=, requires_grad=}) → tensor
  -- Ones, with x's dtype and device.
  --   print(T.ones(2):new_ones(1))  --> {1.}  -- f32[1] cpu

  --- x:new_zeros(sizes, {dtype=, device=, requires_grad=}) → tensor
  -- Zeros, with x's dtype and device.
  --   print(T.ones(2):new_zeros(2))  --> {0., 0.}  -- f32[2] cpu
  for _, name in ipairs { "zeros", "ones", "empty" } do
    methods["new_" .. name] = function(x, ...)
      check("new_" .. name, x)
      local n = select("#", ...)
      while n > 1 and (select(n, ...)) == nil do n = n - 1 end -- no options, written out
      local given = n > 0 and (select(n, ...)) or nil
      local named = type(given) == "table" and next(given) ~= nil and given[1] == nil
      local o = made_like("new_" .. name, x, named and given or nil)
      local sizes = { ... }
      if not named then n = n + 1 end
      sizes[n] = o
      return T[name](table.unpack(sizes, 1, n))
    end
    methods["new_" .. name] = options.named("new_" .. name, methods["new_" .. name])
  end
  --- x:new_full(sizes, value, {dtype=, device=, requires_grad=}) → tensor
  -- A tensor full of value, with x's dtype and device.
  --   print(T.ones(2):new_full({ 2 }, 5))  --> {5., 5.}  -- f32[2] cpu
  methods.new_full = options.named("new_full", function(x, sizes, value, opts)
    local named = type(opts) == "table" and opts.dtype
    if not named and core.is_tensor(x) then core.check_fits("new_full", value, x:dtype(), true) end
    return T.full(sizes, value, made_like("new_full", x, opts))
  end)
  --- x:new_tensor(values, {dtype=, device=, requires_grad=}) → tensor
  -- A tensor of these values, with x's dtype and device.
  --   print(T.ones(2, { dtype = "f64" }):new_tensor { 1 })  --> {1.}  -- f64[1] cpu
  methods.new_tensor = options.named("new_tensor", function(x, values, opts)
    return T.tensor(values, made_like("new_tensor", x, opts))
  end)
  --- x:fill_diagonal_(value) → x
  -- Overwrites the main diagonal of a matrix.
  --   print(T.zeros(2, 2):fill_diagonal_(3):diagonal())  --> {3., 3.}  -- f32[2] cpu
  function methods.fill_diagonal_(x, v)
    if check("fill_diagonal_", x):dim() ~= 2 then fail("fill_diagonal_: a matrix is wanted, got %s", describe(x)) end
    x:diagonal():fill_(v)
    return x
  end

  -- ---- comparisons within a tolerance, pairs of statistics, fillers ----------------------------------------

  local op, dim_of = core.op, core.dim_of

  --- x:isclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}) → bool tensor
  -- |x - y| <= atol + rtol |y|.
  --   print(T.tensor({ 1.0, 2 }):isclose(T.tensor { 1.0, 3 }))  --> { true, false}  -- bool[2] cpu
  define("isclose", function(x, y, opts)
    check("isclose", x)
    if type(y) ~= "number" then check("isclose", y, 2) end
    local o = options.check("isclose", opts, { "rtol", "atol", "equal_nan" })
    for _, name in ipairs { "rtol", "atol" } do
      if o[name] and not (type(o[name]) == "number" and o[name] >= 0) then
        fail("isclose: %s must be a number >= 0, got %s", name, describe(o[name]))
      end
    end
    if type(y) == "number" then
      local whole = math.type(y) == "integer" and "i64" or "f64" -- with all digits beside integers
      y = core.device.with("cpu", op.full, {}, y, { dtype = x:is_floating_point() and x:dtype() or whole })
    end
    local off, size
    if x:is_floating_point() or y:is_floating_point() then
      if x:dtype() == "bool" then x = x:to "u8" end
      if y:dtype() == "bool" then y = y:to "u8" end
      off, size = op.abs(x - y), op.abs(y)
    else -- a difference beyond i64 is negative
      x, y = x:to "i64", y:to "i64"
      off, size = op.maximum(x, y) - op.minimum(x, y), op.abs(y:to "f64")
      off = op.where(op.lt(off, 0), math.huge, off:to "f64")
    end
    local near = op.le(off, size * (o.rtol or 1e-5) + (o.atol or 1e-8))
    local r = op.logical_or(op.eq(x, y), op.logical_and(near, op.isfinite(y)))
    if o.equal_nan then r = op.logical_or(r, op.logical_and(op.isnan(x), op.isnan(y))) end
    return r
  end)

  --- x:allclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}) → boolean
  -- Whether all elements are close.
  --   print(T.ones(2):allclose(T.ones(2) + 1e-9))  --> true
  define("allclose", function(x, y, opts) return op.all(T.isclose(x, y, opts)):item() end)

  --- x:std_mean(dim, {correction=1, keepdim=}) → tensor, tensor
  -- The standard deviation and the mean.
  --   local s, mean = T.tensor({ 1, 2, 3 }):std_mean()
  --   print(s:item(), mean:item())  --> 1.0	2.0

  --- x:var_mean(dim, {correction=1, keepdim=}) → tensor, tensor
  -- The variance and the mean.
  --   local s, mean = T.tensor({ 1, 2, 3 }):var_mean()
  --   print(s:item(), mean:item())  --> 1.0	2.0
  for name, spread in pairs { std_mean = op.std, var_mean = op.var } do
    define(name, function(x, dim, opts)
      local d, o = dim_of(name, dim, opts, { "dim", "correction", "keepdim" })
      return spread(x, d, { correction = o.correction, keepdim = o.keepdim }), op.mean(x, d, { keepdim = o.keepdim })
    end)
  end

  --- x:aminmax({dim=, keepdim=false}) → smallest, largest
  -- Both extremes.
  --   local lo, hi = T.arange(5):aminmax()
  --   print(lo:item(), hi:item())  --> 1	5
  define("aminmax", function(x, ...) return T.amin(x, ...), T.amax(x, ...) end)
  --- x:uniform_(low = 0, high = 1) → x
  -- Fills with uniform numbers from low to high.
  --   print(T.zeros(9):uniform_(2, 3):ge(2):all():item())  --> true

  --- x:normal_(mean = 0, std = 1) → x
  -- Fills with normally distributed numbers.
  --   print(T.zeros(1000):normal_(5, 0.1):mean():round())  --> 5.  -- f32[] cpu

  --- x:bernoulli_(p = 0.5) → x
  -- Fills with 1 where a draw with probability p succeeds, else with 0.
  --   print(T.zeros(3):bernoulli_(1))  --> {1., 1., 1.}  -- f32[3] cpu

  --- x:exponential_(rate = 1) → x
  -- Fills with exponentially distributed numbers.
  --   print(T.zeros(3):exponential_(2):gt(0):all():item())  --> true

  --- x:random_(low, high) → x
  -- Fills with integers low … high, both included.
  --   print(T.zeros(3):random_(5, 5))  --> {5., 5., 5.}  -- f32[3] cpu
  for name, raw in pairs { uniform_ = "uniform_fill_", normal_ = "normal_fill_", random_ = "randint_fill_",
    bernoulli_ = "bernoulli_fill_", exponential_ = "exponential_fill_" } do
    if core[raw] then define(name, options.named(name, core[raw])) end
  end

  --- T.rsub(x, y) → y - x
  -- Subtraction with the operands reversed.
  --   print(T.rsub(T.ones(1), 3))  --> {2.}  -- f32[1] cpu
  T.rsub = function(x, y) return op.sub(y, check("rsub", x)) end
end
