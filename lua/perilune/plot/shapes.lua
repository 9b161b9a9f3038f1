-- SPDX-License-Identifier: MIT
--- Figures as lists of shapes on a page, in pixels from the upper left corner:
--   {kind = "rect", x, y, w, h, fill} {kind = "path", points = {x1, y1, …}, color, width}
--   {kind = "dot", x, y, r, color} {kind = "image", x, y, w, h, pixels}
--   {kind = "text", x, y, text, size, anchor, color, up}
-- @module perilune.plot.shapes
local color = require "perilune.plot.color"
local ticks = require "perilune.plot.ticks"

local M = {}
local INK, GRID, SIZE = 0x333333, 0xe4e4e4, 11

local function text_width(s, size) return (utf8.len(s) or #s) * size * 0.6 end
M.text_width = text_width

local function adder(page)
  return function(kind, s)
    s.kind = kind
    page[#page + 1] = s
  end
end

local function title_and_labels(page, f, box)
  local add = adder(page)
  if f.title then
    add("text", { x = box.x + box.w / 2, y = 18, text = f.title, size = 14, anchor = "middle", color = INK })
  end
  if f.xlabel then
    add("text", { x = box.x + box.w / 2, y = page.height - 8, text = f.xlabel, size = 12, anchor = "middle",
      color = INK })
  end
  if f.ylabel then
    add("text", { x = 14, y = box.y + box.h / 2, text = f.ylabel, size = 12, anchor = "middle", color = INK,
      up = true })
  end
end

-- Where the data go: what titles, labels and the texts of ticks leave.
local function data_box(f, width, height, yticks)
  local wide = 0
  for _, t in ipairs(yticks) do wide = math.max(wide, text_width(t.text, SIZE)) end
  local x, y = wide + (f.ylabel and 30 or 12), f.title and 30 or 12
  return { x = x, y = y, w = width - x - 14, h = height - y - (f.xlabel and 42 or 26) }
end

local function axes(page, f, box, xaxis, xticks, yaxis, yticks)
  local add = adder(page)
  for _, t in ipairs(yticks) do
    local y = box.y + box.h * (1 - yaxis.place(t.at))
    add("path", { points = { box.x, y, box.x + box.w, y }, color = GRID, width = 1 })
    add("text", { x = box.x - 6, y = y + 4, text = t.text, size = SIZE, anchor = "end", color = INK })
  end
  for _, t in ipairs(xticks) do
    local x = box.x + box.w * xaxis.place(t.at)
    add("path", { points = { x, box.y, x, box.y + box.h }, color = GRID, width = 1 })
    add("text", { x = x, y = box.y + box.h + 15, text = t.text, size = SIZE, anchor = "middle", color = INK })
  end
  add("path", { points = { box.x, box.y, box.x, box.y + box.h, box.x + box.w, box.y + box.h }, color = INK, width = 1 })
  title_and_labels(page, f, box)
end

-- Width and height of the legend; nil where there is none.
local function legend_size(f)
  local wide, n = 0, 0
  for _, s in ipairs(f.series) do
    if s.label then wide, n = math.max(wide, text_width(s.label, SIZE)), n + 1 end
  end
  if n == 0 or f.legend == false then return nil end
  return wide + 36, n * 16 + 6
end

-- How much of a rectangle the drawn series cross: points of lines every few pixels, dots, bars.
local function crossed(page, from, x, y, w, h)
  local count = 0
  local function look(px, py)
    if px >= x - 3 and px <= x + w + 3 and py >= y - 3 and py <= y + h + 3 then count = count + 1 end
  end
  for i = from, #page do
    local s = page[i]
    if s.kind == "dot" then look(s.x, s.y) end
    if s.kind == "rect" and s.x < x + w and s.x + s.w > x and s.y < y + h and s.y + s.h > y then count = count + 5 end
    for k = 1, s.kind == "path" and #s.points - 3 or 0, 2 do
      local x1, y1, x2, y2 = table.unpack(s.points, k, k + 3)
      local pieces = math.max(1, math.min(100, (math.abs(x2 - x1) + math.abs(y2 - y1)) // 4))
      for p = 0, pieces do look(x1 + (x2 - x1) * p / pieces, y1 + (y2 - y1) * p / pieces) end
    end
  end
  return count
end

-- The place of the legend inside the axes where it hides nothing, corners first; nil if there is none.
local function legend_place(page, from, box, w, h)
  for _, ver in ipairs { 0, 1, 0.5 } do
    for _, hor in ipairs { 1, 0, 0.5 } do
      local x, y = box.x + 8 + hor * (box.w - w - 16), box.y + 8 + ver * (box.h - h - 16)
      if w <= box.w - 16 and h <= box.h - 16 and crossed(page, from, x, y, w, h) == 0 then return x + 6, y + 4 end
    end
  end
  return nil
end

local function legend(page, f, x, y)
  local add, w, h = adder(page), legend_size(f)
  add("rect", { x = x - 6, y = y - 4, w = w, h = h, fill = 0xffffff })
  for _, s in ipairs(f.series) do
    if s.label then
      add("rect", { x = x, y = y + 4, w = 16, h = 3, fill = s.color })
      add("text", { x = x + 22, y = y + 10, text = s.label, size = SIZE, color = INK })
      y = y + 16
    end
  end
end

-- One series: a path, broken where a value has no place; dots; bars.
local function series(page, f, s, box, xaxis, yaxis)
  local add, points = adder(page), {}
  local function flush()
    if #points == 2 then add("dot", { x = points[1], y = points[2], r = 1.5, color = s.color }) end
    if #points > 2 then add("path", { points = points, color = s.color, width = 1.8 }) end
    points = {}
  end
  local base = box.y + box.h * (1 - math.max(0, math.min(1, yaxis.place(0) or 0)))
  for i = 1, #s.x do
    local u, v = xaxis.place(s.x[i]), yaxis.place(s.y[i])
    if s.style == "bars" and u and v then v = math.max(0, math.min(1, v)) end -- a bar beyond the limits ends there
    local inside = u and v and u >= -1e-9 and u <= 1 + 1e-9 and v >= -0.01 and v <= 1.01
    if not inside then
      flush()
    else
      local x, y = box.x + u * box.w, box.y + (1 - v) * box.h
      if s.style == "bars" then
        -- apart where they stand at places of their own, close together in a histogram
        local aside, w = ticks.bar(s)
        local unit = box.w / (xaxis.hi - xaxis.lo)
        x, w = x + aside * unit, w * unit
        local gap = s.close and 1 or s.bars > 1 and 0 or 0.2 * w
        local left, right = math.max(box.x, x - (w - gap) / 2), math.min(box.x + box.w, x + (w - gap) / 2)
        add("rect", { x = left, y = math.min(y, base), w = math.max(1, right - left), h = math.abs(base - y),
          fill = s.color })
      else
        if s.style ~= "points" then points[#points + 1], points[#points + 2] = x, y end
        if s.style ~= "line" then add("dot", { x = x, y = y, r = s.radius or 2.5, color = s.color }) end
      end
    end
  end
  flush()
end

-- Makes the box smaller so that a unit is as long on both axes.
local function square(box, xaxis, yaxis)
  if xaxis.log or yaxis.log then return end
  local unit = math.min(box.w / (xaxis.hi - xaxis.lo), box.h / (yaxis.hi - yaxis.lo))
  local w, h = unit * (xaxis.hi - xaxis.lo), unit * (yaxis.hi - yaxis.lo)
  box.x, box.y, box.w, box.h = box.x + (box.w - w) / 2, box.y + (box.h - h) / 2, w, h
end

--- The page of a figure of series (plot/figure.lua).
function M.lines(f, width, height)
  local page = { width = width, height = height }
  local xaxis, yaxis = f:axes()
  local yticks = yaxis.ticks(math.max(2, math.min(7, height // 50)))
  local wide, high = legend_size(f)
  local function draw(room)
    page = { width = width, height = height }
    local box = data_box(f, width - room, height, yticks)
    if f.aspect == "equal" then square(box, xaxis, yaxis) end
    axes(page, f, box, xaxis, xaxis.ticks(math.max(2, math.min(8, box.w // 70))), yaxis, yticks)
    local from = #page + 1
    for _, s in ipairs(f.series) do series(page, f, s, box, xaxis, yaxis) end
    if not wide then return true end
    local x, y = legend_place(page, from, box, wide, high)
    if room > 0 then x, y = box.x + box.w + 14, box.y + 4 end -- outside, where it hides nothing
    if x then legend(page, f, x, y) end
    return x ~= nil
  end
  if not draw(0) then draw(math.min(wide + 8, width / 2)) end
  return page
end

--- The page of a matrix: a coloured square for each value, the values in them where they fit.
function M.matrix(f, width, height)
  local page = { width = width, height = height }
  local add, rows, cols = adder(page), f.rows, f.cols
  local wide = 0
  for i = 1, rows do wide = math.max(wide, text_width(f.row_names[i], SIZE)) end
  local x, y = wide + (f.ylabel and 32 or 14), f.title and 30 or 12
  local longest = 0
  for j = 1, cols do longest = math.max(longest, text_width(f.col_names[j], SIZE) + 4) end
  local upright = longest > (width - x - 14) / cols -- names of columns that are too long for them
  local below = (upright and longest + 8 or 22) + (f.xlabel and 18 or 4)
  local cell = math.max(2, math.min((width - x - 14) / cols, (height - y - below) / rows))
  local box = { x = x, y = y, w = cell * cols, h = cell * rows }
  local widest = 0
  for _, text in ipairs(f.texts) do widest = math.max(widest, text_width(text, 10)) end
  for i = 1, rows do
    for j = 1, cols do
      local at = (i - 1) * cols + j
      local c = f.shade(f.shares[at])
      add("rect", { x = x + (j - 1) * cell, y = y + (i - 1) * cell, w = cell, h = cell, fill = c })
      if f.show_values and widest < cell - 2 and cell >= 11 then
        add("text", { x = x + (j - 0.5) * cell, y = y + (i - 0.5) * cell + 3.5, text = f.texts[at], size = 10,
          anchor = "middle", color = color.is_light(c) and INK or 0xffffff })
      end
    end
  end
  local every = math.max(1, math.ceil(14 / cell))
  for i = 1, rows, every do
    add("text", { x = x - 6, y = y + (i - 0.5) * cell + 4, text = f.row_names[i], size = SIZE, anchor = "end",
      color = INK })
  end
  for j = 1, cols, upright and every or math.max(1, math.ceil(longest / cell)) do
    add("text", { x = x + (j - 0.5) * cell + (upright and 4 or 0), y = box.y + box.h + (upright and 6 or 15),
      text = f.col_names[j], size = SIZE, anchor = upright and "end" or "middle", color = INK, up = upright })
  end
  page.width = math.max(box.x + box.w + 14, f.title and text_width(f.title, 14) + 20 or 0)
  page.height = box.y + box.h + below
  title_and_labels(page, f, box)
  return page
end

return M
