-- SPDX-License-Identifier: MIT
-- Bytes as letters (RFC 4648): base64(bytes) → text.
local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

return function(bytes)
  return (bytes:gsub("..?.?", function(part)
    local a, b, c = part:byte(1, 3)
    local v = a << 16 | (b or 0) << 8 | (c or 0)
    local function letter(shift) return letters:sub((v >> shift & 63) + 1, (v >> shift & 63) + 1) end
    return letter(18) .. letter(12) .. (b and letter(6) or "=") .. (c and letter(0) or "=")
  end))
end
