-- SPDX-License-Identifier: MIT
--- Modules that watch the range of what goes through them, and tell the scale and zero point with which it is rounded
-- to 8 bits. @module perilune.nn.quant.observers
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local fail = options.fail

local M = {}

local DTYPES = { i8 = { -128, 127 }, u8 = { 0, 255 } }
local EPS = 2.0 ^ -23
local KEEP = { keep_dtype = true } -- ranges and counts are no weights, which a network's dtype is for

local common = { { "dtype", { "i8", "u8" }, "i8" }, { "symmetric", "bool", false },
  { "quant_min", "int", optional = true }, { "quant_max", "int", optional = true } }

local function with(who, list)
  for _, item in ipairs(common) do list[#list + 1] = item end
  return options.spec(who, list)
end

local function set_up(self, who, a)
  local limits = DTYPES[a.dtype]
  self.dtype, self.symmetric = a.dtype, a.symmetric
  self.quant_min, self.quant_max = a.quant_min or limits[1], a.quant_max or limits[2]
  if self.quant_min >= self.quant_max or self.quant_min < limits[1] or self.quant_max > limits[2] then
    fail("%s: quant_min %d and quant_max %d must be within [%d, %d] of %s", who, self.quant_min, self.quant_max,
      limits[1], limits[2], a.dtype)
  end
  local shape = self.dim and { 0 } or {}
  self:register_buffer("min_val", T.full(shape, math.huge), KEEP)
  self:register_buffer("max_val", T.full(shape, -math.huge), KEEP)
end

-- A range for each of some places, of which a new object does not know how many there will be: it takes those of a
-- state.
local function takes_places(first, second, dim_of)
  return function(self, key, t, of)
    if not dim_of(self) or key ~= first and key ~= second then return false end
    local a, b = of(first), of(second)
    return t:dim() == 1 and a ~= nil and b ~= nil and a:dim() == 1 and b:dim() == 1 and a:numel() == b:numel()
  end
end
local takes_range = takes_places("min_val", "max_val", function(self) return self.dim end)

-- Scale f32 and zero point i32 for ranges; the range always holds 0, which padding needs.
local function qparams(self, low, high)
  local n = self.quant_max - self.quant_min
  low, high = low:float():clamp { max = 0 }, high:float():clamp { min = 0 }
  if self.symmetric then
    local scale = (T.maximum(-low, high) / (n / 2)):clamp { min = EPS }
    local zero = (self.quant_min + self.quant_max + 1) // 2 -- 0 of i8, 128 of u8
    return scale, T.full(scale:shape(), zero, { dtype = "i32", device = scale:device() })
  end
  local scale = ((high - low) / n):clamp { min = EPS }
  local zero = (self.quant_min - (low / scale):round()):clamp(self.quant_min, self.quant_max)
  return scale, zero:to("i32")
end

local function seen_any(self) return self.min_val:numel() > 0 and (self.min_val:le(self.max_val)):all():item() end

--- Fails, as who, where an observer has no range: nothing has gone through it, or something that is not finite.
function M.check_range(self, who, where)
  local all = T.cat { self.min_val:flatten(), self.max_val:flatten() }
  if all:isnan():any():item() or seen_any(self) and not all:isfinite():all():item() then
    fail("%s: what went through %s is not finite as f32; look at the data", who, where)
  end
  if not seen_any(self) then
    fail("%s: no data has %s; let some go through %s first", who,
      where == "it" and "been seen" or "gone through " .. where, where == "it" and "it" or "the prepared network")
  end
end

local function extremes(self, x)
  x = x:detach()
  if x:numel() == 0 then return nil end
  if not self.dim then return x:amin():float(), x:amax():float() end
  if self.dim > x:dim() then
    fail("%s: it has a range for each place along dim %d, which is not there in %s", self:type(), self.dim,
      x:describe())
  end
  local dims = {}
  for d = 1, x:dim() do if d ~= self.dim then dims[#dims + 1] = d end end
  if #dims == 0 then return x:float(), x:float() end
  return x:amin(dims):float(), x:amax(dims):float()
end

local function watch(self, x, how)
  if not T.is_tensor(x) or not x:is_floating_point() then
    fail("%s: a floating tensor is wanted, got %s", self:type(), options.describe(x))
  end
  T.no_grad(function()
    local low, high = extremes(self, x)
    if not low then return end
    if self.min_val:numel() == 0 then -- one number a channel: how many is known now
      self.min_val = T.full_like(low, math.huge)
      self.max_val = T.full_like(low, -math.huge)
    elseif self.min_val:numel() ~= low:numel() then -- which would broadcast
      fail("%s: dim %d of its input has had %d places, and now %s", self:type(), self.dim, self.min_val:numel(),
        x:describe())
    end
    local fresh = self.min_val:gt(self.max_val)
    low, high = how(self.min_val, low, T.minimum, fresh), how(self.max_val, high, T.maximum, fresh)
    self.min_val:copy_(low)
    self.max_val:copy_(high)
  end)
  return x
end

local function repr(self)
  local parts = { "dtype=" .. self.dtype }
  if self.dim then parts[#parts + 1] = "dim=" .. self.dim end
  if self.symmetric then parts[#parts + 1] = "symmetric=true" end
  return table.concat(parts, ", ")
end

--- nn.quant.MinMaxObserver(…) → module
-- Returns its input and remembers the smallest and largest number seen, or those of each place along dim.
-- obs:calculate_qparams() → scale f32, zero point i32, for whole numbers of dtype from quant_min to quant_max;
-- symmetric: 0 is in the middle.
-- Shapes: [*] → the same
--   local obs = nn.quant.MinMaxObserver { dtype = "u8" }
--   obs(T.tensor { -1, 0, 4.1 })
--   local scale, zero = obs:calculate_qparams()
--   print(scale:item(), zero:item())  --> 0.019999999552965	50
local MinMax = base.class "MinMaxObserver"
local minmax_spec = with("nn.quant.MinMaxObserver", { { "dim", "count", optional = true } })
function MinMax:init(...)
  local a = options.read(minmax_spec, ...)
  self.dim = a.dim
  set_up(self, "nn.quant.MinMaxObserver", a)
end
MinMax.takes_shape = takes_range
function MinMax:forward(x) return watch(self, x, function(old, new, f) return f(old, new) end) end
function MinMax:qparams() return qparams(self, self.min_val, self.max_val) end
function MinMax:calculate_qparams()
  M.check_range(self, self:type(), "it")
  return self:qparams()
end
MinMax.extra_repr = repr
M.MinMaxObserver = MinMax

--- nn.quant.MovingAverageMinMaxObserver(…) → module
-- nn.quant.MinMaxObserver of which each further input moves the range by a share averaging_constant of the way to its
-- own.
-- Shapes: [*] → the same
--   local obs = nn.quant.MovingAverageMinMaxObserver { averaging_constant = 0.5 }
--   obs(T.tensor { 0, 1 })
--   obs(T.tensor { 0, 3 })
--   print(obs.max_val:item())  --> 2.0
local Moving = base.class "MovingAverageMinMaxObserver"
local moving_spec = with("nn.quant.MovingAverageMinMaxObserver", { { "averaging_constant", "probability", 0.01 },
  { "dim", "count", optional = true } })
function Moving:init(...)
  local a = options.read(moving_spec, ...)
  self.dim, self.averaging_constant = a.dim, a.averaging_constant
  set_up(self, "nn.quant.MovingAverageMinMaxObserver", a)
end
Moving.takes_shape = takes_range
function Moving:forward(x)
  return watch(self, x, function(old, new, _, fresh)
    return T.where(fresh, new, old + (new - old) * self.averaging_constant)
  end)
end
Moving.qparams, Moving.calculate_qparams = MinMax.qparams, MinMax.calculate_qparams
Moving.extra_repr = repr
M.MovingAverageMinMaxObserver = Moving

--- nn.quant.HistogramObserver(…) → module
-- Counts its input in bins equal parts of a range that grows with it. calculate_qparams cuts the range where
-- the mean square of what rounding and cutting change is smallest; with percentile, so that this share of the numbers,
-- in %, stays inside.
-- Shapes: [*] → the same
--   T.manual_seed(1)
--   local obs = nn.quant.HistogramObserver { percentile = 99.9 }
--   obs(T.cat { T.randn(10000), T.tensor { 100 } })
--   print((obs:calculate_qparams()):item() < 0.05)  --> true
local Histogram = base.class "HistogramObserver"
local histogram_spec = with("nn.quant.HistogramObserver", { { "bins", "count", 2048 },
  { "percentile", "positive", optional = true } })
function Histogram:init(...)
  local a = options.read(histogram_spec, ...)
  if a.bins % 2 ~= 0 then fail("nn.quant.HistogramObserver: bins must be even, got %d", a.bins) end
  if a.percentile and (a.percentile > 100 or a.percentile <= 50) then
    fail("nn.quant.HistogramObserver: percentile must be above 50 and at most 100, got %g", a.percentile)
  end
  self.bins, self.percentile = a.bins, a.percentile
  set_up(self, "nn.quant.HistogramObserver", a)
  self:register_buffer("histogram", T.zeros({ a.bins }, { dtype = "f64" }), KEEP)
  self:register_buffer("range", T.zeros({ 2 }, { dtype = "f64" }), KEEP) -- of the bins
end

-- Twice the range, to the left or to the right: two bins become one.
local function widen(self, low, high, left)
  local half = self.histogram:view(-1, 2):sum(2)
  local none = T.zeros_like(half)
  self.histogram:copy_(T.cat(left and { none, half } or { half, none }))
  if left then return low - (high - low), high end
  return low, high + (high - low)
end

function Histogram:forward(x)
  local first = not seen_any(self)
  watch(self, x, function(old, new, f) return f(old, new) end)
  if x:numel() == 0 then return x end
  T.no_grad(function()
    local least, most = self.min_val:item(), self.max_val:item()
    if least ~= least or most ~= most or math.abs(least) == math.huge or math.abs(most) == math.huge then
      fail "HistogramObserver: its input is not finite"
    end
    local low, high = self.range:get(1), self.range:get(2)
    if first then
      low, high = least, most
      if low == high then low, high = low - 0.5 * math.abs(low) - 1e-6, high + 0.5 * math.abs(high) + 1e-6 end
    end
    while least < low do low, high = widen(self, low, high, true) end
    while most > high do low, high = widen(self, low, high, false) end
    self.range:copy_(T.tensor({ low, high }, { dtype = "f64", device = self.range:device() }))
    self.histogram:add_(x:detach():double():flatten():histc { bins = self.bins, min = low, max = high })
  end)
  return x
end

local SHARES = 100

Histogram.calculate_qparams = MinMax.calculate_qparams
function Histogram:qparams()
  local low, high = self.range:get(1), self.range:get(2)
  local width = (high - low) / self.bins
  local here = { device = self.range:device() }
  local centers = T.arange(1, self.bins, here):double() * width + (low - 0.5 * width)
  local least, most = self.min_val:double(), self.max_val:double()
  if self.percentile then
    local running = self.histogram:cumsum(1) / self.histogram:sum()
    local outside = (1 - self.percentile / 100) / 2
    local inside = running:gt(outside):logical_and((running - self.histogram / self.histogram:sum()):lt(1 - outside))
    local kept = centers:masked_select(inside)
    least, most = T.maximum(least, kept:amin() - width / 2), T.minimum(most, kept:amax() + width / 2)
    return qparams(self, least, most)
  end
  -- a row for each share of the range that stays
  local share = (T.arange(1, SHARES, here):double() / SHARES):flip(1)
  local lows, highs = least * share, most * share
  local scale, zero = qparams(self, lows, highs)
  local s, z = scale:double():unsqueeze(2), zero:double():unsqueeze(2)
  local q = ((centers / s):round() + z):clamp(self.quant_min, self.quant_max)
  local lost = (((q - z) * s - centers):square() * self.histogram):sum(2)
  local best = lost:argmin():item()
  return scale[best]:clone(), zero[best]:clone()
end
Histogram.extra_repr = repr
M.HistogramObserver = Histogram

--- nn.quant.FakeQuantize(…) → module
-- What is left of its input when it is rounded with observer's scale and zero point, and a gradient that passes
-- through: T.fake_quantize_per_tensor_affine, or per channel. While it trains the observer sees the input first, in
-- evaluation it does not. fq:enable_observer(on), fq:enable_fake_quant(on).
-- Shapes: [*] → the same
--   local fq = nn.quant.FakeQuantize { observer = nn.quant.MinMaxObserver { quant_min = 0, quant_max = 2 } }
--   print(fq(T.tensor { 0, 0.9, 2 }))  --> {0., 1., 2.}  -- f32[3] cpu
local Fake = base.class "FakeQuantize"
local fake_spec = options.spec("nn.quant.FakeQuantize", { { "observer", "any", optional = true } })
function Fake:init(...)
  local a = options.read(fake_spec, ...)
  local observer = a.observer or Moving()
  if not base.is_module(observer) or not observer.qparams then
    fail("nn.quant.FakeQuantize: observer must be one of nn.quant's observers, got %s", options.describe(observer))
  end
  self.observer = observer
  self.observing, self.rounding = true, true
  self:register_buffer("scale", T.full(observer.dim and { 0 } or {}, 0 / 0), KEEP) -- nothing is known yet
  self:register_buffer("zero_point", T.zeros(observer.dim and { 0 } or {}, { dtype = "i32" }))
end

Fake.takes_shape = takes_places("scale", "zero_point", function(self) return self.observer.dim end)

local function put(self, name, t)
  if self[name]:numel() ~= t:numel() then self[name] = t:clone() else self[name]:copy_(t) end
end

--- What the observer has seen becomes scale and zero point; where that is nothing the scale is NaN. Nobody asks whether
-- it is, as a trace of T.jit could not answer.
function Fake:update()
  T.no_grad(function()
    local o = self.observer
    local scale, zero = o:qparams()
    scale = T.where(o.min_val:gt(o.max_val), T.full_like(scale, 0 / 0), scale) -- nothing has been seen: not known yet
    put(self, "scale", scale)
    put(self, "zero_point", zero)
  end)
  return self
end

function Fake:forward(x)
  if self.observing and self.training then
    self.observer(x)
    self:update()
  end
  if not self.rounding then return x end
  local o = self.observer
  if o.dim then
    return T.fake_quantize_per_channel_affine(x, self.scale, self.zero_point, o.dim, o.quant_min, o.quant_max)
  end
  return T.fake_quantize_per_tensor_affine(x, self.scale, self.zero_point, o.quant_min, o.quant_max)
end

local function switch(field, who)
  return function(self, on)
    if on ~= nil then options.kind(who, "on", "bool", on) end
    self[field] = on ~= false
    return self
  end
end
Fake.enable_observer = switch("observing", "enable_observer")
Fake.enable_fake_quant = switch("rounding", "enable_fake_quant")
M.FakeQuantize = Fake

return M
