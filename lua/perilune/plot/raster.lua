-- SPDX-License-Identifier: MIT
--- Draws a list of shapes (plot/shapes.lua) as pixels: PNG. Pixels that nothing touched are not stored.
-- @module perilune.plot.raster
local T = require "perilune"
local color = require "perilune.plot.color"
local font = require "perilune.plot.font"

local floor, max, min = math.floor, math.max, math.min
local BACKGROUND = 0xffffff

local Canvas = {}
Canvas.__index = Canvas

local function canvas(width, height) return setmetatable({ width = width, height = height, rows = {} }, Canvas) end

-- Covers pixel (x, y) with a colour by a share of 0 … 1.
function Canvas:put(x, y, c, share)
  if x < 0 or y < 0 or x >= self.width or y >= self.height or share <= 0 then return end
  local row = self.rows[y]
  if not row then
    row = {}
    self.rows[y] = row
  end
  row[x] = share >= 1 and c or color.mix(row[x] or BACKGROUND, c, share)
end

local draw = {}

function draw.rect(self, s, k)
  local x1, y1 = floor(s.x * k + 0.5), floor(s.y * k + 0.5)
  for y = y1, floor((s.y + s.h) * k + 0.5) - 1 do
    for x = x1, floor((s.x + s.w) * k + 0.5) - 1 do self:put(x, y, s.fill, 1) end
  end
end

function draw.dot(self, s, k)
  local cx, cy, r = s.x * k, s.y * k, s.r * k
  for y = floor(cy - r - 1), floor(cy + r + 1) do
    for x = floor(cx - r - 1), floor(cx + r + 1) do
      local d = ((x + 0.5 - cx) ^ 2 + (y + 0.5 - cy) ^ 2) ^ 0.5
      self:put(x, y, s.color, max(0, min(1, r - d + 0.5)))
    end
  end
end

-- A segment of width w: every pixel near it, by its distance from the middle line.
local function segment(self, shares, x1, y1, x2, y2, w)
  local dx, dy = x2 - x1, y2 - y1
  local length2 = dx * dx + dy * dy
  local steep = math.abs(dy) > math.abs(dx)
  local reach = w / 2 + 1
  local from, to = steep and min(y1, y2) or min(x1, x2), steep and max(y1, y2) or max(x1, x2)
  for major = max(0, floor(from - reach)), min(steep and self.height or self.width, floor(to + reach)) do
    local t = length2 > 0 and max(0, min(1, (major + 0.5 - (steep and y1 or x1)) / (steep and dy or dx))) or 0
    local middle = steep and x1 + t * dx or y1 + t * dy
    local around = reach * 1.5
    for minor = floor(middle - around), floor(middle + around) do
      local px, py = (steep and minor or major) + 0.5, (steep and major or minor) + 0.5
      local u = length2 > 0 and max(0, min(1, ((px - x1) * dx + (py - y1) * dy) / length2)) or 0
      local d = ((px - x1 - u * dx) ^ 2 + (py - y1 - u * dy) ^ 2) ^ 0.5
      local share = max(0, min(1, w / 2 - d + 0.5))
      local key = (steep and minor or major) + 4096 << 20 | (steep and major or minor) + 4096
      if share > (shares[key] or 0) then shares[key] = share end
    end
  end
end

function draw.path(self, s, k)
  local p = s.points
  local w = max(1, s.width * k)
  local shares = {} -- of the whole path: where two segments meet, nothing is covered twice
  for i = 1, #p - 3, 2 do segment(self, shares, p[i] * k, p[i + 1] * k, p[i + 2] * k, p[i + 3] * k, w) end
  for key, share in pairs(shares) do self:put((key >> 20) - 4096, (key & 0xfffff) - 4096, s.color, share) end
end

-- Letters are drawn with a pen, in steps of a tenth of their size, which need not be whole pixels.
function draw.text(self, s, k)
  local chars = {}
  for _, code in utf8.codes(utf8.len(s.text) and s.text or s.text:gsub("[\128-\255]", "?"), true) do
    chars[#chars + 1] = utf8.char(code)
  end
  local d = s.size * k / 10 -- pixels a dot
  local width = (#chars * 6 - 1) * d
  local shift = s.anchor == "middle" and width / 2 or s.anchor == "end" and width or 0
  local x0, y0, shares = s.x * k, s.y * k, {}
  local function place(i, x, y)
    local a, b = ((i - 1) * 6 + x + 0.5) * d - shift, (y - 6.5) * d
    if s.up then return x0 + b, y0 - a end
    return x0 + a, y0 + b
  end
  local pen = max(1, d * 1.05)
  for i, char in ipairs(chars) do
    for _, line in ipairs(font.strokes(char)) do
      local x1, y1 = place(i, line[1], line[2])
      local x2, y2 = place(i, line[3], line[4])
      segment(self, shares, x1, y1, x2, y2, pen)
    end
  end
  for key, share in pairs(shares) do self:put((key >> 20) - 4096, (key & 0xfffff) - 4096, s.color, share) end
end

-- A picture within the picture: u8[H,W,3] stretched over a box.
function draw.image(self, s, k)
  local h, w = s.pixels:size(1), s.pixels:size(2)
  local list = s.pixels:reshape(-1):totable()
  local x0, y0 = floor(s.x * k + 0.5), floor(s.y * k + 0.5)
  local cols, lines = floor((s.x + s.w) * k + 0.5) - x0, floor((s.y + s.h) * k + 0.5) - y0
  for y = 0, lines - 1 do
    for x = 0, cols - 1 do
      local at = ((y * h // lines) * w + x * w // cols) * 3
      self:put(x0 + x, y0 + y, list[at + 1] << 16 | list[at + 2] << 8 | list[at + 3], 1)
    end
  end
end

-- u8[H,W,3] of what was drawn.
function Canvas:tensor()
  local texts = setmetatable({}, { __index = function(t, c)
    local s = string.char(color.split(c))
    t[c] = s
    return s
  end })
  local empty, out, buffer = texts[BACKGROUND]:rep(self.width), {}, {}
  for y = 0, self.height - 1 do
    local row = self.rows[y]
    if row then
      for x = 0, self.width - 1 do buffer[x + 1] = texts[row[x] or BACKGROUND] end
      out[y + 1] = table.concat(buffer)
    else
      out[y + 1] = empty
    end
  end
  return T.from_string(table.concat(out), "u8", { self.height, self.width, 3 })
end

--- Shapes on a page of width × height, `scale` pixels a unit, as u8[H,W,3].
return function(page, scale)
  local c = canvas(floor(page.width * scale + 0.5), floor(page.height * scale + 0.5))
  for _, s in ipairs(page) do draw[s.kind](c, s, scale) end
  return c:tensor()
end
