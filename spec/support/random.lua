-- SPDX-License-Identifier: MIT
-- Reproducible numbers and tensors of every layout for specs. Values come from a small generator of its
-- own, so
-- that a fault in the engine's cannot hide one elsewhere.

local M = {}
M.__index = M

-- A generator; equal seeds give equal numbers. 48-bit linear congruential, high bits used.
function M.new(seed)
  return setmetatable({ state = (seed * 2654435761 + 12345) & 0xffffffffffff }, M)
end

-- Uniform in [lo, hi).
function M:number(lo, hi)
  self.state = (self.state * 25214903917 + 11) & 0xffffffffffff
  local u = (self.state >> 16) / 4294967296.0
  return (lo or -1) + u * ((hi or 1) - (lo or -1))
end

-- A whole number in lo..hi.
function M:int(lo, hi)
  return lo + math.floor(self:number(0, 1) * (hi - lo + 1))
end

local function numel(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end
M.numel = numel

function M:list(n, lo, hi)
  local out = {}
  for i = 1, n do out[i] = self:number(lo, hi) end
  return out
end

function M:ints(n, lo, hi)
  local out = {}
  for i = 1, n do out[i] = self:int(lo, hi) end
  return out
end

-- Distinct values in random order, at least `gap` apart: for max, sort, median.
function M:distinct(n, gap)
  local out = {}
  for i = 1, n do out[i] = (i - n / 2) * (gap or 0.1) + self:number(-0.02, 0.02) * (gap or 0.1) end
  for i = n, 2, -1 do
    local j = self:int(1, i)
    out[i], out[j] = out[j], out[i]
  end
  return out
end

local FORMAT = { f64 = "d", f32 = "f", i64 = "i8", i32 = "i4", i16 = "i2", i8 = "i1", u8 = "I1", bool = "I1" }

-- The little-endian bytes of a flat list (f16 and bf16 have no pattern in string.pack).
function M.pack(list, dtype)
  local out, fmt = {}, "<" .. FORMAT[dtype]
  for i, v in ipairs(list) do
    if v == true then v = 1 elseif v == false then v = 0 end
    out[i] = string.pack(fmt, v)
  end
  return table.concat(out)
end

-- A row-major tensor of the given flat list.
function M.tensor(T, list, shape, dtype)
  dtype = dtype or "f64"
  if dtype == "f16" or dtype == "bf16" then return M.tensor(T, list, shape, "f32"):to(dtype) end
  return T.from_string(M.pack(list, dtype), dtype, shape)
end

-- ---- layouts ------------------------------------------------------------------------------------

-- Names of the layouts that `layout` makes.
M.LAYOUTS = { "plain", "transposed", "step", "offset", "expand" }

-- A tensor with the values of `t` in another layout, or nil where the layout makes no sense for the shape.
-- For
-- "expand" dimension 1 has stride 0, so all its slices hold the values of t's first one.
function M.layout(T, t, kind)
  local shape = t:shape()
  local n = #shape
  if kind == "plain" then return t:clone() end
  if kind == "transposed" then
    if n < 2 then return nil end
    return t:transpose(1, n):contiguous():transpose(1, n)
  end
  if kind == "offset" then
    if n < 1 then return nil end
    shape[n] = shape[n] + 2
    local big = T.zeros(shape, { dtype = t:dtype() })
    local window = big:narrow(n, 2, shape[n] - 2)
    window:copy_(t)
    return window
  end
  if kind == "step" then
    local wide = T.stack({ t, t }, n + 1)
    return wide:select(n + 1, 1)
  end
  if kind == "expand" then
    if n < 1 or shape[1] < 2 then return nil end
    return t:narrow(1, 1, 1):clone():expand(table.unpack(shape))
  end
  error("no layout " .. kind)
end

return M
