-- SPDX-License-Identifier: MIT
--- ONNX's Resize and Upsample: one dimension after the other, each output position a weighted sum of inputs.
-- @module perilune.onnx.operators.resize
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op = registry.op
local floor, ceil, max, min, abs = math.floor, math.ceil, math.max, math.min, math.abs

-- x in f32, as runtimes compute places and sizes: 10 * 0.7 is 7 there, though the f32 nearest to 0.7 is below it.
local function single(x) return (string.unpack("<f", string.pack("<f", x))) end

-- Where output position i (from 0) is in n inputs. roi: start and end, in parts of the input.
local function coordinate(c, how, i, n, out, scale, roi)
  if how == "half_pixel" then return single((i + 0.5) / scale) - 0.5 end
  if how == "half_pixel_symmetric" then
    local adjusted = single(out / single(scale * n))
    local offset = single(n / 2 * single(1 - adjusted))
    return single(single(offset + single((i + 0.5) / scale)) - 0.5)
  end
  if how == "pytorch_half_pixel" then return out > 1 and single((i + 0.5) / scale) - 0.5 or 0.0 end
  if how == "align_corners" then return out > 1 and single(i * (n - 1) / (out - 1)) or 0.0 end
  if how == "asymmetric" then return single(i / scale) end
  if how == "tf_half_pixel_for_nn" then return single((i + 0.5) / scale) end
  if how == "tf_crop_and_resize" then
    if not roi then c:fail "tf_crop_and_resize needs a region" end
    if out > 1 then return roi[1] * (n - 1) + i * (roi[2] - roi[1]) * (n - 1) / (out - 1) end
    return 0.5 * (roi[1] + roi[2]) * (n - 1)
  end
  return c:fail("coordinate_transformation_mode '%s'", how)
end

local function nearest(c, x, how, scale)
  if how == "round_prefer_floor" then return ceil(x - 0.5) end
  if how == "round_prefer_ceil" then return floor(x + 0.5) end
  if how == "floor" then return floor(x) end
  if how == "ceil" then return ceil(x) end
  if how == "outward" then return scale < 1 and ceil(x) or floor(x) end
  return c:fail("nearest_mode '%s'", how)
end

local function triangle(x) return max(0.0, 1 - abs(x)) end
local function cubic(a)
  return function(x)
    x = abs(x)
    if x < 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
    return x < 2 and ((a * x - 5 * a) * x + 8 * a) * x - 4 * a or 0.0
  end
end

-- rows[i]: { position = weight } of one output; positions outside count for the border.
local function weights(x, n, filter, reach, stretch, outside)
  local row, total = {}, 0.0
  local center = floor(x)
  for at = ceil(x - reach * stretch), floor(x + reach * stretch) do
    local w = filter((at - x) / stretch)
    if w ~= 0 then
      if not (outside and (at < 0 or at >= n)) then
        local place = max(0, min(n - 1, at))
        row[place] = (row[place] or 0.0) + w
        total = total + w
      end
    end
  end
  if total == 0 then return { [max(0, min(n - 1, center))] = 1.0 } end
  for at, w in pairs(row) do row[at] = w / total end
  return row
end

