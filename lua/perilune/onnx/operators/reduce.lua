-- SPDX-License-Identifier: MIT
--- ONNX operators that reduce, scan and order.
-- @module perilune.onnx.operators.reduce
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, is_float = registry.op, registry.is_float

-- f(x, dims, keepdim) over all dimensions but those that are kept.
local function reduction(name, f, empty)
  op(name, "axes:ints keepdims:int noop_with_empty_axes:int", function(c, x, axes)
    local list = axes and registry.ints(c, axes, "axes") or c.a.axes
    local keep = c.a.keepdims ~= 0
    if not list or #list == 0 then
      if c.a.noop_with_empty_axes == 1 then return f(x, nil, keep) end
      list = {}
      for d = 0, x:dim() - 1 do list[d + 1] = d end
    end
    if x:dim() == 0 then return f(x, nil, keep) end
    local dims = registry.axes(c, list, x:dim())
    if empty and x:numel() == 0 then
      local shape, gone = {}, {}
      for _, d in ipairs(dims) do gone[d] = true end
      for d = 1, x:dim() do
        if not gone[d] then shape[#shape + 1] = x:size(d) elseif keep then shape[#shape + 1] = 1 end
      end
      return T.full(shape, empty(x), { dtype = x:dtype(), device = x:device() })
    end
    return f(x, dims, keep)
  end, { constants = { 2 } })
end

-- Sums of integers keep their type.
local function sum(x, dims, keep)
  if not dims then return x end
  return T.sum(x, dims, { keepdim = keep }):to(x:dtype())
end
local function extreme(name, low)
  local function limit(x)
    if is_float(x) then return low and -math.huge or math.huge end
    if x:dtype() == "bool" then return not low end
    local bits = ({ i8 = 7, u8 = 8, i16 = 15, i32 = 31, i64 = 63 })[x:dtype()]
    if x:dtype() == "u8" then return low and 0 or 255 end
    return low and -(1 << bits - 1) - (1 << bits - 1) or (1 << bits - 1) - 1 + (1 << bits - 1)
  end
  reduction(name, function(x, dims, keep)
    if not dims then return x end
    if x:dtype() == "bool" then return (low and T.any or T.all)(x, dims, { keepdim = keep }) end
    return (low and T.amax or T.amin)(x, dims, { keepdim = keep })
  end, limit)
end

reduction("ReduceSum", sum)
reduction("ReduceL1", function(x, ...) return sum(x:abs(), ...) end)
reduction("ReduceL2", function(x, dims, keep)
  if not dims then return x:abs() end
  if is_float(x) then return sum(x:square(), dims, keep):sqrt() end
  return sum(x:to("f64"):square(), dims, keep):sqrt():to(x:dtype())
end)
reduction("ReduceSumSquare", function(x, ...) return sum(x:square(), ...) end)
reduction("ReduceLogSum", function(x, ...) return sum(x, ...):log():to(x:dtype()) end)
reduction("ReduceLogSumExp", function(x, dims, keep)
  if not dims then return x end
  if not is_float(x) then return T.logsumexp(x:to("f64"), dims, { keepdim = keep }):to(x:dtype()) end
  return T.logsumexp(x, dims, { keepdim = keep })
end, function(x) return is_float(x) and -math.huge or 0 end)
reduction("ReduceMean", function(x, dims, keep)
  if not dims then return x end
  if is_float(x) then return T.mean(x, dims, { keepdim = keep }) end
  local n = 1
  for _, d in ipairs(dims) do n = n * x:size(d) end
  return T.div(sum(x, dims, keep), n, { rounding_mode = "trunc" }):to(x:dtype())
end)
reduction("ReduceProd", function(x, dims, keep)
  if not dims then return x end
  return T.prod(x, dims, { keepdim = keep }):to(x:dtype())
end)
extreme("ReduceMax", true)
extreme("ReduceMin", false)

for name, f in pairs { ArgMax = "argmax", ArgMin = "argmin" } do
  op(name, "axis:int keepdims:int select_last_index:int", function(c, x)
    local dim = registry.axis(c, c.a.axis or 0, x:dim())
    local n, last = x:size(dim), c.a.select_last_index == 1
    local y = T[f](last and x:flip(dim) or x, dim, { keepdim = c.a.keepdims ~= 0, index_base = 0 })
    return last and (n - 1) - y or y
  end)
end

op("TopK", "axis:int k:int largest:int sorted:int", function(c, x, k)
  local dim = registry.axis(c, c.a.axis or -1, x:dim())
  k = k and registry.number(c, k, "K") or c.a.k
  if not k then c:fail "K is missing" end
  return T.topk(x, k, dim, { largest = c.a.largest ~= 0, sorted = true, index_base = 0 })
end)

-- Running sums and products; exclusive: of what comes before.
for name, how in pairs { CumSum = { "cumsum", T.zeros_like }, CumProd = { "cumprod", T.ones_like } } do
  op(name, "exclusive:int reverse:int", function(c, x, axis)
    local dim = registry.axis(c, registry.number(c, axis, "axis"), x:dim())
    local y = c.a.reverse == 1 and x:flip(dim) or x
    if c.a.exclusive == 1 and y:size(dim) > 0 then
      y = T.cat({ how[2](y:narrow(dim, 1, 1)), y:narrow(dim, 1, y:size(dim) - 1) }, dim)
    end
    y = T[how[1]](y, dim):to(x:dtype())
    return c.a.reverse == 1 and y:flip(dim) or y
  end)
end

op("Unique", "axis:int sorted:int", function(c, x)
  local dim = c.a.axis and registry.axis(c, c.a.axis, x:dim())
  local values, inverse, counts = T.unique(x, { return_inverse = true, return_counts = true, dim = dim,
    index_base = 0 })
  inverse = inverse:reshape(-1)
  local n, m = inverse:numel(), values:size(dim or 1)
  local places = registry.count(n, x:device())
  local first = T.full({ m }, n, { dtype = "i64", device = x:device() })
    :scatter_reduce(1, inverse, places, { reduce = "amin", include_self = true, index_base = 0 })
  if c.a.sorted == 0 then -- in the order in which they come
    local order = first:argsort({ index_base = 0 })
    local rank = T.zeros({ m }, { dtype = "i64", device = x:device() }):scatter(1, order,
      registry.count(m, x:device()), { index_base = 0 })
    values = values:index_select(dim or 1, order, { index_base = 0 })
    first, counts = first:index_select(1, order, { index_base = 0 }), counts:index_select(1, order, { index_base = 0 })
    inverse = rank:index_select(1, inverse, { index_base = 0 })
  end
  return values, first, inverse, counts
end)

op("NonZero", "", function(_, x)
  if x:dim() == 0 then return (x:reshape(1):nonzero({ index_base = 0 })):t():narrow(1, 1, 0) end
  return x:nonzero({ index_base = 0 }):t()
end)
