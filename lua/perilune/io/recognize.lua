-- SPDX-License-Identifier: MIT
--- What kind of file of tensors this is, by its first bytes: for T.load, T.open and `perilune peek`.
-- @module perilune.io.recognize
local core = require "perilune.core"

local IDX_TYPES = { [0x08] = true, [0x09] = true, [0x0B] = true, [0x0C] = true, [0x0D] = true, [0x0E] = true }
local MAX_HEADER = 100000000 -- of safetensors

-- A zip archive, by the name of its first member, whose length is at byte 26.
local function archive(head)
  local name = #head >= 30 and head:sub(31, 30 + ("<I2"):unpack(head, 27)) or ""
  if name:find "%.npy$" then return "npz" end
  if name:find "%.pkl$" or name:find "/version$" or name:find "/byteorder$" or name:find "^[^/]+/%.?data/" then
    return "pt"
  end
  return "zip"
end

-- An ONNX file has no mark of its own: as all writers do, its version comes first, then the next of a model's fields.
local ONNX_SECOND = { [0x12] = true, [0x1A] = true, [0x22] = true, [0x28] = true, [0x32] = true, [0x3A] = true,
  [0x42] = true }
local function onnx(head)
  local first, version, second = head:byte(1, 3)
  return #head >= 16 and first == 8 and version > 0 and version < 32 and ONNX_SECOND[second]
    and head:sub(5, 8) ~= "\0\0\0\0"
end

-- The kind of file that begins with these bytes: "safetensors", "pt", "gguf", "json", "npy", "npz", "zip", "image",
-- "gzip", "idx", "onnx"; nil for none of them.
local function kind_of(head)
  if head:sub(1, 6) == "\x93NUMPY" then return "npy" end
  if head:sub(1, 4) == "PK\3\4" or head:sub(1, 4) == "PK\5\6" then return archive(head) end
  if head:sub(1, 2) == "\x80\2" and head:sub(3, 8) == "\x8a\x0a\x6c\xfc\x9c\x46" then return "pt" end
  if head:sub(258, 262) == "ustar" then return "pt" end -- of torch before 0.1.10, which load_pt explains
  if head:sub(1, 4) == "GGUF" then return "gguf" end
  if head:sub(1, 8) == "\x89PNG\r\n\26\n" or head:sub(1, 3) == "\xFF\xD8\xFF" then return "image" end
  if head:sub(1, 2) == "\x1F\x8B" then return "gzip" end
  if #head >= 4 and head:sub(1, 2) == "\0\0" and IDX_TYPES[head:byte(3)] then return "idx" end
  if #head >= 9 and head:sub(9):find "^%s*{" and ("<I8"):unpack(head) <= MAX_HEADER then return "safetensors" end
  if head:find "^%s*{" then return "json" end
  if onnx(head) then return "onnx" end
  return nil
end

local M = { kind_of = kind_of }

--- The kind of a file, or "folder", and its first bytes; nil, message, code, errno for what cannot be read.
function M.kind(path)
  local head, message, code, errno = core.file_head(path)
  if head then
    local kind = kind_of(head) or "unknown"
    if kind == "json" and not path:find "%.json$" then kind = "unknown" end -- a damaged header may begin like one
    return kind, head
  end
  if core.list_folder(path) then return "folder", "" end
  return nil, message, code, errno
end

return M
