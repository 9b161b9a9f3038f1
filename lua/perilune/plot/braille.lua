-- SPDX-License-Identifier: MIT
--- Figures of series in a terminal: each character is a braille pattern of 2 × 4 dots.
-- @module perilune.plot.braille
local color = require "perilune.plot.color"
local ticks = require "perilune.plot.ticks"

local floor, max, min = math.floor, math.max, math.min

-- Bits of the eight dots (Unicode 2800 … 28FF), by column and row.
local bits = { [0] = { [0] = 0x01, 0x02, 0x04, 0x40 }, { [0] = 0x08, 0x10, 0x20, 0x80 } }

local function canvas(cols, rows)
  local self = { cols = cols, rows = rows, dots = {}, owner = {} }
  function self.dot(x, y, who)
    x, y = floor(x), floor(y)
    if x < 0 or y < 0 or x >= 2 * cols or y >= 4 * rows then return end
    local at = (y // 4) * cols + x // 2
    self.dots[at] = (self.dots[at] or 0) | bits[x % 2][y % 4]
    self.owner[at] = who
  end
  return self
end

-- All dots between two (Bresenham's line, with floats).
local function line(c, x1, y1, x2, y2, who)
  local n = max(1, math.ceil(max(math.abs(x2 - x1), math.abs(y2 - y1))))
  for k = 0, n do c.dot(x1 + (x2 - x1) * k / n, y1 + (y2 - y1) * k / n, who) end
end

local function draw(c, s, who, xaxis, yaxis)
  local w, h = 2 * c.cols - 1, 4 * c.rows - 1
  local lastx, lasty
  for i = 1, #s.x do
    local u, v = xaxis.place(s.x[i]), yaxis.place(s.y[i])
    if u and v and u >= -1e-9 and u <= 1 + 1e-9 and v >= -0.01 and v <= 1.01 then
      local x, y = u * w + 0.5, (1 - min(1, max(0, v))) * h + 0.5
      if s.style == "bars" then
        local base = (1 - max(0, min(1, yaxis.place(0) or 0))) * h + 0.5
        local aside, wide = ticks.bar(s)
        local unit = w / (xaxis.hi - xaxis.lo)
        local half, at = max(0, floor(wide * unit / 2 - 0.5)), x + aside * unit
        for k = -half, half do line(c, at + k, base, at + k, y, who) end
      elseif lastx and s.style ~= "points" then
        line(c, lastx, lasty, x, y, who)
      else
        c.dot(x, y, who)
      end
      lastx, lasty = x, y
    else
      lastx = nil
    end
  end
end

local function padded(s, n) return (" "):rep(n - (utf8.len(s) or #s)) .. s end

-- The row of tick texts below the axis; those that would touch are left out.
local function x_labels(marks, xaxis, cols)
  local out, free = {}, 0
  for _, t in ipairs(marks) do
    local n = utf8.len(t.text)
    local at = floor(xaxis.place(t.at) * (cols - 1) + 0.5) - n // 2
    at = max(0, min(cols - n, at))
    if at >= free then
      out[#out + 1] = (" "):rep(at - (free > 0 and free - 1 or 0)) .. t.text
      free = at + n + 1
    end
  end
  return table.concat(out)
end

-- Fewer columns, or rows, so that a unit is as long on both axes: dots are about as far apart both ways.
local function equal(cols, rows, xaxis, yaxis)
  local across, up = xaxis.hi - xaxis.lo, yaxis.hi - yaxis.lo
  local unit = min((2 * cols - 2) / across, (4 * rows - 2) / up)
  return max(2, min(cols, floor(unit * across / 2 + 1.5))), max(2, min(rows, floor(unit * up / 4 + 1)))
end

--- The figure as text: `width` columns in all, `height` rows of dots, with escape codes if `colored`.
return function(f, width, height, colored)
  local xaxis, yaxis = f:axes()
  local yticks, wide = yaxis.ticks(max(2, min(6, height // 3))), 0
  for _, t in ipairs(yticks) do wide = max(wide, utf8.len(t.text)) end
  local cols = max(10, width - wide - 2)
  if f.aspect == "equal" then cols, height = equal(cols, height, xaxis, yaxis) end
  local c = canvas(cols, height)
  for i, s in ipairs(f.series) do draw(c, s, i, xaxis, yaxis) end
  local at_row = {}
  for _, t in ipairs(yticks) do at_row[floor((1 - yaxis.place(t.at)) * (height - 1) + 0.5)] = t.text end
  local out = {}
  local function paint(text, series)
    return colored and color.code(f.series[series].color) .. text .. color.reset or text
  end
  if f.title then out[1] = padded(f.title, wide + 2 + (cols + utf8.len(f.title)) // 2) end
  for y = 0, height - 1 do
    local row = { padded(at_row[y] or "", wide), at_row[y] and "┤" or "│" }
    local blank = 0 -- blanks at the end of a line are not written
    for x = 0, cols - 1 do
      local dots = c.dots[y * cols + x]
      if dots then
        row[#row + 1] = (" "):rep(blank) .. paint(utf8.char(0x2800 + dots), c.owner[y * cols + x])
        blank = 0
      else
        blank = blank + 1
      end
    end
    out[#out + 1] = table.concat(row)
  end
  out[#out + 1] = padded("└", wide + 1) .. ("─"):rep(cols)
  out[#out + 1] = (" "):rep(wide + 1) .. x_labels(xaxis.ticks(max(2, cols // 12)), xaxis, cols)
  local names = {}
  if f.xlabel then names[1] = f.xlabel end
  for i, s in ipairs(f.series) do
    if s.label then names[#names + 1] = paint("●", i) .. " " .. s.label end
  end
  if f.ylabel then table.insert(out, f.title and 2 or 1, f.ylabel) end
  if #names > 0 then out[#out + 1] = (" "):rep(wide + 1) .. table.concat(names, "   ") end
  return table.concat(out, "\n")
end
