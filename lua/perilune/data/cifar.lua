-- SPDX-License-Identifier: MIT
--- CIFAR-10 from local files in its binary format (Krizhevsky 2009): records of one byte of label and 3072 of pixels,
-- the planes of red, green and blue, 32 x 32 each.
-- @module perilune.data.cifar
local T = require "perilune"
local core = require "perilune.core"
local dataset = require "perilune.data.dataset"
local options = require "perilune.options"

local RECORD = 1 + 3 * 32 * 32
local parts = { train = { "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
  "data_batch_5.bin" }, test = { "test_batch.bin" } }
local classes = { "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck" }

local spec = options.spec("data.cifar10", { { "split", { "train", "test" }, "train" },
  { "root", "string", optional = true }, { "dtype", { "f32", "u8" }, "f32" },
  { "transform", "callable", optional = true } })

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

local function folders(root)
  local bases, out = { root }, {}
  local base = os.getenv("PERILUNE_DATA")
  if not root and base and base ~= "" then bases = { base .. "/cifar10", base .. "/cifar-10", base } end
  if not root then bases[#bases + 1] = "/usr/share/datasets/cifar10" end
  for _, dir in ipairs(bases) do
    out[#out + 1] = dir
    out[#out + 1] = dir .. "/cifar-10-batches-bin"
  end
  return out
end

--- T.data.cifar10{split="train", root=, dtype="f32", transform=} → dataset, or nil, message, code
-- CIFAR-10 from local files in the binary format. Images [N, 3, 32, 32] in 0 … 1 (or u8), labels 1 … 10; fields images,
-- labels, classes. transform gets one image [3, 32, 32]; see data.transforms.compose.
--   print((T.data.cifar10 { root = "/nowhere" }))  --> nil
local function cifar10(...)
  local a = options.read(spec, ...)
  local dirs, dir = folders(a.root), nil
  for _, d in ipairs(dirs) do
    if not dir and exists(d .. "/" .. parts[a.split][1]) then dir = d end
  end
  if not dir then
    return nil, ("CIFAR-10: %s is not in %s; unpack cifar-10-binary.tar.gz there, or say root = \"folder\" or "
      .. "PERILUNE_DATA"):format(parts[a.split][1], table.concat(dirs, " or ")), "io"
  end
  local pieces = {}
  for i, name in ipairs(parts[a.split]) do
    local path = dir .. "/" .. name
    local bytes, message, code = core.load_bytes(path)
    if not bytes then return nil, message, code end
    if bytes:numel() == 0 or bytes:numel() % RECORD ~= 0 then
      return nil, ("%s: %d bytes are no records of %d bytes"):format(path, bytes:numel(), RECORD), "format"
    end
    pieces[i] = bytes:view(-1, RECORD)
    if pieces[i]:select(2, 1):max():item() > 9 then return nil, path .. ": a label is not in 0..9", "format" end
  end
  local all = #pieces == 1 and pieces[1] or T.cat(pieces, 1)
  local x = all:narrow(2, 2, RECORD - 1):reshape(-1, 3, 32, 32)
  if a.dtype == "f32" then x = x:to("f32"):div_(255) end
  local ds = dataset.TensorDataset(x, all:select(2, 1):to("i64"):add_(1))
  ds.images, ds.labels, ds.classes = ds.tensors[1], ds.tensors[2], classes
  return dataset.transformed(ds, a.transform)
end

return { cifar10 = cifar10 }
