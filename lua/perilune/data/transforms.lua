-- SPDX-License-Identifier: MIT
--- Transforms of images [C, H, W], u8 or f32, as functions to be called: `local t = transforms.compose{…}; t(image)`.
-- They draw from the global generator, which a DataLoader seeds for each sample, so that random transforms do the same
-- with any number of workers. Names and formulas follow torchvision.transforms where it has them; places count from 1.
-- @module perilune.data.transforms
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe, integer = options.fail, options.describe, options.integer
local M = {}

--- T.data.transforms.Transform :: T.data.transforms.Transform: the class of transforms
-- A transform is called with an image; tostring tells its arguments. Any function may stand in its place.
--   print(getmetatable(T.data.transforms.gray()) == T.data.transforms.Transform)  --> true
M.Transform = { __name = "transform" }
M.Transform.__call = function(self, ...) return self.apply(...) end
M.Transform.__tostring = function(self) return self.text end

local function transform(text, apply, extra)
  local t = { apply = apply, text = text }
  for key, v in pairs(extra or {}) do t[key] = v end
  return setmetatable(t, M.Transform)
end

-- ---- drawing and checking ---------------------------------------------------------------------------------------

local function uniform(lo, hi) return lo + (hi - lo) * T.rand({ 1 }, { dtype = "f64", device = "cpu" }):item() end
local function whole(lo, hi) return hi <= lo and lo or T.randint(lo, hi, { 1 }, { device = "cpu" }):item() end
local function chance(p) return p >= 1 or (p > 0 and uniform(0, 1) < p) end

local function size_of(x, who)
  if not core.is_tensor(x) or x:dim() < 2 then
    fail("%s: an image [C, H, W] is wanted, got %s", who, describe(x))
  end
  return x:size(-2), x:size(-1)
end

-- {h, w} from a number or a list of two.
local function pair(who, v)
  local h, w = v, v
  if type(v) == "table" then h, w = v[1], v[2] end
  h, w = integer(h), integer(w)
  if not h or not w or h < 1 or w < 1 then fail("%s: the size must be a positive integer or {height, width}", who) end
  return h, w
end

local function range(who, name, v, lo, hi)
  if type(v) ~= "table" or type(v[1]) ~= "number" or type(v[2]) ~= "number" or not (lo <= v[1] and v[1] <= v[2]
    and v[2] <= hi) then
    fail("%s: %s must be {low, high} within %g and %g", who, name, lo, hi)
  end
  return v
end

local function part(x, top, left, h, w) return x:narrow(-2, top, h):narrow(-1, left, w) end

-- ---- places and sizes ---------------------------------------------------------------------------------------------

--- T.data.transforms.crop(top, left, h, w) → transform
-- Those pixels, a view; places count from 1. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.crop(1, 1, 2, 3)(picture):size(2))  --> 2
function M.crop(top, left, h, w)
  for _, v in ipairs { top or 0, left or 0, h or 0, w or 0 } do
    if not integer(v) or v < 1 then fail("transforms.crop: top, left, height and width are integers from 1") end
  end
  if not (top and left and h and w) then fail("transforms.crop: top, left, height and width are wanted") end
  return transform(("crop(%d, %d, %d, %d)"):format(top, left, h, w), function(x)
    local height, width = size_of(x, "crop")
    if top + h - 1 > height or left + w - 1 > width then
      fail("crop: rows %d to %d and columns %d to %d of an image of %d x %d", top, top + h - 1, left, left + w - 1,
        height, width)
    end
    return part(x, top, left, h, w)
  end)
end

