-- SPDX-License-Identifier: MIT
--- Axes: limits, round tick positions (Heckbert, "Nice numbers for graph labels", 1990), their texts, and the way from
-- a value to 0 … 1.
-- @module perilune.plot.ticks
local M = {}

local floor, log10, huge = math.floor, function(v) return math.log(v, 10) end, math.huge

local function nice(v, up)
  local power = 10.0 ^ floor(log10(v))
  local f = v / power
  for _, step in ipairs { { 1.5, 1 }, { 3, 2 }, { 7, 5 } } do
    if up and f <= step[2] or not up and f < step[1] then return step[2] * power end
  end
  return 10 * power
end

local function text_of(v, step)
  local a = math.abs(v)
  if a < step / 1e6 then return "0" end
  if a >= 1e6 or a < 1e-4 then
    local s = ("%.3g"):format(v):gsub("e%+?(-?)0*", "e%1")
    return s
  end
  local digits = math.max(0, -floor(log10(step) + 1e-9))
  return (("%%.%df"):format(digits):format(v))
end

-- About `count` ticks, at least two.
local function linear(lo, hi, count)
  local list
  repeat
    local step = nice((hi - lo) / math.max(1, count - 1), false)
    list, count = {}, count + 1
    for k = math.ceil(lo / step - 1e-6), floor(hi / step + 1e-6) do
      list[#list + 1] = { at = k * step, text = text_of(k * step, step) }
    end
  until #list >= 2 or count > 12
  return list
end

local function decades(lo, hi, count)
  local list, a, b = {}, math.ceil(log10(lo) - 1e-9), floor(log10(hi) + 1e-9)
  if b - a < 1 then -- less than a decade between two powers: their multiples, as many as fit
    for _, multiples in ipairs { { 1, 2, 5 }, { 1, 2, 3, 4, 6, 8 } } do
      list = {}
      for k = floor(log10(lo)), floor(log10(hi)) do
        for _, m in ipairs(multiples) do
          local v = m * 10.0 ^ k
          if v >= lo * (1 - 1e-9) and v <= hi * (1 + 1e-9) then
            list[#list + 1] = { at = v, text = text_of(v, 10.0 ^ k) }
          end
        end
      end
      if #list >= 3 then return list end
    end
    return linear(lo, hi, count)
  end
  for k = a, b, math.max(1, math.ceil((b - a + 1) / count)) do
    list[#list + 1] = { at = 10.0 ^ k, text = (k >= -2 and k <= 4) and ("%g"):format(10.0 ^ k) or "1e" .. k }
  end
  return list
end

--- The range of the finite values of some lists (positive ones for a logarithmic axis); 0 … 1 of nothing.
function M.range(lists, log)
  local lo, hi = huge, -huge
  for _, list in ipairs(lists) do
    for _, v in ipairs(list) do
      if v - v == 0 and (not log or v > 0) then
        if v < lo then lo = v end
        if v > hi then hi = v end
      end
    end
  end
  if lo > hi then return log and 1 or 0, log and 10 or 1 end
  return lo, hi
end

--- An axis: {lo, hi, log, place = function(v) → 0 … 1 or nil, ticks = function(count) → {{at=, text=}, …}}.
-- `tight` leaves no room around the values.
function M.axis(lo, hi, log, tight)
  if lo == hi then
    local room = lo == 0 and 1 or math.abs(lo) * 0.5
    lo, hi = log and lo / 2 or lo - room, log and hi * 2 or hi + room
  elseif not tight then
    local room = log and (hi / lo) ^ 0.05 or (hi - lo) * 0.05
    lo, hi = log and lo / room or lo - room, log and hi * room or hi + room
  end
  local a, b = log and math.log(lo) or lo, log and math.log(hi) or hi
  local self = { lo = lo, hi = hi, log = log }
  function self.place(v)
    if v - v ~= 0 or (log and v <= 0) then return nil end
    return ((log and math.log(v) or v) - a) / (b - a)
  end
  function self.ticks(count) return (log and decades or linear)(lo, hi, count) end
  return self
end

--- How far the middle of a series' bars is from their place, and how wide they are, in units of the axis.
function M.bar(s)
  if s.bars == nil or s.bars == 1 then return 0, s.step end
  local width = 0.8 * s.step / s.bars
  return (s.bar - (s.bars + 1) / 2) * width, width
end

return M
