-- SPDX-License-Identifier: MIT
-- Small conveniences made of other ops, under the names that users of PyTorch and NumPy look for: clip, fliplr,
-- moveaxis, atleast_2d, block_diag, nanmean, new_zeros … Each is both T.name(x, …) and
-- x:name(…), except those that take a list.
local options = require "perilune.options"

return function(T, core)
  local is_tensor, fail, describe = core.is_tensor, options.fail, options.describe
  local methods = core.metatable().methods

  local function def(name, f)
    T[name] = f
    methods[name] = f
  end
  local function check(fn, x, i)
    if not is_tensor(x) then fail("%s: argument #%d must be a tensor, got %s", fn, i or 1, describe(x)) end
    return x
  end
  local function tensors(fn, list)
    return options.tensors(fn, "tensors", list, 1)
  end

  -- ---- limits and angles --------------------------------------------------------------------------------
  def("clip", T.clamp)
  def("clip_", T.clamp_)
  -- x:clamp_min(lo), x:clamp_max(hi): one bound, a number or a tensor
  def("clamp_min", function(x, lo) return is_tensor(lo) and T.maximum(x, lo) or T.clamp(check("clamp_min", x), lo) end)
  def("clamp_max", function(x, hi)
    if hi == nil then fail("clamp_max: a number or a tensor is wanted, got nil") end
    if is_tensor(hi) then return T.minimum(x, hi) end
    if type(hi) ~= "number" then fail("clamp_max: a number or a tensor is wanted, got %s", describe(hi)) end
    return T.clamp(check("clamp_max", x), { max = hi })
  end)
  def("deg2rad", function(x) return check("deg2rad", x) * (math.pi / 180) end)
  def("rad2deg", function(x) return check("rad2deg", x) * (180 / math.pi) end)

  for _, name in ipairs { "deg2rad", "rad2deg", "clamp_min", "clamp_max" } do
    def(name .. "_", options.named(name .. "_", function(x, ...)
      return check(name .. "_", x):copy_(T[name](x, ...))
    end))
  end

  -- ---- shapes ---------------------------------------------------------------------------------------------
  def("ravel", function(x) return check("ravel", x):reshape(-1) end)
  def("moveaxis", T.movedim)
  def("swapaxes", T.transpose)
  def("fliplr", function(x)
    if check("fliplr", x):dim() < 2 then fail("fliplr: at least 2 dimensions are wanted, got %s", describe(x)) end
    return x:flip(2)
  end)
  def("flipud", function(x) return check("flipud", x):flip(1) end)
  -- a row of a scalar, a matrix of one row of a vector; others unchanged
  def("atleast_1d", function(x) return check("atleast_1d", x):dim() == 0 and x:reshape(1) or x end)
  def("atleast_2d", function(x)
    x = T.atleast_1d(check("atleast_2d", x))
    return x:dim() == 1 and x:unsqueeze(1) or x
  end)
  -- T.column_stack{x, …}: vectors as columns, matrices side by side
  function T.column_stack(list)
    local parts = {}
    for i, t in ipairs(tensors("column_stack", list)) do parts[i] = t:dim() < 2 and t:reshape(-1, 1) or t end
    return T.cat(parts, 2)
  end
  -- T.broadcast_tensors{x, …} → list of views of one common shape
  function T.broadcast_tensors(list)
    local sizes, out = {}, {}
    for _, t in ipairs(tensors("broadcast_tensors", list)) do -- sizes counted from the last dim
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
  -- T.block_diag{a, b, …}: matrices along the diagonal of one, zeros elsewhere; vectors count as rows
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
  def("argwhere", function(x) return check("argwhere", x):nonzero() end)
  -- mean of what is not NaN, of all or along dim: x:nanmean(dim, {keepdim=})
  def("nanmean", function(x, dim, opts)
    if type(dim) == "table" and #dim == 0 and opts == nil then dim, opts = dim.dim, dim end
    local o = { keepdim = options.check("nanmean", opts, { "dim", "keepdim" }).keepdim }
    local there = check("nanmean", x):isnan():logical_not():to(x:dtype())
    return T.nansum(x, dim, o) / T.sum(there, dim, o)
  end)
  -- x:dist(y, p=2): p-norm of x - y
  def("dist", function(x, y, p) return T.norm(check("dist", x) - check("dist", y, 2), p or 2) end)
  -- ---- makers with the dtype of another tensor ------------------------------------------------------------------
  local function made_like(fn, x, opts)
    local o = options.check(fn, opts, { "dtype", "device", "requires_grad" })
    return { dtype = o.dtype or check(fn, x):dtype(), device = o.device or x:device(), requires_grad = o.requires_grad }
  end
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
  methods.new_full = options.named("new_full", function(x, sizes, value, opts)
    return T.full(sizes, value, made_like("new_full", x, opts))
  end)
  methods.new_tensor = options.named("new_tensor", function(x, values, opts)
    return T.tensor(values, made_like("new_tensor", x, opts))
  end)
  -- x:fill_diagonal_(v): the main diagonal of a matrix
  function methods.fill_diagonal_(x, v)
    if check("fill_diagonal_", x):dim() ~= 2 then fail("fill_diagonal_: a matrix is wanted, got %s", describe(x)) end
    x:diagonal():fill_(v)
    return x
  end

  -- ---- comparisons within a tolerance, pairs of statistics, fillers ----------------------------------------

  local op, dim_of = core.op, core.dim_of
  -- x:isclose(y, {rtol=1e-5, atol=1e-8, equal_nan=false}), x:allclose(y, …) → boolean
  def("isclose", function(x, y, opts)
    check("isclose", x)
    if type(y) ~= "number" then check("isclose", y, 2) end
    local o = options.check("isclose", opts, { "rtol", "atol", "equal_nan" })
    if type(y) == "number" then
      y = core.device.with("cpu", op.full, {}, y, { dtype = x:is_floating_point() and x:dtype() or nil })
    end
    local near = op.le(op.abs(x - y), op.abs(y) * (o.rtol or 1e-5) + (o.atol or 1e-8))
    local r = op.logical_or(op.eq(x, y), op.logical_and(near, op.isfinite(y)))
    if o.equal_nan then r = op.logical_or(r, op.logical_and(op.isnan(x), op.isnan(y))) end
    return r
  end)
  def("allclose", function(x, y, opts) return op.all(T.isclose(x, y, opts)):item() end)

  -- std and mean, var and mean over the same dims: x:std_mean(dim, {correction=, keepdim=})
  for name, spread in pairs { std_mean = op.std, var_mean = op.var } do
    def(name, function(x, dim, opts)
      local d, o = dim_of(name, dim, opts, { "dim", "correction", "keepdim" })
      return spread(x, d, { correction = o.correction, keepdim = o.keepdim }), op.mean(x, d, { keepdim = o.keepdim })
    end)
  end
  def("aminmax", function(x, ...) return T.amin(x, ...), T.amax(x, ...) end)
  -- fillers: x:uniform_(lo, hi), x:normal_(mean, std), x:random_(lo, hi), x:bernoulli_(p), x:exponential_(rate)
  for name, raw in pairs { uniform_ = "uniform_fill_", normal_ = "normal_fill_", random_ = "randint_fill_",
    bernoulli_ = "bernoulli_fill_", exponential_ = "exponential_fill_" } do
    if core[raw] then def(name, options.named(name, core[raw])) end
  end

  T.rsub = function(x, y) return op.sub(y, check("rsub", x)) end
end