-- One dimension resized to `out`.
local function along(c, x, dim, out, scale, roi, o)
  local n = x:size(dim)
  if n == out and scale == 1 and o.how ~= "tf_crop_and_resize" then return x end
  if n == 0 or out == 0 then
    if n == 0 and out > 0 then c:fail "an empty dimension cannot grow" end
    return x:narrow(dim, 1, 0)
  end
  local list, gone, rows = {}, {}, {}
  for i = 0, out - 1 do
    local at = coordinate(c, o.how, i, n, out, scale, roi)
    gone[i + 1] = o.how == "tf_crop_and_resize" and (at < 0 or at > n - 1)
    if o.mode == "nearest" then
      list[i + 1] = max(0, min(n - 1, nearest(c, at, o.nearest, scale)))
    else
      local stretch = o.antialias and max(1.0, 1 / scale) or 1.0
      rows[i + 1] = weights(at, n, o.filter, o.reach, stretch, o.outside)
    end
  end
  local y
  if o.mode == "nearest" then
    y = x:index_select(dim, registry.tensor(list, "i64", x:device()), { index_base = 0 })
  else
    local dtype = registry.is_float(x) and x:dtype() or "f64"
    local flat = {}
    for i = 1, out do for j = 0, n - 1 do flat[#flat + 1] = rows[i][j] or 0.0 end end
    local matrix = registry.tensor(flat, dtype, x:device(), { out, n })
    y = (dtype == x:dtype() and x or x:to(dtype)):transpose(dim, -1):matmul(matrix:t()):transpose(dim, -1)
  end
  local any = false
  for i = 1, out do any = any or gone[i] end
  if not any then return y end
  local shape = {}
  for d = 1, x:dim() do shape[d] = d == dim and out or 1 end
  local mask = registry.tensor(gone, "bool", x:device(), shape)
  return T.where(mask, T.full({ 1 }, o.fill, { dtype = y:dtype(), device = y:device() }), y)
end

-- scales or sizes (lists of the dims in `dims`) → x resized
local function resize(c, x, dims, scales, sizes, roi, o)
  local integer = not registry.is_float(x)
  local y = x
  for i, dim in ipairs(dims) do
    local n = x:size(dim)
    local scale = scales and scales[i] or single(sizes[i] / max(n, 1))
    local out = sizes and sizes[i] or floor(single(n * scale))
    y = along(c, y, dim, out, scale, roi and { roi[i], roi[i + #dims] }, o)
  end
  if integer and y:dtype() ~= x:dtype() then
    y = y:round()
    if x:dtype() == "u8" or x:dtype() == "i8" then
      local low = x:dtype() == "u8" and 0 or -128
      y = y:clamp({ min = low, max = low + 255 })
    end
    y = y:to(x:dtype())
  end
  return y
end

local function floats(c, x, what)
  if x == nil or x:numel() == 0 then return nil end
  if T.core.is_symbolic(x) then return { registry.number(c, x, what) } end
  return T.core.jit_untraced(function() return x:detach():to("cpu"):to("f32"):reshape(-1):totable() end)
end

op("Resize", "antialias:int axes:ints coordinate_transformation_mode:string cubic_coeff_a:float exclude_outside:int "
  .. "extrapolation_value:float keep_aspect_ratio_policy:string mode:string nearest_mode:string",
  function(c, x, roi, scales, sizes)
    if c.opset < 11 then roi, scales, sizes = nil, roi, nil end
    local mode = c.a.mode or "nearest"
    local how = c.a.coordinate_transformation_mode or (c.opset >= 11 and "half_pixel" or "asymmetric")
    local a = c.a.cubic_coeff_a or -0.75
    local o = { mode = mode, how = how, antialias = c.a.antialias == 1, fill = c.a.extrapolation_value or 0.0,
      -- version 10 rounds up where it shrinks
      nearest = c.a.nearest_mode or (c.opset >= 11 and "round_prefer_floor" or "outward"),
      outside = c.a.exclude_outside == 1 }
    if mode == "linear" or mode == "bilinear" then
      o.filter, o.reach = triangle, 1

    elseif mode == "cubic" then
      o.filter, o.reach = cubic(a), 2

    elseif mode ~= "nearest" then
      c:fail("mode '%s'", mode)
    end
    local dims = {}
    if c.a.axes then
      dims = registry.axes(c, c.a.axes, x:dim())
    else
      for d = 1, x:dim() do dims[d] = d end
    end
    local list, want = floats(c, scales, "scales"), sizes and sizes:numel() > 0 and registry.ints(c, sizes, "sizes")
    if (list == nil) == (not want) then c:fail "either scales or sizes must be given" end
    if #(list or want) ~= #dims then c:fail("%d sizes for %d dimensions", #(list or want), #dims) end
    local policy = c.a.keep_aspect_ratio_policy or "stretch"
    if want and policy ~= "stretch" then
      local best
      for i, d in ipairs(dims) do
        local s = want[i] / x:size(d)
        best = best and (policy == "not_larger" and min or max)(best, s) or s
      end
      list = {}
      for i, d in ipairs(dims) do
        want[i] = floor(best * x:size(d) + 0.5)
        list[i] = best
      end
    end
    return resize(c, x, dims, list, want or nil, floats(c, roi, "roi"), o)
  end, { constants = { 2, 3, 4 } })

op("Upsample", "mode:string scales:floats height_scale:float width_scale:float", function(c, x, scales)
  local list = floats(c, scales, "scales") or c.a.scales
  if not list and c.a.height_scale then list = { 1, 1, c.a.height_scale, c.a.width_scale } end
  if not list or #list ~= x:dim() then c:fail "one scale for each dimension is wanted" end
  local mode = c.a.mode or "nearest"
  if mode ~= "nearest" and mode ~= "linear" and mode ~= "bilinear" then c:fail("mode '%s'", mode) end
  local dims = {}
  for d = 1, x:dim() do dims[d] = d end
  return resize(c, x, dims, list, nil, nil, { mode = mode, how = "asymmetric", nearest = "floor", filter = triangle,
    reach = 1, fill = 0.0 })
end, { constants = { 2 } })
