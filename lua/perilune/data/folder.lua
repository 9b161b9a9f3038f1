-- SPDX-License-Identifier: MIT
--- Images in folders, one folder a class.
-- @module perilune.data.folder
local core = require "perilune.core"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local endings = { png = true, jpg = true, jpeg = true }
local others = { bmp = true, gif = true, tif = true, tiff = true, webp = true, ppm = true, pgm = true, avif = true,
  heic = true } -- pictures that nobody reads here
local DEEPEST = 32 -- folders in folders: links may go round
local spec = options.spec("data.image_folder", { { "root", "string" }, { "transform", "callable", optional = true },
  { "mode", { "rgb", "gray", "rgba", "unchanged" }, "rgb" } })
local channels = { unchanged = 0, gray = 1, rgb = 3, rgba = 4 }

-- The names of one kind ("d" or "f") in a folder, sorted; or nil, message, code.
local function names(path, kind)
  local all, message, code = core.list_folder(path)
  if not all then return nil, message, code end
  local out = {}
  for _, entry in ipairs(all) do
    if entry:sub(1, 1) == kind and entry:sub(2, 2) ~= "." then out[#out + 1] = entry:sub(2) end
  end
  table.sort(out)
  return out
end

-- Appends the pictures in a folder and in those below it to a list, by the folders' names and then by their own.
-- → true; or nil, message, code
local function walk(path, found, depth)
  if depth > DEEPEST then return nil, ("%s: folders in folders, deeper than %d"):format(path, DEEPEST), "format" end
  local files, message, code = names(path, "f")
  if not files then return nil, message, code end
  for _, file in ipairs(files) do
    local ending = (file:match("%.(%w+)$") or ""):lower()
    if others[ending] then
      return nil, ("%s/%s: only PNG and JPEG are read; convert it, or move it away"):format(path, file), "unsupported"
    end
    if endings[ending] then found[#found + 1] = path .. "/" .. file end
  end
  local below
  below, message, code = names(path, "d")
  if not below then return nil, message, code end
  for _, folder in ipairs(below) do
    local ok
    ok, message, code = walk(path .. "/" .. folder, found, depth + 1)
    if not ok then return nil, message, code end
  end
  return true
end

local function get(self, i)
  local path = self.paths[i]
  local x, message = core.load_image(path, self.channels)
  if not x then options.fail("data.image_folder: sample %d: %s", i, message) end
  return x, self.labels[i]
end

-- `data.image_folder{root, transform=, mode="rgb"}`: every .png, .jpg and .jpeg file in the folders below root, however
-- deep, sorted; a picture of another kind (.webp, .gif, …) is an error, hidden files are passed over. Sample i is
-- {image, class}: the image u8 [C, H, W] or what transform makes of it, classes from 1 in the order of the folders'
-- names. Fields `paths labels classes`. A file that cannot be read raises when its sample is wanted.
-- @treturn dataset; or nil, message, code when the folder cannot be read or holds no images
--- T.data.image_folder{root, transform=, mode="rgb"} → dataset of {image, class}, or nil, message, code
-- PNG and JPEG files in folders, one folder a class with all that is below it; pictures of other kinds are refused.
-- Fields paths, labels, classes. transform gets u8 [C, H, W]; see data.transforms.compose.
--   print((T.data.image_folder("/nowhere")))  --> nil
local function image_folder(...)
  local a = options.read(spec, ...)
  local root = a.root
  local classes, message, code = names(root, "d")
  if not classes then return nil, message, code end
  local self = { paths = {}, labels = {}, classes = classes, transform = a.transform, channels = channels[a.mode] }
  for k, class in ipairs(classes) do
    local ok
    ok, message, code = walk(root .. "/" .. class, self.paths, 1)
    if not ok then return nil, message, code end
    for i = #self.labels + 1, #self.paths do self.labels[i] = k end
  end
  if #self.paths == 0 then return nil, root .. ": no folders with .png, .jpg or .jpeg files", "format" end
  self.len, self.get = #self.paths, get
  return dataset.Dataset(self)
end

return { image_folder = image_folder }
