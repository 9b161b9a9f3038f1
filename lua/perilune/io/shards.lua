-- SPDX-License-Identifier: MIT
--- Models in several files, as Hugging Face's libraries write them: an index (NAME.safetensors.index.json or
-- NAME.bin.index.json) says which file each tensor is in; or a folder with such an index, or with one file of weights.
-- @module perilune.io.shards
local core = require "perilune.core"
local json = require "perilune.io.json"

local M = {}

local function failure(path, text, ...) return nil, path .. ": " .. text:format(...), "format" end

-- The file of weights in a folder → its path, or nil, message, code.
local function pick(folder)
  local names, message, code = core.list_folder(folder)
  if not names then return nil, message, code end
  local found = {}
  for _, entry in ipairs(names) do
    local name = entry:sub(2)
    if entry:sub(1, 1) ~= "d" then found[name] = true end
  end
  -- A whole file counts before an index, as in transformers: who writes a network over one in shards leaves these.
  for _, name in ipairs { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json" } do
    if found[name] then return folder .. "/" .. name end
  end
  for _, ending in ipairs { "%.safetensors%.index%.json$", "%.safetensors$", "%.gguf$", "%.bin%.index%.json$",
    "%.bin$" } do
    local some = {}
    for name in pairs(found) do if name:find(ending) then some[#some + 1] = name end end
    table.sort(some)
    if #some == 1 then return folder .. "/" .. some[1] end
    if #some > 1 then return failure(folder, "%s and %s could both be meant; name the file", some[1], some[2]) end
  end
  return nil, folder .. ": a folder without weights: model.safetensors, model.safetensors.index.json, "
    .. "pytorch_model.bin or its index is wanted", "io"
end

local function read_index(path)
  local index, message, code = json.read(path)
  if index == nil then return nil, message, code end
  local map = type(index) == "table" and index.weight_map
  if type(map) ~= "table" then return failure(path, "no index of shards: weight_map is missing") end
  local folder, files, seen = path:match "^(.*/)[^/]*$" or "", {}, {}
  local wanted = {}
  for name, file in pairs(map) do
    if type(name) ~= "string" or type(file) ~= "string" then
      return failure(path, "weight_map is no map of names to files")
    end
    if file == "" or file:find "[/\\%z]" or file == "." or file == ".." then
      return failure(path, "'%s' is said to be in '%s'; shards lie beside their index", name, file)
    end
    local full = folder .. file
    if not seen[full] then
      seen[full] = true
      files[#files + 1] = full
    end
    wanted[full] = wanted[full] or {}
    wanted[full][name] = true
  end
  table.sort(files)
  local meta = {}
  for key, v in pairs(type(index.metadata) == "table" and index.metadata or {}) do
    if type(v) ~= "table" then meta[key] = tostring(v) end
  end
  return { files = files, wanted = wanted, path = path, metadata = meta,
    kind = path:find "%.safetensors%.index%.json$" and "safetensors" or "pt" }
end

--- The files of a model. → {files = {path, …}, kind = "safetensors", "pt" or "gguf", and of an index: path, metadata};
-- or nil, message, code
function M.find(path)
  if core.list_folder(path) then
    local file, message, code = pick(path:gsub("(.)/+$", "%1"))
    if not file then return nil, message, code end
    path = file
  end
  if path:find "%.json$" then return read_index(path) end
  return { files = { path }, kind = path:find "%.safetensors$" and "safetensors" or path:find "%.gguf$" and "gguf"
    or "pt", metadata = {} }
end

--- What is wrong with the names in a file of `list`; nil if they are those of the index.
function M.check(list, file, names)
  local wanted = list.wanted and list.wanted[file]
  if not wanted then return nil end
  local have = {}
  for _, name in ipairs(names) do
    have[name] = true
    if not wanted[name] then return ("%s: tensor '%s' is not in the index %s"):format(file, name, list.path) end
  end
  for name in pairs(wanted) do
    if not have[name] then
      return ("%s: tensor '%s', which the index %s promises, is missing"):format(file, name, list.path)
    end
  end
end

return M
