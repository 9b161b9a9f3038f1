-- SPDX-License-Identifier: MIT
--- Export of views, joins, indexing and constants.
-- @module perilune.onnx.export.shape
local T = require "perilune"
local sizes = require "perilune.onnx.export.sizes"
local writer = require "perilune.onnx.writer"

return function(Export)
  local ops, is_free = Export.ops, Export.is_free

  local function rank(x) return #x.shape end
  local function dim0(d, n) return (d < 0 and d + n or d - 1) end -- ours from 1 → theirs from 0

  -- ---- what changes nothing
  for _, name in ipairs { "clone", "contiguous", "stop_grad", "to_device", "to_layout" } do
    ops[name] = function(_, _, x) return x end
  end

  -- ---- shapes
  local function reshaped(e, node, x) return e:reshape(e:cast(x, node.dtypes[1]), node.shapes[1]) end
  for _, name in ipairs { "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze" } do
    ops[name] = reshaped
  end
  local function same(a, b)
    if #a ~= #b then return false end
    for d, n in ipairs(a) do
      local m = b[d]
      if is_free(n) ~= is_free(m) then return false end
      if is_free(n) then
        if n.symbol ~= m.symbol or n.factor ~= m.factor or n.offset ~= m.offset then return false end
      elseif n ~= m then
        return false
      end
    end
    return true
  end
  local function value_of(n) return is_free(n) and n.value or n end

  -- Is the window of these sizes and strides the whole of x in its own order, as writes in place leave it? A stride
  -- follows a free size where one of the sizes behind it is free.
  local function whole(size, stride, offset, x)
    local want, free, count = 1, false, 1
    for d = #stride, 1, -1 do
      local n = size[d]
      if (is_free(n) or n ~= 1) and (value_of(stride[d]) ~= want or is_free(stride[d]) ~= free) then return false end
      want, free = want * value_of(n), free or is_free(n)
    end
    for _, n in ipairs(x.shape) do count = count * value_of(n) end
    return want == count and not is_free(offset) and offset == 0
  end
  local function fixed_list(list)
    for _, n in ipairs(list) do if is_free(n) then return false end end
    return true
  end

  -- The places of a window's elements in its tensor as a row; all sizes are fixed.
  local function window_places(e, node, size, x)
    local stride, offset = node.attrs.stride, node.attrs.offset or 0
    if not (fixed_list(size) and fixed_list(stride) and fixed_list(x.shape)) or is_free(offset) then
      e:fail(node, "a window whose sizes or strides depend on a free size is not supported")
    end
    local at = T.full({}, offset, { dtype = "i64" })
    for d, n in ipairs(size) do at = at:unsqueeze(-1) + (T.arange(n) - 1) * stride[d] end
    return e:constant(at:reshape(-1):to "i64", "places")
  end
  function ops.as_strided(e, node, x)
    local size = node.shapes[1]
    if whole(size, node.attrs.stride, node.attrs.offset or 0, x) then return reshaped(e, node, x) end
    local places = window_places(e, node, size, x)
    return e:reshape(e:emit("Gather", { e:reshape(x.name, { -1 }), places }, { axis = 0 }), size)
  end
  function ops.strided_put(e, node, x, v)
    local name = e:cast(v, node.dtypes[1])
    if whole(v.shape, node.attrs.stride, node.attrs.offset or 0, x) then return e:reshape(name, node.shapes[1]) end
    local places = window_places(e, node, v.shape, x)
    local row = e:emit("ScatterElements", { e:reshape(x.name, { -1 }), places, e:reshape(name, { -1 }) }, { axis = 0 })
    return e:reshape(row, node.shapes[1])
  end
  local function transposed(e, x, a, b)
    local perm = {}
    for d = 1, rank(x) do perm[d] = d - 1 end
    perm[a + 1], perm[b + 1] = b, a
    return e:emit("Transpose", { x.name }, { perm = perm })
  end
  ops["transpose"] = function(e, node, x)
    local n = rank(x)
    if n == 0 then return x end
    return transposed(e, x, dim0(node.attrs.dim0, n), dim0(node.attrs.dim1, n))
  end
  function ops.t(e, _, x) return rank(x) < 2 and x or transposed(e, x, 0, 1) end
  function ops.permute(e, node, x)
    local perm = {}
    for i, d in ipairs(node.attrs.dims) do perm[i] = dim0(d, rank(x)) end
    return e:emit("Transpose", { x.name }, { perm = perm })
  end
  function ops.movedim(e, node, x)
    local n, perm, gone = rank(x), {}, {}
    for i, d in ipairs(node.attrs.source) do
      perm[dim0(node.attrs.destination[i], n) + 1] = dim0(d, n)
      gone[dim0(d, n)] = true
    end
    local at = 0
    for d = 1, n do
      if not perm[d] then
        while gone[at] do at = at + 1 end
        perm[d] = at
        at = at + 1
      end
    end
    return e:emit("Transpose", { x.name }, { perm = perm })
  end
  local function expanded(e, node, x) return e:emit("Expand", { x.name, e:integers(node.shapes[1]) }) end
  for _, name in ipairs { "expand", "expand_as", "expand_to", "broadcast_to" } do ops[name] = expanded end
  -- A write in place: the value behind it is what was written, in the dtype and shape of what was there.
  function ops.copy(e, node, _, y)
    local name, shape = e:cast(y, node.dtypes[1]), node.shapes[1]
    return same(y.shape, shape) and name or e:emit("Expand", { name, e:integers(shape) })
  end

  -- ---- parts
  local function slice(e, x, axis, from, to, step)
    return e:emit("Slice", { x.name, e:integers { from }, e:integers { to }, e:integers { axis },
      step ~= 1 and e:integers { step } or nil })
  end
  local function number(v) return is_free(v) and v.value or v end
  local function part(e, node, x)
    local a = node.attrs
    local axis, start, step = dim0(a.dim, rank(x)), a.start, a.step or 1
    e:fixed(node, step, "step")
    local count = node.shapes[1][axis + 1]
    if is_free(start) then -- it and the end follow one size
      local other = is_free(count) and count.symbol ~= start.symbol
      if start.factor < 0 or start.value < 1 or other then
        e:fail(node, "a start that depends on '%s'", start.symbol.said)
      end
      local function at(factor, offset)
        local v = factor * start.symbol.vector[1] + offset
        return factor == 0 and offset or sizes.free(start.symbol, factor, offset, v)
      end
      local from, more = at(start.factor, start.offset - 1), is_free(count) and count.factor * step or 0
      local span = is_free(count) and count.offset * step or (count - 1) * step + 1
      return slice(e, x, axis, from, at(start.factor + more, start.offset - 1 + span), step)
    end
    local from = start > 0 and start - 1 or start
    if is_free(count) then
      local to = setmetatable({ symbol = count.symbol, factor = count.factor * step,
        offset = count.offset * step + from, value = count.value * step + from }, getmetatable(count))
      if from < 0 then e:fail(node, "a start from the end of a free size") end
      return slice(e, x, axis, from, to, step)
    end
    local size = number(x.shape[axis + 1])
    if from < 0 then from = from + size end
    return slice(e, x, axis, from, from + (count - 1) * step + 1, step)
  end
  ops.narrow, ops.slice = part, part
  ops["select"] = function(e, node, x)
    local at = node.attrs.index
    local axis = dim0(node.attrs.dim, rank(x))
    local index
    if is_free(at) then
      local zero = setmetatable({ symbol = at.symbol, factor = at.factor, offset = at.offset - 1,
        value = at.value - 1 }, getmetatable(at))
      index = e:reshape(e:integers { zero }, {})
    else
      index = e:number(at > 0 and at - 1 or at, "i64")
    end
    return e:emit("Gather", { x.name, index }, { axis = axis })
  end
  function ops.flip(e, node, x)
    local name = x.name
    if rank(x) == 0 then return x end
    local dims = node.attrs.dims
    for _, d in ipairs(type(dims) == "table" and dims or { dims }) do
      name = slice(e, { name = name }, dim0(d, rank(x)), -1, math.mininteger + 1, -1)
    end
    return name
  end
  function ops.roll(e, node, x)
    local dims, name = node.attrs.dims, x.name
    if not dims or #dims == 0 then e:fail(node, "without dims is not supported") end
    for i, d in ipairs(dims) do
      local axis = dim0(d, rank(x))
      local size, shift = x.shape[axis + 1], node.attrs.shifts[i]
      e:fixed(node, { size, shift }, "size")
      shift = size > 0 and shift % size or 0
      if shift ~= 0 then
        local v = { name = name }
        name = e:emit("Concat", { slice(e, v, axis, size - shift, size, 1), slice(e, v, axis, 0, size - shift, 1) },
          { axis = axis })
      end
    end
    return name
  end
  for name, upper in pairs { tril = 0, triu = 1 } do
    ops[name] = function(e, node, x)
      return e:emit("Trilu", { x.name, e:number(node.attrs.diagonal or 0, "i64") }, { upper = upper })
    end
  end

  function ops.unfold(e, node, x)
    local a, n, list = node.attrs, rank(x), {}
    local axis = dim0(a.dim, n)
    local count = node.shapes[1][axis + 1]
    e:fixed(node, { count, a.size, a.step }, "size")
    for i = 0, count - 1 do for k = 0, a.size - 1 do list[#list + 1] = i * a.step + k end end
    local at = e:constant(T.tensor(list, { dtype = "i64" }):view(count, a.size))
    local y = e:emit("Gather", { x.name, at }, { axis = axis })
    local perm = {}
    for d = 0, n do
      if d ~= axis + 1 then perm[#perm + 1] = d end
    end
    perm[#perm + 1] = axis + 1
    return axis + 1 == n and y or e:emit("Transpose", { y }, { perm = perm })
  end

  -- ---- joins
  function ops.cat(e, node, ...)
    local list, d = {}, node.dtypes[1]
    local axis = dim0(node.attrs.dim, #node.shapes[1])
    for _, x in ipairs { ... } do -- an empty list is left out beside tensors of any rank
      if rank(x) == #node.shapes[1] then list[#list + 1] = e:cast(x, d) end
    end
    return e:emit("Concat", list, { axis = axis })
  end
  function ops.stack(e, node, ...)
    local list, d = {}, node.dtypes[1]
    local axis = dim0(node.attrs.dim, #node.shapes[1])
    for i, x in ipairs { ... } do list[i] = e:emit("Unsqueeze", { e:cast(x, d), e:integers { axis } }) end
    return e:emit("Concat", list, { axis = axis })
  end
  function ops.tile(e, node, x)
    local dims, n = node.attrs.dims, #node.shapes[1]
    local name = x.name
    if rank(x) < n then
      local shape = {}
      for d = 1, n do shape[d] = x.shape[d - n + rank(x)] or 1 end
      name = e:reshape(name, shape)
    end
    local repeats = {}
    for d = 1, n do repeats[d] = dims[d - n + #dims] or 1 end
    return e:emit("Tile", { name, e:integers(repeats) })
  end
  function ops.repeat_interleave(e, node, x)
    local n, times = rank(x), node.attrs.repeats
    local name, axis = x.name, node.attrs.dim and dim0(node.attrs.dim, n) or 0
    if not node.attrs.dim then name, n = e:emit("Reshape", { name, e:integers { -1 } }), 1 end
    e:fixed(node, times, "repeats")
    local wide = e:emit("Unsqueeze", { name, e:integers { axis + 1 } })
    local list = {}
    for d = 1, n + 1 do list[d] = d == axis + 2 and times or 1 end
    return e:reshape(e:emit("Tile", { wide, e:integers(list) }), node.shapes[1])
  end
  local modes = { constant = "constant", reflect = "reflect", replicate = "edge" }
  function ops.pad(e, node, x)
    local list, n, mode = node.attrs.pad, rank(x), node.attrs.mode or "constant"
    local pads = {}
    e:fixed(node, list, "padding")
    for d = 1, n do
      local k = 2 * (n - d)
      pads[d], pads[d + n] = list[k + 1] or 0, list[k + 2] or 0
    end
    if mode == "circular" then -- copies of the ends
      local name = x.name
      for d = 1, n do
        local before, after = pads[d], pads[d + n]
        if before ~= 0 or after ~= 0 then
          if before < 0 or after < 0 then e:fail(node, "circular padding that cuts is not supported") end
          local v, parts = { name = name }, {}
          if before > 0 then parts[1] = slice(e, v, d - 1, -before, math.maxinteger, 1) end
          parts[#parts + 1] = name
          if after > 0 then parts[#parts + 1] = slice(e, v, d - 1, 0, after, 1) end
          name = e:emit("Concat", parts, { axis = d - 1 })
        end
      end
      return name
    end
    if not modes[mode] then e:fail(node, "mode '%s' is not supported", mode) end
    return e:emit("Pad", { x.name, e:integers(pads), mode == "constant" and e:number(node.attrs.value or 0, x.dtype)
      or false }, { mode = modes[mode] })
  end

  -- ---- indices
  -- Ours count from index_base, theirs from 0.
  local function from_zero(e, node, at)
    local name, base = e:cast(at, "i64"), node.attrs.index_base or 1
    if base == 0 then return name end
    return e:emit("Sub", { name, e:number(base, "i64") })
  end
  Export.from_zero = from_zero
  function ops.embedding(e, node, w, ids) return e:emit("Gather", { w.name, from_zero(e, node, ids) }, { axis = 0 }) end
  function ops.index_select(e, node, x, at)
    return e:emit("Gather", { x.name, from_zero(e, node, at) }, { axis = dim0(node.attrs.dim, rank(x)) })
  end
  local function gather(e, node, x, at)
    return e:emit("GatherElements", { x.name, from_zero(e, node, at) }, { axis = dim0(node.attrs.dim, rank(x)) })
  end
  function ops.gather(e, node, x, at)
    for d, n in ipairs(at.shape) do
      local m = x.shape[d]
      if d ~= dim0(node.attrs.dim, rank(x)) + 1 and number(n) > number(m) then
        e:fail(node, "an index that is larger than x")
      end
    end
    return gather(e, node, x, at)
  end
  ops.gather_wrapping = ops.gather
  -- Sizes of 1 beside the dimension are those of the other tensor.
  function ops.take_along_dim(e, node, x, at)
    local name, index = x.name, from_zero(e, node, at)
    if node.attrs.dim == nil then
      name, index = e:emit("Reshape", { name, e:integers { -1 } }), e:emit("Reshape", { index, e:integers { -1 } })
      return e:emit("GatherElements", { name, index }, { axis = 0 })
    end
    local axis, shape = dim0(node.attrs.dim, rank(x)), { table.unpack(node.shapes[1]) }
    if not same(at.shape, shape) then index = e:emit("Expand", { index, e:integers(shape) }) end
    shape[axis + 1] = x.shape[axis + 1]
    if not same(x.shape, shape) then name = e:emit("Expand", { name, e:integers(shape) }) end
    return e:emit("GatherElements", { name, index }, { axis = axis })
  end
  function ops.take(e, node, x, at)
    return e:emit("Gather", { e:emit("Reshape", { x.name, e:integers { -1 } }), from_zero(e, node, at) }, { axis = 0 })
  end
  -- A source as large as its index; ONNX takes no other, of ours the corner in front counts.
  local function fitted(e, node, src, at)
    local name, axes, ends, from = src.name, {}, {}, {}
    for d, n in ipairs(at.shape) do
      if not same({ n }, { src.shape[d] }) then
        e:fixed(node, { n, src.shape[d] }, "size")
        axes[#axes + 1], ends[#ends + 1], from[#from + 1] = d - 1, n, 0
      end
    end
    if #axes == 0 then return name end
    return e:emit("Slice", { name, e:integers(from), e:integers(ends), e:integers(axes) })
  end
  function ops.scatter(e, node, x, at, src)
    local reduce = node.attrs.reduce
    if reduce and reduce ~= "none" then e:fail(node, "reduce '%s' is not supported", reduce) end
    local values = src.name
    if not values or rank(src) == 0 then
      values = e:emit("Expand", { e:cast(src, x.dtype), e:integers(at.shape) })
    else
      values = fitted(e, node, src, at)
    end
    return e:emit("ScatterElements", { x.name, from_zero(e, node, at), values },
      { axis = dim0(node.attrs.dim, rank(x)) })
  end
  function ops.scatter_add(e, node, x, at, src)
    return e:emit("ScatterElements", { x.name, from_zero(e, node, at), fitted(e, node, src, at) },
      { axis = dim0(node.attrs.dim, rank(x)), reduction = "add" })
  end
  local reductions = { sum = { "add", 0 }, prod = { "mul", 1 }, amax = { "max", -math.huge },
    amin = { "min", math.huge } }
  function ops.scatter_reduce(e, node, x, at, src)
    local r, index = reductions[node.attrs.reduce], from_zero(e, node, at)
    if not r then e:fail(node, "reduce '%s' is not supported", node.attrs.reduce) end
    local axis, y = dim0(node.attrs.dim, rank(x)), x.name
    if not node.attrs.include_self then -- what leaves a reduction as it is goes there first
      if math.type(r[2]) == "float" and not x.dtype:find "^b?f" then
        e:fail(node, "include_self = false is not supported for %s", x.dtype)
      end
      local first = e:emit("Expand", { e:number(r[2], x.dtype), e:integers(at.shape) })
      y = e:emit("ScatterElements", { y, index, first }, { axis = axis })
    end
    return e:emit("ScatterElements", { y, index, fitted(e, node, src, at) }, { axis = axis, reduction = r[1] })
  end
  -- How many of the boundaries are before a value; NaN is behind all.
  local function bucket(e, node, x, boundaries, right)
    local t = T.promote_types(x.dtype, boundaries.dtype)
    local v = e:emit("Unsqueeze", { e:cast(x, t), e:integers { -1 } })
    local behind = e:emit("Not", { e:emit(right and "Less" or "LessOrEqual", { v, e:cast(boundaries, t) }) })
    local n = e:emit("Cast", { behind }, { to = writer.kinds.i64 })
    n = e:emit("ReduceSum", { n, e:integers { -1 } }, { keepdims = 0 })
    local base = node.attrs.index_base or 1
    if base ~= 0 then n = e:emit("Add", { n, e:number(base, "i64") }) end
    return node.attrs.out_int32 and e:emit("Cast", { n }, { to = writer.kinds.i32 }) or n
  end
  function ops.bucketize(e, node, x, boundaries) return bucket(e, node, x, boundaries, node.attrs.right) end
  function ops.searchsorted(e, node, sorted, values, sorter)
    if sorter then e:fail(node, "a sorter is not supported") end
    if rank(sorted) ~= 1 then e:fail(node, "sorted rows of several dims are not supported") end
    return bucket(e, node, values, sorted, node.attrs.right or node.attrs.side == "right")
  end
  -- Slices of x along a dimension, at the places `at`, become or grow by those of src, or are all one number.
  local function put_slices(e, node, x, at, src, reduction)
    local axis, shape, row = dim0(node.attrs.dim, rank(x)), {}, {}
    for d = 1, rank(x) do
      shape[d], row[d] = d == axis + 1 and (at.shape[1] or 1) or x.shape[d], d == axis + 1 and (at.shape[1] or 1) or 1
    end
    local index = e:emit("Expand", { e:reshape(from_zero(e, node, at), row), e:integers(shape) })
    return e:emit("ScatterElements", { x.name, index, src(shape) }, { axis = axis, reduction = reduction })
  end
  function ops.index_add(e, node, x, at, src)
    return put_slices(e, node, x, at, function()
      if node.attrs.alpha == 1 then return src.name end
      return e:emit("Mul", { src.name, e:number(node.attrs.alpha, x.dtype) })
    end, "add")
  end
  function ops.index_copy(e, node, x, at, src)
    return put_slices(e, node, x, at, function() return e:cast(src, x.dtype) end)
  end
  function ops.index_fill(e, node, x, at, value)
    return put_slices(e, node, x, at, function(shape)
      return e:emit("Expand", { e:cast(value, x.dtype), e:integers(shape) })
    end)
  end
  function ops.one_hot(e, node, x)
    e:fixed(node, node.attrs.num_classes, "num_classes")
    if node.attrs.num_classes < 0 then e:fail(node, "num_classes is missing") end
    local values = e:constant(T.tensor({ 0, 1 }, { dtype = node.dtypes[1] }))
    return e:emit("OneHot", { from_zero(e, node, x), e:number(node.attrs.num_classes, "i64"), values }, { axis = -1 })
  end
  function ops.index(e, node, x, ...)
    local list, dims = { ... }, node.attrs.dims
    if #list ~= 1 then e:fail(node, "%d index tensors are not supported", #list) end
    local axis = dims and #dims > 0 and dim0(dims[1], rank(x)) or 0
    if list[1].dtype == "bool" then e:fail(node, "masks are not supported") end
    return e:emit("Gather", { x.name, from_zero(e, node, list[1]) }, { axis = axis })
  end
  function ops.nonzero(e, node, x)
    local y = e:emit("Transpose", { e:emit("NonZero", { x.name }) }, { perm = { 1, 0 } })
    local base = node.attrs.index_base or 1
    return base == 0 and y or e:emit("Add", { y, e:number(base, "i64") })
  end

  -- ---- constants
  local function filled(e, node, v)
    local free = false
    for _, n in ipairs(node.shapes[1]) do free = free or is_free(n) end
    local d = node.dtypes[1]
    if not free then return e:constant(T.full(node.shapes[1], v, { dtype = d })) end
    return e:emit("ConstantOfShape", { e:integers(node.shapes[1]) }, { value = T.full({ 1 }, v, { dtype = d }) })
  end
  ops.zeros = function(e, node) return filled(e, node, node.dtypes[1] == "bool" and false or 0) end
  ops.ones = function(e, node) return filled(e, node, node.dtypes[1] == "bool" or 1) end
  ops.full = function(e, node) return filled(e, node, e:fixed(node, node.attrs.value, "value")) end
  function ops.fill(e, node) return filled(e, node, e:fixed(node, node.attrs.value, "value")) end
  ops.zero = ops.zeros
  function ops.eye(e, node)
    local a = node.attrs
    e:fixed(node, { a.n, a.m }, "size")
    return e:constant(T.core.jit_untraced(T.eye, a.n, a.m, { dtype = node.dtypes[1] }))
  end
  function ops.linspace(e, node)
    local a = node.attrs
    e:fixed(node, { a.start, a["end"], a.steps }, "start, end or steps")
    return e:constant(T.core.jit_untraced(T.linspace, a.start, a["end"], a.steps, { dtype = node.dtypes[1] }))
  end
  function ops.logspace(e, node)
    local a = node.attrs
    e:fixed(node, { a.start, a["end"], a.steps, a.base }, "start, end, steps or base")
    return e:constant(T.core.jit_untraced(T.logspace, a.start, a["end"], a.steps, { base = a.base,
      dtype = node.dtypes[1] }))
  end
  function ops.linear_fill(e, node)
    local a, d = node.attrs, node.dtypes[1]
    e:fixed(node, { a.start, a.step }, "start or step")
    if not is_free(a.n) then
      local list = {}
      for i = 0, a.n - 1 do list[i + 1] = a.start + i * a.step end
      return e:constant(#list > 0 and T.tensor(list, { dtype = d }) or T.zeros({ 0 }, { dtype = d }))
    end
    local last = e:emit("Add", { e:reshape(e:integers { a.n }, {}), e:number(0, "i64") })
    local steps = e:emit("Range", { e:number(0, "i64"), last, e:number(1, "i64") })
    local y = d == "i64" and steps or e:emit("Cast", { steps }, { to = Export.kind(d) })
    if a.step ~= 1 then y = e:emit("Mul", { y, e:number(a.step, d) }) end
    if a.start ~= 0 then y = e:emit("Add", { y, e:number(a.start, d) }) end
    return y
  end
end
