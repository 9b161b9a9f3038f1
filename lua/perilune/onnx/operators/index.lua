-- SPDX-License-Identifier: MIT
--- ONNX operators that pick and write elements by index. Indices count from 0, negative ones from the end.
-- @module perilune.onnx.operators.index
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, axis_of, beside = registry.op, registry.axis, registry.beside
local ZERO = { index_base = 0 }

local function positive(at, n) return T.where(at:lt(0), at + n, at) end

op("Gather", "axis:int", function(c, x, indices)
  local dim = axis_of(c, c.a.axis or 0, x:dim())
  local at = beside(x, indices):to("i64")
  local shape = {}
  for d = 1, dim - 1 do shape[#shape + 1] = x:size(d) end
  for d = 1, at:dim() do shape[#shape + 1] = at:size(d) end
  for d = dim + 1, x:dim() do shape[#shape + 1] = x:size(d) end
  if dim == 1 and x:dim() == 2 and registry.is_float(x) and x.requires_grad then
    return T.embedding(x, positive(at, x:size(1)), ZERO):reshape(shape)
  end
  return x:index_select(dim, positive(at, x:size(dim)):reshape(-1), ZERO):reshape(shape)
end)

op("GatherElements", "axis:int", function(c, x, indices)
  local dim = axis_of(c, c.a.axis or 0, x:dim())
  return x:gather(dim, positive(beside(x, indices):to("i64"), x:size(dim)), ZERO)
end)

-- Index tuples [..., k] into the first k dimensions of sizes → places in those, laid out as one.
local function places(at, sizes)
  local flat
  for i, n in ipairs(sizes) do
    local part = positive(at:select(-1, i), n)
    flat = flat and flat * n + part or part
  end
  return flat
end

-- Indices outside would land in other rows of the flattened dimensions.
local function check(c, at, sizes)
  if T.core.is_symbolic(at) or at:numel() == 0 then return end
  for i, n in ipairs(sizes) do
    local part = at:select(-1, i)
    local low, high = part:amin():item(), part:amax():item()
    if low < -n or high >= n then c:fail("index %d of a dimension of %d", low < -n and low or high, n) end
  end
end

op("GatherND", "batch_dims:int", function(c, x, indices)
  local b = c.a.batch_dims or 0
  local at = beside(x, indices):to("i64")
  local k = at:size(-1)
  if b < 0 or b >= at:dim() or b + k > x:dim() then
    c:fail("batch_dims %d, tuples of %d, and %d dimensions", b, k, x:dim())
  end
  local sizes, batch, inner, rest, out = {}, 1, 1, {}, {}
  for d = 1, b do
    batch = batch * x:size(d)
    out[d] = x:size(d)
  end
  for d = b + 1, b + k do
    sizes[#sizes + 1] = x:size(d)
    inner = inner * x:size(d)
  end
  for d = b + k + 1, x:dim() do rest[#rest + 1] = x:size(d) end
  for d = b + 1, at:dim() - 1 do out[#out + 1] = at:size(d) end
  for _, n in ipairs(rest) do out[#out + 1] = n end
  check(c, at, sizes)
  local flat = places(at, sizes)
  local count = flat:numel() // math.max(batch, 1)
  flat = flat:reshape(batch, count)
  if b > 0 then flat = flat + (registry.count(batch, x:device()) * inner):unsqueeze(2) end
  return x:reshape { batch * inner, table.unpack(rest) }:index_select(1, flat:reshape(-1), ZERO):reshape(out)
end)

local reductions = { none = false, add = "sum", mul = "prod", max = "amax", min = "amin" }

local function reduction_of(c)
  local how = reductions[c.a.reduction or "none"]
  if how == nil then c:fail("reduction '%s'", c.a.reduction) end
  return how
end

op("ScatterElements Scatter", "axis:int reduction:string", function(c, x, indices, updates)
  local dim = axis_of(c, c.a.axis or 0, x:dim())
  local at, how = positive(beside(x, indices):to("i64"), x:size(dim)), reduction_of(c)
  updates = beside(x, updates)
  if not how then return x:scatter(dim, at, updates, ZERO) end
  return x:scatter_reduce(dim, at, updates, { reduce = how, include_self = true, index_base = 0 })
end)

op("ScatterND", "reduction:string", function(c, x, indices, updates)
  local at, how = beside(x, indices):to("i64"), reduction_of(c)
  local k, sizes, inner, rest, width = at:size(-1), {}, 1, {}, 1
  if k > x:dim() then c:fail("tuples of %d for %d dimensions", k, x:dim()) end
  for d = 1, k do
    sizes[d] = x:size(d)
    inner = inner * x:size(d)
  end
  for d = k + 1, x:dim() do
    rest[#rest + 1] = x:size(d)
    width = width * x:size(d)
  end
  check(c, at, sizes)
  local flat = places(at, sizes)
  flat = flat and flat:reshape(-1) or registry.tensor({ 0 }, "i64", x:device())
  local count = flat:numel()
  local rows = x:reshape(inner, width)
  local values = beside(x, updates):reshape(count, width)
  local index = flat:unsqueeze(2):expand(count, width)
  local y
  if not how then
    y = rows:scatter(1, index, values, ZERO)
  else
    y = rows:scatter_reduce(1, index, values, { reduce = how, include_self = true, index_base = 0 })
  end
  return y:reshape(x:shape())
end)

op("Compress", "axis:int", function(c, x, condition)
  if not c.a.axis then x = x:reshape(-1) end
  local dim = axis_of(c, c.a.axis or 0, x:dim())
  local n = condition:numel()
  if n > x:size(dim) then c:fail("%d conditions for %d elements", n, x:size(dim)) end
  local at = condition:reshape(-1):nonzero(ZERO):reshape(-1)
  return x:index_select(dim, beside(x, at), ZERO)
end)

op("ReverseSequence", "batch_axis:int time_axis:int", function(c, x, lengths)
  local b, t = axis_of(c, c.a.batch_axis or 1, x:dim()), axis_of(c, c.a.time_axis or 0, x:dim())
  local n = x:size(t)
  local bshape, tshape = {}, {}
  for d = 1, x:dim() do
    bshape[d] = d == b and x:size(b) or 1
    tshape[d] = d == t and n or 1
  end
  local len = beside(x, lengths):to("i64"):reshape(bshape)
  local at = registry.count(n, x:device()):view(tshape)
  local index = T.where(at:lt(len), len - 1 - at, at + T.zeros_like(len))
  return x:gather(t, index:expand(x:shape()), ZERO)
end)

op("TensorScatter", "axis:int mode:string", function(c, cache, update, starts)
  local mode = c.a.mode or "linear"
  local dim = axis_of(c, c.a.axis or -2, cache:dim())
  if mode ~= "linear" and mode ~= "circular" then c:fail("mode '%s'", mode) end
  local n, m, bshape, tshape = cache:size(dim), update:size(dim), {}, {}
  for d = 1, cache:dim() do
    bshape[d] = d == 1 and cache:size(1) or 1
    tshape[d] = d == dim and m or 1
  end
  local from = starts and beside(cache, starts):to("i64"):reshape(bshape)
    or registry.tensor({ 0 }, "i64", cache:device())
  local at = from + registry.count(m, cache:device()):view(tshape)
  if mode == "circular" then at = at % n end
  return cache:scatter(dim, at:expand(update:shape()), update, ZERO)
end)

op("NonMaxSuppression", "center_point_box:int", function(c, boxes, scores, most, overlap, least)
  most = most and registry.number(c, most, "max_output_boxes_per_class") or 0
  overlap = overlap and registry.number(c, overlap, "iou_threshold") or 0.0
  least = least and registry.number(c, least, "score_threshold")
  local found = {}
  for b = 1, boxes:size(1) do
    local box = boxes[b]
    if c.a.center_point_box == 1 then
      local xc, yc, w, h = box:select(2, 1), box:select(2, 2), box:select(2, 3), box:select(2, 4)
      box = T.stack({ xc - w / 2, yc - h / 2, xc + w / 2, yc + h / 2 }, 2)
    else -- y1, x1, y2, x2 of any two opposite corners
      local y1, x1, y2, x2 = box:select(2, 1), box:select(2, 2), box:select(2, 3), box:select(2, 4)
      box = T.stack({ T.minimum(x1, x2), T.minimum(y1, y2), T.maximum(x1, x2), T.maximum(y1, y2) }, 2)
    end
    for class = 1, most > 0 and scores:size(2) or 0 do
      local score = scores[b][class]
      local keep = T.nn.F.nms(box, score, overlap, ZERO):totable()
      local values, count = score:totable(), 0
      for _, k in ipairs(keep) do
        if count < most and (not least or values[k + 1] > least) then
          count = count + 1
          found[#found + 1] = { b - 1, class - 1, k }
        end
      end
    end
  end
  if #found == 0 then return T.zeros({ 0, 3 }, { dtype = "i64" }) end
  return T.tensor(found, { dtype = "i64" })
end)
