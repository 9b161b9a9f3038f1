-- SPDX-License-Identifier: MIT
--- Resizing (interpolate), and the places of affine maps (affine_grid) for the op grid_sample. Resizing works on one
-- dimension after the other: each output position takes a few input positions with fixed weights.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"
local values = require "perilune.values"

local fail, describe = options.fail, options.describe
local floor, max, min = math.floor, math.max, math.min

-- Keys 1981 with a = -0.75: the weights of positions -1, 0, 1, 2 around a point t past position 0.
local function cubic(t)
  local a = -0.75
  local function near(x) return ((a + 2) * x - (a + 3)) * x * x + 1 end
  local function far(x) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a end
  return { far(t + 1), near(t), near(1 - t), far(2 - t) }
end

-- ---- interpolate -------------------------------------------------------------------------------------

-- Where output position i (from 0) is in the input; `scale` is input per output.
local function source(i, scale, align)
  if align then return scale * i end
  return scale * (i + 0.5) - 0.5
end

-- Rounded to f32. PyTorch finds the nearest position in f32, where a product may lie on the other side of a whole
-- number than it does in f64: networks that were trained there resize by the same positions here.
local function f32(v) return (string.unpack("<f", string.pack("<f", v))) end

-- taps[k] = { positions (from 0), weights or nil }, each a list with one entry an output position
local function taps_of(mode, n, out, scale, align)
  local taps = {}
  local function add(k, i, at, weight)
    taps[k] = taps[k] or { {}, {} }
    taps[k][1][i + 1], taps[k][2][i + 1] = max(0, min(n - 1, at)), weight
  end
  for i = 0, out - 1 do
    if mode == "nearest" then
      add(1, i, floor(f32(i * f32(scale))), 1)
    elseif mode == "nearest-exact" then
      add(1, i, floor(f32((i + 0.5) * f32(scale))), 1)
    elseif mode == "bicubic" then
      local x = source(i, scale, align)
      local at = floor(x)
      for k, w in ipairs(cubic(x - at)) do add(k, i, at + k - 2, w) end
    else
      local x = max(0, source(i, scale, align))
      local at = min(floor(x), n - 1)
      local part = at < n - 1 and x - at or 0.0
      add(1, i, at, 1 - part)
      add(2, i, at + 1, part)
    end
  end
  return taps
end

-- A size that stays is not resized, even where scale_factor (1.3 of 3 points: 3.9, so 3) would move the places: so does
-- PyTorch, in these modes.
local keeps = { linear = true, bilinear = true, trilinear = true }

-- One dimension resized.
local function resize(x, dim, out, scale, mode, align)
  local n, nd = x:size(dim), x:dim()
  local whole = { dtype = "i64", device = x:device() }
  if n == out and (keeps[mode] or align or scale == 1) then return x end
  if mode == "nearest" and nd == 4 then -- as PyTorch's, in pictures alone
    if n == out then return x end
    if out == 2 * n then scale = 0.5 end
  end
  local taps = taps_of(mode, n, out, scale, align)
  local shape = {}
  for d = 1, nd do shape[d] = d == dim and out or 1 end
  if #taps == 2 then
    local function at(k)
      return T.index_select(x, T.tensor(taps[k][1], whole), { dim = dim, index_base = 0 })
    end
    return at(1):lerp(at(2), T.tensor(taps[2][2], { dtype = x:dtype(), device = x:device() }):view(shape))
  end
  local y
  for _, tap in ipairs(taps) do
    local part = T.index_select(x, T.tensor(tap[1], whole), { dim = dim, index_base = 0 })
    if #taps > 1 then part = part * T.tensor(tap[2], { dtype = x:dtype(), device = x:device() }):view(shape) end
    y = y and y + part or part
  end
  return y
end

-- ---- with antialiasing -------------------------------------------------------------------------------

