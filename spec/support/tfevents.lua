-- SPDX-License-Identifier: MIT
-- Reads TensorBoard event files, for the specs: written from the format's description, sharing nothing with the writer.

local M = {}

-- CRC-32C bit by bit.
local function crc32c(s)
  local crc = 0xffffffff
  for i = 1, #s do
    crc = crc ~ s:byte(i)
    for _ = 1, 8 do crc = (crc & 1 == 1) and (crc >> 1) ~ 0x82f63b78 or crc >> 1 end
  end
  return crc ~ 0xffffffff
end
M.crc32c = crc32c

local function unmasked(v)
  local rot = (v - 0xa282ead8) & 0xffffffff
  return ((rot >> 17) | (rot << 15)) & 0xffffffff
end

-- The fields of a message: list of {number, value}; the value is an integer, a float, or the bytes.
function M.fields(s)
  local list, at = {}, 1
  local function varint()
    local v, shift = 0, 0
    while true do
      local b = s:byte(at)
      assert(b, "a varint is cut off")
      at, v, shift = at + 1, v | (b & 127) << shift, shift + 7
      if b < 128 then return v end
    end
  end
  while at <= #s do
    local tag = varint()
    local kind, value = tag & 7, nil
    if kind == 0 then
      value = varint()
    elseif kind == 1 then
      value = ("<d"):unpack(s, at)
      at = at + 8
    elseif kind == 5 then
      value = ("<f"):unpack(s, at)
      at = at + 4
    elseif kind == 2 then
      local n = varint()
      assert(at + n - 1 <= #s, "a field is cut off")
      value = s:sub(at, at + n - 1)
      at = at + n
    else
      error("wire type " .. kind)
    end
    list[#list + 1] = { tag >> 3, value }
  end
  return list
end

-- The value of the one field of that number, or nil.
function M.field(s, number)
  local found
  for _, f in ipairs(M.fields(s)) do
    if f[1] == number then
      assert(found == nil, "field " .. number .. " is there twice")
      found = f[2]
    end
  end
  return found
end

function M.doubles(s)
  local out = {}
  for at = 1, #s, 8 do out[#out + 1] = ("<d"):unpack(s, at) end
  return out
end

-- The records of a file, checksums checked: list of {wall=, step=, version=, value= (bytes of a Summary.Value)}.
function M.read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read("a")
  f:close()
  local list, at = {}, 1
  while at <= #s do
    local n = ("<I8"):unpack(s, at)
    assert(crc32c(s:sub(at, at + 7)) == unmasked(("<I4"):unpack(s, at + 8)), "the checksum of a length is wrong")
    local data = s:sub(at + 12, at + 11 + n)
    assert(#data == n, "a record is cut off")
    assert(crc32c(data) == unmasked(("<I4"):unpack(s, at + 12 + n)), "the checksum of a record is wrong")
    local summary = M.field(data, 5)
    list[#list + 1] = { wall = M.field(data, 1), step = M.field(data, 2) or 0, version = M.field(data, 3),
      value = summary and M.field(summary, 1) }
    at = at + 16 + n
  end
  return list
end

return M
