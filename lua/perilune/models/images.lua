-- SPDX-License-Identifier: MIT
--- Pictures as the vision models of T.models read them, by preprocessor_config.json. @module perilune.models.images
local T = require "perilune"
local classes = require "perilune.classes"
local json = require "perilune.io.json"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local M = {}

local function sinc(x) return x == 0 and 1 or math.sin(math.pi * x) / (math.pi * x) end
-- Filters by Pillow's number: how far they reach, and their weight at a distance.
local filters = {
  [1] = { 3, function(x) return x > -3 and x < 3 and sinc(x) * sinc(x / 3) or 0 end },
  [2] = { 1, function(x) return math.max(0, 1 - math.abs(x)) end },
  [3] = { 2, function(x) -- Keys 1981 with a = -1/2
    x = math.abs(x)
    if x < 1 then return (1.5 * x - 2.5) * x * x + 1 end
    return x < 2 and ((-0.5 * x + 2.5) * x - 4) * x + 2 or 0
  end },
  [4] = { 0.5, function(x) return x > -0.5 and x <= 0.5 and 1 or 0 end },
}

-- The weights of n places in each of m, [m, n]: where m is smaller the filter is as wide as a place of the result.
-- They are whole numbers of 1 / ONE, as Pillow has them, so that halves are rounded as there.
local ONE = 1 << 22
local function weights(n, m, kind)
  local reach, f = table.unpack(filters[kind])
  local scale = n / m
  local wide, rows = math.max(scale, 1), {}
  for i = 1, m do
    local centre, sum, row = (i - 0.5) * scale, 0, {}
    local from = math.max(0, math.floor(centre - reach * wide + 0.5))
    local to = math.min(n, math.floor(centre + reach * wide + 0.5))
    for k = 1, n do
      local w = k > from and k <= to and f((k - 0.5 - centre) / wide) or 0
      row[k], sum = w, sum + w
    end
    for k = 1, n do
      local w = row[k] / sum * ONE
      row[k] = w < 0 and math.ceil(w - 0.5) or math.floor(w + 0.5)
    end
    rows[i] = row
  end
  return T.tensor(rows, { dtype = "f64" })
end

local function rounded(x) return (x / ONE + 0.5):floor():clamp(0, 255) end

-- x [C, H, W] of whole numbers → [C, h, w], rounded after each direction; widths first, unless heights shrink by more
-- than twice as many places, as in Pillow.
local function resized(x, h, w, kind)
  if kind == 0 then
    local function nearest(n, m) return ((T.arange(m):double() - 0.5) * (n / m)):floor():long() + 1 end
    return x:index_select(2, nearest(x:size(2), h)):index_select(3, nearest(x:size(3), w))
  end
  local H, W = x:size(2), x:size(3)
  local function widths(y) return W ~= w and rounded(y:matmul(weights(W, w, kind):t())) or y end
  local function heights(y) return H ~= h and rounded(weights(H, h, kind):matmul(y)) or y end
  if H > h and 2 * (W - w) < H - h then return widths(heights(x)) end
  return heights(widths(x))
end

