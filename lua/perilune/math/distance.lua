-- SPDX-License-Identifier: MIT
-- Differences and distances: diff, cdist, pairwise_distance; and small rearrangements: channel_shuffle,
-- tril_indices.
local options = require "perilune.options"

return function(T, core)
  local op, fail = core.op, options.fail
  local methods = core.metatable().methods

  local define = require "perilune.define"(T, core)
  local check = core.check_tensor

  --- x:diff(n=1, dim=-1, {prepend=, append=}) → tensor
  -- Differences of neighbours along dim, n times; prepend and append are put before and behind x first.
  --   print(T.tensor({ 1, 4, 9 }):diff())  --> {3., 5.}  -- f32[2] cpu
  define("diff", { { "x", "tensor" }, { "n", "size", 1 }, { "dim", "int", -1 },
    { "prepend", "tensor", optional = true }, { "append", "tensor", optional = true } }, function(a)
    local x, n, dim, prepend, append = a.x, a.n, a.dim, a.prepend, a.append
    if x:dim() == 0 then fail("diff: a 0-d tensor has no neighbours") end
    if n > 0 and (prepend or append) then
      local parts = {}
      parts[1] = prepend
      parts[#parts + 1] = x
      parts[#parts + 1] = append
      for i, p in ipairs(parts) do
        if p:dim() == 0 then
          local shape = x:shape()
          shape[dim > 0 and dim or dim + #shape + 1] = 1
          parts[i] = op.expand(p, shape)
        end
      end
      x = op.cat(parts, dim)
    end
    if n == 0 then return x:clone() end
    local minus = x:dtype() == "bool" and op.logical_xor or op.sub
    n = math.min(n, x:size(dim))
    for _ = 1, n do
      local size = x:size(dim)
      if size == 0 then break end
      x = minus(op.slice(x, dim, math.min(2, size), size - 1), op.slice(x, dim, 1, size - 1))
    end
    return x
  end)

  --- T.pairwise_distance(x1, x2, {p=2, eps=1e-6, keepdim=false}) → tensor
  -- The norm of x1 - x2 + eps over the last dimension.
  --   print(T.pairwise_distance(T.zeros(1, 2), T.tensor { { 3.0, 4 } }, { eps = 0 }):item())  --> 5.0
  define("pairwise_distance", function(x1, x2, opts)
    check("pairwise_distance", x1, 1)
    check("pairwise_distance", x2, 2)
    local o = options.check("pairwise_distance", opts, { "p", "eps", "keepdim" })
    return op.norm(x1 - x2 + (o.eps or 1e-6), { p = o.p or 2.0, dim = { -1 }, keepdim = o.keepdim or false })
  end)

  -- ‖a‖² + ‖b‖² - 2 a·b in one product, [a², 1, -2a] · [1, b², b]. Rows in f64 with an f32 result are divided by their
  -- largest norm, so that the squares' quotients are of f32's range whatever the rows' is.
  local function euclid_by_product(x1, x2, dtype)
    local s1, s2 = op.sum(x1 * x1, { -1 }, { keepdim = true }), op.sum(x2 * x2, { -1 }, { keepdim = true })
    local left = op.cat({ -2.0 * x1, s1, T.ones_like(s1) }, -1)
    local right = op.cat({ x2, T.ones_like(s2), s2 }, -1):transpose(-2, -1)
    -- roots below the least are not differentiated: their slope is infinite at 0
    if dtype == x1:dtype() then
      return op.sqrt(op.clamp(op.matmul(left, right), { min = dtype == "f64" and 1e-300 or 1e-30 }))
    end
    local most = op.maximum(op.amax(s1:detach()), op.amax(s2:detach()))
    most = op.where(op.logical_and(op.gt(most, 0), op.isfinite(most)), most, T.ones_like(most))
    local squares = op.matmul(left / most, right):to(dtype)
    return op.sqrt(op.clamp(squares, { min = 1e-37 })) * op.sqrt(most):to(dtype)
  end

  -- Squares of f32 are exact in f64, and do not overflow there; what cancels leaves 1e-8 of the rows' norms, less than
  -- a step of f32. A product in f32 would leave 3e-4 of them, which is all that there is of rows far from 0.
  --- T.cdist(x1 […, P, M], x2 […, R, M], p=2, {compute_mode=}) → […, P, R]
  -- Distances of all pairs of rows, in the norm p. With more than 25 rows Euclidean ones come from a matrix product in
  -- f64; compute_mode = "use_mm_for_euclid_dist" makes it one in the rows' dtype, which is faster and coarser.
  --   print(T.cdist(T.zeros(1, 2), T.tensor { { 3.0, 4 } }):item())  --> 5.0
  local modes = { "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist" }
  define("cdist", { { "x1", "tensor" }, { "x2", "tensor" }, { "p", "nonnegative_or_inf", 2.0 },
    { "compute_mode", modes, modes[1] } }, function(a)
    local x1, x2, p, mode = a.x1, a.x2, a.p, a.compute_mode
    if x1:dim() < 2 or x2:dim() < 2 then
      fail("cdist: needs at least two dimensions, got %s and %s", x1:describe(), x2:describe())
    end
    if x1:size(-1) ~= x2:size(-1) then
      fail("cdist: rows of %s and %s differ in length", x1:describe(), x2:describe())
    end
    if not (x1:is_floating_point() and x2:is_floating_point()) then
      fail("cdist: floating tensors are wanted, got %s and %s", x1:describe(), x2:describe())
    end
    local many = (x1:size(-2) > 25 or x2:size(-2) > 25) and x1:numel() > 0 and x2:numel() > 0
    if p == 2 and many and mode ~= modes[3] then
      local dtype = T.promote_types(x1:dtype(), x2:dtype())
      if mode == modes[2] then return euclid_by_product(x1, x2, dtype) end
      local d = euclid_by_product(x1:to "f64", x2:to "f64", dtype == "f64" and dtype or "f32")
      return dtype == d:dtype() and d or d:to(dtype)
    end
    local d = x1:unsqueeze(-2) - x2:unsqueeze(-3)
    return op.norm(d, { p = p, dim = { -1 } })
  end)
  core.full_precision(T, { "cdist" })
  core.full_precision(methods, { "cdist" })

  --- x:channel_shuffle(groups) → tensor
  -- [N, C, …] with the channels of its groups interleaved.
  --   print(T.arange(4):reshape(1, 4, 1):channel_shuffle(2):flatten())  --> {1, 3, 2, 4}  -- i64[4] cpu
  define("channel_shuffle", function(x, groups)
    check("channel_shuffle", x, 1)
    if type(groups) == "table" then groups = options.check("channel_shuffle", groups, { "groups" }).groups end
    groups = options.integer(groups) or 0
    if x:dim() < 3 then fail("channel_shuffle: needs at least three dimensions, got %s", x:describe()) end
    local shape = x:shape()
    local n, c = shape[1], shape[2]
    if groups < 1 or c % groups ~= 0 then
      fail("channel_shuffle: %d channels are not a multiple of %s groups", c, tostring(groups))
    end
    local rest = 1
    for d = 3, #shape do rest = rest * shape[d] end
    local y = op.reshape(x, { n, groups, c // groups, rest })
    return core.own(op.reshape(op.transpose(y, 2, 3), shape), x)
  end)

  --- T.tril_indices(rows, cols, {offset=0, dtype=, index_base=1}) → i64 [2, n]
  -- The places of the lower triangle: their rows, then their columns.
  --   print(T.tril_indices(2, 2))
  --   --> {{1, 2, 2},
  --   -->  {1, 1, 2}}  -- i64[2,3] cpu

  --- T.triu_indices(rows, cols, {offset=0, dtype=, index_base=1}) → i64 [2, n]
  -- The places of the upper triangle: their rows, then their columns.
  --   print(T.triu_indices(2, 2))
  --   --> {{1, 1, 2},
  --   -->  {1, 2, 2}}  -- i64[2,3] cpu
  for name, inside in pairs {
    tril_indices = function(i, j, offset) return op.le(j, i + offset) end,
    triu_indices = function(i, j, offset) return op.ge(j, i + offset) end,
  } do
    T[name] = function(rows, cols, opts)
      if type(rows) == "table" then
        local given = rows
        if cols ~= nil or opts ~= nil then fail("%s: too many arguments behind a table of options", name) end
        options.check(name, given, { "row", "col", "offset", "dtype", "index_base" })
        rows, cols, opts = given.row, given.col, { offset = given.offset, dtype = given.dtype,
          index_base = given.index_base }
      end
      local o = options.check(name, opts, { "offset", "dtype", "index_base" })
      rows, cols = options.integer(rows), options.integer(cols)
      if not rows or not cols or rows < 0 or cols < 0 then fail("%s: rows and columns must be integers >= 0", name) end
      local offset = o.offset and options.kind(name, "offset", "int", o.offset) or 0
      if rows == 0 or cols == 0 then return T.zeros({ 2, 0 }, { dtype = o.dtype or "i64" }) end
      local i, j = T.arange(rows):unsqueeze(2), T.arange(cols):unsqueeze(1)
      local places = op.nonzero(inside(i, j, offset), { index_base = o.index_base or 1 }):t():contiguous()
      return o.dtype and places:to(o.dtype) or places
    end
  end
end
