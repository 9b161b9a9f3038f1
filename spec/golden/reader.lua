-- SPDX-License-Identifier: MIT
-- Reads golden files (plain data: a Lua table of cases and a flat little-endian .bin beside it), builds
-- tensors
-- from them with their exact layout, and judges results in plain Lua.

local M = {}

M.size = { f64 = 8, f32 = 4, f16 = 2, bf16 = 2, i64 = 8, i32 = 4, i16 = 2, i8 = 1, u8 = 1, bool = 1 }
M.floating = { f64 = true, f32 = true, f16 = true, bf16 = true }
local FORMAT = {
  f64 = "d", f32 = "f", f16 = "I2", bf16 = "I2", i64 = "i8", i32 = "i4", i16 = "i2", i8 = "i1", u8 = "I1",
  bool = "I1",
}
local BLOCK = 100 -- string.unpack returns at most a stackful

-- The value of a 16-bit float pattern with `ebits` of exponent and `mbits` of mantissa.
local function half(h, ebits, mbits)
  local sign = h >> 15 == 1 and -1.0 or 1.0
  local e, m = h >> mbits & (1 << ebits) - 1, h & (1 << mbits) - 1
  local bias = (1 << ebits - 1) - 1
  if e == (1 << ebits) - 1 then return m ~= 0 and 0 / 0 or sign * math.huge end
  if e == 0 then return sign * m * 2.0 ^ (1 - bias - mbits) end
  return sign * (m + (1 << mbits)) * 2.0 ^ (e - bias - mbits)
end

local function table_of(ebits, mbits)
  return setmetatable({}, { __index = function(t, h)
    local v = half(h, ebits, mbits)
    t[h] = v
    return v
  end })
end
local F16, BF16 = table_of(5, 10), table_of(8, 7)
local DECODE = { f16 = F16, bf16 = BF16 }

-- The n values of `dtype` in `bytes`, as a flat list. Booleans are 0 and 1.
function M.decode(bytes, dtype, n)
  local out, fmt, size = {}, FORMAT[dtype], M.size[dtype]
  local full = "<" .. fmt:rep(BLOCK)
  local i = 1
  while i <= n do
    local k = math.min(BLOCK, n - i + 1)
    local got = { string.unpack(k == BLOCK and full or "<" .. fmt:rep(k), bytes, (i - 1) * size + 1) }
    table.move(got, 1, k, i, out)
    i = i + k
  end
  local map = DECODE[dtype]
  if map then
    for j = 1, n do out[j] = map[out[j]] end
  end
  return out
end

function M.numel(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

local function read_file(path)
  local f, why = io.open(path, "rb")
  if not f then return nil, why end
  local s = f:read("a")
  f:close()
  return s
end

-- The table of <dir>/<name>.lua, loaded without any global; with its .bin in .bytes where it has one.
function M.open(dir, name)
  local path = dir .. "/" .. name .. ".lua"
  local text = assert(read_file(path))
  local file = assert(load(text, "@" .. path, "t", {}))()
  if file.bin then file.bytes = assert(read_file(dir .. "/" .. file.bin)) end
  return file
end

-- The stored bytes of a ref.
function M.bytes(file, ref)
  local n = ref.storage_numel or M.numel(ref.shape)
  return file.bytes:sub(ref.offset + 1, ref.offset + n * M.size[ref.dtype]), n
end

-- A tensor with the ref's exact layout.
function M.tensor(T, file, ref)
  local bytes, n = M.bytes(file, ref)
  if not ref.strides then return T.from_string(bytes, ref.dtype, ref.shape) end
  local flat = T.from_string(bytes, ref.dtype, { n })
  return T.as_strided(flat, { size = ref.shape, stride = ref.strides, offset = ref.storage_offset or 0 })
end

local function show_shape(s)
  return "[" .. table.concat(s, ",") .. "]"
end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end
M.same_shape = same_shape

-- Whether flat lists agree: |a - b| <= atol + rtol |b|, NaN matches NaN, infinities by sign, integers
-- exactly.
function M.close(a, b, tol, exact)
  local rtol, atol = tol and tol[1] or 0, tol and tol[2] or 0
  local huge, abs = math.huge, math.abs
  for i = 1, #b do
    local x, y = a[i], b[i]
    if x ~= y and not (x ~= x and y ~= y) then
      local near = abs(x - y) <= atol + rtol * abs(y) -- false for a NaN on one side
      if exact or abs(y) == huge or not near then
        return false, string.format("element %d is %s, should be %s", i, tostring(x), tostring(y))
      end
    end
  end
  return true
end

-- Whether tensor t is what the ref stores. `shift` is added to the stored integers (index values).
function M.check(t, file, ref, tol, what, shift)
  local dtype, shape = t:dtype(), t:shape()
  if dtype ~= ref.dtype then
    return false, string.format("%s: dtype %s, should be %s", what, dtype, ref.dtype)
  end
  if not same_shape(shape, ref.shape) then
    return false, string.format("%s: shape %s, should be %s", what, show_shape(shape), show_shape(ref.shape))
  end
  local want, n = M.bytes(file, ref)
  local got = t:to_string()
  if got == want and not shift then return true end
  if #got ~= #want then return false, what .. ": " .. #got .. " bytes, should be " .. #want end
  local b = M.decode(want, dtype, n)
  if shift then
    for i = 1, n do b[i] = b[i] + shift end
  end
  local ok, why = M.close(M.decode(got, dtype, n), b, tol, not M.floating[dtype])
  return ok, ok or what .. ": " .. why
end

return M
