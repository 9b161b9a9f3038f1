-- SPDX-License-Identifier: MIT
--- MNIST and Fashion-MNIST from local files (gzipped IDX or plain).
-- @module perilune.data.mnist
local core = require "perilune.core"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local names = {
  fashion_mnist = { title = "Fashion-MNIST", roots = { "/usr/share/datasets/fashion-mnist" },
    hint = "install the Debian package dataset-fashion-mnist",
    classes = { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
      "Ankle boot" } },
  mnist = { title = "MNIST", roots = { "/usr/share/datasets/mnist" },
    hint = "put the four idx files of MNIST there",
    classes = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" } },
}
local stems = { train = "train", test = "t10k" }

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

-- Folders to look in, best first.
local function folders(kind, root)
  if root then return { root } end
  local list, base = {}, os.getenv("PERILUNE_DATA")
  if base and base ~= "" then
    for _, sub in ipairs { "/" .. kind, "/" .. kind:gsub("_", "-"), "" } do list[#list + 1] = base .. sub end
  end
  for _, path in ipairs(names[kind].roots) do list[#list + 1] = path end
  return list
end

local function find(dirs, file)
  for _, dir in ipairs(dirs) do
    for _, ending in ipairs { ".gz", "" } do
      local path = dir .. "/" .. file .. ending
      if exists(path) then return path end
    end
  end
end

--- T.data.fashion_mnist{split="train", root=, dtype="f32", transform=} → dataset, or nil, message, code
-- Fashion-MNIST: clothes in 28 x 28 pixels, from local IDX files. Images [N, 1, 28, 28] in 0 … 1 (or u8), labels 1 …
-- 10; fields images, labels, classes. transform gets one image [1, 28, 28]; see data.transforms.compose.
--   print((T.data.fashion_mnist { root = "/nowhere" }))  --> nil

--- T.data.mnist{split="train", root=, dtype="f32", transform=} → dataset, or nil, message, code
-- MNIST: digits in 28 x 28 pixels, from local IDX files. Images [N, 1, 28, 28] in 0 … 1 (or u8), labels 1 … 10; fields
-- images, labels, classes. transform gets one image [1, 28, 28]; see data.transforms.compose.
--   print((T.data.mnist { root = "/nowhere" }))  --> nil
local function make(kind)
  local info = names[kind]
  local spec = options.spec("data." .. kind, {
    { "split", { "train", "test" }, "train" }, { "root", "string", optional = true },
    { "dtype", { "f32", "u8" }, "f32" }, { "transform", "callable", optional = true } })
  return function(...)
    local a = options.read(spec, ...)
    local dirs, stem = folders(kind, a.root), stems[a.split]
    local image_path = find(dirs, stem .. "-images-idx3-ubyte")
    local label_path = find(dirs, stem .. "-labels-idx1-ubyte")
    if not image_path or not label_path then
      local missing = stem .. (image_path and "-labels-idx1-ubyte" or "-images-idx3-ubyte")
      return nil,
        ("%s: %s(.gz) is not in %s; %s, or say root = \"folder\" or PERILUNE_DATA"):format(info.title,
        missing, table.concat(dirs, " or "), info.hint), "io"
    end
    local x, message, code = core.load_idx(image_path)
    if not x then return nil, message, code end
    local y
    y, message, code = core.load_idx(label_path)
    if not y then return nil, message, code end
    if x:dtype() ~= "u8" or x:dim() ~= 3 then return nil, image_path .. ": these are not images", "format" end
    if y:dtype() ~= "u8" or y:dim() ~= 1 then return nil, label_path .. ": these are not labels", "format" end
    if x:size(1) ~= y:size(1) then
      return nil, ("%s has %d images, %s has %d labels"):format(image_path, x:size(1), label_path,
        y:size(1)), "format"
    end
    if y:numel() > 0 and y:max():item() >= #info.classes then
      return nil, label_path .. ": a label is not in 0..9", "format"
    end
    x = x:unsqueeze(2)
    if a.dtype == "f32" then x = x:to("f32"):div_(255) end
    local ds = dataset.TensorDataset(x, y:to("i64"):add_(1))
    ds.images, ds.labels, ds.classes = ds.tensors[1], ds.tensors[2], info.classes
    return dataset.transformed(ds, a.transform)
  end
end

return {
  --- Fashion-MNIST (Xiao et al. 2017). `data.fashion_mnist{split="train", root=, dtype="f32"}` → a
  -- TensorDataset of
  -- images [N, 1, 28, 28], f32 in [0, 1] or u8, and labels i64 [N] from 1 to 10, with fields `images labels
  -- classes`; or nil, message, code when files are missing or broken.
  fashion_mnist = make "fashion_mnist",
  --- MNIST (LeCun et al. 1998), the same way; class k is the digit k - 1.
  mnist = make "mnist",
}
