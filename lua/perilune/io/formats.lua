-- SPDX-License-Identifier: MIT
--- Files of other programs: NumPy's npy and npz, PNG and JPEG images. What the environment refuses (a missing,
-- broken or unsupported file) comes back as nil, message, code.
-- @module perilune.io.formats
local T = require "perilune"
local core = require "perilune.core"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local files = {}

local function check_path(who, path, other)
  if type(path) ~= "string" then
    fail("%s: the path must be a string, got %s%s", who, describe(path),
      type(other) == "string" and ("; the path comes first: T.%s(path, …)"):format(who) or "")
  end
end

local function max_bytes(who, opts)
  local n = opts.max_bytes
  if n ~= nil and not (options.integer(n) and n >= 0) then
    fail("%s: max_bytes must be a non-negative integer, got %s", who, describe(n))
  end
  return n
end

-- Reads an npy file. An array in Fortran order comes as a view with strides of its own; u16 and u32 become i32
-- and i64.
-- @treturn Tensor or nil, message, code
--- T.load_npy(path, {max_bytes=}) → tensor, or nil, message, code
-- Reads NumPy's npy. Fortran order gives a view with strides of its own; u16 and u32 become i32 and i64. Objects,
-- structures and complex numbers are refused.
--   local path = os.tmpname()
--   assert(T.save_npy(path, T.arange(3)))
--   print(T.load_npy(path))  --> {1, 2, 3}  -- i64[3] cpu
--   os.remove(path)
function files.load_npy(path, opts)
  opts = options.check("load_npy", opts, { "max_bytes" })
  check_path("load_npy", path)
  return core.load_npy(path, max_bytes("load_npy", opts))
end

--- T.save_npy(path, x) → true, or nil, message, code
-- Writes NumPy's npy, as safely as T.save. Every dtype but bf16.
--   local path = os.tmpname()
--   assert(T.save_npy(path, T.arange(3)))
--   print(T.load_npy(path))  --> {1, 2, 3}  -- i64[3] cpu
--   os.remove(path)
function files.save_npy(path, t)
  check_path("save_npy", path, t)
  if not core.is_tensor(t) then fail("save_npy: a tensor is wanted, got %s", describe(t)) end
  return core.save_npy(path, t)
end

-- Reads all arrays of an npz archive.
-- @treturn {name=Tensor} and the names in the file's order; or nil, message, code
--- T.load_npz(path, {max_bytes=4 GiB}) → {name = tensor}, names; or nil, message, code
-- Reads all arrays of an npz archive, stored or deflated; names are in the file's order.
--   print((T.load_npz("/nowhere/arrays.npz")))  --> nil
function files.load_npz(path, opts)
  opts = options.check("load_npz", opts, { "max_bytes" })
  check_path("load_npz", path)
  return core.load_npz(path, max_bytes("load_npz", opts))
end

-- Writes an npz archive, as np.savez does.
--- T.save_npz(path, {name = x}) → true, or nil, message, code
-- Writes tensors as an npz archive, uncompressed, as safely as T.save. Every dtype but bf16.
--   local path = os.tmpname()
--   assert(T.save_npz(path, { x = T.arange(3) }))
--   print(assert(T.load_npz(path)).x)  --> {1, 2, 3}  -- i64[3] cpu
--   os.remove(path)
function files.save_npz(path, t)
  check_path("save_npz", path, t)
  if type(t) ~= "table" then fail("save_npz: a table of tensors is wanted, got %s", describe(t)) end
  local names, list = {}, {}
  for name, x in pairs(t) do
    if type(name) ~= "string" or not core.is_tensor(x) then
      fail("save_npz: a table of tensors by name is wanted; it has %s under %s", describe(x), describe(name))
    end
    names[#names + 1] = name
  end
  if getmetatable(t) == nil then table.sort(names) end -- no order of its own
  for i, name in ipairs(names) do list[i] = t[name] end
  return core.save_npz(path, names, list)
end

local channels = { unchanged = 0, gray = 1, rgb = 3, rgba = 4 }

-- Reads a PNG or JPEG file as u8 [C, H, W].
-- @tparam[opt] table opts `mode="unchanged"`, "gray", "rgb" or "rgba"; `max_bytes`: of pixels, 512 MiB
-- @treturn Tensor or nil, message, code
--- T.load_image(path, {mode="unchanged", max_bytes=512 MiB}) → u8 [C, H, W], or nil, message, code
-- Reads a PNG or JPEG file, whatever its name. mode: unchanged, gray, rgb or rgba. Needs libspng or libturbojpeg when
-- perilune is built; the message says so.
--   print((T.load_image("/nowhere/picture.png")))  --> nil
function files.load_image(path, opts)
  opts = options.check("load_image", opts, { "mode", "max_bytes" })
  check_path("load_image", path)
  local c = channels[opts.mode or "unchanged"]
  if not c then fail("load_image: %s", options.unknown("mode", opts.mode, { "unchanged", "gray", "rgb", "rgba" })) end
  return core.load_image(path, c, max_bytes("load_image", opts))
end

-- [N, C, H, W] as one picture with `cols` in a row and `padding` black pixels around each.
local function grid_of(t, cols, padding)
  local n, c, h, w = table.unpack(t:shape())
  if n == 0 then fail("save_image: no pictures in %s", describe(t)) end
  cols = math.min(cols, n)
  local rows = (n + cols - 1) // cols
  local sheet = T.zeros({ c, padding + rows * (h + padding), padding + cols * (w + padding) },
    { dtype = t:dtype(), device = t:device() })
  for i = 0, n - 1 do
    sheet:narrow(2, padding + i // cols * (h + padding) + 1, h):narrow(3, padding + i % cols * (w + padding) + 1, w)
      :copy_(t[i + 1])
  end
  return sheet
end

local function whole(opts, name, otherwise, least)
  local v = opts[name]
  if v == nil then return otherwise end
  v = options.integer(v)
  if not v or least and v < least then
    fail("save_image: %s must be an integer%s, got %s", name, least and " from " .. least or "", describe(opts[name]))
  end
  return v
end

-- Writes u8 [C, H, W] or [H, W], or floats from 0 to 1, as PNG or JPEG by the ending of the name; a batch,
-- [N, C, H, W], as one sheet of pictures.
-- @tparam[opt] table opts `quality=90` of a JPEG; `cols=8`, `padding=2` of a sheet
--- T.save_image(path, x, {quality=90, cols=8, padding=2}) → true, or nil, message, code
-- Writes u8 [C, H, W] or [H, W], or floats from 0 to 1, as PNG or JPEG by the ending of the name. A batch, [N, C, H,
-- W], becomes one sheet with cols pictures in a row and padding black pixels around each.
--   print((T.save_image("/nowhere/picture.png", T.zeros(3, 8, 8))))  --> nil
function files.save_image(path, t, opts)
  check_path("save_image", path, t)
  if not core.is_tensor(t) then fail("save_image: a tensor is wanted, got %s", describe(t)) end
  opts = options.check("save_image", opts, { "quality", "cols", "padding" })
  local quality, cols = whole(opts, "quality", 90), whole(opts, "cols", 8, 1)
  local padding = whole(opts, "padding", 2, 0)
  t = t:detach()
  if t:is_floating_point() then t = (t:to("f32") * 255 + 0.5):clamp(0, 255):to("u8") end
  if t:dim() == 4 then t = grid_of(t, cols, padding) end
  return core.save_image(path, t, quality)
end

return files
