-- SPDX-License-Identifier: MIT
--- Export of reductions, scans and order.
-- @module perilune.onnx.export.reduce
return function(Export)
  local ops, is_free = Export.ops, Export.is_free

  local function dims_of(node, x)
    local dims, n = node.attrs.dim, #x.shape
    if n == 0 then return {} end
    if type(dims) == "number" then dims = { dims } end
    local out = {}
    if not dims or #dims == 0 then
      for d = 1, n do out[d] = d - 1 end
    else
      for i, d in ipairs(dims) do out[i] = d < 0 and d + n or d - 1 end
    end
    return out
  end
  local function keep(node) return node.attrs.keepdim and 1 or 0 end

  -- Sum has its axes as an input since opset 13, the others as an attribute until 18.
  local function reduced(e, op, name, axes, keepdims)
    return e:emit(op, { name, e:integers(axes) }, { keepdims = keepdims, noop_with_empty_axes = 0 })
  end
  for ours, theirs in pairs { sum = "ReduceSum", mean = "ReduceMean", prod = "ReduceProd", amax = "ReduceMax",
    amin = "ReduceMin", logsumexp = "ReduceLogSumExp" } do
    ops[ours] = function(e, node, x)
      local name, dims, kept = e:cast(x, node.dtypes[1]), dims_of(node, x), keep(node)
      if #x.shape == 0 then return ours == "logsumexp" and name or e:emit("Identity", { name }) end
      return reduced(e, theirs, name, dims, kept)
    end
  end
  function ops.nansum(e, node, x)
    local d = node.dtypes[1]
    local name = e:cast(x, d)
    if Export.float[d] then name = e:emit("Where", { e:emit("IsNaN", { name }), e:number(0, d), name }) end
    return ops.sum(e, node, { name = name, dtype = d, shape = x.shape })
  end
  function ops.count_nonzero(e, node, x)
    local ones = e:emit("Cast", { e:cast(x, "bool") }, { to = Export.kind "i64" })
    if #x.shape == 0 then return ones end
    return reduced(e, "ReduceSum", ones, dims_of(node, x), keep(node))
  end
  ops.max_all = function(e, _, x) return reduced(e, "ReduceMax", x.name, dims_of({ attrs = {} }, x), 0) end
  ops.min_all = function(e, _, x) return reduced(e, "ReduceMin", x.name, dims_of({ attrs = {} }, x), 0) end
  -- How many are true is more than 0; nothing is none.
  local function truth(negated)
    return function(e, node, x)
      local name, d = e:cast(x, "bool"), node.dtypes[1]
      local ints = e:emit("Cast", { negated and e:emit("Not", { name }) or name }, { to = Export.kind "i64" })
      local some = e:emit("Cast", { reduced(e, "ReduceSum", ints, dims_of(node, x), keep(node)) },
        { to = Export.kind "bool" })
      if negated then some = e:emit("Not", { some }) end
      return d == "bool" and some or e:emit("Cast", { some }, { to = Export.kind(d) })
    end
  end
  ops.any, ops.all = truth(false), truth(true)

  function ops.norm(e, node, x)
    local p, axes, d = node.attrs.p or 2, dims_of(node, x), node.dtypes[1]
    if x.dtype ~= d then x = { name = e:cast(x, d), dtype = d, shape = x.shape } end
    if p == 2 then return reduced(e, "ReduceL2", x.name, axes, keep(node)) end
    if p == 1 then return reduced(e, "ReduceL1", x.name, axes, keep(node)) end
    if p == math.huge then return reduced(e, "ReduceMax", e:emit("Abs", { x.name }), axes, keep(node)) end
    local size = e:emit("Abs", { x.name })
    if p == -math.huge then return reduced(e, "ReduceMin", size, axes, keep(node)) end
    if p == 0 then return reduced(e, "ReduceSum", e:emit("Sign", { size }), axes, keep(node)) end
    local sum = reduced(e, "ReduceSum", e:emit("Pow", { size, e:number(p, d) }), axes, keep(node))
    return e:emit("Pow", { sum, e:number(1 / p, d) })
  end

  local function moment(e, node, x)
    local axes, n, d, free = dims_of(node, x), 1, node.dtypes[1], {}
    for _, axis in ipairs(axes) do
      local size = x.shape[axis + 1]
      if is_free(size) then free[#free + 1] = size else n = n * size end
    end
    local c = e:emit("Sub", { x.name, reduced(e, "ReduceMean", x.name, axes, 1) })
    local sums, correction = reduced(e, "ReduceSumSquare", c, axes, keep(node)), node.attrs.correction or 1
    if #free == 0 then return e:emit("Div", { sums, e:number(math.max(0, n - correction), d) }) end
    local count = e:emit("Cast", { e:integers { n } }, { to = Export.kind(d) })
    for _, size in ipairs(free) do
      count = e:emit("Mul", { count, e:emit("Cast", { e:integers { size } }, { to = Export.kind(d) }) })
    end
    count = e:emit("Reshape", { e:emit("Sub", { count, e:number(correction, d) }), e:integers {} })
    return e:emit("Div", { sums, e:emit("Max", { count, e:number(0, d) }) })
  end
  ops.var = moment
  function ops.std(e, node, x) return e:emit("Sqrt", { moment(e, node, x) }) end

  local function plus_base(e, node, name)
    local base = node.attrs.index_base or 1
    return base == 0 and name or e:emit("Add", { name, e:number(base, "i64") })
  end
  for ours, theirs in pairs { argmax = "ArgMax", argmin = "ArgMin" } do
    ops[ours] = function(e, node, x)
      local name, dim = e:cast(x, x.dtype), node.attrs.dim
      if dim == nil then
        name, dim = e:emit("Reshape", { name, e:integers { -1 } }), 1
        if node.attrs.keepdim then e:fail(node, "keepdim without dim is not supported") end
      end
      local axis = dim < 0 and dim + #x.shape or dim - 1
      return plus_base(e, node, e:emit(theirs, { name }, { axis = axis, keepdims = keep(node) }))
    end
  end
  for ours, theirs in pairs { max_dim = { "ReduceMax", "ArgMax" }, min_dim = { "ReduceMin", "ArgMin" } } do
    ops[ours] = function(e, node, x)
      local dim = node.attrs.dim
      local axis = dim < 0 and dim + #x.shape or dim - 1
      local at = e.wanted[node.outputs[2]]
        and plus_base(e, node, e:emit(theirs[2], { x.name }, { axis = axis, keepdims = keep(node) }))
      return reduced(e, theirs[1], x.name, { axis }, keep(node)), at
    end
  end

  function ops.topk(e, node, x)
    local dim = node.attrs.dim
    e:fixed(node, node.attrs.k, "k")
    local axis = dim < 0 and dim + #x.shape or dim - 1
    local v, at = e:emit("TopK", { x.name, e:integers { node.attrs.k } }, { axis = axis,
      largest = node.attrs.largest and 1 or 0, sorted = 1 }, 2)
    return v, e.wanted[node.outputs[2]] and plus_base(e, node, at)
  end
  local function sorted(e, node, x)
    local dim = node.attrs.dim
    local axis = dim < 0 and dim + #x.shape or dim - 1
    return e:emit("TopK", { x.name, e:integers { x.shape[axis + 1] } }, { axis = axis,
      largest = node.attrs.descending and 1 or 0, sorted = 1 }, 2)
  end
  function ops.sort(e, node, x)
    local v, at = sorted(e, node, x)
    return v, e.wanted[node.outputs[2]] and plus_base(e, node, at)
  end
  function ops.argsort(e, node, x)
    local _, at = sorted(e, node, x)
    return plus_base(e, node, at)
  end
  function ops.cumsum(e, node, x)
    local dim = node.attrs.dim
    return e:emit("CumSum", { e:cast(x, node.dtypes[1]), e:number(dim < 0 and dim + #x.shape or dim - 1, "i64") })
  end
  -- ONNX has no products so far before opset 26: each doubling of the distance multiplies by those of a piece before.
  function ops.cumprod(e, node, x)
    local t, dim = node.dtypes[1], node.attrs.dim
    local axis, y = dim < 0 and dim + #x.shape or dim - 1, e:cast(x, t)
    local n, at = e:fixed(node, { x.shape[axis + 1] }, "the length")[1], 1
    while at < n do
      local function piece(from, to)
        return e:emit("Slice", { y, e:integers { from }, e:integers { to }, e:integers { axis } })
      end
      y = e:emit("Concat", { piece(0, at), e:emit("Mul", { piece(at, n), piece(0, n - at) }) }, { axis = axis })
      at = 2 * at
    end
    return y
  end
  for ours, theirs in pairs { softmax = "Softmax", log_softmax = "LogSoftmax" } do
    ops[ours] = function(e, node, x)
      local dim, name = node.attrs.dim, e:cast(x, node.dtypes[1])
      if #x.shape == 0 then e:fail(node, "of a 0-d tensor is not supported") end
      return e:emit(theirs, { name }, { axis = dim < 0 and dim + #x.shape or dim - 1 })
    end
  end
end
