-- SPDX-License-Identifier: MIT
--- Rotary embeddings: places as angles by which pairs of numbers are turned, with the rules by which models stretch
-- them to longer texts. @module perilune.nn.rotary
local T = require "perilune"
local base = require "perilune.nn.module"
local options = require "perilune.options"

local fail, describe = options.fail, options.describe
local cat = T.cat
local log, pi = math.log, math.pi

-- ---- frequencies: f(settings, length) → list of angles per place, and the factor on cos and sin ------------

local function plain(s, theta)
  local list = {}
  for i = 1, s.dim // 2 do list[i] = 1 / theta ^ (2 * (i - 1) / s.dim) end
  return list
end

local function each(list, f)
  local out = {}
  for i, w in ipairs(list) do out[i] = f(w, i) end
  return out
end

local kinds = {}

function kinds.default(s) return plain(s, s.base), 1.0 end

-- All places divided by factor (Chen et al. 2023).
function kinds.linear(s) return each(plain(s, s.base), function(w) return w / s.factor end), 1.0 end

-- A larger base beyond the trained length ("NTK-aware", bloc97 and emozilla 2023).
function kinds.dynamic(s, length)
  local n = math.max(length, s.max_positions)
  local theta = s.base * (s.factor * n / s.max_positions - (s.factor - 1)) ^ (s.dim / (s.dim - 2))
  return plain(s, theta), 1.0
end

-- Long waves divided by factor, short ones kept, those between blended (Llama 3.1).
function kinds.llama3(s)
  local old = s.original_max_positions
  local long, short = old / s.low_freq_factor, old / s.high_freq_factor
  return each(plain(s, s.base), function(w)
    local wave = 2 * pi / w
    if wave < short then return w end
    if wave > long then return w / s.factor end
    local share = (old / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1 - share) * w / s.factor + share * w
  end), 1.0
end

-- A ramp between kept and divided frequencies, and hotter attention (Peng et al. 2023).
function kinds.yarn(s)
  local old, factor = s.original_max_positions, s.factor
  local function hot(scale, m) return scale <= 1 and 1.0 or 0.1 * (m or 1) * log(scale) + 1 end
  local heat = s.attention_factor
  if not heat and s.mscale and s.mscale_all_dim and s.mscale ~= 0 and s.mscale_all_dim ~= 0 then
    heat = hot(factor, s.mscale) / hot(factor, s.mscale_all_dim)
  end
  local function place(turns) return s.dim * log(old / (turns * 2 * pi)) / (2 * log(s.base)) end
  local from, to = place(s.beta_fast), place(s.beta_slow)
  if s.truncate then from, to = math.floor(from), math.ceil(to) end
  from, to = math.max(from, 0), math.min(to, s.dim - 1)
  if from == to then to = to + 0.001 end
  return each(plain(s, s.base), function(w, i)
    local ramp = math.min(1, math.max(0, (i - 1 - from) / (to - from)))
    return w / factor * ramp + w * (1 - ramp)
  end), heat or hot(factor)
end

-- A divisor for each frequency, one list up to the trained length and one beyond (Ding et al. 2024).
function kinds.longrope(s, length)
  local by = length > s.original_max_positions and s.long_factor or s.short_factor
  local heat = s.attention_factor
    or s.factor <= 1 and 1.0 or math.sqrt(1 + log(s.factor) / log(s.original_max_positions))
  return each(plain(s, s.base), function(w, i) return w / by[i] end), heat
end

local names = { "default", "linear", "dynamic", "llama3", "yarn", "longrope" }
local needed = { linear = { "factor" }, dynamic = { "factor", "max_positions" },
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_positions" },
  yarn = { "factor", "original_max_positions" },
  longrope = { "factor", "short_factor", "long_factor", "original_max_positions" } }

--- nn.RotaryEmbedding(…) → module
-- Angles of places, and the turn of queries and keys by them (Su et al. 2021). rope(positions) → cos, sin;
-- rope:rotate(x, cos, sin) turns the first dim numbers of each row of x [B, H, L, D] and leaves the others; number i
-- goes with number i + dim/2, or with its neighbour where interleaved. Positions count from 0. kind, one of default,
-- linear, dynamic, llama3, yarn, longrope, says how a longer text than that of training is met. Angles are f32.
-- Shapes: positions [B, L] → cos, sin [B, L, dim/2]
--   local rope = nn.RotaryEmbedding(2)
--   local cos, sin = rope(T.tensor({ { 0, 1 } }, { dtype = "i64" }))
--   print(rope:rotate(T.tensor { { { { 1, 0 }, { 1, 0 } } } }, cos, sin):flatten())
--   --> {1.0000, 0.0000, 0.5403, 0.8415}  -- f32[4] cpu
local Rotary = base.class "RotaryEmbedding"
local spec = options.spec("nn.RotaryEmbedding", {
  { "dim", "count" }, { "base", "positive", 10000.0 }, { "kind", names, "default" }, { "interleaved", "bool", false },
  { "factor", "positive", optional = true }, { "max_positions", "count", optional = true },
  { "original_max_positions", "count", optional = true }, { "low_freq_factor", "positive", optional = true },
  { "high_freq_factor", "positive", optional = true }, { "beta_fast", "positive", 32.0 },
  { "beta_slow", "positive", 1.0 }, { "truncate", "bool", true }, { "mscale", "number", optional = true },
  { "mscale_all_dim", "number", optional = true }, { "attention_factor", "positive", optional = true },
  { "short_factor", "numbers", optional = true }, { "long_factor", "numbers", optional = true } })