-- x with `by` more pixels at each side: by is {left, top, right, bottom}.
local function padded(x, by, value)
  if by[1] == 0 and by[2] == 0 and by[3] == 0 and by[4] == 0 then return x end
  local shape = x:shape()
  local h, w = shape[#shape - 1], shape[#shape]
  shape[#shape - 1], shape[#shape] = h + by[2] + by[4], w + by[1] + by[3]
  local out = T.full(shape, value, { dtype = x:dtype(), device = x:device() })
  part(out, by[2] + 1, by[1] + 1, h, w):copy_(x)
  return out
end

local function padding_of(who, v)
  if integer(v) then v = { v, v, v, v } end
  if type(v) == "table" and #v == 2 then v = { v[1], v[2], v[1], v[2] } end
  for i = 1, 4 do
    if type(v) ~= "table" or not integer(v[i]) or v[i] < 0 then
      fail("%s: padding must be an integer, {x, y} or {left, top, right, bottom}", who)
    end
  end
  return v
end

--- T.data.transforms.pad(n or {x, y} or {left, top, right, bottom}, value=0) → transform
-- More pixels at the sides. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.pad(1)(picture):size(2))  --> 10
function M.pad(by, value)
  by, value = padding_of("transforms.pad", by), value or 0
  if type(value) ~= "number" then fail("transforms.pad: value must be a number, got %s", describe(value)) end
  return transform(("pad(%s)"):format(table.concat(by, ", ")), function(x)
    size_of(x, "pad")
    return padded(x, by, value)
  end)
end

-- The middle: `center_crop(size or {h, w})`. Smaller images are padded with zeros.
--- T.data.transforms.center_crop(n or {h, w}) → transform
-- The middle. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.center_crop(4)(picture):size(2))  --> 4
function M.center_crop(size)
  local h, w = pair("transforms.center_crop", size)
  return transform(("center_crop(%d, %d)"):format(h, w), function(x)
    local height, width = size_of(x, "center_crop")
    if height < h or width < w then
      local dy, dx = math.max(h - height, 0), math.max(w - width, 0)
      x = padded(x, { dx // 2, dy // 2, (dx + 1) // 2, (dy + 1) // 2 }, 0)
      height, width = height + dy, width + dx
    end
    -- torchvision rounds half to even
    local function middle(room)
      local v = room / 2
      return room % 2 == 0 and room // 2 or (math.floor(v) % 2 == 0 and math.floor(v) or math.ceil(v))
    end
    return part(x, middle(height - h) + 1, middle(width - w) + 1, h, w)
  end)
end

--- T.data.transforms.random_crop(n or {h, w}, {padding=0, fill=0}) → transform
-- A random place. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.random_crop(5)(picture):size(2))  --> 5
function M.random_crop(size, opts)
  opts = options.check("transforms.random_crop", opts, { "padding", "fill" })
  local h, w = pair("transforms.random_crop", size)
  local by, fill = padding_of("transforms.random_crop", opts.padding or 0), opts.fill or 0
  options.kind("transforms.random_crop", "fill", "number", fill)
  return transform(("random_crop(%d, %d)"):format(h, w), function(x)
    size_of(x, "random_crop")
    x = padded(x, by, fill)
    local height, width = size_of(x, "random_crop")
    if height < h or width < w then
      fail("random_crop: %d x %d pixels of an image of %d x %d; pad it first", h, w, height, width)
    end
    return part(x, whole(1, height - h + 1), whole(1, width - w + 1), h, w)
  end)
end

local filters = { nearest = 0, bilinear = 1, bicubic = 2 }

local function filter_of(who, opts)
  local mode = opts.mode or "bilinear"
  if not filters[mode] then fail("%s: %s", who, options.unknown("mode", mode, { "nearest", "bilinear", "bicubic" })) end
  return filters[mode], opts.antialias ~= false
end

-- Resampling: `resize(n)` makes the shorter side n, `resize{h, w}` both; `{mode="bilinear", antialias=true}`, also
-- "nearest" and "bicubic". With antialias results are Pillow's to one step of 255 (bicubic: two, and more at hard edges
-- where Pillow 13 takes the columns first), without those of nn.F.interpolate;
-- "nearest" is the pixel at the centre, as Pillow's and interpolate's "nearest-exact", either way.
--- T.data.transforms.resize(n or {h, w}, {mode="bilinear", antialias=true}) → transform
-- Resampling; a number is for the shorter side. Modes nearest, bilinear, bicubic. Called with an image [C, H, W], u8 or
-- f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.resize(3)(picture):size(2))  --> 4
function M.resize(size, opts)
  opts = options.check("transforms.resize", opts, { "mode", "antialias" })
  local h, w = pair("transforms.resize", size)
  local filter, antialias = filter_of("transforms.resize", opts)
  local shorter = type(size) ~= "table"
  return transform(shorter and ("resize(%d)"):format(h) or ("resize(%d, %d)"):format(h, w), function(x)
    local height, width = size_of(x, "resize")
    local nh, nw = h, w
    if shorter and height < width then nw = math.max(1, width * h // height) end
    if shorter and height >= width then nh = math.max(1, height * w // width) end
    if nh == height and nw == width then return x end
    return core.image_resize(x, nh, nw, filter, antialias)
  end)
end

--- T.data.transforms.random_resized_crop(n or {h, w}, {scale={0.08, 1}, ratio={3/4, 4/3}, mode=, antialias=}) →
--   transform
-- A random part of random size and shape, resampled. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.random_resized_crop(5)(picture):size(2))  --> 5
function M.random_resized_crop(size, opts)
  local who = "transforms.random_resized_crop"
  opts = options.check(who, opts, { "scale", "ratio", "mode", "antialias" })
  local h, w = pair(who, size)
  local scale = range(who, "scale", opts.scale or { 0.08, 1 }, 0, 1)
  local ratio = range(who, "ratio", opts.ratio or { 3 / 4, 4 / 3 }, 1e-3, 1e3)
  local filter, antialias = filter_of(who, opts)
  local function place(height, width)
    for _ = 1, 10 do
      local area = height * width * uniform(scale[1], scale[2])
      local aspect = math.exp(uniform(math.log(ratio[1]), math.log(ratio[2])))
      local pw, ph = math.floor(math.sqrt(area * aspect) + 0.5), math.floor(math.sqrt(area / aspect) + 0.5)
      if pw >= 1 and pw <= width and ph >= 1 and ph <= height then
        return whole(1, height - ph + 1), whole(1, width - pw + 1), ph, pw
      end
    end
    local ph, pw = height, width -- the middle, in a shape that is allowed
    if width / height < ratio[1] then ph = math.max(1, math.floor(width / ratio[1] + 0.5)) end
    if width / height > ratio[2] then pw = math.max(1, math.floor(height * ratio[2] + 0.5)) end
    return (height - ph) // 2 + 1, (width - pw) // 2 + 1, ph, pw
  end
  return transform(("random_resized_crop(%d, %d)"):format(h, w), function(x)
    return core.image_resize(part(x, place(size_of(x, "random_resized_crop"))), h, w, filter, antialias)
  end)
end

local function flipping(name, dim)
  local spec = options.spec("transforms." .. name, { { "p", "probability", 0.5 } })
  return function(...)
    local p = options.read(spec, ...).p
    return transform(("%s(%g)"):format(name, p), function(x)
      local h, w = size_of(x, name)
      if not chance(p) then return x end
      local dtype = x:dtype()
      if dim == -1 and x:dim() == 3 and x:size(1) <= 4 and (dtype == "u8" or dtype == "f32") then
        return core.image_resize(x, h, w, 0, false, true)
      end
      return x:flip({ dim })
    end)
  end
end

--- T.data.transforms.random_horizontal_flip(p=0.5) → transform
-- Left and right exchanged with probability p. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.random_horizontal_flip(1)(picture):size(2))  --> 8
M.random_horizontal_flip = flipping("random_horizontal_flip", -1)

