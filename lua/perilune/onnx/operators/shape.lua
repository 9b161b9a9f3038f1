-- SPDX-License-Identifier: MIT
--- ONNX operators about shapes: views, joins, paddings, and tensors made of sizes.
-- @module perilune.onnx.operators.shape
local T = require "perilune"
local narrow = require "perilune.onnx.narrow"
local registry = require "perilune.onnx.operators.registry"
local schema = require "perilune.onnx.schema"
local free = require "perilune.graph.sizes"

local op, ints, axis_of, axes_of = registry.op, registry.ints, registry.axis, registry.axes
local number, beside = registry.number, registry.beside
local floor, max, min = math.floor, math.max, math.min

-- A dtype by its number in ONNX.
local function dtype(c, n, default)
  if not n then return default end
  local kind = schema.types[n]
  if not kind or not kind[2] or narrow.kinds[kind[1]] then
    c:fail("elements of type %s are not supported here", kind and kind[1] or tostring(n))
  end
  return kind[2]
end

-- ---- sizes ---------------------------------------------------------------------------------------------------------

op("Shape", "start:int end:int", function(c, x)
  local rank, list = x:dim(), {}
  local from, to = c.a.start or 0, c.a["end"] or rank
  from = max(0, min(rank, from < 0 and from + rank or from))
  to = max(0, min(rank, to < 0 and to + rank or to))
  for d = from + 1, to do list[#list + 1] = x:size(d) end
  return registry.tensor(list, "i64")
end)
op("Size", "", function(_, x) return registry.tensor({ x:numel() }, "i64", nil, {}) end)

op("Reshape", "allowzero:int shape:ints consumed_inputs:ints", function(c, x, shape)
  local want = shape and ints(c, shape, "shape") or c.a.shape
  if not want then c:fail "the shape is missing" end
  local hole, known = nil, 1
  for d, n in ipairs(want) do
    if n == 0 and c.a.allowzero ~= 1 then
      n = x:size(d)
      want[d] = n
    end
    if n == -1 then
      if hole then c:fail "two sizes of -1" end
      hole = d
    else
      known = known * n
    end
  end
  if hole then
    if known == 0 or x:numel() % known ~= 0 then
      c:fail("[%s] cannot become [%s]", table.concat(x:shape(), ","), table.concat(want, ","))
    end
    want[hole] = x:numel() // known
  end
  return x:reshape(want)
end)
op("Flatten", "axis:int", function(c, x)
  local axis, rows = axis_of(c, c.a.axis or 1, x:dim() + 1), 1
  if c.a.axis and c.a.axis < 0 then axis = axis_of(c, c.a.axis, x:dim()) end
  for d = 1, axis - 1 do rows = rows * x:size(d) end
  local cols = 1
  for d = axis, x:dim() do cols = cols * x:size(d) end
  return x:reshape(rows, cols)
end)
op("Transpose", "perm:ints", function(c, x)
  local rank, dims = x:dim(), {}
  if rank == 0 then return x end
  if c.a.perm then
    if #c.a.perm ~= rank then c:fail("perm has %d entries for %d dimensions", #c.a.perm, rank) end
    dims = axes_of(c, c.a.perm, rank)
  else
    for d = 1, rank do dims[d] = rank - d + 1 end
  end
  return x:permute(dims)
end)
op("Squeeze", "axes:ints", function(c, x, axes)
  local list = axes and ints(c, axes, "axes") or c.a.axes
  if not list then return x:squeeze() end
  local dims = axes_of(c, list, x:dim())
  for i, d in ipairs(dims) do
    if x:size(d) ~= 1 then c:fail("axis %d has %d elements, not one", list[i], x:size(d)) end
  end
  if #dims == 0 then return x end
  return x:squeeze(dims)
end)
op("Unsqueeze", "axes:ints", function(c, x, axes)
  local list = axes and ints(c, axes, "axes") or c.a.axes
  if not list then c:fail "axes are missing" end
  local new = {}
  for _, d in ipairs(axes_of(c, list, x:dim() + #list)) do new[d] = true end
  local shape, at = {}, 0
  for d = 1, x:dim() + #list do
    if new[d] then
      shape[d] = 1
    else
      at = at + 1
      shape[d] = x:size(at)
    end
  end
  return x:reshape(shape)
end)

local function broadcast(c, a, b)
  local out, n = {}, max(#a, #b)
  for d = 1, n do
    local x, y = a[d - n + #a] or 1, b[d - n + #b] or 1
    if x ~= y and x ~= 1 and y ~= 1 then
      c:fail("[%s] and [%s] do not broadcast", table.concat(a, ","), table.concat(b, ","))
    end
    out[d] = x == 1 and y or x
  end
  return out
end
op("Expand", "", function(c, x, shape) return x:expand(broadcast(c, x:shape(), ints(c, shape, "shape"))) end)

op("Tile", "", function(c, x, repeats, axis)
  if axis or c.opset < 6 then -- the first version: how often along one axis
    local list = {}
    for d = 1, x:dim() do list[d] = 1 end
    list[axis_of(c, number(c, axis, "axis"), x:dim())] = number(c, repeats, "tiles")
    return x:tile(list)
  end
  local list = ints(c, repeats, "repeats")
  if #list ~= x:dim() then c:fail("%d repeats for %d dimensions", #list, x:dim()) end
  if x:dim() == 0 then return x end
  return x:tile(list)
end)

-- ---- joins and parts -----------------------------------------------------------------------------------------------

op("Concat", "axis:int", function(c, ...)
  local list = { ... }
  local axis = c.a.axis or (c.opset < 4 and 1) or c:fail "axis is missing"
  local dim = axis_of(c, axis, list[1]:dim())
  for i = 2, #list do list[i] = beside(list[1], list[i]) end
  return T.cat(list, dim)
end)

op("Split", "axis:int split:ints num_outputs:int", function(c, x, split)
  local dim = axis_of(c, c.a.axis or 0, x:dim())
  local sizes, n, total = split and ints(c, split, "split") or c.a.split, x:size(dim), 0
  if not sizes then
    local parts = c.a.num_outputs or c.outputs
    local each = (n + parts - 1) // parts
    if not c.a.num_outputs and n % parts ~= 0 then c:fail("%d elements in %d equal parts", n, parts) end
    sizes = {}
    for i = 1, parts do sizes[i] = max(0, min(each, n - (i - 1) * each)) end
  end
  local out, at = {}, 1
  for i, size in ipairs(sizes) do
    total = total + size
    if size < 0 or total > n then c:fail("parts [%s] of %d elements", table.concat(sizes, ","), n) end
    out[i] = x:narrow(dim, at, size)
    at = at + size
  end
  if total ~= n then c:fail("parts [%s] of %d elements", table.concat(sizes, ","), n) end
  return table.unpack(out, 1, #sizes)
end)

-- x[from : to : step] along dim, NumPy's rules but for one.
local function slice(c, x, dim, from, to, step)
  local n = x:size(dim)
  if step == 0 then c:fail "a step of 0" end
  if from < 0 then from = from + n end
  if to < 0 then to = to + n end
  if step > 0 then
    from, to = max(0, min(n, from)), max(0, min(n, to))
    local count = max(0, (to - from + step - 1) // step)
    if step == 1 then return x:narrow(dim, from + 1, count) end
    if count == 0 then return x:narrow(dim, 1, 0) end
    return T.slice(x, dim, from + 1, count, step)
  end
  -- what starts before the front starts at the first element (in NumPy there is nothing then)
  from, to = max(min(0, n - 1), min(n - 1, from)), max(-1, min(n - 1, to))
  local count = max(0, (from - to - step - 1) // -step)
  if count == 0 then return x:narrow(dim, 1, 0) end
  local back = x:flip(dim) -- element from is element n - 1 - from
  return T.slice(back, dim, n - from, count, -step)
end
op("Slice", "starts:ints ends:ints axes:ints", function(c, x, starts, ends, axes, steps)
  local from = starts and ints(c, starts, "starts") or c.a.starts
  local to = ends and ints(c, ends, "ends") or c.a.ends
  local list, step = axes and ints(c, axes, "axes") or c.a.axes, ints(c, steps, "steps")
  if not from or not to or #from ~= #to or (list and #list ~= #from) or (step and #step ~= #from) then
    c:fail "starts, ends, axes and steps must have one length"
  end
  if not list then
    list = {}
    for i = 1, #from do list[i] = i - 1 end
  end
  for i, dim in ipairs(axes_of(c, list, x:dim())) do
    local f, t, n = from[i], to[i], x:size(dim)
    -- the largest integers stand for "to the end"; adding to them would wrap
    f, t = max(-n - 1, min(n, f)), max(-n - 1, min(n, t))
    x = slice(c, x, dim, f, t, step and step[i] or 1)
  end
  return x
end)

-- ---- padding -------------------------------------------------------------------------------------------------------

local modes = { constant = "constant", reflect = "reflect", edge = "replicate", wrap = "circular" }

-- Pads or cuts one dimension by picking positions: any amount, any rank.
local function pick(c, x, dim, before, after, mode)
  local n, list = x:size(dim), {}
  if n == 0 then c:fail("mode %s of an empty tensor", mode) end
  for i = -before, n + after - 1 do
    local at
    if mode == "edge" then
      at = max(0, min(n - 1, i))
    elseif mode == "wrap" then
      at = i % n
    elseif n == 1 then
      at = 0
    else
      at = i % (2 * n - 2)
      if at >= n then at = 2 * n - 2 - at end
    end
    list[#list + 1] = at
  end
  return x:index_select(dim, registry.tensor(list, "i64", x:device()), { index_base = 0 })
end

op("Pad", "mode:string pads:ints paddings:ints value:float", function(c, x, pads, value, axes)
  local mode, rank = c.a.mode or "constant", x:dim()
  if not modes[mode] then c:fail("mode '%s'", mode) end
  local list = pads and ints(c, pads, "pads") or c.a.pads or c.a.paddings
  local dims = {}
  if axes then
    dims = axes_of(c, ints(c, axes, "axes"), rank)
  else
    for d = 1, rank do dims[d] = d end
  end
  if not list or #list ~= 2 * #dims then
    c:fail("%s pads for %d dimensions; %d are wanted", list and #list or "no", #dims, 2 * #dims)
  end
  local fill = value and number(c, value, "the value") or c.a.value or 0
  for i, d in ipairs(dims) do
    local before, after = list[i], list[i + #dims]
    local cut = max(0, -before)
    if cut > 0 or after < 0 then
      local size = x:size(d) - cut - max(0, -after)
      if size < 0 then c:fail("more than all of %d elements cut", x:size(d)) end
      x = x:narrow(d, cut + 1, size)
      before, after = max(0, before), max(0, after)
    end
    if mode ~= "constant" and (before > 0 or after > 0) then x = pick(c, x, d, before, after, mode) end
    list[i], list[i + #dims] = before, after
  end
  if mode ~= "constant" then return x end
  local from_last = {}
  for i = 1, 2 * rank do from_last[i] = 0 end
  for i, d in ipairs(dims) do
    from_last[2 * (rank - d) + 1], from_last[2 * (rank - d) + 2] = list[i], list[i + #dims]
  end
  if rank == 0 then return x end
  if type(fill) == "boolean" or x:dtype() == "bool" then
    return T.nn.F.pad(x:to("u8"), from_last, { value = (fill == true or fill == 1) and 1 or 0 }):to("bool")
  end
  return T.nn.F.pad(x, from_last, { value = fill })
end, { constants = { 3 } })

op("CenterCropPad", "axes:ints", function(c, x, shape)
  local list, want = c.a.axes, ints(c, shape, "shape")
  if not list then
    list = {}
    for i = 1, x:dim() do list[i] = i - 1 end
  end
  if #want ~= #list then c:fail("%d sizes for %d axes", #want, #list) end
  for i, d in ipairs(axes_of(c, list, x:dim())) do
    local n = x:size(d)
    if want[i] < n then
      x = x:narrow(d, (n - want[i]) // 2 + 1, want[i])
    elseif want[i] > n then
      local before, pads = (want[i] - n) // 2, {}
      for k = 1, 2 * x:dim() do pads[k] = 0 end
      pads[2 * (x:dim() - d) + 1], pads[2 * (x:dim() - d) + 2] = before, want[i] - n - before
      x = T.nn.F.pad(x, pads)
    end
  end
  return x
end)

op("Trilu", "upper:int", function(c, x, k)
  k = number(c, k, "k") or 0
  if x:numel() == 0 then return x end
  if c.a.upper ~= 0 then return T.triu(x, k) end
  return T.tril(x, k)
end)

-- ---- blocks --------------------------------------------------------------------------------------------------------

op("DepthToSpace", "blocksize:int mode:string", function(c, x)
  local b, mode = c.a.blocksize or c:fail "blocksize is missing", c.a.mode or "DCR"
  local n, ch, h, w = table.unpack(x:shape())
  if x:dim() ~= 4 or b < 1 or ch % (b * b) ~= 0 then
    c:fail("[%s] in blocks of %d", table.concat(x:shape(), ","), b)
  end
  local d = ch // (b * b)
  local y
  if mode == "DCR" then
    y = x:reshape(n, b, b, d, h, w):permute { 1, 4, 5, 2, 6, 3 }
  elseif mode == "CRD" then
    y = x:reshape(n, d, b, b, h, w):permute { 1, 2, 5, 3, 6, 4 }
  else
    c:fail("mode '%s'", mode)
  end
  return y:reshape(n, d, h * b, w * b)
end)
op("SpaceToDepth", "blocksize:int mode:string", function(c, x)
  local b, mode = c.a.blocksize or c:fail "blocksize is missing", c.a.mode or "DCR"
  local n, ch, h, w = table.unpack(x:shape())
  if x:dim() ~= 4 or b < 1 or h % b ~= 0 or w % b ~= 0 then
    c:fail("[%s] in blocks of %d", table.concat(x:shape(), ","), b)
  end
  local y = x:reshape(n, ch, h // b, b, w // b, b)
  if mode == "DCR" then
    y = y:permute { 1, 4, 6, 2, 3, 5 }
  elseif mode == "CRD" then
    y = y:permute { 1, 2, 4, 6, 3, 5 }
  else
    c:fail("mode '%s'", mode)
  end
  return y:reshape(n, ch * b * b, h // b, w // b)
end)

-- ---- tensors made of sizes -----------------------------------------------------------------------------------------

local kinds = { "value", "value_float", "value_floats", "value_int", "value_ints" }
op("Constant", "value:tensor value_float:float value_floats:floats value_int:int value_ints:ints "
  .. "sparse_value:tensor value_string:string value_strings:strings", function(c)
  for _, kind in ipairs(kinds) do
    local v = c.a[kind]
    if v ~= nil then
      if kind == "value" then return v end
      local dtype_ = kind:find "float" and "f32" or "i64"
      if type(v) ~= "table" then return registry.tensor({ v }, dtype_, nil, {}) end
      return registry.tensor(v, dtype_)
    end
  end
  if c.a.sparse_value then return c.a.sparse_value end
  c:fail "no value, or one of text, which is not supported"
end)
op("ConstantOfShape", "value:tensor", function(c, shape)
  local list = ints(c, shape, "shape")
  for _, n in ipairs(list) do if n < 0 then c:fail("a size of %d", n) end end
  local v = c.a.value
  if not v then return T.zeros(list) end
  if v:numel() ~= 1 then c:fail("a value of %d elements", v:numel()) end
  local number_of = T.core.jit_untraced(function() return v:reshape(-1)[1]:item() end)
  return T.full(list, number_of, { dtype = v:dtype() })
end)
op("EyeLike", "dtype:int k:int", function(c, x)
  if x:dim() ~= 2 then c:fail "two dimensions are wanted" end
  local k, rows, cols = c.a.k or 0, x:size(1), x:size(2)
  local row = registry.count(rows, x:device()):unsqueeze(2)
  return row:eq(registry.count(cols, x:device()) - k):to(dtype(c, c.a.dtype, x:dtype()))
end)
op("Range", "stash_type:int", function(c, from, to, step)
  local a, b, s = number(c, from, "start"), number(c, to, "limit"), number(c, step, "delta")
  if s == 0 then c:fail "a delta of 0" end
  local n = max(0, math.ceil((b - a) / s))
  if free.tracing and T.core.jit_tracing() then
    local y = registry.count(n, from:device()):to(from:dtype())
    if s ~= 1 then y = y * s end
    return a ~= 0 and y + a or y
  end
  local list = {}
  for i = 1, n do list[i] = a + (i - 1) * s end
  return registry.tensor(list, from:dtype())
end)
op("OneHot", "axis:int", function(c, indices, depth, values)
  local n = floor(number(c, depth, "depth"))
  local rank = indices:dim() + 1
  local dim = axis_of(c, c.a.axis or -1, rank)
  local at = indices:to("i64")
  at = T.where(at:lt(0), at + n, at):unsqueeze(dim)
  local shape = {}
  for d = 1, rank do shape[d] = d == dim and n or 1 end
  local hit = at:eq(registry.count(n, indices:device()):view(shape))
  values = beside(indices, values)
  return T.where(hit, values[2], values[1])
end, { constants = { 3 } })
