-- SPDX-License-Identifier: MIT
--- Matrices and images in a terminal: coloured tables, half blocks, or shades of characters without colours.
-- @module perilune.plot.terminal
local color = require "perilune.plot.color"

local M = {}

local function cells(s) return utf8.len(s) or #s end

local function cut(s, n)
  if cells(s) <= n then return (" "):rep(n - cells(s)) .. s end
  return s:sub(1, utf8.offset(s, n) - 1) .. "…"
end

--- A table of values; with colours each on its shade.
function M.matrix(f, width, colored)
  local left, wide = 0, 1
  for i = 1, f.rows do left = math.max(left, cells(f.row_names[i])) end
  for _, text in ipairs(f.texts) do wide = math.max(wide, cells(text)) end
  left = math.min(left, width // 3)
  local longest = wide
  for j = 1, f.cols do longest = math.max(longest, cells(f.col_names[j])) end
  wide = math.max(wide, math.min(longest, (width - left - 1) // f.cols - 1))
  local out = {}
  if f.title then out[1] = f.title end
  local head = { (" "):rep(left) }
  for j = 1, f.cols do head[j + 1] = cut(f.col_names[j], wide) end
  out[#out + 1] = table.concat(head, " ")
  for i = 1, f.rows do
    local row = { cut(f.row_names[i], left) }
    for j = 1, f.cols do
      local at = (i - 1) * f.cols + j
      local text = cut(f.texts[at], wide)
      if colored then
        local c = f.shade(f.shares[at])
        text = color.code(c, true) .. color.code(color.is_light(c) and 0x202020 or 0xffffff) .. text .. color.reset
      end
      row[j + 1] = text
    end
    out[#out + 1] = table.concat(row, " ")
  end
  if f.xlabel or f.ylabel then
    out[#out + 1] = ("rows: %s, columns: %s"):format(f.ylabel or "?", f.xlabel or "?")
  end
  return table.concat(out, "\n")
end

local ramp = { " ", ".", ":", "-", "=", "+", "*", "#", "%", "@" }

--- An image: with colours two pixels a character, one above the other; without, each pixel two characters wide, by
-- brightness.
function M.image(f, width, colored)
  local pixels = f:fitted(colored and width or width // 2)
  local h, w, list, out = pixels:size(1), pixels:size(2), pixels:reshape(-1):totable(), {}
  local function at(x, y)
    local k = ((y - 1) * w + x - 1) * 3
    return list[k + 1] << 16 | list[k + 2] << 8 | list[k + 3]
  end
  if f.title then out[1] = f.title end
  for y = 1, h, colored and 2 or 1 do
    local row = {}
    for x = 1, w do
      if colored then
        row[x] = color.code(at(x, y)) .. (y < h and color.code(at(x, y + 1), true) or "") .. "▀"
      else
        local r, g, b = color.split(at(x, y))
        local v = (0.299 * r + 0.587 * g + 0.114 * b) / 255
        row[x] = ramp[1 + math.min(9, math.floor(v * 10))]:rep(2)
      end
    end
    out[#out + 1] = table.concat(row) .. (colored and color.reset or "")
    if not colored then out[#out] = out[#out]:gsub("%s+$", "") end
  end
  return table.concat(out, "\n")
end

return M
