-- SPDX-License-Identifier: MIT
--- Colours as 0xRRGGBB: of series, of values, of terminals.
-- @module perilune.plot.color
local core = require "perilune.core"
local options = require "perilune.options"
local M = {}

-- Eight that people with any colour vision can tell apart (Okabe & Ito 2008), the yellow last.
M.series = { 0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x000000, 0xf0e442 }

-- Maps from 0 … 1: stops at equal distances.
local maps = {
  grey = { 0x000000, 0xffffff },
  blues = { 0xf7fbff, 0xd2e3f3, 0x9ac8e1, 0x529dcc, 0x1c6cb1, 0x08306b },
  viridis = { 0x440154, 0x472d7b, 0x3b528b, 0x2c728e, 0x21918c, 0x28ae80, 0x5ec962, 0xaddc30, 0xfde725 },
  diverging = { 0x053061, 0x4393c3, 0xd1e5f0, 0xf7f7f7, 0xfddbc7, 0xd6604d, 0x67001f },
}

function M.split(c) return c >> 16 & 255, c >> 8 & 255, c & 255 end
local split = M.split

--- The colour between a and b, 0 … 1.
function M.mix(a, b, t)
  local r1, g1, b1 = split(a)
  local r2, g2, b2 = split(b)
  local function part(p, q) return math.floor(p + (q - p) * t + 0.5) end
  return part(r1, r2) << 16 | part(g1, g2) << 8 | part(b1, b2)
end

--- A function from 0 … 1 to a colour, by the map's name.
function M.map(who, name)
  local stops = maps[name]
  if not stops then
    local names = {}
    for key in pairs(maps) do names[#names + 1] = key end
    table.sort(names)
    options.fail("%s: %s", who, options.unknown("map", name, names))
  end
  return function(t)
    if t ~= t then return 0x808080 end
    local x = math.max(0, math.min(1, t)) * (#stops - 1)
    local i = math.min(math.floor(x), #stops - 2)
    return M.mix(stops[i + 1], stops[i + 2], x - i)
  end
end

--- Whether text is dark on this colour.
function M.is_light(c)
  local r, g, b = split(c)
  return 0.299 * r + 0.587 * g + 0.114 * b > 140
end

--- Whether pictures on this file descriptor may have colours.
function M.wanted(given, fd)
  if given ~= nil then return given end
  local no = os.getenv("NO_COLOR")
  return core.isatty(fd or 1) and os.getenv("TERM") ~= "dumb" and (no == nil or no == "")
end

--- Escape codes for a foreground or background colour: 24 bits where the terminal says so, else 256 colours.
function M.code(c, background)
  local r, g, b = split(c)
  local kind = background and 48 or 38
  local deep = os.getenv("COLORTERM")
  if deep == "truecolor" or deep == "24bit" then return ("\27[%d;2;%d;%d;%dm"):format(kind, r, g, b) end
  local function level(v) return v < 48 and 0 or v < 115 and 1 or (v - 35) // 40 end
  return ("\27[%d;5;%dm"):format(kind, 16 + 36 * level(r) + 6 * level(g) + level(b))
end
M.reset = "\27[0m"

return M
