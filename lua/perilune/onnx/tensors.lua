-- SPDX-License-Identifier: MIT
--- Tensors of ONNX files: in the file itself, in typed fields or as bytes, or in a file beside it.
-- Types that have no dtype here are kept in wider ones and labelled (narrow.lua); an uint64 past 2^63 is refused.
-- @module perilune.onnx.tensors
local T = require "perilune"
local narrow = require "perilune.onnx.narrow"
local schema = require "perilune.onnx.schema"
local wire = require "perilune.onnx.wire"

local core, stop, types = T.core, wire.stop, schema.types
local tensors = {}

local MAX_ELEMENTS = 1 << 40
local NEAR = 4096 -- bytes that are read together with what is around them

-- The type with that number, which must be one that tensors can have here.
function tensors.type(number, who)
  local t = types[number or 0]
  if not t then stop("%s: element type %s, which ONNX does not have", who, tostring(number)) end
  if not t[2] then stop("%s: elements of type %s are not supported", who, t[1]) end
  return t
end

local function element_count(dims, who)
  local n = 1
  for _, d in ipairs(dims) do
    if d < 0 then stop("%s: a size of %d", who, d) end
    if d > 0 and n > MAX_ELEMENTS // d then stop("%s: more than 2^40 elements", who) end
    n = n * d
  end
  return n
end

-- ---- bytes of other files ------------------------------------------------------------------------------------------

-- The path of a file that a model names, inside of the model's folder: no link leads out of a name without "..", and a
-- link in the folder was put there by its owner.
local function beside(folder, location, who)
  if location == "" or location:find("^[/\\]") or location:find("^%a:") or location:find "%z" then
    stop("%s: external data in '%s', which is no path inside of the model's folder", who, location)
  end
  for part in location:gmatch "[^/\\]+" do
    if part == ".." then stop("%s: external data in '%s', which leaves the model's folder", who, location) end
  end
  return folder .. location
end

local function whole(text, name, who)
  local n = text and math.tointeger(tonumber(text))
  if text and (not n or n < 0 or not text:find "^%d+$") then stop("%s: external data with %s '%s'", who, name, text) end
  return n
end

local function external(t, want, folder, who)
  local about = {}
  for _, e in ipairs(t.external_data) do about[e.key or ""] = e.value or "" end
  if not about.location then stop("%s: external data without a location", who) end
  local path = beside(folder, about.location, who)
  local offset, length = whole(about.offset, "offset", who) or 0, whole(about.length, "length", who)
  if length and length ~= want then stop("%s: %d bytes of external data, %d are wanted", who, length, want) end
  local f, message = io.open(path, "rb")
  if not f then stop("%s: external data: %s", who, message) end
  local size = f:seek "end"
  if not size or offset + want > size then
    f:close()
    stop("%s: bytes %d to %d of '%s', which has %s", who, offset, offset + want, about.location, tostring(size))
  end
  f:close()
  return { path = path, from = offset, n = want }
end

-- The elements of a file from some byte on, read into the tensor itself.
local function in_file(path, from, dtype, shape, who)
  local t, message = core.tensor_of_bytes(path, from, dtype, shape)
  if not t then stop("%s: %s", who, message) end
  return t
end

local function read_piece(piece, who)
  if piece.read then return piece:read() end
  return in_file(piece.path, piece.from, "u8", { piece.n }, who):to_string()
end

-- ---- elements ------------------------------------------------------------------------------------------------------

