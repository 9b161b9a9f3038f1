-- SPDX-License-Identifier: MIT
-- Transforms of images: against Pillow and torchvision (spec/fixtures/transforms.lua), plain formulas, wrong calls.

local T = require "perilune"
local near = require "spec.support.near"
local known = require "spec.fixtures.transforms"
local transforms = T.data.transforms
local fails = near.fails

-- The picture of make_transforms.py, on interleaved memory or as planes.
local function picture(planes)
  local list = {}
  for y = 0, 12 do
    for x = 0, 16 do
      for _, v in ipairs { x * 15 % 256, (y * 19 + x) % 256, x * y * 3 % 256 } do list[#list + 1] = v end
    end
  end
  local t = T.tensor(list, { dtype = "u8" }):view(13, 17, 3):permute { 3, 1, 2 }
  return planes and t:contiguous() or t
end

local function off(x, list)
  return (x:reshape(-1):to("f32") - T.tensor(list, { dtype = "f32" })):abs():max():item()
end

describe("transforms", function()
  it("resize as Pillow does, whatever the layout", function()
    for _, planes in ipairs { false, true } do
      local x = picture(planes)
      assert.is_true(off(transforms.resize { 6, 8 } (x), known.half) <= 1)
      assert.is_true(off(transforms.resize({ 6, 8 }, { mode = "bicubic" })(x), known.cubic) <= 1)
      assert.is_true(off(transforms.resize { 15, 20 } (x), known.bigger) <= 1)
      local hard = x:gt(127):to("u8") * 255 -- what bicubic throws beyond both ends is cut between the directions
      assert.is_true(off(transforms.resize({ 20, 26 }, { mode = "bicubic" })(hard), known.hard_bigger) <= 2)
      assert.is_true(off(transforms.resize({ 7, 9 }, { mode = "bicubic" })(hard), known.hard_smaller) <= 2)
      local floats = transforms.resize { 6, 8 } (transforms.to_tensor()(x))
      assert.is_true(off(floats * 255, known.half) <= 1)
    end
    local part = transforms.compose { transforms.crop(2, 3, 10, 11), transforms.resize(5) }
    assert.is_true(part(picture()):equal(part(picture(true))))
    assert.same({ 3, 5, 5 }, part(picture()):shape())
    assert.same({ 3, 26, 34 }, transforms.resize(26)(picture()):shape())
    local near_ = transforms.resize({ 26, 34 }, { mode = "nearest" })(picture())
    assert.is_true(near_:equal(picture():repeat_interleave(2, 2):repeat_interleave(2, 3)))
    local x = picture()
    assert.equal(x, transforms.resize { 13, 17 } (x))
    for c = 1, 4 do
      local y = T.full({ c, 9, 7 }, 200, { dtype = "u8" })
      assert.is_true(transforms.resize({ 4, 20 }, { mode = "bicubic" })(y):eq(200):all():item())
    end
  end)

  it("resize without antialias is nn.F.interpolate", function()
    local x = transforms.to_tensor()(picture())
    for mode, there in pairs { bilinear = "bilinear", bicubic = "bicubic", nearest = "nearest-exact" } do
      for _, size in ipairs { { 6, 8 }, { 20, 31 }, { 3, 40 }, { 1, 2 } } do
        local got = transforms.resize(size, { mode = mode, antialias = false })(x)
        local want = T.nn.F.interpolate(x:unsqueeze(1), { size = size, mode = there })[1]
        assert.is_true((got - want):abs():max():item() < 1e-5, mode)
        local bytes = transforms.resize(size, { mode = mode, antialias = false })(picture())
        assert.is_true((bytes:float() - (want * 255):clamp(0, 255)):abs():max():item() <= 1.01, mode)
      end
    end
  end)

  it("change colours as torchvision does", function()
    for k, name in ipairs { "brightness", "contrast", "saturation", "hue" } do
      local factor = ({ 1.3, 0.6, 1.7, 0.2 })[k]
      local x = picture()
      local got = transforms.color_jitter { [name] = { factor, factor } } (x)
      local wrong = (got:reshape(-1):to("f32") - T.tensor(known[name], { dtype = "f32" })):abs()
      assert.is_true(wrong:max():item() <= 1, name)
      assert.is_true(wrong:gt(0):sum():item() <= 30, name) -- sums in another order cut to the next integer
      assert.is_true(x:equal(picture()))
    end
    local gray = transforms.gray()(picture())
    assert.same({ 1, 13, 17 }, gray:shape())
    assert.same({ 3, 13, 17 }, transforms.gray(3)(picture()):shape())
    local wide = T.randn(3, 4, 5) -- normalized pictures are not cut to 0 … 1
    local want = wide[1] * 0.2989 + wide[2] * 0.587 + wide[3] * 0.114
    assert.is_true(transforms.gray()(wide)[1]:allclose(want, { atol = 1e-6 }))
    for channels = 1, 4 do
      for _, x in ipairs { T.rand(channels, 4, 5), T.randint(0, 255, { channels, 4, 5 }):to("u8") } do
        assert.same({ 1, 4, 5 }, transforms.gray()(x):shape())
        assert.same({ 3, 4, 5 }, transforms.gray(3)(x):shape())
        if channels < 3 then assert.is_true(transforms.gray()(x)[1]:equal(x[1])) end
      end
    end
    local jitter = transforms.color_jitter { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }
    local one = jitter(T.rand(1, 5, 5))
    assert.same({ 1, 5, 5 }, one:shape())
    assert.is_true(one:ge(0):all():item() and one:le(1):all():item())
  end)

  it("cut, flip and pad", function()
    local x = picture()
    assert.is_true(transforms.crop(2, 3, 4, 5)(x):equal(x[{ {}, { 2, 5 }, { 3, 7 } }]))
    assert.is_true(transforms.center_crop { 5, 4 } (x):equal(x[{ {}, { 5, 9 }, { 7, 10 } }]))
    assert.same({ 3, 20, 5 }, transforms.center_crop { 20, 5 } (x):shape())
    for _, y in ipairs { x, picture(true), transforms.to_tensor()(x), x:to("i32") } do
      assert.is_true(transforms.random_horizontal_flip(1)(y):equal(y:flip { 3 }))
      assert.is_true(transforms.random_vertical_flip(1)(y):equal(y:flip { 2 }))
      assert.equal(y, transforms.random_horizontal_flip(0)(y))
    end
    local p = transforms.pad({ 1, 2, 3, 4 }, 9)(x)
    assert.same({ 3, 19, 21 }, p:shape())
    assert.is_true(p[{ {}, { 3, 15 }, { 2, 18 } }]:equal(x))
    assert.equal(9, p:get(1, 1, 1))
    T.manual_seed(2)
    local seen = {}
    for _ = 1, 200 do
      local y = transforms.random_crop({ 12, 17 }, { padding = { 0, 1 } })(x)
      assert.same({ 3, 12, 17 }, y:shape())
      seen[table.concat(y:reshape(-1):totable(), ",")] = true
    end
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.equal(4, n) -- all places
    for _ = 1, 50 do
      assert.same({ 3, 7, 7 }, transforms.random_resized_crop(7)(x):shape())
      assert.same({ 3, 7, 7 }, transforms.random_resized_crop(7, { ratio = { 5, 6 }, scale = { 1, 1 } })(x):shape())
    end
  end)

  it("make floats and normalize them in one pass or two", function()
    local x = picture()
    local mean, std = { 0.5, 0.4, 0.3 }, { 0.2, 0.25, 0.5 }
    local want = (x:to("f32") / 255 - T.tensor(mean):view(3, 1, 1)) / T.tensor(std):view(3, 1, 1)
    local both = transforms.compose { transforms.to_tensor(), transforms.normalize(mean, std) }
    assert.is_true(both(x):allclose(want, { atol = 1e-5 }))
    assert.is_true(both(picture(true)):equal(both(x)))
    assert.is_true(both(x:to("f32") / 255):allclose(want, { atol = 1e-5 }))
    assert.is_true(transforms.normalize(0.5, 0.5)(T.ones(2, 1, 1)):equal(T.ones(2, 1, 1)))
    assert.equal("compose { to_tensor(), normalize(), function }",
      tostring(transforms.compose { transforms.to_tensor(), transforms.normalize(0, 1), function(y) return y end }))
  end)

  it("erase rectangles", function()
    T.manual_seed(1)
    local x = T.ones(3, 20, 20)
    local erase = transforms.random_erasing { p = 1, value = 7 }
    for _ = 1, 20 do
      local hole = erase(x):eq(7)
      local share = hole:to("f32"):mean():item()
      assert.is_true(share > 0.01 and share < 0.4, share)
      assert.is_true(hole[1]:equal(hole[3]))
    end
    assert.is_true(x:equal(T.ones(3, 20, 20)))
    assert.equal(x, transforms.random_erasing { p = 0 } (x))
    assert.is_false(transforms.random_erasing { p = 1, value = "random" } (x):equal(x))
  end)

  it("do the same for the same seed", function()
    local t = transforms.compose { transforms.random_resized_crop(9), transforms.random_horizontal_flip(),
      transforms.random_vertical_flip(), transforms.color_jitter { hue = 0.2, saturation = 0.5 },
      transforms.to_tensor(), transforms.random_erasing { value = "random" } }
    T.manual_seed(7)
    local a, b = t(picture()), t(picture())
    T.manual_seed(7)
    assert.is_true(a:equal(t(picture())))
    assert.is_true(b:equal(t(picture())))
    assert.is_false(a:equal(b))
  end)

  it("refuse wrong calls", function()
    fails("u8 or f32 [C, H, W] with C 1 to 4, got f32[5,2,2]", transforms.resize(3), T.ones(5, 2, 2))
    fails("an image [C, H, W] is wanted, got nil", transforms.resize(3), nil)
    fails("size must be a positive integer", transforms.resize, 0)
    fails("did you mean 'bilinear'", transforms.resize, 3, { mode = "biliner" })
    fails("rows 1 to 14 and columns 1 to 2 of an image of 13 x 17", transforms.crop(1, 1, 14, 2), picture())
    fails("14 x 14 pixels of an image of 13 x 17; pad it first", transforms.random_crop(14), picture())
    fails("put to_tensor() before it", transforms.normalize(0, 1), picture())
    fails("2 values for an image of 3 channels", transforms.normalize({ 1, 2 }, 1), T.ones(3, 2, 2))
    fails("3 means and 2 stds", transforms.normalize, { 1, 2, 3 }, { 1, 2 })
    fails("std must not be 0", transforms.normalize, 0, 0)
    fails("hue must be {low, high} within -0.5 and 0.5", transforms.color_jitter, { hue = { -1, 1 } })
    fails("hue must be {low, high} within -0.5 and 0.5", transforms.color_jitter, { hue = 0.6 })
    fails("step 2 must be a transform or a function", transforms.compose, { transforms.gray(), 3 })
    fails("p must be a number from 0 to 1", transforms.random_horizontal_flip, 2)
    fails("p must be from 0 to 1", transforms.random_erasing, { p = -1 })
  end)
end)