--- T.data.transforms.random_vertical_flip(p=0.5) → transform
-- Top and bottom exchanged with probability p. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.random_vertical_flip(1)(picture):size(2))  --> 8
M.random_vertical_flip = flipping("random_vertical_flip", -2)

-- ---- values ---------------------------------------------------------------------------------------------------------

local function list(who, name, v)
  if type(v) == "number" then v = { v } end
  if type(v) ~= "table" or #v == 0 then fail("%s: %s must be a number or a list of one for each channel", who, name) end
  for _, x in ipairs(v) do
    if type(x) ~= "number" then fail("%s: %s must be numbers, got %s", who, name, describe(x)) end
  end
  return v
end

local function to_floats(x, scales, shifts)
  if not core.is_tensor(x) then fail("to_tensor: an image [C, H, W] is wanted, got %s", describe(x)) end
  return core.image_to_float(x, scales, shifts)
end

--- T.data.transforms.to_tensor() → transform
-- u8 in 0 … 255 becomes f32 in 0 … 1. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.to_tensor()(picture):size(2))  --> 8
function M.to_tensor()
  return transform("to_tensor()", function(x)
    if core.is_tensor(x) and x:is_floating_point() then return x end
    return to_floats(x, { 1 / 255 }, { 0 })
  end, { kind = "to_tensor" })
