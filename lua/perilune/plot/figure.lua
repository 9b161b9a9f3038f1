-- SPDX-License-Identifier: MIT
--- Figures: what T.plot and its relatives return. tostring draws them with characters, :svg and :png write files.
-- @module perilune.plot.figure
local classes = require "perilune.classes"
local core = require "perilune.core"
local color = require "perilune.plot.color"
local options = require "perilune.options"
local ticks = require "perilune.plot.ticks"

local fail = options.fail
local Figure = classes.new("figure", "figure")

local function deliver(who, path, bytes)
  if path == nil then return bytes end
  if type(path) ~= "string" then fail("%s: the path must be a string, got %s", who, options.describe(path)) end
  return core.write_file(path, bytes)
end

-- The least distance of two neighbouring positions: how wide bars may be.
local function spacing(x)
  local sorted, least = table.move(x, 1, #x, 1, {}), math.huge
  table.sort(sorted)
  for i = 2, #sorted do
    local gap = sorted[i] - sorted[i - 1]
    if gap > 0 and gap < least then least = gap end
  end
  return least < math.huge and least or 1
end

-- Bars of several series hide none of each other: side by side where series have a place in common, otherwise as wide
-- as all their places leave room. Sets the step, the number of bars at a place, and which of them this series' is.
local function stand_apart(series)
  local apart, places, whose, common = {}, {}, {}, false
  for _, s in ipairs(series) do
    if s.style == "bars" and not s.close then
      apart[#apart + 1] = s
      for _, x in ipairs(s.x) do
        if x == x then
          places[#places + 1] = x
          common = common or (whose[x] ~= nil and whose[x] ~= s)
          whose[x] = s
        end
      end
    end
  end
  local step = spacing(places)
  for i, s in ipairs(apart) do s.step, s.bars, s.bar = step, common and #apart or 1, common and i or 1 end
end

--- Both axes, from the limits given and the values of the series.
function Figure:axes()
  local xs, ys, bars, all = {}, {}, false, true
  stand_apart(self.series)
  for i, s in ipairs(self.series) do
    xs[i], ys[i] = s.x, s.y
    if s.style == "bars" then
      bars = true
      local lo, hi = ticks.range { s.x }
      xs[#self.series + i] = { lo - s.step / 2, hi + s.step / 2 } -- whole bars are inside
    else
      all = false
    end
  end
  for i = 1, 2 * #self.series do xs[i] = xs[i] or {} end
  local function axis(limits, lists, log, tight, with_zero)
    local lo, hi = ticks.range(lists, log)
    if with_zero then lo, hi = math.min(lo, 0), math.max(hi, 0) end
    if limits then return ticks.axis(limits[1], limits[2], log, true) end
    return ticks.axis(lo, hi, log, tight)
  end
  local xaxis = axis(self.xlim, xs, self.xscale == "log", all or not bars)
  local log = self.yscale == "log"
  local yaxis = axis(self.ylim, ys, log, false, bars and not log)
  if bars and not self.ylim and not log then -- bars stand on 0, without room below it
    local lo, hi = ticks.range(ys)
    local nothing = lo == hi and lo == 0
    yaxis = ticks.axis(lo >= 0 and 0 or yaxis.lo, nothing and 1 or hi <= 0 and 0 or yaxis.hi, false, true)
  end
  return xaxis, yaxis
end

local function page_of(self, opts)
  return require("perilune.plot.shapes")[self.kind](self, opts.width or self.width, opts.height or self.height)
end

local function sizes(who, opts, names)
  opts = options.check(who, opts, names)
  for _, key in ipairs { "width", "height", "scale" } do
    local v = opts[key]
    if v ~= nil and (type(v) ~= "number" or v ~= v or v <= 0 or v > 20000) then
      fail("%s: %s must be a positive number, got %s", who, key, options.describe(v))
    end
  end
  return opts
end

--- SVG text, or with a path the file: true, or nil, message, code. `width`, `height` in pixels.
function Figure:svg(path, opts)
  if type(path) == "table" then path, opts = nil, path end
  opts = sizes("figure:svg", opts, { "width", "height" })
  return deliver("figure:svg", path, require "perilune.plot.svg"(page_of(self, opts)))
end

--- PNG bytes, or with a path the file. `scale` pixels a unit of width and height (2).
function Figure:png(path, opts)
  if type(path) == "table" then path, opts = nil, path end
  opts = sizes("figure:png", opts, { "width", "height", "scale" })
  return deliver("figure:png", path,
    core.png(require "perilune.plot.raster"(page_of(self, opts), opts.scale or 2)))
end

--- A file of the kind that its name ends in: .svg, .png or .txt.
function Figure:save(path, opts)
  local kind = type(path) == "string" and path:lower():match("%.(%w+)$")
  if kind == "svg" or kind == "png" then return self[kind](self, path, opts) end
  if kind == "txt" then
    local o = { color = false }
    for key, v in pairs(opts or {}) do o[key] = v end
    return core.write_file(path, self:text(o) .. "\n")
  end
  fail("figure:save: the name must end in .svg, .png or .txt, got %s", options.describe(path))
end

--- Characters: `width` columns (of the terminal, at most 100), `height` rows (16), `color` (on a terminal).
function Figure:text(opts)
  opts = sizes("figure:text", opts, { "width", "height", "color" })
  local colored = color.wanted(opts.color)
  local width = math.floor(opts.width or math.min(100, core.terminal_width(1)))
  if self.kind == "lines" then
    return require "perilune.plot.braille"(self, width, math.floor(opts.height or 16), colored)
  end
  return require("perilune.plot.terminal")[self.kind](self, width, colored)
end

function Figure:__tostring() return self:text() end

-- In a notebook: twice the pixels of the place that it takes, for fine screens.
function Figure:__mime()
  return { ["image/png"] = self:png() }, { ["image/png"] = { width = self.width, height = self.height } }
end

return Figure
