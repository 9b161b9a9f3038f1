-- SPDX-License-Identifier: MIT
--- Numbers in texts, as Python's int(text, base) and float(text) read them; nil for what these refuse.
-- @module perilune.jinja.numerals
local values = require "perilune.jinja.values"

local M = {}

-- A text without blanks around it, and without the single underlines between its digits.
local function plain(s)
  s = s:match "^%s*(.-)%s*$"
  local bare = s:gsub("([%da-zA-Z])_([%da-zA-Z])", "%1%2"):gsub("([%da-zA-Z])_([%da-zA-Z])", "%1%2")
  return not bare:find "_" and bare or nil
end

local prefixes = { ["0x"] = 16, ["0o"] = 8, ["0b"] = 2 }

--- A whole number in `base` (0: by its prefix).
function M.int(text, base)
  local s = plain(text)
  local sign, digits = (s or ""):match "^([-+]?)(%w+)$"
  if not digits or math.type(base) ~= "integer" then return nil end
  local prefix = prefixes[digits:sub(1, 2):lower()]
  if base == 0 then base = prefix or (digits:find "^0+$" or digits:find "^[1-9]") and 10 or 1 end
  if base < 2 or base > 36 then return nil end
  if base == prefix then digits = digits:sub(3) end
  if digits == "" then return nil end
  local n = 0
  for c in digits:gmatch "." do
    local d = tonumber(c, base)
    if not d then return nil end
    if n > (math.maxinteger - d) // base then values.fail "OverflowError: an integer of more than 64 bits" end
    n = n * base + d
  end
  return sign == "-" and -n or n
end

local named = { inf = math.huge, infinity = math.huge, nan = 0 / 0 }

function M.float(text)
  local s = plain(text)
  local sign, digits = (s or ""):match "^([-+]?)(.*)$"
  local x = named[digits:lower()]
  if not x then
    local body = digits:match "^(.-)[eE][-+]?%d+$" or digits
    x = (body:find "^%d+%.?%d*$" or body:find "^%.%d+$") and tonumber(digits)
  end
  if not x then return nil end
  return sign == "-" and -(x + 0.0) or x + 0.0
end

return M