-- The middle h by w, zeros around where x is smaller.
local function cropped(x, h, w)
  local H, W = x:size(2), x:size(3)
  local more_h, more_w = math.max(0, h - H), math.max(0, w - W)
  if more_h > 0 or more_w > 0 then
    local top, left = (more_h + 1) // 2, (more_w + 1) // 2
    x = T.nn.F.pad(x, { left, more_w - left, top, more_h - top })
    H, W = x:size(2), x:size(3)
  end
  return x:narrow(2, (H - h) // 2 + 1, h):narrow(3, (W - w) // 2 + 1, w)
end

local Processor = classes.new("ImageProcessor", "processor")

-- A size as {height, width}, or {shortest = n}; square: what one number means.
local function size_of(v, square)
  if type(v) == "number" then v = square and { height = v, width = v } or { shortest_edge = v } end
  if type(v) ~= "table" then return nil end
  if v.longest_edge then return nil end -- which would limit the other one
  if v.shortest_edge then return { shortest = v.shortest_edge } end
  if v.height and v.width then return { v.height, v.width } end
end

-- Three numbers, one for each channel: a list, or one for all; nil where it is something else.
local function triple(v)
  if type(v) == "number" then return { v, v, v } end
  local list = type(v) == "table" and { table.unpack(v) } or {}
  for _, x in ipairs(list) do if type(x) ~= "number" then return nil end end
  return #list == 3 and list or nil
end

-- What is taken where a file does not say: CLIP's own statistics, else halves.
local means = { CLIP = { image_mean = { 0.48145466, 0.4578275, 0.40821073 },
  image_std = { 0.26862954, 0.26130258, 0.27577711 } } }
local sides = { ViT = 224, CLIP = 224, DeiT = 256 }

-- Settings that are read, and others that change nothing here; scripts have no other ones.
local known = { "crop_pct", "crop_size", "do_center_crop", "do_normalize", "do_rescale", "do_resize",
  "feature_extractor_type", "image_mean", "image_processor_type", "image_std", "resample", "rescale_factor", "size" }
local harmless = { data_format = true, device = true, do_convert_rgb = true, do_pad = true, input_data_format = true,
  processor_class = true, return_tensors = true }

local function shortest(x, n)
  local h, w = x:size(2), x:size(3)
  if h <= w then return n, math.floor(n * w / h) end
  return math.floor(n * h / w), n
end

local function one(self, image)
  if not T.is_tensor(image) or image:dim() ~= 3 or image:size(3) ~= 3 or image:dtype() ~= "u8" then
    fail("ImageProcessor: a picture must be u8 [H, W, 3], got %s", describe(image))
  end
  local x = image:permute { 3, 1, 2 }:double()
  if self.resize then
    local s = self.size
    if not s.shortest then x = resized(x, s[1], s[2], self.resample)
    elseif not self.crop_pct then
      local h, w = shortest(x, s.shortest)
      x = resized(x, h, w, self.resample)
    elseif s.shortest < 384 then -- ConvNeXt's: a little larger, then the middle
      local h, w = shortest(x, math.floor(s.shortest / self.crop_pct))
      x = cropped(resized(x, h, w, self.resample), s.shortest, s.shortest)
    else
      x = resized(x, s.shortest, s.shortest, self.resample)
    end
  end
  if self.crop then x = cropped(x, self.crop[1], self.crop[2]) end
  x = x * self.factor
  if self.mean then x = (x - self.mean) / self.std end
  return x:float()
end

--- A picture u8 [H, W, 3], or a list of such → [B, 3, height, width].
function Processor:__call(images)
  if T.is_tensor(images) then images = { images } end
  options.list("ImageProcessor", "the pictures", images, "pictures")
  local list = {}
  for i, image in ipairs(images) do
    list[i] = one(self, image)
    if list[i]:size(2) ~= list[1]:size(2) or list[i]:size(3) ~= list[1]:size(3) then
      fail("ImageProcessor: picture %d becomes %s and the first %s; without a fixed size they make no batch", i,
        describe(list[i]), describe(list[1]))
    end
  end
  if #list == 0 then fail "ImageProcessor: no pictures" end
  return T.stack(list, 1)
end

-- The settings of a processor from what its file says; nil and what is wrong.
local function made(c)
  local name = tostring(c.image_processor_type or c.feature_extractor_type or "")
  local kind = name:match "^(%a-)Image" or name:match "^(%a-)Feature"
  if not ({ ViT = true, CLIP = true, ConvNext = true, ConvNeXT = true, DeiT = true })[kind] then
    return nil, ("image_processor_type %s is not supported (ViT, CLIP and ConvNext are)"):format(name)
  end
  local function on(key, default) if c[key] == nil then return default end return c[key] == true end
  local convnext = kind:find "^Conv" ~= nil
  if on("do_pad", false) then return nil, "do_pad = true is not supported" end
  local self = { resize = on("do_resize", true), size = size_of(c.size or sides[kind] or 384, kind == "ViT"
    or kind == "DeiT"), resample = c.resample or (kind == "ViT" and 2 or 3),
    crop_pct = convnext and (type(c.crop_pct) == "number" and c.crop_pct or 224 / 256) or nil,
    factor = on("do_rescale", true) and (c.rescale_factor or 1 / 255) or 1 }
  if self.resize and (not self.size or convnext and not self.size.shortest) then
    return nil, "size must have shortest_edge alone" .. (convnext and "" or ", or height and width")
  end
  if self.resample ~= 0 and not filters[self.resample] then
    return nil, ("resample = %s is not supported"):format(tostring(self.resample))
  end
  if on("do_center_crop", kind == "CLIP" or kind == "DeiT") then
    self.crop = size_of(c.crop_size or 224, true)
    if not self.crop or self.crop.shortest then return nil, "crop_size must have height and width" end
  end
  if on("do_normalize", true) then
    for _, key in ipairs { "image_mean", "image_std" } do
      local v = c[key]
      if v == nil then v = means[kind] and means[kind][key] or 0.5 end
      local list = triple(v)
      if not list then return nil, key .. " must be a number, or 3 of them" end
      self[key == "image_mean" and "mean" or "std"] = T.tensor(list, { dtype = "f64" }):view(3, 1, 1)
    end
  end
  return setmetatable(self, Processor)
end

--- T.models.image_processor(dir) → processor; or nil and a message
-- What a vision model's folder says of its pictures (preprocessor_config.json of ViT, CLIP or ConvNeXt), or a table
-- of such settings: processor(picture) resizes as Pillow does, crops, and normalizes.
-- Shapes: u8 [H, W, 3], or a list of such → [B, 3, height, width]
--   local look = assert(T.models.image_processor { image_processor_type = "ViTImageProcessor", size = 4 })
--   print(table.concat(look(T.zeros({ 9, 7, 3 }, { dtype = "u8" })):shape(), " "))  --> 1 3 4 4
function M.image_processor(dir)
  if type(dir) == "table" and getmetatable(dir) == nil then
    for name in pairs(dir) do
      local is = harmless[name]
      for _, k in ipairs(known) do is = is or k == name end
      if not is then fail("models.image_processor: %s", options.unknown("setting", tostring(name), known)) end
    end
    local self, why = made(dir)
    if not self then fail("models.image_processor: %s", why) end
    return self
  end
  if type(dir) ~= "string" then
    fail("models.image_processor: a folder or a table of settings is wanted, got %s", describe(dir))
  end
  local path = dir .. "/preprocessor_config.json"
  local c, why, code = json.read(path)
  if c == nil then return nil, why, code end
  if type(c) ~= "table" or json.is_array(c) then return nil, path .. ": an object is wanted", "format" end
  for key, v in pairs(c) do if v == json.null then c[key] = nil end end
  local self, what = made(c)
  if not self then return nil, path .. ": " .. what, "unsupported" end
  return self
end

return M