-- Elements of a type that we have no dtype for, from bytes.
local function widened(bytes, t, n)
  local name, bits, list = t[1], t[3], {}
  if bits <= 8 then return narrow.unpack(T.from_string(bytes, "u8", { #bytes }), name, n) end
  local format = bits == 64 and "<i8" or ("<I%d"):format(bits // 8)
  for i = 1, n do
    list[i] = format:unpack(bytes, bits // 8 * (i - 1) + 1)
    if list[i] < 0 then stop("an uint64 of 2^63 or more, which i64 cannot hold") end
  end
  return T.tensor(list, { dtype = t[2] })
end

local of_integers = { f16 = true, bf16 = true, i8 = true, u8 = true, i16 = true, i32 = true, bool = true, i64 = true }

-- Elements that stand in the field for their type.
local function typed(t, kind, n, who)
  local name, dtype = kind[1], kind[2]
  if name == "float" or name == "double" then
    local bytes = table.concat(name == "float" and t.float_data or t.double_data)
    if #bytes * 8 ~= n * kind[3] then stop("%s: %d bytes of %ss for %d elements", who, #bytes, name, n) end
    return T.from_string(bytes, dtype, t.dims)
  end
  local packed = narrow.kinds[name] and kind[3] <= 8
  if not of_integers[dtype] and not packed then stop("%s: no elements", who) end
  local list = name == "int64" and t.int64_data or (name == "uint32" or name == "uint64") and t.uint64_data
    or t.int32_data
  if packed then -- a byte in each
    local bytes = {}
    for i, v in ipairs(list) do bytes[i] = string.char(v & 255) end
    if #list ~= (n * kind[3] + 7) // 8 then
      stop("%s: %d numbers for %d elements of %d bits", who, #list, n, kind[3])
    end
    if n == 0 then return T.zeros(t.dims, { dtype = dtype }) end
    return widened(table.concat(bytes), kind, n):view(t.dims)
  end
  if #list ~= n then stop("%s: %d numbers for %d elements", who, #list, n) end
  if dtype == "f16" or dtype == "bf16" then -- their bits
    local bytes = {}
    for i, v in ipairs(list) do bytes[i] = ("<I2"):pack(v & 0xffff) end
    return T.from_string(table.concat(bytes), dtype, t.dims)
  end
  local low, high = math.mininteger, math.maxinteger
  if dtype ~= "i64" and dtype ~= "bool" then
    local bits = dtype == "i8" and 7 or dtype == "i16" and 15 or dtype == "u8" and 8 or 31
    low, high = dtype == "u8" and 0 or -(1 << bits), (1 << bits) - 1
  elseif name:find "^u" then
    low = 0
  end
  for i, v in ipairs(list) do
    if v < low or v > high then stop("%s: element %d is %d, which %s cannot hold", who, i, v, name) end
    if dtype == "bool" then list[i] = v ~= 0 end
  end
  if n == 0 then return T.zeros(t.dims, { dtype = dtype }) end
  return T.tensor(list, { dtype = dtype }):view(t.dims)
end

--- The tensor of a message. folder: where external data is; who: for messages.
function tensors.read(t, folder, who)
  who = ("tensor '%s'"):format(t.name or who or "")
  local kind = tensors.type(t.data_type, who)
  if #t.dims > 16 then stop("%s: %d dimensions, at most 16 are supported", who, #t.dims) end
  local n = element_count(t.dims, who)
  local want = kind[3] < 8 and (n * kind[3] + 7) // 8 or n * (kind[3] // 8)
  local bytes, out = t.raw_data
  if t.data_location == 1 then bytes = external(t, want, folder, who) end
  if bytes then
    local piece = type(bytes) == "table" and bytes or nil
    local count = piece and piece.n or #bytes
    if count ~= want then
      stop("%s: %d bytes for %s[%s], which has %d", who, count, kind[1], table.concat(t.dims, ","), want)
    end
    local wider = narrow.kinds[kind[1]]
    if piece and (wider or want <= NEAR) then bytes, piece = read_piece(piece, who), nil end
    if n == 0 then
      out = T.zeros(t.dims, { dtype = kind[2] })
    elseif piece then
      out = in_file(piece.path, piece.from, kind[2], t.dims, who)
    elseif wider then
      out = widened(bytes, kind, n):view(t.dims)
    else
      out = T.from_string(kind[2] == "bool" and bytes:gsub("[^%z]", "\1") or bytes, kind[2], t.dims)
    end
  else
    out = typed(t, kind, n, who)
  end
  if narrow.kinds[kind[1]] then narrow.mark(out, kind[1]) end
  return out
end

--- The dense tensor of a sparse one.
function tensors.dense(s, folder, who)
  if not s.values or not s.indices then stop("a sparse tensor without values or indices") end
  local values, at = tensors.read(s.values, folder, who), tensors.read(s.indices, folder, who)
  local n, rank = element_count(s.dims, "a sparse tensor"), #s.dims
  if n > 1 << 28 then stop("a sparse tensor of more than 2^28 elements") end
  local flat, list = T.zeros({ n }, { dtype = values:dtype() }), at:totable()
  local count = values:numel()
  if values:dim() ~= 1 or at:dim() > 2 or at:numel() ~= count * (at:dim() == 2 and rank or 1) then
    stop("a sparse tensor whose indices do not fit its values")
  end
  for i = 1, count do
    local place = 0
    if at:dim() == 1 then
      place = list[i]
    else
      for d = 1, rank do
        if list[i][d] < 0 or list[i][d] >= s.dims[d] then stop("a sparse tensor with an index beyond its sizes") end
        place = place * s.dims[d] + list[i][d]
      end
    end
    if place < 0 or place >= n then stop("a sparse tensor with an index beyond its sizes") end
    flat:narrow(1, place + 1, 1):copy_(values:narrow(1, i, 1))
  end
  return flat:view(s.dims)
end

return tensors