function Rotary:init(...)
  local s = options.read(spec, ...)
  if s.dim % 2 ~= 0 then fail("nn.RotaryEmbedding: dim must be even, got %d", s.dim) end
  for _, name in ipairs(needed[s.kind] or {}) do
    if s[name] == nil then fail("nn.RotaryEmbedding: kind %s needs %s", s.kind, name) end
  end
  for _, name in ipairs { "short_factor", "long_factor" } do
    local list = s[name]
    if list and (type(list) ~= "table" or #list ~= s.dim // 2) then
      fail("nn.RotaryEmbedding: %s must have %d entries, one for each pair, got %s", name, s.dim // 2,
        type(list) == "table" and #list or describe(list))
    end
  end
  if s.kind == "dynamic" and s.dim == 2 then fail "nn.RotaryEmbedding: kind dynamic needs a dim above 2" end
  self.dim, self.kind, self.base, self.interleaved = s.dim, s.kind, s.base, s.interleaved
  rawset(self, "_settings", s)
  self._by_length = s.kind == "dynamic" or s.kind == "longrope"
  self:set_frequencies(0)
end

--- What the angles of a text of n places depend on: two texts have the same where this is equal; nil where no length
-- matters.
function Rotary:stretch(n)
  local s = self._settings
  if s.kind == "dynamic" then return math.max(n, s.max_positions) end
  if s.kind == "longrope" then return n > s.original_max_positions end
end

-- The buffer of frequencies for texts of a length; where the length does not matter that is the only one.
function Rotary:set_frequencies(length)
  local s = self._settings
  local list, heat = kinds[s.kind](s, length)
  self.heat = heat
  self._for = self:stretch(length)
  local like = self.inv_freq
  self:register_buffer("inv_freq", T.tensor(list, { dtype = "f32", device = like and like:device() }),
    { persistent = false, keep_dtype = true })
end

--- (positions)
function Rotary:forward(positions)
  if not T.is_tensor(positions) or positions:is_floating_point() or positions:dim() ~= 2 then
    fail("RotaryEmbedding: positions must be integers [B, L], got %s", describe(positions))
  end
  if self._by_length then
    local n = positions:numel() > 0 and positions:max():item() + 1 or 0
    if self:stretch(n) ~= self._for then self:set_frequencies(n) end
    self._length = n
  end
  local angle = positions:to(self.inv_freq:device()):float():unsqueeze(3) * self.inv_freq
  local cos, sin = angle:cos(), angle:sin()
  if self.heat ~= 1 then cos, sin = cos * self.heat, sin * self.heat end
  return cos, sin
end

--- x [B, H, L, D], its first dim numbers turned by the angles of places: cos, sin [B or 1, L, dim/2].
function Rotary:rotate(x, cos, sin)
  if not (T.is_tensor(x) and T.is_tensor(cos) and T.is_tensor(sin)) or x:dim() ~= 4 or cos:dim() ~= 3
    or cos:size(3) * 2 > x:size(4) or cos:size(2) ~= x:size(3) then
    fail("RotaryEmbedding:rotate: x [B, H, L, D] and cos, sin [B, L, n], 2 n <= D, are wanted, got %s, %s, %s",
      describe(x), describe(cos), describe(sin))
  end
  local n, d, dtype = cos:size(3), x:size(4), x:dtype()
  local c, s = cos:to(dtype):unsqueeze(2), sin:to(dtype):unsqueeze(2)
  local turned, y = 2 * n < d and x:narrow(4, 1, 2 * n) or x
  if self.interleaved then
    local pair = turned:unflatten(4, { n, 2 })
    local a, b = pair:select(5, 1), pair:select(5, 2)
    y = T.stack({ a * c - b * s, b * c + a * s }, 5):flatten(4, 5)
  else
    local a, b = turned:narrow(4, 1, n), turned:narrow(4, n + 1, n)
    y = cat({ a * c - b * s, b * c + a * s }, 4)
  end
  return 2 * n < d and cat({ y, x:narrow(4, 2 * n + 1, d - 2 * n) }, 4) or y
end

function Rotary:extra_repr() return ("%d, base=%g, kind=%s"):format(self.dim, self.base, self.kind) end

return { RotaryEmbedding = Rotary }