end

--- T.data.transforms.normalize(mean, std) → transform
-- (x - mean) / std of floats, by channel; numbers or lists. Right behind to_tensor() both are one pass.
--   print(T.data.transforms.normalize(0.5, 0.5)(T.ones(1, 1, 1)):item())  --> 1.0
function M.normalize(mean, std)
  mean, std = list("transforms.normalize", "mean", mean), list("transforms.normalize", "std", std)
  if #mean ~= #std and #mean > 1 and #std > 1 then
    fail("transforms.normalize: %d means and %d stds; one for each channel, or one for all", #mean, #std)
  end
  local scales, shifts = {}, {}
  for k = 1, math.max(#mean, #std) do
    local m, s = mean[k] or mean[1], std[k] or std[1]
    if s == 0 then fail("transforms.normalize: std must not be 0") end
    scales[k], shifts[k] = 1 / s, -m / s
  end
  return transform("normalize()", function(x)
    if core.is_tensor(x) and not x:is_floating_point() then
      fail("normalize: floats are wanted, got %s; put to_tensor() before it", describe(x))
    end
    return to_floats(x, scales, shifts)
  end, { kind = "normalize", scales = scales, shifts = shifts })
end

-- A factor around 1 from a number, or a range; nil: leave out.
local function factors(name, v, center, lo, hi)
  if v == nil or v == 0 then return nil end
  if type(v) == "number" and v > 0 then v = { math.max(center - v, lo), center + v } end
  return range("transforms.color_jitter", name, v, lo, hi)
end

--- T.data.transforms.color_jitter{brightness=, contrast=, saturation=, hue=} → transform
-- Random changes of colour, in random order; v means factors of 1 - v … 1 + v, for hue a turn of -v … v. Called with an
-- image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.color_jitter{ hue = 0.1 }(picture):size(2))  --> 8
function M.color_jitter(opts)
  opts = options.check("transforms.color_jitter", opts, { "brightness", "contrast", "saturation", "hue" })
  local ranges = { [0] = factors("brightness", opts.brightness, 1, 0, math.huge),
    factors("contrast", opts.contrast, 1, 0, math.huge), factors("saturation", opts.saturation, 1, 0, math.huge),
    factors("hue", opts.hue, 0, -0.5, 0.5) }
  return transform("color_jitter()", function(x)
    size_of(x, "color_jitter")
    local kinds, args = {}, {}
    for kind = 0, 3 do if ranges[kind] then kinds[#kinds + 1] = kind end end
    for i = #kinds, 2, -1 do
      local j = whole(1, i)
      kinds[i], kinds[j] = kinds[j], kinds[i]
    end
    for _, kind in ipairs(kinds) do
      args[#args + 1] = kind
      args[#args + 1] = uniform(ranges[kind][1], ranges[kind][2])
    end
    if #args == 0 then return x end
    return core.image_adjust(x, table.unpack(args))
  end)
end

--- T.data.transforms.gray(channels=1) → transform
-- One gray channel, or three equal ones. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.gray()(picture):size(2))  --> 8
function M.gray(channels)
  channels = channels or 1
  if channels ~= 1 and channels ~= 3 then fail("transforms.gray: 1 or 3 channels, got %s", describe(channels)) end
  return transform(("gray(%d)"):format(channels), function(x)
    if not core.is_tensor(x) or x:dim() ~= 3 then fail("gray: an image [C, H, W] is wanted, got %s", describe(x)) end
    local g = x:narrow(1, 1, 1)
    if x:size(1) >= 3 and x:is_floating_point() then -- any range: normalized pictures too
      g = g * 0.2989 + x:narrow(1, 2, 1) * 0.587 + x:narrow(1, 3, 1) * 0.114
    elseif x:size(1) >= 3 then
      g = core.image_adjust(x:narrow(1, 1, 3), 2, 0):narrow(1, 1, 1)
    end
    return channels == 3 and g:expand { 3, g:size(2), g:size(3) } or g
  end)
end

--- T.data.transforms.random_erasing{p=0.5, scale={0.02, 0.33}, ratio={0.3, 3.3}, value=0 or "random"} → transform
-- A random rectangle set to a value with probability p. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.random_erasing()(picture):size(2))  --> 8
function M.random_erasing(opts)
  local who = "transforms.random_erasing"
  opts = options.check(who, opts, { "p", "scale", "ratio", "value" })
  local p, value = opts.p or 0.5, opts.value or 0
  if type(p) ~= "number" or p < 0 or p > 1 then fail("%s: p must be from 0 to 1, got %s", who, describe(p)) end
  if type(value) ~= "number" and value ~= "random" then fail("%s: value must be a number or \"random\"", who) end
  local scale = range(who, "scale", opts.scale or { 0.02, 0.33 }, 0, 1)
  local ratio = range(who, "ratio", opts.ratio or { 0.3, 3.3 }, 1e-3, 1e3)
  return transform(("random_erasing(%g)"):format(p), function(x)
    local height, width = size_of(x, "random_erasing")
    if not chance(p) then return x end
    for _ = 1, 10 do
      local area = height * width * uniform(scale[1], scale[2])
      local aspect = math.exp(uniform(math.log(ratio[1]), math.log(ratio[2])))
      local h, w = math.floor(math.sqrt(area * aspect) + 0.5), math.floor(math.sqrt(area / aspect) + 0.5)
      if h >= 1 and w >= 1 and h < height and w < width then
        local out = x:clone()
        local hole = part(out, whole(1, height - h + 1), whole(1, width - w + 1), h, w)
        if value == "random" then hole:copy_(T.randn(hole:shape(), { device = x:device() })) else hole:fill_(value) end
        return out
      end
    end
    return x
  end)
end

-- ---- one after the other -------------------------------------------------------------------------------------

--- T.data.transforms.compose{f, g, …} → transform
-- Transforms or functions one after the other. Called with an image [C, H, W], u8 or f32.
--   local picture = T.arange(3 * 8 * 6):view(3, 8, 6):to("u8")
--   print(T.data.transforms.compose{ T.data.transforms.resize(4) }(picture):size(2))  --> 5
function M.compose(steps)
  if type(steps) ~= "table" or getmetatable(steps) == M.Transform then
    fail("transforms.compose: a list of transforms is wanted, got %s", describe(steps))
  end
  options.list("transforms.compose", "the steps", steps, "transforms")
  local run, names = {}, {}
  for i, step in ipairs(steps) do
    local meta = type(step) == "table" and getmetatable(step)
    if type(step) ~= "function" and not (meta and meta.__call) then
      fail("transforms.compose: step %d must be a transform or a function, got %s", i, describe(step))
    end
    names[i] = type(step) == "function" and "function" or tostring(step)
    local last = run[#run]
    if type(step) == "table" and step.kind == "normalize" and type(last) == "table" and last.kind == "to_tensor" then
      local scales = {}
      for k, s in ipairs(step.scales) do scales[k] = s / 255 end
      run[#run] = transform("to_tensor() and normalize()", function(x) -- one pass over the picture
        if core.is_tensor(x) and x:is_floating_point() then return step(x) end
        return to_floats(x, scales, step.shifts)
      end)
    else
      run[#run + 1] = step
    end
  end
  return transform("compose { " .. table.concat(names, ", ") .. " }", function(x)
    for _, step in ipairs(run) do x = step(x) end
    return x
  end)
end

return M
