-- SPDX-License-Identifier: MIT
-- Pictures per second of a DataLoader over a folder of images: decoding, random_resized_crop(224), flip, normalizing,
-- batches of 32.
--   perilune run bench/loader.lua -- FOLDER [--workers 2] [--passes 4] [--json FILE]
-- One JSON object a pass. The first pass starts the workers.

local T = require "perilune"

local options = { workers = 2, passes = 4 }
do
  local i = 1
  while arg[i] do
    local name = arg[i]:match("^%-%-(%a+)$")
    if name == "workers" or name == "passes" then
      i = i + 1
      options[name] = math.tointeger(tonumber(arg[i])) or error("--" .. name .. " needs an integer", 0)
    elseif name == "json" and arg[i + 1] then
      i = i + 1
      options.json = arg[i]
    elseif not name and not options.folder then
      options.folder = arg[i]
    else
      error("unknown argument " .. arg[i] .. "; allowed: FOLDER --workers N --passes N --json FILE", 0)
    end
    i = i + 1
  end
  if not options.folder then error("a folder of images in folders is wanted, one folder a class", 0) end
end

local t = T.data.transforms
local pictures = assert(T.data.image_folder { options.folder, transform = t.compose {
  t.random_resized_crop(224), t.random_horizontal_flip(), t.to_tensor(),
  t.normalize({ 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }) } })
local loader <close> = T.data.DataLoader(pictures, { batch_size = 32, shuffle = true, workers = options.workers })
local out = options.json and assert(io.open(options.json, "a"))

for pass = 1, options.passes do
  local begin, n = T.core.clock(), 0
  for _, classes in loader do n = n + classes:numel() end
  local line = ('{"bench": "loader", "workers": %d, "pass": %d, "pictures": %d, "throughput": %.1f, '
    .. '"unit": "pictures/s"}'):format(options.workers, pass, n, n / (T.core.clock() - begin))
  print(line)
  if out then out:write(line, "\n") end
end
if out then out:close() end
