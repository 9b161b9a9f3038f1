-- SPDX-License-Identifier: MIT
--- Boxes and regions of images (roi_align, roi_pool, nms, box_iou) and convolution at places that move (deform_conv2d),
-- with the semantics of torchvision. Boxes are x1, y1, x2, y2; images are counted from index_base.
-- @module perilune.nn.functional
local T = require "perilune"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe

-- The values of flat [N, C, H·W] at places y, x [N, P], bilinear: between the pixels around, zeros outside. Gradients
-- reach the places, too.
local function bilinear(flat, y, x, H, W)
  local N, C, P = flat:size(1), flat:size(2), y:size(2)
  local y0, x0 = y:detach():nan_to_num(0.0):floor(), x:detach():nan_to_num(0.0):floor()
  local dy, dx = y - y0, x - x0
  flat = T.cat({ flat, T.zeros({ N, C, 1 }, { dtype = flat:dtype(), device = flat:device() }) }, 3) -- what is outside
  local out
  for corner = 0, 3 do
    local row, col = y0 + corner // 2, x0 + corner % 2
    local w = (corner // 2 == 1 and dy or 1 - dy) * (corner % 2 == 1 and dx or 1 - dx)
    local ok = row:ge(0) * row:le(H - 1) * col:ge(0) * col:le(W - 1)
    w = T.where(ok, w, T.zeros_like(w))
    local at = T.where(ok, row * W + col, H * W):long()
    local v = T.gather(flat, at:unsqueeze(2):expand(N, C, P), { dim = 3, index_base = 0 }) * w:unsqueeze(2)
    out = out and out + v or v
  end
  return out
end

-- ---- regions ---------------------------------------------------------------------------------------------------

local function check_image(who, x)
  if not T.is_tensor(x) or x:dim() ~= 4 or not x:is_floating_point() then
    fail("%s: a floating image [N, C, H, W] is wanted, got %s", who, describe(x))
  end
  if x:size(3) < 1 or x:size(4) < 1 then fail("%s: the image %s is empty", who, describe(x)) end
end

-- Boxes as [R, 4] and the image of each, from 0: [R, 5] with the image first, or a list with [r, 4] for each image.
local function read_boxes(who, x, boxes, base)
  local index
  if type(boxes) == "table" then
    if #boxes ~= x:size(1) then fail("%s: %d lists of boxes for %s", who, #boxes, describe(x)) end
    local owners = {}
    for i, b in ipairs(boxes) do
      if not T.is_tensor(b) or b:dim() ~= 2 or b:size(2) ~= 4 then
        fail("%s: boxes %d must be [r, 4], got %s", who, i, describe(b))
      end
      owners[i] = T.full({ b:size(1) }, i - 1, { dtype = "i64", device = x:device() })
    end
    boxes, index = T.cat(boxes, 1), T.cat(owners, 1)
  else
    if not T.is_tensor(boxes) or boxes:dim() ~= 2 or boxes:size(2) ~= 5 then
      fail("%s: boxes are [R, 5], the image of each first, or a list with [r, 4] for each image, got %s", who,
        describe(boxes))
    end
    index = boxes:select(2, 1):detach():long() - base
    boxes = boxes:narrow(2, 2, 4)
    -- in a trace, index_select refuses at run time what is past the last image's last pixel
    local asked = not T.core.is_symbolic(index) and index:numel() > 0
    if asked and (index:min():item() < 0 or index:max():item() >= x:size(1)) then
      fail("%s: the boxes name image %d; there are images %d to %d", who,
        index:min():item() < 0 and index:min():item() + base or index:max():item() + base, base, x:size(1) - 1 + base)
    end
  end
  return boxes:detach():to(x:dtype()), index
end

local function two(who, name, v, least)
  local a, b = v, v
  if type(v) == "table" then a, b = v[1], v[2] or v[1] end
  a, b = options.integer(a), options.integer(b)
  least = least or 1
  if not a or not b or a < least or b < least then
    fail("%s: %s must be one or two integers >= %d, got %s", who, name, least, describe(v))
  end
  return a, b
end

-- Samples a dim: for each region where its bins' samples are, [R, bins, most], and which of them count.
local function samples(start, size, bins, ratio)
  if ratio <= 0 and T.core.is_symbolic(size) then
    options.untraceable("roi_align: with sampling_ratio below 1 the sizes of boxes say how many samples there are, "
      .. "which a graph does not know; give sampling_ratio")
  end
  local bin = size / bins
  local count = ratio > 0 and T.full_like(bin, ratio) or bin:ceil():clamp { min = 0 }
  local most = ratio > 0 and ratio or (count:numel() > 0 and math.max(0, math.floor(count:max():item())) or 0)
  local where = { dtype = size:dtype(), device = size:device() }
  local k = T.arange(0, most - 1, { device = size:device() }):to(where.dtype):view(1, 1, most)
  if most == 0 then k = T.zeros({ 1, 1, 0 }, where) end
  local i = T.arange(0, bins - 1, { device = size:device() }):to(where.dtype):view(1, bins, 1)
  local per = bin:view(-1, 1, 1)
  local n = count:view(-1, 1, 1)
  local at = start:view(-1, 1, 1) + i * per + (k + 0.5) * per / n:clamp { min = 1 }
  return at, k:lt(n):expand(at:shape()), count, most
end

-- 0, the sum of no element of x: where nothing is sampled the result has a gradient yet, of zeros. x * 0 is NaN at
-- infinity.
local function nothing(x) return x:flatten():narrow(1, 1, 0):sum() end

-- ---- boxes ------------------------------------------------------------------------------------------------------

local function check_rows(who, name, t)
  if not T.is_tensor(t) or t:dim() ~= 2 or t:size(2) ~= 4 then
    fail("%s: %s must be boxes [R, 4], got %s", who, name, describe(t))
  end
end

local function area(b) return (b:select(2, 3) - b:select(2, 1)) * (b:select(2, 4) - b:select(2, 2)) end
local function overlaps(a, b)
  local low = T.maximum(a:narrow(2, 1, 2):unsqueeze(2), b:narrow(2, 1, 2):unsqueeze(1))
  local high = T.minimum(a:narrow(2, 3, 2):unsqueeze(2), b:narrow(2, 3, 2):unsqueeze(1))
  local side = (high - low):clamp { min = 0 }
  local both = side:select(3, 1) * side:select(3, 2)
  return both / (area(a):unsqueeze(2) + area(b):unsqueeze(1) - both)
end

local BLOCK = 1024 -- boxes that are compared with all others at a time

return function(F)
  --- nn.F.roi_align(x, boxes, output_size, {spatial_scale=1, sampling_ratio=-1, aligned=false, mode="mean",
  --   index_base=1}) → [R, C, h, w]
  -- Regions of x [N, C, H, W] at one size (He et al. 2017): each of h × w bins is the mean of sampling_ratio² bilinear
  -- samples (below 1: as many as pixels fit). boxes: [R, 5], the image of each first, or a list with [r, 4] for each
  -- image. aligned: pixels are squares around their centres. mode = "max", as ONNX has it: the largest of all samples'
  -- four terms, weight times pixel, in place of the mean of their sums. Boxes get no gradient.
  --   print(nn.F.roi_align(T.ones(1, 1, 4, 4), T.tensor { { 1, 0, 0, 2, 2 } }, 1))  --> {{{{1.}}}}  -- f32[1,1,1,1] cpu
  function F.roi_align(x, boxes, output_size, opts)
    local who = "roi_align"
    check_image(who, x)
    local o = options.check(who, opts, { "spatial_scale", "sampling_ratio", "aligned", "mode", "index_base" })
    local most = o.mode == "max"
    local h, w = two(who, "output_size", output_size)
    local b, index = read_boxes(who, x, boxes, o.index_base or 1)
    local given = x
    local narrow = x:dtype() == "f16" or x:dtype() == "bf16"
    if narrow then x, b = x:float(), b:float() end
    local N, C, H, W = table.unpack(x:shape())
    local R, ratio = b:size(1), o.sampling_ratio or -1
    local out
    if R == 0 then
      out = nothing(x) + T.zeros({ 0, C, h, w }, { dtype = x:dtype(), device = x:device() })
    else
      b = b * (o.spatial_scale or 1) - (o.aligned and 0.5 or 0)
      local width, height = b:select(2, 3) - b:select(2, 1), b:select(2, 4) - b:select(2, 2)
      if not o.aligned then width, height = width:clamp { min = 1 }, height:clamp { min = 1 } end
      local ys, yes_y, ny, gy = samples(b:select(2, 2), height, h, ratio)
      local xs, yes_x, nx, gx = samples(b:select(2, 1), width, w, ratio)
      local full = { R, h, w, gy, gx }
      local py = ys:view(R, h, 1, gy, 1):expand(full):reshape(1, -1)
      local px = xs:view(R, 1, w, 1, gx):expand(full):reshape(1, -1)
      local counts = (yes_y:view(R, h, 1, gy, 1) * yes_x:view(R, 1, w, 1, gx)):expand(full)
      -- all images side by side, so that each sample may come from its own
      local flat = x:permute { 2, 1, 3, 4 }:reshape(C, N, H * W)
      local rows = index:view(R, 1):expand(R, h * w * gy * gx):reshape(-1)
      out = nothing(x) + T.zeros({ C, R, h, w }, { dtype = x:dtype(), device = x:device() })
      if gy * gx > 0 then
        local inside = (py:ge(-1) * py:le(H) * px:ge(-1) * px:le(W)):view(full)
        local use = inside * counts
        if not most then use = use:to(x:dtype()) / (ny * nx):clamp({ min = 1 }):view(R, 1, 1, 1, 1) end
        py, px = py:clamp { min = 0, max = H - 1 }, px:clamp { min = 0, max = W - 1 }
        local y0, x0 = py:floor(), px:floor()
        local dy, dx = py - y0, px - x0
        local all, best = flat:reshape(C, N * H * W), nil
        for corner = 0, 3 do
          local row, col = (y0 + corner // 2):clamp { max = H - 1 }, (x0 + corner % 2):clamp { max = W - 1 }
          local weight = (corner // 2 == 1 and dy or 1 - dy) * (corner % 2 == 1 and dx or 1 - dx)
          local at = rows * (H * W) + (row * W + col):view(-1):long()
          local v = T.index_select(all, at, { dim = 2, index_base = 0 }):view(C, table.unpack(full))
          if most then -- a sample outside is 0, one that does not count is not there
            v = T.where(inside:unsqueeze(1), v * weight:view(full):unsqueeze(1), T.zeros_like(v))
            v = T.where(counts:unsqueeze(1), v, T.full_like(v, -math.huge))
            best = best and T.maximum(best, v) or v
          else
            out = out + (v * (weight:view(full) * use):unsqueeze(1)):sum { dim = { 5, 6 } }
          end
        end
        if most then
          out = best:amax { 5, 6 }
          out = T.where((ny * nx):view(1, R, 1, 1):gt(0), out, T.zeros_like(out))
        end
      end
      out = out:permute { 2, 1, 3, 4 }:contiguous()
    end
    return T.core.own(narrow and out:to(given:dtype()) or out, given)
  end

  --- nn.F.roi_pool(x, boxes, output_size, {spatial_scale=1, index_base=1}) → [R, C, h, w]
  -- The largest values of h × w bins of regions of x [N, C, H, W] whose borders are rounded to pixels (Girshick 2015);
  -- boxes as for roi_align. An empty bin is 0.
  --   print(nn.F.roi_pool(T.arange(4):float():view(1, 1, 2, 2), T.tensor { { 1, 0, 0, 1, 1 } }, 1))
  --   --> {{{{4.}}}}  -- f32[1,1,1,1] cpu
  function F.roi_pool(x, boxes, output_size, opts)
    local who = "roi_pool"
    check_image(who, x)
    local o = options.check(who, opts, { "spatial_scale", "index_base" })
    local h, w = two(who, "output_size", output_size)
    local b, index = read_boxes(who, x, boxes, o.index_base or 1)
    local _, C, H, W = table.unpack(x:shape())
    local R, scale = b:size(1), o.spatial_scale or 1
    -- halves go away from zero
    local corners = b:to("f64") * scale
    corners = (corners:sign() * (corners:abs() + 0.5):floor()):tolist()
    local owners, out = index:tolist(), {}
    for r = 1, R do
      local x1, y1, x2, y2 = table.unpack(corners[r])
      local rw, rh = math.max(x2 - x1 + 1, 1), math.max(y2 - y1 + 1, 1)
      local plane, bins = x:select(1, owners[r] + 1), {}
      for i = 0, h - 1 do
        local top = math.min(math.max(math.floor(i * rh / h) + y1, 0), H) // 1 | 0
        local bottom = math.min(math.max(math.ceil((i + 1) * rh / h) + y1, 0), H) // 1 | 0
        for j = 0, w - 1 do
          local left = math.min(math.max(math.floor(j * rw / w) + x1, 0), W) // 1 | 0
          local right = math.min(math.max(math.ceil((j + 1) * rw / w) + x1, 0), W) // 1 | 0
          if bottom <= top or right <= left then
            bins[#bins + 1] = plane:flatten(2):narrow(2, 1, 0):sum(2)
          else
            local part = plane:narrow(2, top + 1, bottom - top):narrow(3, left + 1, right - left)
            bins[#bins + 1] = (part:reshape(C, -1):max(2)) -- the first of equals gets the gradient
          end
        end
      end
      out[r] = T.stack(bins, 2):view(C, h, w)
    end
    if R == 0 then return nothing(x) + T.zeros({ 0, C, h, w }, { dtype = x:dtype(), device = x:device() }) end
    return T.stack(out, 1)
  end

  --- nn.F.box_iou(a, b) → [n, m]
  -- Intersection over union of boxes a [n, 4] with b [m, 4], all x1, y1, x2, y2.
  --   print(nn.F.box_iou(T.tensor { { 0, 0, 2, 2 } }, T.tensor { { 1, 0, 3, 2 } }))  --> {{0.3333}}  -- f32[1,1] cpu
  function F.box_iou(a, b)
    check_rows("box_iou", "a", a)
    check_rows("box_iou", "b", b)
    if not a:is_floating_point() then a = a:float() end
    if not b:is_floating_point() then b = b:float() end
    return overlaps(a, b)
  end

  --- nn.F.nms(boxes, scores, iou_threshold, {index_base=1}) → indices
  -- Non-maximum suppression: which of boxes [R, 4] stay, the highest score first, when a box goes that overlaps a
  -- better one which stays by more than iou_threshold (intersection over union).
  --   local boxes = T.tensor { { 0, 0, 2, 2 }, { 0, 0, 2, 1.9 }, { 5, 5, 6, 6 } }
  --   print(nn.F.nms(boxes, T.tensor { 0.5, 0.9, 0.1 }, 0.5))  --> {2, 3}  -- i64[2] cpu
  function F.nms(boxes, scores, iou_threshold, opts)
    local who = "nms"
    check_rows(who, "boxes", boxes)
    local n = boxes:size(1)
    if not T.is_tensor(scores) or scores:dim() ~= 1 or scores:numel() ~= n then
      fail("%s: scores must be one number a box, [%d], got %s", who, n, describe(scores))
    end
    if type(iou_threshold) ~= "number" then
      fail("%s: iou_threshold must be a number, got %s", who, describe(iou_threshold))
    end
    local base = options.check(who, opts, { "index_base" }).index_base or 1
    local order = scores:detach():argsort { descending = true, stable = true } - 1
    local b = T.index_select(boxes:detach(), order, { dim = 1, index_base = 0 })
    if b:dtype() ~= "f64" then b = b:float() end
    -- Block by block: first what boxes before it suppress, then, until nothing changes, what stays within.
    local kept, keep = nil, {}
    for from = 1, n, BLOCK do
      local count = math.min(BLOCK, n - from + 1)
      local block = b:narrow(1, from, count)
      local alive = T.ones({ count }, { dtype = "bool", device = b:device() })
      for k = 1, kept and kept:size(1) or 0, BLOCK do
        local better = kept:narrow(1, k, math.min(BLOCK, kept:size(1) - k + 1))
        alive = alive * overlaps(better, block):gt(iou_threshold):any(1):logical_not()
      end
      local over = overlaps(block, block):gt(iou_threshold):triu(1)
      local stays = alive
      while true do
        local now = alive * (over * stays:unsqueeze(2)):any(1):logical_not()
        if now:equal(stays) then break end
        stays = now
      end
      local at = stays:nonzero { index_base = 0 }:view(-1)
      keep[#keep + 1] = at + (from - 1)
      local rows = T.index_select(block, at, { dim = 1, index_base = 0 })
      kept = kept and T.cat({ kept, rows }, 1) or rows
    end
    if n == 0 then return T.zeros({ 0 }, { dtype = "i64", device = boxes:device() }) end
    return T.index_select(order, T.cat(keep, 1), { dim = 1, index_base = 0 }) + base
  end

  --- nn.F.batched_nms(boxes, scores, classes, iou_threshold, {index_base=1}) → indices
  -- nms within each class: boxes of different classes (whole numbers [R]) do not suppress each other.
  --   local boxes = T.tensor { { 0, 0, 2, 2 }, { 0, 0, 2, 1.9 } }
  --   local classes = T.tensor({ 1, 2 }, { dtype = "i64" })
  --   print(nn.F.batched_nms(boxes, T.tensor { 0.5, 0.9 }, classes, 0.5))  --> {2, 1}  -- i64[2] cpu
  function F.batched_nms(boxes, scores, classes, iou_threshold, opts)
    local who = "batched_nms"
    check_rows(who, "boxes", boxes)
    if not T.is_tensor(classes) or classes:is_floating_point() or classes:dim() ~= 1
      or classes:numel() ~= boxes:size(1) then
      fail("%s: classes must be one whole number a box, [%d], got %s", who, boxes:size(1), describe(classes))
    end
    local base = options.check(who, opts, { "index_base" }).index_base or 1
    if not T.is_tensor(scores) or scores:dim() ~= 1 or scores:numel() ~= boxes:size(1) then
      fail("%s: scores must be one number a box, [%d], got %s", who, boxes:size(1), describe(scores))
    end
    if boxes:size(1) == 0 then return T.zeros({ 0 }, { dtype = "i64", device = boxes:device() }) end
    local keep = {}
    for _, class in ipairs(classes:unique():tolist()) do
      local mine = classes:eq(class):nonzero { index_base = 0 }:view(-1)
      local function part(t) return T.index_select(t, mine, { dim = 1, index_base = 0 }) end
      local stay = part(boxes)
      stay = F.nms(stay, part(scores), iou_threshold, { index_base = 0 })
      keep[#keep + 1] = T.index_select(mine, stay, { dim = 1, index_base = 0 })
    end
    local all = T.cat(keep, 1):sort()
    local order = T.index_select(scores:detach(), all, { dim = 1, index_base = 0 })
      :argsort { descending = true, stable = true }
    return T.index_select(all, order, 1) + base
  end

  --- nn.F.deform_conv2d(x, offset, weight, bias, {stride=1, padding=0, dilation=1, mask=}) → [N, out, H', W']
  -- Convolution of x [N, in, H, W] with weight [out, in / groups, kh, kw] at places moved by offset
  -- [N, 2 · G · kh · kw, H', W'] (y and x of each element of the kernel, for each of G groups of channels; Dai et al.
  -- 2017), each value multiplied by mask [N, G · kh · kw, H', W'] where it is given (Zhu et al. 2019). Everything has a
  -- gradient.
  --   local x, w = T.ones(1, 1, 3, 3), T.ones(1, 1, 2, 2)
  --   print(nn.F.deform_conv2d(x, T.zeros(1, 8, 2, 2), w))
  --   --> {{{{4., 4.},
  --   -->    {4., 4.}}}}  -- f32[1,1,2,2] cpu
  function F.deform_conv2d(x, offset, weight, bias, opts)
    local who = "deform_conv2d"
    check_image(who, x)
    local o = options.check(who, opts, { "stride", "padding", "dilation", "mask" })
    if not T.is_tensor(weight) or weight:dim() ~= 4 then
      fail("%s: weight must be [out, in / groups, kh, kw], got %s", who, describe(weight))
    end
    local N, C, H, W = table.unpack(x:shape())
    local O, part, kh, kw = table.unpack(weight:shape())
    local sy, sx = two(who, "stride", o.stride or 1)
    local dy, dx = two(who, "dilation", o.dilation or 1)
    local py, px = two(who, "padding", o.padding or 0, 0)
    if part < 1 or C % part ~= 0 or O % (C // part) ~= 0 then
      fail("%s: %s does not fit %s: its second size must divide the channels, and the groups its first", who,
        describe(weight), describe(x))
    end
    local groups, K = C // part, kh * kw
    local oh, ow = (H + 2 * py - dy * (kh - 1) - 1) // sy + 1, (W + 2 * px - dx * (kw - 1) - 1) // sx + 1
    if oh < 1 or ow < 1 then
      fail("%s: a window of %d x %d does not fit into %s", who, kh, kw, describe(x))
    end
    local G = T.is_tensor(offset) and offset:dim() == 4 and offset:size(2) // (2 * K) or 0
    local function fits(t, rows)
      return T.is_tensor(t) and t:dim() == 4 and t:size(1) == N and t:size(2) == rows and t:size(3) == oh
        and t:size(4) == ow
    end
    if G < 1 or C % G ~= 0 or not fits(offset, 2 * G * K) then
      fail("%s: offset must be [%d, 2 G %d, %d, %d], G a divisor of the %d channels, got %s", who, N, K, oh, ow, C,
        describe(offset))
    end
    if o.mask ~= nil and not fits(o.mask, G * K) then
      fail("%s: mask must be [%d, %d, %d, %d], got %s", who, N, G * K, oh, ow, describe(o.mask))
    end
    local where = { device = x:device() }
    local function places(from, kernel, step, count, stride)
      local taps = T.arange(0, step * (kernel - 1), step, where):unsqueeze(2)
      local windows = T.arange(0, stride * (count - 1), stride, where):unsqueeze(1)
      return (taps + windows - from):to(offset:dtype())
    end
    local move = offset:reshape(N * G, kh, kw, 2, oh, ow)
    local ys = places(py, kh, dy, oh, sy):view(1, kh, 1, oh, 1) + move:select(4, 1)
    local xs = places(px, kw, dx, ow, sx):view(1, 1, kw, 1, ow) + move:select(4, 2)
    local P = K * oh * ow
    local columns = bilinear(x:reshape(N * G, C // G, H * W), ys:reshape(N * G, P), xs:reshape(N * G, P), H, W)
    columns = columns:view(N, G, C // G, K, oh * ow)
    if o.mask then columns = columns * o.mask:reshape(N, G, 1, K, oh * ow) end
    local y = T.matmul(weight:reshape(1, groups, O // groups, part * K),
      columns:reshape(N, groups, part * K, oh * ow)):view(N, O, oh, ow)
    if bias ~= nil then
      if not T.is_tensor(bias) or bias:dim() ~= 1 or bias:numel() ~= O then
        fail("%s: bias must be [%d], got %s", who, O, describe(bias))
      end
      y = y + bias:view(1, O, 1, 1)
    end
    return y
  end
end
