-- SPDX-License-Identifier: MIT
-- Taking tensors apart and putting them together, made of other ops: tensor_split, dstack, cartesian_prod,
-- combinations, diagflat, select_scatter, slice_scatter, unique_consecutive, vander, put, index_reduce ….
local options = require "perilune.options"
local by_values = require "perilune.values"

return function(T, core)
  local fail, describe, methods = options.fail, options.describe, core.metatable().methods
  local define = require "perilune.define"(T, core)

  -- dim counted from 1, of a tensor
  local function axis(x, dim) return dim < 0 and dim + x:dim() + 1 or dim end

  -- ---- apart ---------------------------------------------------------------------------------------------

  -- n nearly equal pieces (the first are larger by one), or pieces that begin at 1 and at each of the positions
  local function tensor_split(x, at, dim)
    local n, out = x:size(dim), {}
    if type(at) == "number" then
      if at < 1 then fail("tensor_split: at least one section is wanted, got %d", at) end
      if at > math.max(n, 1) * 4096 then fail("tensor_split: %d sections of dimension %d, which has %d", at, dim, n) end
      local from = 1
      for i = 1, at do
        local length = n // at + (i <= n % at and 1 or 0)
        out[i] = T.slice(x, dim, math.max(1, math.min(from, n)), length)
        from = from + length
      end
      return out
    end
    local from = 1
    for i = 1, #at + 1 do
      local to = i <= #at and at[i] or n + 1
      if to < 0 then to = to + n + 1 end
      to = math.min(math.max(to, 1), n + 1)
      out[i] = T.slice(x, dim, math.max(1, math.min(from, n)), math.max(0, to - from))
      from = to
    end
    return out
  end

  --- T.tensor_split(…) → list of views
  -- Pieces of nearly equal size, or, for a list of positions, pieces that begin at 1 and at each of them.
  --   print(T.arange(5):tensor_split(2)[1], T.arange(5):tensor_split({ 2 })[2])
  --   --> {1, 2, 3}  -- i64[3] cpu	{2, 3, 4, 5}  -- i64[4] cpu
  define("tensor_split", { { "x", "tensor" }, { "sections", "ints" }, { "dim", "int", 1 } },
    function(a) return tensor_split(a.x, a.sections, a.dim) end)

  --- T.dsplit(…) → list of views
  -- Equal pieces along dimension 3, or pieces that begin at the positions given.
  --   print(T.ones(1, 1, 4):dsplit(2)[1]:size(3))  --> 2

  --- T.hsplit(…) → list of views
  -- Equal pieces along dimension 2 (of a vector: 1), or pieces that begin at the positions given.
  --   print(T.arange(4):hsplit(2)[2])  --> {3, 4}  -- i64[2] cpu

  --- T.vsplit(…) → list of views
  -- Equal pieces along dimension 1, or pieces that begin at the positions given.
  --   print(T.eye(2):vsplit(2)[1])  --> {{1., 0.}}  -- f32[1,2] cpu
  for name, least in pairs { hsplit = 1, vsplit = 2, dsplit = 3 } do
    define(name, { { "x", "tensor" }, { "sections", "ints" } }, function(a)
      if a.x:dim() < least then fail("%s: at least %d dimensions are wanted, got %s", name, least, describe(a.x)) end
      local dim = name == "vsplit" and 1 or name == "dsplit" and 3 or a.x:dim() == 1 and 1 or 2
      if type(a.sections) == "number" and (a.sections < 1 or a.x:size(dim) % a.sections ~= 0) then
        fail("%s: dimension %d of %s does not divide into %d equal sections", name, dim, describe(a.x), a.sections)
      end
      return tensor_split(a.x, a.sections, dim)
    end)
  end

  -- ---- together --------------------------------------------------------------------------------------------

  local function atleast_3d(x)
    local nd = x:dim()
    if nd == 0 then return x:reshape(1, 1, 1) end
    if nd == 1 then return x:unsqueeze(1):unsqueeze(3) end
    return nd == 2 and x:unsqueeze(3) or x
  end

  --- T.atleast_3d(…) → tensor
  -- x with dimensions of size 1 added until there are three.
  --   print(table.concat(T.ones(2):atleast_3d():shape(), " "))  --> 1 2 1
  define("atleast_3d", { { "x", "tensor" } }, function(a) return atleast_3d(a.x) end)

  --- T.dstack(…) → tensor
  -- Joined along dimension 3; tensors with fewer dimensions get them.
  --   print(T.dstack { T.tensor { 1, 2 }, T.tensor { 3, 4 } }[1])
  --   --> {{1., 3.},
  --   -->  {2., 4.}}  -- f32[2,2] cpu
  define("dstack", { { "tensors", "tensors" } }, function(a)
    local out = {}
    for i, x in ipairs(a.tensors) do out[i] = atleast_3d(x) end
    return T.cat(out, 3)
  end)
  local function vectors(who, list)
    for i, x in ipairs(list) do
      if x:dim() ~= 1 then fail("%s: entry %d must be a vector, got %s", who, i, describe(x)) end
    end
  end

  --- T.cartesian_prod(…) → tensor
  -- All combinations of one element of each vector, one a row.
  --   print(T.cartesian_prod { T.arange(2), T.tensor({ 7, 8 }, { dtype = "i64" }) })
  --   --> {{1, 7},
  --   -->  {1, 8},
  --   -->  {2, 7},
  --   -->  {2, 8}}  -- i64[4,2] cpu
  define("cartesian_prod", { { "tensors", "tensors" } }, function(a)
    vectors("cartesian_prod", a.tensors)
    if #a.tensors == 1 then return a.tensors[1] end
    local columns = {}
    for i, grid in ipairs(T.meshgrid(a.tensors)) do columns[i] = grid:reshape(-1) end
    return T.stack(columns, 2)
  end)
  -- The positions of all r-subsets (or multisets) of 1..n in lexicographic order, end to end.
  local function choices(n, r, again)
    local out, now, top = {}, {}, 0
    local function go(depth, from)
      if depth > r then
        for k = 1, r do out[top + k] = now[k] end
        top = top + r
        return
      end
      for i = from, again and n or n - (r - depth) do
        now[depth] = i
        go(depth + 1, again and i or i + 1)
      end
    end
    go(1, 1)
    return out
  end

  --- T.combinations(…) → tensor
  -- All choices of r elements of a vector in order, one a row.
  --   print(T.combinations(T.arange(3), 2))
  --   --> {{1, 2},
  --   -->  {1, 3},
  --   -->  {2, 3}}  -- i64[3,2] cpu
  define("combinations", { { "x", "tensor" }, { "r", "size", 2 }, { "with_replacement", "bool", false } }, function(a)
    vectors("combinations", { a.x })
    local n, r = a.x:numel(), a.r
    if r == 0 then return T.zeros({ 0 }, { dtype = a.x:dtype() }) end
    if r > n and not (a.with_replacement and n > 0) then return T.zeros({ 0, r }, { dtype = a.x:dtype() }) end
    local count, top = 1.0, a.with_replacement and n + r - 1 or n
    for k = 1, math.min(r, top - r) do count = count * (top - k + 1) / k end
    if count * r > 1e8 then fail("combinations: %.3g rows of %d are too many", count, r) end
    local index = T.tensor(choices(n, r, a.with_replacement), { dtype = "i64" })
    return T.index_select(a.x, index, 1):reshape(-1, r)
  end)

  --- T.diagflat(…) → tensor
  -- A matrix with the flattened x on a diagonal.
  --   print(T.diagflat(T.tensor { 1, 2 }))
  --   --> {{1., 0.},
  --   -->  {0., 2.}}  -- f32[2,2] cpu
  define("diagflat", { { "x", "tensor" }, { "offset", "int", 0 } },
    function(a) return a.x:reshape(-1):diag_embed { offset = a.offset } end)

  --- T.vander(…) → tensor
  -- Powers of a vector in columns, the highest first unless increasing; N of them, as many as x has elements by
  -- default.
  --   print(T.tensor { 2, 3 }:vander { N = 3 })
  --   --> {{4., 2., 1.},
  --   -->  {9., 3., 1.}}  -- f32[2,3] cpu
  define("vander", { { "x", "tensor" }, { "N", "size", optional = true }, { "increasing", "bool", false } },
    function(a)
      vectors("vander", { a.x })
      local n = a.N or a.x:numel()
      local x = a.x -- integers as i64: powers of small ones are soon beyond their dtype
      if not x:is_floating_point() then x = x:to("i64") end
      local powers = T.arange(0, n - 1)
      if n == 0 then powers = T.zeros({ 0 }, { dtype = "i64" }) end
      if not a.increasing then powers = powers:flip(1) end
      return x:unsqueeze(-1) ^ powers:to(x:dtype())
    end)

  --- T.broadcast_shapes({2, 1}, {3}, …) → list
  -- The shape that shapes broadcast to.
  --   print(table.concat(T.broadcast_shapes({ 2, 1 }, { 3 }), " "))  --> 2 3
  function T.broadcast_shapes(...)
    local out, top = {}, 0
    for i = 1, select("#", ...) do
      local shape = (select(i, ...))
      if type(shape) == "number" then shape = { shape } end
      options.list("broadcast_shapes", "shape " .. i, shape, "sizes")
      for k = 1, #shape do
        local n = options.integer(shape[#shape + 1 - k])
        if not n or n < 0 then
          fail("broadcast_shapes: shape %d has the size %s", i, describe(shape[#shape + 1 - k]))
        end
        local seen = out[k] or 1
        if n ~= 1 and seen ~= 1 and n ~= seen then
          fail("broadcast_shapes: sizes %d and %d differ at dim -%d; sizes must be equal or 1", seen, n, k)
        end
        out[k] = seen == 1 and n or seen
        top = math.max(top, k)
      end
    end
    local shape = {}
    for k = 1, top do shape[k] = out[top + 1 - k] end
    return shape
  end

  --- T.as_tensor(value, {dtype=, device=}) → tensor
  -- The value itself if it is a tensor of that dtype, else a new one.
  --   local x = T.ones(2)
  --   print(T.as_tensor(x) == x, T.as_tensor { 1, 2 })  --> true	{1., 2.}  -- f32[2] cpu
  function T.as_tensor(v, opts)
    local o = options.check("as_tensor", opts, { "dtype", "device" })
    if not core.is_tensor(v) then return T.tensor(v, { dtype = o.dtype, device = o.device }) end
    return (o.dtype or o.device) and v:to { dtype = o.dtype, device = o.device } or v
  end

  --- T.asarray(value, {dtype=, device=}) → tensor
  -- Another name of T.as_tensor.
  --   print(T.asarray { 1, 2 })  --> {1., 2.}  -- f32[2] cpu
  T.asarray = T.as_tensor

  --- T.scalar_tensor(number, {dtype=, device=, requires_grad=false}) → 0-d tensor
  -- A tensor of one number.
  --   print(T.scalar_tensor(3))  --> 3.  -- f32[] cpu
  function T.scalar_tensor(v, opts)
    if type(v) ~= "number" and type(v) ~= "boolean" then
      fail("scalar_tensor: a number or boolean is wanted, got %s", describe(v))
    end
    return T.tensor(v, opts)
  end

  --- T.randint_like(x, low, high, {dtype=}) → tensor
  -- Integers low … high, both included, of x's shape and dtype.
  --   print(T.randint_like(T.zeros(2), 5, 5))  --> {5., 5.}  -- f32[2] cpu
  function T.randint_like(x, low, high, opts)
    if not core.is_tensor(x) then fail("randint_like: argument #1 must be a tensor, got %s", describe(x)) end
    if math.type(low) ~= "integer" or math.type(high) ~= "integer" then
      fail("randint_like: low and high must be integers, got %s and %s", describe(low), describe(high))
    end
    local o = options.check("randint_like", opts, { "dtype" })
    return T.randint(low, high, x:shape(), { dtype = o.dtype or x:dtype(), device = x:device() })
  end

  -- ---- writing a part of a copy --------------------------------------------------------------------------------

  -- A copy of x in which part(copy), a view, has the values of src.
  local function written(who, x, src, part)
    local _, own = core.readable(x)
    local _, others = core.readable(src)
    local batched = own > 0 or others > 0 -- then writes into a view are bounded: positions instead
    local y = batched and T.arange(x:numel(), { device = x:device() }):view(x:shape()) or x:clone()
    local view = part(y)
    local want, got = view:shape(), src:shape()
    if table.concat(want, ",") ~= table.concat(got, ",") then
      fail("%s: src must have the shape [%s] of what it replaces, got %s", who, table.concat(want, ","), describe(src))
    end
    if batched then
      return T.scatter(x:reshape(-1), view:reshape(-1), src:to(x:dtype()):reshape(-1), { dim = 1 }):reshape(x:shape())
    end
    view:copy_(src)
    return y
  end

  --- T.select_scatter(…) → tensor
  -- A copy of x in which x:select(dim, index) is src.
  --   print(T.zeros(2, 2):select_scatter(T.tensor { 1, 2 }, 1, 2))
  --   --> {{0., 0.},
  --   -->  {1., 2.}}  -- f32[2,2] cpu
  define("select_scatter", { { "x", "tensor" }, { "src", "tensor" }, { "dim", "int" }, { "index", "int" } },
    function(a)
      return written("select_scatter", a.x, a.src, function(y) return y:select(a.dim, a.index) end)
    end)

  --- T.slice_scatter(…) → tensor
  -- A copy of x in which positions first, first + step, … up to last of dim are src.
  --   print(T.zeros(4):slice_scatter(T.tensor { 1, 2 }, 1, 2, 3))  --> {0., 1., 2., 0.}  -- f32[4] cpu
  define("slice_scatter", { { "x", "tensor" }, { "src", "tensor" }, { "dim", "int", 1 }, { "first", "int", 1 },
    { "last", "int", -1 }, { "step", "count", 1 } }, function(a)
    local n = a.x:size(a.dim)
    local first = a.first < 0 and a.first + n + 1 or a.first
    local last = math.min(a.last < 0 and a.last + n + 1 or a.last, n)
    if first < 1 or first > n then
      fail("slice_scatter: first %d is not in 1..%d, dimension %d of %s", a.first, n, a.dim, describe(a.x))
    end
    local length = math.max(0, (last - first) // a.step + 1)
    return written("slice_scatter", a.x, a.src, function(y) return T.slice(y, a.dim, first, length, a.step) end)
  end)

  --- T.diagonal_scatter(…) → tensor
  -- A copy of x with src on a diagonal.
  --   print(T.zeros(2, 2):diagonal_scatter(T.tensor { 1, 2 }))
  --   --> {{1., 0.},
  --   -->  {0., 2.}}  -- f32[2,2] cpu
  define("diagonal_scatter", { { "x", "tensor" }, { "src", "tensor" }, { "offset", "int", 0 }, { "dim1", "int", 1 },
    { "dim2", "int", 2 } }, function(a)
    return written("diagonal_scatter", a.x, a.src,
      function(y) return y:diagonal { offset = a.offset, dim1 = a.dim1, dim2 = a.dim2 } end)
  end)

  --- T.put(…) → tensor
  -- A copy of x with source written, or added, at positions of the flattened x.
  --   print(T.zeros(2, 2):put(T.tensor({ 1, 4 }, { dtype = "i64" }), T.tensor { 5, 6 }))
  --   --> {{5., 0.},
  --   -->  {0., 6.}}  -- f32[2,2] cpu
  local put = define("put", { { "x", "tensor" }, { "index", "tensor" }, { "source", "tensor" },
    { "accumulate", "bool", false }, { "index_base", "int", 1 } }, function(a)
    if a.index:numel() ~= a.source:numel() then
      fail("put: index and source must have as many elements, got %s and %s", describe(a.index), describe(a.source))
    end
    local flat, index, source = a.x:reshape(-1), a.index:reshape(-1), a.source:reshape(-1)
    local how = a.accumulate and T.index_add or T.scatter -- whose gradient is exact where positions repeat
    return how(flat, index, source, { dim = 1, index_base = a.index_base }):reshape(a.x:shape())
  end)
  --- x:put_(index, source, accumulate=false, index_base=1) → x
  -- put in place.
  --   print(T.zeros(3):put_(T.tensor({ 2 }, { dtype = "i64" }), T.ones(1)))  --> {0., 1., 0.}  -- f32[3] cpu
  methods.put_ = options.named("put_", function(x, ...)
    if not core.is_tensor(x) then fail("put_: argument #1 must be a tensor, got %s", describe(x)) end
    return x:copy_(put(x, ...))
  end)

  --- T.index_reduce(…) → tensor
  -- x with the rows of src (along dim) reduced into the positions that index names: prod, mean, amax or amin.
  --   print(T.ones(2):index_reduce(1, T.tensor({ 1, 1 }, { dtype = "i64" }), T.tensor { 3, 5 }, "amax"))
  --   --> {5., 1.}  -- f32[2] cpu
  define("index_reduce", { { "x", "tensor" }, { "dim", "int" }, { "index", "tensor" }, { "src", "tensor" },
    { "reduce", { "prod", "mean", "amax", "amin" } }, { "include_self", "bool", true }, { "index_base", "int", 1 } },
    function(a)
      local dim, shape = axis(a.x, a.dim), {}
      if a.index:dim() ~= 1 then fail("index_reduce: index must be a vector, got %s", describe(a.index)) end
      for d = 1, a.x:dim() do
        local n = a.src:dim() == a.x:dim() and a.src:size(d) or -1
        if n ~= (d == dim and a.index:numel() or a.x:size(d)) then
          fail("index_reduce: src must have the shape of x with %d, one for each entry of index, along dim %d; got %s "
            .. "and %s", a.index:numel(), a.dim, describe(a.src), describe(a.x))
        end
        shape[d] = d == dim and n or 1
      end
      local index = a.index:reshape(shape):expand(a.src:shape())
      return T.scatter_reduce(a.x, index, a.src, { dim = dim, reduce = a.reduce, include_self = a.include_self,
        index_base = a.index_base })
    end)

  --- T.unravel_index(…) → list of tensors
  -- Positions of a flattened shape as one index a dimension.
  --   local places = T.unravel_index(T.tensor({ 5 }, { dtype = "i64" }), { 2, 3 })
  --   print(places[1]:item(), places[2]:item())  --> 2	2
  define("unravel_index", { { "index", "tensor" }, { "shape", "ints" }, { "index_base", "int", 1 } }, function(a)
    local shape = type(a.shape) == "table" and a.shape or { a.shape }
    if a.index:is_floating_point() then fail("unravel_index: index must hold integers, got %s", describe(a.index)) end
    local rest, out = a.index:to("i64") - a.index_base, {} -- a size may be beyond a small dtype
    for d = #shape, 1, -1 do
      if shape[d] < 1 then fail("unravel_index: size %d of dimension %d is not positive", shape[d], d) end
      out[d] = (T.remainder(rest, shape[d]) + a.index_base):to(a.index:dtype())
      rest = T.floor_divide(rest, shape[d])
    end
    if by_values.some(rest, function(t) return t:ne(0) end) then
      fail("unravel_index: an index is outside the shape {%s}", table.concat(shape, ", "))
    end
    return out
  end)

  -- ---- order and runs -----------------------------------------------------------------------------------------

  --- T.msort(…) → tensor
  -- x sorted along dimension 1.
  --   print(T.tensor { 3, 1, 2 }:msort())  --> {1., 2., 3.}  -- f32[3] cpu
  define("msort", { { "x", "tensor" } }, function(a)
    if a.x:dim() == 0 then return a.x:clone() end
    return (a.x:sort(1))
  end)

  --- T.unique_consecutive(…) → tensor[, inverse][, counts]
  -- x without repetitions of neighbours, of the flattened x or of slices along dim; on request also where each went,
  -- and the lengths of the runs.
  --   print(T.unique_consecutive(T.tensor { 1, 1, 2, 1 }, { return_counts = true }))
  --   --> {1., 2., 1.}  -- f32[3] cpu	{2, 1, 1}  -- i64[3] cpu
  define("unique_consecutive", { { "x", "tensor" }, { "return_inverse", "bool", false },
    { "return_counts", "bool", false }, { "dim", "int", optional = true }, { "index_base", "int", 1 } }, function(a)
    local x = a.dim and a.x or a.x:reshape(-1)
    local dim = axis(x, a.dim or 1)
    local n = x:size(dim)
    if n == 0 then
      local none, out = { dtype = "i64", device = x:device() }, { x:clone() }
      if a.return_inverse then out[2] = T.zeros(a.dim and { 0 } or a.x:shape(), none) end
      if a.return_counts then out[#out + 1] = T.zeros({ 0 }, none) end
      return table.unpack(out)
    end
    local new = T.ones({ 1 }, { dtype = "bool", device = x:device() })
    if n > 1 then
      local differ = T.ne(T.slice(x, dim, 2, n - 1), T.slice(x, dim, 1, n - 1)):movedim(dim, 1):reshape(n - 1, -1)
      new = T.cat({ new, differ:any(2) }, 1)
    end
    local starts = new:nonzero():reshape(-1)
    local out = { T.index_select(x, starts, dim) }
    if a.return_inverse then
      local inverse = T.cumsum(new:long(), 1) - 1 + a.index_base
      out[#out + 1] = a.dim and inverse or inverse:reshape(a.x:shape())
    end
    if a.return_counts then
      local ends = T.cat({ T.slice(starts, 1, math.min(2, starts:numel()), starts:numel() - 1),
        T.tensor({ n + 1 }, { dtype = "i64", device = x:device() }) }, 1)
      out[#out + 1] = ends - starts
    end
    return table.unpack(out)
  end)
  -- ---- by a Lua function ---------------------------------------------------------------------------------------

  -- A tensor like x of the values of f for each element, in row-major order.
  local function mapped(who, x, f)
    local values = x:reshape(-1):totable()
    if x:numel() == 0 then return x:clone() end
    for i, v in ipairs(values) do
      local new = f(v, i)
      if new ~= nil then values[i] = new end
      if type(values[i]) ~= "number" and type(values[i]) ~= "boolean" then
        fail("%s: the function must return numbers, got %s", who, describe(values[i]))
      end
    end
    return T.tensor(values, { dtype = x:dtype() }):reshape(x:shape())
  end
  local define_method = require "perilune.define"(T, core, { into = methods })

  --- x:apply_(f) → x
  -- Each element becomes f(element), or stays where f returns nil; for small tensors.
  --   print(T.tensor { 1, 2 }:apply_(function(v) return v * v end))  --> {1., 4.}  -- f32[2] cpu
  define_method("apply_", { { "x", "tensor" }, { "f", "func" } }, function(a)
    local _ <close> = T.no_grad()
    return a.x:copy_(mapped("apply_", a.x, a.f))
  end)
  --- x:map_(y, f) → x
  -- Each element becomes f(element of x, element of y); for small tensors.
  --   print(T.tensor { 1, 2 }:map_(T.tensor { 3, 4 }, function(a, b) return a * b end))  --> {3., 8.}  -- f32[2] cpu
  define_method("map_", { { "x", "tensor" }, { "y", "tensor" }, { "f", "func" } }, function(a)
    local others = a.y:expand(a.x:shape()):reshape(-1):totable()
    local _ <close> = T.no_grad()
    return a.x:copy_(mapped("map_", a.x, function(v, i) return a.f(v, others[i]) end))
  end)

  --- T.sum_to_size(…) → tensor
  -- The sum over the dimensions in which x is larger: what undoes broadcasting.
  --   print(T.ones(2, 3):sum_to_size { 2, 1 })
  --   --> {{3.},
  --   -->  {3.}}  -- f32[2,1] cpu
  define("sum_to_size", { { "x", "tensor" }, { "shape", "ints" } }, function(a)
    local shape = type(a.shape) == "table" and a.shape or { a.shape }
    local have, dims = a.x:shape(), {}
    local lead = #have - #shape
    if lead < 0 then fail("sum_to_size: %s cannot be summed to [%s]", describe(a.x), table.concat(shape, ",")) end
    for d = 1, #have do
      local want = shape[d - lead]
      if d <= lead or (want == 1 and have[d] ~= 1) then
        dims[#dims + 1] = d
      elseif want ~= have[d] then
        fail("sum_to_size: %s cannot be summed to [%s]", describe(a.x), table.concat(shape, ","))
      end
    end
    if #dims == 0 then return a.x end
    return T.sum(a.x, { dim = dims, keepdim = true }):reshape(shape)
  end)

  -- ---- rows, grids, turns and blocks ------------------------------------------------------------------------

  local op, is_tensor, own, unpack = core.op, core.is_tensor, core.own, table.unpack
  local too_many = require("perilune.surface").too_many
  local check = core.check_tensor

  --- T.rows :: for i, row in x:rows() do … end
  -- The slices of the first dimension, with their numbers.
  --   for i, row in T.eye(2):rows() do print(i, row:sum():item()) end
  --   --> 1	1.0
  --   --> 2	1.0
  define("rows", function(x)
    check("rows", x)
    if x:dim() == 0 then fail("rows: a 0-d tensor has no rows") end
    local n = x:size(1)
    return function(_, i)
      if i < n then return i + 1, op.select(x, 1, i + 1) end
    end, x, 0
  end)

  --- T.hstack{x, …} → tensor
  -- Joined along columns (dimension 2; vectors along 1).
  --   print(T.hstack { T.ones(1), T.zeros(1) })  --> {1., 0.}  -- f32[2] cpu

  --- T.vstack{x, …} → tensor
  -- Joined along rows; vectors become rows.
  --   print(T.vstack { T.ones(2), T.zeros(2) }:size(1))  --> 2
  local function joined(name, least, how)
    T[name] = function(list)
      options.tensors(name, "tensors", not is_tensor(list) and list or {}, 1)
      local out = {}
      for i, x in ipairs(list) do
        check(name, x, i)
        out[i] = how(x)
      end
      local d = name == "hstack" and out[1]:dim() > 1 and 2 or least
      return op.cat(out, d)
    end
  end
  joined("hstack", 1, function(x) return x:dim() == 0 and x:unsqueeze(1) or x end)
  joined("vstack", 1, function(x)
    if x:dim() == 0 then return x:view(1, 1) end
    return x:dim() == 1 and x:unsqueeze(1) or x
  end)
  -- T.meshgrid(x, y, …, {indexing = "ij"|"xy"}), or with the vectors in a list → list of expanded grids
  --- T.meshgrid({x, y, …}, {indexing="ij" or "xy"}) → list
  -- Coordinates of a grid, as expanded views.
  --   print(T.meshgrid({ T.arange(2), T.arange(3) })[2])
  --   --> {{1, 2, 3},
  --   -->  {1, 2, 3}}  -- i64[2,3] cpu
  T.meshgrid = function(first, ...)
    local list, opts
    if is_tensor(first) then
      list = { first, ... }
      local n = 1 + select("#", ...)
      while n > 1 and list[n] == nil do n = n - 1 end
      if n > 1 and not is_tensor(list[n]) then opts, list[n] = list[n], nil end
    else
      if select("#", ...) > 1 then too_many("meshgrid", { "tensors", "options" }, first, ...) end
      list, opts = first, (...)
    end
    options.tensors("meshgrid", "tensors", list, 1)
    opts = options.check("meshgrid", opts, { "indexing" })
    local indexing = opts.indexing or "ij"
    if indexing ~= "ij" and indexing ~= "xy" then
      fail("meshgrid: %s", options.unknown("indexing", indexing, { "ij", "xy" }))
    end
    local xy = indexing == "xy" and #list >= 2
    local shape, out = {}, {}
    local order = { unpack(list) }
    if xy then order[1], order[2] = order[2], order[1] end
    for i, x in ipairs(list) do
      if x:dim() > 1 then fail("meshgrid: entry %d must be a vector or a number, got %s", i, options.describe(x)) end
    end
    for i, x in ipairs(order) do shape[i] = x:numel() end
    for i, x in ipairs(order) do
      local s = {}
      for d = 1, #order do s[d] = d == i and shape[i] or 1 end
      out[i] = op.expand(op.reshape(x, s), shape)
    end
    if xy then out[1], out[2] = out[2], out[1] end
    return out
  end

  --- x:rot90(k = 1, dims = {1, 2}) → tensor
  -- k quarter turns in the plane of two dimensions.
  --   print(T.tensor { { 1, 2 } }:rot90())
  --   --> {{2.},
  --   -->  {1.}}  -- f32[2,1] cpu
  define("rot90", function(x, k, dims)
    check("rot90", x)
    if k ~= nil and not math.tointeger(k) then fail("rot90: k must be an integer, got %s", tostring(k)) end
    if dims ~= nil and (type(dims) ~= "table" or #dims ~= 2) then
      fail("rot90: dims must be a list of two dimensions")
    end
    k, dims = (k or 1) % 4, dims or { 1, 2 }
    local a, b = dims[1], dims[2]
    if x:dim() < 2 or math.type(a) == "integer" and math.type(b) == "integer" and axis(x, a) == axis(x, b) then
      fail("rot90: needs two different dimensions of a tensor with at least two, got %s", x:describe())
    end
    if k == 0 then return x:clone() end
    if k == 2 then return op.flip(x, { a, b }) end
    if k == 1 then return op.flip(x:transpose(a, b), { a }) end
    return op.flip(x:transpose(a, b), { b })
  end)

  local function blocks(name, x, r)
    check(name, x)
    if math.type(r) ~= "integer" or r < 1 then
      fail("%s: the factor must be a positive integer, got %s", name, tostring(r))
    end
    if x:dim() < 3 then fail("%s: needs at least three dimensions, got %s", name, x:describe()) end
    local s = x:shape()
    local n = #s
    return s, n, s[n - 2], s[n - 1], s[n]
  end

  --- x:pixel_shuffle(r) → tensor
  -- […, C r², H, W] → […, C, H r, W r].
  --   print(T.rand(1, 4, 2, 2):pixel_shuffle(2):size(3))  --> 4
  define("pixel_shuffle", function(x, r)
    local s, n, c, h, w = blocks("pixel_shuffle", x, r)
    if c % (r * r) ~= 0 then fail("pixel_shuffle: %d channels are not a multiple of %d", c, r * r) end
    local k, oc = n - 3, c // (r * r)
    local sizes, order, out = { unpack(s, 1, k) }, {}, { unpack(s, 1, k) }
    for d = 1, k do order[d] = d end
    for i, size in ipairs { oc, r, r, h, w } do sizes[k + i] = size end
    for i, d in ipairs { 1, 4, 2, 5, 3 } do order[k + i] = k + d end
    for i, size in ipairs { oc, h * r, w * r } do out[k + i] = size end
    return own(op.reshape(op.permute(op.reshape(x, sizes), order), out), x)
  end)

  --- x:pixel_unshuffle(r) → tensor
  -- […, C, H r, W r] → […, C r², H, W].
  --   print(T.rand(1, 1, 4, 4):pixel_unshuffle(2):size(2))  --> 4
  define("pixel_unshuffle", function(x, r)
    local s, n, c, h, w = blocks("pixel_unshuffle", x, r)
    if h % r ~= 0 or w % r ~= 0 then
      fail("pixel_unshuffle: %s is not divisible by %d in its last two dimensions", x:describe(), r)
    end
    local k = n - 3
    local sizes, order, out = { unpack(s, 1, k) }, {}, { unpack(s, 1, k) }
    for d = 1, k do order[d] = d end
    for i, size in ipairs { c, h // r, r, w // r, r } do sizes[k + i] = size end
    for i, d in ipairs { 1, 3, 5, 2, 4 } do order[k + i] = k + d end
    for i, size in ipairs { c * r * r, h // r, w // r } do out[k + i] = size end
    return own(op.reshape(op.permute(op.reshape(x, sizes), order), out), x)
  end)
end