-- A point's weight at distance x: a triangle, or the cubic of Keys 1981 with a = -0.5.
local filters = { bilinear = { 2, function(x) return max(0.0, 1 - math.abs(x)) end },
  bicubic = { 4, function(x)
    x = math.abs(x)
    if x < 1 then return (1.5 * x - 2.5) * x * x + 1 end
    return x < 2 and ((-0.5 * x + 2.5) * x - 4) * x + 2 or 0.0
  end } }

-- rows[i][j]: the weight of input j for output i, with a filter that is as wide as an output pixel, so that shrinking
-- looks at every input. Rows add up to 1. → rows, spans: the first and last input of each output
local function smooth_weights(n, out, scale, mode)
  local width, weigh = table.unpack(filters[mode])
  local stretch = max(scale, 1.0)
  local support, rows, spans = width / 2 * stretch, {}, {}
  for i = 0, out - 1 do
    local center, row, sum = scale * (i + 0.5), {}, 0.0
    local first, last = max(floor(center - support + 0.5), 0), min(floor(center + support + 0.5), n)
    for j = 1, n do row[j] = 0.0 end
    spans[i + 1] = { first + 1, last }
    for j = first, last - 1 do
      row[j + 1] = weigh((j - center + 0.5) / stretch)
      sum = sum + row[j + 1]
    end
    for j = first + 1, sum ~= 0 and last or first do row[j] = row[j] / sum end
    rows[i + 1] = row
  end
  return rows, spans
end

-- One dimension resized by a product with the matrix of weights.
local function product(x, dim, rows, dtype)
  local weights = T.tensor(rows, { dtype = dtype, device = x:device() })
  if dim == x:dim() then return x:matmul(weights:t()) end
  return T.matmul(weights, x) -- the last dimension but one
end

-- The same, where each output reads no more than its own inputs.
local function windows(x, dim, rows, spans, dtype)
  local n, where, size, none = x:size(dim), { dtype = "i64", device = x:device() }, {}, x:shape()
  for d = 1, x:dim() do size[d] = d == dim and #rows or 1 end
  none[dim] = 1
  local padded, most, y = T.cat({ x, T.zeros(none, { dtype = dtype, device = x:device() }) }, dim), 0, nil
  for _, s in ipairs(spans) do most = max(most, s[2] - s[1] + 1) end
  for k = 0, most - 1 do
    local at, weights = {}, {}
    for i, s in ipairs(spans) do
      local j = s[1] + k
      at[i], weights[i] = j <= s[2] and j or n + 1, j <= s[2] and rows[i][j] or 0.0
    end
    local w = T.tensor(weights, { dtype = dtype, device = x:device() }):view(size)
    local part = T.index_select(padded, dim, T.tensor(at, where)) * w
    y = y and y + part or part
  end
  return y
end

local function not_finite(t) return t:isfinite():logical_not() end

local function resize_smooth(x, dim, out, scale, mode)
  if x:size(dim) == out then return x end
  local rows, spans = smooth_weights(x:size(dim), out, scale, mode)
  local y = product(x, dim, rows, x:dtype())
  -- 0 times NaN is NaN: what is not finite would be in whole rows
  if y:is_cuda() or not values.some(y, not_finite) then return y end
  return windows(x, dim, rows, spans, x:dtype())
end

-- ---- pictures of bytes ----------------------------------------------------------------------------------

-- Weights as whole numbers of 2^-bits, the finest at which the largest fits 16 bits, as PyTorch and Pillow count
-- them: so every byte of the result is theirs. Lists of lists, changed in place.
local function whole_weights(lists)
  local largest, bits = 0.0, 0
  for _, list in ipairs(lists) do
    for _, w in ipairs(list) do largest = max(largest, w) end
  end
  while bits < 22 and floor(largest * (1 << bits + 1) + 0.5) < 1 << 15 do bits = bits + 1 end
  for _, list in ipairs(lists) do
    for j, w in ipairs(list) do
      w = w * (1 << bits)
      list[j] = w < 0 and -floor(0.5 - w) or floor(w + 0.5)
    end
  end
  return bits
end

