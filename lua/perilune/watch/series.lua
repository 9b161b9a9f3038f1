-- SPDX-License-Identifier: MIT
--- The numbers of one name over steps, in bounded room however long the run is: at most MOST points. Beyond that two
-- neighbours become one, which keeps the last step, the mean, the least and the greatest of what it stands for, so that
-- no peak is lost.
-- @module perilune.watch.series
local Series = {}
Series.__index = Series

local MOST = 2000

local made = 0

function Series.new(name, along)
  made = made + 1
  return setmetatable({ name = name, along = along, generation = made, n = 0, per = 1, filled = 0, total = 0,
    broken = 0, x = {}, y = {}, low = {}, high = {} }, Series)
end

-- Two points become one; those who have read the series have to read it again.
local function halve(self)
  local x, y, low, high = self.x, self.y, self.low, self.high
  for i = 1, MOST // 2 do
    local a, b = 2 * i - 1, 2 * i
    x[i], y[i] = x[b], (y[a] + y[b]) / 2
    low[i], high[i] = math.min(low[a], low[b]), math.max(high[a], high[b])
  end
  for i = MOST // 2 + 1, MOST do x[i], y[i], low[i], high[i] = nil, nil, nil, nil end
  made = made + 1
  self.n, self.per, self.generation = MOST // 2, self.per * 2, made
end

--- A number at a step. What is not finite is counted, not drawn.
function Series:add(x, y)
  if y - y ~= 0 then
    self.broken = self.broken + 1
    return
  end
  self.last, self.total = y, self.total + 1
  if self.filled == 0 or self.filled == self.per then
    if self.n == MOST then halve(self) end
    local n = self.n + 1
    self.n, self.filled, self.x[n], self.y[n], self.low[n], self.high[n] = n, 1, x, y, y, y
    return
  end
  local n = self.n
  self.filled = self.filled + 1
  self.x[n], self.y[n] = x, self.y[n] + (y - self.y[n]) / self.filled
  self.low[n], self.high[n] = math.min(self.low[n], y), math.max(self.high[n], y)
end

--- Forgets what stands at x and behind it: a run that goes on from a checkpoint takes these steps once more.
function Series:rewind(x)
  if self.n == 0 or self.x[self.n] < x then return end
  while self.n > 0 and self.x[self.n] >= x do
    local n = self.n
    self.x[n], self.y[n], self.low[n], self.high[n] = nil, nil, nil, nil
    self.n = n - 1
  end
  made = made + 1
  self.generation, self.filled = made, self.per
end

local function numbers(list, from, n)
  local out = {}
  for i = from, n do
    local v = list[i]
    out[#out + 1] = math.type(v) == "integer" and ("%d"):format(v) or ("%.6g"):format(v)
  end
  return "[" .. table.concat(out, ",") .. "]"
end

--- As JSON, what somebody lacks who has read n points of a generation, made of `total` numbers; nil: nothing. The last
-- of those points may have changed since.
function Series:news(generation, n, total)
  local from = 1
  if generation == self.generation then
    if total == self.total then return nil end
    from = math.max(1, math.min(n, self.n))
  end
  return ('"generation":%d,"total":%d,"from":%d,"x":%s,"y":%s%s'):format(self.generation, self.total, from,
    numbers(self.x, from, self.n), numbers(self.y, from, self.n),
    self.per > 1 and (',"low":%s,"high":%s'):format(numbers(self.low, from, self.n),
      numbers(self.high, from, self.n)) or "")
end

return Series
