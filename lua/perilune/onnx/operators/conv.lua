-- SPDX-License-Identifier: MIT
--- ONNX operators with windows: convolutions and pooling.
-- @module perilune.onnx.operators.conv
local T = require "perilune"
local registry = require "perilune.onnx.operators.registry"

local op, beside = registry.op, registry.beside
local F = T.nn.F
local max = math.max

local WINDOW = "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints "

local function filled(list, nd, value)
  local out = {}
  for d = 1, nd do out[d] = list and list[d] or value end
  return out
end

-- Strides, dilations and paddings before and after of a window over x [N, C, *].
local function window(c, x, kernel)
  local nd = x:dim() - 2
  if nd < 1 then c:fail("[%s] has no spatial dimensions", table.concat(x:shape(), ",")) end
  for name, want in pairs { strides = nd, dilations = nd, pads = 2 * nd, kernel_shape = nd } do
    local list = c.a[name]
    if list and #list ~= want then c:fail("%d %s for %d spatial dimensions", #list, name, nd) end
  end
  if #kernel ~= nd then c:fail("a kernel of %d dimensions for %d", #kernel, nd) end
  local w = { nd = nd, kernel = kernel, stride = filled(c.a.strides, nd, 1), dilation = filled(c.a.dilations, nd, 1),
    before = {}, after = {} }
  local auto = c.a.auto_pad or "NOTSET"
  for d = 1, nd do
    if w.stride[d] < 1 or w.dilation[d] < 1 or kernel[d] < 1 then
      c:fail "strides, dilations and kernels are positive"
    end
    if auto == "NOTSET" then
      w.before[d], w.after[d] = c.a.pads and c.a.pads[d] or 0, c.a.pads and c.a.pads[d + nd] or 0
    elseif auto == "VALID" then
      w.before[d], w.after[d] = 0, 0
    elseif auto == "SAME_UPPER" or auto == "SAME_LOWER" then
      local n, s = x:size(d + 2), w.stride[d]
      local total = max(0, ((n + s - 1) // s - 1) * s + (kernel[d] - 1) * w.dilation[d] + 1 - n)
      local small = total // 2
      w.before[d] = auto == "SAME_UPPER" and small or total - small
      w.after[d] = total - w.before[d]
    else
      c:fail("auto_pad '%s'", auto)
    end
  end
  w.auto = auto
  return w
end

-- x with what a window has in front and behind, from the last dimension on as F.pad takes it.
local function padded(x, before, after, value)
  local nd, list, any = #before, {}, false
  for d = nd, 1, -1 do
    list[#list + 1], list[#list + 2] = before[d], after[d]
    any = any or before[d] ~= 0 or after[d] ~= 0
  end
  if not any then return x end
  return F.pad(x, list, { value = value or 0 })
end

local function zeros(n)
  local list = {}
  for d = 1, n do list[d] = 0 end
  return list
end

-- The paddings that are the same on both sides go to the op, others are written out.
local function symmetric(x, w, value)
  for d = 1, w.nd do
    if w.before[d] ~= w.after[d] or w.before[d] < 0 then return padded(x, w.before, w.after, value), zeros(w.nd) end
  end
  return x, w.before
end

local function spatial(x)
  local list = {}
  for d = 3, x:dim() do list[d - 2] = x:size(d) end
  return list
end

local function by_rank(c, name, nd)
  local f = T[("%s%dd"):format(name, nd)]
  if not f then c:fail("%d spatial dimensions; 1 to 3 are supported", nd) end
  return f
end

local function conv(c, x, weight, bias)
  local w = window(c, x, c.a.kernel_shape or spatial(weight))
  local y, padding = symmetric(x, w)
  return by_rank(c, "conv", w.nd)(y, weight, bias, { stride = w.stride, padding = padding, dilation = w.dilation,
    groups = c.a.group or 1 })
end
registry.conv = conv
op("Conv", WINDOW .. "group:int", conv)

op("ConvTranspose", WINDOW .. "group:int output_padding:ints output_shape:ints", function(c, x, weight, bias)
  local kernel = c.a.kernel_shape or spatial(weight)
  local w = window({ a = { strides = c.a.strides, dilations = c.a.dilations, pads = c.a.pads,
    kernel_shape = c.a.kernel_shape }, fail = c.fail, node = c.node }, x, kernel)
  local nd, auto = w.nd, c.a.auto_pad or "NOTSET"
  local extra, want = filled(c.a.output_padding, nd, 0), c.a.output_shape
  if want and #want == nd + 2 then want = { table.unpack(want, 3) } end
  local full, cut_before, cut_after = {}, {}, {}
  for d = 1, nd do
    local n = x:size(d + 2)
    full[d] = (n - 1) * w.stride[d] + (kernel[d] - 1) * w.dilation[d] + 1 + extra[d]
    if want or auto == "SAME_UPPER" or auto == "SAME_LOWER" then
      local total = full[d] - (want and want[d] or n * w.stride[d])
      if total < 0 then extra[d], total = extra[d] - total, 0 end -- what lacks is added at the end
      local half = total // 2 -- the larger half is cut in front, but for SAME_UPPER
      cut_before[d] = auto == "SAME_UPPER" and half or total - half
      cut_after[d] = total - cut_before[d]
    elseif auto == "NOTSET" or auto == "VALID" then
      cut_before[d], cut_after[d] = w.before[d], w.after[d]
    else
      c:fail("auto_pad '%s'", auto)
    end
  end
  local y = by_rank(c, "conv_transpose", nd)(x, weight, bias, { stride = w.stride, groups = c.a.group or 1,
    dilation = w.dilation })
  for d = 1, nd do -- cut, or past the end: what no input reaches has the bias alone
    local size = y:size(d + 2)
    local from, to = cut_before[d], size + extra[d] - cut_after[d]
    if to < from then c:fail "more is cut than there is" end
    if from < 0 or to > size then
      local before, after = zeros(nd), zeros(nd)
      before[d], after[d] = max(0, -from), max(0, to - size)
      if bias then
        local shape = zeros(nd + 2)
        for k = 1, nd + 2 do shape[k] = k == 2 and bias:numel() or 1 end
        local b = bias:reshape(shape)
        y = padded(y - b, before, after) + b
      else
        y = padded(y, before, after)
      end
      from, to = max(0, from), to + before[d]
    end
    y = y:narrow(d + 2, from + 1, to - from)
  end
  return y
end)

op("DeformConv", WINDOW .. "group:int offset_group:int", function(c, x, weight, offset, bias, mask)
  local w = window(c, x, c.a.kernel_shape or spatial(weight))
  if w.nd ~= 2 then c:fail "two spatial dimensions are supported" end
  for d = 1, 2 do if w.before[d] ~= w.after[d] then c:fail "paddings that differ are not supported" end end
  return F.deform_conv2d(x, offset, weight, bias, { stride = w.stride, padding = w.before, dilation = w.dilation,
    mask = mask })
end)

-- ---- pooling -------------------------------------------------------------------------------------------------------

-- What ceil_mode adds behind, so that a last window that begins inside, or in the padding in front, is whole.
local function ceil_extra(c, x, w)
  local extra = {}
  for d = 1, w.nd do
    extra[d] = 0
    if c.a.ceil_mode == 1 and (w.auto == "NOTSET" or w.auto == "VALID") then
      local n = x:size(d + 2)
      local reach = (w.kernel[d] - 1) * w.dilation[d] + 1
      local space = n + w.before[d] + w.after[d] - reach
      local out = (space + w.stride[d] - 1) // w.stride[d] + 1
      if (out - 1) * w.stride[d] >= n + w.before[d] then out = out - 1 end
      extra[d] = max(0, (out - 1) * w.stride[d] + reach - (n + w.before[d] + w.after[d]))
    end
  end
  return extra
end

local function plus(a, b)
  local out = {}
  for d = 1, #a do out[d] = a[d] + b[d] end
  return out
end

-- The padding of a max pool that its op takes: as a list, or nil. It counts as lower than anything.
local function inside(w, after)
  local list = {}
  for d = 1, w.nd do
    local most = (w.kernel[d] - 1) * w.dilation[d]
    if w.before[d] < 0 or after[d] < 0 or w.before[d] > most or after[d] > most then return nil end
    list[d], list[d + w.nd] = w.before[d], after[d]
  end
  return list
end

op("MaxPool", WINDOW .. "ceil_mode:int storage_order:int", function(c, x)
  local w = window(c, x, c.a.kernel_shape or c:fail "kernel_shape is missing")
  local pool = by_rank(c, "max_pool", w.nd)
  local after = plus(w.after, ceil_extra(c, x, w))
  local low = registry.is_float(x) and -math.huge or x:dtype() == "u8" and 0 or -128
  local o = { kernel_size = w.kernel, stride = w.stride, dilation = w.dilation, padding = inside(w, after) }
  if o.padding and c.outputs < 2 and registry.is_float(x) then return pool(x, o) end
  o.padding = nil
  local wide = padded(x, w.before, after, low)
  if x:dtype() == "u8" or x:dtype() == "i8" then
    return pool(wide:to("f32"), o):to(x:dtype())
  end
  if c.outputs < 2 then return pool(wide, o) end
  o.return_indices, o.index_base = true, 0
  local y, at = pool(wide, o)
  -- places in the padded image → in the whole tensor
  local sizes, place, scale = spatial(wide), nil, 1
  local rest, column = at, c.a.storage_order == 1
  local coordinates = {}
  for d = w.nd, 1, -1 do
    coordinates[d] = rest % sizes[d] - w.before[d]
    rest = T.div(rest, sizes[d], { rounding_mode = "floor" })
  end
  for k = 1, w.nd do
    local d = column and k or w.nd - k + 1
    local part = coordinates[d] * scale
    place = place and place + part or part
    scale = scale * x:size(d + 2)
  end
  local n, ch = x:size(1), x:size(2)
  local shape = { n, ch }
  for d = 1, w.nd do shape[d + 2] = 1 end
  return y, place + (registry.count(n * ch, x:device()) * scale):view(shape)
end)

-- Windows that the op itself has: the same padding on both sides, of half a kernel at most, and nothing behind it.
local function is_plain(w, extra)
  for d = 1, w.nd do
    if w.before[d] ~= w.after[d] or w.before[d] < 0 or 2 * w.before[d] > w.kernel[d] or w.dilation[d] ~= 1
      or extra[d] ~= 0 then return false end
  end
  return true
end

op("AveragePool", WINDOW .. "ceil_mode:int count_include_pad:int", function(c, x)
  local w = window(c, x, c.a.kernel_shape or c:fail "kernel_shape is missing")
  local pool, extra = by_rank(c, "avg_pool", w.nd), ceil_extra(c, x, w)
  if is_plain(w, extra) then
    return pool(x, { kernel_size = w.kernel, stride = w.stride, padding = w.before,
      count_include_pad = c.a.count_include_pad == 1 })
  end
  local o = { kernel_size = w.kernel, stride = w.stride, dilation = w.dilation, divisor_override = 1 }
  local sums = pool(padded(x, w.before, plus(w.after, extra)), o)
  local counted = T.ones({ 1, 1, table.unpack(spatial(x)) }, { dtype = x:dtype(), device = x:device() })
  if c.a.count_include_pad == 1 then
    counted = padded(padded(counted, w.before, w.after, 1), zeros(w.nd), extra)
  else
    counted = padded(counted, w.before, plus(w.after, extra))
  end
  return sums / pool(counted, o)
end)

op("LpPool", WINDOW .. "ceil_mode:int p:int", function(c, x)
  local w = window(c, x, c.a.kernel_shape or c:fail "kernel_shape is missing")
  local p = c.a.p or 2
  local wide = padded(x:abs() ^ p, w.before, plus(w.after, ceil_extra(c, x, w)))
  return by_rank(c, "avg_pool", w.nd)(wide, { kernel_size = w.kernel, stride = w.stride, dilation = w.dilation,
    divisor_override = 1 }) ^ (1 / p)
end)

-- f over all spatial dimensions, which stay as ones.
local function global(x, f)
  local dims = {}
  for d = 3, x:dim() do dims[d - 2] = d end
  return f(x, dims, { keepdim = true })
end
op("GlobalAveragePool", "", function(_, x) return global(x, T.mean) end)
op("GlobalMaxPool", "", function(_, x) return global(x, T.amax) end)
op("GlobalLpPool", "p:int", function(c, x)
  local p = c.a.p or 2
  return global(x:abs() ^ p, T.sum) ^ (1 / p)
end)

op("MaxUnpool", "kernel_shape:ints pads:ints strides:ints", function(c, x, at, output)
  local nd = x:dim() - 2
  local kernel, stride = c.a.kernel_shape or c:fail "kernel_shape is missing", filled(c.a.strides, nd, 1)
  local shape, count = { x:size(1), x:size(2) }, 1
  for d = 1, nd do
    local before, after = c.a.pads and c.a.pads[d] or 0, c.a.pads and c.a.pads[d + nd] or 0
    shape[d + 2] = (x:size(d + 2) - 1) * stride[d] - before - after + kernel[d]
    count = count * shape[d + 2]
  end
  local total = shape[1] * shape[2] * count
  if output then
    -- indices are those of the smallest size; the result has it in its front corner
    local want = registry.ints(c, output, "output_shape")
    local y = T.zeros({ total }, { dtype = x:dtype(), device = x:device() })
      :scatter(1, at:reshape(-1), x:reshape(-1), { index_base = 0 }):view(shape)
    local before, after = {}, {}
    for d = 1, nd do before[d], after[d] = 0, want[d + 2] - shape[d + 2] end
    return padded(y, before, after)
  end
  return T.zeros({ total }, { dtype = x:dtype(), device = x:device() })
    :scatter(1, at:reshape(-1), x:reshape(-1), { index_base = 0 }):view(shape)
end)

op("Col2Im", "dilations:ints pads:ints strides:ints", function(c, x, image, block)
  local size, kernel = registry.ints(c, image, "image_shape"), registry.ints(c, block, "block_shape")
  local nd = #size
  local before, after, wide = {}, {}, {}
  for d = 1, nd do
    before[d], after[d] = c.a.pads and c.a.pads[d] or 0, c.a.pads and c.a.pads[d + nd] or 0
    wide[d] = size[d] + before[d] + after[d]
  end
  local y = F.fold(x, { output_size = wide, kernel_size = kernel, dilation = filled(c.a.dilations, nd, 1),
    stride = filled(c.a.strides, nd, 1) })
  for d = 1, nd do y = y:narrow(d + 2, before[d] + 1, size[d]) end
  return y
end)

-- ---- regions -------------------------------------------------------------------------------------------------------

op("RoiAlign", "coordinate_transformation_mode:string mode:string output_height:int output_width:int "
  .. "sampling_ratio:int spatial_scale:float", function(c, x, rois, batch)
  local mode = ({ avg = "mean", max = "max" })[c.a.mode or "avg"] or c:fail("mode '%s'", c.a.mode)
  local how = c.a.coordinate_transformation_mode or (c.opset >= 16 and "half_pixel" or "output_half_pixel")
  local ratio = c.a.sampling_ratio or 0
  local boxes = T.cat({ beside(x, batch):to(rois:dtype()):unsqueeze(2), rois }, 2)
  return F.roi_align(x, boxes, { c.a.output_height or 1, c.a.output_width or 1 }, {
    spatial_scale = c.a.spatial_scale or 1.0, sampling_ratio = ratio > 0 and ratio or -1,
    aligned = how == "half_pixel", mode = mode, index_base = 0 })
end)
op("MaxRoiPool", "pooled_shape:ints spatial_scale:float", function(c, x, rois)
  return F.roi_pool(x, rois, c.a.pooled_shape or c:fail "pooled_shape is missing", {
    spatial_scale = c.a.spatial_scale or 1.0, index_base = 0 })
end)

op("GridSample", "align_corners:int mode:string padding_mode:string", function(c, x, grid)
  local modes = { bilinear = "bilinear", linear = "bilinear", nearest = "nearest", bicubic = "bicubic",
    cubic = "bicubic" }
  local mode = modes[c.a.mode or "linear"] or c:fail("mode '%s'", c.a.mode)
  return F.grid_sample(x, grid, { mode = mode, padding_mode = c.a.padding_mode or "zeros",
    align_corners = c.a.align_corners == 1 })
end)
op("AffineGrid", "align_corners:int", function(c, theta, size)
  return F.affine_grid(theta, registry.ints(c, size, "size"), { align_corners = c.a.align_corners == 1 })
end)

