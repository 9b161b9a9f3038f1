-- SPDX-License-Identifier: MIT
-- Opens a file of tensors of any known kind, told by its first bytes, for `perilune peek` and `perilune diff`.
local T = require "perilune"
local core = require "perilune.core"

local M = {}

local IDX_TYPES = { [0x08] = true, [0x09] = true, [0x0B] = true, [0x0C] = true, [0x0D] = true, [0x0E] = true }

-- The kind of file that begins with these bytes; nil for an unknown one.
local function kind_of(head, path)
  if head:sub(1, 6) == "\x93NUMPY" then return "npy" end
  if head:sub(1, 4) == "PK\3\4" or head:sub(1, 4) == "PK\5\6" then return "npz" end
  if head:sub(1, 8) == "\x89PNG\r\n\26\n" or head:sub(1, 3) == "\xFF\xD8\xFF" then return "image" end
  if head:sub(1, 2) == "\x1F\x8B" then return "idx" end -- gzipped
  if #head >= 4 and head:sub(1, 2) == "\0\0" and IDX_TYPES[head:byte(3)] then return "idx" end
  if #head >= 9 and head:sub(9, 9) == "{" then return "safetensors" end
  if path:find("tfevents", 1, true) or (#head >= 12 and ("<I8"):unpack(head) < 1 << 20
    and core.crc32c and require("perilune.command.events").is_record(head)) then return "events" end
  return nil
end

local KNOWN = "safetensors, npy, npz, IDX (also gzipped), PNG, JPEG and TensorBoard event files are known"

-- One tensor that is read at once, under a name.
local function single(kind, name, t, more)
  if not t then return nil, name, more end
  return { kind = kind, names = { name }, meta = {},
    describe = function() return t:dtype(), t:shape() end, read = function() return t end }
end

local openers = {}

function openers.safetensors(path)
  local file, message, code = core.open_safetensors(path)
  if not file then return nil, message, code end
  local at, names = {}, file:names()
  for i, name in ipairs(names) do at[name] = i end
  return { kind = "safetensors", names = names, meta = file:metadata(),
    describe = function(name) return file:describe(at[name]) end, read = function(name) return file:read(at[name]) end }
end

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

-- → {kind=, names=, meta=, describe(name) → dtype, shape, read(name) → tensor or nil, message, code};
-- or nil, message, code
function M.open(path)
  local f, message = io.open(path, "rb")
  if not f then return nil, message, "io" end
  local head, why = f:read(64)
  f:close()
  if not head then return nil, path .. ": " .. (why or "is empty"), why and "io" or "format" end
  local kind = kind_of(head, path)
  if not kind then return nil, path .. ": unknown format; " .. KNOWN, "format" end
  return openers[kind](path)
end

return M