-- One dimension of a u8 tensor resized, in integers; the sums are rounded to bytes again.
local function resize_bytes(x, dim, out, scale, mode, align, smooth)
  local n = x:size(dim)
  if n == out then return x end
  local sum, bits
  if smooth then
    local rows = smooth_weights(n, out, scale, mode)
    bits = whole_weights(rows)
    sum = product(x:to("f64"), dim, rows, "f64"):to("i64")
  else
    local taps, lists, shape = taps_of(mode, n, out, scale, align), {}, {}
    for k, tap in ipairs(taps) do lists[k] = tap[2] end
    for i = 1, out do -- at a border, where taps meet, their weights are one
      for k = 2, #taps do
        for l = 1, k - 1 do
          if taps[k][1][i] == taps[l][1][i] then
            lists[l][i], lists[k][i] = lists[l][i] + lists[k][i], 0.0
            break
          end
        end
      end
    end
    bits = whole_weights(lists)
    for d = 1, x:dim() do shape[d] = d == dim and out or 1 end
    for k, tap in ipairs(taps) do
      local at = T.tensor(tap[1], { dtype = "i64", device = x:device() })
      local weight = T.tensor(lists[k], { dtype = "i32", device = x:device() }):view(shape)
      local part = T.index_select(x, at, { dim = dim, index_base = 0 }):to("i32") * weight
      sum = sum and sum + part or part
    end
  end
  return ((sum + (1 << bits - 1)) >> bits):clamp({ min = 0, max = 255 }):to("u8")
end

local modes = { "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area" }
local ranks = { linear = 3, bilinear = 4, bicubic = 4, trilinear = 5 }

