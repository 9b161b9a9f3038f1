-- SPDX-License-Identifier: MIT
--- Columns of tables on one scale: mean 0 and standard deviation 1, by the numbers of the training rows.
-- @module perilune.data.standardizer
local T = require "perilune"
local classes = require "perilune.classes"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local Standardizer = classes.new("Standardizer", "s")
Standardizer.__tostring = function(self) return ("Standardizer of %d columns"):format(self.mean:numel()) end

local function rows(who, x, columns)
  if not T.is_tensor(x) or not x:is_floating_point() or x:dim() < 1 or columns and x:size(-1) ~= columns then
    fail("%s: a floating tensor [..., %s] is wanted, got %s", who, columns or "columns", describe(x))
  end
  return x
end

local kept_as = { f16 = "f32", bf16 = "f32" }
local ELEMENTS = 1 << 20 -- columns are taken so many at a time, for the sake of memory

-- 1 where std is 0: a column of equal values is moved, not scaled.
local function nonzero(std) return T.where(std:eq(0), T.ones_like(std), std) end

-- Means and deviations of columns in f64, the first of which is number `first` of what is shown.
local function learned(x, first, shown)
  local missing = x:isnan()
  local n = missing:logical_not():sum(1):double()
  if n:min():item() == 0 then
    fail("data.Standardizer: column %d of %s has no value", first - 1 + n:argmin():item(), shown)
  end
  -- Equal values are known by being equal: what rounding leaves of their spread would be as large as small spreads are.
  local low, high = x:masked_fill(missing, math.huge):amin(1), x:masked_fill(missing, -math.huge):amax(1)
  local infinite = low:isinf():logical_or(high:isinf())
  if infinite:any():item() then
    fail("data.Standardizer: column %d of %s holds infinite values", first - 1 + infinite:long():argmax():item(), shown)
  end
  local function mean_of(v) return v:masked_fill(missing, 0):sum(1) / n end
  local mean = mean_of(x)
  local off = x - mean
  local var = mean_of(off:square()) - mean_of(off):square() -- of which the mean's rounding is taken away
  local equal = low:eq(high)
  return T.where(equal, low, mean), var:clamp { min = 0 }:sqrt():masked_fill(equal, 0)
end

--- T.data.Standardizer(x) → standardizer
-- Learns mean and standard deviation (of the population) of the columns of x [rows, columns], NaN left out: s(x) is
-- (x - mean) / std for any rows, s:inverse(z) goes back, and s.mean, s.std are there to be saved: s:state_dict(),
-- s:load_state_dict(t). Of a column of equal values std is 1.
--   local s = T.data.Standardizer(T.tensor { { 1, 5 }, { 3, 5 } })
--   print(s(T.tensor { { 1, 5 }, { 4, 6 } }))
--   --> {{-1.,  0.},
--   -->  { 2.,  1.}}  -- f32[2,2] cpu
--   print(s:inverse(T.tensor { { 2, 1 } }))  --> {{4., 6.}}  -- f32[1,2] cpu
local spec = options.spec("data.Standardizer", { { "x", "any" } })
local function new(_, ...)
  local x = options.read(spec, ...).x
  rows("data.Standardizer", x)
  if x:dim() ~= 2 or x:numel() == 0 then
    fail("data.Standardizer: rows are wanted, [rows, columns], got %s", x:describe())
  end
  local _ <close> = T.no_grad()
  local means, stds, width = {}, {}, math.max(1, ELEMENTS // x:size(1))
  for first = 1, x:size(2), width do
    local n = math.min(width, x:size(2) - first + 1)
    means[#means + 1], stds[#stds + 1] = learned(x:narrow(2, first, n):double(), first, x:describe())
  end
  local dtype = kept_as[x:dtype()] or x:dtype()
  return setmetatable({ mean = T.cat(means, 1):to(dtype), std = nonzero(T.cat(stds, 1):to(dtype)) }, Standardizer)
end

-- Halves are computed in f32, as mean and std are kept.
local function as(x, y) return kept_as[x:dtype()] and y:to(x:dtype()) or y end

function Standardizer:__call(x)
  rows("Standardizer", x, self.mean:numel())
  return as(x, (x - self.mean) / self.std)
end

--- The rows that gave these.
function Standardizer:inverse(z)
  rows("Standardizer:inverse", z, self.mean:numel())
  return as(z, z * self.std + self.mean)
end

function Standardizer:state_dict() return { mean = self.mean, std = self.std } end

function Standardizer:load_state_dict(state)
  options.check("Standardizer:load_state_dict", state, { "mean", "std" })
  for _, key in ipairs { "mean", "std" } do
    local t = type(state) == "table" and state[key]
    if not T.is_tensor(t) or t:dim() ~= 1 or not t:is_floating_point() or t:numel() ~= self.mean:numel() then
      fail("Standardizer:load_state_dict: %s must be floating [%d], got %s", key, self.mean:numel(), describe(t))
    end
  end
  self.mean, self.std = state.mean, nonzero(state.std)
end

return { Standardizer = setmetatable(Standardizer, { __call = new, __name = "class" }) }
