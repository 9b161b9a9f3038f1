-- SPDX-License-Identifier: MIT
-- Opens a file of tensors of any known kind, told by its first bytes, for `perilune peek` and `perilune diff`.
local T = require "perilune"
local core = require "perilune.core"
local recognize = require "perilune.io.recognize"

local M, openers = {}, {}

-- The kind of file that begins with these bytes; nil for an unknown one.
local function kind_of(head, path)
  local kind = recognize.kind_of(head)
  if kind == "gzip" then return "idx" end
  if kind == "json" and not path:find "%.json$" then kind = nil end
  if kind and openers[kind] then return kind end
  if path:find("tfevents", 1, true) or (#head >= 12 and ("<I8"):unpack(head) < 1 << 20
    and core.crc32c and require("perilune.command.events").is_record(head)) then return "events" end
  return nil
end

local KNOWN = "safetensors, PyTorch, GGUF, ONNX, npy, npz, IDX (also gzipped), PNG, JPEG and TensorBoard event files "
  .. "are known"

-- One tensor that is read at once, under a name.
local function single(kind, name, t, more)
  if not t then return nil, name, more end
  return { kind = kind, names = { name }, meta = {},
    describe = function() return t:dtype(), t:shape() end, read = function() return t end }
end

-- Files that need not be read to be described: describe(name) → dtype, shape, how the file stores it, bytes.
local function opened(path)
  local file, message, code = T.open(path)
  if not file then return nil, message, code end
  return { kind = file.kind, names = file.names, meta = file.metadata, kinds = file.kinds,
    describe = function(name)
      local dtype, stored = file:dtype(name)
      return dtype, file:shape(name), stored, file:bytes(name)
    end,
    read = function(name) return file:read(name) end, close = function() file:close() end }
end
openers.safetensors, openers.gguf = opened, opened

-- A folder or an index of shards.
function openers.folder(path, whole)
  local list, message, code = require("perilune.io.shards").find(path)
  if not list then return nil, message, code end
  if list.kind == "safetensors" then return opened(path) end
  if list.wanted or core.list_folder(list.files[1]) then return openers.pt(path, whole) end
  return M.open(list.files[1], whole)
end
openers.json = openers.folder

function openers.npy(path)
  local t, message, code = T.load_npy(path)
  if not t then return nil, message, code end
  return single("npy", "array", t)
end

function openers.npz(path)
  local list, names, code = T.load_npz(path)
  if not list then return nil, names, code end
  return { kind = "npz", names = names, meta = {},
    describe = function(name) return list[name]:dtype(), list[name]:shape() end,
    read = function(name) return list[name] end }
end

-- The tensors of a nested value, by their paths; what is no tensor goes to `meta` as text. Two that have one path,
-- {["a.b"] = x, a = {b = y}} or keys 1 and "1", get other names, as in files of T.save.
local function flatten(v, at, names, tensors, meta, within)
  if core.is_tensor(v) then
    local name, n = at, 1
    while tensors[name] do
      n = n + 1
      name = at .. "#" .. n
    end
    names[#names + 1], tensors[name] = name, v
  elseif type(v) ~= "table" then
    meta[at] = tostring(v)
  elseif not within[v] then -- a table in itself is there once
    within[v] = true
    for key, x in pairs(v) do
      flatten(x, at == "" and tostring(key) or at .. "." .. tostring(key), names, tensors, meta, within)
    end
    within[v] = nil
  end
end

function openers.pt(path, whole)
  local v, left, code = T.load(path, { unsupported = whole and "error" or "skip" })
  if v == nil then return nil, left, code end
  local names, tensors, meta = {}, {}, {}
  flatten(v, "", names, tensors, meta, {})
  if core.is_tensor(v) then names, tensors = { "tensor" }, { tensor = v } end
  return { kind = "PyTorch", names = names, meta = meta, left_out = type(left) == "table" and left or nil,
    describe = function(name) return tensors[name]:dtype(), tensors[name]:shape() end,
    read = function(name) return tensors[name]:detach() end }
end

-- What is read as parameters and buffers of a module, by their names there.
function openers.onnx(path)
  local net, message, code = T.onnx.load(path)
  if not net then return nil, (message:gsub("^onnx%.load: ", "")), code end
  local names, tensors, meta = {}, {}, {}
  for name, t in pairs(net:state_dict()) do names[#names + 1], tensors[name] = name, t end
  for _, of in ipairs { "inputs", "outputs" } do
    for _, v in ipairs(net[of]) do
      local sizes = {}
      for i, size in ipairs(v.shape or {}) do sizes[i] = size and tostring(size) or "?" end
      meta[of:sub(1, -2) .. " " .. v.name] = ("%s[%s]"):format(v.dtype or "?", table.concat(sizes, ","))
    end
  end
  return { kind = "ONNX", names = names, meta = meta,
    describe = function(name) return tensors[name]:dtype(), tensors[name]:shape() end,
    read = function(name) return tensors[name] end }
end

function openers.idx(path)
  local t, message, code = T.load_idx(path)
  if not t then return nil, message, code end
  return single("IDX", "array", t)
end

function openers.image(path)
  local t, message, code = T.load_image(path)
  if not t then return nil, message, code end
  return single("image", "pixels", t)
end

function openers.events(path)
  return { kind = "events", path = path, names = {}, meta = {} }
end

-- A value of metadata as text: lists with their first elements.
function M.text(v)
  if type(v) ~= "table" then return tostring(v) end
  local some = {}
  for i = 1, math.min(#v, 8) do some[i] = type(v[i]) == "string" and ("%q"):format(v[i]) or M.text(v[i]) end
  return ("{%s%s}"):format(table.concat(some, ", "), #v > 8 and (", … %d values"):format(#v) or "")
end

-- → {kind=, names=, meta=, describe(name) → dtype, shape [, type in the file, bytes there], read(name) → tensor or nil,
-- message, code, left_out = {text, …} of what perilune cannot have}; or nil, message, code. `whole`: then an error
function M.open(path, whole)
  if core.list_folder(path) then return openers.folder(path, whole) end
  local f, message = io.open(path, "rb")
  if not f then return nil, message, "io" end
  local head, why = f:read(64)
  f:close()
  if not head then return nil, path .. ": " .. (why or "is empty"), why and "io" or "format" end
  local kind = kind_of(head, path)
  if not kind then return nil, path .. ": unknown format; " .. KNOWN, "format" end
  return openers[kind](path, whole)
end

return M