-- Output sizes, and how many input positions one output position is.
local function sizes_of(who, x, o)
  local nd, sizes, scales = x:dim() - 2, {}, {}
  if (o.size == nil) == (o.scale_factor == nil) then fail("%s: either size or scale_factor must be given", who) end
  local given = o.size or o.scale_factor
  if type(given) == "table" and #given ~= nd then
    fail("%s: %d sizes are wanted for %s, got %d", who, nd, describe(x), #given)
  end
  for d = 1, nd do
    local n, v = x:size(d + 2), given
    if type(given) == "table" then v = given[d] end
    if type(v) ~= "number" or v - v ~= 0 then
      fail("%s: sizes and factors must be numbers, got %s", who, describe(v))
    end
    sizes[d] = o.size and options.integer(v) or (not o.size and floor(n * v) or nil)
    if not sizes[d] or sizes[d] < 1 or n < 1 then
      fail("%s: size %s cannot become %s", who, tostring(n), tostring(o.size and v or sizes[d]))
    end
    if o.align_corners then
      scales[d] = sizes[d] > 1 and (n - 1) / (sizes[d] - 1) or 0.0
    else
      scales[d] = (o.scale_factor and not o.recompute_scale_factor) and 1 / v or n / sizes[d]
    end
  end
  return sizes, scales
end

local function one_of(who, what, v, words)
  for _, w in ipairs(words) do
    if v == w then return v end
  end
  fail("%s: %s", who, options.unknown(what, v, words))
end

return function(F)

  --- nn.F.interpolate(x, {size=, scale_factor=, mode="nearest", align_corners=false, antialias=false}) → tensor
  -- x [N, C, *] resized; modes nearest, nearest-exact, linear, bilinear, bicubic, trilinear, area. antialias: bilinear
  -- and bicubic look at every pixel when they shrink; one that is NaN or infinite then makes its row and column NaN.
  --   print(nn.F.interpolate(T.tensor { { { 1, 3 } } }, { size = 3, mode = "linear", align_corners = true }))
  --   --> {{{1., 2., 3.}}}  -- f32[1,1,3] cpu
  function F.interpolate(x, opts)
    local who = "interpolate"
    if not T.is_tensor(x) or x:dim() < 3 or x:dim() > 5 then
      fail("%s: x [N, C, *] with one to three further dimensions is wanted, got %s", who, describe(x))
    end
    local o = options.check(who, opts, { "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor",
      "antialias" })
    local mode = one_of(who, "mode", o.mode or "nearest", modes)
    if o.antialias and not filters[mode] then
      fail("%s: antialias works with mode bilinear and bicubic, not with %s", who, mode)
    end
    if o.align_corners ~= nil and not ranks[mode] then fail("%s: align_corners has no meaning for %s", who, mode) end
    if ranks[mode] and ranks[mode] ~= x:dim() then
      fail("%s: mode %s takes %d dimensions, got %s", who, mode, ranks[mode], describe(x))
    end
    local sizes, scales = sizes_of(who, x, o)
    local given = x
    if mode == "area" then return T[("adaptive_avg_pool%dd"):format(#sizes)](x, { output_size = sizes }) end
    local dtype, narrow = x:dtype(), nil
    local bytes = ranks[mode] and dtype == "u8"
    if ranks[mode] and not x:is_floating_point() and not bytes then
      fail("%s: mode %s takes floating tensors or u8, got %s", who, mode, describe(x))
    elseif (ranks[mode] or x.requires_grad) and (dtype == "f16" or dtype == "bf16") then -- sums are rounded once
      x, narrow = x:float(), true
    end
    -- the dimension that shrinks most comes first; of two that grow alike the last, as single points take longer to
    -- move than rows of them
    local order = {}
    for d = 1, #sizes do order[d] = d end
    table.sort(order, function(a, b)
      if scales[a] ~= scales[b] then return scales[a] > scales[b] end
      if scales[a] < 1 then a, b = b, a end
      return a < b
    end)
    if dtype == "u8" or o.antialias then table.sort(order, function(p, q) return p > q end) end
    for _, d in ipairs(order) do
      if bytes then
        x = resize_bytes(x, d + 2, sizes[d], scales[d], mode, o.align_corners, o.antialias)
      elseif o.antialias then
        x = resize_smooth(x, d + 2, sizes[d], scales[d], mode)
      else
        x = resize(x, d + 2, sizes[d], scales[d], mode, o.align_corners)
      end
    end
    if not narrow then return T.core.own(x, given) end
    return T.core.own(x:to(dtype), given)
  end

  --- nn.F.affine_grid(theta, {N, C, H, W}, {align_corners=false}) → [N, H, W, 2]
  -- The grid for grid_sample of affine maps theta [N, 2, 3]; one dimension more in 3-d.
  --   print(nn.F.affine_grid(T.tensor { { { 1, 0, 0 }, { 0, 1, 0 } } }, { 1, 1, 1, 2 }):flatten())
  --   --> {-0.5000,  0.0000,  0.5000,  0.0000}  -- f32[4] cpu
  function F.affine_grid(theta, size, opts)
    local who = "affine_grid"
    local o = options.check(who, opts, { "align_corners" })
    local nd = type(size) == "table" and #size - 2 or 0
    if nd < 2 or nd > 3 or not T.is_tensor(theta) or theta:dim() ~= 3 or theta:size(2) ~= nd or
      theta:size(3) ~= nd + 1 then
      fail("%s: theta [N, 2, 3] with size {N, C, H, W} is wanted, got %s", who, describe(theta))
    end
    local dtype, device, axes, full = theta:dtype(), theta:device(), {}, {}
    for d = 1, nd do full[d] = size[d + 2] end
    for d = 1, nd do
      local n, view = full[d], {}
      for k = 1, nd do view[k] = k == d and n or 1 end
      local a = T.arange(0, n - 1, { device = device }):to(dtype) * 2 - (n - 1)
      a = a / (o.align_corners and max(n - 1, 1) or n)
      axes[nd + 1 - d] = a:view(view):expand(full)
    end
    axes[nd + 1] = T.ones(full, { dtype = dtype, device = device })
    local points = T.stack(axes, nd + 1):reshape(1, -1, nd + 1)
    local shape = { size[1], table.unpack(full) }
    shape[nd + 2] = nd
    return points:matmul(theta:transpose(2, 3)):reshape(shape)
  end
end
