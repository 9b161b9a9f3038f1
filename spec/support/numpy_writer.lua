-- SPDX-License-Identifier: MIT
-- Bytes of npy files and of zip archives with stored members.

-- CRC-32 (ISO 3309), of zip members and PNG chunks.
local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = (c >> 1) ~ (c & 1 == 1 and 0xedb88320 or 0) end
  crc_table[i] = c
end
local function crc32(s)
  local crc = 0xffffffff
  for i = 1, #s do crc = (crc >> 8) ~ crc_table[(crc ~ s:byte(i)) & 255] end
  return crc ~ 0xffffffff
end

-- An npy file of version 1, 2 or 3 with this header.
local function npy(header, body, version)
  version = version or 1
  return "\x93NUMPY" .. string.char(version, 0) .. string.pack(version == 1 and "<s2" or "<s4", header) .. (body or "")
end

-- A zip archive of {name, bytes[, changes]}; changes: crc, packed, size, at, flags, method, extra (the extra field).
-- wide: sizes and places in fields of 64 bits, as in archives beyond 4 GiB.
local function zip(members, wide)
  local out, dir, at = {}, {}, 0
  for _, m in ipairs(members) do
    local name, body, x = m[1], m[2], m[3] or {}
    local crc, extra, packed, size, place = x.crc or crc32(body), "", x.packed or #body, x.size or #body, x.at or at
    if wide then
      extra = string.pack("<I2s2I2s2", 0x7777, "odd", 1, string.pack("<i8i8i8", size, packed, place))
      packed, size, place = 0xffffffff, 0xffffffff, 0xffffffff
    end
    extra = x.extra or extra
    out[#out + 1] = string.pack("<I4I2I2I2I2I2I4I4I4I2I2", 0x04034b50, 20, 0, x.method or 0, 0, 0, crc, #body, #body,
      #name, 0) .. name .. body
    dir[#dir + 1] = string.pack("<I4I2I2I2I2I2I2I4I4I4I2I2I2I2I2I4I4", 0x02014b50, 20, 20, x.flags or 0, x.method or 0,
      0, 0, crc, packed, size, #name, #extra, 0, 0, 0, 0, place) .. name .. extra
    at = at + #out[#out]
  end
  local d = table.concat(dir)
  local n, size, place, more = #members, #d, at, ""
  if wide then
    more = string.pack("<I4i8I2I2I4I4i8i8i8i8", 0x06064b50, 44, 45, 45, 0, 0, n, n, size, place)
      .. string.pack("<I4I4i8I4", 0x07064b50, 0, at + #d, 1)
    n, size, place = 0xffff, 0xffffffff, 0xffffffff
  end
  return table.concat(out) .. d .. more .. string.pack("<I4I2I2I2I2I4I4s2", 0x06054b50, 0, 0, n, n, size, place, "")
end

return { npy = npy, zip = zip, crc32 = crc32 }
