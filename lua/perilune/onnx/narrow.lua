-- SPDX-License-Identifier: MIT
--- Element types of ONNX that have no dtype here: unsigned integers of 16 to 64 bits, integers of 2 and 4 bits,
-- floats of 4 and 8 bits. Their values are kept in a wider dtype; a label remembers what they are, because arithmetic
-- on them wraps, and quantization and casts saturate, at their limits.
-- @module perilune.onnx.narrow
local T = require "perilune"

local narrow = {}

--- Tensor → the name of its ONNX type, where its dtype does not say it.
narrow.label = setmetatable({}, { __mode = "k" })
local label = narrow.label

--- Name → dtype: what it is kept in; bits of an element; of integers: low, high; of floats: digits behind the binary
-- point, the least exponent of a normal number, the largest number, infinite: infinities are numbers of it, finite: it
-- has not even NaN, one_zero: -0 is none of its numbers (https://onnx.ai/onnx/technical/float8.html, float4.html;
-- float8e8m0 are powers of two: the scales of OCP's microscaling formats).
narrow.kinds = {
  uint16 = { dtype = "i32", bits = 16, low = 0, high = 0xffff },
  uint32 = { dtype = "i64", bits = 32, low = 0, high = 0xffffffff },
  uint64 = { dtype = "i64", bits = 64, low = 0, high = math.maxinteger }, -- what is larger is refused
  uint4 = { dtype = "u8", bits = 4, low = 0, high = 15 }, int4 = { dtype = "i8", bits = 4, low = -8, high = 7 },
  uint2 = { dtype = "u8", bits = 2, low = 0, high = 3 }, int2 = { dtype = "i8", bits = 2, low = -2, high = 1 },
  float8e4m3fn = { dtype = "f32", bits = 8, digits = 3, least = -6, largest = 448 },
  float8e4m3fnuz = { dtype = "f32", bits = 8, digits = 3, least = -7, largest = 240, one_zero = true },
  float8e5m2 = { dtype = "f32", bits = 8, digits = 2, least = -14, largest = 57344, infinite = true },
  float8e5m2fnuz = { dtype = "f32", bits = 8, digits = 2, least = -15, largest = 57344, one_zero = true },
  float4e2m1 = { dtype = "f32", bits = 4, digits = 1, least = 0, largest = 6, finite = true },
  float8e8m0 = { dtype = "f32", bits = 8, powers = true },
}
local kinds = narrow.kinds

--- t with the label `name`; as a tensor of its own where it is one of `taken` (a list), whose labels stay.
function narrow.mark(t, name, taken)
  for i = 1, taken and (taken.n or #taken) or 0 do if rawequal(taken[i], t) then t = t:detach() end end
  label[t] = name
  return t
end

--- Is it a float of 4 or 8 bits?
function narrow.is_float(name) return name ~= nil and kinds[name] ~= nil and kinds[name].low == nil end

-- ---- numbers -------------------------------------------------------------------------------------------------------

-- The number whose bits are `code`.
local function decoded(kind, code)
  if kind.powers then return code == 255 and 0 / 0 or 2.0 ^ (code - 127) end
  local half = 1 << (kind.bits - 1)
  local sign, magnitude = code >= half and -1.0 or 1.0, code % half
  if kind.one_zero and code == half then return 0 / 0 end
  local exponent, digits = magnitude >> kind.digits, magnitude & ((1 << kind.digits) - 1)
  local value = exponent == 0 and digits * 2.0 ^ (kind.least - kind.digits)
    or (1 + digits / (1 << kind.digits)) * 2.0 ^ (exponent - 1 + kind.least)
  if value > kind.largest then value = kind.infinite and digits == 0 and 1 / 0 or 0 / 0 end
  return sign * value
end

-- Whole bytes → the codes in them, of several the lowest bits first.
local function codes(bytes, bits)
  if bits == 8 then return bytes end
  local parts = {}
  for shift = 0, 7, bits do
    parts[#parts + 1] = T.bitwise_right_shift(bytes, shift):bitwise_and((1 << bits) - 1)
  end
  return T.stack(parts, 2):reshape(-1)
end

--- A u8 tensor of bytes → n elements of a type of at most 8 bits, as its dtype.
function narrow.unpack(bytes, name, n)
  local kind, table_ = kinds[name], {}
  for code = 0, (1 << kind.bits) - 1 do
    if kind.low then
      table_[code + 1] = code > kind.high and code - (1 << kind.bits) or code
    else
      table_[code + 1] = decoded(kind, code)
    end
  end
  local all = T.tensor(table_, { dtype = kind.dtype })
  return all:index_select(1, codes(bytes, kind.bits):narrow(1, 1, n):to("i64") + 1)
end

-- ---- conversions ---------------------------------------------------------------------------------------------------

--- Integers of any dtype → those of the type, of which the lowest bits are kept. As its dtype.
function narrow.wrap(x, name)
  local kind = kinds[name]
  if kind.bits == 64 then return x:to(kind.dtype) end
  local wide = x:to(kind.bits == 32 and "i64" or "i32")
  local y = wide & ((1 << kind.bits) - 1)
  if kind.low < 0 then y = T.where(y:gt(kind.high), y - (1 << kind.bits), y) end
  return y:to(kind.dtype)
end

local rounding = { up = T.ceil, down = T.floor }

-- Powers of two, never below 2^-127; of a negative number its magnitude's, as onnx's own conversion does it. mode:
-- "up", "down", "nearest" (from the middle up).
local function power(x, saturate, mode, fail)
  if mode ~= "nearest" and not rounding[mode] then fail("round_mode '%s'", mode) end
  local mantissa, exponent = x:abs():frexp() -- mantissa in [1/2, 1)
  local e = exponent:to("f64") - 1
  if mode == "up" then
    e = e + mantissa:gt(0.5):to "f64"
  elseif mode == "nearest" then
    e = e + mantissa:ge(0.75):to "f64"
  end
  e = T.where(x:eq(0), T.full_like(e, -127), e:clamp({ min = -127 }))
  if saturate then e = e:clamp({ max = 127 }) end
  local wrong = T.logical_or(x:isfinite():logical_not(), e:gt(127))
  return T.where(wrong, T.full_like(e, 0 / 0), T.exp2(e)):to "f32"
end

--- Floats → the nearest ones of a float type, of two the even one, as its dtype. saturate: what is beyond the largest
-- becomes that, infinities included; otherwise it becomes infinite where the type has infinities, else NaN. mode: of
-- float8e8m0. fail(fmt, …): for what is refused.
function narrow.round(x, name, saturate, mode, fail)
  local kind = kinds[name]
  if x:dtype() ~= "f64" then x = x:to "f32" end
  x = x:detach()
  if kind.powers then return power(x, saturate, mode or "up", fail) end
  local _, exponent = T.where(x:isfinite(), x, T.zeros_like(x)):frexp()
  local unit = T.exp2((exponent:to(x:dtype()) - 1):clamp({ min = kind.least }) - kind.digits)
  local y = (x / unit):round() * unit
  if saturate or kind.finite then
    y = y:clamp({ min = -kind.largest, max = kind.largest })
    if kind.finite then y = T.where(y:isnan(), T.full_like(y, -0.0), y) end
  else
    local beyond = y:abs():gt(kind.largest)
    y = T.where(beyond, kind.infinite and y:sign() * (1 / 0) or T.full_like(y, 0 / 0), y)
  end
  if kind.one_zero then y = y + 0.0 end
  return y:to(kind.dtype)
end

return narrow
