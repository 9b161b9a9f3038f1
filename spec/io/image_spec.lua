-- SPDX-License-Identifier: MIT
-- PNG and JPEG, where the build has the libraries: files of Pillow, ours read back, broken ones.

local T = require "perilune"
local near = require "spec.support.near"
local eq, fails = near.near, near.fails

local fixtures = (os.getenv("PERILUNE_ROOT") or ".") .. "/spec/fixtures/"
local known = require "spec.fixtures.formats"

-- Whether this build reads the format; says the package otherwise.
local function readable(file, package)
  local x, message, code = T.load_image(fixtures .. file)
  if x then return true end
  assert.equal("unsupported", code)
  assert.truthy(message:find(package, 1, true), message)
  return false, message
end

describe("load_image and save_image", function()
  local path
  before_each(function() path = os.tmpname() end)
  after_each(function()
    os.remove(path)
    os.remove(path .. ".png")
    os.remove(path .. ".JPG")
  end)

  it("read what Pillow wrote as PNG", function()
    local ok, why = readable("pixels.png", "libspng-dev")
    if not ok then return pending(why) end
    local x = assert(T.load_image(fixtures .. "pixels.png"))
    assert.equal("u8", x:dtype())
    assert.same({ 4, 5, 7 }, x:shape())
    assert.same(known.pixels, x:reshape(-1):totable())
    eq(assert(T.load_image(fixtures .. "pixels.png", { mode = "rgb" })), x:narrow(1, 1, 3):totable())
    local gray = assert(T.load_image(fixtures .. "pixels.png", { mode = "gray" }))
    assert.same({ 1, 5, 7 }, gray:shape())
    local luma = x[1]:to("f64") * 0.299 + x[2]:to("f64") * 0.587 + x[3]:to("f64") * 0.114
    assert.is_true((gray[1]:to("f64") - luma):abs():max():item() <= 0.51)
    local wide = assert(T.load_image(fixtures .. "gray16.png"))
    assert.same({ 1, 3, 4 }, wide:shape())
    for i = 0, 11 do
      assert.is_true(math.abs(wide:reshape(-1):get(i + 1) - i * 5000 / 257) <= 1)
    end
    local palette = assert(T.load_image(fixtures .. "palette.png"))
    assert.same({ 3, 4, 6 }, palette:shape())
    assert.same({ 255, 0, 10 }, palette:select(3, 5):select(2, 1):totable())
  end)

  it("read what Pillow wrote as JPEG", function()
    local ok, why = readable("photo.jpg", "libturbojpeg0-dev")
    if not ok then return pending(why) end
    local x = assert(T.load_image(fixtures .. "photo.jpg"))
    assert.same({ 3, 24, 32 }, x:shape())
    local want = T.tensor(known.photo, { dtype = "f32" }):view(3, 24, 32)
    assert.is_true((x:to("f32") - want:cpu()):abs():max():item() <= 2)
    assert.same({ 1, 24, 32 }, assert(T.load_image(fixtures .. "photo.jpg", { mode = "gray" })):shape())
  end)

  it("give back what was written", function()
    if not readable("pixels.png", "libspng-dev") then return pending("no PNG in this build") end
    T.manual_seed(1)
    for c = 1, 4 do
      local x = T.randint(0, 255, { c, 6, 9 }, { dtype = "u8" })
      assert.is_true(T.save_image(path .. ".png", x))
      assert.is_true(assert(T.load_image(path .. ".png")):equal(x:cpu()))
    end
    local flat = T.tensor { { 0, 0.5 }, { 1, 2 } }
    assert(T.save_image(path .. ".png", flat))
    assert.same({ 0, 128, 255, 255 }, assert(T.load_image(path .. ".png")):reshape(-1):totable())
    local batch = T.ones(3, 1, 2, 4)
    assert(T.save_image(path .. ".png", batch, { cols = 2, padding = 1 }))
    local sheet = assert(T.load_image(path .. ".png"))
    assert.same({ 1, 7, 11 }, sheet:shape())
    assert.equal(3 * 8 * 255, sheet:long():sum():item())
    assert.equal(0, sheet[{ 1, { 5, 6 }, { 7, 10 } }]:long():sum():item()) -- no fourth picture
    assert.equal(255, sheet:get(1, 5, 2))
    if not readable("photo.jpg", "libturbojpeg0-dev") then return end
    local smooth = (T.arange(32):view(1, 1, 32):expand { 3, 16, 32 } * 7):to("u8")
    assert(T.save_image(path .. ".JPG", smooth, { quality = 100 }))
    local back = assert(T.load_image(path .. ".JPG"))
    assert.is_true((back:to("f32") - smooth:to("f32"):cpu()):abs():max():item() <= 4)
    fails("JPEG has no alpha channel", T.save_image, path .. ".JPG", T.zeros({ 4, 2, 2 }, { dtype = "u8" }))
  end)

  it("refuse what they cannot do", function()
    fails("must end in .png, .jpg or .jpeg", T.save_image, path .. ".bmp", T.zeros(1, 2, 2))
    fails("u8 [C, H, W] or [H, W] is wanted", T.save_image, path .. ".png", T.zeros(2))
    fails("save_image: no pictures", T.save_image, path .. ".png", T.zeros(0, 3, 2, 2))
    fails("u8 [C, H, W] or [H, W] is wanted", T.save_image, path .. ".png", T.zeros({ 5, 2, 2 }))
    fails("quality must be 1 to 100", T.save_image, path .. ".JPG", T.zeros(3, 2, 2), { quality = 0 })
    fails("did you mean 'gray'", T.load_image, path, { mode = "grey" })
    assert.equal("io", select(3, T.load_image(path .. ".none")))
    local x, message, code = T.load_image(fixtures .. "arrays.npz")
    assert.is_nil(x)
    assert.equal("format", code)
    assert.truthy(message:find("neither a PNG nor a JPEG", 1, true))
    if not readable("pixels.png", "libspng-dev") then return end
    x, message = T.load_image(fixtures .. "pixels.png", { max_bytes = 20 })
    assert.is_nil(x)
    assert.truthy(message:find("more than max_bytes = 20", 1, true))
    x, message, code = T.save_image(path .. "/no/x.png", T.zeros(1, 2, 2))
    assert.is_nil(x)
    assert.equal(path .. "/no/x.png: cannot write: Not a directory", message)
    assert.equal("io", code)
  end)

  it("refuse every PNG and JPEG that ends early", function()
    for file, package in pairs { ["pixels.png"] = "libspng-dev", ["palette.png"] = "libspng-dev",
      ["gray16.png"] = "libspng-dev", ["photo.jpg"] = "turbojpeg" } do
      if readable(file, package) then
        local bytes = require("spec.support.mutate").read(fixtures .. file)
        local last = package == "turbojpeg" and 1 or 5 -- the checksum of PNG's empty last chunk is not read
        for n = 0, #bytes - last do
          local f = assert(io.open(path, "wb"))
          f:write(bytes:sub(1, n))
          f:close()
          local x, message, code = T.load_image(path)
          assert.is_nil(x, ("%d of %d bytes of %s"):format(n, #bytes, file))
          assert.truthy(code == "format" or code == "unsupported", message)
        end
      end
    end
  end)

  it("take bytes too many behind a JPEG's pixels, and nowhere else", function()
    if not readable("photo.jpg", "turbojpeg") then return end
    local bytes = require("spec.support.mutate").read(fixtures .. "photo.jpg")
    local function load(with)
      local f = assert(io.open(path, "wb"))
      f:write(with)
      f:close()
      return T.load_image(path)
    end
    local want = assert(load(bytes))
    assert.equal("\xFF\xD9", bytes:sub(-2))
    for _, junk in ipairs { "\0", "abc", ("\0"):rep(300) } do
      assert.is_true(assert(load(bytes:sub(1, -3) .. junk .. "\xFF\xD9")):equal(want))
      local at = assert(bytes:find("\xFF\xDA", 1, true)) -- before the scan
      local x, message, code = load(bytes:sub(1, at - 1) .. junk .. bytes:sub(at))
      assert.same({ nil, "format" }, { x, code })
      assert.truthy(message:find("extraneous bytes before marker 0xda", 1, true), message)
    end
  end)

  it("name JPEGs of four inks, which are not read", function()
    if not readable("photo.jpg", "turbojpeg") then return end
    local function bytes(hex)
      return (hex:gsub("%s", ""):gsub("..", function(h) return string.char(tonumber(h, 16)) end))
    end
    local f = assert(io.open(path, "wb"))
    f:write(bytes "ffd8 ffee000e 41646f626500640000000000 ffdb004300", ("\1"):rep(64),
      bytes "ffc000140800010001 04431100 4d1100 591100 4b1100 ffda000e04 4300 4d00 5900 4b00 003f00 00 ffd9")
    f:close()
    local x, message, code = T.load_image(path)
    assert.is_nil(x)
    assert.truthy(message:find("a CMYK JPEG", 1, true), message)
    assert.equal("unsupported", code)
  end)

  it("have limits of size that are said", function()
    fails("1 to 65535 each way", T.core.png, T.zeros(1, 65536, { dtype = "u8" }))
    fails("1 to 4 channels", T.core.png, T.zeros(1, 1, 5, { dtype = "u8" }))
    fails("u8[H,W] or u8[H,W,C] is wanted", T.core.png, T.zeros(2, 2))
    fails("sizes must be 1 to 16777216", T.core.image_resize, T.zeros(1, 2, 2, { dtype = "u8" }), 1 << 25, 1, 0)
  end)
end)
