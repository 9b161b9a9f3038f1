-- SPDX-License-Identifier: MIT
--- Draws a list of shapes (plot/shapes.lua) as SVG 1.1.
-- @module perilune.plot.svg
local base64 = require "perilune.io.base64"
local core = require "perilune.core"

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }
local function escaped(s)
  if not utf8.len(s) then s = s:gsub("[\128-\255]", "?") end
  return (s:gsub('[&<>"]', escapes):gsub("%c", " "))
end

-- Two decimals at most, without zeros at the end.
local function number(v)
  local s = ("%.2f"):format(v):gsub("0+$", ""):gsub("%.$", "")
  return s == "-0" and "0" or s
end

local function hex(c) return ("#%06x"):format(c) end

local draw = {}

function draw.rect(s)
  return ('<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>'):format(number(s.x), number(s.y), number(s.w),
    number(s.h), hex(s.fill))
end

function draw.dot(s)
  return ('<circle cx="%s" cy="%s" r="%s" fill="%s"/>'):format(number(s.x), number(s.y), number(s.r), hex(s.color))
end

function draw.path(s)
  local out = {}
  for i = 1, #s.points, 2 do out[#out + 1] = number(s.points[i]) .. "," .. number(s.points[i + 1]) end
  return ('<polyline points="%s" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"/>'):format(
    table.concat(out, " "), hex(s.color), number(s.width))
end

function draw.text(s)
  return ('<text x="%s" y="%s" font-size="%s" fill="%s"%s%s>%s</text>'):format(number(s.x), number(s.y), number(s.size),
    hex(s.color), s.anchor and (' text-anchor="%s"'):format(s.anchor) or "",
    s.up and (' transform="rotate(-90 %s %s)"'):format(number(s.x), number(s.y)) or "", escaped(s.text))
end

function draw.image(s)
  return ('<image x="%s" y="%s" width="%s" height="%s" preserveAspectRatio="none" style="image-rendering:pixelated" ' ..
    'href="data:image/png;base64,%s"/>'):format(number(s.x), number(s.y), number(s.w), number(s.h),
    base64(core.png(s.pixels)))
end

--- The text of the file.
return function(page)
  local out = { ('<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" ' ..
    'font-family="sans-serif">'):format(number(page.width), number(page.height), number(page.width),
    number(page.height)), '<rect width="100%" height="100%" fill="#ffffff"/>' }
  for _, s in ipairs(page) do out[#out + 1] = draw[s.kind](s) end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end
